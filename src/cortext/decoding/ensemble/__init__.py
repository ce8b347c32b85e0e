"""Ensembles: one sentence from those of several systems for the same recording."""

from cortext.decoding.ensemble.candidates import Candidate, Candidates
from cortext.decoding.ensemble.combine import Combined, combine
from cortext.decoding.ensemble.options import EnsembleOptions
from cortext.decoding.ensemble.posteriors import average, read_lattices
from cortext.decoding.ensemble.results import Ensemble, combine_lists, combine_runs
from cortext.decoding.ensemble.sources import read_evaluations, read_lists

__all__ = [
    "Candidate",
    "Candidates",
    "Combined",
    "Ensemble",
    "EnsembleOptions",
    "average",
    "combine",
    "combine_lists",
    "combine_runs",
    "read_evaluations",
    "read_lattices",
    "read_lists",
]
