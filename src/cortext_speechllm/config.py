"""Settings of a speech LLM: a training run's, with section `speech` and stages."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from cortext.config import check_fields, from_mapping, to_mapping
from cortext.errors import ConfigError, nearest
from cortext.settings import ABOVE_0, AT_LEAST_0, FROM_0_BELOW_1, Setting
from cortext.training.config import TrainConfig, read_train_config

LANGUAGE_MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass
class LoRAConfig:
    """Section `speech.lora`: LoRA on the frozen language model.

    The defaults are those of BIT (2511.21740).
    """

    r: Annotated[int, Setting(minimum=1, maximum=65_536)] = 8
    """Rank of the added matrices."""
    alpha: Annotated[float, ABOVE_0] = 32.0
    """Scale: the product of the added matrices is scaled by alpha / r."""
    dropout: Annotated[float, FROM_0_BELOW_1] = 0.2
    """Dropout before the added matrices."""
    modules: list[str] = field(default_factory=lambda: list(LANGUAGE_MATRICES))
    """Names of the matrices of a layer that get LoRA."""

    def __post_init__(self) -> None:
        check_fields(self, "speech.lora.")
        if not self.modules:
            raise ConfigError(
                "speech.lora.modules names no matrix", fix="name some, or set speech.lora to null"
            )


@dataclass
class GenerationConfig:
    """Section `speech.generation`: options of writing a sentence."""

    beams: Annotated[int, Setting(minimum=1, maximum=1000)] = 4
    """Hypotheses kept at each step; 1 takes the likeliest token each time."""
    max_length: Annotated[int, Setting(minimum=1, maximum=10_000)] = 50
    """Most tokens of a sentence."""
    min_length: Annotated[int, Setting(minimum=0, maximum=10_000)] = 1
    """Fewest tokens of a sentence."""
    length_penalty: float = 1.0
    """Sentences of different lengths are compared by log-probability / length ** length_penalty."""

    def __post_init__(self) -> None:
        check_fields(self, "speech.generation.")
        if self.min_length > self.max_length:
            what = (
                f"speech.generation.min_length is {self.min_length}, and max_length is"
                f" {self.max_length}"
            )
            raise ConfigError(what, fix="make it smaller")
        if not math.isfinite(self.length_penalty):
            raise ConfigError(
                f"speech.generation.length_penalty is {self.length_penalty}; it must be finite"
            )


@dataclass
class SpeechConfig:
    """Section `speech`: the audio language model and the losses."""

    audio_llm: str = "Qwen/Qwen2-Audio-7B-Instruct"
    """The audio language model: a directory, or OWNER/NAME on the Hugging Face Hub."""
    prompt: str = "Write down what is said."
    """Instruction to the language model, beside the sound."""
    lora: LoRAConfig | None = None
    """LoRA on the language model; null leaves it as it is."""
    quantize: Literal["4bit", "8bit"] | None = None
    """Load the frozen language model's matrices in fewer bits (bitsandbytes, on a GPU)."""
    gradient_checkpointing: bool = False
    """Compute the language model's layers again in the backward pass, instead of keeping their
    results.
    """
    compile: bool = False
    """Compile the language model's layers (torch.compile)."""
    projector_dropout: Annotated[float, FROM_0_BELOW_1] = 0.0
    """Dropout before the projector."""
    merge_blanks: bool = False
    """Give the language model one vector for each run of patches with the same likeliest token,
    and none for blanks. The sequence is as short as the sentence's phonemes. The encoder must have
    been trained with CTC.
    """

    alignment: Literal["cosine", "mse", "soft_dtw", "attention"] = "cosine"
    """Distance of the projected patches from the audio tower's frames of the same sentence, see
    docs/guides/speech-llm-training.md.
    """
    alpha: Annotated[float, AT_LEAST_0] = 1.0
    """Weight of the alignment loss; 0 needs no cached speech."""
    beta: Annotated[float, AT_LEAST_0] = 1.0
    """Weight of the cross-entropy of the sentence's tokens."""
    gamma: Annotated[float, AT_LEAST_0] = 0.0
    """Weight of the contrastive loss between pooled brain and text embeddings (symmetric
    InfoNCE).
    """
    ctc: Annotated[float, AT_LEAST_0] = 0.0
    """Weight of the CTC loss of the encoder's own phonemes."""
    temperature: Annotated[float, ABOVE_0] = 0.1
    """Temperature of the contrastive loss."""
    generation: GenerationConfig = field(default_factory=GenerationConfig)
    """Options of writing sentences, at validations and by default afterwards."""

    def __post_init__(self) -> None:
        check_fields(self, "speech.")
        if not any((self.alpha, self.beta, self.gamma, self.ctc)):
            raise ConfigError(
                "speech: every loss has weight 0", fix="give alpha, beta, gamma or ctc a weight"
            )
        if self.lora is not None and not self.beta:
            what = (
                "speech.lora adds to the language model, and speech.beta, by which that would"
                " learn, is 0"
            )
            raise ConfigError(what, fix="set speech.lora to null, or speech.beta above 0")

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the losses by name."""
        return {
            "alignment": self.alpha,
            "tokens": self.beta,
            "contrastive": self.gamma,
            "ctc": self.ctc,
        }

    @property
    def reads_language_model(self) -> bool:
        """True where training needs the language model's weights, not only its tower's width."""
        return bool(self.beta or self.gamma)

    @property
    def writes(self) -> bool:
        """True where the training teaches to write sentences: the tokens' loss has a weight."""
        return bool(self.beta)


@dataclass
class StageConfig:
    """One of `stages`: a training of its own, which starts from the weights of the one before."""

    name: str
    """Name of its directory, `stages/NAME` in the run; the last stage is the run itself."""
    set: dict[str, Any] = field(default_factory=dict)
    """Changes to the rest of the configuration, by dotted key."""

    def __post_init__(self) -> None:
        if not self.name.replace("-", "").replace("_", "").isalnum():
            raise ConfigError(
                f"stages: a name is {self.name!r}; letters, digits, '-' and '_' can name a stage"
            )


@dataclass
class SpeechLLMConfig(TrainConfig):
    """A training of a speech LLM: a training run with section `speech`, in one or more stages."""

    speech: SpeechConfig = field(default_factory=SpeechConfig)
    """The audio language model and the losses."""
    stages: list[StageConfig] = field(default_factory=list)
    """Trainings one after the other; empty for a single one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss is not None:
            raise ConfigError(
                "loss is set; the losses of a speech LLM are in section speech",
                fix="leave loss out",
            )
        if self.task is not None:
            raise ConfigError("task is set; a speech LLM is a task itself", fix="leave task out")
        names = [stage.name for stage in self.stages]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"two stages have one name: {', '.join(names)}", fix="give each its own"
            )

    def in_stages(self) -> list[tuple[str, SpeechLLMConfig]]:
        """Return name and configuration of each training, in order.

        Raises ConfigError for a setting that a stage cannot change.
        """
        if not self.stages:
            return [("", self)]
        return [(stage.name, self._at(stage)) for stage in self.stages]

    def _at(self, stage: StageConfig) -> SpeechLLMConfig:
        mapping = to_mapping(self) | {"stages": []}
        for key, value in stage.set.items():
            section = mapping
            *parents, last = key.split(".")
            for parent in parents:
                if not isinstance(section.get(parent), dict):
                    raise ConfigError(
                        f"stage {stage.name!r} sets {key}, which there is not;"
                        f" {nearest(parent, section)}"
                    )
                section = section[parent]
            section[last] = value
        try:
            return from_mapping(SpeechLLMConfig, mapping)
        except ConfigError as error:
            raise ConfigError(f"stage {stage.name!r}: {error.what}", fix=error.fix) from None

    def with_audio_llm(self, name: str | None) -> SpeechLLMConfig:
        """Return the configuration with another audio language model; None changes nothing."""
        return self if name is None else replace(self, speech=replace(self.speech, audio_llm=name))


def read_speech_config(
    config: SpeechLLMConfig | str | Path, overrides: Iterable[str] = ()
) -> SpeechLLMConfig:
    """Read a configuration.

    Args:
        config: A configuration, a YAML file, or a shipped recipe (`speech_llm`, `speech_llm_best`).
        overrides: `key=value` texts.

    Raises:
        ConfigError: For a configuration that cannot be read or used.
    """
    found = read_train_config(config, overrides, SpeechLLMConfig)
    assert isinstance(found, SpeechLLMConfig)
    return found
