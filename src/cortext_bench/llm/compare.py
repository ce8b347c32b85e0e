"""Word errors and cost of decoding with and without language models, side by side.

All ways decode the same utterances in one run: without a language model (the lexicon alone), with
the n-gram, with a large model that ranks its lists, with one that takes part in the search, and as
an ensemble. Each way gets the settings, from its list here, with the fewest word errors on the
tuning half (even numbers; of equals the first); the other half is reported. Each way runs in a
process of its own, utterance by utterance, with one thread.

An ensemble is the mean of several runs' posteriors, frame by frame and geometric. Where texts of
other systems are known, their vote (ROVER with equal weights) is held against what each makes
alone; neither has a time of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from cortext.decoding import DecoderOptions
from cortext.errors import DataError
from cortext.evaluation.figures import BLUE, INK, ORANGE, STYLE, panels
from cortext.evaluation.logits_origin import LogitsOrigin
from cortext.evaluation.settings import LargeModelFiles
from cortext.provenance import provenance
from cortext.text.metrics import bootstrap_interval, edit_counts, error_rate
from cortext.text.normalize import normalize
from cortext_bench.harness import Stage
from cortext_bench.materials import write_posteriors
from cortext_bench.posteriors import INVENTORY, Utterance, halves
from cortext_bench.workers import ONE_THREAD, WorkerProcess
from cortext_lm.ensemble import Candidates, EnsembleOptions, combine, read_evaluations
from cortext_lm.ensemble.posteriors import read_average

Settings = dict[str, Any]

RESAMPLES = 2000
ROW_IN = 0.27
"""Height of a row of the figure, inches."""
LEXICON = "no language model"
NGRAM = "n-gram"
RESCORED = "n-gram, ranked by the LLM"
FUSED = "n-gram and LLM fused"
AVERAGED = "ensemble, n-gram"
AVERAGED_FUSED = "ensemble, n-gram and LLM fused"
ALONE = "other systems, alone"
VOTED = "other systems, their vote"

WORD_SCORES = (-3.0, -2.0, -1.0, 0.0, 1.0)
LM_WEIGHTS = (0.6, 0.8, 1.0, 1.3, 1.6)
LLM_WEIGHTS = (0.1, 0.2, 0.35, 0.5, 0.65)
BLANK_PENALTIES = (32.0, 64.0, 128.0, 256.0)
"""Blank penalties that are tried for averages.

Runs that disagree on a frame give a mean with more weight on the blank than each of them has.
"""
LIST_LENGTH = 50
"""Sentences that the large model ranks."""


@dataclass(frozen=True)
class LLMMaterials:
    """Utterances to decode, and where they come from.

    Attributes:
        utterances: Utterances with references, in `posteriors.INVENTORY`'s order.
        averaged: The same utterances with the posteriors of an ensemble; None without one.
        texts: What other systems made of each; None without them.
        facts: Origin of the utterances, the averages and the texts.
    """

    utterances: Sequence[Utterance]
    facts: Mapping[str, Any]
    averaged: Sequence[np.ndarray] | None = None
    texts: Sequence[Sequence[str]] | None = None


def averaged_posteriors(directories: Sequence[Path]) -> list[np.ndarray]:
    """Return mean posteriors, float32 [P, V], of several evaluation directories.

    Utterances are in the order of `posteriors.evaluation_posteriors`.
    """
    trials = sorted(read_evaluations(directories), key=lambda trial: int(trial.id))
    columns = INVENTORY.order_from(LogitsOrigin.of(directories[0]).inventory)
    averaged = read_average(directories, trials, "geometric")
    return [np.ascontiguousarray(log_probs_PV[:, columns]) for log_probs_PV in averaged]


class LLMBench:
    """The ways to decode, over one set of utterances; see the module.

    Args:
        models: The directory of the n-gram, and the large model.
        options: Options of the search, where a way does not choose its own.
        cache: Where the utterances are written for the processes.
    """

    def __init__(
        self,
        materials: LLMMaterials,
        models: tuple[Path, LargeModelFiles],
        options: DecoderOptions,
        cache: Path,
        stage: Stage = lambda name: None,
    ) -> None:
        self.materials = materials
        self.lm, self.llm = models
        self.options = options
        self.cache = cache
        self.stage = stage
        self.references = [utterance.reference for utterance in materials.utterances]
        self.tuning, self.reporting = halves(range(len(self.references)))
        if not self.reporting:
            raise DataError(
                f"{len(self.references)} utterances cannot be halved into tuning and reporting"
            )
        self.errors: dict[str, np.ndarray] = {}

    def run(self) -> dict[str, Any]:
        """Measure word errors and cost of every way, by its name."""
        ways: dict[str, Any] = {}
        log_probs = [utterance.log_probs_PV for utterance in self.materials.utterances]
        with self._worker("lexicon", log_probs) as child:
            ways[LEXICON] = self._decoded(
                child, LEXICON, _grid(lm_weight=[0.0], word_score=[-8.0, -6.0, -4.0, -2.0, 0.0])
            )
        with self._worker("ngram", log_probs) as child:
            ways[NGRAM] = self._decoded(
                child, NGRAM, _grid(lm_weight=LM_WEIGHTS, word_score=WORD_SCORES)
            )
        best = ways[NGRAM]["settings"]
        with self._worker("ranked", log_probs, self.llm) as child:
            ways[RESCORED] = self._reranked(child, best)
            model = child.loaded["model"]
            versions = child.loaded["versions"]
        # Lists are ranked by many settings at no cost, a search with a large model is made anew for
        # each: it takes the weight of both language models and what a word scores from there.
        both = {name: ways[RESCORED]["settings"][name] for name in ("lm_weight", "word_score")}
        fused = [best | both | settings for settings in _grid(llm=_weights("fusion"))]
        with self._worker("fused", log_probs, self.llm) as child:
            ways[FUSED] = self._decoded(child, FUSED, fused)
        if self.materials.averaged is not None:
            with self._worker("averaged", self.materials.averaged) as child:
                averaged = [best | settings for settings in _grid(blank_penalty=BLANK_PENALTIES)]
                ways[AVERAGED] = self._decoded(child, AVERAGED, averaged)
            with self._worker("averaged_fused", self.materials.averaged, self.llm) as child:
                penalty = {"blank_penalty": ways[AVERAGED]["settings"]["blank_penalty"]}
                ways[AVERAGED_FUSED] = self._decoded(
                    child, AVERAGED_FUSED, [ways[FUSED]["settings"] | penalty]
                )
        if self.materials.texts is not None:
            ways |= self._texts(self.materials.texts)
        for name, way in ways.items():
            way["difference"] = self._difference(name, ALONE if name in (ALONE, VOTED) else NGRAM)
        return {"ways": ways, "model": model, "provenance": provenance() | {"versions": versions}}

    def _worker(
        self, name: str, log_probs: Sequence[np.ndarray], llm: LargeModelFiles | None = None
    ) -> WorkerProcess:
        path = self.cache / f"{name}.npz"
        write_posteriors(path, list(log_probs))
        arguments = [str(path), json.dumps(asdict(self.options)), str(self.lm), *llm_arguments(llm)]
        return WorkerProcess(name, "llm.worker", arguments, path.with_suffix(".log"), ONE_THREAD)

    def _decoded(
        self, child: WorkerProcess, name: str, tried: Sequence[Settings]
    ) -> dict[str, Any]:
        """Decode with the settings that make the fewest errors on the tuning half."""
        settings = tried[0]
        if len(tried) > 1:
            self.stage(f"{name}: choosing one of {len(tried)} settings")
            found = [
                child.ask("decode", settings=one, chosen=self.tuning)["texts"] for one in tried
            ]
            settings = self._fewest(tried, found)
        return self._reported(child, name, settings, len(tried))

    def _reranked(self, child: WorkerProcess, best: Settings) -> dict[str, Any]:
        """Choose settings as `_decoded` does, but search once and rerank the lists."""
        searched = best | {"nbest": LIST_LENGTH}
        tried = _grid(llm=_weights("rescore"), lm_weight=_near(best), word_score=WORD_SCORES)
        self.stage(f"{RESCORED}: choosing one of {len(tried)} settings")
        found = child.ask("rerank", settings=searched, tried=tried, chosen=self.tuning)["texts"]
        chosen = self._fewest(tried, found)
        # The lists are made with the n-gram's own settings: what differs is how they are ranked.
        return self._reported(child, RESCORED, searched, len(tried), chosen)

    def _reported(
        self,
        child: WorkerProcess,
        name: str,
        settings: Settings,
        n_tried: int,
        ranked: Settings | None = None,
    ) -> dict[str, Any]:
        self.stage(f"{name}: decoding")
        answer = child.ask("decode", settings=settings, chosen=self.reporting, ranked=ranked)
        n_trials = len(self.reporting)
        tokens = answer["tokens"]
        return self._errors(name, [[text] for text in answer["texts"]]) | {
            "settings": settings | (ranked or {}),
            "settings_tried": n_tried,
            "sentences_per_s": n_trials / answer["seconds"],
            "processor_ms_per_sentence": 1000 * answer["busy"] / n_trials,
            "tokens_per_sentence": tokens["read"] / n_trials,
            "times_fewer_tokens": (
                tokens["from_scratch"] / tokens["read"] if tokens["read"] else None
            ),
            "peak_mb": answer["memory"].get("peak_rss_mb"),
            "gpu_peak_mb": answer["memory"].get("gpu_peak_mb"),
        }

    def _texts(self, texts: Sequence[Sequence[str]]) -> dict[str, Any]:
        trials = [Candidates.of(texts[number]) for number in self.reporting]
        voted = [one.text for one in combine(trials, EnsembleOptions(method="rover"))]
        alone = [[" ".join(words) for words in trial.best] for trial in trials]
        return {
            ALONE: self._errors(ALONE, alone),
            VOTED: self._errors(VOTED, [[text] for text in voted]),
        }

    def _fewest(self, tried: Sequence[Settings], found: Sequence[Sequence[str]]) -> Settings:
        references = [self.references[number] for number in self.tuning]
        rates = [error_rate(references, texts, n_boot=0).rate or 0.0 for texts in found]
        return dict(tried[int(np.argmin(rates))])

    def _errors(self, name: str, texts: Sequence[Sequence[str]]) -> dict[str, Any]:
        """Keep a way's word errors by trial; return its WER and 95 % interval.

        `texts` has the sentences of one or several systems for each trial; their mean counts.
        """
        references = [self.references[number].split() for number in self.reporting]
        errors = [
            [edit_counts(reference, normalize(text).split()).errors for text in found]
            for reference, found in zip(references, texts, strict=True)
        ]
        self.errors[name] = np.array([np.mean(one) for one in errors])
        wer, interval = self._rate(self.errors[name])
        return {"wer": wer, "wer_ci95": interval}

    def _difference(self, name: str, other: str) -> dict[str, Any]:
        """Return how many more word errors a way makes than another, paired by trial."""
        wer, interval = self._rate(self.errors[name] - self.errors[other])
        return {"to": other, "wer": wer, "ci95": interval}

    def _rate(self, errors_B: np.ndarray) -> tuple[float, list[float | None]]:
        words_B = np.array([len(self.references[number].split()) for number in self.reporting])
        interval = bootstrap_interval(errors_B, words_B, RESAMPLES, 0, 0.95)
        return float(errors_B.sum() / words_B.sum()), list(interval)


def llm_arguments(llm: LargeModelFiles | None) -> list[str]:
    """Return the worker's last arguments: the large model's name, its device and any adapter."""
    return (
        []
        if llm is None
        else [llm.model, llm.device, *([] if llm.lora is None else [str(llm.lora)])]
    )


def _grid(**values: Sequence[Any]) -> list[Settings]:
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


def _weights(mode: str) -> list[Settings]:
    return [{"mode": mode, "weight": weight} for weight in LLM_WEIGHTS]


def _near(best: Settings) -> list[float]:
    """Return weights of both language models together, from the n-gram's own to 1.5 times that."""
    return [best["lm_weight"] * factor for factor in (1.0, 1.25, 1.5)]


def bench_llm(
    materials: LLMMaterials,
    models: tuple[Path, LargeModelFiles],
    options: DecoderOptions,
    cache: Path,
    stage: Stage = lambda name: None,
) -> dict[str, Any]:
    """Compare the ways to decode; see `LLMBench`.

    Args:
        materials: Utterances to decode.
        models: Language-model directory, and the large model.
        options: Decoder options common to all ways.
        cache: Folder for intermediate files.
        stage: Called with the name of each stage of the work.

    Returns:
        What `--json` prints.

    Raises:
        LanguageModelError: Where a path holds no such model.
    """
    bench = LLMBench(materials, models, options, cache, stage)
    facts = dict(materials.facts) | {"tuning": len(bench.tuning), "reported": len(bench.reporting)}
    return {"input": facts, "lm": str(models[0]), "options": asdict(options), **bench.run()}


def read_result(path: Path) -> dict[str, Any]:
    """Read a result of `bench_llm` from JSON; raises DataError for anything else."""
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if {"input", "ways", "model"} <= result.keys():
            return result
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(
            "cannot be read as a result of bench llm", where=path, fix="give what --out wrote"
        ) from error
    raise DataError("is not a result of bench llm", where=path, fix="give what --out wrote")


def word_errors(results: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw a panel for each result of `bench_llm`: a row for each way, with its 95 % interval.

    Ways with a large model are orange.
    """
    with matplotlib.rc_context(STYLE | {"axes.grid.axis": "x", "ytick.labelcolor": INK}):
        heights = [ROW_IN * len(result["ways"]) for result in results]
        figure, axes = panels(heights, left=2.3, top=0.3, bottom=0.45, gap=0.4)
        for result, (axis,) in zip(results, axes, strict=True):
            ways = result["ways"]
            axis.set_title(
                f"{result['input']['reported']} utterances of {result['input']['source']}",
                color=INK,
            )
            axis.set_yticks(range(len(ways)), list(ways))
            axis.set_ylim(len(ways) - 0.5, -0.5)
            for place, (name, way) in enumerate(ways.items()):
                colour, (low, high) = ORANGE if "LLM" in name else BLUE, way["wer_ci95"]
                axis.plot([100 * low, 100 * high], [place, place], color=colour)
                axis.plot([100 * way["wer"]], [place], color=colour, marker="o", markersize=5)
                words = f"{100 * way['wer']:.1f}"
                axis.annotate(
                    words, (100 * high, place), (6, 0), textcoords="offset points", va="center"
                )
        axes[-1, 0].set_xlim(0, 1.08 * axes[-1, 0].get_xlim()[1])
        axes[-1, 0].set_xlabel("word errors, %")
    return figure
