"""Turn raw English text into the sentences of a language model.

Abbreviations are written out first, because their dots look like ends of sentences. Then
`sentencex`, a rule-based segmenter, splits the sentences. Everything that is spoken is spelt as
words. `cortext.text.normalize` normalises the result: the model's text and the scored text agree.
Hyphens and apostrophes inside words stay, as in the benchmark. `Mr.`, `Mrs.` and `Ms.` are not
written out.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from sentencex import segment  # type: ignore[import-untyped]

from cortext.errors import TextError, shown
from cortext.text.normalize import SPOKEN_SIGNS, join_tokens, normalize
from cortext.text.numbers import spell_numbers

MAX_WORDS = 250
"""Most words of a sentence. Longer ones are lists, code or a text without full stops."""
_MAX_CHARACTERS = 5000
# Characters that are segmented at once: for some texts, sentencex takes quadratic time.
_PIECE = 20_000
_EXAMPLES = 3
_EXAMPLE_LENGTH = 80

# A line of plain words with at most one closing mark only needs lower case. Most lines of a
# prepared corpus are such lines.
_WORD = r"[A-Za-z]++(?:['-][A-Za-z]++)*+"
_PLAIN = re.compile(rf"{_WORD}(?:[,;:]? {_WORD})*+[.?!]?\s*")
_UNMARK = str.maketrans("", "", ",;:.?!\n\r\t")

_BREAKING_TAG = re.compile(
    r"</?(?:p|br|div|li|ul|ol|h[1-6]|tr|td|th|table|blockquote|hr)\b[^<>]*>", re.IGNORECASE
)
_TAG = re.compile(r"<!--(?:(?!<!--|-->).)*+-->|</?[A-Za-z][^<>]*>|<![A-Za-z][^<>]*>")
_DOMAIN = re.compile(r"\.(?:com|org|net|edu|gov|io|uk)\b|\b(?:www|WWW)\.")
_ADDRESS = re.compile(
    r"(?:https?|ftp)://\S+|\bwww\.\S+|\b[\w.+-]{1,64}@\w[\w-]{0,63}(?:\.\w{1,63}){1,8}"
    r"|\b(?:[a-z0-9-]{1,63}\.){1,8}(?:com|org|net|edu|gov|io|co\.uk)\b(?:/\S*)?",
    re.IGNORECASE,
)
_VULGAR_FRACTION = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞])")
_LETTERS = str.maketrans(
    {"ß": "ss", "ẞ": "SS", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L"}
    | {"đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ı": "i", "ħ": "h", "Ħ": "H", "ŋ": "ng"}
    | dict.fromkeys("‘’‚‛′ʼ`´", "'") | dict.fromkeys("“”„‟″«»", '"') | dict.fromkeys("‐‑‒−", "-")
    | dict.fromkeys("–—―", "--") | dict.fromkeys("\u00ad\u200b\u200c\u200d\u2060\ufeff™®©", "")
    | {"º": "°", "⁄": "/", "²": "2", "³": "3", "№": "No. "}
)  # fmt: skip

# Abbreviations, written out before sentences are split.
_TITLES = {
    "Dr": "Doctor", "Prof": "Professor", "Gen": "General", "Sen": "Senator", "Rep": "Representative",
    "Gov": "Governor", "Capt": "Captain", "Cpt": "Captain", "Lt": "Lieutenant", "Col": "Colonel", "Sgt": "Sergeant",
    "Maj": "Major", "Cmdr": "Commander", "Rev": "Reverend", "Hon": "Honorable", "Pres": "President", "Mt": "Mount",
    "Ft": "Fort", "St": "Saint", "Mr": "Mr", "Mrs": "Mrs", "Ms": "Ms", "Messrs": "Messrs", "Fr": "Father",
}  # fmt: skip
_BEFORE_NUMBERS = {
    "no": "number", "nos": "numbers", "vol": "volume", "fig": "figure", "figs": "figures", "ch": "chapter",
    "sec": "section", "p": "page", "pp": "pages", "pg": "page", "art": "article", "ca": "about", "c": "about",
}  # fmt: skip
_MONTHS = {
    "Jan": "January", "Feb": "February", "Mar": "March", "Apr": "April", "Jun": "June", "Jul": "July",
    "Aug": "August", "Sep": "September", "Sept": "September", "Oct": "October", "Nov": "November", "Dec": "December",
}  # fmt: skip
_DAYS = {
    "Mon": "Monday", "Tue": "Tuesday", "Tues": "Tuesday", "Wed": "Wednesday", "Thu": "Thursday", "Thur": "Thursday",
    "Thurs": "Thursday", "Fri": "Friday", "Sat": "Saturday", "Sun": "Sunday",
}  # fmt: skip
_ANYWHERE = {
    "e.g": "for example", "eg": "for example", "i.e": "that is", "ie": "that is", "etc": "et cetera", "vs": "versus",
    "approx": "approximately", "dept": "department", "inc": "incorporated", "corp": "corporation", "co": "company",
    "ltd": "limited", "bros": "brothers", "assn": "association", "univ": "university", "govt": "government",
    "jr": "junior", "sr": "senior", "ave": "avenue", "blvd": "boulevard", "rd": "road", "st": "street",
    "a.m": "am", "p.m": "pm", "ph.d": "phd", "m.sc": "msc", "b.sc": "bsc", "apt": "apartment",
    "al": "al", "esp": "especially", "incl": "including", "misc": "miscellaneous",
}  # fmt: skip
_STARTERS = (
    "The|He|She|It|They|We|I|You|In|But|And|A|An|This|That|These|Those|There|Then|When|If|However|His|Her|Its|Their|"
    "Our|My|Your|At|On|For|As|What|Who|Why|How|Where|After|Before|So|Not|No|Yes|One|All|Some|Many|Most|With|By|From|To"
)


def _either(names: Iterable[str]) -> str:
    return "|".join(sorted(map(re.escape, names), key=len, reverse=True))


# `St.` before a word that starts sentences is a street, not a saint: "Main St. He left."
_TITLE = re.compile(rf"\b((?!St\. (?:{_STARTERS})\b)(?:{_either(_TITLES)}))\.(?= ?[A-Z])")
_NUMBERED = re.compile(rf"\b({_either(_BEFORE_NUMBERS)})\. ?(?=\d)", re.IGNORECASE)
_MONTH = re.compile(
    rf"\b(?:({_either(set(_MONTHS) - {'Mar', 'Jun', 'Jul', 'Sep'})})\.|({_either(_MONTHS)})\.?(?="
    r" \d))"
)
_DAY = re.compile(rf"\b({_either(_DAYS)})\.(?=,? (?:\d|{_either(_MONTHS)}))")
_DOTTED = re.compile(r"(?<![\w.'-])([A-Za-z]++(?:\.[A-Za-z]++)*+)\.(?!\w)")
_ENDS = re.compile(rf"\s*$|[\"')]*\s+[\"'(]*(?:{_STARTERS})\b")
_ELLIPSIS = re.compile(r"(?<=\w)\.{2,}(?=\w)")
_MEASURE = re.compile(r"(?<=\d) ?(lbs?|oz|ft|in|yd|mi|hrs?|yrs?|mins?|secs?|tbsp|tsp)\.(?= [a-z])")
_CITATION = re.compile(r"\[(?:\d+|edit|citation needed)\]")
_WITH = re.compile(r"\b([Ww])/(o\b)?(?= )")

# Marks of the Penn Treebank, of the Moses tokeniser and of WikiText.
_WRITTEN = {"``": '"', "''": '"', "\\/": "/", " @-@ ": "-", " @,@ ": ",", " @.@ ": "."} | {
    f"-{mark}-": bracket
    for mark, bracket in zip("lrb rrb lsb rsb lcb rcb".split(), "()[]()", strict=True)
}
_TOKENS = re.compile("|".join(map(re.escape, _WRITTEN)), re.IGNORECASE)
_SPACED = re.compile(r" [.,?!;](?: |$)| n't\b| '(?:s|ll|re|ve|m|d)\b")
_CAN_NOT = re.compile(r"\b(can) not\b", re.IGNORECASE)
_QUOTED = re.compile(r"(?<![A-Za-z0-9])'+(?=\S)((?:[^']|(?<=\w)'(?=\w))*)(?<=\S)'+(?![A-Za-z0-9])")
_STRAY_APOSTROPHE = re.compile(r"(?<![A-Za-z])'+|'+(?=')|(?<![A-Za-z])'+(?![A-Za-z])")
_STRAY_HYPHEN = re.compile(r"-{2,}|(?<![A-Za-z])-+|-+(?![A-Za-z])")
_KEPT = {
    chr(code): chr(code)
    for code in (*range(ord("A"), ord("Z") + 1), *range(ord("a"), ord("z") + 1))
}
_CLEAN = str.maketrans(
    {chr(code): " " for code in range(128)} | SPOKEN_SIGNS | _KEPT | {"'": "'", "-": "-"}
)
_ASCII_LETTER = re.compile(r"[A-Za-z]")
_DIGIT = re.compile(r"[0-9]")
_READ_SIGNS = "$£€¥+=@&%#°−⁄<>|~"
_BETWEEN_NUMBERS = re.compile(r"\d\s*([*^~|\\<>])\s*\d")
"""Marks that are left out elsewhere, and that are spoken between two numbers."""
_SIGN_BEHIND = re.compile(r"(?<![\d.,$£¥])(\d[\d.,]*)\s?([$£¥])(?!\d)")
"""A currency behind its number, which English writes before it."""
_TWO_READINGS = re.compile(r"(?<![\d.,])\d+,\d{1,2}(?![\d,])")
"""A decimal number of other languages, or two numbers."""
MOST_TYPED = 2000
"""Most characters of a text that a person typed: 250 words."""
_CODE = re.compile(r"[{}\[\]<>|\\_=;~^*]")


@dataclass
class Report:
    """Counts of the sentences of a text that were kept and rejected.

    Attributes:
        lines: Lines read.
        sentences: Sentences kept, of `words` words.
        rejected: Sentences (or lines) left out, by reason: `no_letters` (only numbers, marks or an
            address), `other_script`, `bad_encoding` (replacement characters), `not_prose` (program
            code, tables), `too_long` (more than 250 words), `damaged` (letters that another
            language than English lacks, `cortext.text.sentences`).
        examples: The first few rejected ones of each reason, shortened.
    """

    lines: int = 0
    sentences: int = 0
    words: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def reject(self, reason: str, text: str) -> None:
        """Count a rejected piece of text, and keep it if it is among the first of its kind."""
        self.rejected[reason] += 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _EXAMPLES:
            examples.append(" ".join(text.split())[:_EXAMPLE_LENGTH])

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "lines": self.lines,
            "sentences": self.sentences,
            "words": self.words,
            "rejected": dict(sorted(self.rejected.items())),
            "rejected_examples": {
                reason: list(texts) for reason, texts in sorted(self.examples.items())
            },
        }


def sentences(lines: Iterable[str], report: Report | None = None) -> Iterator[str]:
    """Yield the normalised sentences of English text; only the current line is in memory.

    Sentences consist of a-z, apostrophes, hyphens and single blanks, see `normalize`.

    Args:
        lines: Lines with one or more whole sentences each; empty lines are skipped.
        report: Counts, filled while the sentences are read.
    """
    report = report if report is not None else Report()
    for line in lines:
        report.lines += 1
        plain = _PLAIN.fullmatch(line) and not _ends_in_abbreviation(line)
        for raw in (line,) if plain else _split(line):
            reason, sentence = _spoken(raw)
            if reason:
                report.reject(reason, raw or line)
            else:
                report.sentences += 1
                report.words += sentence.count(" ") + 1
                yield sentence


def typed(text: str) -> str:
    """Return a text that a person typed as spoken words, numbers written out.

    Unlike `sentences`, which chooses what a language model learns from, it takes numbers alone, and
    leaves no part out but marks that nobody speaks. A text of such marks alone becomes empty.

    Raises:
        TextError: A part cannot be read as English.
    """
    _check_readable(text)
    text = _SIGN_BEHIND.sub(r"\2\1", "".join([_digit(character) for character in text]))
    ascii_text = _to_ascii(text)
    kept = []
    for piece in pieces(_expand(" ".join(ascii_text.split()))):
        for raw in _segments(piece):
            reason, sentence = _spoken(raw, is_typed=True)
            if not reason:
                kept.append(sentence)
            elif reason != "no_letters":
                raise TextError(_why_not(reason, raw))
    return " ".join(kept)


def _check_readable(text: str) -> None:
    """Raise TextError for a typed text with a part that English does not read, or in two ways."""
    if len(text) > MOST_TYPED:
        raise TextError(f"it has {len(text):,} characters; at most {MOST_TYPED:,} are read")
    if (address := _ADDRESS.search(text)) is not None:
        fix = "write it as it was spoken"
        raise TextError(f"{shown(repr(address[0]), 60)} is an address", fix=fix)
    if (number := _TWO_READINGS.search(text)) is not None:
        point = number[0].replace(",", ".")
        fix = f"write {point} for one number, or a blank behind the comma for two"
        raise TextError(f"{shown(repr(number[0]), 60)} can be read in two ways", fix=fix)
    if sign := spoken_sign(text, _READ_SIGNS):
        raise TextError(f"English does not read the sign {sign}", fix="write it as a word")


def spoken_sign(text: str, known: str = "") -> str:
    """Return the first sign of a text that people speak and that no rule reads; empty for none.

    Args:
        text: The text.
        known: Signs that are read, or that are letters.
    """
    for character in text:
        kind = unicodedata.category(character)
        is_sign = kind in ("Sc", "Sm") or character in "%‰&@#§°"
        # A power or an index would become a digit of the number before it.
        is_small = kind == "No" and unicodedata.decomposition(character).startswith("<su")
        if (is_sign and character not in known) or is_small:
            return character
    between = _BETWEEN_NUMBERS.search(text)
    return between[1] if between else ""


def _digit(character: str) -> str:
    """Return a decimal digit of any script as that of ASCII, and other characters as they are."""
    return character if character.isascii() else str(unicodedata.decimal(character, character))


def _why_not(reason: str, raw: str) -> str:
    """Return in words why a sentence cannot be read."""
    if reason == "other_script":
        foreign = sorted({c for c in raw if c.isalpha() and not c.isascii()})
        return f"English has no letters {shown(' '.join(foreign), 40)}"
    if reason == "too_long":
        return f"a sentence has more than {MAX_WORDS} words"
    return "it has characters that were damaged on the way"


def _ends_in_abbreviation(line: str) -> bool:
    end = line.rstrip()
    return end.endswith(".") and end[end.rfind(" ") + 1 : -1].lower() in _ANYWHERE


def _split(line: str) -> Iterator[str]:
    """Return the sentences of a line, without markup and addresses, abbreviations written out."""
    text = html.unescape(line) if "&" in line else line
    text = _TOKENS.sub(lambda match: _WRITTEN[match[0].lower()], text)
    if " not" in text and _SPACED.search(text):  # there, every "cannot" is in halves
        text = _CAN_NOT.sub(r"\1not", text)
    if "<" in text:
        text = _TAG.sub(" ", _BREAKING_TAG.sub("\n", text))
    if "@" in text or "://" in text or _DOMAIN.search(text):
        text = _ADDRESS.sub(" ", text)
    if "[" in text:
        text = _CITATION.sub("", text)
    if not text.isascii():
        text = _to_ascii(text)
    for part in text.split("\n"):
        if part.strip():
            for piece in pieces(_expand(" ".join(part.split()))):
                yield from _segments(piece)
    if not text.strip() and line.strip():
        yield ""  # only an address or markup: rejected, and counted


def _segments(piece: str) -> Iterator[str]:
    """Yield the sentences of a piece of text."""
    yield from (sentence for sentence in segment("en", piece) if sentence.strip())


def pieces(text: str, most: int = _PIECE) -> Iterator[str]:
    """Cut a long text where a sentence seems to end, else where a word ends.

    Args:
        text: The text.
        most: Most characters of a piece.
    """
    first = 0
    while len(text) - first > most:
        last = first + most
        cuts = (text.rfind(end, first, last) + 1 for end in (". ", " ", "\u3002"))
        cut = next((cut for cut in cuts if cut > first), last)
        yield text[first:cut]
        first = cut
    yield text[first:]


def _to_ascii(text: str) -> str:
    """Write accents, ligatures and typographic marks as ASCII.

    Other letters stay, and so do signs that are spoken.
    """
    text = _VULGAR_FRACTION.sub(" ", text.replace("\u2026", "... ")).translate(_LETTERS)
    folded = unicodedata.normalize("NFKD", text).translate(_LETTERS)
    return "".join([character for character in folded if not unicodedata.combining(character)])


def _expand(text: str) -> str:
    """Write out abbreviations, keeping the dot of those that end a sentence."""
    text = _WITH.sub(lambda match: f"{match[1]}ith{'out' if match[2] else ''}", text)
    if "." not in text:
        return text
    text = _ELLIPSIS.sub("... ", text)
    text = _TITLE.sub(lambda match: _TITLES[match[1]], text)
    if _DIGIT.search(text):
        text = _NUMBERED.sub(lambda match: f"{_BEFORE_NUMBERS[match[1].lower()]} ", text)
        text = _MEASURE.sub(r" \1", text)
    text = _DAY.sub(lambda match: _DAYS[match[1]], text)
    text = _MONTH.sub(lambda match: _MONTHS[match[1] or match[2]] + _end(match), text)
    return _DOTTED.sub(_dotted, text)


def _dotted(match: re.Match[str]) -> str:
    """Write an abbreviation out, `U.S.` as `US`, and other words before a dot as they are."""
    word = match[1]
    if word.lower() in _ANYWHERE:
        return _ANYWHERE[word.lower()] + _end(match)
    if "." in word and max(map(len, word.split("."))) == 1:
        return word.replace(".", "") + _end(match)
    return match[0]


def _end(match: re.Match[str]) -> str:
    """Return a dot where a new sentence seems to begin after the abbreviation, else nothing."""
    return "." if _ENDS.match(match.string, match.end()) else ""


def _spoken(raw: str, is_typed: bool = False) -> tuple[str, str]:
    """Return the reason of a rejection (empty if there is none), and the normalised sentence.

    Args:
        raw: The sentence.
        is_typed: Whether a person typed it: then numbers alone and unusual marks are no reason.
    """
    if len(raw) > _MAX_CHARACTERS:
        return "too_long", ""
    if _PLAIN.fullmatch(raw):
        return _checked(raw.translate(_UNMARK).lower().rstrip())
    if "\ufffd" in raw:
        return "bad_encoding", ""
    if not raw.isascii() and any(
        character.isalpha() and not character.isascii() for character in raw
    ):
        return "other_script", ""
    if not (_ASCII_LETTER.search(raw) or (is_typed and _DIGIT.search(raw))):
        return "no_letters", ""
    if not is_typed and 6 * len(_CODE.findall(raw)) > len(raw):
        return "not_prose", ""
    text = spell_numbers(raw) if _DIGIT.search(raw) else raw
    text = text.translate(_CLEAN).encode("ascii", "replace").decode().replace("?", " ")
    if "-" in text:
        text = _STRAY_HYPHEN.sub(" ", text)
    if "'" in text:
        text = _STRAY_APOSTROPHE.sub(" ", _QUOTED.sub(r"\1", join_tokens(text)))
    return _checked(normalize(" ".join(text.split())))


def _checked(sentence: str) -> tuple[str, str]:
    if not sentence.strip("'- "):
        return "no_letters", ""
    return ("too_long", "") if sentence.count(" ") >= MAX_WORDS else ("", sentence)
