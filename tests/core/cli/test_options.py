"""Options of the command line that are made of the fields of settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from cortext.cli.options import with_options
from cortext.errors import ConfigError
from cortext.settings import Setting


@dataclass(frozen=True)
class Brewing:
    """Settings of a pot of tea."""

    leaf: Annotated[str, Setting(help="Kind of tea.", argument=True)]
    minutes: Annotated[float, Setting(help="Time in the pot.", minimum=0.5, maximum=10)]
    water_ml: Annotated[int | None, Setting(help="Water; the pot's without it.", minimum=1)] = None
    pot: Annotated[Path | str, Setting(help="Pot.", kind=Path, metavar="POT")] = Path("blue")
    milk: Annotated[bool, Setting(help="With milk.")] = False
    sugar: Annotated[Literal["none", "brown"], Setting(help="Sugar.")] = "none"
    secret: int = 7

    def __post_init__(self) -> None:
        if self.leaf == "coffee":
            raise ConfigError("coffee is no tea")


def brew(
    brewing: Brewing,
    guests: Annotated[int, Setting(help="Cups.", minimum=1)] = 1,
    *,
    whisper: Annotated[bool, typer.Option("--whisper", help="Say less.")] = False,
) -> None:
    """Make tea."""
    FOUND.append((brewing, guests, whisper))


FOUND: list[Any] = []


def run(*arguments: str) -> Any:
    FOUND.clear()
    app = typer.Typer(rich_markup_mode=None)
    app.command()(with_options(brew))
    return CliRunner().invoke(app, list(arguments))


def test_a_command_gets_its_settings_as_one_object():
    assert run("assam", "--minutes", "3").exit_code == 0
    assert [(Brewing("assam", 3.0), 1, False)] == FOUND
    given = ["--water-ml", "300", "--pot", "red", "--milk", "--sugar", "brown"]
    assert run("assam", "--minutes", "3", *given, "--guests", "2", "--whisper").exit_code == 0
    assert [(Brewing("assam", 3.0, 300, Path("red"), True, "brown"), 2, True)] == FOUND


@pytest.mark.parametrize(
    "wrong",
    [
        ["assam"],
        ["--minutes", "3"],
        ["assam", "--minutes", "0.4"],
        ["assam", "--minutes", "11"],
        ["assam", "--minutes", "3", "--water-ml", "0"],
        ["assam", "--minutes", "3", "--guests", "0"],
        ["assam", "--minutes", "3", "--sugar", "white"],
        ["assam", "--minutes", "3", "--no-milk"],
        ["assam", "--minutes", "3", "--secret", "1"],
    ],
)
def test_bounds_choices_and_required_settings_hold(wrong):
    assert run(*wrong).exit_code == 2
    assert FOUND == []


def test_settings_that_disagree_are_refused_before_the_command():
    found = run("coffee", "--minutes", "3")
    assert (str(found.exception), FOUND) == ("coffee is no tea", [])


def test_help_says_what_the_fields_say():
    text = " ".join(run("--help").output.split())
    for expected in (
        "Make tea.",
        "Time in the pot.",
        "0.5<=x<=10",
        "POT",
        "With milk.",
        "none|brown",
    ):
        assert expected in text
    assert "secret" not in text


def test_a_command_without_settings_keeps_its_options():
    def plain(name: Annotated[str, typer.Argument()] = "a") -> str:
        return name

    assert with_options(plain)(name="b") == "b"
