"""Fixtures of the tests of voices."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tiny_speech_llm import save_tiny_audio_llm, save_tiny_vits


@pytest.fixture(scope="session")
def tiny_audio_llm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Qwen2-Audio, which is no voice."""
    return save_tiny_audio_llm(tmp_path_factory.mktemp("tiny-audio-llm"))


@pytest.fixture(scope="session")
def tiny_vits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random VITS voice of 16 kHz."""
    return save_tiny_vits(tmp_path_factory.mktemp("tiny-vits"))
