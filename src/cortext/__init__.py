"""Intracortical recordings of attempted speech, decoded into text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cortext import cores
from cortext.extras import lazily

__version__ = "0.1.0"  # and in pyproject.toml; a test compares them

if TYPE_CHECKING:
    from cortext.data.packed_dataset import open_dataset
    from cortext.decoding import Decoder
    from cortext.decoding.ngram import LanguageModel
    from cortext.errors import CortextError
    from cortext.evaluation import evaluate
    from cortext.models import load_model
    from cortext.text import error_rate
    from cortext.training import Trainer, train
    from cortext.training.checks import check_model

__all__ = [
    "CortextError",
    "Decoder",
    "LanguageModel",
    "Trainer",
    "check_model",
    "error_rate",
    "evaluate",
    "load_model",
    "open_dataset",
    "train",
]

# `import cortext` does not wait for torch.
_HOMES = {
    "CortextError": "cortext.errors",
    "Decoder": "cortext.decoding",
    "LanguageModel": "cortext.decoding.ngram",
    "Trainer": "cortext.training",
    "check_model": "cortext.training.checks",
    "error_rate": "cortext.text",
    "evaluate": "cortext.evaluation",
    "load_model": "cortext.models",
    "open_dataset": "cortext.data.packed_dataset",
    "train": "cortext.training",
}
__getattr__ = lazily(__name__, _HOMES)


cores.prepare_threads()


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
