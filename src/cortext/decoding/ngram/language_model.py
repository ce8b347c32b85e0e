"""The language-model directory.

`lexicon.txt`, `tokens.txt`, `lm.bin` and `lm.json` (how it was built, and what the tokens and words
are).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from cortext import _native
from cortext.arguments import as_count, as_path, check_list, check_text, check_type
from cortext.decoding.ngram.build_settings import BuildSettings, Stage
from cortext.decoding.ngram.corpus import grouped, sentences_of, silent
from cortext.decoding.ngram.pronouncing import inventory_for
from cortext.decoding.ngram.vocabulary import UNITS, SpeltTokens, spelt, symbol_lexicon
from cortext.describe import Described
from cortext.entry_points import load
from cortext.errors import LanguageModelError, TextError, nearest
from cortext.files import read_json
from cortext.processes import Progress
from cortext.temporaries import restore
from cortext.text.files import read_text
from cortext.text.inventory import LM, PUBLISHED, Inventory, read_inventory
from cortext.text.language import EN, Language, read_language
from cortext.text.lexicon import Lexicon
from cortext.text.pronunciation import pronouncer

T = TypeVar("T")
MODELS = ("lm.bin", "lm.arpa", "lm.arpa.gz")
"""Names of the n-gram's file; the first that is there is read."""
LM_FILES = ("lexicon.txt", "tokens.txt", *MODELS)
"""Files of a language-model directory that change the result of a decoding."""
_BLOCK = 1 << 20
_MOST_BLOCKS = 64
_SENTENCES = 1 << 15
_MOST_TOKENS_BYTES = 1 << 20
_MANY_UNKNOWN = 0.1
"""Share of a lexicon's words that a good n-gram may lack."""


@dataclass(frozen=True, slots=True)
class TextScore:
    """Log-probability of a text under a model, with all words and without the unknown ones."""

    sentences: int
    words: int
    unknown_words: int
    log_prob: float
    log_prob_known: float

    def __add__(self, other: TextScore) -> TextScore:
        return TextScore(
            self.sentences + other.sentences,
            self.words + other.words,
            self.unknown_words + other.unknown_words,
            self.log_prob + other.log_prob,
            self.log_prob_known + other.log_prob_known,
        )

    @property
    def perplexity(self) -> float:
        """Perplexity per word and sentence end, unknown words included."""
        return (
            math.exp(-self.log_prob / (self.words + self.sentences)) if self.sentences else math.nan
        )

    @property
    def perplexity_known(self) -> float:
        """Perplexity per known word and sentence end."""
        known = self.words - self.unknown_words + self.sentences
        return math.exp(-self.log_prob_known / known) if self.sentences else math.nan

    @property
    def oov_rate(self) -> float:
        """Share of the words that the model does not know."""
        return self.unknown_words / self.words if self.words else 0.0


class LanguageModel(Described):
    """An n-gram model with the pronunciations of its words. Scores are natural logs.

    Args:
        directory: Directory of the model.
        ngram: The n-gram model, read-only; only the parts of `lm.bin` that are used take memory.
        lexicon: Pronunciations by word.
        tokens: The symbols of `tokens.txt`, in its order.
        inventory: Tokens of the pronunciations; None: those of the lexicon.
        language: Normalisation of the words.
        unit: `word`; or `character` for an open vocabulary, whose words are the tokens but the
            blank. Its lexicon gives each of them itself as the pronunciation, the separator too.
    """

    def __init__(
        self,
        directory: Path,
        ngram: _native.NGram,
        lexicon: Lexicon,
        tokens: tuple[str, ...],
        inventory: Inventory | None = None,
        language: Language = EN,
        unit: str = UNITS[0],
    ) -> None:
        self.directory = directory
        self.ngram = ngram
        self.lexicon = lexicon
        self.tokens = tokens
        self.inventory = lexicon.inventory if inventory is None else inventory
        self.language = language
        self.unit = unit

    @property
    def is_open(self) -> bool:
        """True if the vocabulary is open: an n-gram of characters, without a lexicon."""
        return self.unit == "character"

    @classmethod
    def build(
        cls,
        texts: Iterable[str | Path],
        order: int,
        out: str | Path,
        vocabulary: int | Iterable[str] | None = None,
        *,
        stage: Stage = lambda name: None,
        **options: Any,
    ) -> LanguageModel:
        """Estimate a model with interpolated modified Kneser-Ney smoothing and open it.

        An `out` that holds a language model is replaced, when the new one is complete. Raises
        LanguageModelError for texts that are missing, unreadable or empty, options that do not fit,
        and an `out` with other files in it.

        Args:
            texts: `Path`s are files (plain or .gz) of prose, `str`s are text. All of it is split
                into sentences and normalised (`cortext.text.sentences`); pieces without a letter
                are passed over.
            out: Directory to write.
            order: Longest n-gram, 1 to 6.
            vocabulary: Words to keep, or a number of the most frequent ones; n-grams with other
                words are left out, as by `lmplz --limit_vocab_file`. None: every word of the texts.
            stage: Called with the name of each stage as it begins; returns the stage's progress
                callback or None.
            options: The other fields of `BuildSettings`. `inventory` and `language` may be names
                of built-in ones or files, `lexicon` a path. Without an inventory, that of the
                lexicon is taken (`inventory_for`).
        """
        known = {field.name for field in fields(BuildSettings)}
        for name in options:
            if name not in known:
                raise LanguageModelError(f"unknown option {name!r}; {nearest(name, known)}")
        if not isinstance(given := options.get("language", EN), Language):
            options["language"] = _read(read_language, as_path(given, "language"))
        if not isinstance(given := options.get("lexicon"), Lexicon | None):
            options["lexicon"] = as_path(given, "lexicon")
        given = options.get("inventory")
        if given is None:
            language = options.get("language", EN)
            options["inventory"] = inventory_for(options.get("lexicon"), language)
        elif not isinstance(given, Inventory):
            options["inventory"] = _read(read_inventory, as_path(given, "inventory"))
        order = as_count(order, "order")
        load("cortext.language_models", "ngram")(
            texts,
            as_path(out, "out"),
            BuildSettings(order=order, vocabulary=vocabulary, **options),
            stage,
        )
        return cls.open(out)

    @classmethod
    def open(cls, lm_dir: str | Path) -> LanguageModel:
        """Read a language-model directory.

        Instead of `lm.bin` (a KenLM binary of any type) `lm.arpa` or `lm.arpa.gz` will do,
        `lm.json` may be absent.

        Raises:
            LanguageModelError: Naming the file (and line) that is missing or wrong.
        """
        directory = as_path(lm_dir, "lm_dir")
        restore(directory)
        if not directory.is_dir():
            raise LanguageModelError(
                "no such directory",
                where=directory,
                fix="build one: cortext lm build TEXT --out LM",
            )
        # Before the tokens, which other directories may have, too
        if not (directory / "lexicon.txt").exists():
            raise LanguageModelError(
                "cannot read the lexicon: No such file or directory",
                where=directory / "lexicon.txt",
                fix="give a UTF-8 lexicon.txt",
            )
        inventory, language, unit = _read_facts(directory)
        is_open = unit == "character"
        spoken = inventory.without_separator if is_open else inventory
        try:
            lexicon = Lexicon.read(directory / "lexicon.txt", spoken)
        except TextError as error:
            raise LanguageModelError(error.what, where=error.where, fix=error.fix) from None
        if is_open and lexicon.codes != symbol_lexicon(inventory).codes:
            raise LanguageModelError(
                "an open vocabulary has one line for each token but the blank, such as 'a a'",
                where=directory / "lexicon.txt",
                fix="build the model again",
            )
        model = next((directory / name for name in MODELS if (directory / name).is_file()), None)
        if model is None:
            fix = "give the model as lm.bin, lm.arpa or lm.arpa.gz"
            raise LanguageModelError("no lm.bin or lm.arpa", where=directory, fix=fix)
        ngram = _native.NGram.open(str(model))
        lm = cls(directory, ngram, lexicon, inventory.symbols, inventory, language, unit)
        lm.require_words(lexicon, model)
        return lm

    @cached_property
    def n_known(self) -> int:
        """Number of the lexicon's words that the n-gram knows; the others score as `<unk>`."""
        return sum(map(self.ngram.__contains__, self.lexicon))

    @property
    def notes(self) -> list[str]:
        """Return a line where the n-gram lacks many of the lexicon's words; an empty list else."""
        return self.notes_on(self.lexicon)

    def notes_on(self, lexicon: Lexicon) -> list[str]:
        """Return a line where the n-gram lacks many words of a lexicon; an empty list else."""
        lacking = [word for word in lexicon if word not in self.ngram]
        share = len(lacking) / len(lexicon)
        if share <= _MANY_UNKNOWN or self.is_open:
            return []
        lacks = f"the n-gram does not know {share:.0%} of the lexicon's {self._n_words(lexicon)}"
        return [f"{self.directory}: {lacks}: {self._spelling(lacking)}they score as unknown words"]

    def require_words(self, lexicon: Lexicon, where: Path | None = None) -> None:
        """Raise LanguageModelError where the n-gram, in the file `where`, knows no word of it."""
        if not any(word in self.ngram for word in lexicon):
            fix = "give a lexicon.txt and an n-gram of the same words"
            raise LanguageModelError(
                f"the n-gram knows none of the lexicon's {self._n_words(lexicon)}",
                where=where or self.directory,
                fix=f"{self._spelling(list(lexicon))}{fix}",
            )

    def _n_words(self, lexicon: Lexicon) -> str:
        unit = "token" if self.is_open else "word"
        return f"{len(lexicon):,} {unit}{'' if len(lexicon) == 1 else 's'}"

    def _spelling(self, lacking: Sequence[str]) -> str:
        """Return how the n-gram writes words that it lacks as a lexicon does; else nothing."""
        for name, change in (("upper", str.upper), ("lower", str.lower), ("title", str.title)):
            known = [word for word in lacking if change(word) in self.ngram]
            if len(known) > len(lacking) / 2:
                return f"it has {known[0]!r} as {change(known[0])!r}, in {name} case; "
        return ""

    def require(
        self, inventory: Inventory, language: Language | None = None, theirs: str = "the model"
    ) -> None:
        """Raise LanguageModelError unless tokens and language are those of this language model.

        Args:
            inventory: Tokens to compare with; the two published orders agree with each other.
            language: Language to compare with; None where there is none.
            theirs: What has them, such as `the model`.
        """
        from cortext.data.conventions import Conventions  # loads HDF5

        Conventions(self.inventory, self.language).require(
            Conventions(inventory, self.language if language is None else language),
            mine="the language model",
            theirs=theirs,
            where=self.directory,
            error=LanguageModelError,
            by_number=False,
            fix="build one with the inventory and language of the model: cortext lm build",
        )

    def only(self, words: Iterable[str]) -> LanguageModel:
        """Return a model that shares the n-gram and pronounces no other words than these.

        A word that the lexicon lacks is pronounced as it is spelt.

        Raises:
            LanguageModelError: For a word that cannot be pronounced, and for an open vocabulary.
        """
        if self.is_open:
            raise LanguageModelError(
                "the vocabulary is open: it has no words to restrict the search to",
                where=self.directory,
                fix="build one of words: cortext lm build without --unit",
            )
        lexicon = Lexicon(inventory=self.lexicon.inventory)
        for word in dict.fromkeys(check_list(words, "words", "a list of words")):
            check_text(word, "a word")
            try:
                if word in self.lexicon:
                    lexicon.take(word, self.lexicon)
                else:
                    for variant in pronouncer(self.inventory, self.language)(word):
                        lexicon.add(word, variant)
            except TextError as error:
                raise LanguageModelError(
                    error.what, where=f"word {word!r}", fix=error.fix
                ) from None
        if not len(lexicon):
            raise LanguageModelError("no words to restrict the search to", where=self.directory)
        return LanguageModel(
            self.directory,
            self.ngram,
            lexicon,
            self.tokens,
            self.inventory,
            self.language,
            self.unit,
        )

    def _facts(self) -> dict[str, Any]:
        return {
            "directory": self.directory,
            "order": self.ngram.order,
            "n-grams": sum(self.ngram.counts),
            "words": len(self.lexicon),
            "file": f"{Path(self.ngram.path).name} ({self.ngram.kind})",
        }

    def begin(self) -> _native.State:
        """Return the state at the start of a sentence."""
        return self.ngram.begin()

    def score(self, state: _native.State, word: str) -> tuple[float, _native.State]:
        """Return the log-probability of `word` after `state`, and the state after it.

        Unknown words score as `<unk>`.
        """
        check_type(state, _native.State, "state", "a state, as begin() returns it,")
        check_text(word, "word")
        return self.ngram.score(state, word)

    def end(self, state: _native.State) -> float:
        """Return the log-probability that the sentence ends after `state`."""
        check_type(state, _native.State, "state", "a state, as begin() returns it,")
        return self.ngram.end(state)

    def sentence(self, text: str) -> float:
        """Return the log-probability of a sentence (normalised here) and its end.

        Raises LanguageModelError where the vocabulary is open and the sentence cannot be spelt.
        """
        sentence = self.language.normalize(text)
        if self.is_open and not (sentence := "".join(self._spelt(sentence))):
            raise LanguageModelError(f"{text!r} cannot be spelt", where=self.directory)
        return self.ngram.sentence(sentence)

    def info(self) -> dict[str, Any]:
        """Return the facts of `lm.json`, if there is one, and those of the files on the disk."""
        file = Path(self.ngram.path)
        return read_recorded(self.directory) | {
            "order": self.ngram.order,
            "counts": list(self.ngram.counts),
            "ngrams": sum(self.ngram.counts),
            "file": file.name,
            "binary": self.ngram.kind,
            "bytes_per_ngram": round(self.ngram.bytes / sum(self.ngram.counts), 2),
            "lexicon_words": len(self.lexicon),
            "lexicon_words_in_ngram": self.n_known,
            "lexicon_words_in_ngram_share": round(self.n_known / len(self.lexicon), 4),
            "bytes": sum(
                file.stat().st_size for file in self.directory.iterdir() if file.is_file()
            ),
        }

    def evaluate(
        self, texts: Path | Iterable[str | Path], progress: Progress = silent
    ) -> dict[str, Any]:
        """Return perplexity and rate of unknown words of texts (as in `build`).

        `perplexity` is per word and sentence end; `perplexity_known` leaves unknown words out. The
        text of a spelling model is spelt first. Where the vocabulary is open, words are tokens, and
        sentences with a word that cannot be spelt are left out; `without_pronunciation` counts
        such words.
        """
        is_spelling = read_recorded(self.directory).get("kind") == "spelling"
        tokens = self._spelt if self.is_open else None
        respell = spelt if is_spelling else tokens
        score = TextScore(0, 0, 0, 0.0, 0.0)
        for text in grouped([texts] if isinstance(texts, Path) else texts):
            sentences = sentences_of(text, respell, progress, self.language)
            while block := list(islice(sentences, _SENTENCES)):
                score += TextScore(*self.ngram.score_text(block))
        if not score.sentences:
            raise LanguageModelError(
                "no sentence in the text", where=texts if isinstance(texts, Path) else None
            )
        return {
            "sentences": score.sentences,
            "words": score.words,
            "perplexity": score.perplexity,
            "perplexity_known": score.perplexity_known,
            "unknown_words": score.unknown_words,
            "oov_rate": score.oov_rate,
            "log_prob": score.log_prob,
        } | ({"without_pronunciation": len(tokens.without)} if tokens else {})

    @property
    def _spelt(self) -> SpeltTokens:
        """Spelling of sentences where the vocabulary is open."""
        return SpeltTokens(self.inventory, self.language)


def file_checksums(lm_dir: str | Path) -> dict[str, str]:
    """Return size and checksum of each file in a language-model directory that decoding reads.

    Of a file of more than 64 MiB the checksum covers 64 blocks of 1 MiB, evenly spread from its
    first byte to its last: reading all of the published 5-gram (40 GB) would take minutes. Two
    n-grams that differ in their text, their weights or their pruning differ almost everywhere. A
    change of some bytes between two blocks goes unnoticed.

    Raises:
        LanguageModelError: For a file that cannot be read.
    """
    directory = Path(lm_dir)
    try:
        return {
            name: _sampled(directory / name) for name in LM_FILES if (directory / name).is_file()
        }
    except OSError as error:
        raise LanguageModelError(f"cannot be read: {error.strerror}", where=directory) from None


def language_model_checksum(lm_dir: str | Path) -> str:
    """Return one checksum of lexicon, tokens and n-gram, wherever the directory lies.

    Raises:
        LanguageModelError: For a file that cannot be read.
    """
    by_name = file_checksums(lm_dir)
    model = next((name for name in MODELS if name in by_name), None)
    used = [text for name, text in by_name.items() if name not in MODELS or name == model]
    return hashlib.sha256("\n".join(used).encode()).hexdigest()[:16]


def _sampled(file: Path) -> str:
    """Return size and checksum of a file's first, last and evenly spread blocks between."""
    size = file.stat().st_size
    last = max(0, size - _BLOCK)
    n_blocks = min(_MOST_BLOCKS, -(-size // _BLOCK))
    starts = [last * number // max(1, n_blocks - 1) for number in range(1, n_blocks - 1)]
    with file.open("rb") as opened:
        digest = hashlib.sha256(opened.read(_BLOCK))
        for start in (*starts, last):
            opened.seek(start)
            digest.update(opened.read(_BLOCK))
    return f"{size} bytes, {digest.hexdigest()[:16]}"


def read_recorded(directory: Path) -> dict[str, Any]:
    """Return the content of `lm.json`; nothing where there is none.

    Raises LanguageModelError for a file without a JSON object.
    """
    path = directory / "lm.json"
    if not path.is_file():
        return {}
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        fix = "build the model again or remove the file"
        raise LanguageModelError(f"not valid JSON: {error}", where=path, fix=fix) from None


def _read(read: Callable[[Path], T], given: Path) -> T:
    """Return an inventory or a language by its name or file."""
    try:
        return read(given)
    except TextError as error:
        raise LanguageModelError(error.what, where=error.where, fix=error.fix) from None


def _read_facts(directory: Path) -> tuple[Inventory, Language, str]:
    """Return inventory, language and unit of the words, from `tokens.txt` and `lm.json`."""
    path = directory / "lm.json"
    recorded = read_recorded(directory)
    tokens = _read_tokens(directory / "tokens.txt")
    described = recorded.get("inventory")
    unit = recorded.get("unit", UNITS[0])
    try:
        if described is None:
            inventory = _published(tokens, directory / "tokens.txt")
        elif isinstance(described, dict):
            inventory = Inventory.from_json(described | {"symbols": list(tokens)})
        else:
            raise TextError("inventory is no mapping")
        language = Language.from_json(recorded.get("language", EN.name))
    except TextError as error:
        fix = error.fix or "build the model again"
        raise LanguageModelError(error.what, where=f"{path} with tokens.txt", fix=fix) from None
    if unit not in UNITS:
        raise LanguageModelError(f"unit is {unit!r:.40}; word or character is needed", where=path)
    if unit == "character" and inventory.unit != "character":
        raise LanguageModelError(
            f"an open vocabulary of {inventory.unit}s is not possible", where=path
        )
    return inventory, language, unit


def _published(tokens: tuple[str, ...], path: Path) -> Inventory:
    """Return the inventory of published tokens, in whatever order."""
    missing = set(LM.symbols) - set(tokens)
    if len(set(tokens)) != len(tokens) or missing or len(tokens) != len(LM):
        problem = (
            f"lacks {', '.join(sorted(missing))}"
            if missing
            else "has tokens more than once or unknown ones"
        )
        raise LanguageModelError(
            f"{problem}; the {len(LM)} tokens {' '.join(LM.symbols[:3])} ... are needed",
            where=path,
            fix="for others, lm.json must name the inventory: build the model again",
        )
    known = (each for each in PUBLISHED if each.symbols == tokens)
    return next(known, replace(LM, name="tokens.txt", symbols=tokens))


def _read_tokens(path: Path) -> tuple[str, ...]:
    try:
        return tuple(read_text(path, _MOST_TOKENS_BYTES).split())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LanguageModelError(f"cannot read the tokens: {reason}", where=path) from None
