"""Averages of several acoustic models' posteriors, frame by frame, decoded like one model's.

Shapes: P patches (frames), V tokens, S systems.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cortext.arguments import as_number, as_path, check_list, check_text, check_type
from cortext.data.conventions import Conventions
from cortext.decoding.decoder import Decoder, part_of
from cortext.decoding.nbest import NBest, hypothesis_json
from cortext.decoding.ngram.language_model import language_model_checksum
from cortext.decoding.options import DecoderOptions
from cortext.decoding.saved import to_log_probs
from cortext.errors import DataError, DecodingError
from cortext.evaluation.logits_origin import LogitFiles, LogitsOrigin
from cortext.evaluation.nbest_file import trial_name
from cortext.processes import Progress
from cortext_lm.ensemble.candidates import Candidates
from cortext_lm.ensemble.sources import candidate_of


def check_together(first: Conventions, one: Path, second: Conventions, two: Path) -> None:
    """Raise DataError unless two evaluations are of the same tokens, language and bins.

    Args:
        first: Conventions of the first evaluation.
        one: Its directory.
        second: Conventions of the other evaluation.
        two: Its directory.
    """
    second.require(
        first,
        mine="this evaluation",
        theirs=str(one),
        where=two,
        fix="combine evaluations of the same data by runs of the same tokens",
        by_number=False,
    )


def average(
    log_probs: Sequence[np.ndarray], mean: str, weights: Sequence[float] = ()
) -> np.ndarray:
    """Return log-probabilities float32 [P, V] of several systems as those of one.

    A system of weight 0 is left out. Raises DecodingError for shapes that differ, and where a
    geometric mean leaves nothing possible in a frame.

    Args:
        log_probs: Float [P, V] of each system, natural logs, all in one order of tokens.
        mean: `arithmetic`, log(sum_s w_s p_s), or `geometric`, the sum of w_s log p_s made to add
            up to 1 again.
        weights: w_s of each system; they are made to add up to 1, and equal when empty.
    """
    for array in check_list(log_probs, "log_probs", "a list of arrays [frames, tokens]"):
        check_type(array, np.ndarray, "log_probs", "a list of NumPy arrays [frames, tokens]")
    check_text(mean, "mean")
    weights = [as_number(each, "a weight", 0) for each in check_list(weights, "weights", "a list")]
    shapes = {array.shape for array in log_probs}
    if len(shapes) != 1:
        raise DecodingError(
            f"log-probabilities of shapes {', '.join(map(str, sorted(shapes)))} cannot be averaged"
        )
    if len(weights or log_probs) != len(log_probs):
        raise DecodingError(f"{len(weights)} weights for {len(log_probs)} systems")
    # A weight of 0 times a log-probability of -inf is NaN: such a system is left out.
    pairs = [
        (array, float(w))
        for array, w in zip(log_probs, weights or [1.0] * len(log_probs), strict=True)
        if w
    ]
    if not pairs:
        raise DecodingError("all weights are 0; one above 0 is needed")
    total = sum(weight for _, weight in pairs)
    stacked_SPV = np.stack([array.astype(np.float64) for array, _ in pairs])
    shares_S11 = np.array([weight / total for _, weight in pairs])[:, None, None]
    if mean == "arithmetic":
        # The probabilities themselves would underflow, so each cell's highest is divided out first.
        highest_PV = stacked_SPV.max(axis=0)
        # Where no system allows a token, -inf - -inf would be NaN.
        highest_PV[np.isneginf(highest_PV)] = 0.0
        with np.errstate(divide="ignore"):
            mixed_PV = highest_PV + np.log(
                (shares_S11 * np.exp(stacked_SPV - highest_PV)).sum(axis=0)
            )
    else:
        mixed_PV = (shares_S11 * stacked_SPV).sum(axis=0)
    # A geometric mean is 0 wherever one system has 0, and zeros cannot be made to add up to 1.
    if mixed_PV.size and np.isneginf(mixed_PV.max(axis=1)).any():
        raise DecodingError(
            "no token is possible to all systems in some frame", fix="use mean=arithmetic"
        )
    return to_log_probs(mixed_PV)


def read_average(
    directories: Sequence[str | Path],
    trials: Sequence[Candidates],
    mean: str,
    weights: Sequence[float] = (),
) -> list[np.ndarray]:
    """Return the averaged log-probabilities of each trial.

    Args:
        directories: Evaluations with logits, one a system.
        trials: Trials to average, as `read_evaluations` gives them.
        mean: See `average`.
        weights: See `average`.

    Returns:
        float32 [P, V] of each trial; tokens are in the order of the first directory.

    Raises:
        DataError: Where logits are missing or do not go together.
    """
    directories = list(check_list(directories, "directories", "a list of directories"))
    paths = [as_path(directory, "a directory") for directory in directories]
    origins = [LogitsOrigin.of(path) for path in paths]
    first = origins[0]
    columns = []
    for path, origin in zip(paths, origins, strict=True):
        # Tokens are compared by name: `columns` brings them into one order.
        check_together(first.conventions, paths[0], origin.conventions, path)
        if origin.frame_ms != first.frame_ms:
            differs = f"a frame takes {origin.frame_ms:g} ms, in {paths[0]} {first.frame_ms:g} ms"
            raise DataError(differs, where=path, fix="average runs with the same patch_stride")
        columns.append(first.inventory.order_from(origin.inventory))
    files = [
        LogitFiles.of(path, origin.inventory) for path, origin in zip(paths, origins, strict=True)
    ]
    averaged = []
    for trial in trials:
        arrays = []
        for named, order_V in zip(files, columns, strict=True):
            arrays.append(named.log_probs(trial.key)[:, order_V])
            # Frames of the same length may still lie at other times (another patch_size). Their
            # number is the only sign of it in the files.
            if len(arrays[-1]) != len(arrays[0]):
                problem = f"{len(arrays[-1])} frames, in {paths[0]} {len(arrays[0])}"
                raise DataError(
                    problem,
                    where=named.files[int(trial.id)],
                    fix="average runs with the same patch_size and stride",
                )
        try:
            averaged.append(average(arrays, mean, weights))
        except DecodingError as error:
            raise DecodingError(
                error.what, where=error.where or trial_name(trial.key), fix=error.fix
            ) from None
    return averaged


def decode_average(
    directories: Sequence[str | Path],
    trials: Sequence[Candidates],
    lm: str | Path,
    *,
    mean: str = "arithmetic",
    weights: Sequence[float] = (),
    options: DecoderOptions | None = None,
    threads: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[list[np.ndarray], list[NBest]]:
    """Return averaged log-probabilities and n-best lists of each trial.

    Errors are those of `average`, `read_average` and `Decoder`.

    Args:
        directories: Evaluations with logits.
        trials: Trials to decode, as `read_evaluations` gives them.
        lm: Language-model directory.
        mean: See `average`.
        weights: See `average`.
        options: Options of the search; None: those that the directories were decoded with. They
            must be the same, unless they were fitted to each run; then the first one's are used.
        threads: Threads of the search.
        progress: Called with trials done and in all.
    """
    origin = average_origin(directories, lm, options)
    decoder = Decoder.from_dir(lm, origin.options)
    origin.require(decoder.lm, directories[0])
    log_probs = read_average(directories, trials, mean, weights)
    lists = _decoded(decoder, origin, trials, log_probs, threads, progress)
    # The search counts frames, and gives each one 80 ms.
    return log_probs, [nbest.timed(origin.frame_ms) for nbest in lists]


def average_origin(
    directories: Sequence[str | Path], lm: str | Path, options: DecoderOptions | None = None
) -> LogitsOrigin:
    """Return the tokens of averaged posteriors, and the options to search them with.

    Arguments and errors are those of `decode_average`.
    """
    origins = [LogitsOrigin.of(directory).searched_with(lm) for directory in directories]
    first = origins[0].given(options)
    for directory, origin in zip(directories, origins, strict=True):
        # Fitted options differ from run to run, and nobody chose them for the average. Other
        # options were chosen, so a difference is a question for the user.
        own = first.fitted and origin.fitted  # each run's own
        if options is None and not own and origin.options != first.options:
            differs = f"was decoded with other options than {directories[0]}"
            raise DataError(differs, where=directory, fix="give the options with --decoder-options")
    return replace(first, lm_checksum=language_model_checksum(lm))


def _decoded(
    decoder: Decoder,
    origin: LogitsOrigin,
    trials: Sequence[Candidates],
    log_probs: Sequence[np.ndarray],
    threads: int,
    progress: Progress | None,
    **changes: Any,
) -> list[NBest]:
    """Return the sentences of each trial, none with options that were fitted on itself."""
    # A batch is searched with one set of options, so trials are grouped by theirs.
    groups: dict[DecoderOptions, list[int]] = {}
    for position, trial in enumerate(trials):
        own = origin.cross_fitted.get(int(trial.id), origin.options)
        groups.setdefault(own, []).append(position)
    by_position: dict[int, NBest] = {}
    for part, (options, positions) in enumerate(groups.items()):
        lists = decoder.with_options(**vars(options) | changes).decode_batch(
            [log_probs[position] for position in positions],
            origin.inventory,
            threads,
            part_of(progress, part, len(groups)),
        )
        by_position |= zip(positions, lists, strict=True)
    return [by_position[position] for position in range(len(trials))]


def options_note(directory: str | Path, lm: str | Path) -> str:
    """Return a line about the options that an evaluation's logits are searched with again."""
    origin = LogitsOrigin.of(directory)
    if not origin.fitted:
        return f"decoder options: those of {directory}"
    if not origin.searched_with(lm).fitted:
        return (
            f"decoder options: the defaults; those of {directory} were fitted with another language"
            " model"
        )
    crossed = ", cross-fitted" if origin.cross_fitted else ""
    return f"decoder options: those of {directory}, fitted to its run{crossed}"


MOST_SENTENCES = 1000
"""Number of a lattice's best sentences that count.

With the search's default beam almost no lattice has more.
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
    """Return the trials with all sentences of each run's lattice in place of its saved list.

    A lattice is read as its sentences. Each is scored exactly (the sum of its paths, or the best of
    them, as `recombine` says), so the sentences' shares are the lattice's posteriors. A large model
    that ranked the saved lists has no part in a lattice. Errors are those of `read_average` and
    `Decoder`.

    Args:
        directories: Evaluations with logits, one a system.
        trials: Trials to search again.
        lm: Language-model directory.
        options: Options of the search; by default each run's own. `lattice_beam` bounds the
            lattice.
        threads: Threads of the search.
        progress: Called with trials done and in all.
    """
    directories = list(check_list(directories, "directories", "a list of directories"))
    for number, trial in enumerate(check_list(trials, "trials", "a list of Candidates"), 1):
        check_type(trial, Candidates, f"trial {number}", "Candidates")
    systems = []
    for number, directory in enumerate(directories):
        origin = LogitsOrigin.of(directory).searched_with(lm).given(options)
        decoder = Decoder.from_dir(lm, origin.options)
        origin.require(decoder.lm, directory)
        log_probs = read_average([directory], trials, "arithmetic")  # of one run: its own
        share = part_of(progress, number, len(directories))
        nbests = _decoded(decoder, origin, trials, log_probs, threads, share, nbest=MOST_SENTENCES)
        systems.append(
            [
                tuple(candidate_of(hypothesis_json(one), origin.language) for one in nbest)
                for nbest in nbests
            ]
        )
    return [
        # A part that the saved lists lack is not missing here: they are not used.
        replace(trial, systems=lists, degraded=None)
        for trial, *lists in zip(trials, *systems, strict=True)
    ]
