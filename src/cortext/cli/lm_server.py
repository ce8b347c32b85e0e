"""The verb `lm-server`: the search behind Redis."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import OVERRIDES, REDIS_HOST, REDIS_PORT, REDIS_URL
from cortext.cli.llm_options import Context, Llm, LlmDevice, LlmLora, check_llm
from cortext.cli.model import Engine, Options


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verb to the command line."""
    app.command("lm-server")(lm_server)


def lm_server(
    lm: Annotated[Path, typer.Option(help="Language-model directory.")],
    redis_host: str = REDIS_HOST,
    redis_port: int = REDIS_PORT,
    redis_url: str | None = REDIS_URL,
    profile: Annotated[
        str, typer.Option(help="published (that of the NEJM 2024 release), or json.")
    ] = "published",
    preset: Annotated[
        str | None,
        typer.Option(help="published: the published parameters; by default the search's own."),
    ] = None,
    options: Options = None,
    engine: Engine = "native",
    llm: Llm = None,
    llm_lora: LlmLora = None,
    llm_device: LlmDevice = "auto",
    context: Context = "",
    overrides: list[str] = OVERRIDES,
    input_stream: Annotated[str | None, typer.Option(help="Stream of logits.")] = None,
    partial_output_stream: Annotated[
        str | None, typer.Option(help="Stream of partial sentences.")
    ] = None,
    final_output_stream: Annotated[
        str | None, typer.Option(help="Stream of final sentences.")
    ] = None,
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
    from cortext.config import load_config
    from cortext.decoding import Decoder, DecoderOptions
    from cortext.live.core.decoder import with_llm
    from cortext.live.core.log import open_log
    from cortext.live.core.redis_link import redis_url as url_of
    from cortext.live.core.timing import no_long_pauses
    from cortext.live.lm_server.server import LMServer, make_protocol
    from cortext.live.signals import stop_event

    check_llm(llm, llm_lora, context, llm_device)
    with open_log(log, log_text), stop_event() as stop:
        decoder = Decoder.from_dir(
            lm, load_config(options, DecoderOptions) if options else None, engine
        )
        if llm is not None:
            decoder = with_llm(decoder, llm, llm_lora, llm_device)
        streams = {
            "input": input_stream,
            "partial": partial_output_stream,
            "final": final_output_stream,
        }
        protocol = make_protocol(decoder, profile, preset, overrides, streams, stop, context)
        url = redis_url or url_of(redis_host, redis_port)
        with no_long_pauses():
            LMServer(protocol, url, stop, (keep, 64 * 2**20), take_over=take_over).run()
