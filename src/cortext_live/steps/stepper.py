"""The interface of models that take one patch at a time, and checks that they share.

S bins in a patch, K of them, C features, V tokens.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from cortext.data.conventions import Conventions
from cortext.errors import DataError, RunError
from cortext.models.acoustic import NOT_FINITE
from cortext.models.card import Smoothing
from cortext.text.inventory import Inventory
from cortext.text.language import Language


class Stepper(Protocol):
    """A model of one recording day with its recurrent state.

    Attributes:
        session: Day whose layer is used.
        sessions: All days that the model knows, the latest last.
        n_features: Features per bin of a recording; the stepper selects those that the model uses.
        patch_size: Bins of a patch.
        patch_stride: Bins from one patch to the next.
        pads_last_patch: True if the bins that are left at the end of a trial, too few for a patch,
            make one frame more, filled with zeros. A stepper without the attribute drops them.
        smoothing: Smoothing to apply to the bins before a step.
        conventions: Tokens, language and length of a bin of the recordings that the model was
            trained on.
        inventory: Tokens, in the order of the logits.
        language: Language of the sentences.
        bin_ms: Length of a bin of features in milliseconds.
        frame_ms: Time from one step to the next in milliseconds.
    """

    session: str
    sessions: tuple[str, ...]
    n_features: int
    patch_size: int
    patch_stride: int
    pads_last_patch: bool
    smoothing: Smoothing
    conventions: Conventions

    @property
    def inventory(self) -> Inventory:
        """See the attributes."""
        ...

    @property
    def language(self) -> Language:
        """See the attributes."""
        ...

    @property
    def bin_ms(self) -> float:
        """See the attributes."""
        ...

    @property
    def frame_ms(self) -> float:
        """See the attributes."""
        ...

    def use(self, session: str) -> None:
        """Use another day's layer from the next step on; `latest` is the last day.

        Raises RunError for an unknown day.
        """
        ...

    def start(self) -> None:
        """Begin an utterance: the next step starts from the learnt first state."""
        ...

    def prepare(self, bins_KC: np.ndarray) -> None:
        """Compute as much of the next step as its first bins allow, before the others arrive.

        The call is optional and changes no result, not even if the step then has other bins.

        Args:
            bins_KC: Float32 [K, C], the first K bins of the next patch, smoothed.
        """
        ...

    def step(self, bins_SC: np.ndarray) -> np.ndarray:
        """Compute the logits float32 [V] of the next patch.

        Args:
            bins_SC: Float32 [S, C], smoothed; the first is `patch_stride` bins after the first bin
                of the patch before.

        Raises:
            DataError: For another shape.
        """
        ...


def require_alike(stepper: Stepper, other: Stepper) -> None:
    """Raise RunError unless a stepper can take the place of another, between utterances.

    Args:
        stepper: The new one.
        other: The one before.
    """
    for name, part in (
        ("n_features", "features in a bin"),
        ("patch_size", "bins of a patch"),
        ("patch_stride", "bins between patches"),
        ("pads_last_patch", "filling of the last patch"),
        ("smoothing", "smoothing"),
        ("conventions", "tokens, language, or length of a bin"),
    ):
        # Steppers of a user's own may lack the newer attributes.
        if getattr(stepper, name, None) != getattr(other, name, None):
            raise RunError(
                f"{part} of the model and of the one before differ",
                fix="start again with this model",
            )


def patches_of(stepper: Stepper, x_TC: np.ndarray) -> list[np.ndarray]:
    """Return the patches [S, C] of a whole trial, as a stepper takes them.

    Args:
        stepper: The stepper.
        x_TC: Float32 [T, C], smoothed.
    """
    size = stepper.patch_size
    if stepper.pads_last_patch:
        x_TC = filled(x_TC, size)
    firsts = range(0, len(x_TC) - size + 1, stepper.patch_stride)
    return [x_TC[first : first + size] for first in firsts]


def filled(x_TC: np.ndarray, size: int) -> np.ndarray:
    """Return bins [T, C] and the zeros that make them whole patches of `size` bins."""
    return np.pad(x_TC, ((0, -len(x_TC) % size), (0, 0)))


def check_first_step(logits_V: np.ndarray) -> np.ndarray:
    """Return the logits of a first patch of ones, after a check.

    Raises RunError if they are not finite: those of a recording would not be either.
    """
    if not np.isfinite(logits_V).all():
        raise RunError(
            f"the model {NOT_FINITE}, whatever it reads",
            fix="take another model, or export the run again",
        )
    return logits_V


def check_patch(stepper: Stepper, bins_SC: np.ndarray) -> None:
    """Raise DataError for bins of another shape than a patch of the stepper's model."""
    needed = (stepper.patch_size, stepper.n_features)
    if bins_SC.shape != needed:
        raise DataError(f"a patch of shape {list(bins_SC.shape)}; this model needs {list(needed)}")
