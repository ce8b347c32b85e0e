"""Commands that work over Redis streams: lm-server, brand-node, replay."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.console import (
    JSON,
    OVERRIDES,
    PLUGINS,
    SKIP_BAD,
    percent,
    print_json,
    print_lines,
    print_table,
    progress_bar,
    stage,
)
from cortext.cli.options import PromptedModelSettings, with_settings
from cortext.errors import ConfigError
from cortext.evaluation.settings import OptionsFile
from cortext.plugins import load_plugins
from cortext.settings import Setting
from cortext_live.commands.redis_server import RedisServer

if TYPE_CHECKING:
    from cortext_live.core.redis_link import RedisLink
    from cortext_live.replay import ReplaySummary
    from cortext_live.replay_clients import Client
    from cortext_live.steps.stepper import Stepper


@dataclass(frozen=True)
class StreamNames:
    """Names of the streams of a language-model server; the profile's own where None."""

    input_stream: Annotated[str | None, Setting(help="Stream of logits.")] = None
    partial_output_stream: Annotated[str | None, Setting(help="Stream of partial sentences.")] = (
        None
    )
    final_output_stream: Annotated[str | None, Setting(help="Stream of final sentences.")] = None

    def by_role(self) -> dict[str, str | None]:
        """Return the names as `make_protocol` takes them."""
        return {
            "input": self.input_stream,
            "partial": self.partial_output_stream,
            "final": self.final_output_stream,
        }


def lm_server(
    lm: Annotated[
        Path,
        typer.Option(
            help="Language-model directory, or a Kaldi folder with the graph of a 1-gram."
        ),
    ],
    *,
    redis: RedisServer,
    profile: Annotated[
        str, typer.Option(help="published (that of the NEJM 2024 release), or json.")
    ] = "published",
    preset: Annotated[
        str | None,
        typer.Option(help="published: the published parameters; by default the search's own."),
    ] = None,
    options: OptionsFile = None,
    large: PromptedModelSettings,
    overrides: list[str] = OVERRIDES,
    streams: StreamNames,
    keep: Annotated[
        int, typer.Option(min=1, help="Most answered entries that stay in a stream.")
    ] = 10_000,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="End a server that has these streams.")
    ] = False,
    log: Annotated[
        Path | None, typer.Option(help="File for the log (JSON lines); stderr without it.")
    ] = None,
    log_text: Annotated[
        bool, typer.Option("--log-text", help="Write sentences into the log, too.")
    ] = False,
) -> None:
    """Serve the search over Redis streams, as the public release's language-model process does.

    Runs until SIGINT or SIGTERM. Parameters have their published names in --set: acoustic_scale,
    blank_penalty, nbest and others.

    With --llm the large model scores the candidates until a client sets do_opt to 0; alpha is its
    weight, and the key contextual_decoding_current_context goes before --context.

    Example: cortext lm-server --lm runs/lm --preset published --redis-host localhost --set
    acoustic_scale=0.35
    """
    from cortext.decoding import Decoder
    from cortext.evaluation.decoder_options import options_for
    from cortext.evaluation.fit.confidence import RAW
    from cortext.processes import stop_event
    from cortext_live.core.decoder import no_long_pauses, with_llm
    from cortext_live.core.log import event, open_log
    from cortext_live.lm_server.server import LMServer, make_protocol
    from cortext_lm.kaldi.folder import converted

    with (
        open_log(log, log_text),
        stop_event() as stop,
        _waits_shown(log is not None),
        converted(lm, stage) as lm,
    ):
        decoder_options, note = options_for(None, lm, options)
        decoder = Decoder.from_dir(lm, decoder_options)
        if large.llm is not None:
            decoder = with_llm(decoder, large.llm, large.llm_lora, large.llm_device)
        names = streams.by_role()
        protocol = make_protocol(decoder, profile, preset, overrides, names, stop, large.context)
        event("decoder_options", note=note)
        if profile == "json":  # the published one sends no confidences
            event("confidence", note=f"{RAW} (clients' logits belong to no run)")
        with no_long_pauses():
            LMServer(protocol, redis.url, stop, (keep, 64 * 2**20), take_over=take_over).run()


@contextmanager
def _waits_shown(shown: bool) -> Iterator[None]:
    """Print on stderr when Redis does not answer, and when it answers again.

    The log says both, too: it may go to a file, while somebody looks at the terminal.
    """
    from cortext_live.core.log import LOGGER

    class Waits(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines = {
                "redis_unreachable": "does not answer; waiting for it (Ctrl-C ends this)",
                "redis_answers_again": "answers",
            }
            if record.getMessage() in lines:
                where = record.__dict__["facts"]["redis"]
                print_lines(f"Redis at {where} {lines[record.getMessage()]}", err=True)

    handler = Waits()
    if shown:
        LOGGER.addHandler(handler)
    try:
        yield
    finally:
        LOGGER.removeHandler(handler)


# A supervisor may pass flags of later specifications: nodes ignore what they do not know.
@with_settings(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
def brand_node(
    nickname: Annotated[
        str, typer.Option("-n", "--nickname", help="The node's nickname in the graph.")
    ],
    *,
    host: Annotated[
        str | None,
        typer.Option("-i", "--host", help="Host of Redis.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("-p", "--port", min=1, max=65535, help="Port of Redis.", show_default="6379"),
    ] = None,
    socket: Annotated[
        str | None,
        typer.Option(
            "-s", "--socket", help="Unix socket of Redis, which goes before host and port."
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--redis-url",
            show_default=False,
            help=(
                "Instead of these: redis[s]://[user:password@]host[:port][/db] or unix:///path."
                " Never logged. By default CORTEXT_REDIS_URL, where it names the same Redis."
            ),
        ),
    ] = None,
    large: PromptedModelSettings,
    log_text: Annotated[
        bool, typer.Option("--log-text", help="Write decoded texts into the log, too.")
    ] = False,
) -> None:
    """Run as a BRAND node: read bins from a Redis stream, write logits and words into others.

    A BRAND supervisor starts it; its parameters come from `supergraph_stream`. Flags that it does
    not know are ignored. Those of a large model are parameters, too; given here they go before the
    graph's. Its log goes to stderr, as JSON lines.

    Example: cortext brand-node -n speech -i 127.0.0.1 -p 6379
    """
    from cortext.processes import stop_event
    from cortext_live.brand.process import node_url, run_node
    from cortext_live.core.log import open_log

    changes = {} if large.llm is None else vars(large)
    with open_log(with_text=log_text), stop_event() as stop:
        run_node(nickname, url or node_url(host, port, socket), stop, changes)


PROFILES = ("brand", "lm", "json")


@dataclass(frozen=True)
class ChosenTrials:
    """The trials to replay; all of the split where neither sessions nor trials are named."""

    split: Annotated[str, Setting(help="train, val or test.")] = "val"
    session: Annotated[
        list[str], Setting(help="Only this session; may be given several times.")
    ] = field(default_factory=list)
    trial: Annotated[
        list[int], Setting(help="Only this trial, counted in the split; several times.")
    ] = field(default_factory=list)


def replay(
    data: Annotated[Path, typer.Option(help="Directory of session files, or a packed one.")],
    *,
    profile: Annotated[
        str,
        typer.Option(
            help="brand: features for a BRAND node; lm or json: logits for `cortext lm-server`."
        ),
    ] = "brand",
    chosen: ChosenTrials,
    speed: Annotated[
        str, typer.Option(help="1 is real time, 2 twice as fast, max as fast as it is taken.")
    ] = "1",
    loop: Annotated[
        bool, typer.Option("--loop", help="Begin again when the trials are over, until Ctrl-C.")
    ] = False,
    node: Annotated[
        str | None,
        typer.Option(
            help="brand: the node to wait for, whose streams are used and whose texts are read."
        ),
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="lm, json: run directory of the model that makes logits.")
    ] = None,
    redis: RedisServer,
    keep: Annotated[int, typer.Option(min=10, help="Most entries that stay in a stream.")] = 3000,
    patience: Annotated[
        float, typer.Option(min=1, help="Seconds to wait for whoever takes the data.")
    ] = 60.0,
    plugins: list[Path] = PLUGINS,
    skip_bad: bool = SKIP_BAD,
    as_json: bool = JSON,
) -> None:
    """Stream recorded trials as if they were spoken now, and compare the texts with the prompts.

    Example: cortext replay --data runs/demo/packed --profile brand --node speech --speed 1

    Example: cortext replay --data runs/demo/packed --profile lm --run runs/demo/run --speed max
    """
    from cortext.models.participants import run_for
    from cortext.processes import stop_event
    from cortext.training.participants.recordings import open_for
    from cortext_live.core.log import open_log
    from cortext_live.core.redis_connection import Stopped
    from cortext_live.core.redis_link import RedisLink
    from cortext_live.replay import choose
    from cortext_live.replay import replay as run_replay
    from cortext_live.replay_clients import check_recordings
    from cortext_live.steps.stepping import open_stepper

    load_plugins(plugins)
    pace = _speed(speed)
    _check_form(profile, pace, node, run)
    with open_log(level="warning"), stop_event() as stop:
        stepper = None if run is None else open_stepper(run_for(run, data))
        model = None if stepper is None else stepper.conventions
        with progress_bar("reading") as report:
            recordings = open_for(model, data, skip_bad=skip_bad, progress=report)
        trials = recordings.split(chosen.split)
        numbers = choose(trials, chosen.session, chosen.trial)
        if stepper is not None:  # before waiting for a server
            check_recordings(trials.conventions, stepper.conventions)
        link = RedisLink(redis.url, "cortext-replay", stop, keep=(keep, 2**30), patience_s=patience)
        try:
            client = _client(profile, link, patience, node, stepper, keep)
            with progress_bar("bins") as report:
                summary = run_replay(
                    trials, numbers, client, stop, speed=pace, loop=loop, progress=report
                )
        except Stopped:  # before anything was sent
            raise KeyboardInterrupt from None
        finally:
            link.close()
    if as_json:
        print_json(asdict(summary))
    else:
        _print(summary)


def _speed(text: str) -> float | None:
    if text == "max":
        return None
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < 1e6:
        raise ConfigError(f"--speed is {text!r}; a number above 0 or 'max' is needed")
    return speed


def _check_form(profile: str, speed: float | None, node: str | None, run: Path | None) -> None:
    if profile not in PROFILES:
        raise ConfigError(f"--profile is {profile!r}; one of {', '.join(PROFILES)} is needed")
    if profile == "brand":
        if run is not None:
            raise ConfigError("--run does not go with the brand profile, which sends features")
        if speed is None and node is None:
            problem = "--speed max needs --node NICK with the brand profile"
            raise ConfigError(
                f"{problem}: without it nobody says what was taken, and the stream would overflow"
            )
        return
    if node is not None:
        raise ConfigError(f"--node does not go with the {profile} profile")
    if run is None:
        raise ConfigError(
            f"the {profile} profile sends logits and needs a model", fix="add --run RUN"
        )


def _client(
    profile: str,
    link: RedisLink,
    patience_s: float,
    node: str | None,
    stepper: Stepper | None,
    keep: int,
) -> Client:
    from cortext_live.lm_server.published_protocol import PublishedStreams
    from cortext_live.replay_clients import (
        JSON_STREAMS,
        BrandStream,
        JsonClient,
        Patience,
        PublishedClient,
    )

    patience = Patience(link, patience_s)
    if stepper is None:
        return BrandStream(link, patience, node, keep)
    if profile == "lm":
        return PublishedClient(link, patience, stepper, PublishedStreams())
    return JsonClient(link, patience, stepper, JSON_STREAMS)


def _print(summary: ReplaySummary) -> None:
    for result in summary.results:
        print_lines(f"{result['name']}: {result['text']}")
        if result["reference"] is not None:
            print_lines(f"  meant: {result['reference']}")
        if result["error"]:
            print_lines(f"  error: {result['error']}")
    rows: list[tuple[str, Any]] = [
        ("frames", summary.n_frames),
        ("seconds", f"{summary.seconds:.1f}"),
    ]
    if summary.lag_p99_ms is not None:
        lags = (summary.lag_p50_ms, summary.lag_p99_ms, summary.lag_max_ms)
        rows.append(
            ("lag p50, p99, max (ms)", ", ".join(f"{lag:.2f}" for lag in lags if lag is not None))
        )
    if summary.wer is not None:
        rows.append(("WER", percent(summary.wer)))
    if summary.n_errors:
        rows.append(("trials with errors", summary.n_errors))
    if summary.left_out:
        rows.append(("bins that filled no entry", summary.left_out))
    title = f"{summary.n_trials} trials" + (", then interrupted" if summary.interrupted else "")
    print_table("", [title, ""], rows)
