"""A split on a Ray cluster of two workers gives what one machine gives."""

import json
import pickle
import sys
import warnings
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest

from cortext.cli import run as cortext
from cortext.decoding import Decoder, DecoderOptions, NBest
from cortext.decoding.fake import fake_log_probs
from cortext.decoding.options import LLMOptions
from cortext.errors import ConfigError, DecodingError, MissingLibrary, RunError
from cortext.evaluation import evaluate
from cortext.evaluation.decoder_files import DecoderFiles
from cortext.evaluation.settings import LargeModelFiles
from cortext.text.inventory import RELEASE
from cortext_tune.cluster_decoding import decode_on_cluster, shared


@pytest.mark.slow
def test_predictions_and_lists_are_those_of_one_machine_byte_for_byte(tiny, tmp_path, two_workers):
    options = {"nbest": 20, "lattice_beam": 20.0}
    here = evaluate(tiny.run, tiny.data, "val", tiny.lm, tmp_path / "here", options=options)
    there = evaluate(
        tiny.run, tiny.data, "val", tiny.lm, tmp_path / "there", options=options, ray="local"
    )
    for name in ("predictions.csv", "nbest.jsonl"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    assert len((tmp_path / "there" / "nbest.jsonl").read_text().splitlines()) == 6
    assert (
        max(
            len(json.loads(line)["hypotheses"])
            for line in (tmp_path / "here" / "nbest.jsonl").open()
        )
        > 1
    )
    assert there.wer == here.wer
    assert two_workers.is_initialized()  # it was there before, and is not ours to end


@pytest.mark.slow
def test_a_large_model_says_the_same_in_tasks(tiny, tmp_path, two_workers, monkeypatch):
    pytest.importorskip("transformers")
    from tiny_llm import save_tiny_lm

    # Here; where a task has fewer, so it is.
    monkeypatch.setattr("cortext_lm.llm.large_model.LISTS_AT_ONCE", 2)
    llm = LargeModelFiles(str(save_tiny_lm(tmp_path / "model")), device="cpu")
    options = {"nbest": 20, "lattice_beam": 20.0, "llm": {"weight": 0.3}}
    context = "what do you think of it today " * 60  # more than the model reads
    here, there = (
        evaluate(
            tiny.run,
            tiny.data,
            "val",
            tiny.lm,
            tmp_path / name,
            options=options,
            llm=llm,
            context=context,
            ray=ray,
        )
        for name, ray in (("here", None), ("there", "local"))
    )
    assert len(here.notes) == 1
    assert there.notes == here.notes
    assert there.provenance["llm"] == here.provenance["llm"]
    for name in ("predictions.csv", "nbest.jsonl"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    lines = [
        json.loads(line) for line in (tmp_path / "there" / "nbest.jsonl").read_text().splitlines()
    ]
    assert all(line["degraded"] is None for line in lines)
    assert all(found["llm"] < 0 for line in lines for found in line["hypotheses"] if found["text"])


@pytest.mark.slow
def test_the_commands_take_a_cluster(tiny, tmp_path, two_workers, capsys):
    base = [tiny.run, "--data", tiny.data, "--lm", tiny.lm]
    for name, more in (("here", []), ("there", ["--ray", "local"])):
        assert (
            cortext(
                [str(part) for part in ("decode", *base, "--out", tmp_path / f"{name}.csv", *more)]
            )
            == 0
        )
        assert (
            cortext(
                [
                    str(part)
                    for part in ("evaluate", *base, "--out", tmp_path / name, *more, "--json")
                ]
            )
            == 0
        )
    assert (tmp_path / "there.csv").read_bytes() == (tmp_path / "here.csv").read_bytes()
    assert (tmp_path / "there/nbest.jsonl").read_bytes() == (
        tmp_path / "here/nbest.jsonl"
    ).read_bytes()


@pytest.mark.slow
def test_the_order_is_kept_whatever_the_number_of_tasks(tiny, two_workers, monkeypatch):
    sentences = ["i see you", "you see me", "we see you", "me and you", "you", "i see me", "we"]
    log_probs = [
        fake_log_probs(sentence, 0.5, n, "release") for n, sentence in enumerate(sentences)
    ]
    expected = Decoder.from_dir(tiny.lm).decode_batch(log_probs, "release")
    steps = []
    for per_cpu in (1, 2, 100):
        monkeypatch.setattr("cortext_tune.cluster_decoding.TASKS_PER_CPU", per_cpu)
        files = DecoderFiles(tiny.lm, DecoderOptions())
        found, _ = decode_on_cluster(
            "local", files, log_probs, RELEASE, progress=lambda *done: steps.append(done)
        )
        assert found == expected
    assert steps[-1] == (7, 7)


@pytest.mark.slow
def test_what_the_user_did_wrong_comes_back_as_one_line(tiny, two_workers, tmp_path):
    log_probs = [fake_log_probs("you", 0.5, 0, "release")]
    files = DecoderFiles(tmp_path / "nowhere", DecoderOptions())
    with pytest.raises(Exception, match="nowhere") as caught:
        decode_on_cluster("local", files, log_probs, RELEASE)
    assert type(caught.value).__module__ == "cortext.errors"
    with pytest.raises(DecodingError, match="sum to"):
        decode_on_cluster(
            "local", DecoderFiles(tiny.lm, DecoderOptions()), [log_probs[0] + 1], RELEASE
        )


@pytest.mark.slow
def test_gpus_that_are_not_there_are_not_waited_for(tiny, two_workers):
    if two_workers.cluster_resources().get("GPU"):
        pytest.skip("there is a GPU")
    log_probs = [fake_log_probs("you", 0.5, 0, "release")]
    files = DecoderFiles(tiny.lm, DecoderOptions())
    with pytest.raises(
        ConfigError, match=r"to be given 0.25 GPUs, and this machine has none to give"
    ):
        decode_on_cluster("local", files, log_probs, RELEASE, gpus_per_worker=0.25)
    with pytest.raises(ConfigError, match=r"given 1.5 GPUs; up to 1, or a whole number"):
        decode_on_cluster("local", files, log_probs, RELEASE, gpus_per_worker=1.5)
    assert two_workers.is_initialized()


@pytest.mark.slow
def test_a_task_is_given_its_share_of_a_gpu(tiny, monkeypatch):
    ray = pytest.importorskip("ray")
    asked = []
    remote = ray.remote
    if ray.is_initialized():
        ray.shutdown()
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setattr(ray, "remote", lambda **given: asked.append(given) or remote(**given))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            num_cpus=4,
            num_gpus=1,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
        )
        try:
            log_probs = [fake_log_probs("i see you", 0.5, n, "release") for n in range(8)]
            files = DecoderFiles(tiny.lm, DecoderOptions())
            found, _ = decode_on_cluster("local", files, log_probs, RELEASE, gpus_per_worker=0.25)
            with pytest.raises(ConfigError, match="to be given 2 GPUs"):
                decode_on_cluster("local", files, log_probs, RELEASE, gpus_per_worker=2)
        finally:
            ray.shutdown()
    assert asked == [{"num_cpus": 1, "num_gpus": 0.25}]
    assert found == Decoder.from_dir(tiny.lm).decode_batch(log_probs, "release")


def test_a_decoder_travels_as_the_names_of_its_files_and_is_opened_once(tiny):
    files = DecoderFiles(tiny.lm, DecoderOptions(beam=9.0, llm=LLMOptions(weight=0.25)))
    assert len(pickle.dumps(files)) < 4000
    there = pickle.loads(pickle.dumps(files))
    decoder = there.open()
    other = DecoderFiles(tiny.lm, DecoderOptions(beam=10.0)).open()
    assert decoder.options == files.options
    assert decoder._engine is other._engine


def test_sentences_travel_as_plain_lists_that_are_equal(tiny):
    options = {"nbest": 20, "lattice_beam": 30.0}
    nbest = Decoder.from_dir(tiny.lm, options).decode(
        fake_log_probs("i see you", 2.0, 1, "release"), "release"
    )
    there = pickle.loads(pickle.dumps(nbest))
    assert type(there) is NBest
    assert type(nbest) is not NBest
    assert len(there) > 3
    assert there == nbest
    assert [found.words for found in there] == [found.words for found in nbest]


class Inline:
    """A cluster and Ray, as far as `decode_on_cluster` uses them.

    Tasks are done at once, in this process.
    """

    cpus = 1

    def __init__(self):
        self.ray = self

    def remote(self, **given):
        return lambda work: SimpleNamespace(remote=lambda *given: partial(work, *given))

    def wait(self, waiting):
        return waiting[:1], waiting[1:]

    def get(self, task):
        return task()


def test_what_the_model_of_the_tasks_says_of_itself_comes_back(tiny, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    from tiny_llm import save_tiny_lm

    monkeypatch.setattr(
        "cortext_tune.cluster_decoding.joined", lambda *_, **__: nullcontext(Inline())
    )
    monkeypatch.setattr("cortext_lm.llm.large_model.LISTS_AT_ONCE", 1)
    log_probs = [fake_log_probs("you", 0.5, n, "release") for n in range(3)]
    llm = LargeModelFiles(str(save_tiny_lm(tmp_path)), device="cpu")
    files = DecoderFiles(tiny.lm, DecoderOptions(), llm=llm)
    _, about_llm = decode_on_cluster(
        "local", files, log_probs, RELEASE, context="of it today " * 200
    )
    assert [note.partition(" has ")[0] for note in about_llm["notes"]] == ["the context"]
    assert (about_llm["model"], about_llm["class"]) == (str(tmp_path), "LlamaForCausalLM")
    _, about_llm = decode_on_cluster("local", files, log_probs, RELEASE, context="of it")
    assert about_llm["notes"] == []


def test_tasks_of_a_large_model_have_lists_that_it_reads_together():
    llm = LargeModelFiles("any")
    pytest.importorskip("transformers")
    assert [shared(n, jobs, llm) for n, jobs in ((6, 8), (100, 8), (1000, 8))] == [16, 16, 128]
    assert [shared(n, jobs, None) for n, jobs in ((6, 8), (100, 8), (1000, 8))] == [1, 13, 125]


def test_a_cluster_that_is_not_there_and_a_missing_library_are_one_line(
    tiny, tmp_path, monkeypatch
):
    with pytest.raises(RunError, match=r"Ray at '127.0.0.1:1' cannot be reached"):
        evaluate(tiny.run, tiny.data, "val", tiny.lm, tmp_path / "out", ray="127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingLibrary, match=r"pip install '\.\[ray\]'"):
        evaluate(tiny.run, tiny.data, "val", tiny.lm, tmp_path / "out", ray="local")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("more", "what"),
    [
        (["--gpus-per-worker", "0.5"], "--gpus-per-worker is given without --ray; name a cluster"),
        (["--ray", "local", "--threads", "2"], "--threads is given with --ray"),
        (
            ["--ray", "local", "--llm", "any", "--llm-device", "cuda:1"],
            "--llm-device is cuda:1, and a task on Ray sees",
        ),
    ],
)
def test_what_would_be_passed_over_is_refused(tiny, tmp_path, capsys, more, what):
    for command in ("evaluate", "decode"):
        given = [
            command,
            tiny.run,
            "--data",
            tiny.data,
            "--lm",
            tiny.lm,
            "--out",
            tmp_path / "out",
            *more,
        ]
        assert cortext([str(part) for part in given]) == 2
        assert capsys.readouterr().err.startswith(f"cortext: {what}")
    assert not (tmp_path / "out").exists()


def test_a_cluster_has_nothing_to_do_without_an_ngram(tiny, tmp_path):
    with pytest.raises(DecodingError, match=r"a Ray cluster does the word search; give an n-gram"):
        evaluate(tiny.run, tiny.data, "val", None, tmp_path / "out", ray="local")
