"""Simulated days on which recordings have changed, to see a model make the errors of later days.

Shapes: T bins, C features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SWAPPED = 0.6
"""Share of the features that trade places, at full strength: electrodes pick up other neurons."""
GAIN = 0.5
"""Standard deviation of the log of a feature's gain."""
OFFSET = 0.5
"""Standard deviation of a feature's offset, in its own standard deviations."""
SILENT = 0.3
"""Share of the features that are lost."""
NOISE = 0.6
"""Standard deviation of added noise, in a feature's own standard deviations."""


@dataclass(frozen=True)
class DriftedDay:
    """Changes of the features on a simulated day.

    At full strength a model that was trained on the demo gets about 6 % of the words right.

    Attributes:
        source_C: int64 [C], the feature that each one is now a copy of.
        gain_C: Float [C].
        offset_C: Float [C], in standard deviations.
        alive_C: Bool [C].
        noise: Standard deviation of the noise, in those of each feature.
        mean_C: Float [C], mean of each feature on the recorded days.
        scale_C: Float [C], its standard deviation there.
    """

    source_C: np.ndarray
    gain_C: np.ndarray
    offset_C: np.ndarray
    alive_C: np.ndarray
    noise: float
    mean_C: np.ndarray
    scale_C: np.ndarray

    @classmethod
    def draw(
        cls,
        strength: float,
        mean_C: np.ndarray,
        scale_C: np.ndarray,
        generator: np.random.Generator,
    ) -> DriftedDay:
        """Return a day that has drifted.

        Args:
            strength: Factor on all changes, 0 (none) to 1.
            mean_C: Float [C], mean of each feature.
            scale_C: Float [C], standard deviation of each feature.
            generator: Source of everything random.
        """
        n_features = len(mean_C)
        source_C = np.arange(n_features)
        swapped = np.flatnonzero(generator.random(n_features) < SWAPPED * strength)
        source_C[swapped] = generator.permutation(swapped)
        return cls(
            source_C=source_C,
            gain_C=np.exp(GAIN * strength * generator.standard_normal(n_features)),
            offset_C=OFFSET * strength * generator.standard_normal(n_features),
            alive_C=generator.random(n_features) >= SILENT * strength,
            noise=NOISE * strength,
            mean_C=mean_C,
            scale_C=scale_C,
        )

    def changed(self, x_TC: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return features as they would be on this day.

        Args:
            x_TC: Float [T, C], features of a recorded day.
            generator: Source of the noise.

        Returns:
            float32 [T, C]; a lost feature keeps its mean.
        """
        scale_C = np.where(self.scale_C > 0, self.scale_C, 1.0)
        z_TC = ((x_TC - self.mean_C) / scale_C)[:, self.source_C] * self.gain_C + self.offset_C
        z_TC += self.noise * generator.standard_normal(z_TC.shape)
        changed_TC: np.ndarray = self.mean_C + self.scale_C * z_TC * self.alive_C
        return changed_TC.astype(np.float32)


def statistics(trials: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and standard deviation of each feature, float64 [C], over the bins of trials.

    Args:
        trials: Float [T, C] of each trial.
    """
    all_TC = np.concatenate(trials).astype(np.float64)
    return all_TC.mean(axis=0), all_TC.std(axis=0)
