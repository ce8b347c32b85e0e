"""DuckDB as an external sort.

A database in memory that goes to the disk where a limit is reached.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cortext.errors import LanguageModelError

if TYPE_CHECKING:
    import duckdb


class Database:
    """A DuckDB connection with a memory limit; use as a context manager.

    Args:
        directory: Directory for data that does not fit into memory.
        memory_bytes: Limit of DuckDB's memory; the process takes about half a gigabyte more.
    """

    def __init__(self, directory: Path, memory_bytes: int) -> None:
        import duckdb  # 0.1 s, which only building pays

        self._connection = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{max(memory_bytes >> 20, 128)}MiB",
                "temp_directory": str(directory / "spill"),
                # Order costs memory, and the results are keyed or sorted where it matters.
                "preserve_insertion_order": False,
                # Nothing is fetched from the network.
                "autoinstall_known_extensions": False,
                "autoload_known_extensions": False,
            },
        )

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *raised: object) -> None:
        self._connection.close()

    def run(self, query: str) -> None:
        """Run a statement; Ctrl-C ends it at once."""
        self._run(query)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query that has few."""
        return self._run(query).fetchall()

    def arrays(self, query: str) -> dict[str, np.ndarray]:
        """Return the columns of a query."""
        return self._run(query).fetchnumpy()

    def append(self, table: str, columns: Mapping[str, np.ndarray]) -> None:
        """Add rows to a table; `columns` are in the table's order."""
        self._connection.register("rows_to_append", dict(columns))
        self._run(f"INSERT INTO {table} SELECT * FROM rows_to_append")
        self._connection.unregister("rows_to_append")

    def _run(self, query: str) -> duckdb.DuckDBPyConnection:
        import duckdb

        try:
            in_background(lambda: self._connection.execute(query), self._connection.interrupt)
        except duckdb.OutOfMemoryException as error:
            fix = "give more with --memory, or free space on the disk of --out"
            raise LanguageModelError(
                f"memory or disk space ran out while counting ({_line(error)})", fix=fix
            ) from None
        except duckdb.IOException as error:
            fix = "free space on the disk of --out"
            raise LanguageModelError(
                f"cannot write what is counted ({_line(error)})", fix=fix
            ) from None
        return self._connection


def in_background(
    work: Callable[[], object], interrupt: Callable[[], object] | None = None
) -> None:
    """Run compiled work on a thread, so that Ctrl-C takes effect at once.

    On Ctrl-C `interrupt` ends the work. Work that cannot be ended is left alone, and ends with the
    process at the latest.
    """
    failed: list[BaseException] = []
    ended = threading.Event()  # Thread.join forgets a running thread when Ctrl-C interrupts it

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)
        finally:
            ended.set()

    threading.Thread(target=run, daemon=True).start()
    try:
        while not ended.wait(0.5):
            pass
    except BaseException:
        while interrupt and not ended.wait(0.05):
            interrupt()  # again and again: it has no effect just before the work begins
        raise
    if failed:
        raise failed[0]


def _line(error: Exception) -> str:
    return str(error).splitlines()[0]
