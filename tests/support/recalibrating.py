"""A service that recalibrates on the log of a drifted day, and what tests write into its files."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np
import torch
from drifted_day import DRIFTED

from cortext.data import open_packed
from cortext.models import load_model, save_model
from cortext_live.recalibration.chain import copy_run, read_chain
from cortext_live.recalibration.promotion import PromotionOptions
from cortext_live.recalibration.service import Recalibration
from cortext_live.recalibration.settings import ServiceOptions
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.writer import UsageLog, UtteranceRecord

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


@dataclass
class Clock:
    """A clock that stands still until a test moves it, a minute ahead of the computer's."""

    now: datetime = field(default_factory=lambda: datetime.now(UTC) + timedelta(minutes=1))

    def __call__(self) -> datetime:
        return self.now


def recorded(participant):
    trials = open_packed(participant.data).trials("train", [DRIFTED])
    return sorted(trials, key=lambda trial: (trial.block, trial.trial))


def say(folder, trials, texts, corrections=(), session=DRIFTED, when=None):
    """Write utterances into a usage log, some with corrections."""
    with UsageLog(folder, kept_features=KeptFeatures(folder)) as log:
        start = len(log._log.entries)
        for number, (trial, text) in enumerate(zip(trials, texts, strict=True), start):
            features_TC = trial.features_TC.astype(np.float32)
            said = UtteranceRecord(number, session, 2.0, text, **({"when": when} if when else {}))
            log.append(said)  # without recordings to learn from elsewhere
            log.keep_features(features_TC)
            if number in corrections:
                log.correct(number, trial.sentence)


def correct(folder, number, trials, text=None):
    """Correct an utterance of a usage log to what its trial means, or to another text."""
    with UsageLog(folder) as log:
        log.correct(str(number), text or trials[number].sentence)


def service(participant, tmp_path, **changes):
    changes = {"settings": SETTINGS, "rule": RULE, "method": "one-step"} | changes
    return Recalibration(
        participant.run, tmp_path / "log", participant.lm, tmp_path / "chain", **changes
    )


def work(running):
    while running.work():
        pass


def kinds(folder):
    return [entry.kind for entry in read_chain(folder).entries]


def candidates(folder):
    """Entries of the models that were made."""
    return [entry for entry in read_chain(folder).entries if entry.kind == "candidate"]


def judgements(folder):
    """What was found about the models that were judged, in the order of time."""
    return [entry.facts for entry in read_chain(folder).entries if entry.kind == "judged"]


def weights(run):
    return load_model(run).network.state_dict()


def add_copy(chain, run, parent=0, **facts):
    """Add a copy of a run to a chain; return its number."""
    facts = {"learnt": NOTHING_LEARNT} | facts
    return chain.add_model("candidate", partial(copy_run, run), parent=parent, **facts).number


def spoil(chain, run, parent=0):
    """Promote a model that gives all tokens the same probability, so that no word is decoded."""

    def write(folder):
        copy_run(run, folder)
        model = load_model(run)
        with torch.no_grad():
            for each in model.network.parameters():
                each.zero_()
        save_model(model, folder)

    entry = chain.add_model("candidate", write, parent=parent, learnt=NOTHING_LEARNT)
    chain.add("promoted", model=entry.number, upper=0.0)
    return entry.number


def damage(run):
    """Change a bit of the weights of a run."""
    (path,) = run.glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)
