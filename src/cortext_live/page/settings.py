"""Settings of live decoding for the page, as `cortext serve` takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cortext.errors import ConfigError
from cortext.evaluation.settings import LargeModelFiles, OptionsFile
from cortext.settings import Setting


@dataclass(frozen=True)
class LiveSettings:
    """The source of the features, the models, and how they decode.

    Attributes:
        overrides: `key=value` changes to the simulation.
        speed: 1 is the recording's own, infinity as fast as can be.
        device: Where the model runs: `cpu`, `cuda` or `cuda:N`.
        skip_bad: Leave unusable trials out.
        llm: Large model that takes part in the search or ranks its sentences; None without one.
        context: Text before the first sentence, until the page says something else.

    Raises:
        ConfigError: Unless one of `data`, `simulate` and `feed` is given.
    """

    run: Annotated[
        Path,
        Setting(
            help="Run directory of a trained model, or an exported one (--backend onnx).",
            argument=True,
        ),
    ]
    lm: Annotated[Path, Setting(help="Language-model directory.")]
    data: Annotated[
        Path | None, Setting(help="Recordings to replay: session files, or a packed directory.")
    ] = None
    split: Annotated[str, Setting(help="What of --data: train, val or test.")] = "val"
    simulate: Annotated[
        str | None,
        Setting(
            help="Simulate a participant without end: tiny, demo, t15 ...; see `cortext simulate`.",
            metavar="PRESET",
        ),
    ] = None
    overrides: Sequence[str] = ()
    feed: Annotated[bool, Setting(help="Take bins from the web socket /feed.")] = False
    day: Annotated[
        str | None,
        Setting(
            help="Day whose layer is used: a session, or latest. Without it each recording's own"
            " day's."
        ),
    ] = None
    speed: float = 1.0
    loop: Annotated[bool, Setting(help="Begin again after the last trial.")] = False
    session_log: Annotated[
        Path | None,
        Setting(help="Keep what was decoded, corrections and ratings there.", metavar="DIR"),
    ] = None
    record_all: Annotated[
        bool,
        Setting(help="Keep the features of all utterances there, too, for `recalibrate`."),
    ] = False
    record_quota_gb: Annotated[
        float, Setting(help="Most space of these features; the oldest are deleted first.")
    ] = 2.0
    record_days: Annotated[float, Setting(help="Days for which they are kept.")] = 30.0
    options: OptionsFile = None
    backend: Annotated[Literal["torch", "onnx"], Setting(help="What runs the model.")] = "torch"
    precision: Annotated[
        Literal["fp32", "bf16", "int8"],
        Setting(help="How weights are kept; onnx has no bf16."),
    ] = "fp32"
    endpoint_ms: Annotated[
        float | None,
        Setting(help="Silence that ends an utterance; 1500 for a feed, none for trials."),
    ] = None
    gate: Annotated[
        bool,
        Setting(help="Begin sentences by the idle gate that `fit-gate` has fitted to the run."),
    ] = False
    gate_threshold: Annotated[
        float | None,
        Setting(help="Probability above which the gate opens; the fitted one by default."),
    ] = None
    chain: Annotated[
        Path | None,
        Setting(
            help="Chain of `recalibrate`: its model that speaks is used, and followed;"
            " RUN until it is there."
        ),
    ] = None
    smoothing: Annotated[
        Literal["published", "causal"], Setting(help="As trained, 80 ms late; or causal.")
    ] = "published"
    normalise: Annotated[
        Literal["auto", "none", "rolling"],
        Setting(help="As in training; or rolling z-scores for raw features; or none."),
    ] = "auto"
    skip_bad: bool = False
    device: str = "cpu"
    llm: LargeModelFiles | None = None
    context: str = ""
    voice: Annotated[
        str | None,
        Setting(
            help="Voice that speaks sentences to pages: espeak-ng, formant, or the folder of a"
            " VITS model.",
            metavar="VOICE",
        ),
    ] = None
    on_final: Annotated[
        str | None,
        Setting(
            help="Program that gets each final sentence on its standard input, with its arguments.",
            metavar="COMMAND",
        ),
    ] = None
    case: Annotated[
        Path | None,
        Setting(
            help="Casing model of `lm train-case`, for sentences as they are shown and spoken."
            " Default: rules for English.",
            metavar="FILE",
        ),
    ] = None
    case_without_llm: Annotated[
        bool,
        Setting(help="Leave the choice of capitals and marks to these alone, also with --llm."),
    ] = False
    on_final_timeout: Annotated[
        float, Setting(help="Seconds after which that program is killed.")
    ] = 30.0

    def __post_init__(self) -> None:
        if sum((self.data is not None, self.simulate is not None, self.feed)) != 1:
            fix = "give one of --data, --simulate and --feed"
            raise ConfigError("nothing to decode, or more than one thing", fix=fix)
        if self.overrides and self.simulate is None:
            raise ConfigError(
                "--set changes a simulation", fix="give --simulate PRESET, or leave --set out"
            )
        if self.chain is not None and self.backend != "torch":
            fix = "leave --backend out, or export one of its models"
            raise ConfigError("--chain holds models for torch alone", fix=fix)
        if self.record_all and self.session_log is None:
            fix = "give --session-log DIR, too"
            raise ConfigError("--record-all has no log to keep features in", fix=fix)
        if self.gate_threshold is not None and not self.gate:
            raise ConfigError("--gate-threshold is given without --gate", fix="give both")
        if not self.speed > 0:
            raise ConfigError(f"speed is {self.speed}; a number above 0 is needed")
