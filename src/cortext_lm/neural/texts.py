"""Texts that a neural model learns from: normalised sentences of several sources.

Some sources are read more often than others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cortext.decoding.ngram.corpus import sentences_of
from cortext.errors import LanguageModelError
from cortext.processes import Progress

HELD_OUT_EVERY, HELD_OUT_MOST = 50, 500
"""Without a held-out text every 50th sentence of each source is held out, at most 500 of each."""


@dataclass(frozen=True)
class TextSource:
    """A text, and its readings for one reading of the others; 0.5 reads half of it each time."""

    path: Path
    factor: float = 1.0

    @classmethod
    def of(cls, text: str | Path) -> TextSource:
        """Return the source that `FILE` or `FILE:FACTOR` names; a file named so is itself."""
        match = re.fullmatch(r"(.+):(\d+(?:\.\d+)?)", str(text))
        if not match or Path(text).exists():
            return cls(Path(text))
        factor = float(match[2])
        if not 0 < factor <= 1000:
            raise LanguageModelError(
                f"factor {match[2]} is not possible", where=match[1], fix="give 0.01 to 1000"
            )
        return cls(Path(match[1]), factor)


@dataclass
class Texts:
    """Sentences to learn from, source by source, and sentences that are held out."""

    sources: list[TextSource] = field(default_factory=list)
    sentences: list[list[str]] = field(default_factory=list)
    held_out: list[str] = field(default_factory=list)

    def describe(self) -> list[dict[str, Any]]:
        """Return path, factor, sentences and words of each source."""
        return [
            {
                "path": str(source.path),
                "factor": source.factor,
                "sentences": len(sentences),
                "words": sum(sentence.count(" ") + 1 for sentence in sentences),
            }
            for source, sentences in zip(self.sources, self.sentences, strict=True)
        ]


def read_texts(
    sources: Sequence[TextSource],
    held_out: Path | None = None,
    progress: Callable[[str], Progress | None] = lambda _: None,
) -> Texts:
    """Read texts as `cortext lm build` does; sentences without a letter are passed over.

    Args:
        sources: The texts and their factors.
        held_out: Text to hold out; None: every 50th sentence of each source, at most 500 of each.
        progress: Called with the name of each stage as it begins; returns the stage's progress
            callback or None.

    Raises:
        LanguageModelError: For texts that are missing, unreadable or without a sentence, and for a
            held-out text that is one of them.
    """
    if held_out and held_out.resolve() in [source.path.resolve() for source in sources]:
        raise LanguageModelError("the held-out text is one of the texts", where=held_out)
    texts = Texts(list(sources))
    for source in sources:
        bar = progress(f"reading {source.path.name}")
        texts.sentences.append(read_sentences(source.path, bar))
    if held_out:
        texts.held_out = read_sentences(held_out)
        return texts
    for number, sentences in enumerate(texts.sentences):
        texts.held_out += sentences[::HELD_OUT_EVERY][:HELD_OUT_MOST]
        kept = [
            s
            for i, s in enumerate(sentences)
            if i % HELD_OUT_EVERY or i >= HELD_OUT_EVERY * HELD_OUT_MOST
        ]
        texts.sentences[number] = kept
    if not any(texts.sentences):
        raise LanguageModelError("one sentence is too little to learn from", where=sources[0].path)
    return texts


def read_sentences(path: Path, progress: Progress | None = None) -> list[str]:
    """Read the normalised sentences of a text, plain or .gz, without words that have no letter."""
    read = sentences_of(path, progress=progress) if progress else sentences_of(path)
    spoken = (" ".join(word for word in line.split() if word.strip("-'")) for line in read)
    sentences = [sentence for sentence in spoken if sentence]
    if not sentences:
        raise LanguageModelError("no sentence in the text", where=path, fix="give prose in English")
    return sentences


def batches(
    rows: Sequence[Sequence[Sequence[int]]], factors: Sequence[float], batch_tokens: int, seed: int
) -> Iterator[list[Sequence[int]]]:
    """Yield batches of token rows of about equal length, without an end.

    The order is a function of the seed.

    Args:
        rows: Rows of tokens of each source.
        factors: Readings of each source for one reading of those with factor 1.
        batch_tokens: Most tokens of a batch, padding included; a longer row is a batch by itself.
        seed: Seed of the order and of the parts that fractions of a factor choose.
    """
    epoch = 0
    while True:
        generator = np.random.default_rng([seed, epoch])
        chosen: list[Sequence[int]] = []
        for source, factor in zip(rows, factors, strict=True):
            chosen += list(source) * int(factor)
            part = round((factor - int(factor)) * len(source))
            chosen += [source[i] for i in generator.permutation(len(source))[:part]]
        if not chosen:
            raise LanguageModelError(
                "the factors leave no sentence to learn from", fix="give larger ones"
            )
        chosen = [chosen[i] for i in generator.permutation(len(chosen))]
        for first in range(0, len(chosen), _POOL):
            pool = chosen[first : first + _POOL]
            groups = list(length_batches(pool, batch_tokens))
            for number in generator.permutation(len(groups)):
                yield [pool[row] for row in groups[number]]
        epoch += 1


_POOL = 1 << 13
"""Number of sentences that are sorted by length together."""


def length_batches(rows: Sequence[Sequence[int]], batch_tokens: int) -> Iterator[list[int]]:
    """Yield numbers of rows, shortest first, in groups of at most `batch_tokens` padded tokens.

    A longer row is a group by itself.
    """
    group: list[int] = []
    for number in sorted(range(len(rows)), key=lambda row: len(rows[row])):
        if group and (len(group) + 1) * len(rows[number]) > batch_tokens:
            yield group
            group = []
        group.append(number)
    if group:
        yield group
