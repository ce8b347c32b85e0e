"""Searching for good settings: grids, random search, and Optuna's TPE, on one machine or on Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cortext.extras import lazily

if TYPE_CHECKING:
    from cortext.tuning.decoder import tune_decoder
    from cortext.tuning.decoder_result import Tuned
    from cortext.tuning.decoder_search import DecoderSearch
    from cortext.tuning.run import tune_training
    from cortext.tuning.search import Search
    from cortext.tuning.space import Choice, Range, parse_space
    from cortext.tuning.study import Study, Trial

__all__ = [
    "Choice",
    "DecoderSearch",
    "Range",
    "Search",
    "Study",
    "Trial",
    "Tuned",
    "parse_space",
    "tune_decoder",
    "tune_training",
]
# Training needs torch; the processes that try decoder options do without it.
__getattr__ = lazily(
    __name__,
    {
        "Choice": ".space",
        "DecoderSearch": ".decoder_search",
        "Range": ".space",
        "Search": ".search",
        "Study": ".study",
        "Trial": ".study",
        "Tuned": ".decoder_result",
        "parse_space": ".space",
        "tune_decoder": ".decoder",
        "tune_training": ".run",
    },
)
