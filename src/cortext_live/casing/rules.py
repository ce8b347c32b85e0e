"""Capitals and marks of English by rules: the baseline that a trained model is compared with.

The first letter of a sentence, I, and names of a list (`english.txt`) become capitals. First words
and tags decide between a full stop and a question mark; a few kinds of words get a comma.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from cortext_live.casing.writing import Shown, capital, joined, named

_LIST = Path(__file__).with_name("english.txt")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PRONOUNS = _words("i you he she it we they")
_MANY = _words("i you we they")
_AUXILIARIES = _words(
    "am is are was were do does did have has had can could will would shall should may might must"
    " isn't aren't wasn't weren't don't doesn't didn't haven't hasn't hadn't can't couldn't won't"
    " wouldn't shouldn't ain't"
)
_IMPERATIVES = _words("do have don't")
"""Auxiliaries that also begin commands: `have a seat`, `don't worry`."""
_SUBJECTS = _PRONOUNS | _words(
    "this that these those there the a an my your his her our their its anyone anybody anything"
    " someone somebody everyone everybody everything nobody one any all both some people"
)
_NAMED_FIRST = _words("am is are was were do does did will")
"""Auxiliaries that ask with any subject after them: `is breakfast ready`, `will robin come`."""
_ALWAYS_ASK = _words(
    "who whose whom why who's who're who'd who'll why's why'd why're where's where're where'd how's"
    " how'd how're what's what're what'd when's"
)
_AFTER_WHAT = _words(
    "about if kind sort type time color colour day year else part size makes happened happens"
)
_AFTER_HOW = _words("many much long often far old about come soon big fast late early")
_OPENERS = _words("and but so or then well okay ok hey hello hi oh yes yeah no now anyway actually")
_COMMA_AFTER = _words("yes yeah no well okay ok oh hello hi hey anyway actually")
"""First words with a comma after them, where a clause follows."""


def case_english(words: Sequence[str], names: Mapping[str, str] = {}) -> list[Shown]:
    """Return decoded English words as rules show them.

    Args:
        words: The words.
        names: Spellings that go before those of the rules.
    """
    spellings = [named(word, names) or _spelling(word) for word in words]
    for place in range(len(words) - 1):
        both = _proper().get(f"{words[place]} {words[place + 1].removesuffix(chr(39) + 's')}")
        if both:
            first, second = both.split()
            spellings[place] = named(words[place], names) or first
            ending = words[place + 1][len(second) :]
            spellings[place + 1] = named(words[place + 1], names) or second + ending
    if words:
        spellings[0] = capital(spellings[0])
    return [
        Shown(spelling, mark)
        for spelling, mark in zip(spellings, english_marks(words), strict=True)
    ]


def english_marks(words: Sequence[str]) -> list[str]:
    """Return the mark after each word: a comma where the rules know one, and the end's."""
    marks = [""] * len(words)
    if not words:
        return marks
    marks[-1] = "?" if is_question(words) else "."
    if len(words) > 2 and words[0] in _COMMA_AFTER and words[1] in _SUBJECTS | {"i'm", "it's"}:
        marks[0] = ","
    if len(words) > 3 and _is_tag(words):
        marks[-3] = ","
    if len(words) > 2 and words[-1] == "please":
        marks[-2] = ","
    return marks


def is_question(words: Sequence[str]) -> bool:
    """Tell by its first words and its tag whether an English sentence asks."""
    if len(words) > 3 and _is_tag(words):
        return True
    rest = list(words)
    while len(rest) > 2 and rest[0] in _OPENERS:
        del rest[0]
    first, second = rest[0], rest[1] if len(rest) > 1 else ""
    if first in _ALWAYS_ASK:
        return True
    if first == "which":
        return second not in _PRONOUNS
    if first in ("what", "how"):
        # `what outfit does she drive for`, `how wide is it`; but `how easy it is`
        subject = next((n for n, word in enumerate(rest) if word in _SUBJECTS), len(rest))
        asks = any(word in _AUXILIARIES for word in rest[1 : min(subject, 5)])
        return asks or second in (_AFTER_WHAT if first == "what" else _AFTER_HOW) or len(rest) == 1
    if first in ("when", "where"):
        return second in _AUXILIARIES or len(rest) == 1
    if first in _IMPERATIVES:
        return second in _MANY or (first == "do" and second in {"these", "those", "people"})
    return first in _NAMED_FIRST or (first in _AUXILIARIES and second in _SUBJECTS)


def _is_tag(words: Sequence[str]) -> bool:
    """Tell whether a sentence ends in a tag: `isn't it`, `would you`, `shall we`."""
    verb, subject = words[-2:]
    return (verb.endswith("n't") and verb in _AUXILIARIES and subject in _PRONOUNS) or (
        f"{verb} {subject}" in ("would you", "will you", "could you", "can you", "shall we")
    )


@cache
def _proper() -> Mapping[str, str]:
    """Spellings of the list by words in small letters, and of two words that are one name."""
    proper = {"i": "I"} | {f"i'{end}": f"I'{end}" for end in ("m", "ve", "ll", "d", "d've", "s")}
    for line in _LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        pieces = line.split()
        # Lists have many words in a line; a name of two words has a line of its own.
        entries = [line] if len(pieces) == 2 else pieces
        proper |= {entry.lower(): entry for entry in entries}
    return proper


def _spelling(word: str) -> str:
    return named(word, _proper()) or word


class RuleCaser:
    """The rules as a `Caser`, for English."""

    language = "en"

    def show(self, texts: Sequence[str], names: Mapping[str, str] = {}) -> list[str]:
        """See `Caser`."""
        return [joined(case_english(text.split(), names)) for text in texts]
