"""The search for the sentences of a split: in threads of this process, or on a Ray cluster.

Shapes: P patches, V tokens.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cortext.cores import available_cores
from cortext.data.packed import PackedSplit
from cortext.decoding import Decoder, DecoderOptions, NBest
from cortext.decoding.ngram import LanguageModel
from cortext.entry_points import load
from cortext.errors import DataError, DecodingError
from cortext.evaluation.decoder_files import DecoderFiles
from cortext.evaluation.decoder_options import ChosenOptions, choose_options
from cortext.evaluation.fit.confidence import (
    RAW,
    ChosenConfidence,
    FittedConfidence,
    choose_confidence,
    keep_confidence,
)
from cortext.evaluation.fit.options import TrialName, fit_to_run, kept_before
from cortext.evaluation.fit.regression import fit_confidence
from cortext.evaluation.settings import SearchSettings
from cortext.models import AcousticModel
from cortext.models.card import Conventional
from cortext.processes import Progress
from cortext.text.inventory import Inventory


@contextmanager
def stage(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add what the block takes to a table of seconds."""
    start = time.perf_counter()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start


def check_search(search: SearchSettings, fit: bool) -> None:
    """Raise DecodingError for settings that say nothing without a language model."""
    if search.lm is not None:
        return
    fix = "give an n-gram, too: --lm"
    if search.llm is not None:
        raise DecodingError("a large language model ranks what the word search finds", fix=fix)
    if search.ray is not None:
        raise DecodingError("a Ray cluster does the word search", fix=fix)
    if fit:
        raise DecodingError("decoder options are fitted to a word search", fix=fix)


class WordSearch:
    """The search for the sentences of trials, none with options that were fitted on itself.

    Args:
        run: Run directory, whose fitted options are used unless others are named.
        lm: Language-model directory.
        settings: Settings of the search.
        fit: Fit options to the trials before the search, and keep them in the run.

    Attributes:
        options: Options for trials that no fit has seen, and where they come from.
        cross_fitted: Options for the trials that the fit has seen, by their position.
        confidence: What the confidences of words are.
        about_llm: Description of the large model; None without one.
    """

    def __init__(
        self, run: str | Path, lm: str | Path, settings: SearchSettings, fit: bool = False
    ) -> None:
        # A fit does not begin with an earlier fit of this run: fitting twice gives the same.
        self.options = choose_options(None if fit else run, lm, settings.options)
        self.cross_fitted: dict[int, DecoderOptions] = {}
        self.about_llm: dict[str, Any] | None = None
        self._run = run
        self._settings = settings
        self._fits = fit
        self.confidence = ChosenConfidence(None, RAW) if fit else self._chosen_confidence(lm)
        self._decoder = Decoder.from_dir(lm, self.options.options)
        # The tasks of a cluster open the large model themselves.
        if settings.llm is not None and settings.ray is None:
            self._decoder = self._decoder.with_llm(settings.llm.open())

    @property
    def lm(self) -> LanguageModel:
        """The language model of the search."""
        return self._decoder.lm

    def require(self, model: Conventional) -> None:
        """Raise LanguageModelError unless the language model goes with a model's tokens."""
        self._decoder.lm.require(model.inventory, model.language, theirs="the run")

    @property
    def stages(self) -> int:
        """Stages of the work: two fits, the search, and ranking if done here."""
        return 2 * self._fits + 1 + (self._decoder.llm is not None)

    def fit(
        self,
        log_probs: Sequence[np.ndarray],
        trials: Sequence[TrialName],
        inventory: Inventory,
        source: tuple[str, str],
        progress: Progress | None,
    ) -> None:
        """Fit options to the trials, and keep them in the run.

        Args:
            log_probs: float32 [P, V] natural-log probabilities of each trial.
            trials: Name of each trial.
            inventory: Tokens of V, in order.
            source: Data and split of the trials, for the record.
            progress: Called with steps done and in all.
        """
        # Read first: the fit replaces the file.
        before = kept_before(self._run)
        fitted = fit_to_run(
            self._run,
            log_probs,
            trials,
            inventory,
            self._decoder,
            data=source[0],
            split=source[1],
            threads=self._threads,
            progress=progress,
        )
        self.options = ChosenOptions.now(fitted, self._run, before, self.options.options.llm)

    def fit_confidence(
        self,
        model: AcousticModel,
        split: PackedSplit,
        chosen: Sequence[int],
        data: str,
        progress: Progress | None,
    ) -> None:
        """Fit confidences to the trials with the fitted options, and keep them in the run.

        Args:
            model: The model.
            split: The split of the trials.
            chosen: Positions of the trials in the split.
            data: Data of the trials, for the record.
            progress: Called with steps done and in all.
        """
        fitted = self.options.fitted
        assert fitted is not None
        # The old confidences belong to the old options, and must not outlast them.
        FittedConfidence.drop(self._run)
        try:
            calibrator = fit_confidence(
                model,
                split,
                [TrialName.of(split, i) for i in chosen],
                chosen,
                # Confidences are for sentences that no large model ranks (`choose_confidence`).
                self._decoder.with_llm(None).with_options(**vars(fitted.options)),
                threads=self._threads,
                progress=progress,
            )
        except DataError as error:
            self.confidence = ChosenConfidence(None, f"{RAW} (none were fitted: {error.what})")
            return
        keep_confidence(self._run, calibrator, fitted, data=data, split=split.name)
        self.confidence = self._chosen_confidence(self._decoder.lm_dir)

    def _chosen_confidence(self, lm: str | Path) -> ChosenConfidence:
        settings = self._settings
        return choose_confidence(
            self._run, lm, self.options.options, has_llm=settings.llm is not None
        )

    def sentences(
        self,
        log_probs: Sequence[np.ndarray],
        trials: Sequence[TrialName],
        inventory: Inventory,
        seconds: dict[str, float],
        progress: Sequence[Progress | None],
    ) -> list[NBest]:
        """Return the sentences of each trial.

        Args:
            log_probs: float32 [P, V] natural-log probabilities of each trial.
            trials: Name of each trial.
            inventory: Tokens of V, in order.
            seconds: Table that gets the seconds of each stage.
            progress: Functions called with trials done and in all: of the search, and of ranking.
        """
        groups: dict[DecoderOptions, list[int]] = {}
        for number, trial in enumerate(trials):
            own = self.options.without(trial)
            if own is not None:
                self.cross_fitted[number] = own
            groups.setdefault(own or self.options.options, []).append(number)
        by_number: dict[int, NBest] = {}
        with stage(seconds, "search"):
            for options, numbers in groups.items():
                chosen = [log_probs[number] for number in numbers]
                report = _after(progress[0], len(by_number), len(trials))
                lists = self._search(options, chosen, inventory, report)
                by_number |= zip(numbers, lists, strict=True)
        if (llm := self._decoder.llm) is not None:
            with stage(seconds, "llm"):
                n_ranked = 0
                for options, numbers in groups.items():
                    ranked = self._decoder.with_options(**vars(options)).rank(
                        [by_number[number] for number in numbers],
                        self._settings.context,
                        _after(progress[1], n_ranked, len(trials)),
                    )
                    n_ranked += len(numbers)
                    by_number |= zip(numbers, ranked, strict=True)
            self.about_llm = llm.describe()
        if self._settings.llm is not None:
            self.about_llm = (self.about_llm or {}) | {"context": self._settings.context}
        return [by_number[number] for number in range(len(trials))]

    def _search(
        self,
        options: DecoderOptions,
        log_probs: Sequence[np.ndarray],
        inventory: Inventory,
        progress: Progress | None,
    ) -> list[NBest]:
        settings = self._settings
        calibrator = self.confidence.calibrator
        decoder = self._decoder.with_options(**vars(options)).with_calibrator(calibrator)
        if settings.ray is None:
            return decoder.search_batch(
                log_probs, inventory, self._threads, progress, settings.context
            )
        llm = settings.llm and settings.llm.resolved()
        # Absolute paths: a task may run in another directory.
        files = DecoderFiles(decoder.lm_dir.resolve(), options, llm, calibrator)
        decode_on_cluster = load("cortext.clusters", "ray")
        lists: list[NBest]
        lists, about_llm = decode_on_cluster(
            settings.ray,
            files,
            log_probs,
            inventory,
            context=settings.context,
            gpus_per_worker=settings.gpus_per_worker,
            progress=progress,
        )
        if llm is not None:
            # The cluster is called once for each group of options: keep the earlier notes.
            notes = [*(self.about_llm or {}).get("notes", []), *about_llm.get("notes", [])]
            self.about_llm = about_llm | {"notes": list(dict.fromkeys(notes))}
        return lists

    @property
    def _threads(self) -> int:
        return self._settings.threads or available_cores()


def _after(progress: Progress | None, done_before: int, total: int) -> Progress | None:
    """Return progress of some of the trials as progress of all of them."""
    if progress is None:
        return None
    report = progress
    return lambda done, _: report(done_before + done, total)
