"""The parameters of a BRAND node, from the newest entry of `supergraph_stream`.

The layout of that entry follows the BRAND specification 0.1.0 (github.com/brandbci/brand).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from cortext.config import check_fields, from_mapping
from cortext.decoding.options import DecoderOptions
from cortext.errors import ConfigError, CortextError
from cortext.files import parse_json
from cortext.settings import AT_LEAST_1
from cortext_live.core.acoustic_stream import EndpointOptions, Normalise, PipelineOptions
from cortext_live.steps.single_step import Precision
from cortext_live.steps.stepping import Backend

SUPERGRAPH = "supergraph_stream"
MOST_GRAPH_BYTES = 16 * 2**20


@dataclass(frozen=True)
class NodeConfig:
    """The node's parameters.

    An empty stream name is replaced by NICK and a suffix; NICK is the node's nickname.
    """

    run: Path
    """Run directory of the model, or an exported one for the backend `onnx`."""
    lm: Path | None = None
    """Language-model directory; without it the node gives logits and no text."""
    chain: Path | None = None
    """Directory of models that `recalibrate` writes: the one that speaks is used, and followed.

    `run` speaks until the chain is there; its idle gate and decoder options stay in any case.
    """
    session_log: Path | None = None
    """Directory of a usage log that keeps the decoded sentences; needs `lm`."""
    record_all: bool = False
    """Keep the features of all utterances there, too, for `recalibrate`."""
    record_quota_gb: float = 2.0
    """Most space of these features; the oldest are deleted first."""
    record_days: float = 30.0
    """Days for which they are kept."""
    llm: str | None = None
    """Large language model that ranks the sentences.

    A directory, or its name at the Hugging Face Hub.
    """
    llm_lora: Path | None = None
    """Directory of a LoRA adapter for it."""
    llm_device: str = "auto"
    """Device that it runs on: `cpu`, `cuda`, `cuda:N`, or `auto`."""
    context: str = ""
    """Text before the utterance, for the large model; a trial's start may bring its own."""
    day: str = "latest"
    """Recording day whose layer the model uses."""
    backend: Backend = "torch"
    """`torch`, or `onnx` for ONNX Runtime."""
    precision: Precision = "fp32"
    """`fp32`; faster: `bf16` (torch), `int8`."""
    plugins: list[Path] = field(default_factory=list)
    """Python files that register own models."""
    options: dict[str, Any] | str = field(default_factory=dict)
    """Decoder options (`DecoderOptions`) by name, a YAML file, a run directory, or `default`.

    Without one, or with `llm` alone, those that were fitted to the run with this language model.
    """
    hotwords: dict[str, float] = field(default_factory=dict)
    """Bonus by word."""
    smoothing: Literal["published", "causal"] = "published"
    """`published` looks 80 ms ahead, as training and evaluation do; `causal` does not."""
    normalise: Normalise = "auto"
    """`auto` normalises as in training; `rolling` where the features have not been z-scored."""

    input_stream: str = "binned_spikes"
    """Stream that brings the bins."""
    input_field: str = "samples"
    """Field of an entry that holds the features of its bins."""
    input_dtype: str = "float32"
    """Any dtype that NumPy knows by name; a leading `>` for big-endian numbers."""
    n_features: Annotated[int | None, AT_LEAST_1] = None
    """Features in a bin; by default as many as the model has. Another number is refused."""
    bin_ms: float | None = None
    """Length of a bin in milliseconds; by default the model's. Another length is refused."""
    bins_per_entry: Annotated[int | None, AT_LEAST_1] = 1
    """Bins in an entry; null for any number.

    With null a wrong dtype goes unnoticed if the bytes still make whole bins.
    """
    index_field: str = "i"
    """Field with the running number of an entry; where entries lack it, lost ones go unnoticed."""
    sync_key: str = "sync"
    """Field with the labels of the data; the node copies it into its answers."""
    time_key: str = "ts"
    """Field of an answer that holds the time of writing."""

    control_stream: str | None = None
    """Stream with the starts and stops of trials.

    Without one a long enough silence ends an utterance.
    """
    control_field: str = "command"
    """Field of an entry that holds one of the three values below."""
    start_value: str = "start"
    """Begins an utterance."""
    stop_value: str = "stop"
    """Ends an utterance."""
    block_value: str = "block"
    """Begins a block of rolling z-scores."""
    silence_ms: float | None = None
    """Silence that ends an utterance.

    By default it is 1500 without a control stream; with one, silence does not end an utterance.
    """
    gate: bool = False
    """Begin utterances by the idle gate of the run; not with a control stream."""
    gate_threshold: float | None = None
    """Probability above which the gate opens; by default the fitted one."""
    max_ms: float = 60_000.0
    """Length at which an utterance ends in any case."""

    output_stream: str = ""
    """An entry per frame (step of the model); NICK_output by default."""
    logits_field: str = "logits"
    """Field that holds the logits of the step."""
    partial_field: str = "text"
    """Field that holds the best text so far."""
    final_stream: str = ""
    """An entry per utterance; NICK_final by default."""
    final_field: str = "text"
    """Field that holds the final text."""
    nbest_field: str = "nbest"
    """Field that holds the n-best list."""
    log: str = "INFO"
    """Level of the log on stderr."""

    def __post_init__(self) -> None:
        check_fields(self, "parameters.")
        for name in _NAMES:
            if not getattr(self, name):
                raise ConfigError(f"parameters.{name} is empty; a name is needed")
        try:
            if np.dtype(self.input_dtype).kind not in "iuf":
                raise TypeError
        except (TypeError, ValueError, SyntaxError):
            problem = f"parameters.input_dtype is {self.input_dtype!r}"
            raise ConfigError(
                f"{problem}; a dtype of numbers such as 'float32' or 'int16' is needed"
            ) from None
        if self.llm is not None and self.lm is None:
            raise ConfigError(
                "parameters.llm is given without parameters.lm, whose sentences it ranks"
            )
        if self.session_log is not None and self.lm is None:
            raise ConfigError("parameters.session_log is given without parameters.lm: no text")
        if self.record_all and self.session_log is None:
            raise ConfigError("parameters.record_all has no session_log to keep features in")
        if self.chain is not None and self.backend != "torch":
            raise ConfigError("parameters.chain holds models for the backend torch alone")
        if self.gate and self.control_stream is not None:
            raise ConfigError("parameters.gate is true with a control stream, which marks trials")
        values = [self.start_value, self.stop_value, self.block_value]
        if len(set(values)) < len(values):
            given = ", ".join(map(repr, values))
            raise ConfigError(
                f"parameters.start_value, stop_value and block_value are {given}; three are needed"
            )
        if self.log.upper() not in LOG_LEVELS:
            raise ConfigError(
                f"parameters.log is {self.log!r}; one of {', '.join(LOG_LEVELS)} is needed"
            )
        _in_parameters(lambda: self.pipeline)
        if not isinstance(self.options, str):
            options = self.options
            _in_parameters(lambda: DecoderOptions.of(options), "options: ")

    @property
    def pipeline(self) -> PipelineOptions:
        """The options of its pipeline."""
        silence_ms = self.silence_ms
        if silence_ms is None:  # the stop ends it, or its length
            silence_ms = self.max_ms if self.control_stream else EndpointOptions().silence_ms
        return PipelineOptions(
            self.smoothing, self.normalise, EndpointOptions(silence_ms, max_ms=self.max_ms)
        )


LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_NAMES: tuple[str, ...] = (
    "input_stream",
    "input_field",
    "index_field",
    "sync_key",
    "time_key",
    "control_field",
)
_NAMES += ("logits_field", "partial_field", "final_field", "nbest_field", "day")


def _in_parameters(make: Callable[[], object], prefix: str = "") -> None:
    try:
        make()
    except CortextError as error:
        raise ConfigError(
            f"parameters.{prefix}{error.what.removeprefix('endpoint.')}", fix=error.fix
        ) from None


def node_parameters(
    entry_id: str, fields_of_entry: Mapping[bytes, bytes], nickname: str
) -> NodeConfig:
    """Return the parameters of node `nickname` in an entry of `supergraph_stream`.

    Args:
        entry_id: Id of the entry, for messages.
        fields_of_entry: The entry.
        nickname: Nickname of the node.

    Raises:
        ConfigError: A parameter is wrong; the message names the entry, the node and the parameter.
    """
    where = f"{SUPERGRAPH} {entry_id}"
    node = _node(fields_of_entry, nickname, where)
    where = f"{where}, node {nickname}"
    mapping = node.get("parameters") or {}
    for text in _texts(mapping):
        if re.search("[\0\ud800-\udfff]", text):
            raise ConfigError(
                f"parameters hold {text!r}, which no name or path can be", where=where
            )
    parameters = from_mapping(NodeConfig, mapping, where=where, prefix="parameters.")
    return with_names(parameters, nickname)


def with_names(parameters: NodeConfig, nickname: str) -> NodeConfig:
    """Return the parameters with default names for the streams that have none."""
    values = {f.name: getattr(parameters, f.name) for f in fields(parameters)}
    values["output_stream"] = parameters.output_stream or f"{nickname}_output"
    values["final_stream"] = parameters.final_stream or f"{nickname}_final"
    return NodeConfig(**values)


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts within a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | Mapping):
        for item in (*value, *value.values()) if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _node(entry: Mapping[bytes, bytes], nickname: str, where: str) -> Mapping[str, Any]:
    if b"data" not in entry:
        raise ConfigError(
            "the entry has no field 'data'", where=where, fix="publish the graph again"
        )
    if len(entry[b"data"]) > MOST_GRAPH_BYTES:
        n_bytes = len(entry[b"data"])
        raise ConfigError(
            f"the graph has {n_bytes} bytes; at most {MOST_GRAPH_BYTES} are read", where=where
        )
    try:
        nodes = parse_json(entry[b"data"])["nodes"]
        by_nickname = {node.get("nickname", key): node for key, node in nodes.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            "field 'data' is no graph: JSON with 'nodes' is needed", where=where
        ) from None
    if nickname not in by_nickname:
        known = ", ".join(map(str, by_nickname)) or "none"
        raise ConfigError(
            f"no node with the nickname {nickname!r}; the graph has: {known}", where=where
        )
    of_nickname: Mapping[str, Any] = by_nickname[nickname]
    return of_nickname
