"""Pronunciation lexicons: the shipped CMU Pronouncing Dictionary and the lab's `lexicon.txt`.

A pronunciation is a tuple of ARPAbet phonemes without stress and without the silence that closes a
word. In memory each phoneme is one ASCII character, so that the 126,000 words of the dictionary
load in a fraction of a second.
"""

from __future__ import annotations

import lzma
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from cortext.arguments import as_path, check_list, check_type
from cortext.errors import TextError, nearest
from cortext.files import atomic_path, check_file
from cortext.text.phonemes import ARPABET, SIL

CMUDICT = Path(__file__).parent / "data" / "cmudict.xz"
"""File of the dictionary: one line per word, `word<TAB>CODE CODE ...`, xz-compressed.

`tools/build_lexicon.py` writes it, NOTICE credits it.
"""

Pronunciation = tuple[str, ...]

MOST_PRONUNCIATIONS = 1000
"""Most pronunciations of a word: each can follow every pronunciation of the word before it."""
MOST_PHONEMES = 1000
"""Most phonemes of a pronunciation."""
MOST_BYTES = 256 << 20
"""Most bytes of a lexicon's file."""

CODE_OF = {phoneme: chr(ord("A") + number) for number, phoneme in enumerate(ARPABET)}
_PHONEME_OF = {code: phoneme for phoneme, code in CODE_OF.items()}


def encode(pronunciation: Sequence[str]) -> str:
    """Write a pronunciation with one ASCII character per phoneme.

    Raises TextError for an empty pronunciation or an unknown phoneme.
    """
    if not pronunciation:
        raise TextError("empty pronunciation; at least one phoneme is needed")
    try:
        return "".join([CODE_OF[phoneme] for phoneme in pronunciation])
    except KeyError as error:
        raise TextError(
            f"unknown phoneme {error.args[0]!r}; {nearest(str(error.args[0]), ARPABET)}"
        ) from None


def decode(code: str) -> Pronunciation:
    """Return the phonemes of a code that `encode` has written."""
    return tuple([_PHONEME_OF[character] for character in code])


class Lexicon:
    """Words with one or more pronunciations each, the most usual first."""

    def __init__(self, pronunciations: Mapping[str, Iterable[Sequence[str]]] | None = None) -> None:
        self._codes: dict[str, str] = {}  # blank-separated codes by word
        self._weights: dict[tuple[str, str], float] = {}
        if pronunciations is None:
            return
        check_type(pronunciations, Mapping, "pronunciations", "a mapping of words")
        for word, variants in pronunciations.items():
            for variant in check_list(variants, f"{word!r}", "a list of pronunciations"):
                self.add(word, variant)

    @staticmethod
    @cache
    def cmu() -> Lexicon:
        """Return the shipped CMU Pronouncing Dictionary: stress stripped, all variants.

        It is loaded once and must not be changed.
        """
        lexicon = Lexicon()
        lines = lzma.decompress(CMUDICT.read_bytes()).decode("ascii").splitlines()
        lexicon._codes = dict([line.split("\t") for line in lines])  # type: ignore[misc]  # two fields a line
        return lexicon

    def add(self, word: str, pronunciation: Sequence[str], weight: float = 1.0) -> None:
        """Append a pronunciation; a known one keeps its position and takes the new weight.

        Args:
            word: The word.
            pronunciation: ARPAbet phonemes without stress and without the closing SIL.
            weight: Weight of the pronunciation; 1.0 is neutral.

        Raises:
            TextError: For an empty pronunciation, an unknown phoneme, and more than
                `MOST_PRONUNCIATIONS`.
        """
        code = encode(pronunciation)
        known = self._codes.get(word)
        if known is None:
            self._codes[word] = code
        elif code not in (codes := known.split(" ")):
            if len(codes) == MOST_PRONUNCIATIONS:
                raise TextError(f"{word!r} has more than {MOST_PRONUNCIATIONS:,} pronunciations")
            self._codes[word] = f"{known} {code}"
        if weight != 1.0:
            self._weights[word, code] = weight
        else:
            self._weights.pop((word, code), None)

    def pronunciations(self, word: str) -> tuple[Pronunciation, ...]:
        """Return all pronunciations of `word`, the most usual first; `()` where it is missing."""
        codes = self._codes.get(word)
        return () if codes is None else tuple([decode(code) for code in codes.split(" ")])

    def weights(self, word: str) -> tuple[float, ...]:
        """Return the weight of each pronunciation of `word` (1.0 where none was given)."""
        return tuple(
            [self._weights.get((word, code), 1.0) for code in self._codes.get(word, "").split()]
        )

    @property
    def codes(self) -> Mapping[str, str]:
        """Pronunciations of each word as `encode` writes them, blank-separated; read-only."""
        return self._codes

    @property
    def weighted(self) -> Mapping[tuple[str, str], float]:
        """Weights other than 1, by word and code; read-only."""
        return self._weights

    def __contains__(self, word: object) -> bool:
        return word in self._codes

    def __iter__(self) -> Iterator[str]:
        return iter(self._codes)

    def __len__(self) -> int:
        return len(self._codes)

    @classmethod
    def read(cls, path: str | Path) -> Lexicon:
        """Read a `lexicon.txt`, one pronunciation a line.

        Lines are `word P1 P2 ... SIL` or `word<TAB>weight P1 P2 ... SIL`.

        Raises:
            TextError: Naming the file and line for a word without phonemes, a missing closing SIL,
                an unknown phoneme, a weight that is not positive, and more than
                `MOST_PRONUNCIATIONS` of a word or `MOST_PHONEMES` of a pronunciation; and for a
                file that is missing, empty, not UTF-8 or larger than `MOST_BYTES`.
        """
        path = as_path(path, "path")
        lexicon = cls()
        try:
            check_file(path, MOST_BYTES)
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or error
            raise TextError(
                f"cannot read the lexicon: {what}", where=path, fix="give a UTF-8 lexicon.txt"
            ) from None
        for number, line in enumerate(lines, start=1):
            if line.strip():
                try:
                    lexicon.add(*_parse_line(line))
                except TextError as error:
                    raise TextError(
                        error.what, where=f"{path}, line {number}", fix=error.fix
                    ) from None
        if not len(lexicon):
            raise TextError(
                "no pronunciations in the lexicon",
                where=path,
                fix="one line a word: WORD P1 P2 ... SIL",
            )
        return lexicon

    def write(self, path: str | Path, words: Iterable[str] | None = None) -> None:
        """Write the pronunciations of `words` (default: all) as a `lexicon.txt`, or no file at all.

        Raises:
            TextError: For a word that the lexicon lacks (`cortext.text.lexicon_for(words)` has them
                all).
            OSError: Where the file cannot be written.
        """
        path = Path(path)
        lines = []
        for word in dict.fromkeys(self if words is None else words):
            if word not in self._codes:
                raise TextError(
                    f"no pronunciation for {word!r}",
                    where=path,
                    fix="make the lexicon with text.lexicon_for(words)",
                )
            for variant, weight in zip(self.pronunciations(word), self.weights(word), strict=True):
                mark = "" if weight == 1.0 else f"\t{weight!r}"
                lines.append(f"{word}{mark} {' '.join(variant)} {SIL}\n")
        with atomic_path(path) as temporary:
            temporary.write_text("".join(lines), encoding="utf-8")


def _parse_line(line: str) -> tuple[str, list[str], float]:
    """Return word, phonemes and weight of a line of `lexicon.txt`."""
    word, *rest = line.split()
    weight = 1.0
    after_tab = line.strip().partition("\t")[2].split()
    if after_tab and after_tab == rest:
        try:
            weight = float(after_tab[0])
            rest = after_tab[1:]
        except ValueError:
            pass  # a tab between the word and its phonemes
    if not (math.isfinite(weight) and weight > 0):
        raise TextError(
            f"weight {weight} of {word!r} is not a positive number", fix="correct or remove it"
        )
    if not rest or rest[-1] != SIL:
        raise TextError(
            f"the pronunciation of {word!r} does not end with {SIL}",
            fix=f"close every line with {SIL}",
        )
    if len(rest) > MOST_PHONEMES:
        raise TextError(
            f"{word!r} has {len(rest):,} phonemes; at most {MOST_PHONEMES:,} are possible"
        )
    if len(rest) == 1:
        raise TextError(
            f"{word!r} has no phonemes before {SIL}", fix="add its phonemes or remove the line"
        )
    return word, rest[:-1], weight
