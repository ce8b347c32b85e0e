"""Published facts about data sets, which their copies are compared with.

Those of participant T15 come from the release (Card et al. 2024): its table of blocks, its
`rnn_args.yaml`, the sizes that Dryad lists (version of 3 July 2025), the
paper's abstract, and the competition's page. Those of participant T12 come from
`competitionData_readme.txt` (Willett et al. 2023, doi:10.5061/dryad.x69p8czpq) and from the code
that the organisers of Brain-to-Text '24 published, which names the days. Numbers of trials are
those that its readers state: 8,800, 880 and 1,200.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from cortext.data.dataset import BlockDescription, read_description

COPY_TASK = "t15_copyTask.pkl"
"""File of the published analyses that holds logits."""


@dataclass(frozen=True)
class Published:
    """Published facts of a data set with a baseline.

    Attributes:
        blocks: The release's table of blocks.
        prefix: Text before the date in the name of a session.
        n_trials: Trials by split.
        n_features: Features of a bin.
        files: Size of each file as the repository lists it: a number and `MB` or `GB`.
        model: Settings of the baseline's network.
        per: PER of the baseline on the validation split, as its trainer measures it.
        wer: WER of the baseline on the public test split.
        lm_words: Fewest words of the language model that `wer` belongs to.
        lm_order: Its order.
        n_copy_trials: Trials of the published analyses.
        copy_wer: Published WER by day since the implantation and vocabulary.
    """

    blocks: tuple[BlockDescription, ...]
    prefix: str
    n_trials: Mapping[str, int]
    n_features: int
    files: Mapping[str, str]
    model: Mapping[str, Any]
    per: float
    wer: float
    lm_words: int
    lm_order: int
    n_copy_trials: int
    copy_wer: Mapping[tuple[int, str], float]

    @property
    def sessions(self) -> dict[str, dict[str, int]]:
        """Sentences in the table of blocks by session: `train` and `held out` (val and test)."""
        by_session: dict[str, dict[str, int]] = {}
        for block in self.blocks:
            name = f"{self.prefix}{block.date.replace('-', '.')}"
            kind = "train" if block.split.lower() == "train" else "held out"
            counts = by_session.setdefault(name, {"train": 0, "held out": 0})
            counts[kind] += block.n_sentences
        return by_session

    @property
    def days(self) -> dict[str, int]:
        """Days since the implantation by session."""
        return {
            f"{self.prefix}{date.fromisoformat(block.date):%Y.%m.%d}": block.post_implant_day
            for block in self.blocks
        }

    def other_trials(self, n_val: int) -> str:
        """Return why rates of so many validation trials are not comparable; empty if they are."""
        expected = self.n_trials["val"]
        if n_val == expected:
            return ""
        return f"{n_val:,} of {expected:,} validation trials are read"


@lru_cache(maxsize=1)
def t15_facts() -> Published:
    """Return the facts of participant T15."""
    table = resources.files("cortext_data.simulate").joinpath("t15_blocks.csv")
    with resources.as_file(table) as path:
        blocks = tuple(read_description(Path(path)))
    return Published(
        blocks=blocks,
        prefix="t15.",
        n_trials={"train": 8072, "val": 1426, "test": 1450},
        n_features=512,
        files={
            "t15_copyTask_neuralData.zip": "11.05 GB",
            "t15_pretrained_rnn_baseline.zip": "484.94 MB",
            COPY_TASK: "57.79 MB",
            "t15_personalUse.pkl": "1.13 MB",
        },
        model={"kind": "gru", "n_layers": 5, "n_units": 768, "patch_size": 14, "patch_stride": 4},
        per=0.101,
        wer=0.063,
        lm_words=100_000,
        lm_order=5,
        n_copy_trials=1718,
        # "99.6% accuracy with a 50-word vocabulary" on the first day, "90.2% accuracy using a
        # 125,000-word vocabulary" on the second.
        copy_wer={(25, "50-word"): 0.004, (27, "open vocabulary"): 0.098},
    )


_T12_DAYS = (
    "04.28 05.05 05.17 05.19 05.24 05.26 06.02 06.07 06.14 06.16 06.21 06.23 06.28 07.05 07.14"
    " 07.21 07.27 07.29 08.02 08.11 08.13 08.18 08.23 08.25"
)
_T12_HOLDOUT = (*range(4, 11), *range(12, 17), *range(18, 21))
"""Places of the days with holdout blocks among all."""


@dataclass(frozen=True)
class PublishedT12:
    """Published facts of Brain-to-Text '24, by folder of the release.

    Attributes:
        sessions: Recording days.
        n_trials: Trials of all days.
        n_blocks: Blocks of each day, where they are as many on all days.
        n_columns: Columns of each array.
    """

    sessions: Mapping[str, tuple[str, ...]]
    n_trials: Mapping[str, int]
    n_blocks: Mapping[str, int]
    n_columns: int


@lru_cache(maxsize=1)
def t12_facts() -> PublishedT12:
    """Return the facts of participant T12 in Brain-to-Text '24."""
    days = tuple(f"t12.2022.{day}" for day in _T12_DAYS.split())
    holdout = tuple(days[place] for place in _T12_HOLDOUT)
    return PublishedT12(
        sessions={"train": days, "test": days, "competitionHoldOut": holdout},
        n_trials={"train": 8800, "test": 880, "competitionHoldOut": 1200},
        # "the first two blocks from each day were used as held-out competition data, [...] the last
        # block from each day was used as test data"
        n_blocks={"test": 1, "competitionHoldOut": 2},
        n_columns=256,
    )


def has_listed_size(n_bytes: int, listed: str) -> bool:
    """Return whether a file has the size that a repository lists as `57.79 MB`.

    Repositories divide by 1000 or by 1024 and do not say which: both are taken.
    """
    number, unit = listed.split()
    power = {"MB": 2, "GB": 3}[unit]
    return any(f"{n_bytes / base**power:.2f}" == f"{float(number):.2f}" for base in (1000, 1024))
