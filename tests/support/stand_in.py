"""A stand-in for the public T15 data: the published layout, small and made up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from small_training import legible_config

from cortext.data import make_trial, write_session
from cortext.data.dataset import BlockDescription
from cortext.decoding.ngram import LanguageModel
from cortext.text import to_phonemes
from cortext.text.inventory import RELEASE
from cortext.training import train
from cortext_published.release.exchange import export_release
from cortext_published.verification import Published, Verification, t15_facts, verify_t15
from cortext_published.verification.published import COPY_TASK
from published import copy_task, write_pickle

SESSIONS = ("t15.2023.08.11", "t15.2023.08.13", "t15.2023.08.18")
N_FEATURES = 16
BINS = 8
"""Bins of each phoneme."""
SENTENCES = (
    "see you soon",
    "we see the moon",
    "you need more",
    "the moon is new",
    "we need you",
    "more is more",
    "is the news new",
    "soon you see more",
)
N_TRIALS = {"train": 12, "val": 4, "test": 2}
RECORDINGS = Path("t15_copyTask_neuralData", "hdf5_data_final")
CHECKPOINT = Path("t15_pretrained_rnn_baseline", "checkpoint")


@dataclass(frozen=True)
class StandIn:
    """The directory, the facts that are published about it, and a language model."""

    directory: Path
    published: Published
    lm: Path


def write_stand_in(folder: Path) -> StandIn:
    """Write recordings that tell their phonemes almost without noise, and a trained checkpoint."""
    directory = folder / "t15"
    _write_sessions(directory / RECORDINGS)
    (folder / "lm.txt").write_text("\n".join(SENTENCES))
    LanguageModel.build([folder / "lm.txt"], 2, folder / "lm")
    torch.manual_seed(0)
    train(legible_config(60, 12, 3), directory / RECORDINGS, folder / "run", progress=False)
    table = write_pickle(directory / COPY_TASK, copy_task())
    exported = export_release(folder / "run", directory / CHECKPOINT.parent)
    published = replace(
        _published(),
        per=exported.val_per or 0.0,
        files={COPY_TASK: f"{table.stat().st_size / 1e6:.2f} MB", "t15_personalUse.pkl": "1.13 MB"},
    )
    return StandIn(directory, published, folder / "lm")


def _write_sessions(root: Path) -> None:
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(len(RELEASE), N_FEATURES)) * 2
    for session in SESSIONS:
        for split, n_trials in N_TRIALS.items():
            if session == SESSIONS[0] and split != "train":
                continue  # as in the release, whose first day has neither
            trials = []
            for number in range(n_trials):
                sentence = SENTENCES[rng.integers(len(SENTENCES))]
                ids = RELEASE.ids(to_phonemes(sentence))
                clean_TC = np.repeat(patterns[[RELEASE.index["SIL"], *ids]], BINS, axis=0)
                features_TC = clean_TC + 3.0 * rng.normal(size=clean_TC.shape)
                said = None if split == "test" else sentence
                block = list(N_TRIALS).index(split) + 1
                trials.append(make_trial(features_TC, session, block, number, said))
            write_session(root / session / f"data_{split}.hdf5", trials)


def _published() -> Published:
    blocks = tuple(
        BlockDescription(
            session.removeprefix("t15.").replace(".", "-"),
            25 + day,
            number + 1,
            n_trials,
            "Switchboard",
            "train" if split == "train" else "Val/Test",
        )
        for day, session in enumerate(SESSIONS)
        for number, (split, n_trials) in enumerate(N_TRIALS.items())
        if day or split == "train"
    )
    held_out = len(SESSIONS) - 1
    return replace(
        t15_facts(),
        blocks=blocks,
        n_trials={"train": 36, "val": 4 * held_out, "test": 2 * held_out},
        n_features=N_FEATURES,
        model={"kind": "gru", "n_layers": 1, "n_units": 48, "patch_size": 6, "patch_stride": 2},
        n_copy_trials=8,
        copy_wer={(25, "50-word"): 1 / 14, (27, "open vocabulary"): 0.0},  # a word of 14 is missing
        lm_words=10,
        lm_order=2,
    )


def verified(stand_in: StandIn, out: Path, **changes: Any) -> Verification:
    """Verify a stand-in with its own facts."""
    settings = {"lm": stand_in.lm, "published": stand_in.published, "threads": 1} | changes
    return verify_t15(stand_in.directory, out, **settings)
