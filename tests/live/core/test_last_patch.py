"""Live decoding of models that fill the last patch of a trial with zeros.

The bins at the end of a trial that are too few for a patch make one frame more.
"""

import numpy as np
import pytest
import torch

from cortext.data.conventions import RELEASE_CONVENTIONS
from cortext.decoding import Decoder, greedy
from cortext.decoding.log_probs import log_softmax
from cortext.decoding.ngram import LanguageModel
from cortext.errors import RunError
from cortext.models import AcousticModel, build_model, model_config, save_model
from cortext.models.card import Conventional, Smoothing
from cortext.text.inventory import RELEASE
from cortext_live.core.acoustic_stream import (
    AcousticStream,
    EndpointOptions,
    PipelineOptions,
)
from cortext_live.core.pipeline import Pipeline
from cortext_live.steps.stepping import TorchStepper, open_stepper

N_FEATURES = 6
DAYS = ("t15.2023.08.11", "t15.2023.08.13")
LOST_BINS = 8
"""Bins that smoothing takes: the published kernel has 9 taps."""


def transformer(context_frames=20, **changes):
    """A model with weights of many sizes, whose frames depend on all that they see."""
    torch.manual_seed(1)
    sizes = {"n_units": 16, "n_layers": 2, "n_heads": 2, "head_units": 8}
    config = model_config(
        {"kind": "transformer", "context_frames": context_frames}
        | sizes
        | {"input_network": {"day_layer": "softsign"}}
        | changes
    )
    network = build_model(config, n_features=N_FEATURES, n_days=2, n_classes=len(RELEASE))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape))
    return AcousticModel(
        network, sessions=DAYS, n_features=N_FEATURES, inventory=RELEASE, smoothing=Smoothing()
    )


def recording(n_bins, seed=0):
    return np.random.default_rng(seed).normal(size=(n_bins, N_FEATURES)).astype(np.float32)


def whole(model, x_TC, session="latest"):
    """The logits of a trial in a batch, computed for all frames at once and with no state."""
    longer_BTC = np.stack([np.pad(x_TC, ((0, 9), (0, 0)), constant_values=np.nan)] * 2)
    longer_BTC[1] = 1.0
    lengths_B = np.array([len(x_TC), len(x_TC) + 9])
    logits_BPV, n_frames_B = model.logits_batch(longer_BTC, [session, DAYS[0]], lengths_B)
    return logits_BPV[0, : n_frames_B[0]]


def streamed(stream, x_TC, sizes):
    """The logits of a recording that comes in chunks of these sizes, again and again."""
    found, first = [], 0
    for turn in range(10**9):
        if first >= len(x_TC):
            break
        size = sizes[turn % len(sizes)]
        found.append(stream.push(x_TC[first : first + size]))
        first += size
    found.append(stream.finish())
    stream.end_utterance()
    return np.concatenate(found)


@pytest.mark.parametrize("n_bins", [LOST_BINS + n for n in (1, 3, 4, 5, 47, 48)])
def test_a_stream_gives_every_frame_of_the_trial(n_bins):
    model = transformer()
    for day in DAYS:
        stream = AcousticStream(model, day)
        x_TC = recording(n_bins)
        logits_PV = streamed(stream, x_TC, [5])
        assert len(logits_PV) == -(-(n_bins - LOST_BINS) // 4)
        np.testing.assert_allclose(logits_PV, whole(model, x_TC, day), atol=1e-5)


def test_the_last_frame_sees_zeros_after_the_last_bin():
    """As if the smoothed recording went on with zeros, and not with what smoothing leaks."""
    model = transformer()
    x_TC = recording(LOST_BINS + 18)
    smoothed_TC = model.smooth(torch.from_numpy(x_TC)[None])[0].numpy()
    filled_TC = np.concatenate((smoothed_TC, np.zeros((2, N_FEATURES), np.float32)))
    expected_PV = model.logits(filled_TC, "latest", smooth=False)
    np.testing.assert_allclose(whole(model, x_TC), expected_PV, atol=1e-5)
    np.testing.assert_allclose(streamed(AcousticStream(model), x_TC, [1]), expected_PV, atol=1e-5)


@pytest.mark.parametrize("n_bins", [0, 1, LOST_BINS])
def test_bins_too_few_for_one_smoothed_bin_make_no_frame(n_bins):
    stream = AcousticStream(transformer())
    assert streamed(stream, recording(n_bins), [3]).shape == (0, 41)


def test_any_chunking_gives_the_same_bits_and_the_next_utterance_knows_nothing():
    model = transformer()
    x_TC = recording(LOST_BINS + 401)
    stream = AcousticStream(model)
    expected_PV = streamed(stream, x_TC, [10**6])
    for sizes in ([1], [4], [3, 0, 11, 1], [50]):
        assert streamed(stream, x_TC, sizes).tobytes() == expected_PV.tobytes()
    np.testing.assert_allclose(expected_PV, whole(model, x_TC), atol=1e-5)


@pytest.mark.parametrize("context_s", [5, 20])
@pytest.mark.parametrize("backend", ["torch", "onnx"])
def test_minutes_of_recording_give_the_logits_of_the_whole(context_s, backend, tmp_path):
    """A frame of 80 ms looks back 62 or 250 frames; from 199 on all distances are one."""
    model = transformer(context_frames=int(context_s / 0.08))
    x_TC = recording(LOST_BINS + 7501)
    stepper = TorchStepper(model)
    if backend == "onnx":
        pytest.importorskip("onnxruntime")
        from cortext_live.steps.onnx import export_onnx

        save_model(model, tmp_path / "run")
        export_onnx(tmp_path / "run", tmp_path / "onnx")
        stepper = open_stepper(tmp_path / "onnx", backend="onnx")
    logits_PV = streamed(AcousticStream(stepper), x_TC, [7, 2, 90])
    assert logits_PV.shape == (1876, 41)
    np.testing.assert_allclose(logits_PV, whole(model, x_TC), atol=1e-5)


class Reader(Conventional):
    """A model that says the token that the first bin of a patch names in feature 0."""

    session, sessions, n_features, patch_size, patch_stride = DAYS[1], DAYS, N_FEATURES, 4, 4
    smoothing, conventions, pads_last_patch = (
        Smoothing(smooth_data=False),
        RELEASE_CONVENTIONS,
        True,
    )

    def use(self, session):
        self.session = session

    def start(self):
        self.fails = False

    def prepare(self, bins_KC):
        pass

    def step(self, bins_SC):
        assert bins_SC.shape == (4, N_FEATURES)
        if self.fails:
            raise RunError("a step that fails")
        logits_V = np.zeros(len(RELEASE), dtype=np.float32)
        logits_V[int(bins_SC[0, 0])] = 12.0
        return logits_V


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    root = tmp_path_factory.mktemp("last")
    (root / "lm.txt").write_text("i see\ni see you\nyou see me\n")
    LanguageModel.build([root / "lm.txt"], 2, root / "lm")
    return Decoder.from_dir(root / "lm")


def spelt(text, n_missing):
    """Bins of tokens, four each, the last of them but for so many bins."""
    ids = RELEASE.ids(text.split()).astype(np.float32)
    x_TC = np.zeros((4 * len(ids), N_FEATURES), dtype=np.float32)
    x_TC[::4, 0] = ids
    return x_TC[: len(x_TC) - n_missing]


@pytest.mark.parametrize("n_missing", [0, 1, 3])
def test_a_sentence_is_decoded_to_its_last_bin(decoder, n_missing):
    pipeline = Pipeline(None, decoder, stepper=Reader())
    x_TC = spelt("AY SIL S IY SIL Y UW SIL", n_missing)
    pushed = [pipeline.push(bin_1C[None]) for bin_1C in x_TC]
    assert sum(len(update.logits_PV) for update in pushed) == (8 if n_missing == 0 else 7)
    last = pipeline.flush()
    assert len(last.logits_PV) == (n_missing > 0)
    assert [len(ms) for ms in last.stage_ms.values()] == [len(last.logits_PV)] * len(last.stage_ms)
    assert len(pipeline.flush().logits_PV) == 0  # once
    logits_PV = np.concatenate([update.logits_PV for update in (*pushed, last)])
    assert RELEASE.names(greedy(logits_PV, RELEASE)) == "AY SIL S IY SIL Y UW SIL".split()
    whole_nbest = decoder.decode(log_softmax(logits_PV), RELEASE)
    found = pipeline.finish()
    assert (found[0].text, found.texts) == ("i see you", whole_nbest.texts)
    assert found[0].score == pytest.approx(whole_nbest[0].score)


def test_finish_takes_the_last_frame_by_itself(decoder):
    pipeline = Pipeline(None, decoder, stepper=Reader())
    for _ in range(2):  # the second utterance begins anew
        pipeline.push(spelt("AY SIL S IY SIL Y UW", 2))
        assert pipeline.finish()[0].text == "i see you"
    pipeline.push(spelt("AY SIL S IY SIL Y UW", 2))
    pipeline.reset()
    assert pipeline.finish()[0].text == ""


def test_where_the_last_step_fails_the_utterance_ends_without_its_frame(decoder):
    pipeline = Pipeline(None, decoder, stepper=Reader())
    pipeline.push(spelt("AY SIL S IY SIL SIL", 2))
    pipeline.stepper.fails = True
    with pytest.raises(RunError, match="a step that fails"):
        pipeline.finish()
    assert pipeline.finish()[0].text == "i see"


def test_an_utterance_that_ends_by_itself_keeps_the_bins_after_it_for_the_next(decoder):
    options = PipelineOptions(endpoint=EndpointOptions(silence_ms=160, speech_ms=80))
    pipeline = Pipeline(None, decoder, options=options, stepper=Reader())
    x_TC = np.concatenate((spelt("AY SIL S IY SIL SIL", 0), spelt("Y UW SIL S IY SIL M IY", 3)))
    update = pipeline.push(x_TC)
    assert (update.reason, update.held_bins) == ("silence", 29)
    assert len(pipeline.flush().logits_PV) == 0
    assert pipeline.finish()[0].text == "i see"
    assert pipeline.push(x_TC[:0]).reason is None
    assert pipeline.finish()[0].text == "you see me"


def test_steppers_of_the_time_before_drop_the_bins_that_fill_no_patch(decoder):
    class Old(Reader):
        pads_last_patch = False

    pipeline = Pipeline(None, decoder, stepper=Old())
    pipeline.push(spelt("AY SIL S IY SIL Y UW", 2))
    assert pipeline.finish()[0].text == "i see"
