"""Several participants in one training: one body, first layers of each, one run to resume."""

import json
import shutil

import numpy as np
import pytest
import torch
from two_participants import (
    A_DAYS,
    B_DAYS,
    C_DAYS,
    own,
    refused,
    small_config,
    weights,
    write_participant,
)

from cortext.cli import run as cortext
from cortext.data import open_data
from cortext.data.packed import open_packed
from cortext.errors import ConfigError, RunError
from cortext.evaluation.recognise import recognise
from cortext.models import GRU, GRUConfig, TransformerConfig, TripleGRUConfig, load_model
from cortext.models.inputs import InputNetworkConfig
from cortext.models.transformer import EmbeddingConfig
from cortext.text.language import LANGUAGES
from cortext.text.metrics import EditCounts, edit_counts
from cortext.training import DeviceSpec, train
from cortext.training.participants.recordings import Alternation, merged
from cortext.training.participants.trainer import JointTrainer
from cortext.training.pretrain import OVERRIDES as PRETRAINING


def losses(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {key: line[key] for key in line if not key.endswith(("seconds", "_per_s"))}
        for line in lines
    ]


# The read-in layer.


def test_a_read_in_layer_maps_the_features_that_have_passed_the_day_layer():
    torch.manual_seed(0)
    inputs = InputNetworkConfig(read_in=3)
    sizes = {"n_units": 8, "n_layers": 1, "rnn_dropout": 0.0, "patch_size": 4, "patch_stride": 2}
    network = GRU(GRUConfig(**sizes, input_network=inputs), n_features=5, n_days=2, n_classes=7)
    body = GRU(
        GRUConfig(**sizes, input_network=InputNetworkConfig(day_layer="none")),
        n_features=3,
        n_days=2,
        n_classes=7,
    )
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    body.load_state_dict(
        {name: tensor for name, tensor in network.state_dict().items() if not own(name)}
    )
    x_BTC = torch.randn(2, 10, 5)
    day_B = torch.tensor([1, 0])
    with torch.no_grad():
        y_BTC = x_BTC @ network.day_weight[day_B] + network.day_bias[day_B][:, None]
        y_BTC = y_BTC / (1 + y_BTC.abs())
        mapped_BTN = y_BTC @ network.read_in.weight.T + network.read_in.bias
        expected = body.eval()(mapped_BTN, day_B)[0]
        torch.testing.assert_close(network.eval()(x_BTC, day_B)[0], expected, atol=1e-6, rtol=0)


# The order of the batches.


@pytest.mark.parametrize("n_trials", [{"A": 30, "B": 10}, {"A": 1, "B": 1, "C": 8}])
def test_each_stretch_of_a_training_has_batches_by_share_of_trials(n_trials):
    participant_of = Alternation(n_trials)
    order = [participant_of(step) for step in range(4000)]
    total = sum(n_trials.values())
    for length in (40, 1000):
        for first in range(0, 3000, 7):
            part = order[first : first + length]
            for name, count in n_trials.items():
                assert part.count(name) == pytest.approx(length * count / total, abs=3)


def test_two_participants_with_as_many_trials_take_turns_from_the_first_batches_on():
    order = [Alternation({"A": 5, "B": 5})(step) for step in range(6)]
    # The fractions 0, 0.618, 0.236, 0.854, 0.472, 0.090 of the golden ratio's multiples.
    assert order == ["A", "B", "A", "B", "A", "A"]


def test_a_metric_of_several_participants_is_their_mean_and_that_of_each():
    found = merged(
        {
            "A": {"val_per": 0.1, "val_wer": None, "val_per_by_session": {"d1": 0.1}},
            "B": {"val_per": 0.3, "val_wer": None, "val_per_by_session": {"d1": 0.3}},
        }
    )
    assert found == {
        "val_per": pytest.approx(0.2),
        "val_per_by_participant": {"A": 0.1, "B": 0.3},
        "val_wer": None,
        "val_per_by_session": {"A/d1": 0.1, "B/d1": 0.3},
    }


# The run.


def test_the_models_share_their_body_and_have_first_layers_of_their_own(joint_run):
    of = {name: weights(joint_run / "participants" / name) for name in ("A", "B")}
    for name in of["A"]:
        if not own(name):
            assert torch.equal(of["A"][name], of["B"][name]), name
    assert of["A"]["day_weight"].shape == (3, 8, 8)
    assert of["B"]["day_weight"].shape == (2, 12, 12)
    assert of["A"]["read_in.weight"].shape == (6, 8)
    assert of["B"]["read_in.weight"].shape == (6, 12)
    assert load_model(joint_run / "participants" / "B").sessions == B_DAYS


def test_the_summary_counts_shared_parameters_once_and_gives_the_error_of_each(joint_run):
    summary = json.loads((joint_run / "summary.json").read_text())
    of_a = {name: tensor.numel() for name, tensor in weights(joint_run / "participants/A").items()}
    own_of_b = 2 * (12 * 12 + 12) + 6 * 12 + 6
    assert summary["n_parameters"] == sum(of_a.values()) + own_of_b
    assert summary["n_train_trials"] == 3 * 12 + 2 * 9
    rates = summary["val_per_by_participant"]
    assert summary["val_per"] == pytest.approx((rates["A"] + rates["B"]) / 2)
    last = [line for line in losses(joint_run) if line["kind"] == "val"][-1]
    assert set(last["val_per_by_session"]) == {f"A/{day}" for day in A_DAYS} | {
        f"B/{day}" for day in B_DAYS
    }


def test_shorter_bins_are_joined_to_the_longest_by_their_mean(joint_run, two):
    packed = open_packed(joint_run / "participants" / "B" / "packed")
    assert packed.conventions.bin_ms == 20
    short = open_data(two["B"], joint_run.parent / "short")
    x_TC = np.array(short.split("train").features(0), dtype=np.float32)
    joined_TC = np.array(packed.split("train").features(0), dtype=np.float32)
    pairs = x_TC[: len(x_TC) // 2 * 2].reshape(-1, 2, 12).mean(1)
    np.testing.assert_allclose(joined_TC, pairs, atol=4e-3)  # float16


def test_a_step_moves_the_body_and_the_first_layers_of_one_participant(two, tmp_path):
    with JointTrainer(small_config(), two, tmp_path / "run", progress=False) as trainer:
        trainer.run(2)  # batch 0 has a learning rate of zero
        before = {
            name: tensor.clone() for name, tensor in trainer.model.network.state_dict().items()
        }
        participant = trainer.backend.participant_of(2)
        other = "B" if participant == "A" else "A"
        trainer.run(1)
        after = trainer.model.network.state_dict()
    for name, tensor in after.items():
        same = torch.equal(tensor, before[name])
        if name.startswith(f"{other}/"):
            assert same, name
        elif "day_" not in name:  # the batch may lack a day
            assert not same, name


def test_steps_are_those_of_a_plain_loop_with_torchs_adamw(two, tmp_path):
    """The slow reference: two networks, their parameters in one optimiser, no day layers."""
    config = small_config(precision="fp32", weight_decay=0.1)
    config.model.input_network.day_layer = "none"
    config.model.input_network.input_layer_dropout = 0.0
    with JointTrainer(config, two, tmp_path / "run", progress=False) as trainer:
        torch.manual_seed(0)
        networks = {
            name: type(model.network)(
                config.model, n_features={"A": 8, "B": 12}[name], n_days=1, n_classes=41
            )
            for name, model in trainer.models.items()
        }
        for name, model in trainer.models.items():
            networks[name].load_state_dict(model.network.state_dict())
        networks["B"].gru, networks["B"].out = networks["A"].gru, networks["A"].out
        networks["B"].h0 = networks["A"].h0
        named = {
            id(parameter): (name, parameter)
            for network in networks.values()
            for name, parameter in network.named_parameters()
        }.values()
        biases = [parameter for name, parameter in named if "bias" in name]
        others = [parameter for name, parameter in named if "bias" not in name]
        optimizer = torch.optim.AdamW(
            [{"params": biases, "weight_decay": 0.0}, {"params": others, "weight_decay": 0.1}],
            betas=(config.beta0, config.beta1),
            eps=config.epsilon,
        )
        for step, batch in enumerate(trainer.backend.batches(0, 8)):
            network = networks[batch.participant]
            logits, _ = network(batch.x_BTC, batch.day_B, n_patches_B=batch.n_patches_B)
            loss = torch.nn.functional.ctc_loss(
                logits.log_softmax(-1).transpose(0, 1),
                batch.labels_BU,
                batch.n_patches_B,
                batch.n_labels_B,
                reduction="none",
            )
            optimizer.zero_grad(set_to_none=True)
            loss.mean().backward()
            torch.nn.utils.clip_grad_norm_([parameter for _, parameter in named], 10.0)
            warm = step / 2
            cosine = 0.5 * (1 + np.cos(np.pi * (step - 2) / 10))
            floor = config.lr_min / config.lr_max
            factor = warm if step < 2 else floor + (1 - floor) * cosine
            for group in optimizer.param_groups:
                group["lr"] = config.lr_max * factor
            optimizer.step()
        trainer.run(8)
        for name, model in trainer.models.items():
            expected = networks[name].state_dict()
            for key, tensor in model.network.state_dict().items():
                torch.testing.assert_close(tensor, expected[key], atol=2e-6, rtol=1e-5)


def test_a_resumed_run_continues_bit_exactly(joint_run, two, tmp_path):
    out = tmp_path / "run"
    with JointTrainer(small_config(), two, out, progress=False) as trainer:
        trainer.run(5)
    train(small_config(), two, out, resume=True, progress=False)
    for name in ("A", "B"):
        for key, tensor in weights(joint_run / "participants" / name).items():
            assert torch.equal(tensor, weights(out / "participants" / name)[key]), key
    assert losses(out) == losses(joint_run)


def test_best_weights_of_which_one_participants_are_lost_are_noticed(two, tmp_path, capsys):
    out = tmp_path / "run"
    with JointTrainer(small_config(), two, out, progress=False) as trainer:
        trainer.run(5)
    (out / "participants" / "B" / "model.safetensors").unlink()
    with JointTrainer(small_config(), two, out, resume=True, progress=False) as trainer:
        assert trainer.state.best is None
    assert "is missing" in capsys.readouterr().err


@pytest.mark.parametrize("names", [("A", "C"), ("A",)])
def test_a_run_is_not_resumed_with_other_participants(two, tmp_path, names):
    out = tmp_path / "run"
    with JointTrainer(small_config(), two, out, progress=False) as trainer:
        trainer.run(1)
    given = dict(zip(names, two.values(), strict=False))
    data = given if len(given) > 1 else given["A"]
    with pytest.raises(RunError, match="was begun with"):
        train(small_config(), data, out, resume=True, progress=False)


def test_transformers_of_two_participants_share_all_but_their_first_layers(two, tmp_path):
    config = small_config(2, batches_per_val_step=2)
    inputs = EmbeddingConfig(day_layer="affine", read_in=6)
    config.model = TransformerConfig(
        n_units=16, n_layers=1, n_heads=2, head_units=8, input_network=inputs
    )
    train(config, two, tmp_path / "run", progress=False)
    of = {name: weights(tmp_path / "run" / "participants" / name) for name in ("A", "B")}
    shared = {name for name in of["A"] if not own(name)}
    assert {name for name in of["A"] if own(name)} == {
        "day_weight",
        "day_bias",
        "read_in.weight",
        "read_in.bias",
    }
    assert all(torch.equal(of["A"][name], of["B"][name]) for name in shared)
    assert load_model(tmp_path / "run" / "participants" / "B").network.config.patch_size == 4


@pytest.mark.slow
def test_both_participants_learn(tmp_path):
    config = small_config(400, read_in=16, batches_per_val_step=200)
    config.model.n_units = 48
    config.model.input_network.input_layer_dropout = 0.0
    data = {
        "A": write_participant(tmp_path / "a", A_DAYS, 8, n_train=40),
        "B": write_participant(tmp_path / "b", B_DAYS, 12, bin_ms=10, n_train=40, seed=1),
    }
    summary = train(config, data, tmp_path / "run", progress=False)
    assert max(summary.val_per_by_participant.values()) < 0.15
    for name, path in data.items():
        trials = recognise(tmp_path / "run", path, "val").trials
        errors = sum((edit_counts(t.phonemes, t.greedy) for t in trials), EditCounts())
        assert errors.errors / errors.reference_length < 0.15, name


# What cannot be trained.


def test_settings_that_speak_of_one_participant_are_refused(two, tmp_path):
    error = refused(small_config(read_in=None), two, tmp_path)
    assert "read_in is null" in str(error)
    config = small_config()
    config.dataset.sessions = list(A_DAYS)
    assert "dataset.sessions" in str(refused(config, two, tmp_path))
    with pytest.raises(ConfigError, match="a triple_gru has no read-in layer"):
        TripleGRUConfig(input_network=small_config().model.input_network)


def test_names_that_are_none_and_a_single_participant_are_refused(two, tmp_path):
    assert "two or more" in str(refused(small_config(), {"A": two["A"]}, tmp_path))
    wrong = {"A": two["A"], "x/y": two["B"]}
    assert "cannot name a participant" in str(refused(small_config(), wrong, tmp_path))


def test_packed_data_with_shorter_bins_are_not_joined_unseen(two, tmp_path):
    packed = open_data(two["B"], tmp_path / "packed")
    error = refused(small_config(), {"A": two["A"], "B": packed}, tmp_path)
    assert "--bin-ms 20" in str(error)


def test_participants_with_another_language_are_refused(two, tmp_path):
    data = write_participant(tmp_path / "other", C_DAYS, 5, language=LANGUAGES["de"])
    error = refused(small_config(), {"A": two["A"], "H": data}, tmp_path)
    assert "the data of A and those of H differ" in str(error)


def test_a_damaged_file_of_one_participant_is_named(two, tmp_path):
    shutil.copytree(two["A"], tmp_path / "a")
    packed = open_data(tmp_path / "a", tmp_path / "packed")
    with (packed.path / "val.f16").open("r+b") as file:
        file.write(b"\0\0\1")
    error = refused(small_config(), {"A": packed.path, "C": two["A"]}, tmp_path)
    assert "val.f16" in str(error)


# What a careless user gives.


def test_the_order_of_the_participants_changes_nothing_even_at_resume(joint_run, two, tmp_path):
    out = tmp_path / "run"
    with JointTrainer(small_config(), two, out, progress=False) as trainer:
        trainer.run(5)
    turned = dict(reversed(two.items()))
    train(small_config(), turned, out, resume=True, progress=False)
    assert losses(out) == losses(joint_run)
    for name in two:
        for key, tensor in weights(joint_run / "participants" / name).items():
            assert torch.equal(tensor, weights(out / "participants" / name)[key]), key


def test_the_same_recordings_or_folder_for_two_participants_are_refused(two, tmp_path):
    (tmp_path / "link").symlink_to(two["A"])
    same = {"A": two["A"], "B": tmp_path / "link"}
    assert "'A' and 'B' have the same recordings" in str(refused(small_config(), same, tmp_path))
    case = {"A": two["A"], "a": two["B"]}
    assert "'A' and 'a' differ only in case" in str(refused(small_config(), case, tmp_path))


def test_other_participants_at_resume_are_named_and_leave_no_data(joint_run, two, tmp_path):
    out = tmp_path / "run"
    with JointTrainer(small_config(), two, out, progress=False) as trainer:
        trainer.run(1)

    def resumed(data):
        with pytest.raises(RunError) as caught:
            train(small_config(), data, out, resume=True, progress=False)
        return str(caught.value)

    other = resumed({"A": two["A"], "C": two["B"]})
    assert "with participants A and B, now with participants A and C" in other
    assert "with participants A and B, now with one participant" in resumed(two["A"])
    assert sorted(path.name for path in (out / "participants").iterdir()) == ["A", "B"]
    assert not (out / "packed").exists()
    changed = resumed({"A": two["B"], "B": two["A"]})
    assert "participants/A: " in changed
    assert "sessions" in changed or "n_features" in changed
    assert not list((out / "participants").rglob("packed"))  # they were those of the other
    train(small_config(), two, out, resume=True, progress=False)
    assert losses(out) == losses(joint_run)


def test_bad_trials_of_a_day_that_two_participants_have_are_refused(two, tmp_path):
    other = write_participant(tmp_path / "c", A_DAYS[:1], 5, seed=2)
    config = small_config()
    config.dataset.bad_trials_dict = {A_DAYS[0]: {"0": [1]}}
    error = refused(config, {"A": two["A"], "C": other}, tmp_path)
    assert f"names {A_DAYS[0]}, a day of A and C" in str(error)
    with JointTrainer(config, two, tmp_path / "run", progress=False) as trainer:
        assert {name: len(split) for name, split in trainer.splits.items()} == {"A": 35, "B": 18}


def test_a_participant_without_a_validation_split_gives_a_share_of_its_trials(two, tmp_path):
    data = write_participant(tmp_path / "c", C_DAYS, 5, seed=2)
    (data / C_DAYS[0] / "data_val.hdf5").unlink()
    config = small_config(2, batches_per_val_step=2)
    config.dataset.test_percentage = 0.25
    with JointTrainer(config, {"A": two["A"], "C": data}, tmp_path / "run", progress=False) as run:
        assert len(run.splits["C"]) == 9
        assert len(run.validators["C"].batches.split) == 3


@pytest.mark.parametrize(
    "device", [DeviceSpec("tpu"), DeviceSpec("cpu", backend="tensorflow")], ids=["tpu", "keras"]
)
def test_several_participants_train_with_torch_on_a_cpu_or_gpu_alone(two, tmp_path, device):
    error = refused(small_config(), two, tmp_path, device=device)
    assert "several participants train in one process, on a CPU or one GPU" in str(error)


def test_tasks_without_labels_train_one_participant(two, tmp_path, capsys):
    error = refused(small_config(), two, tmp_path, overrides=PRETRAINING)
    assert "task 'pretrain' trains one participant" in str(error)
    data = ["--data", f"{two['A']}", "--data", f"{two['B']}"]
    assert cortext(["pretrain", "--config", "tiny", *data, "--out", f"{tmp_path}/run"]) == 2
    assert "--data is given 2 times" in capsys.readouterr().err


def test_data_without_a_directory_are_refused(two, tmp_path, capsys):
    data = ["--data", f"A={two['A']}", "--data", "B="]
    assert cortext(["train", "--config", "tiny", *data, "--out", f"{tmp_path}/run"]) == 2
    assert "--data B= names no directory" in capsys.readouterr().err
