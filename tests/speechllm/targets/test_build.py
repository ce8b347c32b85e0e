"""Making a cache of audio targets: what is in it, that nothing is done twice, and what stops it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from abandoned import abandoned

from cortext.data import open_dataset
from cortext.errors import DataError, Interrupted, LanguageModelError, RunError, TextError
from cortext_live.voices import Voice, open_voice
from cortext_live.voices.synthesis import say_all
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.targets import build as targets
from cortext_speechllm.targets import cache_parts
from cortext_speechllm.targets.build import (
    LiveTargets,
    build_cache,
    sentences_of_data,
    sentences_of_text,
)
from cortext_speechllm.targets.cache import TargetCache
from cortext_speechllm.targets.cache_parts import UnfinishedCache

SENTENCES = [
    f"{number} apples fall" for number in "one two three four five six seven eight nine ten".split()
]


class Ears:
    """Stands in for an audio LLM: a frame of 40 ms is its loudness, three times over.

    Counts what it hears.

    log:             gets a line for each wave
    interrupt_after: waves after which a Ctrl-C comes
    """

    name, revision, audio_width, frame_ms, sample_rate = "some/ears", "a1b2", 3, 40.0, 16_000
    device = torch.device("cpu")

    def __init__(
        self, log: Path | None = None, interrupt_after: int | None = None, pause_s: float = 0
    ) -> None:
        self.heard: list[int] = []
        self.log, self.interrupt_after, self.pause_s = log, interrupt_after, pause_s

    def audio_features(self, waves: Sequence[np.ndarray]) -> list[torch.Tensor]:
        found = []
        for wave in waves:
            frames = np.resize(np.abs(wave), (-(-len(wave) // 640), 640)).mean(axis=1)
            found.append(torch.from_numpy(np.repeat(frames[:, None], 3, axis=1)))
            self.heard.append(len(wave))
            if len(self.heard) == self.interrupt_after:
                os.kill(os.getpid(), signal.SIGINT)
            if self.log:
                with self.log.open("a") as file:
                    file.write(f"{len(wave)}\n")
        time.sleep(self.pause_s)
        return found


class Beeps(Voice):
    """A voice of as many milliseconds of one tone as a text has letters, times ten."""

    name, revision = "beeps", "7"

    def can_speak(self, text: str) -> bool:
        return any(letter.isalpha() for letter in text)

    def speak(self, text: str) -> np.ndarray:
        if "fail" in text:
            raise ValueError("a cable is loose")
        if "hush" in text:
            return np.zeros(160, np.float32)
        return np.sin(np.arange(160 * len(text)) / 3).astype(np.float32) * (1 + len(set(text))) / 40


def build(out: Path, ears: Any, sentences: Any = SENTENCES, **more: Any) -> dict[str, Any]:
    return build_cache(
        sentences, ears, more.pop("voice", Beeps()), out, workers=more.pop("workers", 0), **more
    )


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "speech.safetensors"


@pytest.fixture
def parts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch, of two sentences, is a part."""
    monkeypatch.setattr(cache_parts, "PART_BYTES", 1)
    monkeypatch.setattr(targets, "WINDOWS", {"cpu": 2})


@contextmanager
def no_file_above(n_bytes: int) -> Iterator[None]:
    """As on a full disk: what makes a file longer fails."""
    room, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, most))


def left_beside(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir() if path != out)


# what is in it


def test_every_sentence_is_there_and_was_heard_once(out: Path) -> None:
    ears, told = Ears(), []
    facts = build(
        out,
        ears,
        [*SENTENCES, *SENTENCES, " one  apples fall "],
        progress=lambda *at: told.append(at),
    )
    assert len(ears.heard) == facts["sentences"] == facts["added"] == 10
    assert told[-1] == (10, 10)
    cache = TargetCache.open(out, "a1b2", 3)
    assert not cache.missing(SENTENCES)
    # 15 characters are 150 ms of sound, 4 frames of 40 ms, each as loud as a sine is in the mean, 2
    # / pi
    target_BNA, n_frames_B = cache.features(["one apples fall"])
    assert n_frames_B.tolist() == [4]
    letters = 1 + len(set("one apples fall"))
    np.testing.assert_allclose(target_BNA[0, :3], letters / 40 * 2 / np.pi, rtol=0.02)
    assert (cache.origin.voice, cache.origin.voice_revision) == ("beeps", "7")
    assert left_beside(out) == []


def test_features_have_the_true_duration_whatever_the_batch(
    tiny_audio_llm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, voice = AudioLLM.load(tiny_audio_llm, "cpu"), open_voice("formant")
    texts = [
        "sea",
        "the cat sat on the mat",
        "it was a long and difficult journey, and we were glad to be home",
    ]
    for number, windows in enumerate((1, 3)):
        monkeypatch.setattr(targets, "WINDOWS", {"cpu": windows})
        cached = TargetCache(
            Path(build(tmp_path / f"{number}", llm, texts, voice="formant")["cache"])
        )
        for text in texts:
            wave = voice.speak(text)
            alone_NA = llm.audio_features([wave])[0]
            # a mel frame begins every 160 samples; a convolution of stride 2, then pairs of frames
            # are averaged
            n_mels = -(-len(wave) // 160)
            assert cached.n_frames(text) == len(alone_NA) == ((n_mels - 1) // 2 + 1 - 2) // 2 + 1
            np.testing.assert_allclose(
                cached.features([text])[0][0], alone_NA, rtol=1e-3, atol=1e-3
            )
    assert cached.n_frames("sea") == 7  # 300 ms: 30 mel frames, 15, 7
    assert cached.origin.frame_ms == 40


def test_live_targets_are_those_of_the_cache(tiny_audio_llm: Path, out: Path) -> None:
    llm, texts = AudioLLM.load(tiny_audio_llm, "cpu"), [*SENTENCES[:5], SENTENCES[0]]
    build(out, llm, texts, voice="formant")
    cached_BNA, n_cached_B = TargetCache(out).features(texts)
    live_BNA, n_live_B = LiveTargets(llm, open_voice("formant")).features(texts)
    assert torch.equal(n_live_B, n_cached_B)
    torch.testing.assert_close(live_BNA, cached_BNA, rtol=2e-3, atol=2e-3)


# continuing


def test_new_sentences_are_added_to_what_is_there(out: Path) -> None:
    build(out, Ears(), SENTENCES[:4])
    before = TargetCache(out).features(SENTENCES[:4])[0]
    ears = Ears()
    facts = build(out, ears, SENTENCES[2:6])
    assert (len(ears.heard), facts["added"], facts["sentences"]) == (2, 2, 6)
    assert torch.equal(TargetCache(out).features(SENTENCES[:4])[0], before)


def test_what_is_all_there_is_left_as_it_is_and_loads_no_model(
    tiny_audio_llm: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(out, AudioLLM.load(tiny_audio_llm, "cpu"), SENTENCES[:2])
    changed = out.stat().st_mtime_ns
    monkeypatch.setattr(AudioLLM, "load", lambda *_: pytest.fail("loaded"))
    assert build(out, tiny_audio_llm, SENTENCES[:2])["added"] == 0
    assert out.stat().st_mtime_ns == changed
    assert left_beside(out) == []


KILLED = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_build as t
assert "torch._dynamo" not in sys.modules  # the compiler takes every command two seconds to import
t.cache_parts.PART_BYTES, t.targets.WINDOWS = 1, {"cpu": 2}
t.build(Path(sys.argv[2]), t.Ears(Path(sys.argv[3]), pause_s=0.05))
"""


def test_a_killed_build_continues_with_what_it_had(
    out: Path, tmp_path: Path, parts_at_once: None
) -> None:
    log = tmp_path / "heard"
    log.touch()
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), *sys.path])
    program = [sys.executable, "-c", KILLED, str(here), str(out), str(log)]
    with subprocess.Popen(program, env={**os.environ, "PYTHONPATH": paths}) as process:
        while process.poll() is None and len(log.read_text().split()) < 5:
            time.sleep(0.01)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    parts = [
        TargetCache(path) for path in out.with_name(f"{out.name}.parts").glob("part-*.safetensors")
    ]
    there = {key for part in parts for key in part.keys()}  # noqa: SIM118 - not a mapping
    assert 2 <= len(there) < 10
    ears = Ears()
    facts = build(out, ears)
    assert len(ears.heard) == facts["added"] == 10 - len(there)
    assert facts["sentences"] == 10
    assert left_beside(out) == []


def test_what_a_kill_while_writing_leaves_is_cleared(out: Path) -> None:
    build(out, Ears(), SENTENCES[:2])
    folder = out.with_name(f"{out.name}.parts")
    folder.mkdir()
    abandoned(folder / "part-000001.safetensors")
    abandoned(out)
    # Merged, and not yet removed.
    (folder / "part-000003.safetensors").write_bytes(out.read_bytes())
    changed = out.stat().st_mtime_ns
    assert build(out, Ears(), SENTENCES[:2])["added"] == 0
    assert left_beside(out) == []
    assert out.stat().st_mtime_ns == changed


def test_a_damaged_part_is_made_again(out: Path, parts_at_once: None) -> None:
    with pytest.raises(Interrupted):
        build(out, Ears(interrupt_after=6))
    first, second, third = sorted(out.with_name(f"{out.name}.parts").iterdir())
    first.write_bytes(first.read_bytes()[:-3])
    second.write_bytes(second.read_bytes()[:-1] + b"\x55")
    ears = Ears()
    facts = build(out, ears)
    assert (facts["damaged_parts"], len(ears.heard), facts["sentences"]) == (2, 8, 10)
    assert not third.exists()


def test_ctrl_c_ends_after_the_batch_and_keeps_it(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "WINDOWS", {"cpu": 2})
    with pytest.raises(
        Interrupted,
        match=r"interrupted after 4 of 10 sentences; the same command goes on with what",
    ):
        build(out, Ears(interrupt_after=3))
    assert not out.exists()
    ears = Ears()
    build(out, ears)
    assert len(ears.heard) == 6


def test_a_full_disk_is_one_line_and_loses_nothing(out: Path, parts_at_once: None) -> None:
    with (
        no_file_above(800),
        pytest.raises(
            RunError,
            match=r"cannot write the file: File too large; free some space; the same command",
        ),
    ):
        build(out, Ears())  # parts fit, and all together do not
    assert not out.exists()
    ears = Ears()
    assert build(out, ears)["sentences"] == 10
    assert not ears.heard


def test_a_disk_too_full_for_a_part_is_one_line(out: Path, parts_at_once: None) -> None:
    build(out, Ears(), SENTENCES[:2])
    with no_file_above(100), pytest.raises(RunError, match="cannot write the file"):
        build(out, Ears())
    assert left_beside(out) == []
    assert len(TargetCache(out)) == 2


# what is refused


def test_two_builds_of_one_file_are_refused(out: Path) -> None:
    with (
        UnfinishedCache(out).held(),
        pytest.raises(RunError, match="another process is making this cache; wait"),
    ):
        build(out, Ears())
    build(out, Ears())


@pytest.mark.parametrize("unfinished", [False, True])
def test_another_model_or_voice_is_refused_before_any_work(
    out: Path, monkeypatch: pytest.MonkeyPatch, unfinished: bool, parts_at_once: None
) -> None:
    if unfinished:
        with pytest.raises(Interrupted):
            build(out, Ears(interrupt_after=3))
    else:
        build(out, Ears())
    where = rf"give another --out, or delete \S*speech.safetensors{'.parts' if unfinished else ''}$"
    other = Ears()
    other.revision = "ffff"
    with pytest.raises(
        DataError,
        match=rf"with the audio LLM some/ears at revision a1b2, and this one is ffff; {where}",
    ):
        build(out, other, ["yes"])
    monkeypatch.setattr(Beeps, "revision", "8")
    with pytest.raises(
        DataError, match=rf"was made with the voice beeps at revision 7, and this one is 8; {where}"
    ):
        build(out, other := Ears(), ["yes"])
    assert not other.heard


def test_a_file_of_something_else_is_not_overwritten(out: Path) -> None:
    out.parent.mkdir()
    out.write_bytes(b"my thesis")
    with pytest.raises(DataError, match="cannot be read as a cache"):
        build(out, Ears())
    assert out.read_bytes() == b"my thesis"
    with pytest.raises(DataError, match="is a directory; a file is to be written"):
        build(out.parent, Ears())


def test_a_sentence_without_words_is_named_before_any_work(out: Path) -> None:
    ears = Ears()
    with pytest.raises(
        TextError,
        match=r"^sentence 2: '\.\.\.' cannot be spoken by beeps: .* \(and 1 more sentences\)",
    ):
        build(out, ears, ["yes", "...", "no", "  "])
    assert not ears.heard
    facts = build(out, ears, {"yes": "a", "...": "day 3", "": "day 4"}, skip_bad=True)
    assert (facts["sentences"], facts["left_out"]) == (1, ["day 3: '...'", "day 4: ''"])
    with pytest.raises(TextError, match="there is no sentence to speak"):
        build(out, ears, ["..."], skip_bad=True)


def test_a_sentence_in_another_script_asks_for_another_voice(out: Path) -> None:
    with pytest.raises(
        TextError,
        match=r"^sentence 2: 'да' cannot be spoken by formant: it reads none of .*--voice",
    ):
        build(out, Ears(), ["yes", "да"], voice=open_voice("formant"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fail now", r"beeps cannot speak 'fail now' \(a cable is loose\)"),
        ("hush now", "nothing is heard when beeps"),
    ],
)
def test_what_a_voice_fails_at_is_named(
    out: Path, text: str, said: str, parts_at_once: None
) -> None:
    with pytest.raises(TextError, match=rf"^line 3: {said}.*leave it out"):
        build(
            out, Ears(), {"a long sentence": "line 1", "another long one": "line 2", text: "line 3"}
        )
    ears = Ears()
    build(out, ears, ["a long sentence", "another long one"])
    assert not ears.heard


def test_what_is_too_long_for_the_tower_is_named(tiny_audio_llm: Path, out: Path) -> None:
    llm = AudioLLM.load(tiny_audio_llm, "cpu")  # hears 12 s: 1,200 of its letters
    said = (
        r"'a{100,} \.\.\. a{100,}' cannot be heard: wave 0 takes 12.0 s, .* at most 12 s; leave the"
    )
    with pytest.raises(DataError, match=said):
        build(out, llm, ["yes", "a" * 1201, "no"])


def test_memory_that_runs_out_makes_smaller_batches(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small(Ears):
        def audio_features(self, waves: Sequence[np.ndarray]) -> list[torch.Tensor]:
            sizes.append(len(waves))
            if len(waves) > room:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().audio_features(waves)

    monkeypatch.setattr(targets, "WINDOWS", {"cpu": 8})
    sizes: list[int] = []
    room = 2
    build(out, Small())
    assert sizes == [8, 4, 2, 2, 4, 2, 2, 2]
    room = 0
    with pytest.raises(
        LanguageModelError, match="not enough memory for the audio tower to hear 'yes'; use another"
    ):
        build(out, Small(), ["yes"])


def test_numbers_beyond_half_precision_are_refused(out: Path) -> None:
    class Loud(Ears):
        def audio_features(self, waves: Sequence[np.ndarray]) -> list[torch.Tensor]:
            return [torch.full((3, 3), 1e5) for _ in waves]

    with pytest.raises(
        LanguageModelError, match="numbers for 'three apples fall' are not finite in half precision"
    ):
        build(out, Loud())


# where sentences come from


def test_sentences_of_data_are_those_of_its_labelled_trials(recordings: Path) -> None:
    data = recordings.parent / "data"
    found = sentences_of_data(data)
    labelled = [trial for trial in open_dataset(data) if trial.sentence is not None]
    assert set(found) == {trial.sentence for trial in labelled}
    first = labelled[0]
    assert found[first.sentence] == f"{data}: {first.name}"


def test_lines_of_a_text_are_numbered_and_blank_ones_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("Yes.\n\n  no  way \nYes.\n!\n")
    assert sentences_of_text(path) == {
        "Yes.": f"{path} line 1",
        "no way": f"{path} line 3",
        "!": f"{path} line 5",
    }
    path.write_bytes(b"caf\xe9")
    with pytest.raises(TextError, match="is not UTF-8 text"):
        sentences_of_text(path)
    with pytest.raises(TextError, match="cannot be read: No such file"):
        sentences_of_text(tmp_path / "none")


# processes that speak


@pytest.mark.slow
def test_any_number_of_processes_makes_the_same_file(out: Path) -> None:
    build(out, Ears(), voice="formant")
    build(out.with_name("two"), Ears(), voice="formant", workers=2)
    assert out.with_name("two").read_bytes() == out.read_bytes()


def signal_those_who_speak(number: signal.Signals) -> None:
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    for child in children:
        if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
            os.kill(int(child), number)


@pytest.mark.slow
def test_a_schedulers_signal_cuts_no_wave_in_two(out: Path) -> None:
    waves = say_all(open_voice("formant"), [f"apple {'and apple ' * 30}"] * 40, workers=1)
    next(waves)
    signal_those_who_speak(signal.SIGTERM)
    assert len(list(waves)) == 39


@pytest.mark.slow
def test_a_process_that_is_killed_is_one_line(out: Path) -> None:
    voice = open_voice("formant")
    waves = say_all(voice, [f"apple {'and apple ' * 30}"] * 40, workers=1)
    next(waves)
    signal_those_who_speak(signal.SIGKILL)
    with pytest.raises(
        RunError, match=r"formant: a process that speaks was killed \(out of memory\?\); the same"
    ):
        list(waves)


LEFT_ALONE = """
import sys, os, signal
from cortext_live.voices import open_voice
from cortext_live.voices.synthesis import say_all
if __name__ == "__main__":
    waves = say_all(open_voice("formant"), ["apple"] * 1000, workers=1)
    next(waves)
    print(open(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_processes_that_speak_end_with_the_one_that_listens(tmp_path: Path) -> None:
    script = tmp_path / "left_alone.py"
    script.write_text(LEFT_ALONE)
    said = subprocess.run([sys.executable, script], capture_output=True, text=True)
    children = [Path("/proc") / number for number in said.stdout.split()]
    assert children
    deadline = time.monotonic() + 20
    while any(child.exists() for child in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(
        child.exists() and "Z" not in (child / "stat").read_text().split()[2] for child in children
    )
