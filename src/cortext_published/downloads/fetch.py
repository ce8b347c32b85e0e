"""Published data: the recordings of participant T15 (Card et al. 2024), from the Dryad repository.

The lab's language model is in `cortext_published.downloads.hub`. Dryad lists a data set to anyone,
but hands out files only to those who are logged in: set DRYAD_TOKEN to a token of your account, or
download the files in a browser and give their folder as `from_dir`.
"""

from __future__ import annotations

import os
import urllib.error
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cortext.errors import DataError, nearest
from cortext.files import disk_errors, exclusive, is_plain_name
from cortext.processes import Progress
from cortext_published.downloads.download import RemoteFile, open_url, read_listing
from cortext_published.downloads.hub import LM_5GRAM, fetch_language_model
from cortext_published.downloads.obtain import BUSY, Meter, Note, obtain

DRYAD = "https://datadryad.org"
TOKEN_VARIABLE = "DRYAD_TOKEN"
_LISTING_TIMEOUT_S = 20.0
_MOST_PAGES = 100  # a page may name itself as the next one


@dataclass(frozen=True)
class Release:
    """A published data set: its DOI, and the files of each part; others are of part `rest`."""

    doi: str
    parts: dict[str, tuple[str, ...]]
    rest: str

    @property
    def page(self) -> str:
        """Address of the files for a browser."""
        return f"{DRYAD}/dataset/doi:{self.doi}"

    def part_of(self, name: str) -> str:
        """Return the part that a file belongs to."""
        return next((part for part, names in self.parts.items() if name in names), self.rest)


T15 = Release(
    "10.5061/dryad.dncjsxm85",
    {
        "neural": ("t15_copyTask_neuralData.zip",),
        "baseline": ("t15_pretrained_rnn_baseline.zip",),
        "figures": ("t15_copyTask.pkl", "t15_personalUse.pkl"),
    },
    rest="figures",
)
RELEASES = {"t15": T15}


def fetch(
    dataset: str,
    out: str | Path,
    *,
    part: str | None = None,
    pruned: bool = False,
    from_dir: str | Path | None = None,
    base_url: str | None = None,
    token: str | None = None,
    progress: Progress | None = None,
    note: Note = lambda line: None,
) -> list[Path]:
    """Fetch a published data set into directory `out` and return its files and folders.

    Downloads continue where they broke off, are checked against the repository's checksums and
    unpacked; a record (`.<file>.completed`) makes a second call do nothing. Files in `out` that
    were not fetched are never changed.

    Args:
        dataset: `t15` or `lm-5gram`.
        out: Made where it does not exist.
        part: Of t15: `neural` (session files, 10 GB), `baseline` (the published model) or
            `figures`; all by default.
        pruned: Of lm-5gram: the pruned model (about 5 GB) instead of the whole one (about 50 GB).
        from_dir: Take files downloaded by hand; the network is only asked for their sizes and
            checksums, and not missed.
        base_url: Where a mirror of the repository answers.
        token: Of a Dryad account (default: the environment variable DRYAD_TOKEN), or of the Hub
            (HF_TOKEN; not needed).
        progress: Called with bytes done and in all, archives counted once for coming and once for
            unpacking.
        note: Called with a line about each file whose content could not be checked.

    Raises:
        DataError: With what can be done by hand; also where `out` has something else under the name
            of a file or folder to write.
    """
    if dataset == LM_5GRAM:
        if part is not None:
            raise DataError(f"{dataset} has no parts, but part {part!r} was asked for")
        return fetch_language_model(
            out,
            pruned=pruned,
            from_dir=from_dir,
            base_url=base_url,
            token=token,
            progress=progress,
            note=note,
        )
    if dataset not in RELEASES:
        raise DataError(f"unknown data set {dataset!r}; {nearest(dataset, [*RELEASES, LM_5GRAM])}")
    if pruned:
        raise DataError(f"{dataset} is not a language model that could be pruned")
    release = RELEASES[dataset]
    out = Path(out)
    base_url = base_url or DRYAD
    if part is not None and part not in release.parts:
        raise DataError(f"unknown part {part!r} of {dataset}; {nearest(part, release.parts)}")
    hint = f"cortext fetch {dataset} {out} --from FOLDER"
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    if from_dir is not None:
        files = _by_hand(release, Path(from_dir), part, base_url)
    else:
        files = [
            file
            for file in list_files(release, base_url, hint)
            if part in (None, release.part_of(file.name))
        ]
    meter = Meter(files, progress)
    token = token or os.environ.get(TOKEN_VARIABLE)
    products: list[Path] = []

    def refused(error: urllib.error.HTTPError, name: str) -> DataError:
        return _refused(error, name, release, hint)

    with disk_errors(out), exclusive(out, DataError(BUSY, where=out)):
        for file in files:
            source = Path(from_dir) / file.name if from_dir is not None else None
            # The list may name another server, which must not get the token.
            own = token if _server(file.url) == _server(base_url) else None
            products += obtain(file, out, source, own, meter, refused, note)
    return products


def list_files(release: Release, base_url: str = DRYAD, hint: str = "") -> list[RemoteFile]:
    """List the files of the latest version, with sizes and digests, from the repository's API.

    Args:
        release: The data set.
        base_url: Where Dryad, or a mirror of it, answers.
        hint: The command that takes files downloaded by hand, for messages.

    Raises:
        DataError: Where it cannot be listed.
    """
    doi = urllib.parse.quote(f"doi:{release.doi}", safe=":")
    try:
        versions = _json(f"{base_url}/api/v2/datasets/{doi}/versions")["_embedded"][
            "stash:versions"
        ]
        link = versions[-1]["_links"]["stash:files"]["href"]
        files: list[RemoteFile] = []
        for _ in range(_MOST_PAGES):
            page = _json(urllib.parse.urljoin(base_url, link))
            files += [_remote_file(entry, base_url) for entry in page["_embedded"]["stash:files"]]
            link = page["_links"].get("next", {}).get("href")
            if not link:
                break
        else:
            raise ValueError("a list without an end")
    except urllib.error.HTTPError as error:
        raise _refused(error, f"the list of files of doi:{release.doi}", release, hint) from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        fix = (
            f"check the network, or download the files from {release.page} elsewhere and use {hint}"
        )
        raise DataError(f"no connection ({reason})", where=base_url, fix=fix) from None
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        fix = f"download the files from {release.page} and use {hint}"
        reason = f": {error}" if isinstance(error, ValueError) else ""
        raise DataError(
            f"the list of files is not as expected{reason}", where=base_url, fix=fix
        ) from None
    return [file for file in files if file.name != "README.md"]


def _server(url: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme, parts.netloc


def _json(url: str) -> Any:
    with open_url(
        url, headers={"Accept": "application/json"}, timeout=_LISTING_TIMEOUT_S
    ) as response:
        return read_listing(response)


def _remote_file(entry: dict[str, Any], base_url: str) -> RemoteFile:
    name = entry["path"]
    # A hidden one could be anything that the system or fetch itself keeps there.
    if not is_plain_name(name) or name.startswith("."):
        raise DataError(
            f"the list of files names {name!r}, which is no plain file name", where=base_url
        )
    url = urllib.parse.urljoin(base_url, entry["_links"]["stash:download"]["href"])
    return RemoteFile(
        name, url, entry.get("size"), entry.get("digest") or None, entry.get("digestType")
    )


def _refused(error: urllib.error.HTTPError, file: str, release: Release, hint: str) -> DataError:
    error.close()
    by_hand = f"download it from {release.page} in a browser and use {hint}"
    if error.code in (401, 403):
        fix = f"set {TOKEN_VARIABLE} to a valid token of your Dryad account, or {by_hand}"
        return DataError(
            f"the repository demands a login (status {error.code})", where=file, fix=fix
        )
    return DataError(
        f"the repository answered with status {error.code} ({error.reason})",
        where=file,
        fix=by_hand,
    )


def _by_hand(release: Release, folder: Path, part: str | None, base_url: str) -> list[RemoteFile]:
    """List the wanted files in `folder`, with sizes and digests where the repository answers."""
    if not folder.is_dir():
        raise DataError(
            "no such directory", where=folder, fix=f"put the files of {release.page} there"
        )
    wanted = [name for key, names in release.parts.items() if part in (None, key) for name in names]
    present = [name for name in wanted if (folder / name).is_file()]
    missing = [name for name in wanted if name not in present]
    if not present or (part is not None and missing):
        raise DataError(
            f"{' and '.join(missing)} not found", where=folder, fix=f"download from {release.page}"
        )
    try:
        known = {file.name: file for file in list_files(release, base_url)}
    except DataError:
        known = {}
    return [
        known.get(name, RemoteFile(name, "", (folder / name).stat().st_size)) for name in present
    ]
