"""The card of a model: `model.json`, its description without its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cortext.config import check_fields, first_difference, from_mapping
from cortext.data.conventions import Conventions
from cortext.errors import ConfigError, CortextError, DataError, RunError, TextError
from cortext.features.smooth import check_kernel, gaussian_kernel
from cortext.files import is_plain_name, parse_json_object, read_json
from cortext.models.participants import participant_folder, read_participants
from cortext.text.inventory import BLANK, SIL, Inventory
from cortext.text.language import Language

CARD = "model.json"
"""Name of the file in a run, and of its content in the metadata of the weights."""
FORMAT_VERSION = 1
CTC = "ctc"
"""Name of the task of phoneme models, which every command reads."""
PRETRAIN = "pretrain"
"""Name of the task of models without labels, from which a training with labels may start."""
MOST_FEATURES = 65_536
"""Most features of a bin, bins of a patch and tokens of a model that is read."""


@dataclass
class Smoothing:
    """Gaussian smoothing that a model was trained with."""

    smooth_data: bool = True
    smooth_kernel_std: float = 2.0
    smooth_kernel_size: int = 100

    def __post_init__(self) -> None:
        check_fields(self)
        try:
            check_kernel(self.smooth_kernel_std, self.smooth_kernel_size)
        except ValueError as error:
            raise ConfigError(f"smoothing: {error}") from None

    @property
    def lost_bins(self) -> int:
        """Bins that a trial is shorter once it is smoothed as at evaluation, K - 1."""
        if not self.smooth_data:
            return 0
        return len(gaussian_kernel(self.smooth_kernel_std, self.smooth_kernel_size)) - 1

    @property
    def look_ahead_bins(self) -> int:
        """Later bins that a smoothed bin depends on."""
        return self.lost_bins - self.lost_bins // 2


@dataclass
class ModelCard:
    """Content of `model.json`. Raises ConfigError for values that no model has."""

    kind: str
    sessions: list[str]
    n_features: int
    feature_subset: list[int] | None
    patch: dict[str, int]
    smoothing: Smoothing
    inventory: dict[str, Any]
    config: dict[str, Any]
    backend: str = "torch"
    format_version: int = FORMAT_VERSION
    task: str = CTC
    """Task that the run learnt. Only for `ctc` must the inventory be one of tokens."""
    language: str | dict[str, Any] = "en"
    """Language of the sentences: the name of a built-in one, or its fields."""
    bin_ms: float = 20
    """Length of a bin of features in milliseconds."""
    normalised: str | None = None
    """Normalisation of the features, in words."""
    features: str = "z-scored"
    """Features of the recordings: `z-scored`, or `raw` ones that become rolling z-scores."""
    participant: str | None = None
    """Name of the participant, where the recordings state it."""
    feature_range: dict[str, float] | None = None
    """Usual size of the raw features that it was trained on (`conventions.FeatureRange`)."""

    def __post_init__(self) -> None:
        check_sessions(self.sessions)
        if not 1 <= self.n_features <= MOST_FEATURES:
            raise ConfigError(
                f"n_features is {self.n_features}; from 1 to {MOST_FEATURES:,} are needed"
            )
        subset = self.feature_subset
        if subset is not None and not (
            0 < len(subset) <= MOST_FEATURES and 0 <= min(subset) <= max(subset)
        ):
            raise ConfigError("feature_subset is not a list of features by number")
        if subset is not None and max(subset) >= self.n_features:
            raise ConfigError(
                f"feature_subset has feature {max(subset)}; n_features is {self.n_features}"
            )
        size, stride = (self.patch.get(name, -1) for name in ("size", "stride"))
        if not (0 <= size <= MOST_FEATURES and 1 <= stride <= MOST_FEATURES):
            raise ConfigError(f"patch is {self.patch}; a size and a stride in bins are needed")
        if self.patch.get("pads", 0) not in (0, 1) or (self.pads_last_patch and size != stride):
            raise ConfigError(f"patch is {self.patch}; pads is 1 only where size is stride")
        _ = self.conventions

    @property
    def pads_last_patch(self) -> bool:
        """Tell whether a partly filled last patch is filled with zeros and makes a frame."""
        return self.patch.get("pads", 0) == 1

    @cached_property
    def conventions(self) -> Conventions:
        """Conventions of the recordings that the model was trained on; ConfigError if none."""
        given = {name: getattr(self, name) for name in _OF_RECORDINGS}
        try:
            return replace(Conventions.from_json(given), inventory=self._inventory())
        except (DataError, TextError) as error:
            named = f"{error.where}: {error.what}" if error.where else error.what
            raise ConfigError(named, fix=error.fix) from None

    def _inventory(self) -> Inventory:
        """Return the inventory; the outputs of a task other than CTC need not be tokens."""
        _check_symbols(self.inventory)
        symbols = self.inventory["symbols"]
        if self.task == CTC or "roles" in self.inventory or {BLANK, SIL} <= set(symbols):
            return Inventory.from_json(self.inventory)
        return Inventory(self.inventory["name"], tuple(symbols))

    def to_json(self) -> bytes:
        """Return the content of `model.json`, without fields that equal the release's."""
        mapping = asdict(self)
        for name in ("task", *_OF_RECORDINGS):
            if mapping[name] == _DEFAULTS[name]:
                del mapping[name]
        if self.kind in _RELEASED:
            _leave_out(mapping["config"], _RELEASED[self.kind])
        return json.dumps(mapping, indent=2).encode()


_OF_RECORDINGS = (
    "language",
    "bin_ms",
    "normalised",
    "features",
    "participant",
    "feature_range",
)
"""Fields that are conventions of the recordings, beside the inventory."""
_DEFAULTS = {field.name: field.default for field in fields(ModelCard)}
_RELEASED_INPUTS: dict[str, Any] = {"input_network": {"day_layer": "softsign", "read_in": None}}
_RELEASED = {
    "gru": _RELEASED_INPUTS | {"diphones": False, "intermediate_layer": None},
    "triple_gru": _RELEASED_INPUTS,
}
"""Settings that the release's models lack, with the values that those models have."""


def _leave_out(mapping: dict[str, Any], released: Mapping[str, Any]) -> None:
    """Remove the settings that are as in the release's models."""
    for name, value in released.items():
        if isinstance(value, dict):
            _leave_out(mapping.get(name, {}), value)
        elif name in mapping and mapping[name] == value:
            del mapping[name]


class Conventional:
    """The base of what reads recordings of certain conventions and gives frames of logits.

    Attributes:
        conventions: Tokens, language and length of a bin of the recordings.
        patch_stride: Bins from one frame to the next.
        pads_last_patch: True if a partly filled last patch is filled with zeros and makes a frame.
    """

    conventions: Conventions
    patch_stride: int
    pads_last_patch: bool = False

    @property
    def inventory(self) -> Inventory:
        """Tokens, in the order of the logits."""
        return self.conventions.inventory

    @property
    def language(self) -> Language:
        """Language of the sentences."""
        return self.conventions.language

    @property
    def bin_ms(self) -> float:
        """Length of a bin of features in milliseconds."""
        return self.conventions.bin_ms

    @property
    def frame_ms(self) -> float:
        """Time from one frame of logits to the next in milliseconds."""
        return self.patch_stride * self.bin_ms


def patch_shape(size: int, stride: int) -> tuple[int, int]:
    """Return a patch's size and stride in bins; size 0 means single bins, (1, 1)."""
    return (size, stride) if size else (1, 1)


def check_sessions(sessions: Sequence[str]) -> None:
    """Raise ConfigError for a session that is named twice, or whose name cannot be a folder's."""
    for name in sessions:
        if not is_plain_name(name):
            raise ConfigError(
                f"{name!r} cannot name a session",
                fix="use up to 200 letters, digits, dots and dashes",
            )
    if len(set(sessions)) < len(sessions):
        raise ConfigError("sessions names a session twice", fix="name each once")


def _check_symbols(inventory: Mapping[str, Any]) -> None:
    """Raise ConfigError unless the mapping has the name and the symbols of an `Inventory`."""
    for key in ("name", "symbols"):
        if key not in inventory:
            raise ConfigError(f"inventory has no {key!r}")
    name = inventory["name"]
    symbols = inventory["symbols"]
    if not isinstance(symbols, list) or not all(
        isinstance(symbol, str) for symbol in (name, *symbols)
    ):
        raise ConfigError(f"inventory.symbols is {symbols!r:.40}; a list of texts is needed")
    if len(set(symbols)) < len(symbols) or len(symbols) > MOST_FEATURES:
        raise ConfigError(f"inventory.symbols has {len(symbols):,} symbols, or one of them twice")


def read_card(path: Path) -> ModelCard:
    """Read a `model.json`.

    Raises RunError for a file that is missing, foreign or of another version.
    """
    fix = "give the directory that `cortext train --out` wrote"
    try:
        return card_of(read_json(path), path)
    except OSError as error:
        if known := read_participants(path.parent):
            folders = " or ".join(str(participant_folder(path.parent, name)) for name in known)
            problem = "a run of several participants"
            raise RunError(problem, where=path.parent, fix=f"give {folders}") from None
        raise RunError(f"no model here: {error.strerror}", where=path, fix=fix) from None
    except KeyError:
        raise RunError("not a model description", where=path, fix=fix) from None
    except ValueError as error:
        raise RunError(f"not a model description: {error}", where=path, fix=fix) from None


def card_of(mapping: dict[str, Any], path: Path) -> ModelCard:
    """Return the card that a JSON object is.

    Args:
        mapping: The object.
        path: Its file, for messages.

    Raises:
        KeyError: For an object without a version.
        RunError: For another version, and a card that no model has.
    """
    if (version := mapping["format_version"]) != FORMAT_VERSION:
        problem = f"format_version is {version!r}; this version of cortext reads {FORMAT_VERSION}"
        raise RunError(problem, where=path, fix="train again, or install the version that wrote it")
    try:
        card = from_mapping(ModelCard, mapping, where=path)
    except CortextError as error:
        raise RunError(error.what, where=path, fix=error.fix) from None
    if not card.sessions:
        raise RunError("it names no session", where=path)
    return card


def check_unchanged(path: Path, written: str | None) -> None:
    """Raise RunError if a `model.json` says something else than when its weights were written.

    Other days, smoothing or tokens often have the same shapes: the model would load, and give
    wrong text.

    Args:
        path: The `model.json`.
        written: Its content then, as the weights hold it; None if they hold none.
    """
    try:
        if written is None:
            raise ValueError("there is none")
        changed = first_difference(parse_json_object(written), read_json(path))
    except ValueError as error:
        problem = f"the content that its weights were written with cannot be read: {error}"
        raise RunError(problem, where=path, fix="copy the weights again") from None
    if changed is None:
        return
    key, before, now = changed
    if isinstance(before, list) and isinstance(now, list):
        pairs = enumerate(zip_longest(before, now))
        number, (before, now) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        key = f"{key}[{number}]"
    raise RunError(
        f"model.json was changed after its weights were written: {key} was {before!r:.60} and is"
        f" {now!r:.60}",
        where=path,
        fix="undo the change, or copy both files again",
    )
