"""Searches for decoder options by the command line.

What it prints and refuses, killed, twice at once, and on Ray.
"""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cortext.cli import run
from cortext.config import load_config
from cortext.decoding import DecoderOptions
from cortext.training import train

pytest.importorskip("optuna")
SPACE = (
    "--range",
    "blank_penalty=1:100:log",
    "--range",
    "word_score=-4:1",
    "--choice",
    "recombine=max,logadd",
)
WHOLE = ("--time-weight", "0", "--held-out", "0.25")


def arguments(evaluation, lm, out, *more) -> list[str]:
    base = ["tune", "decoder", evaluation, "--lm", lm, "--out", out, *SPACE, *WHOLE, *more]
    return [str(part) for part in base]


def start(*given) -> subprocess.Popen:
    command = [str(Path(sys.executable).parent / "cortext"), *arguments(*given)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def until(condition, process: subprocess.Popen, patience_s: float = 60) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def found(out: Path) -> list[tuple]:
    """Settings, state and error rate of every trial, by number."""
    rows = csv.DictReader((out / "trials.csv").read_text().splitlines())
    kept = ("state", "blank_penalty", "word_score", "recombine", "wer")
    return [
        tuple(row[name] for name in kept) for row in sorted(rows, key=lambda row: int(row["trial"]))
    ]


def test_the_table_shows_what_is_held_out_beside_what_was_tuned_on_and_the_file_is_read(
    evaluation, lm, tmp_path, capsys
):
    (tmp_path / "given.yaml").write_text("word_score: -1.5\nllm: {weight: 0.25}\n")
    given = arguments(
        evaluation, lm, tmp_path / "out", "--trials", "3", "--try", tmp_path / "given.yaml"
    )
    assert run(given) == 0
    printed = capsys.readouterr()
    assert "trial 0 of 3, blank_penalty=32 word_score=-1 recombine=logadd: WER " in printed.err
    assert "trial 1 of 3, blank_penalty=32 word_score=-1.5 recombine=logadd: WER " in printed.err
    assert "tuned on: 18 trials" in printed.out
    assert "held out: 6 trials" in printed.out
    assert "given 1" in printed.out
    assert run([*given, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [trial["value"] for trial in content["trials"]] == sorted(
        trial["value"] for trial in content["trials"]
    )
    assert content["judged"][0]["held_out"]["n_utterances"] == 6
    options = load_config(content["options_file"], DecoderOptions)
    assert options.word_score == content["options"]["word_score"]
    assert (
        run(
            [
                "decode",
                "--fake-text",
                "i see you",
                "--lm",
                str(lm),
                "--options",
                content["options_file"],
            ]
        )
        == 0
    )


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (["--range", "beam=20:8"], ["beam is searched from 20.0 to 8.0"]),
        (["--range", "beem=8:20"], ["unknown key beem", "did you mean 'beam'"]),
        (["--range", "llm.weight=0:1"], ["no large model is given", "--llm"]),
        (["--held-out", "test"], ["--held-out is 'test', which is no directory"]),
        (["--held-out", "1.5"], ["held_out is 1.5", "less than 1"]),
        (["--try", "no.yaml"], ["no.yaml: cannot read"]),
        (["--time-weight", "-1"], ["--time-weight"]),
        (["--lm", "nowhere"], ["nowhere"]),
        (["--context", "at home"], ["--context is given without --llm"]),
        (["--time-weight", "inf"], ["time_weight is inf", "finite"]),
        (["--split", "test"], ["--split is given without --data"]),
        (["--device", "cuda"], ["--device is given without --data"]),
        (["--finalists", "3"], ["--finalists is given without --sample"]),
        (["--llm-trials", "9"], ["--llm-trials is given without --llm"]),
        (["--llm-device", "cpu"], ["--llm-device is given without --llm"]),
        (["--gpus-per-worker", "0.5"], ["--gpus-per-worker is given without --ray"]),
        (
            ["--ray", "local", "--llm", "any", "--llm-device", "cuda:1"],
            ["--llm-device is cuda:1", "--gpus-per-worker"],
        ),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(
    evaluation, lm, tmp_path, capsys, more, parts
):
    assert run(arguments(evaluation, lm, tmp_path / "out", *more)) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("cortext: ")
    assert printed.err.count("\n") == 1
    assert all(part in printed.err for part in parts), printed.err
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written_is_one_line(evaluation, lm, tmp_path, capsys):
    (tmp_path / "file").write_text("years")
    for out, what in (
        ("file", "is a file; a directory is needed"),
        ("file/in", "cannot be written: Not a directory"),
    ):
        assert run(arguments(evaluation, lm, tmp_path / out)) == 2
        assert capsys.readouterr().err.startswith(f"cortext: {tmp_path / out}: {what}")
    assert run(arguments(evaluation, lm, "/proc/none")) == 2
    assert capsys.readouterr().err.startswith("cortext: /proc/none: cannot be written")
    assert (tmp_path / "file").read_text() == "years"


@pytest.mark.parametrize(
    ("module", "extra", "more"), [("optuna", "tune", []), ("ray", "ray", ["--ray", "local"])]
)
def test_a_library_that_is_missing_is_said_before_anything_is_written(
    evaluation, lm, tmp_path, capsys, monkeypatch, module, extra, more
):
    monkeypatch.setitem(sys.modules, module, None)
    assert run(arguments(evaluation, lm, tmp_path / "out", *more)) == 2
    assert f"pip install '.[{extra}]'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def undisturbed(evaluation, lm, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    assert run(arguments(evaluation, lm, out, "--trials", "14")) == 0
    return out


@pytest.mark.slow
def test_a_search_that_is_killed_in_the_middle_of_a_trial_ends_as_one_that_was_not(
    evaluation, lm, tmp_path, undisturbed, states, capsys
):
    out = tmp_path / "out"
    for at in (2, 7):  # killed twice, with a trial under way
        process = start(evaluation, lm, out, "--trials", "14")
        until(lambda at=at: len(states(out)) > at and states(out)[-1] == "RUNNING", process)
        process.kill()
        process.communicate()
    assert states(out)[-1] in ("RUNNING", "COMPLETE")
    assert run(arguments(evaluation, lm, out, "--trials", "14")) == 0, capsys.readouterr().err
    assert states(out) == ["COMPLETE"] * 14
    assert found(out) == found(undisturbed)
    assert load_config(out / "options.yaml", DecoderOptions) == load_config(
        undisturbed / "options.yaml", DecoderOptions
    )


@pytest.mark.slow
def test_two_processes_on_one_search_share_the_trials(evaluation, lm, states, tmp_path):
    out = tmp_path / "out"
    processes = [start(evaluation, lm, out, "--trials", "12") for _ in range(2)]
    told = [process.communicate(timeout=180)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], told
    assert states(out) == ["COMPLETE"] * 12
    done = [
        [line.split(" of ")[0] for line in text.splitlines() if ": WER" in line] for text in told
    ]
    assert sorted(done[0] + done[1]) == sorted(f"trial {number}" for number in range(12))
    assert len({row[1:4] for row in found(out)}) == 12


@pytest.mark.slow
def test_processes_are_kept_for_more_trials_and_ctrl_c_leaves_none(
    evaluation, lm, states, tmp_path
):
    out = tmp_path / "out"
    process = start(evaluation, lm, out, "--trials", "400", "--jobs", "2")
    until(lambda: states(out).count("COMPLETE") >= 4, process)
    workers = subprocess.run(
        ["ps", "--ppid", str(process.pid), "-o", "pid="], capture_output=True, text=True
    )
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    last = errors.splitlines()[-1]
    assert (
        last == f"cortext: {out}: interrupted; what is finished is saved; the same command goes on"
        " with it"
    )
    assert "Traceback" not in errors
    # Two for all trials, and the one that tidies up after them.
    assert len(workers.stdout.split()) == 3
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in workers.stdout.split()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_on_ray_trials_come_to_what_they_come_to_here(
    evaluation, lm, tmp_path, undisturbed, two_workers
):
    assert (
        run(
            arguments(
                evaluation, lm, tmp_path / "out", "--trials", "14", "--jobs", "2", "--ray", "local"
            )
        )
        == 0
    )
    assert found(tmp_path / "out")[0] == found(undisturbed)[0]
    assert [row[0] for row in found(tmp_path / "out")] == ["finished"] * 14
    assert two_workers.is_initialized()
    again = found(tmp_path / "out")
    more = arguments(evaluation, lm, tmp_path / "out", "--trials", "15")  # without the cluster
    assert run(more) == 0
    assert found(tmp_path / "out")[:14] == again


@pytest.mark.slow
def test_a_run_is_evaluated_first_and_another_split_may_be_held_out(
    packed, quick, lm, tmp_path, capsys
):
    train("tiny", packed, tmp_path / "run", overrides=quick, progress=False)
    base = [
        "tune",
        "decoder",
        tmp_path / "run",
        "--data",
        packed,
        "--lm",
        lm,
        "--out",
        tmp_path / "out",
        *SPACE,
    ]
    command = [str(part) for part in (*base, "--held-out", "train", "--trials", "2", "--json")]
    assert run(command) == 0
    printed = capsys.readouterr()
    assert printed.err.count("evaluating ") == 2
    row, *_ = json.loads(printed.out)["judged"]
    per_day = {"val": 3, "train": 8}
    days = row["tuned"]["n_utterances"] / per_day["val"]
    assert row["held_out"]["n_utterances"] == days * per_day["train"]
    metrics = json.loads((tmp_path / "out" / "eval-val" / "metrics.json").read_text())
    # The logits are kept in half precision.
    assert row["tuned"]["wer"] == pytest.approx(metrics["wer"], abs=0.02)
    assert run(command) == 0
    assert "evaluating" not in capsys.readouterr().err
    other = [
        str(tmp_path / "elsewhere") if part == str(tmp_path / "run") else part for part in command
    ]
    assert run(other) == 2
    assert "eval-val: the search was begun with run = " in capsys.readouterr().err
    (tmp_path / "run" / "model.safetensors").write_bytes(b"trained again")
    assert run(command) == 2
    assert "eval-val: the search was begun with weights = " in capsys.readouterr().err
