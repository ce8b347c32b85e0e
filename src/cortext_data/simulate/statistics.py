"""Statistics of a recording: correlation of its features, and spectrum of its noise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cortext.data.trial import BIN_MS

LAGS = tuple(range(1, 11))
BANDS_HZ = ((0, 0.5), (0.5, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, 25))


@dataclass(frozen=True)
class SignalStatistics:
    """Means over the features of one trial, each feature standardised over it.

    Attributes:
        correlation: Mean over pairs of features.
        autocorrelation: At lags of 1 to 10 bins.
        spectrum: Mean power in each of BANDS_HZ over the mean power of all frequencies; 1
            everywhere is white.
    """

    correlation: float
    autocorrelation: tuple[float, ...]
    spectrum: tuple[float, ...]


def signal_statistics(features_TC: np.ndarray, bin_ms: float = BIN_MS) -> SignalStatistics:
    """Return statistics of one trial; constant features are left out.

    Args:
        features_TC: Features [T, C], T at least 100.
        bin_ms: Length of a bin.
    """
    varying = features_TC[:, features_TC.std(axis=0) > 0].astype(np.float64)
    z = (varying - varying.mean(axis=0)) / varying.std(axis=0)
    n_bins, n_features = z.shape
    pairs = np.corrcoef(z.T)[np.triu_indices(n_features, 1)]
    power = (np.abs(np.fft.rfft(z, axis=0)) ** 2).mean(axis=1)[1:]
    frequencies = np.fft.rfftfreq(n_bins, bin_ms / 1000)[1:]
    bands = [
        power[(frequencies > low) & (frequencies <= high)].mean() / power.mean()
        for low, high in BANDS_HZ
    ]
    return SignalStatistics(
        correlation=float(pairs.mean()),
        autocorrelation=tuple(float((z[lag:] * z[:-lag]).mean()) for lag in LAGS),
        spectrum=tuple(float(band) for band in bands),
    )


def mean_statistics(each: list[SignalStatistics]) -> SignalStatistics:
    """Return the mean over trials."""
    return SignalStatistics(
        correlation=float(np.mean([one.correlation for one in each])),
        autocorrelation=tuple(np.mean([one.autocorrelation for one in each], axis=0).tolist()),
        spectrum=tuple(np.mean([one.spectrum for one in each], axis=0).tolist()),
    )
