"""Commands join bins as the training of their model did: the same bits as `pack` gives them.

Participant B has bins of 10 ms, and the run of both has bins of 20 ms.
"""

import json
import shutil
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch
from two_participants import B_DAYS, C_DAYS, refused, small_config, weights, write_participant

from cortext.cli import run as cortext
from cortext.data.conventions import RELEASE_CONVENTIONS
from cortext.data.packed import open_data, pack
from cortext.data.rebin import Rebinning
from cortext.decoding.ngram import LanguageModel
from cortext.errors import DataError, RunError
from cortext.evaluation.recognise import recognise
from cortext.models import load_model
from cortext.training import train
from cortext.training.participants.trainer import JointTrainer
from cortext.training.trainer import Trainer
from cortext_live.adapt import adapt
from cortext_live.core.gate_fit import fit_gate
from cortext_live.page.settings import LiveSettings
from cortext_live.page.setup import open_decoding
from cortext_live.page.sources import Replay
from cortext_live.steps.onnx_stepper import OnnxStepper
from cortext_live.steps.stepped import stepped_errors

JOINED = "bins of 10 ms joined to the model's 20 ms"


@pytest.fixture(scope="module")
def b_run(joint_run):
    return joint_run / "participants" / "B"


@pytest.fixture(scope="module")
def b_packed(two, tmp_path_factory):
    return pack(two["B"], tmp_path_factory.mktemp("b") / "packed", bin_ms=20)


@pytest.fixture
def b_files(two, tmp_path):
    """The recordings elsewhere, so that no packed copy of them is known."""
    left_out = shutil.ignore_patterns(".packed*")
    return shutil.copytree(two["B"], tmp_path / "files", ignore=left_out)


def same(first, second):
    """Return whether two runs have the same weights, bit for bit."""
    first, second = weights(first), weights(second)
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def of_one_day():
    config = small_config(3, batches_per_val_step=3)
    config.dataset.days_per_batch = 1
    return config


@pytest.mark.parametrize(
    ("note", "sums"),
    [
        ("rebinned from 10 ms, averaged", ()),
        ("z-scored by block; rebinned from 6.66667 ms, averaged", ()),
        ("rebinned from 5 ms, features 0-3, 7 summed, others averaged", (0, 1, 2, 3, 7)),
        ("rebinned from 10 ms, features 2 summed, others averaged", (2,)),
    ],
)
def test_the_note_of_a_rebinning_says_how_to_join_bins_again(note, sums):
    found = Rebinning.noted(replace(RELEASE_CONVENTIONS, normalised=note))
    assert (found.to_ms, found.sums) == (20, sums)
    assert f"from {found.from_ms:g} ms" in note


@pytest.mark.parametrize(
    "note",
    [
        None,
        "z-scored by block",
        "rebinned from 10 ms, averaged; z-scored by block",
        "rebinned from 10 ms, features 0, 2, 4 ... 96, 98 summed, others averaged",
        "rebinned from 10 ms, features 0-999999999 summed, others averaged",
        "rebinned from 1e9 ms, averaged",
    ],
)
def test_no_other_note_says_how(note):
    assert Rebinning.noted(replace(RELEASE_CONVENTIONS, normalised=note)) is None


def test_evaluation_joins_the_bins_of_other_recordings(b_run, b_files, b_packed, capsys):
    found = recognise(b_run, b_files, "val")
    assert JOINED in capsys.readouterr().err
    expected = recognise(b_run, b_packed, "val")
    for one, other in zip(found.trials, expected.trials, strict=True):
        assert np.array_equal(one.logits_PV, other.logits_PV)
    assert open_data(b_files).conventions.bin_ms == 10  # its own copy stays as it is
    assert open_data(b_files, bin_ms=20).checksums == b_packed.checksums


def test_adaptation_joins_bins(b_run, b_files, b_packed, tmp_path, capsys):
    settings = {"session": B_DAYS[1], "batches": 3, "whole_model": True, "progress": True}
    adapt(b_run, b_files, tmp_path / "new", old_data=b_files, **settings)
    assert capsys.readouterr().err.count(JOINED) == 2
    adapt(b_run, b_packed, tmp_path / "expected", old_data=b_packed, **settings)
    assert same(tmp_path / "new", tmp_path / "expected")


def test_an_export_measures_errors_on_joined_bins(b_run, b_files, b_packed, tmp_path, capsys):
    call = ["export", f"{b_run}", "--format", "onnx", "--out", f"{tmp_path}/out", "--json"]
    assert cortext([*call, "--data", f"{b_files}"]) == 0
    printed = capsys.readouterr()
    assert JOINED in printed.err
    expected = stepped_errors({"fp32": OnnxStepper(tmp_path / "out")}, b_packed)
    assert json.loads(printed.out)["errors"]["fp32"] == expected["fp32"]


@pytest.mark.parametrize("of_both", [False, True])
def test_a_gate_is_fitted_to_joined_bins(b_run, b_files, of_both):
    run = b_run.parent.parent if of_both else b_run
    with pytest.raises(DataError, match="usable labelled trials") as caught:
        fit_gate(run, b_files, split="val")
    assert ".packed-20ms" in str(caught.value)


def test_serve_replays_joined_bins(b_run, b_files, b_packed, tmp_path):
    model = load_model(b_run).conventions
    files, expected = (Replay(data, model=model) for data in (b_files, b_packed.path))
    assert len(files.listing()) == len(expected.listing()) == 8
    for number in range(8):
        found = files.trial(number)
        assert np.array_equal(found.features_TC, expected.trial(number).features_TC)
    (tmp_path / "lm.txt").write_text("a cat sat\na cat\n")
    LanguageModel.build([tmp_path / "lm.txt"], 2, tmp_path / "lm")
    with closing(open_decoding(LiveSettings(b_run, tmp_path / "lm", b_files))) as decoding:
        assert decoding.bin_ms == 20


def test_a_known_participant_starts_and_resumes_with_joined_bins(
    joint_run, b_files, b_packed, tmp_path, capsys
):
    config = of_one_day()
    with Trainer(config, b_files, tmp_path / "new", init_from=joint_run, progress=False) as one:
        one.run(2)
    train(config, b_files, tmp_path / "new", resume=True, progress=True)
    assert JOINED in capsys.readouterr().err
    train(config, b_packed, tmp_path / "expected", init_from=joint_run, progress=False)
    assert same(tmp_path / "new", tmp_path / "expected")


def test_a_new_participants_bins_are_averaged_for_the_body(joint_run, tmp_path, capsys):
    data = write_participant(tmp_path / "c", C_DAYS, 5, bin_ms=10, seed=2)
    train(of_one_day(), data, tmp_path / "new", init_from=joint_run)
    assert JOINED in capsys.readouterr().err
    packed = pack(data, tmp_path / "packed", bin_ms=20)
    train(of_one_day(), packed, tmp_path / "expected", init_from=joint_run, progress=False)
    assert same(tmp_path / "new", tmp_path / "expected")


def test_participants_together_start_and_resume_with_the_bins_of_the_body(
    joint_run, b_files, b_packed, tmp_path, capsys
):
    """Both have bins of 10 ms: without --init-from nobody's would be joined."""
    c_files = write_participant(tmp_path / "c", C_DAYS, 5, bin_ms=10, seed=2)
    given, out, config = {"B": b_files, "C": c_files}, tmp_path / "new", of_one_day()
    with JointTrainer(config, given, out, init_from=joint_run, progress=False) as one:
        one.run(2)
    train(config, given, out, resume=True)
    told = capsys.readouterr().err
    assert all(f"{data}: {JOINED}" in told for data in given.values())
    packed = {"B": b_packed, "C": pack(c_files, tmp_path / "packed", bin_ms=20)}
    train(config, packed, tmp_path / "expected", init_from=joint_run, progress=False)
    for name in given:
        folders = [run / "participants" / name for run in (out, tmp_path / "expected")]
        assert same(*folders)


def test_a_participant_whose_bins_were_summed_starts_together_with_another(two, b_files, tmp_path):
    summed = pack(two["B"], tmp_path / "summed", bin_ms=20, sums=(0, 1, 5))
    train(of_one_day(), summed, tmp_path / "run", progress=False)
    c_files = write_participant(tmp_path / "c", C_DAYS, 5, bin_ms=10, seed=2)
    given = {"B": b_files, "C": c_files}
    arguments = {"init_from": tmp_path / "run", "progress": False}
    with JointTrainer(of_one_day(), given, tmp_path / "new", **arguments) as trainer:
        averaged = pack(c_files, tmp_path / "averaged", bin_ms=20)
        for name, expected in (("B", summed), ("C", averaged)):
            for number in range(len(trainer.splits[name])):
                x_TC = expected.split("train").features(number)
                assert np.array_equal(trainer.splits[name].features(number), x_TC)


def test_longer_bins_than_the_body_had_are_refused_before_they_are_packed(joint_run, two, tmp_path):
    longer = write_participant(tmp_path / "c", C_DAYS, 5, bin_ms=40, seed=2)
    given = {"A": two["A"], "C": longer}
    error = refused(of_one_day(), given, tmp_path, init_from=joint_run)
    assert "c: bins last 40 ms, and 20 ms in the run to start from" in str(error)
    assert not list((tmp_path / "refused").rglob("packed"))


def test_bins_that_training_summed_are_summed(two, b_files, tmp_path):
    summed = pack(two["B"], tmp_path / "summed", bin_ms=20, sums=(0, 1, 5))
    run = tmp_path / "run"
    train(of_one_day(), summed, run, progress=False)
    for name, data in (("new", b_files), ("expected", summed)):
        adapt(run, data, tmp_path / name, session=B_DAYS[0], batches=2, progress=False)
    assert same(tmp_path / "new", tmp_path / "expected")
    short = pack(b_files, tmp_path / "short").path
    with pytest.raises(DataError, match=f"give {b_files}, or .* --bin-ms 20 --sums 0-1,5"):
        adapt(run, short, tmp_path / "no", session=B_DAYS[0], progress=False)
    fewer = write_participant(tmp_path / "fewer", B_DAYS, 4, bin_ms=10, seed=2)
    with pytest.raises(DataError, match="fewer: 4 features found, and training summed feature 5"):
        adapt(run, fewer, tmp_path / "no", session=B_DAYS[0], progress=False)


def test_the_advice_to_pack_has_all_digits_of_the_length():
    assert Rebinning(10, 20 / 3).options == " --bin-ms 6.666666666666667"
    assert Rebinning(10, 20, (0, 1, 5)).options == " --bin-ms 20 --sums 0-1,5"


def test_a_model_whose_training_joined_no_bins_refuses_shorter_ones(joint_run, tmp_path):
    data = write_participant(tmp_path / "c", C_DAYS, 8, bin_ms=10, seed=2)
    with pytest.raises(DataError, match="bins last 10 ms, not 20 ms"):
        recognise(joint_run / "participants" / "A", data, "val")
    alone = small_config(3, read_in=None, batches_per_val_step=3)
    alone.dataset.days_per_batch = 1
    native = write_participant(tmp_path / "native", C_DAYS, 8, seed=2)
    train(alone, native, tmp_path / "run", progress=False)
    error = refused(alone, data, tmp_path, init_from=tmp_path / "run")
    assert isinstance(error, RunError)
    assert "bins last 10 ms, not 20 ms" in str(error)
