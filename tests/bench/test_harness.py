"""What all benchmarks have in common: turns, summaries, tables, results."""

import json

from cortext_bench.harness import (
    Sides,
    cost_of,
    in_turns,
    markdown_table,
    median_and_spread,
    percentiles,
    study_arguments,
    write_result,
)
from cortext_bench.workers import Missing


def test_sides_take_turns_and_a_warm_up_does_not_count():
    order = []

    def side(name):
        return lambda turn: order.append((name, turn)) or 10 * turn

    answers = in_turns({"a": side("a"), "b": side("b")}, [1, 2, 3], warmup=1)
    assert order == [("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3), ("b", 3)]
    assert answers == {"a": [20, 30], "b": [20, 30]}


class Asked:
    """A process that gives up at the second question."""

    def __init__(self, gives_up: bool) -> None:
        self.gives_up, self.n, self.ended = gives_up, 0, False

    def ask(self, do, **request):
        self.n += 1
        if self.gives_up and self.n > 1:
            raise Missing("no memory")
        return {do: request}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ended = True


def absent():
    raise Missing("not installed")


def test_a_side_that_cannot_be_had_or_continue_is_missing_with_its_reason():
    good, bad, said = Asked(False), Asked(True), []
    with Sides() as sides:
        for name, start in (("good", lambda: good), ("bad", lambda: bad), ("absent", absent)):
            sides.start(name, start)
        assert sides.ask("steps", said.append, n=2) == {
            "good": {"steps": {"n": 2}},
            "bad": {"steps": {"n": 2}},
        }
        assert sides.ask("memory") == {"good": {"memory": {}}}
    assert said == ["good", "bad"]
    assert list(sides.running) == ["good"]
    assert sides.missing == {"bad": "no memory", "absent": "not installed"}
    assert good.ended
    assert bad.ended


def test_summaries_are_those_of_a_hand_computation():
    values = [float(value) for value in range(101)]
    assert median_and_spread(values) == (50.0, [10.0, 90.0])
    assert percentiles(values) == {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 100.0}


def test_a_call_costs_time_and_memory():
    cost = cost_of(lambda: bytes(b"x" * (64 << 20)))
    assert cost.seconds > 0
    assert cost.cpu_seconds >= 0
    assert cost.fresh_pages > 0


def test_a_table_is_that_of_the_docs():
    assert markdown_table(["a", "b"], [("x", 1)]) == "| a | b |\n| --- | --- |\n| x | 1 |"


def test_a_result_is_written_as_json(tmp_path):
    path = tmp_path / "new" / "result.json"
    write_result(path, {"per": 0.5})
    assert json.loads(path.read_text()) == {"per": 0.5}


def test_a_result_goes_nowhere_where_no_file_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_result(study_arguments("A study.").parse_args([]).json, {})
    assert list(tmp_path.iterdir()) == []
