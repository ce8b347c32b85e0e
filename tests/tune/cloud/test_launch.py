"""`cortext launch`: a dry run is all there is until --yes, which asks SkyPilot once.

Errors are one line.
"""

import json
import re
import shlex
import socket
import sys
import types
from pathlib import Path

import pytest
import yaml
from refusals import complaint

import cortext_tune
from cortext.cli import run
from cortext.errors import CloudError, CortextError, Interrupted, MissingLibrary
from cortext_tune.cloud import Launch
from cortext_tune.cloud.accelerators import GPUS, TPU_CORES


class SkyPilot(types.ModuleType):
    """A stand-in for SkyPilot that notes what it is asked for."""

    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__("sky")
        self.calls: list[tuple] = []
        self.error = error
        self.Task = types.SimpleNamespace(from_yaml=lambda path: ("task", path))
        self.jobs = types.SimpleNamespace(
            launch=lambda task, **named: self._note("jobs.launch", task, named)
        )

    def launch(self, task, **named):
        return self._note("launch", task, named)

    def stream_and_get(self, request):
        if self.error:
            raise self.error
        self.calls.append(("stream_and_get", request))

    def _note(self, what, task, named):
        self.calls.append((what, task, named))
        return "request-1"


@pytest.fixture
def offline(monkeypatch):
    """Neither SkyPilot nor anything outside this machine."""

    def refuse(*_):
        raise AssertionError("a dry run speaks to nobody")

    monkeypatch.setitem(sys.modules, "sky", None)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def command(wheel, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return [
        "launch",
        "--config",
        "tiny",
        "--data",
        "gs://lab/packed",
        "--out",
        "gs://lab/runs/one",
        "--source",
        str(wheel),
    ]


def test_a_launch_names_the_command_that_shows_its_logs():
    assert Launch(Path("task.yaml"), "", "one", spot=False).logs == "sky logs one"
    assert Launch(Path("task.yaml"), "", "one", spot=True).logs == "sky jobs logs -n one"


def test_launch_is_a_function_of_the_package():
    from cortext_tune.cloud import launch

    assert cortext_tune.launch is launch
    assert "launch" in cortext_tune.__all__


def test_a_dry_run_is_the_default_and_needs_neither_skypilot_nor_a_network(
    offline, command, capsys, tmp_path
):
    assert run(command) == 0
    said = capsys.readouterr().out
    text = (tmp_path / "launch" / "cortext-one" / "task.yaml").read_text()
    assert said.startswith(text)
    assert "written: launch/cortext-one/task.yaml" in said
    assert "nothing costs money yet" in said
    assert "sky launch -c cortext-one launch/cortext-one/task.yaml" in said


def test_from_python_a_dry_run_is_the_default_too(offline, launch):
    assert launch().file.is_file()


@pytest.mark.parametrize("spot", [False, True])
def test_yes_shows_the_task_and_asks_skypilot_once(command, monkeypatch, capsys, spot):
    sky = SkyPilot()
    monkeypatch.setitem(sys.modules, "sky", sky)
    assert run([*command, "--yes", *(["--spot"] if spot else [])]) == 0
    task = ("task", "launch/cortext-one/task.yaml")
    asked = (
        ("jobs.launch", task, {"name": "cortext-one"})
        if spot
        else ("launch", task, {"cluster_name": "cortext-one"})
    )
    assert sky.calls == [asked, ("stream_and_get", "request-1")]
    said = capsys.readouterr().out
    assert "accelerators:" in said
    assert ("sky jobs cancel -n cortext-one" if spot else "sky down cortext-one") in said


def test_python_submits_what_is_no_dry_run(launch, monkeypatch):
    sky = SkyPilot()
    monkeypatch.setitem(sys.modules, "sky", sky)
    launch(dry_run=False)
    assert [call[0] for call in sky.calls] == ["launch", "stream_and_get"]


def test_json_is_one_object(offline, command, capsys):
    assert run([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["started"] is False
    assert yaml.safe_load(printed["task"])["name"] == "cortext-one"


def test_without_skypilot_yes_names_the_extra(offline, launch):
    with pytest.raises(MissingLibrary, match=r"pip install '\.\[cloud\]'"):
        launch(dry_run=False)


def test_what_skypilot_refuses_is_one_line(launch, monkeypatch):
    error = RuntimeError("\n\x1b[31mFailed to provision\x1b[0m all resources.\n  more\n")
    monkeypatch.setitem(sys.modules, "sky", SkyPilot(error))
    with pytest.raises(
        CloudError, match=r"SkyPilot: Failed to provision all resources; `sky check`"
    ):
        launch(dry_run=False)


def test_ctrl_c_says_that_it_may_continue_and_how_to_stop_it(launch, monkeypatch):
    monkeypatch.setitem(sys.modules, "sky", SkyPilot(KeyboardInterrupt()))
    with pytest.raises(
        Interrupted, match=r"may go on and cost money; .*`sky down cortext-first-run` stops it"
    ):
        launch(dry_run=False)


def test_nothing_of_the_environment_is_written_down(launch, monkeypatch):
    for name in (
        "GOOGLE_APPLICATION_CREDENTIALS",
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "WANDB_API_KEY",
    ):
        monkeypatch.setenv(name, "a-secret-value")
    launched = launch()
    assert "a-secret-value" not in launched.text
    assert not {"envs", "secrets"} & set(yaml.safe_load(launched.text))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"--data": None}, "no bucket is given with --data; give --data gs://BUCKET/packed"),
        ({"--out": None}, "no bucket is given with --out; give --out gs://BUCKET/runs/NAME"),
        ({"--data": "packed"}, "gs://BUCKET/PATH or s3://BUCKET/PATH is needed"),
        ({"--out": "gs://lab"}, "which is a whole bucket"),
        ({"--out": "gs://lab/packed/run"}, "which is inside --data"),
        ({"--data": "gs://lab"}, "which is inside --data"),
        ({"--accelerator": "H10"}, "unknown accelerator 'H10'; did you mean 'H100'?"),
        ({"--config": "tyni"}, "no file and no recipe is called 'tyni'; did you mean 'tiny'?"),
        ({"--set": "lr_mx=1"}, "unknown key lr_mx"),
        ({"--plugin": "none.py"}, "there is no such file"),
        ({"--source": "cortext==0.8"}, "the name cortext on PyPI is not this project's"),
        ({"--name": "My Run"}, "cannot name a machine"),
        ({"--name": "$(id)"}, "cannot name a machine"),
        ({"--infra": "gcp us"}, "write CLOUD, CLOUD/REGION"),
        ({"--infra": "aws"}, "TPUs are Google Cloud's"),
        ({"--idle-minutes": "0"}, "--idle-minutes"),
        ({"--lm": "lm"}, "--lm is 'lm'"),
    ],
    ids=str,
)
def test_mistakes_are_one_line_and_write_nothing(command, capsys, changes, says, tmp_path):
    options = dict(zip(command[1::2], command[2::2], strict=True)) | changes
    words = [
        word for option, value in options.items() if value is not None for word in (option, value)
    ]
    assert says in complaint(capsys, "launch", *words)
    assert not (tmp_path / "launch").exists()


def test_a_negative_idle_time_would_mean_never(launch):
    with pytest.raises(CloudError, match="at least 1 is needed"):
        launch(idle_minutes=-1)


def test_a_file_of_the_users_is_not_replaced_but_an_earlier_task_is(launch, tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("important: true\n")
    with pytest.raises(CloudError, match="is no task file of ours; give another --file"):
        launch(file=mine)
    assert mine.read_text() == "important: true\n"
    first = launch(file=tmp_path / "task.yaml")
    assert launch("tiny", "H100", file=first.file).text != first.text
    mine.write_bytes(b"\xff\xfe")
    with pytest.raises(CloudError, match="cannot be read"):
        launch(file=mine)


@pytest.mark.parametrize(
    ("out", "name"),
    [
        ("gs://lab/runs/GRU_5.layers", "cortext-gru-5-layers"),
        ("gs://lab/--", "cortext"),
        (f"gs://lab/{'long' * 20}", f"cortext-{'long' * 8}"),
    ],
)
def test_a_machine_is_named_after_the_run(launch, out, name):
    assert launch(out=out).name == name


@pytest.mark.parametrize("source", ["wheel", "checkout"])
def test_a_folder_that_cannot_be_written_is_one_line(launch, tmp_path, source, request):
    (tmp_path / "closed").touch()
    with pytest.raises(CortextError, match=r"closed.*(Not a directory|File exists)"):
        launch(file=tmp_path / "closed" / "task.yaml", source=request.getfixturevalue(source))


def test_the_guides_work_as_written(offline, wheel, tmp_path, monkeypatch, capsys):
    """Their recipe is another guide's, and the checkout that is tested may not be committed."""
    guides = Path(__file__).resolve().parents[3] / "docs/guides"
    text = "".join((guides / name).read_text() for name in ("cloud.md", "cloud-machines.md"))
    text = text.replace("gru_tpu", "gru")
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"^```bash\n(.*?)\n```", text, re.MULTILINE | re.DOTALL)
    assert run([*shlex.split(command)[1:], "--source", str(wheel)]) == 0
    assert "written: launch/cortext-gru/task.yaml" in capsys.readouterr().out
    (code,) = re.findall(r"^```python\n(.*?)```", text, re.MULTILINE | re.DOTALL)
    exec(code.replace('runs/gru"', f'runs/gru", source={str(wheel)!r}'), {})
    assert capsys.readouterr().out == (tmp_path / "launch/cortext-gru/task.yaml").read_text() + "\n"
    assert all(f"`{name}`" in text for name in (*TPU_CORES, *GPUS))
    for said in (
        "sky launch --dryrun launch/cortext-gru/task.yaml",
        "sky down NAME",
        "sky jobs cancel -n NAME",
    ):
        assert said in text
