"""The number of cores of a process, and what OpenMP gets before torch is loaded."""

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cortext
from cortext.cores import SPINS, available_cores, container_quota

SOURCES = Path(cortext.__file__).parents[1]
PACKAGES = sorted(path.parent.name for path in SOURCES.glob("cortext_*/__init__.py"))


def _groups(root: Path, own: str, files: dict[str, str]) -> dict[str, Path]:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "own").write_text(own)
    return {"cgroups": root, "own": root / "own"}


V1 = "12:memory:/docker/ab\n4:cpu,cpuacct:/docker/ab\n1:name=systemd:/docker/ab\n"


@pytest.mark.parametrize(
    ("own", "files", "cores"),
    [
        pytest.param("0::/\n", {"cpu.max": "150000 100000\n"}, 1.5, id="docker"),
        pytest.param("0::/\n", {"cpu.max": "max 100000\n"}, math.inf, id="no limit"),
        pytest.param("0::/\n", {}, math.inf, id="not mounted"),
        pytest.param(
            "0::/user/job\n",
            {"user/job/cpu.max": "max 100000\n", "user/cpu.max": "200000 50000\n"},
            4.0,
            id="a group around it has the limit",
        ),
        pytest.param(
            "0::/user/job\n",
            {"user/job/cpu.max": "50000 100000\n", "user/cpu.max": "200000 100000\n"},
            0.5,
            id="the smaller of two limits",
        ),
        pytest.param(
            V1,
            {
                "cpu,cpuacct/docker/ab/cpu.cfs_quota_us": "300000\n",
                "cpu,cpuacct/docker/ab/cpu.cfs_period_us": "100000\n",
            },
            3.0,
            id="version 1",
        ),
        pytest.param(
            V1,  # the path is that of the machine, and the container sees its own group as the root
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "100000\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            1.0,
            id="version 1 within the container",
        ),
        pytest.param(
            V1,
            {
                "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
                "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            math.inf,
            id="version 1 without a limit",
        ),
        pytest.param("0::/\n", {"cpu.max": "nonsense\n"}, math.inf, id="unreadable"),
        pytest.param("nonsense", {"cpu.max": "100000 100000\n"}, math.inf, id="no groups named"),
    ],
)
def test_the_quota_of_a_container_is_read(
    tmp_path: Path, own: str, files: dict[str, str], cores: float
) -> None:
    assert container_quota(**_groups(tmp_path, own, files)) == cores


def _prints(code: str, **environment: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_"))}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=clean | environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_a_process_on_one_core_counts_one() -> None:
    first = min(os.sched_getaffinity(0))
    code = (
        f"import os; os.sched_setaffinity(0, [{first}]); from cortext.cores import available_cores;"
        " print(available_cores())"
    )
    assert _prints(code) == "1"
    assert 1 <= available_cores() <= (os.cpu_count() or 1)


def test_idle_threads_leave_their_cores_soon_and_the_user_decides() -> None:
    code = "import os, cortext; print(os.environ.get('GOMP_SPINCOUNT'))"
    assert _prints(code) == SPINS
    assert _prints(code, GOMP_SPINCOUNT="7") == "7"
    assert _prints(code, OMP_WAIT_POLICY="ACTIVE") == "None"


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_prepares_the_threads_before_its_modules_load_torch(package: str) -> None:
    code = f"import os, sys, {package}; print(os.environ['GOMP_SPINCOUNT'], 'torch' in sys.modules)"
    assert _prints(code) == f"{SPINS} False"


def test_import_loads_no_program_that_would_need_the_number_before() -> None:
    code = "import sys, cortext; print([n for n in ('torch', 'numpy') if n in sys.modules])"
    assert _prints(code) == "[]"
