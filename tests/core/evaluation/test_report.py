import re
from html.parser import HTMLParser

import numpy as np
import pytest

from cortext.evaluation import evaluate, figures, pictures, report
from cortext.evaluation.scores import confusion, rates
from cortext.text.inventory import RELEASE


class Page(HTMLParser):
    """Collects what a page would load, and whether its elements are closed."""

    VOID = frozenset({"meta", "br", "img", "link"})

    def __init__(self):
        super().__init__()
        self.loads = []
        self.open = []
        self.wrong = []

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in (
                "src",
                "href",
                "xlink:href",
                "srcset",
                "data",
                "action",
            ) and not value.startswith(("#", "data:")):
                self.loads.append((tag, name, value))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


@pytest.fixture(scope="module")
def page(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "eval"
    run = tiny.run
    (run / "metrics.jsonl").write_text(
        '{"step": 10, "train_loss": 3.0}\n'
        '{"step": 20, "train_loss": 2.0, "val_loss": 2.5, "val_per": 0.5, "val_wer": null}\n'
    )
    evaluate(run, tiny.data, "val", tiny.lm, out)
    (run / "metrics.jsonl").unlink()
    return (out / "report.html").read_text()


def test_the_report_loads_nothing_from_outside(page):
    parser = Page()
    parser.feed(page)
    assert parser.loads == []
    assert "http://" not in page
    assert "https://" not in page
    assert "@import" not in page
    assert not re.findall(r"url\((?!#)", page)
    assert "<script" not in page


def test_the_report_is_well_formed_and_small(page):
    parser = Page()
    parser.feed(page)
    assert parser.wrong == []
    assert parser.open == []
    assert len(page) < 3_000_000


def test_the_report_follows_the_readers_colour_scheme(page):
    assert "prefers-color-scheme: dark" in page
    for placeholder in (
        figures.INK,
        figures.MUTED,
        figures.RULE,
        figures.BLUE,
        figures.ORANGE,
        figures.PAPER,
    ):
        assert placeholder not in page


def test_the_report_has_every_part(page):
    for part in ("days", "training", "phonemes", "confidence", "trials", "sentences", "provenance"):
        assert f'<section id="{part}">' in page
    assert page.count("<svg") == 4 + 6
    assert "95 % interval" in page


def test_sections_fold_without_a_script_and_links_at_the_top_open_them(page):
    folds = re.findall(r'<details class="fold"( open)?>\n<summary><h2>([^<]+)', page)
    assert [heading for is_open, heading in folds if is_open] == ["Errors", "By recording day"]
    links = re.findall(r'<a href="#([^"]+)">', page)
    # A browser opens the fold that holds the target of a link.
    inside = re.findall(r'</summary>\n<section id="([^"]+)">', page)
    assert set(links) == set(inside)
    assert "details::details-content { content-visibility: visible" in page  # on paper


def test_the_report_opens_with_three_sentences(page):
    opening = re.search(r'<ul class="findings">(.*?)</ul>', page, re.DOTALL)[1]
    assert opening.count("<li>") == 3
    assert page.index('class="findings"') < page.index("<nav") < page.index("<details")


def test_ids_in_one_page_differ(page):
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_prompts_are_escaped(result):
    example = report._example(result(1, "<b>bold</b> move", "bold move"))
    assert example["reference"] == [("bboldb", False), ("move", True)]


def test_labels_of_figures_are_escaped():
    curves = [figures.Curve("train", [1, 2], [3.0, 2.0])]
    svg = figures.to_svg(figures.learning_curves(curves, curves), "curves", r'a "day" \1 <b>')
    assert r'aria-label="a &quot;day&quot; \1 &lt;b&gt;"' in svg


def test_errors_are_marked_word_by_word(result):
    example = report._example(result(1, "the cat sat", "a cat sat down"))
    assert example["reference"] == [("the", False), ("cat", True), ("sat", True)]
    assert [right for _, right in example["decoded"]] == [False, True, True, False]
    assert example["wer"] == pytest.approx(2 / 3)


def test_numbers_read_as_a_person_writes_them():
    assert report.percent(0.12345) == "12.3"
    assert report.percent(None) == "–"
    assert report.interval((0.1, 0.139)) == "10.0–13.9"
    assert report.number(12345) == "12\u2009345"
    assert report.number(59.66) == "59.7"


def test_chosen_trials_are_half_right_and_half_wrong_from_best_to_worst(result):
    right = [result(n, "a b c d", "a b c d") for n in range(10)]
    wrong = [result(10 + n, "a b c d", "a b c d" + " e" * (n + 1)) for n in range(9)]
    chosen = pictures.choose([*wrong, *right], 6)
    assert [trial.id for trial in chosen] == [0, 4, 9, 10, 14, 18]


def test_trials_are_chosen_from_what_there_is(result):
    right = [result(n, "a b", "a b") for n in range(2)]
    wrong = [result(2 + n, "a b", "a c") for n in range(9)]
    assert len(pictures.choose([*right, *wrong], 6)) == 6
    assert [trial.id for trial in pictures.choose(right, 6)] == [0, 1]
    assert pictures.choose([], 6) == []


def test_frames_are_placed_where_their_patch_lies_in_the_recording(tiny):
    from cortext.models import load_model

    # 9 smoothing taps cut 4 bins; a patch of 14 bins is centred 7 bins later: 11 bins of 20 ms;
    # strides of 4 bins
    start_s, frame_s = pictures.frame_times(load_model(tiny.run))
    assert (start_s, frame_s) == (pytest.approx(0.22), pytest.approx(0.08))


def test_days_stand_at_their_distance_in_time():
    names = ["t15.2023.08.11", "t15.2023.08.13", "t15.2023.09.01"]
    positions, label, ticks = report._day_axis(names, {})
    assert list(positions.values()) == [0, 2, 21]
    assert label == "days since 2023-08-11"
    assert ticks is None
    assert report._day_axis(names, dict.fromkeys(names, 40))[1] == "days after implantation"
    positions, label, ticks = report._day_axis(["one", "two"], {})
    assert (list(positions.values()), label, ticks) == ([0, 1], "session", {0: "one", 1: "two"})


def test_the_confusion_figure_shows_shares_of_the_row(result):
    trials = [result(0, "x", None, "DH DH DH DH", "DH DH DH D")]
    figure = figures.confusion_matrix(confusion(trials))
    image = np.asarray(figure.axes[0].images[0].get_array())
    row, column = 25, 36  # DH and D, of 15 vowels, 4 approximants, 3 nasals, 9 fricatives, ...
    assert image[row, row, 3] == pytest.approx(np.sqrt(0.75))
    assert image[row, column, 3] == 1  # a quarter of the row is fully orange
    assert (image[..., 3] > 0).sum() == 2


def test_the_day_figure_shows_rates_and_intervals(result):
    trials = [result(n, "a b", "a c" if n else "a b", "AA", "AA" if n else "B") for n in range(4)]
    measured = rates(trials)
    figure = figures.rates_by_day([figures.DailyRates("all", [3.0], [measured])], "days")
    wer = figure.axes[1]
    assert wer.get_title(loc="left") == "WER, %"
    assert wer.lines[0].get_ydata()[0] == pytest.approx(100 * measured.wer)


def test_broken_or_missing_learning_curves_are_left_out(tmp_path):
    assert report._curves(tmp_path / "metrics.jsonl", RELEASE) is None
    (tmp_path / "metrics.jsonl").write_text("not json\n")
    assert report._curves(tmp_path / "metrics.jsonl", RELEASE) is None
