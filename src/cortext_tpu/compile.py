"""A training step compiled without a TPU, and its costs.

libtpu has the TPU's compiler and a description of every topology, and needs no device for them. The
step is that of `cortext train --device tpu`. It is compiled from shapes alone, without memory for
weights.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from cortext.errors import ConfigError, CortextError
from cortext.extras import need
from cortext.models import build_model
from cortext.text.inventory import RELEASE
from cortext.training.config import TrainConfig, read_train_config
from cortext.training.torch_backend import flops_of_attention, flops_per_bin, flops_per_patch
from cortext_tpu.cost import Cost, count
from cortext_tpu.hlo import parse
from cortext_tpu.roofline import V5E, roofline

ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no device is opened, so another process may hold the TPU
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # else it waits for a metadata server outside Google Cloud
    "TPU_WORKER_HOSTNAMES": "localhost",
}
"""Environment variables of a process that only compiles; they are set before it starts."""


_FIX = "name a topology of TPU v5e, such as v5e:2x4"


@dataclass(frozen=True)
class Target:
    """A recipe and the sizes to compile it for.

    The defaults are the published sizes; docs/measured/tpu-compile.md has the reason for 900 bins.
    """

    recipe: str
    overrides: tuple[str, ...] = ()
    n_bins: int = 900
    n_features: int = 512
    n_days: int = 45
    n_labels: int = 110
    n_classes: int = len(RELEASE)
    topology: str = "v5e:2x4"


def compile_step(target: Target) -> dict[str, Any]:
    """Compile a step; return its costs for one chip as JSON takes them.

    docs/guides/tpu-compile.md lists the fields.

    Raises:
        CortextError: If libtpu does not know the topology, or cannot compile the step for it, for
            example because it has too little memory.
    """
    need("torchax", "tpu")
    from cortext_tpu.mesh import data_mesh
    from cortext_tpu.step import lower_step

    config = read_train_config(target.recipe, target.overrides)
    mesh = data_mesh(devices(target.topology))
    n_chips = mesh.devices.size
    expected, facts = _expected(config, target, n_chips)
    sizes = {
        "n_features": target.n_features,
        "n_days": target.n_days,
        "n_bins": target.n_bins,
        "n_labels": target.n_labels,
        "n_classes": target.n_classes,
    }
    started = time.perf_counter()
    lowered = lower_step(config, mesh, **sizes)
    lowered_at = time.perf_counter()
    compiled = _compiled(lowered, target)
    seconds = {"lower_s": lowered_at - started, "compile_s": time.perf_counter() - lowered_at}
    cost = count(parse(compiled.as_text()))
    once = compiled.cost_analysis()
    memory = _memory(compiled.memory_analysis())
    flops = float(cost.flops.total())
    return {
        "target": asdict(target) | facts | {"chips": n_chips},
        **seconds,
        "memory": memory,
        "flops": flops,
        "flops_by_precision": dict(cost.flops),
        "flops_by_formula": expected,
        "flops_counted_once": once["flops"],
        "hbm_bytes": cost.hbm_bytes,
        "bytes_counted_once": once["bytes accessed"],
        "exchanges": [asdict(exchange) for exchange in cost.exchanges.values()],
        "loops": [asdict(loop) for loop in cost.loops],
        "checks": _checks(cost, expected, memory),
        "estimate": roofline(cost, V5E, n_chips),
    }


def devices(topology: str) -> list[Any]:
    """Return the chips of a topology, without having them.

    Raises CortextError if libtpu does not know the topology.
    """
    need("libtpu", "tpu")
    topologies = need("jax.experimental.topologies", "tpu")
    try:
        described = list(topologies.get_topology_desc(topology, platform="tpu").devices)
    except Exception as error:  # libtpu's errors have no common type
        reason = str(error).partition("\n")[0]
        raise CortextError(
            f"libtpu cannot describe the topology: {reason}", where=topology, fix=_FIX
        ) from error
    if described[0].device_kind != V5E.kind:
        raise CortextError(
            f"no figures are known for {described[0].device_kind}", where=topology, fix=_FIX
        )
    return described


def _compiled(lowered: Any, target: Target) -> Any:
    jax = need("jax", "tpu")
    try:
        return lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        line = str(error).partition("\n")[0]
        fix = (
            "lower dataset.batch_size or raise gradient_accumulation_steps"
            if "RESOURCE_EXHAUSTED" in line
            else None
        )
        raise CortextError(
            f"the step does not compile: {line}", where=target.topology, fix=fix
        ) from error


def _expected(config: TrainConfig, target: Target, n_chips: int) -> tuple[float, dict[str, Any]]:
    """Return the operations of one chip's share of a batch, by formula, and the sizes of both."""
    with torch.device("meta"):
        network: Any = build_model(
            config.model,
            n_features=target.n_features,
            n_days=target.n_days,
            n_classes=target.n_classes,
        )
    trials = config.dataset.batch_size // n_chips
    n_patches = int(network.n_patches(target.n_bins))
    if n_patches < 1:
        raise ConfigError(
            f"trials of {target.n_bins} bins hold no patch of {config.model.patch_size}"
        )
    of_trial = n_patches * flops_per_patch(network) + target.n_bins * flops_per_bin(network)
    flops = trials * (of_trial + flops_of_attention(network, n_patches))
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return flops, {
        "parameters": parameters,
        "patches": n_patches,
        "batch": config.dataset.batch_size,
        "trials": trials,
    }


def _memory(stats: Any) -> dict[str, int]:
    """Return the bytes used of a chip's main memory; the total counts outputs in arguments once."""
    by_use = {
        "arguments": stats.argument_size_in_bytes,
        "temporaries": stats.temp_size_in_bytes,
        "output": stats.output_size_in_bytes,
        "aliased": stats.alias_size_in_bytes,
        "program": stats.generated_code_size_in_bytes,
    }
    return by_use | {"total": sum(by_use.values()) - 2 * by_use["aliased"]}


def _checks(cost: Cost, expected: float, memory: dict[str, int]) -> dict[str, bool]:
    return {
        "gradients are exchanged": any(kind == "all-reduce" for kind, _ in cost.exchanges),
        "memory fits": memory["total"] <= V5E.hbm_bytes,
        "operations within 5 % of the formula": abs(cost.flops.total() / expected - 1) <= 0.05,
        "every loop's length is known": all(loop.trips is not None for loop in cost.loops),
    }
