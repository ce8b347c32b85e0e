"""Settings of a speech LLM: recipes, stages, and what cannot be."""

import pytest
import yaml

from cortext.config import save_config
from cortext.errors import ConfigError
from cortext.training.config import RECIPES, read_train_config
from cortext_speechllm.config import SpeechLLMConfig, read_speech_config


def test_first_recipe_is_the_published_decoder_with_a_frozen_reader():
    config, published = read_speech_config("speech_llm"), read_train_config("gru")
    assert config.model == published.model
    assert config.dataset == published.dataset
    for name in (
        "num_training_batches",
        "lr_max",
        "lr_min",
        "lr_warmup_steps",
        "lr_max_day",
        "epsilon",
    ):
        assert getattr(config, name) == getattr(published, name), name
    assert config.speech.weights == {
        "alignment": 1.0,
        "tokens": 1.0,
        "contrastive": 0.0,
        "ctc": 0.0,
    }
    assert config.speech.alignment == "cosine"
    assert config.speech.lora is None
    assert (config.batches_per_train_log, config.batches_per_val_step) == (100, 1000)
    assert config.in_stages() == [("", config)]


def test_better_recipe_goes_from_phonemes_over_speech_to_sentences():
    (ctc, first), (alignment, second), (end, third) = read_speech_config(
        "speech_llm_best"
    ).in_stages()
    assert (ctc, alignment, end) == ("ctc", "alignment", "end_to_end")
    assert first.speech.weights == {"alignment": 0.0, "tokens": 0.0, "contrastive": 0.0, "ctc": 1.0}
    assert not first.speech.reads_language_model
    assert second.speech.alpha
    assert not second.speech.reads_language_model
    assert third.speech.beta
    assert third.speech.gamma
    lora = third.speech.lora
    assert lora is not None
    assert (lora.r, lora.alpha, lora.dropout) == (8, 32.0, 0.2)
    assert lora.modules == [
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    ]
    assert third.speech.temperature == 0.1
    assert third.best_metric == "val_wer"
    assert third.stages == []


def test_what_a_run_keeps_is_read_as_the_same(tmp_path):
    (_, _), (_, _), (_, config) = read_speech_config("speech_llm_best").in_stages()
    save_config(config, tmp_path / "config.yaml")
    assert read_speech_config(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"speech": {"gama": 1.0}}, "unknown key speech.gama; did you mean 'gamma'?"),
        ({"speech": {"alignment": "dtw"}}, "speech.alignment is 'dtw'; one of 'cosine', 'mse'"),
        ({"speech": {"alpha": -1}}, "speech.alpha is -1.0; it must be at least 0 and finite"),
        ({"speech": {"alpha": 0, "beta": 0}}, "every loss has weight 0"),
        (
            {"speech": {"temperature": 0}},
            "speech.temperature is 0.0; it must be above 0 and finite",
        ),
        (
            {"speech": {"beta": 0, "lora": {}}},
            "speech.lora adds to the language model, and speech.beta",
        ),
        ({"speech": {"lora": {"r": 0}}}, "speech.lora.r is 0; it must be at least 1"),
        (
            {"speech": {"lora": {"dropout": 1}}},
            "speech.lora.dropout is 1.0; it must be at least 0 and below 1",
        ),
        ({"speech": {"lora": {"modules": []}}}, "speech.lora.modules names no matrix"),
        (
            {"speech": {"generation": {"beams": 0}}},
            "speech.generation.beams is 0; it must be at least 1",
        ),
        (
            {"speech": {"generation": {"min_length": 60}}},
            "speech.generation.min_length is 60, and max_length is 50",
        ),
        ({"speech": {"quantize": "2bit"}}, "speech.quantize is '2bit'; one of '4bit', '8bit'"),
        (
            {"loss": {"kind": "ctc"}},
            "loss is set; the losses of a speech LLM are in section speech",
        ),
        ({"stages": [{"name": "a"}, {"name": "a"}]}, "two stages have one name"),
        ({"stages": [{"name": "../up"}]}, "letters, digits, '-' and '_' can name a stage"),
        ({"stages": [{"set": {}}]}, "missing key stages.name"),
    ],
)
def test_what_cannot_be_is_one_line(changes, line, tmp_path):
    file = tmp_path / "speech.yaml"
    file.write_text(yaml.safe_dump(changes))
    with pytest.raises(ConfigError) as caught:
        read_speech_config(file)
    assert line in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("speech.lora.rank", 8, "stage 'one' sets speech.lora.rank, which there is not"),
        ("speech.beta", "much", "stage 'one': speech.beta is 'much'"),
        ("speech.nothing", 1, "stage 'one': unknown key speech.nothing"),
    ],
)
def test_what_a_stage_cannot_set_is_one_line(key, value, line):
    config = read_speech_config("speech_llm", [f"stages=[{{name: one, set: {{{key}: {value}}}}}]"])
    with pytest.raises(ConfigError, match=line.replace("[", r"\[")):
        config.in_stages()


def test_recipes_are_shipped():
    assert {"speech_llm.yaml", "speech_llm_best.yaml"} <= {
        recipe.name for recipe in RECIPES.glob("*.yaml")
    }
    assert isinstance(read_speech_config("speech_llm"), SpeechLLMConfig)
