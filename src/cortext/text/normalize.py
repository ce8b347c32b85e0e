"""English sentences: as the Brain-to-Text benchmark scores them, and as people read them aloud.

The benchmark compares words after this normalisation. The order of the steps is therefore that of
the public release (`remove_punctuation` of `model_training/evaluate_model_helpers.py`), with its
consequences:

- Everything but the letters a-z, the hyphen, the blank and the apostrophe vanishes *without leaving
  a blank*: `"3.5 km"` becomes `"km"`, `"café"` becomes `"caf"`, and two words with only a tab
  between them become one.
- A hyphen before a blank becomes a blank (`"wait - what"` -> `"wait what"`). A hyphen inside a word
  stays (`"well-known"`), and so does one at the beginning or the end of the text.
- A double hyphen vanishes and joins its neighbours (`"yes--no"` -> `"yesno"`). Before a blank, its
  second half vanishes first and the other half remains (`"yes-- no"` -> `"yes- no"`): normalising
  again can change more.
- A blank before an apostrophe vanishes (`"say 'no'"` -> `"say'no'"`).

Nobody reads a prompt in this way. Labels are therefore of the words that `spoken_words` gives. The
two agree wherever the marks of a sentence stand beside a blank, as in almost all published prompts.
"""

from __future__ import annotations

import re

from cortext.arguments import check_text

_NOT_SCORED = re.compile(r"[^a-zA-Z\- ']")

SPOKEN_SIGNS = {"&": " and ", "+": " plus ", "=": " equals ", "@": " at ", "%": " percent "}
_SPOKEN = str.maketrans(SPOKEN_SIGNS | {"_": " "})
_DOT_OF_ABBREVIATION = re.compile(r"(?<=\b[A-Za-z])\.(?=[A-Za-z]\b)|(?<=\bPh)\.(?=D\b)")
_MARK = re.compile(r"[^\w'-]")  # letters and digits that English lacks are no marks
_ELISIONS = "(?:em|n|tis|twas|til|till|cause|cuz|bout|round|kay|im|er|ere)"
"""Words that begin with an apostrophe, which opens no quotation there."""
_QUOTATION = re.compile(
    rf"(?<![\w-])'(?!{_ELISIONS}\b)(?=\w)((?:[^']|(?<=\w)'(?=\w))*)(?<=\S)'(?!\w)", re.IGNORECASE
)
_STRAY = re.compile(r"-{2,}|''+|(?<!\w)-+|-+(?![\w'])|(?<![\w-])'(?!\w)")
# Tokens of the Penn Treebank and of the Moses tokeniser, which English text is published in.
_APART = re.compile(
    r"(?<=[a-z]) (?='(?:s|d|ll|re|ve|m|t)\b(?!'))"  # we 'd
    r"|(?<=\b(?:ca|wo)) (?=n't\b)|(?<=[a-z]) (?=n't\b)"  # ca n't
    r"|(?<=\b(?:gon|wan)) (?=na\b)|(?<=\bgot) (?=ta\b)|(?<=\b(?:lem|gim)) (?=me\b)"  # gon na
    r"|(?<=\b't) (?=(?:is|was)\b)",
    re.IGNORECASE,
)


def normalize(sentence: str) -> str:
    """Return the sentence as the benchmark scores it.

    The result is in lower case, and has only letters, apostrophes, hyphens and single blanks.
    """
    check_text(sentence, "sentence")
    kept = _NOT_SCORED.sub("", sentence)
    return " ".join(kept.replace("- ", " ").replace("--", "").replace(" '", "'").lower().split())


def spoken_words(sentence: str) -> list[str]:
    """Return the words of an English sentence as a person reads it aloud, in small letters.

    Every mark parts words, but for apostrophes, hyphens and the dots of abbreviations (`U.S.`).
    `&`, `+`, `=`, `@` and `%` are words. Quotation marks are none. Letters and digits that English
    lacks vanish, see `Language.damage`.

    Args:
        sentence: The sentence, in NFC, with typed apostrophes and hyphens.
    """
    check_text(sentence, "sentence")
    text = _DOT_OF_ABBREVIATION.sub("", sentence.translate(_SPOKEN))
    text = _STRAY.sub(" ", _QUOTATION.sub(r"\1", join_tokens(_MARK.sub(" ", text))))
    return [word for word in _NOT_SCORED.sub("", text).lower().split() if word.strip("-'")]


def join_tokens(text: str) -> str:
    """Join the halves of English words that a tokeniser has parted, as in `ca n't` and `it 's`."""
    return _APART.sub("", text) if " " in text else text
