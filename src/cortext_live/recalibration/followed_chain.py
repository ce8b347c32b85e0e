"""The chain as a running service follows it, while a person may roll back at any moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from cortext.errors import RunError
from cortext.evaluation.fit.fitted_file import weights_checksum
from cortext_live.recalibration.chain import (
    LOCK_S,
    Chain,
    chain_state,
    model_folder,
    open_chain,
    read_chain,
)


class FollowedChain:
    """The chain that a service adds models and decisions to.

    Args:
        folder: Its directory.
        run: Run directory that a new chain begins with.
        operator: Name of the person or program that runs the service.
        clock: Returns the time.

    Attributes:
        folder: Its directory.
        contents: Its entries when they were read last.
        clock: Returns the time.

    Raises:
        RunError: The chain cannot be used, or began with another run.
    """

    def __init__(
        self, folder: Path, run: str | Path, operator: str, clock: Callable[[], datetime]
    ) -> None:
        self.folder = folder
        self.clock = clock
        self._read_at: tuple[int, int, int] | None = None
        with open_chain(folder, run, operator=operator, now=clock, wait_s=LOCK_S) as chain:
            self.contents = chain.contents
        if weights_checksum(run) != weights_checksum(model_folder(folder, 0)):
            fix = "give that run, or another --out"
            raise RunError(f"the chain began with another run than {run}", where=folder, fix=fix)

    def follow(self) -> None:
        """Read the chain again where it has changed.

        Raises:
            RunError: It cannot be read, or is another than before.
        """
        state = chain_state(self.folder)
        if state == self._read_at:
            return
        contents = read_chain(self.folder)
        # A restored backup lacks the last entries, which the learner may continue from.
        if self.contents.head not in (each.hash for each in contents.entries):
            problem = "the chain is another than before"
            raise RunError(problem, where=self.folder, fix="start the service again")
        self.contents, self._read_at = contents, state

    @contextmanager
    def writing(self) -> Iterator[Chain]:
        """Read the chain, and let no other process write it meanwhile."""
        with open_chain(self.folder, now=self.clock, wait_s=LOCK_S) as chain:
            yield chain
            self.contents = chain.contents

    def decide(self, write: Callable[[Chain], object]) -> bool:
        """Write a decision that was made on `contents`; tell whether that could be done.

        It could not where a person has rolled back since: the chain is not locked while models are
        compared, which takes minutes. `follow` then reads what the person decided.
        """
        with open_chain(self.folder, now=self.clock, wait_s=LOCK_S) as chain:
            if chain.contents.head != self.contents.head:
                return False
            write(chain)
            self.contents = chain.contents
            return True
