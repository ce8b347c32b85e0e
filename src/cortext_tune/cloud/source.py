"""Sources of the cortext that a rented machine installs: a wheel, an archive, a checkout, git.

The name `cortext` on PyPI belongs to another project, and `cortext-bci`, the name of our wheels, is
not registered there. A name with a version is refused: it would run a stranger's code.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import tomllib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

from cortext.errors import CloudError
from cortext.files import disk_errors

BUILT = ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "licenses", "native", "src")
"""Files and folders of a checkout that an installation needs."""
ACCEPTED = (
    "a wheel, a source archive (.tar.gz), a checkout, or git+https://HOST/REPOSITORY@REVISION"
)
DISTRIBUTION = "cortext-bci"
"""Name of the wheels; the package that is imported and the command are `cortext`."""
MACHINE_FOLDER = "$HOME/cortext/source"


@dataclass(frozen=True)
class InstallSource:
    """A cortext to install.

    Attributes:
        word: Argument of `pip install` on the machine, quoted for a shell.
        file: File to upload; None for a revision in git.
        build: True where the machine must compile it.
    """

    word: str
    file: Path | None
    build: bool


def read_source(text: str | Path | None, folder: Path) -> InstallSource:
    """Read a source.

    Args:
        text: The source; None takes the one that the running cortext was installed from.
        folder: Folder for the archive of a checkout's commit.

    Raises:
        CloudError: Where it cannot be installed elsewhere, and for an address that holds a
            password.
    """
    text = str(text) if text is not None else installed_from()
    if text.startswith("git+"):
        return InstallSource(shlex.quote(_git_address(text)), None, build=True)
    path = Path(text).expanduser()
    if path.is_dir():
        return _uploaded(_archive(path.resolve(), folder))
    if path.is_file() and path.name.endswith((".whl", ".tar.gz")):
        return _uploaded(path.resolve())
    if named := re.match(r"(cortext(?:[-_.]bci)?)\s*(?:\[|[=<>~!]=|$)", text):
        raise CloudError(
            f"{text!r}: the name {named[1]} on PyPI is not this project's",
            fix=f"give --source {ACCEPTED}",
        )
    raise CloudError(f"{text!r} is no source of cortext", fix=f"give --source {ACCEPTED}")


def installed_from() -> str:
    """Return the source of the running cortext, as pip recorded it (PEP 610).

    Raises CloudError where pip recorded none.
    """
    try:
        record = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except PackageNotFoundError:  # run from the sources
        record = {}
    address = str(record.get("url", ""))
    if "vcs_info" in record:
        return f"git+{address}@{record['vcs_info']['commit_id']}"
    if address.startswith("file://"):
        return unquote(urlsplit(address).path)
    raise CloudError(
        "where this cortext was installed from is not recorded", fix=f"give --source {ACCEPTED}"
    )


def _git_address(text: str) -> str:
    parts = urlsplit(text.removeprefix("git+"))
    if parts.password is not None or (parts.username is not None and parts.username != "git"):
        problem = "--source holds a password or token, which would be written to the task file"
        raise CloudError(problem, fix="give an address without one, or a wheel")
    if parts.query or parts.fragment or not text.isprintable() or " " in text:
        problem = "--source holds more than a repository and a revision, which may be a token"
        raise CloudError(problem, fix="write git+https://HOST/REPOSITORY@REVISION")
    path, at, revision = parts.path.rpartition("@")
    if (
        parts.scheme not in ("https", "ssh")
        or not parts.hostname
        or not at
        or not path
        or not revision
    ):
        raise CloudError(
            f"{text!r} names no revision in git", fix="write git+https://HOST/REPOSITORY@REVISION"
        )
    return text


def _uploaded(path: Path) -> InstallSource:
    if not re.fullmatch(r"cortext_bci-[A-Za-z0-9_.+-]+", path.name):
        raise CloudError(
            "is no wheel or source archive of cortext", where=path, fix=f"give --source {ACCEPTED}"
        )
    wheel = path.name.endswith(".whl")
    if wheel and not re.search(r"-cp311-cp311-[^-]*linux[^-]*_x86_64\.whl$", path.name):
        fix = "give a source archive or a checkout, which are compiled there"
        raise CloudError(
            "the machine runs CPython 3.11 on x86-64 Linux, and this wheel is for another",
            where=path,
            fix=fix,
        )
    return InstallSource(f'"{MACHINE_FOLDER}/{path.name}"', path, build=not wheel)


def _archive(checkout: Path, folder: Path) -> Path:
    """Write the last commit of a checkout as an archive. Raises CloudError for changed files."""
    try:
        project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        project = {}
    if project.get("name") != DISTRIBUTION:
        raise CloudError(
            "is no checkout of cortext", where=checkout, fix=f"give --source {ACCEPTED}"
        )
    if changed := _git(checkout, "status", "--porcelain", "--", *BUILT):
        problem = (
            f"{len(changed.splitlines())} files differ from the last commit, which is what the"
            " machine would run"
        )
        raise CloudError(problem, where=checkout, fix="commit them, or give --source a wheel")
    name = f"cortext_bci-{project['version']}"
    archive = folder / f"{name}.tar.gz"
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    _git(
        checkout,
        "archive",
        f"--prefix={name}/",
        f"--output={archive.resolve()}",
        "HEAD",
        "--",
        *BUILT,
    )
    return archive.resolve()


def _git(checkout: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", checkout, *arguments], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        raise CloudError(
            "git is not installed", where=checkout, fix="give --source a wheel"
        ) from None
    except subprocess.CalledProcessError as error:
        problem = f"git: {(error.stderr.strip().splitlines() or ['failed'])[-1]}"
        raise CloudError(problem, where=checkout, fix=f"give --source {ACCEPTED}") from None
    return done.stdout
