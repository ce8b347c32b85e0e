"""A large model that chooses among a few ways to show a sentence.

The candidates are another caser's and the rules', each with a full stop, a question mark and an
exclamation mark at its end. The model's log-probability decides. It takes part only where it tells
right from wrong on a few sentences, and where it is quick enough; else the other caser's text
stands.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from cortext.errors import CortextError
from cortext_live.casing.rules import RuleCaser
from cortext_live.casing.writing import ENDS, Caser

BUDGET_MS = 100.0
"""Milliseconds that a choice may hold up the final text."""
SKIPPED = 20
"""Sentences that are left to the other caser after a choice took too long, or failed."""
Score = Callable[[Sequence[str]], Sequence[float]]
"""Natural log-probabilities of texts."""
_PROBES = (
    ("How are you?", ("how are you.", "How are you.", "how are you?")),
    ("I would like some water.", ("i would like some water", "I would like some water?")),
    ("Where is my sister?", ("where is my sister", "Where is my sister.")),
    ("Thank you very much.", ("thank you very much.", "Thank you very much?")),
)
"""A sentence as people write it, and ways that are worse."""
_TIMED = "I think we should go to the park on Monday with my sister, please"


class LargeCaser:
    """A caser whose final sentences a large model chooses; see the head of this module.

    Args:
        inner: Makes candidates, and shows what the model does not choose: further texts of a list,
            sentences for which there is no time, or on which the model fails.
        score: The model.
        budget_ms: Milliseconds that a choice may take.

    Attributes:
        last_ms: Milliseconds of the latest choice; 0 before the first.
    """

    def __init__(self, inner: Caser, score: Score, budget_ms: float = BUDGET_MS) -> None:
        self._inner = inner
        self._score = score
        self._budget_ms = budget_ms
        self._n_to_skip = 0
        self.last_ms = 0.0

    @property
    def language(self) -> str:
        """See `Caser`."""
        return self._inner.language

    def unfit(self) -> str | None:
        """Return why the model should not choose: it cannot tell, or it takes too long; or None."""
        try:
            for right, wrong in _PROBES:
                scores = self._score([right, *wrong])
                if max(scores[1:]) >= scores[0]:
                    return f"the large model does not prefer {right!r}"
            self._choose(_TIMED, [_TIMED])  # again: the first computation is slower
            self._choose(_TIMED, [_TIMED])
        except CortextError as error:
            return error.what
        if self.last_ms > self._budget_ms:
            return f"a choice takes the large model {self.last_ms:.0f} ms"
        return None

    def show(self, texts: Sequence[str], names: Mapping[str, str] = {}) -> list[str]:
        """See `Caser`; the model does not choose: this is for many texts, of a log for one."""
        return self._inner.show(texts, names)

    def show_final(self, texts: Sequence[str], names: Mapping[str, str] = {}) -> list[str]:
        """Return the candidates of an utterance as they are shown; the model chooses the first."""
        shown = self.show(texts, names)
        if self._n_to_skip:
            self._n_to_skip -= 1
        elif texts and texts[0]:
            others = RuleCaser().show(texts[:1], names) if self.language == "en" else []
            try:
                shown[0] = self._choose(shown[0], [shown[0], *others])
            except CortextError:
                self._n_to_skip = SKIPPED
            if self.last_ms > self._budget_ms:
                self._n_to_skip = SKIPPED
        return shown

    def _choose(self, first: str, texts: Sequence[str]) -> str:
        started = time.perf_counter()
        stems = dict.fromkeys(text.rstrip("".join(ENDS)) for text in texts)
        variants = list(dict.fromkeys([first, *(stem + end for stem in stems for end in ENDS)]))
        scores = self._score(variants)
        self.last_ms = 1000 * (time.perf_counter() - started)
        return variants[max(range(len(variants)), key=lambda number: scores[number])]
