"""The command line.

Help, statuses, one-line errors, and what it leaves on the disk when something is wrong.
"""

import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
import typer.main
from refusals import complaint

from cortext.cli import app, run
from cortext.cli.tree import COMMANDS
from cortext.data import make_trial, open_packed, write_session
from cortext.errors import CortextError
from cortext.training import train
from cortext.training.distributed import Processes

PHRASES = ("good morning", "how are you", "see you soon", "thank you very much")


def commands() -> list[list[str]]:
    root = typer.main.get_command(app)
    found = []
    for name, command in root.commands.items():  # type: ignore[attr-defined]
        subcommands = getattr(command, "commands", None)
        found += [[name, sub] for sub in subcommands] if subcommands else [[name]]
    return found


@pytest.fixture
def sessions(tmp_path) -> Path:
    """Two days of four train and two val trials with 8 features."""
    rng = np.random.default_rng(0)
    root = tmp_path / "sessions"
    for session in ("lab.2026.01.12", "lab.2026.01.14"):
        for block, (split, count) in enumerate((("train", 4), ("val", 2)), start=1):
            trials = [
                make_trial(rng.standard_normal((200, 8)), session, block, number, PHRASES[number])
                for number in range(count)
            ]
            write_session(root / session / f"data_{split}.hdf5", trials)
    return root


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(command, capsys):
    assert run([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example: cortext " + " ".join(command) in text
    # What runs until it is stopped tells everything as JSON lines.
    assert "--json" in text or "JSON lines" in text


def test_design_commands_of_the_main_path_exist():
    names = {" ".join(command) for command in commands()}
    assert {
        "demo",
        "simulate",
        "fetch",
        "inspect",
        "pack",
        "train",
        "evaluate",
        "decode",
        "lm build",
    } <= names


def test_help_and_version_do_not_wait_for_torch():
    code = (
        "import sys; from cortext.cli import run; run(['--version']); assert 'torch' not in"
        " sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cortext ")


def test_every_module_of_commands_loads_in_a_process_that_has_loaded_nothing():
    """A module that works only after another one was imported is found out here."""
    code = """
import os, sys
from cortext.cli import run
from cortext.cli.tree import Group, all_commands
leaves = {}
for under in all_commands().values():
    for name, entry in under.items():
        inner = entry.commands if isinstance(entry, Group) else {None: entry}
        for last, target in inner.items():
            leaves[target.rpartition(".")[0]] = [each for each in (name, last) if each]
for leaf in leaves.values():
    child = os.fork()
    if child == 0:
        sys.stdout = open(os.devnull, "w")
        os._exit(run([*leaf, "--help"]))
    if os.waitpid(child, 0)[1]:
        sys.exit(" ".join(leaf))
print(len(leaves))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 10


def test_an_error_while_a_command_is_built_is_not_an_unknown_command(monkeypatch):
    monkeypatch.setitem(COMMANDS["Data"], "broken", "cortext.cli.data.nothing_of_this_name")
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        run(["broken"])


def test_misspelt_command_gets_the_nearest_and_status_2(capsys):
    assert "Did you mean 'simulate'" in complaint(capsys, "simulat")


def test_missing_argument_names_it_and_the_help(capsys):
    line = complaint(capsys, "pack", "somewhere")
    assert "--out" in line
    assert "cortext pack --help" in line


def test_a_reader_that_leaves_a_pipe_is_no_error(sessions):
    command = f"{Path(sys.executable).parent / 'cortext'} inspect {sessions} | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stderr == ""


def test_missing_data_directory_is_named(tmp_path, capsys):
    assert str(tmp_path / "none") in complaint(capsys, "inspect", str(tmp_path / "none"))


def test_inspect_prints_json(sessions, capsys):
    assert run(["inspect", str(sessions), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["n_features"] == 8
    assert report["problems"] == []


def test_pack_counts_trials_and_skips_bad_ones_only_when_asked(sessions, tmp_path, capsys):
    with h5py.File(sessions / "lab.2026.01.14" / "data_train.hdf5", "r+") as file:
        file["trial_0002/input_features"][5, 3] = np.nan
    line = complaint(capsys, "pack", str(sessions), "--out", str(tmp_path / "packed"))
    assert all(
        part in line
        for part in ("lab.2026.01.14", "data_train.hdf5", "trial_0002", "input_features")
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sessions"]

    assert (
        run(["pack", str(sessions), "--out", str(tmp_path / "packed"), "--skip-bad", "--json"]) == 0
    )
    facts = json.loads(capsys.readouterr().out)
    assert facts["trials"] == {"train": 7, "val": 4}
    assert len(facts["skipped"]) == 1
    assert len(open_packed(tmp_path / "packed").split("train")) == 7


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("num_training_batch=3", ["num_training_batch", "num_training_batches"]),
        ("dataset.batch_size=many", ["dataset.batch_size", "'many'", "int"]),
        ("model.n_unit=3", ["model.n_unit", "n_units"]),
        ("modle.n_units=3", ["modle", "model"]),
        ("seed", ["seed", "="]),
    ],
)
def test_wrong_configuration_is_named_and_nothing_is_written(
    sessions, tmp_path, capsys, override, parts
):
    out = tmp_path / "run"
    line = complaint(
        capsys,
        "train",
        "--config",
        "tiny",
        "--data",
        str(sessions),
        "--out",
        str(out),
        "--set",
        override,
    )
    assert all(part in line for part in parts)
    assert not out.exists()


def test_unknown_recipe_names_the_shipped_ones(sessions, tmp_path, capsys):
    line = complaint(
        capsys,
        "train",
        "--config",
        "tny",
        "--data",
        str(sessions),
        "--out",
        str(tmp_path / "run"),
    )
    assert "did you mean 'tiny'" in line


def test_of_several_processes_the_first_says_what_came_of_training(
    sessions, tmp_path, capsys, monkeypatch
):
    """Whoever started them: the hosts of a TPU slice have no variable RANK."""
    monkeypatch.delenv("RANK", raising=False)
    settings = ["--set", "num_training_batches=1", "--set", "batches_per_val_step=1"]
    for rank in (0, 1):

        def as_process(*arguments, callbacks, rank=rank, **named):
            summary = train(*arguments, **named)
            for callback in callbacks:
                callback.on_end(SimpleNamespace(processes=Processes(rank, 2)), summary)
            return summary

        monkeypatch.setattr("cortext.training.train", as_process)
        out = str(tmp_path / str(rank))
        assert (
            run(
                [
                    "train",
                    "--config",
                    "tiny",
                    "--data",
                    str(sessions),
                    "--out",
                    out,
                    "--json",
                    *settings,
                ]
            )
            == 0
        )
        said = capsys.readouterr().out
        assert bool(said) == (rank == 0)


def test_unknown_session_at_evaluation_is_named(sessions, tmp_path, capsys):
    run_directory, other = tmp_path / "run", tmp_path / "other"
    train = [
        "train",
        "--config",
        "tiny",
        "--data",
        str(sessions),
        "--out",
        str(run_directory),
        "--json",
    ]
    assert run([*train, "--set", "num_training_batches=1", "--set", "batches_per_val_step=1"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 1
    features = np.random.default_rng(0).standard_normal((200, 8))
    trials = [make_trial(features, "lab.2026.01.15", 1, 0, "good morning")]
    write_session(other / "lab.2026.01.15" / "data_val.hdf5", trials)
    line = complaint(
        capsys,
        "evaluate",
        str(run_directory),
        "--data",
        str(other),
        "--out",
        str(tmp_path / "eval"),
    )
    assert "lab.2026.01.15" in line
    assert not (tmp_path / "eval").exists()


def test_full_disk_is_one_line(sessions, capsys):
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full on this system")
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    code = (
        f"{limit}\nimport signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nfrom cortext.cli"
        " import main; main()"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            "pack",
            str(sessions),
            "--out",
            str(sessions.parent / "packed"),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in sessions.parent.iterdir()) == ["sessions"]


def test_simulate_refuses_a_directory_that_is_not_empty(sessions, capsys):
    assert "not empty" in complaint(capsys, "simulate", str(sessions), "--preset", "tiny")


def test_demo_leaves_a_foreign_directory_alone(sessions, capsys):
    assert "not an earlier demo" in complaint(
        capsys, "demo", "--preset", "tiny", "--out", str(sessions)
    )
    assert (sessions / "lab.2026.01.12" / "data_train.hdf5").is_file()


def test_a_second_demo_loses_no_log_of_the_first(tmp_path, capsys):
    (tmp_path / "demo.json").write_text("{}")
    (tmp_path / "log").mkdir()
    assert "holds 'log', which is no part of the demo and would be lost" in complaint(
        capsys, "demo", "--preset", "tiny", "--out", str(tmp_path)
    )
    assert (tmp_path / "log").is_dir()


def test_demo_leaves_the_terminal_to_the_bar_that_training_draws(tmp_path, monkeypatch, capsys):
    drawn = []

    @contextmanager
    def progress_bar(task):
        drawn.append(task)
        yield lambda done, total: None

    def run_demo(out, preset, *, stage, **_):
        for name in ("pack", "train", "evaluate"):
            stage(name)
        raise CortextError("far enough")

    monkeypatch.setattr("cortext_data.commands.demo.progress_bar", progress_bar)
    monkeypatch.setattr("cortext_data.demo.run_demo", run_demo)
    assert run(["demo", "--out", str(tmp_path)]) == 2
    assert drawn == ["pack", "evaluate"]


def test_language_model_is_built_described_and_scored(tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("good morning\nhow are you\nsee you soon\n")
    lm = str(tmp_path / "lm")
    assert run(["lm", "build", str(text), "--order", "2", "--out", lm, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["order"] == 2
    assert run(["lm", "info", lm]) == 0
    assert "vocabulary" in capsys.readouterr().out
    assert run(["lm", "score", lm, str(text), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["oov_rate"] == 0
    assert "cannot" in complaint(
        capsys, "lm", "build", str(tmp_path / "none.txt"), "--out", lm + "2"
    )


def test_pack_says_at_the_end_how_many_trials_were_left_out_and_why(sessions, tmp_path, capsys):
    with h5py.File(sessions / "lab.2026.01.14" / "data_train.hdf5", "r+") as file:
        file["trial_0002/input_features"][5, 3] = np.nan
    assert run(["pack", str(sessions), "--out", str(tmp_path / "packed"), "--skip-bad"]) == 0
    *_, count, why = capsys.readouterr().out.splitlines()
    assert count == "left out as unusable: 1"
    assert "trial_0002: input_features: 1 NaN or Inf found" in why
    assert "--skip-bad" not in why


def test_train_says_at_the_end_how_many_trials_were_left_out_and_why(sessions, tmp_path, capsys):
    with h5py.File(sessions / "lab.2026.01.14" / "data_train.hdf5", "r+") as file:
        file["trial_0002/input_features"][5, 3] = np.nan
    out = tmp_path / "run"
    settings = ["--set", "num_training_batches=1", "--set", "batches_per_val_step=1"]
    assert (
        run(
            [
                "train",
                "--config",
                "tiny",
                "--data",
                str(sessions),
                "--out",
                str(out),
                "--skip-bad",
                *settings,
            ]
        )
        == 0
    )
    *_, count, why = capsys.readouterr().out.splitlines()
    assert count == "left out as unusable: 1"
    assert "trial_0002: input_features: 1 NaN or Inf found" in why
    (skipped,) = json.loads((out / "summary.json").read_text())["skipped"]
    assert (skipped["trial"], skipped["field"]) == ("trial_0002", "input_features")


def test_number_of_threads_is_at_least_one(sessions, capsys):
    arguments = ["evaluate", "run", "--data", str(sessions), "--out", "eval", "--threads", "0"]
    assert "--threads" in complaint(capsys, *arguments)


@pytest.mark.parametrize("given", [("--options", "any.yaml"), ("--threads", "2")])
def test_what_says_how_to_search_is_refused_where_nothing_is_searched(capsys, given):
    line = complaint(capsys, "evaluate", "run", "--data", "data", "--out", "eval", *given)
    assert (
        line == f"cortext: {given[0]} is given without --lm, and no words are searched for; give an"
        " n-gram, too\n"
    )


def test_ctrl_c_is_one_line(sessions, tmp_path, capsys, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cortext.data.packed.pack", interrupted)
    assert run(["pack", str(sessions), "--out", str(tmp_path / "packed")]) == 130
    assert capsys.readouterr().err == "cortext: interrupted\n"


@pytest.mark.parametrize(
    "wrong",
    [["--preset", "t15"], ["--preset", "tiny", "--set", "foo=1"], ["--preset", "tiny", "--long"]],
)
def test_demo_that_cannot_run_leaves_the_earlier_one_alone(tmp_path, capsys, wrong):
    (tmp_path / "demo.json").write_text("{}\n")
    (tmp_path / "report.html").write_text("earlier")
    complaint(capsys, "demo", "--out", str(tmp_path), *wrong)
    assert (tmp_path / "report.html").read_text() == "earlier"


def test_help_shows_the_commands_under_headings_with_whole_sentences(capsys):
    assert run([]) == 0
    lines = capsys.readouterr().out.split("\n")
    headings = [line for line in lines if re.fullmatch(r"[A-Z][A-Za-z ]+:", line)]
    assert headings == [
        "Options:",
        "Data:",
        "Training:",
        "Language models:",
        "Decoding:",
        "Live:",
        "Speech LLM:",
        "Benchmarks and tools:",
    ]
    rows = "\n".join(lines[lines.index("Data:") :])
    summaries = re.findall(r"^  [a-z][a-z-]+ +(\S.*(?:\n {6,}\S.*)*)", rows, re.MULTILINE)
    assert len(summaries) == len(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert all(re.fullmatch(r"[A-Z].*[.]", text, re.DOTALL) for text in summaries)
    assert not any("..." in text for text in summaries)


def test_a_shell_completes_commands():
    asked = {"_CORTEXT_COMPLETE": "complete_bash", "COMP_WORDS": "cortext eva", "COMP_CWORD": "1"}
    code = "from cortext.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("evaluate\n", "")


def test_a_full_gpu_is_a_line_with_what_to_do(monkeypatch, capsys):
    """The text is that of torch 2.13 on CUDA."""
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of"
        " which 1.06 GiB is free. Including non-PyTorch memory, this process has 78.04 GiB in use."
    )

    def fails(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError(text)

    monkeypatch.setattr("cortext.cli.app", fails)
    assert run(["train"]) == 2
    assert capsys.readouterr().err == (
        "cortext: CUDA out of memory. Tried to allocate 2.00 GiB; give less at once (in training,"
        " --set gradient_accumulation_steps=4 takes the same batch in pieces), or end other"
        " programs\n"
    )
