"""The task file: what SkyPilot is asked to rent, to install and to run.

Nothing here speaks to a cloud.

On the machine everything lies in `~/cortext`: `env`, `source`, `inputs` (copies of what the buckets
hold), `buckets` (the output bucket, mounted) and `runs`. What a user gives is checked or quoted
before it comes near a shell: SkyPilot itself puts bucket addresses into commands as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cortext.cloud.accelerators import Accelerator
from cortext.cloud.environment import setup_script
from cortext.cloud.source import Source
from cortext.errors import CloudError

HEADER = "# Written by `cortext launch`"
HOME = "~/cortext"
_NAME = r"[a-z](?:-?[a-z0-9]){0,39}"


@dataclass(frozen=True)
class Address:
    """A folder in a bucket: `gs://BUCKET/PATH` or `s3://BUCKET/PATH`."""

    scheme: str
    bucket: str
    path: str

    def __str__(self) -> str:
        return f"{self.scheme}://{self.place}"

    @property
    def place(self) -> str:
        """`BUCKET/PATH`."""
        return f"{self.bucket}/{self.path}".rstrip("/")

    def holds(self, other: Address) -> bool:
        """Whether the other is this folder or lies in it."""
        return f"{other}/".startswith(f"{self}/")


def address(text: str | None, option: str, example: str) -> Address:
    """A folder in a bucket.

    Raises CloudError for anything else, and for names that a shell could misread.
    """
    fix = f"give {option} {example}"
    if not text:
        raise CloudError(f"no bucket is given with {option}", fix=fix)
    found = re.fullmatch(
        r"(gs|s3)://([a-z0-9][a-z0-9._-]{1,61}[a-z0-9])((?:/[A-Za-z0-9._=+@-]+)*)/?", text
    )
    if found is None or {".", ".."} & set(found[3].split("/")):
        what = (
            f"{option} is {text!r}; gs://BUCKET/PATH or s3://BUCKET/PATH is needed, with letters,"
            " digits and ._=+@-"
        )
        raise CloudError(what, fix=fix)
    return Address(found[1], found[2], found[3].strip("/"))


@dataclass(frozen=True)
class Plan:
    """What a task file says, checked.

    Attributes:
        name: Of the cluster or managed job.
        train: Arguments of `cortext train` that name neither data nor device, as words of a shell,
            quoted.
        uploads: By path on the machine, files of this one.
    """

    name: str
    accelerator: Accelerator
    source: Source
    data: Address
    out: Address
    lm: Address | None
    train: tuple[str, ...]
    uploads: dict[str, Path]
    spot: bool
    infra: str | None
    idle_minutes: int


def task_name(text: str | None, out: Address) -> str:
    """The name given, or one after the output's last folder.

    Raises CloudError where clouds would not take it.
    """
    if text is None:
        words = re.sub(r"[^a-z0-9]+", "-", out.path.rpartition("/")[2].lower()).strip("-")
        return f"cortext-{words}"[:40].rstrip("-")
    if not re.fullmatch(_NAME, text):
        fix = "use up to 40 small letters, digits and single '-', with a letter first"
        raise CloudError(f"--name {text!r} cannot name a machine", fix=fix)
    return text


def task(plan: Plan) -> dict[str, Any]:
    """The task as SkyPilot reads it from YAML."""
    return {
        "name": plan.name,
        "resources": _resources(plan),
        "file_mounts": _file_mounts(plan),
        "setup": setup_script(plan.accelerator, plan.source),
        "run": _run_script(plan),
    }


def _resources(plan: Plan) -> dict[str, Any]:
    chosen = plan.accelerator
    resources: dict[str, Any] = {"accelerators": {chosen.name: chosen.count}}
    if plan.infra or chosen.is_tpu:
        resources = {"infra": plan.infra or "gcp"} | resources
    if chosen.is_tpu:
        resources["accelerator_args"] = {"runtime_version": chosen.runtime}
    if (
        plan.spot
    ):  # a managed job: SkyPilot finds another machine after a preemption, and frees it at the end
        return resources | {"use_spot": True}
    return resources | {"autostop": {"idle_minutes": plan.idle_minutes, "down": True}}


def _file_mounts(plan: Plan) -> dict[str, Any]:
    """Inputs are copied, which leaves the bucket as it is.

    Batches are read at random, which a mount is slow at.
    """
    mounts: dict[str, Any] = {
        f"{HOME}/inputs/{place.place}": str(place) for place in (plan.data, plan.lm) if place
    }
    mounts[f"{HOME}/buckets/{plan.out.bucket}"] = {
        "source": f"{plan.out.scheme}://{plan.out.bucket}",
        "mode": "MOUNT",
    }
    return mounts | {target: str(path) for target, path in plan.uploads.items()}


def _run_script(plan: Plan) -> str:
    chosen = plan.accelerator
    run = here(f"{HOME}/runs/{plan.out.place}")
    options = ["--data", here(f"{HOME}/inputs/{plan.data.place}"), "--out", run]
    if plan.lm:
        options += ["--lm", here(f"{HOME}/inputs/{plan.lm.place}")]
    options += [
        "--device",
        "tpu" if chosen.is_tpu else "cuda",
        "--require-cores",
        str(chosen.cores),
    ]
    start = "cortext train"
    if not chosen.is_tpu and chosen.count > 1:
        start = f"torchrun --standalone --no-python --nproc-per-node {chosen.count} {start}"
    lines = ["set -euo pipefail", 'export PATH="$HOME/cortext/env/bin:$PATH"']
    if (
        chosen.is_tpu
    ):  # without them the runtime starts slowly, and copies to v5e and newer are slow
        lines.append(
            "echo always | sudo tee /sys/kernel/mm/transparent_hugepage/enabled >/dev/null || true"
        )
    kept = here(f"{HOME}/buckets/{plan.out.place}")
    lines.append(f"exec python -m cortext.cloud.keep {run} {kept} -- \\")
    lines.append(f"  {start} {' '.join(plan.train)} \\")
    lines.append(f"  {' '.join(options)}")
    return "\n".join(lines) + "\n"


def here(path: str) -> str:
    """A path on the machine, below `~`, as a word of a shell.

    It must hold only what `address` lets pass.
    """
    return '"$HOME' + path.removeprefix("~") + '"'


class _Dumper(yaml.SafeDumper):
    """Writes scripts as blocks of lines, as one would."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Dumper.add_representer(str, _text)


def task_text(plan: Plan) -> str:
    """The task file."""
    start = "sky jobs launch" if plan.spot else f"sky launch --cluster {plan.name}"
    head = f"{HEADER}; it is what `{start} FILE` starts, and holds no password.\n"
    return head + yaml.dump(
        task(plan), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000
    )
