"""A training run on a rented machine; it is checked and written to a file before it costs money."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cortext.arguments import check_text, check_type
from cortext.errors import CloudError, Interrupted
from cortext.extras import need
from cortext.files import atomic_write
from cortext.plugins import load_plugins
from cortext.settings import Setting
from cortext_tune.cloud.accelerators import accelerator as known_accelerator
from cortext_tune.cloud.source import read_source
from cortext_tune.cloud.task import (
    HEADER,
    HOME,
    CloudTaskConfig,
    address,
    here,
    task_name,
    task_text,
)


@dataclass(frozen=True)
class LaunchSettings:
    """Settings of a run on a rented machine; the command line makes options of them.

    Attributes:
        data: Folder in a bucket with packed data or session files.
        out: Folder in a bucket that keeps the run directory.
        accelerator: TPU or GPUs of one machine.
        lm: Folder in a bucket with a language model.
        spot: Rent machines that may be taken away.
        infra: `CLOUD[/REGION[/ZONE]]`; None takes Google Cloud for TPUs, else the cheapest.
        idle_minutes: Minutes after training until the machine is given back.
        source: The cortext to install; None takes the running one.
        name: Name of the machine; None takes the run's folder.
        file: Task file to write; None takes `launch/NAME/task.yaml`.
    """

    data: Annotated[
        str | None, Setting(help="Folder in a bucket with packed data.", metavar="gs://...")
    ] = None
    out: Annotated[
        str | None, Setting(help="Folder in a bucket for the run directory.", metavar="gs://...")
    ] = None
    accelerator: Annotated[
        str, Setting(help="TPU or GPUs of one machine: tpu-v5litepod-8, v6e-4, H100, A100:8 ...")
    ] = "tpu-v5litepod-8"
    lm: Annotated[
        str | None,
        Setting(help="Folder in a bucket with a language model, for WER.", metavar="gs://..."),
    ] = None
    spot: Annotated[
        bool,
        Setting(help="On machines that may be taken away: cheaper; goes on with the next."),
    ] = False
    infra: Annotated[
        str | None,
        Setting(help="Where; what is cheapest without it.", metavar="CLOUD[/REGION[/ZONE]]"),
    ] = None
    idle_minutes: Annotated[
        int, Setting(help="Give the machine back so long after training.", minimum=1)
    ] = 10
    source: Annotated[
        str | Path | None,
        Setting(
            help="The cortext to install there; the one that runs here without it.",
            metavar="PATH|git+URL@REV",
            kind=str | None,
        ),
    ] = None
    name: Annotated[
        str | None, Setting(help="Name of the machine; after the run's folder without it.")
    ] = None
    file: Annotated[
        Path | None, Setting(help="Task file to write; launch/NAME/task.yaml without it.")
    ] = None


@dataclass(frozen=True)
class Launch:
    """A run that can be started.

    Attributes:
        file: The task file.
        text: Its content.
        name: SkyPilot's name of the machine or, with `spot`, of the managed job.
        spot: Rent machines that may be taken away; the run continues on the next one.
    """

    file: Path
    text: str
    name: str
    spot: bool

    @property
    def start(self) -> str:
        """SkyPilot's command that starts it."""
        file = shlex.quote(str(self.file))
        return (
            f"sky jobs launch -n {self.name} {file}"
            if self.spot
            else f"sky launch -c {self.name} {file}"
        )

    @property
    def prices(self) -> str:
        """SkyPilot's command that shows the machine and its price per hour."""
        return f"sky launch --dryrun {shlex.quote(str(self.file))}"

    @property
    def logs(self) -> str:
        """SkyPilot's command that shows the output of the run."""
        return f"sky jobs logs -n {self.name}" if self.spot else f"sky logs {self.name}"

    @property
    def stop(self) -> str:
        """SkyPilot's command that stops it and gives the machine back."""
        return f"sky jobs cancel -n {self.name}" if self.spot else f"sky down {self.name}"

    def submit(self) -> None:
        """Start the run, and show SkyPilot's messages until the machine runs.

        The machine costs money from this call on.

        Raises:
            MissingLibrary: Without SkyPilot.
            CloudError: For a task that SkyPilot refuses.
            Interrupted: On Ctrl-C, which does not stop what SkyPilot has begun.
        """
        sky = need("sky", "cloud")
        try:
            task = sky.Task.from_yaml(str(self.file))
            begin = (
                sky.jobs.launch(task, name=self.name)
                if self.spot
                else sky.launch(task, cluster_name=self.name)
            )
            sky.stream_and_get(begin)
        except KeyboardInterrupt:
            fix = f"`{self.logs}` shows it, `{self.stop}` stops it"
            raise Interrupted(
                "interrupted; what was asked for may go on and cost money", fix=fix
            ) from None
        # SkyPilot's own errors, its server's and each cloud's have no common base.
        except Exception as error:
            text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
            reason = next(
                (line.strip(" .") for line in text.splitlines() if line.strip()),
                type(error).__name__,
            )
            fix = f"`sky check` says which clouds it may use; `{self.stop}` frees what was rented"
            raise CloudError(f"SkyPilot: {reason}", where=self.file, fix=fix) from None


def launch(
    config: str | Path,
    accelerator: str = "tpu-v5litepod-8",
    data: str | None = None,
    out: str | None = None,
    *,
    lm: str | None = None,
    spot: bool = False,
    infra: str | None = None,
    idle_minutes: int = 10,
    source: str | Path | None = None,
    name: str | None = None,
    file: str | Path | None = None,
    overrides: Iterable[str] = (),
    plugins: Iterable[str | Path] = (),
    dry_run: bool = True,
) -> Launch:
    """Write the task file of a training run on a rented machine; start it unless `dry_run`.

    SkyPilot rents the machine. A dry run neither imports it nor calls a cloud.

    Args:
        config: Name of a shipped recipe, or a YAML file.
        accelerator: `tpu-v5litepod-8`, `v5e-8`, `H100`, `H100:8` ... of one machine.
        data: Folder in a bucket (`gs://` or `s3://`) with packed data or session files.
        out: Folder in a bucket that keeps the run directory; an existing run is continued.
        lm: Folder in a bucket with a language model.
        spot: Rent machines that may be taken away, at a lower price; SkyPilot takes another
            one.
        infra: `CLOUD[/REGION[/ZONE]]`; Google Cloud for TPUs, else the cheapest that SkyPilot may
            use.
        idle_minutes: Minutes after the end of training until the machine is given back; a spot
            machine is given back at once.
        source: The cortext to install, see `cortext_tune.cloud.source`; None takes the running one.
        name: Name of the machine; None makes one of the last folder of `out`.
        file: Task file to write; None takes `launch/NAME/task.yaml`.
        overrides: Settings as `key=value`.
        plugins: Python files that register models or losses.
        dry_run: Write the task file only.

    Returns:
        The run, with SkyPilot's commands to start, show and stop it.

    Raises:
        ConfigError: For settings that training would refuse.
        CloudError: For a bucket, an accelerator or a name that cannot be used.
        MissingLibrary: Without SkyPilot, if it is started.
    """
    check_text(accelerator, "accelerator")
    for argument, value in (("data", data), ("out", out)):
        check_type(value, (str, type(None)), argument, "a text")
    settings = LaunchSettings(
        data=data,
        out=out,
        accelerator=accelerator,
        lm=lm,
        spot=spot,
        infra=infra,
        idle_minutes=idle_minutes,
        source=source,
        name=name,
        file=None if file is None else Path(file),
    )
    job = write_task(config, settings, overrides, plugins)
    if not dry_run:
        job.submit()
    return job


def write_task(
    config: str | Path,
    settings: LaunchSettings,
    overrides: Iterable[str] = (),
    plugins: Iterable[str | Path] = (),
) -> Launch:
    """Check the settings and write the task file, as `launch` does; return the run, not started.

    Args:
        config: Name of a shipped recipe, or a YAML file.
        settings: Settings of the run.
        overrides: Training settings as `key=value`.
        plugins: Python files that register models or losses.

    Raises:
        ConfigError: For settings that training would refuse.
        CloudError: For a bucket, an accelerator or a name that cannot be used.
    """
    accelerator = known_accelerator(settings.accelerator)
    if settings.idle_minutes < 1:  # SkyPilot takes a negative number for "never"
        raise CloudError(f"--idle-minutes is {settings.idle_minutes}; at least 1 is needed")
    data = address(
        settings.data, "--data", "gs://BUCKET/packed (`cortext pack`, then copy it there)"
    )
    out = address(settings.out, "--out", "gs://BUCKET/runs/NAME")
    if not out.path or data.holds(out):
        where = "a whole bucket" if not out.path else "inside --data"
        fix = "give a folder of its own, such as gs://BUCKET/runs/NAME"
        raise CloudError(f"--out is {out}, which is {where}", fix=fix)
    name = task_name(settings.name, out)
    file = settings.file or Path("launch") / name / "task.yaml"
    _check_ours(file)
    _check_infra(settings.infra, accelerator.is_tpu)
    words, uploads = _train_arguments(config, tuple(overrides), tuple(plugins), name)
    source = read_source(settings.source, file.parent)
    if source.file:
        uploads[f"{HOME}/source/{source.file.name}"] = source.file
    plan = CloudTaskConfig(
        name=name,
        accelerator=accelerator,
        source=source,
        data=data,
        out=out,
        lm=address(settings.lm, "--lm", "gs://BUCKET/lm") if settings.lm else None,
        train=words,
        uploads=uploads,
        spot=settings.spot,
        infra=settings.infra,
        idle_minutes=settings.idle_minutes,
    )
    job = Launch(file, task_text(plan), name, settings.spot)
    atomic_write(file, job.text.encode())
    return job


def _check_ours(file: Path) -> None:
    """Raise CloudError for a file that `launch` did not write."""
    try:
        if file.exists() and not file.read_text().startswith(HEADER):
            raise CloudError(
                "is there, and is no task file of ours", where=file, fix="give another --file"
            )
    except (OSError, UnicodeDecodeError):
        raise CloudError(
            "is there, and cannot be read", where=file, fix="give another --file"
        ) from None


def _check_infra(infra: str | None, tpu: bool) -> None:
    if infra is None:
        return
    if not re.fullmatch(r"[a-z0-9]+(/[a-z0-9-]+){0,2}", infra):
        raise CloudError(
            f"--infra is {infra!r}",
            fix="write CLOUD, CLOUD/REGION or CLOUD/REGION/ZONE: gcp/us-west4",
        )
    if tpu and infra.split("/")[0] != "gcp":
        raise CloudError(
            f"--infra is {infra!r}, and TPUs are Google Cloud's", fix="write gcp, or gcp/REGION"
        )


def _train_arguments(
    config: str | Path, overrides: tuple[str, ...], plugins: tuple[str | Path, ...], name: str
) -> tuple[tuple[str, ...], dict[str, Path]]:
    """Return the arguments of `cortext train`, quoted, and the files to upload by target path.

    Raises ConfigError as training would.
    """
    from cortext.training import read_train_config

    load_plugins(plugins)
    read_train_config(config, overrides)
    uploads: dict[str, Path] = {}
    words = ["--config", shlex.quote(str(config))]
    if Path(config).is_file():
        target = f"{HOME}/config/{name}/config.yaml"
        uploads[target] = Path(config).resolve()
        words[1] = here(target)
    for number, plugin in enumerate(plugins):
        target = f"{HOME}/config/{name}/plugin_{number}.py"
        uploads[target] = Path(plugin).resolve()
        words += ["--plugin", here(target)]
    for override in overrides:
        words += ["--set", shlex.quote(override)]
    return tuple(words), uploads
