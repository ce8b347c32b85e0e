"""Posteriors to search.

Pseudo-posteriors from real phoneme errors, and the logits of an evaluation directory.

**Pseudo-posteriors.** Of each trial we know the true phonemes and those that a trained network
decoded greedily. On the tuning half, both are aligned (shortest edit path) and counted: `C[t, d]`
true phoneme t decoded as d, `I[d]` d decoded where nothing was, `D[t]` t missed, and G the number
of gaps where something may be missed (decoded phonemes + 1 of each trial). With the number `PRIOR`
added to every cell,

    q_d(t) ~ C[t, d],  q_d(blank) ~ I[d]            spoken where the network decoded d
    g(t) = D[t] / G,   g(blank) = 1 - sum of g(t)   spoken where it decoded nothing

A trial begins with one or two blank frames. Then each decoded phoneme d takes 2, 3 or 4 frames with
equal probability: first m frames of d (m equally likely from 1 to all but one), then blank frames.
Frames of d hold the probabilities q_d, blank frames g, each raised to the power `sharpness` and
normalised; where the decoded token would not be the most probable, it is given `LEAD` times the
next one's probability. So the argmax collapses to exactly what the network decoded, its
alternatives follow the network's confusions, a phoneme that it likes to insert carries mass on the
blank and the blank carries mass on phonemes that it likes to miss. Durations are drawn from (seed,
number of the trial).

The sharpness is the one from `SHARPNESS` under which the true phonemes of the tuning half are the
most probable by CTC (Graves et al., ICML 2006). True phonemes of the other half are never used.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.errors import DataError, TextError
from cortext.text.inventory import RELEASE, SIL, Inventory
from cortext.text.metrics import confusion
from cortext.text.normalize import normalize

INVENTORY = RELEASE
# Without it a confusion that the tuning half does not show would have probability 0, and a search
# could never take it back.
PRIOR = 0.1
LEAD = 1.05
FRAMES = (2, 3, 4)
SHARPNESS = tuple(round(0.2 + 0.1 * step, 1) for step in range(19))


@dataclass(frozen=True)
class Utterance:
    """One trial to decode.

    Attributes:
        reference: The sentence.
        log_probs_PV: Natural-log probabilities float32 [P, V] in `INVENTORY`'s order.
    """

    reference: str
    log_probs_PV: np.ndarray


@dataclass(frozen=True)
class PseudoTrial:
    """A real trial: its sentence, its phonemes and the decoded phonemes (ids of `INVENTORY`)."""

    reference: str
    true: np.ndarray
    decoded: np.ndarray


@dataclass(frozen=True)
class Confusions:
    """Probabilities of the true token given the decoded one, before sharpening.

    Attributes:
        given_VV: Probabilities [V, V] whose rows sum to 1. Row d is for decoded token d, the
            blank's row for places where the network decoded nothing.
    """

    given_VV: np.ndarray

    @classmethod
    def of(cls, trials: Sequence[PseudoTrial], inventory: Inventory = INVENTORY) -> Confusions:
        """Estimate them from trials of the tuning half, whose true phonemes may be read."""
        size = len(inventory)
        blank = inventory.blank
        counts = confusion(
            [trial.true for trial in trials], [trial.decoded for trial in trials], size
        ).astype(float)
        gaps = sum(len(trial.decoded) + 1 for trial in trials)
        given_VV = counts[:size, :size].T + PRIOR
        given_VV[:, blank] = counts[size, :size] + PRIOR
        missed_V = (counts[:size, size] + PRIOR) / gaps
        missed_V[blank] = max(1 - np.delete(missed_V, blank).sum(), 0.0)
        given_VV[blank] = missed_V
        return cls(given_VV / given_VV.sum(axis=1, keepdims=True))

    def sharpened(self, sharpness: float) -> np.ndarray:
        """Return normalised powers [V, V]; each row's own token is its most probable."""
        powers_VV = self.given_VV**sharpness
        for own, row_V in enumerate(powers_VV):
            row_V[own] = max(row_V[own], LEAD * np.delete(row_V, own).max())
        sharpened_VV: np.ndarray = powers_VV / powers_VV.sum(axis=1, keepdims=True)
        return sharpened_VV


def read_trials(path: Path, inventory: Inventory = INVENTORY) -> list[PseudoTrial]:
    """Return the trials of a file with one JSON object per line.

    Its fields are `reference`, `true_phonemes` and `gru_phonemes` (`|` is SIL).
    """
    trials = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(
            f"cannot read the trials: {error.strerror}", where=path, fix="set CORTEXT_REAL_DATA"
        ) from None
    for number, line in enumerate(lines, start=1):
        try:
            fields = json.loads(line)
            true, decoded = (
                [SIL if symbol == "|" else symbol for symbol in fields[f"{name}_phonemes"]]
                for name in ("true", "gru")
            )
            trials.append(
                PseudoTrial(
                    normalize(fields["reference"]), inventory.ids(true), inventory.ids(decoded)
                )
            )
        except (ValueError, KeyError, TypeError, TextError) as error:
            raise DataError(f"no trial: {error}", where=f"{path}, line {number}") from None
    return trials


def halves(items: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Return the tuning half (even numbers) and the half to report (odd numbers)."""
    return list(items[0::2]), list(items[1::2])


def pseudo_posterior(
    decoded: np.ndarray,
    probabilities_VV: np.ndarray,
    seed: int,
    number: int,
    inventory: Inventory = INVENTORY,
) -> np.ndarray:
    """Return the log-probabilities of one trial, float32 [P, V], by the recipe above.

    Args:
        decoded: Token ids that the network decoded.
        probabilities_VV: Sharpened confusions [V, V].
        seed: Seed of the durations.
        number: Number of the trial, which the durations also depend on.
        inventory: Tokens of the ids.
    """
    return _log(probabilities_VV)[_frames(decoded, seed, number, inventory.blank)]


def _frames(decoded: np.ndarray, seed: int, number: int, blank: int) -> list[int]:
    """Draw the token of each frame of a trial."""
    generator = np.random.default_rng([seed, number])
    frames = [blank] * int(generator.integers(1, 3))
    for token in decoded.tolist():
        length = int(generator.choice(FRAMES))
        own = int(generator.integers(1, length))
        frames += [token] * own + [blank] * (length - own)
    return frames


def _log(probabilities_VV: np.ndarray) -> np.ndarray:
    log_probs_VV: np.ndarray = np.log(probabilities_VV).astype(np.float32)
    return log_probs_VV


def pseudo_posteriors(path: Path, seed: int = 0) -> tuple[list[Utterance], dict[str, Any]]:
    """Return all trials of a file as utterances, in its order, and facts about the recipe."""
    trials = read_trials(path)
    tuning, _ = halves(trials)
    if not tuning:
        raise DataError("no trials", where=path)
    confusions = Confusions.of(tuning)
    # The frames do not depend on the sharpness; drawing them anew for each took most of the time.
    frames = [
        _frames(trial.decoded, seed, 2 * number, INVENTORY.blank)
        for number, trial in enumerate(tuning)
    ]
    fits = {
        sharpness: _fit(tuning, frames, _log(confusions.sharpened(sharpness)))
        for sharpness in SHARPNESS
    }
    sharpness = max(fits, key=lambda value: fits[value])
    probabilities_VV = confusions.sharpened(sharpness)
    utterances = [
        Utterance(trial.reference, pseudo_posterior(trial.decoded, probabilities_VV, seed, number))
        for number, trial in enumerate(trials)
    ]
    facts = {"kind": "pseudo", "source": path.name, "seed": seed, "sharpness": sharpness}
    return utterances, facts | {"log_prob_per_phoneme": fits[sharpness]}


def _fit(
    tuning: Sequence[PseudoTrial], frames: Sequence[list[int]], log_probs_VV: np.ndarray
) -> float:
    """Return the mean CTC log-probability of a true phoneme.

    Tuning trials with too few frames do not count.
    """
    total = 0.0
    length = 0
    for trial, rows in zip(tuning, frames, strict=True):
        log_probs_PV = torch.from_numpy(log_probs_VV[rows])
        loss = torch.nn.functional.ctc_loss(
            log_probs_PV,
            torch.from_numpy(trial.true),
            torch.tensor(len(log_probs_PV)),
            torch.tensor(len(trial.true)),
            blank=INVENTORY.blank,
            reduction="sum",
        )
        if torch.isfinite(loss):
            total -= float(loss)
            length += len(trial.true)
    return total / max(length, 1)


def evaluation_posteriors(directory: Path) -> tuple[list[Utterance], dict[str, Any]]:
    """Return the utterances of an evaluation directory, and facts about it.

    Its `logits/*.npy` (the release's order) and `nbest.jsonl` (references) are read.

    Raises:
        DataError: Where one of them is missing or they do not belong together.
    """
    logits = sorted((directory / "logits").glob("*.npy"))
    lines = directory / "nbest.jsonl"
    if not logits or not lines.is_file():
        fix = "make one: cortext evaluate RUN --data DATA --lm LM --out DIR"
        raise DataError(
            "no logits/*.npy and nbest.jsonl: not an evaluation directory", where=directory, fix=fix
        )
    entries = {
        int(entry["id"]): entry
        for entry in map(json.loads, lines.read_text(encoding="utf-8").splitlines())
    }
    utterances = []
    for path in logits:
        entry = entries.get(int(path.name.partition("_")[0]))
        if entry is None or not entry["reference"]:
            raise DataError(
                "nbest.jsonl has no reference of this trial",
                where=path,
                fix="evaluate a labelled split",
            )
        utterances.append(Utterance(normalize(entry["reference"]), _log_softmax(np.load(path))))
    return utterances, {"kind": "logits", "source": str(directory)}


def run_posteriors(
    run: Path, data: Path, split: str = "val"
) -> tuple[list[Utterance], dict[str, Any]]:
    """Return the utterances of a labelled split, as a run's model decodes them, and facts.

    Args:
        run: Run directory.
        data: Directory of session files, or a packed one.
        split: Name of the split.

    Raises:
        CortextError: As `cortext.evaluate`.
    """
    from cortext.evaluation.recognise import recognise

    found = recognise(run, data, split, None)
    columns = INVENTORY.order_from(found.model.inventory)
    utterances = [
        Utterance(normalize(trial.reference), _log_softmax(trial.logits_PV[:, columns]))
        for trial in found.trials
        if trial.reference
    ]
    return utterances, {"kind": "logits", "source": str(run), "data": str(data), "split": split}


def _log_softmax(logits_PV: np.ndarray) -> np.ndarray:
    shifted_PV = logits_PV.astype(np.float64) - logits_PV.max(axis=1, keepdims=True)
    log_probs_PV: np.ndarray = shifted_PV - np.log(np.exp(shifted_PV).sum(axis=1, keepdims=True))
    return np.ascontiguousarray(log_probs_PV, dtype=np.float32)


def blank_share(utterances: Sequence[Utterance], inventory: Inventory = INVENTORY) -> float:
    """Return the share of the frames whose most probable token is the blank."""
    best = np.concatenate([utterance.log_probs_PV.argmax(axis=1) for utterance in utterances])
    return float((best == inventory.blank).mean())
