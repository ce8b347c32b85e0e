"""Commands of daily use: serve, and report use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from cortext.cli.console import (
    DEVICE,
    JSON,
    OVERRIDES,
    PLUGINS,
    SKIP_BAD,
    percent,
    print_json,
    print_lines,
    print_table,
    progress_bar,
)
from cortext.cli.options import PromptedModelSettings
from cortext.errors import ConfigError
from cortext.plugins import load_plugins
from cortext.settings import Setting
from cortext_live.page.settings import LiveSettings

if TYPE_CHECKING:
    import ssl

    from cortext_live.page.access.rules import Access
    from cortext_live.page.decoding_thread import DecodingThread
    from cortext_live.usage.statistics import UseStatistics


@dataclass(frozen=True)
class PageServer:
    """The address that the page is served at, and who may open it."""

    host: Annotated[
        str, Setting(help="Address to listen on; others than this machine's need care.")
    ] = "127.0.0.1"
    port: Annotated[
        int, Setting(minimum=0, maximum=65535, help="Port to listen on; 0 takes a free one.")
    ] = 8765
    token: Annotated[
        str | None,
        typer.Option(
            envvar="CORTEXT_TOKEN", help="What a client must show; made up at random without it."
        ),
    ] = None
    open_view: Annotated[bool, Setting(help="Anybody who reaches the page may watch.")] = False
    tls: Annotated[
        tuple[Path, Path] | None,
        typer.Option(
            metavar="CERT KEY", help="Encrypt with this certificate and its key, in PEM files."
        ),
    ] = None
    public_url: Annotated[
        str | None,
        Setting(help="https:// address of a proxy in front of the page.", metavar="URL"),
    ] = None

    def check(self) -> None:
        """Raise ConfigError for a token that headers and addresses cannot hold unescaped."""
        fix = "give another --token, or none for a random one"
        if self.token == "":
            raise ConfigError("the token is empty", fix=fix)
        if self.token is not None and quote(self.token, safe="") != self.token:
            raise ConfigError("the token holds more than letters, digits and -._~", fix=fix)
        if self.public_url is not None:
            from cortext_live.page.access.rules import public_address

            public_address(self.public_url)


def serve(
    settings: LiveSettings,
    *,
    large: PromptedModelSettings,
    page: PageServer,
    speed: Annotated[
        str, typer.Option(help="1 is the recording's own, max as fast as can be.")
    ] = "1",
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Append events (no text, no data) there.")
    ] = None,
    skip_bad: bool = SKIP_BAD,
    device: str = DEVICE,
    plugins: list[Path] = PLUGINS,
    overrides: list[str] = OVERRIDES,
    as_json: bool = JSON,
) -> None:
    """Decode live and show it on a web page.

    The features come from recordings, from a simulation (--set changes it), or from a feed.

    Example: cortext serve runs/demo/run --lm runs/demo/lm --data runs/demo/packed
    """
    from cortext.extras import need

    may_invite = page.tls is not None or page.public_url is not None
    for module in ("fastapi", "uvicorn", "websockets", *(["segno"] if may_invite else [])):
        need(module, "live")

    from cortext_live.core.decoder import no_long_pauses
    from cortext_live.core.log import open_log
    from cortext_live.page.server import listen, run_server

    page.check()
    tls = _load_tls(page)
    settings = replace(
        settings,
        speed=_speed(speed),
        overrides=overrides,
        skip_bad=skip_bad,
        device=device,
        llm=large.files,
        context=large.context,
    )
    load_plugins(plugins)
    with (
        listen(page.host, page.port) as listener,
        open_log(log, level="info" if log else "warning"),
    ):
        decoding = _open(settings)
        access, url = _access(page, listener.getsockname()[1])
        _announce(decoding, settings, page, url, as_json)
        with no_long_pauses():
            run_server(decoding, access, listener, tls)


def _load_tls(page: PageServer) -> ssl.SSLContext | None:
    """Load the certificate; warn of what browsers will object to. None without --tls."""
    from urllib.parse import urlsplit

    from cortext_live.page.access.rules import address
    from cortext_live.page.access.tls import certificate_faults, load_tls

    if page.tls is None:
        return None
    context = load_tls(*page.tls)
    name = urlsplit(address(page.host, page.port, is_tls=True)).hostname or page.host
    for fault in certificate_faults(context, page.tls[0], name):
        print_lines(f"warning: {fault}; browsers will warn of it", err=True)
    return context


def _access(page: PageServer, port: int) -> tuple[Access, str]:
    """Return the rules of access, and the address that the owner opens."""
    from cortext_live.page.access.rules import Access, address, is_loopback, public_address
    from cortext_live.page.access.tokens import new_token

    here = address(page.host, port, page.tls is not None)
    outside = None
    if page.public_url is not None:
        outside = public_address(page.public_url)
    elif page.tls is not None and not is_loopback(page.host):
        outside = here
    access = Access(
        page.token or new_token(),
        page.host,
        page.open_view,
        outside=outside,
        is_tls=page.tls is not None,
        is_proxied=page.public_url is not None,
    )
    return access, f"{here}/#token={access.owner.token}"


def _open(settings: LiveSettings) -> DecodingThread:
    """Open everything that decodes; say which model of a chain, options and confidences it uses."""
    from cortext.evaluation.decoder_options import options_for
    from cortext.evaluation.fit.confidence import RAW, choose_confidence
    from cortext.models.participants import run_for
    from cortext_live.core.log import event
    from cortext_live.page.setup import open_decoding
    from cortext_live.recalibration.chain import model_folder

    if settings.data is not None:
        settings = replace(settings, run=run_for(settings.run, settings.data))
    options, note = options_for(settings.run, settings.lm, settings.options)
    with progress_bar("reading") as progress:
        decoding = open_decoding(replace(settings, options=options), progress)
    run, speaks = settings.run, list[str]()
    if settings.chain is not None and decoding.model is not None:
        run = model_folder(settings.chain, int(decoding.model.partition("-")[0]))
        speaks = [f"model: {decoding.model} of {settings.chain}"]
    confidence = choose_confidence(run, settings.lm, options, has_llm=settings.llm is not None)
    # No line about confidences where none were fitted: the run is as it always was.
    fitted = () if confidence.note == RAW else (confidence.note,)
    print_lines(*speaks, note, *fitted, err=True)
    event("decoder_options", note=note)
    event("confidence", note=confidence.note)
    return decoding


def _announce(
    decoding: DecodingThread, settings: LiveSettings, page: PageServer, url: str, as_json: bool
) -> None:
    """Print the day, the look-ahead and the page's address."""
    from cortext_live.page.access.rules import is_loopback

    if not is_loopback(page.host) and page.tls is None:
        print_lines(
            f"warning: {page.host} can be reached from other machines, and nothing is encrypted",
            err=True,
        )
    if as_json:
        print_json({"day": decoding.day, "look_ahead_ms": decoding.look_ahead_ms, "url": url})
        return
    each = "" if settings.day or settings.feed else "each trial's own, else "
    print_lines(f"day layer: {each}{decoding.day}")
    print_lines(f"look-ahead: {decoding.look_ahead_ms:g} ms", url)


def _speed(text: str) -> float:
    try:
        return float("inf") if text == "max" else float(text)
    except ValueError:
        raise ConfigError(
            f"--speed is {text!r}; 1 (the recording's own), another number or max is needed"
        ) from None


def use(
    logs: Annotated[
        list[Path], typer.Argument(help="Directories that a decoder wrote with --session-log.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="Page to write. Default: use.html in the first directory.")
    ] = None,
    as_json: bool = JSON,
) -> None:
    """Write a page with hours of use, sentences, ratings, speed and word errors by day.

    Example: cortext report use runs/log --out use.html
    """
    from cortext_live.usage.statistics import read_use

    read = read_use(logs)
    # Only now: loading what draws takes longer than refusing a log that cannot be read.
    from cortext_live.usage.report import write_use_report

    page = out or logs[0] / "use.html"
    write_use_report(page, read)
    if as_json:
        print_json(read.to_json() | {"page": str(page)})
        return
    rows = [(day.date, *_cells(day.tally)) for day in read.days]
    columns = [
        "day",
        "use, h",
        "sentences",
        "words/min",
        "rated",
        "right",
        "mostly right",
        "wrong",
        "WER",
    ]
    print_table("", columns, [*rows, ("all", *_cells(read.overall))])
    for note in read.notes:
        print_lines(note)
    print_lines(f"page: {page}")


def _cells(tally: UseStatistics) -> tuple[str, ...]:
    speed = "-" if tally.words_per_minute is None else f"{tally.words_per_minute:.1f}"
    shares = (percent(tally.share(rating)) for rating in tally.ratings)
    return (
        f"{tally.use_hours:.2f}",
        str(tally.sentences),
        speed,
        str(tally.rated),
        *shares,
        percent(tally.wer),
    )
