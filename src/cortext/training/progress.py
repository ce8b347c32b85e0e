"""Progress bars and lines on the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from cortext.errors import plain

Advance = Callable[[int, float, float | None, float], None]
"""Called with batches done, loss, share of wrong tokens (None before the first validation) and
trials per second.
"""


@contextmanager
def training_bar(total: int, done: int, shown: bool, errors: str = "PER") -> Iterator[Advance]:
    """Show a bar on stderr with loss, wrong tokens, trials per second and time left.

    Args:
        total: Batches of the run.
        done: Batches done before.
        shown: False shows nothing. Nothing is shown either if stderr is not a terminal.
        errors: Name of the share of wrong tokens.

    Yields:
        The function that moves the bar.
    """
    console = Console(stderr=True)
    status = TextColumn(
        f"loss {{task.fields[loss]}}  {errors} {{task.fields[per]}}"
        "  {task.fields[rate]:.0f} trials/s"
    )
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        status,
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not (shown and console.is_terminal)
    ) as bar:
        number = bar.add_task("training", total=total, completed=done, loss="-", per="-", rate=0.0)

        def advance(done: int, loss: float, per: float | None, rate: float) -> None:
            text = "-" if per is None else f"{100 * per:.1f} %"
            bar.update(number, completed=done, loss=f"{loss:.2f}", per=text, rate=rate)

        yield advance


@contextmanager
def reading_bar(shown: bool, task: str = "reading") -> Iterator[Callable[[int, int], None]]:
    """Show a bar for work before training, such as packing session files.

    Yields:
        The function that moves the bar: call it with the parts done and their total.
    """
    console = Console(stderr=True)
    columns = (TextColumn(task), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not (shown and console.is_terminal)
    ) as bar:
        number = bar.add_task(task, total=None, visible=False)
        yield lambda done, total: bar.update(number, completed=done, total=total, visible=True)


def say(line: str, shown: bool) -> None:
    """Print a line for the user on stderr, if `shown`.

    The line may hold names of files and text from them: control characters are made harmless.
    """
    if shown:
        Console(stderr=True, highlight=False).print(
            plain(line), markup=False, emoji=False, soft_wrap=True
        )
