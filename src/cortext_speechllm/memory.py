"""A speech LLM's memory and time on a GPU, computed from shapes without a measurement."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cortext.errors import ConfigError, LanguageModelError, nearest
from cortext.models import build_model
from cortext_lm.llm.loading import free_gpu_bytes
from cortext_speechllm.audio_llm.cost import (
    LanguageWork,
    Load,
    facts_of,
    frozen_bytes,
    lora_parameters,
    tower_bytes,
)
from cortext_speechllm.audio_llm.facts import AudioFacts
from cortext_speechllm.config import SpeechLLMConfig, read_speech_config
from cortext_speechllm.network import SpeechNetwork

TRAINED_BYTES = 4 + 4 + 8 + 2
"""Bytes of a trainable parameter.

The parameter, its gradient, AdamW's two means, and the bfloat16 copy under autocast.
"""

ALIGNMENT_BYTES = 6 * 4
"""Bytes that the alignment loss keeps for a number of the brain's sequence.

The number, its stretched and its normalised value, the audio's number, and their gradients.
"""

MARGIN = 1.05
"""Ratio of the free memory that is needed to the memory that is counted.

An allocator leaves gaps, and kernels need memory to work in.
"""


@dataclass(frozen=True)
class GPU:
    """A GPU by its data sheet: bfloat16 products without sparsity, and memory."""

    name: str
    flops_s: float
    bandwidth_bytes_s: float
    memory_bytes: float = 80e9


GPUS = {
    "h100": GPU("H100 SXM, 80 GB", 989.4e12, 3.35e12),
    "a100": GPU("A100 SXM, 80 GB", 312e12, 2.039e12),
}
"""GPUs by their names on the command line."""


@dataclass(frozen=True)
class Estimate:
    """Bytes of a GPU's memory by purpose, and floating-point operations."""

    training: dict[str, int]
    """Bytes at the peak of a batch."""
    generation: dict[str, int]
    """Bytes while a batch of sentences is written; empty where none can be."""
    training_flops: float
    """Operations of the language model in a batch.

    The encoder's are left out. They are few, and its steps wait for each other: its operations do
    not give its time.
    """
    generation_flops: float
    """Operations of writing a batch of sentences at their greatest length."""
    step_bytes: int
    """Bytes read to add one token to each of those sentences: weights and cache."""
    steps: int
    """Tokens of the longest sentence."""

    @property
    def training_bytes(self) -> int:
        """Bytes of training."""
        return sum(self.training.values())

    @property
    def generation_bytes(self) -> int:
        """Bytes of writing sentences."""
        return sum(self.generation.values())

    @property
    def needed_bytes(self) -> int:
        """Bytes of training with its validations: the larger of both."""
        return max(self.training_bytes, self.generation_bytes)

    def training_hours(self, n_batches: int, gpu: GPU, share: float) -> float:
        """Return the hours of the language model's operations.

        Args:
            n_batches: Batches of the training.
            gpu: The GPU.
            share: Share of the GPU's peak operations that is reached, above 0 and at most 1.
        """
        return n_batches * self.training_flops / (share * gpu.flops_s) / 3600

    def generation_s(self, gpu: GPU, share: float) -> float:
        """Return the seconds for a batch of sentences, at that share of the GPU's peak rates."""
        return (
            self.generation_flops / gpu.flops_s
            + self.steps * self.step_bytes / gpu.bandwidth_bytes_s
        ) / share


def estimate(config: SpeechLLMConfig, facts: AudioFacts, load: Load | None = None) -> Estimate:
    """Estimate the memory and operations of one stage of a training, with its validations.

    Args:
        config: Configuration of the stage.
        facts: Shapes of its audio language model.
        load: The longest trial, and the number of days; by default `Load()`.

    Raises:
        ConfigError: For a model that cannot be the encoder, and for matrices that LoRA cannot be
            added to.
    """
    load = load or Load()
    speech = config.speech
    batch = config.dataset.batch_size
    network = _network(config, facts, load)
    n_trials = math.ceil(batch / config.gradient_accumulation_steps)
    n_patches = int(network.n_patches(load.n_bins))
    n_learns = sum(each.numel() for each in network.parameters()) + lora_parameters(
        speech.lora, facts
    )
    weights = 0
    if speech.reads_language_model:
        weights = frozen_bytes(facts, load, speech.quantize) - tower_bytes(facts, load)
    training = {
        "frozen weights": weights,
        "what learns, with AdamW": TRAINED_BYTES * n_learns,
        "kept of the encoder": _encoder_kept(network, n_trials, n_patches, load),
        "alignment": (
            ALIGNMENT_BYTES * n_trials * n_patches * facts.audio_width if speech.alpha else 0
        ),
    }
    generation = dict[str, int]()
    flops = 0.0
    generation_flops = 0.0
    step_bytes = 0
    if speech.beta:
        piece = LanguageWork(facts, speech, load, n_trials, n_patches)
        training = training | piece.training_parts()
        flops = piece.training_flops()
        writing = replace(piece, n_trials=min(batch, max(config.val_wer_trials, 1)))
        generation = {
            "frozen weights": weights,
            "what learns, with AdamW": TRAINED_BYTES * n_learns,
        }
        generation = generation | writing.generation_parts()
        generation_flops = writing.generation_flops()
        step_bytes = weights + generation["keys and values"]
    return Estimate(
        training=training,
        generation=generation,
        training_flops=flops * batch / n_trials,
        generation_flops=generation_flops,
        step_bytes=step_bytes,
        steps=speech.generation.max_length,
    )


def _network(config: SpeechLLMConfig, facts: AudioFacts, load: Load) -> SpeechNetwork:
    """Return encoder and projector without weights (device meta)."""
    with torch.device("meta"):
        encoder = build_model(
            config.model,
            n_features=load.n_features,
            n_days=load.n_days,
            n_classes=load.n_classes,
        )
        return SpeechNetwork(encoder, config.speech, facts.audio_width, llm=None)


def _encoder_kept(network: SpeechNetwork, n_trials: int, n_patches: int, load: Load) -> int:
    """Estimate the bytes that autograd keeps of the encoder.

    Day layers keep four float32 copies of the bins, recurrent layers six numbers per unit.
    """
    n_recurrent = sum(
        each.shape[1] for name, each in network.named_parameters() if "weight_hh" in name
    )
    width = max(network.config.patch_size, 1) * load.n_features + 6 * n_recurrent
    n_bytes: int = n_trials * (
        4 * 4 * load.n_bins * load.n_features + n_patches * width * load.number_bytes
    )
    return n_bytes


def savings(config: SpeechLLMConfig) -> Iterator[tuple[str, SpeechLLMConfig]]:
    """Yield settings that take less memory and give nearly the same result.

    Each is the setting as a text, and the configuration with it.
    """
    speech, steps = config.speech, config.gradient_accumulation_steps
    if speech.beta and not speech.gradient_checkpointing:
        yield "speech.gradient_checkpointing=true", _with(config, gradient_checkpointing=True)
    if 2 * steps <= config.dataset.batch_size:
        yield (
            f"gradient_accumulation_steps={2 * steps}",
            replace(config, gradient_accumulation_steps=2 * steps),
        )
    if speech.reads_language_model and speech.quantize is None:
        yield "speech.quantize=8bit", _with(config, quantize="8bit")
    if speech.reads_language_model and speech.quantize != "4bit":
        yield "speech.quantize=4bit", _with(config, quantize="4bit")
    if speech.writes and speech.generation.beams > 1:
        beams = replace(speech.generation, beams=speech.generation.beams // 2)
        yield f"speech.generation.beams={beams.beams}", _with(config, generation=beams)


def _with(config: SpeechLLMConfig, **changes: Any) -> SpeechLLMConfig:
    return replace(config, speech=replace(config.speech, **changes))


def check_gpu_memory(
    config: SpeechLLMConfig,
    facts: AudioFacts,
    device: str | torch.device = "cuda",
    load: Load | None = None,
    free_bytes: float | None = None,
) -> Estimate:
    """Raise LanguageModelError where a training does not fit; return its estimate.

    The message gives the needed and the free memory, and the settings to change.

    Args:
        config: The training.
        facts: Shapes of its audio language model.
        device: The GPU.
        load: The longest trial, and the number of days; by default `Load()`.
        free_bytes: Free memory of the device; None asks the GPU.
    """
    need = estimate(config, facts, load)
    free = free_gpu_bytes(torch.device(device)) if free_bytes is None else free_bytes
    if MARGIN * need.needed_bytes > free:
        problem = (
            f"not enough GPU memory: about {_gb(MARGIN * need.needed_bytes)} are needed, and"
            f" {device} has {_gb(free)}"
        )
        raise LanguageModelError(
            problem, where=config.speech.audio_llm, fix=_advice(config, facts, load, free)
        )
    return need


@dataclass(frozen=True)
class Planned:
    """A stage of a training on a GPU, estimated."""

    stage: str
    n_batches: int
    estimate: Estimate
    problem: str | None
    """Error message of a stage that does not fit, with the settings to change; None if it fits."""


def plan(
    config: SpeechLLMConfig | str | Path,
    gpu: GPU,
    *,
    overrides: Iterable[str] = (),
    audio_llm: str | None = None,
    load: Load | None = None,
) -> list[Planned]:
    """Estimate each stage of a training on an otherwise empty GPU.

    Args:
        config: A configuration, a YAML file, or a shipped recipe.
        gpu: One of `GPUS`.
        overrides: `key=value` changes of the configuration.
        audio_llm: Audio language model; None takes the configuration's. A name in `PUBLISHED` needs
            no download.
        load: The longest trial, and the number of days; by default `Load()`.

    Raises:
        ConfigError: For a wrong configuration, and for trials shorter than a patch.
        LanguageModelError: Where the audio language model cannot be read.
    """
    settings = read_speech_config(config, overrides).with_audio_llm(audio_llm)
    facts = facts_of(settings.speech.audio_llm)
    planned = list[Planned]()
    load = load or Load()
    network = _network(settings, facts, load)
    if network.n_patches(load.n_bins) < 1:
        size = network.config.patch_size
        raise ConfigError(
            f"{load.n_bins} bins are not one patch of {size}", fix=f"give --n-bins {size} or more"
        )
    for name, stage in settings.in_stages():
        need = estimate(stage, facts, load)
        problem = None
        try:
            check_gpu_memory(stage, facts, gpu.name, load, gpu.memory_bytes)
        except LanguageModelError as error:
            problem = str(error)
        planned.append(Planned(name, stage.num_training_batches, need, problem))
    return planned


def gpu_named(name: str) -> GPU:
    """Return the GPU of that name in `GPUS`. Raises ConfigError for another name."""
    if name not in GPUS:
        raise ConfigError(f"no GPU is known as {name!r}; {nearest(name, GPUS)}")
    return GPUS[name]


def _advice(config: SpeechLLMConfig, facts: AudioFacts, load: Load | None, free: float) -> str:
    """Return the setting that saves most memory, and the others that are needed with it."""
    chosen = dict[str, str]()
    needed = math.inf
    first = "no setting lowers it"
    while MARGIN * needed > free:
        tried = [
            (estimate(other, facts, load).needed_bytes, setting, other)
            for setting, other in savings(config)
        ]
        if not tried or min(tried, key=lambda each: each[0])[0] >= needed:
            return f"{first}; use a smaller audio LLM"
        needed, setting, config = min(tried, key=lambda each: each[0])
        if not chosen:
            first = f"{setting} lowers it most, to {_gb(MARGIN * needed)}"
        chosen[setting.split("=")[0]] = setting
    together = f"{' '.join(chosen.values())} together to {_gb(MARGIN * needed)}"
    return first if len(chosen) == 1 else f"{first}; {together}"


def _gb(n_bytes: float) -> str:
    return f"{n_bytes / 1e9:.1f} GB"
