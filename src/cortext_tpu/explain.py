"""Errors of XLA, JAX and TensorFlow in one line; the originals fill pages and name no setting."""

from __future__ import annotations

import re

from cortext.errors import CortextError, RunError

SHAPE = re.compile(
    r"\b(?P<type>bf16|f16|f32|f64|bfloat16|float16|float32|float64)\[(?P<sizes>[\d,]*)\]"
)
SHORT = {"bfloat16": "bf16", "float16": "f16", "float32": "f32", "float64": "f64"}
SIZES = (
    re.compile(r"Used (?P<used>[\d.]+[KMGT]?) of (?P<there>[\d.]+[KMGT]?) hbm"),
    re.compile(
        r"memory required.{0,60}\((?P<used>[\d.]+[KMGT])\) exceeds available HBM"
        r" \((?P<there>[\d.]+[KMGT])\)"
    ),
)
"""Patterns of libtpu's messages about the memory that a program needs, and that a chip has."""
HELD = re.compile(
    r"TPU is already in use by (?:process with pid|another process.*?pid) (?P<pid>\d+)",
    re.IGNORECASE,
)


def explain(
    error: BaseException, batch_size: int | None = None, cores: int = 1
) -> CortextError | None:
    """Turn an error of XLA, JAX or TensorFlow in a step into one line.

    Args:
        error: The error.
        batch_size: Trials of the whole batch, on all cores and in all pieces; None if unknown.
        cores: Number of cores that share the batch.

    Returns:
        The error to raise; None for an error of another origin.
    """
    if isinstance(error, CortextError):
        return error
    text = f"{type(error).__name__}: {error}"
    for find in (_out_of_memory, _held, _workers, _not_started, _dtypes):
        if (explained := find(text, batch_size, cores)) is not None:
            return explained
    return None


def _out_of_memory(text: str, batch_size: int | None, cores: int) -> CortextError | None:
    if not re.search(
        r"RESOURCE_EXHAUSTED|ResourceExhausted|[Oo]ut of memory|Ran out of memory", text
    ):
        return None
    sizes = next((match for pattern in SIZES if (match := pattern.search(text))), None)
    needs = f" (it needs {sizes['used']} of {sizes['there']} a core)" if sizes else ""
    batch = f" with a batch of {batch_size}" if batch_size else ""
    share = f", {-(-batch_size // cores)} trials a core" if batch_size and cores > 1 else ""
    fix = (
        "raise gradient_accumulation_steps (the same batch in pieces), or lower dataset.batch_size"
        " or the model's units"
    )
    return RunError(f"out of memory: resource exhausted{batch}{share}{needs}", fix=fix)


def _held(text: str, batch_size: int | None, cores: int) -> CortextError | None:
    if (held := HELD.search(text)) is None and "libtpu_lockfile" not in text:
        return None
    by = f"process {held['pid']}" if held else "another process"
    fix = (
        "end it (a notebook kernel holds the TPU until it is restarted), and run one process a"
        " machine"
    )
    return RunError(f"the TPU is in use by {by}", fix=fix)


def _workers(text: str, batch_size: int | None, cores: int) -> CortextError | None:
    if (wrong := re.search(r"Expected (\d+) worker addresses, got (\d+)", text)) is None:
        return None
    problem = (
        f"one core instead of {wrong[1]}: this program was started as one of {wrong[1]} processes"
    )
    return RunError(
        problem,
        fix=(
            "start it once, without xmp.spawn or torchrun: one process drives all cores of a"
            " machine"
        ),
    )


def _not_started(text: str, batch_size: int | None, cores: int) -> CortextError | None:
    if not re.search(
        r"Unable to initialize backend 'tpu'|No TPU devices? (were |was )?found|TPU initialization"
        r" failed",
        text,
    ):
        return None
    reason = " ".join(text.split())[:200]
    return RunError(
        f"the TPU did not start: {reason}",
        fix="`cortext doctor` says what was found and which versions clash",
    )


def _dtypes(text: str, batch_size: int | None, cores: int) -> CortextError | None:
    """Return an error about two shapes in the message that differ only in type; None without."""
    shapes = [
        (SHORT.get(match["type"], match["type"]), match["sizes"]) for match in SHAPE.finditer(text)
    ]
    for kind, sizes in shapes:
        for other, same in shapes:
            if (
                sizes == same
                and kind != other
                and re.search("mismatch|must (have|match)|equal types|dtype|differ", text)
            ):
                problem = (
                    f"two types of numbers meet in the model: {kind}[{sizes}] and {other}[{same}]"
                )
                fix = (
                    "train with --precision fp32, and cast in your own layer: float32 states,"
                    " bfloat16 products"
                )
                return RunError(problem, fix=fix)
    return None
