import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from abandoned import abandoned
from safetensors.torch import load_file
from tensorboardX.proto.event_pb2 import Event

from cortext.data import open_dataset
from cortext.data.packed import open_packed
from cortext.decoding.ngram import LanguageModel
from cortext.errors import ConfigError, DataError, RunError
from cortext.models import TransformerConfig, load_model
from cortext.training import (
    DatasetConfig,
    RunSummary,
    TrainConfig,
    Trainer,
    loop,
    loss,
    task,
    train,
)
from cortext.training.runlog import MetricsLog
from cortext.training.torch_backend import TorchBackend
from cortext.training.validate import Validator

TIMES = ("seconds", "_s")


def metrics(run: Path, kind: str | None = None) -> list[dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    without_times = [{key: line[key] for key in line if not key.endswith(TIMES)} for line in lines]
    return [line for line in without_times if kind in (None, line["kind"])]


def same_run(a: Path, b: Path) -> bool:
    files = ("model.safetensors", "train_state/state.safetensors")
    weights = [[load_file(run / name) for name in files] for run in (a, b)]
    equal = all(
        x.keys() == y.keys() and all(torch.equal(x[name], y[name]) for name in x)
        for x, y in zip(*weights, strict=True)
    )
    return equal and metrics(a) == metrics(b)


def test_a_run_learns_and_writes_what_a_run_directory_holds(config, packed, tmp_path):
    config = replace(
        config, num_training_batches=80, lr_decay_steps=80, lr_decay_steps_day=80, lr_max=0.02
    )
    config = replace(config, lr_max_day=0.02, batches_per_val_step=40, batches_per_train_log=20)
    overrides = [
        "model.n_units=32",
        "model.rnn_dropout=0",
        "model.input_network.input_layer_dropout=0",
    ]
    summary = train(config, packed, tmp_path / "run", overrides=overrides)
    run = tmp_path / "run"
    assert summary.val_per < 0.4  # three seeds end between 0.11 and 0.24
    assert {path.name for path in run.iterdir()} == {
        "config.yaml", "metrics.jsonl", "model.json", "model.safetensors", "summary.json", "tensorboard", "train_state",
    }  # fmt: skip
    train_lines, val_lines = metrics(run, "train"), metrics(run, "val")
    assert [line["step"] for line in train_lines] == [20, 40, 60, 80]
    assert train_lines[-1]["train_loss"] < train_lines[0]["train_loss"]
    assert [line["step"] for line in val_lines] == [40, 80]
    assert set(val_lines[0]["val_per_by_session"]) == set(open_packed(packed).sessions)
    assert val_lines[0]["val_wer"] is None
    written = json.loads((run / "summary.json").read_text())
    assert written["n_train_trials"] == 60
    assert written["n_val_trials"] == 18
    assert written["val_per"] == summary.val_per == min(line["val_per"] for line in val_lines)
    assert written["config"]["seed"] == 10
    assert {"versions", "commit"} <= set(written["provenance"])
    assert isinstance(summary, RunSummary)
    assert "PER" in str(summary)
    model = load_model(run)
    trial = open_packed(packed).split("val").trial(0)
    assert model.logits(trial.features_TC, trial.session).shape == (
        model.n_patches(trial.n_bins),
        41,
    )


def test_tensorboard_holds_the_same_numbers(undisturbed):
    values = {}
    for path in sorted((undisturbed / "tensorboard").iterdir()):
        content, position = path.read_bytes(), 0
        while position < len(content):  # TFRecord: length, checksum, event, checksum
            length = int.from_bytes(content[position : position + 8], "little")
            event = Event.FromString(content[position + 12 : position + 12 + length])
            values |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
            position += length + 16
    for line in metrics(undisturbed, "val"):
        assert values["val_per", line["step"]] == pytest.approx(line["val_per"])
    assert ("train_loss", 3) in values


def test_session_files_are_packed_into_the_run(short, recordings, tmp_path):
    train(short, recordings, tmp_path / "run", progress=False)
    assert open_packed(tmp_path / "run" / "packed").sessions == tuple(
        s.name for s in open_dataset(recordings).sessions
    )


def test_two_runs_of_a_seed_are_equal_and_of_another_are_not(config, packed, undisturbed, tmp_path):
    train(config, packed, tmp_path / "again", progress=False)
    assert same_run(undisturbed, tmp_path / "again")
    train(replace(config, seed=11), packed, tmp_path / "other", progress=False)
    assert not same_run(undisturbed, tmp_path / "other")


def test_training_leaves_the_random_numbers_of_its_caller_alone(short, packed, tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    train(short, packed, tmp_path / "run", progress=False)
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("step", [1, 5, 10])
def test_an_interrupted_run_is_saved_says_how_to_continue_and_continues_bit_exactly(
    config, packed, undisturbed, tmp_path, monkeypatch, step
):
    original = TorchBackend.update

    def interrupted_update(engine, number, batch):
        if number == step and not resumed:
            os.kill(os.getpid(), signal.SIGTERM if step == 5 else signal.SIGINT)
        return original(engine, number, batch)

    monkeypatch.setattr(TorchBackend, "update", interrupted_update)
    resumed = False
    with pytest.raises(RunError, match=f"interrupted after {step + 1} of 12 batches.*--resume"):
        train(config, packed, tmp_path / "run", progress=False)
    resumed = True
    with pytest.raises(RunError, match="there is an unfinished run; continue it with --resume"):
        train(config, packed, tmp_path / "run", progress=False)
    train(config, packed, tmp_path / "run", resume=True, progress=False)
    assert same_run(undisturbed, tmp_path / "run")


def test_training_runs_in_a_thread_that_cannot_catch_signals(short, packed, tmp_path):
    thread = threading.Thread(
        target=train, args=(short, packed, tmp_path / "run"), kwargs={"progress": False}
    )
    thread.start()
    thread.join()
    assert (tmp_path / "run" / "summary.json").is_file()


def test_what_was_logged_after_the_last_state_is_cut_off_on_resuming(
    config, packed, undisturbed, tmp_path, monkeypatch
):
    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        # After the validation's line was written, before the state.
        patch.setattr(task, "save_model", die)
        with pytest.raises(Killed):
            train(config, packed, run, progress=False)
    assert metrics(run, "val")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "tra')
    train(config, packed, run, resume=True, progress=False)
    assert same_run(undisturbed, run)


def test_a_finished_run_is_not_touched(config, packed, undisturbed, finished):
    for resume in (False, True):
        with pytest.raises(RunError, match="the run is finished; give another --out"):
            train(config, packed, finished, resume=resume)
    assert same_run(undisturbed, finished)


def test_a_run_killed_before_its_summary_gets_one_on_resuming(config, packed, finished):
    before = json.loads((finished / "summary.json").read_text())
    (finished / "summary.json").unlink()
    train(config, packed, finished, resume=True, progress=False)
    after = json.loads((finished / "summary.json").read_text())
    before["run"] = str(finished)  # which is a copy
    assert {key: after[key] for key in before if key != "provenance"} == {
        key: before[key] for key in before if key != "provenance"
    }


def test_what_a_killed_process_was_writing_is_removed(short, packed, tmp_path, monkeypatch):
    run = stopped_run(short, packed, tmp_path / "run", monkeypatch)
    abandoned(run / "packed", directory=True)
    abandoned(run / "train_state" / "state.safetensors")
    train(short, packed, run, resume=True, progress=False)
    assert not list(run.rglob("*.tmp"))


def test_a_file_system_without_locks_is_trained_on(short, packed, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EBADF, "Bad file descriptor")  # what Linux says of a directory on NFS

    monkeypatch.setattr("fcntl.flock", refuse)
    train(short, packed, tmp_path / "run", progress=False)
    assert (tmp_path / "run" / "summary.json").is_file()


def test_nothing_to_resume_is_refused(config, packed, tmp_path):
    with pytest.raises(RunError, match="there is no run to resume; leave out --resume"):
        train(config, packed, tmp_path / "run", resume=True)


def test_another_directory_is_not_overwritten(config, packed, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunError, match="something else than a run"):
        train(config, packed, tmp_path)


def stopped_run(config: TrainConfig, packed: Path, out: Path, monkeypatch) -> Path:
    def fail(*_):
        raise RunError("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(TorchBackend, "update", fail)
        with pytest.raises(RunError, match="stopped"):
            train(config, packed, out, progress=False)
    return out


@pytest.mark.parametrize("of_an_earlier_version", [False, True])
def test_settings_for_tpus_may_change_and_be_absent_where_a_run_began(
    short, packed, tmp_path, monkeypatch, of_an_earlier_version
):
    run = stopped_run(short, packed, tmp_path / "run", monkeypatch)
    if of_an_earlier_version:
        settings = yaml.safe_load((run / "config.yaml").read_text())
        del settings["tpu"]
        (run / "config.yaml").write_text(yaml.safe_dump(settings))
    overrides = ["tpu.length_shapes=3", "tpu.compilation_cache=null"]
    assert train(short, packed, run, resume=True, overrides=overrides, progress=False).steps == 2


def test_resuming_with_another_configuration_or_other_data_is_refused(
    config, packed, recordings, tmp_path, monkeypatch
):
    run = stopped_run(config, packed, tmp_path / "run", monkeypatch)
    with pytest.raises(RunError, match=r"begun with lr_max = 0\.005, now it is 0\.1"):
        train(config, packed, run, resume=True, overrides=["lr_max=0.1"])
    LanguageModel.build(["a cat sat"], 2, tmp_path / "lm")
    with pytest.raises(RunError, match=r"language_model = False, now it is True"):
        train(config, packed, run, resume=True, lm=tmp_path / "lm")
    (recordings / "t15.2023.08.11" / "data_val.hdf5").rename(tmp_path / "away")
    try:
        with pytest.raises(
            RunError, match=r"n_val = \d+, now it is \d+; resume with the same data"
        ):
            train(config, recordings, run, resume=True)
    finally:
        (tmp_path / "away").rename(recordings / "t15.2023.08.11" / "data_val.hdf5")


def test_a_broken_state_is_refused(config, packed, tmp_path, monkeypatch):
    run = stopped_run(config, packed, tmp_path / "run", monkeypatch)
    state = run / "train_state" / "state.safetensors"
    state.write_bytes(state.read_bytes()[:100])
    with pytest.raises(RunError, match=r"state\.safetensors: the saved state cannot be read"):
        train(config, packed, run, resume=True)


def test_a_directory_in_which_another_process_trains_is_refused(short, packed, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    held = os.open(out, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="another training is writing here"):
            train(short, packed, out, progress=False)
        assert list(out.iterdir()) == []
    finally:
        os.close(held)
    assert train(short, packed, out, progress=False).steps == 2


def test_packed_data_with_a_flipped_byte_are_refused(config, packed, tmp_path):
    damaged = tmp_path / "damaged"
    shutil.copytree(packed, damaged)
    with (damaged / "train.f16").open("r+b") as file:
        file.seek(101)
        byte = file.read(1)[0]
        file.seek(101)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(DataError, match=r"train\.f16: checksum"):
        train(config, damaged, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_wrong_data_leave_no_run_behind(config, tmp_path):
    with pytest.raises(DataError):
        train(config, tmp_path / "nowhere", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_full_disk_is_one_line_and_the_last_state_survives(
    config, packed, undisturbed, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    original = loop.validate

    def fill_the_disk(trainer):
        if trainer.state.step == 8:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        original(trainer)

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(loop, "validate", fill_the_disk)
            with pytest.raises(
                RunError,
                match=r"safetensors: cannot write the file: File too large; free some space",
            ):
                train(config, packed, run, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(run.rglob("*.tmp"))
    assert load_model(run)
    train(config, packed, run, resume=True, progress=False)
    assert same_run(undisturbed, run)


def test_a_log_that_a_full_disk_refuses_is_named_when_it_is_closed_too(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl", 0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))
        for call in (lambda: log.write({"kind": "train"}), log.close):
            with pytest.raises(
                RunError,
                match=r"metrics\.jsonl: cannot be written: File too large; free some space",
            ):
                call()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_loss_that_is_not_finite_names_the_trials(short, packed, tmp_path, monkeypatch):
    original = loss.ctc_loss

    def broken(*arguments):
        losses_B = original(*arguments)
        return torch.where(torch.arange(len(losses_B)) == 2, torch.nan, losses_B)

    monkeypatch.setattr(loss, "ctc_loss", broken)
    named = r"t15.2023.08.\d\d/block 0/trial \d+"
    with pytest.raises(
        RunError, match=rf"the loss of batch 0 is not finite, in trials {named}; see not_finite"
    ) as error:
        train(short, packed, tmp_path / "run", progress=False)
    written = json.loads((tmp_path / "run" / "not_finite.json").read_text())
    (trial,) = written["trials"]
    assert f"{trial['session']}/block {trial['block']}/trial {trial['trial']};" in str(error.value)
    leave_out = f"dataset.bad_trials_dict={json.dumps(written['settings_to_leave_them_out']['dataset']['bad_trials_dict'])}"
    monkeypatch.undo()
    summary = train(short, packed, tmp_path / "again", overrides=[leave_out], progress=False)
    assert summary.n_train_trials == 59


def test_a_gradient_that_is_not_finite_names_the_batch(config, packed, tmp_path, monkeypatch):
    original = loss.ctc_loss

    def explode(logits_BPV, *rest):
        logits_BPV.register_hook(lambda gradient_BPV: gradient_BPV * float("inf"))
        return original(logits_BPV, *rest)

    monkeypatch.setattr(loss, "ctc_loss", explode)
    with Trainer(config, packed, tmp_path / "run", progress=False) as run:
        before = {name: tensor.clone() for name, tensor in run.model.network.state_dict().items()}
        with pytest.raises(
            RunError, match=r"the gradient of batch 0 is not finite, in trials t15.*, t15"
        ):
            run.run()
        for name, tensor in run.model.network.state_dict().items():
            assert torch.equal(before[name], tensor), name
        assert not run.backend.state()["day_steps"].any()


def test_the_best_weights_are_kept_and_ties_go_to_the_lower_loss(
    config, packed, tmp_path, monkeypatch
):
    pers, losses = iter([0.5, 0.4, 0.4, 0.4]), iter([1.0, 3.0, 2.0, 2.5])

    def measure(validator, forward, processes):
        return {
            "val_per": next(pers),
            "val_loss": next(losses),
            "val_wer": None,
            "val_per_by_session": {},
        }, []

    monkeypatch.setattr(Validator, "measure", measure)
    config = replace(config, batches_per_val_step=3)
    summary = train(config, packed, tmp_path / "run", progress=False)
    assert (summary.best_step, summary.best_value, summary.val_loss) == (9, 0.4, 2.0)


def test_early_stopping_counts_validations_without_improvement(
    config, packed, tmp_path, monkeypatch
):
    losses = iter([3.0, 2.0, 2.5, 2.2, 1.0])

    def measure(validator, forward, processes):
        return {
            "val_per": 0.5,
            "val_loss": next(losses),
            "val_wer": None,
            "val_per_by_session": {},
        }, []

    monkeypatch.setattr(Validator, "measure", measure)
    config = replace(
        config, batches_per_val_step=2, early_stopping=True, early_stopping_val_steps=2
    )
    summary = train(
        replace(config, best_metric="val_loss"), packed, tmp_path / "run", progress=False
    )
    assert (summary.steps, summary.best_step, summary.best_metric) == (8, 4, "val_loss")


def test_named_sessions_bad_trials_and_feature_subsets_are_honoured(config, packed, tmp_path):
    dataset = replace(
        config.dataset,
        sessions=["t15.2023.08.18", "t15.2023.08.11"],
        bad_trials_dict={"t15.2023.08.11": {"0": [0, 1]}},
        feature_subset=[0, 3, 4],
        must_include_days=[-1],
        length_buckets=2,
    )
    summary = train(replace(config, dataset=dataset), packed, tmp_path / "run", progress=False)
    model = load_model(tmp_path / "run")
    assert model.sessions == ("t15.2023.08.18", "t15.2023.08.11")
    assert (model.n_features, model.feature_subset) == (8, [0, 3, 4])
    assert (summary.n_train_trials, summary.n_val_trials, summary.n_sessions) == (38, 12, 2)
    steps = load_file(tmp_path / "run" / "train_state" / "state.safetensors")["optimizer/day_steps"]
    assert steps[1] == 12  # the included day is in every batch


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "dataset.sessions=[t15.2023.08.12]",
            "names 't15.2023.08.12', which the data lack; did you mean",
        ),
        ("model.n_input_features=512", "n_input_features is 512; the data have 8 features"),
        ("dataset.days_per_batch=5", "days_per_batch is 5"),
        ("best_metric=val_wer", "needs a language model"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused(config, packed, tmp_path, override, message):
    with pytest.raises(ConfigError, match=message):
        train(config, packed, tmp_path / "run", overrides=[override])
    assert not (tmp_path / "run").exists()


def test_weights_of_another_run_are_a_start_with_days_taken_by_name(
    config, packed, undisturbed, tmp_path
):
    dataset = replace(config.dataset, sessions=["t15.2023.08.18", "t15.2023.08.11"])
    # The first batch has a learning rate of zero.
    config = replace(config, dataset=dataset, num_training_batches=1)
    train(config, packed, tmp_path / "run", init_from=undisturbed, progress=False)
    old, new = (
        load_file(undisturbed / "model.safetensors"),
        load_file(tmp_path / "run" / "model.safetensors"),
    )
    assert torch.equal(new["day_weight"], old["day_weight"][[2, 0]])
    assert torch.equal(new["gru.weight_hh_l1"], old["gru.weight_hh_l1"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dataset.feature_subset=[0,1,2,3]", "the model reads 8 features, and the new one 4"),
        ("model.n_units=4", r"h0 is \[1, 1, 16\]; \[1, 1, 4\] is needed to start from it"),
        # All weights of the new model are there, with its shapes.
        ("model.n_layers=1", "the new model has no gru.bias_hh_l1 to take over"),
        ("model.input_network.day_layer=affine", "day_layer is 'softsign', and the new one's 'aff"),
        ("model.input_network.day_layer=none", "day_layer is 'softsign', and the new one's 'none'"),
    ],
)
def test_weights_that_do_not_fit_are_refused_as_a_start(
    config, packed, undisturbed, tmp_path, override, message
):
    with pytest.raises(RunError, match=message):
        train(config, packed, tmp_path / "run", init_from=undisturbed, overrides=[override])


def test_other_features_of_the_same_number_are_refused_as_a_start(config, packed, tmp_path):
    config = replace(config, num_training_batches=1, batches_per_val_step=1)
    first, second, whole = [0, 1, 2, 3], [4, 5, 6, 7], list(range(8))

    def start(name, features, init_from=None):
        dataset = replace(config.dataset, feature_subset=features)
        run = tmp_path / name
        train(replace(config, dataset=dataset), packed, run, init_from=init_from, progress=False)
        return run

    run = start("first", first)
    start("same", first, run)
    with pytest.raises(RunError, match="reads other features of the recordings than the new one"):
        start("second", second, run)
    start("named", whole, start("all", None))


def test_a_start_under_another_meaning_of_the_same_weights_is_refused(packed, tmp_path):
    config = TrainConfig(
        model=TransformerConfig(n_units=8, n_layers=1, n_heads=2, head_units=4),
        dataset=DatasetConfig(batch_size=4, days_per_batch=2),
        num_training_batches=1,
        batches_per_val_step=1,
    )
    run = tmp_path / "run"
    train(config, packed, run, progress=False)
    overrides = ["model.n_heads=4", "model.head_units=2"]
    with pytest.raises(RunError, match=r"its model\.n_heads is 2, and the new one's 4"):
        train(config, packed, tmp_path / "heads", init_from=run, overrides=overrides)


def test_validation_measures_loss_and_per_of_trials_one_at_a_time(config, packed, undisturbed):
    """The last validation's numbers, from the kept weights of the same step, without batches."""
    from cortext.decoding.log_probs import greedy
    from cortext.features import smooth
    from cortext.text.metrics import edit_counts
    from cortext.training.loss import ctc_loss

    best = json.loads((undisturbed / "summary.json").read_text())
    line = next(line for line in metrics(undisturbed, "val") if line["step"] == best["best_step"])
    model, split = load_model(undisturbed), open_packed(packed).split("val")
    losses, errors, length = [], 0, 0
    for i in range(len(split)):
        smoothed = smooth(torch.from_numpy(split.trial(i).features_TC)[None])[0].numpy()
        logits_PV = model.logits(smoothed, split.session(i), smooth=False)
        labels = split.labels(i)
        arguments = (
            torch.tensor([len(logits_PV)]),
            torch.from_numpy(labels)[None],
            torch.tensor([len(labels)]),
        )
        losses.append(float(ctc_loss(torch.from_numpy(logits_PV)[None], *arguments)))
        counts = edit_counts(labels.tolist(), greedy(logits_PV, "release"))
        errors, length = errors + counts.errors, length + counts.reference_length
    # The run may have used bfloat16.
    assert line["val_loss"] == pytest.approx(np.mean(losses), rel=0.02)
    assert line["val_per"] == pytest.approx(errors / length, abs=0.05)


def test_words_are_decoded_where_there_is_a_language_model(config, packed, tmp_path):
    LanguageModel.build(["a cat sat", "the cat sat", "a dog sat down"], 2, tmp_path / "lm")
    config = replace(config, best_metric="val_wer", val_wer_trials=4, num_training_batches=8)
    summary = train(config, packed, tmp_path / "run", lm=tmp_path / "lm", progress=False)
    assert summary.val_wer is not None
    assert summary.val_wer == min(line["val_wer"] for line in metrics(tmp_path / "run", "val"))


@pytest.mark.parametrize("device", ["cuda:99", "tpu:0"])
def test_a_device_that_is_not_there_is_refused(device, config, packed, tmp_path):
    with pytest.raises(
        RunError, match=rf"device '{device}' cannot be used: .*; use cpu, cuda or cuda:N, or .*tpu"
    ):
        train(config, packed, tmp_path / "run", device=device)


@pytest.mark.parametrize("resume", [False, True])
def test_a_profile_that_would_begin_after_the_last_batch_is_refused(
    config, packed, tmp_path, resume
):
    if resume:
        with Trainer(config, packed, tmp_path / "run", progress=False) as trainer:
            trainer.run(config.num_training_batches - 2)
    first = 2 if resume else config.num_training_batches
    with pytest.raises(
        ConfigError, match=f"begins at batch {first}, and there are only {first}; give smaller"
    ):
        train(
            config,
            packed,
            tmp_path / "run",
            resume=resume,
            profile=tmp_path / "trace",
            profile_steps=(first, first + 3),
            progress=False,
        )
    assert (tmp_path / "run").exists() == resume


def test_a_profile_that_cannot_be_written_is_refused_before_training(config, packed, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="file: cannot be written"):
        train(config, packed, tmp_path / "run", profile=tmp_path / "file", progress=False)
    assert not (tmp_path / "run").exists()
