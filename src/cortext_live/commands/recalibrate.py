"""The commands `recalibrate` and `chain`: a service that learns from daily use, and its models."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cortext.cli.console import JSON, print_json, print_lines, print_table
from cortext.cli.options import Run

ChainFolder = Annotated[Path, typer.Argument(help="Directory that `recalibrate` wrote.")]
Operator = Annotated[
    str | None, typer.Option(help="Name that the chain gets; that of the account by default.")
]
WAIT_S = 2.0
"""Seconds between two readings of a log without news."""
PAUSE_S = 0.05
"""Seconds between two checks whether somebody still speaks."""
NAMED = 10
"""Most entries of a log that one line names."""


def recalibrate(
    run: Run,
    log: Annotated[
        Path, typer.Option(help="Usage log of a decoder that keeps all features.", metavar="DIR")
    ],
    lm: Annotated[Path, typer.Option(help="Language-model directory.")],
    out: Annotated[Path, typer.Option(help="Directory of the chain of models; made if missing.")],
    method: Annotated[
        str, typer.Option(help="Way to learn: together, replay or one-step.")
    ] = "together",
    every: Annotated[
        int, typer.Option(help="Sentences that are learnt from between two models.")
    ] = 20,
    settle: Annotated[
        float, typer.Option(help="Seconds that a sentence waits for its correction.")
    ] = 60.0,
    allow_provisional: Annotated[
        bool,
        typer.Option(help="Let a model speak for a day where too few sentences can judge it."),
    ] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Change a setting of the method: key=value.", metavar="KEY=VALUE"
        ),
    ] = None,
    options: Annotated[
        Path | None, typer.Option(help="Decoder options; those fitted to the run by default.")
    ] = None,
    old_data: Annotated[
        Path | None,
        typer.Option(help="Labelled recordings of the run's days, replayed beside new sentences."),
    ] = None,
    operator: Operator = None,
    always: Annotated[
        bool, typer.Option(help="Compute also while an utterance is being decoded.")
    ] = False,
    once: Annotated[bool, typer.Option(help="End when all of the log is done.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of noise, dropout and replay.")] = 0,
    as_json: bool = JSON,
) -> None:
    """Keep a decoder calibrated: learn from its usage log, and judge the new models.

    Each model is a run directory in the chain. It is promoted only if corrected sentences that none
    has learnt from show that it adds less than 2 points of word errors. It computes on one core, at
    the lowest priority, and waits while somebody speaks. Ctrl-C ends the service; the same command
    continues.

    Example: cortext recalibrate runs/first --log runs/log --lm runs/lm --out runs/chain
    """
    from cortext.processes import only_when_idle, stop_event, threads
    from cortext_live.recalibration.service import Recalibration
    from cortext_live.recalibration.settings import ServiceOptions
    from cortext_live.recalibration.watching import watch
    from cortext_live.usage.speaking import is_speaking

    settings = ServiceOptions(every=every, settle_s=settle, allow_provisional=allow_provisional)
    with only_when_idle(), threads(1), stop_event() as stop:

        def pause() -> None:
            while not always and is_speaking(log) and not stop.is_set():
                stop.wait(PAUSE_S)

        with Recalibration(
            run,
            log,
            lm,
            out,
            method=method,
            overrides=changes or (),
            settings=settings,
            options=options,
            operator=operator or getpass.getuser(),
            seed=seed,
            pause=pause,
            old_data=old_data,
        ) as service:

            def say(news: dict[str, Any]) -> None:
                _say(news, log)

            watch(service, stop, print_json if as_json else say, WAIT_S, once=once)


def _say(news: dict[str, Any], log: Path) -> None:
    """Print a judgement or a problem as a line."""
    if "error" in news:
        print_lines(news["error"], err=True)
    elif "set_aside" in news:
        print_lines(_set_aside(news["set_aside"], news["reason"], log), err=True)
    else:
        print_lines("model {model}: {action}: {reason}".format_map(news))


def _set_aside(numbers: list[int], reason: str, log: Path) -> str:
    """Return a line about utterances of a log that nothing is learnt from."""
    several = len(numbers) > 1
    named = f"{'entries' if several else 'entry'} {', '.join(map(str, numbers[:NAMED]))}"
    if len(numbers) > NAMED:
        named += f" and {len(numbers) - NAMED} more"
    line = f"{log}: {named} {'are' if several else 'is'} set aside: {reason}"
    how = f"cortext log delete {log} --entry {numbers[0]}"
    return f"{line}; the others are learnt from. To delete {'one' if several else 'it'}: {how}"


def show(chain: ChainFolder, as_json: bool = JSON) -> None:
    """Show the models of a chain, what became of each, and which one speaks.

    Example: cortext chain show runs/chain
    """
    from cortext_live.recalibration.chain import read_chain

    contents = read_chain(chain)
    speaking = contents.speaking(datetime.now(UTC))
    models: list[dict[str, Any]] = []
    for entry in contents.entries:
        if entry.kind not in ("base", "candidate"):
            continue
        about = [each for each in contents.entries if each.model == entry.number][1:]
        learnt = entry.facts.get("learnt", {})
        judged = [each for each in about if each.kind in ("judged", "checked")]
        reasons = [each.facts["reason"] for each in judged if each.facts["reason"]]
        models.append(
            {
                "model": entry.model_name,
                "when": entry.when.isoformat(timespec="seconds"),
                "parent": entry.facts.get("parent"),
                "decoded": len(learnt.get("decoded", ())),
                "corrected": len(learnt.get("corrected", ())),
                "decisions": [each.kind for each in about if each not in judged],
                "reason": reasons[-1] if reasons else "",
            }
        )
    name = contents.entries[speaking].model_name
    if as_json:
        print_json({"speaking": name, "parent": contents.parent, "models": models})
        return
    columns = ["model", "when", "parent", "decoded", "corrected", "became", "judged"]
    rows = []
    for each in models:
        facts = [each[key] for key in ("model", "when", "parent", "decoded", "corrected")]
        became = ", ".join(each["decisions"]) or "-"
        rows.append(
            [*("-" if fact is None else str(fact) for fact in facts), became, each["reason"]]
        )
    print_table(f"{chain}: model {name} speaks", columns, rows)


def verify(chain: ChainFolder, as_json: bool = JSON) -> None:
    """Check all entries and models of a chain against their hashes.

    Example: cortext chain verify runs/chain
    """
    from cortext_live.recalibration.chain import verify_chain

    contents = verify_chain(chain)
    n_entries, n_models = len(contents.entries), len(contents.models)
    if as_json:
        print_json({"entries": n_entries, "models": n_models})
        return
    print_lines(f"{chain}: {n_entries} entries and {n_models} models are as they were written")


def rollback(
    chain: ChainFolder,
    to: Annotated[
        int | None,
        typer.Argument(
            help="Number of the model; the parent by default, or its parent where it speaks."
        ),
    ] = None,
    why: Annotated[str, typer.Option(help="Reason, for the chain.")] = "",
    operator: Operator = None,
    as_json: bool = JSON,
) -> None:
    """Let an earlier model speak again; the next ones learn from there.

    Example: cortext chain rollback runs/chain 0 --why "more errors since noon"
    """
    from cortext.errors import RunError
    from cortext_live.recalibration.chain import LOCK_S, open_chain, verify_model

    with open_chain(chain, wait_s=LOCK_S) as opened:
        contents = opened.contents
        speaking = contents.speaking(datetime.now(UTC))
        if to is None:
            if speaking != contents.parent:
                to = contents.parent
            elif (to := contents.entries[contents.parent].facts.get("parent")) is None:
                raise RunError(
                    "the first model of the chain speaks; none is before it", where=chain
                )
        verify_model(chain, contents.model(to))
        opened.roll_back(to, why, operator or getpass.getuser())
        name = contents.entries[to].model_name
    if as_json:
        print_json({"speaking": name})
        return
    print_lines(f"{chain}: model {name} speaks")
