import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from cortext.data import open_dataset
from cortext.data.trial import Trial
from cortext.errors import CortextError, DataError, TextError
from cortext.text import normalize, to_phonemes
from cortext.text.inventory import RELEASE
from cortext_data.simulate import PRESETS, simulate
from cortext_data.simulate.brain import electrodes
from cortext_data.simulate.plan import PlannedBlock, PlannedDay, PlannedTrial, Prompt
from cortext_data.simulate.write import simulate_block, zscore

TINY = PRESETS["tiny"]


@pytest.fixture
def tiny(simulated) -> Path:
    return simulated.root


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def block_of(sentences: list[str], config=TINY, split: str = "train") -> list[Trial]:
    trials = tuple(
        PlannedTrial(i, split, Prompt(text, "grammar")) for i, text in enumerate(sentences)
    )
    day = PlannedDay("sim.2025.01.06", (1,), (PlannedBlock(1, trials),))
    return [
        made.trial for made in simulate_block(config, day, day.blocks[0], electrodes(config, (1,)))
    ]


def test_days_that_are_soon_made_start_no_process(simulated, tmp_path, monkeypatch):
    def pool(*_, **__):
        raise AssertionError("a process")

    assert simulated.pools == []
    monkeypatch.setattr("cortext_data.simulate.write.ProcessPoolExecutor", pool)
    with pytest.raises(AssertionError, match="a process"):
        simulate(tmp_path / "more", "tiny", workers=2)


def test_another_seed_says_and_records_something_else(tiny, tmp_path):
    simulate(tmp_path / "other", "tiny", seed=1)
    mine = files(tiny)
    other = files(tmp_path / "other")
    assert mine["text/val.txt"] != other["text/val.txt"]
    assert mine["sim.2025.01.06/data_train.hdf5"] != other["sim.2025.01.06/data_train.hdf5"]


def test_trials_are_as_many_and_as_wide_as_configured(tiny):
    dataset = open_dataset(tiny)
    assert [session.name for session in dataset.sessions] == ["sim.2025.01.06", "sim.2025.01.08"]
    assert dataset.n_features == 2 * TINY.n_electrodes
    counts = {split: len(list(dataset.trials(split))) for split in ("train", "val", "test")}
    assert counts == {"train": 48, "val": 12, "test": 6}


def test_labels_are_the_phonemes_of_the_prompt_and_withheld_in_test(tiny):
    dataset = open_dataset(tiny)
    for trial in dataset.trials("val"):
        assert RELEASE.names(trial.phoneme_ids) == to_phonemes(trial.sentence)
        assert trial.corpus in ("handwritten", "grammar")
    assert all(
        trial.sentence is None and trial.phoneme_ids is None for trial in dataset.trials("test")
    )
    with h5py.File(tiny / "sim.2025.01.06" / "data_test.hdf5") as file:
        assert "seq_class_ids" not in file["trial_0000"]
        assert "sentence_label" not in file["trial_0000"].attrs


def test_features_are_z_scored_per_block(tiny):
    blocks: dict[tuple[str, int], list[np.ndarray]] = {}
    for split in ("train", "val", "test"):
        for trial in open_dataset(tiny).trials(split):
            blocks.setdefault((trial.session, trial.block), []).append(trial.features_TC)
    for parts in blocks.values():
        features = np.concatenate(parts).astype(np.float64)
        np.testing.assert_allclose(features.mean(axis=0), 0, atol=1e-4)
        np.testing.assert_allclose(features.std(axis=0), 1, atol=1e-3)


def test_zscore_makes_a_constant_feature_zero():
    features = np.stack([np.full(50, 3.0), np.arange(50.0)], axis=1).astype(np.float32)
    zscore(features)
    assert (features[:, 0] == 0).all()
    assert features[:, 1].std() == pytest.approx(1, abs=1e-5)


def test_threshold_crossings_come_before_spike_band_power():
    features = np.concatenate(
        [trial.features_TC for trial in block_of(["we had dinner by the sea"] * 4)]
    )
    levels = [len(np.unique(column)) for column in features.T]
    assert max(levels[: TINY.n_electrodes]) < 30  # counts
    assert min(levels[TINY.n_electrodes :]) > 100  # continuous power


def test_sentences_reach_the_features_only_through_articulators():
    # Homophones: other words and other letters, the same movements, and so the same features to the
    # last bit.
    one = "their son can see two of them"
    other = "there sun can sea too of them"
    assert to_phonemes(one) == to_phonemes(other)
    for a, b in zip(block_of([one, one]), block_of([other, other]), strict=True):
        np.testing.assert_array_equal(a.features_TC, b.features_TC)
    for a, b in zip(block_of([one, one]), block_of([one, one], split="test"), strict=True):
        np.testing.assert_array_equal(a.features_TC, b.features_TC)


def test_truth_tells_what_was_said_when_and_how(tiny):
    with h5py.File(tiny / "sim.2025.01.06" / "truth.hdf5") as truth:
        assert truth["electrodes/tuning_EF"].shape[0] == TINY.n_electrodes
        assert len(truth["test"]) == TINY.test_per_day
        assert (
            truth["test/trial_0000"].attrs["sentence_label"]
            in (tiny / "text" / "test.txt").read_text()
        )
        for number, trial in enumerate(
            open_dataset(tiny).trials("val", sessions=["sim.2025.01.06"])
        ):
            group = truth[f"val/trial_{number:04d}"]
            assert (group.attrs["block_num"], group.attrs["trial_num"]) == (
                trial.block,
                trial.trial,
            )
            assert group["articulators"].shape == (trial.n_bins, len(truth.attrs["articulators"]))
            alignment = group["alignment"][:]
            # After the first silence.
            np.testing.assert_array_equal(alignment[1:, 0], trial.phoneme_ids)
            np.testing.assert_array_equal(alignment[1:, 1], alignment[:-1, 2])
            assert alignment[-1, 2] == trial.n_bins * 20


def test_texts_hold_what_is_said_and_no_held_out_sentence_is_in_the_language_model_s(tiny):
    read = {
        name: (tiny / "text" / f"{name}.txt").read_text().splitlines()
        for name in ("train", "val", "test", "lm")
    }
    assert Counter(read["val"]) == Counter(
        trial.sentence for trial in open_dataset(tiny).trials("val")
    )
    assert set(read["train"]) <= set(read["lm"])
    assert not {normalize(s) for s in read["val"] + read["test"]} & {
        normalize(s) for s in read["lm"]
    }


def test_the_record_says_what_produced_the_data(tiny):
    record = json.loads((tiny / "simulation.json").read_text())
    assert record["preset"] == "tiny"
    assert record["config"]["n_electrodes"] == TINY.n_electrodes
    assert record["trials"] == {"train": 48, "val": 12, "test": 6}
    assert record["versions"]["numpy"] == np.__version__


def test_anyone_s_own_sentences_can_be_said(tmp_path):
    lines = [f"{subject} {verb} the {thing}" for subject in ("we", "they", "you") for verb in ("saw", "sold", "kept")
             for thing in ("boat", "house", "key", "horse")]  # fmt: skip
    (tmp_path / "mine.txt").write_text("\n".join(lines))
    dataset = simulate(tmp_path / "out", "tiny", text=tmp_path / "mine.txt", overrides=["n_days=1"])
    said = [trial for split in ("train", "val") for trial in dataset.trials(split)]
    assert {trial.sentence for trial in said} <= set(lines)
    assert {trial.corpus for trial in said} == {"mine"}


def test_a_text_without_sentences_is_refused(tmp_path):
    (tmp_path / "empty.txt").write_text("...\n")
    with pytest.raises(TextError, match="no sentence found"):
        simulate(tmp_path / "out", "tiny", text=tmp_path / "empty.txt")


def test_a_directory_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("keep")
    with pytest.raises(DataError, match="exists and is not empty"):
        simulate(tmp_path, "tiny")
    assert files(tmp_path) == {"mine.txt": b"keep"}


def test_an_interrupted_simulation_leaves_nothing(tmp_path):
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    # In processes of their own, see the disk that fills up: the pool ends in the same place.
    with pytest.raises(KeyboardInterrupt):
        simulate(tmp_path / "out", "tiny", progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_more_data_than_fits_the_disk_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(DataError, match=r"GB are needed and .* GB are free"):
        simulate(tmp_path / "out", "tiny", overrides=["lead_in_ms=1e13"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_disk_that_fills_up_is_one_line_and_leaves_nothing(tmp_path, full_disk, workers):
    """With few electrodes the truth is the largest file, and the one that no longer fits."""
    with (
        full_disk(600_000),
        pytest.raises(DataError, match=r"truth\.hdf5: cannot be written: .*free some space"),
    ):
        simulate(
            tmp_path / "out", "tiny", truth=True, workers=workers, overrides=["n_electrodes=4"]
        )
    assert list(tmp_path.iterdir()) == []


def test_a_directory_without_a_name_of_its_own_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=r"^\.: has no name"):
        simulate(".", "tiny")


def test_progress_counts_trials(simulated):
    assert simulated.progress == [(33, 66), (66, 66)]


def test_snr_of_zero_is_allowed_and_changes_no_label(tmp_path, tiny):
    deaf = simulate(tmp_path / "deaf", "tiny", overrides=["snr=0"])
    pairs = zip(deaf.trials("val"), open_dataset(tiny).trials("val"), strict=True)
    assert all(a.sentence == b.sentence and a.n_bins == b.n_bins for a, b in pairs)


def test_errors_of_users_are_one_line():
    with pytest.raises(CortextError) as caught:
        simulate("/proc/nowhere/out", "tiny")
    assert "\n" not in str(caught.value)


def test_dead_electrodes_still_give_finite_features():
    trials = block_of(["we had dinner by the sea"] * 3, replace(TINY, dead_fraction=0.9))
    assert all(np.isfinite(trial.features_TC).all() for trial in trials)
