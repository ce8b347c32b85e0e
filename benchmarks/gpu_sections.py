"""The sections of `gpu_check.py`: each runs one part on the device and on the CPU.

Bounds are relative to the largest expected value. float32 differs by the order of sums. bfloat16
keeps 8 bits of a number and float16, which cuDNN's GRU computes in under autocast, keeps 11.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cortext.data import open_packed, pack
from cortext.decoding.ngram import LanguageModel
from cortext.evaluation import evaluate
from cortext.evaluation.settings import LargeModelFiles
from cortext.models import build_model, load_model
from cortext.models.precision import autocast, full_float32
from cortext.training import Callback, Trainer, read_train_config
from cortext.training.loss import ctc_loss
from cortext_data.simulate import simulate
from cortext_live.steps.stepping import TorchStepper

if TYPE_CHECKING:
    from gpu_check import Checks

ROOT = Path(__file__).resolve().parents[1]
FP32, BF16 = 1e-3, 5e-2
"""Bounds for float32, and for bfloat16 or float16."""
MOST_GRADIENT_ERROR = 0.1
"""Bound for the gradient of any parameter in 16 bits, as a share of its norm in float32."""
MOST_S = 400
"""Seconds that a program started by a section may take."""
STEPS = 10
"""Batches of a training that is compared."""

SMALL = {"dropout": 0.0, "n_units": 64, "n_layers": 2, "n_heads": 2, "head_units": 32}
# The bound is drawn on the device; one that is fixed is the same on both.
ATTENTION = {"context_frames": 25, "train_context_frames": [25, 25]}
MODELS: dict[str, dict[str, Any]] = {
    "gru": {"kind": "gru", "n_units": 64, "n_layers": 2, "rnn_dropout": 0.0},
    "gru of diphones": {
        "kind": "gru", "n_units": 64, "n_layers": 2, "rnn_dropout": 0.0, "diphones": True,
        "intermediate_layer": 1,
    },
    "triple_gru": {"kind": "triple_gru", "rnn_dropout": 0.0}
    | {f"{name}_units": 32 for name in ("noise", "clean", "noisy")}
    | {f"{name}_layers": 1 for name in ("noise", "clean", "noisy")},
    "transformer": {"kind": "transformer", **SMALL, **ATTENTION},
    "chunked transformer": {
        "kind": "transformer", **SMALL, **ATTENTION, "attention": "chunked", "chunk_frames": 4
    },
    "bidirectional transformer": {"kind": "transformer", **SMALL, "attention": "bidirectional"},
}  # fmt: skip
"""Sections `model` by name, without dropout."""
LIVE = ("gru", "gru of diphones", "triple_gru", "transformer")
"""Models that decode live."""
STILL = {"white_noise_std": 0.0, "constant_offset_std": 0.0, "random_cut": 0}


class Course(Callback):
    """Losses and norms of gradients of a training that logs every batch."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.norms: list[float] = []

    def on_train(self, trainer: Trainer, step: int, values: dict[str, Any]) -> None:
        """See `Callback`."""
        self.losses.append(values["train_loss"])
        self.norms.append(values["grad_norm"])


def recordings(checks: Checks) -> Path:
    """Return packed recordings of two days, simulated once; the text for an n-gram is beside."""
    packed = checks.folder / "packed"
    if not packed.is_dir():
        simulate(checks.folder / "data", "tiny", workers=1)
        pack(checks.folder / "data", packed)
    return packed


def ngram(checks: Checks) -> Path:
    """Return a language model of the simulated text, built once."""
    lm = checks.folder / "lm"
    if not lm.is_dir():
        recordings(checks)
        LanguageModel.build([checks.folder / "data" / "text" / "lm.txt"], 4, lm)
    return lm


def settings(model: str, n_batches: int, precision: str = "fp32", **changes: Any) -> dict[str, Any]:
    """Return a configuration of few batches, each logged, without random numbers on the device.

    The learning rate and epsilon move the weights, and small differences stay small.
    """
    config = {**MODELS[model], "input_network": {"input_layer_dropout": 0.0}}
    return {
        "model": config,
        "dataset": {"batch_size": 8, "days_per_batch": 2, "data_transforms": STILL},
        **{f"lr_{name}": 0.02 for name in ("max", "min", "max_day", "min_day")},
        **{f"lr_warmup_steps{which}": 0 for which in ("", "_day")},
        **{f"lr_decay_steps{which}": 100 for which in ("", "_day")},
        "epsilon": 0.1,
        "num_training_batches": n_batches,
        "batches_per_train_log": 1,
        "batches_per_val_step": n_batches,
        "precision": precision,
        **changes,
    }


def train(
    checks: Checks, config: Mapping[str, Any], name: str, device: str, pieces: tuple[int, ...] = ()
) -> Course:
    """Train in `checks.folder / name` and return the losses.

    Args:
        checks: Holds the recordings.
        config: A configuration.
        name: Name of the run.
        device: Device to train on.
        pieces: Batches after which the run is closed and resumed; none trains to the end at once.
    """
    course = Course()
    for piece, n_batches in enumerate((*pieces, None)):
        with Trainer(
            config,
            recordings(checks),
            checks.folder / name,
            device=device,
            resume=piece > 0,
            callbacks=[course],
            progress=False,
        ) as trainer:
            trainer.run(n_batches)
    return course


def check_training(checks: Checks) -> None:
    """Compare losses and gradients with the CPU's in float32, and a resumed run with a whole."""
    for number, model in enumerate(MODELS):
        expected = train(checks, settings(model, STEPS), f"cpu-{number}", "cpu")
        for precision, bound in (("fp32", FP32), ("bf16", BF16)):
            config = settings(model, STEPS, precision)
            found = train(checks, config, f"{precision}-{number}", checks.device)
            for what in ("losses", "norms"):
                name = f"{model}, {precision}: {what} of {STEPS} batches"
                checks.close(name, getattr(found, what), getattr(expected, what), bound)
    noisy = {"batch_size": 8, "days_per_batch": 2}  # with the noise of the published recipe
    for number, model in enumerate(MODELS):
        config = settings(model, STEPS, dataset=noisy)
        whole = train(checks, config, f"whole-{number}", checks.device)
        pieces = train(checks, config, f"pieces-{number}", checks.device, (4,))
        checks.close(f"{model}: resumed after 4 batches", pieces.losses, whole.losses, FP32)


def check_gradients(checks: Checks) -> None:
    """Compare each parameter's gradient in 16 bits with float32, at the published shapes.

    Small gradients of a large batch are where float16 would round to zero.
    """
    for recipe, dropout in (("gru", "rnn_dropout"), ("transformer_t15", "dropout")):
        overrides = [f"model.{dropout}=0", "model.input_network.input_layer_dropout=0"]
        if recipe != "gru":
            overrides.append("model.train_context_frames=[250, 250]")
        config = read_train_config(recipe, overrides)
        torch.manual_seed(0)
        network = build_model(config.model, n_features=512, n_days=4, n_classes=41)
        network.to(checks.device).train()
        exact, rounded = (
            gradients(network, 64 if checks.on_gpu else 2, bf16) for bf16 in (False, True)
        )
        errors = {
            name: float((rounded[name] - gradient).norm() / gradient.norm())
            for name, gradient in exact.items()
        }
        worst = max(errors, key=lambda name: errors[name])
        name = f"{recipe}: relative error of the gradient of {worst}, the largest"
        checks.at_most(name, errors[worst], MOST_GRADIENT_ERROR)
        checks.measured.setdefault("gradient errors", {})[recipe] = errors


def gradients(network: Any, n_trials: int, bf16: bool) -> dict[str, torch.Tensor]:
    """Return the gradients of a batch of made-up trials, on the network's device."""
    generator, device = torch.Generator().manual_seed(0), next(network.parameters()).device
    n_bins_B = torch.randint(450, 901, (n_trials,), generator=generator)
    x_BTC = torch.randn(n_trials, int(n_bins_B.max()), 512, generator=generator).to(device)
    labels_BU = torch.randint(1, 41, (n_trials, 40), generator=generator).to(device)
    day_B = torch.arange(n_trials, device=device) * 4 // n_trials
    n_labels_B = torch.randint(20, 41, (n_trials,), generator=generator)
    n_patches_B = network.n_patches(n_bins_B)
    with full_float32():
        with autocast(device, bf16):
            logits_BPV = network(x_BTC, day_B, n_patches_B=n_patches_B)[0]
            loss = ctc_loss(logits_BPV, n_patches_B, labels_BU, n_labels_B).mean()
        network.zero_grad()
        loss.backward()
    return {name: parameter.grad.clone() for name, parameter in network.named_parameters()}


def check_learning(checks: Checks) -> None:
    """Train for 60 batches with dropout and noise in the device's own precision: the loss falls."""
    for number, model in enumerate(MODELS):
        changes = {"dataset": {"batch_size": 8, "days_per_batch": 2}, "epsilon": 1e-8}
        config = settings(model, 60, "auto", **changes, **{"lr_max": 0.003, "lr_max_day": 0.003})
        config["model"] = {**config["model"], "input_network": {"input_layer_dropout": 0.2}}
        dropout = "dropout" if "transformer" in model else "rnn_dropout"
        config["model"][dropout] = 0.2
        losses = train(checks, config, f"learning-{number}", checks.device).losses
        ratio = float(np.mean(losses[-10:]) / np.mean(losses[:5]))
        checks.at_most(f"{model}: last losses over the first", ratio, 0.9)


def trained(checks: Checks, model: str) -> Path:
    """Return a run of the model, trained once on the CPU."""
    name = f"run-{list(MODELS).index(model)}"
    if not (checks.folder / name).is_dir():
        train(checks, settings(model, 60, epsilon=1e-8, lr_max=0.003), name, "cpu")
    return checks.folder / name


def sentences(folder: Path) -> list[str]:
    """Return the sentences of an evaluation directory."""
    with (folder / "predictions.csv").open(encoding="utf-8", newline="") as file:
        return [row["text"] for row in csv.DictReader(file)]


def same_share(found: list[str], expected: list[str]) -> float:
    """Return the share of sentences that differ."""
    return float(np.mean([a != b for a, b in zip(found, expected, strict=True)]))


def check_evaluation(checks: Checks) -> None:
    """Compare logits, error rates and sentences of a trained run with the CPU's."""
    split = open_packed(recordings(checks)).split("val")
    for model in MODELS:
        run = trained(checks, model)
        logits = {
            device: load_model(run, device).logits(split.features(0).copy(), split.session(0))
            for device in ("cpu", checks.device)
        }
        checks.close(f"{model}: logits", logits[checks.device], logits["cpu"], FP32)
        found, expected = (
            evaluate(
                run, recordings(checks), "val", ngram(checks), checks.folder / f"eval-{number}",
                device=device,
            )
            for number, device in enumerate((checks.device, "cpu"))
        )  # fmt: skip
        for rate in ("per", "wer"):
            difference = abs(getattr(found, rate) - getattr(expected, rate))
            checks.at_most(f"{model}: difference of {rate.upper()}", difference, 0.005)


def check_live(checks: Checks) -> None:
    """Compare logits that are computed frame by frame with those of whole trials on the CPU."""
    split = open_packed(recordings(checks)).split("val")
    features_TC = np.concatenate([split.features(i) for i in range(4)])
    for name in LIVE:
        run = trained(checks, name)
        on_cpu = load_model(run, "cpu")
        n_bins = len(features_TC) // on_cpu.patch_stride * on_cpu.patch_stride
        whole_PV = on_cpu.logits(features_TC[:n_bins], "latest", smooth=False)
        for precision, bound in (("fp32", FP32), ("bf16", BF16)):
            stepper = TorchStepper(load_model(run, checks.device), precision=precision)
            size, stride = stepper.patch_size, stepper.patch_stride
            stepped_PV = [
                stepper.step(features_TC[first : first + size])
                for first in range(0, n_bins - size + 1, stride)
            ]
            checks.close(
                f"{name}, {precision}: {len(stepped_PV)} steps", stepped_PV, whole_PV, bound
            )


def check_large_models(checks: Checks) -> None:
    """Compare scores of texts, ranking and fusion of a causal language model with the CPU's."""
    from cortext_lm.llm.model import CausalLM
    from cortext_lm.llm.scoring import score_texts
    from cortext_lm.neural.train_neural import NeuralSettings, train_neural

    lm, model = ngram(checks), checks.folder / "llm"
    text = checks.folder / "data" / "text" / "lm.txt"
    options = NeuralSettings(pieces=400, width=48, layers=2, heads=3, steps=30, minutes=None)
    train_neural([text], model, options)
    texts = text.read_text(encoding="utf-8").splitlines()[:40]
    found, expected = (
        [score.log_prob for score in score_texts(CausalLM.load(model, None, device), texts)]
        for device in (checks.device, "cpu")
    )
    checks.close(f"log-probabilities of {len(texts)} texts", found, expected, FP32)
    run = trained(checks, "gru")
    for mode in ("rescore", "fusion"):
        written = {}
        for device in (checks.device, "cpu"):
            out = checks.folder / f"eval-{mode}-{device}"
            files = LargeModelFiles(str(model), device=device)
            chosen = {"llm": {"mode": mode, "weight": 0.3}}
            evaluate(run, recordings(checks), "val", lm, out, options=chosen, llm=files)
            written[device] = sentences(out)
        share = same_share(written[checks.device], written["cpu"])
        checks.at_most(f"{mode}: share of sentences that differ", share, 0.1)


def check_speech_llm(checks: Checks) -> None:
    """Train a small speech LLM and write sentences, and load its language model in 4 bits."""
    from cortext_speechllm.inference import decode
    from cortext_speechllm.stages import train_speech_llm

    model, cache = _audio_llm(checks)
    overrides = [
        f"speech.audio_llm={model}", "speech.gamma=1.0", "speech.ctc=0.1",
        "speech.lora={r: 4, dropout: 0}", "speech.generation={beams: 2, max_length: 8}",
        "model.n_units=16", "model.n_layers=1", "model.rnn_dropout=0",
        "model.input_network.input_layer_dropout=0", "dataset.batch_size=8",
        "dataset.days_per_batch=2", "num_training_batches=8", "batches_per_train_log=1",
        "batches_per_val_step=8", "val_wer_trials=3", "lr_warmup_steps=2",
        "lr_warmup_steps_day=2", "precision=fp32",
        *(f"dataset.data_transforms.{name}={value}" for name, value in STILL.items()),
    ]  # fmt: skip

    def course(name: str, device: str, *more: str) -> list[float]:
        out = checks.folder / name
        train_speech_llm(
            "speech_llm", recordings(checks), out, overrides=[*overrides, *more], cache=cache,
            device=device, progress=False,
        )  # fmt: skip
        lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
        return [line["train_loss"] for line in lines if line["kind"] == "train"]

    expected = course("speech-cpu", "cpu")
    checks.close("losses of 8 batches", course("speech", checks.device), expected, 5 * FP32)
    written = [
        list(decode(checks.folder / "speech-cpu", recordings(checks), "val",
                    checks.folder / f"speech-{number}.csv", device=device))
        for number, device in enumerate((checks.device, "cpu"))
    ]  # fmt: skip
    checks.at_most("share of sentences that differ", same_share(*written), 0.1)
    if not checks.on_gpu:
        checks.cannot_run("weights of 4 bits", "they need a GPU")
        return
    losses = course("speech-4bit", checks.device, "speech.quantize=4bit", "precision=bf16")
    checks.holds("weights of 4 bits: finite losses", bool(np.isfinite(losses).all()), str(losses))


def _audio_llm(checks: Checks) -> tuple[Path, Path]:
    """Return a random audio language model and targets for it, made once."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from tiny_speech_llm import save_tiny_audio_llm

    from cortext_speechllm.audio_llm.loading import revision_there
    from cortext_speechllm.targets.cache import TargetOrigin, text_key, write_targets

    model = save_tiny_audio_llm(checks.folder / "audio-llm")
    data, generator = open_packed(recordings(checks)), torch.Generator().manual_seed(0)
    said = {text for name in data.splits for text in data.split(name).sentences if text}
    targets = {
        text_key(text): torch.randn(10 + len(text) // 2, 24, generator=generator).half()
        for text in sorted(said)
    }
    cache = checks.folder / "targets.safetensors"
    origin = TargetOrigin(str(model), revision_there(model), "none", "0", 24, 40.0)
    write_targets(cache, targets, origin)
    return model, cache


def check_own_tests(checks: Checks) -> None:
    """Run the tests that are marked `gpu`."""
    if not checks.on_gpu:
        checks.cannot_run("tests marked gpu", "they need a GPU")
        return
    marked = [
        str(path)
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if "mark.gpu" in path.read_text(encoding="utf-8")
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", *marked]
    ended = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=MOST_S
    )
    said = (ended.stdout.strip().splitlines() or ["no output"])[-1]
    if ended.returncode != 0:
        print(ended.stdout[-10_000:], ended.stderr[-2000:], flush=True)
    checks.holds("tests marked gpu", ended.returncode == 0, said)


def check_speed(checks: Checks) -> None:
    """Time training with `cortext bench training`, at the published shapes on a GPU."""
    amount = ["--turns", "3", "--steps", "20", "--shape", "published"]
    if not checks.on_gpu:
        amount = ["--turns", "1", "--steps", "1", "--shape", "demo", "--threads", "1"]
        amount += ["--only", "ours"]
    for model in ("gru", "transformer"):
        out = checks.folder / f"bench-{model}.json"
        command = [
            sys.executable,
            "-c",
            "from cortext.cli import main; main()",
            "bench",
            "training",
        ]
        command += ["--model", model, "--device", checks.device, "--out", str(out), *amount]
        ended = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=MOST_S
        )
        said = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        checks.holds(f"bench training, {model}", ended.returncode == 0, said)
        if ended.returncode == 0:
            checks.measured.setdefault("training", {})[model] = json.loads(out.read_text())


SECTIONS: dict[str, Callable[[Checks], None]] = {
    "training": check_training,
    "gradients": check_gradients,
    "learning": check_learning,
    "evaluation": check_evaluation,
    "live": check_live,
    "large models": check_large_models,
    "speech LLM": check_speech_llm,
    "own tests": check_own_tests,
    "speed": check_speed,
}
"""The sections in their order."""
