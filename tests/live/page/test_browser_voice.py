"""What the page speaks, when, and with which voice, in a real browser.

Trial 0 reads "I see you" and trial 1 "I see me": `page_process.py`. The browser's voices are
doubles, since headless Chromium has none; the server's voice is real.
"""

import shutil
import time

import pytest
from page_browser import PageServer
from page_voice import Heard

pytestmark = [pytest.mark.browser, pytest.mark.slow]
needs_espeak = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="needs the program espeak-ng (make system)"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = PageServer(tmp_path_factory.mktemp("voice"), "--no-log", "--speed", "8").start()
    yield server
    server.stop()


@pytest.fixture
def listen(browser, server):
    made = []

    def listen(base=None, **settings):
        made.append(Heard(browser, base or server.url, **settings))
        return made[-1].open().connected()

    yield listen
    for each in made:
        each.context.close()
        assert each.foreign == []


def bare(texts):
    """Spoken texts without the capitals and marks that they are shown with."""
    return ["".join(c for c in text.lower() if c.isalpha() or c == " ") for text in texts]


def test_speak_is_called_within_fifty_milliseconds_of_the_final_text(listen):
    page = listen()
    for trial in (0, 1, 2, 0, 1):
        page.decode(trial)
    assert bare(page.texts) == [
        "i see you", "i see me", "you and me", "i see you", "i see me",
    ]  # fmt: skip
    arrived = page.page.evaluate("() => window.arrived.slice(-5).map(({ at_ms }) => at_ms)")
    waits_ms = [each["at_ms"] - at_ms for each, at_ms in zip(page.spoken, arrived, strict=True)]
    print("ms from the message to speak():", [round(wait, 1) for wait in waits_ms])
    assert min(waits_ms) >= 0
    assert max(waits_ms) < 50
    first = page.spoken[0]
    # the voice of the language that sends no text to another computer
    assert (first["voice"], first["lang"]) == ("sam", "en-US")
    assert page.complaints == []


def test_nothing_is_spoken_twice_when_the_page_connects_again_or_opens_anew(listen):
    page = listen()
    page.decode(0)
    assert len(page.texts) == 1
    page.page.evaluate("() => window.socket.close()")
    page.page.wait_for_selector('#link:not([data-link="open"])')
    page.connected()
    page.until("window.arrived.length >= 2")  # the server has sent it once more
    time.sleep(0.2)
    assert len(page.texts) == 1
    page.decode(1)
    assert bare(page.texts) == ["i see you", "i see me"]
    late = listen()
    late.until("window.arrived.length === 1")
    time.sleep(0.2)
    assert late.texts == []
    late.page.keyboard.press("r")  # but it can be repeated
    late.until("window.spoken.length === 1")
    assert bare(late.texts) == ["i see me"]


def test_a_sentence_can_be_cancelled_within_the_pause(listen):
    page = listen(mode="pause", pause_s=3)
    page.decode(0)
    page.until_state("pausing")
    assert page.text("#voice-state").startswith("Speaks in ")
    assert page.texts == []
    page.page.keyboard.press("x")
    page.until_state("ready")
    page.page.keyboard.press("v")
    page.page.fill('[data-voice="pause_s"]', "0.5")
    page.page.keyboard.press("Escape")
    page.decode(1)
    page.until("window.spoken.length === 1")
    waited_ms = page.page.evaluate("() => window.spoken[0].at_ms - window.arrived.at(-1).at_ms")
    assert 500 <= waited_ms < 800
    assert bare(page.texts) == ["i see me"]  # and never the one that was cancelled
    page.page.reload()
    assert page.connected().page.input_value('[data-voice="pause_s"]') == "0.5"  # remembered


def test_the_sentence_before_is_spoken_if_the_next_comes_within_the_pause(listen):
    page = listen(mode="pause", pause_s=30)
    page.decode(0)
    page.decode(1)
    assert bare(page.texts) == ["i see you"]
    assert page.state == "pausing"
    page.page.click("#voice-go")
    page.until("window.spoken.length === 2")
    assert bare(page.texts) == ["i see you", "i see me"]


def test_on_a_key_nothing_is_spoken_without_it(listen):
    page = listen(mode="key")
    page.decode(0)
    page.decode(1)  # takes the place of the sentence that nobody asked for
    page.until_state("asking")
    assert page.texts == []
    page.page.keyboard.press("a")
    page.until("window.spoken.length === 1")
    assert bare(page.texts) == ["i see me"]
    page.page.keyboard.press("a")
    time.sleep(0.1)
    assert len(page.texts) == 1


def test_stop_ends_the_sound_and_repeat_begins_it_anew(listen):
    page = listen()
    page.ours(duration_ms=60_000)
    page.decode(0)
    page.until_state("speaking")
    page.page.keyboard.press("x")
    page.until_state("ready")
    assert page.page.evaluate("() => [speechSynthesis.cancels, speechSynthesis.queue.length]") == [
        1,
        0,
    ]
    stopped_ms = page.page.evaluate("() => performance.now()")
    page.page.keyboard.press("r")
    page.until_state("speaking")
    assert bare(page.texts) == ["i see you", "i see you"]
    page.page.keyboard.press("r")  # in the middle: from the beginning, once
    page.until("window.spoken.length === 3 && speechSynthesis.queue.length === 1")
    # Chrome drops what is spoken right after a cancel.
    assert page.spoken[2]["at_ms"] - stopped_ms > 50
    assert page.text("#alert") == "DismissEsc"  # what was stopped has not failed


def test_words_are_spoken_as_they_become_stable_and_not_again_at_the_end(listen):
    page = listen(wordByWord="yes")
    for trial, sentence in ((0, "i see you"), (2, "you and me"), (0, "i see you")):
        before = len(page.texts)
        page.decode(trial)
        assert " ".join(bare(page.texts[before:])) == sentence
    # Some were spoken before the sentence was final.
    first_final_ms = page.page.evaluate("() => window.arrived.at(-3).at_ms")
    assert page.spoken[0]["at_ms"] < first_final_ms


def test_volume_speed_pitch_and_voice_are_those_of_the_panel(listen):
    page = listen()
    page.page.keyboard.press("v")
    for name, value in (("volume", "0.5"), ("rate", "1.5"), ("pitch", "0.7")):
        page.page.fill(f'[data-voice="{name}"]', value)
    page.page.select_option('[data-voice="browserVoice"]', "cloud")
    assert "over the internet" in page.text("#voice-settings .note")
    page.page.get_by_role("button", name="Try it").click()
    page.until("window.spoken.length === 1")
    said = page.spoken[0]
    assert {name: said[name] for name in ("volume", "rate", "pitch", "voice")} == {
        "volume": 0.5,
        "rate": 1.5,
        "pitch": 0.7,
        "voice": "cloud",
    }
    page.page.click('[data-voice="on"]')
    page.page.keyboard.press("Escape")
    assert page.page.is_hidden("#voice-bar")
    page.decode(0)
    page.page.keyboard.press("r")
    assert len(page.spoken) == 1  # it is off


@pytest.mark.parametrize(
    ("ours", "line"),
    [
        ({"error": "synthesis-failed"}, "The browser\u2019s voice failed (synthesis-failed)."),
        (
            {"voices": [{"name": "A", "lang": "de", "voiceURI": "a", "localService": True}]},
            "This browser has no voice of its own for en. Choose one under Voice, or start the"
            " server with --voice.",
        ),
    ],
)
def test_a_voice_that_fails_is_one_line_and_the_text_stays(listen, ours, line):
    page = listen()
    page.ours(**ours)
    page.decode(0)
    page.wait_for_text("#alert-text", line)
    assert bare([page.text("#sentence")]) == ["i see you"]
    page.page.click("#alert-close")
    page.decode(1)  # the same failure is not told for each sentence
    assert page.page.is_hidden("#alert")
    assert bare([page.text("#sentence")]) == ["i see me"]


def test_a_queue_that_is_stuck_is_cleared_once_and_then_told(listen):
    page = listen()
    page.page.clock.install()
    page.ours(starts=False)
    page.decode(0)
    page.page.clock.run_for(6000)
    page.until("window.spoken.length === 2")
    page.page.clock.run_for(7000)
    page.wait_for_text(
        "#alert-text",
        "The browser\u2019s voice makes no sound: this computer may have no voice.",
    )
    assert bare(page.texts) == ["i see you"] * 2


def test_a_browser_that_wants_a_key_first_is_told_of_and_then_speaks(listen):
    page = listen()
    page.until_state("blocked")  # nobody has pressed anything yet
    assert page.text("#voice-state") == "Press any key to turn the voice on"
    page.ours(error="not-allowed")
    page.decode(0)
    page.until_state("blocked")
    page.ours(error=None)
    page.page.keyboard.press("Shift")
    page.until("window.spoken.length >= 2")
    page.until_state("ready")
    assert page.text("#alert") == "DismissEsc"


# The server's voice


@pytest.fixture(scope="module")
def speaking(tmp_path_factory):
    root = tmp_path_factory.mktemp("speaking")
    options = "--no-log", "--speed", "8", "--voice", "espeak-ng", "--open-view"
    server = PageServer(root, *options).start()
    yield server
    server.stop()


@needs_espeak
def test_the_servers_voice_sounds_without_a_gap_and_stops(listen, speaking):
    page = listen(speaking.url)
    page.page.keyboard.press("v")
    assert page.page.input_value('[data-voice="source"]') == "server"
    page.page.keyboard.press("Escape")
    page.decode(0)
    page.until("window.played.length")
    page.until_state("ready")
    played = page.page.evaluate("() => window.played")
    ends_s = [each["at_s"] + each["n"] / each["rate"] for each in played]
    assert 0.4 < ends_s[-1] - played[0]["at_s"] < 2
    for end_s, each in zip(ends_s[:-1], played[1:], strict=True):
        assert each["at_s"] == pytest.approx(end_s, abs=1e-6)
    assert max(each["peak"] for each in played) > 0.1
    wait_ms = played[0]["at_ms"] - page.page.evaluate("() => window.arrived.at(-1).at_ms")
    print(f"ms from the message to the first piece of the server's sound: {wait_ms:.0f}")
    assert (
        wait_ms < 1500
    )  # the machine may be busy; benchmarks/voice_latency.py has the distribution
    assert page.texts == []  # not by the browser's
    page.page.keyboard.press("r")
    page.until_state("speaking")
    page.page.keyboard.press("x")
    page.until_state("ready")
    assert page.page.evaluate("() => window.stopped") >= 1
    assert page.complaints == []


@needs_espeak
def test_a_server_that_cannot_speak_is_a_line_and_the_text_stays(listen, speaking):
    page = listen(speaking.url)
    refusal = {"status": 409, "json": {"error": "the voice espeak-ng ended in the middle"}}
    page.page.route("**/api/speak", lambda route: route.fulfill(**refusal))
    page.decode(0)
    page.wait_for_text("#alert-text", "the voice espeak-ng ended in the middle")
    assert bare([page.text("#sentence")]) == ["i see you"]


@needs_espeak
def test_strangers_who_may_watch_hear_their_browsers_voice_only(browser, speaking):
    page = Heard(browser, speaking.url)
    page.page.goto(speaking.url)
    page.connected()
    page.page.keyboard.press("v")
    assert page.page.is_hidden('[data-voice="source"]')
    page.context.close()
