import ast
import inspect
from pathlib import Path

import numpy as np
import pytest
import yaml

from cortext.config import save_config, to_mapping
from cortext.errors import ConfigError
from cortext.features import AugmentationConfig
from cortext.models import gru
from cortext.training import DatasetConfig, TrainConfig, read_train_config
from cortext.training import config as config_module
from cortext.training.config import read_run_config
from cortext_speechllm.config import SpeechLLMConfig

CONFIGS = Path(__file__).resolve().parents[3] / "configs"

# The release's model_training/rnn_args.yaml, without paths and logging.
PUBLISHED = """
model: {n_units: 768, n_layers: 5, rnn_dropout: 0.4, rnn_trainable: true, patch_size: 14, patch_stride: 4,
        input_network: {input_trainable: true, input_layer_dropout: 0.2}}
num_training_batches: 120000
lr_scheduler_type: cosine
lr_max: 0.005
lr_min: 0.0001
lr_decay_steps: 120000
lr_warmup_steps: 1000
lr_max_day: 0.005
lr_min_day: 0.0001
lr_decay_steps_day: 120000
lr_warmup_steps_day: 1000
beta0: 0.9
beta1: 0.999
epsilon: 0.1
weight_decay: 0.001
weight_decay_day: 0
seed: 10
grad_norm_clip_value: 10
batches_per_train_log: 200
batches_per_val_step: 2000
batches_per_save: 0
early_stopping: false
early_stopping_val_steps: 20
dataset: {batch_size: 64, days_per_batch: 4, seed: 1, must_include_days: null, feature_subset: null,
          bad_trials_dict: null,
          data_transforms: {white_noise_std: 1.0, constant_offset_std: 0.2, random_walk_std: 0.0, random_walk_axis: -1,
                            static_gain_std: 0.0, random_cut: 3, smooth_kernel_size: 100, smooth_data: true,
                            smooth_kernel_std: 2}}
"""


def contains(whole, part):
    if isinstance(part, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    return whole == part


def test_a_mapping_is_a_configuration_as_a_file_is(tmp_path):
    given = {
        "model": {"kind": "gru", "n_units": np.int64(8)},
        "dataset": DatasetConfig(batch_size=8),
    }
    found = read_train_config(given, ["lr_max=0.1"])
    assert (found.model.n_units, found.dataset.batch_size, found.lr_max) == (8, 8, 0.1)
    assert found.lr_min == TrainConfig().lr_min
    assert given["dataset"].batch_size == 8
    assert "lr_max" not in given
    published = yaml.safe_load(PUBLISHED)
    assert read_train_config(published) == read_train_config("gru")
    with pytest.raises(ConfigError, match=r"^config: unknown key n_units; "):
        read_train_config({"n_units": 8})
    with pytest.raises(ConfigError, match=r"^config: model\.n_units is 'many'"):
        read_train_config({"model": {"n_units": "many"}})


def test_the_nearest_file_or_recipe_is_named_for_a_path_that_is_not_there(tmp_path):
    (tmp_path / "mine.yaml").write_text("{}")
    with pytest.raises(
        ConfigError, match=r"mine\.yml: no such file; did you mean '.*/mine\.yaml'\?$"
    ):
        read_train_config(tmp_path / "mine.yml")
    with pytest.raises(ConfigError, match=r"no such file; did you mean '.*configs/demo\.yaml'\?$"):
        read_train_config(str(CONFIGS / "demo.yml"))
    with pytest.raises(ConfigError, match=r"no such file; did you mean the recipe 'tiny'\?$"):
        read_train_config(tmp_path / "nowhere" / "tiny.yaml")
    with pytest.raises(ConfigError, match=r"no such file; check the path$"):
        read_train_config(tmp_path / "nowhere" / "other.yaml")


def test_the_published_recipe_is_the_default_and_the_shipped_file_says_it_in_full():
    published = yaml.safe_load(PUBLISHED)
    assert contains(to_mapping(read_train_config("gru")), published)
    assert contains(to_mapping(TrainConfig()), published)
    assert contains(yaml.safe_load((CONFIGS / "gru.yaml").read_text()), published)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_recipe_survives_writing_and_reading(path, tmp_path):
    kind = SpeechLLMConfig if path.stem.startswith("speech_llm") else TrainConfig
    settings = read_train_config(path.stem, cls=kind)
    save_config(settings, tmp_path / "again.yaml")
    assert read_train_config(tmp_path / "again.yaml", cls=kind) == settings


@pytest.mark.parametrize(
    ("recipe", "n_trials", "epochs", "lower_at", "rate", "masks", "seconds"),
    [
        ("transformer_t15", 8072, 500, 300, 2e-3, 0.05, (5, 20, 20)),
        ("transformer_t12", 8800, 250, 150, 1e-3, 0.075, (5, 20, 12.5)),
    ],
)
def test_the_transformer_recipes_hold_the_published_values(
    recipe, n_trials, epochs, lower_at, rate, masks, seconds
):
    """The published configurations, in trials, epochs and seconds."""
    config = read_train_config(recipe)
    batches = n_trials / config.dataset.batch_size
    assert config.num_training_batches == pytest.approx(epochs * batches, abs=1)
    assert config.lr_steps == pytest.approx([lower_at * batches], abs=1)
    assert (config.lr_max, config.lr_gamma, config.lr_scheduler_type) == (rate, 0.1, "multistep")
    assert config.loss.per_label
    (mask,) = config.dataset.augmentations
    model = config.model
    assert (mask.n_masks, mask.max_share, mask.after_smoothing) == (20, masks, True)
    assert mask.patch_bins == model.patch_size == model.patch_stride
    frames = [*model.train_context_frames, model.context_frames]
    frame_s = 0.02 * model.patch_stride
    assert [n * frame_s for n in frames] == pytest.approx(seconds, abs=frame_s)
    shape = (model.n_layers, model.n_units, model.n_heads, model.head_units, model.dropout)
    assert shape == (5, 384, 6, 64, 0.35)
    assert model.input_network.day_layer == "none"


def test_masks_of_other_patches_than_the_models_are_refused():
    other = ["model.patch_size=5", "model.patch_stride=5"]
    with pytest.raises(
        ConfigError, match=r"patch_bins is 4, and model\.patch_size 5; set patch_bin"
    ):
        read_train_config("transformer", other)
    mask = "dataset.augmentations=[{kind: time_mask, patch_bins: %d}]"
    assert read_train_config("transformer", [*other, mask % 10]).model.patch_size == 5
    assert read_train_config("transformer", [*other, mask % 1]).model.patch_size == 5
    # Patches that overlap, or single bins, have no masks of their own.
    assert read_train_config("demo", [mask % 4]).dataset.augmentations[0].patch_bins == 4


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lr_maxx=1", "unknown key lr_maxx; did you mean 'lr_max'"),
        ("model.n_unit=8", r"unknown key model.n_unit; did you mean 'n_units'"),
        ("model.kind=gur", "unknown model 'gur'; did you mean 'gru'"),
        ("dataset.batch_size=many", "dataset.batch_size is 'many'"),
        ("dataset.data_transforms.random_cut=-1", "random_cut is -1"),
        ("lr_scheduler_type=step", "one of 'cosine', 'linear', 'multistep'"),
        ("lr_scheduler_type=multistep", "lr_scheduler_type is 'multistep' without lr_steps"),
        ("lr_steps=[20, 10]", r"lr_steps is \[20, 10\]; numbers of batches must rise from 1"),
        ("lr_steps=[0]", r"lr_steps is \[0\]; numbers of batches must rise from 1"),
        ("lr_gamma=0", "lr_gamma is 0.0; it must be above 0 and at most 1"),
        (
            "lr_steps=[10, 20]",
            r"lr_steps is \[10, 20\], which lr_scheduler_type 'cosine' does not use; set",
        ),
        ("lr_gamma=0.5", "lr_gamma is 0.5, which lr_scheduler_type 'cosine' does not use; set"),
        ("best_metric=per", "'val_per', 'val_wer', 'val_loss'"),
        ("beta1=1.0", "beta1 is 1.0; it must be at least 0 and below 1"),
        ("lr_max=0", "lr_max is 0.0; it must be above 0"),
        ("lr_min.x=0", "lr_min"),
        ("lr_max=.inf", "lr_max is inf; it must be above 0 and finite"),
        ("weight_decay=.inf", "weight_decay is inf; it must be at least 0 and finite"),
        ("epsilon=.nan", "epsilon is nan"),
        ("seed=-1", "seed is -1"),
    ],
)
def test_a_wrong_setting_is_named(override, message):
    with pytest.raises(ConfigError, match=message):
        read_train_config("tiny", [override])


def test_steps_of_the_learning_rate_need_the_multistep_schedule():
    recipe = "transformer_t12"  # multistep, lower from batch 20,625 on
    for kind in ("cosine", "linear"):
        with pytest.raises(ConfigError, match=rf"lr_steps is \[20625\], which .*'{kind}' does not"):
            read_train_config(recipe, [f"lr_scheduler_type={kind}"])
        read_train_config(recipe, [f"lr_scheduler_type={kind}", "lr_steps=[]"])
    with pytest.raises(ConfigError, match=r"lr_steps is \[3\], which .* 'cosine' does not use"):
        read_train_config(TrainConfig(), ["lr_steps=[3]"])
    with pytest.raises(ConfigError, match=r"lr_gamma is 0.2, which .* 'cosine' does not use"):
        read_train_config({"lr_gamma": 0.2})


def test_the_settings_of_an_adapted_run_keep_the_unused_steps_of_its_source(tmp_path):
    """Adapting writes them beside a schedule of its own."""
    before = TrainConfig(lr_steps=[3])
    assert read_train_config(before, ["seed=4"]).lr_steps == [3]
    save_config(before, tmp_path / "config.yaml")
    assert read_run_config(tmp_path).lr_steps == [3]


def test_overrides_reach_into_sections():
    settings = read_train_config(
        "tiny", ["model.input_network.input_layer_dropout=0.5", "dataset.batch_size=3"]
    )
    assert settings.model.input_network.input_layer_dropout == 0.5
    assert settings.dataset.batch_size == 3


def test_an_unknown_recipe_names_the_nearest():
    with pytest.raises(ConfigError, match="called 'demmo'; did you mean 'demo'"):
        read_train_config("demmo")


@pytest.mark.parametrize("module", [config_module, gru, inspect.getmodule(AugmentationConfig)])
def test_every_field_is_documented_beneath_it(module):
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if (
            isinstance(node, ast.ClassDef)
            and node.decorator_list
            and "dataclass" in ast.dump(node.decorator_list[0])
        ):
            for field, below in zip(node.body, [*node.body[1:], None], strict=True):
                if isinstance(field, ast.AnnAssign):
                    assert isinstance(below, ast.Expr), f"{node.name}.{ast.unparse(field.target)}"


@pytest.mark.parametrize("name", ["batch_size", "days_per_batch", "length_buckets"])
def test_a_batch_of_nothing_is_refused(name):
    with pytest.raises(ConfigError, match=rf"dataset\.{name} is 0; it must be at least 1"):
        read_train_config("tiny", [f"dataset.{name}=0"])
