"""The verb `ensemble`: several runs, or several sentences, made one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.console import JSON, OVERRIDES, print_json, print_table, progress_bar
from cortext.cli.llm_options import Llm, LlmDevice, LlmLora, check_llm
from cortext.errors import DecodingError

if TYPE_CHECKING:
    from cortext.decoding.ensemble import Candidates, Ensemble, EnsembleOptions
    from cortext.decoding.ensemble.correct import LargeCorrector
    from cortext.decoding.ensemble.fit import Fitted

SEE_HELP = "see `cortext ensemble --help`"


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verb to the command line."""
    app.command()(ensemble)


def ensemble(
    evaluations: Annotated[
        list[Path] | None, typer.Argument(help="Evaluation directories of several runs over the same trials.")
    ] = None,
    lists: Annotated[
        Path | None, typer.Option(metavar="FILE.jsonl", help="Instead: a JSON object a line, with lists of sentences.")
    ] = None,
    field: Annotated[str | None, typer.Option(help="The field of --lists that has each line's list.")] = None,
    method: Annotated[
        str | None,
        typer.Option(help="rover (the default), rover-lm, mbr, average or correct; with --fit the best without it."),
    ] = None,
    lm: Annotated[Path | None, typer.Option(help="Language-model directory, for rover-lm and average.")] = None,
    llm: Llm = None,
    llm_lora: LlmLora = None,
    llm_device: LlmDevice = "auto",
    free: Annotated[bool, typer.Option("--free", help="correct: let the model write words that nobody heard.")] = False,
    fit: Annotated[
        list[Path] | None,
        typer.Option(help="Fit options on these references (a file like --lists, or directories), for --options."),
    ] = None,
    options: Annotated[
        Path | None, typer.Option("--options", help="YAML file of options; with --fit it is written.")
    ] = None,
    decoder_options: Annotated[
        Path | None, typer.Option(help="average: decoder options, as the runs were decoded without them.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="average: threads for the search; all cores.")] = None,
    out: Annotated[Path | None, typer.Option(help="Directory to write: predictions, lists, metrics.")] = None,
    overrides: list[str] = OVERRIDES,
    as_json: bool = JSON,
) -> None:
    """Combine what several runs made of the same trials: their posteriors, or their sentences.

    Example: cortext ensemble runs/eval1 runs/eval2 --method average --lm runs/lm --out runs/ensemble

    Example: cortext ensemble --lists lists.jsonl --field hypotheses --method rover --json

    Example: cortext ensemble --lists test.jsonl --field hypotheses --fit val.jsonl --options ensemble.yaml
    """
    from cortext.config import load_config
    from cortext.decoding.ensemble import combine_lists, combine_runs
    from cortext.decoding.ensemble.results import check_replaceable, write_ensemble
    from cortext.decoding.options import DecoderOptions

    _check(evaluations, lists, field, method, lm, llm, fit, options, overrides, free)
    check_llm(llm, llm_lora, context="")
    if out is not None:
        check_replaceable(out)
    corrector = _corrector(llm, llm_lora, llm_device)
    changes: dict[str, Any] = ({"method": method} if method else {}) | ({"free": True} if free else {})
    fitted = None
    if fit and options:
        fitted = _fit(_trials(fit, field), method, _options(None, changes, overrides), lm, corrector)
        fitted.options.write(options)
    chosen = _options(options, changes, overrides)
    found = None
    with progress_bar("combining") as bar:
        if lists is not None:
            found = combine_lists(lists, field or "", chosen, lm=lm, llm=corrector, progress=bar)
        elif evaluations:
            search = load_config(decoder_options, DecoderOptions) if decoder_options else None
            found = combine_runs(
                evaluations, chosen, lm=lm, llm=corrector, decoder=search, threads=_threads(threads), progress=bar
            )
    if found is not None and out is not None:
        write_ensemble(found, out)
    _report(found, fitted, options, out, [] if corrector is None else corrector.lm.notes, as_json)


def _check(
    evaluations: list[Path] | None,
    lists: Path | None,
    field: str | None,
    method: str | None,
    lm: Path | None,
    llm: str | None,
    fit: list[Path] | None,
    options: Path | None,
    overrides: list[str],
    free: bool,
) -> None:
    """Raise DecodingError for parameters that do not go together."""
    wrong = None
    if evaluations and lists:
        wrong = "evaluation directories and --lists at once"
    elif not evaluations and lists is None and not fit:
        wrong = "nothing to combine; give evaluation directories or --lists"
    elif lists is not None and not field:
        wrong = "--lists needs --field"
    elif fit and options is None:
        wrong = "--fit needs --options, the file that keeps what is fitted"
    elif options and not fit and (method or overrides or free):
        wrong = "--method, --free and --set do not go with --options, which is applied unchanged"
    elif lm and method in ("rover", "mbr", "correct"):
        wrong = f"--lm does not go with --method {method}; rover-lm and average use it"
    elif (llm or free) and method not in (None, "correct"):
        wrong = f"--llm and --free do not go with --method {method}; correct uses them"
    if wrong:
        raise DecodingError(wrong, fix=SEE_HELP)


def _options(file: Path | None, changes: dict[str, Any], overrides: list[str]) -> EnsembleOptions:
    """The options of a file, or of the command line."""
    from cortext.config import with_overrides
    from cortext.decoding.ensemble import EnsembleOptions

    if file is not None:
        return EnsembleOptions.read(file)
    return with_overrides(EnsembleOptions(), overrides).changed(changes)


def _corrector(llm: str | None, lora: Path | None, device: str) -> LargeCorrector | None:
    if llm is None:
        return None
    from cortext.decoding.ensemble.correct import LargeCorrector
    from cortext.decoding.llm.model import CausalLM

    return LargeCorrector(CausalLM.load(llm, lora, device))


def _trials(paths: list[Path], field: str | None) -> list[Candidates]:
    """The trials of a file of lists or of evaluation directories."""
    from cortext.decoding.ensemble import read_evaluations, read_lists

    if len(paths) == 1 and not paths[0].is_dir():
        if not field:
            raise DecodingError("--fit with a file needs --field", fix=SEE_HELP)
        return read_lists(paths[0], field)
    return read_evaluations(paths)


def _fit(
    trials: list[Candidates],
    method: str | None,
    base: EnsembleOptions,
    lm: Path | None,
    corrector: LargeCorrector | None,
) -> Fitted:
    from cortext.decoding.ensemble import fit
    from cortext.decoding.ngram import LanguageModel

    methods = (
        [method] if method else ["rover", "mbr", *(["rover-lm"] if lm else []), *(["correct"] if corrector else [])]
    )
    tried = fit.tried_options(base, methods, trials)
    model = LanguageModel.open(lm) if lm is not None and "rover-lm" in methods else None
    with progress_bar("fitting") as bar:
        return fit.fit(trials, tried, model, corrector, bar)


def _percent(rate: float | None) -> str:
    """With two decimals: ensembles differ by less than one."""
    return "-" if rate is None else f"{100 * rate:.2f} %"


def _threads(threads: int | None) -> int:
    import os

    return threads or os.cpu_count() or 1


def _report(
    found: Ensemble | None,
    fitted: Fitted | None,
    options: Path | None,
    out: Path | None,
    notes: list[str],
    as_json: bool,
) -> None:
    import dataclasses

    if as_json:
        facts = {} if found is None else found.to_json() | {"out": None if out is None else str(out)}
        facts |= {"notes": notes}
        print_json(facts | ({} if fitted is None else {"fitted": dataclasses.asdict(fitted)}))
        return
    if fitted is not None:
        typer.echo(f"{options}: {fitted.options.method}, WER {_percent(fitted.wer)} where it was fitted")
    if found is None:
        return
    wer = found.error_rate()
    rows = []
    if wer is not None:
        rates = found.system_rates() or ()
        rows = [(f"system {number}", _percent(rate), "") for number, rate in enumerate(rates, 1)]
        rows.append(("best of the candidates", _percent(found.oracle_rate()), ""))
        rows.append((found.options.method, _percent(wer.rate), f"{_percent(wer.low)} to {_percent(wer.high)}"))
        print_table("", [f"{len(found.trials)} trials", "WER", "95 % interval"], rows)
    else:
        typer.echo(f"{len(found.trials)} trials combined")
    failed = [combined.degraded for combined in found.combined if combined.degraded]
    if failed:
        typer.echo(f"{len(failed)} without what was asked for; the first: {failed[0]}")
    for note in notes:
        typer.echo(note)
    if out is not None:
        typer.echo(f"{out}: predictions.csv, nbest.jsonl, metrics.json")
