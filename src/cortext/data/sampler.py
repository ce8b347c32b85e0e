"""Training batches balanced over recording days.

The scheme of the release (`model_training/dataset.py`): a batch has `batch_size` trials from
`days_per_batch` days; days are drawn without replacement, trials within a day with replacement.
Four things differ:

- a batch is a function of (seed, step), not of how many batches were drawn before, so resuming
  needs only the step;
- where the batch does not divide by the days, one trial fewer comes from each of some random days
  (the release may take
  several from the same day);
- days without trials are never drawn (the release fails on them);
- trials may be drawn from one band of lengths, which limits padding (`length_buckets`).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cortext.arguments import as_count, check_list
from cortext.errors import ConfigError


class DayBalancedSampler:
    """The sampler of batches: the trials in the batch of a step.

    Attributes:
        day_N: Int [N], the day of each trial.
        batch_size: Trials in a batch.
        days_per_batch: Different days in a batch; each gives `batch_size / days_per_batch` trials,
            give or take one.
        seed: Seed of the whole sequence of batches.
        must_include_days: Days that every batch has; negative ones count from the last day.
        n_bins_N: Int [N], the length of each trial; needed for length buckets.
        length_buckets: Bands of length. A batch draws one band, the same for all its days, and from
            each day only trials whose rank in length within that day falls into it. Bands are
            equally likely and ranks are drawn from a continuum, so that a trial is as likely as
            without bands, whatever the number of trials.
        n_days: Number of days, for negative `must_include_days` (default: the largest in `day_N`,
            plus one).

    Raises:
        ConfigError: For settings that cannot be met.
    """

    def __init__(
        self,
        day_N: np.ndarray,
        batch_size: int,
        days_per_batch: int,
        seed: int,
        must_include_days: Iterable[int] | None = None,
        n_bins_N: np.ndarray | None = None,
        length_buckets: int = 1,
        *,
        n_days: int | None = None,
    ) -> None:
        days = np.asarray(check_list(day_N, "day_N", "the day of each trial"))
        if days.size and days.dtype.kind not in "iu":
            raise ConfigError(f"day_N is of type {days.dtype}; whole numbers are needed")
        day_N = days.astype(np.int64)
        batch_size = as_count(batch_size, "batch_size", 1)
        days_per_batch = as_count(days_per_batch, "days_per_batch")
        self.days = np.unique(day_N)
        self.batch_size = batch_size
        self.days_per_batch = days_per_batch
        self.length_buckets = length_buckets
        self._key = as_count(seed, "seed")
        self._check(n_bins_N)
        last = int(self.days[-1]) + 1 if n_days is None else n_days
        self.must_include_days = self._included(must_include_days or (), last)
        self._others = np.setdiff1d(self.days, self.must_include_days)
        self._trials = {}
        for day in self.days.tolist():
            trials = np.flatnonzero(day_N == day)
            if n_bins_N is not None and length_buckets > 1:
                trials = trials[np.argsort(np.asarray(n_bins_N)[trials], kind="stable")]
            self._trials[day] = trials

    def _check(self, n_bins_N: np.ndarray | None) -> None:
        if not 1 <= self.days_per_batch <= self.batch_size:
            problem = f"days_per_batch is {self.days_per_batch} and batch_size is {self.batch_size}"
            raise ConfigError(f"{problem}; 1 <= days_per_batch <= batch_size is needed")
        if len(self.days) < self.days_per_batch:
            problem = (
                f"days_per_batch is {self.days_per_batch} and the data has {len(self.days)} days"
                " with trials"
            )
            raise ConfigError(problem, fix=f"set days_per_batch to at most {len(self.days)}")
        if self.length_buckets < 1 or (self.length_buckets > 1 and n_bins_N is None):
            raise ConfigError(
                f"length_buckets is {self.length_buckets}; at least 1, and the trials' lengths, are"
                " needed"
            )

    def _included(self, wanted: Iterable[int], n_days: int) -> np.ndarray:
        included = []
        for day in wanted:
            number = int(day) + n_days if day < 0 else int(day)
            if number not in self.days:
                raise ConfigError(
                    f"must_include_days names day {day}, which has no training trials (of {n_days}"
                    " days)"
                )
            if number in included:
                raise ConfigError(f"must_include_days names day {number} twice; name it once")
            included.append(number)
        if len(included) > self.days_per_batch:
            problem = (
                f"must_include_days names {len(included)} days and days_per_batch is"
                f" {self.days_per_batch}"
            )
            raise ConfigError(problem, fix="raise days_per_batch or name fewer days")
        return np.array(included, dtype=np.int64)

    def indices(self, step: int) -> np.ndarray:
        """Return the trials of batch `step`, int64 [B], day after day."""
        generator = self._generator(as_count(step, "step"))
        drawn = generator.choice(
            self._others, self.days_per_batch - len(self.must_include_days), replace=False
        )
        days = np.concatenate([self.must_include_days, drawn])
        # Share the batch evenly; the days that give one trial fewer are drawn at random.
        counts = np.full(len(days), -(-self.batch_size // len(days)))
        surplus = int(counts.sum()) - self.batch_size
        counts[generator.permutation(len(days))[:surplus]] -= 1
        band = int(generator.integers(self.length_buckets))
        chosen = []
        for day, count in zip(days.tolist(), counts.tolist(), strict=True):
            trials = self._trials[day]
            # A quantile and not a number of trials: a day with fewer trials than bands still has
            # one for every band. `minimum` because the product may round up to the length.
            quantiles = (band + generator.random(count)) / self.length_buckets
            chosen.append(
                trials[np.minimum((quantiles * len(trials)).astype(np.int64), len(trials) - 1)]
            )
        return np.concatenate(chosen)

    def _generator(self, step: int) -> np.random.Generator:
        """Return the generator of a step: the step is the highest word of Philox's counter.

        Batches then never share random numbers.
        """
        return np.random.Generator(np.random.Philox(key=self._key, counter=[0, 0, 0, step]))
