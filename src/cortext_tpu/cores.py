"""Checks of the cores that a training run uses: their number, kind, and share of a batch."""

from __future__ import annotations

from cortext.errors import ConfigError, RunError
from cortext.training.config import TrainConfig
from cortext_tpu.find import Found


def cores_line(used: int, tpu: Found, what: str = "TPU core") -> str:
    """Return a line such as `using 8 TPU cores`.

    Args:
        used: Number of cores that train.
        tpu: The TPU; the line names its chips if they are more.
        what: Kind of the cores.
    """
    line = f"using {used} {what}{'s' if used != 1 else ''}"
    return f"{line}, although this machine has {tpu.chips} chips" if used < tpu.chips else line


def check_platform(platform: str, tpu: Found) -> None:
    """Raise RunError if a TPU was found and JAX uses another device, most likely the CPU."""
    if tpu.address is not None and platform != "tpu":
        problem = f"JAX uses the {platform.upper()}, although there is a TPU: {tpu.summary}"
        fix = (
            "pip install 'jax[tpu]', or unset JAX_PLATFORMS where it is set; `cortext doctor` says"
            " which versions clash"
        )
        raise RunError(problem, fix=fix)


def check_cores(used: int, required: int | None, tpu: Found) -> None:
    """Raise RunError if fewer cores would train than required.

    Args:
        used: Number of cores that would train.
        required: Fewest cores; None for any number.
        tpu: The TPU, from which the error says what to do.
    """
    if required is None or used >= required:
        return
    problem = f"training would use {used} core{'s' if used != 1 else ''} instead of {required}"
    if tpu.chips * max(1, len(tpu.hosts)) >= required:
        fix = (
            "unset TPU_VISIBLE_CHIPS and TPU_PROCESS_BOUNDS, end other programs that hold the TPU,"
            " start one process"
        )
    elif tpu.address is None:
        fix = "no TPU was found; `cortext doctor` says what was looked at"
    else:
        fix = f"take a larger TPU than {tpu.summary}, or lower --require-cores"
    raise RunError(problem, where="--require-cores", fix=fix)


def check_shares(config: TrainConfig, n_cores: int) -> None:
    """Raise ConfigError for a batch that the cores cannot share evenly; shapes are static."""
    size = config.dataset.batch_size
    pieces = config.gradient_accumulation_steps
    if size % (n_cores * pieces):
        problem = f"dataset.batch_size is {size}, which {n_cores} core{'s' if n_cores > 1 else ''}"
        problem += f" and {pieces} accumulation steps" if pieces > 1 else ""
        raise ConfigError(
            f"{problem} cannot share evenly", fix=f"use a multiple of {n_cores * pieces}"
        )
