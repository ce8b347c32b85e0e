"""Faults around a server, done to the real one.

Each utterance ends in a result or in a named error.
"""

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from page_process import DAYS, N_FEATURES, Hearing, prepare, program, spoken
from serving import DEADLINE_S, TOKEN, Page, Served, make_session, serving, wait_until
from torch import nn
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from cortext.decoding import Decoder
from cortext.models import AcousticModel
from cortext.models.card import Smoothing
from cortext.text.inventory import RELEASE
from cortext_live.core.log import open_log
from cortext_live.page import web_sockets
from cortext_live.page.access.rules import MAX_MESSAGE
from cortext_live.page.day_pipeline import DayPipeline
from cortext_live.page.decoding_thread import DecodingThread
from cortext_live.page.sources import Replay
from cortext_live.steps.stepping import TorchStepper

IN_A_NAMESPACE = ["unshare", "--mount", "--map-root-user"]
FRAME_BYTES = 4 * N_FEATURES


@pytest.fixture
def fed(page_root):
    """A server that takes a feed, and a page that watches."""
    with serving(make_session(page_root, feed=True)) as served, served.page() as page:
        page.next("stats")
        yield served, page


def said(sentence="i see you"):
    return spoken(sentence, np.random.default_rng(2))


def test_a_browser_that_leaves_in_mid_sentence_disturbs_nobody(page_root):
    with serving(make_session(page_root, speed=4.0)) as served, served.page() as page:
        with served.page() as other:
            served.post("start", {"trial": 0})
            other.next("step")
            other.socket.socket.close()  # without a word
        assert page.next("utterance")["text"] == "i see you"
        wait_until(lambda: len(served.session.readers) == 1, "the other page is forgotten")


def test_a_browser_that_does_not_read_is_forgotten(page_root, monkeypatch):
    monkeypatch.setattr(web_sockets, "PATIENCE_S", 0.3)
    with (
        serving(make_session(page_root, loop=True), send_buffer=4096) as served,
        served.page(max_queue=1, close_timeout=0.1),
    ):
        wait_until(lambda: len(served.session.readers) == 1, "the page is there")
        served.post("start")
        wait_until(lambda: len(served.session.readers) == 0, "the page is forgotten")
        assert served.state()["state"] == "running"


def test_a_feed_that_leaves_in_mid_sentence_ends_it_with_what_is_known(fed):
    served, page = fed
    with served.feed() as feed:
        feed.send(said()[:80].tobytes())
        page.next("step")
    utterance = page.next("utterance")
    assert utterance["text"].startswith("i")
    assert (utterance["ended"], utterance["error"]) == (
        "stop",
        "the feed was disconnected in mid-utterance",
    )
    assert page.next("state")["state"] == "idle"
    with served.feed() as feed:  # and another may come
        feed.send(said().tobytes())
        feed.send('{"end": true}')
        assert page.next("utterance")["text"] == "i see you"


def test_a_feed_that_leaves_between_sentences_ends_nothing(fed):
    served, page = fed
    with served.feed() as feed:
        feed.send(said().tobytes())
        feed.send('{"end": true}')
        page.next("utterance", error=None)
    assert not [
        message for message in page.until("state", state="idle") if message["type"] == "utterance"
    ]


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (np.full((2, N_FEATURES), np.nan, dtype=np.float32).tobytes(), "frames hold NaN"),
        (np.full((2, N_FEATURES), 1e30, dtype=np.float32).tobytes(), "values beyond 1e+09"),
        (
            bytes(FRAME_BYTES + 4),
            f"a message of {FRAME_BYTES + 4} bytes; a multiple of {FRAME_BYTES} is needed",
        ),
        ("hello", 'a text message of the feed is not {"end": true}'),
    ],
)
def test_a_message_that_cannot_be_used_is_refused_and_the_sentence_says_so(fed, message, line):
    served, page = fed
    x_TC = said()
    with served.feed() as feed:
        feed.send(x_TC[:50].tobytes())
        feed.send(message)
        assert line in json.loads(feed.recv(timeout=10))["what"]
        assert line in page.next("error")["what"]
        feed.send(x_TC[50:].tobytes())
        feed.send('{"end": true}')
        utterance = page.next("utterance")
    assert utterance["text"] == "i see you"
    assert utterance["error"] == "1 message of the feed could not be used: bins may be missing"


def test_a_sentence_of_which_nothing_can_be_used_ends_in_an_error_and_the_next_one_is_free_of_it(
    fed,
):
    served, page = fed
    with served.feed() as feed:
        feed.send(bytes(3))
        feed.send('{"end": true}')
        utterance = page.next("utterance")
        assert (utterance["text"], utterance["duration_s"]) == ("", 0)
        assert utterance["error"] == "1 message of the feed could not be used: bins may be missing"
        feed.send(bytes(3))
    error = page.next("utterance")["error"]
    assert error.startswith(
        "the feed was disconnected in mid-utterance; 1 message of the feed could not be used"
    )
    with served.feed() as feed:
        feed.send(said().tobytes())
        feed.send('{"end": true}')
        utterance = page.next("utterance")
    assert (utterance["text"], utterance["error"]) == ("i see you", None)


def test_a_message_that_is_too_large_ends_the_feed_and_the_sentence_with_a_named_error(fed):
    served, page = fed
    with served.feed() as feed:
        feed.send(said()[:80].tobytes())
        page.next("step")
        feed.send(bytes(MAX_MESSAGE + 1))
        with pytest.raises(ConnectionClosed) as closed:
            feed.recv(timeout=10)
        assert closed.value.rcvd.code == 1009
    error = page.next("utterance")["error"]
    assert error == f"the feed sent a message of more than {MAX_MESSAGE} bytes and was disconnected"


def test_a_second_feed_is_refused_and_the_first_goes_on(fed):
    served, page = fed
    with served.feed() as feed:
        feed.send(said()[:50].tobytes())
        with (
            served.feed() as second,
            pytest.raises(ConnectionClosed, match="another feed is connected") as closed,
        ):
            second.recv(timeout=10)
        assert closed.value.rcvd.code == 1013
        feed.send(said()[50:].tobytes())
        feed.send('{"end": true}')
        assert page.next("utterance")["text"] == "i see you"


def test_a_feed_may_state_its_bins_and_wrong_ones_are_refused(page_root):
    with serving(make_session(page_root, feed=True)) as served:
        for stated in ("10", "fast", "nan"):
            with (
                served.feed(token=f"{TOKEN}&bin_ms={stated}") as feed,
                pytest.raises(ConnectionClosed, match="reads bins of 20 ms; join bins") as closed,
            ):
                feed.recv(timeout=DEADLINE_S)
            assert closed.value.rcvd.code == 1008
        with served.feed(token=f"{TOKEN}&bin_ms=20") as feed:
            feed.send(np.zeros((1, N_FEATURES), "<f4").tobytes())
            wait_until(lambda: served.state()["state"] == "running", "the feed")


def test_a_feed_of_a_server_that_plays_recordings_is_refused(page_root):
    refused = pytest.raises(ConnectionClosed, match="plays recordings; start it with --feed")
    with serving(make_session(page_root)) as served, served.feed() as feed, refused:
        feed.recv(timeout=10)


def test_of_two_who_control_it_the_last_one_wins_and_both_are_told(page_root):
    with (
        serving(make_session(page_root, speed=4.0)) as served,
        served.page() as page,
        served.page() as other,
    ):
        served.post("start", {"trial": 0})
        assert page.next("state", trial=0)
        served.post("start", {"trial": 4})
        for each in (page, other):
            stopped = each.next("utterance")
            assert (stopped["trial"], stopped["ended"]) == (0, "stop")
            assert each.next("state", state="running")["trial"] == 4
            assert each.next("utterance")["text"] == "i see me"


def test_a_file_that_breaks_while_it_is_played_is_named_and_the_server_goes_on(tmp_path):
    prepare(tmp_path)
    file = next((tmp_path / "data").rglob("val.f16"))
    whole = file.read_bytes()
    with serving(make_session(tmp_path, loop=True)) as served, served.page() as page:
        served.post("start")
        page.next("utterance")
        file.write_bytes(whole[: len(whole) // 2])
        error = page.next("error")["what"]
        assert error == f"{file}: the file has become shorter; pack the session files again"
        assert page.next("state")["state"] == "idle"
        assert served.post("start", {"trial": 5}).json()["error"] == error
        file.unlink()
        assert "No such file" in served.post("start", {"trial": 0}).json()["error"]
        file.write_bytes(whole)
        served.post("start", {"trial": 5})
        assert page.next("utterance", trial=5)["text"] == "you and me"


def test_features_that_are_no_numbers_end_the_trial_with_a_named_error(tmp_path):
    prepare(tmp_path)
    file = next((tmp_path / "data").rglob("val.f16"))
    x_TC = np.fromfile(file, dtype=np.float16).reshape(-1, N_FEATURES)
    x_TC[60] = np.nan  # of 110 bins of the first trial
    x_TC.tofile(file)
    with serving(make_session(tmp_path)) as served, served.page() as page:
        served.post("start", {"trial": 0})
        assert "NaN" in page.next("error")["what"]
        utterance = page.next("utterance")
        assert "frames hold NaN" in utterance["error"]
        assert utterance["text"].startswith("i")
        served.post("start", {"trial": 1})
        assert page.next("utterance", trial=1)["text"] == "i see me"


class Failing(Hearing):
    """Breaks at its tenth step, once."""

    broken, steps = False, 0

    def step(self, bins_SC):
        Failing.steps += 1
        if Failing.steps == 20 and not Failing.broken:
            Failing.broken = True
            raise RuntimeError("i see you: what was said is no business of the log")
        return super().step(bins_SC)


def test_an_error_that_nobody_thought_of_ends_the_sentence_and_not_the_server(page_root, tmp_path):
    session = DecodingThread(
        DayPipeline(Failing("latest"), Decoder.from_dir(page_root / "lm")),
        Replay(page_root / "data"),
        speed=float("inf"),
    )
    with open_log(tmp_path / "log"), serving(session) as served, served.page() as page:
        served.post("start", {"trial": 0})
        utterance = page.next("utterance")
        assert utterance["error"].startswith(
            "internal error (RuntimeError in test_server_faults.py, line "
        )
        served.post("start", {"trial": 0})
        assert page.next("utterance")["text"] == "i see you"
    assert "RuntimeError" in (tmp_path / "log").read_text()
    assert "see" not in (tmp_path / "log").read_text()


@dataclass
class Own:
    """Configuration of `Faulty`."""

    kind: str = "faulty"
    patch_size: int = 14
    patch_stride: int = 4


class Faulty(nn.Module):
    """A user's own network that hears, and has one fault in its 30th step."""

    def __init__(self, fault):
        super().__init__()
        self.config, self.fault, self.steps = Own(), fault, 0
        self.gain = nn.Parameter(torch.tensor(4.0))

    def n_patches(self, n_bins):
        return (n_bins - 14) // 4 + 1

    def forward(self, x_BTC, day_B, state=None, *, n_patches_B=None):
        self.steps += not torch.isnan(x_BTC).any()
        logits_BPV = self.gain * x_BTC[:, None, :4, : len(RELEASE)].mean(dim=2)
        result = logits_BPV, logits_BPV
        return self.fault(logits_BPV) if self.steps == 30 else result


FAULTS = {
    "it raises": (
        lambda logits_BPV: [][0],
        r"internal error \(IndexError in test_server_faults.py, line \d+\)$",
    ),
    "it ends the program": (
        lambda logits_BPV: sys.exit("see"),
        r"internal error \(SystemExit in test_server_faults.py, line \d+\)$",
    ),
    "NaN": (
        lambda logits_BPV: (logits_BPV * np.nan, logits_BPV),
        r".*: Faulty.forward: the model gives logits that are not finite for this patch$",
    ),
    "a wrong shape": (
        lambda logits_BPV: (logits_BPV[..., :7], logits_BPV),
        r".*: Faulty.forward: the logits are \[1, 1, 7\]; \[1, 1, 41\] are needed$",
    ),
    "no frame": (
        lambda logits_BPV: (logits_BPV[:, :0], logits_BPV),
        r".*: Faulty.forward: the logits are \[1, 0, 41\]; n_patches promises 1 frames",
    ),
    "no result": (
        lambda logits_BPV: None,
        r".*: Faulty.forward: forward returns a NoneType; return \(logits, state\)",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_a_users_own_model_ends_the_sentence_and_not_the_server(
    page_root, tmp_path, name
):
    fault, line = FAULTS[name]
    model = AcousticModel(
        Faulty(fault),
        sessions=DAYS,
        n_features=N_FEATURES,
        inventory=RELEASE,
        smoothing=Smoothing(smooth_data=False),
    )
    days = DayPipeline(TorchStepper(model), Decoder.from_dir(page_root / "lm"))
    session = DecodingThread(days, Replay(page_root / "data"), speed=float("inf"))
    with open_log(tmp_path / "log"), serving(session) as served, served.page() as page:
        served.post("start", {"trial": 0})
        *before, utterance = page.until("utterance")
        (error,) = [message["what"] for message in before if message["type"] == "error"]
        assert re.match(line, error), error
        assert (utterance["error"], utterance["ended"]) == (error, "stop")
        served.post("start", {"trial": 1})
        assert page.next("utterance", trial=1, error=None)["text"] == "i see me"
    events = [json.loads(text) for text in (tmp_path / "log").read_text().splitlines()]
    failed = [event["error"] for event in events if event["event"] == "decoding_failed"]
    assert failed == [error]


def test_the_log_tells_what_happened_and_nothing_of_what_was_said(page_root, tmp_path):
    session = make_session(page_root, feed=True)
    with (
        open_log(tmp_path / "log"),
        serving(session) as served,
        served.page() as page,
        served.feed() as feed,
    ):
        feed.send(said().tobytes())
        feed.send(bytes(3))
        feed.send('{"end": true}')
        page.next("utterance")
        served.post("hotwords", {"you": 3})
    log = (tmp_path / "log").read_text()
    for name in (
        "page_connected",
        "feed_connected",
        "feed_message_refused",
        '"event": "utterance"',
    ):
        assert name in log
    for word in ("i see", "you", TOKEN):
        assert word not in log


@pytest.mark.slow
def test_a_full_disk_under_the_session_log_is_told_and_decoding_goes_on(tmp_path):
    prepare(tmp_path)
    (tmp_path / "log").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(tmp_path / "log")]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*IN_A_NAMESPACE, *mount], capture_output=True).returncode
    ):
        pytest.skip("no file system can be mounted here")
    shell = ["sh", "-c", f'{" ".join(mount)} && exec "$@"', "sh"]
    process = subprocess.Popen(
        [*IN_A_NAMESPACE, *shell, *program(tmp_path, "--speed", "inf", "--loop")],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        port = int(process.stdout.readline())
        with connect(f"ws://127.0.0.1:{port}/ws?token=secret", max_size=None) as socket:
            served, page = Served(None, port), Page(socket)
            served.post("start", {"session": DAYS[0]}, headers={"Authorization": "Bearer secret"})
            error = page.next("error")["what"]
            assert error.startswith("utterance ")
            assert "is not in the usage log: " in error
            assert "No space left on device" in error
            page.next("utterance")  # the next ones
            page.next("utterance")
    finally:
        process.terminate()
        process.communicate(timeout=20)


def test_server_ends_while_a_page_that_does_not_read_is_leaving(page_root):
    request = (
        f"GET /ws?token={TOKEN} HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    session = make_session(page_root, loop=True)
    # The server ends first, and its errors fail the test.
    with socket.socket() as page, serving(session, send_buffer=4096) as served:
        page.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        page.connect(("127.0.0.1", served.port))
        page.sendall(request.encode())
        wait_until(lambda: len(session.readers) == 1, "the page is connected")
        served.post("start")
        time.sleep(0.5)  # more is waiting now than the connection holds
        page.sendall(bytes([0x88, 0x82, 0, 0, 0, 0, 3, 232]))  # a close frame of code 1000
        time.sleep(0.2)
