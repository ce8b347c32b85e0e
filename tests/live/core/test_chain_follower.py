"""Models of a chain that speak one after the other: no bin is lost, and each is named."""

import json
import time
from contextlib import closing

import numpy as np
import pytest
import torch
from page_process import DAYS, N_FEATURES
from untrained import untrained_run

from cortext.cli import run as cortext
from cortext.errors import ConfigError, RunError
from cortext.evaluation.fit.fitted_file import weights_checksum
from cortext.models import load_model, save_model
from cortext_live.commands.live import _open
from cortext_live.core import chain_follower
from cortext_live.core.acoustic_stream import EndpointOptions, PipelineOptions
from cortext_live.core.chain_follower import speaking_run
from cortext_live.core.gate import GateCard, GateNetwork, IdleGate
from cortext_live.core.pipeline import Pipeline
from cortext_live.page.settings import LiveSettings
from cortext_live.page.setup import open_decoding
from cortext_live.recalibration.chain import model_folder, open_chain, read_chain
from cortext_live.steps.stepping import TorchStepper
from cortext_live.usage.log import read_log
from cortext_live.usage.speaking import is_speaking

NEW_DAY = "t15.2023.08.18"


def write_other(folder, run, strength):
    """Write a run whose weights are those of another one and noise."""
    model = load_model(run)
    torch.manual_seed(7)
    with torch.no_grad():
        for weights in model.network.parameters():
            weights += strength * torch.randn_like(weights)
    save_model(model, folder)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return untrained_run(tmp_path_factory.mktemp("run"), DAYS, N_FEATURES)


@pytest.fixture(scope="module")
def other(run, tmp_path_factory):
    folder = tmp_path_factory.mktemp("other")
    write_other(folder, run, 0.3)
    return folder


def noise(n_bins, seed=0):
    return np.random.default_rng(seed).normal(size=(n_bins, N_FEATURES)).astype(np.float32)


def logits(run, x_TC, **options):
    """The logits of one utterance by one model alone."""
    pipeline = Pipeline(load_model(run), None, options=PipelineOptions(**options))
    return pipeline.push(x_TC).logits_PV


@pytest.mark.parametrize("chunk", [1, 3, 50])
def test_a_model_goes_on_with_the_next_bin(run, other, chunk):
    pipeline = Pipeline(load_model(run), None)
    first_TC, second_TC = noise(90), noise(70, 1)
    pipeline.push(first_TC)
    pipeline.finish()
    pipeline.swap(TorchStepper(load_model(other)))
    found = [
        pipeline.push(second_TC[start : start + chunk]).logits_PV for start in range(0, 70, chunk)
    ]
    np.testing.assert_array_equal(np.concatenate(found), logits(other, second_TC))
    assert np.abs(logits(other, second_TC) - logits(run, second_TC)).max() > 0.01


def test_bins_that_are_held_come_to_the_next_model(run, other):
    endpoint = EndpointOptions(max_ms=800)
    pipeline = Pipeline(load_model(run), None, options=PipelineOptions(endpoint=endpoint))
    x_TC = noise(100)
    update = pipeline.push(x_TC)
    assert update.reason == "length"
    assert update.held_bins > 0
    pipeline.finish()
    pipeline.swap(TorchStepper(load_model(other)))
    expected_PV = logits(other, x_TC[-update.held_bins :], endpoint=endpoint)
    assert len(expected_PV) > 0
    np.testing.assert_array_equal(pipeline.push(x_TC[:0]).logits_PV, expected_PV)


def test_rolling_statistics_go_on(run, other):
    pipelines = [
        Pipeline(load_model(run), None, options=PipelineOptions(normalise="rolling"))
        for _ in range(2)
    ]
    for pipeline in pipelines:
        pipeline.push(3 + 2 * noise(200))
        pipeline.finish()
    pipelines[0].swap(TorchStepper(load_model(other)))
    for pipeline in pipelines:
        pipeline.push(noise(60, 1))
        pipeline.finish()
    for with_swap_C, without_C in zip(*(each.statistics for each in pipelines), strict=True):
        np.testing.assert_array_equal(with_swap_C, without_C)


def always_shut(run):
    n = 2 * (2 * 41 + 1)
    zeros_S, zeros_D = np.zeros(n, np.float32), np.zeros(1, np.float32)
    network = GateNetwork(
        zeros_S, zeros_S + 1, np.zeros((n, 1), np.float32), zeros_D, zeros_D, -1.0
    )
    created = "2026-01-01T00:00:00+00:00"
    card = GateCard(weights_checksum(run), 0.5, [], 0.0, 1, "data", None, created, "0")
    return IdleGate(network, card, 80.0)


def test_a_shut_gate_keeps_its_bins_for_the_next_model(run, other):
    """Log-odds are -1 whatever comes, so that the gate opens when the threshold falls below."""
    pipeline = Pipeline(load_model(run), None, gate=always_shut(run))
    x_TC = noise(120)
    assert not len(pipeline.listen(x_TC[:60]))
    pipeline.swap(TorchStepper(load_model(other)))
    assert not len(pipeline.listen(x_TC[60:80]))
    pipeline.gate.threshold = 0.1
    begun_TC = pipeline.listen(x_TC[80:])
    np.testing.assert_array_equal(begun_TC, x_TC[-len(begun_TC) :])
    assert len(begun_TC) > 40  # with bins from before the swap
    np.testing.assert_array_equal(pipeline.push(begun_TC).logits_PV, logits(other, begun_TC))


def test_no_swap_in_mid_utterance_or_to_another_kind_of_model(run, other, tmp_path):
    pipeline = Pipeline(load_model(run), None)
    wider = untrained_run(tmp_path, DAYS, N_FEATURES + 2)
    with pytest.raises(RunError, match="features in a bin of the model and of the one before"):
        pipeline.swap(TorchStepper(load_model(wider)))
    pipeline.push(noise(10))
    with pytest.raises(ConfigError, match="mid-utterance"):
        pipeline.swap(TorchStepper(load_model(other)))
    pipeline.push(noise(60))
    assert len(pipeline.push(noise(40)).logits_PV) > 0


def wait_for(check, what):
    until = time.monotonic() + 20
    while not check():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def model_now(decoding):
    return decoding.state().result(5)["model"]


def add_promoted(folder, run, strength):
    with open_chain(folder) as chain:
        entry = chain.add_model(
            "candidate", lambda made: write_other(made, run, strength), parent=chain.contents.parent
        )
        chain.add("promoted", model=entry.number, upper=None)
    return entry


def play(decoding, log, trial, n):
    decoding.start(trial).result(5)
    wait_for(lambda: len(read_log(log).entries) == n, "the utterance is not in the log")
    return read_log(log).entries[-1].model


def test_a_server_follows_its_chain(page_root, run, tmp_path):
    chain, log = tmp_path / "chain", tmp_path / "log"
    settings = LiveSettings(
        run, page_root / "lm", chain=chain, data=page_root / "data", session_log=log, speed=1e9
    )
    with closing(open_decoding(settings)) as decoding:
        assert model_now(decoding) is None  # there is no chain yet
        assert play(decoding, log, 0, 1) is None
        with open_chain(chain, run) as opened:
            base = opened.contents.entries[0].model_name
        wait_for(lambda: model_now(decoding) == base, "the base is not taken")
        second = add_promoted(chain, run, 0.2).model_name
        wait_for(lambda: model_now(decoding) == second, "the promoted model is not taken")
        assert play(decoding, log, 0, 2) == second
        assert cortext(["chain", "rollback", str(chain), "0"]) == 0
        wait_for(lambda: model_now(decoding) == base, "the rollback is not followed")
        assert play(decoding, log, 1, 3) == base
    assert [entry.model for entry in read_log(log).entries] == [None, second, base]


def test_a_server_begins_with_the_model_that_speaks(page_root, run, tmp_path, capsys):
    chain = tmp_path / "chain"
    with open_chain(chain, run):
        pass
    promoted = add_promoted(chain, run, 0.2)
    found, name = speaking_run(chain, run)
    assert (found, name) == (model_folder(chain, promoted.number), promoted.model_name)
    settings = LiveSettings(run, page_root / "lm", chain=chain, data=page_root / "data")
    with closing(_open(settings)) as decoding:
        assert model_now(decoding) == decoding.model == promoted.model_name
    assert f"model: {promoted.model_name} of {chain}" in " ".join(capsys.readouterr().err.split())


def test_a_damaged_model_never_speaks(page_root, run, tmp_path, caplog):
    chain = tmp_path / "chain"
    with open_chain(chain, run):
        pass
    base = read_chain(chain).entries[0].model_name
    settings = LiveSettings(run, page_root / "lm", chain=chain, data=page_root / "data")
    caplog.set_level("INFO", "cortext.live")

    def problems():
        records = [each for each in caplog.records if each.getMessage() == "chain_not_followed"]
        return [each.facts["error"] for each in records]

    with closing(open_decoding(settings)) as decoding:
        with open_chain(chain) as opened:
            entry = opened.add_model(
                "candidate", lambda made: write_other(made, run, 0.2), parent=0
            )
            weights = model_folder(chain, entry.number) / "model.safetensors"
            content = bytearray(weights.read_bytes())
            content[-1] ^= 1
            weights.write_bytes(content)
            opened.add("promoted", model=entry.number, upper=None)
        wait_for(problems, "the damage is not logged")
        assert "model 1 of the chain is damaged" in problems()[0]
        assert model_now(decoding) == base


def test_a_model_that_does_not_fit_is_not_loaded_again_and_again(run, tmp_path, monkeypatch):
    """Within a hundred looks the pause doubles from 2 looks on; a new entry is looked at at once."""
    monkeypatch.setattr(chain_follower, "LOOK_S", 0.005)
    monkeypatch.setattr(chain_follower, "RETRY_S", (0.02, 10.0))
    chain, tries = tmp_path / "chain", []
    with open_chain(chain, run):
        pass

    def unfit(folder):
        tries.append(folder)
        raise RunError("it has other features")

    offered = []
    like = TorchStepper(load_model(run))
    with closing(chain_follower.ChainFollower(chain, unfit, like, None, offered.append)):
        time.sleep(0.5)
        assert 2 <= len(tries) <= 6  # 0, 0.02, 0.06, 0.14, 0.3 s
        before = len(tries)
        with open_chain(chain) as opened:
            opened.add_model("candidate", lambda made: write_other(made, run, 0.2), parent=0)
        wait_for(lambda: len(tries) > before, "the new entry is not looked at")
    assert not offered


def test_the_latest_day_stays_the_latest(page_root, run, tmp_path):
    """A model that learnt a new day uses its layer where the latest was chosen, and no other."""
    days = (*DAYS, NEW_DAY)
    chain = tmp_path / "chain"
    with open_chain(chain, run):
        pass
    settings = LiveSettings(
        run, page_root / "lm", chain=chain, data=page_root / "data", day="latest"
    )
    with closing(open_decoding(settings)) as decoding:
        assert decoding.state().result(5)["day"] == DAYS[-1]
        with open_chain(chain) as opened:
            entry = opened.add_model(
                "candidate", lambda made: untrained_run(made, days, N_FEATURES), parent=0
            )
            opened.add("promoted", model=entry.number, upper=None)
        wait_for(lambda: model_now(decoding) == entry.model_name, "the model is not taken")
        state = decoding.state().result(5)
        assert (state["day"], state["day_chosen"], state["days"]) == (NEW_DAY, NEW_DAY, list(days))
        decoding.choose_day(DAYS[0]).result(5)
        assert cortext(["chain", "rollback", str(chain), "0"]) == 0
        base = read_chain(chain).entries[0].model_name
        wait_for(lambda: model_now(decoding) == base, "the rollback is not followed")
        state = decoding.state().result(5)
        assert (state["day"], state["days"]) == (DAYS[0], list(DAYS))


def test_the_log_tells_whether_somebody_speaks(page_root, run, tmp_path):
    log = tmp_path / "log"
    settings = LiveSettings(run, page_root / "lm", feed=True, session_log=log)
    with closing(open_decoding(settings)) as decoding:
        feed = object()
        decoding.open_feed(feed).result(5)
        assert not is_speaking(log)
        decoding.feed(noise(20)).result(5)
        wait_for(lambda: is_speaking(log), "nobody speaks in mid-utterance")
        decoding.end_fed_utterance().result(5)
        wait_for(lambda: not is_speaking(log), "somebody speaks after the end")


def test_a_chain_holds_models_for_torch(page_root, run, tmp_path):
    with pytest.raises(ConfigError, match="--chain holds models for torch alone"):
        LiveSettings(run, page_root / "lm", chain=tmp_path, feed=True, backend="onnx")


def test_the_log_line_names_the_model(tmp_path):
    line = {
        "id": "1", "when": "2026-11-24T10:00:00.000+00:00", "session": DAYS[0],
        "duration_s": 2.0, "text": "i see", "model": "3-0a1b2c3d",
    }  # fmt: skip
    (tmp_path / "utterances.jsonl").write_text(json.dumps(line) + "\n")
    assert read_log(tmp_path).entries[0].model == "3-0a1b2c3d"
