"""Attacks on what is fitted to a run: its idle gate and its confidences. A row says what is given.

A damaged file is an error with one line, also `confidence.yaml`: a calibration that is left out in
silence would show other confidences than the user expects. Only one of other weights, another
language model or other options is left out, with a line.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from attack_process import check_all
from refusals import refused
from safetensors.torch import load_file, save_file

from cortext.decoding.confidence import SENTENCE_SIGNALS, WORD_SIGNALS, Logistic, Signal
from cortext.errors import ConfigError
from cortext.evaluation.fit.confidence import FittedConfidence
from cortext.models.storage import write_tensors
from cortext_live.core.gate import GateCard, GateNetwork, Operating, read_gate, write_gate

N_TOKENS = 3
N_SIGNALS = 2 * (2 * N_TOKENS + 1)
SPOTS = ("gate.yaml", "gate.safetensors", "confidence.yaml")


def make_run(folder: Path) -> Path:
    """A run with weights, a gate and confidences."""
    folder.mkdir(exist_ok=True)
    checksum = write_tensors(folder / "model.safetensors", {"a": torch.zeros(1)}, {})
    card = GateCard(
        weights=checksum,
        threshold=0.9,
        measured=[Operating(0.9, 0.0, 3.0, 0.0, 0.1)],
        idle_hours=1.0,
        beginnings=20,
        data="data",
        idle=None,
        created="2026-01-01T00:00:00+00:00",
        version="0",
    )
    zeros_S = np.zeros(N_SIGNALS, np.float32)
    zeros_SD, zeros_D = np.zeros((N_SIGNALS, 2), np.float32), np.zeros(2, np.float32)
    write_gate(folder, GateNetwork(zeros_S, zeros_S, zeros_SD, zeros_D, zeros_D, 0.0), card)
    measured = {"n": 9, "right": 0.5, "brier_skill": None, "auroc": None, "ece": 0.1}
    confidence = {
        "words": regression(WORD_SIGNALS),
        "sentences": regression(SENTENCE_SIGNALS),
        "weights": checksum,
        "decoder_options": ["0123456789abcdef"],
        "language_model": {"path": "lm", "checksum": "0"},
        "fitted_on": {"data": "data", "split": "val", "trials": 3, "strengths": [0.0]}
        | dict.fromkeys(("words", "sentences", "posteriors"), measured),
        "seconds": 1.0,
        "created": "2026-01-01T00:00:00+00:00",
        "version": "0",
    }
    (folder / "confidence.yaml").write_text(yaml.safe_dump(confidence, sort_keys=False))
    return folder


def regression(names: tuple[str, ...]) -> dict[str, Any]:
    signal = {"mean": 0.0, "scale": 1.0, "weight": 0.5}
    return {"intercept": 0.0, "signals": {name: dict(signal) for name in names}}


def read(run: Path, name: str) -> object:
    return (
        FittedConfidence.read(run) if name == "confidence.yaml" else read_gate(run, 80.0, N_TOKENS)
    )


@dataclass(frozen=True)
class Attack:
    """A change of one file.

    file: its name
    name: what is done to it
    do: called with its path
    says: a pattern that the line of the refusal has
    """

    file: str
    name: str
    do: Callable[[Path], object]
    says: str

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"


def text(content: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(content)


def without(key: str) -> Callable[[Path], object]:
    def do(path: Path) -> None:
        kept = yaml.safe_load(path.read_text())
        del kept[key]
        path.write_text(yaml.safe_dump(kept, sort_keys=False))

    return do


def put(value: object, *keys: str) -> Callable[[Path], object]:
    """Put a value at a place of a YAML file."""

    def do(path: Path) -> None:
        content = section = yaml.safe_load(path.read_text())
        for key in keys[:-1]:
            section = section[key]
        section[keys[-1]] = value
        path.write_text(yaml.safe_dump(content, sort_keys=False))

    return do


def tensor(name: str, value: torch.Tensor | None) -> Callable[[Path], object]:
    """Write a safetensors file without our checksum, one tensor of it changed."""

    def do(path: Path) -> None:
        tensors = load_file(path) | ({} if value is None else {name: value})
        if value is None:
            del tensors[name]
        save_file(tensors, path)

    return do


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def gigabyte(path: Path) -> None:
    os.truncate(path, 1 << 30)


def bomb(path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 8)}]" for n in range(8)]
    path.write_text("\n".join(lines))


HUGE_SHAPE = b'{"bias":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
FIGURES = {
    "threshold": 0.9,
    "false_per_hour": 0.0,
    "false_high": 3.0,
    "missed": 0.0,
    "missed_high": 0.1,
}
SIGNAL = ("words", "signals", "entropy")
ATTACKS = [
    *(Attack(file, "nested aliases", bomb, "more than 100,000 values") for file in SPOTS[::2]),
    *(Attack(file, "a gigabyte", gigabyte, "1,073,741,824 bytes") for file in SPOTS),
    *(Attack(file, "a pipe", pipe, "not a regular file|no idle gate") for file in SPOTS),
    *(Attack(file, "a directory", directory, "[Dd]irectory|[Nn]o such device|no idle gate") for file in SPOTS),
    *(Attack(file, "no text", lambda path: path.write_bytes(b"\xff\xfe\0" * 9), "not a text file|cannot be read") for file in SPOTS),
    *(Attack(file, "nothing", text(""), "missing key|cannot be read") for file in SPOTS),
    *(Attack(file, "a key of its own", put(1, "a\x1b[31m"), "unknown key") for file in SPOTS[::2]),
    *(Attack(file, "another format", put(2, "format_version"), "format_version is 2") for file in SPOTS[::2]),
    *(Attack(file, "no weights", without("weights"), "missing key weights") for file in SPOTS[::2]),
    Attack("gate.yaml", "none", lambda path: path.unlink(), "the run has no idle gate"),
    Attack("gate.yaml", "false openings without a bound", put([FIGURES | {"false_high": None}], "measured"), "one is a number, the other is not"),
    Attack("gate.yaml", "a bound below its figure", put([FIGURES | {"missed_high": -0.1}], "measured"), "missed is 0.0 with upper bound -0.1"),
    Attack("gate.yaml", "thresholds that fall", put([FIGURES, FIGURES | {"threshold": 0.5}], "measured"), "the measured thresholds do not rise"),
    Attack("gate.yaml", "no threshold", without("threshold"), "missing key threshold"),
    Attack("gate.yaml", "a threshold of NaN", put(float("nan"), "threshold"), "threshold is nan"),
    Attack("gate.yaml", "a threshold of 1", put(1, "threshold"), "threshold is 1"),
    Attack("gate.yaml", "another run's", put("00000000", "weights"), "fitted to other weights"),
    Attack("gate.yaml", "figures of text", put([{"threshold": "high"}], "measured"), "measured.threshold"),
    Attack("gate.safetensors", "none", lambda path: path.unlink(), "No such file"),
    Attack("gate.safetensors", "a tensor less", tensor("bias", None), "other tensors"),
    Attack("gate.safetensors", "a tensor more", tensor("more", torch.zeros(1)), "other tensors"),
    Attack("gate.safetensors", "NaN", tensor("hidden_D", torch.tensor([0.0, np.nan])), "not finite"),
    Attack("gate.safetensors", "a number that no float32 holds", tensor("bias", torch.tensor([1e300], dtype=torch.float64)), "not finite"),
    Attack("gate.safetensors", "two biases", tensor("bias", torch.zeros(2)), "cannot be read"),
    Attack("gate.safetensors", "no bias", tensor("bias", torch.zeros(0)), "cannot be read"),
    Attack("gate.safetensors", "a matrix less", tensor("hidden_SD", torch.zeros(N_SIGNALS)), "shapes"),
    Attack("gate.safetensors", "other signals", tensor("mean_S", torch.zeros(5)), "shapes"),
    Attack("gate.safetensors", "complex numbers", tensor("bias", torch.zeros(1, dtype=torch.complex64)), "complex64"),
    Attack("gate.safetensors", "a shape of 4 TB", lambda path: path.write_bytes(len(HUGE_SHAPE).to_bytes(8, "little") + HUGE_SHAPE), "cannot be read"),
    Attack("confidence.yaml", "no regression", without("words"), "missing key words"),
    Attack("confidence.yaml", "a weight of NaN", put(float("nan"), *SIGNAL, "weight"), "without bound"),
    Attack("confidence.yaml", "an infinite mean", put(float("inf"), *SIGNAL, "mean"), "without bound"),
    Attack("confidence.yaml", "a scale of 0", put(0.0, *SIGNAL, "scale"), "not above 0"),
    Attack("confidence.yaml", "a scale of 1e-300", put(1e-300, *SIGNAL, "scale"), "without bound"),
    Attack("confidence.yaml", "a mean of 1e308", put(1e308, *SIGNAL, "mean"), "without bound"),
    Attack("confidence.yaml", "an intercept of NaN", put(float("nan"), "words", "intercept"), "intercept"),
    Attack("confidence.yaml", "a number of 5,000 digits", put(10**4000, "seconds"), "a number has"),
    Attack("confidence.yaml", "other signals", put({}, "words", "signals"), "signals are none"),
    Attack("confidence.yaml", "a list of signals", put([1], "words", "signals"), "words.signals"),
]  # fmt: skip


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    sound = make_run(tmp_path / "sound")
    assert all(read(sound, file) is not None for file in SPOTS)

    def check(attack: Attack) -> None:
        run = tmp_path / "run"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(sound, run)
        attack.do(run / attack.file)
        with refused(attack.says, most_s=10, error=ConfigError) as caught:
            read(run, attack.file)
        assert str(caught.value.where).startswith(str(run))
        assert caught.value.fix
        assert "cannot be read: the idle gate cannot be read" not in str(caught.value)

    check_all(ATTACKS, check)


def test_a_gate_of_other_tokens_is_refused(tmp_path: Path) -> None:
    with refused("fitted to other tokens", most_s=10):
        read_gate(make_run(tmp_path), 80.0, N_TOKENS + 1)


def test_a_regression_of_the_largest_numbers_gives_probabilities() -> None:
    largest = Signal(mean=9e99, scale=1e-9, weight=9e90)
    found = Logistic(9e99, {"a": largest, "b": Signal(-9e99, 1e-9, -9e90)})
    p_N = found(np.array([[0.0, 0.0], [1e6, -1e6]]))
    assert ((p_N >= 0) & (p_N <= 1)).all()


def test_a_directory_in_the_place_of_confidences_cannot_be_dropped(tmp_path: Path) -> None:
    (tmp_path / "confidence.yaml").mkdir()
    with refused("confidence.yaml", most_s=10):
        FittedConfidence.drop(tmp_path)
