"""A brain encoder aligned to an audio language model, which writes the sentence (docs/speech_llm.md).

`config`, `trainer` and `stages` train what is in `network`; `targets` and `voices` make the `cache` that it is aligned
to; `audio_llm`, `sequence` and `generate` are the language model's side; `model` and `evaluate` use what was trained.
"""

from cortext.speechllm.cache import TargetCache
from cortext.speechllm.config import SpeechLLMConfig, read_speech_config
from cortext.speechllm.evaluate import decode, evaluate
from cortext.speechllm.model import SpeechLLM
from cortext.speechllm.stages import train_speech_llm
from cortext.speechllm.targets import build_cache
from cortext.speechllm.trainer import SpeechTrainer

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
