"""Sentence normalisation as the Brain-to-Text benchmark scores it.

Words are compared after this and nothing else, so the order of the steps is kept exactly as in the
public release (`remove_punctuation` of `model_training/evaluate_model_helpers.py`), with its
consequences:

- everything but the letters a-z, the hyphen, the blank and the apostrophe vanishes *without leaving
  a blank*:
  `"3.5 km"` becomes `"km"`, `"café"` becomes `"caf"`, and two words with only a tab between them
  become one;
- a hyphen before a blank becomes a blank (`"wait - what"` -> `"wait what"`), one inside a word
  stays (`"well-known"`),
  and so does one that begins or ends the text;
- a double hyphen vanishes and joins its neighbours (`"yes--no"` -> `"yesno"`), but before a blank
  its second half is
  taken first and the other half remains (`"yes-- no"` -> `"yes- no"`), so that normalising again
  can change more;
- a blank before an apostrophe vanishes (`"say 'no'"` -> `"say'no'"`).
"""

from __future__ import annotations

import re

_NOT_SCORED = re.compile(r"[^a-zA-Z\- ']")


def normalize(sentence: str) -> str:
    """Return the sentence as the benchmark scores it.

    Lower case, only letters, apostrophes, hyphens and single blanks.
    """
    kept = _NOT_SCORED.sub("", sentence)
    return " ".join(kept.replace("- ", " ").replace("--", "").replace(" '", "'").lower().split())
