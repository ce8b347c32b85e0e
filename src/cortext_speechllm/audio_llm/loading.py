"""Loading of audio LLMs: processor, weights and revision."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from cortext.errors import LanguageModelError
from cortext.extras import need
from cortext.memory import free_bytes
from cortext_lm.llm.explain import explained
from cortext_lm.llm.loading import (
    check_made,
    check_tokenizer_files,
    free_gpu_bytes,
    quiet,
    read_tokenizer,
    revision_of,
)
from cortext_speechllm.audio_llm.cost import Load, frozen_bytes, tower_bytes
from cortext_speechllm.audio_llm.facts import (
    AERO,
    AudioFacts,
    auto_class,
    read_audio_config,
)

QUANTIZATIONS = ("4bit", "8bit")

_AERO_CHAT = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful"
    " assistant.<|im_end|>\n{% endif %}{% for each in messages %}<|im_start|>{{ each['role'] }}\n{%"
    " if each['content'] is string %}{{ each['content'] }}{% else %}{% for part in each['content']"
    " %}{% if part['type'] == 'audio' %}<|AUDIO|>\n{% else %}{{ part['text'] }}{% endif %}{% endfor"
    " %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{%"
    " endif %}"
)
"""Chat template of Aero where no file has one: ChatML, the audio without markers around it."""


def weight_kinds(
    transformers: Any, device: torch.device, quantize: str | None, bf16: bool | None
) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` for dtype, device and quantisation of the weights.

    Args:
        transformers: The library.
        device: Device of the weights.
        quantize: `4bit` or `8bit` for the language model's matrices; None for no quantisation.
        bf16: True for bfloat16, False for float32; None takes the stored type on a GPU, and float32
            on a CPU.
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
    """Read a model with its weights; return it with transformers' loading information.

    Args:
        transformers: The library.
        config: See `read_audio_config`.
        name: A directory, or a name on the Hub.
        kinds: See `weight_kinds`.
    """
    network, loading = _read(
        auto_class(transformers, config), name, config, weight_names(config), kinds
    )
    if loading["missing_keys"] == {"lm_head.weight"} and config.text_config.tie_word_embeddings:
        network.lm_head.weight = network.get_input_embeddings().weight
        loading["missing_keys"] = set()
    return network, loading


def read_tower(
    transformers: Any, config: Any, name: str, kinds: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Read only the audio tower of a model; return the network with the loading information.

    The rest of the network has no weights (torch's meta device).

    Args:
        transformers: The library.
        config: See `read_network`, as for `name` and `kinds`.
        name: A directory, or a name on the Hub.
        kinds: Arguments of `from_pretrained`.
    """
    with torch.device("meta"):
        network = auto_class(transformers, config).from_config(config, trust_remote_code=False)
    body = network.model
    names = {r"^(model\.)?audio_tower\.": ""}
    if kinds["dtype"] == "auto":  # the type of the whole model, not of its tower
        kinds = kinds | {"dtype": config.dtype or "auto"}
    body.audio_tower, loading = _read(
        type(body.audio_tower), name, body.audio_tower.config, names, kinds
    )
    n_tokens = network.get_input_embeddings().num_embeddings
    tower = body.audio_tower
    # Before the tower, a forward pass reads the embeddings' device and type, never their values.
    network.set_input_embeddings(
        torch.nn.Embedding(n_tokens, 1, device=tower.device, dtype=tower.dtype)
    )
    return network, loading


def _read(
    maker: Any, name: str, config: Any, names: dict[str, str] | None, kinds: dict[str, Any]
) -> Any:
    return maker.from_pretrained(
        name,
        config=config,
        use_safetensors=True,
        trust_remote_code=False,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # the loading information names them
        key_mapping=names,
        **kinds,
    )


def weight_names(config: Any) -> dict[str, str] | None:
    """Return patterns of weight names with their replacements in transformers' class, or None."""
    if getattr(config, "written_as", None) != AERO:
        return None
    return {r"^audio_modal_projector": "model.multi_modal_projector"}


def read_processor(transformers: Any, config: Any, name: str) -> Any:
    """Read the processor, which makes the tower's input of waves and tokens of text.

    Args:
        transformers: The library.
        config: Configuration of the model, see `read_audio_config`.
        name: A directory, or a name on the Hub.

    Raises:
        LanguageModelError: Where it cannot be loaded.
    """
    with quiet(transformers), explained(name, "its processor cannot be loaded"):
        has_file = check_tokenizer_files(transformers, name)
        if getattr(config, "written_as", None) == AERO:
            extractor = transformers.AutoFeatureExtractor.from_pretrained(
                name, trust_remote_code=False
            )
            tokenizer = read_tokenizer(transformers, name)
            written, _ = transformers.Qwen2AudioProcessor.get_processor_dict(name)
            template = written.get("chat_template") or tokenizer.chat_template or _AERO_CHAT
            return transformers.Qwen2AudioProcessor(extractor, tokenizer, chat_template=template)
        processor = transformers.AutoProcessor.from_pretrained(name, trust_remote_code=False)
        if not hasattr(getattr(processor, "feature_extractor", None), "n_samples"):
            fix = "save the processor (feature extractor and tokenizer) beside the model"
            raise LanguageModelError("has no feature extractor for waves", where=name, fix=fix)
        if not has_file:
            check_made(processor.tokenizer, name)
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
    """Raise LanguageModelError where the free memory is less than the weights take.

    Args:
        facts: Shapes of the model.
        device: Device of the weights.
        dtype: Type of the weights: float32, or one of 16 bits.
        quantize: `4bit` or `8bit` for the language model's matrices; None for no quantisation.
        with_language_model: Count the whole model; else only the audio tower.
        name: Name of the model, for the message.
    """
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
