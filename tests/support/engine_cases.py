"""Small cases for the search: language models written by hand, and frames.

Random frames give probability to four of the 41 tokens only, so sentences stay few.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ngram_oracle import read_arpa

from cortext.text.inventory import LM, RELEASE, Inventory
from cortext.text.pronunciation import lexicon_for, to_phonemes

SYMBOLS = ("BLANK", "SIL", "AA", "B")
COLUMNS = [RELEASE.index[symbol] for symbol in SYMBOLS]
NEUTRAL = dict(acoustic_scale=1.0, word_score=0.0, sil_cost=0.0, beam=18.0)
"""Options under which a sentence's score is the plain sum of what its models say."""

UNLIMITED = dict(
    beam=1e6, lattice_beam=1e6, max_active=10**6, min_active=10, max_arcs=10**7, nbest=10**6
)
"""Options with which the search drops nothing."""

WIDE = NEUTRAL | UNLIMITED

Entry = tuple[str, str, float]
"""A word, a pronunciation of it (phonemes separated by blanks) and its weight."""


@dataclass(frozen=True)
class Grams:
    """A back-off n-gram model: natural logs of probabilities and back-off weights by n-gram."""

    order: int
    log_probs: Mapping[tuple[str, ...], float]
    backoffs: Mapping[tuple[str, ...], float]

    @classmethod
    def random(cls, order: int, seed: int, words: str = "abcd", structure: int = 0) -> Grams:
        """Any probabilities (they need not sum to 1).

        The set of n-grams depends on `structure` alone.
        """
        generator, chosen = np.random.default_rng(seed), np.random.default_rng(structure)
        levels: list[list[tuple[str, ...]]] = [
            [(word,) for word in ("<unk>", "<s>", "</s>", *words)]
        ]
        for length in range(2, order + 1):
            known = set(levels[-1])
            last = [("</s>",), *((word,) for word in words)]
            candidates = [before + word for before in levels[-1] for word in last]
            levels.append(
                [
                    gram
                    for gram in candidates
                    if gram[1:] in known
                    and "</s>" not in gram[:-1]
                    and "<unk>" not in gram
                    and chosen.random() < 0.7
                ]
            )
            assert levels[-1], length
        contexts = {gram[:-1] for level in levels for gram in level}
        log_probs = {
            gram: -float(generator.uniform(0.2, 5.0)) for level in levels for gram in level
        }
        log_probs["<s>",] = -99.0 * math.log(10)
        backoffs = {
            gram: -float(generator.uniform(0.0, 2.0)) for gram in log_probs if gram in contexts
        }
        return cls(order, log_probs, backoffs)

    @classmethod
    def counted(cls, texts: Iterable[str], order: int) -> Grams:
        """Relative frequencies times 0.8, and the rest for the shorter n-gram.

        Rough, but sentences come out of it.
        """
        counts: dict[tuple[str, ...], int] = defaultdict(int)
        for text in texts:
            said = ["<s>", *text.split(), "</s>"]
            for length in range(1, order + 1):
                for first in range(len(said) - length + 1):
                    counts[tuple(said[first : first + length])] += 1
        total = sum(count for gram, count in counts.items() if len(gram) == 1)
        log_probs = {
            gram: math.log(count / total) for gram, count in counts.items() if len(gram) == 1
        }
        log_probs |= {
            gram: math.log(0.8 * count / counts[gram[:-1]])
            for gram, count in counts.items()
            if len(gram) > 1
        }
        log_probs |= {("<unk>",): math.log(0.5 / total), ("<s>",): -99.0 * math.log(10)}
        backoffs = {gram[:-1]: math.log(0.2) for gram in counts if len(gram) > 1}
        return cls(order, log_probs, backoffs)

    @classmethod
    def read(cls, path: Path) -> Grams:
        """The model of an ARPA file."""
        arpa = read_arpa(path)
        names = {number: word for word, number in arpa.words.items()}
        log_probs, backoffs = (
            {tuple(names[number] for number in gram): value for gram, value in values.items()}
            for values in (arpa.probs, arpa.backoffs)
        )
        return cls(len(arpa.counts), log_probs, backoffs)

    def plus(self, other: Grams, weight: float) -> Grams:
        """The log-linear interpolation with a model of the same n-grams.

        Its scores are this one's plus `weight` times the other's.
        """
        assert self.log_probs.keys() == other.log_probs.keys()
        return Grams(
            self.order,
            {
                gram: value + weight * other.log_probs[gram]
                for gram, value in self.log_probs.items()
            },
            {gram: value + weight * other.backoffs[gram] for gram, value in self.backoffs.items()},
        )

    def log_prob(self, history: Sequence[str], word: str) -> float:
        """log p(word | history) by the definition of back-off; the history begins with <s>."""
        if (word,) not in self.log_probs:
            word = "<unk>"
        known = [each if (each,) in self.log_probs else "<unk>" for each in history]
        context, total = tuple(known[len(known) - min(self.order - 1, len(known)) :]), 0.0
        while (*context, word) not in self.log_probs:
            total += self.backoffs.get(context, 0.0)
            context = context[1:]
        return total + self.log_probs[(*context, word)]

    def sentence(self, words: Sequence[str], unk_score: float = 0.0) -> float:
        """log p(words </s> | <s>), with `unk_score` for each unknown word."""
        said = ["<s>", *words, "</s>"]
        total = sum(self.log_prob(said[:place], said[place]) for place in range(1, len(said)))
        return total + unk_score * sum((word,) not in self.log_probs for word in words)

    def arpa(self) -> str:
        """The model as ARPA text."""
        lines = ["\\data\\"]
        levels: dict[int, list[tuple[str, ...]]] = defaultdict(list)
        for gram in self.log_probs:
            levels[len(gram)].append(gram)
        lines += [f"ngram {length}={len(levels[length])}" for length in range(1, self.order + 1)]
        for length in range(1, self.order + 1):
            lines += ["", f"\\{length}-grams:"]
            for gram in levels[length]:
                line = f"{self.log_probs[gram] / math.log(10):.9f}\t{' '.join(gram)}"
                if length < self.order:
                    line += f"\t{self.backoffs.get(gram, 0.0) / math.log(10):.9f}"
                lines.append(line)
        return "\n".join([*lines, "", "\\end\\", ""])


def write_lm(
    directory: Path,
    entries: Iterable[Entry],
    grams: Grams,
    inventory: Inventory = LM,
    unit: str = "word",
) -> Path:
    """A language-model directory."""
    directory.mkdir(parents=True, exist_ok=True)
    closing = f" {inventory.silence}" if inventory.silence else ""
    lines = [f"{word}\t{weight!r} {phonemes}{closing}\n" for word, phonemes, weight in entries]
    (directory / "lexicon.txt").write_text("".join(lines))
    (directory / "tokens.txt").write_text("".join(f"{symbol}\n" for symbol in inventory.symbols))
    (directory / "lm.arpa").write_text(grams.arpa())
    if inventory != LM:
        own = {"name": inventory.name, "roles": inventory.roles, "unit": inventory.unit}
        (directory / "lm.json").write_text(json.dumps({"inventory": own, "unit": unit}))
    return directory


TEXTS = (
    "i want to go home",
    "we went there two days ago",
    "are you there",
    "i would like water too",
    "go there",
    "they would like to see their sea",
    "we want to see you",
)


def sentence_entries(texts: Iterable[str] = TEXTS) -> list[Entry]:
    """The pronunciations of the words of sentences.

    There are homophones (to, too, two; see, sea; there, their).
    """
    words = sorted({word for text in texts for word in text.split()})
    lexicon = lexicon_for(words)
    return [
        (word, " ".join(phonemes), 1.0)
        for word in words
        for phonemes in lexicon.pronunciations(word)
    ]


SENTENCES = Grams.counted(TEXTS, 3)


def random_frames(generator: np.random.Generator, n_frames: int, spread: float) -> np.ndarray:
    """Log-probabilities [P, 41] of the four tokens; the others have none."""
    x_PV = generator.normal(size=(n_frames, len(SYMBOLS))) * spread
    return in_release_order(x_PV - np.logaddexp.reduce(x_PV, axis=1, keepdims=True))


def in_release_order(x_PV: np.ndarray) -> np.ndarray:
    """Log-probabilities of the four tokens as those of all 41."""
    log_probs_PV = np.full((len(x_PV), len(RELEASE)), -np.inf, dtype=np.float32)
    log_probs_PV[:, COLUMNS] = x_PV
    return log_probs_PV


def spoken(tokens: str, strength: float = 8.0) -> np.ndarray:
    """Log-probabilities [P, 41] that clearly say one token per frame."""
    symbols = tokens.split()
    x_PV = np.zeros((len(symbols), len(RELEASE)))
    x_PV[np.arange(len(symbols)), [RELEASE.index[symbol] for symbol in symbols]] = strength
    return (x_PV - np.logaddexp.reduce(x_PV, axis=1, keepdims=True)).astype(np.float32)


def noise(n_frames: int, spread: float, seed: int = 0) -> np.ndarray:
    """Log-probabilities [P, 41] that say nothing."""
    x_PV = np.random.default_rng(seed).normal(size=(n_frames, len(RELEASE))) * spread
    return (x_PV - np.logaddexp.reduce(x_PV, axis=1, keepdims=True)).astype(np.float32)


def posteriors(
    sentence: str, noise: float = 1.0, seed: int = 0, strength: float = 6.0
) -> np.ndarray:
    """Log-probabilities [P, 41] of a sentence.

    One or two frames a phoneme, blanks between them, and noise.
    """
    rng, tokens = np.random.default_rng(seed), []
    for token in RELEASE.ids(to_phonemes(sentence)):
        tokens += [token] * rng.integers(1, 3) + [RELEASE.blank] * rng.integers(1, 3)
    x_PV = rng.normal(size=(len(tokens), len(RELEASE))) * noise
    x_PV[np.arange(len(tokens)), tokens] += strength
    return (x_PV - np.logaddexp.reduce(x_PV, axis=1, keepdims=True)).astype(np.float32)
