"""A learner that resumes where it was saved last, after a kill or a failure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from cortext.data.packed import PackedDataset
from cortext.errors import CortextError, RunError
from cortext.files import disk_errors, exclusive
from cortext.models import load_model
from cortext_live.adapt import run_config
from cortext_live.recalibration.chain import model_folder, verify_model
from cortext_live.recalibration.chain_entries import ChainContents
from cortext_live.recalibration.forgetting import LEARNER, forget_in_store
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.old_sentences import old_sentences
from cortext_live.recalibration.position import Position
from cortext_live.recalibration.settings import LearningOptions
from cortext_live.recalibration.state import FIX, LearnerStore


def lock_learner(chain: Path) -> AbstractContextManager[None]:
    """Keep other services off the learner of a chain; raise RunError where one works on it."""
    folder = chain / LEARNER
    with disk_errors(folder):
        folder.mkdir(mode=0o700, exist_ok=True)
    fix = "end that process, or give another --out"
    return exclusive(folder, RunError("another service works on this chain", where=folder, fix=fix))


class ResumableLearner:
    """A learner and its position in the log, which are saved together and never apart.

    Args:
        chain: Directory of the chain.
        contents: The chain.
        settings: How it learns.
        seed: Seed of noise, dropout and replay.
        old_data: Labelled recordings of days that the run knows, to replay; None for none.

    Attributes:
        learner: The model that learns.
        position: The part of the log that it has learnt from.
        origin: Seed and old data, as plain values: with others, learning begins again.

    Raises:
        RunError: The saved learner is damaged, or of another chain.
    """

    learner: Learner
    position: Position

    def __init__(
        self,
        chain: Path,
        contents: ChainContents,
        settings: LearningOptions,
        seed: int,
        old_data: str | Path | PackedDataset | None,
    ) -> None:
        self._chain = chain
        self._settings = settings
        self._seed = seed
        self._old_data = old_data
        path = old_data.path if isinstance(old_data, PackedDataset) else old_data
        self.origin = {"seed": seed, "old_data": None if path is None else str(path)}
        self._store = LearnerStore(chain / LEARNER)
        self._resume(contents)

    def _resume(self, contents: ChainContents, earlier: Learner | None = None) -> None:
        """Continue with the saved learner.

        If none is saved, or its settings have changed, begin with the latest model, and learn again
        what came after it.

        `earlier` is a learner that failed: without a saved one, its sentences are replayed.
        """
        saved = self._store.load()
        self.position = Position()
        if saved is None:
            able = filter(contents.may_learn_from, contents.models)
            self._start(contents, max(able, default=contents.parent), earlier)
            return
        self.learner, note = saved
        self.position = Position.of_note(note["position"])
        if not any(each.hash == note["latest"] for each in contents.entries):
            problem = "the saved learner has learnt on from a model that the chain does not have"
            raise RunError(problem, where=self._store.folder, fix=FIX)
        if self.learner.settings != self._settings or note["from"] != self.origin:
            self.position.learn_anew(contents.learnt(self.position.latest))
            self.start_again(contents, contents.learns_from(self.position.latest))

    def start_again(self, contents: ChainContents, number: int) -> None:
        """Begin to learn from a model of the chain, without sentences learnt for other models.

        Those that the model has learnt from are still replayed. What people corrected meanwhile is
        learnt anew, unless a model that is left behind has learnt from it.
        """
        self._start(contents, number, self.learner)

    def _start(self, contents: ChainContents, number: int, earlier: Learner | None) -> None:
        folder = verify_model(self._chain, contents.model(number))
        model = load_model(folder)
        config = run_config(folder, model)
        self.learner = Learner(model, config, self._settings, seed=self._seed)
        if earlier is not None:
            self.learner.replay.take_over(earlier.replay, contents.learnt(number))
        if self._old_data is not None:
            # Days that the base was trained on: later ones have labels only in the log.
            days = load_model(model_folder(self._chain, 0)).sessions
            most = self._settings.remembered // 2
            self.learner.remember(old_sentences(model, config, self._old_data, days, most))
        self.position.consider_again()
        self.position.begin(number)

    def leave_day(self, contents: ChainContents, before: int) -> None:
        """Begin again with a model from before a day; utterances of the day after it still wait."""
        position = self.position
        today, fresh, ends = position.today, position.fresh, position.ends
        considered = {n: r for n, r in position.considered.items() if n in today}
        self.start_again(contents, before)
        position.considered |= considered
        position.before = before
        position.today, position.fresh, position.ends = today, fresh, ends
        self.save(contents)  # a kill must not compare with the rejected model again

    def save(self, contents: ChainContents) -> None:
        """Write the learner and its position, both or neither."""
        # The hash, not the number: a chain that was restored from a backup and has grown again
        # has another model of this number.
        latest = contents.entries[self.position.latest].hash
        note = {"position": self.position.to_note(), "latest": latest, "from": self.origin}
        self._store.save(self.learner, note)

    def forget(self, contents: ChainContents, began: int, deleted: Collection[int]) -> None:
        """Drop utterances that were deleted from a log, in memory and on the disk."""
        self.save(contents)
        if forget_in_store(self._store.folder, began, deleted):
            self._resume(contents)

    @contextmanager
    def undone_on_failure(self, contents: ChainContents) -> Iterator[None]:
        """Go back to the saved learner on a failure: the position is ahead of the weights."""
        try:
            yield
        except CortextError:
            self._resume(contents, self.learner)
            raise
        except (MemoryError, RuntimeError) as error:  # torch raises RuntimeError without memory
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            self._resume(contents, self.learner)
            fix = "end other programs; it is tried again"
            raise RunError("too little memory to learn", where=self._chain, fix=fix) from None
