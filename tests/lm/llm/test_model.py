"""Loading a causal language model, what is said where that fails, and the tokens that scoring
works on.
"""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_llm import bpe_tokenizer

from cortext.errors import LanguageModelError
from cortext_lm.llm.explain import explained, out_of_memory
from cortext_lm.llm.loading import free_bytes
from cortext_lm.llm.model import CausalLM
from cortext_lm.llm.scoring import score_texts

# peft asks.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)


@pytest.fixture(scope="module")
def lm(tiny_lm_dir: Path) -> CausalLM:
    return CausalLM.load(tiny_lm_dir)


@pytest.fixture
def copied(tiny_lm_dir: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model to do harm to."""
    return Path(shutil.copytree(tiny_lm_dir, tmp_path / "model"))


def test_a_directory_is_loaded_to_be_read_only(lm: CausalLM):
    assert not lm.network.training
    assert not any(parameter.requires_grad for parameter in lm.network.parameters())
    assert (lm.window, lm.start, lm.end) == (256, lm.tokenizer.bos_token_id, None)


def test_a_model_says_what_it_is(lm: CausalLM, tiny_lm_dir: Path):
    said = lm.describe()
    assert said["model"] == str(tiny_lm_dir)
    # 2 x 320 x 32 embeddings, 2 layers of 9,280 weights, the last norm's 32.
    assert said["n_parameters"] == 39072
    assert (
        said["sha256"]
        == hashlib.sha256((tiny_lm_dir / "model.safetensors").read_bytes()).hexdigest()
    )
    assert (said["class"], said["dtype"], said["device"], said["lora"]) == (
        "LlamaForCausalLM",
        "float32",
        "cpu",
        None,
    )


@pytest.mark.parametrize("context", ["", "i would like some water", " what do you think? "])
def test_prefix_and_tokens_are_the_tokens_of_the_whole(lm: CausalLM, context: str):
    whole = " ".join(f"{context} how are you".split())
    expected = lm.tokenizer.encode(whole, add_special_tokens=False)
    assert lm.prefix(context) + lm.tokens("how are you", context) == [lm.start, *expected]


def test_a_tokenizer_that_puts_the_space_in_front_itself_gets_none(lm: CausalLM):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    pieces = Tokenizer(models.BPE(unk_token="<unk>"))
    pieces.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    pieces.decoder = decoders.Metaspace()
    special = ["<unk>", "<s>", "</s>"]
    pieces.train_from_iterator(
        ["how are you", "of it"], trainers.BpeTrainer(special_tokens=special, show_progress=False)
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, bos_token="<s>", eos_token="</s>")
    like_llama_2 = CausalLM("metaspace", lm.network, tokenizer)
    whole = tokenizer.encode("of it how are you", add_special_tokens=False)
    assert like_llama_2.prefix("of it") + like_llama_2.tokens("how are you", "of it") == [1, *whole]


def test_notes_of_use_can_be_dropped_and_those_of_the_model_stay(
    lm: CausalLM, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(lm.network.config, "bos_token_id", None)
    other = CausalLM("other", lm.network, bpe_tokenizer(bos=None))
    lasting = list(other.notes)
    other.prefix("of it today " * 200)
    assert len(other.notes) == len(lasting) + 1 == 2
    other.forget_notes()
    assert other.notes == lasting


def test_without_bos_eos_stands_before_a_sentence(tiny_lm_dir: Path):
    network = CausalLM.load(tiny_lm_dir).network
    network.config.bos_token_id = None
    found = CausalLM("like GPT-2", network, bpe_tokenizer(bos=None))
    assert found.start == found.tokenizer.eos_token_id
    assert found.notes == [
        "the tokenizer of like GPT-2 has no BOS token; its EOS, </s>, stands before sentences"
    ]


@pytest.mark.parametrize("several", [False, True])
def test_what_ends_documents_stands_before_a_sentence_not_what_ends_a_turn(
    tiny_lm_dir: Path, several: bool
):
    tokenizer = bpe_tokenizer(bos=None, eos="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|endoftext|>"]})
    network, end = (
        CausalLM.load(tiny_lm_dir).network,
        tokenizer.convert_tokens_to_ids("<|endoftext|>"),
    )
    network.config.bos_token_id, network.config.eos_token_id = None, [999, end] if several else end
    found = CausalLM("like Qwen3.5", network, tokenizer)
    assert tokenizer.eos_token_id != end
    assert (found.start, found.end) == (end, None)
    assert found.notes == [
        "the tokenizer of like Qwen3.5 has no BOS token; its EOS, <|endoftext|>, stands before"
        " sentences"
    ]


# As those of OPT, Llama 3 and Llama 2 may do.
@pytest.mark.parametrize("frame", ["</s> $A", "<s> $A", "<s> $A </s>"])
def test_what_a_tokenizer_puts_around_a_text_is_left_out(lm: CausalLM, frame: str):
    from tokenizers import processors

    tokenizer = bpe_tokenizer()
    plain = tokenizer.encode("i am not sure", add_special_tokens=False)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=frame,
        special_tokens=[
            (token, tokenizer.convert_tokens_to_ids(token)) for token in ("<s>", "</s>")
        ],
    )
    assert len(tokenizer.encode("i am not sure")) > len(plain)
    found = CausalLM("framing", lm.network, tokenizer)
    assert found.prefix("i am") + found.tokens("not sure", "i am") == [found.start, *plain]


def test_a_bos_that_only_the_configuration_names_is_taken(tiny_lm_dir: Path):
    tokenizer = bpe_tokenizer(bos=None)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|endoftext|>"]})
    network = CausalLM.load(tiny_lm_dir).network
    network.config.bos_token_id = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    found = CausalLM("like Qwen", network, tokenizer)
    assert (found.start, found.notes) == (network.config.bos_token_id, [])


def test_a_tokenizer_with_neither_is_an_error(tiny_lm_dir: Path):
    network = CausalLM.load(tiny_lm_dir).network
    with pytest.raises(
        LanguageModelError,
        match=r"^odd: the tokenizer has neither a BOS nor an EOS token.*bos_token in",
    ):
        CausalLM("odd", network, bpe_tokenizer(bos=None, eos=None))


def test_a_tokenizer_of_another_model_is_an_error(lm: CausalLM):
    tokenizer = bpe_tokenizer()
    tokenizer.add_tokens(["zanzibar"])
    other = CausalLM("other", lm.network, tokenizer)
    with pytest.raises(
        LanguageModelError, match="the tokenizer gives token 320, and the model knows only 320"
    ):
        other.tokens("zanzibar")


def _error(name: str | Path, **settings: Any) -> str:
    with pytest.raises(LanguageModelError) as caught:
        CausalLM.load(name, **settings)
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_what_is_no_model_is_an_error(tmp_path: Path, copied: Path):
    assert _error(tmp_path).startswith(
        f"{tmp_path}: has no config.json: it holds no model; give a directory"
    )
    (copied / "config.json").write_text('{"model_type": "gru"}')
    assert "model type `gru`" in _error(copied)
    (copied / "config.json").write_text("{")
    assert f"{copied}: cannot be loaded as a causal language model (" in _error(copied)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"vocab_size": 100},
            (
                "lm_head.weight is [320, 32], and by its config.json it must be [100, 32]; give a"
                " model with"
            ),
        ),
        ({"hidden_size": "big"}, "(Validation error for field 'hidden_size': "),
        (
            {"num_attention_heads": 3},
            "(Class validation error for validator 'validate_architecture': ",
        ),
    ],
)
def test_a_configuration_that_does_not_fit_is_an_error(
    copied: Path, changes: dict[str, Any], said: str
):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | changes))
    assert said in _error(copied)


def test_a_name_that_no_disk_can_hold_is_an_error():
    assert "File name too long" in _error("x" * 300)


def test_a_window_of_one_token_leaves_room_for_no_context_and_says_nothing_without_one(
    copied: Path,
):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 1}))
    lm = CausalLM.load(copied)
    assert (lm.prefix(), lm.notes) == ([lm.start], [])
    assert lm.prefix("how are you") == [lm.start]
    assert "reads at most 0 before a sentence: only the last 0 count" in lm.notes[0]


def test_a_model_of_another_kind_is_an_error(tmp_path: Path):
    from transformers import T5Config, T5ForConditionalGeneration

    T5ForConditionalGeneration(
        T5Config(vocab_size=320, d_model=8, d_ff=8, d_kv=4, num_layers=1, num_heads=2)
    ).save_pretrained(tmp_path)
    bpe_tokenizer().save_pretrained(tmp_path)
    assert "T5Config" in _error(tmp_path)


def test_a_model_without_its_output_layer_is_an_error(tiny_lm_dir: Path, copied: Path):
    from transformers import LlamaModel

    LlamaModel.from_pretrained(tiny_lm_dir).save_pretrained(copied)
    assert "lacks 1 of its weights, such as lm_head.weight: this is no" in _error(copied)


def test_a_tokenizer_whose_compiled_code_panics_is_an_error(
    tiny_lm_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    class Panic(BaseException):
        pass

    def panics(*_: object, **__: object) -> None:
        raise Panic("called `Option::unwrap()` on a `None` value")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", panics)
    assert "its tokenizer cannot be loaded (called `Option::unwrap()` on a `None` value)" in _error(
        tiny_lm_dir
    )


def test_a_model_without_tokenizer_is_an_error(copied: Path):
    for file in copied.glob("tokenizer*"):
        file.unlink()
    assert f"{copied}: its tokenizer cannot be loaded (" in _error(copied)


def test_damaged_weights_are_an_error(copied: Path):
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    assert _error(copied).startswith(f"{copied}: cannot be loaded as a causal language model (")


def test_pickled_weights_are_not_read(copied: Path):
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (copied / "harm",))

    (copied / "model.safetensors").unlink()
    torch.save({"weight": Harm()}, copied / "pytorch_model.bin")
    assert "model.safetensors" in _error(copied)
    assert not (copied / "harm").exists()


def test_a_device_that_is_not_there_is_an_error(tiny_lm_dir: Path):
    assert (
        _error(tiny_lm_dir, device="cuda:99")
        == "there is no device cuda:99 for the large model; use cpu or auto"
    )
    for unknown in ("gpu", "mps"):
        assert _error(tiny_lm_dir, device=unknown).startswith(
            f"unknown device '{unknown}' for the large model; use"
        )


def _save_lora(network: Any, folder: Path) -> None:
    """A random adapter for a network; nothing is left in it."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(3)
    adapted = get_peft_model(
        network, LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    )
    adapted.save_pretrained(folder)
    adapted.unload()


def test_a_lora_adapter_is_added_to_the_weights(tiny_lm_dir: Path, tmp_path: Path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    _save_lora(CausalLM.load(tiny_lm_dir).network, tmp_path)
    merged = CausalLM.load(tiny_lm_dir, lora=tmp_path)
    peer = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(tiny_lm_dir), tmp_path
    ).eval()
    tokens = torch.tensor([[merged.start, *merged.tokens("how are you")]])
    with torch.no_grad():
        torch.testing.assert_close(
            merged.network(tokens).logits, peer(tokens).logits, rtol=1e-4, atol=1e-4
        )
    without = score_texts(CausalLM.load(tiny_lm_dir), ["how are you"])
    assert abs(score_texts(merged, ["how are you"])[0].log_prob - without[0].log_prob) > 0.1
    assert merged.describe()["lora"] == str(tmp_path)


def test_a_lora_adapter_that_does_not_fit_is_an_error(tiny_lm_dir: Path, tmp_path: Path):
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    wider = LlamaConfig(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    _save_lora(LlamaForCausalLM(wider), tmp_path / "wider")
    assert "the LoRA adapter does not fit" in _error(tiny_lm_dir, lora=tmp_path / "wider")
    deeper = LlamaConfig(
        vocab_size=320, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    _save_lora(LlamaForCausalLM(deeper), tmp_path / "shallower")
    assert "the LoRA adapter does not fit" in _error(tiny_lm_dir, lora=tmp_path / "shallower")
    bpe_tokenizer().save_pretrained(tmp_path / "gpt2")
    GPT2LMHeadModel(GPT2Config(vocab_size=320, n_embd=32, n_layer=1, n_head=4)).save_pretrained(
        tmp_path / "gpt2"
    )
    assert "the LoRA adapter does not fit" in _error(tmp_path / "gpt2", lora=tmp_path / "wider")
    found = _error(tiny_lm_dir, lora=tiny_lm_dir)
    assert (
        found == f"{tiny_lm_dir}: has no adapter_config.json: it is no LoRA adapter; give another"
        " --llm-lora"
    )


def test_torch_says_that_memory_is_out_in_words_that_are_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert out_of_memory(caught.value)
    assert out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert out_of_memory(
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")
    )
    assert not out_of_memory(RuntimeError("shape mismatch"))


def test_memory_that_does_not_hold_the_model_is_an_error(
    tiny_lm_dir: Path, monkeypatch: pytest.MonkeyPatch
):
    from transformers import LlamaForCausalLM

    monkeypatch.setattr(LlamaForCausalLM, "__init__", lambda *_: torch.empty(1 << 60, device="cpu"))
    assert "not enough memory to load the model; use a smaller model" in _error(tiny_lm_dir)


def test_a_model_that_is_too_large_for_this_machine_is_an_error_before_it_is_read(
    tiny_lm_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    shutil.copy(tiny_lm_dir / "config.json", tmp_path)  # without any weights
    monkeypatch.setattr("cortext_lm.llm.loading.free_bytes", lambda: 4 * 39072 - 1)
    assert (
        _error(tmp_path)
        == f"{tmp_path}: not enough memory to load the model: on a CPU its weights take 0.0 GB, and"
        " 0.0 GB are free; use a smaller model, or a GPU (the device cuda)"
    )
    monkeypatch.setattr("cortext_lm.llm.loading.free_bytes", lambda: 4 * 39072)
    assert "its tokenizer cannot be loaded" in _error(tmp_path)


def test_free_memory_is_the_machines_or_the_containers(tmp_path: Path):
    (tmp_path / "meminfo").write_text(
        "MemTotal:  9000 kB\nMemFree: 10 kB\nMemAvailable:  4000 kB\n"
    )
    group = tmp_path / "group"
    assert free_bytes(tmp_path, group) == 4000 * 1024
    group.mkdir()
    for name, text in (
        ("memory.max", "3000\n"),
        ("memory.current", "2500\n"),
        ("memory.stat", "anon 1\ninactive_file 300\n"),
    ):
        (group / name).write_text(text)
    assert free_bytes(tmp_path, group) == 3000 - 2500 + 300
    (group / "memory.max").write_text("max\n")
    assert free_bytes(tmp_path, group) == 4000 * 1024
    assert free_bytes(tmp_path / "group", group) is None


@pytest.mark.gpu
def test_a_gpu_gives_the_scores_of_the_cpu_and_says_when_it_is_full(tiny_lm_dir: Path):
    texts = ["how are you", "i would like some water today"]
    on_gpu, on_cpu = (
        score_texts(CausalLM.load(tiny_lm_dir, device=device), texts, "no")
        for device in ("cuda", "cpu")
    )
    assert [s.log_prob for s in on_gpu] == pytest.approx([s.log_prob for s in on_cpu], rel=1e-3)
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50, device="cuda")
    assert out_of_memory(caught.value)


class _Hub(http.server.BaseHTTPRequestHandler):
    """Answers as the Hub does for a model that is gated, not there, or too large for the disk."""

    def do_GET(self) -> None:
        config = b'{"model_type": "llama"}' + b" " * 100_000
        if "/gated" in self.path:
            self._answer(403 if "refused" in self.path else 401, {"X-Error-Code": "GatedRepo"})
        elif "/large" not in self.path:
            self._answer(401, {"X-Error-Code": "RepoNotFound"})
        elif "/api/" in self.path:
            self._answer(
                200, {}, json.dumps({"id": "lab/large", "sha": "a" * 40, "siblings": []}).encode()
            )
        elif self.path.endswith("config.json"):
            self._answer(200, {"ETag": f'"{"b" * 40}"', "X-Repo-Commit": "a" * 40}, config)
        else:
            self._answer(404, {"X-Error-Code": "EntryNotFound"})

    do_HEAD = do_GET

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"{}") -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    """The address of a hub on this machine."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


LOAD = """
import resource, sys
from cortext_lm.llm.model import CausalLM
from cortext.errors import LanguageModelError
for name in sys.argv[1:]:
    if name == "lab/large":  # no file may be larger: to a program that writes it is a full disk
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    try:
        CausalLM.load(name)
    except LanguageModelError as error:
        print(error)
"""


@pytest.mark.slow
def test_what_the_hub_refuses_is_said_in_one_line_each(hub: str, tmp_path: Path):
    names = ["lab/unknown", "lab/gated", "lab/gated-refused", "no/such/directory", "lab/large"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment = kept | {"HF_ENDPOINT": hub, "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *names], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    unknown, gated, refused, directory, large = done.stdout.splitlines()
    assert unknown.startswith(
        "lab/unknown: neither a directory nor a model that the Hub knows; check the name"
    )
    assert gated.startswith("lab/gated: the model is gated")
    assert gated.endswith("HF_TOKEN to a token of that account")
    assert f"ask for access at {hub}/lab/gated-refused" in refused
    assert directory.startswith(
        "no/such/directory: neither a directory nor a name as the Hub has them"
    )
    assert large.startswith(
        f"lab/large: no space left for the download in {tmp_path}/hub; free some space"
    )


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (
            "Data processing error: IO Error: No space left on device (os error 28)",
            "no space left for the download in",
        ),
        (None, "the connection to the Hub broke (peer closed); try again, or download it where"),
    ],
)
def test_a_download_that_breaks_off_is_said(said: str | None, line: str):
    from huggingface_hub.errors import HTTPError

    with pytest.raises(LanguageModelError) as caught, explained("lab/model"):
        raise HTTPError("peer closed") if said is None else RuntimeError(said)
    assert str(caught.value).startswith(f"lab/model: {line}")


def test_without_a_connection_the_way_around_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert (
        _error("lab/model")
        == "lab/model: neither a directory nor downloaded before, and the Hub cannot be reached;"
        " download it where there is a connection (hf download lab/model --local-dir DIR) and"
        " give the directory"
    )
