"""Stages of a verification: each is timed, and its outcome is kept until what it read changes."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cortext import __version__
from cortext.data.checks import SKIP_HINT
from cortext.errors import CortextError, DataError
from cortext.files import atomic_write, check_writable, disk_errors, exclusive, read_json
from cortext.memory import memory, restart_peak
from cortext.processes import Progress
from cortext_published.verification.checks import Check, StageOutcome, StageResult, judged

STAGES = "stages"
"""Folder of the kept outcomes."""
PAGE = "verify.html"
RESULT = "verify.json"
ShowStage = Callable[[str], Progress | None]
"""Called with the name of a stage that begins; returns its progress callback, or None."""


class Stages:
    """The stages of one verification, in a directory that keeps their outcomes.

    Args:
        out: Directory of the verification.
        basis: What every outcome depends on, as JSON types.
        private: Texts that must not be in the outcomes, such as paths, with their replacements.
        show: Shows a stage that begins.
    """

    def __init__(
        self, out: Path, basis: Mapping[str, Any], private: Mapping[str, str], show: ShowStage
    ) -> None:
        self.out = out
        self.basis = {"cortext": __version__, **basis}
        self.private = private
        self.show = show
        self.results: list[StageResult] = []
        self.facts: dict[str, Any] = {}
        self.sessions: dict[str, dict[str, Any]] = {}

    def run(
        self,
        name: str,
        made_from: Mapping[str, Any],
        work: Callable[[Progress | None], StageOutcome],
        products: Sequence[Path] = (),
    ) -> bool:
        """Run a stage, or take what an earlier call kept of it.

        An error becomes a line that fails, and is not kept.

        Args:
            name: Name of the stage.
            made_from: What the outcome depends on, as JSON types.
            work: The work; it gets a progress callback.
            products: Files and directories that the work writes, without which it is done again.

        Returns:
            Whether the work was done without an error.
        """
        path = self.out / STAGES / f"{name.replace(' ', '-')}.json"
        key = json.loads(json.dumps({**self.basis, **made_from}))
        kept = _read(name, path, key) if all(product.exists() for product in products) else None
        if kept is not None:
            self._add(*kept)
            return True
        progress = self.show(name)
        restart_peak()
        start_s = time.perf_counter()
        error: Check | None = None
        try:
            outcome = work(progress)
        except CortextError as refusal:
            error = judged(name, False, _with_advice_here(str(refusal)))
        except OSError as refusal:
            error = judged(name, False, f"{refusal.filename or 'a file'}: {refusal.strerror}")
        except MemoryError:
            error = judged(name, False, "there is not enough memory for this")
        except Exception as fault:  # the page must be made: it is what a bug report begins with
            error = judged(name, False, _own_fault(fault))
        if error is not None:
            outcome = StageOutcome([error])
        outcome = StageOutcome.of(self.clean(outcome.to_json()))
        seconds = round(time.perf_counter() - start_s, 3)
        peak_mb = memory().get("peak_rss_mb")
        if error is None:
            content = {"made_from": key, "outcome": outcome.to_json()}
            content |= {"seconds": seconds, "peak_mb": peak_mb}
            atomic_write(path, json.dumps(content).encode())
        self._add(StageResult(name, outcome.checks, seconds, peak_mb, False), outcome.facts)
        return error is None

    def skip(self, name: str, checks: list[Check]) -> None:
        """Add a stage that could not run, with the lines that say why."""
        self._add(StageResult(name, checks, 0.0, None, False), {})

    def clean(self, value: Any) -> Any:
        """Return a value of JSON types without paths of the user and quotations of several words.

        An error may quote the value of a damaged file, which can be a sentence.
        """
        if isinstance(value, Mapping):
            return {key: self.clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean(item) for item in value]
        if not isinstance(value, str):
            return value
        for text, replacement in self.private.items():
            # Whole names alone: `/data` is no part of `/data_val.hdf5`, and a name without
            # directories is a path only where a file of it follows: it may be a word.
            after = r"(?![\w-]|\.\w)" if "/" in text else "(?=/)"
            whole = rf"(?<![\w./-]){re.escape(text)}{after}"
            value = re.sub(whole, replacement, value)
        return _QUOTED.sub(_without_words, _DIRECTORIES.sub("", value))

    def _add(self, result: StageResult, facts: Mapping[str, Any]) -> None:
        self.results.append(result)
        for session, values in facts.get("sessions", {}).items():
            self.sessions.setdefault(session, {}).update(values)
        self.facts |= {key: value for key, value in facts.items() if key != "sessions"}


_DIRECTORIES = re.compile(r"(?<![\w.~/-])/(?:[^\s/:;,'\"]+/)+")
"""The directories of an absolute path."""
_QUOTED = re.compile(r"""(?<!\w)b?'(?:[^'\\]|\\.)*(?:'|$)|b?"(?:[^"\\]|\\.)*(?:"|$)""")
"""A text as `repr` quotes it; long messages may lack its end."""


def _without_words(quoted: re.Match[str]) -> str:
    """Return a quotation if it is one name, else an ellipsis."""
    return "'...'" if " " in quoted[0] else quoted[0]


def _with_advice_here(line: str) -> str:
    """Return an error with advice that a verification, which has no `--skip-bad`, can follow."""
    if not line.endswith(SKIP_HINT):
        return line
    return f"{line.rpartition('; ')[0]}; give the release's own files"


def _own_fault(fault: Exception) -> str:
    """Return where an unexpected error was raised; its text may quote the data and is left out."""
    trace = fault.__traceback__
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    file = Path(trace.tb_frame.f_code.co_filename)
    place = f"{file.parent.name}/{file.name}, line {trace.tb_lineno}"
    return f"cortext has a fault: {type(fault).__name__} in {place}; report it with this page"


def _read(
    name: str, path: Path, key: Mapping[str, Any]
) -> tuple[StageResult, Mapping[str, Any]] | None:
    """Return the kept result of a stage that was made from the same, or None."""
    try:
        kept = read_json(path)
        if kept["made_from"] != key:
            return None
        outcome = StageOutcome.of(kept["outcome"])
        return StageResult(
            name, outcome.checks, kept["seconds"], kept["peak_mb"], True
        ), outcome.facts
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextmanager
def verification_directory(out: Path) -> Iterator[None]:
    """Make the directory of a verification, and keep other processes out of it.

    Raises:
        DataError: For one that holds something else, cannot be written, or is in use.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / STAGES).is_dir()):
        fix = "choose another name or remove it"
        raise DataError("exists and is not the directory of a verification", where=out, fix=fix)
    check_writable(out / PAGE)
    with disk_errors(out):
        (out / STAGES).mkdir(parents=True, exist_ok=True)
    busy = DataError("another verification is writing there", where=out, fix="wait for its end")
    with exclusive(out, busy):
        yield


def fingerprint(files: Sequence[Path], root: Path) -> dict[str, list[int]]:
    """Return size and time of change (ns) of files, by their names below `root`.

    A link to nothing has neither; whoever reads it says so.
    """
    state_of: dict[str, list[int]] = {}
    for path in sorted(files):
        name = os.path.relpath(path, root)
        state_of[name] = []
        with suppress(OSError):
            status = path.stat()
            state_of[name] = [status.st_size, status.st_mtime_ns]
    return state_of
