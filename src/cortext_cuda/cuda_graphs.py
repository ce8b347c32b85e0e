"""Functions that are captured as CUDA graphs and replayed: one call starts all their kernels."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Hashable
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar, cast

import torch
from torch.utils._pytree import tree_leaves

from cortext.training.distributed import own_random_numbers
from cortext.training.progress import say

T = TypeVar("T")

MOST_GRAPHS = 128
"""Graphs of a run. Further lengths run without one."""
BOUND = 0.01
"""Largest difference of a replay from a call, as a share of the largest number. Both start the same
kernels, some of which add up in an order of their own."""


class Graphs:
    """Functions of fixed memory, captured as CUDA graphs when a key comes the second time.

    The first call of a key makes what a capture cannot: libraries' handles, compiled kernels, the
    optimiser's moments.

    All graphs of a process, on one GPU, share one pool of memory. They never run at the same time,
    so each may overwrite what another has left. It grows to about the largest graph's need.

    A graph is taken after a proof: its first replay must give what the call itself gives.

    Args:
        device: A GPU; on another device functions are only called.
        what: Name of the functions, for the line that says that they are not replayed.
        why_not: Function that returns why they cannot be captured; None if they can.
        held: Function that returns the tensors that the functions change.
        shown: Print that line.

    Attributes:
        failed: True if nothing is captured from now on.
    """

    def __init__(
        self,
        device: torch.device,
        what: str,
        why_not: Callable[[], str | None] = lambda: None,
        held: Callable[[], list[torch.Tensor]] = list,
        shown: bool = True,
    ) -> None:
        self.device, self.what, self.why_not, self.shown = device, what, why_not, shown
        self.held = held
        self.failed = device.type == "cuda" and self._give_up(why_not())
        self._graphs: dict[Hashable, tuple[torch.cuda.CUDAGraph, Any] | None] = {}
        self._facts: Hashable = None

    def forget_unless(self, facts: Hashable) -> None:
        """Drop all graphs unless these facts are those of the last time."""
        if facts != self._facts:
            self._graphs.clear()
            self._facts = facts

    def run(self, key: Hashable, function: Callable[[], T]) -> T:
        """Call a function, or replay what it did.

        Args:
            key: What the function depends on beside the contents of its memory.
            function: Reads and writes the same memory at every call, and returns tensors.

        Returns:
            The function's result. Copy its tensors before the next call, which may overwrite them.
        """
        found = self._graphs.get(key)
        if found is None and key in self._graphs and self._may_capture():
            found = self._captured(function)
            if found is not None and self._proves(*found, function):
                self._graphs[key] = found
                return cast(T, found[1])
            found = None
        self._graphs.setdefault(key, None)
        if found is None:
            return self._called(function)
        graph, result = found
        graph.replay()
        return cast(T, result)

    def _called(self, function: Callable[[], T]) -> T:
        """Call a function on the stream of captures.

        torch adds up a parameter's gradient on the stream that first used the parameter, as long as
        anything remembers that use; a capture may not wait for another stream.
        """
        if self.device.type != "cuda":
            return function()
        own, current = _stream(self.device), torch.cuda.current_stream(self.device)
        own.wait_stream(current)
        with torch.cuda.stream(own):
            result = function()
        current.wait_stream(own)
        return result

    def _may_capture(self) -> bool:
        if self.device.type != "cuda" or self.failed:
            return False
        if sum(graph is not None for graph in self._graphs.values()) >= MOST_GRAPHS:
            return False
        return not self._give_up(self.why_not())  # hooks may be new

    def _give_up(self, why: str | None) -> bool:
        """Capture nothing from now on, and say why; do nothing for None."""
        if why is None:
            return False
        self.failed = True
        say(f"note: {self.what} are not replayed as CUDA graphs: {why}", self.shown)
        return True

    def _captured(self, function: Callable[[], T]) -> tuple[torch.cuda.CUDAGraph, T] | None:
        """Capture a function without running it; None, after a line that says so, if it fails."""
        graph, stream = torch.cuda.CUDAGraph(), _stream(self.device)
        living = next(iter(_LIVING), None)
        pool = torch.cuda.graph_pool_handle() if living is None else living.pool()
        try:
            # A thread prepares the next batch meanwhile: its calls are none of the graph's.
            with torch.cuda.graph(graph, pool, stream, "thread_local"):
                result = function()
        except RuntimeError as error:
            self._give_up(str(error.__context__ or error).partition("\n")[0])
            _recover(self.device, pool)
            return None
        _LIVING.add(graph)
        return graph, result

    def _proves(self, graph: torch.cuda.CUDAGraph, result: T, function: Callable[[], T]) -> bool:
        """Replay a graph for the first time; tell whether it gives what the function gives.

        If not, print a line, and leave the tensors that it has changed as they were.
        """
        before: list[torch.Tensor] = []
        why = "the first that was replayed gave other results"
        try:
            before += (tensor.detach().clone() for tensor in self.held())
            with own_random_numbers(self.device):
                expected = [tensor.clone() for tensor in _tensors(self._called(function))]
            self._restore(before)
            with own_random_numbers(self.device):
                graph.replay()
            agree = all(itertools.starmap(_agree, zip(_tensors(result), expected, strict=True)))
        except torch.OutOfMemoryError:
            agree, why = False, "memory is too small to compare one with the usual way"
        if not agree:
            self._restore(before)
            self._give_up(why)
        return agree

    @torch.no_grad()
    def _restore(self, before: list[torch.Tensor]) -> None:
        for tensor, copy in zip(self.held(), before, strict=False):  # fewer if memory ran out
            tensor.copy_(copy)


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _agree(found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Tell whether two tensors agree to `BOUND`; reading them waits for the device."""
    finite = expected.isfinite()
    # Values that are not finite must be so in both: the loss of a bad trial, and its norm.
    if not torch.equal(finite, found.isfinite()):
        return False
    found, expected = found[finite].float(), expected[finite].float()
    largest = expected.abs().max() if expected.numel() else 0.0
    return bool(((found - expected).abs() <= BOUND * largest).all())


_LIVING: weakref.WeakSet[torch.cuda.CUDAGraph] = weakref.WeakSet()
"""All graphs of this process. A pool is gone with its last graph."""


@lru_cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream that graphs are captured on.

    Kernels keep its priority, which is above that of the thread that prepares batches.
    """
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def _recover(device: torch.device, pool: Any) -> None:
    """Undo what a capture leaves behind that has failed: torch does so where one ends well."""
    index = torch.cuda.current_device() if device.index is None else device.index
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(index, pool)
    # The generator would count on being captured until a capture ends.
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.zeros((), device=device)
