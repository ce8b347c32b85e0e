"""Training: from packed recordings and a configuration to a run directory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from torch import profiler

from cortext.training.callbacks import Callback
from cortext.training.config import TrainConfig
from cortext.training.summary import RunSummary
from cortext.training.trainer import Trainer


def train(
    config: TrainConfig | str | Path,
    data: str | Path,
    out: str | Path,
    *,
    lm: str | Path | None = None,
    resume: bool = False,
    device: str = "cpu",
    init_from: str | Path | None = None,
    overrides: Iterable[str] = (),
    skip_bad: bool = False,
    progress: bool = True,
    callbacks: Iterable[Callback] = (),
    profile: str | Path | None = None,
    profile_steps: tuple[int, int] = (10, 15),
) -> RunSummary:
    """Train a phoneme decoder to the end and write a run directory; see `Trainer` for the arguments.

    profile: a directory for a trace of the batches `profile_steps` (first and end, counted from the start of this
             sitting) that TensorBoard and chrome://tracing show
    Raises ConfigError, DataError and RunError (also for a loss that is not finite, and when interrupted).
    """
    tracing = nullcontext(lambda: None) if profile is None else traced(Path(profile), *profile_steps)
    with Trainer(
        config,
        data,
        out,
        lm=lm,
        resume=resume,
        device=device,
        init_from=init_from,
        callbacks=callbacks,
        overrides=overrides,
        skip_bad=skip_bad,
        progress=progress,
    ) as trainer:
        summary = trainer.run(profile=tracing)
    assert summary is not None  # it has run to the end
    return summary


@contextmanager
def traced(folder: Path, first: int, end: int) -> Iterator[Callable[[], None]]:
    """A context that traces batches `first` to `end - 1` into the folder; call its value after each batch."""
    warmup = min(1, first)
    schedule = profiler.schedule(wait=first - warmup, warmup=warmup, active=end - first, repeat=1)
    handler = profiler.tensorboard_trace_handler(str(folder))
    with profiler.profile(schedule=schedule, on_trace_ready=handler, record_shapes=True) as running:
        yield running.step
