"""The published analyses of participant T15: `t15_copyTask.pkl` and `t15_personalUse.pkl`.

They lie beside the recordings of Card et al. (2024), and are read as data.

Shapes: P frames of 80 ms, V 41 tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cortext.arguments import as_path
from cortext.errors import DataError, nearest
from cortext.text.inventory import BLANK, PUBLISHED, RELEASE, Inventory, get_inventory
from cortext_data.readers.files.pickles import read_pickle

FIX = "give the file as it was published"
VOCABULARIES = (50, 125_000)
"""Words that the participant could say: 50 in the first sessions, then an open vocabulary."""
RATINGS = (
    "correct",
    "mostly correct",
    "one word wrong",
    "incorrect",
    "response timeout",
    "blank trial",
    "no user rating",
)
"""The participant's ratings of a sentence, as published."""
MOST_TEXT = 10_000
"""Most characters of a sentence, as in session files."""
MOST_ROWS = 1_000_000
"""Most items of a list; the published ones have up to 183,060."""
_MOST_NAMES = 100
LARGEST = 6e4
"""Largest logit: an evaluation directory stores float16."""


@dataclass(frozen=True)
class CopyTrial:
    """A prompted sentence and the decoded one.

    Attributes:
        day: Days since the implantation.
        vocabulary: Words of the language model, one of `VOCABULARIES`.
        cue: The prompt.
        cue_phonemes: Its phonemes, SIL after every word.
        decoded: The published sentence.
        decoded_phonemes: The most likely token of each frame without blanks and repeats.
        sentence_phonemes: Phonemes of the published sentence.
        logits_PV: float32 [P, V], in an order that the file does not tell.
    """

    day: int
    vocabulary: int
    cue: str
    cue_phonemes: tuple[str, ...]
    decoded: str
    decoded_phonemes: tuple[str, ...]
    sentence_phonemes: tuple[str, ...]
    logits_PV: np.ndarray


@dataclass(frozen=True)
class PersonalUse:
    """The sentences of everyday use, and how long the decoder ran.

    Attributes:
        days: Days since the implantation, of each sentence.
        ratings: One of `RATINGS` for each sentence.
        words_per_minute: Of each sentence; NaN where it was not measured.
        use_s: Seconds of use by day.
        n_sentences: Sentences by day, also those without details.
    """

    days: tuple[int, ...]
    ratings: tuple[str, ...]
    words_per_minute: tuple[float, ...]
    use_s: dict[int, float]
    n_sentences: dict[int, int]


_COPY_FIELDS = (
    "cue_sentence",
    "cue_sentence_phonemes",
    "decoded_logits",
    "decoded_phonemes_raw",
    "decoded_sentence",
    "decoded_sentence_phonemes",
    "post_implant_day",
    "vocab_size",
)
_USE_FIELDS = ("trialized_info", "total_use_time", "total_trial_count")


def read_analyses(path: str | Path) -> list[CopyTrial] | PersonalUse:
    """Read one of the two files; which one it is follows from its fields.

    Raises:
        DataError: For a file that is neither, or whose fields do not agree.
    """
    path = as_path(path, "file")
    content = read_pickle(path)
    if type(content) is not dict:
        raise DataError("is no dict of lists", where=path, fix=FIX)
    if "trialized_info" in content:
        return _personal_use(_Fields(content, path), path)
    return _copy_task(_Fields(content, path))


class _Fields:
    """The lists of a file by name, checked as they are taken out."""

    def __init__(self, content: dict[Any, Any], path: Path) -> None:
        self.content = content
        self.path = path

    def error(self, problem: str) -> DataError:
        return DataError(problem, where=self.path, fix=FIX)

    def get(self, name: str, kind: type) -> Any:
        """Return the field `name`; raises DataError unless it is a `kind`."""
        if name not in self.content:
            # Other keys may be sentences, which an error must not quote.
            keys = [key for key in self.content if type(key) is str]
            names = [key for key in keys[:_MOST_NAMES] if key.isidentifier()]
            raise self.error(f"has no {name}; {nearest(name, names)}")
        value = self.content[name]
        if not isinstance(value, kind):
            raise self.error(f"{name} is a {type(value).__name__}; a {kind.__name__} is needed")
        return value

    def rows(self, name: str) -> Sequence[Any]:
        """Return the items of a list, a tuple or an array of one axis."""
        value: Any = self.get(name, object)
        is_array = isinstance(value, np.ndarray) and value.ndim == 1
        if not is_array and not isinstance(value, list | tuple):
            raise self.error(f"{name} is a {type(value).__name__}; a list is needed")
        if len(value) > MOST_ROWS:
            raise self.error(f"{name} has {len(value):,} items; at most {MOST_ROWS:,} are read")
        return list(value.tolist()) if is_array else value

    def integers(self, name: str) -> list[int]:
        rows = self.rows(name)
        for number, value in enumerate(rows):
            if type(value) is not int and not (type(value) is float and value.is_integer()):
                raise self.error(f"{name}[{number}] is no whole number")
        return [int(value) for value in rows]

    def texts(self, name: str) -> list[str]:
        rows = self.rows(name)
        for number, value in enumerate(rows):
            if type(value) is not str:
                raise self.error(f"{name}[{number}] is a {type(value).__name__}; a text is needed")
            if len(value) > MOST_TEXT:
                raise self.error(
                    f"{name}[{number}] has {len(value)} characters; at most {MOST_TEXT} are read"
                )
        return list(rows)

    def phonemes(self, name: str) -> list[tuple[str, ...]]:
        known = set(RELEASE.symbols) - {BLANK}
        sequences = []
        for number, symbols in self._within_size(name):
            symbols = symbols.tolist() if isinstance(symbols, np.ndarray) else symbols
            if not isinstance(symbols, list | tuple) or not all(
                type(symbol) is str and symbol in known for symbol in symbols
            ):
                raise self.error(f"{name}[{number}] is no list of phonemes")
            sequences.append(symbols)
        return [tuple(symbols) for symbols in sequences]

    def logits(self, name: str) -> list[np.ndarray]:
        width = len(RELEASE)
        arrays = []
        for number, logits_PV in self._within_size(name):
            where = f"{name}[{number}]"
            if not isinstance(logits_PV, np.ndarray) or logits_PV.dtype.kind != "f":
                raise self.error(f"{where} is no array of floating-point numbers")
            if logits_PV.ndim != 2 or logits_PV.shape[1] != width or not len(logits_PV):
                raise self.error(
                    f"{where} has shape {list(logits_PV.shape)}; [frames, {width}] is needed"
                )
            if not (np.abs(logits_PV) <= LARGEST).all():
                raise self.error(f"{where} has NaN, or numbers beyond {LARGEST:g}")
            arrays.append(logits_PV)
        return [np.asarray(logits_PV, np.float32) for logits_PV in arrays]

    def _within_size(self, name: str) -> Iterator[tuple[int, Any]]:
        """Yield number and content of each row; raises DataError for more than the file holds.

        A pickle names a list or an array again in two bytes: a small file could fill the memory,
        and keep the check of every row busy for hours.
        """
        n_bytes, most = 0, self.path.stat().st_size
        for number, row in enumerate(self.rows(name)):
            yield number, row
            n_bytes += row.nbytes if isinstance(row, np.ndarray) else len(row)
            if n_bytes > most:
                raise self.error(f"{name} has the same row many times: more than {most:,} bytes")


def _copy_task(fields: _Fields) -> list[CopyTrial]:
    columns: dict[str, list[Any]] = {
        "day": fields.integers("post_implant_day"),
        "vocabulary": fields.integers("vocab_size"),
        "cue": fields.texts("cue_sentence"),
        "cue_phonemes": fields.phonemes("cue_sentence_phonemes"),
        "decoded": fields.texts("decoded_sentence"),
        "decoded_phonemes": fields.phonemes("decoded_phonemes_raw"),
        "sentence_phonemes": fields.phonemes("decoded_sentence_phonemes"),
        "logits_PV": fields.logits("decoded_logits"),
    }
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) != 1 or not lengths["cue"]:
        raise fields.error(f"its lists have {sorted(set(lengths.values()))} items; as many each")
    for number, size in enumerate(columns["vocabulary"]):
        if size not in VOCABULARIES:
            raise fields.error(f"vocab_size[{number}] is {size}; 50 or 125000 is needed")
    names = list(columns)
    rows = zip(*columns.values(), strict=True)
    return [CopyTrial(**dict(zip(names, row, strict=True))) for row in rows]


def _personal_use(fields: _Fields, path: Path) -> PersonalUse:
    sentences = _Fields(fields.get("trialized_info", dict), path)
    days = sentences.integers("post_implant_day")
    ratings = sentences.texts("correctness_rating")
    speeds = sentences.rows("wpm")
    for number, rating in enumerate(ratings):
        if rating not in RATINGS:
            raise fields.error(f"correctness_rating[{number}]: {nearest(rating, RATINGS)}")
    if not all(type(x) is float or (type(x) is int and abs(x) < 1e12) for x in speeds):
        raise fields.error("wpm has an item that is no number")
    if not len(days) == len(ratings) == len(speeds):
        raise fields.error("post_implant_day, correctness_rating and wpm differ in length")
    use_s = _by_day(fields, "total_use_time")
    n_sentences = _by_day(fields, "total_trial_count")
    if {day for day, seconds in use_s.items() if seconds} - set(n_sentences):
        raise fields.error("total_trial_count lacks a day of total_use_time")
    return PersonalUse(
        days=tuple(days),
        ratings=tuple(ratings),
        words_per_minute=tuple(float(speed) for speed in speeds),
        use_s=use_s,
        n_sentences={day: int(number) for day, number in n_sentences.items()},
    )


def _by_day(fields: _Fields, name: str) -> dict[int, float]:
    values = fields.get(name, dict)
    for day, value in values.items():
        if type(day) is not int or type(value) not in (int, float) or not 0 <= value < 1e12:
            raise fields.error(f"{name} is no table of numbers by day")
    return {day: float(value) for day, value in values.items()}


def find_order(trials: Sequence[CopyTrial]) -> Inventory:
    """Return the token order in which the logits give the published phonemes.

    The release collapses repeats a second time, after the blanks are gone; phonemes that were
    spelt out between two blanks agree with neither rule and are left to the majority.

    Raises:
        DataError: Where no known order reproduces at least 95 % of the trials.
    """
    right: Counter[str] = Counter()
    for trial in trials:
        best_P = trial.logits_PV.argmax(axis=1)
        for inventory in PUBLISHED:
            right[inventory.name] += collapse(best_P, inventory) == trial.decoded_phonemes
    name, count = right.most_common(1)[0]
    if count < 0.95 * len(trials):
        raise DataError(
            f"no known token order gives the published phonemes: {name!r} does for {count} of"
            f" {len(trials)} trials",
            fix="name it: cortext import t15-analyses FILE --order ORDER",
        )
    return get_inventory(name)


def collapse(best_P: np.ndarray, inventory: Inventory) -> tuple[str, ...]:
    """Return the phonemes of the tokens [P] as the release does: it drops blanks, then repeats.

    CTC drops repeats first, so that a blank parts two equal phonemes; here it does not.
    """
    symbols = [inventory.symbols[token] for token in best_P if token != inventory.blank]
    return tuple(s for i, s in enumerate(symbols) if not i or s != symbols[i - 1])
