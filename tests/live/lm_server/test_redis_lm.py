"""The language-model server against a client with the release's habits, over a real Redis."""

import shutil
import socket
import subprocess

import numpy as np
import pytest
from engine_cases import SENTENCES, sentence_entries, write_lm
from lm_cases import SAID, normalised, served, spoken_logits
from redis_process import wait_for
from release_client import ReleaseClient

from cortext.decoding import Decoder, DecoderOptions
from cortext.errors import ConfigError, LiveError
from cortext_live.lm_server.published_options import PublishedOptions
from cortext_live.lm_server.published_protocol import NO_LLM

PUBLISHED = PublishedOptions().options(DecoderOptions())


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return Decoder.from_dir(
        write_lm(tmp_path_factory.mktemp("lm") / "lm", sentence_entries(), SENTENCES)
    )


def test_the_client_gets_what_the_decoder_finds(redis_server, decoder, tmp_path):
    offline = decoder.with_options(**{"nbest": 100, "acoustic_scale": 0.325, "blank_penalty": 90.0})
    offline = offline.with_options(
        word_score=0.0, max_active=7000, min_active=200, beam=17.0, lattice_beam=8.0 / 0.325
    )
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())
        for number, sentence in enumerate(SAID):
            logits_PV = spoken_logits(sentence, seed=number)
            expected = offline.decode(normalised(logits_PV), "lm")
            for frames in (None, 1, 7):
                final = client.decode(logits_PV, frames)
                assert final.text == expected[0].text
                assert final.fields[b"lm_response_final"].decode() == expected[0].text
                assert set(expected.texts) <= set(final.sentences)
                best = final.sentences.index(expected[0].text)
                found = final.acoustic[best], final.ngram[best], final.llm[best], final.total[best]
                assert found == (
                    expected[0].acoustic_score,
                    expected[0].lm_score,
                    0.0,
                    expected[0].score,
                )
                totals = 0.325 * np.array(final.acoustic) + np.array(final.ngram)
                assert np.allclose(totals, final.total, rtol=1e-6)
                assert set(final.fields) == {b"lm_response_final", b"scoring", b"context_str"}


def test_partial_sentences_come_with_every_chunk(redis_server, decoder, tmp_path):
    logits_PV = spoken_logits("we want to see you")
    session = decoder.with_options(
        **{name: getattr(PUBLISHED, name) for name in vars(PUBLISHED)}
    ).stream("lm")
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())
        client.reset()
        for first in range(0, len(logits_PV), 5):
            partial = client.send(logits_PV[first : first + 5])
            assert partial == session.step(normalised(logits_PV[first : first + 5])).text
        assert partial == "we want to see you"


def test_parameters_take_effect_and_are_announced(redis_server, decoder, tmp_path):
    logits_PV = spoken_logits("i would like water too")
    with served(redis_server, decoder, tmp_path) as log:
        client = ReleaseClient(redis_server.client())
        assert client.update(
            nbest=3, top_candidates_to_augment=0, acoustic_scale=0.7, blank_penalty=5.0
        ) == {b"done": b"1"}
        options = {
            "nbest": 3,
            "acoustic_scale": 0.7,
            "blank_penalty": 5.0,
            "lattice_beam": 8.0 / 0.7,
        }
        expected = decoder.with_options(**(vars(PUBLISHED) | options)).decode(
            normalised(logits_PV), "lm"
        )
        final = client.decode(logits_PV)
        assert final.sentences == expected.texts
        assert final.total == [hypothesis.score for hypothesis in expected]
        newest = client.redis.xrevrange("remote_lm_args", count=1)[0][1]
        assert (newest[b"acoustic_scale"], newest[b"nbest"], newest[b"beam"]) == (
            b"0.7",
            b"3",
            b"17.0",
        )
        client.update(do_opt=1, alpha=0.3, beam="wide")
        newest = client.redis.xrevrange("remote_lm_args", count=1)[0][1]
        assert (newest[b"do_opt"], newest[b"alpha"], newest[b"beam"]) == (b"1", b"0.3", b"17.0")
        assert log.lines("parameter_refused")[-1]["parameter"] == "beam"
        kept = log.lines("parameters_kept")[-1]
        assert (kept["reason"], kept["parameters"]) == (NO_LLM, ["do_opt", "alpha"])
        assert client.decode(logits_PV).fields[b"degraded"].decode() == NO_LLM
        client.update(rescore=1)
        assert log.lines("parameters_kept")[-1]["parameters"] == ["rescore"]


def test_parameters_that_come_in_mid_utterance_hold_from_there_on(redis_server, decoder, tmp_path):
    logits_PV = spoken_logits("are you there")
    session = decoder.with_options(**vars(PUBLISHED)).stream("lm")
    session.step(normalised(logits_PV[:10]))
    session.set_options(nbest=2, acoustic_scale=1.5, lattice_beam=8.0 / 1.5)
    session.step(normalised(logits_PV[10:]))
    expected = session.finish()
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())
        client.reset()
        client.send(logits_PV[:10])
        client.update(nbest=2, acoustic_scale=1.5, top_candidates_to_augment=0)
        client.send(logits_PV[10:])
        final = client.finalize()
    assert (final.sentences, final.total) == (
        expected.texts,
        [hypothesis.score for hypothesis in expected],
    )


def test_every_finalize_is_followed_by_done_and_the_context_comes_back(
    redis_server, decoder, tmp_path
):
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())
        client.redis.set("contextual_decoding_current_context", " how are you ")
        final = client.decode(spoken_logits("are you there"))
        assert final.fields[b"context_str"] == b"how are you"
        assert client.wait("remote_lm_done_finalizing") == {b"done": b"1"}
        client.redis.delete("contextual_decoding_current_context")
        client.redis.lpush("contextual_decoding_current_context", "no text")
        assert client.decode(spoken_logits("are you there")).fields[b"context_str"] == b""


def test_a_long_context_is_read_from_its_end_on_and_no_character_of_it_is_cut(
    redis_server, decoder, tmp_path
):
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())
        # Two bytes each, then one.
        client.redis.set("contextual_decoding_current_context", "é" * 2**20 + "x")
        final = client.decode(spoken_logits("are you there"))
        assert final.fields[b"context_str"].decode() == "é" * (2**19 - 1) + "x"
        done = client.redis.info("commandstats")
        assert ("cmdstat_getrange" in done, "cmdstat_get" in done) == (True, False)


def test_a_client_that_waits_after_the_time_at_which_it_asked_misses_no_answer(
    redis_server, decoder, tmp_path
):
    with served(redis_server, decoder, tmp_path):
        redis = redis_server.client()
        for _ in range(300):  # many begin within the millisecond in which the answer comes
            client = ReleaseClient(redis, flush=False, patience_s=2.0)
            client.reset()


def test_a_client_that_does_not_wait_gets_the_same_sentence(redis_server, decoder, tmp_path):
    logits_PV = spoken_logits("we want to see you")
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())
        expected = client.decode(logits_PV).text
        many = client.redis.pipeline(transaction=True)  # all within a millisecond or two
        many.xadd("remote_lm_reset", {"done": 0})
        for logits_V in logits_PV:
            many.xadd("remote_lm_input", {"logits": logits_V.tobytes()})
        many.xadd("remote_lm_finalize", {"done": 0})
        many.execute()
        assert client.wait("remote_lm_output_final")[b"lm_response_final"].decode() == expected
        assert client.redis.xlen("remote_lm_output_partial") == 1 + len(logits_PV)


def test_the_parameters_are_announced_again_whenever_they_are_missing(
    redis_server, decoder, tmp_path
):
    redis = redis_server.client()
    with served(redis_server, decoder, tmp_path):
        for _ in range(3):
            wait_for(lambda: redis.xlen("remote_lm_args") == 1, "announcement")
            assert redis.xrange("remote_lm_args")[0][1][b"lm_path"].decode() == str(decoder.lm_dir)
            redis.flushall()


def test_streams_can_have_other_names(redis_server, decoder, tmp_path):
    names = {"input": "logits_left", "partial": "partial_left", "final": "final_left"}
    logits_PV = spoken_logits("are you there")
    with served(redis_server, decoder, tmp_path, streams=names):
        client = ReleaseClient(redis_server.client(), names=names)
        assert client.decode(logits_PV, 4).text == "are you there"
        assert not client.redis.exists(
            "remote_lm_input", "remote_lm_output_partial", "remote_lm_output_final"
        )
    with (
        pytest.raises(ConfigError, match="same name"),
        served(redis_server, decoder, tmp_path, streams={"input": "remote_lm_output_final"}),
    ):
        pass


def test_the_log_holds_what_was_said_only_when_asked_to(redis_server, decoder, tmp_path):
    for with_text in (False, True):
        with served(redis_server, decoder, tmp_path, with_text=with_text) as log:
            client = ReleaseClient(redis_server.client())
            client.redis.set("contextual_decoding_current_context", "the context before")
            client.decode(spoken_logits("we want to see you"), 5)
            line = log.wait("utterance_finished")
        assert line["n_frames"] == len(spoken_logits("we want to see you"))
        assert ("see" in log.path.read_text(), "context before" in log.path.read_text()) == (
            with_text,
            with_text,
        )


def test_a_password_is_asked_for_and_never_shown(make_redis, decoder, tmp_path):
    redis = make_redis(requirepass="s3cret-word").start()
    url = f"redis://:s3cret-word@127.0.0.1:{redis.port}/0"
    with served(redis, decoder, tmp_path, url=url) as log:
        assert (
            ReleaseClient(redis.client()).decode(spoken_logits("are you there")).text
            == "are you there"
        )
    assert "s3cret" not in log.path.read_text()
    with (
        pytest.raises(
            LiveError, match=f"127.0.0.1:{redis.port}: Redis refuses: .*check user and password"
        ) as caught,
        served(redis, decoder, tmp_path, url=url.replace("s3cret-word", "guess3d")) as log,
    ):
        pass
    assert "guess3d" not in str(caught.value) + log.path.read_text()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="NO openssl: TLS IS NOT TESTED")
def test_a_user_comes_in_over_tls(make_redis, decoder, tmp_path):
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    request = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    request += [
        "-keyout",
        key,
        "-out",
        certificate,
        "-subj",
        "/CN=rig",
        "-addext",
        "subjectAltName=IP:127.0.0.1",
    ]
    subprocess.run(request, check=True, capture_output=True)
    files = {
        "tls-cert-file": str(certificate),
        "tls-key-file": str(key),
        "tls-ca-cert-file": str(certificate),
    }
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    redis = make_redis(**files, **{"tls-port": str(port), "tls-auth-clients": "no"}).start()
    # the least that a user needs
    allowed = [
        "+xread",
        "+xadd",
        "+xrange",
        "+xrevrange",
        "+xdel",
        "+xtrim",
        "+xinfo|stream",
        "+time",
        "+exists",
    ]
    allowed += [
        "+type",
        "+getrange",
        "+hset",
        "+hgetall",
        "+memory|usage",
        "+client|setname",
        "+client|id",
        "+client|list",
    ]
    redis.client().acl_setuser(
        "lab", enabled=True, passwords=["+s3cret"], keys=["*"], commands=allowed
    )
    url = f"rediss://lab:s3cret@127.0.0.1:{port}/0?ssl_ca_certs={certificate}"
    with served(redis, decoder, tmp_path, url=url) as log:
        client = ReleaseClient(redis.client())
        client.redis.set("contextual_decoding_current_context", "how are you")
        final = client.decode(spoken_logits("are you there"), 9)
        assert (final.text, final.fields[b"context_str"]) == ("are you there", b"how are you")
    assert "s3cret" not in log.path.read_text()


def test_what_is_no_url_is_refused_without_being_shown(decoder):
    from cortext_live.core.redis_link import RedisLink

    for url in (
        "http://user:s3cret@host",
        "redis://user:s3cret@host:port/0",
        "s3cret",
        "redis://h:1/0?ssl=s3cret",
    ):
        with pytest.raises(LiveError, match="the Redis URL cannot be read") as caught:
            RedisLink(url, "test")
        assert "s3cret" not in str(caught.value)
