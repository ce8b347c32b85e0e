"""The key `participant` of cortext.json: whose recordings these are, whatever their days' names."""

import json
import shutil

import pytest
import torch
from two_participants import own, refused, small_config, weights, write_participant

from cortext.cli import run as cortext
from cortext.config import save_config
from cortext.data import Conventions, open_dataset
from cortext.data.packed import open_data
from cortext.errors import DataError, RunError
from cortext.evaluation.recognise import recognise
from cortext.models import load_model
from cortext.models.participants import run_for
from cortext.training import train
from cortext.training.participants.trainer import JointTrainer
from cortext.training.trainer import Trainer

DAYS = ("s.2024.01.01", "s.2024.01.03")
NEW_DAY = ("s.2024.02.02",)


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """Recordings of ann and bob with the same days and as many features, in folders x and y."""
    root = tmp_path_factory.mktemp("named")
    return {
        "ann": write_participant(root / "x", DAYS, 6, seed=1, participant="ann"),
        "bob": write_participant(root / "y", DAYS, 6, seed=2, participant="bob"),
    }


@pytest.fixture(scope="module")
def both(named, tmp_path_factory):
    """A run of both, trained by the command without names."""
    root = tmp_path_factory.mktemp("both")
    config = small_config(2, batches_per_val_step=2)
    config.dataset.days_per_batch = 2
    save_config(config, root / "config.yaml")
    data = [option for path in named.values() for option in ("--data", f"{path}")]
    call = ["train", "--config", f"{root}/config.yaml", *data, "--out", f"{root}/run"]
    assert cortext(call) == 0
    return root / "run"


def still():
    """A training that leaves the weights as they begin; its fresh ones are not those of `both`."""
    config = small_config(1, batches_per_val_step=1, seed=7)
    config.dataset.days_per_batch = 1
    config.lr_max = config.lr_max_day = 1e-12
    config.lr_min = config.lr_min_day = 0.0
    return config


def test_the_key_names_the_participants_of_a_training(both):
    assert sorted(path.name for path in (both / "participants").iterdir()) == ["ann", "bob"]
    for name in ("ann", "bob"):
        card = json.loads((both / "participants" / name / "model.json").read_text())
        assert card["participant"] == name


def test_a_name_that_contradicts_the_key_is_refused_before_anything_is_packed(named, tmp_path):
    error = refused(small_config(), {"ann": named["bob"], "cleo": named["ann"]}, tmp_path)
    assert "y: the recordings are of participant 'bob', not of 'ann'; name the data 'bob'" in str(
        error
    )
    assert not list((tmp_path / "refused").rglob("packed"))


def test_recordings_find_their_participants_model_by_the_key(both, named, tmp_path):
    """The days are those of both."""
    for name, data in named.items():
        assert run_for(both, data) == both / "participants" / name
        assert run_for(both, open_data(data)) == both / "participants" / name
        assert run_for(both, data, name) == both / "participants" / name
    with pytest.raises(RunError, match="are of participant 'bob', not of 'ann'; leave out"):
        run_for(both, named["bob"], "ann")
    other = write_participant(tmp_path / "z", DAYS, 6, participant="cleo")
    with pytest.raises(RunError, match="no participant 'cleo'; known: ann, bob"):
        run_for(both, other)
    nameless = write_participant(tmp_path / "w", DAYS, 6)
    with pytest.raises(RunError, match="days of ann and bob; name the participant"):
        run_for(both, nameless)
    assert run_for(both, nameless, "ann") == both / "participants" / "ann"


def test_a_new_day_is_adapted_to_without_a_name(both, tmp_path):
    data = write_participant(tmp_path / "z", NEW_DAY, 6, seed=2, participant="bob")
    out = tmp_path / "adapted"
    call = ["adapt", f"{both}", "--data", f"{data}", "--out", f"{out}", "--batches", "1"]
    assert cortext(call) == 0
    assert json.loads((out / "model.json").read_text())["sessions"] == [*DAYS, *NEW_DAY]
    adapted, before = weights(out), weights(both / "participants" / "bob")
    assert torch.equal(adapted["read_in.weight"], before["read_in.weight"])


def test_another_participants_recordings_are_refused(both, named):
    with pytest.raises(DataError, match="in the data the participant is 'bob', not 'ann'"):
        recognise(both / "participants" / "ann", named["bob"], "val")
    nameless = shutil.copytree(named["bob"], both.parent / "nameless")
    (nameless / "cortext.json").unlink()
    assert recognise(both / "participants" / "ann", nameless, "val").trials


def test_a_new_day_of_a_known_participant_starts_from_its_read_in_layer(both, tmp_path):
    data = write_participant(tmp_path / "z", NEW_DAY, 6, seed=2, participant="bob")
    train(still(), data, tmp_path / "new", init_from=both, progress=False)
    new, source = weights(tmp_path / "new"), weights(both / "participants" / "bob")
    torch.testing.assert_close(new["read_in.weight"], source["read_in.weight"], atol=1e-6, rtol=0)
    torch.testing.assert_close(new["day_weight"], torch.eye(6)[None], atol=1e-6, rtol=0)


def test_days_of_the_same_names_are_not_taken_for_those_of_another_participant(both, tmp_path):
    data = write_participant(tmp_path / "z", DAYS, 6, seed=3, participant="cleo")
    train(still(), data, tmp_path / "new", init_from=both, progress=False)
    new, source = weights(tmp_path / "new"), weights(both / "participants" / "ann")
    for name, tensor in new.items():
        if not own(name):
            torch.testing.assert_close(tensor, source[name], atol=1e-6, rtol=0)
    assert (new["read_in.weight"] - source["read_in.weight"]).abs().max() > 0.01


def test_a_run_is_resumed_where_the_name_was_added_but_not_where_it_changed(tmp_path):
    given = {
        "ann": write_participant(tmp_path / "x", DAYS, 6, seed=1),
        "bob": write_participant(tmp_path / "y", DAYS, 5, seed=2),
    }
    out = tmp_path / "run"
    config = small_config(2, batches_per_val_step=2)
    with JointTrainer(config, given, out, progress=False) as trainer:
        trainer.run(1)
    for name, data in given.items():
        Conventions(participant=name).write(data)
    train(config, given, out, resume=True, progress=False)
    assert load_model(out / "participants" / "bob").conventions.participant == "bob"
    alone = tmp_path / "alone"
    with Trainer(still(), given["bob"], alone, progress=False):
        pass
    (given["bob"] / "cortext.json").unlink()
    Conventions(participant="cleo").write(given["bob"])
    with pytest.raises(RunError, match="the participant is 'bob', not 'cleo'"):
        train(still(), given["bob"], alone, resume=True, progress=False)


def test_recordings_that_are_written_later_keep_the_name(tmp_path):
    write_participant(tmp_path / "z", DAYS, 6, participant="ann")
    Conventions().write(tmp_path / "z")
    assert open_dataset(tmp_path / "z").conventions.participant == "ann"
    with pytest.raises(DataError, match="the participant is 'bob', not 'ann'"):
        Conventions(participant="bob").write(tmp_path / "z")
