"""Building a language-model directory from texts: read, count, estimate, interpolate, write."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from cortext import __version__, _native
from cortext.decoding.ngram.build_settings import BINARIES, BuildSettings, Stage
from cortext.decoding.ngram.corpus import Corpus, grouped, read_corpus, silent
from cortext.decoding.ngram.pronouncing import MOST_NAMED, own_lexicon, pronounce_words
from cortext.decoding.ngram.vocabulary import (
    LETTERS,
    SPECIAL,
    SpeltTokens,
    choose,
    letter_lexicon,
    renumbered,
    spelt,
    symbol_lexicon,
)
from cortext.errors import LanguageModelError
from cortext.files import atomic_directory, disk_error
from cortext.processes import Progress
from cortext.text.inventory import LM, Inventory
from cortext.text.language import EN
from cortext.text.lexicon import Lexicon
from cortext.text.pronunciation import Pronounced
from cortext_lm.ngram import counts, lmplz
from cortext_lm.ngram.database import Database, in_background
from cortext_lm.ngram.estimate import Estimated, estimate
from cortext_lm.ngram.interpolate import Mixture, fit_weights, mix
from cortext_lm.ngram.write_model import write_model

FORMAT_VERSION = 2
FILES = ("lexicon.txt", "tokens.txt", "lm.bin", "lm.arpa", "lm.arpa.gz", "lm.json")


def build(
    texts: Iterable[str | Path], out: Path, options: BuildSettings, stage: Stage = lambda name: None
) -> None:
    """Write a language-model directory; see `LanguageModel.build`.

    Args:
        texts: `Path`s of files, and sentences.
        out: Directory to write.
        options: Settings of the model.
        stage: Called with the name of each stage as it begins; returns the stage's progress
            callback or None.
    """
    refuse_foreign(out)
    if options.engine == "lmplz":
        lmplz.find_lmplz()
    named = grouped(texts)
    if options.interpolate and len(named) < 2:
        raise LanguageModelError("interpolation needs two texts or more")
    if options.held_out and options.held_out.resolve() in [
        text.resolve() for text in named if isinstance(text, Path)
    ]:
        raise LanguageModelError("the held-out text is one of the texts", where=options.held_out)
    with in_place_of(out) as partial:
        _Build(partial, options, stage).run(named)


class _Build:
    """One build, in the directory `partial`."""

    def __init__(self, partial: Path, options: BuildSettings, stage: Stage) -> None:
        self.partial = partial
        self.options = options
        self.stage = stage
        self.work = partial / "work"
        self.arpa = partial / "lm.arpa"
        self.tokens = SpeltTokens(options.inventory, options.language) if options.is_open else None
        self.respell = spelt if options.kind == "spelling" else self.tokens
        self.facts: dict[str, Any] = {}

    def run(self, texts: Sequence[Path | list[str]]) -> None:
        """Read, count, estimate and write."""
        options = self.options
        self.work.mkdir()
        own = own_lexicon(options)
        corpus = self._read(texts, self.work, self.stage("reading") or silent)
        pronounced = self._pronounce(corpus, own, self.stage("pronouncing") or silent)
        kept = pronounced.words
        words = [*SPECIAL, *kept]
        self.facts = _facts(corpus, words, options) | _own_facts(corpus, pronounced, options)
        if own is not None and own.format:
            self.facts["lexicon"] = own.format
        if options.engine == "lmplz":
            self.stage("lmplz")
            in_texts = set(corpus.words)
            kept = [word for word in kept if word in in_texts]
            lmplz.run_lmplz(
                corpus, kept, options.thresholds, self.arpa, self.work, options.memory_bytes
            )
            self.facts["estimator"] = "lmplz"
        else:
            self._estimate(corpus, words)
        shutil.rmtree(self.work)
        self.stage("writing lm.bin")
        write_binary(
            self.partial, options.binary, options.keep_arpa, min(options.memory_bytes, 1 << 30)
        )
        inventory = LM if options.inventory.is_published else options.inventory
        write_rest(self.partial, pronounced.lexicon, self.facts, kept, inventory)

    def _read(
        self, texts: Sequence[Path | list[str]], directory: Path, progress: Progress = silent
    ) -> Corpus:
        options = self.options
        return read_corpus(
            texts,
            directory,
            apart=options.interpolate,
            respell=self.respell,
            progress=progress,
            language=options.language,
            skip_damaged=options.skip_damaged,
            marks=self.tokens is not None,
        )

    def _pronounce(self, corpus: Corpus, own: Lexicon | None, progress: Progress) -> Pronounced:
        """Return the pronunciations of the words to keep."""
        options = self.options
        if self.tokens is not None:
            lexicon = symbol_lexicon(options.inventory)
            return Pronounced(lexicon, list(lexicon), {}, list(self.tokens.without))
        if options.is_english_spelling:
            return Pronounced(letter_lexicon(), list(LETTERS))
        kept = choose(corpus.words, corpus.counts, options.vocabulary, options.language)
        return pronounce_words(_counted(kept, progress), options, own)

    def _estimate(self, corpus: Corpus, words: list[str]) -> None:
        """Write the ARPA file."""
        options = self.options
        order = options.order
        number = {word: index for index, word in enumerate(words)}
        renumber = renumbered(corpus.words, number)
        keys = counts.Keys.of(max(len(words), int(renumber.max()) + 1), order)
        n_models = len(corpus.files)
        step = _steps(self.stage("estimating"), 2 * order * n_models + order * (1 + (n_models > 1)))
        with Database(self.work, options.memory_bytes) as database:
            models = []
            for index, file in enumerate(corpus.files):
                name = f"m{index}"
                counts.count(
                    database, name, keys, file, renumber, len(words), options.thresholds, step
                )
                file.unlink()
                models.append(estimate(database, name, keys, len(words), order, step))
            model = models[0]
            if options.interpolate:
                mixture = self._fit(database, models, number, len(words))
                model = mix(database, models, mixture.weights, step)
            if not all(model.kept):
                lowest = model.kept.index(0) + 1
                silent = self.facts.get("pronunciations", {}).get("without", 0)
                why = f": {silent:,} words have no pronunciation" if silent else ""
                fix = "prune less, keep more words, or use a lower order"
                raise LanguageModelError(f"no n-gram of order {lowest} is left{why}", fix=fix)
            self._record(models)
            write_model(database, model, words, self.arpa, options.keep_arpa, step)

    def _fit(
        self, database: Database, models: list[Estimated], number: dict[str, int], n_words: int
    ) -> Mixture:
        assert self.options.held_out is not None
        directory = self.work / "held"
        directory.mkdir()
        held = self._read([self.options.held_out], directory)
        mixture = fit_weights(
            database, models, held.files[0], renumbered(held.words, number), n_words
        )
        self.facts["interpolation"] = {
            "held_out": str(self.options.held_out),
            "tokens": mixture.tokens,
            "weights": list(mixture.weights),
            "perplexities": list(mixture.perplexities),
            "perplexity": mixture.perplexity,
        }
        return mixture

    def _record(self, models: Sequence[Estimated]) -> None:
        discounts = [[asdict(each) for each in model.discounts] for model in models]
        self.facts["discounts"] = discounts if self.options.interpolate else discounts[0]
        seen, kept = (
            np.sum([getattr(model, which) for model in models], axis=0)
            for which in ("seen", "kept")
        )
        self.facts["left_out"] = [0, *(seen - kept).tolist()[1:]]


def write_binary(
    directory: Path, binary: str, keep_arpa: bool = False, memory_bytes: int = 1 << 30
) -> None:
    """Make `lm.bin` of the `lm.arpa` in a directory.

    Args:
        directory: The directory.
        binary: Type of the file, one of `BINARIES`.
        keep_arpa: Keep `lm.arpa`, too.
        memory_bytes: Memory for sorting.
    """
    arpa = directory / "lm.arpa"
    out = directory / "lm.bin"
    in_background(
        lambda: _native.write_binary(
            str(arpa), str(out), **BINARIES[binary], memory_bytes=memory_bytes
        )
    )
    if not keep_arpa:
        arpa.unlink()


def write_rest(
    directory: Path,
    lexicon: Lexicon,
    facts: dict[str, Any],
    words: Iterable[str] | None = None,
    inventory: Inventory = LM,
) -> None:
    """Write the files of a language-model directory besides the n-grams.

    Args:
        directory: The directory, with `lm.bin` in it.
        lexicon: Pronunciations.
        facts: Content of `lm.json`, to which the facts of `lm.bin` are added.
        words: Words of `lexicon.txt`; None for all that have a pronunciation.
        inventory: Content of `tokens.txt`.
    """
    lexicon.write(directory / "lexicon.txt", words)
    tokens = "".join(f"{symbol}\n" for symbol in inventory.symbols)
    (directory / "tokens.txt").write_text(tokens, encoding="utf-8")
    model = _native.NGram.open(str(directory / "lm.bin"))
    described = {
        "counts": list(model.counts),
        "binary": model.kind,
        "bytes_per_ngram": round(model.bytes / sum(model.counts), 2),
        "version": __version__,
    }
    (directory / "lm.json").write_text(json.dumps(facts | described, indent=2) + "\n")


def refuse_foreign(out: Path) -> None:
    """Raise unless a directory to write is absent, empty or that of a language model."""
    if out.exists() and not out.is_dir():
        raise LanguageModelError("is a file; a directory to write is needed", where=out)
    if out.resolve() == Path.cwd():
        raise LanguageModelError(
            "is the current directory", where=out, fix="give a directory in it"
        )
    files = list(out.iterdir()) if out.is_dir() else []
    foreign = sorted(path.name for path in files if path.name not in FILES or path.is_dir())
    if foreign:
        raise LanguageModelError(
            f"holds {foreign[0]!r}, which is no part of a language model",
            where=out,
            fix="give a new directory",
        )


@contextmanager
def in_place_of(out: Path) -> Iterator[Path]:
    """Yield a directory that takes the place of `out` at the end, and vanishes on failure."""
    try:
        with atomic_directory(out.resolve()) as partial:
            yield partial
    except OSError as error:
        failed = disk_error(error, out)
        raise LanguageModelError(failed.what, where=out, fix=failed.fix) from None


def _steps(bar: Callable[[int, int], None] | None, total: int) -> Callable[[], None]:
    """Return a function that reports one more step of a stage as done."""
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        (bar or silent)(done, total)

    return step


def _counted(words: Sequence[str], bar: Callable[[int, int], None]) -> Iterator[str]:
    for done, word in enumerate(words, start=1):
        yield word
        if done % 1000 == 0:
            bar(done, len(words))


def _facts(corpus: Corpus, words: Sequence[str], options: BuildSettings) -> dict[str, Any]:
    known = set(words)
    outside = [
        count
        for word, count in zip(corpus.words, corpus.counts.tolist(), strict=True)
        if word not in known
    ]
    total = int(corpus.counts[len(SPECIAL) :].sum())
    return {
        "format_version": FORMAT_VERSION,
        "kind": options.kind,
        "order": options.order,
        "smoothing": "interpolated modified Kneser-Ney",
        "estimator": "cortext",
        "prune": list(options.thresholds),
        "vocabulary": len(words) - len(SPECIAL),
        "sources": corpus.sources,
        "text": corpus.report.to_json(),
        "out_of_vocabulary": {
            "words": sum(outside),
            "distinct": len(outside),
            "rate": sum(outside) / total,
        },
    }


def _own_facts(corpus: Corpus, pronounced: Pronounced, options: BuildSettings) -> dict[str, Any]:
    """Return the facts that a model of the published tokens and language does not have."""
    facts: dict[str, Any] = {}
    if not options.inventory.is_published:
        facts["inventory"] = options.inventory.to_json()
        del facts["inventory"]["symbols"]  # they stand in tokens.txt
    if options.language != EN:
        facts["language"] = options.language.to_json()
    if options.is_open:
        facts["unit"] = options.unit
    if facts or options.lexicon is not None or options.g2p is not None or options.spell:
        counts = dict(zip(corpus.words, corpus.counts.tolist(), strict=True))
        named = sorted(pronounced.without, key=lambda word: (-counts.get(word, 0), word))
        facts["pronunciations"] = pronounced.sources | {"without": len(pronounced.without)}
        facts["without_pronunciation"] = named[:MOST_NAMED]
    return facts
