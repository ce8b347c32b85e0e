"""What is compared in the training of a speech LLM, how it is counted, and what is printed."""

import json
import mmap
from dataclasses import asdict, replace

import pytest

pytest.importorskip("transformers")

import torch
from tiny_speech_llm import save_tiny_audio_llm

from cortext.cli import run
from cortext.config import to_mapping
from cortext.errors import ConfigError, DataError
from cortext.memory import memory, restart_peak
from cortext.models.precision import autocast
from cortext_bench.commands import bench_llm
from cortext_bench.speech_llm import compare as bench
from cortext_bench.speech_llm import materials
from cortext_bench.speech_llm.compare import (
    CACHED,
    CLAIM,
    Measuring,
    SpeechLLMBenchSettings,
    compare,
    comparisons,
    described,
    holds,
    settings,
)
from cortext_bench.speech_llm.materials import CacheOrder, GivenMaterials, prepare, random_audio_llm
from cortext_bench.speech_llm.worker import RunningSetting, begin
from cortext_bench.training.data import SimulatedRecordings
from cortext_bench.workers import Missing, WorkerProcess
from cortext_live.voices import open_voice
from cortext_lm.neural.train_neural import NeuralSettings
from cortext_speechllm.audio_llm.assemble import TowerSettings
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.config import read_speech_config
from cortext_speechllm.targets.build import LiveTargets, build_cache, sentences_of_data
from cortext_speechllm.targets.cache import TargetCache, write_targets

TINY = SimulatedRecordings(n_sessions=2, trials_per_session=4, n_features=8, bins=0, preset="tiny")
SMALL = ("model.n_units=8", "model.n_layers=1", "dataset.batch_size=4", "dataset.days_per_batch=2")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """Recordings, an audio LLM and a cache."""
    folder = tmp_path_factory.mktemp("tiny")
    TINY.write(folder)
    save_tiny_audio_llm(folder / "llm")
    sentences = sentences_of_data(folder / "packed")
    build_cache(sentences, folder / "llm", "formant", folder / "targets.safetensors", workers=0)
    return folder


@pytest.fixture
def plan_of(tiny, tmp_path):
    """The plan of a setting by its name."""

    def make(name, bf16=False):
        base = read_speech_config("speech_llm", [*SMALL, f"speech.audio_llm={tiny / 'llm'}"])
        one = settings(bf16)[name]
        paths = {
            "packed": str(tiny / "packed"),
            "cache": str(tiny / "targets.safetensors"),
            "voice": "formant",
        }
        config = to_mapping(one.config(base, bf16))
        return bench.VariantSettings(
            **paths, out=str(tmp_path / name), config=config, live=one.live
        )

    return make


def test_settings_differ_from_the_first_in_one_thing_each():
    base = read_speech_config(
        "speech_llm", ["speech.lora={r: 4}", "speech.gradient_checkpointing=true"]
    )
    for bf16, (own, other) in {True: ("bf16", "fp32"), False: ("fp32", "bf16")}.items():
        known = settings(bf16)
        configs = {name: one.config(base, bf16) for name, one in known.items()}
        first = configs["cached"]
        assert (first.precision, first.speech.compile, first.speech.gradient_checkpointing) == (
            own,
            False,
            False,
        )
        assert not known["cached"].live
        assert configs["live"] == first
        assert configs[f"cached {other}"] == replace(first, precision=other)
        assert configs["cached compiled"].speech == replace(first.speech, compile=True)
        assert configs["cached checkpointing"].speech == replace(
            first.speech, gradient_checkpointing=True
        )
        assert configs["alignment live"] == configs["alignment cached"]
        assert configs["alignment live"].speech == replace(
            first.speech, beta=0.0, gamma=0.0, lora=None
        )
        assert [name for name, one in known.items() if one.live] == [
            "live",
            f"live {other}",
            "alignment live",
        ]
        assert {each for both in comparisons(bf16).values() for each in both} <= set(known)
        assert comparisons(bf16)["bfloat16"] == (
            ("cached", "cached fp32") if bf16 else ("cached bf16", "cached")
        )


def test_a_ratio_is_the_time_without_over_the_time_with():
    found = {
        "cached": {"ms": 200.0, "cpu_ms": 100.0, "peak_mb": 30.0},
        "live": {"ms": 500.0, "cpu_ms": 400.0, "peak_mb": 40.0},
        "no memory": {"ms": 500.0, "cpu_ms": 400.0, "peak_mb": None},
    }
    assert compare(found, "cached", "live") == {
        "times_faster": 2.5,
        "times_faster_cpu": 4.0,
        "less_memory": 0.25,
    }
    assert compare(found, "live", "cached")["less_memory"] == pytest.approx(-1 / 3)
    assert compare(found, "cached", "no memory")["less_memory"] is None
    assert compare(found, "cached", "absent") is None


def test_the_claim_holds_where_time_and_memory_reach_it():
    faster, less = (
        {"times_faster": 3.0, "less_memory": 0.39},
        {"times_faster": 2.9, "less_memory": 0.4},
    )
    unknown = {"times_faster": 5.0, "less_memory": None}
    found = holds(
        {CACHED: faster, f"{CACHED}, fp32": less, f"{CACHED}, bf16": unknown, "bfloat16": faster}
    )
    assert found == {
        CACHED: {"times_faster": True, "less_memory": False},
        f"{CACHED}, fp32": {"times_faster": False, "less_memory": True},
        f"{CACHED}, bf16": {"times_faster": True, "less_memory": None},
    }
    assert (CLAIM["times_faster"], CLAIM["less_memory"]) == ([3.0, 4.0], 0.4)


def test_a_cache_pays_once_it_took_less_than_it_saved():
    found = {"cached": {"ms": 200.0}, "live": {"ms": 700.0}}
    assert bench.pays_after(found, {"seconds": 10.0}) == 20
    assert bench.pays_after(found, {}) is None  # it was given
    assert bench.pays_after({"live": {"ms": 700.0}}, {"seconds": 10.0}) is None
    assert bench.pays_after({"cached": {"ms": 9.0}, "live": {"ms": 8.0}}, {"seconds": 10.0}) is None


def test_the_median_is_that_of_all_turns():
    turns = [{"ms": [1.0, 9.0], "cpu_ms": [1.0, 1.0]}, {"ms": [3.0], "cpu_ms": [7.0]}]
    parts = {"targets_ms": [4.0, 6.0], "voice_ms": [0.0, 0.0]}
    found = described(turns, {"peak_mb": 5.0}, parts, {"precision": "fp32"})
    assert (found["ms"], found["cpu_ms"], found["steps"], found["targets_ms"]) == (3.0, 1.0, 3, 5.0)
    assert found["ms_10_90"] == [pytest.approx(1.4), pytest.approx(7.8)]


def test_live_and_cached_targets_train_alike(plan_of):
    """The voice and the tower of each step give what the cache has, up to half precision."""
    losses = {}
    for name in ("cached", "live", "alignment cached", "alignment live"):
        served = RunningSetting(plan_of(name))
        loss, sampler = served.trainer.backend.job.loss, served.trainer.backend.job.sampler
        kind = LiveTargets if "live" in name else TargetCache
        assert isinstance(loss.targets, kind)
        batch = served.trainer.backend.data.batch(
            sampler.indices(0), torch.Generator().manual_seed(0)
        )
        losses[name] = loss(served.trainer.model.network.eval(), batch, 0.0)["alignment"].detach()
        served.trainer.close()
    torch.testing.assert_close(losses["live"], losses["cached"], atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(
        losses["alignment live"], losses["alignment cached"], atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize("name", ["live", "cached bf16", "live bf16"])
def test_steps_are_the_trainers_own_and_are_all_timed(plan_of, name):
    served = RunningSetting(plan_of(name))
    before = [weight.detach().clone() for weight in served.trainer.model.network.parameters()]
    answer = served.steps(2)
    assert served.trainer.state.step == 3
    assert len(answer["ms"]) == len(answer["cpu_ms"]) == 2
    assert min(answer["ms"]) > 0
    after = list(served.trainer.model.network.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert served.facts["precision"] == ("bf16" if "bf16" in name else "fp32")
    served.restart_peak()
    memory = served.memory()
    assert memory["process_mb"] - memory["peak_mb"] == pytest.approx(served.facts["libraries_mb"])
    parts = served.parts(2)
    assert all(
        voice <= targets
        for voice, targets in zip(parts["voice_ms"], parts["targets_ms"], strict=True)
    )
    assert (min(parts["voice_ms"]) > 0) == ("live" in name)
    served.trainer.close()


def test_the_tower_hears_within_a_training_in_bfloat16(tiny):
    llm = AudioLLM.load(tiny / "llm", device="cpu")
    waves = [open_voice("formant").speak("two cats sat")]
    (expected_NA,) = llm.audio_features(waves)
    with autocast(torch.device("cpu"), True):
        (found_NA,) = llm.audio_features(waves)
    assert found_NA.dtype == torch.float32
    assert float((found_NA - expected_NA).norm() / expected_NA.norm()) < 0.05


def test_the_peak_begins_anew():
    with mmap.mmap(-1, 400_000_000) as block:
        block.write(bytes(400_000_000))
    high = memory()["peak_rss_mb"]
    restart_peak()
    assert memory()["peak_rss_mb"] < high - 300


def test_a_random_audio_llm_has_the_sizes_that_were_asked_for(tmp_path):
    lm, tower = (
        NeuralSettings(pieces=200, width=16, layers=1, heads=2),
        TowerSettings(width=8, layers=1, heads=2),
    )
    facts = random_audio_llm(tmp_path, lm, tower)
    found = AudioLLM.check(tmp_path / "audio-llm")
    assert (found.text_width, found.layers, found.heads, found.audio_width) == (16, 1, 2, 8)
    assert facts["language_model"] == {"width": 16, "layers": 1, "heads": 2, "pieces": 200}
    assert facts["tower"] == asdict(tower)


def test_what_cannot_be_had_is_missing_and_the_rest_continues(monkeypatch):
    class Served:
        def __init__(self, name):
            self.name, self.loaded = name, {"precision": "fp32"}

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def ask(self, do, n=0):
            if self.name == "live" and do == "steps" and n == 5:
                raise Missing("not enough memory")
            values = [1.0] * n
            return {
                "steps": {"ms": values, "cpu_ms": values},
                "parts": {"targets_ms": values, "voice_ms": values},
                "memory": {"peak_mb": 1.0},
                "restart_peak": {},
            }[do]

    def start(self, name):
        if name == "cached compiled":
            raise Missing("no compiler")
        return Served(name)

    monkeypatch.setattr(Measuring, "_start", start)
    for apart in (False, True):
        plan, said = SpeechLLMBenchSettings(steps=5, turns=2, apart=apart), []
        measuring = Measuring(
            dict.fromkeys(["cached", "live", "cached compiled"]), plan, said.append
        )
        measuring.measure()
        assert measuring.missing == {"live": "not enough memory", "cached compiled": "no compiler"}
        assert list(measuring.found) == ["cached"]
        assert measuring.found["cached"]["steps"] == 10
        order = [line.rpartition(": ")[2] for line in said if "starting" in line or "turn" in line]
        together = ["cached", "live", "cached compiled", "cached", "live", "cached"]
        assert order == (
            ["cached", "cached", "cached", "live", "live", "cached compiled"] if apart else together
        )


def test_a_setting_that_cannot_be_loaded_is_missing(plan_of):
    plan = asdict(plan_of("cached")) | {"cache": "none.safetensors"}
    with pytest.raises(Missing, match="there is no such cache"):
        begin("train", json.dumps(plan))


def test_a_given_cache_must_be_of_this_voice(tiny, tmp_path):
    cache = TargetCache(tiny / "targets.safetensors")
    other, keys = tmp_path / "other.safetensors", cache.keys()
    write_targets(
        other,
        dict(zip(keys, map(cache.target, keys), strict=True)),
        replace(cache.origin, voice_revision="0"),
    )
    given = GivenMaterials(tiny / "packed", str(tiny / "llm"), cache=other)
    with pytest.raises(DataError, match="give the voice of this cache"):
        prepare(given, tmp_path, "cpu", {}, lambda name: None)
    made = prepare(replace(given, cache=cache.path), tmp_path, "cpu", {}, lambda name: None)
    assert (made.cache, made.packed, made.facts["trials"]) == (
        str(cache.path),
        str(tiny / "packed"),
        8,
    )


def test_settings_go_with_what_is_made():
    assert GivenMaterials().overrides == (*materials.OF_RECORDING, *materials.OF_MODEL)
    assert GivenMaterials(audio_llm="llm").overrides == materials.OF_RECORDING
    assert GivenMaterials(data="data", audio_llm="llm").overrides == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "lives"], "unknown setting 'lives'; did you mean 'live'?"),
        (
            ["--set", "speech.alpha=0"],
            "speech.alpha is 0: nothing is aligned to audio; set speech.alpha above 0",
        ),
        (["--device", "cuda:99"], "device 'cuda:99' cannot be used"),
        (["--config", "speech_lm"], "speech_lm"),
        (["--audio-llm", "FOLDER"], "has no config.json: it holds no model"),
    ],
)
def test_what_cannot_be_measured_is_one_line_before_anything_is(options, message, tiny, capsys):
    command = [
        "bench",
        "speech-llm",
        *(str(tiny) if word == "FOLDER" else word for word in options),
    ]
    assert run(command) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said


def test_only_the_last_stage_is_trained(monkeypatch):
    def stop(given, *_):
        raise ConfigError("stopped")

    monkeypatch.setattr(bench, "prepare", stop)
    with pytest.raises(ConfigError, match="stopped"):  # not that alpha is 0, as in the first stage
        bench.bench_speech_llm("speech_llm_best", GivenMaterials(), SpeechLLMBenchSettings())


@pytest.mark.slow
def test_the_command_compares_in_processes_and_writes_one_object(
    tiny, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "300")
    out = tmp_path / "new" / "speech.json"
    command = [
        "bench",
        "speech-llm",
        "--data",
        str(tiny / "packed"),
        "--audio-llm",
        str(tiny / "llm"),
    ]
    command += [
        "--turns",
        "1",
        "--steps",
        "1",
        "--threads",
        "1",
        "--only",
        "cached",
        "--only",
        "live",
    ]
    command += [word for override in SMALL for word in ("--set", override)]
    assert run([*command, "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads(out.read_text())
    found = result["settings"]
    assert list(found) == ["cached", "live"]
    assert result["ratio"] == pytest.approx(found["live"]["ms"] / found["cached"]["ms"])
    assert result["ratios"]["compilation"] is None
    assert found["live"]["voice_ms"] > 0 == found["cached"]["voice_ms"]
    assert result["input"]["cache"]["sentences"] > 4
    assert {"torch", "transformers"} <= set(result["provenance"]["versions"])
    bench_llm._print_speech(result | {"missing": {"cached compiled": "no compiler"}})
    shown = capsys.readouterr().out
    for words in (
        "claimed of cached targets: 3 to 4 times faster, 40.0 % less memory",
        "compiled left out: no compiler",
    ):
        assert words in shown


@pytest.mark.slow
def test_a_process_says_what_is_missing(tiny, tmp_path):
    order = CacheOrder(str(tiny / "packed"), "no-llm", "formant", str(tmp_path / "out"), "cpu")
    with pytest.raises(Missing, match="no-llm"):
        WorkerProcess(
            "cache", "speech_llm.worker", ["cache", json.dumps(asdict(order))], tmp_path / "log", {}
        )
