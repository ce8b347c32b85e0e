import pytest

from cortext.evaluation import error_rate
from cortext.evaluation.scores import (
    confusion,
    group_rates,
    out_of_vocabulary,
    rates,
    split_by_seen,
    words_per_minute,
)
from cortext.text.inventory import LM, RELEASE, SIL


@pytest.fixture
def trials(result):
    return [
        # words: "the" replaced, one inserted; phonemes: one replaced
        result(0, "The cat!", "a cat sat", "DH AH SIL", "D AH SIL", corpus="50-Word"),
        # words: "mat" deleted; phonemes: one deleted, one inserted
        result(
            1,
            "on the mat",
            "on the",
            "AA N SIL",
            "N SIL T",
            session="t15.2023.08.13",
            corpus="Switchboard",
        ),
        result(
            2,
            "yes",
            "yes",
            "Y EH S SIL",
            "Y EH S SIL",
            session="t15.2023.08.13",
            corpus="Switchboard",
        ),
    ]


def test_rates_pool_edits_of_all_trials_over_all_references(trials):
    measured = rates(trials)
    assert measured.wer == pytest.approx(3 / 6)
    assert measured.per == pytest.approx(3 / 10)
    # characters: "the cat" -> "a cat sat" 7, "on the mat" -> "on the" 4, of 7 + 10 + 3
    assert measured.cer == pytest.approx(
        error_rate(["the cat", "on the mat", "yes"], ["a cat sat", "on the", "yes"], "char").rate
    )
    assert measured.edits["word"] == {
        "substitutions": 1,
        "insertions": 1,
        "deletions": 1,
        "reference_length": 6,
    }
    assert measured.edits["phoneme"] == {
        "substitutions": 1,
        "insertions": 1,
        "deletions": 1,
        "reference_length": 10,
    }
    assert (measured.n_trials, measured.n_words, measured.n_phonemes) == (3, 6, 10)


def test_intervals_hold_the_rate_and_come_from_resampled_trials(trials):
    low, high = rates(trials).wer_ci95
    # the extremes that resampling can give: only "yes", only "the cat"
    assert 0 <= low <= 0.5 <= high <= 1.0
    assert rates(trials, seed=1).per == rates(trials).per


def test_rates_are_none_without_labels_or_search(result):
    measured = rates([result(0, text="yes"), result(1)])
    assert (measured.per, measured.wer, measured.cer, measured.wer_ci95) == (None, None, None, None)
    assert measured.n_trials == 2
    assert rates([result(0, "yes", None, "Y SIL", "Y SIL")]).wer is None
    assert rates([result(0, "yes", None, "Y SIL", "Y SIL")]).per == 0


def test_groups_are_measured_apart_in_order_of_appearance(trials):
    by_day = group_rates(trials, [trial.session for trial in trials])
    assert list(by_day) == ["t15.2023.08.11", "t15.2023.08.13"]
    assert by_day["t15.2023.08.11"].wer == pytest.approx(2 / 2)
    assert by_day["t15.2023.08.13"].wer == pytest.approx(1 / 4)


def test_seen_sentences_are_found_by_their_normalised_text(trials):
    seen, unseen = split_by_seen(trials, {"the cat"})
    assert [trial.id for trial in seen] == [0]
    assert [trial.id for trial in unseen] == [1, 2]


def test_words_per_minute_count_prompted_words_over_recorded_time(result):
    # 4 words in 3,000 bins of 20 ms, which is a minute
    assert words_per_minute(
        [result(0, "a b", n_bins=1000), result(1, "c d", n_bins=2000)]
    ) == pytest.approx(4)
    assert words_per_minute([result(0)]) is None


def test_words_that_the_search_cannot_write_are_counted(trials):
    assert dict(out_of_vocabulary(trials, {"the", "on", "yes"})) == {"cat": 1, "mat": 1}


def test_confusion_counts_rows_of_references_and_what_was_inserted_and_deleted(trials):
    matrix = confusion(trials)
    at = {symbol: number for number, symbol in enumerate(matrix.symbols)}
    assert matrix.counts_RH.shape == (41, 41)
    assert matrix.counts_RH[at["DH"], at["D"]] == 1
    assert matrix.counts_RH[at["AA"], 40] == 1
    assert matrix.counts_RH[40, at["T"]] == 1
    assert matrix.counts_RH[at[SIL], at[SIL]] == 3
    assert matrix.counts_RH[:40].sum() == 10
    assert set(matrix.top(10)) == {("DH", "D", 1, 1.0), ("AA", None, 1, 1.0), (None, "T", 1, 1.0)}


def test_confusion_is_none_without_labels(result):
    assert confusion([result(0)]) is None


@pytest.mark.parametrize("inventory", [RELEASE, LM])
def test_published_tokens_stand_in_the_order_of_published_reports(result, inventory):
    matrix = confusion([result(0, "x", None, "AA SIL", "AA SIL")], inventory)
    assert " ".join(matrix.symbols) == (
        "IY IH EH AE AA AO AH ER UH UW EY AY OY OW AW Y W R L M N NG F V TH DH S Z SH ZH HH CH JH"
        " P B T D K G SIL"
    )
