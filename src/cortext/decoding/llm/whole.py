"""Token sequences scored each by itself, for models whose hypotheses cannot share a tree."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cortext.decoding.llm.model import CausalLM
from cortext.decoding.llm.scoring import score_tokens


class WholeSequences:
    """What `TokenTree` does, for any causal model: reads each sequence from its beginning, once.

    For models that take nothing up again where they left off, and for states of which memory holds
    too few: a mixture of attention and recurrent layers may keep 50 MB for each token. Sentences
    are short, and a GPU reads a few whole ones in about the time of one token.

    Attributes:
        evaluated: Tokens that the model has read; a long prefix, which is shared, is counted for
            each sequence.
        passes: Times that sequences were read; each takes one forward pass or more.
        peak_mb: 0: nothing is kept but a number for each sequence.
    """

    def __init__(self, lm: CausalLM, prefix: Sequence[int]) -> None:
        self._lm, self._prefix = lm, list(prefix)
        self.longest = lm.window - len(prefix)
        self._known: dict[tuple[int, ...], float] = {(): 0.0}
        self.evaluated = self.passes = 0
        self.peak_mb = 0.0

    def score(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """Natural log-probability of each token sequence after the prefix.

        Raises:
            LanguageModelError: Where the model fails or memory does not hold a single sequence.
        """
        wanted = [tuple(sequence) for sequence in sequences]
        unknown = list({each: None for each in wanted if each not in self._known})
        if unknown:
            self._known |= score_tokens(self._lm, self._prefix, unknown)
            self.passes += 1
            self.evaluated += sum(
                len(self._prefix) + len(read) for read in {each[:-1] for each in unknown}
            )
        return [self._known[each] for each in wanted]

    def retain(self, sequences: Iterable[Sequence[int]]) -> None:
        """Nothing to forget."""
