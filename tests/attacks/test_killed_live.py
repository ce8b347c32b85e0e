"""Live servers that are killed at random moments lose no speech in silence.

A fiftieth of `benchmarks/killed_live.py`, which tries more values of --keep, too.
"""

from pathlib import Path

import pytest
from engine_cases import SENTENCES, sentence_entries, write_lm

from killed_live import Counts, kill_brand_node, kill_lm_server

N_UTTERANCES = 34
"""Utterances of a language-model server; the node, whose utterances are shorter, gets twice
as many.
"""


@pytest.fixture(autouse=True)
def few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each different text is spoken undisturbed first: eight are enough to tell results apart."""
    monkeypatch.setattr("killed_live.N_TEXTS", 8)


@pytest.fixture(autouse=True)
def short_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast machine speaks all utterances in a second and a half; it sees several kills, too."""
    monkeypatch.setattr("killed_live.ALIVE_S", (0.05, 0.5))


def _check(counts: Counts, n_utterances: int) -> None:
    assert (counts.utterances, counts.same + counts.named) == (n_utterances, n_utterances), counts
    assert (counts.silent, counts.none, counts.twice) == (0, 0, 0), counts
    assert counts.kills >= 2, counts


@pytest.mark.slow
@pytest.mark.redis
# An utterance has about a hundred entries: with 1 all that was answered is deleted at once, with
# 100 in mid-utterance, with 1000 several utterances are still there after a kill.
@pytest.mark.parametrize("keep", [1, 100, 1000])
def test_each_text_of_a_killed_lm_server_is_the_undisturbed_one_or_names_the_gap(
    tmp_path: Path, keep: int
) -> None:
    lm = write_lm(tmp_path / "lm", sentence_entries(), SENTENCES)
    _check(kill_lm_server(lm, keep, N_UTTERANCES, seed=keep), N_UTTERANCES)


@pytest.mark.slow
@pytest.mark.redis
def test_each_trial_of_a_killed_brand_node_has_one_result_whole_or_with_an_error(
    tmp_path: Path,
) -> None:
    _check(kill_brand_node(tmp_path, 2 * N_UTTERANCES, seed=1), 2 * N_UTTERANCES)
