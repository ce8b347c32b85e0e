"""The command `decode`: a run's split; `decode_logits` decodes logits without a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cortext.cli.console import (
    DEVICE,
    JSON,
    PLUGINS,
    SKIP_BAD,
    is_given,
    print_json,
    print_left_out,
    print_lines,
    print_notes,
    progress_bar,
)
from cortext.cli.decode_logits import (
    MadeUpSentence,
    SavedLogitsSettings,
    decode_made_up,
    decode_saved_logits,
)
from cortext.cli.options import PromptedModelSettings, searching
from cortext.errors import DecodingError
from cortext.evaluation.settings import SearchSettings
from cortext.plugins import load_plugins

if TYPE_CHECKING:
    from cortext.evaluation.submission import Predictions

SHARED = {"lm", "options", "llm", "llm_lora", "llm_device", "context", "as_json"}
FORMS = {
    "run": (
        {"run", "data", "out"},
        {"split", "threads", "ray", "gpus_per_worker", "skip_bad", "device", "plugin"},
    ),
    "logits": ({"logits", "order", "out"}, {"scores", "temperature", "threads"}),
    "evaluation": ({"logits", "out"}, {"temperature", "threads"}),
    "fake_text": ({"fake_text"}, {"noise", "seed"}),
}
"""Forms of the command: the parameters that each needs, and those that it may have.

`evaluation` is the form of `--logits` with a directory.
"""

SEE_HELP = "see `cortext decode --help`"


def decode(
    call: typer.Context,
    lm: Annotated[Path, typer.Option(help="Language-model directory.")],
    *,
    run: Annotated[
        Path | None, typer.Argument(help="Run directory of a trained model; needs --data, --out.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Directory of session files, or a packed one.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    saved: SavedLogitsSettings,
    made_up: MadeUpSentence,
    out: Annotated[
        Path | None,
        typer.Option(help="CSV file to write; a name ending in .txt gets one sentence a line."),
    ] = None,
    search: SearchSettings,
    large: PromptedModelSettings,
    skip_bad: bool = SKIP_BAD,
    device: str = DEVICE,
    plugin: list[Path] = PLUGINS,
    as_json: bool = JSON,
) -> None:
    """Decode a split, saved logits, or a made-up sentence into text.

    A split becomes `id,text` rows, numbered as the Brain-to-Text '25 competition numbers them, or
    lines in the same order, as Brain-to-Text '24 takes them (`--out submission.txt`). Saved logits
    become rows named by their arrays: [P, V] each (or one [B, P, V] and `lengths` [B]), a
    dataset per trial in HDF5. The logits of an evaluation directory are decoded beside the
    sentences that it holds.

    Example: cortext decode runs/first --data runs/sim --split test --lm runs/lm --out
    predictions.csv

    Example: cortext decode runs/first --data runs/sim --lm runs/lm --llm facebook/opt-6.7b --out
    predictions.csv

    Example: cortext decode --logits logits.npz --order release --lm runs/lm --out predictions.csv

    Example: cortext decode --logits runs/eval --lm runs/lm --out predictions.csv

    Example: cortext decode --fake-text "how are you" --noise 1 --lm runs/lm
    """
    check_form(call)
    search = searching(search, lm, large)
    load_plugins(plugin)
    if run is not None and data is not None and out is not None:
        from cortext.evaluation import decode as decode_split

        _decode_split(
            partial(decode_split, run, data, split, out=out, device=device, **vars(search)),
            out,
            skip_bad,
            as_json,
        )
    elif saved.logits is not None and out is not None:
        decode_saved_logits(saved, out, search, as_json)
    elif made_up.fake_text is not None:
        decode_made_up(made_up, search, as_json)


def check_form(call: typer.Context) -> None:
    """Raise DecodingError unless all parameters of one form are given, and no others."""
    given = {name for name in call.params if is_given(call, name)}
    named = {
        name: "RUN" if name == "run" else f"--{name.replace('_', '-')}" for name in call.params
    }
    forms = [name for name in FORMS if name in given]
    if len(forms) != 1:
        problem = (
            f"{' and '.join(named[name] for name in forms)} at once"
            if forms
            else "nothing to decode"
        )
        raise DecodingError(
            f"{problem}; give a run directory or --logits or --fake-text", fix=SEE_HELP
        )
    logits = call.params["logits"]
    is_directory = forms == ["logits"] and logits is not None and logits.is_dir()
    required, allowed = FORMS["evaluation" if is_directory else forms[0]]
    if is_directory and "order" in given:
        raise DecodingError(
            f"--order is given, and {logits} says how its logits are ordered", fix="leave it out"
        )
    for name in sorted(given - required - allowed - SHARED):
        raise DecodingError(f"{named[name]} does not go with {named[forms[0]]}", fix=SEE_HELP)
    for name in sorted(required - given):
        raise DecodingError(f"{named[forms[0]]} needs {named[name]}", fix=SEE_HELP)


def _decode_split(
    decode_all: Callable[..., Predictions], out: Path, skip_bad: bool, as_json: bool
) -> None:
    """Call `cortext.evaluation.decode` with the arguments that it lacks, and print its result."""
    with progress_bar("decoding") as progress:
        texts = decode_all(skip_bad=skip_bad, progress=progress)
    print_lines(texts.decoder_options, err=True)
    print_notes(texts.notes)
    if as_json:
        facts = {
            "out": str(out),
            "n_trials": len(texts),
            "n_skipped": len(texts.skipped),
            "skipped": [problem.to_json() for problem in texts.skipped],
            "notes": list(texts.notes),
            "decoder_options": texts.decoder_options,
        }
        print_json(facts)
    else:
        print_lines(f"{out}: {len(texts)} rows")
        print_left_out(texts.skipped)
