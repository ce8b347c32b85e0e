"""A client with the habits of the public release's evaluation script, restated from its
description.

It reads Redis's clock as milliseconds and takes them for the id after which an answer comes; writes
one request, then reads the answer's stream with XREAD, one entry at a time, from where it last
stopped. Logits go as float32 bytes in the language model's order. The final `scoring` is split at
every `;`: of each five fields the first is a sentence and the others are floats; candidates are
ordered by the last.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

DONE = {
    "remote_lm_reset": "remote_lm_done_resetting",
    "remote_lm_finalize": "remote_lm_done_finalizing",
    "remote_lm_update_params": "remote_lm_done_updating_params",
}


def in_lm_order(logits_PV: np.ndarray) -> np.ndarray:
    """From BLANK, phonemes, SIL to BLANK, SIL, phonemes."""
    return np.concatenate([logits_PV[:, :1], logits_PV[:, -1:], logits_PV[:, 1:-1]], axis=1)


@dataclass(frozen=True)
class Final:
    """The answer to an utterance.

    Candidates best first, the five lists of their fields, the entry as it was.
    """

    sentences: list[str]
    acoustic: list[float]
    ngram: list[float]
    llm: list[float]
    total: list[float]
    fields: dict[bytes, bytes]

    @property
    def text(self) -> str:
        return self.sentences[0]


class ReleaseClient:
    """patience_s: how long it waits for an answer (the script waits for ever)."""

    def __init__(
        self,
        redis: Any,
        flush: bool = True,
        patience_s: float = 20.0,
        names: dict[str, str] | None = None,
    ):
        self.redis, self.patience_s = redis, patience_s
        self.names = {"input": "remote_lm_input", "partial": "remote_lm_output_partial"} | (
            names or {}
        )
        self.names.setdefault("final", "remote_lm_output_final")
        if flush:
            redis.flushall()
        self.seen: dict[str, Any] = {}
        for stream in (*DONE.values(), self.names["partial"], self.names["final"]):
            seconds, microseconds = redis.time()
            self.seen[stream] = int(seconds * 1000 + microseconds / 1000)

    def wait(self, stream: str) -> dict[bytes, bytes]:
        """The next entry of a stream."""
        end = time.monotonic() + self.patience_s
        while time.monotonic() < end:
            if found := self.redis.xread({stream: self.seen[stream]}, count=1, block=200):
                [(entry_id, fields)] = found[0][1]
                self.seen[stream] = entry_id
                return fields
        raise AssertionError(f"nothing came on {stream}")

    def reset(self) -> dict[bytes, bytes]:
        self.redis.xadd("remote_lm_reset", {"done": 0})
        return self.wait(DONE["remote_lm_reset"])

    def update(self, **values: Any) -> dict[bytes, bytes]:
        self.redis.xadd("remote_lm_update_params", values)
        return self.wait(DONE["remote_lm_update_params"])

    def send(self, logits_PV: np.ndarray) -> str:
        """The partial sentence after these logits."""
        self.redis.xadd(self.names["input"], {"logits": np.float32(logits_PV).tobytes()})
        return self.wait(self.names["partial"])[b"lm_response_partial"].decode()

    def finalize(self) -> Final:
        self.redis.xadd("remote_lm_finalize", {"done": 0})
        fields = self.wait(self.names["final"])
        parts = fields[b"scoring"].decode().split(";")
        sentences = parts[0::5]
        columns = [[float(part) for part in parts[first::5]] for first in (1, 2, 3, 4)]
        order = np.argsort(columns[3])[::-1]
        return Final(
            [sentences[i] for i in order],
            *([column[i] for i in order] for column in columns),
            fields,
        )

    def decode(self, logits_PV: np.ndarray, frames: int | None = None) -> Final:
        """An utterance, in chunks of so many frames (at once by default), as the script decodes
        a trial.
        """
        self.reset()
        for first in range(0, len(logits_PV), frames or max(len(logits_PV), 1)):
            self.send(logits_PV[first : first + (frames or len(logits_PV))])
        return self.finalize()
