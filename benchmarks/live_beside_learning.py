"""Time of a live step while `cortext recalibrate` learns on the same machine.

    python benchmarks/live_beside_learning.py --demo runs/demo [--seconds 60] [--rounds 3]
        [--json FILE]

The validation trials of a demo (`cortext demo`) are decoded at their own pace, each with a second of
rest behind it, as a server does it. Beside it runs, in turn: nothing; the service, which waits while
an utterance is decoded; the service with `--always`. Its log holds the demo's training trials, so
that it has work all the time. A step's time is the wait from a frame's last bin to its words.

At last the service works through such a log alone, in which every fifth sentence is corrected: its
processor time a sentence, and its most memory.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from cortext.data.packed import open_packed
from cortext.decoding import Decoder
from cortext.evaluation.decoder_options import options_for
from cortext.provenance import provenance
from cortext_bench.harness import machine, markdown_table, study_arguments, write_result
from cortext_live.core.decoder import no_long_pauses
from cortext_live.core.pipeline import Pipeline
from cortext_live.steps.stepping import open_stepper
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.speaking import note_speaking
from cortext_live.usage.writer import UsageLog, UtteranceRecord

CHUNK_BINS = 4
REST_S = 1.0
MODES = {"nothing": None, "service": (), "service --always": ("--always",)}
SENTENCES = 400


def write_log(folder: Path, demo: Path, corrected_every: int = 1) -> None:
    """Write a usage log with features: training trials as they were spoken, some of them corrected.

    Args:
        folder: The log.
        demo: The demo.
        corrected_every: One in so many is corrected.
    """
    data = open_packed(demo / "packed")
    with UsageLog(folder, data.conventions, kept_features=KeptFeatures(folder)) as log:
        for number, trial in enumerate(itertools.islice(data.trials("train"), SENTENCES)):
            features_TC = trial.features_TC.astype(np.float32)
            seconds = len(features_TC) * data.conventions.bin_ms / 1000
            log.append(UtteranceRecord(number, trial.session, seconds, trial.sentence), features_TC)
            log.keep_features(features_TC)
            if number % corrected_every == 0:
                log.correct(number, trial.sentence)


def command(demo: Path, log: Path, chain: Path, *options: str) -> list[str]:
    """Return the command that follows a log."""
    parts = ["recalibrate", demo / "run", "--log", log, "--lm", demo / "lm", "--out", chain]
    name = Path(sys.executable).with_name("cortext")
    return [str(each) for each in (name, *parts, "--settle", "0", *options)]


@contextmanager
def beside(demo: Path, log: Path, options: tuple[str, ...] | None) -> Iterator[None]:
    """Run the service within the context, with a new chain each time."""
    if options is None:
        yield
        return
    chain = Path(tempfile.mkdtemp()) / "chain"
    process = subprocess.Popen(command(demo, log, chain, *options), stdout=subprocess.DEVNULL)
    try:
        while not (chain / "learner").is_dir():
            time.sleep(0.1)
        time.sleep(3)
        yield
        if process.poll() is not None:
            raise SystemExit("the service has ended")
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(chain.parent)


def cost(demo: Path, folder: Path) -> dict[str, float]:
    """Return what the service takes for a log from beginning to end.

    Returns:
        `seconds_a_sentence`, of the processor, and `most_mb`, the most memory at a time.
    """
    write_log(folder / "log", demo, corrected_every=5)
    parts = command(demo, folder / "log", folder / "chain", "--once")
    process = subprocess.Popen(parts, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        raise SystemExit("the service has failed")
    seconds = used.ru_utime + used.ru_stime
    return {"seconds_a_sentence": seconds / SENTENCES, "most_mb": used.ru_maxrss / 1000}


def steps_ms(
    pipeline: Pipeline, trials: list[np.ndarray], log: Path, seconds: float
) -> list[float]:
    """Return the milliseconds of each step of trials that are decoded at their own pace."""
    found: list[float] = []
    frame_s = CHUNK_BINS * pipeline.conventions.bin_ms / 1000
    end_s = time.monotonic() + seconds
    for features_TC in itertools.cycle(trials):
        if time.monotonic() > end_s:
            return found
        note_speaking(log, True)
        due_s = time.monotonic()
        for first in range(0, len(features_TC), CHUNK_BINS):
            due_s += frame_s
            time.sleep(max(0.0, due_s - time.monotonic()))
            update = pipeline.push(features_TC[first : first + CHUNK_BINS])
            found += update.stage_ms["total"]
        pipeline.finish()
        note_speaking(log, False)
        time.sleep(REST_S)
    return found


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    demo: Path = arguments.demo
    options, _ = options_for(demo / "run", demo / "lm", None)
    stepper = open_stepper(demo / "run")
    pipeline = Pipeline(None, Decoder.from_dir(demo / "lm", options), stepper=stepper)
    trials = [
        np.asarray(trial.features_TC, np.float32)
        for trial in itertools.islice(open_packed(demo / "packed").trials("val"), 12)
    ]
    found: dict[str, list[list[float]]] = {mode: [] for mode in MODES}
    with tempfile.TemporaryDirectory() as folder, no_long_pauses():
        log = Path(folder) / "log"
        write_log(log, demo)
        steps_ms(pipeline, trials, log, 5.0)  # warms up
        for _ in range(arguments.rounds):
            for mode, options_of_mode in MODES.items():
                with beside(demo, log, options_of_mode):
                    found[mode].append(steps_ms(pipeline, trials, log, arguments.seconds))
    with tempfile.TemporaryDirectory() as folder:
        alone = cost(demo, Path(folder))
    rows = []
    for mode, rounds in found.items():
        medians = [float(np.median(each)) for each in rounds]
        p99s = [float(np.percentile(each, 99)) for each in rounds]
        rows.append(
            {
                "beside": mode,
                "steps": sum(map(len, rounds)),
                "median_ms": float(np.median(medians)),
                "p99_ms": float(np.median(p99s)),
                "p99_ms_of_rounds": p99s,
                "largest_ms": max(map(max, rounds)),
            }
        )
    p99_alone_ms = rows[0]["p99_ms"]
    columns = ["beside", "steps", "median, ms", "p99, ms", "largest, ms", "p99 / alone"]
    table = [
        [
            row["beside"], row["steps"], f"{row['median_ms']:.2f}", f"{row['p99_ms']:.2f}",
            f"{row['largest_ms']:.1f}", f"{row['p99_ms'] / p99_alone_ms:.2f}",
        ]
        for row in rows
    ]  # fmt: skip
    print(markdown_table(columns, table))
    print(f"alone: {alone['seconds_a_sentence']:.2f} s a sentence, {alone['most_mb']:.0f} MB")
    write_result(arguments.json, {"rows": rows, "alone": alone, **machine(), **provenance()})


if __name__ == "__main__":
    main()
