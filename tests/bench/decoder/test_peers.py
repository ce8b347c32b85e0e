"""Every search that is installed reads a clear posterior as what it says."""

import sys

import pytest

from cortext.errors import DecodingError
from cortext_bench.decoder.searcher import SEARCHERS, Paths, searcher
from cortext_bench.workers import Missing

MODULES = {
    "flashlight": ("flashlight.lib.text",),
    "kaldi": ("kaldi_decoder", "kaldifst", "kaldilm"),
    "kaldi-lattice": ("kaldi_decoder", "kaldifst", "kaldilm"),
    "pyctcdecode": ("pyctcdecode.alphabet", "kenlm"),
}


@pytest.fixture
def paths(lm_dir, tmp_path) -> Paths:
    return Paths(lm_dir, lm_dir, tmp_path)


@pytest.mark.parametrize("name", SEARCHERS)
@pytest.mark.parametrize("sentence", ["the cats sat too", "i see the sea", "two cats sat"])
def test_a_clear_posterior_is_read(name, sentence, paths, clear_posterior):
    for module in MODULES.get(name, ()):
        pytest.importorskip(module)
    search = searcher(name)(paths)
    found = search.texts(search.decode(clear_posterior(sentence)))
    assert len(found) == len(set(found)) <= 100
    if name == "pyctcdecode":  # it has one word of each set of homophones
        found = [text.replace("see", "sea").replace("two", "too") for text in found]
        sentence = sentence.replace("see", "sea").replace("two", "too")
    assert found[0] == sentence


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("cortext", {"acoustic_scale": 1e-3}),
        ("flashlight", {"lm_weight": 1e3}),
        ("kaldi", {"acoustic_scale": 1e-3}),
        ("kaldi-lattice", {"acoustic_scale": 1e-3}),
        ("pyctcdecode", {"blank_penalty": 1e9}),
    ],
)
def test_settings_take_effect(name, change, paths, clear_posterior):
    for module in MODULES.get(name, ()):
        pytest.importorskip(module)
    search, log_probs_PV = searcher(name)(paths), clear_posterior("two cats sat")
    before = search.texts(search.decode(log_probs_PV))
    search.configure({**search.start, **change})
    assert search.texts(search.decode(log_probs_PV)) != before


@pytest.mark.parametrize("name", MODULES)
def test_a_peer_that_is_not_installed_is_missing(name, paths, monkeypatch):
    monkeypatch.setitem(sys.modules, MODULES[name][0], None)
    with pytest.raises(Missing, match="pip install"):
        searcher(name)(paths)


def test_an_unknown_search_is_refused():
    with pytest.raises(DecodingError, match="did you mean 'kaldi'"):
        searcher("kaldy")
