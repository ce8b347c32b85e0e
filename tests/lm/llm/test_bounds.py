"""Files of large models are read, and their work bounded, before they are used."""

from __future__ import annotations

import base64
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
import transformers
from attack_process import check_all
from refusals import refused
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from cortext.errors import LanguageModelError
from cortext_lm.llm.adapter_bounds import check_adapter
from cortext_lm.llm.loading import check_config, check_made, read_tokenizer
from cortext_lm.llm.model import CausalLM
from cortext_lm.llm.patterns import cost
from cortext_lm.llm.tokenizer_bounds import MOST_GROWTH, check_tokenizer
from cortext_lm.llm.weight_files import check_weight_files

TOKENIZERS = {
    "GPT-2": r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    "Llama 3, Qwen 2": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
    "CLIP": r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "GPT-4": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
        r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
    "GPT-4o, Llama 4": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+"
    ),
    "BLOOM": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "T5": r" {2,}",
    "digits from the right": r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
}
ADAPTERS = {
    "endings": r".*\.(q_proj|v_proj)",
    "peft's example": r".*decoder.*(SelfAttention|EncDecAttention).*(q|v)$",
    "not the tower": r"^(?!.*(?:visual|merger)).*(?:q_proj|k_proj|v_proj).*",
    "tempered": r"^(?:(?!visual|mlp).)*\.q_proj",
    "layers by number": r"model\.layers\.\d+\.(self_attn|mlp)\.(q|k|v|o|up|gate|down)_proj",
    "four open repeats": (
        r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|ffn).*?(?:k_proj|v_proj).*?)"
        r"|(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:(?:k_proj|v_proj)))"
    ),
}
REPEATS = "within a repeat"
MANY = "that follow each other"
ENDLESS = {
    # OWASP's examples of evil expressions
    "(a+)+": REPEATS,
    "([a-zA-Z]+)*": REPEATS,
    "(a|aa)+": REPEATS,
    "(a|a?)+": REPEATS,
    "(.*a){12}": REPEATS,
    "(([a-z0-9_.])+)+!": REPEATS,
    "a?" * 30 + "a" * 30: MANY,
    "(a|a)" * 30 + "b": MANY,
    "(?i:a|A)" * 30 + "b": MANY,
    ".*" * 5 + "!": MANY,
    "(?:a+){00000000000002}": REPEATS,
    "(a+){,}": REPEATS,  # any number of times in Python
    "a**": REPEATS,
    "a*?+b": REPEATS,
    "a{1,3}+b": REPEATS,  # a repeat of a repeat in Oniguruma
    "(?:(?=.*a).)*x": REPEATS,
    "(?>a*)*": REPEATS,
    "[[](a+)+]": REPEATS,  # in Python the class ends at the first ]
    "(a+)(?#between)+": "unknown form",
    "(?x)(a+) +b": "unknown form",
    r"(a)\1*": "refers to one of its groups",
    r"(?<n>a)\k<n>": "refers to one of its groups",
    "(?(1)a)": "unknown form",
    "((a{100}){100}){100}": "its repeats written out",
    "a{1000000}": "its repeats written out",
    "x" * 20_000: "20,000 characters",
    "(" * 100 + ")" * 100: "levels of brackets",
    "(a": "without its end",
    "a)": "too many",
    "[a": "without its end",
    "a\\": "backslash",
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_patterns_of_tokenizers_in_use_are_accepted(name: str) -> None:
    assert cost(TOKENIZERS[name], nested_classes=True).bits <= 13


@pytest.mark.parametrize("name", ADAPTERS)
def test_patterns_of_adapters_in_use_are_accepted(name: str) -> None:
    cost(ADAPTERS[name])


def test_a_pattern_that_may_not_end_is_refused() -> None:
    def check(pattern: str) -> None:
        with pytest.raises(ValueError, match=ENDLESS[pattern]) as caught:
            cost(pattern)
        assert "\n" not in str(caught.value)

    check_all(list(ENDLESS), check, patience_s=20)


@pytest.mark.parametrize(
    ("pattern", "shortest"),
    [
        *(("", 0), ("a*", 0), ("a|", 0), ("^$", 0), (r"\b", 0), ("(?=a)", 0), ("a{0,3}", 0)),
        *((" {2,}", 2), ("(?:ab){3}", 6), ("ab|c", 1), ("[^a]", 1), (r"\p{L}+x", 2), ("[]a]", 1)),
    ],
)
def test_the_shortest_match_is_counted(pattern: str, shortest: int) -> None:
    assert cost(pattern, nested_classes=True).shortest == shortest


def replace(old: str, new: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def sequence(name: str, steps: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "Sequence", name: steps}


def charsmap(text: bytes) -> dict[str, Any]:
    table = struct.pack("<I", 4) + bytes(4) + text + b"\0"
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


def template(**changes: Any) -> dict[str, Any]:
    piece = {"Sequence": {"id": "A", "type_id": 0}}
    special = {"id": "[CLS]", "ids": [1], "tokens": ["[CLS]"]}
    usual = {"single": [piece], "pair": [piece], "special_tokens": {"[CLS]": special}}
    return {"type": "TemplateProcessing"} | usual | changes


BOMB = [replace("hello", "\1" * 1000), replace("\1", "\2" * 1000), replace("\2", "\3" * 1000)]
PIECE = {"Sequence": {"id": "A", "type_id": 0}}
TOO_MUCH = {
    "a word of 10^9 bytes": ({"normalizer": sequence("normalizers", BOMB)}, "grow"),
    "sequences within sequences": (
        {"normalizer": sequence("normalizers", [sequence("normalizers", [one]) for one in BOMB])},
        "grow",
    ),
    "one long text": ({"normalizer": replace("a", "b" * 3000)}, "grow 3,000 times"),
    "nothing becomes a text": ({"normalizer": replace("x*", "b" * 3000, "Regex")}, "grow"),
    "blanks that double": (
        {"pre_tokenizer": sequence("pretokenizers", [{"type": "ByteLevel"}] * 40)},
        "pre_tokenizer lets a text grow",
    ),
    "both parts together": (
        {"normalizer": replace("a", "b" * 50), "pre_tokenizer": replace("b", "c" * 50)},
        "pre_tokenizer lets",
    ),
    "a text before each": ({"normalizer": {"type": "Prepend", "prepend": "x" * 5000}}, "grow"),
    "a table of long texts": ({"normalizer": charsmap(b"x" * 5000)}, "grow 5,000 times"),
    "a damaged table": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "!"}},
        "precompiled_charsmap is damaged",
    ),
    "a decoder": ({"decoder": sequence("decoders", BOMB)}, "decoder lets a text grow"),
    "a step without a type": (
        {"normalizer": {"pattern": {"String": "a"}, "content": "b" * 5000}},
        "a step without a type",
    ),
    "a replacement that looks like a sequence": (
        {"normalizer": replace("a", "b" * 5000) | {"normalizers": [{"type": "NFC"}]}},
        "grow",
    ),
    "a step for each of 1,000 letters": (
        {"normalizer": sequence("normalizers", [{"type": "NFC"}] * 1000)},
        "grow|steps",
    ),
    "a replacement that never ends": ({"normalizer": replace("(a+)+b", "", "Regex")}, REPEATS),
    "a division that never ends": (
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a|a)*b"}}},
        "pre_tokenizer has a regular expression that has a repeat",
    ),
    "a text a hundred times": (
        {"post_processor": sequence("processors", [template(single=[PIECE] * 90)] * 2)},
        "post_processor lets a text grow 8,100 times",
    ),
    "a million marks": (
        {"post_processor": template(special_tokens={"x": {"ids": list(range(1000))}})},
        "more than 100 tokens",
    ),
    "a text of 10^12 tokens": ({"padding": {"strategy": {"Fixed": 10**12}}}, "pads every text"),
    "a multiple of 10^12": ({"padding": {"pad_to_multiple_of": 10**12}}, "pads every text"),
    "words divided at random": ({"model": {"dropout": 0.1}}, "at random"),
    "words of any length": ({"model": {"max_input_chars_per_word": 10**9}}, "divides words"),
    "a long mark": ({"model": {"continuing_subword_prefix": "#" * 10**6}}, "more than 100"),
}


def test_a_tokenizer_whose_work_has_no_bound_is_refused() -> None:
    def check(name: str) -> None:
        content, says = TOO_MUCH[name]
        with pytest.raises(ValueError, match=says) as caught:
            check_tokenizer(content)
        assert "\n" not in str(caught.value)

    check_all(list(TOO_MUCH), check, patience_s=20)


STEPS = {
    "BERT": (normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()),
    "GPT-2": (None, pre_tokenizers.ByteLevel()),
    "ALBERT": (
        normalizers.Sequence(
            [
                normalizers.Replace("``", '"'),
                normalizers.NFKD(),
                normalizers.StripAccents(),
                normalizers.Lowercase(),
            ]
        ),
        pre_tokenizers.Metaspace(),
    ),
    "Llama 2": (
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        None,
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_tokenizers_in_use_are_accepted(name: str) -> None:
    tokenizer = Tokenizer(models.BPE())
    normalizer, pre_tokenizer = STEPS[name]
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A", None, [("[CLS]", 1)])
    tokenizer.enable_padding(length=128)
    check_tokenizer(json.loads(tokenizer.to_str()))


@pytest.mark.parametrize(
    "step",
    [
        normalizers.NFD(),
        normalizers.NFC(),
        normalizers.NFKD(),
        normalizers.NFKC(),
        normalizers.Lowercase(),
        normalizers.BertNormalizer(),
        normalizers.ByteLevel(),
        normalizers.Replace("a", "bcd"),
    ],
    ids=lambda step: type(step).__name__,
)
def test_no_character_grows_more_than_is_assumed(step: Any) -> None:
    # With what the step makes of a character, a replacement before it goes beyond the bound.
    spec = json.loads(step.__getstate__())
    characters = [chr(code) for code in (*range(1, 0x3000, 7), 0xFDFA, 0x1F82, 0x390, 0x130, 97)]
    longest = max(len(step.normalize_str(character)) for character in characters)
    before = replace("x", "y" * int(MOST_GROWTH / longest + 1))
    with pytest.raises(ValueError, match="grow"):
        check_tokenizer({"normalizer": sequence("normalizers", [before, spec])})


@pytest.fixture
def copied(tiny_lm_dir: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_lm_dir, tmp_path / "model"))


def test_a_model_with_a_tokenizer_without_bound_is_not_loaded(copied: Path) -> None:
    path = copied / "tokenizer.json"
    content = json.loads(path.read_text()) | {"normalizer": sequence("normalizers", BOMB)}
    # A file for newer versions of transformers counts, too.
    (copied / "tokenizer.4.0.0.json").write_text(json.dumps(content))
    with pytest.raises(LanguageModelError, match=r"tokenizer.4.0.0.json: its normalizer lets"):
        CausalLM.check(copied)


def test_a_tokenizer_of_other_files_has_the_same_bounds(copied: Path) -> None:
    # transformers makes a tokenizer of these two files, with rules of its own.
    expected = Tokenizer.from_file(str(copied / "tokenizer.json")).encode("how are you").tokens
    content = json.loads((copied / "tokenizer.json").read_text())["model"]
    (copied / "vocab.json").write_text(json.dumps(content["vocab"]))
    (copied / "merges.txt").write_text("\n".join(map(" ".join, content["merges"])))
    (copied / "tokenizer.json").unlink()
    settings = copied / "tokenizer_config.json"
    settings.write_text(
        json.dumps(json.loads(settings.read_text()) | {"tokenizer_class": "GPT2Tokenizer"})
    )
    tokenizer = read_tokenizer(transformers, str(copied))
    assert tokenizer.tokenize("how are you") == expected
    tokenizer.backend_tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Replace(a, b * 1000) for a, b in ("ob", "bc", "cd", "de")]
    )
    with pytest.raises(LanguageModelError, match="its tokenizer: its normalizer lets a text grow"):
        check_made(tokenizer, "model")


INDEX = "model.safetensors.index.json"
INDEX_FAULTS: dict[str, Any] = {
    "a pickle": ({"weight_map": {"a": "pytorch_model.bin"}}, "pytorch_model.bin', which is no"),
    "another folder": ({"weight_map": {"a": "../a.safetensors"}}, "'../a.safetensors', which"),
    "a number": ({"weight_map": {"a": 5}}, "the file 5, which is no .safetensors"),
    "no files": ({}, "it has no weight_map"),
    "a list": ([], "it is a list"),
    "many files": (
        {"weight_map": {str(n): f"{n}.safetensors" for n in range(10_001)}},
        "more than 10,000 files",
    ),
}


def test_an_index_names_safetensors_of_its_folder(tmp_path: Path) -> None:
    # transformers gives other files to torch's unpickler, which 400 bytes make take 4 GB.
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "model-1.safetensors"}}))
    check_weight_files(transformers, str(tmp_path), {})

    def check(name: str) -> None:
        content, says = INDEX_FAULTS[name]
        (tmp_path / INDEX).write_text(json.dumps(content))
        with refused(says, error=LanguageModelError):
            check_weight_files(transformers, str(tmp_path), {})

    check_all(list(INDEX_FAULTS), check)


def test_no_other_file_of_weights_is_read(copied: Path) -> None:
    with pytest.raises(LanguageModelError, match="names other files of weights"):
        check_weight_files(transformers, str(copied), {"transformers_weights": "a.safetensors"})
    with pytest.raises(LanguageModelError, match="is a file; a directory is needed"):
        CausalLM.check(copied / "model.safetensors")
    (copied / "model.safetensors").rename(copied / "model.gguf")
    with pytest.raises(LanguageModelError, match=r"GGUF.*give the model as safetensors"):
        CausalLM.check(copied)


def test_an_adapter_beside_a_model_is_checked(copied: Path) -> None:
    # transformers adds it to the model by itself.
    (copied / "adapter_model.safetensors").write_bytes(b"")
    adapter = ADAPTER | {"target_modules": "(a+)+!"}
    (copied / "adapter_config.json").write_text(json.dumps(adapter))
    with pytest.raises(LanguageModelError, match="target_modules has a regular expression"):
        CausalLM.check(copied)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"text_config": {"num_hidden_layers": 10**9}}, "num_hidden_layers 1,000,000,000"),
        ({"n_layer": 10**9}, "n_layer 1,000,000,000; at most 1,000"),
        ({"moe": {"num_local_experts": 10**7}}, "num_local_experts"),
        ({"num_labels": 10**7}, "num_labels 10,000,000; at most 10,000"),
        ({"_attn_implementation": "someone/kernel"}, "code from the Hub, which is not run"),
    ],
)
def test_a_configuration_that_asks_for_too_much_is_refused(
    config: dict[str, Any], says: str
) -> None:
    with pytest.raises(LanguageModelError, match=says):
        check_config(config, "model")


ADAPTER = {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"], "rank_pattern": {}}
ADAPTER_FAULTS = {
    "a pattern that never ends": ({"target_modules": "(a+)+!"}, "target_modules has a regular"),
    "modules to leave out": ({"exclude_modules": "(a|a)*b"}, "exclude_modules has a regular"),
    "ranks by pattern": ({"rank_pattern": {"(a+)+!": 4}}, "rank_pattern has a regular"),
    "alphas by pattern": ({"alpha_pattern": {"(a+)+!": 4}}, "alpha_pattern has a regular"),
    "layers by pattern": ({"layers_pattern": ["(a+)+"]}, "layers_pattern has a regular"),
    "modules to keep": ({"modules_to_save": ["(a+)+"]}, "modules_to_save has a regular"),
    "a rank of 10^9": ({"r": 10**9}, "rank 1000000000; 1 to 8,192"),
    "a rank of 10^9 by pattern": ({"rank_pattern": {"q": 10**9}}, "rank 1000000000"),
    "a rank that is no number": ({"r": "all"}, "rank 'all'"),
    "a module to import": ({"megatron_config": {"a": 1}}, "names a module of Python"),
    "a million layers": ({"layer_replication": [[0, 2]] * 1000}, "copies layers"),
    "another kind": ({"peft_type": "PROMPT_TUNING"}, "peft_type is 'PROMPT_TUNING'"),
    "names that are numbers": ({"target_modules": [1]}, "a name that is no text"),
}


def test_an_adapter_that_asks_for_too_much_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(ADAPTER))
    check_adapter(tmp_path)

    def check(name: str) -> None:
        changes, says = ADAPTER_FAULTS[name]
        path.write_text(json.dumps(ADAPTER | changes))
        with refused(says, error=LanguageModelError):
            check_adapter(tmp_path)

    check_all(list(ADAPTER_FAULTS), check)
