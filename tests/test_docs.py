"""The commands of the README and the guides are run as they stand, at the size of the `tiny`
preset.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_server import SPEECH_LLM, serve
from stand_in import RECORDINGS, write_stand_in

from cortext.cli import run as cortext
from cortext_data.demo import run_demo

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^```(?:python|yaml)\n(# (\S+)\n.*?)^```\n", re.MULTILINE | re.DOTALL)
"""A block whose first line names the file that it is."""
PLUGIN_PAGES = (
    "own-models.md",
    "check-plugin.md",
    "own-losses.md",
    "own-augmentations.md",
    "auxiliary-heads.md",
    "own-tasks.md",
)
"""Guides whose blocks run in this order in one folder: later pages use what the first one makes."""
GUIDES_TO_FILES = ("architecture", "packages", "conventions", "decisions")
# The demo preset takes minutes; `make` needs the checkout, and `make test` is what runs this test.
# A third of the tiny recipe's batches is a training, too.
TINY = [
    (r"^make demo.*$", "cortext demo --preset tiny --out runs/demo"),
    (r"^make .*$", "true"),
    (r"^git clone .*$|^cd cortext$", "true"),
    (r"--preset demo\b", "--preset tiny"),
    (r"--config demo\b", "--config tiny --set num_training_batches=20"),
]


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[str, str]:
    """What puts a copy of one tiny demo where a guide makes its own.

    The README's test runs the command.
    """
    out = tmp_path_factory.mktemp("demo") / "demo"
    run_demo(out, "tiny")
    return r"^cortext demo .*--out runs/demo$", f"mkdir -p runs && cp -r {out} runs/demo"


def run_blocks(
    document: Path, folder: Path, substitutions: list[tuple[str, str]], *programs: Path
) -> list[str]:
    """Run the document's python and bash blocks in order in one folder.

    `programs` are folders that stand before the environment's own on the PATH. Return the bash
    blocks as they were run.
    """
    path = os.pathsep.join(
        [*map(str, programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    )
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    ran = []
    for language, code in BLOCK.findall(document.read_text()):
        for pattern, replacement in substitutions:
            code = re.sub(pattern, replacement, code, flags=re.MULTILINE)
        command = (
            ["python", "-c", code]
            if language == "python"
            else ["bash", "-euo", "pipefail", "-c", code]
        )
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{document.name}:\n{code}\n{done.stdout}\n{done.stderr}"
        if language == "bash":
            ran.append(code)
    return ran


def joined_python(document: Path) -> str:
    """The document's blocks with its Python in one, where later blocks use what earlier ones
    made.
    """
    blocks = BLOCK.findall(document.read_text())
    bash, python = (
        "".join(code for language, code in blocks if language == wanted)
        for wanted in ("bash", "python")
    )
    return f"```bash\n{bash}```\n```python\n{python}```\n"


def test_bring_your_own_data_works_as_written(tmp_path, commands):
    run_blocks(ROOT / "docs/guides/data.md", tmp_path, [], commands)
    assert (tmp_path / "eval" / "report.html").is_file()


@pytest.mark.slow
def test_python_is_built_on_as_written(tmp_path, monkeypatch, capsys):
    """One program, as in a notebook; the loop of one's own learns."""
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    pages = ("python.md", "own-loop.md")
    text = "\n".join((ROOT / "docs/guides" / page).read_text() for page in pages)
    for language, code in BLOCK.findall(text):
        if language == "python":
            exec(code, namespace)
        else:
            assert cortext(shlex.split(code)[1:]) == 0
    losses = namespace["losses"]
    # Fallen to a third with this seed and others; a loop that learns nothing stays.
    assert sum(losses[-10:]) < sum(losses[:5])
    assert namespace["per"].rate < 0.85  # an empty answer has 1, untrained networks have more
    per = json.loads((tmp_path / "eval-own" / "metrics.json").read_text())["per"]
    assert per == pytest.approx(namespace["per"].rate, abs=0.01)
    assert "PackedDataset(packed in: packed" in capsys.readouterr().out


def test_a_loop_of_ones_own_takes_thirty_lines():
    (loop,) = [
        code
        for language, code in BLOCK.findall((ROOT / "docs/guides/own-loop.md").read_text())
        if "losses" in code and "ctc_loss" in code
    ]
    assert len(loop.splitlines()) <= 30


@pytest.mark.slow
def test_training_goes_as_written(tmp_path, demo, commands):
    pages = ("train.md", "gpus.md")
    guides = "\n".join((ROOT / "docs/guides" / page).read_text() for page in pages)
    (tmp_path / "training.md").write_text("```bash\nmake demo\n```\n" + guides)
    several = (
        r"-node 4 (.*) --config gru --data packed --out run --device cuda",
        r"-node 2 \1 --config tiny --set num_training_batches=20 --data runs/demo/packed --out two",
    )
    run_blocks(tmp_path / "training.md", tmp_path, [*TINY, demo, several], commands)
    for name in ("runs/mine", "two"):
        assert (tmp_path / name / "summary.json").is_file()


def test_a_run_is_steered_from_python_as_written(tmp_path, commands):
    (tmp_path / "trainer.md").write_text(joined_python(ROOT / "docs/guides/trainer.md"))
    run_blocks(tmp_path / "trainer.md", tmp_path, [], commands)
    for name in ("run", "run-kept"):
        assert (tmp_path / name / "summary.json").is_file()
    assert (tmp_path / "run" / "checkpoints" / "early.safetensors").is_file()
    assert list((tmp_path / "run-kept" / "checkpoints").glob("good_*.safetensors"))


@pytest.mark.slow
def test_the_three_networks_are_trained_and_used_as_written(tmp_path, commands):
    pages = ("adversarial.md", "adversarial-loss.md")
    text = "\n".join((ROOT / "docs/guides" / page).read_text() for page in pages)
    (tmp_path / "adversarial.md").write_text(text)
    run_blocks(tmp_path / "adversarial.md", tmp_path, TINY, commands)
    assert (tmp_path / "run" / "model.safetensors").is_file()


@pytest.mark.slow
def test_live_decoding_goes_as_written(tmp_path, demo, commands):
    (tmp_path / "live.md").write_text(joined_python(ROOT / "docs/guides/live-python.md"))
    run_blocks(tmp_path / "live.md", tmp_path, [demo], commands)


def test_saved_logits_are_decoded_as_written(tmp_path, commands):
    run_blocks(ROOT / "docs/guides/saved-logits.md", tmp_path, [], commands)
    rows = (tmp_path / "predictions.csv").read_text().splitlines()
    assert rows == [
        "id,text",
        "0,what time is it",
        "1,i would like some water",
        "2,could you open the window",
    ]


def test_language_models_are_built_as_written(tmp_path, commands):
    run_blocks(ROOT / "docs/guides/language-models.md", tmp_path, [], commands)
    there = [(r"^cortext simulate data .*$", "test -d data")]
    run_blocks(ROOT / "docs/guides/build-language-models.md", tmp_path, there, commands)
    for name in ("lm", "mixed", "letters", "lm-python"):
        assert (tmp_path / name / "lm.bin").is_file()


@pytest.mark.slow
def test_checkpoints_go_out_and_come_in_as_written(tmp_path, commands):
    run_blocks(ROOT / "docs/guides/checkpoints.md", tmp_path, [], commands)
    assert (tmp_path / "eval" / "report.html").is_file()


def test_the_word_search_works_as_written(tmp_path, commands):
    blocks = [
        code
        for language, code in BLOCK.findall((ROOT / "docs/guides/search.md").read_text())
        if language == "python"
    ]
    (tmp_path / "search.md").write_text("```python\n" + "".join(blocks) + "```\n")  # one program
    run_blocks(tmp_path / "search.md", tmp_path, [], commands)


def test_names_are_added_as_written(tmp_path, commands):
    names = ROOT / "docs/guides/names.md"
    ((_, code),) = BLOCK.findall(names.read_text())
    run_blocks(names, tmp_path, [(r"^print\((.*)\)  # (.*)$", r"assert \1 == '\2'")], commands)
    assert code.count("print(") == 1


@pytest.mark.slow
def test_own_models_losses_and_augmentations_work_as_written(tmp_path, commands):
    text = "\n".join((ROOT / "docs/guides" / page).read_text() for page in PLUGIN_PAGES)
    files = FILE.findall(text)
    assert [name for _, name in files] == [
        "my_lab.py",
        "my_lab.yaml",
        "my_loss.py",
        "my_loss.yaml",
        "my_drift.py",
        "my_drift.yaml",
        "two_heads.py",
        "acoustic.py",
        "acoustic.yaml",
    ]
    for content, name in files:
        (tmp_path / name).write_text(content)
    (tmp_path / "research.md").write_text(FILE.sub("", text))
    run_blocks(tmp_path / "research.md", tmp_path, [], commands)
    summary = json.loads((tmp_path / "run-acoustic" / "summary.json").read_text())
    assert summary["loss"] == "squared error"
    assert summary["val_loss"] < 0.7  # the targets' variance is 1
    lines = [
        json.loads(line)
        for line in (tmp_path / "run-loss" / "metrics.jsonl").read_text().splitlines()
    ]
    trained = [line for line in lines if line["kind"] == "train"]
    for (
        line
    ) in trained:  # the three values of the loss in the file, and its weight in the configuration
        assert line["train_loss"] == pytest.approx(line["train_ctc"] - 0.05 * line["train_entropy"])
    assert trained[-1]["train_loss"] < trained[0]["train_loss"] / 2
    assert json.loads((tmp_path / "run" / "model.json").read_text())["kind"] == "conv"
    assert (tmp_path / "run-drift" / "summary.json").is_file()
    lines = (tmp_path / "run-heads" / "metrics.jsonl").read_text().splitlines()
    heads = [line for line in map(json.loads, lines) if line["kind"] == "train"]
    for line in heads:
        both = 0.7 * line["train_ctc"] + 0.3 * line["train_early"]
        assert line["train_loss"] == pytest.approx(both)
    assert heads[-1]["train_early"] < heads[0]["train_early"]
    assert (tmp_path / "eval-heads" / "report.html").is_file()
    assert (tmp_path / "eval" / "report.html").is_file()
    without = subprocess.run(
        [
            Path(sys.executable).parent / "cortext",
            "evaluate",
            "run",
            "--data",
            "data",
            "--out",
            "other",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert without.returncode == 2
    assert "unknown model 'conv'; known: gru, " in without.stderr
    assert "; or give the file that registers it with --plugin" in without.stderr


@pytest.mark.slow
def test_the_public_data_become_text_as_written(tmp_path, commands):
    stand_in = write_stand_in(tmp_path / "made")
    fetched = (
        f"mkdir data && cp -r {stand_in.directory} data/t15 && mv data/t15/{RECORDINGS} data/t15"
    )
    substitutions = [
        (r"^cortext fetch t15 .*$", fetched),
        (r"^cortext fetch lm-5gram .*$", f"cp -r {stand_in.lm} data/lm"),
        (r"^cortext verify .*$", r"\g<0> || test $? = 1"),  # three sessions are not those of T15
        (r"--trials 50", "--trials 2"),
        (r"--config gru\b", "--config tiny --set num_training_batches=20"),
        (r" --device cuda\b", ""),
    ]
    run_blocks(ROOT / "docs/start/from-public-data.md", tmp_path, substitutions, commands)
    rows = (tmp_path / "predictions.csv").read_text().splitlines()
    assert rows[0] == "id,text"
    assert len(rows) == 5
    counts = json.loads((tmp_path / "runs" / "verify" / "verify.json").read_text())["counts"]
    assert counts["PASS"] >= 12
    for run in ("published", "mine"):
        assert (tmp_path / "runs" / run / "decoder.yaml").is_file()


@pytest.mark.slow
def test_settings_are_searched_as_written(tmp_path, commands):
    run_blocks(ROOT / "docs/guides/tune-training.md", tmp_path, [], commands)
    assert [
        len(list((tmp_path / out / "trials").iterdir())) for out in ("rates", "drawn", "python")
    ] == [3, 2, 2]
    assert (tmp_path / "rates" / "trials.png").is_file()


@pytest.mark.slow
def test_decoder_options_are_fitted_as_written(tmp_path, demo, commands):
    for page in ("decoder-options", "fit-options-python"):
        run_blocks(ROOT / f"docs/guides/{page}.md", tmp_path, [demo], commands)
    assert (tmp_path / "runs" / "demo" / "run" / "decoder.yaml").is_file()
    metrics = json.loads((tmp_path / "runs" / "fitted" / "metrics.json").read_text())
    assert metrics["n_cross_fitted"] > 0


@pytest.mark.slow
def test_decoder_options_are_searched_as_written(tmp_path, demo, commands):
    """The second page continues where the first one ends."""
    for page in ("tune-decoder", "tune-decoder-large"):
        run_blocks(
            ROOT / f"docs/guides/{page}.md",
            tmp_path,
            [demo, (r"--trials (12|6)\b", "--trials 3")],
            commands,
        )
    for out in ("runs/options", "runs/saved", "runs/few", "python"):
        assert (tmp_path / out / "options.yaml").is_file()
    assert (tmp_path / "test.csv").is_file()


@pytest.mark.slow
def test_a_speech_llm_goes_as_written(tmp_path, demo):
    pytest.importorskip("transformers")
    copied = (r"^cortext demo --llm .*$", f"{demo[1]} && cortext lm train-neural runs/demo/data/text/lm.txt --steps 2 "
              "--width 24 --out runs/demo/llm")  # fmt: skip
    smaller = [
        (r"^pip .*$", "true"),
        (r"(--audio-llm runs/audio-llm)", r"\1 --batches 2"),
        (r"=1000\b", "=2"),
    ]
    smaller += [
        (r"n_units=256", "n_units=32"),
        (r"speech_llm --data", "speech_llm --set dataset.days_per_batch=2 --data"),
    ]
    with serve(tmp_path / "commands", SPEECH_LLM) as commands:
        for page in ("speech-llm", "speech-llm-training"):
            run_blocks(ROOT / f"docs/guides/{page}.md", tmp_path, [copied, *smaller], commands)
    for name in ("reads-eval", "speech-eval"):
        assert (tmp_path / "runs" / name / "report.html").is_file()


@pytest.mark.slow
def test_readme_works_as_written_at_tiny_size(tmp_path):
    """With the demo's page, by the real program, each time in a process that has loaded nothing."""
    ran = run_blocks(ROOT / "README.md", tmp_path, TINY)
    assert any("cortext demo --preset tiny" in block for block in ran)
    assert (tmp_path / "runs" / "demo" / "eval" / "report.html").is_file()
    ran = run_blocks(ROOT / "docs/start/demo.md", tmp_path, TINY)
    assert any("cortext evaluate runs/first" in block for block in ran)
    assert (tmp_path / "runs" / "predictions.csv").is_file()


@pytest.mark.parametrize(
    "page", ["CONTRIBUTING.md", *(f"docs/inside/{name}.md" for name in GUIDES_TO_FILES)]
)
def test_files_and_folders_that_a_guide_to_the_source_names_are_there(page):
    """A name may begin in a folder that the same line has named."""
    missing = set()
    for line in (ROOT / page).read_text().splitlines():
        folders = {ROOT, ROOT / "src", ROOT / "native", ROOT / "tests" / "support"}
        for name in re.findall(r"`([\w/.-]+(?:\.(?:py|cpp|hpp|js|j2)|/))`", line):
            found = [folder / name for folder in folders if (folder / name).exists()]
            folders |= {path if path.is_dir() else path.parent for path in found}
            if not found:
                missing.add(name)
    assert not missing


def test_make_demo_is_the_demo_command():
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(
        r"^demo: .*\n\t\$\(BIN\)/cortext demo --out \$\(DEMO_OUT\)$", makefile, re.MULTILINE
    )


@pytest.mark.parametrize(
    ("package", "folders"),
    [("", []), ("live", ["tests/live"]), ("lm data", ["tests/lm", "tests/data"])],
)
def test_make_test_runs_the_tests_of_a_package(package, folders):
    command = ["make", "--dry-run", "--no-print-directory", "test", f"PACKAGE={package}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if "bin/pytest" in line]
    assert re.findall(r"\btests/\w+", line) == folders
    assert all((ROOT / folder).is_dir() for folder in folders)


@pytest.mark.slow
def test_a_new_day_goes_as_written(tmp_path, commands):
    few = [(r"--trials 20", "--trials 20 --batches 4"), (r"trials=20", "trials=20, batches=4")]
    run_blocks(ROOT / "docs/guides/adapt.md", tmp_path, [*TINY, *few], commands)
    for name in ("adapted", "again"):
        assert (
            json.loads((tmp_path / "runs" / name / "adaptation.json").read_text())["session"]
            == "sim.2025.01.17"
        )
    assert (tmp_path / "runs" / "adapted-eval" / "report.html").is_file()
