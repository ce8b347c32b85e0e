"""Encryption of the page's connections: a certificate and its key, and their faults."""

from __future__ import annotations

import ssl
from pathlib import Path

from cortext.errors import ConfigError

_EXPIRED, _NOT_YET_VALID = 10, 9
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED and X509_V_ERR_CERT_NOT_YET_VALID."""


def load_tls(cert: Path, key: Path) -> ssl.SSLContext:
    """Return the context that serves with a certificate; TLS 1.2 or newer.

    Args:
        cert: PEM file: the certificate, then those that signed it, if any.
        key: PEM file: its private key, without a password.

    Raises:
        ConfigError: One of them cannot be read, or they do not belong together.
    """
    _check_pem(cert, "CERTIFICATE", "certificate")
    _check_pem(key, "PRIVATE KEY", "private key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, password=lambda: _no_password(key))
    except ssl.SSLError as error:
        fix = "give --tls CERT KEY that belong together, in PEM"
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"the key does not belong to {cert}", where=key, fix=fix) from None
        reason = (error.reason or "unknown format").lower().replace("_", " ")
        raise ConfigError(
            f"the certificate or its key cannot be used: {reason}", where=cert, fix=fix
        ) from None
    return context


def _check_pem(file: Path, kind: str, thing: str) -> None:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"the {thing} cannot be read: {error.strerror}", where=file, fix="give --tls CERT KEY"
        ) from None
    if b"-----BEGIN " not in content or f"{kind}-----".encode() not in content:
        raise ConfigError(
            f"this file holds no {thing} in PEM", where=file, fix="give CERT, then KEY"
        )


def _no_password(key: Path) -> str:
    raise ConfigError(
        "the private key has a password",
        where=key,
        fix="give a copy without: openssl pkey -in KEY -out PLAIN, readable by you alone",
    )


def certificate_faults(context: ssl.SSLContext, cert: Path, host: str) -> list[str]:
    """Return what browsers will object to in a certificate, a sentence each.

    The certificate is looked at as a browser sees it, in a handshake within this process.

    Args:
        context: The context of `load_tls`.
        cert: Its certificate, which is trusted here.
        host: Name or address that browsers open.
    """
    reader = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    reader.load_verify_locations(cert)
    reader.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    faults = []
    for check_host in (False, True):  # a date that is wrong hides a name that is
        reader.check_hostname = check_host
        try:
            _shake_hands(reader, context, host)
        except ssl.SSLCertVerificationError as error:
            if error.verify_code == _EXPIRED:
                faults.append(f"the certificate {cert} has expired")
            elif error.verify_code == _NOT_YET_VALID:
                faults.append(f"the certificate {cert} is not valid yet: is the clock right?")
            elif check_host:
                faults.append(f"the certificate {cert} does not name {host}")
        except ssl.SSLError:  # a purpose or a chain that only some browsers mind
            pass
        if faults:
            break
    return faults


def _shake_hands(reader: ssl.SSLContext, server: ssl.SSLContext, host: str) -> None:
    """Do a handshake between two contexts. Raises ssl.SSLError where it fails."""
    to_server, to_reader = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        reader.wrap_bio(to_reader, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_reader, server_side=True),
    ]
    for _ in range(4):  # messages that each end sends before both are done
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
