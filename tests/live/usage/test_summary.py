"""The sentences that open the page of daily use, on logs made by hand."""

import json

import pytest

from cortext_live.usage.statistics import read_use
from cortext_live.usage.summary import summary


@pytest.fixture
def opening(tmp_path):
    """Writes utterances of one second each, given as day and what differs; returns the summary."""

    def read(*utterances):
        lines = []
        for number, (day, more) in enumerate(utterances):
            when = f"2026-11-{day:02d}T10:{number // 60:02d}:{number % 60:02d}+00:00"
            line = {"id": str(number), "when": when, "session": "s", "text": "i see you"}
            about = {name: more[name] for name in ("rating", "correction") if name in more}
            lines.append(line | {"duration_s": 1.0, "source": "feed"} | more)
            for name in about:
                del lines[-1][name]
            lines += [{"id": str(number), "when": when, name: about[name]} for name in about]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / "utterances.jsonl").write_text(text)
        return summary(read_use([tmp_path]))

    return read


def test_an_empty_log_is_one_sentence(opening):
    assert opening() == ["No utterance has been logged yet."]


def test_use_that_nobody_judged(opening):
    assert opening((1, {}), (1, {})) == [
        "2 sentences in 2 s of use. How many words were right is unknown: nobody rated or"
        " corrected a sentence.",
        "What goes wrong most is unknown: nobody rated or corrected a sentence.",
        "1 day of use: too few to tell whether it gets better or worse.",
    ]


def test_corrections_and_what_was_rated_right_give_the_words_that_are_right(opening):
    # 1 wrong word of 3 in the corrected sentence, 0 of 9 in those rated right
    much, wrong, _ = opening(
        (1, {"correction": "we see you"}), *[(1, {"rating": "right"})] * 3, (1, {"text": ""})
    )
    assert much == (
        "4 sentences in 5 s of use. In the 4 that a person corrected or rated right, about 92 of"
        " 100 words were right."
    )
    assert wrong == "What goes wrong most: a sentence had to be corrected (1 of 5 utterances)."


def test_ratings_alone_are_told_as_ratings(opening):
    much, wrong, _ = opening((1, {"rating": "wrong"}), (1, {"rating": "mostly right"}))
    assert much == "2 sentences in 2 s of use. 0 of 2 rated utterances were right."
    assert wrong == "What goes wrong most: a sentence was rated wrong (1 of 2 utterances)."


def test_a_model_that_failed_and_utterances_without_words_are_named(opening):
    lacking = {"degraded": "no memory"}
    assert "the large language model failed (2 of 3 ut" in opening(*[(1, lacking)] * 2, (1, {}))[1]
    noted = {"features_notes": ["channel 7 is flat"]}
    assert "a channel was bad, or values were far out (1 of 1 ut" in opening((1, noted))[1]
    assert "an utterance gave no words (1 of 1 utterance)" in opening((1, {"text": ""}))[1]
    assert opening((1, {"rating": "right"}))[1] == "The log records nothing that went wrong."


def rated(day, n_right, n=10):
    return [(day, {"rating": "right" if k < n_right else "wrong"}) for k in range(n)]


def test_days_are_compared_by_their_ratings(opening):
    # Wilson: 1 of 10 is 1.8 to 40.4 %, 9 of 10 is 59.6 to 98.2 %, 6 of 10 is 31.3 to 83.2 %
    better = opening(*rated(1, 1), *rated(2, 5), *rated(3, 9))[2]
    assert better == (
        "It gets better over the days: the share of utterances rated right rises from 10.0 % on"
        " the first day to 90.0 % on the last."
    )
    assert opening(*rated(1, 9), *rated(2, 5), *rated(3, 1))[2].startswith("It gets worse over")
    assert opening(*rated(1, 1), *rated(2, 5), *rated(3, 6))[2] == (
        "Over the days there is no clear change: the share of utterances rated right is 10.0 % on"
        " the first day and 60.0 % on the last."
    )


def test_without_ratings_days_are_compared_by_corrections(opening):
    def corrected(day, text):
        return [(day, {"correction": text})] * 10

    change = opening(*corrected(1, "we see you"), (2, {}), *corrected(3, "i see you"))[2]
    assert change == (
        "It gets better over the days: the word error rate against corrections falls from 33.3 %"
        " on the first day to 0.0 % on the last."
    )


def test_few_ratings_are_no_judgement(opening):
    assert opening(*rated(1, 9, 9), *rated(2, 5), *rated(3, 9, 9))[2] == (
        "There are too few ratings and corrections to tell whether it gets better or worse over"
        " the 3 days."
    )
