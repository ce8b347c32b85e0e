"""The origin of the logits in an evaluation directory, and the files that hold them.

Shapes: P patches (frames), V tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cortext.arguments import as_path
from cortext.data.conventions import Conventions
from cortext.data.trial import BIN_MS
from cortext.decoding.ngram.language_model import LanguageModel, language_model_checksum
from cortext.decoding.options import DecoderOptions
from cortext.decoding.saved import read_saved, to_log_probs
from cortext.errors import DataError, DecodingError, TextError
from cortext.evaluation.nbest_file import AGAIN, TrialKey, trial_name
from cortext.files import read_json
from cortext.text.inventory import Inventory
from cortext.text.language import EN, Language


@dataclass(frozen=True)
class LogitsOrigin:
    """Origin of the logits in an evaluation directory.

    Attributes:
        inventory: The tokens, in their order.
        frame_ms: Time from one frame to the next.
        options: Options that its n-best lists were decoded with.
        fitted: True if these were fitted to its run.
        lm_checksum: Checksum of the language model of its n-best lists; None where it is not known.
        cross_fitted: Options for trials that they were fitted on, by the trial's number.
        language: Normalisation of the sentences.
        bin_ms: Length of a bin of the recordings, in milliseconds.
    """

    inventory: Inventory
    frame_ms: float
    options: DecoderOptions
    fitted: bool = False
    lm_checksum: str | None = None
    cross_fitted: Mapping[int, DecoderOptions] = field(default_factory=dict)
    language: Language = EN
    bin_ms: float = BIN_MS

    @property
    def conventions(self) -> Conventions:
        """Tokens, language and length of a bin of the recordings."""
        return Conventions(self.inventory, self.language, self.bin_ms)

    @classmethod
    def of(cls, directory: str | Path) -> LogitsOrigin:
        """Return the origin of an evaluation directory's logits."""
        directory = as_path(directory, "a directory")
        facts = _json(directory / "metrics.json").get("provenance") or {}
        try:
            facts["inventory"]  # without it, `conventions_of` would take the release's
            known = conventions_of(facts)
            crossed = {
                int(number): DecoderOptions.of(half["options"])
                for half in facts.get("cross_fitted") or ()
                for number in half["ids"]
            }
            return cls(
                known.inventory,
                float(facts["frame_ms"]),
                DecoderOptions.of(facts.get("options")),
                bool(facts.get("fitted")),
                facts.get("lm_checksum"),
                crossed,
                known.language,
                known.bin_ms,
            )
        except (DataError, DecodingError, TextError) as error:
            raise DataError(error.what, where=directory / "metrics.json", fix=AGAIN) from None
        except (KeyError, TypeError, AttributeError, ValueError):
            raise DataError(
                "does not say how its logits are ordered", where=directory, fix=AGAIN
            ) from None

    def require(self, lm: LanguageModel, directory: str | Path) -> None:
        """Raise LanguageModelError unless a language model goes with the logits of a directory."""
        lm.require(self.inventory, self.language, theirs=f"the logits of {directory}")

    def searched_with(self, lm: str | Path) -> LogitsOrigin:
        """Return the same with the options for a search with a language model.

        They are the defaults where the options were fitted with another language model.
        """
        if self.fitted and self.lm_checksum != language_model_checksum(lm):
            return replace(self, options=DecoderOptions(), fitted=False, cross_fitted={})
        return self

    def given(self, options: DecoderOptions | None) -> LogitsOrigin:
        """Return the same with options that a user has given, if any."""
        if options is None:
            return self
        return replace(self, options=options, fitted=False, cross_fitted={})

    def to_json(self) -> dict[str, Any]:
        """Return the facts of `metrics.json` that `of` reads."""
        groups: dict[DecoderOptions, list[int]] = {}
        for number, options in self.cross_fitted.items():
            groups.setdefault(options, []).append(number)
        return {
            **conventions_json(self.conventions),
            "frame_ms": float(self.frame_ms),
            "options": asdict(self.options),
            "fitted": self.fitted,
            "lm_checksum": self.lm_checksum,
            "cross_fitted": [
                {"options": asdict(options), "ids": numbers} for options, numbers in groups.items()
            ],
        }


@dataclass(frozen=True)
class LogitFiles:
    """Files with the logits of an evaluation directory.

    Attributes:
        directory: The evaluation directory.
        inventory: Tokens of the logits, in their order.
        files: File of each trial by its number.
    """

    directory: Path
    inventory: Inventory
    files: Mapping[int, Path]

    @classmethod
    def of(cls, directory: str | Path, inventory: Inventory) -> LogitFiles:
        """Return the files of a directory; the name of each begins with the trial's number.

        Raises:
            DataError: For a directory without logits.
        """
        directory = as_path(directory, "a directory")
        files = sorted((directory / "logits").glob("*.npy"))
        if not files:
            raise DataError("no logits", where=directory, fix=AGAIN)
        numbers = [file.stem.partition("_")[0] for file in files]
        named = {
            int(number): file
            for number, file in zip(numbers, files, strict=True)
            if number.isdecimal()
        }
        return cls(directory, inventory, named)

    def log_probs(self, trial: TrialKey) -> np.ndarray:
        """Return the natural-log probabilities of a trial, float32 [P, V].

        Raises:
            DataError: Where there are none.
            DecodingError: As `read_saved`.
        """
        if trial[0] not in self.files:
            where = self.directory / "logits"
            raise DataError(f"no logits of {trial_name(trial)}", where=where, fix=AGAIN)
        return to_log_probs(read_saved(self.files[trial[0]], self.inventory)[0].logits_PV)


def conventions_json(conventions: Conventions) -> dict[str, Any]:
    """Return conventions as `metrics.json` has them: tokens, and all that is not the release's."""
    values = conventions.to_json()
    kept: dict[str, Any] = {name: values[name] for name in ("language", "bin_ms") if name in values}
    return {"inventory": conventions.inventory.to_json()} | kept


def conventions_of(facts: Mapping[str, Any]) -> Conventions:
    """Return the conventions in the provenance of a `metrics.json`; without any, the release's."""
    names = ("inventory", "language", "bin_ms")
    return Conventions.from_json({name: facts[name] for name in names if name in facts})


def _json(path: Path) -> Any:
    try:
        return read_json(path)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=path, fix=AGAIN) from None
    except ValueError as error:
        raise DataError(f"not valid JSON: {error}", where=path, fix=AGAIN) from None
