"""Settings for building a language model, with their bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cortext.config import check_bounds
from cortext.decoding.ngram.vocabulary import MAX_ORDER, SPECIAL, UNITS
from cortext.errors import LanguageModelError, TextError, nearest
from cortext.settings import Setting
from cortext.text.inventory import LM, Inventory
from cortext.text.language import EN, Language
from cortext.text.lexicon import Lexicon
from cortext.text.pronunciation import pronouncer

BINARIES: dict[str, dict[str, Any]] = {
    "quantised": {"type": "trie"},
    "trie": {"type": "trie", "prob_bits": 0, "backoff_bits": 0},
    "probing": {"type": "probing"},
}
"""Arguments of `_native.write_binary` by the name of the file type."""

Stage = Callable[[str], Callable[[int, int], None] | None]
"""Function that takes the name of a stage as it begins, and returns its progress callback."""
KINDS = ("words", "spelling")
ENGINES = ("cortext", "lmplz")
_KENLM_SPECIAL = (*SPECIAL, "<UNK>")


@dataclass(frozen=True)
class BuildSettings:
    """Settings for building a model. Raises LanguageModelError for values out of bounds."""

    order: Annotated[int, Setting(minimum=1, maximum=MAX_ORDER)] = 5
    """Longest n-gram, 1 to 6."""
    vocabulary: int | Iterable[str] | None = None
    """Words to keep: a number of the most frequent ones, or the words; None for all of the texts.

    N-grams with other words are left out.
    """
    prune: Sequence[int] = (0,)
    """Highest count with which n-grams are left out, for each order.

    The last number is for all higher orders.
    """
    interpolate: bool = False
    """True if each text becomes a model of its own.

    The models are mixed with the weights that suit `held_out` best.
    """
    held_out: Path | None = None
    """The text that the weights are fitted on."""
    kind: str = "words"
    """`words`, or `spelling` for a model of letters."""
    binary: str = "quantised"
    """`quantised` (a trie with 8 bits for each number, the smallest), `trie` (exact) or
    `probing` (exact, fastest).
    """
    keep_arpa: bool = False
    """True if `lm.arpa`, the model as text, is kept beside `lm.bin`."""
    engine: str = "cortext"
    """Estimator: `cortext`, or `lmplz` of KenLM, which must be on PATH."""
    memory_bytes: int = 4 << 30
    """Memory for counting; data that does not fit goes to the disk of the output."""
    inventory: Inventory = LM
    """Tokens of the pronunciations; the published ones by default."""
    language: Language = EN
    """Language of the texts."""
    lexicon: Path | Lexicon | None = None
    """Pronunciations of one's own: a file like `lexicon.txt`, whose closing silence may be left
    out.

    Words that it lacks take the command's pronunciations (`g2p`), and then those of the letters
    (`spell`) or the usual ones: English phonemes have a dictionary, characters spell the words.
    Words without any are left out, counted and named.
    """
    g2p: str | None = None
    """A program that pronounces words (`cortext.text.g2p_command`), started without a shell."""
    spell: bool = False
    """True if words are spelt with the tokens."""
    unit: str = UNITS[0]
    """`word`, or `character` for an open vocabulary: an n-gram of the characters themselves."""
    skip_damaged: bool = False
    """True if sentences with letters that the language lacks are left out and counted.

    They are an error otherwise. English prose has rules of its own (`cortext.text.prose`).
    """

    def __post_init__(self) -> None:
        check_bounds(self, error=LanguageModelError)
        for name, value, known in (
            ("kind", self.kind, KINDS),
            ("binary", self.binary, BINARIES),
            ("engine", self.engine, ENGINES),
            ("unit", self.unit, UNITS),
        ):
            if value not in known:
                raise LanguageModelError(f"{name} is {value!r}; {nearest(str(value), known)}")
        given = tuple(self.prune)
        if not 1 <= len(given) <= self.order or list(given) != sorted(given) or given[0] < 0:
            raise LanguageModelError(
                f"prune is {' '.join(map(str, given)) or 'empty'}; numbers that do not fall are"
                f" needed, at most one for each of the {self.order} orders"
            )
        if given[0]:
            raise LanguageModelError(
                f"prune begins with {given[0]}; words are not pruned", fix="use --vocab for them"
            )
        if self.interpolate != (self.held_out is not None):
            raise LanguageModelError(
                "interpolation and a held-out text go together", fix="give both or neither"
            )
        if self.interpolate and self.engine == "lmplz":
            raise LanguageModelError(
                "lmplz does not interpolate", fix="leave --engine or --interpolate out"
            )
        if self.kind == "spelling" and self.vocabulary is not None:
            raise LanguageModelError(
                "the vocabulary of a spelling model is the letters", fix="leave --vocab out"
            )
        if self.is_open and (self.kind, self.vocabulary) != ("words", None):
            raise LanguageModelError(
                "the vocabulary of characters is open", fix="leave --vocab and --type out"
            )
        _check_sources(self)
        if not 1 << 27 <= self.memory_bytes <= 1 << 44:
            raise LanguageModelError(
                f"memory is {self.memory_bytes / (1 << 30):.3g} GB; 0.125 to 16384 are possible",
                fix="4 is usual",
            )

    @property
    def is_open(self) -> bool:
        """True if the vocabulary is open: an n-gram of characters, without a lexicon."""
        return self.unit == "character"

    @property
    def is_english_spelling(self) -> bool:
        """True if the model spells with the published tokens, whose words are known."""
        published = self.inventory.is_published and self.language.is_benchmark
        return self.kind == "spelling" and published

    @property
    def thresholds(self) -> tuple[int, ...]:
        """`prune` with a number for each order."""
        given = tuple(self.prune)
        return given + given[-1:] * (self.order - len(given))


def _check_sources(options: BuildSettings) -> None:
    """Raise LanguageModelError for tokens, words and sources that do not go together."""
    own = options.lexicon is not None or options.g2p is not None or options.spell
    inventory = options.inventory
    try:
        if not inventory.is_published:
            inventory.check()
        if not options.is_open and not own:
            pronouncer(inventory, options.language)
    except TextError as error:
        raise LanguageModelError(error.what, where=error.where, fix=error.fix) from None
    if options.is_open:
        if inventory.unit != "character":
            raise LanguageModelError(
                f"unit {options.unit!r} needs tokens that are characters; those of inventory"
                f" {inventory.name!r} are {inventory.unit}s",
                fix="give another --inventory, such as characters",
            )
        if own:
            raise LanguageModelError(
                "an open vocabulary has no words to pronounce",
                fix="leave --lexicon, --g2p and --spell out",
            )
        if special := next((each for each in _KENLM_SPECIAL if each in inventory.index), None):
            raise LanguageModelError(
                f"inventory {inventory.name!r} has the token {special!r}, which an n-gram uses"
                " itself",
                fix="call it otherwise",
            )
    if options.kind == "spelling":
        if inventory.unit == "character":
            raise LanguageModelError(
                "a spelling model is of the names of letters, which characters do not pronounce",
                fix="use --unit character",
            )
        if options.is_english_spelling and own:
            raise LanguageModelError(
                "the names of English letters are known", fix="leave --lexicon, --g2p, --spell out"
            )
