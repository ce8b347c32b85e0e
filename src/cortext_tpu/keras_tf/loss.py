"""Losses of the Keras models, equal to those of `cortext.training.loss` and `adversarial`.

A batch is a mapping of tensors: features [B, T, C], day, n_patches and n_labels [B], labels [B, U],
0-padded. A trial of 0 patches is padding: it has no loss and no gradient.

B trials, T bins, C features, P patches, V tokens, U label tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from keras import ops

from cortext.errors import ConfigError
from cortext.training.adversarial import AdversarialConfig
from cortext.training.config import TrainConfig
from cortext_tpu.keras_tf.ctc import ctc_loss
from cortext_tpu.keras_tf.layers import register


@register
class CTC:
    """The negative log-likelihood of each trial's label under the model's logits."""

    parts: ClassVar[tuple[str, ...]] = ()

    def __call__(self, network: Any, batch: Mapping[str, Any], step: Any) -> dict[str, Any]:
        """Compute the losses by name, float32 [B]; training minimises the mean of `loss`."""
        return {"loss": batch_ctc(network(batch, training=True)[0], batch)}

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `from_config`."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CTC:
        """Build the loss that `get_config` describes."""
        return cls(**config)


@register
class Adversarial:
    """The loss of the three-network model; see `cortext.training.adversarial.Adversarial`.

    The reversal strength rises over `n_batches`, the batches of the whole training.
    """

    parts: ClassVar[tuple[str, ...]] = ("clean", "noisy", "noise")

    def __init__(self, n_batches: int, **settings: Any) -> None:
        self.n_batches = n_batches
        self.config = AdversarialConfig(**settings)

    def reversal(self, step: Any) -> Any:
        """Compute `AdversarialConfig.reversal` at batch `step` in a graph, a float32 scalar."""
        config = self.config
        progress = ops.minimum(
            1.0, ops.cast(step, "float32") / (self.n_batches * config.reversal_ramp)
        )
        if config.reversal_schedule == "sigmoid":
            progress = 2 / (1 + ops.exp(-10 * progress)) - 1
        return config.reversal_start + (config.reversal_end - config.reversal_start) * progress

    def __call__(self, network: Any, batch: Mapping[str, Any], step: Any) -> dict[str, Any]:
        """Compute `loss` and its unweighted parts `clean`, `noisy` and `noise`, float32 [B]."""
        clean_BPV, noisy_BPV, noise_BPI = network(
            batch, mode="full", reversal=self.reversal(step), training=True
        )
        clean_B, noisy_B = batch_ctc(clean_BPV, batch), batch_ctc(noisy_BPV, batch)
        noise_B = noise_energy(noise_BPI, batch["n_patches"])
        loss_B = clean_B + self.config.noisy_weight * noisy_B + self.config.noise_weight * noise_B
        return {"loss": loss_B, "clean": clean_B, "noisy": noisy_B, "noise": noise_B}

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `from_config`."""
        settings = {name: value for name, value in vars(self.config).items() if name != "kind"}
        return {"n_batches": self.n_batches, **settings}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Adversarial:
        """Build the loss that `get_config` describes."""
        return cls(**config)


def keras_loss(config: TrainConfig) -> CTC | Adversarial:
    """Build the Keras form of a run's loss.

    Raises ConfigError for a loss that has no Keras form or cannot train the model.
    """
    kind = (
        config.loss.kind
        if config.loss is not None
        else {"triple_gru": "adversarial"}.get(config.model.kind, "ctc")
    )
    if kind == "ctc":
        if getattr(config.loss, "per_label", False):
            raise ConfigError("loss.per_label has no Keras form", fix="use --backend torch")
        return CTC()
    if kind != "adversarial":
        raise ConfigError(
            f"loss {kind!r} has no Keras form",
            fix="use --backend torch, or the loss ctc or adversarial",
        )
    if config.model.kind != "triple_gru":
        raise ConfigError(
            f"loss {kind!r} cannot train model {config.model.kind!r}", fix="leave loss out"
        )
    settings = {} if config.loss is None else vars(config.loss)
    return Adversarial(
        config.num_training_batches, **{k: v for k, v in settings.items() if k != "kind"}
    )


def noise_energy(noise_BPI: Any, n_patches_B: Any) -> Any:
    """Compute the squared norm of the noise, averaged over each trial's patches, float32 [B]."""
    energy_BP = ops.sum(ops.square(ops.cast(noise_BPI, "float32")), axis=-1)
    n_patches_B = ops.cast(n_patches_B, "int32")
    inside_BP = ops.arange(energy_BP.shape[1], dtype="int32") < ops.expand_dims(n_patches_B, 1)
    total_B = ops.sum(ops.where(inside_BP, energy_BP, 0.0), axis=1)
    return total_B / ops.cast(ops.maximum(n_patches_B, 1), "float32")


def batch_ctc(logits_BPV: Any, batch: Mapping[str, Any]) -> Any:
    """Compute `ctc_loss` for the labels of a batch."""
    return ctc_loss(logits_BPV, batch["n_patches"], batch["labels"], batch["n_labels"])
