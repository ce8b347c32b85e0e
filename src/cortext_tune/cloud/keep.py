"""Keep a run in a bucket, for the next machine: this one may be taken away at any moment.

    python -m cortext_tune.cloud.keep RUN KEPT -- cortext train ... --out RUN

RUN is on the machine's disk, because training appends to files, locks and renames, which buckets
do badly. KEPT is a folder of a mounted bucket. Every minute and at the end, changed files are
copied there, each whole or not at all: first the configuration that a state needs, then the states,
then newer files. Whenever the machine is taken away, `cortext train --resume` can continue with the
files in the bucket.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cortext.processes import STOPS, handling

EVERY_S = 60.0
RETRIES_S = (5, 15, 30, 60)
"""Pauses between attempts to copy the last files of a run."""
ORDER = ("config.yaml", "train_state/state.previous.safetensors", "train_state/state.safetensors")
FINISHED = "summary.json"
"""File that is written and copied last: the run is complete where it exists."""
LEFT_OUT = ("packed",)
"""Folders that are not copied: the next machine packs the data again."""


def keep(command: Sequence[str], run: Path, kept: Path, every_s: float = EVERY_S) -> int:
    """Run a command until it ends, with `--resume` if the run has a state.

    A SIGTERM or Ctrl-C is passed on to the command, and the state that it then saves is copied.

    Args:
        command: Words of the command.
        run: Run directory that the command writes.
        kept: Folder of the bucket.
        every_s: Seconds between copies.

    Returns:
        The exit status of the command.

    Raises:
        OSError: Where `kept` cannot be written; the command is not started.
    """
    _check_writable(kept)
    if (kept / FINISHED).is_file():
        _say(f"the run in {kept} is finished")
        return 0
    if not _has_state(run) and _has_state(kept):
        _bring_back(kept, run)
    resume = ["--resume"] if _has_state(run) else []
    copied: dict[Path, tuple[int, int]] = {}
    # In a session of its own, because a terminal sends a Ctrl-C to all of a session. The child
    # would get a second one from here, and stop without saving its state.
    child = subprocess.Popen([*command, *resume], start_new_session=True)
    with handling(STOPS, lambda *_: child.terminate()):
        while (status := _wait(child, every_s)) is None:
            try:
                copy_changed(run, kept, copied)
            except OSError as error:
                _say(f"cannot copy the run to {kept}: {error}; it is tried again")
        if not _copy_last(run, kept, copied):
            return status or 1
    return status if status >= 0 else 128 - status


def copy_changed(source: Path, target: Path, copied: dict[Path, tuple[int, int]]) -> None:
    """Copy the files of a run directory that have changed since the last call.

    Readers of `target` see each file whole or not at all.

    Args:
        source: Run directory.
        target: Folder to copy to.
        copied: Time and size of each file at its last copy; this function updates it.

    Raises:
        OSError: Where a file cannot be read or written.
    """
    for path in _files(source):
        try:
            stat = (source / path).stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if copied.get(path) == stamp:
                continue
            _copy(source / path, target / path)
        except FileNotFoundError:
            if (source / path).exists():
                raise
            continue  # removed after it was listed
        copied[path] = stamp


def _files(run: Path) -> list[Path]:
    """Return the files of a run in the order of copying, without half-written ones."""
    paths = [path.relative_to(run) for path in run.rglob("*") if path.is_file()]
    wanted = [
        path
        for path in paths
        if path.parts[0] not in LEFT_OUT and not any(p.startswith(".") for p in path.parts)
    ]
    ranks = {Path(name): rank for rank, name in enumerate(ORDER)} | {Path(FINISHED): len(ORDER) + 1}
    return sorted(wanted, key=lambda path: (ranks.get(path, len(ORDER)), path))


def _copy(source: Path, target: Path) -> None:
    # A fixed name: the next machine overwrites the file that a preempted one left half-written.
    temporary = target.with_name(f".{target.name}.tmp")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, temporary)
    temporary.replace(target)


def _copy_last(run: Path, kept: Path, copied: dict[Path, tuple[int, int]]) -> bool:
    for pause_s in (*RETRIES_S, None):
        try:
            copy_changed(run, kept, copied)
            return True
        except OSError as error:
            _say(f"cannot copy the run to {kept}: {error}")
        if pause_s is not None:
            time.sleep(pause_s)
    _say(f"what is newest of the run is only in {run} on this machine")
    return False


def _bring_back(kept: Path, run: Path) -> None:
    """Copy the run back from the bucket, whole or not at all."""
    temporary = run.with_name(f".{run.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    copy_changed(kept, temporary, {})
    shutil.rmtree(run, ignore_errors=True)
    temporary.rename(run)


def _has_state(run: Path) -> bool:
    return any((run / name).is_file() for name in ORDER[1:])


def _check_writable(kept: Path) -> None:
    kept.mkdir(parents=True, exist_ok=True)
    probe = kept / ".writable"
    probe.write_text("")
    probe.unlink()


def _wait(child: subprocess.Popen[bytes], seconds: float) -> int | None:
    try:
        return child.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None


def _say(line: str) -> None:
    print(f"cortext: {line}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m cortext_tune.cloud.keep", description="Keep a run in a bucket."
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("kept", type=Path)
    parser.add_argument("--every", type=float, default=EVERY_S, metavar="SECONDS")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    try:
        return keep(given.command, given.run, given.kept, given.every)
    except OSError as error:
        _say(
            f"{error.filename or given.kept}: {error.strerror}; the bucket must be writable, and"
            " `cortext` installed"
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
