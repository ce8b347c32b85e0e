"""Linear interpolation of several models into one, with weights fitted on held-out text.

The mixture is p(w | h) = sum_i l_i p_i(w | h). The weights l_i maximise the probability of the
held-out text, by expectation maximisation (Jelinek & Mercer, 1980). The written model lists every
n-gram that one of the models lists, with the mixture's exact probability. It backs off to all other
n-grams, with the weights that make the probabilities after each context sum to one (Stolcke, SRILM,
ICSLP 2002, calls this a static mixture):

    backoff(h) = (1 - sum_{listed w} p(w | h)) / (1 - sum_{listed w} p(w | h'))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cortext.decoding.ngram.vocabulary import UNK_ID
from cortext.errors import LanguageModelError
from cortext_lm.ngram.counts import Keys, joined, write_windows
from cortext_lm.ngram.database import Database
from cortext_lm.ngram.estimate import Estimated

_ITERATIONS = 200
_ENOUGH = 1e-7
"""Change of a weight; expectation maximisation ends when no weight changes by more."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """The weight of each model, and the perplexity of the held-out text.

    The perplexity is of its known words and sentence ends.
    """

    weights: tuple[float, ...]
    perplexities: tuple[float, ...]
    perplexity: float
    tokens: int


def fit_weights(
    database: Database,
    models: Sequence[Estimated],
    held_out: Path,
    renumber: np.ndarray,
    n_words: int,
) -> Mixture:
    """Fit the weights with which the models predict a held-out text best.

    Words outside the vocabulary are passed over. Raises LanguageModelError if no known word is
    left.

    Args:
        database: Database with the models' tables.
        models: The models.
        held_out: Word numbers on the disk (`corpus.Corpus.files`).
        renumber: Numbers of these words in the models, int64.
        n_words: Size of the vocabulary.
    """
    keys = models[0].keys
    order = models[0].order
    known = np.where(renumber < n_words, renumber, UNK_ID)
    write_windows(database, "held_windows", keys, held_out, order, known)
    database.run(
        f"CREATE TABLE held{order} AS SELECT key, count(*) AS times FROM (SELECT"
        f" {joined(keys, order)} AS key FROM held_windows) WHERE {keys.word('key', 0)} <> {UNK_ID}"
        " GROUP BY key"
    )
    database.run("DROP TABLE held_windows")
    columns = database.arrays(_held_out_query(models, keys, order))
    database.run(f"DROP TABLE held{order}")
    probabilities = np.stack([np.asarray(columns[f"p{i}"]) for i in range(len(models))], axis=1)
    times = np.asarray(columns["times"], np.float64)
    if not len(times):
        raise LanguageModelError(
            "the held-out text has no word of the vocabulary", fix="give text like the one meant"
        )
    weights = maximise(probabilities, times)
    return Mixture(
        tuple(weights.tolist()),
        tuple(_perplexity(probabilities[:, i], times) for i in range(len(models))),
        _perplexity(probabilities @ weights, times),
        int(times.sum()),
    )


def maximise(probabilities: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the weights [M] of the mixture that makes events most probable.

    Args:
        probabilities: [N, M], of each event under each model.
        times: [N], number of times that each event was seen.
    """
    weights = np.full(probabilities.shape[1], 1.0 / probabilities.shape[1])
    for _ in range(_ITERATIONS):
        share = probabilities * weights
        share *= (times / share.sum(axis=1) / times.sum())[:, None]
        updated: np.ndarray = share.sum(axis=0)
        if np.abs(updated - weights).max() < _ENOUGH:
            return updated
        weights = updated
    return weights


def mix(
    database: Database,
    models: Sequence[Estimated],
    weights: Sequence[float],
    step: Callable[[], None] = lambda: None,
) -> Estimated:
    """Return the mixture as one model named `mixed`; the tables of the models are dropped.

    Args:
        database: Database with the models' tables.
        models: The models, of the same order and vocabulary.
        weights: Weight of each model (`fit_weights`).
        step: Called as each order is done.
    """
    keys = models[0].keys
    order = models[0].order
    name = "mixed"
    each = ", ".join(f"p{i}" for i in range(len(models)))
    mixed = " + ".join(f"{weight!r}::DOUBLE * p{i}" for i, weight in enumerate(weights))
    kept = []
    for number in range(1, order + 1):
        listed = " UNION ".join(f"SELECT key FROM {model.name}_p{number}" for model in models)
        probabilities = _probabilities_query(
            models, keys, number, f"({listed})", f"mixed_p{number - 1}"
        )
        database.run(
            f"CREATE TABLE mixed_p{number} AS"
            f" SELECT key, {each}, {mixed} AS p FROM ({probabilities})"
        )
        if number > 1:
            # Where the listed words have all of the shorter context's mass, nothing is left to back
            # off to, and any weight will do; rounding must not make a weight negative.
            database.run(
                f"CREATE TABLE mixed_b{number} AS SELECT key, CASE WHEN shorter > 1 - 1e-9 THEN 1.0"
                " ELSE greatest(1 - longer, 0) / (1 - shorter) END AS backoff FROM (SELECT"
                f" {keys.prefix('n.key', number)} AS key, fsum(n.p) AS longer, fsum(shorter.p) AS"
                f" shorter FROM mixed_p{number} n JOIN mixed_p{number - 1} shorter ON shorter.key ="
                f" {keys.suffix('n.key', number)} GROUP BY ALL)"
            )
        kept.append(database.rows(f"SELECT count(*) FROM mixed_p{number}")[0][0])
        for model in models:
            database.run(f"DROP TABLE {model.name}_p{number}; DROP TABLE {model.name}_b{number}")
        step()
    return Estimated(name, keys, tuple(kept), tuple(kept), ())


def _probabilities_query(
    models: Sequence[Estimated], keys: Keys, number: int, ngrams: str, shorter: str
) -> str:
    """Return a query for the probability of n-grams under each model.

    A model backs off where it does not list the n-gram. Columns key, p0, p1, ...
    """
    if number == 1:
        tables = " JOIN ".join(
            f"{model.name}_p1 m{i}" + (f" ON m{i}.key = m0.key" if i else "")
            for i, model in enumerate(models)
        )
        return (
            f"SELECT m0.key AS key, {', '.join(f'm{i}.p AS p{i}' for i in range(len(models)))} FROM"
            f" {tables}"
        )
    columns = ", ".join(
        f"coalesce(m{i}.p, coalesce(b{i}.backoff, 1) * shorter.p{i}) AS p{i}"
        for i in range(len(models))
    )
    tables = " ".join(
        f"LEFT JOIN {model.name}_p{number} m{i} ON m{i}.key = n.key"
        f" LEFT JOIN {model.name}_b{number} b{i} ON b{i}.key = {keys.prefix('n.key', number)}"
        for i, model in enumerate(models)
    )
    return (
        f"SELECT n.key AS key, {columns} FROM {ngrams} n"
        f" JOIN {shorter} shorter ON shorter.key = {keys.suffix('n.key', number)} {tables}"
    )


def _held_out_query(models: Sequence[Estimated], keys: Keys, order: int) -> str:
    """Return a query for the probability of the n-grams of `held{order}` under each model.

    Columns times, p0, p1, ... N-grams filled with <s> are in no model, so they take the probability
    of their real part.
    """
    parts = [f"ngrams{order} AS (SELECT key FROM held{order})"]
    for number in range(order - 1, 0, -1):
        longer = keys.suffix("key", number + 1)
        parts.append(f"ngrams{number} AS (SELECT DISTINCT {longer} AS key FROM ngrams{number + 1})")
    for number in range(1, order + 1):
        query = _probabilities_query(models, keys, number, f"ngrams{number}", f"scored{number - 1}")
        parts.append(f"scored{number} AS ({query})")
    each = ", ".join(f"p{i}" for i in range(len(models)))
    return (
        f"WITH {', '.join(parts)} SELECT times, {each} FROM held{order} JOIN scored{order} USING"
        " (key) ORDER BY key"
    )


def _perplexity(probabilities: np.ndarray, times: np.ndarray) -> float:
    return float(np.exp(-(times * np.log(probabilities)).sum() / times.sum()))
