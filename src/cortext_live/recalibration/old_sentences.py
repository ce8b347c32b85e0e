"""Labelled sentences of earlier days, which a model that learns replays beside new ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cortext.data.packed import PackedDataset
from cortext.models import AcousticModel
from cortext.training.config import TrainConfig
from cortext.training.progress import reading_bar
from cortext.training.setup import with_labels
from cortext_live.adapt_trials import opened, trials_of_old_days
from cortext_live.recalibration.replay import LabelledSentence, labelled_sentence


def old_sentences(
    model: AcousticModel,
    config: TrainConfig,
    data: str | Path | PackedDataset,
    days: Sequence[str],
    most: int,
    *,
    skip_bad: bool = False,
    progress: bool = False,
) -> list[LabelledSentence]:
    """Return labelled training sentences of days that a model knows, evenly spread.

    Args:
        model: The model.
        config: The training configuration of its run.
        data: The recordings.
        days: Sessions of the model.
        most: Most sentences.
        skip_bad: Leave out trials that cannot be read.
        progress: Draw a bar on stderr if it is a terminal.

    Raises:
        CortextError: The recordings do not fit the model, or have none of these days.
    """
    with reading_bar(progress) as bar:
        labelled = with_labels(opened(data, model, ("train",), skip_bad, bar, progress))
    split = trials_of_old_days(labelled, days, most, config).split("train")
    labels = [split.labels(i) for i in range(len(split))]
    return [labelled_sentence(split, i, each) for i, each in enumerate(labels) if each is not None]
