"""Tiny causal language models with real tokenizers, made on the spot; nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SENTENCES = (
    "how are you today",
    "i would like some water",
    "the weather is nice today",
    "what do you think of it",
    "please call my sister tomorrow",
    "i am not sure what to do",
)
"""What the tiny tokenizers are trained on."""


def bpe_tokenizer(bos: str | None = "<s>", eos: str | None = "</s>", vocab_size: int = 320) -> Any:
    """A byte-level BPE tokenizer as GPT-2 and Llama 3 have them, with an id for every byte."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token in (bos, eos) if token is not None]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    named = {
        name: token for name, token in (("bos_token", bos), ("eos_token", eos)) if token is not None
    }
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)


def save_tiny_lm(folder: Path) -> Path:
    """A random two-layer Llama (hidden 32) with a byte-level BPE tokenizer that has BOS and EOS,
    saved in a folder.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = bpe_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,  # far from uniform, so that a wrong token or position is seen
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
