"""Makes the candidates of a chain: models that have learnt from the latest utterances of a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from cortext.config import to_mapping
from cortext.evaluation.fit.confidence import FittedConfidence
from cortext.evaluation.fit.options import FittedOptions
from cortext.files import atomic_write
from cortext.models import AcousticModel, save_model
from cortext_live.adapt import run_config
from cortext_live.recalibration.chain import Chain, model_folder
from cortext_live.recalibration.chain_entries import ChainContents, ChainEntry
from cortext_live.recalibration.decisions import ChainDecisions
from cortext_live.recalibration.followed_chain import FollowedChain
from cortext_live.recalibration.forgetting import numbers_in
from cortext_live.recalibration.log_trainer import LogTrainer
from cortext_live.recalibration.resumable import ResumableLearner


@dataclass(frozen=True)
class Making:
    """Facts that the entries of all candidates of a service have.

    Attributes:
        method: Name of the method that they learn by.
        options: Options of the service, of its search and of promotion, as plain values.
        operator: Name of the person or program that runs the service.
    """

    method: str
    options: Mapping[str, Any]
    operator: str


class CandidateMaker:
    """Adds the model of a learner to the chain.

    Args:
        chain: The chain.
        trainer: Lets the utterances of a day learn together.
        decisions: Rejects a day that did harm.
        making: Facts of the entries.
        kept: Number of latest models whose files are kept.
    """

    def __init__(
        self,
        chain: FollowedChain,
        trainer: LogTrainer,
        decisions: ChainDecisions,
        making: Making,
        kept: int,
    ) -> None:
        self._chain = chain
        self._trainer = trainer
        self._decisions = decisions
        self._making = making
        self._kept = kept

    def make(self, learning: ResumableLearner, day_ends: bool) -> None:
        """Add the model of a learner to the chain.

        The learner is saved before and after: what fails between is done again, to the bit, and
        nothing is learnt twice.

        Args:
            learning: The learner, which is changed.
            day_ends: The utterances of its day get their last steps.
        """
        position = learning.position
        if not position.pending:
            position.ends = day_ends
            if learning.learner.settings.together and not self._train_on_day(learning):
                self._trainer.rest(position)
                return
            position.pending = True
            learning.save(self._chain.contents)
        facts = _facts(learning, self._chain.contents, self._making)
        with self._chain.writing() as chain:
            if not chain.contents.may_learn_from(
                position.latest
            ):  # a person has rolled back meanwhile
                return
            entry = self._add_once(chain, learning.learner.model, facts)
            self._remove_old(chain, entry, position.before or 0)
        position.begin(entry.number, same_day=True)
        self._trainer.rest(position)
        learning.save(self._chain.contents)

    def _train_on_day(self, learning: ResumableLearner) -> bool:
        """Let the utterances of the day so far learn; tell whether any step was taken."""
        if not learning.position.today:
            return False
        with learning.undone_on_failure(self._chain.contents):
            self._leave_bad_day(learning, *self._trainer.waiting_day(learning.position))
            return self._trainer.train_on_day(learning.learner, learning.position)

    def _leave_bad_day(
        self, learning: ResumableLearner, session: str, numbers: Sequence[int]
    ) -> None:
        """When a new day begins, leave the one before out if it did harm.

        Its models are rejected, and its sentences are not replayed.
        """
        position, learner = learning.position, learning.learner
        if session in learner.model.sessions:
            return
        latest, before = position.latest, position.before
        if before is not None and self._decisions.reject_day(
            session, numbers, latest, before, learner
        ):
            learning.leave_day(self._chain.contents, before)
        else:
            position.before = latest

    def _add_once(self, chain: Chain, model: AcousticModel, facts: dict[str, Any]) -> ChainEntry:
        """Add a model, unless the service was killed after it had added it; return its entry."""
        contents = chain.contents
        parent = contents.parent
        facts["parent"] = parent
        latest = contents.entries[contents.models[-1]]
        made = ("parent", "after", "steps", "learnt")
        if all(latest.facts.get(name) == facts[name] for name in made):
            return latest
        parent_run = model_folder(chain.folder, parent)
        return chain.add_model(
            "candidate", lambda folder: _write_model(model, parent_run, folder), **facts
        )

    def _remove_old(self, chain: Chain, latest: ChainEntry, before: int) -> None:
        """Remove the files of old models that no decision or rollback needs.

        The next day compares the latest day with `before`, the model from before it.
        """
        contents = chain.contents
        needed = {latest.number, contents.speaking(self._chain.clock()), before}
        for number in (contents.parent, latest.number, contents.provisional):
            needed.update(() if number is None else contents.lineage(number))
        others = [number for number in contents.models if number not in needed]
        for number in others[: -self._kept]:
            chain.remove(number)


def _facts(learning: ResumableLearner, contents: ChainContents, making: Making) -> dict[str, Any]:
    """Return what the next model of the chain has learnt from, and how."""
    learner, position = learning.learner, learning.position
    began = position.began
    own = {(began, number) for number in (*position.decoded, *position.corrected)}
    known = own | contents.learnt(position.latest)
    return {
        "after": position.latest,
        "steps": learner.n_steps,
        "learnt": {
            "log": began,
            "decoded": list(position.decoded),
            "corrected": list(position.corrected),
            # A replayed sentence has been learnt from, too: it may not judge the model.
            "replayed": [n for n in numbers_in(learner, began) if (began, n) not in known],
            "method": making.method,
            "settings": asdict(learner.settings),
        },
        "options": making.options,
        "operator": making.operator,
    }


def _write_model(model: AcousticModel, parent: Path, folder: Path) -> None:
    """Write a model as a run, with the fitted files of its parent."""
    text = yaml.safe_dump(to_mapping(run_config(parent, model)), sort_keys=False)
    atomic_write(folder / "config.yaml", text.encode())
    save_model(model, folder)
    FittedOptions.take_over(parent, folder)
    FittedConfidence.take_over(parent, folder)
