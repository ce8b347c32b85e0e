"""LoRA (Hu et al., ICLR 2022) in a frozen language model, through peft."""

from __future__ import annotations

from typing import Any

import torch

from cortext.decoding.llm.finetune import target_modules
from cortext.decoding.llm.loading import quiet
from cortext.errors import LanguageModelError
from cortext.extras import need
from cortext.speechllm.config import LoRAConfig


def add_lora(network: Any, config: LoRAConfig, name: str) -> dict[str, torch.nn.Parameter]:
    """Put LoRA into a network in place.

    Its float32 parameters by name, the only ones of it that have gradients.

    Names are the modules' with `/` for `.`, so that a module may register them. Raises
    LanguageModelError for targets that the network does not have.
    """
    peft = need("peft", "speechllm")
    known = target_modules(network)
    if unknown := sorted(set(config.modules) - set(known)):
        what = f"the language model has no matrices {', '.join(unknown)}"
        raise LanguageModelError(
            what, where=name, fix=f"set speech.lora.modules to some of {', '.join(known)}"
        )
    settings = peft.LoraConfig(
        r=config.r,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=list(config.modules),
    )
    with quiet(need("transformers", "speechllm")):
        peft.inject_adapter_in_model(settings, network)
    network.eval().requires_grad_(False)  # what is put in comes in training mode
    added = {
        weight_name.replace(".default", "").removesuffix(".weight").replace(".", "/"): weight
        for weight_name, weight in network.named_parameters()
        if ".lora_" in weight_name
    }
    for weight in added.values():
        weight.data = weight.data.float()
        weight.requires_grad_(True)
    return added


def dropouts(network: Any) -> list[torch.nn.Module]:
    """What LoRA drops its inputs with."""
    from peft.tuners.lora import LoraLayer

    return [each.lora_dropout for each in network.modules() if isinstance(each, LoraLayer)]
