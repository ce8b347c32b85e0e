"""Audio LLMs of transformers: an audio tower, a projector and a language model, frozen.

B trials, P patches, N frames of the tower, A width of the tower, H width of the language model, S
positions, V tokens
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import numpy as np
import torch

from cortext.errors import DataError, LanguageModelError
from cortext.extras import need
from cortext_lm.llm.explain import explained
from cortext_lm.llm.loading import check_complete, device_named, quiet, revision_of
from cortext_speechllm.audio_llm import training
from cortext_speechllm.audio_llm.chat import Chat
from cortext_speechllm.audio_llm.facts import KIND, AudioFacts, read_audio_config, read_facts
from cortext_speechllm.audio_llm.loading import (
    check_memory,
    check_quantizable,
    read_network,
    read_processor,
    read_tower,
    weight_kinds,
)
from cortext_speechllm.config import LoRAConfig


class AudioLLM:
    """An audio LLM whose weights stay as they are; LoRA can be added to its language model.

    Attributes:
        device, dtype: Device and type of the weights.
        name: Directory, or name on the Hub, that it was loaded from.
        revision: Commit on the Hub, or a checksum of the directory.
        network: The transformers model, in evaluation mode, without gradients.
        processor: Processor of transformers, with feature extractor, tokenizer and chat template.
        facts: Widths and sizes.
        chat: Prompts and answers as tokens.
        lora: LoRA's trainable parameters, by name; empty without LoRA.
        notes: Remarks for the user, one line each.
        lock: Held while the tower is at work.
    """

    def __init__(
        self, name: str, network: Any, processor: Any, facts: AudioFacts, revision: str
    ) -> None:
        self.name = name
        self.revision = revision
        self.facts = facts
        self.network = network.eval().requires_grad_(False)
        self.processor = processor
        self.device = next(
            weight.device for weight in network.parameters() if weight.device.type != "meta"
        )
        self.dtype: torch.dtype = self.projector_layer.weight.dtype
        self.chat = Chat(name, processor, network.config, network.generation_config)
        self.lora: dict[str, torch.nn.Parameter] = {}
        self.notes: list[str] = []
        self.lock = threading.RLock()

    @classmethod
    def load(
        cls,
        name: Any,
        device: str = "auto",
        *,
        quantize: str | None = None,
        bf16: bool | None = None,
        with_tower: bool = True,
        with_language_model: bool = True,
    ) -> AudioLLM:
        """Load the audio LLM of a directory or, by its name there, of the Hugging Face Hub.

        Only safetensors are read.

        Args:
            name: A directory, or a name on the Hub.
            device: `cpu`, `cuda`, `cuda:N`, or `auto`: a GPU where there is one.
            quantize: `4bit` or `8bit` for the language model's matrices, by bitsandbytes; None for
                no quantisation.
            bf16: True for bfloat16 weights, False for float32; None takes the stored type on a GPU,
                and float32 on a CPU.
            with_tower: Keep the audio tower. Without it `audio_features` raises, and the tower's
                memory is free again once the weights are read.
            with_language_model: Load the whole model; else only the tower, for `audio_features`.

        Raises:
            LanguageModelError: For a model that cannot be loaded.
            MissingLibrary: Without transformers.
        """
        transformers = need("transformers", "speechllm")
        name = str(name)
        where = device_named(device)
        check_quantizable(quantize, where)
        config = read_audio_config(transformers, name)
        facts = read_facts(transformers, config, name)
        processor = read_processor(transformers, config, name)
        Chat(name, processor, config)  # it raises before the weights are fetched
        kinds = weight_kinds(transformers, where, quantize, bf16)
        check_memory(
            facts,
            where,
            config.dtype if kinds["dtype"] == "auto" else kinds["dtype"],
            quantize,
            with_language_model,
            name,
        )
        with quiet(transformers), explained(name, f"cannot be loaded as an {KIND}"):
            network, loading = (read_network if with_language_model else read_tower)(
                transformers, config, name, kinds
            )
        check_complete(loading, name, KIND)
        if not with_tower:
            network.model.audio_tower = None
        return cls(name, network, processor, facts, revision_of(name, config))

    @staticmethod
    def check(name: Any) -> AudioFacts:
        """Return widths and sizes of a model; raise as `load` does where there is none.

        No weights are read.
        """
        transformers = need("transformers", "speechllm")
        name = str(name)
        config = read_audio_config(transformers, name)
        facts = read_facts(transformers, config, name)
        Chat(name, read_processor(transformers, config, name), config)
        return facts

    @staticmethod
    def read_chat(name: str) -> Chat:
        """Read prompts and answers of a model by its name. No weights are read.

        Raises LanguageModelError where there is no such model.
        """
        transformers = need("transformers", "speechllm")
        config = read_audio_config(transformers, name)
        return Chat(name, read_processor(transformers, config, name), config)

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""
        return self.processor.tokenizer

    @property
    def audio_width(self) -> int:
        """Width of the tower's frames: what the projector takes."""
        return self.facts.audio_width

    @property
    def text_width(self) -> int:
        """Width of the language model's embeddings."""
        return self.facts.text_width

    @property
    def vocab_size(self) -> int:
        """Number of logits."""
        return self.facts.vocab_size

    @property
    def n_parameters(self) -> int:
        """Number of the model's parameters, LoRA excluded."""
        return self.facts.n_parameters

    @property
    def ends(self) -> list[int]:
        """Tokens that end an answer; training ends answers with the first."""
        return self.chat.ends

    @property
    def sample_rate(self) -> int:
        """Samples per second of the tower's waves."""
        return int(self.processor.feature_extractor.sampling_rate)

    @property
    def window_s(self) -> float:
        """Seconds of the tower's longest wave."""
        return float(self.processor.feature_extractor.n_samples / self.sample_rate)

    @cached_property
    def frame_ms(self) -> float:
        """Milliseconds of a frame of the tower."""
        samples = self.processor.feature_extractor.n_samples
        with quiet(need("transformers", "speechllm")):
            n_frames = int(self._tower_inputs([np.zeros(samples, np.float32)])[1])
        return float(1000 * samples / self.sample_rate / n_frames)

    @property
    def body(self) -> Any:
        """The network without its output layer."""
        return self.network.model

    @property
    def language_model(self) -> Any:
        """The language model, without its output layer."""
        return self.body.language_model

    @property
    def projector_layer(self) -> torch.nn.Linear:
        """The first layer of the projector."""
        return next(
            each
            for each in self.body.multi_modal_projector.modules()
            if isinstance(each, torch.nn.Linear)
        )

    def describe(self) -> dict[str, Any]:
        """Return facts about the model for a result file."""
        return {
            "model": self.name,
            "revision": self.revision,
            "class": type(self.network).__name__,
            "n_parameters": self.n_parameters,
            "n_lora_parameters": sum(weight.numel() for weight in self.lora.values()),
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "notes": list(self.notes),
        }

    # the audio tower

    @torch.no_grad()
    def audio_features(self, waves: Sequence[np.ndarray]) -> list[torch.Tensor]:
        """Return the tower's frames of waves, before the projector.

        The silence that fills the tower's window is masked, as in the model's own forward pass, and
        its frames are cut.

        Args:
            waves: Float32 [samples] each, at `sample_rate`.

        Returns:
            Float32 [N, A] for each wave, on the CPU.

        Raises:
            DataError: For a wave that is longer than the window, or too short for one frame.
            LanguageModelError: Where the model was loaded without its tower.
        """
        if self.body.audio_tower is None:
            raise LanguageModelError(
                "was loaded without its audio tower",
                where=self.name,
                fix="set with_tower=True",
            )
        if not waves:
            return []
        for number, wave in enumerate(waves):
            self._check_wave(np.asarray(wave), number)
        with self.lock, quiet(need("transformers", "speechllm")):
            inputs, n_frames = self._tower_inputs(waves)
            captured: list[torch.Tensor] = []

            def stop(_: Any, given: tuple[torch.Tensor]) -> None:
                captured.append(given[0])
                raise _TowerDone

            hook = self.body.multi_modal_projector.register_forward_pre_hook(stop)
            try:
                self.body(**inputs.to(self.device))
            except _TowerDone:
                pass
            finally:
                hook.remove()
        for number, count in enumerate(n_frames.tolist()):
            if count < 1:
                raise DataError(
                    f"wave {number} is too short for one frame of the audio tower", where=self.name
                )
        frames_BNA = captured[0].float().cpu()
        return [
            frames_NA[:count].clone()
            for frames_NA, count in zip(frames_BNA, n_frames.tolist(), strict=True)
        ]

    def _tower_inputs(self, waves: Sequence[np.ndarray]) -> tuple[Any, torch.Tensor]:
        """Return the network's inputs for waves, and the number of tower frames of each wave."""
        # Spectrograms are float32, also in a bfloat16 training.
        with torch.autocast(self.device.type, enabled=False):
            inputs = self.processor(
                text=[self.chat.marker] * len(waves),
                audio=[np.asarray(wave, np.float32) for wave in waves],
                sampling_rate=self.sample_rate,
                return_tensors="pt",
                text_kwargs={"padding": True},
                # On a CPU the spectrogram would take longer than the tower on a GPU.
                audio_kwargs={"device": str(self.device)},
            )
        return inputs, (inputs["input_ids"] == self.chat.audio_token).sum(-1)

    def _check_wave(self, wave: np.ndarray, number: int) -> None:
        seconds = len(wave) / self.sample_rate if wave.ndim == 1 else 0
        if wave.ndim != 1 or not len(wave):
            raise DataError(
                f"wave {number} has shape {list(wave.shape)}; one channel is needed",
                where=self.name,
            )
        if seconds > self.window_s:
            raise DataError(
                f"wave {number} takes {seconds:.1f} s, and the audio tower hears at most"
                f" {self.window_s:g} s",
                where=self.name,
                fix="leave the sentence out, or split it",
            )

    # prompts, answers and the forward pass

    def prompt(self, instruction: str) -> tuple[list[int], list[int]]:
        """Return the tokens before and after the audio, as the chat template puts them."""
        return self.chat.prompt(instruction)

    def answer(self, sentence: str) -> list[int]:
        """Return the tokens of an answer, its end token included."""
        return self.chat.answer(sentence)

    def project(self, x_BPA: torch.Tensor) -> torch.Tensor:
        """Apply the model's projector: [B, P, A], in the tower's place -> embeddings [B, P, H]."""
        projected: torch.Tensor = self.body.multi_modal_projector(x_BPA.to(self.dtype))
        return projected

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of tokens, [..., H]."""
        embedded: torch.Tensor = self.network.get_input_embeddings()(tokens)
        return embedded

    def hidden(self, embeds_BSH: torch.Tensor, mask_BS: torch.Tensor, **more: Any) -> torch.Tensor:
        """Return the language model's last hidden units [B, S, H].

        Args:
            embeds_BSH: Input embeddings.
            mask_BS: Bool, False in the padding, which takes no positions.
            **more: Further arguments of transformers' forward pass.
        """
        hidden_BSH: torch.Tensor = self.step(
            embeds_BSH, mask_BS, use_cache=False, **more
        ).last_hidden_state
        return hidden_BSH

    def step(self, embeds_BSH: torch.Tensor, mask_BS: torch.Tensor, **more: Any) -> Any:
        """Run the language model on the last S positions of the mask.

        Args:
            embeds_BSH: Input embeddings.
            mask_BS: Bool, False in the padding; longer than S where a cache holds earlier
                positions.
            **more: Further arguments of transformers' forward pass.

        Returns:
            The output of transformers.

        Raises:
            DataError: For more positions than the model knows.
        """
        window = self.chat.window
        if window is not None and mask_BS.shape[1] > window:
            problem = (
                f"{mask_BS.shape[1]} positions of prompt, brain and answer; the language model"
                f" knows {window}"
            )
            raise DataError(
                problem, where=self.name, fix="leave long trials out, or use another model"
            )
        positions_BS = (mask_BS.long().cumsum(-1) - 1).clamp(min=0)[:, -embeds_BSH.shape[1] :]
        # Only training is compiled: with a cache, each layer and each length would be compiled
        # separately.
        with nullcontext() if torch.is_grad_enabled() else torch.compiler.set_stance("force_eager"):
            return self.language_model(
                inputs_embeds=embeds_BSH.to(self.dtype),
                attention_mask=mask_BS.long(),
                position_ids=positions_BS,
                **more,
            )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply the output layer: [..., H] -> [..., V]."""
        logits_V: torch.Tensor = self.network.get_output_embeddings()(hidden)
        return logits_V

    # training

    def add_lora(self, config: LoRAConfig) -> dict[str, torch.nn.Parameter]:
        """Add LoRA to the language model.

        Returns:
            The trainable parameters by names that stay the same (without dots).
        """
        if self.lora:
            raise LanguageModelError("has LoRA already", where=self.name)
        self.lora = training.add_lora(self.language_model, config, self.name)
        return self.lora

    def train_lora(self, mode: bool = True) -> None:
        """Switch the dropout before LoRA; the frozen rest stays in evaluation mode."""
        for each in training.dropouts(self.language_model):
            each.train(mode)

    def checkpointing(self, on: bool) -> None:
        """Switch gradient checkpointing: of each layer, only the input is kept."""
        training.checkpoint_layers(self.language_model, on)

    def use(self, compile: bool) -> None:
        """Compile the layers of the language model, or undo that.

        Compiling takes a minute. Where it does not work, `notes` says so. Call this after
        `add_lora` and `checkpointing`.
        """
        training.uncompile(self.language_model)
        if compile and (error := training.compile_layers(self.language_model, self._first_pass)):
            training.uncompile(self.language_model)
            self.notes.append(f"torch.compile does not work here and is left out ({error})")

    def _first_pass(self) -> None:
        """Take a forward and a backward pass, which leaves no gradients behind."""
        probe = torch.zeros(2, 5, self.text_width, device=self.device, requires_grad=True)
        self.hidden(probe, torch.ones(2, 5, device=self.device)).sum().backward()  # type: ignore[no-untyped-call]
        for weight in self.lora.values():
            weight.grad = None


class _TowerDone(Exception):
    """Raised to end a forward pass after the tower."""
