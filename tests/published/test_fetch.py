"""Downloads from a server of our own that breaks off, ignores ranges, or refuses."""

import hashlib
import io
import json
import os
import re
import signal
import threading
import zipfile
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request

import pytest

from cortext.errors import DataError
from cortext.files import exclusive
from cortext_published.downloads import fetch as fetcher
from cortext_published.downloads import fetched
from cortext_published.downloads.archive import unpacked
from cortext_published.downloads.download import RemoteFile, _WebOnly, download
from cortext_published.downloads.fetch import fetch

NEURAL = "t15_copyTask_neuralData.zip"


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


CONTENT = bytes(range(256)) * 12_000  # 3 MB
FILES = {
    "README.md": b"about",
    "t15_copyTask.pkl": b"pickled" * 1000,
    "t15_personalUse.pkl": b"another" * 2000,
    NEURAL: zipped(
        {"hdf5_data_final/t15.2023.08.11/data_train.hdf5": CONTENT, "__MACOSX/x": b"junk"}
    ),
    "t15_pretrained_rnn_baseline.zip": zipped(
        {"t15_pretrained_rnn_baseline/checkpoint/args.yaml": b"a: 1"}
    ),
}


class Repository(ThreadingHTTPServer):
    """Dryad's API for one data set, with faults to order."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(FILES)
        self.break_after: list[int] = []
        """Bytes after which the next downloads break off."""
        self.ranges = True
        self.listed = True
        self.wrong_digest = False
        self.busy = 0
        self.status = 200
        self.token = None
        self.requests: list[tuple[str, str | None, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Repository
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        range_ = self.headers.get("Range")
        authorization = self.headers.get("Authorization")
        self.server.requests.append((self.path, range_, authorization))
        if self.path.startswith("/api/v2/datasets/doi:10.5061%2Fdryad.dncjsxm85/versions"):
            link = {"stash:files": {"href": "/api/v2/versions/9/files"}}
            old = {"stash:files": {"href": "/api/v2/versions/1/files"}}
            self.send_json({"_embedded": {"stash:versions": [{"_links": old}, {"_links": link}]}})
        elif self.path.startswith("/api/v2/versions/9/files"):
            self.send_listing()
        elif self.path.startswith("/api/v2/files/"):
            self.send_download()
        elif self.path.startswith("/store/"):
            self.send_content(self.server.files[self.path.removeprefix("/store/")], range_)
        else:
            self.send_error(404)

    def send_json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(self.server.status if not self.server.listed else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_listing(self) -> None:
        """Two pages, as for a data set with many files."""
        second = self.path.endswith("page=2")
        names = list(FILES)[3:] if second else list(FILES)[:3]
        entries = []
        for name in names:
            content = b"" if self.server.wrong_digest else FILES[name]
            digest = {"digestType": "sha-256", "digest": hashlib.sha256(content).hexdigest()}
            link = {"stash:download": {"href": f"/api/v2/files/{name}/download"}}
            entries.append({"path": name, "size": len(FILES[name]), "_links": link, **digest})
        links = {} if second else {"next": {"href": "/api/v2/versions/9/files?page=2"}}
        self.send_json({"_embedded": {"stash:files": entries}, "_links": links})

    def send_download(self) -> None:
        server = self.server
        if server.busy:
            server.busy -= 1
            self.send_error(503)
        elif server.status != 200:
            self.send_error(server.status)
        elif server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            self.send_error(401)
        else:
            self.send_response(302)
            self.send_header("Location", "/store/" + self.path.split("/")[4])
            self.send_header("Content-Length", "0")
            self.end_headers()

    def send_content(self, content: bytes, range_: str | None) -> None:
        first = (
            int(range_.removeprefix("bytes=").rstrip("-")) if range_ and self.server.ranges else 0
        )
        if first >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        n_bytes = self.server.break_after.pop(0) if self.server.break_after else len(content)
        self.wfile.write(content[first : first + n_bytes])
        self.close_connection = True


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("DRYAD_TOKEN", raising=False)
    monkeypatch.setattr("cortext_published.downloads.download.time.sleep", lambda seconds: None)
    server = Repository()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def downloads(repository: Repository) -> list[tuple[str, str | None]]:
    return [(path, range_) for path, range_, _ in repository.requests if path.startswith("/store/")]


def test_everything_is_fetched_and_unpacked(repository: Repository, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    products = fetch(
        "t15", tmp_path, base_url=repository.url, progress=lambda *progress: calls.append(progress)
    )
    assert sorted(path.name for path in products) == [
        "hdf5_data_final",
        "t15_copyTask.pkl",
        "t15_personalUse.pkl",
        "t15_pretrained_rnn_baseline",
    ]
    assert (
        tmp_path / "hdf5_data_final" / "t15.2023.08.11" / "data_train.hdf5"
    ).read_bytes() == CONTENT
    assert (tmp_path / "t15_copyTask.pkl").read_bytes() == FILES["t15_copyTask.pkl"]
    assert not (tmp_path / NEURAL).exists()
    visible = [path.name for path in tmp_path.iterdir() if not path.name.endswith(".completed")]
    assert sorted(visible) == sorted(path.name for path in products)
    total = sum(
        len(FILES[name]) * (2 if name.endswith("zip") else 1)
        for name in FILES
        if name != "README.md"
    )
    assert {total for _, total in calls} == {total}
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)
    assert calls[-1][0] >= 0.9 * total  # the archive's own index is no member


@pytest.mark.parametrize(
    ("part", "product"),
    [("neural", "hdf5_data_final"), ("baseline", "t15_pretrained_rnn_baseline")],
)
def test_a_part_is_fetched_alone_and_only_once(
    repository: Repository, tmp_path: Path, part: str, product: str
) -> None:
    assert fetch("t15", tmp_path, part=part, base_url=repository.url) == [tmp_path / product]
    assert len(downloads(repository)) == 1
    assert fetch("t15", tmp_path, part=part, base_url=repository.url) == [tmp_path / product]
    assert len(downloads(repository)) == 1


def test_a_connection_that_breaks_off_is_continued(repository: Repository, tmp_path: Path) -> None:
    size = len(FILES[NEURAL])
    repository.break_after = [size // 2, 10]
    fetch("t15", tmp_path, part="neural", base_url=repository.url)
    assert (
        tmp_path / "hdf5_data_final" / "t15.2023.08.11" / "data_train.hdf5"
    ).read_bytes() == CONTENT
    ranges = [range_ for _, range_ in downloads(repository)]
    assert ranges == [None, f"bytes={size // 2}-", f"bytes={size // 2 + 10}-"]


def test_a_later_call_continues_an_earlier_one(repository: Repository, tmp_path: Path) -> None:
    repository.break_after = [5000] + [0] * 5
    with pytest.raises(
        DataError, match=r"t15_copyTask.pkl.*: cannot be downloaded: .*; .* 5000 bytes are kept"
    ):
        fetch("t15", tmp_path, part="figures", base_url=repository.url)
    before = len(repository.requests)
    fetch("t15", tmp_path, part="figures", base_url=repository.url)
    assert (tmp_path / "t15_copyTask.pkl").read_bytes() == FILES["t15_copyTask.pkl"]
    assert [
        range_
        for path, range_, _ in repository.requests[before:]
        if "store/t15_copyTask.pkl" in path
    ] == ["bytes=5000-"]


def test_a_server_that_ignores_ranges_makes_us_start_again(
    repository: Repository, tmp_path: Path
) -> None:
    repository.ranges = False
    repository.break_after = [5000]
    fetch("t15", tmp_path, part="figures", base_url=repository.url)
    assert (tmp_path / "t15_copyTask.pkl").read_bytes() == FILES["t15_copyTask.pkl"]


def test_a_busy_server_is_asked_again(repository: Repository, tmp_path: Path) -> None:
    repository.busy = 3
    fetch("t15", tmp_path, part="figures", base_url=repository.url)
    assert (tmp_path / "t15_personalUse.pkl").exists()


def test_a_stale_rest_longer_than_the_file_is_dropped(
    repository: Repository, tmp_path: Path
) -> None:
    remote = RemoteFile("t15_copyTask.pkl", f"{repository.url}/store/t15_copyTask.pkl")
    (tmp_path / ".t15_copyTask.pkl.unknown.part").write_bytes(b"x" * 9000)
    assert download(remote, tmp_path).read_bytes() == FILES[remote.name]


def test_a_wrong_checksum_is_kept_aside(repository: Repository, tmp_path: Path) -> None:
    repository.wrong_digest = True
    with pytest.raises(
        DataError,
        match=r"sha-256 \w{64} found, e3b0c\w+ expected; kept as t15_copyTask.pkl.mismatch",
    ):
        fetch("t15", tmp_path, part="figures", base_url=repository.url)
    assert [path.name for path in tmp_path.iterdir()] == ["t15_copyTask.pkl.mismatch"]


@pytest.mark.parametrize(
    ("status", "message"), [(401, "demands a login"), (403, "demands a login"), (404, "404")]
)
def test_a_refusal_says_how_to_continue_by_hand(
    repository: Repository, tmp_path: Path, status: int, message: str
) -> None:
    repository.status = status
    with pytest.raises(DataError) as caught:
        fetch("t15", tmp_path, part="figures", base_url=repository.url)
    line = str(caught.value)
    assert message in line
    assert "https://datadryad.org/dataset/doi:10.5061/dryad.dncjsxm85" in line
    assert f"cortext fetch t15 {tmp_path} --from FOLDER" in line
    assert ("DRYAD_TOKEN" in line) == (status != 404)


def test_the_token_goes_to_the_repository_only(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.token = "abc"
    with pytest.raises(DataError, match="demands a login"):
        fetch("t15", tmp_path, part="figures", base_url=repository.url)
    monkeypatch.setenv("DRYAD_TOKEN", "abc")
    fetch("t15", tmp_path, part="figures", base_url=repository.url)
    sent = {path.split("/")[1] for path, _, authorization in repository.requests if authorization}
    listed = [authorization for path, _, authorization in repository.requests if "versions" in path]
    assert sent == {"api"}
    assert not any(listed)  # a bad token would be refused even there


def test_no_network_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(
        DataError,
        match=r"no connection \(.*refused.*\); check the network, or download the files from",
    ):
        fetch("t15", tmp_path / "out", base_url="http://127.0.0.1:9")


def test_an_unexpected_listing_is_one_line(repository: Repository, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="404"):
        fetch("t15", tmp_path, base_url=repository.url + "/elsewhere")
    for entry in ({"path": "../evil", "_links": {}}, {"path": "a\\b", "_links": {}}):
        with pytest.raises(DataError, match="no plain file name"):
            fetcher._remote_file(entry, repository.url)


def test_unknown_names_suggest_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="unknown data set 't14'; did you mean 't15'"):
        fetch("t14", tmp_path)
    with pytest.raises(DataError, match="unknown part 'nural' of t15; did you mean 'neural'"):
        fetch("t15", tmp_path, part="nural")


def test_full_disk_keeps_the_beginning(repository: Repository, tmp_path: Path, full_disk) -> None:
    with (
        full_disk(3000),
        pytest.raises(DataError, match=r"cannot be written: .*free some space and try again"),
    ):
        fetch("t15", tmp_path, part="figures", base_url=repository.url)
    fetch("t15", tmp_path, part="figures", base_url=repository.url)
    assert (tmp_path / "t15_copyTask.pkl").read_bytes() == FILES["t15_copyTask.pkl"]


def test_a_mark_that_cannot_be_written_is_one_line(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / ".t15_copyTask.pkl.completed").mkdir()
    with pytest.raises(DataError, match="cannot be written: Is a directory"):
        fetch("t15", tmp_path, part="figures", base_url=repository.url)


def test_files_downloaded_by_hand_are_checked_and_unpacked(
    repository: Repository, tmp_path: Path
) -> None:
    folder = tmp_path / "downloads"
    out = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(DataError, match=f"{NEURAL} not found"):
        fetch("t15", out, part="neural", from_dir=folder, base_url=repository.url)
    (folder / NEURAL).write_bytes(FILES[NEURAL])
    (folder / "t15_copyTask.pkl").write_bytes(FILES["t15_copyTask.pkl"])
    assert fetch("t15", out, from_dir=folder, base_url=repository.url) == [
        out / "hdf5_data_final",
        out / "t15_copyTask.pkl",
    ]
    assert (folder / NEURAL).exists()
    assert not downloads(repository)
    (folder / "t15_pretrained_rnn_baseline.zip").write_bytes(
        FILES["t15_pretrained_rnn_baseline.zip"][:-9]
    )
    with pytest.raises(DataError, match=r"bytes found, \d+ expected; download it again"):
        fetch("t15", out, part="baseline", from_dir=folder, base_url=repository.url)
    with pytest.raises(DataError, match="not a zip archive"):
        fetch("t15", out, part="baseline", from_dir=folder, base_url="http://127.0.0.1:9")
    with pytest.raises(DataError, match="no such directory"):
        fetch("t15", out, from_dir=tmp_path / "absent", base_url=repository.url)


def test_an_archive_that_could_not_be_unpacked_is_not_downloaded_again(
    repository: Repository, tmp_path: Path, full_disk
) -> None:
    with full_disk(len(FILES[NEURAL]) + 1000), pytest.raises(DataError, match="free some space"):
        fetch("t15", tmp_path, part="neural", base_url=repository.url)
    assert not (tmp_path / "hdf5_data_final").exists()
    fetch("t15", tmp_path, part="neural", base_url=repository.url)
    assert len(downloads(repository)) == 1
    assert (tmp_path / "hdf5_data_final").exists()


def link_member() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        info = zipfile.ZipInfo("folder")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "/etc")
        archive.writestr("folder/passwd", "x")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "name", ["../evil", "a/../../evil", "/evil", "\\evil", "C:\\evil", "..\\evil", "C:evil"]
)
def test_archives_cannot_escape(tmp_path: Path, name: str) -> None:
    out = tmp_path / "inside"
    out.mkdir()
    (tmp_path / "bad.zip").write_bytes(zipped({"good": b"1", name: b"2"}))
    with pytest.raises(
        DataError, match=r"would be unpacked outside the directory; nothing was unpacked"
    ):
        unpacked(tmp_path / "bad.zip", out).__enter__()
    assert not list(out.iterdir())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.zip", "inside"]


def test_archives_cannot_plant_links(tmp_path: Path) -> None:
    (tmp_path / "bad.zip").write_bytes(link_member())
    with pytest.raises(DataError, match="member 'folder' is a link or a device"):
        unpacked(tmp_path / "bad.zip", tmp_path).__enter__()


def test_damaged_archives_leave_nothing(tmp_path: Path) -> None:
    content = bytearray(FILES[NEURAL])
    content[200] ^= 255
    (tmp_path / "bad.zip").write_bytes(content)
    with pytest.raises(DataError, match="damaged archive"):
        unpacked(tmp_path / "bad.zip", tmp_path).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["bad.zip"]


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        ([".profile"], "'.profile' would be hidden"),
        ([".ssh/authorized_keys"], "would be hidden"),
        (["a/Data", "a/data"], "'a/Data' are one name on some systems"),
        (["caf\u00e9", "cafe\u0301"], "are one name on some systems"),
        (["a/b", "A/c"], "'a' are one name on some systems"),
        (["a", "a/b"], "'a' are one name on some systems"),
        (["a/b", "a"], "'a' are one name on some systems"),
        (["a\nb"], "has a character that cannot be shown"),
        (["a\x1b[2J"], "has a character that cannot be shown"),
        (["\u202etxt.exe"], "has a character that cannot be shown"),
        (["a/CON"], "has a name that not every system takes"),
        (["nul.txt"], "has a name that not every system takes"),
        (["a./b"], "has a name that not every system takes"),
    ],
)
def test_names_that_harm_or_clash_are_refused(tmp_path: Path, names: list[str], fault: str) -> None:
    (tmp_path / "bad.zip").write_bytes(zipped(dict.fromkeys(names, b"x")))
    with pytest.raises(DataError, match=re.escape(fault)):
        unpacked(tmp_path / "bad.zip", tmp_path).__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["bad.zip"]


def test_what_a_mac_adds_to_an_archive_is_left_out(tmp_path: Path) -> None:
    members = {"a/b": b"x", "a/.DS_Store": b"x", ".DS_Store": b"x", "__MACOSX/a/._b": b"x"}
    (tmp_path / "a.zip").write_bytes(zipped(members))
    with unpacked(tmp_path / "a.zip", tmp_path) as folder:
        assert [path.relative_to(folder).as_posix() for path in folder.rglob("*")] == ["a", "a/b"]


# What is there already


def tree(folder: Path) -> dict[str, bytes]:
    """Every file of a directory but the records."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".completed")
    }


def taken(tmp_path: Path, members: dict[str, bytes], part: str = "neural") -> list[Path]:
    """Fetch a recording from an archive that was downloaded by hand."""
    folder = tmp_path / "by-hand"
    folder.mkdir(exist_ok=True)
    (folder / NEURAL).write_bytes(zipped(members))
    return fetch("t15", tmp_path / "out", part=part, from_dir=folder, base_url="http://127.0.0.1:9")


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_fetch_did_not_write_stays(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"
    (tmp_path / "elsewhere").mkdir()
    out.mkdir()
    if kind == "file":
        (out / "notes").write_bytes(b"mine")
    elif kind == "folder":
        (out / "notes").mkdir()
        (out / "notes" / "thesis").write_bytes(b"mine")
    else:
        (out / "notes").symlink_to(tmp_path / "elsewhere")
    before = tree(out)
    with pytest.raises(DataError, match=r"notes: is there already, and is not.*move it away"):
        taken(tmp_path, {"data/a": b"1", "notes/a": b"2"})
    assert tree(out) == before
    assert not (out / "data").exists()
    assert (out / "notes").is_symlink() == (kind == "link")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_newer_archive_replaces_what_an_older_one_brought(tmp_path: Path) -> None:
    taken(tmp_path, {"data/old": b"1", "data/empty/": b""})
    products = taken(tmp_path, {"data/new": b"2", "top": b"3"})
    assert products == [tmp_path / "out" / "data", tmp_path / "out" / "top"]
    assert tree(tmp_path / "out") == {"data/new": b"2", "top": b"3"}


@pytest.mark.parametrize("change", ["added", "changed", "folder"])
def test_a_newer_archive_leaves_a_folder_alone_that_the_user_changed(
    tmp_path: Path, change: str
) -> None:
    taken(tmp_path, {"data/old": b"1"})
    data = tmp_path / "out" / "data"
    if change == "folder":
        (data / "mine").mkdir()
    else:
        (data / ("mine" if change == "added" else "old")).write_bytes(b"my own")
    before = tree(tmp_path / "out")
    with pytest.raises(DataError, match="data: is there already, and is not, or no longer"):
        taken(tmp_path, {"data/new": b"2", "data/more": b"3"})
    assert tree(tmp_path / "out") == before


def test_a_kill_while_folders_get_their_names_leaves_them_replaceable(tmp_path: Path) -> None:
    taken(tmp_path, {"a/old": b"1", "b/old": b"1"})
    child = os.fork()
    if child == 0:
        fetched.replace_directory = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        try:
            taken(tmp_path, {"0/new": b"2", "a/new": b"2", "b/new": b"2"})
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert tree(tmp_path / "out" / "a") == {"old": b"1"}
    taken(tmp_path, {"0/new": b"2", "a/new": b"2", "b/new": b"2"})
    assert tree(tmp_path / "out") == {"0/new": b"2", "a/new": b"2", "b/new": b"2"}


def test_a_file_of_the_same_name_stays(repository: Repository, tmp_path: Path) -> None:
    mine = tmp_path / "t15_copyTask.pkl"
    mine.write_bytes(b"x" * len(FILES[mine.name]))
    with pytest.raises(DataError, match=r"t15_copyTask.pkl: is there already.*move it away"):
        fetch("t15", tmp_path, part="figures", base_url=repository.url)
    assert mine.read_bytes() == b"x" * len(FILES[mine.name])
    assert not downloads(repository)
    mine.write_bytes(FILES[mine.name])  # the published one, from a browser
    changed = mine.stat().st_mtime_ns
    fetch("t15", tmp_path, part="figures", base_url=repository.url)
    assert [path for path, _ in downloads(repository)] == ["/store/t15_personalUse.pkl"]
    assert mine.stat().st_mtime_ns == changed


def test_an_archive_that_the_user_put_there_stays(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / NEURAL).write_bytes(b"mine")
    (tmp_path / "t15_copyTask.pkl.mismatch").write_bytes(b"mine")
    fetch("t15", tmp_path, part="neural", base_url=repository.url)
    repository.wrong_digest = True
    with pytest.raises(DataError, match="an earlier one is kept as"):
        fetch("t15", tmp_path, part="figures", base_url=repository.url)
    assert (tmp_path / NEURAL).read_bytes() == b"mine"
    assert (tmp_path / "t15_copyTask.pkl.mismatch").read_bytes() == b"mine"


def test_an_archive_that_lies_in_the_directory_is_taken(
    repository: Repository, tmp_path: Path
) -> None:
    (tmp_path / NEURAL).write_bytes(FILES[NEURAL])
    products = fetch("t15", tmp_path, part="neural", base_url=repository.url)
    assert products == [tmp_path / "hdf5_data_final"]
    assert not downloads(repository)
    assert (tmp_path / NEURAL).read_bytes() == FILES[NEURAL]


def test_a_part_that_leads_elsewhere_is_not_written(repository: Repository, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    digest = hashlib.sha256(FILES["t15_copyTask.pkl"]).hexdigest()
    part = tmp_path / f".t15_copyTask.pkl.{digest[:12]}.part"
    for plant in (part.symlink_to, part.hardlink_to):
        plant(victim)
        with pytest.raises(DataError, match="is no file of an earlier download; remove it"):
            fetch("t15", tmp_path, part="figures", base_url=repository.url)
        part.unlink()
    assert victim.read_bytes() == b"mine"


# What a server states


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ({"size": -1}, "-1 bytes are stated"),
        ({"size": "x"}, "'x' bytes are stated"),
        ({"size": "5"}, "'5' bytes are stated"),
        ({"size": float("inf")}, "inf bytes are stated"),
        ({"size": float("nan")}, "nan bytes are stated"),
        ({"size": 5.0}, "5.0 bytes are stated"),
        ({"size": True}, "True bytes are stated"),
        ({"size": [5]}, "bytes are stated"),
        ({"digest": 5}, "not hexadecimal"),
        ({"digest": ["00"]}, "not hexadecimal"),
        ({"digest": "00", "digestType": "md5"}, "too short or too long for md5"),
        ({"digest": "00ff", "digestType": "blake9"}, "of type 'blake9', which is not known"),
        ({"digest": "00" * 32, "digestType": None}, "of type None, which is not known"),
        ({"digest": "00" * 32, "digestType": 7}, "of type 7, which is not known"),
        ({"digest": "00" * 16, "digestType": "shake-128"}, "which is not known"),
    ],
)
def test_facts_that_cannot_be_are_refused(entry: dict[str, object], fault: str) -> None:
    entry = {"path": "a", "_links": {"stash:download": {"href": "/a"}}} | entry
    with pytest.raises(ValueError, match=re.escape(fault)):
        fetcher._remote_file(entry, "http://127.0.0.1")


@pytest.mark.parametrize(
    ("kind", "digest"),
    # of no bytes, as RFC 1321, RFC 3174, FIPS 180-4 and FIPS 202 print them
    [
        ("MD5", "d41d8cd98f00b204e9800998ecf8427e"),
        ("sha-1", "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
        ("SHA256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        ("sha3-256", "a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a"),
    ],
)
def test_digests_are_known_however_their_type_is_written(kind: str, digest: str) -> None:
    hasher = RemoteFile("a", "", 0, digest, kind).hasher()
    assert hasher is not None
    assert hasher.hexdigest() == digest


class Answer(ThreadingHTTPServer):
    """A server that sends the given bytes, whatever is asked."""

    def __init__(self, *answers: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Verbatim)
        self.answers = list(answers)
        self.asked: list[str | None] = []
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}).start()

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        super().__exit__(*error)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/a"


class Verbatim(BaseHTTPRequestHandler):
    server: Answer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.asked.append(self.headers.get("Range"))
        answers = self.server.answers
        self.wfile.write(answers.pop(0) if len(answers) > 1 else answers[0])


HEAD = b"HTTP/1.1 200 OK\r\n"
LIES = {
    "no length": (b"Content-Length: abc\r\n\r\nhello", None, "a length of 'abc' bytes"),
    "less than nothing": (b"Content-Length: -5\r\n\r\nhello", None, "a length of '-5' bytes"),
    "endless": (b"Content-Length: " + b"9" * 5000 + b"\r\n\r\nhello", None, "a length of '99"),
    "more": (b"\r\nhello, and more", 5, "sends more than the 5 bytes that were announced"),
    "headers": (b"X: y\r\n" * 300 + b"\r\n", 5, "got more than 100 headers"),
    "a long header": (b"X: " + b"y" * 70_000 + b"\r\n\r\n", 5, "got more than 65536 bytes"),
}


@pytest.mark.parametrize("name", LIES)
def test_an_answer_that_cannot_be_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("cortext_published.downloads.download.time.sleep", lambda seconds: None)
    content, size, fault = LIES[name]
    with Answer(HEAD + content) as server, pytest.raises(DataError) as caught:
        download(RemoteFile("a", server.url, size), tmp_path)
    assert fault in str(caught.value)
    assert len(str(caught.value)) < 300
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) == 0


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/a", "//[", "data:,a"])
def test_a_redirect_out_of_the_web_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    head = f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()
    with (
        Answer(head) as server,
        pytest.raises((DataError, HTTPError), match=r"not allowed|address of the web"),
    ):
        download(RemoteFile("a", server.url), tmp_path)


@pytest.mark.parametrize("etag", [b"", b'ETag: "1"\r\n'])
def test_a_file_without_a_digest_is_never_made_of_two_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, etag: bytes
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    (tmp_path / ".a.unknown.part").write_bytes(b"old")
    cut = HEAD + etag + b"Content-Length: 10\r\n\r\n01234"
    rest = b"HTTP/1.1 206 OK\r\nContent-Range: bytes 5-9/10\r\nContent-Length: 5\r\n\r\nabcde"
    whole = HEAD + b"Content-Length: 10\r\n\r\nABCDEFGHIJ"
    with Answer(cut, rest if etag else whole) as server:
        found = download(RemoteFile("a", server.url, 10), tmp_path).read_bytes()
        assert server.asked == [None, "bytes=5-" if etag else None]
    assert found == (b"01234abcde" if etag else b"ABCDEFGHIJ")


def test_a_server_that_never_gets_further_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("cortext_published.downloads.download.time.sleep", lambda seconds: None)
    begun = HEAD + b"Content-Length: 10\r\n\r\n01234"
    gone = b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n"
    # One more turn ends the test without the bound: then the whole file comes.
    answers = [begun, gone] * 20 + [HEAD + b"Content-Length: 10\r\n\r\n0123456789"]
    with (
        Answer(*answers) as server,
        pytest.raises(DataError, match="cannot be downloaded: the connection closed after 0 of 10"),
    ):
        download(RemoteFile("a", server.url, 10, "00" * 16, "md5"), tmp_path)
    assert len(server.asked) < 10


def test_an_empty_file_is_fetched(tmp_path: Path) -> None:
    md5 = "d41d8cd98f00b204e9800998ecf8427e"  # of no bytes, RFC 1321
    assert download(RemoteFile("a", "http://127.0.0.1:9/a", 0, md5, "md5"), tmp_path).stat()[6] == 0


def test_a_redirect_from_https_to_http_is_refused() -> None:
    request = Request("https://127.0.0.1/a")
    for scheme in ("http", "https"):
        target = f"{scheme}://127.0.0.1/b"
        if scheme == "http":
            with pytest.raises(ValueError, match=target):
                _WebOnly().redirect_request(request, io.BytesIO(), 302, "", Message(), target)
        else:
            found = _WebOnly().redirect_request(request, io.BytesIO(), 302, "", Message(), target)
            assert found.full_url == target


def test_another_server_that_the_list_names_gets_no_token(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[str | None] = []

    def note(
        file: RemoteFile, out: Path, source: None, token: str | None, *_: object
    ) -> list[Path]:
        tokens.append(token)
        return []

    other = "http://127.0.0.2/a"
    files = [RemoteFile("a", f"{repository.url}/a"), RemoteFile("b", other)]
    monkeypatch.setattr(fetcher, "list_files", lambda *_: files)
    monkeypatch.setattr(fetcher, "obtain", note)
    fetch("t15", tmp_path, base_url=repository.url + "/", token="secret")
    assert tokens == ["secret", None]


def test_content_that_nobody_can_check_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "by-hand").mkdir()
    (tmp_path / "by-hand" / "t15_copyTask.pkl").write_bytes(b"x")
    notes: list[str] = []
    fetch(
        "t15",
        tmp_path / "out",
        part=None,
        from_dir=tmp_path / "by-hand",
        base_url="http://127.0.0.1:9",
        note=notes.append,
    )
    assert notes == ["t15_copyTask.pkl: its content is not checked: no digest of it is known"]


def test_two_calls_never_fetch_into_one_directory(repository: Repository, tmp_path: Path) -> None:
    with (
        exclusive(tmp_path, DataError("held")),
        pytest.raises(DataError, match="another process fetches into this directory"),
    ):
        fetch("t15", tmp_path, base_url=repository.url)
