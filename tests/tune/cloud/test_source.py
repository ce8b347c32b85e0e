"""What a machine installs: a wheel, an archive, a commit.

Nothing that would be another project, or hold a password.
"""

import json
import tarfile

import pytest

from cortext.errors import CloudError
from cortext_tune.cloud import source as module
from cortext_tune.cloud.source import read_source


def test_a_wheel_is_uploaded_under_its_name(wheel, tmp_path):
    found = read_source(wheel, tmp_path)
    assert found.word == f'"$HOME/cortext/source/{wheel.name}"'
    assert (found.file, found.build) == (wheel, False)


@pytest.mark.parametrize(
    "name",
    [
        "cortext_bci-0.1.0-cp312-cp312-linux_x86_64.whl",
        "cortext_bci-0.1.0-cp311-cp311-macosx_14_0_arm64.whl",
    ],
)
def test_a_wheel_of_another_machine_is_refused(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(CloudError, match=r"CPython 3\.11 on x86-64 Linux"):
        read_source(tmp_path / name, tmp_path)


@pytest.mark.parametrize(
    "name", ["torch-2.13.0-cp311-cp311-linux_x86_64.whl", "cortext_bci-0.1 $(id).tar.gz"]
)
def test_a_file_with_another_name_is_refused(tmp_path, name):
    (tmp_path / name).touch()
    with pytest.raises(CloudError, match="no wheel or source archive of cortext"):
        read_source(tmp_path / name, tmp_path)


def test_a_checkout_becomes_an_archive_of_its_commit_and_of_nothing_else(checkout, tmp_path):
    (checkout / "notes.txt").write_text("not committed, and not installed\n")
    found = read_source(checkout, tmp_path / "launch")
    assert found.build
    assert found.file == tmp_path / "launch" / "cortext_bci-0.3.0.tar.gz"
    with tarfile.open(found.file) as archive:
        names = {member.name for member in archive if member.isfile()}
    expected = (
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "NOTICE",
        "licenses/kenlm.txt",
        "native/CMakeLists.txt",
        "src/cortext/__init__.py",
    )
    assert names == {f"cortext_bci-0.3.0/{name}" for name in expected}


@pytest.mark.parametrize("path", ["src/cortext/__init__.py", "src/cortext/new.py"])
def test_a_checkout_with_uncommitted_code_is_refused(checkout, tmp_path, path):
    (checkout / path).write_text("two = 2\n")
    with pytest.raises(CloudError, match=r"1 files differ from the last commit.*commit them"):
        read_source(checkout, tmp_path)


def test_a_folder_that_is_no_repository_is_refused_in_a_line(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "cortext-bci"\nversion = "0.3.0"\n')
    with pytest.raises(CloudError, match="not a git repository"):
        read_source(tmp_path, tmp_path)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "other"\nversion = "0.3.0"\n')
    with pytest.raises(CloudError, match="is no checkout of cortext"):
        read_source(tmp_path, tmp_path)


def test_a_revision_in_git_is_installed_by_address(tmp_path):
    found = read_source("git+https://example.org/lab/cortext.git@v1.0;id", tmp_path)
    assert found.word == "'git+https://example.org/lab/cortext.git@v1.0;id'"
    assert found.file is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("git+https://me:ghp_secret@example.org/cortext@v1", "password or token"),
        ("git+https://ghp_secret@example.org/cortext@v1", "password or token"),
        (
            "git+https://example.org/cortext@v1?access_token=ghp_secret",
            "more than a repository and a revision",
        ),
        ("git+https://example.org/cortext@v1#ghp_secret", "more than a repository and a revision"),
        ("git+https://example.org/cortext@v1\nghp_secret", "more than a repository and a revision"),
        ("git+https://example.org/cortext", "names no revision"),
        ("git+https://example.org/cortext@", "names no revision"),
        ("git+file:///tmp/cortext@v1", "names no revision"),
        ("cortext==0.8", "the name cortext on PyPI is not this project's"),
        ("cortext", "the name cortext on PyPI is not this project's"),
        ("cortext-bci[llm]==0.1.0", "the name cortext-bci on PyPI is not this project's"),
        ("nowhere.whl", "is no source of cortext"),
    ],
)
def test_what_cannot_be_installed_is_said_in_a_line(tmp_path, monkeypatch, text, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CloudError, match=says) as error:
        read_source(text, tmp_path)
    assert "\n" not in str(error.value)
    assert "ghp_secret" not in str(error.value)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (
            {"url": "file:///home/a%20b/cortext", "dir_info": {"editable": True}},
            "/home/a b/cortext",
        ),
        (
            {"url": "file:///tmp/cortext_bci-1-cp311-cp311-linux_x86_64.whl", "archive_info": {}},
            "/tmp/cortext_bci-1-cp311-cp311-linux_x86_64.whl",
        ),
        (
            {"url": "https://example.org/c.git", "vcs_info": {"vcs": "git", "commit_id": "abc1"}},
            "git+https://example.org/c.git@abc1",
        ),
    ],
)
def test_without_a_source_it_is_what_runs_here(monkeypatch, record, expected):
    class Installed:
        def read_text(self, name):
            return json.dumps(record) if name == "direct_url.json" else None

    monkeypatch.setattr(module, "distribution", lambda name: Installed())
    assert module.installed_from() == expected


def test_an_installation_from_an_index_must_name_its_source(monkeypatch):
    class Installed:
        def read_text(self, name):
            return None

    monkeypatch.setattr(module, "distribution", lambda name: Installed())
    with pytest.raises(CloudError, match="not recorded; give --source a wheel"):
        module.installed_from()


def test_a_cortext_that_is_run_from_its_sources_must_name_its_source(monkeypatch):
    monkeypatch.setattr(module, "DISTRIBUTION", "a-distribution-that-nobody-has")
    with pytest.raises(CloudError, match="not recorded; give --source a wheel"):
        module.installed_from()
