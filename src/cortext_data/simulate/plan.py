"""The plan of a simulation: days, blocks, splits and the sentence of each trial."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from importlib import resources
from itertools import groupby, pairwise

from cortext.data.trial import SPLITS
from cortext_data.simulate.config import SimulatorConfig
from cortext_data.simulate.months import later_days, later_trials, regular_day

FIRST_DAY = date(2025, 1, 6)
"""A Monday; the days of a regular plan are Mondays, Wednesdays and Fridays."""
HELD_OUT = ("val", "test")


@dataclass(frozen=True)
class Prompt:
    """A sentence to attempt.

    Attributes:
        text: The sentence.
        corpus: `handwritten`, `grammar`, or the text file's name.
        spoken: Its tokens with pauses (`speech.with_pauses`); None: those of an English sentence.
    """

    text: str
    corpus: str
    spoken: tuple[str, ...] | None = None


@dataclass(frozen=True)
class PlannedTrial:
    """One trial: its number in its block, its split, and its sentence."""

    number: int
    split: str
    prompt: Prompt


@dataclass(frozen=True)
class PlannedBlock:
    """Trials recorded without a break; features are z-scored over them."""

    number: int
    trials: tuple[PlannedTrial, ...]


@dataclass(frozen=True)
class PlannedDay:
    """One session.

    Attributes:
        history: Days since implantation of all sessions so far, this one last.
    """

    session: str
    history: tuple[int, ...]
    blocks: tuple[PlannedBlock, ...]

    @property
    def day(self) -> int:
        """Day since implantation."""
        return self.history[-1]

    @property
    def n_trials(self) -> int:
        """Trials of all splits."""
        return sum(len(block.trials) for block in self.blocks)

    def blocks_with(self, split: str) -> Iterator[PlannedBlock]:
        """Return the blocks that hold a trial of the split."""
        return (
            block for block in self.blocks if any(trial.split == split for trial in block.trials)
        )


@dataclass(frozen=True)
class _Block:
    day: int
    session: str
    number: int
    splits: tuple[str, ...]
    corpus: str | None = None


def plan_days(config: SimulatorConfig, prompts: Mapping[str, Sequence[Prompt]]) -> list[PlannedDay]:
    """Return the days of a simulation, with the prompts of every split dealt to its trials.

    Args:
        config: The simulation.
        prompts: As many of each split as `trial_counts` says, in order.
    """
    blocks = _blocks(config)
    waiting = {split: iter(prompts[split]) for split in SPLITS}
    days: list[PlannedDay] = []
    history: tuple[int, ...] = ()
    for day, members in groupby(blocks, key=lambda block: block.day):
        history = (*history, day)
        listed = list(members)
        planned = tuple(_planned(block, waiting) for block in listed)
        days.append(PlannedDay(listed[0].session, history, planned))
    return days


def trial_counts(config: SimulatorConfig) -> dict[str, int]:
    """Return the number of trials by split."""
    blocks = _blocks(config)
    counts = Counter(split for block in blocks for split in block.splits)
    return {split: counts[split] for split in SPLITS}


def _blocks(config: SimulatorConfig) -> list[_Block]:
    if config.plan == "t15":
        return _t15_blocks(config)
    blocks = _regular_blocks(config)
    return [*blocks, *_later_blocks(config)] if config.plan == "months" else blocks


def _planned(block: _Block, waiting: dict[str, Iterator[Prompt]]) -> PlannedBlock:
    trials = []
    for number, split in enumerate(block.splits):
        prompt = next(waiting[split])
        trials.append(
            PlannedTrial(number, split, replace(prompt, corpus=block.corpus or prompt.corpus))
        )
    return PlannedBlock(block.number, tuple(trials))


def _regular_blocks(config: SimulatorConfig) -> list[_Block]:
    """Return days alike: training blocks, then blocks in which val and test trials alternate."""
    numbers = {"val": config.val_per_day, "test": config.test_per_day}
    places = [((i + 0.5) / n, split) for split, n in numbers.items() for i in range(n)]
    held_out = tuple(split for _, split in sorted(places))
    train = ("train",) * config.train_per_day
    days = [regular_day(index) for index in range(config.n_days)]
    return [block for day in days for block in _blocks_of_day(config, day, train, held_out)]


def _later_blocks(config: SimulatorConfig) -> list[_Block]:
    """Return the later days of a plan of months: training blocks, then those that judge."""
    judged = ("val",) * config.further_per_day
    return [
        block
        for day in later_days(config)
        for block in _blocks_of_day(config, day, ("train",) * later_trials(config, day), judged)
    ]


def _blocks_of_day(
    config: SimulatorConfig, day: int, train: tuple[str, ...], held_out: tuple[str, ...]
) -> list[_Block]:
    session = f"sim.{FIRST_DAY + timedelta(days=day - 1):%Y.%m.%d}"
    pieces = [*_pieces(train, config), *_pieces(held_out, config)]
    return [_Block(day, session, number, splits) for number, splits in enumerate(pieces, start=1)]


def _pieces(splits: tuple[str, ...], config: SimulatorConfig) -> list[tuple[str, ...]]:
    """Divide the trials as evenly as can be into blocks of at most `trials_per_block`."""
    n_blocks = -(-len(splits) // config.trials_per_block)
    bounds = [len(splits) * i // n_blocks for i in range(n_blocks + 1)] if n_blocks else [0]
    return [splits[start:end] for start, end in pairwise(bounds)]


def _t15_blocks(config: SimulatorConfig) -> list[_Block]:
    """Return the blocks of participant T15 as the release's table lists them.

    The table gives held-out blocks as "Val/Test". Here their trials alternate, test first, so that
    test gets the odd one: 1,476 test and 1,452 validation trials, 24 apart, as the release's 1,450
    and 1,426 are.
    """
    with resources.files("cortext_data.simulate").joinpath("t15_blocks.csv").open() as file:
        rows = list(csv.DictReader(file))
    blocks = []
    for row in rows:
        n = int(row["sentences"])
        splits = ("train",) * n if row["split"] == "train" else (("test", "val") * n)[:n]
        session = f"sim.{row['date'].replace('-', '.')}"
        blocks.append(_Block(int(row["day"]), session, int(row["block"]), splits, row["corpus"]))
    return blocks
