"""Intracortical recordings of attempted speech, decoded into text.

This is the core. Read it in the order in which data pass through it:

1. `data.session_files` reads recordings. `data.packed` packs them for training, and
   `data.packed_split` gives batches of their trials.
2. `features.augment` and `features.smooth` prepare a batch.
3. `models.gru` is the published model: features in, logits of tokens out. `models.registry` says
   what another model must have.
4. `training.run` trains a model, in the loop of `training.loop` and with a loss of `training.loss`.
5. `decoding.stream` searches the logits for sentences, with a language model of
   `decoding.ngram.language_model`.
6. `evaluation.run` decodes a split, measures the errors and writes the report.

All of them use `text`: tokens, languages, pronunciations and error rates. `cli.tree` lists the
commands, each of which calls one function. Single modules such as `errors` and `config` lie below.

The core imports none of the packages around it. They join their commands and more to it by entry
points, as a package of your own can: see `entry_points`.
"""

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

__all__ = [
    "CortextError",
    "Decoder",
    "LanguageModel",
    "Trainer",
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
