"""Search for good settings with Optuna, on one machine or on Ray, and training on rented machines.

Grids, random search and TPE try settings of a training or options of the decoder. Stands on
`cortext` and `cortext_lm` (weights of large models).

Begin with:

- `space` and `search`: the settings that may be tried, and the choice of the next ones.
- `training.tune_training`: a search over settings of a training.
- `decoder.search.tune_decoder`: a search over options of the decoder, on logits of an evaluation.
- `workers`: trials in processes or as tasks of a Ray cluster.
- `cloud.job`: a training run on a rented TPU or GPU, through SkyPilot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cortext.extras import lazily

if TYPE_CHECKING:
    from cortext_tune.cloud import launch
    from cortext_tune.comparison import Study
    from cortext_tune.decoder.result import Tuned
    from cortext_tune.decoder.search import tune_decoder
    from cortext_tune.decoder.space import DecoderSearch
    from cortext_tune.search import Search, TuningTrial
    from cortext_tune.space import Choice, Range, parse_space
    from cortext_tune.training import tune_training

__all__ = [
    "Choice",
    "DecoderSearch",
    "Range",
    "Search",
    "Study",
    "Tuned",
    "TuningTrial",
    "launch",
    "parse_space",
    "tune_decoder",
    "tune_training",
]
# Training needs torch; the processes that try decoder options do without it.
__getattr__ = lazily(
    __name__,
    {
        "Choice": ".space",
        "DecoderSearch": ".decoder.space",
        "Range": ".space",
        "Search": ".search",
        "Study": ".comparison",
        "Tuned": ".decoder.result",
        "TuningTrial": ".search",
        "launch": ".cloud",
        "parse_space": ".space",
        "tune_decoder": ".decoder.search",
        "tune_training": ".training",
    },
)
