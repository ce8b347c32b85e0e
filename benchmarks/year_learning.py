"""Courses over the simulated year of decoders that learn without a label for each sentence.

`year.py` runs them. On each later day they hear all sentences but those that judge; then they are
judged. The service keeps time by the recordings: a sentence a minute, from ten in the morning.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from cortext.data import PackedDataset
from cortext.decoding import Decoder
from cortext.decoding.log_probs import log_softmax
from cortext.models import AcousticModel, load_model
from cortext.training.adapt import run_config
from cortext.training.adapt_trials import in_order_of_recording
from cortext_data.simulate.config import N_ARRAYS
from cortext_live.recalibration.chain import model_folder
from cortext_live.recalibration.chain_entries import ChainContents
from cortext_live.recalibration.comparing import day_of
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.old_sentences import old_sentences
from cortext_live.recalibration.online import Place, Unlabelled
from cortext_live.recalibration.service import Recalibration
from cortext_live.recalibration.settings import ServiceSettings, method_settings
from cortext_live.usage.heard import HeardFeatures
from cortext_live.usage.writer import UsageLog, UtteranceRecord
from year_judging import judge, retained
from year_tables import DISTURBED

CORRECTED = 0.2
"""Share of the sentences that are corrected or confirmed, drawn at random."""
EVERY = 20
"""Sentences that are learnt from between two models (`cortext recalibrate --every`)."""
BATCH = 10
"""Sentences between two turns of the service."""
BEGAN = datetime(2025, 1, 1, 10, tzinfo=UTC)


@dataclass(frozen=True)
class Course:
    """A way to learn over the year.

    Attributes:
        method: A key of `cortext_live.recalibration.settings.SERVICE_METHODS`.
        changes: `key=value` changes of its settings.
        corrected: Share of the sentences that are corrected or confirmed.
        least_sure: As many are corrected of each ten, but those that were decoded with the least
            confidence.
        service: The service decides what speaks; otherwise the model that learns speaks.
        disturbed: What happens to the sentences of one day; the course ends a day later.
    """

    method: str
    changes: tuple[str, ...] = ()
    corrected: float = 0.0
    least_sure: bool = False
    service: bool = False
    disturbed: str = ""


COURSES = {
    "one-step": Course("one-step"),
    "replay": Course("replay"),
    "service": Course("together", (), CORRECTED, service=True),
    "least-sure": Course("together", (), CORRECTED, least_sure=True, service=True),
    "service-replay": Course("replay", ("whole_model=true",), CORRECTED, service=True),
    "corrected-5": Course("together", (), 0.05, service=True),
    "corrected-0": Course("together", (), 0.0, service=True),
    "no-gate": Course("together", ("word_confidence=0",), CORRECTED, service=True),
    "no-replay": Course("together", ("replayed=0",), CORRECTED, service=True),
} | {
    f"after-{name}": Course("together", (), CORRECTED, service=True, disturbed=name)
    for name in ("garbage", "lost", "stranger", "missing")
}
"""Courses by name."""
STRANGERS = 0.2
"""Share of a disturbed day's sentences that a stranger says."""


@dataclass(frozen=True)
class Year:
    """What a course goes over.

    Attributes:
        data: Packed data of the participant.
        stranger: That of another one.
        base: Run that was trained on the first days.
        known: Those days.
        days: Day after training of each later session.
        happened: Names of the events of each later session.
        lm: Directory of the language model.
        decoder: The search, whose confidences are calibrated for the base.
        seed: Seed of the participant.
    """

    data: PackedDataset
    stranger: PackedDataset
    base: Path
    known: list[str]
    days: list[int]
    happened: list[list[str]]
    lm: Path
    decoder: Decoder
    seed: int

    @property
    def sessions(self) -> list[str]:
        """The later sessions."""
        return list(self.data.sessions[len(self.known) :])

    def disturbed_day(self) -> int:
        """Return the first later session from the twelfth on that, like the next, has no event."""
        quiet = [
            names == before and not any(name.startswith(DISTURBED) for name in names)
            for before, names in itertools.pairwise([[], *self.happened])
        ]
        return next(n for n in range(11, len(quiet) - 1) if quiet[n] and quiet[n + 1])


def learn(year: Year, course: Course, folder: Path) -> list[dict[str, Any]]:
    """Return the errors of a course by session, the last with those `retained` on the first days.

    Args:
        year: The year.
        course: The course.
        folder: An empty directory for the service's log and chain.
    """
    numbers = range(len(year.sessions))
    if course.disturbed:
        numbers = range(year.disturbed_day() + 2)
    follow = _service if course.service else _alone
    return follow(year, course, numbers, folder)


def _alone(
    year: Year, course: Course, numbers: Sequence[int], folder: Path
) -> list[dict[str, Any]]:
    """Let a model learn from what it decodes, and judge it as it is after each day."""
    model = load_model(year.base)
    config = run_config(year.base, model)
    settings = method_settings(course.method, course.changes)
    learner = Learner(model, config, settings, seed=year.seed)
    if settings.replayed:
        most = settings.remembered // 2
        learner.remember(old_sentences(model, config, year.data, year.known, most))
    way = Unlabelled(learner, year.decoder, corrected=course.corrected, seed=year.seed)
    split = year.data.split("train")
    found = []
    for number in numbers:
        session = year.sessions[number]
        for i in in_order_of_recording(split, session).tolist():
            features_TC = np.asarray(split.features(i), np.float32)
            way.learn_from(
                Place("train", i), split, way.model_of(session).logits(features_TC, session)
            )
        found.append(judge(way.model_of(session), year.data, session, session, year.decoder))
        _say(session, found[-1])
    found[-1]["retained"] = retained(learner.model, year.data, year.known, year.decoder)
    return found


def _service(
    year: Year, course: Course, numbers: Sequence[int], folder: Path
) -> list[dict[str, Any]]:
    """Let the service follow a usage log, and judge after each day the model that then speaks."""
    clock = _Clock()
    settings = ServiceSettings(every=EVERY, settle_s=0.0, allow_provisional=True)
    random = np.random.default_rng(year.seed)
    # Packed recordings are rolling z-scores already.
    normalised = replace(year.data.conventions, features="z-scored")
    found = []
    with (
        UsageLog(folder / "log", normalised, heard=HeardFeatures(folder / "log", 50e9)) as log,
        Recalibration(
            year.base,
            folder / "log",
            year.lm,
            folder / "chain",
            method=course.method,
            overrides=course.changes,
            settings=settings,
            seed=year.seed,
            old_data=year.data,
            clock=clock,
        ) as service,
    ):
        for number in numbers:
            clock.now = BEGAN + timedelta(days=year.days[number])
            _work(service)
            _day(year, course, number, log, service, clock, random)
            clock.now += timedelta(hours=1)
            _work(service)
            found.append(_judged(year, number, folder / "chain", service.chain, clock.now))
            _say(year.sessions[number], found[-1])
        last = load_model(model_folder(service.out, service.chain.speaking(clock.now)))
        found[-1]["retained"] = retained(last, year.data, year.known, year.decoder)
    return found


def _say(session: str, row: dict[str, Any]) -> None:
    print(f"  {session}: {row['word_errors']} of {row['words']} words wrong", flush=True)


class _Clock:
    now = BEGAN

    def __call__(self) -> datetime:
        return self.now


def _work(service: Recalibration) -> None:
    while service.work():
        pass


def _day(
    year: Year,
    course: Course,
    number: int,
    log: UsageLog,
    service: Recalibration,
    clock: _Clock,
    random: np.random.Generator,
) -> None:
    """Write a day's sentences into the log, while the service follows it.

    Args:
        year: The year.
        course: The course.
        number: Number of the later session.
        log: The usage log.
        service: The service.
        clock: Is set to the time of each sentence.
        random: Draws how many sentences are corrected and which, the same in all courses.
    """
    session = year.sessions[number]
    split = year.data.split("train")
    rows = in_order_of_recording(split, session).tolist()
    missing = course.disturbed == "missing" and number == year.disturbed_day()
    change = disturbance(year, course.disturbed, number, len(rows))
    for start in range(0, len(rows), BATCH):
        said = []
        for k, i in enumerate(rows[start : start + BATCH], start):
            clock.now += timedelta(minutes=1)
            features_TC, is_own = change(k, np.asarray(split.features(i), np.float32))
            seconds = len(features_TC) * year.data.conventions.bin_ms / 1000
            name = f"{session}-{k}"
            log.append(UtteranceRecord(name, session, seconds, "", when=clock.now))
            if not missing:
                log.keep_features(features_TC)
            said.append((name, features_TC, split.trial(i).sentence or "", is_own))
        corrected = [random.random() < course.corrected for _ in said]
        if course.least_sure:
            speaking = model_folder(service.out, service.chain.speaking(clock.now))
            sure = _confidences(year, load_model(speaking), session, [each[1] for each in said])
            corrected = least_sure(corrected, sure)
        for (name, _, meant, is_own), wanted in zip(said, corrected, strict=True):
            if wanted and is_own and not missing:
                log.correct(name, meant)
        if len(said) == BATCH:
            _work(service)


def least_sure(drawn: Sequence[bool], confidences: Sequence[float]) -> list[bool]:
    """Return as many sentences as were drawn, but those with the least confidence."""
    chosen = set(np.argsort(confidences, kind="stable")[: sum(drawn)].tolist())
    return [k in chosen for k in range(len(drawn))]


def _confidences(
    year: Year, model: AcousticModel, session: str, recorded: Sequence[np.ndarray]
) -> list[float]:
    """Return the confidence of each sentence as a model decodes it."""
    day = day_of(model, session)
    found = [log_softmax(model.logits(features_TC, day)) for features_TC in recorded]
    lists = year.decoder.decode_batch(found, model.inventory)
    confidences = [nbest.confidence for nbest in lists if nbest.confidence is not None]
    assert len(confidences) == len(lists), "the decoder's confidences are calibrated"
    return confidences


Change = Callable[[int, np.ndarray], tuple[np.ndarray, bool]]
"""Changes the features of a day's k-th sentence; tells whether it is the participant's."""


def disturbance(year: Year, name: str, number: int, n: int) -> Change:
    """Return the change of a day's features, float32 [T, C]; none but on the disturbed day.

    Missing ones are not kept; see `_day`.
    """
    if name in ("", "missing") or number != year.disturbed_day():
        return lambda k, x_TC: (x_TC, True)
    if name == "lost":

        def lost(k: int, x_TC: np.ndarray) -> tuple[np.ndarray, bool]:
            x_TKE = x_TC.reshape(len(x_TC), 2 * N_ARRAYS, -1).copy()
            x_TKE[:, 1::N_ARRAYS] = 0.0  # both kinds of features of the second array
            return x_TKE.reshape(x_TC.shape), True

        return lost
    if name == "garbage":
        day = next(n for n, names in enumerate(year.happened) if "garbage" in names)
        other, session, share = year.data, year.sessions[day], 1.0
    else:
        other, share = year.stranger, STRANGERS
        session = other.sessions[-1]
    split = other.split("train")
    rows = in_order_of_recording(split, session).tolist()
    drawn = np.random.default_rng(year.seed).random(n) < share

    def replaced(k: int, x_TC: np.ndarray) -> tuple[np.ndarray, bool]:
        if not drawn[k]:
            return x_TC, True
        features_TC = np.asarray(split.features(rows[k % len(rows)]), np.float32)
        return features_TC, name == "garbage"  # who corrects says what was meant

    return replaced


def _judged(
    year: Year, number: int, folder: Path, chain: ChainContents, now: datetime
) -> dict[str, Any]:
    """Return the errors of the model that speaks, of the promoted one, and of that one's parent."""
    session = year.sessions[number]
    errors: dict[int, dict[str, Any]] = {}

    def of(model: int) -> dict[str, Any]:
        if model not in errors:
            loaded: AcousticModel = load_model(model_folder(folder, model))
            layer = day_of(loaded, session)
            errors[model] = judge(loaded, year.data, session, layer, year.decoder)
        return errors[model]

    speaking, promoted = chain.speaking(now), chain.parent
    row = {"speaking": speaking, "promoted": promoted, **of(speaking)}
    row["promoted_by_sentence"] = of(promoted)["by_sentence"]
    if promoted:
        parent = chain.entries[promoted].facts["parent"]
        row["parent_by_sentence"] = of(parent)["by_sentence"]
    return row
