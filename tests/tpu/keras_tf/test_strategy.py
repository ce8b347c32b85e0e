"""Where TensorFlow trains: a TPU that is made up, two virtual CPU devices, one."""

from functools import cache

import pytest

from cortext.errors import ConfigError, RunError
from cortext.training.backend import DeviceSpec
from cortext_tpu.find import Found

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow", reason="run `make test-tf`")

from cortext_tpu.keras_tf import strategy
from cortext_tpu.keras_tf.strategy import choose_strategy

V5E = Found(
    "kaggle",
    "local",
    attached=True,
    chips=8,
    generation="v5e",
    looked=(("/dev/vfio/*", "8 devices"),),
)


@pytest.fixture(autouse=True)
def no_tpu(monkeypatch):
    """Whatever the machine of the tests has, and whatever has been tried before."""
    monkeypatch.setattr(strategy, "find_tpu", lambda name: Found(looked=(("TPU_NAME", "not set"),)))
    monkeypatch.setattr(strategy, "started", cache(strategy.started.__wrapped__))


@pytest.fixture
def v5e(monkeypatch):
    """A TPU is found; gives the addresses that were tried."""
    tried = []
    monkeypatch.setattr(strategy, "find_tpu", lambda name: V5E)
    monkeypatch.setattr(
        tf.distribute.cluster_resolver, "TPUClusterResolver", lambda tpu: tried.append(tpu)
    )
    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", lambda resolver: None)
    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", lambda resolver: None)
    return tried


class Cores:
    def __init__(self, count):
        self.num_replicas_in_sync = count


def test_two_devices_are_mirrored_and_it_says_so(capsys):
    found = choose_strategy(DeviceSpec(require_cores=2))
    assert isinstance(found, tf.distribute.MirroredStrategy)
    assert found.num_replicas_in_sync == 2
    assert capsys.readouterr().err.splitlines() == [
        "TPU_NAME: not set",
        "found: no TPU",
        "trying MirroredStrategy on 2 CPU devices",
        "using 2 CPU devices",
    ]
    assert choose_strategy(shown=False) is found  # two in a process would mix up their messages
    assert capsys.readouterr().err == ""


def test_a_single_device_is_what_is_left(capsys, monkeypatch):
    cpus = tf.config.list_logical_devices("CPU")
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: cpus[:1] if kind == "CPU" else []
    )
    found = choose_strategy()
    assert isinstance(found, tf.distribute.OneDeviceStrategy)
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "trying OneDeviceStrategy on /device:CPU:0",
        "using 1 CPU device",
    ]


def test_all_cores_of_a_tpu_are_used(capsys, monkeypatch, v5e):
    monkeypatch.setattr(tf.distribute, "TPUStrategy", lambda resolver: Cores(8))
    assert choose_strategy(DeviceSpec(require_cores=8)).num_replicas_in_sync == 8
    assert v5e == ["local"]
    assert capsys.readouterr().err.splitlines() == [
        "/dev/vfio/*: 8 devices",
        "found: 8 v5e chips on this machine (Kaggle)",
        "trying TPUStrategy on local",
        "using 8 TPU cores",
    ]


def test_one_core_instead_of_eight_is_refused(capsys, monkeypatch, v5e):
    monkeypatch.setattr(tf.distribute, "TPUStrategy", lambda resolver: Cores(1))
    with pytest.raises(RunError, match="training would use 1 core instead of 8"):
        choose_strategy(DeviceSpec(require_cores=8))
    choose_strategy()
    assert v5e == ["local"]  # it is started once
    assert (
        capsys.readouterr().err.splitlines()[-1]
        == "using 1 TPU core, although this machine has 8 chips"
    )


def test_a_tpu_that_does_not_start_is_left_unless_it_was_asked_for(capsys, monkeypatch, v5e):
    def broken(resolver):
        raise tf.errors.NotFoundError(None, None, "TPUs not found\nin the cluster")

    monkeypatch.setattr(tf.tpu.experimental, "initialize_tpu_system", broken)
    assert isinstance(choose_strategy(), tf.distribute.MirroredStrategy)
    assert capsys.readouterr().err.splitlines()[2:] == [
        "trying TPUStrategy on local",
        "the TPU at local did not start: TPUs not found in the cluster; looking for other devices",
        "trying MirroredStrategy on 2 CPU devices",
        "using 2 CPU devices, although this machine has 8 chips",
    ]
    for spec in (DeviceSpec("tpu"), DeviceSpec("tpu", tpu="local")):
        with pytest.raises(
            RunError, match="did not start: TPUs not found in the cluster; `cortext doctor`"
        ):
            choose_strategy(spec)


def test_what_is_not_there_is_one_line():
    with pytest.raises(RunError, match="no TPU found"):
        choose_strategy(DeviceSpec("tpu"))
    with pytest.raises(RunError, match="training would use 2 cores instead of 8; no TPU was found"):
        choose_strategy(DeviceSpec(require_cores=8))
    for device in ("cuda", "cuda:1"):
        with pytest.raises(
            ConfigError, match=f"--device is '{device}', and TensorFlow sees 0 GPUs"
        ):
            choose_strategy(DeviceSpec(device))


def test_gpus_are_taken_before_the_cpu_and_one_of_them_by_number(monkeypatch):
    made: list = []
    monkeypatch.setattr(strategy, "mirrored", cache(strategy.mirrored.__wrapped__))
    gpus = [tf.config.LogicalDevice(f"/device:GPU:{number}", "GPU") for number in range(3)]
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda kind: gpus if kind == "GPU" else []
    )
    for name in ("MirroredStrategy", "OneDeviceStrategy"):
        monkeypatch.setattr(
            tf.distribute, name, lambda devices, name=name: made.append((name, devices)) or Cores(1)
        )
    choose_strategy()
    choose_strategy(DeviceSpec("cuda:2"))
    assert made == [
        ("MirroredStrategy", ("/device:GPU:0", "/device:GPU:1", "/device:GPU:2")),
        ("OneDeviceStrategy", "/device:GPU:2"),
    ]


def test_a_real_failure_to_start_a_tpu_is_one_line():
    """TensorFlow itself, on a machine without a TPU."""
    if tf.config.list_logical_devices("TPU"):
        pytest.skip("there is a TPU")
    with pytest.raises(RunError, match="the TPU at local did not start: ") as raised:
        strategy._on_tpu(V5E, asked=True, shown=False)
    assert "\n" not in str(raised.value)
