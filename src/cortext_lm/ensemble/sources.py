"""Sources of an ensemble.

Evaluation directories of several runs over the same trials, or plain lists of sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cortext.arguments import as_path, check_list
from cortext.data.conventions import Conventions
from cortext.errors import DataError, nearest
from cortext.evaluation.nbest_file import (
    SavedTrialLists,
    TrialKey,
    check_lengths,
    check_reference,
    json_objects,
    language_of,
    read_nbest,
    trial_name,
)
from cortext.text.language import EN, Language
from cortext_lm.ensemble.candidates import Candidate, Candidates

_SAME_SPLIT = "combine evaluations of the same split of the same data"


def read_lists(path: str | Path, field: str, language: Language = EN) -> list[Candidates]:
    """Read the trials of a file with a JSON object a line.

    `field` names the list of sentences, one of each system. An object may have an `id` (by default
    the line's number from 0) and a `reference`, too.

    Raises:
        DataError: Naming the file and line, for anything that cannot be combined.
    """
    path = as_path(path, "path")
    trials: dict[int | str, Candidates] = {}
    for number, line in json_objects(path):
        where = f"{path}, line {number}"
        if field not in line:
            # Suggest a field that holds a list, where there is one: no other can be meant.
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
        check_reference(reference, where)
        check_lengths(texts, where)
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
    first, *others = (read_nbest(path) for path in paths)
    for path, other, theirs in zip(paths[1:], others, languages, strict=True):
        # Of the conventions only the language counts: sentences are combined, so the runs may have
        # other tokens and other bins.
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
            tuple(candidate_of(hypothesis, language) for hypothesis in one.hypotheses)
            for one in lines
        )
        lacking = (
            f"{path}: {one.degraded}"
            for path, one in zip(paths, lines, strict=True)
            if one.degraded
        )
        # A trial has room for one such line: the first system that lacks something is named.
        number, session, block, trial = key
        trials.append(
            Candidates(
                systems,
                number,
                session,
                block,
                trial,
                line.reference,
                next(lacking, None),
                language,
            )
        )
    return trials


def _check_same(
    one: Path,
    first: dict[TrialKey, SavedTrialLists],
    two: Path,
    second: dict[TrialKey, SavedTrialLists],
    language: Language,
) -> None:
    normalize = language.normalize
    fix = _SAME_SPLIT
    # Both ways: the trials are listed by the first directory, so one that only the second has would
    # be dropped in silence.
    for key in first:
        if key not in second:
            raise DataError(f"lacks {trial_name(key)}, which {one} has", where=two, fix=fix)
        theirs, ours = first[key].reference, second[key].reference
        # Compared as they are scored: capitals and marks of a prompt may differ between files.
        if (theirs is None) != (ours is None) or (
            theirs is not None and ours is not None and normalize(ours) != normalize(theirs)
        ):
            raise DataError(
                f"the reference of {trial_name(key)} is {ours!r}, in {one} {theirs!r}",
                where=two,
                fix=fix,
            )
    for key in second:
        if key not in first:
            raise DataError(f"has {trial_name(key)}, which {one} lacks", where=two, fix=fix)


def candidate_of(hypothesis: dict[str, Any], language: Language = EN) -> Candidate:
    """Return a hypothesis of `nbest.jsonl` as a candidate, normalised.

    Confidences count only where every word has one.
    """
    words = tuple(language.normalize(hypothesis["text"]).split())
    listed = hypothesis.get("words")
    sure = (
        [word.get("confidence") for word in listed if isinstance(word, dict)]
        if isinstance(listed, list)
        else []
    )
    # A word without a confidence counts as certain when votes are added up, so a partial list is
    # worse than none. Normalising may also split a word, and then the two lists do not pair.
    known = tuple(
        float(value) for value in sure if isinstance(value, int | float) and 0 <= value <= 1
    )
    return Candidate(
        words, hypothesis.get("score"), known if len(known) == len(sure) == len(words) else None
    )
