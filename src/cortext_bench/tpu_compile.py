"""`cortext bench tpu-compile`: training steps of the published shape, compiled without a TPU.

The steps are not run; the only measured time is the compiler's. The cost of a step is counted in
the compiled program, and its time is an estimate from that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cortext.errors import CortextError
from cortext.extras import need
from cortext.provenance import provenance
from cortext_bench.harness import Stage, machine
from cortext_bench.workers import ONE_THREAD, Missing, WorkerProcess, own_stdout, serve
from cortext_tpu.compile import ENVIRONMENT, Target, compile_step
from cortext_tpu.roofline import BATCHES, V5E

CLAIM = "adversarial model on a TPU v5e-8 4-6 h, claimed"
"""Claims about 120,000 batches that others have published."""

SHAPES: dict[str, Target] = {
    "baseline": Target("gru_tpu"),
    "adversarial, noise 768": Target("triple_gru_tpu", ("model.noise_units=768",)),
    "adversarial, noise 7168": Target("triple_gru_tpu", ("model.noise_units=7168",)),
    "transformer": Target("transformer_t15"),
}
"""The published shapes of all models; the noise model of the second in its two widths."""


def bench_tpu_compile(
    targets: Mapping[str, Target], stage: Stage = lambda name: None
) -> dict[str, Any]:
    """Compile the targets one after the other; returns what `--json` prints.

    Raises CortextError where none compiles.

    A target that does not compile is named in `missing`, with the reason.
    """
    for module in ("jax", "torchax", "libtpu"):
        need(module, "tpu")
    found: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name, target in targets.items():
        stage(f"{name}: compiling for {target.topology}")
        try:
            found[name] = _compile(name, target)
        except Missing as error:
            missing[name] = str(error)
    if not found:
        raise CortextError(next(iter(missing.values())))
    origin = provenance()
    origin["versions"] |= {
        name: metadata.version(name) for name in ("jax", "jaxlib", "libtpu", "torchax")
    }
    return {
        "shapes": found,
        "missing": missing,
        "chip": asdict(V5E),
        "batches": BATCHES,
        "claims": [CLAIM],
        "machine": machine(),
        "provenance": origin,
    }


def _compile(name: str, target: Target) -> dict[str, Any]:
    with TemporaryDirectory(prefix="cortext-compile-") as folder:
        plan = json.dumps(asdict(target))
        log = Path(folder, "log")
        with WorkerProcess(name, "tpu_compile", [plan], log, ONE_THREAD | ENVIRONMENT) as child:
            return child.loaded


def main() -> None:
    """Compile one target in this process, which loads libtpu with the environment it needs.

    python -m cortext_bench.tpu_compile TARGET        (a cortext_tpu.compile.Target as JSON)
    """
    answers = own_stdout()

    def begin() -> tuple[None, dict[str, Any]]:
        try:
            return None, compile_step(Target(**json.loads(sys.argv[1])))
        except CortextError as error:
            raise Missing(str(error)) from None

    serve(begin, sys.stdin, answers)


if __name__ == "__main__":
    main()
