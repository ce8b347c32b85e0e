"""Recordings and settings with which a training takes less than a second."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_evaluation import tiny

from cortext.data import pack
from cortext.decoding.fake import fake_log_probs
from cortext.decoding.ngram import LanguageModel
from cortext.text.inventory import RELEASE
from cortext_data.simulate import simulate
from cortext_tune import Search, Study, comparison, tune_training
from cortext_tune.decoder import result

__all__ = ["tiny"]


@pytest.fixture(autouse=True)
def one_thread():
    """Bit-exact repetition needs the same number of threads, and small matrices are fastest with
    one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def pictures():
    """For tests that look at trials.png."""


@pytest.fixture(autouse=True)
def no_pictures(request, monkeypatch):
    """Drawing takes longer than a search in these tests."""
    if "pictures" not in request.fixturenames:
        for module in (comparison, result):
            monkeypatch.setattr(module, "draw", lambda path, *rest: path)


@pytest.fixture(scope="session")
def quick() -> tuple[str, ...]:
    """Overrides of the recipe `tiny`."""
    return "num_training_batches=4", "batches_per_val_step=2", "model.n_units=8"


@pytest.fixture
def tune(packed, tmp_path, quick):
    """Searches into a new directory, or continues there."""

    def run(search: Search, out: str = "search", overrides=(), **arguments) -> Study:
        settings = [*quick, *overrides]
        arguments = {"data": packed, "progress": False, **arguments}
        return tune_training(
            "tiny", out=tmp_path / out, search=search, overrides=settings, **arguments
        )

    return run


@pytest.fixture(scope="session")
def sessions(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("tuning") / "sessions"
    simulate(out, "tiny", overrides=["train_per_day=8", "val_per_day=3", "test_per_day=0"])
    return out


@pytest.fixture(scope="session")
def packed(sessions) -> Path:
    out = sessions.parent / "packed"
    pack(sessions, out)
    return out


SAID = (
    "i see you",
    "you see me",
    "we see you",
    "the dog is here",
    "the dock is near",
    "is the dog near me",
    "we hear the dog",
    "you are here",
    "are you near the dock",
    "i hear you",
    "we are near",
    "see the dog",
)
"""Sentences that are said twice each, in other noise."""


@pytest.fixture(scope="session")
def lm(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("lm")
    (root / "text").write_text("\n".join(SAID) + "\n")
    LanguageModel.build([root / "text"], 2, root / "lm")
    return root / "lm"


@pytest.fixture(scope="session")
def evaluation(tmp_path_factory) -> Path:
    """What `evaluate` leaves, as far as a search for decoder options reads it.

    Noisy logits, and references.
    """
    return _write_evaluation(tmp_path_factory.mktemp("evaluation") / "eval", 2 * len(SAID))


def _write_evaluation(folder: Path, n: int, noise: float = 3.0) -> Path:
    (folder / "logits").mkdir(parents=True)
    lines = []
    for number in range(n):
        sentence = SAID[number % len(SAID)]
        log_probs_PV = fake_log_probs(sentence, noise, number, "release")
        np.save(
            folder / "logits" / f"{number:05d}_day_b01_t{number:03d}.npy",
            log_probs_PV.astype(np.float16),
        )
        trial = {
            "id": number,
            "session": "day",
            "block": 1,
            "trial": number,
            "reference": sentence.capitalize() + ".",
        }
        lines.append(json.dumps(trial | {"hypotheses": [{"text": "", "score": 0.0}]}))
    (folder / "nbest.jsonl").write_text("\n".join(lines) + "\n")
    origin = {"inventory": RELEASE.to_json(), "frame_ms": 80.0, "options": {}}
    (folder / "metrics.json").write_text(json.dumps({"provenance": origin}))
    return folder


@pytest.fixture(scope="session")
def write_evaluation():
    """Writes an evaluation directory: folder, number of trials, noise."""
    return _write_evaluation


@pytest.fixture(scope="session")
def states():
    """Reads the states of a search's trials, by Optuna itself, while others write."""
    optuna = pytest.importorskip("optuna")

    def read(out: Path) -> list[str]:
        if not (out / "study.journal").is_file():
            return []
        file = optuna.storages.journal.JournalFileBackend(str(out / "study.journal"))
        try:
            study = optuna.load_study(
                study_name="decoder", storage=optuna.storages.JournalStorage(file)
            )
        except KeyError:  # not begun yet
            return []
        return [trial.state.name for trial in study.get_trials()]

    return read
