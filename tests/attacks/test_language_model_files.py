"""Damaged language models, and damaged texts and lexicons to build one of.

A folder of which one file is not what it says is refused with one line, or used. Files of the n-gram
itself are in tests/core/native/test_damaged_files.py.
"""

from __future__ import annotations

import gzip
import json
import lzma
import shutil
import struct
import zlib
from pathlib import Path

import pytest
from commands import GIB
from damaged_folders import (
    ARPA,
    ESCAPE,
    Change,
    Content,
    Damage,
    check_damages,
    cut,
    link,
    pipe,
    remove,
    sparse,
    write,
    write_model,
)

from cortext import _native
from cortext.cli import run


def bomb(start: bytes, n_megabytes: int, of: bytes) -> Content:
    """Compressed text of many times its size."""
    part = of * (2**20 // len(of))
    return lambda: gzip.compress(start) + gzip.compress(part) * n_megabytes


def facts(content: Content) -> Change:
    return write("lm.json", content)


def spelt(number: int) -> str:
    """A pronunciation for each number."""
    return " ".join("AA AE AH AO AW AY B CH D DH".split()[int(digit)] for digit in str(number))


def twice(folder: Path) -> None:
    (folder / "tokens.txt").write_text((folder / "tokens.txt").read_text() * 2)


def escapes(folder: Path) -> None:
    """The model as text, with a word that is none."""
    (folder / "lm.bin").unlink()
    (folder / "lm.arpa").write_text(ARPA.replace("go home", f"go {ESCAPE}"))


OWN_ARPA = """\\data\\
ngram 1=5

\\1-grams:
-1.0\t<unk>
-99\t<s>
-0.7\t</s>
-0.4\tsí
-0.6\tno

\\end\\
"""
VOWELS = {"name": "vowels", "roles": {"blank": "_", "silence": "#"}, "groups": {"all": ["i"]}}
OWN_FACTS = {"inventory": VOWELS, "language": "es"}
OWN_FILES = {
    "lm.arpa": OWN_ARPA,
    "lexicon.txt": "sí s i #\nno n o #\n",
    "tokens.txt": "_\n#\ni\no\nn\ns\n",
    "lm.json": json.dumps(OWN_FACTS),
}


def other_facts(**changes: object) -> Change:
    return facts(json.dumps(OWN_FACTS | changes))


def other_inventory(**changes: object) -> Change:
    return other_facts(inventory=VOWELS | changes)


OWN_TOKENS = [
    Damage("a token less", write("tokens.txt", "_ # i o n"), r"line 1: unknown phoneme 's'"),
    Damage("a token twice", write("tokens.txt", "_ # i o n s s"), "'s' is there twice"),
    Damage("the blank as the second", write("tokens.txt", "# _ i o n s"), "the blank '_' is token 1; make it the first"),
    Damage("another blank", write("tokens.txt", "x # i o n s"), "the blank '_' is none of its symbols"),
    Damage("300 tokens", write("tokens.txt", " ".join(map(str, range(300)))), "300 tokens; 2 to 250 are possible"),
    Damage("a token of 41 letters", write("tokens.txt", "_ # " + "i" * 41 + " o n s"), "is no symbol"),
    Damage("no facts", facts("{}"), "tokens.txt: lacks AA, AE"),
    Damage("an inventory by its name", facts('{"inventory": "arpabet"}'), "lm.json .*inventory is no mapping"),
    Damage("an unknown key", other_facts(inventory={"name": "v", "rolls": {}}), "unknown key 'rolls'"),
    Damage("roles that are a list", other_inventory(roles=["_"]), "inventory.roles is "),
    Damage("a role that is none", other_inventory(roles={"blank": "_", "rest": "#"}), "unknown role 'rest'"),
    Damage("two roles of a symbol", other_inventory(roles={"blank": "_", "silence": "_"}), "two roles have one symbol"),
    Damage("a silence and a boundary", other_inventory(roles={"blank": "_", "silence": "#", "boundary": "i"}), "it has a silence and a boundary"),
    Damage("a group that is a text", other_inventory(groups={"all": "i"}), "inventory.groups is "),
    Damage("a group without a name", other_inventory(groups={"": ["i"]}), "'' is no group"),
    Damage("an unknown unit of tokens", other_inventory(unit="letter"), "unit is 'letter'"),
    Damage("an unknown language", other_facts(language="sp"), "unknown language 'sp'"),
    Damage("an open vocabulary of phonemes", other_facts(unit="character"), "open vocabulary of phonemes is not possible"),
    Damage("a list as a unit", other_facts(unit=["word"]), r"unit is \['word'\]; word or character"),
    Damage("a word without its end", write("lexicon.txt", "sí s i\n"), r"line 1: the pronunciation of 'sí' does not end with #"),
]  # fmt: skip
LEXICONS = [
    Damage("no folder", shutil.rmtree, "no such directory"),
    Damage("no model", remove("lm.bin"), "no lm.bin or lm.arpa"),
    Damage("a pipe as a model", pipe("lm.bin"), "no lm.bin or lm.arpa"),
    Damage("half of a model", cut("lm.bin", 0.5), "lm.bin: "),
    Damage("words of escapes", escapes, "lm.arpa, line 14: "),
    Damage("an empty folder", lambda folder: [path.unlink() for path in folder.iterdir()], "lexicon.txt: cannot read the lexicon"),
    Damage("no lexicon", remove("lexicon.txt"), "lexicon.txt: .*No such file"),
    Damage("an empty lexicon", write("lexicon.txt", ""), "no pronunciations"),
    Damage("a lexicon of zeros", write("lexicon.txt", bytes(1000)), "lexicon.txt, line 1"),
    Damage("a lexicon of other bytes", write("lexicon.txt", b"\xff\xff" * 99), "lexicon.txt: cannot read"),
    Damage("a lexicon of marks of byte order", write("lexicon.txt", b"\xff\xfe" * 99), "lexicon.txt, line 1: the pronunciation of"),
    Damage("a pipe as a lexicon", pipe("lexicon.txt"), "lexicon.txt: .*not a regular file"),
    Damage("a link to itself as a lexicon", link("lexicon.txt", "lexicon.txt"), "lexicon.txt: "),
    Damage("a device as a lexicon", link("lexicon.txt", "/dev/zero"), "lexicon.txt: .*not a regular file"),
    Damage("an unknown phoneme", write("lexicon.txt", "go G OE SIL\n"), "line 1: unknown phoneme"),
    Damage(
        "an unknown phoneme of the second line", write("lexicon.txt", "go G OW SIL\nhome D QQ SIL\n"), r"lexicon.txt, line 2: unknown phoneme 'QQ'"
    ),
    Damage("a phoneme of escapes", write("lexicon.txt", f"go {ESCAPE} SIL\n"), "line 1: unknown phoneme"),
    Damage("a phoneme of 20 MB", write("lexicon.txt", lambda: f"go {'G' * 20_000_000} SIL\n"), "line 1: unknown phoneme"),
    Damage("a word of 20 MB", write("lexicon.txt", lambda: f"{'g' * 20_000_000} G OW\n"), "line 1: .*does not end with SIL"),
    Damage("20 MB of phonemes", write("lexicon.txt", lambda: f"go{' G OW' * 4_000_000} SIL\n"), "line 1: .*phonemes"),
    Damage("a weight of NaN", write("lexicon.txt", "go\tnan G OW SIL\n"), "line 1: weight nan"),
    Damage("a weight of 1e999", write("lexicon.txt", "go\t1e999 G OW SIL\n"), "line 1: weight inf"),
    Damage("a weight of 400 digits", write("lexicon.txt", f"go\t1{'0' * 400} G OW SIL\n"), "line 1: weight inf"),
    Damage("a weight of 5,000 digits", write("lexicon.txt", f"go\t1{'0' * 5000} G OW SIL\n"), "line 1: weight inf"),
    Damage("a tiny weight", write("lexicon.txt", "go\t5e-324 G OW SIL\n"), command="decode --fake-text go --lm FOLDER"),
    Damage(
        "a word of 40,000 pronunciations",
        write("lexicon.txt", lambda: "".join(f"go {spelt(number)} SIL\n" for number in range(40_000))),
        "more than 1,000 pronunciations",
    ),
]  # fmt: skip
TOKENS = [
    Damage("tokens that lack some", write("tokens.txt", "BLANK SIL AA"), "tokens.txt: lacks AE, AH"),
    Damage("no tokens", remove("tokens.txt"), "tokens.txt: cannot read the tokens"),
    Damage("empty tokens", write("tokens.txt", ""), "tokens.txt: lacks"),
    Damage("tokens twice", twice, "tokens.txt: has tokens more than once"),
    Damage("tokens of escapes", write("tokens.txt", f"{ESCAPE}\n" * 41), "tokens.txt: lacks"),
    Damage("a pipe as tokens", pipe("tokens.txt"), "tokens.txt: .*not a regular file"),
    Damage("20 MB of tokens", write("tokens.txt", lambda: "AA " * 7_000_000), "tokens.txt: "),
    Damage("tokens of 64 GB", sparse("tokens.txt", 64 * GIB), "tokens.txt: "),
]  # fmt: skip
FACTS = [
    Damage("empty facts", facts(""), "lm.json: not valid JSON"),
    Damage("deep facts", facts("[" * 100_000), "lm.json: "),
    Damage("deep objects", facts('{"a":' * 100_000 + "1" + "}" * 100_000), "lm.json: "),
    Damage("facts 500 deep", facts('{"a":' * 500 + "1" + "}" * 500)),
    Damage("a list as facts", facts("[]"), "lm.json: not valid JSON: it is a"),
    Damage("a number of 5,000 digits", facts('{"order": 1%s}' % ("0" * 5000)), ""),
    Damage("a number of 400 digits", facts('{"vocabulary": 1%s}' % ("0" * 400))),
    Damage("a number of 1e400", facts('{"vocabulary": 1e400, "discounts": NaN}')),
    Damage("texts for numbers", facts('{"order": "x", "counts": "y", "kind": 5, "sources": 7, "bytes": []}')),
    Damage("facts of escapes", facts(json.dumps({ESCAPE: ESCAPE, "sources": [{"path": ESCAPE}]}, ensure_ascii=False))),
    Damage("lone surrogates", facts('{"kind": "\\ud800", "\\ud801": "\\ud802"}')),
    Damage("facts of other bytes", write("lm.json", b'{"kind": "\xff"}'), "lm.json: "),
    Damage("a pipe as facts", pipe("lm.json")),
    Damage("an inventory of a number", facts('{"inventory": 5}'), "inventory is no mapping"),
    Damage("an inventory of escapes", facts(json.dumps({"inventory": {"name": ESCAPE}}, ensure_ascii=False)), "inventory.name is "),
    Damage("100,000 groups", facts(lambda: json.dumps({"inventory": {"name": "x", "groups": {str(n): [] for n in range(10**5)}}}))),
    Damage(
        "a group of a million tokens",
        facts(lambda: json.dumps({"inventory": {"name": "x", "groups": {"all": ["AA"] * 10**6}}})),
        "names 'AA', which is no spoken symbol or is named twice",
    ),
    Damage("a language of escapes", facts(json.dumps({"language": ESCAPE})), "unknown language"),
    Damage(
        "a language of all characters",
        facts(json.dumps({"language": {"name": "all", "letters": "\u0001-\U0010ffff"}})),
        "no letter or range of letters",
    ),
    Damage("a language of a million letters", facts(json.dumps({"language": {"name": "x", "letters": "a" * 10**6}})), "language.letters is 'aaa"),
    Damage("an open vocabulary of phonemes", facts('{"unit": "character"}'), "is not possible"),
    Damage("a list as a kind", facts('{"kind": ["spelling"]}'), command="lm score FOLDER FOLDER/text.txt"),
]  # fmt: skip


def greedy_xz(content: bytes) -> bytes:
    """Return content whose xz header asks for more memory than any text needs."""
    whole = bytearray(lzma.compress(content, format=lzma.FORMAT_XZ))
    at = whole.index(b"\x21\x01") + 2  # LZMA2's properties: the size of its dictionary
    whole[at] = 37  # 1.5 GiB
    size = (whole[12] + 1) * 4
    whole[12 + size - 4 : 12 + size] = struct.pack("<I", zlib.crc32(whole[12 : 12 + size - 4]))
    return bytes(whole)


INFO = "lm info FOLDER"
SCORE = "lm score FOLDER FOLDER/text.txt"
BUILD = "lm build FOLDER/text.txt --out FOLDER/out --order 2"
OWN = f"{BUILD} --lexicon FOLDER/own.txt"
TEXTS = [
    Damage("no text", remove("text.txt"), "text.txt", SCORE),
    Damage("an empty text", write("text.txt", ""), "no sentence", SCORE),
    Damage("a text of zeros", write("text.txt", bytes(3 * 10**6)), "no sentence", SCORE),
    Damage("a text of one line of 25 MB", write("text.txt", "go home " * 3_000_000), "", SCORE),
    Damage("a text of escapes", write("text.txt", f"go home {ESCAPE}\n"), "", SCORE),
    Damage("a bomb as a text", write("text.gz", bomb(b"go home\n", 100, b"x")), "", "lm score FOLDER FOLDER/text.gz"),
    Damage("a text of xz that asks for 1.5 GB", write("text.txt", lambda: greedy_xz(b"go home\n")), "Memory usage limit", SCORE),
    Damage("half of an xz", write("text.txt", lzma.compress(b"go home\n")[:40]), "text.txt", SCORE),
    Damage("a bzip2 of noise", write("text.txt", b"BZh9" + bytes(99)), "text.txt", SCORE),
    Damage("half of a UTF-16 letter", write("text.txt", b"\xff\xfeg\0o"), "UTF-16", SCORE),
    Damage("a lone surrogate of UTF-16", write("text.txt", b"\xff\xfe\0\xd8"), "UTF-16", SCORE),
    Damage("a lexicon of escapes to build on", write("own.txt", f"go {ESCAPE}\n"), "own.txt: .* is no symbol", OWN),
    Damage("a lexicon of one line of 2 MB", write("own.txt", lambda: "go " + "G . " * 500_000), "own.txt, line 1: 'go' has", OWN),
    Damage("a lexicon of comments", write("own.txt", "# x\n;;; y\n" * 9), "own.txt", OWN),
    Damage("a lexicon of numbers", write("own.txt", "go 0.0 0 0 0\n"), "own.txt, line 1", OWN),
    Damage("a lexicon of outputs", write("own.txt", "go [go]\nhome [home]\n"), "own.txt", OWN),
    Damage("a lexicon of dividers", write("own.txt", "go . . .\nhome . =\n"), "own.txt", OWN),
    Damage("a vocabulary that is a letter", write("text.txt", "go home.\n"), "vocabulary", f"{BUILD} --vocab ²"),
    Damage("a vocabulary of 5,000 digits", write("text.txt", "go home.\n"), "", f"{BUILD} --vocab {'9' * 5000}"),
    Damage("a pruning that is a letter", write("text.txt", "go home.\n"), "", f"{BUILD} --prune ²"),
    Damage("a pruning of 5,000 digits", write("text.txt", "go home.\n"), "", f"{BUILD} --prune {'9' * 5000}"),
    Damage("an order of 10^30", write("text.txt", "go home.\n"), "order", f"lm build FOLDER/text.txt --out FOLDER/out --order {10**30}"),
]  # fmt: skip


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that any of the commands can use."""
    folder = write_model(tmp_path_factory.mktemp("sound"))
    _native.write_binary(folder / "lm.arpa", folder / "lm.bin")
    (folder / "lm.arpa").unlink()
    (folder / "text.txt").write_text("go home\n")
    return folder


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model of one's own tokens, written by hand."""
    folder = tmp_path_factory.mktemp("own")
    for name, content in OWN_FILES.items():
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize("command", [INFO, SCORE, "decode --fake-text go --lm FOLDER"])
def test_the_folder_itself_is_sound(sound: Path, command: str) -> None:
    assert run([word.replace("FOLDER", str(sound)) for word in command.split()]) == 0


def test_the_model_of_other_tokens_is_sound(own: Path) -> None:
    assert run(["lm", "info", str(own)]) == 0


@pytest.mark.parametrize("table", [LEXICONS, TOKENS, FACTS], ids=["lexicons", "tokens", "facts"])
def test_a_damaged_model_is_refused_in_one_line(
    sound: Path, tmp_path: Path, table: list[Damage]
) -> None:
    check_damages(sound, table, INFO, tmp_path)


def test_damage_to_a_model_of_other_tokens_is_refused_in_one_line(
    own: Path, tmp_path: Path
) -> None:
    check_damages(own, OWN_TOKENS, INFO, tmp_path)


def test_damaged_texts_and_lexicons_are_refused_in_one_line(sound: Path, tmp_path: Path) -> None:
    check_damages(sound, TEXTS, SCORE, tmp_path)
