"""The evaluator of the FALCON challenge drives our decoder, in an environment of its own."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest

# Warnings of the evaluator's own libraries are none of ours.
pytestmark = [pytest.mark.falcon, pytest.mark.filterwarnings("default")]
pytest.importorskip("falcon_challenge", reason="run `make test-falcon`")

from falcon_challenge.evaluator import DATASET_HELDINOUT_MAP, FalconEvaluator
from falcon_participant import write_challenge, writing_config

from cortext import train
from cortext.data.session_files import read_trials
from cortext.decoding import greedy
from cortext.models import load_model
from cortext.text import edit_counts
from cortext_data.readers.falcon import falcon_h2
from cortext_data.readers.importing import import_source
from cortext_published.falcon import FalconDecoder

DAYS = DATASET_HELDINOUT_MAP["h2"]
GUIDE = Path(__file__).resolve().parents[3] / "docs/guides/import-falcon-h2.md"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("falcon")
    write_challenge(root / "000950", root / "h2" / "eval", DAYS["held_in"], DAYS["held_out"])
    import_source(falcon_h2(root / "000950"), root / "data")
    train(writing_config(), root / "data", root / "run", progress=False)
    return root


class Watched(FalconDecoder):
    """Our decoder, which notes the day of each file."""

    def reset(self, dataset_tags=("",)):
        super().reset(dataset_tags)
        self.sessions = [*getattr(self, "sessions", []), self.session]


def evaluated(root, folder, phase, decoder, monkeypatch):
    """Let the evaluator drive the decoder; return its numbers, and the texts by day."""
    data = root / phase
    data.mkdir()
    (data / folder.name).symlink_to(folder, target_is_directory=True)
    monkeypatch.setenv("EVAL_DATA_PATH", str(data))
    monkeypatch.setenv("PREDICTION_PATH_LOCAL", str(data / "predictions.pkl"))
    monkeypatch.setenv("GT_PATH", str(data / "truth.pkl"))
    evaluator = FalconEvaluator(eval_remote=False, split="h2", dataloader_workers=0)
    found = evaluator.evaluate(decoder, phase=phase)["result"][0][f"{phase}_split_h2"]
    predictions = pickle.loads((data / "predictions.pkl").read_bytes())["h2"]
    return found, {
        day: texts[0] for day, texts in predictions.items() if day != "normalized_latency"
    }


def words(text):
    """Split a text as the challenge does: marks are words."""
    text = text.replace(">", " ")
    for mark in "~,!?":
        text = text.replace(mark, f" {mark}")
    return text.split(" ")


def test_minival_scores_the_imported_val_trials_decoded_offline(root, monkeypatch):
    decoder = Watched(root / "run", calibration=root / "000950")
    found, streamed = evaluated(root, root / "000950", "minival", decoder, monkeypatch)

    model = load_model(root / "run")
    cer, wer = [], []
    for day in DAYS["held_in"]:
        session = f"t5.{day}"
        path = root / "data" / session / "data_val.hdf5"
        counts = {"characters": [], "words": []}
        texts = []
        for trial in read_trials(path, labels_required=True):
            logits_PV = model.logits(trial.features_TC, session)
            text = "".join(model.inventory.names(greedy(logits_PV, model.inventory)))
            cue = "".join(model.inventory.names(trial.phoneme_ids))
            texts.append(text.strip(">"))
            counts["characters"].append((edit_counts([*cue], [*texts[-1]]).errors, len(cue)))
            counts["words"].append(
                (edit_counts(words(cue), words(texts[-1])).errors, len(words(cue)))
            )
        assert streamed[f"ses-{day.replace('.', '')}"] == texts
        for rates, unit in ((cer, "characters"), (wer, "words")):
            errors, lengths = np.sum(counts[unit], axis=0)
            rates.append(errors / lengths)
    assert found["Held In CER"] == pytest.approx(np.mean(cer), abs=1e-12)
    assert found["Held In WER"] == pytest.approx(np.mean(wer), abs=1e-12)
    assert 0 < found["Held In CER"] < 0.15
    assert decoder.sessions[1:] == [f"t5.{day}" for day in DAYS["held_in"]]


def test_withheld_trials_of_all_days_are_scored(root, monkeypatch):
    decoder = Watched(root / "run", calibration=root / "000950")
    found, _ = evaluated(root, root / "h2", "test", decoder, monkeypatch)
    assert found["Held In CER"] < 0.15
    assert found["Held Out CER"] < 0.3
    days = [*DAYS["held_out"], *DAYS["held_in"]]
    assert decoder.sessions[1:] == [f"t5.{day}" for day in days]


def test_the_guide_works_as_written(root, tmp_path, monkeypatch, capsys):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/h2").symlink_to(root / "run")
    (tmp_path / "000950").symlink_to(root / "000950")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVAL_DATA_PATH", "none")
    for name in ("PREDICTION_PATH_LOCAL", "GT_PATH"):
        monkeypatch.delenv(name, raising=False)
    (code,) = re.findall(r"```python\n(.+?)```", GUIDE.read_text(), re.DOTALL)
    exec(code, {})
    assert "'Held In CER': " in capsys.readouterr().out
    assert (tmp_path / "local_prediction.pkl").is_file()
    assert (tmp_path / "local_gt.pkl").is_file()
