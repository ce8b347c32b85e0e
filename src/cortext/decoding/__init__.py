"""Decoding: phoneme log-probabilities to ranked sentences."""

from cortext.decoding.decoder import Decoder
from cortext.decoding.log_probs import greedy
from cortext.decoding.nbest import Hypothesis, NBest, Partial, Word
from cortext.decoding.options import DecoderOptions
from cortext.decoding.stream import DecoderStream

__all__ = [
    "Decoder",
    "DecoderOptions",
    "DecoderStream",
    "Hypothesis",
    "NBest",
    "Partial",
    "Word",
    "greedy",
]
