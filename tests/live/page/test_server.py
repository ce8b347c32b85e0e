"""A page: its messages and its requests.

The real server, a real web-socket client, a model that hears perfectly.
"""

import time
from base64 import b64decode

import numpy as np
import pytest
from page_process import DAYS, N_FEATURES, spoken
from serving import HTTP, TOKEN, make_session, serving

from cortext.data import open_dataset
from cortext.text.inventory import RELEASE
from cortext_live.core.log_writer import LogWriter
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.log import read_log
from cortext_live.usage.writer import UsageLog, session_of_today

# Trial 0 reads "I see you!" and says it: 8 tokens of 3 frames of 4 bins, and 14 bins: 110 bins.
# Trial 1 of each day reads "I see you." and says "i see me", trial 2 reads and says "you and me".
# Trials 3 to 5 are the second day's.
N_BINS, N_FRAMES = 110, 25


@pytest.fixture
def served(page_root):
    with serving(make_session(page_root)) as served:
        yield served


@pytest.fixture(scope="module")
def idle(page_root):
    """A server that plays nothing."""
    with serving(make_session(page_root)) as served:
        yield served


def test_greets_a_page_with_the_model_the_trials_and_the_state(idle):
    with idle.page() as page:
        hello = page.read()
        assert [page.read()["type"] for _ in range(2)] == ["history", "stats"]
    assert (hello["type"], hello["days"], hello["day"]) == ("hello", list(DAYS), DAYS[-1])
    assert hello["tokens"] == list(RELEASE.symbols)
    assert (hello["bin_ms"], hello["frame_ms"], hello["budget_ms"], hello["n_features"]) == (
        20,
        80,
        80,
        N_FEATURES,
    )
    assert hello["arrays"][0] == {"name": "ventral 6v crossings", "columns": [0, 5]}
    assert hello["arrays"][7] == {"name": "dorsal 6v power", "columns": [42, 47]}
    assert hello["source"]["kind"] == "replay"
    assert hello["source"]["trials"][4] == {"id": 4, "session": DAYS[1], "block": 1, "trial": 1}
    assert (hello["state"], hello["can_control"], hello["session_log"]) == ("idle", True, False)


def test_decodes_a_trial_and_tells_every_bin_every_frame_and_the_sentence(served):
    with served.page() as page:
        page.next("stats")  # the last of the greeting
        assert served.post("start", {"trial": 0}).json() == {"ok": True}
        read = page.until("utterance")
        page.next("state", state="idle")
    steps = [message for message in read if message["type"] == "step"]
    assert sum(step["n_bins"] + step["dropped"] for step in steps) == N_BINS
    assert sum(step["n_frames"] for step in steps) == N_FRAMES
    assert steps[-1]["t_ms"] == 2200
    for step in steps:
        assert len(b64decode(step["bins"])) == step["n_bins"] * N_FEATURES
        assert len(b64decode(step["posteriors"])) == step["n_frames"] * 41
    utterance = next(message for message in read if message["type"] == "utterance")
    assert (utterance["text"], utterance["reference"], utterance["wer"]) == (
        "i see you",
        "I see you!",
        0.0,
    )
    assert (utterance["ended"], utterance["error"], utterance["duration_s"]) == (
        "end of trial",
        None,
        2.2,
    )
    assert utterance["words_per_minute"] == pytest.approx(60 * 3 / 2.2)
    assert [word["word"] for word in utterance["words"]] == ["i", "see", "you"]
    assert all(0 < word["confidence"] <= 1 for word in utterance["words"])
    assert utterance["nbest"][0]["text"] == "i see you"


def test_a_model_that_fills_its_last_patch_shows_the_frame_of_the_last_bins(page_root):
    """110 bins are 27 patches of four, and two bins."""
    session = make_session(page_root, patch_size=4)
    with serving(session) as served, served.page() as page:
        served.post("start", {"trial": 0})
        read = page.until("utterance")
    steps = [message for message in read if message["type"] == "step"]
    assert sum(step["n_bins"] + step["dropped"] for step in steps) == N_BINS
    assert sum(step["n_frames"] for step in steps) == 28
    assert read[-1]["text"] == "i see you"


def test_heat_map_and_posteriors_are_those_of_the_trial(page_root):
    trial = next(open_dataset(page_root / "data").trials("val", [DAYS[0]]))
    z_TC = trial.features_TC.astype(np.float16).astype(np.float32)
    session = make_session(page_root, speed=4.0)
    with serving(session) as served, served.page() as page:
        served.post("start", {"trial": 0})
        steps = [message for message in page.until("utterance") if message["type"] == "step"]
    bins_TC = np.frombuffer(b"".join(b64decode(step["bins"]) for step in steps), np.uint8).reshape(
        -1, N_FEATURES
    )
    frames_PV = np.frombuffer(
        b"".join(b64decode(step["posteriors"]) for step in steps), np.uint8
    ).reshape(-1, 41)
    np.testing.assert_allclose(bins_TC, np.clip((z_TC + 3) / 6, 0, 1) * 255, atol=0.51)
    said = [RELEASE.symbols[token] for token in frames_PV.argmax(axis=1)]
    assert said[:9] == ["AY", "AY", "BLANK", "SIL", "SIL", "BLANK", "S", "S", "BLANK"]
    assert frames_PV.max(axis=1).min() > 200  # 255 is certainty
    assert f"{steps[-1]['stable']} {steps[-1]['tail']}".strip() == "i see you"


def test_error_rate_so_far_is_over_all_words_and_the_rate_of_words_over_all_time(served):
    with served.page() as page:
        for trial in (0, 1):
            served.post("start", {"trial": trial})
            page.next("utterance", trial=trial)
        stats = page.next("stats")
    assert (stats["n_utterances"], stats["n_words"]) == (2, 6)
    assert stats["wer"] == pytest.approx(1 / 6)
    assert stats["words_per_minute"] == pytest.approx(60 * 6 / 4.4)
    assert stats["latency"]["total"]["p99"] >= stats["latency"]["model"]["p50"] > 0
    assert stats["final_ms"]["p99"] > 0


def test_plays_a_session_to_its_end_and_then_says_so(served):
    with served.page() as page:
        served.post("start", {"session": DAYS[1]})
        read = page.until("state", state="ended")
    texts = [
        (message["trial"], message["text"]) for message in read if message["type"] == "utterance"
    ]
    assert texts == [(3, "i see you"), (4, "i see me"), (5, "you and me")]


def test_start_goes_on_where_it_was(served):
    with served.page() as page:
        served.post("start", {"trial": 4})
        page.next("utterance", trial=4)
        served.post("start")
        assert page.next("utterance")["trial"] == 5


def test_stop_ends_the_sentence_with_what_is_known(page_root):
    with serving(make_session(page_root, speed=4.0)) as served, served.page() as page:
        served.post("start", {"trial": 0})
        while not (step := page.next("step"))["stable"] + step["tail"]:
            pass
        served.post("stop")
        utterance = page.next("utterance")
        assert utterance["ended"] == "stop"
        assert utterance["text"].startswith("i")
        assert utterance["duration_s"] < 2
        assert page.next("state")["state"] == "idle"


def test_each_trial_uses_its_own_day_unless_another_is_chosen(page_root):
    with serving(make_session(page_root, speed=4.0)) as served, served.page() as page:
        served.post("start", {"trial": 0})
        assert page.next("state", trial=0)["day"] == DAYS[0]
        page.next("utterance")
        served.post("day", {"session": "latest"})
        assert page.next("state", day_chosen=DAYS[1])["day"] == DAYS[1]
        served.post("start", {"trial": 0})
        assert page.next("state", trial=0)["day"] == DAYS[1]
        served.post("day", {"session": None})
        assert page.next("state", day_chosen=None)
        assert (
            served.post("day", {"session": "t15.2023.08.12"})
            .json()["error"]
            .endswith("did you mean 't15.2023.08.13'?")
        )


def test_hotword_changes_the_same_trial_decoded_again(served):
    with served.page() as page:
        served.post("start", {"trial": 0})
        assert page.next("utterance")["text"] == "i see you"
        assert served.post("hotwords", {"sea": 12}).status_code == 200  # it sounds like "see"
        assert page.next("state", hotwords={"sea": 12.0})
        served.post("start", {"trial": 0})
        assert page.next("utterance")["text"] == "i sea you"
        served.post("hotwords", {"sea": None})
        served.post("start", {"trial": 0})
        assert page.next("utterance")["text"] == "i see you"
        assert served.state()["hotwords"] == {}


def test_options_are_changed_for_all_pages(served):
    with served.page() as page, served.page() as other:
        other.next("stats")
        assert served.post("options", {"beam": 12, "nbest": 2}).status_code == 200
        assert other.next("state")["options"]["beam"] == 12
        served.post("start", {"trial": 0})
        assert len(page.next("utterance")["nbest"]) <= 2


@pytest.mark.parametrize(
    ("action", "body", "line"),
    [
        ("options", {"beam": -1}, "beam is -1; it must be at least 0 and at most 1e+09"),
        ("options", {"beem": 3}, "unknown decoder option 'beem'; did you mean 'beam'?"),
        ("options", {"self": 3}, "unknown decoder option 'self'"),
        ("options", {"beam": [1]}, "beam is [1]; a finite float is needed"),
        (
            "options",
            {"max_active": 10**9},
            "max_active is 1000000000; live it must be at least 1 and at most 20000",
        ),
        (
            "hotwords",
            {"a" * 65: 3},
            "'aaaaaaaaaaaaaaaaaaaa'... has 65 letters; at most 64 are a word",
        ),
        ("hotwords", {"two words": 3}, "'two words' is not a word"),
        ("hotwords", {"sea": "much"}, "the bonus of 'sea' is 'much'; a finite number is needed"),
        ("start", {"trial": 99}, "no trial 99; there are 0 to 5"),
        ("start", {"trial": True}, "trial must be a number"),
        ("start", {"session": "t15.2023.08.12"}, "did you mean 't15.2023.08.13'?"),
        (
            "start",
            {"trial": 0, "session": "nowhere"},
            "a trial and a session are given; give one of them",
        ),
        ("start", {"path": "/etc"}, "unknown field 'path'; known: trial, session"),
        ("stop", [], "the request is no JSON object"),
    ],
)
def test_wrong_values_are_one_line_and_change_nothing(idle, action, body, line):
    before = idle.state()
    answer = idle.post(action, body)
    assert answer.status_code == 400
    assert line in answer.json()["error"]
    assert "\n" not in answer.json()["error"]
    assert idle.state() == before


def test_page_that_comes_back_sees_the_last_sentence_and_the_statistics(served):
    with served.page() as page:
        served.post("start", {"trial": 0})
        page.next("utterance")
    with served.page() as page:
        kinds = [page.read()["type"] for _ in range(4)]
    assert kinds == ["hello", "history", "utterance", "stats"]


def test_corrections_and_ratings_are_kept_with_the_recording(page_root, tmp_path):
    log_writer = LogWriter(UsageLog(tmp_path / "log"))
    with serving(make_session(page_root, log_writer=log_writer)) as served, served.page() as page:
        served.post("start", {"trial": 1})
        first = page.next("utterance")["id"]
        assert served.post("correction", {"utterance": first, "text": "I see me"}).json() == {
            "ok": True,
            "kept": True,
        }
        assert (
            served.post("rating", {"utterance": first, "rating": "mostly right"}).status_code == 200
        )
        wrong = served.post("rating", {"utterance": first, "rating": "good"})
        assert (wrong.status_code, wrong.json()["error"].startswith("unknown rating 'good'")) == (
            400,
            True,
        )
        assert (
            "no utterance 99"
            in served.post("correction", {"utterance": 99, "text": "x y"}).json()["error"]
        )
        assert served.post("correction", {"utterance": first}).json()["error"] == "text is missing"
    kept = next(open_dataset(tmp_path / "log" / "recordings").trials("train"))
    trial = list(open_dataset(page_root / "data").trials("val", [DAYS[0]]))[1]
    assert (kept.sentence, kept.session) == ("i see me", DAYS[0])  # as sentences are scored
    np.testing.assert_array_equal(
        kept.features_TC, trial.features_TC.astype(np.float16).astype(np.float32)
    )


def test_features_of_all_utterances_are_kept_where_wanted(page_root, tmp_path):
    heard = KeptFeatures(tmp_path / "log")
    log_writer = LogWriter(UsageLog(tmp_path / "log", kept_features=heard))
    with serving(make_session(page_root, log_writer=log_writer)) as served, served.page() as page:
        for trial in (1, 0):
            served.post("start", {"trial": trial})
            page.next("utterance")
            page.next("state", state="idle")
    block = int(read_log(tmp_path / "log").entries[0].when.timestamp())
    trials = list(open_dataset(page_root / "data").trials("val", [DAYS[0]]))
    for number, trial in enumerate((1, 0)):
        packed_TC = trials[trial].features_TC.astype(np.float16).astype(np.float32)
        np.testing.assert_array_equal(heard.read(block, number), packed_TC)


def test_a_full_disk_loses_the_features_and_not_the_utterance(page_root, tmp_path):
    """A file where the directory of the features should be stands for the disk."""
    folder = tmp_path / "log"
    log_writer = LogWriter(UsageLog(folder, kept_features=KeptFeatures(folder)))
    (folder / "heard").write_text("")
    with serving(make_session(page_root, log_writer=log_writer)) as served, served.page() as page:
        served.post("start", {"trial": 0})
        error = page.next("error")
    assert "is logged, but its features are not" in error["what"]
    assert [entry.text for entry in read_log(folder).entries] == ["i see you"]


def test_without_a_session_log_nothing_can_be_corrected(idle):
    answer = idle.post("correction", {"utterance": 1, "text": "i see"})
    assert answer.status_code == 409
    assert "--session-log" in answer.json()["error"]


def test_a_feed_is_decoded_and_its_pauses_end_sentences(page_root):
    frames_TC = spoken("i see you", np.random.default_rng(1))
    silence_TC = np.zeros((50, N_FEATURES), dtype=np.float32)
    silence_TC[:, RELEASE.blank] = 3
    with (
        serving(make_session(page_root, feed=True, silence_ms=640)) as served,
        served.page() as page,
    ):
        assert served.post("start").status_code == 409
        with served.feed() as feed:
            for chunk_TC in np.array_split(np.concatenate([frames_TC, silence_TC, frames_TC]), 40):
                feed.send(chunk_TC.tobytes())
            utterance = page.next("utterance")
            assert (utterance["text"], utterance["ended"], utterance["trial"]) == (
                "i see you",
                "silence",
                None,
            )
            assert utterance["session"] == session_of_today(DAYS[-1])
            feed.send('{"end": true}')
            utterance = page.next("utterance")
            assert (utterance["text"], utterance["ended"], utterance["error"]) == (
                "i see you",
                "end of trial",
                None,
            )
            assert page.next("stats")["wer"] is None


def test_real_speed_is_the_recordings(page_root):
    with serving(make_session(page_root, speed=1.0)) as served, served.page() as page:
        served.post("start", {"trial": 0})
        began_s = time.monotonic()
        page.next("utterance")
        assert time.monotonic() - began_s == pytest.approx(2.2, abs=0.3)


def test_the_page_itself_is_served_from_the_package(idle):
    index = HTTP.get(idle.url("/"))
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert "<html" in index.text
    assert TOKEN not in index.text
