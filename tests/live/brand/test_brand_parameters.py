import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from cortext.errors import ConfigError, DataError
from cortext_live.brand.entries import EntryReader, index_of
from cortext_live.brand.parameters import NodeConfig, node_parameters


def graph(parameters, nickname="speech", **more):
    node = {"name": "cortext", "nickname": nickname, "parameters": parameters} | more
    return {b"data": json.dumps({"graph_name": "g", "nodes": {nickname: node}}).encode()}


def read(parameters):
    return node_parameters("17-0", graph({"run": "runs/first"} | parameters), "speech")


def test_defaults_are_those_of_a_rig_with_published_features():
    found = read({})
    assert (found.input_stream, found.input_field, found.input_dtype) == (
        "binned_spikes",
        "samples",
        "float32",
    )
    assert (found.output_stream, found.final_stream) == ("speech_output", "speech_final")
    assert found.pipeline.endpoint.silence_ms == 1500


def test_with_a_control_stream_silence_ends_nothing_unless_it_is_asked_to():
    assert read({"control_stream": "marks", "max_ms": 30000}).pipeline.endpoint.silence_ms == 30000
    assert read({"control_stream": "marks", "silence_ms": 700}).pipeline.endpoint.silence_ms == 700


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"inptstream": "x"}, "unknown key parameters.inptstream; did you mean 'input_stream'?"),
        ({"n_features": "many"}, "parameters.n_features is 'many' (str); int is needed"),
        ({"n_features": 0}, "parameters.n_features is 0; it must be at least 1"),
        ({"input_dtype": "float33"}, "parameters.input_dtype is 'float33'; a dtype of numbers"),
        ({"input_dtype": "str"}, "parameters.input_dtype is 'str'; a dtype of numbers"),
        (
            {"smoothing": "some"},
            "parameters.smoothing is 'some'; one of 'published', 'causal' is needed",
        ),
        (
            {"silence_ms": -1},
            "parameters.silence_ms is -1.0; it must be above 0 and finite",
        ),
        (
            {"options": {"beem": 3}},
            "parameters.options: unknown decoder option 'beem'; did you mean 'beam'?",
        ),
        ({"options": {"beam": -1}}, "parameters.options: beam is -1; it must be at least 0"),
        (
            {"stop_value": "start"},
            "parameters.start_value, stop_value and block_value are 'start', 'start', 'block'",
        ),
        ({"sync_key": ""}, "parameters.sync_key is empty; a name is needed"),
        ({"log": "loud"}, "parameters.log is 'loud'; one of DEBUG"),
        ({"run": None}, "parameters.run is None"),
    ],
)
def test_a_bad_parameter_is_named_with_its_place(parameters, words):
    with pytest.raises(ConfigError) as error:
        read(parameters)
    assert str(error.value).startswith("supergraph_stream 17-0, node speech: ")
    assert words in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "the entry has no field 'data'"),
        ({b"data": b"{"}, "field 'data' is no graph"),
        ({b"data": b'{"nodes": []}'}, "field 'data' is no graph"),
        (graph({}, "other"), "no node with the nickname 'speech'; the graph has: other"),
        (graph({}), "missing key parameters.run"),
    ],
)
def test_a_graph_that_is_none_or_lacks_the_node_is_refused(entry, words):
    with pytest.raises(ConfigError, match="supergraph_stream 17-0") as error:
        node_parameters("17-0", entry, "speech")
    assert words in str(error.value)


def test_a_node_is_found_by_its_nickname_whatever_its_key():
    entry = {
        b"data": (
            json.dumps(
                {"nodes": {"7": {"nickname": "speech", "parameters": {"run": "r"}}}}
            ).encode()
        )
    }
    assert str(node_parameters("1-0", entry, "speech").run) == "r"


@pytest.mark.parametrize(
    ("value", "index"),
    [
        (np.uint64(5).tobytes(), 5),
        (np.uint32(70000).tobytes(), 70000),
        (b"12345678", 12345678),  # decimal, though eight bytes long
        (b"7", 7),
        (np.uint64(2**53).tobytes(), 2**53),
        (b"\xff" * 8, None),  # -1
        (b"9" * 23, None),
        (b"", None),
        (None, None),
        (b"abc", None),
    ],
)
def test_running_numbers_come_as_bytes_or_as_digits(value, index):
    assert index_of(value) == index


def test_any_number_of_bins_can_be_let_in_and_integers_are_read_as_such():
    reader = EntryReader(read({"bins_per_entry": None, "input_dtype": "int16"}), 2)
    bins_TC = reader.bins({b"samples": np.array([1, -2, 3, 4], dtype=np.int16).tobytes()})
    assert (bins_TC.tolist(), bins_TC.dtype) == ([[1, -2], [3, 4]], np.float32)
    with pytest.raises(
        DataError, match=r"samples has 6 bytes; 4 are needed for whole bins of 2 int16"
    ):
        reader.bins({b"samples": bytes(6)})
    with pytest.raises(DataError, match="samples has 0 bytes"):
        reader.bins({b"samples": b""})


DOCS = Path(__file__).resolve().parents[3] / "docs"


def test_the_table_of_parameters_is_complete_and_has_the_right_defaults():
    page = (DOCS / "reference/brand-messages.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `?([^|`]*)`? \|", page, re.MULTILINE)
    table = {name: default.strip() for name, default in rows}
    expected = {"run": "required", "output_stream": "NICK_output", "final_stream": "NICK_final"}
    for field in dataclasses.fields(NodeConfig):
        if field.name not in expected:
            made = (
                field.default_factory() if field.default is dataclasses.MISSING else field.default
            )
            expected[field.name] = (
                "null" if made is None else "60000" if made == 60_000.0 else str(made)
            )
    assert {name: table.get(name) for name in expected} == expected


def test_the_graph_of_the_guide_is_one():
    [text] = re.findall(r"```yaml\n(.*?)```", (DOCS / "guides/brand.md").read_text(), re.DOTALL)
    [node] = yaml.safe_load(text)["nodes"]
    entry = {b"data": json.dumps({"nodes": {node["nickname"]: node}}).encode()}
    found = node_parameters("1-0", entry, node["nickname"])
    assert (str(found.run), found.control_stream, found.options["nbest"]) == (
        "/data/runs/t15",
        "trial_control",
        20,
    )
