"""Brain encoders aligned to an audio language model, which writes the sentence.

See docs/guides/speech-llm.md.

`config`, `task` and `stages` train the network of `network` by the `losses`; `targets` makes the
cache of spoken sentences that it is aligned to; `audio_llm` is the language model's side; `model`
and `inference` use what was trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cortext.extras import lazily

if TYPE_CHECKING:
    from cortext_speechllm.config import SpeechLLMConfig, read_speech_config
    from cortext_speechllm.inference import decode, evaluate
    from cortext_speechllm.model import SpeechLLM
    from cortext_speechllm.stages import train_speech_llm
    from cortext_speechllm.targets.build import build_cache
    from cortext_speechllm.targets.cache import TargetCache
    from cortext_speechllm.task import SpeechTask, speech_trainer

__all__ = [
    "SpeechLLM",
    "SpeechLLMConfig",
    "SpeechTask",
    "TargetCache",
    "build_cache",
    "decode",
    "evaluate",
    "read_speech_config",
    "speech_trainer",
    "train_speech_llm",
]
# The processes that speak import this package, too, and need no torch.
__getattr__ = lazily(
    __name__,
    {
        "SpeechLLM": ".model",
        "SpeechLLMConfig": ".config",
        "SpeechTask": ".task",
        "TargetCache": ".targets.cache",
        "build_cache": ".targets.build",
        "decode": ".inference",
        "evaluate": ".inference",
        "read_speech_config": ".config",
        "speech_trainer": ".task",
        "train_speech_llm": ".stages",
    },
)
