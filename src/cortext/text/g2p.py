"""Graphemes to phonemes for words that the dictionary lacks: a joint-sequence model in NumPy.

Every letter of a word stands for zero, one or two phonemes. Such pairs ("graphones") follow an
n-gram model with modified Kneser-Ney smoothing, after Bisani & Ney, "Joint-sequence models for
grapheme-to-phoneme conversion" (Speech Communication 2008). A beam search finds the likely
pronunciations. `tools/train_g2p.py` trains the model on the CMU Pronouncing Dictionary and writes
`data/g2p.npz`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path

import numpy as np

from cortext.errors import TextError
from cortext.text.inventory import ARPABET

MODEL = Path(__file__).parent / "data" / "g2p.npz"
LETTERS = "abcdefghijklmnopqrstuvwxyz'-"
BEGIN = 0
END = 1
ROOT = 0
NO_PHONEME = len(ARPABET)
_BEAM = 32


@dataclass(frozen=True, eq=False)
class GraphoneModel:
    """A back-off n-gram model over graphones, as a trie in breadth-first order; node 0 is its root.

    Attributes:
        token_letter_V: The letter (index into LETTERS) of each graphone; tokens 0 and 1 begin and
            end a word.
        token_phonemes_V2: Its phonemes (indices into ARPABET), NO_PHONEME where it has fewer than
            two.
        token_N: The last graphone of each node's n-gram.
        first_child_N1: Children of node i are nodes `first_child_N1[i]` to `first_child_N1[i + 1]`.
        suffix_N: The node of the n-gram without its first graphone.
        log_p_N, log_backoff_N: Natural logs, float32.
    """

    token_letter_V: np.ndarray
    token_phonemes_V2: np.ndarray
    token_N: np.ndarray
    first_child_N1: np.ndarray
    suffix_N: np.ndarray
    log_p_N: np.ndarray
    log_backoff_N: np.ndarray

    @classmethod
    def load(cls, path: Path = MODEL) -> GraphoneModel:
        """Read a file of `tools/train_g2p.py`: children, tokens and quantised scores per node."""
        with np.load(path, allow_pickle=False) as stored:
            part = {name: stored[name] for name in stored.files}
        first_child_N1 = np.concatenate([[1], 1 + np.cumsum(part["n_children_N"], dtype=np.int64)])
        return cls(
            part["token_letter_V"],
            part["token_phonemes_V2"],
            part["token_N"],
            first_child_N1,
            _suffixes(
                part["token_N"].astype(np.int64), first_child_N1, len(part["token_letter_V"])
            ),
            part["log_p_levels"][part["log_p_N"]],
            part["log_backoff_levels"][part["log_backoff_N"]],
        )

    @cached_property
    def tokens_of(self) -> dict[str, np.ndarray]:
        """Graphones of each letter, ascending."""
        return {
            letter: np.flatnonzero(self.token_letter_V == number)
            for number, letter in enumerate(LETTERS)
        }

    @cached_property
    def phonemes_of(self) -> list[tuple[int, ...]]:
        """Phonemes of each graphone."""
        return [
            tuple([p for p in pair if p != NO_PHONEME]) for pair in self.token_phonemes_V2.tolist()
        ]

    @lru_cache(maxsize=8192)  # noqa: B019  (the one model lives as long as the process)
    def successors(self, node: int) -> tuple[np.ndarray, np.ndarray]:
        """Return log-probability [V] of each graphone after history `node`, and the nodes [V]."""
        if node == ROOT:
            log_p_V = np.zeros(len(self.token_letter_V), dtype=np.float32)
            next_V = np.zeros(len(self.token_letter_V), dtype=np.int32)
        else:
            log_p_V, next_V = self.successors(int(self.suffix_N[node]))
            next_V = next_V.copy()
        log_p_V = log_p_V + self.log_backoff_N[node]
        start = self.first_child_N1[node]
        stop = self.first_child_N1[node + 1]
        tokens = self.token_N[start:stop]
        log_p_V[tokens] = self.log_p_N[start:stop]
        next_V[tokens] = np.arange(start, stop)
        return log_p_V, next_V

    def nbest(self, word: str, beam: int = _BEAM) -> dict[tuple[int, ...], float]:
        """Return pronunciations (phoneme indices) that survive the beam, with log-probabilities."""
        beams: list[tuple[float, int, tuple[int, ...]]] = [(0.0, ROOT + 1 + BEGIN, ())]
        for letter in word:
            tokens = self.tokens_of[letter]
            rows = [self.successors(node) for _, node, _ in beams]
            scores = np.array(
                [score + row[0][tokens] for (score, _, _), row in zip(beams, rows, strict=True)]
            ).ravel()
            grown = []
            for place in np.argsort(-scores)[:beam].tolist():
                origin, choice = divmod(place, len(tokens))
                token = tokens[choice]
                phonemes = beams[origin][2]
                grown.append(
                    (
                        float(scores[place]),
                        int(rows[origin][1][token]),
                        phonemes + self.phonemes_of[token],
                    )
                )
            beams = grown
        by_phonemes: dict[tuple[int, ...], float] = {}
        for score, node, phonemes in beams:
            total = score + float(self.successors(node)[0][END])
            by_phonemes[phonemes] = float(np.logaddexp(by_phonemes.get(phonemes, -np.inf), total))
        return by_phonemes

    def predict(self, word: str) -> tuple[str, ...]:
        """Return the most probable pronunciation; see `predict` below."""
        foreign = set(word) - set(LETTERS)
        if foreign:
            raise TextError(
                f"cannot pronounce {word!r}: {min(foreign)!r} is not one of {LETTERS}; normalize it"
                " first"
            )
        scores = self.nbest(word)
        return tuple(ARPABET[number] for number in max(scores, key=scores.__getitem__))


def _suffixes(token_N: np.ndarray, first_child_N1: np.ndarray, n_tokens: int) -> np.ndarray:
    """Return every node's suffix, level by level: the same token's child of the parent's suffix."""
    n_children_N = np.diff(first_child_N1)
    parent_N = np.concatenate([[ROOT], np.repeat(np.arange(len(token_N)), n_children_N)])
    key_N = parent_N * n_tokens + token_N  # ascending from node 1 on
    suffix_N = np.zeros(len(token_N), dtype=np.int64)
    start = first_child_N1[1]
    stop = first_child_N1[first_child_N1[1]]
    while start < stop:
        wanted = suffix_N[parent_N[start:stop]] * n_tokens + token_N[start:stop]
        suffix_N[start:stop] = 1 + np.searchsorted(key_N[1:], wanted)
        start = stop
        stop = first_child_N1[stop]
    return suffix_N


@cache
def _model() -> GraphoneModel:
    return GraphoneModel.load()


def predict(word: str) -> tuple[str, ...]:
    """Predict the most probable pronunciation of a word, without the dictionary.

    The word has letters a-z, apostrophes and hyphens. Raises TextError for any other character. The
    pronunciation is empty only for a word without a sound ("-").
    """
    return _model().predict(word)
