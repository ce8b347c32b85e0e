"""Remove each check of some source files in turn, and list the removals that no test notices.

    OMP_NUM_THREADS=1 .venv/bin/python tools/remove_checks.py SOURCE... -- TEST...

A check is an `if` or an `except` whose body ends in `raise`, within a function. Removing it makes
the condition false, or the `except` match nothing. What follows TEST goes to pytest.

The tests are collected once, in one process. A first fork of it runs them all and records which
tests enter the body of which check: no other test can notice a removal. Then every check has a fork
of its own, with the changed code in memory; the first test that fails, floods the memory or exceeds
the time ends it. No file is changed.

Not seen: checks in programs that tests start without forking, and tests that fail unchanged. Tests
that bound their own time may fail on a busy machine without having noticed anything.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import gc
import importlib
import os
import resource
import select
import signal
import sys
import tempfile
import time
import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

MEMORY = 6 << 30
"""Bytes that a fork may take beyond those that it begins with, unless a test sets its own limit."""


@dataclass(frozen=True)
class Check:
    """A check: its file, and its position among the checks of that file."""

    path: Path
    number: int
    line: int
    text: str


def checks_of(tree: ast.AST) -> list[ast.If | ast.ExceptHandler]:
    """Return the checks of a module's functions by line; the same for every parse of the file."""
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    found = {
        node.lineno: node
        for function in functions
        for node in ast.walk(function)
        if isinstance(node, ast.If | ast.ExceptHandler) and isinstance(node.body[-1], ast.Raise)
    }
    return [found[line] for line in sorted(found)]


def list_checks(path: Path) -> list[Check]:
    """Return a file's checks."""
    source = path.read_text()
    lines = source.splitlines()
    return [
        Check(path, number, node.lineno, lines[node.lineno - 1].strip())
        for number, node in enumerate(checks_of(ast.parse(source)))
    ]


def remove(node: ast.If | ast.ExceptHandler) -> None:
    """Let a check's body never be entered."""
    if isinstance(node, ast.ExceptHandler):
        node.type = ast.Tuple([], ast.Load())
    elif any(isinstance(part, ast.NamedExpr) for part in ast.walk(node.test)):
        node.test = ast.BoolOp(ast.And(), [node.test, ast.Constant(False)])
    else:
        node.test = ast.Constant(False)


def mark(node: ast.If | ast.ExceptHandler, name: str) -> None:
    """Let a check's body begin with a call of the global function `reached_check`."""
    node.body.insert(0, ast.parse(f"reached_check({name!r})").body[0])


def change(path: Path, how: Callable[[int, ast.If | ast.ExceptHandler], None]) -> None:
    """Give the functions of an imported module the code of its changed source.

    `how` gets each check's position and node, and may change the node.
    """
    tree = ast.parse(path.read_text())
    for number, node in enumerate(checks_of(tree)):
        how(number, node)
    module = compile(ast.fix_missing_locations(tree), str(path), "exec")
    codes = {(code.co_qualname, code.co_firstlineno): code for code in codes_in(module)}
    # Not isinstance: it would ask lazy modules for their class, which imports them.
    for function in gc.get_objects():
        if type(function) is types.FunctionType:
            old = function.__code__
            if old.co_filename == str(path):
                function.__code__ = codes.get((old.co_qualname, old.co_firstlineno), old)


def codes_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of all functions and classes within some code."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from codes_in(constant)


class Removal:
    """A pytest plug-in that runs the collected tests in forks, for each check those that reach it."""

    def __init__(self, paths: Iterable[Path], seconds: float) -> None:
        self.checks = [check for path in paths for check in list_checks(path)]
        self.paths = list(paths)
        self.seconds = seconds
        self.place = ""
        """The test that runs, or the fixture of several tests that is being set up."""
        self.report: Callable[[pytest.TestReport], None] = lambda report: None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self) -> None:
        """Import what will be changed: tests may import it late."""
        for path in self.paths:
            parts = path.relative_to(Path("src").resolve()).with_suffix("").parts
            importlib.import_module(".".join(parts).removesuffix(".__init__"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Hand on a test's result."""
        self.report(report)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        """Count what a shared fixture does for every test that uses it."""
        before = self.place
        if fixturedef.scope != "function":
            self.place = f"{fixturedef.baseid} {fixturedef.argname}"
        try:
            return (yield)
        finally:
            self.place = before

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Measure, then remove the checks one by one."""
        gc.unfreeze()  # frozen functions are not among gc.get_objects()
        reaching = self.measure(session)
        unnoticed = defaultdict(list)
        for number, check in enumerate(self.checks, start=1):
            print(f"\r{number} of {len(self.checks)} checks", end="", file=sys.stderr, flush=True)
            tests = reaching[check]
            if not tests:
                unnoticed[check.path].append((check, "no test enters it"))
            elif not self.notices(session, check, tests):
                unnoticed[check.path].append((check, f"{len(tests)} tests enter it, all pass"))
        print(file=sys.stderr)
        self.show(unnoticed)
        return True

    def show(self, unnoticed: dict[Path, list[tuple[Check, str]]]) -> None:
        """Print the unnoticed removals and their number by file."""
        for path in self.paths:
            total = sum(check.path == path for check in self.checks)
            print(
                f"{path.relative_to(Path.cwd())}: {total} checks, {len(unnoticed[path])} unnoticed"
            )
            for check, why in unnoticed[path]:
                print(f"  {check.line}: {check.text}  ({why})")
        print(f"total: {len(self.checks)} checks, {sum(map(len, unnoticed.values()))} unnoticed")

    def measure(self, session: pytest.Session) -> dict[Check, list[pytest.Item]]:
        """Run all tests unchanged; return those that enter each check, the cheapest first."""
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            list(self.fork(lambda say: self.record(session, log), 1e9))
            reached, seconds, failed = defaultdict(set), defaultdict(float), set()
            for line in log.read_text().splitlines():
                kind, value, place = line.split("\t")
                if kind == "reached":
                    reached[value].add(place)
                elif kind == "failed":
                    failed.add(place)
                else:
                    seconds[place] += float(value)
        for place in sorted(failed):
            print("fails unchanged:", place)
        good = [item for item in session.items if item.nodeid not in failed]
        places = {item: {item.nodeid, *shared_fixtures(item)} for item in good}
        good.sort(key=lambda item: seconds[item.nodeid])
        first = {item.path: number for number, item in reversed(list(enumerate(good)))}
        good.sort(key=lambda item: first[item.path])  # keeps the fixtures of a file
        return {
            check: [item for item in good if places[item] & reached[f"{check.path}:{check.number}"]]
            for check in self.checks
        }

    def record(self, session: pytest.Session, log: Path) -> None:
        """Run all tests; write what each reaches, how long it takes and whether it fails."""
        descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

        def write(kind: str, value: str, place: str) -> None:
            os.write(descriptor, f"{kind}\t{value}\t{place}\n".encode())

        def report(report: pytest.TestReport) -> None:
            write("seconds", str(report.duration), report.nodeid)
            if report.failed:
                write("failed", "", report.nodeid)

        vars(builtins)["reached_check"] = lambda name: write("reached", name, self.place)
        for path in self.paths:
            change(path, lambda number, node, path=path: mark(node, f"{path}:{number}"))
        self.report = report
        self.run(session.items)

    def notices(self, session: pytest.Session, check: Check, tests: list[pytest.Item]) -> bool:
        """Return whether one of the tests fails without a check."""

        def work(say: Callable[[bytes], None]) -> None:
            change(check.path, lambda number, node: number == check.number and remove(node))
            self.report = lambda report: say(b"F" if report.failed else b".")
            self.run(tests)
            say(b"E")

        last = b""
        for last in self.fork(work, self.seconds):
            if last == b"F":
                return True
        return last != b"E"  # killed, or no answer in time

    def run(self, tests: list[pytest.Item]) -> None:
        """Run tests in this process."""
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            self.place = item.nodeid
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def fork(
        self, work: Callable[[Callable[[bytes], None]], None], seconds: float
    ) -> Iterator[bytes]:
        """Do work in a fork; yield each byte that it says, until it ends or is silent for long."""
        reader, writer = os.pipe()
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            most = resource.getrlimit(resource.RLIMIT_AS)[1]
            resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, most))
            try:
                work(lambda said: os.write(writer, said))
            except BaseException as error:
                os.write(writer, b"!" + repr(error).encode())
            finally:
                os._exit(0)
        os.close(writer)
        try:
            while select.select([reader], [], [], seconds)[0] and (said := os.read(reader, 1)):
                if said == b"!":  # a fault of this script: tests report their own
                    raise RuntimeError(os.read(reader, 1000).decode())
                yield said
        finally:
            os.close(reader)
            os.killpg(process, signal.SIGKILL)  # with the servers that tests have started
            os.waitpid(process, 0)


def shared_fixtures(item: pytest.Item) -> Iterator[str]:
    """Yield the names, as `Removal.place` has them, of a test's fixtures."""
    for definitions in item._fixtureinfo.name2fixturedefs.values():
        for definition in definitions:
            yield f"{definition.baseid} {definition.argname}"


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="+", type=Path, help="files under src/")
    parser.add_argument("--seconds", type=float, default=60.0, help="most for one test")
    own, tests = sys.argv[1:], []
    if "--" in own:
        at = own.index("--")
        own, tests = own[:at], own[at + 1 :]
    given = parser.parse_args(own)
    plugin = Removal([path.resolve() for path in given.sources], given.seconds)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = f"{folder}/hypothesis"
        start = time.monotonic()
        options = ["-s", "-q", "-p", "no:cacheprovider", "--basetemp", f"{folder}/pytest"]
        status = pytest.main([*options, *tests], plugins=[plugin])
        print(f"{time.monotonic() - start:.0f} s")
    sys.exit(status)


if __name__ == "__main__":
    main()
