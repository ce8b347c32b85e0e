"""The command `tune training`; `tune decoder` has a file of its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cortext.cli.console import (
    JSON,
    OVERRIDES,
    PLUGINS,
    SKIP_BAD,
    percent,
    print_json,
    print_lines,
    print_table,
)
from cortext.evaluation.settings import Ray
from cortext.settings import Setting

if TYPE_CHECKING:
    from cortext_tune import Search, Study


SHOWN = 30
"""Number of trials in the printed table; trials.csv has all."""


@dataclass(frozen=True)
class TuneSettings:
    """The search for training settings, as the command line describes it."""

    grid: Annotated[
        list[str] | None,
        Setting(metavar="KEY=V,V,...", help="Try these values, with all others; repeatable."),
    ] = None
    random: Annotated[
        list[str] | None,
        Setting(
            metavar="KEY=LOW:HIGH[:log]", help="Draw from a range, or from KEY=V,V,...; repeatable."
        ),
    ] = None
    tpe: Annotated[
        list[str] | None,
        Setting(
            metavar="KEY=LOW:HIGH[:log]",
            help="The same, more often where earlier trials were good.",
        ),
    ] = None
    trials: Annotated[
        int | None, Setting(minimum=1, help="Settings to try, 20 without it; not for a grid.")
    ] = None
    seed: Annotated[int, Setting(minimum=0, help="Decides what is drawn.")] = 0

    def search(self) -> Search:
        """Return the search. Raises ConfigError, and BadParameter unless one kind is given."""
        given = {"grid": self.grid, "random": self.random, "tpe": self.tpe}
        kinds = [(method, texts) for method, texts in given.items() if texts]
        if len(kinds) != 1:
            raise typer.BadParameter(
                "give one kind of search: --grid, --random or --tpe, each as often as needed"
            )
        from cortext_tune import Search, parse_space

        ((method, texts),) = kinds
        drawn = method != "grid"
        trials = self.trials or 20 if drawn else self.trials
        return Search(method, parse_space(texts, drawn), trials, self.seed)  # type: ignore[arg-type]


@dataclass(frozen=True)
class TrialWorkers:
    """Processes and devices that train the trials; the fields are arguments of `tune_training`."""

    jobs: Annotated[int, Setting(minimum=1, help="Trials at the same time.")] = 1
    threads: Annotated[
        int | None, Setting(minimum=1, help="Threads of a trial; shares the cores without it.")
    ] = None
    ray: Ray = None
    device: Annotated[
        str, Setting(help="cpu, cuda or cuda:N; several with commas are shared by the jobs.")
    ] = "cpu"


def training(
    config: Annotated[
        str,
        typer.Option(
            help="YAML file, or the name of a shipped recipe: gru, triple_gru, demo, tiny."
        ),
    ],
    data: Annotated[Path, typer.Option(help="Directory of session files, or a packed one.")],
    out: Annotated[
        Path, typer.Option(help="Search directory to write; an unfinished search there goes on.")
    ],
    *,
    space: TuneSettings,
    metric: Annotated[
        str | None,
        typer.Option(help="val_per, val_wer or val_loss; the configuration's without it."),
    ] = None,
    lm: Annotated[
        Path | None, typer.Option(help="Language-model directory; without it WER is not reported.")
    ] = None,
    workers: TrialWorkers,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Train again what failed before.")
    ] = False,
    skip_bad: bool = SKIP_BAD,
    plugins: list[Path] = PLUGINS,
    overrides: list[str] = OVERRIDES,
    as_json: bool = JSON,
) -> None:
    """Train once for each setting of a search, and compare.

    Stopped or killed, the same command continues where it was. With more --trials it tries more.

    Example: cortext tune training --config demo --data runs/packed --out runs/rates --grid
    lr_max=0.001,0.005,0.01
    """
    search = space.search()
    from cortext_tune import tune_training

    study = tune_training(
        config,
        data,
        out,
        search,
        metric=metric,  # type: ignore[arg-type]  # an unknown one is an error of the configuration
        lm=lm,
        **vars(workers),
        overrides=overrides,
        plugins=plugins,
        retry_failed=retry_failed,
        skip_bad=skip_bad,
        report=lambda line: print_lines(line, err=True),
    )
    if as_json:
        print_json(study.to_json())
    else:
        _print(study)


def _print(study: Study) -> None:
    from cortext_tune.space import short

    ranked = study.ranked()
    keys = list(ranked[0].settings)
    rows = []
    for trial in ranked[:SHOWN]:
        metrics = trial.metrics
        rates = [percent(metrics.get(name)) for name in ("val_per", "val_wer")]
        if trial.state == "finished":
            others = [
                f"{metrics['val_loss']:.3f}",
                metrics["best_step"],
                f"{metrics['seconds']:.0f}",
            ]
        else:
            others = ["-", "-", trial.state]
        rows.append([trial.number, *(short(trial.settings[key]) for key in keys), *rates, *others])
    count = (
        f"{len(ranked)} trials"
        if len(ranked) <= SHOWN
        else f"the best {SHOWN} of {len(ranked)} trials"
    )
    print_table(
        f"{count} by {study.metric}",
        ["trial", *keys, "PER", "WER", "loss", "best batch", "seconds"],
        rows,
        0,
    )
    for trial in ranked:
        if trial.state == "failed":
            print_lines(f"trial {trial.number} failed: {trial.reason}")
    if study.best:
        print_lines(f"best run: {study.folder(study.best)}")
    print_lines(f"table: {study.out / 'trials.csv'}, picture: {study.out / 'trials.png'}")
