"""On real phoneme errors our best sentence scores at least as well as flashlight's, under the
same scoring.
"""

import math

import pytest

from cortext.decoding import Decoder
from cortext.decoding.ngram import LanguageModel
from cortext.text.lexicon import Lexicon
from cortext.text.normalize import normalize
from cortext_bench.decoder.searcher import Paths
from cortext_bench.materials import TEXTS, RealData
from cortext_bench.posteriors import INVENTORY, Utterance, pseudo_posteriors

OPTIONS = {
    "acoustic_scale": 0.85,
    "word_score": 0.5,
    "sil_cost": 4.0,
    "blank_penalty": 2.0,
    "nbest": 1,
}
WIDE = {"beam": 20.0, "word_beam": 1.0, "max_active": 10_000}


@pytest.fixture(scope="module")
def utterances(real_data) -> list[Utterance]:
    return pseudo_posteriors(RealData(real_data).trials)[0]


@pytest.fixture(scope="module")
def words(request, real_data) -> set[str]:
    """Those of the benchmark's smaller text, and of CMUdict where all are wanted."""
    lines = (real_data / TEXTS[0]).read_text().splitlines()
    found = {word for line in lines for word in normalize(line).split() if word.strip("-'")}
    return found | set(Lexicon.cmu()) if request.param == "all" else found


@pytest.fixture(scope="module")
def paths(words, real_data, tmp_path_factory) -> Paths:
    """A 5-gram of the benchmark's smaller text."""
    folder = tmp_path_factory.mktemp("against")
    LanguageModel.build([real_data / TEXTS[0]], 5, folder / "lm", sorted(words))
    return Paths(folder / "lm", folder / "none", folder)


@pytest.fixture(scope="module")
def theirs(paths):
    pytest.importorskip("flashlight.lib.text")
    from cortext_bench.decoder.flashlight import Flashlight

    return Flashlight(paths)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "recombine", "count"),
    [("text", "logadd", 80), ("all", "max", 20)],
    indirect=["words"],
)
def test_our_best_sentence_scores_at_least_as_well(paths, utterances, theirs, recombine, count):
    """In most seconds flashlight is at work.

    It takes 126,000 words for 20 utterances only, and 7,000 for 80.
    """
    scale = OPTIONS["acoustic_scale"]  # flashlight has none: everything else is divided by it
    theirs.configure(
        theirs.start
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
        # Its best comes first.
        text = (theirs.texts(theirs.decode(utterance.log_probs_PV)[:1]) or [""])[0]
        different += text != found.text
        score = ours.score(utterance.log_probs_PV, INVENTORY, text).score
        if score > found.score + 1e-4:
            worse.append((found.text, found.score, text, score))
    assert not worse
    assert different < count  # both speak of the same utterances
