"""Checkpoints as the release writes and reads them.

By the restated trainer of `benchmarks/`, and by what the release's evaluate_model.py does, restated
here. The yardstick of exchange.
"""

from pathlib import Path

import numpy as np
import torch
import yaml
from scipy.ndimage import gaussian_filter1d

from release_trainer import ReleaseModel, ReleaseTrainer

SESSIONS = ["t15.2023.08.11", "t15.2023.08.13", "t15.2023.08.18"]

# model_training/rnn_args.yaml of the release, with fewer sessions.
PUBLISHED = """
model: {n_input_features: 512, n_units: 768, rnn_dropout: 0.4, rnn_trainable: true, n_layers: 5, patch_size: 14,
        patch_stride: 4,
        input_network: {n_input_layers: 1, input_layer_sizes: [512], input_trainable: true, input_layer_dropout: 0.2}}
gpu_number: '1'
mode: train
use_amp: true
output_dir: trained_models/baseline_rnn
checkpoint_dir: trained_models/baseline_rnn/checkpoint
init_from_checkpoint: false
init_checkpoint_path: None
save_best_checkpoint: true
save_all_val_steps: false
save_final_model: false
save_val_metrics: true
early_stopping: false
early_stopping_val_steps: 20
num_training_batches: 120000
lr_scheduler_type: cosine
lr_max: 0.005
lr_min: 0.0001
lr_decay_steps: 120000
lr_warmup_steps: 1000
lr_max_day: 0.005
lr_min_day: 0.0001
lr_decay_steps_day: 120000
lr_warmup_steps_day: 1000
beta0: 0.9
beta1: 0.999
epsilon: 0.1
weight_decay: 0.001
weight_decay_day: 0
seed: 10
grad_norm_clip_value: 10
batches_per_train_log: 200
batches_per_val_step: 2000
batches_per_save: 0
log_individual_day_val_PER: true
log_val_skip_logs: false
save_val_logits: true
save_val_data: false
dataset:
  data_transforms: {white_noise_std: 1.0, constant_offset_std: 0.2, random_walk_std: 0.0, random_walk_axis: -1,
                    static_gain_std: 0.0, random_cut: 3, smooth_kernel_size: 100, smooth_data: true,
                    smooth_kernel_std: 2}
  neural_dim: 512
  batch_size: 64
  n_classes: 41
  max_seq_elements: 500
  days_per_batch: 4
  seed: 1
  num_dataloader_workers: 4
  loader_shuffle: false
  must_include_days: null
  test_percentage: 0.1
  feature_subset: null
  dataset_dir: ../data/hdf5_data_final
  bad_trials_dict: null
  sessions: [t15.2023.08.11, t15.2023.08.13, t15.2023.08.18]
  dataset_probability_val: [0, 1, 1]
"""


def tiny_arguments(**changes) -> dict:
    """The published arguments at a size for tests.

    Changes by key, `dataset__seed` reaching into a section.
    """
    arguments = yaml.safe_load(PUBLISHED)
    arguments["model"] |= {"n_input_features": 8, "n_units": 12, "n_layers": 2}
    arguments["model"]["input_network"]["input_layer_sizes"] = [8]
    arguments["dataset"] |= {"neural_dim": 8, "batch_size": 6, "days_per_batch": 2}
    arguments |= {
        "use_amp": False,
        "num_training_batches": 12,
        "lr_warmup_steps": 2,
        "lr_warmup_steps_day": 3,
    }
    arguments |= {
        "lr_decay_steps": 12,
        "lr_decay_steps_day": 11,
        "batches_per_val_step": 4,
        "lr_max_day": 0.004,
    }
    for key, value in changes.items():
        section = arguments
        *parents, last = key.split("__")
        for parent in parents:
            section = section[parent]
        section[last] = value
    return arguments


def release_trainer(arguments: dict) -> ReleaseTrainer:
    """The restated trainer for these arguments.

    Its optimiser's groups are labelled as in the release.
    """
    sessions, n_features = arguments["dataset"]["sessions"], arguments["model"]["n_input_features"]
    trainer = ReleaseTrainer(arguments, n_features=n_features, n_days=len(sessions))
    for group, label in zip(
        trainer.optimizer.param_groups, ("bias", "day_layer", "other"), strict=True
    ):
        group["group_type"] = label
    return trainer


def train_steps(trainer: ReleaseTrainer, n_steps: int, days: tuple[int, ...]) -> None:
    """Steps on random features and labels; only the given days move."""
    generator = torch.Generator().manual_seed(3)
    n_features = trainer.settings["model"]["n_input_features"]
    for _ in range(n_steps):
        batch = {
            "input_features": torch.randn(4, 60, n_features, generator=generator),
            "seq_class_ids": torch.randint(1, 41, (4, 3), generator=generator),
            "n_time_steps": torch.full((4,), 60),
            "seq_len": torch.full((4,), 3),
            "day": torch.tensor([days[i % len(days)] for i in range(4)]),
        }
        trainer.step(batch)


def trained(arguments: dict, n_steps: int = 5, days: tuple[int, ...] = (0, 2)) -> ReleaseTrainer:
    """A trainer after some steps; day 1 never moves by default."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - the release draws its cuts so
    trainer = release_trainer(arguments)
    train_steps(trainer, n_steps, days)
    return trainer


def write_release(folder: Path, arguments: dict, prefix: str = "_orig_mod.", **changes) -> dict:
    """Write `checkpoint/best_checkpoint` and `args.yaml` as the release does.

    Returns the checkpoint's mapping.

    changes replace its entries; None leaves one out.
    """
    trainer = trained(arguments)
    checkpoint = {
        "model_state_dict": {
            prefix + name: tensor for name, tensor in trainer.model.state_dict().items()
        },
        "optimizer_state_dict": trainer.optimizer.state_dict(),
        "scheduler_state_dict": trainer.scheduler.state_dict(),
        "val_PER": 0.25,
        "val_loss": np.float64(1.0) / 3,
    } | changes
    checkpoint = {key: value for key, value in checkpoint.items() if value is not None}
    (folder / "checkpoint").mkdir(parents=True)
    torch.save(checkpoint, folder / "checkpoint" / "best_checkpoint")
    (folder / "checkpoint" / "args.yaml").write_text(yaml.safe_dump(arguments, sort_keys=False))
    return checkpoint


def load_as_the_evaluation_script(folder: Path) -> tuple[ReleaseModel, dict]:
    """The model and its arguments, found and renamed as evaluate_model.py does."""
    arguments = yaml.safe_load((folder / "checkpoint" / "args.yaml").read_text())
    sessions, n_classes = arguments["dataset"]["sessions"], arguments["dataset"]["n_classes"]
    model = ReleaseModel(
        arguments["model"], arguments["model"]["n_input_features"], len(sessions), n_classes
    )
    state = torch.load(folder / "checkpoint" / "best_checkpoint", weights_only=False)[
        "model_state_dict"
    ]
    for key in list(state.keys()):
        state[key.replace("module.", "")] = state.pop(key)
        state[key.replace("_orig_mod.", "")] = state.pop(key)
    model.load_state_dict(state)
    return model.eval(), arguments


def logits_of_the_evaluation_script(
    model: ReleaseModel, arguments: dict, features_TC: np.ndarray, session: str
):
    """Logits [P, V] of one trial in float32: always smoothed, with padding `valid`."""
    transforms = arguments["dataset"]["data_transforms"]
    impulse = np.zeros(transforms["smooth_kernel_size"], dtype=np.float32)
    impulse[len(impulse) // 2] = 1
    kernel = gaussian_filter1d(impulse, transforms["smooth_kernel_std"])
    kernel = kernel[kernel > 0.01]
    kernel /= kernel.sum()
    smoothed = np.stack(
        [np.convolve(x_T, kernel[::-1], mode="valid") for x_T in features_TC.T], axis=1
    )
    with torch.no_grad():
        day = arguments["dataset"]["sessions"].index(session)
        return model(torch.from_numpy(smoothed.astype(np.float32))[None], torch.tensor([day]))[
            0
        ].numpy()
