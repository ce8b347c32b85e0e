from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest

from cortext.config import check_fields, load_config, parse_yaml
from cortext.errors import ConfigError
from cortext.settings import Setting


@dataclass
class Settings:
    rate: float = 1.0
    size: int = 1


def test_key_given_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("rate: 0.5\nsize: 2\nrate: 0.1\n")
    with pytest.raises(
        ConfigError, match=r"settings\.yaml: not valid YAML in line 3: rate is given twice"
    ):
        load_config(path, Settings)
    path.write_text("rate: 0.5\nsize: 2\n")
    assert load_config(path, Settings) == Settings(0.5, 2)


def test_a_section_that_merges_another_can_be_merged_itself() -> None:
    text = (
        "base: &base {x: 1, y: 1}\nouter: {inner: &a {<<: *base, x: 2}}\nb: {<<: *a, z: 3}\nc: {<<:"
        " [*a, *base]}\n"
    )
    found = parse_yaml(text)
    assert found["outer"]["inner"] == {"x": 2, "y": 1}
    assert (found["b"], found["c"]) == ({"x": 2, "y": 1, "z": 3}, {"x": 2, "y": 1})


def test_key_given_twice_in_a_section_that_merges_is_refused() -> None:
    with pytest.raises(ConfigError, match="in line 2: x is given twice"):
        parse_yaml("base: &base {y: 1}\nouter: {x: 1, <<: *base, x: 2}\n")


@pytest.mark.parametrize(
    "text",
    [
        "size: 2023-13-45\n",  # a date that cannot be
        "size: " + "1" * 5000 + "\n",
        "[" * 5_000,
        "a: &a [*a]\n",
        "a: &a [1, 1, 1, 1, 1, 1, 1, 1]\n"
        + "".join(
            f"{y}: &{y} [{', '.join([f'*{x}'] * 8)}]\n"
            for x, y in zip("abcdefgh", "bcdefghi", strict=True)
        ),
    ],
    ids=["date", "number", "nested", "in itself", "repeated"],
)
def test_yaml_that_cannot_be_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "settings.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"settings\.yaml: ") as error:
        load_config(tmp_path / "settings.yaml", Settings)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@dataclass(frozen=True)
class Bounded:
    count: Annotated[int, Setting(minimum=1, maximum=65_536)] = 1
    share: Annotated[float, Setting(minimum=0, below=1)] = 0.5
    rate: Annotated[float, Setting(above=0)] = 1.0
    steps: Annotated[int | None, Setting(minimum=1)] = None
    free: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "section.")


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"count": 0}, "count is 0; it must be at least 1 and at most 65536"),
        ({"count": 65_537}, "count is 65537; it must be at least 1 and at most 65536"),
        ({"share": -0.1}, "share is -0.1; it must be at least 0 and below 1"),
        ({"share": 1}, "share is 1.0; it must be at least 0 and below 1"),
        ({"share": float("nan")}, "share is nan; it must be at least 0 and below 1"),
        ({"rate": 0}, "rate is 0.0; it must be above 0 and finite"),
        ({"rate": float("inf")}, "rate is inf; it must be above 0 and finite"),
        ({"steps": 0}, "steps is 0; it must be at least 1"),
        ({"count": 1.5}, "count is 1.5 (float); int is needed"),
    ],
)
def test_a_value_outside_the_bounds_beside_its_field_is_refused(values, line):
    with pytest.raises(ConfigError) as caught:
        Bounded(**values)
    assert str(caught.value) == f"section.{line}"


def test_values_within_the_bounds_are_taken():
    kept = Bounded(count=np.int64(65_536), share=0, rate=1e-30, free=float("inf"))
    assert (kept.count, kept.share, kept.rate, kept.steps) == (65_536, 0.0, 1e-30, None)
    assert type(kept.count) is int


def test_bounds_are_written_by_their_value_alone():
    """`typing` takes Annotated types with equal bounds for one type, whichever came first."""
    needed = [Setting(maximum=most).needed(0) for most in (1e9, 10**9, 65_536.0, (1 << 32) - 1)]
    assert needed == ["at most 1e+09", "at most 1e+09", "at most 65536", "at most 4294967295"]
