"""Losses of the Keras models: `cortext.training.loss` and `cortext.training.adversarial`, equal to them.

A batch is a mapping of tensors: features [B, T, C], day, n_patches and n_labels [B], labels [B, U], 0-padded. A trial
of 0 patches is padding: it has no loss and no gradient.

B trials, T bins, C features, P patches, V tokens, U label tokens, S states of the CTC (blanks between labels, 2 U + 1).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from keras import ops

from cortext.errors import ConfigError
from cortext.tpu.keras_tf.layers import register
from cortext.training.adversarial import AdversarialConfig
from cortext.training.config import TrainConfig

_NEVER = -1e30  # a log-probability of what cannot be: finite, so that differences are


@register
class CTC:
    """The likelihood of each trial's label under the model's logits."""

    parts: ClassVar[tuple[str, ...]] = ()

    def __call__(self, network: Any, batch: Mapping[str, Any], step: Any) -> dict[str, Any]:
        """Losses by name, float32 [B]; `loss` is what is minimised (its mean), the others are only reported."""
        return {"loss": batch_ctc(network(batch, training=True)[0], batch)}

    def get_config(self) -> dict[str, Any]:
        """What `from_config` takes."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> CTC:
        """The loss that `get_config` describes."""
        return cls(**config)


@register
class Adversarial:
    """The loss of the three-network model, see `cortext.training.adversarial.Adversarial`.

    n_batches: of the whole training, over which the reversal strength rises
    """

    parts: ClassVar[tuple[str, ...]] = ("clean", "noisy", "noise")

    def __init__(self, n_batches: int, **settings: Any) -> None:
        self.n_batches, self.config = n_batches, AdversarialConfig(**settings)

    def reversal(self, step: Any) -> Any:
        """Reversal strength at batch `step`, a scalar float32 tensor: `AdversarialConfig.reversal` in a graph."""
        config = self.config
        progress = ops.minimum(1.0, ops.cast(step, "float32") / (self.n_batches * config.reversal_ramp))
        if config.reversal_schedule == "sigmoid":
            progress = 2 / (1 + ops.exp(-10 * progress)) - 1
        return config.reversal_start + (config.reversal_end - config.reversal_start) * progress

    def __call__(self, network: Any, batch: Mapping[str, Any], step: Any) -> dict[str, Any]:
        """Float32 [B] of each trial: `loss`, and its parts `clean`, `noisy` and `noise` without their weights."""
        clean_BPV, noisy_BPV, noise_BPI = network(batch, mode="full", reversal=self.reversal(step), training=True)
        clean_B, noisy_B = batch_ctc(clean_BPV, batch), batch_ctc(noisy_BPV, batch)
        noise_B = noise_energy(noise_BPI, batch["n_patches"])
        loss_B = clean_B + self.config.noisy_weight * noisy_B + self.config.noise_weight * noise_B
        return {"loss": loss_B, "clean": clean_B, "noisy": noisy_B, "noise": noise_B}

    def get_config(self) -> dict[str, Any]:
        """What `from_config` takes."""
        settings = {name: value for name, value in vars(self.config).items() if name != "kind"}
        return {"n_batches": self.n_batches, **settings}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Adversarial:
        """The loss that `get_config` describes."""
        return cls(**config)


def keras_loss(config: TrainConfig) -> CTC | Adversarial:
    """The Keras form of a run's loss. Raises ConfigError for one that has none, or that cannot train the model."""
    kind = config.loss.kind if config.loss is not None else {"triple_gru": "adversarial"}.get(config.model.kind, "ctc")
    if kind == "ctc":
        return CTC()
    if kind != "adversarial":
        raise ConfigError(f"loss {kind!r} has no Keras form", fix="use --backend torch, or the loss ctc or adversarial")
    if config.model.kind != "triple_gru":
        raise ConfigError(f"loss {kind!r} cannot train model {config.model.kind!r}", fix="leave loss out")
    settings = {} if config.loss is None else vars(config.loss)
    return Adversarial(config.num_training_batches, **{k: v for k, v in settings.items() if k != "kind"})


def noise_energy(noise_BPI: Any, n_patches_B: Any) -> Any:
    """Squared norm of a patch's noise, the mean over each trial's patches, float32 [B]; padding does not count."""
    energy_BP = ops.sum(ops.square(ops.cast(noise_BPI, "float32")), axis=-1)
    n_patches_B = ops.cast(n_patches_B, "int32")
    inside_BP = ops.arange(energy_BP.shape[1], dtype="int32") < ops.expand_dims(n_patches_B, 1)
    total_B = ops.sum(ops.where(inside_BP, energy_BP, 0.0), axis=1)
    return total_B / ops.cast(ops.maximum(n_patches_B, 1), "float32")


def batch_ctc(logits_BPV: Any, batch: Mapping[str, Any]) -> Any:
    """`ctc_loss` of a batch's labels."""
    return ctc_loss(logits_BPV, batch["n_patches"], batch["labels"], batch["n_labels"])


def ctc_loss(logits_BPV: Any, n_patches_B: Any, labels_BU: Any, n_labels_B: Any) -> Any:
    """Negative log-likelihood (natural) of each trial's label, float32 [B], in float32 whatever the logits are.

    The blank is 0. A label that does not fit into its trial's frames gives inf and moves nothing; what lies beyond a
    trial's frames or label is never looked at. All shapes are static, and a frame's work grows with the length of the
    label, where that of TensorFlow's own `ctc_loss` for dense labels grows with its square.
    """
    log_probs_BPV = ops.log_softmax(ops.cast(logits_BPV, "float32"), axis=-1)
    counts = [ops.cast(count, "int32") for count in (n_patches_B, labels_BU, n_labels_B)]
    return ops.custom_gradient(lambda x_BPV: _ctc(x_BPV, *counts))(log_probs_BPV)


def _ctc(log_probs_BPV: Any, n_patches_B: Any, labels_BU: Any, n_labels_B: Any) -> Any:
    """The forward pass of Graves et al. (ICML 2006), and its gradient: the backward pass."""
    n_trials, n_patches, n_tokens = log_probs_BPV.shape
    states_BS = ops.reshape(ops.stack([ops.zeros_like(labels_BU), labels_BU], axis=-1), (n_trials, -1))
    states_BS = ops.pad(states_BS, ((0, 0), (0, 1)))
    number_S = ops.arange(states_BS.shape[1], dtype="int32")
    # A label may follow the one before without a blank, unless they are the same.
    jumps_BS = ops.where((states_BS != _later(states_BS, 2, 0)) & (states_BS != 0), 0.0, _NEVER)
    index_BPS = ops.broadcast_to(ops.expand_dims(states_BS, 1), (n_trials, n_patches, states_BS.shape[1]))
    emitted_PBS = ops.transpose(ops.take_along_axis(log_probs_BPV, index_BPS, axis=2), (1, 0, 2))
    frame_PB1 = ops.reshape(ops.arange(n_patches, dtype="int32"), (-1, 1, 1))
    last_B1, n_labels_B1 = ops.expand_dims(n_patches_B - 1, 1), ops.expand_dims(n_labels_B, 1)
    first_BS = ops.where((number_S == 0) | ((number_S == 1) & (n_labels_B1 > 0)), 0.0, _NEVER)
    final_BS = ops.where((number_S == 2 * n_labels_B1) | (number_S == 2 * n_labels_B1 - 1), 0.0, _NEVER)

    def forward(before_BS: Any, at: Any) -> tuple[Any, Any]:
        emitted_BS, frame = at
        after_BS = _add(before_BS, _later(before_BS, 1), _later(before_BS, 2) + jumps_BS)
        after_BS = ops.where(frame == 0, first_BS, after_BS) + emitted_BS
        after_BS = ops.where(frame <= last_B1, after_BS, before_BS)
        return after_BS, after_BS

    start_BS = ops.full_like(final_BS, _NEVER)
    end_BS, alpha_PBS = ops.scan(forward, start_BS, (emitted_PBS, frame_PB1))
    likelihood_B = ops.logsumexp(end_BS + final_BS, axis=1)
    fits_B = ops.logical_not(likelihood_B < _NEVER / 2)  # a nan is no misfit
    loss_B = ops.where(n_patches_B > 0, ops.where(fits_B, -likelihood_B, float("inf")), 0.0)

    def gradient(*args: Any, upstream: Any = None) -> Any:
        (d_B,) = args if upstream is None else (upstream,)

        def backward(after_BS: Any, at: Any) -> tuple[Any, Any]:
            next_BS, frame = at  # what the frame after this one emits
            after_BS = after_BS + next_BS
            before_BS = _add(after_BS, _earlier(after_BS, 1), _earlier(after_BS + jumps_BS, 2))
            before_BS = ops.where(frame < last_B1, before_BS, final_BS)
            return before_BS, before_BS

        next_PBS = ops.concatenate([emitted_PBS[1:], emitted_PBS[:1]])
        beta_PBS = ops.scan(backward, final_BS, (next_PBS, frame_PB1), reverse=True)[1]
        counts_PB1 = (frame_PB1 <= last_B1) & ops.expand_dims(fits_B, 1)
        share_PBS = ops.exp(alpha_PBS + beta_PBS - ops.expand_dims(likelihood_B, 1))
        share_PBS = ops.where(counts_PB1, share_PBS, 0.0)
        tokens_BSV = ops.one_hot(states_BS, n_tokens, dtype="float32")
        return -ops.einsum("pbs,bsv->bpv", share_PBS, tokens_BSV) * ops.reshape(d_B, (-1, 1, 1))

    return loss_B, gradient


def _later(x_BS: Any, by: int, fill: Any = _NEVER) -> Any:
    """Shifted towards later states."""
    return ops.pad(x_BS, ((0, 0), (by, 0)), constant_values=fill)[:, :-by]


def _earlier(x_BS: Any, by: int) -> Any:
    """Shifted towards earlier states."""
    return ops.pad(x_BS, ((0, 0), (0, by)), constant_values=_NEVER)[:, by:]


def _add(*logs: Any) -> Any:
    """The logarithm of the sum of probabilities."""
    most = ops.maximum(ops.maximum(logs[0], logs[1]), logs[2])
    return most + ops.log(sum(ops.exp(log - most) for log in logs))
