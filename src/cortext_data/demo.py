"""The whole path with one call: simulate, pack, build a language model, train, evaluate."""

from __future__ import annotations

import json
import resource
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cortext.entry_points import load
from cortext.errors import ConfigError, CortextError, nearest
from cortext.extras import need
from cortext.files import refuse_foreign
from cortext.processes import Progress

if TYPE_CHECKING:
    from cortext.evaluation import Metrics

PRESETS = ("demo", "tiny")
LLM_STEPS = {"demo": 100, "tiny": 20}
"""Batches that the neural language model learns from, by preset."""
LONG = "transformer"
"""Recipe of a long demo, of half an hour."""
MARK = "demo.json"
"""The file that marks a directory as a demo's, which a later demo may replace."""
_PARTS = (MARK, "data", "packed", "lm", "run", "eval", "eval-*", "llm")


@dataclass(frozen=True)
class DemoResult:
    """Error rates of the demo, the time of each stage, and the report."""

    metrics: Metrics
    examples: tuple[tuple[str, str], ...]
    """Five sentences, evenly spread over the trials: the attempted and the decoded one."""
    seconds: dict[str, float]
    peak_memory_gb: float
    report: Path
    llm: dict[str, Metrics] = field(default_factory=dict)
    """Error rates with a neural language model beside the n-gram.

    `rescoring` ranks sentences at the end; `fusion` takes part in the search.
    """


def run_demo(
    out: str | Path,
    preset: str = "demo",
    *,
    seed: int | None = None,
    workers: int = 1,
    overrides: Sequence[str] = (),
    llm: bool = False,
    long: bool = False,
    stage: Callable[[str], Progress | None] = lambda name: None,
) -> DemoResult:
    """Simulate recordings, train on them, and decode the held-out sentences.

    Args:
        out: Directory to write: `data`, `packed`, `lm`, `run` and `eval` in it.
        preset: One of PRESETS: a simulator preset and the training recipe of the same name.
        seed: Seed of the simulation; the preset's own when None.
        workers: Processes for simulation and search; results do not depend on it.
        overrides: `key=value` changes to the training recipe.
        llm: Train a small neural language model, too, on the n-gram's text, and evaluate with it
            (`out/llm`, `out/eval-rescoring`, `out/eval-fusion`); needs the extra `llm`.
        long: Train the recipe `transformer` for half an hour, in the place of the preset's own.
        stage: Called with the name of each stage as it begins; returns the stage's progress
            callback or None.

    Raises:
        CortextError: For a wrong preset or override, and when `out` holds something else than an
            earlier demo.
    """
    from cortext.data.packed import pack
    from cortext.decoding.ngram import LanguageModel
    from cortext.evaluation import evaluate
    from cortext.evaluation.fit.callback import FitDecoder
    from cortext.training import train
    from cortext.training.config import read_train_config
    from cortext.training.progress import say
    from cortext_data.simulate import simulate

    if preset not in PRESETS:
        raise CortextError(f"no demo is called {preset!r}; {nearest(preset, PRESETS)}")
    if llm:
        need("transformers", "llm")
    if long and preset != "demo":
        raise ConfigError(f"preset {preset!r} has no long demo", fix="leave out --preset or --long")
    # A wrong override ends here, before an earlier demo is removed.
    config = read_train_config(LONG if long else preset, overrides)
    out = _fresh_directory(Path(out))
    data = out / "data"
    packed = out / "packed"
    lm = out / "lm"
    run = out / "run"
    seconds: dict[str, float] = {}

    def timed(name: str, work: Callable[[Progress | None], Any]) -> Any:
        started = time.perf_counter()
        result = work(stage(name))
        seconds[name] = round(time.perf_counter() - started, 1)
        return result

    timed("simulate", lambda bar: simulate(data, preset, seed=seed, workers=workers, progress=bar))
    for note in timed("pack", lambda bar: pack(data, packed, progress=bar)).notes:
        say(f"note: {note}", shown=True)
    timed("lm build", lambda bar: LanguageModel.build([data / "text" / "lm.txt"], 4, lm))
    fit = FitDecoder(lm, packed, threads=workers)
    timed("train", lambda bar: train(config, packed, run, lm=lm, callbacks=[fit]))
    metrics = timed(
        "evaluate",
        lambda bar: evaluate(run, packed, "val", lm, out / "eval", threads=workers, progress=bar),
    )
    asked = _with_llm(out, LLM_STEPS[preset], workers, timed) if llm else {}
    examples = _examples(out / "eval" / "nbest.jsonl")
    result = DemoResult(
        metrics, examples, seconds, _peak_memory_gb(), out / "eval" / "report.html", asked
    )
    (out / MARK).write_text(
        json.dumps({"preset": preset, "seed": seed, "seconds": seconds}, indent=2) + "\n"
    )
    return result


def _with_llm(
    out: Path,
    steps: int,
    workers: int,
    timed: Callable[[str, Callable[[Progress | None], Any]], Any],
) -> dict[str, Metrics]:
    """Train a neural model on the n-gram's text, and evaluate with both ways of asking it."""
    from cortext.evaluation import evaluate
    from cortext.evaluation.settings import LargeModelFiles

    texts = [out / "data" / "text" / "lm.txt"]
    model = out / "llm"
    neural = load("cortext.language_models", "neural")
    options = neural.NeuralSettings(pieces=2000, layers=2, lr=1e-2, steps=steps, minutes=None)
    timed(
        "train llm", lambda bar: neural.train_neural(texts, model, options, stage=lambda name: bar)
    )
    run, packed, lm = (out / name for name in ("run", "packed", "lm"))

    def evaluated(name: str, mode: str) -> Metrics:
        metrics: Metrics = timed(
            name,
            lambda bar: evaluate(
                run,
                packed,
                "val",
                lm,
                out / f"eval-{name}",
                options={"llm": {"mode": mode}},
                threads=workers,
                llm=LargeModelFiles(str(model), device="cpu"),
                progress=bar,
            ),
        )
        return metrics

    return {
        name: evaluated(name, mode)
        for name, mode in (("rescoring", "rescore"), ("fusion", "fusion"))
    }


def _fresh_directory(out: Path) -> Path:
    """Make an empty directory with the demo's mark; remove an earlier demo, and nothing else."""
    if out.exists() and not out.is_dir():
        raise CortextError("is a file; a directory is needed", where=out)
    if out.is_dir() and any(out.iterdir()):
        if not (out / MARK).is_file():
            raise CortextError(
                "is not empty and not an earlier demo", where=out, fix="choose another --out"
            )
        refuse_foreign(out, _PARTS, "the demo")
        shutil.rmtree(out)
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).write_text("{}\n")
    return out


def _examples(nbest: Path, count: int = 5) -> tuple[tuple[str, str], ...]:
    lines = nbest.read_text(encoding="utf-8").splitlines()
    chosen = [
        json.loads(lines[number * len(lines) // count]) for number in range(min(count, len(lines)))
    ]
    return tuple((trial["reference"], trial["hypotheses"][0]["text"]) for trial in chosen)


def _peak_memory_gb() -> float:
    """Return the most resident memory that this process or one of its workers had."""
    # ru_maxrss is in bytes on macOS, in KiB on Linux.
    unit = 1 if sys.platform == "darwin" else 1024
    usages = (
        resource.getrusage(who).ru_maxrss
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return max(usages) * unit / 1e9
