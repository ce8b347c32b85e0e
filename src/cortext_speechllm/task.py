"""The task of a speech LLM: model, losses, validation and saving."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

from cortext.data.packed import PackedDataset, PackedSplit
from cortext.errors import ConfigError, DataError, RunError
from cortext.models import AcousticModel
from cortext.training.backend import Backend, DeviceSpec
from cortext.training.batches import Batches
from cortext.training.callbacks import Callback
from cortext.training.distributed import own_device
from cortext.training.loss import trial_name
from cortext.training.setup import new_model
from cortext.training.task import Task, check_all_labels_fit
from cortext.training.torch_backend import TorchBackend
from cortext.training.trainer import Trainer
from cortext.training.validate import wer_trials
from cortext_speechllm.audio_llm.cost import Load
from cortext_speechllm.audio_llm.facts import AudioFacts
from cortext_speechllm.audio_llm.generate import check_positions
from cortext_speechllm.audio_llm.loading import revision_there
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.config import SpeechConfig, SpeechLLMConfig, read_speech_config
from cortext_speechllm.losses.speech_loss import SpeechLoss, sentences_of
from cortext_speechllm.memory import check_gpu_memory
from cortext_speechllm.model import FILE, SpeechLLM, read_speech_file
from cortext_speechllm.targets.cache import TargetCache
from cortext_speechllm.validate import LossWarnings, SpeechValidator


def speech_trainer(
    config: SpeechLLMConfig | str | Path,
    data: PackedDataset | str | Path,
    out: str | Path,
    *,
    cache: str | Path | None = None,
    device: str | DeviceSpec = "cpu",
    lm: str | Path | None = None,
    callbacks: Iterable[Callback] = (),
    overrides: Iterable[str] = (),
    **settings: Any,
) -> Trainer:
    """Return a `Trainer` of a speech LLM.

    Args:
        config: A SpeechLLMConfig, a YAML file, or the name of a shipped recipe.
        data: See `Trainer`.
        out: See `Trainer`.
        cache: File of `cortext speech-llm cache`; needed where speech.alpha is not 0.
        device: `cpu`, `cuda` or `cuda:N`.
        lm: Refused: a speech LLM writes its sentences without an n-gram.
        callbacks: See `Callback`.
        overrides: `key=value` changes of the configuration.
        **settings: Other arguments of `Trainer`. `init_from` is a run of `cortext train`, whose
            encoder to start from, or one of a speech LLM, whose projector and LoRA weights count,
            too.

    Raises:
        ConfigError, DataError, RunError, DecodingError, LanguageModelError: Before the first batch.
    """
    config = read_speech_config(config, overrides)
    spec = device if isinstance(device, DeviceSpec) else DeviceSpec(device)
    task = SpeechTask(config, spec, lm, cache=cache)
    callbacks = [*callbacks, LossWarnings(config.speech.weights)]
    return Trainer(config, data, out, task=task, device=spec, callbacks=callbacks, **settings)


class SpeechTask(Task):
    """Training of a brain encoder aligned to an audio language model, which writes the sentence.

    Args:
        config: The configuration of the run.
        device_spec: The device that the run asks for.
        lm: Refused by `check`.
        cache: File of `cortext speech-llm cache`; needed where speech.alpha is not 0.
        with_tower: Keep the audio tower in memory. Training reads its output from the cache.
    """

    metrics: ClassVar[tuple[str, ...]] = ("val_per", "val_wer", "val_loss")
    needs_labels: ClassVar[bool] = True
    # The encoder's read-out, for one, has no gradient without the CTC loss.
    all_used = False
    config: SpeechLLMConfig

    def __init__(
        self,
        config: SpeechLLMConfig,
        device_spec: DeviceSpec,
        lm: str | Path | None = None,
        *,
        cache: str | Path | None = None,
        with_tower: bool = False,
    ) -> None:
        super().__init__(config, device_spec, lm)
        self.cache = cache
        self.with_tower = with_tower
        self._targets: TargetCache | None = None
        self._audio_llms: dict[str, tuple[AudioFacts, str]] = {}

    def check(self) -> None:
        """See `Task`."""
        check_possible(self.config, self.device_spec, self.cache, self.lm)

    def new_model(
        self, data: PackedDataset, sessions: tuple[str, ...], init_from: str | Path | None
    ) -> AcousticModel:
        """See `Task`."""
        speech = self.config.speech
        device = own_device(self.device_spec.device)
        facts, _ = self._audio_llm(speech)
        encoder = new_model(self.config, data, sessions, init_from)
        self._check_memory(self.config, data.split("train"), len(sessions))
        llm = None
        if speech.reads_language_model:
            llm = AudioLLM.load(
                speech.audio_llm, str(device), quantize=speech.quantize, with_tower=self.with_tower
            )
        model = SpeechLLM.around(encoder, speech, facts.audio_width, llm)
        if llm is not None:
            llm.checkpointing(speech.gradient_checkpointing)
            llm.use(compile=speech.compile)
        if init_from is not None and (Path(init_from) / FILE).is_file():
            _take_over(model, speech, Path(init_from))
        return model

    def check_trials(self, model: AcousticModel, train: PackedSplit, val: PackedSplit) -> None:
        """See `Task`."""
        check_all_labels_fit(self.config, model, train, val)

    def loss(self, model: AcousticModel, split: PackedSplit) -> SpeechLoss:
        """See `Task`. Raises DataError for a sentence without audio in the cache."""
        speech = self.config.speech
        network = model.network
        targets = self.targets()
        if targets is not None:
            _check_has_audio(targets, split)
        llm = network.llm if speech.reads_language_model else None
        return SpeechLoss(network.speech, split, llm, targets)

    def validator(
        self, model: AcousticModel, batches: Batches, backend: Backend
    ) -> SpeechValidator:
        """See `Task`."""
        assert isinstance(model, SpeechLLM)
        assert isinstance(backend, TorchBackend)  # see `check_possible`
        _check_written(self.config, model, batches.split)
        loss = self.loss(model, batches.split)
        return SpeechValidator(batches, model, loss, self.config, backend)

    def identity(self) -> dict[str, Any]:
        """See `Task`."""
        targets = self.targets()
        return {
            "audio_llm": self._audio_llm(self.config.speech)[1],
            "speech": None if targets is None else targets.origin.metadata(),
        }

    def save(self, model: AcousticModel, folder: Path) -> str:
        """See `Task`."""
        assert isinstance(model, SpeechLLM)
        return model.save(folder)

    def targets(self) -> TargetCache | None:
        """Return the cached speech that training aligns to; None where no loss reads it.

        Raises DataError for a cache that cannot be used.
        """
        if self._targets is None and self.config.speech.alpha:
            self._targets = self._open_targets(self.config.speech)
        return self._targets

    def check_later(
        self, config: SpeechLLMConfig, model: AcousticModel, train: PackedSplit, val: PackedSplit
    ) -> None:
        """Raise the errors that a later stage on the same trials would raise.

        Args:
            config: Configuration of that stage.
            model: The model in training.
            train: Training trials.
            val: Validation trials.

        Raises:
            DataError: For a sentence without audio in the cache, and another cache.
            DecodingError: For sentences longer than the model's positions.
            LanguageModelError: Where a GPU has too little memory.
        """
        self._check_memory(config, train, len(model.sessions))
        _check_written(config, model, val)
        if config.speech.alpha:
            targets = self._open_targets(config.speech)
            for split in (train, val):
                _check_has_audio(targets, split)

    def _check_memory(self, config: SpeechLLMConfig, split: PackedSplit, n_days: int) -> None:
        """Raise LanguageModelError where a GPU lacks memory for the longest trial of a split."""
        device = own_device(self.device_spec.device)
        if device.type == "cuda":
            load = Load(
                n_features=split.n_features,
                n_days=n_days,
                n_bins=int(split.n_bins_N.max()),
                n_classes=len(split.conventions.inventory),
            )
            check_gpu_memory(config, self._audio_llm(config.speech)[0], device, load)

    def _open_targets(self, speech: SpeechConfig) -> TargetCache:
        assert self.cache is not None  # see `check_possible`
        facts, revision = self._audio_llm(speech)
        return TargetCache.open(self.cache, revision, facts.audio_width)

    def _audio_llm(self, speech: SpeechConfig) -> tuple[AudioFacts, str]:
        """Return widths and sizes of the audio LLM, and its revision.

        They are asked for several times before the first batch. Reading the tokenizer, the
        configuration and a checksum of the weights each time took half of the start.
        """
        name = speech.audio_llm
        if name not in self._audio_llms:
            self._audio_llms[name] = AudioLLM.check(name), revision_there(name)
        return self._audio_llms[name]


def check_possible(
    config: SpeechLLMConfig,
    spec: DeviceSpec,
    cache: str | Path | None,
    lm: str | Path | None = None,
) -> None:
    """Raise ConfigError for a training that cannot be done, before anything is read or written.

    Args:
        config: Configuration of the training or of one stage.
        spec: The device.
        cache: File of cached speech; needed where speech.alpha is not 0.
        lm: Refused: a speech LLM writes its sentences without an n-gram.
    """
    speech = config.speech
    if spec.backend_name != "torch":
        problem = (
            f"a speech LLM is trained with torch on a CPU or on GPUs, and {spec.backend_name} is"
            " asked for"
        )
        raise ConfigError(problem, fix="give --device cpu or cuda")
    if lm is not None:
        raise ConfigError(
            "a speech LLM writes its sentences without an n-gram", fix="leave out --lm"
        )
    if config.best_metric == "val_wer" and not (speech.writes and config.val_wer_trials):
        problem = (
            "best_metric is 'val_wer', and without the tokens' loss or val_wer_trials no sentence"
            " is written"
        )
        raise ConfigError(
            problem, fix="give best_metric val_loss or val_per, or speech.beta above 0"
        )
    if speech.alpha and cache is None:
        problem = "speech.alpha is not 0, and there is no cached speech to align to"
        raise ConfigError(
            problem,
            fix="make it with cortext speech-llm cache and give --cache, or set speech.alpha=0",
        )


def _take_over(model: SpeechLLM, speech: SpeechConfig, run: Path) -> None:
    """Copy the projector and LoRA weights of a run. Raises RunError for another audio LLM."""
    tensors, made = read_speech_file(run)
    if made["revision"] not in (None, revision_there(speech.audio_llm)):
        problem = f"its projector is of another audio language model, {made['speech'].audio_llm}"
        fix = "start from a run of the same one, or of cortext train"
        raise RunError(problem, where=run, fix=fix)
    model.take_over(tensors, run / FILE)


def _check_written(config: SpeechLLMConfig, model: AcousticModel, split: PackedSplit) -> None:
    """Raise DecodingError where a sentence may be longer than the language model's positions."""
    speech = config.speech
    written = wer_trials(config, len(split))
    # The number of patches after merging blanks is not known yet.
    if speech.writes and written and not speech.merge_blanks:
        chat = AudioLLM.read_chat(speech.audio_llm)
        n_patches = int(model.network.n_patches(split.n_bins_N[written].max()))
        check_positions(chat, chat.prompt(speech.prompt), n_patches, speech.generation.max_length)


def _check_has_audio(targets: TargetCache, split: PackedSplit) -> None:
    """Raise DataError where a sentence of a split has no audio."""
    if missing := targets.missing(sentences_of(split)):
        first = next(i for i in range(len(split)) if (split.sentence(i) or "") not in targets)
        problem = (
            f"has no audio of {len(missing)} sentences of the {split.name} split, such as"
            f" {missing[0]!r}"
        )
        fix = "give the data to `cortext speech-llm cache` with the same --out, which adds them"
        raise DataError(f"{problem} ({trial_name(split, first)})", where=targets.path, fix=fix)
