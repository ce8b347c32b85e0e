"""The task file.

What it asks for, and that nothing a user gives can reach a shell but as one word.
"""

import json
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from cortext.errors import CloudError
from cortext_tune.cloud import environment
from cortext_tune.cloud.task import address

ROOT = Path(__file__).resolve().parents[3]
STUB = """#!/bin/sh
for word in "$0" "$@"; do printf '%s\\0' "$word"; done >> "$HOME/called"
printf '\\n' >> "$HOME/called"
cat > /dev/null
"""


def run_with_stubs(script: str, home: Path) -> list[list[str]]:
    """Run a script of a task in an empty home in which every program it calls only notes its
    words.
    """
    programs = home / "cortext" / "env" / "bin"
    for folder in (programs, home / "cortext" / "bin"):
        folder.mkdir(parents=True, exist_ok=True)
    for path in (
        *(programs / name for name in ("python", "sudo", "cortext", "curl")),
        home / "cortext" / "bin" / "uv",
    ):
        path.write_text(STUB)
        path.chmod(0o755)
    environment_ = {"HOME": str(home), "PATH": f"{programs}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=home,
        env=environment_,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = (home / "called").read_text().split("\0\n")[:-1]
    return [[Path(line.split("\0")[0]).name, *line.split("\0")[1:]] for line in lines]


def read(launched) -> dict:
    return yaml.safe_load(launched.file.read_text())


def test_a_tpu_is_asked_for_by_its_name_with_its_system_and_given_back(launch):
    task = read(launch("tiny"))
    assert task["name"] == "cortext-first-run"
    assert task["resources"] == {
        "infra": "gcp",
        "accelerators": {"tpu-v5litepod-8": 1},
        "accelerator_args": {"runtime_version": "v2-alpha-tpuv5-lite"},
        "autostop": {"idle_minutes": 10, "down": True},
    }


def test_gpus_are_asked_for_where_the_user_says(launch):
    task = read(launch("tiny", "H100:8", infra="aws/us-east-1", idle_minutes=3))
    assert task["resources"] == {
        "infra": "aws/us-east-1",
        "accelerators": {"H100": 8},
        "autostop": {"idle_minutes": 3, "down": True},
    }
    assert "infra" not in read(launch("tiny", "H100:8", name="anywhere"))["resources"]


def test_a_spot_machine_is_given_back_by_the_job_that_manages_it(launch):
    resources = read(launch("tiny", spot=True))["resources"]
    assert resources["use_spot"] is True
    assert "autostop" not in resources


def test_inputs_are_copied_and_the_bucket_of_the_output_is_mounted(launch, wheel):
    mounts = read(launch("tiny", data="s3://theirs/t15/packed/", lm="gs://lab/lm-5gram"))[
        "file_mounts"
    ]
    assert mounts == {
        "~/cortext/inputs/theirs/t15/packed": "s3://theirs/t15/packed",
        "~/cortext/inputs/lab/lm-5gram": "gs://lab/lm-5gram",
        "~/cortext/buckets/lab": {"source": "gs://lab", "mode": "MOUNT"},
        f"~/cortext/source/{wheel.name}": str(wheel),
    }


def test_a_tpu_trains_on_all_its_cores_with_large_pages_and_is_kept_in_the_bucket(launch, tmp_path):
    home = tmp_path / "home"
    pages, train = run_with_stubs(read(launch("tiny", lm="gs://lab/lm"))["run"], home)
    assert pages == ["sudo", "tee", "/sys/kernel/mm/transparent_hugepage/enabled"]
    run = f"{home}/cortext/runs/lab/runs/First_run"
    expected = (
        f"python -m cortext_tune.cloud.keep {run} {home}/cortext/buckets/lab/runs/First_run --"
    )
    expected += f" cortext train --config tiny --data {home}/cortext/inputs/lab/packed --out {run}"
    assert (
        train
        == f"{expected} --lm {home}/cortext/inputs/lab/lm --device tpu --require-cores 8".split()
    )


def test_a_machine_that_keeps_its_pages_small_trains_all_the_same(launch, tmp_path):
    script = read(launch("tiny"))["run"].replace("sudo tee", "false")
    (train,) = run_with_stubs(script, tmp_path / "home")
    assert train[:3] == ["python", "-m", "cortext_tune.cloud.keep"]


@pytest.mark.parametrize(
    ("count", "start"),
    [(1, "cortext"), (4, "torchrun --standalone --no-python --nproc-per-node 4 cortext")],
)
def test_gpus_share_the_batches_and_nothing_needs_an_administrator(launch, tmp_path, count, start):
    (train,) = run_with_stubs(read(launch("tiny", f"A100:{count}"))["run"], tmp_path / "home")
    assert " ".join(train[train.index("--") + 1 :]).startswith(f"{start} train --config tiny ")
    assert train[-4:] == ["--device", "cuda", "--require-cores", str(count)]


def test_the_environment_is_pinned_and_a_tpu_gets_torch_without_cuda(launch, tmp_path, wheel):
    home = tmp_path / "a home"
    home.mkdir()
    (home / "jaxt==0.10.2").touch()  # what jax[tpu]==0.10.2 is to a shell
    venv, install, version = run_with_stubs(read(launch("tiny"))["setup"], home)
    assert venv[1:] == [
        "venv",
        "--quiet",
        "--allow-existing",
        "--python",
        "3.11",
        f"{home}/cortext/env",
    ]
    assert install[install.index("--torch-backend") + 1] == "cpu"
    assert {"torch==2.13.0", "jax[tpu]==0.10.2", "torchax==0.0.14.dev20261026"} <= set(install)
    assert install[-1] == f"{home}/cortext/source/{wheel.name}"
    assert version == ["cortext", "--version"]
    assert (home / "cortext" / "constraints.txt").read_text().split() == environment.BASE


def test_gpus_get_what_their_driver_can_use_and_are_counted_before_training(launch, tmp_path):
    _, install, _, count = run_with_stubs(
        read(launch("tiny", "H100:8"))["setup"], tmp_path / "home"
    )
    assert install[install.index("--torch-backend") + 1] == "auto"
    assert not any("jax" in word for word in install)
    assert "device_count(); assert n >= 8" in count[2]
    compile(count[2], "check", "exec")


def test_a_compiler_is_fetched_where_cortext_is_compiled(launch):
    compiled = launch("tiny", source="git+https://example.org/cortext@v1", name="compiled")
    assert "apt-get install -y -qq g++ git" in read(compiled)["setup"]
    assert "apt-get" not in read(launch("tiny"))["setup"]


def test_all_pins_are_those_of_the_tests():
    """constraints.txt has torch too, which is asked for by itself, and what only development
    needs.
    """
    tested = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().split("\n")
        if "==" in line
    )
    own = dict(pin.split("==") for pin in [*environment.BASE, environment.TORCH])
    assert own == {name: tested[name] for name in own}
    tpu = [pin.replace("[tpu]", "") for pin in environment.TPU]
    lines = (ROOT / "constraints-tpu.txt").read_text().split("\n")
    assert tpu == [line for line in lines if line and not line.startswith("#")]


def test_the_libraries_that_cortext_stands_on_are_all_pinned():
    from packaging.requirements import Requirement

    pinned = {pin.split("==")[0].lower() for pin in [*environment.BASE, environment.TORCH]}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [Requirement(line) for line in project["dependencies"]]
    assert {requirement.name.lower() for requirement in needed} <= pinned


def test_names_that_a_shell_would_read_stay_words(launch, tmp_path, monkeypatch):
    """Every value that is not checked against a list of letters.

    Settings, and paths of files on this machine.
    """
    odd = tmp_path / "a 'b' \"c\" $(touch pwned) `touch pwned`; touch pwned #\\"
    odd.mkdir()
    config, plugin = odd / "my $HOME.yaml", odd / "my plugin.py"
    config.write_text((ROOT / "src" / "cortext" / "configs" / "tiny.yaml").read_text())
    plugin.write_text("")
    evil = "$(touch pwned)'; touch pwned; echo '\n`touch pwned`\ttab"
    override = f"tpu.compilation_cache={json.dumps(evil)}"
    launched = launch(config, overrides=[override], plugins=[plugin], file=odd / "task.yaml")
    task = read(launched)
    here = "~/cortext/config/cortext-first-run"
    assert task["file_mounts"][f"{here}/config.yaml"] == str(config)
    assert task["file_mounts"][f"{here}/plugin_0.py"] == str(plugin)
    home = tmp_path / "a home"
    train = run_with_stubs(task["run"], home)[-1]
    there = str(home / here.removeprefix("~/"))
    given = train[train.index("train") + 1 : train.index("--data")]
    assert given == [
        "--config",
        f"{there}/config.yaml",
        "--plugin",
        f"{there}/plugin_0.py",
        "--set",
        override,
    ]
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize(
    "text",
    [
        "gs://lab/$(id)",
        "gs://lab/a b",
        "gs://lab/a;id",
        "gs://lab/a/../../b",
        "gs://lab//a",
        "gs://lab/`id`",
        "gs://lab/a\nb",
        "gs://la$b/a",
        "gs://LAB/a",
        "https://example.org/a",
        "/home/me/packed",
        "packed",
    ],
)
def test_addresses_that_a_shell_would_read_are_refused(text):
    """SkyPilot puts them into commands as they are."""
    with pytest.raises(CloudError, match="gs://BUCKET/PATH or s3://BUCKET/PATH is needed") as error:
        address(text, "--data", "gs://BUCKET/packed")
    assert "\n" not in str(error.value)


def test_an_address_may_end_with_a_slash_and_may_be_a_whole_bucket():
    assert (
        str(address("gs://lab-1.a_b/x=1/y@2+3-4.5/", "--data", ""))
        == "gs://lab-1.a_b/x=1/y@2+3-4.5"
    )
    assert str(address("s3://lab", "--data", "")) == "s3://lab"
