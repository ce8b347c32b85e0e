"""The picture of `cortext bench llm`: word errors of every way, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from cortext.evaluation.figures import BLUE, INK, ORANGE, STYLE, panels

ROW_IN = 0.27


def word_errors(results: Sequence[Mapping[str, Any]]) -> Figure:
    """A panel for each result of `bench_llm`, a row for each way; the line is its 95 % interval.

    What has a large model in it is orange.
    """
    with matplotlib.rc_context(STYLE | {"axes.grid.axis": "x", "ytick.labelcolor": INK}):
        heights = [ROW_IN * len(result["ways"]) for result in results]
        figure, axes = panels(heights, left=2.3, top=0.3, bottom=0.45, gap=0.4)
        for result, (axis,) in zip(results, axes, strict=True):
            ways = result["ways"]
            axis.set_title(
                f"{result['input']['reported']} utterances of {result['input']['source']}",
                color=INK,
            )
            axis.set_yticks(range(len(ways)), list(ways))
            axis.set_ylim(len(ways) - 0.5, -0.5)
            for place, (name, way) in enumerate(ways.items()):
                colour, (low, high) = ORANGE if "LLM" in name else BLUE, way["wer_ci95"]
                axis.plot([100 * low, 100 * high], [place, place], color=colour)
                axis.plot([100 * way["wer"]], [place], color=colour, marker="o", markersize=5)
                words = f"{100 * way['wer']:.1f}"
                axis.annotate(
                    words, (100 * high, place), (6, 0), textcoords="offset points", va="center"
                )
        axes[-1, 0].set_xlim(0, 1.08 * axes[-1, 0].get_xlim()[1])
        axes[-1, 0].set_xlabel("word errors, %")
    return figure
