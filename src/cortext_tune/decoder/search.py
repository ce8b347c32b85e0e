"""Search for decoder options: decode a development set with many, then write the best."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cortext.arguments import as_path, check_function, check_type
from cortext.config import from_mapping, to_mapping
from cortext.decoding import DecoderOptions
from cortext.errors import Interrupted, RunError
from cortext.evaluation.decoder_files import DecoderFiles
from cortext.evaluation.fit.search import STARTS, with_priors, without_idle_priors
from cortext_tune.cluster_decoding import shared
from cortext_tune.decoder.material import UtterancePart, describe, is_search_file
from cortext_tune.decoder.result import OptionErrors, Tuned, judged, write_results
from cortext_tune.decoder.space import DecoderSearch
from cortext_tune.decoder.trial import DecodeJob, ScoreJob, parts
from cortext_tune.search import Search, TuningTrial, load_optuna
from cortext_tune.space import Space, label, settings_of, with_settings, within_space
from cortext_tune.study import CORRECT, Given, TrialStore, begin_study, make_directory
from cortext_tune.workers import TrialOutcome, Work, Workers, WorkerSettings, run_all

if TYPE_CHECKING:
    from cortext_tune.decoder.sweep import Lists, Reranked

Report = Callable[[str], None]
"""Function that is called with a line for the user."""

MIN_FINISHED = 4
"""Finished trials that are needed before one is given up; a median of fewer is unreliable."""


def tune_decoder(
    tuned: UtterancePart,
    held_out: UtterancePart | None,
    decoder: DecoderFiles,
    out: str | Path,
    search: DecoderSearch = DecoderSearch(),
    *,
    given: Sequence[DecoderOptions] = (),
    context: str = "",
    where: WorkerSettings = WorkerSettings(),
    retry_failed: bool = False,
    report: Report = lambda line: None,
) -> Tuned:
    """Try decoder options, and write `options.yaml`, `trials.csv` and `trials.png`.

    The search minimises `100 * WER + time_weight * ms_per_frame`. `out/study.journal` has the
    trials: the same call continues an interrupted search, and several processes may work on it at
    the same time.

    Args:
        tuned: The utterances on which options are tuned.
        held_out: The utterances on which only the result is measured; None for none.
        decoder: The decoder. `decoder.options` are tried first, and fix the options that are not
            searched. Where `prior_weight` is, label priors are estimated from the logits. The
            weights of a large model in `rescore` mode are swept at the end, on lists that it has
            scored.
        out: The search directory.
        search: Settings of the search.
        given: Options that are tried next. In the usual space `STARTS` follow.
        context: Earlier sentences, for a large model.
        where: Processes or tasks that run the trials. A script with jobs must be guarded by
            `if __name__ == "__main__"`.
        retry_failed: Try failed options again.
        report: Called with a line for the user when a trial ends.

    Returns:
        The trials, and the rates of the best options.

    Raises:
        CortextError: For errors that a user can correct.
        Interrupted: After a Ctrl-C.
    """
    out = as_path(out, "out").resolve()
    check_type(tuned, UtterancePart, "tuned", "an UtterancePart (tuning_parts)")
    check_type(held_out, (UtterancePart, type(None)), "held_out", "an UtterancePart or None")
    check_type(decoder, DecoderFiles, "decoder", "DecoderFiles")
    check_type(search, DecoderSearch, "search", "a DecoderSearch")
    check_type(where, WorkerSettings, "where", "WorkerSettings")
    check_function(report, "report")
    start = decoder.options
    space, swept = search.spaces(start, decoder.llm is not None)
    first = [start, *given]
    if "prior_weight" in space:
        material = tuned.material
        first = [with_priors(each, material.log_probs, material.inventory) for each in first]
        decoder = replace(decoder, options=first[0])
    load_optuna()
    _check_models(decoder, [part for part in (tuned, held_out) if part is not None])
    known_good = [] if search.space else [decoder.options.changed(each) for each in STARTS]
    known = [_given(options, space) for options in (*first, *known_good)]
    draws = Search("tpe", space, search.n_trials, search.seed)
    with ExitStack() as stack:
        workers = stack.enter_context(closing(where.open()))
        make_directory(out)
        description = describe(tuned, held_out, decoder, context, space, search)
        begin_study(out, description, is_search_file)
        store = TrialStore(
            out, draws, known, lambda settings: _plain(with_settings(decoder.options, settings))
        )
        stack.enter_context(closing(store))
        if retry_failed:
            store.retry_failed()
        running = _DecoderSearch(
            out, tuned, held_out, decoder, search, context, store, workers, where.jobs, report
        )
        running.search_all()
        best, rows = running.judge_best([_plain(options) for options in first])
        points = None
        if swept:
            best, row, points = running.sweep(best, swept)
            rows.append(row)
        n_words = running.sample.n_words
        best = without_idle_priors(best, start)
        result = Tuned(out, store.trials(), rows, best, search, n_words, space, points)
        write_results(result)
    return result


def _check_models(decoder: DecoderFiles, parts: Sequence[UtterancePart]) -> None:
    """Raise the errors of the language models before anything is written."""
    # The options may name tokens of the utterances: these are compared first.
    lm = replace(decoder, llm=None, options=DecoderOptions()).open().lm
    for part in parts:
        part.material.require(lm)
    decoder.options.require_tokens(lm.inventory)
    if decoder.llm is not None:
        decoder.llm.check()


def _given(options: DecoderOptions, space: Space) -> Given:
    """Return options that are tried without being drawn."""
    plain = _plain(options)
    return Given(plain, within_space(space, settings_of(_options(plain), space)))


def _options(plain: dict[str, Any]) -> DecoderOptions:
    return from_mapping(DecoderOptions, plain)


def _plain(options: DecoderOptions) -> dict[str, Any]:
    """Return options as plain values, as JSON returns them."""
    plain: dict[str, Any] = json.loads(json.dumps(to_mapping(options)))
    return plain


Candidate = tuple[str, dict[str, Any], DecoderFiles]
"""Name, options as plain values, and decoder of a candidate."""


@dataclass
class _DecoderSearch:
    """A search that is running; the fields are the arguments of `tune_decoder`."""

    out: Path
    tuned: UtterancePart
    held_out: UtterancePart | None
    decoder: DecoderFiles
    search: DecoderSearch
    context: str
    store: TrialStore
    workers: Workers
    jobs: int
    report: Report

    def __post_init__(self) -> None:
        fuses = self.decoder.options.llm.mode == "fusion"
        self.searched = self.decoder if fuses else replace(self.decoder, llm=None)
        self.tuned = self.tuned.shuffled(self.search.seed)
        self.sample = self.tuned.first(self.search.sample)
        self.running: dict[int, TuningTrial] = {}

    def search_all(self) -> None:
        """Try options until all trials are done, or other processes run the rest."""
        self._run(self._begin, self._record)
        trials = self.store.trials()
        if others := sum(trial.state == "running" for trial in trials):
            self.report(
                f"trials that still run in other processes: {others}; this one ends without them"
            )
        if all(trial.state == "failed" for trial in trials):
            raise RunError(
                f"every trial failed; the first: {trials[0].reason}", where=self.out, fix=CORRECT
            )

    def judge_best(
        self, given: Sequence[dict[str, Any]]
    ) -> tuple[DecoderOptions, list[OptionErrors]]:
        """Return the best options, and the rates of the given ones and of the best."""
        finished = [trial for trial in self.store.trials() if trial.value is not None]
        finished.sort(key=lambda trial: trial.value or 0.0)
        if not finished:
            raise Interrupted(
                "other processes run all that is left", where=self.out, fix="wait for them"
            )
        shown = [trial for trial in finished if trial.options in given]
        best = finished[0]
        if self.search.sample is not None:
            finalists = finished[: self.search.finalists]
            finalists += [trial for trial in shown if trial not in finalists]
            rows = self._judge(
                [("", trial.options, self.searched) for trial in finalists], self.tuned
            )
            best = min(zip(rows, finalists, strict=True), key=lambda pair: self._value(pair[0]))[1]
        shown.sort(key=lambda trial: given.index(trial.options))
        candidates: list[Candidate] = []
        for trial in shown:
            index = given.index(trial.options)
            name = f"given {index}" if index else "start"
            name += ", the best" if trial == best else ""
            candidates.append((name, trial.options, self.searched))
        if best not in shown:
            candidates.append(("best", best.options, self.searched))
        return _options(best.options), self._judge_twice(candidates)

    def sweep(
        self, best: DecoderOptions, space: Space
    ) -> tuple[DecoderOptions, OptionErrors, list[Reranked]]:
        """Sweep the weights of the large model, and decode with the best of them.

        Returns:
            The options, what decoding with them has given, and the weights that were tried. Where
            it leaves no fewer errors than without the model, the options weigh the model with 0.
        """
        from cortext_tune.decoder.sweep import best_of, sweep

        self.report("the large model reads the lists")
        lists = self._lists(best)
        points = sweep(
            lists,
            self.tuned.references,
            best,
            space,
            self.search.llm_points,
            self.search.seed,
            self.tuned.material.conventions.language,
        )
        chosen = best_of(points)
        wer = 100 * chosen.errors / self.tuned.n_words
        self.report(
            f"{len(points)} weights by ranking again, best: WER {wer:.2f} %"
            f" ({label(chosen.settings)})"
        )
        options = with_settings(best, chosen.settings)
        (without,) = self._judge([("", _plain(best), self.searched)], self.tuned)
        (row,) = self._judge_twice([("best with the large model", _plain(options), self.decoder)])
        kept = options if row.wer < without.wer else with_settings(best, {"llm.weight": 0.0})
        return kept, row, points

    def _run(
        self, begin: Callable[[int], Work | None], record: Callable[[int, TrialOutcome], None]
    ) -> None:
        if run_all(begin, record, self.workers, self.jobs):
            fix = "the same command goes on with it"
            raise Interrupted("interrupted; what is finished is saved", where=self.out, fix=fix)

    def _run_jobs(self, jobs: Sequence[Work], record: Callable[[int, TrialOutcome], None]) -> None:
        """Run all jobs. Raises RunError where one fails."""
        left = iter(jobs)

        def check(number: int, outcome: TrialOutcome) -> None:
            if outcome.state == "failed":
                raise RunError(
                    f"{outcome.reason}", where=self.out, fix="the same command goes on with it"
                )
            if outcome.state == "finished":
                record(number, outcome)

        self._run(lambda slot: next(left, None), check)

    def _begin(self, slot: int) -> DecodeJob | None:
        if (trial := self.store.claim()) is None:
            return None
        self.running[trial.number] = trial
        job = self._job(trial.number, self.sample, trial.options, self.searched)
        return replace(job, most_errors=self._most_errors() if self.search.prune else ())

    def _record(self, number: int, outcome: TrialOutcome) -> None:
        trial = self.running.pop(number)
        name = f"trial {number} of {self.store.total}, {label(trial.settings) or 'as given'}"
        if outcome.state == "interrupted":
            return
        if outcome.state == "failed":
            self.store.fail(number, outcome.reason or "unknown")
            self.report(f"{name}: failed: {outcome.reason}")
        elif len(outcome.metrics["errors"]) < len(self.sample.indices):
            self.store.prune(number, outcome.metrics)
            self.report(f"{name}: given up after {len(outcome.metrics['errors'])} utterances")
        else:
            row = judged(name, trial.options, self.sample, outcome.metrics)
            self.store.finish(number, self._value(row), outcome.metrics)
            lacking = f"; {row.degraded}" if row.degraded else ""
            self.report(
                f"{name}: WER {100 * row.wer:.2f} %, {row.ms_per_frame:.3f} ms a frame{lacking}"
            )

    def _job(
        self, number: int, part: UtterancePart, options: dict[str, Any], decoder: DecoderFiles
    ) -> DecodeJob:
        files = replace(decoder, options=_options(options))
        return DecodeJob(number, part.material.source, part.indices, files, self.out, self.context)

    def _most_errors(self) -> tuple[float, ...]:
        """Return the median errors of finished trials after each part; nothing for a few trials."""
        finished = [
            trial.metrics["errors"] for trial in self.store.trials() if trial.state == "finished"
        ]
        if len(finished) < MIN_FINISHED:
            return ()
        medians = []
        end = 0
        for part in parts(self.sample.indices):
            end += len(part)
            medians.append(sorted(sum(errors[:end]) for errors in finished)[len(finished) // 2])
        return tuple(medians)

    def _value(self, row: OptionErrors) -> float:
        """Return the quantity to minimise."""
        return 100 * row.wer + self.search.time_weight * row.ms_per_frame

    def _judge_twice(self, candidates: Sequence[Candidate]) -> list[OptionErrors]:
        """Judge candidates on the utterances tuned on and on those held out."""
        rows = self._judge(candidates, self.tuned)
        if self.held_out is None:
            return rows
        others = self._judge(candidates, self.held_out)
        return [replace(row, held_out=other.tuned) for row, other in zip(rows, others, strict=True)]

    def _judge(self, candidates: Sequence[Candidate], part: UtterancePart) -> list[OptionErrors]:
        """Decode a part with each candidate, unless the study has its metrics already."""
        keys = [self._key(part, options, decoder) for _, options, decoder in candidates]
        jobs = [
            self._job(n, part, options, decoder)
            for n, (_, options, decoder) in enumerate(candidates)
            if self._known(keys[n], part, options, decoder) is None
        ]
        self._run_jobs(
            jobs, lambda number, outcome: self.store.remember(keys[number], outcome.metrics)
        )
        return [
            judged(name, options, part, self._known(key, part, options, decoder))
            for key, (name, options, decoder) in zip(keys, candidates, strict=True)
        ]

    def _key(self, part: UtterancePart, options: dict[str, Any], decoder: DecoderFiles) -> str:
        llm = None if decoder.llm is None else [decoder.llm.to_json(), self.context]
        facts = json.dumps([options, llm], sort_keys=True)
        return f"{part.name} {hashlib.sha256(facts.encode()).hexdigest()[:16]}"

    def _known(
        self, key: str, part: UtterancePart, options: dict[str, Any], decoder: DecoderFiles
    ) -> Any:
        """Return the metrics of an earlier job, which may have been a trial; or None."""
        if part is self.tuned and self.search.sample is None and decoder == self.searched:
            for trial in self.store.trials():
                if trial.state == "finished" and trial.options == options:
                    return trial.metrics
        return self.store.recall(key)

    def _lists(self, best: DecoderOptions) -> Lists:
        """Let the large model score the n-best lists, unless `lists.jsonl` has them."""
        from cortext_tune.decoder.sweep import read_lists, write_lists

        file = self.out / "lists.jsonl"
        indices = self.tuned.indices
        assert self.decoder.llm is not None
        llm = self.decoder.llm.to_json()
        made_by = {"options": _plain(best), "llm": llm, "context": self.context, "places": indices}
        if (kept := read_lists(file, made_by)) is not None:
            return kept
        size = shared(len(indices), self.jobs, self.decoder.llm)
        files = replace(self.decoder, options=best)
        source = self.tuned.material.source
        jobs = [
            ScoreJob(n, source, indices[at : at + size], files, self.out, self.context)
            for n, at in enumerate(range(0, len(indices), size))
        ]
        scored: dict[int, Lists] = {}
        self._run_jobs(
            jobs, lambda number, outcome: scored.update({number: outcome.metrics["lists"]})
        )
        lists = [one for number in sorted(scored) for one in scored[number]]
        write_lists(file, lists, made_by)
        return lists
