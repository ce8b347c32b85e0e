"""Mixing models against hand computation, a likelihood on a grid, and the axioms of probability."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from ngram_oracle import NGram, read_arpa

from cortext import _native
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.ngram.vocabulary import LN10
from cortext.errors import LanguageModelError
from cortext_lm.ngram.interpolate import maximise

FIRST = ["the cat sat", "the cat ran", "a cat sat", "the dog ran away", "the cat sat down"]
SECOND = [
    "the dog sat",
    "a dog ran",
    "the dog ran",
    "my dog sat down",
    "a dog ran away",
    "the dog barks",
]
HELD_OUT = ["the cat ran", "a dog sat", "the dog ran down", "the zebra sat"]
WORDS = sorted({word for sentence in FIRST + SECOND for word in sentence.split()})


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    directory = tmp_path_factory.mktemp("texts")
    for name, sentences in (("first", FIRST), ("second", SECOND), ("held", HELD_OUT)):
        (directory / f"{name}.txt").write_text("\n".join(sentences) + "\n")
    return directory


def opened(directory):
    return NGram(read_arpa(directory / "lm.arpa"))


@pytest.fixture(scope="module")
def models(texts):
    """The parts, each built alone over the joint vocabulary, the mixture, and its facts."""
    for name in ("first", "second"):
        text = [texts / f"{name}.txt"]
        LanguageModel.build(text, 3, texts / f"lm_{name}", vocabulary=WORDS, keep_arpa=True)
    both = [texts / "first.txt", texts / "second.txt"]
    options = dict(interpolate=True, held_out=texts / "held.txt", keep_arpa=True, binary="trie")
    mixed = LanguageModel.build(both, 3, texts / "lm_mixed", **options)
    parts = [opened(texts / f"lm_{name}") for name in ("first", "second")]
    return parts, opened(texts / "lm_mixed"), mixed.info()["interpolation"]


def prob(model, sentence, word):
    """p(word | the sentence so far)."""
    state = model.begin()
    for each in sentence.split():
        state = model.score(state, each)[1]
    return math.exp(model.score(state, word)[0])


@pytest.mark.parametrize(
    ("sentence", "word"),
    [
        ("the", "cat"),  # a trigram of both: <s> the cat is only in the first, the dog in both
        ("the", "dog"),
        ("the cat", "sat"),  # a trigram of the first only
        ("the dog", "barks"),  # of the second only
        ("my", "dog"),
        ("", "my"),
        ("the dog ran", "</s>"),
    ],
)
def test_a_listed_ngram_has_the_weighted_mean_of_what_the_parts_give(models, sentence, word):
    parts, mixed, facts = models
    expected = sum(
        weight * prob(part, sentence, word)
        for weight, part in zip(facts["weights"], parts, strict=True)
    )
    assert prob(mixed, sentence, word) == pytest.approx(expected, rel=1e-5)


def test_the_probabilities_after_every_context_sum_to_one(models):
    _, mixed, _ = models
    for context in (
        "",
        "the",
        "the cat",
        "a cat",
        "my dog",
        "my",
        "dog ran away",
        "barks barks",
        "zebra",
        "cat my",
    ):
        total = sum(prob(mixed, context, word) for word in [*WORDS, "</s>", "<unk>"])
        assert total == pytest.approx(1.0, abs=1e-5)


def test_a_context_of_one_part_backs_off_by_hand(models):
    """`my` is followed by `dog` in the second text only.

    The mixture lists `my dog` and backs off for the others.
    """
    _, mixed, _ = models
    unigram = {word: math.exp(mixed.unigram(word)) for word in ("dog", "cat")}
    backoff = (1 - prob(mixed, "my", "dog")) / (
        1 - math.exp(mixed.score((mixed._words["my"],), "dog")[0])
    )
    after_my = mixed.score((mixed._words["my"],), "cat")[0]
    assert prob(mixed, "my", "cat") == pytest.approx(backoff * math.exp(after_my), rel=1e-5)
    listed = math.exp(mixed.score((mixed._words["my"],), "dog")[0])
    assert math.exp(after_my) == pytest.approx(
        (1 - listed) / (1 - unigram["dog"]) * unigram["cat"], rel=1e-5
    )


def test_the_weights_are_the_best_on_the_held_out_text(models):
    """Against a grid.

    The known words and ends of the held-out sentences, scored with the parts alone.
    """
    parts, _, facts = models
    events = []
    for sentence in HELD_OUT:
        words = sentence.split()
        for position, word in enumerate([*words, "</s>"]):
            if word != "zebra":
                events.append([prob(part, " ".join(words[:position]), word) for part in parts])
    events = np.array(events)
    assert facts["tokens"] == len(events) == 16
    grid = np.linspace(0.001, 0.999, 999)
    likelihood = [np.log(events @ np.array([weight, 1 - weight])).sum() for weight in grid]
    assert facts["weights"][0] == pytest.approx(grid[int(np.argmax(likelihood))], abs=2e-3)
    assert facts["perplexity"] == pytest.approx(math.exp(-max(likelihood) / 16), rel=1e-4)
    for number, perplexity in enumerate(facts["perplexities"]):
        assert perplexity == pytest.approx(
            math.exp(-np.log(events[:, number]).sum() / 16), rel=1e-4
        )


def test_expectation_maximisation_by_hand():
    # The first model gives 1/2 to an event seen 3 times and 0 to one seen once, the second 0 and
    # 1/2: 3/4 and 1/4.
    events = np.array([[0.5, 0.0], [0.0, 0.5]])
    assert maximise(events, np.array([3.0, 1.0])) == pytest.approx([0.75, 0.25])


def test_a_mixture_with_pruning_sums_to_one_and_opens(texts):
    options = dict(
        interpolate=True, held_out=texts / "held.txt", prune=(0, 1), vocabulary=8, keep_arpa=True
    )
    both = [texts / "first.txt", texts / "second.txt", texts / "first.txt"]
    model = LanguageModel.build(both, 3, texts / "lm_pruned", **options)
    oracle = opened(texts / "lm_pruned")
    for context in ("", "the", "the cat", "the dog"):
        total = sum(prob(oracle, context, word) for word in [*oracle.vocabulary, "</s>", "<unk>"])
        assert total == pytest.approx(1.0, abs=1e-5)
    weights = model.info()["interpolation"]["weights"]
    assert len(weights) == 3
    assert sum(weights) == pytest.approx(1.0)
    assert len(oracle.vocabulary) == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(interpolate=True), "interpolation and a held-out text go together"),
        (dict(held_out=Path("x")), "interpolation and a held-out text go together"),
        (dict(interpolate=True, held_out="first"), "held-out text is one of the texts"),
        (dict(interpolate=True, held_out="absent"), "absent.txt: cannot read the text"),
        (dict(interpolate=True, held_out="held", engine="lmplz"), "lmplz does not interpolate"),
        (
            dict(interpolate=True, held_out="held", vocabulary=["quux"]),
            "no n-gram of order 2 is left",
        ),
    ],
)
def test_what_cannot_be_mixed_is_said_in_a_line(texts, tmp_path, options, message):
    if isinstance(options.get("held_out"), str):
        options = options | {"held_out": texts / f"{options['held_out']}.txt"}
    with pytest.raises(LanguageModelError, match=message):
        LanguageModel.build(
            [texts / "first.txt", texts / "second.txt"], 3, tmp_path / "lm", **options
        )
    assert not list(tmp_path.iterdir())


def test_one_text_cannot_be_mixed(texts, tmp_path):
    with pytest.raises(LanguageModelError, match="two texts or more"):
        LanguageModel.build(
            [texts / "first.txt"], 3, tmp_path / "lm", interpolate=True, held_out=texts / "held.txt"
        )
    (texts / "empty.txt").write_text("...\n")
    both = [texts / "first.txt", texts / "empty.txt"]
    with pytest.raises(LanguageModelError, match=r"empty.txt: no sentence in the text"):
        LanguageModel.build(both, 3, tmp_path / "lm", interpolate=True, held_out=texts / "held.txt")


def test_the_binary_is_the_mixture(texts, models):
    _, mixed, _ = models
    binary = _native.NGram.open(str(texts / "lm_mixed" / "lm.bin"))
    for sentence in HELD_OUT:
        assert binary.sentence(sentence) / LN10 == pytest.approx(
            mixed.sentence(sentence) / LN10, abs=1e-5
        )
    assert json.loads((texts / "lm_mixed" / "lm.json").read_text())["counts"] == list(mixed.counts)
