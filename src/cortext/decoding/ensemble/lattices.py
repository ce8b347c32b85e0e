"""The word lattices of runs, searched for again in the posteriors that they saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cortext.decoding.ensemble.candidates import Candidates
from cortext.decoding.ensemble.posteriors import Origin, read_average
from cortext.decoding.ensemble.sources import candidate_of
from cortext.decoding.nbest import hypothesis_json
from cortext.decoding.options import DecoderOptions
from cortext.decoding.session import Decoder, part_of
from cortext.processes import Progress

MOST_SENTENCES = 1000
"""So many sentences of a lattice count, the best.

All of almost every lattice of the search's default beam.
"""


def read_lattices(
    directories: Sequence[str | Path],
    trials: Sequence[Candidates],
    lm: str | Path,
    *,
    options: DecoderOptions | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> list[Candidates]:
    """The trials with all sentences of each run's lattice in place of its saved list.

    A lattice is its sentences and their scores: each is scored exactly (the sum of its paths, or
    the best of them, as `recombine` says), so their shares are its posteriors, and what is expected
    over them is expected over the lattice.

    Other arguments and errors are those of `posteriors.read_average` and `Decoder`. A large model
    that ranked the saved lists has no part in a lattice.

    Args:
        options: Of the search; without them each run's own. `lattice_beam` bounds the lattice.
    """
    systems = []
    for number, directory in enumerate(directories):
        origin = Origin.of(directory)
        decoder = Decoder.from_dir(lm, options or origin.options).with_options(nbest=MOST_SENTENCES)
        log_probs = read_average([directory], trials, "arithmetic")  # of one run: its own
        share = part_of(progress, number, len(directories))
        found = decoder.decode_batch(log_probs, origin.inventory, threads=threads, progress=share)
        systems.append(
            [tuple(candidate_of(hypothesis_json(one)) for one in nbest) for nbest in found]
        )
    return [
        replace(trial, systems=lists, degraded=None)
        for trial, *lists in zip(trials, *systems, strict=True)
    ]
