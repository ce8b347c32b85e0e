"""Texts as other systems save them: marks of byte order, and compressed files."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import zlib
from pathlib import Path
from typing import BinaryIO, cast

from cortext.files import check_file

DECOMPRESSION_ERRORS = (OSError, EOFError, zlib.error, lzma.LZMAError)
"""Errors of a damaged compressed file."""
_MOST_XZ_BYTES = 256 << 20
"""Most memory that an .xz file may ask for; `xz -9` asks for 65 MiB."""
_UNREAD = {
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"PK\x03\x04": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"\x04\x22\x4d\x18": "LZ4",
    b"Rar!": "RAR",
}
"""Names of compressed formats that are not read, by the first bytes of a file."""

_READ = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00")
"""First bytes of files of gzip, bzip2 and xz."""


def encoding_of(beginning: bytes) -> str:
    """Return the encoding of a text by its first bytes: UTF-8, or UTF-16 with its mark."""
    marked = beginning.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return "utf-16" if marked else "utf-8-sig"


def read_text(path: Path, most_bytes: int) -> str:
    """Return the text of a plain file in UTF-8 or UTF-16, without the mark of its byte order.

    Raises OSError, or ValueError (UnicodeDecodeError among them) for a file that is none or larger.
    """
    check_file(path, most_bytes)
    content = path.read_bytes()
    if content.startswith((*_UNREAD, *_READ)):
        raise ValueError("it is compressed; unpack it")
    return content.decode(encoding_of(content))


def open_text(raw: io.BufferedReader) -> io.TextIOWrapper:
    """Return the text of an open file, plain or compressed by gzip, bzip2 or xz.

    Its first bytes say which, whatever its name: nothing is read beyond the requested bytes. Raises
    OSError for other compressed files, naming the format.
    """
    beginning = raw.peek(8)
    stream: BinaryIO = raw
    for mark, name in _UNREAD.items():
        if beginning.startswith(mark):
            raise OSError(
                f"it is compressed ({name}); unpack it, or compress it as .gz, .bz2 or .xz"
            )
    if beginning.startswith(_READ[0]):
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=raw))
    elif beginning.startswith(_READ[1]):
        stream = cast(BinaryIO, bz2.BZ2File(raw))
    elif beginning.startswith(_READ[2]):
        stream = cast(BinaryIO, io.BufferedReader(_Xz(raw)))
    buffered = stream if stream is raw else io.BufferedReader(cast(io.RawIOBase, stream))
    return io.TextIOWrapper(
        buffered, encoding=encoding_of(cast(io.BufferedReader, buffered).peek(2))
    )


class _Xz(io.RawIOBase):
    """The content of an .xz file, which cannot ask for more memory than `_MOST_XZ_BYTES`."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._decompressor = self._new()

    @staticmethod
    def _new() -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MOST_XZ_BYTES)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        while True:
            unused = b""
            if self._decompressor.eof:  # files of several streams are usual: cat a.xz b.xz
                unused = self._decompressor.unused_data.lstrip(b"\0") or self._raw.read(1 << 16)
                if not unused.strip(b"\0"):
                    return 0
                self._decompressor = self._new()
            elif self._decompressor.needs_input:
                unused = self._raw.read(1 << 16)
                if not unused:
                    raise EOFError("compressed file ended before the end-of-stream marker")
            unpacked = self._decompressor.decompress(unused, len(buffer))
            if unpacked:
                buffer[: len(unpacked)] = unpacked
                return len(unpacked)
