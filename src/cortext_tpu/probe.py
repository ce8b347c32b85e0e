"""The devices of a backend and a training step with it, in a process of its own.

The process is `python -m cortext_tpu.probe`. A backend that crashes there, or waits for a TPU that
another process holds, cannot harm its caller.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cortext.training.backend import DeviceSpec

ANSWER = "cortext_tpu.probe: "
"""Prefix of lines with an answer; libraries write to stdout, too."""
Device = dict[str, Any]
"""Device by kind (cpu, cuda or tpu), name and memory_gib (None if the backend does not tell it).

With torch a GPU also has `paths`, lines on how it trains.
"""
MODELS = {
    "gru": ["model.n_units=128", "model.n_layers=2"],
    "triple_gru": [
        *(f"model.{part}_units=128" for part in ("noise", "clean", "noisy")),
        *(f"model.{part}_layers=1" for part in ("noise", "clean", "noisy")),
    ],
}
"""Overrides that make the published recipes so small that any machine trains a step in seconds."""
STEP = ["num_training_batches=2", "batches_per_train_log=1", "dataset.days_per_batch=2"]
STEP += [
    "tpu.length_shapes=1",
    "tpu.compilation_cache=null",
    "lr_warmup_steps=0",
    "lr_warmup_steps_day=0",
]


def torch_devices(tpu: str | None) -> list[Device]:
    """List the processor and torch's GPUs; `tpu` is ignored."""
    import torch

    devices: list[Device] = [{"kind": "cpu", "name": _processor(), "memory_gib": _memory_gib()}]
    for number in range(torch.cuda.device_count()):
        from cortext.cuda import kernels

        properties, device = torch.cuda.get_device_properties(number), torch.device("cuda", number)
        gpu = {"kind": "cuda", "name": properties.name, "memory_gib": _gib(properties.total_memory)}
        devices.append(gpu | {"paths": kernels().describe_paths(device)})
    return devices


def torchax_devices(tpu: str | None) -> list[Device]:
    """List JAX's devices, of all hosts of a slice; torchax runs torch's models on them."""
    import jax
    import torchax  # noqa: F401 # that it imports is part of the answer

    from cortext_tpu.find import find_tpu
    from cortext_tpu.mesh import hosts

    with hosts(_device_spec("tpu", tpu=tpu)) if len(find_tpu(tpu).hosts) > 1 else nullcontext():
        return [
            {
                "kind": {"gpu": "cuda"}.get(device.platform, device.platform),
                "name": device.device_kind if device.platform != "cpu" else _processor(),
                "memory_gib": _own_memory_gib(device),
            }
            for device in jax.devices()
        ]


def tensorflow_devices(tpu: str | None) -> list[Device]:
    """List the cores of the TPU at an address, else the processor and GPUs.

    TensorFlow's usual build has no TPUs.
    """
    import tensorflow as tf

    try:
        if tpu is not None:
            tf.distribute.cluster_resolver.TPUClusterResolver.connect(tpu=tpu)
    except (tf.errors.OpError, ValueError, RuntimeError):
        if tpu != "local":  # the chips of this machine may be another backend's
            raise
    if tf.config.list_logical_devices("TPU"):
        return [
            {"kind": "tpu", "name": core.name, "memory_gib": None}
            for core in tf.config.list_logical_devices("TPU")
        ]
    gpus = tf.config.list_physical_devices("GPU")
    names = [
        tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus
    ]
    processor = {"kind": "cpu", "name": _processor(), "memory_gib": _memory_gib()}
    return [processor, *({"kind": "cuda", "name": name, "memory_gib": None} for name in names)]


@dataclass(frozen=True)
class Probe:
    """A backend as the doctor examines it.

    Attributes:
        packages: Packages that the backend needs.
        devices: Function that lists its devices, given the address of a TPU or None.
        device_spec: Function from a kind of device to its specification.
        shown: Other packages whose versions are reported.
        env: Function from a kind of device to environment variables for training on it.
    """

    packages: tuple[str, ...]
    devices: Callable[[str | None], list[Device]]
    device_spec: Callable[[str], DeviceSpec]
    shown: tuple[str, ...] = ()
    env: Callable[[str], Mapping[str, str]] = field(default=lambda kind: {})


def _device_spec(kind: str, **more: Any) -> DeviceSpec:
    from cortext.training.backend import DeviceSpec

    return DeviceSpec(kind, **more)


PROBES = {
    "torch": Probe(("torch",), torch_devices, _device_spec),
    "torchax": Probe(
        ("torchax", "jax"),
        torchax_devices,
        lambda kind: _device_spec("tpu"),
        ("libtpu",),
        lambda kind: {} if kind == "tpu" else {"JAX_PLATFORMS": kind},
    ),
    "tensorflow": Probe(
        ("tensorflow", "keras"),
        tensorflow_devices,
        lambda kind: _device_spec(kind, backend="tensorflow"),
        ("libtpu",),
        lambda kind: {"CUDA_VISIBLE_DEVICES": "-1"} if kind == "cpu" else {},
    ),
}
"""Every backend by name; `training.backend.backend_class` returns their classes."""


def take_step(
    backend: str, model: str, kind: str, tpu: str | None, data: Path, out: Path, batch_size: int
) -> dict[str, Any]:
    """Take a training step of a recipe on simulated data.

    Args:
        backend: Name of the backend.
        model: Name of the recipe.
        kind: Kind of the device.
        tpu: Name or address of a TPU.
        data: Packed data.
        out: Run directory to write.
        batch_size: Number of trials in the batch.

    Returns:
        `device`, its `cores`, the `loss`, and the `seconds` with compiling.
    """
    from dataclasses import replace

    from cortext.training import Callback, Trainer, Trains

    class ProbeLoss(Callback):
        value = float("nan")

        def on_train(self, trainer: Trains, step: int, values: dict[str, Any]) -> None:
            self.value = values["train_loss"]

    loss = ProbeLoss()
    started = time.perf_counter()
    spec = PROBES[backend].device_spec(kind)
    if spec.backend_name != "torch":
        spec = replace(spec, tpu=tpu)
    overrides = [*STEP, *MODELS[model], f"dataset.batch_size={batch_size}"]
    with Trainer(
        model, data, out, device=spec, overrides=overrides, callbacks=[loss], progress=False
    ) as trainer:
        trainer.run(1)  # not to the end, which would also compile the validation
        used = {"device": trainer.backend.name, "cores": trainer.backend.cores}
    return used | {"loss": loss.value, "seconds": round(time.perf_counter() - started, 1)}


def _own_memory_gib(device: Any) -> float | None:
    """Return the memory of a JAX device of this host; None for others, or if it does not tell."""
    import jax

    own = device.process_index == jax.process_index()
    return _gib((device.memory_stats() or {}).get("bytes_limit")) if own else None


def _gib(n_bytes: int | None) -> float | None:
    return None if n_bytes is None else round(n_bytes / 2**30, 1)


def _memory_gib() -> float:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.machine())}, {os.cpu_count()} cores"


def main() -> None:
    """Answer a request, a JSON object as the only argument, in lines of JSON on stdout."""
    request = json.loads(sys.argv[1])
    if request["do"] == "devices":
        _say(PROBES[request["backend"]].devices(request["tpu"]))
        return
    for model in MODELS:
        try:
            answer = take_step(
                request["backend"],
                model,
                request["kind"],
                request["tpu"],
                Path(request["data"]),
                Path(request["out"]) / model,
                request["batch_size"],
            )
        except Exception as error:  # the other models are tried all the same
            answer = {"problem": " ".join(f"{type(error).__name__}: {error}".split())[:300]}
        _say({"model": model, **answer})


def _say(value: Any) -> None:
    print(f"\n{ANSWER}{json.dumps(value)}", flush=True)


if __name__ == "__main__":
    main()
