"""Ensembles: one sentence from those of several systems for the same recording."""

from cortext_lm.ensemble.candidates import Candidate, Candidates
from cortext_lm.ensemble.combine import Combined, combine
from cortext_lm.ensemble.options import EnsembleOptions
from cortext_lm.ensemble.posteriors import average, read_lattices
from cortext_lm.ensemble.results import Ensemble, combine_lists, combine_runs
from cortext_lm.ensemble.sources import read_evaluations, read_lists

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
