"""Messages that wait for a page that reads slowly: words always, pictures up to a bound."""

import asyncio
import json
from base64 import b64decode

import numpy as np
import pytest

from cortext.decoding.nbest import Partial
from cortext.errors import LiveError
from cortext_live.core.pipeline import Update
from cortext_live.page.messages import (
    MAX_BINS,
    MAX_FRAMES,
    MAX_WAITING,
    Event,
    Fanout,
    Reader,
    StepMessage,
    feature_groups,
    shown_bins,
    shown_posteriors,
)
from cortext_live.page.utterance import PageUtterance

C, V = 3, 41


def step(number, utterance=1, n_bins=4, n_frames=1, **changes):
    bins_TC = np.full((n_bins, C), number % 256, dtype=np.uint8)
    posteriors_PV = np.full((n_frames, V), number % 256, dtype=np.uint8)
    stage_ms = {"total": float(number)} if n_frames else None
    return StepMessage(
        utterance, 80 * number, bins_TC, posteriors_PV, f"word{number}", "", stage_ms, **changes
    )


def read_all(*messages):
    """Return the messages of a reader who begins after all of them were sent."""

    async def read():
        reader = Reader(asyncio.get_running_loop())
        for message in messages:
            reader.put(message)
        return [json.loads(await reader.get()) for _ in range(len(reader))]

    return asyncio.run(read())


def test_steps_that_wait_are_joined_into_one():
    (joined,) = read_all(step(1), step(2), step(3, n_bins=2, n_frames=0))
    assert (joined["n_bins"], joined["n_frames"], joined["dropped"]) == (10, 2, 0)
    assert joined["stable"] == "word3"
    assert joined["stage_ms"] == {"total": 2.0}  # the slowest
    assert list(b64decode(joined["bins"])) == [1] * 4 * C + [2] * 4 * C + [3] * 2 * C


def test_a_message_never_grows_beyond_its_bound_and_says_what_it_lacks():
    (joined,) = read_all(*(step(number) for number in range(200)))
    assert (joined["n_bins"], joined["n_frames"]) == (MAX_BINS, MAX_FRAMES) == (256, 64)
    assert joined["dropped"] == 4 * 200 - 256
    assert list(b64decode(joined["posteriors"])[::V]) == list(range(136, 200))  # the latest
    assert joined["stable"] == "word199"


def test_of_an_utterance_that_is_over_only_the_sentence_waits():
    sentence = Event("utterance", {"id": 1, "text": "i see you"})
    read = read_all(step(1), sentence, step(2, utterance=2))
    assert [message["type"] for message in read] == ["utterance", "step"]
    assert (read[1]["utterance"], read[1]["n_bins"], read[1]["dropped"]) == (2, 4, 4)


def test_only_the_latest_state_and_statistics_wait_but_every_sentence():
    messages = [Event("state", {"n": 1}), Event("utterance", {"n": 1}), Event("stats", {"n": 1})]
    messages += [Event("stats", {"n": 2}), Event("utterance", {"n": 2}), Event("state", {"n": 2})]
    read = [(message["type"], message["n"]) for message in read_all(*messages)]
    assert read == [("utterance", 1), ("stats", 2), ("utterance", 2), ("state", 2)]


def test_a_reader_that_never_reads_is_given_up_and_told_so():
    async def read():
        reader = Reader(asyncio.get_running_loop())
        for number in range(MAX_WAITING + 5):
            reader.put(Event("utterance", {"n": number}))
            reader.put(step(number))
        assert len(reader) == 0  # nothing is kept for it any more
        with pytest.raises(LiveError, match="messages were not read in time; connect again"):
            await reader.get()

    asyncio.run(read())


def test_a_reader_waits_for_what_comes_from_another_thread():
    async def read():
        loop = asyncio.get_running_loop()
        fanout, reader = Fanout(), Reader(loop)
        fanout.add(reader)
        waiting = asyncio.create_task(reader.get())
        await asyncio.sleep(0)
        await loop.run_in_executor(None, fanout.send, Event("state", {"state": "idle"}))
        assert json.loads(await asyncio.wait_for(waiting, 10)) == {"type": "state", "state": "idle"}
        fanout.remove(reader)
        fanout.send(step(1))
        assert (len(fanout), len(reader)) == (0, 0)

    asyncio.run(read())


def test_features_are_kept_for_the_log_as_z_scores():
    utterance = PageUtterance(1, "day", keep=True)
    update = Update(Partial("", ""), np.empty((0, V), dtype=np.float32), {}, None)
    for value in (1.0, 5.0):
        assert utterance.step(np.full((1, 2), value, dtype=np.float32), update) is None
    assert utterance.features_TC(None).tolist() == [[1, 1], [5, 5]]
    mean_C, std_C = np.array([3.0, 1.0]), np.array([2.0, 0.0])
    assert utterance.features_TC((mean_C, std_C)).tolist() == [[-1, 0], [1, 4]]
    assert PageUtterance(2, "day").features_TC(None) is None


def test_z_scores_from_minus_three_to_three_are_shown():
    shown = shown_bins(np.array([[-9.0, -3.0, 0.0, 1.5, 3.0, 9.0]], dtype=np.float32))
    assert shown.tolist() == [[0, 0, 128, 191, 255, 255]]


def test_posteriors_are_shown_as_shares_of_255():
    logits_PV = np.log(np.array([[0.6, 0.2, 0.2], [1.0, 1e-9, 1e-9]], dtype=np.float32)) + 700
    assert shown_posteriors(logits_PV).tolist() == [[153, 51, 51], [255, 0, 0]]
    assert shown_posteriors(np.empty((0, 3), dtype=np.float32)).shape == (0, 3)


def test_features_are_grouped_as_the_release_orders_them():
    groups = feature_groups(512)
    assert [tuple(group["columns"]) for group in groups] == [
        (64 * i, 64 * i + 63) for i in range(8)
    ]
    assert groups[2]["name"] == "55b crossings"
    assert groups[5]["name"] == "area 4 power"
    assert feature_groups(10) == [{"name": "features", "columns": [0, 9]}]
