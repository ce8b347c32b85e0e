"""Attacks on recordings: session files and what lies beside them. A row says what is done.

Each is read by the function of a command, all of them together by real commands. A bad trial costs
itself: `pack` names it in one line, `pack --skip-bad` leaves it out.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest
from commands import NOT_PRINTABLE, run
from engine_cases import SENTENCES, sentence_entries, write_lm
from h5py import h5a, h5d, h5s, h5t
from refusals import harmless, refused
from session_files import BINS, DAY, N_FEATURES, OTHER_DAY, SECRET, write_recordings
from untrained import untrained_run

from cortext.cli import run as cortext
from cortext.data import pack

BAD = "trial_0001"


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sessions of three trials, and beside them another person's files."""
    return write_recordings(tmp_path_factory.mktemp("good"))


@pytest.fixture
def place(good: Path, tmp_path: Path) -> Path:
    """A copy to attack: `data`, `secret.hdf5`, `secret.raw` and `pipe`."""
    shutil.copytree(good, tmp_path / "place")
    os.mkfifo(tmp_path / "place" / "pipe")
    return tmp_path / "place"


@dataclass(frozen=True)
class Attack:
    """An attack on one trial.

    name:   what is done
    change: does it to the trial's group, given the folder with `secret.hdf5`
    says:   a pattern that the line of the refusal has
    """

    name: str
    change: Callable[[h5py.Group, Path], object]
    says: str


def instead(
    name: str, make: Callable[[h5py.Group, Path], object]
) -> Callable[[h5py.Group, Path], None]:
    """Replace a member of the trial by what is returned, or by what is made under that name."""

    def change(group: h5py.Group, folder: Path) -> None:
        del group[name]
        made = make(group, folder)
        if made is not None:
            group[name] = made

    return change


def features(make: Callable[[h5py.Group, Path], object]) -> Callable[[h5py.Group, Path], None]:
    return instead("input_features", make)


def declared(*shape: int, dtype: str = "f4", **how: object) -> Callable[[h5py.Group, Path], None]:
    return features(lambda group, _: declare(group, "input_features", shape, dtype, **how))


def declare(
    group: h5py.Group, name: str, shape: tuple[int, ...], dtype: str, **how: object
) -> None:
    group.create_dataset(name, shape, dtype, **how)
    group.attrs["n_time_steps"] = min(shape[0], 2**60)


def virtual(
    source: str, name: str = "x", maxshape: int | None = BINS
) -> Callable[[h5py.Group, Path], None]:
    def make(group: h5py.Group, folder: Path) -> None:
        layout = h5py.VirtualLayout((BINS, N_FEATURES), "f4", maxshape=(maxshape, N_FEATURES))
        there = h5py.VirtualSource(
            folder / source, name, (BINS, N_FEATURES), maxshape=(maxshape, N_FEATURES)
        )
        rows = slice(0, h5s.UNLIMITED if maxshape is None else BINS)
        layout[rows] = there[rows]
        group.create_virtual_dataset("input_features", layout)

    return features(make)


def external_storage(group: h5py.Group, folder: Path) -> None:
    size = BINS * N_FEATURES * 4
    group.create_dataset(
        "input_features", (BINS, N_FEATURES), "f4", external=[(folder / "secret.raw", 0, size)]
    )


def chunk(
    content: bytes | Callable[[], bytes], mask: int = 0, **how: object
) -> Callable[[h5py.Group, Path], None]:
    """The features as one chunk of that content."""

    def make(group: h5py.Group, _: Path) -> None:
        shape = (BINS, N_FEATURES)
        made = group.create_dataset("input_features", shape, "f4", chunks=shape, **how)
        made.id.write_direct_chunk(
            (0, 0), content if isinstance(content, bytes) else content(), mask
        )

    return features(make)


@functools.cache
def gzip_bomb() -> bytes:
    """64 MiB of zeros, in fewer bytes than a chunk may have that compression made larger."""
    return zlib.compress(bytes(1 << 26), 9)


def zeros_in_gzip(group: h5py.Group, _: Path) -> None:
    """Zeros that are there: each chunk of 32 MiB takes 150 KB."""
    shape = (200_000, 512)
    rows = 16_384
    made = group.create_dataset(
        "input_features", shape, "f4", chunks=(rows, 512), compression="gzip"
    )
    packed = zlib.compress(bytes(rows * 512 * 4), 1)
    for first in range(0, shape[0], rows):
        made.id.write_direct_chunk((first, 0), packed)
    group.attrs["n_time_steps"] = shape[0]


def of_type(name: str, kind: h5t.TypeID, n_bytes: int) -> Callable[[h5py.Group, Path], None]:
    """An attribute, or the features, of a type that NumPy has no numbers for."""

    def change(group: h5py.Group, _: Path) -> None:
        if name == "input_features":
            del group[name]
            h5d.create(group.id, name.encode(), kind, h5s.create_simple((BINS, N_FEATURES)))
            return
        h5a.delete(group.id, name.encode())
        made = h5a.create(group.id, name.encode(), kind, h5s.create(h5s.SCALAR))
        made.write(np.zeros((), f"V{n_bytes}"), mtype=kind)

    return change


def attribute(name: str, value: object, **how: object) -> Callable[[h5py.Group, Path], object]:
    return lambda group, _: group.attrs.create(name, value, **how)


def opaque() -> h5t.TypeID:
    made = h5t.create(h5t.OPAQUE, 8)
    made.set_tag(b"opaque")
    return made


def scaled(group: h5py.Group, _: Path) -> None:
    group.create_dataset("input_features", data=np.ones((BINS, N_FEATURES), "i4"), scaleoffset=True)


def whole_trial(link: Callable[[h5py.Group, Path], object]) -> Callable[[h5py.Group, Path], None]:
    def change(group: h5py.Group, folder: Path) -> None:
        del group.file[BAD]
        group.file[BAD] = link(group, folder)

    return change


def external(file: str, name: str) -> Callable[[h5py.Group, Path], h5py.ExternalLink]:
    return lambda _, folder: h5py.ExternalLink(folder / file, name)


def soft(target: str) -> Callable[[h5py.Group, Path], h5py.SoftLink]:
    return lambda *_: h5py.SoftLink(target)


def raw_labels(group: h5py.Group, folder: Path) -> None:
    del group["seq_class_ids"]
    group.create_dataset("seq_class_ids", 500, "i4", external=[(folder / "secret.raw", 0, 2000)])


def endless_labels(group: h5py.Group, _: Path) -> None:
    del group["seq_class_ids"]
    group.create_dataset("seq_class_ids", (2**60,), "i4", chunks=(2**29 - 1,))


def reference(group: h5py.Group, _: Path) -> None:
    group.attrs.create("block_num", group.ref, dtype=h5py.ref_dtype)


def soft_link_out(group: h5py.Group, folder: Path) -> h5py.SoftLink:
    """A soft link within the file through a link out of it."""
    group.file["out"] = h5py.ExternalLink(folder / "secret.hdf5", "/")
    return h5py.SoftLink("/out/x")


def long_circle(group: h5py.Group, _: Path) -> h5py.SoftLink:
    for number in range(100):
        group.file[f"link{number}"] = h5py.SoftLink(f"/link{(number + 1) % 100}")
    return h5py.SoftLink("/link0")


TIME = h5t.UNIX_D32LE
OPAQUE = opaque()
LONG = 4_000_000
TRIAL_ATTACKS = (
    Attack("features: external link", features(external("secret.hdf5", "x")), "link"),
    Attack("features: external link to a pipe", features(external("pipe", "x")), "link"),
    Attack("features: soft link through an external link", features(soft_link_out), "external link"),
    Attack("features: external storage", features(external_storage), "external storage"),
    Attack("features: virtual dataset", virtual("secret.hdf5"), "virtual dataset"),
    Attack("features: virtual dataset of a pipe", virtual("pipe", maxshape=None), "virtual dataset"),
    Attack("features: soft link to itself", features(soft(f"/{BAD}/input_features")), "circle"),
    Attack("features: soft links in a long circle", features(long_circle), "circle"),
    Attack("features: soft link to nowhere", features(soft("/no/where")), "leads nowhere"),
    Attack("features: a group", features(lambda group, _: group.file.create_group("g")), "dataset missing"),
    Attack("features: a type", features(lambda *_: np.dtype("f4")), "dataset missing"),
    Attack("features: an opaque type", of_type("input_features", OPAQUE, 8), "numbers in 2 dimension"),
    Attack("features: times", of_type("input_features", TIME, 4), "numbers in 2 dimension"),
    Attack("features: 2^40 bins", declared(2**40, 128, chunks=(64, 128)), "1099511627776 bins x 128 features"),
    Attack("features: 2^40 bins in a row", declared(2**40, 2**20), "1099511627776 bins"),
    Attack("features: 2^62 bins", declared(2**62, 1, chunks=(64, 1)), "4611686018427387904 bins"),
    Attack("features: one bin too many", declared(60_001, 16), "60001 bins .* at most 60000"),
    Attack("features: one feature too many", declared(64, 16_385), "16385 features .* 16384"),
    Attack("features: wide numbers", declared(60_000, 16_384, dtype="f8"), "of 8 bytes declared"),
    Attack("features: gigabytes of zeros in gzip", features(zeros_in_gzip), "200000 bins x 512 features"),
    Attack("features: never written", declared(60_000, 16_384), "no values were ever written"),
    Attack("features: chunks over 64 MiB", declared(60_000, 512, chunks=(40_000, 512)), "at most 67108864"),
    Attack("features: a million chunks", declared(60_000, 16, chunks=(1, 1)), "960000 chunks"),
    Attack("features: 64 MiB from 64 KB of gzip", chunk(gzip_bomb, compression="gzip"), "chunk"),
    Attack("features: 100 KB for 4 KB", chunk(zlib.compress(bytes(10**5), 0), compression="gzip"), "chunk"),
    Attack("features: short gzip", chunk(zlib.compress(b"1" * 40), compression="gzip"), "chunk"),
    Attack("features: gzip of nothing", chunk(b"1" * 40, compression="gzip"), "chunk"),
    Attack("features: short, said to be raw", chunk(b"1" * 40, 1, compression="gzip"), "chunk"),
    Attack("features: short chunk", chunk(b"1" * 40), "chunk"),
    Attack("features: short lzf", chunk(b"\x03abcd\xe0\xff\x00", compression="lzf"), "chunk"),
    Attack("features: short checksum", chunk(b"1", fletcher32=True), "chunk"),
    Attack("features: another filter", features(scaled), "filters .* gzip or lzf expected"),
    Attack("labels: external link", instead("seq_class_ids", external("pipe", "x")), "link"),
    Attack("labels: external storage", raw_labels, "external storage"),
    Attack("text: external link", instead("transcription", external("pipe", "x")), "link"),
    Attack("labels: 2^60 in chunks of 2 GiB", endless_labels, "chunks of"),
    Attack("block_num: 2^64 - 1", attribute("block_num", np.uint64(2**64 - 1)), "number of 64 bits"),
    Attack("trial_num: 1e300", attribute("trial_num", 1e300), "trial_num: .* 64 bits"),
    Attack("n_time_steps: 1e300", attribute("n_time_steps", 1e300), "n_time_steps"),
    Attack("block_num: a time", of_type("block_num", TIME, 4), "block_num: .* one number or text"),
    Attack("block_num: opaque", of_type("block_num", OPAQUE, 8), "block_num: .* one number or text"),
    Attack("session: opaque", of_type("session", OPAQUE, 8), "session: .* one number or text"),
    Attack("block_num: a reference", reference, "block_num"),
    Attack("block_num: a compound", attribute("block_num", np.zeros((), [("a", "i4"), ("b", "i4")])), "block_num"),
    Attack("block_num: nothing", attribute("block_num", h5py.Empty("i4")), "block_num"),
    Attack("block_num: numbers", attribute("block_num", np.arange(8000)), "block_num"),
    Attack("sentence_label: 4 MB", attribute("sentence_label", "x" * LONG), "sentence_label: 4000000 characters"),
    Attack("sentence_label: two of 2 MB", attribute("sentence_label", ["x" * (LONG // 2)] * 2), "sentence_label"),
    Attack("session: escapes", attribute("session", "\x1b]0;owned\x07" + "\u202e" * 400), r"session: '\\x1b"),
    Attack("session: ../..", attribute("session", "../../x"), "session: '../../x' found"),
    Attack("trial: external link", whole_trial(external("secret.hdf5", "/")), "link"),
    Attack("trial: external link to a pipe", whole_trial(external("pipe", "/")), "link"),
    Attack("trial: soft link to itself", whole_trial(soft(f"/{BAD}")), "circle"),
    Attack("trial: soft link to nowhere", whole_trial(soft("/no/where")), "leads nowhere"),
    Attack("trial: the whole file", whole_trial(soft("/")), "attribute missing"),
    Attack("trial: another trial", whole_trial(soft("/trial_0000")), "found again"),
)  # fmt: skip


def attack_trial(attack: Attack, place: Path, day: str = DAY) -> Path:
    with h5py.File(place / "data" / day / "data_train.hdf5", "r+") as file:
        attack.change(file[BAD], place)
    return place / "data"


@pytest.mark.parametrize("attack", TRIAL_ATTACKS, ids=lambda attack: attack.name)
def test_an_attack_in_a_trial_is_refused_in_one_line(attack: Attack, place: Path) -> None:
    data = attack_trial(attack, place)
    with refused(f"{BAD}: .*{attack.says}", most_mb=50):
        pack(data, place / "packed")
    assert not (place / "packed").exists()


@pytest.fixture(scope="module")
def all_attacks(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A day for each attack, and the days that are good."""
    place = tmp_path_factory.mktemp("all") / "place"
    shutil.copytree(good, place)
    os.mkfifo(place / "pipe")
    for number, attack in enumerate(TRIAL_ATTACKS):
        day = f"attack.{number:03d}"
        shutil.copytree(place / "data" / OTHER_DAY, place / "data" / day)
        with h5py.File(place / "data" / day / "data_train.hdf5", "r+") as file:
            for trial in file.values():
                trial.attrs["session"] = day
        attack_trial(attack, place, day)
    return place


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of both days."""
    run_dir = untrained_run(
        tmp_path_factory.mktemp("trained") / "run", (DAY, OTHER_DAY), N_FEATURES
    )
    (run_dir / "config.yaml").write_text("seed: 7\n")
    return run_dir


COMMANDS = {
    "train": ("train", "--config", "tiny", "--data", "DATA", "--out", "OUT"),
    "evaluate": ("evaluate", "RUN", "--data", "DATA", "--split", "train", "--out", "OUT"),
    "decode": ("decode", "RUN", "--data", "DATA", "--split", "train", "--lm", "LM", "--out", "OUT"),
    "adapt": ("adapt", "RUN", "--data", "DATA", "--session", OTHER_DAY, "--out", "OUT"),
    "adapt --unlabelled": (
        "adapt",
        "RUN",
        "--data",
        "DATA",
        "--session",
        OTHER_DAY,
        "--unlabelled",
        "replay",
        "--lm",
        "LM",
        "--out",
        "OUT",
    ),
    "replay": (
        "replay",
        "--data",
        "DATA",
        "--profile",
        "json",
        "--run",
        "RUN",
        "--redis-port",
        "1",
    ),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_refuses_another_file_in_the_data(
    command: str, trained: Path, place: Path
) -> None:
    data = attack_trial(TRIAL_ATTACKS[0], place)
    searches = "LM" in COMMANDS[command]
    lm = write_lm(place / "lm", sentence_entries(), SENTENCES) if searches else place
    places = {"DATA": data, "RUN": trained, "OUT": place / "out", "LM": lm}
    ended = run(*(places.get(word, word) for word in COMMANDS[command]), patience_s=60)
    ended.check_refused(f"{BAD}: input_features: an external link")
    assert not (data / ".packed").exists()


def test_every_attack_costs_its_trial_only(all_attacks: Path) -> None:
    out = all_attacks / "packed"
    skipped = run("pack", all_attacks / "data", "--out", out, "--skip-bad", patience_s=60)
    skipped.check_harmless(most_mb=900, most_s=60)
    n_attacks = len(TRIAL_ATTACKS)
    assert (skipped.status, f"left out as unusable: {n_attacks}\n" in skipped.stdout) == (
        0,
        True,
    ), skipped.said
    assert (out / "train.f16").stat().st_size == (6 + 2 * n_attacks) * BINS * N_FEATURES * 2
    assert np.float16(SECRET).tobytes() * N_FEATURES not in (out / "train.f16").read_bytes()


def test_inspect_lists_every_attack(all_attacks: Path) -> None:
    seen = run("inspect", all_attacks / "data", patience_s=60)
    seen.check_harmless(most_mb=900, most_s=60)
    for number, attack in enumerate(TRIAL_ATTACKS):
        line = next(
            line
            for line in seen.stdout.splitlines()
            if f"attack.{number:03d}/data_train.hdf5: {BAD}: " in line
        )
        assert re.search(attack.says, line), line


@dataclass(frozen=True)
class FileAttack:
    """An attack on a file or folder of the data set.

    name:   what is done
    change: does it, given the folder with `data`, `pipe` and the secrets
    says:   a pattern that the line of the refusal has
    others: whether `--skip-bad` leaves the session out and continues
    """

    name: str
    change: Callable[[Path], object]
    says: str
    others: bool = False


def session_file(make: Callable[[Path, Path], object]) -> Callable[[Path], None]:
    """Replace a session file by what is made in its place."""

    def change(place: Path) -> None:
        file = place / "data" / DAY / "data_train.hdf5"
        file.unlink()
        make(file, place)

    return change


def sparse(file: Path, _: Path) -> None:
    with file.open("wb") as writer:
        writer.truncate(2**40)


def folder_named(name: bytes) -> Callable[[Path], None]:
    """A session whose folder and trials have that name."""

    def change(place: Path) -> None:
        folder = place / "data" / os.fsdecode(name)
        (place / "data" / DAY).rename(folder)
        with h5py.File(folder / "data_train.hdf5", "r+") as file:
            for trial in file.values():
                trial.attrs["session"] = np.bytes_(name)

    return change


def table(content: bytes, size: int = 0) -> Callable[[Path], None]:
    def change(place: Path) -> None:
        with (place / "data" / "t15_copyTaskData_description.csv").open("wb") as file:
            file.write(b"date,day,block,sentences,corpus,split\n" + content)
            if size:
                file.truncate(size)

    return change


def conventions(**entries: object) -> Callable[[Path], None]:
    """Put a `cortext.json` with these entries beside the sessions."""
    text = json.dumps({"format": "cortext-conventions", "format_version": 1} | entries)
    return conventions_file(lambda file, _: file.write_text(text))


def conventions_file(make: Callable[[Path, Path], object]) -> Callable[[Path], None]:
    return lambda place: make(place / "data" / "cortext.json", place)


def tokens(symbols: object, **entries: object) -> Callable[[Path], None]:
    return conventions(inventory={"name": "mine", "symbols": symbols} | entries)


def tokens_of(n_tokens: int) -> list[str]:
    return ["BLANK", "SIL", *(f"T{number}" for number in range(n_tokens - 2))]


def language(**entries: object) -> Callable[[Path], None]:
    return conventions(language={"name": "mine", "letters": "a-z"} | entries)


LETTERS = ["BLANK", "SIL", "a", "b"]
CONVENTIONS = "cortext.json: .*"
CONVENTIONS_ATTACKS = tuple(
    FileAttack(f"conventions: {name}", change, CONVENTIONS + says)
    for name, change, says in (
        ("nothing", conventions_file(lambda file, _: file.touch()), "cannot be read"),
        ("a list", conventions_file(lambda file, _: file.write_text("[]")), "it is a list"),
        ("bytes", conventions_file(lambda file, _: file.write_bytes(b"\xff\xfe\0")), "cannot be read"),
        ("200,000 levels", conventions_file(lambda file, _: file.write_text('{"a":' * 200_000)), "64 levels"),
        ("a terabyte", conventions_file(sparse), "1,099,511,627,776 bytes; at most 1,048,576"),
        ("2 MB of blanks", conventions_file(lambda file, _: file.write_text(" " * 2**21)), "at most 1,048,576"),
        ("a folder", conventions_file(lambda file, _: file.mkdir()), "Is a directory"),
        ("a pipe", conventions_file(lambda file, _: os.mkfifo(file)), "not a regular file"),
        ("a link to a pipe", conventions_file(lambda file, at: file.symlink_to(at / "pipe")), "not a regular file"),
        ("a link to a device", conventions_file(lambda file, _: file.symlink_to("/dev/zero")), "not a regular file"),
        ("a link to itself", conventions_file(lambda file, _: file.symlink_to(file)), "[Ss]ymbolic links"),
        ("a link to nowhere", conventions_file(lambda file, at: file.symlink_to(at / "no")), "No such file"),
        ("another format", conventions(format="cortext-packed"), "format 'cortext-conventions' version 1 expected"),
        ("version 2", conventions(format_version=2), "version 1 expected"),
        ("an unknown key", conventions(bin=20), r"unknown key 'bin'; did you mean 'bin_ms'\?"),
        ("a key twice", conventions_file(lambda file, _: file.write_text('{"bin_ms": 10, "bin_ms": 20}')), "cannot be read"),
        ("bins: NaN", conventions(bin_ms=float("nan")), "cannot be read"),
        ("bins: a text", conventions(bin_ms="20"), "bin_ms is '20'; 5 to 50 ms"),
        ("bins: true", conventions(bin_ms=True), "bin_ms is True"),
        ("bins: 4 ms", conventions(bin_ms=4), "bin_ms is 4; 5 to 50 ms"),
        ("bins: 10^400", conventions(bin_ms=10**400), "cannot be read"),
        ("a note with escapes", conventions(normalised="\x1b]0;x\x07"), "normalised is"),
        ("a note of 501 letters", conventions(normalised="x" * 501), "normalised is"),
        ("a note that is a list", conventions(normalised=["x"]), "normalised is"),
        ("features of another kind", conventions(features="block"), "features is 'block'; use 'z-scored' or 'raw'"),
        ("features: a list", conventions(features=["raw"]), r"features is \['raw'\]"),
        ("a participant: a path", conventions(participant="../x"), r"participant is '\.\./x'; it must be able to name"),
        ("a participant: a number", conventions(participant=15), "participant is 15; it must"),
        ("a participant: empty", conventions(participant=""), "participant is ''; it must"),
        ("a participant: escapes", conventions(participant="\x1b[31m"), "participant is .*; it must"),
        ("a participant: 10^5 letters", conventions(participant="x" * 10**5), "participant is 'x"),
        ("tokens: 251", tokens(tokens_of(251)), "it has 251 tokens; 2 to 250"),
        ("tokens: 10^5", tokens(["BLANK"] * 10**5), "it has 100000 tokens"),
        ("tokens: one twice", tokens([*LETTERS, "a"]), "'a' is there twice"),
        ("tokens: escapes", tokens([*LETTERS, "\x1b]0;x\x07"]), r"'\\x1b\]0;x\\x07' is no symbol"),
        ("tokens: a blank", tokens([*LETTERS, "a b"]), "is no symbol"),
        ("tokens: nothing", tokens([*LETTERS, ""]), "is no symbol"),
        ("tokens: 41 letters", tokens([*LETTERS, "x" * 41]), "is no symbol"),
        ("tokens: a turn of direction", tokens([*LETTERS, "\u202ea"]), "is no symbol"),
        ("tokens: half a character", tokens([*LETTERS, "\ud800"]), "is no symbol"),
        ("tokens: numbers", tokens([1, 2]), "inventory.symbols is"),
        ("tokens: a text", tokens("abc"), "inventory.symbols is"),
        ("tokens: no blank", tokens(["SIL", "a"]), "the blank 'BLANK' is none of its symbols"),
        ("tokens: the blank is second", tokens(["SIL", "BLANK", "a"]), "'BLANK' is token 1"),
        ("roles: one for two", tokens(LETTERS, roles={"blank": "BLANK", "silence": "BLANK"}), "two roles have one symbol"),
        ("roles: a silence of nothing", tokens(LETTERS, roles={"blank": "BLANK", "silence": ""}), "two roles have one symbol"),
        ("roles: unknown", tokens(LETTERS, roles={"blanc": "BLANK"}), "unknown role 'blanc'"),
        ("roles: both", tokens(LETTERS, roles={"silence": "SIL", "boundary": "a"}), "a silence and a boundary"),
        ("groups: escapes", tokens(LETTERS, groups={"\x1b]0;": ["a"]}), "is no group"),
        ("groups: unknown", tokens(LETTERS, groups={"x": ["c"]}), "groups names 'c'"),
        ("groups: a list", tokens(LETTERS, groups=[["a"]]), "inventory.groups is"),
        ("a unit", tokens(LETTERS, unit="word"), "unit is 'word'"),
        ("a unit that is a list", tokens(LETTERS, unit=[]), "unit is"),
        ("an inventory by number", conventions(inventory=3), "the inventory is 3"),
        ("an inventory by a wrong name", conventions(inventory="arpabe"), r"did you mean 'arpabet'\?"),
        ("a name of escapes", conventions(inventory={"name": "\x1b", "symbols": LETTERS}), "inventory.name is"),
        ("a language that is none", conventions(language="xx"), "unknown language 'xx'"),
        ("a language by number", conventions(language=1.5), "the language is 1.5"),
        ("letters: none", language(letters=""), "language.letters is"),
        ("letters: a range backwards", language(letters="z-a"), "is no letter or range"),
        ("letters: capitals", language(letters="A-Z a b C"), "the capital 'A'"),
        ("letters: 4,001", language(letters="a" * 4001), "language.letters is"),
        ("letters: blanks", language(letters="   "), "language"),
        ("a built-in name", language(name="es"), "the language 'es' is built in"),
        ("an unknown key of the language", language(letter="x"), "unknown key 'letter'"),
        ("lower case by text", language(lower_case="yes"), "language.lower_case"),
    )
)  # fmt: skip
FILE_ATTACKS = (
    *CONVENTIONS_ATTACKS,
    FileAttack("a pipe", session_file(lambda file, _: os.mkfifo(file)), "not a file", others=True),
    FileAttack(
        "a link to a pipe",
        session_file(lambda file, at: file.symlink_to(at / "pipe")),
        "not a file",
        others=True,
    ),
    FileAttack(
        "a link to a device",
        session_file(lambda file, _: file.symlink_to("/dev/zero")),
        "not a file",
        others=True,
    ),
    FileAttack("a folder", session_file(lambda file, _: file.mkdir()), "not a file", others=True),
    FileAttack("a terabyte of nothing", session_file(sparse), "not an HDF5 file", others=True),
    FileAttack(
        "a session's name with escapes",
        folder_named(b"\x1b]0;x\x07\x1b[2J"),
        r"\\x1b.*rename the session",
    ),
    FileAttack(
        "a session's name that is not UTF-8", folder_named(b"t15.\xff"), "rename the session"
    ),
    FileAttack(
        "a session's name with a backslash", folder_named(b"t15\\2023"), "rename the session"
    ),
    FileAttack("a session's name of 201 letters", folder_named(b"t" * 201), "rename the session"),
    FileAttack(
        "a table of blocks with a cell of 100 MB", table(b"x" * 10**8), "not the table of blocks"
    ),
    FileAttack(
        "a table of blocks with NUL",
        table(b"2023-08-11,\0,1,1,a,Train\n"),
        "not the table of blocks",
    ),
    FileAttack(
        "a table of blocks with endless numbers",
        table(b"2023-08-11," + b"9" * 4000 + b",1,1,a,Train\n"),
        "blocks",
    ),
    FileAttack("a table of blocks of a terabyte", table(b"", 2**40), "not the table of blocks"),
    FileAttack(
        "a table of blocks with escapes",
        table(b"\x1b]0;x\x07,a,1,1,a,Train\n"),
        "not the table of blocks",
    ),
)


@pytest.mark.parametrize("attack", FILE_ATTACKS, ids=lambda attack: attack.name)
def test_a_file_that_is_not_what_it_says_is_refused_in_one_line(
    attack: FileAttack, place: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    attack.change(place)
    data = place / "data"
    out = place / "packed"
    with refused(attack.says):
        pack(data, out)
    assert not out.exists()
    with harmless():
        assert cortext(["inspect", str(data)]) in (0, 2)
    if attack.others:
        with harmless():
            assert cortext(["pack", str(data), "--out", str(out), "--skip-bad"]) == 0
    printed = "".join(capfd.readouterr())
    assert not NOT_PRINTABLE.search(printed), repr(printed[:2000])
    if attack.others:
        assert (out / "train.f16").stat().st_size == 3 * BINS * N_FEATURES * 2


def test_corpora_with_escapes_reach_the_terminal_escaped(place: Path) -> None:
    table(b"2023-08-11,3,1,3,\x1b]0;x\x07" + b"y" * 10_000 + b",Train\n")(place)
    seen = run("inspect", place / "data", patience_s=60)
    seen.check_harmless()
    assert seen.status == 0
    rows = [line for line in seen.stdout.splitlines() if "yyy" in line]
    assert rows
    assert max(map(len, rows)) < 400


def test_the_limits_are_raised_by_options(place: Path) -> None:
    with h5py.File(place / "data" / DAY / "data_train.hdf5", "r+") as file:
        del file[BAD]["input_features"]
        file[BAD]["input_features"] = np.ones((60_010, N_FEATURES), np.float32)
    data = place / "data"
    out = place / "packed"
    with refused("60010 bins .*--max-bins"):
        pack(data, out)
    assert run("pack", data, "--out", out, "--max-bins", "60010").status == 0
    assert "60001" not in run("inspect", data, "--max-bins", "60010").stdout
    run("pack", data, "--out", out, "--max-features", "15").check_refused(
        "16 features .*--max-features"
    )
