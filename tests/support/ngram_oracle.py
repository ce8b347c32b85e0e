"""ARPA files and scoring with them in pure Python: what the compiled models are compared with.

Natural logs.
"""

import gzip
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from cortext.decoding.ngram import TextScore
from cortext.decoding.ngram.vocabulary import BOS, EOS, LN10, SPECIAL, UNK

Context = tuple[int, ...]
State = Context
"""What of the history can still matter: the longest suffix that is the context of an n-gram."""


@dataclass
class Arpa:
    """Numbers of words, the counts that the header states, and natural logs by n-gram.

    Back-offs are those of n-grams that begin a longer one, and others than 0.
    """

    words: dict[str, int] = field(default_factory=dict)
    counts: tuple[int, ...] = ()
    probs: dict[Context, float] = field(default_factory=dict)
    backoffs: dict[Context, float] = field(default_factory=dict)


def read_arpa(path: Path) -> Arpa:
    """Read a sound ARPA file, plain or gzipped."""
    arpa, order, extended = Arpa(), 0, set()
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        for line in map(str.strip, file):
            if line.startswith("ngram "):
                arpa.counts += (int(line.partition("=")[2]),)
            elif line.endswith("-grams:"):
                order = int(line[1:].partition("-")[0])
            elif order and line and not line.startswith("\\"):
                fields = line.split()
                ngram = tuple(
                    arpa.words.setdefault(word, len(arpa.words)) for word in fields[1 : order + 1]
                )
                arpa.probs[ngram] = float(fields[0]) * LN10
                arpa.backoffs[ngram] = (
                    float(fields[order + 1]) * LN10 if len(fields) > order + 1 else 0.0
                )
                extended.add(ngram[:-1])
    assert arpa.counts == tuple(
        sum(len(ngram) == n + 1 for ngram in arpa.probs) for n in range(len(arpa.counts))
    )
    arpa.backoffs = {
        c: value for c, value in arpa.backoffs.items() if value != 0.0 or c in extended
    }
    return arpa


class NGram:
    """A back-off n-gram model.

    P(w | h) is that of the longest listed n-gram, times the back-offs of longer contexts.

    Unknown words get the probability of `<unk>`.
    """

    def __init__(self, arpa: Arpa) -> None:
        self.order = len(arpa.counts)
        self.counts = arpa.counts
        self._words, self._probs, self._backoffs = arpa.words, arpa.probs, arpa.backoffs
        self._unk = self._words[UNK]

    @property
    def vocabulary(self) -> list[str]:
        """The words the model knows, without `<unk>`, `<s>` and `</s>`."""
        return [word for word in self._words if word not in SPECIAL]

    def __contains__(self, word: object) -> bool:
        return word in self._words and word not in SPECIAL

    def begin(self) -> State:
        """The state at the start of a sentence."""
        return self._shorten((self._words[BOS],))

    def score(self, state: State, word: str) -> tuple[float, State]:
        """Log-probability of `word` after `state`, and the state after it."""
        number = self._words.get(word, self._unk)
        log_prob = 0.0
        for start in range(len(state) + 1):
            context = state[start:]
            listed = self._probs.get((*context, number))
            if listed is not None:
                log_prob += listed
                break
            log_prob += self._backoffs.get(context, 0.0)
        return log_prob, self._shorten((*state, number))

    def end(self, state: State) -> float:
        """Log-probability that the sentence ends after `state`."""
        return self.score(state, EOS)[0]

    def sentence(self, text: str) -> float:
        """Log-probability of a sentence and its end; words are separated by blanks."""
        state, total = self.begin(), 0.0
        for word in text.split():
            log_prob, state = self.score(state, word)
            total += log_prob
        return total + self.end(state)

    def unigram(self, word: str) -> float:
        """Log-probability of a word without any context."""
        return self._probs[self._words.get(word, self._unk),]

    def score_text(self, sentences: Iterable[str]) -> TextScore:
        """Perplexity and unknown words of normalised sentences."""
        n_sentences = n_words = n_unknown = 0
        total = unknown_total = 0.0
        for sentence in sentences:
            state, n_sentences = self.begin(), n_sentences + 1
            for word in sentence.split():
                log_prob, state = self.score(state, word)
                n_words += 1
                total += log_prob
                if word not in self:
                    n_unknown += 1
                    unknown_total += log_prob
            total += self.end(state)
        return TextScore(n_sentences, n_words, n_unknown, total, total - unknown_total)

    def _shorten(self, words: Context) -> State:
        for start in range(max(0, len(words) - self.order + 1), len(words)):
            if words[start:] in self._backoffs:
                return words[start:]
        return ()
