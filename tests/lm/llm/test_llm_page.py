"""The page about large language models is true."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from cortext.decoding import DecoderOptions
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.options import LLMOptions

PAGE = (Path(__file__).resolve().parents[3] / "docs/guides/large-models.md").read_text()


def test_its_python_runs(tiny_lm_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "text.txt").write_text("could you open the window\nwould you open it\n" * 3)
    LanguageModel.build([tmp_path / "text.txt"], 2, tmp_path / "lm")
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    exec(
        code.replace("path/to/model", str(tiny_lm_dir)).replace("path/to/lm", str(tmp_path / "lm")),
        {},
    )
    assert capsys.readouterr().out.startswith("could you open the window -")


def test_its_settings_are_options_with_these_defaults():
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert DecoderOptions().changed(yaml.safe_load(text)).llm.weight == 0.55
    rows = re.findall(r"^\| `(\w+)` \| `?([\w.]+)`? \|", PAGE, re.MULTILINE)
    named = {field.name for field in fields(LLMOptions)}
    assert len(rows) == 7
    assert all(
        name in named and str(getattr(LLMOptions(), name)).removesuffix(".0") == value
        for name, value in rows
    )
