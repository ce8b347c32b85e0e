"""Decoding: phoneme log-probabilities to ranked sentences."""

from cortext.decoding.decoder import Decoder
from cortext.decoding.log_probs import greedy
from cortext.decoding.nbest import Hypothesis, NBest, Partial, Word
from cortext.decoding.options import DecoderOptions
from cortext.decoding.stream import DecoderStream
from cortext.renamed import renamed

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

__getattr__ = renamed(__name__, {"Session": "DecoderStream"})
