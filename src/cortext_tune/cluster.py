"""Ray clusters: joining one and leaving it."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from cortext.cores import available_cores
from cortext.errors import ConfigError, RunError, first_line
from cortext.extras import need
from cortext.processes import interrupts


class Cluster:
    """A Ray cluster that this process has joined.

    Every machine must see the same files under the same paths.

    Attributes:
        address: Address of the cluster, or `local` to start one on this machine; where the process
            is in a cluster already, that one is used, and not left.
        cpus: Cores of a `local` cluster; those of the machine where it has more.
        gpus: GPUs for a task: a part of one, or whole ones.
        ray: The library.

    Raises:
        MissingLibrary: Where Ray is not installed.
        ConfigError: For more GPUs than there are.
        RunError: Where the cluster cannot be reached.
    """

    def __init__(self, address: str, cpus: int = 1, gpus: float = 0) -> None:
        if gpus < 0 or (gpus > 1 and gpus != int(gpus)):
            raise ConfigError(
                f"a task is given {gpus:g} GPUs; up to 1, or a whole number is needed"
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray would report every use
        self.ray = need("ray", "ray")
        _check_reachable(address)
        self._joined = not self.ray.is_initialized()
        if self._joined:
            self._join(address, cpus)
        # Tasks that ask for more than there is would wait for ever.
        if gpus and address == "local" and self.ray.cluster_resources().get("GPU", 0) < gpus:
            self.leave()
            fix = "ask for less, or work on a processor"
            raise ConfigError(
                f"a task is to be given {gpus:g} GPUs, and this machine has none to give", fix=fix
            )

    def _join(self, address: str, cpus: int) -> None:
        here = (
            {"num_cpus": max(cpus, available_cores()), "include_dashboard": False}
            if address == "local"
            else {}
        )
        # A Ctrl-C in the middle of joining would crash the process.
        with interrupts((signal.SIGINT,)) as interrupted:
            try:
                self.ray.init(address, log_to_driver=False, logging_level="ERROR", **here)
            except (OSError, RuntimeError, ValueError) as error:
                raise RunError(
                    f"Ray at {address!r} cannot be reached: {first_line(error)}",
                    fix="check the address",
                ) from None
        if interrupted.is_set():
            self.leave()
            raise KeyboardInterrupt

    @property
    def cpus(self) -> int:
        """Processors of all its machines."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def leave(self) -> None:
        """End this program's tasks, and a cluster that was started for them."""
        if self._joined:
            self.ray.shutdown()


@contextmanager
def joined(address: str, cpus: int = 1, gpus: float = 0) -> Iterator[Cluster]:
    """Join a cluster for the context, and leave it at the end.

    Args:
        address: See `Cluster`, as for all arguments and errors.
        cpus: See `Cluster`.
        gpus: See `Cluster`.
    """
    cluster = Cluster(address, cpus, gpus)
    try:
        yield cluster
    finally:
        cluster.leave()


def _check_reachable(address: str, patience_s: float = 5) -> None:
    """Raise RunError where nothing listens at `host:port`: Ray would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), patience_s).close()
    except (OSError, OverflowError) as error:
        raise RunError(
            f"Ray at {address!r} cannot be reached: {error}", fix="check the address"
        ) from None
