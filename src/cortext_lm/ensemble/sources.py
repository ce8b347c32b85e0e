"""Sources of an ensemble.

Evaluation directories of several runs over the same trials, or plain lists of sentences.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cortext.arguments import as_path, check_list
from cortext.data.conventions import Conventions
from cortext.decoding.options import is_finite
from cortext.errors import DataError, TextError, nearest
from cortext.files import parse_json_object, read_json
from cortext.text.language import EN, Language
from cortext_lm.ensemble.candidates import Candidate, Candidates

NBEST = "nbest.jsonl"
KEY = ("id", "session", "block", "trial")
"""The fields that must agree for two lines to be of one trial."""
_SAME_SPLIT = "combine evaluations of the same split of the same data"
MOST_WORDS = 1000
"""Words of the longest sentence: alignment takes the product of two lengths in time and memory."""


def read_lists(path: str | Path, field: str, language: Language = EN) -> list[Candidates]:
    """Read the trials of a file with a JSON object a line.

    `field` names the list of sentences, one of each system. An object may have an `id` (by default
    the line's number from 0) and a `reference`, too.

    Raises:
        DataError: Naming the file and line, for anything that cannot be combined.
    """
    path = as_path(path, "path")
    trials: dict[int | str, Candidates] = {}
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        if field not in line:
            lists = [name for name, value in line.items() if isinstance(value, list)]
            raise DataError(f"no field {field!r}; {nearest(field, lists or line)}", where=where)
        texts = line[field]
        reference = line.get("reference")
        if (
            not isinstance(texts, list)
            or not texts
            or not all(isinstance(text, str) for text in texts)
        ):
            raise DataError(
                f"{field} is no list of sentences",
                where=where,
                fix="give another field with --field",
            )
        _check_reference(reference, where)
        _check_lengths(texts, where)
        name = line.get("id", number - 1)
        if not isinstance(name, int | str):
            raise DataError(f"id is {name!r}; a number or a name is needed", where=where)
        if name in trials:
            fix = "give every line an id of its own, or none at all"
            raise DataError(f"the id {name!r} is there twice", where=where, fix=fix)
        trials[name] = Candidates.of(texts, id=name, reference=reference, language=language)
    return list(trials.values())


def read_evaluations(directories: Sequence[str | Path]) -> list[Candidates]:
    """Return the trials of several evaluation directories with each one's n-best list.

    They come in the first one's order.

    Raises:
        DataError: Where a directory lacks a trial that another has, has another reference for it,
            or is of another language. Their tokens may differ: only sentences are combined.
    """
    directories = list(check_list(directories, "directories", "a list of directories"))
    if not directories:
        raise DataError("nothing to combine", fix="give evaluation directories")
    paths = [as_path(directory, "a directory") for directory in directories]
    language, *languages = (language_of(path) for path in paths)
    first, *others = (_read_nbest(path) for path in paths)
    for path, other, theirs in zip(paths[1:], others, languages, strict=True):
        Conventions(language=theirs).require(
            Conventions(language=language),
            mine="this evaluation",
            theirs=str(paths[0]),
            where=path,
            fix=_SAME_SPLIT,
        )
        _check_same(paths[0], first, path, other, language)
    trials = []
    for key, line in first.items():
        lines = (line, *(other[key] for other in others))
        systems = tuple(
            tuple(candidate_of(hypothesis, language) for hypothesis in one["hypotheses"])
            for one in lines
        )
        lacking = (
            f"{path}: {one['degraded']}"
            for path, one in zip(paths, lines, strict=True)
            if one.get("degraded")
        )
        number, session, block, trial = key
        trials.append(
            Candidates(
                systems,
                number,
                session,
                block,
                trial,
                line["reference"],
                next(lacking, None),
                language,
            )
        )
    return trials


def language_of(directory: Path) -> Language:
    """Return the language of an evaluation's sentences; English where it names none.

    Raises:
        DataError: For a `metrics.json` that names no language.
    """
    path = directory / "metrics.json"
    try:
        facts = read_json(path).get("provenance") or {}
        return Language.from_json(facts.get("language", "en"))
    except FileNotFoundError:
        return EN
    except (OSError, ValueError, AttributeError, TextError) as error:
        raise DataError(
            f"cannot read the language: {error}", where=path, fix="evaluate the run again"
        ) from None


def trial_name(trial: Candidates) -> str:
    """Return the name of a trial in messages."""
    return _name((trial.id, trial.session, trial.block, trial.trial))


def _read_nbest(directory: Path) -> dict[Any, dict[str, Any]]:
    """Return the lines of a directory's n-best file by the `KEY` fields of their trials."""
    path = directory / NBEST
    if not path.is_file():
        fix = "give a directory that cortext evaluate wrote with --lm"
        raise DataError(f"no {NBEST}", where=directory, fix=fix)
    found: dict[Any, dict[str, Any]] = {}
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        missing = [name for name in (*KEY, "reference", "hypotheses") if name not in line]
        if missing:
            raise DataError(f"no field {missing[0]!r}", where=where, fix="evaluate the run again")
        key = tuple(line[name] for name in KEY)
        _check_reference(line["reference"], where)
        _check_hypotheses(line["hypotheses"], where)
        try:
            is_new = key not in found
        except TypeError:
            raise DataError(
                f"{', '.join(KEY)} are {key}; numbers and names are needed", where=where
            ) from None
        if not is_new:
            raise DataError(
                f"{_name(key)} is there twice", where=where, fix="evaluate the run again"
            )
        found[key] = line
    return found


def _check_reference(reference: Any, where: str) -> None:
    if reference is not None and not isinstance(reference, str):
        raise DataError(f"reference is {reference!r}; a sentence is needed", where=where)
    _check_lengths([reference or ""], where)


def _check_lengths(texts: Sequence[str], where: str) -> None:
    for text in texts:
        if (n_words := len(text.split())) > MOST_WORDS:
            raise DataError(
                f"a sentence has {n_words:,} words; at most {MOST_WORDS:,} are aligned", where=where
            )


def _check_hypotheses(hypotheses: Any, where: str) -> None:
    if not isinstance(hypotheses, list) or not hypotheses:
        raise DataError(
            "hypotheses is no list of sentences", where=where, fix="evaluate the run again"
        )
    for hypothesis in hypotheses:
        score = hypothesis.get("score") if isinstance(hypothesis, dict) else "none"
        if not isinstance(hypothesis, dict) or not isinstance(hypothesis.get("text"), str):
            raise DataError("a hypothesis has no text", where=where, fix="evaluate the run again")
        _check_lengths([hypothesis["text"]], where)
        if score is not None and not is_finite(score):
            raise DataError(
                f"the score of a hypothesis is {score!r}; a number is needed", where=where
            )


def _check_same(
    one: Path,
    first: dict[Any, Any],
    two: Path,
    second: dict[Any, Any],
    language: Language,
) -> None:
    normalize = language.normalize
    fix = _SAME_SPLIT
    for key in first:
        if key not in second:
            raise DataError(f"lacks {_name(key)}, which {one} has", where=two, fix=fix)
        theirs, ours = (lines[key]["reference"] for lines in (first, second))
        if (theirs is None) != (ours is None) or (
            ours is not None and normalize(ours) != normalize(theirs)
        ):
            raise DataError(
                f"the reference of {_name(key)} is {ours!r}, in {one} {theirs!r}",
                where=two,
                fix=fix,
            )
    for key in second:
        if key not in first:
            raise DataError(f"has {_name(key)}, which {one} lacks", where=two, fix=fix)


def candidate_of(hypothesis: dict[str, Any], language: Language = EN) -> Candidate:
    """Return a hypothesis of `nbest.jsonl` as a candidate, normalised.

    Confidences count only where every word has one.
    """
    words = tuple(language.normalize(hypothesis["text"]).split())
    said = hypothesis.get("words")
    sure = (
        [word.get("confidence") for word in said if isinstance(word, dict)]
        if isinstance(said, list)
        else []
    )
    known = tuple(
        float(value) for value in sure if isinstance(value, int | float) and 0 <= value <= 1
    )
    return Candidate(
        words, hypothesis.get("score"), known if len(known) == len(sure) == len(words) else None
    )


def _name(key: Sequence[Any]) -> str:
    number, session, block, trial = key
    return (
        f"trial {number}"
        if session is None
        else f"trial {number} ({session}/block {block}/trial {trial})"
    )


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number, from 1, and the object of each line that is not empty."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", where=path) from None
    except UnicodeDecodeError:
        raise DataError(
            "is no text", where=path, fix="give a file with a JSON object a line"
        ) from None
    any_line = False
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        any_line = True
        try:
            parsed = parse_json_object(line)
        except ValueError as error:
            raise DataError(f"is no JSON object: {error}", where=f"{path}, line {number}") from None
        yield number, parsed
    if not any_line:
        raise DataError("holds no trials", where=path)
