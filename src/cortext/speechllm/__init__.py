"""A brain encoder aligned to an audio language model, which writes the sentence
(docs/speech_llm.md).

`config`, `trainer` and `stages` train what is in `network`; `targets` and `voices` make the `cache`
that it is aligned to; `audio_llm`, `sequence` and `generate` are the language model's side; `model`
and `writing` use what was trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cortext.lazy import lazily

if TYPE_CHECKING:
    from cortext.speechllm.cache import TargetCache
    from cortext.speechllm.config import SpeechLLMConfig, read_speech_config
    from cortext.speechllm.model import SpeechLLM
    from cortext.speechllm.stages import train_speech_llm
    from cortext.speechllm.targets import build_cache
    from cortext.speechllm.trainer import SpeechTrainer
    from cortext.speechllm.writing import decode, evaluate

__all__ = [
    "SpeechLLM",
    "SpeechLLMConfig",
    "SpeechTrainer",
    "TargetCache",
    "build_cache",
    "decode",
    "evaluate",
    "read_speech_config",
    "train_speech_llm",
]
# The processes that speak import this package, too, and need no torch.
__getattr__ = lazily(
    __name__,
    {
        "SpeechLLM": ".model",
        "SpeechLLMConfig": ".config",
        "SpeechTrainer": ".trainer",
        "TargetCache": ".cache",
        "build_cache": ".targets",
        "decode": ".writing",
        "evaluate": ".writing",
        "read_speech_config": ".config",
        "train_speech_llm": ".stages",
    },
)
