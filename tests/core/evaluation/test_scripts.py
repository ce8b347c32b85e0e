"""Evaluations of inventories without a separator, of Chinese and of text from right to left."""

from __future__ import annotations

import csv
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from cortext.data import make_trial, write_session
from cortext.data.conventions import Conventions
from cortext.decoding.ngram import LanguageModel
from cortext.evaluation import evaluate
from cortext.models import AcousticModel, GRUConfig, build_model, save_model
from cortext.models.card import Smoothing
from cortext.text.inventory import Inventory
from cortext.text.language import LANGUAGES, Language
from cortext.text.lexicon import Lexicon

DAY = "lab.2026.01.05"
HEBREW = Language("he", "א-ת", "none", "none")
SPANISH_SOUNDS = Inventory(
    "sin", ("_", *"aolnsu"), "_", None, groups=(("vocales", ("a", "o", "u")),)
)
PINYIN = Inventory("pinyin", ("_", "n", "i", "h", "ao", "sp"), "_", "sp")
LETTERS = Inventory("אותיות", ("_", *"עולםש", "|"), "_", None, "|", "character")
CASES = {
    # The last of three trials says its own word and one more: errors over lengths, for tokens,
    # words and characters.
    "no separator": SimpleNamespace(
        conventions=Conventions(SPANISH_SOUNDS, LANGUAGES["es"], 20),
        words={"sol": "sol", "luna": "luna"},
        sentences=("¡Sol, luna!", "luna", "sol"),
        rates=(4 / 14, 1 / 4, 5 / 15),
        columns=["a", "o", "u", "l", "n", "s"],
        says="before the language model.",
        decoded=["sol luna", "luna", "sol luna"],
    ),
    "chinese": SimpleNamespace(
        conventions=Conventions(PINYIN, LANGUAGES["zh"], 50),
        words={"你": ("n", "i"), "好": ("h", "ao")},
        sentences=("你好。", "好", "你"),
        rates=(3 / 12, 1 / 4, 1 / 4),
        columns=["n", "i", "h", "ao", "sp"],
        says="before the language model, with the silence after each word.",
        decoded=["你 好", "好", "你 好"],
    ),
    "from right to left": SimpleNamespace(
        conventions=Conventions(LETTERS, HEBREW, 12.5),
        words={"שלום": "שלום", "עולם": "עולם"},
        sentences=("שלום עולם", "עולם", "שלום"),
        rates=(5 / 17, 1 / 4, 5 / 17),
        columns=[*"עולםש", "|"],
        says="before the language model, with the boundary between words.",
        decoded=["שלום עולם", "עולם", "שלום עולם"],
    ),
}


@pytest.fixture(scope="module", params=list(CASES))
def case(request, tmp_path_factory):
    """An evaluation by a model that says the first sentence's tokens in the last trial, too."""
    wanted = CASES[request.param]
    conventions, root = wanted.conventions, tmp_path_factory.mktemp("script")
    inventory = conventions.inventory
    lexicon = Lexicon({word: [tuple(said)] for word, said in wanted.words.items()}, inventory)
    rng = np.random.default_rng(0)
    trials = [
        make_trial(
            rng.normal(size=(40, 4)), DAY, 1, n, text, conventions=conventions, lexicon=lexicon
        )
        for n, text in enumerate(wanted.sentences)
    ]
    write_session(root / "data" / DAY / "data_val.hdf5", trials)
    torch.manual_seed(0)
    config = GRUConfig(n_units=8, n_layers=1, patch_size=4, patch_stride=2)
    network = build_model(config, n_features=4, n_days=1, n_classes=len(inventory))
    model = AcousticModel(
        network,
        sessions=[DAY],
        n_features=4,
        smoothing=Smoothing(smooth_data=False),
        conventions=conventions,
    )
    save_model(model, root / "run")
    LanguageModel.build(
        ["\n".join(wanted.sentences)],
        2,
        root / "lm",
        inventory=inventory,
        language=conventions.language,
        lexicon=lexicon,
    )

    def said(model, split, chosen, progress):
        return [one_hot(split.labels(i if n < 2 else chosen[0])) for n, i in enumerate(chosen)]

    def one_hot(labels_U):
        frames = [token for each in labels_U for token in (0, each)] + [0]
        logits_PV = np.full((len(frames), len(inventory)), -10.0, dtype=np.float32)
        logits_PV[np.arange(len(frames)), frames] = 10.0
        return logits_PV

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cortext.evaluation.recognise.logits_of", said)
        patch.setattr("cortext.evaluation.report.N_PICTURES", 1)
        metrics = evaluate(root / "run", root / "data", "val", root / "lm", root / "eval")
    return SimpleNamespace(**vars(wanted), metrics=metrics, out=root / "eval")


def test_rates_are_those_counted_by_hand(case):
    assert (case.metrics.per, case.metrics.wer, case.metrics.cer) == pytest.approx(case.rates)
    assert case.metrics.oov == {"n": 0, "rate": 0.0, "words": {}}
    # Four words in three trials of 40 bins.
    minutes = 3 * 40 * case.conventions.bin_ms / 60_000
    assert case.metrics.words_per_minute == pytest.approx(4 / minutes)


def test_files_hold_the_scripts_letters(case):
    rows = list(csv.reader((case.out / "predictions.csv").read_text("utf-8").splitlines()))
    assert [text for _, text in rows[1:]] == case.decoded
    header = (case.out / "confusion.csv").read_text("utf-8").splitlines()[0].split(",")
    assert header == ["reference", *case.columns, "deleted"]
    lists = (case.out / "nbest.jsonl").read_text("utf-8").splitlines()
    first = json.loads(lists[0])["hypotheses"][0]
    assert [word["word"] for word in first["words"]] == case.decoded[0].split()
    frame_ms = 2 * case.conventions.bin_ms
    assert first["words"][0]["start_ms"] == frame_ms  # after one blank


def test_the_report_names_tokens_and_language_and_lets_text_find_its_direction(case):
    page = (case.out / "report.html").read_text("utf-8")
    inventory, language = case.conventions.inventory, case.conventions.language
    assert f"<dt>Language</dt><dd>{language.name}</dd>" in page
    assert f"<dd><bdi>{inventory.name}</bdi>, {len(inventory)} tokens</dd>" in page
    assert case.says in " ".join(page.split())
    assert page.count('<dd dir="auto">') >= 6
    assert ("vocales" in page) == bool(inventory.groups)
    assert ("The groups are those of the inventory." in page) == bool(inventory.groups)
    assert "manner of articulation" not in page
