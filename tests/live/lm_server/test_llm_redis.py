"""A large model behind the language-model server.

A real one, over a real Redis, against a client with the release's habits; what the model says of a
sentence is computed apart, by transformers, sentence by sentence.
"""

import dataclasses
import functools
import json
import os
import signal
import threading
import time

import numpy as np
import pytest
from commands import Command
from engine_cases import NEUTRAL, SENTENCES, sentence_entries, write_lm
from lm_cases import SAID, Log, normalised, served, spoken_logits
from redis_process import wait_for
from release_client import ReleaseClient

from cortext.cli import run
from cortext.decoding import Decoder
from cortext.errors import LanguageModelError
from cortext_live.core.decoder import LIVE_BUDGET_MS, in_time, with_llm

pytest.importorskip("transformers")

CONTEXT_KEY = "contextual_decoding_current_context"
SCALE = 0.325


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return Decoder.from_dir(
        write_lm(tmp_path_factory.mktemp("lm") / "lm", sentence_entries(), SENTENCES)
    )


@pytest.fixture(scope="module")
def decoder(plain, tiny_lm_dir):
    return with_llm(plain, str(tiny_lm_dir), device="cpu")


@pytest.fixture(scope="module")
def log_prob(tiny_lm_dir):
    return plain_pass(tiny_lm_dir)


def plain_pass(folder, ends=False):
    """The log-probability of a sentence after a context, alone in a plain pass.

    With that of its end, if any.

    None of a sentence without tokens, of which the n-gram's counts.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network, tokenizer = (
        AutoModelForCausalLM.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder),
    )

    def encode(text):
        return tokenizer.encode(text, add_special_tokens=False)

    @functools.cache
    def log_prob(text, context=""):
        before = [tokenizer.bos_token_id, *encode(context)]
        said = encode(f" {text}" if context and text else text) + [tokenizer.eos_token_id] * ends
        if not said:
            return None
        with torch.no_grad():
            log_probs_TV = network(torch.tensor([before + said])).logits[0].double().log_softmax(-1)
        places = range(len(before) - 1, len(before) + len(said) - 1)
        return sum(
            float(log_probs_TV[place, token]) for place, token in zip(places, said, strict=True)
        )

    return log_prob


@pytest.fixture
def broken(decoder):
    """Makes the model do something else before each pass, until told to stop."""
    instead = {}
    handle = decoder.llm.lm.network.get_input_embeddings().register_forward_pre_hook(
        lambda *_: instead.get("does", lambda: None)()
    )
    yield instead
    handle.remove()


def check(final, log_prob, alpha, context=""):
    """The published sum for every candidate, and the best of them as the answer."""
    said = [log_prob(sentence, context) for sentence in final.sentences]
    expected = np.array(
        [ngram if own is None else own for own, ngram in zip(said, final.ngram, strict=True)]
    )
    assert np.allclose(final.llm, expected, atol=2e-3)
    totals = (
        SCALE * np.array(final.acoustic) + (1 - alpha) * np.array(final.ngram) + alpha * expected
    )
    assert np.allclose(final.total, totals, atol=2e-3)
    assert (
        final.fields[b"lm_response_final"].decode()
        == final.sentences[0]
        == final.sentences[np.argmax(totals)]
    )


def test_candidates_have_the_models_scores_and_the_published_sum(
    redis_server, decoder, plain, log_prob, tmp_path
):
    changed = 0
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())
        for number, sentence in enumerate(SAID):
            logits_PV = spoken_logits(sentence, seed=number)
            final = client.decode(logits_PV, 7)
            check(final, log_prob, alpha=0.55)
            client.update(do_opt=0)
            before = client.decode(logits_PV, 7)
            client.update(do_opt=1)
            assert set(final.sentences) == set(before.sentences)
            assert set(before.llm) == {0.0}
            changed += final.sentences != before.sentences
        assert set(final.fields) == {b"lm_response_final", b"scoring", b"context_str"}
    assert changed == len(SAID)  # a random model has an opinion of its own


def test_without_do_opt_it_is_as_if_there_were_no_model(redis_server, decoder, plain, tmp_path):
    answers = []
    for made, changes in ((plain, []), (decoder, ["do_opt=0"]), (decoder, ["alpha=0"])):
        with served(redis_server, made, tmp_path, changes=changes) as log:
            client = ReleaseClient(redis_server.client())
            answers.append([client.decode(spoken_logits(sentence), 5).fields for sentence in SAID])
            args = client.redis.xrevrange("remote_lm_args", count=1)[0][1]
            assert args[b"do_opt"] == (b"1" if changes == ["alpha=0"] else b"0")
            assert not log.lines("parameters_kept")
    assert answers[0] == answers[1] == answers[2]


def test_alpha_is_the_models_weight(redis_server, decoder, log_prob, tmp_path):
    logits_PV = spoken_logits("i would like water too")
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())
        best = []
        for alpha in (0.2, 1):
            client.update(alpha=alpha)
            final = client.decode(logits_PV)
            check(final, log_prob, alpha)
            best.append(dict(zip(final.sentences, final.total, strict=True)))
    assert best[0] != best[1]


def test_a_context_is_read_first_until_it_is_taken_away(redis_server, decoder, log_prob, tmp_path):
    logits_PV = spoken_logits("are you there")
    with served(redis_server, decoder, tmp_path, with_text=False) as log:
        client = ReleaseClient(redis_server.client())
        without = client.decode(logits_PV)
        check(without, log_prob, 0.55)
        client.redis.set(CONTEXT_KEY, " how are you today ")
        final = client.decode(logits_PV)
        check(final, log_prob, 0.55, "how are you today")
        assert final.fields[b"context_str"] == b"how are you today"
        client.redis.delete(CONTEXT_KEY)
        assert client.decode(logits_PV).fields == without.fields
        assert "today" not in log.path.read_text()
    with served(redis_server, decoder, tmp_path, context="please call my sister"):
        client = ReleaseClient(redis_server.client())
        check(client.decode(logits_PV), log_prob, 0.55, "please call my sister")
        client.redis.set(CONTEXT_KEY, "how are you today")
        check(client.decode(logits_PV), log_prob, 0.55, "how are you today")


def test_whatever_the_context_holds_is_read_as_text(redis_server, decoder, log_prob, tmp_path):
    logits_PV = spoken_logits("are you there")
    fused = decoder.with_options(llm={"mode": "fusion"})
    with served(redis_server, fused, tmp_path, changes=["nbest=10"]):
        client = ReleaseClient(redis_server.client())
        for said, read in (
            (" \n\t ", ""),
            ("how are you?\r\nI'm fine;\tthanks", "how are you?\r\nI'm fine;\tthanks"),
            (
                "\u043a\u0430\u043a \u4e16\u754c \U0001f642",
                "\u043a\u0430\u043a \u4e16\u754c \U0001f642",
            ),
            (b"how \xff are you", "how \ufffd are you"),
        ):
            client.redis.set(CONTEXT_KEY, said)
            final = client.decode(logits_PV, 9)
            check(final, log_prob, 0.55, read)
            assert final.fields[b"context_str"].decode() == read
            assert b"degraded" not in final.fields
        client.redis.delete(CONTEXT_KEY)
        client.redis.rpush(CONTEXT_KEY, "how are you")  # no text at all
        check(client.decode(logits_PV, 9), log_prob, 0.55, "")


def test_a_context_that_is_too_long_is_cut_and_said(redis_server, decoder, tmp_path):
    words = "water " * 400
    with served(redis_server, decoder, tmp_path) as log:
        client = ReleaseClient(redis_server.client())
        client.redis.set(CONTEXT_KEY, words)
        final = client.decode(spoken_logits("are you there"))
        assert final.fields[b"context_str"].decode() == words.strip()
        assert b"degraded" not in final.fields
        assert "only the last" in log.wait("llm_note")["note"]
        assert "water" not in log.path.read_text()


def test_candidates_made_of_others_have_scores_of_their_own(
    redis_server, decoder, log_prob, tmp_path
):
    logits_PV = spoken_logits("we want to see you", seed=3)
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())
        client.update(top_candidates_to_augment=0)
        found = client.decode(logits_PV)
        client.update(top_candidates_to_augment=20, score_penalty_percent=0.02)
        more = client.decode(logits_PV)
    made = set(more.sentences) - set(found.sentences)
    assert made
    check(more, log_prob, 0.55)


def test_a_model_that_fails_costs_no_sentence(redis_server, decoder, broken, tmp_path):
    logits_PV = spoken_logits("i would like water too")

    def fail():
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")

    with served(redis_server, decoder, tmp_path) as log:
        client = ReleaseClient(redis_server.client())
        ranked = client.decode(logits_PV)
        client.update(do_opt=0)
        expected = client.decode(logits_PV)
        client.update(do_opt=1)
        broken["does"] = fail
        final = client.decode(logits_PV)
        degraded = final.fields.pop(b"degraded").decode()
        assert final.fields == expected.fields
        assert "illegal memory access" in degraded
        assert "\n" not in degraded
        assert "without the large model" in degraded
        line = log.wait("utterance_finished", 3)
        assert (line["level"], line["degraded"]) == ("warning", degraded)
        del broken["does"]
        assert client.decode(logits_PV).fields == ranked.fields


def test_whatever_a_library_raises_costs_no_sentence(redis_server, decoder, monkeypatch, tmp_path):
    with served(redis_server, decoder, tmp_path):
        client = ReleaseClient(redis_server.client())

        def fail(*args, **kwargs):
            raise TypeError("that is no text")

        monkeypatch.setattr(type(decoder.llm.lm.tokenizer), "encode", fail)
        final = client.decode(spoken_logits("are you there"))
        assert final.text == "are you there"
        said = f"without the large model: {decoder.llm.lm.name}: its tokenizer failed (that is no text)"
        assert final.fields[b"degraded"].decode() == said


def test_parameters_that_come_in_mid_utterance_decide_how_it_is_ranked(
    redis_server, decoder, log_prob, tmp_path
):
    logits_PV = spoken_logits("are you there")
    for mode in ("rescore", "fusion"):
        changed = decoder.with_options(llm={"mode": mode})
        with served(redis_server, changed, tmp_path):
            client = ReleaseClient(redis_server.client())
            client.reset()
            client.send(logits_PV[:10])
            client.update(alpha=0.3)
            client.send(logits_PV[10:])
            check(client.finalize(), log_prob, alpha=0.3)
            client.send(logits_PV[:10])
            client.update(do_opt=0)
            client.send(logits_PV[10:])
            final = client.finalize()
            assert set(final.llm) == {0.0}
            assert np.allclose(
                SCALE * np.array(final.acoustic) + np.array(final.ngram), final.total
            )


def test_the_first_words_are_there_in_time_however_slow_the_model_is(
    redis_server, decoder, broken, tmp_path
):
    fused = decoder.with_options(llm={"mode": "fusion", "every_frames": 1})
    logits_PV = spoken_logits("we want to see you")
    answers = threading.Event()
    broken["does"] = lambda: answers.wait(20)
    with served(redis_server, fused, tmp_path):
        client = ReleaseClient(redis_server.client())
        client.reset()
        took_ms = []
        for logits_V in logits_PV:
            start = time.perf_counter()
            partial = client.send(logits_V[None])
            took_ms.append(1e3 * (time.perf_counter() - start))
        assert partial
        assert np.median(took_ms) < LIVE_BUDGET_MS + 60
        assert max(took_ms) < 1000  # on a machine with other work, too: it did not wait for a pass
        answers.set()
        assert client.finalize().text


def test_the_default_model_ranks_and_takes_part_in_the_search(redis_server, plain, tmp_path):
    from cortext_lm.neural.train_neural import NeuralSettings, train_neural

    (tmp_path / "text.txt").write_text("\n".join(SAID * 40) + "\n")
    size = NeuralSettings(pieces=80, width=16, layers=1, heads=1, steps=5)
    train_neural([tmp_path / "text.txt"], tmp_path / "model", size)
    own = with_llm(plain, str(tmp_path / "model"), device="cpu")
    own_log_prob = plain_pass(tmp_path / "model", ends=True)
    for mode in ("rescore", "fusion"):
        with served(redis_server, own.with_options(llm={"mode": mode}), tmp_path):
            client = ReleaseClient(redis_server.client())
            for sentence in SAID[:2]:
                final = client.decode(spoken_logits(sentence), 4)
                check(final, own_log_prob, 0.55)
                assert final.text == sentence
            client.update(do_opt=0)
            assert set(client.decode(spoken_logits(SAID[0])).llm) == {0.0}
            client.update(do_opt=1, alpha=1)
            client.redis.set(CONTEXT_KEY, SAID[1])
            check(client.decode(spoken_logits(SAID[0]), 4), own_log_prob, 1, SAID[1])


def test_the_search_waits_for_nothing_without_a_bound(plain):
    assert in_time(plain.options).llm.budget_ms == LIVE_BUDGET_MS
    own = dataclasses.replace(plain.options, llm={"budget_ms": 5})
    assert in_time(own) == own


def test_in_json_each_utterance_has_its_context_and_weight(
    redis_server, decoder, log_prob, broken, tmp_path
):
    logits_PV = spoken_logits("are you there")
    with served(
        redis_server,
        decoder.with_options(**NEUTRAL),
        tmp_path,
        profile="json",
        preset=None,
        context="how are you",
    ):
        redis = redis_server.client()

        def decode(**begin):
            seen = redis.xrevrange("cortext_lm_output", count=1)[0][0]
            said = [{"type": "begin", **begin}, {"type": "frames"}, {"type": "end"}]
            for message in said:
                fields = {"message": json.dumps(message | {"utterance": "a"})}
                redis.xadd("cortext_lm_input", fields | {"logits": logits_PV.tobytes()})
            while True:
                for entry_id, fields in redis.xread({"cortext_lm_output": seen}, block=3_000)[0][1]:
                    message, seen = json.loads(fields[b"message"]), entry_id
                    if message["type"] in ("final", "error"):
                        return message

        for begin, context, weight in (
            ({}, "how are you", 0.5),
            ({"context": "", "options": {"llm": {"weight": 0.9}}}, "", 0.9),
        ):
            final = decode(**begin)
            assert final["degraded"] is None
            assert final["text"] == final["hypotheses"][0]["text"]
            for found in final["hypotheses"]:
                assert found["llm"] == pytest.approx(log_prob(found["text"], context), abs=2e-3)
                total = found["acoustic"] + (1 - weight) * found["ngram"] + weight * found["llm"]
                assert found["score"] == pytest.approx(total, abs=2e-3)

        def fail():
            raise MemoryError

        broken["does"] = fail
        final = decode()
        expected = (
            decoder.with_options(**NEUTRAL).with_llm(None).decode(normalised(logits_PV), "lm")
        )
        assert [found["text"] for found in final["hypotheses"]] == expected.texts
        assert "without the large model" in final["degraded"]
        assert "context is no text" in decode(context=3)["error"]


def test_what_commands_are_told_of_a_model_that_cannot_be_is_one_line(
    plain, tmp_path, tiny_lm_dir, capfd
):
    (tmp_path / "empty").mkdir()
    lm_server, serve = (
        ["lm-server", "--lm", plain.lm_dir],
        ["serve", tmp_path, "--lm", plain.lm_dir, "--feed"],
    )
    node = ["brand-node", "-n", "speech"]
    for arguments, expected in (
        ([*lm_server, "--llm", tmp_path / "empty"], "empty"),
        (
            [*lm_server, "--llm", tiny_lm_dir, "--llm-lora", tmp_path / "empty"],
            "it is no LoRA adapter",
        ),
        ([*lm_server, "--llm", tiny_lm_dir, "--llm-device", "gpu9"], "unknown device 'gpu9'"),
        ([*lm_server, "--llm-lora", tmp_path], "--llm-lora is given without --llm"),
        ([*serve, "--context", "how are you"], "--context is given without --llm"),
        ([*node, "--llm-lora", tmp_path], "--llm-lora is given without --llm"),
    ):
        assert run([str(argument) for argument in arguments]) == 2
        told = capfd.readouterr().err
        assert expected in told
        assert told.count("\n") == 1


@pytest.mark.slow
def test_the_command_serves_with_a_model_and_a_context(
    redis_server, plain, tiny_lm_dir, log_prob, tmp_path
):
    log = Log(tmp_path / "log")
    files = ["--lm", plain.lm_dir, "--llm", tiny_lm_dir, "--log", log.path]
    options = ["--preset", "published", "--llm-device", "cpu", "--context", "how are you"]
    options += ["--redis-port", str(redis_server.port), "--set", "alpha=0.3"]
    server = Command("lm-server", *files, *options)
    try:
        wait_for(lambda: log.path.exists() and log.lines("serving"), "server", 60)
        assert log.lines("llm_loaded")[0]["model"] == str(tiny_lm_dir)
        client = ReleaseClient(redis_server.client())
        check(client.decode(spoken_logits("are you there"), 5), log_prob, 0.3, "how are you")
    finally:
        os.kill(server.process.pid, signal.SIGTERM)
        ended = server.wait(20)
    assert (ended.status, ended.stderr) == (0, "")


def test_a_model_that_cannot_be_used_is_one_line(plain, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(LanguageModelError) as caught:
        with_llm(plain, str(tmp_path))
    assert "\n" not in str(caught.value)
