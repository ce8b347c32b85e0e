"""Sentence normalisation as the Brain-to-Text benchmark scores it.

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
"""

from __future__ import annotations

import re

from cortext.arguments import check_text

_NOT_SCORED = re.compile(r"[^a-zA-Z\- ']")


def normalize(sentence: str) -> str:
    """Return the sentence as the benchmark scores it.

    The result is in lower case, and has only letters, apostrophes, hyphens and single blanks.
    """
    check_text(sentence, "sentence")
    kept = _NOT_SCORED.sub("", sentence)
    return " ".join(kept.replace("- ", " ").replace("--", "").replace(" '", "'").lower().split())
