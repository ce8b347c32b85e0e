"""The small model of the project's own training.

Its word pieces, its batches, and what it learns.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections import Counter
from pathlib import Path

import pytest
import torch
import transformers

from cortext.cli import run
from cortext.errors import LanguageModelError
from cortext.text.normalize import normalize
from cortext_lm.llm.model import CausalLM
from cortext_lm.neural.loss import padded, summed_loss
from cortext_lm.neural.pieces import BOS, EOS, MARK, encode, starts, train_pieces
from cortext_lm.neural.texts import TextSource, batches, read_texts
from cortext_lm.neural.train_neural import NeuralSettings, train_neural

SENTENCES = [
    "i am fine", "how are you", "we will see", "bring me some water", "it's a well-known song", "you are here",
    "the song is here", "i see you", "water is fine", "are you well",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    return train_pieces(Counter(word for text in SENTENCES for word in text.split()), 60, 64)


def random_sentence(generator: random.Random) -> str:
    letters = "aabcdeeeghiiklmnoorsttuvwyz'-"
    words = [
        "".join(generator.choices(letters, k=generator.randint(1, 9)))
        for _ in range(generator.randint(1, 12))
    ]
    known = [word for text in SENTENCES for word in text.split()]
    return normalize(" ".join(generator.choice([word, generator.choice(known)]) for word in words))


def test_pieces_give_every_normalised_sentence_back(tokenizer):
    generator = random.Random(0)
    for _ in range(300):
        sentence = random_sentence(generator)
        tokens = tokenizer.encode(sentence, add_special_tokens=False)
        assert tokenizer.decode(tokens) == sentence


def test_a_word_that_is_appended_appends_tokens(tokenizer):
    generator = random.Random(1)
    begins = set(starts(tokenizer))
    for _ in range(300):
        words = random_sentence(generator).split()
        before: list[int] = []
        for count in range(1, len(words) + 1):
            tokens = tokenizer.encode(" ".join(words[:count]), add_special_tokens=False)
            assert tokens[: len(before)] == before
            new = tokens[len(before) :]
            assert new[0] in begins
            assert not begins.intersection(new[1:])
            before = tokens


def test_words_cut_one_by_one_are_the_sentence(tokenizer):
    generator = random.Random(2)
    sentences = [random_sentence(generator) for _ in range(50)]
    assert encode(sentences, tokenizer) == [
        tokenizer.encode(text, add_special_tokens=False) for text in sentences
    ]


def test_no_character_is_unknown_and_text_as_written_is_normalised(tokenizer):
    plain = tokenizer.encode("how are you", add_special_tokens=False)
    assert tokenizer.encode(" How are  you? 42", add_special_tokens=False) == plain
    assert tokenizer.encode("", add_special_tokens=False) == []
    assert tokenizer.encode("how are you") == [tokenizer.bos_token_id, *plain]


def test_batches_read_each_source_as_often_as_its_factor_says():
    rows = [[[1] * length for length in (3, 4, 5, 6)], [[2] * length for length in range(2, 22)]]
    seen: Counter[int] = Counter()
    rows_in_two_readings = 2 * (4 * 2.5 + 20)
    for batch in batches(rows, [2.5, 1.0], 32, seed=0):
        assert len(batch) == 1 or max(map(len, batch)) * len(batch) <= 32
        seen.update(row[0] for row in batch)
        if sum(seen.values()) >= rows_in_two_readings:
            break
    assert seen == {1: 20, 2: 40}


def test_factors_that_leave_nothing_are_refused():
    with pytest.raises(LanguageModelError, match="the factors leave no sentence"):
        next(batches([[[1, 2], [1, 3]]], [0.1], 64, seed=0))


def test_batches_are_a_function_of_the_seed():
    rows = [[[number] * (2 + number % 7) for number in range(50)]]
    first, again, other = (
        list(itertools.islice(batches(rows, [1.0], 40, seed), 20)) for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_loss_and_gradients_are_those_of_a_plain_loop_without_padding(tokenizer):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    network = transformers.LlamaForCausalLM(config).eval()
    rows = (
        [[0, 9, 8, 1], [0, 7, 5, 6, 12, 11, 1], [0, 1]]
        + [[0, *range(3, 3 + n), 1] for n in range(2, 6)]
        + [[0, *[5] * 300, 1]]
    )

    together = summed_loss(network, *padded(rows, pad=2))
    gradients = torch.autograd.grad(together, list(network.parameters()))
    alone = torch.zeros(())
    for row in rows:
        log_probs_TV = network(torch.tensor([row])).logits[0].log_softmax(-1)
        alone = alone - sum(
            log_probs_TV[position, row[position + 1]] for position in range(len(row) - 1)
        )
    torch.testing.assert_close(together, alone, rtol=1e-5, atol=1e-4)
    for found, expected in zip(
        gradients, torch.autograd.grad(alone, list(network.parameters())), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """Ten sentences learnt by heart."""
    folder = tmp_path_factory.mktemp("neural")
    text = folder / "text.txt"
    text.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    again = folder / "again.txt"
    again.write_text(text.read_text())
    options = NeuralSettings(
        pieces=80,
        width=64,
        layers=2,
        heads=2,
        lr=1e-2,
        batch_tokens=256,
        steps=80,
        minutes=None,
        seed=3,
    )
    return folder / "model", train_neural([text], folder / "model", options, held_out=again)


def test_ten_sentences_are_learnt_by_heart(learned):
    """Whoever knows them by heart needs their choice, log2(10) bits, and nothing for the rest."""
    characters = sum(len(sentence) + 1 for sentence in SENTENCES) / len(SENTENCES)
    assert 3.32 / characters - 0.01 < learned[1]["bits_per_character"] < 2 * 3.32 / characters


def test_transformers_reads_the_model_as_it_is(learned):
    tokenizer = transformers.AutoTokenizer.from_pretrained(learned[0])
    network = transformers.AutoModelForCausalLM.from_pretrained(learned[0], use_safetensors=True)
    prompt = torch.tensor([tokenizer.encode("bring me some")])
    answer = network.generate(
        prompt, max_new_tokens=5, do_sample=False, pad_token_id=tokenizer.pad_token_id
    )
    assert tokenizer.decode(answer[0], skip_special_tokens=True) == "bring me some water"
    assert int(answer[0, -1]) == tokenizer.eos_token_id
    assert network.config.tie_word_embeddings
    assert network.config.model_type == "llama"


def test_sentences_are_ended_when_scored(learned):
    lm = CausalLM.load(learned[0])
    assert (lm.start, lm.end) == (
        lm.tokenizer.convert_tokens_to_ids(BOS),
        lm.tokenizer.convert_tokens_to_ids(EOS),
    )
    assert all(
        lm.tokenizer.convert_ids_to_tokens(token).startswith(MARK)
        for token in lm.tokens("how are you")[:1]
    )


def test_how_it_was_made_stands_beside_it(learned):
    facts = json.loads((learned[0] / "cortext.json").read_text())
    assert facts["options"]["seed"] == 3
    assert facts["sources"][0]["sentences"] == len(SENTENCES)
    assert facts["provenance"]["versions"]["torch"] == torch.__version__
    assert facts["steps"] <= 80
    assert facts["parameters"] == CausalLM.load(learned[0]).network.num_parameters()


def test_the_same_seed_and_steps_give_the_same_weights(tmp_path):
    (tmp_path / "text.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    options = NeuralSettings(pieces=80, width=16, layers=1, heads=1, steps=4, minutes=None, seed=5)
    for name in ("first", "second"):
        train_neural([tmp_path / "text.txt"], tmp_path / name, options)
    first, second = (
        (tmp_path / name / "model.safetensors").read_bytes() for name in ("first", "second")
    )
    assert first == second


def test_weights_whose_loss_is_no_number_are_never_kept(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    options = NeuralSettings(pieces=80, width=16, layers=1, heads=1, steps=4, minutes=None)
    good = itertools.chain([1.0, 1.0], itertools.repeat(math.nan))

    def loss(network, *rows):
        return summed_loss(network, *rows) * (1.0 if network.training else next(good))

    monkeypatch.setattr("cortext_lm.neural.train_neural.summed_loss", loss)
    train_neural([tmp_path / "text.txt"], tmp_path / "model", options)
    facts = json.loads(
        (tmp_path / "model" / "cortext.json").read_text(), parse_constant=pytest.fail
    )
    bits = [entry["bits_per_character"] for entry in facts["history"]]
    assert bits[2:] == [None] * (len(bits) - 2) != []
    assert facts["bits_per_character"] == min(bits[:2])
    with pytest.raises(LanguageModelError, match="nothing was learnt: the loss is no number"):
        train_neural([tmp_path / "text.txt"], tmp_path / "other", options)
    assert not (tmp_path / "other").exists()


def test_held_out_sentences_are_not_learnt_from(tmp_path):
    text = tmp_path / "text.txt"
    words = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrt"]
    text.write_text("".join(f"{word} is here\n" for word in words))
    texts = read_texts([TextSource.of(f"{text}:2")])
    assert texts.held_out == ["bal is here", "fal is here", "kal is here"]
    assert texts.sources[0].factor == 2
    assert not set(texts.held_out).intersection(texts.sentences[0])
    assert len(texts.held_out) + len(texts.sentences[0]) == len(words)


def test_a_file_named_like_a_factor_is_itself(tmp_path):
    (tmp_path / "text.txt:3").write_text("how are you\n")
    assert TextSource.of(tmp_path / "text.txt:3") == TextSource(tmp_path / "text.txt:3", 1.0)
    assert TextSource.of(f"{tmp_path}/text.txt:0.5") == TextSource(tmp_path / "text.txt", 0.5)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["missing.txt", "--out", "m"],
            "missing.txt: cannot read the text: No such file or directory",
        ),
        (
            ["text.txt", "--out", "taken"],
            "taken: is not empty and has no cortext.json; give a new directory",
        ),
        (["text.txt", "--out", "m", "--width", "32"], "width is 32; 3 heads need a multiple of 6"),
        (
            ["text.txt", "--out", "m", "--held-out", "text.txt"],
            "text.txt: the held-out text is one of the texts",
        ),
        (["text.txt:0", "--out", "m"], "text.txt: factor 0 is not possible; give 0.01 to 1000"),
        (["empty.txt", "--out", "m"], "empty.txt: no sentence in the text; give prose in English"),
        (["one.txt", "--out", "m"], "one.txt: one sentence is too little to learn from"),
        (
            ["own/text.txt", "--out", "own"],
            "own: would take the place of own/text.txt; give another directory",
        ),
    ],
)
def test_mistakes_are_one_line(arguments, line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("how are you\ni am fine\n")
    (tmp_path / "one.txt").write_text("how are you\n")
    (tmp_path / "empty.txt").write_text("12 34\n")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "text.txt").write_text("how are you\ni am fine\n")
    (tmp_path / "own" / "cortext.json").write_text("{}")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("x")
    assert run(["lm", "train-neural", *arguments]) == 2
    assert capsys.readouterr().err == f"cortext: {line}\n"
    assert not (tmp_path / "m").exists()


def test_an_option_that_cannot_be_is_refused():
    with pytest.raises(LanguageModelError, match="steps is 0; it must be at least 1"):
        NeuralSettings(steps=0)
    with pytest.raises(LanguageModelError, match="training would not end"):
        NeuralSettings(steps=None, minutes=None)
