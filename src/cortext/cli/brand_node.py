"""The verb `brand-node`: a node of BRAND."""

from __future__ import annotations

from typing import Annotated

import typer

from cortext.cli.llm_options import Context, Llm, LlmDevice, LlmLora, check_llm


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verb to the command line."""
    # A supervisor may pass flags of later specifications: nodes ignore what they do not know.
    app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(
        brand_node
    )


def brand_node(
    nickname: Annotated[
        str, typer.Option("-n", "--nickname", help="The node's nickname in the graph.")
    ],
    host: Annotated[str, typer.Option("-i", "--host", help="Host of Redis.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("-p", "--port", min=1, max=65535, help="Port of Redis.")
    ] = 6379,
    socket: Annotated[
        str | None,
        typer.Option(
            "-s", "--socket", help="Unix socket of Redis, which goes before host and port."
        ),
    ] = None,
    llm: Llm = None,
    llm_lora: LlmLora = None,
    llm_device: LlmDevice = "auto",
    context: Context = "",
    log_text: Annotated[
        bool, typer.Option("--log-text", help="Write decoded texts into the log, too.")
    ] = False,
) -> None:
    """Be a BRAND node: bins of features from a Redis stream in, logits and words into streams out.

    A BRAND supervisor starts it; its parameters come from `supergraph_stream`. Flags that it does
    not know are ignored. Those of a large model are parameters, too; given here they go before the
    graph's. What it tells goes to stderr, as JSON lines.

    Example: cortext brand-node -n speech -i 127.0.0.1 -p 6379
    """
    from cortext.live.brand.process import run_node
    from cortext.live.core.log import open_log
    from cortext.live.signals import stop_event

    check_llm(llm, llm_lora, context, llm_device)
    changes = (
        {}
        if llm is None
        else {"llm": llm, "llm_lora": llm_lora, "llm_device": llm_device, "context": context}
    )
    with open_log(with_text=log_text), stop_event() as stop:
        run_node(nickname, host, port, socket, stop, changes)
