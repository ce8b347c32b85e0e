"""A large model beside the n-gram.

The published formula and the other one, more candidates, and what fails.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cortext.decoding import Decoder, DecoderOptions, Hypothesis, NBest, Word
from cortext.decoding.fake import fake_log_probs
from cortext.decoding.ngram import LanguageModel
from cortext.errors import DecodingError, LanguageModelError
from cortext_lm.llm import large_model
from cortext_lm.llm.augment import augmented
from cortext_lm.llm.large_model import LLM
from cortext_lm.llm.model import CausalLM
from cortext_lm.llm.scoring import TokenScore, score_texts

SAID = {
    "a b": TokenScore(-6.0, 2),
    "a c d": TokenScore(-3.0, 3),
    "": TokenScore(0.0, 0),
    "a e": TokenScore(-7.0, 2),
}
"""What the model says of each text in tests of formulas."""

LIST = NBest(
    [
        Hypothesis(
            "a b", -7.0, acoustic_score=-10.0, lm_score=-4.0, sil_score=-0.5, hotword_score=2.0
        ),
        Hypothesis("a c d", -9.0, acoustic_score=-12.0, lm_score=-5.0, words=(Word("a", 0, 80),)),
        Hypothesis("", -12.0, acoustic_score=-20.0, lm_score=-2.0),
    ]
)


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> LLM:
    """A reader whose model says `SAID`."""

    def said(
        lm: Any, texts: list[str], context: str = "", variants: str = "plain", **_: Any
    ) -> list[TokenScore]:
        return [SAID[text] for text in texts]

    monkeypatch.setattr(large_model, "score_texts", said)
    return LLM(None)  # type: ignore[arg-type] # nothing but its scores is asked for


def options(**llm: Any) -> DecoderOptions:
    return DecoderOptions(acoustic_scale=0.5, lm_weight=2.0, word_score=0.25, llm=llm)


def scores(nbest: NBest) -> dict[str, float]:
    return {found.text: found.score for found in nbest}


def test_interpolation_is_the_published_formula(reader: LLM):
    (found,) = reader.rank([LIST], options(weight=0.25))
    # 0.5 * acoustic + 2 * (0.75 * ngram + 0.25 * llm) + 0.25 * words + sil + hotwords; nothing is
    # said of silence
    assert scores(found) == pytest.approx({
        "a b": -5 + 2 * (-3 - 1.5) + 0.5 - 0.5 + 2,
        "a c d": -6 + 2 * (-3.75 - 0.75) + 0.75,
        "": -10 + 2 * -2,
    })  # fmt: skip
    assert [(hypothesis.text, hypothesis.llm_score) for hypothesis in found] == [
        ("a b", -6),
        ("", None),
        ("a c d", -3),
    ]


def test_the_additive_form(reader: LLM):
    (found,) = reader.rank([LIST], options(weight=3.0, form="add"))
    assert scores(found) == pytest.approx({
        "a b": -5 + 2 * -4 + 3 * -6 + 0.5 - 0.5 + 2,
        "a c d": -6 + 2 * -5 + 3 * -3 + 0.75,
        "": -10 + 2 * -2 + 3 * -2,
    })  # fmt: skip
    assert found.texts == ["", "a c d", "a b"]


def test_every_token_costs_the_penalty(reader: LLM):
    (found,) = reader.rank([LIST], options(weight=1.0, token_penalty=0.5))
    assert {hypothesis.text: hypothesis.llm_score for hypothesis in found} == {
        "a b": -7.0,
        "a c d": -4.5,
        "": None,
    }
    assert scores(found)["a c d"] == pytest.approx(-6 + 2 * -4.5 + 0.75)


def test_confidence_is_the_softmax_of_the_scores(reader: LLM):
    (found,) = reader.rank([LIST], options(weight=0.25))
    total = sum(math.exp(hypothesis.score) for hypothesis in found)
    assert [hypothesis.confidence for hypothesis in found] == pytest.approx(
        [math.exp(h.score) / total for h in found]
    )
    assert sum(hypothesis.confidence or 0 for hypothesis in found) == pytest.approx(1)


def test_impossible_sentences_have_no_confidence(reader: LLM):
    impossible = NBest([LIST[0], Hypothesis("a e", -math.inf, -math.inf, -1.0)])
    (found,) = reader.rank([impossible], options())
    assert [hypothesis.confidence for hypothesis in found] == [1.0, 0.0]
    (found,) = reader.rank([NBest([impossible[1]] * 2)], options())
    assert [hypothesis.confidence for hypothesis in found] == [0.5, 0.5]


def test_what_a_search_added_before_does_not_count(reader: LLM):
    fused = NBest(
        [Hypothesis(h.text, h.score + 9, h.acoustic_score, h.lm_score, llm_score=9.0) for h in LIST]
    )
    bare = NBest([Hypothesis(h.text, h.score, h.acoustic_score, h.lm_score) for h in LIST])
    assert reader.rank([fused], options()) == reader.rank([bare], options())


def test_a_weight_of_nothing_changes_nothing(reader: LLM):
    nothing = options(weight=0.0, mode="fusion", augment=20)
    assert reader.rank([LIST, LIST], nothing) == [LIST, LIST]
    assert reader.search_options(nothing) is nothing
    assert reader.hook(nothing, "") is None


def test_rescoring_leaves_the_search_alone(reader: LLM):
    assert reader.search_options(options()) == options()
    assert reader.hook(options(), "") is None


def test_fusion_keeps_histories_apart_and_has_one_form(reader: LLM):
    fused = reader.search_options(options(mode="fusion", form="add", weight=3.0, history_words=5))
    assert (fused.history_words, fused.lm_weight, fused.llm.form, fused.llm.weight) == (
        5,
        5.0,
        "interpolate",
        0.6,
    )
    assert fused.llm.shares(fused.lm_weight) == pytest.approx((2.0, 3.0))
    kept = reader.search_options(DecoderOptions(history_words=9, llm={"mode": "fusion"}))
    assert (kept.history_words, kept.lm_weight, kept.llm.weight) == (9, 1.0, 0.5)


def test_weights_that_are_too_much_together_are_named(reader: LLM):
    with pytest.raises(
        DecodingError,
        match=r"^lm_weight 2 and llm.weight 999 are too much together: lm_weight is 1001.0",
    ):
        reader.search_options(options(mode="fusion", form="add", weight=999.0))


OPTIONS = DecoderOptions(acoustic_scale=0.5, lm_weight=1.0)


def test_two_sentences_exchange_the_words_in_which_they_differ():
    times = [Word("i", 0, 80, 0.9), Word("see", 80, 240, 0.9), Word("you", 240, 400, 0.9)]
    first = Hypothesis("i see you", -9.0, -10.0, -4.0, tuple(times))
    second = Hypothesis("a sea you", -14.0, -12.0, -8.0, ())
    found = augmented([first, second], OPTIONS, top=20, penalty_fraction=0.01)
    # each new one: acoustic -11 less 1 %, n-gram -6 less 1 %; score = 0.5 acoustic + ngram
    assert [hypothesis.text for hypothesis in found] == [
        "i see you",
        "a see you",
        "i sea you",
        "a sea you",
    ]
    assert {
        (round(h.acoustic_score, 9), round(h.lm_score, 9), round(h.score, 9)) for h in found[1:3]
    } == {(-11.11, -6.06, -11.615)}
    assert found[1].words == (Word("a", 0, 80), *times[1:])
    assert (found[0], found[3]) == (first, second)


def test_sentences_of_other_lengths_and_beyond_the_top_are_left_alone():
    given = [
        Hypothesis(text, -float(n), -1.0, -1.0)
        for n, text in enumerate(("a b", "a b c", "a d", "e b"))
    ]
    assert augmented(given, OPTIONS, top=2, penalty_fraction=0.0) == given
    assert augmented(given, OPTIONS, top=0, penalty_fraction=0.0) == given
    assert {h.text for h in augmented(given, OPTIONS, 20, 0.0)} == {
        "a b",
        "a b c",
        "a d",
        "e b",
        "e d",
    }


def test_the_model_ranks_what_the_exchange_makes(reader: LLM, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SAID, "a b d", TokenScore(-0.5, 3))
    monkeypatch.setitem(SAID, "a c e", TokenScore(-50.0, 3))
    monkeypatch.setitem(SAID, "a b e", TokenScore(-50.0, 3))
    given = NBest([Hypothesis("a c d", -9.0, -12.0, -5.0), Hypothesis("a b e", -9.5, -12.0, -5.5)])
    (found,) = reader.rank([given], options(weight=1.0, augment=20, augment_penalty=0.0))
    assert found.texts[:2] == ["a b d", "a c d"]
    assert found[0].score == pytest.approx(0.5 * -12 + 2 * -0.5 + 0.75)


@pytest.fixture
def tiny(tiny_lm_dir: Path) -> LLM:
    return LLM.load(tiny_lm_dir)


def lists(n: int) -> list[NBest]:
    words = ["how", "are", "you", "today", "water"]
    return [
        NBest(
            [
                Hypothesis(f"{words[i % 5]} {words[j]} {i}", -1.0 - j, -1.0, -float(j))
                for j in range(3)
            ]
        )
        for i in range(n)
    ]


def test_lists_are_ranked_as_each_alone_and_progress_is_reported(tiny: LLM):
    given, steps = lists(40), []
    found = tiny.rank(given, options(), "some water", lambda *step: steps.append(step))
    assert steps == [(16, 40), (32, 40), (40, 40)]
    for one, nbest in zip(given[::13], found[::13], strict=True):
        (alone,) = tiny.rank([one], options(), "some water")
        assert alone.texts == nbest.texts
        assert [h.score for h in alone] == pytest.approx([h.score for h in nbest], rel=1e-5)
    expected = score_texts(tiny.lm, given[0].texts, "some water")
    assert sorted(h.llm_score or 0 for h in found[0]) == pytest.approx(
        sorted(s.log_prob for s in expected), rel=1e-5
    )


def _failing(lm: CausalLM, monkeypatch: pytest.MonkeyPatch, when: Callable[[], bool]) -> None:
    """The network has no memory left at times."""
    forward = lm.body.forward

    def limited(**kwargs: Any) -> Any:
        if when():
            torch.empty(1 << 60)
        return forward(**kwargs)

    monkeypatch.setattr(lm.body, "forward", limited)


def test_lists_that_the_model_fails_on_are_the_n_grams_and_say_so(
    tiny: LLM, monkeypatch: pytest.MonkeyPatch
):
    given = lists(40)
    expected = tiny.rank(given, options())
    done = [0]
    _failing(tiny.lm, monkeypatch, lambda: done[-1] == 16)
    found = tiny.rank(given, options(), progress=lambda so_far, _: done.append(so_far))
    assert [nbest.degraded is None for nbest in found] == [True] * 16 + [False] * 16 + [True] * 8
    assert found[16:32] == given[16:32]
    assert found[:16] == expected[:16]
    assert (
        found[20].degraded
        == f"without the large model: {tiny.lm.name}: not enough memory for a single sentence; use"
        " a smaller model, a shorter context or another device"
    )


class Panic(BaseException):
    """As compiled Rust raises it: no `Exception`."""


@pytest.mark.parametrize("what", ["tokenizer", "network"])
def test_a_panic_in_compiled_code_fails_the_same_way(
    tiny: LLM, monkeypatch: pytest.MonkeyPatch, what: str
):
    def panics(*_: object, **__: object) -> None:
        raise Panic("index out of bounds")

    where = tiny.lm if what == "tokenizer" else tiny.lm.body
    monkeypatch.setattr(where, "_encode" if what == "tokenizer" else "forward", panics)
    given = lists(2)
    found = tiny.rank(given, options())
    assert found == given
    assert all("index out of bounds" in (nbest.degraded or "") for nbest in found)


def test_a_tokenizer_that_panics_is_named(tiny: LLM, monkeypatch: pytest.MonkeyPatch):
    def panics(*_: object, **__: object) -> None:
        raise Panic("index out of bounds")

    monkeypatch.setattr(tiny.lm.tokenizer, "encode", panics)
    with pytest.raises(LanguageModelError, match=r"its tokenizer failed \(index out of bounds\)"):
        score_texts(tiny.lm, ["a"])


def test_a_model_that_gives_no_answer_in_time_leaves_the_ngrams_list(
    reader: LLM, monkeypatch: pytest.MonkeyPatch
):
    released = threading.Event()
    answers = large_model.score_texts
    monkeypatch.setattr(large_model, "score_texts", lambda *_, **__: released.wait(60) and [])
    reader.wait_at_most(0.05)
    (found,) = reader.rank([LIST], options(weight=0.25))
    assert [each.text for each in found] == [each.text for each in LIST]
    assert found.degraded == "without the large model: it gave no answer within 0.05 s"
    # The next sentence does not wait for a model that is still at work.
    (found,) = reader.rank([LIST], options(weight=0.25))
    assert found.degraded == "without the large model: it is still busy with an earlier sentence"
    released.set()
    monkeypatch.setattr(large_model, "score_texts", answers)
    reader.wait_at_most(60)
    until = time.monotonic() + 30
    while reader.rank([LIST], options(weight=0.25))[0].degraded and time.monotonic() < until:
        time.sleep(0.001)
    (found,) = reader.rank([LIST], options(weight=0.25))
    reader.wait_at_most(None)
    assert found.degraded is None
    assert found == reader.rank([LIST], options(weight=0.25))[0]


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_ends_it(
    tiny: LLM, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
):
    def ends(**_: object) -> None:
        raise end

    monkeypatch.setattr(tiny.lm.body, "forward", ends)
    with pytest.raises(end):
        tiny.rank(lists(2), options())


def test_lists_without_sentences_stay_so(tiny: LLM):
    full = lists(1)[0]
    empty, ranked = tiny.rank([NBest([], "lost"), full], options())
    assert (len(empty), empty.degraded) == (0, "lost")
    assert ranked == tiny.rank([full], options())[0]
    assert tiny.rank([], options()) == []


def test_what_the_n_gram_holds_for_impossible_does_not_count_at_a_weight_of_one(
    reader: LLM,
):
    unknown = NBest([Hypothesis("a b", -math.inf, -10.0, -math.inf), LIST[1]])
    (found,) = reader.rank([unknown], options(weight=1.0))
    assert scores(found) == pytest.approx({"a b": -5 + 2 * -6 + 0.5, "a c d": -6 + 2 * -3 + 0.75})


def test_a_list_that_the_model_cannot_read_keeps_no_other_from_being_ranked(tiny: LLM):
    given = lists(4)
    given[2] = NBest([*given[2], Hypothesis("you " * 300, -9.0, -1.0, -9.0)])
    found = tiny.rank(given, options(), "some water")
    assert [nbest.degraded is None for nbest in found] == [True, True, False, True]
    assert found[2] == given[2]
    assert "a sentence has more tokens than the" in (found[2].degraded or "")
    expected = tiny.rank([given[3]], options(), "some water")[0]
    assert [h.llm_score for h in found[3]] == pytest.approx(
        [h.llm_score for h in expected], rel=1e-5
    )


def test_lists_ranked_before_are_the_n_grams_with_a_weight_of_nothing(reader: LLM):
    both = NBest([LIST[2], LIST[1]])
    plain = NBest(
        [
            replace(h, score=0.5 * h.acoustic_score + 2 * h.lm_score + 0.25 * len(h.text.split()))
            for h in both
        ]
    )
    silence = NBest(plain[:1])
    assert reader.rank(reader.rank([plain, silence], options()), options(weight=0.0)) == [
        plain,
        silence,
    ]


def test_what_fails_after_fusion_gives_the_n_grams_order(
    reader: LLM, monkeypatch: pytest.MonkeyPatch
):
    def fails(*_: object, **__: object) -> list[TokenScore]:
        raise LanguageModelError("the model failed")

    monkeypatch.setattr(large_model, "score_texts", fails)
    fused = [
        Hypothesis("a c d", -1.0, -12.0, -5.0, llm_score=7.0),
        Hypothesis("a b", -8.0, -10.0, -4.0, llm_score=-3.0),
    ]
    (found,) = reader.rank([NBest(fused)], options(mode="fusion"))
    assert scores(found) == pytest.approx({"a b": -5 - 8 + 0.5, "a c d": -6 - 10 + 0.75})
    assert (found.texts, found.degraded) == (
        ["a b", "a c d"],
        "without the large model: the model failed",
    )


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    root = tmp_path_factory.mktemp("ngram")
    (root / "text.txt").write_text(
        "how are you\nhow are you today\nhow were you\nwho are you\nhow far are you\n" * 3
    )
    LanguageModel.build([root / "text.txt"], 2, root / "lm")
    return Decoder.from_dir(root / "lm", {"nbest": 20, "lattice_beam": 30.0, "acoustic_scale": 0.5})


@pytest.fixture(scope="module")
def spoken(decoder: Decoder) -> list[np.ndarray]:
    from cortext.text.lexicon import Lexicon

    lexicon = Lexicon.read(decoder.lm_dir / "lexicon.txt")
    return [fake_log_probs("how are you today", 1.5, seed, "release", lexicon) for seed in range(3)]


@pytest.mark.parametrize("mode", ["rescore", "fusion"])
def test_a_decoder_with_a_weight_of_nothing_is_one_without_a_model(
    decoder: Decoder, spoken: list[np.ndarray], tiny: LLM, mode: str
):
    nothing = decoder.with_options(llm={"weight": 0.0, "mode": mode})
    beside = nothing.with_llm(tiny)
    assert beside.decode_batch(spoken, "release", context="water") == decoder.decode_batch(
        spoken, "release"
    )


@pytest.mark.parametrize("form", ["interpolate", "add"])
def test_a_decoders_sentences_are_ranked_by_the_formula(
    decoder: Decoder, spoken: list[np.ndarray], tiny: LLM, form: str
):
    plain = decoder.decode_batch(spoken, "release")
    beside = decoder.with_options(llm={"weight": 0.6, "form": form}).with_llm(tiny)
    steps: list[tuple[int, int]] = []
    found = beside.decode_batch(
        spoken, "release", progress=lambda *step: steps.append(step), context="water"
    )
    assert steps == [(1, 6), (2, 6), (3, 6), (6, 6)]
    changes = 0
    for before, after in zip(plain, found, strict=True):
        assert len(before) > 3
        said = dict(zip(before.texts, score_texts(tiny.lm, before.texts, "water"), strict=True))
        expected = {
            h.text: h.score + 0.6 * (said[h.text].log_prob - h.lm_score * (form == "interpolate"))
            for h in before
        }
        assert scores(after) == pytest.approx(expected, rel=1e-4)
        assert after.texts == sorted(expected, key=lambda text: -expected[text])
        changes += before.texts != after.texts
    assert changes
    assert found[0] == beside.decode(spoken[0], "release", context="water")
    session = beside.stream("release", context="water")
    session.step(spoken[1])
    assert session.finish().texts == found[1].texts
