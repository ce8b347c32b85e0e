"""Checks: one line each, with PASS, FAIL or the reason why it could not be made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from cortext_checks.report import Status

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a verification.

    Attributes:
        name: The property that is checked.
        status: `PASS`, `FAIL` or `not checked`.
        found: The value found and the value expected; the reason of a check that was not made.
    """

    name: str
    status: Status
    found: str

    def __str__(self) -> str:
        link = ", because " if self.status == "not checked" else "  "
        return f"{self.name}: {self.status}{link}{self.found}"


def judged(name: str, right: bool, finding: str) -> Check:
    """Return a check that passes if `right`."""
    return Check(name, "PASS" if right else "FAIL", finding)


def not_checked(name: str, because: str) -> Check:
    """Return a check that could not be made."""
    return Check(name, "not checked", because)


@dataclass(frozen=True)
class StageOutcome:
    """Result of one stage.

    Attributes:
        checks: Its lines.
        facts: What it measured, as JSON types: `sessions` has a mapping for each session.
    """

    checks: list[Check]
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return both fields as JSON types."""
        return asdict(self)

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> StageOutcome:
        """Return the outcome that `to_json` wrote."""
        return cls([Check(**check) for check in mapping["checks"]], dict(mapping["facts"]))


@dataclass(frozen=True)
class StageResult:
    """A stage as the page shows it.

    Attributes:
        name: Name of the stage.
        checks: Its lines.
        seconds: Seconds of the work, also where an earlier call did it.
        peak_mb: Most memory of the process during the stage; None where Linux does not tell.
        kept: True if an earlier call did the work.
    """

    name: str
    checks: list[Check]
    seconds: float
    peak_mb: float | None
    kept: bool


@dataclass(frozen=True)
class Verification:
    """The contents of `verify.json`.

    Attributes:
        dataset: Name of the data set.
        stages: In the order in which they ran.
        facts: Measurements, by name.
        sessions: Measurements, by session.
        published: Published `per` and `wer` of the baseline.
        machine: Versions, processor, cores, threads and memory.
        sentences: Prompts with the decoded sentences; None unless asked for.
    """

    dataset: str
    stages: list[StageResult]
    facts: dict[str, Any]
    sessions: dict[str, dict[str, Any]]
    published: dict[str, float]
    machine: dict[str, Any]
    sentences: list[dict[str, Any]] | None = None

    @property
    def checks(self) -> list[Check]:
        """The lines of all stages."""
        return [check for stage in self.stages for check in stage.checks]

    def count(self, status: Status) -> int:
        """Return the number of lines with this status."""
        return sum(check.status == status for check in self.checks)

    @property
    def failed(self) -> bool:
        """True if a check failed."""
        return self.count("FAIL") > 0

    def to_json(self) -> dict[str, Any]:
        """Return the verification as JSON types."""
        counts = {status: self.count(status) for status in ("PASS", "FAIL", "not checked")}
        return {"format_version": FORMAT_VERSION, "counts": counts} | asdict(self)
