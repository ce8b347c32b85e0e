"""Numbers as words of American English: years, money, times, dates, fractions.

num2words uses other words ("two thousand and five"), which would change the texts that language
models are trained on. It reads neither times nor measures.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
).split()
_TENS = "_ _ twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = ("", " thousand", " million", " billion", " trillion")
_LONGEST = 15  # digits; longer ones are read one by one, like serial numbers
_IRREGULAR_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
MONTHS = (
    "January February March April May June July August September October November December"
).split()
_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"),
    "¥": ("yen", "yen", "sen", "sen"),
}
_MAGNITUDES = {
    "k": "thousand",
    "m": "million",
    "mn": "million",
    "b": "billion",
    "bn": "billion",
    "tn": "trillion",
}
_DENOMINATORS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 16, 20, 32, 64, 100)
_UNITS = {
    "km": "kilometer", "m": "meter", "cm": "centimeter", "mm": "millimeter", "mi": "mile", "yd": "yard",
    "kg": "kilogram", "g": "gram", "mg": "milligram", "lb": "pound", "lbs": "pound", "oz": "ounce",
    "tbsp": "tablespoon", "tsp": "teaspoon", "ml": "milliliter", "mL": "milliliter", "l": "liter", "L": "liter",
    "hz": "hertz", "Hz": "hertz", "kHz": "kilohertz", "MHz": "megahertz", "GHz": "gigahertz",
    "KB": "kilobyte", "kB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte",
    "W": "watt", "kW": "kilowatt", "MW": "megawatt", "kWh": "kilowatt hour",
    "ms": "millisecond", "sec": "second", "secs": "second", "min": "minute", "mins": "minute",
    "h": "hour", "hr": "hour", "hrs": "hour", "yr": "year", "yrs": "year",
    "sq ft": "square foot", "sq mi": "square mile", "ft": "foot", "km2": "square kilometer", "m2": "square meter",
    "mph": "mile per hour", "kph": "kilometer per hour", "km/h": "kilometer per hour", "m/s": "meter per second",
    "°C": "degree celsius", "°F": "degree fahrenheit", "°": "degree",
}  # fmt: skip
_PLURALS = {
    "foot": "feet",
    "hertz": "hertz",
    "kilohertz": "kilohertz",
    "megahertz": "megahertz",
} | {"gigahertz": "gigahertz"}

_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?"
_MONTH = "|".join(MONTHS)
_UNIT = "|".join(sorted(map(re.escape, _UNITS), key=len, reverse=True))


@lru_cache(maxsize=65536)
def cardinal(number: int) -> str:
    """Spell `1984` as one thousand nine hundred eighty four.

    Negative numbers begin with "minus"; at most 15 digits are read.
    """
    if number < 0:
        return f"minus {cardinal(-number)}"
    if number < 1000:
        return _below_thousand(number)
    groups = []
    for scale in _SCALES:
        number, rest = divmod(number, 1000)
        if rest:
            groups.append(_below_thousand(rest) + scale)
    return " ".join(reversed(groups))


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    if hundreds:
        return f"{_SMALL[hundreds]} hundred" + (f" {_below_thousand(rest)}" if rest else "")
    if number < 20:
        return _SMALL[number]
    tens, ones = divmod(number, 10)
    return _TENS[tens] + (f" {_SMALL[ones]}" if ones else "")


@lru_cache(maxsize=4096)
def ordinal(number: int) -> str:
    """Spell `21` as twenty first."""
    before, _, last = cardinal(number).rpartition(" ")
    if last in _IRREGULAR_ORDINALS:
        last = _IRREGULAR_ORDINALS[last]
    else:
        last = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return f"{before} {last}".strip()


@lru_cache(maxsize=4096)
def year(number: int) -> str:
    """Spell `1984` as nineteen eighty four.

    `1905` is nineteen oh five, `2005` two thousand five, `2026` twenty twenty six.
    """
    century, rest = divmod(number, 100)
    if not 10 <= century <= 20 or number % 1000 < 10:
        return cardinal(number)
    if rest == 0:
        return f"{cardinal(century)} hundred"
    return f"{cardinal(century)} {'oh ' if rest < 10 else ''}{cardinal(rest)}"


def digits(text: str) -> str:
    """Spell `007` as zero zero seven; skip other characters."""
    return " ".join([_SMALL[int(digit)] for digit in text if digit.isdigit()])


def amount(text: str) -> str:
    """Spell a number as written, `1,234.5`, as a quantity.

    A number with a leading zero (`007`) or a very long one is spelt digit by digit.
    """
    whole, point, fraction = text.replace(",", "").partition(".")
    if len(whole) > _LONGEST or (len(whole) > 1 and whole[0] == "0"):
        words = digits(whole)
    else:
        words = cardinal(int(whole)) if whole else ""
    return f"{words} point {digits(fraction)}".strip() if point else words


def plural(word: str) -> str:
    """Return the plural of a unit.

    Of several words, the first is plural (`miles per hour`), or the last (`square feet`).
    """
    first, _, rest = word.partition(" ")
    if rest and first in ("square", "kilowatt"):
        return f"{first} {plural(rest)}"
    return f"{_PLURALS.get(first, first + 's')} {rest}".strip()


def _money(match: re.Match[str]) -> str:
    symbol, number, magnitude = match["symbol"], match["number"], match["magnitude"]
    one, many, cent, cents = _CURRENCIES[symbol]
    if match.string.endswith(("a ", "A "), 0, match.start()):  # a $5 bill
        many, cents = one, cent
    if magnitude:
        magnitude = _MAGNITUDES.get(magnitude.lower(), magnitude)
        return f"{amount(number)} {magnitude} {many}"
    whole, _, fraction = number.replace(",", "").partition(".")
    if len(fraction) != 2 or len(whole) > _LONGEST:
        return f"{amount(number)} {one if number == '1' else many}"
    parts = []
    if int(whole or 0):
        parts.append(f"{cardinal(int(whole))} {one if int(whole) == 1 else many}")
    if int(fraction):
        parts.append(f"{cardinal(int(fraction))} {cent if int(fraction) == 1 else cents}")
    return " and ".join(parts) or f"zero {many}"


def _time(match: re.Match[str]) -> str:
    hour, minute, second = match["hour"], match["minute"], match["second"]
    half = f" {match['half'].lower()}m" if match["half"] else ""
    parts = [cardinal(int(hour))]
    if int(minute):
        parts.append(("oh " if int(minute) < 10 else "") + cardinal(int(minute)))
    elif not half and not second:
        parts.append("o'clock" if 1 <= int(hour) <= 12 else "hundred")
    if second:
        parts.append(f"and {cardinal(int(second))} second{'' if int(second) == 1 else 's'}")
    return " ".join(parts) + half


def _decade(match: re.Match[str]) -> str:
    number = match["decade"]
    words = year(int(number)) if len(number) == 4 else cardinal(int(number))
    return f"{words[:-1]}ies" if words.endswith("y") else f"{words}s"


def _fraction(match: re.Match[str]) -> str:
    whole = match["whole"]
    top = int(match["top"])
    bottom = int(match["bottom"])
    unit = _UNITS[match["unit"]] if match["unit"] else ""
    if bottom not in _DENOMINATORS or top >= bottom:  # 24/7, 9/11, 50/50
        return " ".join(
            [*(amount(text) for text in (whole, match["top"], match["bottom"]) if text), unit]
        )
    name = {2: "half", 4: "quarter"}.get(bottom) or ordinal(bottom)
    if top > 1:
        name += "s"
    if whole:
        return (
            f"{amount(whole)} and {'a' if top == 1 else cardinal(top)} {name}"
            f" {plural(unit) if unit else ''}"
        )
    return f"{cardinal(top)} {name} {unit}"


def _measure(match: re.Match[str]) -> str:
    unit = _UNITS[match["unit"]]
    one = match["number"] == "1" or match["hyphen"]  # a 6-ft wall
    return f"{amount(match['number'])} {unit if one else plural(unit)}"


def _day(match: re.Match[str]) -> str:
    end = f" {year(int(match['year']))}" if match["year"] else ""
    return f"{match['month']} {ordinal(int(match['day']))}{end}"


def _day_first(match: re.Match[str]) -> str:
    return f"{match['the'] or 'the '}{ordinal(int(match['day']))} of {match['month']}"


def _date(match: re.Match[str]) -> str:
    full = int(match["year"])
    return f"{MONTHS[int(match['month']) - 1]} {ordinal(int(match['day']))} {year(full)}"


def _any_number(match: re.Match[str]) -> str:
    text = match.group()
    if len(text) == 4 and text.isdigit() and 1000 <= int(text) <= 2099:
        return year(int(text))
    if text.count(".") > 1:  # a version
        return " point ".join([amount(part) for part in text.split(".")])
    return amount(text)


_DAY = r"(?P<day>0?[1-9]|[12]\d|3[01])"
_MONTH_NUMBER = r"(?P<month>0?[1-9]|1[0-2])"
# A step is tried only on a text that has one of the first characters.
_STEPS: tuple[tuple[str, re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (
        "'",
        re.compile(r"\b(\d)' ?(\d{1,2})(?:\"|''|\b)(?!\w)"),
        lambda m: f"{amount(m[1])} foot {amount(m[2])}",
    ),
    ("-", re.compile(rf"\b(?P<year>[12]\d\d\d)-{_MONTH_NUMBER}-{_DAY}\b"), _date),
    ("/", re.compile(rf"\b{_MONTH_NUMBER}/{_DAY}/(?P<year>[12]\d\d\d)\b"), _date),
    ("-", re.compile(r"(?<![\w.,)'-])-(?=[$£€¥]?\.?\d)"), lambda m: "minus"),
    (
        "JFMASOND",
        re.compile(
            rf"\b(?P<month>{_MONTH}) {_DAY}(?:st|nd|rd|th)?(?![\d:%]|[,.]\d)"
            r"(?:,? (?P<year>[12]\d\d\d)(?![\d%]|[,.]\d))?"
        ),
        _day,
    ),
    (
        "JFMASOND",
        re.compile(rf"\b(?P<the>[Tt]he )?{_DAY}(?:st|nd|rd|th)? (?:of )?(?P<month>{_MONTH})\b"),
        _day_first,
    ),
    (
        ":",
        re.compile(
            r"\b(?P<hour>[01]?\d|2[0-4]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?(?!\d)"
            r"(?: ?(?P<half>[AaPp])\.?[Mm]\b\.?)?"
        ),
        _time,
    ),
    (
        "mM",
        re.compile(r"\b(1[0-2]|[1-9]) ?([AaPp])\.?[Mm]\b"),
        lambda m: f"{amount(m[1])} {m[2].lower()}m",
    ),
    (
        "-.",
        re.compile(
            r"\b1-\d{3}-\d{3}-\d{4}\b|(?:\(\d{3}\) ?|\b\d{3}[-.])\d{3}[-.]\d{4}\b|\b\d{3}-\d{4}\b"
        ),
        lambda m: digits(m[0]),  # a telephone number
    ),
    (
        "/",
        re.compile(
            r"\b(?:(?P<whole>\d{1,4})[ -])?(?P<top>\d{1,3})/(?P<bottom>\d{1,3})\b(?!/)"
            rf"(?: (?P<unit>{_UNIT})(?![\w']))?"
        ),
        _fraction,
    ),
    (
        "/",
        re.compile(r"(?<=\d)/(?=(?:second|minute|hour|day|week|month|year|person|mile|pound)\b)"),
        lambda m: "per",
    ),
    ("-:", re.compile(r"(?<=\d)(?: ?- ?|--)(?=[$£€]?\d)|(?<=\d):(?=\d)"), lambda m: "to"),
    (
        "$£€¥",
        re.compile(
            rf"(?:\b(?:US|AU|CA|NZ|HK))?(?P<symbol>[$£€¥]) ?(?P<number>{_NUMBER}|\.\d+)"
            r"(?:["
            r" -]?(?P<magnitude>hundred|thousand|million|billion|trillion|[kK]|[mM]|mn|[bB]n|[bB]|tn)\b)?"
        ),
        _money,
    ),
    ("£€¥", re.compile(rf"(?P<number>{_NUMBER}) ?(?P<symbol>[£€¥])(?P<magnitude>)"), _money),
    (
        "¢",
        re.compile(rf"({_NUMBER}) ?¢"),
        lambda m: f"{amount(m[1])} cent{'' if m[1] == '1' else 's'}",
    ),
    ("s", re.compile(r"'?\b(?P<decade>[12]\d\d0|[2-9]0)'?s\b"), _decade),
    (
        "tdTD",
        re.compile(r"\b(\d{1,3}(?:,\d{3})+|\d{1,15})(?:st|nd|rd|th|ST|ND|RD|TH)\b"),
        lambda m: ordinal(int(m[1].replace(",", ""))),
    ),
    ("%", re.compile(rf"({_NUMBER}) ?%"), lambda m: f"{amount(m[1])} percent"),
    (
        "",
        re.compile(
            rf"(?P<number>{_NUMBER}) ?(?P<hyphen>-?)(?P<unit>{_UNIT})(?![\w'])\.?(?! ?\w+\.\w)"
        ),
        _measure,
    ),
    ("#", re.compile(r"#(?=\d)"), lambda m: "number"),
    ("x×", re.compile(r"(?<=\d) ?[x×] ?(?=\d)"), lambda m: "by"),
    ("-", re.compile(r"\d[\d,.]*(?:-[A-Za-z]+)+"), lambda m: m[0].replace("-", " ")),  # 19-year-old
    ("", re.compile(r"(?<=[A-Za-z])-?(?=\d)|(?<=\d)(?=[A-Za-z])"), lambda m: ""),
    ("", re.compile(rf"{_NUMBER}(?:\.\d+)*|(?<!\w)\.\d+"), _any_number),
)


def spell_numbers(text: str) -> str:
    """Replace every number of a text by its words.

    Four digits from 1000 to 2099 are read as a year, `7/4/2020` in the American order, and
    fractions with usual denominators as fractions. `text` has its punctuation; its dashes and
    quotes are ASCII.
    """
    for needed, pattern, words in _STEPS:
        if not needed or any(character in text for character in needed):
            text = pattern.sub(_spaced(words), text)
    return text


def _spaced(words: Callable[[re.Match[str]], str]) -> Callable[[re.Match[str]], str]:
    """Put blanks around the words of a number, but none before the `'s` of `1984's`."""
    return lambda match: (
        f" {words(match)}{'' if match.string.startswith(chr(39) + 's', match.end()) else ' '}"
    )
