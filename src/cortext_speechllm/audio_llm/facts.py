"""Widths and sizes of audio LLMs, read from their configuration before any weight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from cortext.errors import LanguageModelError
from cortext_lm.llm.explain import explained
from cortext_lm.llm.loading import check_config, quiet, read_config
from cortext_lm.llm.weight_files import check_directory, check_weight_files

KIND = "audio LLM"
PARTS = ("audio_tower", "multi_modal_projector", "language_model")
AERO = "aero"
"""Model type of Aero-1-Audio: Qwen2-Audio's parts, some by other names."""


@dataclass(frozen=True)
class AudioFacts:
    """Widths and sizes of an audio LLM, from its configuration."""

    model_class: str
    audio_width: int
    """Width of the tower's frames, the projector's input."""
    text_width: int
    """Width of the language model's embeddings."""
    vocab_size: int
    layers: int
    """Layers of the language model; the heads and the feed-forward width are its, too."""
    heads: int
    key_value_heads: int
    head_width: int
    feed_forward_width: int
    n_parameters: int
    n_tower_parameters: int
    n_projector_parameters: int
    n_language_parameters: int
    """Parameters of the language model with its embeddings, without its output layer."""


def read_audio_config(transformers: Any, name: str) -> Any:
    """Read the configuration of an audio LLM.

    Raises LanguageModelError where there is none, or it is of another kind.
    """
    with quiet(transformers), explained(name, "its configuration cannot be read"):
        check_directory(name)
        written, _ = transformers.PreTrainedConfig.get_config_dict(name)
        if written.get("model_type") != AERO:
            return read_config(transformers, name)
        check_config(written, name)
        check_weight_files(transformers, name, written)
        tower = written["audio_config"]
        if tower.get("model_type") != "qwen2_audio_encoder":
            raise LanguageModelError(
                f"its audio tower is {tower.get('model_type')}, which is not known", where=name
            )
        parts = {
            each: written[each] for each in ("audio_config", "text_config", "audio_token_index")
        }
        config = transformers.Qwen2AudioConfig(**parts)
        config._commit_hash = written.get("_commit_hash")
        config.written_as = AERO
        return config


def auto_class(transformers: Any, config: Any) -> Any:
    """Return transformers' class for a configuration that reads audio and writes text, or None."""
    makers = (transformers.AutoModelForMultimodalLM, transformers.AutoModelForSeq2SeqLM)
    return next((maker for maker in makers if type(config) in maker._model_mapping), None)


def read_facts(transformers: Any, config: Any, name: str) -> AudioFacts:
    """Return widths and sizes of an audio LLM, from a network without weights (device meta).

    Args:
        transformers: The library.
        config: Configuration of the model, see `read_audio_config`.
        name: Name of the model, for messages.

    Raises:
        LanguageModelError: For a network that lacks one of `PARTS`, and for a configuration that
            transformers cannot build.
    """
    fix = "give a model of the class Qwen2AudioForConditionalGeneration, or one made the same way"
    with quiet(transformers), explained(name, f"cannot be built as an {KIND}"):
        maker = auto_class(transformers, config)
        if maker is None:
            raise LanguageModelError(
                f"is no {KIND}, but of the type {config.model_type}", where=name, fix=fix
            )
        with torch.device("meta"):
            network = maker.from_config(config, trust_remote_code=False)
        body = getattr(network, "model", None)
        if lacking := [part for part in PARTS if not hasattr(body, part)]:
            raise LanguageModelError(
                f"is no {KIND}: it has no {' and no '.join(lacking)}", where=name, fix=fix
            )
        return _facts(network)


def _facts(network: Any) -> AudioFacts:
    body = network.model
    text = network.config.get_text_config(decoder=True)
    first = next(
        each for each in body.multi_modal_projector.modules() if isinstance(each, torch.nn.Linear)
    )
    heads = text.num_attention_heads
    return AudioFacts(
        model_class=type(network).__name__,
        audio_width=first.in_features,
        text_width=text.hidden_size,
        vocab_size=text.vocab_size,
        layers=text.num_hidden_layers,
        heads=heads,
        key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_width=getattr(text, "head_dim", None) or text.hidden_size // heads,
        feed_forward_width=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
        n_parameters=_count(network.parameters()),
        n_tower_parameters=_count(body.audio_tower.parameters()),
        n_projector_parameters=_count(body.multi_modal_projector.parameters()),
        n_language_parameters=_count(body.language_model.parameters()),
    )


def _count(parameters: Iterable[torch.Tensor]) -> int:
    return sum(each.numel() for each in parameters)
