"""A search for decoder options on a development set.

By decoding it again and again, in the way of `tune_training`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cortext.config import from_mapping, to_mapping
from cortext.decoding import DecoderOptions
from cortext.errors import ConfigError, Interrupted, RunError
from cortext.evaluation.cluster import DecoderFiles, shared
from cortext.tuning.decoder_material import Part, check_directory, describe
from cortext.tuning.decoder_result import Judged, Tuned, judged, write_results
from cortext.tuning.decoder_search import DecoderSearch
from cortext.tuning.decoder_store import Given, Store, Tried
from cortext.tuning.decoder_trial import DecodeJob, ReadJob, parts
from cortext.tuning.directory import CORRECT, make
from cortext.tuning.search import Search
from cortext.tuning.space import Space, label, settings_of, with_settings, within
from cortext.tuning.tpe import quiet_optuna
from cortext.tuning.trial import Outcome, Work
from cortext.tuning.workers import Here, Processes, RayTasks, Workers, work_through

if TYPE_CHECKING:
    from cortext.tuning.decoder_llm import Lists, Reranked

Report = Callable[[str], None]
"""Called with a line for the user."""

LOOKED_BACK = 4
"""So many trials must have finished before one is given up."""


@dataclass(frozen=True)
class Where:
    """Where trials run.

    Attributes:
        jobs: At the same time: processes of their own from 2 on, or tasks of the Ray cluster `ray`
            (an address, `local`).
        gpus_per_worker: What a task on Ray is given of a GPU; processes share `--llm-device`.
    """

    jobs: int = 1
    ray: str | None = None
    gpus_per_worker: float = 0.0

    def open(self) -> Workers:
        """What runs them."""
        if self.jobs < 1 or self.gpus_per_worker < 0:
            raise ConfigError(
                f"jobs is {self.jobs}, gpus_per_worker is {self.gpus_per_worker}; 1 and 0 are the"
                " least"
            )
        if self.gpus_per_worker and self.ray is None:
            raise ConfigError(
                "GPUs are shared out to workers only by Ray", fix="name a cluster, or `local`"
            )
        if self.ray is not None:
            return RayTasks(self.ray, 1, self.gpus_per_worker, self.jobs)
        return Here() if self.jobs == 1 else Processes(keep=True)


def tune_decoder(
    tuned: Part,
    held_out: Part | None,
    decoder: DecoderFiles,
    out: str | Path,
    search: DecoderSearch = DecoderSearch(),
    *,
    given: Sequence[DecoderOptions] = (),
    context: str = "",
    where: Where = Where(),
    retry_failed: bool = False,
    report: Report = lambda line: None,
) -> Tuned:
    """Try decoder options on utterances, and write `options.yaml`, `trials.csv` and `trials.png`
    into `out`.

    What is minimised is `100 * WER + time_weight * ms_per_frame`. `out/study.db` has the trials:
    the same call goes on where it was, and several processes may make it at once. Raises a
    CortextError for what a user can put right, and Interrupted after a Ctrl-C.

    Args:
        tuned, held_out: The utterances that options are judged by, and those that only the result
            is measured on.
        decoder: Where it starts: `decoder.options` are tried first, and are what is not searched;
            with a large model in `rescore` mode, its weights are swept once the search is done, in
            lists that it has read.
        given: Options that are tried next.
        context: What was said before, for a large model.
        where: A script with jobs must be guarded by `if __name__ == "__main__"`.
        retry_failed: Try again what failed in an earlier sitting.
    """
    out = Path(out).resolve()
    space, swept = search.spaces(decoder.options, decoder.llm is not None)
    quiet_optuna()
    replace(decoder, llm=None).open()  # what is wrong with it is said before anything is written
    if decoder.llm is not None:
        decoder.llm.check()
    options = [_plain(one) for one in (decoder.options, *given)]
    known = [Given(one, within(space, settings_of(_options(one), space))) for one in options]
    draws = Search("tpe", space, search.n_trials, search.seed)
    with ExitStack() as stack:
        workers = stack.enter_context(closing(where.open()))
        make(out)
        check_directory(out, describe(tuned, held_out, decoder, context, space, search))
        store = Store(
            out, draws, known, lambda settings: _plain(with_settings(decoder.options, settings))
        )
        stack.enter_context(closing(store))
        if retry_failed:
            store.retry_failed()
        study = _Tuning(
            out, tuned, held_out, decoder, search, context, store, workers, where.jobs, report
        )
        study.search_all()
        best, rows = study.finals(options)
        sweep = None
        if swept:
            best, row, sweep = study.sweep(best, swept)
            rows.append(row)
        result = Tuned(out, store.trials(), rows, best, search, study.sample.n_words, space, sweep)
        write_results(result)
    return result


def _options(plain: dict[str, Any]) -> DecoderOptions:
    return from_mapping(DecoderOptions, plain)


def _plain(options: DecoderOptions) -> dict[str, Any]:
    """As they come back from JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(to_mapping(options)))
    return plain


Candidate = tuple[str, dict[str, Any], DecoderFiles]
"""A name, options as plain values, and the decoder that takes them."""


@dataclass
class _Tuning:
    """A search that is going on."""

    out: Path
    tuned: Part
    held_out: Part | None
    decoder: DecoderFiles
    search: DecoderSearch
    context: str
    store: Store
    workers: Workers
    jobs: int
    report: Report

    def __post_init__(self) -> None:
        fuses = self.decoder.options.llm.mode == "fusion"
        self.searched = self.decoder if fuses else replace(self.decoder, llm=None)
        self.tuned = self.tuned.shuffled(self.search.seed)
        self.sample = self.tuned.first(self.search.sample)
        self.running: dict[int, Tried] = {}

    def _work(
        self, begin: Callable[[int], Work | None], record: Callable[[int, Outcome], None]
    ) -> None:
        if work_through(begin, record, self.workers, self.jobs):
            fix = "the same command goes on with it"
            raise Interrupted("interrupted; what is finished is saved", where=self.out, fix=fix)

    def _all(self, jobs: Sequence[Work], record: Callable[[int, Outcome], None]) -> None:
        """Do all of them, of which none may fail."""
        left = iter(jobs)

        def check(number: int, outcome: Outcome) -> None:
            if outcome.state == "failed":
                raise RunError(
                    f"{outcome.reason}", where=self.out, fix="the same command goes on with it"
                )
            if outcome.state == "finished":
                record(number, outcome)

        self._work(lambda place: next(left, None), check)

    def search_all(self) -> None:
        """Try until enough is tried, or other processes have the rest."""

        def begin(place: int) -> DecodeJob | None:
            if (trial := self.store.claim()) is None:
                return None
            self.running[trial.number] = trial
            job = self._job(trial.number, self.sample, trial.options, self.searched)
            return replace(job, most_errors=self._most_errors() if self.search.prune else ())

        self._work(begin, self._record)
        if others := sum(trial.state == "running" for trial in self.store.trials()):
            self.report(
                f"trials that still run in other processes: {others}; this one ends without them"
            )
        trials = self.store.trials()
        if all(trial.state == "failed" for trial in trials):
            raise RunError(
                f"every trial failed; the first: {trials[0].reason}", where=self.out, fix=CORRECT
            )

    def _job(
        self, number: int, part: Part, options: dict[str, Any], decoder: DecoderFiles
    ) -> DecodeJob:
        files = replace(decoder, options=_options(options))
        return DecodeJob(
            number, part.material.directory, part.places, files, self.out, self.context
        )

    def _most_errors(self) -> tuple[float, ...]:
        """The median of the errors of finished trials after each part.

        Nothing while they are few.
        """
        finished = [
            trial.metrics["errors"] for trial in self.store.trials() if trial.state == "finished"
        ]
        if len(finished) < LOOKED_BACK:
            return ()
        ends = [
            sum(map(len, parts(self.sample.places)[: n + 1]))
            for n in range(len(parts(self.sample.places)))
        ]
        return tuple(
            sorted(sum(errors[:end]) for errors in finished)[len(finished) // 2] for end in ends
        )

    def _record(self, number: int, outcome: Outcome) -> None:
        trial = self.running.pop(number)
        name = f"trial {number} of {self.store.total}, {label(trial.settings) or 'as given'}"
        if outcome.state == "interrupted":
            return
        if outcome.state == "failed":
            self.store.fail(number, outcome.reason or "unknown")
            self.report(f"{name}: failed: {outcome.reason}")
        elif len(outcome.metrics["errors"]) < len(self.sample.places):
            self.store.prune(number, outcome.metrics)
            self.report(f"{name}: given up after {len(outcome.metrics['errors'])} utterances")
        else:
            row = judged(name, trial.options, self.sample, outcome.metrics)
            self.store.finish(number, self.value(row), outcome.metrics)
            lacking = f"; {row.degraded}" if row.degraded else ""
            self.report(
                f"{name}: WER {100 * row.wer:.2f} %, {row.ms_per_frame:.3f} ms a frame{lacking}"
            )

    def value(self, row: Judged) -> float:
        """What is minimised."""
        return 100 * row.wer + self.search.time_weight * row.ms_per_frame

    def finals(self, given: Sequence[dict[str, Any]]) -> tuple[DecoderOptions, list[Judged]]:
        """The best options by all utterances, and what they and the given ones are worth."""
        finished = [one for one in self.store.trials() if one.value is not None]
        finished.sort(key=lambda one: one.value or 0.0)
        if not finished:
            raise Interrupted(
                "other processes run all that is left", where=self.out, fix="wait for them"
            )
        shown = [one for one in finished if one.options in given]
        best = finished[0]
        if self.search.sample is not None:
            finalists = [
                one
                for place, one in enumerate(finished)
                if place < self.search.finalists or one in shown
            ]
            rows = self._judge([("", one.options, self.searched) for one in finalists], self.tuned)
            best = min(zip(rows, finalists, strict=True), key=lambda pair: self.value(pair[0]))[1]
        shown.sort(key=lambda one: given.index(one.options))
        named = [(_name(given.index(one.options)), one.options, self.searched) for one in shown]
        if best in shown:
            place = shown.index(best)
            named[place] = (f"{named[place][0]}, the best", *named[place][1:])
        else:
            named.append(("best", best.options, self.searched))
        return _options(best.options), self._judge_twice(named)

    def _judge_twice(self, named: Sequence[Candidate]) -> list[Judged]:
        rows = self._judge(named, self.tuned)
        if self.held_out is None:
            return rows
        others = self._judge(named, self.held_out)
        return [replace(row, held_out=other.tuned) for row, other in zip(rows, others, strict=True)]

    def _judge(self, named: Sequence[Candidate], part: Part) -> list[Judged]:
        """What options are worth on a part.

        Each is decoded with once, whoever asks and however often.
        """
        keys = [self._key(part, options, decoder) for _, options, decoder in named]
        jobs = [
            self._job(n, part, options, decoder)
            for n, (_, options, decoder) in enumerate(named)
            if self._known(keys[n], part, options, decoder) is None
        ]
        self._all(jobs, lambda number, outcome: self.store.remember(keys[number], outcome.metrics))
        return [
            judged(name, options, part, self._known(key, part, options, decoder))
            for key, (name, options, decoder) in zip(keys, named, strict=True)
        ]

    def _key(self, part: Part, options: dict[str, Any], decoder: DecoderFiles) -> str:
        llm = None if decoder.llm is None else [decoder.llm.to_json(), self.context]
        facts = json.dumps([options, llm], sort_keys=True)
        return f"{part.name} {hashlib.sha256(facts.encode()).hexdigest()[:16]}"

    def _known(self, key: str, part: Part, options: dict[str, Any], decoder: DecoderFiles) -> Any:
        """What an earlier job has found, which may have been a trial.

        None where nothing is known.
        """
        if part is self.tuned and self.search.sample is None and decoder == self.searched:
            for trial in self.store.trials():
                if trial.state == "finished" and trial.options == options:
                    return trial.metrics
        return self.store.recall(key)

    def sweep(
        self, best: DecoderOptions, space: Space
    ) -> tuple[DecoderOptions, Judged, list[Reranked]]:
        """Weights for the large model: swept in lists of the best options, then decoded with.

        Also what that is worth.

        The model keeps no weight where decoding with it leaves no fewer errors than without it.
        """
        from cortext.tuning.decoder_llm import best_of, sweep

        self.report("the large model reads the lists")
        lists = self._lists(best)
        points = sweep(
            lists, self.tuned.references, best, space, self.search.llm_points, self.search.seed
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

    def _lists(self, best: DecoderOptions) -> Lists:
        from cortext.tuning.decoder_llm import read_lists, write_lists

        file, places = self.out / "lists.jsonl", self.tuned.places
        assert self.decoder.llm is not None
        llm = self.decoder.llm.to_json()
        made_by = {"options": _plain(best), "llm": llm, "context": self.context, "places": places}
        if (kept := read_lists(file, made_by)) is not None:
            return kept
        size = shared(len(places), self.jobs, self.decoder.llm)
        files = replace(self.decoder, options=best)
        jobs = [
            ReadJob(
                n,
                self.tuned.material.directory,
                places[at : at + size],
                files,
                self.out,
                self.context,
            )
            for n, at in enumerate(range(0, len(places), size))
        ]
        read: dict[int, Lists] = {}
        self._all(jobs, lambda number, outcome: read.update({number: outcome.metrics["lists"]}))
        lists = [one for number in sorted(read) for one in read[number]]
        write_lists(file, lists, made_by)
        return lists


def _name(place: int) -> str:
    """What the table calls options that were given."""
    return f"given {place}" if place else "start"
