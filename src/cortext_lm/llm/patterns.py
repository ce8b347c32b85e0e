"""Regular expressions from the files of others: may one be run on a text of this project?

The engines of Python and of tokenizers (Oniguruma) try one way after another. A repeat within a
repeat, such as `((a+)+)+!`, has exponentially many ways, and no text is long enough to be safe. The
rules here admit every pattern of the tokenizers and adapters that are in use, and bound the ways.

`cost` reads the syntax of either engine, without running anything.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

MOST_CHARACTERS = 10_000
MOST_BITS = 24.0
"""Bound on the ways of matching at one place, as a power of 2: a second at most."""
UNBOUNDED_BITS = 5.5
"""Bits of a repeat without an end: four of them in 100 characters have 2 ** 22 ways."""
ENDLESS = 1 << 62
_MOST_LEVELS = 30
_QUANTIFIER = re.compile(r"[*+?]|\{(?!\})(\d*)(,)?(\d*)\}")
# A comment, and blanks under the flag x, may stand between a part and its quantifier: not known.
_FLAGS = "[aimsuLWDSPy-]"
_OPENING = re.compile(rf"\?(?::|>|=|!|<=|<!|P?<[A-Za-z_]\w*>|{_FLAGS}*:|{_FLAGS}+(?=\)))")
_ESCAPE = re.compile(r"[pPx]\{[^}]*\}|.", re.DOTALL)
_ZERO_WIDTH = frozenset("bBAZzGKyY")


@dataclass(frozen=True)
class PatternBounds:
    """The bounds of a pattern, or of a part of it.

    Attributes:
        shortest: Fewest characters that match; a small number may stand for a larger one.
        bits: Ways of matching at one place, as a power of 2.
        copies: Characters and classes, each as often as `{n}` repeats it.
        literal: The text that alone matches; None where there are several.
        is_simple: True where it matches in one way only, so that it may be repeated.
    """

    shortest: int = 0
    bits: float = 0.0
    copies: int = 1
    literal: str | None = None
    is_simple: bool = True


def cost(pattern: str, nested_classes: bool = False) -> PatternBounds:
    """Return the bounds of a pattern.

    Args:
        pattern: The regular expression.
        nested_classes: True for Oniguruma, in which `[` within a class begins another one; in
            Python it is a character.

    Raises:
        ValueError: With one line, for a pattern that has too many ways, or a form that is not known
            here, such as a reference to a group.
    """
    if len(pattern) > MOST_CHARACTERS:
        raise ValueError(f"has {len(pattern):,} characters; at most {MOST_CHARACTERS:,} are read")
    parser = _Parser(pattern, nested_classes)
    bounds = parser.alternatives(0)
    if parser.at < len(pattern):
        raise ValueError("has a closing bracket too many")
    return bounds


class _Parser:
    def __init__(self, pattern: str, nested_classes: bool) -> None:
        self.pattern = pattern
        self.nested_classes = nested_classes
        self.at = 0

    def alternatives(self, level: int) -> PatternBounds:
        """Read `a|b|c` up to the end or a closing bracket."""
        if level > _MOST_LEVELS:
            raise ValueError(f"has more than {_MOST_LEVELS} levels of brackets")
        parts = [self._sequence(level)]
        while self.pattern[self.at : self.at + 1] == "|":
            self.at += 1
            parts.append(self._sequence(level))
        if len(parts) == 1:
            return parts[0]
        # Alternatives of the whole pattern are tried one after another, with nothing behind them.
        choice = 0.0 if level == 0 or _are_apart(parts) else math.log2(len(parts))
        bits = max(each.bits for each in parts) + choice
        copies = sum(each.copies for each in parts)
        return _checked(
            PatternBounds(min(each.shortest for each in parts), bits, copies, None, False)
        )

    def _sequence(self, level: int) -> PatternBounds:
        """Read parts that follow each other."""
        shortest, bits, most_bits, copies, is_simple = 0, 0.0, 0.0, 0, True
        literal: str | None = ""
        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            part, looks_ahead = self._part(level)
            part = self._repeated(part, level)
            if looks_ahead:  # it is tried once for each way of what stands before it
                most_bits = max(most_bits, bits + part.bits)
                is_simple = is_simple and not part.bits
                literal = None
            else:
                bits += part.bits
                shortest += part.shortest
                is_simple = is_simple and part.is_simple
                both = literal is not None and part.literal is not None
                literal = f"{literal}{part.literal}" if both else None
            copies += part.copies
        return _checked(PatternBounds(shortest, max(bits, most_bits), copies, literal, is_simple))

    def _part(self, level: int) -> tuple[PatternBounds, bool]:
        """Read one character, class or group; tell whether it only looks ahead or behind."""
        character = self.pattern[self.at]
        self.at += 1
        if character == "(":
            return self._group(level)
        if character == "[":
            self._skip_class()
            return PatternBounds(1), False
        if character == "\\":
            return self._escape(), False
        if character in "^$":
            return PatternBounds(), False
        return PatternBounds(1, literal=None if character == "." else character), False

    def _escape(self) -> PatternBounds:
        match = _ESCAPE.match(self.pattern, self.at)
        if match is None:
            raise ValueError("ends with a backslash")
        self.at = match.end()
        if match[0] in "kg" or match[0] in "123456789":
            raise ValueError("refers to one of its groups")
        return PatternBounds(0 if match[0] in _ZERO_WIDTH else 1)

    def _skip_class(self) -> None:
        """Pass over `[...]`."""
        depth = 1
        start = self.at + self.pattern.startswith("^", self.at)
        self.at = start + self.pattern.startswith("]", start)
        while depth:
            if self.at >= len(self.pattern):
                raise ValueError("has a class [ without its end")
            character = self.pattern[self.at]
            depth += (character == "[" and self.nested_classes) - (character == "]")
            self.at += 1 + (character == "\\")

    def _group(self, level: int) -> tuple[PatternBounds, bool]:
        opening = ""
        if self.pattern.startswith("?", self.at):
            match = _OPENING.match(self.pattern, self.at)
            if match is None:
                raise ValueError(f"has the unknown form ({self.pattern[self.at : self.at + 3]}")
            opening = match[0]
            self.at = match.end()
        inner = self.alternatives(level + 1)
        if not self.pattern.startswith(")", self.at):
            raise ValueError("has a bracket ( without its end")
        self.at += 1
        looks = opening in ("?=", "?!", "?<=", "?<!")
        return (PatternBounds(0, inner.bits, inner.copies) if looks else inner), looks

    def _repeated(self, part: PatternBounds, level: int) -> PatternBounds:
        """Read the quantifiers after a part, and return the repeated part."""
        match = _QUANTIFIER.match(self.pattern, self.at)
        if match is None:
            return part
        self.at = match.end()
        least, most = _range(match)
        if most > 1 and not part.is_simple:
            raise ValueError("has a repeat, or a choice, within a repeat")
        rest = self.pattern[self.at : self.at + 2]
        if rest.startswith("?") or (rest.startswith("+") and not match[0].endswith("}")):
            self.at += 1  # lazy or possessive
        elif level == 0 and rest in ("+", "+|"):
            self.at += 1  # a repeat of a repeat, behind which nothing can fail
        if _QUANTIFIER.match(self.pattern, self.at):
            raise ValueError("has a repeat, or a choice, within a repeat")
        if least == most:
            literal = None if part.literal is None or least > 1 else part.literal
            return _checked(
                PatternBounds(
                    least * part.shortest, part.bits, least * part.copies, literal, part.is_simple
                )
            )
        bits = min(UNBOUNDED_BITS, math.log2(most - least + 1))
        copies = part.copies * max(1, least, most if most < ENDLESS else 0)
        return _checked(PatternBounds(least * part.shortest, part.bits + bits, copies, None, False))


def _range(match: re.Match[str]) -> tuple[int, int]:
    """Return the fewest and the most rounds of a quantifier."""
    if match[0] in "*+?":
        return int(match[0] == "+"), 1 if match[0] == "?" else ENDLESS
    least = int(match[1] or 0)
    if not match[2]:
        return least, least
    most = int(match[3]) if match[3] else ENDLESS
    return (least, most) if least <= most else (most, least)


def _are_apart(parts: Sequence[PatternBounds]) -> bool:
    """Tell whether alternatives are texts of which none begins with another one."""
    texts = sorted((each.literal or "").casefold() for each in parts)
    return all(texts) and not any(after.startswith(before) for before, after in pairwise(texts))


def _checked(bounds: PatternBounds) -> PatternBounds:
    if bounds.bits > MOST_BITS:
        raise ValueError("has too many repeats and choices that follow each other")
    if bounds.copies > MOST_CHARACTERS:  # an engine compiles each copy
        raise ValueError(f"is longer than {MOST_CHARACTERS:,} characters, its repeats written out")
    return bounds
