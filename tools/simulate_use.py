"""Makes up a log of daily use, to show what `cortext report use` draws: nobody spoke any of it.

    python tools/simulate_use.py runs/use-log
    cortext report use runs/use-log --out use.html

Four months of a person who decodes at home on most days, for an hour or for half a day, rates most
sentences and corrects some of those that are wrong. Speed and errors are of the order that Card et
al. (2024) report.
"""

import argparse
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np

from cortext.text import normalize
from cortext_data.simulate.sentences import splits
from cortext_live.usage.log import LOG
from cortext_live.usage.writer import UtteranceRecord

FIRST = datetime(2026, 1, 12, tzinfo=timezone(timedelta(hours=-8)))
N_DAYS = 118
SENTENCES = [normalize(sentence.text) for sentence in splits(2000, 1, 1, 0).train]
WORDS = sorted({word for sentence in SENTENCES for word in sentence.split()})


def utterances(rng: np.random.Generator, day: int, start: datetime) -> list[dict]:
    """The lines of one day; with the weeks there are fewer errors and more speed."""
    learnt = 1 - np.exp(-day / 45)
    error = 0.045 - 0.02 * learnt + rng.normal(0, 0.005)
    pace = 27 + 7 * learnt + rng.normal(0, 1.2)
    end = start + timedelta(hours=float(np.clip(rng.lognormal(0.6, 0.6), 0.3, 7)))
    when = start
    lines = []
    while when < end:
        pause_s = rng.exponential(18) if rng.random() > 0.012 else rng.uniform(400, 3600)
        meant = SENTENCES[rng.integers(len(SENTENCES))]
        duration_s = 60 * len(meant.split()) / max(pace * rng.lognormal(0, 0.22), 5)
        when += timedelta(seconds=pause_s + duration_s)
        decoded = " ".join(
            WORDS[rng.integers(len(WORDS))] if rng.random() < error else w for w in meant.split()
        )
        id_ = f"{day}-{len(lines)}"
        session = f"sim.{start:%Y.%m.%d}"
        lines.append(
            UtteranceRecord(id_, session, duration_s, decoded, "simulated", when=when).to_json()
        )
        lines += feedback_on(rng, id_, decoded, meant, when + timedelta(seconds=3))
    return lines


def feedback_on(
    rng: np.random.Generator, id_: str, decoded: str, meant: str, when: datetime
) -> list[dict]:
    """A rating of most utterances; a correction of some that need one."""
    wrong = sum(a != b for a, b in zip(decoded.split(), meant.split(), strict=True))
    rating = (
        "right"
        if not wrong
        else "mostly right"
        if wrong == 1 and len(meant.split()) > 3
        else "wrong"
    )
    about = {"id": id_, "when": when.isoformat(timespec="milliseconds")}
    said = [about | {"rating": rating}] if rng.random() < 0.93 else []
    return [*said, about | {"correction": meant}] if wrong and rng.random() < 0.4 else said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="directory to write the log to")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    lines = []
    for day in range(N_DAYS):
        at_home = not 61 <= day < 70  # nine days away
        if at_home and rng.random() < 0.62:
            lines += utterances(
                rng, day, FIRST + timedelta(days=day, hours=float(rng.uniform(8.5, 15)))
            )
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / LOG).write_text("".join(json.dumps(line) + "\n" for line in lines))
    print(f"{arguments.out / LOG}: {len(lines)} lines, simulated")


if __name__ == "__main__":
    main()
