"""Distances of day layers in the drift report: of a run, and of a model of a chain."""

import contextlib
import io
import json
import shutil

import pytest
from day_layers import DISTANCES, OLD, learnt_of_three_days, write_chain, write_model
from drift_log import session, write_log
from refusals import complaint

from cortext.cli import run
from cortext_live.recalibration.chain import copy_run, model_folder
from cortext_live.usage.drift.report import has_day_layers, layer_distances

OVER = "2026-01-04T12:00:00+00:00"


def told(log, *options: object):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(["report", "drift", str(log), "--json", *map(str, options)]) == 0
    return json.loads(out.getvalue())


def distances(result):
    return [day["day_layer_distance"] for day in result["days"]]


@pytest.fixture
def log(tmp_path):
    return write_log(tmp_path / "log", features=False, model="1-abcd")


def test_distance_is_that_of_frobenius_in_the_order_of_time(tmp_path):
    """Weights that differ by 3 and 4 in two places are 5 apart; biases by 2 in one place 2."""
    moves = {1: [(0, 0, 3.0), (1, 0, 4.0)], 0: [(5, None, -2.0)]}
    write_model(tmp_path, [session(1), session(0)], moves)
    assert layer_distances(tmp_path) == {session(1): pytest.approx((5, 2))}


def test_run_without_a_model_or_day_layers_is_one_line(tmp_path, log, capsys):
    empty = tmp_path / "empty"
    assert "model.json" in complaint(capsys, "report", "drift", log, "--run", empty)
    bare = write_model(tmp_path / "bare", OLD, day_layer="none")
    assert "no day layers" in complaint(capsys, "report", "drift", log, "--run", bare)
    assert [has_day_layers(each) for each in (empty, bare)] == [False, False]
    assert has_day_layers(write_model(tmp_path / "run", OLD))


def test_days_of_a_log_have_the_distances_of_the_model_that_was_promoted(tmp_path, log):
    result = told(log, "--chain", write_chain(tmp_path / "chain", learnt_of_three_days))
    assert distances(result) == DISTANCES
    assert not any("day layers" in note for note in result["notes"])


def test_provisional_model_counts_when_its_time_is_over_but_not_when_it_was_rejected(tmp_path, log):
    def speak(chain):
        chain.add("provisional", model=1, until=OVER)

    def reject(chain):
        speak(chain)
        chain.add("rejected", model=1, why="worse")

    spoke = told(
        log, "--chain", write_chain(tmp_path / "spoke", learnt_of_three_days, decide=speak)
    )
    assert distances(spoke) == DISTANCES
    worse = told(
        log, "--chain", write_chain(tmp_path / "worse", learnt_of_three_days, decide=reject)
    )
    assert distances(worse) == [None] * 5
    why = "left out: distances of day layers, because the model knows none of these days"
    assert why in worse["notes"]


def test_run_goes_before_the_chain(tmp_path, log):
    """The run knows the same days, and its layers do not differ."""
    same = write_model(tmp_path / "same", [session(n) for n in range(5)])
    chain = write_chain(tmp_path / "chain", learnt_of_three_days)
    still = {"weight": 0, "bias": 0}
    assert distances(told(log, "--chain", chain, "--run", same)) == [None, *[still] * 4]


def damage(model):
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")


@pytest.mark.parametrize("harm", [damage, shutil.rmtree])
def test_damaged_or_missing_model_leaves_only_the_distances_out(tmp_path, log, harm):
    chain = write_chain(tmp_path / "chain", learnt_of_three_days)
    before = told(log, "--chain", chain)
    harm(model_folder(chain, 1))
    after = told(log, "--chain", chain)
    note = "left out: distances of day layers, because model 1 of the chain is damaged or missing"
    assert after["notes"] == [*before["notes"], note]
    assert distances(after) == [None] * 5
    assert [day["use"] for day in after["days"]] == [day["use"] for day in before["days"]]


@pytest.mark.parametrize(
    ("days", "day_layer", "why"),
    [
        (OLD, "none", "the model has no day layers"),
        (OLD, "softsign", "the model knows none of these days"),
        (OLD[:1], "softsign", "the model knows one day alone"),
    ],
)
def test_model_without_layers_of_these_days_leaves_only_the_distances_out(
    tmp_path, log, days, day_layer, why
):
    base = write_model(tmp_path / "bare", days, day_layer=day_layer)
    chain = write_chain(tmp_path / "chain", lambda made: copy_run(base, made), base)
    result = told(log, "--chain", chain)
    assert f"left out: distances of day layers, because {why}" in result["notes"]
    assert distances(result) == [None] * 5


@pytest.mark.parametrize("content", [None, b"", b"no entry\n"])
def test_damaged_or_missing_chain_is_one_line_or_left_out(tmp_path, log, capsys, content):
    chain = write_chain(tmp_path / "chain", learnt_of_three_days)
    path = chain / "chain.jsonl"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    arguments = "report", "drift", log, "--chain", chain
    assert str(path) in complaint(capsys, *arguments)
    result = told(log, "--chain", chain, "--skip-bad")
    assert any(f"left out: the chain {chain}" in note for note in result["notes"])
    assert distances(result) == [None] * 5


def test_table_has_the_distance(tmp_path, log, capsys):
    chain = write_chain(tmp_path / "chain", learnt_of_three_days)
    assert run(["report", "drift", str(log), "--chain", str(chain)]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [line.split("│")[-3].strip() for line in lines if line.startswith("│")]
    assert found == ["-", "5.00", "10.00", "-", "-"]
