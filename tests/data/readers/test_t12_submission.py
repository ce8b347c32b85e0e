"""From the files of Brain-to-Text '24 to its submission file: import, train, decode."""

import shutil

import h5py
import numpy as np
import pytest
from foreign_files import T12_DAYS, Written, write_t12
from refusals import complaint
from small_training import legible_config
from stand_in import BINS, SENTENCES

from cortext.cli import run
from cortext.decoding.ngram import LanguageModel
from cortext.text import to_phonemes
from cortext.text.inventory import RELEASE
from cortext.training import train
from cortext_data.readers.importing import import_source
from cortext_data.readers.t12 import t12

HOLDOUT = {T12_DAYS[0]: (6, 1, 4), T12_DAYS[1]: (0, 7)}
"""Numbers of the sentences that the participant attempts in the holdout."""


def recorded(rng, sentence, block, rates):
    """Return a trial in which each phoneme has its rates of crossings and its power."""
    ids = [RELEASE.index["SIL"], *RELEASE.ids(to_phonemes(sentence))]
    rates_TC = np.repeat(rates[ids], BINS, axis=0)
    arrays = {f"tx{k}": rng.poisson(rates_TC / k).astype(np.uint8) for k in (1, 2, 3, 4)}
    power_TC = 40 + 20 * rates_TC + 10 * rng.normal(size=rates_TC.shape)
    return Written(sentence, block, arrays | {"spikePow": power_TC.astype(np.float32)})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with an import, a run that has learnt it, and a language model."""
    root = tmp_path_factory.mktemp("t12")
    rng = np.random.default_rng(0)
    rates = rng.gamma(1.0, 2.0, (len(RELEASE), 256))
    rates[:, 128:] = 2  # area 44 says nothing
    material = {}
    for day in T12_DAYS:
        for folder, block, said in (
            ("competitionHoldOut", 1, [SENTENCES[i] for i in HOLDOUT[day]]),
            ("train", 3, SENTENCES),
            ("test", 9, SENTENCES[:2]),
        ):
            material[folder, day] = [recorded(rng, text, block, rates) for text in said]
    # The participant has said it, and the file does not tell.
    written = {
        key: [
            Written("redacted" if key[0] == "competitionHoldOut" else t.sentence, t.block, t.arrays)
            for t in trials
        ]
        for key, trials in material.items()
    }
    write_t12(root, written)
    assert import_source(t12(root), root / "data").problems == []
    train(legible_config(50, 16, 2), root / "data", root / "run", progress=False)
    (root / "lm.txt").write_text("\n".join(SENTENCES))
    LanguageModel.build([root / "lm.txt"], 2, root / "lm")
    return root


def decoded(root, data, out, *more):
    given = ["decode", root / "run", "--data", data, "--lm", root / "lm", "--out", out, *more]
    assert run([*map(str, given), "--threads", "1"]) == 0
    return out.read_text()


def test_the_submission_has_a_line_for_each_holdout_trial_in_order(trained, tmp_path, capsys):
    expected = [SENTENCES[i] for day in T12_DAYS for i in HOLDOUT[day]]
    found = decoded(trained, trained / "data", tmp_path / "submission.txt")
    assert found == "".join(f"{sentence}\n" for sentence in expected)
    assert "submission.txt: 5 rows" in capsys.readouterr().out
    csv = decoded(trained, trained / "data", tmp_path / "predictions.csv").splitlines()
    assert csv == ["id,text", *(f"{i},{sentence}" for i, sentence in enumerate(expected))]


@pytest.fixture
def own(trained, tmp_path):
    """A copy of the imported data, to be damaged."""
    left_out = shutil.ignore_patterns(".packed")
    return shutil.copytree(trained / "data", tmp_path / "data", ignore=left_out)


def test_a_trial_that_is_left_out_keeps_its_line(trained, own, tmp_path):
    with h5py.File(own / T12_DAYS[0] / "data_test.hdf5", "a") as file:
        file["trial_0001/input_features"][5, 7] = np.nan
    found = decoded(trained, own, tmp_path / "submission.txt", "--skip-bad").splitlines()
    expected = [SENTENCES[i] for day in T12_DAYS for i in HOLDOUT[day]]
    assert found == [expected[0], "", *expected[2:]]


def test_no_submission_is_written_where_a_whole_file_is_left_out(trained, own, tmp_path, capsys):
    path = own / T12_DAYS[0] / "data_test.hdf5"
    path.write_bytes(path.read_bytes()[:1000])
    out = tmp_path / "submission.txt"
    given = ["decode", trained / "run", "--data", own, "--lm", trained / "lm", "--out", out]
    said = complaint(capsys, *given, "--skip-bad", "--threads", "1")
    assert f"{path}: cannot be read, and each of its trials needs a line of the submission" in said
    assert not out.exists()
