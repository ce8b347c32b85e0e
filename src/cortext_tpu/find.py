"""Search for a TPU in options, environment variables, devices and the metadata server.

The search needs neither JAX nor TensorFlow. An address always comes from the user or from an
environment variable; none is guessed. The order is that of TensorFlow's cluster resolver (an
explicit name, GKE's endpoints, `TPU_NAME`), then that of JAX (`TPU_PROCESS_ADDRESSES`,
`TPU_WORKER_HOSTNAMES`, the metadata server).
"""

from __future__ import annotations

import os
import re
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException
from importlib import util
from pathlib import Path

from cortext.errors import RunError

GOOGLE = "0x1ae0"
GENERATIONS = {
    "0x0027": "v3",
    "0x005e": "v4",
    "0x0062": "v5p",
    "0x0063": "v5e",
    "0x006f": "v6e",
    "0x0076": "tpu7x",
}
"""Generations of Google's TPU chips by PCI device number, as JAX knows them (v2 has v3's)."""
PLATFORMS = {
    "kaggle": ("KAGGLE_KERNEL_RUN_TYPE", "ISTPUVM"),
    "colab": ("COLAB_TPU_1VM", "COLAB_RELEASE_TAG"),
    "gke": ("KUBERNETES_SERVICE_HOST",),
}
"""Environment variables that identify a platform; a machine with chips and none is a TPU VM."""
ADDRESSES = {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "gke", "COLAB_TPU_ADDR": "colab"}
"""Environment variables that hold addresses of TPUs on the network, and their platforms."""
VARIABLES = ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME", "COLAB_TPU_ADDR")
NAMES = {"kaggle": "Kaggle", "colab": "Colab", "gke": "GKE", "vm": "a TPU VM"}
GIVE = (
    "give --tpu a Cloud TPU's name (`gcloud compute tpus tpu-vm list`), grpc://HOST:8470, or local"
)


@dataclass(frozen=True)
class Found:
    """Result of a search: a TPU or none, and the places searched.

    Attributes:
        kind: `none`, `named` (a Cloud TPU's name), `grpc` (an address), `colab`, `kaggle`, `gke` or
            `vm`.
        address: Address for TensorFlow's cluster resolver: `grpc://...`, a name, or `local`; None
            without a TPU.
        attached: True if its chips belong to this machine; JAX can use no others.
        chips: Number of chips of this machine; 0 for none or an unknown number.
        generation: `v3`, `v5e` ...; None if it is not known.
        hosts: Hosts of the slice, in the order of their numbers; empty for this machine alone.
        worker: This machine's number among the hosts.
        libtpu: Path of the TPU's library; None if it is not installed.
        looked: Places searched, and what each holds.
    """

    kind: str = "none"
    address: str | None = None
    attached: bool = False
    chips: int = 0
    generation: str | None = None
    hosts: tuple[str, ...] = ()
    worker: int = 0
    libtpu: str | None = None
    looked: tuple[tuple[str, str], ...] = ()

    def describe(self) -> list[str]:
        """Return a line for each place searched, and a line for the result."""
        return [*(f"{what}: {there}" for what, there in self.looked), f"found: {self.summary}"]

    @property
    def summary(self) -> str:
        """Result of the search in a few words."""
        if self.address is None:
            return "no TPU"
        if not self.attached:
            return f"{self.address}, over the network"
        number = f"{self.chips} {self.generation or 'TPU'} chip{'s' if self.chips != 1 else ''}"
        host = f", worker {self.worker} of {len(self.hosts)}" if len(self.hosts) > 1 else ""
        return f"{number} on this machine ({NAMES.get(self.kind, self.kind)}{host})"

    def required(self, attached: bool = False) -> Found:
        """Return itself, or raise RunError if there is no TPU.

        Args:
            attached: Also require that the chips belong to this machine and that libtpu is
                installed, as JAX needs.
        """
        if self.address is None:
            fix = (
                "`cortext doctor` says what was looked at; use --device cpu or cuda, or a machine"
                " with a TPU"
            )
            raise RunError("no TPU found", fix=fix)
        if attached and not self.attached:
            problem = f"the TPU at {self.address} is reached over the network, which JAX cannot do"
            raise RunError(
                problem,
                fix="run on the TPU VM itself with --tpu local, or with --backend tensorflow",
            )
        if attached and self.libtpu is None:
            problem = f"{self.summary}, but libtpu is not installed"
            raise RunError(problem, fix="pip install 'jax[tpu]'")
        return self


def gce_metadata(path: str, timeout_s: float = 1.0) -> str | None:
    """Ask Google Cloud's metadata server about this machine (`instance/...`, `project/...`).

    Returns None elsewhere.
    """
    host = (
        os.environ.get("GCE_METADATA_HOST")
        or os.environ.get("GCE_METADATA_IP")
        or "169.254.169.254"
    )
    flavor = {"Metadata-Flavor": "Google"}
    # No proxy: it would answer for itself, not for this machine.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(f"http://{host}/computeMetadata/v1/{path}", headers=flavor)
        with direct.open(request, timeout=timeout_s) as answer:
            # Other networks answer at this address, too, for example with a hotel's login page.
            return (
                str(answer.read().decode())
                if flavor.items() <= dict(answer.headers).items()
                else None
            )
    except (OSError, ValueError, HTTPException):
        return None


def find_tpu(
    name: str | None = None,
    env: Mapping[str, str] = os.environ,
    *,
    root: Path = Path("/"),
    metadata: Callable[[str], str | None] = gce_metadata,
    find_spec: Callable[[str], object] = util.find_spec,
) -> Found:
    """Find the TPU that a name or the environment gives; docs/guides/tpu-find.md has a table.

    The metadata server is only asked for the hosts of a TPU VM, and for a name if no chips are
    attached.

    Args:
        name: Name or address of a TPU (`--tpu`); None looks for one.
        env: Environment variables.
        root: Directory of `dev` and `sys`. Tests give their own, as for the next two arguments.
        metadata: Function that asks the metadata server.
        find_spec: Function that finds a module.

    Raises:
        RunError: For a name that cannot be right, and for variables that contradict each other.
    """
    search = _TPUSearch(env, root, metadata, find_spec)
    machine = search.machine()
    asked = [("--tpu", name), *((variable, env.get(variable)) for variable in VARIABLES)]
    looked = [("--tpu", name or "not given")]
    looked += [(variable, env.get(variable) or "not set") for variable in VARIABLES]
    machine = replace(machine, looked=(*looked, *search.looked))
    for where, wanted in asked:
        if not wanted:
            continue
        if "://" in wanted or where in ADDRESSES:
            kind = ADDRESSES.get(where, "grpc")
            return Found(kind, _checked_address(where, wanted), looked=machine.looked)
        return _named(where, wanted, machine, metadata)
    return machine if machine.attached else Found(looked=machine.looked)


def _checked_address(where: str, text: str) -> str:
    """Return the text as `grpc://HOST:PORT`, or several with commas. Raises RunError for others."""
    addresses = [address.removeprefix("grpc://") for address in text.split(",")]
    for address in addresses:
        if not re.fullmatch(r"[\w.-]+(:\d+)?", address):
            raise RunError(f"{where} is {text!r}, and {address!r} is no address of a TPU", fix=GIVE)
    return ",".join(f"grpc://{address}" for address in addresses)


def _named(where: str, name: str, machine: Found, metadata: Callable[[str], str | None]) -> Found:
    """Return a Cloud TPU by name: this machine's chips for `local`, or if it has any."""
    if name == "local":
        if not machine.attached:
            problem = (
                f"{where} is 'local', and this machine has no TPU chips (/dev/accel*, /dev/vfio/*)"
            )
            raise RunError(problem, fix="run on the TPU VM itself, or leave it out")
        return machine
    if re.fullmatch(r"(v\d+(e|p|litepod)?|tpu7x)-\d+", name):
        raise RunError(
            f"{where} is {name!r}, which is a kind of TPU and not the name of one", fix=GIVE
        )
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?", name):
        raise RunError(f"{where} is {name!r}, which cannot be the name of a TPU", fix=GIVE)
    if machine.attached:
        return replace(machine, address=name if len(machine.hosts) > 1 else "local")
    if metadata("project/project-id") is None:
        problem = (
            f"{where} is {name!r}, and names are looked up in Google Cloud, which this machine is"
            " not part of"
        )
        raise RunError(
            problem,
            fix="give grpc://HOST:8470, or log in to the TPU VM and run there with --tpu local",
        )
    return Found("named", name, looked=machine.looked)


class _TPUSearch:
    """A search for this machine's own TPU chips; `looked` lists the places searched."""

    def __init__(
        self, env: Mapping[str, str], root: Path, metadata: Callable, find_spec: Callable
    ) -> None:
        self.env = env
        self.root = root
        self.metadata = metadata
        self.find_spec = find_spec
        self.looked: list[tuple[str, str]] = []

    def machine(self) -> Found:
        """Find the chips of this machine; without any, `attached` is False."""
        chips, generation = self._chips()
        libtpu = self._libtpu()
        kind = next(
            (
                kind
                for kind, names in PLATFORMS.items()
                if any(self.env.get(name) for name in names)
            ),
            "vm",
        )
        hosts, worker = self._slice(kind, chips > 0)
        address = "local" if chips else None
        return Found(kind, address, chips > 0, chips, generation, hosts, worker, libtpu)

    def _chips(self) -> tuple[int, str | None]:
        """Return the number of TPU chips (devices, or on the PCI bus), and their generation."""
        accel = [
            path.name
            for path in self.root.glob("dev/accel*")
            if re.fullmatch(r"accel\d+", path.name)
        ]
        vfio = [path.name for path in self.root.glob("dev/vfio/*") if path.name.isdecimal()]
        numbers = []
        for vendor in self.root.glob("sys/bus/pci/devices/*/vendor"):
            if (
                _read(vendor) == GOOGLE
                and (number := _read(vendor.with_name("device"))) in GENERATIONS
            ):
                numbers.append(number)
        self._note("/dev/accel*", f"{len(accel)} devices" if accel else "none")
        self._note("/dev/vfio/*", f"{len(vfio)} devices" if vfio else "none")
        self._note(
            "PCI bus",
            f"{len(numbers)} TPU chips ({GENERATIONS[numbers[0]]})" if numbers else "no TPU chips",
        )
        kind = self.env.get("TPU_ACCELERATOR_TYPE", "")
        self._note("TPU_ACCELERATOR_TYPE", kind or "not set")
        self._note("TPU_TOPOLOGY", self.env.get("TPU_TOPOLOGY") or "not set")
        generation = (
            GENERATIONS[numbers[0]]
            if numbers
            else kind.replace("litepod", "e").partition("-")[0] or None
        )
        # Other machines have such devices, too, such as graphics cards passed to a guest.
        is_tpu = bool(numbers or kind or (accel and self.find_spec("libtpu")))
        return (len(accel) or len(vfio) or len(numbers), generation) if is_tpu else (0, None)

    def _note(self, thing: str, there: str) -> None:
        self.looked.append((thing, there))

    def _libtpu(self) -> str | None:
        given = self.env.get("TPU_LIBRARY_PATH")
        spec = self.find_spec("libtpu")
        if given and os.path.isfile(self.root / given.lstrip("/")):  # noqa: PTH113 # Path's raises for a long name
            library: str | None = given
        else:
            library = str(getattr(spec, "origin", None) or "installed") if spec else None
        self._note("libtpu", library or "not installed")
        return library

    def _slice(self, kind: str, attached: bool) -> tuple[tuple[str, ...], int]:
        """Return the hosts of the slice, and this host's number among them."""
        addresses, names = (
            self.env.get("TPU_PROCESS_ADDRESSES", ""),
            self.env.get("TPU_WORKER_HOSTNAMES", ""),
        )
        number = self.env.get("TPU_WORKER_ID") or self.env.get("CLOUD_TPU_TASK_ID") or ""
        self._note("TPU_PROCESS_ADDRESSES", addresses or "not set")
        self._note("TPU_WORKER_HOSTNAMES", names or "not set")
        self._note("TPU_WORKER_ID", number or "not set")
        if (
            not (addresses or names)
            and attached
            and kind == "vm"
            and not self.env.get("TPU_SKIP_MDS_QUERY")
        ):
            endpoints = self.metadata("instance/attributes/worker-network-endpoints") or ""
            names = ",".join(endpoint.rpartition(":")[2] for endpoint in endpoints.split(","))
            number = number or self.metadata("instance/attributes/agent-worker-number") or ""
            self._note(
                "metadata server",
                f"worker {number or 0} of {names}" if names else "says nothing of a slice",
            )
        hosts = tuple(host.partition(":")[0] for host in (addresses or names).split(",") if host)
        if not attached:
            return (), 0
        alone = hosts in ((), ("local",), ("localhost",))
        if not re.fullmatch(r"\d{0,6}", number) or (not alone and int(number or 0) >= len(hosts)):
            problem = (
                f"TPU_WORKER_ID is {number!r}, and there are {len(hosts) or 1} hosts"
                f" ({', '.join(hosts)})"
            )
            raise RunError(
                problem, fix="it counts them from 0; set it and TPU_WORKER_HOSTNAMES together"
            )
        return ((), 0) if alone else (hosts, int(number or 0))


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
