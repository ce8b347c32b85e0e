"""Commands that train a model."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.console import (
    JSON,
    OVERRIDES,
    PLUGINS,
    SKIP_BAD,
    print_json,
    print_left_out,
    print_lines,
)
from cortext.cli.options import named_data
from cortext.entry_points import load
from cortext.errors import ConfigError
from cortext.plugins import load_plugins
from cortext.settings import Setting

if TYPE_CHECKING:
    from cortext.evaluation.fit.options import FittedOptions
    from cortext.training import DeviceSpec


@dataclass(frozen=True)
class JobSettings:
    """Settings of a training job: where it runs, in which precision, and what it traces."""

    device: Annotated[str, Setting(help="Where the model trains: cpu, cuda, cuda:N or tpu.")] = (
        "cpu"
    )
    backend: Annotated[str, Setting(help="torch, or tensorflow (with Keras 3).")] = "torch"
    tpu: Annotated[str | None, Setting(help="Name or address of a TPU.", metavar="NAME")] = None
    tpu_engine: Annotated[str, Setting(help="What runs torch models on a TPU: torchax.")] = (
        "torchax"
    )
    require_cores: Annotated[
        int | None,
        Setting(help="Fail where there are not so many TPU cores, GPUs or processes.", minimum=1),
    ] = None
    xla_dump: Annotated[Path | None, Setting(help="Directory for what XLA compiles, as text.")] = (
        None
    )
    precision: Annotated[
        str | None,
        Setting(help="auto, bf16 or fp32 matrix products; as the configuration says without it."),
    ] = None
    profile: Annotated[
        Path | None, Setting(help="Directory for a trace that TensorBoard shows.")
    ] = None
    profile_steps: Annotated[
        str, Setting(help="Batches that the trace covers.", metavar="FIRST:END")
    ] = "10:15"

    def begin(self) -> DeviceSpec:
        """Return the device and its backend; switch XLA's dump on if `xla_dump` is set."""
        from cortext.training import DeviceSpec

        spec = DeviceSpec(self.device, self.backend, self.tpu, self.tpu_engine, self.require_cores)  # type: ignore[arg-type] # it checks them
        if self.xla_dump is not None:
            if spec.backend_name == "torch":
                raise ConfigError(
                    f"--xla-dump is given, and XLA compiles nothing with --device {self.device}"
                )
            load("cortext.xla", "dump")(self.xla_dump)
        return spec


def train(
    config: Annotated[
        str,
        typer.Option(
            help="YAML file, or a recipe: gru, triple_gru, gru_tpu, triple_gru_tpu, demo, tiny."
        ),
    ],
    data: Annotated[
        list[str],
        typer.Option(
            help="Directory of session files, or a packed one. Several train participants together;"
            " each may have a name, or that in its cortext.json, or the folder's.",
            metavar="[NAME=]DIR",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Run directory to write.")],
    *,
    lm: Annotated[
        Path | None,
        typer.Option(
            help="Language-model directory, for WER; decoder options are fitted to it at the end."
        ),
    ] = None,
    no_fit: Annotated[
        bool, typer.Option("--no-fit", help="Fit no decoder options at the end.")
    ] = False,
    init_from: Annotated[
        Path | None, typer.Option(help="Run directory whose weights to start from.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that was stopped.")
    ] = False,
    skip_bad: bool = SKIP_BAD,
    no_check: Annotated[
        bool,
        typer.Option("--no-check", help="Do not check a model or loss of one's own first."),
    ] = False,
    job: JobSettings,
    plugins: list[Path] = PLUGINS,
    overrides: list[str] = OVERRIDES,
    as_json: bool = JSON,
) -> None:
    """Train a decoder of phonemes, or of whatever tokens the data have.

    Training runs on several GPUs where torchrun starts it: `torchrun --no-python ... cortext train
    ...`.

    Example: cortext train --config demo --data runs/packed --lm runs/lm --out runs/first

    Example: cortext train --config demo --set model.input_network.read_in=128 --data A=runs/a
    --data B=runs/b --out runs/both
    """
    from cortext.evaluation.fit.callback import FitDecoder
    from cortext.models.acoustic import look_ahead_text
    from cortext.training import train as train_model
    from cortext.training.callbacks import RankZero

    spec = job.begin()
    load_plugins(plugins)
    if job.precision is not None:
        overrides = [*overrides, f"precision={job.precision}"]
    first = RankZero()
    recordings = named_data(data)
    fit = FitDecoder(None if no_fit else lm, recordings if isinstance(recordings, Path) else None)
    summary = train_model(
        config,
        recordings,
        out,
        lm=lm,
        resume=resume,
        device=spec,
        init_from=init_from,
        overrides=overrides,
        skip_bad=skip_bad,
        callbacks=[first, fit],
        profile=job.profile,
        profile_steps=_span(job.profile_steps),
        check=not no_check,
    )
    if not first.here:
        return
    if as_json:
        print_json(summary.to_json() | word_errors(fit.found))
        return
    print_lines(summary, f"look-ahead: {look_ahead_text(summary.look_ahead_ms)}")
    print_fitted(fit.found)
    print_left_out(summary.skipped)
    print_unlabelled(summary.n_unlabelled)


def pretrain(
    config: Annotated[
        str, typer.Option(help="YAML file, or a recipe, of the training with labels that follows.")
    ],
    data: Annotated[list[Path], typer.Option(help="Directory of session files, or a packed one.")],
    out: Annotated[Path, typer.Option(help="Run directory to write.")],
    *,
    init_from: Annotated[
        Path | None, typer.Option(help="Run directory whose weights to start from.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that was stopped.")
    ] = False,
    skip_bad: bool = SKIP_BAD,
    job: JobSettings,
    plugins: list[Path] = PLUGINS,
    overrides: list[str] = OVERRIDES,
    as_json: bool = JSON,
) -> None:
    """Pretrain a causal model without labels: predict hidden channels, and the next bins of all.

    `train --init-from` then starts from it, with the same section model.

    Example: cortext pretrain --config demo --data runs/packed --out runs/pretrained
    """
    from cortext.training import train as train_model
    from cortext.training.callbacks import RankZero
    from cortext.training.pretrain import OVERRIDES as TASK

    if len(data) > 1:
        problem = f"--data is given {len(data)} times, and pretraining reads one participant"
        raise ConfigError(problem, fix="pretrain on one; train takes several, with --init-from")
    spec = job.begin()
    load_plugins(plugins)
    if job.precision is not None:
        overrides = [*overrides, f"precision={job.precision}"]
    first = RankZero()
    summary = train_model(
        config,
        data[0],
        out,
        resume=resume,
        device=spec,
        init_from=init_from,
        overrides=[*TASK, *overrides],
        skip_bad=skip_bad,
        callbacks=[first],
        profile=job.profile,
        profile_steps=_span(job.profile_steps),
    )
    if not first.here:
        return
    if as_json:
        print_json(summary.to_json())
        return
    print_lines(summary)
    print_left_out(summary.skipped)


def print_unlabelled(n_trials: int) -> None:
    """Print how many training trials were left out without a label."""
    if n_trials:
        print_lines(f"training trials left out without a label: {n_trials:,}")


def word_errors(fitted: dict[str, FittedOptions]) -> dict[str, Any]:
    """Return the word errors of fits for the JSON object of a command."""
    errors = {name: dataclasses.asdict(one.word_errors) for name, one in fitted.items()}
    alone = not errors or "" in errors
    return {"decoder_word_errors": errors.get("") if alone else errors}


def print_fitted(fitted: dict[str, FittedOptions]) -> None:
    """Print the fits of the runs, by participant."""
    for name, options in fitted.items():
        whose = f" of {name}" if name else ""
        taken = "" if options.source is None else f", taken over from {options.source}"
        print_lines(f"decoder options{whose}: {options.about}{taken}")


def _span(text: str) -> tuple[int, int]:
    """Return the two numbers of `first:end`."""
    first, _, end = text.partition(":")
    if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise ConfigError(
            f"--profile-steps is {text!r}; two numbers are needed, the smaller first",
            fix="write 10:15",
        )
    return int(first), int(end)
