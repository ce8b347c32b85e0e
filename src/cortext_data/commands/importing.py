"""Commands that write recordings of other formats as session files."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from cortext_data.readers.importing import Imported
    from cortext_data.readers.mapped.first_mapping import Item
    from cortext_data.readers.recording import Source

Folder = Annotated[Path, typer.Argument(help="Directory that the archive was unpacked in.")]
Out = Annotated[
    Path, typer.Option(help="Directory of session files to write; a second call goes on in it.")
]
Normalise = Annotated[
    str | None,
    typer.Option(
        help="How features are scaled: block (z-scores over each block), rolling (causal z-scores),"
        " published (as in the publication: handwriting), none (left as they are: your own"
        " scaling) or raw (left as they are: packing and live decoding compute rolling z-scores)."
        " Default: block; for falcon-h2 rolling, for handwriting published."
    ),
]
BinMs = Annotated[
    float | None,
    typer.Option(
        "--bin-ms",
        min=5,
        max=50,
        help="Length of the bins to write in ms; counts are summed, powers averaged, before they"
        " are z-scored. Default: the recordings' own.",
    ),
]


def _write(
    source: Source,
    out: Path,
    normalise: str | None,
    bin_ms: float | None,
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
            normalise=normalise,
            bin_ms=bin_ms,
            skip_bad=skip_bad,
            progress=progress,
        )
    report = None
    if done.n_written or done.n_kept:
        with progress_bar("reading") as progress:
            is_said = any(map(states_range, done.notes))
            report = inspect(out, progress=progress, with_range=not is_said)
    if as_json:
        print_json(
            {
                "out": str(out),
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
    if done.problems and (done.n_incomplete or not skip_bad or report is None):
        print_lines(*done.problems, err=True)
        raise _refusal(done, skip_bad, is_empty=report is None)
    if not as_json:
        print_left_out(done.problems)
    if report is None or not any(total.n_trials for total in report.totals):
        what = "no trial was left to write" if report is None else "no trial can be used"
        raise DataError(what, where=out, fix="see the notes and problems above")


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


def handwriting(
    source: Folder,
    out: Out,
    partition: Annotated[
        str,
        typer.Option(
            help="What is held out: HeldOutBlocks (the harder one) or HeldOutTrials; it becomes"
            " val."
        ),
    ] = "HeldOutBlocks",
    normalise: Normalise = None,
    bin_ms: BinMs = None,
    skip_bad: bool = SKIP_BAD,
    as_json: bool = JSON,
) -> None:
    """Write attempted handwriting (Willett 2021) as session files.

    Labels are characters. Features are scaled as in the publication, by blocks of single letters.

    Example: cortext import handwriting handwritingBCIData --out data/handwriting
    """
    from cortext_data.readers.handwriting import handwriting

    found = handwriting(source, partition=partition)
    _write(found, out, normalise, bin_ms, skip_bad, as_json)


def inner_speech(
    source: Annotated[
        Path, typer.Argument(help="Directory with .mat files of the release, or one of them.")
    ],
    out: Out,
    participant: Annotated[
        str | None, typer.Option(help="Participant, where there are several: t12, t15, t16 or t17.")
    ] = None,
    epoch: Annotated[
        str, typer.Option(help="Period of a trial: go, or the delay before it.")
    ] = "go",
    behaviour: Annotated[
        str | None,
        typer.Option(help="Keep only cues of this behaviour, such as attempted. Default: all."),
    ] = None,
    channels: Annotated[
        str | None,
        typer.Option(help="Keep only this set of channels, such as 55b. Default: all channels."),
    ] = None,
    val_blocks: Annotated[
        int, typer.Option(min=0, help="Last blocks of each session that become val.")
    ] = 1,
    normalise: Normalise = None,
    bin_ms: BinMs = None,
    skip_bad: bool = SKIP_BAD,
    as_json: bool = JSON,
) -> None:
    """Write inner and attempted speech (Kunz 2025) as session files.

    The last block of each session becomes val. The way of speaking becomes the trial's corpus.

    Example: cortext import inner-speech sentenceData --participant t12 --out data/inner
    """
    from cortext_data.readers.inner_speech import inner_speech

    found = inner_speech(
        source,
        participant=participant,
        epoch=epoch,
        behaviour=behaviour,
        channels=channels,
        val_blocks=val_blocks,
    )
    _write(found, out, normalise, bin_ms, skip_bad, as_json)


def t12(
    source: Folder,
    out: Out,
    columns: Annotated[
        str,
        typer.Option(
            metavar="RANGES",
            help="Columns of the arrays: 1-128 is area 6v, 129-256 area 44; also 1-64,97-128.",
        ),
    ] = "1-128",
    threshold: Annotated[
        str,
        typer.Option(help="Threshold crossings: tx1 (-3.5 times the RMS voltage) to tx4 (-6.5)."),
    ] = "tx1",
    normalise: Normalise = None,
    bin_ms: BinMs = None,
    skip_bad: bool = SKIP_BAD,
    as_json: bool = JSON,
) -> None:
    """Write the recordings of Brain-to-Text '24 (participant T12, Willett 2023).

    SOURCE is competitionData, or a folder that it lies in. Its folders train, test and
    competitionHoldOut become the splits train, val and test. The sentences of competitionHoldOut
    are not read.

    Example: cortext import t12 competitionData --out data/t12
    """
    from cortext_data.readers.t12 import t12 as read

    found = read(source, columns=columns, threshold=threshold)
    _write(found, out, normalise, bin_ms, skip_bad, as_json)


def falcon_h2(
    source: Annotated[
        Path, typer.Argument(help="Directory with the NWB files of DANDI 000950, at any depth.")
    ],
    out: Out,
    held_out: Annotated[
        bool,
        typer.Option(help="Also write the held-out days, of which three trials are for training."),
    ] = True,
    normalise: Normalise = None,
    bin_ms: BinMs = None,
    skip_bad: bool = SKIP_BAD,
    as_json: bool = JSON,
) -> None:
    """Write the handwriting of FALCON H2 (DANDI 000950) as session files.

    The calibration becomes train, and minival, which repeats two of its trials, val. Features are
    z-scored as the evaluator lets a decoder do it: causally. The evaluator drives
    `cortext_published.falcon.FalconDecoder`.

    Example: cortext import falcon-h2 000950 --out data/h2
    """
    from cortext_data.readers.falcon import falcon_h2

    _write(falcon_h2(source, held_out=held_out), out, normalise, bin_ms, skip_bad, as_json)


MappedOut = Annotated[
    Path | None,
    typer.Option(help="Directory of session files to write; a second call goes on in it."),
]
MappingFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Mapping file: what in the files is what. With --inspect: a new file to write.",
    ),
]
Inspect = Annotated[
    bool,
    typer.Option(
        "--inspect",
        help="Print what is in the file, and write a first mapping where --mapping names a file.",
    ),
]


def nwb(
    source: Annotated[Path, typer.Argument(help="NWB file, or a folder of NWB files.")],
    out: MappedOut = None,
    mapping: MappingFile = None,
    inspect: Inspect = False,
    normalise: Normalise = None,
    bin_ms: BinMs = None,
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

    if inspect:
        _show(source, ".nwb", inspect_nwb, mapping, as_json)
        return
    out, mapping = _needed(out, mapping)
    _write(read(source, mapping), out, normalise, bin_ms, skip_bad, as_json)


def mat(
    source: Annotated[Path, typer.Argument(help="MATLAB file, or a folder of MATLAB files.")],
    out: MappedOut = None,
    mapping: MappingFile = None,
    inspect: Inspect = False,
    normalise: Normalise = None,
    bin_ms: BinMs = None,
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

    if inspect:
        _show(source, ".mat", inspect_mat, mapping, as_json)
        return
    out, mapping = _needed(out, mapping)
    _write(read(source, mapping), out, normalise, bin_ms, skip_bad, as_json)


def _needed(out: Path | None, mapping: Path | None) -> tuple[Path, Path]:
    """Return both; raise ConfigError where one was not given."""
    if mapping is None:
        raise ConfigError(
            "--mapping FILE is needed", fix="--inspect --mapping NEW.yaml writes a first one"
        )
    if out is None:
        raise ConfigError("--out DIR is needed", fix="name a directory for the session files")
    return out, mapping


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
