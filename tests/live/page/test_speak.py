"""Sound of the server's voice by HTTP: who gets it, as what, and what happens when nobody waits."""

import io
import os
import subprocess
import sys
import time
import wave
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import httpx
import pytest
from fake_espeak import SOUND, FakeEspeak
from serving import HTTP, TOKEN, make_session, serving, wait_until

from cortext_live.core.speech import Speech
from cortext_live.page.speech import SpeechAnswer, wav_header

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def espeak(tmp_path_factory):
    return FakeEspeak(tmp_path_factory.mktemp("bin"))


@pytest.fixture(scope="module")
def speech(espeak):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{espeak.folder}:{os.environ['PATH']}")
        speech = Speech("espeak-ng")
        speech.wait()
        yield speech
        speech.close()


@pytest.fixture(scope="module")
def served(page_root, speech):
    session = make_session(page_root)
    session.use_voice(speech)
    with serving(session, open_view=True, outside="https://lab.example", is_proxied=True) as served:
        yield served


def samples(answer):
    with wave.open(io.BytesIO(answer.content)) as file:
        facts = file.getframerate(), file.getnchannels(), file.getsampwidth()
        return *facts, file.readframes(len(answer.content))


def test_answer_is_a_wave_file_and_says_so(served):
    answer = served.post("speak", {"text": "i see you"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "audio/wav"
    assert samples(answer) == (22_050, 1, 2, SOUND)


def test_head_of_the_file_is_that_of_a_real_one():
    """All but the lengths, which are not known yet, is what Python's own library writes."""
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setparams((1, 2, 16_000, 0, "NONE", ""))
    ours, real = wav_header(16_000), file.getvalue()
    assert len(ours) == len(real) == 44
    assert ours[:4] + ours[8:40] == real[:4] + real[8:40]


def test_greeting_names_the_voice_and_the_utterance_that_was_heard_already(served):
    with served.page() as page:
        hello = page.next("hello")
        assert (hello["voice"], hello["voice_takes"]) == ("espeak-ng", ["rate", "pitch"])
        assert hello["latest"] is None
        served.post("start", {"trial": 0})
        number = page.next("utterance")["id"]
    with served.page() as page:
        assert page.next("hello")["latest"] == number
        assert page.next("utterance")["id"] == number


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}]
)
def test_sound_is_for_those_with_a_token_though_anybody_may_watch(served, headers):
    answer = served.post("speak", {"text": "i see you"}, headers=headers)
    assert answer.status_code == 401
    assert b"RIFF" not in answer.content
    asked = f"{served.url('/api/speak')}?text=hi&token={TOKEN}"
    assert HTTP.get(asked).status_code in (404, 405)
    elsewhere = {"Authorization": f"Bearer {TOKEN}", "Origin": "http://elsewhere.example"}
    assert served.post("speak", {"text": "hi"}, headers=elsewhere).status_code == 403


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "text is missing"),
        ({"text": 3}, "text must be a string"),
        ({"text": "hi", "rate": "2"}, "rate must be a number"),
        ({"text": "hi", "rate": True}, "rate must be a number"),
        ({"text": "hi", "voice": "-v"}, "unknown field 'voice'"),
        ({"text": "hi", "rate": 3}, "from 0.5 to 2.0"),
        ({"text": "a" * 1001}, "at most 1000"),
        ({"text": "..."}, "can speak nothing of this text"),
        ({"text": "fail"}, "espeak-ng: ended with status 3"),
    ],
)
def test_what_cannot_be_spoken_is_a_line_and_no_sound(served, body, says):
    answer = served.post("speak", body)
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]


def test_client_that_leaves_is_spoken_to_no_more(served, espeak):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    began_s = time.monotonic()
    with HTTP.stream(
        "POST", served.url("/api/speak"), json={"text": "slow"}, headers=headers
    ) as answer:
        assert next(answer.iter_bytes())
    assert samples(served.post("speak", {"text": "after"}))[3] == SOUND
    assert time.monotonic() - began_s < 10  # the slow one takes a minute


def test_voice_that_crashes_is_a_line_to_who_asked_and_on_every_page(served):
    with served.page() as page:
        page.next("stats")
        answer = served.post("speak", {"text": "crash"})
        assert answer.status_code == 409
        assert answer.json() == {"error": "the voice espeak-ng ended in the middle of a text"}
        assert page.next("error")["what"].endswith("it begins again")
        served.post("start", {"trial": 0})  # decoding goes on
        assert page.next("utterance")["text"]
    assert samples(served.post("speak", {"text": "after"}))[3] == SOUND


@pytest.mark.slow
def test_few_texts_wait_and_another_is_refused(served):
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with (
        HTTP.stream(
            "POST", served.url("/api/speak"), json={"text": "slow"}, headers=headers
        ) as slow,
        ThreadPoolExecutor(5) as pool,
    ):
        sound = slow.iter_bytes()  # kept: an iterator that is dropped ends the connection
        assert next(sound)
        answers = [pool.submit(served.post, "speak", {"text": "waits"}) for _ in range(5)]
        first = next(as_completed(answers)).result()  # the others wait for the slow one
        assert first.status_code == 409
        assert first.json()["error"].startswith("4 texts wait for the voice already")
        slow.close()
        assert sorted(each.result().status_code for each in answers) == [200] * 4 + [409]


def test_guests_cannot_take_the_voice_from_the_owner(served):
    guests = [served.post("invite", {"rights": "read", "name": name}).json() for name in "ab"]
    headers = [{"Authorization": f"Bearer {g['url'].partition('#token=')[2]}"} for g in guests]

    def ask(i):
        return served.post("speak", {"text": "slow"}, headers=headers[i])

    with ThreadPoolExecutor(6) as pool:
        waiting = []
        for n_open, i in ((1, 0), (2, 0), (3, 1)):
            waiting.append(pool.submit(ask, i))
            wait_until(lambda: SpeechAnswer.n_open == n_open, "a guest's text waits")  # noqa: B023
        for i in (0, 1):  # two of one guest, three of all
            refused = ask(i)
            assert refused.status_code == 429
            assert refused.json()["error"].startswith("too many sounds of guests at a time")
        mine = [pool.submit(served.post, "speak", {"text": "mine"}) for _ in range(2)]
        wait_until(lambda: SpeechAnswer.n_open == 5, "the owner's texts wait")
        for each in guests:
            served.post("revoke", {"id": each["id"]})
        assert [samples(each.result())[3] for each in mine] == [SOUND] * 2
        assert all(isinstance(each.exception(), httpx.HTTPError) for each in waiting)
    wait_until(lambda: SpeechAnswer.n_open == 0, "the end of all")


def test_program_of_the_documentation_speaks_each_new_sentence_once(served, espeak, monkeypatch):
    text = (ROOT / "docs" / "reference" / "web-socket.md").read_text()
    section = text.partition("## A program that speaks")[2]
    program = section.partition("```python\n")[2].partition("```")[0]
    program = program.replace("127.0.0.1:8765", f"127.0.0.1:{served.port}")
    monkeypatch.setenv("PATH", f"{espeak.folder}:{os.environ['PATH']}")
    with served.page() as page:
        page.next("stats")  # behind the sentence of the test before
        served.post("start", {"trial": 0})
        page.next("utterance")
        espeak.log.write_text("")
        command = [sys.executable, "-c", f"token = {TOKEN!r}\n{program}"]
        with subprocess.Popen(command) as speaker:
            try:
                wait_until(lambda: len(served.session.readers) == 2, "the program")
                for trial in (1, 2):
                    served.post("start", {"trial": trial})
                    shown = page.next("utterance")["shown"]
                    wait_until(lambda: len(espeak.said) == trial, "its voice")  # noqa: B023
                    assert espeak.said[-1].text == shown
            finally:
                speaker.kill()


def test_server_without_a_voice_says_so(page_root):
    with serving(make_session(page_root)) as served:
        answer = served.post("speak", {"text": "hi"})
        assert (answer.status_code, answer.json()["error"]) == (
            409,
            "the server has no voice; start it with --voice",
        )
        with served.page() as page:
            assert page.next("hello")["voice"] is None
