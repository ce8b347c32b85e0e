"""The inner-speech release: cues, periods, channels, splits, and damaged files."""

from dataclasses import replace

import foreign_files as files
import numpy as np
import pytest
from foreign_matlab import cells, column, save_v5, save_v73, texts

from cortext.cli import run as cortext
from cortext.data import open_dataset
from cortext.errors import ConfigError, DataError
from cortext_data.readers.importing import import_source
from cortext_data.readers.inner_speech import Cue, inner_speech

NAME = "t12.2023.05.12_isolatedVerbalBehaviors_raw.mat"
DAY = "t12.2023.05.12"
CUES = ("ban (attempted)", "kite (imaginedlistening)", "DO_NOTHING", "up right up")


@pytest.fixture
def recorded():
    """Twelve trials in blocks 3, 4 and 6 with 8 channels."""
    rng = np.random.default_rng(0)
    return files.continuous(rng, CUES, [3] * 4 + [4] * 4 + [6] * 4, n_features=8, go_bins=(70, 71))


@pytest.fixture
def folder(recorded, tmp_path):
    files.write_inner_speech(tmp_path / "Data" / NAME, recorded)
    return tmp_path / "Data"


def trials_of(out):
    """Return the trials by split, block and number."""
    dataset = open_dataset(out)
    return {
        (split, trial.block, trial.trial): trial
        for split in dataset.splits
        for trial in dataset.trials(split)
    }


@pytest.mark.parametrize(
    ("text", "sentence", "behaviour"),
    [
        ("ban (attempted)", "ban", "attempted"),
        ("ban (imaginedlistening)", "ban", "imaginedlistening"),
        ("ban\n(attempted)$1", "ban", "attempted"),
        ("ban$0", "ban", "0"),
        ("up right up", "up right up", None),
        ("I'm not so sure (about that).", "I'm not so sure (about that).", None),
    ],
)
def test_a_cue_tells_what_was_said_and_how(text, sentence, behaviour):
    assert Cue.of(text) == Cue(sentence, behaviour)


@pytest.mark.parametrize(
    "text", ["DO_NOTHING", "Do Nothing", "NOTHING", "DO_NOTHING$0", "do nothing (attempted)"]
)
def test_a_cue_to_do_nothing_is_known(text):
    assert Cue.of(text).is_nothing
    assert not Cue.of("nothing else").is_nothing


@pytest.mark.parametrize("v73", [False, True], ids=["v5", "v7.3"])
def test_periods_of_speech_are_written_by_block(recorded, tmp_path, v73):
    files.write_inner_speech(tmp_path / NAME, recorded, v73=v73)
    done = import_source(inner_speech(tmp_path / NAME), tmp_path / "out")
    assert done.problems == []
    assert done.notes == [f"{DAY}: left out: 3 trials with the cue to do nothing"]
    found = trials_of(tmp_path / "out")
    # The last block becomes val; the third cue, to do nothing, has its number, too.
    places = [("train", block, number) for block in (3, 4) for number in (0, 1, 3)]
    assert set(found) == {*places, *(("val", 6, number) for number in (0, 1, 3))}
    said = [
        (trial.sentence, trial.corpus) for (split, *_), trial in found.items() if split == "val"
    ]
    assert said == [
        ("ban", "attempted"),
        ("kite", "imaginedlistening"),
        ("up right up", "isolatedVerbalBehaviors"),
    ]
    kept = [number for number in range(4) if number != 2]
    whole = [np.hstack([*recorded.trial(4 + number).arrays.values()]) for number in kept]
    together = np.concatenate(whole).astype(np.float64)
    for number, x_TC in zip(kept, whole, strict=True):
        expected = (x_TC - together.mean(axis=0)) / together.std(axis=0)
        one = found["train", 4, number]
        np.testing.assert_allclose(one.features_TC, expected, rtol=1e-4, atol=1e-4)


def test_the_delay_before_speech_can_be_chosen(recorded, folder, tmp_path):
    recorded = replace(recorded, delay=recorded.go - 20)
    files.write_inner_speech(folder / NAME, recorded)
    import_source(inner_speech(folder, epoch="delay"), tmp_path / "out", normalise="none")
    found = trials_of(tmp_path / "out")["train", 3, 1].features_TC
    first, last = recorded.delay[1]
    expected = np.hstack([x[first - 1 : last] for x in recorded.arrays.values()])
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(ConfigError, match="unknown epoch 'rest'; "):
        inner_speech(folder, epoch="rest")


def test_one_behaviour_and_one_set_of_channels_can_be_kept(recorded, folder, tmp_path):
    source = inner_speech(folder, behaviour="attempted", channels="55b")
    done = import_source(source, tmp_path / "out", normalise="none")
    assert done.notes[:2] == [
        f"{DAY}: left out: 6 trials of another behaviour",
        f"{DAY}: left out: 3 trials with the cue to do nothing",
    ]
    assert "left as they are, -3 to 3 expected of most z-scores" in done.notes[2]
    found = trials_of(tmp_path / "out")
    assert set(found) == {("train", 3, 0), ("train", 4, 0), ("val", 6, 0)}
    wrote = recorded.trial(0).arrays
    expected = np.hstack([wrote["binnedTX"][:, 4:], wrote["spikePow"][:, 4:]])
    np.testing.assert_array_equal(found["train", 3, 0].features_TC, expected)


@pytest.mark.parametrize(("held", "val"), [(0, set()), (1, {6}), (2, {4, 6})])
def test_the_last_blocks_become_val(folder, tmp_path, held, val):
    import_source(inner_speech(folder, val_blocks=held), tmp_path / "out")
    found = trials_of(tmp_path / "out")
    assert {block for split, block, _ in found if split == "val"} == val
    assert {block for split, block, _ in found if split == "train"} == {3, 4, 6} - val


def test_a_session_of_too_few_blocks_is_all_train(folder, tmp_path):
    done = import_source(inner_speech(folder, val_blocks=3), tmp_path / "out")
    assert done.notes[-1] == f"{DAY}: too few blocks for val: all are train"
    assert {split for split, *_ in trials_of(tmp_path / "out")} == {"train"}


def test_counts_are_added_and_power_is_averaged_in_longer_bins(tmp_path):
    rng = np.random.default_rng(0)
    recorded = files.continuous(rng, ["kite"], [1, 2], n_features=3, bin_ms=10, go_bins=(160, 161))
    files.write_inner_speech(tmp_path / NAME, recorded)
    import_source(inner_speech(tmp_path / NAME), tmp_path / "out", normalise="none", bin_ms=20)
    wrote = recorded.trial(0).arrays
    counts = wrote["binnedTX"].reshape(80, 2, 3).sum(axis=1)
    power = wrote["spikePow"].reshape(80, 2, 3).mean(axis=1)
    found = trials_of(tmp_path / "out")["train", 1, 0]
    np.testing.assert_allclose(found.features_TC, np.hstack([counts, power]), rtol=1e-6)
    assert found.conventions.bin_ms == 20


def test_files_of_one_session_are_written_together(recorded, folder, tmp_path):
    rng = np.random.default_rng(1)
    more = files.continuous(rng, ["we go"], [9, 9], n_features=8, go_bins=(70, 71))
    files.write_inner_speech(folder / "deeper" / f"{DAY}_sentences_raw.mat", more)
    (folder / "notes.mat").write_bytes(b"no recording")
    files.write_inner_speech(folder / "t12.2023.06.01_sentences_raw.mat", more)
    source = inner_speech(folder)
    assert [each.session for each in source.recordings] == [DAY, "t12.2023.06.01"]
    done = import_source(source, tmp_path / "out")
    assert done.notes[0] == f"{DAY}: files with other names not read: notes.mat"
    found = {key for key, trial in trials_of(tmp_path / "out").items() if trial.session == DAY}
    assert {block for split, block, _ in found if split == "val"} == {9}


def test_files_of_a_session_that_do_not_go_together_are_refused(recorded, folder, tmp_path):
    other = folder / f"{DAY}_more_raw.mat"
    files.write_inner_speech(other, recorded)
    done = import_source(inner_speech(folder), tmp_path / "out")
    # In the order of their names: `more` comes after `isolatedVerbalBehaviors`.
    assert [str(problem) for problem in done.problems] == [
        f"{other}: blockNum: block 3 found, which {NAME} has, too; import the files to separate"
        " directories"
    ]
    shorter = files.continuous(np.random.default_rng(0), ["we go"], [9], 8, bin_ms=10)
    files.write_inner_speech(other, shorter)
    done = import_source(inner_speech(folder), tmp_path / "other")
    assert [str(problem) for problem in done.problems] == [
        f"{other}: binSize: bins of 10 ms found, 20 ms in {NAME}; import the files separately"
    ]


def test_one_participant_is_imported_at_a_time(recorded, folder, tmp_path):
    files.write_inner_speech(folder / "t15.2024.03.08_sentences_raw.mat", recorded)
    with pytest.raises(DataError) as caught:
        inner_speech(folder)
    assert str(caught.value) == (
        f"{folder}: files of t12, t15 found, whose arrays differ; choose one, such as"
        " --participant t12"
    )
    source = inner_speech(folder, participant="T15")
    assert [each.session for each in source.recordings] == ["t15.2024.03.08"]
    with pytest.raises(ConfigError, match="no participant 't16'; "):
        inner_speech(folder, participant="t16")


def test_nested_cells_of_cues_are_read(recorded, tmp_path):
    variables = files.inner_speech_variables(recorded)
    nested = [texts([cue], (1, 1)) for cue in CUES]
    for name, save in (("5", save_v5), ("73", save_v73)):
        save(tmp_path / name / NAME, variables | {"cueList": cells(nested, (4, 1))})
        import_source(inner_speech(tmp_path / name), tmp_path / f"out{name}")
        assert trials_of(tmp_path / f"out{name}")["train", 3, 3].sentence == "up right up"


def test_bins_between_blocks_may_have_any_number(recorded, tmp_path):
    variables = files.inner_speech_variables(recorded)
    variables["blockNum"][[0, 4 * 110 - 1, 4 * 110]] = [[np.nan], [0], [-1]]
    save_v5(tmp_path / NAME, variables)
    done = import_source(inner_speech(tmp_path / NAME), tmp_path / "out")
    assert done.problems == []
    assert {block for _, block, _ in trials_of(tmp_path / "out")} == {3, 4, 6}


# --- damaged files --------------------------------------------------------------------------


def periods(*rows):
    """Return go periods of twelve trials, of which the first ones are given."""
    others = [(30, 60)] * (12 - len(rows))
    return {"goTrialEpochs": np.array([*rows, *others], "f8")}


AGAIN = "copy or unpack the release again"
SKIP = "or leave it out with --skip-bad"
N_BINS = 12 * 110  # a trial waits 25 bins, speaks 70 and rests 15
DAMAGE = {
    "no features": ({"binnedTX": None}, "binnedTX: variable missing; the file has spikePow, "),
    "no periods": ({"goTrialEpochs": None}, "goTrialEpochs: variable missing; the file has "),
    "swapped dimensions": (
        lambda v: {"spikePow": v["spikePow"].T},
        f"spikePow: [8, {N_BINS}] found, [{N_BINS}, 8] expected as in binnedTX; {AGAIN}",
    ),
    "blocks of fewer bins": (
        lambda v: {"blockNum": v["blockNum"][:-9]},
        f"blockNum: {N_BINS - 9} bins found, {N_BINS} expected as in binnedTX; {AGAIN}",
    ),
    "half a block": (
        lambda v: {"blockNum": v["blockNum"] + 0.5},
        f"block -1 trial 0: blockNum: 3.5 found, the number of a block expected; {AGAIN}, {SKIP}",
    ),
    "a period that begins before the recording": (
        periods((0, 40)),
        f"block 3 trial 0: goTrialEpochs: bins 0 to 40 found, 1 to {N_BINS} expected; {AGAIN},"
        f" {SKIP}",
    ),
    "a period that ends after the recording": (
        periods((30, 60), (30, 9999)),
        f"block 3 trial 1: goTrialEpochs: bins 30 to 9999 found, 1 to {N_BINS} expected; {AGAIN},"
        f" {SKIP}",
    ),
    "a period that ends before it begins": (
        periods((60, 30)),
        f"block 3 trial 0: goTrialEpochs: bins 60 to 30 found, 1 to {N_BINS} expected; {AGAIN},"
        f" {SKIP}",
    ),
    "a period over two blocks": (
        periods((30, 600)),
        f"block 3 trial 0: goTrialEpochs: bins 30 to 600 of {NAME} lie in blocks 3 and 4; correct"
        f" the period, {SKIP}",
    ),
    "a period that is NaN": (
        periods((np.nan, 60), (5, np.inf)),
        f"block 3 trial 0: goTrialEpochs: bins nan to 60 found, 1 to {N_BINS} expected; {AGAIN},"
        f" {SKIP}",
    ),
    "periods without an end": (
        {"goTrialEpochs": column(range(12))},
        f"goTrialEpochs: shape [12, 1] found, [trials, 2] expected; {AGAIN}",
    ),
    "fewer cues than trials": (
        {"trialCues": column([1, 2, 3])},
        f"trialCues: 3 trials found, 12 expected as in goTrialEpochs; {AGAIN}",
    ),
    "a cue that the list lacks": (
        {"trialCues": column([5] + [1] * 11)},
        f"block 3 trial 0: trialCues: cue 5 found, 1 to 4 (of cueList) expected; {AGAIN}, {SKIP}",
    ),
    "a cue that is NaN": (
        {"trialCues": column([np.nan] + [1] * 11)},
        f"block 3 trial 0: trialCues: cue nan found, 1 to 4 (of cueList) expected; {AGAIN}, {SKIP}",
    ),
    "no bins": (
        {"binnedTX": np.zeros((0, 8)), "spikePow": np.zeros((0, 8)), "blockNum": np.zeros((0, 1))},
        f"binnedTX: no bins found; {AGAIN}",
    ),
    "cues that are numbers": (
        {"cueList": column([1, 2, 3, 4])},
        "cueList: numbers found, texts expected; save it in that form",
    ),
    "a cue that the label would lose": (
        {"cueList": texts(["frío (attempted)", "b", "c", "d"], (4, 1))},
        "block 3 trial 0: sentence_label: language 'en' would lose í in 'frío'; choose the text's"
        f" language, or write other letters and numbers as words, {SKIP}",
    ),
    "NaN in a feature": (
        lambda v: {"spikePow": np.where(np.arange(N_BINS)[:, None] == 40, np.nan, v["spikePow"])},
        "block 3 trial 0: input_features: 8 NaN or Inf found, the first at bin 15 of feature 8;"
        f" finite values expected; replace them before writing the file, {SKIP}",
    ),
    "bins of two seconds": (
        {"binSize": np.array([[2000.0]])},
        f"binSize: 2000 found, milliseconds from 5 to 50 expected; {AGAIN}",
    ),
    "no bin size": (
        {"binSize": np.zeros((0, 0))},
        f"binSize: nothing found, milliseconds from 5 to 50 expected; {AGAIN}",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_in_one_line(recorded, tmp_path, name, capsys):
    damage, says = DAMAGE[name]
    variables = files.inner_speech_variables(recorded)
    assert variables["binnedTX"].shape == (N_BINS, 8)
    variables |= damage(variables) if callable(damage) else damage
    path = tmp_path / NAME
    save_v5(path, {key: value for key, value in variables.items() if value is not None})
    assert cortext(["import", "inner-speech", str(path), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    first = next(line for line in printed.splitlines() if not line.startswith("note: "))
    if says.endswith(" "):
        assert first.startswith(f"{path}: {says}")
    else:
        assert first == f"{path}: {says}"


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"chanSets": None}, "chanSets: variable missing; import it without --channels"),
        (
            {"chanSetNames": texts(["6v"], (1, 1))},
            f"chanSetNames: 1 names found, 2 expected as in chanSets; {AGAIN}",
        ),
        (
            {"chanSetNames": texts(["6v", "44"], (1, 2))},
            "chanSetNames: no channels '55b'; known: 44, 6v; choose a set of the file",
        ),
        (
            {"chanSets": cells([np.array([[1.0]]), np.array([[7.0, 9.0]])])},
            f"chanSets: '55b' has other numbers than channels 1 to 8; {AGAIN}",
        ),
        (
            {"chanSets": cells([np.array([[1.0]]), np.array([[0.0, 1.0]])])},
            f"chanSets: '55b' has other numbers than channels 1 to 8; {AGAIN}",
        ),
        (
            {"chanSets": cells([np.array([[1.0]]), np.array([[1.5, np.nan]])])},
            f"chanSets: '55b' has other numbers than channels 1 to 8; {AGAIN}",
        ),
    ],
)
def test_channels_that_there_are_not_are_named(recorded, tmp_path, variables, says):
    found = files.inner_speech_variables(recorded) | variables
    save_v5(tmp_path / NAME, {key: value for key, value in found.items() if value is not None})
    done = import_source(inner_speech(tmp_path / NAME, channels="55b"), tmp_path / "out")
    assert [str(problem) for problem in done.problems] == [f"{tmp_path / NAME}: {says}"]


def test_a_behaviour_that_no_cue_has_is_named(folder, tmp_path):
    done = import_source(inner_speech(folder, behaviour="mouthed"), tmp_path / "out")
    assert [str(problem) for problem in done.problems] == [
        f"{folder / NAME}: trialCues: no trial left of behaviour mouthed; the cues have attempted,"
        " imaginedlistening, none; choose another --behaviour"
    ]


def test_a_source_without_recordings_is_refused(tmp_path):
    (tmp_path / "other.mat").write_bytes(b"")
    for source in (tmp_path, tmp_path / "other.mat"):
        with pytest.raises(DataError, match="no file of the inner-speech release, such as t12"):
            inner_speech(source)
    with pytest.raises(DataError, match="no such file or directory"):
        inner_speech(tmp_path / "none")
