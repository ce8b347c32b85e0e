"""`Decoder`: ranks sentences by log-probabilities, at once, in batches or as a stream."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from cortext.arguments import as_count, as_path, check_function, check_list, check_text, check_type
from cortext.decoding.confidence import Calibrator
from cortext.decoding.engine import Hook, NativeEngine
from cortext.decoding.log_probs import check_log_probs, check_trials
from cortext.decoding.nbest import Hypothesis, NBest
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.open_vocabulary import OpenVocabularyEngine, no_words
from cortext.decoding.options import DecoderOptions
from cortext.decoding.stream import (
    BoundCalibrator,
    DecoderStream,
    LargeModel,
    ModelHook,
    ReadsLanguage,
    SearchStream,
    marked,
    search_options,
)
from cortext.decoding.words import WordChanges, Words
from cortext.describe import Described
from cortext.errors import DecodingError, wrong_type
from cortext.processes import Progress
from cortext.text.inventory import Inventory, get_inventory
from cortext.text.language import Language


class Decoder(Described):
    """Search for the sentences that log-probabilities most probably say.

    The search needs a lexicon and an n-gram. Threads may share a decoder.
    """

    def __init__(
        self, lm_dir: Path, options: DecoderOptions, second_lm: Path | None = None
    ) -> None:
        self.lm_dir = lm_dir
        self.options = options
        engine = NativeEngine.from_dir(lm_dir, second_lm)
        self._engine = OpenVocabularyEngine(engine) if engine.lm.is_open else engine
        options.require_tokens(self.inventory)
        self._accepted = self.inventory
        self._words = WordChanges()
        self._llm: LargeModel | None = None
        self._calibrator: Calibrator | None = None

    @classmethod
    def from_dir(
        cls,
        lm_dir: str | Path,
        options: DecoderOptions | Mapping[str, Any] | None = None,
        second_lm: str | Path | None = None,
    ) -> Decoder:
        """Return a decoder for a language-model directory.

        Args:
            lm_dir: Directory with `lexicon.txt`, `tokens.txt` and `lm.bin` or `lm.arpa`. Its
                inventory, of up to 250 tokens, is the decoder's.
            options: `DecoderOptions`, or a mapping of its fields; the defaults without.
            second_lm: Another such directory of the same tokens and language, whose (larger) n-gram
                takes the place of the first one's when an utterance ends: lattices are rescored
                with it, and the scores are its own.

        Raises:
            LanguageModelError: For a directory that cannot be used.
            DecodingError: For options that do not exist.
        """
        return cls(
            as_path(lm_dir, "lm_dir"),
            DecoderOptions.of(options),
            None if second_lm is None else as_path(second_lm, "second_lm"),
        )

    def with_options(self, **changes: Any) -> Decoder:
        """Return a decoder with some options changed that shares the model in memory."""
        other = copy.copy(self)
        other.options = self.options.changed(changes)
        other.options.require_tokens(self.inventory)
        return other

    def with_llm(self, llm: LargeModel | None) -> Decoder:
        """Return a decoder that also asks a large language model (None: no longer asks one).

        It shares the n-gram and the lexicon in memory.

        Raises:
            DecodingError: For a model in fusion with a search that knows no words.
        """
        if llm is not None and not hasattr(llm, "rank"):
            raise wrong_type("llm", llm, "a large model, as LLM.load(directory) opens it,")
        other = copy.copy(self)
        if llm is not None and self.lm.is_open and self.options.llm.mode == "fusion":
            raise no_words(self.lm)
        other._llm = llm.in_language(self.language) if isinstance(llm, ReadsLanguage) else llm
        return other

    def with_calibrator(self, calibrator: Calibrator | None) -> Decoder:
        """Return a decoder whose confidences are calibrated (None: the search's posteriors).

        Sentences have calibrated confidences where the options in force are those that the
        calibrator was fitted with, and no large model ranks them.
        """
        other = copy.copy(self)
        other._calibrator = calibrator
        return other

    def only(self, words: Iterable[str]) -> Decoder:
        """Return a decoder that finds no other words than these.

        It shares the n-gram in memory. A word that the lexicon lacks is pronounced as it is spelt,
        and scores as unknown.

        Raises:
            LanguageModelError: For a word that cannot be pronounced, and for an open vocabulary.
        """
        other = copy.copy(self)
        other._engine = self._engine.with_lm(self.lm.only(words))
        return other

    def _facts(self) -> dict[str, Any]:
        lm = self.lm
        return {
            "language model": self.lm_dir,
            "order": lm.ngram.order,
            "words": len(lm.lexicon),
            "unit": lm.unit if lm.is_open else None,
            "inventory": None if lm.inventory.is_published else lm.inventory.name,
            "options": self.options.differences() or "the defaults",
            "large model": None if self._llm is None else type(self._llm).__name__,
        }

    @property
    def lm(self) -> LanguageModel:
        """The language model: n-gram, lexicon, inventory and language."""
        return self._engine.lm

    @property
    def inventory(self) -> Inventory:
        """The language model's inventory; log-probabilities must be of the same tokens."""
        return self.lm.inventory

    @property
    def language(self) -> Language:
        """The language model's language."""
        return self.lm.language

    @property
    def calibrator(self) -> Calibrator | None:
        """The calibrator of confidences; None where they are the search's posteriors."""
        return self._calibrator

    @property
    def llm(self) -> LargeModel | None:
        """The large language model that is asked, if any."""
        return self._llm

    def add_words(self, words: Words) -> None:
        """Add words or pronunciations for all utterances that begin from now on.

        Args:
            words: Words, pronounced as they are spelt, or a mapping of words to pronunciations
                without the closing SIL (`{"avni": [("AA", "V", "N", "IY")]}`). A word that the
                n-gram does not know scores as unknown.

        Raises:
            DecodingError: For a word that cannot be pronounced in the language model's inventory,
                and for any word where the language model is of characters.
        """
        self._words = self._words.with_words(words, self.lm)

    def remove_words(self, words: Iterable[str]) -> None:
        """Take words out of the search, for all utterances that begin from now on."""
        self._words = self._words.without_words(words, self.lm)

    def __contains__(self, word: object) -> bool:
        """Tell whether utterances that begin from now on can hold the word."""
        if isinstance(self._engine, OpenVocabularyEngine):
            return isinstance(word, str) and self._engine.can_spell(word)
        if isinstance(word, str) and not self.language.is_benchmark:
            word = self.language.normalize(word)
        if word in self._words.removed:
            return False
        return word in self.lm.lexicon or any(word == added for added, _ in self._words.added)

    def decode(
        self,
        log_probs_PV: np.ndarray,
        inventory: Inventory | str,
        hotwords: Mapping[str, float] | None = None,
        context: str = "",
    ) -> NBest:
        """Return the n-best list of one utterance; no frames give the empty sentence.

        Args:
            log_probs_PV: float32 [P, V], C-contiguous natural-log probabilities of a frame's
                tokens. -inf is allowed.
            inventory: Tokens of the columns, in order: an `Inventory`, `"release"` or `"lm"`.
            hotwords: See `stream`.
            context: See `stream`.

        Raises:
            LanguageModelError: For another inventory than the language model's.
            DecodingError: For anything else: nothing is guessed, converted or reordered.
        """
        inventory = self._checked(inventory)
        check_log_probs(log_probs_PV, inventory)
        nbest = self._search(
            log_probs_PV,
            inventory,
            self._words.with_bonuses({} if hotwords is None else hotwords, self.lm),
            context,
        )
        return self.rank([nbest], context)[0]

    def decode_batch(
        self,
        log_probs: Sequence[np.ndarray],
        inventory: Inventory | str,
        threads: int = 1,
        progress: Progress | None = None,
        context: str = "",
    ) -> list[NBest]:
        """Return the n-best list of each utterance, as `decode` does, with `threads` threads.

        The results do not depend on their number. All utterances are checked before any is decoded;
        the error says which one it is.

        Args:
            log_probs: float32 [P, V] of each utterance.
            inventory: Tokens of the columns, in order.
            threads: Number of threads; the native search runs without the interpreter's lock.
            progress: Called with utterances done and in all.
            context: See `stream`; the same for all trials.
        """
        n_parts = 1 if self._llm is None else 2
        lists = self.search_batch(
            log_probs, inventory, threads, part_of(progress, 0, n_parts), context
        )
        return self.rank(lists, context, part_of(progress, 1, n_parts))

    def search_batch(
        self,
        log_probs: Sequence[np.ndarray],
        inventory: Inventory | str,
        threads: int = 1,
        progress: Progress | None = None,
        context: str = "",
    ) -> list[NBest]:
        """Return the lists of `decode_batch` before a large model ranks them; `rank` does that.

        Args:
            log_probs: float32 [P, V] of each utterance.
            inventory: Tokens of the columns, in order.
            threads: Number of threads; the results do not depend on it.
            progress: Called with utterances done and in all.
            context: See `stream`; the same for all utterances.

        Raises:
            DecodingError: As in `decode`; it says which utterance it is.
        """
        inventory = self._checked(inventory)
        log_probs = list(check_list(log_probs, "log_probs", "a list of arrays [frames, tokens]"))
        threads = as_count(threads, "threads")
        check_function(progress, "progress")
        check_trials(log_probs, inventory)

        def search(log_probs_PV: np.ndarray) -> NBest:
            return self._search(log_probs_PV, inventory, self._words, context)

        pool = ThreadPoolExecutor(max(threads, 1))
        try:
            lists = []
            for nbest in pool.map(search, log_probs):
                lists.append(nbest)
                if progress:
                    progress(len(lists), len(log_probs))
        finally:  # after Ctrl-C nothing that has not begun is decoded
            pool.shutdown(cancel_futures=True)
        return lists

    def rank(
        self, lists: Sequence[NBest], context: str = "", progress: Progress | None = None
    ) -> list[NBest]:
        """Return the lists of `search_batch` as the large model ranks them, if there is one.

        Args:
            lists: N-best list of each utterance.
            context: See `stream`; the same for all utterances.
            progress: Called with lists done and in all.
        """
        for nbest in check_list(lists, "lists", "a list of NBest"):
            check_type(nbest, NBest, "a list", "an NBest")
        return (
            list(lists)
            if self._llm is None
            else self._llm.rank(lists, self.options, context, progress)
        )

    def _checked(self, inventory: Inventory | str) -> Inventory:
        """Return the inventory; raise LanguageModelError unless it is the language model's."""
        inventory = get_inventory(inventory)
        if inventory is not self._accepted:  # comparing takes as long as searching some frames
            self.lm.require(inventory, theirs="the log-probabilities")
            self._accepted = inventory
        return inventory

    def _search(
        self, log_probs_PV: np.ndarray, inventory: Inventory, words: WordChanges, context: str
    ) -> NBest:
        """Search a whole utterance; a large model has not ranked the list yet."""
        hook = self._hook(context)
        search = self._start(inventory, words, hook)
        search.advance(log_probs_PV)
        nbest = marked(search.finish(), hook)
        calibration = self._calibration
        if calibration is None or not len(log_probs_PV):
            return nbest
        return calibration.of(nbest, log_probs_PV, self.options)

    @property
    def _calibration(self) -> BoundCalibrator | None:
        if self._calibrator is None or self._llm is not None:
            return None
        return BoundCalibrator(self._calibrator, self.lm)

    def _hook(self, context: str) -> ModelHook | None:
        return None if self._llm is None else self._llm.hook(self.options, context)

    def _start(self, inventory: Inventory, words: WordChanges, hook: Hook | None) -> SearchStream:
        options = search_options(self.options, self._llm)
        if self._llm is None:
            return self._engine.start(options, inventory, words)
        return self._engine.start(options, inventory, words, hook, options.llm.every_frames)

    def stream(
        self,
        inventory: Inventory | str,
        *,
        words: Words = (),
        hotwords: Mapping[str, float] | None = None,
        hook: Hook | None = None,
        every_frames: int = 1,
        context: str = "",
    ) -> DecoderStream:
        """Begin the search in an utterance that comes in chunks.

        Args:
            inventory: Tokens of the columns: an `Inventory`, `"release"` or `"lm"`.
            words: More words for this utterance alone (names, places), as in `add_words`.
            hotwords: Bonus by word, added to the score wherever it is decoded, and to words that
                may become it.
            hook: Called with the live hypotheses (`LiveBatch`); the float32 [N] that it returns are
                added to their scores, None adds nothing. Not beside a large model. Set
                `history_words` so that hypotheses with different scores are kept apart.
            every_frames: Frames between two calls of the hook; it is also called at the end.
            context: The preceding text, for a large model.
        """
        inventory = self._checked(inventory)
        check_function(hook, "hook")
        changes = self._words.with_words(words, self.lm).with_bonuses(
            {} if hotwords is None else hotwords, self.lm
        )
        if hook is None:
            model = self._hook(context)
            search = self._start(inventory, changes, model)
            return DecoderStream(
                search,
                self.options,
                inventory,
                self._llm,
                context,
                model,
                calibration=self._calibration,
            )
        if self._llm is not None:
            raise DecodingError(
                "a hook cannot be used beside a large model", fix="open it with_llm(None)"
            )
        search = self._engine.start(self.options, inventory, changes, hook, every_frames)
        return DecoderStream(search, self.options, inventory)

    def score(self, log_probs_PV: np.ndarray, inventory: Inventory | str, text: str) -> Hypothesis:
        """Return the exact scores and word times of a given sentence, whether or not it is found.

        Args:
            log_probs_PV: float32 [P, V], as in `decode`.
            inventory: Tokens of the columns, in order.
            text: Words of the lexicon or added ones, separated by blanks. Where the language is
                not the benchmark's English, it is normalised.

        Raises:
            TextError: For letters that the language lacks.
            DecodingError: For a word that the lexicon lacks or a sentence too long for the frames.
        """
        inventory = self._checked(inventory)
        check_text(text, "text")
        check_log_probs(log_probs_PV, inventory)
        if not self.language.is_benchmark:
            self.language.require(text)
            text = self.language.normalize(text)
        return self._engine.score(text, log_probs_PV, self.options, inventory, self._words)


def notes_of(notes: Iterable[str], lists: Mapping[Any, NBest]) -> list[str]:
    """Return one line for each thing that was not done as asked.

    Args:
        notes: Notes of a large model (`LargeModel.describe`).
        lists: N-best lists by the trial's name, which the lines hold; `degraded` says what failed.
    """
    missing: dict[str, list[str]] = {}
    for name, nbest in lists.items():
        if nbest.degraded:
            missing.setdefault(nbest.degraded, []).append(str(name))
    return [
        *notes,
        *(
            f"{len(names)} of {len(lists)} sentences {why} (trials {', '.join(names)})"
            for why, names in missing.items()
        ),
    ]


def part_of(progress: Progress | None, part: int, parts: int) -> Progress | None:
    """Return progress of one of several stages as progress of all of them.

    Args:
        progress: Called with steps done and in all, over all stages; None: nothing is reported.
        part: Number of the stage, from 0.
        parts: Number of stages, each of which gets an equal share.
    """
    check_function(progress, "progress")
    if progress is None:
        return None
    report = progress
    return lambda done, total: report(part * total + done, parts * total)
