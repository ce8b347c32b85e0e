"""Sentences as people read and hear them, in the messages of the real server."""

import json

import pytest
from page_process import DAYS, N_FEATURES
from random_casing import random_caser
from refusals import complaint
from serving import make_session, serving
from untrained import untrained_run

from cortext.text.language import LANGUAGES
from cortext_live.casing.model import read_caser, write_caser
from cortext_live.core.log_writer import LogWriter
from cortext_live.page.settings import LiveSettings
from cortext_live.page.setup import open_decoding
from cortext_live.usage.writer import UsageLog


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


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return untrained_run(tmp_path_factory.mktemp("run"), DAYS, N_FEATURES)


@pytest.mark.slow
def test_a_model_of_serve_case_shows_the_sentences(page_root, run, tmp_path):
    caser = random_caser(seed=1)
    write_caser(tmp_path / "case.safetensors", caser)
    settings = LiveSettings(
        run,
        page_root / "lm",
        data=page_root / "data",
        speed=float("inf"),
        case=tmp_path / "case.safetensors",
    )
    with serving(open_decoding(settings)) as served, served.page() as page:
        found = decoded(page, served)["nbest"]
    texts = [each["text"] for each in found]
    assert any(texts)
    # The file has 16 bits a number: it is read as it was written.
    caser = read_caser(tmp_path / "case.safetensors")
    assert [each["shown"] for each in found] == caser.show(texts)


def test_a_model_of_another_language_stops_the_start_of_serve(page_root, run, tmp_path, capsys):
    file = tmp_path / "case.safetensors"
    write_caser(file, random_caser(LANGUAGES["es"]))
    for case, says in (
        (file, "reads language 'es', and decoded text is 'en'"),
        (tmp_path / "none.safetensors", "No such file"),
    ):
        given = "serve", run, "--lm", page_root / "lm", "--feed", "--port", 0, "--case", case
        assert says in complaint(capsys, *given)
