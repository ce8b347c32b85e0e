"""The guides to any lab's NWB and MATLAB files: their commands and mappings, as they stand."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from foreign_matlab import cells, column, save_v5, texts
from foreign_nwb import write_nwb

from cortext.cli import run as cortext
from cortext.data import open_dataset

GUIDES = Path(__file__).parents[1] / "docs" / "guides"
SHORT = (
    "--config tiny --set num_training_batches=2 --set batches_per_val_step=2"
    " --set dataset.days_per_batch=1"
)
WORDS = ["hello", "good day", "yes", "they went to the store", "no", "we like to read"]


def _write_mat(path: Path) -> None:
    rng = np.random.default_rng(0)
    counts = [rng.poisson(1, (n, 256)).astype(np.uint8) for n in (110, 160, 105, 170, 120, 130)]
    variables = {
        "tx1": cells(counts),
        "spikePow": cells([rng.gamma(2, 20, x.shape).astype(np.float32) for x in counts]),
        "sentenceText": texts(WORDS, (6, 1)),
        "blockIdx": column([1, 1, 1, 1, 2, 2]),
    }
    save_v5(path, variables)


@pytest.mark.parametrize(
    ("guide", "name", "write", "n_features"),
    [
        ("import-nwb.md", "day1.nwb", write_nwb, 96),
        ("import-mat.md", "t99.2025.03.14.mat", _write_mat, 256),
    ],
)
def test_the_guide_goes_from_a_file_to_a_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    guide: str,
    name: str,
    write: Callable[[Path], object],
    n_features: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recordings").mkdir()
    write(tmp_path / "recordings" / name)
    write(tmp_path / name)
    page = (GUIDES / guide).read_text()
    (mapping,) = re.findall(r"^```yaml\n(format: .*?)^```", page, re.M | re.S)
    for line in re.findall(r"^cortext .*$", page, re.M):
        if "--inspect" not in line:  # the first mapping has been edited
            (tmp_path / "lab.yaml").write_text(mapping)
        line = re.sub(r"--config \w+", SHORT, line)
        assert cortext(shlex.split(line)[1:]) == 0, line
    data = open_dataset(tmp_path / "data" / "lab")
    assert {len(list(data.trials(split))) for split in ("train", "val")} == {4, 2}
    assert next(iter(data.trials("train"))).features_TC.shape[1] == n_features
    assert (tmp_path / "runs" / "lab").is_dir()
