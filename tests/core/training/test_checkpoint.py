"""What a run survives: damaged states, damaged weights, a full disk.

And the states that have names.
"""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import forked_training
import pytest
import torch
from clear_recordings import twelve_batches
from safetensors.torch import load_file

from cortext.config import save_config
from cortext.errors import RunError
from cortext.models import load_model
from cortext.training import Trainer, train
from cortext.training.checkpoint import RunDirectory, RunState, write_culprits
from cortext.training.runlog import MetricsLog


def lines(run: Path) -> list[dict]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: line[key] for key in line if not key.endswith(("seconds", "_per_s"))}
        for line in found
    ]


def assert_same_run(a: Path, b: Path) -> None:
    for name in ("model.safetensors", "train_state/state.safetensors"):
        expected, found = load_file(a / name), load_file(b / name)
        assert expected.keys() == found.keys()
        assert all(torch.equal(expected[key], found[key]) for key in expected), name
    assert lines(a) == lines(b)


def stopped(config, packed, run: Path, after: int) -> Path:
    """A run that has trained so many of its 12 batches.

    States are saved every three and at validations (4, 8, 12).
    """
    with Trainer(config, packed, run, progress=False) as trainer:
        assert trainer.run(after) is None
    return run


def flip(path: Path, share: float) -> None:
    """Change one bit at that share of the file's length."""
    content = bytearray(path.read_bytes())
    content[int(share * (len(content) - 1))] ^= 4
    path.write_bytes(content)


def cut(path: Path, share: float) -> None:
    os.truncate(path, int(share * path.stat().st_size))


@pytest.fixture
def config(config):
    return replace(config, batches_per_save=3)


@pytest.fixture(scope="module")
def stopped_once(packed, tmp_path_factory) -> Path:
    """A run with states of batches 6 and 7; only to be read."""
    config = replace(twelve_batches(), batches_per_save=3)
    return stopped(config, packed, tmp_path_factory.mktemp("stopped") / "run", 7)


@pytest.fixture
def run(stopped_once, tmp_path) -> Path:
    """A copy of that run, to be damaged."""
    return shutil.copytree(stopped_once, tmp_path / "run")


@pytest.mark.parametrize(
    ("damage", "share"), [(flip, 0.02), (flip, 0.5), (flip, 1.0), (cut, 0.0), (cut, 0.9)]
)
def test_a_damaged_state_is_noticed_and_the_one_before_it_is_read(run, damage, share):
    damage(run / "train_state" / "state.safetensors", share)
    notes = []
    tensors, state = RunDirectory(run).load_state(notes.append)
    (note,) = notes
    assert "state.safetensors: the saved state cannot be read" in note
    assert note.endswith("the run goes on from the state before it, batch 6")
    assert state.step == 6
    expected = load_file(run / "train_state" / "state.previous.safetensors")
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def test_a_run_continues_from_the_state_before_a_damaged_one(
    config, packed, undisturbed, run, capsys
):
    flip(run / "train_state" / "state.safetensors", 0.5)
    train(config, packed, run, resume=True)
    (note,) = capsys.readouterr().err.splitlines()
    assert note.endswith("the run goes on from the state before it, batch 6")
    assert_same_run(undisturbed, run)


def test_what_was_logged_after_the_state_before_is_cut_off_and_written_again(
    config, packed, undisturbed, tmp_path
):
    # States of batches 8 and 9; a line at batch 9.
    run = stopped(config, packed, tmp_path / "run", 9)
    assert [line["step"] for line in lines(run)] == [3, 4, 6, 8, 9]
    flip(run / "train_state" / "state.safetensors", 0.7)
    with Trainer(config, packed, run, resume=True, progress=False) as trainer:
        assert trainer.state.step == 8
        trainer.run()
    assert_same_run(undisturbed, run)


def test_a_sound_state_is_not_replaced_by_a_damaged_one(config, packed, undisturbed, run):
    state = run / "train_state" / "state.safetensors"
    flip(state, 0.5)
    with Trainer(config, packed, run, resume=True, progress=False) as trainer:
        trainer.run(1)  # writes the first state since
    flip(state, 0.5)
    notes = []
    assert RunDirectory(run).load_state(notes.append)[1].step == 6
    assert len(notes) == 1
    train(config, packed, run, resume=True, progress=False)
    assert_same_run(undisturbed, run)


def test_a_run_killed_between_two_renames_has_the_state_before(config, packed, undisturbed, run):
    (run / "train_state" / "state.safetensors").unlink()
    with pytest.raises(RunError, match="there is an unfinished run; continue it with --resume"):
        train(config, packed, run, progress=False)
    train(config, packed, run, resume=True, progress=False)
    assert_same_run(undisturbed, run)


def test_two_damaged_states_are_one_line_that_says_what_is_left(
    config, short, packed, run, tmp_path
):
    for state in (run / "train_state").iterdir():
        cut(state, 0.5)
    message = (
        r"state\.safetensors: the saved state cannot be read: .* \(nor can the one before"
        r" it\).*--init-from"
    )
    with pytest.raises(RunError, match=message) as error:
        train(config, packed, run, resume=True, progress=False)
    assert "\n" not in str(error.value)
    assert train(short, packed, tmp_path / "next", init_from=run, progress=False).steps == 2


def test_damaged_best_weights_are_forgotten_and_the_run_ends_with_sound_ones(
    config, packed, run, capsys
):
    flip(run / "model.safetensors", 0.5)
    with pytest.raises(
        RunError, match=r"model\.safetensors: the weights cannot be read: the checksum is"
    ):
        load_model(run)
    summary = train(config, packed, run, resume=True)
    (note,) = capsys.readouterr().err.splitlines()
    assert "model.safetensors: the weights cannot be read" in note
    assert note.endswith("the next validation's weights are kept, whatever they measure")
    assert summary.best_step in (8, 12)
    assert load_model(run)


def test_best_weights_that_are_lost_after_the_last_batch_are_replaced_by_the_last(packed, finished):
    (finished / "summary.json").unlink()
    cut(finished / "model.safetensors", 0.5)
    summary = train(twelve_batches(), packed, finished, resume=True, progress=False)
    assert summary.best_step == 12
    state = load_file(finished / "train_state" / "state.safetensors")
    for name, tensor in load_file(finished / "model.safetensors").items():
        assert torch.equal(tensor, state[f"model/{name}"])


def test_a_disk_that_fills_up_stops_the_run_whose_last_state_continues_when_there_is_room(
    config, packed, undisturbed, tmp_path
):
    disk = tmp_path / "disk"
    disk.mkdir()
    save_config(config, tmp_path / "config.yaml")
    started = forked_training.Started(
        tmp_path / "errors",
        {},
        forked_training.fill_a_disk,
        tmp_path / "config.yaml",
        packed,
        disk,
        tmp_path / "run",
        tmp_path / "found",
    )
    errors = started.wait(120)
    if started.process.exitcode == forked_training.NO_MOUNT:
        pytest.skip("no file system can be mounted here")
    assert started.process.exitcode == 0, errors
    error, state = (tmp_path / "found").read_text().splitlines()
    assert error.startswith(str(disk / "run"))
    assert "No space left on device; free some space" in error
    assert state == "7 0"  # the last state, and no half-written files
    assert_same_run(undisturbed, tmp_path / "run")


def test_a_named_state_is_what_training_can_go_back_to(config, packed, undisturbed, tmp_path):
    run = tmp_path / "run"
    with Trainer(config, packed, run, progress=False) as trainer:
        trainer.run(5)
        trainer.save("before.trying")
        trainer.run(4)
        trainer.load("before.trying")
        assert trainer.state.step == 5
        trainer.run()
    assert_same_run(undisturbed, run)
    saved = load_file(run / "checkpoints" / "before.trying.safetensors")
    assert saved.keys() == load_file(run / "train_state" / "state.safetensors").keys()


@pytest.mark.parametrize("name", ["a/b", "../a", ".a", "", "-a", "a\n", "x" * 101])
def test_a_name_that_is_no_file_name_is_refused(tmp_path, name):
    directory = RunDirectory(tmp_path)
    for call in (
        lambda: directory.save_named(name, {}, RunState()),
        lambda: directory.load_named(name),
    ):
        with pytest.raises(RunError, match="cannot name a state; use letters"):
            call()


def test_an_unknown_name_suggests_a_known_one(tmp_path):
    directory = RunDirectory(tmp_path)
    with pytest.raises(RunError, match="no saved state 'warm'; none was saved"):
        directory.load_named("warm")
    directory.save_named("warmup", {"a": torch.zeros(1)}, RunState(step=3))
    with pytest.raises(RunError, match="no saved state 'warm'; did you mean 'warmup'"):
        directory.load_named("warm")
    tensors, progress = directory.load_named("warmup")
    assert (tensors["a"].tolist(), progress) == ([0.0], RunState(step=3))


def test_a_damaged_named_state_is_refused(tmp_path):
    path = RunDirectory(tmp_path).save_named("a", {"a": torch.zeros(9)}, RunState())
    flip(path, 1.0)
    with pytest.raises(
        RunError, match=r"checkpoints/a\.safetensors: the saved state cannot be read"
    ):
        RunDirectory(tmp_path).load_named("a")


def test_a_log_that_somebody_has_cut_off_continues_after_its_last_whole_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    log = MetricsLog(path, 1000)
    log.write({"step": 3})
    log.close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'


def test_the_trials_that_stopped_a_run_come_with_the_settings_that_leave_them_out(tmp_path):
    trials = [("t15.2023.08.13", 2, 7), ("t15.2023.08.11", 1, 4), ("t15.2023.08.13", 2, 5)]
    path = write_culprits(tmp_path, 12, trials, "the loss of batch 12 is nan")
    found = json.loads(path.read_text())
    assert path == tmp_path / "not_finite.json"
    assert (found["step"], found["reason"]) == (12, "the loss of batch 12 is nan")
    assert found["trials"][0] == {"session": "t15.2023.08.11", "block": 1, "trial": 4}
    bad = {"t15.2023.08.11": {"1": [4]}, "t15.2023.08.13": {"2": [5, 7]}}
    assert found["settings_to_leave_them_out"] == {"dataset": {"bad_trials_dict": bad}}


def test_a_trial_that_breaks_the_loss_is_written_down_and_can_be_left_out(
    config, packed, tmp_path, monkeypatch
):
    from cortext.data.packed import open_packed
    from cortext.training.loss import CTC

    split = open_packed(packed).split("train")
    culprit = (split.session(7), int(split.block_N[7]), int(split.trial_N[7]))
    original = CTC.__call__

    def broken(loss, network, batch, fraction):
        found = original(loss, network, batch, fraction)
        trials = [
            (split.session(i), int(split.block_N[i]), int(split.trial_N[i]))
            for i in batch.indices.tolist()
        ]
        is_culprit = torch.tensor([trial == culprit for trial in trials])
        return found | {"loss": torch.where(is_culprit, torch.nan, found["loss"])}

    config = replace(config, num_training_batches=60)
    with monkeypatch.context() as patch:
        patch.setattr(CTC, "__call__", broken)
        with pytest.raises(
            RunError,
            match=r"not finite, in trials t15\S+/block \d+/trial \d+; see not_finite\.json",
        ):
            train(config, packed, tmp_path / "run", progress=False)
    found = json.loads((tmp_path / "run" / "not_finite.json").read_text())
    assert found["trials"] == [dict(zip(("session", "block", "trial"), culprit, strict=True))]
    settings = replace(config.dataset, **found["settings_to_leave_them_out"]["dataset"])
    config = replace(config, dataset=settings, num_training_batches=1)
    summary = train(config, packed, tmp_path / "next", init_from=None, progress=False)
    assert summary.n_train_trials == len(split) - 1
