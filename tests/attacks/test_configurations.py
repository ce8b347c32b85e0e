"""Attacks on configurations: YAML files and `--set` values. A row says what is given.

A configuration is a few lines, and what they stand for is not bounded by them. Each is refused in
one line, in little time and memory, before the work begins: by `train` in this process, and one of
each kind by a real command.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from commands import run
from refusals import refused

from cortext.data import Trial, write_session
from cortext.evaluation.decoder_options import options_for
from cortext.training import train

HUGE = 2_000_000_000


def merges() -> str:
    """Nested merge keys: 22 pairs of keys, copied 10 times at each of 9 levels."""
    lines = ["a0: &a0 {k0: 1, k1: 2}"]
    for level in range(9):
        lines.append(
            f"a{level + 1}: &a{level + 1} {{<<: [{', '.join([f'*a{level}'] * 10)}], z{level}: 1}}"
        )
    return "\n".join(lines)


def aliases() -> str:
    """Lists of lists: 8 to the 9th values."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x]"]
    lines += [
        f"a{level + 1}: &a{level + 1} [{', '.join([f'*a{level}'] * 8)}]" for level in range(8)
    ]
    return "\n".join(lines)


def references(pattern: str, levels: int = 60) -> str:
    """References to references; `@` in the pattern is one to the level before."""
    lines = ["a0: x"]
    lines += [f"a{level + 1}: " + pattern.replace("@", f"${{a{level}}}") for level in range(levels)]
    return "\n".join(lines)


def model(**settings: object) -> str:
    return "model: {" + ", ".join(f"{key}: {value}" for key, value in settings.items()) + "}"


def dataset(**settings: object) -> str:
    return "dataset: {" + ", ".join(f"{key}: {value}" for key, value in settings.items()) + "}"


def transforms(**settings: object) -> str:
    inner = ", ".join(f"{key}: {value}" for key, value in settings.items())
    return f"dataset: {{data_transforms: {{{inner}}}}}"


MASKS = dataset(augmentations=f"[{{kind: time_mask, n_masks: {HUGE}}}]")


@dataclass(frozen=True)
class FileAttack:
    """A configuration file.

    name: what is in it
    text: its content
    says: a pattern that the line of the refusal has
    """

    name: str
    text: str | Callable[[], str]
    says: str


FILES = [
    FileAttack("nested merge keys", merges, "line 6: more than 100,000 values"),
    FileAttack("merge keys as a training's", lambda: merges() + "\nmodel: {<<: *a9}", "more than 100,000 values"),
    FileAttack("nested aliases", aliases, "more than 100,000 values"),
    FileAttack("a section in itself", "model: &a {kind: gru, b: *a}", "line 1: a section holds itself"),
    FileAttack("a merge of itself", "model: &a {<<: *a}", "line 1: a section holds itself"),
    FileAttack("aliases one in another", lambda: "- &a0 [1]\n" + "".join(
        f"- &a{i + 1} [*a{i}]\n" for i in range(5000)), "more than 64 levels"),
    FileAttack("deep lists", lambda: "model: " + "[" * 5000, "more than 64 levels"),
    FileAttack("deep sections", lambda: "".join(" " * i + "a:\n" for i in range(900)), "more than 64 levels"),
    FileAttack("texts doubled by references", lambda: references('"@@"'), "references stand for more than"),
    FileAttack("lists doubled by references", lambda: references('["@", "@"]'), "references stand for more than"),
    FileAttack("a long text repeated", lambda: f"a0: {'x' * 200_000}\nb: \"{'${a0}' * 100_000}\"", "references stand"),
    FileAttack("references without end", lambda: references('"@"', 5000), "more than 64 levels"),
    FileAttack("a reference to itself", "seed: ${seed}", "refers to itself"),
    FileAttack("a number to base 60", lambda: "seed: 1" + ":10" * 300_000, "a number has 900,001 characters"),
    FileAttack("a number of 5,000 digits", lambda: "seed: 0x" + "f" * 5000, "a number has 5,002 characters"),
    FileAttack("a number that no float holds", lambda: "lr_max: 1" + "0" * 400, "a number has 401 characters"),
    FileAttack("a number of 99 digits", lambda: "num_training_batches: 1" + "0" * 98, "integer beyond 64 bits"),
    FileAttack("a megabyte and more", lambda: "#" * 1_100_000, "at most 1,048,576 are read"),
    FileAttack("60,000 keys and as many values", lambda: "? a\n" * 60_000, "more than 100,000 values"),
    FileAttack("objects of Python", "seed: !!python/object/apply:os.system [id]", "no plain value"),
    FileAttack("a set", "model: !!set {a, b}", "no plain value"),
    FileAttack("bytes", "model: !!binary aGVsbG8=", "no plain value"),
    FileAttack("a number without digits", 'seed: !!int ""', "cannot be read as YAML"),
    FileAttack("a number of underscores", "seed: !!int _", "cannot be read as YAML"),
    FileAttack("a fraction without digits", 'lr_max: !!float ""', "cannot be read as YAML"),
    FileAttack("a truth value that is none", "seed: !!bool maybe", "cannot be read as YAML"),
    FileAttack("a number alone", "5", "the file is a int; a section of keys is needed"),
    FileAttack("a list", "- model", "the file is a list"),
    FileAttack("a smoothing of 16 GB", transforms(smooth_kernel_size=HUGE), "smooth_kernel_size 2000000000"),
    FileAttack("a wide smoothing", transforms(smooth_kernel_std=1e9), "smooth_kernel_std is 1000000000"),
    FileAttack("noise that no float32 holds", transforms(white_noise_std=1e308), "white_noise_std is 1e.308"),
    FileAttack("2 billion units", model(n_units=HUGE), "n_units is 2000000000; .* at most 65536"),
    FileAttack("2 billion layers", model(n_layers=HUGE), "n_layers is 2000000000; .* at most 100"),
    FileAttack("2 billion bins in a patch", model(patch_size=HUGE), "patch_size is 2000000000"),
    FileAttack("2 billion bins to the next", model(patch_stride=HUGE), "patch_stride is 2000000000"),
    FileAttack("2 billion features", model(n_input_features=HUGE), "n_input_features is 2000000000"),
    FileAttack("2 billion units of noise", model(kind="triple_gru", noise_units=HUGE), "noise_units is 2000000000"),
    FileAttack("2 billion trials in a batch", dataset(batch_size=HUGE), "batch_size is 2000000000"),
    FileAttack("2 billion days in a batch", dataset(days_per_batch=HUGE), "days_per_batch is 2000000000"),
    FileAttack("2 billion bands", dataset(length_buckets=HUGE), "length_buckets is 2000000000"),
    FileAttack("2 billion masks", MASKS, "n_masks is 2000000000"),
    FileAttack("2 billion pieces", f"gradient_accumulation_steps: {HUGE}", "gradient_accumulation_steps is 2000000000"),
    FileAttack("2 billion shapes", f"tpu: {{length_shapes: {HUGE}}}", "length_shapes is 2000000000"),
    FileAttack("a seed that no generator takes", f"seed: {2**63}", "seed is 9223372036854775808"),
    FileAttack("a share of the trials without end", dataset(test_percentage=".inf"), "test_percentage is inf"),
    FileAttack("a session above the data", dataset(sessions="[../../../x]"), "'../../../x' cannot name a session"),
    FileAttack("a block that is no number", dataset(bad_trials_dict="{a: {null: [1]}}"), "names block None; a number"),
    FileAttack("a block without end", dataset(bad_trials_dict="{a: {.inf: [1]}}"), "names block inf; a number"),
    FileAttack("a session without a name", dataset(sessions='[""]'), "'' cannot name a session"),
]  # fmt: skip


@pytest.mark.parametrize("attack", FILES, ids=lambda attack: attack.name)
def test_a_configuration_is_refused_in_little_time(attack: FileAttack, tmp_path: Path) -> None:
    """The data are not there.

    What is wrong with the configuration is said before they are looked for.
    """
    path = tmp_path / "config.yaml"
    path.write_text(attack.text if isinstance(attack.text, str) else attack.text())
    with refused(attack.says, most_s=40):
        train(path, tmp_path / "data", tmp_path / "run")
    assert not (tmp_path / "run").exists()


ANYWHERE = {
    "nested merge keys",
    "nested aliases",
    "a section in itself",
    "aliases one in another",
    "deep lists",
    "a number to base 60",
    "a megabyte and more",
    "60,000 keys and as many values",
    "objects of Python",
    "a list",
}
"""Attacks on whatever is read from YAML."""


@pytest.mark.parametrize(
    "attack", [each for each in FILES if each.name in ANYWHERE], ids=lambda attack: attack.name
)
def test_a_runs_decoder_options_are_refused_in_little_time(
    attack: FileAttack, tmp_path: Path
) -> None:
    path = tmp_path / "decoder.yaml"
    path.write_text(attack.text if isinstance(attack.text, str) else attack.text())
    with refused(attack.says, most_s=40):
        options_for(None, None, tmp_path)


SETS = [
    ("nested aliases", "val_wer_options={a: &a [x, x, x, x, x, x, x, x, x, x], b: &b [*a, *a, *a, *a, *a, *a, *a, *a], "
     "c: &c [*b, *b, *b, *b, *b, *b, *b, *b], d: &d [*c, *c, *c, *c, *c, *c, *c, *c], e: &e [*d, *d, *d, *d, *d, *d], "
     "f: [*e, *e, *e, *e]}",
     "more than 100,000 values"),
    ("a number of 5,000 digits", "seed=" + "1" * 5000, "a number has 5,000 characters"),
    ("a hexadecimal one", "seed=0x" + "f" * 5000, "a number has 5,002 characters"),
    ("deep lists", "seed=" + "[" * 3000, "more than 64 levels"),
    ("bytes", "seed=!!binary aGVsbG8=", "no plain value"),
    ("2 billion units", "model.n_units=2000000000", "n_units is 2000000000"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "says"), SETS, ids=[name for name, _, _ in SETS])
def test_a_value_of_the_command_line_is_refused(
    name: str, value: str, says: str, tmp_path: Path
) -> None:
    with refused(says, most_s=40):
        train("tiny", tmp_path / "data", tmp_path / "run", overrides=[value])


def test_a_command_refuses_such_a_value(tmp_path: Path) -> None:
    arguments = ("train", "--config", "tiny", "--data", tmp_path, "--out", tmp_path / "run")
    run(*arguments, "--set", SETS[0][1]).check_refused(SETS[0][2], most_s=40)


def test_values_of_a_search_are_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    out = tmp_path / "search"
    arguments = ("tune", "training", "--config", "tiny", "--data", data, "--out", out)
    run(*arguments, "--grid", SETS[0][1]).check_refused("not a list of YAML values", most_s=40)


def test_the_largest_model_that_is_allowed_is_refused_where_memory_cannot_hold_it(
    tmp_path: Path,
) -> None:
    """100 layers of 65,536 units are 10 TB. The machine's memory is asked for, not tried."""
    (tmp_path / "config.yaml").write_text(model(n_units=65_536, n_layers=100))
    generator = np.random.default_rng(0)
    for split in ("train", "val"):
        features_TC = generator.standard_normal((80, 8), np.float32)
        trial = Trial(features_TC, "t15.2023.08.11", 1, 0, "a text", np.array([8, 3, 40]))
        write_session(tmp_path / "data" / "t15.2023.08.11" / f"data_{split}.hdf5", [trial])
    config, data, out = (tmp_path / name for name in ("config.yaml", "data", "run"))
    refusal = run("train", "--config", config, "--data", data, "--out", out)
    refusal.check_refused("the model's weights take .* GiB; this machine has", most_s=60)


def test_a_configuration_that_is_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.yaml")
    with refused("not a regular file|no file and no recipe"):
        train(tmp_path / "config.yaml", tmp_path / "data", tmp_path / "run")


def test_options_of_the_word_search_are_refused(tmp_path: Path) -> None:
    (tmp_path / "options.yaml").write_text(merges())
    options = tmp_path / "options.yaml"
    found = run("decode", "--fake-text", "a", "--lm", tmp_path, "--options", options)
    found.check_refused("more than 100,000 values", most_s=40)


def test_dates_are_texts_and_merge_keys_still_merge(tmp_path: Path) -> None:
    """Nothing of this stands in the way of what people write.

    The only fault left is that there are no data.
    """
    (tmp_path / "config.yaml").write_text(
        "dataset: {sessions: [2023-08-11]}\n"
        "model: {<<: {n_units: 16, n_layers: 9}, n_layers: 2}\n"
        "lr_max: 0.003\nlr_max_day: ${lr_max}\n"
    )
    with refused("data: (no|is no|not|neither|there)"):
        train(tmp_path / "config.yaml", tmp_path / "data", tmp_path / "run")
