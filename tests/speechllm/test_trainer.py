"""Training a speech LLM.

The trainer's promises hold, stages follow each other, and what cannot be is one line.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cortext.cli import run
from cortext.data import open_packed
from cortext.errors import ConfigError, CortextError, DataError, DecodingError, RunError
from cortext.models import load_model
from cortext.text.metrics import edit_counts
from cortext.text.normalize import normalize
from cortext.training import train
from cortext.training.callbacks import Callback
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.config import SpeechLLMConfig, read_speech_config
from cortext_speechllm.model import FILE, SpeechLLM
from cortext_speechllm.stages import train_speech_llm
from cortext_speechllm.targets.cache import TargetCache, TargetOrigin, text_key, write_targets
from cortext_speechllm.task import speech_trainer


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def config(settings) -> SpeechLLMConfig:
    return read_speech_config("speech_llm", settings)


def lines(run: Path, kind: str) -> list[dict]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


@pytest.fixture(scope="module")
def four_batches(settings, recordings, cached, tmp_path_factory):
    """An open run after four batches and the validation of the fourth."""
    out = tmp_path_factory.mktemp("four") / "run"
    with speech_trainer(
        "speech_llm", recordings, out, overrides=settings, cache=cached, progress=False
    ) as trainer:
        trainer.run(4)
        yield trainer


def assert_same_weights(run: Path, other: Path) -> None:
    for name in ("model.safetensors", FILE, "train_state/state.safetensors"):
        mine, theirs = load_file(run / name), load_file(other / name)
        assert mine.keys() == theirs.keys()
        for key, tensor in mine.items():
            assert torch.equal(tensor, theirs[key]), (name, key)


def test_every_loss_is_logged_and_validated_by_name(trained, recordings):
    names = ("alignment", "tokens", "contrastive", "ctc")
    weights = {"alignment": 1.0, "tokens": 1.0, "contrastive": 1.0, "ctc": 0.1}
    train_lines, val_lines = lines(trained, "train"), lines(trained, "val")
    assert [line["step"] for line in train_lines] == [2, 4, 6, 8]
    assert [line["step"] for line in val_lines] == [4, 8]
    for kind, found in (("train", train_lines), ("val", val_lines)):
        for line in found:
            total = sum(weights[name] * line[f"{kind}_{name}"] for name in names)
            assert line[f"{kind}_loss"] == pytest.approx(total, rel=1e-5)
    assert val_lines[-1]["val_tokens"] < val_lines[0]["val_tokens"]
    summary = json.loads((trained / "summary.json").read_text())
    assert summary["best_metric"] == "val_wer"
    assert summary["loss"] == "loss"


def test_word_errors_are_those_of_the_sentences_that_are_shown(trained, recordings):
    split = open_packed(recordings).split("val")
    chosen = [split.sentence(i) for i in (0, 5, 11)]  # val_wer_trials = 3 of twelve, evenly spread
    for line in lines(trained, "val"):
        assert list(line["val_samples"]) == chosen
        counts = [
            edit_counts(normalize(one).split(), normalize(line["val_samples"][one]).split())
            for one in chosen
        ]
        errors, words = (
            sum(each.errors for each in counts),
            sum(each.reference_length for each in counts),
        )
        assert line["val_wer"] == pytest.approx(errors / words)


def test_nothing_that_is_written_depends_on_the_reference(four_batches, monkeypatch):
    """What is written with the reference before each token would change with the reference."""
    trainer, validator = four_batches, four_batches.validator
    _, results = validator.measure(trainer.backend.forward)
    texts = [result.text for result in results]
    other = trainer.model.network.llm.answer("not this")
    monkeypatch.setattr(validator.loss, "_answers", dict.fromkeys(validator.loss._answers, other))
    metrics, results = validator.measure(trainer.backend.forward)
    assert [result.text for result in results] == texts
    (measured,) = lines(trainer.run_directory.path, "val")
    assert metrics["val_tokens"] != pytest.approx(measured["val_tokens"], rel=1e-3)


def test_a_run_in_pieces_is_the_run_in_one_to_the_bit(
    config, recordings, cached, trained, tmp_path
):
    with speech_trainer(
        config, recordings, tmp_path / "pieces", cache=cached, progress=False
    ) as trainer:
        trainer.run(3)
    train_speech_llm(
        config, recordings, tmp_path / "pieces", cache=cached, resume=True, progress=False
    )
    assert_same_weights(tmp_path / "pieces", trained)


def test_pieces_of_a_batch_give_the_gradient_of_the_whole(config, recordings, cached, tmp_path):
    """Without dropout, and without the contrast, whose wrong answers are those of the same
    piece.
    """
    still = replace(
        config.model,
        rnn_dropout=0.0,
        input_network=replace(config.model.input_network, input_layer_dropout=0.0),
    )
    speech = replace(config.speech, gamma=0.0, lora=replace(config.speech.lora, dropout=0.0))
    config = replace(config, model=still, speech=speech, num_training_batches=2)
    train_speech_llm(config, recordings, tmp_path / "whole", cache=cached, progress=False)
    config = replace(config, gradient_accumulation_steps=4)
    train_speech_llm(config, recordings, tmp_path / "pieces", cache=cached, progress=False)
    for name in ("model.safetensors", FILE):
        mine, theirs = load_file(tmp_path / "pieces" / name), load_file(tmp_path / "whole" / name)
        for key, tensor in theirs.items():
            torch.testing.assert_close(mine[key], tensor, atol=2e-4, rtol=1e-3, msg=key)


def test_absent_days_stay_where_they_are(config, recordings, cached, tmp_path):
    dataset = replace(config.dataset, days_per_batch=1)
    config = replace(config, dataset=dataset, num_training_batches=1, lr_warmup_steps_day=0)
    with speech_trainer(
        config, recordings, tmp_path / "run", cache=cached, progress=False
    ) as trainer:
        before = trainer.model.network.encoder.day_bias.detach().clone()
        trainer.run()
        moved = (trainer.model.network.encoder.day_bias != before).any(1)
    assert moved.sum() == 1


def test_the_frozen_language_model_stays_as_it_is(four_batches, tiny_audio_llm):
    before = AudioLLM.load(tiny_audio_llm, with_tower=False).network.state_dict()
    now = {
        name.replace(".base_layer", ""): t
        for name, t in four_batches.model.network.llm.network.state_dict().items()
    }
    for name, tensor in before.items():
        assert torch.equal(now[name], tensor), name


def test_the_encoder_is_an_ordinary_run(trained, recordings):
    encoder, speech = load_model(trained), SpeechLLM.load(trained)
    trial = open_packed(recordings).split("val").batch([0])
    session = open_packed(recordings).split("val").session(0)
    features_TC = trial.features_BTC[0, : trial.n_bins_B[0]]
    assert (encoder.logits(features_TC, session) == speech.logits(features_TC, session)).all()


def test_stages_follow_each_other_and_a_stopped_one_continues(config, recordings, cached, tmp_path):
    """As speech_llm_best has them; stopped in the second stage."""
    stages = [
        "stages=[{name: ctc, set: {speech.alpha: 0, speech.beta: 0, speech.gamma: 0, speech.ctc: 1,"
        " speech.lora: null, best_metric: val_per}}, {name: alignment, set: {speech.beta: 0,"
        " speech.gamma: 0, speech.lora: null, best_metric: val_loss}}, {name: end, set: {}}]"
    ]
    short = ["num_training_batches=4", "batches_per_train_log=1", "batches_per_val_step=2"]
    start = {"overrides": short + stages, "cache": cached, "progress": False}
    train_speech_llm(config, recordings, tmp_path / "one", **start)
    ctc, alignment = (tmp_path / "one" / "stages" / name for name in ("ctc", "alignment"))
    assert set(lines(ctc, "val")[0]) >= {"val_ctc"}
    assert not {"val_tokens", "val_alignment"} & set(lines(ctc, "val")[0])
    assert {"val_ctc", "val_alignment"} <= set(lines(alignment, "val")[0])
    assert "val_tokens" in lines(tmp_path / "one", "val")[0]

    class Stop(Callback):
        def on_train(self, trainer, step, values):
            if "alignment" in trainer.run_directory.path.name and step == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_speech_llm(config, recordings, tmp_path / "two", callbacks=[Stop()], **start)
    with pytest.raises(RunError, match="there is an unfinished run; continue it with --resume"):
        train_speech_llm(config, recordings, tmp_path / "two", **start)
    train_speech_llm(config, recordings, tmp_path / "two", resume=True, **start)
    assert_same_weights(tmp_path / "one", tmp_path / "two")
    with pytest.raises(RunError, match="the run is finished"):
        train_speech_llm(config, recordings, tmp_path / "two", resume=True, **start)


def test_it_starts_from_a_run_of_the_ctc_trainer(config, recordings, cached, tmp_path):
    plain = ["model.n_units=16", "model.n_layers=1", "num_training_batches=2"]
    train("tiny", recordings, tmp_path / "ctc", overrides=plain, progress=False)
    begun = load_file(tmp_path / "ctc" / "model.safetensors")
    with speech_trainer(
        config,
        recordings,
        tmp_path / "run",
        cache=cached,
        init_from=tmp_path / "ctc",
        progress=False,
    ) as trainer:
        for name, tensor in trainer.model.network.encoder.state_dict().items():
            assert torch.equal(tensor, begun[name])


def test_it_starts_from_another_speech_llm(config, recordings, cached, trained, tmp_path):
    with speech_trainer(
        config, recordings, tmp_path / "run", cache=cached, init_from=trained, progress=False
    ) as trainer:
        state = trainer.model.network.state_dict()
    for file, prefix in ((FILE, ""), ("model.safetensors", "encoder.")):
        for name, tensor in load_file(trained / file).items():
            assert torch.equal(state[prefix + name], tensor)


def test_a_projector_for_another_audio_llm_is_one_line(
    config, recordings, cached, trained, tmp_path
):
    from tiny_speech_llm import save_tiny_audio_llm

    other = save_tiny_audio_llm(tmp_path / "other", seed=1)
    speech = replace(config.speech, audio_llm=str(other), alpha=0.0)
    with pytest.raises(RunError) as caught:
        speech_trainer(
            replace(config, speech=speech),
            recordings,
            tmp_path / "run",
            init_from=trained,
            progress=False,
        )
    assert_one_line(
        caught.value,
        str(trained),
        "its projector is of another audio language model",
        "the same one",
    )


def test_an_encoder_of_another_width_is_one_line(config, recordings, cached, tmp_path):
    train(
        "tiny",
        recordings,
        tmp_path / "ctc",
        overrides=["model.n_units=20", "num_training_batches=1"],
        progress=False,
    )
    with pytest.raises(RunError) as caught:
        speech_trainer(
            config,
            recordings,
            tmp_path / "run",
            cache=cached,
            init_from=tmp_path / "ctc",
            progress=False,
        )
    assert_one_line(
        caught.value, "needed to start from it; set the section model as in its config.yaml"
    )
    assert not (tmp_path / "run").exists()


def targets_of(cache: TargetCache) -> dict[str, torch.Tensor]:
    keys = cache.keys()
    return {key: cache.target(key) for key in keys}


def assert_one_line(error: CortextError, *parts: str) -> None:
    for part in parts:
        assert part in str(error)
    assert "\n" not in str(error)


def test_a_sentence_without_audio_is_named(config, recordings, cached, tmp_path):
    cache, split = TargetCache.open(cached), open_packed(recordings).split("train")
    lost = split.sentence(7)
    kept = {key: target for key, target in targets_of(cache).items() if key != text_key(lost)}
    write_targets(tmp_path / "less.safetensors", kept, cache.origin)
    with pytest.raises(DataError) as caught:
        speech_trainer(
            config,
            recordings,
            tmp_path / "run",
            cache=tmp_path / "less.safetensors",
            progress=False,
        )
    assert_one_line(
        caught.value, "less.safetensors", repr(lost), "/block ", "cortext speech-llm cache"
    )


def test_speech_of_another_model_is_one_line(config, recordings, cached, tmp_path):
    cache = TargetCache.open(cached)
    everything = targets_of(cache)
    write_targets(
        tmp_path / "other.safetensors", everything, replace(cache.origin, revision="0" * 64)
    )
    with pytest.raises(DataError) as caught:
        speech_trainer(
            config,
            recordings,
            tmp_path / "run",
            cache=tmp_path / "other.safetensors",
            progress=False,
        )
    assert_one_line(
        caught.value,
        "other.safetensors",
        "000000000000",
        "make one with `cortext speech-llm cache`",
    )


@pytest.mark.parametrize(
    ("changes", "arguments", "line"),
    [
        (
            {},
            {"cache": None},
            "there is no cached speech to align to; make it with cortext speech-llm cache",
        ),
        (
            {},
            {"device": "tpu"},
            "a speech LLM is trained with torch on a CPU or on GPUs, and torchax is asked for",
        ),
        ({}, {"lm": "lm"}, "a speech LLM writes its sentences without an n-gram; leave out --lm"),
        (
            {"val_wer_trials": 0},
            {},
            "best_metric is 'val_wer', and without the tokens' loss or val_wer_trials",
        ),
        ({"trainable": ["projektor."]}, {}, "trainable names 'projektor.'"),
    ],
)
def test_what_cannot_be_trained_is_one_line(
    config, recordings, cached, tmp_path, changes, arguments, line
):
    with pytest.raises(ConfigError) as caught:
        speech_trainer(
            replace(config, **changes),
            recordings,
            tmp_path / "run",
            **{"cache": cached, "progress": False} | arguments,
        )
    assert_one_line(caught.value, line)
    assert not (tmp_path / "run").exists()


def test_sentences_longer_than_the_models_positions_are_reported_before_training(
    config, recordings, cached, tmp_path
):
    start = {"cache": cached, "progress": False}
    long = ["speech.generation.max_length=1024"]
    for stages in ([], STAGES):
        with pytest.raises(DecodingError) as caught:
            train_speech_llm(
                config, recordings, tmp_path / "run", overrides=[*long, *stages], **start
            )
        assert_one_line(
            caught.value,
            "1024 tokens behind",
            "the model knows 1024",
            "speech.generation.max_length",
        )
        assert not list(tmp_path.rglob("model.safetensors"))
    none_written = [*long, "val_wer_trials=0", "best_metric=val_per"]
    speech_trainer(config, recordings, tmp_path / "run", overrides=none_written, **start).close()


def test_another_audio_llm_cannot_finish_a_run(
    config, recordings, cached, tmp_path, tiny_audio_llm
):
    from tiny_speech_llm import save_tiny_audio_llm

    with speech_trainer(
        config, recordings, tmp_path / "run", cache=cached, progress=False
    ) as trainer:
        trainer.run(2)
    moved = tmp_path / "other"
    save_tiny_audio_llm(moved, seed=1)
    cache = TargetCache.open(cached)
    origin = TargetOrigin.of(cache.origin.metadata() | {"revision": AudioLLM.load(moved).revision})
    write_targets(tmp_path / "other.safetensors", targets_of(cache), origin)
    (tmp_path / "run" / "config.yaml").write_text(
        (tmp_path / "run" / "config.yaml").read_text().replace(str(tiny_audio_llm), str(moved))
    )
    config = replace(config, speech=replace(config.speech, audio_llm=str(moved)))
    with pytest.raises(RunError, match="the run was begun with audio_llm = "):
        train_speech_llm(
            config,
            recordings,
            tmp_path / "run",
            cache=tmp_path / "other.safetensors",
            resume=True,
            progress=False,
        )


STAGES = [
    "stages=[{name: ctc, set: {speech.alpha: 0, speech.beta: 0, speech.gamma: 0, speech.ctc: 1,"
    " speech.lora: null, best_metric: val_per}}, {name: end, set: {}}]"
]


def test_what_a_later_stage_needs_is_looked_for_before_the_first(
    config, recordings, cached, tmp_path
):
    start = {"overrides": STAGES, "progress": False}
    with pytest.raises(ConfigError, match="there is no cached speech to align to"):
        train_speech_llm(config, recordings, tmp_path / "run", **start)
    assert not (tmp_path / "run").exists()
    cache = TargetCache.open(cached)
    kept = dict(list(targets_of(cache).items())[1:])
    write_targets(tmp_path / "less.safetensors", kept, cache.origin)
    with pytest.raises(DataError, match="has no audio of"):
        train_speech_llm(
            config, recordings, tmp_path / "run", cache=tmp_path / "less.safetensors", **start
        )
    assert not (tmp_path / "run" / "stages" / "ctc" / "model.safetensors").exists()


def test_a_staged_run_is_written_only_where_it_can_be(
    config, recordings, cached, trained, tmp_path
):
    start = {"overrides": STAGES, "cache": cached, "progress": False}
    with pytest.raises(RunError, match="there is no run to resume; leave out --resume"):
        train_speech_llm(config, recordings, tmp_path / "run", resume=True, **start)
    with pytest.raises(RunError, match="there is no run to resume; leave out --resume"):
        train_speech_llm(
            config, recordings, tmp_path / "run", resume=True, cache=cached, progress=False
        )
    with pytest.raises(RunError, match="the run is finished"):
        train_speech_llm(config, recordings, trained, **start)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(RunError, match="there is something else than a run"):
        train_speech_llm(config, recordings, tmp_path / "mine", **start)
    assert not (trained / "stages").exists()
    assert not (tmp_path / "mine" / "stages").exists()

    class Stop(Callback):
        def on_train(self, trainer, step, values):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # what was left by the first attempt is in nobody's way
        train_speech_llm(config, recordings, tmp_path / "run", callbacks=[Stop()], **start)


def test_what_another_run_has_learnt_is_never_left_out_in_silence(
    config, recordings, cached, trained, tmp_path
):
    config = replace(config, speech=replace(config.speech, lora=None))
    with pytest.raises(RunError) as caught:
        speech_trainer(
            config, recordings, tmp_path / "run", cache=cached, init_from=trained, progress=False
        )
    assert_one_line(caught.value, FILE, "has LoRA weights, such as lora.", "give speech.lora")


def test_commands_for_other_runs_say_what_this_one_is(trained, recordings, tmp_path, capsys):
    """Each is one line."""
    plain = ["--data", str(recordings), "--out", str(tmp_path / "out")]
    for arguments, line in (
        (
            ["train", "--config", "speech_llm", *plain],
            "is the configuration of a speech LLM; give it to cortext speech-",
        ),
        (
            ["adapt", str(trained), *plain],
            "is the run of a speech LLM, which can neither be adapted",
        ),
        (
            ["export", str(trained), "--format", "release", "--out", str(tmp_path / "out")],
            "is the run of a speech LLM",
        ),
    ):
        assert run(arguments) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert line in said
        assert not (tmp_path / "out").exists()
