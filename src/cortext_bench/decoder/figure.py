"""The frontier of `cortext bench decoder` as a picture: word errors over time for each search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from cortext.evaluation.figures import BLUE, INK, MUTED, ORANGE, RULE, STYLE, save_picture
from cortext_bench.decoder.chosen import NEAR, OURS, PEER

COLOURS = {OURS: BLUE, PEER: ORANGE}
MARKERS = {OURS: "o", PEER: "s"}


def draw_frontier(result: Mapping[str, Any], path: Path) -> None:
    """Write a picture of each search's settings, word errors over processor time.

    Args:
        result: Result of `bench_decoder`.
        path: File to write; its ending names the format.
    """
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 4.4), layout="constrained")
        axes = figure.subplots()
        axes.set_xscale("log")
        for name, decoder in result["decoders"].items():
            _draw_search(axes, name, decoder)
        if PEER in result["decoders"]:
            _draw_level(axes, result["decoders"][PEER]["points"]["best"]["wer"])
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda ms, _: f"{ms:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set(
            xlabel="processor time for a frame of 80 ms, ms (median over utterances)",
            ylabel="word error rate, %",
        )
        axes.legend(title="one thread each, same words and posteriors", alignment="left")
        save_picture(figure, path)


def _draw_search(axes: Axes, name: str, decoder: Mapping[str, Any]) -> None:
    """Draw the settings of a search, and where they are there, its defaults."""
    colour = COLOURS.get(name, MUTED)
    ms, errors = _coordinates(decoder["frontier"])
    label = f"{name} {decoder['version']}"
    axes.plot(ms, errors, color=colour, marker=MARKERS.get(name, "^"), ms=4.5, label=label)
    if "default" in decoder["points"]:
        ms, errors = _coordinates([decoder["points"]["default"]])
        axes.plot(ms, errors, "*", color=colour, ms=12, label=f"{name}, default options")


def _coordinates(points: Sequence[Mapping[str, Any]]) -> tuple[list[float], list[float]]:
    """Return times in ms and word error rates in percent."""
    return (
        [point["cpu_ms_per_frame"] for point in points],
        [100 * point["wer"] for point in points],
    )


def _draw_level(axes: Axes, wer: float) -> None:
    """Draw the peer's lowest word errors and the band that counts as near."""
    low, high = 100 * wer, 100 * (wer + NEAR)
    axes.axhspan(low, high, color=RULE, alpha=0.35, lw=0)
    axes.annotate(
        f"{PEER}'s best, and up to {100 * NEAR:g} points more",
        (0.99, high),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        fontsize=8,
        color=INK,
    )
