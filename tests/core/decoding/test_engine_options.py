"""Options that change between utterances and in the middle of one take effect at once."""

from dataclasses import fields

import numpy as np
import pytest
from engine_cases import (
    TEXTS,
    WIDE,
    Grams,
    noise,
    posteriors,
    random_frames,
    spoken,
)
from generated_options import generated_options
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from search_oracle import Oracle, scaled

from cortext.config import load_config, save_config
from cortext.decoding import Decoder, DecoderOptions
from cortext.errors import DecodingError
from cortext.text.inventory import RELEASE

CHANGES = [
    dict(acoustic_scale=0.4),
    dict(lm_weight=2.5),
    dict(lm_weight=0.0),
    dict(word_score=-2.0),
    dict(sil_cost=1.5),
    dict(sil_required=True),
    dict(unk_score=-1.0),
    dict(blank_penalty=1.0),
    dict(label_priors={"BLANK": 0.5, "SIL": 0.1}),
    dict(label_priors={"BLANK": 0.5}, prior_weight=0.3),
    dict(blank_skip=0.9),
    dict(beam=3.0),
    dict(word_beam=0.0),
    dict(max_active=4, min_active=1),
    dict(min_active=200),
    dict(lattice_beam=1.0),
    dict(max_arcs=10),
    dict(nbest=2),
    dict(recombine="max"),
]
IN_OTHER_TESTS = {"history_words", "llm"}
"""`history_words` cannot change within an utterance; see test_engine_hook.py and llm/ for both."""


def test_no_option_is_left_out_of_the_changes():
    """An option that the search never reads would pass all other tests."""
    changed = {name for changes in CHANGES for name in changes}
    assert changed | IN_OTHER_TESTS == {option.name for option in fields(DecoderOptions)}
    assert not changed & IN_OTHER_TESTS


@pytest.fixture(scope="module")
def decoder(sentence_lm):
    return Decoder.from_dir(sentence_lm, dict(nbest=20))


def heard(stream, *parts):
    for part in parts:
        stream.step(part)
    return stream.finish()


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_options_changed_before_the_first_frame_are_as_if_given_at_the_start(
    decoder, sentence_lm, changes
):
    log_probs_PV = posteriors(TEXTS[1], 2.0)
    fresh = Decoder.from_dir(sentence_lm, decoder.options.changed(changes)).decode(
        log_probs_PV, RELEASE
    )
    stream = decoder.stream(RELEASE)
    stream.set_options(**changes)
    assert stream.options == decoder.options.changed(changes)
    assert heard(stream, log_probs_PV) == fresh
    assert decoder.with_options(**changes).decode(log_probs_PV, RELEASE) == fresh
    assert decoder.decode(log_probs_PV, RELEASE) == Decoder.from_dir(
        sentence_lm, decoder.options
    ).decode(log_probs_PV, RELEASE)


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_each_option_changes_something(decoder, changes):
    """Otherwise the test above could not fail."""
    inputs = [posteriors(text, 2.5, seed) for seed, text in enumerate(TEXTS)]
    inputs += [noise(30, 1.0), posteriors("we went there", 0.1, strength=12.0)]
    if "unk_score" in changes:
        decoder = decoder.with_options()
        decoder.add_words({"zed": [("W", "IY")]})
    changed = found(decoder.with_options(**changes), inputs)
    for name in changes:
        others = {other: value for other, value in changes.items() if other != name}
        assert found(decoder.with_options(**others), inputs) != changed, name


def found(decoder, inputs):
    return [decoder.decode(log_probs_PV, RELEASE) for log_probs_PV in inputs]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_options_changed_there_and_back_between_frames_change_nothing(decoder, changes):
    log_probs_PV = posteriors(TEXTS[0], 1.5)
    stream = decoder.stream(RELEASE)
    stream.step(log_probs_PV[:9])
    stream.set_options(**changes)
    stream.set_options(**{name: getattr(decoder.options, name) for name in changes})
    found, plain = heard(stream, log_probs_PV[9:]), decoder.decode(log_probs_PV, RELEASE)
    assert found.texts == plain.texts
    assert [each.score for each in found] == [each.score for each in plain]


ENTRIES = [("a", "AA", 1.0), ("b", "B", 0.3), ("c", "AA B", 1.0)]
GRAMS = Grams.random(3, seed=9)
# What the search dropped while SIL was required cannot come back.
options_in_force = generated_options(leave_out=("sil_required",))


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(
    before=options_in_force,
    after=options_in_force,
    cut=st.integers(0, 5),
    seed=st.integers(0, 2**32),
)
def test_frames_count_by_the_options_in_force_and_sentences_by_the_last(
    lm_of, before, after, cut, seed
):
    """With frames scaled by the options of their time, it is an offline case of the last ones."""
    decoder = Decoder.from_dir(lm_of(ENTRIES, GRAMS), WIDE | before)
    log_probs_PV = random_frames(np.random.default_rng(seed), 5, 1.0)
    stream = decoder.stream(RELEASE)
    stream.step(log_probs_PV[:cut])
    stream.set_options(**after)
    found = heard(stream, log_probs_PV[cut:])

    scores_PV = np.concatenate(
        [
            scaled(part_PV, DecoderOptions.of(WIDE | options))
            for part_PV, options in ((log_probs_PV[:cut], before), (log_probs_PV[cut:], after))
        ]
    )
    oracle = Oracle(ENTRIES, GRAMS, DecoderOptions.of(WIDE | after))
    expected = {text: each.score for text, each in oracle.sentences_of_scores(scores_PV).items()}
    assert {each.text: each.score for each in found} == pytest.approx(expected, abs=1e-4)


def test_a_shorter_list_is_given_from_the_moment_on_that_it_is_asked_for(decoder):
    log_probs_PV = posteriors(TEXTS[1], 2.5)
    stream = decoder.stream(RELEASE)
    stream.step(log_probs_PV)
    stream.set_options(nbest=3)
    assert list(stream.finish()) == list(decoder.decode(log_probs_PV, RELEASE))[:3]


def test_a_narrower_beam_shows_in_the_live_hypotheses_at_the_next_frame(decoder):
    live = []
    stream = decoder.with_options(history_words=4).stream(
        RELEASE, hook=lambda batch: live.append(len(batch.ids))
    )
    log_probs_PV = noise(30, 0.5)
    stream.step(log_probs_PV[:20])
    stream.set_options(max_active=3, min_active=1)
    stream.step(log_probs_PV[20:21])
    assert live[19] > 3 >= live[20]
    stream.set_options(max_active=500, beam=18.0)
    stream.step(log_probs_PV[21:])
    assert live[-1] > 3


def test_a_change_in_mid_utterance_matters(decoder):
    """From the second sentence on words cost so much that none is begun."""
    log_probs_PV = np.concatenate([posteriors("go there", 0.3), posteriors("are you there", 0.3)])
    first = len(posteriors("go there", 0.3))
    stream = decoder.stream(RELEASE)
    stream.step(log_probs_PV[:first])
    stream.set_options(word_score=-200.0)
    text = heard(stream, log_probs_PV[first:])[0].text
    assert decoder.decode(log_probs_PV, RELEASE)[0].text == "go there are you there"
    assert text == "go there"


@pytest.mark.parametrize("recombine", ["logadd", "max"])
def test_silence_required_after_words_were_said_without_it_loses_no_sentence(lm_of, recombine):
    """No sentence of the list fits into the two frames with SIL between its words."""
    decoder = Decoder.from_dir(
        lm_of([("a", "AA", 1.0), ("b", "B", 1.0)], GRAMS),
        dict(lattice_beam=0.0, recombine=recombine),
    )
    stream = decoder.stream(RELEASE)
    assert stream.step(spoken("AA B", 20.0)).text == "a b"
    stream.set_options(sil_required=True)
    assert [each.text for each in stream.finish()] == ["a b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(beem=3), "unknown decoder option 'beem'; did you mean 'beam'"),
        (dict(beam=-1.0), "beam is -1.0; it must be at least 0"),
        (dict(nbest=0), "nbest is 0; it must be at least 1"),
        (dict(acoustic_scale=float("inf")), "acoustic_scale is inf; a finite float is needed"),
        (dict(label_priors={"XX": 0.5}), "label_priors names an unknown token 'XX'"),
        (
            dict(history_words=3),
            "history_words cannot change during an utterance; open a new stream",
        ),
    ],
)
def test_options_that_cannot_be_change_nothing(decoder, changes, message):
    log_probs_PV = posteriors(TEXTS[0], 1.0)
    stream = decoder.stream(RELEASE)
    stream.step(log_probs_PV[:10])
    with pytest.raises(DecodingError, match=message) as caught:
        stream.set_options(**changes)
    assert "\n" not in str(caught.value)
    assert stream.options == decoder.options
    assert heard(stream, log_probs_PV[10:]) == decoder.decode(log_probs_PV, RELEASE)


@pytest.mark.parametrize("name", ["nbest", "max_active", "min_active", "max_arcs", "history_words"])
def test_whole_numbers_may_be_given_in_any_form_and_size(decoder, name):
    """10.0 and NumPy's 10 count as 10.

    A number beyond what the engine counts to is refused in one line.
    """
    log_probs_PV = posteriors("go there")
    plain = decoder.with_options(**{name: 10}).decode(log_probs_PV, RELEASE)
    assert decoder.with_options(**{name: 10.0}).decode(log_probs_PV, RELEASE) == plain
    assert decoder.with_options(**{name: np.int64(10)}).decode(log_probs_PV, RELEASE) == plain
    with pytest.raises(DecodingError, match=f"^{name} is 10+; a finite int is needed$"):
        decoder.with_options(**{name: 10**400})
    with pytest.raises(DecodingError, match=f"^{name} is 1000000000000; it must be"):
        decoder.with_options(**{name: 10**12})


@pytest.mark.parametrize(
    "changes",
    [
        dict(word_score=1e39),
        dict(word_score=-1e39),
        dict(sil_cost=1e39),
        dict(sil_cost=-1e39),
        dict(lm_weight=1e300),
        dict(acoustic_scale=1e300),
        dict(acoustic_scale=1e-30),
        dict(unk_score=1e300),
        dict(beam=1e308, lattice_beam=1e308),
        dict(prior_weight=1e300, label_priors={"AA": 0.5}),
        dict(blank_penalty=1e300),
        dict(lm_weight=-3.0),
        dict(sil_cost=-5.0),
        dict(word_score=50.0),
        dict(beam=0.0, lattice_beam=0.0, nbest=1, max_active=1, min_active=1, max_arcs=1),
    ],
    ids=str,
)
def test_extreme_options_give_sentences_or_are_refused_by_name(decoder, changes):
    for log_probs_PV in (posteriors(TEXTS[0]), noise(40, 1.0)):
        refused = refusal(decoder, changes)
        if refused:
            assert "\n" not in refused
            assert any(
                refused.startswith((f"{name} is ", f"the label prior of {name}"))
                for name in changes
            )
        else:
            nbest = decoder.with_options(**changes).decode(log_probs_PV, RELEASE)
            assert len(nbest) >= 1
            assert np.isfinite([each.score for each in nbest]).all()


def refusal(decoder, changes):
    """What is said of options that cannot be, or nothing."""
    try:
        decoder.with_options(**changes)
    except DecodingError as error:
        return str(error)
    return ""


def test_options_with_label_priors_are_read_from_yaml_and_written_back(tmp_path):
    (tmp_path / "options.yaml").write_text("label_priors: {SIL: 0.1, BLANK: 0.5}\nbeam: 12\n")
    options = load_config(tmp_path / "options.yaml", DecoderOptions)
    assert options == DecoderOptions(label_priors={"BLANK": 0.5, "SIL": 0.1}, beam=12)
    save_config(options, tmp_path / "again.yaml")
    assert load_config(tmp_path / "again.yaml", DecoderOptions) == options
