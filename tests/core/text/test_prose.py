"""Raw English text to sentences; every expected value was written by hand."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortext.text.normalize import normalize
from cortext.text.numbers import cardinal, ordinal, spell_numbers, year
from cortext.text.prose import Report, sentences

REAL = Path(
    os.environ.get("CORTEXT_REAL_DATA", Path(__file__).parents[3] / ".." / "shared" / "data")
)


def read(text: str) -> list[str]:
    return list(sentences([text]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cat sat. The dog ran! Did it? Yes", ["the cat sat", "the dog ran", "did it", "yes"]),
        ("Dr. Jones met Mr. Hale. They left.", ["doctor jones met mr hale", "they left"]),
        ("Bring fruit, e.g. apples, i.e. food. Then go.", ["bring fruit for example apples that is food", "then go"]),
        ("J. R. Smith sat. He slept.", ["j r smith sat", "he slept"]),
        ("It cost 3.5 dollars. Then it rose.", ["it cost three point five dollars", "then it rose"]),
        ("She lives in the U.S. He does not.", ["she lives in the us", "he does not"]),
        ("We met at 3:45 p.m. He came at 4 a.m. too.", ["we met at three forty five pm", "he came at four am too"]),
        ("I like pears, plums, etc. But not figs.", ["i like pears plums et cetera", "but not figs"]),
        ("Acme Inc. agreed. So did Bo Ltd. They won.", ["acme incorporated agreed", "so did bo limited", "they won"]),
        ('He said "Stop!" and left.', ["he said stop and left"]),
        ("Wait... what? No way.", ["wait what", "no way"]),
        ("I live on Main St. He met St. John.", ["i live on main street", "he met saint john"]),
        ("He works for Acme Inc.", ["he works for acme incorporated"]),
    ],
)  # fmt: skip
def test_abbreviations_initials_and_decimals_do_not_end_a_sentence(
    text: str, expected: list[str]
) -> None:
    assert read(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("in 1984", "in nineteen eighty four"),
        ("in 1905 and 1900", "in nineteen oh five and nineteen hundred"),
        ("in 2005 or 2026 or 2000", "in two thousand five or twenty twenty six or two thousand"),
        ("1984's best", "nineteen eighty four's best"),
        ("3,000 of 12345", "three thousand of twelve thousand three hundred forty five"),
        ("the 3rd, 21st and 112th", "the third twenty first and one hundred twelfth"),
        ("the 1990s and the '80s", "the nineteen nineties and the eighties"),
        ("pi is 3.14, not .5", "pi is three point one four not point five"),
        ("version 1.2.3", "version one point two point three"),
        ("agent 007", "agent zero zero seven"),
        ("it was -5 then", "it was minus five then"),
        ("12% of 7.5 %", "twelve percent of seven point five percent"),
        ("paid $3.50", "paid three dollars and fifty cents"),
        ("$.50, or a $.05 coin", "fifty cents or a five cent coin"),
        ("a $5 bill and a 6-ft wall", "a five dollar bill and a six foot wall"),
        ("he owes $1 and £0.01", "he owes one dollar and one penny"),
        ("costs $2.5 billion or €5m", "costs two point five billion dollars or five million euros"),
        ("at 3:45 pm", "at three forty five pm"),
        ("at 9:05, 7:00 or 10am", "at nine oh five seven o'clock or ten am"),
        (
            "add 1/2 cup, 2/3 cup or 2 1/4 cups",
            "add one half cup two thirds cup or two and a quarter cups",
        ),
        ("add ¾ or 2½ cups", "add three quarters or two and a half cups"),
        ("open 24/7 since 9/11", "open twenty four seven since nine eleven"),
        ("5 km at 60 mph", "five kilometers at sixty miles per hour"),
        ("1 kg, 2 lbs and 20°C", "one kilogram two pounds and twenty degrees celsius"),
        ("he is 6'2\" tall", "he is six foot two tall"),
        ("pages 5-7 and 3–4", "pages five to seven and three to four"),
        ("5-10% in 25-30 min.", "five to ten percent in twenty five to thirty minutes"),
        ("from $5-$10", "from five dollars to ten dollars"),
        ("$9.99/month", "nine dollars and ninety nine cents per month"),
        ("180 lbs. and 3 oz. of it", "one hundred eighty pounds and three ounces of it"),
        ("a 19-year-old with covid-19", "a nineteen year old with covid nineteen"),
        ("on March 3, 2020 and Jan. 5th", "on march third twenty twenty and january fifth"),
        ("on 5 July and the 4th of July", "on the fifth of july and the fourth of july"),
        ("on 7/4/2020 or 2020-07-04", "on july fourth twenty twenty or july fourth twenty twenty"),
        ("call 555-1234 now", "call five five five one two three four now"),
        ("No. 7 and #5", "number seven and number five"),
        ("a 4x4 MP3", "a four by four mp three"),
        ("won 3:1", "won three to one"),
    ],
)
def test_what_is_spoken_is_spelt(text: str, expected: str) -> None:
    assert read(text) == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a café, a naïve Łódź œuvre and ﬁsh", "a cafe a naive lodz oeuvre and fish"),
        ("“It’s” — she said", "it's she said"),
        ("fish &amp; chips &lt;3 it&#39;s", "fish and chips three it's"),
        ("a <b>bold</b> <a href='x.html'>link</a>", "a bold link"),
        ("see https://a.b/c?d=1 or www.x.org today", "see or today"),
        ("mail bob.x@site.co.uk or go to example.com now", "mail or go to now"),
        ("'hello' and the dogs' bowl", "hello and the dogs' bowl"),
        ("we 'd go and they 'll stay", "we'd go and they'll stay"),
        ("well-known -- yes - no—so", "well-known yes no so"),
        ("one,two and/or three w/o four", "one two and or three without four"),
        ("as shown[1][12] and [citation needed] proven", "as shown and proven"),
        ("her Ph.D. from M.I.T. in apt. B", "her phd from mit in apartment b"),
        ("zero\u200bwidth soft\u00adhyphen", "zerowidth softhyphen"),
        ("love ❤️ it ♪", "love it"),
        ("Main St. near St. Mary", "main street near saint mary"),
    ],
)
def test_marks_markup_and_addresses_are_resolved(text: str, expected: str) -> None:
    assert read(text) == [expected]


def test_paragraph_tags_end_a_sentence() -> None:
    assert read("<p>One thing</p><p>another thing<br/>a third</p>") == [
        "one thing",
        "another thing",
        "a third",
    ]


def test_what_is_kept_and_rejected_is_reported() -> None:
    report = Report()
    lines = [
        "The cat sat. Привет, мир. It ran.",
        "",
        "2 + 2 = 4",
        "https://example.com/x",
        "broken \ufffd text",
        "if (a[i] == b[j]) { c[i] = d[j]; }",
        "word " * 300,
        "a" * 6000,
    ]
    assert list(sentences(lines, report)) == ["the cat sat", "it ran"]
    assert (report.lines, report.sentences, report.words) == (8, 2, 5)
    assert report.rejected == {
        "other_script": 1,
        "no_letters": 2,
        "bad_encoding": 1,
        "not_prose": 1,
        "too_long": 2,
    }
    assert report.examples["other_script"] == ["Привет, мир."]
    assert report.examples["no_letters"] == ["2 + 2 = 4", "https://example.com/x"]
    assert json.loads(json.dumps(report.to_json()))["rejected"]["too_long"] == 2


def test_examples_of_rejected_text_stay_few_and_short() -> None:
    report = Report()
    assert not list(sentences(["слово " * 50] * 10, report))
    assert report.rejected["other_script"] == 10
    assert [len(example) for example in report.examples["other_script"]] == [80, 80, 80]


def test_lines_are_taken_one_at_a_time() -> None:
    taken = []

    def lines():
        for number in range(3):
            taken.append(number)
            yield "A cat. A dog.\n"

    stream = sentences(lines())
    assert next(stream) == "a cat"
    assert next(stream) == "a dog"
    assert taken == [0]


@pytest.mark.parametrize(
    "piece", ["a.", "'x ", "<!--", "<a ", "1/", "1-", "x@", "www.", "- ", "$1", "e.g. ", "Dr. "]
)
def test_long_lines_of_anything_take_no_longer_than_their_length(piece: str) -> None:
    list(sentences([piece * 50_000]))  # squared, it would take hours


def test_a_book_on_one_line_is_cut_between_sentences() -> None:
    assert read("The cat sat. It ran. " * 3000) == ["the cat sat", "it ran"] * 3000


@settings(max_examples=50)
@given(st.text(max_size=80))
def test_anything_becomes_normalised_sentences(text: str) -> None:
    for sentence in sentences([text]):
        assert normalize(sentence) == sentence
        assert sentence.strip("'- ")


@given(st.from_regex(r"[a-z0-9$£%:/.,'#° -]{0,30}", fullmatch=True))
def test_no_digit_is_left(text: str) -> None:
    assert not any(character.isdigit() for character in spell_numbers(text))


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (0, "zero"),
        (13, "thirteen"),
        (40, "forty"),
        (101, "one hundred one"),
        (1_000_000, "one million"),
        (999_999_999_999_999, " ".join(["nine hundred ninety nine " + scale for scale in
                                       ("trillion", "billion", "million", "thousand")] + ["nine hundred ninety nine"])),
        (-21, "minus twenty one"),
    ],
)  # fmt: skip
def test_cardinals(number: int, expected: str) -> None:
    assert cardinal(number) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, "first"),
        (5, "fifth"),
        (12, "twelfth"),
        (20, "twentieth"),
        (32, "thirty second"),
        (100, "one hundredth"),
    ],
)
def test_ordinals(number: int, expected: str) -> None:
    assert ordinal(number) == expected


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1066, "ten sixty six"),
        (1500, "fifteen hundred"),
        (1805, "eighteen oh five"),
        (2000, "two thousand"),
        (2010, "twenty ten"),
    ],
)
def test_years(number: int, expected: str) -> None:
    assert year(number) == expected


@pytest.mark.skipif(not REAL.exists(), reason="the real material is not here")
def test_prepared_text_passes_unchanged() -> None:
    import gzip
    from itertools import islice

    with gzip.open(REAL / "text" / "general_english.txt.gz", "rt") as file:
        lines = list(islice(file, 20_000))
    assert list(sentences(lines)) == [line.rstrip("\n") for line in lines]


@pytest.mark.skipif(not REAL.exists(), reason="the real material is not here")
def test_prompts_agree_with_how_they_are_scored() -> None:
    """But for abbreviations, dashes and lines of several sentences, the text of the model is the
    scored text.
    """
    lines = (REAL / "text" / "transcripts_train.txt").read_text().splitlines()
    different = sum(list(sentences([line])) != [normalize(line)] for line in lines)
    assert different < 0.003 * len(lines)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("I ca n't , wo n't and do n't .", "i can't won't and don't"),
        ("It 's gon na rain , I can not go .", "it's gonna rain i cannot go"),
        ("I can not go.", "i can not go"),
        ("He -LRB- Tom -RRB- said `` no '' .", "he tom said no"),
        ("A well @-@ known 3 @,@ 000 men run .", "a well-known three thousand men run"),
        ("don &apos;t go", "don't go"),
    ],
)
def test_tokens_of_a_treebank_become_words_again(line, expected):
    assert list(sentences([line])) == [expected]
