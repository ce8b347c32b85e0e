"""The vocal tract: aims of the articulators for each phoneme, and the movements between them.

Motor cortex encodes the movement of articulators, not phonemes as such: electrodes follow kinematic
trajectories with coarticulation (Bouchard et al. 2013, Nature 495; Chartier et al. 2018, Neuron
98), and a detailed articulatory representation outlives the ability to speak (Willett et al. 2023,
Nature 620). So a phoneme reaches the electrodes only through this module. Aims are textbook
articulatory phonetics of General American, in arbitrary units. The seed draws the aims of other
tokens, such as phonemes of another language and characters.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from cortext.text.inventory import RELEASE, Inventory
from cortext_data.simulate.config import STEP_MS
from cortext_data.simulate.speech import TimedPhonemes, is_known, rest_symbol
from cortext_data.simulate.streams import Purpose, stream

ARTICULATORS = (
    "speaking",  # effort: the vocal tract is not at rest
    "lips",  # closure of the lips
    "rounding",
    "tip",  # constriction by the tongue's tip
    "place",  # of that constriction: -1 at the teeth, 0 at the ridge, +1 behind it
    "dorsum",  # constriction by the tongue's back
    "height",  # of the tongue's body: 1 close, -1 open
    "backness",  # of the tongue's body: 1 back, -1 front
    "jaw",  # opening
    "degree",  # of the narrowest constriction: 1 stop, 0.5 fricative, 0 vowel
    "frication",
    "velum",  # opening: nasal sounds
    "voicing",  # 1 voiced, -1 voiceless, 0 at rest
    "breath",  # the glottis spread
    "lateral",
    "rhotic",
    "tension",
)
_INDEX = {name: number for number, name in enumerate(ARTICULATORS)}
SIGMA_MS = np.array(
    [60, 35, 50, 30, 30, 40, 50, 50, 50, 32, 32, 45, 35, 40, 40, 45, 55], dtype=np.float64
)
"""Width (standard deviation) of the window over which each articulator blends the aims.

Lips and tip are quick, the jaw, the body of the tongue and the velum slow.
"""
_FREE = 0.08
"""Weight of an aim that a phoneme leaves free, so that its neighbours decide.

It is the dominance of Cohen & Massaro 1993.
"""

_STOP = {"degree": 1.0, "frication": 0.0, "velum": 0.0}
_FRICATIVE = {"degree": 0.55, "frication": 1.0, "velum": 0.0}
_NASAL = {"degree": 0.9, "frication": 0.0, "velum": 1.0, "voicing": 1.0}
_GLIDE = {"degree": 0.25, "frication": 0.0, "velum": 0.0, "voicing": 1.0}
_LIPS = {"lips": 1.0, "tip": 0.0}
_TIP = {"tip": 1.0, "lips": 0.0}
_DORSUM = {"dorsum": 1.0, "tip": 0.0, "lips": 0.0, "height": 0.7, "backness": 0.6}
_VOICED = {"voicing": 1.0}
_VOICELESS = {"voicing": -1.0}

_CONSONANTS: dict[str, dict[str, float]] = {
    "P": _STOP | _LIPS | _VOICELESS | {"breath": 0.4},
    "B": _STOP | _LIPS | _VOICED,
    "M": _NASAL | _LIPS,
    "F": _FRICATIVE | _VOICELESS | {"lips": 0.5, "tip": 0.0, "jaw": -0.3},
    "V": _FRICATIVE | _VOICED | {"lips": 0.5, "tip": 0.0, "jaw": -0.3},
    "TH": _FRICATIVE | _TIP | _VOICELESS | {"place": -1.0},
    "DH": _FRICATIVE | _TIP | _VOICED | {"place": -1.0},
    "T": _STOP | _TIP | _VOICELESS | {"place": 0.0, "breath": 0.3},
    "D": _STOP | _TIP | _VOICED | {"place": 0.0},
    "N": _NASAL | _TIP | {"place": 0.0},
    "S": _FRICATIVE | _TIP | _VOICELESS | {"place": 0.1, "jaw": -0.4, "tension": 0.6},
    "Z": _FRICATIVE | _TIP | _VOICED | {"place": 0.1, "jaw": -0.4, "tension": 0.6},
    "L": _GLIDE | _TIP | {"place": 0.0, "lateral": 1.0, "backness": 0.4},
    "SH": _FRICATIVE | _TIP | _VOICELESS | {"place": 1.0, "rounding": 0.5, "tension": 0.6},
    "ZH": _FRICATIVE | _TIP | _VOICED | {"place": 1.0, "rounding": 0.5, "tension": 0.6},
    "R": _GLIDE | {"tip": 0.5, "place": 0.8, "rounding": 0.4, "rhotic": 1.0, "lips": 0.0},
    "Y": (
        _GLIDE
        | {
            "height": 1.0,
            "backness": -1.0,
            "tip": 0.0,
            "lips": 0.0,
            "dorsum": 0.3,
            "rounding": -0.3,
        }
    ),
    "W": (
        _GLIDE
        | {
            "height": 0.9,
            "backness": 1.0,
            "rounding": 1.0,
            "lips": 0.4,
            "tip": 0.0,
            "dorsum": 0.3,
        }
    ),
    "K": _STOP | _DORSUM | _VOICELESS | {"breath": 0.3},
    "G": _STOP | _DORSUM | _VOICED,
    "NG": _NASAL | _DORSUM,
    "HH": {
        "breath": 1.0,
        "voicing": -1.0,
        "degree": 0.2,
        "frication": 0.4,
        "tip": 0.0,
        "lips": 0.0,
        "velum": 0.0,
    },
}
_VOWELS: dict[str, tuple[float, ...]] = {  # height, backness, rounding, tension, jaw
    "IY": (1.0, -1.0, -0.3, 1.0, -0.4),
    "IH": (0.6, -0.7, 0.0, -0.6, -0.1),
    "EH": (0.0, -0.7, 0.0, -0.6, 0.3),
    "AE": (-0.6, -0.8, -0.2, 0.2, 0.8),
    "AA": (-1.0, 0.5, 0.0, 0.6, 1.0),
    "AO": (-0.5, 0.9, 0.7, 0.5, 0.7),
    "AH": (-0.2, 0.1, 0.0, -0.8, 0.3),
    "UH": (0.6, 0.7, 0.4, -0.6, -0.1),
    "UW": (1.0, 0.9, 1.0, 1.0, -0.4),
    "ER": (0.1, 0.1, 0.3, 0.4, 0.0),
}
_DIPHTHONGS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "EY": ((0.3, -0.8, -0.1, 0.5, 0.2), (0.9, -0.9, -0.2, 0.5, -0.2)),
    "OW": ((0.1, 0.8, 0.6, 0.5, 0.3), (0.8, 0.9, 1.0, 0.5, -0.2)),
    "AY": ((-1.0, 0.0, 0.0, 0.4, 1.0), (0.7, -0.8, 0.0, 0.2, 0.0)),
    "AW": ((-1.0, 0.1, 0.0, 0.4, 1.0), (0.7, 0.8, 0.9, 0.2, 0.0)),
    "OY": ((-0.3, 1.0, 0.8, 0.4, 0.6), (0.7, -0.8, 0.0, 0.2, 0.0)),
}


def _vowel(values: tuple[float, ...], rhotic: float = 0.0) -> dict[str, float]:
    open_tract = {
        "lips": 0.0,
        "tip": 0.0,
        "dorsum": 0.0,
        "degree": 0.0,
        "frication": 0.0,
        "velum": 0.0,
    }
    body = dict(zip(("height", "backness", "rounding", "tension", "jaw"), values, strict=True))
    return open_tract | body | {"voicing": 1.0, "breath": 0.0, "rhotic": rhotic, "lateral": 0.0}


def _aims() -> dict[str, tuple[dict[str, float], dict[str, float]]]:
    """Return the aims of the first and the second half of every phoneme."""
    halves = {name: (aim, aim) for name, aim in _CONSONANTS.items()}
    halves |= {name: (_vowel(v, float(name == "ER")),) * 2 for name, v in _VOWELS.items()}
    halves |= {
        name: (_vowel(first), _vowel(second)) for name, (first, second) in _DIPHTHONGS.items()
    }
    halves["CH"] = (_CONSONANTS["T"], _CONSONANTS["SH"])
    halves["JH"] = (_CONSONANTS["D"], _CONSONANTS["ZH"])
    return halves


class ArticulatorTargets(NamedTuple):
    """Aims of the articulators for each token of an inventory, and how firmly they are held.

    Attributes:
        aims_VHK: float64 [V, 2 halves, K].
        weights_VHK: float64 [V, 2 halves, K].
    """

    aims_VHK: np.ndarray
    weights_VHK: np.ndarray


VOICING = _INDEX["voicing"]
SPEAKING = _INDEX["speaking"]

REACH = 0.7
"""Largest drawn aim: drawn tokens are then as far apart as phonemes of English, 3.2 on average."""
APART = 1.5
"""Smallest distance between the aims of a drawn token and those of any other token.

It is the Euclidean distance over both halves. The nearest phonemes of English, IH and EH, are 1.0
apart, N and D 1.4.
"""


@lru_cache(maxsize=8)
def targets(inventory: Inventory = RELEASE, seed: int = 0) -> ArticulatorTargets:
    """Return the aims of all tokens.

    Phonemes of English have those of phonetics. The seed draws those of other tokens at least
    `APART` from all others, the same ones in any order of the inventory. A drawn phoneme is one
    posture; a drawn character, and the boundary between words, is a movement between two, so that
    the same character can follow itself. A rest aims at rest everywhere.

    Args:
        inventory: Tokens.
        seed: Seed of the simulation; not used for English.
    """
    aims = np.zeros((len(inventory), 2, len(ARTICULATORS)))
    weights = np.full_like(aims, _FREE)
    for phoneme, halves in _aims().items():
        if phoneme not in inventory.index or not is_known(phoneme, inventory):
            continue
        for half, aim in enumerate(halves):
            for name, value in (aim | {"speaking": 1.0}).items():
                aims[inventory.index[phoneme], half, _INDEX[name]] = value
                weights[inventory.index[phoneme], half, _INDEX[name]] = 1.0
    rest = inventory.index[rest_symbol(inventory)]
    weights[rest] = 0.5
    known = [s for s in inventory.spoken if is_known(s, inventory)]
    gestures = {*inventory.spoken, inventory.boundary} - {*known, None}
    taken = [aims[number] for number in (rest, *inventory.ids(known))]
    generator = stream(seed, Purpose.TARGETS)
    for symbol in sorted(map(str, gestures)):
        moving = inventory.unit == "character" or symbol == inventory.boundary
        drawn = _draw_apart(generator, taken, moving)
        taken.append(drawn)
        aims[inventory.index[symbol]] = drawn
        weights[inventory.index[symbol]] = 1.0
    return ArticulatorTargets(aims, weights)


def _draw_apart(
    generator: np.random.Generator, taken: list[np.ndarray], moving: bool
) -> np.ndarray:
    """Draw aims [2 halves, K] that are at least `APART` from all that are taken.

    Those taken are [2 halves, K] each; the halves differ where they are `moving`.
    """
    others = np.stack(taken)
    while True:
        drawn = generator.uniform(-REACH, REACH, (2 if moving else 1, len(ARTICULATORS)))
        drawn[:, SPEAKING] = 1.0
        halves = np.broadcast_to(drawn, others.shape[1:])
        if np.sqrt(((others - halves) ** 2).sum(axis=(1, 2))).min() >= APART:
            return halves


def articulate(
    utterance: TimedPhonemes,
    undershoot: float = 1.0,
    pad_bins: int = 0,
    tokens: ArticulatorTargets | None = None,
) -> np.ndarray:
    """Return positions of the articulators by bin: float32 [T + pad_bins, K].

    Every articulator is the weighted mean of the aims around it, under a Gaussian window. What a
    phoneme leaves free is decided by its neighbours (Cohen & Massaro 1993), so that trajectories
    are smooth and anticipate.

    Args:
        utterance: Phonemes with their times, T bins long.
        undershoot: Factor on the width of each articulator's window.
        pad_bins: Bins that continue the last posture, for neural activity that leads the movement.
        tokens: Aims of the utterance's tokens; those of English by default.
    """
    aims, all_weights = tokens or targets()
    segment = _half_segments(utterance, pad_bins * utterance.steps_per_bin)
    weights = all_weights.reshape(-1, len(ARTICULATORS))[segment]
    weighted = weights * aims.reshape(-1, len(ARTICULATORS))[segment]
    kernels = _kernels(undershoot)
    blended = _convolve(weighted, kernels) / _convolve(weights, kernels)
    positions: np.ndarray = (
        blended.reshape(-1, utterance.steps_per_bin, len(ARTICULATORS))
        .mean(axis=1)
        .astype(np.float32)
    )
    return positions


def _half_segments(utterance: TimedPhonemes, pad_steps: int) -> np.ndarray:
    """Return the row of the flattened tables that holds at each 5 ms step: token * 2 + half."""
    ends = utterance.ends_S
    boundaries = np.stack([(utterance.starts_S + ends) // 2, ends], axis=1).ravel()
    rows = np.stack([utterance.ids_S * 2, utterance.ids_S * 2 + 1], axis=1).ravel()
    segment = np.repeat(rows, np.diff(boundaries, prepend=0))
    return np.concatenate([segment, np.full(pad_steps, segment[-1])])


def _kernels(undershoot: float) -> np.ndarray:
    """Return Gaussian windows in steps of 5 ms, float64 [L, K]; each sums to one."""
    sigmas = SIGMA_MS * undershoot / STEP_MS
    # Three standard deviations hold 99.7 % of the widest window.
    half = int(np.ceil(3 * sigmas.max()))
    offsets = np.arange(-half, half + 1)[:, None]
    kernels = np.exp(-0.5 * (offsets / sigmas) ** 2)
    normalized: np.ndarray = kernels / kernels.sum(axis=0)
    return normalized


def _convolve(x: np.ndarray, kernels: np.ndarray) -> np.ndarray:
    """Convolve along axis 0, 'same', each column with its own kernel; the edges are held."""
    half = len(kernels) // 2
    padded = np.concatenate([np.repeat(x[:1], half, 0), x, np.repeat(x[-1:], half, 0)])
    # By FFT, in a length that is fast and long enough that nothing wraps around.
    size = 1 << int(np.ceil(np.log2(len(padded) + len(kernels))))
    spectrum = np.fft.rfft(padded, size, axis=0) * np.fft.rfft(kernels, size, axis=0)
    convolved: np.ndarray = np.fft.irfft(spectrum, size, axis=0)[2 * half : 2 * half + len(x)]
    return convolved
