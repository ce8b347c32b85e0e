"""Fixtures that several packages' tests share."""

import gc
import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_server import serve
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test cuts the power: what is written is there for every process, and waiting for the disk would
# take a tenth of the time. A descriptor that is closed is still an error.
os.fsync = os.fstat
# Nearly all that is made until the tests begin stays: a fifth of the time to collect them went into
# looking for garbage.
gc.disable()
# What runs in the background of a script ignores Ctrl-C, and so would every program that a test
# starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# An example takes as long as a machine with other work lets it; what must be fast is measured where
# that is said.
settings.register_profile("cortext", deadline=None)
settings.load_profile("cortext")
ROOT = Path(__file__).resolve().parents[1]


LENGTHY = (
    "test_demo.py",
    "test_docs.py",
    "test_against_flashlight.py",
    "test_processes.py",
    "test_browser.py",
    "test_long_use.py",
    "test_browser_accessible.py",
    "test_browser_participant.py",
    "test_engine_robust.py",
    "test_speech_llm.py",
    "test_cluster.py",
    "test_overfit.py",
    "test_demo_frames.py",
    "test_cli_cache.py",
    "test_notebook.py",
    "test_keep.py",
)
"""Files whose slow tests take half a minute and more, the longest first."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that processes which share the tests end together.

    Coverage counts what behaves as it should: with it, attacks of a megabyte take three times as
    long. Tests of what is compiled have nothing to count.
    """
    items.sort(
        key=lambda item: (
            LENGTHY.index(item.path.name) if item.path.name in LENGTHY else len(LENGTHY)
        )
    )
    for item in items:
        if {"attacks", "native"} & set(item.path.parts):
            item.add_marker("no_cover")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Tests stay until the end: the collector of garbage need not look at them each time."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What needs a CUDA device is skipped where there is none."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory of real recordings and texts.

    Tests that need it are skipped where it is absent.
    """
    path = Path(os.environ.get("CORTEXT_REAL_DATA", ROOT.parent / "shared" / "data"))
    if not path.is_dir():
        pytest.skip(f"no real data at {path}; set CORTEXT_REAL_DATA")
    return path


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for the PATH: its `cortext` and `python -c` have loaded the package already.

    The one that users start is started by tests/data/test_demo.py.
    """
    with serve(tmp_path_factory.mktemp("commands") / "bin") as folder:
        yield folder


@pytest.fixture(scope="module")
def two_workers() -> Iterator[Any]:
    """A Ray cluster of two workers on this machine."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield ray
        ray.shutdown()
