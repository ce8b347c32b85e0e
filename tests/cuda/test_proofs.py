"""Proofs of fast paths, in processes of their own; the device is the processor here."""

import ast
import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from cortext_cuda import proofs

SUPPORT = Path(__file__).resolve().parents[1] / "support"


@pytest.fixture(autouse=True)
def own_home(tmp_path, monkeypatch):
    """Remember in a folder of the test's, and find the checks."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    # A processor has none of the facts of a GPU.
    monkeypatch.setattr(proofs, "_key", lambda check, device, given: f"{check} {given}")
    yield
    proofs.why_not.cache_clear()


def why_not(name, *given):
    proofs.why_not.cache_clear()  # as in the next process
    return proofs.why_not(f"proof_checks:{name}", torch.device("cpu"), *given)


def remembered(tmp_path):
    path = tmp_path / ".cache" / "cortext" / "gpu-proofs.json"
    return json.loads(path.read_text()) if path.exists() else {}


def test_a_right_path_is_taken_and_checked_once(tmp_path, monkeypatch):
    (tmp_path / ".cache" / "cortext").mkdir(parents=True)
    (tmp_path / ".cache" / "cortext" / "gpu-proofs.json").write_text('{"damaged')
    assert why_not("right", 3, 4) is None
    assert remembered(tmp_path) == {"proof_checks:right (3, 4)": None}
    monkeypatch.setattr(proofs, "_asked", None)  # a second check would raise
    assert why_not("right", 3, 4) is None


def test_a_wrong_path_is_not_taken_and_its_reason_remembered(tmp_path):
    assert why_not("right", 5) == "cpu (5,)"
    assert remembered(tmp_path) == {"proof_checks:right (5,)": "cpu (5,)"}


@pytest.mark.parametrize(
    ("name", "reason"),
    [("crashes", "exit status -6"), ("raises", "MemoryError: no memory left")],
)
def test_a_check_that_ends_without_an_answer_costs_the_path_alone(tmp_path, name, reason):
    found = why_not(name)
    assert found is not None
    assert found.startswith("its check failed: ")
    assert name == "crashes" or found.endswith(reason)
    assert remembered(tmp_path) == {}  # the next start tries again


def test_a_check_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(proofs, "MOST_SECONDS", 0.2)
    assert why_not("hangs") == "its check did not end within 0 s"


def test_a_user_may_turn_all_fast_paths_off(monkeypatch):
    monkeypatch.setenv("CORTEXT_PLAIN_GPU", "1")
    assert why_not("right", 3, 4) == "CORTEXT_PLAIN_GPU is set"


def test_every_check_that_the_code_names_is_a_function():
    sources = Path(proofs.__file__).parent.glob("*.py")
    text = "\n".join(path.read_text().replace("{__name__}", f"{name(path)}") for path in sources)
    named = set(re.findall(r"cortext[\w.]*:check_\w+", text))
    assert len(named) == 5  # CTC, GRU, blocks, softsign, smoothing
    for module, _, function in (check.partition(":") for check in named):
        tree = ast.parse(Path(find_spec(module).origin).read_text())  # Triton may be missing
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def name(path):
    """The module of a file of the package."""
    inner = path.relative_to(Path(proofs.__file__).parents[1]).with_suffix("")
    return ".".join(inner.parts)


def test_another_code_is_checked_again():
    assert proofs._code("proof_checks") != proofs._code("cortext.training.loss")
    assert proofs._code("cortext_cuda.ctc") == proofs._code("cortext_cuda.gru_kernel")
