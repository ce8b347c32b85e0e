"""Settings of an ensemble, and the file that keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

import yaml

from cortext.arguments import check_type
from cortext.config import load_config
from cortext.decoding.options import check_numbers, is_finite
from cortext.errors import DecodingError, nearest
from cortext.files import atomic_write
from cortext.settings import FROM_0_TO_1, Setting

METHODS = ("rover", "rover-lm", "mbr", "average", "correct")
MEANS = ("arithmetic", "geometric")
_FACTOR = Setting(minimum=0, maximum=1e3)


@dataclass(frozen=True)
class EnsembleOptions:
    """Options for combining systems.

    A system is one run's list of candidate sentences for a trial, best first.

    In a trial every system has the weight that `weights` gives it, and shares it among its
    sentences in proportion to exp(score_scale * score), or equally where they have no scores. All
    weights together are 1.
    """

    method: str = "rover"
    """`rover`: a vote word by word.

    `rover-lm`: the same with an n-gram; `mbr`: the candidate with the fewest expected word errors;
    `average`: of the acoustic models' posteriors; `correct`: a large language model is asked.
    """
    weights: tuple[float, ...] = ()
    """Weight of each system, at least 0; equal when empty."""
    nbest: Annotated[int, Setting(minimum=1, maximum=1e6)] = 10
    """Number of each system's best sentences that take part; of a lattice all do."""
    lattice: bool = False
    """True if runs are combined by their lattices and not by their saved lists.

    The lattices come from a new search in the runs' logits.
    """
    score_scale: Annotated[float, _FACTOR] = 1.0
    """Factor on the scores of a system's sentences before they become probabilities.

    0 makes them equal.
    """
    alpha: Annotated[float, FROM_0_TO_1] = 1.0
    """rover: share of the votes in a word's score.

    The rest is the mean confidence of those who vote for it.
    """
    null_confidence: Annotated[float, FROM_0_TO_1] = 0.7
    """rover: confidence of leaving a word out, where `alpha` is below 1."""
    null_weight: Annotated[float, _FACTOR] = 1.0
    """rover: factor on the score of leaving a word out."""
    lm_weight: Annotated[float, _FACTOR] = 0.05
    """rover-lm: factor on the n-gram's log-probabilities beside the logarithms of the votes."""
    word_score: Annotated[float, Setting(minimum=-1e3, maximum=1e3)] = 0.0
    """rover-lm: added for every word."""
    mean: str = "arithmetic"
    """average: of the probabilities, or (`geometric`) of their logarithms."""
    candidates: Annotated[int, Setting(minimum=1, maximum=1e4)] = 20
    """correct: most recombinations of the words that are scored beside the systems' own sentences.

    It is the beam of the search for them.
    """
    llm_weight: Annotated[float, _FACTOR] = 0.02
    """correct: factor on the large model's log-probability.

    One expected word error costs 1.
    """
    free: bool = False
    """correct: True if the large model writes the sentence freely."""

    def __post_init__(self) -> None:
        for name, known in (("method", METHODS), ("mean", MEANS)):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in known:
                raise DecodingError(f"{name} is {value!r}; {nearest(str(value), known)}")
        for name in ("lattice", "free"):
            if not isinstance(value := getattr(self, name), bool):
                raise DecodingError(f"{name} is {value!r}; true or false is needed")
        if self.lattice and self.method == "average":
            raise DecodingError(
                "lattice does not go with average, whose posteriors are searched once, together"
            )
        check_numbers(self)
        object.__setattr__(self, "weights", _checked_weights(self.weights))

    @property
    def taken(self) -> int | None:
        """Number of each system's sentences that take part; None for all."""
        return None if self.lattice else self.nbest

    def changed(self, changes: Mapping[str, Any]) -> EnsembleOptions:
        """Return these options with some fields changed.

        Raises:
            DecodingError: For an unknown name, with the nearest one, and values out of bounds.
        """
        known = {field.name for field in fields(self)}
        for name in changes:
            if name not in known:
                raise DecodingError(
                    f"unknown option {name!r} of an ensemble; {nearest(name, known)}"
                )
        return replace(self, **changes)

    @classmethod
    def of(cls, options: EnsembleOptions | None) -> EnsembleOptions:
        """Return the options, or the defaults for None. Raises WrongType for anything else."""
        check_type(options, (EnsembleOptions, type(None)), "options", "EnsembleOptions")
        return cls() if options is None else options

    @classmethod
    def read(cls, path: str | Path) -> EnsembleOptions:
        """Read options from a YAML file.

        Raises:
            ConfigError: For a file that cannot be read; it names the file.
            DecodingError: For values out of bounds; it names the file.
        """
        return load_config(path, cls)

    def write(self, path: str | Path) -> None:
        """Write the YAML file that `read` reads."""
        mapping = asdict(self) | {"weights": list(self.weights)}
        atomic_write(Path(path), yaml.safe_dump(mapping, sort_keys=False).encode())


def _checked_weights(weights: Any) -> tuple[float, ...]:
    if not isinstance(weights, list | tuple) or not all(
        is_finite(weight) and weight >= 0 for weight in weights
    ):
        raise DecodingError(f"weights is {weights!r}; a list of numbers of at least 0 is needed")
    if weights and not sum(weights) > 0:
        raise DecodingError("all weights are 0; one at least must be above")
    return tuple(float(weight) for weight in weights)
