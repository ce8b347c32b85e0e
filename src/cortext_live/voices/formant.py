"""A small formant synthesiser of English speech.

The wave depends only on the text.

Each phoneme of the dictionary has targets for the resonances of the vocal tract, for voice, breath
and the noise of a constriction, as in Klatt, "Software for a cascade/parallel formant synthesizer"
(J. Acoust. Soc. Am. 67, 1980). Vowels are those of Peterson and Barney's men (J. Acoust. Soc. Am.
24, 1952). Targets become tracks, which filter a glottal pulse train and noise frame by frame. The
voice sounds like a machine, and is intelligible.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass

import numpy as np

from cortext.errors import TextError
from cortext.text.inventory import SIL
from cortext.text.pronunciation import to_phonemes
from cortext_data.durations import RELATIVE_DURATION
from cortext_live.voices.voice import SAMPLE_RATE, Voice

FRAME_MS, WINDOW, FFT = 5, 320, 1024
HOP = SAMPLE_RATE * FRAME_MS // 1000
PHONEME_MS, PAUSE_MS, EDGE_MS, BURST_MS = 95, 160, 30, 15
PITCH_HZ, FALL, ACCENT, RISE = 125.0, 0.25, 0.08, 0.45
UPPER_HZ = (3500.0, 4500.0)
BANDWIDTHS_HZ = (70.0, 100.0, 140.0, 220.0, 300.0)
_CLAUSE = re.compile(r"[^,.;:?!]+[,.;:?!]*")


@dataclass(frozen=True)
class PhonemeSound:
    """Articulation of a phoneme.

    Attributes:
        voice, breath: Amplitudes of the two sources that pass the resonances.
        formants: Frequencies (Hz) of the first three resonances: one target, or two with a glide
            between them. Without one, the neighbours' targets count.
        noise: Amplitude of the noise of a constriction, around `centre` within `spread` (Hz).
        closed: Share of the length with a closed mouth; a burst follows.
    """

    formants: tuple[tuple[int, int, int], ...] = ()
    voice: float = 0.0
    breath: float = 0.0
    noise: float = 0.0
    centre: int = 4000
    spread: int = 2000
    closed: float = 0.0


def _vowel(*formants: tuple[int, int, int]) -> PhonemeSound:
    return PhonemeSound(formants, voice=1.0)


VOWELS = {
    "IY": _vowel((270, 2290, 3010)),
    "IH": _vowel((390, 1990, 2550)),
    "EH": _vowel((530, 1840, 2480)),
    "AE": _vowel((660, 1720, 2410)),
    "AH": _vowel((640, 1190, 2390)),
    "AA": _vowel((730, 1090, 2440)),
    "AO": _vowel((570, 840, 2410)),
    "UH": _vowel((440, 1020, 2240)),
    "UW": _vowel((300, 870, 2240)),
    "ER": _vowel((490, 1350, 1690)),
    "EY": _vowel((530, 1840, 2480), (300, 2250, 2900)),
    "AY": _vowel((730, 1150, 2440), (350, 2050, 2600)),
    "OY": _vowel((570, 840, 2410), (350, 2000, 2550)),
    "AW": _vowel((730, 1200, 2440), (380, 900, 2240)),
    "OW": _vowel((540, 1000, 2400), (350, 850, 2240)),
}
CONSONANTS = {
    "W": PhonemeSound(((290, 610, 2150),), voice=0.6),
    "Y": PhonemeSound(((260, 2250, 3000),), voice=0.6),
    "R": PhonemeSound(((320, 1100, 1450),), voice=0.6),
    "L": PhonemeSound(((340, 1050, 2700),), voice=0.6),
    "M": PhonemeSound(((250, 950, 2150),), voice=0.35),
    "N": PhonemeSound(((250, 1550, 2550),), voice=0.35),
    "NG": PhonemeSound(((250, 2000, 2500),), voice=0.35),
    "HH": PhonemeSound((), breath=0.35),
    "F": PhonemeSound(((300, 950, 2200),), noise=0.03, centre=5000, spread=4000),
    "V": PhonemeSound(((280, 950, 2200),), voice=0.3, noise=0.015, centre=5000, spread=4000),
    "TH": PhonemeSound(((300, 1400, 2550),), noise=0.03, centre=6500, spread=3000),
    "DH": PhonemeSound(((280, 1400, 2550),), voice=0.35, noise=0.012, centre=6500, spread=3000),
    "S": PhonemeSound(((320, 1600, 2600),), noise=0.12, centre=6300, spread=1300),
    "Z": PhonemeSound(((280, 1600, 2600),), voice=0.22, noise=0.08, centre=6300, spread=1300),
    "SH": PhonemeSound(((320, 1800, 2600),), noise=0.14, centre=3300, spread=900),
    "ZH": PhonemeSound(((280, 1800, 2600),), voice=0.22, noise=0.09, centre=3300, spread=900),
    "P": PhonemeSound(
        ((300, 800, 2150),), breath=0.25, noise=0.06, centre=1000, spread=1000, closed=0.5
    ),
    "B": PhonemeSound(
        ((250, 800, 2150),), voice=0.5, noise=0.05, centre=1000, spread=1000, closed=0.7
    ),
    "T": PhonemeSound(
        ((300, 1750, 2650),), breath=0.25, noise=0.15, centre=4500, spread=1500, closed=0.5
    ),
    "D": PhonemeSound(
        ((250, 1750, 2650),), voice=0.5, noise=0.10, centre=4500, spread=1500, closed=0.7
    ),
    "K": PhonemeSound(
        ((300, 1900, 2250),), breath=0.25, noise=0.15, centre=2000, spread=600, closed=0.5
    ),
    "G": PhonemeSound(
        ((250, 1900, 2250),), voice=0.5, noise=0.10, centre=2000, spread=600, closed=0.7
    ),
    "CH": PhonemeSound(((320, 1800, 2600),), noise=0.14, centre=3500, spread=1000, closed=0.4),
    "JH": PhonemeSound(
        ((280, 1800, 2600),), voice=0.22, noise=0.10, centre=3500, spread=1000, closed=0.4
    ),
}
SOUNDS = VOWELS | CONSONANTS
_HISSING = ("CH", "JH")  # noise as long as the mouth is open, not only in the burst
_MURMUR = 0.1


@dataclass(frozen=True)
class Tracks:
    """Parameters of the vocal tract in each of F frames of 5 ms.

    Attributes:
        voice_F ... noise_F: Amplitudes.
        formants_F3: Hz.
        pitch_F: Hz.
        centre_F, spread_F: Centre and width of the noise, Hz.
    """

    formants_F3: np.ndarray
    pitch_F: np.ndarray
    voice_F: np.ndarray
    breath_F: np.ndarray
    noise_F: np.ndarray
    centre_F: np.ndarray
    spread_F: np.ndarray


class FormantVoice(Voice):
    """The project's own synthesiser; needs no download."""

    takes = ("rate", "pitch")
    name, revision = "formant", "1"
    """Name and revision. Each change of a wave needs a new revision: of sounds, tracks, filters or
    pronunciations.
    """

    def can_speak(self, text: str) -> bool:
        """Tell whether the text holds a word."""
        try:
            return bool(to_phonemes(text))
        except TextError:
            return False

    def passed_over(self, text: str) -> str:
        """See `Voice.passed_over`.

        These are all letters and digits but a-z, as in the benchmark's normalisation.
        """
        return "".join(
            dict.fromkeys(
                each for each in text if each.isalnum() and not re.match("[a-zA-Z]", each)
            )
        )

    def speak(self, text: str) -> np.ndarray:
        """See `Voice.speak`. Commas and stops make pauses, a question mark a rise."""
        return self._wave(text, 1.0, 1.0)

    def _wave(self, text: str, rate: float, pitch: float) -> np.ndarray:
        spoken = tracks(text)
        if (rate, pitch) != (1.0, 1.0):
            spoken = _changed(spoken, rate, pitch)
        return synthesise(spoken, np.random.default_rng(zlib.crc32(text.encode())))


def tracks(text: str) -> Tracks:
    """Return the vocal tract's parameters for a text."""
    pieces: list[np.ndarray] = []
    clauses = [clause for clause in _CLAUSE.findall(text) if re.search("[a-zA-Z]", clause)]
    for number, clause in enumerate(clauses):
        pieces.append(_silence(PAUSE_MS if number else EDGE_MS))
        pieces.append(_clause(to_phonemes(clause), asks=clause.rstrip().endswith("?")))
    pieces.append(_silence(EDGE_MS))
    rows_FK = np.concatenate(pieces)
    formants_F3 = np.stack([_smooth(_between(column), 60) for column in rows_FK.T[:3]], axis=1)
    pitch_F = _smooth(_between(rows_FK[:, 3]), 80)
    voice_F, breath_F, noise_F = (_smooth(column, 15) for column in rows_FK.T[4:7])
    return Tracks(
        formants_F3,
        pitch_F,
        voice_F,
        breath_F,
        noise_F,
        *(_between(column) for column in rows_FK.T[7:]),
    )


def _changed(t: Tracks, rate: float, pitch: float) -> Tracks:
    """Return tracks that are spoken faster, and higher."""
    n_frames = len(t.pitch_F)
    chosen = np.minimum(np.arange(0, n_frames, rate).astype(int), n_frames - 1)
    fields = {name: track[chosen] for name, track in vars(t).items()}
    return Tracks(**fields | {"pitch_F": fields["pitch_F"] * pitch})


def _silence(ms: float) -> np.ndarray:
    rows_FK = np.zeros((round(ms / FRAME_MS), 9))
    rows_FK[:, [0, 1, 2, 3, 7, 8]] = np.nan
    return rows_FK


def _clause(phonemes: list[str], asks: bool) -> np.ndarray:
    """Return rows [F, 9] of formants, pitch, amplitudes and noise; NaN is filled in later."""
    sounds = [name for name in phonemes if name != SIL]
    last = max((i for i, name in enumerate(sounds) if name in VOWELS), default=-1)
    rows_FK = np.concatenate(
        [_sound(name, 1.4 if i == last else 1.0) for i, name in enumerate(sounds)]
    )
    time_F = np.linspace(0, 1, len(rows_FK))
    rise_F = RISE * np.clip((time_F - 0.75) / 0.25, 0, 1) if asks else 0
    rows_FK[:, 3] *= PITCH_HZ * (1 - FALL * time_F + rise_F)
    return rows_FK


def _sound(name: str, lengthened: float) -> np.ndarray:
    sound = SOUNDS[name]
    n_frames = round(PHONEME_MS * RELATIVE_DURATION[name] * lengthened / FRAME_MS)
    rows_FK = _silence(n_frames * FRAME_MS)
    if sound.formants:
        places = np.linspace(0.25, 0.75, len(sound.formants)) if len(sound.formants) > 1 else [0.5]
        for k, targets in enumerate(np.array(sound.formants, dtype=float).T):
            rows_FK[:, k] = np.interp((np.arange(n_frames) + 0.5) / n_frames, places, targets)
    rows_FK[:, 3] = 1 + ACCENT * (name in VOWELS)
    open_F = slice(round(sound.closed * n_frames), None)
    rows_FK[open_F, 4], rows_FK[open_F, 5] = sound.voice, sound.breath
    if sound.closed and sound.voice:
        rows_FK[: open_F.start, 4] = _MURMUR
    burst_F = (
        slice(open_F.start, open_F.start + BURST_MS // FRAME_MS)
        if sound.closed and name not in _HISSING
        else open_F
    )
    if sound.noise:
        rows_FK[burst_F, 6:] = sound.noise, sound.centre, sound.spread
    return rows_FK


def _between(values_F: np.ndarray) -> np.ndarray:
    """Fill unknown values (NaN) by linear interpolation."""
    known = np.flatnonzero(~np.isnan(values_F))
    if not len(known):
        return np.ones(len(values_F))
    values: np.ndarray = np.interp(np.arange(len(values_F)), known, values_F[known])
    return values


def _smooth(values_F: np.ndarray, ms: int) -> np.ndarray:
    """Average over a window of `ms`, centred on each value."""
    reach = ms // FRAME_MS // 2
    window = np.hanning(2 * reach + 3)
    padded: np.ndarray = np.pad(values_F, reach + 1, mode="edge")
    averaged: np.ndarray = np.convolve(padded, window / window.sum(), mode="valid")
    return averaged


def synthesise(t: Tracks, generator: np.random.Generator) -> np.ndarray:
    """Return the wave of tracks, float32 [80 F]; `generator` draws the noise."""
    n_samples = len(t.pitch_F) * HOP
    at = np.arange(n_samples) / HOP

    def samples(values_F: np.ndarray) -> np.ndarray:
        values: np.ndarray = np.interp(at, np.arange(len(values_F)) + 0.5, values_F)
        return values

    white = generator.standard_normal((2, n_samples))
    tract = samples(t.voice_F) * _pulses(samples(t.pitch_F)) + 0.1 * samples(t.breath_F) * white[0]
    wave = _filtered(tract, _resonances(t.formants_F3)) + _filtered(
        samples(t.noise_F) * white[1], _bands(t)
    )
    loudest = float(np.abs(wave).max(initial=1e-9))
    return np.asarray(0.5 * wave / loudest, dtype=np.float32)


def _pulses(pitch_hz: np.ndarray) -> np.ndarray:
    """Return the derivative of the glottal flow.

    The flow rises slowly and falls fast when the glottis closes (KLGLOTT88).
    """
    phase = np.cumsum(pitch_hz / SAMPLE_RATE) % 1 / 0.65
    return np.where(phase < 1, 2 * phase - 3 * phase**2, 0.0)


def _resonances(formants_F3: np.ndarray) -> np.ndarray:
    """Return the transfer function of each frame, complex [F, FFT / 2 + 1].

    The resonances are in series.
    """
    damped = np.ones(1, dtype=np.complex64)
    upper = [np.array([frequency]) for frequency in UPPER_HZ]  # the same in all frames
    for centre_F, bandwidth in zip([*formants_F3.T, *upper], BANDWIDTHS_HZ, strict=True):
        damped = damped * _damped(centre_F, bandwidth)
    transfer: np.ndarray = 1 / damped
    return transfer


def _damped(centre_F: np.ndarray, bandwidth_hz: float) -> np.ndarray:
    """Return the denominator of one resonance, complex [F, FFT / 2 + 1]."""
    f = np.fft.rfftfreq(FFT, 1 / SAMPLE_RATE)
    squared_F1 = centre_F[:, None].astype(np.float32) ** 2
    return 1 - (f**2 - 1j * bandwidth_hz * f).astype(np.complex64) / squared_F1


def _bands(t: Tracks) -> np.ndarray:
    """Return the noise filter of each frame, [F, FFT / 2 + 1], of power one."""
    f = np.fft.rfftfreq(FFT, 1 / SAMPLE_RATE)
    away = ((f - t.centre_F[:, None]) / t.spread_F[:, None]).astype(np.float32)
    gain = np.exp(-0.5 * away**2)
    power_one: np.ndarray = gain / np.sqrt(np.mean(gain**2, axis=1, keepdims=True))
    return power_one


def _filtered(wave: np.ndarray, transfer: np.ndarray) -> np.ndarray:
    """Filter a wave [80 F] with one filter per frame.

    Overlapping pieces are filtered and added.
    """
    n_frames = len(transfer)
    before = (WINDOW - HOP) // 2
    padded = np.pad(wave.astype(np.float32), (before, WINDOW))
    pieces = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[: n_frames * HOP : HOP]
    window = (np.hanning(WINDOW + 1)[:-1] * (2 * HOP / WINDOW)).astype(np.float32)
    spectra = np.fft.irfft(np.fft.rfft(pieces * window, FFT) * transfer, FFT)
    out = np.zeros(n_frames * HOP + FFT)
    for first in range(0, FFT, HOP):  # column by column: a block of every piece at once
        width = min(HOP, FFT - first)
        block = np.zeros((n_frames, HOP))
        block[:, :width] = spectra[:, first : first + width]
        out[first : first + n_frames * HOP] += block.ravel()
    return out[before : before + n_frames * HOP]
