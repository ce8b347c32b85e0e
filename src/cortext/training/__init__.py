"""Training of acoustic models."""

from cortext.training.adversarial import AdversarialConfig
from cortext.training.backend import DeviceSpec
from cortext.training.callbacks import Callback, Trains
from cortext.training.config import DatasetConfig, TrainConfig, read_train_config, register_task
from cortext.training.loss import LOSSES, Loss, register_loss
from cortext.training.pretrain import PretrainTask
from cortext.training.run import train
from cortext.training.summary import RunSummary
from cortext.training.task import CTCTask, Task
from cortext.training.trainer import Trainer

__all__ = [
    "LOSSES",
    "AdversarialConfig",
    "CTCTask",
    "Callback",
    "DatasetConfig",
    "DeviceSpec",
    "Loss",
    "PretrainTask",
    "RunSummary",
    "Task",
    "TrainConfig",
    "Trainer",
    "Trains",
    "read_train_config",
    "register_loss",
    "register_task",
    "train",
]
