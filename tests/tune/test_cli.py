"""The command: what it prints and what it refuses, each in one line."""

import json
import sys

import pytest

from cortext.cli import run

BASE = ["tune", "training", "--config", "tiny"]


def arguments(packed, tmp_path, quick, *more: str) -> list[str]:
    settings = [part for override in quick for part in ("--set", override)]
    return [*BASE, "--data", str(packed), "--out", str(tmp_path / "search"), *settings, *more]


def test_the_comparison_is_printed_best_first_and_as_json(packed, tmp_path, quick, capsys):
    wanted = arguments(packed, tmp_path, quick, "--grid", "lr_max=0.001,0.02")
    assert run(wanted) == 0
    printed = capsys.readouterr()
    assert "trial 2 of 2, lr_max=0.02: val_per 0." in printed.err
    rows = [line for line in printed.out.splitlines() if line.startswith("│")]
    rates = [float(row.split("│")[3].removesuffix(" % ")) for row in rows]
    assert len(rows) == 2
    assert rates == sorted(rates)
    assert f"best run: {tmp_path / 'search' / 'trials' / '000'}" in printed.out
    assert run([*wanted, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [f"{100 * trial['metrics']['val_per']:.1f}" for trial in content["trials"]] == [
        f"{r:.1f}" for r in rates
    ]
    assert content["best"] == content["trials"][0]


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        ([], ["--grid, --random or --tpe"]),
        (["--grid", "seed=1", "--tpe", "lr_max=1:2"], ["one kind of search"]),
        (["--grid", "lr_mx=1,2"], ["unknown key lr_mx", "did you mean 'lr_max'"]),
        (["--grid", "seed=1:30"], ["seed=1:30 is a range"]),
        (["--grid", "seed=1,2", "--trials", "3"], ["number of trials"]),
        (["--random", "seed=1:x"], ["seed has the bound 'x'"]),
        (["--random", "seed=1:3", "--trials", "0"], ["--trials"]),
        (["--grid", "seed=1,2", "--metric", "wer"], ["best_metric is 'wer'", "val_wer"]),
        (["--grid", "seed=1,2", "--metric", "val_wer"], ["needs a language model", "--lm"]),
    ],
)
def test_what_cannot_be_is_one_line_and_nothing_is_written(
    packed, tmp_path, quick, capsys, more, parts
):
    assert run(arguments(packed, tmp_path, quick, *more)) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("cortext: ")
    assert printed.err.count("\n") == 1
    assert all(part in printed.err for part in parts), printed.err
    assert not (tmp_path / "search").exists()


@pytest.mark.parametrize("method", ["--grid", "--random", "--tpe"])
def test_a_search_without_optuna_is_refused_before_anything_is_written(
    packed, tmp_path, quick, capsys, monkeypatch, method
):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert run(arguments(packed, tmp_path, quick, method, "seed=1,9")) == 2
    assert "pip install '.[tune]'" in capsys.readouterr().err
    assert not (tmp_path / "search").exists()


def test_ray_without_ray_is_refused_before_anything_is_written(
    packed, tmp_path, quick, capsys, monkeypatch
):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run(arguments(packed, tmp_path, quick, "--grid", "seed=1,2", "--ray", "local")) == 2
    assert "pip install '.[ray]'" in capsys.readouterr().err
    assert not (tmp_path / "search").exists()
