"""`cortext.models.gru` and `cortext.models.triple_gru` in Keras, with their settings and weights.

A batch is a mapping of tensors, of which the models read `features` [B, T, C] (smoothed) and `day`
int [B].

B trials, T bins, C features, P patches, I values in a patch, D hidden units, L layers,
V tokens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from cortext.config import from_mapping, to_mapping
from cortext.errors import ConfigError
from cortext.models import GRUConfig, TripleGRUConfig
from cortext.models.inputs import count_patches
from cortext.training.config import TrainConfig
from cortext_tpu.keras_tf.layers import (
    DayAffine,
    GradientReversal,
    GRULayer,
    Patches,
    dropout,
    register,
)
from cortext_tpu.keras_tf.loss import keras_loss
from cortext_tpu.keras_tf.optimizer import DayAdamW
from cortext_tpu.keras_tf.steps import Steps


class DayLayers(Steps):
    """The base of a network that reads bins: day layer, softsign, dropout, patches.

    Args:
        config: Settings, a dataclass.
        n_days: Number of recording days; None makes no day layers, for a network that reads
            patches that another network has made.
    """

    def __init__(self, config: Any, *, n_days: int | None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.config: Any = config
        self.n_days = n_days
        if n_days is not None:
            own = {"dtype": self.dtype_policy}
            self.days = DayAffine(
                n_days, trainable=self.config.input_network.input_trainable, **own
            )
            self.patches = Patches(self.config.patch_size, self.config.patch_stride, **own)

    def n_patches(self, n_bins: Any) -> Any:
        """Return the frames of logits for `n_bins` bins (an int, array or tensor)."""
        return count_patches(self.config, n_bins)

    def patch_width(self, inputs_shape: Any) -> int:
        """Return the number of values in a patch, from the shapes of the arguments of `call`."""
        if self.n_days is None:
            return int(inputs_shape[-1])
        n_features: int = inputs_shape["features"][-1]
        return n_features * max(int(self.config.patch_size), 1)

    def build_inputs(self, inputs_shape: Any) -> None:
        """Make the weights of the day layers, if there are any."""
        if self.n_days is not None:
            self.days.build(inputs_shape["features"])
            self.patches.build(inputs_shape["features"])

    def inputs_of(self, inputs: Any, training: bool) -> Any:
        """Make patches [B, P, I] of a batch; without day layers, return the input."""
        if self.n_days is None:
            return inputs
        x_BTC = ops.softsign(self.days(inputs["features"], inputs["day"]))
        return self.patches(
            dropout(x_BTC, self.config.input_network.input_layer_dropout, self.seeds, training)
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `from_config`."""
        own = {
            "config": to_mapping(self.config),
            "n_days": self.n_days,
            "accumulation": self.accumulation,
        }
        policy = keras.saving.serialize_keras_object(self.dtype_policy)
        return {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": policy,
            "seed": self.seeds.seed,
            **own,
        }


class Recurrent(DayLayers):
    """A GRU that begins in a learnt state, and a linear map to `n_out` values.

    If `n_out` is None, the hidden units are the output.
    """

    def __init__(
        self,
        config: Any,
        *,
        n_units: int,
        n_layers: int,
        n_days: int | None,
        n_out: int | None,
        **kwargs: Any,
    ) -> None:
        super().__init__(config, n_days=n_days, **kwargs)
        own = {"dtype": self.dtype_policy}
        self.n_units = n_units
        self.n_out = n_out
        learns = getattr(self.config, "rnn_trainable", True)
        self.gru = [
            GRULayer(n_units, name=f"gru_{layer}", trainable=learns, **own)
            for layer in range(n_layers)
        ]
        bound = n_units**-0.5
        biases = keras.initializers.RandomUniform(-bound, bound)
        self.out = (
            None
            if n_out is None
            else keras.layers.Dense(n_out, bias_initializer=biases, name="out", **own)
        )

    def build(self, inputs_shape: Any) -> None:
        """Make the weights for a batch, or for patches [B, P, I]."""
        width = self.patch_width(inputs_shape)
        self.build_inputs(inputs_shape)
        for layer in self.gru:
            layer.build((None, None, width))
            width = self.n_units
        if self.out is not None:
            self.out.build((None, None, width))
        bound = (3 / self.n_units) ** 0.5  # Xavier's, as the release has it
        self.h0 = self.add_weight(
            (1, 1, self.n_units), keras.initializers.RandomUniform(-bound, bound), name="h0"
        )
        self.built = True

    def call(self, inputs: Any, state: Any = None, training: bool = False) -> tuple[Any, Any]:
        """Compute the output [B, P, .] and the states [L, B, D] after the last patch.

        Args:
            inputs: A batch; without day layers, patches [B, P, I].
            state: States to continue from; None takes the learnt one.
            training: Drop values.
        """
        x_BPI = self.inputs_of(inputs, training)
        n_trials = ops.shape(x_BPI)[0]
        first_BD = ops.broadcast_to(ops.convert_to_tensor(self.h0)[0], (n_trials, self.n_units))
        last = []
        for number, layer in enumerate(self.gru):
            if number:
                x_BPI = dropout(x_BPI, self.config.rnn_dropout, self.seeds, training)
            x_BPI, state_BD = layer(
                x_BPI, initial_state=first_BD if state is None else state[number]
            )
            last.append(state_BD)
        return x_BPI if self.out is None else self.out(x_BPI), ops.stack(last)


class _Classifier(Recurrent):
    """A recurrent network whose outputs are logits."""

    def __init__(
        self, config: Any, *, n_classes: int, n_days: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(config, n_days=n_days, n_out=n_classes, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `from_config`."""
        return {**super().get_config(), "n_classes": self.n_out}


def _settings(cls: type, config: Any) -> Any:
    """Return a settings dataclass, from a mapping (as of `get_config`) or unchanged."""
    return config if dataclasses.is_dataclass(config) else from_mapping(cls, config)


@register
class GRU(_Classifier):
    """The baseline: day layer, patches, GRU, output."""

    def __init__(self, config: Any, *, n_days: int, n_classes: int, **kwargs: Any) -> None:
        config = _settings(GRUConfig, config)
        shape = {"n_units": config.n_units, "n_layers": config.n_layers}
        super().__init__(config, n_days=n_days, n_classes=n_classes, **shape, **kwargs)


@register
class CleanSpeechModel(_Classifier):
    """The decoder: the network that computes logits [B, P, V] of patches without noise.

    With `n_days` it has day layers of its own and can be used alone.
    """

    def __init__(
        self, config: Any, *, n_classes: int, n_days: int | None = None, **kwargs: Any
    ) -> None:
        config = _settings(TripleGRUConfig, config)
        shape = {"n_units": config.clean_units, "n_layers": config.clean_layers}
        super().__init__(config, n_days=n_days, n_classes=n_classes, **shape, **kwargs)


@register
class NoisySpeechModel(_Classifier):
    """The adversary: the network that computes logits [B, P, V] of the noise in patches.

    It has no day layers, because the patches that the noise is estimated from have passed them.
    """

    def __init__(self, config: Any, *, n_classes: int, **kwargs: Any) -> None:
        config = _settings(TripleGRUConfig, config)
        shape = {"n_units": config.noisy_units, "n_layers": config.noisy_layers}
        super().__init__(config, n_classes=n_classes, n_days=None, **shape, **kwargs)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `from_config`."""
        return {name: value for name, value in super().get_config().items() if name != "n_days"}


@register
class NoiseModel(Recurrent):
    """The network that estimates the noise [B, P, I] in patches.

    With `n_days` it has day layers of its own and can be used alone. If a patch has as many values
    as the network has hidden units, the units are the estimate; `build` decides it.
    """

    def __init__(self, config: Any, *, n_days: int | None = None, **kwargs: Any) -> None:
        config = _settings(TripleGRUConfig, config)
        shape = {"n_units": config.noise_units, "n_layers": config.noise_layers}
        super().__init__(config, n_days=n_days, n_out=None, **shape, **kwargs)

    def build(self, inputs_shape: Any) -> None:
        """Make the weights for a batch, or for patches [B, P, I]."""
        width = self.patch_width(inputs_shape)
        if width != self.n_units:
            bound = self.n_units**-0.5
            biases = keras.initializers.RandomUniform(-bound, bound)
            self.out = keras.layers.Dense(
                width, bias_initializer=biases, name="out", dtype=self.dtype_policy
            )
        super().build(inputs_shape)


@register
class TripleGRU(DayLayers):
    """Day layers, patches, and the three networks of the adversarial model."""

    def __init__(self, config: Any, *, n_days: int, n_classes: int, **kwargs: Any) -> None:
        super().__init__(_settings(TripleGRUConfig, config), n_days=n_days, **kwargs)
        self.n_classes = n_classes
        own: dict[str, Any] = {"dtype": self.dtype_policy}
        self.noise_model = NoiseModel(self.config, **own)
        self.clean_speech_model = CleanSpeechModel(self.config, n_classes=n_classes, **own)
        self.noisy_speech_model = NoisySpeechModel(self.config, n_classes=n_classes, **own)
        self.reversal = GradientReversal(**own)
        for network in (self.noise_model, self.clean_speech_model, self.noisy_speech_model):
            # One sequence of seeds, so that no two networks drop the same units.
            network.seeds = self.seeds

    def build(self, inputs_shape: Any) -> None:
        """Make the weights for a batch."""
        self.build_inputs(inputs_shape)
        patches_shape = (None, None, self.patch_width(inputs_shape))
        self.reversal.build(patches_shape)
        for network in (self.noise_model, self.clean_speech_model, self.noisy_speech_model):
            network.build(patches_shape)
        self.built = True

    def call(
        self,
        inputs: Mapping[str, Any],
        state: Any = None,
        mode: str = "inference",
        reversal: Any = 0.0,
        training: bool = False,
    ) -> Any:
        """Compute the logits of a batch.

        Args:
            inputs: A batch.
            state: States of both networks to continue from; None takes the learnt ones.
            mode: `inference` leaves the adversary out; `full` is for training.
            reversal: Factor of the adversary's gradient, sign reversed, at the noise model: a
                float32 scalar.
            training: Drop values.

        Returns:
            For `inference`, logits [B, P, V] (not normalised) and the states after the last patch.
            For `full`, the same logits, those of the adversary [B, P, V], and the noise [B, P, I].
        """
        x_BPI = self.inputs_of(inputs, training)
        noise_state, clean_state = state or (None, None)
        noise_BPI, noise_state = self.noise_model(x_BPI, state=noise_state, training=training)
        clean_BPV, clean_state = self.clean_speech_model(
            x_BPI - noise_BPI, state=clean_state, training=training
        )
        if mode == "inference":
            return clean_BPV, (noise_state, clean_state)
        noisy_BPV, _ = self.noisy_speech_model(
            self.reversal(noise_BPI, strength=reversal), training=training
        )
        return clean_BPV, noisy_BPV, noise_BPI

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `from_config`."""
        return {**super().get_config(), "n_classes": self.n_classes}


MODELS: dict[str, type[DayLayers]] = {"gru": GRU, "triple_gru": TripleGRU}
"""Models by their `kind`, as in `cortext.models.MODELS`."""


def keras_model(
    config: TrainConfig, *, n_features: int, n_days: int, n_classes: int, bf16: bool = False
) -> Any:
    """Build and compile the model of a run, with its weights, optimiser and loss.

    Args:
        config: Configuration of the run.
        n_features: Features of a bin, C.
        n_days: Number of recording days.
        n_classes: Number of tokens, V.
        bf16: Multiply matrices in bfloat16; by default in float32.

    Raises:
        ConfigError: For a model, a loss or a schedule that has no Keras form.
    """
    if config.model.kind not in MODELS:
        problem = f"model {config.model.kind!r} has no Keras form"
        raise ConfigError(problem, fix=f"use --backend torch, or the model {' or '.join(MODELS)}")
    for name in ("diphones", "intermediate_layer"):
        if getattr(config.model, name, None):
            raise ConfigError(f"model.{name} has no Keras form", fix="use --backend torch")
    for name, value, has_form in (
        ("model.input_network.day_layer", config.model.input_network.day_layer, ("softsign",)),
        ("lr_scheduler_type", config.lr_scheduler_type, ("cosine", "linear")),
    ):
        if value not in has_form:
            raise ConfigError(
                f"{name} {value!r} has no Keras form",
                fix=f"use --backend torch, or {' or '.join(has_form)}",
            )
    if config.model.input_network.read_in is not None:
        problem = "model.input_network.read_in has no Keras form"
        raise ConfigError(problem, fix="use --backend torch, or leave it out")
    loss = keras_loss(config)
    model = MODELS[config.model.kind](
        config.model,
        n_days=n_days,
        n_classes=n_classes,
        seed=config.seed,
        accumulation=config.gradient_accumulation_steps,
        dtype="mixed_bfloat16" if bf16 else "float32",
    )
    model.build({"features": (None, None, n_features), "day": (None,)})
    model.compile(optimizer=DayAdamW.of(config), loss=loss)
    return model
