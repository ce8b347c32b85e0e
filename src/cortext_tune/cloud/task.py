"""The task file, by which SkyPilot rents, installs and runs. Nothing here calls a cloud.

On the machine everything is in `~/cortext`: `env`, `source`, `inputs` (copies from buckets),
`buckets` (the output bucket, mounted) and `runs`. Every text of a user is checked or quoted here,
because SkyPilot puts bucket addresses into shell commands as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cortext.errors import CloudError
from cortext_tune.cloud.accelerators import Accelerator
from cortext_tune.cloud.environment import setup_script
from cortext_tune.cloud.source import InstallSource

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
        return f"{self.scheme}://{self.folder}"

    @property
    def folder(self) -> str:
        """Folder as `BUCKET/PATH`."""
        return f"{self.bucket}/{self.path}".rstrip("/")

    def holds(self, other: Address) -> bool:
        """Tell whether the other is this folder or inside it."""
        return f"{other}/".startswith(f"{self}/")


def address(text: str | None, option: str, example: str) -> Address:
    """Read a folder in a bucket.

    Args:
        text: The address; None and an empty text are errors.
        option: The option that gives it, for messages.
        example: An address, for messages.

    Raises:
        CloudError: For a missing or wrong address, and for names that a shell could misread.
    """
    fix = f"give {option} {example}"
    if not text:
        raise CloudError(f"no bucket is given with {option}", fix=fix)
    match = re.fullmatch(
        r"(gs|s3)://([a-z0-9][a-z0-9._-]{1,61}[a-z0-9])((?:/[A-Za-z0-9._=+@-]+)*)/?", text
    )
    if match is None or {".", ".."} & set(match[3].split("/")):
        problem = (
            f"{option} is {text!r}; gs://BUCKET/PATH or s3://BUCKET/PATH is needed, with letters,"
            " digits and ._=+@-"
        )
        raise CloudError(problem, fix=fix)
    return Address(match[1], match[2], match[3].strip("/"))


@dataclass(frozen=True)
class CloudTaskConfig:
    """The content of a task file, checked.

    Attributes:
        name: Name of the cluster or managed job.
        accelerator: The machine.
        source: The cortext to install.
        data: Folder with packed data or session files.
        out: Folder that keeps the run.
        lm: Folder of the language model.
        train: Arguments of `cortext train` except data and device, quoted for a shell.
        uploads: Local files, by path on the rented machine.
        spot: Rent machines that may be taken away.
        infra: Cloud, region and zone.
        idle_minutes: Minutes until an idle machine is given back.
    """

    name: str
    accelerator: Accelerator
    source: InstallSource
    data: Address
    out: Address
    lm: Address | None
    train: tuple[str, ...]
    uploads: dict[str, Path]
    spot: bool
    infra: str | None
    idle_minutes: int


def task_name(text: str | None, out: Address) -> str:
    """Return the given name, or one from the output's last folder.

    Raises CloudError for a name that clouds refuse.
    """
    if text is None:
        words = re.sub(r"[^a-z0-9]+", "-", out.path.rpartition("/")[2].lower()).strip("-")
        return f"cortext-{words}"[:40].rstrip("-")
    if not re.fullmatch(_NAME, text):
        fix = "use up to 40 small letters, digits and single '-', with a letter first"
        raise CloudError(f"--name {text!r} cannot name a machine", fix=fix)
    return text


def task(plan: CloudTaskConfig) -> dict[str, Any]:
    """Return the task as SkyPilot reads it from YAML."""
    return {
        "name": plan.name,
        "resources": _resources(plan),
        "file_mounts": _file_mounts(plan),
        "setup": setup_script(plan.accelerator, plan.source),
        "run": _run_script(plan),
    }


def _resources(plan: CloudTaskConfig) -> dict[str, Any]:
    chosen = plan.accelerator
    resources: dict[str, Any] = {"accelerators": {chosen.name: chosen.count}}
    if plan.infra or chosen.is_tpu:
        resources = {"infra": plan.infra or "gcp"} | resources
    if chosen.is_tpu:
        resources["accelerator_args"] = {"runtime_version": chosen.runtime}
    # A managed job: SkyPilot finds another machine after a preemption, and frees it at the end.
    if plan.spot:
        return resources | {"use_spot": True}
    return resources | {"autostop": {"idle_minutes": plan.idle_minutes, "down": True}}


def _file_mounts(plan: CloudTaskConfig) -> dict[str, Any]:
    """Return the machine's folders. Inputs are copied: random reads from a mount are slow."""
    mounts: dict[str, Any] = {
        f"{HOME}/inputs/{address.folder}": str(address)
        for address in (plan.data, plan.lm)
        if address
    }
    mounts[f"{HOME}/buckets/{plan.out.bucket}"] = {
        "source": f"{plan.out.scheme}://{plan.out.bucket}",
        "mode": "MOUNT",
    }
    return mounts | {target: str(path) for target, path in plan.uploads.items()}


def _run_script(plan: CloudTaskConfig) -> str:
    chosen = plan.accelerator
    run = here(f"{HOME}/runs/{plan.out.folder}")
    options = ["--data", here(f"{HOME}/inputs/{plan.data.folder}"), "--out", run]
    if plan.lm:
        options += ["--lm", here(f"{HOME}/inputs/{plan.lm.folder}")]
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
    # Without huge pages the runtime starts slowly, and copies to a v5e and newer are slow.
    if chosen.is_tpu:
        lines.append(
            "echo always | sudo tee /sys/kernel/mm/transparent_hugepage/enabled >/dev/null || true"
        )
    kept = here(f"{HOME}/buckets/{plan.out.folder}")
    lines.append(f"exec python -m cortext_tune.cloud.keep {run} {kept} -- \\")
    lines.append(f"  {start} {' '.join(plan.train)} \\")
    lines.append(f"  {' '.join(options)}")
    return "\n".join(lines) + "\n"


def here(path: str) -> str:
    """Quote a path on the machine, below `~`, for a shell.

    The path may only hold characters that `address` accepts.
    """
    return '"$HOME' + path.removeprefix("~") + '"'


class _Dumper(yaml.SafeDumper):
    """A YAML writer that writes texts of several lines as blocks, which keeps scripts readable."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Dumper.add_representer(str, _text)


def task_text(plan: CloudTaskConfig) -> str:
    """Return the content of the task file."""
    start = "sky jobs launch" if plan.spot else f"sky launch --cluster {plan.name}"
    head = f"{HEADER}; it is what `{start} FILE` starts, and holds no password.\n"
    return head + yaml.dump(
        task(plan), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000_000
    )
