"""The schema of the options: one field in Python, one line in native/options.hpp."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from cortext import _native
from cortext.decoding import engine
from cortext.decoding.engine import native_options
from cortext.decoding.options import DecoderOptions
from cortext.errors import DecodingError
from cortext.settings import settings_of

TOKENS = ("AA", "SIL", "BLANK")
BOUNDS = {
    name: (setting.minimum, setting.maximum)
    for name, setting in settings_of(DecoderOptions).items()
}
OF_PYTHON = {"blank_penalty", "label_priors", "prior_weight", "recombine", "llm"}
"""Fields that reach the compiled search as `offsets` and `logadd`, or not at all."""


def test_every_field_is_an_option_of_the_search_or_known_not_to_be():
    expected = {option.name for option in fields(DecoderOptions)} - OF_PYTHON
    assert set(_native.Options.BOUNDS) - {"logadd"} == expected


def test_the_search_has_no_member_that_python_does_not_know():
    """A member beside the list of native/options.hpp would have no bounds, and no field."""
    members = {name for name in dir(_native.Options) if not name.startswith("__")}
    assert members == {*_native.Options.BOUNDS, "BOUNDS", "offsets"}
    text = (Path(__file__).parents[3] / "native" / "options.hpp").read_text()
    (body,) = re.findall(r"^struct Options \{\n(.*?)^\};$", text, re.MULTILINE | re.DOTALL)
    declared = [line.strip() for line in body.splitlines() if "//" not in line]
    assert declared == [
        "#define CORTEXT_MEMBER(type, name, initial, low, high) type name = initial;",
        "CORTEXT_OPTIONS(CORTEXT_MEMBER)",
        "#undef CORTEXT_MEMBER",
        "std::vector<double> offsets;",
    ]
    listed = re.findall(r"OPTION\(\w+, (\w+),", text)
    assert listed == list(_native.Options.BOUNDS), "run `make native`"


@pytest.mark.parametrize("name", sorted(set(BOUNDS) - OF_PYTHON))
def test_bounds_and_defaults_are_the_same_in_python_and_in_the_search(name: str):
    assert _native.Options.BOUNDS[name] == BOUNDS[name]
    assert getattr(_native.Options(), name) == getattr(DecoderOptions(), name)


@pytest.mark.parametrize("name", sorted(set(BOUNDS) - OF_PYTHON))
def test_the_search_gets_the_value_of_every_option(name: str):
    low, high = BOUNDS[name]
    for value in (low, high):
        assert getattr(native_options(DecoderOptions(**{name: value}), TOKENS), name) == value


def test_the_search_gets_flags():
    given = native_options(DecoderOptions(sil_required=True, recombine="max"), TOKENS)
    assert (given.sil_required, given.logadd) == (True, False)


def test_a_compiled_module_older_than_an_option_is_refused(monkeypatch):
    # As if `llm` were a new option that the compiled search has to read.
    monkeypatch.setattr(engine, "NOT_READ_BY_NAME", engine.NOT_READ_BY_NAME - {"llm"})
    with pytest.raises(
        DecodingError,
        match=r"^the compiled search does not know the option 'llm'; run `make native`$",
    ):
        native_options(DecoderOptions(), TOKENS)
