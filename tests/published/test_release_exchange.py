"""Checkpoints of the release as runs and back, against a restatement of what the release does
with them.
"""

import copy
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import release_oracle as oracle
import torch
import yaml

from cortext.cli import run as cli
from cortext.config import load_config
from cortext.errors import ConfigError, CortextError, RunError
from cortext.models import AcousticModel, build_model, load_model, model_config, save_model
from cortext.models.card import Smoothing
from cortext.models.storage import write_tensors
from cortext.text.inventory import RELEASE
from cortext.training import TrainConfig, read_train_config, train
from cortext.training.checkpoint import RunDirectory
from cortext.training.optim import Optimizer, day_learning_rate, learning_rate
from cortext_published.release.exchange import export_release, import_checkpoint

FEATURES_TC = np.random.default_rng(5).normal(size=(90, 8)).astype(np.float32)


def read(folder: Path, name: str = "best_checkpoint") -> dict:
    return torch.load(folder / "checkpoint" / name, weights_only=False)


def pick(mapping, like):
    """The part of a nested mapping that has the keys of another."""
    return (
        {key: pick(mapping[key], like[key]) for key in like} if isinstance(like, dict) else mapping
    )


def assert_same(found, expected, key=""):
    """Equal to the last bit, in structure and type of containers."""
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype, key
        assert torch.equal(found, expected), key
    elif isinstance(expected, dict):
        assert set(found) == set(expected), key
        for name in expected:
            assert_same(found[name], expected[name], f"{key}.{name}")
    elif isinstance(expected, list | tuple):
        assert type(found) is type(expected), key
        for number, pair in enumerate(zip(found, expected, strict=True)):
            assert_same(*pair, f"{key}.{number}")
    else:
        assert found == expected, key


@pytest.fixture(scope="module")
def written_once(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "published"
    return folder, oracle.write_release(folder, oracle.tiny_arguments())


@pytest.fixture
def published(tmp_path, written_once):
    """A checkpoint with val_loss as numpy.float64, day 1 of which never moved.

    Its folder and content.
    """
    shutil.copytree(written_once[0], tmp_path / "published")
    return tmp_path / "published", copy.deepcopy(written_once[1])


@pytest.mark.parametrize(
    ("changes", "arguments"),
    [
        ({}, {}),
        ({"val_loss": None}, {}),
        ({"val_loss": 0.5, "val_PER": np.float32(0.75)}, {}),
        ({}, {"lr_scheduler_type": "linear"}),
        ({}, {"model__rnn_trainable": False}),
        ({}, {"model__input_network__input_trainable": False}),
        ({}, {"model__patch_size": 0}),
        ({}, {"init_from_checkpoint": True, "init_checkpoint_path": "/data/other"}),
    ],
    ids=[
        "float64 loss",
        "no loss",
        "numbers",
        "linear",
        "frozen gru",
        "frozen days",
        "no patches",
        "initialised",
    ],
)
def test_in_and_out_again_changes_no_bit(tmp_path, changes, arguments):
    mapping = oracle.tiny_arguments(**arguments)
    before = oracle.write_release(tmp_path / "in", mapping, **changes)
    import_checkpoint(tmp_path / "in", tmp_path / "run")
    export_release(tmp_path / "run", tmp_path / "out")
    assert_same(read(tmp_path / "out"), before)
    again = yaml.safe_load((tmp_path / "out/checkpoint/args.yaml").read_text())
    assert pick(again, mapping) == mapping


def test_moments_of_parameters_that_were_frozen_later_come_out_again(tmp_path):
    arguments = oracle.tiny_arguments()
    before = oracle.write_release(tmp_path / "in", arguments)
    arguments["model"]["rnn_trainable"] = arguments["model"]["input_network"]["input_trainable"] = (
        False
    )
    (tmp_path / "in/checkpoint/args.yaml").write_text(yaml.safe_dump(arguments))
    import_checkpoint(tmp_path / "in", tmp_path / "run")
    export_release(tmp_path / "run", tmp_path / "out")
    assert_same(read(tmp_path / "out")["optimizer_state_dict"], before["optimizer_state_dict"])


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."]
)
def test_prefixes_of_parallel_and_compiled_models_are_taken_off(tmp_path, prefix):
    before = oracle.write_release(tmp_path / "in", oracle.tiny_arguments(), prefix=prefix)
    import_checkpoint(tmp_path / "in", tmp_path / "run")
    weights = load_model(tmp_path / "run").network.state_dict()
    assert torch.equal(
        weights["day_weight"][2], before["model_state_dict"][f"{prefix}day_weights.2"]
    )
    assert torch.equal(
        weights["day_bias"][2], before["model_state_dict"][f"{prefix}day_biases.2"][0]
    )
    assert torch.equal(
        weights["gru.weight_hh_l1"], before["model_state_dict"][f"{prefix}gru.weight_hh_l1"]
    )


def test_the_imported_model_gives_the_releases_logits(tmp_path):
    arguments = oracle.tiny_arguments(dataset__data_transforms__smooth_kernel_std=1.5)
    oracle.write_release(tmp_path / "in", arguments)
    expected = oracle.logits_of_the_evaluation_script(
        *oracle.load_as_the_evaluation_script(tmp_path / "in"), FEATURES_TC, oracle.SESSIONS[2]
    )
    import_checkpoint(tmp_path / "in", tmp_path / "run")
    found = load_model(tmp_path / "run").logits(FEATURES_TC, oracle.SESSIONS[2])
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("smooth_data", [True, False])
def test_a_run_of_ours_gives_its_logits_in_the_releases_evaluation_script(
    tmp_path, packed, config, smooth_data
):
    config.dataset.data_transforms.smooth_data = smooth_data
    config.num_training_batches = 4
    train(config, packed, tmp_path / "run")
    export_release(tmp_path / "run", tmp_path / "out")
    model, arguments = oracle.load_as_the_evaluation_script(tmp_path / "out")
    for session in oracle.SESSIONS:
        expected = load_model(tmp_path / "run").logits(FEATURES_TC, session)
        found = oracle.logits_of_the_evaluation_script(model, arguments, FEATURES_TC, session)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_the_releases_trainer_continues_from_a_run_of_ours(tmp_path, packed, config):
    config.num_training_batches = config.batches_per_val_step = 5
    train(config, packed, tmp_path / "run")
    export_release(tmp_path / "run", tmp_path / "out")
    arguments = yaml.safe_load((tmp_path / "out/checkpoint/args.yaml").read_text())
    checkpoint, compiled, trainer = (
        read(tmp_path / "out"),
        torch.nn.Module(),
        oracle.release_trainer(arguments),
    )
    compiled._orig_mod, adam, schedule = trainer.model, trainer.optimizer, trainer.scheduler
    # Which has the names of a compiled model.
    compiled.load_state_dict(checkpoint["model_state_dict"])
    adam.load_state_dict(checkpoint["optimizer_state_dict"])
    schedule.load_state_dict(checkpoint["scheduler_state_dict"])
    lrs = [group["lr"] for group in adam.param_groups]
    np.testing.assert_allclose(
        lrs,
        [learning_rate(config, 5), day_learning_rate(config, 5), learning_rate(config, 5)],
        rtol=1e-12,
    )
    assert schedule.last_epoch == 5
    moved = adam.state[dict(compiled.named_parameters())["_orig_mod.h0"]]
    assert float(moved["step"]) == 5
    assert float(moved["exp_avg"].abs().max()) > 0
    oracle.train_steps(trainer, 1, (0, 1))
    np.testing.assert_allclose(adam.param_groups[1]["lr"], day_learning_rate(config, 6), rtol=1e-12)


def test_last_weights_that_are_not_the_best_are_exported_beside_them_with_the_moments(
    tmp_path, packed, config
):
    config.lr_max = config.lr_max_day = (
        30.0  # the first validation, before anything has moved, is the best
    )
    config.batches_per_val_step, config.best_metric = 1, "val_loss"
    summary = train(config, packed, tmp_path / "run")
    assert summary.best_step < summary.steps
    exported = export_release(tmp_path / "run", tmp_path / "out")
    best, last = read(tmp_path / "out"), read(tmp_path / "out", "final_checkpoint_batch_11")
    assert exported.step == summary.best_step == best["scheduler_state_dict"]["last_epoch"]
    assert best["val_PER"] == summary.val_per
    assert best["optimizer_state_dict"]["state"] == {}
    assert last["scheduler_state_dict"]["last_epoch"] == 12
    assert last["optimizer_state_dict"]["state"]
    weights = load_model(tmp_path / "run").network.state_dict()
    assert torch.equal(best["model_state_dict"]["_orig_mod.h0"], weights["h0"])
    assert not torch.equal(last["model_state_dict"]["_orig_mod.h0"], weights["h0"])
    import_checkpoint(tmp_path / "out", tmp_path / "again", "final_checkpoint_batch_11")
    export_release(tmp_path / "again", tmp_path / "out again")
    assert_same(read(tmp_path / "out again"), last)


def test_an_imported_run_is_continued_as_the_release_would(tmp_path, packed, published):
    """The state that resuming takes over is that of the release's optimiser.

    The next step is the same.
    """
    folder, _ = published
    import_checkpoint(folder, tmp_path / "run")
    summary = train(tmp_path / "run/config.yaml", packed, tmp_path / "run", resume=True)
    assert summary.steps == 12
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "val"] == [8, 12]
    export_release(tmp_path / "run", tmp_path / "out")
    final = read(
        tmp_path / "out",
        name="final_checkpoint_batch_11" if summary.best_step < 12 else "best_checkpoint",
    )
    assert final["scheduler_state_dict"]["last_epoch"] == 12
    steps = {float(entry["step"]) for entry in final["optimizer_state_dict"]["state"].values()}
    assert max(steps) == 12


def test_the_optimiser_of_an_imported_run_makes_the_releases_next_step(tmp_path, published):
    folder, _ = published
    trainer = oracle.trained(oracle.tiny_arguments())
    model, adam = trainer.model, trainer.optimizer
    import_checkpoint(folder, tmp_path / "run")
    ours, config = (
        load_model(tmp_path / "run").network.train(),
        load_config(tmp_path / "run/config.yaml", TrainConfig),
    )
    optimizer = Optimizer(ours, config)
    tensors, progress = RunDirectory(tmp_path / "run").load_state()
    optimizer.load(
        {k.removeprefix("optimizer/"): t for k, t in tensors.items() if k.startswith("optimizer/")}
    )
    generator = torch.Generator().manual_seed(9)
    gradients = {
        name: torch.randn(p.shape, generator=generator) / 50 for name, p in model.named_parameters()
    }
    for name, parameter in model.named_parameters():
        parameter.grad = None if name.endswith(".0") and "day_" in name else gradients[name].clone()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 10)
    adam.step()
    stacked = {
        "day_weight": torch.stack([gradients[f"day_weights.{i}"] * (i > 0) for i in range(3)]),
        "day_bias": torch.cat([gradients[f"day_biases.{i}"] * (i > 0) for i in range(3)]),
    }
    for name, parameter in ours.named_parameters():
        parameter.grad = (stacked | gradients)[name].clone()
    assert progress.step == 5
    optimizer.step(progress.step, torch.tensor([1, 2]))
    for name, parameter in model.named_parameters():
        mine = ours.state_dict()
        if name.startswith("day_weights"):
            found = mine["day_weight"][int(name[-1])]
        elif name.startswith("day_biases"):
            found = mine["day_bias"][int(name[-1])][None]
        else:
            found = mine[name]
        torch.testing.assert_close(found, parameter.detach(), atol=1e-6, rtol=0)


def test_another_training_starts_from_an_imported_run(tmp_path, packed, published, config):
    import_checkpoint(published[0], tmp_path / "run")
    config.model.n_units, config.num_training_batches, config.lr_max, config.lr_max_day = (
        12,
        1,
        1e-12,
        1e-12,
    )
    train(config, packed, tmp_path / "next", init_from=tmp_path / "run")
    started = load_model(tmp_path / "next").network.state_dict()
    for name, tensor in load_model(tmp_path / "run").network.state_dict().items():
        torch.testing.assert_close(started[name], tensor, atol=1e-6, rtol=0)


def test_a_subset_of_the_features_and_the_sessions_validated_on_carry_over(tmp_path):
    subset = [0, 2, 3, 5, 6, 8, 9, 11]
    arguments = oracle.tiny_arguments(dataset__feature_subset=subset, dataset__neural_dim=12)
    oracle.write_release(tmp_path / "in", arguments)
    import_checkpoint(tmp_path / "in", tmp_path / "run")
    model = load_model(tmp_path / "run")
    assert (model.n_features, model.feature_subset) == (12, subset)
    exported = export_release(tmp_path / "run", tmp_path / "out")
    assert any("subset" in note for note in exported.notes)
    again = yaml.safe_load((tmp_path / "out/checkpoint/args.yaml").read_text())["dataset"]
    assert (again["feature_subset"], again["neural_dim"]) == (subset, 12)
    assert again["dataset_probability_val"] == [0, 1, 1]


def test_settings_that_the_release_lacks_are_named(tmp_path, packed, config):
    config.num_training_batches, config.dataset.length_buckets, config.dataset.must_include_days = (
        1,
        2,
        [0],
    )
    train(config, packed, tmp_path / "run")
    notes = export_release(tmp_path / "run", tmp_path / "out").notes
    assert any("has no" in note and "dataset.length_buckets" in note for note in notes)
    assert any("ignores dataset.must_include_days" in note for note in notes)
    assert not any("lr_max" in note or "precision" in note for note in notes)


def broken_weights(name="_orig_mod.h0", tensor=None):
    def change(checkpoint):
        state = checkpoint["model_state_dict"]
        if tensor is None:
            del state[name]
        else:
            state[name] = tensor

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("optimizer_state_dict"), "has no optimizer_state_dict"),
        (lambda c: c.pop("val_PER"), "has no val_PER"),
        (lambda c: c.update(val_PER="low"), "val_PER is 'low'"),
        (lambda c: c.update(val_PER=math.nan), "val_PER is nan"),
        (lambda c: c.update(model_state_dict=[1]), "model_state_dict is a list"),
        (broken_weights(), "has no h0"),
        (
            broken_weights("_orig_mod.h0", torch.zeros(1, 1, 13)),
            r"h0 is torch.float32 \[1, 1, 13\]",
        ),
        (broken_weights("_orig_mod.h0", torch.zeros(1, 1, 12).half()), "h0 is torch.float16"),
        (
            broken_weights("_orig_mod.h0", torch.full((1, 1, 12), math.nan)),
            "h0 has values that are not finite",
        ),
        (broken_weights("_orig_mod.h0", 3), "h0 is a int"),
        (broken_weights("_orig_mod.h1", torch.zeros(1)), "has h1, which none"),
        (broken_weights("module.h0", torch.zeros(1, 1, 12)), "holds h0 twice"),
        (
            broken_weights("_orig_mod.day_weights.3", torch.eye(8)),
            "has 4 day layers; args.yaml names 3 sessions",
        ),
        (
            lambda c: c["optimizer_state_dict"]["state"][0].update(step=torch.tensor(math.inf)),
            "step of gru.bias_ih_l0",
        ),
        (lambda c: c["optimizer_state_dict"]["state"][0].pop("step"), "is not that of AdamW"),
        (
            lambda c: c["optimizer_state_dict"]["state"][5].update(step=torch.tensor(2.0)),
            "the same number of steps",
        ),
        (lambda c: c["optimizer_state_dict"]["param_groups"].pop(), "the optimiser's groups are"),
        (
            lambda c: c["optimizer_state_dict"]["param_groups"][0]["params"].reverse(),
            "not numbered",
        ),
        (
            lambda c: c["optimizer_state_dict"]["param_groups"][0].update(params=3),
            "of the release's AdamW",
        ),
        (
            lambda c: c["optimizer_state_dict"]["param_groups"][0].update(group_type=[]),
            "of the release's AdamW",
        ),
        (
            lambda c: c["optimizer_state_dict"]["param_groups"][0].pop("betas"),
            "of the release's AdamW",
        ),
        (lambda c: c["scheduler_state_dict"].pop("last_epoch"), "last_epoch is None"),
        (lambda c: c["scheduler_state_dict"].update(lr_lambdas=torch.zeros(3)), "are not plain"),
        (lambda c: c.update(model_state_dict={"a": {1, 2}}), "refused|cannot be read|holds a set"),
        (lambda c: c.update(more=torch.zeros(1).expand(10**6, 10**6)), "claims to hold far more"),
        (lambda c: c.update(more=torch.eye(3).to_sparse()), "_rebuild_sparse_tensor, which is not"),
    ],
)
def test_a_checkpoint_that_cannot_be_right_is_refused_in_a_line(
    tmp_path, published, change, message
):
    folder, checkpoint = published
    change(checkpoint)
    torch.save(checkpoint, folder / "checkpoint/best_checkpoint")
    with pytest.raises(RunError, match=message) as error:
        import_checkpoint(folder, tmp_path / "run")
    assert "best_checkpoint" in str(error.value)
    assert "\n" not in str(error.value)
    assert not [path for path in tmp_path.iterdir() if path != folder]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("dataset__sessions", ["a", "a", "b"], "names a session twice"),
        ("dataset__sessions", ["a", "b"], "has 3 day layers; args.yaml names 2 sessions"),
        ("dataset__sessions", None, "dataset.sessions"),
        ("dataset__n_classes", 40, "dataset.n_classes is 40; only 41"),
        ("dataset__feature_subset", [0, 1], "dataset.feature_subset has 2 of 8 features"),
        ("dataset__feature_subset", [0, 1, 2, 3, 4, 5, 6, 8], "from 0 to dataset.neural_dim - 1"),
        ("model__n_layers", 100, "says 100 GRU layers"),
        (
            "model__n_layers",
            10**9,
            "model.n_layers is 1000000000; it must be at least 1 and at most 100",
        ),
        ("model__n_layers", 3, "has no gru"),
        ("model__n_units", 65_536, r"is needed"),
        (
            "model__n_units",
            10**9,
            "model.n_units is 1000000000; it must be at least 1 and at most 65536",
        ),
        ("model__bidirectional", True, "reads forwards only"),
        ("model__colour", 1, "unknown key model.colour"),
    ],
)
def test_arguments_that_are_not_the_checkpoints_are_refused(
    tmp_path, published, key, value, message
):
    (published[0] / "checkpoint/args.yaml").write_text(
        yaml.safe_dump(oracle.tiny_arguments(**{key: value}))
    )
    with pytest.raises(CortextError, match=message):
        import_checkpoint(published[0], tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"kind": "triple_gru", "noise_units": 4, "clean_units": 4, "noisy_units": 4},
            "is a model of kind 'triple_gru'; the release has only the GRU",
        ),
        (
            {"kind": "gru", "n_units": 4, "diphones": True},
            "is a model of diphones; the release's GRU has one output for each phoneme",
        ),
        (
            {"kind": "gru", "n_units": 4, "input_network": {"day_layer": "affine"}},
            "has day_layer 'affine'; the release's GRU has an affine map and softsign",
        ),
        (
            {"kind": "transformer", "n_units": 4, "n_heads": 1, "head_units": 4, "patch_stride": 2},
            "is a model of kind 'transformer'; the release has only the GRU",
        ),
    ],
)
def test_a_model_of_another_kind_is_not_exported(tmp_path, settings, message):
    config = model_config({"patch_size": 2, "patch_stride": 1} | settings)
    network = build_model(config, n_features=2, n_days=1, n_classes=41)
    parts = {"sessions": ["a"], "n_features": 2, "inventory": RELEASE, "smoothing": Smoothing()}
    save_model(AcousticModel(network, **parts), tmp_path / "run")
    with pytest.raises(RunError, match=message):
        export_release(tmp_path / "run", tmp_path / "out")


def test_other_tokens_are_not_exported(tmp_path, published):
    import_checkpoint(published[0], tmp_path / "run")
    model = load_model(tmp_path / "run")
    first, second, third, *others = RELEASE.symbols
    swapped = replace(RELEASE, symbols=(first, third, second, *others))
    model.conventions = replace(model.conventions, inventory=swapped)
    save_model(model, tmp_path / "run")
    with pytest.raises(RunError, match="tokens"):
        export_release(tmp_path / "run", tmp_path / "out")


def test_nothing_is_written_over(tmp_path, published):
    import_checkpoint(published[0] / "checkpoint", tmp_path / "run")
    with pytest.raises(RunError, match="there is something already"):
        import_checkpoint(published[0], tmp_path / "run")
    with pytest.raises(RunError, match="there is something already"):
        export_release(tmp_path / "run", published[0])


def test_a_directory_without_a_checkpoint_says_what_is_needed(tmp_path):
    with pytest.raises(
        RunError, match="has no file best_checkpoint; give the directory that has checkpoint/"
    ):
        import_checkpoint(tmp_path, tmp_path / "run")


def test_the_commands_print_json_and_errors_of_one_line(tmp_path, published, capsys):
    assert (
        cli(["import", "checkpoint", str(published[0]), "--out", str(tmp_path / "run"), "--json"])
        == 0
    )
    facts = json.loads(capsys.readouterr().out)
    assert (facts["n_sessions"], facts["step"], facts["val_per"]) == (3, 5, 0.25)
    arguments = [
        "export",
        str(tmp_path / "run"),
        "--format",
        "release",
        "--out",
        str(tmp_path / "out"),
    ]
    assert cli(arguments) == 0
    assert "checkpoint/best_checkpoint" in capsys.readouterr().out
    assert cli(arguments) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "there is something already" in error


def test_the_released_arguments_train(tmp_path, packed, caplog):
    (tmp_path / "rnn_args.yaml").write_text(
        yaml.safe_dump(oracle.tiny_arguments(num_training_batches=2))
    )
    assert train(tmp_path / "rnn_args.yaml", packed, tmp_path / "run").steps == 2
    validated = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])[
        "val_per_by_session"
    ]
    assert set(validated) == set(oracle.SESSIONS[1:])  # dataset_probability_val is 0 for the first
    assert [line for line in caplog.text.splitlines() if "give way to the command line" in line]


def test_the_settings_of_an_imported_run_are_those_of_its_arguments(tmp_path, published):
    import_checkpoint(published[0], tmp_path / "run")
    found = load_config(tmp_path / "run/config.yaml", TrainConfig)
    assert found == read_train_config(published[0] / "checkpoint/args.yaml")
    assert found.precision == "fp32"


def test_a_published_file_works_on_other_sessions_where_it_is_asked_to(tmp_path, packed):
    changes = {
        "dataset__sessions": ["t15.2099.01.01", *oracle.SESSIONS],
        "dataset__dataset_probability_val": [1] * 4,
    }
    changes |= {"num_training_batches": 1, "model__n_input_features": 512}
    (tmp_path / "rnn_args.yaml").write_text(yaml.safe_dump(oracle.tiny_arguments(**changes)))
    overrides = ["model.n_input_features=null"]
    with pytest.raises(
        ConfigError, match=r"dataset\.sessions names 't15\.2099\.01\.01', which the data lack"
    ):
        train(tmp_path / "rnn_args.yaml", packed, tmp_path / "run", overrides=overrides)
    overrides += ["dataset.sessions=null", "dataset.dataset_probability_val=null"]
    assert (
        train(tmp_path / "rnn_args.yaml", packed, tmp_path / "run", overrides=overrides).n_sessions
        == 3
    )


@pytest.mark.parametrize("metadata", [{}, {"release": "no"}, {"release": '{"step": 1}'}])
def test_a_foreign_file_beside_the_state_is_named(tmp_path, published, metadata):
    import_checkpoint(published[0], tmp_path / "run")
    write_tensors(tmp_path / "run/train_state/release.safetensors", {}, metadata)
    with pytest.raises(
        RunError, match=r"release.safetensors: does not say .*; import the checkpoint again"
    ):
        export_release(tmp_path / "run", tmp_path / "out")


def test_the_published_file_wants_the_published_data(tmp_path, packed):
    (tmp_path / "rnn_args.yaml").write_text(oracle.PUBLISHED)
    with pytest.raises(ConfigError, match="n_input_features is 512; the data have 8"):
        train(tmp_path / "rnn_args.yaml", packed, tmp_path / "run")
