"""Training from the first batch to the last in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from cortext.arguments import check_type
from cortext.errors import ConfigError
from cortext.files import disk_errors
from cortext.training.backend import DeviceSpec
from cortext.training.callbacks import Callback
from cortext.training.config import TrainConfig, read_train_config
from cortext.training.participants.recordings import Given
from cortext.training.participants.trainer import JointTrainer
from cortext.training.summary import RunSummary
from cortext.training.trainer import Trainer


def train(
    config: TrainConfig | Mapping[str, Any] | str | Path,
    data: Given,
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
    check: bool = True,
) -> RunSummary:
    """Train a decoder of the data's tokens to the end and write a run directory.

    Args:
        config: A TrainConfig, a mapping of its fields (`{"num_training_batches": 100}`; the others
            keep the published values), a YAML file, or the name of a shipped recipe.
        data: A packed directory, or one of session files, which are packed first. A mapping of
            participants' names to such data trains them together.
        out: The run directory.
        lm: A language-model directory; without it no WER is reported.
        resume: Continue an unfinished run, bit-exactly.
        device: `cpu`, `cuda`, `cuda:N` or `tpu`; a `DeviceSpec` has more settings.
        init_from: A run whose weights to start from; None for fresh ones.
        overrides: `key=value` changes of the configuration.
        skip_bad: Leave out trials that cannot be read, as in `pack`.
        progress: Draw a bar on stderr if it is a terminal.
        callbacks: See `Callback`.
        profile: A directory for a trace that TensorBoard and chrome://tracing show; None for none.
        profile_steps: First traced batch and the batch after the last, from the start of this call.
        check: Check a model, loss or augmentation of one's own first.

    Returns:
        The summary of the finished run.

    Raises:
        ConfigError, DataError, RunError: For settings, data and weights that cannot be trained
            with, for a loss that is not finite, and when interrupted.
    """
    config = read_train_config(config, overrides)
    tracing = None
    if profile is not None:
        _check_window(profile_steps, config.num_training_batches)
        with disk_errors(Path(profile)):
            Path(profile).mkdir(parents=True, exist_ok=True)
    trainer_of: Callable[..., Trainer] = JointTrainer if isinstance(data, Mapping) else Trainer
    with trainer_of(
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
        check=check,
    ) as trainer:
        if profile is not None:
            _check_window(profile_steps, config.num_training_batches - trainer.state.step)
            tracing = trainer.backend.profiled(Path(profile), *profile_steps)
        summary = trainer.run(profile=tracing)
    assert summary is not None  # it has run to the end
    return summary


def _check_window(profile_steps: tuple[int, int], left: int) -> None:
    """Raise ConfigError if a profile would begin after the last batch."""
    check_type(profile_steps, tuple, "profile_steps", "a pair of batches such as (10, 15)")
    if profile_steps[0] >= left:
        problem = f"the profile begins at batch {profile_steps[0]}, and there are only {left}"
        raise ConfigError(problem, fix="give smaller --profile-steps")
