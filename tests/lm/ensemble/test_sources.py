"""Lists and evaluation directories that are combined, and what is wrong with them in one line."""

import json

import pytest
from attack_process import check_all

from cortext.errors import DataError
from cortext_lm.ensemble import Candidate, combine, read_evaluations, read_lists


def line(number, *texts, reference="so it is", **more):
    hypotheses = [
        {"text": text, "score": -float(rank), "words": []} for rank, text in enumerate(texts)
    ]
    key = {"id": number, "session": "day.1", "block": 1, "trial": number}
    return key | {"reference": reference, "hypotheses": hypotheses} | more


def evaluation(folder, *lines):
    folder.mkdir(exist_ok=True)
    (folder / "nbest.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    return folder


def lists(path, *lines):
    path.write_text("\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines))
    return path


def complaint(read, *arguments):
    """The one line of a user's error."""
    with pytest.raises(DataError) as error:
        read(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_lists_are_read_and_normalised(tmp_path):
    path = lists(
        tmp_path / "lists.jsonl",
        {"id": 4, "reference": "So it is!", "texts": ["So, it is.", ""]},
        "",
        {"texts": ["one"]},
    )
    first, second = read_lists(path, "texts")
    assert (first.id, first.reference, first.best) == (4, "So it is!", (("so", "it", "is"), ()))
    assert (second.id, second.reference, second.best) == (2, None, (("one",),))


LISTS = [
    ([{"text": ["a"]}], "line 1: no field 'texts'; did you mean 'text'?"),
    ([{"texts": ["a"]}, {"texts": "a"}], "line 2: texts is no list of sentences"),
    ([{"texts": []}], "line 1: texts is no list of sentences"),
    ([{"texts": [{"text": "a"}]}], "line 1: texts is no list of sentences"),
    ([{"texts": ["a"], "reference": 3}], "line 1: reference is 3"),
    ([{"texts": ["a"], "id": [1]}], "line 1: id is [1]; a number or a name"),
    (
        [{"texts": ["a"], "id": "x"}, {"texts": ["a"], "id": "x"}],
        "line 2: the id 'x' is there twice",
    ),
    ([{"texts": ["a"], "id": 1}, {"texts": ["a"]}], "line 2: the id 1 is there twice"),
    ([{"texts": ["a"]}, "{"], "line 2: is no JSON object"),
    (["[1]"], "line 1: is no JSON object"),
    (["[" * 100_000], "line 1: is no JSON object"),
    (["", " "], "lists.jsonl: holds no trials"),
]


def test_what_is_wrong_with_lists_is_said_with_the_line(tmp_path):
    def check(row):
        lines, expected = row
        assert expected in complaint(read_lists, lists(tmp_path / "lists.jsonl", *lines), "texts")

    check_all(LISTS, check)


def test_files_that_cannot_be_read_are_named(tmp_path):
    assert "none.jsonl: cannot be read: No such file" in complaint(
        read_lists, tmp_path / "none.jsonl", "texts"
    )
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    assert "bytes: is no text" in complaint(read_lists, tmp_path / "bytes", "texts")


def test_evaluations_are_matched_by_trial_and_not_by_place(tmp_path):
    one = evaluation(tmp_path / "one", line(0, "a", "b"), line(1, "c"))
    two = evaluation(tmp_path / "two", line(1, "d", reference="So it is."), line(0, "E."))
    first, second = read_evaluations([one, two])
    assert [trial.id for trial in (first, second)] == [0, 1]
    assert first.systems == (
        (Candidate(("a",), 0.0), Candidate(("b",), -1.0)),
        (Candidate(("e",), 0.0),),
    )
    assert second.best == (("c",), ("d",))
    assert (second.session, second.block, second.trial, second.reference) == (
        "day.1",
        1,
        1,
        "so it is",
    )


def test_what_a_systems_list_lacks_the_combination_lacks(tmp_path):
    one = evaluation(tmp_path / "one", line(0, "a"), line(1, "c", degraded=None))
    two = evaluation(
        tmp_path / "two",
        line(0, "a"),
        line(1, "d", degraded="without the large model: memory ran out"),
    )
    found = combine(read_evaluations([one, two]))
    assert [each.degraded for each in found] == [
        None,
        f"{two}: without the large model: memory ran out",
    ]


def test_confidences_are_taken_where_every_word_has_one(tmp_path):
    def heard(text, *sure):
        words = [
            {"word": word, "confidence": value}
            for word, value in zip(text.split(), sure, strict=True)
        ]
        return {"text": text, "score": None, "words": words}

    both, one, joined = heard("a b", 0.5, 1), heard("a b", 0.5, None), heard("say 'no", 0.5, 0.6)
    none = {"text": "a", "words": 1}
    path = evaluation(tmp_path / "one", line(0) | {"hypotheses": [both, one, joined, none]})
    (system,) = read_evaluations([path])[0].systems
    assert system[0] == Candidate(("a", "b"), None, (0.5, 1.0))
    assert system[1] == Candidate(("a", "b"))
    assert system[3] == Candidate(("a",))
    # Normalised to one word: which of the two confidences is unknown.
    assert system[2] == Candidate(("say'no",))


EVALUATIONS = [
    ([line(0, "a")], "two: lacks trial 1 (day.1/block 1/trial 1), which"),
    (
        [line(0, "a"), line(1, "a"), line(2, "a")],
        "two: has trial 2 (day.1/block 1/trial 2), which",
    ),
    ([line(0, "a"), line(1, "a") | {"block": 2}], "two: lacks trial 1 (day.1/block 1/trial 1)"),
    (
        [line(0, "a"), line(1, "a", reference="so is it")],
        "the reference of trial 1 (day.1/block 1/trial 1)",
    ),
    (
        [line(0, "a"), line(1, "a", reference=None)],
        "the reference of trial 1 (day.1/block 1/trial 1)",
    ),
    ([line(0, "a"), line(0, "a")], "line 2: trial 0 (day.1/block 1/trial 0) is there twice"),
    ([line(0, "a") | {"id": [1]}], "line 1: id, session, block, trial are"),
    ([line(0, "a", reference=3)], "line 1: reference is 3"),
    ([{"id": 0}], "line 1: no field 'session'"),
    ([line(0)], "line 1: hypotheses is no list of sentences"),
    ([line(0) | {"hypotheses": ["a"]}], "line 1: a hypothesis has no text"),
    (
        [line(0) | {"hypotheses": [{"text": "a", "score": "high"}]}],
        "score of a hypothesis is 'high'",
    ),
]


def test_evaluations_that_do_not_go_together_are_refused(tmp_path):
    one = evaluation(tmp_path / "one", line(0, "a"), line(1, "c"))

    def check(row):
        second, expected = row
        two = evaluation(tmp_path / "two", *second)
        assert expected in complaint(read_evaluations, [one, two])

    check_all(EVALUATIONS, check)


def test_a_directory_without_lists_is_named(tmp_path):
    assert "two: no nbest.jsonl; give a directory" in complaint(
        read_evaluations, [tmp_path / "two"]
    )
    assert "nothing to combine" in complaint(read_evaluations, [])
