"""VITS voices of transformers (Kim et al., ICML 2021), such as those of MMS."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch

from cortext.errors import LanguageModelError
from cortext.extras import need
from cortext_live.voices.voice import Voice, resampled, trimmed
from cortext_lm.llm.explain import explained
from cortext_lm.llm.loading import (
    check_complete,
    quiet,
    read_config,
    read_tokenizer,
    revision_of,
)

KIND = "VITS voice"


class VitsVoice(Voice):
    """A VITS model on the CPU.

    VITS draws durations and breath at random; the text is the seed here.
    """

    def __init__(self, name: str, network: Any, tokenizer: Any, revision: str) -> None:
        self.name = name
        self.revision = revision
        self._network = network.eval().requires_grad_(False)
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, name: str) -> VitsVoice:
        """Load the voice of a directory or of the Hugging Face Hub; only safetensors are read.

        Raises:
            LanguageModelError: For a model that cannot be loaded.
            MissingLibrary: Without transformers.
        """
        transformers = need("transformers", "speechllm")
        config = read_config(transformers, name)
        if config.model_type != "vits":
            fix = "give `formant`, `espeak-ng`, or a VITS model"
            raise LanguageModelError(
                f"is no {KIND}, but of the type {config.model_type}", where=name, fix=fix
            )
        tokenizer = read_tokenizer(transformers, name)
        with quiet(transformers), explained(name, f"cannot be loaded as a {KIND}"):
            network, loading = transformers.VitsModel.from_pretrained(
                name,
                config=config,
                use_safetensors=True,
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # `check_complete` reports them
                dtype=torch.float32,
            )
        check_complete(loading, name, KIND)
        return cls(name, network, tokenizer, revision_of(name, config))

    def __reduce__(self) -> tuple[Any, ...]:
        return VitsVoice.load, (self.name,)  # another process reads the weights itself

    def can_speak(self, text: str) -> bool:
        """Tell whether the tokenizer keeps a letter or a digit of the text."""
        return any(character.isalnum() for character in self._prepared(text))

    def passed_over(self, text: str) -> str:
        """See `Voice.passed_over`: characters that the tokenizer does not know, such as digits."""
        if self._tokenizer.phonemize:  # by a program that reads all characters
            return ""
        prepared = self._prepared(text)
        return "".join(
            dict.fromkeys(each for each in text.lower() if each.isalnum() and each not in prepared)
        )

    def speak(self, text: str) -> np.ndarray:
        """See `Voice.speak`. The silence at the ends is cut."""
        return resampled(self._own_wave(text), self.aloud_sample_rate)

    @property
    def aloud_sample_rate(self) -> int:
        """See `Voice.aloud_sample_rate`."""
        return int(self._network.config.sampling_rate)

    def _wave(self, text: str, rate: float, pitch: float) -> np.ndarray:
        own = self._network.speaking_rate
        self._network.speaking_rate = own * rate
        try:
            return self._own_wave(text)
        finally:
            self._network.speaking_rate = own

    def _own_wave(self, text: str) -> np.ndarray:
        """Return the wave of a text at the model's own sample rate, without silence at its ends."""
        with torch.random.fork_rng(devices=[]), torch.inference_mode():
            torch.default_generator.manual_seed(zlib.crc32(text.encode()))
            wave = (
                self._network(self._tokenizer(text, return_tensors="pt")["input_ids"])
                .waveform[0]
                .numpy()
            )
        return trimmed(wave, self.aloud_sample_rate)

    def _prepared(self, text: str) -> str:
        with explained(self.name, "its tokenizer cannot read the text"):
            prepared: str = self._tokenizer.prepare_for_tokenization(text)[0]
        return prepared
