"""How a batch lies on the cores of all hosts: trials are shared out over one axis, weights are everywhere the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

DATA = "data"
"""The axis along which the trials of a batch are shared out."""


def data_mesh(devices: Sequence[Any]) -> Mesh:
    """The devices (TPU cores of all hosts, or virtual ones) in a row."""
    return Mesh(np.array(devices), (DATA,))


def by_trial(mesh: Mesh) -> NamedSharding:
    """The layout of an array whose first axis is the trials of a batch."""
    return NamedSharding(mesh, PartitionSpec(DATA))


def everywhere(mesh: Mesh) -> NamedSharding:
    """The layout of an array that every core has whole."""
    return NamedSharding(mesh, PartitionSpec())
