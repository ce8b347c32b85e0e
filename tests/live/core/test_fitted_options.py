"""Live commands decode with the options that were fitted to their run, and say so."""

import json
import re

import pytest
from made_fit import made_fit
from page_process import DAYS, N_FEATURES
from refusals import complaint
from untrained import untrained_run

from cortext.cli import run as cortext
from cortext.decoding import DecoderOptions
from cortext_live.brand.parameters import NodeConfig
from cortext_live.brand.process import _load
from cortext_live.page.settings import LiveSettings
from cortext_live.page.setup import open_decoding

FITTED = DecoderOptions(beam=11, word_score=-1.5, sil_required=True, recombine="max")
NAMES = ("beam", "word_score", "sil_required", "recombine")


def search(options):
    return {name: getattr(options, name) for name in NAMES}


@pytest.fixture(scope="module")
def run(page_root, tmp_path_factory):
    run = untrained_run(tmp_path_factory.mktemp("run"), DAYS, N_FEATURES)
    made_fit(page_root / "lm", FITTED).write(run)
    return run


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, FITTED),
        ("RUN", FITTED),
        ("default", DecoderOptions()),
        ({"beam": 5}, DecoderOptions(beam=5)),
    ],
)
def test_a_brand_node_takes_them_unless_its_graph_says_something_else(
    page_root, run, options, expected
):
    options = str(run) if options == "RUN" else options
    pipeline = _load(NodeConfig(run, page_root / "lm", options=options)).pipeline
    assert search(pipeline.decoder_options) == search(expected)


def test_the_page_takes_them_unless_it_is_told_others(page_root, run):
    settings = {"run": run, "lm": page_root / "lm", "data": page_root / "data"}
    for options, expected in ((None, FITTED), ("default", DecoderOptions())):
        decoding = open_decoding(LiveSettings(**settings, options=options))
        try:
            assert search(decoding._days.options) == search(expected)
        finally:
            decoding.close()


def test_the_language_model_server_takes_a_runs_options(page_root, run, monkeypatch, tmp_path):
    started = []

    class Server:
        def __init__(self, protocol, *_, **__):
            started.append(protocol)

        def run(self):
            pass

    monkeypatch.setattr("cortext_live.lm_server.server.LMServer", Server)
    log = tmp_path / "log"
    parts = ["lm-server", "--lm", page_root / "lm", "--profile", "json", "--log", log]
    assert cortext([str(part) for part in (*parts, "--options", run)]) == 0
    assert search(started[0]._decoder.options) == search(FITTED)
    noted = [line for line in map(json.loads, log.read_text().splitlines()) if "note" in line]
    assert [line["event"] for line in noted] == ["decoder_options", "confidence"]
    options, confidence = (line["note"] for line in noted)
    assert re.match(f"decoder options: those of {run}, fitted on 6 val trials", options)
    assert re.match("confidences: posteriors of the search, .*belong to no run", confidence)


def test_a_run_without_fitted_options_is_refused_where_it_is_named(page_root, tmp_path, capsys):
    run = untrained_run(tmp_path / "run", DAYS, N_FEATURES)
    said = complaint(capsys, "lm-server", "--lm", page_root / "lm", "--options", run)
    assert f"{run}: no decoder.yaml" in said
