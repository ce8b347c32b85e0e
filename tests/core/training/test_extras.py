"""A model of one's own with extras, from training to an adapted day."""

import json

from right_plugin import RIGHT

from cortext.evaluation import evaluate
from cortext.models import MODELS
from cortext.plugins import load_plugin
from cortext.training import train
from cortext_live.adapt import adapt


def test_a_model_with_extras_trains_is_evaluated_and_adapted(packed, config, tmp_path, registries):
    """It learns from its auxiliary head, and always gets lengths with more than one trial."""
    path = tmp_path / "mine.py"
    before = "        x_BPI = self.inputs"
    strict = "        assert len(x_BTC) == 1 or n_patches_B is not None, 'no lengths'\n"
    path.write_text(RIGHT.replace(before, strict + before))
    load_plugin(path)
    config.model = MODELS["mine"].Config(n_units=16)
    config.num_training_batches, config.batches_per_val_step = 40, 20
    config.lr_max = config.lr_max_day = 0.02
    config.lr_decay_steps = config.lr_decay_steps_day = 40
    train(config, packed, tmp_path / "run", progress=False)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    trained = [line for line in map(json.loads, lines) if line["kind"] == "train"]
    first, last = trained[0], trained[-1]
    assert last["train_ctc"] < 0.7 * first["train_ctc"]
    # The loss is that of the logits and a tenth of the auxiliary head's.
    heads = [10 * (line["train_loss"] - line["train_ctc"]) for line in (first, last)]
    assert heads[1] < 0.7 * heads[0]
    metrics = evaluate(tmp_path / "run", packed, "val", None, tmp_path / "eval")
    assert 0 < metrics.per < 1
    summary = adapt(
        tmp_path / "run",
        packed,
        tmp_path / "adapted",
        session="t15.2023.08.18",
        trials=6,
        batches=3,
        progress=False,
    )
    assert summary.batches == 3
