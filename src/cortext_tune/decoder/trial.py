"""The jobs of a search for decoder options: decode utterances, and score lists of sentences."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from cortext.evaluation.decoder_files import DecoderFiles
from cortext.text.language import EN, Language
from cortext.text.metrics import edit_counts
from cortext_tune.decoder.material import Source, read_dev_set

PARTS = 8
"""Number of parts after each of which a trial may be given up."""


@dataclass(frozen=True)
class DecodeJob:
    """Utterances to decode with some options.

    Attributes:
        indices: Positions of the utterances in the source's `DevSet`.
        decoder: The decoder with its options.
        out: The search directory.
        context: Earlier sentences, for a large model.
        most_errors: Most word errors after each of `PARTS` parts; with more, the trial is given
            up. Empty for no limit.
    """

    number: int
    source: Source
    indices: tuple[int, ...]
    decoder: DecoderFiles
    out: Path
    context: str = ""
    most_errors: tuple[float, ...] = ()

    @property
    def error_file(self) -> Path:
        """File for a traceback, in the search directory."""
        return self.out / f"trial-{self.number}.error.txt"

    def work(self) -> dict[str, Any]:
        """Decode, and return `errors` of each utterance and `ms_per_frame`."""
        material = read_dev_set(self.source)
        decoder = self.decoder.open()
        # Other processes do not change processor time; a large model may be on a GPU.
        clock = time.process_time if self.decoder.llm is None else time.perf_counter
        errors: list[int] = []
        seconds = 0.0
        n_frames = 0
        degraded = None
        for part, indices in enumerate(parts(self.indices) if self.most_errors else [self.indices]):
            n_frames += sum(len(material.log_probs[index]) for index in indices)
            start = clock()
            lists = material.decode(decoder, indices, self.context)
            seconds += clock() - start
            references = [material.utterances[index].reference for index in indices]
            errors += [
                word_errors(reference, nbest.texts[0], decoder.language)
                for reference, nbest in zip(references, lists, strict=True)
            ]
            degraded = degraded or next((nbest.degraded for nbest in lists if nbest.degraded), None)
            if self.most_errors and sum(errors) > self.most_errors[part]:
                break
        return {
            "errors": errors,
            "ms_per_frame": 1000 * seconds / max(n_frames, 1),
            "degraded": degraded,
        }


def parts(indices: Sequence[int]) -> list[tuple[int, ...]]:
    """Split the indices into `PARTS` parts of about the same size; fewer where they are few."""
    bounds = sorted({len(indices) * part // PARTS for part in range(PARTS + 1)})
    return [tuple(indices[low:high]) for low, high in pairwise(bounds)]


def word_errors(reference: str, text: str, language: Language = EN) -> int:
    """Return the edits between the words of a normalised reference and of a sentence."""
    return edit_counts(reference.split(), language.normalize(text).split()).errors


@dataclass(frozen=True)
class ScoreJob:
    """Utterances whose n-best lists a large model scores, once for all weights."""

    number: int
    source: Source
    indices: tuple[int, ...]
    decoder: DecoderFiles
    out: Path
    context: str = ""

    @property
    def error_file(self) -> Path:
        """File for a traceback, in the search directory."""
        return self.out / f"read-{self.number}.error.txt"

    def work(self) -> dict[str, Any]:
        """Return `lists`: for each utterance its hypotheses, each with its `TextScore`."""
        from cortext_lm.llm.large_model import LLM

        assert self.decoder.llm is not None
        material = read_dev_set(self.source)
        decoder = replace(self.decoder, llm=None).open()
        reader = self.decoder.llm.open()
        assert isinstance(reader, LLM)
        searched = material.decode(decoder, self.indices)
        lists = reader.in_language(decoder.language).read(
            searched, self.decoder.options, self.context
        )
        return {"lists": lists}
