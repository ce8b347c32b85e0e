"""Augmentation of training batches: the release's own, and a registry for others.

The steps keep the release's order, because each takes the result of the one before: gain, noise,
offset, walk, cut, and smoothing, which also smooths the noise. Registered augmentations come before
smoothing, or after it.

B trials, T bins, C features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol

import numpy as np
import torch

from cortext.arguments import check_list, check_text, check_type
from cortext.config import check_fields
from cortext.errors import ConfigError
from cortext.features.smooth import check_batch, check_kernel, gaussian_kernel, smooth
from cortext.memory import to_device
from cortext.plugins import build
from cortext.registry import Registry
from cortext.settings import Setting


class Augmenter(Protocol):
    """An augmentation beyond the release's, built as `cls(config)` with its dataclass `Config`."""

    Config: ClassVar[type]

    # `after_smoothing: bool` tells whether it is applied to smoothed features; an augmentation
    # without it comes before smoothing.

    def __call__(
        self, x_BTC: torch.Tensor, n_bins_B: torch.Tensor, generator: torch.Generator
    ) -> torch.Tensor:
        """Augment a batch.

        Args:
            x_BTC: Float32 [B, T, C] on the generator's device; it is not changed.
            n_bins_B: int64 [B] on any device, bins of each trial; the others are padding.
            generator: The only source of random numbers.

        Returns:
            The augmented batch, float32 of the same shape.
        """
        ...


MOST_TAPS = 32
"""Most taps of a smoothing that one kernel computes together with the augmentation."""
_NOISE = Setting(minimum=0, maximum=1e30)  # the largest still is a finite float32

AUGMENTATIONS = Registry("augmentation")
register_augmentation = AUGMENTATIONS.register
"""Decorator that registers an augmentation of your own: `@register_augmentation("name")`."""


def augmentation_configs(mappings: Iterable[Any]) -> list[Any]:
    """Make config dataclasses of `dataset.augmentations`: mappings with `kind`, or dataclasses.

    Raises ConfigError.
    """
    return [
        AUGMENTATIONS.config(mapping, f"dataset.augmentations[{i}]")
        for i, mapping in enumerate(check_list(mappings, "augmentations", "a list"))
    ]


def build_augmentations(configs: Iterable[Any]) -> list[Augmenter]:
    """Build the augmentations of config dataclasses, in their order."""
    configs = list(check_list(configs, "configs", "a list of augmentations' configs"))
    for config in configs:
        check_text(getattr(config, "kind", None), "kind of an augmentation")
    return [build(AUGMENTATIONS[config.kind], config) for config in configs]


def follows_smoothing(augmentation: Augmenter) -> bool:
    """Tell whether an augmentation is applied to smoothed features."""
    return bool(getattr(augmentation, "after_smoothing", False))


@dataclass
class AugmentationConfig:
    """Section `dataset.data_transforms`: the release's augmentation, and smoothing."""

    white_noise_std: Annotated[float, _NOISE] = 1.0
    """Standard deviation of the noise added to every bin of every feature."""
    constant_offset_std: Annotated[float, _NOISE] = 0.2
    """Standard deviation of the offset added to a feature throughout a trial."""
    random_walk_std: Annotated[float, _NOISE] = 0.0
    """Standard deviation of the steps of a random walk added to the features."""
    random_walk_axis: int = -1
    """Axis of [B, T, C] along which the walk runs: -1 (features, as in the release) or 1 (time)."""
    static_gain_std: Annotated[float, _NOISE] = 0.0
    """Standard deviation of the noise on the identity matrix that mixes a trial's features."""
    random_cut: Annotated[int, _NOISE] = 3
    """Upper bound of the bins cut from the start, which are 0 to `random_cut - 1`; 0 cuts none.

    The number is the same for the whole batch.
    """
    smooth_data: bool = True
    """Smooth the features (in training, validation and evaluation)."""
    smooth_kernel_std: float = 2.0
    """Standard deviation of the smoothing kernel in bins."""
    smooth_kernel_size: int = 100
    """Points on which the kernel is computed, before its tails are cut."""

    @property
    def longest_cut(self) -> int:
        """Most bins that are cut off a training trial."""
        return max(0, self.random_cut - 1)

    def __post_init__(self) -> None:
        check_fields(self, "data_transforms.")
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
    x_BTC: torch.Tensor,
    n_bins_B: torch.Tensor,
    settings: AugmentationConfig,
    generator: torch.Generator,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add gain, noise, offset and walk to a batch and cut its start; `smooth` comes after.

    Padding gets noise too, as in the release.

    Args:
        x_BTC: Float [B, T, C] on the generator's device; it is not changed.
        n_bins_B: int64 [B], bins of each trial.
        settings: Strength of each augmentation.
        generator: The only source of random numbers.

    Returns:
        Features float32 [B, T - cut, C], and the bins int64 [B] of each trial without the cut.
    """
    check_batch(x_BTC)
    x_BTC = x_BTC.to(torch.float32, copy=True)
    n_trials, _, n_features = x_BTC.shape

    if settings.static_gain_std > 0:
        gain_BCC = torch.eye(n_features, device=x_BTC.device, dtype=torch.float32)
        gain_BCC = (
            gain_BCC
            + _normal((n_trials, n_features, n_features), generator) * settings.static_gain_std
        )
        x_BTC = x_BTC @ gain_BCC
    if settings.white_noise_std > 0:
        x_BTC.add_(_normal(x_BTC.shape, generator), alpha=settings.white_noise_std)
    if settings.constant_offset_std > 0:
        offset_B1C = _normal((n_trials, 1, n_features), generator)
        x_BTC.add_(offset_B1C, alpha=settings.constant_offset_std)
    if settings.random_walk_std > 0:
        x_BTC += torch.cumsum(
            _normal(x_BTC.shape, generator) * settings.random_walk_std,
            dim=settings.random_walk_axis,
        )
    if settings.random_cut > 0:
        cut = _draw(settings.random_cut, generator)
        x_BTC = x_BTC[:, cut:]
        n_bins_B = n_bins_B - cut
    return x_BTC, n_bins_B


def _normal(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Draw standard normal numbers, float32."""
    # Not torch's default dtype, which a program may have set: the result is float32.
    return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float32)


def _draw(below: int, generator: torch.Generator) -> int:
    """Draw a whole number from 0 to `below - 1`."""
    drawn = torch.randint(below, (1,), generator=generator, device=generator.device)
    if generator.device.type != "cuda":
        return int(drawn)
    # Reading a number that the GPU draws would wait for the noise before it. The generator's state
    # (seed and offset) lies on the host and starts another one there; the draw above moves it on.
    return int(np.random.default_rng(generator.get_state().numpy()).integers(below))


def prepare(
    x_BTC: torch.Tensor,
    n_bins_B: torch.Tensor,
    settings: AugmentationConfig,
    generator: torch.Generator | None = None,
    rows: slice = slice(None),
    extra: Sequence[Augmenter] = (),
    *,
    clear_padding: bool = False,
    in_one_kernel: Callable[..., torch.Tensor] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Prepare a batch for the model: augment it (in training, with a generator), and smooth it.

    Args:
        x_BTC: Float [B, T, C]; it is not changed.
        n_bins_B: int64 [B], bins of each trial.
        settings: Augmentation and smoothing.
        generator: Source of random numbers; None augments nothing, as in validation.
        rows: Trials to return. The whole batch is augmented, so that several processes that return
            a part each give the batch of one process.
        extra: Augmentations that follow the release's, before smoothing or after it.
        clear_padding: Zero the bins after each trial. A model that fills a trial's last patch with
            zeros needs it: smoothing spreads the trial's last bins, and noise, over them.
        in_one_kernel: Kernel of `cortext_cuda` that augments and smooths, if `settings` allow.

    Returns:
        Features float32 [b, T, C] and bins int64 [b] of the b trials of `rows`.
    """
    check_batch(x_BTC)
    check_type(n_bins_B, torch.Tensor, "n_bins", "a tensor [trials]")
    check_type(settings, AugmentationConfig, "settings", "an AugmentationConfig")
    later = [augmentation for augmentation in extra if follows_smoothing(augmentation)]
    n_trials = len(x_BTC)
    if generator is not None:
        check_type(generator, torch.Generator, "generator", "a torch.Generator")
    is_simple = len(later) == len(extra) and _is_simple(settings)
    if generator is not None and in_one_kernel and is_simple:
        x_BTC, every_B = _augment_and_smooth(
            in_one_kernel, x_BTC, n_bins_B, settings, generator, rows, clear_padding
        )
    else:
        x_BTC, every_B = _augment_then_smooth(
            x_BTC, n_bins_B, settings, generator, rows, extra, clear_padding
        )
    if generator is not None and later:
        x_BTC = _augment_rows(x_BTC, rows, n_trials, every_B, later, generator)
    return x_BTC, every_B[rows]


def _augment_then_smooth(
    x_BTC: torch.Tensor,
    n_bins_B: torch.Tensor,
    settings: AugmentationConfig,
    generator: torch.Generator | None,
    rows: slice,
    extra: Sequence[Augmenter],
    clear_padding: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Augment a batch and smooth `rows` of it; return these, and the bins of all trials."""
    if generator is not None:
        x_BTC, n_bins_B = augment(x_BTC, n_bins_B, settings, generator)
        for augmentation in extra:
            if not follows_smoothing(augmentation):
                x_BTC = augmentation(x_BTC, n_bins_B, generator)
    x_BTC = x_BTC[rows]
    if settings.smooth_data:
        x_BTC = smooth(x_BTC, settings.smooth_kernel_std, settings.smooth_kernel_size)
    x_BTC = x_BTC.float()
    if clear_padding:
        t_T = torch.arange(x_BTC.shape[1], device=x_BTC.device)
        end_B = to_device(n_bins_B[rows], x_BTC.device)
        x_BTC = x_BTC.masked_fill((t_T >= end_B[:, None])[..., None], 0.0)
    return x_BTC, n_bins_B


def _is_simple(settings: AugmentationConfig) -> bool:
    """Tell whether one kernel can augment and smooth; it is compiled for the number of taps."""
    if settings.static_gain_std > 0 or settings.random_walk_std > 0 or not settings.smooth_data:
        return False
    n_taps = len(gaussian_kernel(settings.smooth_kernel_std, settings.smooth_kernel_size))
    return n_taps <= MOST_TAPS


def _augment_and_smooth(
    in_one_kernel: Callable[..., torch.Tensor],
    x_BTC: torch.Tensor,
    n_bins_B: torch.Tensor,
    settings: AugmentationConfig,
    generator: torch.Generator,
    rows: slice,
    clear_padding: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Do what `_augment_then_smooth` does with the same draws, in one kernel on a GPU."""
    x_BTC = x_BTC.contiguous()
    noise, offset, cut = None, None, 0
    if settings.white_noise_std > 0:
        noise = _normal(x_BTC.shape, generator)[rows]
    if settings.constant_offset_std > 0:
        offset = _normal((len(x_BTC), 1, x_BTC.shape[2]), generator)[rows].contiguous()
    if settings.random_cut > 0:
        cut = _draw(settings.random_cut, generator)
    n_bins_B = n_bins_B - cut
    taps_K = gaussian_kernel(settings.smooth_kernel_std, settings.smooth_kernel_size)
    x_BTC = in_one_kernel(
        x_BTC[rows, cut:],
        to_device(torch.from_numpy(taps_K), x_BTC.device),
        None if noise is None else noise[:, cut:],
        offset,
        (settings.white_noise_std, settings.constant_offset_std),
        to_device(n_bins_B[rows], x_BTC.device) if clear_padding else None,
    )
    return x_BTC, n_bins_B


def _augment_rows(
    x_bTC: torch.Tensor,
    rows: slice,
    n_trials: int,
    n_bins_B: torch.Tensor,
    augmentations: Sequence[Augmenter],
    generator: torch.Generator,
) -> torch.Tensor:
    """Apply augmentations to some rows of a batch, with the draws that the whole batch would get.

    Args:
        x_bTC: Float [b, T, C], the smoothed features of the rows; they are not changed.
        rows: The rows.
        n_trials: Trials of the whole batch, B.
        n_bins_B: int64 [B], bins of each trial of the whole batch.
        augmentations: Augmentations that follow smoothing.
        generator: Source of random numbers.

    Returns:
        Float [b, T, C].
    """
    x_BTC = x_bTC
    if len(x_bTC) < n_trials:
        # Zeros in place of other processes' trials cost less than smoothing them here, too.
        x_BTC = x_bTC.new_zeros(n_trials, *x_bTC.shape[1:])
        x_BTC[rows] = x_bTC
    for augmentation in augmentations:
        x_BTC = augmentation(x_BTC, n_bins_B, generator)
    return x_BTC[rows] if len(x_bTC) < n_trials else x_BTC
