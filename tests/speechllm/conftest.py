"""Fixtures of the tests of the speech LLM."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

import torch
from tiny_speech_llm import save_tiny_audio_llm, save_tiny_vits

from cortext.data import open_packed, pack
from cortext_data.simulate import simulate
from cortext_speechllm.audio_llm.loading import revision_there
from cortext_speechllm.stages import train_speech_llm
from cortext_speechllm.targets.cache import TargetOrigin, text_key, write_targets


@pytest.fixture(scope="session")
def tiny_audio_llm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2-Audio with a real processor and tokenizer: audio width 24, text width 32."""
    return save_tiny_audio_llm(tmp_path_factory.mktemp("tiny-audio-llm"))


@pytest.fixture(scope="session")
def tiny_vits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random VITS voice of 16 kHz."""
    return save_tiny_vits(tmp_path_factory.mktemp("tiny-vits"))


@pytest.fixture(scope="session")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Simulated recordings of two days, packed: 48 training trials and 12 for validation."""
    folder = tmp_path_factory.mktemp("recordings")
    simulate(folder / "data", "tiny", workers=1)
    pack(folder / "data", folder / "packed")
    return folder / "packed"


@pytest.fixture(scope="session")
def cached(
    recordings: Path, tiny_audio_llm: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Targets for the tiny audio LLM of every sentence recorded.

    Random ones, of a length that goes with the text's.
    """
    data, generator = open_packed(recordings), torch.Generator().manual_seed(0)
    sentences = {
        sentence for name in data.splits for sentence in data.split(name).sentences if sentence
    }
    targets = {
        text_key(sentence): torch.randn(10 + len(sentence) // 2, 24, generator=generator).half()
        for sentence in sorted(sentences)
    }
    path = tmp_path_factory.mktemp("cached") / "targets.safetensors"
    write_targets(
        path,
        targets,
        TargetOrigin(str(tiny_audio_llm), revision_there(tiny_audio_llm), "none", "0", 24, 40.0),
    )
    return path


@pytest.fixture(scope="session")
def settings(tiny_audio_llm: Path) -> tuple[str, ...]:
    """Overrides with which the recipe `speech_llm` takes a second.

    Every loss, LoRA, twelve batches.
    """
    return (
        f"speech.audio_llm={tiny_audio_llm}",
        "speech.gamma=1.0",
        "speech.ctc=0.1",
        "speech.lora={r: 4}",
        "speech.generation={beams: 2, max_length: 8}",
        "model.n_units=16",
        "model.n_layers=1",
        "dataset.batch_size=8",
        "dataset.days_per_batch=2",
        "num_training_batches=8",
        "batches_per_train_log=2",
        "batches_per_val_step=4",
        "val_wer_trials=3",
        "lr_warmup_steps=2",
        "lr_warmup_steps_day=2",
        "epsilon=1.0e-8",
        "precision=fp32",
    )


@pytest.fixture(scope="session")
def trained(
    recordings: Path,
    cached: Path,
    settings: tuple[str, ...],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A run with these settings."""
    out = tmp_path_factory.mktemp("trained") / "run"
    train_speech_llm(
        "speech_llm", recordings, out, overrides=settings, cache=cached, progress=False
    )
    return out
