"""Sweep the weights of a large language model by ranking n-best lists that it has scored.

The model's score of a sentence does not depend on its weight, so hundreds of weights take seconds.
But the lists come from one search: another `lm_weight` would find other sentences. Therefore
one more decoding measures the chosen weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cortext.decoding.nbest import Hypothesis
from cortext.decoding.options import DecoderOptions
from cortext.files import atomic_write, parse_json
from cortext.tables import json_text
from cortext.text.language import EN, Language
from cortext_lm.llm.large_model import ranked
from cortext_lm.llm.scoring import TokenScore
from cortext_tune.decoder.trial import word_errors
from cortext_tune.search import Search, Settings, TuningTrial, suggest
from cortext_tune.space import Space, settings_of, with_settings, within_space

Lists = Sequence[Sequence[tuple[Hypothesis, TokenScore]]]
"""Hypotheses of each utterance, each with the large model's score."""


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
    language: Language = EN,
) -> list[Reranked]:
    """Rank the lists by the options, by the n-gram alone, and then by weights that TPE draws.

    Args:
        lists: Scored hypotheses of each utterance.
        references: Normalised sentences, one for each list.
        options: Options of the decoder; those that are not swept stay as they are.
        space: The options that are swept, with their ranges.
        n_points: Number of weights that are drawn.
        seed: Seed of the draws.
        language: Normalisation of the sentences.

    Returns:
        The points in the order in which they were tried.
    """
    errors = [
        {
            hypothesis.text: word_errors(reference, hypothesis.text, language)
            for hypothesis, _ in one
        }
        for reference, one in zip(references, lists, strict=True)
    ]

    def measure(settings: Settings) -> Reranked:
        changed = with_settings(options, settings)
        best = [ranked(one, changed)[0].text for one in lists]
        return Reranked(settings, sum(of[text] for of, text in zip(errors, best, strict=True)))

    # The n-gram alone is one of the points: a large model that does harm is never chosen.
    points = [measure({}), measure({"llm.weight": 0.0})]
    search = Search("tpe", space, n_points, seed)
    while len(points) < n_points + 2:
        earlier = []
        for number, point in enumerate(points):
            tried = within_space(space, settings_of(options, space) | point.settings)
            earlier.append(TuningTrial(number, "finished", tried, point.errors))
        if (settings := suggest(search, earlier)) is None:
            break
        points.append(measure(settings))
    return points


def best_of(points: Sequence[Reranked]) -> Reranked:
    """Return the point with the fewest errors, the earliest of equals."""
    return min(points, key=lambda point: point.errors)


def write_lists(path: Path, lists: Lists, made_by: Mapping[str, Any]) -> None:
    """Write scored lists as JSON lines.

    Args:
        path: The file.
        lists: Scored hypotheses of each utterance; their words are left out.
        made_by: Origin of the lists, the first line.
    """
    lines: list[Any] = [dict(made_by)]
    for one in lists:
        lines.append(
            [asdict(replace(hypothesis, words=())) | asdict(score) for hypothesis, score in one]
        )
    atomic_write(path, "".join(f"{json_text(line)}\n" for line in lines).encode())


def read_lists(
    path: Path, made_by: Mapping[str, Any]
) -> list[list[tuple[Hypothesis, TokenScore]]] | None:
    """Return the lists in a file if their origin is `made_by`; hypotheses have no words."""
    try:
        first, *lines = (parse_json(line) for line in path.read_bytes().splitlines())
        if first != json.loads(json.dumps(dict(made_by))):
            return None
        lists = []
        for line in lines:
            scores = [TokenScore(one.pop("log_prob"), one.pop("n_tokens")) for one in line]
            hypotheses = [Hypothesis(**one | {"words": ()}) for one in line]
            lists.append(list(zip(hypotheses, scores, strict=True)))
        return lists
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
