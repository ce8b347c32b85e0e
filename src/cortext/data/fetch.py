"""The public recordings of participant T15 (Card et al. 2024), from the Dryad repository.

Dryad lists a data set to anyone, but hands out files only to those who are logged in: set DRYAD_TOKEN to a token of
your account, or download the files in a browser and give their folder as `from_dir`.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
import urllib.parse
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cortext.data.archive import unpack
from cortext.data.disk import disk_error, disk_errors
from cortext.data.download import RemoteFile, download, mismatch, open_url
from cortext.errors import DataError, nearest

DRYAD = "https://datadryad.org"
TOKEN_VARIABLE = "DRYAD_TOKEN"
_CHUNK = 1 << 20
_LISTING_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Release:
    """A published data set: its DOI, and which part each file belongs to; files not named are of part `rest`."""

    doi: str
    parts: dict[str, tuple[str, ...]]
    rest: str

    @property
    def page(self) -> str:
        """Where a browser finds the files."""
        return f"{DRYAD}/dataset/doi:{self.doi}"

    def part_of(self, name: str) -> str:
        """The part that a file belongs to."""
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
    from_dir: str | Path | None = None,
    base_url: str = DRYAD,
    token: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Fetch a published data set into directory `out`; returns the files and folders that it consists of.

    dataset:  `t15`
    part:     `neural` (session files, 10 GB), `baseline` (the published model) or `figures`; all by default
    from_dir: take files downloaded by hand; the network is only asked for their sizes and checksums, and not missed
    token:    of a Dryad account (default: the environment variable DRYAD_TOKEN)
    progress: called with bytes done and in all, archives counted once for coming and once for unpacking

    Downloads go on where they broke off, are checked against the repository's checksums and unpacked; a mark
    (`.<file>.completed`) makes a second call do nothing. Raises DataError, which says what can be done by hand.
    """
    if dataset not in RELEASES:
        raise DataError(f"unknown data set {dataset!r}; {nearest(dataset, RELEASES)}")
    release, out = RELEASES[dataset], Path(out)
    if part is not None and part not in release.parts:
        raise DataError(f"unknown part {part!r} of {dataset}; {nearest(part, release.parts)}")
    hint = f"cortext fetch {dataset} {out} --from FOLDER"
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    if from_dir is not None:
        files = _by_hand(release, Path(from_dir), part, base_url)
    else:
        files = [file for file in list_files(release, base_url, hint) if part in (None, release.part_of(file.name))]
    meter = _Meter(files, progress)
    token = token or os.environ.get(TOKEN_VARIABLE)
    products: list[Path] = []
    for file in files:
        source = Path(from_dir) / file.name if from_dir is not None else None
        products += _completed(file, out, meter) or _obtain(file, out, source, token, meter, release, hint)
    return products


class _Meter:
    """Bytes done of all files; an archive counts twice, for coming and for unpacking."""

    def __init__(self, files: list[RemoteFile], progress: Callable[[int, int], None] | None) -> None:
        self.total, self.done, self.progress = sum(map(self.weight, files)), 0, progress

    @staticmethod
    def weight(file: RemoteFile) -> int:
        return (file.size or 0) * (2 if file.name.endswith(".zip") else 1)

    def advance(self, n_bytes: int) -> None:
        self.done += n_bytes
        if self.progress:
            self.progress(min(self.done, self.total), self.total)


def list_files(release: Release, base_url: str = DRYAD, hint: str = "") -> list[RemoteFile]:
    """The files of the latest version, with sizes and digests, from the repository's API. Raises DataError."""
    doi = urllib.parse.quote(f"doi:{release.doi}", safe=":")
    try:
        versions = _json(f"{base_url}/api/v2/datasets/{doi}/versions")["_embedded"]["stash:versions"]
        link, files = versions[-1]["_links"]["stash:files"]["href"], []
        while link:
            page = _json(urllib.parse.urljoin(base_url, link))
            files += [_remote_file(entry, base_url) for entry in page["_embedded"]["stash:files"]]
            link = page["_links"].get("next", {}).get("href")
    except urllib.error.HTTPError as error:
        raise _refused(error, f"the list of files of doi:{release.doi}", release, hint) from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        fix = f"check the network, or download the files from {release.page} elsewhere and use {hint}"
        raise DataError(f"no connection ({reason})", where=base_url, fix=fix) from None
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        fix = f"download the files from {release.page} and use {hint}"
        raise DataError("the list of files is not as expected", where=base_url, fix=fix) from None
    return [file for file in files if file.name != "README.md"]


def _json(url: str) -> Any:
    with open_url(url, headers={"Accept": "application/json"}, timeout=_LISTING_TIMEOUT_S) as response:
        return json.loads(response.read())


def _remote_file(entry: dict[str, Any], base_url: str) -> RemoteFile:
    name, size = entry["path"], entry.get("size")
    if Path(name).name != name or "\\" in name:
        raise DataError(f"the list of files names {name!r}, which is no plain file name", where=base_url)
    url = urllib.parse.urljoin(base_url, entry["_links"]["stash:download"]["href"])
    return RemoteFile(name, url, None if size is None else int(size), entry.get("digest"), entry.get("digestType"))


def _refused(error: urllib.error.HTTPError, what: str, release: Release, hint: str) -> DataError:
    error.close()
    by_hand = f"download it from {release.page} in a browser and use {hint}"
    if error.code in (401, 403):
        fix = f"set {TOKEN_VARIABLE} to a valid token of your Dryad account, or {by_hand}"
        return DataError(f"the repository demands a login (status {error.code})", where=what, fix=fix)
    return DataError(f"the repository answered with status {error.code} ({error.reason})", where=what, fix=by_hand)


def _by_hand(release: Release, folder: Path, part: str | None, base_url: str) -> list[RemoteFile]:
    """The wanted files that lie in `folder`, with what the repository says about them, where it can be asked."""
    if not folder.is_dir():
        raise DataError("no such directory", where=folder, fix=f"put the files of {release.page} there")
    wanted = [name for key, names in release.parts.items() if part in (None, key) for name in names]
    present = [name for name in wanted if (folder / name).is_file()]
    missing = [name for name in wanted if name not in present]
    if not present or (part is not None and missing):
        raise DataError(f"{' and '.join(missing)} not found", where=folder, fix=f"download from {release.page}")
    try:
        known = {file.name: file for file in list_files(release, base_url)}
    except DataError:
        known = {}
    return [known.get(name, RemoteFile(name, "", (folder / name).stat().st_size)) for name in present]


def _mark(file: RemoteFile, out: Path) -> Path:
    return out / f".{file.name}.completed"


def _completed(file: RemoteFile, out: Path, meter: _Meter) -> list[Path]:
    """What an earlier call made of this very file, if all of it is still there."""
    try:
        mark = json.loads(_mark(file, out).read_text())
        products = [out / name for name in mark["products"]]
        same = mark["size"] == file.size and file.digest in (None, mark["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return []
    if not same or not all(path.exists() for path in products):
        return []
    meter.advance(meter.weight(file))
    return products


def _obtain(
    file: RemoteFile, out: Path, source: Path | None, token: str | None, meter: _Meter, release: Release, hint: str
) -> list[Path]:
    path = out / file.name
    if source is None:
        try:
            download(file, path, token=token, advance=meter.advance)
        except urllib.error.HTTPError as error:
            raise _refused(error, file.name, release, hint) from None
    else:
        path = _take(file, source, path, meter)
    if path.suffix == ".zip":
        products = unpack(path, out, meter.advance)
        if source is None:
            path.unlink()  # its content is unpacked and checked; the archive of the recordings is 10 GB
    else:
        products = [path]
    mark = {"size": file.size, "digest": file.digest, "products": [product.name for product in products]}
    with disk_errors(out):
        _mark(file, out).write_text(json.dumps(mark))
    return products


def _take(file: RemoteFile, source: Path, path: Path, meter: _Meter) -> Path:
    """Check a file downloaded by hand; archives are read where they lie, other files are copied."""
    hash_, archive = file.hasher(), source.suffix == ".zip"
    temporary = path.with_name(f".{path.name}.part")
    try:
        with source.open("rb") as reader, (Path(os.devnull) if archive else temporary).open("wb") as writer:
            while chunk := reader.read(_CHUNK):
                writer.write(chunk)
                meter.advance(len(chunk))
                if hash_:
                    hash_.update(chunk)
        problem = mismatch(file, source.stat().st_size, hash_)
        if problem or (archive and not zipfile.is_zipfile(source)):
            raise DataError(problem or "not a zip archive", where=source, fix="download it again")
        if archive:
            return source
        if not (path.exists() and path.samefile(source)):
            shutil.move(temporary, path)
        return path
    except OSError as error:
        raise disk_error(error, path) from None
    finally:
        temporary.unlink(missing_ok=True)
