"""Interpolated modified Kneser-Ney estimation, as KenLM's lmplz does it, in SQL.

Chen & Goodman, An Empirical Study of Smoothing Techniques for Language Modeling, Computer Speech &
Language 13 (1999); Heafield et al., Scalable Modified Kneser-Ney Language Model Estimation, ACL
2013. With `c` the adjusted count of an n-gram (`cortext_lm.ngram.counts`), `h` its first
words, `w` its last and `h'` = `h` without its first word:

    p(w | h) = (c(h w) - D(c)) / sum_v c(h v)  +  gamma(h) p(w | h')
    gamma(h) = (D(1) N1(h) + D(2) N2(h) + D(3) N3+(h) + pruned(h)) / sum_v c(h v)

Unigrams are interpolated with the uniform distribution over all words, `</s>` and `<unk>`, which is
where the mass of `<unk>` comes from. `<s>` is a context, never an outcome. N-grams that are pruned,
because they are rare or hold a word outside the vocabulary, count in all sums and in the discounts;
N1 to N3+ leave them out, and pruned(h), the sum of their counts, goes to the shorter context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cortext.decoding.ngram.vocabulary import BOS_ID
from cortext.errors import LanguageModelError
from cortext_lm.ngram.counts import Keys
from cortext_lm.ngram.database import Database

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
"""Discounts of an order whose counts-of-counts give no valid ones (tiny texts), as by lmplz
--discount_fallback.
"""


@dataclass(frozen=True, slots=True)
class Discounts:
    """Discounts on counts 1, 2 and 3 or more of one order, and whether they are the fallback."""

    values: tuple[float, float, float]
    fallback: bool

    @staticmethod
    def of(counts_of_counts: Sequence[int]) -> Discounts:
        """Estimate discounts by equation 26 of Chen & Goodman (1999).

        They follow from the numbers of n-grams with adjusted count 1 to 4.
        """
        n = (0, *counts_of_counts)
        if all(n[1:4]):
            y = n[1] / (n[1] + 2.0 * n[2])
            first, second, third = (j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3))
            if 0 <= first <= 1 and 0 <= second <= 2 and 0 <= third <= 3:
                return Discounts((first, second, third), fallback=False)
        return Discounts(FALLBACK_DISCOUNTS, fallback=True)

    @property
    def sql(self) -> str:
        """The discount of the column `adjusted`."""
        first, second, third = self.values
        return (
            f"CASE adjusted WHEN 1 THEN {first!r} WHEN 2 THEN {second!r} ELSE {third!r} END::DOUBLE"
        )


@dataclass(frozen=True, slots=True)
class Estimated:
    """A model in the database.

    Tables `{name}_p{1..order}` (key, p) and `{name}_b{2..order}` (key, backoff).

    `_p` holds the probability of each n-gram, `_b2` the weight of backing off from each context of
    one word, and so on.

    Attributes:
        seen: Different n-grams of each order in the text.
        kept: n-grams of each order in the model.
        discounts: Discounts of each order.
    """

    name: str
    keys: Keys
    seen: tuple[int, ...]
    kept: tuple[int, ...]
    discounts: tuple[Discounts, ...]

    @property
    def order(self) -> int:
        """Length of the longest n-grams."""
        return len(self.kept)


def estimate(
    database: Database,
    name: str,
    keys: Keys,
    n_words: int,
    order: int,
    step: Callable[[], None] = lambda: None,
) -> Estimated:
    """Estimate the model of the counts `{name}_n{1..order}` (`counts.count`), which are dropped.

    Args:
        database: Database with the counts.
        name: Name of the text.
        order: The highest order.
        keys: How n-grams are packed into columns.
        n_words: Size of the vocabulary with the three special words; words that never occur get the
            uniform share.
        step: Called as each order is done.

    Raises:
        LanguageModelError: If no sentence is long enough for the order.
    """
    seen = []
    kept = []
    discounts = []
    for number in range(1, order + 1):
        n_seen, n_kept, discount = _statistics(database, f"{name}_n{number}", keys, number)
        if not n_seen:
            raise LanguageModelError(
                f"no sentence is long enough for an n-gram of order {number}; use a lower order"
            )
        _contexts(database, name, keys, number, discount)
        _probabilities(database, name, keys, number, discount, n_words)
        database.run(f"DROP TABLE {name}_n{number}")
        seen.append(n_seen if number > 1 else n_seen + 1)  # <s> is written but never an outcome
        kept.append(n_kept if number > 1 else n_words)
        discounts.append(discount)
        step()
    return Estimated(name, keys, tuple(seen), tuple(kept), tuple(discounts))


def _statistics(
    database: Database, table: str, keys: Keys, number: int
) -> tuple[int, int, Discounts]:
    counts = ", ".join(f"count(*) FILTER (adjusted = {value})" for value in (1, 2, 3, 4))
    (row,) = database.rows(
        f"SELECT count(*), count(*) FILTER (kept), {counts} FROM {table} WHERE"
        f" {keys.real('key', number)}"
    )
    return row[0], row[1], Discounts.of(row[2:])


def _contexts(database: Database, name: str, keys: Keys, number: int, discount: Discounts) -> None:
    """Make the table `_b` of one order, with the sum of counts after each context."""
    values = discount.values
    which = ("adjusted = 1", "adjusted = 2", "adjusted > 2")
    mass = " + ".join(
        f"{value!r}::DOUBLE * count(*) FILTER ({condition} AND kept)"
        for value, condition in zip(values, which, strict=True)
    )
    pruned = "coalesce(sum(adjusted) FILTER (NOT kept), 0)::DOUBLE"
    database.run(
        f"CREATE TABLE {name}_b{number} AS SELECT key, total, mass / total AS backoff FROM (SELECT"
        f" {keys.prefix('key', number)} AS key, sum(adjusted)::DOUBLE AS total, {mass} + {pruned}"
        f" AS mass FROM {name}_n{number} WHERE {keys.real('key', number)} GROUP BY ALL)"
    )


def _probabilities(
    database: Database, name: str, keys: Keys, number: int, discount: Discounts, n_words: int
) -> None:
    """Make the table `_p` of one order."""
    own = f"(adjusted - {discount.sql}) / total"
    if number == 1:
        # <s> has probability 1 as lmplz writes it; it is never asked for.
        database.run(
            f"CREATE TABLE {name}_p1 AS SELECT word.range AS key, CASE WHEN word.range = {BOS_ID}"
            f" THEN 1.0::DOUBLE ELSE coalesce({own}, 0) + backoff / {n_words - 1} END AS p FROM"
            f" range({n_words}) word CROSS JOIN {name}_b1 LEFT JOIN {name}_n1 n ON n.key ="
            " word.range"
        )
        return
    database.run(
        f"CREATE TABLE {name}_p{number} AS SELECT n.key, {own} + context.backoff * shorter.p AS p"
        f" FROM {name}_n{number} n"
        f" JOIN {name}_b{number} context ON context.key = {keys.prefix('n.key', number)}"
        f" JOIN {name}_p{number - 1} shorter ON shorter.key = {keys.suffix('n.key', number)}"
        f" WHERE kept AND {keys.real('n.key', number)}"
    )
