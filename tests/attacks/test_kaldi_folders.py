"""Damaged Kaldi folders: their grammar or graph, words and lexicon. `lm import` names what is wrong."""

from __future__ import annotations

import gzip
import math
import shutil
import struct
from pathlib import Path

import pytest
from damaged_folders import ESCAPE, Change, Damage, check_damages, cut, link, pipe, remove, write
from openfst_files import Arcs, header, openfst, state

from cortext.cli import run

IMPORT = "lm import FOLDER --out FOLDER/out"
WORDS = "words.txt, line 2: "
ONE = [(1, 1, 1.0, 0)]
BACK = (4, 0, 1.0, 0)
GRAMMAR = openfst(1, [(1.0, [(1, 1, 2.0, 0), (2, 2, 3.0, 0)]), (None, [(4, 0, 0.0, 0)])])
"""A unigram of two words; its second state is <s>."""


def fst(content: bytes) -> Change:
    return write("G.fst", content)


def states(*states: tuple[float | None, Arcs], start: int = 0) -> Change:
    return fst(openfst(start, states))


def arc(*arc: float) -> Change:
    """A grammar of one state with one arc."""
    return states((0.0, [arc]))


def graph(content: bytes) -> Change:
    """Put a compiled graph in the place of the grammar."""

    def change(folder: Path) -> None:
        (folder / "G.fst").unlink()
        (folder / "TLG.fst").write_bytes(content)

    return change


def words(text: str | bytes) -> Change:
    return write("words.txt", text)


LONG_NAME = header().replace(struct.pack("<i", 6), struct.pack("<i", 2**31 - 1), 1)
GRAMMARS = [
    Damage("no folder", shutil.rmtree, "no such directory"),
    Damage("no grammar", remove("G.fst"), "no G.fst or G_no_prune.fst"),
    Damage("only another graph", lambda folder: (folder / "G.fst").rename(folder / "LG.fst"), "no grammar .*; get .*cortext fetch lm-5gram OUT, or cortext lm build"),
    Damage("an empty grammar", fst(b""), "G.fst: is empty"),
    Damage("an ARPA file", fst(b"\\data\\\nngram 1=3\n"), "G.fst: no OpenFst file"),
    Damage("a gzipped grammar", fst(gzip.compress(GRAMMAR)), "G.fst: no OpenFst file"),
    Damage("a damaged grammar that is preferred", write("G_no_prune.fst", b"nothing"), "G_no_prune.fst: no OpenFst file"),
    Damage("a pipe as a grammar", pipe("G.fst"), "no G.fst"),
    Damage("a grammar cut in two", cut("G.fst", 0.5), "G.fst: .*(truncated|damaged)"),
    Damage("a grammar cut in its header", cut("G.fst", 0.2), "G.fst: .*ends in its header"),
    Damage("a grammar cut in its last arc", fst(GRAMMAR[:-1]), "G.fst: .*state 1 has 1 arcs"),
    Damage("a grammar cut before its last state", fst(GRAMMAR[:-28]), "G.fst: .*ends before state 1 of 2"),
    Damage("a byte more", fst(GRAMMAR + b"x"), "G.fst: .*1 bytes follow"),
    Damage("another kind", fst(openfst(0, [(0.0, ONE)], kind=b"const")), "G.fst: .*type 'const'.*fstconvert"),
    Damage("a kind of escapes", fst(header(kind=ESCAPE.encode())), "transducer of type"),
    Damage("a kind of 2 GB", fst(LONG_NAME + b"x" * 99), "G.fst: .*longer than the file"),
    Damage("other arcs", fst(openfst(0, [(0.0, ONE)], arc=b"log")), "G.fst: .*arcs of type 'log'"),
    Damage("no symbol table", fst(openfst(0, [(0.0, ONE)], flags=1)), "G.fst: .*no symbol table"),
    Damage("2^62 symbols", fst(header(flags=1) + struct.pack("<iiqq", 2125658996, 0, 0, 2**62)), "truncated|name"),
    Damage("2^62 states", fst(header(n_states=2**62)), "announces"),
    Damage("-2 states", fst(header(n_states=-2)), "announces"),
    Damage("no states", fst(header(n_states=0)), "start"),
    Damage("a state and nothing else", states((0, []))),
    Damage("2^60 arcs of a state", fst(header() + state(0, n_arcs=2**60)), "has .* arcs"),
    Damage("2^63 - 1 arcs of a state", fst(header() + state(0, n_arcs=2**63 - 1)), "has .* arcs"),
    Damage("-1 arcs of a state", fst(header() + state(0, n_arcs=-1)), "has -1 arcs"),
    Damage("a start just beyond", states((0.0, ONE), start=1), "G.fst: .*the start is state 1 of 1"),
    Damage("a start far beyond", states((0, []), start=2**40), "start"),
    Damage("a final weight of NaN", states((math.nan, [])), "no number"),
    Damage("a weight of NaN in an arc", arc(1, 1, math.nan, 0), "G.fst: .*no number"),
    Damage("a weight of inf", arc(1, 1, math.inf, 0)),
    Damage("a weight of -inf", arc(1, 1, -math.inf, 0)),
    Damage("an arc beyond", arc(1, 1, 1.0, 7), "G.fst: .*beyond the 1"),
    Damage("an arc to nowhere", arc(1, 1, 0.0, 2**31 - 1), "arc"),
    Damage("a negative label", arc(-7, -7, 0.0, 0), "G.fst: .*negative label"),
    Damage("labels just beyond", arc(9, 9, 1.0, 0), "labels beyond the words"),
    Damage("labels far beyond", arc(2**30, 2**30, 0.0, 0), "labels"),
    Damage("different words", arc(1, 2, 1.0, 0), "different words on their two sides"),
    Damage("a circle of back-offs", arc(0, 0, 0.0, 0), "n-gram"),
    Damage("a circle of two back-offs", states((0.0, [(4, 0, 1.0, 1)]), (None, [(4, 0, 1.0, 2)]), (None, [(4, 0, 1.0, 1)])), "backs off in a circle"),
    Damage("two back-offs of a state", states((0.0, ONE), (0.0, [BACK, (4, 0, 2.0, 0)]), start=1), "more than one back-off"),
    Damage("no empty history", states((0.0, [(4, 0, 1.0, 1)]), (0.0, [BACK])), "no state of the empty history"),
    Damage("two arcs of a word", states((0.0, [*ONE, (1, 1, 2.0, 0)])), "two arcs with one word"),
    Damage("a state of two histories", states((0.0, [(1, 1, 1.0, 1), (2, 2, 1.0, 1)]), (0.0, [BACK])), "several histories"),
    Damage("a state of another history", states((0.0, [(1, 1, 1.0, 1), (2, 2, 1.0, 2)]), (0.0, [(2, 2, 1.0, 1), BACK]), (0.0, [BACK])), "another history than they spell"),
    Damage("an order of 9", states(*((0.0, [(1, 1, 1.0, (n + 1) % 9)]) for n in range(9))), "order above the highest supported"),
    Damage("an empty graph", graph(b""), "TLG.fst: is empty"),
    Damage("a graph of 2^62 states", graph(header(n_states=2**62)), "announces"),
    Damage("a graph without arcs", graph(openfst(0, [(0, [])])), "has no arcs"),
    Damage("a graph of 2^30 tokens", graph(openfst(0, [(0, [(2**30, 1, 0.0, 0)])])), "input labels up to 1073741824"),
    Damage("a graph of a circle", graph(openfst(0, [(0, [(3, 1, 0.0, 0)])])), "no state in which words begin"),
]  # fmt: skip
TEXTS = [
    Damage("no words.txt", remove("words.txt"), "words.txt: cannot read"),
    Damage("a pipe as words.txt", pipe("words.txt"), "words.txt: .*not a regular file"),
    Damage("an empty words.txt", words(""), "no words in it"),
    Damage("a word without a number", words("<eps> 0\ncat\n"), f"{WORDS}'cat' is not 'WORD NUMBER'"),
    Damage("a number that is a word", words("<eps> 0\ncat x\n"), f"{WORDS}.* is not 'WORD NUMBER'"),
    Damage("two numbers of a word", words("<eps> 0\ncat 1 2\n"), f"{WORDS}.* is not 'WORD NUMBER'"),
    Damage("a negative number", words("<eps> 0\ncat -1\n"), f"{WORDS}.* is not 'WORD NUMBER'"),
    Damage("a number of 12 digits", words("<eps> 0\ncat 999999999999\n"), f"{WORDS}.* is not 'WORD NUMBER'"),
    Damage("a number that is a letter", words("<eps> 0\ngo ²\n"), WORDS),
    Damage("a number of 5,000 digits", words(f"<eps> 0\ngo {'9' * 5000}\n"), WORDS),
    Damage("a word twice", words("<eps> 0\ncat 1\ncat 2\n"), "words.txt, line 3: .* occurs twice"),
    Damage("a number twice", words("<eps> 0\ncat 1\ndog 1\n"), "words.txt, line 3: .* occurs twice"),
    Damage("a number of 10^8", words("<eps> 0\ngo 100000000\n"), "words.txt"),
    Damage("a number of 5 10^7", words("<eps> 0\ngo 50000000\n"), "words.txt: has 2 words, and one of number 50,000,000"),
    Damage("words of escapes", words(f"<eps> 0\n{ESCAPE} x\n"), WORDS),
    Damage("a word of 20 MB", write("words.txt", lambda: f"<eps> 0\n{'x' * 20_000_000} x\n"), WORDS),
    Damage("words.txt of other bytes", words(b"\xff\xff 0\n"), "words.txt: cannot read"),
    Damage("a pipe as the folder's lexicon", pipe("lexicon.txt")),
    Damage("a device as the folder's lexicon", link("lexicon.txt", "/dev/zero")),
    Damage("a phoneme of escapes", write("lexicon.txt", f"the {ESCAPE}\n"), "lexicon.txt, line 1"),
    Damage("an unknown phoneme", write("lexicon.txt", "A EY\nB OO\n"), "lexicon.txt, line 2: unknown phoneme 'OO'"),
    Damage("a phoneme of 20 MB", write("lexicon.txt", lambda: f"the {'x' * 20_000_000}\n"), "lexicon.txt, line 1"),
    Damage("an out with other files", write("mine.txt", "x"), "no part of a language model", "lm import FOLDER --out FOLDER"),
    Damage("an unknown grammar", lambda folder: None, "absent.fst", f"{IMPORT} --grammar absent.fst"),
    Damage("an unknown binary", lambda folder: None, "binary|quantized", f"{IMPORT} --binary quantized"),
]  # fmt: skip


@pytest.fixture(scope="module")
def kaldi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a unigram."""
    folder = tmp_path_factory.mktemp("kaldi")
    (folder / "G.fst").write_bytes(GRAMMAR)
    names = ("<eps>", "a", "b", "c", "#0", "<s>", "</s>")
    (folder / "words.txt").write_text("".join(f"{name} {n}\n" for n, name in enumerate(names)))
    return folder


def test_the_folder_itself_is_sound(kaldi: Path, tmp_path: Path) -> None:
    assert run(["lm", "import", str(kaldi), "--out", str(tmp_path / "lm")]) == 0


@pytest.mark.parametrize("table", [GRAMMARS, TEXTS], ids=["grammars", "texts"])
def test_a_damaged_folder_is_refused_in_one_line(
    kaldi: Path, tmp_path: Path, table: list[Damage]
) -> None:
    check_damages(kaldi, table, IMPORT, tmp_path)
