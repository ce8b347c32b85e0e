"""The backend of several participants: each batch is a step of one participant's model."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from cortext.models import Output
from cortext.models.inputs import of_participant
from cortext.training.backend import Job, StepResult, StepValues
from cortext.training.batches import TrainBatch, ahead
from cortext.training.participants.joint import BODY
from cortext.training.torch_backend import TorchBackend


class JointBackend:
    """Torch on one CPU or GPU, for models that share one body; see `Backend`.

    A batch has trials of one participant. Its step moves the body and the first layers of that
    participant; those of the others have no gradient, and AdamW leaves them as they are.

    Args:
        jobs: The work on each participant, by name.
        participant_of: Function from the number of a batch to its participant.
    """

    def __init__(self, jobs: Mapping[str, Job], participant_of: Callable[[int], str]) -> None:
        self.of = {name: TorchBackend(job) for name, job in jobs.items()}
        self.participant_of = participant_of
        self._first = first = next(iter(self.of.values()))
        self.name = first.name
        self.cores = first.cores
        self.host = first.host
        self.synchronous = first.synchronous
        self._share_moments()

    def _share_moments(self) -> None:
        """Give all optimisers one table of moments, so that the body has one set of them."""
        moments: dict[torch.Tensor, dict[str, torch.Tensor]] = {}
        for backend in self.of.values():
            moments |= backend.optimizer.adam.state
        for backend in self.of.values():
            backend.optimizer.adam.state = moments

    def running(self) -> AbstractContextManager[None]:
        """See `Backend`."""
        return self._first.running()

    @staticmethod
    def profiled(folder: Path, first: int, end: int) -> AbstractContextManager[Callable[[], None]]:
        """See `Backend`."""
        return TorchBackend.profiled(folder, first, end)

    def batches(self, first: int, end: int) -> Generator[TrainBatch]:
        """See `Backend`."""

        def draw(step: int) -> TrainBatch:
            backend = self.of[self.participant_of(step)]
            return backend.data.drawn(backend.job.sampler, backend.job.config.seed, step)

        yield from ahead(draw, first, end, self.host)

    def update(self, step: int, batch: TrainBatch) -> StepResult:
        """See `Backend`."""
        return self._of(batch).update(step, batch)

    def read(self, updates: list[StepResult]) -> list[StepValues]:
        """See `Backend`."""
        return self._first.read(updates)

    def forward(self, batch: TrainBatch) -> Output:
        """See `Backend`."""
        return self._of(batch).forward(batch)

    def _of(self, batch: TrainBatch) -> TorchBackend:
        assert batch.participant is not None
        return self.of[batch.participant]

    def gather_weights(self) -> None:
        """See `Backend`: the jobs' models already hold them."""

    def state(self) -> dict[str, torch.Tensor]:
        """See `Backend`; the names begin with the participant, or with `body`."""
        return {
            _key(name, entry): tensor
            for name, backend in self.of.items()
            for entry, tensor in backend.state().items()
        }

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """See `Backend`."""
        for name, backend in self.of.items():
            own = {}
            for entry, tensor in state.items():
                owner, _, rest = entry.partition("/")
                if owner == (name if _is_own(rest) else BODY):
                    own[rest] = tensor
            backend.optimizer.adam.state = {}
            backend.load(own)
        self._share_moments()


def _is_own(entry: str) -> bool:
    """Tell whether an entry of an optimiser's state belongs to one participant."""
    return entry == "day_steps" or of_participant(entry.partition(".")[2])


def _key(participant: str, entry: str) -> str:
    return f"{participant if _is_own(entry) else BODY}/{entry}"
