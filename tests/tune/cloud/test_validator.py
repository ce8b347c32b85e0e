"""Every kind of task file passes SkyPilot's own checks, in an environment of its own, with
neither network nor account.

SkyPilot fetches its catalogues of machines when it checks one; here it finds a few of their lines.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.tpu
if find_spec("sky") is None:  # importing it here would write to the home directory
    pytest.skip("run `make test-tpu`", allow_module_level=True)

CHECK = """
import json, sys
import sky
from sky.utils import common_utils
done = {}
for path in sys.argv[1:]:
    try:
        task = sky.Task.from_yaml(path)
        task.validate()
        common_utils.check_cluster_name_is_valid(task.name)
        (resources,) = task.resources
        done[path] = {
            "infra": resources.infra.to_str(),
            "accelerators": resources.accelerators,
            "arguments": resources.accelerator_args,
            "spot": resources.use_spot,
            "autostop": resources.autostop_config and resources.autostop_config.to_yaml_config(),
            "copied": task.file_mounts,
            "mounted": {target: [str(s.source), s.mode.value] for target, s in task.storage_mounts.items()},
            "scripts": [task.setup, task.run],
        }
    except Exception as error:
        done[path] = str(error)
print("RESULT" + json.dumps(done))
"""
CATALOGUES = {
    "common/accelerators.csv": (
        "AcceleratorName,Clouds\n"
        "A100-80GB,\"['AWS', 'GCP']\"\nH100,\"['AWS', 'GCP']\"\ntpu-v5litepod,['GCP']\n"
    ),
    "gcp/vms.csv": (
        "InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,"
        "Price,SpotPrice\n"
        ",,,tpu-v5litepod-8,1,tpu-v5litepod-8,us-west4,us-west4-a,1,1\n,,,H100,8,H100,us-west4,us-west4-a,1,1\n"
    ),
}


def check(home: Path, *files: Path) -> list:
    """What SkyPilot makes of the files, or says against them."""
    catalogues = home / ".sky" / "catalogs" / "v8"
    for name, rows in CATALOGUES.items():
        path = catalogues / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rows)
    environment = os.environ | {"HOME": str(home), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    command = [sys.executable, "-c", CHECK, *map(str, files)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("RESULT")] or [
        done.stderr
    ]
    return list(json.loads(line.removeprefix("RESULT")).values())


def test_what_is_written_is_what_skypilot_reads(launch, tmp_path, wheel):
    config = tmp_path / "an odd 'name' $HOME.yaml"
    config.write_text("num_training_batches: 3\n")
    tpu = launch(
        config, lm="s3://other/lm", infra="gcp/us-west4", name="tpu", overrides=["lr_max=0.1"]
    )
    spot = launch("tiny", spot=True, name="spot")
    gpus = launch("tiny", "H100:8", infra="gcp", idle_minutes=3, name="gpus")
    anywhere = launch("tiny", "A100-80GB", name="anywhere")
    read = check(tmp_path / "home", tpu.file, spot.file, gpus.file, anywhere.file)
    assert [type(found) for found in read] == [dict] * 4, read
    assert [found["accelerators"] for found in read] == [
        {"tpu-v5litepod-8": 1},
        {"tpu-v5litepod-8": 1},
        {"H100": 8},
        {"A100-80GB": 1},
    ]
    assert [found["infra"] for found in read] == ["gcp/us-west4", "gcp", "gcp", None]
    assert [found["spot"] for found in read] == [False, True, False, False]
    assert read[0]["arguments"] == {"runtime_version": "v2-alpha-tpuv5-lite"}
    assert [found["autostop"] and found["autostop"]["idle_minutes"] for found in read] == [
        10,
        None,
        3,
        10,
    ]
    assert read[0]["autostop"]["down"] is True
    assert read[0]["copied"] == {
        "~/cortext/inputs/lab/packed": "gs://lab/packed",
        "~/cortext/inputs/other/lm": "s3://other/lm",
        "~/cortext/config/tpu/config.yaml": str(config),
        f"~/cortext/source/{wheel.name}": str(wheel),
    }
    assert read[0]["mounted"] == {"~/cortext/buckets/lab": ["gs://lab", "MOUNT"]}
    task = yaml.safe_load(tpu.text)
    assert read[0]["scripts"] == [task["setup"], task["run"]]


def test_the_check_is_one_that_can_fail(launch, tmp_path):
    good = launch("tiny", infra="gcp").file
    changes = {
        "tpu-v5litepod-8: 1": "tpu-v5litepod-8: none",
        "infra: gcp": "infra: nowhere",
        "mode: MOUNT": "mode: MOUND",
        "setup: |": "set_up: |",
        "name: cortext-first-run": "name: 1$",
        "idle_minutes: 10": "idle_hours: 10",
    }
    files = []
    for number, (before, after) in enumerate(changes.items()):
        text = good.read_text()
        assert before in text
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(text.replace(before, after))
    assert [type(found) for found in check(tmp_path / "home", *files)] == [str] * len(changes)
