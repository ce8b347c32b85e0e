"""Training of a speech LLM: the project's own trainer, with another model, loss and validation."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from cortext.data.packed import PackedDataset, PackedSplit
from cortext.errors import ConfigError, DataError, RunError
from cortext.models import AcousticModel
from cortext.speechllm.audio_llm.cost import Load
from cortext.speechllm.audio_llm.generate import check_room
from cortext.speechllm.audio_llm.loading import revision_there
from cortext.speechllm.audio_llm.model import AudioLLM
from cortext.speechllm.config import SpeechConfig, SpeechLLMConfig
from cortext.speechllm.loss_warnings import Watch
from cortext.speechllm.losses.speech_loss import SpeechLoss, sentences_of
from cortext.speechllm.memory import check_gpu_memory
from cortext.speechllm.model import FILE, SpeechLLM, read_speech_file
from cortext.speechllm.targets.cache import TargetCache
from cortext.speechllm.validate import SpeechValidator
from cortext.training.backend import DeviceSpec
from cortext.training.batches import Batches
from cortext.training.config import TrainConfig
from cortext.training.distributed import own_device
from cortext.training.loss import Loss, trial_name
from cortext.training.setup import new_model
from cortext.training.torch_backend import TorchBackend
from cortext.training.trainer import Callback, Trainer
from cortext.training.validate import Validator, wer_trials


class SpeechTrainer(Trainer):
    """A `Trainer` of a speech LLM.

    Other arguments are those of `Trainer`; there is no `lm`. Raises DecodingError and
    LanguageModelError, too.

    Attributes:
        cache: File of `cortext speech-llm cache`; needed where speech.alpha is not 0.
        init_from: A run of `cortext train`, whose encoder to start from, or one of a speech LLM,
            whose projector and LoRA weights count, too.
    """

    Config: ClassVar[type[TrainConfig]] = SpeechLLMConfig
    loss_name: ClassVar[str] = "loss"
    hears: bool = False
    """Whether the audio tower stays in memory: targets are read from the cache."""
    config: SpeechLLMConfig
    model: SpeechLLM
    backend: TorchBackend

    def __init__(
        self,
        config: SpeechLLMConfig | str | Path,
        data: PackedDataset | str | Path,
        out: str | Path,
        *,
        cache: str | Path | None = None,
        callbacks: Iterable[Callback] = (),
        **settings: Any,
    ) -> None:
        self._cache = cache
        super().__init__(config, data, out, callbacks=callbacks, **settings)
        self.callbacks.append(Watch(self.config.speech.weights))

    def _check(self, lm: str | Path | None) -> None:
        check_possible(self.config, self.device_spec, self._cache, lm)

    def check_later(self, config: SpeechLLMConfig) -> None:
        """Raise what a later stage of that configuration, on the same data, would raise.

        DataError, DecodingError, RunError.
        """
        self._check_memory(config, self.train_split, len(self.model.sessions))
        self._check_written(config, self.validator.batches.split)
        if config.speech.alpha:
            targets = self._open_targets(config.speech)
            for split in (self.train_split, self.validator.batches.split):
                _check_heard(targets, split)

    def _new_model(
        self, data: PackedDataset, sessions: tuple[str, ...], init_from: str | Path | None
    ) -> AcousticModel:
        speech, device = self.config.speech, own_device(self.device_spec.device)
        facts = AudioLLM.check(speech.audio_llm)
        encoder = new_model(self.config, data, sessions, init_from)
        self._check_memory(self.config, data.split("train"), len(sessions))
        llm = None
        if speech.reads_language_model:
            llm = AudioLLM.load(
                speech.audio_llm, str(device), quantize=speech.quantize, hears=self.hears
            )
        model = SpeechLLM.around(encoder, speech, facts.audio_width, llm)
        if llm is not None:
            llm.checkpointing(speech.gradient_checkpointing)
            llm.use(compile=speech.compile)
        if init_from is not None and (Path(init_from) / FILE).is_file():
            tensors, made = read_speech_file(Path(init_from))
            if made["revision"] not in (None, revision_there(speech.audio_llm)):
                what = (
                    f"its projector is of another audio language model, {made['speech'].audio_llm}"
                )
                raise RunError(
                    what,
                    where=init_from,
                    fix="start from a run of the same one, or of cortext train",
                )
            model.take_over(tensors, Path(init_from) / FILE)
        return model

    def _check_memory(self, config: SpeechLLMConfig, split: PackedSplit, n_days: int) -> None:
        """Raise where a GPU has too little memory for the longest trial of a split."""
        device = own_device(self.device_spec.device)
        if device.type == "cuda":
            load = Load(
                n_features=split.n_features, n_days=n_days, n_bins=int(split.n_bins_N.max())
            )
            check_gpu_memory(config, AudioLLM.check(config.speech.audio_llm), device, load)

    @cached_property
    def _targets(self) -> TargetCache | None:
        """The cached speech that training aligns to; None where no loss reads it.

        Raises DataError.
        """
        speech = self.config.speech
        return self._open_targets(speech) if speech.alpha else None

    def _open_targets(self, speech: SpeechConfig) -> TargetCache:
        assert self._cache is not None  # see `check_possible`
        return TargetCache.open(
            self._cache,
            revision_there(speech.audio_llm),
            AudioLLM.check(speech.audio_llm).audio_width,
        )

    def _loss(self) -> Loss:
        return self._loss_on(self.train_split)

    def _loss_on(self, split: PackedSplit) -> SpeechLoss:
        """The loss of the trials of a split. Raises DataError for a sentence without audio."""
        targets, network = self._targets, self.model.network
        if targets is not None:
            _check_heard(targets, split)
        return SpeechLoss(
            network.speech,
            split,
            network.llm if network.speech.reads_language_model else None,
            targets,
        )

    @property
    def _all_used(self) -> bool:
        return False  # the encoder's read-out, for one, has no gradient without the CTC loss

    def _validator(self, batches: Batches, lm: str | Path | None) -> Validator:
        self._check_written(self.config, batches.split)
        return SpeechValidator(
            batches, self.model, self._loss_on(batches.split), self.config, self.backend
        )

    def _check_written(self, config: SpeechLLMConfig, split: PackedSplit) -> None:
        """Raise DecodingError where a sentence of a validation may be longer than the model's
        positions.
        """
        speech, written = config.speech, wer_trials(config, len(split))
        if (
            speech.writes and written and not speech.merge_blanks
        ):  # how many patches merging leaves is not known yet
            chat = AudioLLM.read_chat(speech.audio_llm)
            n_patches = int(self.model.network.n_patches(split.n_bins_N[written].max()))
            check_room(chat, chat.prompt(speech.prompt), n_patches, speech.generation.max_length)

    def _identity(self) -> dict[str, Any]:
        targets = self._targets
        return {
            "audio_llm": revision_there(self.config.speech.audio_llm),
            "speech": None if targets is None else targets.origin.metadata(),
        }

    def _save_model(self) -> str:
        return self.model.save(self.run_directory.path)


def check_possible(
    config: SpeechLLMConfig,
    spec: DeviceSpec,
    cache: str | Path | None,
    lm: str | Path | None = None,
) -> None:
    """Raise ConfigError for what cannot be trained, before anything is read or written."""
    speech = config.speech
    if spec.backend_name != "torch":
        what = (
            f"a speech LLM is trained with torch on a CPU or on GPUs, and {spec.backend_name} is"
            " asked for"
        )
        raise ConfigError(what, fix="give --device cpu or cuda")
    if lm is not None:
        raise ConfigError(
            "a speech LLM writes its sentences without an n-gram", fix="leave out --lm"
        )
    if config.best_metric == "val_wer" and not (speech.writes and config.val_wer_trials):
        what = (
            "best_metric is 'val_wer', and without the tokens' loss or val_wer_trials no sentence"
            " is written"
        )
        raise ConfigError(what, fix="give best_metric val_loss or val_per, or speech.beta above 0")
    if speech.alpha and cache is None:
        what = "speech.alpha is not 0, and there is no cached speech to align to"
        raise ConfigError(
            what,
            fix="make it with cortext speech-llm cache and give --cache, or set speech.alpha=0",
        )


def _check_heard(targets: TargetCache, split: PackedSplit) -> None:
    """Raise DataError where a sentence of a split has no audio."""
    if missing := targets.missing(sentences_of(split)):
        first = next(i for i in range(len(split)) if (split.sentence(i) or "") not in targets)
        what = (
            f"has no audio of {len(missing)} sentences of the {split.name} split, such as"
            f" {missing[0]!r}"
        )
        fix = "give the data to `cortext speech-llm cache` with the same --out, which adds them"
        raise DataError(f"{what} ({trial_name(split, first)})", where=targets.path, fix=fix)
