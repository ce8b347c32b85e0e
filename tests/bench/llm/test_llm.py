"""Language models side by side: what is counted, what is chosen, what is printed."""

import json

import pytest

pytest.importorskip("transformers")

from tiny_llm import save_tiny_lm

from cortext.cli import run
from cortext.decoding import DecoderOptions
from cortext.errors import DataError
from cortext.evaluation.settings import LargeModelFiles
from cortext_bench.commands import bench_llm
from cortext_bench.llm.compare import (
    ALONE,
    FUSED,
    LEXICON,
    NGRAM,
    RESCORED,
    VOTED,
    LLMBench,
    LLMMaterials,
    word_errors,
)
from cortext_bench.llm.worker import LLMWorker
from cortext_bench.materials import write_posteriors
from cortext_bench.posteriors import Utterance

SAID = ["the cat sat", "i see two cats", "the sea is too blue", "i see the sea"]
FUSING = {"llm": {"mode": "fusion", "weight": 0.4, "every_frames": 2}, "nbest": 5}
RANKING = {"llm": {"mode": "rescore", "weight": 0.4}, "nbest": 5}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return str(save_tiny_lm(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def worker(tiny, lm_dir, clear_posterior, tmp_path) -> LLMWorker:
    write_posteriors(tmp_path / "posteriors.npz", [clear_posterior(sentence) for sentence in SAID])
    return LLMWorker(tmp_path / "posteriors.npz", {}, str(lm_dir), tiny)


def bench(references, tmp_path, texts=None) -> LLMBench:
    materials = LLMMaterials([Utterance(one, None) for one in references], {}, texts=texts)
    return LLMBench(materials, (tmp_path, LargeModelFiles("llm")), DecoderOptions(), tmp_path)


def test_the_worker_counts_the_tokens_of_each_list_once(worker):
    answer = worker.decode(RANKING, [0, 2])
    assert answer["texts"] == [SAID[0], SAID[2]]
    lists = [
        worker.decoder.with_options(nbest=5).decode(worker.utterances[number], "release")
        for number in (0, 2)
    ]
    tokens = [len(worker.reader.lm.tokens(found.text)) for nbest in lists for found in nbest]
    assert answer["tokens"] == {"read": sum(tokens), "from_scratch": sum(tokens)}


def test_a_search_without_a_large_model_reads_no_token(worker):
    worker.reader = None
    assert worker.decode({"nbest": 5}, [1])["tokens"] == {"read": 0, "from_scratch": 0}


def test_a_fused_search_reads_less_than_one_from_scratch(worker):
    answer = worker.decode(FUSING, range(4))
    assert answer["texts"] == SAID
    assert 0 < answer["tokens"]["read"] < answer["tokens"]["from_scratch"]


def test_lists_that_are_read_once_are_ranked_as_if_read_for_each_setting(worker):
    tried = [
        RANKING | {"lm_weight": weight, "word_score": score}
        for weight in (0.7, 1.2)
        for score in (0.0, -1.0)
    ]
    (searched, *_), chosen = tried, [0, 1, 3]
    found = worker.rerank(searched, tried, chosen)["texts"]
    assert found == [worker.decode(searched, chosen, ranked=one)["texts"] for one in tried]


def test_the_first_of_the_settings_with_the_fewest_errors_is_taken(tmp_path):
    one = bench(["a b", "c d", "e f", "g h"], tmp_path)
    assert (one.tuning, one.reporting) == ([0, 2], [1, 3])
    tried = [{"lm_weight": weight} for weight in (1.0, 2.0, 3.0)]
    assert one._fewest(tried, [["a x", "e f"], ["a b", "e f"], ["a b", "e f"]]) == tried[1]


def test_errors_are_counted_on_the_half_that_nothing_was_chosen_on(tmp_path):
    one = bench(["never", "one two three", "never", "four"], tmp_path)
    assert one._errors(NGRAM, [["one two three"], ["fore"]])["wer"] == pytest.approx(1 / 4)
    assert one._errors(FUSED, [["one too"], ["four"]])["wer"] == pytest.approx(2 / 4)
    found = one._difference(FUSED, NGRAM)
    assert found["wer"] == pytest.approx(1 / 4)
    # Two trials drawn with replacement: twice the first (+2 of 3 words), twice the second (-1 of
    # 1), or both.
    assert found["ci95"] == [pytest.approx(-1), pytest.approx(2 / 3)]


def test_texts_of_other_systems_vote(tmp_path):
    texts = [
        ["x"],
        ["the cat sat", "the cat sat", "the bat sat"],
        ["x"],
        ["i see", "i sea", "i see"],
    ]
    one = bench(["x", "the cat sat", "x", "i see"], tmp_path, texts)
    found = one._texts(texts)
    # Two of the three have an error between them.
    assert found[ALONE]["wer"] == pytest.approx((1 / 3 + 1 / 3) / 5)
    assert found[VOTED]["wer"] == 0
    assert one._difference(VOTED, ALONE)["wer"] == pytest.approx(-found[ALONE]["wer"])


def test_the_picture_has_a_panel_a_result_and_a_row_a_way():
    ways = {
        NGRAM: {"wer": 0.3, "wer_ci95": [0.25, 0.35]},
        FUSED: {"wer": 0.2, "wer_ci95": [0.1, 0.3]},
    }
    results = [{"ways": ways, "input": {"source": name, "reported": 7}} for name in ("one", "two")]
    first, second = word_errors(results).axes
    assert (first.get_title(loc="left"), second.get_title(loc="left")) == (
        "7 utterances of one",
        "7 utterances of two",
    )
    assert [label.get_text() for label in second.get_yticklabels()] == [NGRAM, FUSED]
    spans = [line.get_xdata() for line in second.lines if len(line.get_xdata()) == 2]
    assert spans == [pytest.approx([25, 35]), pytest.approx([10, 30])]
    assert first.get_xlim()[0] == 0
    assert first.get_xlim()[1] > 35


def test_one_utterance_has_no_halves(tmp_path):
    with pytest.raises(DataError, match="1 utterances cannot be halved"):
        bench(["a"], tmp_path)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ([], "no large model is named"),
        (["--llm", "no/such", "--logits", "eval"], "no/such"),
        (["--llm", "TINY", "--llm-lora", "none"], "it is no LoRA adapter"),
        (["--llm", "TINY", "--ensemble", "other"], "--ensemble goes with --logits"),
        (
            ["--llm", "TINY", "--logits", "eval", "--trials", "trials"],
            "one of --logits and --trials",
        ),
    ],
)
def test_what_does_not_go_together_is_said_before_the_work(more, words, tiny, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    # Without a network, asking the Hub for a model ends after five tries in 23 s.
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert run(["bench", "llm", *(tiny if word == "TINY" else word for word in more)]) != 0
    assert words in capsys.readouterr().err


def test_what_is_shown_beside_must_be_a_result(tiny, tmp_path, capsys):
    (tmp_path / "no.json").write_text('{"ways": {}}')
    for name, words in (
        ("no.json", "is not a result of bench llm"),
        ("none.json", "cannot be read as a result"),
    ):
        assert run(["bench", "llm", "--llm", tiny, "--beside", str(tmp_path / name)]) != 0
        assert words in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_compares_all_ways(tiny, lm_dir, trials_file, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    for name, values in (("LLM_WEIGHTS", (0.2,)), ("LM_WEIGHTS", (1.0,)), ("WORD_SCORES", (0.0,))):
        monkeypatch.setattr(f"cortext_bench.llm.compare.{name}", values)
    lines = [json.loads(line) for line in trials_file.read_text().splitlines()]
    texts = "".join(
        json.dumps(line | {"wfst_seed_hypotheses": [line["reference"]]}) + "\n" for line in lines
    )
    trials_file.write_text(texts)
    out, png = tmp_path / "new" / "result.json", tmp_path / "new" / "errors.png"
    (tmp_path / "options.yaml").write_text("beam: 9\n")
    base = ["bench", "llm", "--llm", tiny, "--lm", str(lm_dir), "--trials", str(trials_file)]
    base += ["--options", str(tmp_path / "options.yaml")]
    assert (
        run([*base, "--cache", str(tmp_path / "cache"), "--out", str(out), "--picture", str(png)])
        == 0
    )
    printed = capsys.readouterr().out
    assert png.read_bytes().startswith(b"\x89PNG")
    result = json.loads(out.read_text())
    assert list(result["ways"]) == [LEXICON, NGRAM, RESCORED, FUSED, ALONE, VOTED]
    assert all(name in printed for name in result["ways"])
    assert result["ways"][VOTED]["wer"] == 0
    assert result["ways"][NGRAM]["difference"] == {"to": NGRAM, "wer": 0, "ci95": [0, 0]}
    assert result["options"]["beam"] == 9
    for name in (RESCORED, FUSED):
        way = result["ways"][name]
        assert way["tokens_per_sentence"] > 1
        assert way["sentences_per_s"] > 0
        assert way["peak_mb"] > 100
    assert result["ways"][FUSED]["times_fewer_tokens"] > 1
    assert result["input"]["tuning"] == result["input"]["reported"] == 6
    assert {"torch", "transformers"} <= set(result["provenance"]["versions"])
    bench_llm._print([result, result])  # as with --beside
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if FUSED in line]
    assert len(rows) == 2
    assert rows[0][2:] == rows[1][2:]
