"""What one process does in a search for decoder options.

It decodes trials of an evaluation directory.

Shapes: P patches of 80 ms, V tokens.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cortext.decoding.ensemble.posteriors import Origin
from cortext.decoding.ensemble.sources import NBEST, read_evaluations
from cortext.decoding.saved import read_saved, to_log_probs
from cortext.errors import DataError
from cortext.evaluation.cluster import DecoderFiles
from cortext.text.metrics import edit_counts
from cortext.text.normalize import normalize
from cortext.text.phonemes import Inventory

PARTS = 8
"""A trial that may be given up is looked at so many times, after equal numbers of utterances."""


@dataclass(frozen=True)
class Utterance:
    """A trial of the recording.

    Its number, its normalised reference, and the file of its logits.
    """

    id: int
    reference: str
    file: Path


@dataclass(frozen=True)
class DevSet:
    """The utterances of an evaluation directory that have a reference."""

    directory: Path
    inventory: Inventory
    utterances: tuple[Utterance, ...]

    @classmethod
    def read(cls, directory: str | Path) -> DevSet:
        """Of a directory that `evaluate` wrote with a language model.

        Raises DataError for any other.
        """
        directory = Path(directory).resolve()
        found = []
        for trial in read_evaluations([directory]):
            reference = normalize(trial.reference or "")
            number = int(trial.id)
            files = sorted((directory / "logits").glob(f"{number:05d}_*.npy"))
            if reference and not files:
                raise DataError(
                    f"no logits of trial {number}", where=directory, fix="evaluate the run again"
                )
            if reference:
                found.append(Utterance(number, reference, files[0]))
        if not found:
            fix = "evaluate a split that has references"
            raise DataError("no trial has a reference to count errors by", where=directory, fix=fix)
        return cls(directory, Origin.of(directory).inventory, tuple(found))

    @cached_property
    def log_probs(self) -> list[np.ndarray]:
        """float32 [P, V] natural logs of each utterance."""
        read = (read_saved(utterance.file, self.inventory)[0] for utterance in self.utterances)
        return [to_log_probs(trial.logits_PV) for trial in read]

    @cached_property
    def checksum(self) -> str:
        """Of the references and logits."""
        digest = hashlib.sha256()
        for utterance in self.utterances:
            digest.update(f"{utterance.id} {utterance.reference}\n".encode())
            digest.update(utterance.file.read_bytes())
        return digest.hexdigest()[:16]

    def n_words(self, places: Sequence[int]) -> int:
        """Words of these utterances' references."""
        return sum(len(self.utterances[place].reference.split()) for place in places)


def _read(directory: Path) -> DevSet:
    """A process reads each directory once, and again when it was evaluated anew."""
    lists = directory / NBEST
    return _read_made(directory, lists.stat().st_mtime_ns if lists.is_file() else 0)


@lru_cache(maxsize=2)
def _read_made(directory: Path, made_ns: int) -> DevSet:
    return DevSet.read(directory)


@dataclass(frozen=True)
class DecodeJob:
    """Utterances to decode with some options, and how many words are wrong.

    Attributes:
        places: Of the utterances in the directory's `DevSet`.
        most_errors: After each of `PARTS` parts, the number of errors above which the rest is not
            worth it; empty: never.
    """

    number: int
    directory: Path
    places: tuple[int, ...]
    decoder: DecoderFiles
    out: Path
    context: str = ""
    most_errors: tuple[float, ...] = ()

    @property
    def error_file(self) -> Path:
        """In the search directory."""
        return self.out / f"trial-{self.number}.error.txt"

    def work(self) -> dict[str, Any]:
        """Edits of each utterance as far as it went, and milliseconds per frame.

        Time is that of the processor, which other processes do not change; with a large model,
        which may be on a GPU, it is that of the clock.
        """
        material, decoder = _read(self.directory), self.decoder.open()
        clock = time.process_time if self.decoder.llm is None else time.perf_counter
        errors: list[int] = []
        seconds, n_frames, degraded = 0.0, 0, None
        for part, places in enumerate(parts(self.places) if self.most_errors else [self.places]):
            log_probs = [material.log_probs[place] for place in places]
            start = clock()
            found = decoder.decode_batch(log_probs, material.inventory, context=self.context)
            seconds += clock() - start
            n_frames += sum(map(len, log_probs))
            references = [material.utterances[place].reference for place in places]
            errors += [
                word_errors(said, nbest.texts[0])
                for said, nbest in zip(references, found, strict=True)
            ]
            degraded = degraded or next((nbest.degraded for nbest in found if nbest.degraded), None)
            if self.most_errors and sum(errors) > self.most_errors[part]:
                break
        return {
            "errors": errors,
            "ms_per_frame": 1000 * seconds / max(n_frames, 1),
            "degraded": degraded,
        }


def parts(places: Sequence[int]) -> list[tuple[int, ...]]:
    """The places in `PARTS` parts of about the same size, in order; fewer where they are few."""
    bounds = sorted({len(places) * part // PARTS for part in range(PARTS + 1)})
    return [tuple(places[low:high]) for low, high in pairwise(bounds)]


def word_errors(reference: str, text: str) -> int:
    """Edits between the words of a normalised reference and of a sentence."""
    return edit_counts(reference.split(), normalize(text).split()).errors


@dataclass(frozen=True)
class ReadJob:
    """Utterances whose candidate sentences a large model is to read, once for all weights."""

    number: int
    directory: Path
    places: tuple[int, ...]
    decoder: DecoderFiles
    out: Path
    context: str = ""

    @property
    def error_file(self) -> Path:
        """In the search directory."""
        return self.out / f"read-{self.number}.error.txt"

    def work(self) -> dict[str, Any]:
        """`lists`: for each utterance its hypotheses, each with what the model says of it
        (`TextScore`).
        """
        assert self.decoder.llm is not None
        material = _read(self.directory)
        decoder, reader = replace(self.decoder, llm=None).open(), self.decoder.llm.open()
        log_probs = [material.log_probs[place] for place in self.places]
        found = decoder.decode_batch(log_probs, material.inventory)
        return {"lists": reader.read(found, self.decoder.options, self.context)}
