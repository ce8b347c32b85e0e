"""The idle gate's threshold, which a page may change while the server runs."""

import numpy as np
import pytest
from page_process import N_FEATURES, spoken
from serving import make_session, serving
from speech_gate import speech_gate

from cortext.text.inventory import RELEASE

MEASURED = [
    {
        "threshold": 0.2,
        "false_per_hour": 3.0,
        "false_high": 4.0,
        "missed": 0.0,
        "missed_high": 0.01,
    },
    {"threshold": 0.6, "false_per_hour": 1.0, "false_high": 2.0, "missed": 0.1, "missed_high": 0.2},
]


def test_page_is_told_the_figures_and_every_page_the_new_threshold(page_root):
    with serving(make_session(page_root, gate=speech_gate())) as served, served.page() as page:
        hello = page.next("hello")
        assert hello["gate"] == MEASURED
        assert hello["gate_threshold"] == 0.5
        assert served.post("gate", {"threshold": 0.6}).json() == {"ok": True}
        assert page.next("state")["gate_threshold"] == 0.6
        assert served.state()["gate_threshold"] == 0.6


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({"threshold": 1}, "between 0 and 1"),
        ({"threshold": 0.0}, "between 0 and 1"),
        ({"threshold": "high"}, "threshold must be a number"),
        ({"threshold": True}, "threshold must be a number"),
        ({}, "threshold is missing"),
        ({"level": 0.5}, "unknown field 'level'"),
    ],
)
def test_other_thresholds_are_refused_and_change_nothing(page_root, body, what):
    with serving(make_session(page_root, gate=speech_gate())) as served:
        answer = served.post("gate", body)
        assert answer.status_code == 400
        assert what in answer.json()["error"]
        assert served.state()["gate_threshold"] == 0.5
        assert served.post("gate", {"threshold": 0.6}, headers={}).status_code == 401


def test_without_a_gate_there_is_none_to_change(page_root):
    with serving(make_session(page_root)) as served, served.page() as page:
        hello = page.next("hello")
        assert (hello["gate"], hello["gate_threshold"]) == (None, None)
        answer = served.post("gate", {"threshold": 0.6})
    assert answer.status_code == 409
    assert "--gate" in answer.json()["error"]


def test_the_new_threshold_holds_from_the_next_bins_on(page_root):
    """The first threshold is so high that nothing opens the gate."""
    rng = np.random.default_rng(0)
    said_TC = spoken("i see you", rng)
    idle_TC = np.zeros((100, N_FEATURES), np.float32)
    idle_TC[:, RELEASE.blank] = 3
    with serving(make_session(page_root, feed=True, gate=speech_gate())) as served:
        served.post("gate", {"threshold": 0.999999})
        with served.page() as page, served.feed() as feed:
            feed.send(np.concatenate((idle_TC, said_TC, idle_TC)).tobytes())
            feed.send('{"end": true}')
            served.post("gate", {"threshold": 0.2})
            feed.send(np.concatenate((said_TC, idle_TC)).tobytes())
            feed.send('{"end": true}')
            assert page.next("utterance")["text"] == "i see you"
