"""The yardstick of training: how the T15 release trains its baseline, restated in plain PyTorch.

Nothing of cortext is imported. Facts from the release's
`model_training/{rnn_trainer,rnn_model,dataset, data_augmentations}.py` (Card et al., NEJM 2024;
github.com/Neuroprosthetics-Lab/nejm-brain-to-text):

- a batch is read by a DataLoader's worker, which opens the session file of each of its days anew
  (`release_loader`);
- augmentation and smoothing run inside autocast, on the device, where a kernel is computed for
  every batch;
- every day has a weight and a bias of its own, stacked per trial; patches are unfolded; the GRU is
  `nn.GRU`;
- autocast is for CUDA, so that a CPU computes in float32; the model goes through `torch.compile`;
- AdamW is fused and has three groups (biases, day layers, the rest) with a LambdaLR each;
- the loss is fetched at every step; validation goes day by day, and edit distances are counted in
  Python.

Settings have the names and the structure of the published YAML. The release draws the trials of
every batch before training; here the caller gives them, so that another trainer can get the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.ndimage import gaussian_filter1d
from torch import nn
from torch.utils.data import DataLoader, Dataset

from release_loader import load_batch

BatchFiles = Mapping[int, tuple[Path, Sequence[int]]]
"""A batch: by day, its session file and the numbers of the chosen trials."""
Mark = Callable[[str], None]
"""Called with the name of each part of a step when it is over."""

KERNEL_FLOOR = 0.01


class ReleaseModel(nn.Module):
    """Day layers, patches, GRU, output; parameters are named as in the release's checkpoints."""

    def __init__(
        self, settings: Mapping[str, Any], n_features: int, n_days: int, n_classes: int
    ) -> None:
        super().__init__()
        self.size = settings["patch_size"]
        self.stride = settings["patch_stride"]
        self.n_layers = settings["n_layers"]
        n_units = settings["n_units"]
        self.day_weights = nn.ParameterList(
            [nn.Parameter(torch.eye(n_features)) for _ in range(n_days)]
        )
        self.day_biases = nn.ParameterList(
            [nn.Parameter(torch.zeros(1, n_features)) for _ in range(n_days)]
        )
        self.day_layer_activation = nn.Softsign()
        self.day_layer_dropout = nn.Dropout(settings["input_network"]["input_layer_dropout"])
        self.gru = nn.GRU(
            n_features * max(1, self.size),
            n_units,
            self.n_layers,
            batch_first=True,
            dropout=settings["rnn_dropout"],
        )
        self.out = nn.Linear(n_units, n_classes)
        self.h0 = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, 1, n_units)))
        for layer in range(self.n_layers):
            nn.init.orthogonal_(getattr(self.gru, f"weight_hh_l{layer}"))
            nn.init.xavier_uniform_(getattr(self.gru, f"weight_ih_l{layer}"))
        nn.init.xavier_uniform_(self.out.weight)

    def forward(self, x_BTC: torch.Tensor, day_B: torch.Tensor) -> torch.Tensor:
        """Return logits [B, P, V] of smoothed features."""
        weights = torch.stack([self.day_weights[day] for day in day_B])
        biases = torch.cat([self.day_biases[day] for day in day_B]).unsqueeze(1)
        x_BTC = self.day_layer_activation(torch.einsum("btc,bcd->btd", x_BTC, weights) + biases)
        x_BTC = self.day_layer_dropout(x_BTC)
        if self.size:
            windows = x_BTC.transpose(1, 2).unfold(2, self.size, self.stride)  # [B, C, P, size]
            x_BTC = windows.permute(0, 2, 3, 1).reshape(len(x_BTC), windows.shape[2], -1)
        hidden_BPD, _ = self.gru(x_BTC, self.h0.expand(self.n_layers, len(x_BTC), -1).contiguous())
        return self.out(hidden_BPD)


def smooth(x_BTC: torch.Tensor, std_bins: float, size: int) -> torch.Tensor:
    """Smooth features with a Gaussian, padding 'same', by a convolution with one group per feature.

    Args:
        x_BTC: Features, float32 [B, T, C].
        std_bins: Standard deviation of the Gaussian, in bins.
        size: Taps before those below KERNEL_FLOOR are dropped.
    """
    impulse = np.zeros(size, dtype=np.float32)
    impulse[size // 2] = 1
    kernel = gaussian_filter1d(impulse, std_bins)
    kernel = kernel[kernel > KERNEL_FLOOR]
    kernel = torch.tensor(kernel / kernel.sum(), dtype=torch.float32, device=x_BTC.device)
    n_features = x_BTC.shape[2]
    taps = kernel.view(1, 1, -1).repeat(n_features, 1, 1)
    return nn.functional.conv1d(
        x_BTC.permute(0, 2, 1), taps, padding="same", groups=n_features
    ).permute(0, 2, 1)


class Draws:
    """The random numbers of augmentation; a test gives its own."""

    def normal(self, name: str, shape: Sequence[int], device: torch.device) -> torch.Tensor:
        """Draw standard normal numbers.

        Args:
            name: Name of the augmentation.
            shape: Shape of the result.
            device: Device of the result.
        """
        return torch.randn(tuple(shape), device=device)

    def cut(self, below: int) -> int:
        """Draw the number of bins to cut, less than `below`."""
        return int(np.random.randint(0, below))  # noqa: NPY002  (as the release draws it)


def augment(
    x_BTC: torch.Tensor, n_bins_B: torch.Tensor, settings: Mapping[str, Any], draws: Draws
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply static gain, white noise, constant offset, random walk and cut.

    `x_BTC` may be changed in place.

    Args:
        x_BTC: Features, float32 [B, T, C].
        n_bins_B: Length of each trial, in bins.
        settings: `data_transforms` of the release.
        draws: Source of random numbers.

    Returns:
        Features and lengths.
    """
    device, (n_trials, _, n_features) = x_BTC.device, x_BTC.shape
    if settings["static_gain_std"] > 0:
        mixing = torch.eye(n_features, device=device).repeat(n_trials, 1, 1)
        mixing += draws.normal("static_gain", mixing.shape, device) * settings["static_gain_std"]
        x_BTC = torch.matmul(x_BTC, mixing)
    if settings["white_noise_std"] > 0:
        x_BTC += draws.normal("white_noise", x_BTC.shape, device) * settings["white_noise_std"]
    if settings["constant_offset_std"] > 0:
        offset = draws.normal("constant_offset", (n_trials, 1, n_features), device)
        x_BTC += offset * settings["constant_offset_std"]
    if settings["random_walk_std"] > 0:
        steps = draws.normal("random_walk", x_BTC.shape, device) * settings["random_walk_std"]
        x_BTC += torch.cumsum(steps, dim=settings["random_walk_axis"])
    if settings["random_cut"] > 0:
        cut = draws.cut(settings["random_cut"])
        x_BTC, n_bins_B = x_BTC[:, cut:], n_bins_B - cut
    return x_BTC, n_bins_B


class BatchReader(Dataset):
    """Whole batches by number."""

    def __init__(self, batches: Sequence[BatchFiles]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        return load_batch(self.batches[number])


def loader(batches: Sequence[BatchFiles], workers: int, pin: bool) -> DataLoader:
    """Return a loader of the batches in their order.

    Args:
        batches: Files and trials of each batch.
        workers: Processes that read ahead; the published settings have four.
        pin: Whether batches are copied to pinned memory.
    """
    return DataLoader(
        BatchReader(batches), batch_size=None, shuffle=False, num_workers=workers, pin_memory=pin
    )


def cosine(floor: float, decay_steps: int, warmup_steps: int) -> Callable[[int], float]:
    """Return a schedule: linear warm-up from zero, then half a cosine down to `floor`.

    Args:
        floor: Last factor of the learning rate.
        decay_steps: Step at which the floor is reached.
        warmup_steps: Steps of the warm-up.
    """

    def factor(step: int) -> float:
        if step < warmup_steps:
            return step / max(1, warmup_steps)
        if step >= decay_steps:
            return floor
        progress = (step - warmup_steps) / max(1, decay_steps - warmup_steps)
        return max(floor, floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress)))

    return factor


class ReleaseTrainer:
    """One training.

    Args:
        settings: The published YAML's, as nested mappings.
        autocast: The device type whose autocast (bfloat16) is on, or None. The release turns CUDA's
            on, which does nothing on a CPU; "cpu" is a variant that the release does not have.
        compiled: Whether the model goes through torch.compile, as in the release.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        n_features: int,
        n_days: int,
        n_classes: int = 41,
        device: str | torch.device = "cpu",
        autocast: str | None = None,
        compiled: bool = False,
    ) -> None:
        self.settings = settings
        self.device = torch.device(device)
        self.autocast = autocast
        self.draws = Draws()
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            torch.backends.cudnn.deterministic = True
        self.model = ReleaseModel(settings["model"], n_features, n_days, n_classes)
        self.network: Any = self.model  # the callable: the model, or what the compiler made of it
        if compiled:
            torch._dynamo.config.cache_size_limit = 64
            self.network = torch.compile(self.model)
        self.optimizer = self._optimizer()
        self.scheduler = self._scheduler()
        self.ctc = nn.CTCLoss(blank=0, reduction="none", zero_infinity=False)
        if not settings["model"]["rnn_trainable"]:
            self.model.gru.requires_grad_(False)
        if not settings["model"]["input_network"]["input_trainable"]:
            self.model.day_weights.requires_grad_(False)
            self.model.day_biases.requires_grad_(False)
        self.model.to(self.device)

    def _optimizer(self) -> torch.optim.AdamW:
        named = dict(self.model.named_parameters())
        chosen = self.settings
        bias = [p for name, p in named.items() if "gru.bias" in name or "out.bias" in name]
        day = [p for name, p in named.items() if name.startswith("day_")]
        apart = {id(parameter) for parameter in (*bias, *day)}
        other = [parameter for parameter in named.values() if id(parameter) not in apart]
        return torch.optim.AdamW(
            [
                {"params": bias, "weight_decay": 0},
                {
                    "params": day,
                    "lr": chosen["lr_max_day"],
                    "weight_decay": chosen["weight_decay_day"],
                },
                {"params": other},
            ],
            lr=chosen["lr_max"],
            betas=(chosen["beta0"], chosen["beta1"]),
            eps=chosen["epsilon"],
            weight_decay=chosen["weight_decay"],
            fused=True,
        )

    def _scheduler(self) -> torch.optim.lr_scheduler.LRScheduler:
        chosen = self.settings
        if chosen["lr_scheduler_type"] == "linear":
            end = chosen["lr_min"] / chosen["lr_max"]
            steps = chosen["lr_decay_steps"]
            return torch.optim.lr_scheduler.LinearLR(
                self.optimizer, 1.0, end_factor=end, total_iters=steps
            )
        shared = cosine(
            chosen["lr_min"] / chosen["lr_max"], chosen["lr_decay_steps"], chosen["lr_warmup_steps"]
        )
        floor = chosen["lr_min_day"] / chosen["lr_max_day"]
        day = cosine(floor, chosen["lr_decay_steps_day"], chosen["lr_warmup_steps_day"])
        return torch.optim.lr_scheduler.LambdaLR(self.optimizer, [shared, day, shared])

    def transform(
        self, x_BTC: torch.Tensor, n_bins_B: torch.Tensor, training: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the features as the model gets them, and their lengths.

        Args:
            x_BTC: Features, float32 [B, T, C].
            n_bins_B: Length of each trial, in bins.
            training: Whether to augment.
        """
        settings = self.settings["dataset"]["data_transforms"]
        if training:
            x_BTC, n_bins_B = augment(x_BTC, n_bins_B, settings, self.draws)
        if settings["smooth_data"]:
            x_BTC = smooth(x_BTC, settings["smooth_kernel_std"], settings["smooth_kernel_size"])
        return x_BTC, n_bins_B

    def _forward(
        self, batch: Mapping[str, torch.Tensor], training: bool, mark: Mark = lambda part: None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mean loss, logits [B, P, V] and frames of each trial."""
        names = ("input_features", "seq_class_ids", "n_time_steps", "seq_len", "day")
        x_BTC, labels_BU, n_bins_B, n_labels_B, day_B = (
            batch[name].to(self.device) for name in names
        )
        mark("load")
        model = self.settings["model"]
        with torch.autocast(
            self.autocast or self.device.type, torch.bfloat16, enabled=self.autocast is not None
        ):
            x_BTC, n_bins_B = self.transform(x_BTC, n_bins_B, training)
            mark("augment")
            frames_B = ((n_bins_B - model["patch_size"]) / model["patch_stride"] + 1).to(
                torch.int32
            )
            logits_BPV = self.network(x_BTC, day_B)
            log_probs_PBV = logits_BPV.log_softmax(2).permute(1, 0, 2)
            loss = self.ctc(log_probs_PBV, labels_BU, frames_B, n_labels_B).mean()
        mark("forward")
        return loss, logits_BPV, frames_B

    def step(self, batch: Mapping[str, torch.Tensor], mark: Mark = lambda part: None) -> float:
        """Train on one batch and return its loss.

        Parts: load (to the device), augment, forward, backward, step.
        """
        self.network.train()
        self.optimizer.zero_grad()
        loss, _, _ = self._forward(batch, training=True, mark=mark)
        loss.backward()
        mark("backward")
        if (limit := self.settings["grad_norm_clip_value"]) > 0:
            nn.utils.clip_grad_norm_(
                self.model.parameters(), limit, error_if_nonfinite=True, foreach=True
            )
        self.optimizer.step()
        self.scheduler.step()
        value = loss.detach().item()
        mark("step")
        return value

    @torch.no_grad()
    def validate(self, files: Mapping[int, tuple[Path, Sequence[int]]]) -> dict[str, Any]:
        """Return the phoneme error rate, overall and by day, and the mean loss of the batches.

        Args:
            files: By day, its session file and the numbers of its trials; a batch has trials of one
                day only.
        """
        self.network.eval()
        size = self.settings["dataset"]["batch_size"]
        losses = []
        errors = dict.fromkeys(files, 0)
        lengths = dict.fromkeys(files, 0)
        for day, (path, trials) in files.items():
            for start in range(0, len(trials), size):
                batch = load_batch({day: (path, trials[start : start + size])})
                loss, logits_BPV, frames_B = self._forward(batch, training=False)
                losses.append(loss.item())
                for number, (logits_PV, frames) in enumerate(
                    zip(logits_BPV, frames_B, strict=True)
                ):
                    best = torch.unique_consecutive(logits_PV[:frames].argmax(-1)).tolist()
                    n_labels = int(batch["seq_len"][number])
                    truth = batch["seq_class_ids"][number, :n_labels].tolist()
                    errors[day] += edit_distance([token for token in best if token != 0], truth)
                    lengths[day] += n_labels
        return {
            "per": sum(errors.values()) / sum(lengths.values()),
            "per_by_day": {day: errors[day] / lengths[day] for day in files},
            "loss": float(np.mean(losses)),
        }


def edit_distance(found: Sequence[int], truth: Sequence[int]) -> int:
    """Count the insertions, deletions and substitutions between two sequences."""
    row = list(range(len(truth) + 1))
    for i, token in enumerate(found, 1):
        diagonal, row[0] = row[0], i
        for j, wanted in enumerate(truth, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (token != wanted))
    return row[-1]
