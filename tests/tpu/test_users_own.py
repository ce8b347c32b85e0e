"""Models and losses of a user's own on XLA: they train as in torch, or are refused in one line."""

from dataclasses import replace

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.tpu
pytest.importorskip("torchax", reason="run `make test-tpu`")

import jax
import jax.numpy as jnp
from small_training import logged, tpu_config
from users_own import Fading, FadingConfig, Means, MeansConfig

from cortext.errors import ConfigError
from cortext.models import MODELS
from cortext.training import DeviceSpec, Trainer
from cortext.training.loss import LOSSES, build_loss
from cortext_tpu.mesh import data_mesh
from cortext_tpu.step import Programs

TPU = DeviceSpec("tpu")


@pytest.fixture(scope="module")
def registered():
    """The two are there for the tests of this module."""
    MODELS.register("means")(Means)
    LOSSES.register("fading")(Fading)
    yield
    for registry, name in ((MODELS, "means"), (LOSSES, "fading")):
        registry.pop(name)


@pytest.mark.parametrize("loss", [FadingConfig(), None], ids=["own loss", "ctc"])
def test_a_users_own_model_and_loss_train_as_in_torch(loss, registered, packed, tmp_path):
    config = replace(tpu_config(), model=MeansConfig(), loss=loss, batches_per_val_step=100)
    for device in ("cpu", "tpu"):
        with Trainer(config, packed, tmp_path / device, device=device, progress=False) as trainer:
            trainer.run()
            # Weight decay would have moved it.
            assert trainer.model.network.unused.tolist() == [
                1,
                1,
                1,
            ]
    for name in ("train_loss", "grad_norm", *(["train_energy"] if loss else [])):
        expected = [line[name] for line in logged(tmp_path / "cpu", "train")]
        assert [line[name] for line in logged(tmp_path / "tpu", "train")] == pytest.approx(
            expected, rel=2e-3
        ), name


def test_a_loss_that_decides_in_python_gets_advice(registered, packed, tmp_path):
    config = replace(tpu_config(), model=MeansConfig(), loss=FadingConfig(in_python=True))
    with (
        Trainer(config, packed, tmp_path / "run", device=TPU, progress=False) as trainer,
        pytest.raises(
            ConfigError, match=r"'fading', or model 'means', decides in Python .*torch.where"
        ),
    ):
        trainer.run()


def lowered(network, loss=None):
    """The training step of a user's own network, not compiled."""
    config = replace(tpu_config(), model=MeansConfig(), loss=loss)
    built = build_loss(loss, "means")
    mesh = data_mesh(jax.devices()[:1])
    return Programs(network, built, config, mesh, n_features=8, n_labels=4).lower_update(40)


def means():
    return Means(MeansConfig(), n_features=8, n_days=2, n_classes=41)


def test_the_step_leaves_features_as_they_are_that_the_host_has_smoothed(registered):
    batch = {"features": jnp.ones((2, 30, 4), jnp.float16), "n_bins": jnp.array([30, 20])}
    config = tpu_config()
    sizes = {"n_features": 4, "n_labels": 4}
    programs = Programs(
        means(),
        build_loss(None, "means"),
        config,
        data_mesh(jax.devices()[:1]),
        **sizes,
        on_host="prepare",
    )
    prepared = programs._prepared(batch, {})
    assert set(prepared) == {"features"}
    assert prepared["features"].dtype == jnp.float32
    assert bool((prepared["features"] == 1).all())  # smoothing lowers them at the ends


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        ("mean", r"gives 'loss' of shape \[\] for 4 trials; give a value for each trial"),
        ("one", r"gives 'loss' of shape \[1\] for 4 trials"),
        ("other", "the loss gives ctc; call what is minimised 'loss'"),
    ],
)
def test_a_loss_that_gives_something_else_is_torchs_one_line(gives, message, registered):
    with pytest.raises(ConfigError, match=message):
        lowered(means(), FadingConfig(gives=gives))


class Calls(nn.LayerNorm):
    """Has another tensor for its buffer after every call."""

    def __init__(self, size):
        super().__init__(size)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls = self.calls + 1
        return super().forward(x)


@pytest.mark.parametrize(
    ("norm", "message"),
    [
        (
            nn.BatchNorm1d(9),
            "BatchNorm1d 'norm' of model 'means' changes its '.*track_running_stats=False",
        ),
        (
            Calls(16),
            (
                "Calls 'norm' of model 'means' changes its 'calls' when it is called, which XLA"
                " would not keep; train"
            ),
        ),
    ],
)
def test_a_module_that_changes_its_buffers_is_refused(norm, message, registered):
    network = means()
    network.norm = norm
    with pytest.raises(ConfigError, match=message):
        lowered(network)


def test_a_batch_norm_without_running_statistics_is_not_refused(registered):
    network = means()
    network.norm = nn.BatchNorm1d(9, track_running_stats=False)
    lowered(network)


def test_buffers_are_of_types_that_xla_is_given(registered):
    network = means()
    network.scale = torch.full((16,), 2, dtype=torch.int32)
    lowered(network)
    for dtype, name in (
        (torch.float64, "float64"),
        (torch.float16, "float16"),
        (torch.bfloat16, "bfloat16"),
    ):
        network.scale = torch.full((16,), 2, dtype=dtype)
        with pytest.raises(
            ConfigError,
            match=rf"'scale' is {name}; XLA is given float32, int64, int32, bool; make it",
        ):
            lowered(network)
