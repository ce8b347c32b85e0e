"""Ten minutes of recording as fast as can be: no word is lost, and memory does not grow."""

import subprocess
import time
from pathlib import Path

import pytest
from page_process import prepare, program
from serving import Page, Served
from websockets.sync.client import connect

TEN_MINUTES_BINS = 30_000


def resident_mb(pid):
    (line,) = (
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("VmRSS")
    )
    return int(line.split()[1]) / 1024


@pytest.fixture
def server(tmp_path):
    prepare(tmp_path)
    process = subprocess.Popen(
        program(tmp_path, "--speed", "inf", "--loop"), stdout=subprocess.PIPE, text=True
    )
    yield process.pid, int(process.stdout.readline())
    process.terminate()
    process.communicate(timeout=20)


@pytest.mark.slow
def test_ten_minutes_lose_no_word_and_memory_stays_flat_whoever_reads(server):
    pid, port = server
    url = f"ws://127.0.0.1:{port}/ws?token=secret"
    sleeping = connect(url, max_queue=1, close_timeout=0.1)  # never reads
    with connect(url, max_size=None) as socket, sleeping:
        page, n_bins, n_utterances, warm_mb, began_s = Page(socket), 0, 0, None, time.monotonic()
        Served(None, port).post("start", headers={"Authorization": "Bearer secret"})
        while n_bins < 2 * TEN_MINUTES_BINS:
            message = page.read()
            if message["type"] == "step":
                assert message["n_frames"] <= 64
                assert message["n_bins"] <= 256
                n_bins += message["n_bins"] + message["dropped"]
            elif message["type"] == "utterance":
                n_utterances += 1
                assert message["id"] == n_utterances  # none is missing
                assert message["text"] in ("i see you", "i see me", "you and me")
            if warm_mb is None and n_bins > TEN_MINUTES_BINS:
                warm_mb = resident_mb(pid)
        grown_mb = resident_mb(pid) - warm_mb
    assert n_utterances > 500
    assert grown_mb < 8, f"from {warm_mb:.0f} MB"
    assert time.monotonic() - began_s < 120
    print(
        f"{2 * TEN_MINUTES_BINS} bins in {time.monotonic() - began_s:.0f} s, {warm_mb:.0f} MB,"
        f" grown {grown_mb:.1f} MB"
    )
