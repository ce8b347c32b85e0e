"""Lattices of runs, against all their sentences."""

import functools
import json

import numpy as np
import pytest
from engine_cases import WIDE, Grams, random_frames
from scipy.special import log_softmax, logsumexp
from search_oracle import all_scores

from cortext.cli import run
from cortext.decoding import Decoder, DecoderOptions
from cortext.decoding.ngram import LanguageModel
from cortext.errors import DecodingError
from cortext.text.inventory import RELEASE
from cortext_lm.ensemble import (
    Candidate,
    Candidates,
    EnsembleOptions,
    combine,
    combine_lists,
    combine_runs,
    read_evaluations,
)
from cortext_lm.ensemble.candidates import weighted
from cortext_lm.ensemble.posteriors import read_lattices

ENTRIES = [("a", "AA", 1.0), ("b", "B", 0.3), ("c", "AA B", 1.0), ("d", "B", 1.0)]
GRAMS = Grams.random(2, seed=1)
SEARCH = {name: value for name, value in WIDE.items() if name != "nbest"}
TRIALS = 3


@pytest.fixture(scope="module")
def lm(lm_of):
    return lm_of(ENTRIES, GRAMS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two evaluation directories, each with the logits of a few frames and a list of a single
    sentence.
    """
    root = tmp_path_factory.mktemp("runs")
    for seed, name in enumerate(("one", "two")):
        (root / name / "logits").mkdir(parents=True)
        lines = []
        for number in range(TRIALS):
            frames_PV = random_frames(np.random.default_rng([seed, number]), 5, 1.0).astype(
                np.float16
            )
            np.save(root / name / "logits" / f"{number:05d}.npy", frames_PV)
            listed = [{"text": "d", "score": 0.0, "words": []}]
            key = {
                "id": number,
                "session": "day.1",
                "block": 1,
                "trial": number,
                "reference": "a b",
            }
            lines.append(
                json.dumps(key | {"hypotheses": listed, "degraded": "no large model"}) + "\n"
            )
        (root / name / "nbest.jsonl").write_text("".join(lines))
        inventory = {"name": RELEASE.name, "symbols": RELEASE.symbols}
        facts = {"inventory": inventory, "frame_ms": 80.0, "options": SEARCH}
        (root / name / "metrics.json").write_text(json.dumps({"provenance": facts}))
    return root / "one", root / "two"


@functools.cache
def all_sentences(path, number):
    """Every sentence that a run's frames can say, with its probability."""
    frames_PV = np.load(path / "logits" / f"{number:05d}.npy").astype(np.float64)
    scores = all_scores(ENTRIES, GRAMS, log_softmax(frames_PV, axis=1), DecoderOptions.of(SEARCH))
    total = logsumexp(list(scores.values()))
    return {tuple(text.split()): float(np.exp(score - total)) for text, score in scores.items()}


@functools.cache
def distance(one, two):
    """Word edit distance by its definition."""
    if not one or not two:
        return len(one) + len(two)
    return min(
        distance(one[1:], two) + 1,
        distance(one, two[1:]) + 1,
        distance(one[1:], two[1:]) + (one[0] != two[0]),
    )


def test_a_lattice_is_all_its_sentences_with_their_probabilities(runs, lm):
    trials = read_lattices(runs, read_evaluations(runs), lm)
    for number, trial in enumerate(trials):
        mixed: dict[tuple[str, ...], float] = {}
        for path in runs:
            for words, share in all_sentences(path, number).items():
                mixed[words] = mixed.get(words, 0.0) + share / 2
        assert len(mixed) > 20
        found = {one.words: one.weight for one in weighted(trial, EnsembleOptions(lattice=True))}
        assert found == pytest.approx(mixed, abs=1e-5)
        assert trial.degraded is None  # what the list lacked, the lattice does not


def test_the_sentence_of_least_risk_is_that_of_all_of_both_lattices(runs, lm):
    found = combine_runs(runs, EnsembleOptions(method="mbr", lattice=True), lm=lm)
    for number, combined in enumerate(found.combined):
        both = [all_sentences(path, number) for path in runs]

        def risk(words, both=both):
            return sum(
                share * distance(words, other) / 2 for one in both for other, share in one.items()
            )

        least = min(risk(words) for one in both for words in one)
        assert risk(combined.words) == pytest.approx(least, abs=1e-4)
    assert found.oracle_rate() == 0  # "a b" is in every lattice; the lists have only "d"


def test_what_a_lattice_is_made_of_is_an_option(runs, lm):
    lists = combine_runs(runs, EnsembleOptions(method="mbr"))
    assert {combined.text for combined in lists.combined} == {"d"}
    narrow = read_lattices(
        runs, read_evaluations(runs), lm, options=DecoderOptions(lattice_beam=0.0)
    )
    assert all(len(system) == 1 for trial in narrow for system in trial.systems)
    best = Decoder.from_dir(lm, {"lattice_beam": 0.0})
    frames_PV = np.load(runs[0] / "logits" / "00000.npy").astype(np.float32)
    expected = best.decode(log_softmax(frames_PV, axis=1).astype(np.float32), RELEASE)[0]
    assert narrow[0].systems[0][0].words == tuple(expected.text.split())
    assert narrow[0].systems[0][0].score == pytest.approx(expected.score, abs=1e-4)


@pytest.mark.parametrize("method", ["rover", "rover-lm"])
def test_votes_are_those_of_all_sentences(runs, lm, method):
    options = EnsembleOptions(method=method, lattice=True, lm_weight=0.3)
    found = combine_runs(runs, options, lm=lm, threads=2).combined
    by_hand = []
    for number in range(TRIALS):
        systems = [all_sentences(path, number) for path in runs]
        lists = tuple(
            tuple(Candidate(words, float(np.log(share))) for words, share in one.items())
            for one in systems
        )
        by_hand.append(Candidates(lists))
    expected = combine(by_hand, options, lm=LanguageModel.open(lm))
    assert [one.words for one in found] == [one.words for one in expected]


def test_the_command_combines_lattices_and_says_how(runs, lm, tmp_path, capsys):
    (tmp_path / "search.yaml").write_text("lattice_beam: 1e6\nbeam: 1e6\n")
    given = ["ensemble", *map(str, runs), "--method", "mbr", "--lattice", "--lm", str(lm), "--json"]
    assert (
        run(
            [
                *given,
                "--decoder-options",
                str(tmp_path / "search.yaml"),
                "--out",
                str(tmp_path / "out"),
            ]
        )
        == 0
    )
    made = json.loads((tmp_path / "out" / "metrics.json").read_text())["provenance"]
    assert (made["lm"], made["options"]["lattice_beam"]) == (str(lm), 1e6)
    capsys.readouterr()
    assert run(given) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["options"]["lattice"], facts["oracle_wer"], facts["degraded"]) == (True, 0, 0)


def test_options_are_fitted_over_lattices_and_kept(runs, lm, tmp_path, capsys):
    kept = tmp_path / "kept.yaml"
    fit = [
        "--fit",
        str(runs[0]),
        "--fit",
        str(runs[1]),
        "--lattice",
        "--lm",
        str(lm),
        "--method",
        "mbr",
    ]
    assert run(["ensemble", *fit, "--options", str(kept), "--json"]) == 0
    fitted = json.loads(capsys.readouterr().out)["fitted"]
    assert EnsembleOptions.read(kept).lattice
    assert (
        run(["ensemble", *map(str, runs), "--options", str(kept), "--lm", str(lm), "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["wer"] == fitted["wer"]


def test_what_a_lattice_needs_is_said(runs, lm, tmp_path):
    with pytest.raises(
        DecodingError, match="lattices need a language-model directory; give the runs' with --lm"
    ):
        combine_runs(runs, EnsembleOptions(lattice=True))
    (tmp_path / "lists.jsonl").write_text('{"heard": ["a"]}\n')
    with pytest.raises(DecodingError, match="a lattice needs logits, and there are only sentences"):
        combine_lists(tmp_path / "lists.jsonl", "heard", EnsembleOptions(lattice=True), lm=lm)
    with pytest.raises(DecodingError, match="lattice does not go with average"):
        EnsembleOptions(method="average", lattice=True)
    with pytest.raises(DecodingError, match="lattice is 1; true or false"):
        EnsembleOptions(lattice=1)
