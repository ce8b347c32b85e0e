"""Speech LLMs: brain encoders aligned to an audio language model, which writes the sentence.

Stands on `cortext`, `cortext_lm` (access to models of transformers) and `cortext_live` (voices,
which speak the sentences to align to). The guide is docs/guides/speech-llm.md.

Begin with:

- `network`: encoder, projector and language model as one module.
- `task` and `stages`: its training, by the losses of `losses.speech_loss`.
- `targets.build`: the audio tower's output for spoken sentences, which the encoder learns to match.
- `audio_llm.model`: the frozen audio language model.
- `model` and `inference`: a trained speech LLM, and its sentences for a split.
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
