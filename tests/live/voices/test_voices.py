"""Voices: what they say, and that they always say it the same way."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cortext.errors import LanguageModelError, MissingLibrary, TextError
from cortext.text.inventory import ARPABET
from cortext.text.language import LANGUAGES, Language
from cortext_data.durations import RELATIVE_DURATION
from cortext_live.voices import Voice, open_voice
from cortext_live.voices.formant import SOUNDS, FormantVoice, tracks
from cortext_live.voices.voice import resampled, trimmed

needs_espeak = pytest.mark.skipif(
    shutil.which("espeak-ng") is None, reason="needs the program espeak-ng (make system)"
)
RATE = 16_000


@pytest.fixture(params=["formant", pytest.param("espeak-ng", marks=needs_espeak), "vits"])
def voice(request: pytest.FixtureRequest) -> Voice:
    return open_voice(
        str(request.getfixturevalue("tiny_vits")) if request.param == "vits" else request.param
    )


def power_between(wave: np.ndarray, low_hz: float, high_hz: float) -> float:
    power = np.abs(np.fft.rfft(wave * np.hanning(len(wave)))) ** 2
    frequency = np.fft.rfftfreq(len(wave), 1 / RATE)
    return float(power[(frequency >= low_hz) & (frequency < high_hz)].sum() / power.sum())


def resonances(wave: np.ndarray, order: int = 14) -> list[float]:
    """Formants of a vowel at 8 kHz by linear prediction (autocorrelation method).

    Narrow poles, ascending, Hz.
    """
    from scipy.linalg import solve_toeplitz
    from scipy.signal import decimate, lfilter

    x = lfilter([1, -0.95], [1], decimate(wave.astype(np.float64), 2)) * np.hamming(len(wave) // 2)
    r = np.correlate(x, x, "full")[len(x) - 1 :][: order + 1]
    poles = np.roots([1, *-solve_toeplitz(r[:-1], r[1:])])
    frequency, width = np.angle(poles) * 4000 / np.pi, -np.log(np.abs(poles)) * 8000 / np.pi
    return sorted(frequency[(frequency > 150) & (width < 400)].tolist())


# every voice


def test_a_text_is_always_said_in_the_same_way(voice: Voice) -> None:
    first = voice.speak("the cat sat down")
    np.testing.assert_array_equal(voice.speak("the cat sat down"), first)
    voice.speak("something else")
    np.testing.assert_array_equal(open_voice(voice.name).speak("the cat sat down"), first)
    assert voice.speak("the dog sat down").tobytes() != first.tobytes()


def test_a_wave_is_of_sixteen_thousand_finite_samples_a_second(voice: Voice) -> None:
    wave = voice.speak("how are you doing today")
    assert wave.dtype == np.float32
    assert wave.ndim == 1
    assert voice.sample_rate == RATE
    assert np.isfinite(wave).all()
    assert np.abs(wave).max() <= 1
    assert len(voice.speak("how are you doing today, and how is your sister doing")) > len(wave)


def test_a_voice_knows_what_it_cannot_say(voice: Voice) -> None:
    assert voice.can_speak("Yes.")
    for text in ("", "  ", "...", "?!", "- -"):
        assert not voice.can_speak(text)


def test_a_voice_knows_what_it_passes_over(tiny_vits: Path) -> None:
    formant, vits = open_voice("formant"), open_voice(str(tiny_vits))
    for text, lost in (
        ("Yes, it's a well-known cat.", ""),
        ("I have 3 cats, 3!", "3"),
        ("A naïve 42nd", "ï42"),
    ):
        assert (formant.passed_over(text), vits.passed_over(text)) == (lost, lost)


def test_a_vits_voice_that_needs_another_program_says_so(tiny_vits: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_vits, copy := tmp_path / "copy")
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps(settings | {"phonemize": True}))
    voice = open_voice(str(copy))
    assert voice.passed_over("3") == ""
    with pytest.raises(LanguageModelError, match="phonemizer") as caught:
        voice.can_speak("hello")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_voice_says_the_same_in_another_process(voice: Voice) -> None:
    program = (
        "import sys, hashlib; from cortext_live.voices import open_voice;"
        " print(hashlib.sha256(open_voice(sys.argv[1]).speak('nine men').tobytes()).hexdigest(),"
        " 'torch' in sys.modules)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, voice.name], capture_output=True, check=True, text=True
    )
    digest, has_torch = said.stdout.split()[-2:]
    assert digest == hashlib.sha256(voice.speak("nine men").tobytes()).hexdigest()
    # Whose processes begin sooner without it.
    assert has_torch == str(voice.name not in ("formant", "espeak-ng"))


# the project's own


def test_every_phoneme_has_a_sound_and_a_length() -> None:
    assert set(SOUNDS) == set(ARPABET) == set(RELATIVE_DURATION)


def test_a_word_takes_the_time_of_its_phonemes() -> None:
    # edges of 6 frames; S 95 * 1.05 = 99.75 ms, 20 frames; the last vowel, IY, 1.4 times that,
    # 139.65 ms, 28 frames
    assert len(FormantVoice().speak("sea")) == (6 + 20 + 28 + 6) * 80


@pytest.mark.parametrize(
    ("word", "vowel"), [("he", "IY"), ("ma", "AA"), ("who", "UW"), ("hair", "EH"), ("hat", "AE")]
)
def test_vowels_have_the_resonances_of_peterson_and_barney(word: str, vowel: str) -> None:
    published = {
        "IY": (270, 2290),
        "AA": (730, 1090),
        "UW": (300, 870),
        "EH": (530, 1840),
        "AE": (660, 1720),
    }
    wave = FormantVoice().speak(word)
    voiced = np.flatnonzero(tracks(word).voice_F > 0.95)
    if word == "hair":
        voiced = voiced[: len(voiced) // 2]  # before the R
    middle = int(np.median(voiced)) * 80
    found = resonances(wave[middle - 320 : middle + 320])[:2]
    np.testing.assert_allclose(found, published[vowel], rtol=0.15)


def test_a_vowel_repeats_with_the_pitch() -> None:
    wave, at = FormantVoice().speak("ma"), tracks("ma")
    middle = int(np.median(np.flatnonzero(at.voice_F > 0.95)))
    piece = wave[middle * 80 - 400 : middle * 80 + 400]
    echo = np.correlate(piece, piece, "full")[len(piece) :]
    period = 80 + int(np.argmax(echo[79:250]))
    assert RATE / period == pytest.approx(at.pitch_F[middle], rel=0.05)


def test_an_s_hisses_higher_than_an_sh_and_a_vowel_not_at_all() -> None:
    say = FormantVoice().speak
    s, sh, vowel = say("sea")[640:1600], say("she")[640:1600], say("sea")[2600:3900]
    assert power_between(s, 4500, 8000) > 0.8
    assert power_between(sh, 2000, 4500) > 0.8
    assert power_between(vowel, 0, 3500) > 0.95


def test_a_stop_is_silent_before_it_bursts() -> None:
    wave, at = FormantVoice().speak("atom"), tracks("atom")
    level_F = np.sqrt(np.mean(wave.reshape(-1, 80) ** 2, axis=1))
    burst = int(np.argmax(at.noise_F))
    assert level_F[burst - 6 : burst - 3].max() < 0.1 * level_F[: burst - 6].max()
    assert level_F[burst] > 3 * level_F[burst - 4]


def test_a_comma_is_a_pause_and_a_question_rises() -> None:
    sound = FormantVoice().speak("yes, no")
    level_F = np.sqrt(np.mean(sound.reshape(-1, 80) ** 2, axis=1))
    silent = "".join("-" if level < 1e-3 else "x" for level in level_F).strip("-")
    assert 100 <= 5 * max(map(len, silent.split("x"))) <= 200  # ms
    assert tracks("is it so?").pitch_F[-15:].mean() > 1.2 * tracks("is it so.").pitch_F[-15:].mean()


def test_the_revision_stands_for_the_waves() -> None:
    """Who changes what is said here gives the voice another revision, so that caches of the old
    one are refused.
    """
    at = tracks(
        "The quick brown fox jumps over a lazy dog, measuring each joy; why should thin things"
        " vouch?"
    )
    sums = [float(track.sum()) for track in vars(at).values()]
    assert FormantVoice.revision == "1"
    assert sums == pytest.approx(
        [4698290, 127354.661, 564.39, 7.0, 23.356, 4566850, 1833850], rel=1e-6
    )


# helpers


def test_resampling_keeps_a_tone_and_its_duration() -> None:
    tone = np.sin(2 * np.pi * 440 * np.arange(22_050) / 22_050)
    found = resampled(tone, 22_050)
    assert len(found) == RATE
    expected = np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    np.testing.assert_allclose(found[200:-200], expected[200:-200], atol=2e-3)


def test_silence_at_the_ends_is_cut_but_for_thirty_milliseconds() -> None:
    wave = np.concatenate([np.zeros(5000), np.ones(100), np.zeros(50), np.ones(10), np.zeros(5000)])
    assert len(trimmed(wave, RATE)) == 480 + 160 + 480
    assert len(trimmed(np.zeros(7), RATE)) == 7


# programs and models


@needs_espeak
def test_espeak_reads_aloud_what_looks_like_an_option() -> None:
    voice = open_voice("espeak-ng")
    assert voice.revision.endswith(" en-us")
    assert len(voice.speak("-f /etc/passwd")) > RATE // 2


@needs_espeak
def test_espeak_speaks_the_language_of_the_texts() -> None:
    spanish = open_voice("espeak-ng", LANGUAGES["es"])
    assert spanish.revision.endswith(" es")
    said = spanish.speak("el frío")
    assert len(said) > RATE // 4
    american = open_voice("espeak-ng").speak("el frío")
    assert not np.array_equal(said, american)
    for name in ("klingon", "xx", "../es", "-v", "es;ls"):
        with pytest.raises(TextError, match="espeak-ng has no voice for language"):
            open_voice("espeak-ng", Language(name, "a-z"))


@pytest.mark.parametrize("name", ["formant", "facebook/mms-tts-eng"])
def test_an_english_voice_refuses_another_language(name: str) -> None:
    expected = f"the voice '{name}' speaks English only, not language 'es'; give espeak-ng"
    with pytest.raises(TextError, match=expected):
        open_voice(name, LANGUAGES["es"])


def test_without_the_program_the_other_voice_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        MissingLibrary,
        match="espeak-ng is not installed; apt-get install espeak-ng, or use --voice formant",
    ):
        open_voice("espeak-ng")


def test_durations_of_a_vits_voice_are_drawn_by_the_text_and_leave_the_generator_alone(
    tiny_vits: Path,
) -> None:
    voice = open_voice(str(tiny_vits))
    torch.manual_seed(3)
    first = voice.speak("good morning")
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), drawn)
    voice.speak("good evening")
    np.testing.assert_array_equal(voice.speak("good morning"), first)


def test_a_vits_voice_says_what_the_model_itself_says(tiny_vits: Path) -> None:
    from transformers import VitsModel, VitsTokenizer

    model, tokenizer = (
        VitsModel.from_pretrained(tiny_vits).eval(),
        VitsTokenizer.from_pretrained(tiny_vits),
    )
    torch.manual_seed(zlib.crc32(b"hello"))
    with torch.no_grad():
        whole = model(**tokenizer("hello", return_tensors="pt")).waveform[0].numpy()
    said = open_voice(str(tiny_vits)).speak("hello")
    assert 0 < len(said) <= len(whole)
    assert any(
        np.allclose(whole[i : i + len(said)], said, atol=1e-6)
        for i in range(len(whole) - len(said) + 1)
    )


def test_the_revision_of_a_vits_voice_follows_its_weights(tiny_vits: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(tiny_vits, tmp_path / "moved")
    assert open_voice(str(moved)).revision == open_voice(str(tiny_vits)).revision
    weights = load_file(moved / "model.safetensors")
    next(iter(weights.values())).add_(1)
    save_file(weights, moved / "model.safetensors", {"format": "pt"})
    assert open_voice(str(moved)).revision != open_voice(str(tiny_vits)).revision


def test_a_vits_voice_is_opened_again_in_another_process(tiny_vits: Path) -> None:
    voice = open_voice(str(tiny_vits))
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(voice)).speak("tea"), voice.speak("tea")
    )


def test_what_is_no_voice_is_refused(
    tiny_audio_llm: Path, tiny_vits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        LanguageModelError, match="is no VITS voice, but of the type qwen2_audio; give `formant`"
    ):
        open_voice(str(tiny_audio_llm))
    with pytest.raises(LanguageModelError, match="neither a directory nor"):
        open_voice("no/such-voice-anywhere")
    with pytest.raises(LanguageModelError, match=r"has no config\.json"):
        open_voice(str(tmp_path))
    broken = shutil.copytree(tiny_vits, tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    save_file(dict(list(weights.items())[3:]), broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        LanguageModelError, match=r"lacks 3 of its weights, .*: this is no VITS voice"
    ):
        open_voice(str(broken))


# aloud, for a listener who waits


def heard(voice: Voice, text: str, rate: float = 1.0, pitch: float = 1.0) -> np.ndarray:
    """The sound as float32 [samples]."""
    sound = b"".join(voice.aloud(text, rate, pitch)[1])
    return np.frombuffer(sound, "<i2").astype(np.float32) / 32767


def test_a_voice_says_aloud_what_it_speaks_sentence_by_sentence() -> None:
    voice = FormantVoice()
    rate, pieces = voice.aloud("I see you. How are you?  ... ")
    sounds = [np.frombuffer(piece, "<i2") for piece in pieces]
    assert rate == RATE
    assert len(sounds) == 2
    for sound, sentence in zip(sounds, ("I see you.", "How are you?"), strict=True):
        np.testing.assert_allclose(sound, np.rint(32767 * voice.speak(sentence)), atol=1)


def test_long_sentences_are_said_in_pieces_that_lose_no_word() -> None:
    words = ["well", "known", "cats"] * 40
    n_pieces = len(list(FormantVoice().aloud(" ".join(words))[1]))
    assert n_pieces == 4  # 599 letters and gaps, at most 200 in each
    assert len(list(FormantVoice().aloud("a" * 450)[1])) == 3


def test_twice_as_fast_is_half_as_long_and_no_higher() -> None:
    voice = FormantVoice()
    usual, fast = heard(voice, "ma"), heard(voice, "ma", rate=2.0)
    assert len(fast) == pytest.approx(len(usual) / 2, abs=80)
    for wave, factor in ((usual, 1.0), (fast, 1.0), (heard(voice, "ma", pitch=1.5), 1.5)):
        middle = len(wave) * 2 // 3
        piece = wave[middle - 400 : middle + 400]
        echo = np.correlate(piece, piece, "full")[len(piece) :]
        period = 60 + int(np.argmax(echo[59:220]))
        at = tracks("ma").pitch_F
        expected = factor * at[len(at) * 2 // 3]
        assert RATE / period == pytest.approx(expected, rel=0.06)


@needs_espeak
def test_espeak_takes_speed_and_pitch_and_says_brackets_as_they_are() -> None:
    voice = open_voice("espeak-ng")
    rate, pieces = voice.aloud("my dear friend, how are you today")
    usual = b"".join(pieces)
    assert rate == 22_050
    fast = b"".join(voice.aloud("my dear friend, how are you today", rate=2.0)[1])
    assert 0.3 < len(fast) / len(usual) < 0.6
    high = b"".join(voice.aloud("my dear friend, how are you today", pitch=2.0)[1])
    assert high != usual
    assert len(usual) % 2 == 0
    # As phonemes this is one short word; spelled, it is much more.
    assert len(heard(voice, "[[h@loU]]")) > 1.5 * len(heard(voice, "hello"))
