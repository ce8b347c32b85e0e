from dataclasses import dataclass
from pathlib import Path

import pytest

from cortext.config import load_config
from cortext.errors import ConfigError


@dataclass
class Settings:
    rate: float = 1.0
    size: int = 1


def test_key_given_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("rate: 0.5\nsize: 2\nrate: 0.1\n")
    with pytest.raises(ConfigError, match=r"settings\.yaml: not valid YAML in line 3: rate is given twice"):
        load_config(path, Settings)
    path.write_text("rate: 0.5\nsize: 2\n")
    assert load_config(path, Settings) == Settings(0.5, 2)
