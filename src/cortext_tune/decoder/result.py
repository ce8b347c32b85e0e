"""The result of a search for decoder options: a table, a picture, and `options.yaml`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from matplotlib.axes import Axes

from cortext.config import to_mapping
from cortext.decoding.options import DecoderOptions
from cortext.files import atomic_write
from cortext.text.metrics import bootstrap_interval
from cortext_tune.comparison import COLOURS, OTHERS, TrialPoint, draw, write_rows
from cortext_tune.decoder.material import UtterancePart
from cortext_tune.decoder.space import DecoderSearch
from cortext_tune.search import TuningTrial
from cortext_tune.space import Space

if TYPE_CHECKING:
    from cortext_tune.decoder.sweep import Reranked

N_BOOT = 1000
"""Bootstrap samples of an interval."""


@dataclass(frozen=True)
class Rate:
    """Word error rate of a part with its 95 % interval, fractions."""

    wer: float
    low: float
    high: float
    n_utterances: int
    n_words: int


@dataclass(frozen=True)
class OptionErrors:
    """Error rates and time of options.

    Attributes:
        tuned: Rate on the utterances that options were chosen on; slightly too low.
        ms_per_frame: Time on the same utterances: processor time, with a large model wall time.
        held_out: Rate on other utterances; None where there are none.
        degraded: Part that was missing, such as a large model that failed.
    """

    name: str
    options: dict[str, Any]
    tuned: Rate
    ms_per_frame: float
    held_out: Rate | None = None
    degraded: str | None = None

    @property
    def wer(self) -> float:
        """Word error rate on the utterances tuned on."""
        return self.tuned.wer


def judged(
    name: str, options: Mapping[str, Any], part: UtterancePart, metrics: Mapping[str, Any]
) -> OptionErrors:
    """Turn a job's metrics into a row of the table.

    Args:
        name: Name of the options in the table.
        options: The options as plain values.
        part: The utterances that were decoded.
        metrics: Metrics of a `DecodeJob`.
    """
    errors_B = np.array(metrics["errors"])
    length_B = np.array(part.lengths)
    low, high = bootstrap_interval(errors_B, length_B, N_BOOT, 0, 0.95)
    assert low is not None  # every reference has a word
    assert high is not None
    rate = Rate(
        float(errors_B.sum() / length_B.sum()), low, high, len(errors_B), int(length_B.sum())
    )
    return OptionErrors(
        name, dict(options), rate, metrics["ms_per_frame"], None, metrics["degraded"]
    )


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    Attributes:
        out: The search directory.
        trials: All trials, by number.
        judged: Rates of the start, the given options, the best, and the best with a large model.
        options: The content of `options.yaml`.
        search: The settings of the search.
        n_words: Reference words of the utterances that a trial decodes.
        space: The searched options, with their ranges.
        sweep: Weights of a large model that were tried by ranking; None without a sweep.
    """

    out: Path
    trials: list[TuningTrial]
    judged: list[OptionErrors]
    options: DecoderOptions
    search: DecoderSearch
    n_words: int
    space: Space
    sweep: Sequence[Reranked] | None = None

    def ranked(self) -> list[TuningTrial]:
        """Return finished trials from best to worst, then the others by number."""
        return sorted(
            self.trials,
            key=lambda one: (one.value is None or one.state != "finished", one.value or 0.0),
        )

    def wer(self, trial: TuningTrial) -> float | None:
        """Return the word error rate of a finished trial on its utterances."""
        return sum(trial.metrics["errors"]) / self.n_words if trial.state == "finished" else None

    def to_json(self) -> dict[str, Any]:
        """Return the result for `--json`, trials from best to worst."""
        trials = [
            {
                "number": trial.number,
                "state": trial.state,
                "settings": trial.settings,
                "wer": self.wer(trial),
                "ms_per_frame": trial.metrics.get("ms_per_frame"),
                "value": trial.value,
                "reason": _lacking(trial),
            }
            for trial in self.ranked()
        ]
        return {
            "out": str(self.out),
            "options_file": str(self.out / "options.yaml"),
            "options": to_mapping(self.options),
            "time_weight": self.search.time_weight,
            "judged": [asdict(row) for row in self.judged],
            "sweep": None if self.sweep is None else [asdict(point) for point in self.sweep],
            "trials": trials,
        }


def write_results(tuned: Tuned) -> None:
    """Write `options.yaml`, `trials.csv`, `trials.png`, and with a large model `sweep.csv`."""
    text = yaml.safe_dump(to_mapping(tuned.options), sort_keys=False, allow_unicode=True)
    atomic_write(tuned.out / "options.yaml", text.encode())
    keys = list(tuned.space)
    rows = []
    for trial in tuned.ranked():
        settings = [trial.settings.get(key) for key in keys]
        measured = [tuned.wer(trial), trial.metrics.get("ms_per_frame"), trial.value]
        rows.append([trial.number, trial.state, *settings, *measured, _lacking(trial)])
    write_rows(
        tuned.out / "trials.csv",
        ["trial", "state", *keys, "wer", "ms_per_frame", "value", "reason"],
        rows,
    )
    if tuned.sweep is not None:
        names = list(dict.fromkeys(key for point in tuned.sweep for key in point.settings))
        swept = [
            [*(point.settings.get(key) for key in names), point.errors] for point in tuned.sweep
        ]
        write_rows(tuned.out / "sweep.csv", [*names, "errors"], swept)
    _draw(tuned)


def _lacking(trial: TuningTrial) -> str | None:
    """Return the reason of a failure, or the missing part, such as a large model without memory."""
    return trial.reason or trial.metrics.get("degraded")


def _draw(tuned: Tuned) -> None:
    finished = [trial for trial in tuned.ranked() if trial.state == "finished"]
    # The worst trials would compress the axis of the others.
    finished = finished[: max(5, 3 * len(finished) // 4)]
    colours = {trial.number: OTHERS for trial in finished}
    colours |= {trial.number: colour for trial, colour in zip(finished, COLOURS, strict=False)}

    def draw_top(axes: Axes) -> None:
        """Draw word errors over time."""
        for trial in reversed(finished):
            ms = trial.metrics["ms_per_frame"]
            wer = 100 * (tuned.wer(trial) or 0.0)
            axes.plot(ms, wer, "o", color=colours[trial.number], ms=5)
            if colours[trial.number] != OTHERS or trial.number == 0:
                axes.annotate(
                    str(trial.number),
                    (ms, wer),
                    xytext=(4, 3),
                    textcoords="offset points",
                    fontsize=8,
                )
        axes.set_xscale("log")
        axes.set(
            xlabel="ms per frame",
            ylabel="WER (%)",
            title=f"the best {len(finished)} trials; trial 0 is the start",
        )

    points = [
        TrialPoint(
            trial.settings,
            trial.value if trial.value is not None else math.nan,
            colours[trial.number],
        )
        for trial in finished
    ]
    name = (
        "WER (%)"
        if not tuned.search.time_weight
        else f"WER (%) + {tuned.search.time_weight:g} * ms"
    )
    draw(tuned.out / "trials.png", draw_top, tuned.space, points, name)
