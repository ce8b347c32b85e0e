import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_training import schedule

from cortext.cli import run as cortext
from cortext.data import open_dataset, write_session
from cortext.data.packed import open_packed, pack
from cortext.data.trial import Trial
from cortext.errors import ConfigError, CortextError, Interrupted, RunError
from cortext.evaluation import evaluate
from cortext.features import AugmentationConfig
from cortext.models import load_model
from cortext.models.gru import GRUConfig, InputNetworkConfig
from cortext.training import DatasetConfig, TrainConfig, Trainer, train
from cortext_live.adapt import adapt
from cortext_live.adapt_trials import in_order_of_recording, trials_of_old_days

OLD = ("t15.2023.08.11", "t15.2023.08.13")
NEW = "t15.2023.08.18"
CONFIG = TrainConfig(
    model=GRUConfig(
        n_units=24,
        n_layers=1,
        rnn_dropout=0,
        input_network=InputNetworkConfig(input_layer_dropout=0),
    ),
    dataset=DatasetConfig(
        batch_size=6,
        days_per_batch=2,
        sessions=list(OLD),
        data_transforms=AugmentationConfig(white_noise_std=0.5),
    ),
    **schedule(80, lr_max=0.02),
    batches_per_val_step=80,
)
QUICK = {"batches": 3, "progress": False}


@pytest.fixture(scope="module")
def base(packed, tmp_path_factory) -> Path:
    """A run that knows two of the three days of `packed`."""
    out = tmp_path_factory.mktemp("base") / "run"
    train(CONFIG, packed, out, progress=False)
    return out


@pytest.fixture(scope="module")
def turned(recordings, tmp_path_factory) -> Path:
    """The third day with its features in another order: no known day's layer reads it."""
    root = tmp_path_factory.mktemp("turned")
    order = np.roll(np.arange(8), 3)
    for split in ("train", "val"):
        trials = [
            Trial(t.features_TC[:, order], NEW, t.block, t.trial, t.sentence, t.phoneme_ids)
            for t in open_dataset(recordings).trials(split, [NEW])
        ]
        write_session(root / "files" / NEW / f"data_{split}.hdf5", trials)
    pack(root / "files", root / "packed")
    return root / "packed"


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model.safetensors")


def set_weights(run, tensors):
    card = (run / "model.json").read_text()
    save_file(tensors, run / "model.safetensors", {"model.json": card})


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def only_train(packed: Path, out: Path) -> Path:
    """Session files of the new day without a validation split."""
    trials = [
        open_packed(packed).split("train").trial(i)
        for i in range(len(open_packed(packed).split("train")))
    ]
    write_session(
        out / NEW / "data_train.hdf5", [trial for trial in trials if trial.session == NEW]
    )
    return out


def test_only_the_new_layer_learns_and_all_else_stays_to_the_bit(base, turned, tmp_path):
    before = content(base)
    summary = adapt(base, turned, tmp_path / "run", trials=12, **QUICK)
    assert content(base) == before
    old, new = weights(base), weights(tmp_path / "run")
    for name, tensor in old.items():
        kept = new[name][:2] if name.startswith("day_") else new[name]
        assert torch.equal(kept, tensor), name
    day = OLD.index(summary.nearest)
    assert not torch.equal(new["day_weight"][2], old["day_weight"][day])
    assert load_model(tmp_path / "run").sessions == (*OLD, NEW)
    assert (summary.n_trials, summary.n_val_trials, summary.n_old_trials) == (12, 6, 0)


def test_a_day_that_no_layer_reads_becomes_readable(base, turned, tmp_path):
    overrides = ["lr_max_day=0.05", "dataset.data_transforms.white_noise_std=0.2"]
    summary = adapt(base, turned, tmp_path / "run", batches=90, overrides=overrides, progress=False)
    assert summary.val_per_before > 0.6
    assert summary.val_per < 0.5
    assert summary.val_loss < summary.val_loss_before


@pytest.mark.parametrize("spoilt", [0, 1])
def test_the_new_layer_begins_as_that_of_the_day_that_reads_it_best(base, packed, tmp_path, spoilt):
    """A day layer of zeros hides everything, so that the other day must be the nearest."""
    source = shutil.copytree(base, tmp_path / "source")
    tensors = weights(source)
    tensors["day_weight"][spoilt] = 0
    set_weights(source, tensors)
    summary = adapt(
        source,
        packed,
        tmp_path / "run",
        trials=4,
        overrides=["lr_max_day=1e-9", "lr_min_day=0"],
        **QUICK,
    )
    assert summary.nearest == OLD[1 - spoilt]
    assert summary.loss_by_session[OLD[1 - spoilt]] < summary.loss_by_session[OLD[spoilt]]
    new = weights(tmp_path / "run")
    for name in ("day_weight", "day_bias"):
        torch.testing.assert_close(new[name][2], tensors[name][1 - spoilt], atol=1e-7, rtol=0)


def test_trials_count_in_the_order_of_recording(recordings, tmp_path):
    trial = next(open_dataset(recordings).trials("train", [NEW]))
    times = [(3, 1), (1, 2), (2, 7), (1, 0)]
    trials = [
        Trial(trial.features_TC, NEW, *time, trial.sentence, trial.phoneme_ids) for time in times
    ]
    write_session(tmp_path / "files" / NEW / "data_train.hdf5", trials)
    split = pack(tmp_path / "files", tmp_path / "packed").split("train")
    assert in_order_of_recording(split, NEW).tolist() == [3, 1, 2, 0]


def test_where_learning_does_harm_the_nearest_layer_is_kept(base, packed, tmp_path):
    summary = adapt(
        base,
        packed,
        tmp_path / "run",
        overrides=["lr_max_day=1000", "lr_warmup_steps_day=0"],
        **QUICK,
    )
    assert summary.best_step == 0
    assert (summary.val_per, summary.val_loss) == (summary.val_per_before, summary.val_loss_before)
    new = weights(tmp_path / "run")["day_weight"]
    assert torch.equal(new[2], new[OLD.index(summary.nearest)])


def test_without_a_validation_split_some_trials_are_held_out_of_training(base, turned, tmp_path):
    summary = adapt(
        base, only_train(turned, tmp_path / "files"), tmp_path / "run", trials=15, **QUICK
    )
    assert (summary.n_trials, summary.n_val_trials) == (13, 2)
    assert summary.validated_on == "trials held out of training"


def test_the_whole_model_learns_with_old_trials_in_every_batch(base, packed, turned, tmp_path):
    summary = adapt(
        base, turned, tmp_path / "run", whole_model=True, old_data=packed, old_trials=9, **QUICK
    )
    assert (summary.n_trials, summary.n_old_trials, summary.n_val_trials) == (20, 9, 6)
    old, new = weights(base), weights(tmp_path / "run")
    assert not torch.equal(new["gru.weight_hh_l0"], old["gru.weight_hh_l0"])
    assert not torch.equal(new["day_weight"][:2], old["day_weight"])
    text = (tmp_path / "run" / "config.yaml").read_text()
    assert "days_per_batch: 2" in text
    assert "must_include_days:\n  - 2\n" in text


def test_without_old_trials_the_whole_model_learns_and_the_old_layers_stay(base, turned, tmp_path):
    adapt(base, turned, tmp_path / "run", whole_model=True, **QUICK)
    old, new = weights(base), weights(tmp_path / "run")
    assert not torch.equal(new["out.weight"], old["out.weight"])
    assert torch.equal(new["day_weight"][:2], old["day_weight"])


def test_old_trials_are_spread_over_the_known_days_and_the_latest_get_the_rest(base, packed):
    chosen = trials_of_old_days(
        open_packed(packed), load_model(base).sessions, 7, TrainConfig()
    ).split("train")
    counts = {
        name: int((chosen.day_N == chosen.sessions.index(name)).sum()) for name in (*OLD, NEW)
    }
    assert counts == {OLD[0]: 3, OLD[1]: 4, NEW: 0}
    # Of 20: evenly spread, first and last included.
    assert chosen.trial_N.tolist() == [
        0,
        9,
        19,
        0,
        6,
        12,
        19,
    ]


def test_the_new_run_is_evaluated_on_old_days_and_the_new_one(base, packed, tmp_path):
    adapt(base, packed, tmp_path / "run", trials=8, **QUICK)
    metrics = evaluate(tmp_path / "run", packed, "val", None, tmp_path / "eval")
    assert set(metrics.per_session) == {*OLD, NEW}
    trial = open_packed(packed).split("val").trial(0)
    before, after = (
        load_model(run).logits(trial.features_TC, trial.session) for run in (base, tmp_path / "run")
    )
    np.testing.assert_array_equal(before, after)
    assert json.loads((tmp_path / "run" / "adaptation.json").read_text())["session"] == NEW


def test_what_the_model_reads_stays_as_it_was(packed, tmp_path):
    dataset = replace(
        CONFIG.dataset,
        feature_subset=[6, 1, 3],
        data_transforms=AugmentationConfig(smooth_kernel_std=1.5),
    )
    config = replace(CONFIG, dataset=dataset, num_training_batches=1)
    train(config, packed, tmp_path / "base", progress=False)
    (tmp_path / "base" / "config.yaml").unlink()  # as a run that came without
    adapt(tmp_path / "base", packed, tmp_path / "run", trials=4, **QUICK)
    model = load_model(tmp_path / "run")
    assert model.feature_subset == [6, 1, 3]
    assert model.smoothing.smooth_kernel_std == 1.5
    assert model.n_features == 8
    assert model.inventory == load_model(tmp_path / "base").inventory


def test_a_known_day_learns_on_and_no_other_day_changes(base, packed, tmp_path):
    """More trials of a day that the model was trained on.

    Its own layer is nearest and is what learns.
    """
    source = shutil.copytree(base, tmp_path / "source")
    tensors = weights(source)
    tensors["day_weight"][1] = 0  # no other layer reads anything
    tensors["day_bias"][0] += 0.5  # and there is something to learn
    set_weights(source, tensors)
    overrides = ["lr_max_day=0.03"]
    summary = adapt(
        source,
        packed,
        tmp_path / "run",
        session=OLD[0],
        batches=9,
        overrides=overrides,
        progress=False,
    )
    assert summary.val_loss < summary.val_loss_before
    assert (summary.session, summary.nearest) == (OLD[0], OLD[0])
    assert set(summary.loss_by_session) == set(OLD)
    assert (summary.n_trials, summary.n_val_trials) == (20, 6)
    assert load_model(tmp_path / "run").sessions == OLD
    new = weights(tmp_path / "run")
    for name, tensor in tensors.items():
        if name.startswith("day_"):
            assert torch.equal(new[name][1], tensor[1]), name
            assert not torch.equal(new[name][0], tensor[0]), name
        else:
            assert torch.equal(new[name], tensor), name


def test_old_trials_beside_those_of_a_known_day_are_of_the_other_days(base, packed, tmp_path):
    run = tmp_path / "run"
    summary = adapt(
        base, packed, run, session=OLD[1], whole_model=True, old_data=packed, old_trials=4, **QUICK
    )
    assert (summary.n_trials, summary.n_old_trials) == (20, 4)
    assert "must_include_days:\n  - 1\n" in (run / "config.yaml").read_text()


def three_days_of_four_features(folder: Path) -> Path:
    features_TC = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
    for session in (NEW, "t15.2023.08.20"):
        trials = [
            Trial(features_TC, session, 1, i, "a cat", np.array([1, 2, 40])) for i in range(3)
        ]
        write_session(folder / session / "data_train.hdf5", trials)
    return folder


def test_wrong_wishes_are_refused_in_a_line_and_leave_nothing(base, packed, turned, tmp_path):
    out = tmp_path / "run"
    files = only_train(turned, tmp_path / "files")
    few = three_days_of_four_features(tmp_path / "few")
    adapted = tmp_path / "adapted"
    adapt(base, turned, adapted, trials=4, **QUICK)
    wrong = [
        (base, few, {}, "4 features found, the model needs 8"),
        (
            adapted,
            packed,
            {},
            (
                f"the model knows every session here: {OLD[0]}, {OLD[1]}, {NEW}; name one with"
                " --session"
            ),
        ),
        (
            base,
            packed,
            {"session": "t15.2023.08.81"},
            "no training trials of session .*did you mean",
        ),
        (
            base,
            turned,
            {"trials": 21},
            "has 20 training trials, and 21 are asked for; give --trials 20",
        ),
        (base, files, {"trials": 1}, "both learnt from and validated on; give --trials 2"),
        (base, turned, {"trials": 0}, "trials is 0"),
        (
            base,
            turned,
            {"old_data": packed},
            "only where the whole model learns; give --whole-model",
        ),
        (base, turned, {"old_data": turned, "whole_model": True}, "none of its sessions is known"),
        (base, turned, {"overrides": ["lr_mx=1"]}, "unknown key lr_mx"),
        (base, tmp_path / "nowhere", {}, "nowhere"),
        (tmp_path / "nothing", turned, {}, "no model here"),
    ]
    for run, data, options, message in wrong:
        with pytest.raises(CortextError, match=message) as caught:
            adapt(run, data, out, **(QUICK | options))
        assert "\n" not in str(caught.value)
        assert not out.exists()
    before = content(adapted)
    with pytest.raises(RunError, match="exists already; give another --out"):
        adapt(base, turned, adapted, **QUICK)
    assert content(adapted) == before


def test_of_several_new_days_one_must_be_named(packed, tmp_path):
    config = replace(
        CONFIG,
        num_training_batches=1,
        dataset=replace(CONFIG.dataset, sessions=[NEW], days_per_batch=1),
    )
    train(config, packed, tmp_path / "base", progress=False)
    with pytest.raises(
        CortextError, match=r"2 sessions are new to the model: .*11, .*13; name one with --session"
    ):
        adapt(tmp_path / "base", packed, tmp_path / "run", **QUICK)
    assert (
        adapt(tmp_path / "base", packed, tmp_path / "run", session=OLD[1], **QUICK).session
        == OLD[1]
    )


def test_what_fails_on_the_way_leaves_nothing(base, turned, tmp_path, monkeypatch):
    def interrupted(trainer, *_):
        raise Interrupted(
            "interrupted after 1 of 3 batches; everything is saved", fix="continue with --resume"
        )

    monkeypatch.setattr(Trainer, "run", interrupted)
    with pytest.raises(RunError, match="interrupted; nothing is kept; adapt again"):
        adapt(base, turned, tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


def test_the_command_line_adapts(base, turned, tmp_path, capsys):
    command = ["adapt", str(base), "--data", str(turned), "--trials", "4", "--out"]
    assert cortext([*command, str(tmp_path / "a"), "--batches", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["session"] == NEW
    assert cortext([*command, str(tmp_path / "b"), "--batches", "2"]) == 0
    assert "nearest" in capsys.readouterr().out
    assert cortext([*command, str(tmp_path / "b")]) == 2
    assert "exists already" in capsys.readouterr().err


def test_trials_of_the_day_without_a_label_are_left_out_and_counted(base, packed, tmp_path, capsys):
    folder = only_train(packed, tmp_path / "data")
    first, *others = open_dataset(folder).trials("train", [NEW])
    extra = [replace(first, trial=90 + n, sentence=None, phoneme_ids=None) for n in range(3)]
    write_session(folder / NEW / "data_train.hdf5", [*extra, first, *others])
    command = ["adapt", str(base), "--data", str(folder), "--batches", "2", "--out"]
    assert cortext([*command, str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert said.count("training trials left out without a label: 3\n") == 1
    content = json.loads((tmp_path / "run/adaptation.json").read_text())
    assert content["n_unlabelled"] == 3
    assert content["n_trials"] + content["n_val_trials"] == len(others) + 1
    write_session(folder / OLD[0] / "data_train.hdf5", [replace(first, session=OLD[0])])
    write_session(folder / NEW / "data_train.hdf5", extra)
    assert cortext([*command, str(tmp_path / "again"), "--session", NEW]) == 2
    said = f"there are no training trials of session '{NEW}' with a label"
    assert said in capsys.readouterr().err


def test_old_data_alone_name_the_missing_option(base, turned, packed, tmp_path):
    with pytest.raises(ConfigError):
        adapt(base, turned, tmp_path / "run", old_data=packed, **QUICK)
