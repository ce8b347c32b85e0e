"""Conventions of recordings: their tokens, their language, their bins and their features.

They stand in `<root>/cortext.json` beside the session files:

    {"format": "cortext-conventions", "format_version": 1, "inventory": "arpabet", "language": "en",
     "bin_ms": 20, "normalised": "z-scored by block", "features": "z-scored", "participant": "T15"}

`inventory` and `language` are the name of a built-in one or a mapping of its fields
(`Inventory.from_json`, `Language.from_json`). Each key but the first two may be left out, and so
may the file: the release's conventions apply then. Packed data and models carry the conventions,
and they are compared wherever two meet.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from cortext.arguments import as_path
from cortext.errors import CortextError, DataError, TextError, nearest
from cortext.files import atomic_write, check_file, disk_errors, is_plain_name, read_json
from cortext.text.inventory import RELEASE, Inventory
from cortext.text.language import EN, Language

FILE = "cortext.json"
FORMAT = "cortext-conventions"
FORMAT_VERSION = 1
Features = Literal["z-scored", "raw"]
SHORTEST_BIN_MS, LONGEST_BIN_MS = 5, 50
_KEYS = (
    "inventory",
    "language",
    "bin_ms",
    "normalised",
    "features",
    "participant",
    "feature_range",
)
MOST_NOTE = 500
_MOST_BYTES = 1 << 20  # ten times the largest inventory and language


@dataclass(frozen=True)
class FeatureRange:
    """Usual size of raw features, so that other ones are noticed.

    Attributes:
        mean: Median of the features' means.
        sd: Median of their standard deviations.
        largest_sd: Deviation that one feature in ten exceeds.
        lowest: The smallest value.
    """

    mean: float
    sd: float
    largest_sd: float
    lowest: float

    def __str__(self) -> str:
        lowest = f", from {self.lowest:.3g}" if math.isfinite(self.lowest) else ""
        return f"mean {self.mean:.3g}, deviation {self.sd:.3g}{lowest}"

    @property
    def looks_z_scored(self) -> bool:
        """Tell whether the features may be z-scores."""
        return self.lowest < 0 and abs(self.mean) < 0.05 and 0.9 < self.sd < 1.1


@dataclass(frozen=True)
class Conventions:
    """Meaning of the numbers and texts of recordings.

    Attributes:
        inventory: Tokens of the labels.
        language: Normalisation of the sentences.
        bin_ms: Length of a bin of features in milliseconds, 5 to 50.
        normalised: How the features were normalised, in words; not compared.
        features: `raw` features are normalised by rolling z-scores when they are packed and in live
            decoding (`cortext.data.scaling.RollingZScore`); `z-scored` ones are used as they are.
        participant: Name of the participant; compared where both sides state it.
        feature_range: Usual size of raw features, as packing found it; not compared.
    """

    inventory: Inventory = RELEASE
    language: Language = EN
    bin_ms: float = 20
    normalised: str | None = None
    features: Features = "z-scored"
    participant: str | None = None
    feature_range: FeatureRange | None = None

    def difference(self, other: Conventions, *, by_number: bool = True) -> str | None:
        """Return the first difference from other conventions in words, or None.

        Args:
            other: The conventions to compare with.
            by_number: Tokens are known by number alone; see `Inventory.difference`.
        """
        if differs := self.inventory.difference(other.inventory, by_number=by_number):
            return differs
        if self.language != other.language:
            same_name = self.language.name == other.language.name
            how = "reads other letters" if same_name else f"is not {other.language.name!r}"
            return f"the language {self.language.name!r} {how}"
        if self.bin_ms != other.bin_ms:
            return f"bins last {self.bin_ms:g} ms, not {other.bin_ms:g} ms"
        if self.features != other.features:
            return f"the features are {self.features}, not {other.features}"
        if self.participant and other.participant and self.participant != other.participant:
            return f"the participant is {self.participant!r}, not {other.participant!r}"
        return None

    def require(
        self,
        other: Conventions,
        *,
        mine: str,
        theirs: str,
        where: str | Path | None = None,
        error: type[CortextError] = DataError,
        by_number: bool = True,
        fix: str = "take those that belong together",
    ) -> None:
        """Raise `error` unless other conventions are the same.

        Args:
            other: The conventions to compare with.
            mine: What has these conventions, such as `the data`.
            theirs: What has the others, such as `the model`.
            where: Its file or directory.
            error: Class of the error.
            by_number: Tokens are known by number alone; see `Inventory.difference`.
            fix: What to do.
        """
        if differs := self.difference(other, by_number=by_number):
            raise error(f"{mine} and {theirs} differ: in {mine} {differs}", where=where, fix=fix)

    def to_json(self) -> dict[str, Any]:
        """Return what differs from the release's conventions as plain values."""
        mapping: dict[str, Any] = {}
        if self.inventory != RELEASE:
            mapping["inventory"] = self.inventory.to_json()
        if self.language != EN:
            mapping["language"] = self.language.to_json()
        if self.bin_ms != 20:
            mapping["bin_ms"] = self.bin_ms
        if self.normalised is not None:
            mapping["normalised"] = self.normalised
        if self.features != "z-scored":
            mapping["features"] = self.features
        if self.participant is not None:
            mapping["participant"] = self.participant
        if self.feature_range is not None:
            mapping["feature_range"] = asdict(self.feature_range)
        return mapping

    def facts(self) -> dict[str, Any]:
        """Return what differs from the release's conventions in words, for people."""
        inventory = self.inventory
        n_tokens = f"{len(inventory) - 1} {inventory.unit}s and the blank"
        named = {
            "inventory": f"{inventory.name}: {n_tokens}" if inventory != RELEASE else None,
            "language": self.language.name if self.language != EN else None,
            "bins": f"{self.bin_ms:g} ms" if self.bin_ms != 20 else None,
            "normalised": self.normalised,
            "recorded features": self.features if self.features != "z-scored" else None,
            "participant": self.participant,
        }
        return {name: fact for name, fact in named.items() if fact is not None}

    @classmethod
    def from_json(cls, mapping: Mapping[str, Any]) -> Conventions:
        """Return the conventions of plain values; keys that are missing are the release's.

        Raises TextError for an inventory or a language that is none, DataError for anything else.
        """
        for key in mapping:
            if key not in _KEYS:
                raise DataError(f"unknown key {key!r}; {nearest(key, _KEYS)}")
        bin_ms = mapping.get("bin_ms", 20)
        normalised = mapping.get("normalised")
        if normalised is not None and not (
            isinstance(normalised, str)
            and normalised.isprintable()
            and len(normalised) <= MOST_NOTE
        ):
            raise DataError(
                f"normalised is {normalised!r:.40}; one line of at most {MOST_NOTE} characters is"
                " needed"
            )
        features = mapping.get("features", "z-scored")
        if features not in get_args(Features):
            raise DataError(f"features is {features!r:.40}; use 'z-scored' or 'raw'")
        participant = mapping.get("participant")
        if participant is not None and not is_plain_name(participant):
            raise DataError(f"participant is {participant!r:.40}; it must be able to name a folder")
        return cls(
            Inventory.from_json(mapping.get("inventory", "release")),
            Language.from_json(mapping.get("language", "en")),
            checked_bin_ms(bin_ms),
            normalised,
            features,
            participant,
            _checked_range(mapping.get("feature_range")),
        )

    @classmethod
    def read(cls, root: str | Path) -> Conventions:
        """Read `cortext.json` of a directory; the release's conventions where there is none.

        Raises DataError naming the file.
        """
        path = as_path(root, "root") / FILE
        if not conventions_given(path.parent):
            return RELEASE_CONVENTIONS
        fix = "write it as the documentation shows, or remove it for the release's conventions"
        try:
            check_file(path, _MOST_BYTES)
            mapping = dict(read_json(path, finite=True))
            if (mapping.pop("format", None), mapping.pop("format_version", None)) != (
                FORMAT,
                FORMAT_VERSION,
            ):
                raise DataError(
                    f"format {FORMAT!r} version {FORMAT_VERSION} expected", where=path, fix=fix
                )
            return cls.from_json(mapping)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise DataError(f"cannot be read: {reason}", where=path, fix=fix) from None
        except (DataError, TextError) as error:
            raise DataError(error.what, where=path, fix=error.fix or fix) from None

    def write(self, root: str | Path) -> None:
        """Write `cortext.json` into a directory; there is none for the release's conventions.

        Where session files lie there already, the name of their participant stays.

        Raises DataError where session files of other conventions lie there, and the errors of
        `from_json` for conventions that could not be read again.
        """
        root = as_path(root, "root")
        path = root / FILE
        self.from_json(self.to_json())
        written = self
        if next(session_files_in(root), None):
            there = Conventions.read(root)
            written = replace(self, participant=self.participant or there.participant)
            self.require(
                there,
                mine="the conventions to write",
                theirs="the session files there",
                where=root,
                fix="choose a directory of its own",
            )
        with disk_errors(path):
            if not (values := written.to_json()):
                path.unlink(missing_ok=True)
                return
            mapping = {"format": FORMAT, "format_version": FORMAT_VERSION} | values
            path.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps(mapping, indent=2, ensure_ascii=False) + "\n"
            atomic_write(path, text.encode())


def _checked_range(given: Any) -> FeatureRange | None:
    """Return a range; raise DataError unless it is four finite numbers by name."""
    if given is None:
        return None
    names = FeatureRange.__dataclass_fields__
    if not (
        isinstance(given, Mapping)
        and set(given) == set(names)
        and all(type(value) in (int, float) and math.isfinite(value) for value in given.values())
    ):
        raise DataError(f"feature_range is {given!r:.40}; {', '.join(names)} are needed")
    return FeatureRange(**{name: float(given[name]) for name in names})


def conventions_given(root: Path) -> bool:
    """Return whether a directory has a `cortext.json`, be it readable or not."""
    return os.path.lexists(root / FILE)  # `exists` does not see a link that leads nowhere


def session_files_in(root: Path) -> Iterator[Path]:
    """Yield the session files of a directory."""
    return root.absolute().glob("*/data_*.hdf5")


def checked_bin_ms(bin_ms: Any) -> float:
    """Return the length of a bin; raise DataError unless it is 5 to 50 ms."""
    if (
        isinstance(bin_ms, bool)
        or not isinstance(bin_ms, int | float)
        or not (SHORTEST_BIN_MS <= bin_ms <= LONGEST_BIN_MS)
    ):
        raise DataError(
            f"bin_ms is {bin_ms!r:.40}; {SHORTEST_BIN_MS} to {LONGEST_BIN_MS} ms are possible"
        )
    return int(bin_ms) if float(bin_ms).is_integer() else float(bin_ms)


RELEASE_CONVENTIONS = Conventions()
"""Conventions of the public release: ARPABET in its order, English, bins of 20 ms."""
