"""Damage language-model files at random and read them.

Each must give an answer or a CortextError, never a crash.

    python tools/fuzz_native.py --seconds 60 --seed 0 --out build/fuzz

Files are read in a process of their own. If that dies, hangs, eats memory or raises anything else,
the file is kept under `--out` and the command fails. `--file KIND FILE` reads one such file again
(KIND is the first part of its name).
"""

from __future__ import annotations

import argparse
import faulthandler
import gzip
import math
import random
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cortext import _native
from cortext.decoding import DecoderOptions
from cortext.decoding.engine import NativeEngine
from cortext.errors import CortextError, LanguageModelError
from cortext.text.inventory import LM, get_inventory
from cortext.text.lexicon import Lexicon

MADE_BY_LMPLZ = Path(__file__).parent.parent / "tests/core/decoding/ngram/lmplz"
BINARIES = {
    "probing": dict(type="probing"),
    "restprobing": dict(type="rest_probing"),
    "trie": dict(prob_bits=0, backoff_bits=0, pointer_bits=0),
    "arraytrie": dict(prob_bits=0, backoff_bits=0),
    "quanttrie": dict(pointer_bits=0),
    "quantarraytrie": dict(),
}
HANG_SECONDS = 20
MOST_BYTES = 1 << 30  # more memory than this, for files of a tenth of a megabyte, is a failure
WORDS = "the a cat sat ran away dog i want to go you my it is not was are no such word <s> </s> <unk>".split()

FIELDS = [
    field.encode()
    for field in r"0 -1 1e30 -1e30 nan -inf 99999999999999999999 4294967295 <unk> </s> the".split()
]
FIELDS += [
    b"",
    b"\0",
    b"SIL",
    b"AA",
    b"ngram",
    b"\xff\xfe",
    b"x" * 5000,
    b"\\data\\",
    b"\\end\\",
    b"\t\t",
    b"\n\n",
]

Mutation = Callable[[bytearray, random.Random], None]


def main() -> int:
    """Fuzz, or with --worker be the process that reads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--file", nargs=2, metavar=("KIND", "FILE"))
    args = parser.parse_args()
    if args.file:
        read(args.file[0], Path(args.file[1]), args.out)
        return 0
    return (
        work(args.out, args.seed, args.seconds)
        if args.worker
        else supervise(args.out, args.seed, args.seconds)
    )


def supervise(out: Path, seed: int, seconds: float) -> int:
    """Run workers until the time is over; keep what each died of."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    end = time.monotonic() + seconds
    failures = 0
    while time.monotonic() < end and failures < 10:
        command = [
            sys.executable,
            __file__,
            "--worker",
            "--out",
            str(out),
            "--seed",
            str(seed + failures),
        ]
        worker = subprocess.run(
            [*command, "--seconds", str(end - time.monotonic())],
            capture_output=True,
            text=True,
            check=False,
        )
        print(worker.stdout, end="")
        if worker.returncode:
            failures += 1
            for current in sorted(out.glob("*.current")):
                kept = current.rename(out / f"{current.stem}-{seed}-{failures}.kept")
                print(f"exit code {worker.returncode} while reading {kept}")
            print(worker.stderr[-3000:])
    return 1 if failures else 0


def work(out: Path, seed: int, seconds: float) -> int:
    """Damage and read files until the time is over."""
    rng = random.Random(seed)
    seeds = make_seeds(out)
    end = time.monotonic() + seconds
    n_read = dict.fromkeys(seeds, 0)
    n_refused = dict.fromkeys(seeds, 0)
    while time.monotonic() < end:
        kind = rng.choice(list(seeds))
        data = bytearray(rng.choice(seeds[kind]))
        mutations = TEXT if kind in ("arpa", "lexicon") else BINARY
        for _ in range(rng.choice((1, 1, 1, 1, 2, 10))):
            rng.choice(mutations)(data, rng)
        if kind == "arpagz":
            data = damage_gzip(data, rng)
        path = out / f"{kind}.current"
        path.write_bytes(data)
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)
        n_read[kind] += 1
        n_refused[kind] += not read(kind, path, out)
        faulthandler.cancel_dump_traceback_later()
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MOST_BYTES:
            raise MemoryError("too much memory was used")
        path.unlink()
    print("  ".join(f"{kind}: {n_read[kind]} read, {n_refused[kind]} refused" for kind in seeds))
    return 0


def make_seeds(out: Path) -> dict[str, list[bytes]]:
    """Sound files of every kind."""
    arpas = [
        gzip.decompress((MADE_BY_LMPLZ / name).read_bytes())
        for name in ("tiny.arpa.gz", "text.arpa.gz")
    ]
    seeds: dict[str, list[bytes]] = {kind: [] for kind in BINARIES}
    for arpa in arpas:
        (out / "sound.arpa").write_bytes(arpa)
        for kind, options in BINARIES.items():
            _native.write_binary(str(out / "sound.arpa"), str(out / "sound.bin"), **options)  # type: ignore[arg-type]
            seeds[kind].append((out / "sound.bin").read_bytes())
    (out / "sound.arpa").write_bytes(arpas[0])
    lexicon = Lexicon(
        {word: Lexicon.cmu().pronunciations(word) for word in WORDS if word in Lexicon.cmu()}
    )
    lexicon.write(out / "sound.lexicon")
    single = (
        b"\\data\\\nngram"
        b" 1=4\n\n\\1-grams:\n-1\t<unk>\n-99\t<s>\n-0.5\t</s>\n-0.7\tthe\n\n\\end\\\n"
    )
    return seeds | {
        "arpa": [*arpas, single],
        "arpagz": arpas[:1],
        "lexicon": [(out / "sound.lexicon").read_bytes()],
    }


def read(kind: str, path: Path, out: Path) -> bool:
    """Return whether the file could be used."""
    refused = ""
    try:
        if kind == "lexicon":
            decode_with(path, out)
        else:
            score_with(path)
            if kind.startswith("arpa"):
                options = list(BINARIES.values())[path.stat().st_size % len(BINARIES)]
                _native.write_binary(str(path), str(out / "copy.bin"), **options)  # type: ignore[arg-type]
                score_with(out / "copy.bin")
    except CortextError as error:
        refused = str(error)
    assert "\n" not in refused, refused
    return not refused


def score_with(path: Path) -> None:
    """Put an n-gram file to every use."""
    ngram = _native.NGram.open(str(path))
    rng = random.Random(0)
    try:
        known = ngram.words()
    except LanguageModelError:  # the strings are damaged, the keys of look-ups are not
        known = []
    words = WORDS + rng.sample(known, min(len(known), 100))
    for _ in range(40):
        state = ngram.begin() if rng.random() < 0.5 else ngram.empty()
        for word in rng.choices(words, k=8):
            score, state = ngram.score(state, word)
            assert math.isfinite(score), score
        assert math.isfinite(ngram.end(state))
    assert all(math.isfinite(ngram.unigram(word)) for word in words)


def decode_with(lexicon: Path, out: Path) -> None:
    """Search with a lexicon."""
    directory = out / "lm"
    directory.mkdir(exist_ok=True)
    shutil.copy(lexicon, directory / "lexicon.txt")
    shutil.copy(out / "sound.arpa", directory / "lm.arpa")
    (directory / "tokens.txt").write_text("".join(f"{symbol}\n" for symbol in LM.symbols))
    engine = NativeEngine.from_dir(directory)
    logits = np.random.default_rng(0).normal(size=(12, len(LM))).astype(np.float32) * 4
    log_probs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    utterance = engine.start(DecoderOptions(), get_inventory("lm"))
    utterance.advance(log_probs)
    utterance.finish()


def somewhere(data: bytearray, rng: random.Random) -> int:
    """A place in the file, often in its header."""
    return rng.randrange(min(len(data), 400) if rng.random() < 0.2 else len(data)) if data else 0


def flip(data: bytearray, rng: random.Random) -> None:
    """One bit."""
    if data:
        data[somewhere(data, rng)] ^= 1 << rng.randrange(8)


def put_byte(data: bytearray, rng: random.Random) -> None:
    """One byte."""
    if data:
        data[somewhere(data, rng)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def put_number(data: bytearray, rng: random.Random) -> None:
    """A number of 4 or 8 bytes where one may be."""
    size = rng.choice((4, 8))
    value = rng.choice(
        (
            0,
            1,
            2,
            255,
            1 << 20,
            (1 << 31) - 1,
            1 << 31,
            (1 << 32) - 1,
            1 << 40,
            (1 << 63) - 1,
            (1 << 64) - 1,
        )
    )
    at = somewhere(data, rng) // 4 * 4
    data[at : at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def truncate(data: bytearray, rng: random.Random) -> None:
    """The end is missing."""
    del data[somewhere(data, rng) :]


def drop(data: bytearray, rng: random.Random) -> None:
    """A piece is missing."""
    at = somewhere(data, rng)
    del data[at : at + rng.choice((1, 2, 8, 100, 4096))]


def double(data: bytearray, rng: random.Random) -> None:
    """A piece comes twice."""
    at = somewhere(data, rng)
    data[at:at] = data[at : at + rng.choice((1, 8, 100, 4096))]


def fill(data: bytearray, rng: random.Random) -> None:
    """Overwrite a piece, perhaps everything from some place on, with one byte or noise."""
    at = somewhere(data, rng)
    size = min(rng.choice((8, 64, 4096, 1 << 20)), len(data) - at)
    data[at : at + size] = (
        bytes([rng.choice((0, 255))]) * size if rng.random() < 0.7 else rng.randbytes(size)
    )


def change_line(data: bytearray, rng: random.Random) -> None:
    """A line is lost, doubled, moved or joined with the next."""
    lines = bytes(data).split(b"\n")
    at = rng.randrange(min(len(lines), 12) if rng.random() < 0.3 else len(lines))
    change = rng.randrange(4)
    if change == 0:
        del lines[at]
    elif change == 1:
        lines.insert(at, lines[at])
    elif change == 2:
        lines.insert(rng.randrange(len(lines)), lines.pop(at))
    else:
        lines[at : at + 2] = [b" ".join(lines[at : at + 2])]
    data[:] = b"\n".join(lines)


def change_field(data: bytearray, rng: random.Random) -> None:
    """A field becomes something else."""
    new = rng.choice(FIELDS)
    lines = bytes(data).split(b"\n")
    at = rng.randrange(min(len(lines), 12) if rng.random() < 0.4 else len(lines))
    separator = rng.choice((b"\t", b" ", b"="))
    fields = lines[at].split(separator)
    fields[rng.randrange(len(fields))] = new
    lines[at] = separator.join(fields)
    data[:] = b"\n".join(lines)


def change_digit(data: bytearray, rng: random.Random) -> None:
    """Another number, mostly one that is possible."""
    at = somewhere(data, rng)
    while at < len(data) and not 48 <= data[at] <= 57:
        at += 1
    if at < len(data):
        data[at] = rng.choice(b"0123456789")


def damage_gzip(data: bytearray, rng: random.Random) -> bytearray:
    """Compressed; half the time the damage is in the compressed bytes too."""
    packed = bytearray(gzip.compress(bytes(data), 1))
    if rng.random() < 0.5:
        rng.choice(BINARY)(packed, rng)
    return packed


BINARY: tuple[Mutation, ...] = (flip, put_byte, put_number, truncate, drop, double, fill)
TEXT: tuple[Mutation, ...] = (flip, put_byte, truncate, drop, double, change_line, change_field)
TEXT += (change_field, change_digit, change_digit, change_digit)

if __name__ == "__main__":
    sys.exit(main())
