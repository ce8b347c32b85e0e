"""The process that speaks: what is heard, and that neither text nor failure harms it."""

import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from fake_espeak import SOUND, FakeEspeak
from serving import wait_until

from cortext.errors import ConfigError, CortextError, DataError, LiveError
from cortext_live.core import speech as speech_module
from cortext_live.core.speech import MOST_WAITING, NICENESS, SILENT_S, Speech

DEADLINE_S = 20.0


class Heard:
    """What was heard of a text."""

    def __init__(self):
        self.pieces = queue.SimpleQueue()

    def next(self):
        return self.pieces.get(timeout=DEADLINE_S)

    def whole(self):
        """Samples per second, and all the sound; or the error."""
        first = self.next()
        if isinstance(first, CortextError):
            return first
        sound = b""
        while isinstance(piece := self.next(), bytes):
            sound += piece
        assert piece is None, piece
        return first, sound


def hear(speech, text, rate=1.0, pitch=1.0):
    heard = Heard()
    heard.request = speech.ask(text, rate, pitch, heard.pieces.put)
    return heard


@pytest.fixture(scope="module")
def espeak(tmp_path_factory):
    return FakeEspeak(tmp_path_factory.mktemp("bin"))


@pytest.fixture(scope="module")
def speech(espeak):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{espeak.folder}:{os.environ['PATH']}")
        speech = Speech("espeak-ng")
        speech.wait()
        speech.problems = []
        speech.failed = speech.problems.append
        yield speech
        pid = pid_of(speech)
        speech.close()
    assert not runs(pid)


@pytest.fixture(autouse=True)
def forget(request):
    """Forget the calls and the problems of the test before."""
    if "speech" in request.fixturenames:
        speech, espeak = (request.getfixturevalue(name) for name in ("speech", "espeak"))
        espeak.log.write_text("")
        speech.problems.clear()


def pid_of(speech):
    """Process of the voice; another one may just begin."""
    wait_until(lambda: getattr(speech._process, "pid", None) is not None, "a process")
    return speech._process.pid


def runs(pid):
    """Tell whether a process runs; one that has ended may wait for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_sound_is_the_programs_and_comes_in_whole_samples(speech, espeak):
    assert hear(speech, "i see you").whole() == (22050, SOUND)
    assert [each.text for each in espeak.said] == ["i see you"]
    assert speech.problems == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<speak>hi &amp;</speak>", "<speak>hi &amp;</speak>"),
        ("a\0b\nc\x1b[2J", "a b c [2J"),
        ("[[h@loU]] and [[[x", "[ [h@loU]] and [ [ [x"),  # not phonemes
        ("--help; $(id) `id`", "--help; $(id) `id`"),
        ("\u00e7a va \U0001f600", "\u00e7a va \U0001f600"),
        ("a" * 1000, "a" * 1000),
    ],
)
def test_text_is_on_standard_input_and_is_never_markup_nor_an_argument(speech, espeak, text, said):
    assert hear(speech, text, 2.0, 0.5).whole() == (22050, SOUND)
    (call,) = espeak.said
    assert call.text == said
    # 175 words a minute twice as fast; half of the usual pitch of 50; and no -m, for markup
    changed = ["-s", "350", "-p", "25", "-b", "1"]
    assert call.arguments == ["-v", "en-us", *changed, "--stdin", "--stdout"]


@pytest.mark.parametrize(
    ("text", "rate", "pitch", "what"),
    [
        ("a" * 1001, 1, 1, "1001 characters; at most 1000"),
        ("", 1, 1, "no text"),
        (" \0\n\u200b", 1, 1, "no text"),
        ("hi", 0.49, 1, "rate is 0.49; a number from 0.5 to 2.0"),
        ("hi", float("nan"), 1, "rate is nan"),
        ("hi", 1, -0.1, "pitch is -0.1"),
        ("hi", 1, 10**4000, "pitch is 1000"),
    ],
)
def test_what_cannot_be_spoken_is_refused_in_a_line(speech, espeak, text, rate, pitch, what):
    with pytest.raises(DataError, match=what) as caught:
        hear(speech, text, rate, pitch)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 200
    assert espeak.said == []


def test_text_without_a_letter_is_an_answer_and_no_failure(speech, espeak):
    for text in ("...", "\U0001f600", "<>"):
        heard = hear(speech, text).whole()
        assert str(heard) == "the voice espeak-ng can speak nothing of this text"
    assert str(hear(speech, "fail").whole()) == (
        "espeak-ng: ended with status 3; install it again, or use another --voice"
    )
    assert espeak.said[0].text == "fail"
    assert speech.problems == []


def test_text_that_nobody_waits_for_is_not_spoken(speech, espeak):
    slow, never, last = (hear(speech, text) for text in ("slow", "never", "last"))
    assert slow.next() == 22050
    assert slow.next()
    never.request.cancel()
    slow.request.cancel()
    assert last.whole() == (22050, SOUND)
    assert [each.text for each in espeak.said] == ["slow", "last"]
    assert not runs(espeak.said[0].pid)
    assert never.pieces.empty()


def test_few_texts_wait_and_one_that_was_cancelled_leaves_its_place(speech):
    slow = hear(speech, "slow")
    slow.next()  # the others wait
    waiting = [hear(speech, str(number)) for number in range(MOST_WAITING)]
    with pytest.raises(LiveError, match="4 texts wait"):
        hear(speech, "one more")
    waiting[1].request.cancel()
    another = hear(speech, "another")
    slow.request.cancel()
    assert another.whole() == (22050, SOUND)


def test_decoding_goes_first(speech):
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, pid_of(speech)) == min(mine + NICENESS, 19)


def test_process_that_crashes_is_a_line_and_begins_again(speech):
    before = pid_of(speech)
    heard, after = hear(speech, "crash"), hear(speech, "after")
    assert str(heard.whole()) == "the voice espeak-ng ended in the middle of a text"
    assert after.whole() == (22050, SOUND)
    assert speech.problems == ["the voice espeak-ng ended in the middle of a text; it begins again"]
    assert pid_of(speech) != before


@pytest.mark.slow
def test_process_that_hangs_is_killed_with_what_it_started(speech, espeak):
    speech._silent_s = 1.0
    heard = hear(speech, "hang")
    assert str(heard.whole()) == "the voice espeak-ng made no sound for 1 s"
    speech._silent_s = SILENT_S
    assert hear(speech, "after").whole() == (22050, SOUND)
    assert speech.problems == ["the voice espeak-ng made no sound for 1 s; it begins again"]
    assert not runs(espeak.said[0].pid)


@pytest.mark.slow
def test_process_that_is_killed_while_it_waits_begins_again(speech):
    os.kill(pid_of(speech), signal.SIGKILL)
    wait_until(lambda: bool(speech.problems), "the end")
    assert speech.problems == ["the voice espeak-ng ended by itself; it begins again"]
    assert hear(speech, "after").whole() == (22050, SOUND)


class Dying(speech_module.Speech):
    """A voice whose process ends as soon as it is ready."""

    starts = 0

    def _start(self):
        self.starts += 1
        self._link, theirs = multiprocessing.Pipe()
        theirs.close()
        self._process = subprocess.Popen(["true"], stdin=subprocess.PIPE, start_new_session=True)

    def _first_message(self):
        return "ready", ()


def test_process_that_ends_again_and_again_is_left_alone_until_somebody_asks(monkeypatch):
    monkeypatch.setattr(speech_module, "_LOOK_S", 0.02)
    monkeypatch.setattr(speech_module, "AGAIN_S", 0.0)
    said, heard = [], []
    voice = Dying("formant")
    voice.failed = said.append
    wait_until(lambda: any("again and again" in each for each in said), "the end of the starts")
    time.sleep(0.2)
    assert voice.starts == 1 + speech_module.MOST_DEATHS
    voice.ask("hello", 1.0, 1.0, heard.append)
    wait_until(lambda: bool(heard), "an answer")
    assert voice.starts > 1 + speech_module.MOST_DEATHS
    voice.close()


@pytest.mark.slow
def test_voice_that_cannot_be_opened_any_more_is_told_and_comes_back(speech, espeak):
    program = espeak.folder / "espeak-ng"
    text = program.read_text()
    program.write_text("#!/bin/sh\nexit 1\n")
    os.kill(pid_of(speech), signal.SIGKILL)
    wait_until(lambda: bool(speech.problems), "the end")
    assert str(hear(speech, "now").whole()).startswith("the voice espeak-ng cannot be opened: ")
    program.write_text(text)
    deadline_s = time.monotonic() + DEADLINE_S
    while hear(speech, "later").whole() != (22050, SOUND):
        assert time.monotonic() < deadline_s
        time.sleep(0.5)


@pytest.mark.parametrize("name", ["", "no-such-voice", "espeak", "/dev/null", "-v"])
def test_unknown_voice_is_refused_in_a_line(name):
    with pytest.raises(ConfigError, match="--voice: no voice") as caught:
        Speech(name)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_folder_that_is_no_voice_is_refused_in_a_line(tmp_path):
    speech = Speech(str(tmp_path))
    with pytest.raises(ConfigError, match=r"--voice: .*has no config\.json"):
        speech.wait()
    assert speech._process is None


@pytest.mark.slow
def test_process_ends_with_a_server_that_is_killed(espeak):
    program = (
        "import time; from cortext_live.core.speech import Speech\n"
        "if __name__ == '__main__':\n"
        "    speech = Speech('espeak-ng'); speech.wait()\n"
        "    print(speech._process.pid, flush=True); time.sleep(60)\n"
    )
    file = espeak.folder / "main.py"
    file.write_text(program)
    environment = os.environ | {"PATH": f"{espeak.folder}:{os.environ['PATH']}"}
    command = [sys.executable, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
        pid = int(process.stdout.readline())
        assert runs(pid)
        process.kill()
    wait_until(lambda: not runs(pid), "the end of the voice")


@pytest.mark.slow
def test_vits_voice_speaks_what_the_model_itself_speaks(tmp_path):
    pytest.importorskip("transformers")
    import numpy as np
    from tiny_speech_llm import save_tiny_vits

    from cortext_live.voices import open_voice

    folder = save_tiny_vits(tmp_path / "my voice")
    speech = Speech(str(folder / "model.safetensors"))  # its file is as good as its folder
    speech.wait()
    assert (speech.name, speech.takes) == ("my voice", ("rate",))
    rate, sound = hear(speech, "hello there").whole()
    faster = hear(speech, "hello there", rate=2.0).whole()[1]
    again = hear(speech, "hello there").whole()[1]
    speech.close()
    assert rate == 16_000
    expected = np.rint(open_voice(str(folder)).speak("hello there") * 32767)
    np.testing.assert_allclose(np.frombuffer(sound, "<i2"), expected, atol=1)
    assert len(faster) < 0.75 * len(sound)
    assert again == sound
