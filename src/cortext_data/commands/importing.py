"""Commands that write recordings of other formats as session files.

The command of a published format comes from its reader's function, which `READERS` names.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from cortext.cli.console import (
    JSON,
    SKIP_BAD,
    print_json,
    print_left_out,
    print_lines,
    print_notes,
    print_table,
    progress_bar,
)
from cortext.errors import ConfigError, DataError
from cortext.settings import Setting
from cortext_data.commands import READERS

if TYPE_CHECKING:
    from cortext.data.inspect import DatasetReport
    from cortext_data.readers.importing import Imported
    from cortext_data.readers.mapped.first_mapping import Item
    from cortext_data.readers.recording import Source

OUT = "Directory of session files to write; a second call goes on in it."


@dataclass(frozen=True)
class Scaling:
    """Features of the session files, as the command line names them."""

    normalise: Annotated[
        str | None,
        Setting(
            help="How features are scaled: block (z-scores over each block), rolling (causal"
            " z-scores), published (as in the publication: handwriting), none (left as they are:"
            " your own scaling) or raw (left as they are: packing and live decoding compute rolling"
            " z-scores). Default: block; for falcon-h2 rolling, for handwriting published."
        ),
    ] = None
    bin_ms: Annotated[
        float | None,
        Setting(
            minimum=5,
            maximum=50,
            help="Length of the bins to write in ms; counts are summed, powers averaged, before"
            " they are z-scored. Default: the recordings' own.",
        ),
    ] = None


def __getattr__(name: str) -> Callable[..., None]:
    """Return the command of a format of `READERS`, whose reader is loaded only now."""
    if name not in READERS:
        raise AttributeError(name)
    module, _, function = READERS[name].rpartition(".")
    return _command(getattr(import_module(module), function))


def _command(read: Callable[..., Source]) -> Callable[..., None]:
    """Return the command of a reader: its arguments, defaults and description are the reader's."""

    def command(
        out: Annotated[Path, Setting(help=OUT)],
        scaling: Scaling,
        skip_bad: bool = SKIP_BAD,
        as_json: bool = JSON,
        **of_reader: Any,
    ) -> None:
        _write(read(**of_reader), out, scaling, skip_bad, as_json)

    hints = get_type_hints(command, include_extras=True) | get_type_hints(read, include_extras=True)
    source, *options = signature(read).parameters.values()
    own_out, *own, _ = signature(command).parameters.values()
    parameters = [
        each.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[each.name])
        for each in (source, own_out, *options, *own)
    ]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    # A reader reads what the command writes. Only programs see the errors as classes.
    about = cleandoc(read.__doc__ or "").partition("\n\nRaises:")[0]
    command.__doc__ = about.replace("Read ", "Write ", 1)
    return command


def _write(
    source: Source,
    out: Path,
    scaling: Scaling,
    skip_bad: bool,
    as_json: bool,
) -> None:
    """Import recordings, and print the written sessions as `cortext inspect` does.

    Raises DataError after that where there were problems, unless they are to be left out.
    """
    from cortext.data.inspect import inspect
    from cortext_data.readers.importing import import_source
    from cortext_data.readers.survey import states_range

    with progress_bar("importing") as progress:
        done = import_source(
            source,
            out,
            normalise=scaling.normalise,
            bin_ms=scaling.bin_ms,
            skip_bad=skip_bad,
            progress=progress,
        )
    report = None
    if done.n_written or done.n_kept:
        with progress_bar("reading") as progress:
            is_said = any(map(states_range, done.notes))
            report = inspect(out, progress=progress, with_range=not is_said)
    _print(done, report, as_json)
    if done.problems and (done.n_incomplete or not skip_bad or report is None):
        print_lines(*done.problems, err=True)
        raise _refusal(done, skip_bad, is_empty=report is None)
    if not as_json:
        print_left_out(done.problems)
    if report is None or not any(total.n_trials for total in report.totals):
        what = "no trial was left to write" if report is None else "no trial can be used"
        raise DataError(what, where=out, fix="see the notes and problems above")


def _print(done: Imported, report: DatasetReport | None, as_json: bool) -> None:
    """Print the sessions that were written, and the notes on them."""
    if as_json:
        print_json(
            {
                "out": str(done.out),
                "written": done.n_written,
                "kept": done.n_kept,
                "refused": done.n_refused,
                "notes": done.notes,
                "problems": [problem.to_json() for problem in done.problems],
                "data": None if report is None else report.plain(),
            }
        )
    else:
        if report is not None:
            print_lines(*str(report).split("\n"))
        if done.n_kept:
            print_lines(f"{done.n_kept} recordings were there already")
        print_notes(done.notes)


def _refusal(done: Imported, skip_bad: bool, is_empty: bool) -> DataError:
    """Return the error that ends an import with problems, and what to do about them."""
    fix = "repair them, or leave these trials and files out with --skip-bad"
    if is_empty and all(problem.trial is None for problem in done.problems):
        fix = "nothing was written; correct the options or the mapping, or repair the files"
    elif is_empty and skip_bad:
        fix = "nothing was written; repair them"
    elif done.n_incomplete and skip_bad:
        fix = "repair those whose trials cannot be left out: a submission needs all of them"
    what = f"problems: {len(done.problems)}; recordings not written: {done.n_refused}"
    return DataError(what, where=done.out, fix=fix)


@dataclass(frozen=True)
class MappedFiles:
    """Files of any lab, as the command line names them."""

    out: Annotated[Path | None, Setting(help=OUT)] = None
    mapping: Annotated[
        Path | None,
        Setting(
            metavar="FILE",
            help="Mapping file: what in the files is what. With --inspect: a new file to write.",
        ),
    ] = None
    inspect: Annotated[
        bool,
        Setting(
            help="Print what is in the file, and write a first mapping where --mapping names a"
            " file."
        ),
    ] = False

    def needed(self) -> tuple[Path, Path]:
        """Return `mapping` and `out`; raise ConfigError where one was not given."""
        if self.mapping is None:
            raise ConfigError(
                "--mapping FILE is needed", fix="--inspect --mapping NEW.yaml writes a first one"
            )
        if self.out is None:
            raise ConfigError("--out DIR is needed", fix="name a directory for the session files")
        return self.mapping, self.out


def nwb(
    source: Annotated[Path, typer.Argument(help="NWB file, or a folder of NWB files.")],
    mapped: MappedFiles,
    scaling: Scaling,
    skip_bad: bool = SKIP_BAD,
    as_json: bool = JSON,
) -> None:
    """Write any lab's NWB files as session files, as a mapping file says.

    Binned time series are features, and spikes of units are binned. Look at a file first, edit the
    mapping that this writes, then import with it:

    Example: cortext import nwb day1.nwb --inspect --mapping lab.yaml

    Example: cortext import nwb recordings --mapping lab.yaml --out data/lab
    """
    from cortext_data.readers.mapped.inspect_nwb import inspect_nwb
    from cortext_data.readers.nwb import nwb as read

    if mapped.inspect:
        _show(source, ".nwb", inspect_nwb, mapped.mapping, as_json)
        return
    mapping, out = mapped.needed()
    _write(read(source, mapping), out, scaling, skip_bad, as_json)


def mat(
    source: Annotated[Path, typer.Argument(help="MATLAB file, or a folder of MATLAB files.")],
    mapped: MappedFiles,
    scaling: Scaling,
    skip_bad: bool = SKIP_BAD,
    as_json: bool = JSON,
) -> None:
    """Write any lab's MATLAB files (v5 or v7.3) as session files, as a mapping file says.

    Trials are the cells of a cell array, the rows of an array of three dimensions, or epochs of
    continuous bins. Look at a file first, edit the mapping that this writes, then import with it:

    Example: cortext import mat t99.2025.03.14.mat --inspect --mapping lab.yaml

    Example: cortext import mat recordings --mapping lab.yaml --out data/lab
    """
    from cortext_data.readers.mapped.inspect_mat import inspect_mat
    from cortext_data.readers.mat import mat as read

    if mapped.inspect:
        _show(source, ".mat", inspect_mat, mapped.mapping, as_json)
        return
    mapping, out = mapped.needed()
    _write(read(source, mapping), out, scaling, skip_bad, as_json)


def _show(
    source: Path,
    suffix: str,
    inspect_file: Callable[[Path], tuple[list[Item], str]],
    mapping: Path | None,
    as_json: bool,
) -> None:
    """Print the parts of a file, or of the first one of a folder; write a first mapping of it."""
    from cortext_data.readers.mapped.first_mapping import write_first_mapping
    from cortext_data.readers.source_files import files_of

    path, *others = files_of(source, suffix)
    items, text = inspect_file(path)
    if mapping is not None:
        write_first_mapping(mapping, text)
    if as_json:
        parts = [dataclasses.asdict(item) for item in items]
        print_json({"file": str(path), "parts": parts, "mapping": mapping and str(mapping)})
        return
    rows = [(item.name, item.kind, item.shape, item.about) for item in items]
    print_table(str(path), ["name", "kind", "shape", "about"], rows, right_from=4)
    if others:
        print_notes([f"this is the first of {1 + len(others)} files; name another one to see it"])
    if mapping is not None:
        print_lines(f"first mapping: {mapping}; check and edit it")
