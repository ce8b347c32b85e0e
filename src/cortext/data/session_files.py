"""Session files of the T15 release: `<root>/<session>/data_{train,val,test}.hdf5`.

Layout (Card et al. 2024, release code `model_training/dataset.py` and `evaluate_model_helpers.py`):
one group per trial, `trial_0000` and so on, with `input_features [T, C] float32`,
`seq_class_ids [500] int32` (zero-padded), `transcription [500] int32` (code points, zero-ended),
and the attributes `n_time_steps, seq_len, sentence_label, session, block_num, trial_num`; in `test`
the labels are absent. `corpus` is an attribute of ours, written where it is known; for the
release's own files it comes from `t15_copyTaskData_description.csv` in the root or beside it.

The tokens, the language and the length of a bin are those of `<root>/cortext.json`, and the
release's where there is none. With an inventory of one's own both arrays may be longer than 500.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from cortext.arguments import as_path, check_list, check_type
from cortext.data import hdf5_input
from cortext.data.checks import (
    ANY_PATCH,
    LIMITS,
    FaultError,
    Limits,
    OnBad,
    PatchGeometry,
    Problem,
    check_features,
    check_labels,
    numbers_of,
    patch_for,
)
from cortext.data.conventions import Conventions, conventions_given, session_files_in
from cortext.data.hdf5_output import new_hdf5
from cortext.data.rebin import Rebinning
from cortext.data.trial import MAX_LABEL, Trial, most_labels
from cortext.errors import DataError
from cortext.files import is_plain_name

_TRIAL = re.compile(r"trial_\d+")
_APART = "write trials of other conventions to a directory of their own"
_LABELS = ("seq_class_ids", "transcription", "seq_len", "sentence_label")


def read_trials(
    path: str | Path,
    *,
    labels_required: bool,
    on_bad: OnBad | None = None,
    session: str | None = None,
    n_features: int | None = None,
    max_abs: float | None = None,
    patch: PatchGeometry | None = None,
    corpora: Mapping[int, str] | None = None,
    limits: Limits = LIMITS,
    conventions: Conventions | None = None,
    rebinning: Rebinning | None = None,
    as_recorded: bool = False,
) -> Iterator[Trial]:
    """Yield the trials of one session file, one in memory at a time, in the order of their names.

    A feature that is NaN throughout a trial is a dead channel: it becomes 0 (`Trial.absent`).

    Args:
        path: The file, which is not trusted.
        labels_required: Trials without labels are bad (val); otherwise labels are read where they
            are.
        on_bad: Gets each Problem, and reading continues; without it the first one is raised as
            DataError.
        session: The session that every trial must state.
        n_features: The number of features that every trial must have (default: most trials' in this
            file).
        max_abs: The largest magnitude that a feature may have.
        patch: Its size is the shortest trial, and its stride bounds the length of a label (default:
            `checks.patch_for` the conventions).
        corpora: The corpus by block number, for files that do not state it themselves.
        limits: The largest trial that is read; what a file declares is checked before memory is
            taken.
        conventions: Tokens, language and length of a bin (default: those of the directory that
            holds the session's folder).
        rebinning: Joins the bins of every trial; `max_abs`, `patch` and `conventions` then belong
            to the new bins.
        as_recorded: Yield them by block and trial number instead.
    """
    path = as_path(path, "path")
    conventions = Conventions.read(root_of(path)) if conventions is None else conventions
    inventory = conventions.inventory
    patch = patch_for(conventions) if patch is None else patch

    def bad(fault: FaultError, group: str | None) -> None:
        problem = fault.problem(path, group)
        if on_bad is None:
            raise problem.error() from None
        on_bad(problem)

    try:
        with hdf5_input.opened(path) as file:
            names = trial_names(file)
            expected = n_features or usual_features(file, names)
            if as_recorded:
                names.sort(key=lambda name: _recorded(file, name))
            seen: dict[tuple[str, int, int], str] = {}
            for name in names:
                try:
                    with hdf5_input.damage():
                        trial = _read(
                            _group(file, name), labels_required, session, limits, conventions
                        )
                        trial = _without_absent(trial)
                        if rebinning is not None:
                            # First, for the places of NaN in the file.
                            check_features(trial.features_TC, expected, patch=ANY_PATCH)
                            trial = replace(trial, features_TC=rebinning(trial.features_TC))
                        check_features(trial.features_TC, expected, max_abs=max_abs, patch=patch)
                        ids = trial.phoneme_ids
                        if ids is not None:
                            check_labels(ids, trial.n_bins, patch=patch, inventory=inventory)
                    _check_unique(trial, name, seen)
                except FaultError as fault:
                    bad(fault, name)
                    continue
                if corpora and trial.corpus is None:
                    # Trials are frozen, but nobody else has this one yet.
                    object.__setattr__(trial, "corpus", corpora.get(trial.block))
                yield trial
    except FaultError as fault:
        bad(fault, None)


def _without_absent(trial: Trial) -> Trial:
    """Return a trial whose features without any value are 0, and named: dead channels."""
    x_TC = trial.features_TC
    if np.isfinite(x_TC[0]).all():  # the usual case
        return trial
    absent_C = ~np.isfinite(x_TC).any(axis=0)
    if absent_C.all() or not absent_C.any():
        return trial
    absent = tuple(np.flatnonzero(absent_C).tolist())
    return replace(trial, features_TC=np.where(absent_C, np.float32(0), x_TC), absent=absent)


def root_of(path: Path) -> Path:
    """Return the directory of session files that a session file lies in."""
    return path.absolute().parent.parent


def trial_names(file: h5py.File) -> list[str]:
    """Return the names of a session file's trials, in order. Raises FaultError for none."""
    # By length first: trial_10000 comes after trial_9999.
    names = sorted(
        (name for name in file if _TRIAL.fullmatch(name)), key=lambda name: (len(name), name)
    )
    if not names:
        raise FaultError(
            None, "no group trial_0000 found", "write trials with cortext.data.write_session"
        )
    return names


def usual_features(file: h5py.File, names: Iterable[str]) -> int | None:
    """Return the number of features that most trials have: one odd trial is then the bad one."""
    counts: Counter[int] = Counter()
    for name in names:
        with suppress(FaultError), hdf5_input.damage():
            counts[hdf5_input.dataset(_group(file, name), "input_features", 2).shape[1]] += 1
    return counts.most_common(1)[0][0] if counts else None


def _recorded(file: h5py.File, name: str) -> tuple[int, int]:
    """Return block and trial number; any for a trial without them, which reading it refuses."""
    with suppress(FaultError), hdf5_input.damage():
        group = _group(file, name)
        return hdf5_input.number(group, "block_num"), hdf5_input.number(group, "trial_num")
    return 0, 0


def _group(file: h5py.File, name: str) -> h5py.Group:
    group = hdf5_input.member(file, name)
    if not isinstance(group, h5py.h5g.GroupID):
        raise FaultError(
            None, "a dataset found, a group expected", "write the trial with write_session"
        )
    return h5py.Group(group)


def _read(
    group: h5py.Group,
    labels_required: bool,
    session: str | None,
    limits: Limits,
    conventions: Conventions,
) -> Trial:
    n_bins = hdf5_input.number(group, "n_time_steps")
    dataset = hdf5_input.dataset(group, "input_features", 2)
    hdf5_input.check_size(dataset, limits)
    if not 0 < n_bins <= dataset.shape[0]:
        finding = f"{n_bins} found, 1 to {dataset.shape[0]} (the bins of input_features) expected"
        raise FaultError("n_time_steps", finding, "write the number of recorded bins")
    name = hdf5_input.text(group, "session")
    if session is not None and name != session:
        raise FaultError(
            "session", f"{name!r} found, {session!r} (the folder) expected", "rename the folder"
        )
    if not is_plain_name(name):
        raise FaultError(
            "session", f"{name!r} found, the name of a folder expected", "rename the session"
        )
    sentence = None
    phoneme_ids = None
    if labels_required or any(hdf5_input.has(group, label) for label in _LABELS):
        sentence, phoneme_ids = _labels(group, limits, conventions)
    block = hdf5_input.number(group, "block_num")
    trial = hdf5_input.number(group, "trial_num")
    corpus = hdf5_input.text(group, "corpus") if hdf5_input.has(group, "corpus") else None
    # What float32 cannot hold becomes Inf, which check_features names.
    with np.errstate(over="ignore"):
        features_TC = hdf5_input.first_rows(dataset, n_bins, limits).astype(np.float32, copy=False)
    return Trial(features_TC, name, block, trial, sentence, phoneme_ids, corpus, conventions)


def _labels(group: h5py.Group, limits: Limits, conventions: Conventions) -> tuple[str, np.ndarray]:
    inventory = conventions.inventory
    n_labels = hdf5_input.number(group, "seq_len")
    ids = hdf5_input.dataset(group, "seq_class_ids", 1)
    hdf5_input.dataset(group, "transcription", 1)  # only checked: an attribute has the sentence
    bound = min(most_labels(inventory), ids.shape[0])
    if not 0 < n_labels <= bound:
        fix = f"write the number of {inventory.unit}s"
        raise FaultError("seq_len", f"{n_labels} found, 1 to {bound} expected", fix)
    labels_U = hdf5_input.first_rows(ids, n_labels, limits)
    with np.errstate(invalid="ignore"):  # NaN and Inf become numbers, which differ from them
        tokens_U = labels_U.astype(np.int64)
    broken = np.flatnonzero(tokens_U != labels_U)
    if broken.size:
        finding = f"{labels_U[broken[0]]} found at position {broken[0]}, a whole number expected"
        raise FaultError("seq_class_ids", finding, f"use {numbers_of(inventory)}")
    return hdf5_input.text(group, "sentence_label"), tokens_U


def _check_unique(trial: Trial, group: str, seen: dict[tuple[str, int, int], str]) -> None:
    first = seen.setdefault((trial.session, trial.block, trial.trial), group)
    if first != group:
        finding = (
            f"{trial.name} found again, already in {first}; one trial expected for each number"
        )
        raise FaultError("trial_num", finding, "number the trials of a block differently")


def write_session(
    path: str | Path, trials: Iterable[Trial], *, patch: PatchGeometry | None = None
) -> None:
    """Write one session file; every trial is checked as it will be when read.

    Arrays are contiguous and uncompressed: gzip would bring a real trial to 57 % of its size, and
    make reading 12 and writing 30 times slower. The file is written under a temporary name in the
    same folder, flushed to disk, then renamed, so a reader never meets half a file.

    The first session file of a directory also decides its conventions: `cortext.json` is written
    where the trials' differ from the release's. All others must have the same.

    Args:
        path: `<root>/<session>/data_{train,val,test}.hdf5`; folders are made. The folder has the
            name of the trials' session.
        trials: May be a generator; one trial is in memory at a time.
        patch: Its size is the shortest trial, and its stride bounds the length of a label (default:
            `checks.patch_for` the trials' conventions).

    Raises:
        DataError: For a bad trial, a full disk, and trials of other conventions than the
            directory's or the first trial's.
    """
    path = as_path(path, "path")
    with new_hdf5(path) as (file, check_disk):
        conventions = _write_trials(file, path, trials, patch, check_disk)
        _check_directory(conventions, path)  # again: another process may have written meanwhile
        # Before the session file has its name: labels are never read with another inventory.
        if not conventions_given(root_of(path)):
            conventions.write(root_of(path))


def _write_trials(
    file: h5py.File,
    path: Path,
    trials: Iterable[Trial],
    patch: PatchGeometry | None,
    check_disk: Callable[[], None],
) -> Conventions:
    n_features: int | None = None
    conventions: Conventions | None = None
    seen: dict[tuple[str, int, int], str] = {}
    folder = path.absolute().parent.name
    for number, trial in enumerate(check_list(trials, "trials", "a list of trials")):
        check_type(trial, Trial, f"trial {number}", "a Trial (make_trial)")
        name = f"trial_{number:04d}"
        if conventions is None:
            conventions = trial.conventions
            _check_directory(conventions, path)
        if trial.conventions is not conventions:
            conventions.require(
                trial.conventions, mine="the first trial", theirs=name, where=path, fix=_APART
            )
        try:
            _check_fields(trial)
            if trial.features_TC.ndim != 2:
                finding = f"shape {trial.features_TC.shape} found, [bins, features] expected"
                fix = f"give one row per {conventions.bin_ms:g} ms bin"
                raise FaultError("input_features", finding, fix)
            if trial.session != folder:
                finding = f"{trial.session!r} found, {folder!r} (the folder) expected"
                raise FaultError("session", finding, f"write it to a folder named {trial.session}")
            shortest = patch or patch_for(conventions)
            check_features(trial.features_TC, n_features, patch=shortest)
            _check_unique(trial, name, seen)
            _write(file.create_group(name), trial, shortest)
            check_disk()
        except FaultError as fault:
            raise Problem(str(path), name, fault.field, fault.message).error() from None
        n_features = trial.features_TC.shape[1]
    if conventions is None:
        raise DataError("no trials to write", where=path, fix="give at least one")
    return conventions


def _check_directory(conventions: Conventions, path: Path) -> None:
    """Raise DataError unless a new session file may have these conventions."""
    root = root_of(path)
    if conventions_given(root) or next(session_files_in(root), None):
        conventions.require(
            Conventions.read(root), mine="the trials", theirs="the data", where=root, fix=_APART
        )


def _check_fields(trial: Trial) -> None:
    """Raise FaultError for a field of another type than the one that is read back."""
    features: Any = trial.features_TC  # a Trial takes whatever it is given
    if not isinstance(features, np.ndarray) or features.dtype.kind not in "fiub":
        finding = f"{type(trial.features_TC).__name__} found, an array of numbers expected"
        raise FaultError("input_features", finding, "make the trial with cortext.data.make_trial")
    for field, value in (("block_num", trial.block), ("trial_num", trial.trial)):
        if not isinstance(value, Integral) or isinstance(value, bool):
            raise FaultError(field, f"{value!r} found, a whole number expected", "number the trial")
    for field, text in (("sentence_label", trial.sentence), ("corpus", trial.corpus)):
        if text is not None and not isinstance(text, str):
            raise FaultError(field, f"{text!r} found, a text expected", "give a text or None")
    labels_U = trial.phoneme_ids
    if labels_U is not None and np.ndim(labels_U) != 1:
        finding = f"shape {list(np.shape(labels_U))} found, [phonemes] expected"
        raise FaultError("seq_class_ids", finding, "make the trial with cortext.data.make_trial")


def check_texts(trial: Trial) -> None:
    """Raise FaultError for a sentence or corpus that a session file cannot hold."""
    for field, text in (("sentence_label", trial.sentence), ("corpus", trial.corpus)):
        if text is not None and "\0" in text:
            raise FaultError(field, "a NUL character found", "remove it")
    most = most_labels(trial.conventions.inventory)
    if trial.sentence is not None and len(trial.sentence) >= most:
        finding = f"{len(trial.sentence)} characters found, under {most} expected"
        raise FaultError("transcription", finding, "shorten it")


def _write(group: Any, trial: Trial, patch: PatchGeometry) -> None:
    group.create_dataset(
        "input_features", data=np.ascontiguousarray(trial.features_TC, dtype=np.float32)
    )
    attributes: dict[str, Any] = {"n_time_steps": trial.n_bins, "session": trial.session}
    attributes |= {"block_num": trial.block, "trial_num": trial.trial}
    if (trial.sentence is None) != (trial.phoneme_ids is None):
        finding = (
            "a sentence without phonemes, or phonemes without a sentence; both or neither expected"
        )
        raise FaultError("seq_class_ids", finding, "make the trial with cortext.data.make_trial")
    if trial.phoneme_ids is not None:
        inventory = trial.conventions.inventory
        check_labels(trial.phoneme_ids, trial.n_bins, patch=patch, inventory=inventory)
    check_texts(trial)
    if trial.sentence is not None and trial.phoneme_ids is not None:
        codes = [ord(character) for character in trial.sentence]
        group.create_dataset("seq_class_ids", data=_padded(trial.phoneme_ids))
        group.create_dataset("transcription", data=_padded([*codes, 0]))
        attributes |= {"seq_len": len(trial.phoneme_ids), "sentence_label": trial.sentence}
    if trial.corpus is not None:
        attributes["corpus"] = trial.corpus
    for name, value in attributes.items():
        group.attrs[name] = value


def _padded(values: Iterable[int] | np.ndarray) -> np.ndarray:
    values = np.asarray(values, dtype=np.int32)
    padded = np.zeros(max(MAX_LABEL, len(values)), dtype=np.int32)
    padded[: len(values)] = values
    return padded
