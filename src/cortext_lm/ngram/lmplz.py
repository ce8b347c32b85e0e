"""KenLM's own estimator, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from cortext.decoding.ngram.corpus import Corpus, blocks
from cortext.decoding.ngram.vocabulary import BOS_ID, EOS_ID
from cortext.errors import LanguageModelError


def find_lmplz() -> str:
    """Return the path of `lmplz`; raise LanguageModelError where it is not installed."""
    program = shutil.which("lmplz")
    if not program:
        fix = (
            "build KenLM and put its bin directory on PATH, or leave --engine out: the built-in one"
            " gives the same"
        )
        raise LanguageModelError("lmplz is not on PATH", fix=fix)
    return program


def run_lmplz(
    corpus: Corpus,
    vocabulary: Sequence[str],
    prune: Sequence[int],
    out: Path,
    directory: Path,
    memory_bytes: int,
) -> None:
    """Write the ARPA file `out` with lmplz.

    Args:
        corpus: The texts.
        vocabulary: The words to keep (lmplz --limit_vocab_file).
        prune: For each order, as in `counts.count`.
        out: File to write.
        directory: Directory of temporary files.
        memory_bytes: Bound on lmplz's memory.

    Raises:
        LanguageModelError: With the last line of lmplz's output.
    """
    words = directory / "vocabulary.txt"
    text = directory / "text.txt"
    words.write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    with text.open("w", encoding="utf-8") as file:
        for part in corpus.files:
            file.writelines(_lines(part, corpus.words))
    command = [
        find_lmplz(),
        "--order",
        str(len(prune)),
        "--prune",
        *map(str, prune),
        "--limit_vocab_file",
        str(words),
        "--discount_fallback",
        "--memory",
        f"{memory_bytes >> 20}M",
        "--temp_prefix",
        f"{directory}/lmplz",
        "--text",
        str(text),
        "--arpa",
        str(out),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
    except OSError as error:
        raise LanguageModelError(
            f"cannot run lmplz: {error.strerror or error}", where=command[0]
        ) from None
    if done.returncode or not out.is_file():
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        message = lines[-1].strip() if lines else "no message"
        raise LanguageModelError(
            f"lmplz ended with status {done.returncode}: {message}", where=command[0]
        )
    text.unlink()


def _lines(file: Path, words: Sequence[str]) -> Iterator[str]:
    """Yield the sentences of a file of word numbers as text."""
    names = [f" {word}" for word in words]
    names[BOS_ID] = ""
    names[EOS_ID] = "\n"
    for block in blocks(file):
        yield "".join([names[number] for number in block])
