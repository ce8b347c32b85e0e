"""Where a TPU is found.

Environments as Kaggle, Colab, GKE and TPU VMs set them up, and what users get wrong.
"""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cortext.errors import RunError
from cortext_tpu.cores import check_cores, check_platform, cores_line
from cortext_tpu.find import GENERATIONS, Found, find_tpu, gce_metadata

KAGGLE = {
    "KAGGLE_KERNEL_RUN_TYPE": "Interactive",
    "ISTPUVM": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_PROCESS_ADDRESSES": "local",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_SKIP_MDS_QUERY": "1",
}
COLAB = {"COLAB_TPU_1VM": "1", "TPU_ACCELERATOR_TYPE": "v5e-1", "TPU_WORKER_HOSTNAMES": "localhost"}
GKE = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_TOPOLOGY": "4x4",
    "TPU_WORKER_ID": "2",
    "TPU_WORKER_HOSTNAMES": "job-0.tpu,job-1.tpu,job-2.tpu,job-3.tpu",
}


class Machine:
    """A machine made of files: device nodes and PCI devices."""

    def __init__(self, root: Path) -> None:
        self.root, self.libtpu, self.asked = root, False, []
        self.says: dict[str, str] = {}

    def devices(self, pattern: str, count: int) -> "Machine":
        for number in range(count):
            path = self.root / "dev" / pattern.format(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return self

    def pci(self, vendor: str, device: str, count: int) -> "Machine":
        for number in range(count):
            folder = self.root / "sys/bus/pci/devices" / f"0000:00:{device[-2:]}.{number}"
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(vendor + "\n")
            (folder / "device").write_text(device + "\n")
        return self

    def find(self, name: str | None = None, env: dict[str, str] | None = None) -> Found:
        def metadata(path: str) -> str | None:
            self.asked.append(path)
            return self.says.get(path)

        spec = {"libtpu"} if self.libtpu else set()
        return find_tpu(
            name,
            env or {},
            root=self.root,
            metadata=metadata,
            find_spec=lambda module: module in spec or None,
        )


@pytest.fixture
def bare(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def v5e(tmp_path):
    machine = (
        Machine(tmp_path).devices("vfio/{}", 8).devices("vfio/vfio", 1).pci("0x1ae0", "0x0063", 8)
    )
    machine.libtpu = True
    return machine


def test_without_a_tpu_nothing_is_found_and_all_that_was_looked_at_is_said(bare):
    found = bare.find()
    assert (found.kind, found.address, found.attached, found.chips) == ("none", None, False, 0)
    lines = found.describe()
    assert lines[0] == "--tpu: not given"
    assert lines[-1] == "found: no TPU"
    for variable in (
        "TPU_NAME",
        "COLAB_TPU_ADDR",
        "TPU_WORKER_HOSTNAMES",
        "TPU_PROCESS_ADDRESSES",
        "TPU_WORKER_ID",
    ):
        assert f"{variable}: not set" in lines
    assert "libtpu: not installed" in lines
    assert bare.asked == []  # off Google Cloud the metadata server would only cost time


def test_nothing_found_is_an_error_only_where_a_tpu_is_needed(bare):
    with pytest.raises(RunError, match=r"^no TPU found; `cortext doctor`"):
        bare.find().required()


@pytest.mark.parametrize(
    ("env", "kind", "chips", "hosts", "worker"),
    [
        (KAGGLE, "kaggle", 8, (), 0),
        (COLAB, "colab", 8, (), 0),
        (GKE, "gke", 8, ("job-0.tpu", "job-1.tpu", "job-2.tpu", "job-3.tpu"), 2),
        ({"TPU_SKIP_MDS_QUERY": "1"}, "vm", 8, (), 0),
    ],
)
def test_chips_of_this_machine_are_found_wherever_it_stands(v5e, env, kind, chips, hosts, worker):
    found = v5e.find(env=env).required(attached=True)
    assert (found.kind, found.address, found.attached) == (kind, "local", True)
    assert (found.chips, found.generation, found.hosts, found.worker) == (
        chips,
        "v5e",
        hosts,
        worker,
    )
    assert v5e.asked == []


def test_kaggle_is_said_in_one_line(v5e):
    assert v5e.find(env=KAGGLE).describe()[-1] == "found: 8 v5e chips on this machine (Kaggle)"


def test_older_chips_are_devices_of_another_name(bare):
    found = bare.devices("accel{}", 4).find(env=KAGGLE | {"TPU_ACCELERATOR_TYPE": "v3-8"})
    assert (found.chips, found.generation) == (4, "v3")


def test_the_kind_that_the_environment_names_tells_the_generation(bare):
    assert bare.devices("vfio/{}", 8).find(env=KAGGLE).generation == "v5e"


def test_chips_on_the_bus_are_enough(bare):
    found = bare.pci("0x1ae0", "0x006f", 4).find(env={"TPU_SKIP_MDS_QUERY": "1"})
    assert (found.chips, found.generation) == (4, "v6e")


def test_other_devices_are_not_taken_for_a_tpu(bare):
    bare.devices("vfio/{}", 2).devices("accel{}", 1).pci("0x10de", "0x2684", 2).pci(
        "0x1ae0", "0x001f", 1
    )
    assert bare.find().kind == "none"
    bare.libtpu = True
    assert bare.find().chips == 1  # a device as older TPUs are, and the library of TPUs


def test_a_slice_of_several_vms_is_asked_of_the_metadata_server(v5e):
    v5e.says = {
        "instance/attributes/worker-network-endpoints": "w0:0:10.0.0.3,w1:1:10.0.0.4",
        "instance/attributes/agent-worker-number": "1",
    }
    found = v5e.find()
    assert (found.hosts, found.worker) == (("10.0.0.3", "10.0.0.4"), 1)
    assert "metadata server: worker 1 of 10.0.0.3,10.0.0.4" in found.describe()


def test_process_addresses_come_before_host_names(v5e):
    env = GKE | {"TPU_PROCESS_ADDRESSES": "a:8471,b:8471,c:8471"}
    assert v5e.find(env=env).hosts == ("a", "b", "c")


@pytest.mark.parametrize("number", ["4", "two", "-1"])
def test_a_number_that_no_worker_has_is_refused(v5e, number):
    with pytest.raises(RunError, match=rf"TPU_WORKER_ID is '{number}', and there are 4 hosts"):
        v5e.find(env=GKE | {"TPU_WORKER_ID": number})


def test_what_says_nothing_of_this_machine_is_not_checked(bare):
    assert bare.find(env={"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "7"}).kind == "none"


# --- by name
# ---------------------------------------------------------------------------------------------------------


def test_what_the_user_says_comes_before_all_variables(v5e):
    env = {"TPU_NAME": "other", "COLAB_TPU_ADDR": "10.1.1.1:8470"}
    found = v5e.find("grpc://10.0.0.2:8470", env)
    assert (found.kind, found.address, found.attached) == ("grpc", "grpc://10.0.0.2:8470", False)


def test_variables_come_in_the_order_of_the_cluster_resolver(bare):
    names = ("COLAB_TPU_ADDR", "TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS")
    env, seen = {}, []
    for number, name in enumerate(names):
        env[name] = f"grpc://10.0.0.{number}:8470"
        seen.append((bare.find(env=env).kind, bare.find(env=env).address))
    assert seen == [
        ("colab", "grpc://10.0.0.0:8470"),
        ("grpc", "grpc://10.0.0.1:8470"),
        ("gke", "grpc://10.0.0.2:8470"),
    ]


def test_colab_gives_its_address_without_a_scheme(bare):
    found = bare.find(env={"COLAB_TPU_ADDR": "10.13.14.2:8470"})
    assert (found.kind, found.address) == ("colab", "grpc://10.13.14.2:8470")


def test_an_empty_variable_says_nothing(bare):
    assert bare.find(env={"TPU_NAME": "", "COLAB_TPU_1VM": ""}).kind == "none"


def test_local_means_the_chips_of_this_machine(v5e, bare):
    assert v5e.find("local", {"TPU_SKIP_MDS_QUERY": "1"}).address == "local"
    assert v5e.find(env=KAGGLE | {"TPU_NAME": "local"}).address == "local"


@pytest.mark.parametrize("where", ["--tpu", "TPU_NAME"])
def test_local_where_there_are_no_chips_is_refused(bare, where):
    name, env = ("local", {}) if where == "--tpu" else (None, {"TPU_NAME": "local"})
    with pytest.raises(RunError, match=rf"^{where} is 'local', and this machine has no TPU chips"):
        bare.find(name, env)


def test_a_tpu_vm_that_is_called_by_its_own_name_uses_its_chips(v5e):
    assert v5e.find(env={"TPU_NAME": "my-tpu", "TPU_SKIP_MDS_QUERY": "1"}).address == "local"
    # The resolver finds the other hosts.
    assert v5e.find(env=GKE | {"TPU_NAME": "my-slice"}).address == "my-slice"


def test_a_cloud_tpu_is_looked_up_by_name_where_google_cloud_answers(bare):
    bare.says = {"project/project-id": "speech"}
    found = bare.find("my-tpu")
    assert (found.kind, found.address, found.attached) == ("named", "my-tpu", False)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("my-tpu", "names are looked up in Google Cloud, which this machine is not part of"),
        ("v5e-8", "a kind of TPU and not the name of one"),
        ("v5litepod-16", "a kind of TPU and not the name of one"),
        ("My TPU", "cannot be the name of a TPU"),
        ("grpc://", "is no address of a TPU"),
        ("grpc://a:b", "is no address of a TPU"),
        ("http://10.0.0.2:8470", "is no address of a TPU"),
    ],
)
def test_a_wrong_name_gives_one_line_with_the_next_step(bare, name, what):
    with pytest.raises(RunError) as caught:
        bare.find(name)
    line = str(caught.value)
    assert line.startswith(f"--tpu is '{name}'")
    assert what in line
    assert "\n" not in line
    assert "grpc://HOST:8470" in line.partition(";")[2]


# --- what JAX can use
# ------------------------------------------------------------------------------------------------


def test_jax_is_not_sent_over_the_network(bare):
    found = bare.find("grpc://10.0.0.2:8470")
    assert found.required() is found
    with pytest.raises(
        RunError, match="reached over the network, which JAX cannot do; run on the TPU VM itself"
    ):
        found.required(attached=True)


def test_chips_without_their_library_get_the_advice_to_install_it(bare):
    found = bare.devices("vfio/{}", 8).find(env=KAGGLE)
    with pytest.raises(RunError, match="libtpu is not installed; pip install"):
        found.required(attached=True)


def test_the_library_may_be_given_by_its_path(bare, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libtpu.so").touch()
    bare.devices("vfio/{}", 8)
    assert bare.find(env=KAGGLE | {"TPU_LIBRARY_PATH": "/lib/libtpu.so"}).libtpu == "/lib/libtpu.so"
    assert bare.find(env=KAGGLE | {"TPU_LIBRARY_PATH": "/lib/absent.so"}).libtpu is None


@pytest.mark.tpu
def test_generations_are_those_that_jax_knows():
    hardware = pytest.importorskip("jax._src.hardware_utils", reason="run `make test-tpu`")
    theirs = {number: version.name for number, version in hardware._TPU_PCI_DEVICE_IDS.items()}
    assert {number: theirs[number] for number in GENERATIONS} == GENERATIONS
    assert set(theirs) - set(GENERATIONS) == {"0x0056"}  # has no public name


# --- cores
# -----------------------------------------------------------------------------------------------------------


def test_fewer_cores_than_asked_for_are_refused(v5e):
    found = v5e.find(env=KAGGLE)
    check_cores(8, 8, found)
    check_cores(1, None, found)
    with pytest.raises(
        RunError, match=r"training would use 1 core instead of 8; unset TPU_VISIBLE_CHIPS"
    ):
        check_cores(1, 8, found)
    with pytest.raises(
        RunError,
        match=(
            r"use 8 cores instead of 16; take a larger TPU than 8 v5e chips on this machine"
            r" \(Kaggle\)"
        ),
    ):
        check_cores(8, 16, found)
    with pytest.raises(RunError, match="no TPU was found"):
        check_cores(1, 8, Found())


def test_a_tpu_that_jax_passes_over_is_an_error(v5e):
    found = v5e.find(env=KAGGLE)
    check_platform("tpu", found)
    check_platform("cpu", Found())
    with pytest.raises(
        RunError,
        match=(
            r"JAX uses the CPU, although there is a TPU: 8 v5e chips on this machine"
            r" \(Kaggle\); pip"
        ),
    ):
        check_platform("cpu", found)


def test_the_cores_are_said_out_loud(v5e):
    assert cores_line(8, v5e.find(env=KAGGLE)) == "using 8 TPU cores"
    assert (
        cores_line(1, v5e.find(env=KAGGLE)) == "using 1 TPU core, although this machine has 8 chips"
    )


# --- odd machines
# ----------------------------------------------------------------------------------------------------


def test_a_worker_number_as_long_as_a_book_is_one_line(bare):
    with pytest.raises(RunError, match="TPU_WORKER_ID is '999"):
        bare.devices("accel{}", 4).pci("0x1ae0", "0x0063", 4).find(
            env={"TPU_WORKER_ID": "9" * 5000, "TPU_WORKER_HOSTNAMES": "a,b"}
        )


def test_a_library_path_that_no_file_can_have_is_no_library(bare):
    assert bare.find(env={"TPU_LIBRARY_PATH": "/" + "a" * 5000}).libtpu is None


def test_bytes_that_are_no_text_on_the_pci_bus_are_no_tpu(bare):
    bare.pci("0x1ae0", "0x0063", 1)
    (vendor,) = bare.root.glob("sys/bus/pci/devices/*/vendor")
    vendor.write_bytes(b"\xff\xfe")
    assert not bare.find().attached


@contextmanager
def served(answer: bytes):
    """A server on this machine that says the same to all; its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"HTTP/1.0 200 OK\r\nMetadata-Flavor: Google\r\n\r\nlab-42", "lab-42"),
        (b"HTTP/1.0 200 OK\r\n\r\n<html>Welcome to the hotel</html>", None),
        (b"HTTP/1.0 404 Not Found\r\nMetadata-Flavor: Google\r\n\r\n", None),
        (b"HTTP/1.0 200 OK\r\nMetadata-Flavor: Google\r\n\r\n\xff\xfe", None),
        (b"SSH-2.0-OpenSSH_9.2\r\n", None),
    ],
)
def test_only_google_answers_for_the_metadata_server(monkeypatch, answer, told):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # which knows nothing of this machine
    with served(answer) as host:
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        assert gce_metadata("project/project-id") == told


@pytest.mark.parametrize("host", ["a b", "[", "a:b", "\x7f"])
def test_a_metadata_server_that_cannot_be_is_none(monkeypatch, host):
    monkeypatch.setenv("GCE_METADATA_HOST", host)
    assert gce_metadata("project/project-id") is None
