"""Installation: what hints say, and what the project's files promise."""

import re
import tomllib
from pathlib import Path

import pytest

import cortext
from cortext.cloud.source import DISTRIBUTION
from cortext.errors import MissingLibrary
from cortext.extras import install_hint, need

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
def test_a_line_that_installs_by_name_is_told_from_one_that_does_not(line, found):
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
    assert install_hint("llm").endswith("pip install '.[llm]'")
