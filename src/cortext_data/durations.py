"""Durations of phonemes relative to one another."""

from __future__ import annotations

_RELATIVE_DURATIONS = {
    0.70: "HH DH",
    0.80: "B D G P T K",
    0.85: "IH AH UH N M L R W Y V",
    0.95: "EH F TH Z NG",
    1.05: "S SH ZH ER IY UW",
    1.15: "AA AO AE CH JH EY OW",
    1.30: "AY AW OY",
}
RELATIVE_DURATION = {
    phoneme: value for value, names in _RELATIVE_DURATIONS.items() for phoneme in names.split()
}
"""Mean duration of each phoneme over the mean of all phonemes.

The order is that of connected speech (Crystal & House 1988, J. Acoust. Soc. Am. 83: lax vowels are
shorter than tense ones, stops shorter than fricatives); the spread is rounded and narrowed, as
attempted speech is slow.
"""
