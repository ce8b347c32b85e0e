"""Continuous recordings: idle stretches without attempted speech, and sentences between them.

A stretch is rest, inner speech, listening, chewing or coughing. The articulators move in inner
speech, chewing and coughing; another person's speech reaches some electrodes directly. All noise is
that of a trial.

Sources: inner speech has the representation of attempted speech with weaker activity (Kunz et al.
2025, Cell, doi 10.1016/j.cell.2025.06.015); how much weaker is `inner_modulation`. Premotor cortex
answers to the speech of others, in an acoustic and not an articulatory code (Cheung et al. 2016,
eLife 5:e12577). Chewing has 0.94 to 2.17 cycles a second, 1.57 on average, in episodes of 13 s (Po
et al. 2011, J. Dent. Res. 90). All other numbers are choices. Among them, inner speech has no
motor-intent dimension of its own, by which Kunz et al. tell it from attempts: only its strength
differs.

T bins, C features, E electrodes, K articulators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np

from cortext.config import check_fields
from cortext.errors import ConfigError
from cortext.settings import FROM_0_TO_1, Setting
from cortext.text.pronunciation import pronounced
from cortext_data.simulate.articulators import ARTICULATORS, articulate, targets
from cortext_data.simulate.brain import Electrodes, vocabulary
from cortext_data.simulate.config import N_ARRAYS, SimulatorConfig
from cortext_data.simulate.neural import max_lead_bins, record
from cortext_data.simulate.plan import Prompt
from cortext_data.simulate.speech import TimedPhonemes, utter, with_pauses
from cortext_data.simulate.streams import Purpose, stream

Kind = Literal["rest", "inner speech", "listening", "chewing", "coughing", "attempted speech"]
KINDS: tuple[Kind, ...] = ("rest", "inner speech", "listening", "chewing", "coughing")
"""Kinds of idle stretches; each has the same share of the stretches."""
FIRST_BLOCK = 1_000_000
"""Block number of a day's continuous recording 0; blocks of trials have smaller ones."""
LISTENING_ARRAYS = (2, 3)
"""55b and dorsal 6v."""
HEARD_SPEED = 0.4
"""Duration of a phoneme that another person says, over `phoneme_ms`: about 86 ms."""
HEARD_PAUSE = 0.15
"""Pause between words of another person, over `word_pause_ms`."""
HEARD_LAG_MS = 120
"""Time from a sound to the electrodes' answer."""
CHEW = {"jaw": 1.0, "height": -0.4, "lips": -0.5, "degree": -0.3}
"""Aims at the widest opening of the jaw. A negative aim of the lips is their opening."""
SWALLOW = {"dorsum": 1.0, "height": 0.6, "tension": 0.5, "lips": 0.5, "degree": 0.6}
COUGH = {"breath": 1.0, "voicing": -1.0, "tension": 1.0, "jaw": 0.6, "degree": 0.5}
"""Aims at the height of a cough: the larynx and the breath, with an open mouth."""


_MODULATION = Setting(minimum=0, maximum=2)


@dataclass(frozen=True, kw_only=True)
class IdleConfig:
    """Strength and rhythm of what an idle person does."""

    inner_modulation: Annotated[float, _MODULATION] = 0.3
    """Movement of the articulators in inner speech, over that in attempted speech."""
    stretch_s: tuple[float, float] = (20.0, 60.0)
    """Shortest and longest idle stretch of a recording without sentences, in seconds."""
    heard_share: Annotated[float, FROM_0_TO_1] = 0.4
    """Share of the living electrodes of 55b and dorsal 6v that answer to the speech of others."""
    heard_modulation: Annotated[float, _MODULATION] = 0.3
    """Modulation depth of these answers, over the depth of the electrode in attempted speech."""
    chews_hz: tuple[float, float] = (1.0, 2.0)
    """Slowest and fastest chewing; each episode has its own rate."""
    chewing_s: tuple[float, float] = (5.0, 20.0)
    """Shortest and longest episode of chewing; each ends with a swallow."""
    chew_modulation: Annotated[float, _MODULATION] = 1.0
    """Movement in chewing and swallowing, over `CHEW` and `SWALLOW`."""
    coughs: tuple[int, int] = (1, 4)
    """Fewest and most coughs of a fit."""
    cough_ms: tuple[float, float] = (300.0, 500.0)
    """Shortest and longest cough; the next one follows at once."""
    fit_pause_s: tuple[float, float] = (3.0, 10.0)
    """Shortest and longest time between two fits of coughing, or two episodes of chewing."""
    cough_modulation: Annotated[float, _MODULATION] = 1.0
    """Movement in coughing, over `COUGH`."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("stretch_s", "chews_hz", "chewing_s", "coughs", "cough_ms", "fit_pause_s"):
            low, high = getattr(self, name)
            if not 0 < low <= high < 1e4:
                raise ConfigError(f"{name} is {[low, high]}; it must be two positive numbers")


@dataclass(frozen=True)
class Stretch:
    """A part of a continuous recording.

    Attributes:
        kind: The person's activity.
        first_bin: Its first bin; of attempted speech, the bin in which the first phoneme begins.
        end_bin: The bin after its last one; of attempted speech, after the last phoneme.
        text: The attempted sentence; empty in idle stretches.
    """

    kind: Kind
    first_bin: int
    end_bin: int
    text: str = ""


@dataclass(frozen=True)
class ContinuousRecording:
    """A continuous recording.

    Attributes:
        features_TC: float32 [T, C], not z-scored.
        stretches: Its parts in order. Between them lie the rests before and after sentences.
    """

    features_TC: np.ndarray
    stretches: tuple[Stretch, ...]

    @property
    def idle_bins(self) -> int:
        """Number of bins in idle stretches."""
        return sum(s.end_bin - s.first_bin for s in self.stretches if s.kind != "attempted speech")


def continuous(
    config: SimulatorConfig,
    e: Electrodes,
    day: int,
    number: int,
    seconds: float,
    prompts: Sequence[Prompt],
    *,
    n_sentences: int = 0,
    idle: IdleConfig = IdleConfig(),
) -> ContinuousRecording:
    """Simulate a continuous recording.

    Sentences stand between idle stretches. With sentences the stretches share the idle time evenly,
    within half and one and a half times their mean.

    Args:
        config: The simulation.
        e: The day's electrodes.
        day: Days since implantation.
        number: Number of the recording on that day; it names the random streams.
        seconds: Length of all idle stretches together.
        prompts: Sentences of attempted, inner and others' speech; each draws from them.
        n_sentences: Sentences to attempt.
        idle: Strength and rhythm of what the person does in idle stretches.
    """
    making = _Making(config, e, day, FIRST_BLOCK + number, prompts, idle)
    generator = making.generator
    kinds: list[Kind] = []
    for index, length_s in enumerate(_lengths(generator, seconds, n_sentences, idle)):
        # Each kind once before any comes again, so that short recordings have all of them.
        if not kinds:
            kinds = [KINDS[i] for i in generator.permutation(len(KINDS))]
        making.add_idle(kinds.pop(), length_s)
        if index < n_sentences:
            making.add_sentence()
    positions_TK, heard_TE = making.joined()
    features_TC = record(positions_TK, e, config, day, FIRST_BLOCK + number, 0, heard_TE)
    return ContinuousRecording(features_TC, tuple(making.stretches))


def _lengths(
    generator: np.random.Generator, seconds: float, n_sentences: int, idle: IdleConfig
) -> list[float]:
    if n_sentences:
        # One stretch more than sentences: the recording begins and ends with an idle stretch.
        shares = generator.uniform(0.5, 1.5, n_sentences + 1)
        return list(seconds * shares / shares.sum())
    lengths: list[float] = []
    while sum(lengths) < seconds:
        lengths.append(min(generator.uniform(*idle.stretch_s), seconds - sum(lengths)))
    return lengths


class _Making:
    """The movements of a recording, part by part."""

    def __init__(
        self,
        config: SimulatorConfig,
        e: Electrodes,
        day: int,
        block: int,
        prompts: Sequence[Prompt],
        idle: IdleConfig,
    ) -> None:
        self.generator = stream(config.seed, Purpose.IDLE, day, block)
        self.stretches: list[Stretch] = []
        self._config = config
        # Attempted speech is slow; another person speaks at a usual rate.
        self._others = replace(
            config,
            phoneme_ms=HEARD_SPEED * config.phoneme_ms,
            word_pause_ms=HEARD_PAUSE * config.word_pause_ms,
        )
        self._e = e
        self._day = day
        self._block = block
        self._prompts = prompts
        self._idle = idle
        self._tokens = targets(config.inventory, config.seed)
        self._moved: list[np.ndarray] = []
        self._heard: list[tuple[int, np.ndarray]] = []
        self._n_bins = 0
        self._n_said = 0

    def add_idle(self, kind: Kind, length_s: float) -> None:
        """Add an idle stretch of a kind."""
        n_bins = max(round(1000 * length_s / self._config.bin_ms), 1)
        positions_TK: np.ndarray = np.zeros((n_bins, len(ARTICULATORS)), dtype=np.float32)
        if kind == "inner speech":
            positions_TK = self._speech(n_bins, self._config) * self._idle.inner_modulation
        elif kind == "listening":
            # The person's own articulators rest. The sounds have a way of their own to the
            # electrodes, which `joined` adds.
            self._heard.append((self._n_bins, self._speech(n_bins, self._others)))
        elif kind == "chewing":
            self._chew(positions_TK)
        elif kind == "coughing":
            self._cough(positions_TK)
        self.stretches.append(Stretch(kind, self._n_bins, self._n_bins + n_bins))
        self._append(positions_TK)

    def add_sentence(self) -> None:
        """Add an attempted sentence with its rests."""
        text, utterance = self._say(self._config)
        # The first and the last segment are the rests around the sentence. A bin that a phoneme
        # shares with a rest belongs to the sentence, so both ends are rounded outwards.
        steps = utterance.steps_per_bin
        first = self._n_bins + int(utterance.ends_S[0]) // steps
        end = self._n_bins + -(-int(utterance.ends_S[-2]) // steps)
        self.stretches.append(Stretch("attempted speech", first, end, text))
        self._append(articulate(utterance, self._config.undershoot, tokens=self._tokens))

    def joined(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the positions [T + longest lead, K] and the answers to sounds [T, E]."""
        # Electrodes lead the articulators, so `record` reads positions beyond the last bin.
        padding = np.zeros((max_lead_bins(self._config), len(ARTICULATORS)), dtype=np.float32)
        answers_TE = np.zeros((self._n_bins, len(self._e.lead_E)), dtype=np.float32)
        lag = round(HEARD_LAG_MS / self._config.bin_ms)
        weights_KE = other_speech_weights(self._config, self._e, self._idle)
        scale_K = vocabulary(self._config).position_scale_K
        for first, sounds_TK in self._heard:
            begin = first + lag
            # Scaled but not centred: a rest has position 0, and must cause no answer.
            answer_TE = (sounds_TK / scale_K) @ weights_KE
            # The answer comes later than the sound: the end of the recording may cut it off.
            room = answers_TE[begin : begin + len(answer_TE)]
            room += answer_TE[: len(room)]
        return np.concatenate([*self._moved, padding]), answers_TE

    def _append(self, positions_TK: np.ndarray) -> None:
        self._moved.append(positions_TK.astype(np.float32))
        self._n_bins += len(positions_TK)

    def _say(self, config: SimulatorConfig) -> tuple[str, TimedPhonemes]:
        """Draw a sentence and its times."""
        prompt = self._prompts[int(self.generator.integers(len(self._prompts)))]
        inventory = config.inventory
        spoken = prompt.spoken or with_pauses(
            pronounced(prompt.text, inventory, config.language), inventory
        )
        # The number names a stream of random durations, so inner speech and the speech of others
        # count, too: no two sentences share their durations.
        self._n_said += 1
        return prompt.text, utter(spoken, config, self._day, self._block, self._n_said)

    def _speech(self, n_bins: int, config: SimulatorConfig) -> np.ndarray:
        """Return positions [T, K] of sentences one after the other, and of rest after the last."""
        positions_TK = np.zeros((n_bins, len(ARTICULATORS)), dtype=np.float32)
        first = 0
        while True:
            utterance = self._say(config)[1]
            # A sentence that does not fit is left out: no person stops in mid-word.
            if first + utterance.n_bins > n_bins:
                return positions_TK
            said_TK = articulate(utterance, config.undershoot, tokens=self._tokens)
            positions_TK[first : first + len(said_TK)] = said_TK
            first += len(said_TK)

    def _chew(self, positions_TK: np.ndarray) -> None:
        """Write episodes of chewing, each with a swallow, into positions [T, K]."""
        bin_s = self._config.bin_ms / 1000
        first = self._pause_bins()
        while first < len(positions_TK):
            hz = self.generator.uniform(*self._idle.chews_hz)
            cycles = max(round(hz * self.generator.uniform(*self._idle.chewing_s)), 1)
            phase_T = np.arange(int(cycles / hz / bin_s)) * bin_s * hz
            opening_T = 0.5 - 0.5 * np.cos(2 * np.pi * phase_T)
            self._move(positions_TK, first, opening_T, CHEW, self._idle.chew_modulation)
            first += len(opening_T)
            swallow_T = _bump(round(0.6 / bin_s))
            self._move(positions_TK, first, swallow_T, SWALLOW, self._idle.chew_modulation)
            first += len(swallow_T) + self._pause_bins()

    def _cough(self, positions_TK: np.ndarray) -> None:
        """Write fits of coughing into positions [T, K]."""
        first = self._pause_bins()
        low, high = self._idle.coughs
        while first < len(positions_TK):
            for _ in range(int(self.generator.integers(low, high + 1))):
                length_ms = self.generator.uniform(*self._idle.cough_ms)
                burst_T = _bump(round(length_ms / self._config.bin_ms))
                self._move(positions_TK, first, burst_T, COUGH, self._idle.cough_modulation)
                first += len(burst_T)
            first += self._pause_bins()

    def _pause_bins(self) -> int:
        return round(1000 * self.generator.uniform(*self._idle.fit_pause_s) / self._config.bin_ms)

    @staticmethod
    def _move(
        positions_TK: np.ndarray,
        first: int,
        course_T: np.ndarray,
        aims: dict[str, float],
        modulation: float,
    ) -> None:
        room = positions_TK[first : first + len(course_T)]
        for name, aim in aims.items():
            room[:, ARTICULATORS.index(name)] += modulation * aim * course_T[: len(room)]


def _bump(n_bins: int) -> np.ndarray:
    """Return a raised cosine of unit height, float64 [T]."""
    # In the middle of each bin: a bump of a single bin has height 1 and not 0.
    bump: np.ndarray = 0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(n_bins) + 0.5) / n_bins)
    return bump


def other_speech_weights(config: SimulatorConfig, e: Electrodes, idle: IdleConfig) -> np.ndarray:
    """Return the log rate per standardised movement of another person's speech, float32 [K, E].

    The code is drawn apart from the electrodes' own tuning. Most electrodes do not answer.
    """
    # Without a day: where speech is received is a property of the brain, the same on all days.
    generator = stream(config.seed, Purpose.IDLE)
    arrays = np.repeat(np.arange(N_ARRAYS), config.n_electrodes // N_ARRAYS)
    answers_E = generator.random(len(arrays)) < idle.heard_share
    # Every electrode has a draw: one that dies does not change those of the others.
    answers_E &= np.isin(arrays, LISTENING_ARRAYS) & e.alive_E
    weights_KE = generator.standard_normal((len(ARTICULATORS), len(arrays)))
    depth_E = idle.heard_modulation * e.depth_E * answers_E
    # The root of K: the sum over K standardised movements then has the depth as its deviation.
    scaled: np.ndarray = (weights_KE * depth_E / np.sqrt(len(ARTICULATORS))).astype(np.float32)
    return scaled
