"""Attacks by language-model files.

A folder of which one file is not what it says is named in one line, or used.
"""

from __future__ import annotations

import gzip
import json
import lzma
import os
import shutil
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from command_loop import CommandLoop, command_loop
from commands import GIB
from tiny_llm import save_tiny_lm

TESTS = Path(__file__).parents[1] / "core" / "decoding" / "ngram"
ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e"
ARPA = """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-1.0\t<unk>
-99\t<s>\t-0.5
-0.7\t</s>
-0.4\tgo\t-0.3
-0.6\thome\t0

\\2-grams:
-0.2\t<s> go
-0.3\tgo home
-0.1\thome </s>

\\end\\
"""
LEXICON = "go G OW SIL\nhome HH OW M SIL\n"
Change = Callable[[Path], object]
Content = str | bytes | Callable[[], str | bytes]
"""Of a file; large ones are made by a function when a test needs them, not in every process."""


@dataclass(frozen=True)
class Attack:
    """What is done to a folder that is otherwise sound, and the line that it is refused with.

    says: pattern of the line; empty where the folder may be used, too
    command: what reads it; FOLDER stands for it
    """

    name: str
    change: Change
    says: str = ""
    command: str = "lm info FOLDER"

    def __str__(self) -> str:
        return self.name


def write(name: str, content: Content) -> Change:
    """Put other content in a file of the folder."""

    def change(folder: Path) -> None:
        made = content() if callable(content) else content
        data = made.encode(errors="surrogatepass") if isinstance(made, str) else made
        (folder / name).write_bytes(data)

    return change


def remove(name: str) -> Change:
    return lambda folder: (folder / name).unlink()


def pipe(name: str) -> Change:
    """Put a pipe that nobody writes to in the place of a file."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


def link(name: str, to: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(to)

    return change


def sparse(name: str, size: int) -> Change:
    """A file of zeros that takes no room on the disk."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        with (folder / name).open("wb") as file:
            file.truncate(size)

    return change


def bomb(start: bytes, n_megabytes: int, of: bytes) -> Content:
    """Compressed text of many times its size."""
    part = of * (2**20 // len(of))
    return lambda: gzip.compress(start) + gzip.compress(part) * n_megabytes


def arpa(old: str, new: str) -> Change:
    assert ARPA.count(old) == 1
    return with_arpa(ARPA.replace(old, new))


def with_arpa(text: Content, name: str = "lm.arpa") -> Change:
    """The model as text and not as a binary file."""

    def change(folder: Path) -> None:
        (folder / "lm.bin").unlink()
        write(name, text)(folder)

    return change


def facts(content: Content) -> Change:
    return write("lm.json", content)


LINES = 40_000
LEXICONS = [
    Attack("no lexicon", remove("lexicon.txt"), "lexicon.txt: .*No such file"),
    Attack("an empty lexicon", write("lexicon.txt", ""), "no pronunciations"),
    Attack("a lexicon of zeros", write("lexicon.txt", bytes(1000)), "lexicon.txt, line 1"),
    Attack(
        "a lexicon of other bytes",
        write("lexicon.txt", b"\xff\xff" * 99),
        "lexicon.txt: cannot read",
    ),
    Attack(
        "a lexicon of marks of byte order",
        write("lexicon.txt", b"\xff\xfe" * 99),
        "lexicon.txt, line 1: the pronunciation of",
    ),
    Attack("a pipe as a lexicon", pipe("lexicon.txt"), "lexicon.txt: .*not a regular file"),
    Attack("a link to itself as a lexicon", link("lexicon.txt", "lexicon.txt"), "lexicon.txt: "),
    Attack(
        "a device as a lexicon",
        link("lexicon.txt", "/dev/zero"),
        "lexicon.txt: .*not a regular file",
    ),
    Attack("an unknown phoneme", write("lexicon.txt", "go G OE SIL\n"), "line 1: unknown phoneme"),
    Attack(
        "a phoneme of escapes",
        write("lexicon.txt", f"go {ESCAPE} SIL\n"),
        "line 1: unknown phoneme",
    ),
    Attack(
        "a phoneme of 20 MB",
        write("lexicon.txt", lambda: f"go {'G' * 20_000_000} SIL\n"),
        "line 1: unknown phoneme",
    ),
    Attack(
        "a word of 20 MB",
        write("lexicon.txt", lambda: f"{'g' * 20_000_000} G OW\n"),
        "line 1: .*does not end with SIL",
    ),
    Attack(
        "20 MB of phonemes",
        write("lexicon.txt", lambda: f"go{' G OW' * 4_000_000} SIL\n"),
        "line 1: .*phonemes",
    ),
    Attack("a weight of NaN", write("lexicon.txt", "go\tnan G OW SIL\n"), "line 1: weight nan"),
    Attack("a weight of 1e999", write("lexicon.txt", "go\t1e999 G OW SIL\n"), "line 1: weight inf"),
    Attack(
        "a weight of 400 digits",
        write("lexicon.txt", f"go\t1{'0' * 400} G OW SIL\n"),
        "line 1: weight inf",
    ),
    Attack(
        "a weight of 5,000 digits",
        write("lexicon.txt", f"go\t1{'0' * 5000} G OW SIL\n"),
        "line 1: weight inf",
    ),
    Attack(
        "a tiny weight",
        write("lexicon.txt", "go\t5e-324 G OW SIL\n"),
        command="decode --fake-text go --lm FOLDER",
    ),
    Attack(
        "a word of 40,000 pronunciations",
        lambda folder: write(
            "lexicon.txt", "".join(f"go {spelt(number)} SIL\n" for number in range(LINES))
        )(folder),
        "more than 1,000 pronunciations",
    ),
]


def spelt(number: int) -> str:
    """A pronunciation for each number."""
    return " ".join("AA AE AH AO AW AY B CH D DH".split()[int(digit)] for digit in str(number))


TOKENS = [
    Attack("no tokens", remove("tokens.txt"), "tokens.txt: cannot read the tokens"),
    Attack("empty tokens", write("tokens.txt", ""), "tokens.txt: lacks"),
    Attack(
        "tokens twice", lambda f: twice(f / "tokens.txt"), "tokens.txt: has tokens more than once"
    ),
    Attack("tokens of escapes", write("tokens.txt", f"{ESCAPE}\n" * 41), "tokens.txt: lacks"),
    Attack("a pipe as tokens", pipe("tokens.txt"), "tokens.txt: .*not a regular file"),
    Attack("20 MB of tokens", write("tokens.txt", lambda: "AA " * 7_000_000), "tokens.txt: "),
    Attack("tokens of 64 GB", sparse("tokens.txt", 64 * GIB), "tokens.txt: "),
]


def twice(path: Path) -> None:
    path.write_text(path.read_text() * 2)


FACTS = [
    Attack("empty facts", facts(""), "lm.json: "),
    Attack("deep facts", facts("[" * 100_000), "lm.json: "),
    Attack("deep objects", facts('{"a":' * 100_000 + "1" + "}" * 100_000), "lm.json: "),
    Attack("facts 500 deep", facts('{"a":' * 500 + "1" + "}" * 500)),
    Attack("a list as facts", facts("[]"), "lm.json: "),
    Attack("a number of 5,000 digits", facts('{"order": 1%s}' % ("0" * 5000)), ""),
    Attack("a number of 400 digits", facts('{"vocabulary": 1%s}' % ("0" * 400))),
    Attack("a number of 1e400", facts('{"vocabulary": 1e400, "discounts": NaN}')),
    Attack(
        "texts for numbers",
        facts('{"order": "x", "counts": "y", "kind": 5, "sources": 7, "bytes": []}'),
    ),
    Attack(
        "facts of escapes",
        facts(json.dumps({ESCAPE: ESCAPE, "sources": [{"path": ESCAPE}]}, ensure_ascii=False)),
    ),
    Attack("lone surrogates", facts('{"kind": "\\ud800", "\\ud801": "\\ud802"}')),
    Attack("facts of other bytes", write("lm.json", b'{"kind": "\xff"}'), "lm.json: "),
    Attack("a pipe as facts", pipe("lm.json")),
    Attack("an inventory of a number", facts('{"inventory": 5}'), "inventory is no mapping"),
    Attack(
        "an inventory of escapes",
        facts(json.dumps({"inventory": {"name": ESCAPE}}, ensure_ascii=False)),
        "inventory.name is ",
    ),
    Attack(
        "a million groups",
        facts(
            lambda: json.dumps(
                {"inventory": {"name": "x", "groups": {str(n): [] for n in range(10**6)}}}
            )
        ),
    ),
    Attack(
        "a group of a million tokens",
        facts(lambda: json.dumps({"inventory": {"name": "x", "groups": {"all": ["AA"] * 10**6}}})),
        "names 'AA', which is no spoken symbol or is named twice",
    ),
    Attack("a language of escapes", facts(json.dumps({"language": ESCAPE})), "unknown language"),
    Attack(
        "a language of all characters",
        facts(json.dumps({"language": {"name": "all", "letters": "\u0001-\U0010ffff"}})),
        "no letter or range of letters",
    ),
    Attack(
        "a language of a million letters",
        facts(json.dumps({"language": {"name": "x", "letters": "a" * 10**6}})),
        "language.letters is 'aaa",
    ),
    Attack("an open vocabulary of phonemes", facts('{"unit": "character"}'), "is not possible"),
    Attack(
        "a list as a kind",
        facts('{"kind": ["spelling"]}'),
        command="lm score FOLDER FOLDER/text.txt",
    ),
]
ARPAS = [
    Attack("no model", remove("lm.bin"), "no lm.bin or lm.arpa"),
    Attack("a pipe as a model", pipe("lm.bin"), "no lm.bin or lm.arpa"),
    Attack("an empty model", write("lm.bin", ""), "KenLM binary or an ARPA file is needed"),
    Attack("2^60 1-grams", arpa("1=5", f"1={2**60}"), "more than the file has room for"),
    Attack("2^64 2-grams", arpa("2=3", f"2={2**64}"), "more than the file has room for"),
    Attack("-1 2-grams", arpa("2=3", "2=-1"), "more than the file has room for"),
    Attack("a count of 400 digits", arpa("2=3", f"2=3{'0' * 400}"), "where 'ngram ORDER=COUNT'"),
    Attack("an order of 5 digits", arpa("2=3", "99999=3"), "order 99999"),
    Attack("a probability of nan", arpa("-0.3\tgo home", "nan\tgo home"), "line 14: "),
    Attack("a probability of -inf", arpa("-0.3\tgo home", "-inf\tgo home"), ""),
    Attack("a probability of 1e999", arpa("-0.3\tgo home", "1e999\tgo home"), "line 14: "),
    Attack("a probability above 1", arpa("-0.3\tgo home", "0.3\tgo home"), "line 14: "),
    Attack("a back-off of nan", arpa("go\t-0.3", "go\tnan"), "line 9: "),
    Attack(
        "a back-off of 1e38",
        arpa("go\t-0.3", "go\t1e38"),
        command="lm score FOLDER FOLDER/text.txt",
    ),
    Attack("words of escapes", arpa("-0.3\tgo home", f"-0.3\tgo {ESCAPE}"), "line 14: "),
    Attack(
        "a line of 100 MB",
        with_arpa(lambda: ARPA.replace("go home", "go " + "x" * 10**8)),
        "line 14: ",
    ),
    Attack("100 MB for the first line", with_arpa(lambda: "x" * 10**8), "line 1: "),
    Attack("a bomb of a line", with_arpa(bomb(b"", 300, b"x"), "lm.arpa.gz"), "line 1: "),
    Attack(
        "a bomb of zeros", with_arpa(bomb(ARPA.encode(), 300, b"\0"), "lm.arpa.gz"), "zero byte|end"
    ),
    Attack(
        "a bomb of a word",
        with_arpa(
            bomb(ARPA[: ARPA.index("home")].replace("1=5", "1=900000000").encode(), 300, b"x"),
            "lm.arpa.gz",
        ),
    ),
    Attack(
        "half of a gzip",
        with_arpa(gzip.compress(ARPA.encode())[:60], "lm.arpa.gz"),
        "truncated or damaged",
    ),
    Attack("another compression", with_arpa(b"BZh91AY&SY", "lm.arpa"), ""),
]

COUNTS_AT = 108  # in a binary file, after 88 bytes of magic and a record of 20


def binary(at: int, value: bytes) -> Change:
    """Other bytes in the binary model; from its end where the place is negative."""

    def change(folder: Path) -> None:
        data = bytearray((folder / "lm.bin").read_bytes())
        start = at if at >= 0 else len(data) + at
        data[start : start + len(value)] = value
        (folder / "lm.bin").write_bytes(data)

    return change


def cut(name: str, share: float) -> Change:
    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return change


BINARIES = [
    Attack("a binary cut in two", cut("lm.bin", 0.5), "damaged KenLM file"),
    Attack("a binary cut at its end", cut("lm.bin", 0.99), "damaged KenLM file"),
    Attack("a binary of another version", binary(49, b"9"), "unfinished or of another version"),
    Attack("order 0", binary(88, b"\0"), "order 0"),
    Attack("order 255", binary(88, b"\xff"), "order 255 is above"),
    Attack("type 99", binary(96, struct.pack("<I", 99)), "unknown type 99"),
    Attack("a multiplier of NaN", binary(92, struct.pack("<f", float("nan"))), "makes no sense"),
    Attack(
        "2^63 words", binary(COUNTS_AT, struct.pack("<Q", 2**63)), "shorter than its header says"
    ),
    Attack("no words", binary(COUNTS_AT, struct.pack("<Q", 0)), "no vocabulary"),
    Attack(
        "2^62 2-grams",
        binary(COUNTS_AT + 8, struct.pack("<Q", 2**62)),
        "shorter than its header says",
    ),
    Attack("a type that it is not", binary(96, struct.pack("<I", 0)), "damaged KenLM file"),
    Attack("8 GB of zeros", sparse("lm.bin", 8 * GIB), ""),
    Attack(
        "noise in its middle",
        binary(300, os.urandom(200)),
        command="lm score FOLDER FOLDER/text.txt",
    ),
]


def header(
    start: int = 0, n_states: int = 1, n_arcs: int = 0, flags: int = 0, kind: bytes = b"vector"
) -> bytes:
    """The header of an OpenFst file."""
    names = b"".join(struct.pack("<i", len(name)) + name for name in (kind, b"standard"))
    return (
        struct.pack("<i", 2125659606)
        + names
        + struct.pack("<iiQqqq", 2, flags, 0, start, n_states, n_arcs)
    )


def state(final: float, n_arcs: int, arcs: bytes = b"") -> bytes:
    return struct.pack("<fq", final, n_arcs) + arcs


def fst(content: bytes) -> Change:
    return write("G.fst", content)


def graph(content: bytes) -> Change:
    """Put a compiled graph in the place of the grammar."""

    def change(folder: Path) -> None:
        (folder / "G.fst").unlink()
        (folder / "TLG.fst").write_bytes(content)

    return change


IMPORT = "lm import FOLDER --out FOLDER/out"
WORDS = "words.txt, line 2: "
KALDI = [
    Attack(
        "no grammar",
        remove("G.fst"),
        "no G_no_prune.fst or G.fst|no G.fst or G_no_prune.fst",
        IMPORT,
    ),
    Attack("an empty grammar", fst(b""), "G.fst: is empty", IMPORT),
    Attack("a pipe as a grammar", pipe("G.fst"), "no G.fst", IMPORT),
    Attack("a grammar cut in two", cut("G.fst", 0.5), "truncated|damaged", IMPORT),
    Attack("2^62 states", fst(header(n_states=2**62)), "announces", IMPORT),
    Attack("-2 states", fst(header(n_states=-2)), "announces", IMPORT),
    Attack("2^60 arcs of a state", fst(header() + state(0, 2**60)), "has .* arcs", IMPORT),
    Attack("2^63 - 1 arcs of a state", fst(header() + state(0, 2**63 - 1)), "has .* arcs", IMPORT),
    Attack("-1 arcs of a state", fst(header() + state(0, -1)), "has -1 arcs", IMPORT),
    Attack("a start beyond", fst(header(start=2**40) + state(0, 0)), "start", IMPORT),
    Attack("a final weight of NaN", fst(header() + state(float("nan"), 0)), "no number", IMPORT),
    Attack("a state and nothing else", fst(header() + state(0, 0)), "", IMPORT),
    Attack("no states", fst(header(n_states=0)), "start", IMPORT),
    Attack(
        "an arc to nowhere",
        fst(header() + state(0, 1, struct.pack("<iifi", 1, 1, 0.0, 2**31 - 1))),
        "arc",
        IMPORT,
    ),
    Attack(
        "labels beyond",
        fst(header() + state(0, 1, struct.pack("<iifi", 2**30, 2**30, 0.0, 0))),
        "labels",
        IMPORT,
    ),
    Attack(
        "a negative label",
        fst(header() + state(0, 1, struct.pack("<iifi", -7, -7, 0.0, 0))),
        "negative",
        IMPORT,
    ),
    Attack(
        "a circle of back-offs",
        fst(header() + state(0, 1, struct.pack("<iifi", 0, 0, 0.0, 0))),
        "n-gram",
        IMPORT,
    ),
    Attack("an empty graph", graph(b""), "TLG.fst: is empty", IMPORT),
    Attack("a graph of 2^62 states", graph(header(n_states=2**62)), "announces", IMPORT),
    Attack("a graph without arcs", graph(header() + state(0, 0)), "has no arcs", IMPORT),
    Attack(
        "a graph of 2^30 tokens",
        graph(header() + state(0, 1, struct.pack("<iifi", 2**30, 1, 0.0, 0))),
        "input labels up to 1073741824",
        IMPORT,
    ),
    Attack(
        "a graph of a circle",
        graph(header() + state(0, 1, struct.pack("<iifi", 3, 1, 0.0, 0))),
        "no state in which words begin",
        IMPORT,
    ),
    Attack("a kind of escapes", fst(header(kind=ESCAPE.encode())), "transducer of type", IMPORT),
    Attack(
        "a kind of 2 GB", fst(struct.pack("<ii", 2125659606, 2**31 - 1) + b"x" * 99), "name", IMPORT
    ),
    Attack(
        "2^62 symbols",
        fst(header(flags=1) + struct.pack("<iiqq", 2125658996, 0, 0, 2**62)),
        "truncated|name",
        IMPORT,
    ),
    Attack("a weight of inf", lambda f: weighted(f, float("inf")), "", IMPORT),
    Attack("a weight of -inf", lambda f: weighted(f, float("-inf")), "", IMPORT),
    Attack("a weight of NaN in an arc", lambda f: weighted(f, float("nan")), "no number", IMPORT),
    Attack("no words.txt", remove("words.txt"), "words.txt: cannot read", IMPORT),
    Attack("a pipe as words.txt", pipe("words.txt"), "words.txt: .*not a regular file", IMPORT),
    Attack("words without numbers", write("words.txt", "<eps> 0\ngo\n"), WORDS, IMPORT),
    Attack("a number that is a letter", write("words.txt", "<eps> 0\ngo ²\n"), WORDS, IMPORT),
    Attack(
        "a number of 5,000 digits", write("words.txt", f"<eps> 0\ngo {'9' * 5000}\n"), WORDS, IMPORT
    ),
    Attack("a number of 10^8", write("words.txt", "<eps> 0\ngo 100000000\n"), "words.txt", IMPORT),
    Attack("a number of 5 10^7", write("words.txt", "<eps> 0\ngo 50000000\n"), "words.txt", IMPORT),
    Attack("words of escapes", write("words.txt", f"<eps> 0\n{ESCAPE} x\n"), WORDS, IMPORT),
    Attack(
        "a word of 20 MB", write("words.txt", f"<eps> 0\n{'x' * 20_000_000} x\n"), WORDS, IMPORT
    ),
    Attack(
        "words.txt of other bytes",
        write("words.txt", b"\xff\xff 0\n"),
        "words.txt: cannot read",
        IMPORT,
    ),
    Attack("a pipe as the folder's lexicon", pipe("lexicon.txt"), "", IMPORT),
    Attack("a device as the folder's lexicon", link("lexicon.txt", "/dev/zero"), "", IMPORT),
    Attack(
        "a phoneme that is none",
        write("lexicon.txt", f"the {ESCAPE}\n"),
        "lexicon.txt, line 1",
        IMPORT,
    ),
    Attack(
        "a phoneme of 20 MB",
        write("lexicon.txt", f"the {'x' * 20_000_000}\n"),
        "lexicon.txt, line 1",
        IMPORT,
    ),
    Attack(
        "an out with other files",
        write("mine.txt", "x"),
        "no part of a language model",
        "lm import FOLDER --out FOLDER",
    ),
]


def weighted(folder: Path, weight: float) -> None:
    """Another weight on the last arc of the grammar."""
    data = bytearray((folder / "G.fst").read_bytes())
    fst_of = [
        at
        for at in range(80, len(data) - 16)
        if data[at : at + 4] == data[at + 4 : at + 8] != bytes(4)
    ]
    data[fst_of[-1] + 8 : fst_of[-1] + 12] = struct.pack("<f", weight)
    (folder / "G.fst").write_bytes(data)


SCORE = "lm score FOLDER FOLDER/text.txt"
BUILD = "lm build FOLDER/text.txt --out FOLDER/out --order 2"
OWN = f"{BUILD} --lexicon FOLDER/own.txt"


def greedy_xz(content: bytes) -> bytes:
    """Return content whose xz header asks for more memory than any text needs."""
    whole = bytearray(lzma.compress(content, format=lzma.FORMAT_XZ))
    at = whole.index(b"\x21\x01") + 2  # LZMA2's properties: the size of its dictionary
    whole[at] = 37  # 1.5 GiB
    size = (whole[12] + 1) * 4
    whole[12 + size - 4 : 12 + size] = struct.pack("<I", zlib.crc32(whole[12 : 12 + size - 4]))
    return bytes(whole)


TEXTS = [
    Attack("no text", remove("text.txt"), "text.txt", SCORE),
    Attack("an empty text", write("text.txt", ""), "no sentence", SCORE),
    Attack("a text of zeros", write("text.txt", bytes(3 * 10**6)), "no sentence", SCORE),
    Attack("a text of one line of 25 MB", write("text.txt", "go home " * 3_000_000), "", SCORE),
    Attack("a text of escapes", write("text.txt", f"go home {ESCAPE}\n"), "", SCORE),
    Attack(
        "a bomb as a text",
        write("text.gz", bomb(b"go home\n", 100, b"x")),
        "",
        "lm score FOLDER FOLDER/text.gz",
    ),
    Attack(
        "a text of xz that asks for 1.5 GB",
        write("text.txt", lambda: greedy_xz(b"go home\n")),
        "Memory usage limit",
        SCORE,
    ),
    Attack("half of an xz", write("text.txt", lzma.compress(b"go home\n")[:40]), "text.txt", SCORE),
    Attack("a bzip2 of noise", write("text.txt", b"BZh9" + bytes(99)), "text.txt", SCORE),
    Attack("half of a UTF-16 letter", write("text.txt", b"\xff\xfeg\0o"), "UTF-16", SCORE),
    Attack("a lone surrogate of UTF-16", write("text.txt", b"\xff\xfe\0\xd8"), "UTF-16", SCORE),
    Attack(
        "a lexicon of escapes to build on",
        write("own.txt", f"go {ESCAPE}\n"),
        "own.txt: .* is no symbol",
        OWN,
    ),
    Attack(
        "a lexicon of one line of 2 MB",
        write("own.txt", lambda: "go " + "G . " * 500_000),
        "own.txt, line 1: 'go' has",
        OWN,
    ),
    Attack("a lexicon of comments", write("own.txt", "# x\n;;; y\n" * 9), "own.txt", OWN),
    Attack("a lexicon of numbers", write("own.txt", "go 0.0 0 0 0\n"), "own.txt, line 1", OWN),
    Attack("a lexicon of outputs", write("own.txt", "go [go]\nhome [home]\n"), "own.txt", OWN),
    Attack("a lexicon of dividers", write("own.txt", "go . . .\nhome . =\n"), "own.txt", OWN),
    Attack(
        "a vocabulary that is a letter",
        write("text.txt", "go home.\n"),
        "vocabulary",
        f"{BUILD} --vocab ²",
    ),
    Attack(
        "a vocabulary of 5,000 digits",
        write("text.txt", "go home.\n"),
        "",
        f"{BUILD} --vocab {'9' * 5000}",
    ),
    Attack("a pruning that is a letter", write("text.txt", "go home.\n"), "", f"{BUILD} --prune ²"),
    Attack(
        "a pruning of 5,000 digits",
        write("text.txt", "go home.\n"),
        "",
        f"{BUILD} --prune {'9' * 5000}",
    ),
    Attack(
        "an order of 10^30",
        write("text.txt", "go home.\n"),
        "order",
        f"lm build FOLDER/text.txt --out FOLDER/out --order {10**30}",
    ),
]

LLM = "decode --fake-text go --lm FOLDER --llm FOLDER/llm --llm-device cpu"


def config(**changes: object) -> Change:
    """Other values in the large model's config.json; of None the key is taken out."""

    def change(folder: Path) -> None:
        path = folder / "llm" / "config.json"
        values = json.loads(path.read_text()) | changes
        path.write_text(
            json.dumps({name: value for name, value in values.items() if value is not None})
        )

    return change


def tensors(length: int, text: bytes, body: bytes = b"") -> Change:
    """Weights with another header, which says that it has its own length or, if that is not 0,
    another one.
    """
    return write("llm/model.safetensors", struct.pack("<Q", length or len(text)) + text + body)


def entry(kind: str, shape: list[int], end: int) -> bytes:
    return json.dumps({"x": {"dtype": kind, "shape": shape, "data_offsets": [0, end]}}).encode()


LARGE = [
    Attack("no config.json", remove("llm/config.json"), "config.json", LLM),
    Attack("an empty config.json", write("llm/config.json", ""), "llm: ", LLM),
    Attack("a deep config.json", write("llm/config.json", "[" * 100_000), "llm: ", LLM),
    Attack("a list as config.json", write("llm/config.json", "[]"), "llm: ", LLM),
    Attack("a number of 5,000 digits in config.json", config(hidden_size=10**400), "llm: ", LLM),
    Attack("a negative size", config(hidden_size=-32), "llm: ", LLM),
    Attack("a size of 2^40", config(hidden_size=2**40), "llm: ", LLM),
    Attack("10^9 layers", config(num_hidden_layers=10**9), "llm: ", LLM),
    Attack("10^9 labels", config(num_labels=10**9), "llm: ", LLM),
    Attack("10^12 words", config(vocab_size=10**12), "llm: ", LLM),
    Attack("a text as a size", config(hidden_size="large"), "llm: ", LLM),
    Attack("an unknown type of model", config(model_type=ESCAPE), "llm: ", LLM),
    Attack("code to run", config(auto_map={"AutoModelForCausalLM": "evil.Model"}, model_type="evil"), "llm: ", LLM),
    Attack("no weights", remove("llm/model.safetensors"), "llm: ", LLM),
    Attack("half of the weights", cut("llm/model.safetensors", 0.5), "llm: ", LLM),
    Attack("a header of 2^63 bytes", tensors(2**63, b"{}"), "llm: ", LLM),
    Attack("a deep header", tensors(200_000, b"[" * 200_000), "llm: ", LLM),
    Attack("a tensor of 2^62 numbers", tensors(0, entry("F32", [2**62], 8), bytes(8)), "llm: ", LLM),
    Attack("a type that is not there", tensors(0, entry("F7", [1], 4), bytes(4)), "llm: ", LLM),
    Attack("no tokenizer", remove("llm/tokenizer.json"), "llm: ", LLM),
    Attack("a deep tokenizer", write("llm/tokenizer.json", '{"a":' * 100_000), "llm/tokenizer.json: ", LLM),
    Attack("a list as a tokenizer", write("llm/tokenizer.json", "[]"), "llm/tokenizer.json: ", LLM),
    Attack("a pipe as a tokenizer", pipe("llm/tokenizer.json"), "llm: ", LLM),
    Attack("a pipe as config.json", pipe("llm/config.json"), "llm", LLM),
    Attack("a pipe as weights", pipe("llm/model.safetensors"), "llm", LLM),
]  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that any of the commands can use."""
    folder = tmp_path_factory.mktemp("sound")
    (folder / "lm.arpa").write_text(ARPA)
    from cortext import _native
    from cortext.text.inventory import LM

    _native.write_binary(folder / "lm.arpa", folder / "lm.bin")
    (folder / "lm.arpa").unlink()
    (folder / "lexicon.txt").write_text(LEXICON)
    (folder / "tokens.txt").write_text("\n".join(LM.symbols))
    (folder / "text.txt").write_text("go home\n")
    return folder


@pytest.fixture(scope="module")
def kaldi() -> Path:
    return Path(__file__).parents[1] / "lm" / "kaldi" / "new"


@pytest.fixture(scope="module")
def large(sound: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large") / "sound"
    shutil.copytree(sound, folder)
    save_tiny_lm(folder / "llm")
    return folder


@pytest.fixture(scope="module")
def loop() -> Iterator[CommandLoop]:
    with command_loop() as commands:
        yield commands


@pytest.mark.parametrize("attack", [*LEXICONS, *TOKENS, *FACTS, *ARPAS, *BINARIES, *TEXTS], ids=str)
def test_a_spoilt_directory_is_named_in_one_line(
    loop: CommandLoop, sound: Path, tmp_path: Path, attack: Attack
) -> None:
    check(loop, sound, tmp_path, attack)


@pytest.mark.parametrize("attack", KALDI, ids=str)
def test_a_spoilt_kaldi_folder_is_named_in_one_line(
    loop: CommandLoop, kaldi: Path, tmp_path: Path, attack: Attack
) -> None:
    check(loop, kaldi, tmp_path, attack)
    left = {path.name for path in tmp_path.glob("folder/out*")}
    assert left <= {"out"}


@pytest.mark.slow
@pytest.mark.parametrize("attack", LARGE, ids=str)
def test_a_spoilt_large_model_is_named_in_one_line(
    loop: CommandLoop, large: Path, tmp_path: Path, attack: Attack
) -> None:
    check(loop, large, tmp_path, attack)


def check(loop: CommandLoop, sound: Path, tmp_path: Path, attack: Attack) -> None:
    """Spoil a copy of the folder and run the command."""
    folder = tmp_path / "folder"
    shutil.copytree(sound, folder)
    attack.change(folder)
    arguments = [argument.replace("FOLDER", str(folder)) for argument in attack.command.split()]
    ended = loop.run(*arguments)
    if attack.says:
        ended.check_refused(attack.says, most_s=20)
    else:
        ended.check_harmless(most_s=20)


@pytest.mark.parametrize("command", ["lm info FOLDER", SCORE, "decode --fake-text go --lm FOLDER"])
def test_the_folder_itself_is_sound(loop: CommandLoop, sound: Path, command: str) -> None:
    ended = loop.run(*[argument.replace("FOLDER", str(sound)) for argument in command.split()])
    assert ended.status == 0, ended.said
