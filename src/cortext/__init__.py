"""Intracortical recordings of attempted speech, decoded into text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cortext import renamed
from cortext.extras import lazily

if TYPE_CHECKING:
    from cortext.cloud import launch
    from cortext.data.dataset import open_dataset
    from cortext.data.simulate import simulate
    from cortext.decoding import Decoder
    from cortext.decoding.ngram import LanguageModel
    from cortext.errors import CortextError
    from cortext.evaluation import evaluate
    from cortext.live.core.pipeline import Pipeline
    from cortext.models import load_model
    from cortext.training import train

    __version__: str

__all__ = [
    "CortextError",
    "Decoder",
    "LanguageModel",
    "Pipeline",
    "evaluate",
    "launch",
    "load_model",
    "open_dataset",
    "simulate",
    "train",
]

# `import cortext` does not wait for torch.
_HOMES = {
    "CortextError": "cortext.errors",
    "Decoder": "cortext.decoding",
    "LanguageModel": "cortext.decoding.ngram",
    "Pipeline": "cortext.live.core.pipeline",
    "evaluate": "cortext.evaluation",
    "launch": "cortext.cloud",
    "load_model": "cortext.models",
    "open_dataset": "cortext.data.dataset",
    "simulate": "cortext.data.simulate",
    "train": "cortext.training",
}
_load = lazily(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        # Reading the package's metadata takes 30 ms, a third of what `cortext` needs to start.
        from importlib.metadata import version

        found = globals()["__version__"] = version("cortext")
        return found
    return _load(name)


renamed.install()


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "__version__"])
