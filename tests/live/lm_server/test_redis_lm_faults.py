"""Faults of a rig around the language-model server, each done to a real Redis.

Nothing is lost silently.
"""

import json

import numpy as np
import pytest
from engine_cases import SENTENCES, sentence_entries, write_lm
from lm_cases import normalised, served, spoken_logits
from redis_process import wait_for
from release_client import ReleaseClient

from cortext.decoding import Decoder, DecoderOptions
from cortext.errors import LiveError
from cortext_live.lm_server.published_options import PublishedOptions

LOGITS = spoken_logits("i would like water too")
HALF = len(LOGITS) // 2
TEXT = "i would like water too"


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return Decoder.from_dir(
        write_lm(tmp_path_factory.mktemp("lm") / "lm", sentence_entries(), SENTENCES)
    )


def offline(decoder, logits_PV):
    options = PublishedOptions().options(DecoderOptions())
    return decoder.with_options(**vars(options)).decode(normalised(logits_PV), "lm")


def error_of(final):
    return final.fields.get(b"error", b"").decode()


def in_two_halves(client, between):
    """An utterance, with something done in its middle."""
    client.reset()
    client.send(LOGITS[:HALF])
    between()
    client.send(LOGITS[HALF:])
    return client.finalize()


def test_redis_restarted_in_mid_utterance(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path) as log:
        client = ReleaseClient(redis_server.client())
        final = in_two_halves(client, redis_server.restart)
        assert final.text == TEXT  # what came before the restart is in the server's memory
        assert "frames may be missing" in error_of(final)
        assert client.redis.xrange("remote_lm_errors")[-1][1][b"error"].startswith(
            b"Redis lost its streams"
        )
        assert error_of(client.decode(LOGITS)) == ""
        assert {line["event"] for line in log.lines()} >= {
            "redis_unreachable",
            "redis_answers_again",
            "streams_lost",
        }


def test_redis_restarted_with_its_streams_loses_nothing(make_redis, decoder, tmp_path):
    redis = make_redis()
    redis.persist = True
    redis.start()
    with served(redis, decoder, tmp_path):
        final = in_two_halves(ReleaseClient(redis.client()), redis.restart)
    assert (final.text, error_of(final)) == (TEXT, "")
    assert final.total[0] == offline(decoder, LOGITS)[0].score


def test_redis_away_at_the_start_and_between_utterances(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path) as log:
        client = ReleaseClient(redis_server.client())
        for number in (1, 2):
            redis_server.stop()
            log.wait("redis_unreachable", number)
            redis_server.start()
            final = client.decode(LOGITS)
            assert (final.text, error_of(final)) == (TEXT, "")


def test_redis_flushed_in_mid_utterance(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())
        final = in_two_halves(client, client.redis.flushall)
        assert final.text == TEXT
        assert "frames may be missing" in error_of(final)
        assert client.redis.xlen("remote_lm_args") == 1


def test_redis_flushed_between_utterances(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path):
        for _ in range(3):
            final = ReleaseClient(redis_server.client(), flush=True).decode(LOGITS, 10)
            assert (final.text, error_of(final)) == (TEXT, "")


def test_a_clock_set_back_with_a_flush_does_not_make_the_server_deaf(
    redis_server, decoder, tmp_path
):
    with served(redis_server, decoder, tmp_path) as log:
        client = ReleaseClient(redis_server.client())
        client.reset()
        n_losses = len(log.lines("streams_lost"))
        client.redis.flushall()
        log.wait("streams_lost", n_losses + 1)
        client.redis.xadd("remote_lm_reset", {"done": 0}, id="1000-0")  # as a clock of 1970 would
        assert client.wait("remote_lm_done_resetting") == {b"done": b"1"}


def test_answers_come_once_however_slow_redis_is(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path, timeout_s=0.15) as log:
        client = ReleaseClient(redis_server.client())
        client.reset()
        client.redis.xadd("remote_lm_input", {"logits": LOGITS.tobytes()})
        wait_for(lambda: client.redis.xlen("remote_lm_output_partial"), "partial")
        pause = redis_server.client()
        together = client.redis.pipeline(transaction=True)
        together.xadd("remote_lm_finalize", {"done": 0})
        # Writing stalls, its connection is given up.
        together.execute_command("CLIENT", "PAUSE", 700, "WRITE")
        together.execute()
        log.wait("redis_answers_again")
        assert client.wait("remote_lm_output_final")[b"lm_response_final"].decode() == TEXT
        assert client.wait("remote_lm_done_finalizing")
        assert [
            pause.xlen(f"remote_lm_{name}")
            for name in ("output_partial", "output_final", "done_finalizing")
        ] == ([1, 1, 1])
        final = client.decode(LOGITS)
        assert (final.text, error_of(final)) == (TEXT, "")


def test_redis_frozen_in_mid_utterance(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path, timeout_s=0.15) as log:

        def freeze():
            redis_server.freeze()
            log.wait("redis_unreachable")
            redis_server.thaw()

        final = in_two_halves(ReleaseClient(redis_server.client()), freeze)
        assert (final.text, error_of(final)) == (TEXT, "")


def test_redis_out_of_memory(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path) as log:
        client = ReleaseClient(redis_server.client())
        client.decode(LOGITS, 1)
        client.reset()
        client.send(LOGITS)
        together = client.redis.pipeline(transaction=True)
        together.xadd("remote_lm_finalize", {"done": 0})
        together.config_set("maxmemory", "1")
        together.execute()
        refused = log.wait("redis_refuses_to_write")
        assert "maxmemory" in refused["reason"]
        wait_for(
            lambda: client.redis.xlen("remote_lm_input") == 0, "room, made with what has been read"
        )
        assert client.redis.xlen("remote_lm_output_final") == 1
        redis_server.set_maxmemory("0")
        assert client.wait("remote_lm_output_final")[b"lm_response_final"].decode() == TEXT
        final = client.decode(LOGITS)
        assert (final.text, error_of(final)) == (TEXT, "")


NAN = LOGITS[:4].copy()
NAN[2, 7] = np.nan
INFINITE = LOGITS[:4].copy()
INFINITE[3, 7] = np.inf
IMPOSSIBLE = np.full((2, 41), -np.inf, dtype=np.float32)


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (LOGITS.tobytes()[:-1], f"{LOGITS.nbytes - 1} bytes are no whole number of frames"),
        (b"\0" * 160, "160 bytes are no whole number of frames of 41 float32 logits (164 bytes)"),
        (NAN.tobytes(), "frame 2 of 4 has NaN"),
        (INFINITE.tobytes(), "frame 3 of 4 has no logits (infinite or huge numbers)"),
        (IMPOSSIBLE.tobytes(), "frame 0 of 2 leaves no token possible"),
        (LOGITS.astype(np.float64).tobytes(), "the bytes look like float64; send float32"),
        (
            (LOGITS + np.pi).astype(np.float64).tobytes(),
            "the bytes look like float64; send float32",
        ),
        (
            LOGITS.astype(np.float16).astype(np.float64).tobytes(),
            "the bytes look like float64; send float32",
        ),
    ],
)
def test_logits_that_cannot_be_are_named_and_the_others_are_searched(
    redis_server, decoder, tmp_path, raw, what
):
    with served(redis_server, decoder, tmp_path) as log:
        client = ReleaseClient(redis_server.client())
        client.reset()
        client.send(LOGITS[:HALF])
        client.redis.xadd("remote_lm_input", {"logits": raw})
        client.wait("remote_lm_output_partial")  # the client does not hang
        client.send(LOGITS[HALF:])
        final = client.finalize()
        assert (final.text, error_of(final)) == (
            TEXT,
            f"entry 2 was left out: {what}" if ";" in what else error_of(final),
        )
        assert what in error_of(final)
        assert what in log.lines("request_failed")[0]["error"]
        assert what in client.redis.xrange("remote_lm_errors")[0][1][b"error"].decode()
        assert error_of(client.decode(LOGITS)) == ""


def test_ordinary_logits_are_not_taken_for_another_type():
    from cortext.text.inventory import LM
    from cortext_live.lm_server.utterance import logits_from

    generator = np.random.default_rng(0)
    arrays = [
        generator.normal(size=(n, 41)) * spread
        for n in (1, 2, 8, 50)
        for spread in (0.0, 1e-3, 1, 10, 1000)
    ]
    one_hot_PV = np.zeros((6, 41))
    one_hot_PV[:, 3] = 8.0
    masked_PV = np.where(generator.random((20, 41)) < 0.5, -np.inf, generator.normal(size=(20, 41)))
    for array in [*arrays, one_hot_PV, masked_PV]:
        expected = array.astype(np.float32)
        assert np.array_equal(logits_from(expected.tobytes(), LM), expected)


@pytest.mark.parametrize("frames", [None, 1, 7])
def test_probabilities_and_negated_log_probabilities_are_refused(
    redis_server, decoder, tmp_path, frames
):
    log_probs_PV = normalised(LOGITS)
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())
        for scores_PV, what in (
            (np.exp(log_probs_PV), "holds probabilities"),
            (-log_probs_PV, "holds negated log-probabilities"),
        ):
            assert what in error_of(client.decode(scores_PV, frames))
        assert error_of(client.decode(LOGITS, frames)) == ""


def test_an_entry_without_logits_and_an_utterance_of_nothing_else(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())
        client.reset()
        client.redis.xadd("remote_lm_input", {"spikes": b"12"})
        assert client.wait("remote_lm_output_partial") == {b"lm_response_partial": b""}
        final = client.finalize()
        assert final.text == ""
        assert "the entry has no field 'logits'" in error_of(final)


def test_finalize_with_nothing_sent_still_parses(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())
        client.reset()
        for _ in range(2):
            final = client.finalize()
            assert (final.sentences, final.llm) == ([""], [0.0])
            assert error_of(final) == "nothing to decode was sent"
        assert client.decode(LOGITS).text == TEXT


def test_two_resets_and_half_an_utterance(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path) as log:
        client = ReleaseClient(redis_server.client())
        client.reset()
        client.send(LOGITS[:HALF])
        client.reset()
        client.reset()
        dropped = log.lines("utterance_dropped")
        assert [(line["why"], line["n_frames"]) for line in dropped] == [
            ("reset by the client", HALF)
        ]
        client.send(LOGITS)
        final = client.finalize()
        assert final.total[0] == offline(decoder, LOGITS)[0].score


def test_an_utterance_without_a_reset_before_it(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())
        for _ in range(2):
            client.send(LOGITS)
            assert client.finalize().total[0] == offline(decoder, LOGITS)[0].score


@pytest.mark.slow
def test_a_hundred_thousand_frames(redis_server, decoder, tmp_path):
    repeats = -(-100_000 // len(LOGITS))
    long_PV = np.tile(LOGITS, (repeats, 1))[:100_000]
    with served(redis_server, decoder, tmp_path, preset=None):
        client = ReleaseClient(redis_server.client(), patience_s=120.0)
        final = client.decode(long_PV)
        assert error_of(final) == ""
        assert final.text.startswith(f"{TEXT} {TEXT} ")
        assert client.decode(LOGITS).text == TEXT


def test_an_error_that_nobody_thought_of_does_not_end_the_server(
    redis_server, decoder, tmp_path, monkeypatch
):
    from cortext.decoding.stream import DecoderStream

    with served(redis_server, decoder, tmp_path) as log:
        client = ReleaseClient(redis_server.client())
        with monkeypatch.context() as broken:
            broken.setattr(DecoderStream, "finish", lambda self: 1 / 0)
            final = client.decode(LOGITS)
        assert (final.text, "internal error (ZeroDivisionError" in error_of(final)) == ("", True)
        assert client.wait("remote_lm_done_finalizing")
        assert "ZeroDivisionError" in log.lines("request_failed")[0]["error"]
        assert client.decode(LOGITS).text == TEXT


def test_a_second_server_on_the_same_streams_is_refused(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())
        with (
            pytest.raises(
                LiveError,
                match=r"another language-model server .* serves these streams; .*--take-over",
            ),
            served(redis_server, decoder, tmp_path),
        ):
            pass
        assert client.decode(LOGITS).text == TEXT
        # Another database.
        with served(redis_server, decoder, tmp_path, url=redis_server.url.replace("/0", "/1")):
            other = ReleaseClient(redis_server.client(db=1), flush=False)
            client.reset()
            client.send(LOGITS[:HALF])
            assert other.decode(spoken_logits("are you there")).text == "are you there"
            client.send(LOGITS[HALF:])
            assert client.finalize().text == TEXT


def test_a_server_that_takes_over_ends_the_one_before(redis_server, decoder, tmp_path):
    def both():
        with (
            served(redis_server, decoder, tmp_path) as first,
            served(redis_server, decoder, tmp_path, take_over=True),
        ):
            first.wait("stopped")
            assert ReleaseClient(redis_server.client()).decode(LOGITS).text == TEXT

    with pytest.raises(LiveError, match="another language-model server"):
        both()


def test_a_client_that_names_itself_is_not_mixed_with_another(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path) as log:
        client = ReleaseClient(redis_server.client())
        client.redis.xadd("remote_lm_reset", {"done": 0, "client": "left"})
        client.wait("remote_lm_done_resetting")
        client.redis.xadd("remote_lm_input", {"logits": LOGITS[:HALF].tobytes(), "client": "left"})
        client.wait("remote_lm_output_partial")
        other_PV = spoken_logits("are you there")
        client.redis.xadd("remote_lm_reset", {"done": 0, "client": "right"})
        client.redis.xadd("remote_lm_input", {"logits": other_PV.tobytes()})
        client.redis.xadd("remote_lm_input", {"logits": LOGITS[HALF:].tobytes(), "client": "left"})
        client.redis.xadd("remote_lm_finalize", {"done": 0, "client": "left"})
        final = client.wait("remote_lm_output_final")
        assert final[b"scoring"].decode().split(";")[4] == repr(offline(decoder, LOGITS)[0].score)
        assert b"error" not in final
        assert [line["error"] for line in log.lines("request_failed")] == (
            ["another client's utterance is under way; use streams of your own"] * 2
        )
        refused = client.redis.xrange("remote_lm_errors")
        assert [fields.get(b"client") for _, fields in refused] == [b"right", None]


def test_streams_do_not_grow_without_end(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path, keep=(200, 20_000)):
        client = ReleaseClient(redis_server.client())
        for _ in range(15):  # 300 chunks
            client.decode(LOGITS, 3)
        for stream in client.redis.keys("remote_lm_*"):
            assert client.redis.xlen(stream) <= 200, stream
        assert client.redis.memory_usage("remote_lm_input") < 60_000
        final = client.decode(LOGITS, 1)
        assert (final.text, error_of(final)) == (TEXT, "")


def test_answers_are_json_lines(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path) as log:
        ReleaseClient(redis_server.client()).decode(LOGITS)
        log.wait("utterance_finished")
    for line in log.path.read_text().splitlines():
        assert {"time", "level", "event"} <= json.loads(line).keys()
