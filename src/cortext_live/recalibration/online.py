"""Ways to keep a model calibrated over days, compared in the order of recording.

Every trial is decoded before anything is learnt from it. A model that learns without labels stands
beside the same model frozen, and beside one that gets labelled trials at the beginning of each day.

Shapes: T bins, C features, P frames, V tokens.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from cortext.data.checks import Problem
from cortext.data.packed import PackedDataset, PackedSplit
from cortext.decoding import Decoder
from cortext.decoding.log_probs import log_softmax
from cortext.evaluation.recognise import unfit_trial
from cortext.models import AcousticModel, load_model
from cortext.processes import Progress
from cortext_live.adapt import adapt, with_day
from cortext_live.recalibration.labels import confidence_of, pseudo_label
from cortext_live.recalibration.learner import Learner, Learnt
from cortext_live.recalibration.replay import labelled_sentence

LABELLED_PER_DAY = 20
"""First trials of a day whose labels the way with daily labels learns from."""


@dataclass(frozen=True)
class Place:
    """A trial in the order of recording: its split and its position there."""

    split: str
    index: int


def in_order(data: PackedDataset, splits: Iterable[str]) -> list[Place]:
    """Return the trials of several splits by day, block and trial number.

    Days follow the order of the data's sessions.
    """
    keyed = []
    for name in splits:
        split = data.split(name)
        keys = zip(split.day_N, split.block_N, split.trial_N, strict=True)
        keyed += [((*key, name), Place(name, i)) for i, key in enumerate(keys)]
    return [place for _, place in sorted(keyed, key=lambda each: each[0])]


def unfit_places(
    model: AcousticModel, data: PackedDataset, splits: Iterable[str]
) -> dict[Place, Problem]:
    """Return the trials that are too short for one frame of a model, and why they are left out."""
    unfit = {}
    for name in splits:
        split = data.split(name)
        for i, n_patches in enumerate(model.n_patches(split.n_bins_N)):
            problem = unfit_trial(model, split, i, int(n_patches), data.path, knows_all=True)
            if problem is not None:
                unfit[Place(name, i)] = problem
    return unfit


class Way(Protocol):
    """A way to keep a model calibrated."""

    def model_of(self, session: str) -> AcousticModel:
        """Return the model that decodes the next trial of a recording day."""
        ...

    def learn_from(self, place: Place, split: PackedSplit, logits_PV: np.ndarray) -> None:
        """Learn from a trial that was decoded, if at all.

        Args:
            place: The trial.
            split: Its split.
            logits_PV: float32 [P, V], what `model_of` made of it.
        """
        ...


class Frozen:
    """The model as it was trained; a new day has the layer of the last known day."""

    def __init__(self, model: AcousticModel) -> None:
        self._model = model

    def model_of(self, session: str) -> AcousticModel:
        """See `Way`."""
        if session not in self._model.sessions:
            self._model = with_day(self._model, session, like=self._model.sessions[-1])
        return self._model

    def learn_from(self, place: Place, split: PackedSplit, logits_PV: np.ndarray) -> None:
        """See `Way`."""


class DailyLabels:
    """Adaptation to the labels of each day's first trials, whatever was decoded (`adapt`).

    Args:
        run: The run to begin with.
        data: The recordings.
        folder: An empty directory for the adapted runs.
        labelled: Labelled trials that a day begins with; days with fewer are not adapted to.
    """

    def __init__(
        self, run: Path, data: PackedDataset, folder: Path, labelled: int = LABELLED_PER_DAY
    ) -> None:
        self._run = run
        self._data = data
        self._folder = folder
        self._labelled = labelled
        self._frozen = Frozen(load_model(run))
        self._today: list[int] = []
        self._session = ""

    def model_of(self, session: str) -> AcousticModel:
        """See `Way`."""
        if session != self._session:
            self._session, self._today = session, []
        return self._frozen.model_of(session)

    def learn_from(self, place: Place, split: PackedSplit, logits_PV: np.ndarray) -> None:
        """See `Way`."""
        if len(self._today) == self._labelled or split.labels(place.index) is None:
            return
        self._today.append(place.index)
        if len(self._today) == self._labelled:
            day = self._data.showing({"train": split.take(np.array(self._today))})
            out = self._folder / self._session
            adapt(self._run, day, out, session=self._session, progress=False)
            self._run = out
            self._frozen = Frozen(load_model(out))


@dataclass(frozen=True)
class DecodedTrial:
    """A decoded trial, and the learning from it.

    Attributes:
        place: The trial.
        confidence: Confidence of the decoded sentence; None for a corrected one.
        learnt: Steps and loss; None for a sentence that was not trusted or has no label.
    """

    place: Place
    confidence: float | None
    learnt: Learnt | None


class Unlabelled:
    """Learning from decoded sentences that are trusted; a correction counts as a label.

    Args:
        learner: The model that learns.
        decoder: The search that makes pseudo-labels.
        corrected: Share of the sentences that are corrected at once, drawn from `seed`; 1 takes
            every label that the data have.
        seed: Seed of the corrections.

    Attributes:
        trials: The trials so far.
    """

    def __init__(
        self, learner: Learner, decoder: Decoder, *, corrected: float = 0.0, seed: int = 0
    ) -> None:
        self.learner = learner
        self.decoder = decoder
        self.trials: list[DecodedTrial] = []
        self._corrected = corrected
        self._random = np.random.default_rng(seed)
        self._lexicon = None if decoder.lm.is_open else decoder.lm.lexicon

    def model_of(self, session: str) -> AcousticModel:
        """See `Way`."""
        self.learner.begin_day(session)
        return self.learner.model

    def learn_from(self, place: Place, split: PackedSplit, logits_PV: np.ndarray) -> None:
        """See `Way`."""
        labels_U = split.labels(place.index)
        confidence = None
        # Drawn for every trial, also one without a label: the corrections of the others then stay
        # the same, whatever the labels.
        if self._random.random() >= self._corrected or labels_U is None:
            n_bins = int(split.n_bins_N[place.index])
            confidence, labels_U = self._pseudo_label(logits_PV, n_bins)
        learnt = None
        if labels_U is not None:
            learnt = self.learner.learn(labelled_sentence(split, place.index, labels_U))
        self.trials.append(DecodedTrial(place, confidence, learnt))

    def _pseudo_label(self, logits_PV: np.ndarray, n_bins: int) -> tuple[float, np.ndarray | None]:
        """Return the confidence of the decoded sentence, and its label where it is trusted."""
        model = self.learner.model
        nbest = self.decoder.decode(log_softmax(logits_PV), model.inventory)
        least = self.learner.settings.confidence
        fewest = self.learner.fewest_tokens(n_bins)
        label_U = pseudo_label(nbest, least, model.conventions, self._lexicon, fewest)
        return confidence_of(nbest), label_U


def follow(
    way: Way,
    data: PackedDataset,
    scored: str,
    learnt_from: Sequence[str],
    progress: Progress | None = None,
    *,
    unfit: Container[Place] = (),
) -> dict[int, np.ndarray]:
    """Decode trials in the order of recording; return the logits of those to score.

    Args:
        way: Keeps the model calibrated.
        data: The recordings.
        scored: Split whose logits are wanted.
        learnt_from: Splits that the way may learn from; the others are only decoded.
        progress: Called with trials done and in all.
        unfit: Trials to leave out; see `unfit_places`.

    Returns:
        float32 [P, V] by position in the scored split.
    """
    places = in_order(data, dict.fromkeys([scored, *learnt_from]))
    places = [place for place in places if place not in unfit]
    logits = {}
    for number, place in enumerate(places):
        split = data.split(place.split)
        session = split.session(place.index)
        features_TC = np.asarray(split.features(place.index), np.float32)
        # Decoded before it is learnt from, as live: no error is measured on a learnt sentence.
        logits_PV = way.model_of(session).logits(features_TC, session)
        if place.split == scored:
            logits[place.index] = logits_PV
        if place.split in learnt_from:
            way.learn_from(place, split, logits_PV)
        if progress:
            progress(number + 1, len(places))
    return logits
