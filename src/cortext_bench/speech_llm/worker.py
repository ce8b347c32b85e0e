"""One setting of the speech-LLM benchmark in a process of its own: its memory is its own.

python -m cortext_bench.speech_llm.worker train|cache PLAN

PLAN is a VariantSettings or a CacheOrder as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.config import from_mapping
from cortext.data import open_packed
from cortext.errors import CortextError, first_line
from cortext.memory import memory, restart_peak
from cortext.models.precision import autocast
from cortext.training import DeviceSpec, Trainer
from cortext.training.torch_backend import TorchBackend
from cortext_bench.speech_llm.materials import CacheOrder
from cortext_bench.training.sides import Clock
from cortext_bench.workers import Missing, own_stdout, serve
from cortext_live.voices import Voice, open_voice
from cortext_lm.llm.explain import out_of_memory
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.config import SpeechLLMConfig
from cortext_speechllm.losses.speech_loss import SpeechLoss
from cortext_speechllm.targets.build import LiveTargets, build_cache, sentences_of_data
from cortext_speechllm.task import SpeechTask
from cortext_speechllm.validate import SpeechValidator


@dataclass(frozen=True)
class VariantSettings:
    """Training of one process; passed to it as JSON.

    Attributes:
        out: A directory of this setting's own.
        config: A SpeechLLMConfig.
        live: Whether the voice and the audio tower run in every step; else targets come from the
        cache.
    """

    packed: str
    cache: str
    voice: str
    out: str
    config: dict[str, Any]
    device: str = "cpu"
    live: bool = False


class TimedVoice(Voice):
    """A voice that counts the seconds that it speaks."""

    def __init__(self, voice: Voice) -> None:
        self.name = voice.name
        self.revision = voice.revision
        self._voice = voice
        self.seconds = 0.0

    def can_speak(self, text: str) -> bool:
        """See `Voice`."""
        return self._voice.can_speak(text)

    def speak(self, text: str) -> np.ndarray:
        """See `Voice`."""
        started = time.perf_counter()
        wave = self._voice.speak(text)
        self.seconds += time.perf_counter() - started
        return wave


def open_trainer(plan: VariantSettings, voice: Voice | None) -> Trainer:
    """Return a trainer of a speech LLM that saves no state.

    Where a voice is given, the targets are synthesised and encoded anew for every batch.
    """
    config = from_mapping(SpeechLLMConfig, plan.config)
    spec = DeviceSpec(plan.device)
    task = SpeechTask(config, spec, cache=plan.cache, with_tower=voice is not None)
    trainer = Trainer(
        config, open_packed(plan.packed), plan.out, task=task, device=spec, progress=False
    )
    trainer.saves_state = False  # a turn of the benchmark ends often
    if voice is not None:
        network = trainer.model.network
        # Audio LLM whose tower encodes: the one of the training, or one loaded for this alone.
        audio_llm = (
            network.llm
            if network.speech.reads_language_model
            else AudioLLM.load(
                network.speech.audio_llm, device=plan.device, with_language_model=False
            )
        )
        assert isinstance(trainer.backend, TorchBackend)
        assert isinstance(trainer.validator, SpeechValidator)
        for loss in (trainer.backend.job.loss, trainer.validator.loss):
            assert isinstance(loss, SpeechLoss)
            loss.targets = LiveTargets(audio_llm, voice)
    return trainer


class RunningSetting:
    """A trainer, ready to take steps."""

    def __init__(self, plan: VariantSettings) -> None:
        config = from_mapping(SpeechLLMConfig, plan.config)
        # The check imports all that loading imports: `before` has the memory of that, too.
        self.facts: dict[str, Any] = {"audio_llm": vars(AudioLLM.check(config.speech.audio_llm))}
        before = memory().get("rss_mb")
        self.voice = TimedVoice(open_voice(plan.voice)) if plan.live else None
        self.trainer = open_trainer(plan, self.voice)
        assert isinstance(self.trainer.backend, TorchBackend)
        self.backend = self.trainer.backend
        self.device = self.backend.host
        network = self.trainer.model.network
        notes = network.llm.notes if network.speech.reads_language_model else []
        if config.speech.compile and notes:
            raise Missing(notes[0])
        learns = [each for each in network.parameters() if each.requires_grad]
        self.facts |= {
            "n_trained": sum(each.numel() for each in learns),
            "precision": "bf16" if self.backend.bf16 else "fp32",
            "threads": torch.get_num_threads(),
            "libraries_mb": before,
            "loaded_mb": memory().get("rss_mb"),
        }
        if self.device.type == "cuda":
            self.facts["device_name"] = torch.cuda.get_device_name(self.device)

    def steps(self, n: int) -> dict[str, Any]:
        """Time `n` steps of the trainer's own loop, after one more."""
        clock = Clock(self.device)
        self._run(n + 1, clock)
        return {"ms": clock.ms(), "cpu_ms": clock.cpu_ms()}

    def restart_peak(self) -> dict[str, Any]:
        """Restart the peak of memory."""
        restart_peak()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        return {}

    def memory(self) -> dict[str, Any]:
        """Return the peak of memory since `restart_peak`, in megabytes.

        process_mb: of the process, its libraries included
        peak_mb:    of tensors on a GPU; on a CPU, of the process without its libraries
        """
        process = memory().get("peak_rss_mb")
        if self.device.type == "cuda":
            return {
                "process_mb": process,
                "peak_mb": torch.cuda.max_memory_allocated(self.device) / 1e6,
            }
        before = self.facts["libraries_mb"]
        return {"process_mb": process, "peak_mb": process - before if process and before else None}

    def parts(self, n: int) -> dict[str, Any]:
        """Return ms a step for getting the targets of `n` batches, and the voice's share of it."""
        loss = self.backend.job.loss
        sampler = self.backend.job.sampler
        assert isinstance(loss, SpeechLoss)
        assert loss.targets is not None
        targets_ms = []
        voice_ms = []
        for step in range(n):
            sentences = [loss.sentences[i] for i in sampler.indices(step).tolist()]
            spoke = self.voice.seconds if self.voice else 0.0
            started = time.perf_counter()
            with self.backend.running(), autocast(self.device, self.backend.bf16):
                loss.targets.features(sentences)
            targets_ms.append(1e3 * (time.perf_counter() - started))
            voice_ms.append(1e3 * (self.voice.seconds - spoke) if self.voice else 0.0)
        return {"targets_ms": targets_ms, "voice_ms": voice_ms}

    def _run(self, n: int, clock: Clock) -> None:
        try:
            self.trainer.run(n, profile=nullcontext(clock.tick))
        except Exception as error:
            if out_of_memory(error):
                raise Missing(f"not enough memory ({first_line(error)})") from error
            raise


def begin(kind: str, plan: str) -> tuple[Any, dict[str, Any]]:
    """Return the object to serve, and the first answer; raises Missing where it cannot be had."""
    try:
        if kind == "cache":
            order = CacheOrder(**json.loads(plan))
            sentences = sentences_of_data(Path(order.packed))
            return None, build_cache(
                sentences, order.audio_llm, order.voice, order.out, workers=0, device=order.device
            )
        setting = RunningSetting(VariantSettings(**json.loads(plan)))
    except Missing:
        raise
    except CortextError as error:
        raise Missing(str(error)) from None
    return setting, setting.facts


def main(arguments: Sequence[str]) -> None:
    """Serve one setting."""
    answers = own_stdout()
    serve(lambda: begin(*arguments), sys.stdin, answers)


if __name__ == "__main__":
    main(sys.argv[1:])
