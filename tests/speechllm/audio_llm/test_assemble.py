"""Audio LLMs made of a small causal language model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_llm import SENTENCES, bpe_tokenizer, save_tiny_lm

from cortext.cli import run
from cortext.errors import LanguageModelError
from cortext_lm.llm.model import CausalLM
from cortext_speechllm.audio_llm.assemble import TowerSettings, assemble
from cortext_speechllm.audio_llm.generate import generate
from cortext_speechllm.audio_llm.inputs import answer_logits, teacher_forced
from cortext_speechllm.audio_llm.model import AudioLLM

SMALL = TowerSettings(width=16, layers=1, heads=2, mels=16, window_s=8, seed=3)


@pytest.fixture(scope="module")
def lm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_lm(tmp_path_factory.mktemp("lm"))


@pytest.fixture(scope="module")
def folder(lm_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("assembled") / "audio-llm"
    assemble(lm_dir, out, SMALL)
    return out


@pytest.fixture(scope="module")
def llm(folder: Path) -> AudioLLM:
    return AudioLLM.load(folder, device="cpu")


def tones(*hertz: float, seconds: float = 1.0) -> list[np.ndarray]:
    time_S = np.arange(int(16000 * seconds)) / 16000
    return [0.3 * np.sin(2 * np.pi * each * time_S).astype(np.float32) for each in hertz]


def test_it_loads_as_any_audio_llm_with_the_sizes_asked_for(llm: AudioLLM, folder: Path) -> None:
    assert (llm.audio_width, llm.text_width, llm.window_s, llm.frame_ms) == (16, 32, 8.0, 40.0)
    assert json.loads((folder / "cortext.json").read_text())["n_parameters"] == llm.n_parameters
    assert [len(each) for each in llm.audio_features(tones(200, seconds=2.0))] == [50]


@torch.no_grad()
def test_the_language_model_reckons_as_it_did_alone(llm: AudioLLM, lm_dir: Path) -> None:
    alone = CausalLM.load(lm_dir, device="cpu")
    for sentence in SENTENCES:
        tokens_T = torch.tensor([[alone.start, *alone.tokens(sentence)]])
        assert llm.answer(sentence) == [*tokens_T[0, 1:].tolist(), alone.tokenizer.eos_token_id]
        expected = alone.network(tokens_T).logits
        found = llm.logits(llm.hidden(llm.embed(tokens_T), torch.ones_like(tokens_T)))
        torch.testing.assert_close(found[..., : expected.shape[-1]], expected)


def test_an_answer_stands_behind_the_start_of_sentences_as_in_training(llm: AudioLLM) -> None:
    before, after = llm.prompt("write")
    assert llm.tokenizer.decode(before) == "<|audio_bos|>"
    assert llm.tokenizer.decode(after) == "<|audio_eos|>write<s>"
    assert llm.ends == [llm.tokenizer.eos_token_id]


def test_markers_are_unlikely_words(llm: AudioLLM) -> None:
    found = generate(
        llm, torch.randn(2, 9, 16), torch.tensor([9, 4]), llm.prompt(""), beams=3, nbest=3
    )
    markers = set(
        llm.tokenizer.convert_tokens_to_ids(["<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"])
    )
    assert not any(markers.intersection(each.tokens) for candidates in found for each in candidates)


def test_frames_tell_sounds_apart(llm: AudioLLM) -> None:
    """Of one sound at two times they are more alike than of two sounds at one time."""
    low, high, again = (
        each[3:-3] for each in llm.audio_features([*tones(200, 3000), np.roll(tones(200)[0], 4000)])
    )
    cosine = torch.nn.functional.cosine_similarity
    assert cosine(low, again).mean() > 0.9 > cosine(low, high).mean() + 0.2


def test_projected_frames_are_as_large_as_embeddings(llm: AudioLLM) -> None:
    projected = llm.project(torch.nn.functional.layer_norm(torch.randn(500, 16), (16,)))
    embedded = llm.embed(torch.arange(300))
    assert 0.5 < float(projected.std() / embedded.std()) < 2


def test_the_same_seed_gives_the_same_model_and_the_generator_stays(
    folder: Path, lm_dir: Path, tmp_path: Path
) -> None:
    before = torch.random.get_rng_state()
    assemble(lm_dir, tmp_path / "again", SMALL)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        folder / "model.safetensors"
    ).read_bytes()


def test_a_neural_model_of_this_project_can_be_part_of_one(tmp_path: Path) -> None:
    from cortext_lm.neural.train_neural import NeuralSettings, train_neural

    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"{first} {second}" for first in SENTENCES for second in SENTENCES))
    options = NeuralSettings(pieces=100, width=32, layers=1, heads=2, steps=3, minutes=None)
    train_neural([str(text)], tmp_path / "neural", options)
    assemble(tmp_path / "neural", tmp_path / "audio", SMALL)
    llm = AudioLLM.load(tmp_path / "audio", device="cpu")
    assert llm.chat.text(llm.answer("How are you?")) == "how are you"
    sequence = teacher_forced(
        llm, torch.randn(1, 5, 16), torch.tensor([5]), llm.prompt("Write."), [llm.answer("it is")]
    )
    assert answer_logits(llm, sequence).isfinite().all()


def test_a_model_of_chats_keeps_its_chat_template(tmp_path: Path) -> None:
    folder = save_tiny_lm(tmp_path / "lm")
    template = (
        "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    (folder / "chat_template.jinja").write_text(template)
    assemble(folder, tmp_path / "audio", SMALL)
    llm = AudioLLM.load(tmp_path / "audio", device="cpu")
    before, after = llm.prompt("write")
    assert llm.tokenizer.decode(before) == "[user] <|audio_bos|>"
    assert llm.tokenizer.decode(after) == "<|audio_eos|>write</s>[assistant] "
    assert llm.ends == [llm.tokenizer.eos_token_id]


def test_a_family_with_other_names_can_be_part_of_one(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    tokenizer = bpe_tokenizer(bos=None, eos="<|endoftext|>")
    GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2)
    ).save_pretrained(tmp_path / "lm")
    tokenizer.save_pretrained(tmp_path / "lm")
    assemble(tmp_path / "lm", tmp_path / "audio", SMALL)
    llm = AudioLLM.load(tmp_path / "audio", device="cpu")
    assert llm.tokenizer.decode(llm.prompt("")[1]) == "<|audio_eos|><|endoftext|>"


@pytest.mark.parametrize(
    "values", [dict(width=30), dict(layers=0), dict(window_s=0), dict(mels=1), dict(seed=-1)]
)
def test_towers_that_cannot_be_are_one_line(values: dict[str, int]) -> None:
    with pytest.raises(LanguageModelError, match="the tower's"):
        TowerSettings(**values)


def test_what_cannot_be_assembled_is_one_line(lm_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "letter.txt").write_text("mine")
    for model, out, words in (
        (tmp_path / "kept", tmp_path / "out", "has no config.json"),
        (lm_dir, tmp_path / "kept", "is not empty"),
        (lm_dir, lm_dir, "is not empty"),
    ):
        with pytest.raises(LanguageModelError, match=words):
            assemble(model, out, SMALL)


def test_the_command(lm_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments: list[Any] = [
        "speech-llm",
        "assemble",
        str(lm_dir),
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    assert run([*arguments, "--width", "16", "--heads", "2", "--mels", "16", "--window", "5"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["tower"] == {
        "width": 16,
        "layers": 2,
        "heads": 2,
        "mels": 16,
        "window_s": 5,
        "seed": 0,
    }
    assert facts["n_parameters"] == AudioLLM.check(tmp_path / "out").n_parameters
    assert run([*arguments, "--width", "17"]) == 2
    assert "multiple of 8" in capsys.readouterr().err
