"""The lab's 5-gram model for the word search, from the Hugging Face Hub.

The facts about it come from the lab's own downloader (`phoneme_to_words_lm/download_5gram.py` in
the repository Neuroprosthetics-Lab/phoneme-to-words-lm, which replaces the Kaldi decoder of Card et
al. 2024): the repository is `nckcard/phoneme-lm-5gram`, and its files are `lexicon.txt`,
`tokens.txt`, `5gram_unpruned.bin` (about 50 GB) and `5gram_pruned.bin` (about 5 GB), KenLM binaries
over 125,000 words. They have never been fetched by the tests of this project, which use a server of
their own; so sizes, checksums and whether the words are in upper or lower case are taken as the Hub
gives them.

The Hub's interface: `/api/models/REPOSITORY/tree/main` lists files with size and digest (SHA-256 of
the content for large files, the git object's SHA-1 for small ones); `/REPOSITORY/resolve/main/FILE`
redirects to the content.

`huggingface_hub` is not used: only an extra brings it, it reads a listing of any length, and it
does not compare what it downloads with the listed SHA-256.
"""

from __future__ import annotations

import json
import os
import urllib.error
from pathlib import Path
from typing import Any

from cortext import __version__
from cortext.errors import DataError
from cortext.files import atomic_stream, disk_errors, exclusive, read_json
from cortext.processes import Progress
from cortext_published.downloads.download import RemoteFile, open_url, read_listing
from cortext_published.downloads.obtain import BUSY, Meter, Note, obtain

HUB = "https://huggingface.co"
LM_5GRAM = "lm-5gram"
REPOSITORY = "nckcard/phoneme-lm-5gram"
TOKEN_VARIABLE = "HF_TOKEN"
_SMALL = ("lexicon.txt", "tokens.txt")
_MODEL = "lm.bin"
_FACTS = "lm.json"
_FORMAT_VERSION = 2  # of lm.json, as cortext.decoding.ngram writes it
_LISTING_TIMEOUT_S = 20.0


def fetch_language_model(
    out: str | Path,
    *,
    pruned: bool = False,
    from_dir: str | Path | None = None,
    base_url: str | None = None,
    token: str | None = None,
    progress: Progress | None = None,
    note: Note = lambda line: None,
) -> list[Path]:
    """Fetch the lab's 5-gram model into language-model directory `out` and return its files.

    Downloads continue where they broke off and are checked; a second call does nothing.

    Args:
        out: New, empty, or what an earlier call for the same model made.
        pruned: The pruned model instead of the whole one.
        from_dir: Take files downloaded by hand; the Hub is only asked for their sizes and
            checksums, and not missed.
        base_url: Where the Hub, or a mirror of it, answers.
        token: Token of an account (default: the environment variable HF_TOKEN); the files are
            public.
        progress: Called with bytes done and in all.
        note: Called with a line about each file whose content could not be checked.

    Raises:
        DataError: With what can be done by hand, and for an `out` that holds another model.
    """
    out = Path(out)
    base_url = (base_url or HUB).rstrip("/")
    name = f"5gram_{'' if pruned else 'un'}pruned.bin"
    hint = f"cortext fetch {LM_5GRAM} {out}{' --pruned' if pruned else ''} --from FOLDER"
    sources = _by_hand(Path(from_dir), name) if from_dir is not None else {}
    _refuse_other(out, name)
    try:
        files = list_files(base_url, name, hint)
    except DataError:
        if not sources:
            raise
        files = [RemoteFile(local, "", path.stat().st_size) for local, path in sources.items()]

    def refused(error: urllib.error.HTTPError, named_file: str) -> DataError:
        return _refused(error, named_file, hint)

    _claim(out, name)
    meter = Meter(files, progress)
    token = token or os.environ.get(TOKEN_VARIABLE)
    with disk_errors(out), exclusive(out, DataError(BUSY, where=out)):
        for file in files:
            obtain(file, out, sources.get(file.name), token, meter, refused, note)
    return [out / local for local in (*_SMALL, _MODEL, _FACTS)]


def list_files(base_url: str, name: str, hint: str) -> list[RemoteFile]:
    """List the lexicon, the tokens and the model (as `lm.bin`), with the Hub's sizes and digests.

    Args:
        base_url: Where the Hub, or a mirror of it, answers.
        name: The model's file in the repository.
        hint: The command that takes files downloaded by hand, for messages.

    Raises:
        DataError: Where they cannot be listed.
    """
    page = f"{HUB}/{REPOSITORY}"
    try:
        with open_url(
            f"{base_url}/api/models/{REPOSITORY}/tree/main", timeout=_LISTING_TIMEOUT_S
        ) as response:
            listed = {entry["path"]: entry for entry in read_listing(response)}
        return [
            _remote_file(listed[remote], local, base_url) for local, remote in _names(name).items()
        ]
    except urllib.error.HTTPError as error:
        raise _refused(error, f"the list of files of {REPOSITORY}", hint) from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        fix = f"check the network, or download the files from {page} elsewhere and use {hint}"
        raise DataError(f"no connection ({reason})", where=base_url, fix=fix) from None
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        missing = f"has no {error}" if isinstance(error, KeyError) else "is not as expected"
        if isinstance(error, ValueError):
            missing += f": {error}"
        raise DataError(
            f"the list of files {missing}",
            where=base_url,
            fix=f"download the files from {page} and use {hint}",
        ) from None


def _names(model: str) -> dict[str, str]:
    """Return names in the repository by the names in a language-model directory."""
    return {**dict(zip(_SMALL, _SMALL, strict=True)), _MODEL: model}


def _remote_file(entry: dict[str, Any], local: str, base_url: str) -> RemoteFile:
    url = f"{base_url}/{REPOSITORY}/resolve/main/{entry['path']}"
    large = entry.get("lfs")
    if large:
        return RemoteFile(
            local, url, large["size"], large["oid"].removeprefix("sha256:"), "sha-256"
        )
    return RemoteFile(local, url, entry["size"], entry["oid"], "git-sha-1")


def _refused(error: urllib.error.HTTPError, file: str, hint: str) -> DataError:
    error.close()
    by_hand = f"download it from {HUB}/{REPOSITORY} in a browser and use {hint}"
    if error.code in (401, 403):  # also for a repository that is no longer there
        fix = f"set {TOKEN_VARIABLE} to a token of your account, or {by_hand}"
        return DataError(f"the Hub demands a login (status {error.code})", where=file, fix=fix)
    return DataError(
        f"the Hub answered with status {error.code} ({error.reason})", where=file, fix=by_hand
    )


def _by_hand(folder: Path, model: str) -> dict[str, Path]:
    """Find the files in a folder, the model under its own name or as `lm.bin`."""
    page = f"{HUB}/{REPOSITORY}"
    if not folder.is_dir():
        raise DataError("no such directory", where=folder, fix=f"put the files of {page} there")
    paths = {local: folder / remote for local, remote in _names(model).items()}
    if not paths[_MODEL].is_file() and (folder / _MODEL).is_file():
        paths[_MODEL] = folder / _MODEL
    missing = [path.name for path in paths.values() if not path.is_file()]
    if missing:
        raise DataError(
            f"{' and '.join(missing)} not found", where=folder, fix=f"download from {page}"
        )
    return paths


def _refuse_other(out: Path, model: str) -> None:
    """Raise DataError unless `out` is absent, empty, or made by an earlier call for this model."""
    try:
        facts = read_json(out / _FACTS)
        here = facts["fetched"]["file"]
    except (OSError, ValueError, KeyError, TypeError):
        here = None
    if out.exists() and here != model and (not out.is_dir() or any(out.iterdir())):
        problem = f"holds {here}" if here else "holds something else"
        raise DataError(
            f"{problem}; {model} needs a directory of its own",
            where=out,
            fix="give a new directory",
        )


def _claim(out: Path, model: str) -> None:
    """Write what `out` will hold, so that a later call can continue, unless an earlier one has."""
    facts = {
        "format_version": _FORMAT_VERSION,
        "fetched": {"repository": f"{HUB}/{REPOSITORY}", "file": model},
        "version": __version__,
    }
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        if not (out / _FACTS).exists():
            with atomic_stream(out / _FACTS) as file:
                file.write((json.dumps(facts, indent=2) + "\n").encode())
