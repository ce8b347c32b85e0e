"""A table of attacks, made one after another in a forked process that any of them may end.

A fork of a process that has loaded the package takes longer than most attacks. After one that kills
or hangs the process, the rest of the table gets a new process.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

FORK = multiprocessing.get_context("fork")


def check_all(table: Sequence[Any], check: Callable[[Any], object], patience_s: float = 60) -> None:
    """Check each attack of a table; fail with the names of all that went wrong, and how.

    Args:
        table: Attacks; the text of each is its name.
        check: Called with an attack in the forked process; it fails where it raises.
        patience_s: Most seconds for an attack.
    """
    names = [str(attack) for attack in table]
    assert len(set(names)) == len(names), "two attacks have one name"
    failed, left = [], list(table)
    while left:
        failed += _failures(left, check, patience_s)
    assert not failed, "\n".join(failed)


def _failures(left: list[Any], check: Callable[[Any], object], patience_s: float) -> Iterator[str]:
    """Check attacks in one process until it ends, and take them from the list; yield failures."""
    answers, answer = FORK.Pipe(duplex=False)
    process = FORK.Process(target=_check_each, args=(list(left), check, answer))
    process.start()
    answer.close()
    made: list[str] = []
    try:
        while left:
            made.append(str(left.pop(0)))
            if not answers.poll(patience_s):
                yield f"{made[-1]}: not done after {patience_s} s, after {made[-4:-1]}"
                return
            if failure := answers.recv():
                yield f"{made[-1]}: {failure}"
        process.join(patience_s)
        if process.exitcode != 0:
            yield f"the process ended with {process.exitcode} after {made[-1]}"
    except EOFError:
        process.join(patience_s)
        yield f"{made[-1]}: the process died with {process.exitcode}, after {made[-4:-1]}"
    finally:
        process.kill()
        process.join()


def _check_each(table: list[Any], check: Callable[[Any], object], answer: Connection) -> None:
    faulthandler.disable()  # pytest's would print the stacks of all threads
    for attack in table:
        failure = ""
        try:
            check(attack)
        except BaseException as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            failure = f"{type(error).__name__}: {error} ({at.name}: {at.line})"[:2000]
        answer.send(failure)
