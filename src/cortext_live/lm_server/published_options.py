"""The published language-model server's parameters, as `DecoderOptions`, and its candidates.

The formats are those of language_model/language-model-standalone.py of the public NEJM 2024
release.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Annotated, get_type_hints

from cortext.config import check_fields
from cortext.decoding.nbest import Hypothesis
from cortext.decoding.options import DecoderOptions, LLMOptions, is_finite
from cortext.errors import ConfigError, CortextError, nearest
from cortext.settings import FROM_0_TO_1, Setting
from cortext_live.core.decoder import LIVE_BOUNDS

LONGEST_VALUE = 100
"""Characters of a parameter's value, which is kept for a server after this one."""


@dataclass(frozen=True)
class PublishedOptions:
    """The parameters by their published names and in their published units."""

    max_active: Annotated[int, LIVE_BOUNDS["max_active"]] = 7000
    """`DecoderOptions.max_active`."""
    min_active: Annotated[int, LIVE_BOUNDS["min_active"]] = 200
    """`DecoderOptions.min_active`."""
    beam: float = 17.0
    """`DecoderOptions.beam`."""
    lattice_beam: float = 8.0
    """Beam of the lattice in scaled scores.

    `DecoderOptions.lattice_beam` is this, divided by the acoustic scale.
    """
    acoustic_scale: float = 0.325
    """`DecoderOptions.acoustic_scale`."""
    ctc_blank_skip_threshold: float = 1.0
    """`DecoderOptions.blank_skip`, a bound on the blank's probability before the penalty."""
    length_penalty: float = 0.0
    """Negative of `DecoderOptions.word_score`.

    It is also the cost of each token of a large model, `LLMOptions.token_penalty`.
    """
    nbest: Annotated[int, LIVE_BOUNDS["nbest"]] = 100
    """`DecoderOptions.nbest`."""
    blank_penalty: float = 90.0
    """`DecoderOptions.blank_penalty`."""
    alpha: Annotated[float, FROM_0_TO_1] = 0.55
    """Weight of a large model against the n-gram, `LLMOptions.weight`."""
    do_opt: bool = False
    """True if a large model scores the candidates, where the server has one."""
    rescore: bool = False
    """True if a larger n-gram scores the candidates.

    It has no effect: the search has the whole n-gram at once.
    """
    top_candidates_to_augment: Annotated[int, Setting(minimum=0, maximum=200)] = 20
    """Best candidates in which words are exchanged to make more candidates."""
    score_penalty_percent: Annotated[float, Setting(minimum=0, maximum=1e3)] = 0.01
    """Fraction of its scores that such a candidate loses."""

    def __post_init__(self) -> None:
        check_fields(self)
        self.options(DecoderOptions())

    @classmethod
    def of(cls, options: DecoderOptions) -> PublishedOptions:
        """Return the parameters that mean the same as a decoder's options."""
        return cls(
            max_active=options.max_active,
            min_active=options.min_active,
            beam=options.beam,
            lattice_beam=options.lattice_beam * options.acoustic_scale,
            acoustic_scale=options.acoustic_scale,
            ctc_blank_skip_threshold=options.blank_skip,
            length_penalty=0.0 - options.word_score,
            nbest=options.nbest,
            blank_penalty=options.blank_penalty,
            alpha=_share(options),
            top_candidates_to_augment=options.llm.augment,
            score_penalty_percent=options.llm.augment_penalty,
        )

    def options(self, base: DecoderOptions) -> DecoderOptions:
        """Return a decoder's options with these parameters."""
        return base.changed(
            {
                "max_active": self.max_active,
                "min_active": self.min_active,
                "beam": self.beam,
                "lattice_beam": (
                    self.lattice_beam / self.acoustic_scale if self.acoustic_scale > 0 else 0.0
                ),
                "acoustic_scale": self.acoustic_scale,
                "blank_skip": self.ctc_blank_skip_threshold,
                "word_score": 0.0 - self.length_penalty,
                "nbest": self.nbest,
                "blank_penalty": self.blank_penalty,
            }
        )

    def llm(self, base: DecoderOptions) -> LLMOptions:
        """Return the options of a large model, of weight 0 unless it is to score the candidates.

        A parameter that agrees with the decoder's options leaves them as they are.
        """
        changes: dict[str, object] = {
            "augment": self.top_candidates_to_augment if self.nbest > 1 else 0,
            "augment_penalty": self.score_penalty_percent,
        }
        if not self.do_opt:
            changes["weight"] = 0.0
        elif self.alpha != _share(base):
            changes |= {"form": "interpolate", "weight": self.alpha}
        if self.length_penalty != -base.word_score:
            changes["token_penalty"] = self.length_penalty
        return base.llm.changed(changes)

    def updated(self, texts: Mapping[str, str]) -> tuple[PublishedOptions, dict[str, str]]:
        """Return the parameters with new values, and the reason by name for each refused one."""
        params = self
        refused = {}
        for name, text in texts.items():
            try:
                params = replace(params, **{name: _value(name, text)})  # type: ignore[arg-type]
            except CortextError as error:
                refused[name] = error.what
        return params, refused

    def announced(self) -> dict[str, int | float]:
        """Return the values as they are written to `remote_lm_args`."""
        return {
            name: int(value) if isinstance(value, bool) else value
            for name, value in asdict(self).items()
        }


_KINDS = get_type_hints(PublishedOptions)


def _share(options: DecoderOptions) -> float:
    """Return the weight of the large model relative to both models' together."""
    if options.llm.form == "interpolate" or not options.llm.weight:
        return options.llm.weight
    return options.llm.weight / (options.lm_weight + options.llm.weight)


def _value(name: str, text: str) -> int | float | bool:
    """Return a value as clients write it. Raises ConfigError for a wrong name or value."""
    kind = _KINDS.get(name)
    if kind is None:
        raise ConfigError(f"unknown parameter; {nearest(name[:LONGEST_VALUE], _KINDS)}")
    if len(text) > LONGEST_VALUE:
        raise ConfigError(f"{name} has {len(text)} characters; at most {LONGEST_VALUE} are a value")
    text = text.strip()
    if kind is bool:
        if text.lower() not in ("0", "1", "false", "true"):
            raise ConfigError(f"{name} is {text!r}; 0 or 1 is needed")
        return text.lower() in ("1", "true")
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not is_finite(number) or (kind is int and number != int(number)):
        raise ConfigError(f"{name} is {text[:40]!r}; a finite {kind.__name__} is needed")
    return int(number) if kind is int else number


def changed_params(params: PublishedOptions, changes: Iterable[str]) -> PublishedOptions:
    """Return parameters with changes `name=value`. Raises ConfigError for the first wrong one."""
    texts = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise ConfigError(f"{change!r} is no name=value")
        texts[name.strip()] = text
    params, refused = params.updated(texts)
    for name, reason in refused.items():
        raise ConfigError(
            reason, where=name, fix="other options of the search go into --options FILE"
        )
    return params


@dataclass(frozen=True)
class ScoredSentence:
    """A sentence and its scores, natural logs; `total` is the one that ranks."""

    sentence: str
    acoustic: float
    ngram: float
    llm: float
    total: float


def candidates_of(hypotheses: Iterable[Hypothesis]) -> list[ScoredSentence]:
    """Return the candidates of a search, in its order."""
    return [
        ScoredSentence(
            each.text,
            each.acoustic_score,
            each.lm_score,
            _llm_score(each),
            each.score,
        )
        for each in hypotheses
    ]


def _llm_score(hypothesis: Hypothesis) -> float:
    """Return the score that counted as the large model's.

    For no words at all it is the n-gram's score. It is 0 where the large model ranked nothing.
    """
    if hypothesis.llm_score is not None:
        return hypothesis.llm_score
    return 0.0 if hypothesis.confidence is None else hypothesis.lm_score


def scoring(candidates: Sequence[ScoredSentence]) -> str:
    """Return the candidates as one text: sentence;acoustic;ngram;llm;total, joined by `;`.

    Clients sort by the total, in an order of their own where two are equal. Equal totals therefore
    differ in the last digit here, so that the best stays the best. A sentence holds no `;`.
    """
    parts: list[str] = []
    last = math.inf
    for candidate in candidates:
        last = min(candidate.total, math.nextafter(last, -math.inf))
        numbers = (candidate.acoustic, candidate.ngram, candidate.llm, last)
        parts += [
            without_separator(candidate.sentence),
            *(repr(float(number)) for number in numbers),
        ]
    return ";".join(parts)


def without_separator(sentence: str) -> str:
    """Return a sentence without the separator."""
    return sentence.replace(";", ",")
