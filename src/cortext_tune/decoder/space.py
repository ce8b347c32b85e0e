"""The search space of decoder options, and the settings of a search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cortext.config import check_fields
from cortext.decoding.options import DecoderOptions
from cortext.errors import ConfigError
from cortext.settings import AT_LEAST_0, AT_LEAST_1
from cortext_tune.space import Choice, Range, Space, fit_space

SEARCHED: Space = {
    "acoustic_scale": Range(0.3, 1.5, log=True),
    "word_score": Range(-3.0, 3.0),
    "sil_cost": Range(0.0, 12.0),
    "blank_penalty": Range(1.0, 300.0, log=True),
    "beam": Range(6.0, 20.0),
    "word_beam": Range(0.4, 1.0),
    "max_active": Range(50, 1000, log=True),
    "sil_required": Choice((False, True)),
    "recombine": Choice(("logadd", "max")),
    "prior_weight": Range(0.0, 1.0),
}
"""Space that is searched by default.

The best sentence depends on the ratio of the scores alone, so `lm_weight` is not in it.
"""

SWEPT: Space = {
    "llm.weight": Range(0.0, 1.0),
    "llm.token_penalty": Range(-1.0, 1.0),
    "lm_weight": Range(0.3, 3.0, log=True),
}
"""Space that is swept by default, on lists that a large model has scored."""

RERANKED = {*SWEPT, "word_score"}
"""Options that only rank the sentences of a list; they need no new decoding."""


@dataclass(frozen=True)
class DecoderSearch:
    """The settings of a search for decoder options. Raises ConfigError.

    Attributes:
        space: Ranges by dotted name of the decoder's option; by default `SEARCHED`, and `SWEPT`
            with a large model.
        n_trials: Options to try, those given included.
        seed: Seed of the draws and of the sample.
        time_weight: Points of word error rate that a millisecond per frame is worth.
        sample: Utterances that a trial decodes; None for all.
        finalists: Number of best trials that decode all utterances, with a sample.
        prune: Give up a trial with more errors than the median of the others at an eighth, two
            eighths ... of the utterances.
        llm_points: Weights of a large model to try.
    """

    space: Space | None = None
    n_trials: Annotated[int, AT_LEAST_1] = 50
    seed: Annotated[int, AT_LEAST_0] = 0
    time_weight: Annotated[float, AT_LEAST_0] = 1.0
    sample: Annotated[int | None, AT_LEAST_1] = None
    finalists: Annotated[int, AT_LEAST_1] = 5
    prune: bool = False
    llm_points: Annotated[int, AT_LEAST_1] = 200

    def __post_init__(self) -> None:
        check_fields(self)

    def spaces(self, options: DecoderOptions, llm: bool) -> tuple[Space, Space]:
        """Return the space that is searched by decoding and the one that is swept afterwards.

        Args:
            options: First options of the search; they give the types of the values.
            llm: True if a large model is given.
        """
        given = dict(self.space or {})
        decoded = given
        if not llm or options.llm.mode != "fusion":
            decoded = {key: values for key, values in given.items() if not key.startswith("llm.")}
        swept = {key: values for key, values in given.items() if key not in decoded}
        for key in swept:
            if not llm:
                raise ConfigError(
                    f"{key} is searched, and no large model is given", fix="give one with --llm"
                )
            if key not in RERANKED:
                fix = "set it in the options, or search it with llm.mode: fusion"
                raise ConfigError(f"{key} cannot be swept after decoding", fix=fix)
        if llm and options.llm.mode == "rescore" and not swept:
            most = 2.0 if options.llm.form == "add" else 1.0
            swept = dict(SWEPT) | {"llm.weight": Range(0.0, most)}
        return fit_space(decoded or SEARCHED, options), fit_space(swept, options)
