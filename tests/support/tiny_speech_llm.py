"""Tiny audio LLMs and voices of the real classes with random weights, made on the spot.

Nothing is downloaded.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_llm import bpe_tokenizer

AUDIO, AUDIO_BOS, AUDIO_EOS = "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"
TURN, TURN_END, TEXT_END = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
WINDOW_S = 12
"""The longest audio that the tiny tower takes."""
N_MELS = 16

CHAT = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'audio' %}Audio: <|audio_bos|><|AUDIO|><|audio_eos|>\n"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""ChatML with audio markers, as Qwen2-Audio has it."""


def tiny_tokenizer() -> Any:
    """A byte-level BPE tokenizer with the audio and the chat markers, each one token."""
    tokenizer = bpe_tokenizer(bos=None, eos=TEXT_END)
    tokenizer.add_special_tokens(
        {
            "additional_special_tokens": [TURN, TURN_END, AUDIO, AUDIO_BOS, AUDIO_EOS],
            "pad_token": TEXT_END,
        }
    )
    return tokenizer


def save_tiny_audio_llm(
    folder: Path, text_width: int = 32, audio_width: int = 24, seed: int = 0
) -> Path:
    """A random Qwen2-Audio of two layers each in tower and language model, with its processor,
    saved in a folder.
    """
    import torch
    from transformers import (
        GenerationConfig,
        Qwen2AudioConfig,
        Qwen2AudioForConditionalGeneration,
        Qwen2AudioProcessor,
        WhisperFeatureExtractor,
    )

    tokenizer = tiny_tokenizer()
    tower = dict(
        model_type="qwen2_audio_encoder",
        num_mel_bins=N_MELS,
        d_model=audio_width,
        encoder_layers=2,
        encoder_attention_heads=2,
        encoder_ffn_dim=48,
        max_source_positions=50 * WINDOW_S,
    )
    language = dict(
        model_type="qwen2",
        vocab_size=len(tokenizer) + 3,  # published models have more rows than tokens, too
        hidden_size=text_width,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        initializer_range=0.3,  # far from uniform, so that a wrong token, position or mask is seen
    )
    config = Qwen2AudioConfig(
        audio_config=tower,
        text_config=language,
        audio_token_index=tokenizer.convert_tokens_to_ids(AUDIO),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Qwen2AudioForConditionalGeneration(config)
        for weight in (*network.model.multi_modal_projector.parameters(), network.lm_head.weight):
            torch.nn.init.normal_(weight, std=0.3)
        for layer in network.model.audio_tower.layers:
            for weight in layer.parameters():
                if weight.ndim == 2:
                    torch.nn.init.normal_(weight, std=0.2)
    network.generation_config = GenerationConfig(
        eos_token_id=tokenizer.convert_tokens_to_ids([TEXT_END, TURN_END]),
        pad_token_id=tokenizer.pad_token_id,
    )
    network.save_pretrained(folder)
    ears = WhisperFeatureExtractor(
        feature_size=N_MELS, chunk_length=WINDOW_S, return_attention_mask=True
    )
    Qwen2AudioProcessor(ears, tokenizer, chat_template=CHAT).save_pretrained(folder)
    return folder


def save_tiny_vits(folder: Path) -> Path:
    """A random VITS voice of 16 kHz for English letters, with its tokenizer, saved in a folder."""
    import torch
    from transformers import VitsConfig, VitsModel, VitsTokenizer

    letters = [*"abcdefghijklmnopqrstuvwxyz", "'", "-", " ", "_"]
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = folder / "vocab.json"
    vocabulary.write_text(
        json.dumps({letter: number for number, letter in enumerate(letters)}), encoding="utf-8"
    )
    tokenizer = VitsTokenizer(
        str(vocabulary),
        pad_token="_",
        unk_token="<unk>",
        language="eng",
        normalize=True,
        add_blank=True,
        phonemize=False,
    )
    config = VitsConfig(
        vocab_size=len(letters) + 1,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        ffn_dim=32,
        flow_size=16,
        spectrogram_bins=65,
        prior_encoder_num_flows=2,
        prior_encoder_num_wavenet_layers=1,
        posterior_encoder_num_wavenet_layers=1,
        duration_predictor_num_flows=2,
        duration_predictor_filter_channels=16,
        depth_separable_num_layers=1,
        upsample_initial_channel=32,
        upsample_rates=[8, 8, 4],
        upsample_kernel_sizes=[16, 16, 8],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
        sampling_rate=16000,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        VitsModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
