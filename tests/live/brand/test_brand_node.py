import json
import shutil
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from brand_rig import DAYS, N_FEATURES, Process, Rig, Thread, make_world
from page_worlds import SPANISH
from redis_process import wait_for

from cortext.errors import LiveError, RunError
from cortext.models import load_model, save_model
from cortext_live.brand.process import run_node
from cortext_live.core.pipeline import Pipeline


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("brand"))


@pytest.fixture
def make_rig(redis_server, world):
    made = []

    def make(**parameters):
        made.append(Rig(redis_server, world, **parameters))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


@pytest.fixture
def rig(make_rig):
    rig = make_rig()
    rig.start()
    return rig


@pytest.fixture
def impatient(monkeypatch):
    """Marks wait a tenth of a second for entries that do not come."""
    monkeypatch.setattr("cortext_live.brand.control.PATIENCE_S", 0.1)


def uint64(value):
    return int(np.frombuffer(value, dtype=np.uint64)[0])


def test_a_trial_between_its_marks_gives_the_offline_text_logits_and_candidates(rig, world):
    for number, features_TC in enumerate(world.trials()):
        rig.say(features_TC, trial=number)
    texts = []
    for number, features_TC in enumerate(world.trials()):
        logits_PV, nbest = world.offline(features_TC)
        final = rig.final(number + 1)
        assert (final[b"text"].decode(), final[b"error"], final[b"ended"]) == (
            nbest[0].text,
            b"",
            b"stop",
        )
        assert final[b"trial"] == str(number).encode()
        candidates = json.loads(final[b"nbest"])
        assert [candidate["text"] for candidate in candidates] == nbest.texts
        np.testing.assert_allclose(
            [c["score"] for c in candidates], [h.score for h in nbest], rtol=1e-4
        )
        steps = [
            e for e in rig.entries("speech_output") if e[b"utterance"] == str(number + 1).encode()
        ]
        found_PV = np.concatenate(
            [np.frombuffer(e[b"logits"], dtype=np.float32) for e in steps]
        ).reshape(-1, 41)
        np.testing.assert_allclose(found_PV, logits_PV, atol=1e-4)
        texts.append(nbest[0].text)
    assert any(texts)  # the comparison compares something


def test_outputs_carry_the_clock_their_numbers_and_the_labels_of_the_data(rig, world):
    before = time.monotonic_ns()
    rig.say(world.trials()[0])
    final = rig.final(1)
    steps = rig.entries("speech_output")
    assert [uint64(e[b"i"]) for e in steps] == list(range(len(steps)))
    # smoothing takes 9 taps, the patch 14 bins: the first frame comes with bin 21 and then one
    # every 4 bins
    first = uint64(steps[0][b"i_in"])
    assert [uint64(e[b"i_in"]) for e in steps] == [first + 4 * k for k in range(len(steps))]
    assert [json.loads(e[b"sync"]) for e in steps] == [
        {"nsp1_clock": 600 * (first + 4 * k)} for k in range(len(steps))
    ]
    times = [uint64(e[b"ts"]) for e in [*steps, final]]
    assert before < times[0]
    assert times == sorted(times)
    assert uint64(final[b"i_in"]) == 89


def test_states_are_told_in_their_order_and_sigint_ends_the_utterance_by_name(rig, world):
    rig.mark("start", 0, 0)
    for bin_TC in world.trials()[0][:60, None]:
        rig.send(bin_TC.tobytes())
    wait_for(lambda: rig.entries("speech_output"), "a step")
    rig.nodes[0].end()
    assert rig.nodes[0].error is None
    final = rig.final(1)
    assert (final[b"ended"], final[b"error"]) == (
        b"shutdown",
        b"the node was shut down in mid-utterance",
    )
    assert [s for s in rig.states() if s != "NODE_WARNING"] == [
        "NODE_STARTED",
        "NODE_READY",
        "NODE_SHUTDOWN",
    ]


def test_several_bins_in_an_entry_and_other_names_and_dtypes_decode_the_same(make_rig, world):
    names = {
        "input_stream": "features",
        "input_field": "x",
        "input_dtype": ">f8",
        "sync_key": "labels",
    }
    names |= {
        "time_key": "when",
        "output_stream": "o",
        "final_stream": "f",
        "final_field": "said",
        "index_field": "n",
    }
    rig = make_rig(
        bins_per_entry=3, **names, control_field="what", start_value="go", stop_value="done"
    )
    rig.start()
    x_TC = world.trials()[1]  # 117 bins, 39 entries
    rig.redis.xadd("marks", {"what": "go", "n": 0, "trial": "a"})
    for n in range(39):
        samples = x_TC[3 * n : 3 * n + 3].astype(">f8").tobytes()
        rig.redis.xadd("features", {"x": samples, "n": n, "labels": b'{"a": 1}'})
    rig.redis.xadd("marks", {"what": "done", "n": 38})
    [final] = wait_for(lambda: rig.entries("f"), "a result")
    assert final[b"said"].decode() == world.offline(x_TC)[1][0].text
    assert (final[b"labels"], uint64(final[b"n_in"]), final[b"trial"]) == (b'{"a": 1}', 38, b"a")
    assert b"when" in final
    assert rig.entries("o")


def test_without_a_language_model_there_are_logits_and_no_text(make_rig, world):
    rig = make_rig(lm=None)
    rig.start()
    rig.say(world.trials()[0])
    assert rig.final(1)[b"text"] == b""
    assert rig.entries("speech_output")


@pytest.mark.slow
def test_the_model_can_be_run_by_onnx_runtime(make_rig, world, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    from cortext_live.steps.onnx import export_onnx

    export_onnx(world.run, tmp_path / "exported")
    rig = make_rig(run=str(tmp_path / "exported"), backend="onnx", day=DAYS[0])
    rig.start()
    rig.say(world.trials()[1])
    assert rig.final(1)[b"text"].decode() == world.offline(world.trials()[1], DAYS[0])[1][0].text


def test_the_day_can_be_chosen(make_rig, world):
    rig = make_rig(day=DAYS[0])
    rig.start()
    rig.say(world.trials()[0])
    rig.final(1)
    found = np.concatenate(
        [np.frombuffer(e[b"logits"], dtype=np.float32) for e in rig.entries("speech_output")]
    )
    logits_PV = world.offline(world.trials()[0], DAYS[0])[0]
    np.testing.assert_allclose(found.reshape(-1, 41), logits_PV, atol=1e-4)
    # The days differ.
    assert not np.allclose(logits_PV, world.offline(world.trials()[0])[0], atol=0.1)
    assert f"day {DAYS[0]}" in rig.messages(b"NODE_READY")[0]


def test_times_follow_from_the_bins_of_the_model_which_it_states(make_rig, world, tmp_path):
    model = load_model(world.run)
    model.conventions = replace(model.conventions, bin_ms=10)
    save_model(model, tmp_path / "run")
    rig = make_rig(run=str(tmp_path / "run"), bin_ms=10)
    rig.start()
    [ready] = [e for e in rig.entries("speech_state") if e[b"status"] == b"NODE_READY"]
    assert json.loads(ready[b"conventions"]) == {"bin_ms": 10}
    assert b"look-ahead 40 ms" in ready[b"message"]
    x_TC = world.trials()[0]
    rig.say(x_TC)
    fields = rig.final(1)
    [word, *_] = json.loads(fields[b"nbest"])[0]["words"]
    [offline, *_] = world.offline(x_TC)[1].hypotheses[0].words  # as of bins of 20 ms
    assert (word["word"], word["end_ms"]) == (offline.word, offline.end_ms / 2)


@pytest.mark.parametrize("what", ["tokens", "language"])
def test_a_language_model_for_other_models_is_a_fatal_error(make_rig, world, tmp_path, what):
    if what == "tokens":
        lm = SPANISH.write_lm(tmp_path / "lm")
    else:
        lm = shutil.copytree(world.lm, tmp_path / "lm")
        facts = json.loads((lm / "lm.json").read_text())
        (lm / "lm.json").write_text(json.dumps(facts | {"language": "es"}))
    rig = make_rig(lm=str(lm))
    wait_for(rig.start().ended, "the end of the node")
    [told] = rig.messages(b"NODE_FATAL_ERROR")
    found = {"tokens": "the blank is _, not BLANK", "language": "the language 'es' is not 'en'"}
    assert f"the language model and the model differ: in the language model {found[what]}" in told
    assert "\n" not in told


def test_without_a_control_stream_an_utterance_ends_by_itself(make_rig, world):
    rig = make_rig(control_stream=None, max_ms=1600)  # 20 frames
    rig.start()
    x_TC = world.trials()[3]
    rig.say(x_TC, marks=False)
    final = rig.final(1)
    assert final[b"ended"] in (b"length", b"silence")
    n_bins = int(final[b"n_bins"])
    assert n_bins <= 9 + 14 + 19 * 4  # the last bin of frame 20, with the smoothing's look-ahead
    assert final[b"text"].decode() == world.offline(x_TC[:n_bins])[1][0].text
    assert rig.final(2)[b"ended"] in (b"length", b"silence")  # and what follows is another one


def test_bins_after_the_end_of_an_utterance_in_the_same_entry_begin_the_next_one(make_rig, world):
    rig = make_rig(control_stream=None, max_ms=1600, bins_per_entry=None)
    rig.start()
    x_TC = np.tile(world.trials()[3], (2, 1))[:300]
    rig.say(x_TC, marks=False, every=150)  # an utterance has at most 99 bins
    first, second = rig.final(1), rig.final(2)
    n_first, n_second = int(first[b"n_bins"]), int(second[b"n_bins"])
    assert max(n_first, n_second) <= 99
    assert first[b"text"].decode() == world.offline(x_TC[:n_first])[1][0].text
    assert second[b"text"].decode() == world.offline(x_TC[n_first : n_first + n_second])[1][0].text


def test_marks_may_be_announced_long_before_the_entries_that_they_name(rig, world, impatient):
    x_TC = world.trials()[0]
    rig.mark("start", 1, 10)
    rig.mark("stop", 1, 99)
    for n in range(110):
        rig.send(x_TC[(n - 10) % 90].tobytes())
        if n % 10 == 0:
            time.sleep(0.02)
    final = rig.final(1)
    assert (final[b"n_bins"], final[b"error"]) == (b"90", b"")
    assert final[b"text"].decode() == world.offline(x_TC)[1][0].text


def test_marks_that_wait_for_numbers_that_began_anew_are_carried_out(rig, world):
    x_TC = world.trials()[0]
    rig.mark("start", 1, 0)
    for bin_C in x_TC:
        rig.send(bin_C.tobytes())
    wait_for(lambda: rig.redis.hget("speech_position", "i_in") == b"89", "its position")
    rig.mark("stop", 1, 200)  # its source died before
    rig.i = 0
    rig.say(x_TC, 2)
    first, second = rig.final(1), rig.final(2)
    assert first[b"error"] == b"111 entries lost (i 90 to 200)"
    assert (second[b"n_bins"], second[b"error"]) == (b"90", b"")
    assert first[b"text"] == second[b"text"]


@pytest.mark.parametrize("step", ["push", "finish"])
def test_an_utterance_that_the_model_fails_on_ends_in_an_error_and_the_next_is_decoded(
    rig, world, monkeypatch, step
):
    works, failed = getattr(Pipeline, step), []

    def failing(self, *given):
        if not failed and self.n_bins > 40:
            failed.append(1)
            raise RunError("its output is not finite")
        return works(self, *given)

    monkeypatch.setattr(Pipeline, step, failing)
    for number in (0, 1):
        rig.say(world.trials()[number], number)
    assert b"failed: " in rig.final(1)[b"error"]
    assert b"its output is not finite" in rig.final(1)[b"error"]
    assert rig.final(2)[b"error"] == b""
    assert rig.final(2)[b"text"].decode() == world.offline(world.trials()[1])[1][0].text
    assert "NODE_FATAL_ERROR" not in rig.states()


def test_a_second_node_of_the_same_name_is_mentioned(rig):
    rig.start_again()
    assert any(
        "another node speech is connected from 127.0.0.1" in message for message in rig.messages()
    )


def test_bins_outside_of_trials_are_left_alone(rig, world):
    x_TC = world.trials()[0]
    rig.say(x_TC[:40], marks=False)
    rig.send(b"nonsense")
    rig.say(x_TC)
    final = rig.final(1)
    assert (final[b"n_bins"], final[b"error"]) == (b"90", b"")
    assert final[b"text"].decode() == world.offline(x_TC)[1][0].text


def test_marks_without_numbers_are_placed_by_time(rig, world):
    x_TC = world.trials()[0]
    rig.mark("start")
    for bin_C in x_TC:
        rig.send(bin_C.tobytes())
    rig.mark("stop")
    final = rig.final(1)
    assert (final[b"n_bins"], final[b"text"].decode()) == (b"90", world.offline(x_TC)[1][0].text)


def test_a_second_start_ends_the_trial_before_it_by_name(rig, world):
    x_TC = world.trials()[0]
    rig.mark("start", 7, 0)
    for bin_C in x_TC:
        rig.send(bin_C.tobytes())
    rig.say(x_TC, trial=8)
    first, second = rig.final(1), rig.final(2)
    assert (first[b"trial"], first[b"ended"], first[b"error"]) == (
        b"7",
        b"start",
        b"no stop came before the next start",
    )
    assert first[b"text"] == second[b"text"] == world.offline(x_TC)[1][0].text.encode()
    assert second[b"error"] == b""


def test_a_block_that_begins_in_mid_trial_ends_it_by_name(make_rig, world):
    rig = make_rig(normalise="rolling")
    rig.start()
    rig.mark("start", 1, 0)
    for bin_C in world.trials()[0]:
        rig.send(bin_C.tobytes())
    rig.mark("block", i=90)
    rig.say(world.trials()[0], 2)
    first, second = rig.final(1), rig.final(2)
    assert (first[b"ended"], first[b"error"]) == (b"block", b"a block began before its stop came")
    assert (second[b"ended"], second[b"error"], second[b"n_bins"]) == (b"stop", b"", b"90")


def test_a_trial_without_bins_ends_in_a_named_error(rig, impatient):
    rig.mark("start", 0, 0)
    rig.mark("stop", 0)
    final = rig.final(1)
    assert (final[b"text"], final[b"error"]) == (b"", b"no usable bins came")


FLAWS = {
    "NaN": (
        lambda x_C: np.where(np.arange(N_FEATURES) > 3, np.nan, x_C).astype("f4").tobytes(),
        "NaN or infinity",
    ),
    "few bytes": (
        lambda x_C: x_C.tobytes()[:-4],
        "samples has 28 bytes; 32 are needed for 8 float32",
    ),
    "many bytes": (lambda x_C: 1000 * x_C.tobytes(), "samples has 32000 bytes; 32 are needed"),
    "no field": (lambda x_C: None, "no field 'samples'"),
    "doubles": (
        lambda x_C: x_C.astype("f8").tobytes(),
        "samples has 64 bytes; 32 are needed for 8 float32 (float64",
    ),
    "integers": (lambda x_C: np.arange(8, dtype="i4").tobytes(), "input_dtype is not float32"),
    "other byte order": (lambda x_C: x_C.astype(">f4").tobytes(), "input_dtype is not float32"),
    "text": (lambda x_C: "0.1, 0.2", "samples has 8 bytes"),
}


def test_an_entry_that_cannot_be_bins_is_named_and_left_out(rig, world):
    x_TC = world.trials()[0]
    text = world.offline(np.delete(x_TC, [40, 50], axis=0))[1][0].text
    for number, (spoil, words) in enumerate(FLAWS.values(), 1):
        rig.mark("start", 0, rig.i)
        first = rig.i
        for n, bin_C in enumerate(x_TC):
            rig.send(bin_C.tobytes() if n not in (40, 50) else spoil(bin_C))
        rig.mark("stop", 0, rig.i - 1)
        final = rig.final(number)
        assert final[b"n_unusable"] == b"2"
        assert f"entry i {first + 40} is unusable" in final[b"error"].decode()
        assert words in final[b"error"].decode()
        assert final[b"text"].decode() == text
        assert any(f"entry i {first + 40} is unusable" in message for message in rig.messages())
    rig.say(x_TC)  # and the next one is as ever
    assert rig.final(len(FLAWS) + 1)[b"error"] == b""


def test_a_channel_of_nan_is_named_once_and_the_words_still_come(rig, world):
    x_TC = world.trials()[0]
    x_TC[:, 3] = np.nan
    rig.say(x_TC)
    final = rig.final(1)
    assert (final[b"n_unusable"], final[b"error"]) == (b"0", b"")
    assert final[b"text"]
    assert sum("feature 3: NaN" in message for message in rig.messages()) == 1


def test_an_utterance_of_nothing_but_foreign_bytes_names_a_few_and_counts_the_others(rig):
    rig.say(np.zeros((100, N_FEATURES // 2)))
    final = rig.final(1)
    assert (final[b"text"], final[b"n_unusable"]) == (b"", b"100")
    # 100 entries and "no usable bins came", less 5 named.
    assert final[b"error"].decode().endswith("; and 96 more")
    assert len(rig.messages()) == 5


def test_lost_entries_are_named_even_at_the_edges_of_a_trial(rig, world, impatient):
    x_TC = world.trials()[0]
    rig.mark("start", 0, 0)
    lost = {0, 1, 40, 41, 42, 88, 89}
    for bin_C in x_TC:
        if rig.i in lost:
            rig.i += 1
        else:
            rig.send(bin_C.tobytes())
    rig.mark("stop", 0, 89)
    final = rig.final(1)
    assert final[b"n_lost"] == b"7"
    expected = "2 entries lost (i 0 to 1); 3 entries lost (i 40 to 42); 2 entries lost (i 88 to 89)"
    assert final[b"error"].decode() == expected
    kept = [n for n in range(90) if n not in lost]
    assert final[b"text"].decode() == world.offline(x_TC[kept])[1][0].text


def test_numbers_that_begin_anew_are_no_loss(rig, world):
    x_TC = world.trials()[0]
    rig.say(x_TC)
    rig.final(1)
    rig.i = 0
    rig.say(x_TC)
    assert rig.final(2)[b"error"] == b""
    rig.i = 1000  # a pause between trials is nobody's loss
    rig.say(x_TC)
    assert rig.final(3)[b"error"] == b""


def test_a_slow_node_gives_what_a_fast_one_gives_and_names_what_was_trimmed_away(make_rig, world):
    rig = make_rig()
    rig.start()
    x_TC = np.tile(world.trials()[3], (10, 1))
    rig.server.freeze()  # the node waits for an answer; entries wait in the socket
    rig.server.thaw()
    pipe = rig.redis.pipeline()
    pipe.xadd("marks", {"command": "start", "i": 0, "trial": 0})
    for n, bin_C in enumerate(x_TC):
        pipe.xadd(
            "binned_spikes", {"samples": bin_C.tobytes(), "i": n}, maxlen=500, approximate=False
        )
    pipe.xadd("marks", {"command": "stop", "i": len(x_TC) - 1})
    pipe.execute()  # all at once, and only the newest 500 are kept
    final = rig.final(1)
    assert int(final[b"n_lost"]) == len(x_TC) - 500
    assert f"{len(x_TC) - 500} entries lost (i 0 to {len(x_TC) - 501})" in final[b"error"].decode()
    assert final[b"text"].decode() == world.offline(x_TC[-500:])[1][0].text


def test_redis_restarted_in_mid_utterance_loses_no_utterance_silently(rig, world):
    x_TC = world.trials()[3]
    rig.mark("start", 5, 0)
    for bin_C in x_TC[:100]:
        rig.send(bin_C.tobytes())
    # It has read all of them.
    wait_for(lambda: rig.redis.hget("speech_position", "i_in") == b"99", "its position")
    rig.server.restart()  # nothing is kept
    for bin_C in x_TC[100:]:
        rig.send(bin_C.tobytes())
    rig.mark("stop", 5, len(x_TC) - 1)
    final = rig.final(1)
    assert "Redis was emptied in mid-utterance" in final[b"error"].decode()
    assert (final[b"n_bins"], final[b"n_lost"]) == (b"203", b"0")
    # No bin was lost, so neither is the text.
    assert final[b"text"].decode() == world.offline(x_TC)[1][0].text
    assert "NODE_READY" in rig.states()  # whoever supervises learns of it in the new streams
    rig.say(x_TC, 6)
    assert rig.final(2)[b"error"] == b""


def test_redis_flushed_in_mid_utterance_loses_no_utterance_silently(rig, world):
    x_TC = world.trials()[3]
    rig.mark("start", 5, 0)
    for bin_C in x_TC[:100]:
        rig.send(bin_C.tobytes())
    wait_for(lambda: len(rig.entries("speech_output")) > 19, "steps")
    rig.i += 3  # entries that were flushed before they were read
    rig.redis.flushall()
    for bin_C in x_TC[103:]:
        rig.send(bin_C.tobytes())
    rig.mark("stop", 5, len(x_TC) - 1)
    final = rig.final(1)
    assert "3 entries lost (i 100 to 102)" in final[b"error"].decode()
    assert "Redis was emptied in mid-utterance" in final[b"error"].decode()


def test_a_redis_that_stalls_costs_nothing(rig, world):
    x_TC = world.trials()[0]
    rig.mark("start", 5, 0)
    for bin_C in x_TC[:50]:
        rig.send(bin_C.tobytes())
    rig.server.freeze()
    time.sleep(0.3)
    rig.server.thaw()
    for bin_C in x_TC[50:]:
        rig.send(bin_C.tobytes())
    rig.mark("stop", 5, 89)
    final = rig.final(1)
    assert (final[b"error"], final[b"text"].decode()) == (b"", world.offline(x_TC)[1][0].text)


def test_a_redis_without_memory_is_waited_for(rig, world):
    x_TC = world.trials()[0]
    rig.mark("start", 5, 0)
    for bin_C in x_TC:
        rig.send(bin_C.tobytes())
    rig.server.set_maxmemory("1mb")  # it holds more: every write is refused, also the node's
    time.sleep(0.2)
    rig.server.set_maxmemory("0")
    rig.mark("stop", 5, 89)
    final = rig.final(1)
    assert (final[b"error"], final[b"text"].decode()) == (b"", world.offline(x_TC)[1][0].text)


def test_a_trial_that_began_before_the_node_was_ready_is_missed_by_name(make_rig, world):
    rig = make_rig()
    x_TC = world.trials()[0]
    rig.mark("start", 3, 0)
    for bin_C in x_TC[:20]:
        rig.send(bin_C.tobytes())
    rig.start()
    for bin_C in x_TC[20:]:
        rig.send(bin_C.tobytes())
    rig.mark("stop", 3, 89)
    rig.say(x_TC, 4)
    missed, heard = rig.final(1), rig.final(2)
    assert (missed[b"trial"], missed[b"ended"]) == (b"3", b"missed")
    assert missed[b"error"].decode().startswith("missed: it began before the node was ready")
    assert (heard[b"trial"], heard[b"error"], heard[b"n_bins"]) == (b"4", b"", b"90")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"n_features": 512}, "parameters.n_features is 512; the model needs 8"),
        ({"bin_ms": 10}, "parameters.bin_ms is 10; the model reads bins of 20 ms"),
        ({"day": "t15.2023.08.12"}, "the model knows no session 't15.2023.08.12'; did you mean"),
        ({"run": "/nowhere/run"}, "/nowhere/run/model.json: no model here"),
        ({"lm": "/nowhere/lm"}, "/nowhere/lm"),
        ({"plugins": ["/nowhere/own.py"]}, "/nowhere/own.py: there is no such file"),
        ({"hotwords": {"": 3.0}}, ""),
        ({"input_stream": "speech_final", "control_stream": "supergraph_stream"}, None),
    ],
)
def test_what_a_node_cannot_begin_with_is_a_fatal_error_by_name(make_rig, parameters, words):
    rig = make_rig(**parameters)
    node = rig.start()
    if words is None:  # odd, but its streams are streams
        assert rig.states() == ["NODE_STARTED", "NODE_READY"]
        return
    wait_for(node.ended, "the end of the node")
    assert rig.states() == ["NODE_STARTED", "NODE_FATAL_ERROR"]
    assert words in rig.messages(b"NODE_FATAL_ERROR")[0]
    assert str(node.error) == rig.messages(b"NODE_FATAL_ERROR")[0]


def test_a_stream_whose_name_is_taken_by_another_kind_of_key_is_a_fatal_error(make_rig):
    rig = make_rig()
    rig.redis.set("binned_spikes", "no stream")
    node = rig.start()
    wait_for(node.ended, "the end of the node")
    assert rig.states()[-1] == "NODE_FATAL_ERROR"
    assert "WRONGTYPE" in rig.messages(b"NODE_FATAL_ERROR")[0]


def test_a_unix_socket_goes_before_host_and_port(make_redis, world, tmp_path):
    server = make_redis(unixsocket=str(tmp_path / "redis.sock")).start()
    rig = Rig(server, world)
    rig.publish()
    rig.nodes.append(Thread(port=1, socket=str(tmp_path / "redis.sock")))
    wait_for(lambda: "NODE_READY" in rig.states(), "NODE_READY")
    rig.close()
    assert rig.states()[-1] == "NODE_SHUTDOWN"


def test_a_redis_that_does_not_answer_ends_the_node_at_once(redis_server):
    redis_server.stop()
    with pytest.raises(LiveError, match=rf"127.0.0.1:{redis_server.port}: Redis does not answer"):
        run_node("speech", redis_server.url, threading.Event())


def test_after_a_shutdown_nothing_counts_as_missed(make_rig, world):
    rig = make_rig()
    rig.start()
    rig.say(world.trials()[0], 1)
    rig.final(1)
    rig.nodes[0].end()
    rig.say(world.trials()[0], 2)
    rig.start_again()
    rig.say(world.trials()[0], 3)
    assert rig.final(2)[b"trial"] == b"3"
    assert rig.messages() == []


def test_the_position_stays_before_an_entry_that_waits(rig, world, monkeypatch):
    monkeypatch.setattr("cortext_live.brand.node.WAIT_S", 30.0)
    x_TC = world.trials()[0]
    rig.mark("start", 1, 0)
    for bin_C in x_TC[:10]:
        rig.send(bin_C.tobytes())
    wait_for(lambda: rig.redis.hget("speech_position", "i_in") == b"9", "its position")
    rig.i = 11
    rig.send(x_TC[11].tobytes())
    time.sleep(0.3)
    taken = rig.redis.xrange("binned_spikes")[9][0]
    # A node after it counts it as missed.
    assert rig.redis.hmget("speech_position", "id_in", "i_in") == [
        taken,
        b"9",
    ]
    rig.i = 10
    rig.send(x_TC[10].tobytes())
    wait_for(lambda: rig.redis.hget("speech_position", "i_in") == b"11", "both of them")
    assert rig.redis.hget("speech_position", "id_in") == rig.redis.xrevrange("binned_spikes")[0][0]


@pytest.mark.parametrize("how", ["a pause", "a mark without a number"])
def test_the_position_goes_on_when_an_entry_waits_no_longer(rig, world, monkeypatch, how):
    if how != "a pause":
        monkeypatch.setattr("cortext_live.brand.node.WAIT_S", 30.0)
    x_TC = world.trials()[0]
    rig.mark("start", 1, 0)
    for n in (*range(10), 11):
        rig.i = n
        rig.send(x_TC[n].tobytes())
    wait_for(lambda: rig.redis.hget("speech_position", "i_in") in (b"9", b"11"), "its position")
    if how != "a pause":
        rig.mark("stop")
    wait_for(lambda: rig.redis.hget("speech_position", "i_in") == b"11", "the last entry")
    assert rig.redis.hget("speech_position", "id_in") == rig.redis.xrevrange("binned_spikes")[0][0]


def test_what_others_write_among_the_marks_holds_nothing_up(rig, world, impatient):
    x_TC = world.trials()[0]
    rig.mark("start", 1, 0)
    for n in (*range(60), 61):
        rig.i = n
        rig.send(x_TC[n].tobytes())

    def others_write(what, seen):
        for _ in range(2000):
            rig.redis.xadd("marks", {"command": "somebody_else"})
            if seen():
                return
            time.sleep(0.001)
        raise AssertionError(f"{what} never came")

    others_write("the early entry", lambda: rig.redis.hget("speech_position", "i_in") == b"61")
    rig.mark("stop", 1, 70)  # of entries that do not come
    others_write("the result", lambda: rig.redis.xlen("speech_final"))
    assert rig.final(1)[b"n_bins"] == b"61"
    rig.mark("start", 2)
    rig.send(x_TC[62].tobytes())
    rig.mark("stop", 2)
    others_write(
        "the result of a stop without a number", lambda: rig.redis.xlen("speech_final") == 2
    )


def test_what_waits_when_the_node_is_shut_down_is_decoded(rig, world, monkeypatch):
    monkeypatch.setattr("cortext_live.brand.node.WAIT_S", 30.0)
    x_TC = world.trials()[0]
    rig.mark("start", 1, 0)
    for bin_C in x_TC[:79]:
        rig.send(bin_C.tobytes())
    wait_for(lambda: rig.redis.hget("speech_position", "i_in") == b"78", "its position")
    pipe = rig.redis.pipeline()  # they are read at once, so that 81 waits when 79 is taken
    for n in (79, 81):
        pipe.xadd("binned_spikes", {"samples": x_TC[n].tobytes(), "i": n})
    pipe.execute()
    wait_for(lambda: rig.redis.hget("speech_position", "i_in") == b"79", "its position")
    rig.nodes[0].end()
    final = rig.final(1)
    assert (final[b"n_bins"], final[b"n_lost"]) == (b"81", b"1")
    assert final[b"text"].decode() == world.offline(np.delete(x_TC[:82], 80, axis=0))[1][0].text


def test_a_node_that_was_killed_before_it_wrote_its_position_gives_no_result_twice(make_rig, world):
    rig = make_rig()
    rig.start()
    x_TC = world.trials()[0]
    rig.say(x_TC, 1)
    rig.final(1)
    wait_for(lambda: rig.redis.hget("speech_position", "running") == b"0", "its position")
    before = rig.redis.hgetall("speech_position")
    rig.say(x_TC, 2)
    rig.say(x_TC, 3)
    rig.final(3)
    rig.nodes[0].end()
    rig.redis.hset("speech_position", mapping=before)  # results are written before the position
    rig.say(x_TC, 4)  # with nobody there
    rig.start_again()
    rig.say(x_TC, 5)
    rig.final(5)
    finals = [(e[b"utterance"], e[b"trial"], e[b"ended"]) for e in rig.entries("speech_final")]
    ended = [b"stop", b"stop", b"stop", b"missed", b"stop"]
    assert finals == [(b"%d" % n, b"%d" % n, ended[n - 1]) for n in range(1, 6)]
    steps = [uint64(e[b"i"]) for e in rig.entries("speech_output")]
    assert steps == list(range(len(steps)))


def test_a_source_that_begins_anew_with_its_marks_at_once_loses_nothing(rig, world):
    x_TC = world.trials()[0]
    rig.say(x_TC, 1)
    rig.final(1)
    rig.i = 0
    pipe = rig.redis.pipeline()  # within a millisecond marks come before data
    pipe.xadd("marks", {"command": "start", "i": 0, "trial": 2})
    for n, bin_C in enumerate(x_TC):
        pipe.xadd("binned_spikes", {"samples": bin_C.tobytes(), "i": n})
    pipe.xadd("marks", {"command": "stop", "i": 89})
    pipe.execute()
    final = rig.final(2)
    assert (final[b"error"], final[b"n_bins"], final[b"trial"]) == (b"", b"90", b"2")


def test_stops_of_numbers_that_never_come_keep_no_trial_waiting(rig, world):
    x_TC = world.trials()[0]
    for _ in range(3):
        rig.mark("stop", 1, 100_000)
    rig.say(x_TC, 2)
    final = rig.final(1)
    assert (final[b"trial"], final[b"n_bins"], final[b"error"]) == (b"2", b"90", b"")
    assert (
        sum("i 100000 is beyond 0 of the start after it" in message for message in rig.messages())
        == 3
    )


def test_a_mark_with_two_problems_names_both(rig, world):
    rig.mark("stop", "x" * 70_000, 100_000)
    rig.say(world.trials()[0], 2)
    rig.final(1)
    [message] = [
        m for m in rig.messages() if "trial has 70000 bytes; at most 65536 are copied" in m
    ]
    assert "i 100000 is beyond 0 of the start after it" in message


def test_a_start_that_comes_after_its_first_entries_loses_none_of_them(rig, world):
    x_TC = world.trials()[0]
    rig.say(world.trials()[1], marks=False)
    first = rig.i
    for bin_C in x_TC[:10]:
        rig.send(bin_C.tobytes())
    wait_for(
        lambda: rig.redis.hget("speech_position", "i_in") == b"%d" % (first + 9), "its position"
    )
    rig.mark("start", 1, first)
    for bin_C in x_TC[10:]:
        rig.send(bin_C.tobytes())
    rig.mark("stop", 1, rig.i - 1)
    final = rig.final(1)
    assert (final[b"error"], final[b"n_bins"]) == (b"", b"90")
    assert final[b"text"].decode() == world.offline(x_TC)[1][0].text


def test_what_went_by_long_before_its_start_was_read_is_named(rig, world):
    x_TC = world.trials()[1]  # entries 0 to 116, of which 53 to 116 are held
    rig.say(x_TC, marks=False)
    wait_for(lambda: rig.redis.hget("speech_position", "i_in") == b"116", "its position")
    rig.mark("start", 1, 20)
    for bin_C in x_TC[:10]:
        rig.send(bin_C.tobytes())
    rig.mark("stop", 1, rig.i - 1)
    final = rig.final(1)
    assert final[b"error"] == b"33 entries went by before the start was read (i 20 to 52)"
    assert (final[b"n_bins"], final[b"n_lost"]) == (b"74", b"33")


def test_a_late_stop_goes_before_a_start_that_was_announced(rig, world):
    x_TC = world.trials()[0]
    rig.mark("start", 1, 0)
    rig.mark("start", 2, 90)
    rig.mark("stop", 1, 79)
    for bin_C in np.concatenate((x_TC, x_TC)):
        rig.send(bin_C.tobytes())
    rig.mark("stop", 2, 179)
    first, second = rig.final(1), rig.final(2)
    assert [(e[b"trial"], e[b"n_bins"], e[b"ended"], e[b"error"]) for e in (first, second)] == [
        (b"1", b"80", b"stop", b""),
        (b"2", b"90", b"stop", b""),
    ]


@pytest.mark.slow
def test_a_node_that_is_killed_at_the_beginning_of_a_trial_knows_which_one_it_was(make_rig, world):
    rig = make_rig()
    node = rig.start(process=True)
    rig.mark("start", "early", 0)
    for bin_C in world.trials()[0][:5]:  # too few for a frame
        rig.send(bin_C.tobytes())
    wait_for(lambda: rig.redis.hget("speech_position", "i_in") == b"4", "its position")
    node.command.kill()
    rig.start_again()
    final = rig.final(1)
    assert (final[b"trial"], final[b"ended"]) == (b"early", b"missed")
    assert final[b"error"].decode().startswith("interrupted: the node was killed in mid-utterance;")


@pytest.mark.slow
def test_a_killed_node_resumes_at_the_next_utterance_and_says_what_it_missed(make_rig, world):
    rig = make_rig()
    node = rig.start(process=True)
    x_TC = world.trials()[3]
    rig.say(x_TC, 1)
    rig.final(1)
    rig.mark("start", 2, rig.i)
    for bin_C in x_TC[:100]:
        rig.send(bin_C.tobytes())
    # it has decoded these 100 bins when its position says so
    wait_for(
        lambda: rig.redis.hget("speech_position", "i_in") == str(rig.i - 1).encode(), "its position"
    )
    steps = [e for e in rig.entries("speech_output") if e[b"trial"] == b"2"]
    node.command.kill()
    for bin_C in x_TC[100:]:
        rig.send(bin_C.tobytes())
    rig.mark("stop", 2, rig.i - 1)
    rig.say(x_TC, 3)  # a whole trial with nobody there
    again = rig.start_again(process=True)
    rig.say(x_TC, 4)
    interrupted, missed, heard = rig.final(2), rig.final(3), rig.final(4)
    assert (interrupted[b"trial"], interrupted[b"ended"]) == (b"2", b"missed")
    n_missed = 103 + 203
    assert (
        interrupted[b"error"]
        .decode()
        .startswith("interrupted: the node was killed in mid-utterance;")
    )
    assert f"{n_missed} entries (" in interrupted[b"error"].decode()
    assert interrupted[b"text"] == steps[-1][b"text"]  # what was known of it
    assert (missed[b"trial"], missed[b"text"]) == (b"3", b"")
    assert "the node was away when it began" in missed[b"error"].decode()
    assert (heard[b"trial"], heard[b"error"]) == (b"4", b"")
    assert heard[b"text"].decode() == world.offline(x_TC)[1][0].text
    [warning] = [m for m in rig.messages() if "away" in m]
    assert warning.startswith(f"while the node was away {n_missed} entries (")
    assert warning.endswith("1 trials in them")
    ended = again.command.interrupt()
    assert (ended.status, rig.states()[-1]) == (0, "NODE_SHUTDOWN")
    events = [json.loads(line) for line in ended.stderr.splitlines()]
    texts = {h["text"] for h in json.loads(heard[b"nbest"])} - {""}
    # Nobody's speech.
    assert all("text" not in e and not any(t in json.dumps(e) for t in texts) for e in events)


@pytest.mark.slow
def test_a_killed_node_without_marks_says_that_the_next_utterance_may_lack_its_beginning(
    make_rig, world
):
    rig = make_rig(control_stream=None, max_ms=1600)
    node = rig.start(process=True)
    rig.say(world.trials()[0][:50], marks=False)
    wait_for(lambda: rig.redis.hget("speech_position", "i_in") == b"49", "its position")
    node.command.kill()
    rig.say(world.trials()[0][:30], marks=False)
    rig.start_again()
    rig.say(world.trials()[3], marks=False)
    assert (
        rig.final(1)[b"error"]
        .decode()
        .startswith("interrupted: the node was killed in mid-utterance; 30 entries")
    )
    assert "its beginning may be missing: 30 entries" in rig.final(2)[b"error"].decode()
    assert rig.final(3)[b"error"] == b""


@pytest.mark.slow
def test_flags_that_no_node_knows_are_ignored_and_bad_parameters_end_it_with_one_line(
    make_rig, world
):
    rig = make_rig(inpt_stream="x")
    rig.publish()
    node = Process(rig.server.port, "--frobnicate", "7", "-q")
    rig.nodes.append(node)
    ended = node.command.wait()
    assert ended.status == 2
    assert rig.states() == ["NODE_STARTED", "NODE_FATAL_ERROR"]
    [message] = rig.messages(b"NODE_FATAL_ERROR")
    assert message.startswith("supergraph_stream ")
    assert (
        "node speech: unknown key parameters.inpt_stream; did you mean 'input_stream'?" in message
    )
    assert ended.stderr.splitlines()[-1] == f"cortext: {message}"
    assert "Traceback" not in ended.stderr
