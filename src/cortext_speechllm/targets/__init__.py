"""The audio tower's output for spoken sentences, to which training aligns the brain encoder."""

from __future__ import annotations

from cortext_speechllm.targets.build import (
    LiveTargets,
    build_cache,
    sentences_of_data,
    sentences_of_text,
)
from cortext_speechllm.targets.cache import TargetCache

__all__ = ["LiveTargets", "TargetCache", "build_cache", "sentences_of_data", "sentences_of_text"]
