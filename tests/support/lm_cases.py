"""What the tests of the language-model server share.

A decoder, logits that say something, and a log to read.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from engine_cases import posteriors
from redis_process import RedisServer, wait_for
from release_client import in_lm_order

from cortext.decoding import Decoder
from cortext_live.core.log import open_log
from cortext_live.lm_server.server import LMServer, make_protocol

SAID = ("we want to see you", "are you there", "i would like water too")


def spoken_logits(sentence: str, seed: int = 0) -> np.ndarray:
    """Logits float32 [P, 41] in the language model's order.

    No probabilities, each frame is off by another amount.
    """
    log_probs_PV = in_lm_order(posteriors(sentence, noise=1.5, seed=seed))
    return (log_probs_PV + np.linspace(-3, 9, len(log_probs_PV))[:, None]).astype(np.float32)


def normalised(logits_PV: np.ndarray) -> np.ndarray:
    """Their log-softmax."""
    x_PV = logits_PV.astype(np.float64)
    return (x_PV - np.logaddexp.reduce(x_PV, axis=1, keepdims=True)).astype(np.float32)


class Log:
    """Lines of a log file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, name: str | None = None) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.path.read_text().splitlines()]
        return [line for line in found if name in (None, line["event"])]

    def wait(self, name: str, number: int = 1) -> dict[str, Any]:
        """The line of that name, when it has come so many times."""
        return wait_for(
            lambda: len(self.lines(name)) >= number and self.lines(name)[-1],
            f"line {name!r} in the log",
        )


@contextmanager
def served(
    redis: RedisServer,
    decoder: Decoder,
    folder: Path,
    *,
    keep: tuple[int, int] = (10_000, 64 * 2**20),
    timeout_s: float = 10.0,
    take_over: bool = False,
    with_text: bool = False,
    url: str | None = None,
    **protocol: Any,
) -> Iterator[Log]:
    """A server in a thread; what it raises is raised here when it ends."""
    stop, failed = threading.Event(), []
    log = Log(folder / f"server-{len(list(folder.glob('server-*')))}.log")
    protocol = {"preset": "published"} | protocol

    def run() -> None:
        try:
            LMServer(
                make_protocol(decoder, stop=stop, **protocol),
                url or redis.url,
                stop,
                keep,
                timeout_s,
                take_over,
            ).run()
        except Exception as error:
            failed.append(error)

    with open_log(log.path, with_text):
        thread = threading.Thread(target=run)
        thread.start()
        try:
            wait_for(lambda: failed or log.lines("serving"), "server")
            yield log
        finally:
            stop.set()
            thread.join(timeout=20)
            assert not thread.is_alive()
    if failed:
        raise failed[0]
