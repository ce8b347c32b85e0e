"""Training of acoustic models."""

from cortext.training.config import DatasetConfig, TrainConfig, read_train_config
from cortext.training.loop import train
from cortext.training.summary import RunSummary

__all__ = ["DatasetConfig", "RunSummary", "TrainConfig", "read_train_config", "train"]
