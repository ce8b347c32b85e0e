"""Small trainings, and models and batches on which torch and XLA are compared."""

import json

import numpy as np
import torch

from cortext.data import write_session
from cortext.data.trial import Trial
from cortext.features import AugmentationConfig
from cortext.models import GRUConfig, TransformerConfig, TripleGRUConfig, build_model
from cortext.models.inputs import InputNetworkConfig
from cortext.models.transformer import EmbeddingConfig
from cortext.training import DatasetConfig, TrainConfig
from cortext.training.adversarial import AdversarialConfig
from cortext.training.batches import TrainBatch
from cortext.training.config import TPUConfig

N_FEATURES, N_DAYS, N_BINS, N_LABELS = 16, 5, 72, 6
QUIET = {"white_noise_std": 0.0, "constant_offset_std": 0.0, "random_cut": 0}


def schedule(n_batches, lr_max=0.005):
    """Settings of a training that learns in a few dozen batches.

    With the published epsilon of 0.1 the weights would hardly move.
    """
    return {
        "num_training_batches": n_batches,
        "lr_max": lr_max,
        "lr_max_day": lr_max,
        "lr_decay_steps": n_batches,
        "lr_decay_steps_day": n_batches,
        "lr_warmup_steps": 2,
        "lr_warmup_steps_day": 2,
        "epsilon": 1e-8,
    }


def legible_config(n_batches, batch_size, days_per_batch):
    """Settings of a GRU that learns recordings whose phonemes have plain patterns."""
    return TrainConfig(
        model=GRUConfig(
            n_units=48,
            n_layers=1,
            rnn_dropout=0.0,
            patch_size=6,
            patch_stride=2,
            input_network=InputNetworkConfig(input_layer_dropout=0.0),
        ),
        dataset=DatasetConfig(
            batch_size=batch_size,
            days_per_batch=days_per_batch,
            data_transforms=AugmentationConfig(
                white_noise_std=0.2, smooth_kernel_std=1, random_cut=0
            ),
        ),
        **schedule(n_batches, lr_max=0.01),
        batches_per_train_log=100,
        batches_per_val_step=n_batches,
        precision="fp32",
    )


def make_config(kind="gru", dropout=0.0, transforms=QUIET, batch_size=4, **settings):
    shared = {
        "rnn_dropout": dropout,
        "input_network": InputNetworkConfig(input_layer_dropout=dropout),
    }
    if kind == "transformer":
        shape = {"n_units": 12, "n_layers": 2, "n_heads": 2, "head_units": 6}
        # 3 of at most 18 frames, in training as in evaluation.
        context = {"context_frames": 3, "train_context_frames": [3, 3]}
        inputs = EmbeddingConfig(day_layer="softsign", input_layer_dropout=dropout)
        model = TransformerConfig(**shape, **context, dropout=dropout, input_network=inputs)
        loss = None
    elif kind == "gru":
        model, loss = GRUConfig(n_units=12, n_layers=2, **shared), None
    elif kind == "diphones":
        heads = {"diphones": True, "intermediate_layer": 1}
        model, loss = GRUConfig(n_units=12, n_layers=2, **heads, **shared), None
    else:
        units = {"noise_units": 10, "noise_layers": 1, "clean_units": 12, "clean_layers": 2}
        model = TripleGRUConfig(**units, noisy_units=8, noisy_layers=1, **shared)
        loss = AdversarialConfig(reversal_start=0.0, reversal_end=0.7, noise_weight=0.01)
    defaults = {
        "precision": "fp32",
        "num_training_batches": 100,
        "lr_decay_steps": 100,
        "lr_decay_steps_day": 100,
    }
    defaults |= {
        "lr_warmup_steps": 2,
        "lr_warmup_steps_day": 3,
        "lr_max_day": 0.01,
        "weight_decay": 0.1,
    }
    dataset = DatasetConfig(
        batch_size=batch_size, days_per_batch=2, data_transforms=AugmentationConfig(**transforms)
    )
    return TrainConfig(model=model, loss=loss, dataset=dataset, **defaults | settings)


def tpu_config(n_shapes=1, **settings):
    """A configuration for a TPU without randomness, of 12 batches."""
    tpu = TPUConfig(length_shapes=n_shapes, compilation_cache=None)
    defaults = {"batches_per_train_log": 3, "batches_per_val_step": 6, "epsilon": 1e-3}
    return make_config(num_training_batches=12, tpu=tpu, **defaults | settings)


def logged(run, kind):
    """The lines of a kind in the log of a run."""
    every = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in every if line["kind"] == kind]


def make_network(config):
    """A network away from its first weights, so that day layers are no identity and no bias is
    zero.
    """
    torch.manual_seed(0)
    network = build_model(config.model, n_features=N_FEATURES, n_days=N_DAYS, n_classes=41)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    return network


def make_batch(days=(3, 1, 3, 0), seed=0, n_bins=N_BINS):
    """A batch as the programs take it, of ragged lengths, with noise where padding is."""
    rng = np.random.default_rng(seed)
    size = len(days)
    n_bins_B = rng.integers(n_bins - 20, n_bins + 1, size)
    labels_BU = rng.integers(1, 41, (size, N_LABELS))
    labels_BU[0, 1] = labels_BU[0, 0]  # a repeat, which needs a blank
    n_labels_B = rng.integers(2, N_LABELS + 1, size)
    labels_BU[np.arange(N_LABELS) >= n_labels_B[:, None]] = 0
    numbers = {
        "day": np.array(days),
        "n_bins": n_bins_B,
        "labels": labels_BU,
        "n_labels": n_labels_B,
    }
    batch = {name: values.astype(np.int32) for name, values in numbers.items()}
    return batch | {"features": rng.normal(size=(size, n_bins, N_FEATURES)).astype(np.float16)}


def as_torch(batch, network, x_BTC):
    """The same batch for torch, with features that are ready for the model."""
    long = {
        name: torch.from_numpy(batch[name]).long()
        for name in ("day", "n_bins", "labels", "n_labels")
    }
    n_patches_B = network.n_patches(long["n_bins"])
    numbers = (long["day"], long["n_bins"], n_patches_B, long["labels"], long["n_labels"])
    return TrainBatch(x_BTC, *numbers, np.arange(len(x_BTC)), long["day"].unique())


def weights_of(network):
    """Copies of the parameters, as the programs take them."""
    return {
        name: parameter.detach().numpy().copy() for name, parameter in network.named_parameters()
    }


def write_recordings(root):
    """Session files of three days with trials of many lengths, in which a frame tells its
    phoneme.
    """
    rng = np.random.default_rng(0)
    patterns = rng.normal(size=(41, 8)) * 2
    for session in ("t15.2023.08.11", "t15.2023.08.13", "t15.2023.08.18"):
        (root / session).mkdir(parents=True)
        for block, (split, n_trials) in enumerate({"train": 20, "val": 4}.items()):
            trials = []
            for number in range(n_trials):
                labels_U = rng.integers(1, 6, size=rng.integers(3, 8))
                labels_U[-1] = 40
                clean = np.repeat(patterns[labels_U], 14, axis=0)
                features_TC = (clean + rng.normal(size=clean.shape)).astype(np.float32)
                trials.append(
                    Trial(
                        features_TC, session, block, number, "a cat sat", labels_U.astype(np.int64)
                    )
                )
            write_session(root / session / f"data_{split}.hdf5", trials)
    return root
