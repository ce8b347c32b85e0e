"""Layouts of arrays on the cores of all hosts.

The cores share the trials of a batch along one axis; each core has all weights. The hosts of a
slice are processes, one per host, which start the same command.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cortext.errors import RunError
from cortext.training.backend import DeviceSpec
from cortext.training.distributed import ALONE, Processes
from cortext_tpu.find import Found, find_tpu

DATA = "data"
"""Name of the axis along which cores share the trials of a batch."""


def data_mesh(devices: Sequence[Any]) -> Mesh:
    """Make a mesh with one axis of devices: TPU cores of all hosts, or virtual devices."""
    return Mesh(np.array(devices), (DATA,))


def by_trial(mesh: Mesh) -> NamedSharding:
    """Return the layout of an array whose first axis is the trials of a batch."""
    return NamedSharding(mesh, PartitionSpec(DATA))


def everywhere(mesh: Mesh) -> NamedSharding:
    """Return the layout of an array of which every core has a full copy."""
    return NamedSharding(mesh, PartitionSpec())


def put(layout: NamedSharding, tree: Any) -> Any:
    """Put arrays of the host on the cores; with `by_trial` they are this host's rows."""
    return jax.tree.map(
        lambda x: jax.make_array_from_process_local_data(layout, np.asarray(x)), tree
    )


def own_rows(array: jax.Array) -> np.ndarray:
    """Return this host's rows of an array that is laid out by trial, in order."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return np.concatenate([np.asarray(shard.data) for shard in shards])


def own_copy(tree: Any) -> Any:
    """Copy arrays that every core has to this host; all copies start before one is awaited."""
    return jax.device_get(jax.tree.map(lambda x: x.addressable_data(0), tree))


def find_own_tpu(spec: DeviceSpec) -> Found:
    """Find the TPU that JAX will use, or none if `JAX_PLATFORMS` names other devices.

    `JAX_PLATFORMS=cpu` runs the same programs on a CPU, to try them out.

    Raises:
        RunError: If there is no TPU.
    """
    platforms = os.environ.get("JAX_PLATFORMS", "")
    if spec.tpu is None and platforms and "tpu" not in platforms.split(","):
        return Found(looked=(("JAX_PLATFORMS", platforms),))
    return find_tpu(spec.tpu).required(attached=True)


@dataclass(frozen=True)
class Hosts(Processes):
    """The processes of a slice, which communicate over JAX."""

    def gather(self, value: Any) -> list[Any]:
        """See `Processes`."""
        content = np.frombuffer(pickle.dumps(value), np.uint8)
        lengths = multihost_utils.process_allgather(np.array(len(content))).tolist()
        padded = 1 << max(lengths).bit_length()  # few sizes, because each is a program
        contents = multihost_utils.process_allgather(np.pad(content, (0, padded - len(content))))
        return [
            pickle.loads(row[:length].tobytes())
            for row, length in zip(contents, lengths, strict=True)
        ]


@contextmanager
def hosts(spec: DeviceSpec) -> Iterator[Processes]:
    """Connect the hosts of a slice within the context; a single host needs no connection.

    Without a TPU, JAX_COORDINATOR_ADDRESS (`HOST:PORT` of the first process), JAX_NUM_PROCESSES and
    JAX_PROCESS_ID name the processes.

    Raises:
        RunError: If the hosts do not connect.
    """
    tpu = find_own_tpu(spec)
    several = len(tpu.hosts) > 1 or "JAX_COORDINATOR_ADDRESS" in os.environ
    if not several or jax.distributed.is_initialized():
        yield (
            Hosts(jax.process_index(), jax.process_count())
            if jax.distributed.is_initialized()
            else ALONE
        )
        return
    number, count = os.environ.get("JAX_PROCESS_ID"), os.environ.get("JAX_NUM_PROCESSES")
    try:
        jax.distributed.initialize(
            num_processes=None if count is None else int(count),
            process_id=None if number is None else int(number),
        )
    except (RuntimeError, ValueError) as error:
        problem = f"the hosts of the slice do not come together: {str(error).splitlines()[0]}"
        raise RunError(
            problem, fix="start the same command on every host (`--worker=all`)"
        ) from None
    try:
        yield Hosts(jax.process_index(), jax.process_count())
    finally:
        jax.distributed.shutdown()
