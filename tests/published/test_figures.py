"""The release's figures: their numbers against the notebooks' arithmetic, in plain loops."""

from __future__ import annotations

import json
import pickle
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from refusals import complaint

from cortext.cli import run
from cortext.evaluation import figures
from cortext_published.figures import (
    all_ratings,
    copy_task_points,
    rated_days,
    read_published,
    use_days,
)
from cortext_published.t15_analyses import read_analyses
from published import copy_task, personal_use, write_pickle


def edit_distance(reference: list[str], decoded: list[str]) -> int:
    """Levenshtein's distance as in a textbook."""
    row = list(range(len(decoded) + 1))
    for i, true in enumerate(reference, 1):
        before, row[0] = row[0], i
        for j, found in enumerate(decoded, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (true != found))
    return row[-1]


def resampled(pairs: list[tuple[int, int]]) -> tuple[float, float]:
    """The notebook's interval of errors and lengths: percentiles of 10,000 resamples of trials."""
    generator = random.Random(1)
    rates = []
    for _ in range(10_000):
        drawn = generator.choices(pairs, k=len(pairs))
        rates.append(sum(errors for errors, _ in drawn) / sum(length for _, length in drawn))
    return tuple(np.percentile(rates, [2.5, 97.5]))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("release")
    rng = np.random.default_rng(0)
    words = "go home now we want to see my family and the good weather here today".split()
    cues = [" ".join(rng.choice(words, rng.integers(2, 9))) for _ in range(60)]
    content = copy_task(cues[:20], cues[20:], noise=1.7, wrong=range(0, 60, 3))
    return (
        write_pickle(folder / "t15_copyTask.pkl", content),
        write_pickle(folder / "t15_personalUse.pkl", personal_use()),
    )


def test_rates_and_intervals_are_those_of_the_notebook(files: tuple[Path, Path]) -> None:
    content = pickle.loads(files[0].read_bytes())
    trials = read_analyses(files[0])
    assert isinstance(trials, list)
    points = {(point.vocabulary, point.day): point.published for point in copy_task_points(trials)}
    groups: dict[tuple[int, int | None], list[int]] = {}
    for n, (size, day) in enumerate(
        zip(content["vocab_size"], content["post_implant_day"], strict=True)
    ):
        groups.setdefault((int(size), int(day)), []).append(n)
        groups.setdefault((int(size), None), []).append(n)
    assert set(points) == set(groups) == {
        (50, None), (50, 25), (125_000, None), (125_000, 27), (125_000, 32)
    }  # fmt: skip
    for key, numbers in groups.items():
        phonemes = []
        words = []
        for n in numbers:
            cue = content["cue_sentence_phonemes"][n]
            phonemes.append((edit_distance(cue, content["decoded_phonemes_raw"][n]), len(cue)))
            said = content["cue_sentence"][n].split()
            words.append((edit_distance(said, content["decoded_sentence"][n].split()), len(said)))
        rates = points[key]
        assert rates.n_trials == len(numbers)
        for pairs, rate, bounds in (
            (phonemes, rates.per, rates.per_ci95),
            (words, rates.wer, rates.wer_ci95),
        ):
            assert rate == sum(e for e, _ in pairs) / sum(length for _, length in pairs)
            # Two generators: quantiles of 10,000 resamples differ by less than a point.
            assert bounds == pytest.approx(resampled(pairs), abs=0.01)


def test_days_without_use_are_left_out_and_hours_add_up(files: tuple[Path, Path]) -> None:
    use = read_analyses(files[1])
    content = personal_use()
    hours = 0.0
    sentences = 0
    expected = []
    for day, seconds in content["total_use_time"].items():
        if seconds == 0:
            continue
        hours += seconds / 3600
        sentences += content["total_trial_count"][day]
        expected.append((day, hours, sentences))
    assert expected[-1] == (49, pytest.approx(7800 / 3600), 12)
    found = [(day.day, day.hours_so_far, day.sentences_so_far) for day in use_days(use)]  # type: ignore[arg-type]
    assert found == expected


def test_ratings_and_speed_of_each_day_are_those_of_the_notebook(
    files: tuple[Path, Path],
) -> None:
    use: Any = read_analyses(files[1])
    # Day 46 has each rating once; 47 two correct ones; 49 one incorrect without a speed.
    first, second, third = rated_days(use)
    assert (first.day, first.sentences, second.day, second.sentences, third.day) == (
        46, 7, 47, 2, 49
    )  # fmt: skip
    assert first.ratings == {
        "correct": 1, "mostly correct": 2, "incorrect": 1, "blank trial": 1, "not rated": 2
    }  # fmt: skip
    assert first.share("mostly correct") == 2 / 7
    assert first.words_per_minute == np.nanmean([30.5, 20.0, np.nan, 40.0])
    assert second.words_per_minute == 30
    assert third.words_per_minute == 0
    assert all_ratings(use) == {
        "correct": 3, "mostly correct": 2, "incorrect": 2, "blank trial": 1, "not rated": 2
    }  # fmt: skip


def test_the_page_and_its_pictures_are_written(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoded = tmp_path / "decoded.csv"
    trials: Any = read_analyses(files[0])
    lines = "".join(f"{n},{trial.cue}\n" for n, trial in enumerate(trials))
    decoded.write_text(f"id,text\n{lines}")
    out = tmp_path / "release.html"
    given = [*map(str, files), "--predictions", str(decoded), "--out", str(out)]
    assert run(["report", "release", *given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [point["decoded_wer"] for point in found["copy_task"]] == [0] * 5
    assert found["use"][-1]["sentences_so_far"] == 12
    pictures = [tmp_path / f"release-{name}.png" for name in ("errors", "use", "ratings", "days")]
    assert found["pictures"] == [str(path) for path in pictures]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)
    page = out.read_text()
    assert page.count("<svg") == 4
    assert "decoded by cortext" in page
    assert "2.2 hours and 12 sentences on 3 days" in page
    assert not re.search(r'(src|href)="(?!#)', page)  # nothing beside the page is needed


@pytest.mark.parametrize("number", [0, 1])
def test_one_file_is_enough(files: tuple[Path, Path], number: int, tmp_path: Path) -> None:
    out = tmp_path / "release.html"
    assert run(["report", "release", str(files[number]), "--out", str(out)]) == 0
    page = out.read_text()
    assert ("Copy task" in page) == (number == 0)
    assert ("Personal use" in page) == (number == 1)


def test_files_that_do_not_belong_together_are_refused(
    files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "few.csv").write_text("id,text\n0,go home\n")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    copy, use = files
    for arguments, says in (
        ((copy, copy), "is a second file of the same kind"),
        ((use, "--predictions", tmp_path / "few.csv"), "belongs to a copy task, and none was"),
        ((copy, "--predictions", tmp_path / "few.csv"), "has 1 sentences, and none for trial 1"),
        ((copy, "--predictions", tmp_path / "other.csv"), "no table `id,text`"),
        ((copy, "--predictions", tmp_path / "none.csv"), "No such file"),
        ((tmp_path / "other.csv",), "is damaged at byte|or is no pickle"),
    ):
        line = complaint(capsys, "report", "release", *arguments, "--out", tmp_path / "r.html")
        assert re.search(says, line), line
    assert not (tmp_path / "r.html").exists()


def test_a_picture_has_the_colours_of_the_page(tmp_path: Path) -> None:
    figure = Figure(figsize=(2, 1))
    axis = figure.subplots()
    sides = (np.array([0.0]), np.array([1.0]))
    figures.stacked_bars(axis, sides, [("a", np.array([1.0]), (figures.BLUE, 0.5))])
    axis.legend()
    axis.plot([0, 1], [0, 1], color=figures.ORANGE, marker="o", markerfacecolor=figures.PAPER)
    figures.save_picture(figure, tmp_path / "a.png")
    (bar,) = axis.collections
    np.testing.assert_allclose(bar.get_facecolor(), [[0x1F / 255, 0x6F / 255, 0xAE / 255, 0.5]])
    (handle,) = axis.get_legend().get_patches()
    np.testing.assert_allclose(handle.get_facecolor(), bar.get_facecolor()[0])
    assert axis.lines[0].get_markerfacecolor()[0] == "#ffffff"


def test_published_numbers_are_read_in_any_order(files: tuple[Path, Path]) -> None:
    one, other = read_published(files), read_published(files[::-1])
    assert (one.points, one.use_days) == (other.points, other.use_days)
