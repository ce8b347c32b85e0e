"""MATLAB files of any lab, v5 and v7.3, read by a mapping."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from foreign_files import continuous, handwriting_variables, handwritten, inner_speech_variables
from foreign_matlab import cells, column, save_v5, save_v73, texts
from refusals import harmless, refused

from cortext.data import open_dataset
from cortext_data.readers.importing import import_source
from cortext_data.readers.mat import mat
from cortext_data.readers.recording import Contents, RecordedTrial

Save = Callable[[Path, Mapping[str, object]], None]
HEAD = "format: cortext-mapping\nformat_version: 1\nreader: mat\nparticipant: t99\n"
CELLS = f"""{HEAD}bin_ms: 20
features: [{{name: tx, kind: counts}}]
trials: {{layout: cells}}
sentence: {{name: words}}
"""


@pytest.fixture(params=[save_v5, save_v73], ids=["v5", "v7.3"])
def save(request: pytest.FixtureRequest) -> Save:
    """Writes the variables of a file."""
    written: Save = request.param
    return written


def _mapping(folder: Path, text: str) -> Path:
    path = folder / "mapping.yaml"
    path.write_text(text)
    return path


def _trials(contents: Contents) -> list[RecordedTrial]:
    return [trial for block in contents.blocks for trial in block.trials]


def _read(path: Path, text: str) -> tuple[Contents, list[np.ndarray]]:
    """Return the contents of the only recording, and the numbers of its trials."""
    (recording,) = mat(path, _mapping(path.parent, text)).recordings
    with recording.open() as contents:
        return contents, [trial.read() for trial in _trials(contents)]


def _problem(path: Path, text: str) -> str:
    """Return the only problem of an import, without the file."""
    source = mat(path, _mapping(path.parent, text))
    (problem,) = import_source(source, path.parent / "out").problems
    return str(problem).removeprefix(f"{path}: ")


def _simple(**changes: object) -> dict[str, object]:
    """Return variables of three trials of 8 columns."""
    rng = np.random.default_rng(0)
    trials = [rng.poisson(1, (n, 8)).astype(np.uint8) for n in (40, 50, 60)]
    variables: dict[str, object] = {
        "tx": cells(trials),
        "words": texts(["hello", "good day", "yes"], (3, 1)),
        "block": column([4, 4, 7]),
        "half": column([1, 2.5, 3]),
        "four": column([1, 2, 3, 4]),
    }
    return variables | changes


def test_cells_are_read_as_they_were_saved(tmp_path: Path, save: Save) -> None:
    variables = _simple(set=texts(["a", "b", "c"], (1, 3)))
    path = tmp_path / "t99.2025.03.14.mat"
    save(path, variables)
    text = CELLS.replace("counts}", "counts, columns: [7, 0, 1]}")
    text += "block: {name: block}\nsplit: {name: set, train: [a], val: [b], test: [c]}\n"
    source = mat(path, _mapping(tmp_path, text))
    assert [each.session for each in source.recordings] == ["t99.2025.03.14"]
    contents, arrays = _read(path, text)
    assert [(block.number, block.split) for block in contents.blocks] == [
        (4, "train"),
        (4, "val"),
        (7, "test"),
    ]
    assert [trial.sentence for trial in _trials(contents)] == ["hello", "good day", "yes"]
    assert [trial.number for trial in _trials(contents)] == [0, 1, 0]
    tx = variables["tx"]
    assert isinstance(tx, np.ndarray)
    for written, found in zip(tx.ravel(), arrays, strict=True):
        np.testing.assert_array_equal(found, written[:, [7, 0, 1]])
    assert contents.counts == [0, 1, 2]


def test_a_cube_is_cut_to_the_lengths_of_its_trials(tmp_path: Path, save: Save) -> None:
    session = handwritten(np.random.default_rng(1))
    path = tmp_path / "t5.2019.05.08" / "sentences.mat"
    path.parent.mkdir()
    save(path, handwriting_variables(session))
    text = f"""{HEAD}bin_ms: 20
inventory: handwriting
features: [{{name: neuralActivityCube, kind: counts, bin_ms: 10}}]
trials: {{layout: cube, lengths: numTimeBinsPerSentence}}
sentence: {{name: sentencePrompt, replace: {{">": " "}}}}
block: {{name: sentenceBlockNums}}
split: {{val_blocks: 1}}
"""
    source = mat(tmp_path, _mapping(tmp_path, text))
    assert [each.session for each in source.recordings] == ["t99.2019.05.08"]
    with source.recordings[0].open() as contents:
        assert [(b.number, b.split) for b in contents.blocks] == [(5, "train"), (8, "val")]
        for written, trial in zip(session.trials, _trials(contents), strict=True):
            x_TC = written.arrays["counts"]
            n_bins = len(x_TC) // 2
            pairs = x_TC[: 2 * n_bins].reshape(n_bins, 2, 192).sum(axis=1)
            np.testing.assert_array_equal(trial.read(), pairs)
            assert trial.n_bins == n_bins
            assert trial.sentence == written.sentence.replace(">", " ")


def test_epochs_of_continuous_bins_count_from_one(tmp_path: Path, save: Save) -> None:
    recorded = continuous(np.random.default_rng(2), n_features=16)
    path = tmp_path / "t12.2023.05.12_isolatedVerbalBehaviors_raw.mat"
    save(path, inner_speech_variables(recorded))
    text = f"""{HEAD}bin_ms: 20
features:
  - {{name: binnedTX, kind: counts, columns: 0-7}}
  - {{name: spikePow, kind: power}}
trials: {{layout: epochs, epochs: goTrialEpochs}}
sentence: {{name: trialCues, cues: cueList, leave_out: [DO_NOTHING], replace: {{" (attempted)": ""}}}}
block: {{name: blockNum, per: bin}}
"""
    contents, arrays = _read(path, text)
    said = [trial for trial in recorded.trials if trial.sentence != "DO_NOTHING"]
    assert list(contents.notes) == ["left out: 1 trial of 'DO_NOTHING'"]
    assert [trial.sentence for trial in _trials(contents)] == [
        trial.sentence.replace(" (attempted)", "") for trial in said
    ]
    assert [block.number for block in contents.blocks] == [1, 3]
    for written, found in zip(said, arrays, strict=True):
        expected = [written.arrays["binnedTX"][:, :8], written.arrays["spikePow"]]
        np.testing.assert_array_equal(found, np.concatenate(expected, axis=1))
    assert contents.counts == list(range(8))
    # A trial that begins in the last bin of the one before it.
    epochs = inner_speech_variables(recorded)["goTrialEpochs"].copy()
    epochs[1, 0] = epochs[0, 1]
    save(path, inner_speech_variables(recorded) | {"goTrialEpochs": epochs})
    overlapping, _ = _read(path, text)
    assert "trials that begin before the one before them ends: 1" in overlapping.notes
    save(path, inner_speech_variables(recorded))
    # An end that is excluded: one bin less of each trial.
    shorter, _ = _read(path, text.replace("goTrialEpochs}", "goTrialEpochs, stop_bin: excluded}"))
    lengths = [trial.n_bins for trial in _trials(contents)]
    assert [trial.n_bins for trial in _trials(shorter)] == [length - 1 for length in lengths]


def test_an_import_has_z_scores_by_block_and_continues(tmp_path: Path, save: Save) -> None:
    folder = tmp_path / "in"
    for day in ("14", "15"):
        save(folder / f"t99.2025.03.{day}.mat", _simple())
    text = CELLS + "block: {name: block}\nsplit: {val_blocks: 1}\n"
    mapping = _mapping(tmp_path, text)
    result = import_source(mat(folder, mapping), tmp_path / "out")
    assert not result.problems
    data = open_dataset(tmp_path / "out")
    trials = {t.name: t for split in ("train", "val") for t in data.trials(split)}
    tx = _simple()["tx"]
    assert isinstance(tx, np.ndarray)
    block = np.concatenate([tx[0, 0], tx[0, 1]]).astype(np.float64)
    expected = (block - block.mean(axis=0)) / block.std(axis=0)
    found = trials["t99.2025.03.15/block 4/trial 1"]
    np.testing.assert_allclose(found.features_TC, expected[40:], atol=1e-5)
    again = import_source(mat(folder, mapping), tmp_path / "out")
    assert (again.n_written, again.n_kept) == (0, 2)


def test_a_changed_mapping_does_not_continue_with_an_import(tmp_path: Path) -> None:
    path = tmp_path / "t99.2025.03.14.mat"
    save_v5(path, _simple())
    import_source(mat(path, _mapping(tmp_path, CELLS)), tmp_path / "out")
    other = CELLS.replace("counts}", "counts, columns: 0-3}")
    with refused("holds an import with another mapping"):
        import_source(mat(path, _mapping(tmp_path, other)), tmp_path / "out")


def test_how_a_lexicon_of_another_tool_was_read_is_noted(tmp_path: Path) -> None:
    path = tmp_path / "t99.2025.03.14.mat"
    save_v5(path, _simple())
    words = "hello HH AH0 L OW1\ngood G UH1 D\nday D EY1\nyes Y EH1 S\n[noise] SPN\n"
    (tmp_path / "words.txt").write_text(words)
    mapping = _mapping(tmp_path, CELLS + "lexicon: words.txt\n")
    found = import_source(mat(path, mapping), tmp_path / "out")
    (note,) = [note for note in found.notes if note.startswith("lexicon read as ")]
    assert "1 special entry left out ([noise])" in note
    assert "stress left out" in note


def test_a_changed_lexicon_does_not_continue_with_an_import(tmp_path: Path) -> None:
    path = tmp_path / "t99.2025.03.14.mat"
    save_v5(path, _simple())
    words = tmp_path / "words.txt"
    words.write_text("hello HH AH L OW\ngood G UH D\nday D EY\nyes Y EH S\n")
    mapping = _mapping(tmp_path, CELLS + "lexicon: words.txt\n")
    assert not import_source(mat(path, mapping), tmp_path / "out").problems
    words.write_text(words.read_text().replace("UH", "AH"))
    with refused("holds an import with another lexicon"):
        import_source(mat(path, mapping), tmp_path / "out")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("name: tx", "name: ty", "ty: "),
        ("name: words", "name: word", "word: "),
        ("name: tx", "name: words", "words: chars found in cell 1, numbers expected"),
        ("name: words", "name: block", "block: numbers found, texts expected; name their cues in"),
        ("counts}", "counts, columns: 0-8}", "tx: column 8 does not exist, 0 to 7 found"),
        ("{name: words}", "{name: words}\nblock: {name: half}", "half: 2.5 found, a whole number"),
        (
            "{name: words}",
            "{name: words}\nblock: {name: four}",
            "four: 4 values found, one for each of 3 trials expected",
        ),
        (
            "{name: words}",
            "{name: four, cues: words}",
            "four: 4 values found, one for each of 3 trials expected",
        ),
        (
            "{name: words}",
            "{name: block, cues: words}",
            "block: cue 4 found, 1 to 3 expected; correct sentence.cues or sentence.first_cue",
        ),
        (
            "layout: cells}",
            "layout: cube, lengths: block}",
            "tx: cells found, numbers expected",
        ),
        (
            "layout: cells}",
            "layout: epochs, epochs: block}",
            "tx: cells found, numbers expected",
        ),
    ],
)
def test_what_the_file_lacks_is_one_line(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = tmp_path / "t99.2025.03.14.mat"
    save_v5(path, _simple())
    assert old in CELLS
    assert expected in _problem(path, CELLS.replace(old, new))


EPOCHS = CELLS.replace("layout: cells", "layout: epochs, epochs: go")
CUBE = CELLS.replace("layout: cells", "layout: cube, lengths: lengths")


@pytest.mark.parametrize(
    ("mapping", "changes", "expected"),
    [
        (
            CELLS,
            {"tx": cells([np.ones((40, 8)), np.ones((8, 50)), np.ones((60, 8))])},
            "block 0 trial 1: tx: cell 2 has shape [8, 50] and cell 1 [40, 8]; [bins, columns] with"
            " equal columns expected; transpose the cells where columns are bins",
        ),
        (
            CELLS,
            {"tx": cells([np.ones((40, 8)), np.full((50, 8), np.nan), np.ones((60, 8))])},
            "block 0 trial 1: input_features: 400 NaN or Inf found, the first at bin 0 of feature 0",
        ),
        (CELLS, {"tx": cells([np.ones((40, 8)), np.ones((50, 8))])}, "words: 3 values found, one"),
        (CELLS, {"words": texts(["hello", "", "yes"], (1, 3))}, None),
        (
            CELLS,
            {"tx": cells([np.ones((40, 8)), np.ones((5, 8, 2)), np.ones((60, 8))])},
            "block 0 trial 1: tx: cell 2 has shape [5, 8, 2], [bins, columns] expected",
        ),
        (
            CELLS,
            {"words": texts(["hello", "yes" + ", " * 300 + "yes", "yes"], (1, 3))},
            "block 0 trial 1: transcription: 606 characters found, under 500 expected; shorten it",
        ),
        (
            EPOCHS,
            {"tx": np.ones((100, 8)), "go": np.array([[1, 30.0], [31, 101], [60, 90]])},
            "block 0 trial 1: go: trial 2 is from bin 31 to 101; tx has 1 to 100; correct the epoch",
        ),
        (
            EPOCHS,
            {"tx": np.ones((100, 8)), "go": np.array([[1, 30.0], [0, 50], [60, 90]])},
            "block 0 trial 1: go: trial 2 is from bin 0 to 50; tx has 1 to 100",
        ),
        (
            EPOCHS,
            {"tx": np.ones((100, 8)), "go": np.array([[1, 30.0], [31, np.nan], [60, 90]])},
            "block 0 trial 1: go: trial 2 is from bin 31 to nan; tx has 1 to 100",
        ),
        (
            EPOCHS,
            {"tx": np.ones((100, 8)), "go": np.array([[1, 30.0], [31, 90], [1, 30]])},
            "block 0 trial 2: go: trial 3 has the epoch of trial 1; remove one of them",
        ),
        (
            EPOCHS,
            {"tx": np.ones((100, 8)), "go": np.ones((3, 3))},
            "go: shape [3, 3] found, [trials, 2] expected; correct the mapping",
        ),
        (
            EPOCHS + "block: {name: blocks, per: bin}\n",
            {
                "tx": np.ones((100, 8)),
                "go": np.array([[1, 30.0], [31, 50], [60, 90]]),
                "blocks": column([1] * 40 + [2] * 60),
            },
            "block 1 trial 1: blocks: trial 2 has bins of blocks 1, 2; one expected",
        ),
        (
            EPOCHS + "block: {name: block, per: bin}\n",
            {"tx": np.ones((100, 8)), "go": np.array([[1, 30.0], [31, 50], [60, 90]])},
            "block: 3 values found, one for each of 100 bins expected",
        ),
        (
            CUBE,
            {"tx": np.ones((3, 100, 8)), "lengths": column([40, 101, 60])},
            "block 0 trial 1: lengths: trial 2 has length 101; tx has 1 to 100 bins",
        ),
        (
            CUBE,
            {"tx": np.ones((3, 100, 8)), "lengths": column([40, 60])},
            "lengths: 2 lengths found for 3 trials of tx",
        ),
        (
            CUBE,
            {"tx": np.ones((3, 100)), "lengths": column([40, 60, 70])},
            "tx: shape [3, 100] found, 3 dimensions expected",
        ),
    ],
)
def test_damage_is_one_line_that_says_where(
    tmp_path: Path, save: Save, mapping: str, changes: dict[str, object], expected: str | None
) -> None:
    path = tmp_path / "t99.2025.03.14.mat"
    save(path, _simple(**changes))
    if expected is not None:
        assert _problem(path, mapping).startswith(expected)
        return
    contents, _ = _read(path, mapping)
    assert list(contents.notes) == ["left out: 1 trial without a sentence"]


def test_a_damaged_note_of_a_fill_value_does_not_end_the_process(tmp_path: Path) -> None:
    path = tmp_path / "t99.2025.03.14.mat"
    save_v73(path, _simple())
    content = path.read_bytes()
    # HDF5's message of version 2: when to allocate, when to write, defined, size; a filter follows.
    note = bytes([2, 3, 2, 1, 0, 0, 0, 0, 11])
    assert note in content
    path.write_bytes(content.replace(note, bytes([2, 3, 2, 1, 0, 0, 0, 255, 11])))
    source = mat(path, _mapping(tmp_path, CELLS))
    problems = import_source(source, tmp_path / "out").problems
    assert problems
    assert all("damaged HDF5" in str(problem) for problem in problems)


def test_a_text_that_no_session_file_can_hold_is_a_problem(tmp_path: Path) -> None:
    """Written as v7.3: SciPy drops the NUL."""
    path = tmp_path / "t99.2025.03.14.mat"
    save_v73(path, _simple(words=cells(["hello", "good\0day", "yes"])))
    assert _problem(path, CELLS) == (
        "block 0 trial 1: sentence_label: a NUL character found; remove it, or leave it out with"
        " --skip-bad"
    )


@pytest.mark.parametrize("broken", ["cut", "none", "text"])
def test_files_that_are_no_matlab_files_are_one_line(
    tmp_path: Path, save: Save, broken: str
) -> None:
    path = tmp_path / "t99.2025.03.14.mat"
    save(path, _simple())
    content = {"cut": path.read_bytes()[:-200], "none": b"", "text": b"words" * 200}[broken]
    path.write_bytes(content)
    assert len(_problem(path, CELLS)) < 300


def test_a_file_without_a_date_is_refused_and_may_be_given_one(tmp_path: Path) -> None:
    path = tmp_path / "monday.mat"
    save_v5(path, _simple())
    with refused(r"monday.mat: no date of the form YYYY\.MM\.DD in its name; correct session.date"):
        mat(path, _mapping(tmp_path, CELLS))
    given = CELLS + "session: {files: {monday.mat: 2025-03-14}}\n"
    (recording,) = mat(path, _mapping(tmp_path, given)).recordings
    assert recording.session == "t99.2025.03.14"


def test_files_of_one_day_are_blocks_of_one_session(tmp_path: Path, save: Save) -> None:
    folder = tmp_path / "in"
    for run, value in ((1, 5), (2, 6)):
        trials = cells([np.full((40, 8), value, np.uint8)] * 3)
        save(folder / f"20250314_run{run}.mat", _simple(tx=trials))
    text = CELLS + "session: {date: YYYYMMDD}\nsplit: {val_blocks: 1}\n"
    (recording,) = mat(folder, _mapping(tmp_path, text)).recordings
    with recording.open() as contents:
        found = [(b.number, b.split, int(b.trials[0].read()[0, 0])) for b in contents.blocks]
    assert found == [(0, "train", 5), (1, "val", 6)]


def test_spanish_sentences_get_tokens_of_ones_own(tmp_path: Path, save: Save) -> None:
    letters = [*"abcdefghijklmnopqrstuvwxyz", *"áéíóúüñ"]
    inventory = {
        "name": "letras",
        "symbols": ["_", "|", *letters],
        "unit": "character",
        "roles": {"blank": "_", "boundary": "|"},
    }
    (tmp_path / "letras.json").write_text(json.dumps(inventory))
    path = tmp_path / "t99.2025.03.14.mat"
    save(path, _simple(words=texts(["¡frío!", "el niño", "sí"], (3, 1))))
    text = CELLS + "language: es\ninventory: letras.json\n"
    result = import_source(mat(path, _mapping(tmp_path, text)), tmp_path / "out")
    assert not result.problems
    first = next(iter(open_dataset(tmp_path / "out").trials("train")))
    assert first.sentence == "¡frío!"
    assert first.phoneme_ids is not None
    assert first.phoneme_ids.tolist() == [7, 19, 30, 16]  # by hand: f r í o


def test_links_to_a_file_are_refused_as_they_would_double_its_trials(tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    folder.mkdir()
    save_v5(folder / "t99.2025.03.14_a.mat", _simple())
    (folder / "t99.2025.03.14_b.mat").symlink_to("t99.2025.03.14_a.mat")
    with refused("_b.mat: is the same file as .*_a.mat; remove one of them"):
        mat(folder, _mapping(tmp_path, CELLS))


def test_more_trials_than_a_day_has_are_refused(tmp_path: Path) -> None:
    n = 2_000_000
    day = tmp_path / "t99.2025.03.14.mat"
    epochs = np.tile(np.array([[1, 30]], "u1"), (n, 1))
    save_v5(day, {"tx": np.ones((60, 4), "u1"), "ep": epochs, "words": column([1])})
    with harmless(most_mb=100, most_s=20):
        said = _problem(day, CELLS.replace("cells", "epochs, epochs: ep"))
    assert said == "ep: 2,000,000 trials found, at most 100,000 expected; correct the mapping"
    cube = np.ones((n, 1, 1), "u1")
    save_v5(day, {"tx": cube, "n": np.ones((n, 1), "u1"), "words": column([1])})
    with harmless(most_mb=100, most_s=20):
        said = _problem(day, CELLS.replace("cells", "cube, lengths: n"))
    assert said == "tx: 2,000,000 trials found, at most 100,000 expected; correct the mapping"


def test_replacements_that_multiply_are_refused(tmp_path: Path) -> None:
    day = tmp_path / "t99.2025.03.14.mat"
    save_v5(day, _simple())
    letters = "abcdefghijklmnopqrstuvwxyz"
    pairs = ", ".join(f"{a}: {2000 * b}" for a, b in pairwise(letters))
    text = CELLS.replace("{name: words}", f"{{name: words, replace: {{{pairs}}}}}")
    source = mat(day, _mapping(tmp_path, text))
    with refused("sentence.replace makes a sentence of more than 20,000 characters"):
        import_source(source, tmp_path / "out")
