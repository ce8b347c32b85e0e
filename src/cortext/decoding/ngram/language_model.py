"""The language-model directory: `lexicon.txt`, `tokens.txt`, `lm.arpa` and `lm.json` (how it was built)."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from cortext.decoding.ngram.arpa import read_arpa, write_arpa
from cortext.decoding.ngram.estimate import SPECIAL, UNK_ID, Discounts, Level, estimate
from cortext.decoding.ngram.model import NGram, State
from cortext.errors import LanguageModelError, TextError
from cortext.text.lexicon import Lexicon
from cortext.text.normalize import normalize
from cortext.text.phonemes import LM

FORMAT_VERSION = 1
FILES = ("lexicon.txt", "tokens.txt", "lm.arpa", "lm.json")


class LanguageModel:
    """An n-gram model with the pronunciations of its words. Scores are natural logs.

    ngram:   the n-gram model
    lexicon: word to pronunciations
    tokens:  the phoneme symbols of `tokens.txt`, in its order
    """

    def __init__(self, directory: Path, ngram: NGram, lexicon: Lexicon, tokens: tuple[str, ...]) -> None:
        self.directory, self.ngram, self.lexicon, self.tokens = directory, ngram, lexicon, tokens

    @classmethod
    def build(
        cls,
        texts: Iterable[str | Path],
        order: int,
        out: str | Path,
        vocabulary: Iterable[str] | None = None,
    ) -> LanguageModel:
        """Estimate a model with interpolated modified Kneser-Ney smoothing, write its directory `out` and open it.

        texts:      `Path`s are files (plain or .gz) with one sentence per line; texts (`str`) are sentences.
                    All are normalised (`cortext.text.normalize`); pieces without a letter are passed over.
        order:      longest n-gram, 1 to 6
        vocabulary: words to keep; others count as `<unk>`. By default every word of the texts.

        An `out` that holds a language model is replaced, when the new one is complete. Raises LanguageModelError for
        texts that are missing, unreadable or empty, an order that does not fit, and an `out` with other files in it.
        """
        from cortext.text.pronunciation import lexicon_for

        out = Path(out)
        _refuse_foreign(out)
        sentences, sources = _read_texts(texts)
        counted = Counter(word for sentence in sentences for word in sentence)
        kept = sorted(counted if vocabulary is None else _checked_vocabulary(vocabulary))
        number = {word: index for index, word in enumerate(kept, start=len(SPECIAL))}
        ids = [np.array([number.get(word, UNK_ID) for word in sentence]) for sentence in sentences]
        levels, discounts = estimate(ids, len(kept) + len(SPECIAL), order)
        facts = _facts(levels, discounts, sources, counted, number)
        lexicon = lexicon_for(kept)
        _write(out, lexicon, [*SPECIAL, *kept], levels, facts)
        return cls.open(out)

    @classmethod
    def open(cls, lm_dir: str | Path) -> LanguageModel:
        """Read a language-model directory; `lm.arpa` may be gzipped (`lm.arpa.gz`), `lm.json` may be absent.

        Raises LanguageModelError naming the file (and line) that is missing or wrong.
        """
        directory = Path(lm_dir)
        if not directory.is_dir():
            raise LanguageModelError("no such directory", where=directory, fix="build one: cortext lm build TEXT --out")
        try:
            lexicon = Lexicon.read(directory / "lexicon.txt")
        except TextError as error:
            raise LanguageModelError(error.what, where=error.where, fix=error.fix) from None
        tokens = _read_tokens(directory / "tokens.txt")
        arpa = next((path for path in (directory / "lm.arpa", directory / "lm.arpa.gz") if path.is_file()), None)
        if arpa is None:
            found = "only a binary lm.bin, which is not read here" if (directory / "lm.bin").is_file() else "no lm.arpa"
            raise LanguageModelError(found, where=directory, fix="give the model as ARPA text, lm.arpa or lm.arpa.gz")
        return cls(directory, NGram(read_arpa(arpa)), lexicon, tokens)

    def begin(self) -> State:
        """The state at the start of a sentence."""
        return self.ngram.begin()

    def score(self, state: State, word: str) -> tuple[float, State]:
        """Log-probability of `word` after `state`, and the state after it; unknown words score as `<unk>`."""
        return self.ngram.score(state, word)

    def end(self, state: State) -> float:
        """Log-probability that the sentence ends after `state`."""
        return self.ngram.end(state)

    def sentence(self, text: str) -> float:
        """Log-probability of a sentence (normalised here) and its end."""
        return self.ngram.sentence(normalize(text))

    def info(self) -> dict[str, Any]:
        """What `lm.json` records (empty without one), and the model as it is on the disk."""
        facts: dict[str, Any] = {}
        path = self.directory / "lm.json"
        if path.is_file():
            try:
                facts = json.loads(path.read_text())
            except ValueError as error:
                raise LanguageModelError(f"not valid JSON: {error}", where=path) from None
        return facts | {
            "order": self.ngram.order,
            "counts": list(self.ngram.counts),
            "vocabulary": len(self.ngram.vocabulary),
            "lexicon_words": len(self.lexicon),
            "bytes": sum(file.stat().st_size for file in self.directory.iterdir() if file.is_file()),
        }

    def evaluate(self, texts: Path | Iterable[str | Path]) -> dict[str, Any]:
        """Perplexity and rate of unknown words of texts (as in `build`).

        `perplexity` is per word and sentence end; `perplexity_known` leaves unknown words out.
        """
        sentences, _ = _read_texts([texts] if isinstance(texts, Path) else texts)
        result = self.ngram.score_text(" ".join(sentence) for sentence in sentences)
        return {
            "sentences": result.sentences,
            "words": result.words,
            "perplexity": result.perplexity,
            "perplexity_known": result.perplexity_known,
            "unknown_words": result.unknown_words,
            "oov_rate": result.oov_rate,
            "log_prob": result.log_prob,
        }


def _read_texts(texts: Iterable[str | Path]) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """Sentences as words, and for each source its path (null for sentences given directly), sentences and words."""
    if isinstance(texts, str | Path):
        raise LanguageModelError(f"texts is {texts!r}; a list of Paths and sentences is needed")
    sentences: list[list[str]] = []
    sources: dict[str | None, list[int]] = {}
    for text in texts:
        if isinstance(text, str) and " " not in text and "/" in text and Path(text).is_file():
            raise LanguageModelError(f"the sentence {text!r} is the name of a file", fix="give it as a Path to read it")
        path = str(text) if isinstance(text, Path) else None
        source = sources.setdefault(path, [0, 0])
        for line in _lines(text) if isinstance(text, Path) else (text,):
            words = [word for word in normalize(line).split() if word.strip("-'")]
            if words:
                sentences.append(words)
                source[0] += 1
                source[1] += len(words)
    if not sentences:
        raise LanguageModelError(f"no sentence in {', '.join(map(str, sources)) or 'the texts'}")
    return sentences, [dict(path=path, sentences=n[0], words=n[1]) for path, n in sources.items()]


def _lines(path: Path) -> Iterator[str]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            yield from file
    except UnicodeDecodeError:
        raise LanguageModelError("not UTF-8 text", where=path, fix="give one sentence per line in UTF-8") from None
    except (OSError, EOFError, zlib.error) as error:
        raise LanguageModelError(
            f"cannot read the text: {getattr(error, 'strerror', None) or error}", where=path
        ) from None


def _checked_vocabulary(vocabulary: Iterable[str]) -> set[str]:
    words = set(vocabulary)
    for word in sorted(words):
        if normalize(word) != word or " " in word or not word.strip("-'"):
            raise LanguageModelError(f"{word!r} in the vocabulary is not a normalised word", fix="normalize it first")
    if not words:
        raise LanguageModelError("the vocabulary is empty")
    return words


def _facts(
    levels: list[Level],
    discounts: list[Discounts],
    sources: list[dict[str, Any]],
    counted: Counter[str],
    number: dict[str, int],
) -> dict[str, Any]:
    unknown = {word: count for word, count in counted.items() if word not in number}
    total = sum(counted.values())
    return {
        "format_version": FORMAT_VERSION,
        "order": len(levels),
        "smoothing": "interpolated modified Kneser-Ney",
        "counts": [len(level.ngrams) for level in levels],
        "discounts": [dict(values=list(each.values), fallback=each.fallback) for each in discounts],
        "vocabulary": len(number),
        "sources": sources,
        "out_of_vocabulary": {
            "words": sum(unknown.values()),
            "distinct": len(unknown),
            "rate": sum(unknown.values()) / total,
        },
        "version": version("cortext"),
    }


def _write(out: Path, lexicon: Lexicon, words: list[str], levels: list[Level], facts: dict[str, Any]) -> None:
    """Write the directory under a temporary name beside `out`, then put it in its place."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        lexicon.write(partial / "lexicon.txt")
        (partial / "tokens.txt").write_text("".join(f"{symbol}\n" for symbol in LM.symbols))
        write_arpa(partial / "lm.arpa", words, levels)
        (partial / "lm.json").write_text(json.dumps(facts, indent=2) + "\n")
        if out.is_dir():
            shutil.rmtree(out)
        partial.replace(out)
    except OSError as error:
        raise LanguageModelError(f"cannot write the language model: {error.strerror}", where=out) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _read_tokens(path: Path) -> tuple[str, ...]:
    try:
        tokens = tuple(path.read_text(encoding="utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or error
        raise LanguageModelError(f"cannot read the tokens: {what}", where=path) from None
    missing = set(LM.symbols) - set(tokens)
    if len(set(tokens)) != len(tokens) or missing or len(tokens) != len(LM):
        found = f"lacks {', '.join(sorted(missing))}" if missing else "has tokens more than once or unknown ones"
        raise LanguageModelError(f"{found}; the {len(LM)} tokens {' '.join(LM.symbols[:3])} ... are needed", where=path)
    return tokens


def _refuse_foreign(out: Path) -> None:
    """A directory to write may be absent, empty, or hold a language model."""
    if out.exists() and not out.is_dir():
        raise LanguageModelError("is a file; a directory to write is needed", where=out)
    foreign = sorted(path.name for path in out.iterdir() if path.name not in FILES) if out.is_dir() else []
    if foreign:
        raise LanguageModelError(f"holds {foreign[0]!r}, which is no part of a language model", where=out)
