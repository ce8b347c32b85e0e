"""`cortext serve` as a process: what it prints, how it ends, what it refuses."""

import json
import os
import re
import signal
import socket

import pytest
import torch
from commands import Command
from page_process import DAYS, N_FEATURES, prepare
from serving import Page, Served, wait_until
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from cortext.cli import run as run_command
from cortext.evaluation.decoder_options import FIT
from cortext.models import AcousticModel, build_model, model_config, save_model
from cortext.models.card import Smoothing
from cortext.text.inventory import RELEASE


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Recordings, a language model, and a model that has learnt nothing."""
    path = tmp_path_factory.mktemp("process")
    prepare(path)
    torch.manual_seed(0)
    config = model_config({"kind": "gru", "n_units": 8, "n_layers": 1})
    network = build_model(config, n_features=N_FEATURES, n_days=len(DAYS), n_classes=len(RELEASE))
    model = AcousticModel(
        network,
        sessions=DAYS,
        n_features=N_FEATURES,
        inventory=RELEASE,
        smoothing=Smoothing(),
        feature_subset=None,
    )
    save_model(model, path / "run")
    return path


@pytest.fixture
def start(root):
    """Starts `cortext serve` on a free port with more options; all that were started are ended."""
    servers = []

    def started(*options):
        files = ["--lm", root / "lm", "--data", root / "data"]
        servers.append(Command("serve", root / "run", *files, "--port", "0", *options))
        return servers[-1]

    yield started
    for server in servers:
        server.kill()


def first_lines(server, n_lines):
    """The first lines that a server prints."""
    wait_until(lambda: server.stdout.count("\n") >= n_lines or not server.running(), "its address")
    return server.stdout.splitlines()[:n_lines]


@pytest.mark.slow
def test_says_the_options_the_day_the_look_ahead_and_the_address_and_ends_at_a_signal(
    start, root, tmp_path
):
    server = start("--session-log", tmp_path / "log")
    day, look_ahead, address = first_lines(server, 3)
    assert day == f"day layer: each trial's own, else {DAYS[-1]}"
    assert look_ahead == "look-ahead: 80 ms"
    port, token = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/#token=([\w-]{43})", address).groups()
    with connect(f"ws://127.0.0.1:{port}/ws?token={token}", max_size=None) as socket:
        page, headers = Page(socket), {"Authorization": f"Bearer {token}"}
        Served(None, int(port)).post("start", {"trial": 0}, headers=headers)
        page.next("step")
        os.kill(server.process.pid, signal.SIGINT)
        utterance = page.next("utterance")
        assert (utterance["ended"], utterance["error"]) == ("stop", "the server was stopped")
        with pytest.raises(ConnectionClosed) as closed:
            page.next("nothing")
        assert closed.value.rcvd.code == 1012  # the server restarts or ends
    ended = server.wait(5)
    none = "the defaults; none were fitted to"
    assert ended.status == 0
    assert ended.stderr == f"decoder options: {none} {root / 'run'} ({FIT})\n"
    assert ended.stdout.splitlines() == [day, look_ahead, address]
    assert (tmp_path / "log" / "utterances.jsonl").read_text().count("\n") == 1


@pytest.mark.slow
def test_a_second_signal_is_not_needed_when_somebody_never_reads(start):
    server = start("--token", "t", "--speed", "max", "--loop")
    address = first_lines(server, 3)[-1]
    port = int(re.search(r":(\d+)/", address)[1])
    with connect(f"ws://127.0.0.1:{port}/ws?token=t", max_queue=1, close_timeout=0.1):
        Served(None, port).post("start", headers={"Authorization": "Bearer t"})
        os.kill(server.process.pid, signal.SIGTERM)
        assert server.wait(5).status == 0


def test_a_port_in_use_is_one_line(root, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        options = ["--lm", str(root / "lm"), "--data", str(root / "data"), "--port", str(port)]
        assert run_command(["serve", str(root / "run"), *options]) == 2
    line = (
        f"cortext: cannot listen on 127.0.0.1 port {port}: Address already in use; give another"
        " --port or --host\n"
    )
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            ["--feed", "--host", "203.0.113.1"],
            "cannot listen on 203.0.113.1 port 0: Cannot assign requested address",
        ),
        (["--feed", "--host", "no such host"], "cannot listen on 'no such host'"),
        (["--feed", "--host", "rig..lab"], "cannot listen on 'rig..lab': not the name of a host"),
        (["--feed", "--host", "r" * 64], "not the name of a host"),
        (["--feed", "--token", "schlüssel"], "the token holds more than letters, digits and -._~"),
        (["--feed", "--token", "a b"], "the token holds more than letters, digits and -._~"),
        (["--feed", "--speed", "fast"], "--speed is 'fast'"),
        (["--feed", "--speed", "-1"], "speed is -1.0; a number above 0 is needed"),
        (["--feed", "--token", ""], "the token is empty"),
        (["--feed", "--day", "t15.2023.08.12"], "did you mean 't15.2023.08.13'?"),
        (["--feed", "--endpoint-ms", "0"], "endpoint.silence_ms is 0.0"),
        (["--simulate", "tiny"], "the run knows none of the days that 'tiny' simulates"),
        ([], "give one of --data, --simulate and --feed"),
    ],
)
def test_what_cannot_be_served_is_one_line(root, capsys, options, line):
    assert (
        run_command(["serve", str(root / "run"), "--lm", str(root / "lm"), "--port", "0", *options])
        == 2
    )
    err = capsys.readouterr().err
    assert line in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_an_address_that_others_reach_is_warned_of(start):
    server = start("--host", "0.0.0.0", "--json")
    printed = json.loads("".join(first_lines(server, 5)))
    assert (printed["day"], printed["look_ahead_ms"]) == (DAYS[-1], 80)
    assert re.search(r":\d+/#token=[\w-]{43}$", printed["url"])
    ended = server.interrupt()
    assert (
        "warning: 0.0.0.0 can be reached from other machines, and nothing is encrypted"
        in ended.stderr
    )
