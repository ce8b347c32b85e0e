"""The vocabularies that limit trials of an evaluation (`vocabularies.json`), and their search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cortext.decoding.decoder import Decoder, part_of
from cortext.decoding.nbest import NBest
from cortext.errors import DataError
from cortext.files import read_json
from cortext.processes import Progress
from cortext.tables import json_text
from cortext.text.inventory import Inventory

VOCABULARIES = "vocabularies.json"


@dataclass(frozen=True)
class Vocabulary:
    """Words that some trials of an evaluation are made of; the others may hold any word.

    Attributes:
        name: Name of the vocabulary.
        words: Its words, normalised.
        trials: Numbers of the trials.
    """

    name: str
    words: tuple[str, ...]
    trials: tuple[int, ...]


def write_vocabularies(directory: Path, vocabularies: Sequence[Vocabulary]) -> None:
    """Write the file `vocabularies.json` of an evaluation directory."""
    content = {each.name: {"words": each.words, "trials": each.trials} for each in vocabularies}
    (directory / VOCABULARIES).write_text(json_text(content, indent=1) + "\n", encoding="utf-8")


def read_vocabularies(directory: str | Path) -> tuple[Vocabulary, ...]:
    """Return the vocabularies of an evaluation directory; most have none.

    Raises:
        DataError: For a file that cannot be read.
    """
    path = Path(directory) / VOCABULARIES
    if not path.is_file():
        return ()
    try:
        content = read_json(path)
        vocabularies = tuple(
            Vocabulary(name, tuple(each["words"]), tuple(each["trials"]))
            for name, each in content.items()
        )
        if not all(
            each.words
            and all(isinstance(word, str) for word in each.words)
            # Not `isinstance`, to which True is a number of a trial.
            and all(type(number) is int for number in each.trials)
            for each in vocabularies
        ):
            raise ValueError("words and numbers of trials are needed")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"cannot be read: {error}", where=path, fix="evaluate or import again"
        ) from None
    return vocabularies


def decode_limited(
    decoder: Decoder,
    log_probs: Sequence[np.ndarray],
    inventory: Inventory,
    vocabularies: Sequence[Vocabulary],
    numbers: Sequence[int | str],
    *,
    threads: int = 1,
    progress: Progress | None = None,
    context: str = "",
) -> list[NBest]:
    """Return the n-best list of each trial; trials of a vocabulary hold its words alone.

    A trial of several vocabularies holds the words of the last one.

    Args:
        decoder: Decoder of all other trials.
        log_probs: float32 [P, V] of each trial.
        inventory: Tokens of the columns, in order.
        vocabularies: Vocabularies of an evaluation.
        numbers: Number of each trial, by which vocabularies name them.
        threads: Number of threads that decode.
        progress: Called with trials done and in all.
        context: See `Decoder.stream`; the same for all trials.
    """
    words_of: dict[int | str, tuple[str, ...]] = {
        number: each.words for each in vocabularies for number in each.trials
    }
    groups: dict[frozenset[str] | None, list[int]] = {}
    for n, number in enumerate(numbers):  # by the words: vocabularies may have the same ones
        limit = frozenset(words_of[number]) if number in words_of else None
        groups.setdefault(limit, []).append(n)
    by_position: dict[int, NBest] = {}
    for part, (limit, chosen) in enumerate(groups.items()):
        searcher = decoder if limit is None else decoder.only(words_of[numbers[chosen[0]]])
        arrays = [log_probs[n] for n in chosen]
        share = part_of(progress, part, len(groups))
        lists = searcher.decode_batch(arrays, inventory, threads, share, context)
        by_position |= zip(chosen, lists, strict=True)
    return [by_position[n] for n in range(len(numbers))]
