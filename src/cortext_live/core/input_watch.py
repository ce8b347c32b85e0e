"""Watch over live features: values that are no numbers, features that stand still, other ranges.

One bad channel must not silence a person: it is left out, and reported once.

T bins, C features.
"""

from __future__ import annotations

import numpy as np

from cortext.data.conventions import Conventions
from cortext.data.feature_survey import Z_SCORES, difference, range_of
from cortext.data.outliers import FLAT_BINS, FlatFeatures, Outliers, features_named
from cortext.data.scaling import LEAST_BINS, trial_moments
from cortext.errors import DataError

LARGEST_FEATURE = 1e9
"""Values beyond this are no recording, and would overflow in the model."""
USUAL = 3.0
"""Size up to which a z-score that stands still does no harm: that of a silent unit, say."""
FOR_GOOD = "to leave out for good, train with dataset.feature_subset, or send 0"


class InputWatch:
    """Makes live bins usable, and collects notes on them, each reported once.

    Args:
        n_features: Features of a bin, C.
        conventions: Those of the model.
        normalises: Whether rolling z-scores are made of the features.
    """

    def __init__(self, n_features: int, conventions: Conventions, normalises: bool) -> None:
        self._n_features = n_features
        is_raw = conventions.features == "raw"
        self._bin_ms = conventions.bin_ms
        self._normalises = normalises
        # Of raw features for a model of z-scores nothing is known.
        self._expected = (
            conventions.feature_range if normalises and is_raw else None if normalises else Z_SCORES
        )
        self._flat = FlatFeatures(n_features)
        self._last_C = np.zeros(n_features, dtype=np.float32)
        self._named_C = np.zeros(n_features, dtype=bool)
        self._new_C = np.zeros(n_features, dtype=bool)
        self._waited = 0
        self._first: list[np.ndarray] | None = []
        self._n_changes = 0
        self._outlying: set[int] = set()
        self._notes: list[str] = []

    def usable(self, bins_TC: np.ndarray) -> np.ndarray:
        """Return bins without NaN, infinity and values beyond `LARGEST_FEATURE`.

        Each such value becomes 0 where features come as z-scores; a raw one becomes the feature's
        last usable one, 0 before any, so that it stands still. Where more than half of a bin is
        unusable, it is no bin.

        Raises:
            DataError: See `check_bins`. Nothing has changed.
        """
        check_bins(bins_TC, self._n_features)
        if not len(bins_TC):
            return bins_TC
        bad_TC = ~(np.abs(bins_TC) <= LARGEST_FEATURE)
        if bad_TC.any():
            bins_TC = bins_TC.copy()
            last_C = self._last_C
            for bin_C, bad_C in zip(bins_TC, bad_TC, strict=True):
                bin_C[bad_C] = last_C[bad_C] if self._normalises else 0
                last_C = bin_C
            new_C = bad_TC.any(axis=0) & ~self._named_C
            if new_C.any():
                self._named_C |= new_C
                named = features_named(np.flatnonzero(new_C).tolist())
                self._notes.append(
                    f"{named}: NaN, infinity or beyond {LARGEST_FEATURE:g}; left out; {FOR_GOOD}"
                )
        self._last_C = bins_TC[-1].copy()
        return bins_TC

    def without_flat(self, x_TC: np.ndarray) -> np.ndarray:
        """Return z-scores that came as such with 0 for features that stand still far out."""
        flat_TC = self._flat.push(x_TC, np.zeros(self._n_features), np.ones(self._n_features))
        if flat_TC is None:
            self.look(x_TC, self._flat.flat_C)
            return x_TC
        flat_TC &= np.abs(x_TC) > USUAL
        self.look(x_TC, flat_TC[-1])
        return np.where(flat_TC, np.float32(0), x_TC)

    def look(self, x_TC: np.ndarray, flat_C: np.ndarray) -> None:
        """Look at bins that are decoded, and at which features stand still after them."""
        self._new_C |= flat_C & ~self._named_C
        if self._new_C.any():
            self._waited += len(x_TC)
            if self._waited >= FLAT_BINS:  # those that died together have one line
                self._name_flat()
        if self._first is not None:
            self._look_at_range(x_TC)

    def end_utterance(self, outliers: Outliers, n_changes: int) -> None:
        """Note outliers of an utterance, and whether the statistics have begun anew.

        Features with far values are named once: a loose contact is one fault, not one a sentence.
        """
        new = outliers.n_values.keys() - self._outlying
        self._outlying |= new
        if outliers.n_bins or new:
            after_s = (outliers.first or 0) * self._bin_ms / 1000
            self._notes.append(
                f"{outliers}, the first after {after_s:.1f} s: they count for less in the running"
                " statistics"
            )
        if n_changes > self._n_changes:
            self._n_changes = n_changes
            self._notes.append(
                "many features have another level: the running statistics begin anew"
            )

    def take_notes(self) -> list[str]:
        """Return the notes since the last call, a line each."""
        notes, self._notes = self._notes, []
        return notes

    def _name_flat(self) -> None:
        named = features_named(np.flatnonzero(self._new_C).tolist())
        self._notes.append(f"{named}: the same value for a second; left out so long; {FOR_GOOD}")
        self._named_C |= self._new_C
        self._new_C = np.zeros_like(self._new_C)
        self._waited = 0

    def _look_at_range(self, x_TC: np.ndarray) -> None:
        """Compare the first seconds with what the model was trained on, once."""
        assert self._first is not None
        spoken_TC = x_TC[x_TC.any(axis=1)]  # bins of zeros come before a recording
        if len(spoken_TC):
            self._first.append(np.array(spoken_TC))
        if sum(map(len, self._first)) < LEAST_BINS:
            return
        first_TC = np.concatenate(self._first)
        self._first = None
        range_seen = range_of(trial_moments(first_TC)[0], float(first_TC.min()))
        if self._expected is not None and (doubt := difference(range_seen, self._expected)):
            self._notes.append(f"features unlike those of the training: {doubt}; check their unit")
        elif self._expected is None and self._normalises and range_seen.looks_z_scored:
            self._notes.append(f"raw features look like z-scores ({range_seen}); check normalise")


def check_bins(bins_TC: np.ndarray, n_features: int) -> None:
    """Raise DataError unless these are bins, float32 [T, C], most of whose values are usable."""
    if not isinstance(bins_TC, np.ndarray):
        raise DataError(f"frames are a {type(bins_TC).__name__}; a NumPy array is needed")
    if bins_TC.dtype != np.float32:
        raise DataError(f"frames have dtype {bins_TC.dtype}; float32 is needed", fix="convert them")
    if bins_TC.ndim != 2 or bins_TC.shape[1] != n_features:
        raise DataError(
            f"frames have shape {list(bins_TC.shape)}; [bins, {n_features}] is needed for this"
            " model"
        )
    if len(bins_TC) and not np.abs(bins_TC).max() <= LARGEST_FEATURE:
        bad_T = (~(np.abs(bins_TC) <= LARGEST_FEATURE)).sum(axis=1) > n_features / 2
        if bad_T.any():
            where = f"first in bin {int(bad_T.argmax())} of {len(bins_TC)}"
            raise DataError(
                f"frames hold NaN, infinity or values beyond {LARGEST_FEATURE:g}, {where}"
            )
