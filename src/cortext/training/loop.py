"""Training: from packed recordings and a configuration to a run directory."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import profiler

from cortext.data.disk import disk_errors
from cortext.errors import ConfigError
from cortext.training.callbacks import Callback
from cortext.training.config import TrainConfig, read_train_config
from cortext.training.engine import DeviceSpec
from cortext.training.summary import RunSummary
from cortext.training.trainer import Trainer


def train(
    config: TrainConfig | str | Path,
    data: str | Path,
    out: str | Path,
    *,
    lm: str | Path | None = None,
    resume: bool = False,
    device: str | DeviceSpec = "cpu",
    init_from: str | Path | None = None,
    overrides: Iterable[str] = (),
    skip_bad: bool = False,
    progress: bool = True,
    callbacks: Iterable[Callback] = (),
    profile: str | Path | None = None,
    profile_steps: tuple[int, int] = (10, 15),
) -> RunSummary:
    """Train a phoneme decoder to the end and write a run directory.

    See `Trainer` for the arguments.

    Args:
        profile: A directory for a trace of the batches `profile_steps` (first and end, counted from
            the start of this sitting) that TensorBoard and chrome://tracing show.

    Raises:
        ConfigError, DataError, RunError: (also for a loss that is not finite, and when
            interrupted).
    """
    config = read_train_config(config, overrides)
    tracing = None
    if profile is not None:
        _check_window(profile_steps, config.num_training_batches)
        with disk_errors(Path(profile)):
            Path(profile).mkdir(parents=True, exist_ok=True)
    with Trainer(
        config,
        data,
        out,
        lm=lm,
        resume=resume,
        device=device,
        init_from=init_from,
        callbacks=callbacks,
        skip_bad=skip_bad,
        progress=progress,
    ) as trainer:
        if profile is not None:
            _check_window(profile_steps, config.num_training_batches - trainer.progress.step)
            profiled = getattr(trainer.engine, "profiled", traced)
            tracing = profiled(Path(profile), *profile_steps)
        summary = trainer.run(profile=tracing)
    assert summary is not None  # it has run to the end
    return summary


def _check_window(profile_steps: tuple[int, int], left: int) -> None:
    """Refuse a profile that would begin after the last of the batches that are left."""
    if profile_steps[0] >= left:
        what = f"the profile begins at batch {profile_steps[0]}, and there are only {left}"
        raise ConfigError(what, fix="give smaller --profile-steps")


@contextmanager
def traced(folder: Path, first: int, end: int) -> Iterator[Callable[[], None]]:
    """A context that traces batches `first` to `end - 1` into the folder.

    Call its value after each batch.
    """
    warmup = min(1, first)
    with warnings.catch_warnings():  # about the first batch, which nothing can go before
        warnings.simplefilter("ignore", UserWarning)
        schedule = profiler.schedule(
            wait=first - warmup, warmup=warmup, active=end - first, repeat=1
        )
    handler = profiler.tensorboard_trace_handler(str(folder))
    with profiler.profile(schedule=schedule, on_trace_ready=handler, record_shapes=True) as running:
        yield running.step
