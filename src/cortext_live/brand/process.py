"""The process of a BRAND node (github.com/brandbci/brand, specification 0.1.0).

A supervisor starts it with a nickname and the address of Redis. It reads its parameters from
`supergraph_stream`, writes its states to NICK_state, and ends on SIGINT.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from cortext.data.scaling import ROLLING_TRIALS
from cortext.decoding import Decoder
from cortext.decoding.confidence import Calibrator
from cortext.errors import ConfigError, CortextError, LiveError, shown
from cortext.evaluation.decoder_options import options_for
from cortext.evaluation.fit.confidence import choose_confidence
from cortext.extras import need
from cortext.plugins import load_plugins
from cortext_live.brand.entries import NodeStates
from cortext_live.brand.node import BrandNode
from cortext_live.brand.parameters import SUPERGRAPH, NodeConfig, node_parameters
from cortext_live.core.acoustic_stream import chosen_normalise, trained_normalise
from cortext_live.core.chain_follower import ChainFollower, OpenModel, speaking_run
from cortext_live.core.decoder import checked_hotwords, no_long_pauses, with_llm
from cortext_live.core.gate import gate_for
from cortext_live.core.log import LOGGER, event
from cortext_live.core.log_writer import LogWriter, open_log
from cortext_live.core.pipeline import Pipeline
from cortext_live.core.redis_connection import Stopped
from cortext_live.core.redis_link import RedisLink
from cortext_live.core.redis_refusals import URL, has_password_in, no_connection, refusal
from cortext_live.core.redis_streams import address, redis_url
from cortext_live.steps.stepper import Stepper
from cortext_live.steps.stepping import open_stepper

KEEP = 10_000, 64 * 2**20
"""Most entries and bytes that a node's stream holds of one node's life."""


def run_node(
    nickname: str,
    url: str,
    stop: threading.Event,
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Run a node until `stop` is set.

    Args:
        nickname: The node's nickname in the graph.
        url: URL of Redis; see `RedisLink`.
        stop: Set it to end the node.
        changes: Parameters that go before the graph's.

    Raises:
        LiveError: Redis cannot be reached, or refuses.
        CortextError: Parameters, a run or a language model cannot be used; the error is also
            written as NODE_FATAL_ERROR.
    """
    _reach(url)
    link = RedisLink(url, nickname, stop, keep=KEEP)
    states = NodeStates(link, nickname)
    try:
        states.write("NODE_STARTED")
        parameters = replace(read_parameters(link, nickname), **changes)
        LOGGER.setLevel(parameters.log.upper())
        loaded = _load(parameters)
        with _usage_log(parameters, loaded.pipeline) as log_writer:
            node = BrandNode(
                link, nickname, parameters, loaded.pipeline, states, loaded.model, log_writer
            )
            with _following(parameters, loaded, node), no_long_pauses():
                node.run()
        states.write("NODE_SHUTDOWN")
    except Stopped:  # Redis is away: nothing can be written to it
        event("node_shutdown", node=nickname)
    except Exception as error:
        problem = (
            str(error)
            if isinstance(error, CortextError)
            else shown(f"{type(error).__name__}: {error}")
        )
        stop.set()  # writing the state must not wait for a Redis that is away
        with contextlib.suppress(Stopped, LiveError):
            states.write("NODE_FATAL_ERROR", problem)
        raise
    finally:
        link.close()


def node_url(host: str | None, port: int | None, socket: str | None) -> str:
    """Return the URL of the Redis that a supervisor names.

    It is that of the environment variable, which may have a password, where both name one Redis.

    Args:
        host: Host; None where none was named.
        port: Port; None where none was named.
        socket: Unix socket; goes before host and port.
    """
    named, of_environ = (
        redis_url(host or "127.0.0.1", port or 6379, socket),
        os.environ.get(URL),
    )
    if not of_environ:
        return named
    same = _without_alias(address(of_environ)) == _without_alias(address(named))
    if same or (host, port, socket) == (None, None, None):
        has_password = has_password_in(of_environ)
        event(
            "redis_url_used",
            variable=URL,
            redis=address(of_environ),
            has_password=has_password,
        )
        return of_environ
    event(
        "redis_url_not_used",
        "warning",
        variable=URL,
        names=address(of_environ),
        used=address(named),
    )
    return named


def _without_alias(where: str) -> str:
    return re.sub(r"^(localhost|::1):", "127.0.0.1:", where)


def _reach(url: str) -> None:
    """Raise LiveError unless Redis answers: a node that cannot connect at its start must fail."""
    redis = need("redis", "live")
    where, errors = address(url), redis.exceptions
    client = redis.Redis.from_url(url, protocol=2, socket_connect_timeout=5, socket_timeout=5)
    try:
        client.ping()
    except errors.NoPermissionError:
        pass  # it has answered; a node needs no PING
    except errors.RedisError as error:
        reason = str(error).rstrip(".")
        fix = "start Redis, or give its -i and -p, or -s"
        raise (
            refusal(error, url, errors)
            or no_connection(error, url)
            or LiveError(f"Redis does not answer: {reason}", where=where, fix=fix)
        ) from None
    finally:
        client.close()


def read_parameters(link: RedisLink, nickname: str) -> NodeConfig:
    """Return the node's parameters in the newest entry of `supergraph_stream`.

    Raises:
        ConfigError: No graph was published, or a parameter is wrong.
    """
    newest = link.call(lambda redis: redis.xrevrange(SUPERGRAPH, count=1))
    if not newest:
        raise ConfigError(
            "no graph was published", where=SUPERGRAPH, fix="load a graph in the supervisor"
        )
    entry_id, fields = newest[0]
    return node_parameters(entry_id.decode(), fields, nickname)


@dataclass(frozen=True)
class _Loaded:
    """A warm pipeline.

    Attributes:
        pipeline: The pipeline.
        model: Name of its model in a chain; None for one of no chain.
        open_model: Loads another model of the chain.
    """

    pipeline: Pipeline
    model: str | None
    open_model: OpenModel


@contextlib.contextmanager
def _usage_log(parameters: NodeConfig, pipeline: Pipeline) -> Iterator[LogWriter | None]:
    """Open the usage log, if the parameters name one."""
    if parameters.session_log is None or pipeline.decoder is None:
        yield None
        return
    log_writer = open_log(
        parameters.session_log,
        pipeline.conventions,
        chosen_normalise(parameters.normalise, trained_normalise(pipeline.conventions)),
        pipeline.decoder,
        record_all=parameters.record_all,
        quota_gb=parameters.record_quota_gb,
        days=parameters.record_days,
    )
    pipeline.remember(log_writer.latest_features(ROLLING_TRIALS))
    try:
        yield log_writer
    finally:
        log_writer.close()


@contextlib.contextmanager
def _following(parameters: NodeConfig, loaded: _Loaded, node: BrandNode) -> Iterator[None]:
    """Give the node the models of the chain, if the parameters name one."""
    if parameters.chain is None:
        yield
        return
    like = loaded.pipeline.stepper
    follower = ChainFollower(
        parameters.chain, loaded.open_model, like, loaded.model, node.models.put
    )
    try:
        yield
    finally:
        follower.close()


def _load(parameters: NodeConfig) -> _Loaded:
    """Return the pipeline that the parameters name, warm."""
    load_plugins(parameters.plugins)
    run, model = parameters.run, None
    if parameters.chain is not None:
        run, model = speaking_run(parameters.chain, run)
    decoder = _decoder(parameters)

    def open_model(run: Path) -> tuple[Stepper, Calibrator | None]:
        stepper = open_stepper(run, parameters.day, parameters.backend, parameters.precision)
        if decoder is None:
            return stepper, None
        has_llm = decoder.llm is not None
        confidence = choose_confidence(run, decoder.lm_dir, decoder.options, has_llm=has_llm)
        event("confidence", note=confidence.note)
        return stepper, confidence.calibrator

    stepper, calibrator = open_model(run)
    if parameters.n_features not in (None, stepper.n_features):
        problem = (
            f"parameters.n_features is {parameters.n_features}; the model needs"
            f" {stepper.n_features}"
        )
        raise ConfigError(problem, where=parameters.run)
    if parameters.bin_ms not in (None, stepper.bin_ms):
        raise ConfigError(
            f"parameters.bin_ms is {parameters.bin_ms:g}; the model reads bins of"
            f" {stepper.bin_ms:g} ms",
            where=parameters.run,
            fix="join bins before they are sent",
        )
    chosen_normalise(parameters.normalise, trained_normalise(stepper.conventions))
    gate = gate_for(parameters.run, stepper, parameters.gate_threshold) if parameters.gate else None
    pipeline = Pipeline(
        None,
        decoder and decoder.with_calibrator(calibrator),
        options=parameters.pipeline,
        stepper=stepper,
        context=parameters.context,
        gate=gate,
    )
    if decoder is not None:
        pipeline.hotwords = checked_hotwords(parameters.hotwords, decoder.language)
    pipeline.push(np.zeros((50, stepper.n_features), dtype=np.float32))
    pipeline.reset()
    return _Loaded(pipeline, model, open_model)


def _decoder(parameters: NodeConfig) -> Decoder | None:
    if parameters.lm is None:
        return None
    options, note = options_for(parameters.run, parameters.lm, parameters.options)
    event("decoder_options", note=note)
    decoder = Decoder.from_dir(parameters.lm, options)
    if parameters.llm is not None:
        decoder = with_llm(decoder, parameters.llm, parameters.llm_lora, parameters.llm_device)
    return decoder
