"""The command `ensemble`: combine several runs, or several lists of sentences."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.console import JSON, OVERRIDES, print_json, print_lines, print_table, progress_bar
from cortext.cli.options import LargeModelSettings
from cortext.cores import available_cores
from cortext.errors import CortextError, DataError, DecodingError

if TYPE_CHECKING:
    from cortext.decoding.options import DecoderOptions
    from cortext.text.language import Language
    from cortext_lm.ensemble import Ensemble, EnsembleOptions
    from cortext_lm.ensemble.correct import LargeCorrector
    from cortext_lm.ensemble.fit import Fitted

SEE_HELP = "see `cortext ensemble --help`"


@dataclass(frozen=True)
class Sources:
    """Sentences to combine: those of evaluation directories, or lists in a file."""

    evaluations: Annotated[
        list[Path] | None,
        typer.Argument(help="Evaluation directories of several runs over the same trials."),
    ] = None
    lists: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl", help="Instead: a JSON object a line, with lists of sentences."
        ),
    ] = None
    field: Annotated[
        str | None, typer.Option(help="The field of --lists that has each line's list.")
    ] = None
    language: Annotated[
        str,
        typer.Option(help="Language of the sentences of --lists: en, es, ..., or a JSON file."),
    ] = "en"


@dataclass(frozen=True)
class Fitting:
    """References to fit options on, and the file of the options."""

    fit: Annotated[
        list[Path] | None,
        typer.Option(
            help=(
                "Fit options on these references (a file like --lists, or directories), for"
                " --options."
            )
        ),
    ] = None
    options: Annotated[
        Path | None,
        typer.Option("--options", help="YAML file of options; with --fit it is written."),
    ] = None


@dataclass(frozen=True)
class EnsembleSearch:
    """The search for words of `average` and --lattice."""

    decoder_options: Annotated[
        Path | None,
        typer.Option(
            help="average, --lattice: a file, a run or default; the runs' options without it."
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(min=1, help="average, --lattice: threads for the search; all cores."),
    ] = None


def ensemble(
    *,
    sources: Sources,
    method: Annotated[
        str | None,
        typer.Option(
            help=(
                "rover (the default), rover-lm, mbr, average or correct; with --fit the best"
                " without it."
            )
        ),
    ] = None,
    lattice: Annotated[
        bool,
        typer.Option(
            "--lattice",
            help="Combine the runs' lattices, from their saved logits, not their lists.",
        ),
    ] = False,
    lm: Annotated[
        Path | None,
        typer.Option(help="Language-model directory, for rover-lm, average and --lattice."),
    ] = None,
    large: LargeModelSettings,
    free: Annotated[
        bool, typer.Option("--free", help="correct: let the model write words that nobody heard.")
    ] = False,
    fitting: Fitting,
    words: EnsembleSearch,
    out: Annotated[
        Path | None, typer.Option(help="Directory to write: predictions, lists, metrics.")
    ] = None,
    overrides: list[str] = OVERRIDES,
    as_json: bool = JSON,
) -> None:
    """Combine posteriors, lattices or sentences of several runs over the same trials.

    Example: cortext ensemble runs/eval1 runs/eval2 --method average --lm runs/lm --out
    runs/ensemble

    Example: cortext ensemble runs/eval1 runs/eval2 --method mbr --lattice --lm runs/lm

    Example: cortext ensemble --lists lists.jsonl --field hypotheses --method rover --json

    Example: cortext ensemble --lists test.jsonl --field hypotheses --fit val.jsonl --options
    ensemble.yaml
    """
    from cortext.decoding.ngram import LanguageModel
    from cortext.text.language import read_language
    from cortext_lm.ensemble.results import check_replaceable, write_ensemble

    changes: dict[str, Any] = {"method": method, "lattice": lattice, "free": free}
    changes = {name: value for name, value in changes.items() if value}
    _check_sources(sources, fitting.fit)
    language = read_language(sources.language)
    _check_file(fitting, [*changes, *overrides])
    if out is not None:
        check_replaceable(out)
    search = _search_arguments(lm, words)
    options = _options(None if fitting.fit else fitting.options, changes, overrides)
    any_method = bool(fitting.fit) and not _names_method(method, overrides)
    _check_used(options, search, large.llm, free, any_method)
    corrector = _corrector(large)
    fitted = None
    if fitting.fit and fitting.options:
        fitted = _fit(fitting.fit, sources.field, language, options, any_method, search, corrector)
        fitted.options.write(fitting.options)
        options = fitted.options
    result = _combine(sources, language, options, search, corrector)
    if result is not None and out is not None:
        write_ensemble(result, out)
    notes = [
        *([] if search.lm is None else LanguageModel.open(search.lm).notes),
        *([] if corrector is None else corrector.lm.notes),
    ]
    if as_json:
        _print_json(result, fitted, out, notes)
    else:
        _print(result, fitted, fitting.options, out, notes)


@dataclass(frozen=True)
class _SearchSettings:
    """The language model of a search, its options and its threads; None where not given."""

    lm: Path | None
    options: DecoderOptions | None
    threads: int | None

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of `combine_runs`."""
        return {
            "lm": self.lm,
            "decoder": self.options,
            "threads": self.threads or available_cores(),
        }


def _search_arguments(lm: Path | None, words: EnsembleSearch) -> _SearchSettings:
    from cortext.evaluation.decoder_options import options_for

    given = words.decoder_options
    options = None if given is None else options_for(None, lm, given)[0]
    return _SearchSettings(lm, options, words.threads)


def _check_sources(sources: Sources, fit: list[Path] | None) -> None:
    """Raise DecodingError unless the input to combine or to fit on is named, once."""
    evaluations, lists, field = sources.evaluations, sources.lists, sources.field
    reads_lists = lists is not None or any(path.is_file() for path in fit or [])
    wrong = None
    if evaluations and lists:
        wrong = "evaluation directories and --lists at once"
    elif not evaluations and lists is None and not fit:
        wrong = "nothing to combine; give evaluation directories or --lists"
    elif reads_lists and not field:
        wrong = "--lists needs --field" if lists is not None else "--fit with a file needs --field"
    elif field and lists is None and all(path.is_dir() for path in fit or []):
        wrong = "--field names a field of --lists, which is not given"
    elif sources.language != "en" and not reads_lists:
        wrong = "--language is that of --lists: evaluation directories name their own"
    if wrong:
        raise DecodingError(wrong, fix=SEE_HELP)


def _check_file(fitting: Fitting, changes: list[str]) -> None:
    """Raise DecodingError unless a file of options is written by --fit, or applied as it is."""
    fit, options = fitting.fit, fitting.options
    if fit and options is None:
        raise DecodingError(
            "--fit needs --options, the file that keeps what is fitted", fix=SEE_HELP
        )
    if options and not fit and changes:
        wrong = (
            "--method, --lattice, --free and --set do not go with --options, which is applied"
            " unchanged"
        )
        raise DecodingError(wrong, fix=SEE_HELP)
    if fit and options and options.exists():
        try:
            _options(options, {}, [])
        except CortextError:
            fix = "choose another name or remove it"
            raise DecodingError(
                "exists and holds no options of an ensemble", where=options, fix=fix
            ) from None


def _check_used(
    options: EnsembleOptions,
    search: _SearchSettings,
    llm: str | None,
    free: bool,
    any_method: bool,
) -> None:
    """Raise DecodingError for a parameter that would be passed over.

    When methods are fitted, any may be used.
    """
    method = options.method
    searches = method == "average" or options.lattice
    wrong = None
    if search.lm and not searches and method != "rover-lm" and not any_method:
        wrong = f"--lm does not go with --method {method}; rover-lm, average and --lattice use it"
    elif (search.options or search.threads) and not searches:
        wrong = (
            f"--decoder-options and --threads do not go with --method {method}; average and"
            " --lattice use them"
        )
    elif (llm or free) and method != "correct" and not any_method:
        wrong = f"--llm and --free do not go with --method {method}; correct uses them"
    if wrong:
        raise DecodingError(wrong, fix=SEE_HELP)


def _option_notes(
    evaluations: list[Path], options: EnsembleOptions, search: _SearchSettings
) -> list[str]:
    """Return a line about the decoder options of each search for which none are chosen."""
    from cortext_lm.ensemble.posteriors import options_note

    if search.lm is None or search.options is not None:
        return []
    searched = evaluations if options.lattice else evaluations[: options.method == "average"]
    return [options_note(directory, search.lm) for directory in searched]


def _names_method(method: str | None, overrides: list[str]) -> bool:
    return method is not None or any(
        override.partition("=")[0].strip() == "method" for override in overrides
    )


def _options(file: Path | None, changes: dict[str, Any], overrides: list[str]) -> EnsembleOptions:
    """Return the options of a file, or of the command line."""
    from cortext.config import with_overrides
    from cortext_lm.ensemble import EnsembleOptions

    if file is not None:
        return EnsembleOptions.read(file)
    return with_overrides(EnsembleOptions(), overrides).changed(changes)


def _corrector(large: LargeModelSettings) -> LargeCorrector | None:
    if large.llm is None:
        return None
    from cortext_lm.ensemble.correct import LargeCorrector
    from cortext_lm.llm.model import CausalLM

    return LargeCorrector(CausalLM.load(large.llm, large.llm_lora, large.llm_device))


def _fit(
    paths: list[Path],
    field: str | None,
    language: Language,
    base: EnsembleOptions,
    any_method: bool,
    search: _SearchSettings,
    corrector: LargeCorrector | None,
) -> Fitted:
    """Fit options of the base's method, or of any, on lists or on evaluation directories."""
    from cortext.decoding.ngram import LanguageModel
    from cortext_lm.ensemble import fit, read_lists
    from cortext_lm.ensemble.results import check_lists, read_runs

    if len(paths) == 1 and not paths[0].is_dir():
        check_lists(base)
        trials = read_lists(paths[0], field or "", language)
    else:
        trials = read_runs(paths, base, **search.arguments)
    with_lm = ["rover-lm"] if search.lm else []
    with_llm = ["correct"] if corrector else []
    methods = ["rover", "mbr", *with_lm, *with_llm] if any_method else [base.method]
    tried = fit.tried_options(base, methods, trials)
    model = (
        LanguageModel.open(search.lm) if search.lm is not None and "rover-lm" in methods else None
    )
    with progress_bar("fitting") as bar:
        try:
            return fit.fit(trials, tried, model, corrector, bar)
        except DataError as error:
            where = ", ".join(str(part) for part in (paths[0], error.where) if part)
            raise DataError(error.what, where=where, fix="fit on trials with references") from None


def _combine(
    sources: Sources,
    language: Language,
    options: EnsembleOptions,
    search: _SearchSettings,
    corrector: LargeCorrector | None,
) -> Ensemble | None:
    """Combine the lists or the runs, and say which decoder options were used; None without any."""
    from cortext_lm.ensemble import combine_lists, combine_runs

    with progress_bar("combining") as bar:
        if sources.lists is not None:
            return combine_lists(
                sources.lists,
                sources.field or "",
                options,
                lm=search.lm,
                llm=corrector,
                progress=bar,
                language=language,
            )
        if not sources.evaluations:
            return None
        notes = _option_notes(sources.evaluations, options, search)
        result = combine_runs(
            sources.evaluations, options, llm=corrector, progress=bar, **search.arguments
        )
    print_lines(*notes, err=True)
    return result


def _percent(rate: float | None) -> str:
    """Return a rate with two decimals: ensembles differ by less than one point."""
    return "-" if rate is None else f"{100 * rate:.2f} %"


def _print_json(
    result: Ensemble | None, fitted: Fitted | None, out: Path | None, notes: list[str]
) -> None:
    facts: dict[str, Any] = {}
    if result is not None:
        facts = result.to_json() | {"out": None if out is None else str(out)}
    facts |= {"notes": notes}
    print_json(facts | ({} if fitted is None else {"fitted": asdict(fitted)}))


def _print(
    result: Ensemble | None,
    fitted: Fitted | None,
    options: Path | None,
    out: Path | None,
    notes: list[str],
) -> None:
    if fitted is not None:
        print_lines(
            f"{options}: {fitted.options.method}, WER {_percent(fitted.wer)} where it was fitted"
        )
    if result is None:
        return
    _print_rates(result)
    failed = [combined.degraded for combined in result.combined if combined.degraded]
    if failed:
        print_lines(f"{len(failed)} without what was asked for; the first: {failed[0]}")
    print_lines(*notes)
    if out is not None:
        print_lines(f"{out}: predictions.csv, nbest.jsonl, metrics.json")


def _print_rates(result: Ensemble) -> None:
    """Print word error rates of each system and of the ensemble, where there are references."""
    wer = result.error_rate()
    if wer is None:
        print_lines(f"{len(result.trials)} trials combined")
        return
    rates = result.system_rates() or ()
    name = result.options.method + (", cross-fitted" if result.cross_fitted else "")
    rows = [
        *((f"system {number}", _percent(rate), "") for number, rate in enumerate(rates, 1)),
        ("best of the candidates", _percent(result.oracle_rate()), ""),
        (name, _percent(wer.rate), f"{_percent(wer.low)} to {_percent(wer.high)}"),
    ]
    print_table("", [f"{len(result.trials)} trials", "WER", "95 % interval"], rows)
