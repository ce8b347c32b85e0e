"""First mappings: what a file holds is printed, and a simple file is imported without an edit."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from foreign_files import continuous, handwriting_variables, handwritten, inner_speech_variables
from foreign_matlab import cells, column, save_v5, save_v73, texts
from foreign_nwb import write_falcon, write_nwb
from refusals import complaint

from cortext.cli import run
from cortext.data import Trial, open_dataset
from cortext.errors import DataError
from cortext_data.readers.mapped.first_mapping import write_first_mapping
from cortext_data.readers.mapped.inspect_mat import inspect_mat
from cortext_data.readers.mapped.inspect_nwb import inspect_nwb
from cortext_data.readers.mapped.mapping import MatMapping, NwbMapping, load_mapping

Save = Callable[[Path, Mapping[str, object]], None]
SAVES = [pytest.param(save_v5, id="v5"), pytest.param(save_v73, id="v7.3")]


def _imported(reader: str, source: Path, *edits: tuple[str, str]) -> dict[str, list[Trial]]:
    """Inspect a file, import it with the mapping that this writes, and return the trials."""
    mapping, out = source.parent / "first.yaml", source.parent / "out"
    assert run(["import", reader, str(source), "--inspect", "--mapping", str(mapping)]) == 0
    for old, new in edits:
        text = mapping.read_text()
        assert old in text
        mapping.write_text(text.replace(old, new))
    arguments = ["--mapping", str(mapping), "--out", str(out), "--normalise", "none"]
    assert run(["import", reader, str(source), *arguments]) == 0
    data = open_dataset(out)
    return {split: list(data.trials(split)) for split in ("train", "val", "test")}


def test_binned_series_are_imported_without_an_edit(tmp_path: Path) -> None:
    rig = write_nwb(tmp_path / "rig.nwb", timestamps=True)
    found = _imported("nwb", tmp_path / "rig.nwb")
    trials = {(t.block, t.trial): t for split in found.values() for t in split}
    assert [t.sentence for t in found["val"]] == [
        t.sentence for t, split in zip(rig.trials, rig.split, strict=True) if split == "val"
    ]
    first = trials[1, 0]
    assert first.session == "participant.2026.05.04"
    # The series stand in the order of their names.
    expected = [rig.trials[0].arrays[name] for name in ("spike_band_power", "threshold_crossings")]
    np.testing.assert_allclose(first.features_TC, np.concatenate(expected, axis=1), rtol=1e-6)


def test_units_alone_are_imported_without_an_edit(tmp_path: Path) -> None:
    rig = write_nwb(tmp_path / "rig.nwb", n_units=12)
    import h5py

    with h5py.File(tmp_path / "rig.nwb", "r+") as file:
        for name in list(file["acquisition"]):
            del file["acquisition"][name]
    found = _imported("nwb", tmp_path / "rig.nwb")
    first = found["train"][0]
    n_bins = first.n_bins
    edges = rig.start_s[0] + np.arange(n_bins + 1) * 0.02
    counts = [np.histogram(times, edges)[0] for times in rig.spikes]
    np.testing.assert_array_equal(first.features_TC, np.stack(counts, axis=1))


@pytest.mark.parametrize("save", SAVES)
def test_a_matlab_file_of_cells_is_imported_without_an_edit(tmp_path: Path, save: Save) -> None:
    rng = np.random.default_rng(0)
    tx = [rng.poisson(1, (n, 16)).astype(np.uint8) for n in (40, 50, 60)]
    power = [rng.gamma(2, 20, x.shape).astype(np.float32) for x in tx]
    save(
        tmp_path / "t99.2025.03.14.mat",
        {
            "tx1": cells(tx),
            "spikePow": cells(power),
            "sentenceText": texts(["hello", "good day", "yes"], (3, 1)),
            "blockIdx": column([1, 1, 2]),
            "chanSets": cells([np.arange(1.0, 9)[None], np.arange(9.0, 17)[None]]),
        },
    )
    found = _imported("mat", tmp_path / "t99.2025.03.14.mat")
    assert [(t.name, t.sentence) for t in found["train"]] == [
        ("t99.2025.03.14/block 1/trial 0", "hello"),
        ("t99.2025.03.14/block 1/trial 1", "good day"),
    ]
    assert [t.sentence for t in found["val"]] == ["yes"]
    mapping = load_mapping(tmp_path / "first.yaml", MatMapping, "mat")
    kinds = {feature.name: feature.kind for feature in mapping.features}
    assert kinds == {"tx1": "counts", "spikePow": "power"}
    parts = {"tx1": tx[1], "spikePow": power[1]}
    expected = np.concatenate([parts[feature.name] for feature in mapping.features], axis=1)
    np.testing.assert_allclose(found["train"][1].features_TC, expected, rtol=1e-6)


@pytest.mark.parametrize("save", SAVES)
def test_a_cube_is_guessed_and_read(tmp_path: Path, save: Save) -> None:
    session = handwritten(np.random.default_rng(1))
    path = tmp_path / "t5.2019.05.08" / "sentences.mat"
    save(path, handwriting_variables(session))
    found = _imported(
        "mat", path, ("inventory: arpabet", "inventory: handwriting"), ("bin_ms: 20", "bin_ms: 10")
    )
    assert len(found["train"]) + len(found["val"]) == 5
    assert {t.block for t in found["val"]} == {8}
    assert found["train"][0].sentence == session.trials[0].sentence.replace(">", " ")
    np.testing.assert_array_equal(found["train"][0].features_TC, session.trials[0].arrays["counts"])


def test_continuous_bins_are_guessed_with_epochs_cues_and_blocks(tmp_path: Path) -> None:
    recorded = continuous(np.random.default_rng(2), n_features=16, bin_ms=10)
    path = tmp_path / "t16_20230512_raw.mat"
    save_v5(path, inner_speech_variables(recorded))
    _, text = inspect_mat(path)
    (tmp_path / "first.yaml").write_text(text)
    found = load_mapping(tmp_path / "first.yaml", MatMapping, "mat")
    assert found.trials.epochs == "goTrialEpochs"
    assert [feature.name for feature in found.features] == ["binnedTX", "spikePow"]
    assert found.block is not None
    assert (found.block.name, found.block.per) == ("blockNum", "bin")
    assert found.sentence is not None
    assert (found.sentence.name, found.sentence.cues) == ("trialCues", "cueList")
    assert found.sentence.leave_out == ["DO_NOTHING"]
    assert found.bin_ms == 10
    assert found.session.date == "YYYYMMDD"
    assert found.participant == "t16"
    assert found.split is not None
    assert found.split.val_blocks == 1


def test_stops_at_the_last_bin_before_a_gap_are_noticed(tmp_path: Path) -> None:
    """FALCON's files: `stop_time` is the time of the last bin."""
    write_falcon(tmp_path, dandi=False)
    path = tmp_path / "held_in_calib" / "T5_2022.05.18_held_in_calib.nwb"
    items, text = inspect_nwb(path)
    (tmp_path / "first.yaml").write_text(text)
    found = load_mapping(tmp_path / "first.yaml", NwbMapping, "nwb")
    assert found.trials.stop_bin == "included"
    assert found.sentence is not None
    assert found.sentence.replace == {">": " "}
    assert found.participant == "T5_held_in_calib"
    about = {item.name: item.about for item in items}
    assert about["acquisition/binned_spikes"] == "timestamps, 20 ms apart, unit int"
    assert about["intervals/trials/block_num"] == "1, 2"


def test_a_mapping_is_never_overwritten(tmp_path: Path, capsys) -> None:
    write_nwb(tmp_path / "rig.nwb")
    mapping = tmp_path / "mine.yaml"
    mapping.write_text("edited")
    said = complaint(
        capsys, "import", "nwb", tmp_path / "rig.nwb", "--inspect", "--mapping", mapping
    )
    assert "mine.yaml: is there already, and may be edited; give the first mapping another" in said
    assert mapping.read_text() == "edited"


def test_a_mapping_that_does_not_fit_on_the_disk_leaves_no_part(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(DataError, match="cannot be written: File too large; free some space"):
            write_first_mapping(tmp_path / "first.yaml", "#" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert not list(tmp_path.iterdir())


def test_what_is_missing_is_named(tmp_path: Path, capsys) -> None:
    write_nwb(tmp_path / "rig.nwb")
    said = complaint(capsys, "import", "nwb", tmp_path / "rig.nwb", "--out", tmp_path / "out")
    assert said == (
        "cortext: --mapping FILE is needed; --inspect --mapping NEW.yaml writes a first one\n"
    )
    said = complaint(capsys, "import", "nwb", tmp_path / "rig.nwb", "--mapping", "x.yaml")
    assert said == "cortext: --out DIR is needed; name a directory for the session files\n"
    said = complaint(capsys, "import", "mat", tmp_path / "none.mat", "--inspect")
    assert said == f"cortext: {tmp_path}/none.mat: no such file or folder; check the path\n"
    (tmp_path / "a.nwb").write_bytes(b"words")
    said = complaint(capsys, "import", "nwb", tmp_path / "a.nwb", "--inspect")
    assert said.startswith(f"cortext: {tmp_path}/a.nwb: not an HDF5 file")


def test_the_parts_of_a_file_are_printed_as_a_table_and_as_json(tmp_path: Path, capsys) -> None:
    save_v73(tmp_path / "a.mat", {"words": texts(["hello", "yes"], (2, 1)), "s": {"a": "b"}})
    assert run(["import", "mat", str(tmp_path), "--inspect"]) == 0
    printed = capsys.readouterr().out
    assert "words" in printed
    assert "'hello', 'yes'" in printed
    assert run(["import", "mat", str(tmp_path / "a.mat"), "--inspect", "--json"]) == 0
    parts = {part["name"]: part for part in json.loads(capsys.readouterr().out)["parts"]}
    assert parts["words"] == {
        "name": "words",
        "kind": "texts",
        "shape": "[2, 1]",
        "about": "'hello', 'yes'",
    }
    assert parts["s"]["kind"] == "other"


def test_names_that_yaml_would_misread_are_quoted(tmp_path: Path) -> None:
    path = tmp_path / "monday.mat"
    trials = cells([np.ones((40, 8)), np.ones((50, 8))])
    save_v5(path, {"no": trials, "on": texts(["yes", 'a "word": #1'], (2, 1))})
    _, text = inspect_mat(path)
    (tmp_path / "first.yaml").write_text(text)
    found = load_mapping(tmp_path / "first.yaml", MatMapping, "mat")
    assert found.features[0].name == "no"
    assert found.sentence is not None
    assert found.sentence.name == "on"
    assert found.session.files == {"monday.mat": "2000-01-01"}


def test_a_file_without_trials_gets_a_mapping_with_places_to_fill(tmp_path: Path) -> None:
    path = tmp_path / "t99.2025.03.14.mat"
    save_v5(path, {"x": np.ones((3, 3))})
    _, text = inspect_mat(path)
    (tmp_path / "first.yaml").write_text(text)
    found = load_mapping(tmp_path / "first.yaml", MatMapping, "mat")
    assert found.features[0].name == "FEATURES"
    assert found.sentence is not None
    assert found.sentence.name == "SENTENCES"
