"""Fixtures of the tests with large language models."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("transformers")

from tiny_llm import save_tiny_lm


@pytest.fixture(scope="session")
def tiny_lm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama with a byte-level BPE tokenizer that has BOS and EOS."""
    return save_tiny_lm(tmp_path_factory.mktemp("tiny-lm"))
