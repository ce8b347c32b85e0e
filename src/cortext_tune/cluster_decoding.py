"""The search through a split's log-probabilities on a Ray cluster.

It finds the same sentences as one machine.

Shapes: P patches of 80 ms, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cortext.decoding import NBest
from cortext.errors import CortextError, RunError, first_line
from cortext.evaluation.decoder_files import DecoderFiles
from cortext.evaluation.settings import LargeModelFiles
from cortext.processes import Progress
from cortext.text.inventory import Inventory
from cortext_tune.cluster import joined

TASKS_PER_CPU = 4
"""Tasks for each processor of the cluster; several, so that a slow one holds up few trials."""


def decode_on_cluster(
    address: str,
    decoder: DecoderFiles,
    log_probs: Sequence[np.ndarray],
    inventory: Inventory,
    *,
    context: str = "",
    gpus_per_worker: float = 0,
    progress: Progress | None = None,
) -> tuple[list[NBest], dict[str, Any]]:
    """Decode as `Decoder.decode_batch` does, on a Ray cluster.

    Every machine of the cluster must see the decoder's files under the same paths.

    Args:
        address: Address of the cluster, or `local`.
        decoder: Files that each task opens.
        log_probs: float32 [P, V] natural logs of each trial.
        inventory: Tokens in the order of V.
        context: Text before the sentences, for a large model.
        gpus_per_worker: Share of a GPU for each task, for a large model; 0.25 lets four share one.
        progress: Called with trials done and in all.

    Returns:
        The sentences of each trial, and the description of the tasks' large model with the notes of
        all of them.

    Raises:
        RunError: Where the cluster cannot be reached or loses a task for good, and what decoding
            raises.
    """
    with joined(address, gpus=gpus_per_worker) as cluster:
        task = cluster.ray.remote(num_cpus=1, num_gpus=gpus_per_worker)(_decode)
        size = shared(len(log_probs), TASKS_PER_CPU * cluster.cpus, decoder.llm)
        starts = range(0, len(log_probs), size)
        tasks = {
            task.remote(decoder, list(log_probs[at : at + size]), inventory, context): at
            for at in starts
        }
        by_start: dict[int, list[NBest]] = {}
        descriptions: dict[int, dict[str, Any]] = {}
        waiting = list(tasks)
        while waiting:
            ended, waiting = cluster.ray.wait(waiting)
            for one in ended:
                by_start[tasks[one]], descriptions[tasks[one]] = _result(cluster.ray, one)
            if progress:
                progress(sum(map(len, by_start.values())), len(log_probs))
    notes = dict.fromkeys(note for start in starts for note in descriptions[start].get("notes", []))
    about_llm = descriptions.get(0, {}) | {"notes": list(notes)}
    return [nbest for start in starts for nbest in by_start[start]], about_llm


def shared(n: int, jobs: int, llm: LargeModelFiles | None) -> int:
    """Return the number of trials for each task.

    Args:
        n: Trials in all.
        jobs: Most tasks.
        llm: Large language model of the search; it reads several lists together, and a task gets
            whole groups of them.
    """
    # A large model reads some lists together, and the last digits of its scores depend on which. So
    # a task gets whole groups of those that one machine would read together.
    together = 1
    if llm is not None:
        from cortext_lm.llm.large_model import LISTS_AT_ONCE as together
    return together * max(1, -(-n // (together * jobs)))


def _decode(
    files: DecoderFiles, log_probs: list[np.ndarray], inventory: Inventory, context: str
) -> tuple[list[NBest], dict[str, Any]] | CortextError:
    """Decode in a task; return the sentences and the description of its large model.

    An error of the user's travels as it is: Ray would wrap it into its own.
    """
    try:
        decoder = files.open()
        lists = decoder.decode_batch(log_probs, inventory, context=context)
        return lists, {} if decoder.llm is None else decoder.llm.describe()
    except CortextError as error:
        return error


def _result(ray: Any, task: Any) -> tuple[list[NBest], dict[str, Any]]:
    try:
        result: tuple[list[NBest], dict[str, Any]] | CortextError = ray.get(task)
    except ray.exceptions.RayError as error:
        raise RunError(
            f"a task of the cluster was lost: {first_line(error)}", fix="try again"
        ) from None
    if isinstance(result, CortextError):
        raise result
    return result
