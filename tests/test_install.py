"""Installation: what hints say, and what the project's files promise."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import cortext
from cortext.cli import run
from cortext.errors import MissingLibrary
from cortext.extras import install_hint, need
from cortext_tune.cloud.source import DISTRIBUTION

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FROM_AN_INDEX = re.compile(
    r"""(?ix) cortext(?:[-_.]bci)?\[                                # cortext[llm]
    | (?:pip3?|pipx|uv|uv\ tool)\ +install\ +(?:-[-\w]+\ +)*['"]?cortext(?:[-_.]bci)?(?![-_/\w]|\.\w) """
)
"""Names the project on the public index, where it owns no name."""


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("pip install 'cortext[llm]'", True),
        ("pip install --upgrade cortext", True),
        ("%pip install cortext-bci", True),
        ("uv pip install cortext_bci==0.1.0", True),
        ("pipx install cortext", True),
        ("fix=f\"pip install 'cortext[{extra}]'\"", True),
        ("pip install '.[llm]'", False),
        ("pip install dist/cortext_bci-0.1.0-cp311-cp311-linux_x86_64.whl", False),
        ("pip install cortext_bci-0.1.0.tar.gz", False),
        ("`pip install .` brings cortext", False),
    ],
)
def test_a_line_that_installs_by_name_is_distinguished_from_one_that_does_not(line, found):
    assert bool(FROM_AN_INDEX.search(line)) == found


def test_nothing_says_to_install_a_name_that_the_project_does_not_own():
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
    for folder, names in (
        ("src", "*.py"),
        ("docs", "*.md"),
        ("notebooks", "*.ipynb"),
        ("tools", "*.py"),
    ):
        files += (ROOT / folder).rglob(names)
    assert len(files) > 300
    assert [
        f"{file.relative_to(ROOT)}: {line}"
        for file in files
        for line in file.read_text().splitlines()
        if FROM_AN_INDEX.search(line)
    ] == []


def test_a_missing_library_is_one_line_that_works_in_a_checkout():
    with pytest.raises(MissingLibrary) as error:
        need("library_that_nobody_has", "llm")
    assert str(error.value) == (
        "library_that_nobody_has is not installed; in a checkout of cortext: pip install '.[llm]'"
    )


def test_every_extra_that_a_hint_names_exists():
    extras = set(PROJECT["project"]["optional-dependencies"])
    named = re.compile(
        r"""\bneed\([^()]*?, "([a-z]+)"\)|install_hint\(["']([a-z]+)["']\)|pip install '\.\[([a-z,]+)\]'"""
    )
    found = set()
    for folder, names in (("src", "*.py"), ("docs", "*.md")):
        for file in (ROOT / folder).rglob(names):
            for match in named.finditer(file.read_text()):
                found |= set("".join(filter(None, match.groups())).split(","))
    assert {"llm", "live", "tune", "tpu", "ray", "bleu"} <= found <= extras


def test_name_and_version_are_the_same_in_the_package_and_in_its_metadata():
    project = PROJECT["project"]
    assert (project["name"], project["version"]) == (DISTRIBUTION, cortext.__version__)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == cortext.__version__
    assert install_hint("llm").endswith("pip install '.[llm]'")


@pytest.mark.parametrize("statement", ["from cortext import _native", "import cortext._native"])
def test_a_package_that_is_not_compiled_says_so_in_a_line(statement, monkeypatch, capsys):
    monkeypatch.delattr(cortext, "_native", raising=False)
    monkeypatch.setitem(sys.modules, "cortext._native", None)
    monkeypatch.setattr("cortext.cli.app", lambda *_, **__: exec(statement))
    assert run(["lm"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("cortext: the compiled part of cortext cannot be loaded (")
    assert line.endswith("); in a checkout of cortext: pip install .")


def test_another_library_that_is_missing_is_not_taken_for_the_compiled_part(monkeypatch):
    monkeypatch.setattr("cortext.cli.app", lambda *_, **__: exec("from cortext import nothing"))
    with pytest.raises(ImportError, match="nothing"):
        run(["lm"])


def program(name: str) -> Path:
    """A program of this environment. Skips the test where it is not installed."""
    found = Path(sys.executable).with_name(name)
    if not found.is_file():
        pytest.skip(f"{name} is not installed; `make setup` does it")
    return found


def test_the_dockerfile_has_nothing_that_its_linter_finds(tmp_path):
    hadolint = program("hadolint")
    done = subprocess.run(
        [hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "")
    # The linter is awake: a user that is no number, which it may not know, is found.
    (tmp_path / "Dockerfile").write_text(
        (ROOT / "Dockerfile").read_text().replace("USER 1000", "USER root")
    )
    done = subprocess.run([hadolint, tmp_path / "Dockerfile"], capture_output=True, text=True)
    assert "DL3002" in done.stdout


def test_the_container_runs_the_demo_and_not_as_root():
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    said = dict(
        line.split(" ", 1) for line in lines if line.startswith(("USER", "ENTRYPOINT", "CMD"))
    )
    assert said == {"USER": "1000", "ENTRYPOINT": '["cortext"]', "CMD": '["demo", "--out", "demo"]'}
    bases = [line.split()[1] for line in lines if line.startswith("FROM")]
    assert all(
        re.fullmatch(r"python:3\.11-[-a-z0-9]+", base) for base in bases
    )  # constraints.txt is for 3.11


def test_the_container_gets_only_what_it_copies():
    copied = set()
    for line in (ROOT / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY") and "--from" not in line:
            copied |= set(line.split()[1:-1])
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    assert lines[1] == "*"
    assert {line[1:] for line in lines if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


@pytest.mark.parametrize(
    ("platform", "arch", "suffix"),
    [
        ("linux", "x86_64", "manylinux_x86_64"),
        ("linux", "aarch64", "manylinux_aarch64"),
        ("macos", "arm64", "macosx_arm64"),
    ],
)
def test_cibuildwheel_builds_for_each_version_of_python_on_linux_and_macos(platform, arch, suffix):
    command = [
        program("cibuildwheel"),
        "--print-build-identifiers",
        "--platform",
        platform,
        "--archs",
        arch,
        ROOT,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"cp{version}-{suffix}" for version in (311, 312, 313)]
