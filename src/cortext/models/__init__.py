"""Acoustic models: neural features in, phoneme logits out. One model, one file."""

from cortext.models.acoustic import AcousticModel, load_model, save_model
from cortext.models.gru import GRU, GRUConfig
from cortext.models.registry import MODELS, Model, build_model, model_config, register
from cortext.models.triple_gru import TripleGRU, TripleGRUConfig

__all__ = [
    "GRU",
    "MODELS",
    "AcousticModel",
    "GRUConfig",
    "Model",
    "TripleGRU",
    "TripleGRUConfig",
    "build_model",
    "load_model",
    "model_config",
    "register",
    "save_model",
]
