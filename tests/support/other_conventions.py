"""Recordings, runs, language models and logits of four conventions.

`own` are somebody's own tokens, language and length of a bin. The others differ from them in one
thing each: two tokens are exchanged, the language is another, or a bin lasts twice as long.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cortext.data import make_trial, write_session
from cortext.data.conventions import Conventions
from cortext.evaluation import evaluate
from cortext.models import AcousticModel, build_model, model_config, save_model
from cortext.models.card import Smoothing
from cortext.text.inventory import Inventory
from cortext.text.language import LANGUAGES
from cortext.text.lexicon import Lexicon
from cortext.training import Trainer

DAY = "lab.2026.01.12"
N_FEATURES = 4
WORDS = ("sabo", "boka", "oso")
SENTENCES = ("sabo oso", "boka", "oso boka")

SOUNDS = Inventory("sounds", ("_", "#", "a", "b", "k", "o", "s"), "_", "#")
OWN = Conventions(SOUNDS, LANGUAGES["es"], 10)
CONVENTIONS = {
    "own": OWN,
    "permuted": replace(
        OWN, inventory=replace(SOUNDS, symbols=("_", "#", "b", "a", "k", "o", "s"))
    ),
    "language": replace(OWN, language=LANGUAGES["de"]),
    "bins": replace(OWN, bin_ms=20),
}
ARPA = r"""\data\
ngram 1=6

\1-grams:
-1.5	<unk>
-99	<s>
-0.6	</s>
-0.6	sabo
-0.7	boka
-0.8	oso

\end\
"""

CONFIG = """\
model: {kind: gru, n_units: 8, n_layers: 1, patch_size: 14, patch_stride: 4}
num_training_batches: 2
batches_per_val_step: 2
dataset: {batch_size: 2, days_per_batch: 1}
"""


@dataclass(frozen=True)
class World:
    """Directories by the name of their conventions; `files` has the lexicon and saved logits."""

    root: Path
    data: dict[str, Path]
    runs: dict[str, Path]
    lms: dict[str, Path]
    files: Path

    def path(self, word: str, name: str, out: Path) -> Path:
        """Return the file or directory that a word in capitals stands for.

        Args:
            word: The word.
            name: Conventions that it has, by their name.
            out: Directory for what is written.
        """
        if word in ("DATA", "OLD"):
            return self.data[name]
        if word == "RUN":
            return self.runs[name]
        if word == "LM":
            return self.lms[name]
        if word in ("EVALUATION", "SECOND"):
            return self._evaluation(name)
        if word == "STARTED":
            return self._started()
        files = {
            "CONFIG": "config.yaml",
            "LOGITS": "logits.npz",
            "SENTENCES": "sentences.txt",
            "ORDER": f"{name}.json",
        }
        return self.files / files[word] if word in files else out / word.lower()

    def _evaluation(self, name: str) -> Path:
        """Return the evaluation of a run on its own data, made once, without the report."""
        folder = self.root / f"evaluation-{name}"
        if not folder.exists():
            lm = self.lms.get(name, self.lms["own"])
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("cortext.evaluation.report.write_report", lambda *_: None)
                evaluate(self.runs[name], self.data[name], "val", lm, folder)
        return folder

    def _started(self) -> Path:
        """Return a run that has begun, made once."""
        folder = self.root / "started"
        if not folder.exists():
            with Trainer(
                self.files / "config.yaml", self.data["own"], folder, progress=False
            ) as one:
                one.run(1)
        return folder


def make_world(root: Path) -> World:
    """Write all of it; a language model has no length of a bin."""
    return World(
        root,
        {name: _data(root / f"data-{name}", each) for name, each in CONVENTIONS.items()},
        {name: own_run(root / f"run-{name}", each) for name, each in CONVENTIONS.items()},
        {
            name: _lm(root / f"lm-{name}", each)
            for name, each in CONVENTIONS.items()
            if name != "bins"
        },
        _files(root / "files"),
    )


def lexicon(inventory: Inventory) -> Lexicon:
    """Return the words, pronounced as they are spelt."""
    return Lexicon({word: [tuple(word)] for word in WORDS}, inventory)


def _data(folder: Path, conventions: Conventions) -> Path:
    generator = np.random.default_rng(0)
    for block, split in enumerate(("train", "val"), start=1):
        trials = [
            make_trial(
                generator.normal(size=(90 + number, N_FEATURES)),
                DAY,
                block,
                number,
                sentence,
                conventions=conventions,
                lexicon=lexicon(conventions.inventory),
            )
            for number, sentence in enumerate(SENTENCES)
        ]
        write_session(folder / DAY / f"data_{split}.hdf5", trials)
    conventions.write(folder)
    return folder


def own_run(folder: Path, conventions: Conventions) -> Path:
    """Write the model of a run that has learnt nothing, always the same, and return the folder."""
    torch.manual_seed(0)
    config = model_config({"kind": "gru", "n_units": 8, "n_layers": 1})
    sizes = {"n_features": N_FEATURES, "n_days": 1, "n_classes": len(conventions.inventory)}
    model = AcousticModel(
        build_model(config, **sizes),
        sessions=[DAY],
        n_features=N_FEATURES,
        smoothing=Smoothing(),
        conventions=conventions,
    )
    save_model(model, folder)
    return folder


def _lm(folder: Path, conventions: Conventions) -> Path:
    folder.mkdir(parents=True)
    inventory = conventions.inventory
    (folder / "lm.arpa").write_text(ARPA)
    (folder / "lexicon.txt").write_text("".join(f"{word} {' '.join(word)} #\n" for word in WORDS))
    (folder / "tokens.txt").write_text("".join(f"{symbol}\n" for symbol in inventory.symbols))
    described = {"name": "sounds", "roles": {"blank": "_", "silence": "#"}}
    facts = {"inventory": described, "language": conventions.language.name}
    (folder / "lm.json").write_text(json.dumps(facts))
    return folder


def _files(folder: Path) -> Path:
    folder.mkdir()
    logits_PV = np.random.default_rng(1).normal(size=(30, len(SOUNDS))).astype(np.float32)
    np.savez(folder / "logits.npz", trial_0=logits_PV, trial_1=logits_PV[:20])
    (folder / "sentences.txt").write_text("sabo\nboka\n")
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "text.txt").write_text("sabo oso\nboka oso\n")
    (folder / "lexicon.txt").write_text("".join(f"{word} {' '.join(word)}\n" for word in WORDS))
    (folder / "other-lexicon.txt").write_text("sabo s a v o\n")
    for name, conventions in CONVENTIONS.items():
        (folder / f"{name}.json").write_text(json.dumps(conventions.inventory.to_json()))
    return folder
