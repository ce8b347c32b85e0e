"""Another candidate is chosen as the sentence: what pages are sent, what the log keeps."""

import pytest
from serving import make_session, serving

from cortext_live.core.log_writer import LogWriter
from cortext_live.usage.log import read_log
from cortext_live.usage.writer import UsageLog

# Trial 0 says "i see you"; "sea" sounds like "see", and "the sea" is in the language model's text.
SAID, ALIKE = "i see you", "i sea you"


@pytest.fixture(scope="module")
def logged(page_root, tmp_path_factory):
    """A server with a usage log, a page of it, and the log's folder."""
    folder = tmp_path_factory.mktemp("choose") / "log"
    log_writer = LogWriter(UsageLog(folder))
    with serving(make_session(page_root, log_writer=log_writer)) as served, served.page() as page:
        yield served, page, folder


def decoded(served, page, trial=0):
    """Decode a trial, and return its message."""
    served.post("start", {"trial": trial})
    utterance = page.next("utterance")
    page.next("state", state="idle")
    return utterance


def test_a_choice_is_sent_to_every_page_and_logged_as_a_correction(logged):
    served, page, folder = logged
    utterance = decoded(served, page)
    assert utterance["text"] == SAID
    assert ALIKE in [each["text"] for each in utterance["nbest"]]
    with served.page() as other:
        other.next("stats")
        answer = served.post("choose", {"utterance": utterance["id"], "text": ALIKE})
        assert answer.json() == {"ok": True, "kept": True}
        for each in (page, other):
            chosen = each.next("chosen")
            assert (chosen["utterance"], chosen["text"]) == (utterance["id"], ALIKE)
            assert chosen["shown"]
    assert [entry.correction for entry in read_log(folder).entries][-1] == ALIKE


def test_a_page_that_connects_later_is_sent_the_choice_after_its_sentence(logged):
    served, page, _ = logged
    utterance = decoded(served, page)
    served.post("choose", {"utterance": utterance["id"], "text": ALIKE})
    with served.page() as later:
        kinds = [message["type"] for message in later.until("chosen")]
        assert kinds.index("utterance") < kinds.index("chosen")
    decoded(served, page, trial=2)
    with served.page() as latest:  # the choice was about the sentence before
        assert "chosen" not in [message["type"] for message in latest.until("stats")]


def test_the_best_sentence_may_be_chosen_and_so_confirmed(logged):
    served, page, folder = logged
    utterance = decoded(served, page)
    served.post("choose", {"utterance": utterance["id"], "text": SAID})
    assert page.next("chosen")["text"] == SAID
    assert [entry.correction for entry in read_log(folder).entries][-1] == SAID


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"text": "you hear me"}, 400, "none of the candidates"),
        ({"text": ""}, 400, "none of the candidates"),
        ({"text": SAID.upper()}, 400, "none of the candidates"),
        ({"text": SAID + "\0"}, 400, "none of the candidates"),
        ({"text": [SAID]}, 400, "text must be a string"),
        ({"text": None}, 400, "text is missing"),
        ({"utterance": 0}, 409, "utterance 0 is not the latest"),
        ({"utterance": -1}, 409, "is not the latest"),
        ({"utterance": 10**30}, 409, "is not the latest"),
        ({"utterance": "1"}, 400, "utterance must be a number"),
        ({"utterance": True}, 400, "utterance must be a number"),
        ({"utterance": None}, 400, "utterance is missing"),
        ({"entry": 1}, 400, "unknown field 'entry'"),
    ],
)
def test_what_is_no_choice_is_refused_and_changes_nothing(logged, body, status, says):
    served, page, folder = logged
    utterance = decoded(served, page, trial=2)
    served.session.log_writer.ask(lambda log: None).result()  # it is written after the message
    before = (folder / "utterances.jsonl").read_bytes()
    answer = served.post("choose", {"utterance": utterance["id"], "text": utterance["text"]} | body)
    assert (answer.status_code, says in answer.json()["error"]) == (status, True), answer.json()
    with served.page() as later:
        assert "chosen" not in [message["type"] for message in later.until("stats")]
    assert (folder / "utterances.jsonl").read_bytes() == before


def test_the_sentence_before_the_latest_cannot_be_chosen_for_any_more(logged):
    served, page, _ = logged
    first = decoded(served, page)
    decoded(served, page)
    answer = served.post("choose", {"utterance": first["id"], "text": ALIKE})
    assert answer.status_code == 409
    assert "is not the latest; correct it instead" in answer.json()["error"]


def test_without_a_log_the_choice_is_only_shown_and_strangers_have_none(page_root):
    with serving(make_session(page_root), open_view=True) as served, served.page() as page:
        assert served.post("choose", {"utterance": 1, "text": SAID}).status_code == 409
        utterance = decoded(served, page)
        choice = {"utterance": utterance["id"], "text": ALIKE}
        assert served.post("choose", choice, headers={}).status_code == 401
        assert served.post("choose", choice).json() == {"ok": True}
        assert page.next("chosen")["text"] == ALIKE
