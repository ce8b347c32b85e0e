"""Measuring a run.

Error rates with intervals, predictions for the benchmark, and a report to look at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cortext.extras import lazily
from cortext.text.metrics import ErrorRate, error_rate

if TYPE_CHECKING:
    from cortext.evaluation.run import evaluate
    from cortext.evaluation.scores import Metrics
    from cortext.evaluation.submission import decode

__all__ = ["ErrorRate", "Metrics", "decode", "error_rate", "evaluate"]
# `evaluate` and `decode` need torch, which takes a second to import; `error_rate` does not.
__getattr__ = lazily(__name__, {"Metrics": ".scores", "evaluate": ".run", "decode": ".submission"})
