import json
from dataclasses import replace
from shutil import copytree

import numpy as np
import pytest
import torch
from drifted_day import DRIFTED, KNOWN, N_FEATURES, write_day
from safetensors.torch import load_file

from cortext.cli import run as cortext
from cortext.data import Trial, make_trial, open_packed, write_session
from cortext.data.packed import pack
from cortext.decoding import Decoder
from cortext.errors import CortextError
from cortext.models import load_model, save_model
from cortext.models.card import Smoothing
from cortext.training.config import read_run_config
from cortext_live.recalibration.adapting import adapt_unlabelled
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.replay import LabelledSentence
from cortext_live.recalibration.settings import METHODS

QUICK = {"trials": 14, "progress": False}


def weights(run):
    return load_file(run / "model.safetensors")


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def recorded(participant, session=DRIFTED):
    """The day's training trials by block and number, with their features as they were packed."""
    trials = open_packed(participant.data).trials("train", [session])
    return sorted(trials, key=lambda trial: (trial.block, trial.trial))


def taught_by_hand(participant, trials, settings, known=(), trusts=True):
    """The weights of a learner that is fed sentence by sentence."""
    model = load_model(participant.run)
    decoder = Decoder.from_dir(participant.lm)
    learner = Learner(model, read_run_config(participant.run), settings)
    learner.remember(known)
    for trial in trials:
        learner.begin_day(DRIFTED)
        logits_PV = learner.model.logits(trial.features_TC, DRIFTED)
        log_probs_PV = torch.from_numpy(logits_PV).log_softmax(-1).numpy()
        best = decoder.decode(log_probs_PV, model.inventory)[0]
        label_U = trial.phoneme_ids
        if trusts:
            confidences = [word.confidence for word in best.words]
            if not confidences or sum(confidences) / len(confidences) < settings.confidence:
                continue
            # The published pronunciations, as they are in the labels of recordings.
            label_U = make_trial(np.zeros((1, 1)), DRIFTED, 0, 0, best.text).phoneme_ids
        learner.learn(LabelledSentence(trial.features_TC.astype(np.float32), DRIFTED, label_U))
    return learner.model.network.state_dict()


def test_the_weights_are_those_of_a_learner_fed_with_what_was_decoded(participant, tmp_path):
    before = content(participant.run)
    summary = adapt_unlabelled(
        participant.run, participant.data, tmp_path / "run", "one-step", participant.lm, **QUICK
    )
    expected = taught_by_hand(participant, recorded(participant)[:14], METHODS["one-step"])
    assert_same(weights(tmp_path / "run"), expected)
    assert summary.session == DRIFTED
    assert summary.began_as == KNOWN[-1]
    assert 0 < summary.n_learnt == summary.steps <= summary.n_trials == 14
    assert content(participant.run) == before


def test_replay_mixes_in_labelled_trials_of_known_days(participant, tmp_path):
    summary = adapt_unlabelled(
        participant.run,
        participant.data,
        tmp_path / "run",
        "replay",
        participant.lm,
        old_data=participant.data,
        old_trials=2,
        **QUICK,
    )
    # The first trial of each day: the two known days have one each.
    known = [
        LabelledSentence(trial.features_TC.astype(np.float32), session, trial.phoneme_ids)
        for session in KNOWN
        for trial in recorded(participant, session)[:1]
    ]
    trials = recorded(participant)[:14]
    assert_same(
        weights(tmp_path / "run"), taught_by_hand(participant, trials, METHODS["replay"], known)
    )
    assert summary.n_old_trials == 2


def test_a_day_without_a_trusted_sentence_gets_the_layer_of_the_day_before(participant, tmp_path):
    summary = adapt_unlabelled(
        participant.run,
        participant.data,
        tmp_path / "run",
        "one-step",
        participant.lm,
        overrides=["confidence=1"],
        **QUICK,
    )
    assert (summary.n_learnt, summary.steps) == (0, 0)
    parent = weights(participant.run)
    for name in ("day_weight", "day_bias"):
        parent[name] = torch.cat([parent[name], parent[name][-1:]])
    assert_same(weights(tmp_path / "run"), parent)
    assert load_model(tmp_path / "run").sessions == (*KNOWN, DRIFTED)


def with_other_labels(data, kind):
    """The recordings with the labels of other trials, or without any."""
    train = data.split("train")
    order = np.random.default_rng(1).permutation(len(train))
    if kind == "shuffled":
        changed = replace(
            train,
            n_labels_N=train.n_labels_N[order],
            first_label_N=train.first_label_N[order],
            sentences=tuple(train.sentences[i] for i in order),
        )
    else:
        changed = replace(
            train,
            n_labels_N=np.zeros_like(train.n_labels_N),
            sentences=(None,) * len(train),
        )
    return data.showing({"train": changed})


@pytest.mark.parametrize("kind", ["shuffled", "withheld"])
def test_the_labels_of_the_data_do_not_matter(participant, tmp_path, kind):
    data = open_packed(participant.data)
    for name, given in (("as they are", data), (kind, with_other_labels(data, kind))):
        adapt_unlabelled(
            participant.run, given, tmp_path / name, "one-step", participant.lm, **QUICK
        )
    assert_same(weights(tmp_path / kind), weights(tmp_path / "as they are"))
    for file in ("config.yaml", "model.json", "metrics.jsonl"):
        assert (tmp_path / kind / file).read_bytes() == (
            tmp_path / "as they are" / file
        ).read_bytes()


def test_corrections_are_learnt_from_in_the_place_of_what_was_decoded(participant, tmp_path):
    summary = adapt_unlabelled(
        participant.run,
        participant.data,
        tmp_path / "run",
        "one-step",
        participant.lm,
        corrections=True,
        **QUICK,
    )
    assert (summary.n_corrected, summary.n_learnt, summary.confidence) == (14, 14, None)
    trials = recorded(participant)[:14]
    expected = taught_by_hand(participant, trials, METHODS["one-step"], trusts=False)
    assert_same(weights(tmp_path / "run"), expected)


def test_trials_without_labels_may_lie_in_the_test_split(participant, tmp_path):
    """The same trials, once as training trials and once as a test split, which has no labels."""
    trials = recorded(participant)[:6]
    write_session(tmp_path / "a" / DRIFTED / "data_train.hdf5", trials)
    bare = [Trial(t.features_TC, t.session, t.block, t.trial, None, None) for t in trials]
    write_session(tmp_path / "b" / DRIFTED / "data_test.hdf5", bare)
    for name, heard in (("a", ["train"]), ("b", ["test"])):
        data = pack(tmp_path / name, tmp_path / f"{name}-packed")
        adapt_unlabelled(
            participant.run,
            data,
            tmp_path / f"{name}-run",
            "one-step",
            participant.lm,
            learn_from=heard,
            progress=False,
        )
    assert_same(weights(tmp_path / "a-run"), weights(tmp_path / "b-run"))


@pytest.fixture(scope="module")
def with_short_trial(participant, tmp_path_factory):
    """A run that smooths, and a new day of which one trial is then too short for a frame."""
    root = tmp_path_factory.mktemp("short")
    model = load_model(participant.run)
    model.smoothing = Smoothing(smooth_kernel_std=4.0)
    run = copytree(participant.run, root / "run")
    save_model(model, run)
    write_day(root / "raw", DRIFTED, {"train": 4})
    file = root / "raw" / DRIFTED / "data_train.hdf5"
    trials = list(pack(root / "raw", root / "all").trials("train"))
    short = Trial(np.zeros((14, N_FEATURES), np.float32), DRIFTED, 0, 4, None, None)
    write_session(file, [*trials, short])
    return run, root / "raw"


def command(participant, *given, out, run=None):
    parts = ["adapt", run or participant.run, "--lm", participant.lm, *given, "--out", out]
    return cortext([str(part) for part in parts])


def test_a_trial_that_the_model_cannot_read_is_named_or_left_out(
    participant, with_short_trial, tmp_path, capfd
):
    run, data = with_short_trial
    given = ["--unlabelled", "one-step", "--data", data]
    assert command(participant, *given, out=tmp_path / "run", run=run) == 2
    said = capfd.readouterr().err
    assert f"{DRIFTED}/block 0/trial 4: n_time_steps: 14 bins are too few for one frame" in said
    assert "--skip-bad" in said
    assert not (tmp_path / "run").exists()
    assert command(participant, *given, "--skip-bad", out=tmp_path / "run", run=run) == 0
    assert "left out as unusable: 1" in capfd.readouterr().out
    summary = json.loads((tmp_path / "run" / "adaptation.json").read_text())
    assert summary["n_trials"] == 4
    assert "block 0/trial 4" in summary["skipped"][0]["trial"]


def test_other_commands_read_the_adapted_run(participant, tmp_path, capfd):
    run, data, lm = tmp_path / "run", participant.data, participant.lm
    given = ["--data", data, "--unlabelled", "replay", "--trials", "8", "--whole-model"]
    assert command(participant, *given, out=run) == 0
    shown = capfd.readouterr()
    assert f"{DRIFTED}: " in shown.out
    assert "of 8 decoded sentences" in shown.out
    assert "decoder options: " in shown.err
    source = weights(participant.run)
    assert not torch.equal(weights(run)["out.weight"], source["out.weight"])
    summary = json.loads((run / "adaptation.json").read_text())
    assert summary["source"] == str(participant.run)
    assert summary["settings"]["whole_model"] is True
    assert summary["provenance"]["versions"]["cortext"]
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 8
    again = ["--session", DRIFTED, "--data", data, "--trials", "4"]
    for parts in (
        ["evaluate", run, "--data", data, "--lm", lm, "--out", tmp_path / "evaluation"],
        ["adapt", run, *again, "--batches", "1", "--out", tmp_path / "labelled"],
        ["adapt", run, *again, "--unlabelled", "one-step", "--lm", lm, "--out", tmp_path / "twice"],
    ):
        assert cortext([str(part) for part in parts]) == 0, capfd.readouterr().err
    assert load_model(tmp_path / "twice").sessions == (*KNOWN, DRIFTED)
    # It is a finished run: training does not begin in it again.
    parts = ["train", "--config", run / "config.yaml", "--data", data, "--out", run, "--resume"]
    assert cortext([str(part) for part in parts]) == 2
    assert "the run is finished" in capfd.readouterr().err


def test_a_run_without_a_configuration_learns_with_the_defaults(participant, tmp_path):
    """An imported run has none."""
    source = copytree(participant.run, tmp_path / "source")
    (source / "config.yaml").unlink()
    summary = adapt_unlabelled(
        source, participant.data, tmp_path / "run", "one-step", participant.lm, **QUICK
    )
    assert summary.n_learnt
    config = read_run_config(tmp_path / "run")
    assert config.model == load_model(participant.run).network.config


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--hear", "test"], "--hear is given without --unlabelled; give a method, too"),
        (["--corrections"], "--corrections is given without --unlabelled; give a method, too"),
        (["--unlabelled", "one-step", "--batches", "3"], "--batches does not go with --unlabelled"),
        (["--unlabelled", "one-step", "--device", "cpu"], "--device does not go with --unlabelled"),
        (["--unlabelled", "twostep"], "unknown method 'twostep'"),
        (["--unlabelled", "one-step", "--set", "copies=0"], "copies is 0"),
        (["--unlabelled", "one-step", "--hear", "tset"], "no split 'tset'"),
        (["--unlabelled", "one-step", "--session", "t15"], "there are no trials of session 't15'"),
        (["--unlabelled", "one-step", "--trials", "900"], "has 60 trials that can be read"),
        (["--unlabelled", "one-step", "--old-data", "DATA"], "one-step replays none"),
    ],
)
def test_options_that_do_not_go_together_are_refused(participant, tmp_path, capfd, given, said):
    given = [participant.data if part == "DATA" else part for part in given]
    out = tmp_path / "run"
    assert command(participant, *given, "--data", participant.data, out=out) == 2
    shown = capfd.readouterr().err
    assert said in shown
    assert len(shown.strip().splitlines()) == 1
    assert not out.exists()


def test_a_language_model_is_needed(participant, tmp_path, capfd):
    parts = ["adapt", participant.run, "--data", participant.data, "--unlabelled", "one-step"]
    assert cortext([*map(str, parts), "--out", str(tmp_path / "run")]) == 2
    assert "--unlabelled learns from decoded sentences; give --lm, too" in capfd.readouterr().err


def test_a_directory_with_something_in_it_is_kept(participant, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    with pytest.raises(CortextError, match="exists already"):
        adapt_unlabelled(
            participant.run, participant.data, tmp_path / "run", "one-step", participant.lm
        )
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]
