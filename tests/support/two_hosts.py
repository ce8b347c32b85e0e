"""Run twice by test_mesh.py, as two hosts with two virtual devices each: a whole training run."""

import sys
from pathlib import Path

from small_training import make_config

from cortext.data.packed import open_packed
from cortext.training import DeviceSpec, train
from cortext.training.config import TPUConfig

tpu = TPUConfig(length_shapes=1, compilation_cache=None)
config = make_config(
    num_training_batches=4, batches_per_train_log=2, batches_per_val_step=4, tpu=tpu
)
train(
    config, open_packed(sys.argv[1]), Path(sys.argv[2]), device=DeviceSpec("tpu", require_cores=4)
)
