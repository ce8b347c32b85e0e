"""The `tf.distribute` strategy of a run: a TPU's cores, else several GPUs, else one device."""

from __future__ import annotations

from functools import cache
from typing import Any

import tensorflow as tf

from cortext.errors import ConfigError, RunError
from cortext.training.backend import DeviceSpec
from cortext.training.progress import say
from cortext_tpu.cores import check_cores, cores_line
from cortext_tpu.find import Found, find_tpu


def choose_strategy(spec: DeviceSpec | None = None, shown: bool = True) -> Any:
    """Choose TPUStrategy, else MirroredStrategy, else OneDeviceStrategy.

    Args:
        spec: Device to use; None takes any. `tpu` takes only a TPU, `cuda` all GPUs and `cuda:N`
            one. Each of TensorFlow's logical CPU devices counts as a device.
        shown: Print the places searched for a TPU and the number of cores that will train.

    Raises:
        RunError: If a requested TPU is missing or does not start, or if there are fewer cores than
            `spec.require_cores`.
        ConfigError: For a GPU that does not exist.
    """
    spec = spec or DeviceSpec()
    tpu = find_tpu(spec.tpu)
    for line in tpu.describe():
        say(line, shown)
    asked = spec.device == "tpu"
    if asked:
        tpu.required()
    strategy = None if tpu.address is None else _on_tpu(tpu, asked, shown)
    kind = "TPU core"
    if strategy is None:
        strategy, kind = _on_local_devices(spec.device, shown)
    used = strategy.num_replicas_in_sync
    check_cores(used, spec.require_cores, tpu)
    say(cores_line(used, tpu, kind), shown)
    return strategy


def _on_tpu(tpu: Found, asked: bool, shown: bool) -> Any:
    """Return TPUStrategy. If the TPU does not start, return None, or raise RunError if `asked`."""
    say(f"trying TPUStrategy on {tpu.address}", shown)
    try:
        return started(tpu.address)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        problem = f"the TPU at {tpu.address} did not start: {' '.join(str(error).split())[:200]}"
        if asked:
            raise RunError(
                problem, fix="`cortext doctor` says what was found and which versions clash"
            ) from None
        say(f"{problem}; looking for other devices", shown)
        return None


@cache
def started(address: str) -> Any:
    """Start the TPU at an address, once: starting it again would erase its memory."""
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=address)
    tf.config.experimental_connect_to_cluster(resolver)
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)


@cache
def mirrored(names: tuple[str, ...]) -> Any:
    """Make a MirroredStrategy on devices, once: two in a process mix up their messages."""
    return tf.distribute.MirroredStrategy(names)


def _on_local_devices(device: str, shown: bool) -> tuple[Any, str]:
    """Return a strategy for this machine's GPUs or CPU devices, and the kind of device."""
    kind, _, number = device.partition(":")
    gpus = [gpu.name for gpu in tf.config.list_logical_devices("GPU")]
    if kind == "cuda" and (not gpus or int(number or 0) >= len(gpus)):
        raise ConfigError(
            f"--device is {device!r}, and TensorFlow sees {len(gpus)} GPUs", fix="leave it out"
        )
    names = gpus[int(number) :][:1] if number else gpus
    unit = "GPU" if names else "CPU device"
    names = names or [cpu.name for cpu in tf.config.list_logical_devices("CPU")]
    if len(names) > 1:
        say(f"trying MirroredStrategy on {len(names)} {unit}s", shown)
        return mirrored(tuple(names)), unit
    say(f"trying OneDeviceStrategy on {names[0]}", shown)
    return tf.distribute.OneDeviceStrategy(names[0]), unit
