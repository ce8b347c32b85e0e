"""On real phoneme errors our best sentence scores at least as well as flashlight's, under the same scoring."""

import math
from pathlib import Path

import pytest

from cortext.bench.materials import RealData, language_models
from cortext.bench.posteriors import INVENTORY, pseudo_posteriors
from cortext.bench.searcher import Paths
from cortext.decoding import Decoder

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = {"acoustic_scale": 0.85, "word_score": 0.5, "sil_cost": 4.0, "blank_penalty": 2.0, "nbest": 1}
WIDE = {"beam": 20.0, "word_beam": 1.0, "max_active": 10_000}


@pytest.fixture
def paths(real_data) -> Paths:
    return language_models(RealData(real_data), ROOT / "build" / "bench", static=False)


@pytest.mark.slow
@pytest.mark.parametrize(("recombine", "count"), [("logadd", 200), ("max", 40)])
def test_our_best_sentence_scores_at_least_as_well(paths, real_data, recombine, count):
    pytest.importorskip("flashlight.lib.text")
    from cortext.bench.flashlight import Flashlight

    utterances, _ = pseudo_posteriors(RealData(real_data).trials)
    scale = OPTIONS["acoustic_scale"]  # flashlight has none: everything else is divided by it
    theirs = Flashlight(paths)
    theirs.configure(
        Flashlight.start
        | {
            "lm_weight": math.log(10) / scale,  # its n-gram scores are decimal logarithms
            "word_score": OPTIONS["word_score"] / scale,
            "sil_score": 0.0,
            "blank_penalty": OPTIONS["blank_penalty"],
            "log_add": recombine == "logadd",
            "beam_threshold": 18.0,
            "spelling": "both",
        }
    )
    ours = Decoder.from_dir(paths.lm, OPTIONS | WIDE | {"recombine": recombine})
    worse, different = [], 0
    for utterance in utterances[:count]:
        found = ours.decode(utterance.log_probs_PV, INVENTORY)[0]
        text = (theirs.texts(theirs.decode(utterance.log_probs_PV)) or [""])[0]
        different += text != found.text
        score = ours.score(utterance.log_probs_PV, INVENTORY, text).score
        if score > found.score + 1e-4:
            worse.append((found.text, found.score, text, score))
    assert not worse
    assert different < count  # both speak of the same utterances
