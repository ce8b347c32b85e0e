"""The published copy task of participant T15 as an evaluation directory.

Everything that reads an evaluation then reads the participant's logits: `decode --logits`,
`tune decoder`, `ensemble`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cortext.arguments import check_function
from cortext.data.trial import BIN_MS
from cortext.decoding.nbest import FRAME_MS, Hypothesis, NBest
from cortext.errors import DataError
from cortext.evaluation.recognise import Results
from cortext.evaluation.redecode import OPEN
from cortext.evaluation.run import evaluation_directory
from cortext.evaluation.scores import Metrics, TrialResult
from cortext.evaluation.vocabularies import Vocabulary
from cortext.processes import Progress
from cortext.text.inventory import RELEASE, Inventory, get_inventory
from cortext.text.normalize import normalize
from cortext_published.t15_analyses import (
    CopyTrial,
    PersonalUse,
    find_order,
    read_analyses,
)

SPLIT = "copy-task"
CORPORA = {50: "50-word", 125_000: OPEN}
"""Name of the sentences by the size of the vocabulary that the participant spoke with."""


def import_copy_task(
    file: str | Path,
    out: str | Path,
    order: str = "auto",
    *,
    progress: Progress | None = None,
    seed: int = 0,
) -> Metrics:
    """Write the evaluation directory `out` from `t15_copyTask.pkl`.

    The published sentences are its hypotheses, without scores or times. Its logits are in the order
    of the release's models. `vocabularies.json` lists the words of the prompts spoken with
    50 words.

    Args:
        file: The published file. Nothing that it may hold is run.
        out: Evaluation directory to write; an earlier one is replaced.
        order: Order of the tokens in the file: `release`, `lm`, or `auto` for the one that gives
            the published phonemes.
        progress: Called with steps done and in all.
        seed: Seed of the bootstrap intervals.

    Returns:
        Error rates of the published phonemes and sentences.

    Raises:
        DataError: For any other file, and where no order gives the published phonemes.
        TextError: For an unknown order.
    """
    given = None if order == "auto" else get_inventory(order)
    with evaluation_directory(out) as write:
        check_function(progress, "progress")
        steps = progress or (lambda done, total: None)
        steps(0, 3)
        trials = read_analyses(file)
        if isinstance(trials, PersonalUse):
            raise DataError(
                "is the file of personal use, which holds no logits",
                where=file,
                fix="draw it: cortext report release",
            )
        steps(1, 3)
        inventory = given or find_order(trials)
        results = Results(
            split=SPLIT,
            engine="published",
            trials=results_of(trials, inventory),
            days={session_of(trial.day): trial.day for trial in trials},
            limited=_vocabularies(trials),
        )
        steps(2, 3)
        return write(results, None, _origin(Path(file), order, inventory, seed))


def results_of(trials: Sequence[CopyTrial], inventory: Inventory) -> tuple[TrialResult, ...]:
    """Return the trials as an evaluation holds them, numbered from 0 in the order of the file.

    Args:
        trials: The published trials.
        inventory: Order of the tokens in their logits.
    """
    columns_V = RELEASE.order_from(inventory)
    n_of_session: Counter[str] = Counter()
    results = []
    for number, trial in enumerate(trials):
        session = session_of(trial.day)
        sentence = Hypothesis(trial.decoded, math.nan, math.nan, math.nan)
        results.append(
            TrialResult(
                id=number,
                session=session,
                block=0,
                trial=n_of_session[session],
                n_bins=round(len(trial.logits_PV) * FRAME_MS / BIN_MS),
                corpus=CORPORA[trial.vocabulary],
                sentence=trial.cue,
                phonemes=trial.cue_phonemes,
                greedy=trial.decoded_phonemes,
                logits_PV=trial.logits_PV[:, columns_V],
                nbest=NBest([sentence]),
            )
        )
        n_of_session[session] += 1
    return tuple(results)


def session_of(day: int) -> str:
    """Return the name of a day's session; the file gives no dates and no blocks."""
    return f"t15.day{day:04d}"


def _vocabularies(trials: Sequence[CopyTrial]) -> tuple[Vocabulary, ...]:
    """Return the 50 words, which the file does not list: those of the prompts spoken with them."""
    numbers = tuple(n for n, trial in enumerate(trials) if trial.vocabulary == min(CORPORA))
    words = sorted({word for n in numbers for word in normalize(trials[n].cue).split()})
    spoken = tuple(word for word in words if word.strip("-'"))
    return (Vocabulary(CORPORA[min(CORPORA)], spoken, numbers),) if spoken else ()


def _origin(file: Path, order: str, inventory: Inventory, seed: int) -> dict[str, Any]:
    return {
        "imported": {"file": file.name, "order": inventory.name, "verified": order == "auto"},
        "run": None,
        "data": str(file),
        "lm": None,
        "options": None,
        "llm": None,
        "config": None,
        "seed": seed,
        "inventory": RELEASE.to_json(),
        "frame_ms": FRAME_MS,
    }
