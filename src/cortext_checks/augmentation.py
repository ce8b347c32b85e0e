"""Checks of an augmentation: shape, random numbers, padding, and that its input stays.

B trials, T bins, C features.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cortext.errors import ConfigError
from cortext.features import build_augmentations
from cortext.features.augment import AUGMENTATIONS
from cortext.plugins import place
from cortext_checks.made_up import seed_generators, separate_random_numbers
from cortext_checks.report import CheckResult, NotChecked, Report, examine, methods

AUGMENTATION_CHECKS = ("shape", "input", "random numbers", "padding", "GPU")
N_FEATURES = 8
N_BINS = (50, 37, 21)
"""Bins of the made-up trials."""
TOLERANCE = 1e-6
"""Largest difference of features that should be equal."""


def check_augmentation(config: Any, report: Report | None = None) -> list[CheckResult]:
    """Check a registered augmentation on made-up data.

    Args:
        config: Dataclass of its settings.
        report: Called with each result when it is there.
    """
    cls = AUGMENTATIONS[config.kind]
    checks = methods(AugmentationChecks(config, N_FEATURES), *AUGMENTATION_CHECKS)
    with separate_random_numbers():
        return examine(f"augmentation {config.kind}", checks, [cls], report=report)


class AugmentationChecks:
    """Checks of an augmentation on the CPU, and on a GPU where there is one.

    Args:
        config: Dataclass of its settings.
        n_features: Features of a bin, C.
    """

    def __init__(self, config: Any, n_features: int) -> None:
        self.config = config
        self.where = place(AUGMENTATIONS[config.kind])
        rng = np.random.default_rng(0)
        shape = (len(N_BINS), max(N_BINS) + 3, n_features)
        self.n_bins_B = torch.tensor(N_BINS)
        inside_BT = torch.arange(shape[1]) < self.n_bins_B[:, None]
        self.inside_BT1 = inside_BT[..., None]
        self.x_BTC = torch.from_numpy(rng.normal(size=shape).astype(np.float32)) * self.inside_BT1

    def shape(self) -> str:
        """Check shape, type and values of the result."""
        # A copy: an augmentation that silences features in place changes nothing the second time.
        found = self._apply(self.x_BTC.clone(), 0, self.n_bins_B.clone())
        if not isinstance(found, torch.Tensor) or found.shape != self.x_BTC.shape:
            shape = list(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
            what = f"a batch of shape {list(self.x_BTC.shape)} becomes {shape}"
            raise ConfigError(what, where=self.where, fix="return a tensor of the same shape")
        if found.dtype != torch.float32:
            kind = str(found.dtype).removeprefix("torch.")
            raise ConfigError(f"float32 becomes {kind}", where=self.where, fix="return float32")
        if not bool(found.isfinite().all()):
            raise ConfigError("the result is not finite", where=self.where)
        change = float((found - self.x_BTC).abs().max())
        return f"float32 {list(found.shape)}; values change by up to {change:.2g}"

    def input(self) -> str:
        """Check that nothing that it is given changes."""
        x_BTC, n_bins_B = self.x_BTC.clone(), self.n_bins_B.clone()
        self._apply(x_BTC, 0, n_bins_B)
        if not torch.equal(x_BTC, self.x_BTC) or not torch.equal(n_bins_B, self.n_bins_B):
            is_batch = torch.equal(n_bins_B, self.n_bins_B)
            what = f"the {'batch' if is_batch else 'tensor of lengths'} that it is given changes"
            fix = f"work on a copy: {'x_BTC' if is_batch else 'n_bins_B'}.clone()"
            raise ConfigError(what, where=self.where, fix=fix)
        return "stays as it was"

    def random_numbers(self) -> str:
        """Check that all chance comes from the given generator."""
        results = []
        (augmentation,) = build_augmentations([self.config])
        for seed in (1, 2):
            seed_generators(seed, seed)
            before = torch.get_rng_state()
            results.append(self._apply(self.x_BTC.clone(), 0))
            if not torch.equal(torch.get_rng_state(), before):
                what = "it draws from torch's global generator"
                raise ConfigError(what, where=self.where, fix="give generator=generator")
        if not torch.equal(*results):
            what = "the same generator gives another result"
            raise ConfigError(what, where=self.where, fix="draw all from the given generator")
        for _ in range(2):
            again = augmentation(
                self.x_BTC.clone(), self.n_bins_B, torch.Generator().manual_seed(0)
            )
            if not torch.equal(again, results[0]):
                what = "a later call with the same generator gives another result"
                raise ConfigError(what, where=self.where, fix="keep nothing from call to call")
        same = torch.equal(results[0], self._apply(self.x_BTC, 1))
        chance = "nothing is drawn" if same else "another seed, another result"
        return f"the same seed gives the same result; {chance}"

    def padding(self) -> str:
        """Check that the bins of a trial do not depend on what the padding holds."""
        plain = self._apply(self.x_BTC, 0)
        filled = self._apply(torch.where(self.inside_BT1, self.x_BTC, 50.0), 0)
        change = float(((filled - plain) * self.inside_BT1).abs().max())
        if change > TOLERANCE * max(1.0, float(plain.abs().max())):
            what = f"what the padding holds changes the bins of a trial by up to {change:.2g}"
            raise ConfigError(what, where=self.where, fix="read no bins after n_bins_B")
        silent = not bool((plain * ~self.inside_BT1).any())
        return "does not matter; zeros stay zeros" if silent else "does not matter; it is written"

    def gpu(self) -> str:
        """Check the device of the result."""
        if not torch.cuda.is_available():
            raise NotChecked("there is no GPU here")
        found = self._apply(self.x_BTC.cuda(), 0)
        if found.device.type != "cuda":
            what = "a batch on the GPU becomes one on the CPU"
            raise ConfigError(what, where=self.where, fix="give device=x_BTC.device")
        return "a batch on the GPU stays there"

    def _apply(self, x_BTC: torch.Tensor, seed: int, n_bins_B: torch.Tensor | None = None) -> Any:
        generator = torch.Generator(x_BTC.device).manual_seed(seed)
        (augmentation,) = build_augmentations([self.config])
        return augmentation(x_BTC, self.n_bins_B if n_bins_B is None else n_bins_B, generator)
