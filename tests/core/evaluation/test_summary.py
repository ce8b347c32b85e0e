"""The sentences that open the evaluation report, on cases made by hand."""

from types import SimpleNamespace

import pytest

from cortext.evaluation.scores import Rates, confusion, group_rates, rates
from cortext.evaluation.summary import (
    SEEN,
    UNSEEN,
    Third,
    compared,
    explain,
    how_right,
    over_days,
    summary,
    vocabulary,
)

DAYS = [f"t15.2023.08.{day}" for day in range(11, 17)]
POSITIONS = {name: float(number) for number, name in enumerate(DAYS)}
RIGHT, WRONG = "i see you", "we see you"


def opening(trials, split="val"):
    corpora = [trial.corpus or "" for trial in trials]
    metrics = SimpleNamespace(
        **vars(rates(trials)), split=split, per_corpus=group_rates(trials, corpora)
    )
    return summary(metrics, trials, confusion(trials), POSITIONS)


def measured(wer, interval, n_words=1000, **edits):
    counts = {"substitutions": 0, "insertions": 0, "deletions": 0, "reference_length": n_words}
    return Rates(9, n_words, 0, None, None, wer, interval, None, None, {"word": counts | edits})


@pytest.fixture
def days(result):
    """Makes `n` trials of a day, `n_wrong` of them with one wrong word of three."""

    def make(session, n_wrong, n=10, corpus=None):
        texts = [WRONG] * n_wrong + [RIGHT] * (n - n_wrong)
        return [result(k, RIGHT, text, None, (), session, corpus) for k, text in enumerate(texts)]

    return make


@pytest.mark.parametrize(
    ("rates", "sentence"),
    [
        (
            measured(0.069, (0.0545, 0.0845), substitutions=69),
            "About 93 of 100 words are right (95 % interval 92 to 95).",
        ),
        (
            measured(0.004, (0.001, 0.008), deletions=4),
            "About 99.6 of 100 words are right (95 % interval 99.2 to 99.9).",
        ),
        (measured(0.0, (0.0, 0.0)), "All 1,000 words are right."),
        (
            measured(1.2, (1.1, 1.4), 10, insertions=2, substitutions=10),
            "On balance no word is right: 12 errors in 10 words.",
        ),
        (measured(0.5, None, 2, insertions=1), "About 50 of 100 words are right."),
    ],
)
def test_the_words_that_are_right_are_reported_as_of_a_hundred(rates, sentence):
    assert how_right(rates) == sentence


def test_three_sentences_open_the_report(days):
    trials = [*days(DAYS[0], 2), *days(DAYS[1], 0)]
    right, wrong, change = opening(trials)
    # 2 of 60 words
    assert right.startswith("About 97 of 100 words are right (95 % interval ")
    assert wrong == (
        "The most frequent error is a wrong word in place of the right one (2 of 2 word errors),"
        " most often “i” decoded as “we” (2 times)."
    )
    assert change == "2 recording days are too few to tell whether it gets better or worse."


def test_missing_and_added_words_are_named(result):
    missing = [result(0, "i see you", "see you"), result(1, "i see you", "you")]
    assert opening(missing)[1] == (
        "The most frequent error is a missing word (3 of 3 word errors), most often “i” (2 times)."
    )
    added = [result(0, "i see you", "i see you too")]
    assert opening(added)[1] == (
        "The most frequent error is an added word (1 of 1 word error), for example “too”."
    )


def test_all_words_right_names_the_phonemes_that_the_language_model_put_right(result):
    trials = [result(0, RIGHT, RIGHT, "AY SIL S IY SIL", "AY SIL Z IY SIL")]
    assert opening(trials)[:2] == [
        "All 3 words are right.",
        "No word is wrong. The most frequent error before the language model: the phoneme S is"
        " decoded as the phoneme Z (1 time, 100 % of its occurrences).",
    ]


def test_everything_wrong_is_said(result):
    right, wrong, _ = opening([result(0, "yes", "no")])
    assert right == "On balance no word is right: 1 error in 1 word."
    assert "“yes” decoded as “no”" in wrong


def test_without_a_language_model_phonemes_are_counted(result):
    trials = [result(0, "x", None, "K AE T SIL", "K AE T"), result(1, "y", None, "T SIL", "T SIL")]
    right, wrong, change = opening(trials)
    assert right.startswith("About 83 of 100 phonemes are right (95 % interval ")
    assert right.endswith("). Words were not decoded: there was no language model.")
    assert wrong == (
        "The most frequent error: the silence after a word is missing"
        " (1 time, 50 % of its occurrences)."
    )
    assert change == (
        "All labelled trials are of one recording day: a change over the days cannot be seen."
    )


def test_without_labels_one_sentence_says_so(result):
    assert opening([result(0, None, "i see you")], "test") == [
        "How many words are right is unknown: the test split has no labels to compare with."
    ]


def test_a_corpus_with_more_errors_than_all_is_named(days):
    trials = [*days(DAYS[0], 10, corpus="Switchboard"), *days(DAYS[0], 0, 30, corpus="grammar")]
    assert opening(trials)[1].endswith(" Errors are more frequent in the corpus Switchboard.")


def test_better_and_worse_need_intervals_apart(days):
    falling = [
        trial for day, n in zip(DAYS, (10, 10, 5, 5, 0, 0), strict=True) for trial in days(day, n)
    ]
    # one word of three in the first two days
    assert over_days(falling, POSITIONS) == (
        "It gets better over the days: the word error rate falls from 33.3 % on the first 2 days"
        " to 0.0 % on the last 2."
    )
    turned = {name: -place for name, place in POSITIONS.items()}
    assert over_days(falling, turned).startswith("It gets worse over the days: the word error rate")
    level = [
        trial for day, n in zip(DAYS, (4, 5, 0, 9, 5, 5), strict=True) for trial in days(day, n)
    ]
    assert over_days(level, POSITIONS) == (
        "Over the days there is no clear change: the word error rate is 15.0 % on the first 2 days"
        " and 16.7 % on the last 2."
    )


def test_too_few_trials_are_no_judgement(days):
    trials = [trial for day in DAYS[:3] for trial in days(day, 0, 9)]
    assert over_days(trials, POSITIONS) == (
        "There are too few trials to tell whether it gets better or worse over the 3 days."
    )


def test_fifty_words_at_the_beginning_are_not_compared_with_open_sentences_at_the_end(days):
    easy = days(DAYS[0], 0, 20, "50-Word")
    open_ = [trial for day in DAYS[1:4] for trial in days(day, 5, 10, "Switchboard")]
    assert over_days([*easy, *open_], POSITIONS) == (
        "Over the days there is no clear change: the word error rate (open vocabulary) is 16.7 %"
        " on the first day and 16.7 % on the last."
    )


def test_a_share_that_rises_is_better():
    low, high = Third(1, 0.2, (0.1, 0.3)), Third(1, 0.8, (0.7, 0.9))
    assert compared(low, high, "share", higher_is_better=True).startswith("It gets better")
    assert compared(low, high, "rate").startswith("It gets worse")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("50-Word", "50 words"),
        ("Switchboard", "telephone"),
        ("grammar", "templates"),
        ("handwritten", "written one by one"),
        (SEEN, "occurs in the training data"),
        (UNSEEN, "does not occur"),
        ("ward-2", "as named in the session files"),
    ],
)
def test_each_corpus_is_explained(name, words):
    assert words in explain(name)


def test_fifty_words_are_apart_from_the_open_vocabulary():
    kinds = [
        vocabulary(name) for name in ("50-Word", "50-word", "Switchboard", "handwritten", None)
    ]
    assert kinds == ["50-word", "50-word", "open vocabulary", "open vocabulary", "all sentences"]
