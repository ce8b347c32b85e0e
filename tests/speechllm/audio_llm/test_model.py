"""Audio LLMs: loading, the frozen tower, prompts and answers, LoRA, checkpointing, compilation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_speech_llm import (
    AUDIO,
    CHAT,
    TEXT_END,
    TURN_END,
    WINDOW_S,
    save_tiny_audio_llm,
    tiny_tokenizer,
)

from cortext.errors import CortextError, DataError, LanguageModelError
from cortext_speechllm.audio_llm.chat import Chat
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.config import LoRAConfig


@pytest.fixture(scope="module")
def llm(tiny_audio_llm: Path) -> AudioLLM:
    return AudioLLM.load(tiny_audio_llm, device="cpu")


def fresh(folder: Path) -> AudioLLM:
    return AudioLLM.load(folder, device="cpu")


def wave(seconds: float, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=int(16000 * seconds)).astype(np.float32) * 0.1


def library_inputs(
    llm: AudioLLM, waves: list[np.ndarray], texts: list[str], side: str = "right"
) -> Any:
    """What the library's own processor makes of chats with an audio each."""
    llm.tokenizer.padding_side = side
    return llm.processor(
        text=texts, audio=waves, sampling_rate=16000, return_tensors="pt", padding=True
    )


def test_widths_and_sizes_are_those_of_the_configuration(
    llm: AudioLLM, tiny_audio_llm: Path
) -> None:
    config = json.loads((tiny_audio_llm / "config.json").read_text())
    assert llm.audio_width == config["audio_config"]["d_model"] == 24
    assert llm.text_width == config["text_config"]["hidden_size"] == 32
    assert llm.vocab_size == config["text_config"]["vocab_size"]
    assert llm.n_parameters == sum(weight.numel() for weight in llm.network.parameters())
    # 10 ms mel, halved twice.
    assert (llm.sample_rate, llm.frame_ms, llm.window_s) == (
        16000,
        40.0,
        12.0,
    )
    assert AudioLLM.check(tiny_audio_llm) == llm.facts


def test_the_frozen_network_has_no_gradients_and_does_not_train(llm: AudioLLM) -> None:
    assert not any(weight.requires_grad for weight in llm.network.parameters())
    assert not any(each.training for each in llm.network.modules())


def test_frames_of_the_tower_are_what_the_library_projects(llm: AudioLLM) -> None:
    waves = [wave(1.0), wave(3.3, 1)]
    found = llm.audio_features(waves)
    inputs = library_inputs(llm, waves, [AUDIO, AUDIO])
    projected: list[torch.Tensor] = []
    hook = llm.body.multi_modal_projector.register_forward_hook(
        lambda *each: projected.append(each[2])
    )
    with torch.no_grad():
        llm.network(**inputs)
    hook.remove()
    assert [tuple(each.shape) for each in found] == [(25, 24), (82, 24)]
    for row, frames_NA in enumerate(found):
        torch.testing.assert_close(llm.project(frames_NA), projected[0][row, : len(frames_NA)])


def test_frames_of_a_wave_do_not_depend_on_the_waves_beside_it(llm: AudioLLM) -> None:
    waves = [wave(0.7), wave(5.0, 1), wave(2.0, 2)]
    together = llm.audio_features(waves)
    for each, frames_NA in zip(waves, together, strict=True):
        torch.testing.assert_close(llm.audio_features([each])[0], frames_NA)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (np.zeros(0, np.float32), "one channel"),
        (np.zeros((2, 16000), np.float32), "one channel"),
        (np.zeros(16000 * 13, np.float32), "13.0 s, and the audio tower hears at most 12 s"),
        (np.zeros(100, np.float32), "too short"),
    ],
)
def test_waves_that_cannot_be_heard_are_one_line(
    llm: AudioLLM, given: np.ndarray, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        llm.audio_features([given])


def test_a_prompt_is_the_library_chat_split_at_the_audio(llm: AudioLLM) -> None:
    content = [{"type": "audio", "audio_url": ""}, {"type": "text", "text": "write it down"}]
    whole = llm.processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    before, after = llm.prompt("write it down")
    marker = llm.tokenizer.convert_tokens_to_ids(AUDIO)
    assert [*before, marker, *after] == llm.tokenizer(whole)["input_ids"]
    assert llm.tokenizer.decode(after).endswith("<|im_start|>assistant\n")


def test_an_answer_ends_as_the_chat_template_ends_answers(llm: AudioLLM) -> None:
    turn_end, text_end = llm.tokenizer.convert_tokens_to_ids([TURN_END, TEXT_END])
    assert llm.answer("how are you") == [*llm.tokenizer("how are you")["input_ids"], turn_end]
    assert llm.ends == [turn_end, text_end]
    assert llm.chat.text(llm.answer("how are you")) == "how are you"


def test_a_directory_has_another_revision_once_its_weights_change(
    tiny_audio_llm: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file, save_file

    copy = Path(shutil.copytree(tiny_audio_llm, tmp_path / "copy"))
    same = AudioLLM.load(copy, device="cpu").revision
    weights = load_file(copy / "model.safetensors")
    weights["multi_modal_projector.linear.bias"] += 1
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    assert fresh(tiny_audio_llm).revision == same != fresh(copy).revision


# LoRA


def embeds_mask(llm: AudioLLM, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(2, 7, llm.text_width, generator=made), torch.ones(2, 7)


def test_lora_changes_nothing_before_it_learns_and_alone_has_gradients(
    tiny_audio_llm: Path,
) -> None:
    llm = fresh(tiny_audio_llm)
    embeds_BSH, mask_BS = embeds_mask(llm)
    before = llm.hidden(embeds_BSH, mask_BS)
    added = llm.add_lora(LoRAConfig())
    torch.testing.assert_close(llm.hidden(embeds_BSH, mask_BS), before)
    trained = {id(weight) for weight in llm.network.parameters() if weight.requires_grad}
    assert trained == {id(weight) for weight in added.values()}
    assert len(added) == 2 * 7 * 2  # A and B of seven matrices in two layers; nothing in the tower
    assert not any("." in name for name in added)
    llm.logits(llm.hidden(embeds_BSH, mask_BS)).square().mean().backward()
    assert all(weight.grad is not None for weight in added.values())


def test_lora_is_what_the_paper_says(tiny_audio_llm: Path) -> None:
    """W x + alpha / r * B A x, put into the matrices themselves."""
    llm, plain = fresh(tiny_audio_llm), fresh(tiny_audio_llm)
    added = llm.add_lora(LoRAConfig(r=4, alpha=12.0, dropout=0.2))
    torch.manual_seed(3)
    for weight in added.values():
        torch.nn.init.normal_(weight, std=0.1)
    with torch.no_grad():
        for name, matrix in plain.language_model.named_modules():
            down, up = (added.get(f"{name.replace('.', '/')}/lora_{each}") for each in "AB")
            if down is not None and up is not None:
                matrix.weight += 12.0 / 4 * up @ down
    torch.testing.assert_close(
        llm.hidden(*embeds_mask(llm)), plain.hidden(*embeds_mask(llm)), rtol=1e-4, atol=1e-5
    )


def test_only_lora_drops_in_training(tiny_audio_llm: Path) -> None:
    llm = fresh(tiny_audio_llm)
    for weight in llm.add_lora(LoRAConfig(dropout=0.5)).values():
        torch.nn.init.normal_(weight, std=0.1)
    given = embeds_mask(llm)
    still = llm.hidden(*given)
    llm.train_lora()
    assert not torch.equal(llm.hidden(*given), llm.hidden(*given))
    assert {type(each).__name__ for each in llm.network.modules() if each.training} == {
        "ModuleDict",
        "Dropout",
    }
    llm.train_lora(False)
    assert torch.equal(llm.hidden(*given), still)


def test_lora_for_matrices_that_are_not_there_names_those_that_are(tiny_audio_llm: Path) -> None:
    with pytest.raises(LanguageModelError, match=r"no matrices query.*down_proj, gate_proj"):
        fresh(tiny_audio_llm).add_lora(LoRAConfig(modules=["query"]))


# memory and speed


def gradients(
    llm: AudioLLM, added: dict[str, torch.nn.Parameter]
) -> tuple[dict[str, torch.Tensor], int]:
    """Gradients of LoRA, and how many numbers were kept for them."""
    kept = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal kept
        kept += tensor.numel()
        return tensor

    torch.manual_seed(5)
    embeds_BSH, mask_BS = embeds_mask(llm)
    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        loss = llm.hidden(embeds_BSH.requires_grad_(), mask_BS).square().mean()
    loss.backward()
    found = {name: weight.grad for name, weight in added.items()} | {"input": embeds_BSH.grad}
    for weight in added.values():
        weight.grad = None
    return found, kept


@pytest.mark.parametrize("drops", [False, True])
def test_checkpointing_keeps_less_and_gives_the_same_gradients(
    tiny_audio_llm: Path, drops: bool
) -> None:
    llm = fresh(tiny_audio_llm)
    added = llm.add_lora(LoRAConfig())
    torch.manual_seed(3)
    for weight in added.values():
        torch.nn.init.normal_(weight, std=0.1)
    llm.train_lora(drops)
    plain, kept = gradients(llm, added)
    llm.checkpointing(True)
    again, kept_less = gradients(llm, added)
    torch.testing.assert_close(again, plain)
    assert kept_less < kept / 4
    llm.checkpointing(False)
    assert gradients(llm, added)[1] == kept


def test_compiled_layers_reckon_the_same_or_say_why_they_are_not_compiled(
    tiny_audio_llm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = fresh(tiny_audio_llm)
    expected = llm.hidden(*embeds_mask(llm))

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler\nwas looked for")

    layer = type(llm.language_model.layers[0])
    monkeypatch.setattr(
        layer, "compile", lambda each, **_: setattr(each, "_compiled_call_impl", fails)
    )
    llm.use(compile=True)
    assert llm.notes == ["torch.compile does not work here and is left out (no compiler)"]
    torch.testing.assert_close(llm.hidden(*embeds_mask(llm)), expected)


@pytest.mark.slow
def test_compiled_layers_learn_the_same(tiny_audio_llm: Path) -> None:
    from torch._dynamo.utils import counters

    llm = fresh(tiny_audio_llm)
    added = llm.add_lora(LoRAConfig(dropout=0.0))
    torch.manual_seed(3)
    for weight in added.values():
        torch.nn.init.normal_(weight, std=0.1)
    plain, kept = gradients(llm, added)
    written = llm.hidden(*embeds_mask(llm)).detach()
    llm.use(compile=True)
    assert llm.notes == []
    assert all(weight.grad is None for weight in added.values())
    compiled, kept_compiled = gradients(llm, added)
    torch.testing.assert_close(compiled, plain, rtol=1e-3, atol=1e-4)
    assert kept_compiled < kept
    llm.checkpointing(True)
    both, kept_both = gradients(llm, added)
    torch.testing.assert_close(both, plain, rtol=1e-3, atol=1e-4)
    assert kept_both < kept_compiled
    graphs = counters["stats"]["unique_graphs"]
    assert graphs == 1  # one for both layers, and for all lengths
    with torch.no_grad():
        torch.testing.assert_close(llm.hidden(*embeds_mask(llm)), written)
    assert counters["stats"]["unique_graphs"] == graphs
    llm.use(compile=False)
    assert all(layer._compiled_call_impl is None for layer in llm.language_model.layers)


# models made the same way


def as_aero(folder: Path, out: Path) -> Path:
    """The tiny model as Aero-1-Audio is published.

    Its own model type, some weights by other names, a tied output.
    """
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, out)
    names = {"multi_modal_projector": "audio_modal_projector"}
    weights = load_file(out / "model.safetensors")
    renamed = {name.replace(*next(iter(names.items()))): weight for name, weight in weights.items()}
    del renamed["language_model.lm_head.weight"]
    save_file(renamed, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((out / "config.json").read_text())
    config |= {"model_type": "aero", "architectures": ["AeroForConditionalGeneration"]}
    config["text_config"]["tie_word_embeddings"] = True
    config["auto_map"] = {"AutoConfig": "configuration_aero.AeroConfig"}
    (out / "config.json").write_text(json.dumps(config))
    processor = json.loads((out / "processor_config.json").read_text())
    (out / "preprocessor_config.json").write_text(json.dumps(processor["feature_extractor"]))
    (out / "processor_config.json").write_text(
        json.dumps(
            {
                "processor_class": "AeroProcessor",
                "auto_map": {"AutoProcessor": "processing_aero.AeroProcessor"},
            }
        )
    )
    return out


def test_aero_without_a_template_is_asked_in_chatml(tiny_audio_llm: Path, tmp_path: Path) -> None:
    folder = as_aero(tiny_audio_llm, tmp_path / "aero")
    (folder / "chat_template.jinja").unlink()
    before, after = (llm := fresh(folder)).prompt("write")
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
    assert llm.tokenizer.decode(before) == system + "<|im_start|>user\n"
    assert llm.tokenizer.decode(after) == "\nwrite<|im_end|>\n<|im_start|>assistant\n"
    assert llm.ends[0] == llm.tokenizer.convert_tokens_to_ids(TURN_END)


def test_aero_is_read_by_the_library_classes(
    tiny_audio_llm: Path, tmp_path: Path, llm: AudioLLM
) -> None:
    aero = AudioLLM.load(as_aero(tiny_audio_llm, tmp_path / "aero"), device="cpu")
    assert aero.facts == llm.facts
    assert aero.prompt("write") == llm.prompt("write")
    waves = [wave(1.0), wave(2.0, 1)]
    for one, other in zip(aero.audio_features(waves), llm.audio_features(waves), strict=True):
        torch.testing.assert_close(one, other)
    frames_NA = llm.audio_features(waves)[0]
    torch.testing.assert_close(aero.project(frames_NA), llm.project(frames_NA))
    hidden = llm.hidden(*embeds_mask(llm))
    torch.testing.assert_close(aero.hidden(*embeds_mask(llm)), hidden)
    tied = hidden @ llm.network.get_input_embeddings().weight.T
    torch.testing.assert_close(aero.logits(hidden), tied)


def test_another_family_of_the_same_parts_is_read(tmp_path: Path) -> None:
    """Audio Flamingo 3: other names of inputs, another marker, a projector of two layers."""
    from transformers import (
        AudioFlamingo3Config,
        AudioFlamingo3ForConditionalGeneration,
        AudioFlamingo3Processor,
        WhisperFeatureExtractor,
    )

    tokenizer, marker = tiny_tokenizer(), "<sound>"
    tokenizer.add_special_tokens(
        {"additional_special_tokens": [marker]}, replace_extra_special_tokens=False
    )
    tower = dict(
        num_mel_bins=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, hidden_size=24,
        max_source_positions=50 * WINDOW_S,
    )  # fmt: skip
    language = dict(
        model_type="qwen2", vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2,
    )  # fmt: skip
    config = AudioFlamingo3Config(
        audio_config=tower,
        text_config=language,
        audio_token_id=tokenizer.convert_tokens_to_ids(marker),
    )
    AudioFlamingo3ForConditionalGeneration(config).save_pretrained(tmp_path)
    ears = WhisperFeatureExtractor(
        feature_size=16, chunk_length=WINDOW_S, return_attention_mask=True
    )
    template = CHAT.replace("<|audio_bos|><|AUDIO|><|audio_eos|>", marker)
    AudioFlamingo3Processor(ears, tokenizer, chat_template=template).save_pretrained(tmp_path)

    llm, waves = fresh(tmp_path), [wave(1.0), wave(3.0, 1)]
    assert (llm.audio_width, llm.text_width, llm.frame_ms) == (24, 32, 40.0)
    inputs = llm.processor(text=[marker] * 2, audio=waves, text_kwargs={"padding": True})
    with torch.no_grad():
        theirs = llm.body.get_audio_features(
            inputs["input_features"], inputs["input_features_mask"]
        ).pooler_output
    heard = llm.audio_features(waves)
    torch.testing.assert_close(torch.cat([llm.project(each) for each in heard]), theirs)
    alone = AudioLLM.load(tmp_path, device="cpu", with_language_model=False).audio_features(waves)
    assert all(torch.equal(*each) for each in zip(alone, heard, strict=True))


# what cannot be loaded


@pytest.fixture
def changed(tiny_audio_llm: Path, tmp_path: Path) -> Callable[..., Path]:
    """A copy of the model with values of a JSON file changed; None removes one."""

    def change(file: str, **values: Any) -> Path:
        folder = tmp_path / "changed"
        if not folder.exists():
            shutil.copytree(tiny_audio_llm, folder)
        content = json.loads((folder / file).read_text()) | values
        content = {key: value for key, value in content.items() if value is not None}
        (folder / file).write_text(json.dumps(content))
        return folder

    return change


def refused(folder: Any, **options: Any) -> str:
    """The one line with which a model is refused, the same for a look and for loading."""
    with pytest.raises(CortextError) as error:
        AudioLLM.load(folder, device="cpu", **options)
    if not options:
        with pytest.raises(CortextError) as looked:
            AudioLLM.check(folder)
        assert str(looked.value) == str(error.value)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_missing_models_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "has no config.json" in refused(tmp_path)
    assert "neither a directory nor downloaded before" in refused("nobody/no-audio-llm")
    assert "OWNER/MODEL" in refused(tmp_path / "absent" / "deeper")


def test_a_plain_language_model_is_no_audio_llm(tmp_path: Path) -> None:
    from tiny_llm import save_tiny_lm

    assert "is no audio LLM, but of the type llama" in refused(save_tiny_lm(tmp_path))


def test_gated_weights_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx
    from huggingface_hub.errors import GatedRepoError

    def gated(*_: object, **__: object) -> None:
        raise GatedRepoError(
            "403", response=httpx.Response(403, request=httpx.Request("GET", "https://hub"))
        )

    monkeypatch.setattr("transformers.PreTrainedConfig.get_config_dict", gated)
    assert "the model is gated" in (line := refused("somebody/gated"))
    assert "HF_TOKEN" in line


def test_more_positions_than_the_model_knows_are_one_line(llm: AudioLLM) -> None:
    with pytest.raises(
        DataError, match="1025 positions of prompt, brain and answer; the language model knows 1024"
    ):
        llm.hidden(torch.zeros(1, 1025, 32), torch.ones(1, 1025))


def test_a_chat_template_without_audio_is_one_line(changed: Callable[..., Path]) -> None:
    folder = changed("config.json")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m['role'] }}{% endfor %}"
    )
    assert "puts 0 audio markers <|AUDIO|>" in refused(folder)


def test_a_model_without_a_chat_template_is_one_line(
    llm: AudioLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm.processor, "chat_template", None)
    with pytest.raises(
        LanguageModelError, match="has no chat template; give a model that was trained on chats"
    ):
        Chat(llm.name, llm.processor, llm.network.config)


def test_a_model_that_cannot_end_an_answer_is_one_line(changed: Callable[..., Path]) -> None:
    folder = changed("tokenizer_config.json", eos_token=None)
    changed("generation_config.json", eos_token_id=None)
    (folder / "chat_template.jinja").write_text("{% for m in messages %}<|AUDIO|>{% endfor %}")
    assert "has no token that ends an answer" in refused(folder)


def test_a_tokenizer_without_the_audio_marker_is_one_line(changed: Callable[..., Path]) -> None:
    assert "has no audio marker: <|AUDIO|> is not token 7" in refused(
        changed("config.json", audio_token_index=7)
    )


def test_weights_of_another_shape_and_lacking_ones_are_one_line(
    changed: Callable[..., Path],
) -> None:
    from safetensors.torch import load_file, save_file

    folder = changed("config.json")
    weights = load_file(folder / "model.safetensors")
    bias = weights.pop("multi_modal_projector.linear.bias")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        LanguageModelError, match=r"lacks 1 of its weights, such as .*projector.*no audio LLM"
    ):
        fresh(folder)
    save_file(
        weights | {"multi_modal_projector.linear.bias": bias[:5].clone()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    with pytest.raises(
        LanguageModelError, match=r"is \[5\], and by its config.json it must be \[32\]"
    ):
        fresh(folder)


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_too_little_memory_is_reported_before_the_weights_are_read(
    tiny_audio_llm: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    needed = 4 * AudioLLM.check(tiny_audio_llm).n_parameters
    monkeypatch.setattr(
        "cortext_speechllm.audio_llm.model.device_named", lambda name: torch.device(device)
    )
    for free in ("free_bytes", "free_gpu_bytes"):
        monkeypatch.setattr(f"cortext_speechllm.audio_llm.loading.{free}", lambda *_: needed - 1)
    words = (
        f"not enough memory to load the model: its weights take 0.0 GB, and {device} has 0.0 GB"
        " free; use speech.q"
    )
    with pytest.raises(LanguageModelError, match=words):
        AudioLLM.load(tiny_audio_llm)
    if device == "cpu":
        monkeypatch.setattr("cortext_speechllm.audio_llm.loading.free_bytes", lambda: needed)
        AudioLLM.load(tiny_audio_llm)


@pytest.mark.parametrize("name", ["qwen2-audio", "aero"])
def test_the_tower_alone_hears_what_the_whole_model_hears(
    tiny_audio_llm: Path, tmp_path: Path, name: str
) -> None:
    folder = tiny_audio_llm if name == "qwen2-audio" else as_aero(tiny_audio_llm, tmp_path / "aero")
    whole, tower = (
        AudioLLM.load(folder, device="cpu"),
        AudioLLM.load(folder, device="cpu", with_language_model=False),
    )
    for expected, found in zip(
        whole.audio_features([wave(0.7), wave(3.3, 1)]),
        tower.audio_features([wave(0.7), wave(3.3, 1)]),
        strict=True,
    ):
        assert torch.equal(found, expected)
    assert (tower.revision, tower.frame_ms, tower.audio_width) == (
        whole.revision,
        whole.frame_ms,
        whole.audio_width,
    )
    held = sum(
        weight.numel() for weight in tower.network.parameters() if weight.device.type != "meta"
    )
    assert held == tower.facts.n_tower_parameters + len(tower.network.get_input_embeddings().weight)


def test_without_its_tower_a_model_reads_as_before_and_hears_nothing(tiny_audio_llm: Path) -> None:
    whole, deaf = (
        AudioLLM.load(tiny_audio_llm, device="cpu"),
        AudioLLM.load(tiny_audio_llm, device="cpu", with_tower=False),
    )
    held = sum(weight.numel() for weight in deaf.network.parameters())
    assert held == whole.facts.n_parameters - whole.facts.n_tower_parameters
    embeds_BSH, mask_BS = torch.randn(2, 5, whole.text_width), torch.ones(2, 5)
    assert torch.equal(deaf.hidden(embeds_BSH, mask_BS), whole.hidden(embeds_BSH, mask_BS))
    with pytest.raises(LanguageModelError, match="was loaded without its audio tower"):
        deaf.audio_features([wave(0.7), wave(3.3, 1)])


def test_the_tower_alone_needs_memory_for_itself_alone(
    tiny_audio_llm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = 4 * AudioLLM.check(tiny_audio_llm).n_tower_parameters
    monkeypatch.setattr("cortext_speechllm.audio_llm.loading.free_bytes", lambda: needed)
    AudioLLM.load(tiny_audio_llm, device="cpu", with_language_model=False)
    monkeypatch.setattr("cortext_speechllm.audio_llm.loading.free_bytes", lambda: needed - 1)
    with pytest.raises(LanguageModelError, match="GB free; use a smaller model or another device"):
        AudioLLM.load(tiny_audio_llm, device="cpu", with_language_model=False)


def test_quantised_weights_need_a_library(
    tiny_audio_llm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortext_speechllm.audio_llm.loading.find_spec", lambda name: None)
    assert "4bit weights need bitsandbytes, which is not installed; pip install" in refused(
        tiny_audio_llm, quantize="4bit"
    )
    assert "'2bit'" in refused(tiny_audio_llm, quantize="2bit")
    monkeypatch.setattr("cortext_speechllm.audio_llm.loading.find_spec", lambda name: True)
    assert "4bit weights need a GPU; set speech.quantize to 8bit" in refused(
        tiny_audio_llm, quantize="4bit"
    )


@pytest.mark.parametrize(("quantize", "alike"), [("8bit", 0.98), ("4bit", 0.6)])
@pytest.mark.filterwarnings(
    "ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"
)
def test_quantised_layers_are_nearly_what_they_were_and_teach_lora(
    tmp_path: Path, quantize: str, alike: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes")
    # Blocks of weights are quantised together.
    folder = save_tiny_audio_llm(tmp_path, text_width=128)
    monkeypatch.setattr("cortext_speechllm.audio_llm.model.check_quantizable", lambda *_: None)
    # It packs what is only to be read.
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)
    llm, plain = AudioLLM.load(folder, device="cpu", quantize=quantize), fresh(folder)
    kinds = (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt)
    quantised = {name for name, each in llm.network.named_modules() if isinstance(each, kinds)}
    assert len(quantised) == 2 * 7
    assert all(name.startswith("model.language_model.layers.") for name in quantised)
    added = llm.add_lora(LoRAConfig())
    found, expected = llm.hidden(*embeds_mask(llm)), plain.hidden(*embeds_mask(llm))
    assert torch.nn.functional.cosine_similarity(found.flatten(), expected.flatten(), 0) > alike
    llm.checkpointing(True)
    gradient = gradients(llm, added)[0]
    assert gradient["input"].abs().sum() > 0
    assert all(each.abs().sum() > 0 for name, each in gradient.items() if name.endswith("lora_B"))
