"""The settings of `cortext serve`, and the decoding thread that they describe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from cortext import __version__
from cortext.decoding import Decoder
from cortext.errors import ConfigError
from cortext.evaluation.recognise import read_options
from cortext.live.core.acoustic_stream import EndpointOptions, PipelineOptions
from cortext.live.core.decoder import with_llm
from cortext.live.core.log import event
from cortext.live.page.day_pipeline import DayPipeline
from cortext.live.page.decoding_thread import DecodingThread
from cortext.live.page.log_writer import LogWriter
from cortext.live.page.sources import Replay, Simulator, Source
from cortext.models import load_model
from cortext.models.single_step import Precision
from cortext.models.stepping import Stepper, TorchStepper, open_stepper
from cortext.usage.writer import UsageLog


@dataclass(frozen=True)
class LiveSettings:
    """Settings of live decoding with a page. One of `data`, `simulate` and `feed` is given.

    Attributes:
        run: A run directory, or an exported one for the backend `onnx`.
        lm: A language-model directory.
        data: Recordings to replay.
        split: Their split.
        simulate: A simulator preset.
        overrides: Changes of the preset.
        feed: Take bins from a web socket.
        day: Whose layer is used: a session, `latest`, or None for each recording's own.
        speed: 1 is the recording's own, infinity as fast as can be.
        loop: Begin again after the last trial.
        skip_bad: Leave out damaged recordings.
        options: File of decoder options.
        backend: What runs the model.
        precision: How weights are kept.
        device: Where the model runs.
        endpoint_ms: Silence that ends an utterance; None: 1500 for a feed, and trials end where
            they end.
        smoothing: See `PipelineOptions`.
        normalise: See `PipelineOptions`.
        session_log: Folder of the usage log.
        llm: A large language model.
        llm_lora: An adapter for it.
        llm_device: Where it runs.
        context: What was said before, until the page changes it.
    """

    run: Path
    lm: Path
    data: Path | None = None
    split: str = "val"
    simulate: str | None = None
    overrides: Sequence[str] = ()
    feed: bool = False
    day: str | None = None
    speed: float = 1.0
    loop: bool = False
    skip_bad: bool = False
    options: Path | None = None
    backend: Literal["torch", "onnx"] = "torch"
    precision: Precision = "fp32"
    device: str = "cpu"
    endpoint_ms: float | None = None
    smoothing: Literal["published", "causal"] = "published"
    normalise: Literal["none", "rolling"] = "none"
    session_log: Path | None = None
    llm: str | None = None
    llm_lora: Path | None = None
    llm_device: str = "auto"
    context: str = ""

    def __post_init__(self) -> None:
        if sum((self.data is not None, self.simulate is not None, self.feed)) != 1:
            fix = "give one of --data, --simulate and --feed"
            raise ConfigError("nothing to decode, or more than one thing", fix=fix)
        if self.overrides and self.simulate is None:
            raise ConfigError(
                "--set changes a simulation", fix="give --simulate PRESET, or leave --set out"
            )
        if not self.speed > 0:
            raise ConfigError(f"speed is {self.speed}; a number above 0 is needed")

    def open(self, progress: Callable[[int, int], None] | None = None) -> DecodingThread:
        """Read the model, the language model and the source; return the thread that decodes.

        Args:
            progress: Called with the number of trials read and in all.

        Raises:
            CortextError: One of them cannot be used.
        """
        endpoint = EndpointOptions() if self.feed else None
        if self.endpoint_ms is not None:
            endpoint = EndpointOptions(self.endpoint_ms)
        options = PipelineOptions(self.smoothing, self.normalise, endpoint)
        decoder = Decoder.from_dir(self.lm, read_options(self.options))
        if self.llm is not None:
            decoder = with_llm(decoder, self.llm, self.llm_lora, self.llm_device)
        days = DayPipeline(self._stepper(), decoder, options, self.day, self.context)
        source = self._source(days, progress)
        log_writer = None
        if self.session_log is not None:
            log = UsageLog(self.session_log)
            for note in log.notes:
                event("session_log_damaged", "warning", note=note)
            log_writer = LogWriter(log)
        llm = None if self.llm is None else Path(self.llm).name
        about: dict[str, Any] = {
            "version": __version__,
            "run": self.run.name,
            "lm": self.lm.name,
            "llm": llm,
        }
        return DecodingThread(days, source, speed=self.speed, log_writer=log_writer, about=about)

    def _stepper(self) -> Stepper:
        if self.backend == "onnx" or self.device == "cpu":
            return open_stepper(self.run, "latest", self.backend, self.precision)
        return TorchStepper(load_model(self.run, self.device), "latest", self.precision)

    def _source(
        self, days: DayPipeline, progress: Callable[[int, int], None] | None
    ) -> Source | None:
        if self.data is not None:
            return Replay(
                self.data, self.split, loop=self.loop, skip_bad=self.skip_bad, progress=progress
            )
        if self.simulate is not None:
            return Simulator(
                self.simulate, [days.chosen] if days.chosen else days.known, self.overrides
            )
        return None
