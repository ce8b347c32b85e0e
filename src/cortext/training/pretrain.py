"""Pretraining without labels: predict hidden channels, and all channels a little later.

A part of each trial's channels is hidden, and the network says for each frame which channels are
active: the hidden ones now, and all of them in the next bins. In a replication of BIT with ten
hours of a monkey's recordings (sergiolsantamaria2/brain2text-ssl-nhp) this form lowered the phoneme
errors of a decoder that was then trained with labels, and masked reconstruction did not.

B trials, T bins, C features, P frames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from cortext.config import check_fields
from cortext.data.packed import PackedDataset, PackedSplit
from cortext.errors import ConfigError
from cortext.memory import to_device
from cortext.models import AcousticModel, Output, save_model
from cortext.models.acoustic import look_ahead_frames
from cortext.models.card import PRETRAIN, patch_shape
from cortext.settings import Setting
from cortext.training.backend import Backend
from cortext.training.batches import Batches, TrainBatch
from cortext.training.config import register_task
from cortext.training.setup import new_model
from cortext.training.task import Task
from cortext.training.validate import Forward, LossValidator, Validates

OVERRIDES = (
    f"task={{kind: {PRETRAIN}}}",
    "loss=null",
    "best_metric=null",
    "save_val_logits=false",
    "dataset.data_transforms.random_cut=0",
)
"""Changes that turn the configuration of a training with labels into one of this task."""


@dataclass
class PretrainConfig:
    """Section `task` for `kind: pretrain`."""

    kind: Literal["pretrain"] = "pretrain"
    """Name of the task."""
    hidden_share: Annotated[float, Setting(above=0, below=1)] = 0.3
    """Share of a trial's channels that are hidden from the network."""

    def __post_init__(self) -> None:
        check_fields(self, "task.")


class PretrainNetwork(nn.Module):
    """An encoder with a linear map to the activity of all channels, now and next.

    Args:
        encoder: A registered model that returns its hidden units.
        n_features: Features of a bin, C.
    """

    def __init__(self, encoder: Any, n_features: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.config = encoder.config
        self.pads_last_patch = getattr(encoder, "pads_last_patch", False)
        self.activity = nn.Linear(encoder.n_hidden, 2 * n_features)

    def n_patches(self, n_bins: Any) -> Any:
        """Return the number of patches of so many bins (an int, array or tensor)."""
        return self.encoder.n_patches(n_bins)

    def forward(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        state: Any = None,
        *,
        n_patches_B: torch.Tensor | None = None,
    ) -> Output:
        """Return logits [B, P, 2 C] that channels are active, now and next, and the state."""
        hidden_BPD, state = self.encoder.hidden(x_BTC, day_B, state, n_patches_B=n_patches_B)
        return Output(self.activity(hidden_BPD), state)


class PretrainLoss:
    """Binary cross-entropy of the hidden channels' activity and of all channels' next activity.

    Args:
        share: Share of the channels that are hidden.
        split: The trials; activity is that of their features before smoothing and noise.
        patch: Bins of a patch, and from one patch to the next.
        look_ahead: Bins after a patch that smoothing has mixed into it.
    """

    Config: ClassVar[type] = PretrainConfig

    def __init__(
        self, share: float, split: PackedSplit, patch: tuple[int, int], look_ahead: int
    ) -> None:
        self.share = share
        self.split = split
        self.patch = patch
        self.look_ahead = look_ahead

    def __call__(self, network: Any, batch: TrainBatch, fraction: float) -> dict[str, torch.Tensor]:
        """Return `loss` and its parts `hidden` and `next`, in nats a channel; see `Loss`."""
        draws_BC = torch.rand(batch.x_BTC.shape[::2], device=batch.x_BTC.device)
        return self.of(network, batch, draws_BC < self.share)

    def of(
        self, network: Callable[..., Output], batch: TrainBatch, hidden_BC: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Return the losses where these channels, bool [B, C], are hidden."""
        seen_BTC = batch.x_BTC.masked_fill(hidden_BC[:, None], 0.0)
        output = network(seen_BTC, batch.day_B, n_patches_B=batch.n_patches_B)
        now, later = output.logits.float().chunk(2, -1)
        active_2BPC, inside_2BP = self._targets(batch, now.shape[1])
        inside_2BP1 = inside_2BP[..., None]
        parts = {
            "hidden": _cross_entropy(now, active_2BPC[0], inside_2BP1[0] & hidden_BC[:, None]),
            "next": _cross_entropy(later, active_2BPC[1], inside_2BP1[1].expand_as(later)),
        }
        whole_B = parts["hidden"] + parts["next"]
        return {"loss": whole_B} | {name: part_B.detach() for name, part_B in parts.items()}

    def _targets(self, batch: TrainBatch, n_frames: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return channels active now and next, bool [2, B, P, C], and where known [2, B, P].

        A frame's own bins are the newest of its patch. The next ones are the first that smoothing
        has not mixed into the patch, so that they must be predicted.
        """
        size, stride = self.patch
        end_P = size + stride * np.arange(n_frames)
        begins_2P = np.stack((np.maximum(end_P - stride, 0), end_P + self.look_ahead))
        active = np.zeros((2, len(batch), n_frames, batch.x_BTC.shape[2]), dtype=bool)
        inside = np.zeros((2, len(batch), n_frames), dtype=bool)
        for row, (i, n) in enumerate(zip(batch.indices, batch.n_patches_B.tolist(), strict=True)):
            features_TC = self.split.features(int(i))
            ends_2P = np.stack((end_P, begins_2P[1] + stride))
            active[:, row] = activity(features_TC, begins_2P, ends_2P)
            inside[:, row] = (begins_2P < len(features_TC)) & (np.arange(n_frames) < n)
        device = batch.x_BTC.device
        found = (to_device(torch.from_numpy(array), device) for array in (active, inside))
        return next(found), next(found)


def activity(features_TC: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return which channels are active in stretches of bins, bool [..., C].

    A channel is active if the sum of its bins is above 0: a spike if the features are counts, more
    than the mean if they are z-scores.

    Args:
        features_TC: Float [T, C].
        begins: int [...], first bin of each stretch.
        ends: int [...], the bin after its last; bins after the trial's end count as nothing.
    """
    n_bins, n_features = features_TC.shape
    sums = np.zeros((n_bins + 1, n_features))
    np.cumsum(features_TC, axis=0, dtype=np.float64, out=sums[1:])
    found: np.ndarray = sums[np.minimum(ends, n_bins)] - sums[np.minimum(begins, n_bins)] > 0
    return found


def _cross_entropy(
    logits_BPC: torch.Tensor, active_BPC: torch.Tensor, counted_BPC: torch.Tensor
) -> torch.Tensor:
    """Return the mean cross-entropy of each trial over the counted cells, float32 [B]."""
    every = F.binary_cross_entropy_with_logits(logits_BPC, active_BPC.float(), reduction="none")
    counted = counted_BPC.float()
    return (every * counted).sum((1, 2)) / counted.sum((1, 2)).clamp(min=1)


class PretrainValidator(LossValidator):
    """A validator that hides the same channels of a trial each time."""

    loss: PretrainLoss

    def losses(self, forward: Forward, batch: TrainBatch) -> dict[str, torch.Tensor]:
        """Return the losses of a batch by name; see `LossValidator`."""

        def network(seen_BTC: torch.Tensor, *_: Any, **__: Any) -> Output:
            return forward(replace(batch, x_BTC=seen_BTC))

        n_features = batch.x_BTC.shape[2]
        generators = [torch.Generator().manual_seed(i) for i in batch.indices.tolist()]
        draws_BC = torch.stack([torch.rand(n_features, generator=each) for each in generators])
        hidden_BC = to_device(draws_BC < self.loss.share, batch.x_BTC.device)
        return self.loss.of(network, batch, hidden_BC)


@register_task(PRETRAIN)
class PretrainTask(Task):
    """Pretraining of a causal model without labels; see this module.

    Its run holds the encoder, from which a training with labels starts (`init_from`). The read-out
    of tokens is there, too, with the weights that it began with.
    """

    Config: ClassVar[type] = PretrainConfig
    loss_name: ClassVar[str] = "binary cross-entropy"
    all_used: bool = False  # the read-out of tokens has no gradient

    def check(self) -> None:
        """See `Task`."""
        super().check()
        if self.config.dataset.data_transforms.random_cut:
            what = "dataset.data_transforms.random_cut moves features away from their targets"
            raise ConfigError(what, fix="set it to 0")
        if self.device_spec.backend_name != "torch":
            what = f"pretraining does not run with {self.device_spec.backend_name}"
            raise ConfigError(what, fix="use --device cpu or cuda, and --backend torch")

    def new_model(
        self, data: PackedDataset, sessions: tuple[str, ...], init_from: str | Path | None
    ) -> AcousticModel:
        """See `Task`."""
        encoder = new_model(self.config, data, sessions, init_from)
        kind = self.config.model.kind
        if not hasattr(encoder.network, "hidden"):
            what = f"model {kind!r} gives out no hidden units"
            raise ConfigError(what, fix="use gru or transformer, or add hidden and n_hidden to it")
        if look_ahead_frames(encoder.network) != 0:
            what = f"this {kind} sees later frames, which it has to predict"
            raise ConfigError(what, fix="set model.attention to causal")
        return _like(encoder, PretrainNetwork(encoder.network, encoder.n_used_features))

    def loss(self, model: AcousticModel, split: PackedSplit) -> PretrainLoss:
        """See `Task`."""
        config = model.network.config
        patch = patch_shape(config.patch_size, config.patch_stride)
        share = self.config.task.hidden_share
        return PretrainLoss(share, split, patch, model.smoothing.look_ahead_bins)

    def validator(self, model: AcousticModel, batches: Batches, backend: Backend) -> Validates:
        """See `Task`."""
        loss = self.loss(model, batches.split)
        return PretrainValidator(batches, loss, self.config.dataset.batch_size)

    def save(self, model: AcousticModel, folder: Path) -> str:
        """See `Task`: write the encoder alone."""
        return save_model(_like(model, model.network.encoder), folder)


def _like(model: AcousticModel, network: nn.Module) -> AcousticModel:
    """Return a model of this task with another network."""
    return AcousticModel(
        network,
        sessions=model.sessions,
        n_features=model.n_features,
        conventions=model.conventions,
        smoothing=model.smoothing,
        feature_subset=model.feature_subset,
        task=PRETRAIN,
    )
