"""The published language model, from a server of our own that speaks like the Hub and breaks
off.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cortext import _native
from cortext.errors import DataError
from cortext.text.inventory import LM
from cortext_published.downloads.fetch import fetch

ARPA = """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-1.0\t<unk>\t0
-99\t<s>\t-0.3
-0.6\t</s>\t0
-0.5\tcat\t-0.2
-0.7\tdog\t-0.4

\\2-grams:
-0.1\t<s> cat
-0.2\tcat dog
-0.3\tdog </s>

\\end\\
"""
REPOSITORY = "nckcard/phoneme-lm-5gram"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the repository.

    The two models are small ones, the pruned one with some padding of its own.
    """
    folder = tmp_path_factory.mktemp("published")
    (folder / "lm.arpa").write_text(ARPA)
    files = {
        "README.md": b"about",
        "lexicon.txt": b"cat\tK AE T SIL\ndog\tD AO G SIL\n",
        "tokens.txt": "".join(f"{symbol}\n" for symbol in LM.symbols).encode(),
    }
    for name, bits in (("5gram_unpruned.bin", 0), ("5gram_pruned.bin", 8)):
        _native.write_binary(str(folder / "lm.arpa"), str(folder / name), "trie", bits, bits)
        files[name] = (folder / name).read_bytes()
    return files


class Hub(ThreadingHTTPServer):
    """A repository of models, with faults to order."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = dict(files)
        self.break_after: list[int] = []
        self.status = 200
        self.wrong_digest = False
        self.listing = None
        self.requests: list[tuple[str, str | None, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    @property
    def downloads(self) -> list[tuple[str, str | None]]:
        return [
            (path.rpartition("/")[2], range_)
            for path, range_, _ in self.requests
            if path.startswith("/store/")
        ]

    def tree(self) -> list[dict[str, object]]:
        """The Hub's list of its files: binaries are large files, the others git objects."""
        entries: list[dict[str, object]] = [
            {"type": "directory", "path": "old", "oid": "0" * 40, "size": 0}
        ]
        for name, content in self.files.items():
            seen = b"other" if self.wrong_digest else content
            oid = hashlib.sha1(b"blob %d\0" % len(content) + seen).hexdigest()
            entry: dict[str, object] = {
                "type": "file",
                "path": name,
                "oid": oid,
                "size": len(content),
            }
            if name.endswith(".bin"):
                digest = hashlib.sha256(seen).hexdigest()
                entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
            entries.append(entry)
        return entries


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        range_ = self.headers.get("Range")
        server.requests.append((self.path, range_, self.headers.get("Authorization")))
        if server.status != 200:
            self.send_error(server.status)
        elif self.path == f"/api/models/{REPOSITORY}/tree/main":
            self.answer(200, json.dumps(server.listing or server.tree()).encode())
        elif self.path.startswith(f"/{REPOSITORY}/resolve/main/"):
            self.answer(302, b"", Location="/store/" + self.path.rpartition("/")[2])
        else:
            self.send_content(server.files[self.path.rpartition("/")[2]], range_)

    def answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_content(self, content: bytes, range_: str | None) -> None:
        first = int(range_.removeprefix("bytes=").rstrip("-")) if range_ else 0
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        n_bytes = self.server.break_after.pop(0) if self.server.break_after else len(content)
        self.wfile.write(content[first : first + n_bytes])
        self.close_connection = True


@pytest.fixture
def hub(published: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr("cortext_published.downloads.download.time.sleep", lambda seconds: None)
    server = Hub(published)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("pruned", [False, True])
def test_what_is_fetched_opens_as_a_language_model(hub: Hub, tmp_path: Path, pruned: bool) -> None:
    from cortext.decoding.ngram import LanguageModel

    out = tmp_path / "lm"
    files = fetch("lm-5gram", out, pruned=pruned, base_url=hub.url)
    assert [file.name for file in files] == ["lexicon.txt", "tokens.txt", "lm.bin", "lm.json"]
    name = "5gram_pruned.bin" if pruned else "5gram_unpruned.bin"
    assert (out / "lm.bin").read_bytes() == hub.files[name]
    model = LanguageModel.open(out)
    assert model.info()["fetched"] == {
        "repository": f"https://huggingface.co/{REPOSITORY}",
        "file": name,
    }
    assert model.lexicon.pronunciations("dog") == (("D", "AO", "G"),)
    tolerance = 0.2 if pruned else 1e-4  # of a model with quantised weights
    assert model.sentence("cat dog") / 2.302585093 == pytest.approx(-0.6, abs=tolerance)


def test_a_second_call_does_nothing_and_progress_ends_at_all(hub: Hub, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    fetch(
        "lm-5gram",
        tmp_path / "lm",
        base_url=hub.url,
        progress=lambda *progress: calls.append(progress),
    )
    total = sum(
        len(hub.files[name]) for name in ("lexicon.txt", "tokens.txt", "5gram_unpruned.bin")
    )
    assert calls[-1] == (total, total)
    assert len(hub.downloads) == 3
    fetch("lm-5gram", tmp_path / "lm", base_url=hub.url)
    assert len(hub.downloads) == 3


def test_a_download_that_broke_off_is_continued_by_a_later_call(hub: Hub, tmp_path: Path) -> None:
    hub.break_after = [10_000, 10_000, 100] + [0] * 5
    with pytest.raises(
        DataError, match=r"5gram_pruned.bin: cannot be downloaded: .*; .* 100 bytes are kept"
    ):
        fetch("lm-5gram", tmp_path / "lm", pruned=True, base_url=hub.url)
    before = len(hub.downloads)
    fetch("lm-5gram", tmp_path / "lm", pruned=True, base_url=hub.url)
    assert hub.downloads[before:] == [("5gram_pruned.bin", "bytes=100-")]
    assert (tmp_path / "lm" / "lm.bin").read_bytes() == hub.files["5gram_pruned.bin"]


def test_a_wrong_checksum_is_kept_aside(hub: Hub, tmp_path: Path) -> None:
    hub.wrong_digest = True
    with pytest.raises(
        DataError, match=r"git-sha-1 \w{40} found, \w{40} expected; kept as lexicon.txt.mismatch"
    ):
        fetch("lm-5gram", tmp_path / "lm", base_url=hub.url)
    assert not (tmp_path / "lm" / "lexicon.txt").exists()


@pytest.mark.parametrize(
    ("status", "message"), [(401, "demands a login"), (404, "answered with status 404")]
)
def test_a_refusal_says_how_to_continue_by_hand(
    hub: Hub, tmp_path: Path, status: int, message: str
) -> None:
    hub.status = status
    with pytest.raises(DataError, match=message) as caught:
        fetch("lm-5gram", tmp_path / "lm", pruned=True, base_url=hub.url)
    line = str(caught.value)
    assert f"https://huggingface.co/{REPOSITORY}" in line
    assert f"cortext fetch lm-5gram {tmp_path / 'lm'} --pruned --from FOLDER" in line
    assert ("HF_TOKEN" in line) == (status == 401)
    assert not (tmp_path / "lm").exists()


def test_a_listing_without_the_model_is_one_line(hub: Hub, tmp_path: Path) -> None:
    del hub.files["5gram_pruned.bin"]
    with pytest.raises(DataError, match=r"the list of files has no '5gram_pruned.bin'; download"):
        fetch("lm-5gram", tmp_path / "lm", pruned=True, base_url=hub.url)
    hub.listing = ["nothing that is known"]  # type: ignore[assignment]
    with pytest.raises(DataError, match=r"the list of files is not as expected; download"):
        fetch("lm-5gram", tmp_path / "lm", base_url=hub.url)


def test_no_network_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(
        DataError,
        match=r"no connection \(.*refused.*\); check the network, or download the files from",
    ):
        fetch("lm-5gram", tmp_path / "lm", base_url="http://127.0.0.1:9")


def test_the_token_goes_to_the_hub_only(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "abc")
    fetch("lm-5gram", tmp_path / "lm", base_url=hub.url)
    assert {path.split("/")[1] for path, _, authorization in hub.requests if authorization} == {
        "nckcard"
    }


def test_files_downloaded_by_hand_are_checked_and_taken(hub: Hub, tmp_path: Path) -> None:
    folder = tmp_path / "downloads"
    out = tmp_path / "lm"
    folder.mkdir()
    with pytest.raises(
        DataError, match=r"lexicon.txt and tokens.txt and 5gram_unpruned.bin not found"
    ):
        fetch("lm-5gram", out, from_dir=folder, base_url=hub.url)
    for name in ("lexicon.txt", "tokens.txt", "5gram_unpruned.bin"):
        (folder / name).write_bytes(hub.files[name])
    fetch("lm-5gram", out, from_dir=folder, base_url=hub.url)
    assert not hub.downloads
    assert (out / "lm.bin").read_bytes() == hub.files["5gram_unpruned.bin"]
    (folder / "5gram_unpruned.bin").rename(folder / "lm.bin")
    fetch("lm-5gram", tmp_path / "offline", from_dir=folder, base_url="http://127.0.0.1:9")
    assert (tmp_path / "offline" / "lm.bin").read_bytes() == hub.files["5gram_unpruned.bin"]
    (folder / "lm.bin").write_bytes(hub.files["5gram_unpruned.bin"][:-1])
    with pytest.raises(DataError, match=r"bytes found, \d+ expected; download it again"):
        fetch("lm-5gram", tmp_path / "third", from_dir=folder, base_url=hub.url)


def test_another_model_is_not_overwritten(hub: Hub, tmp_path: Path) -> None:
    fetch("lm-5gram", tmp_path / "lm", base_url=hub.url)
    with pytest.raises(
        DataError, match=r"holds 5gram_unpruned.bin; 5gram_pruned.bin needs a directory of its own"
    ):
        fetch("lm-5gram", tmp_path / "lm", pruned=True, base_url=hub.url)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "lm.bin").write_bytes(b"made here")
    with pytest.raises(DataError, match=r"holds something else; .*give a new directory"):
        fetch("lm-5gram", tmp_path / "mine", base_url=hub.url)
    assert (tmp_path / "mine" / "lm.bin").read_bytes() == b"made here"


def test_options_of_the_other_data_set_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="lm-5gram has no parts"):
        fetch("lm-5gram", tmp_path, part="neural")
    with pytest.raises(DataError, match="t15 is not a language model"):
        fetch("t15", tmp_path, pruned=True)
    with pytest.raises(DataError, match="did you mean 'lm-5gram'"):
        fetch("lm5gram", tmp_path)
