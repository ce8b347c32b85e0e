"""The frozen audio language model: loading, prompts, LoRA, generation, memory and time."""

from __future__ import annotations

from cortext_speechllm.audio_llm.model import AudioLLM

__all__ = ["AudioLLM"]
