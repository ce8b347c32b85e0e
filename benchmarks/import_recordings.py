"""Speed and memory of `cortext import`, on synthetic recordings of a few GB.

    python benchmarks/import_recordings.py [--gigabytes 2] [--only t12-v5] [--json FILE]

Writes recordings as labs do: Brain-to-Text '24 in MATLAB v5, compressed and not, continuous bins in
MATLAB v7.3, and NWB. Imports each with the command, in a fresh process on one core, and prints
megabytes of session files a second, time and the largest resident memory. The sources lie in memory
(page cache) where it is large enough; the output goes to the disk.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cortext.provenance import provenance, version_of
from cortext_bench.harness import machine, markdown_table, study_arguments, write_result

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from foreign_files import (
    SENTENCES,
    Continuous,
    Written,
    counts,
    inner_speech_variables,
    power,
    save_v73,
    write_t12,
)
from foreign_nwb import write_nwb

MEAN_BINS = 320
TRIALS_A_FILE = 400
TRIALS_A_BLOCK = 40
IMPORT = """
import json, os, sys, time
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
from cortext.cli import run
def peak_kb():  # ru_maxrss would be at least that of the process which started this one
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
before_kb = peak_kb()
start_s = time.perf_counter()
status = run(sys.argv[1:])
wall_s = time.perf_counter() - start_s
print(json.dumps(dict(
    status=status, wall_s=wall_s, cpu_s=time.process_time(),
    peak_mb=peak_kb() / 1024, before_mb=before_kb / 1024, modules=len(sys.modules),
)))
"""
NWB_MAPPING = """
format: cortext-mapping
format_version: 1
reader: nwb
participant: t99
bin_ms: 20
features:
- {name: acquisition/threshold_crossings, kind: counts}
- {name: acquisition/spike_band_power, kind: power}
sentence: {name: prompt}
block: {name: block_id}
split: {name: purpose, train: [train], val: [val]}
"""
MAT_MAPPING = """
format: cortext-mapping
format_version: 1
reader: mat
participant: t99
bin_ms: 20
trials: {layout: epochs, epochs: goTrialEpochs}
features:
- {name: binnedTX, kind: counts}
- {name: spikePow, kind: power}
sentence: {name: trialCues, cues: cueList}
block: {name: blockNum, per: bin}
split: {val_blocks: 1}
"""


@dataclass(frozen=True)
class Case:
    """A format and how its source is written.

    write:  writes files into a folder until they hold so many bytes; returns the bytes of the
            variables of the largest file that the import reads, decompressed
    words:  arguments of `cortext import`, without the source
    """

    title: str
    write: Callable[[Path, float], int]
    words: Callable[[Path], list[str]]
    source: str = ""


def lengths(rng: np.random.Generator, n_trials: int) -> np.ndarray:
    """Return lengths of trials in bins, as spread out as sentences are."""
    return rng.integers(MEAN_BINS // 2, MEAN_BINS * 3 // 2, n_trials)


class Noise:
    """Recorded material for many trials: stretches of the same long noise.

    gzip finds no repetition: it looks back 32 KiB.
    """

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self._counts = counts(self.rng, 6 * MEAN_BINS, 256)
        self._power = power(self.rng, 6 * MEAN_BINS, 256)

    def counts(self, n_bins: int) -> np.ndarray:
        """Return uint8 [n_bins, 256]."""
        start = int(self.rng.integers(4 * MEAN_BINS))
        return self._counts[start : start + n_bins]

    def power(self, n_bins: int) -> np.ndarray:
        """Return float32 [n_bins, 256]."""
        start = int(self.rng.integers(4 * MEAN_BINS))
        return self._power[start : start + n_bins]


def days(n_bytes: float, of_one: float) -> Iterator[str]:
    """Yield the dates of as many files as hold so many bytes."""
    for number in range(max(1, round(n_bytes / of_one))):
        yield f"2022.{number // 28 + 1:02d}.{number % 28 + 1:02d}"


def write_competition(folder: Path, n_bytes: float, compress: bool) -> int:
    """Write sessions of Brain-to-Text '24: 2,048 bytes a bin, of which the import reads 1,280."""
    noise = Noise()
    largest = 0
    for day in days(n_bytes, TRIALS_A_FILE * MEAN_BINS * 2048):
        trials = []
        for number, n_bins in enumerate(lengths(noise.rng, TRIALS_A_FILE)):
            arrays = {f"tx{k}": noise.counts(n_bins) for k in (1, 2, 3, 4)}
            arrays["spikePow"] = noise.power(n_bins)
            sentence = SENTENCES[number % len(SENTENCES)]
            trials.append(Written(sentence, number // TRIALS_A_BLOCK + 1, arrays))
        write_t12(folder, {("train", f"t12.{day}"): trials}, compress)
        (folder / "competitionData" / "test").mkdir(exist_ok=True)
        n_bins = sum(len(trial.arrays["tx1"]) for trial in trials)
        largest = max(largest, n_bins * 1280)
    return largest


def write_continuous(folder: Path, n_bytes: float) -> int:
    """Write continuous bins as MATLAB v7.3, in which gzip is on: about 1 GB a file in memory."""
    noise = Noise()
    largest = 0
    per_file = min(1e9, n_bytes)
    for day in days(n_bytes, per_file):
        ends = np.cumsum(lengths(noise.rng, int(per_file / 1280 / MEAN_BINS)))
        starts = np.concatenate([[0], ends[:-1]])
        pairs = list(zip(starts, ends, strict=True))
        blocks = [number // TRIALS_A_BLOCK + 1 for number in range(len(pairs))]
        recorded = Continuous(
            {
                "binnedTX": np.concatenate([noise.counts(stop - start) for start, stop in pairs]),
                "spikePow": np.concatenate([noise.power(stop - start) for start, stop in pairs]),
            },
            blocks=np.repeat(blocks, ends - starts),
            go=np.array([(start + 1, stop) for start, stop in pairs]),
            delay=np.array([(start + 1, start + 1) for start, _ in pairs]),
            cues=np.arange(len(pairs)) % len(SENTENCES) + 1,
            cue_list=SENTENCES,
            bin_ms=20,
            chan_sets={"6v": np.arange(1, 257)},
        )
        save_v73(folder / f"t99.{day}.mat", inner_speech_variables(recorded))
        largest = max(largest, sum(array.nbytes for array in recorded.arrays.values()))
    return largest


def write_rig(folder: Path, n_bytes: float) -> int:
    """Write NWB files of a rig: 1,536 bytes a bin, about 1 GB a file, not compressed."""
    noise = Noise()
    largest = 0
    per_file = min(1e9, n_bytes)
    for day in days(n_bytes, per_file):
        trials = []
        for number, n_bins in enumerate(lengths(noise.rng, int(per_file / 1536 / MEAN_BINS))):
            arrays = {
                "threshold_crossings": noise.counts(n_bins).astype(np.int16),
                "spike_band_power": noise.power(n_bins),
            }
            sentence = SENTENCES[number % len(SENTENCES)]
            trials.append(Written(sentence, number // TRIALS_A_BLOCK + 1, arrays))
        write_nwb(folder / f"rig_{day}.nwb", trials, start=day)
        n_bins = sum(len(trial.arrays["spike_band_power"]) for trial in trials)
        largest = max(largest, n_bins * 1536)
    return largest


def mapped(reader: str, text: str) -> Callable[[Path], list[str]]:
    """Return the arguments of an import with a mapping, which is written beside the source."""

    def words(folder: Path) -> list[str]:
        path = folder.parent / f"{folder.name}.yaml"
        path.write_text(text)
        return [reader, "--mapping", str(path)]

    return words


CASES = {
    "t12-v5": Case(
        "`t12`, MATLAB v5, compressed",
        lambda folder, n_bytes: write_competition(folder, n_bytes, True),
        lambda _: ["t12"],
        "competitionData",
    ),
    "t12-v5-plain": Case(
        "`t12`, MATLAB v5, not compressed",
        lambda folder, n_bytes: write_competition(folder, n_bytes, False),
        lambda _: ["t12"],
        "competitionData",
    ),
    "mat-v7.3": Case("`mat`, MATLAB v7.3", write_continuous, mapped("mat", MAT_MAPPING)),
    "nwb": Case("`nwb`", write_rig, mapped("nwb", NWB_MAPPING)),
}


def measure(name: str, folder: Path, n_bytes: float) -> dict[str, Any]:
    """Write a source unless it is there, import it, and return the costs."""
    case = CASES[name]
    source, facts = folder / name, folder / f"{name}.json"
    if not facts.exists():
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir(parents=True)
        facts.write_text(json.dumps({"named_bytes": case.write(source, n_bytes)}))
    named_bytes = json.loads(facts.read_text())["named_bytes"]
    files = [path for path in source.rglob("*") if path.is_file()]
    for path in files:
        with path.open("rb", buffering=0) as file:  # into the page cache
            while file.read(1 << 24):
                pass
    out = folder / f"{name}-out"
    shutil.rmtree(out, ignore_errors=True)
    reader, *options = case.words(source)
    command = ["import", reader, str(source / case.source), *options, "--out", str(out)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, *command], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    *shown, last = done.stdout.splitlines()
    cost = json.loads(last)
    if cost["status"]:
        raise SystemExit("\n".join([*shown, done.stderr]))
    written = sum(path.stat().st_size for path in out.rglob("*.hdf5"))
    shutil.rmtree(out)
    return {
        "title": case.title,
        "files": len(files),
        "source_mb": sum(path.stat().st_size for path in files) / 1e6,
        "written_mb": written / 1e6,
        "mb_per_s": written / 1e6 / cost["wall_s"],
        "named_mb": named_bytes / 1e6,
        # VmHWM counts KiB: both in units of 10^6 bytes.
        "peak_over_named": cost["peak_mb"] * 1.048576 / (named_bytes / 1e6),
        **cost,
    }


def table(results: dict[str, dict[str, Any]]) -> str:
    """Return the results as a table."""
    columns = ["format", "source", "written", "time", "written a second", "peak memory", "named variables of the largest file", "ratio"]  # fmt: skip
    rows = []
    for found in results.values():
        peak_mb = found["peak_mb"] * 1.048576
        rows.append(
            [
                found["title"],
                f"{found['source_mb']:,.0f} MB",
                f"{found['written_mb']:,.0f} MB",
                f"{found['wall_s']:.1f} s",
                f"{found['mb_per_s']:.0f} MB",
                f"{peak_mb:,.0f} MB",
                f"{found['named_mb']:,.0f} MB",
                f"{found['peak_over_named']:.1f}",
            ]
        )
    return markdown_table(columns, rows)


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--gigabytes", type=float, default=2.0, help="of each source, decompressed")
    parser.add_argument("--only", choices=CASES, action="append", help="one of the cases")
    parser.add_argument("--folder", type=Path, help="where sources are kept and used again")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        results = {}
        for name in arguments.only or CASES:
            results[name] = measure(name, folder, arguments.gigabytes * 1e9)
            print(f"{name}: {results[name]['mb_per_s']:.0f} MB/s", file=sys.stderr, flush=True)
            if arguments.folder is None:
                shutil.rmtree(folder / name)
    print(table(results))
    facts = provenance()
    facts["versions"] |= {name: version_of(name) for name in ("h5py", "scipy", "pynwb")}
    settings = {"gigabytes": arguments.gigabytes}
    write_result(arguments.json, {"settings": settings, **results, "machine": machine(), **facts})


if __name__ == "__main__":
    main()
