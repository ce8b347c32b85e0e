"""A launch of a file that passes for a wheel, in a folder of its own."""

import subprocess
from pathlib import Path

import pytest

from cortext_tune import cloud

GIT = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
WHEEL = "cortext_bci-0.1.0-cp311-cp311-manylinux_2_28_x86_64.whl"


@pytest.fixture
def wheel(tmp_path) -> Path:
    path = tmp_path / "wheels" / WHEEL
    path.parent.mkdir()
    path.touch()
    return path


@pytest.fixture
def launch(tmp_path, monkeypatch, wheel):
    """`cortext_tune.launch` of the smallest recipe, for what a test does not say itself."""
    monkeypatch.chdir(tmp_path)
    usual = {"data": "gs://lab/packed", "out": "gs://lab/runs/First_run", "source": wheel}

    def launch(config="tiny", accelerator="tpu-v5litepod-8", **changes):
        return cloud.launch(config, accelerator, **(usual | changes))

    return launch


@pytest.fixture
def checkout(tmp_path):
    """A repository with one commit that looks like ours."""
    root = tmp_path / "a checkout"
    (root / "src" / "cortext").mkdir(parents=True)
    (root / "native").mkdir()
    (root / "licenses").mkdir()
    for name in (
        "README.md",
        "LICENSE",
        "NOTICE",
        "licenses/kenlm.txt",
        "native/CMakeLists.txt",
        "secrets.txt",
    ):
        (root / name).write_text("text\n")
    (root / "src/cortext/__init__.py").write_text("one = 1\n")
    (root / "pyproject.toml").write_text('[project]\nname = "cortext-bci"\nversion = "0.3.0"\n')
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*GIT, *arguments], cwd=root, check=True)
    return root
