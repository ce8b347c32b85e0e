"""Losses by name, and the release's: connectionist temporal classification.

CTC is due to Graves et al. (ICML 2006).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
import torch

from cortext.arguments import check_type
from cortext.config import check_fields
from cortext.cuda import kernels
from cortext.data.checks import frames_needed
from cortext.data.packed import PackedSplit
from cortext.errors import ConfigError, DataError
from cortext.memory import to_device
from cortext.models import MODELS, read_output
from cortext.models.heads import diphone_labels, token_logits
from cortext.models.layers import substitute
from cortext.plugins import build, is_own, place
from cortext.registry import Registry
from cortext.settings import FROM_0_TO_1
from cortext.text.inventory import RELEASE, Inventory
from cortext.training.batches import TrainBatch


class Loss(Protocol):
    """A loss, built as `cls(config)` with its dataclass `Config`."""

    Config: ClassVar[type]

    # `models: ClassVar[tuple[str, ...]]` names the models that it can train; a loss without it
    # trains any. An attribute `inventory` is set to the tokens of the labels.

    def __call__(self, network: Any, batch: TrainBatch, fraction: float) -> dict[str, torch.Tensor]:
        """Return losses by name, float32 [B].

        Training minimises the mean of `loss` and only reports the others.

        Args:
            network: The model. It may be wrapped for several processes: call it, but read no
                attributes.
            batch: The trials.
            fraction: Share of the training that is done, in [0, 1).
        """
        ...


def check_losses(losses: dict[str, torch.Tensor], n_trials: int, loss: Any = None) -> None:
    """Check that each loss has one value per trial; a user's own may give a mean.

    Args:
        losses: What a loss returned.
        n_trials: Number of trials.
        loss: The loss, whose file and class an error names if they are a user's own.

    Raises:
        ConfigError: For anything else than a dict of float tensors [B] with `loss` among them.
    """
    where = place(loss) if loss is not None and is_own(loss) else None
    if not isinstance(losses, dict):
        what = f"the loss gives a {type(losses).__name__}"
        raise ConfigError(what, where=where, fix="return a dict of tensors by name")
    if "loss" not in losses:
        found = f"the loss gives {', '.join(losses) or 'nothing'}"
        raise ConfigError(found, where=where, fix="call what is minimised 'loss'")
    for name, loss_B in losses.items():
        if not isinstance(loss_B, torch.Tensor) or not loss_B.is_floating_point():
            kind = getattr(loss_B, "dtype", type(loss_B).__name__)
            what = f"the loss gives {name!r} as {kind}; a float tensor is needed"
            raise ConfigError(what, where=where)
        if loss_B.shape != (n_trials,):
            what = f"the loss gives {name!r} of shape {list(loss_B.shape)} for {n_trials} trials"
            raise ConfigError(what, where=where, fix="give a value for each trial")


LOSSES = Registry("loss")
"""The registered losses by name."""
register_loss = LOSSES.register
"""Decorator that registers a loss of your own: `@register_loss("name")`."""


def loss_config(mapping: Any) -> Any:
    """Return the config dataclass of the loss that `kind` names; a dataclass is left unchanged.

    Raises:
        ConfigError: For an unknown loss or setting.
    """
    return LOSSES.config(mapping, "loss")


def loss_kind(config: Any, model_kind: str) -> str:
    """Return the name of the loss of a config dataclass; None gives the model's default loss."""
    if config is None:
        return str(getattr(MODELS[model_kind], "default_loss", "ctc"))
    return str(config.kind)


def build_loss(config: Any, model_kind: str, inventory: Inventory = RELEASE) -> Loss:
    """Return the loss of a config dataclass; None gives the model's default loss.

    Args:
        config: The config dataclass of a registered loss, or None.
        model_kind: Name of the model.
        inventory: Tokens of the labels; the release's by default.

    Raises:
        ConfigError: For a loss that cannot train the model.
    """
    if config is None:
        config = loss_config({"kind": loss_kind(config, model_kind)})
    models = getattr(LOSSES[config.kind], "models", (model_kind,))
    if model_kind not in models:
        what = f"loss {config.kind!r} cannot train model {model_kind!r}"
        raise ConfigError(what, fix=f"use it with {' or '.join(models)}, or leave loss out")
    loss: Loss = build(LOSSES[config.kind], config)
    if hasattr(loss, "inventory"):
        loss.inventory = inventory
    return loss


@dataclass
class CTCConfig:
    """Section `loss` for `kind: ctc`."""

    kind: Literal["ctc"] = "ctc"
    """Name of the loss."""
    per_label: bool = False
    """Divide the loss of each trial by the length of its label, so that short sentences count as
    much as long ones (as published for the Transformer).
    """
    phone_weights: list[float] = field(default_factory=lambda: [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    """Weights of the tokens' loss beside the diphones', for a model with `diphones`.

    Each holds for an equal share of the training. The published rule, 0.1 more every 10 epochs up
    to 0.6, is the same in a training of 70 epochs. The diphones' weight is 1 less the tokens'.
    """
    intermediate_weight: Annotated[float, FROM_0_TO_1] = 0.3
    """Weight of the middle layer's loss, for a model with `intermediate_layer`.

    The last layer's weight is 1 less it (0.3 in Lee and Watanabe, ICASSP 2021).
    """

    def __post_init__(self) -> None:
        check_fields(self, "loss.")
        if not self.phone_weights or not all(0 <= weight <= 1 for weight in self.phone_weights):
            what = f"loss.phone_weights is {self.phone_weights}"
            raise ConfigError(what, fix="give one weight or more, each from 0 to 1")

    def check_model(self, model: Any) -> None:
        """Raise ConfigError for a weight of something that the model does not have.

        Args:
            model: Settings of the model.
        """
        usual = CTCConfig()
        parts = {"phone_weights": "diphones", "intermediate_weight": "intermediate_layer"}
        for name, part in parts.items():
            if getattr(self, name) != getattr(usual, name) and not getattr(model, part, True):
                what = f"loss.{name} is set, and model.{part} is not"
                raise ConfigError(what, fix=f"set model.{part}, or leave loss.{name} out")

    def phone_weight(self, fraction: float | torch.Tensor) -> Any:
        """Return the weight of the tokens' loss when `fraction` of the training is done.

        A tensor gives a tensor.
        """
        weight: Any = self.phone_weights[0]
        steps = itertools.pairwise(self.phone_weights)
        # Steps, not an index: XLA traces this without knowing the fraction.
        for number, (before, after) in enumerate(steps, start=1):
            reached: Any = fraction >= number / len(self.phone_weights)
            weight = weight + (after - before) * reached
        return weight


@register_loss("ctc")
class CTC:
    """The negative log-likelihood of each trial's label under the model's logits.

    For a model with diphones it is that of the tokens and that of the diphones, weighed. For a
    model with an intermediate layer, that of its logits is added, weighed, too.
    """

    Config: ClassVar[type] = CTCConfig

    def __init__(self, config: CTCConfig) -> None:
        self.config = config
        self.inventory = RELEASE

    def __call__(self, network: Any, batch: TrainBatch, fraction: float) -> dict[str, torch.Tensor]:
        """Return the loss, and its unweighted parts where it has several; see `Loss`.

        `ctc` is the negative log-likelihood of the tokens.
        """
        found = read_output(network(batch.x_BTC, batch.day_B, n_patches_B=batch.n_patches_B))
        loss_B = ctc_B = _tokens_loss(found.logits, batch)
        parts = {"ctc": ctc_B}
        diphones_BPX, middle = found.extras.get("diphones"), found.extras.get("intermediate")
        weight: Any = None
        if diphones_BPX is not None:
            weight = self.config.phone_weight(fraction)
            parts["diphones"] = pairs_B = self._diphones_loss(diphones_BPX, batch)
            loss_B = weight * ctc_B + (1 - weight) * pairs_B
        if middle is not None:
            if diphones_BPX is None:
                middle_B = _tokens_loss(middle, batch)
            else:
                of_tokens_B = _tokens_loss(token_logits(middle), batch)
                middle_B = weight * of_tokens_B + (1 - weight) * self._diphones_loss(middle, batch)
            parts["intermediate"] = middle_B
            share = self.config.intermediate_weight
            loss_B = (1 - share) * loss_B + share * middle_B
        if self.config.per_label:
            n_labels_B = to_device(batch.n_labels_B, loss_B.device)
            loss_B = loss_B / n_labels_B.clamp(min=1)
        elif len(parts) == 1:
            return {"loss": loss_B}
        return {"loss": loss_B} | {name: part_B.detach() for name, part_B in parts.items()}

    def _diphones_loss(self, diphones_BPX: torch.Tensor, batch: TrainBatch) -> torch.Tensor:
        """Return the negative log-likelihood of the diphones of each trial's label."""
        labels_BU = diphone_labels(batch.labels_BU, diphones_BPX.shape[-1], self.inventory.sil)
        return ctc_loss(diphones_BPX, batch.n_patches_B, labels_BU, batch.n_labels_B)


def _tokens_loss(logits_BPV: torch.Tensor, batch: TrainBatch) -> torch.Tensor:
    """Return the negative log-likelihood of each trial's label."""
    return ctc_loss(logits_BPV, batch.n_patches_B, batch.labels_BU, batch.n_labels_B)


def ctc_loss(
    logits_BPV: torch.Tensor,
    n_patches_B: torch.Tensor,
    labels_BU: torch.Tensor,
    n_labels_B: torch.Tensor,
    blank: int = 0,
) -> torch.Tensor:
    """Return the negative log-likelihood (natural) of each trial's label.

    It is computed in float32 for any type of logits. Training minimises the mean over trials.

    Args:
        logits_BPV: Float [B, P, V], not normalised.
        n_patches_B: Frames of each trial, int64 [B], on any device.
        labels_BU: Labels, int64 [B, U], padded with 0.
        n_labels_B: Length of each label, int64 [B], on any device like `n_patches_B`.
        blank: Number of the CTC blank.

    Returns:
        Float32 [B]; inf for a label that does not fit into its frames.
    """
    check_type(logits_BPV, torch.Tensor, "logits", "a tensor")
    if own := substitute(ctc_loss, logits_BPV):
        return own(logits_BPV, n_patches_B, labels_BU, n_labels_B, blank)
    _check_shapes(logits_BPV, n_patches_B, labels_BU, n_labels_B)
    if logits_BPV.device.type == "cuda":
        own_B = kernels().ctc_loss(logits_BPV, n_patches_B, labels_BU, n_labels_B, blank)
        if own_B is not None:
            return own_B
    # CTC adds up log-probabilities over hundreds of frames; bfloat16 keeps two to three digits.
    log_probs_PBV = logits_BPV.float().log_softmax(-1).transpose(0, 1)
    return torch.nn.functional.ctc_loss(
        log_probs_PBV,
        labels_BU,
        n_patches_B,
        n_labels_B,
        blank=blank,
        reduction="none",
        # An impossible label must show: with zero_infinity its loss and gradient would be 0.
        zero_infinity=False,
    )


def _check_shapes(
    logits_BPV: torch.Tensor,
    n_patches_B: torch.Tensor,
    labels_BU: torch.Tensor,
    n_labels_B: torch.Tensor,
) -> None:
    """Raise ConfigError for tensors that do not fit together.

    Values are read on the host only: on a GPU that would wait for all work in flight.
    """
    n_trials = len(logits_BPV)
    for name, tensor, n_axes in (
        ("logits", logits_BPV, 3),
        ("n_patches", n_patches_B, 1),
        ("labels", labels_BU, 2),
        ("n_labels", n_labels_B, 1),
    ):
        check_type(tensor, torch.Tensor, name, "a tensor")
        if tensor.ndim != n_axes or len(tensor) != n_trials:
            raise ConfigError(
                f"{name} has shape {list(tensor.shape)}; {n_axes} axes are needed, the first with"
                f" the {n_trials} trials of the logits"
            )
    for name, tensor, most in (
        ("n_patches", n_patches_B, logits_BPV.shape[1]),
        ("labels", labels_BU, logits_BPV.shape[2] - 1),
        ("n_labels", n_labels_B, labels_BU.shape[1]),
    ):
        if tensor.device.type == "cpu" and tensor.numel():
            low, high = (int(bound) for bound in tensor.aminmax())
            if low < 0 or high > most:
                raise ConfigError(
                    f"{name} has {low if low < 0 else high}; 0 to {most} are possible"
                )


def check_labels_fit(
    split: PackedSplit, n_patches: Callable[[int], int], longest_cut: int = 0
) -> None:
    """Raise DataError where a trial has no label, or one too long for its frames.

    CTC gives inf and broken gradients for such a trial.

    Args:
        split: The trials.
        n_patches: Function from bins to frames of logits.
        longest_cut: Most bins that augmentation cuts off.
    """
    for i in range(len(split)):
        if split.labels(i) is None:
            raise DataError(
                f"the {split.name} split has a trial without a label",
                where=trial_name(split, i),
                fix="leave it out",
            )
    unfit = unfit_labels(split, n_patches, longest_cut)
    if not unfit:
        return
    first, (available, needed) = next(iter(unfit.items()))
    names = name_trials(split, np.array(list(unfit)))
    others = f" (too few in {len(unfit)} trials: {names})" if len(unfit) > 1 else ""
    raise DataError(
        f"{available} frames are left after augmentation{others} for a label that needs {needed}",
        where=trial_name(split, first),
        fix="name it in dataset.bad_trials_dict, leave it out with --skip-bad, or lower random_cut",
    )


def unfit_labels(
    split: PackedSplit, n_patches: Callable[[int], int], longest_cut: int = 0
) -> dict[int, tuple[int, int]]:
    """Return the frames of trials too short for their labels, and the frames that these need.

    Args:
        split: The trials.
        n_patches: Function from bins to frames of logits.
        longest_cut: Most bins that augmentation cuts off.

    Returns:
        By the trial's position.
    """
    found = {}
    for i in range(len(split)):
        labels_U = split.labels(i)
        # Frames shrink with the longest cut that augmentation may draw; the label never does.
        available = n_patches(int(split.n_bins_N[i]) - longest_cut)
        if labels_U is not None and available < (needed := frames_needed(labels_U)):
            found[i] = available, needed
    return found


def trial_name(split: PackedSplit, i: int) -> str:
    """Return the name of trial `i` in messages."""
    return f"{split.session(i)}/block {split.block_N[i]}/trial {split.trial_N[i]}"


def name_trials(split: PackedSplit, indices: np.ndarray, most: int = 8) -> str:
    """Return the names of trials on one line.

    Args:
        split: The split that the trials belong to.
        indices: int [N], positions in the split.
        most: Most names; only the number of further trials is given.
    """
    unique = np.unique(indices)
    names = ", ".join(trial_name(split, int(i)) for i in unique[:most])
    return names if len(unique) <= most else f"{names} and {len(unique) - most} more"
