import dataclasses
import json
import threading
import time

import numpy as np
import pytest
from brand_rig import DAYS, Process, Rig, make_world
from commands import Command
from redis_process import wait_for
from two_participants import small_config, write_two

from cortext.cli import run as run_cli
from cortext.data import make_trial, open_data, write_session
from cortext.data.packed import pack
from cortext.decoding import Decoder
from cortext.errors import ConfigError, DataError, LiveError
from cortext.evaluation import evaluate
from cortext.training import train
from cortext_live.core.redis_link import RedisLink
from cortext_live.lm_server.server import LMServer, make_protocol
from cortext_live.replay import Pacer, choose, replay
from cortext_live.replay_clients import BrandStream, Patience, ReplayAnswer


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("replay"))


@pytest.fixture(scope="module")
def split(world):
    return open_data(world.data).split("val")


@pytest.fixture
def rig(redis_server, world):
    rig = Rig(redis_server, world)
    yield rig
    rig.close()


@pytest.fixture
def link(redis_server):
    link = RedisLink(redis_server.url, "test-replay", keep=(100, 2**20))
    yield link
    link.close()


@pytest.fixture
def lm_server(redis_server, world):
    """Starts a language-model server in a thread, speaking a profile with the decoder's own
    options.
    """
    stop, threads = threading.Event(), []

    def start(profile):
        protocol = make_protocol(Decoder.from_dir(world.lm), profile, stop=stop)
        threads.append(
            threading.Thread(target=LMServer(protocol, redis_server.url, stop).run, daemon=True)
        )
        threads[-1].start()

    yield start
    stop.set()
    for thread in threads:
        thread.join(20)


def cortext_replay(capsys, server, world, *arguments):
    """Output of the command, read as JSON."""
    common = [
        "replay",
        "--data",
        str(world.data),
        "--redis-host",
        "127.0.0.1",
        "--redis-port",
        str(server.port),
    ]
    status = run_cli([*common, *arguments, "--json"])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    return json.loads(printed.out)


class Notes:
    """A client that writes down what it gets, and when."""

    bins_per_entry = 1

    def __init__(self, take_s=0.0, stop=None):
        self.log, self.times, self._take_s, self._stop = [], [], take_s, stop

    def ready(self, conventions):
        self.log.append("ready")

    def begin(self, number, trial):
        self.log.append(("begin", number, trial.name))
        self.n = 0

    def send(self, bins_TC):
        self.times.append(time.monotonic())
        self.n += len(bins_TC)
        time.sleep(self._take_s)
        if self._stop and self.n == 20:
            self._stop.set()

    def end(self):
        self.log.append(("end", self.n))
        return ReplayAnswer("i see me")


def test_trials_come_whole_in_order_and_are_compared_with_what_was_meant(split):
    client = Notes()
    progress = []
    summary = replay(
        split,
        [2, 0],
        client,
        threading.Event(),
        speed=None,
        progress=lambda *counts: progress.append(counts),
    )
    name = f"{DAYS[1]}/block 1/trial"
    assert client.log == [
        "ready",
        ("begin", 2, f"{name} 2"),
        ("end", 64),
        ("begin", 0, f"{name} 0"),
        ("end", 90),
    ]
    assert (summary.n_trials, summary.n_frames, summary.interrupted) == (2, 154, False)
    assert summary.wer == 1 / 3  # "i see you" was meant twice
    assert summary.lag_p99_ms is None
    assert (progress[0], progress[-1], len(progress)) == ((1, 154), (154, 154), 154)
    assert [result["trial"] for result in summary.results] == [2, 0]


def test_the_clock_does_not_drift_however_slow_the_entries_before_were(split):
    stop, client = threading.Event(), Notes(take_s=0.001)
    summary = replay(split, [3], client, stop, speed=10)  # 203 bins, one every 2 ms
    due_s = 0.002 * np.arange(203)
    late_s = np.array(client.times) - client.times[0] - due_s
    # a clock that waited 2 ms after each entry would be 203 ms late at the end
    assert np.median(late_s[-20:]) < 0.05
    assert summary.seconds == pytest.approx(0.406, abs=0.2)
    assert summary.lag_p99_ms < 100


def test_a_late_entry_is_late_once_and_those_after_it_are_not():
    pacer = Pacer(0.01, 1.0, threading.Event())
    for k in range(10):
        pacer.wait()
        if k == 3:
            time.sleep(0.035)
        pacer.sent()
    lags_ms = list(pacer.lags_ms)
    assert lags_ms[3] >= 35
    assert lags_ms[4] >= 20  # due while the one before was late, sent at once
    assert min(lags_ms[8:]) < lags_ms[3] - 25


def test_a_loop_goes_on_until_it_is_stopped_and_keeps_nothing(split):
    stop = threading.Event()
    client = Notes(stop=None)
    begun = iter(range(7))

    def begin(number, trial):
        client.n = 0
        if next(begun) == 5:
            stop.set()

    client.begin = begin
    summary = replay(split, [0, 2], client, stop, speed=None, loop=True)
    assert (summary.n_trials, summary.interrupted, summary.results) == (5, True, [])
    assert summary.wer == 1 / 3


def test_a_trial_that_is_stopped_in_the_middle_is_ended(split):
    stop = threading.Event()
    client = Notes(stop=stop)
    summary = replay(split, [0, 1], client, stop, speed=None)
    assert client.log[1:] == [("begin", 0, f"{DAYS[1]}/block 1/trial 0"), ("end", 20)]
    assert (summary.n_trials, summary.interrupted) == (0, True)


def test_sessions_and_trials_are_chosen_or_refused_by_name(split):
    assert choose(split) == [0, 1, 2, 3]
    assert choose(split, [DAYS[1]], [2, 1]) == [2, 1]
    with pytest.raises(DataError, match=r"no trial 4; there are 0 to 3"):
        choose(split, (), [4])
    with pytest.raises(
        DataError, match=r"no trials of session 't15.2023.08.12'; did you mean 't15.2023.08.1[13]'"
    ):
        choose(split, ["t15.2023.08.12"])


def test_replayed_to_a_brand_node_the_texts_are_those_of_offline_evaluation(
    rig, redis_server, world, capsys
):
    rig.start()
    found = cortext_replay(
        capsys, redis_server, world, "--node", "speech", "--speed", "max", "--keep", "60"
    )
    assert found["n_errors"] == 0
    assert found["n_frames"] == 90 + 117 + 64 + 203
    offline = [world.offline(x_TC)[1][0].text for x_TC in world.trials()]
    assert [result["text"] for result in found["results"]] == offline
    # fewer entries than were sent are left, and none was deleted before it was read
    assert rig.redis.xlen("binned_spikes") <= 60
    newest = rig.entries("binned_spikes")[-1]
    assert (
        np.frombuffer(newest[b"samples"], dtype=np.float32).tolist()
        == world.trials()[-1][-1].tolist()
    )
    assert json.loads(newest[b"sync"]) == {"replay": found["n_frames"] - 1}
    assert abs(time.monotonic_ns() - int(np.frombuffer(newest[b"ts"], dtype=np.uint64)[0])) < 60e9
    again = cortext_replay(
        capsys, redis_server, world, "--node", "speech", "--speed", "20", "--trial", "1"
    )
    # Numbers went on: nothing was lost.
    assert [result["text"] for result in again["results"]] == offline[1:2]
    assert again["n_errors"] == 0
    assert again["lag_p99_ms"] > 0


@pytest.mark.slow
def test_from_files_through_redis_and_a_process_of_its_own_text_equals_evaluation(
    rig, redis_server, world, capsys
):
    """Replay -> redis-server -> brand-node as a supervisor starts it -> the text of `cortext
    evaluate`.
    """
    out = world.data.parent / "evaluation"
    evaluate(world.run, world.data, "val", world.lm, out)
    offline = [
        json.loads(line)["hypotheses"][0]["text"]
        for line in (out / "nbest.jsonl").read_text().splitlines()
    ]
    rig.publish()
    rig.nodes.append(Process(redis_server.port))
    found = cortext_replay(capsys, redis_server, world, "--node", "speech", "--speed", "5")
    assert [result["text"] for result in found["results"]] == offline
    assert any(offline)
    assert found["wer"] == json.loads((out / "metrics.json").read_text())["wer"]


@pytest.mark.parametrize("profile", ["lm", "json"])
def test_replayed_to_the_language_model_server_the_texts_are_the_same(
    lm_server, redis_server, world, capsys, profile
):
    lm_server({"lm": "published"}.get(profile, profile))
    found = cortext_replay(
        capsys, redis_server, world, "--profile", profile, "--run", str(world.run), "--speed", "max"
    )
    offline = [world.offline(x_TC)[1][0].text for x_TC in world.trials()]
    assert [result["text"] for result in found["results"]] == offline
    assert found["n_errors"] == 0


def test_each_trial_is_heard_with_the_layer_of_its_own_day(
    lm_server, redis_server, world, capsys, tmp_path
):
    features_TC = world.trials()[3]
    for day in DAYS:
        write_session(
            tmp_path / day / "data_val.hdf5", [make_trial(features_TC, day, 1, 0, "me and you")]
        )
    lm_server("published")
    days = dataclasses.replace(world, data=tmp_path)
    found = cortext_replay(
        capsys, redis_server, days, "--profile", "lm", "--run", str(world.run), "--speed", "max"
    )
    texts = [world.offline(features_TC, day)[1][0].text for day in DAYS]
    assert [result["text"] for result in found["results"]] == texts
    assert len(set(texts)) == 2


def test_bins_are_joined_as_in_the_training_of_the_participant(
    lm_server, redis_server, world, capsys, tmp_path
):
    two = write_two(tmp_path)  # A has bins of 20 ms, B of 10 ms
    train(small_config(30), two, tmp_path / "both", progress=False)
    packed = pack(two["B"], tmp_path / "packed", bin_ms=20)
    own = tmp_path / "both" / "participants" / "B"
    evaluate(own, packed.path, "val", world.lm, tmp_path / "evaluation")
    offline = [
        json.loads(line)["hypotheses"][0]["text"]
        for line in (tmp_path / "evaluation" / "nbest.jsonl").read_text().splitlines()
    ]
    lm_server("published")
    recorded = dataclasses.replace(world, data=two["B"])
    run = ["--profile", "lm", "--run", str(tmp_path / "both"), "--speed", "max"]
    found = cortext_replay(capsys, redis_server, recorded, *run)
    assert [result["text"] for result in found["results"]] == offline
    assert len(set(offline)) > 1
    short = open_data(two["B"]).split("val")
    assert found["n_frames"] == (short.n_bins_N // 2).sum()


@pytest.mark.slow
def test_ctrl_c_ends_a_replay_with_its_summary_and_the_trial_with_its_stop(redis_server, world):
    where = ["--redis-host", "127.0.0.1", "--redis-port", str(redis_server.port)]
    command = Command("replay", "--data", world.data, "--loop", "--speed", "5", *where)
    redis = redis_server.client()
    try:
        wait_for(lambda: redis.xlen("binned_spikes") > 20, "entries", 60)
        ended = command.interrupt()
    finally:
        command.kill()
    assert (ended.status, ended.stderr) == (0, "")
    assert "then interrupted" in ended.stdout
    marks = [fields[b"command"] for _, fields in redis.xrange("trial_control")]
    assert marks[-1] == b"stop"
    assert marks.count(b"start") == marks.count(b"stop")


def test_a_node_that_stops_reading_is_waited_for_and_nothing_it_needs_is_deleted(
    rig, link, split, world
):
    rig.start()
    rig.nodes[0].end()
    # the node is gone, but says that it is ready: as one that hangs
    rig.redis.xadd("speech_state", {"status": "NODE_READY"})
    client = BrandStream(link, Patience(link, 0.5), "speech", keep=100)
    with pytest.raises(LiveError, match=r"waited 1 s for node speech to read binned_spikes"):
        replay(split, [3], client, threading.Event(), speed=None)
    entries = rig.entries("binned_spikes")
    assert 50 <= len(entries) <= 100  # half of what is kept, and all of it is still there
    assert (
        np.frombuffer(entries[0][b"samples"], dtype=np.float32).tolist()
        == world.trials()[3][0].tolist()
    )


def test_without_a_node_a_stream_is_written_for_whoever_reads_and_its_length_is_bounded(
    link, redis_server, split
):
    client = BrandStream(link, Patience(link, 5), None, keep=100)
    summary = replay(split, [0, 3], client, threading.Event(), speed=100)
    redis = redis_server.client()
    assert 50 < redis.xlen("binned_spikes") <= 100
    marks = [fields for _, fields in redis.xrange("trial_control")]
    found = [
        (m[b"command"], int(np.frombuffer(m[b"i"], dtype=np.uint64)[0]), m[b"trial"]) for m in marks
    ]
    assert found == [
        (b"start", 0, b"0"),
        (b"stop", 89, b"0"),
        (b"start", 90, b"3"),
        (b"stop", 292, b"3"),
    ]
    assert (summary.wer, summary.results) == (None, [])


def test_entries_of_several_bins_are_whole_and_what_is_left_out_is_counted(
    rig, redis_server, world, capsys
):
    rig.parameters |= {"bins_per_entry": 5, "input_dtype": "float64"}
    rig.start()
    found = cortext_replay(
        capsys, redis_server, world, "--node", "speech", "--speed", "max", "--trial", "1"
    )
    assert (found["n_frames"], found["left_out"]) == (115, 2)
    assert found["results"][0]["text"] == world.offline(world.trials()[1][:115])[1][0].text


def test_an_answer_that_never_comes_is_named(redis_server, world, capsys):
    common = [
        "replay",
        "--data",
        str(world.data),
        "--redis-host",
        "127.0.0.1",
        "--redis-port",
        str(redis_server.port),
    ]
    arguments = ["--profile", "lm", "--run", str(world.run), "--patience", "1"]
    assert run_cli([*common, *arguments]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(
        f"cortext: 127.0.0.1:{redis_server.port}: waited 1 s for an answer on"
        " remote_lm_done_resetting"
    )
    assert "start it: cortext lm-server" in last


def test_a_redis_that_is_not_there_ends_patience_too(world, capsys):
    arguments = [
        "--data",
        str(world.data),
        "--redis-port",
        "1",
        "--patience",
        "1",
        "--node",
        "speech",
    ]
    assert run_cli(["replay", *arguments]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert (
        last == "cortext: localhost:1: Redis did not answer for 1 s; is it running, and is this its"
        " address?"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--speed", "max"], "--speed max needs --node NICK"),
        (["--speed", "0"], "--speed is '0'; a number above 0 or 'max' is needed"),
        (["--speed", "fast"], "--speed is 'fast'"),
        (["--profile", "lm"], "the lm profile sends logits and needs a model; add --run RUN"),
        (
            ["--profile", "json", "--run", "r", "--node", "n"],
            "--node does not go with the json profile",
        ),
        (["--profile", "brnd"], "--profile is 'brnd'; one of brand, lm, json is needed"),
        (["--run", "r"], "--run does not go with the brand profile"),
    ],
)
def test_forms_that_do_not_go_together_are_refused(arguments, words, capsys):
    assert run_cli(["replay", "--data", "nowhere", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_node_without_a_graph_is_refused(redis_server, link):
    with pytest.raises(ConfigError, match="supergraph_stream: no graph was published"):
        BrandStream(link, Patience(link, 1), "speech", 100)
