import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortext.errors import TextError
from cortext.text import ARPABET, Inventory, Lexicon, normalize
from cortext.text.lexicon import CMUDICT, decode


def phones(text):
    return tuple(text.split())


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("read", ["R EH D", "R IY D"]),
        ("the", ["DH AH", "DH IY"]),  # DH AH0, DH AH1, DH IY0 in the source
        ("aalborg", ["AO L B AO R G", "AA L B AO R G"]),
        ("it's", ["IH T S"]),
        ("well-known", ["W EH L N OW N"]),
        ("am", ["AE M", "EY EH M"]),  # with "a.m."
        ("no", ["N OW"]),  # without the abbreviation of "number"
        ("qqq", []),
    ],
)
def test_dictionary_gives_all_variants_without_stress_most_usual_first(word, expected):
    assert Lexicon.cmu().pronunciations(word) == tuple(map(phones, expected))
    assert (word in Lexicon.cmu()) == bool(expected)


def test_dictionary_has_126_thousand_words_of_normalised_text_and_fits_in_a_megabyte():
    lexicon = Lexicon.cmu()
    assert 125_000 < len(lexicon) < 127_000
    assert CMUDICT.stat().st_size < 1_000_000
    assert all(word == normalize(word) for word in lexicon)
    used = {
        phoneme
        for word in list(lexicon)[::7]
        for variant in lexicon.pronunciations(word)
        for phoneme in variant
    }
    assert used == set(ARPABET)


def test_dictionary_is_loaded_on_first_use_only():
    code = (
        "import sys, cortext.text; from cortext.text.lexicon import Lexicon;"
        " print(Lexicon.cmu.cache_info().currsize)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "0\n"
    )


def test_attribution_of_the_dictionary_is_in_the_notice():
    notice = (Path(__file__).resolve().parents[3] / "NOTICE").read_text()
    assert "Copyright (C) 1993-2015 Carnegie Mellon University" in notice
    assert "Redistributions in binary form must reproduce the above copyright" in notice


def test_variants_that_differ_in_stress_only_are_one_and_dots_vanish(build_lexicon):
    source = (
        "a AH0\na(2) EY1\nan AE1 N\nan(2) AE0 N # weak\na.n. EY1 EH1 N\nno N OW1\nno. N AH1 M B"
        " ER0\netc. T IY1\nx2 K\n"
    )
    words = build_lexicon.merge_dotted(build_lexicon.parse(source))
    lexicon = {word: [decode(code) for code in codes] for word, codes in words.items()}
    assert lexicon == {
        "a": [("AH",), ("EY",)],
        "an": [("AE", "N"), ("EY", "EH", "N")],
        "etc": [("T", "IY")],
        "no": [("N", "OW")],
    }


def test_file_has_one_line_a_pronunciation_with_weights_after_a_tab(tmp_path):
    lexicon = Lexicon({"read": [["R", "EH", "D"], ["R", "IY", "D"]], "a": [["AH"]]})
    lexicon.add("a", ["EY"], weight=0.25)
    lexicon.write(tmp_path / "lexicon.txt")
    text = (tmp_path / "lexicon.txt").read_text()
    assert text == "read R EH D SIL\nread R IY D SIL\na AH SIL\na\t0.25 EY SIL\n"
    again = Lexicon.read(tmp_path / "lexicon.txt")
    assert again.pronunciations("a") == (("AH",), ("EY",))
    assert again.weights("a") == (1.0, 0.25)
    assert again.weights("b") == ()
    assert [path.name for path in tmp_path.iterdir()] == ["lexicon.txt"]


def test_a_known_pronunciation_keeps_its_place_and_takes_the_new_weight():
    lexicon = Lexicon({"a": [["AH"], ["EY"]]})
    for weight in (0.25, 1.0):
        lexicon.add("a", ["AH"], weight)
        assert lexicon.pronunciations("a") == (("AH",), ("EY",))
        assert lexicon.weights("a") == (weight, 1.0)


def test_a_file_that_cannot_take_its_place_leaves_no_other_behind(tmp_path):
    (tmp_path / "lexicon.txt").mkdir()
    with pytest.raises(IsADirectoryError):
        Lexicon({"a": [["AH"]]}).write(tmp_path / "lexicon.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["lexicon.txt"]


def test_file_may_hold_only_some_words_in_the_order_asked_for(tmp_path):
    Lexicon.cmu().write(tmp_path / "lexicon.txt", ["no", "am", "no"])
    assert (tmp_path / "lexicon.txt").read_text() == "no N OW SIL\nam AE M SIL\nam EY EH M SIL\n"


def test_tab_between_word_and_phonemes_and_blank_lines_are_read(tmp_path):
    (tmp_path / "lexicon.txt").write_text("no\tN OW SIL\n\n  a   AH SIL\nb\t2\tB IY SIL\n")
    lexicon = Lexicon.read(tmp_path / "lexicon.txt")
    assert list(lexicon) == ["no", "a", "b"]
    assert lexicon.weights("b") == (2.0,)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no N OWW SIL", "line 2: unknown phoneme 'OWW'; did you mean 'OW'?"),
        ("no N SIL OW SIL", "line 2: unknown phoneme 'SIL'"),
        ("no SIL", "line 2: 'no' has no phonemes before SIL"),
        ("no", "line 2: the pronunciation of 'no' does not end with SIL"),
        (
            "no N OW",
            "line 2: the pronunciation of 'no' does not end with SIL; close every line with SIL",
        ),
        ("no\t-1 N OW SIL", "line 2: weight -1.0 of 'no' is not a positive number"),
        ("no\tnan N OW SIL", "line 2: weight nan of 'no' is not a positive number"),
    ],
)
def test_wrong_line_is_named_with_file_and_number(tmp_path, line, message):
    path = tmp_path / "lexicon.txt"
    path.write_text(f"a AH SIL\n{line}\n")
    with pytest.raises(TextError) as caught:
        Lexicon.read(path)
    assert str(caught.value).startswith(f"{path}, ")
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"\n \n", b"\xff\xfe\x00"])
def test_missing_empty_or_binary_file_is_a_text_error(tmp_path, content):
    path = tmp_path / "lexicon.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TextError, match="lexicon"):
        Lexicon.read(path)


def test_writing_an_unknown_word_is_an_error_and_leaves_no_file(tmp_path):
    with pytest.raises(TextError, match="no pronunciation for 'qqq'"):
        Lexicon.cmu().write(tmp_path / "lexicon.txt", ["a", "qqq"])
    assert list(tmp_path.iterdir()) == []


def test_empty_pronunciation_is_an_error():
    with pytest.raises(TextError, match="empty pronunciation"):
        Lexicon({"a": [[]]})


words = st.text(alphabet="abz'-", min_size=1, max_size=5)
variants = st.lists(
    st.lists(st.sampled_from(ARPABET), min_size=1, max_size=5).map(tuple), min_size=1, unique=True
)


@settings(max_examples=50)
@given(st.dictionaries(words, variants, min_size=1, max_size=5))
def test_lexicon_survives_writing_and_reading(tmp_path_factory, entries):
    path = tmp_path_factory.getbasetemp() / "lexicon.txt"
    Lexicon(entries).write(path)
    again = Lexicon.read(path)
    assert {word: list(again.pronunciations(word)) for word in again} == entries


def test_words_are_read_as_other_systems_save_them(tmp_path):
    """A mark at the beginning, other line ends, letters and their accents apart."""
    path = tmp_path / "words.txt"
    path.write_bytes("\ufeffsí S IY SIL\r\nnin\u0303o N OW SIL\r\n".encode())
    assert list(Lexicon.read(path)) == ["sí", "niño"]
    path.write_text("sí s i\u0301\n")
    accents = Inventory("accents", ("_", "s", "í"), "_", None)
    assert Lexicon.read(path, accents).pronunciations("sí") == (("s", "í"),)
