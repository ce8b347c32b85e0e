"""Words, large models and ensembles in other languages than English."""

from __future__ import annotations

import json
import unicodedata
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from own_recordings import LETTERS, OWN, SENTENCES

from cortext.cli import run
from cortext.decoding import Decoder, Hypothesis, NBest
from cortext.decoding.fake import fake_log_probs
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.options import DecoderOptions
from cortext.errors import DecodingError
from cortext.text.language import EN, LANGUAGES, Language
from cortext_lm.ensemble import EnsembleOptions
from cortext_lm.ensemble.candidates import Candidates, Weighted, sentence_of
from cortext_lm.ensemble.combine import combine
from cortext_lm.ensemble.correct import prompt_for
from cortext_lm.llm import fusion, large_model
from cortext_lm.llm.fusion import Fusion
from cortext_lm.llm.large_model import LLM
from cortext_lm.llm.scoring import TokenScore, score_texts, written_forms

ES, ZH = LANGUAGES["es"], LANGUAGES["zh"]
HEBREW = Language("he", "א-ת", "none", "none")


@pytest.fixture(scope="module")
def decoders(tmp_path_factory):
    """Decoders of words and of characters."""
    root = tmp_path_factory.mktemp("spanish")
    found = {}
    for unit in ("word", "character"):
        given = {"inventory": LETTERS, "language": OWN.language, "unit": unit}
        LanguageModel.build(["\n".join(SENTENCES)], 2, root / unit, **given)
        found[unit] = Decoder.from_dir(root / unit)
    return found


@pytest.mark.parametrize("given", ["río", "ri\u0301o", "RÍO", "¡Río!"])
def test_a_word_is_the_lexicons_in_any_form_of_its_letters(decoders, given):
    decoder = decoders["word"]
    assert given in decoder
    log_probs_PV = fake_log_probs("mi río", 0.0, 0, LETTERS, None, ES)
    plain = decoder.decode(log_probs_PV, LETTERS)[0]
    favoured = decoder.decode(log_probs_PV, LETTERS, hotwords={given: 2.0})[0]
    assert favoured.hotword_score == 2.0
    assert favoured.score == pytest.approx(plain.score + 2.0, abs=1e-4)
    other = Decoder.from_dir(decoder.lm_dir)
    other.remove_words([given])
    assert "río" not in other
    other.add_words([given])
    assert "río" in other


def test_an_added_word_is_written_as_its_language_is(decoders):
    decoder = Decoder.from_dir(decoders["word"].lm_dir)
    decoder.add_words(["Mi\u0301a"])
    log_probs_PV = fake_log_probs("mi mía", 0.0, 0, LETTERS, None, ES)
    assert decoder.decode(log_probs_PV, LETTERS)[0].text == "mi mía"


@pytest.mark.parametrize("given", ["año2", "שלום", "?"])
def test_what_is_no_word_of_the_language_is_one_line(decoders, given):
    with pytest.raises(DecodingError, match="is no word of language 'es'; give single words"):
        decoders["word"].stream(LETTERS, words=[given])


def test_english_words_stay_as_they_are_given(sentence_lm):
    decoder = Decoder.from_dir(sentence_lm)
    decoder.add_words({"Avni": [("AA", "V", "N", "IY")]})
    assert "Avni" in decoder
    assert "avni" not in decoder


def test_only_languages_with_capitals_are_written_with_them(monkeypatch):
    assert written_forms("i la casa", ES) == ["I la casa.", "I la casa?", "I la casa!"]
    assert written_forms("la i", ES)[0] == "La i."
    assert written_forms("la i", EN)[0] == "La I."
    asked = []
    monkeypatch.setattr(
        "cortext_lm.llm.scoring._tokens", lambda lm, form, _: asked.append(form) or (1,)
    )
    monkeypatch.setattr("cortext_lm.llm.scoring.score_tokens", lambda *_: {(1,): -1.0})
    lm: Any = SimpleNamespace(prefix=lambda context: [0], window=100)
    for text, language in (("我们", ZH), ("שלום עולם", HEBREW), ("él", ES)):
        score_texts(lm, [text], variants="written", language=language)
    assert asked == ["我们", "שלום עולם", "Él.", "Él?", "Él!"]


def test_a_large_model_ranks_chinese_without_blanks(monkeypatch):
    asked = []

    def said(lm, texts, *_, **__):
        asked.extend(texts)
        return [TokenScore(-1.0, 1)] * len(texts)

    monkeypatch.setattr(large_model, "score_texts", said)
    llm = LLM(None)  # type: ignore[arg-type] # nothing but its scores is asked for
    lists = [
        NBest([Hypothesis("我 们 走", -1.0, -1.0, -1.0), Hypothesis("我 走", -2.0, -1.0, -1.0)])
    ]
    assert llm.in_language(EN) is llm
    chinese = llm.in_language(ZH)
    assert chinese.fusion is llm.fusion
    (found,) = chinese.rank(lists, DecoderOptions(llm={"weight": 0.5}))
    assert asked == ["我们走", "我走"]
    assert set(found.texts) == {"我 们 走", "我 走"}


def test_fusion_reads_chinese_without_blanks(monkeypatch):
    class Bytes:
        name = "bytes"

        def prefix(self, context=""):
            return [0]

        def tokens(self, text, context=""):
            return list(text.encode())

    class Counting:
        longest, evaluated, passes, peak_mb = 100, 0, 0, 0.0

        def score(self, sequences):
            asked.extend(sequences)
            return [-1.0] * len(sequences)

        def retain(self, sequences):
            pass

    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(fusion, "scorer", lambda *_: Counting())
    live = SimpleNamespace(
        words=[("我", "们")],
        acoustic=np.zeros(1, np.float32),
        lm=np.zeros(1, np.float32),
        added=np.zeros(1, np.float32),
        is_last=True,
    )
    Fusion(Bytes(), DecoderOptions(llm={"mode": "fusion", "weight": 0.5}), language=ZH)(live)
    assert asked == [tuple("我们".encode())]


def test_a_large_model_in_fusion_needs_words(decoders):
    decoder = decoders["character"].with_options(llm={"mode": "fusion", "weight": 0.5})
    with pytest.raises(
        DecodingError, match=r"score words: .* use a large model with llm\.mode=rescore"
    ):
        decoder.with_llm(LLM(None))  # type: ignore[arg-type]
    assert decoders["character"].with_llm(LLM(None)).llm.language == ES  # type: ignore[arg-type]


def test_a_large_model_ranks_an_open_vocabulary(decoders, monkeypatch):
    """0.5 for each letter: of two texts the shorter one wins."""
    monkeypatch.setattr(
        large_model,
        "score_texts",
        lambda lm, texts, *_, **__: [TokenScore(-0.5 * len(t), 1) for t in texts],
    )
    log_probs_PV = fake_log_probs("mi río", 2.0, 0, LETTERS, None, ES)
    options = {"llm": {"weight": 0.5}, "nbest": 5}
    decoder = decoders["character"].with_options(**options).with_llm(LLM(None))  # type: ignore[arg-type]
    found = decoder.decode(log_probs_PV, LETTERS)
    assert len(found) > 1
    assert all(each.llm_score == -0.5 * len(each.text) for each in found)


def test_candidates_are_words_of_their_language():
    trial = Candidates.of(
        ["El nin\u0303o.", "el niño", "el nino"], reference="EL NIÑO", language=ES
    )
    assert trial.best == (("el", "niño"), ("el", "niño"), ("el", "nino"))
    assert trial.reference_words == ("el", "niño")
    (combined,) = combine([trial], EnsembleOptions(method="mbr"))
    assert combined.text == "el niño"


def test_words_with_outer_apostrophes_are_joined_as_their_language_reads_them():
    nl = LANGUAGES["nl"]
    words = ("'s", "avonds")
    assert nl.normalize(sentence_of(("kom", *words), nl)).split() == ["kom", *words]
    assert EN.normalize(sentence_of(("come", "'til"))).split() == ["come", "'til"]


def test_a_large_model_corrects_sentences_as_they_are_written():
    candidates = [Weighted(("我", "们"), 0.75, (1.0, 1.0)), Weighted((), 0.25, ())]
    prompt = prompt_for(candidates, ZH)
    assert "listened to one sentence." in prompt
    assert "- 我们 (75%)\n- (nothing) (25%)" in prompt
    assert "listened to one English sentence." in prompt_for(candidates)


def test_lists_are_scored_in_the_language_that_is_named(tmp_path, capsys):
    """System 1 has one error in four words; in English `nin o` and `si` would be others."""
    lines = [
        {"reference": "el niño", "texts": ["el nin\u0303o", "EL NIÑO"]},
        {"reference": "sí señor", "texts": ["si señor", "sí señor"]},
    ]
    file = tmp_path / "lists.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    given = ["ensemble", "--lists", str(file), "--field", "texts", "--json"]
    assert run([*given, "--language", "es", "--out", str(tmp_path / "out")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["system_wer"] == [0.25, 0.0]
    facts = json.loads((tmp_path / "out" / "metrics.json").read_text())["provenance"]
    assert facts["language"] == "es"
    assert "el niño".encode() in (tmp_path / "out" / "predictions.csv").read_bytes()
    assert unicodedata.is_normalized("NFC", (tmp_path / "out" / "nbest.jsonl").read_text())
