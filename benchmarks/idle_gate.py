"""Measure the idle gate: false openings in idle hours against missed beginnings.

`--data` has a run and packed data of `cortext simulate --preset demo --seed SEED`. For each
modulation of inner speech the gate is fitted on idle recordings and validation trials, then judged
on other recordings. Each modulation is a piece with a file of its own; a finished one is not
measured again.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from cortext.data.session_files import write_session
from cortext.data.trial import Trial
from cortext.models import load_model
from cortext.text.pronunciation import pronounced
from cortext_data.simulate.articulators import articulate, targets
from cortext_data.simulate.brain import electrodes
from cortext_data.simulate.config import preset_config
from cortext_data.simulate.idle import ContinuousRecording, IdleConfig, continuous
from cortext_data.simulate.material import material_of
from cortext_data.simulate.neural import max_lead_bins, record
from cortext_data.simulate.plan import plan_days
from cortext_data.simulate.speech import utter, with_pauses
from cortext_live.core import gate_fit
from cortext_live.core.acoustic_stream import Endpoint, EndpointOptions
from cortext_live.core.gate import KEPT_MS, gate_for
from cortext_live.steps.stepping import TorchStepper

RESULT = Path(__file__).parent / "results" / "idle-gate.json"
MODULATIONS = (0.3, 0.5, 0.7)
FIT_HOURS, PIECE_S, TRIAL_BINS = 1, 1200.0, 3000
ODDS = np.arange(-3.0, 12.1, 0.5)


class Participant:
    """A simulated participant on the last day of the preset `demo`, z-scored as live."""

    def __init__(self, seed: int) -> None:
        self.config, material = material_of(preset_config("demo", (), seed), "demo")
        prompts, _ = material.prompts(self.config)
        self.day = plan_days(self.config, prompts)[-1]
        self.e = electrodes(self.config, self.day.history)
        self.prompts = prompts["val"] + prompts["test"]
        c, pad = self.config, max_lead_bins(self.config)
        spoken = []
        for number, prompt in enumerate(prompts["train"][:40]):
            said = with_pauses(pronounced(prompt.text, c.inventory, c.language), c.inventory)
            u = utter(said, c, self.day.day, 500, number)
            moved = articulate(u, c.undershoot, pad, targets(c.inventory, c.seed))
            spoken.append(record(moved, self.e, c, self.day.day, 500, number))
        speech_TC = np.concatenate(spoken)
        self.mean_C, self.sd_C = speech_TC.mean(axis=0), speech_TC.std(axis=0) + 1e-6

    def record(self, number: int, modulation: float, n_sentences: int = 0) -> ContinuousRecording:
        """Return a recording, z-scored with an earlier block of sentences of its day."""
        idle = IdleConfig(inner_modulation=modulation)
        seconds = 12.0 * n_sentences if n_sentences else PIECE_S
        number += 10_000 * round(10 * modulation)
        r = continuous(
            self.config, self.e, self.day.day, number, seconds, self.prompts,
            n_sentences=n_sentences, idle=idle,
        )  # fmt: skip
        z_TC = ((r.features_TC - self.mean_C) / self.sd_C).astype(np.float32)
        return ContinuousRecording(z_TC, r.stretches)

    def write_idle(self, out: Path, modulation: float) -> None:
        """Write idle recordings to fit on."""
        trials = []
        for number in range(round(FIT_HOURS * 3600 / PIECE_S)):
            x_TC = self.record(number, modulation).features_TC
            for first in range(0, len(x_TC) - TRIAL_BINS + 1, TRIAL_BINS):
                part_TC = x_TC[first : first + TRIAL_BINS]
                trials.append(
                    Trial(part_TC, self.day.session, 1, len(trials), None, None, "idle",
                          self.config.conventions)
                )  # fmt: skip
        write_session(out / self.day.session / "data_test.hdf5", trials)


def judge(data: Path, seed: int, modulation: float, hours: int, starts: int) -> dict[str, Any]:
    """Fit and judge the gate at one modulation; return counts by threshold."""
    person, model = Participant(seed), load_model(data / "run")
    idle = data / f"idle-{modulation:g}"
    if not idle.exists():
        person.write_idle(idle, modulation)
    card = gate_fit.fit_gate(data / "run", data / "packed", idle)
    network = gate_for(data / "run", TorchStepper(model))._network
    frame_ms = 80.0
    false, today = np.zeros(len(ODDS), int), 0
    by_kind: dict[str, int] = {}
    at = math.log(card.threshold / (1 - card.threshold))
    for number in range(hours * round(3600 / PIECE_S)):
        r = person.record(100 + number, modulation)
        windows = gate_fit.scan(model, r.features_TC, person.day.session)
        odds_P = _odds(network, windows)
        false += [gate_fit.openings(odds_P, o, frame_ms) for o in ODDS]
        for p in np.flatnonzero((odds_P[1:] >= at) & (odds_P[:-1] < at)):
            kind = next((s.kind for s in r.stretches if 4 * p + 10 < s.end_bin), "rest")
            by_kind[kind] = by_kind.get(kind, 0) + 1
        today += _today(windows, model)
    missed, n = np.zeros(len(ODDS), int), 0
    known = model.patch_size + model.smoothing.lost_bins
    in_time = round((KEPT_MS - gate_fit.LEAD_MS) / 20)
    for number in range(-(-starts // 50)):
        r = person.record(5000 + number, modulation, 50)
        odds_P = _odds(network, gate_fit.scan(model, r.features_TC, person.day.session))
        bin_P = 4 * np.arange(len(odds_P)) + known
        for s in r.stretches:
            if s.kind == "attempted speech":
                near_P = (bin_P >= s.first_bin) & (bin_P <= s.first_bin + in_time)
                missed += odds_P[near_P].max() < ODDS
                n += 1
    rows = [
        {
            "threshold": float(1 / (1 + np.exp(-o))), "false": int(f),
            "false_per_hour": f / hours, "false_high": gate_fit.poisson_high(int(f)) / hours,
            "missed": int(m), "missed_high": gate_fit.binomial_high(int(m), n),
        }
        for o, f, m in zip(ODDS, false, missed, strict=True)
    ]  # fmt: skip
    chosen = min(rows, key=lambda row: abs(row["threshold"] - card.threshold))
    return {
        "modulation": modulation, "seed": seed, "idle_hours": hours, "starts": n, "rows": rows,
        "chosen": chosen, "false_by_kind": by_kind, "today_false": today,
        "today_false_per_hour": today / hours,
    }  # fmt: skip


def _odds(network: Any, windows: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([gate_fit.log_odds(network, gate_fit.averaged(w, 80.0)) for w in windows])


def _today(windows: list[np.ndarray], model: Any) -> int:
    """Count the utterances that today's rule ends after speech and silence."""
    endpoint = Endpoint(EndpointOptions(), model.inventory, 80.0)
    count = 0
    for frame_V in np.concatenate(windows):
        reason = endpoint.push(frame_V[None])
        if reason is not None:
            count += reason == "silence"
            endpoint.reset()
    return count


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """Draw false openings an hour against missed beginnings."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for r in results:
        x = [100 * row["missed"] / r["starts"] for row in r["rows"]]
        axes.plot(x, [row["false_per_hour"] for row in r["rows"]], "o-", label=f"{r['modulation']}")
    axes.axhline(1, color="0.6", lw=0.8)
    axes.axvline(2, color="0.6", lw=0.8)
    axes.set(xlabel="missed beginnings, %", ylabel="false openings an hour", xlim=(-1, 30))
    axes.set_yscale("symlog", linthresh=0.1)
    axes.legend(title="inner speech")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure the missing cases, write the results and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--hours", type=int, default=10)
    parser.add_argument("--starts", type=int, default=500)
    options = parser.parse_args()
    results = []
    for modulation in MODULATIONS:
        piece = (
            options.data
            / f"gate-{modulation:g}-{options.hours}h-{options.starts}-{options.seed}.json"
        )
        if not piece.exists():
            found = judge(options.data, options.seed, modulation, options.hours, options.starts)
            piece.write_text(json.dumps(found, indent=1))
        results.append(json.loads(piece.read_text()))
        r = results[-1]
        print(modulation, r["chosen"], r["false_by_kind"], "today", r["today_false_per_hour"])
        RESULT.write_text(json.dumps({"results": results}, indent=1) + "\n")
    plot(results, RESULT.parents[2] / "docs" / "images" / "idle-gate.png")


if __name__ == "__main__":
    main()
