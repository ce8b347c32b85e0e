"""Attacks on other labs' recordings, through `cortext import`. A row says what is done.

One file of a source is damaged. The command says so in one line; the other recordings arrive with
the bytes that they have without the damage, and `--skip-bad` writes them too.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse
from commands import NOT_PRINTABLE
from foreign_damage import (
    Change,
    also_as,
    content,
    declared,
    folder,
    gone,
    gzip_bomb,
    h5,
    huge,
    instead,
    link_to_itself,
    longer_element,
    not_utf8,
    one,
    pipe,
    renamed,
    resaved,
    set_nan,
    stored_outside,
    terabyte,
    truncated,
    twice,
    with_value,
)
from foreign_matlab import cells, texts
from foreign_sources import FORMATS
from refusals import harmless

from cortext.cli import run as cortext


@dataclass(frozen=True)
class Attack:
    """An attack on a source.

    name:   what is done
    change: does it to the file
    says:   a pattern that a line of the refusal has
    file:   which one, within the source; the format's own by default
    whole:  whether nothing at all is imported
    """

    name: str
    change: Change
    says: str
    file: str | None = None
    whole: bool = False


ANY = (
    Attack("the first half", truncated, "truncated|cut off|damaged|incomplete|ends|cannot be read"),
    Attack("nothing in it", content(b""), "not a"),
    Attack("a text", content(b"# a text\n" * 200), "not a"),
)

NOT_FILES = (
    Attack("a folder", folder, "not a file but a folder"),
    Attack("a pipe", pipe, "not a file but a folder, pipe"),
    Attack("a link to itself", link_to_itself, "."),
)
T12 = (
    *ANY,
    *NOT_FILES,
    Attack("a terabyte", terabyte, "blockIdx|byte"),
    Attack("the declared 4 GB", longer_element, "bytes"),
    Attack("declared trials", declared("blockIdx", 2**31 - 1, 1), "blockIdx"),
    Attack("declared negative", declared("blockIdx", -5, 1), "damaged"),
    Attack("gzip bomb", gzip_bomb, "blockIdx"),
    Attack("all variables twice", twice, "there twice"),
    Attack("no spikePow", resaved(spikePow=None), "spikePow"),
    Attack("no blockIdx", resaved(blockIdx=None), "blockIdx"),
    Attack("power as text", resaved(spikePow="power"), "spikePow"),
    Attack("one cell is a text", resaved(tx1=one(lambda _: "counts")), "tx1"),
    Attack("one cell is swapped", resaved(tx1=one(lambda x: x.T.copy())), "tx1"),
    Attack("one cell is shorter", resaved(tx1=one(lambda x: x[:-3])), "spikePow|tx1"),
    Attack("all cells are swapped", resaved(tx1=lambda c: cells([x.T for x in c[0]])), "tx1"),
    Attack("one cell is a cell", resaved(tx1=one(lambda x: cells([x]))), "tx1"),
    Attack("one cell is empty", resaved(tx1=one(lambda x: x[:0])), "."),
    Attack("NaN", resaved(spikePow=one(with_value(np.nan, "f4"))), "NaN"),
    Attack("Inf", resaved(spikePow=one(with_value(np.inf, "f4"))), "Inf"),
    Attack("1e300", resaved(spikePow=one(with_value(1e300))), "Inf|float32"),
    Attack("half a spike", resaved(tx1=one(with_value(0.5))), "0.5 found"),
    Attack("complex", resaved(spikePow=one(lambda x: x + 1j)), "complex"),
    Attack("a block too few", resaved(blockIdx=lambda x: x[:-1]), "blockIdx"),
    Attack("half a block", resaved(blockIdx=with_value(1.5)), "1.5"),
    Attack("a block of NaN", resaved(blockIdx=with_value(np.nan)), "nan"),
    Attack("sentences are numbers", resaved(sentenceText=np.arange(5.0)), "sentenceText"),
    Attack("no sentence", resaved(sentenceText=lambda x: np.array(["", *x[1:]])), "no sentence"),
    Attack("frío", resaved(sentenceText=lambda x: np.array(["Hi frío.", *x[1:]])), "í"),
    Attack("escapes", resaved(sentenceText=lambda x: np.array(["\x1b]0;x\x07", *x[1:]])), "."),
    Attack("digits", resaved(sentenceText=lambda x: np.array(["At 5 pm.", *x[1:]])), "5"),
    Attack("too long", resaved(sentenceText=lambda x: np.array(["Go on " * 40, *x[1:]])), "too short"),
    Attack("another name", renamed("t15.2023.08.11.mat"), "no session of T12", whole=True),
    Attack(
        "the training trials again",
        lambda path: shutil.copy(path, path.parents[1] / "test" / path.name),
        "holds the trials of",
        file="train/t12.2022.05.05.mat",
    ),
)  # fmt: skip


T5 = "t5.2019.05.08"
LETTERS = f"handwritingBCIData/Datasets/{T5}/singleLetters.mat"
PARTITION = "handwritingBCIData/RNNTrainingSteps/trainTestPartitions_HeldOutBlocks.mat"
HANDWRITING = (
    *ANY,
    Attack("no cube", resaved(neuralActivityCube=None), "neuralActivityCube"),
    Attack("no UTF-8", not_utf8("hi>there~"), "."),
    Attack("two dimensions", resaved(neuralActivityCube=lambda x: x[0]), "neuralActivityCube"),
    Attack("swapped", resaved(neuralActivityCube=lambda x: x.transpose(0, 2, 1)), "."),
    Attack("smoothed", resaved(neuralActivityCube=lambda x: x / 2), "whole numbers"),
    Attack("no lengths", resaved(numTimeBinsPerSentence=None), "numTimeBinsPerSentence"),
    Attack("lengths lie", resaved(numTimeBinsPerSentence=lambda x: x * 9), "bins found"),
    Attack("length 0", resaved(numTimeBinsPerSentence=lambda x: x * 0), "0 bins found"),
    Attack("prompts are numbers", resaved(sentencePrompt=np.arange(5.0)), "sentencePrompt"),
    Attack("a prompt too few", resaved(sentencePrompt=lambda x: x[:-1]), "sentencePrompt"),
    Attack("frío", resaved(sentencePrompt=texts(["frío~"] * 5, (5, 1))), "í"),
    Attack("a mark lost", resaved(sentencePrompt=texts(["a>b!"] * 5, (5, 1))), "a>b"),
    Attack("blocks of NaN", resaved(sentenceBlockNums=with_value(np.nan)), "sentenceBlockNums"),
    Attack("no scaling", lambda path: path.unlink(), "singleLetters", file=LETTERS, whole=True),
    Attack("scales of NaN", resaved(stdAcrossAllData=with_value(np.nan)), "NaN", file=LETTERS),
    Attack("96 scales", resaved(stdAcrossAllData=lambda x: x[:, :96]), "expected", file=LETTERS),
    Attack("half of the letters", truncated, "truncated", file=LETTERS),
    Attack("no partition", lambda path: path.unlink(), "held out", file=PARTITION, whole=True),
    Attack("number too high", resaved(**{f"{T5}_test": np.array([[7]])}), "7", file=PARTITION),
    Attack("in both", resaved(**{f"{T5}_test": np.array([[0]])}), ".", file=PARTITION),
    Attack("not in it", resaved(**{f"{T5}_test": None}), f"{T5}_test", file=PARTITION),
)  # fmt: skip


INNER = (
    *ANY,
    Attack("no features", resaved(binnedTX=None), "binnedTX"),
    Attack("swapped", resaved(binnedTX=lambda x: x.T.copy()), "spikePow|binnedTX"),
    Attack("a channel too few", resaved(spikePow=lambda x: x[:, 1:].copy()), "spikePow"),
    Attack("NaN", resaved(spikePow=lambda x: np.where(np.arange(len(x))[:, None] == 40, np.nan, x)), "NaN"),
    Attack("blocks too short", resaved(blockNum=lambda x: x[:-1]), "blockNum"),
    Attack("half a block", resaved(blockNum=lambda x: x + 0.5), "blockNum"),
    Attack("one trial in two blocks", resaved(blockNum=lambda x: np.arange(len(x))[:, None] // 50.0), "lie in blocks"),
    Attack("the epoch after the end", resaved(goTrialEpochs=lambda x: x + 10_000), "goTrialEpochs"),
    Attack("epochs backwards", resaved(goTrialEpochs=lambda x: x[:, ::-1].copy()), "goTrialEpochs"),
    Attack("half a bin", resaved(goTrialEpochs=lambda x: x + 0.5), "goTrialEpochs"),
    Attack("three columns", resaved(goTrialEpochs=lambda x: np.hstack([x, x[:, :1]])), "goTrialEpochs"),
    Attack("cue 99", resaved(trialCues=lambda x: x + 98), "cue 99"),
    Attack("a cue too few", resaved(trialCues=lambda x: x[:-1]), "trialCues"),
    Attack("cues are numbers", resaved(cueList=np.arange(4.0)), "cueList"),
    Attack("frío", resaved(cueList=texts(["frío (attempted)"] * 4, (4, 1))), "í"),
    Attack("bins of 1 ms", resaved(binSize=np.array([[1.0]])), "binSize"),
    Attack("no length of bins", resaved(binSize=None), "binSize"),
    Attack("bins of 10 ms", resaved(binSize=np.array([[10.0]])), "bins last|10 ms"),
)  # fmt: skip

INNER_73 = (
    *ANY,
    Attack("no features", gone("binnedTX"), "binnedTX"),
    Attack("swapped", instead("binnedTX", lambda x: x.T.copy()), "spikePow|binnedTX"),
    Attack("NaN", instead("spikePow", set_nan), "NaN"),
    Attack("2^40 bins", huge("binnedTX", 256, 2**40), "spikePow|binnedTX"),
    Attack("2^40 blocks", huge("blockNum", 1, 2**40), "blockNum"),
    Attack("a link out", instead("binnedTX", h5py.ExternalLink("/etc/hostname", "x")), "link"),
    Attack("a link to itself", instead("binnedTX", h5py.SoftLink("/binnedTX")), "circle|link"),
    Attack("stored outside", stored_outside("spikePow"), "external storage"),
    Attack("cues are numbers", instead("cueList", np.arange(4.0)), "cueList"),
    Attack("cue 99", instead("trialCues", lambda x: x + 98), "cue 99"),
    Attack("a cue of nothing", h5(lambda f: f["cueList"].__setitem__((0, 0), h5py.Reference())), "cueList"),
    Attack("half a bin", instead("goTrialEpochs", lambda x: x + 0.5), "goTrialEpochs"),
)  # fmt: skip

SPIKES, TRIALS = "acquisition/binned_spikes", "intervals/trials"
FALCON = (
    *ANY,
    Attack("no spikes", gone(SPIKES), "binned_spikes"),
    Attack("no data", gone(f"{SPIKES}/data"), "binned_spikes"),
    Attack("swapped", instead(f"{SPIKES}/data", lambda x: x.T.copy()), "binned_spikes"),
    Attack("NaN", instead(f"{SPIKES}/data", set_nan), "NaN"),
    Attack("fewer than none", instead(f"{SPIKES}/data", lambda x: x.astype("i2") - 5), "counts expected"),
    Attack("texts", instead(f"{SPIKES}/data", lambda x: np.full(x.shape, b"x")), "binned_spikes"),
    Attack("2^40 bins", huge(f"{SPIKES}/data", 2**40, 192), "binned_spikes|eval_mask"),
    Attack("a link out", instead(f"{SPIKES}/data", h5py.ExternalLink("/etc/hostname", "x")), "link"),
    Attack("stored outside", stored_outside(f"{SPIKES}/timestamps"), "external storage"),
    Attack("times of NaN", instead(f"{SPIKES}/timestamps", lambda x: x * np.nan), "timestamps"),
    Attack("times backwards", instead(f"{SPIKES}/timestamps", lambda x: x[::-1].copy()), "timestamps"),
    Attack("bins of 10 ms", instead(f"{SPIKES}/timestamps", lambda x: x / 2), "10 ms"),
    Attack("no trials", gone(TRIALS), "trials"),
    Attack("no cues", gone(f"{TRIALS}/cue"), "cue"),
    Attack("cues are numbers", instead(f"{TRIALS}/cue", np.arange(5.0)), "cue"),
    Attack("frío", instead(f"{TRIALS}/cue", lambda x: np.array([*x[:-1], "frío~".encode()], object)), "í"),
    Attack("no UTF-8", instead(f"{TRIALS}/cue", np.full(5, b"\xff\xfe")), "cue"),
    Attack("a trial too few", instead(f"{TRIALS}/cue", ["a~"] * 4), "trials"),
    Attack("trials elsewhere", instead(f"{TRIALS}/start_time", lambda x: x + 3), "start_time"),
    Attack("another day", instead("session_start_time", "2022-05-19T00:00:00-05:00"), "2022-05-19"),
    Attack("no day", instead("session_start_time", "May"), "session_start_time"),
    Attack("another name", renamed("rig.nwb"), "no name of FALCON H2", whole=True),
    Attack("one day twice", also_as("T5_2022.05.18_held_in_calib.nwb"), "are both held_in_calib", whole=True),
)  # fmt: skip

CROSSINGS = "acquisition/threshold_crossings"
NWB = (
    *ANY,
    Attack("no series", gone(CROSSINGS), "threshold_crossings"),
    Attack("swapped", instead(f"{CROSSINGS}/data", lambda x: x.T.copy()), "."),
    Attack("NaN", instead("acquisition/spike_band_power/data", set_nan), "NaN"),
    Attack("no column", gone(f"{TRIALS}/prompt"), "prompt"),
    Attack("2^40 samples", huge(f"{CROSSINGS}/data", 2**40, 64), "threshold_crossings"),
    Attack("a link out", instead(f"{CROSSINGS}/data", h5py.ExternalLink("/etc/hostname", "x")), "link"),
    Attack("a rate of zero", h5(lambda f: f[f"{CROSSINGS}/starting_time"].attrs.modify("rate", 0.0)), "0 samples a second"),
    Attack("a rate of 1 kHz", h5(lambda f: f[f"{CROSSINGS}/starting_time"].attrs.modify("rate", 1e3)), "."),
    Attack("trials after the end", instead(f"{TRIALS}/start_time", lambda x: x + 1e4), "."),
    Attack("trials of NaN", instead(f"{TRIALS}/stop_time", lambda x: x * np.nan), "stop_time|nan"),
    Attack("another split", instead(f"{TRIALS}/purpose", ["x"] * 6), "'x' found"),
    Attack("half a block", instead(f"{TRIALS}/block_id", lambda x: x + 0.5), "block_id"),
    Attack("units lie", instead("units/spike_times_index", lambda x: x * 9), "spike_times"),
    Attack("frío", instead(f"{TRIALS}/prompt", ["frío"] * 6), "í"),
)  # fmt: skip

MAT = (
    *ANY,
    Attack("no power", resaved(spikePow=None), "spikePow"),
    Attack("no cells", resaved(tx1=np.zeros((5, 256))), "tx1"),
    Attack("half of the columns", resaved(spikePow=lambda c: cells([x[:, :128].copy() for x in c[0]])), "spikePow"),
    Attack("one cell is swapped", resaved(tx1=one(lambda x: x.T.copy())), "tx1"),
    Attack("NaN", resaved(spikePow=one(lambda x: x * np.nan)), "NaN"),
    Attack("a struct", resaved(tx1={"x": np.zeros((3, 3))}), "tx1"),
    Attack("sparse", resaved(blockIdx=scipy.sparse.csc_array(np.eye(5)[:, :1])), "blockIdx"),
    Attack("a block too few", resaved(blockIdx=lambda x: x[:-1]), "blockIdx"),
    Attack("frío", resaved(sentenceText=np.array(["frío"] * 5)), "í"),
    Attack("a date that is none", renamed("t98.2025.13.41.mat"), "date"),
    Attack("declared trials", declared("blockIdx", 2**31 - 1, 1), "blockIdx"),
)  # fmt: skip

MAT_73 = (
    *ANY,
    Attack("no power", gone("spikePow"), "spikePow"),
    Attack("no cells", instead("tx1", np.zeros((256, 5))), "tx1"),
    Attack("a cell that is not there", h5(lambda f: f["tx1"].__setitem__((0, 0), h5py.Reference())), "tx1"),
    Attack("a cell is a link out", h5(lambda f: (f.__delitem__("tx1"), f.__setitem__("tx1", h5py.ExternalLink("/etc/hostname", "x")))), "link"),
    Attack("a cell of 2^40 bins", h5(lambda f: f["tx1"].__setitem__((0, 0), f.create_dataset("#refs#/zz", (256, 2**40), "u1", chunks=(64, 64)).ref)), "."),
    Attack("2^40 cells", huge("blockIdx", 1, 2**40), "blockIdx"),
    Attack("no texts", instead("sentenceText", np.arange(5.0)), "sentenceText"),
    Attack("half a block", instead("blockIdx", lambda x: x + 0.5), "blockIdx"),
    Attack("sentences that are cells of themselves", h5(lambda f: f["sentenceText"].__setitem__((0, 0), f["sentenceText"].ref)), "sentenceText"),
)  # fmt: skip


@dataclass(frozen=True)
class Format:
    """A format under attack: its file, relative to the source."""

    file: str
    attacks: tuple[Attack, ...]


TABLE: Mapping[str, Format] = {
    "t12": Format("train/t12.2022.04.28.mat", T12),
    "handwriting": Format(f"handwritingBCIData/Datasets/{T5}/sentences.mat", HANDWRITING),
    "inner-speech v5": Format("Data/t16.2023.05.12_isolatedVerbalBehaviors_raw.mat", INNER),
    "inner-speech v7.3": Format("Data/t16.2023.05.12_isolatedVerbalBehaviors_raw.mat", INNER_73),
    "falcon-h2": Format("sub-T5-held-in-calib/sub-T5-held-in-calib_ses-20220518.nwb", FALCON),
    "nwb": Format("2026.05.04.nwb", NWB),
    "mat v5": Format("t98.2025.03.14_sentences.mat", MAT),
    "mat v7.3": Format("t98.2025.03.14_sentences.mat", MAT_73),
}


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[str], Path]]:
    """Source, arguments and import of each format, made once."""
    made: dict[str, tuple[Path, list[str], Path]] = {}

    def get(name: str) -> tuple[Path, list[str], Path]:
        if name not in made:
            root = tmp_path_factory.mktemp("good")
            words = FORMATS[name](root / "place").words
            out = root / "out"
            assert cortext(["import", *words, "--out", str(out)]) == 0
            made[name] = (root / "place", words, out)
        return made[name]

    return get


def session_files(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.glob("*/*.hdf5")}


@pytest.mark.parametrize(
    ("name", "attack"),
    [
        pytest.param(name, attack, id=f"{name}: {attack.name}")
        for name, of_format in TABLE.items()
        for attack in of_format.attacks
    ],
)
def test_a_damaged_source_is_one_line_and_costs_only_itself(
    name: str, attack: Attack, good, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    place, words, whole = good(name)
    here = tmp_path / "place"
    shutil.copytree(place, here)
    words = [word.replace(str(place), str(here)) for word in words]
    path = Path(words[1]) / (attack.file or TABLE[name].file)
    attack.change(path)
    out = tmp_path / "out"
    command = ["import", *words, "--out", str(out)]
    capfd.readouterr()
    with harmless(most_mb=150):
        assert cortext(command) == 2
    printed = capfd.readouterr()
    lines = printed.err.splitlines()
    assert "Traceback" not in printed.err
    assert not NOT_PRINTABLE.search(printed.out + printed.err)
    assert lines[-1].startswith("cortext: ")
    assert max(map(len, lines)) <= 1000
    assert [line for line in lines if re.search(attack.says, line)], printed.err
    before = session_files(whole)
    written = session_files(out)
    assert written.items() <= before.items()
    assert len(written) < len(before)
    assert not list(out.rglob("*.tmp"))
    with harmless(most_mb=150):
        assert cortext([*command, "--skip-bad"]) == (2 if attack.whole else 0)
    assert "Traceback" not in capfd.readouterr().err
    kept = session_files(out)
    if attack.whole:
        assert not kept
    else:
        assert written.items() <= kept.items()
        assert written
