"""The JSON profile.

One stream in, one out, utterances with names that do not disturb each other.
"""

import json

import numpy as np
import pytest
from engine_cases import SENTENCES, sentence_entries, write_lm
from lm_cases import normalised, served, spoken_logits
from redis_process import wait_for

from cortext.decoding import Decoder
from cortext.errors import ConfigError
from cortext.text.inventory import LM, RELEASE
from cortext_live.core.redis_streams import StreamEntry
from cortext_live.lm_server.server import make_protocol

SEE, THERE = spoken_logits("we want to see you"), spoken_logits("are you there")


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return Decoder.from_dir(
        write_lm(tmp_path_factory.mktemp("lm") / "lm", sentence_entries(), SENTENCES)
    )


@pytest.fixture
def ask(decoder):
    """Asks the protocol, without Redis; answers are the messages."""
    protocol = make_protocol(decoder, "json")

    def ask(kind, utterance="one", logits=None, **facts):
        message = json.dumps({"type": kind, "utterance": utterance} | facts)
        fields = {b"message": message.encode()} | (
            {} if logits is None else {b"logits": logits.tobytes()}
        )
        answers = protocol.handle(StreamEntry("cortext_lm_input", (1, 0), fields), lambda key: "")
        assert {answer.stream for answer in answers} <= {"cortext_lm_output"}
        return [json.loads(answer.fields["message"]) for answer in answers]

    ask.protocol = protocol
    return ask


class Client:
    def __init__(self, redis):
        self.redis, self.seen = redis, "$"
        self.seen = (redis.xrevrange("cortext_lm_output", count=1) or [("0-0", {})])[0][0]

    def say(self, kind, utterance, logits=None, **facts):
        fields = {"message": json.dumps({"type": kind, "utterance": utterance} | facts)}
        self.redis.xadd(
            "cortext_lm_input", fields | ({} if logits is None else {"logits": logits.tobytes()})
        )

    def hear(self, kind, utterance):
        """The next message of that kind about that utterance."""
        while found := self.redis.xread({"cortext_lm_output": self.seen}, block=20_000, count=1):
            [(self.seen, fields)] = found[0][1]
            message = json.loads(fields[b"message"])
            if (message["type"], message["utterance"]) == (kind, utterance):
                return message
        raise AssertionError(f"no {kind} came")


def test_two_clients_at_once_are_kept_apart(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path, profile="json", preset=None):
        left, right = Client(redis_server.client()), Client(redis_server.client())
        left.say("begin", "left-1")
        right.say("begin", "right-1", options={"nbest": 2})
        for first in range(0, 60, 6):
            left.say("frames", "left-1", SEE[first : first + 6])
            right.say("frames", "right-1", THERE[first : first + 6])
        left.say("end", "left-1")
        right.say("end", "right-1")
        found = left.hear("final", "left-1"), right.hear("final", "right-1")
    for message, logits_PV, options in zip(found, (SEE, THERE), ({}, {"nbest": 2}), strict=True):
        expected = decoder.with_options(**options).decode(normalised(logits_PV[:60]), "lm")
        assert [hypothesis["text"] for hypothesis in message["hypotheses"]] == expected.texts
        assert message["hypotheses"][0]["score"] == expected[0].score
        assert message["frames"] == len(logits_PV[:60])
        assert message["error"] is None


def test_the_server_says_that_it_is_there_and_says_so_again(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path, profile="json", preset="published"):
        for _ in range(2):
            redis = redis_server.client()
            wait_for(lambda redis=redis: redis.xlen("cortext_lm_output"), "ready")
            ready = json.loads(redis.xrange("cortext_lm_output")[0][1][b"message"])
            assert (ready["type"], ready["options"]["nbest"], ready["utterance"]) == (
                "ready",
                100,
                None,
            )
            redis.flushall()


def test_redis_restarted_in_mid_utterance_is_named(redis_server, decoder, tmp_path):
    with served(redis_server, decoder, tmp_path, profile="json", preset=None):
        client = Client(redis_server.client())
        client.say("begin", "one")
        client.say("frames", "one", SEE[:20])
        client.hear("partial", "one")
        redis_server.restart()
        client.seen = "0-0"
        assert "frames may be missing" in client.hear("error", "one")["error"]
        client.say("frames", "one", SEE[20:])
        client.say("end", "one")
        final = client.hear("final", "one")
        assert (final["text"], "frames may be missing" in final["error"]) == (
            "we want to see you",
            True,
        )


def test_hotwords_options_and_order_belong_to_one_utterance(ask, decoder):
    release_PV = np.ascontiguousarray(SEE[:, LM_TO_RELEASE])
    assert np.array_equal(release_PV[:, RELEASE.index["AA"]], SEE[:, LM.index["AA"]])
    for options, hotwords in (
        ({}, {}),
        ({"nbest": 1, "lm_weight": 0.5}, {"see": 3.0, "sea": -3.0}),
    ):
        [begun] = ask("begin", order="release", options=options, hotwords=hotwords)
        assert (begun["type"], begun["order"]) == ("begun", "release")
        ask("frames", logits=release_PV)
        [final] = ask("end")
        expected = decoder.with_options(**options).decode(
            normalised(release_PV), "release", hotwords
        )
        assert [h["text"] for h in final["hypotheses"]] == expected.texts
        assert [h["score"] for h in final["hypotheses"]] == [h.score for h in expected]


LM_TO_RELEASE = [LM.symbols.index(symbol) for symbol in RELEASE.symbols]


def test_what_goes_wrong_is_told_about_the_utterance_that_it_concerns(ask):
    def error(*arguments, **facts):
        answers = ask(*arguments, **facts)
        assert answers[-1]["type"] == "error"
        return answers[-1]["error"]

    assert "no such utterance is under way" in error("frames", logits=SEE)
    assert "did you mean 'nbest'?" in error("begin", options={"nbets": 3})
    assert "did you mean 'release'?" in error("begin", order="releas")
    assert "hotwords is no object" in error("begin", hotwords=["see"])
    assert "did you mean 'begin'?" in error("begn")
    assert "names no utterance" in error("begin", utterance="")
    assert "names no utterance" in error("begin", utterance=7)
    ask("begin")
    assert "no field 'logits'" in error("frames")
    [final] = ask("end")
    assert "nothing to decode was sent" in final["error"]
    assert final["text"] == ""
    ask("begin")
    assert "begun again before its end" in ask("begin")[0]["error"]
    assert ask("drop")[0] == {"type": "dropped", "utterance": "one", "frames": 0}
    for raw in (b"", b"{", b"[1]", b"\xff", b"[" * 100_000):
        entry = StreamEntry("cortext_lm_input", (1, 0), {b"message": raw})
        [answer] = ask.protocol.handle(entry, lambda key: "")
        assert json.loads(answer.fields["message"])["type"] == "error"


def test_only_so_many_utterances_at_once(ask):
    for number in range(16):
        assert ask("begin", f"u{number}")[0]["type"] == "begun"
    assert ask("begin", "u16")[0]["error"] == "16 utterances are under way; end or drop one of them"
    ask("drop", "u3")
    assert ask("begin", "u16")[0]["type"] == "begun"


def test_profiles_and_streams_that_cannot_be_are_refused(decoder):
    with pytest.raises(ConfigError, match="did you mean 'json'"):
        make_protocol(decoder, "jsn")
    with pytest.raises(ConfigError, match="no stream of partial results"):
        make_protocol(decoder, "json", streams={"partial": "x"})
    with pytest.raises(ConfigError, match="same name"):
        make_protocol(decoder, "json", streams={"input": "x", "final": "x"})
    with pytest.raises(ConfigError, match="empty name"):
        make_protocol(decoder, "json", streams={"input": ""})
