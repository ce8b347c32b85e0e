"""What may be searched, and what is refused before anything is trained."""

import pytest

from cortext.errors import ConfigError
from cortext.training import TrainConfig
from cortext_tune.space import Choice, Range, fit_space, label, parse_space, with_settings


def test_texts_become_choices_and_ranges():
    texts = [
        "lr_max=1e-4:0.01:log",
        "model.n_units = 16:64",
        "precision=bf16,fp32",
        "early_stopping=true,false",
    ]
    assert parse_space(texts) == {
        "lr_max": Range(0.0001, 0.01, log=True),
        "model.n_units": Range(16, 64),
        "precision": Choice(("bf16", "fp32")),
        "early_stopping": Choice((True, False)),
    }


def test_lists_and_sections_are_single_values():
    space = parse_space(
        ["dataset.must_include_days=[0,-1],[1],null", "model={kind: gru, n_units: 8},{kind: gru}"]
    )
    assert space["dataset.must_include_days"] == Choice(([0, -1], [1], None))
    assert space["model"] == Choice(({"kind": "gru", "n_units": 8}, {"kind": "gru"}))
    fitted = fit_space({"model": space["model"]}, TrainConfig())["model"]
    assert [value["n_units"] for value in fitted.values] == [8, 768]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("lr_max", "'lr_max' is not a search"),
        ("lr_max=", "is not a search"),
        ("=1,2", "is not a search"),
        ("lr_max=[1,", "not a list of YAML values"),
        ("lr_max=0.1:1:lag", "'lag' after the range is unknown"),
        ("lr_max=a:b", "lr_max has the bound 'a'"),
    ],
)
def test_what_is_no_search_is_refused(text, part):
    with pytest.raises(ConfigError, match=r"write key=|a number is needed") as caught:
        parse_space([text])
    assert part in str(caught.value)


def test_a_grid_takes_no_ranges():
    with pytest.raises(ConfigError, match="seed=1:30 is a range"):  # which YAML would read as 90
        parse_space(["seed=1:30"], ranges=False)


def test_a_setting_searched_twice_is_refused():
    with pytest.raises(ConfigError, match="lr_max is searched twice"):
        parse_space(["lr_max=1,2", "lr_max=3"])


def test_values_become_what_the_configuration_makes_of_them():
    space = fit_space(
        parse_space(["lr_max=1e-3,0.001,1", "weight_decay=0:1", "seed=0:9"]), TrainConfig()
    )
    assert space == {
        # YAML 1.1 reads 1e-3 as a text; equal values are tried once.
        "lr_max": Choice((0.001, 1.0)),
        "weight_decay": Range(0.0, 1.0),
        "seed": Range(0, 9),
    }
    assert not space["weight_decay"].is_integer
    assert space["seed"].is_integer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr_mx=1,2", "unknown key lr_mx; did you mean 'lr_max'"),
        ("model.n_unit=1,2", "unknown key model.n_unit; did you mean 'n_units'"),
        ("modle.n_units=1,2", "did you mean 'model'"),
        ("seed=1,many", "seed is 'many' .str.; int is needed"),
        ("seed=0.5:2", "seed is 0.5 .float.; int is needed"),
        ("lr_max=0.1,-1", "lr_max is -1.0; it must be above 0"),
        ("lr_max=0.1:0.01", "the first bound must be the lower one"),
        ("lr_min=0:0.1:log", "must begin above 0"),
        ("early_stopping=0:1", "bool is needed"),
    ],
)
def test_settings_that_cannot_be_are_named(text, message):
    with pytest.raises(ConfigError, match=message):
        fit_space(parse_space([text]), TrainConfig())


def test_settings_are_set_exactly():
    value = 0.00012345678901234567
    config = with_settings(
        TrainConfig(), {"lr_max": value, "dataset.must_include_days": [0, -1], "precision": "fp32"}
    )
    assert config.lr_max == value
    assert config.dataset.must_include_days == [0, -1]
    assert config.precision == "fp32"


def test_labels_are_short():
    assert (
        label({"lr_max": 0.00123456, "model.n_units": 64, "x": [1, "a"]})
        == "lr_max=0.001235 model.n_units=64 x=[1, a]"
    )
