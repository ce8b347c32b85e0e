"""The verb bench llm, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.bench_out import Out, hand_over, make_room, stage
from cortext.cli.console import JSON, percent, print_lines, print_table
from cortext.cli.llm_options import DEVICE, Llm, LlmDevice, LlmLora, llm_files
from cortext.errors import ConfigError

if TYPE_CHECKING:
    from cortext.bench.llm.compare import Materials


def llm(
    llm: Llm = None,
    llm_lora: LlmLora = None,
    llm_device: LlmDevice = DEVICE,
    lm: Annotated[
        Path | None,
        typer.Option(help="Directory of the n-gram; by default built of the real texts."),
    ] = None,
    logits: Annotated[
        Path | None, typer.Option(help="Decode the logits of this evaluation directory.")
    ] = None,
    ensemble: Annotated[
        list[Path] | None,
        typer.Option(help="Evaluation directory of another run for the ensemble; repeatable."),
    ] = None,
    options: Annotated[
        Path | None, typer.Option(help="YAML file of decoder options to begin with.")
    ] = None,
    trials: Annotated[
        Path | None, typer.Option(help="Trials with phoneme errors for pseudo-posteriors.")
    ] = None,
    cache: Annotated[Path, typer.Option(help="Where models are built.")] = Path("build/bench"),
    beside: Annotated[
        list[Path] | None,
        typer.Option(help="Show an earlier result (--out) in the table, too; repeatable."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the word errors to this PNG.")] = None,
    out: Out = None,
    as_json: bool = JSON,
) -> None:
    """Word errors and cost without a language model, with the n-gram, with a large one at the
    end and in the search.

    Without --logits it decodes pseudo-posteriors made from real phoneme errors
    ($CORTEXT_REAL_DATA).

    Example: cortext bench llm --llm runs/demo/llm --logits runs/demo/eval --lm runs/demo/lm
    """
    from cortext.bench.llm.compare import bench_llm, read_result
    from cortext.bench.llm.figure import word_errors
    from cortext.bench.materials import RealData, language_models
    from cortext.data.disk import disk_errors
    from cortext.evaluation.figures import save_picture
    from cortext.evaluation.recognise import read_options

    large = llm_files(llm, llm_lora, llm_device, context="")
    if large is None:
        raise ConfigError(
            "no large model is named",
            fix="give --llm MODEL; cortext lm train-neural makes a small one",
        )
    large.check()  # before the work
    make_room(out)
    make_room(picture)
    earlier = [read_result(path) for path in beside or []]
    found = _materials(logits, ensemble or [], trials)
    lm = lm or language_models(RealData.find(), cache, static=False, stage=stage).lm
    result = bench_llm(found, (lm, large), read_options(options), cache, stage)
    hand_over(result, out, as_json, lambda result: _print([*earlier, result]))
    if picture is not None:
        with disk_errors(picture):
            save_picture(word_errors([*earlier, result]), picture)


def _materials(logits: Path | None, ensemble: list[Path], trials: Path | None) -> Materials:
    from cortext.bench import posteriors
    from cortext.bench.llm.compare import Materials, averaged_posteriors
    from cortext.bench.materials import RealData

    if logits is not None:
        if trials is not None:
            raise typer.BadParameter("give one of --logits and --trials")
        utterances, facts = posteriors.evaluation_posteriors(logits)
        averaged = averaged_posteriors([logits, *ensemble]) if ensemble else None
        return Materials(
            utterances, facts | {"ensemble": [str(path) for path in ensemble]}, averaged
        )
    if ensemble:
        raise typer.BadParameter("--ensemble goes with --logits")
    path = trials or RealData.find().trials
    utterances, facts = posteriors.pseudo_posteriors(path)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return Materials(
        utterances, facts, texts=[line.get("wfst_seed_hypotheses") or [""] for line in lines]
    )


def _print(results: list[dict[str, Any]]) -> None:
    columns = [
        "utterances",
        "",
        "WER",
        "95 % interval",
        "points more",
        "sentences/s",
        "LLM tokens",
        "x fewer",
        "peak MB",
        "on the GPU",
    ]
    print_table("", columns, [row for result in results for row in _rows(result)], right_from=2)
    for result in results:
        model = result["model"]
        print_lines(
            f"LLM for {result['input']['source']}: {model['model']}, {model['n_parameters']:,}"
            " parameters"
        )
    print_lines(
        "settings were chosen on as many other utterances; points more: than the n-gram, or the"
        " other systems, alone"
    )
    print_lines(
        "LLM tokens: read for a sentence; x fewer: than scoring the same hypotheses anew at each"
        " look"
    )


def _rows(result: dict[str, Any]) -> list[list[str]]:
    """A result's rows of the table."""
    rows: list[list[str]] = []
    counts = result["input"]
    name_of_set = f"{counts['reported']} of {counts['source']}"
    for name, way in result["ways"].items():
        more, low, high = (
            f"{100 * value:+.1f}"
            for value in (way["difference"]["wer"], *way["difference"]["ci95"])
        )
        cost = ["-"] * 5
        if "sentences_per_s" in way:
            fewer, memory, on_gpu = (
                way["times_fewer_tokens"],
                way["peak_mb"],
                way.get("gpu_peak_mb"),
            )
            cost = [
                f"{way['sentences_per_s']:.1f}",
                f"{way['tokens_per_sentence']:.0f}",
                f"{fewer:.1f}" if fewer and fewer > 1 else "-",
                f"{memory:.0f}" if memory else "-",
                f"{on_gpu:.0f}" if on_gpu else "-",
            ]
        interval = " to ".join(percent(bound) for bound in way["wer_ci95"])
        same = way["difference"]["to"] == name
        more = "" if same else f"{more} ({low} to {high})"
        rows.append(["" if rows else name_of_set, name, percent(way["wer"]), interval, more, *cost])
    return rows
