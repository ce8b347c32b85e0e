"""Attacks on casing models. A row says what is done to a file; each is refused in one line."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from random_casing import random_caser
from refusals import complaint, refused
from safetensors.torch import load_file, save_file

from cortext.models.storage import read_tensors, write_tensors
from cortext.text.language import EN, LANGUAGES
from cortext_live.casing import caser_for
from cortext_live.casing.model import read_caser, write_caser


@dataclass(frozen=True)
class Attack:
    """A change of a file.

    name: what is done
    do: called with its path
    says: a pattern that the line of the refusal has
    """

    name: str
    do: Callable[[Path], object]
    says: str


def card(text: str | None = None, **changes: Any) -> Callable[[Path], object]:
    """Write the file anew, with its checksum, and with another card."""

    def do(path: Path) -> None:
        tensors, metadata, _ = read_tensors(path)
        fields = json.loads(metadata["cortext_casing"]) | changes
        kept = {name: value for name, value in fields.items() if value is not ...}
        write_tensors(path, tensors, {"cortext_casing": text or json.dumps(kept)})

    return do


def tensor(name: str, value: torch.Tensor | None) -> Callable[[Path], object]:
    """Write the file anew, with its checksum, and with another tensor."""

    def do(path: Path) -> None:
        tensors, metadata, _ = read_tensors(path)
        tensors |= {} if value is None else {name: value}
        if value is None:
            del tensors[name]
        write_tensors(path, tensors, metadata)

    return do


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


HUGE_SHAPE = (
    b'{"choice.bias":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
)
BIAS = 9
"""Kinds of capitals and marks."""
ATTACKS = [
    Attack("none", lambda path: path.unlink(), "No such file"),
    Attack("nothing", lambda path: path.write_bytes(b""), "cannot be read"),
    Attack("a directory", directory, "cannot be read"),
    Attack("a pipe", pipe, "not a regular file"),
    Attack("a gigabyte", lambda path: os.truncate(path, 1 << 30), "1,073,741,824 bytes"),
    Attack("half of it", lambda path: os.truncate(path, path.stat().st_size // 2), "cannot be read"),
    Attack("a bit that flipped", flipped, "checksum"),
    Attack("a pickle", lambda path: torch.save({"a": torch.zeros(1)}, path), "cannot be read"),
    Attack("other weights", lambda path: save_file({"a": torch.zeros(1)}, path), "no casing model"),
    Attack("weights without a checksum", lambda path: save_file(load_file(path), path), "no casing model"),
    Attack("a shape of 4 TB", lambda path: path.write_bytes(len(HUGE_SHAPE).to_bytes(8, "little") + HUGE_SHAPE), "cannot be read"),
    Attack("NaN", tensor("choice.bias", torch.full((BIAS,), float("nan"))), "not finite"),
    Attack("infinity", tensor("choice.bias", torch.full((BIAS,), float("inf"))), "not finite"),
    Attack("a number that no float32 holds", tensor("choice.bias", torch.full((BIAS,), 1e300, dtype=torch.float64)), "not finite"),
    Attack("a tensor less", tensor("choice.bias", None), "'choice.bias' is missing"),
    Attack("a tensor more", tensor("more\x1b[31m", torch.zeros(1)), "none of its own"),
    Attack("another shape", tensor("choice.bias", torch.zeros(BIAS + 1)), "another shape"),
    Attack("no numbers", tensor("choice.bias", torch.zeros(0)), "another shape"),
    Attack("complex numbers", lambda path: save_file(load_file(path) | {"choice.bias": torch.zeros(BIAS, dtype=torch.complex64)}, path), "complex64"),
    Attack("a card that is no JSON", card("{"), "cannot be read"),
    Attack("a card that is a list", card("[]"), "a JSON object is needed"),
    Attack("a card of 100,000 levels", card("[" * 100_000), "levels|cannot be read"),
    Attack("another format", card(format_version=2), "its format is 2; this cortext reads 1"),
    Attack("no format", card(format_version=...), "its format is None"),
    Attack("no language", card(language=...), "the language is None"),
    Attack("a language of its own", card(language={"name": "x\x1b", "letters": "a"}), "language.name"),
    Attack("words in a list", card(known=["a"]), "lacks words"),
    Attack("a word twice", card(known="a a"), "one of them twice"),
    Attack("more words than rows", card(known="i see you all"), "another shape"),
    Attack("a million words", card(known=" ".join(map(str, range(1_000_000)))), "too many words"),
    Attack("a spelling that changes the word", card(spellings={"see": "Sea"}), "'Sea' is no spelling of 'see'"),
    Attack("a spelling with a mark", card(spellings={"see": "See."}), "is no spelling"),
    Attack("a spelling that is a number", card(spellings={"see": 1}), "is no spelling"),
    Attack("a terabyte of pieces", card(n_pieces=10**12), "n_pieces is 1000000000000"),
    Attack("a width of a text", card(width="8"), "width is '8'"),
    Attack("a width of true", card(width=True), "width is True"),
    Attack("no units", card(units=0), "units is 0"),
    Attack("other units", card(units=5), "another shape"),
    Attack("rules of a text", card(rules="no"), "lacks rules"),
    Attack("without rules", card(rules=False), "none of its own"),
    Attack("a field of its own", card(more=1), "fields that it should not have"),
    Attack("facts that are NaN", card('{"facts": NaN}'), "NaN"),
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("casing") / "case.safetensors"
    write_caser(path, random_caser())
    return path.read_bytes()


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_a_damaged_model_is_refused_in_one_line(
    attack: Attack, whole: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "case.safetensors"
    path.write_bytes(whole)
    assert caser_for(EN, path).show(["i see"])
    attack.do(path)
    with refused(attack.says, most_s=10):
        read_caser(path)


def test_a_model_of_another_language_is_refused(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "case.safetensors"
    path.write_bytes(whole)
    with refused("reads language 'en', and decoded text is 'es'"):
        caser_for(LANGUAGES["es"], path)


def test_a_language_of_the_same_name_with_other_letters_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "case.safetensors"
    write_caser(path, random_caser(LANGUAGES["es"]))
    card(language={"name": "spanish", "letters": "a-z"})(path)
    with refused("reads language 'spanish'"):
        caser_for(LANGUAGES["es"], path)


@pytest.mark.parametrize(
    "content",
    [b"\0" * 5000, b"A" * (3 << 20), b"A b.\n" * 5000, "\u202eA b.\n".encode() * 600, b"\xc3"],
    ids=["NUL", "a line of 3 MB", "one sentence", "marks of direction", "half a character"],
)
def test_text_that_nothing_can_be_learnt_from_is_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.txt").write_bytes(content)
    out = tmp_path / "case.safetensors"
    complaint(capsys, "lm", "train-case", tmp_path / "text.txt", "--out", out)
    assert not out.exists()


def test_a_sentence_without_an_end_takes_bounded_memory_and_time() -> None:
    caser = random_caser()
    words = "i see you mcgill " * 5000
    shown = caser.show([words])[0]
    assert len(shown.split()) == 20_000
