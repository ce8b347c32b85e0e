"""Texts, read once: sentences as word numbers on the disk, words, and counts of each source."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cortext.arguments import check_list, check_type
from cortext.decoding.ngram.vocabulary import BOS_ID, EOS_ID, SPECIAL
from cortext.errors import LanguageModelError, TextError
from cortext.processes import Progress
from cortext.text import prose
from cortext.text.files import DECOMPRESSION_ERRORS, open_text
from cortext.text.language import EN, Language
from cortext.text.sentences import sentences

Respell = Callable[[str], Iterator[str]]


def silent(done: int, total: int) -> None:
    """Report no progress."""


_BLOCK = 1 << 20
"""Most word numbers of a text that are held at once."""

_LINES = 1 << 12
"""Lines between two reports of progress."""

_LONGEST = 1 << 20
"""Most characters of a line that are held at once."""


@dataclass
class Corpus:
    """One text or several as word numbers.

    Attributes:
        words: Words by number; the first three are <unk>, <s> and </s>.
        counts: Number of times that each occurs, int64 [len(words)].
        files: int32 word numbers on the disk, `<s> ... </s>` after each other; one file for all
            texts or one for each.
        sources: Path (null for sentences given directly), sentences and words of each text.
        report: Counts of kept and rejected text, with reasons (`cortext.text.prose.Report`).
    """

    words: list[str] = field(default_factory=lambda: list(SPECIAL))
    counts: np.ndarray = field(default_factory=lambda: np.zeros(3, np.int64))
    files: list[Path] = field(default_factory=list)
    sources: list[dict[str, Any]] = field(default_factory=list)
    report: prose.Report = field(default_factory=prose.Report)


class _Numbers(dict[str, int]):
    """Word numbers in the order of first occurrence; pieces without a letter have -1.

    They are words, too, where `marks` says so.
    """

    def __init__(self, words: list[str], marks: bool) -> None:
        super().__init__((word, number) for number, word in enumerate(words))
        self.words = words
        self.marks = marks

    def __missing__(self, word: str) -> int:
        number = -1
        if self.marks or word.strip("-'"):
            number = len(self.words)
            self.words.append(word)
        self[word] = number
        return number


def read_corpus(
    texts: Sequence[Path | list[str]],
    directory: Path,
    *,
    apart: bool = False,
    respell: Respell | None = None,
    progress: Progress = silent,
    language: Language = EN,
    skip_damaged: bool = False,
    marks: bool = False,
) -> Corpus:
    """Read texts, each line of which holds one or more sentences, into files of word numbers.

    Args:
        texts: Files (plain, .gz, .bz2 or .xz), and lists of sentences (`grouped`).
        directory: Directory of the files.
        apart: Write one file of word numbers for each text instead of one for all.
        respell: Turns each sentence into others, such as its words letter by letter.
        progress: Called with bytes read and in all.
        language: Language of the texts.
        skip_damaged: Leave out and count sentences with letters that the language lacks.
        marks: Keep apostrophes and hyphens that stand alone, as in an open vocabulary.

    Raises:
        LanguageModelError: For texts that are missing, unreadable or without a sentence, or that
            the language would damage.
    """
    corpus = Corpus()
    done = 0
    total = sum(_size(text) for text in texts)
    numbers = _Numbers(corpus.words, marks)
    for text in texts:
        read = (
            # The generator is used up before `done` changes.
            text_lines(text, lambda here: progress(done + here, total))  # noqa: B023
            if isinstance(text, Path)
            else iter(text)
        )
        name = str(text) if isinstance(text, Path) else "the given sentences"
        kept = sentences(read, language, corpus.report, skip_damaged=skip_damaged, where=name)
        if respell:
            kept = (piece for sentence in kept for piece in respell(sentence))
        if apart or not corpus.files:
            corpus.files.append(directory / f"text{len(corpus.files)}.i32")
        with damage_refused(", or leave such sentences out (--skip-damaged)"):
            source = _encode(kept, numbers, corpus.files[-1])
        if apart and not source["sentences"]:
            raise LanguageModelError(
                "no sentence in the text", where=text if isinstance(text, Path) else None
            )
        corpus.sources.append({"path": str(text) if isinstance(text, Path) else None} | source)
        done += _size(text)
    if not any(source["sentences"] for source in corpus.sources):
        raise _no_sentence(texts, corpus.report, language)
    corpus.counts = sum(
        (_counts(file, len(corpus.words)) for file in corpus.files), np.zeros(1, np.int64)
    )
    return corpus


@contextmanager
def damage_refused(option: str = "") -> Iterator[None]:
    """Turn the error of damaged text into that of a language model; `option` ends it."""
    try:
        yield
    except TextError as error:
        raise LanguageModelError(
            error.what, where=error.where, fix=f"{error.fix}{option}"
        ) from None


def _no_sentence(
    texts: Sequence[Path | list[str]], report: prose.Report, language: Language
) -> LanguageModelError:
    """Return the error for texts of which nothing was kept, with the reasons."""
    where = ", ".join(str(text) for text in texts if isinstance(text, Path))
    rejected = "".join(
        f", {count} rejected as {reason}" for reason, count in report.rejected.items()
    )
    if report.sentences:  # which only respelling can have left out
        return LanguageModelError(
            f"the tokens spell none of the {report.sentences:,} sentences",
            where=where or None,
            fix="give an inventory with the letters of the language",
        )
    wanted = "prose in English" if language.is_benchmark else f"text in {language.name!r}"
    return LanguageModelError(
        f"no sentence in {where or 'the texts'}{rejected}", fix=f"give {wanted}"
    )


def grouped(texts: Iterable[str | Path]) -> list[Path | list[str]]:
    """Return the files one by one, and sentences that were given directly as one list."""
    if isinstance(texts, str | Path):
        raise LanguageModelError(
            f"texts is {str(texts)!r}; a list of Paths and sentences is needed"
        )
    files: list[Path | list[str]] = []
    given: list[str] = []
    for text in check_list(texts, "texts", "a list of Paths and sentences"):
        check_type(text, (str, Path), "a text", "a sentence or a Path")
        if isinstance(text, Path):
            files.append(text)
        elif " " not in text and "/" in text and Path(text).is_file():
            raise LanguageModelError(
                f"the sentence {text!r} is the name of a file", fix="give it as a Path to read it"
            )
        else:
            given.append(text)
    return [*files, given] if given else files


def sentences_of(
    text: Path | list[str],
    respell: Respell | None = None,
    progress: Progress = silent,
    language: Language = EN,
) -> Iterator[str]:
    """Yield the normalised sentences of one text, as `read_corpus` takes them.

    Args:
        text: A file (plain, .gz, .bz2 or .xz), or a list of sentences.
        respell: See `read_corpus`.
        progress: Called with bytes of a file read and in all.
        language: Language of the text.

    Raises:
        LanguageModelError: For a text that is missing or unreadable, or that the language would
            damage.
    """
    size = _size(text)
    lines = (
        text_lines(text, lambda here: progress(here, size))
        if isinstance(text, Path)
        else iter(text)
    )
    name = str(text) if isinstance(text, Path) else "the given sentences"
    with damage_refused():
        for sentence in sentences(lines, language, where=name):
            yield from respell(sentence) if respell else (sentence,)


def blocks(file: Path, overlap: int = 0) -> Iterator[np.ndarray]:
    """Yield the word numbers of a file, int32, block by block.

    Each begins with the last `overlap` numbers before it.
    """
    before = np.full(overlap, BOS_ID, np.int32)
    with file.open("rb") as stream:
        while len(block := np.fromfile(stream, np.int32, _BLOCK)):
            joined = np.concatenate([before, block])
            before = joined[len(joined) - overlap :]
            yield joined


def _encode(sentences: Iterable[str], numbers: _Numbers, file: Path) -> dict[str, int]:
    """Append sentences to a file; return the numbers of sentences and of words."""
    n_sentences = n_words = 0
    buffer: list[int] = []
    with file.open("ab") as out:

        def flush() -> int:
            # -1 is a piece without a letter: it is in the sentence, but no word of the model.
            block = np.array(buffer, np.int32)
            block = block[block >= 0]
            block.tofile(out)
            buffer.clear()
            return len(block)

        for sentence in sentences:
            ids = [numbers[word] for word in sentence.split()]
            if any(number > 0 for number in ids):
                n_sentences += 1
                buffer += (BOS_ID, *ids, EOS_ID)
                if len(buffer) > _BLOCK:
                    n_words += flush()
        n_words += flush()
    return {"sentences": n_sentences, "words": n_words - 2 * n_sentences}


def _counts(file: Path, n_words: int) -> np.ndarray:
    counts = np.zeros(n_words, np.int64)
    for block in blocks(file):
        counts += np.bincount(block, minlength=n_words)
    return counts


def _size(text: Path | Sequence[str]) -> int:
    return text.stat().st_size if isinstance(text, Path) and text.is_file() else 0


def _bounded(text: io.TextIOWrapper) -> Iterator[str]:
    """Yield the lines of a stream.

    A line of more than `_LONGEST` characters comes in parts, so that a text without line ends does
    not have to fit into memory. A part closes with a sentence, or at least with a word.
    """
    rest = ""
    while read := text.readline(_LONGEST):
        line = rest + read
        rest = ""
        if len(read) == _LONGEST and read[-1] != "\n":
            cut = line.rfind(". ") + 1 or line.rfind(" ") + 1 or len(line)
            rest = line[cut:]
            line = line[:cut]
        yield line
    if rest:
        yield rest


def text_lines(path: Path, progress: Callable[[int], None]) -> Iterator[str]:
    """Yield the lines of a text, plain or compressed; `progress` gets the file's bytes read."""
    try:
        with path.open("rb") as raw, open_text(raw) as text:
            for number, line in enumerate(_bounded(text)):
                yield line
                if number % _LINES == 0 and raw.seekable():  # not a pipe
                    progress(raw.tell())
    except UnicodeDecodeError:
        raise LanguageModelError(
            "neither UTF-8 nor UTF-16 text", where=path, fix="save it as UTF-8"
        ) from None
    except DECOMPRESSION_ERRORS as error:
        reason = getattr(error, "strerror", None) or error
        raise LanguageModelError(f"cannot read the text: {reason}", where=path) from None
