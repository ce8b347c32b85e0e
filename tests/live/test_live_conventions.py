"""Live decoding of other tokens, languages and bins, and what it refuses where two things meet."""

import json
import threading
from dataclasses import replace

import numpy as np
import pytest
from engine_cases import SENTENCES, sentence_entries, write_lm
from page_worlds import CHINESE, HEBREW, MANY, ONE, OPEN, SPANISH, Hearing
from redis_process import wait_for

from cortext.data import open_data, open_dataset
from cortext.data.conventions import Conventions
from cortext.decoding import Decoder, DecoderOptions
from cortext.decoding.fake import fake_log_probs
from cortext.errors import CortextError, DataError, DecodingError, LiveError
from cortext.text.inventory import CHARACTERS, RELEASE
from cortext.text.language import EN, LANGUAGES, Language
from cortext_live.core.acoustic_stream import Endpoint, EndpointOptions
from cortext_live.core.decoder import checked_hotwords, in_time
from cortext_live.core.pipeline import Pipeline
from cortext_live.core.redis_link import RedisLink
from cortext_live.core.redis_streams import StreamEntry
from cortext_live.core.statistics import RunningStatistics
from cortext_live.lm_server.published_protocol import PublishedStreams
from cortext_live.lm_server.server import LMServer, make_protocol
from cortext_live.page.day_pipeline import DayPipeline
from cortext_live.page.decoding_thread import DecodingThread
from cortext_live.page.messages import language_facts, token_groups
from cortext_live.page.sources import Replay
from cortext_live.replay import replay
from cortext_live.replay_clients import (
    JSON_STREAMS,
    BrandStream,
    JsonClient,
    Patience,
    PublishedClient,
)
from cortext_live.usage.log import read_log
from cortext_live.usage.statistics import read_use
from cortext_live.usage.writer import UsageLog, UtteranceRecord


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Writes a world's recordings and language model, once."""
    roots = {}

    def write(world):
        if id(world) not in roots:
            root = tmp_path_factory.mktemp("world")
            roots[id(world)] = world.write(root), Decoder.from_dir(root / "lm")
        return roots[id(world)]

    return write


def other_conventions(world):
    """The same with two tokens exchanged, of another language, and with other bins."""
    mine = world.conventions
    first, second = mine.inventory.spoken[:2]
    swap = {first: second, second: first}
    symbols = tuple(swap.get(symbol, symbol) for symbol in mine.inventory.symbols)
    language = LANGUAGES["de" if mine.language != LANGUAGES["de"] else "fr"]
    return {
        "tokens": replace(mine, inventory=replace(mine.inventory, symbols=symbols)),
        "language": replace(mine, language=language),
        "bins": replace(mine, bin_ms=25),
    }


OTHERS = other_conventions(SPANISH)
TOLD = {"tokens": "is ", "language": "'es'", "bins": "20 ms"}


def refused(error, what):
    """The error is one line that names the difference and what to do."""
    line = str(error.value)
    assert "\n" not in line
    assert TOLD[what] in line
    assert ";" in line


# the same search in other times and tokens


@pytest.mark.parametrize("world", [SPANISH, HEBREW, CHINESE, OPEN, MANY, ONE])
def test_what_is_said_is_decoded_with_the_times_of_the_models_frames(written, world):
    _, decoder = written(world)
    pipeline = Pipeline(None, decoder, stepper=Hearing(world))
    frame_ms = world.stride * world.conventions.bin_ms
    assert pipeline.frame_ms == frame_ms
    for _, said in world.trials:
        pipeline.push(world.spoken(said))
        n_tokens = len(world.tokens(said))
        assert pipeline.seconds == pytest.approx((3 * n_tokens + 4) * frame_ms / 1000)
        best = pipeline.finish()[0]
        assert best.text == said
        # Each token has two frames and a blank one; the last ends where those begin
        assert 0 <= best.words[0].start_ms <= 2 * frame_ms
        last = n_tokens - 1 if world.inventory.silence is None else n_tokens - 2
        assert 3 * last * frame_ms <= best.words[-1].end_ms <= (3 * n_tokens + 1) * frame_ms


def test_a_word_begins_after_its_boundary_in_ten_millisecond_bins(written):
    _, decoder = written(HEBREW)
    pipeline = Pipeline(None, decoder, stepper=Hearing(HEBREW))
    pipeline.push(HEBREW.spoken("שלום עולם"))
    # four letters and the boundary, of three frames of 80 ms
    assert pipeline.finish()[0].words[1].start_ms == pytest.approx(5 * 3 * 80, abs=80)


def test_words_and_errors_count_as_in_the_language():
    spanish = RunningStatistics(LANGUAGES["es"])
    assert spanish.compare("¡Más frío!", "más frio") == 1 / 2  # an accent makes another word
    assert RunningStatistics(EN).compare("I see!", "i see") == 0
    chinese = RunningStatistics(LANGUAGES["zh"])
    assert chinese.compare("我是学生。", "我 是 你") == 2 / 4
    assert [LANGUAGES["zh"].n_words(text) for text in ("我 是 你", "我是你", "")] == [3, 3, 0]
    assert LANGUAGES["es"].n_words("más frío") == 2


def frames(inventory, tokens):
    log_probs_PV = np.full((len(tokens), len(inventory)), -20.0, dtype=np.float32)
    log_probs_PV[np.arange(len(tokens)), inventory.ids(tokens)] = 0.0
    return log_probs_PV


@pytest.mark.parametrize(
    ("inventory", "speech", "pause", "ends"),
    [
        (RELEASE, ["AA"], ["SIL"], True),
        (RELEASE, ["AA"], ["BLANK"], True),
        (CHARACTERS, ["a"], ["BLANK"], True),
        (CHARACTERS, ["a"], ["|"], False),  # a boundary is no pause
        (CHINESE.inventory, ["ni3"], ["_"], True),
        (CHINESE.inventory, ["ni3"], ["hao3"], False),
    ],
)
def test_silence_is_the_blank_and_the_silence_where_there_is_one(inventory, speech, pause, ends):
    # 1500 ms are 38 frames of 40 ms
    endpoint = Endpoint(EndpointOptions(), inventory, frame_ms=40)
    endpoint.push(frames(inventory, speech * 4))
    assert endpoint.push(frames(inventory, pause * 37)) is None
    assert (endpoint.push(frames(inventory, pause)) == "silence") == ends


def test_a_large_model_may_take_half_a_frame():
    assert in_time(DecoderOptions()).llm.budget_ms == 40
    assert in_time(DecoderOptions(), 25).llm.budget_ms == 12.5
    asked = DecoderOptions().changed({"llm": {"budget_ms": 7}})
    assert in_time(asked, 25).llm.budget_ms == 7


def test_hotwords_are_composed_and_what_nobody_sees_is_shown():
    assert checked_hotwords({"fri\u0301o": 4.0}, LANGUAGES["es"]) == {"frío": 4.0}
    assert checked_hotwords({"Avni": 4.0}) == {"Avni": 4.0}
    for word, told in (
        ("\u202egato", r"'\\u202egato' has a character that nobody sees"),
        ("gat\u200bo", r"\\u200bo"),
        ("naïve", "has ï, which language 'es' lacks"),
    ):
        with pytest.raises(DecodingError, match=told) as error:
            checked_hotwords({word: 1.0}, LANGUAGES["es"])
        assert str(error.value).isprintable()


def test_a_hotword_is_taken_as_text_has_it_or_refused():
    """Text has no marks and no emoji, so a hotword with them would never act."""
    assert checked_hotwords({"\u00bfqu\u00e9?": 2.0}, LANGUAGES["es"]) == {"qu\u00e9": 2.0}
    assert checked_hotwords({"l\u2019eau": 2.0}, LANGUAGES["fr"]) == {"l'eau": 2.0}
    assert checked_hotwords({"\u5317\u4eac": 2.0}, LANGUAGES["zh"]) == {"\u5317\u4eac": 2.0}
    assert checked_hotwords({"don\u2019t": 2.0}) == {"don't": 2.0}
    for word in ("\U0001f600", "a\U0001f600b", "...", "", "dos palabras"):
        with pytest.raises(DecodingError, match="no word of language 'es'"):
            checked_hotwords({word: 1.0}, LANGUAGES["es"])


def test_the_page_is_told_groups_and_direction():
    names = [(group["name"], len(group["tokens"])) for group in token_groups(RELEASE)]
    assert names == [
        ("vowels", 15),
        ("approximants", 4),
        ("nasals", 3),
        ("fricatives", 9),
        ("affricates", 2),
        ("stops", 6),
        ("silence", 1),
    ]
    assert token_groups(CHINESE.inventory) == [{"name": "phonemes", "tokens": list(range(1, 8))}]
    assert token_groups(CHARACTERS)[-1] == {"name": "word boundary", "tokens": [1]}
    facts = {"name": "he", "lang": "he", "direction": "rtl", "unit": "word"}
    assert language_facts(HEBREW.conventions.language) == facts
    assert language_facts(Language("arabic", "ء-ي"))["direction"] == "rtl"
    assert language_facts(Language("arabic", "ء-ي"))["lang"] == ""  # no tag of a language
    assert language_facts(EN)["direction"] == "ltr"


# places where two things meet


@pytest.mark.parametrize("what", ["tokens", "language"])
def test_a_model_and_a_language_model_that_differ_are_refused(written, what):
    _, decoder = written(SPANISH)
    other = replace(SPANISH, conventions=OTHERS[what])
    with pytest.raises(CortextError) as error:
        Pipeline(None, decoder, stepper=Hearing(other))
    refused(error, what)


@pytest.mark.parametrize("what", OTHERS)
def test_recordings_and_a_model_that_differ_are_refused_on_the_page(written, what, tmp_path):
    root, _ = written(SPANISH)
    other = replace(SPANISH, conventions=OTHERS[what])
    days = DayPipeline(Hearing(other), Decoder.from_dir(other.write_lm(tmp_path / "lm")))
    with pytest.raises(DataError, match="the recordings and the model differ") as error:
        DecodingThread(days, Replay(root / "data"))
    refused(error, what)


class NoLink:
    """A connection over which nothing is sent."""

    where = "nowhere"

    def newest_id(self, stream):
        return None


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.parametrize("client", [PublishedClient, JsonClient])
def test_recordings_and_a_model_that_differ_are_not_replayed(written, what, client):
    root, _ = written(SPANISH)
    names = PublishedStreams() if client is PublishedClient else JSON_STREAMS
    stepper = Hearing(replace(SPANISH, conventions=OTHERS[what]))
    with pytest.raises(DataError, match="the recordings and the model differ") as error:
        replay(
            open_data(root / "data").split("val"),
            [0],
            client(NoLink(), None, stepper, names),
            threading.Event(),
        )
    refused(error, what)


def ask(protocol, **message):
    fields = {b"message": json.dumps({"utterance": "one"} | message).encode()}
    return json.loads(
        protocol.handle(StreamEntry("in", (1, 0), fields), lambda key: "")[-1].fields["message"]
    )


def test_the_json_server_takes_its_own_order_by_name_or_as_a_list_and_no_other(written):
    _, decoder = written(SPANISH)
    protocol = make_protocol(decoder, "json")
    mine, other = SPANISH.inventory, OTHERS["tokens"].inventory
    told = ask(protocol, type="begin", order=list(mine.symbols), language="es")
    assert (told["type"], told["language"]) == ("begun", "es")
    roles = {"blank": "_", "silence": "#"}
    for order in (None, {"symbols": list(mine.symbols), "roles": roles}, mine.to_json()):
        assert ask(protocol, type="begin", order=order, utterance="two")["type"] == "begun"
    for order, says in (
        (list(other.symbols), "token 1 is a, not e"),
        ({"symbols": list(mine.symbols), "roles": {"blank": "_"}}, "the silence is #, not none"),
        ("release", "the blank is _, not BLANK"),
        ("spanish", "unknown inventory 'spanish'"),
        (list(mine.symbols[:-1]), "the silence '#' is none of its symbols"),
        ([1, 2], "a list of texts is needed"),
        (7, "order is no text"),
    ):
        told = ask(protocol, type="begin", order=order, utterance="three")
        assert told["type"] == "error"
        assert says in told["error"]
        assert "\n" not in told["error"]
    told = ask(protocol, type="begin", language="fr", utterance="three")
    assert "the language 'es' is not 'fr'" in told["error"]
    for frame_ms in (0, -1, "80", 1e9, None):
        told = ask(protocol, type="begin", frame_ms=frame_ms, utterance="three")
        assert "frame_ms is" in told["error"]
    assert json.loads(protocol.announcement().fields["message"])["language"] == "es"


@pytest.mark.parametrize("profile", ["published", "json"])
def test_published_clients_need_not_know_the_order_of_tokens_txt(tmp_path, profile):
    directory = write_lm(tmp_path / "lm", sentence_entries(), SENTENCES)
    (directory / "tokens.txt").write_text("\n".join(RELEASE.symbols))
    decoder = Decoder.from_dir(directory)
    protocol = make_protocol(decoder, profile)
    log_probs_PV = fake_log_probs("i want to go home", 0.0, 0, "lm", decoder.lm.lexicon)
    fields = {b"logits": log_probs_PV.astype("<f4").tobytes()}
    if profile == "json":
        assert ask(protocol, type="begin")["order"] == "lm"
        fields[b"message"] = b'{"type": "frames", "utterance": "one"}'
        protocol.handle(StreamEntry("in", (1, 1), fields), lambda key: "")
        text = ask(protocol, type="end")["text"]
    else:
        for number, name in enumerate(("reset", "input", "finalize"), start=1):
            entry = StreamEntry(f"remote_lm_{name}", (number, 0), fields if name == "input" else {})
            answers = protocol.handle(entry, lambda key: "")
        text = next(each for each in answers if each.stream.endswith("_final")).fields[
            "lm_response_final"
        ]
    assert text.strip() == "i want to go home"


def test_the_json_server_times_words_by_the_clients_frames(written):
    _, decoder = written(HEBREW)
    stepper = Hearing(HEBREW)
    x_TC = HEBREW.spoken("שלום עולם")
    logits = np.stack([stepper.step(x_TC[i : i + 8]) for i in range(0, len(x_TC) - 8, 8)])
    ends = []
    for frame_ms in (80, 40):  # stride 8 and 4 of bins of 10 ms
        protocol = make_protocol(decoder, "json")
        ask(protocol, type="begin", frame_ms=frame_ms)
        fields = {
            b"message": b'{"type": "frames", "utterance": "one"}',
            b"logits": logits.astype("<f4").tobytes(),
        }
        protocol.handle(StreamEntry("in", (1, 1), fields), lambda key: "")
        [_, second] = ask(protocol, type="end")["hypotheses"][0]["words"]
        assert second["start_ms"] == pytest.approx(15 * frame_ms, abs=frame_ms)
        ends.append(second["end_ms"])
    assert ends[0] == 2 * ends[1]


def test_a_wrong_number_of_logits_is_refused_with_the_right_one(written):
    _, decoder = written(SPANISH)
    protocol = make_protocol(decoder, "published")
    fields = {b"logits": np.zeros(41, dtype="<f4").tobytes()}
    answers = protocol.handle(StreamEntry("remote_lm_input", (1, 0), fields), lambda key: "")
    assert (
        "164 bytes are no whole number of frames of 17 float32 logits"
        in answers[-1].fields["error"]
    )


@pytest.fixture
def serve_lm(redis_server):
    """Starts a language-model server in a thread; returns a connection to its Redis."""
    stop, threads = threading.Event(), []
    links = []

    def start(decoder, profile):
        protocol = make_protocol(decoder, profile, stop=stop)
        server = LMServer(protocol, redis_server.url, stop)
        threads.append(threading.Thread(target=server.run, daemon=True))
        threads[-1].start()
        links.append(RedisLink(redis_server.url, "test", stop, patience_s=20))
        announced = protocol.announcement().stream
        wait_for(lambda: links[-1].newest_id(announced), "the server")
        return links[-1]

    yield start
    stop.set()
    for thread in threads:
        thread.join(20)
    for link in links:
        link.close()


@pytest.mark.parametrize("profile", ["published", "json"])
def test_a_world_of_its_own_is_replayed_to_a_server_of_its_own(written, serve_lm, profile):
    root, decoder = written(HEBREW)
    link = serve_lm(decoder, profile)
    client = make_client(profile, link, HEBREW)
    split = open_data(root / "data").split("val")
    summary = replay(split, [0, 1], client, threading.Event(), speed=None)
    assert [result["text"] for result in summary.results] == [said for _, said in HEBREW.trials]
    assert summary.wer == 1 / 5


@pytest.mark.parametrize("what", ["tokens", "language"])
@pytest.mark.parametrize("profile", ["published", "json"])
def test_a_server_with_another_language_model_is_refused(
    written, serve_lm, profile, what, tmp_path
):
    root, _ = written(SPANISH)
    other = replace(SPANISH, conventions=OTHERS[what])
    link = serve_lm(Decoder.from_dir(other.write_lm(tmp_path / "lm")), profile)
    client = make_client(profile, link, SPANISH)
    with pytest.raises(LiveError) as error:
        replay(open_data(root / "data").split("val"), [0], client, threading.Event(), speed=None)
    refused(error, what)


def make_client(profile, link, world):
    patience = Patience(link, 20)
    if profile == "json":
        return JsonClient(link, patience, Hearing(world), JSON_STREAMS)
    return PublishedClient(link, patience, Hearing(world), PublishedStreams())


@pytest.mark.parametrize("what", OTHERS)
def test_recordings_for_another_node_are_not_streamed(redis_server, what):
    redis = redis_server.client()
    parameters = {"run": "somewhere", "control_stream": "marks"}
    nodes = {"speech": {"nickname": "speech", "parameters": parameters}}
    redis.xadd("supergraph_stream", {"data": json.dumps({"nodes": nodes})})
    stated = json.dumps(OTHERS[what].to_json())
    redis.xadd("speech_state", {"status": "NODE_READY", "conventions": stated})
    link = RedisLink(redis_server.url, "test")
    try:
        client = BrandStream(link, Patience(link, 5), "speech", 100)
        with pytest.raises(DataError, match="the recordings and node speech differ") as error:
            client.ready(SPANISH.conventions)
        refused(error, what)
        client.ready(OTHERS[what])
        redis.xadd("speech_state", {"status": "NODE_READY", "conventions": "[1]"})
        with pytest.raises(LiveError, match="node speech: its conventions cannot be read"):
            client.ready(SPANISH.conventions)
    finally:
        link.close()


# the usage log


def test_a_log_keeps_language_and_conventions_and_stays_readable(written, tmp_path):
    _, decoder = written(SPANISH)
    x_TC = SPANISH.spoken("el frío")
    with UsageLog(tmp_path / "log", SPANISH.conventions, decoder.lm.lexicon) as log:
        log.append(UtteranceRecord(1, "lab.2024.05.06", 2.0, "el frío"), x_TC)
        log.append(UtteranceRecord(2, "lab.2024.05.06", 2.0, "más tu"), x_TC)
        assert log.correct(2, "Ma\u0301s fri\u0301o.")
        with pytest.raises(CortextError, match="would lose 2 in '2 años'"):
            log.correct(2, "2 años")
        assert log.correct(1, "el frío")
        with pytest.raises(LiveError, match="the lexicon has no pronunciation of 'gato'"):
            log.correct(1, "el gato")
        # its features are not kept under the words of before
        kept = open_dataset(tmp_path / "log/recordings").trials("train")
        assert [trial.sentence for trial in kept] == ["más frío"]
    found = read_log(tmp_path / "log")
    assert found.notes == []
    assert [entry.language.name for entry in found.entries] == ["es", "es"]
    assert found.entries[1].correction == "Más frío."
    assert found.entries[1].label == "más frío"
    use = read_use([tmp_path / "log"])
    assert use.languages == {"es": 2}
    # "más tu" and "el frío" against "más frío" and "el gato": 2 of 4 words
    assert use.overall.wer == 2 / 4
    assert Conventions.read(tmp_path / "log/recordings") == SPANISH.conventions
    with UsageLog(tmp_path / "log", SPANISH.conventions, decoder.lm.lexicon):
        pass
    for what, conventions in OTHERS.items():
        with pytest.raises(LiveError, match="the recordings of this log differ") as error:
            UsageLog(tmp_path / "log", conventions)
        refused(error, what)


def test_an_english_log_says_nothing_new(tmp_path):
    with UsageLog(tmp_path / "log") as log:
        log.append(UtteranceRecord(1, "t15.2023.08.11", 2.0, "i see you"))
    [line] = (tmp_path / "log/utterances.jsonl").read_text().splitlines()
    assert list(json.loads(line)) == [
        *("id", "when", "session", "duration_s", "n_words", "words_per_minute", "text", "source"),
        *("entry", "log", "crc"),
    ]
    assert "languages" not in read_use([tmp_path / "log"]).to_json()


def test_a_line_of_a_language_of_ones_own_is_read_and_a_wrong_one_is_passed_over(tmp_path):
    own = Language("frisian", "a-z âêôûú")
    with UsageLog(tmp_path / "log", Conventions(language=own)) as log:
        log.append(UtteranceRecord(1, "lab.2024.05.06", 2.0, "wêr"))
    path = tmp_path / "log/utterances.jsonl"
    line = json.loads(path.read_text())
    del line["entry"], line["log"], line["crc"]  # as another program would write it
    for wrong in ("klingon", {"name": "x"}, 7, {"name": "x", "letters": "z-a"}):
        path.write_text(path.read_text() + json.dumps(line | {"language": wrong}) + "\n")
    found = read_log(tmp_path / "log")
    assert [entry.language for entry in found.utterances.values()] == [own]
    assert len(found.notes) == 4
    assert "unknown language 'klingon'" in found.notes[0]
