"""Bounds of what a tokenizer of others does with a text, read from its file before it is used.

A `tokenizer.json` lists steps that change a text, and some can make it grow: four steps that
replace one character by a thousand make 10^12 bytes of one word. The library then ends the whole
process, at that word and at no other. The growth of all steps together is bounded here, and so are
their regular expressions (`patterns`), for every text.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any

from cortext_lm.llm.patterns import cost

MOST_GROWTH = 2000.0
"""Most characters that one may become: a text of 1,000 characters takes 100 MB then."""
MOST_STEPS = 200
MOST_PADDING = 1 << 17
"""Most tokens that a text is padded to."""
MOST_WORD = 1000
"""Most characters of a word that WordPiece tries to divide, which takes the square of it."""
_MOST_PIECES = 100
_MOST_MARK = 100
_LISTS = ("normalizers", "pretokenizers", "decoders", "processors")
_GROWTH = {
    "BertNormalizer": 24.0,  # blanks around Chinese characters, NFD, small letters
    "NFD": 4.0,
    "NFKD": 18.0,
    "NFC": 3.0,
    "NFKC": 18.0,
    "Lowercase": 2.0,
    "ByteLevel": 4.0,
}
"""Most characters that one becomes by a step, by the tables of Unicode (UAX 15)."""


def check_tokenizer(content: dict[str, Any]) -> None:
    """Raise ValueError, with one line, for a tokenizer whose work is not bounded.

    Args:
        content: A `tokenizer.json`.
    """
    growth = 1.0
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        growth = 1.0 if part == "decoder" else growth  # it makes text of tokens
        for number, step in enumerate(_steps(content.get(part))):
            if number >= MOST_STEPS:
                raise ValueError(f"its {part} has more than {MOST_STEPS} steps")
            growth *= _growth(step, part)
            if growth > MOST_GROWTH:
                raise ValueError(f"its {part} lets a text grow {growth:,.0f} times")
    _check_padding(content.get("padding"))
    _check_model(content.get("model"))


def _steps(node: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part, those of sequences within it one by one."""
    left = [node]
    while left:
        step = left.pop()
        if step is None:
            continue
        # Without a type, the library tries all types that have these fields.
        if not isinstance(step, dict) or not isinstance(step.get("type"), str):
            raise ValueError("it has a step without a type")
        if step["type"] == "Sequence":
            left += reversed([each for name in _LISTS for each in step.get(name) or ()])
        else:
            yield step


def _growth(step: dict[str, Any], part: str) -> float:
    """Return how many times as long a step can make a text, at least 1."""
    kind = step["type"]
    if kind in ("Split", "Replace"):
        shortest = _shortest(step.get("pattern"), part)
        added = len(str(step.get("content", ""))) if kind == "Replace" else 0
        # Between any two characters there is nothing, which some patterns match.
        return max(1.0, added / shortest) if shortest else 1.0 + added
    if kind == "Prepend":
        return 1.0 + len(str(step.get("prepend", "")))
    if kind == "Precompiled":
        return _longest_entry(step.get("precompiled_charsmap"))
    if kind == "TemplateProcessing":
        return max(_sequences(step, "single"), _sequences(step, "pair"))
    return _GROWTH.get(kind, 1.0)


def _shortest(pattern: Any, part: str) -> int:
    """Return the fewest characters that a pattern matches; 0 where that is nothing."""
    pattern = pattern if isinstance(pattern, dict) else {}
    if isinstance(text := pattern.get("String"), str):
        return len(text)
    if not isinstance(text := pattern.get("Regex"), str):
        return 0
    try:
        return min(1, cost(text, nested_classes=True).shortest)
    except ValueError as error:
        raise ValueError(f"its {part} has a regular expression that {error}") from None


def _longest_entry(charsmap: Any) -> float:
    """Return the length of the longest text in a table of SentencePiece.

    The table has its index's length in four bytes, the index, and texts with a zero byte between.
    """
    try:
        table = base64.b64decode(charsmap or "", validate=True)
    except (binascii.Error, ValueError, TypeError):
        raise ValueError("its precompiled_charsmap is damaged") from None
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return float(max(1, max(map(len, texts.split(b"\0")))))


def _sequences(step: dict[str, Any], name: str) -> float:
    """Return how often a template names the tokens of the text; most once or twice."""
    pieces = step.get(name) or ()
    special = step.get("special_tokens") or {}
    tokens = [each.get("ids") or () for each in special.values() if isinstance(each, dict)]
    if max(map(len, (pieces, *tokens))) > _MOST_PIECES:
        raise ValueError(f"its post_processor adds more than {_MOST_PIECES} tokens to a text")
    return float(max(1, sum("Sequence" in piece for piece in pieces)))


def _check_padding(padding: Any) -> None:
    padding = padding if isinstance(padding, dict) else {}
    strategy = padding.get("strategy")
    fixed = strategy.get("Fixed") if isinstance(strategy, dict) else 0
    for length in (fixed, padding.get("pad_to_multiple_of")):
        if isinstance(length, int) and length > MOST_PADDING:
            raise ValueError(f"it pads every text to {length:,} tokens; at most {MOST_PADDING:,}")


def _check_model(model: Any) -> None:
    model = model if isinstance(model, dict) else {}
    word = model.get("max_input_chars_per_word", 0)
    if isinstance(word, int) and word > MOST_WORD:
        raise ValueError(f"its model divides words of {word:,} characters; at most {MOST_WORD:,}")
    if model.get("dropout"):
        raise ValueError("its model divides words at random (dropout): each score would be another")
    for name in ("continuing_subword_prefix", "end_of_word_suffix", "unk_token"):
        if len(str(model.get(name) or "")) > _MOST_MARK:
            raise ValueError(f"its {name} has more than {_MOST_MARK} characters")
