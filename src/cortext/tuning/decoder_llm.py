"""Weights of a large language model, swept after decoding.

Lists that it has read are ranked anew, and nothing else.

What the model says of a sentence does not depend on its weight, so that hundreds of weights take
seconds. The lists are those of one search, though: another lm_weight would have found others.
Decoding again with the result says what it is worth.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cortext.decoding.llm.large_model import ranked
from cortext.decoding.llm.scoring import TextScore
from cortext.decoding.nbest import Hypothesis
from cortext.decoding.options import DecoderOptions
from cortext.files import atomic_write, parse_json
from cortext.tables import json_text
from cortext.tuning.decoder_trial import word_errors
from cortext.tuning.search import Search, Settings
from cortext.tuning.space import Space, settings_of, with_settings, within
from cortext.tuning.tpe import Told, suggest

Lists = Sequence[Sequence[tuple[Hypothesis, TextScore]]]
"""For each utterance its hypotheses, each with what the large model says of it."""


@dataclass(frozen=True)
class Reranked:
    """One point of the sweep: settings, and word errors of the lists ranked by them."""

    settings: Settings
    errors: int


def sweep(
    lists: Lists,
    references: Sequence[str],
    options: DecoderOptions,
    space: Space,
    n_points: int,
    seed: int,
) -> list[Reranked]:
    """What ranking by the options, by the n-gram alone and then by what TPE draws gives, in this
    order.

    Args:
        references: Normalised, one for each list.
    """
    errors = [
        {found.text: word_errors(said, found.text) for found, _ in one}
        for said, one in zip(references, lists, strict=True)
    ]

    def measure(settings: Settings) -> Reranked:
        changed = with_settings(options, settings)
        best = [ranked(one, changed)[0].text for one in lists]
        return Reranked(settings, sum(of[text] for of, text in zip(errors, best, strict=True)))

    found = [measure({}), measure({"llm.weight": 0.0})]
    search = Search("tpe", space, n_points, seed)
    while len(found) < n_points + 2:
        told = [
            Told(within(space, settings_of(options, space) | one.settings), one.errors)
            for one in found
        ]
        settings = suggest(search, told)
        if settings is None:
            break
        found.append(measure(settings))
    return found


def best_of(points: Sequence[Reranked]) -> Reranked:
    """The fewest errors; the earliest of equals."""
    return min(points, key=lambda point: point.errors)


def write_lists(path: Path, lists: Lists, made_by: Mapping[str, Any]) -> None:
    """Keep lists that a model has read: JSON lines, the first of them what they were made by."""
    lines: list[Any] = [dict(made_by)]
    for one in lists:
        lines.append([{**asdict(replace(found, words=())), **asdict(said)} for found, said in one])
    atomic_write(path, "".join(f"{json_text(line)}\n" for line in lines).encode())


def read_lists(
    path: Path, made_by: Mapping[str, Any]
) -> list[list[tuple[Hypothesis, TextScore]]] | None:
    """Lists that were kept, if they were made by the same; words have no times in them."""
    try:
        first, *lines = (parse_json(line) for line in path.read_bytes().splitlines())
        if first != json.loads(json.dumps(dict(made_by))):
            return None
        found = []
        for line in lines:
            said = [TextScore(one.pop("log_prob"), one.pop("n_tokens")) for one in line]
            found.append(
                [
                    (Hypothesis(**one | {"words": ()}), score)
                    for one, score in zip(line, said, strict=True)
                ]
            )
        return found
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
