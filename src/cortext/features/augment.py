"""Augmentation of training batches, as the public release of the T15 baseline does it, and by
others by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch

from cortext.errors import ConfigError
from cortext.features.smooth import check_kernel, smooth
from cortext.registry import Registry


class Augmenter(Protocol):
    """An augmentation beyond the release's, which is built as `cls(config)` with its dataclass
    `Config`.
    """

    Config: ClassVar[type]

    def __call__(
        self, x_BTC: torch.Tensor, n_bins_B: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """The augmented batch, of the same shape and dtype; the input is not changed.

        Args:
            x_BTC: [B, T, C], on the generator's device, which alone decides what is drawn.
            n_bins_B: int64 [B] on any device, bins in each trial; what lies beyond them is padding.
        """
        ...


_MOST = 1e30  # what is drawn with it must be a float32

AUGMENTATIONS = Registry("augmentation")
register_augmentation = AUGMENTATIONS.register


def augmentation_configs(mappings: Iterable[Any]) -> list[Any]:
    """The config dataclasses of `dataset.augmentations`: mappings with `kind`, or dataclasses.

    Raises ConfigError.
    """
    return [
        AUGMENTATIONS.config(mapping, f"dataset.augmentations[{i}]")
        for i, mapping in enumerate(mappings)
    ]


def build_augmentations(configs: Iterable[Any]) -> list[Augmenter]:
    """The augmentations of their configurations, in that order."""
    return [AUGMENTATIONS[config.kind](config) for config in configs]


@dataclass
class Augmentation:
    """Section `dataset.data_transforms`: what is done to a batch before the model sees it."""

    white_noise_std: float = 1.0
    """Standard deviation of the noise added to every bin of every feature."""
    constant_offset_std: float = 0.2
    """Standard deviation of the offset added to a feature throughout a trial."""
    random_walk_std: float = 0.0
    """Standard deviation of the steps of a random walk added to the features."""
    random_walk_axis: int = -1
    """Axis of [B, T, C] along which the walk runs.

    The release walks along the features (-1), time is 1.
    """
    static_gain_std: float = 0.0
    """Standard deviation of the noise on the identity matrix that mixes a trial's features."""
    random_cut: int = 3
    """0 to `random_cut - 1` bins are cut from the start, the same number for the whole batch.

    0 cuts none.
    """
    smooth_data: bool = True
    """Whether features are smoothed (in training, validation and evaluation)."""
    smooth_kernel_std: float = 2.0
    """Standard deviation of the smoothing kernel in bins."""
    smooth_kernel_size: int = 100
    """Points on which the kernel is computed, before its tails are cut."""

    def __post_init__(self) -> None:
        for name in (
            "white_noise_std",
            "constant_offset_std",
            "random_walk_std",
            "static_gain_std",
            "random_cut",
        ):
            if not 0 <= getattr(self, name) <= _MOST:
                raise ConfigError(
                    f"data_transforms.{name} is {getattr(self, name)}; it must be from 0 to"
                    f" {_MOST:g}"
                )
        if self.random_walk_axis not in (-3, -2, -1, 0, 1, 2):
            raise ConfigError(
                f"data_transforms.random_walk_axis is {self.random_walk_axis}; use -1 (features) or"
                " 1 (time)"
            )
        try:
            check_kernel(self.smooth_kernel_std, self.smooth_kernel_size)
        except ValueError as error:
            raise ConfigError(f"data_transforms: {error}") from None


def augment(
    x_BTC: torch.Tensor, n_bins_B: torch.Tensor, settings: Augmentation, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise, offset, walk, gain and cut, in the release's order; smoothing comes after (`smooth`).

    Returns float32 [B, T - cut, C] and int64 [B]. Padding gets noise too, as in the release. The
    same state of the generator gives the same result.

    Args:
        x_BTC: [B, T, C], any float dtype, on the generator's device; not changed.
        n_bins_B: int64 [B], bins in each trial; what the cut takes is subtracted.
    """
    x_BTC = x_BTC.to(torch.float32, copy=True)
    n_trials, _, n_features = x_BTC.shape

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=x_BTC.device)

    if settings.static_gain_std > 0:
        gain_BCC = torch.eye(n_features, device=x_BTC.device)
        gain_BCC = gain_BCC + normal(n_trials, n_features, n_features) * settings.static_gain_std
        x_BTC = x_BTC @ gain_BCC
    if settings.white_noise_std > 0:
        x_BTC.add_(normal(*x_BTC.shape), alpha=settings.white_noise_std)
    if settings.constant_offset_std > 0:
        x_BTC.add_(normal(n_trials, 1, n_features), alpha=settings.constant_offset_std)
    if settings.random_walk_std > 0:
        x_BTC += torch.cumsum(
            normal(*x_BTC.shape) * settings.random_walk_std, dim=settings.random_walk_axis
        )
    if settings.random_cut > 0:
        cut = int(
            torch.randint(settings.random_cut, (1,), generator=generator, device=x_BTC.device)
        )
        x_BTC, n_bins_B = x_BTC[:, cut:], n_bins_B - cut
    return x_BTC, n_bins_B


def prepare(
    x_BTC: torch.Tensor,
    n_bins_B: torch.Tensor,
    settings: Augmentation,
    generator: torch.Generator | None = None,
    rows: slice = slice(None),
    extra: Sequence[Augmenter] = (),
) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch as the model takes it in training (with a generator: augmented) and validation
    (without), smoothed.

    Args:
        rows: Trials of the batch that are wanted; they are what they would be in the whole batch.
        extra: Augmentations that follow the release's.
    """
    if generator is not None:
        x_BTC, n_bins_B = augment(x_BTC, n_bins_B, settings, generator)
        for augmentation in extra:
            x_BTC = augmentation(x_BTC, n_bins_B, generator)
    x_BTC, n_bins_B = x_BTC[rows], n_bins_B[rows]
    if settings.smooth_data:
        return smooth(x_BTC, settings.smooth_kernel_std, settings.smooth_kernel_size), n_bins_B
    return x_BTC.float(), n_bins_B
