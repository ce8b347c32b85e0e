"""Training through a frozen language model: LoRA, gradient checkpointing, compilation.

LoRA (Hu et al., ICLR 2022) comes from peft.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from cortext.errors import LanguageModelError, first_line
from cortext.extras import need
from cortext_lm.llm.finetune import target_modules
from cortext_lm.llm.loading import quiet
from cortext_speechllm.config import LoRAConfig


def add_lora(network: Any, config: LoRAConfig, name: str) -> dict[str, torch.nn.Parameter]:
    """Add LoRA to a network in place.

    Args:
        network: The language model; all its own weights are frozen.
        config: Rank, scale, dropout and target matrices.
        name: Name of the model, for messages.

    Returns:
        LoRA's float32 parameters by name, the only ones with gradients. The names have `/` for `.`,
        because a module can register no name with a dot.

    Raises:
        LanguageModelError: For a target matrix that the network does not have.
    """
    peft = need("peft", "speechllm")
    known = target_modules(network)
    if unknown := sorted(set(config.modules) - set(known)):
        problem = f"the language model has no matrices {', '.join(unknown)}"
        raise LanguageModelError(
            problem, where=name, fix=f"set speech.lora.modules to some of {', '.join(known)}"
        )
    settings = peft.LoraConfig(
        r=config.r,
        lora_alpha=config.alpha,
        lora_dropout=config.dropout,
        target_modules=list(config.modules),
    )
    with quiet(need("transformers", "speechllm")):
        peft.inject_adapter_in_model(settings, network)
    network.eval().requires_grad_(False)  # peft adds its layers in training mode
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
    """Return the dropout modules of LoRA."""
    from peft.tuners.lora import LoraLayer

    return [each.lora_dropout for each in network.modules() if isinstance(each, LoraLayer)]


def layers(network: Any) -> list[Any]:
    """Return the layers of a language model of transformers."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [each for each in network.modules() if isinstance(each, GradientCheckpointingLayer)]


def checkpoint_layers(network: Any, on: bool) -> None:
    """Keep only each layer's input, and compute the rest again for the gradient; or undo that."""
    for layer in layers(network):
        layer.__dict__.pop("forward", None)
        if on:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def compile_layers(network: Any, first_pass: Callable[[], None]) -> str | None:
    """Compile the layers of a language model, with a first forward and backward pass.

    Only passes with gradients are compiled, see `AudioLLM.step`.

    Args:
        network: The language model.
        first_pass: Takes a forward and a backward pass through it.

    Returns:
        None, or a line that says why the compiler does not work here.
    """
    try:
        with torch.enable_grad(), quiet(need("transformers", "speechllm")):
            for layer in layers(network):
                layer.compile(dynamic=True)
            first_pass()
    except Exception as error:  # the compiler raises errors of any class
        return first_line(error)
    return None


def uncompile(network: Any) -> None:
    """Undo `compile_layers`."""
    for layer in layers(network):
        layer._compiled_call_impl = None
