"""LoRA adapters from one's own sentences: what they learn, what is kept, and who reads them."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from cortext.cli import run
from cortext.errors import LanguageModelError
from cortext_lm.llm.finetune import FinetuneSettings, _Finetuning, finetune, rows
from cortext_lm.llm.loading import save_model
from cortext_lm.llm.model import CausalLM
from cortext_lm.llm.scoring import score_texts
from cortext_lm.neural.pieces import train_pieces
from cortext_lm.neural.train_neural import NeuralSettings, new_network

LEARNT = [
    "please call my sister tomorrow",
    "i would like some water",
    "what do you think of it",
    "how are you today",
]
OTHERS = ["the weather is nice today", "i am not sure what to do"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "mine.txt").write_text("".join(f"{text.capitalize()}.\n" for text in LEARNT * 12))
    (folder / "others.txt").write_text("".join(f"{text}\n" for text in OTHERS))
    (folder / "held.txt").write_text("".join(f"{text}\n" for text in LEARNT))
    return folder


@pytest.fixture(scope="module")
def tuned(tiny_lm_dir: Path, texts: Path) -> tuple[Path, dict[str, Any]]:
    options = FinetuneSettings(lr=1e-2, epochs=2, batch_tokens=256, seed=1)
    facts = finetune(
        tiny_lm_dir,
        [f"{texts / 'mine.txt'}:2", texts / "others.txt"],
        texts / "adapter",
        options,
        held_out=texts / "held.txt",
        merge=texts / "merged",
        device="cpu",
    )
    return texts, facts


def plain_log_prob(lm: CausalLM, text: str) -> float:
    """A plain transformers loop: one sentence, no padding."""
    tokens = torch.tensor(
        [[lm.tokenizer.bos_token_id, *lm.tokenizer.encode(text, add_special_tokens=False)]]
    )
    with torch.no_grad():
        log_probs_TV = lm.network(tokens).logits[0].log_softmax(-1)
    return sum(
        float(log_probs_TV[place, token]) for place, token in enumerate(tokens[0, 1:].tolist())
    )


def test_the_perplexity_before_is_that_of_a_plain_loop(tiny_lm_dir, tuned):
    """So padding has no loss, BOS is not counted, and no end is where the model has none."""
    lm = CausalLM.load(tiny_lm_dir)
    n_tokens = sum(len(lm.tokenizer.encode(text, add_special_tokens=False)) for text in LEARNT)
    expected = math.exp(-sum(plain_log_prob(lm, text) for text in LEARNT) / n_tokens)
    assert tuned[1]["perplexity_before"] == pytest.approx(expected, rel=1e-4)


def test_the_perplexity_falls_and_what_is_kept_is_the_best(tuned):
    folder, facts = tuned
    assert facts["perplexity_after"] < 0.5 * facts["perplexity_before"]
    assert facts["perplexity_after"] == min(entry["perplexity"] for entry in facts["history"])
    lm = CausalLM.load(folder / "merged")
    n_tokens = sum(len(lm.tokens(text)) for text in LEARNT)
    found = math.exp(-sum(plain_log_prob(lm, text) for text in LEARNT) / n_tokens)
    assert found == pytest.approx(facts["perplexity_after"], rel=1e-3)


def test_the_adapter_changes_scores_and_the_merged_model_gives_the_same(tiny_lm_dir, tuned):
    folder, _ = tuned
    sentences = [*LEARNT, *OTHERS, "nothing like it"]
    plain, adapted, merged = (
        [score.log_prob for score in score_texts(lm, sentences)]
        for lm in (
            CausalLM.load(tiny_lm_dir),
            CausalLM.load(tiny_lm_dir, lora=folder / "adapter"),
            CausalLM.load(folder / "merged"),
        )
    )
    assert all(
        after > before + 1 for before, after in zip(plain[: len(LEARNT)], adapted, strict=False)
    )
    assert adapted == pytest.approx(merged, abs=1e-4)


def test_the_adapter_is_safetensors_of_the_published_rank_in_every_layer(tuned):
    folder, facts = tuned
    assert sorted(path.name for path in (folder / "adapter").iterdir()) == [
        "adapter_config.json", "adapter_model.safetensors", "cortext.json",
    ]  # fmt: skip
    config = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["task_type"]) == (16, 32, "CAUSAL_LM")
    names = "down_proj gate_proj k_proj o_proj q_proj up_proj v_proj".split()
    assert sorted(config["target_modules"]) == facts["target_modules"] == names
    written = json.loads((folder / "adapter" / "cortext.json").read_text())
    assert [source["factor"] for source in written["sources"]] == [2, 1]
    assert [source["sentences"] for source in written["sources"]] == [48, 2]


def test_defaults_are_the_published_ones():
    options = FinetuneSettings()
    assert (options.rank, options.alpha, options.lr) == (16, 32, 2e-4)


def test_families_have_layers_of_their_own_names(tmp_path, texts):
    """OPT calls its layers otherwise, and its output layer is left alone."""
    tokenizer = train_pieces({word: 2 for text in LEARNT for word in text.split()}, 64, 64)
    config = transformers.OPTConfig(
        vocab_size=len(tokenizer), hidden_size=16, ffn_dim=32, num_hidden_layers=1, num_attention_heads=2,
        word_embed_proj_dim=16, max_position_embeddings=64, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    save_model(tmp_path / "opt", transformers.OPTForCausalLM(config), tokenizer, {})
    facts = finetune(
        tmp_path / "opt",
        [texts / "mine.txt"],
        tmp_path / "a",
        FinetuneSettings(epochs=0.1),
        device="cpu",
    )
    assert facts["target_modules"] == ["fc1", "fc2", "k_proj", "out_proj", "q_proj", "v_proj"]


def test_sentences_are_ended_where_the_model_ends_them(tmp_path):
    tokenizer = train_pieces({"how": 1, "are": 1, "you": 1}, 64, 6)
    network = new_network(tokenizer, NeuralSettings(width=16, layers=1, heads=1))
    save_model(tmp_path / "own", network, tokenizer, {})
    lm = CausalLM.load(tmp_path / "own")
    assert rows(lm, ["how are"]) == [[lm.start, *lm.tokens("how are"), lm.end]]
    lm.end, lm.window = None, 4
    assert rows(lm, ["how"]) == [[lm.start, *lm.tokens("how")]]
    assert rows(lm, ["how are you"]) == [[lm.start, *lm.tokens("how are you")][:5]]


def test_training_ends_early_when_it_gets_worse_and_the_best_is_kept(tiny_lm_dir, texts, tmp_path):
    """Learnt at far too high a rate, from sentences that the held-out ones are not like."""
    options = FinetuneSettings(lr=1.0, epochs=4, batch_tokens=256, patience=2)
    facts = finetune(
        tiny_lm_dir,
        [texts / "others.txt"] * 12,
        tmp_path / "a",
        options,
        held_out=texts / "held.txt",
    )
    found = [entry["perplexity"] for entry in facts["history"]]
    assert len(found) < 13
    assert facts["perplexity_after"] == min(found) == found[-3]
    scores = score_texts(CausalLM.load(tiny_lm_dir, lora=tmp_path / "a"), LEARNT)
    kept = math.exp(
        -sum(score.log_prob for score in scores) / sum(score.n_tokens for score in scores)
    )
    assert kept == pytest.approx(facts["perplexity_after"], rel=1e-3)


def test_weights_that_are_no_numbers_are_never_kept(tiny_lm_dir, texts, tmp_path, monkeypatch):
    learn = _Finetuning._learn

    def diverge(self, batch, lr):
        learn(self, batch, lr)
        for weight in self.added.values():
            weight.data.fill_(math.nan)

    monkeypatch.setattr(_Finetuning, "_learn", diverge)
    options = FinetuneSettings(epochs=1, batch_tokens=64)
    facts = finetune(
        tiny_lm_dir, [texts / "mine.txt"], tmp_path / "a", options, held_out=texts / "held.txt"
    )
    written = json.loads((tmp_path / "a" / "cortext.json").read_text(), parse_constant=pytest.fail)
    assert [entry["perplexity"] is None for entry in written["history"]] == [
        False,
        True,
        True,
        True,
    ]
    assert facts["perplexity_after"] == facts["perplexity_before"] < math.inf
    scores = [
        score_texts(CausalLM.load(tiny_lm_dir, lora=lora), LEARNT)
        for lora in (None, tmp_path / "a")
    ]
    assert scores[1] == scores[0]


# Of the second exp() of the loss is more than a float holds.
@pytest.mark.parametrize("factor", [math.nan, 1e6])
def test_a_model_whose_scores_are_no_numbers_is_not_trained(tiny_lm_dir, texts, tmp_path, factor):
    network = transformers.AutoModelForCausalLM.from_pretrained(tiny_lm_dir)
    network.lm_head.weight.data *= factor
    shutil.copytree(tiny_lm_dir, tmp_path / "broken")
    network.save_pretrained(tmp_path / "broken")
    with pytest.raises(
        LanguageModelError, match="broken: the held-out text has no probability under the model"
    ):
        finetune(tmp_path / "broken", [texts / "mine.txt"], tmp_path / "a", device="cpu")
    assert not (tmp_path / "a").exists()


def test_nothing_that_is_read_or_written_is_replaced(tiny_lm_dir, texts, tmp_path):
    """A directory with cortext.json may be written anew, but not while something in it is
    needed.
    """
    model = shutil.copytree(tiny_lm_dir, tmp_path / "model")
    text = shutil.copy(texts / "mine.txt", model)
    (model / "cortext.json").write_text("{}")
    before = sorted(path.name for path in model.iterdir())
    for base, source, out, merge, gone in (
        (model, texts / "mine.txt", model, None, model),
        (model, texts / "mine.txt", tmp_path / "a", model, model),
        (tiny_lm_dir, text, model, None, text),
        (tiny_lm_dir, texts / "mine.txt", tmp_path / "a", tmp_path / "a", tmp_path / "a"),
        (
            tiny_lm_dir,
            texts / "mine.txt",
            tmp_path / "b" / "a",
            tmp_path / "b",
            tmp_path / "b" / "a",
        ),
    ):
        with pytest.raises(
            LanguageModelError, match=f"would take the place of {gone}; give another directory"
        ):
            finetune(base, [source], out, merge=merge, device="cpu")
    assert sorted(path.name for path in model.iterdir()) == before
    assert not (tmp_path / "a").exists()


def test_a_directory_that_cannot_be_made_is_said_before_training(texts, tmp_path):
    with pytest.raises(LanguageModelError, match=r"held.txt/a: cannot be made in .*held.txt"):
        finetune("no-such-model", [texts / "mine.txt"], texts / "held.txt" / "a")


def test_memory_that_runs_out_is_one_line(tiny_lm_dir, texts, tmp_path, monkeypatch):
    def full(*arguments: Any, **named: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("cortext_lm.llm.finetune.padded", full)
    with pytest.raises(
        Exception, match="not enough memory to finetune the model; use fewer --batch-tokens"
    ):
        finetune(tiny_lm_dir, [texts / "mine.txt"], tmp_path / "a", device="cpu")
    assert not (tmp_path / "a").exists()


def test_the_command_and_its_mistakes(tiny_lm_dir, texts, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(texts)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    start = ["finetune-llm", str(tiny_lm_dir), "mine.txt:2"]
    assert run([*start, "--out", str(tmp_path / "a"), "--epochs", "0.1", "--device", "cpu"]) == 0
    assert "held-out perplexity before" in capsys.readouterr().out
    mistakes = {
        "rank is 0; it must be at least 1 and at most 4096": [
            *start,
            "--out",
            str(tmp_path / "b"),
            "--rank",
            "0",
        ],
        f"{texts}: is the current directory; give a directory in it": [*start, "--out", str(texts)],
        "missing.txt: cannot read the text": [
            "finetune-llm",
            str(tiny_lm_dir),
            "missing.txt",
            "--out",
            "b",
        ],
        "no-such-model": ["finetune-llm", "no-such-owner/no-such-model", "mine.txt", "--out", "b"],
    }
    for line, arguments in mistakes.items():
        assert run(arguments) == 2
        error = capsys.readouterr().err
        assert line in error
        assert error.count("\n") == 1
