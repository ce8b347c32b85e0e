"""A search over the settings of a training.

A run directory for each, and a comparison of them all.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from cortext.config import to_mapping
from cortext.data.packed import PackedDataset, open_data
from cortext.errors import ConfigError, Interrupted, RunError
from cortext.plugins import load_plugins
from cortext.training import TrainConfig, read_train_config
from cortext.training.checkpoint import RunDirectory
from cortext.training.progress import reading_bar
from cortext.tuning.comparison import write_picture, write_table
from cortext.tuning.directory import CORRECT
from cortext.tuning.search import Search, Settings
from cortext.tuning.space import fit_space, label, space_to_json, with_settings
from cortext.tuning.study import Study, Trial
from cortext.tuning.tpe import suggest
from cortext.tuning.trial import Job, Outcome
from cortext.tuning.workers import Here, Processes, RayTasks, Workers, work_through

Report = Callable[[str], None]
"""Called with a line for the user."""


def tune_training(
    config: TrainConfig | str | Path,
    data: str | Path,
    out: str | Path,
    search: Search,
    *,
    metric: Literal["val_per", "val_wer", "val_loss"] | None = None,
    lm: str | Path | None = None,
    jobs: int = 1,
    ray: str | None = None,
    threads: int | None = None,
    device: str = "cpu",
    overrides: Iterable[str] = (),
    plugins: Sequence[Path] = (),
    retry_failed: bool = False,
    skip_bad: bool = False,
    progress: bool = True,
    report: Report = lambda line: None,
) -> Study:
    """Train once for each setting of the search, and write `out/trials.csv` and `out/trials.png`.

    What an earlier sitting finished is not trained again, and what it left unfinished goes on where
    it was. A trial that fails is recorded with its reason. With jobs, a script must be guarded by
    `if __name__ == "__main__"`.

    Args:
        config, data, lm, overrides, skip_bad: As in `train`; session files are packed once, into
            `out/packed`.
        metric: What is minimised and what the kept weights of each run are best in; the
            configuration's own by default.
        jobs: Trials at the same time: processes of their own from 2 on, or tasks of a Ray cluster.
        ray: Address of a Ray cluster, or `local`; `out`, `data` and `lm` must have the same paths
            on every machine.
        threads: Threads of a trial's CPU operations; by default the cores shared by the processes,
            or 1 on Ray.
        device: As in `train`, or several with commas, which the processes share.
        retry_failed: Train again what failed in an earlier sitting.

    Raises:
        ConfigError, DataError, RunError: (also where all trials failed, and `Interrupted` after a
            Ctrl-C).
    """
    load_plugins(plugins)
    base, search = _check(config, overrides, search, metric, lm, jobs)
    out = Path(out).resolve()
    workers, n_threads, devices = _workers(jobs, ray, threads, device)
    with closing(workers), RunDirectory(out).held():
        with reading_bar(progress) as reading:
            dataset = open_data(data, out / "packed", skip_bad=skip_bad, progress=reading)
            dataset.verify(reading)
        study = Study(out, base.best_metric, _describe(base, search, dataset, lm), search.total)
        study.begin()

        def job(trial: Trial, place: int) -> Job:
            settings = to_mapping(with_settings(base, trial.settings))
            lm_path = None if lm is None else Path(lm).resolve()
            paths = (dataset.path.resolve(), study.folder(trial), lm_path)
            files = tuple(Path(plugin).resolve() for plugin in plugins)
            own_device = devices[place % len(devices)]
            return Job(
                trial.number, settings, *paths, own_device, files, n_threads, progress and jobs == 1
            )

        trials = _trials(study, search, retry_failed)
        stopped = work_through(
            lambda place: _begin(study, trials, job, place, report),
            lambda number, outcome: _record(study, study.trials[number - 1], outcome, report),
            workers,
            jobs,
        )
        write_table(study)
        write_picture(study, search.space)
    if stopped:
        done = len(study.trials) - study.count("unfinished")
        what = f"interrupted after {done} of {study.total} trials; everything is saved"
        raise Interrupted(what, where=out, fix="the same command goes on with it")
    if study.best is None:
        raise RunError(
            f"every trial failed; the first: {study.trials[0].reason}", where=out, fix=CORRECT
        )
    return study


def _check(
    config: TrainConfig | str | Path,
    overrides: Iterable[str],
    search: Search,
    metric: str | None,
    lm: str | Path | None,
    jobs: int,
) -> tuple[TrainConfig, Search]:
    """What all trials share, and the search in the configuration's own types.

    Raises ConfigError before anything.
    """
    overrides = list(overrides)
    base = read_train_config(config, overrides)
    if jobs < 1:
        raise ConfigError(f"jobs is {jobs}; it must be at least 1")
    for key in search.space:
        if key in {override.partition("=")[0].strip() for override in overrides}:
            raise ConfigError(f"{key} is both set and searched; do one of them")
        if key == "best_metric":
            raise ConfigError("best_metric decides which trial is best and cannot be searched")
    if metric is not None:
        base = with_settings(base, {"best_metric": metric})
    if base.best_metric == "val_wer" and lm is None:
        raise ConfigError(
            "the metric is 'val_wer', which needs a language model",
            fix="give --lm or another metric",
        )
    search = Search(search.method, fit_space(search.space, base), search.n_trials, search.seed)
    if search.method == "tpe":
        suggest(search, [])  # is Optuna there?
    if search.method == "grid":
        for settings in search.planned():
            try:
                with_settings(base, settings)
            except ConfigError as error:
                raise ConfigError(f"{label(settings)}: {error.what}", fix=error.fix) from None
    return base, search


def _describe(
    base: TrainConfig, search: Search, data: PackedDataset, lm: str | Path | None
) -> dict[str, Any]:
    """What makes two searches the same.

    The number of random trials does not, so that a search can go on.
    """
    space = {"method": search.method, "seed": search.seed, "space": space_to_json(search.space)}
    return {
        "search": space,
        "config": to_mapping(base),
        "data": dict(data.checksums),
        "language_model": lm is not None,
    }


def _trials(study: Study, search: Search, retry_failed: bool) -> Iterator[Trial]:
    """What is left to do: trials that an earlier sitting did not finish, then new ones."""
    for trial in list(study.trials):
        if trial.state == "failed" and retry_failed:
            trial.state, trial.reason = "unfinished", None
    for trial in [trial for trial in study.trials if trial.state == "unfinished"]:
        yield trial
    planned = search.planned()
    while (number := len(study.trials)) < search.total:
        settings: Settings | None
        if search.method == "tpe":
            settings = suggest(search, study.told())
        else:
            settings = planned[number] if number < len(planned) else None
        if settings is None:
            study.total = number  # few choices, all of them tried
            return
        yield study.add(settings)


def _workers(
    jobs: int, ray: str | None, threads: int | None, device: str
) -> tuple[Workers, int | None, list[str]]:
    """Where trials run, with how many threads each, and the devices that they share."""
    devices = [name.strip() for name in device.split(",")]
    if ray is not None:
        if any(name.startswith("cuda:") for name in devices):
            what = f"device is {device!r}, and a task on Ray sees only the GPU that it is given"
            raise ConfigError(what, fix="give cuda")
        return (
            RayTasks(ray, threads or 1, int(device.startswith("cuda")), jobs),
            threads or 1,
            devices,
        )
    if jobs == 1:
        return Here(), threads, devices
    if threads is None and "OMP_NUM_THREADS" not in os.environ:
        threads = max(
            1, (os.cpu_count() or 1) // jobs
        )  # many threads on few cores make each trial many times slower
    return Processes(), threads, devices


def _begin(
    study: Study,
    trials: Iterator[Trial],
    job: Callable[[Trial, int], Job],
    place: int,
    report: Report,
) -> Job | None:
    """The next trial to train in this place, None where there is none.

    `job` says what it is to do.
    """
    for trial in trials:
        try:
            begun = job(trial, place)
            report(f"{_name(study, trial)}: training")
            return begun
        except ConfigError as error:  # random values that do not go together
            _record(study, trial, Outcome("failed", reason=str(error)), report)
    return None


def _record(study: Study, trial: Trial, outcome: Outcome, report: Report) -> None:
    if outcome.state == "interrupted":
        return
    if outcome.state == "failed":
        study.fail(trial, outcome.reason or "unknown")
        report(f"{_name(study, trial)}: failed: {outcome.reason}")
    else:
        study.finish(trial, outcome.metrics)
        report(
            f"{_name(study, trial)}: {study.metric} {study.value(trial):.4f} in"
            f" {outcome.metrics['seconds']:.0f} s"
        )
    write_table(study)


def _name(study: Study, trial: Trial) -> str:
    return f"trial {trial.number} of {study.total}, {label(trial.settings)}"
