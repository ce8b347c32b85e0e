import json

import jiwer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortext.errors import TextError
from cortext.text import EditCounts, align, confusion, edit_counts, error_rate
from cortext.text.language import Language, get_language

sentences = st.lists(
    st.sampled_from(["a", "b", "ab", "abc", "it's", "well-off"]), min_size=1, max_size=8
).map(" ".join)
hypotheses = st.lists(st.sampled_from(["a", "b", "ab", "abd", "its", "well-off"]), max_size=8).map(
    " ".join
)
pairs = st.lists(st.tuples(sentences, hypotheses), min_size=1, max_size=6)


def slow_distance(left, right):
    """Levenshtein's recurrence, cell by cell."""
    table = np.zeros((len(left) + 1, len(right) + 1), dtype=int)
    table[:, 0], table[0, :] = range(len(left) + 1), range(len(right) + 1)
    for i, a in enumerate(left):
        for j, b in enumerate(right):
            table[i + 1, j + 1] = min(
                table[i, j] + (a != b), table[i, j + 1] + 1, table[i + 1, j] + 1
            )
    return table[-1, -1]


@settings(max_examples=50)
@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(0, 4), max_size=12))
def test_edits_are_as_few_as_possible_and_balance_the_lengths(reference, hypothesis):
    counts = edit_counts(np.array(reference, dtype=np.int64), hypothesis)
    assert counts.errors == slow_distance(reference, hypothesis)
    assert len(reference) + counts.insertions - counts.deletions == len(hypothesis)
    assert counts.reference_length == len(reference)


@settings(max_examples=40)
@given(pairs)
def test_word_error_rate_and_counts_agree_with_jiwer(trials):
    references, found = map(list, zip(*trials, strict=True))
    theirs, ours = (
        jiwer.process_words(references, found),
        error_rate(references, found, "word", n_boot=0),
    )
    assert ours.rate == pytest.approx(theirs.wer)
    assert ours.counts == EditCounts(
        theirs.substitutions, theirs.insertions, theirs.deletions, sum(map(len, theirs.references))
    )


@settings(max_examples=40)
@given(pairs)
def test_character_error_rate_and_counts_agree_with_jiwer_blanks_included(trials):
    references, found = map(list, zip(*trials, strict=True))
    theirs, ours = (
        jiwer.process_characters(references, found),
        error_rate(references, found, "char", n_boot=0),
    )
    assert ours.rate == pytest.approx(theirs.cer)
    assert ours.counts == EditCounts(
        theirs.substitutions, theirs.insertions, theirs.deletions, sum(map(len, references))
    )


def test_sentences_are_normalised_before_they_are_compared():
    assert error_rate(["Wait - what?!"], ["wait what"]).rate == 0.0


def test_rate_is_pooled_over_trials_not_averaged():
    result = error_rate(
        [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2]], [[1, 2, 3, 4, 5, 6, 7, 8], [9, 2]], "phoneme"
    )
    assert result.rate == pytest.approx(1 / 10)
    assert result.counts == EditCounts(1, 0, 0, 10)
    assert result.n_trials == 2


def test_phonemes_may_be_symbols():
    assert error_rate(
        [["K", "AE", "T", "SIL"]], [["K", "AH", "SIL"]], "phoneme"
    ).rate == pytest.approx(2 / 4)


def test_empty_hypothesis_deletes_everything_and_the_rate_may_exceed_one():
    assert error_rate(["a b c"], [""]).counts == EditCounts(0, 0, 3, 3)
    assert error_rate(["a"], ["b c d"]).rate == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("references", "found", "insertions"), [([], [], 0), ([""], [""], 0), (["?"], ["a b"], 2)]
)
def test_rate_and_interval_are_none_where_there_is_no_reference(references, found, insertions):
    result = error_rate(references, found)
    assert (result.rate, result.low, result.high) == (None, None, None)
    assert result.counts == EditCounts(0, insertions, 0, 0)
    assert result.n_trials == len(references)


def test_interval_is_that_of_the_normal_approximation_for_many_equal_trials():
    generator, n_trials, length = np.random.default_rng(3), 3000, 10
    wrong = generator.binomial(length, 0.2, n_trials)
    references = [[0] * length] * n_trials
    found = [[1] * k + [0] * (length - k) for k in wrong]
    result = error_rate(references, found, "phoneme", n_boot=2000)
    half = 1.96 * np.std(wrong / length) / np.sqrt(n_trials)
    assert result.low == pytest.approx(result.rate - half, abs=0.1 * half)
    assert result.high == pytest.approx(result.rate + half, abs=0.1 * half)


def test_interval_resamples_whole_trials():
    # Two trials, one all wrong: a resample is 0, 1/2 or 1, so the 95 % interval is the whole range.
    result = error_rate(["a b", "c d"], ["a b", "x y"])
    assert (result.low, result.rate, result.high) == (0.0, 0.5, 1.0)


def test_interval_depends_on_the_seed_and_on_nothing_else():
    references, found = ["a b c", "d e", "f g h i"] * 7, ["a x c", "d", "f g h i"] * 7
    assert error_rate(references, found, seed=1) == error_rate(references, found, seed=1)
    assert error_rate(references, found, seed=1).low != error_rate(references, found, seed=2).low
    assert error_rate(references, found, n_boot=0).low is None


def test_wider_confidence_gives_a_wider_interval():
    references, found = ["a b c", "d e", "f g h i"] * 7, ["a x c", "d", "f g h i"] * 7
    narrow, wide = (error_rate(references, found, confidence=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


def test_unequal_numbers_of_trials_are_an_error():
    with pytest.raises(TextError, match="2 references but 1 hypotheses"):
        error_rate(["a", "b"], ["a"])


def test_unknown_unit_is_an_error():
    with pytest.raises(TextError, match="unknown unit 'syllable'"):
        error_rate(["a"], ["a"], "syllable")


def test_alignment_pairs_units_and_marks_what_is_missing_with_none():
    assert align(["K", "AE", "T", "S"], ["K", "AH", "T"]) == [
        ("K", "K"),
        ("AE", "AH"),
        ("T", "T"),
        ("S", None),
    ]
    assert align([], [7]) == [(None, 7)]
    assert align("", "") == []


@given(st.lists(st.integers(0, 4), max_size=12), st.lists(st.integers(0, 4), max_size=12))
def test_alignment_spells_both_sides_in_order(reference, hypothesis):
    aligned = align(reference, hypothesis)
    assert [left for left, _ in aligned if left is not None] == reference
    assert [right for _, right in aligned if right is not None] == hypothesis
    assert sum(left != right for left, right in aligned) == slow_distance(reference, hypothesis)


def test_confusion_counts_rows_as_references_with_insertions_and_deletions_last():
    counts = confusion([[0, 1, 2], [1]], [np.array([0, 2, 2]), np.array([1, 0])], size=3)
    expected = np.zeros((4, 4), dtype=np.int64)
    expected[0, 0] = expected[1, 2] = expected[2, 2] = expected[1, 1] = expected[3, 0] = 1
    np.testing.assert_array_equal(counts, expected)
    np.testing.assert_array_equal(confusion([[1, 2]], [[1]], size=3)[2], [0, 0, 0, 1])


def test_real_decoder_output_has_its_published_phoneme_error_rate(real_data):
    lines = (real_data / "phonemes" / "t12_val_even.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    result = error_rate(
        [row["true_phonemes"] for row in rows], [row["gru_phonemes"] for row in rows], "phoneme"
    )
    # 21.7 % over the whole validation set, of which this is every other trial.
    assert result.low < 0.217 < result.high


HEBREW = Language("he", "א-ת", "none", "none")
VOWELLED = Language("ne", "क-ह ा-्", "none", "none")
SCRIPTS = [
    # One letter of "un frío tan raro", which has 13 letters and three blanks.
    (get_language("es"), "¡Un FRÍO tan raro!", "un frio tan raro", (1, 4), (1, 16)),
    (get_language("es"), "el nin\u0303o", "el ni\u00f1o", (0, 2), (0, 7)),
    (get_language("de"), "Die Straße", "die strasse", (1, 2), (2, 10)),
    (get_language("nl"), "'s avonds", "s avonds", (1, 2), (1, 9)),
    # Every character is a word: one of five is wrong, and blanks count nothing.
    (get_language("zh"), "我们去 北京。", "我们去南京", (1, 5), (1, 5)),
    (get_language("zh"), "我们", "我 们 了", (1, 2), (1, 2)),
    (HEBREW, "שלום עולם", "שלום עולים", (1, 2), (1, 9)),
    # The vowel sign ि is a character of its own, and NFC joins it with nothing.
    (VOWELLED, "हिन्दी", "हन्दी", (1, 1), (1, 6)),
]


@pytest.mark.parametrize(("language", "reference", "decoded", "words", "letters"), SCRIPTS)
def test_errors_of_any_script_are_those_counted_by_hand(
    language, reference, decoded, words, letters
):
    for unit, (errors, length) in (("word", words), ("char", letters)):
        found = error_rate([reference], [decoded], unit, n_boot=0, language=language).counts
        assert (found.errors, found.reference_length) == (errors, length)


@pytest.mark.parametrize(("language", "reference", "decoded", "words", "letters"), SCRIPTS)
def test_errors_of_any_script_agree_with_jiwer(language, reference, decoded, words, letters):
    texts = [language.normalize(text) for text in (reference, decoded)]
    found = [
        error_rate([reference], [decoded], unit, n_boot=0, language=language).rate
        for unit in ("word", "char")
    ]
    if language.unit == "character":
        assert (
            found
            == [jiwer.wer(*texts)] * 2
            == [jiwer.cer(*[t.replace(" ", "") for t in texts])] * 2
        )
    else:
        assert found == [jiwer.wer(*texts), jiwer.cer(*texts)]


def test_a_letter_of_two_code_points_is_the_one_that_nfc_makes_of_them():
    es = get_language("es")
    for text in ("frío", "fri\u0301o", "FRI\u0301O"):
        assert error_rate(["frío"], [text], "char", language=es).counts == EditCounts(0, 0, 0, 4)
    assert error_rate(["frío"], ["fro"], "char", language=es).counts == EditCounts(0, 0, 1, 4)
