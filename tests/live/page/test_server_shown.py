"""Sentences as people read and hear them, in the messages of the real server."""

import json

import pytest
from serving import make_session, serving

from cortext.live.core.log_writer import LogWriter
from cortext.usage.writer import UsageLog


@pytest.fixture(scope="module")
def served(page_root):
    with serving(make_session(page_root)) as served:
        yield served


def decoded(page, served, trial=0):
    served.post("start", {"trial": trial})
    return page.next("utterance")


def test_a_sentence_and_its_candidates_are_shown_with_capitals_and_marks(served):
    with served.page() as page:
        utterance = decoded(page, served)
    assert (utterance["text"], utterance["shown"], utterance["wer"]) == (
        "i see you",
        "I see you.",
        0.0,
    )
    assert utterance["nbest"][0]["shown"] == "I see you."
    assert len(utterance["nbest"]) > 1
    for found in utterance["nbest"]:
        words = found["shown"].lower().translate(str.maketrans("", "", ",.?!"))
        assert words == found["text"]


def test_a_hotword_is_decoded_small_and_shown_as_it_was_typed(served):
    with served.page() as page:
        assert served.post("hotwords", {"SeA": 12}).status_code == 200
        state = page.next("state", hotwords={"sea": 12.0})
        assert state["hotword_spelling"] == {"sea": "SeA"}
        utterance = decoded(page, served)
        assert (utterance["text"], utterance["shown"]) == ("i sea you", "I SeA you.")
        # Another bonus, by a client that shows words as `hotwords` has them
        served.post("hotwords", {"sea": 13})
        assert page.next("state", hotwords={"sea": 13.0})["hotword_spelling"] == {"sea": "SeA"}
        served.post("hotwords", {"Sea": None})
        assert page.next("state", hotwords={})["hotword_spelling"] == {}
        assert decoded(page, served)["shown"] == "I see you."


def test_a_name_that_the_language_model_lacks_keeps_its_case(served):
    with served.page() as page:
        served.post("hotwords", {"McSee": 3, "sea": 12})
        assert page.next("state", hotwords={"mcsee": 3.0, "sea": 12.0})["hotword_spelling"] == {
            "mcsee": "McSee"
        }
        served.post("hotwords", {"mcsee": None, "sea": None})
        page.next("state", hotwords={})


class Failing:
    language = "en"

    def show(self, texts, names):
        raise RuntimeError("weights are gone")


def test_a_caser_that_fails_costs_capitals_and_no_sentence(page_root):
    with serving(make_session(page_root, caser=Failing())) as served, served.page() as page:
        utterance = decoded(page, served)
    assert (utterance["text"], utterance["shown"], utterance["error"]) == (
        "i see you",
        "i see you",
        None,
    )


def test_the_history_after_a_restart_has_what_people_saw(page_root, tmp_path):
    def serve():
        return serving(make_session(page_root, log_writer=LogWriter(UsageLog(tmp_path))))

    with serve() as served, served.page() as page:
        decoded(page, served)
        served.post("hotwords", {"SeA": 12})
        page.next("state", hotwords={"sea": 12.0})
        decoded(page, served)
        corrected = {"utterance": 2, "text": "I sea you, McGill!"}
        assert served.post("correction", corrected).status_code == 200
    lines = [json.loads(line) for line in (tmp_path / "utterances.jsonl").read_text().splitlines()]
    assert [line.get("shown") for line in lines] == ["I see you.", "I SeA you.", None]
    assert [line.get("text") for line in lines] == ["i see you", "i sea you", None]
    with serve() as served, served.page() as page:
        entries = page.next("history")["entries"]
    assert [each["shown"] for each in entries] == ["I see you.", "I SeA you."]
    assert entries[1]["correction"] == "I sea you, McGill!"  # as it was typed
