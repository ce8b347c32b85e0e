"""Weights of a large model, swept in lists that it has read."""

import math

import pytest
from engine_cases import NEUTRAL

from cortext.decoding import Decoder, DecoderOptions, Hypothesis
from cortext.decoding.options import LLMOptions
from cortext.errors import LanguageModelError, MissingLibrary, RunError
from cortext.evaluation.decoder_files import DecoderFiles
from cortext.evaluation.settings import LargeModelFiles
from cortext_tune import DecoderSearch, parse_space, tune_decoder
from cortext_tune.decoder.material import tuning_parts

pytest.importorskip("optuna")
pytest.importorskip("transformers")

from tiny_llm import save_tiny_lm

from cortext_lm.llm.large_model import LLM
from cortext_lm.llm.model import CausalLM
from cortext_lm.llm.scoring import TokenScore
from cortext_tune.decoder.sweep import best_of, read_lists, sweep, write_lists

OPTIONS = DecoderOptions(**NEUTRAL, lm_weight=1.0, llm=LLMOptions(weight=0.5))


def scored(
    text: str, acoustic: float, ngram: float, llm: float, n_tokens: int
) -> tuple[Hypothesis, TokenScore]:
    return Hypothesis(text, 0.0, acoustic, ngram), TokenScore(llm, n_tokens)


LISTS = (
    # by hand: -10 - 8 + 4w against -11 - 4 - 4w, so the second is best below w = 3/8, and it is
    # right
    (scored("we see", -10, -8, -4, 2), scored("i see", -11, -4, -8, 2)),
    # -5 - 9 + 6w against -7 - 4: the first is best above w = 1/2, and it is right
    (scored("you hear", -5, -9, -3, 2), scored("you were near", -7, -4, -4, 3)),
)
REFERENCES = ("i see", "you hear")
SPACE = parse_space(["llm.weight=0.0:1.0"])


def test_the_sweep_finds_the_weight_that_the_scores_have_by_hand():
    """No weight gets both right without a price on tokens.

    2 errors below 3/8, 3 below 1/2, and 1 above.
    """
    points = sweep(LISTS, REFERENCES, OPTIONS, SPACE, 30, 0)
    for point in points:
        weight = point.settings.get("llm.weight", 0.5)
        assert point.errors == (2 if weight < 3 / 8 else 3 if weight < 1 / 2 else 1), weight
    assert points[0].settings == {}
    assert points[1].settings == {"llm.weight": 0.0}
    assert best_of(points).errors == 1


def test_a_price_on_tokens_is_swept_too():
    """At w = 1/3 the first list is right.

    The longer sentence of the second loses where a token costs more than 3: -5 - 6 - (3 + 2p) / 3 =
    -12 - 2p/3 against -7 - 8/3 - (4 + 3p) / 3 = -11 - p.
    """
    options = DecoderOptions(**NEUTRAL, llm=LLMOptions(weight=1 / 3))
    points = sweep(LISTS, REFERENCES, options, parse_space(["llm.token_penalty=2.0:4.0"]), 20, 0)
    for point in points[2:]:
        assert point.errors == (0 if point.settings["llm.token_penalty"] > 3 else 2)
    assert best_of(points).errors == 0


def test_lists_come_back_as_they_were_and_only_for_what_made_them(tmp_path):
    file = tmp_path / "lists.jsonl"
    lists = [
        [(Hypothesis("é", -0.1, -1 / 3, -math.pi, (), 0.25, -0.5, 2.0), TokenScore(-1e-17, 3))],
        list(LISTS[0]),
    ]
    write_lists(file, lists, {"model": "a", "places": (1, 2)})
    assert read_lists(file, {"model": "a", "places": (1, 2)}) == lists
    assert read_lists(file, {"model": "b", "places": (1, 2)}) is None
    file.write_text(file.read_text()[:-20])
    assert read_lists(file, {"model": "a", "places": (1, 2)}) is None
    assert read_lists(tmp_path / "no", {}) is None


def test_a_large_model_that_is_none_is_an_error_before_any_trial(evaluation, lm, tmp_path):
    (tmp_path / "empty").mkdir()
    files = DecoderFiles(lm, DecoderOptions(), llm=LargeModelFiles(str(tmp_path / "empty")))
    with pytest.raises(LanguageModelError, match="it holds no model"):
        tune_decoder(*tuning_parts(evaluation, 0.3, 0), files, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_search_with_a_large_model_reads_the_lists_once_and_decodes_with_what_it_found(
    evaluation, lm, tmp_path, monkeypatch
):
    model = save_tiny_lm(tmp_path / "model")
    start = DecoderOptions(blank_penalty=30.0, nbest=8)
    files = DecoderFiles(lm, start, llm=LargeModelFiles(str(model), device="cpu"))
    search = DecoderSearch(
        parse_space(["word_score=-2:0"]), n_trials=3, llm_points=20, time_weight=0.0
    )
    parts, out, calls = tuning_parts(evaluation, 0.3, 0), tmp_path / "search", []
    decode, read = Decoder.decode_batch, LLM.read
    monkeypatch.setattr(
        Decoder,
        "decode_batch",
        lambda self, *more, **kw: calls.append("d") or decode(self, *more, **kw),
    )
    monkeypatch.setattr(LLM, "read", lambda self, *more: calls.append("r") or read(self, *more))
    tuned = tune_decoder(*parts, files, out, search, context="at home")
    # three trials, the held-out part with the start and the best, lists to read; then both parts
    # with the large model
    assert "".join(calls).replace("dr", "L", 1) in (
        "dddddLdrdr",
        "ddddLdrdr",
        "dddddLdrdrdr",
        "ddddLdrdrdr",
    )
    assert len(tuned.sweep) == 22
    row, points = tuned.judged[-1], tuned.sweep
    assert row.name == "best with the large model"
    options = DecoderOptions.of(
        {key: value for key, value in row.options.items() if key != "label_priors"}
    )
    assert options.llm.weight == best_of(points).settings.get("llm.weight", 0.5)
    reader = LLM(CausalLM.load(model, device="cpu"))
    material = parts[0].material
    found = (
        Decoder.from_dir(lm, options)
        .with_llm(reader)
        .decode_batch(material.log_probs, "release", context="at home")
    )
    errors = [
        decoded_errors(material.utterances[index].reference, found[index].texts[0])
        for index in parts[0].indices
    ]
    assert row.tuned.wer == pytest.approx(sum(errors) / parts[0].n_words)

    monkeypatch.setattr(CausalLM, "load", None)  # everything is known now
    again = tune_decoder(*parts, files, out, search, context="at home")
    assert again.options == tuned.options
    assert [point.errors for point in again.sweep] == [point.errors for point in points]


@pytest.mark.slow
def test_in_fusion_the_weight_is_searched_by_decoding(evaluation, lm, tmp_path, monkeypatch):
    model = save_tiny_lm(tmp_path / "model")
    start = DecoderOptions(blank_penalty=30.0, llm=LLMOptions(mode="fusion", weight=0.0))
    files = DecoderFiles(lm, start, llm=LargeModelFiles(str(model), device="cpu"))
    search = DecoderSearch(parse_space(["llm.weight=0.3:0.6"]), n_trials=2, time_weight=0.0)
    tuned = tune_decoder(*tuning_parts(evaluation, 0.5, 0), files, tmp_path / "out", search)
    assert tuned.sweep is None
    assert [trial.options["llm"]["weight"] > 0.3 for trial in tuned.trials] == [False, True]
    # It was asked.
    assert tuned.trials[1].metrics["ms_per_frame"] > 10 * tuned.trials[0].metrics["ms_per_frame"]
    with pytest.raises(RunError, match=r"begun with llm.context = '', now it is 'at home'"):
        tune_decoder(
            *tuning_parts(evaluation, 0.5, 0), files, tmp_path / "out", search, context="at home"
        )


def decoded_errors(reference: str, text: str) -> int:
    """Edits by the textbook's recursion, row by row."""
    row = list(range(len(text.split()) + 1))
    for i, said in enumerate(reference.split(), 1):
        last, row[0] = row[0], i
        for j, found in enumerate(text.split(), 1):
            last, row[j] = row[j], min(last + (said != found), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def test_a_large_model_needs_its_library(evaluation, lm, tmp_path, monkeypatch):
    import sys

    files = DecoderFiles(lm, DecoderOptions(), llm=LargeModelFiles(str(tmp_path), device="cpu"))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingLibrary, match=r"pip install '\.\[llm\]'"):
        files.open()
