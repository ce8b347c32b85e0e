"""Sentences that the simulated participant attempts, split into train, val, test and LM text.

Half of the sentences are hand-written (`text/home.txt`, `people.txt`, `care.txt`, `world.txt`),
half come from the grammar (`text/grammar.txt`). Nothing of the validation or test text can be known
to a language model built from the LM text: no five-word sequence of theirs occurs in it, no shorter
sentence of theirs as a whole, and none of their grammar sentences comes from a template that writes
LM text. Words are compared as the language normalises them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import zip_longest
from pathlib import Path
from typing import Literal

import numpy as np

from cortext.data.trial import MAX_LABEL
from cortext.errors import TextError
from cortext.text import normalize
from cortext.text.files import read_text
from cortext.text.language import EN, Language
from cortext_data.simulate import grammar
from cortext_data.simulate.streams import Purpose, stream

HANDWRITTEN_FILES = ("home.txt", "people.txt", "care.txt", "world.txt")
N_LM_GRAMMAR = 6_000
"""Grammar sentences in the LM text, beside the training sentences."""
MAX_HELD_SHARE = 0.2
"""Val and test each take at most this share of the hand-written sentences.

Beyond it they repeat their own.
"""
MOST_BYTES = 4 << 20
"""Most bytes of a file of sentences: some 100,000, which take seconds to split."""
SEQUENCE_WORDS = 5
"""No sequence of so many words of val or test occurs in train or LM text."""


@dataclass(frozen=True)
class PromptedSentence:
    """One sentence to say.

    `template` is the grammar template that wrote it, None for text written by a person.
    """

    text: str
    source: Literal["handwritten", "grammar"]
    template: str | None


@dataclass(frozen=True)
class SentenceSplits:
    """Sentences of the three splits, and distinct sentences for building a language model."""

    train: list[PromptedSentence]
    val: list[PromptedSentence]
    test: list[PromptedSentence]
    lm: list[str]


def handwritten() -> list[PromptedSentence]:
    """Return all hand-written sentences of the package, in the files' order, each once."""
    return list(_handwritten())


def splits(
    n_train: int,
    n_val: int,
    n_test: int,
    seed: int,
    *,
    text: Sequence[str] | None = None,
    language: Language = EN,
) -> SentenceSplits:
    """Draw exactly `n_train`, `n_val` and `n_test` sentences, and the LM text that goes with them.

    It is a pure function of its arguments.

    Each split is half hand-written (the odd one too) and half grammar; training fills up with
    grammar sentences when too few hand-written ones are left. A split repeats its own sentences
    only when it asks for more than exist: val and test beyond a fifth of the hand-written text
    each.

    Args:
        n_train: Training sentences.
        n_val: Validation sentences.
        n_test: Test sentences.
        seed: Seed of the draws.
        text: Sentences to use instead of the package's own. The seed splits them 80/10/10, and
            every split repeats its part as often as needed.
        language: Language of `text`.

    Raises:
        TextError: If `text` is too small to be split.
    """
    if text is not None:
        return _splits_of_text(
            text, {"train": n_train, "val": n_val, "test": n_test}, seed, language
        )
    # One generator shuffles the text, val, test and train, in this order: another order would give
    # every seed other sentences.
    rng = _generator(seed, "text", 0)
    written = _shuffled(handwritten(), rng)
    n_max = int(MAX_HELD_SHARE * len(written))
    n_held = {"val": min(-(-n_val // 2), n_max), "test": min(-(-n_test // 2), n_max)}
    held_written = {
        "val": written[: n_held["val"]],
        "test": written[n_held["val"] : sum(n_held.values())],
    }
    held = {
        "val": _mixed(held_written["val"], _drawn("val", n_val // 2, seed), n_val, rng),
        "test": _mixed(held_written["test"], _drawn("test", n_test // 2, seed), n_test, rng),
    }
    known = Known(sentence.text for split in held.values() for sentence in split)
    free_written = [
        sentence for sentence in written[sum(n_held.values()) :] if not known.shares(sentence.text)
    ]
    # A tenth more than needed: some of the grammar's sentences share a sequence with val or test.
    pool = _drawn("lm", int(1.1 * (n_train + N_LM_GRAMMAR)), seed)
    free_grammar = [sentence for sentence in pool if not known.shares(sentence.text)]
    train = _mixed(free_written[: -(-n_train // 2)], free_grammar[:n_train], n_train, rng)
    others = [*free_written, *free_grammar[: n_train // 2 + N_LM_GRAMMAR]]
    return SentenceSplits(
        train, held["val"], held["test"], _distinct(sentence.text for sentence in [*train, *others])
    )


def read_sentences(
    path: str | Path, language: Language = EN, too_long: int = MAX_LABEL
) -> list[str]:
    """Read the sentences of a text file, one a line; lines without a word are passed over.

    Args:
        path: The file, which is not trusted.
        language: Language of the sentences.
        too_long: Characters that no sentence may have.

    Raises:
        TextError: If the file is missing, larger than `MOST_BYTES`, not UTF-8, holds no sentence,
            one too long for a session file, or letters that the language lacks, with their lines.
    """
    try:
        text = read_text(Path(path), MOST_BYTES)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TextError(
            f"cannot read text: {reason}", where=path, fix="give a file with one sentence a line"
        ) from None
    except UnicodeDecodeError as error:
        fix = "save it as UTF-8, one sentence a line"
        raise TextError(f"not UTF-8 text (byte {error.start})", where=path, fix=fix) from None
    except ValueError as error:
        raise TextError(f"cannot read text: {error}", where=path, fix="give a text file") from None
    sentences = [" ".join(line.split()) for line in text.splitlines() if language.words(line)]
    if not sentences:
        raise TextError(
            "no sentence found, expected one a line", where=path, fix="give a file with text"
        )
    lost: dict[str, list[str]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if letters := language.damage(line):
            lost.setdefault(letters, []).append(f"line {number}")
    if lost:
        refused = language.refused(lost)
        raise TextError(refused.what, where=f"{path}, {refused.where}", fix=refused.fix)
    longest = max(sentences, key=len)
    if len(longest) >= too_long:
        problem = (
            f"a line of {len(longest)} characters found ({longest[:30]!r} ...), under {too_long}"
            " expected"
        )
        raise TextError(problem, where=path, fix="put each sentence on a line of its own")
    return sentences


class Known:
    """The word sequences of some sentences: what must not occur elsewhere."""

    def __init__(self, sentences: Iterable[str], language: Language = EN) -> None:
        self._language = language
        self._sequences = {
            sequence for sentence in sentences for sequence in _sequences(sentence, language)
        }

    def shares(self, sentence: str) -> bool:
        """Return whether the sentence holds a five-word sequence, or a whole sentence, of these."""
        return not self._sequences.isdisjoint(_sequences(sentence, self._language))


def with_names(
    sentences: Sequence[PromptedSentence], share: float, seed: int, split: int
) -> list[str]:
    """Return the texts of sentences; a share of them calls somebody by a name of `text/names.txt`.

    The names are in neither the dictionary nor the LM text: a decoder's lexicon lacks them.

    Args:
        sentences: The sentences of a split.
        share: Share of them that get a name, at the end.
        seed: Seed of the draws.
        split: Number of the split.
    """
    names = (resources.files(__package__) / "text" / "names.txt").read_text("ascii").split()
    generator = stream(seed, Purpose.NAMES, trial=split)
    chosen = generator.permutation(len(sentences))[: round(share * len(sentences))]
    texts = [sentence.text for sentence in sentences]
    for place in chosen:
        name = names[int(generator.integers(len(names)))]
        text = texts[place]
        stem = text.rstrip(".!?")
        texts[place] = f"{stem}, {name}{text[len(stem) :]}"
    return texts


def _sequences(sentence: str, language: Language) -> list[tuple[str, ...]]:
    """Return every five-word sequence of the normalised sentence; a shorter one is its only one."""
    words = language.normalize(sentence).split()
    n = max(1, len(words) - SEQUENCE_WORDS + 1)
    return [tuple(words[start : start + SEQUENCE_WORDS]) for start in range(n)]


def _generator(
    seed: int, purpose: Literal["text", "lm", "val", "test"], step: int
) -> np.random.Generator:
    """Return a counter-based generator: one purpose's draws never depend on another's."""
    stream = ("text", "lm", "val", "test").index(purpose)
    return np.random.Generator(np.random.Philox(key=[seed, 2 * stream + step]))


@cache
def _handwritten() -> tuple[PromptedSentence, ...]:
    folder = resources.files(__package__) / "text"
    lines = [
        line.strip()
        for name in HANDWRITTEN_FILES
        for line in (folder / name).read_text("ascii").splitlines()
    ]
    return tuple(
        PromptedSentence(line, "handwritten", None)
        for line in _distinct(line for line in lines if line)
    )


def _distinct(sentences: Iterable[str], language: Language = EN) -> list[str]:
    """Return the sentences without those whose words all equal an earlier one's, in order."""
    first: dict[str, str] = {}
    for sentence in sentences:
        first.setdefault(language.normalize(sentence), sentence)
    return list(first.values())


def _drawn(split: Literal["lm", "val", "test"], n: int, seed: int) -> list[PromptedSentence]:
    """Draw `n` different sentences or more, evenly from all templates; fewer if they run out."""
    rules = grammar.load()
    templates = [rule for rule in rules.templates if rule.split == split]
    quota = 6 * n // (5 * len(templates)) + 1  # some templates have fewer
    sentences: list[PromptedSentence] = []
    while len(sentences) < n:
        writer = grammar.Writer(rules, _generator(seed, split, 0))
        columns = [
            [PromptedSentence(s, "grammar", rule.name) for s in writer.sentences(rule, quota)]
            for rule in templates
        ]
        n_before = len(sentences)
        dealt = (
            sentence for row in zip_longest(*columns) for sentence in row if sentence is not None
        )
        sentences = list({normalize(sentence.text): sentence for sentence in dealt}.values())
        if len(sentences) == n_before:
            break
        quota *= 2
    # Within one deal of the templates the order is by chance, or a small split would see the first
    # families only.
    rng = _generator(seed, split, 1)
    deals = [
        sentences[start : start + len(templates)]
        for start in range(0, len(sentences), len(templates))
    ]
    return [sentence for deal in deals for sentence in _shuffled(deal, rng)]


def _mixed(
    written: Sequence[PromptedSentence],
    generated: Sequence[PromptedSentence],
    n: int,
    rng: np.random.Generator,
) -> list[PromptedSentence]:
    """Return `n` sentences in random order: written, then generated, repeated if too few."""
    n_written = min(len(written), -(-n // 2))
    chosen = [*written[:n_written], *generated[: n - n_written]]
    return _shuffled(_repeated(chosen, n), rng)


def _repeated(items: Sequence[PromptedSentence], n: int) -> list[PromptedSentence]:
    return [items[i % len(items)] for i in range(n)]


def _shuffled(
    items: Sequence[PromptedSentence], rng: np.random.Generator
) -> list[PromptedSentence]:
    return [items[i] for i in rng.permutation(len(items))]


def _splits_of_text(
    text: Sequence[str], counts: Mapping[str, int], seed: int, language: Language
) -> SentenceSplits:
    rng = _generator(seed, "text", 0)
    distinct = _distinct(text, language)
    pool = _shuffled([PromptedSentence(line, "handwritten", None) for line in distinct], rng)
    if len(pool) < 3:
        raise TextError(
            f"{len(pool)} different sentences are too few to split into train, val and test",
            fix="give at least 3",
        )
    n_held = max(1, len(pool) // 10)
    val = pool[:n_held]
    test = pool[n_held : 2 * n_held]
    rest = pool[2 * n_held :]
    known = Known((sentence.text for sentence in [*val, *test]), language)
    train = [sentence for sentence in rest if not known.shares(sentence.text)]
    if not train:
        raise TextError(
            f"{len(pool)} different sentences are too few to split: every one left for training"
            f" shares {SEQUENCE_WORDS} words in a row with the {len(val) + len(test)} of val and"
            " test",
            fix="give more, and more varied, sentences",
        )
    return SentenceSplits(
        _repeated(train, counts["train"]),
        _repeated(val, counts["val"]),
        _repeated(test, counts["test"]),
        [sentence.text for sentence in train],
    )
