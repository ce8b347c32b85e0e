"""Measuring a run: error rates with intervals, predictions for the benchmark, and a report to look at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cortext.text.metrics import ErrorRate, error_rate

if TYPE_CHECKING:
    from cortext.evaluation.run import Metrics, evaluate
    from cortext.evaluation.submission import decode

__all__ = ["ErrorRate", "Metrics", "decode", "error_rate", "evaluate"]
_MODULE_OF = {"Metrics": "run", "evaluate": "run", "decode": "submission"}


def __getattr__(name: str) -> Any:
    """`evaluate` and `decode` need torch, which takes a second to import; `error_rate` does not."""
    from importlib import import_module

    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
