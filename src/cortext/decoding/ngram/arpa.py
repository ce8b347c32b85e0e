"""ARPA n-gram files: the text form that every n-gram toolkit reads and writes (log10, one section per order).

What the search reads goes through the compiled `cortext._native.NGram`; this reader tells what is wrong with a file.
"""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cortext.errors import LanguageModelError

UNK, BOS, EOS = "<unk>", "<s>", "</s>"
SPECIAL = (UNK, BOS, EOS)
UNK_ID, BOS_ID, EOS_ID = range(3)
MAX_ORDER = 6
LN10 = math.log(10.0)
MISSING_UNK = -100.0 * LN10
"""Natural log of what a file without `<unk>` gives to unknown words; KenLM does the same."""

Context = tuple[int, ...]


@dataclass(slots=True)
class Arpa:
    """An n-gram model as read, in natural logs.

    words:    number by word
    counts:   n-grams of each order, as the header states them
    probs:    log-probability by n-gram
    backoffs: log back-off by context, for those that are the beginning of a longer n-gram or have one other than 0
    """

    words: dict[str, int] = field(default_factory=dict)
    counts: tuple[int, ...] = ()
    probs: dict[Context, float] = field(default_factory=dict)
    backoffs: dict[Context, float] = field(default_factory=dict)


def read_arpa(path: str | Path) -> Arpa:
    """Read an ARPA file, plain or gzipped (`.gz`).

    Raises LanguageModelError naming the file and line for: a missing or unreadable file, no `\\data\\` section, counts
    that are not what follows, an order above 6, numbers that are no numbers, positive log-probabilities, n-grams of
    unknown words, twice, or of an unlisted context, a context without back-off, and a file that ends early.
    """
    return _Reader(Path(path)).read()


class _Reader:
    """Reads one file line by line and remembers where it is, for the messages."""

    def __init__(self, path: Path) -> None:
        self.path, self.number, self.arpa = path, 0, Arpa()
        self.without_backoff: set[Context] = set()
        self.extended: set[Context] = set()

    def error(self, what: str, fix: str = "make the file again") -> LanguageModelError:
        return LanguageModelError(what, where=f"{self.path}, line {self.number}", fix=fix)

    def lines(self) -> Iterator[str]:
        """Lines that are not empty, without the end of line."""
        opened = gzip.open if self.path.suffix == ".gz" else open
        try:
            with opened(self.path, "rt", encoding="utf-8") as file:
                for line in file:
                    self.number += 1
                    stripped = line.strip()
                    if stripped:
                        yield stripped
        except UnicodeDecodeError:
            raise self.error(
                "not UTF-8 text", fix="an ARPA file is needed (KenLM binaries are not read here)"
            ) from None
        except (EOFError, zlib.error):
            raise self.error("the compressed file is truncated or damaged", fix="copy or make it again") from None
        except OSError as error:
            raise LanguageModelError(f"cannot read it: {error.strerror or error}", where=self.path) from None

    def read(self) -> Arpa:
        lines = self.lines()
        for line in lines:
            if line == "\\data\\":
                break
        else:
            raise self.error("no \\data\\ section", fix="an ARPA file is needed")
        line = self.header(lines)
        for order, count in enumerate(self.arpa.counts, start=1):
            if line != f"\\{order}-grams:":
                raise self.error(f"found {line[:40]!r} where \\{order}-grams: is expected")
            line = self.section(lines, order, count)
        if line != "\\end\\":
            raise self.error(f"found {line[:40]!r} where \\end\\ is expected")
        arpa = self.arpa
        arpa.backoffs = {c: value for c, value in arpa.backoffs.items() if value != 0.0 or c in self.extended}
        return arpa

    def header(self, lines: Iterator[str]) -> str:
        """Read the counts; returns the line after them."""
        counts: list[int] = []
        for line in lines:
            if not line.startswith("ngram "):
                self.arpa.counts = tuple(counts)
                if not counts:
                    raise self.error("no 'ngram 1=COUNT' line after \\data\\")
                return line
            order, equals, count = line[len("ngram ") :].partition("=")
            if not (equals and order.strip().isdigit() and count.strip().isdigit()):
                raise self.error(f"bad count {line!r}; 'ngram ORDER=COUNT' is expected")
            if int(order) != len(counts) + 1:
                raise self.error(f"found the count of order {int(order)} where order {len(counts) + 1} is expected")
            if int(order) > MAX_ORDER:
                raise self.error(
                    f"order {int(order)} is above the highest supported, {MAX_ORDER}", "build a lower order"
                )
            counts.append(int(count))
        raise self.error("the file ends in its header")

    def section(self, lines: Iterator[str], order: int, count: int) -> str:
        """Read the n-grams of one order; returns the line after them."""
        probs, backoffs = self.arpa.probs, self.arpa.backoffs
        before, highest = len(probs), order == len(self.arpa.counts)
        for line in lines:
            if line[0] == "\\":
                if len(probs) - before != count:
                    raise self.error(f"{len(probs) - before} {order}-grams where the header says {count}")
                if order == 1:
                    self.finish_unigrams()
                return line
            fields = line.split()
            if len(fields) != order + 1 and (highest or len(fields) != order + 2):
                expected = f"{order + 1}" if highest else f"{order + 1} or {order + 2}"
                raise self.error(f"{len(fields)} fields in a {order}-gram; {expected} are expected")
            ngram = self.ngram(fields[1 : order + 1])
            if ngram in probs:
                raise self.error(f"{order}-gram {' '.join(fields[1 : order + 1])!r} occurs twice")
            probs[ngram] = self.log(fields[0], highest_value=0.0)
            if len(fields) == order + 2:
                backoffs[ngram] = self.log(fields[-1])
            elif not highest:
                self.without_backoff.add(ngram)
        raise self.error("the file is truncated: it ends before \\end\\", fix="copy or make it again")

    def ngram(self, words: Sequence[str]) -> Context:
        """The word numbers of an n-gram whose words and context are known."""
        numbers = self.arpa.words
        if len(words) == 1:
            return (numbers.setdefault(words[0], len(numbers)),)
        try:
            ngram = tuple([numbers[word] for word in words])
        except KeyError as error:
            raise self.error(f"word {error.args[0]!r} is not among the 1-grams") from None
        context = ngram[:-1]
        if context not in self.extended:
            if context in self.without_backoff:
                raise self.error(f"context {' '.join(words[:-1])!r} has no back-off in the {len(context)}-grams")
            if context not in self.arpa.backoffs:
                raise self.error(f"context {' '.join(words[:-1])!r} is not among the {len(context)}-grams")
            self.extended.add(context)
        return ngram

    def finish_unigrams(self) -> None:
        words = self.arpa.words
        for special in (BOS, EOS):
            if special not in words:
                raise self.error(
                    f"no {special} among the 1-grams", fix="build the model from sentences with their ends"
                )
        if UNK not in words:
            words[UNK] = len(words)
            self.arpa.probs[words[UNK],] = MISSING_UNK

    def log(self, text: str, highest_value: float = math.inf) -> float:
        """Natural log of a log10 number."""
        try:
            value = float(text) * LN10
        except ValueError:
            raise self.error(f"{text!r} is not a number") from None
        if math.isnan(value) or value > highest_value:
            raise self.error(f"{text!r} is not a log10 {'probability' if highest_value == 0.0 else 'back-off'}")
        return value
