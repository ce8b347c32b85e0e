"""The decoding thread that the settings of `cortext serve` describe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cortext import __version__
from cortext.data.conventions import Conventions
from cortext.data.scaling import ROLLING_TRIALS
from cortext.decoding import Decoder
from cortext.decoding.confidence import Calibrator
from cortext.evaluation.decoder_options import options_for
from cortext.evaluation.fit.confidence import choose_confidence
from cortext.models import load_model
from cortext.processes import Progress
from cortext_live.casing import Caser, caser_for
from cortext_live.casing.large import LargeCaser
from cortext_live.core.acoustic_stream import (
    EndpointOptions,
    PipelineOptions,
    chosen_normalise,
    conventions_of,
    trained_normalise,
)
from cortext_live.core.chain_follower import speaking_run
from cortext_live.core.decoder import with_llm
from cortext_live.core.gate import gate_for
from cortext_live.core.log import event
from cortext_live.core.log_writer import LogWriter, open_log
from cortext_live.core.on_final import FinalCommand
from cortext_live.core.speech import Speech
from cortext_live.page.day_pipeline import DayPipeline
from cortext_live.page.decoding_thread import DecodingThread
from cortext_live.page.forgetting import finish_forgetting
from cortext_live.page.settings import LiveSettings
from cortext_live.page.sources import Replay, Simulator, TrialSource
from cortext_live.steps.stepper import Stepper
from cortext_live.steps.stepping import TorchStepper, open_stepper
from cortext_lm.llm.large_model import LLM
from cortext_lm.llm.scoring import score_texts


def open_decoding(settings: LiveSettings, progress: Progress | None = None) -> DecodingThread:
    """Read the models and the source; return the thread that decodes.

    Args:
        settings: Settings of `cortext serve`.
        progress: Called with the number of trials read and in all.

    Raises:
        CortextError: One of them cannot be used.
    """
    run, name = settings.run, None
    if settings.chain is not None:
        run, name = speaking_run(settings.chain, run)
    on_final = None
    if settings.on_final is not None:  # first, because a mistake in it is found at once
        on_final = FinalCommand(settings.on_final, settings.on_final_timeout)
    stepper = _stepper(settings, run)
    speech = None  # its process opens the voice while models and recordings are read
    if settings.voice is not None:
        speech = Speech(settings.voice, conventions_of(stepper).language)
    options = pipeline_options(settings, conventions_of(stepper))
    decoder_options, _ = options_for(settings.run, settings.lm, settings.options)

    def calibrator_of(run: Path) -> Calibrator | None:
        has_llm = settings.llm is not None
        return choose_confidence(run, settings.lm, decoder_options, has_llm=has_llm).calibrator

    caser = caser_for(conventions_of(stepper).language, settings.case)
    decoder = Decoder.from_dir(settings.lm, decoder_options)
    decoder = decoder.with_calibrator(calibrator_of(run))
    if settings.llm is not None:
        llm = settings.llm
        decoder = with_llm(decoder, llm.model, llm.lora, llm.device)
        if not settings.case_without_llm:
            caser = _chosen_by_llm(caser, decoder)
    gate = gate_for(settings.run, stepper, settings.gate_threshold) if settings.gate else None
    days = DayPipeline(stepper, decoder, options, settings.day, settings.context, gate, name)
    source = _source(settings, days, progress)
    log_writer = _usage_log(settings, days, options, decoder)
    about: dict[str, Any] = {
        "version": __version__,
        "run": shown_name(settings.run),
        "lm": shown_name(settings.lm),
        "llm": None if settings.llm is None else Path(settings.llm.model).name,
    }
    decoding = DecodingThread(
        days,
        source,
        speed=settings.speed,
        log_writer=log_writer,
        about=about,
        on_final=on_final,
        caser=caser,
        run=settings.run,
    )
    if speech is not None:
        speech.wait()
        decoding.use_voice(speech)
    if settings.chain is not None:
        decoding.follow(settings.chain, lambda run: (_stepper(settings, run), calibrator_of(run)))
    return decoding


def _usage_log(
    settings: LiveSettings, days: DayPipeline, options: PipelineOptions, decoder: Decoder
) -> LogWriter | None:
    """Open the usage log, and continue where the server before ended; None without a log."""
    if settings.session_log is None:
        return None
    log_writer = open_log(
        settings.session_log,
        days.pipeline.conventions,
        options.normalise,
        decoder,
        record_all=settings.record_all,
        quota_gb=settings.record_quota_gb,
        days=settings.record_days,
    )
    days.pipeline.remember(log_writer.latest_features(ROLLING_TRIALS))
    if settings.chain is not None:
        finish_forgetting(settings.chain, settings.session_log)
    return log_writer


def shown_name(folder: Path) -> str:
    """Return the name that tells a folder from others: `run` and `lm` take that of their project.

    `runs/demo/run` is "demo", and `runs/demo/lm` is "demo-lm".
    """
    folder = folder.resolve()
    if folder.name == "run":
        return folder.parent.name or folder.name
    return f"{folder.parent.name}-lm" if folder.name == "lm" and folder.parent.name else folder.name


def _chosen_by_llm(caser: Caser, decoder: Decoder) -> Caser:
    """Return a caser whose sentences the large model chooses, where it can, and in time."""
    llm = decoder.llm
    if not isinstance(llm, LLM) or caser.language != "en":
        return caser

    def score(texts: Sequence[str]) -> list[float]:
        return [score_of.log_prob for score_of in llm.in_time(lambda: score_texts(llm.lm, texts))]

    large = LargeCaser(caser, score)
    unfit = large.unfit()
    event("case_by_llm", chooses=unfit is None, why=unfit, choice_ms=round(large.last_ms, 1))
    return caser if unfit else large


def pipeline_options(settings: LiveSettings, model: Conventions) -> PipelineOptions:
    """Return how features become logits; warn of another normalisation than in training.

    Args:
        settings: Settings of `cortext serve`.
        model: Conventions of the model.
    """
    endpoint = EndpointOptions() if settings.feed or settings.gate else None
    if settings.endpoint_ms is not None:
        endpoint = EndpointOptions(settings.endpoint_ms)
    # Recordings are replayed packed: raw ones are z-scores then.
    trained = "none" if settings.data is not None else trained_normalise(model)
    normalise = chosen_normalise(settings.normalise, trained)
    return PipelineOptions(settings.smoothing, normalise, endpoint)


def _stepper(settings: LiveSettings, run: Path) -> Stepper:
    if settings.backend == "onnx" or settings.device == "cpu":
        return open_stepper(run, "latest", settings.backend, settings.precision)
    return TorchStepper(load_model(run, settings.device), "latest", settings.precision)


def _source(
    settings: LiveSettings, days: DayPipeline, progress: Progress | None
) -> TrialSource | None:
    if settings.data is not None:
        return Replay(
            settings.data,
            settings.split,
            model=days.pipeline.conventions,
            loop=settings.loop,
            skip_bad=settings.skip_bad,
            progress=progress,
        )
    if settings.simulate is not None:
        return Simulator(
            settings.simulate, [days.chosen] if days.chosen else days.known, settings.overrides
        )
    return None
