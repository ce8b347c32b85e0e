"""Cost of live decoding in PER and WER: streaming, causal smoothing, rolling z-scores.

    python benchmarks/live_cost.py [--demo runs/demo] [--seeds 5] [--json FILE]

The validation split of a demo run (`cortext demo`) is decoded again and again, trial after trial as
it was recorded. The recordings are z-scored over whole blocks, which takes the future; for rolling
z-scores they are first given the gains and offsets of a raw recording, other ones in every block,
drawn anew for each seed. A warm start knows the raw statistics of the block before. Differences to
the offline decoder are paired: the same trials, drawn again 2,000 times, give the interval.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.data.packed import PackedSplit, open_packed
from cortext.decoding import Decoder
from cortext.decoding.log_probs import greedy, log_softmax
from cortext.evaluation.recognise import Recognised, recognise
from cortext.evaluation.scores import TrialResult, rates
from cortext.provenance import provenance
from cortext.text.metrics import bootstrap_interval, edit_counts
from cortext_bench.harness import study_arguments, write_result
from cortext_live.core.acoustic_stream import (
    AcousticStream,
    Endpoint,
    EndpointOptions,
    PipelineOptions,
)
from cortext_live.core.pipeline import Pipeline

GAIN_SPREAD = 0.5
"""Standard deviation of the logarithm of a feature's gain on a day."""
OFFSET_SPREAD = 3.0
"""Standard deviation of a feature's offset on a day, in standard deviations of the feature."""
BLOCK_GAIN = 0.1
BLOCK_OFFSET = 0.3
"""The same two for the change from one block to the next."""


@dataclass
class Raw:
    """Raw gain and offset of each feature, float64 [C], in the block before and in this one."""

    gain_before_C: np.ndarray
    offset_before_C: np.ndarray
    gain_C: np.ndarray
    offset_C: np.ndarray

    @classmethod
    def draw(cls, n_features: int, generator: np.random.Generator) -> Raw:
        """Draw the gains and offsets of a day."""
        gain_C = np.exp(GAIN_SPREAD * generator.normal(size=n_features))
        offset_C = OFFSET_SPREAD * gain_C * generator.normal(size=n_features)
        later_gain_C = gain_C * np.exp(BLOCK_GAIN * generator.normal(size=n_features))
        return cls(
            gain_C,
            offset_C,
            later_gain_C,
            offset_C + BLOCK_OFFSET * gain_C * generator.normal(size=n_features),
        )


@dataclass
class Material:
    """The validation trials, as offline decoding found them, and what decodes them again."""

    found: Recognised
    before: PackedSplit
    decoder: Decoder

    @classmethod
    def open(cls, demo: Path) -> Material:
        """Decode a demo's validation split offline."""
        found = recognise(demo / "run", demo / "packed", "val", demo / "lm")
        return cls(
            found, open_packed(demo / "packed").split("train"), Decoder.from_dir(demo / "lm")
        )

    def features(self, number: int) -> np.ndarray:
        """Return the features of a trial, float32 [T, C], z-scored over its block."""
        split = self.found.data.split("val")
        bins_TC = split.batch([self.found.indices[number]]).features_BTC[0]
        return np.ascontiguousarray(bins_TC[: self.found.trials[number].n_bins], dtype=np.float32)

    def days(self) -> Iterator[tuple[str, list[int]]]:
        """Yield each session with the numbers of its trials, in the order of recording."""
        trials = self.found.trials
        for session in dict.fromkeys(trial.session for trial in trials):
            numbers = [number for number, trial in enumerate(trials) if trial.session == session]
            yield (
                session,
                sorted(numbers, key=lambda number: (trials[number].block, trials[number].trial)),
            )

    def statistics_before(self, session: str) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation of a day's last training block.

        Its features are z-scored.
        """
        of_day = [i for i in range(len(self.before)) if self.before.session(i) == session]
        last = max(int(self.before.block_N[i]) for i in of_day)
        rows = [i for i in of_day if int(self.before.block_N[i]) == last]
        bins = [self.before.batch([i]).features_BTC[0][: self.before.n_bins_N[i]] for i in rows]
        bins_TC = np.concatenate(bins).astype(np.float64)
        return bins_TC.mean(axis=0), bins_TC.std(axis=0)

    def decoded(self, logits: dict[int, np.ndarray]) -> list[TrialResult]:
        """Decode other logits of the trials."""
        inventory = self.found.model.inventory
        numbers = range(len(self.found.trials))
        nbests = self.decoder.decode_batch(
            [log_softmax(logits[number]) for number in numbers], inventory
        )
        return [
            replace(
                self.found.trials[number],
                logits_PV=logits[number],
                greedy=tuple(inventory.names(greedy(logits[number], inventory))),
                nbest=nbests[number],
            )
            for number in numbers
        ]


Features = Callable[[np.ndarray], np.ndarray]


def stream_days(
    material: Material, options: PipelineOptions, day_of: Callable[[str, AcousticStream], Features]
) -> list[TrialResult]:
    """Decode all trials through the stream.

    Args:
        material: Run, trials and decoder.
        options: Options of the stream.
        day_of: Called with a session and its new stream; prepares the day's first block and returns
            a function from a trial's features to those that are pushed.
    """
    logits = {}
    for session, numbers in material.days():
        stream = AcousticStream(material.found.model, session, options)
        features_of = day_of(session, stream)
        for number in numbers:
            logits[number] = stream.push(features_of(material.features(number)))
            stream.end_utterance()
    return material.decoded(logits)


def streamed(material: Material) -> tuple[list[TrialResult], dict[str, Any]]:
    """Decode all trials through the live pipeline, 20 ms at a time; compare with offline."""
    trials = []
    largest = 0.0
    n_same = 0
    for session, numbers in material.days():
        pipeline = Pipeline(material.found.model, material.decoder, session)
        for number in numbers:
            bins_TC = material.features(number)
            offline = material.found.trials[number]
            logits = [pipeline.push(bins_TC[t : t + 1]).logits_PV for t in range(len(bins_TC))]
            logits_PV = np.concatenate(logits)
            nbest = pipeline.finish()
            largest = max(largest, float(np.abs(logits_PV - offline.logits_PV).max()))
            n_same += offline.nbest is not None and nbest[0].text == offline.nbest[0].text
            symbols = material.found.model.inventory.names(
                greedy(logits_PV, material.found.model.inventory)
            )
            trials.append(replace(offline, logits_PV=logits_PV, greedy=tuple(symbols), nbest=nbest))
    return trials, {
        "largest_difference_of_logits": largest,
        "same_text": n_same,
        "n_trials": len(trials),
    }


def rolling(
    material: Material, raw: dict[str, Raw], start: str, smoothing: str = "published"
) -> list[TrialResult]:
    """Decode raw features that are z-scored as they arrive.

    Args:
        material: Run, trials and decoder.
        raw: Gains and offsets by session.
        start: `warm` (statistics of the block before), `cold`, or `frozen` (warm, never updated).
        smoothing: Smoothing of the stream.
    """

    def day_of(session: str, stream: AcousticStream) -> Features:
        day = raw[session]
        mean_C, std_C = material.statistics_before(session)
        before = mean_C * day.gain_before_C + day.offset_before_C, std_C * day.gain_before_C
        if start == "warm":
            stream.start_block(*before)

        def features_of(bins_TC: np.ndarray) -> np.ndarray:
            raw_TC = bins_TC * day.gain_C + day.offset_C
            return ((raw_TC - before[0]) / before[1] if start == "frozen" else raw_TC).astype(
                np.float32
            )

        return features_of

    normalise = "none" if start == "frozen" else "rolling"
    return stream_days(material, PipelineOptions(smoothing=smoothing, normalise=normalise), day_of)


def unnormalised(material: Material, raw: dict[str, Raw]) -> list[TrialResult]:
    """Decode raw features without z-scoring them."""

    def day_of(session: str, stream: AcousticStream) -> Features:
        day = raw[session]
        return lambda bins_TC: (bins_TC * day.gain_C + day.offset_C).astype(np.float32)

    return stream_days(material, PipelineOptions(), day_of)


def by_position(material: Material, runs: Sequence[list[TrialResult]]) -> dict[str, float]:
    """Return the PER of a day's first trial, of its next nine, and of the rest."""
    place = {number: i for _, numbers in material.days() for i, number in enumerate(numbers)}
    groups: dict[str, list[TrialResult]] = {"1": [], "2-10": [], "11-": []}
    for trials in runs:
        for number, trial in enumerate(trials):
            groups["1" if place[number] == 0 else "2-10" if place[number] < 10 else "11-"].append(
                trial
            )
    return {name: round(rates(group).per or 0.0, 4) for name, group in groups.items()}


def difference(
    offline: Sequence[TrialResult], runs: Sequence[list[TrialResult]], unit: str
) -> dict[str, Any]:
    """Return the error rate, its difference from offline and the 95 % interval over trials.

    Args:
        offline: Trials decoded offline.
        runs: The same trials decoded live, once a seed.
        unit: `phoneme` or `word`.
    """

    def pair(trial: TrialResult) -> tuple[Sequence[Any], Sequence[Any]]:
        if unit == "phoneme":
            return trial.phonemes or (), trial.greedy
        return (trial.reference or "").split(), (trial.text or "").split()

    lengths = np.array([len(pair(trial)[0]) for trial in offline])
    before = np.array([edit_counts(*pair(trial)).errors for trial in offline])
    after = np.mean(
        [[edit_counts(*pair(trial)).errors for trial in trials] for trials in runs], axis=0
    )
    interval = bootstrap_interval(after - before, lengths, 2000, 0, 0.95)
    return {
        "rate": float(after.sum() / lengths.sum()),
        "more": float((after - before).sum() / lengths.sum()),
        "ci95": list(interval),
    }


def cut_short(material: Material, silence_ms: float) -> dict[str, Any]:
    """Count the trials that the endpoint would end before their last phoneme."""
    inventory = material.found.model.inventory
    n_cut = 0
    for trial in material.found.trials:
        log_probs_PV = log_softmax(trial.logits_PV)
        endpoint = Endpoint(EndpointOptions(silence_ms=silence_ms), inventory)
        frames = (
            frame
            for frame in range(len(log_probs_PV))
            if endpoint.push(log_probs_PV[frame : frame + 1])
        )
        rest = greedy(log_probs_PV[next(frames, len(log_probs_PV)) :], inventory)
        n_cut += any(token != inventory.sil for token in rest)
    return {"silence_ms": silence_ms, "n_cut": n_cut, "n_trials": len(material.found.trials)}


def row(
    name: str, look_ahead_ms: float, material: Material, runs: Sequence[list[TrialResult]]
) -> dict[str, Any]:
    """Print a row of the table and return it.

    Args:
        name: Name of the row.
        look_ahead_ms: Bins that the decoder waits for, in milliseconds.
        material: Run, trials and decoder.
        runs: Trials decoded live, once a seed.
    """
    offline = material.found.trials
    per, wer = (difference(offline, runs, unit) for unit in ("phoneme", "word"))
    cells = []
    for each in (per, wer):
        low, high = (100 * bound for bound in each["ci95"])
        cells.append(
            f"{100 * each['rate']:.2f} | {100 * each['more']:+.2f} [{low:+.2f}, {high:+.2f}]"
        )
    print(f"| {name} | {look_ahead_ms:g} | {' | '.join(cells)} |", flush=True)
    return {
        "name": name,
        "look_ahead_ms": look_ahead_ms,
        "per": per,
        "wer": wer,
        "per_by_place": by_position(material, runs),
    }


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"))
    parser.add_argument("--seeds", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    material = Material.open(arguments.demo)
    n_features = material.found.model.n_features
    days = [session for session, _ in material.days()]
    generators = [np.random.default_rng(seed) for seed in range(arguments.seeds)]
    raws = [
        {session: Raw.draw(n_features, generator) for session in days} for generator in generators
    ]
    print(
        "| what | look-ahead, ms | PER, % | more than offline [95 %] | WER, % | more than offline"
        " [95 %] |"
    )
    print("|---|---|---|---|---|---|")
    rows = [row("offline: whole trials", 80, material, [list(material.found.trials)])]
    trials, parity = streamed(material)
    rows.append(row("streamed, 20 ms at a time", 80, material, [trials]))
    causal = stream_days(
        material,
        PipelineOptions(smoothing="causal"),
        lambda session, stream: lambda bins_TC: bins_TC,
    )
    rows.append(row("causal smoothing", 0, material, [causal]))
    for start, name in (
        ("warm", "rolling z-scores, warm start"),
        ("cold", "rolling z-scores, cold start"),
        ("frozen", "z-scores of the block before, kept"),
    ):
        rows.append(row(name, 80, material, [rolling(material, raw, start) for raw in raws]))
    rows.append(
        row(
            "rolling z-scores, warm start, causal smoothing",
            0,
            material,
            [rolling(material, raw, "warm", "causal") for raw in raws],
        )
    )
    rows.append(
        row(
            "raw features, not normalised",
            80,
            material,
            [unnormalised(material, raw) for raw in raws],
        )
    )
    print(f"streamed against offline: {json.dumps(parity)}")
    cuts = [cut_short(material, silence_ms) for silence_ms in (240, 400, 640, 800, 1200, 1500)]
    for cut in cuts:
        print(
            f"an end after {cut['silence_ms']:g} ms of silence cuts {cut['n_cut']} of"
            f" {cut['n_trials']} trials short"
        )
    settings = {
        "gain_spread": GAIN_SPREAD,
        "offset_spread": OFFSET_SPREAD,
        "block_gain": BLOCK_GAIN,
        "block_offset": BLOCK_OFFSET,
        "seeds": arguments.seeds,
    }
    figures = {
        "rows": rows,
        "streamed_against_offline": parity,
        "endpoint": cuts,
        "raw": settings,
        "provenance": provenance(),
    }
    write_result(arguments.json, figures)


if __name__ == "__main__":
    main()
