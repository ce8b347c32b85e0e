"""Evaluation of a run: error rates with intervals, predictions for the benchmark, a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cortext.extras import lazily

if TYPE_CHECKING:
    from cortext.evaluation.fit.callback import FitDecoder
    from cortext.evaluation.run import evaluate
    from cortext.evaluation.scores import Metrics
    from cortext.evaluation.submission import decode
    from cortext.text.metrics import ErrorRate, error_rate

__all__ = ["ErrorRate", "FitDecoder", "Metrics", "decode", "error_rate", "evaluate"]
# `evaluate` and `decode` need torch, which takes a second to import; the command line reads the
# settings in this package and waits for neither torch nor NumPy.
_HOMES = {
    "ErrorRate": "cortext.text.metrics",
    "FitDecoder": ".fit.callback",
    "Metrics": ".scores",
    "decode": ".submission",
    "error_rate": "cortext.text.metrics",
    "evaluate": ".run",
}
__getattr__ = lazily(__name__, _HOMES)
