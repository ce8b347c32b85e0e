"""Several participants in one training: one body, first layers of each, one run to resume."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from two_participants import A_DAYS, B_DAYS, C_DAYS, small_config, write_participant, write_two

from cortext.cli import run as cortext
from cortext.config import save_config
from cortext.data import open_data
from cortext.data.packed import open_packed
from cortext.decoding.ngram import LanguageModel
from cortext.errors import ConfigError, CortextError, RunError
from cortext.evaluation.fit_decoder import FitDecoder
from cortext.evaluation.fitted import read_fitted
from cortext.evaluation.recognise import recognise
from cortext.models import GRU, GRUConfig, TransformerConfig, TripleGRUConfig, load_model
from cortext.models.inputs import InputNetworkConfig
from cortext.models.participants import participant_run
from cortext.models.transformer import EmbeddingConfig
from cortext.text.language import LANGUAGES
from cortext.text.metrics import EditCounts, edit_counts
from cortext.training import DeviceSpec, adapt, train
from cortext.training.checkpoint import read_identity
from cortext.training.participants.recordings import Alternation, merged
from cortext.training.participants.trainer import JointTrainer
from cortext.training.pretrain import OVERRIDES as PRETRAINING


@pytest.fixture(scope="session")
def two(tmp_path_factory):
    return write_two(tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="session")
def run(two, tmp_path_factory):
    """A finished run of both; only to be read."""
    torch.set_num_threads(1)
    out = tmp_path_factory.mktemp("joint") / "run"
    train(small_config(), two, out, progress=False)
    return out


def weights(folder):
    return load_file(folder / "model.safetensors")


def own(name):
    return name.startswith(("day_", "read_in."))


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


def test_the_models_share_their_body_and_have_first_layers_of_their_own(run):
    of = {name: weights(run / "participants" / name) for name in ("A", "B")}
    for name in of["A"]:
        if not own(name):
            assert torch.equal(of["A"][name], of["B"][name]), name
    assert of["A"]["day_weight"].shape == (3, 8, 8)
    assert of["B"]["day_weight"].shape == (2, 12, 12)
    assert of["A"]["read_in.weight"].shape == (6, 8)
    assert of["B"]["read_in.weight"].shape == (6, 12)
    assert load_model(run / "participants" / "B").sessions == B_DAYS


def test_the_summary_counts_shared_parameters_once_and_gives_the_error_of_each(run):
    summary = json.loads((run / "summary.json").read_text())
    of_a = {name: tensor.numel() for name, tensor in weights(run / "participants/A").items()}
    own_of_b = 2 * (12 * 12 + 12) + 6 * 12 + 6
    assert summary["n_parameters"] == sum(of_a.values()) + own_of_b
    assert summary["n_train_trials"] == 3 * 12 + 2 * 9
    rates = summary["val_per_by_participant"]
    assert summary["val_per"] == pytest.approx((rates["A"] + rates["B"]) / 2)
    last = [line for line in losses(run) if line["kind"] == "val"][-1]
    assert set(last["val_per_by_session"]) == {f"A/{day}" for day in A_DAYS} | {
        f"B/{day}" for day in B_DAYS
    }


def test_shorter_bins_are_joined_to_the_longest_by_their_mean(run, two):
    packed = open_packed(run / "participants" / "B" / "packed")
    assert packed.conventions.bin_ms == 20
    short = open_data(two["B"], run.parent / "short")
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


def test_a_resumed_run_goes_on_bit_exactly(run, two, tmp_path):
    out = tmp_path / "run"
    with JointTrainer(small_config(), two, out, progress=False) as trainer:
        trainer.run(5)
    train(small_config(), two, out, resume=True, progress=False)
    for name in ("A", "B"):
        for key, tensor in weights(run / "participants" / name).items():
            assert torch.equal(tensor, weights(out / "participants" / name)[key]), key
    assert losses(out) == losses(run)


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


# The run of each participant.


def test_a_split_is_recognised_with_the_model_of_whose_recordings_it_has(run, two):
    for name, days in (("A", A_DAYS), ("B", B_DAYS)):
        found = recognise(run, two[name], "val")
        assert found.model.sessions == days
        assert found.conventions.bin_ms == 20
        assert {trial.session for trial in found.trials} == set(days)


def test_the_data_that_chose_the_weights_are_known_for_each_participant(run):
    for name in ("A", "B"):
        folder = run / "participants" / name
        assert read_identity(folder)["crc32"] == open_packed(folder / "packed").checksums


def test_a_participants_model_can_be_adapted(run, two, tmp_path):
    summary = adapt(
        run / "participants" / "A",
        two["A"],
        tmp_path / "adapted",
        session=A_DAYS[1],
        batches=3,
        progress=False,
    )
    assert summary.session == A_DAYS[1]
    adapted, before = weights(tmp_path / "adapted"), weights(run / "participants" / "A")
    assert torch.equal(adapted["read_in.weight"], before["read_in.weight"])


@pytest.mark.parametrize(
    ("participant", "sessions", "message"),
    [
        ("a", None, "no participant 'a'; known: A, B"),
        (None, C_DAYS, "of none of them; name the participant: A or B"),
        (None, (A_DAYS[0], B_DAYS[0]), "of A and B; name the participant: A or B"),
        (None, None, "a run of several participants; name the participant: A or B"),
    ],
)
def test_a_participant_that_is_not_clear_is_asked_for(run, participant, sessions, message):
    with pytest.raises(RunError, match=message) as caught:
        participant_run(run, participant, sessions)
    assert "\n" not in str(caught.value)


def test_commands_take_the_participants_by_name_and_find_them_again(two, tmp_path, capsys):
    save_config(small_config(2, batches_per_val_step=2), tmp_path / "config.yaml")
    data = [option for name, path in two.items() for option in ("--data", f"{name}={path}")]
    out = tmp_path / "run"
    assert cortext(["train", "--config", f"{tmp_path}/config.yaml", *data, "--out", f"{out}"]) == 0
    assert ", B " in capsys.readouterr().out
    call = ["evaluate", f"{out}", "--data", f"{two['B']}", "--out", f"{tmp_path}/evaluation"]
    assert cortext(call) == 0
    assert "training kept the weights" in capsys.readouterr().out
    assert cortext([*call, "--participant", "X"]) == 2
    assert "known: A, B" in capsys.readouterr().err
    same = ["--data", f"{two['A']}", "--data", f"{two['A']}"]
    assert cortext(["train", "--config", "tiny", *same, "--out", f"{tmp_path}/no"]) == 2
    assert "two participants 'a'" in capsys.readouterr().err
    adapted = ["--out", f"{tmp_path}/adapted", "--session", A_DAYS[0], "--batches", "2"]
    assert cortext(["adapt", f"{out}", "--data", f"{two['A']}", *adapted]) == 0
    exported = ["--out", f"{tmp_path}/release"]
    folder = f"{out}/participants/A"
    assert cortext(["export", folder, "--format", "release", *exported]) == 2
    assert "read-in layer" in capsys.readouterr().err


def test_decoder_options_are_fitted_to_each_participant(two, tmp_path):
    (tmp_path / "lm.txt").write_text("a cat sat\na cat\n")
    LanguageModel.build([tmp_path / "lm.txt"], 2, tmp_path / "lm")
    fit = FitDecoder(tmp_path / "lm", threads=1)
    out = tmp_path / "run"
    config = small_config(2, batches_per_val_step=2)
    train(config, two, out, lm=tmp_path / "lm", callbacks=[fit], progress=False)
    assert fit.found == {name: read_fitted(out / "participants" / name) for name in ("A", "B")}


def test_a_run_of_several_has_no_model_of_its_own_and_says_where_they_are(run):
    with pytest.raises(RunError, match=r"several participants; give .*participants/A or .*/B"):
        load_model(run)
    with pytest.raises(RunError, match="leave out --participant"):
        participant_run(run / "participants" / "A", "A")


@pytest.mark.parametrize("content", ["{", "[]", '{"format_version": 2}', '{"format_version": 1}'])
def test_a_damaged_list_of_participants_is_refused(run, tmp_path, content):
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "participants.json").write_text(content)
    with pytest.raises(RunError, match=r"participants\.json: cannot be read"):
        participant_run(tmp_path / "run", "A")


# Other participants.


@pytest.mark.parametrize("days", [C_DAYS, A_DAYS[:1]])
def test_the_body_of_a_run_starts_the_model_of_another_participant(run, tmp_path, capsys, days):
    # A day of that name is known; the number of electrodes tells that it is somebody else's.
    data = write_participant(tmp_path / "c", days, 5, seed=2)
    config = small_config(1, batches_per_val_step=1)
    config.dataset.days_per_batch = 1
    config.lr_max = config.lr_max_day = 1e-12  # the weights stay as they begin
    config.lr_min = config.lr_min_day = 0.0
    train(config, data, tmp_path / "new", init_from=run, progress=False)
    assert "its body is taken over" in capsys.readouterr().err
    new, source = weights(tmp_path / "new"), weights(run / "participants" / "A")
    for name, tensor in new.items():
        if not own(name):
            torch.testing.assert_close(tensor, source[name], atol=1e-6, rtol=0)
    assert new["read_in.weight"].shape == (6, 5)
    torch.testing.assert_close(new["day_weight"], torch.eye(5)[None], atol=1e-6, rtol=0)


def test_a_body_of_another_width_is_refused(run, tmp_path):
    data = write_participant(tmp_path / "c", C_DAYS, 5, seed=2)
    config = small_config(1, read_in=7)
    config.dataset.days_per_batch = 1
    assert "gru.weight_ih_l0" in str(refused(config, data, tmp_path, init_from=run))


def test_a_known_participant_starts_from_all_of_its_own_layers(run, two, tmp_path):
    config = small_config(1, batches_per_val_step=1)
    config.lr_max = config.lr_max_day = 1e-12
    config.lr_min = config.lr_min_day = 0.0
    packed = run / "participants" / "B" / "packed"
    config.dataset.days_per_batch = 2
    train(config, packed, tmp_path / "alone", init_from=run, progress=False)
    alone, source = weights(tmp_path / "alone"), weights(run / "participants" / "B")
    for name, tensor in source.items():
        torch.testing.assert_close(alone[name], tensor, atol=1e-6, rtol=0)


def test_participants_start_together_from_a_run_of_both(run, two, tmp_path):
    with JointTrainer(
        small_config(), two, tmp_path / "run", init_from=run, progress=False
    ) as trainer:
        for name, model in trainer.models.items():
            for key, tensor in weights(run / "participants" / name).items():
                assert torch.equal(model.network.state_dict()[key], tensor), key


# What cannot be trained.


def refused(config, data, tmp_path, **settings):
    with pytest.raises(CortextError) as caught:
        train(config, data, tmp_path / "refused", progress=False, **settings)
    assert "\n" not in str(caught.value)
    return caught.value


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


def test_the_order_of_the_participants_changes_nothing_even_at_resume(run, two, tmp_path):
    out = tmp_path / "run"
    with JointTrainer(small_config(), two, out, progress=False) as trainer:
        trainer.run(5)
    turned = dict(reversed(two.items()))
    train(small_config(), turned, out, resume=True, progress=False)
    assert losses(out) == losses(run)
    for name in two:
        for key, tensor in weights(run / "participants" / name).items():
            assert torch.equal(tensor, weights(out / "participants" / name)[key]), key


def test_the_same_recordings_or_folder_for_two_participants_are_refused(two, tmp_path):
    (tmp_path / "link").symlink_to(two["A"])
    same = {"A": two["A"], "B": tmp_path / "link"}
    assert "'A' and 'B' have the same recordings" in str(refused(small_config(), same, tmp_path))
    case = {"A": two["A"], "a": two["B"]}
    assert "'A' and 'a' differ only in case" in str(refused(small_config(), case, tmp_path))


def test_other_participants_at_resume_are_named(two, tmp_path):
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
    changed = resumed({"A": two["B"], "B": two["A"]})
    assert "participants/A: " in changed
    assert "sessions" in changed or "n_features" in changed


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


def test_a_model_without_a_read_in_layer_does_not_lose_that_of_its_source(run, two, tmp_path):
    # As many features as the read-in layer gives: all other weights would fit.
    config = small_config(1, read_in=8, batches_per_val_step=1)
    train(config, two["A"], tmp_path / "source", progress=False)
    alone = small_config(1, read_in=None)
    error = refused(alone, two["A"], tmp_path, init_from=tmp_path / "source")
    assert "model.input_network.read_in=8" in str(error)


def test_the_layers_that_are_taken_over_are_told(run, two, tmp_path, capsys):
    with JointTrainer(small_config(), two, tmp_path / "run", init_from=run, progress=False):
        pass
    told = capsys.readouterr().err
    for name in two:
        assert f"participants/{name}: its body, read-in and known day layers are taken over" in told


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
