"""From packed trials to sentences: the model, then the search. `evaluate` and `decode` share this.

Shapes: B trials, T bins of 20 ms, C features, P patches of 80 ms, V tokens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from cortext.config import load_config
from cortext.data import PackedDataset, PackedSplit, open_data, open_packed
from cortext.data.checks import SKIP_HINT, Problem
from cortext.data.trial import BIN_MS
from cortext.decoding import Decoder
from cortext.decoding.decoder import notes_of, part_of
from cortext.decoding.log_probs import greedy, log_softmax
from cortext.decoding.nbest import NBest
from cortext.decoding.options import DecoderOptions
from cortext.errors import DataError, DecodingError, nearest
from cortext.evaluation.cluster import DecoderFiles, LargeModelFiles, decode_on_cluster
from cortext.evaluation.description import Description
from cortext.evaluation.scores import TrialResult
from cortext.models import AcousticModel, load_model
from cortext.models.stepping import patch_shape
from cortext.processes import Progress
from cortext.text.lexicon import Lexicon
from cortext.text.phonemes import RELEASE

Options = DecoderOptions | Mapping[str, Any] | str | Path | None
TRIALS_AT_ONCE = 16


@dataclass(frozen=True)
class Recognised:
    """The trials of a split with what the run made of them.

    Attributes:
        trials: In the order of sessions and trials.
        indices: Position of each trial in `data.split(split)`.
        skipped: By number in the split, why a trial was left out; a file that cannot be read has a
            negative number.
        seconds: What each stage took.
        llm: What is known of the large language model; None without one.
    """

    data: PackedDataset
    split: str
    model: AcousticModel
    options: DecoderOptions
    engine: str
    vocabulary: Lexicon | None
    trials: tuple[TrialResult, ...]
    indices: tuple[int, ...]
    skipped: dict[int, Problem]
    seconds: dict[str, float] = field(default_factory=dict)
    llm: dict[str, Any] | None = None

    @property
    def degraded(self) -> list[str]:
        """For each trial whose sentences lack what was asked for: what is missing."""
        return [
            trial.nbest.degraded for trial in self.trials if trial.nbest and trial.nbest.degraded
        ]

    @property
    def notes(self) -> list[str]:
        """What was not as asked for, one line each."""
        lists = {trial.id: trial.nbest for trial in self.trials if trial.nbest}
        return notes_of((self.llm or {}).get("notes", []), lists)


def recognise(
    run: str | Path,
    data: str | Path,
    split: str,
    lm: str | Path | None,
    *,
    options: Options = None,
    engine: str = "native",
    device: str = "cpu",
    skip_bad: bool = False,
    description: str | Path | None = None,
    threads: int | None = 1,
    ray: str | None = None,
    gpus_per_worker: float = 0.0,
    llm: LargeModelFiles | None = None,
    context: str = "",
    progress: Progress | None = None,
) -> Recognised:
    """Run the model, and with `lm` the word search, over a split.

    Arguments and errors are those of `evaluate`.
    """
    if llm is not None and lm is None:
        raise DecodingError(
            "a large language model ranks what the word search finds",
            fix="give an n-gram, too: --lm",
        )
    if ray is not None and lm is None:
        raise DecodingError("a Ray cluster does the word search", fix="give an n-gram, too: --lm")
    seconds: dict[str, float] = {}
    with stage(seconds, "load"):
        options = read_options(options)
        blocks = Description.read(description) if description is not None else Description()
        model = load_model(run, device)
        reader = llm.open() if llm is not None and ray is None else None
        packed = open_data(data, _packed_by_training(Path(run), Path(data)), skip_bad=skip_bad)
        trials_of = packed.split(split)
        packed.verify(splits=[split])
        search = None
        if lm is not None:
            decoder = Decoder.from_dir(lm, options, engine=engine).with_llm(reader)
            search = _Search(decoder, context, threads, ray, gpus_per_worker, llm)
        vocabulary = Lexicon.read(Path(lm) / "lexicon.txt") if lm is not None else None
        _check_fits(model, packed, Path(data))
        ids, skipped = number_trials(trials_of, packed.bad_trials)
        chosen = _choose(model, trials_of, ids, skipped, skip_bad, Path(data))
    with stage(seconds, "model"):
        logits = _logits(
            model, trials_of, chosen, part_of(progress, 0, 1 if search is None else search.stages)
        )
        trials = [
            _trial(trials_of, i, ids[i], logits_PV, model, blocks)
            for i, logits_PV in zip(chosen, logits, strict=True)
        ]
    known = None
    if search is not None:
        found, known = search.sentences(trials, model, seconds, progress)
        timed = [nbest.timed(frame_ms(model)) for nbest in found]
        trials = [replace(trial, nbest=nbest) for trial, nbest in zip(trials, timed, strict=True)]
    return Recognised(
        packed,
        split,
        model,
        options,
        engine,
        vocabulary,
        tuple(trials),
        tuple(chosen),
        skipped,
        seconds,
        known,
    )


@dataclass(frozen=True)
class _Search:
    """How the sentences of trials are found: by threads of this process, or on a Ray cluster.

    Attributes:
        decoder: With the large model, where this process asks it.
        llm: The large model that the cluster's tasks are to ask, or this process does.
    """

    decoder: Decoder
    context: str
    threads: int | None
    ray: str | None
    gpus_per_worker: float
    llm: LargeModelFiles | None

    @property
    def stages(self) -> int:
        """Of the whole work.

        The acoustic model, the search, and ranking where this process does it.
        """
        return 2 + (self.decoder.llm is not None)

    def sentences(
        self,
        trials: Sequence[TrialResult],
        model: AcousticModel,
        seconds: dict[str, float],
        progress: Progress | None,
    ) -> tuple[list[NBest], dict[str, Any] | None]:
        """The sentences of each trial, and what is known of the large model; None without one."""
        described: dict[str, Any] = {}
        log_probs = [log_softmax(trial.logits_PV) for trial in trials]
        with stage(seconds, "search"):
            searched = part_of(progress, 1, self.stages)
            if self.ray is None:
                threads = (os.cpu_count() or 1) if self.threads is None else self.threads
                found = self.decoder.search_batch(
                    log_probs, model.inventory, threads, searched, self.context
                )
            else:
                found = decode_on_cluster(
                    self.ray,
                    self._files,
                    log_probs,
                    model.inventory,
                    context=self.context,
                    gpus_per_worker=self.gpus_per_worker,
                    described=described,
                    progress=searched,
                )
        if self.decoder.llm is not None:
            with stage(seconds, "llm"):
                found = self.decoder.rank(found, self.context, part_of(progress, 2, self.stages))
            described = self.decoder.llm.describe()
        return found, None if self.llm is None else described | {"context": self.context}

    @property
    def _files(self) -> DecoderFiles:
        decoder = self.decoder
        return DecoderFiles(
            decoder.lm_dir.resolve(),
            decoder.options,
            decoder.engine,
            self.llm and self.llm.resolved(),
        )


@contextmanager
def stage(seconds: dict[str, float], name: str) -> Iterator[None]:
    """Add what the block takes to a table of seconds."""
    start = time.perf_counter()
    yield
    seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start


def _packed_by_training(run: Path, data: Path) -> Path | None:
    """The packed copy of these session files that training left in the run directory, which need
    not be made again.
    """
    cache = run / "packed"
    try:
        return cache if open_packed(cache).source == data.resolve() else None
    except DataError:
        return None


def read_options(options: Options) -> DecoderOptions:
    """Decoder options from themselves, a mapping, a YAML file, or the defaults."""
    if isinstance(options, str | Path):
        return load_config(options, DecoderOptions)
    return DecoderOptions.of(options)


def number_trials(
    split: PackedSplit, problems: Sequence[Problem]
) -> tuple[list[int], dict[int, Problem]]:
    """The competition's number of every trial, and of every trial left out when the data were
    packed.

    Numbers count over sessions in order and trials in file order, bad trials included, so that a
    bad trial does not shift the rows of `predictions.csv` after it. A file that cannot be read at
    all has no numbers: it gets -1, -2 ...
    """
    bad: dict[str, dict[int, Problem]] = {}
    skipped: dict[int, Problem] = {}
    for problem in problems:
        file = Path(problem.file)
        if file.name != f"data_{split.name}.hdf5":
            continue
        if problem.trial is None:
            skipped[-1 - len(skipped)] = problem
        else:
            bad.setdefault(file.parent.name, {})[int(problem.trial.rpartition("_")[2])] = problem
    ids, number, position = [0] * len(split), 0, 0
    for session in split.sessions:
        left, rows = (
            bad.get(session, {}),
            np.flatnonzero(split.day_N == split.sessions.index(session)),
        )
        waiting = iter(rows.tolist())
        for position in range(len(rows) + len(left)):
            if position in left:
                skipped[number] = left[position]
            elif (row := next(waiting, None)) is not None:
                ids[row] = number
            number += 1
    return ids, skipped


def _check_fits(model: AcousticModel, data: PackedDataset, where: Path) -> None:
    if data.n_features != model.n_features:
        found = f"{data.n_features} features found, the model needs {model.n_features}"
        raise DataError(found, where=where, fix="give the data the run was trained for")


def _choose(
    model: AcousticModel,
    split: PackedSplit,
    ids: Sequence[int],
    skipped: dict[int, Problem],
    skip_bad: bool,
    where: Path,
) -> list[int]:
    """Positions of the trials that the model can read.

    The others are added to `skipped`, or are an error.
    """
    chosen = []
    n_patches_N = model.n_patches(split.n_bins_N)
    for i in range(len(split)):
        problem = _unfit(model, split, i, int(n_patches_N[i]), where)
        if problem is None:
            chosen.append(i)
        elif skip_bad:
            skipped[ids[i]] = problem
        else:
            raise problem.error()
    if not chosen:
        first = f"; the first: {next(iter(skipped.values()))}" if skipped else ""
        raise DataError(f"no trial of split {split.name!r} can be used{first}", where=where)
    return sorted(chosen, key=lambda i: ids[i])


def _unfit(
    model: AcousticModel, split: PackedSplit, i: int, n_patches: int, where: Path
) -> Problem | None:
    """Why the model cannot read trial `i`: a day that it does not know, or not one frame."""
    session = split.session(i)
    name = f"{session}/block {split.block_N[i]}/trial {split.trial_N[i]}"
    if session not in model.sessions:
        found = f"session {session!r} is unknown to the run; {nearest(session, model.sessions)}"
        message = f"{found}; adapt the run to that day with cortext adapt, {SKIP_HINT}"
        return Problem(str(where), name, "session", message)
    if n_patches < 1:
        found = f"{split.n_bins_N[i]} bins are too few for one frame of this model"
        return Problem(
            str(where), name, "n_time_steps", f"{found}; record longer trials, {SKIP_HINT}"
        )
    return None


def _logits(
    model: AcousticModel, split: PackedSplit, chosen: Sequence[int], progress: Progress | None
) -> list[np.ndarray]:
    """float32 [P, V] of each chosen trial.

    Trials of similar length go through the model together.
    """
    by_length = sorted(range(len(chosen)), key=lambda n: int(split.n_bins_N[chosen[n]]))
    logits: list[Any] = [None] * len(chosen)
    for start in range(0, len(by_length), TRIALS_AT_ONCE):
        places = by_length[start : start + TRIALS_AT_ONCE]
        rows = [chosen[place] for place in places]
        batch = split.batch(rows)
        sessions = [split.session(row) for row in rows]
        logits_BPV, n_patches_B = model.logits_batch(batch.features_BTC, sessions, batch.n_bins_B)
        for place, logits_PV, n_patches in zip(
            places, logits_BPV, n_patches_B.tolist(), strict=True
        ):
            logits[place] = logits_PV[:n_patches].copy()
        if progress:
            progress(start + len(places), len(chosen))
    return logits


def _trial(
    split: PackedSplit,
    i: int,
    number: int,
    logits_PV: np.ndarray,
    model: AcousticModel,
    blocks: Description,
) -> TrialResult:
    labels, session, block = split.labels(i), split.session(i), int(split.block_N[i])
    return TrialResult(
        id=number,
        session=session,
        block=block,
        trial=int(split.trial_N[i]),
        n_bins=int(split.n_bins_N[i]),
        corpus=blocks.corpus(session, block) or split.corpora[i],
        sentence=split.sentence(i),
        phonemes=None if labels is None else tuple(RELEASE.names(labels)),
        greedy=tuple(model.inventory.names(greedy(log_softmax(logits_PV), model.inventory))),
        logits_PV=logits_PV,
    )


def frame_ms(model: AcousticModel) -> float:
    """Time from one frame of the model's logits to the next."""
    config = model.network.config
    return float(patch_shape(config.patch_size, config.patch_stride)[1] * BIN_MS)


def in_order(
    trials: Sequence[TrialResult], skipped: Mapping[int, Problem]
) -> Iterator[tuple[int, TrialResult | None]]:
    """Numbers and trials of the split in order; None stands for a trial that was left out."""
    found: dict[int, TrialResult | None] = dict.fromkeys(
        number for number in skipped if number >= 0
    )
    found |= {trial.id: trial for trial in trials}
    yield from sorted(found.items())
