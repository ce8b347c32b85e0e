"""The doctor: what it says of backends that work, crash or hang, of versions, variables and
hugepages.
"""

import json
import os
import time
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

from cortext.cli import run as cortext
from cortext.data import open_packed
from cortext.entry_points import joined
from cortext.errors import RunError
from cortext_bench import doctor
from cortext_bench.doctor import ProbeAnswer, ask, examine, take_steps
from cortext_live.steps.processor import describe_int8, describe_vectors
from cortext_tpu import versions
from cortext_tpu.find import Found
from cortext_tpu.probe import MODELS, PROBES
from cortext_tpu.system import ENABLE_HUGEPAGES, hugepages, variables
from cortext_tpu.versions import clashes, libtpu_pins, tensorflow_without_tpu

# Processes of backends compute on the CPU, whatever the machine has.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
CPU = {"kind": "cpu", "name": "a processor", "memory_gib": 8.0}
CHIP = {"kind": "tpu", "name": "TPU v5 lite", "memory_gib": 15.8}
ALL = {
    "torch": "2.13.0",
    "torchax": "0.0.14.dev20261026",
    "jax": "0.10.2",
    "tensorflow": "2.21.0",
    "keras": "3.15.1",
}
V5E = Found("kaggle", "local", True, 8, "v5e", libtpu="/lib/libtpu.so")


@pytest.fixture
def machine(monkeypatch):
    """A machine by what is installed on it and by the TPU that is found."""

    def make(have: dict[str, str], found: Found = Found()) -> None:
        monkeypatch.setattr(versions, "installed", lambda: have)
        monkeypatch.setattr(versions, "libtpu_pins", dict)
        monkeypatch.setattr(doctor, "find_tpu", lambda name, env: found)

    return make


def answers(devices: dict[str, list | str]):
    """An `ask` whose backends have these devices, or this problem."""
    return lambda request, env, limit_s: (
        ProbeAnswer([], found)
        if isinstance(found := devices[request["backend"]], str)
        else ProbeAnswer([found])
    )


# --- backends
# ---------------------------------------------------------------------------------------------------------


def test_every_backend_that_trains_is_asked():
    assert set(PROBES) == {"torch", *(entry.name for entry in joined("cortext.backends"))}


def test_only_what_is_installed_is_asked(machine):
    machine({"torch": "2.13.0", "jax": "0.10.2"})
    report = examine(ask=answers({"torch": [CPU]}))
    assert [(backend.name, backend.versions) for backend in report.backends] == [
        ("torch", {"torch": "2.13.0"})
    ]
    assert (report.broken, report.found) == ([], "no TPU")


def test_a_backend_that_does_not_start_takes_no_other_with_it(machine):
    machine(ALL)
    report = examine(
        ask=answers({"torch": [CPU], "torchax": "ImportError: no (status 1)", "tensorflow": [CPU]})
    )
    assert [backend.devices for backend in report.backends] == [[CPU], [], [CPU]]
    assert report.broken == ["torchax does not start: ImportError: no (status 1)"]


def test_a_crash_is_reported_with_its_signal(tmp_path, monkeypatch, machine):
    (tmp_path / "tensorflow.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "torch.py").write_text(
        "from types import SimpleNamespace\ncuda = SimpleNamespace(device_count=lambda: 0)\n"
    )
    machine({"torch": "2.13.0", "tensorflow": "2.21.0", "keras": "3.15.1"})
    report = examine()
    assert [len(backend.devices) for backend in report.backends] == [1, 0]
    assert report.broken == ["tensorflow does not start: nothing was said (signal 11)"]


def test_an_error_is_reported_by_its_last_line(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libfoo.so.1 is missing')\n")
    answer = ask(
        {"do": "devices", "backend": "torch", "tpu": None}, {"PYTHONPATH": str(tmp_path)}, 60
    )
    assert answer == ProbeAnswer([], "ImportError: libfoo.so.1 is missing (status 1)")


def test_what_a_library_writes_to_stdout_is_no_answer(tmp_path):
    (tmp_path / "torch.py").write_text(
        "print('[libfoo] {hello}')\nprint('{')\nraise ImportError('no')\n"
    )
    answer = ask(
        {"do": "devices", "backend": "torch", "tpu": None}, {"PYTHONPATH": str(tmp_path)}, 60
    )
    assert answer == ProbeAnswer([], "ImportError: no (status 1)")
    (tmp_path / "torch.py").write_text(
        "import sys\nfrom types import SimpleNamespace\nsys.stdout.write('[libfoo] no end of"
        " line')\ncuda = SimpleNamespace(device_count=lambda: 0)\n"
    )
    (devices,) = ask(
        {"do": "devices", "backend": "torch", "tpu": None}, {"PYTHONPATH": str(tmp_path)}, 60
    ).values
    assert [device["kind"] for device in devices] == ["cpu"]


def test_a_backend_that_ends_without_an_answer_is_broken(tmp_path):
    (tmp_path / "torch.py").write_text("import os\nos._exit(0)\n")
    answer = ask(
        {"do": "devices", "backend": "torch", "tpu": None}, {"PYTHONPATH": str(tmp_path)}, 60
    )
    assert answer == ProbeAnswer([], "nothing was said (status 0)")


def test_a_backend_that_hangs_is_ended_with_what_it_has_started(tmp_path):
    (tmp_path / "torch.py").write_text(
        "import pathlib, subprocess\n"
        "sleep = subprocess.Popen(['sleep', '300'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(sleep.pid))\n"
        "sleep.wait()\n"
    )
    started = time.monotonic()
    answer = ask(
        {"do": "devices", "backend": "torch", "tpu": None}, {"PYTHONPATH": str(tmp_path)}, 3
    )
    assert answer == ProbeAnswer([], "no answer within 3 s")
    assert time.monotonic() - started < 20
    pid = int((tmp_path / "pid").read_text())
    while is_running(pid):  # the kernel may need a moment to end it
        assert time.monotonic() - started < 20
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Tell whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_chips_that_no_backend_sees_are_broken(machine):
    machine(ALL, V5E)
    assert (
        examine(ask=answers({"torch": [CPU], "torchax": [CHIP] * 8, "tensorflow": [CPU]})).broken
        == []
    )
    report = examine(ask=answers({"torch": [CPU], "torchax": [CPU], "tensorflow": [CPU]}))
    assert report.broken == ["there are 8 TPU chips, and no installed backend sees them"]


def test_one_host_of_several_gets_the_note_that_they_start_together(machine):
    machine(
        {"torch": "2.13.0"}, Found("gke", "local", True, 8, "v5e", ("a", "b"), 1, "/lib/libtpu.so")
    )
    advice = examine(ask=answers({"torch": [CHIP]})).advice
    assert "this is one of 2 hosts, which start together: run the doctor on all at once" in advice


def test_a_wrong_name_is_a_line_of_the_report(monkeypatch):
    monkeypatch.setattr(versions, "installed", lambda: {"torch": "2.13.0"})
    report = examine(env={"TPU_NAME": "v5e-8"}, ask=answers({"torch": [CPU]}))
    assert report.broken[0].startswith(
        "TPU_NAME is 'v5e-8', which is a kind of TPU and not the name of one"
    )


# --- steps
# -----------------------------------------------------------------------------------------------------------


def steps_of(machine, devices, told, device=None):
    machine(ALL)
    asked = []

    def step(request, env, limit_s):
        asked.append((request["backend"], request["kind"], dict(env)))
        assert open_packed(Path(request["data"])).n_features == 2 * doctor.DATA["n_electrodes"]
        return told

    report = examine(ask=answers(devices))
    return take_steps(report, device, ask=step), asked


@pytest.fixture
def few_electrodes(monkeypatch):
    monkeypatch.setitem(doctor.DATA, "n_electrodes", 4)


def test_every_backend_takes_a_step_on_every_kind_of_device(machine):
    assert doctor.DATA["n_electrodes"] == 256  # 512 features, as in the published recordings
    devices = {"torch": [CPU, CPU | {"kind": "cuda"}], "torchax": [CHIP] * 8, "tensorflow": [CPU]}
    told = {"device": "it", "cores": 8, "loss": 200.0, "seconds": 1.0}
    done = ProbeAnswer([{"model": "gru", **told}, {"model": "triple_gru", **told}])
    steps, asked = steps_of(machine, devices, done)
    assert [(backend, kind) for backend, kind, _ in asked] == [
        ("torch", "cpu"),
        ("torch", "cuda"),
        ("torchax", "tpu"),
        ("tensorflow", "cpu"),
    ]
    assert [step.model for step in steps] == ["gru", "triple_gru"] * 4
    assert {step.problem for step in steps} == {None}
    assert (steps[0].cores, steps[0].loss) == (8, 200.0)


def test_a_step_may_be_asked_of_one_kind_only(machine, few_electrodes):
    devices = {"torch": [CPU, CPU | {"kind": "cuda"}], "torchax": [CPU], "tensorflow": "broken"}
    _, asked = steps_of(machine, devices, ProbeAnswer([]), device="cpu")
    assert [(backend, kind) for backend, kind, _ in asked] == [("torch", "cpu"), ("torchax", "cpu")]
    # Or JAX would look for a TPU, which is not there.
    assert asked[1][2] == {"JAX_PLATFORMS": "cpu"}
    assert steps_of(machine, devices, ProbeAnswer([]), device="tpu") == ([], [])


def test_what_was_finished_before_a_crash_counts(machine, few_electrodes):
    devices = {"torch": [CPU], "torchax": "broken", "tensorflow": "broken"}
    told = ProbeAnswer(
        [{"model": "gru", "device": "cpu", "cores": 1, "loss": 3.0, "seconds": 1.0}],
        "killed (signal 9)",
    )
    steps, _ = steps_of(machine, devices, told)
    assert [(step.model, step.loss, step.problem) for step in steps] == [
        ("gru", 3.0, None),
        ("triple_gru", None, "killed (signal 9)"),
    ]


def steps_here(backend: str) -> dict[tuple[str, str], doctor.DoctorStep]:
    """Real steps with torch and another backend on what it really sees, by backend and model."""
    (devices,) = ask({"do": "devices", "backend": backend, "tpu": None}, {}, 100).values
    backends = [
        doctor.InstalledBackend("torch", {}, [CPU]),
        doctor.InstalledBackend(backend, {}, devices),
    ]
    report = doctor.DoctorReport([], "no TPU", {}, backends, hugepages(None), [], [])
    return {(step.backend, step.model): step for step in take_steps(report, "cpu", limit_s=200)}


@pytest.mark.slow
def test_torch_takes_a_step_of_each_model_and_leaves_a_tpu_alone(capsys):
    command = ["doctor", "--run", "--device", "cpu", "--json", "--tpu", "grpc://127.0.0.1:9"]
    assert cortext(command) == 0
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [(step["model"], step["backend"], step["cores"]) for step in steps[:2]] == [
        ("gru", "torch", 1),
        ("triple_gru", "torch", 1),
    ]
    assert all(step["loss"] > 0 for step in steps)


@pytest.mark.tpu
def test_torchax_takes_a_step_of_each_model_on_all_cores(monkeypatch):
    pytest.importorskip("torchax", reason="run `make test-tpu`")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
    steps = steps_here("torchax")
    for model in MODELS:
        told = steps["torchax", model]
        assert (told.cores, told.problem) == (8, None)
        # Other noise, the same model and batch.
        assert told.loss == pytest.approx(steps["torch", model].loss, rel=0.05)


@pytest.mark.tf
def test_tensorflow_takes_a_step_of_each_model():
    pytest.importorskip("tensorflow", reason="run `make test-tf`")
    steps = steps_here("tensorflow")
    for model in MODELS:
        told = steps["tensorflow", model]
        assert (told.cores, told.problem) == (1, None)
        assert told.loss == pytest.approx(steps["torch", model].loss, rel=0.05)


# --- versions
# --------------------------------------------------------------------------------------------------------


def test_versions_that_go_together_are_not_mentioned():
    assert clashes(ALL | {"libtpu": "0.0.42.1"}, {"jax": SpecifierSet("==0.0.42.*")}) == []


@pytest.mark.parametrize(
    ("have", "line"),
    [
        (
            {"torch": "2.13.0+cpu", "torch_xla": "2.9.0"},
            "torch_xla 2.9.0 does not import with torch 2.13.0+cpu",
        ),
        (
            {"torch": "2.13.0", "torchax": "0.0.13"},
            "torchax 0.0.13 does not work with torch 2.13.0",
        ),
    ],
)
def test_known_clashes_are_reported(have, line):
    (told,) = clashes(have, {})
    assert told.startswith(line)
    assert "pip " in told


@pytest.mark.parametrize("version", ["None", "nonsense"])
def test_a_damaged_installation_is_reported(version):
    (told,) = clashes({"torch": "2.13.0", "jax": version}, {})
    assert told.startswith(f"what is installed of jax is damaged: its version is '{version}'")


def test_older_versions_that_work_are_left_in_peace():
    assert clashes({"torch": "2.9.1", "torch_xla": "2.9.0"}, {}) == []
    assert clashes({"torch": "2.12.0", "torchax": "0.0.13"}, {}) == []


def test_two_that_want_different_versions_of_libtpu_clash():
    have = ALL | {"torch_tpu": "0.2.0", "libtpu": "0.0.50"}
    pins = {"jax": SpecifierSet("==0.0.42.*"), "torch_tpu": SpecifierSet(">=0.0.50")}
    (told,) = clashes(have, pins)
    assert told.startswith("jax 0.10.2 needs libtpu==0.0.42.*, and libtpu 0.0.50 is installed")


def test_pins_are_read_from_what_packages_require():
    lines = {
        "jax": ["numpy>=2.0", 'libtpu==0.0.42.*; extra == "tpu"', 'kubernetes; extra == "k8s"'],
        "tensorflow-tpu": [],
        "torch_tpu": ["libtpu>=0.0.50", "torch<=2.15.0,>=2.11.0"],
    }
    assert libtpu_pins(lambda name: lines[name]) == {
        "jax": SpecifierSet("==0.0.42.*"),
        "torch_tpu": SpecifierSet(">=0.0.50"),
    }


def test_tensorflow_needs_another_build_for_a_tpu():
    assert "pip install tensorflow-tpu" in tensorflow_without_tpu({"tensorflow": "2.21.0"}, chips=8)
    assert tensorflow_without_tpu({"tensorflow": "2.21.0"}, chips=0) is None
    assert (
        tensorflow_without_tpu({"tensorflow": "2.20.0", "tensorflow-tpu": "2.20.0"}, chips=8)
        is None
    )


# --- the system
# ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "generation", "state", "advised"),
    [
        ("always [madvise] never\n", "v5e", "madvise", True),
        ("always madvise [never]\n", "v6e", "never", True),
        ("[always] madvise never\n", "v5e", "always", False),
        ("always [madvise] never\n", "v3", "madvise", False),
        ("always [madvise] never\n", None, "madvise", False),
        (None, "v5e", None, False),
        ("\udcff always", "v5e", None, False),
    ],
)
def test_hugepages_are_advised_for_newer_tpus(tmp_path, text, generation, state, advised):
    path = tmp_path / "enabled"
    if text is not None:
        path.write_text(text, errors="surrogateescape")
    pages = hugepages(generation, path)
    assert (pages.state, pages.advice is not None) == (state, advised)
    assert not advised or ENABLE_HUGEPAGES in pages.advice


def test_the_command_is_the_one_that_jax_tells():
    assert (
        ENABLE_HUGEPAGES == 'sudo sh -c "echo always > /sys/kernel/mm/transparent_hugepage/enabled"'
    )


def test_variables_of_older_scripts_are_named():
    lines = variables(
        {
            "XLA_USE_BF16": "1",
            "XRT_TPU_CONFIG": "localservice;0;localhost:51011",
            "XLA_FLAGS": "-x",
        },
        0,
    )
    assert [line.partition(" changes")[0] for line in lines] == [
        "XLA_USE_BF16=1",
        "XRT_TPU_CONFIG=localservice;0;localhost:51011",
    ]
    assert "--precision bf16" in lines[0]


def test_variables_that_hide_chips_are_named_where_there_are_some():
    env = {"TPU_VISIBLE_CHIPS": "0", "JAX_PLATFORMS": "cpu"}
    assert variables(env, chips=0) == []
    assert variables(env, chips=8) == [
        "TPU_VISIBLE_CHIPS=0 hides chips from this process",
        "JAX_PLATFORMS=cpu hides the TPU from JAX; unset it",
    ]
    assert variables({"JAX_PLATFORMS": "tpu,cpu"}, chips=8) == []


# --- the command
# --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("problem", "status"), [(None, 0), ("ImportError: no (status 1)", 1)])
def test_the_status_says_whether_something_is_broken(machine, monkeypatch, capsys, problem, status):
    machine({"torch": "2.13.0", "torch_xla": "2.9.0"})
    monkeypatch.setattr(
        examine,
        "__kwdefaults__",
        examine.__kwdefaults__ | {"ask": answers({"torch": problem or [CPU]})},
    )
    monkeypatch.setenv("XLA_USE_BF16", "1")
    assert cortext(["doctor"]) == status
    out = capsys.readouterr().out
    assert ("everything that is installed works" in out) == (status == 0)
    assert "advice: XLA_USE_BF16=1 changes nothing" in out  # which breaks nothing
    assert "advice: torch_xla 2.9.0 does not import with torch 2.13.0" in out
    assert cortext(["doctor", "--json"]) == status
    report = json.loads(capsys.readouterr().out)
    assert report["found"] == "no TPU"
    assert report["backends"][0]["problem"] == problem


def test_equal_devices_stand_in_one_line(machine, monkeypatch, capsys):
    machine({"torchax": "0.0.14.dev20261026", "jax": "0.10.2"}, V5E)
    monkeypatch.setattr(
        examine,
        "__kwdefaults__",
        examine.__kwdefaults__ | {"ask": answers({"torchax": [CHIP] * 8})},
    )
    assert cortext(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "8 x tpu: TPU v5 lite (15.8 GiB)" in out
    assert "found: 8 v5e chips on this machine (Kaggle)" in out


def test_brackets_in_what_was_found_are_shown_as_they_are(machine, monkeypatch, capsys):
    machine({"torch": "2.13.0"}, Found(looked=(("TPU_TOPOLOGY", "[/x] [red]2x4 :smile:"),)))
    monkeypatch.setattr(
        examine, "__kwdefaults__", examine.__kwdefaults__ | {"ask": answers({"torch": "no [/y]"})}
    )
    assert cortext(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "[/x] [red]2x4 :smile:" in out
    assert "no [/y]" in out


def test_the_report_says_what_the_processor_computes(machine, monkeypatch):
    machine({"torch": "2.13.0"})
    found = examine(ask=answers({"torch": [CPU]}))
    assert found.computes == [*describe_vectors(), describe_int8()]

    def fails():
        raise RunError("ONNX Runtime cannot multiply 8-bit matrices: no")

    monkeypatch.setattr(doctor, "describe_int8", fails)
    found = examine(ask=answers({"torch": [CPU]}))
    assert found.computes == describe_vectors()
    assert found.broken == ["ONNX Runtime cannot multiply 8-bit matrices: no"]


def test_the_report_says_how_each_gpu_trains(machine):
    machine({"torch": "2.13.0"})
    gpu = {
        "kind": "cuda",
        "name": "a GPU",
        "memory_gib": 80.0,
        "paths": ["CTC: ours", "step: whole"],
    }
    found = examine(ask=answers({"torch": [CPU, gpu, gpu]}))
    assert found.computes[-3] == describe_int8()
    assert found.computes[-2:] == ["a GPU: CTC: ours", "a GPU: step: whole"]
