"""The handwriting release: what is written, scaling, partitions, and damaged files."""

import foreign_files as files
import numpy as np
import pytest
from foreign_matlab import column, save_v5, texts

from cortext.cli import run as cortext
from cortext.data import open_dataset
from cortext.errors import ConfigError, DataError
from cortext.text.inventory import HANDWRITING
from cortext_data.readers.handwriting import handwriting
from cortext_data.readers.importing import import_source

FIRST, SECOND = files.HANDWRITING_DAYS


PROMPTS = ("hello>world~", "it's>a>good>day,>isn't>it?", "we>read>books~", "call>me>later~")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A release of two sessions; the prompts of the second one have signs for pauses."""
    root = tmp_path_factory.mktemp("release")
    rng = np.random.default_rng(0)
    paused = [prompt.replace(">", "#>", 1) for prompt in PROMPTS]
    sessions = {
        FIRST: files.handwritten(rng, sentences=PROMPTS),
        SECOND: files.handwritten(rng, sentences=paused),
    }
    return root, files.write_handwriting(root, sessions)


@pytest.fixture
def release(tmp_path):
    """A release of one session, to damage: its folder, and the variables of its two files."""
    rng = np.random.default_rng(0)
    session = files.handwritten(rng, sentences=PROMPTS)
    files.write_handwriting(tmp_path, {FIRST: session})
    folder = tmp_path / "handwritingBCIData" / "Datasets" / FIRST
    return folder, files.handwriting_variables(session), files.letters_variables(session)


def trials_of(out, split):
    dataset = open_dataset(out)
    return {(trial.session, trial.block, trial.trial): trial for trial in dataset.trials(split)}


def test_counts_are_scaled_by_the_nearest_block_of_single_letters(written, tmp_path):
    root, sessions = written
    done = import_source(handwriting(root), tmp_path / "out")
    assert (done.n_written, done.problems) == (2, [])
    found = trials_of(tmp_path / "out", "train") | trials_of(tmp_path / "out", "val")
    assert len(found) == 10
    for session, wrote in sessions.items():
        # Of the single letters' blocks 2 and 7, 7 is the nearest to the sentences' blocks 5 and 8.
        for number, trial in enumerate(wrote.trials):
            at = number if trial.block == 5 else number - 2
            one = found[session, trial.block, at]
            expected = (trial.arrays["counts"] - wrote.means[1]) / wrote.sd_C
            np.testing.assert_allclose(one.features_TC, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("block", "row"), [(2, 0), (4, 0), (5, 1), (90, 1), (0, 0)])
def test_of_two_blocks_at_the_same_distance_the_first_one_counts(tmp_path, block, row):
    session = files.handwritten(np.random.default_rng(0), [block, block], letters=[2, 6])
    partitions = {"HeldOutBlocks": {FIRST: ([0, 1], [])}}
    files.write_handwriting(tmp_path, {FIRST: session}, partitions)
    import_source(handwriting(tmp_path), tmp_path / "out")
    one = trials_of(tmp_path / "out", "train")[FIRST, block, 0]
    expected = (session.trials[0].arrays["counts"] - session.means[row]) / session.sd_C
    np.testing.assert_allclose(one.features_TC, expected, rtol=1e-5, atol=1e-5)


def test_labels_are_the_prompts_without_pauses(written, tmp_path):
    root, sessions = written
    import_source(handwriting(root), tmp_path / "out")
    found = trials_of(tmp_path / "out", "train") | trials_of(tmp_path / "out", "val")
    said = {}
    for trial in found.values():
        label = "".join(HANDWRITING.names(trial.phoneme_ids))
        said.setdefault(trial.session, set()).add((label, trial.sentence))
    prompts = {
        ("hello>world~", "hello world."),
        ("it's>a>good>day,>isn't>it?", "it's a good day, isn't it?"),
        ("we>read>books~", "we read books."),
        ("call>me>later~", "call me later."),
    }
    assert said == {FIRST: prompts, SECOND: prompts}
    assert any("#" in trial.sentence for trial in sessions[SECOND].trials)
    assert {trial.corpus for trial in found.values()} == set(files.CONDITIONS)
    assert {trial.conventions.bin_ms for trial in found.values()} == {10}


def test_partitions_become_train_and_val(written, tmp_path):
    root, _ = written
    import_source(handwriting(root), tmp_path / "blocks")
    assert {key[1] for key in trials_of(tmp_path / "blocks", "train")} == {5}
    assert {key[1] for key in trials_of(tmp_path / "blocks", "val")} == {8}
    import_source(handwriting(root, partition="HeldOutTrials"), tmp_path / "trials")
    # Sentences 0 and 3 of five: the first of block 5, and the second of block 8.
    assert set(trials_of(tmp_path / "trials", "val")) == {
        (session, *place) for session in (FIRST, SECOND) for place in ((5, 0), (8, 1))
    }
    with pytest.raises(ConfigError, match="unknown partition 'HeldOut'; did you mean"):
        handwriting(root, partition="HeldOut")


def test_sentences_in_neither_part_are_left_out_and_counted(tmp_path):
    session = files.handwritten(np.random.default_rng(0))
    partitions = {"HeldOutBlocks": {FIRST: ([0, 4], [2])}}
    files.write_handwriting(tmp_path, {FIRST: session}, partitions)
    done = import_source(handwriting(tmp_path), tmp_path / "out")
    assert done.notes == [f"{FIRST}: left out: 2 trials in neither part of the partition"]
    # Numbers within a block stay as they are in the file.
    assert set(trials_of(tmp_path / "out", "train")) == {(FIRST, 5, 0), (FIRST, 8, 2)}
    assert set(trials_of(tmp_path / "out", "val")) == {(FIRST, 8, 0)}


def test_other_scalings_and_bins_are_possible(written, tmp_path):
    root, sessions = written
    for normalise in ("block", "rolling"):
        out = tmp_path / normalise
        import_source(handwriting(root), out, normalise=normalise, bin_ms=20)
        assert len(trials_of(out, "val")) == 6
    trials = [trial for trial in sessions[FIRST].trials if trial.block == 8]
    pairs = [
        x[: len(x) // 2 * 2].reshape(-1, 2, 192).sum(axis=1)
        for x in (trial.arrays["counts"].astype(float) for trial in trials)
    ]
    block = np.concatenate(pairs)
    expected = (pairs[1] - block.mean(axis=0)) / block.std(axis=0)
    found = trials_of(tmp_path / "block", "val")[FIRST, 8, 1]
    np.testing.assert_allclose(found.features_TC, expected, rtol=1e-4, atol=1e-4)


def test_any_folder_of_the_release_is_found(written, tmp_path):
    root, _ = written
    for source in (root, root / "handwritingBCIData", root / "handwritingBCIData" / "Datasets"):
        assert [each.session for each in handwriting(source).recordings] == [FIRST, SECOND]
    with pytest.raises(DataError, match="no handwriting release: it has no folder Datasets"):
        handwriting(tmp_path)


# --- damaged releases -----------------------------------------------------------------------


def change(**variables):
    return lambda sentences, letters: sentences.update(variables)


def change_letters(**variables):
    return lambda sentences, letters: letters.update(variables)


def without(name):
    return lambda sentences, letters: sentences.pop(name)


def prompt(text):
    return change(sentencePrompt=texts([text] + ["we>read~"] * 4, (5, 1)))


AGAIN = "copy or unpack the release again"
SKIP = "or leave it out with --skip-bad"
DAMAGE = {
    "no prompts": (without("sentencePrompt"), "sentences.mat: sentencePrompt: variable missing; "),
    "prompts of fewer sentences": (
        change(sentencePrompt=texts(["a~"] * 3, (3, 1))),
        f"sentences.mat: sentencePrompt: 3 entries found, 5 expected as in neuralActivityCube;"
        f" {AGAIN}\n",
    ),
    "swapped dimensions": (
        lambda sentences, _: sentences.update(
            neuralActivityCube=sentences["neuralActivityCube"].swapaxes(0, 2)
        ),
        "sentences.mat: numTimeBinsPerSentence: 5 entries found, 192 expected as in",
    ),
    "no third dimension": (
        change(neuralActivityCube=np.zeros((5, 9), np.uint8)),
        "sentences.mat: neuralActivityCube: shape [5, 9] found, 3 dimensions expected; save it in",
    ),
    "counts with NaN": (
        change(neuralActivityCube=np.full((5, 200, 192), np.nan)),
        "sentences.mat: neuralActivityCube: float64 found, whole numbers expected; take the file",
    ),
    "a sentence longer than the cube": (
        change(numTimeBinsPerSentence=column([99, 999, 99, 99, 99], "u2")),
        "sentences.mat: block 5 trial 1: numTimeBinsPerSentence: 999 bins found, 1 to ",
    ),
    "a sentence of no bins": (
        change(numTimeBinsPerSentence=column([99, 0, 99, 99, 99], "u2")),
        "sentences.mat: block 5 trial 1: numTimeBinsPerSentence: 0 bins found, 1 to ",
    ),
    "half a bin": (
        change(numTimeBinsPerSentence=column([99, 9.5, 99, 99, 99])),
        "sentences.mat: numTimeBinsPerSentence: 9.5 found at (2), a whole number expected; correct",
    ),
    "a block below zero": (
        change(sentenceBlockNums=column([5, -5, 8, 8, 8], "i1")),
        f"sentences.mat: sentenceBlockNums: -5 found, the number of a block expected; {AGAIN}\n",
    ),
    "an accent that the label would lose": (
        prompt("frío>y~"),
        "sentences.mat: block 5 trial 0: sentence_label: language 'en' would lose í in 'frío y.';"
        " choose the text's language, or write other letters and numbers as words,"
        f" {SKIP}\n",
    ),
    "a mark that the label would lose": (
        prompt("day,isn't>it?"),
        'sentences.mat: block 5 trial 0: sentencePrompt: "day,isn\'t>it?" found, which would be'
        ' labelled "day,>isn\'t>it?"; write letters, one `>` between words, and one mark after a'
        f" word, {SKIP}\n",
    ),
    "a prompt without words": (
        prompt("~"),
        "sentences.mat: block 5 trial 0: sentencePrompt: no word in the sentence '.'; it needs at"
        f" least one letter; correct the prompt, {SKIP}\n",
    ),
    "prompts that are numbers": (
        change(sentencePrompt=column([1, 2, 3, 4, 5])),
        "sentences.mat: sentencePrompt: numbers found, texts expected; save it in that form\n",
    ),
    "a sentence that is too long for its bins": (
        change(numTimeBinsPerSentence=column([9, 99, 99, 99, 99], "u2")),
        "sentences.mat: block 5 trial 0: n_time_steps: 9 bins give 9 patches, the label of 12"
        " characters needs at least 13; ",
    ),
    "means of other channels": (
        change_letters(meansPerBlock=np.zeros((2, 96))),
        f"singleLetters.mat: meansPerBlock: [2, 96] found, [2, 192] expected; {AGAIN}\n",
    ),
    "a standard deviation that is NaN": (
        change_letters(stdAcrossAllData=np.full((1, 192), np.nan)),
        f"singleLetters.mat: stdAcrossAllData: NaN, Inf or a negative number found; {AGAIN}\n",
    ),
    "single letters without blocks": (
        lambda _, letters: letters.pop("blockList"),
        "singleLetters.mat: blockList: variable missing; the file has meansPerBlock,",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_in_one_line(release, name, capsys):
    folder, sentences, letters = release
    damage, says = DAMAGE[name]
    damage(sentences, letters)
    save_v5(folder / "sentences.mat", sentences)
    save_v5(folder / "singleLetters.mat", letters)
    assert cortext(["import", "handwriting", str(folder.parent), "--out", str(folder / "out")]) == 2
    printed = capsys.readouterr().err
    lines = [line for line in printed.splitlines(keepends=True) if line.startswith(str(folder))]
    assert lines, printed
    assert f"{lines[0]}".startswith(f"{folder}/{says}")
    assert "Traceback" not in printed


def partition_of(folder):
    root = folder.parent.parent
    return root / "RNNTrainingSteps" / "trainTestPartitions_HeldOutBlocks.mat"


@pytest.mark.parametrize(
    ("train", "test", "says"),
    [
        ([0, 1, 5], [3], "t5.2019.05.08_train: sentence 5 found, 0 to 4 expected"),
        ([0, 1, -1], [3], "t5.2019.05.08_train: sentence -1 found, 0 to 4 expected"),
        ([0, 1], [1, 3], "t5.2019.05.08_test: sentence 1 found again"),
        ([0, 0], [3], "t5.2019.05.08_train: sentence 0 found again"),
        ([], [], "t5.2019.05.08_train: no sentence found"),
        ([0.5], [3], "t5.2019.05.08_train: 0.5 found at (1), a whole number expected"),
    ],
)
def test_an_impossible_partition_is_named(release, train, test, says):
    folder, _, _ = release
    path = partition_of(folder)
    variables = {f"{FIRST}_train": np.array([train]), f"{FIRST}_test": np.array([test])}
    save_v5(path, variables)
    done = import_source(handwriting(folder.parent), folder / "out")
    assert [str(problem).startswith(f"{path}: {says}") for problem in done.problems] == [True]
    assert done.n_refused == 1


def test_missing_files_are_named(release):
    folder, _, _ = release
    partition_of(folder).unlink()
    with pytest.raises(DataError, match=r"HeldOutBlocks\.mat: no such file, which says what is"):
        handwriting(folder.parent)
    (folder / "singleLetters.mat").unlink()
    with pytest.raises(DataError, match=r"singleLetters\.mat: no such file, which has the scaling"):
        handwriting(folder.parent, partition="HeldOutTrials")
    (folder / "sentences.mat").unlink()
    with pytest.raises(DataError, match=r"Datasets: has no sentences\.mat"):
        handwriting(folder.parent, partition="HeldOutTrials")


def test_a_bad_sentence_can_be_left_out(release):
    folder, sentences, _ = release
    lengths = sentences["numTimeBinsPerSentence"].copy()
    lengths[1] = 0
    save_v5(folder / "sentences.mat", sentences | {"numTimeBinsPerSentence": lengths})
    done = import_source(handwriting(folder.parent), folder / "out", skip_bad=True)
    assert len(done.problems) == 1
    assert set(trials_of(folder / "out", "train")) == {(FIRST, 5, 0)}


def test_a_channel_that_never_fires_is_zero(release):
    folder, sentences, letters = release
    letters["stdAcrossAllData"][0, 7] = 0
    sentences["neuralActivityCube"][:, :, 7] = 0
    save_v5(folder / "sentences.mat", sentences)
    save_v5(folder / "singleLetters.mat", letters)
    import_source(handwriting(folder.parent), folder / "out")
    for trial in trials_of(folder / "out", "val").values():
        assert not trial.features_TC[:, 7].any()
        assert np.isfinite(trial.features_TC).all()
