"""The output streams of a BRAND node: a step for each frame, a result for each utterance."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from cortext.decoding.nbest import NBest, hypothesis_json
from cortext_live.brand.control import LONGEST_LABEL
from cortext_live.brand.entries import NodeUtterance, timestamp, uint64
from cortext_live.brand.parameters import NodeConfig
from cortext_live.brand.position import NodePosition, newest_of
from cortext_live.core.log import event
from cortext_live.core.pipeline import Update
from cortext_live.core.redis_link import RedisLink
from cortext_live.core.redis_streams import StreamEntry


class NodeOutputs:
    """Writes steps and results of a node.

    Args:
        link: The connection.
        nickname: The node's nickname.
        parameters: Names of the streams and fields.
        bin_ms: Length of a bin.
    """

    def __init__(
        self, link: RedisLink, nickname: str, parameters: NodeConfig, bin_ms: float
    ) -> None:
        self._link = link
        self._nickname = nickname
        self._parameters = parameters
        self._bin_ms = bin_ms
        self.newest_entry = StreamEntry(parameters.input_stream, (0, 0), {})
        """Data entry that was taken last; every output copies its labels."""

    def write_step(self, position: NodePosition, trial: bytes, update: Update) -> None:
        """Write the logits of a frame, with the text so far.

        Args:
            position: Position of the node; its number of outputs is advanced.
            trial: Name of the trial.
            update: Logits of one frame and the text.
        """
        p = self._parameters
        fields = self._common(position, position.i_out, trial) | {
            p.logits_field: update.logits_PV.astype(np.float32).tobytes(),
            p.partial_field: update.text,
        }
        position.i_out += 1
        self._link.add(p.output_stream, fields)

    def write_result(
        self,
        position: NodePosition,
        utterance: NodeUtterance,
        ended: str,
        nbest: NBest,
        final_ms: float,
        model: str | None,
    ) -> None:
        """Write the result of an utterance.

        Args:
            position: The node's position, with the utterance's number.
            utterance: Its counts and problems.
            ended: What ended it: a mark, the pipeline, or a shutdown.
            nbest: Its sentences.
            final_ms: Milliseconds that the last of the search took.
            model: Name of the model that decoded it; None without a chain of models.
        """
        candidates = [hypothesis_json(hypothesis) for hypothesis in nbest]
        facts: dict[str, Any] = {
            "degraded": nbest.degraded or "",
            "final_ms": round(final_ms, 3),
        }
        if model is not None:
            facts["model"] = model
        self._write(position, utterance, ended, nbest[0].text, candidates, facts)

    def write_missed(
        self, position: NodePosition, trial: bytes, error: str, text: bytes = b""
    ) -> None:
        """Write the error of an utterance that has no result.

        Args:
            position: Position of the node.
            trial: Name of the trial.
            error: Reason why there is no result.
            text: Text that is known of the utterance.
        """
        utterance = NodeUtterance(trial)
        utterance.add_problem(error)
        known = text.decode(errors="replace")
        self._write(position, utterance, "missed", known, [], {"degraded": ""})

    def newest_result(self) -> dict[bytes, bytes]:
        """Return the fields of the newest result; none without one."""
        return self._newest(self._parameters.final_stream)

    def newest_step(self) -> dict[bytes, bytes]:
        """Return the fields of the newest step; none without one."""
        return self._newest(self._parameters.output_stream)

    def partial_text(self, utterance: int) -> bytes:
        """Return the text of an utterance's newest step; empty if the newest is of another."""
        step = self.newest_step()
        same = step.get(b"utterance") == str(utterance).encode()
        return step.get(self._parameters.partial_field.encode(), b"") if same else b""

    def _newest(self, stream: str) -> dict[bytes, bytes]:
        entry = newest_of(self._link, stream)
        return entry.fields if entry else {}

    def _write(
        self,
        position: NodePosition,
        utterance: NodeUtterance,
        ended: str,
        text: str,
        nbest: list[Any],
        facts: dict[str, Any],
    ) -> None:
        p = self._parameters
        facts = facts | {"ended": ended, "error": utterance.error, **utterance.counts}
        fields = self._common(position, position.utterance - 1, utterance.trial)
        fields |= {p.final_field: text, p.nbest_field: json.dumps(nbest)}
        self._link.add(p.final_stream, fields | facts)
        event(
            "utterance_ended",
            "warning" if utterance.error or facts["degraded"] else "info",
            {"text": text},
            node=self._nickname,
            utterance=position.utterance,
            seconds=utterance.n_bins * self._bin_ms / 1000,
            **facts,
        )

    def _common(self, position: NodePosition, i: int, trial: bytes) -> dict[str, Any]:
        """Return the fields that entries of both output streams have: times, numbers, labels."""
        p = self._parameters
        labels = self.newest_entry.fields.get(p.sync_key.encode(), b"{}")
        return {
            p.time_key: timestamp(),
            p.index_field: uint64(i),
            f"{p.index_field}_in": b"" if position.i_in is None else uint64(position.i_in),
            p.sync_key: labels if len(labels) <= LONGEST_LABEL else b"{}",
            "utterance": position.utterance,
            "trial": trial,
        }
