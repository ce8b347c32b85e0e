"""The usage log of a BRAND node: the words that offline decoding finds, and the bins that were sent."""

import json
import stat

import numpy as np
import pytest
from brand_rig import N_FEATURES, Rig, make_world
from redis_process import wait_for

from cortext.data.conventions import RELEASE_CONVENTIONS
from cortext.errors import ConfigError
from cortext_live.brand.parameters import NodeConfig
from cortext_live.recalibration.recorded import LoggedSentences
from cortext_live.usage.log import read_log
from cortext_live.usage.speaking import is_speaking


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("log"))


@pytest.fixture
def rig(redis_server, world, tmp_path):
    rig = Rig(redis_server, world, session_log=str(tmp_path / "log"), record_all=True)
    yield rig
    rig.close()


def sentences(folder):
    """The log as `recalibrate` reads it."""
    found = LoggedSentences(folder, RELEASE_CONVENTIONS, N_FEATURES)
    found.refresh()
    return found


def test_each_trial_is_a_line_with_its_words_and_its_bins(rig, world, tmp_path):
    rig.start()
    trials = world.trials()
    for number, x_TC in enumerate(trials, 1):
        rig.say(x_TC)
        rig.final(number)
    folder = tmp_path / "log"
    wait_for(lambda: len(read_log(folder).entries) == len(trials), "all lines")
    rig.close()
    found = sentences(folder)
    for number, x_TC in enumerate(trials):
        sentence = found.sentence(number)
        _, nbest = world.offline(x_TC)
        said = sentence.utterance
        assert (said.id, said.text, said.source) == (str(number + 1), nbest[0].text, "brand")
        assert said.duration_s == pytest.approx(0.02 * len(x_TC))
        assert said.model is None
        np.testing.assert_array_equal(sentence.features_TC, x_TC)
    assert not is_speaking(folder)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*") if path.is_file()}
    assert modes == {0o600}


def test_utterances_that_end_within_an_entry_share_no_bin_and_lose_none(rig, world, tmp_path):
    """Without marks an utterance ends after a second, in the middle of an entry of seven bins."""
    rig.parameters |= {"control_stream": None, "bins_per_entry": None, "max_ms": 1000.0}
    rig.start()
    x_TC = np.concatenate(world.trials() * 2)
    rig.say(x_TC, marks=False, every=7)
    last = str(rig.i - 1).encode()
    wait_for(lambda: rig.redis.hget("speech_position", "i_in") == last, "the last entry")
    rig.close()
    finals = rig.entries("speech_final")
    n_bins = [int(each[b"n_bins"]) for each in finals]
    assert sum(n_bins) == len(x_TC)
    ends = np.cumsum(n_bins)
    found = sentences(tmp_path / "log")
    spoken = [n for n, each in enumerate(finals) if each[b"text"]]
    assert len(spoken) >= 4
    assert [each.text for each in found.log.entries] == [
        finals[n][b"text"].decode() for n in spoken
    ]
    for line, n in enumerate(spoken):
        own_TC = x_TC[ends[n] - n_bins[n] : ends[n]]
        np.testing.assert_array_equal(found.sentence(line).features_TC, own_TC)


def test_a_kill_loses_the_utterance_in_progress_alone(rig, world, tmp_path):
    node = rig.start(process=True)
    x_TC = world.trials()[0]
    rig.say(x_TC)
    rig.final(1)
    wait_for(lambda: len(read_log(tmp_path / "log").entries) == 1, "the first line")
    rig.mark("start", 0, rig.i)
    rig.send(x_TC[0].tobytes())
    wait_for(lambda: is_speaking(tmp_path / "log"), "the second utterance")
    node.command.kill()
    rig.start_again()
    rig.say(x_TC)
    wait_for(lambda: len(read_log(tmp_path / "log").entries) == 2, "the third utterance")
    _, nbest = world.offline(x_TC)
    assert [each.text for each in read_log(tmp_path / "log").entries] == [nbest[0].text] * 2


def test_what_lacks_its_other_half_is_refused(world, tmp_path):
    with pytest.raises(ConfigError, match=r"without parameters\.lm"):
        NodeConfig(world.run, session_log=tmp_path)
    with pytest.raises(ConfigError, match="no session_log"):
        NodeConfig(world.run, lm=world.lm, record_all=True)


def test_the_line_of_an_utterance_says_which_channels_were_bad(rig, world, tmp_path):
    rig.start()
    x_TC = world.trials()[0].copy()
    x_TC[10:20, 3] = np.nan
    rig.say(x_TC)
    rig.final(1)
    rig.say(world.trials()[1])
    rig.final(2)
    log = tmp_path / "log" / "utterances.jsonl"
    wait_for(lambda: log.exists() and len(log.read_text().splitlines()) == 2, "both lines")
    bad, usual = (json.loads(line) for line in log.read_text().splitlines())
    (note,) = bad["features_notes"]
    assert note.startswith("feature 3: NaN")
    assert "features_notes" not in usual
