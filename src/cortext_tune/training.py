"""Search over the settings of a training: a run directory for each trial, and a comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from cortext.arguments import as_path, check_type
from cortext.config import to_mapping
from cortext.cores import ARE_THREADS_CHOSEN, available_cores
from cortext.data.packed import PackedDataset
from cortext.errors import ConfigError, Interrupted, RunError
from cortext.files import read_json
from cortext.plugins import load_plugins
from cortext.training import TrainConfig, read_train_config
from cortext.training.checkpoint import RunDirectory
from cortext.training.participants.recordings import open_for
from cortext.training.progress import reading_bar
from cortext_tune.comparison import METRICS, Study, metric_value, write_picture, write_table
from cortext_tune.search import OPEN, Search, TuningTrial, load_optuna
from cortext_tune.space import fit_space, label, space_to_json, with_settings
from cortext_tune.study import CORRECT, JOURNAL, TrialStore, begin_study
from cortext_tune.workers import (
    InProcess,
    RayTasks,
    TrialOutcome,
    WorkerProcesses,
    Workers,
    run_all,
)

Report = Callable[[str], None]
"""Function that is called with a line for the user."""


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
    """Train once for each setting of the search, and write `trials.csv` and `trials.png`.

    An interrupted search continues where it was: finished trials are not trained again, unfinished
    ones continue from their last state. A trial that fails is recorded with its reason. With
    `jobs`, a script must be guarded by `if __name__ == "__main__"`.

    Args:
        config: A training configuration, see `train`.
        data: Session files, which are packed once into `out/packed`, or packed data.
        out: The search directory; `trials` has a run directory for each trial.
        search: Settings to vary, and the method.
        metric: Metric that is minimised, and that decides which weights of a run are kept; None
            takes the configuration's.
        lm: Language-model directory, for WER.
        jobs: Trials at the same time: processes of their own from 2 on, or tasks of a Ray cluster.
        ray: Address of a Ray cluster, or `local`; `out`, `data` and `lm` must have the same paths
            on every machine.
        threads: Threads of a trial's CPU operations; by default the cores shared by the processes,
            or 1 on Ray.
        device: A device of `train`, or several with commas, which the processes share.
        overrides: Settings of all trials.
        plugins: Files with registered models and the like.
        retry_failed: Train failed trials again.
        skip_bad: Leave out trials of the data that cannot be used.
        progress: Draw progress bars.
        report: Called with a line for the user when a trial begins and ends.

    Returns:
        The trials and the best of them.

    Raises:
        ConfigError: For impossible settings.
        DataError: For data that cannot be read.
        RunError: For a directory of another search, and where every trial failed.
        Interrupted: After a Ctrl-C.
    """
    load_plugins(plugins)
    base, search = _check(config, overrides, search, metric, lm, jobs)
    out = as_path(out, "out").resolve()
    workers, n_threads, devices = _workers(jobs, ray, threads, device)
    with closing(workers), RunDirectory(out).held():
        with reading_bar(progress) as reading:
            dataset = open_for(
                None, data, out / "packed", skip_bad=skip_bad, progress=reading, shown=progress
            )
            dataset.verify(reading)
        description = _describe(base, search, dataset, lm)
        begin_study(out, description, {"packed", "trials", JOURNAL}.__contains__)
        with closing(TrialStore(out, search, first=1)) as store:
            if retry_failed:
                store.retry_failed()
            common = TrainJob(
                0,
                {},
                dataset.path.resolve(),
                out,
                None if lm is None else Path(lm).resolve(),
                plugins=tuple(Path(plugin).resolve() for plugin in plugins),
                threads=n_threads,
                progress=progress and jobs == 1,
            )
            running = _TrainingSearch(out, base, description, store, common, devices, report)
            stopped = run_all(running.begin, running.record, workers, jobs)
            study = running.study()
        write_table(study)
        write_picture(study, search.space)
    _check_ended(study, stopped)
    return study


def _check_ended(study: Study, stopped: bool) -> None:
    """Raise Interrupted for a search that was stopped, and RunError where every trial failed."""
    if stopped:
        done = len(study.trials) - study.count("unfinished")
        problem = f"interrupted after {done} of {study.total} trials; everything is saved"
        raise Interrupted(problem, where=study.out, fix="the same command goes on with it")
    if study.best is None:
        problem = f"every trial failed; the first: {study.trials[0].reason}"
        raise RunError(problem, where=study.out, fix=CORRECT)


@dataclass(frozen=True)
class TrainJob:
    """A training, as it is sent to the process that runs it.

    Paths are absolute where another machine may read them.

    Attributes:
        config: Configuration as plain mappings; a plug-in's classes exist only after it is loaded.
        threads: Threads of a CPU operation; None leaves them as they are.
        progress: Draw the training's bar.
    """

    number: int
    config: Mapping[str, Any]
    data: Path
    out: Path
    lm: Path | None = None
    device: str = "cpu"
    plugins: tuple[Path, ...] = ()
    threads: int | None = None
    progress: bool = False

    @property
    def error_file(self) -> Path:
        """File for a traceback, beside the trial's run directory."""
        return self.out.with_name(f"{self.out.name}.error.txt")

    def work(self) -> dict[str, Any]:
        """Train, or continue an interrupted training, and return the metrics."""
        summary = self.out / "summary.json"
        if not summary.is_file():  # a kill between training and recording leaves it
            _train(self)
        try:
            content = read_json(summary)
            return {name: content[name] for name in (*METRICS, "best_step", "steps", "seconds")}
        except (OSError, ValueError, KeyError) as error:
            raise RunError(f"is not the summary of a training: {error}", where=summary) from None


def _train(job: TrainJob) -> None:
    import torch

    from cortext.config import from_mapping
    from cortext.training import train

    load_plugins(job.plugins)
    if job.threads is not None:
        torch.set_num_threads(job.threads)
    train(
        from_mapping(TrainConfig, job.config),
        job.data,
        job.out,
        lm=job.lm,
        resume=(job.out / "config.yaml").is_file(),
        device=job.device,
        progress=job.progress,
    )


@dataclass(frozen=True)
class _TrainingSearch:
    """A search that is running.

    Attributes:
        common: Job with the fields that all jobs share.
        devices: Devices that the slots share.
    """

    out: Path
    base: TrainConfig
    description: Mapping[str, Any]
    store: TrialStore
    common: TrainJob
    devices: Sequence[str]
    report: Report

    def begin(self, slot: int) -> TrainJob | None:
        """Return the next training for this slot; None where there is none."""
        while (trial := self.store.claim()) is not None:
            try:
                config = to_mapping(with_settings(self.base, trial.settings))
            except ConfigError as error:  # random values that do not go together
                self.record(trial.number, TrialOutcome("failed", reason=str(error)))
                continue
            self.report(f"{self._name(trial)}: training")
            return replace(
                self.common,
                number=trial.number,
                config=config,
                out=self.study().folder(trial),
                device=self.devices[slot % len(self.devices)],
            )
        return None

    def record(self, number: int, outcome: TrialOutcome) -> None:
        """Record the outcome of a trial, and write the table anew."""
        trial = self.store.trials()[number - 1]
        if outcome.state == "interrupted":
            return
        if outcome.state == "failed":
            self.store.fail(number, outcome.reason or "unknown")
            self.report(f"{self._name(trial)}: failed: {outcome.reason}")
        else:
            metric = self.base.metric
            value = metric_value(outcome.metrics, metric)
            self.store.finish(number, value, outcome.metrics)
            seconds = outcome.metrics["seconds"]
            self.report(f"{self._name(trial)}: {metric} {value:.4f} in {seconds:.0f} s")
        write_table(self.study())

    def study(self) -> Study:
        """Return the trials so far."""
        trials = [
            replace(trial, state="unfinished") if trial.state in OPEN else trial
            for trial in self.store.trials()
        ]
        metric = self.base.metric
        return Study(self.out, metric, self.description, self.store.total, trials)

    def _name(self, trial: TuningTrial) -> str:
        return f"trial {trial.number} of {self.store.total}, {label(trial.settings)}"


def _check(
    config: TrainConfig | str | Path,
    overrides: Iterable[str],
    search: Search,
    metric: str | None,
    lm: str | Path | None,
    jobs: int,
) -> tuple[TrainConfig, Search]:
    """Return the settings of all trials, and the search in the configuration's own types.

    Raises ConfigError and MissingLibrary, before anything is written.
    """
    check_type(search, Search, "search", "a Search")
    lm = None if lm is None else as_path(lm, "lm")
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
    if base.metric == "val_wer" and lm is None:
        raise ConfigError(
            "the metric is 'val_wer', which needs a language model",
            fix="give --lm or another metric",
        )
    search = replace(search, space=fit_space(search.space, base))
    if search.method == "grid":
        for settings in search.grid():
            try:
                with_settings(base, settings)
            except ConfigError as error:
                raise ConfigError(f"{label(settings)}: {error.what}", fix=error.fix) from None
    load_optuna()
    return base, search


def _describe(
    base: TrainConfig, search: Search, data: PackedDataset, lm: str | Path | None
) -> dict[str, Any]:
    """Return the identity of a search. It excludes the number of trials, which may grow."""
    space = {"method": search.method, "seed": search.seed, "space": space_to_json(search.space)}
    return {
        "metric": base.metric,
        "search": space,
        "config": to_mapping(base),
        "data": dict(data.checksums),
        "language_model": lm is not None,
    }


def _workers(
    jobs: int, ray: str | None, threads: int | None, device: str
) -> tuple[Workers, int | None, list[str]]:
    """Return the workers, the threads of each, and the devices that they share."""
    devices = [name.strip() for name in device.split(",")]
    if ray is not None:
        if any(name.startswith("cuda:") for name in devices):
            problem = f"device is {device!r}, and a task on Ray sees only the GPU that it is given"
            raise ConfigError(problem, fix="give cuda")
        gpus = int(device.startswith("cuda"))
        return RayTasks(ray, threads or 1, gpus, jobs), threads or 1, devices
    if jobs == 1:
        return InProcess(), threads, devices
    if threads is None and not ARE_THREADS_CHOSEN:
        # More threads than cores make each trial many times slower.
        threads = max(1, available_cores() // jobs)
    return WorkerProcesses(), threads, devices
