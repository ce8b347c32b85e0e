"""Training in several processes, as `torchrun` starts them: each works on its share of every batch.

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
"""The longest time that a process waits for another, which may be packing a whole data set."""


@dataclass(frozen=True)
class Processes:
    """This process, number `rank` of `world`; one process alone needs no `torch.distributed`."""

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
            all_used: Whether every parameter that learns has a gradient in every batch; to look for
                the others takes time.
        """
        if self.world == 1:
            return network
        return nn.parallel.DistributedDataParallel(
            network, find_unused_parameters=not all_used, gradient_as_bucket_view=True
        )

    def rank_zero_first(self, action: Callable[[], T]) -> T | None:
        """Let the first process do something while the others wait; all must call.

        Returns:
            The action's result in the first process, None elsewhere.

        Raises:
            CortextError: In all processes, where the action raises one.
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
        """The value (anything that pickles) of every process, in each of them; all must call."""
        if self.world == 1:
            return [value]
        values: list[Any] = [None] * self.world
        dist.all_gather_object(values, value)
        return values


ALONE = Processes()


@contextmanager
def processes(device: torch.device) -> Iterator[Processes]:
    """A context in which the processes that `torchrun` started can talk.

    Over NCCL on CUDA, over gloo elsewhere.
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
    """The device of that name; `cuda` in one of several processes is the GPU of its local rank.

    Raises RunError.
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
    """A context after which torch's generators are what they were.

    Other GPUs than this one are left in peace.
    """
    return torch.random.fork_rng([device] if device.type == "cuda" else [])
