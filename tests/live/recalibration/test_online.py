import json
import re
from shutil import copytree

import numpy as np
import pytest
from drifted_day import DRIFTED, KNOWN, N_FEATURES

from cortext.cli import run as cortext
from cortext.data import Trial, open_packed, write_session
from cortext.errors import DataError
from cortext.evaluation import evaluate
from cortext.models import load_model, save_model
from cortext.models.card import Smoothing
from cortext_live.recalibration.evaluation import DAILY, FROZEN, evaluate_online
from cortext_live.recalibration.labels import label_of
from cortext_live.recalibration.online import Frozen, Place, follow, in_order


def only(participant, sessions):
    """The recordings of some days."""
    data = open_packed(participant.data)
    return data.showing({name: data.split(name).select(sessions=sessions) for name in data.splits})


@pytest.fixture(scope="module", autouse=True)
def one_picture():
    """Reports draw one trial here, not six: drawing takes half of the time of an evaluation."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cortext.evaluation.report.N_PICTURES", 1)
        yield


@pytest.fixture(scope="module")
def learnt(participant, tmp_path_factory):
    """The results of `one-step`, which learns from the training split, and their directory."""
    out = tmp_path_factory.mktemp("online") / "out"
    _, online = evaluate_online(
        participant.run,
        participant.data,
        "val",
        participant.lm,
        out,
        "one-step",
        learn_from=["train"],
        overrides=["lr=0.005"],
    )
    return online, out


def test_a_day_that_drifted_is_read_better_without_labels(learnt):
    online, _ = learnt
    frozen, own, daily = (online.by_day[way][DRIFTED] for way in (FROZEN, "one-step", DAILY))
    assert own.per < 0.8 * frozen.per
    assert daily.per < 0.8 * frozen.per


def test_the_frozen_model_is_the_run(learnt, participant, tmp_path):
    online, _ = learnt
    data = only(participant, KNOWN)
    metrics = evaluate(participant.run, data, "val", participant.lm, tmp_path / "out")
    for session in KNOWN:
        assert online.by_day[FROZEN][session].per == metrics.per_session[session].per
        assert online.by_day[FROZEN][session].wer == metrics.per_session[session].wer


def test_the_evaluation_is_that_of_the_learning_model(learnt):
    online, out = learnt
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["per"] == online.overall["one-step"].per
    kept = json.loads((out / "online.json").read_text())
    assert kept["method"] == "one-step"
    assert kept["heard"] == ["train"]
    assert kept["left_out"] == 0
    rows = kept["by_trial"]
    for way in (FROZEN, DAILY, "one-step"):
        edits = sum(row[way]["phoneme_edits"] for row in rows)
        n_phonemes = sum(row["n_phonemes"] for row in rows)
        assert edits / n_phonemes == pytest.approx(online.overall[way].per)


def test_the_report_shows_the_three_models_by_day(learnt):
    _, out = learnt
    page = (out / "report.html").read_text()
    section = page.partition('id="compared"')[2].partition("</section>")[0]
    rows = json.loads((out / "online.json").read_text())["by_trial"]
    for session in (*KNOWN, DRIFTED):
        of_day = [row for row in rows if row["session"] == session]
        cells = [str(len(of_day))]
        for way in ("one-step", DAILY, FROZEN):
            for errors, of in (("phoneme_edits", "n_phonemes"), ("word_edits", "n_words")):
                rate = sum(row[way][errors] for row in of_day) / sum(row[of] for row in of_day)
                cells.append(f"{100 * rate:.1f}")
        row = section.partition(f'<th scope="row">{session}</th>')[2].partition("</tr>")[0]
        assert re.findall("<td>(.*?)</td>", row) == cells
    figure = section.partition("<svg")[2].partition("</svg>")[0]
    for name in ("one-step", DAILY, FROZEN):
        assert f">{name}</text>" in figure
    assert "PER, %" in figure
    assert "WER, %" in figure


def test_a_report_without_other_models_has_no_comparison(participant, tmp_path):
    evaluate(participant.run, only(participant, KNOWN), "val", participant.lm, tmp_path / "out")
    assert 'id="compared"' not in (tmp_path / "out" / "report.html").read_text()


def test_a_trial_is_decoded_before_anything_is_learnt_from_it(participant):
    decoded = []

    class Way(Frozen):
        def model_of(self, session):
            decoded.append(session)
            return super().model_of(session)

        def learn_from(self, place, split, logits_PV):
            assert len(decoded) == len(learnt) + 1 or place.split == "train"
            learnt.append((split.session(place.index), place.split, place.index))
            alone = load_model(participant.run).logits(
                np.asarray(split.features(place.index), np.float32), KNOWN[0]
            )
            if split.session(place.index) == KNOWN[0]:
                np.testing.assert_allclose(logits_PV, alone, atol=1e-5)

    learnt: list = []
    data = open_packed(participant.data)
    logits = follow(Way(load_model(participant.run)), data, "val", ["train"])
    assert sorted(logits) == list(range(len(data.split("val"))))
    assert len(decoded) == len(data.split("val")) + len(data.split("train"))
    assert learnt == [
        (data.split("train").session(place.index), "train", place.index)
        for place in in_order(data, ["train"])
    ]


def test_trials_follow_each_other_as_they_were_recorded(participant):
    data = open_packed(participant.data)
    places = in_order(data, ["val", "train"])
    keys = [
        (split.session(place.index), split.block_N[place.index], split.trial_N[place.index])
        for place in places
        for split in [data.split(place.split)]
    ]
    assert keys == sorted(keys)
    assert Place("val", 0) in places
    assert len(places) == len(data.split("val")) + len(data.split("train"))


def test_the_first_trials_that_daily_labels_learn_from_are_not_scored(participant, tmp_path):
    _, online = evaluate_online(
        participant.run,
        only(participant, [DRIFTED]),
        "train",
        participant.lm,
        tmp_path / "out",
        "one-step",
        corrected=1.0,
        overrides=["confidence=1", "lr=0.005"],
    )
    assert online.left_out == 20
    assert online.overall["one-step"].n_trials == len(online.by_trial) - 20
    # All are corrected, although no decoded sentence is sure enough.
    assert online.overall["one-step"].per < 0.8 * online.overall[FROZEN].per
    assert online.last_quarter("one-step") == online.overall["one-step"].wer  # of one day


def test_nothing_is_learnt_from_a_doubtful_sentence(participant, tmp_path):
    _, online = evaluate_online(
        participant.run,
        only(participant, [DRIFTED]),
        "val",
        participant.lm,
        tmp_path / "out",
        "one-step",
        overrides=["confidence=1"],
    )
    for row in online.by_trial:
        assert row["one-step"] == row[FROZEN]


def day_of(participant, root, bare, most=None):
    """Session files of the drifted day, of whose trials those in `bare` have no label.

    They have `most` trials of each split; None for all.
    """
    for split in ("train", "val"):
        trials = list(open_packed(participant.data).trials(split, [DRIFTED]))[:most]
        for number in bare.get(split, ()):
            t = trials[number]
            trials[number] = Trial(t.features_TC, t.session, t.block, t.trial, None, None)
        write_session(root / DRIFTED / f"data_{split}.hdf5", trials)
    return root


def test_a_trial_without_a_label_is_not_judged(participant, tmp_path):
    data = day_of(participant, tmp_path / "raw", {"train": range(26, 32)}, most=32)
    given = (participant.run, data, "train", participant.lm, tmp_path / "out", "one-step")
    _, online = evaluate_online(*given, skip_bad=True)
    rows = online.by_trial
    assert [row["n_words"] is None for row in rows] == [False] * 26 + [True] * 6
    assert all(row["one-step"]["text"] for row in rows[26:])
    # Daily labels learn from the first twenty; of the other twelve only six can be scored.
    edits = sum(row["one-step"]["word_edits"] for row in rows[20:26])
    wer = edits / sum(row["n_words"] for row in rows[20:26])
    assert online.overall["one-step"].wer == pytest.approx(wer)
    assert online.skipped == ()


def test_a_split_without_labels_can_be_heard(participant, tmp_path):
    data = day_of(participant, tmp_path / "raw", {"train": range(60)})
    _, online = evaluate_online(
        participant.run, data, "val", participant.lm, tmp_path / "out", "one-step", learn_from=["train"],
        overrides=["lr=0.005"],
    )  # fmt: skip
    assert online.overall["one-step"].per < 0.8 * online.overall[FROZEN].per
    assert online.overall[DAILY].per == online.overall[FROZEN].per  # there are none


def test_bad_trials_are_left_out_when_asked(participant, tmp_path, capfd):
    """A validation trial must have a label."""
    data = day_of(participant, tmp_path / "raw", {"val": [3]})
    arguments = ["evaluate", participant.run, "--data", data, "--lm", participant.lm]
    arguments += ["--online", "one-step", "--out", tmp_path / "out"]
    assert cortext([*map(str, arguments)]) == 2
    assert "--skip-bad" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()
    assert cortext([*map(str, arguments), "--skip-bad"]) == 0
    shown = capfd.readouterr().out
    assert "left out as unusable: 1" in shown
    assert "trial_0003" in shown
    kept = json.loads((tmp_path / "out" / "online.json").read_text())
    assert len(kept["by_trial"]) == 19
    assert kept["skipped"][0]["trial"] == "trial_0003"
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    assert metrics["n_skipped"] == 1


def test_a_trial_that_is_too_short_for_the_model_is_left_out_when_asked(participant, tmp_path):
    model = load_model(participant.run)
    model.smoothing = Smoothing(smooth_kernel_std=4.0)
    run = copytree(participant.run, tmp_path / "run")
    save_model(model, run)
    trials = list(open_packed(participant.data).trials("train", [DRIFTED]))[:4]
    short = Trial(np.zeros((14, N_FEATURES), np.float32), DRIFTED, 0, 90, None, None)
    write_session(tmp_path / "raw" / DRIFTED / "data_train.hdf5", [*trials, short])
    given = (run, tmp_path / "raw", "train", participant.lm, tmp_path / "out", "one-step")
    with pytest.raises(DataError, match="trial 90: n_time_steps: 14 bins are too few"):
        evaluate_online(*given)
    _, online = evaluate_online(*given, skip_bad=True)
    assert len(online.by_trial) == 4
    assert [problem.trial for problem in online.skipped] == [f"{DRIFTED}/block 0/trial 90"]


def test_a_label_has_the_tokens_of_a_recorded_one(participant):
    split = open_packed(participant.data).split("val")
    for i in range(len(split)):
        found = label_of(split.sentence(i), split.conventions, None)
        np.testing.assert_array_equal(found, split.labels(i))
    assert label_of("", split.conventions, None) is None


def test_the_command_prints_the_three_ways(participant, tmp_path, capfd):
    recordings = open_packed(participant.data)
    for session, counts in ((KNOWN[1], {"train": 2, "val": 1}), (DRIFTED, {"train": 20, "val": 2})):
        for split, count in counts.items():
            trials = list(recordings.trials(split, [session]))[:count]
            write_session(tmp_path / "raw" / session / f"data_{split}.hdf5", trials)
    arguments = ["evaluate", participant.run, "--data", tmp_path / "raw", "--lm", participant.lm]
    arguments += ["--online", "replay", "--hear", "train", "--set", "steps=1"]
    assert cortext([*map(str, arguments), "--out", str(tmp_path / "out")]) == 0
    shown = capfd.readouterr().out
    for name in (FROZEN, DAILY, "replay"):
        assert name in shown
    assert json.loads((tmp_path / "out" / "online.json").read_text())["settings"]["steps"] == 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--hear", "train"], "--hear is given without --online; give a method, too"),
        (["--set", "lr=1"], "--set is given without --online; give a method, too"),
        (["--online", "one-step", "--fit"], "--fit does not go with --online; leave it out"),
        (["--online", "one-step", "--device", "cpu"], "--device does not go with --online"),
        (["--online", "nothing"], "unknown method 'nothing'"),
        (["--online", "one-step", "--hear", "test"], "test"),
    ],
)
def test_options_that_do_not_go_together_are_refused(participant, tmp_path, capfd, given, said):
    arguments = ["evaluate", participant.run, "--data", participant.data, "--lm", participant.lm]
    arguments = [*map(str, arguments), "--out", str(tmp_path / "out"), *given]
    assert cortext(arguments) == 2
    shown = capfd.readouterr().err
    assert said in shown
    assert "Traceback" not in shown
    assert not (tmp_path / "out").exists()
