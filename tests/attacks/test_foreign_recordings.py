"""Attacks on other labs' recordings, through `cortext import`. A row says what is done.

One file of a source is damaged. One line says so; the other recordings arrive with the bytes that
they have without the damage, and `--skip-bad` writes them too. Rows call the function of the
command; the first row of each format runs the command, too. Damaged values that a format's own
tests refuse (`tests/data/readers/`) are not repeated here.
"""

from __future__ import annotations

import functools
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
    content,
    declared,
    folder,
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
from cortext.errors import CortextError
from cortext_data.readers.falcon import falcon_h2
from cortext_data.readers.handwriting import handwriting
from cortext_data.readers.importing import import_source
from cortext_data.readers.inner_speech import inner_speech
from cortext_data.readers.mat import mat
from cortext_data.readers.nwb import nwb
from cortext_data.readers.recording import Source
from cortext_data.readers.t12 import t12


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
    Attack("power as text", resaved(spikePow="power"), "spikePow"),
    Attack("one cell is a text", resaved(tx1=one(lambda _: "counts")), "tx1"),
    Attack("all cells are swapped", resaved(tx1=lambda c: cells([x.T for x in c[0]])), "tx1"),
    Attack("one cell is a cell", resaved(tx1=one(lambda x: cells([x]))), "tx1"),
    Attack("NaN", resaved(spikePow=one(with_value(np.nan, "f4"))), "NaN"),
    Attack("Inf", resaved(spikePow=one(with_value(np.inf, "f4"))), "Inf"),
    Attack("1e300", resaved(spikePow=one(with_value(1e300))), "Inf|float32"),
    Attack("complex", resaved(spikePow=one(lambda x: x + 1j)), "complex"),
    Attack("escapes", resaved(sentenceText=lambda x: np.array(["\x1b]0;x\x07", *x[1:]])), "."),
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
    Attack("no UTF-8", not_utf8("hi>there~"), "."),
    Attack("swapped", resaved(neuralActivityCube=lambda x: x.transpose(0, 2, 1)), "."),
    Attack("no lengths", resaved(numTimeBinsPerSentence=None), "numTimeBinsPerSentence"),
    Attack("frío", resaved(sentencePrompt=texts(["frío~"] * 5, (5, 1))), "í"),
    Attack("blocks of NaN", resaved(sentenceBlockNums=with_value(np.nan)), "sentenceBlockNums"),
    Attack("96 scales", resaved(stdAcrossAllData=lambda x: x[:, :96]), "expected", file=LETTERS),
    Attack("half of the letters", truncated, "truncated", file=LETTERS),
    Attack("not in it", resaved(**{f"{T5}_test": None}), f"{T5}_test", file=PARTITION),
)  # fmt: skip


INNER = (
    *ANY,
    Attack("a channel too few", resaved(spikePow=lambda x: x[:, 1:].copy()), "spikePow"),
    Attack("NaN", resaved(spikePow=lambda x: np.where(np.arange(len(x))[:, None] == 40, np.nan, x)), "NaN"),
    Attack("half a bin", resaved(goTrialEpochs=lambda x: x + 0.5), "goTrialEpochs"),
    Attack("three columns", resaved(goTrialEpochs=lambda x: np.hstack([x, x[:, :1]])), "goTrialEpochs"),
    Attack("no length of bins", resaved(binSize=None), "binSize"),
    Attack("bins of 10 ms", resaved(binSize=np.array([[10.0]])), "bins last|10 ms"),
)  # fmt: skip

INNER_73 = (
    *ANY,
    Attack("NaN", instead("spikePow", set_nan), "NaN"),
    Attack("2^40 bins", huge("binnedTX", 256, 2**40), "spikePow|binnedTX"),
    Attack("2^40 blocks", huge("blockNum", 1, 2**40), "blockNum"),
    Attack("a link out", instead("binnedTX", h5py.ExternalLink("/etc/hostname", "x")), "link"),
    Attack("a link to itself", instead("binnedTX", h5py.SoftLink("/binnedTX")), "circle|link"),
    Attack("stored outside", stored_outside("spikePow"), "external storage"),
    Attack("a cue of nothing", h5(lambda f: f["cueList"].__setitem__((0, 0), h5py.Reference())), "cueList"),
)  # fmt: skip

SPIKES, TRIALS = "acquisition/binned_spikes", "intervals/trials"
FALCON = (
    *ANY,
    Attack("NaN", instead(f"{SPIKES}/data", set_nan), "NaN"),
    Attack("a link out", instead(f"{SPIKES}/data", h5py.ExternalLink("/etc/hostname", "x")), "link"),
    Attack("stored outside", stored_outside(f"{SPIKES}/timestamps"), "external storage"),
)  # fmt: skip

CROSSINGS = "acquisition/threshold_crossings"
NWB = (
    *ANY,
    Attack("swapped", instead(f"{CROSSINGS}/data", lambda x: x.T.copy()), "."),
    Attack("NaN", instead("acquisition/spike_band_power/data", set_nan), "NaN"),
    Attack("2^40 samples", huge(f"{CROSSINGS}/data", 2**40, 64), "threshold_crossings"),
    Attack("a link out", instead(f"{CROSSINGS}/data", h5py.ExternalLink("/etc/hostname", "x")), "link"),
    Attack("a rate of 1 kHz", h5(lambda f: f[f"{CROSSINGS}/starting_time"].attrs.modify("rate", 1e3)), "."),
    Attack("units lie", instead("units/spike_times_index", lambda x: x * 9), "spike_times"),
    Attack("frío", instead(f"{TRIALS}/prompt", ["frío"] * 6), "í"),
)  # fmt: skip

MAT = (
    *ANY,
    Attack("half of the columns", resaved(spikePow=lambda c: cells([x[:, :128].copy() for x in c[0]])), "spikePow"),
    Attack("NaN", resaved(spikePow=one(lambda x: x * np.nan)), "NaN"),
    Attack("a struct", resaved(tx1={"x": np.zeros((3, 3))}), "tx1"),
    Attack("sparse", resaved(blockIdx=scipy.sparse.csc_array(np.eye(5)[:, :1])), "blockIdx"),
    Attack("frío", resaved(sentenceText=np.array(["frío"] * 5)), "í"),
    Attack("a date that is none", renamed("t98.2025.13.41.mat"), "date"),
    Attack("declared trials", declared("blockIdx", 2**31 - 1, 1), "blockIdx"),
)  # fmt: skip

MAT_73 = (
    *ANY,
    Attack("a cell that is not there", h5(lambda f: f["tx1"].__setitem__((0, 0), h5py.Reference())), "tx1"),
    Attack("a cell is a link out", h5(lambda f: (f.__delitem__("tx1"), f.__setitem__("tx1", h5py.ExternalLink("/etc/hostname", "x")))), "link"),
    Attack("a cell of 2^40 bins", h5(lambda f: f["tx1"].__setitem__((0, 0), f.create_dataset("#refs#/zz", (256, 2**40), "u1", chunks=(64, 64)).ref)), "."),
    Attack("2^40 cells", huge("blockIdx", 1, 2**40), "blockIdx"),
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


READERS: Mapping[str, Callable[..., Source]] = {
    "t12": t12,
    "handwriting": handwriting,
    "inner-speech": inner_speech,
    "falcon-h2": falcon_h2,
    "nwb": nwb,
    "mat": mat,
}


def import_as(words: list[str], out: Path, *, skip_bad: bool = False) -> list[str]:
    """Import as `cortext import WORDS` does; return the lines of the problems."""
    form, source, *mapping = words
    try:
        read = READERS[form](Path(source), *mapping[1:])
        return [*map(str, import_source(read, out, skip_bad=skip_bad).problems)]
    except CortextError as error:
        return [str(error)]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, list[str], Path]]:
    """Source, arguments and import of each format, made once."""

    @functools.cache
    def get(name: str) -> tuple[Path, list[str], Path]:
        root = tmp_path_factory.mktemp("good")
        words = FORMATS[name](root / "place").words
        assert import_as(words, root / "out") == []
        return root / "place", words, root / "out"

    return get


def session_files(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.glob("*/*.hdf5")}


def attacked(good, name: str, attack: Attack, folder: Path) -> tuple[list[str], Path]:
    """Return what follows `cortext import` for a damaged copy, and its undamaged import."""
    place, words, whole = good(name)
    shutil.copytree(place, folder / "place")
    words = [word.replace(str(place), str(folder / "place")) for word in words]
    attack.change(Path(words[1]) / (attack.file or TABLE[name].file))
    return words, whole


@pytest.mark.parametrize(
    ("name", "attack"),
    [
        pytest.param(name, attack, id=f"{name}: {attack.name}")
        for name, of_format in TABLE.items()
        for attack in of_format.attacks
    ],
)
def test_a_damaged_source_is_one_line_and_costs_only_itself(
    name: str, attack: Attack, good, tmp_path: Path
) -> None:
    words, whole = attacked(good, name, attack, tmp_path)
    out = tmp_path / "out"
    with harmless(most_mb=150):
        lines = import_as(words, out)
    assert all(line.isprintable() and len(line) <= 1000 for line in lines)
    assert [line for line in lines if re.search(attack.says, line)], lines
    before = session_files(whole)
    written = session_files(out)
    assert written.items() <= before.items()
    assert len(written) < len(before)
    assert not list(out.rglob("*.tmp"))
    with harmless(most_mb=150):
        import_as(words, out, skip_bad=True)
    kept = session_files(out)
    if attack.whole:
        assert not kept
    else:
        assert written.items() <= kept.items()
        assert written


@pytest.mark.parametrize("name", TABLE)
def test_the_command_says_the_line(
    name: str, good, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    attack = TABLE[name].attacks[0]
    words, _ = attacked(good, name, attack, tmp_path)
    command = ["import", *words, "--out", str(tmp_path / "out")]
    assert cortext(command) == 2
    printed = capfd.readouterr()
    lines = printed.err.splitlines()
    assert "Traceback" not in printed.err
    assert not NOT_PRINTABLE.search(printed.out + printed.err)
    assert lines[-1].startswith("cortext: ")
    assert [line for line in lines if re.search(attack.says, line)], printed.err
    assert cortext([*command, "--skip-bad"]) == 0
    assert "Traceback" not in capfd.readouterr().err
