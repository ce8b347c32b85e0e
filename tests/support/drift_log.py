"""A usage log whose last day differs from the others."""

import json
from datetime import datetime
from pathlib import Path

import numpy as np

from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.log import LOG


def session(day: int) -> str:
    return f"t15.2026.01.{day + 1:02d}"


def write_log(
    root: Path, days: int = 5, per_day: int = 10, features: bool = True, silent: int | None = None,
    **more,
) -> Path:  # fmt: skip
    """A log of days, on the last of which all sentences are corrected.

    Electrode 0 of 8, with two features each, is dead on the day `silent`.
    """
    root.mkdir(exist_ok=True)
    heard = KeptFeatures(root)
    lines, number = [], 0
    began = int(datetime.fromisoformat("2026-01-01T10:00:00+00:00").timestamp())
    rng = np.random.default_rng(1)
    for day in range(days):
        for minute in range(per_day):
            when = f"2026-01-{day + 1:02d}T10:{minute:02d}:00+00:00"
            said = {"id": str(number), "when": when, "session": session(day)}
            lines.append(said | {"duration_s": 2.0, "text": "good morning"} | more)
            if day == days - 1:
                lines.append({"id": str(number), "when": when, "correction": "good evening"})
            if features:
                x_TC = rng.poisson(2.0, (100, 16)).astype(np.float32)
                if day == silent:
                    x_TC[:, [0, 8]] = 0
                heard.keep(began, number, x_TC)
            number += 1
    (root / LOG).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root
