"""The published parameters, the candidates that they make, and the text in which candidates are
sent.
"""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cortext.cli import app
from cortext.decoding import DecoderOptions, Hypothesis
from cortext.decoding.options import LLMOptions
from cortext.errors import ConfigError
from cortext_live.lm_server.published_options import (
    PublishedOptions,
    ScoredSentence,
    changed_params,
    scoring,
)
from cortext_live.lm_server.published_protocol import CONTEXT_KEY, PublishedStreams
from cortext_lm.llm.augment import augmented

PUBLISHED = {
    "max_active": 7000, "min_active": 200, "beam": 17.0, "lattice_beam": 8.0, "acoustic_scale": 0.325,
    "ctc_blank_skip_threshold": 1.0, "length_penalty": 0.0, "nbest": 100, "blank_penalty": 90.0, "alpha": 0.55,
    "do_opt": 0, "rescore": 0, "top_candidates_to_augment": 20, "score_penalty_percent": 0.01,
}  # fmt: skip
"""As the release's README starts its server."""


def test_the_preset_is_the_published_one():
    assert PublishedOptions().announced() == PUBLISHED


def test_every_parameter_of_the_search_reaches_it():
    params = PublishedOptions(
        max_active=11, min_active=3, beam=12.5, lattice_beam=6.0, acoustic_scale=0.5, ctc_blank_skip_threshold=0.9,
        length_penalty=0.25, nbest=7, blank_penalty=4.0,
    )  # fmt: skip
    options = params.options(DecoderOptions(lm_weight=2.0, sil_cost=0.5))
    assert options == DecoderOptions(
        max_active=11, min_active=3, beam=12.5, lattice_beam=12.0, acoustic_scale=0.5, blank_skip=0.9,
        word_score=-0.25, nbest=7, blank_penalty=4.0, lm_weight=2.0, sil_cost=0.5,
    )  # fmt: skip


def test_without_a_preset_the_searchs_own_options_hold():
    options = DecoderOptions(acoustic_scale=0.8, beam=11.0, word_score=0.5, lm_weight=1.5)
    params = PublishedOptions.of(options)
    assert params.options(options) == options
    assert params.top_candidates_to_augment == 0


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("beam", "wide"), ("beam", "nan"), ("beam", "-1"), ("nbest", "2.5"), ("nbest", "0"), ("nbest", "1001"),
        ("max_active", ""),
        ("alpha", "1.5"), ("do_opt", "maybe"), ("blank_penalty", "0"), ("acoustic_scale", "0"),
        ("acoustic_scale", "inf"), ("top_candidates_to_augment", "-1"), ("score_penalty_percent", "1e400"),
        ("specific_word_bias", "1"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_refused_by_name_and_the_others_hold(name, text):
    params, refused = PublishedOptions().updated(
        {"lattice_beam": "5", name: text, "rescore": "True"}
    )
    assert list(refused) == [name]
    assert params == dataclasses.replace(PublishedOptions(), lattice_beam=5.0, rescore=True)


def test_what_the_command_line_cannot_use_is_an_error():
    assert changed_params(PublishedOptions(), ["beam=9", "do_opt=1"]).beam == 9
    with pytest.raises(ConfigError, match=r"beem: unknown parameter; did you mean 'beam'\?"):
        changed_params(PublishedOptions(), ["beem=9"])
    with pytest.raises(ConfigError, match="no name=value"):
        changed_params(PublishedOptions(), ["beam"])


OPTIONS = DecoderOptions(acoustic_scale=0.5, lm_weight=1.0)


def test_two_candidates_exchange_the_words_in_which_they_differ():
    found = [
        Hypothesis("i see you", -9.0, -10.0, -4.0),
        Hypothesis("a sea you", -14.0, -12.0, -8.0),
    ]
    candidates = augmented(found, OPTIONS, top=20, penalty_fraction=0.01)
    # each new one: acoustic -11 less 1 %, n-gram -6 less 1 %; total = 0.5 acoustic + ngram
    made = {
        (round(c.acoustic_score, 9), round(c.lm_score, 9), round(c.score, 9))
        for c in candidates[1:3]
    }
    assert [candidate.text for candidate in candidates] == [
        "i see you",
        "a see you",
        "i sea you",
        "a sea you",
    ]
    assert made == {(-11.11, -6.06, -11.615)}
    assert (candidates[0], candidates[3]) == tuple(found)


def test_candidates_of_other_lengths_and_beyond_the_top_are_left_alone():
    found = [
        Hypothesis(text, -float(n), -1.0, -1.0)
        for n, text in enumerate(("a b", "a b c", "a d", "e b"))
    ]
    assert augmented(found, OPTIONS, top=2, penalty_fraction=0.0) == found
    assert augmented(found, OPTIONS, top=0, penalty_fraction=0.0) == found
    assert {c.text for c in augmented(found, OPTIONS, 20, 0.0)} == {
        "a b",
        "a b c",
        "a d",
        "e b",
        "e d",
    }


LARGE = LLMOptions(mode="fusion", weight=0.3, token_penalty=0.7, augment=4, augment_penalty=0.2)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {"weight": 0.0}),
        ({"do_opt": True}, {}),
        ({"do_opt": True, "alpha": 0.9}, {"weight": 0.9}),
        ({"do_opt": True, "alpha": 0.0}, {"weight": 0.0}),
        ({"do_opt": True, "length_penalty": 0.25}, {"token_penalty": 0.25}),
        ({"do_opt": True, "top_candidates_to_augment": 20, "score_penalty_percent": 0.05},
         {"augment": 20, "augment_penalty": 0.05}),
        ({"do_opt": True, "top_candidates_to_augment": 20, "nbest": 1}, {"augment": 0}),
    ],
)  # fmt: skip
def test_the_parameters_of_a_large_model_change_what_they_name(changes, expected):
    options = DecoderOptions(llm=LARGE, word_score=0.5)
    params = dataclasses.replace(PublishedOptions.of(options), **changes)
    assert params.llm(options) == dataclasses.replace(LARGE, **expected)


def test_a_weight_that_is_added_is_announced_as_its_share_and_left_alone():
    options = DecoderOptions(lm_weight=1.5, llm={"form": "add", "weight": 4.5})
    params = dataclasses.replace(PublishedOptions.of(options), do_opt=True)
    assert params.alpha == 0.75  # 4.5 of 1.5 + 4.5
    assert params.llm(options) == options.llm
    changed = dataclasses.replace(params, alpha=0.2).llm(options)
    assert (changed.form, changed.weight) == ("interpolate", 0.2)


def test_the_preset_with_a_large_model_is_the_published_sum():
    options = PublishedOptions(do_opt=True).llm(DecoderOptions())
    assert options.shares(1.0) == pytest.approx((0.45, 0.55))
    assert (options.token_penalty, options.augment, options.augment_penalty) == (0.0, 20, 0.01)


def test_scores_that_are_equal_keep_their_order_for_a_client_that_sorts():
    candidates = [ScoredSentence(text, -1.0, -2.0, 0.0, -3.0) for text in ("to", "too", "two")]
    totals = [float(part) for part in scoring(candidates).split(";")[4::5]]
    assert list(np.argsort(totals)[::-1]) == [0, 1, 2]
    assert totals == pytest.approx([-3.0] * 3, abs=1e-12)


def test_a_sentence_holds_no_separator():
    assert scoring([ScoredSentence("a;b", -1.5, -2.0, 0.0, -3.25)]) == "a,b;-1.5;-2.0;0.0;-3.25"


def test_an_impossible_score_can_still_be_read():
    parts = scoring([ScoredSentence("", -np.inf, -2.0, 0.0, -np.inf)] * 2).split(";")
    assert [float(part) for part in parts[4::5]] == [-np.inf, -np.inf]


def test_the_guide_names_what_there_is():
    guide = (Path(__file__).resolve().parents[3] / "docs/reference/redis-messages.md").read_text()
    help_text = CliRunner().invoke(app, ["lm-server", "--help"]).stdout
    rows = [line.split("|") for line in guide.splitlines() if line.startswith("| `--")]
    theirs = {flag for row in rows for flag in re.findall(r"--(\w+)", row[1])}
    ours = {flag for row in rows for flag in re.findall(r"--[a-z][a-z-]+", row[2])}
    assert len(rows) > 10
    assert {flag for flag in ours if flag not in help_text} == set()
    assert {field.name for field in dataclasses.fields(PublishedOptions)} <= theirs
    for name in [*PublishedStreams().all(), CONTEXT_KEY]:
        assert f"`{name}`" in guide
