"""Recordings: session files, packed data, batches."""

from cortext.data.checks import Limits, PatchGeometry, Problem
from cortext.data.conventions import Conventions
from cortext.data.dataset import Dataset
from cortext.data.packed import Batch, PackedDataset, PackedSplit, open_data, open_packed, pack
from cortext.data.packed_dataset import open_dataset
from cortext.data.sampler import DayBalancedSampler
from cortext.data.session_files import read_trials, write_session
from cortext.data.trial import BIN_MS, MAX_LABEL, SPLITS, Session, Trial, make_trial

__all__ = [
    "BIN_MS",
    "MAX_LABEL",
    "SPLITS",
    "Batch",
    "Conventions",
    "Dataset",
    "DayBalancedSampler",
    "Limits",
    "PackedDataset",
    "PackedSplit",
    "PatchGeometry",
    "Problem",
    "Session",
    "Trial",
    "make_trial",
    "open_data",
    "open_dataset",
    "open_packed",
    "pack",
    "read_trials",
    "write_session",
]
