"""Memory and operations of an audio language model, by the shapes of its matrices.

Autograd's memory is counted for transformers' Qwen2 and Llama layers (RMSNorm in float32, SDPA with
a mask, a gated MLP), and LoRA's for peft. Other language models differ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cortext.errors import ConfigError
from cortext.extras import need
from cortext.text.inventory import RELEASE
from cortext_speechllm.audio_llm.facts import AudioFacts, read_audio_config, read_facts
from cortext_speechllm.config import LANGUAGE_MATRICES, LoRAConfig, SpeechConfig

QUANTIZED_BYTES = {"4bit": 0.5 + 4 / 64, "8bit": 1.0}
"""Bytes of a weight that bitsandbytes has quantised.

NF4 has a float32 scale for each 64 weights. The scale of a row of 8-bit weights is left out.
"""

LOGIT_BYTES = 2 + 4 + 4 + 4
"""Bytes of a logit in training, at most.

The logit in 16 bits, its log-probability, and the gradients of both in float32.
"""

SEARCH_BYTES = 2 + 4 + 4 + 4
"""Bytes of a logit in a beam search, at most.

The logit in 16 bits and in float32, its log-probability, and the hypothesis' sum with it.
"""

_QWEN2_AUDIO = AudioFacts(
    model_class="Qwen2AudioForConditionalGeneration",
    audio_width=1280,
    text_width=4096,
    vocab_size=156_032,
    layers=32,
    heads=32,
    key_value_heads=32,
    head_width=128,
    feed_forward_width=11_008,
    n_parameters=8_397_094_912,
    n_tower_parameters=636_968_960,
    n_projector_parameters=5_246_976,
    n_language_parameters=7_115_771_904,
)
_AERO = replace(  # the language model is Qwen2.5-1.5B with an output layer of its own
    _QWEN2_AUDIO,
    text_width=1536,
    vocab_size=151_936,
    layers=28,
    heads=12,
    key_value_heads=2,
    feed_forward_width=8960,
    n_parameters=2_416_024_576,
    n_projector_parameters=1_967_616,
    n_language_parameters=1_543_714_304,
)
PUBLISHED = {
    "Qwen/Qwen2-Audio-7B": _QWEN2_AUDIO,
    "Qwen/Qwen2-Audio-7B-Instruct": _QWEN2_AUDIO,
    "lmms-lab/Aero-1-Audio": _AERO,
    "lmms-lab/Aero-1-Audio-1.5B": _AERO,
}
"""Shapes of published audio language models, by name; they need no download."""


@dataclass(frozen=True)
class Load:
    """Sizes of a batch that the configuration does not give.

    The defaults are a long trial of Brain-to-Text '25.
    """

    n_bins: int = 544
    """Bins of a trial: 133 patches of 14 bins, one every 4 bins."""
    n_features: int = 512
    n_days: int = 45
    n_classes: int = len(RELEASE)
    """Tokens of the encoder's inventory."""
    prompt_tokens: int = 32
    """Tokens before and after the brain's embeddings, the chat template's included."""
    answer_tokens: int = 20
    """Tokens of a sentence, its end included."""
    bf16: bool = True
    """Weights and products are bfloat16, else float32."""

    @property
    def number_bytes(self) -> int:
        """Bytes of a number of the frozen model."""
        return 2 if self.bf16 else 4


def facts_of(name: str) -> AudioFacts:
    """Return the shapes of an audio LLM: those in `PUBLISHED`, else those of its configuration.

    Raises LanguageModelError where there is no audio LLM of that name.
    """
    if name in PUBLISHED:
        return PUBLISHED[name]
    transformers = need("transformers", "speechllm")
    return read_facts(transformers, read_audio_config(transformers, name), name)


def matrices(facts: AudioFacts) -> dict[str, tuple[int, int]]:
    """Return (inputs, outputs) of each matrix of one layer of the language model, by name."""
    width = facts.text_width
    inner = facts.heads * facts.head_width
    key_value = facts.key_value_heads * facts.head_width
    forward = facts.feed_forward_width
    sizes = ((width, inner), (width, key_value), (width, key_value), (inner, width))
    return dict(
        zip(
            LANGUAGE_MATRICES,
            (*sizes, (width, forward), (width, forward), (forward, width)),
            strict=True,
        )
    )


def lora_parameters(lora: LoRAConfig | None, facts: AudioFacts) -> int:
    """Return the number of weights that LoRA adds. Raises ConfigError for an unknown matrix."""
    if lora is None:
        return 0
    known = matrices(facts)
    if unknown := sorted(set(lora.modules) - set(known)):
        problem = f"speech.lora.modules names {', '.join(unknown)}, of which the size is not known"
        raise ConfigError(problem, fix=f"name some of {', '.join(known)}")
    return facts.layers * lora.r * sum(sum(known[name]) for name in set(lora.modules))


def frozen_bytes(facts: AudioFacts, load: Load, quantize: str | None = None) -> int:
    """Return the bytes of the audio language model's weights.

    Args:
        facts: Shapes of the model.
        load: Type of the numbers.
        quantize: A key of `QUANTIZED_BYTES`, for the matrices of the language model's layers; None
            for no quantisation.
    """
    if quantize is None:
        return load.number_bytes * facts.n_parameters
    n_matrices = facts.layers * sum(a * b for a, b in matrices(facts).values())
    return int(
        QUANTIZED_BYTES[quantize] * n_matrices
        + load.number_bytes * (facts.n_parameters - n_matrices)
    )


def tower_bytes(facts: AudioFacts, load: Load) -> int:
    """Return the bytes of the audio tower's weights; training and writing do not load them."""
    return load.number_bytes * facts.n_tower_parameters


def layer_kept(
    facts: AudioFacts, lora: LoRAConfig | None, n_positions: int, load: Load, dropped_bytes: int = 1
) -> float:
    """Return the bytes that autograd keeps of a layer, for each position of a trial.

    Args:
        facts: Shapes of the model.
        lora: LoRA on the layer; None for none.
        n_positions: Positions of a trial.
        load: Type of the numbers.
        dropped_bytes: Bytes that dropout keeps for each number: a bool on a GPU, a float32 on a
            CPU.
    """
    each = load.number_bytes
    inner = facts.heads * facts.head_width
    norms = 2 * (4 * facts.text_width + 4)
    # Queries, keys, values and the result; the mask; the sums of the softmax.
    attention = each * (4 * inner + n_positions) + 4 * facts.heads
    kept = norms + attention + 3 * each * facts.feed_forward_width
    if lora is not None:
        sizes = matrices(facts)
        n_inputs = sum(sizes[name][0] for name in set(lora.modules))
        kept += (each + (dropped_bytes if lora.dropout else 0)) * n_inputs + each * lora.r * len(
            set(lora.modules)
        )
    return kept


@dataclass(frozen=True)
class LanguageWork:
    """The language model's memory and operations for a batch.

    Attributes:
        facts: Shapes of the model.
        speech: Settings of the training.
        load: Sizes of the longest trial, and the type of the numbers.
        n_trials: Trials of the batch.
        n_patches: Patches of the longest trial.
    """

    facts: AudioFacts
    speech: SpeechConfig
    load: Load
    n_trials: int
    n_patches: int

    @property
    def n_prompt(self) -> int:
        """Positions before the answer."""
        return self.load.prompt_tokens + self.n_patches

    @property
    def n_positions(self) -> int:
        """Positions of a trial in training; the end of an answer is only a target."""
        return self.n_prompt + self.load.answer_tokens - 1

    def training_parts(self) -> dict[str, int]:
        """Return the bytes beside weights and encoder, by purpose.

        The larger of two moments counts: the loss, or the gradients of a layer.
        """
        facts = self.facts
        each = self.load.number_bytes
        tokens = self.n_trials * self.n_positions
        lora = self.speech.lora
        gradients = 3 * each * facts.feed_forward_width
        if lora is not None:  # peft computes with float32 what goes into it, and drops of that
            widest = max(matrices(facts)[name][0] for name in lora.modules)
            gradients += (8 if lora.dropout else 4) * widest
        logits = self.n_trials * self.load.answer_tokens * facts.vocab_size
        kept = {"kept of the language model": self.kept()}
        at_loss = kept | {"logits of the answers": (LOGIT_BYTES + each - 2) * logits}
        at_layer = kept | {"gradients of a layer at work": tokens * gradients}
        if self.speech.gradient_checkpointing:
            at_layer["a layer computed again"] = self.layer_kept()
        return max(at_loss, at_layer, key=lambda parts: sum(parts.values()))

    def layer_kept(self, dropped_bytes: int = 1) -> int:
        """Return the bytes that autograd keeps of a layer for all trials; see the function."""
        each = layer_kept(self.facts, self.speech.lora, self.n_positions, self.load, dropped_bytes)
        return int(self.n_trials * self.n_positions * each)

    def kept(self, dropped_bytes: int = 1) -> int:
        """Return the bytes that autograd keeps of the forward pass.

        With checkpointing these are the inputs of each layer.
        """
        facts = self.facts
        each = self.load.number_bytes
        width = self.facts.text_width
        tokens = self.n_trials * self.n_positions
        last = 4 * width + 4  # the last norm
        if self.speech.gradient_checkpointing:
            return tokens * (facts.layers * each * width + last)
        angles = 2 * each * facts.head_width  # sines and cosines of positions
        return facts.layers * self.layer_kept(dropped_bytes) + tokens * (last + angles)

    def generation_parts(self) -> dict[str, int]:
        """Return the bytes beside weights while all trials' sentences are written, by purpose.

        The larger of two moments counts: the prompts, or the last token.
        """
        facts = self.facts
        each = self.load.number_bytes
        options = self.speech.generation
        position = (
            self.n_trials * 2 * facts.layers * facts.key_value_heads * facts.head_width * each
        )
        logits = self.n_trials * (SEARCH_BYTES + each - 2) * facts.vocab_size
        # The larger of the MLP and attention.
        layer = max(3 * facts.feed_forward_width + 3 * facts.text_width, 8 * facts.text_width)
        at_prompts = {
            "keys and values": self.n_prompt * position,
            "a layer at work on the prompts": self.n_trials * self.n_prompt * layer * each,
            "logits of the hypotheses": logits,
        }
        cache = options.beams * (self.n_prompt + options.max_length) * position
        at_end = {
            "keys and values": cache,
            "keys of a layer in a new order": cache // facts.layers // 2,
            "logits of the hypotheses": options.beams * logits,
        }
        return max(at_prompts, at_end, key=lambda parts: sum(parts.values()))

    def training_flops(self) -> float:
        """Return the operations of one forward and backward pass.

        Frozen weights have no gradients, but their inputs have.
        """
        facts = self.facts
        lora = self.speech.lora
        sizes = matrices(self.facts)
        products = 2 * sum(a * b for a, b in sizes.values())
        attention = 4 * self.n_positions * facts.heads * facts.head_width
        added = 2 * lora_parameters(lora, facts) / facts.layers
        # The backward pass computes attention's weights again: five products for two.
        layer: float = 2 * products + 3.5 * attention + 3 * added
        if self.speech.gradient_checkpointing:  # the forward pass again, without its last product
            layer += products + attention + added
            layer -= (
                0 if lora and "down_proj" in lora.modules else 2 * math.prod(sizes["down_proj"])
            )
        head = 4 * facts.text_width * facts.vocab_size * self.load.answer_tokens
        project = 4 * facts.audio_width * facts.text_width * self.n_patches
        return float(self.n_trials * (self.n_positions * facts.layers * layer + head + project))

    def generation_flops(self) -> float:
        """Return the operations of writing all sentences at their greatest length."""
        facts = self.facts
        options = self.speech.generation
        products = 2 * sum(a * b for a, b in matrices(facts).values())
        attention = 4 * facts.heads * facts.head_width  # for each position before
        written = options.beams * (
            options.max_length - 1
        )  # the prompt's last logits give the first token
        layer: float = self.n_prompt * (products + attention * self.n_prompt)
        layer += written * (products + attention * (self.n_prompt + options.max_length / 2))
        head = 2 * facts.text_width * facts.vocab_size * (1 + written)
        project = 2 * facts.audio_width * facts.text_width * self.n_patches
        return float(self.n_trials * (facts.layers * layer + head + project))
