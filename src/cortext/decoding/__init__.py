"""Decoding: phoneme log-probabilities to ranked sentences."""

from cortext.decoding.greedy import greedy
from cortext.decoding.options import DecoderOptions, Hypothesis, NBest, Partial, Word
from cortext.decoding.session import ENGINES, Decoder, Session

__all__ = [
    "ENGINES",
    "Decoder",
    "DecoderOptions",
    "Hypothesis",
    "NBest",
    "Partial",
    "Session",
    "Word",
    "greedy",
]
