"""Attacks on models.

Checkpoints of the release, run directories, saved logits and search directories.

Real commands read what a row has changed in a sound one. They end with one line before their work
begins, or, where only a curve of the report is lost, do it.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import release_oracle as oracle
import torch
import yaml
from commands import run
from safetensors.torch import load_file, save_file

from cortext.data import Trial, write_session

HUGE = 2_000_000_000
DAYS = ("t15.2023.08.11", "t15.2023.08.13")
CONFIG = """
model: {n_units: 8, n_layers: 1}
dataset: {batch_size: 4, days_per_batch: 2}
num_training_batches: 2
batches_per_val_step: 2
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a run of two batches, a language model and a checkpoint of the
    release.
    """
    folder = tmp_path_factory.mktemp("made")
    generator = np.random.default_rng(0)
    for day in DAYS:
        for split in ("train", "val"):
            trials = [
                Trial(
                    generator.standard_normal((80, 8), np.float32),
                    day,
                    1,
                    number,
                    "a text",
                    np.array([8, 3, 40]),
                )
                for number in range(4)
            ]
            write_session(folder / "data" / day / f"data_{split}.hdf5", trials)
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "text.txt").write_text("i see you\nyou see me\nwe see you\n")
    for arguments in (
        ("lm", "build", folder / "text.txt", "--order", "2", "--out", folder / "lm"),
        (
            "train",
            "--config",
            folder / "config.yaml",
            "--data",
            folder / "data",
            "--out",
            folder / "run",
        ),
    ):
        found = run(*arguments)
        assert found.status == 0, found.said
    oracle.write_release(folder / "release", oracle.tiny_arguments())
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy to attack."""
    shutil.copytree(made, tmp_path / "place")
    return tmp_path / "place"


# Checkpoints of the release


@dataclass(frozen=True)
class ReleaseAttack:
    """A checkpoint of the release.

    name:   what is done
    change: does it to the content of `best_checkpoint` and of `args.yaml`
    says:   a pattern that the line of the refusal has
    """

    name: str
    change: Callable[[dict[str, Any], dict[str, Any]], object]
    says: str


def entry(
    field: str, change: Callable[[torch.Tensor], torch.Tensor]
) -> Callable[[dict, dict], None]:
    """Change a field of all entries of the optimiser's state."""

    def apply(checkpoint: dict, _: dict) -> None:
        for state in checkpoint["optimizer_state_dict"]["state"].values():
            state[field] = change(state[field])

    return apply


def weight(name: str, value: float) -> Callable[[dict, dict], None]:
    def apply(checkpoint: dict, _: dict) -> None:
        checkpoint["model_state_dict"][f"_orig_mod.{name}"].view(-1)[0] = value

    return apply


DEEP_LIST = "a place for lists"


def write_checkpoint(checkpoint: dict[str, Any], path: Path) -> None:
    """Write it as `torch.save` does, with 5,000 lists one in another, which `pickle` cannot
    write, for `DEEP_LIST`.
    """
    torch.save(checkpoint, path)
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    marked = b"X" + struct.pack("<I", len(DEEP_LIST)) + DEEP_LIST.encode()
    if any(marked in content for content in entries.values()):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in entries.items():
                entry = zipfile.ZipInfo(name)
                padding = 4 + -(archive.fp.tell() + 34 + len(name.encode())) % 64  # as torch aligns
                entry.extra = struct.pack("<HH", 0x4246, padding - 4) + bytes(padding - 4)
                archive.writestr(entry, content.replace(marked, b"]" * 5001 + b"a" * 5000))


def doubled(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found, found]
    return found


RELEASE = [
    ReleaseAttack("a PER of 10 to the 400", lambda c, a: c.update(val_PER=10**400), "beyond 64 bits"),
    ReleaseAttack("a PER of 10 to the 5000", lambda c, a: c.update(val_PER=10**5000), "beyond 64 bits"),
    ReleaseAttack("a complex PER", lambda c, a: c.update(val_PER=torch.tensor(1j)), "ComplexFloatStorage, which is not data"),
    ReleaseAttack("a complex loss", lambda c, a: c.update(val_loss=1j), "complex"),
    ReleaseAttack("a PER that is none", lambda c, a: c.update(val_PER=float("nan")), "val_PER is nan"),
    ReleaseAttack("steps without end", entry("step", lambda _: torch.tensor(1e38)), "step of .* is 1e.38"),
    ReleaseAttack("steps that are not finite", entry("step", lambda _: torch.tensor(torch.inf)), "not finite"),
    ReleaseAttack("negative steps", entry("step", lambda _: torch.tensor(-3.0)), "step of .* is -3"),
    ReleaseAttack("half a step", entry("step", lambda _: torch.tensor(0.5)), "step of .* is 0.5"),
    ReleaseAttack("negative second moments", entry("exp_avg_sq", lambda x: x - 1), "values below 0"),
    ReleaseAttack("moments of NaN", entry("exp_avg", lambda x: x * torch.nan), "not finite"),
    ReleaseAttack("a deep schedule", lambda c, a: c["scheduler_state_dict"].update(x=DEEP_LIST), "64 levels"),
    ReleaseAttack("a schedule doubled", lambda c, a: c["scheduler_state_dict"].update(x=doubled(50)), "claims"),
    ReleaseAttack("a group of many digits",
                  lambda c, a: c["optimizer_state_dict"]["param_groups"][0].update(lr=10**400), "beyond 64 bits"),
    ReleaseAttack("batches below 0", lambda c, a: c["scheduler_state_dict"].update(last_epoch=-1), "last_epoch is -1"),
    ReleaseAttack("batches without end",
                  lambda c, a: c["scheduler_state_dict"].update(last_epoch=2**62), "last_epoch is 4611686018427387904"),
    ReleaseAttack("weights of NaN", weight("out.bias", float("nan")), "out.bias has values that are not finite"),
    ReleaseAttack("infinite weights", weight("h0", float("inf")), "h0 has values that are not finite"),
    ReleaseAttack("a session above the run",
                  lambda c, a: a["dataset"].update(sessions=["../../../x", "a", "b"]), "cannot name a session"),
    ReleaseAttack("a session with an escape",
                  lambda c, a: a["dataset"].update(sessions=["\x1b[2J", "a", "b"]), "cannot name a session"),
    ReleaseAttack("2 billion units", lambda c, a: a["model"].update(n_units=HUGE), "n_units is 2000000000"),
    ReleaseAttack("a smoothing of 16 GB",
                  lambda c, a: a["dataset"]["data_transforms"].update(smooth_kernel_size=HUGE), "smooth_kernel_size"),
    ReleaseAttack("2 billion features", lambda c, a: a["model"].update(n_input_features=HUGE), "n_input_features"),
    ReleaseAttack("references doubled",
                  lambda c, a: a.update({"a0": "x", **{f"a{i + 1}": f"${{a{i}}}${{a{i}}}" for i in range(40)}}),
                  "references stand for"),
]  # fmt: skip


@pytest.mark.parametrize("attack", RELEASE, ids=lambda attack: attack.name)
def test_a_checkpoint_is_refused_and_leaves_nothing(
    attack: ReleaseAttack, made: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "release" / "checkpoint"
    folder.mkdir(parents=True)
    checkpoint = torch.load(made / "release/checkpoint/best_checkpoint", weights_only=False)
    arguments = yaml.safe_load((made / "release/checkpoint/args.yaml").read_text())
    attack.change(checkpoint, arguments)
    write_checkpoint(checkpoint, folder / "best_checkpoint")
    (folder / "args.yaml").write_text(yaml.safe_dump(arguments))
    run("import", "checkpoint", folder.parent, "--out", tmp_path / "run").check_refused(attack.says)
    assert not [path for path in tmp_path.iterdir() if path != folder.parent]


# Published analyses


class Runs:
    """What runs a command when Python's own unpickler reads it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


ANALYSES = {
    "a command": (pickle.dumps(Runs()), "asks for posix.system, which is not data"),
    "a command of Python 2": (b"cos\nsystem\n(S'touch ran'\ntR.", "asks for os.system"),
    "a memo of 16 GB": (b"\x80\x02K\x07r\xff\xff\xff\x7f0K\x07.", "is no dict of lists"),
    "a text of 4 GB": (b"\x80\x04X\xff\xff\xff\xffabc.", "is damaged at byte"),
    "many marks": (b"\x80\x02" + b"(" * 10**5 + b".", "is damaged|is no dict"),
}


@pytest.mark.parametrize("name", ANALYSES)
def test_a_published_file_is_read_as_data(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content, says = ANALYSES[name]
    (tmp_path / "t15.pkl").write_bytes(content)
    run("import", "t15-analyses", tmp_path / "t15.pkl", "--out", tmp_path / "o").check_refused(says)
    assert [path.name for path in tmp_path.iterdir()] == ["t15.pkl"]


# Run directories


@dataclass(frozen=True)
class RunAttack:
    """A run directory.

    name:   what is done
    change: does it to the folder
    says:   a pattern that the line of the refusal has
    """

    name: str
    change: Callable[[Path], object]
    says: str


def card(**changes: Any) -> Callable[[Path], None]:
    """Change entries of `model.json`; a key `a__b` is an entry of a section."""

    def change(folder: Path) -> None:
        content = json.loads((folder / "model.json").read_text())
        for key, value in changes.items():
            section, _, last = key.rpartition("__")
            (content[section] if section else content)[last] = value
        (folder / "model.json").write_text(json.dumps(content))

    return change


def content(name: str, text: str | bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(
        text.encode() if isinstance(text, str) else text
    )


def pipe(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return change


def tensor(name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    """Change a tensor of the weights, in a file without a checksum."""

    def apply(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors[name] = change(tensors[name].clone())
        card = (folder / "model.json").read_text()
        save_file(tensors, folder / "model.safetensors", {"model.json": card})

    return apply


def filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.fill_(value)


def first(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[0] = value
        return tensor

    return change


def raw_tensors(header: str, n_bytes: int = 8) -> Callable[[Path], object]:
    text = header.encode()
    return content("model.safetensors", struct.pack("<Q", len(text)) + text + bytes(n_bytes))


def without_blank(folder: Path) -> None:
    symbols = json.loads((folder / "model.json").read_text())["inventory"]["symbols"]
    card(inventory__symbols=["_" if symbol == "BLANK" else symbol for symbol in symbols])(folder)


def tokens_twice(folder: Path) -> None:
    symbols = json.loads((folder / "model.json").read_text())["inventory"]["symbols"]
    card(inventory__symbols=[*symbols[:-2], *symbols[-1:], *symbols[-1:]])(folder)


DEEP = '{"a":' * 5000 + "1" + "}" * 5000
MODELS = [
    RunAttack("weights of NaN", tensor("out.weight", filled(float("nan"))), "out.weight has values that are not fin"),
    RunAttack("one weight of NaN", tensor("day_weight", first(float("nan"))), "day_weight has values that are not fin"),
    RunAttack("infinite weights", tensor("out.bias", first(float("inf"))), "out.bias has values that are not finite"),
    RunAttack("a deep card", content("model.json", DEEP), "more than 64 levels"),
    RunAttack("a card that is a list", content("model.json", "[1]"), "it is a list"),
    RunAttack("a card of many digits", content("model.json", '{"n_features": ' + "1" * 5000 + "}"), "64 bits"),
    RunAttack("a card with a key twice", content("model.json", '{"kind": 1, "kind": 2}'), "a key twice"),
    RunAttack("a card that is a pipe", pipe("model.json"), "not a regular file"),
    RunAttack("tokens without a blank", without_blank, "inventory 'release': the blank 'BLANK' is none of its symbols"),
    RunAttack("a token twice", tokens_twice, "inventory.symbols"),
    RunAttack("tokens that are numbers", card(inventory__symbols=[1, 2]), "inventory.symbols"),
    RunAttack("a session above the run", card(sessions=["../../../x", DAYS[1]]), "cannot name a session"),
    RunAttack("sessions twice", card(sessions=[DAYS[0], DAYS[0]]), "names a session twice"),
    RunAttack("2 billion features", card(n_features=HUGE), "n_features is 2000000000"),
    RunAttack("2 billion units", card(config__n_units=HUGE), "n_units is 2000000000"),
    RunAttack("65,536 units", card(config__n_units=65_536), "model.json needs"),
    RunAttack("100 layers", card(config__n_layers=100), "gru.* is absent; model.json needs"),
    RunAttack("a smoothing of 16 GB", card(smoothing__smooth_kernel_size=HUGE), "smooth_kernel_size 2000000000"),
    RunAttack("a smoothing that is no number", card(smoothing__smooth_kernel_std=float("nan")), "smooth_kernel_std is"),
    RunAttack("features that are not there", card(feature_subset=[0, 99]), "feature_subset has feature 99"),
    RunAttack("features below 0", card(feature_subset=[-1]), "feature_subset"),
    RunAttack("patches without a stride", card(patch={"size": 14}), "patch is"),
    RunAttack("patches of another size", card(patch__size=13), "patch is .*13.*; its section config needs"),
    RunAttack("patches that are filled", card(patch={"size": 4, "stride": 4, "pads": 1}), "its section config needs"),
    RunAttack("days in another order", card(sessions=DAYS[::-1]), "json was changed after .*: sessions.0. was"),
    RunAttack("another smoothing", card(smoothing__smooth_kernel_std=3.0), "smooth_kernel_std was 2.0 and is 3.0; undo"),
    RunAttack("tensors of 8-bit floats", tensor("out.bias", lambda x: x.to(torch.float8_e4m3fn)), "float8_e4m3fn"),
    RunAttack("complex tensors", tensor("out.bias", lambda x: x.to(torch.complex64)), "complex64"),
    RunAttack("weights of another shape", tensor("out.bias", lambda x: x[:-1].clone()), "model.json needs"),
    RunAttack("a tensor larger than the file",
              raw_tensors('{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'), "read"),
    RunAttack("a header longer than the file", content("model.safetensors", b"\xff" * 16), "cannot be read"),
    RunAttack("a deep header", raw_tensors(DEEP), "cannot be read"),
    RunAttack("a tensor whose name has an escape",
              raw_tensors('{"\\u001b[2J":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'), "model.json needs"),
]  # fmt: skip


@pytest.mark.parametrize("attack", MODELS, ids=lambda attack: attack.name)
def test_a_run_is_refused_before_it_is_evaluated(attack: RunAttack, place: Path) -> None:
    attack.change(place / "run")
    found = run(
        "evaluate",
        place / "run",
        "--data",
        place / "data",
        "--out",
        place / "evaluation",
        patience_s=60,
    )
    found.check_refused(attack.says)
    assert not (place / "evaluation").exists()


COMMANDS = [
    ("decode", ["{run}", "--data", "{data}", "--split", "val", "--lm", "{lm}", "--out", "{out}"]),
    ("export", ["{run}", "--format", "release", "--out", "{out}"]),
    ("export", ["{run}", "--format", "onnx", "--out", "{out}"]),
    (
        "adapt",
        ["{run}", "--data", "{data}", "--session", DAYS[0], "--batches", "2", "--out", "{out}"],
    ),
    ("serve", ["{run}", "--lm", "{lm}", "--data", "{data}", "--port", "0"]),
    (
        "train",
        ["--config", "{config}", "--init-from", "{run}", "--data", "{data}", "--out", "{out}"],
    ),
]


@pytest.mark.parametrize(
    ("command", "arguments"),
    COMMANDS,
    ids=lambda value: value if isinstance(value, str) else value[1],
)
def test_no_command_uses_weights_of_nan(command: str, arguments: list[str], place: Path) -> None:
    if "onnx" in arguments:
        pytest.importorskip("onnxruntime")
    tensor("out.weight", filled(float("nan")))(place / "run")
    places = {name: place / name for name in ("run", "data", "lm", "out")} | {
        "config": place / "config.yaml"
    }
    found = run(command, *(argument.format(**places) for argument in arguments), patience_s=60)
    found.check_refused("out.weight has values that are not finite")
    assert not list((place / "out").rglob("model*"))


OVERFLOWING = [
    ("evaluate", ["{run}", "--data", "{data}", "--out", "{out}"]),
    ("serve", ["{run}", "--lm", "{lm}", "--data", "{data}", "--port", "0"]),
]


@pytest.mark.parametrize(
    ("command", "arguments"), OVERFLOWING, ids=[command for command, _ in OVERFLOWING]
)
def test_finite_weights_whose_logits_are_not_finite_end_the_work(
    command: str, arguments: list[str], place: Path
) -> None:
    """3e38 is a float32; eight times it is not."""
    tensor("out.weight", filled(3e38))(place / "run")
    tensor("h0", filled(50.0))(place / "run")
    places = {name: place / name for name in ("run", "data", "lm", "out")}
    found = run(command, *(argument.format(**places) for argument in arguments), patience_s=60)
    found.check_refused("gives logits that are not finite")
    assert not (place / "out").exists()


CONFIGURATIONS = [
    RunAttack("a list", content("config.yaml", "- a"), "the file is a list"),
    RunAttack("no YAML", content("config.yaml", "a: [1"), "not valid YAML"),
    RunAttack("deep lists", content("config.yaml", "a: " + "[" * 5000), "more than 64 levels"),
    RunAttack("nested merge keys", content("config.yaml", "a0: &a0 {k0: 1, k1: 2}\n" + "".join(
        f"a{i + 1}: &a{i + 1} {{<<: [{', '.join([f'*a{i}'] * 10)}], z{i}: 1}}\n" for i in range(9))), "100,000 values"),
    RunAttack("objects", content("config.yaml", "a: !!python/object/apply:os.system [id]"), "no plain value"),
    RunAttack("a pipe", pipe("config.yaml"), "not a regular file"),
    RunAttack("bytes", content("config.yaml", b"\xff\xfe\x00"), "not a text file"),
]  # fmt: skip


@pytest.mark.parametrize("attack", CONFIGURATIONS, ids=lambda attack: attack.name)
def test_the_configuration_of_a_run_is_read_before_the_run_is_evaluated(
    attack: RunAttack, place: Path
) -> None:
    """The data are not there: had they been looked for first, that would be said."""
    attack.change(place / "run")
    found = run(
        "evaluate",
        place / "run",
        "--data",
        place / "nothing",
        "--out",
        place / "evaluation",
        patience_s=60,
    )
    found.check_refused(f"config.yaml: .*{attack.says}", most_s=30)


CURVES = [
    ("deep", [DEEP, '{"kind": "val", "step": ' + "1" * 5000 + ', "val_per": 1}']),
    ("lists and texts", [
        "[1, 2]", '{"kind": "val", "step": "x", "val_per": "y", "val_loss": {"a": 1}}',
        '{"kind": "val", "step": 1, "val_loss": 1e308, "val_per": NaN}',
        '{"kind": "val", "step": 2, "val_loss": -Infinity}',
    ]),
]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [*(content("metrics.jsonl", "\n".join(lines)) for _, lines in CURVES), pipe("metrics.jsonl")],
    ids=[*(name for name, _ in CURVES), "a pipe"],
)
def test_damaged_learning_curves_cost_only_themselves(
    change: Callable[[Path], object], place: Path
) -> None:
    change(place / "run")
    found = run(
        "evaluate",
        place / "run",
        "--data",
        place / "data",
        "--out",
        place / "evaluation",
        patience_s=60,
    )
    found.check_harmless()
    assert found.status == 0, found.said
    assert (place / "evaluation/report.html").is_file()


# Saved logits


def npy(shape: str, dtype: str = "<f4", numbers: bytes = b"") -> bytes:
    header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + numbers


def deflated_zeros(n_bytes: int, head: bytes = b"") -> bytes:
    """`head` and that many zeros as one raw deflate stream.

    It repeats the compressed bytes of 1 MiB, so that gigabytes take no time.
    """
    packer, part = zlib.compressobj(9, wbits=-15), bytes(1 << 20)
    packed = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    zeros = packer.compress(part) + packer.flush(zlib.Z_FULL_FLUSH)
    rest = packer.compress(bytes(n_bytes % (1 << 20))) + packer.flush()
    return packed + zeros * (n_bytes >> 20) + rest


def zip_of_zeros(member: bytes, n_bytes: int, head: bytes = b"") -> bytes:
    """An archive of one member: `head` and that many zeros. Its checksum is wrong."""
    packed = deflated_zeros(n_bytes, head)
    sizes = struct.pack("<III", 0, len(packed), len(head) + n_bytes)
    common = struct.pack("<HHHHH", 20, 0, 8, 0, 0)
    local = b"PK\x03\x04" + common + sizes + struct.pack("<HH", len(member), 0) + member
    central = b"PK\x01\x02" + struct.pack("<H", 20) + common + sizes
    central += struct.pack("<HHHHHII", len(member), 0, 0, 0, 0, 0, 0) + member
    ends = (0, 0, 1, 1, len(central), len(local) + len(packed), 0)
    return local + packed + central + b"PK\x05\x06" + struct.pack("<HHHHIIH", *ends)


def bomb(path: Path) -> None:
    """An archive of one array of zeros, 3.9 GiB in 4 MB."""
    n_frames = 25_000_000
    path.write_bytes(zip_of_zeros(b"a.npy", 4 * 41 * n_frames, npy(f"({n_frames}, 41)")))


def elsewhere(path: Path) -> None:
    """A dataset whose values are bytes of another file."""
    (path.parent / "secret").write_bytes(bytes(4 * 41 * 10))
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "a", (10, 41), "f4", external=[(path.parent / "secret", 0, 4 * 41 * 10)]
        )


def virtual(path: Path) -> None:
    with h5py.File(path.parent / "other.h5", "w") as file:
        file["x"] = np.zeros((10, 41), np.float32)
    layout = h5py.VirtualLayout((10, 41), "f4")
    layout[:] = h5py.VirtualSource(path.parent / "other.h5", "x", (10, 41))
    with h5py.File(path, "w") as file:
        file.create_virtual_dataset("a", layout)


def only_declared(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("a", (2**40, 41), "f4", chunks=(1024, 41))


def one_chunk(shape: tuple[int, int], content: bytes, **how: object) -> Callable[[Path], None]:
    """A dataset of one chunk of that content."""

    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            made = file.create_dataset("a", shape, "f4", chunks=shape, **how)
            made.id.write_direct_chunk((0, 0), content)

    return write


def gibibyte_in_a_chunk(path: Path) -> None:
    """A chunk that declares 164 KB, and 1 GiB of zeros in 1 MB of gzip."""
    adler32 = ((1 << 30) % 65_521 << 16) + 1  # of zeros
    content = b"\x78\xda" + deflated_zeros(1 << 30) + struct.pack(">I", adler32)
    one_chunk((1000, 41), content, compression="gzip")(path)


def zeros_in_an_archive(path: Path) -> None:
    """3 GB of zeros where an array is expected, in 3 MB."""
    path.write_bytes(zip_of_zeros(b"trial_0.npy", 3_000_000_000))


LOGITS = [
    (
        "an array of 2 to the 40",
        "a.npy",
        lambda path: path.write_bytes(npy("(1099511627776, 41)")),
        "declares",
    ),
    (
        "an array of below 0",
        "a.npy",
        lambda path: path.write_bytes(npy("(-1, 41)", numbers=bytes(164))),
        "a.npy",
    ),
    (
        "an array of 40 digits",
        "a.npy",
        lambda path: path.write_bytes(npy(f"({'9' * 40}, 41)")),
        "declares",
    ),
    (
        "an array cut off",
        "a.npy",
        lambda path: path.write_bytes(npy("(10, 41)", numbers=bytes(41))),
        "declares 1,640",
    ),
    (
        "objects",
        "a.npy",
        lambda path: np.save(path, np.array([{}], object), allow_pickle=True),
        "a.npy",
    ),
    (
        "NaN",
        "a.npy",
        lambda path: np.save(path, np.full((10, 41), np.nan, np.float32)),
        "NaN or infinity",
    ),
    ("an archive of 3.9 GiB", "a.npz", bomb, "more than 2,147,483,648 bytes"),
    ("a member that is no array", "a.npz", zeros_in_an_archive, "trial_0.npy: is no array"),
    ("values in another file", "a.h5", elsewhere, "reads other files"),
    ("values of another dataset", "a.h5", virtual, "reads other files"),
    ("a dataset of 2 to the 40", "a.h5", only_declared, "declares|more than"),
    (
        "a bomb in a chunk",
        "a.h5",
        gibibyte_in_a_chunk,
        "trial a: .*a chunk does not hold 164000 bytes",
    ),
    (
        "a short chunk",
        "a.h5",
        one_chunk((1000, 41), bytes(8)),
        "trial a: .*a chunk does not hold 164000 bytes",
    ),
    (
        "a short chunk of gzip",
        "a.h5",
        one_chunk((1000, 41), zlib.compress(bytes(8)), compression="gzip"),
        "a chunk",
    ),
]


@pytest.mark.parametrize(
    ("name", "file", "write", "says"), LOGITS, ids=[name for name, *_ in LOGITS]
)
def test_saved_logits_are_refused(
    name: str, file: str, write: Callable[[Path], object], says: str, made: Path, tmp_path: Path
) -> None:
    write(tmp_path / file)
    arguments = (
        "--logits",
        tmp_path / file,
        "--order",
        "release",
        "--lm",
        made / "lm",
        "--out",
        tmp_path / "out.csv",
    )
    run("decode", *arguments, patience_s=60).check_refused(says)
    assert not (tmp_path / "out.csv").exists()


# Search directories


@pytest.fixture(scope="module")
def searched(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search that has ended."""
    out = tmp_path_factory.mktemp("searched") / "search"
    found = run(*_search(made, out))
    assert found.status == 0, found.said
    return out


def _search(made: Path, out: Path) -> list[str | Path]:
    places = ["--config", made / "config.yaml", "--data", made / "data", "--out", out]
    return ["tune", "training", *places, "--grid", "lr_max=0.001", "--jobs", "1"]


def journal(**changes: Any) -> Callable[[Path], None]:
    """Other facts of the trial in Optuna's journal."""

    def change(path: Path) -> None:
        file = path.with_name("study.journal")
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        changed = 0
        for line in lines:
            for key in ("user_attrs", "user_attr"):
                for name in set(changes) & set(line.get(key, {})):
                    line[key][name] = changes[name]
                    changed += 1
        assert changed
        file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    return change


STUDIES = [
    ("deep", lambda path: path.write_text(DEEP), "more than 64 levels"),
    ("a list", lambda path: path.write_text("[1]"), "it is a list"),
    (
        "many digits",
        lambda path: path.write_text('{"format_version": ' + "1" * 5000 + "}"),
        "64 bits",
    ),
    ("a trial without a number", journal(number=None), "no number of a trial"),
    ("a trial's number is a path", journal(number="../../../x"), "no number of a trial"),
    ("a trial of another number", journal(number=7), "not numbered from 1"),
    ("metrics that are texts", journal(metrics={"val_per": "x"}), "val_per of trial 1 is 'x'"),
    ("settings that are a list", journal(settings=[1]), "the settings of trial 1 are no table"),
    (
        "a journal that is none",
        lambda path: path.with_name("study.journal").write_text("{}\n"),
        "study.journal: cannot be used",
    ),
]


@pytest.mark.parametrize(("name", "change", "says"), STUDIES, ids=[name for name, *_ in STUDIES])
def test_a_search_is_refused(
    name: str,
    change: Callable[[Path], object],
    says: str,
    made: Path,
    searched: Path,
    tmp_path: Path,
) -> None:
    shutil.copytree(searched, tmp_path / "search")
    change(tmp_path / "search/study.json")
    before = (tmp_path / "search/study.json").read_bytes()
    run(*_search(made, tmp_path / "search"), patience_s=60).check_refused(says)
    assert (tmp_path / "search/study.json").read_bytes() == before
