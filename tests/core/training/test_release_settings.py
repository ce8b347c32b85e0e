"""The release's settings file as a configuration."""

import re
from pathlib import Path

import forked_training
import pytest
import release_oracle as oracle
import yaml

from cortext.config import to_mapping
from cortext.errors import ConfigError
from cortext.training import TrainConfig, read_train_config
from cortext.training.release_settings import COMMAND_LINE, ELSEWHERE, SAME, lookup

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/reference/release-settings.md"
OLDER = {"model.bidirectional": False, "distributed_training": False}
"""Keys of the file that the published weights were trained from, which the present one lacks."""


def flat(mapping: dict, prefix: str = "") -> dict:
    found = {}
    for key, value in mapping.items():
        found |= (
            flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        )
    return found


def write(path: Path, **changes) -> Path:
    path.write_text(yaml.safe_dump(oracle.tiny_arguments(**changes)))
    return path


def test_every_published_key_has_its_place_or_a_note():
    published = flat(yaml.safe_load(oracle.PUBLISHED)) | OLDER
    assert set(published) == set(SAME) | set(ELSEWHERE)
    assert not set(SAME) & set(ELSEWHERE)
    assert {key: setting.published for key, setting in ELSEWHERE.items()} == {
        key: published[key] for key in ELSEWHERE
    }
    ours = set(flat(to_mapping(TrainConfig())))
    assert set(SAME) <= ours
    assert not set(ELSEWHERE) & ours


def test_the_documents_table_is_the_codes():
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|$", DOCUMENT.read_text(), re.MULTILINE)
    documented = {key: place for keys, place in rows for key in re.findall(r"`([^`]+)`", keys)}
    expected = dict.fromkeys(SAME, "the same") | {
        key: setting.instead for key, setting in ELSEWHERE.items()
    }
    assert documented == expected


def test_the_published_file_is_read_unchanged(tmp_path):
    (tmp_path / "rnn_args.yaml").write_text(oracle.PUBLISHED)
    found = flat(to_mapping(read_train_config(tmp_path / "rnn_args.yaml")))
    published = flat(yaml.safe_load(oracle.PUBLISHED))
    assert {key: found[key] for key in SAME} == {key: published[key] for key in SAME}
    assert found["precision"] == "bf16"
    ours = {key for key in found if key not in SAME and key != "precision"}
    assert {key: found[key] for key in ours} == {
        key: flat(to_mapping(TrainConfig()))[key] for key in ours
    }


def test_what_has_no_effect_is_said_once_in_one_line_that_is_not_on_stdout(tmp_path):
    path = write(tmp_path / "args.yaml", save_val_data=True)
    started = forked_training.Started(
        tmp_path / "stderr",
        {},
        forked_training.read_settings,
        path,
        ["seed=3"],
        tmp_path / "stdout",
    )
    stderr = started.wait(60)
    assert (started.process.exitcode, (tmp_path / "stdout").read_text()) == (0, "")
    assert (
        stderr
        == f"{path}: gpu_number, output_dir, checkpoint_dir, dataset.dataset_dir give way to the"
        " command line; save_val_data is not followed: the validation features are not copied;"
        " the data have them\n"
    )


def test_a_recipe_of_ours_says_nothing(caplog):
    read_train_config("gru")
    assert not caplog.records


@pytest.mark.parametrize(
    ("key", "value"),
    [("save_best_checkpoint", False), ("log_val_skip_logs", True), ("distributed_training", True)],
)
def test_a_value_that_is_not_followed_is_reported(tmp_path, caplog, key, value):
    read_train_config(write(tmp_path / "args.yaml", **{key: value}))
    assert f"{key} is not followed: {ELSEWHERE[key].instead}" in caplog.text


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("init_from_checkpoint", True, "`cortext import checkpoint`, then --init-from"),
        ("mode", "test", "mode is 'test'; only 'train' works"),
        ("dataset__n_classes", 40, "dataset.n_classes is 40; only 41 works"),
        ("model__input_network__n_input_layers", 2, "there is one day layer"),
        ("model__bidirectional", True, "the GRU reads forwards only"),
        ("use_amp", "yes", "use_amp is 'yes'; true or false is needed"),
        ("precision", "bf16", "use_amp is False and precision 'bf16'; give only one"),
        ("lr_maxx", 1, "unknown key lr_maxx; did you mean 'lr_max'"),
        ("dataset__neural_dims", 1, "unknown key dataset.neural_dims; known: "),
        ("model", 3, "model is a int"),
        ("dataset", None, "dataset is a NoneType"),
    ],
)
def test_what_cannot_be_followed_is_refused_with_the_file(tmp_path, key, value, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        read_train_config(write(tmp_path / "args.yaml", **{key: value}))
    assert str(error.value).startswith(f"{tmp_path / 'args.yaml'}: ")


@pytest.mark.parametrize(("use_amp", "precision"), [(True, "bf16"), (False, "fp32")])
def test_automatic_mixed_precision_is_bfloat16_and_none_is_float32(tmp_path, use_amp, precision):
    assert read_train_config(write(tmp_path / "args.yaml", use_amp=use_amp)).precision == precision


def test_settings_of_ours_may_stand_in_a_published_file(tmp_path):
    found = read_train_config(
        write(tmp_path / "args.yaml", best_metric="val_loss", dataset__length_buckets=3)
    )
    assert (found.best_metric, found.dataset.length_buckets) == ("val_loss", 3)


def test_references_between_settings_are_followed(tmp_path):
    changes = {
        "num_training_batches": 40,
        "lr_decay_steps": "${num_training_batches}",
        "lr_decay_steps_day": "${a}",
    }
    with pytest.raises(
        ConfigError, match=re.escape("${a} cannot be resolved: there is no such key")
    ):
        read_train_config(write(tmp_path / "args.yaml", **changes))
    changes |= {
        "lr_decay_steps_day": "${lr_decay_steps}",
        "dataset__seed": "${seed}",
        "output_dir": "runs/${mode}/x",
    }
    found = read_train_config(write(tmp_path / "args.yaml", **changes))
    assert (found.lr_decay_steps, found.lr_decay_steps_day, found.dataset.seed) == (40, 40, 10)
    with pytest.raises(ConfigError, match="it refers to itself"):
        read_train_config(write(tmp_path / "args.yaml", seed="${beta0}", beta0="${seed}"))


def test_a_key_that_is_only_like_a_published_one_is_found(tmp_path):
    assert lookup({"dataset": 3}, "dataset.neural_dim", "absent") == "absent"
    assert set(COMMAND_LINE) <= set(ELSEWHERE)
    (tmp_path / "args.yaml").write_text("- 1\n- 2\n")
    with pytest.raises(ConfigError, match="the file is a list"):
        read_train_config(tmp_path / "args.yaml")
