"""The scripts under tools/ as modules.

They hold the held-out list and the rules that made the shipped data.
"""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parents[3] / "tools"


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    # Dataclasses look their module up.
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def train_g2p() -> ModuleType:
    return load_tool("train_g2p")


@pytest.fixture(scope="session")
def build_lexicon() -> ModuleType:
    return load_tool("build_lexicon")
