"""docs/guides/tensorflow.md and docs/guides/tfrecords.md, run as they stand."""

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from cortext.cli import run

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow", reason="run `make test-tf`")

ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "docs/guides/tensorflow.md", ROOT / "docs/guides/tfrecords.md"]
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHORTER = {
    "--config tiny": "--config tiny.yaml",
    'read_train_config("tiny")': 'read_train_config("tiny.yaml")',
}
SHORTER |= {
    "steps_per_epoch=20, epochs=3": "steps_per_epoch=3, epochs=2",
    "--preset tiny": "--preset tiny --workers 1",
}


# MirroredVariable, in Keras.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_the_pages_work_as_written(tmp_path, monkeypatch, capsys):
    recipe = (ROOT / "src/cortext/configs/tiny.yaml").read_text()
    recipe = recipe.replace("num_training_batches: 60", "num_training_batches: 6").replace(
        "n_units: 32", "n_units: 8"
    )
    (tmp_path / "tiny.yaml").write_text(recipe + "tpu:\n  length_shapes: 1\n")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for language, code in BLOCK.findall("".join(page.read_text() for page in PAGES)):
        for long, short in SHORTER.items():
            code = code.replace(long, short)
        if language == "python":
            exec(code, names)
            continue
        for line in code.splitlines():
            assert run(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    assert (
        json.loads((tmp_path / "run" / "summary.json").read_text())["device"]
        == "cpu (2 cores, tensorflow)"
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    history = names["model"].evaluate(names["val"], return_dict=True, verbose=0)
    # The run's weights, by torch and by Keras.
    assert history["loss"] == pytest.approx(summary["val_loss"], rel=1e-4)
    n_val = len(names["data"].split("val"))
    assert names["logits_NPV"].shape[0] >= n_val
    assert np.isfinite(names["logits_NPV"]).all()
    assert (tmp_path / "model.keras").is_file()
