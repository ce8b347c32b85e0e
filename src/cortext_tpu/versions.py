"""Versions of the libraries that train, and known clashes between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from cortext.provenance import version_of

PACKAGES = (
    "cortext",
    "torch",
    "numpy",
    "jax",
    "jaxlib",
    "torchax",
    "libtpu",
    "tensorflow",
    "tensorflow-tpu",
    "keras",
    "torch_tpu",
    "torch_xla",
)
PINS_LIBTPU = ("jax", "tensorflow-tpu", "torch_tpu")
"""Packages that each need certain versions of libtpu; only one version can be installed.

torch_tpu trains nothing here, but may be installed beside the others.
"""


def installed(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of the installed ones among the packages, by name."""
    by_name = {}
    for name in packages:
        try:
            by_name[name] = str(version_of(name))
        except metadata.PackageNotFoundError:
            continue
    return by_name


def libtpu_pins(
    requires: Callable[[str], list[str] | None] = metadata.requires,
) -> dict[str, SpecifierSet]:
    """Return the versions of libtpu that each installed package of `PINS_LIBTPU` needs, by name."""
    pins = {}
    for name in PINS_LIBTPU:
        try:
            lines = requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for line in lines:
            try:
                needed = Requirement(line)
            except InvalidRequirement:
                continue
            if needed.name == "libtpu" and (
                needed.marker is None or needed.marker.evaluate({"extra": "tpu"})
            ):
                pins[name] = needed.specifier
    return pins


def clashes(versions: Mapping[str, str], pins: Mapping[str, SpecifierSet]) -> list[str]:
    """Return a line, with a remedy, for each known clash between installed packages."""
    have = {}
    lines = []
    for name, version in versions.items():
        try:
            have[name] = Version(version)
        except InvalidVersion:
            problem = f"what is installed of {name} is damaged: its version is {version!r}"
            lines.append(f"{problem}; pip install --force-reinstall {name}")
    torch = have.get("torch", Version("0"))
    if "torch_xla" in have and torch.release[:2] > have["torch_xla"].release[:2]:
        problem = (
            f"torch_xla {versions['torch_xla']} does not import with torch {versions['torch']}"
        )
        lines.append(
            f"{problem}, and there is no newer one; pip uninstall torch_xla (nothing here uses it)"
        )
    if "torchax" in have and have["torchax"] <= Version("0.0.13") and torch >= Version("2.13"):
        problem = f"torchax {versions['torchax']} does not work with torch {versions['torch']}"
        lines.append(f"{problem}; pip install --pre --upgrade 'torchax>=0.0.14.dev20261026'")
    libtpu = have.get("libtpu")
    for name, pin in pins.items():
        # torch_tpu always needs libtpu; jax and tensorflow-tpu need it only to use a TPU.
        if libtpu is not None and not pin.contains(libtpu, prereleases=True):
            problem = (
                f"{name} {versions[name]} needs libtpu{pin}, and libtpu {versions['libtpu']} is"
                " installed"
            )
            lines.append(f"{problem}; give each backend an environment of its own")
    return lines


def tensorflow_without_tpu(versions: Mapping[str, str], chips: int) -> str | None:
    """Return a line if a TPU is attached and TensorFlow's build cannot use it; None otherwise."""
    if not chips or "tensorflow" not in versions or "tensorflow-tpu" in versions:
        return None
    return (
        f"tensorflow {versions['tensorflow']} is built without TPUs; pip install tensorflow-tpu in"
        " its place"
    )
