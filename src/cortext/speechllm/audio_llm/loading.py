"""Loading of audio LLMs: what can be read before the weights, and the weights.

Configuration, processor, widths and sizes, revision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from cortext.decoding.llm.explain import explained
from cortext.decoding.llm.loading import free_bytes, free_gpu_bytes, quiet, read_config, revision_of
from cortext.errors import LanguageModelError
from cortext.extras import need

KIND = "audio LLM"
QUANTIZATIONS = ("4bit", "8bit")
PARTS = ("audio_tower", "multi_modal_projector", "language_model")
AERO = "aero"
"""Model type of Aero-1-Audio: Qwen2-Audio's parts, some by other names."""

_AERO_CHAT = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful"
    " assistant.<|im_end|>\n{% endif %}{% for each in messages %}<|im_start|>{{ each['role'] }}\n{%"
    " if each['content'] is string %}{{ each['content'] }}{% else %}{% for part in each['content']"
    " %}{% if part['type'] == 'audio' %}<|AUDIO|>\n{% else %}{{ part['text'] }}{% endif %}{% endfor"
    " %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{%"
    " endif %}"
)
"""Of Aero where no file has one: ChatML, the audio without marks around it."""


@dataclass(frozen=True)
class AudioFacts:
    """Widths and sizes of an audio LLM, as its configuration says."""

    model_class: str
    audio_width: int
    """Of the tower's frames, which the projector takes."""
    text_width: int
    """Of the language model's embeddings."""
    vocab_size: int
    layers: int
    """Of the language model, as are the heads and the feed-forward width."""
    heads: int
    key_value_heads: int
    head_width: int
    feed_forward_width: int
    n_parameters: int
    n_tower_parameters: int
    n_projector_parameters: int
    n_language_parameters: int
    """Embeddings among them, the output layer not."""


def read_audio_config(transformers: Any, name: str) -> Any:
    """The configuration of an audio LLM.

    LanguageModelError where there is none, or it is of another kind.
    """
    with quiet(transformers), explained(name, "its configuration cannot be read"):
        if Path(name).is_dir() and not (Path(name) / "config.json").is_file():
            fix = "give a directory that transformers saved a model in"
            raise LanguageModelError("has no config.json: it holds no model", where=name, fix=fix)
        written, _ = transformers.PreTrainedConfig.get_config_dict(name)
        if written.get("model_type") != AERO:
            return read_config(transformers, name)
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


def weight_kinds(
    transformers: Any, device: torch.device, quantize: str | None, bf16: bool | None
) -> dict[str, Any]:
    """Arguments of `from_pretrained` for the type and the place of the weights.

    See `AudioLLM.load`.
    """
    dtype: Any = {
        None: "auto" if device.type == "cuda" else torch.float32,
        True: torch.bfloat16,
        False: torch.float32,
    }
    kinds: dict[str, Any] = {"dtype": dtype[bf16]}
    if device.type == "cuda":
        kinds["device_map"] = {"": str(device)}
    if quantize:
        kept = ["model.audio_tower", "model.multi_modal_projector", "lm_head"]
        low: dict[str, Any] = {"load_in_8bit": True}
        if quantize == "4bit":
            low = dict(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
            )
        kinds["quantization_config"] = transformers.BitsAndBytesConfig(
            llm_int8_skip_modules=kept, **low
        )
    return kinds


def read_network(
    transformers: Any, config: Any, name: str, kinds: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """A model with its weights, and transformers' loading information.

    Args:
        transformers: The library.
        config: See `read_audio_config`.
        name: A directory, or a name on the Hub.
        kinds: See `weight_kinds`.
    """
    network, told = _read(
        auto_class(transformers, config), name, config, weight_names(config), kinds
    )
    if told["missing_keys"] == {"lm_head.weight"} and config.text_config.tie_word_embeddings:
        network.lm_head.weight = network.get_input_embeddings().weight
        told["missing_keys"] = set()
    return network, told


def read_tower(
    transformers: Any, config: Any, name: str, kinds: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """`read_network` of nothing but the audio tower.

    The rest of the network has no content (torch's meta device).
    """
    with torch.device("meta"):
        network = auto_class(transformers, config).from_config(config, trust_remote_code=False)
    body = network.model
    names = {r"^(model\.)?audio_tower\.": ""}
    if kinds["dtype"] == "auto":  # as the whole model's configuration says, and not its tower's
        kinds = kinds | {"dtype": config.dtype or "auto"}
    body.audio_tower, told = _read(
        type(body.audio_tower), name, body.audio_tower.config, names, kinds
    )
    n_tokens = network.get_input_embeddings().num_embeddings
    tower = body.audio_tower
    # What comes before the tower in a forward pass is the embeddings' device and type, never their
    # values.
    network.set_input_embeddings(
        torch.nn.Embedding(n_tokens, 1, device=tower.device, dtype=tower.dtype)
    )
    return network, told


def _read(
    maker: Any, name: str, config: Any, names: dict[str, str] | None, kinds: dict[str, Any]
) -> Any:
    return maker.from_pretrained(
        name,
        config=config,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # which the loading information tells
        key_mapping=names,
        **kinds,
    )


def weight_names(config: Any) -> dict[str, str] | None:
    """Patterns of the names of weights, and what the class that reads them calls them."""
    if getattr(config, "written_as", None) != AERO:
        return None
    return {r"^audio_modal_projector": "model.multi_modal_projector"}


def auto_class(transformers: Any, config: Any) -> Any:
    """Return transformers' class for a configuration that reads audio and writes text, or None."""
    makers = (transformers.AutoModelForMultimodalLM, transformers.AutoModelForSeq2SeqLM)
    return next((maker for maker in makers if type(config) in maker._model_mapping), None)


def read_facts(transformers: Any, config: Any, name: str) -> AudioFacts:
    """Widths and sizes, of the network without content (torch's meta device).

    Raises:
        LanguageModelError: For what is no audio LLM: a tower, a projector and a language model,
            with these names.
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


def read_processor(transformers: Any, config: Any, name: str) -> Any:
    """Read the processor, which makes the tower's input of waves and tokens of text.

    LanguageModelError where it cannot be loaded.
    """
    with quiet(transformers), explained(name, "its processor cannot be loaded"):
        if getattr(config, "written_as", None) == AERO:
            ears = transformers.AutoFeatureExtractor.from_pretrained(name, trust_remote_code=False)
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
            written, _ = transformers.Qwen2AudioProcessor.get_processor_dict(name)
            template = written.get("chat_template") or tokenizer.chat_template or _AERO_CHAT
            return transformers.Qwen2AudioProcessor(ears, tokenizer, chat_template=template)
        processor = transformers.AutoProcessor.from_pretrained(name, trust_remote_code=False)
        if not hasattr(getattr(processor, "feature_extractor", None), "n_samples"):
            fix = "save the processor (feature extractor and tokenizer) beside the model"
            raise LanguageModelError("has no feature extractor for waves", where=name, fix=fix)
        return processor


def revision_there(name: str | Path) -> str:
    """Return a model's revision by its name; no weights are loaded. Raises LanguageModelError."""
    return revision_of(str(name), read_audio_config(need("transformers", "speechllm"), str(name)))


def check_quantizable(quantize: str | None, device: torch.device) -> None:
    """Raise LanguageModelError where weights cannot be loaded in fewer bits here."""
    if quantize is None:
        return
    if quantize not in QUANTIZATIONS:
        raise LanguageModelError(
            f"quantize is {quantize!r}; {' and '.join(QUANTIZATIONS)} are possible"
        )
    if find_spec("bitsandbytes") is None:
        fix = "pip install bitsandbytes, or set speech.quantize to null"
        raise LanguageModelError(
            f"{quantize} weights need bitsandbytes, which is not installed", fix=fix
        )
    # A CPU packs the weights anew, and no gradient passes through them.
    if quantize == "4bit" and device.type == "cpu":
        raise LanguageModelError(
            "4bit weights need a GPU", fix="set speech.quantize to 8bit, or use the device cuda"
        )


def check_memory(
    facts: AudioFacts,
    device: torch.device,
    dtype: Any,
    quantize: str | None,
    with_language_model: bool,
    name: str,
) -> None:
    """Raise LanguageModelError where the free memory is less than the weights take."""
    from cortext.speechllm.audio_llm.cost import Load, frozen_bytes, tower_bytes  # it reads facts

    load = Load(bf16=dtype != torch.float32)
    needed = (
        frozen_bytes(facts, load, quantize) if with_language_model else tower_bytes(facts, load)
    )
    free = free_bytes() if device.type == "cpu" else free_gpu_bytes(device)
    if free is not None and needed > free:
        fewer = (
            ""
            if quantize or not with_language_model
            else f"speech.quantize={'8bit' if device.type == 'cpu' else '4bit'}, "
        )
        raise LanguageModelError(
            f"not enough memory to load the model: its weights take {needed / 1e9:.1f} GB, and"
            f" {device} has {free / 1e9:.1f} GB free",
            where=name,
            fix=f"use {fewer}a smaller model or another device",
        )
