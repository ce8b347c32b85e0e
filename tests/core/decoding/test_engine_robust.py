"""The search under everything that should not happen.

Odd frames, odd files, misuse, length, load.
"""

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from engine_cases import (
    NEUTRAL,
    SENTENCES,
    TEXTS,
    Grams,
    noise,
    posteriors,
    sentence_entries,
    spoken,
    write_lm,
)

from cortext import _native
from cortext.decoding import Decoder
from cortext.decoding.engine import native_options
from cortext.decoding.log_probs import SUM_TOLERANCE
from cortext.errors import CortextError, DecodingError, LanguageModelError, TextError
from cortext.text.inventory import LM, RELEASE


@pytest.fixture(scope="module")
def decoder(sentence_lm):
    return Decoder.from_dir(sentence_lm)


def uniform(n_frames):
    return np.full((n_frames, 41), -np.log(41), dtype=np.float32)


def silence(n_frames):
    log_probs_PV = np.full((n_frames, 41), np.log(1e-6), dtype=np.float32)
    log_probs_PV[:, RELEASE.blank] = np.log(1 - 40e-6)
    return log_probs_PV


def certain(*symbols):
    log_probs_PV = np.full((len(symbols), 41), -np.inf, dtype=np.float32)
    log_probs_PV[np.arange(len(symbols)), RELEASE.ids(list(symbols))] = 0.0
    return log_probs_PV


def speech(n_frames):
    """Sentences without a pause between them."""
    sentences = [
        posteriors(TEXTS[number % len(TEXTS)], 1.5, number) for number in range(n_frames // 30 + 1)
    ]
    return np.ascontiguousarray(np.concatenate(sentences)[:n_frames])


ODD = {
    "nothing": np.empty((0, 41), dtype=np.float32),
    "one frame": uniform(1),
    "silence": silence(200),
    "only blanks": certain(*["BLANK"] * 50),
    "only SIL": certain(*["SIL"] * 50),
    "uniform": uniform(60),
    "noise": noise(40, 1.0),
    "loud noise": noise(40, 8.0),
    "certain": certain("G", "OW", "SIL", "BLANK"),
    "impossible": certain("ZH", "ZH", "BLANK", "ZH", "NG"),
    "cut off": posteriors("we want to go home")[:9],
}
EXTREMES = [
    dict(),
    dict(acoustic_scale=0.05),
    dict(acoustic_scale=10.0),
    dict(beam=0.0, min_active=1),
    dict(max_arcs=10),
    dict(max_arcs=1, lattice_beam=0.0),
    dict(nbest=1000),
    dict(nbest=300, lattice_beam=30.0, max_active=1000),
    dict(max_active=1, min_active=1),
    dict(recombine="max", blank_skip=0.5),
    dict(sil_required=True, blank_skip=0.0),
    dict(history_words=3, sil_cost=2.0),
    dict(blank_penalty=1e6, label_priors={"AA": 1e-6}),
]


@pytest.mark.parametrize("options", EXTREMES, ids=str)
@pytest.mark.parametrize("frames", ODD)
def test_odd_frames_and_extreme_options_give_sentences(decoder, frames, options):
    log_probs_PV, decoder = ODD[frames], decoder.with_options(**options)
    nbest = decoder.decode(log_probs_PV, RELEASE)
    assert 1 <= len(nbest) <= decoder.options.nbest
    assert len(set(nbest.texts)) == len(nbest)
    assert [each.score for each in nbest] == sorted((each.score for each in nbest), reverse=True)
    for each in nbest:
        assert np.isfinite([each.score, each.acoustic_score, each.lm_score, each.sil_score]).all()
        assert all(
            0 <= word.start_ms < word.end_ms <= 80 * len(log_probs_PV) for word in each.words
        )
        assert all(0.0 <= word.confidence <= 1.0 for word in each.words)
    stream = decoder.stream(RELEASE)
    for frame_PV in np.array_split(log_probs_PV, 5):
        stream.step(frame_PV)
    assert stream.finish() == nbest


@pytest.mark.parametrize("frames", ["nothing", "silence", "only blanks", "only SIL"])
def test_silence_says_nothing(decoder, frames):
    best, *_ = decoder.decode(ODD[frames], RELEASE)
    assert best.text == ""
    assert best.words == ()


def test_tokens_may_be_impossible(decoder):
    assert decoder.decode(ODD["certain"], RELEASE)[0].text == "go"
    assert decoder.decode(ODD["nothing"], RELEASE)[0].lm_score == pytest.approx(
        SENTENCES.sentence([]), abs=1e-5
    )


@pytest.mark.parametrize("lattice_beam", [0.0, 1e-6])
def test_the_best_sentence_is_within_any_lattice_beam(decoder, lattice_beam):
    for seed in range(20):
        log_probs_PV = noise(1 + 9 * seed, 1.0, seed)
        found = decoder.with_options(lattice_beam=lattice_beam).decode(log_probs_PV, RELEASE)
        assert len(found) >= 1


def test_no_more_hypotheses_live_than_may_though_their_scores_are_equal(lm_of):
    """Ten words of one pronunciation and one probability, kept apart by their history."""
    words = "abcdefghij"
    log_probs = {("<unk>",): -3.0, ("<s>",): -99.0, ("</s>",): -1.0, ("<s>", "a"): -2.3} | {
        (w,): -2.3 for w in words
    }
    directory = lm_of([(word, "AA", 1.0) for word in words], Grams(2, log_probs, {("<s>",): 0.0}))
    for most in (1, 3, 7):
        live = []
        decoder = Decoder.from_dir(directory, dict(max_active=most, min_active=1, history_words=4))
        stream = decoder.stream(RELEASE, hook=lambda batch, live=live: live.append(len(batch.ids)))
        stream.step(spoken("AA SIL AA SIL AA"))
        assert max(live) == most


def broken(log_probs_PV, frame, token, value):
    log_probs_PV = log_probs_PV.copy()
    log_probs_PV[frame, token] = value
    return log_probs_PV


GOOD = posteriors("go there")


@pytest.mark.parametrize(
    ("log_probs_PV", "message"),
    [
        (GOOD.tolist(), "^log_probs is a list; a NumPy array is needed$"),
        (None, "^log_probs is a NoneType; a NumPy array is needed$"),
        (GOOD.astype(np.float64), "^log_probs has dtype float64; float32 is needed"),
        (GOOD.astype(np.float16), "^log_probs has dtype float16; float32 is needed"),
        (GOOD.astype(">f4"), "^log_probs has dtype >f4; float32 is needed"),
        (GOOD[None], r"^log_probs has shape \[1, \d+, 41\]; \[frames, 41\] is needed"),
        (GOOD[:, :40].copy(), r"^log_probs has shape \[\d+, 40\]; \[frames, 41\] is needed"),
        (np.asfortranarray(GOOD), r"^log_probs is not C-contiguous; use numpy\.ascontiguousarray$"),
        (GOOD[::2], r"^log_probs is not C-contiguous; use numpy\.ascontiguousarray$"),
        (broken(GOOD, 3, 7, np.nan), "^log_probs has NaN, first in frame 3$"),
        (
            broken(GOOD, slice(2, 3), slice(None), -np.inf),
            "^the probabilities of frame 2 sum to 0, not 1",
        ),
        (broken(GOOD, 1, 7, np.inf), "^the probabilities of frame 1 sum to inf"),
        (GOOD * 0.5, "^the probabilities of frame 0 sum to .*apply log-softmax over the tokens"),
        (np.exp(GOOD), "^the probabilities of frame 0 sum to 4"),
    ],
)
def test_what_is_not_log_probabilities_is_refused_by_name(decoder, log_probs_PV, message):
    stream = decoder.stream(RELEASE)
    stream.step(GOOD[:5])
    for call in (lambda: decoder.decode(log_probs_PV, RELEASE), lambda: stream.step(log_probs_PV)):
        with pytest.raises(DecodingError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
    stream.step(GOOD[5:])
    assert stream.finish() == decoder.decode(GOOD, RELEASE)  # a refused chunk changes nothing


def test_rounding_to_half_precision_is_allowed(decoder):
    rounded_PV = posteriors("go there", 2.0).astype(np.float16).astype(np.float32)
    sums_P = np.log(np.exp(rounded_PV.astype(np.float64)).sum(axis=1))
    assert 0 < np.abs(sums_P).max() < SUM_TOLERANCE
    assert (
        decoder.decode(rounded_PV, RELEASE)[0].text
        == decoder.decode(posteriors("go there", 2.0), RELEASE)[0].text
    )


def test_read_only_arrays_are_read_and_none_is_written(decoder):
    log_probs_PV = GOOD.copy()
    log_probs_PV.flags.writeable = False
    assert decoder.decode(log_probs_PV, RELEASE) == decoder.decode(GOOD, RELEASE)
    assert np.array_equal(log_probs_PV, posteriors("go there"))


def test_a_stream_may_outlive_its_decoder_and_its_frames(sentence_lm):
    decoder = Decoder.from_dir(sentence_lm)
    expected = decoder.decode(GOOD, RELEASE)
    stream, chunk_PV = decoder.stream(RELEASE), GOOD[:8].copy()
    stream.step(chunk_PV)
    chunk_PV[:] = np.nan
    del decoder, chunk_PV
    stream.step(GOOD[8:])
    nbest = stream.finish()
    del stream
    assert nbest == expected
    assert nbest[0].words[0].word == "go"


def test_inventories_that_do_not_exist_are_named(decoder):
    with pytest.raises(TextError, match="unknown inventory 'relase'; did you mean 'release'"):
        decoder.decode(GOOD, "relase")
    assert (
        decoder.decode(np.ascontiguousarray(GOOD[:, LM.order_from(RELEASE)]), "lm")[0].text
        == "go there"
    )


def test_a_finished_stream_takes_nothing_more(decoder):
    stream = decoder.stream(RELEASE)
    stream.finish()
    for call in (stream.finish, lambda: stream.step(GOOD), lambda: stream.set_options(beam=3.0)):
        with pytest.raises(DecodingError, match=r"^the stream is finished; open a new one"):
            call()


def test_a_stream_refuses_a_second_thread(decoder):
    """Two threads step again and again; sooner or later one comes while the other is at it."""
    stream = decoder.with_options(max_active=2000, beam=100.0).stream(RELEASE)
    refusals, until = [], time.monotonic() + 20

    def step():
        while not refusals and time.monotonic() < until:
            try:
                stream.step(uniform(50))
            except DecodingError as error:
                refusals.append(str(error))

    threads = [threading.Thread(target=step) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(refusals) == {
        "the stream is in use by another thread; give each thread a stream of its own"
    }
    assert len(stream.finish()) >= 1


def test_frames_that_change_while_they_are_read_are_no_danger(decoder):
    """They are checked, but another thread may write into the array afterwards."""
    for wrong in (np.nan, np.inf, 3e38, -3e38):
        stream = decoder._engine.start(decoder.options, RELEASE)
        stream.advance(np.full((20, 41), wrong, dtype=np.float32))
        stream.advance(GOOD)
        nbest = stream.finish()
        assert np.isfinite([each.score for each in nbest]).all()
        assert nbest[0].text.endswith("go there")


def test_the_compiled_part_refuses_arrays_that_do_not_fit_each_other(decoder):
    model, columns, options = (
        decoder._engine._model,
        list(range(41)),
        native_options(decoder.options, decoder._engine._tokens),
    )
    for wrong in (columns[1:], [*columns[:-1], 41], [-1, *columns[1:]]):
        with pytest.raises(DecodingError, match="one column a token is needed"):
            _native.Stream(model, options, wrong, None, False)
    with pytest.raises(DecodingError, match="one offset a token is needed"):
        _native.Stream(model, _native.Options(), columns, None, False)
    stream = _native.Stream(model, options, columns, None, True)
    with pytest.raises(DecodingError, match="one log-probability a token is needed"):
        stream.advance(np.zeros((3, 40), dtype=np.float32))
    with pytest.raises(DecodingError, match="one score a hypothesis is needed"):
        stream.add_scores([0, 0], np.zeros(1, dtype=np.float32))
    with pytest.raises(IndexError):
        stream.add_scores([10**6], np.zeros(1, dtype=np.float32))
    stream.finish()
    with pytest.raises(DecodingError, match="the stream is finished"):
        stream.finish()


def load_model(decoder, seconds, n_threads=8):
    """Streams, batches, words and options from many threads.

    Every result is compared with that of one thread.
    """
    inputs = [posteriors(text, 2.0, seed) for seed, text in enumerate(TEXTS)]
    expected = [decoder.decode(log_probs_PV, RELEASE) for log_probs_PV in inputs]
    favoured = [
        decoder.decode(log_probs_PV, RELEASE, hotwords={"sea": 4.0}) for log_probs_PV in inputs
    ]
    narrow = decoder.with_options(beam=5.0, lm_weight=2.0)
    by_narrow = [narrow.decode(log_probs_PV, RELEASE) for log_probs_PV in inputs]
    until = time.monotonic() + seconds

    def work(number):
        rng, done = np.random.default_rng(number), 0
        while time.monotonic() < until or done < 5:
            which = int(rng.integers(len(inputs)))
            kind = int(rng.integers(3))
            if kind == 0:
                stream = decoder.stream(RELEASE)
                for chunk_PV in np.array_split(inputs[which], 4):
                    stream.step(chunk_PV)
                assert stream.finish() == expected[which]
            elif kind == 1:
                assert (
                    decoder.decode(inputs[which], RELEASE, hotwords={"sea": 4.0}) == favoured[which]
                )
            else:
                assert narrow.decode(inputs[which], RELEASE) == by_narrow[which]
            done += 1
        return done

    with ThreadPoolExecutor(n_threads) as pool:
        assert min(pool.map(work, range(n_threads))) >= 5


def test_eight_threads_share_a_model(decoder):
    load_model(decoder, seconds=0.5)


@pytest.mark.slow
def test_eight_threads_share_a_model_for_long(decoder):
    load_model(decoder, seconds=8.0)


FORKING = """
import json, os, sys
sys.path.insert(0, {tests!r})
import time
import numpy as np
from engine_cases import TEXTS, noise, posteriors
from cortext.decoding import Decoder
from cortext.text.inventory import RELEASE

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6

def peak():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return float(line.split()[1]) * 1024 / 1e6

decoder = Decoder.from_dir({directory!r})
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        exec(json.loads(line))
        sys.stdout.flush()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print("ended", os.waitstatus_to_exitcode(status), flush=True)
"""


@pytest.fixture(scope="module")
def measure(sentence_lm):
    """Runs code on a decoder in a new process and returns the words that it prints.

    The processes are forks of one that has only loaded the decoder, so that memory is measured from
    the same start, and loading is paid once.
    """
    tests = str(Path(__file__).parents[2] / "support")
    code = FORKING.format(tests=tests, directory=str(sentence_lm))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as forking:

        def run(code, timeout):
            killer = threading.Timer(timeout, forking.kill)
            killer.start()
            print(json.dumps(code), file=forking.stdin, flush=True)
            words = []
            while words[-2:-1] != ["ended"]:
                line = forking.stdout.readline()
                assert line, f"it is not done after {timeout} s, or the process has died"
                words += line.split()
            killer.cancel()
            assert words[-1] == "0"
            return words[:-2]

        yield run
        forking.stdin.close()


needs_proc = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")


@needs_proc
def test_streams_opened_and_dropped_leak_nothing(measure):
    code = """
speech = posteriors(TEXTS[0], 2.0)
def some(n):
    for number in range(n):
        stream = decoder.stream(RELEASE, words=["zanzibar"] if number % 3 == 0 else ())
        hooked = decoder.stream(RELEASE, hook=lambda batch: None) if number % 10 == 0 else None
        stream.step(speech[: number % 30])
        if number % 2:
            stream.finish()
        if hooked:
            hooked.step(speech[:10])
some(100)
rounds = [resident()]
for _ in range(3):
    some(200)
    rounds.append(resident())
print(*np.diff(rounds))
"""
    # A leak grows in every round; the allocator takes a page of 2 MB now and then.
    assert min(map(float, measure(code, timeout=120))) < 0.8  # MB; a stream holds a third of one


@needs_proc
def test_words_that_come_and_go_leak_nothing(measure):
    code = """
speech = posteriors(TEXTS[0], 2.0)
def some(n):
    for number in range(n):
        decoder.decode(speech[:20], RELEASE, hotwords={"go": 1.0 + number})
some(30)
before = resident()
some(300)
print(resident() - before)
"""
    (grown,) = measure(code, timeout=120)
    assert float(grown) < 6.0


LENGTHY = """
n_frames = {n_frames}
if {kind!r} == "speech":
    parts = [posteriors(TEXTS[number % len(TEXTS)], 1.5, number) for number in range(n_frames // 30 + 1)]
    frames = np.ascontiguousarray(np.concatenate(parts)[:n_frames])
elif {kind!r} == "uniform":
    frames = np.full((n_frames, 41), -np.log(41), dtype=np.float32)
else:
    frames = noise(n_frames, 1.0)
decoder.decode(posteriors(TEXTS[0]), RELEASE)
stream, before, began = decoder.with_options(**{options!r}).stream(RELEASE), peak(), time.monotonic()
slowest = 0.0
for first in range(0, n_frames, 10):
    now = time.monotonic()
    stream.step(frames[first : first + 10])
    slowest = max(slowest, time.monotonic() - now)
nbest = stream.finish()
print(peak() - before, time.monotonic() - began, slowest, len(nbest), len(nbest[0].words))
"""


def lengthy(measure, kind, n_frames, timeout, **options):
    """MB that the peak grew by, seconds, and the slowest step of ten frames, for one long
    utterance.
    """
    code = LENGTHY.format(kind=kind, n_frames=n_frames, options=options)
    grown, seconds, slowest, n_sentences, n_words = map(float, measure(code, timeout))
    assert n_sentences >= 1
    if kind == "speech":
        assert n_words > n_frames / 30  # sentences have more than one word in 30 frames
    return grown, seconds, slowest


@needs_proc
@pytest.mark.parametrize("kind", ["speech", "noise", "uniform"])
def test_a_thousand_frames_take_little_memory_and_time(measure, kind):
    grown, seconds, slowest = lengthy(measure, kind, 1000, 60)
    assert grown < 60
    assert seconds < 20
    assert slowest < 1.0


@needs_proc
def test_costly_words_do_not_make_the_end_of_a_long_utterance_slow(measure):
    """Sentences are scored together though their frames alone would favour other lengths."""

    def seconds(word_score):
        return lengthy(measure, "noise", 3000, 100, **NEUTRAL | dict(word_score=word_score))[1]

    usual = seconds(0.0)
    for word_score in (-3.0, -1.0):
        assert seconds(word_score) < 5 * usual  # 20 and 35 times with 5000, if scored one by one


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [dict(), NEUTRAL, dict(max_arcs=10), dict(acoustic_scale=10.0)], ids=str
)
@pytest.mark.parametrize("kind", ["speech", "noise"])
def test_ten_thousand_frames_take_bounded_memory_and_time(measure, kind, options):
    """13 minutes without a pause; the limits leave room for a busy machine."""
    grown, seconds, slowest = lengthy(measure, kind, 10_000, 100, **options)
    assert grown < 200
    assert seconds < 60
    assert slowest < 1.0


def written(directory, **files):
    """A language-model directory of sentences, with some of its files changed."""
    write_lm(directory, sentence_entries(), SENTENCES)
    for name, change in files.items():
        path = (
            directory / {"lexicon": "lexicon.txt", "tokens": "tokens.txt", "arpa": "lm.arpa"}[name]
        )
        path.write_text(change(path.read_text()))
    return directory


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            dict(lexicon=lambda text: text + "zed\tZ XX SIL\n"),
            r"lexicon\.txt, line {lexicon}: .*'XX'",
        ),
        (
            dict(lexicon=lambda text: text + "zed\t0.0 Z SIL\n"),
            r"lexicon\.txt, line {lexicon}: weight 0\.0 of 'zed'",
        ),
        (
            dict(lexicon=lambda text: text + "zed\t-1 Z SIL\n"),
            r"lexicon\.txt, line {lexicon}: weight -1\.0 of 'zed'",
        ),
        (
            dict(lexicon=lambda text: text + "zed\tnan Z SIL\n"),
            r"lexicon\.txt, line {lexicon}: weight nan of 'zed'",
        ),
        (
            dict(lexicon=lambda text: text + "zed SIL\n"),
            r"lexicon\.txt, line {lexicon}: 'zed' has no phonemes",
        ),
        (
            dict(lexicon=lambda text: text + "zed\n"),
            r"lexicon\.txt, line {lexicon}: .*'zed' does not end with SIL",
        ),
        (dict(lexicon=lambda text: ""), r"lexicon\.txt: no pronunciations in the lexicon"),
        (dict(tokens=lambda text: text.replace("AA\n", "")), r"tokens\.txt"),
        (dict(tokens=lambda text: text + "QQ\n"), r"tokens\.txt"),
        (dict(arpa=lambda text: text[: len(text) // 2]), r"lm\.arpa, line \d+: "),
        (dict(arpa=lambda text: text.replace("\\2-grams:", "\\9-grams:")), r"lm\.arpa, line \d+: "),
        (dict(arpa=lambda text: text.replace("ngram 2=", "ngram 2=9")), r"lm\.arpa, line \d+: "),
        (dict(arpa=lambda text: text.replace("\tgo\t", "\tgo\tx")), r"lm\.arpa, line \d+: "),
        (dict(arpa=lambda text: ""), r"lm\.arpa"),
    ],
)
def test_files_that_are_wrong_are_named_with_the_line(tmp_path, files, message):
    directory = written(tmp_path / "lm", **files)
    line = len((directory / "lexicon.txt").read_text().splitlines())
    with pytest.raises(LanguageModelError, match=message.replace("{lexicon}", str(line))) as caught:
        Decoder.from_dir(directory)
    assert "\n" not in str(caught.value)
    assert str(directory) in str(caught.value)


@pytest.mark.parametrize("name", ["lexicon.txt", "tokens.txt", "lm.arpa"])
def test_files_that_are_missing_are_named(tmp_path, name):
    directory = written(tmp_path / "lm")
    (directory / name).unlink()
    with pytest.raises(LanguageModelError, match=name.replace("lm.arpa", r"lm\.")) as caught:
        Decoder.from_dir(directory)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["lm.arpa", "lexicon.txt", "tokens.txt"])
def test_files_of_random_bytes_are_refused(tmp_path, name):
    directory = written(tmp_path / "lm")
    for seed in range(5):
        (directory / name).write_bytes(np.random.default_rng(seed).bytes(3000))
        with pytest.raises(CortextError):
            Decoder.from_dir(directory)


def test_words_that_the_lexicon_lacks_are_named(decoder):
    with pytest.raises(DecodingError, match="the word 'zebra' is not in the lexicon"):
        decoder.score(GOOD, RELEASE, "go zebra")
    with pytest.raises(DecodingError, match="does not fit into 2 frames"):
        decoder.score(GOOD[:2], RELEASE, "go there")
