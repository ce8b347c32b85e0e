"""Commands and later trainings that use a run of several participants."""

import shutil

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
from cortext.config import save_config
from cortext.data.packed import open_packed
from cortext.decoding.ngram import LanguageModel
from cortext.errors import RunError
from cortext.evaluation.fit.callback import FitDecoder
from cortext.evaluation.fit.options import FittedOptions
from cortext.evaluation.recognise import recognise
from cortext.models import load_model
from cortext.models.participants import participant_run
from cortext.training import train
from cortext.training.checkpoint import read_identity
from cortext.training.participants.trainer import JointTrainer
from cortext_live.adapt import adapt

# The run of each participant.


def test_a_split_is_recognised_with_the_model_of_whose_recordings_it_has(joint_run, two):
    for name, days in (("A", A_DAYS), ("B", B_DAYS)):
        found = recognise(joint_run, two[name], "val")
        assert found.model.sessions == days
        assert found.conventions.bin_ms == 20
        assert {trial.session for trial in found.trials} == set(days)


def test_the_data_that_chose_the_weights_are_known_for_each_participant(joint_run):
    for name in ("A", "B"):
        folder = joint_run / "participants" / name
        assert read_identity(folder)["crc32"] == open_packed(folder / "packed").checksums


def test_a_participants_model_can_be_adapted(joint_run, two, tmp_path):
    summary = adapt(
        joint_run / "participants" / "A",
        two["A"],
        tmp_path / "adapted",
        session=A_DAYS[1],
        batches=3,
        progress=False,
    )
    assert summary.session == A_DAYS[1]
    adapted, before = weights(tmp_path / "adapted"), weights(joint_run / "participants" / "A")
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
def test_a_participant_that_is_not_clear_is_asked_for(joint_run, participant, sessions, message):
    with pytest.raises(RunError, match=message) as caught:
        participant_run(joint_run, participant, sessions)
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
    assert fit.found == {
        name: FittedOptions.read(out / "participants" / name) for name in ("A", "B")
    }


def test_a_run_of_several_has_no_model_of_its_own_and_says_where_they_are(joint_run):
    with pytest.raises(RunError, match=r"several participants; give .*participants/A or .*/B"):
        load_model(joint_run)
    with pytest.raises(RunError, match="leave out --participant"):
        participant_run(joint_run / "participants" / "A", "A")


@pytest.mark.parametrize("content", ["{", "[]", '{"format_version": 2}', '{"format_version": 1}'])
def test_a_damaged_list_of_participants_is_refused(joint_run, tmp_path, content):
    shutil.copytree(joint_run, tmp_path / "run")
    (tmp_path / "run" / "participants.json").write_text(content)
    with pytest.raises(RunError, match=r"participants\.json: cannot be read"):
        participant_run(tmp_path / "run", "A")


# Other participants.


@pytest.mark.parametrize("days", [C_DAYS, A_DAYS[:1]])
def test_the_body_of_a_run_starts_the_model_of_another_participant(
    joint_run, tmp_path, capsys, days
):
    # A day of that name is known; the number of electrodes tells that it is somebody else's.
    data = write_participant(tmp_path / "c", days, 5, seed=2)
    config = small_config(1, batches_per_val_step=1)
    config.dataset.days_per_batch = 1
    config.lr_max = config.lr_max_day = 1e-12  # the weights stay as they begin
    config.lr_min = config.lr_min_day = 0.0
    train(config, data, tmp_path / "new", init_from=joint_run, progress=False)
    assert "its body is taken over" in capsys.readouterr().err
    new, source = weights(tmp_path / "new"), weights(joint_run / "participants" / "A")
    for name, tensor in new.items():
        if not own(name):
            torch.testing.assert_close(tensor, source[name], atol=1e-6, rtol=0)
    assert new["read_in.weight"].shape == (6, 5)
    torch.testing.assert_close(new["day_weight"], torch.eye(5)[None], atol=1e-6, rtol=0)


def test_a_body_of_another_width_is_refused(joint_run, tmp_path):
    data = write_participant(tmp_path / "c", C_DAYS, 5, seed=2)
    config = small_config(1, read_in=7)
    config.dataset.days_per_batch = 1
    assert "gru.weight_ih_l0" in str(refused(config, data, tmp_path, init_from=joint_run))


def test_a_known_participant_starts_from_all_of_its_own_layers(joint_run, two, tmp_path):
    config = small_config(1, batches_per_val_step=1)
    config.lr_max = config.lr_max_day = 1e-12
    config.lr_min = config.lr_min_day = 0.0
    packed = joint_run / "participants" / "B" / "packed"
    config.dataset.days_per_batch = 2
    train(config, packed, tmp_path / "alone", init_from=joint_run, progress=False)
    alone, source = weights(tmp_path / "alone"), weights(joint_run / "participants" / "B")
    for name, tensor in source.items():
        torch.testing.assert_close(alone[name], tensor, atol=1e-6, rtol=0)


def test_participants_start_together_from_a_run_of_both(joint_run, two, tmp_path):
    with JointTrainer(
        small_config(), two, tmp_path / "run", init_from=joint_run, progress=False
    ) as trainer:
        for name, model in trainer.models.items():
            for key, tensor in weights(joint_run / "participants" / name).items():
                assert torch.equal(model.network.state_dict()[key], tensor), key


def test_a_model_without_a_read_in_layer_does_not_lose_that_of_its_source(joint_run, two, tmp_path):
    # As many features as the read-in layer gives: all other weights would fit.
    config = small_config(1, read_in=8, batches_per_val_step=1)
    train(config, two["A"], tmp_path / "source", progress=False)
    alone = small_config(1, read_in=None)
    error = refused(alone, two["A"], tmp_path, init_from=tmp_path / "source")
    assert "model.input_network.read_in=8" in str(error)


def test_the_layers_that_are_taken_over_are_reported(joint_run, two, tmp_path, capsys):
    with JointTrainer(small_config(), two, tmp_path / "run", init_from=joint_run, progress=False):
        pass
    told = capsys.readouterr().err
    for name in two:
        assert f"participants/{name}: its body, read-in and known day layers are taken over" in told
