"""Certificates for tests, made by the `openssl` command as the guide's are."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

NAMES = "IP:127.0.0.1,DNS:localhost"
AUTHORITY = """\
[ca]
default_ca = own
[own]
database = {folder}/index.txt
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
"""


def openssl(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command. Skips the test, aloud, where there is none."""
    if shutil.which("openssl") is None:
        pytest.skip("NO openssl: ENCRYPTION IS NOT TESTED; install it (apt install openssl)")
    command = ["openssl", *map(str, arguments)]
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=30
    )


def make_certificate(folder: Path, names: str = NAMES, password: str = "") -> tuple[Path, Path]:
    """Return a certificate that signs itself, and its key, for addresses or names."""
    folder.mkdir(parents=True, exist_ok=True)
    cert, key = folder / "cert.pem", folder / "key.pem"
    lock = ["-passout", f"pass:{password}"] if password else ["-nodes"]
    openssl(
        *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", *lock),
        *("-keyout", key, "-out", cert, "-days", 30, "-subj", "/CN=cortext"),
        *("-addext", f"subjectAltName={names}"),
    )
    return cert, key


def make_dated(folder: Path, start: str, end: str) -> tuple[Path, Path]:
    """Return a certificate that is valid from one time to another ("20200101000000Z")."""
    _, key = make_certificate(folder)
    request, cert = folder / "request.pem", folder / "dated.pem"
    (folder / "index.txt").write_text("")
    (folder / "ca.cnf").write_text(AUTHORITY.format(folder=folder))
    openssl(
        *("req", "-new", "-key", key, "-out", request, "-subj", "/CN=cortext"),
        *("-addext", f"subjectAltName={NAMES}"),
    )
    openssl(
        *("ca", "-batch", "-selfsign", "-config", folder / "ca.cnf", "-keyfile", key),
        *("-in", request, "-out", cert, "-notext", "-startdate", start, "-enddate", end),
    )
    return cert, key
