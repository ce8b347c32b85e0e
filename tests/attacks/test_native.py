"""Attacks on the compiled module.

Whatever its classes and functions are given, they answer or raise, and never die.

The checked build (`make sanitize`) runs them too, and finds wrong addresses that do no harm by
chance.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attack_process import check_all
from native_attacks import Attack, check_native, odd

from cortext import _native
from cortext.decoding.engine import native_options
from cortext.decoding.options import DecoderOptions
from cortext.errors import CortextError
from cortext.settings import settings_of

ARPA = """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-1.0\t<unk>
-99\t<s>\t-0.5
-0.7\t</s>
-0.4\ta\t-0.3
-0.6\tb\t0

\\2-grams:
-0.2\t<s> a
-0.3\ta b
-0.1\tb </s>

\\end\\
"""
N_PHONEMES, N_TOKENS = 3, 5  # and SIL and the blank
COLUMNS = list(range(N_TOKENS))
NAN, INFINITE = math.nan, math.inf


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> There:
    """Model files, and a model of them."""
    return There(tmp_path_factory.mktemp("native"))


class There:
    """Sound parts, of which an attack spoils one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.arpa = folder / "lm.arpa"
        self.arpa.write_text(ARPA)
        self.ngram = _native.NGram.open(self.arpa)
        self.model = _native.Model.make(self.ngram, ["a", "b"], ["A", "BC AB"], [], N_PHONEMES)

    def binary(self, n_words: int, **how: Any) -> _native.NGram:
        """A trigram model of that many words that are distinct by their numbers, as a binary
        file.
        """
        words = [f"w{number}" for number in range(n_words)]
        unigrams = [
            "-1\t<unk>",
            "-99\t<s>\t-0.5",
            "-1\t</s>",
            *(f"-2\t{word}\t-0.1" for word in words),
        ]
        bigrams = [f"-1\t{one} {other}\t-0.1" for one, other in itertools.pairwise(words)]
        trigrams = [
            f"-0.5\t{' '.join(three)}" for three in zip(words, words[1:], words[2:], strict=False)
        ]
        parts = [unigrams, bigrams, trigrams]
        counts = "\n".join(f"ngram {order}={len(part)}" for order, part in enumerate(parts, 1))
        sections = "\n\n".join(
            "\n".join([f"\\{order}-grams:", *part]) for order, part in enumerate(parts, 1)
        )
        arpa, out = self.folder / f"{n_words}.arpa", self.folder / f"{n_words}.bin"
        arpa.write_text(f"\\data\\\n{counts}\n\n{sections}\n\n\\end\\\n")
        _native.write_binary(arpa, out, **how)
        return _native.NGram.open(out)

    def options(self, **changes: Any) -> _native.Options:
        """Sound options but for the changes."""
        options = _native.Options()
        options.offsets = [0.0] * N_TOKENS
        for name, value in changes.items():
            setattr(options, name, value)
        return options

    def stream(self, has_hook: bool = False, **changes: Any) -> _native.Stream:
        """A search, with options that may be spoilt."""
        return _native.Stream(self.model, self.options(**changes), COLUMNS, None, has_hook)

    def searched(self, **changes: Any) -> None:
        """A whole search, with options that may be spoilt."""
        search(self.stream(**changes))

    def searched_with(self, name: str, value: float) -> None:
        """A whole search with a value that `DecoderOptions` takes."""
        options = native_options(DecoderOptions(**{name: value}), ("a", "b", "c", "SIL", "BLANK"))
        search(_native.Stream(self.model, options, COLUMNS, None, False))


def log_probs(n_frames: int = 12, n_tokens: int = N_TOKENS) -> np.ndarray:
    """Noise."""
    scores = np.random.default_rng(0).normal(size=(n_frames, n_tokens)).astype(np.float32) * 3
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True)) if n_tokens else scores


def search(stream: _native.Stream) -> None:
    """All that can be done with an stream."""
    stream.advance(log_probs())
    stream.partial()
    stream.live()
    result = stream.finish()
    for number in range(len(result)):
        result.text(number), result.scores(number), result.words(number)


def option_attacks() -> Iterator[Attack]:
    """Values that no option may have.

    At the start, in the middle, and where given sentences are scored.
    """
    # blank_penalty and prior_weight have bounds, too, but reach the search as offsets.
    read_by_the_search = _native.Options.BOUNDS.keys() & settings_of(DecoderOptions).keys()
    for name in sorted(read_by_the_search):
        spoilt = values_out_of_bounds(name)
        last, says = spoilt[-1], rf"^{name} is "
        for value in spoilt:
            yield Attack(f"{name} {value}", lambda t, n=name, v=value: t.searched(**{n: v}), says)
        yield Attack(
            f"{name} {last} later",
            lambda t, n=name, v=last: t.stream().set_options(t.options(**{n: v})),
            says,
        )
        yield Attack(
            f"{name} {last} of a given sentence",
            lambda t, n=name, v=last: given(t, ["a"], **{n: v}),
            says,
        )


def values_out_of_bounds(name: str) -> list[float]:
    """Values just outside of an option's bounds, far outside, and none at all."""
    bounds = settings_of(DecoderOptions)[name]
    low, high = bounds.minimum, bounds.maximum
    if isinstance(getattr(DecoderOptions, name), int):
        return [-(2**31), 2**31 - 1, int(high) + 1, int(low) - 1]
    return [NAN, INFINITE, -INFINITE, 1e300, -1e300, high * 1.001, low - 1e-3]


def changed(t: There, word: str, codes: str, weights: list[float], **bonuses: float) -> None:
    """Search with an added word."""
    model = t.model.changed([(word, codes, weights)], [], bonuses)
    search(_native.Stream(model, t.options(), COLUMNS, None, False))


def made(t: There, words: Any, codes: Any, weights: Any = (), n_phonemes: Any = N_PHONEMES) -> None:
    """Search with a model of these words."""
    model = _native.Model.make(t.ngram, words, codes, list(weights), n_phonemes)
    n_tokens = max(n_phonemes, 0) + 2
    options = t.options(offsets=[0.0] * n_tokens)
    stream = _native.Stream(model, options, list(range(n_tokens)), None, False)
    stream.advance(log_probs(12, n_tokens))
    stream.finish()


SEARCH = [
    *option_attacks(),
    Attack("nan offsets", lambda t: t.searched(offsets=[NAN] * 5), "offset"),
    Attack("infinite offsets", lambda t: t.searched(offsets=[0, 0, 0, 0, -INFINITE]), "offset"),
    Attack("huge offsets", lambda t: t.searched(offsets=[1e300] + [0] * 4), "offset"),
    *(Attack(f"{n} offsets", lambda t, n=n: t.searched(offsets=[0.0] * n), "one offset a token") for n in (0, 1, 6, 10**6)),
    Attack("no model", lambda t: _native.Stream(None, t.options(), COLUMNS, None, False), "arguments"),
    Attack("another thing as a model", lambda t: _native.Stream(t.ngram, t.options(), COLUMNS, None, False), "arg"),
    Attack("no options", lambda t: _native.Stream(t.model, None, COLUMNS, None, False), "arguments"),
    Attack("no columns", lambda t: _native.Stream(t.model, t.options(), [], None, False), "one column a token"),
    Attack("columns beyond", lambda t: _native.Stream(t.model, t.options(), [0, 1, 2, 3, 5], None, False), "column"),
    Attack("columns below", lambda t: _native.Stream(t.model, t.options(), [0, 1, 2, 3, -1], None, False), "column"),
    Attack("a column of 2^40", lambda t: _native.Stream(t.model, t.options(), [2**40] * 5, None, False), "arg"),
    Attack("an utterance never begun", lambda t: _native.Stream.__new__(_native.Stream).finish()),
    Attack("an utterance begun twice", lambda t: begun_twice(t)),
    Attack("no frames at all", lambda t: t.stream().finish()),
    Attack("words so far of no frames", lambda t: t.stream().partial()),
    Attack("hypotheses of no frames", lambda t: t.stream(True).live()),
    Attack("none of five tokens", lambda t: t.stream().advance(log_probs(3, 0)), "one log-probability a token"),
    Attack("four of five tokens", lambda t: t.stream().advance(log_probs(3, 4)), "one log-probability a token"),
    Attack("six of five tokens", lambda t: t.stream().advance(log_probs(3, 6)), "one log-probability a token"),
    Attack("frames of doubles", lambda t: t.stream().advance(log_probs().astype(float)), "arguments"),
    Attack("frames of the other byte order", lambda t: t.stream().advance(log_probs().astype(">f4"))),
    Attack("frames at an odd address", lambda t: search_frames(t, odd(log_probs()))),
    Attack("frames back to front", lambda t: t.stream().advance(log_probs()[::-1]), "arguments"),
    Attack("frames in another order", lambda t: t.stream().advance(np.asfortranarray(log_probs())), "arguments"),
    Attack("no array", lambda t: t.stream().advance(None), "arguments"),
    Attack("frames of NaN", lambda t: search_frames(t, log_probs() * np.float32(NAN))),
    Attack("frames of +inf", lambda t: search_frames(t, np.full((5, N_TOKENS), INFINITE, np.float32))),
    Attack("frames of -inf", lambda t: search_frames(t, np.full((5, N_TOKENS), -INFINITE, np.float32))),
    Attack("frames of 1e38", lambda t: search_frames(t, np.full((5, N_TOKENS), 1e38, np.float32))),
    Attack("only blanks", lambda t: search_frames(t, np.float32([[-INFINITE] * 4 + [0]] * 9), blank_skip=0.5)),
    Attack("NaN for the blank", lambda t: search_frames(t, np.float32([[0] * 4 + [NAN]] * 9), blank_skip=0.0)),
    Attack("frames after the end", lambda t: after_the_end(t, lambda u: u.advance(log_probs())), "is finished"),
    Attack("options after the end", lambda t: after_the_end(t, lambda u: u.set_options(t.options())), "is finished"),
    Attack("words after the end", lambda t: after_the_end(t, lambda u: u.partial()), "is finished"),
    Attack("hypotheses after the end", lambda t: after_the_end(t, lambda u: u.live()), "is finished"),
    Attack("the end after the end", lambda t: after_the_end(t, lambda u: u.finish()), "is finished"),
    Attack("scores after the end", lambda t: after_the_end(t, lambda u: u.add_scores([], np.float32([]))), "finished"),
    Attack("score of nobody", lambda t: t.stream(True).add_scores([2**32 - 1], np.float32([1])), "hypothes"),
    Attack("scores too few", lambda t: t.stream(True).add_scores([0, 0], np.float32([1])), "one score a hypothesis"),
    Attack("score of a negative number", lambda t: t.stream(True).add_scores([-1], np.float32([1])), "arguments"),
    Attack("score NaN", lambda t: scored(t, NAN), "score"),
    Attack("score inf", lambda t: scored(t, INFINITE), "score"),
    Attack("score 1e38", lambda t: scored(t, 1e38), "score"),
    Attack("scores without a hook", lambda t: t.stream().add_scores([0], np.float32([1]))),
    Attack("history that changes", lambda t: t.stream(history_words=2).set_options(t.options(history_words=5))),
    Attack("many threads in one utterance", lambda t: many_threads(t)),
    Attack("a result beyond its end", lambda t: finished(t).text(10**9)),
    Attack("a result before its beginning", lambda t: finished(t).words(-1), "arguments"),
    Attack("a result without its model", lambda t: without_owner(t).words(0)),
    Attack("a given sentence of an unknown word", lambda t: given(t, ["no such word"]), "not in the lexicon"),
    Attack("a given sentence of 10,000 words", lambda t: given(t, ["a"] * 10_000)),
    Attack("a given sentence and no frames", lambda t: given(t, ["a"], log_probs(0))),
    Attack("nothing given", lambda t: given(t, [])),
    Attack("a given sentence of a lone surrogate", lambda t: given(t, ["\ud800"])),
    Attack("a model of -2 phonemes", lambda t: made(t, [], [], n_phonemes=-2), "phonemes"),
    Attack("a model of no phonemes", lambda t: made(t, [], [], n_phonemes=0), "phonemes"),
    Attack("a model of 251 phonemes", lambda t: made(t, ["a"], ["A"], n_phonemes=251), "phonemes"),
    Attack("a code above those", lambda t: made(t, ["a"], ["\u01c0"], n_phonemes=250), "phoneme"),
    Attack("a code of three bytes", lambda t: made(t, ["a"], ["\u2603"], n_phonemes=250), "phoneme"),
    Attack("a code below A", lambda t: made(t, ["a"], ["1"], n_phonemes=250), "phoneme"),
    Attack("a code above z", lambda t: made(t, ["a"], ["~"], n_phonemes=250), "phoneme"),
    Attack("a model of 2^31 - 1 phonemes", lambda t: made(t, ["a"], ["A"], n_phonemes=2**31 - 1), "phonemes"),
    Attack("a model without words", lambda t: made(t, [], [])),
    Attack("more words than pronunciations", lambda t: made(t, ["a"], []), "as many pronunciations"),
    Attack("a phoneme that is not there", lambda t: made(t, ["a"], ["D"]), "unknown phoneme"),
    Attack("a phoneme below the first", lambda t: made(t, ["a"], ["@"]), "unknown phoneme"),
    Attack("a phoneme of no ASCII", lambda t: made(t, ["a"], ["\U0001f600"]), "unknown phoneme"),
    Attack("an empty pronunciation", lambda t: made(t, ["a"], [""]), "empty"),
    Attack("a pronunciation of blanks", lambda t: made(t, ["a"], ["  "]), "empty"),
    Attack("a pronunciation of 100,000 phonemes", lambda t: made(t, ["a"], ["ABC" * 33_333])),
    Attack("70,000 pronunciations", lambda t: made(t, ["a"], [" ".join(["A"] * 70_000)]), "pronunciations"),
    Attack("one word a thousand times", lambda t: made(t, ["a"] * 1000, ["A"] * 1000)),
    Attack("a weight of no word", lambda t: made(t, ["a"], ["A"], [(1, 0, 0.0)]), "weight"),
    Attack("a weight of no pronunciation", lambda t: made(t, ["a"], ["A"], [(0, 2**63, 0.0)]), "weight"),
    Attack("a weight of NaN", lambda t: made(t, ["a"], ["A"], [(0, 0, NAN)]), "weight"),
    Attack("a weight of +inf", lambda t: made(t, ["a"], ["A"], [(0, 0, INFINITE)]), "weight"),
    Attack("a weight of 1e300", lambda t: made(t, ["a"], ["A"], [(0, 0, 1e300)]), "weight"),
    Attack("an added word without a weight", lambda t: changed(t, "c", "A B", [])),
    Attack("an added word with too many weights", lambda t: changed(t, "c", "A", [0.0, 0.0]), "weight"),
    Attack("an added word's weight of NaN", lambda t: changed(t, "c", "A", [NAN]), "weight"),
    Attack("an added word of no pronunciation", lambda t: changed(t, "c", "", [0.0]), "empty"),
    Attack("a bonus for nobody", lambda t: changed(t, "c", "A", [0.0], d=1.0), "not in the lexicon"),
    Attack("a bonus of NaN", lambda t: changed(t, "c", "A", [0.0], c=NAN), "bonus"),
    Attack("a bonus of -inf", lambda t: changed(t, "c", "A", [0.0], c=-INFINITE), "bonus"),
    Attack("a bonus of 1e300", lambda t: changed(t, "c", "A", [0.0], c=1e300), "bonus"),
    Attack("all words removed", lambda t: all_removed(t)),
]  # fmt: skip


def begun_twice(t: There) -> None:
    """Begin an utterance again while it is in use."""
    stream = t.stream()
    stream.advance(log_probs())
    stream.__init__(t.model, t.options(), COLUMNS, None, False)
    search(stream)


def search_frames(t: There, frames: np.ndarray, **changes: Any) -> None:
    """A search through such frames; its scores are numbers."""
    stream = t.stream(True, **changes)
    stream.advance(frames)
    stream.partial()
    stream.live()
    result = stream.finish()
    assert all(
        math.isfinite(score) for number in range(len(result)) for score in result.scores(number)
    )
    given(t, ["a"], frames)


def after_the_end(t: There, do: Callable[[_native.Stream], object]) -> None:
    stream = t.stream(True)
    stream.finish()
    do(stream)


def scored(t: There, score: float) -> None:
    """Add a score to the only hypothesis there is."""
    stream = t.stream(True)
    stream.add_scores([0], np.float32([score]))
    search(stream)


def finished(t: There) -> _native.Result:
    stream = t.stream()
    stream.advance(log_probs())
    return stream.finish()


def without_owner(t: There) -> _native.Result:
    """A result whose model, utterance and file are gone."""
    ngram = t.binary(9)
    model = _native.Model.make(ngram, ["w1"], ["A"], [], N_PHONEMES)
    stream = _native.Stream(model, t.options(), COLUMNS, ngram, False)
    del ngram, model
    stream.advance(log_probs())
    result = stream.finish()
    del stream
    return result


def given(t: There, words: list[str], frames: np.ndarray | None = None, **changes: Any) -> None:
    frames = log_probs() if frames is None else frames
    result = t.model.score(words, frames, COLUMNS, t.options(**changes))
    for number in range(len(result)):
        result.words(number)


def all_removed(t: There) -> None:
    model = t.model.changed([], ["a", "b", "no such word"], {})
    search(_native.Stream(model, t.options(), COLUMNS, None, True))


def many_threads(t: There) -> None:
    """Four threads do everything at once with one utterance; each step is done or refused."""
    stream = t.stream(True)
    others: list[BaseException] = []

    def work() -> None:
        frames = log_probs(40)
        steps = [
            lambda: stream.advance(frames),
            stream.partial,
            stream.live,
            lambda: stream.set_options(t.options()),
        ]
        for number in range(60):
            try:
                stream.finish() if number == 50 else steps[number % len(steps)]()
            except CortextError:
                pass
            except BaseException as error:
                others.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not others


def sentences(spelt: Any, scores: Any = None, **changes: Any) -> None:
    """Score sentences by themselves."""
    how = (
        dict(acoustic_scale=1.0, sil_cost=0.0, logadd=True, sil_required=False, blank=4, sil=3)
        | changes
    )
    scores_PV = log_probs().astype(float) if scores is None else scores
    for logadd in (True, False):
        _native.score_sentences(spelt, scores_PV, **how | {"logadd": logadd})


WORD = [([0, 1], 0.0)]
SENTENCES = [
    Attack("a token beyond", lambda t: sentences([[[([9], 0.0)]]]), "no phoneme"),
    Attack("a token below", lambda t: sentences([[[([-1], 0.0)]]]), "no phoneme"),
    Attack("the blank in a word", lambda t: sentences([[[([4], 0.0)]]]), "no phoneme"),
    Attack("a word without tokens", lambda t: sentences([[[([], 0.0)]]]), "no tokens"),
    Attack("a word without pronunciations", lambda t: sentences([[[]]])),
    Attack("a pronunciation's weight of NaN", lambda t: sentences([[[([0], NAN)]]]), "weight"),
    Attack("a pronunciation's weight of +inf", lambda t: sentences([[[([0], INFINITE)]]]), "weight"),
    Attack("two weights of NaN", lambda t: sentences([[[([0], NAN), ([1], NAN)]] * 3]), "weight"),
    Attack("40,000 pronunciations of a word", lambda t: sentences([[WORD * 40_000, WORD]]), "pronunciations"),
    Attack("a word of 600 tokens", lambda t: sentences([[[([0, 1] * 300, 0.0)]]], np.zeros((700, 5)))),
    Attack("scores of NaN", lambda t: sentences([[WORD]] * 3, np.full((9, 5), NAN))),
    Attack("scores of +inf", lambda t: sentences([[WORD]] * 3, np.full((9, 5), INFINITE))),
    Attack("scores of -inf", lambda t: sentences([[WORD]] * 3, np.full((9, 5), -INFINITE))),
    Attack("scores of 1e308", lambda t: sentences([[WORD]] * 3, np.full((9, 5), 1e308))),
    Attack("scores of both infinities", lambda t: sentences([[WORD, WORD]], np.array([[INFINITE, -INFINITE] * 3] * 9))),
    Attack("scores of no tokens", lambda t: sentences([[WORD]], np.zeros((9, 0))), "tokens"),
    Attack("scores of 300 tokens", lambda t: sentences([[WORD]], np.zeros((9, 300))), "tokens"),
    Attack("scores in one row", lambda t: sentences([[WORD]], np.zeros(9)), "arguments"),
    Attack("scores at an odd address", lambda t: sentences([[WORD]], odd(log_probs().astype(float)))),
    Attack("no scores", lambda t: sentences([[WORD]], "none"), "arguments"),
    Attack("no frames for a sentence", lambda t: sentences([[WORD]], np.zeros((0, 5)))),
    Attack("no sentences", lambda t: sentences([])),
    Attack("silence", lambda t: sentences([[]] * 3)),
    Attack("a blank beyond", lambda t: sentences([[WORD]], blank=5), "tokens"),
    Attack("the blank as SIL", lambda t: sentences([[WORD]], blank=3), "tokens"),
    Attack("acoustic scale NaN", lambda t: sentences([[[([0], 1.0)]]], acoustic_scale=NAN), "acoustic_scale"),
    Attack("acoustic scale inf", lambda t: sentences([[[([0], 1.0)]]], acoustic_scale=INFINITE), "acoustic_scale"),
    Attack("silence's cost NaN", lambda t: sentences([[WORD, WORD]], sil_cost=NAN), "sil_cost"),
    Attack("silence's cost -inf", lambda t: sentences([[WORD, WORD]], sil_cost=-INFINITE), "sil_cost"),
]  # fmt: skip


def state_of(t: There, n_words: int, last: int = 2, **how: Any) -> _native.State:
    """What a model of many words remembers of its last ones."""
    other = t.binary(n_words, **how)
    state = other.begin()
    for word in range(n_words - last, n_words):
        state = other.score(state, f"w{word}")[1]
    return state


def foreign(t: There, **how: Any) -> None:
    """The state of a model of many words in one of few, of the same type."""
    state = state_of(t, 5000, **how)
    small = t.binary(5, **how)
    for word in ("w1", "w4", "nobody", "</s>"):
        assert math.isfinite(small.score(state, word)[0])
    small.end(state)


TRIES = {
    "array trie": {"prob_bits": 0, "backoff_bits": 0},
    "trie": {"prob_bits": 0, "backoff_bits": 0, "pointer_bits": 0},
}
NGRAMS = [
    Attack("a state of a larger model", lambda t: foreign(t)),
    *(Attack(f"a state of a larger {kind}", lambda t, h=how: foreign(t, **h)) for kind, how in TRIES.items()),
    Attack("a state of a larger hash table", lambda t: foreign(t, type="probing")),
    Attack("a state of a higher order", lambda t: t.ngram.score(state_of(t, 9), "a")),
    Attack("the end after another model's state", lambda t: t.ngram.end(state_of(t, 9))),
    Attack("a state never begun", lambda t: t.ngram.score(_native.State.__new__(_native.State), "a")),
    Attack("no state", lambda t: t.ngram.score(None, "a"), "arguments"),
    Attack("no word", lambda t: t.ngram.score(t.ngram.begin(), None), "arguments"),
    Attack("a word of 10 MB", lambda t: t.ngram.score(t.ngram.begin(), "x" * 10**7)),
    Attack("a word with a zero", lambda t: t.ngram.unigram("a\0b")),
    Attack("a lone surrogate", lambda t: t.ngram.unigram("\ud800")),
    Attack("a text of 10 MB", lambda t: t.ngram.sentence("a b " * 2_500_000)),
    Attack("texts that are none", lambda t: t.ngram.score_text([None]), "arguments"),
    Attack("a model never opened", lambda t: _native.NGram.__new__(_native.NGram).begin()),
    Attack("a path of a zero", lambda t: _native.NGram.open("a\0b")),
    Attack("no path", lambda t: _native.NGram.open(None), "arguments"),
    Attack("an empty path", lambda t: _native.NGram.open(""), "cannot read it"),
    Attack("a folder", lambda t: _native.NGram.open(t.folder), "directory|not a file"),
    Attack("a pipe that nobody writes to", lambda t: pipe(t, _native.NGram.open), "not a file"),
    Attack("a device", lambda t: _native.NGram.open("/dev/zero"), "not a file"),
    Attack("a pipe to be converted", lambda t: pipe(t, lambda path: converted(t, arpa=path)), "not a file"),
    Attack("26 bits", lambda t: converted(t, prob_bits=26), "prob_bits is 26"),
    Attack("-1 bits", lambda t: converted(t, backoff_bits=-1), "backoff_bits is -1"),
    Attack("65 bits", lambda t: converted(t, pointer_bits=65), "pointer_bits is 65"),
    Attack("an unknown type", lambda t: converted(t, type="x" * 10**6), "unknown type"),
    Attack("no memory to sort in", lambda t: converted(t, memory_bytes=0)),
    Attack("all memory to sort in", lambda t: converted(t, memory_bytes=2**64 - 1)),
    Attack("more memory than that", lambda t: converted(t, memory_bytes=2**64), "arguments"),
    Attack("a folder for temporary files that is not there", lambda t: converted(t, temporary="/no/such/folder"), "such"),
    Attack("a folder to write to", lambda t: converted(t, out=t.folder)),
    Attack("to its own source", lambda t: converted(t, arpa=copy(t), out=copy(t))),
]  # fmt: skip


def pipe(t: There, do: Callable[[Path], object]) -> None:
    path = t.folder / "pipe"
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    do(path)


def copy(t: There) -> Path:
    path = t.folder / "copy.arpa"
    path.write_text(ARPA)
    return path


def converted(t: There, **how: Any) -> None:
    _native.write_binary(**{"arpa": t.arpa, "out": t.folder / "out.bin"} | how)


def bound_of(name: str, highest: bool) -> float:
    """The last value that `DecoderOptions` takes, as its own refusal says."""
    with pytest.raises(CortextError) as caught:
        DecoderOptions(**{name: 10**12 if highest else -(10**12)})
    found = re.search(r"at least (\S+) and at most (\S+)$", str(caught.value))
    assert found
    return type(getattr(DecoderOptions(), name))(float(found[2 if highest else 1]))


def test_an_attack_that_dies_hangs_or_is_taken_fails_by_its_name() -> None:
    acts: dict[str, Callable[[], object]] = {
        "sound": lambda: None,
        "dies": os.abort,
        "is taken": lambda: pytest.fail("it is taken", pytrace=False),
        "hangs": lambda: time.sleep(60),
        "exits": lambda: os._exit(0),
    }
    with pytest.raises(AssertionError) as caught:
        check_all(list(acts), lambda name: acts[name](), patience_s=0.5)
    failed = [line.partition(":")[0] for line in str(caught.value).splitlines()]
    assert failed == ["dies", "is taken", "hangs", "exits"]


def test_a_search_refuses_what_it_cannot_do(there: There) -> None:
    check_native(SEARCH, there)


def test_scores_of_sentences_refuse_what_they_cannot_be(there: There) -> None:
    check_native(SENTENCES, there)


def test_an_ngram_refuses_what_it_is_not(there: There) -> None:
    check_native(NGRAMS, there)


def test_every_option_of_the_decoder_is_taken_to_its_bounds(there: There) -> None:
    bounds = [
        (name, bound_of(name, highest))
        for name in settings_of(DecoderOptions)
        for highest in (False, True)
    ]
    check_all(bounds, lambda bound: there.searched_with(*bound), patience_s=20)


SUBINTERPRETER = """
import sys
from pathlib import Path
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

def use():
    from cortext._native import NGram, Options
    options = Options()
    options.offsets = [0.0]
    print(options.beam, NGram.open(Path(sys.argv[1])).sentence("a b") < 0)

if sys.argv[2] == "first":
    use()
inside = f'''
import sys
sys.path[:] = {sys.path!r}
try:
    import cortext._native
except ImportError as error:
    print("refused:", error)
else:
    print("imported")
sys.stdout.flush()
'''
for _ in range(3):
    interpreter = interpreters.create()
    error = interpreters.run_string(interpreter, inside)
    assert error is None, error
    interpreters.destroy(interpreter)
    use()
"""


@pytest.mark.parametrize("order", ["first", "afterwards"])
def test_a_second_interpreter_is_refused_and_does_no_harm_to_the_first(
    there: There, order: str
) -> None:
    """The first one has imported the module before, or does so after the second one tried to."""
    run = subprocess.run(
        [sys.executable, "-c", SUBINTERPRETER, there.arpa, order],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = run.stdout.splitlines()
    assert run.returncode == 0, run.stderr
    refused = [line for line in lines if line.startswith("refused:")]
    assert len(refused) == 3
    assert "main interpreter" in refused[0]
    assert [line for line in lines if line not in refused] == ["15.0 True"] * (
        4 if order == "first" else 3
    )
