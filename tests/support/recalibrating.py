"""A participant's log, the service that recalibrates on it, and its chain.

Tests let something happen in the log, and read what the service has decided.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from shutil import copytree

import numpy as np
import pytest
import torch
from drifted_day import DRIFTED

from cortext.cli import run as cortext
from cortext.data import open_packed
from cortext.models import load_model, save_model
from cortext_live.recalibration.chain import (
    copy_run,
    model_folder,
    open_chain,
    read_chain,
)
from cortext_live.recalibration.labeller import Labeller
from cortext_live.recalibration.promotion import PromotionOptions
from cortext_live.recalibration.service import Recalibration
from cortext_live.recalibration.settings import ServiceOptions
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.writer import UsageLog, UtteranceRecord, now

SETTINGS = ServiceOptions(every=10, settle_s=0.0)
RULE = PromotionOptions(fewest=5, provisional=60.0, promotion=50.0, budget=100.0)
"""With few sentences bounds are wide."""
QUIET = timedelta(seconds=SETTINGS.quiet_s)
TOGETHER = {"method": "together", "overrides": ["white_noise_std=0.2", "lr=0.01", "replayed=0"]}
FIVE = replace(SETTINGS, every=5)
UNDECIDED = PromotionOptions(fewest=1000)
"""Nothing is decided by corrections."""
DAYS = TOGETHER | {
    "overrides": [*TOGETHER["overrides"], "word_confidence=0", "rounds=2"],
    "settings": FIVE,
    "rule": UNDECIDED,
}
QUICK = {"overrides": ["copies=1", "confidence=0"], "settings": FIVE, "rule": UNDECIDED}
NOTHING_LEARNT = {"log": None, "decoded": [], "corrected": []}
ALL = range(1000)
"""All utterances of a log."""


@dataclass
class Clock:
    """A clock that stands still until a test moves it, a minute ahead of the computer's."""

    now: datetime = field(default_factory=lambda: datetime.now(UTC) + timedelta(minutes=1))

    def __call__(self) -> datetime:
        return self.now


@contextmanager
def drawn_by_number() -> Iterator[None]:
    """Draw utterances by their numbers: even ones are reserved, and every tenth is watched."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Labeller, "is_reserved", lambda self, number: number % 2 == 0)
        patch.setattr(Labeller, "is_watched", lambda self, number: number % 10 == 0)
        yield


def recorded(participant):
    trials = open_packed(participant.data).trials("train", [DRIFTED])
    return sorted(trials, key=lambda trial: (trial.block, trial.trial))


def weights(run):
    return load_model(run).network.state_dict()


def same(found, expected):
    """Whether two networks have the same weights, to the bit."""
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


def write_blank(run, folder):
    """Write a run whose model gives all tokens the same probability, so that no word is decoded."""
    copy_run(run, folder)
    model = load_model(run)
    with torch.no_grad():
        for each in model.network.parameters():
            each.zero_()
    save_model(model, folder)


class World:
    """The usage log and the chain of a participant on the drifted day, and the service on both.

    Sentences of the log are the recorded trials, in their order.
    """

    def __init__(self, participant, folder):
        self.participant, self.folder = participant, folder
        self.log, self.chain = folder / "log", folder / "chain"
        self.trials, self.clock = recorded(participant), Clock()
        self.service = None

    # The service

    def start(self, **changes):
        """Start the service, when the one before has ended; return it."""
        self.stop()
        options = {"settings": SETTINGS, "rule": RULE, "method": "one-step", "clock": self.clock}
        run, lm = self.participant.run, self.participant.lm
        self.service = Recalibration(run, self.log, lm, self.chain, **options | changes)
        return self.service

    def stop(self):
        """End the service, as a kill would."""
        if self.service:
            self.service.__exit__()
        self.service = None

    def save(self):
        """Let the service save its learner, which it does between models now and then."""
        self.service._learning.save(self.service.chain)

    def work(self):
        """Let the service work until there is nothing to do."""
        while self.service.work():
            pass

    def rest(self):
        """Let nobody speak until the day ends."""
        self.clock.now += 2 * QUIET
        self.work()

    def copied(self, folder):
        """A copy of log and chain as they are, with a clock of its own, without a service."""
        copy = World(self.participant, folder)
        for name in ("log", "chain"):
            copytree(self.folder / name, folder / name)
        copy.clock.now = self.clock.now
        return copy

    # What happens in the log

    def say(self, trials, text="x", corrected=(), session=DRIFTED):
        """Let sentences be decoded as a text, some of which are corrected.

        Args:
            trials: The trials, or the number of further ones of the day.
            text: Text of all of them.
            corrected: Numbers of utterances of the log.
            session: Day of the utterances.
        """
        with UsageLog(self.log, kept_features=KeptFeatures(self.log)) as log:
            first = len(log._log.entries)
            if isinstance(trials, int):
                numbers = range(first, first + trials)
                trials = [self.trials[number % len(self.trials)] for number in numbers]
            for number, trial in enumerate(trials, first):
                record = UtteranceRecord(number, session, 2.0, text, when=self.clock.now)
                log.append(record)  # without recordings to learn from elsewhere
                log.keep_features(trial.features_TC.astype(np.float32))
                if number in corrected:
                    log.correct(number, trial.sentence)

    def correct(self, number, text=None):
        """Correct an utterance to the sentence of its trial, or to another text."""
        with UsageLog(self.log) as log:
            log.correct(str(number), text or self.trials[number].sentence)

    def rate(self, number, rating):
        with UsageLog(self.log) as log:
            log.rate(str(number), rating)

    # What happens to the chain

    def roll_back(self, *to):
        """Let a person roll the chain back, by default to the model before."""
        assert cortext(["chain", "rollback", str(self.chain), *map(str, to), "--why", "bad"]) == 0

    def add_model(self, parent=0, write=copy_run, promoted=False, when=now, **facts):
        """Add a model to the chain, by default a copy of the run; return its number."""
        with open_chain(self.chain, now=when) as chain:
            facts = {"learnt": NOTHING_LEARNT} | facts
            write = partial(write, self.participant.run)
            number = chain.add_model("candidate", write, parent=parent, **facts).number
            if promoted:
                chain.add("promoted", model=number, upper=0.0)
        return number

    def add_entry(self, kind, model, **facts):
        with open_chain(self.chain) as chain:
            chain.add(kind, model=model, **facts)

    def let_speak(self, model):
        """Let a model speak for an hour."""
        until = (self.clock.now + timedelta(hours=1)).isoformat(timespec="seconds")
        self.add_entry("provisional", model, until=until)

    def damage(self, model):
        """Change a bit of a model's weights."""
        (path,) = self.run(model).glob("*.safetensors")
        content = bytearray(path.read_bytes())
        content[-9] ^= 1
        path.write_bytes(content)

    # What the service has decided

    @property
    def contents(self):
        return read_chain(self.chain)

    def run(self, model):
        return model_folder(self.chain, model)

    @property
    def kinds(self):
        return [entry.kind for entry in self.contents.entries]

    @property
    def made(self):
        """Entries of the models that were made."""
        return [entry for entry in self.contents.entries if entry.kind == "candidate"]

    def facts(self, name):
        """A fact about each of the models that were made."""
        return [entry.facts[name] for entry in self.made]

    def learnt(self, part):
        """The utterances that each model has learnt from as `decoded` or as `corrected`."""
        return [learnt[part] for learnt in self.facts("learnt")]

    @property
    def judged(self):
        """Facts about the models that were judged, in the order of time."""
        return [entry.facts for entry in self.contents.entries if entry.kind == "judged"]

    @property
    def position(self):
        """Where the service is in the log."""
        return self.service._learning.position

    @property
    def learner(self):
        return self.service._learning.learner

    @property
    def learner_weights(self):
        return self.learner.model.network.state_dict()

    def replayed(self, number):
        """The labels with which an utterance is kept, and whether a person gave them."""
        state = self.learner.state()
        kept = (*state.corrected, *state.decoded, *state.today)
        return [
            (each.labels_U.tolist(), each.corrected) for each in kept if each.entry[1] == number
        ]

    def as_meant(self, number):
        """How an utterance is kept after its correction: as the phonemes of its trial."""
        return [(self.trials[number].phoneme_ids.tolist(), True)]

    def reserved(self, count):
        """The utterances that judge models, of the first ones."""
        return [number for number in range(count) if self._labeller.is_reserved(number)]

    def watched(self, count):
        """Those of the first ones that are never learnt from as they were decoded."""
        return [number for number in range(count) if self._labeller.is_watched(number)]

    @property
    def _labeller(self):
        return self.service._trainer._labeller

    @property
    def decider(self):
        return self.service._decisions._decider
