from dataclasses import dataclass
from pathlib import Path

import pytest

from cortext.config import load_config, parse_yaml
from cortext.errors import ConfigError


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
