"""The work of a BRAND node: reads bins, writes logits and words. `process.py` starts it."""

from __future__ import annotations

import json
import queue
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np

from cortext.errors import DataError
from cortext_live.brand.control import LONGEST_LABEL, ControlReader, Mark
from cortext_live.brand.entries import (
    EntryReader,
    NodeStates,
    NodeUtterance,
    index_of,
    no_index,
)
from cortext_live.brand.node_log import NodeLog
from cortext_live.brand.outputs import NodeOutputs
from cortext_live.brand.parameters import NodeConfig
from cortext_live.brand.position import NodePosition
from cortext_live.brand.sequence import MOST_LOST, N_RECENT, WAIT_S, OrderedEntry, Sequencer
from cortext_live.brand.takeover import take_over
from cortext_live.core.chain_follower import ChainModel
from cortext_live.core.decoder import Notes
from cortext_live.core.log import event, internal_error
from cortext_live.core.log_writer import LogWriter
from cortext_live.core.pipeline import Pipeline
from cortext_live.core.redis_link import RedisLink
from cortext_live.core.redis_streams import StreamEntry, StreamId

Result = TypeVar("Result")
BLOCK_MS = 100
"""Longest wait of a read for entries; a signal is obeyed after at most that."""
HURRY_MS = 5
"""Longest wait of a read while a stop waits for entries that were recorded before it."""
ENTRIES_AT_ONCE = 64
MOST_KEPT_BYTES = 1 << 20
"""Largest entry that is kept for a start that comes late."""


class BrandNode:
    """Reads bins, writes logits and words. `run` works until the link's `stop` is set."""

    def __init__(
        self,
        link: RedisLink,
        nickname: str,
        parameters: NodeConfig,
        pipeline: Pipeline,
        states: NodeStates,
        model: str | None = None,
        log_writer: LogWriter | None = None,
    ) -> None:
        self._link = link
        self._nickname = nickname
        self._parameters = parameters
        self._pipeline = pipeline
        self._states = states
        self._reader = EntryReader(parameters, pipeline.stepper.n_features)
        self._control = ControlReader(parameters)
        self._sequence = Sequencer(parameters.bins_per_entry)
        self._key = f"{nickname}_position"
        self._position = NodePosition()
        self._carried_id = (0, 0)
        self._read = dict[str, StreamId]()
        """Ids up to which the streams were read.

        The ids of the position are those up to which all entries were carried out.
        """
        self._read_s = 0.0
        self._utterance: NodeUtterance | None = None
        self._outputs = NodeOutputs(link, nickname, parameters, pipeline.conventions.bin_ms)
        self._outside = deque[OrderedEntry](maxlen=N_RECENT)
        """The newest entries between trials.

        A start may come after the first entry that it names.
        """
        self._begins_late = ""
        self._model = model
        self._log = NodeLog(log_writer, pipeline)
        self.models = queue.SimpleQueue[ChainModel]()
        """Models of a chain, each to speak from the next utterance on."""
        self._notes = None if pipeline.decoder is None else Notes(pipeline.decoder)

    def run(self) -> None:
        """Work until `stop` is set; an utterance in progress is then finished, with an error."""
        self._take_over()
        self._write_ready()
        while not self._link.stop.is_set():
            entries = self._link.read(self._read, self._wait_ms(), ENTRIES_AT_ONCE)
            for entry in entries:
                self._take(entry)
            if any(entry.stream == self._parameters.input_stream for entry in entries):
                self._read_s = time.monotonic()
            else:
                self._idle()
            if self._utterance is None:
                self._swap()
            self._save()
        self._take_in_order(self._sequence.release())
        if self._utterance is not None:
            self._finish("shutdown", "the node was shut down in mid-utterance")
        self._position.clean = True
        self._save()

    def _wait_ms(self) -> int:
        """Return the milliseconds that the next read may wait."""
        wait_ms = HURRY_MS if self._control.stop_waits else BLOCK_MS
        if not self._sequence.waits:
            return wait_ms
        left_s = self._read_s + WAIT_S - time.monotonic()
        return max(1, min(wait_ms, round(1000 * left_s)))

    def _idle(self) -> None:
        """Continue after a read without data; give up missing entries that others wait for."""
        if time.monotonic() - self._read_s >= WAIT_S:
            self._take_in_order(self._sequence.release())
        if not self._sequence.waits:
            for mark in self._control.idle():
                self._carry_out(mark)

    def _take_over(self) -> None:
        """Continue where the node before this one ended, and report missed entries."""
        p = self._parameters
        for rival in self._link.rivals():
            self._states.write(
                "NODE_WARNING",
                f"another node {self._nickname} is connected from {rival}: both write",
            )
        self._link.trim((p.output_stream, p.final_stream))
        bin_ms = self._pipeline.conventions.bin_ms
        self._position, self._begins_late = take_over(
            self._link, self._key, p, self._states, self._outputs, bin_ms
        )
        self._sequence = Sequencer(p.bins_per_entry, self._position.i_in)
        if p.control_stream is not None:
            self._read[p.control_stream] = self._position.control_id
        self._read[p.input_stream] = self._position.id_in
        self._save(first=True)

    def _take(self, entry: StreamEntry) -> None:
        """Take an entry of the control stream or of the data."""
        p = self._parameters
        sequence = self._sequence
        self._read[entry.stream] = entry.id
        if entry.stream == p.control_stream:
            if (mark := self._control.mark(entry, sequence.reach)) is not None:
                self._take_mark(mark)
            return
        number = entry.fields.get(p.index_field.encode(), b"")
        index = index_of(number, sequence.reach)
        if index is None:
            items = sequence.take_unnumbered(
                entry, no_index(p.index_field, number) if number else ""
            )
        else:
            items = sequence.take(entry, index, entry.fields.get(p.input_field.encode()))
        self._take_in_order(items)

    def _take_mark(self, mark: Mark) -> None:
        if mark.index is None:  # its time decides, so what came before it waits no longer
            self._take_in_order(self._sequence.release())
        self._control.add(mark)
        for due in (*self._control.surplus(), *self._control.after(self._position.i_in)):
            self._carry_out(due)

    def _take_in_order(self, items: list[OrderedEntry]) -> None:
        """Take data entries in the order of their numbers.

        The position stays before one that waits.
        """
        for item in items:
            if item.kind == "duplicate" and self._utterance is not None:
                self._utterance.n_duplicates += 1
            if item.kind in ("duplicate", "late"):
                continue
            if item.anew:
                # Entries of the old numbering cannot belong to a trial of the new one.
                self._outside.clear()
                for mark in self._control.beyond(self._position.i_in):
                    self._carry_out(mark)
                self._position.i_in = None  # marks of the new numbering are not behind the old one
            for mark in self._control.before(item.entry, item.index):
                self._carry_out(mark)
            listening = self._utterance is None and self._pipeline.is_idle
            if self._utterance is None and not (listening or self._parameters.control_stream):
                self._begin(b"", None)
            if self._utterance is not None:
                self._note_missing(item, self._utterance)
            self._outputs.newest_entry = item.entry
            self._position.i_in = item.index
            if listening:
                self._listen(item)
            elif self._utterance is not None:
                self._decode(item, self._utterance)
            elif item.entry.n_bytes <= MOST_KEPT_BYTES:
                self._outside.append(item)
            if not item.guessed:
                for mark in self._control.after(item.index):
                    self._carry_out(mark)
        if not self._sequence.waits:
            self._position.id_in = self._read[self._parameters.input_stream]

    def _decode(self, item: OrderedEntry, utterance: NodeUtterance) -> None:
        utterance.n_entries += 1
        name = self._parameters.sync_key
        if (n_bytes := len(item.entry.fields.get(name.encode(), b""))) > LONGEST_LABEL:
            problem = f"{name} has {n_bytes} bytes; at most {LONGEST_LABEL} are copied"
            self._problem(utterance, f"entry {self._name(item)}: {problem}")
        try:
            if item.kind == "unusable":
                raise DataError(item.problem)
            bins_TC = self._reader.bins(item.entry.fields)
        except DataError as error:
            utterance.n_unusable += 1
            self._problem(utterance, f"entry {self._name(item)} is unusable: {error}")
            return
        self._decode_bins(bins_TC, utterance)

    def _listen(self, item: OrderedEntry) -> None:
        """Take an entry while the idle gate is shut; decode where it opens."""
        try:
            if item.kind == "unusable":
                raise DataError(item.problem)
            bins_TC = self._reader.bins(item.entry.fields)
        except DataError as error:
            problem = f"entry {self._name(item)} is unusable: {error}"
            self._states.write("NODE_WARNING", problem)
            return
        self._begin_if_open(bins_TC)

    def _begin_if_open(self, bins_TC: np.ndarray) -> None:
        """Let the idle gate see bins [T, C]; begin an utterance where it opens."""
        opening_TC = self._computed(lambda: self._pipeline.listen(bins_TC))
        if opening_TC is not None and len(opening_TC):
            utterance = self._begin(b"", None)
            utterance.n_entries += 1
            self._decode_bins(opening_TC, utterance)

    def _decode_bins(self, bins_TC: np.ndarray, utterance: NodeUtterance) -> None:
        bins_TC = self._pipeline.usable(bins_TC)
        utterance.n_bins += len(bins_TC)
        self._log.keep(bins_TC)
        # An entry may hold the end of one utterance and the beginning of the next. The pipeline
        # keeps the bins after an end, and takes them up with the next push, of no bins.
        while True:
            update = self._computed(partial(self._pipeline.push, bins_TC))
            self._say_notes()
            if update is None:
                return
            if len(update.logits_PV):
                self._outputs.write_step(self._position, utterance.trial, update)
            if not update.ended:
                return
            utterance.n_bins -= update.held_bins
            self._log.hold(update.held_bins)
            self._finish(str(update.reason))
            if self._parameters.control_stream:  # until the next start nobody speaks
                self._pipeline.reset()
                return
            if not update.held_bins:
                return
            if self._pipeline.is_idle:
                self._begin_if_open(bins_TC[:0])
                return
            utterance = self._begin(b"", None)
            utterance.n_bins += update.held_bins
            self._log.begin_held()
            bins_TC = bins_TC[:0]

    def _carry_out(self, mark: Mark) -> None:
        # The position must not pass a mark that still waits: after a kill the next node would not
        # read it.
        self._carried_id = max(self._carried_id, mark.id)
        if self._carried_id < self._control.first_id:
            self._position.control_id = self._carried_id
        if mark.problem and mark.what != "start":
            self._note_mark(mark)
        if mark.what == "start":
            if self._utterance is not None:
                self._finish("start", "no stop came before the next start")
            context = self._parameters.context
            self._pipeline.context = (
                context if mark.context is None else mark.context.decode(errors="replace")
            )
            utterance = self._begin(mark.trial, mark.index)
            if mark.problem:
                self._note_mark(mark)
            self._decode_earlier(utterance)
        elif mark.what == "stop":
            if self._utterance is not None:
                expected = self._expected(self._utterance)
                if mark.index is not None and expected is not None:
                    self._note_lost(range(expected, mark.index + 1), self._utterance)
                self._finish("stop")
        else:
            if self._utterance is not None:
                self._finish("block", "a block began before its stop came")
            self._pipeline.start_block()

    def _decode_earlier(self, utterance: NodeUtterance) -> None:
        """Decode the entries of a trial that came before its start; report those no longer held."""
        outside = list(self._outside)
        self._outside.clear()
        first = utterance.first_index
        i_in = self._position.i_in
        if first is None or i_in is None or first > i_in:
            return
        held = [item for item in outside if item.index is not None and item.index >= first]
        self._note_gone(range(first, (held[0].index if held else i_in + 1) or 0), utterance)
        for item in held:
            if self._utterance is utterance:
                self._note_missing(item, utterance)
                self._outputs.newest_entry = item.entry
                self._decode(item, utterance)

    def _note_gone(self, gone: range, utterance: NodeUtterance) -> None:
        """Note entries of a trial that went by before its start was read."""
        if not gone:
            return
        name = self._parameters.index_field
        if len(gone) > MOST_LOST:
            self._problem(
                utterance, f"the start names {name} {gone.start}; the data are at {gone.stop - 1}"
            )
            return
        utterance.n_lost += len(gone)
        problem = f"{len(gone)} entries went by before the start was read"
        self._problem(utterance, f"{problem} ({name} {gone.start} to {gone.stop - 1})")

    def _begin(self, trial: bytes, first_index: int | None) -> NodeUtterance:
        self._position.utterance += 1
        self._position.running = True
        self._position.trial = trial
        self._utterance = NodeUtterance(trial, first_index)
        self._log.begin()
        if self._begins_late:
            self._utterance.add_problem(self._begins_late)
            self._begins_late = ""
        event("utterance_began", node=self._nickname, utterance=self._position.utterance)
        return self._utterance

    def _note_mark(self, mark: Mark) -> None:
        """Report the unusable fields of a mark."""
        if self._utterance is None:
            self._states.write("NODE_WARNING", mark.problem)
            return
        self._utterance.n_unusable += 1
        self._problem(self._utterance, mark.problem)

    def _expected(self, utterance: NodeUtterance) -> int | None:
        """Return the number of the next data entry; the trial's start tells the first one."""
        if self._position.i_in is not None:
            return self._position.i_in + 1
        return (
            None if utterance.first_index is None else utterance.first_index + utterance.n_entries
        )

    def _note_missing(self, item: OrderedEntry, utterance: NodeUtterance) -> None:
        """Note the entries that are missing before an entry of the utterance in progress."""
        expected = self._expected(utterance)
        if item.first and item.index is not None and expected is not None:
            self._note_lost(range(expected, item.index), utterance)
        self._note_lost(item.missing, utterance)
        if item.problem and item.kind == "next" and (utterance.n_entries or not item.anew):
            self._problem(utterance, f"{self._parameters.index_field} {item.problem}")

    def _note_lost(self, missing: range, utterance: NodeUtterance) -> None:
        """Count lost entries for the utterance in progress, from its own first entry on."""
        if utterance.first_index is not None:
            missing = range(max(missing.start, utterance.first_index), missing.stop)
        if not missing:
            return
        name = self._parameters.index_field
        if len(missing) > MOST_LOST:  # nothing loses that many within an utterance
            self._problem(utterance, f"{name} jumps from {missing.start} to {missing.stop}")
            return
        utterance.n_lost += len(missing)
        named = f"{name} {missing[0]}" + (f" to {missing[-1]}" if len(missing) > 1 else "")
        self._problem(utterance, f"{len(missing)} entries lost ({named})")

    def _problem(self, utterance: NodeUtterance, problem: str) -> None:
        if utterance.add_problem(problem):
            self._states.write("NODE_WARNING", f"utterance {self._position.utterance}: {problem}")

    def _name(self, item: OrderedEntry) -> str:
        if item.index is None or item.guessed:
            return f"{item.entry.id[0]}-{item.entry.id[1]}"
        return f"{self._parameters.index_field} {item.index}"

    def _finish(self, ended: str, problem: str | None = None) -> None:
        """End the utterance with a result, and with all its problems."""
        utterance = self._utterance or NodeUtterance()
        start = time.perf_counter()
        update = self._computed(self._pipeline.flush)
        if update is None:
            return
        if len(update.logits_PV):
            self._outputs.write_step(self._position, utterance.trial, update)
        nbest = self._computed(self._pipeline.finish)
        if nbest is None:
            return
        final_ms = 1000 * (time.perf_counter() - start)
        self._say_notes()
        if self._notes:
            self._notes.write_new()
        if problem:
            self._problem(utterance, problem)
        if not utterance.n_bins:
            self._problem(utterance, "no usable bins came")
        self._outputs.write_result(self._position, utterance, ended, nbest, final_ms, self._model)
        self._log.end(self._position.utterance, nbest, ended, self._model)
        self._utterance = None
        self._position.running = False
        self._swap()

    def _say_notes(self) -> None:
        """Write the notes on unusual features, and keep them for the usage log."""
        for note in self._pipeline.take_notes():
            self._states.write("NODE_WARNING", note)
            self._log.features_notes.append(note)

    def _computed(self, work: Callable[[], Result]) -> Result | None:
        """Return what the model or the search computes; None where it failed.

        Then the utterance in progress ends with that error, and the next one is decoded.
        """
        try:
            return work()
        except Exception as error:  # a plug-in may raise any
            self._abandon(internal_error(error))
            return None

    def _abandon(self, problem: str) -> None:
        position, utterance = self._position, self._utterance
        event("utterance_failed", "error", node=self._nickname, utterance=position.utterance)
        self._states.write("NODE_WARNING", f"utterance {position.utterance}: {problem}")
        self._pipeline.reset()
        self._log.drop()
        if utterance is not None:
            text = self._outputs.partial_text(position.utterance)
            self._outputs.write_missed(position, utterance.trial, f"failed: {problem}", text)
        self._utterance = None
        position.running = False
        self._swap()

    def _swap(self) -> None:
        """Exchange the model, if the chain says that another one speaks."""
        model = None
        while not self.models.empty():
            model = self.models.get()
        if model is None:
            return
        self._pipeline.swap(model.stepper, model.calibrator)
        self._model = model.name
        event("model_swapped", model=model.name, day=self._pipeline.session)
        self._write_ready()

    def _write_ready(self) -> None:
        """Write the state ready, with the model's conventions where they are not the release's."""
        pipeline = self._pipeline
        message = f"day {pipeline.session}, look-ahead {pipeline.look_ahead_ms:g} ms"
        if self._model is not None:
            message += f", model {self._model}"
        conventions = pipeline.conventions.to_json()
        facts = {"conventions": json.dumps(conventions)} if conventions else {}
        self._states.write("NODE_READY", message, **facts)

    def _save(self, first: bool = False) -> None:
        """Write the position; if the previous one is gone, Redis was emptied."""
        # Redis may lose everything (a restart without its file, FLUSHALL) and answer as before: a
        # position that is gone is the only sign.
        was_there = self._position.save(self._link, self._key)
        if first or was_there:
            return
        self._states.write(
            "NODE_WARNING", "Redis was emptied: streams and marks before this are gone"
        )
        if self._utterance is not None:
            self._utterance.add_problem("Redis was emptied in mid-utterance")
        self._write_ready()
