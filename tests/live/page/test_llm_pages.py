"""A large model behind the page, a BRAND node and a pipeline of one's own."""

import json
from dataclasses import replace
from threading import Event

import numpy as np
import pytest
from brand_rig import Rig, make_world
from opinion import Opinion
from page_process import Hearing, spoken
from serving import serving

from cortext.decoding import Decoder, Hypothesis, NBest
from cortext.decoding.options import DecoderOptions
from cortext.errors import ConfigError, LanguageModelError
from cortext_live.brand.parameters import NodeConfig
from cortext_live.brand.process import run_node
from cortext_live.core.decoder import LIVE_BUDGET_MS
from cortext_live.core.log_writer import LogWriter
from cortext_live.core.pipeline import Pipeline
from cortext_live.page.day_pipeline import DayPipeline
from cortext_live.page.decoding_thread import DecodingThread
from cortext_live.page.sources import Replay
from cortext_live.page.utterance import ngram_text
from cortext_live.usage.statistics import read_use
from cortext_live.usage.writer import UsageLog
from cortext_lm.llm.large_model import LLM


@pytest.fixture(scope="module")
def plain(page_root):
    return Decoder.from_dir(page_root / "lm")


def pipeline(decoder, **more):
    return Pipeline(None, decoder, stepper=Hearing("latest"), **more)


SEE = spoken("i see you", np.random.default_rng(1))


def test_a_pipeline_ranks_after_the_context_that_is_set(plain):
    model = Opinion(i_sea_you=0.0)
    live = pipeline(plain.with_llm(model), context="before")
    live.push(SEE)
    assert live.finish()[0].text == "i sea you"
    live.push(SEE)
    live.context = "after"
    live.finish()
    assert model.contexts == ["before", "after"]
    assert model.hooked == [("before", LIVE_BUDGET_MS), ("before", LIVE_BUDGET_MS)]
    live.push(SEE)
    live.finish()
    assert model.hooked[-1] == ("after", LIVE_BUDGET_MS)


def test_options_of_the_model_change_one_by_one_and_keep_the_bound(plain):
    model = Opinion(i_sea_you=0.0)
    live = pipeline(plain.with_llm(model).with_options(llm={"augment": 3, "mode": "fusion"}))
    live.push(SEE)
    live.set_options(llm={"weight": 0.0, "budget_ms": 0})
    options = live.decoder.options.llm
    assert (options.augment, options.mode, options.weight, options.budget_ms) == (
        3,
        "fusion",
        0.0,
        LIVE_BUDGET_MS,
    )
    assert live.finish()[0].text == "i see you"
    live.set_options(llm={"budget_ms": 7.5})
    assert live.decoder.options.llm.budget_ms == 7.5


def test_which_sentence_would_have_been_the_best_is_found_from_the_scores():
    options = DecoderOptions(lm_weight=2.0, llm={"weight": 0.25})
    # acoustic + 2 (0.75 ngram + 0.25 llm); without the model acoustic + 2 ngram
    see = Hypothesis(
        "i see you", -20 + 2 * (0.75 * -4 + 0.25 * -9), -20.0, -4.0, llm_score=-9.0, confidence=0.4
    )
    sea = Hypothesis(
        "i sea you", -20 + 2 * (0.75 * -5 + 0.25 * -2), -20.0, -5.0, llm_score=-2.0, confidence=0.6
    )
    assert sea.score > see.score
    assert ngram_text(NBest((sea, see)), options) == "i see you"
    assert ngram_text(NBest((replace(see, confidence=None),)), options) is None


@pytest.fixture
def model():
    return Opinion(i_sea_you=0.0)


@pytest.fixture
def served(page_root, plain, model, tmp_path):
    days = DayPipeline(Hearing("latest"), plain.with_llm(model), context="how are you")
    session = DecodingThread(
        days,
        Replay(page_root / "data"),
        speed=float("inf"),
        log_writer=LogWriter(UsageLog(tmp_path)),
        about={"llm": "tiny"},
    )
    with serving(session) as served:
        yield served


def test_the_page_is_told_that_a_sentence_was_ranked_anew(served, model, tmp_path):
    with served.page() as page:
        hello = page.next("hello")
        assert (hello["llm"], hello["context"], hello["options"]["llm"]["weight"]) == (
            "tiny",
            "how are you",
            0.5,
        )
        served.post("start", {"trial": 0})
        told = page.next("utterance")
        assert (told["text"], told["ngram_text"], told["degraded"]) == (
            "i sea you",
            "i see you",
            None,
        )
        assert told["nbest"][0]["llm"] == 0.0
        model.fails = True
        served.post("start", {"trial": 0})
        told = page.next("utterance")
        assert (told["text"], told["ngram_text"]) == ("i see you", None)
        assert told["degraded"] == "without the large model: no memory"
        assert told["error"] is None
        model.fails = False
        assert served.post("options", {"llm": {"weight": 0}}).status_code == 200
        assert page.next("state")["options"]["llm"]["mode"] == "rescore"
        served.post("start", {"trial": 0})
        assert page.next("utterance")["text"] == "i see you"
    served.session.log_writer.close()  # when what waits is written
    lines = [json.loads(line) for line in (tmp_path / "utterances.jsonl").read_text().splitlines()]
    assert [line.get("degraded") for line in lines] == [
        None,
        "without the large model: no memory",
        None,
    ]
    assert "degraded" not in lines[0]
    assert lines[0]["nbest"][0]["llm"] == 0.0
    use = read_use([tmp_path])
    assert (use.overall.utterances, use.overall.degraded) == (3, 1)


def test_the_page_can_say_what_was_said_before(served, model):
    with served.page() as page:
        page.next("hello")
        assert served.post("context", {"text": " are you there "}).status_code == 200
        assert page.next("state")["context"] == "are you there"
        served.post("start", {"trial": 0})
        page.next("utterance")
        assert served.post("context", {}).status_code == 200
        served.post("start", {"trial": 0})
        page.next("utterance")
    assert model.contexts == ["are you there", ""]
    assert served.post("context", {"text": 3}).status_code == 400
    wrong = served.post("options", {"llm": {"weigth": 1}})
    assert (wrong.status_code, wrong.json()) == (
        400,
        {"error": "unknown option llm.weigth; did you mean 'weight'?"},
    )
    long = served.post("options", {"llm": {"budget_ms": 60_000}})
    assert (long.status_code, "live it must be at most 1000" in long.json()["error"]) == (400, True)


def test_without_a_model_there_is_nobody_to_read_a_context(page_root, plain):
    session = DecodingThread(DayPipeline(Hearing("latest"), plain), Replay(page_root / "data"))
    with serving(session) as served:
        answer = served.post("context", {"text": "how are you"})
        assert answer.status_code == 409
        assert "--llm" in answer.json()["error"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("brand"))


def test_a_node_ranks_with_a_real_model_and_says_when_it_could_not(
    redis_server, world, tiny_lm_dir, monkeypatch
):
    contexts = []
    rank = LLM.rank

    def ranked(self, lists, options, context="", progress=None):
        contexts.append(context)
        return rank(self, lists, options, context, progress)

    monkeypatch.setattr(LLM, "rank", ranked)
    rig = Rig(redis_server, world, llm=str(tiny_lm_dir), llm_device="cpu", context="how are you")
    try:
        rig.start()
        contexts.clear()
        features_TC = world.trials()[0]
        rig.say(features_TC)
        final = rig.final(1)
        candidates = json.loads(final[b"nbest"])
        _, nbest = world.offline(features_TC)
        assert {found["text"] for found in candidates} == set(nbest.texts)
        assert all(found["llm"] < 0 for found in candidates)
        assert (final[b"degraded"], final[b"error"]) == (b"", b"")
        options = DecoderOptions()
        for candidate in candidates:
            total = options.acoustic_scale * candidate["acoustic"]
            total += 0.5 * candidate["ngram"] + 0.5 * candidate["llm"]
            total += options.word_score * len(candidate["text"].split())
            assert candidate["score"] == pytest.approx(total, abs=1e-3)

        def fail(self, *args):
            raise LanguageModelError("no memory")

        monkeypatch.setattr(LLM, "read", fail)
        rig.redis.xadd("marks", {"command": "start", "trial": 2, "context": "are you there"})
        rig.say(features_TC, marks=False)
        rig.mark("stop", 2, rig.i - 1)
        final = rig.final(2)
        assert b"no memory" in final[b"degraded"]
        assert final[b"text"].decode() == nbest[0].text
        assert contexts == ["how are you", "are you there"]
    finally:
        rig.close()


def test_a_model_without_an_n_gram_has_nothing_to_rank():
    with pytest.raises(ConfigError, match=r"parameters.llm is given without parameters.lm"):
        NodeConfig(run="run", llm="model")


def test_a_flag_of_the_node_goes_before_the_graph(redis_server, world, tmp_path):
    pytest.importorskip("transformers")
    rig = Rig(redis_server, world, llm=str(tmp_path / "graphs"))
    rig.publish()
    with pytest.raises(LanguageModelError, match="flags"):
        run_node(
            "speech",
            redis_server.url,
            Event(),
            {"llm": str(tmp_path / "flags")},
        )
    assert any("flags" in message for message in rig.messages(b"NODE_FATAL_ERROR"))
