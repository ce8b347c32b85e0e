"""An n-gram and a neural model on the same text.

Proper distributions over words, and what is computed from them.
"""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from cortext.cli import run
from cortext.decoding.ngram import LanguageModel
from cortext.errors import LanguageModelError
from cortext_lm.llm.loading import save_model
from cortext_lm.llm.model import CausalLM
from cortext_lm.neural.compare import (
    TextLogProbs,
    _report,
    compare,
    events,
    fit,
    letter_model,
    mixed,
    word_log_probs,
)
from cortext_lm.neural.pieces import train_pieces
from cortext_lm.neural.train_neural import NeuralSettings, new_network, train_neural

TEXT = ["a bad cab", "dab a bed", "a cab", "bed a dab a cab", "bad"]


@pytest.fixture(scope="module")
def lm(tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    """A random network, far from uniform."""
    tokenizer = train_pieces({word: 1 for text in TEXT for word in text.split()}, 40, 64)
    torch.manual_seed(0)
    network = new_network(tokenizer, NeuralSettings(width=16, layers=2, heads=2))
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.4) if weight.dim() > 1 else None
    folder = tmp_path_factory.mktemp("compare") / "model"
    save_model(folder, network, tokenizer, {})
    return CausalLM.load(folder)


@pytest.fixture(scope="module")
def ngram(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    return LanguageModel.build(TEXT, 3, tmp_path_factory.mktemp("compare") / "lm", binary="trie")


def next_log_probs(lm: CausalLM, tokens: list[int]) -> torch.Tensor:
    """The plain transformers call: log-probabilities of what follows."""
    with torch.no_grad():
        return lm.network(torch.tensor([tokens])).logits[0, -1].double().log_softmax(-1)


def test_the_words_of_a_sentence_have_the_probability_of_its_tokens(lm):
    sentences = ["a bad cab", "xyz qu-o'r", "dab", "", "bed a bed a bed a bed"]
    for sentence, words in zip(sentences, word_log_probs(lm, sentences), strict=True):
        tokens = [lm.start, *lm.tokens(sentence), lm.end]
        plain = sum(float(next_log_probs(lm, tokens[:n])[tokens[n]]) for n in range(1, len(tokens)))
        assert len(words) == len(sentence.split()) + 1
        assert words.sum() == pytest.approx(plain, abs=1e-4)


def test_the_words_after_a_history_sum_to_one_or_less(lm):
    """All words of up to three letters a-e, and the end.

    With every spelling a tokenizer knows they would be one.
    """
    words = [
        "".join(letters) for n in (1, 2, 3) for letters in itertools.product("abcde", repeat=n)
    ]
    history = "bad a"
    last = [
        float(found[2]) for found in word_log_probs(lm, [f"{history} {word}" for word in words])
    ]
    end = float(word_log_probs(lm, [history])[0][2])
    total = math.exp(end) + sum(map(math.exp, last))
    assert 0.01 < total <= 1 + 1e-6


def test_a_word_is_itself_and_no_longer_one_that_begins_so(lm):
    """By hand, from the network's own distribution after every token."""
    vocabulary = lm.tokenizer.get_vocab()
    ends = [number for piece, number in vocabulary.items() if piece.startswith("▁")] + [lm.end]
    first, second = lm.tokens("bad"), lm.tokens("bad cab")[len(lm.tokens("bad")) :]
    tokens = [lm.start, *first, *second]
    boundary = {
        n: float(next_log_probs(lm, tokens[:n])[ends].logsumexp(0))
        for n in (1 + len(first), len(tokens))
    }
    expected = -boundary[1 + len(first)] + boundary[len(tokens)]
    for n in range(1 + len(first), len(tokens)):
        expected += float(next_log_probs(lm, tokens[:n])[tokens[n]])
    assert word_log_probs(lm, ["bad cab"])[0][1] == pytest.approx(expected, abs=1e-5)


def test_sentences_of_a_batch_are_scored_as_alone(lm):
    sentences = ["a", "a bad cab bed", "dab a"]
    for sentence, together in zip(sentences, word_log_probs(lm, sentences), strict=True):
        np.testing.assert_allclose(word_log_probs(lm, [sentence])[0], together, atol=1e-5)


def test_unknown_words_are_spelt_where_the_ngram_does_not_know_them(lm, ngram, tmp_path):
    letters = letter_model(ngram, tmp_path / "letters")
    found = events(ngram, letters, lm, ["a bee cab"])
    a, after_a = ngram.score(ngram.begin(), "a")
    unknown, after = ngram.score(after_a, "bee")
    cab, last = ngram.score(after, "cab")
    spelling = letters.sentence("b e e")
    np.testing.assert_allclose(
        found.ngram, [a, unknown + spelling, cab, ngram.end(last)], rtol=1e-6
    )
    np.testing.assert_allclose(found.letters[1], spelling, rtol=1e-6)
    assert found.letters[3] == -math.inf
    assert (found.unknown, found.characters.tolist(), found.sentence.tolist()) == (
        1,
        [10],
        [0, 0, 0, 0],
    )


def test_bits_per_character_of_a_toy_by_hand():
    """Two sentences, `ab` and `c`, 3 + 2 characters.

    The n-gram gives 1/2 to all four events, the neural model 1/8 to the first two and 1/2 to the
    others. Neither the letters nor the neural model help on the text to fit on.
    """
    sentence, characters = np.array([0, 0, 1, 1]), np.array([3, 2])
    letters = np.array([-1e3, -math.inf, -1e3, -math.inf])
    halves = np.full(4, math.log(0.5))
    tested = TextLogProbs(
        halves, letters, np.log([0.125, 0.125, 0.5, 0.5]), sentence, characters, 0
    )
    fitted = TextLogProbs(halves, letters, np.log(np.full(4, 0.01)), sentence, characters, 0)
    report = _report(fitted, tested)
    assert report["bits_per_character"]["ngram"] == pytest.approx(4 / 5, abs=1e-4)
    assert report["bits_per_character"]["neural"] == pytest.approx((3 + 3 + 1 + 1) / 5)
    assert report["bits_per_character"]["interpolated"] == pytest.approx(4 / 5, abs=1e-4)
    assert report["perplexity"]["ngram"] == pytest.approx(2, abs=1e-3)
    assert report["weights"]["neural"] == pytest.approx(0, abs=1e-3)
    assert (report["words"], report["characters"]) == (2, 5)


def test_the_mixture_is_linear_and_its_weight_the_best():
    first, second = np.log([0.5, 0.1, 0.2]), np.log([0.1, 0.3, 0.6])
    np.testing.assert_allclose(np.exp(mixed([first, second], [0.75, 0.25])), [0.4, 0.15, 0.3])
    weight = fit([first, second])[1]
    grid = np.linspace(0, 1, 2001)
    totals = [mixed([first, second], [1 - each, each]).sum() for each in grid[1:-1]]
    assert weight == pytest.approx(grid[1 + int(np.argmax(totals))], abs=1e-3)


def test_the_command_says_all_of_it(lm, ngram, tmp_path, capsys):
    held_out, text = tmp_path / "held.txt", tmp_path / "text.txt"
    held_out.write_text("a bad dab\nbed a cab\n")
    text.write_text("a bed\ndab a bee\n")
    arguments = [
        "lm",
        "compare",
        str(ngram.directory),
        lm.name,
        str(text),
        "--held-out",
        str(held_out),
    ]
    assert run([*arguments, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["sentences"], facts["words"], facts["characters"], facts["unknown_words"]) == (
        2,
        5,
        16,
        1,
    )
    tokens = sum(float(words.sum()) for words in word_log_probs(lm, ["a bed", "dab a bee"]))
    assert facts["bits_per_character"]["neural"] == pytest.approx(
        -tokens / math.log(2) / 16, rel=1e-5
    )
    assert facts["weights"]["fitted_on_words"] == 6
    assert run(arguments) == 0
    assert "bits per character" in capsys.readouterr().out


def test_what_cannot_be_compared_is_said(lm, ngram, tiny_lm_dir: Path, tmp_path, capsys):
    text = tmp_path / "text.txt"
    text.write_text("a bed\n")
    (tmp_path / "held.txt").write_text("a cab\n")
    rest = [str(text), "--held-out", str(tmp_path / "held.txt")]
    assert run(["lm", "compare", str(ngram.directory), str(tiny_lm_dir), *rest]) == 2
    assert "was not trained to end sentences" in capsys.readouterr().err
    assert (
        run(["lm", "compare", str(ngram.directory), lm.name, str(text), "--held-out", str(text)])
        == 2
    )
    assert "the weights would be fitted on the text itself" in capsys.readouterr().err
    with pytest.raises(LanguageModelError, match="longer than the model's window"):
        word_log_probs(lm, [" ".join(["bad"] * 600)])


@pytest.mark.slow
def test_a_minute_of_training_lowers_the_bits_of_real_prompts_below_the_ngrams(
    real_data: Path, tmp_path: Path
):
    """From the prompts alone.

    What general text and more minutes give is in benchmarks/results/neural-lm.json.
    """
    prompts = (real_data / "text" / "transcripts_train.txt").read_text().splitlines()
    texts = {"train": [p for i, p in enumerate(prompts) if i % 20], "held": prompts[::20]}
    texts["test"] = [
        json.loads(line)["reference"]
        for line in (real_data / "nbest" / "t15_val_even.jsonl").read_text().splitlines()
    ]
    for name, lines in texts.items():
        (tmp_path / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    train, held, test = (tmp_path / f"{name}.txt" for name in texts)
    LanguageModel.build([train], 5, tmp_path / "lm", binary="trie")
    options = NeuralSettings(pieces=2000, layers=2, lr=1e-2, steps=30, minutes=None)
    train_neural([train], tmp_path / "neural", options, held)
    found = compare(tmp_path / "lm", tmp_path / "neural", test, held)
    assert found["bits_per_character"]["interpolated"] < found["bits_per_character"]["ngram"]
    assert found["gain"]["low"] > 0
