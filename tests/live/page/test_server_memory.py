"""The conversation of a server: kept, found, exported, deleted, and not kept in private."""

import csv
import io
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from disk_search import traces
from opinion import Opinion
from page_process import Hearing
from serving import HTTP, TOKEN, make_session, serving, wait_until

from cortext.data import open_packed
from cortext.decoding import Decoder
from cortext.errors import LiveError
from cortext_live.core.log_writer import LogWriter
from cortext_live.page import conversation
from cortext_live.page.day_pipeline import DayPipeline
from cortext_live.page.decoding_thread import DecodingThread
from cortext_live.page.sources import Replay
from cortext_live.recalibration.chain import open_chain
from cortext_live.usage import deletion
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.log import read_log
from cortext_live.usage.log_entries import Deleted
from cortext_live.usage.writer import UsageLog

# Trial 0 says "i see you", trial 1 "i see me", trial 2 "you and me".
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


def logging(root, folder, **options):
    """A session that keeps all features in a log."""
    writer = LogWriter(UsageLog(folder, kept_features=KeptFeatures(folder)))
    return make_session(root, log_writer=writer, **options)


@pytest.fixture
def kept(page_root, tmp_path):
    """A server with a log, a page of it, and the log's folder."""
    with serving(logging(page_root, tmp_path / "log")) as served, served.page() as page:
        yield served, page, tmp_path / "log"


@pytest.fixture(scope="module")
def talk(page_root, tmp_path_factory):
    """A server with "i see you", a turn, "i see me" and "you and me" in its log."""
    folder = tmp_path_factory.mktemp("talk") / "log"
    with serving(logging(page_root, folder)) as served, served.page() as page:
        say(served, page, 0)
        served.post("turn", {"text": "Who = (me)?"})
        last = [say(served, page, trial) for trial in (1, 2)][-1]
        served.post("correction", {"utterance": last["id"], "text": "You and I."})
        yield served, folder


def say(served, page, trial):
    """Decode a trial; return its message."""
    served.post("start", {"trial": trial})
    utterance = page.next("utterance")
    page.next("state", state="idle")
    return utterance


def get(served, path):
    return HTTP.get(served.url(f"/api/{path}"), headers=HEADERS)


def texts(entries):
    return [each["text"] for each in entries]


def history(served):
    with served.page() as page:
        return page.next("history")["entries"]


def test_a_page_that_connects_is_sent_the_conversation(kept):
    served, page, folder = kept
    said = say(served, page, 0)
    assert (said["entry"], said["private"]) == (0, False)
    answer = served.post("turn", {"text": "  What do you see? "})
    assert answer.json() == {"ok": True, "entry": 1}
    turn = page.next("turn")
    assert (turn["entry"], turn["text"]) == (1, "What do you see?")
    served.post("correction", {"utterance": said["id"], "text": "I see Ewe."})
    served.post("rating", {"utterance": said["id"], "rating": "wrong"})
    entries = history(served)
    assert entries == [
        {
            "entry": 0,
            "who": "participant",
            "when": said["when"],
            "text": "i see you",
            "shown": said["shown"],
            "correction": "I see Ewe.",
            "rating": "wrong",
        },
        {
            "entry": 1,
            "who": "partner",
            "when": turn["when"],
            "text": "What do you see?",
            "shown": "What do you see?",
        },
    ]
    found = read_log(folder).entries
    assert found[0].when == datetime.fromisoformat(said["when"])
    assert (found[1].text, found[1].when) == (turn["text"], datetime.fromisoformat(turn["when"]))


def test_a_server_that_starts_again_goes_on_with_the_newest_conversation(page_root, tmp_path):
    for n in range(2):
        with serving(logging(page_root, tmp_path / "log")) as served, served.page() as page:
            assert len(history(served)) == 2 * n
            assert say(served, page, 0)["entry"] == 2 * n
            served.post("turn", {"text": "yes"})
    assert len(read_log(tmp_path / "log").entries) == 4


def test_a_stranger_who_may_watch_is_not_sent_the_past(page_root, tmp_path):
    with serving(logging(page_root, tmp_path / "log"), open_view=True) as served:
        with served.page() as page:
            say(served, page, 0)
        with served.page(token=None) as stranger:
            assert stranger.next("history")["entries"] == []


def test_a_stranger_who_may_watch_is_not_sent_the_context(page_root):
    session = make_session(page_root)
    session._days.context = "how are you"  # as a large model reads it
    with (
        serving(session, open_view=True) as served,
        served.page() as page,
        served.page(token=None) as stranger,
    ):
        served.post("options", {"beam": 13})
        for each, expected in ((page, "how are you"), (stranger, None)):
            assert each.next("hello").get("context") == expected
            state = each.next("state")
            assert state["options"]["beam"] == 13
            assert state.get("context") == expected


def test_without_a_log_memory_alone_is_asked(page_root):
    with serving(make_session(page_root)) as served, served.page() as page:
        say(served, page, 0)
        served.post("turn", {"text": "yes"})
        assert texts(get(served, "conversation").json()["entries"]) == ["i see you", "yes"]
        assert texts(get(served, "conversation?search=YES").json()["entries"]) == ["yes"]
        answer = served.post("forget", {"entries": [0]}).json()
        assert answer == {"ok": True, "deleted": 1, "models": [], "notes": []}
        assert page.next("forgotten")["entries"] == [0]
        assert texts(history(served)) == ["yes"]
        with served.page() as later:
            assert "utterance" not in [message["type"] for message in later.until("stats")]


@pytest.mark.parametrize(
    ("query", "expected", "more"),
    [
        ("", ["i see you", "Who = (me)?", "i see me", "you and me"], False),
        ("?limit=2", ["i see me", "you and me"], True),
        ("?limit=2&before=2", ["i see you", "Who = (me)?"], False),
        ("?search=ME", ["Who = (me)?", "i see me", "you and me"], False),
        ("?search=(", ["Who = (me)?"], False),
        ("?search=you and i.", ["you and me"], False),
        ("?search=nobody", [], False),
        ("?limit=0", [], True),
    ],
)
def test_the_conversation_is_found_a_page_at_a_time(talk, query, expected, more):
    served, _ = talk
    found = get(served, f"conversation{query}").json()
    assert (texts(found["entries"]), found["more"]) == (expected, more)


def test_the_conversation_is_exported(talk):
    served, _ = talk
    text = get(served, "export?format=text")
    assert text.headers["content-disposition"].startswith('attachment; filename="conversation-')
    assert [line[21:] for line in text.text.splitlines()] == [
        "participant: " + shown(served, 0),
        "partner: Who = (me)?",
        "participant: " + shown(served, 2),
        "participant: You and I.",
    ]
    rows = list(csv.DictReader(io.StringIO(get(served, "export?format=csv").text)))
    assert [row["decoded"] for row in rows] == ["i see you", "", "i see me", "you and me"]
    lines = get(served, "export?format=jsonl&search=who").text.splitlines()
    assert texts(map(json.loads, lines)) == ["Who = (me)?"]


def shown(served, number):
    entries = get(served, "conversation").json()["entries"]
    return next(each["shown"] for each in entries if each["entry"] == number)


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("conversation?before=NaN", 400, "before is 'NaN'"),
        ("conversation?before=-1", 400, "before is '-1'"),
        ("conversation?limit=1e9", 400, "limit is '1e9'"),
        ("conversation?limit=501", 400, "a whole number up to 500"),
        ("conversation?limit=" + "9" * 5000, 400, "limit is"),
        ("conversation?limit=٣", 400, "limit is"),
        ("conversation?search=" + "a" * 201, 400, "at most 200 characters"),
        ("conversation?after=1", 400, "unknown field 'after'"),
        ("export?format=xml", 400, "unknown format 'xml'"),
        ("export?format=", 400, "unknown format"),
    ],
)
def test_what_cannot_be_found_is_refused_in_one_line(talk, path, status, says):
    answer = get(talk[0], path)
    assert (answer.status_code, says in answer.json()["error"]) == (status, True), answer.json()


@pytest.mark.parametrize("path", ["conversation", "export"])
def test_reading_the_conversation_needs_the_token(talk, path):
    assert HTTP.get(talk[0].url(f"/api/{path}")).status_code == 401


@pytest.mark.parametrize(
    ("action", "body", "says"),
    [
        ("turn", {}, "text is missing"),
        ("turn", {"text": " \n"}, "the turn has no words"),
        ("turn", {"text": "a" * 2001}, "at most 2000"),
        ("turn", {"text": 7}, "text must be a string"),
        ("private", {}, "on is missing"),
        ("private", {"on": 1}, "on must be true or false"),
        ("private", {"on": "yes"}, "on must be true or false"),
        ("forget", {}, "what is to be deleted is not said"),
        ("forget", {"all": False}, "what is to be deleted is not said"),
        ("forget", {"all": True, "entries": [1]}, "said twice"),
        ("forget", {"entries": []}, "not empty"),
        ("forget", {"entries": 1}, "entries must be a list"),
        ("forget", {"entries": [True]}, "whole numbers"),
        ("forget", {"entries": [1.5]}, "whole numbers"),
        ("forget", {"entries": ["1"]}, "whole numbers"),
        ("forget", {"entries": [-1]}, "whole numbers"),
        ("forget", {"entries": [10**30]}, "there is no entry"),
        ("forget", {"entries": [0, 99]}, "there is no entry 99"),
        ("forget", {"since": "now"}, "since is 'now'"),
        ("forget", {"since": "2026-11-21T10:00"}, "without its offset"),
        ("forget", {"until": "0001-01-01T00:00:00+23:59"}, "which no clock shows"),
        ("forget", {"since": 7}, "since must be a string"),
        ("forget", {"entry": 1}, "unknown field 'entry'"),
        ("context", {"conversation": 1}, "conversation must be true or false"),
        ("context", {"conversation": True, "text": "a"}, "give one of them"),
    ],
)
def test_a_wrong_request_changes_nothing(talk, action, body, says):
    served, folder = talk
    time.sleep(0.05)  # twenty requests a second are let through
    before = (folder / "utterances.jsonl").read_bytes()
    answer = served.post(action, body)
    assert (answer.status_code, says in answer.json()["error"]) == (400, True), answer.json()
    assert (folder / "utterances.jsonl").read_bytes() == before


def test_a_deleted_sentence_is_gone_from_disk_memory_and_pages(kept, page_root):
    served, page, folder = kept
    trials = list(open_packed(page_root / "data/.packed").trials("val"))
    for trial in (2, 1):
        said = say(served, page, trial)
        served.post("correction", {"utterance": said["id"], "text": "You and giraffes."})
    served.post("turn", {"text": "Giraffes?"})
    gone = features_of(trials[2])
    assert traces("giraffes and", gone, folder)
    answer = served.post("forget", {"entries": [0, 1, 2]})
    assert answer.json() == {"ok": True, "deleted": 3, "models": [], "notes": []}
    assert page.next("forgotten")["entries"] == [0, 1, 2]
    assert not traces("giraffes Giraffes you", gone, folder)
    assert not traces("see", features_of(trials[1]), folder)
    assert history(served) == []
    assert get(served, "conversation").json() == {"entries": [], "more": False}
    with served.page() as later:  # the latest sentence, too
        assert "utterance" not in [message["type"] for message in later.until("stats")]
    assert served.post("forget", {"entries": [0]}).status_code == 400
    refused = served.post("correction", {"utterance": said["id"], "text": "again"})
    assert (refused.status_code, "was deleted" in refused.json()["error"]) == (409, True)
    assert say(served, page, 0)["entry"] == 3


def features_of(trial):
    """Bins of a trial as the page's model is sent them."""
    return trial.features_TC.astype("<f4")


def test_an_hour_and_all_are_deleted(kept):
    served, page, folder = kept
    first = datetime.fromisoformat(say(served, page, 0)["when"])
    served.post("turn", {"text": "yes"})
    until = (first + timedelta(milliseconds=1)).isoformat()
    since = (first - timedelta(hours=1)).isoformat()
    assert served.post("forget", {"since": since, "until": until}).json()["deleted"] == 1
    assert page.next("forgotten")["entries"] == [0]
    assert served.post("forget", {"all": True}).json()["deleted"] == 1
    assert page.next("forgotten")["entries"] is None
    assert all(isinstance(entry, Deleted) for entry in read_log(folder).entries)
    assert served.post("forget", {"all": True}).json()["deleted"] == 0


def test_what_was_said_while_a_deletion_waits_is_deleted_or_stays_everywhere(kept, monkeypatch):
    """Words that pages were told are deleted must not be written to the log after that."""
    served, _, folder = kept
    session, busy = served.session, threading.Event()
    session._jobs.ask(busy.wait)  # as long as a large model takes for the last sentence
    session.add_turn("Giraffes?")
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(served.post, "forget", {"all": True})
        wait_until(lambda: session._jobs._asked.qsize() > 1, "the request has come")
        busy.set()
        assert answer.result().json()["deleted"] == 1
    get(served, "conversation")  # answered when the disk has what was said before
    assert not traces("Giraffes", (), folder)

    delete = UsageLog.delete
    said = []

    def slow(log, selection):
        found = delete(log, selection)
        said.append(session.add_turn("Zebras?").result())
        return found

    session.add_turn("Giraffes?").result()
    monkeypatch.setattr(UsageLog, "delete", slow)
    assert served.post("forget", {"all": True}).json()["deleted"] == 1
    kept_there = get(served, "conversation").json()["entries"]
    assert texts(kept_there) == texts(history(served)) == ["Zebras?"]
    assert [each["entry"] for each in kept_there] == said


def test_a_number_of_an_earlier_run_means_no_other_sentence(page_root, tmp_path, monkeypatch):
    folder = tmp_path / "log"
    with serving(logging(page_root, folder)) as served, served.page() as page:
        first = say(served, page, 0)
    append = UsageLog.append
    with serving(logging(page_root, folder)) as served, served.page() as page:
        monkeypatch.setattr(UsageLog, "append", full_disk)
        lost = say(served, page, 2)
        get(served, "conversation")  # answered when it was tried
        monkeypatch.setattr(UsageLog, "append", append)
        refused = served.post("correction", {"utterance": lost["id"], "text": "you and I"})
        assert refused.status_code == 409, refused.text
        assert served.post("rating", {"utterance": first["id"], "rating": "right"}).is_success
    (entry,) = read_log(folder).entries
    assert (entry.text, entry.correction, entry.rating) == ("i see you", None, "right")


def full_disk(*_, **__):
    raise LiveError("the disk is full")


def test_a_browser_stores_no_words(talk):
    served, _ = talk
    for path in ("state", "conversation?search=see", "export?format=text"):
        assert get(served, path).headers["cache-control"] == "no-store"
    assert HTTP.get(served.url("/")).headers["cache-control"] == "no-cache"


def test_nothing_of_a_private_sentence_is_kept(kept, page_root):
    served, page, folder = kept
    say(served, page, 0)
    assert served.post("private", {"on": True}).json() == {"ok": True}
    assert page.next("state")["private"] is True
    get(served, "conversation")  # answered when the disk has what was said before
    before = sorted(folder.rglob("*"))
    private = say(served, page, 2)
    assert (private["text"], private["entry"], private["private"]) == ("you and me", None, True)
    assert served.post("turn", {"text": "Giraffes?"}).json()["entry"] is None
    assert page.next("turn")["text"] == "Giraffes?"
    trial = list(open_packed(page_root / "data/.packed").trials("val"))[2]
    get(served, "conversation")
    assert not traces("and Giraffes", features_of(trial), folder)
    assert sorted(folder.rglob("*")) == before
    for action, body in (("rating", {"rating": "right"}), ("correction", {"text": "you"})):
        refused = served.post(action, {"utterance": private["id"]} | body)
        assert (refused.status_code, "private" in refused.json()["error"]) == (409, True)
    with served.page() as later:
        read = later.until("stats")
    assert read[0]["private"] is True
    assert "and" not in json.dumps(read[1:])
    served.post("private", {"on": False})
    assert say(served, page, 1)["entry"] == 1
    assert texts(history(served)) == ["i see you", "i see me"]


def test_a_sentence_in_progress_becomes_private(page_root, tmp_path):
    folder = tmp_path / "log"
    with serving(logging(page_root, folder, speed=4.0)) as served, served.page() as page:
        served.post("start", {"trial": 2})
        page.next("step")
        served.post("private", {"on": True})
        served.post("private", {"on": False})  # what began in private stays so
        said = page.next("utterance")
        assert (said["text"], said["entry"]) == ("you and me", None)
    assert read_log(folder).entries == []
    assert not list(folder.rglob("*.safetensors"))


def test_the_large_model_reads_the_conversation_if_asked_to(page_root, tmp_path):
    decoder = Decoder.from_dir(page_root / "lm").with_llm(Opinion(i_sea_you=0.0))
    days = DayPipeline(Hearing("latest"), decoder, context="At the zoo.")
    session = session_of(page_root, days)
    pipeline = days.pipeline
    with serving(session) as served, served.page() as page:
        say(served, page, 2)
        assert pipeline.context == "At the zoo."
        assert served.post("context", {"conversation": True}).status_code == 200
        state = page.next("state", context_conversation=True)
        assert state["context"] == "At the zoo."
        said = history(served)[0]["shown"]
        assert pipeline.context == f"At the zoo. {said}"
        served.post("turn", {"text": "Giraffes?"})
        assert pipeline.context == f"At the zoo. {said} Giraffes?"
        served.post("private", {"on": True})
        served.post("turn", {"text": "Lions?"})
        say(served, page, 2)
        assert pipeline.context == f"At the zoo. {said} Giraffes?"
        served.post("forget", {"all": True})
        assert pipeline.context == "At the zoo."
        served.post("context", {"text": "At home."})
        assert served.state()["context"] == "At home."
        served.post("context", {"conversation": False})
        assert served.state()["context_conversation"] is False


def session_of(root, days):
    return DecodingThread(days, Replay(root / "data"), speed=float("inf"))


def test_without_a_large_model_nothing_reads_the_conversation(talk):
    answer = talk[0].post("context", {"conversation": True})
    assert (answer.status_code, "no large model" in answer.json()["error"]) == (409, True)


def test_a_full_disk_is_named_and_the_pages_keep_what_is_kept(kept, monkeypatch):
    served, page, _ = kept
    say(served, page, 0)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(deletion, "_rewrite", full)
        answer = served.post("forget", {"all": True})
    assert answer.status_code == 409
    assert "not everything is deleted yet: No space left" in answer.json()["error"]
    assert texts(history(served)) == ["i see you"]
    assert served.post("forget", {"all": True}).json()["deleted"] == 1
    assert history(served) == []


def test_models_of_the_chain_that_learnt_from_it_are_named(kept, tmp_path):
    served, page, folder = kept
    for _ in range(2):
        say(served, page, 0)
    get(served, "conversation")  # answered when both are logged
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("a: 1")
    learnt = {"log": read_log(folder).began, "decoded": [1], "corrected": []}
    with open_chain(tmp_path / "chain", run) as chain:
        write = lambda made: (made / "config.yaml").write_text("a: 2")  # noqa: E731
        model = chain.add_model("candidate", write, parent=0, learnt=learnt)
    served.session.chain = tmp_path / "chain"
    assert served.post("forget", {"entries": [0]}).json()["models"] == []
    assert served.post("forget", {"entries": [1]}).json()["models"] == [model.model_name]
    (tmp_path / "chain" / "chain.jsonl").write_text("damaged\n")
    say(served, page, 0)
    answer = served.post("forget", {"entries": [2]}).json()
    assert answer["deleted"] == 1
    assert "line 1 of the chain is damaged" in answer["notes"][0]


def test_memory_is_bounded(page_root):
    session = make_session(page_root)
    with serving(session) as served:
        for n in range(conversation.MOST_KEPT + 7):
            session.add_turn(str(n)).result(10)
        wait_until(lambda: len(history(served)) == conversation.MOST_SENT, "the latest turns")
        found = get(served, "conversation?limit=500").json()
        assert (len(found["entries"]), found["entries"][0]["text"]) == (500, "7")
