"""Searching for good settings: grids, random search, and Optuna's TPE, on one machine or on Ray."""

from cortext.tuning.run import tune_training
from cortext.tuning.search import Search
from cortext.tuning.space import Choice, Range, parse_space
from cortext.tuning.study import Study, Trial

__all__ = ["Choice", "Range", "Search", "Study", "Trial", "parse_space", "tune_training"]
