import math
import resource

import numpy as np
import pytest
import torch

from cortext.data.conventions import RELEASE_CONVENTIONS
from cortext.data.scaling import RollingZScore
from cortext.decoding import Decoder
from cortext.decoding.ngram import LanguageModel
from cortext.errors import ConfigError, DataError, DecodingError, LiveError, RunError
from cortext.models import AcousticModel, build_model, model_config
from cortext.models.card import Conventional, Smoothing
from cortext.text.inventory import BLANK, RELEASE, SIL
from cortext_live.core.acoustic_stream import (
    AcousticStream,
    Endpoint,
    EndpointOptions,
    PipelineOptions,
)
from cortext_live.core.pipeline import Pipeline
from cortext_live.core.statistics import StageTimes
from cortext_live.steps.stepping import TorchStepper

N_FEATURES = 8
DAYS = ("t15.2023.08.11", "t15.2023.08.13")
CHUNKINGS = {
    "one by one": [1],
    "frames": [4],
    "odd": [3, 0, 11, 1],
    "seconds": [50],
    "whole": [10**6],
}


class ScriptedStepper(Conventional):
    """A model that says what the newest bin tells it.

    Feature 0 is the number of a token, which it is sure of.
    """

    session, sessions, n_features, patch_size, patch_stride = DAYS[1], DAYS, N_FEATURES, 14, 4
    smoothing, conventions = Smoothing(smooth_data=False), RELEASE_CONVENTIONS

    def start(self):
        self.n_steps = 0

    def prepare(self, bins_KC):
        pass

    def step(self, bins_SC):
        self.n_steps += 1
        logits_V = np.zeros(len(RELEASE), dtype=np.float32)
        logits_V[int(bins_SC[-1, 0])] = 12.0
        return logits_V


def script(tokens):
    """Bins [T, C] for which the scripted model's frames are these tokens, 80 ms each."""
    ids = RELEASE.ids(tokens).astype(np.float32)
    x_TC = np.zeros((14 + 4 * (len(ids) - 1), N_FEATURES), dtype=np.float32)
    x_TC[13::4, 0] = ids
    return x_TC


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pipeline")
    (root / "lm.txt").write_text("i see you\nyou see me\nwe see you\nme and you\n")
    LanguageModel.build([root / "lm.txt"], 2, root / "lm")
    return Decoder.from_dir(root / "lm")


def random_model(kind="gru", patch_size=14, patch_stride=4, subset=None, smooth=True):
    torch.manual_seed(3)
    units = ["n_units"] if kind == "gru" else ["noise_units", "clean_units", "noisy_units"]
    sizes = dict.fromkeys(units, 8)
    config = model_config(
        {"kind": kind, "patch_size": patch_size, "patch_stride": patch_stride} | sizes
    )
    n_used = N_FEATURES if subset is None else len(subset)
    network = build_model(config, n_features=n_used, n_days=len(DAYS), n_classes=len(RELEASE))
    with torch.no_grad():
        network.day_weight += torch.randn_like(network.day_weight) * 0.3  # days that differ
        if kind == "gru":
            network.out.weight *= 20  # frames that are sure of something
    return AcousticModel(
        network,
        sessions=DAYS,
        n_features=N_FEATURES,
        inventory=RELEASE,
        smoothing=Smoothing(smooth_data=smooth),
        feature_subset=subset,
    )


@pytest.fixture(scope="module")
def model():
    return random_model()


@pytest.fixture(scope="module")
def x_TC():
    return np.random.default_rng(0).normal(size=(203, N_FEATURES)).astype(np.float32)


def feed(pipeline, x_TC, sizes=(4,)):
    """All updates of an utterance fed in chunks of these sizes, again and again."""
    updates, first, turn = [], 0, 0
    while first < len(x_TC):
        size = sizes[turn % len(sizes)]
        updates.append(pipeline.push(x_TC[first : first + size]))
        first, turn = first + size, turn + 1
    return updates


def logits_of(updates):
    return np.concatenate([update.logits_PV for update in updates])


@pytest.mark.parametrize("sizes", CHUNKINGS.values(), ids=CHUNKINGS)
def test_any_chunking_gives_the_same_sentences_times_and_scores(sizes, model, decoder, x_TC):
    pipeline = Pipeline(model, decoder)
    expected = feed(pipeline, x_TC)
    expected_nbest = pipeline.finish()
    updates = feed(pipeline, x_TC, sizes)
    assert logits_of(updates).tobytes() == logits_of(expected).tobytes()
    assert updates[-1].partial == expected[-1].partial
    assert pipeline.finish() == expected_nbest


@pytest.mark.parametrize(
    "make",
    [
        lambda: random_model(),
        lambda: random_model("triple_gru"),
        lambda: random_model(patch_size=0),
        lambda: random_model(patch_size=3, patch_stride=5),
        lambda: random_model(subset=[0, 2, 5]),
        lambda: random_model(smooth=False),
    ],
    ids=["gru", "triple_gru", "single bins", "stride beyond patch", "subset", "unsmoothed"],
)
def test_logits_are_those_of_the_whole_trial_to_1e_5_and_the_text_is_the_same(make, decoder, x_TC):
    model = make()
    for day in DAYS:
        pipeline = Pipeline(model, decoder, day)
        logits_PV = logits_of(feed(pipeline, x_TC))
        np.testing.assert_allclose(logits_PV, model.logits(x_TC, day), atol=1e-5)
        offline = decoder.decode(model.log_probs(x_TC, day), RELEASE)
        assert pipeline.finish()[0].text == offline[0].text
    assert pipeline.session == DAYS[1]


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize(
    "model_of",
    [{}, {"kind": "triple_gru"}, {"patch_size": 3, "patch_stride": 5}, {"subset": [0, 2, 5]}],
    ids=str,
)
def test_chunks_of_any_size_give_the_same_bits(model_of, precision, x_TC):
    stepper = TorchStepper(random_model(**model_of), precision=precision)
    pipeline = Pipeline(None, None, options=PipelineOptions(normalise="rolling"), stepper=stepper)
    mean_C, std_C = np.zeros(N_FEATURES), np.ones(N_FEATURES)
    pipeline.start_block(mean_C, std_C)
    x_TC = x_TC[:101]
    expected = logits_of(feed(pipeline, x_TC, [10**6]))
    rng = np.random.default_rng(0)
    for largest in (1, 3, 12):  # one by one; less than a frame's bins; up to several frames
        pipeline.start_block(mean_C, std_C)
        updates = feed(pipeline, x_TC, rng.integers(0, largest, size=50, endpoint=True).tolist())
        assert logits_of(updates).tobytes() == expected.tobytes()


class Prepared(ScriptedStepper):
    """A scripted stepper that keeps what it is told."""

    def __init__(self):
        self.told = []

    def prepare(self, bins_KC):
        self.told.append(("prepare", bins_KC.copy()))

    def step(self, bins_SC):
        self.told.append(("step", bins_SC.copy()))
        return super().step(bins_SC)


def test_a_step_is_prepared_with_the_first_bins_of_its_patch(x_TC):
    stepper = Prepared()
    stepper.smoothing = Smoothing()
    feed(Pipeline(None, None, stepper=stepper), np.abs(x_TC[:60]) % 1, [1])
    steps = [number for number, (what, _) in enumerate(stepper.told) if what == "step"]
    # Each after three bins that were used ahead.
    assert np.diff(steps).tolist() == [4] * (len(steps) - 1)
    for number in steps:
        bins_SC = stepper.told[number][1]
        for before in (1, 2, 3):
            what, bins_KC = stepper.told[number - before]
            assert (what, len(bins_KC)) == ("prepare", 14 - before)
            np.testing.assert_array_equal(bins_KC, bins_SC[: 14 - before])


def test_nothing_is_prepared_while_somebody_waits_for_words():
    stepper = Prepared()
    pipeline = Pipeline(None, None, stepper=stepper)
    pipeline.push(np.zeros((14 + 4 + 3, N_FEATURES), dtype=np.float32))
    assert [what for what, _ in stepper.told] == ["step", "step"]
    pipeline.push(np.zeros((1, N_FEATURES), dtype=np.float32))
    pipeline.push(np.zeros((2, N_FEATURES), dtype=np.float32))
    assert [what for what, _ in stepper.told[2:]] == ["step", "prepare"]


@pytest.mark.parametrize("n_bins", [0, 1, 8, 21])
def test_too_few_bins_for_a_frame_end_in_an_empty_sentence(n_bins, model, decoder, x_TC):
    pipeline = Pipeline(model, decoder)
    update = pipeline.push(x_TC[:n_bins])
    assert update.logits_PV.shape == (0, 41)
    assert update.text == ""
    assert pipeline.finish().texts == [""]


def test_a_frame_comes_with_the_bin_that_completes_it(model, x_TC):
    pipeline = Pipeline(model, None)
    counts = [len(pipeline.push(x_TC[t : t + 1]).logits_PV) for t in range(40)]
    first = 14 + 8 - 1  # a patch, and the taps of the kernel but one
    assert [t for t, count in enumerate(counts) if count] == list(range(first, 40, 4))
    assert pipeline.look_ahead_ms == 80
    assert Pipeline(model, None, options=PipelineOptions(smoothing="causal")).look_ahead_ms == 0


def test_the_next_utterance_knows_nothing_of_the_last(model, decoder, x_TC):
    fresh, used = Pipeline(model, decoder), Pipeline(model, decoder)
    used.push(x_TC[:77])
    used.finish()
    used.push(x_TC[:33])
    used.reset()
    assert used.n_bins == 0
    assert logits_of(feed(used, x_TC)).tobytes() == logits_of(feed(fresh, x_TC)).tobytes()
    assert used.seconds == pytest.approx(203 * 0.02)
    assert used.finish() == fresh.finish()


BAD_FRAMES = {
    "width": (np.zeros((2, 7), dtype=np.float32), r"shape \[2, 7\]; \[bins, 8\] is needed"),
    "one axis": (np.zeros(8, dtype=np.float32), r"shape \[8\]"),
    "float64": (np.zeros((2, 8)), "dtype float64; float32 is needed"),
    "bytes": (b"\0" * 64, "frames are a bytes"),
    "NaN": (
        np.full((3, 8), np.nan, dtype=np.float32),
        "NaN, infinity or values beyond 1e[+]09, first in bin 0 of 3",
    ),
    "infinity": (
        np.array([[0.0] * 8, [0.0] * 8, [np.inf] * 8], dtype=np.float32),
        "first in bin 2 of 3",
    ),
    "overflow": (np.full((1, 8), 1e30, dtype=np.float32), "beyond"),
}


@pytest.mark.parametrize(("frames", "message"), BAD_FRAMES.values(), ids=BAD_FRAMES)
@pytest.mark.parametrize("normalise", ["none", "rolling"])
def test_bad_frames_are_refused_change_nothing_and_lose_nothing(
    normalise, frames, message, model, decoder, x_TC
):
    options = PipelineOptions(normalise=normalise)
    pipeline, undisturbed = (Pipeline(model, decoder, options=options) for _ in range(2))
    x_TC = x_TC[:67]
    updates = feed(pipeline, x_TC[:41])
    with pytest.raises(DataError, match=message):
        pipeline.push(frames)
    updates += feed(pipeline, x_TC[41:])
    assert logits_of(updates).tobytes() == logits_of(feed(undisturbed, x_TC)).tobytes()
    assert pipeline.finish() == undisturbed.finish()


def test_words_have_times_and_a_confidence(decoder):
    pipeline = Pipeline(None, decoder, stepper=ScriptedStepper())
    said = [BLANK, "AY", SIL, BLANK, "S", "IY", SIL, "Y", "UW", SIL, BLANK]
    assert pipeline.push(script(said)).text == "i see you"
    words = pipeline.finish()[0].words
    assert [word.word for word in words] == ["i", "see", "you"]
    assert [word.start_ms for word in words] == sorted(word.start_ms for word in words)
    assert words[1].start_ms == pytest.approx(4 * 80, abs=80)
    assert all(0.9 < word.confidence <= 1 for word in words)


@pytest.mark.parametrize("sizes", CHUNKINGS.values(), ids=CHUNKINGS)
def test_after_a_step_of_the_model_that_failed_the_utterance_goes_on_without_its_frame(
    sizes, decoder
):
    class Failing(ScriptedStepper):
        def step(self, bins_SC):
            if self.n_steps == 3:
                self.n_steps += 1
                raise LiveError("the model's process has ended")
            return super().step(bins_SC)

    pipeline = Pipeline(None, decoder, stepper=Failing())
    said = script(["AY", SIL, BLANK, BLANK, "S", "IY", SIL, "Y", "UW", SIL])
    refused = 0
    for first in range(0, len(said), sizes[0]):
        try:
            pipeline.push(said[first : first + sizes[0]])
        except LiveError:
            refused += 1
    pipeline.push(said[:0])
    assert refused == 1
    assert pipeline.n_bins == len(said)
    assert pipeline.finish()[0].text == "i see you"


def test_times_of_words_are_those_of_the_bins_whatever_a_frame_of_the_model_is(decoder):
    """A model of single bins gives a frame each 20 ms.

    The words of the script above come four times as early.
    """
    said = [BLANK, "AY", SIL, BLANK, "S", "IY", SIL, "Y", "UW", SIL, BLANK]
    pipeline = Pipeline(None, decoder, stepper=ScriptedStepper())
    pipeline.push(script(said))
    published = pipeline.finish()
    stepper = ScriptedStepper()
    stepper.patch_size = stepper.patch_stride = 1
    pipeline, bins_TC = (
        Pipeline(None, decoder, stepper=stepper),
        np.zeros((len(said), N_FEATURES), dtype=np.float32),
    )
    bins_TC[:, 0] = RELEASE.ids(said)
    pipeline.push(bins_TC)
    of_bins = pipeline.finish()
    assert of_bins.texts == published.texts
    assert of_bins[0].words[1].start_ms == pytest.approx(4 * 20, abs=20)
    assert of_bins[0].words[-1].end_ms <= 20 * len(said)
    for ours, theirs in zip(of_bins, published, strict=True):
        assert ours.score == theirs.score
        assert [(4 * word.start_ms, 4 * word.end_ms, word.confidence) for word in ours.words] == [
            (word.start_ms, word.end_ms, word.confidence) for word in theirs.words
        ]


SPEECH = ["AY", SIL, "S", "IY", SIL, "Y", "UW", SIL]
ENDPOINT = EndpointOptions(silence_ms=400, speech_ms=160, max_ms=4000)


def endpoint_after(tokens, options=ENDPOINT):
    """Number of the frame with which the utterance ends, and why."""
    endpoint = Endpoint(options, RELEASE)
    for frame, token in enumerate(tokens, start=1):
        log_probs_PV = np.full((1, 41), math.log(0.1 / 40), dtype=np.float32)
        log_probs_PV[0, RELEASE.index[token]] = math.log(0.9)
        if reason := endpoint.push(log_probs_PV):
            return frame, reason
    return None


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([*SPEECH, *[BLANK] * 4], (12, "silence")),  # SIL and four blanks are 400 ms
        ([*SPEECH, *[BLANK] * 3, "S", *[SIL] * 5], (17, "silence")),  # speech begins the count anew
        # A trial that begins with silence.
        (
            [*[BLANK] * 20, *SPEECH, *[BLANK, SIL] * 2],
            (32, "silence"),
        ),
        ([*[BLANK] * 10, "S", *[BLANK] * 20], None),  # one frame is no speech
        ([BLANK] * 60, (50, "length")),
        (["S", "IY"] * 30, (50, "length")),
        ([], None),
    ],
)
def test_an_utterance_ends_with_silence_after_speech_or_at_the_greatest_length(tokens, expected):
    assert endpoint_after(tokens) == expected


@pytest.mark.parametrize("sizes", CHUNKINGS.values(), ids=CHUNKINGS)
def test_bins_after_the_end_of_an_utterance_are_held_for_the_next(sizes, decoder):
    """Two sentences in one stream are told apart, and come out the same, however the stream is
    cut into chunks.
    """
    pipeline = Pipeline(
        None, decoder, stepper=ScriptedStepper(), options=PipelineOptions(endpoint=ENDPOINT)
    )
    first, second = (
        ["AY", SIL, "S", "IY", SIL, "Y", "UW"],
        ["W", "IY", SIL, "S", "IY", SIL, "Y", "UW"],
    )
    one_TC, other_TC = (script([*words, *[SIL] * 5]) for words in (first, second))
    stream_TC, texts, lengths = np.concatenate((one_TC, other_TC)), [], []
    for start in range(0, len(stream_TC), sizes[0]):
        update = pipeline.push(stream_TC[start : start + sizes[0]])
        while update.ended:
            assert update.reason == "silence"
            lengths.append(pipeline.n_bins)
            texts.append(pipeline.finish()[0].text)
            update = pipeline.push(stream_TC[:0])
        assert update.held_bins == 0
    assert texts == ["i see you", "we see you"]
    assert lengths == [len(one_TC), len(other_TC)]


@pytest.mark.parametrize("stride", [1, 2, 4, 6])
def test_silence_is_measured_in_milliseconds_whatever_a_frame_of_the_model_is(stride):
    stepper = ScriptedStepper()
    stepper.patch_size, stepper.patch_stride = 1, stride
    pipeline = Pipeline(None, None, stepper=stepper, options=PipelineOptions(endpoint=ENDPOINT))
    said_TC = np.zeros((1000, N_FEATURES), dtype=np.float32)
    said_TC[:48, 0] = RELEASE.index["S"]  # 0.96 s, then silence
    assert pipeline.push(said_TC).reason == "silence"
    assert pipeline.seconds == pytest.approx(0.96 + 0.4, abs=stride * 0.02)
    pipeline.finish()
    pipeline.reset()
    said_TC[:, 0] = RELEASE.index["S"]
    said_TC[::2, 0] += 0.5  # a feature that stands still would be left out
    assert pipeline.push(said_TC).reason == "length"
    assert pipeline.seconds == pytest.approx(4.0, abs=stride * 0.02)


def test_pushing_on_after_the_end_goes_on_with_the_utterance(decoder):
    pipeline = Pipeline(
        None, decoder, stepper=ScriptedStepper(), options=PipelineOptions(endpoint=ENDPOINT)
    )
    stream_TC = script([*SPEECH, *[BLANK] * 20])
    update = pipeline.push(stream_TC)
    assert update.ended
    assert update.held_bins == len(stream_TC) - pipeline.n_bins > 0
    update = pipeline.push(stream_TC[:0])
    assert update.ended
    assert (update.held_bins, pipeline.n_bins) == (0, len(stream_TC))
    assert pipeline.finish()[0].text == "i see you"


def test_hotwords_count_from_the_next_utterance_on_and_may_be_new_words(decoder):
    pipeline = Pipeline(None, decoder, stepper=ScriptedStepper())
    said = script([BLANK, "W", "IY", SIL, "S", "IY", SIL, "K", "IH", "T", SIL])
    pipeline.push(said)
    pipeline.hotwords = {"kit": 9.0, "we": 1.0}
    assert "kit" not in pipeline.finish()[0].text
    pipeline.push(said)
    assert pipeline.finish()[0].text == "we see kit"
    with pytest.raises(DecodingError, match="bonus of 'we'"):
        pipeline.hotwords = {"we": math.nan}
    assert pipeline.hotwords == {"kit": 9.0, "we": 1.0}
    pipeline.hotwords = {}
    pipeline.push(said)
    assert "kit" not in pipeline.finish()[0].text


def test_decoder_options_change_from_the_next_frame_on_or_not_at_all(decoder):
    pipeline, said = Pipeline(None, decoder, stepper=ScriptedStepper()), script([BLANK, "AY", SIL])
    pipeline.push(said)
    pipeline.set_options(nbest=1)
    with pytest.raises(DecodingError, match="history_words cannot change during an utterance"):
        pipeline.set_options(history_words=2)
    with pytest.raises(DecodingError, match="unknown decoder option 'nbset'; did you mean 'nbest'"):
        pipeline.set_options(nbset=3)
    assert (pipeline.decoder.options.nbest, pipeline.decoder.options.history_words) == (1, 0)
    assert len(pipeline.finish()) == 1
    assert decoder.options.nbest == 10  # others who share the decoder are not concerned


def test_rolling_z_scores_undo_gains_and_offsets(model, x_TC):
    """Bins that were scaled and shifted, with a warm start from their true statistics, give the
    logits of the bins.
    """
    gain_C, offset_C = np.linspace(0.5, 40, N_FEATURES), np.linspace(-300, 300, N_FEATURES)
    raw_TC = (x_TC * gain_C + offset_C).astype(np.float32)
    pipeline = Pipeline(model, None, options=PipelineOptions(normalise="rolling"))
    pipeline.start_block(offset_C, gain_C)
    logits_PV = logits_of(feed(pipeline, raw_TC))
    # Before they change.
    np.testing.assert_allclose(logits_PV[:11], model.logits(x_TC[:64], DAYS[1]), atol=5e-3)
    assert not (pipeline.statistics[0] == offset_C).any()
    pipeline.start_block(offset_C, gain_C)
    assert (pipeline.statistics[0] == offset_C).all()


@pytest.mark.parametrize("sizes", CHUNKINGS.values(), ids=CHUNKINGS)
def test_with_the_same_statistics_logits_are_those_of_the_whole_trial_to_1e_5(sizes, model, x_TC):
    pipeline = Pipeline(model, None, options=PipelineOptions(normalise="rolling"))
    normaliser = RollingZScore(N_FEATURES)
    for _ in range(3):
        expected_PV = model.logits(normaliser.push(x_TC), DAYS[1])
        np.testing.assert_allclose(logits_of(feed(pipeline, x_TC, sizes)), expected_PV, atol=1e-5)
        normaliser.end_utterance()
        pipeline.finish()


def test_a_dropped_utterance_leaves_no_trace_in_the_statistics(model, x_TC):
    pipelines = [
        Pipeline(model, None, options=PipelineOptions(normalise="rolling")) for _ in range(2)
    ]
    pipelines[0].push(x_TC * 9)
    pipelines[0].reset()
    logits = []
    for pipeline in pipelines:
        for _ in range(3):
            updates = feed(pipeline, x_TC)
            pipeline.finish()
        logits.append(logits_of(updates).tobytes())
    assert logits[0] == logits[1]


def test_the_acoustic_stream_alone_gives_logits(model, x_TC):
    stream = AcousticStream(model, DAYS[0])
    first_PV, rest_PV = stream.push(x_TC[:100]), stream.push(x_TC[100:])
    np.testing.assert_allclose(
        np.concatenate((first_PV, rest_PV)), model.logits(x_TC, DAYS[0]), atol=1e-5
    )
    stream.end_utterance()
    np.testing.assert_array_equal(stream.push(x_TC[:100]), first_PV)
    stream.reset()
    assert stream.push(x_TC[:21]).shape == (0, 41)
    for _ in range(3):
        assert stream.push(x_TC[:0]).shape == (0, 41)
    assert len(stream.push(x_TC[21:22])) == 1
    with pytest.raises(DataError, match=r"\[bins, 8\]"):
        stream.push(x_TC[:, :5])


def test_every_frame_has_the_times_of_its_stages(model, decoder, x_TC):
    pipeline, times = Pipeline(model, decoder), StageTimes()
    for update in feed(pipeline, x_TC, [3]):
        assert {len(ms) for ms in update.stage_ms.values()} == {len(update.logits_PV)}
        times.add(update.stage_ms)
    assert times.n() == model.n_patches(203)
    assert set(times.percentiles()) == {"normalise", "smooth", "model", "search", "total", "ahead"}
    for found in times.percentiles().values():
        assert 0 < found["p50"] <= found["p95"] <= found["p99"] <= found["max"]


def test_a_step_takes_from_the_bin_that_completes_its_frame_and_the_rest_is_ahead(monkeypatch):
    class Slow(ScriptedStepper):
        now_ns = 0

        def prepare(self, bins_KC):
            Slow.now_ns += 5_000_000

        def step(self, bins_SC):
            Slow.now_ns += 2_000_000
            return super().step(bins_SC)

    monkeypatch.setattr("time.perf_counter_ns", lambda: Slow.now_ns)
    pipeline = Pipeline(None, None, stepper=Slow())
    one_by_one = [update.stage_ms for update in feed(pipeline, script(["AY", "S", "IY"]), [1])]
    assert [(ms["model"], ms["total"], ms["ahead"]) for ms in one_by_one if ms["total"]] == [
        ([2.0], [2.0], [13 * 5.0]), ([2.0], [2.0], [3 * 5.0]), ([2.0], [2.0], [3 * 5.0])
    ]  # fmt: skip
    pipeline.reset()
    at_once = pipeline.push(script(["AY", "S", "IY"])).stage_ms
    assert (at_once["model"], at_once["total"], at_once["ahead"]) == (
        [2.0] * 3,
        [2.0] * 3,
        [0.0] * 3,
    )


def test_percentiles_are_of_the_latest_times_and_the_largest_is_of_all():
    times = StageTimes(n_latest=101)
    assert times.percentiles() == {}
    times.add({"total": [5000.0], "model": []})
    times.add({"total": [float(ms) for ms in range(101)]})
    assert times.percentiles() == {"total": {"p50": 50.0, "p95": 95.0, "p99": 99.0, "max": 5000.0}}
    assert (times.n(), times.n("model")) == (102, 0)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda model: Pipeline(None, None), ConfigError, "needs a model or a stepper"),
        (
            lambda model: Pipeline(model, None, "t15.2023.08.12"),
            RunError,
            "the model knows no session",
        ),
        (lambda model: PipelineOptions(smoothing="gauss"), ConfigError, "smoothing is 'gauss'"),
        (lambda model: PipelineOptions(normalise="block"), ConfigError, "normalise is 'block'"),
        (lambda model: EndpointOptions(silence_ms=0), ConfigError, "endpoint.silence_ms is 0"),
        (
            lambda model: Pipeline(model, None).set_options(nbest=1),
            ConfigError,
            "without a decoder",
        ),
    ],
)
def test_wrong_settings_are_refused(make, error, message, model):
    with pytest.raises(error, match=message):
        make(model)


@pytest.mark.slow
def test_a_hundred_thousand_bins_in_one_utterance_stay_bounded(decoder):
    """33 minutes without an end.

    No step takes longer than the first ones, and what is kept is words, not bins.
    """
    pipeline, times = (
        Pipeline(None, decoder, stepper=ScriptedStepper()),
        (StageTimes(), StageTimes()),
    )
    # 13 frames, whose patches are those of the endless recording.
    again_TC = script([*SPEECH, *[BLANK] * 5])[12:]
    again_TC = np.concatenate([again_TC, np.zeros((2, N_FEATURES), dtype=np.float32)])
    memory_mb = []
    for half in times:
        for _ in range(962):
            half.add(pipeline.push(again_TC).stage_ms)
        memory_mb.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    assert memory_mb[1] - memory_mb[0] < 20
    first, second = (half.percentiles()["total"]["p50"] for half in times)
    assert second < 3 * first
    assert pipeline.n_bins == 1924 * 52 > 100_000
    assert pipeline.finish()[0].text.count("i see you") == 1923  # the first was cut
