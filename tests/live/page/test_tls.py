"""`cortext serve --tls`: which certificates it takes, and what it says about the others."""

import gc
import re
import socket
import ssl
import subprocess
import time
from asyncio.sslproto import SSLProtocol

import pytest
from certificates import make_certificate, make_dated, openssl
from refusals import complaint, refused
from serving import HTTP, TOKEN, make_session, serving
from websockets.sync.client import connect

from cortext_live.page.access.tls import certificate_faults, load_tls


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A certificate and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def served(page_root, files):
    with serving(make_session(page_root), tls=load_tls(*files)) as served:
        yield served


def test_pages_requests_and_web_sockets_are_encrypted(served, files):
    trusting = ssl.create_default_context(cafile=files[0])
    ours = {"Authorization": f"Bearer {TOKEN}"}
    assert HTTP.get(f"https://127.0.0.1:{served.port}/").status_code == 200
    answer = HTTP.get(f"https://127.0.0.1:{served.port}/api/state", headers=ours)
    assert answer.json()["state"] == "idle"
    assert "strict-transport-security" not in answer.headers  # the certificate may be self-made
    url = f"wss://127.0.0.1:{served.port}/ws?token={TOKEN}"
    with connect(url, ssl=trusting, max_size=None) as page:
        assert '"hello"' in page.recv(timeout=10)
        assert page.socket.version() == "TLSv1.3"


def test_unencrypted_requests_are_closed_without_an_answer(served):
    with socket.create_connection(("127.0.0.1", served.port), timeout=10) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = b"".join(iter(lambda: plain.recv(4096), b""))
    assert b"HTTP/" not in received


def test_a_handshake_that_fails_leaves_nothing_to_the_garbage_collector(served):
    """Each holds 256 KiB; thousands would wait where a full collection is rare."""

    def held():
        # Asked for its class, an object may answer for another one, with a warning.
        return sum(type(each) is SSLProtocol for each in gc.get_objects())

    gc.collect()
    before = held()
    gc.disable()
    try:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", served.port), timeout=10) as plain:
                plain.sendall(bytes(100))
                while plain.recv(4096):
                    pass
        until = time.monotonic() + 10
        while held() > before and time.monotonic() < until:
            time.sleep(0.05)
        assert held() <= before
    finally:
        gc.enable()


def test_versions_of_tls_that_are_broken_are_refused(served):
    command = ("s_client", "-connect", f"127.0.0.1:{served.port}", "-cipher", "ALL@SECLEVEL=0")
    assert "Cipher is ECDHE" in openssl(*command, "-tls1_2").stdout
    for version in ("-tls1", "-tls1_1"):
        with pytest.raises(subprocess.CalledProcessError) as failed:
            openssl(*command, version)
        assert "Cipher is (NONE)" in failed.value.stdout


def test_a_client_cannot_renegotiate(served):
    with subprocess.Popen(
        ["openssl", "s_client", "-connect", f"127.0.0.1:{served.port}", "-tls1_2"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as client:
        said, _ = client.communicate("R\n", timeout=20)  # s_client's command to renegotiate
    assert "Cipher is ECDHE" in said  # the first negotiation was fine
    assert "RENEGOTIATING" in said
    assert re.search("no renegotiation|alert handshake failure|unexpected message", said)


def wrong_files(folder):
    """Names of rows, files for --tls, and what the line says."""
    cert, key = make_certificate(folder / "right")
    _, other = make_certificate(folder / "other")
    _, locked = make_certificate(folder / "locked", password="four-and-more")
    binary, torn, empty = folder / "cert.der", folder / "torn.pem", folder / "empty.pem"
    openssl("x509", "-in", cert, "-outform", "DER", "-out", binary)
    torn.write_text(
        "".join(cert.read_text().splitlines(keepends=True)[::2]) + "-----END CERTIFICATE-----"
    )
    empty.write_text("")
    return {
        "no certificate": (folder / "none.pem", key, "certificate cannot be read: No such file"),
        "no key": (cert, folder / "none.pem", "private key cannot be read: No such file"),
        "a folder": (folder, key, "certificate cannot be read: Is a directory"),
        "exchanged": (key, cert, "holds no certificate in PEM"),
        "a certificate as its key": (cert, cert, "holds no private key in PEM"),
        "another's key": (cert, other, "does not belong"),
        "a key with a password": (cert, locked, "has a password"),
        "binary": (binary, key, "holds no certificate in PEM"),
        "empty": (empty, key, "holds no certificate in PEM"),
        "torn": (torn, key, "cannot be used"),
    }


def test_files_that_are_no_certificate_and_key_are_refused_in_one_line(tmp_path):
    for cert, key, says in wrong_files(tmp_path).values():
        with refused(says):
            load_tls(cert, key)


def test_the_files_are_read_before_anything_else(tmp_path, capsys):
    options = ["--lm", tmp_path, "--data", tmp_path, "--tls", tmp_path / "c", tmp_path / "k"]
    assert "the certificate cannot be read" in complaint(capsys, "serve", tmp_path, *options)


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("127.0.0.1", None),
        ("localhost", None),
        ("192.0.2.7", "does not name 192.0.2.7"),
        ("decoder", "does not name decoder"),
    ],
)
def test_a_certificate_of_another_name_is_warned_of(files, host, says):
    faults = certificate_faults(load_tls(*files), files[0], host)
    assert faults == ([] if says is None else [f"the certificate {files[0]} {says}"])


@pytest.mark.parametrize(
    ("start", "end", "says"),
    [
        ("20200101000000Z", "20210101000000Z", "has expired"),
        ("20900101000000Z", "20910101000000Z", "is not valid yet: is the clock right?"),
    ],
)
def test_a_certificate_of_another_time_is_warned_of(tmp_path, start, end, says):
    cert, key = make_dated(tmp_path, start, end)
    faults = certificate_faults(load_tls(cert, key), cert, "127.0.0.1")
    assert faults == [f"the certificate {cert} {says}"]


def test_a_certificate_of_an_authority_of_ones_own_is_no_fault(tmp_path):
    """As mkcert makes them: the file holds no more than the certificate itself."""
    authority, its_key = make_certificate(tmp_path / "authority", names="DNS:authority")
    _, key = make_certificate(tmp_path / "own")
    request, cert, names = (tmp_path / name for name in ("request.pem", "cert.pem", "names"))
    names.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth\n")
    openssl("req", "-new", "-key", key, "-out", request, "-subj", "/CN=cortext")
    openssl(
        *("x509", "-req", "-in", request, "-CA", authority, "-CAkey", its_key),
        *("-CAcreateserial", "-out", cert, "-days", 30, "-extfile", names),
    )
    assert certificate_faults(load_tls(cert, key), cert, "127.0.0.1") == []
