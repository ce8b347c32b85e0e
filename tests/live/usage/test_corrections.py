"""Corrections as people type them: taken as spoken, or refused with the reason."""

from dataclasses import replace
from pathlib import Path
from tempfile import mkdtemp

import pytest
from attack_process import check_all
from refusals import refused

from cortext.data.conventions import RELEASE_CONVENTIONS
from cortext.errors import CortextError
from cortext.text.language import Language
from cortext_live.usage.log import read_log
from cortext_live.usage.writer import UsageLog, UtteranceRecord

GERMAN = Language(name="deutsch", letters="abcdefghijklmnopqrstuvwxyzäöüß")


def corrected(folder, text, language=RELEASE_CONVENTIONS.language):
    """The label of an utterance after a correction, as a later process reads it."""
    with UsageLog(folder, replace(RELEASE_CONVENTIONS, language=language)) as log:
        log.append(UtteranceRecord(0, "t15.2026.01.01", 1.0, "x"))
        log.correct(0, text)
    return read_log(folder).entries[-1].label


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("3.5 %", "three point five percent"),
        ("50%", "fifty percent"),
        ("$5", "five dollars"),
        ("5 €", "five euros"),
        ("5$ now", "five dollars now"),
        ("1,000.50 £", "one thousand pounds and fifty pence"),
        ("3:30", "three thirty"),
        ("12", "twelve"),
        ("1,000", "one thousand"),
        ("1/2", "one half"),
        ("-5", "minus five"),
        ("5°", "five degrees"),
        ("#1", "number one"),
        ("3 + 4 = 7", "three plus four equals seven"),
        ("2026-11-28", "november twenty eighth twenty twenty six"),
        ("\u0663", "three"),  # an Arabic digit
        ("Yes. 5.", "yes five"),
        ("caf\u00e9 \U0001f600", "cafe"),
        ("(maybe) *now*", "maybe now"),
    ],
)
def test_numbers_and_signs_are_taken_as_they_are_spoken(tmp_path, text, label):
    assert corrected(tmp_path, text) == label


UNREADABLE = [
    ("...", "at least one word"),
    ("\U0001f600", "at least one word"),
    ("", "at least one word"),
    ("\u043f\u0440\u0438", "English has no letters \u0438 \u043f \u0440"),
    ("hello. \u4f60\u597d", "English has no letters \u4f60 \u597d"),
    ("5 \u00d7 4", "does not read the sign \u00d7; write it as a word"),
    ("\u20b9500", "does not read the sign \u20b9; write it as a word"),
    ("5*4", r"does not read the sign \*; write it as a word"),
    ("5<6", "does not read the sign <; write it as a word"),
    ("2\u00b2", "does not read the sign \u00b2; write it as a word"),
    ("3,5 %", "'3,5' can be read in two ways; write 3.5 for one number"),
    ("1" * 60_000, "has 60,000 characters; at most 2,000"),
    ("me@example.org", "'me@example.org' is an address; write it as it was spoken"),
    ("word " * 260, "a sentence has more than 250 words"),
]


def test_what_cannot_be_read_is_refused_with_its_reason_and_not_logged(tmp_path):
    def check(row):
        text, reason = row
        log = Path(mkdtemp(dir=tmp_path))
        with refused(reason):
            corrected(log, text)
        assert read_log(log).entries[0].correction is None

    check_all(UNREADABLE, check)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("3,5 Prozent", "would lose 3 5 .* write other letters and numbers as words"),
        ("fünf %", "does not read the sign %; write it as a word"),
        ("zehn €", "does not read the sign €; write it as a word"),
        ("\u043f\u0440\u0438", "would lose \u043f \u0440 \u0438"),
        ("?!", "at least one word"),
    ],
)
def test_a_language_without_rules_for_numbers_says_to_write_words(tmp_path, text, reason):
    with pytest.raises(CortextError, match=reason):
        corrected(tmp_path, text, GERMAN)
    assert corrected(tmp_path, "fünf Prozent!", GERMAN) == "fünf prozent"
