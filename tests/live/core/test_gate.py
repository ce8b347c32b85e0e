from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from speech_gate import CARD, N_TOKENS, speech_gate

from cortext.config import from_mapping, to_mapping
from cortext.data.conventions import RELEASE_CONVENTIONS
from cortext.errors import ConfigError
from cortext.models.card import Conventional, Smoothing
from cortext_live.core.acoustic_stream import EndpointOptions, PipelineOptions
from cortext_live.core.gate import GateCard, signals
from cortext_live.core.gate_fit import binomial_high, openings, poisson_high, train
from cortext_live.core.pipeline import Pipeline


class TokenStepper(Conventional):
    """A model that is sure of the token whose number is feature 0 of the newest bin."""

    session, sessions, n_features, patch_size, patch_stride = "day", ("day",), 2, 14, 4
    smoothing, conventions = Smoothing(smooth_data=False), RELEASE_CONVENTIONS

    def start(self):
        pass

    def prepare(self, bins_KC):
        pass

    def use(self, session):
        pass

    def step(self, bins_SC):
        logits_V = np.zeros(N_TOKENS, dtype=np.float32)
        logits_V[int(bins_SC[-1, 0])] = 12
        return logits_V


def bins(n_idle: int, n_speech: int, n_after: int) -> np.ndarray:
    x_TC = np.zeros((n_idle + n_speech + n_after, 2), dtype=np.float32)
    x_TC[n_idle : n_idle + n_speech, 0] = 5
    x_TC[:, 1] = np.arange(len(x_TC))
    return x_TC


def gated(chunk: int, x_TC: np.ndarray) -> tuple[np.ndarray, list[int], str | None]:
    """Return the first bins of the utterance, its tokens by frame, and its end."""
    options = PipelineOptions(endpoint=EndpointOptions(silence_ms=60_000))
    pipeline = Pipeline(None, None, options=options, stepper=TokenStepper(), gate=speech_gate())
    begun_TC, tokens, reason = x_TC[:0], [], None
    for first in range(0, len(x_TC), chunk):
        part_TC = x_TC[first : first + chunk]
        if pipeline.is_idle and reason is None:
            part_TC = pipeline.listen(part_TC)
            if len(part_TC) and not len(begun_TC):
                begun_TC = part_TC
        if not pipeline.is_idle and reason is None:
            update = pipeline.push(part_TC)
            tokens += update.logits_PV.argmax(axis=1).tolist()
            reason = update.reason
    return begun_TC, tokens, reason


@pytest.mark.parametrize("chunk", [1, 3, 4, 50, 10_000])
def test_an_utterance_begins_with_the_bins_that_were_kept_in_any_chunking(chunk):
    # Half of the last 12 frames must be speech. Frame p ends with bin 4 p + 13 and reads its token
    # there: speech from bin 400 is in frames 97 and later, and frame 102 is the sixth.
    begun_TC, tokens, reason = gated(chunk, bins(400, 200, 600))
    assert begun_TC[0, 1] == 4 * 102 + 13 - 119  # 2.4 s are kept: 120 bins with the newest one
    whole = gated(10_000, bins(400, 200, 600))
    assert tokens == whole[1]
    # Kept bins begin 98 bins before speech, whose first frame is then number 22.
    assert tokens[:22] == [0] * 22
    assert tokens[22] == 5
    assert reason == "idle"


def test_the_gate_stays_shut_while_nobody_speaks_and_the_scan_restarts():
    pipeline = Pipeline(None, None, stepper=TokenStepper(), gate=speech_gate())
    assert len(pipeline.listen(bins(5000, 0, 0))) == 0
    assert pipeline.is_idle
    begun_TC = pipeline.listen(bins(0, 100, 0))
    assert len(begun_TC) >= 120
    assert not pipeline.is_idle


def test_signals_are_probabilities_bounded_logs_and_what_has_moved():
    before_V = np.log(np.array([0.5, 0.5, 1e-9], dtype=np.float32))
    now_V = np.log(np.array([0.1, 0.9, 1e-9], dtype=np.float32))
    expected = [0.1, 0.9, 0, np.log(0.1), np.log(0.9), -8, 0.4]
    np.testing.assert_allclose(signals(now_V, before_V), expected, atol=1e-6)


def test_openings_are_counted_once_until_the_gate_has_been_shut():
    low, high = [-9.0], [9.0]
    assert openings(np.array(low * 30 + high * 3 + low * 5 + high * 3), 2.0, 80.0) == 1
    assert openings(np.array(low * 30 + high * 3 + low * 19 + high * 3), 2.0, 80.0) == 2


def test_bounds_agree_with_published_tables():
    assert poisson_high(0) == pytest.approx(2.996, abs=1e-3)
    assert poisson_high(4) == pytest.approx(9.154, abs=1e-3)
    assert binomial_high(0, 500) == pytest.approx(1 - 0.05 ** (1 / 500), abs=1e-6)
    assert binomial_high(5, 5) == 1


def test_training_separates_what_can_be_separated_and_repeats_itself():
    generator = np.random.default_rng(0)
    x_PS = generator.standard_normal((2000, 10)).astype(np.float32)
    y_P = (x_PS[:, 3] > 0).astype(np.float32)
    one, same = train(x_PS, y_P), train(x_PS, y_P)
    assert (one.hidden_SD == same.hidden_SD).all()
    right = [(one.log_odds(x_S) > 0) == (y > 0.5) for x_S, y in zip(x_PS, y_P, strict=True)]
    assert np.mean(right) > 0.9


def test_figures_are_those_of_the_nearest_lower_threshold():
    assert CARD.figures(0.59) == CARD.measured[0]
    assert CARD.figures(0.6) == CARD.measured[1]
    assert CARD.figures(0.1) is None


@pytest.mark.parametrize("threshold", [0.0, 1.0, 2.0, -0.1])
def test_a_threshold_lies_between_0_and_1(threshold):
    with pytest.raises(ConfigError, match="threshold"):
        speech_gate(threshold)
    with pytest.raises(ConfigError, match="threshold"):
        replace(CARD, threshold=threshold)


WRITTEN = """\
# The idle gate that cortext has fitted to this run, and what it is worth.
format_version: 1
weights: null
threshold: 0.5
measured:
- threshold: 0.2
  false_per_hour: 3.0
  false_high: 4.0
  missed: 0.0
  missed_high: 0.01
- threshold: 0.6
  false_per_hour: 1.0
  false_high: 2.0
  missed: 0.1
  missed_high: 0.2
idle_hours: 1.0
beginnings: 10
data: sentences
idle: null
created: '2026-01-01T00:00:00+00:00'
version: '0'
"""


@pytest.mark.parametrize(
    ("measured", "what"),
    [
        ([{"threshold": 1.5}], "threshold is 1.5"),
        ([{"false_per_hour": float("nan")}], "false_per_hour is nan"),
        ([{"false_high": float("inf")}], "upper bound inf"),
        ([{"false_high": None}], "one is a number"),
        ([{"false_per_hour": 5.0}], "false_per_hour is 5.0 with upper bound 4.0"),
        ([{"missed": -0.1}], "missed is -0.1"),
        ([{"missed_high": 1.2}], "upper bound 1.2"),
        ([{"missed_high": "much"}], "missed_high"),
        ([{"threshold": 0.6}, {"threshold": 0.2}], "do not rise"),
        ([{}, {}], "do not rise"),
    ],
)
def test_figures_that_no_fit_writes_are_refused_in_one_line(measured, what):
    card = to_mapping(CARD)
    card["measured"] = [card["measured"][0] | each for each in measured]
    with pytest.raises(ConfigError, match=what) as refused:
        from_mapping(GateCard, card, where=Path("gate.yaml"))
    assert "\n" not in str(refused.value)


def test_a_card_is_written_as_by_hand_and_read_again(tmp_path):
    CARD.write(tmp_path)
    assert (tmp_path / "gate.yaml").read_text() == WRITTEN
    assert GateCard.read(tmp_path) == CARD


def test_a_pipeline_without_a_gate_is_never_idle():
    pipeline = Pipeline(None, None, stepper=TokenStepper())
    assert not pipeline.is_idle
    with pytest.raises(ConfigError, match="gate"):
        pipeline.listen(bins(1, 0, 0))
