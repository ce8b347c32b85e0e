"""Turn text of any language into the sentences of a language model.

English prose goes the way of `cortext.text.prose`. Text of other languages is taken as it is
written: `sentencex` parts the sentences by the rules of the language (or by full stops, question
and exclamation marks, where it knows none), and `Language` normalises them. Nothing is spelt out,
and text that the language would damage is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cortext.text import prose
from cortext.text.language import EN, LINES_NAMED, Language

_PIECE = 2000
"""Characters that are parted at once: sentencex takes quadratic time without blanks."""


def sentences(
    lines: Iterable[str],
    language: Language = EN,
    report: prose.Report | None = None,
    *,
    skip_damaged: bool = False,
    where: str = "the text",
) -> Iterator[str]:
    """Return the normalised sentences of a text; only the current line is in memory.

    Args:
        lines: Lines with one or more whole sentences each; empty lines are skipped.
        language: Language of the text.
        report: Counts, filled while the sentences are read.
        skip_damaged: Leave out and count sentences with letters that the language lacks.
        where: Name of the text, for errors.

    Raises:
        TextError: At the end of a text of another language than English with such letters, with
            the first lines and the number of all.
    """
    report = report if report is not None else prose.Report()
    if language.is_benchmark:
        return prose.sentences(lines, report)
    return _sentences(lines, language, report, skip_damaged, where)


def _sentences(
    lines: Iterable[str], language: Language, report: prose.Report, skip_damaged: bool, where: str
) -> Iterator[str]:
    damaged: list[str] = []  # the first lines, and their letters
    lost = ""
    n_damaged = 0
    for number, line in enumerate(lines, start=1):
        report.lines += 1
        before = n_damaged
        for raw in _split(line, language):
            if letters := language.damage(raw):
                report.reject("damaged", raw)
                lost = "".join(dict.fromkeys(lost + letters))
                n_damaged = before + 1
                continue
            words = language.words(raw)
            if not words:
                report.reject("no_letters", raw)
            elif len(words) > prose.MAX_WORDS:
                report.reject("too_long", raw)
            else:
                report.sentences += 1
                report.words += len(words)
                yield " ".join(words)
        if n_damaged > before and n_damaged <= LINES_NAMED:
            damaged.append(f"line {number:,}" if damaged else f"{where}, line {number:,}")
    if n_damaged and not skip_damaged:
        raise language.refused({lost: damaged}, n_places=n_damaged)


def _split(line: str, language: Language) -> Iterator[str]:
    """Yield the sentences of a line."""
    from sentencex import segment  # type: ignore[import-untyped]

    # Halves of surrogate pairs, which sentencex refuses, become U+FFFD, which is damage.
    text = line.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    for piece in prose.pieces(" ".join(text.split()), _PIECE):
        yield from (raw for raw in segment(language.name, piece) if raw.strip())
