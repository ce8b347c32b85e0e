"""Training in several processes, started by `torchrun`: each takes its share of every batch.

Every process holds the same weights and draws the same batches; gradients are averaged by
DistributedDataParallel (Li et al., VLDB 2020). Only the first process writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from cortext.errors import CortextError, RunError

T = TypeVar("T")

PATIENCE = timedelta(hours=6)
"""Longest time that a process waits for another, which may be packing a whole data set."""


@dataclass(frozen=True)
class Processes:
    """Position of this process (`rank`) among the processes of the run (`world` in all).

    A single process needs no `torch.distributed`.
    """

    rank: int = 0
    world: int = 1

    @property
    def first(self) -> bool:
        """True in the process that writes."""
        return self.rank == 0

    def wrap(self, network: nn.Module, all_used: bool) -> nn.Module:
        """Return the network so that its gradients are averaged over the processes.

        Args:
            network: The model, on this process's device.
            all_used: True if every parameter that learns has a gradient in every batch; False
                searches each batch for the others, which takes time.
        """
        if self.world == 1:
            return network
        return nn.parallel.DistributedDataParallel(
            network, find_unused_parameters=not all_used, gradient_as_bucket_view=True
        )

    def rank_zero_first(self, action: Callable[[], T]) -> T | None:
        """Run an action in the first process while the others wait; all processes must call.

        Returns:
            The action's result in the first process, None in the others.

        Raises:
            CortextError: In all processes, if the action raises one.
        """
        result = None
        error = None
        if self.first:
            try:
                result = action()
            except CortextError as failure:
                error = failure
        if (error := self.gather(error)[0]) is not None:
            raise error
        return result

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes, by rank; all processes must call.

        The value must pickle.
        """
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values


ALONE = Processes()


@contextmanager
def processes(device: torch.device) -> Iterator[Processes]:
    """Yield the processes that `torchrun` started, able to exchange values.

    They use NCCL on CUDA and gloo on a CPU.
    """
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1 or dist.is_initialized():
        yield Processes(dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else ALONE
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        {"cuda": "nccl", "tpu": "tpu_dist"}.get(device.type, "gloo"), timeout=PATIENCE
    )
    try:
        yield Processes(dist.get_rank(), world)
    finally:
        dist.destroy_process_group()


def own_device(name: str) -> torch.device:
    """Return the device of that name.

    In one of several processes `cuda` is the GPU of its local rank.

    Raises:
        RunError: If the device cannot be used.
    """
    if name == "cuda" and "LOCAL_RANK" in os.environ:
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        fix = "use cpu, cuda or cuda:N, or (in training) tpu, which is all its cores"
        raise RunError(f"device {name!r} cannot be used: {reason}", fix=fix) from None
    return device


def own_random_numbers(device: torch.device) -> AbstractContextManager[None]:
    """Restore torch's random generators after the body: the CPU's, and that of `device`.

    Generators of other GPUs are not touched.
    """
    return torch.random.fork_rng([device] if device.type == "cuda" else [])
