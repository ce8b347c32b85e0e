"""Damaged folders of large language models: `decode` names the folder, and reads no other code."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from damaged_folders import (
    ESCAPE,
    Change,
    Damage,
    check_damages,
    cut,
    pipe,
    remove,
    write,
    write_model,
)
from tiny_llm import save_tiny_lm

from cortext.cli import run

LLM = "decode --fake-text go --lm FOLDER --llm FOLDER/llm --llm-device cpu"


def config(**changes: object) -> Change:
    """Other values in the large model's config.json; of None the key is taken out."""

    def change(folder: Path) -> None:
        path = folder / "llm" / "config.json"
        values = json.loads(path.read_text()) | changes
        path.write_text(
            json.dumps({name: value for name, value in values.items() if value is not None})
        )

    return change


def tensors(length: int, text: bytes, body: bytes = b"") -> Change:
    """Weights with another header, which says that it has its own length or, if that is not 0,
    another one.
    """
    return write("llm/model.safetensors", struct.pack("<Q", length or len(text)) + text + body)


def entry(kind: str, shape: list[int], end: int) -> bytes:
    return json.dumps({"x": {"dtype": kind, "shape": shape, "data_offsets": [0, end]}}).encode()


CANNOT = "cannot be loaded as a causal language model"
LARGE = [
    Damage("no config.json", remove("llm/config.json"), "llm: has no config.json: it holds no model"),
    Damage("an empty config.json", write("llm/config.json", ""), f"llm: {CANNOT} .Expecting value"),
    Damage("a deep config.json", write("llm/config.json", "[" * 100_000), f"llm: {CANNOT} .it has more than 64 levels"),
    Damage("a list as config.json", write("llm/config.json", "[]"), f"llm: {CANNOT} .it is a list"),
    Damage("a number of 400 digits in config.json", config(hidden_size=10**400), f"llm: {CANNOT} .it has an integer of 401 characters"),
    Damage("a negative size", config(hidden_size=-32), f"llm: {CANNOT} .*negative dimension"),
    Damage("a size of 2^40", config(hidden_size=2**40), "llm: not enough memory to load the model"),
    Damage("10^9 layers", config(num_hidden_layers=10**9), "llm: its config.json has num_hidden_layers 1,000,000,000"),
    Damage("10^9 labels", config(num_labels=10**9), "llm: its config.json has num_labels 1,000,000,000"),
    Damage("10^12 words", config(vocab_size=10**12), "llm: not enough memory to load the model"),
    Damage("a text as a size", config(hidden_size="large"), f"llm: {CANNOT} .*hidden_size"),
    Damage("an unknown type of model", config(model_type=ESCAPE), f"llm: {CANNOT}"),
    Damage("code to run", config(auto_map={"AutoModelForCausalLM": "evil.Model"}, model_type="evil"), f"llm: {CANNOT} .*`evil`"),
    Damage("no weights", remove("llm/model.safetensors"), f"llm: {CANNOT} .*model.safetensors"),
    Damage("half of the weights", cut("llm/model.safetensors", 0.5), f"llm: {CANNOT} .*header"),
    Damage("a header of 2^63 bytes", tensors(2**63, b"{}"), f"llm: {CANNOT} .*header too large"),
    Damage("a deep header", tensors(200_000, b"[" * 200_000), f"llm: {CANNOT} .*header"),
    Damage("a tensor of 2^62 numbers", tensors(0, entry("F32", [2**62], 8), bytes(8)), f"llm: {CANNOT} .*header"),
    Damage("a type that is not there", tensors(0, entry("F7", [1], 4), bytes(4)), f"llm: {CANNOT} .*`F7`"),
    Damage("no tokenizer", remove("llm/tokenizer.json"), "llm: its tokenizer cannot be loaded"),
    Damage("a deep tokenizer", write("llm/tokenizer.json", '{"a":' * 100_000), "llm/tokenizer.json: it has more than 64 levels"),
    Damage("a list as a tokenizer", write("llm/tokenizer.json", "[]"), "llm/tokenizer.json: it is a list"),
    Damage("a pipe as a tokenizer", pipe("llm/tokenizer.json"), "llm: its tokenizer cannot be loaded"),
    Damage("a pipe as config.json", pipe("llm/config.json"), "llm: has no config.json"),
    Damage("a pipe as weights", pipe("llm/model.safetensors"), f"llm: {CANNOT} .*model.safetensors"),
]  # fmt: skip


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An n-gram model, and a large model in it."""
    folder = write_model(tmp_path_factory.mktemp("large"))
    save_tiny_lm(folder / "llm")
    return folder


@pytest.mark.slow
def test_the_folder_itself_is_sound(large: Path) -> None:
    assert run(LLM.replace("FOLDER", str(large)).split()) == 0


@pytest.mark.slow
def test_a_damaged_large_model_is_refused_in_one_line(large: Path, tmp_path: Path) -> None:
    check_damages(large, LARGE, LLM, tmp_path)
