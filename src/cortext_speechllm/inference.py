"""Write the sentences of a whole split with a speech LLM, in the formats of all decoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from cortext.arguments import as_path
from cortext.config import from_mapping
from cortext.data import PackedSplit
from cortext.decoding.nbest import NBest
from cortext.evaluation import Metrics
from cortext.evaluation.logits import TRIALS_AT_ONCE
from cortext.evaluation.recognise import Recognised, recognise
from cortext.evaluation.run import config_of, evaluation_directory, origin_of
from cortext.evaluation.submission import (
    Predictions,
    check_predictions_file,
    write_predictions,
)
from cortext.evaluation.word_search import stage
from cortext.processes import Progress
from cortext_speechllm.audio_llm.generate import check_positions
from cortext_speechllm.config import GenerationConfig
from cortext_speechllm.model import SpeechLLM

ENGINE = "speech-llm"


def evaluate(
    run: str | Path,
    data: str | Path,
    split: str,
    out: str | Path,
    *,
    audio_llm: str | Path | None = None,
    generation: Mapping[str, Any] | None = None,
    nbest: int = 10,
    device: str = "cpu",
    skip_bad: bool = False,
    description: str | Path | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> Metrics:
    """Write a split's sentences freely, and an evaluation directory as `cortext.evaluate` does.

    Raises a CortextError for errors that a user can correct.

    Args:
        run: Run directory of a speech LLM; PER and logits are those of its encoder's own read-out.
        data: Session files or packed data.
        split: `train`, `val` or `test`.
        out: The evaluation directory.
        audio_llm: The audio language model: a directory, or a name on the Hub; None takes the one
            in the run, else the one of training.
        generation: Changes to the configuration's `speech.generation`.
        nbest: Sentences kept for each trial.
        device: `cpu`, `cuda` or `cuda:N`.
        skip_bad: Leave out unusable trials, see `cortext.evaluate`.
        description: A file that describes the trials.
        progress: Called with the number of trials done and of all.
        seed: Seed of the resampling for intervals.
    """
    with evaluation_directory(out) as write:
        config = config_of(run)
        recognised, options = _written(
            run, data, split, audio_llm, generation, nbest, device=device, skip_bad=skip_bad,
            description=description, progress=progress,
        )  # fmt: skip
        origin = origin_of(run, data, recognised, device, seed) | {"config": config}
        return write(
            recognised,
            as_path(run, "run"),
            origin | {"lm": None, "engine": ENGINE, "options": options},
            description,
        )


def decode(
    run: str | Path,
    data: str | Path,
    split: str,
    out: str | Path,
    *,
    audio_llm: str | Path | None = None,
    generation: Mapping[str, Any] | None = None,
    device: str = "cpu",
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Predictions:
    """Write a split's sentences to the CSV file `out` (`id,text`) and return them.

    Labels are not needed.

    Args:
        run: See `evaluate`, as for all arguments but `out`.
        data: Session files or packed data.
        split: `train`, `val` or `test`.
        out: CSV file to write.
        audio_llm: The audio language model, if not the run's.
        generation: Changes to the configuration's `speech.generation`.
        device: `cpu`, `cuda` or `cuda:N`.
        skip_bad: Leave out unusable trials.
        progress: Called with the number of trials done and of all.
    """
    out = as_path(out, "out")
    check_predictions_file(out)
    recognised, _ = _written(
        run,
        data,
        split,
        audio_llm,
        generation,
        1,
        device=device,
        skip_bad=skip_bad,
        progress=progress,
    )
    return write_predictions(out, recognised)


def _written(
    run: str | Path,
    data: str | Path,
    split: str,
    audio_llm: str | Path | None,
    generation: Mapping[str, Any] | None,
    nbest: int,
    *,
    device: str,
    progress: Progress | None,
    **settings: Any,
) -> tuple[Recognised, dict[str, Any]]:
    """Return the trials of a split with their sentences, and the options of writing."""
    model = SpeechLLM.load(run, device, audio_llm)
    speech = model.network.speech
    options = from_mapping(
        GenerationConfig, asdict(speech.generation) | dict(generation or {}), prefix="generation."
    )
    recognised = recognise(run, data, split, None, device=device, **settings)
    trials = recognised.data.split(split)
    with stage(recognised.seconds, "writing"):
        lists = _write(model, trials, recognised.indices, options, nbest, progress)
    written = tuple(
        replace(trial, nbest=each) for trial, each in zip(recognised.trials, lists, strict=True)
    )
    described = model.network.llm.describe() | {
        "lora": "the LoRA weights of the run" if speech.lora else None
    }
    facts = asdict(options) | {"nbest": nbest, "llm": {"prompt": speech.prompt}}
    return replace(recognised, trials=written, engine=ENGINE, llm=described), facts


def _write(
    model: SpeechLLM,
    trials: PackedSplit,
    chosen: tuple[int, ...],
    options: GenerationConfig,
    nbest: int,
    progress: Progress | None,
) -> list[NBest]:
    """Return the sentences of each chosen trial; trials of similar length share a batch."""
    network = model.network
    speech = model.network.speech
    if chosen and not speech.merge_blanks:  # raises before hours of writing
        n_patches = int(network.n_patches(trials.n_bins_N[list(chosen)].max()))
        check_positions(
            network.llm.chat, network.llm.prompt(speech.prompt), n_patches, options.max_length
        )
    by_length = sorted(range(len(chosen)), key=lambda n: int(trials.n_bins_N[chosen[n]]))
    lists: dict[int, NBest] = {}
    for start in range(0, len(by_length), TRIALS_AT_ONCE):
        positions = by_length[start : start + TRIALS_AT_ONCE]
        rows = np.array([chosen[position] for position in positions])
        batch = trials.batch(rows)
        sessions = [trials.session(row) for row in rows.tolist()]
        lists_written = model.generate(
            batch.features_BTC, sessions, batch.n_bins_B, nbest=nbest, options=options
        )
        lists |= dict(zip(positions, lists_written, strict=True))
        if progress:
            progress(start + len(positions), len(chosen))
    return [lists[position] for position in range(len(chosen))]
