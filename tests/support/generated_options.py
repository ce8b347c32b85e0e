"""Values of the search's options that follow from the fields of `DecoderOptions`.

A new option gets values, and with them a comparison with the reference, without a line here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import Field, fields
from typing import Any

from engine_cases import UNLIMITED
from hypothesis import strategies as st

from cortext.decoding import DecoderOptions
from cortext.settings import settings_of

CHANGE_NO_SCORE = {
    "beam": "decides which hypotheses live",
    "word_beam": "decides which hypotheses live",
    "max_active": "decides which hypotheses live",
    "min_active": "decides which hypotheses live",
    "lattice_beam": "decides which sentences are scored",
    "max_arcs": "decides which sentences are scored",
    "nbest": "is the length of the list",
    "history_words": "decides which hypotheses are joined in the search; sentences are scored later",
    "llm": "is for a large language model beside the search; see llm/",
}
"""Options that decide which sentences are found, and why they change the score of none."""

WITHOUT_BOUNDS: dict[str, list[Any]] = {
    "label_priors": [{"BLANK": 0.5, "SIL": 0.1, "AA": 0.05}, {"B": 0.3}],
    "recombine": ["max"],
    "llm": [{"weight": 0.9, "mode": "fusion"}],
}
"""Values of the options that are neither numbers nor flags."""


def default_of(option: Field) -> Any:
    """The default of a field of `DecoderOptions`."""
    return getattr(DecoderOptions(), option.name)


def values_of(option: Field) -> list[Any]:
    """Values of an option other than its default, with its bounds where they are not huge."""
    default = default_of(option)
    if isinstance(default, bool):
        return [not default]
    setting = settings_of(DecoderOptions).get(option.name)
    if setting is None:
        assert option.name in WITHOUT_BOUNDS, f"WITHOUT_BOUNDS needs values of {option.name}"
        return WITHOUT_BOUNDS[option.name]
    low, high = setting.minimum, setting.maximum
    if isinstance(default, int):
        wanted = [low, default // 2, default + 1, high]
    else:
        wanted = [round(default - 0.7, 3), round(default + 0.9, 3), 1.5 * default, 0.0, 1.0]
    if option.name in CHANGE_NO_SCORE:
        wanted += [low, high]
    return sorted({value for value in wanted if low <= value <= high} - {default})


SCORING = [option for option in fields(DecoderOptions) if option.name not in CHANGE_NO_SCORE]
"""Options that change scores: all that are not declared to change none."""


def generated_options(leave_out: Iterable[str] = ()) -> st.SearchStrategy[dict[str, Any]]:
    """Any values of the options that change scores; the others are so wide that nothing is lost."""
    drawn = {
        option.name: st.sampled_from([default_of(option), *values_of(option)])
        for option in SCORING
        if option.name not in leave_out
    }
    return st.fixed_dictionaries(drawn).map(lambda options: UNLIMITED | options)
