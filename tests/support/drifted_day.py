"""A participant whose last day has drifted: phonemes have patterns, which that day turns."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from small_training import legible_config

from cortext.data import make_trial, write_session
from cortext.data.packed import pack
from cortext.decoding.ngram import LanguageModel
from cortext.text.inventory import RELEASE
from cortext.training import train

KNOWN = ("t15.2023.08.11", "t15.2023.08.13")
DRIFTED = "t15.2023.08.18"
TEXT = (
    "i see you", "you see me", "we see you", "they know me", "we know them now",
    "i need some water", "you need more time", "they see the water", "now i know you",
    "some more time now", "me and you know them", "we need the water now",
)  # fmt: skip
N_FEATURES = 12
TURN = 0.8
"""Angle, in radians, by which each pair of features is turned on the drifted day."""


@dataclass(frozen=True)
class Participant:
    run: Path
    data: Path
    lm: Path


def turned(features_TC, angle):
    """Features of which every two neighbours are turned by an angle."""
    pairs = features_TC.reshape(len(features_TC), -1, 2)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return (pairs @ turn).reshape(features_TC.shape).astype(np.float32)


def write_day(root, session, n_trials, angle=0.0):
    rng = np.random.default_rng(list(session.encode()))
    patterns = np.random.default_rng(5).normal(size=(len(RELEASE), N_FEATURES)) * 1.5
    for block, (split, count) in enumerate(n_trials.items()):
        trials = []
        for number in range(count):
            sentence = TEXT[rng.integers(len(TEXT))]
            ids = make_trial(np.zeros((1, N_FEATURES)), session, 0, 0, sentence).phoneme_ids
            clean = np.repeat(patterns[ids], 8, axis=0)
            noisy = clean + rng.normal(size=clean.shape)
            trials.append(make_trial(turned(noisy, angle), session, block, number, sentence))
        write_session(root / session / f"data_{split}.hdf5", trials)


def make_participant(root: Path) -> Participant:
    """Write recordings, a language model and a run that knows the days before the drift."""
    for session in KNOWN:
        write_day(root / "raw", session, {"train": 24, "val": 6})
    write_day(root / "raw", DRIFTED, {"train": 60, "val": 20}, TURN)
    pack(root / "raw", root / "data")
    (root / "lm.txt").write_text("\n".join(TEXT) + "\n")
    LanguageModel.build([root / "lm.txt"], 3, root / "lm")
    config = legible_config(150, 12, 2)
    config.dataset.sessions = list(KNOWN)
    train(config, root / "data", root / "run", progress=False)
    return Participant(root / "run", root / "data", root / "lm")
