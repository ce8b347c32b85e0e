"""The Spanish example, small: docs/measured/own-tokens.md has it at the demo's size."""

import json

import pytest

from cortext.data import pack
from cortext.decoding.ngram import LanguageModel
from cortext.evaluation import evaluate
from cortext.text.language import LANGUAGES
from cortext.training import read_train_config, train
from cortext_data.simulate import simulate

BATCHES = 150
EASY = (
    "n_days=2", "train_per_day=120", "val_per_day=20", "test_per_day=2", "n_electrodes=16", "modulation=0.9",
    "phoneme_ms=150", "word_pause_ms=200", "lead_in_ms=250", "trail_ms=250",
)  # fmt: skip
RECIPE = (
    *(f"{name}={BATCHES}" for name in ("num_training_batches", "lr_decay_steps", "lr_decay_steps_day", "batches_per_val_step")),
    "lr_warmup_steps=20", "lr_warmup_steps_day=20", "model.n_units=64", "dataset.batch_size=16", "dataset.days_per_batch=2",
    "dataset.data_transforms.white_noise_std=0.5",
)  # fmt: skip


@pytest.mark.slow
def test_spanish_is_simulated_learnt_and_decoded(tmp_path):
    data, packed, run, lm = (tmp_path / name for name in ("data", "packed", "run", "lm"))
    simulate(data, "spanish", overrides=EASY)
    pack(data, packed)
    train(read_train_config("demo", RECIPE), packed, run, progress=False)
    LanguageModel.build(
        [data / "text" / "lm.txt"],
        4,
        lm,
        lexicon=data / "text" / "lexicon.txt",
        inventory=data / "cortext.json",
        language="es",
    )
    metrics = evaluate(run, packed, "val", lm, tmp_path / "eval")
    # 27 % and 23 % when this was written; a model that has learnt nothing has 100 %.
    assert metrics.per <= 0.4
    assert metrics.wer <= 0.4
    lines = (tmp_path / "eval" / "nbest.jsonl").read_text(encoding="utf-8").splitlines()
    trials = [json.loads(line) for line in lines]
    decoded = " ".join(trial["hypotheses"][0]["text"] for trial in trials)
    assert set("áéíóúñ") & set(decoded)
    known = {
        LANGUAGES["es"].normalize(line)
        for name in ("train", "lm")
        for line in (data / "text" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    }
    assert known.isdisjoint(LANGUAGES["es"].normalize(trial["reference"]) for trial in trials)
