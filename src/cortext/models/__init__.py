"""Acoustic models: neural features in, phoneme logits out. One model, one file.

`gru`, `triple_gru` and `transformer` are the models, and read from top to bottom. They share
`inputs` (day layers) and `layers` (what trains fast on a CPU, with `recurrence` for GRUs).
`registry` says what a model of one's own must have. `acoustic` is a trained model with its
recording days and tokens, as evaluation uses it. `storage` writes weights, `precision` says in
which numbers products are computed. Live decoding feeds a model one patch at a time: that is in
`cortext_live.steps`.
"""

from cortext.models.acoustic import AcousticModel, load_model, save_model
from cortext.models.card import Smoothing
from cortext.models.gru import GRU, GRUConfig
from cortext.models.registry import (
    MODELS,
    Model,
    Output,
    build_model,
    model_config,
    read_output,
    register,
)
from cortext.models.transformer import Transformer, TransformerConfig
from cortext.models.triple_gru import TripleGRU, TripleGRUConfig

__all__ = [
    "GRU",
    "MODELS",
    "AcousticModel",
    "GRUConfig",
    "Model",
    "Output",
    "Smoothing",
    "Transformer",
    "TransformerConfig",
    "TripleGRU",
    "TripleGRUConfig",
    "build_model",
    "load_model",
    "model_config",
    "read_output",
    "register",
    "save_model",
]
