"""Names of accelerators: as SkyPilot spells them, and as people do."""

import pytest

from cortext.errors import CloudError
from cortext_tune.cloud.accelerators import Accelerator, accelerator

V5E = Accelerator("tpu-v5litepod-8", 1, 8, "v2-alpha-tpuv5-lite")


@pytest.mark.parametrize(
    "text", ["tpu-v5litepod-8", "v5litepod-8", "v5e-8", "TPU-v5e-8", "tpu-v5litepod-8:1"]
)
def test_a_tpu_has_several_spellings(text):
    assert accelerator(text) == V5E


def test_a_chip_of_two_cores_is_one_device():
    assert (accelerator("tpu-v4-8").cores, accelerator("tpu-v5p-8").cores) == (4, 4)


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [("H100", "H100", 1), ("h100:8", "H100", 8), ("A100-80gb:2", "A100-80GB", 2)],
)
def test_gpus_are_counted(text, name, count):
    assert accelerator(text) == Accelerator(name, count, count)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("H1000", "unknown accelerator 'H1000'; did you mean 'H100'?"),
        ("tpu-v7e-8", "did you mean 'tpu-v6e-8'?"),
        ("v5litpod-8", "did you mean 'tpu-v5litepod-8'?"),
        ("", "known: A100, A100-80GB"),
        (
            "tpu-v5litepod-16",
            "not a TPU of one machine; use tpu-v5litepod-1, tpu-v5litepod-4, tpu-v5litepod-8",
        ),
        ("v4-32", "not a TPU of one machine; use tpu-v4-8"),
        ("tpu-v5litepod-8:2", "one machine has 1;"),
        ("H100:9", "one machine has 8;"),
        ("H100:0", "one machine has 8;"),
        ("H100:x", "one machine has 8;"),
    ],
)
def test_what_cannot_be_rented_is_said_with_the_nearest(text, says):
    with pytest.raises(CloudError) as error:
        accelerator(text)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
