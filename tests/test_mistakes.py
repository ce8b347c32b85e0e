"""Mistakes that a caller in Python makes: each is one line of ours, or a plain TypeError at the call.

A table by function: the call, and values that are wrong for it.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from engine_cases import SENTENCES, sentence_entries, write_lm
from small_training import write_recordings
from untrained import untrained_run

import cortext
import cortext_speechllm as speechllm
import cortext_tune as tuning
from cortext import data, decoding, evaluation, features, models, text, training
from cortext.decoding.fake import fake_log_probs
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.saved import to_log_probs
from cortext.errors import CortextError, WrongType
from cortext.evaluation.decoder_options import options_for
from cortext.evaluation.fit.search import fit_options
from cortext.evaluation.redecode import decode_evaluation
from cortext.models.triple_gru import CleanSpeechModel, NoiseModel
from cortext.plugins import load_plugin
from cortext.training.loss import ctc_loss
from cortext.training.setup import new_model
from cortext_data.readers.t12 import t12
from cortext_data.simulate import SimulatorConfig, simulate
from cortext_live import Pipeline
from cortext_live.adapt import adapt
from cortext_live.core.acoustic_stream import AcousticStream, EndpointOptions, PipelineOptions
from cortext_live.steps.stepping import TorchStepper, open_stepper
from cortext_live.voices import open_voice
from cortext_lm import ensemble
from cortext_lm.llm.large_model import LLM
from cortext_published.copy_task import import_copy_task
from cortext_published.verification import verify_t12, verify_t15
from cortext_speechllm.config import SpeechConfig, SpeechLLMConfig
from cortext_tune.decoder.material import tuning_parts

DAY = "t15.2023.08.11"
NAN = float("nan")
PATHS = (None, 3, [DAY], b"bytes", np.zeros(3), "nowhere", "a\0b", data.SPLITS)
OUTS = (None, 3, [DAY], b"bytes", "a\0b")
TEXTS = (None, 3, NAN, b"a", ["a"])
SPLITS = (None, 0, ["val"], "vall")
INVENTORIES = (None, 3, [0, 1], "relase")
OPTIONS = (
    3,
    ["beam"],
    "beam=3",
    {"beem": 3},
    {"beam": -1},
    {"beam": None},
    decoding.DecoderOptions,
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """One of everything, small."""
    root = tmp_path_factory.mktemp("mistakes")
    recordings = write_recordings(root / "data")
    packed = data.pack(recordings, root / "packed")
    run = untrained_run(root / "run", packed.sessions, packed.n_features)
    lm = write_lm(root / "lm", sentence_entries(), SENTENCES)
    model = cortext.load_model(run)
    trial = packed.split("val").trial(0)
    return SimpleNamespace(
        root=root,
        data=recordings,
        files=cortext.open_dataset(recordings),
        packed=packed,
        run=run,
        lm_dir=lm,
        lm=LanguageModel.open(lm),
        model=model,
        decoder=cortext.Decoder.from_dir(lm),
        trial=trial,
        x=trial.features_TC,
        log_probs=model.log_probs(trial.features_TC, DAY),
        inventory=model.inventory,
    )


def wrong_features(world: SimpleNamespace) -> list[Any]:
    """What is given for features [T, C] of a model."""
    x = world.x
    nan = np.where(np.arange(len(x))[:, None] == 3, NAN, x)
    shapes = [x[0], x[None], x.T.copy(), x[:, :5], x[:3], x[:0]]
    return [
        None,
        "x",
        [[1, 2], [3]],
        world.trial,
        x.astype(complex),
        x.astype(object),
        nan,
        *shapes,
    ]


def wrong_log_probs(world: SimpleNamespace) -> list[Any]:
    """What is given for log-probabilities [P, V]."""
    lp = world.log_probs
    shapes = [lp[0], lp[None], lp.T.copy(), lp[:, :40].copy(), np.asfortranarray(lp)]
    types = [lp.tolist(), lp.astype(np.float64), torch.from_numpy(lp), lp.astype(object)]
    return [None, "x", world.trial, np.exp(lp), lp - 3, np.full_like(lp, NAN), *shapes, *types]


def raw_trial(features_TC: Any, **changes: Any) -> data.Trial:
    fields: dict[str, Any] = {"session": DAY, "block": 1, "trial": 1}
    return data.Trial(features_TC, **fields | changes)


# Mistakes by function: the call, which is given the world and a value, and wrong values. A function
# of the world gives values that need it.
Table = dict[str, tuple[Callable[[SimpleNamespace, Any], Any], Any]]

READING: Table = {
    "open_dataset": (lambda w, v: cortext.open_dataset(v), PATHS),
    "open_packed": (lambda w, v: data.open_packed(v), PATHS),
    "open_data": (lambda w, v: data.open_data(v), PATHS),
    "read_trials": (lambda w, v: list(data.read_trials(v, labels_required=True)), PATHS),
    "load_model": (lambda w, v: cortext.load_model(v), PATHS),
    "load_model, device": (lambda w, v: cortext.load_model(w.run, v), (None, 3, "gpu")),
    "Decoder.from_dir": (lambda w, v: cortext.Decoder.from_dir(v), PATHS),
    "second_lm": (lambda w, v: cortext.Decoder.from_dir(w.lm_dir, second_lm=v), PATHS[1:]),
    "options": (lambda w, v: cortext.Decoder.from_dir(w.lm_dir, v), OPTIONS),
    "LanguageModel.open": (lambda w, v: LanguageModel.open(v), PATHS),
    "Lexicon.read": (lambda w, v: text.Lexicon.read(v), PATHS),
    "read_train_config": (lambda w, v: training.read_train_config(v), PATHS),
    "splits of files": (lambda w, v: w.files.trials(v), SPLITS),
    "splits of packed data": (lambda w, v: w.packed.split(v), SPLITS),
    "numbers of trials": (lambda w, v: (w.files.n_trials(v), w.packed.n_trials(v)), SPLITS),
    "sessions of files": (lambda w, v: w.files.trials("val", v), (3, DAY, [1], ["x"])),
    "sessions of packed data": (lambda w, v: w.packed.trials("val", v), (3, DAY, [1], ["x"])),
    **{
        name: (lambda w, v, name=name: getattr(w.packed.split("val"), name)(v), wrong)
        for names, wrong in (
            (("trial", "features", "labels", "sentence", "session"), (None, 1.5, "0", 99, -99)),
            (("batch", "take"), (None, 3, [None], [1.5], ["0"], [99], [[1, 2]])),
        )
        for name in names
    },
    "feature_subset": (
        lambda w, v: w.packed.split("val").select(feature_subset=v),
        (3, "abc", [99], []),
    ),
}

WRITING: Table = {
    "simulate": (lambda w, v: simulate(v, "tiny"), OUTS),
    "simulate, preset": (lambda w, v: simulate(w.root / "s", v), (None, 3, "tinny")),
    "simulate, seed": (lambda w, v: simulate(w.root / "s", "tiny", seed=v), (-1, 1.5, "x")),
    "simulate, workers": (
        lambda w, v: simulate(w.root / "s", "tiny", workers=v),
        (0, "2", 1.5),
    ),
    "simulate, text": (
        lambda w, v: simulate(w.root / "s", "tiny", text=v),
        (3, ["a"], "nowhere"),
    ),
    "pack": (lambda w, v: data.pack(v, w.root / "p"), PATHS),
    "pack, out": (lambda w, v: data.pack(w.data, v), OUTS),
    "write_session": (lambda w, v: data.write_session(v, [w.trial]), OUTS),
    "write_session, trials": (
        lambda w, v: data.write_session(w.root / "w" / DAY / "data_train.hdf5", v),
        lambda w: (
            *(None, 3, w.trial, [w.x], []),
            *([raw_trial(x)] for x in wrong_features(w) if not _would_do(x)),
            *([raw_trial(w.x, block=block)] for block in (None, "two", 1.5)),
            [raw_trial(w.x, corpus=3)],
            [raw_trial(w.x, sentence="a", phoneme_ids=np.ones((2, 2), int))],
        ),
    ),
    "make_trial": (
        lambda w, v: data.make_trial(v, DAY, 1, 1),
        lambda w: [x for x in wrong_features(w) if not _would_do(x)],
    ),
    "make_trial, numbers": (
        lambda w, v: data.make_trial(w.x, DAY, v, v),
        (None, "two", 1.5, -1),
    ),
    "make_trial, sentence": (lambda w, v: data.make_trial(w.x, DAY, 1, 1, v), TEXTS[1:]),
    "make_trial, phonemes": (
        lambda w, v: data.make_trial(w.x, DAY, 1, 1, "a", phoneme_ids=v),
        (3, "AA", [-1], [99], [1.5], ["AA"], [None], [[1, 2]]),
    ),
    "save_model": (lambda w, v: models.save_model(w.model, v), OUTS),
    "save_model, model": (
        lambda w, v: models.save_model(v, w.root / "m"),
        lambda w: (None, w.model.network),
    ),
    "LanguageModel.build": (
        lambda w, v: LanguageModel.build(v, 2, w.root / "b"),
        (None, 3, "a text", b"a", [None], [3], [["a"]], []),
    ),
    "LanguageModel.build, order": (
        lambda w, v: LanguageModel.build(["a b c"], v, w.root / "b"),
        (None, 0, 9, "3", 2.5),
    ),
    "LanguageModel.build, out": (lambda w, v: LanguageModel.build(["a b"], 2, v), OUTS),
    "LanguageModel.build, options": (
        lambda w, v: LanguageModel.build(["a b"], 2, w.root / "b", **v),
        ({"prun": 1}, {"vocabulary": -1}),
    ),
}


def _would_do(x: Any) -> bool:
    """Tell whether features are right for a trial, though not for the model."""
    return isinstance(x, np.ndarray) and x.ndim == 2 and x.dtype == np.float32


RUNNING: Table = {
    "logits": (lambda w, v: w.model.logits(v, DAY), wrong_features),
    "logits, session": (lambda w, v: w.model.logits(w.x, v), (None, 3, "t15.2023.08.12")),
    "logits_batch": (
        lambda w, v: w.model.logits_batch(*v),
        lambda w: (
            (w.x, [DAY], [len(w.x)]),
            (w.x[None], [DAY], None),
            (w.x[None], [DAY], [len(w.x) + 9]),
            (w.x[None], [DAY, DAY], [len(w.x)]),
        ),
    ),
    "decode": (lambda w, v: w.decoder.decode(v, w.inventory), wrong_log_probs),
    "decode, inventory": (lambda w, v: w.decoder.decode(w.log_probs, v), INVENTORIES),
    "decode_batch": (
        lambda w, v: w.decoder.decode_batch(v, w.inventory),
        lambda w: (None, 3, "x", w.log_probs, [None], [w.log_probs, w.log_probs[:, :3]]),
    ),
    "decode_batch, threads": (
        lambda w, v: w.decoder.decode_batch([w.log_probs], w.inventory, threads=v),
        (None, "2", 1.5, -2),
    ),
    "score": (lambda w, v: w.decoder.score(w.log_probs, w.inventory, v), (*TEXTS, "qqq")),
    "score, log_probs": (lambda w, v: w.decoder.score(v, w.inventory, "i"), wrong_log_probs),
    "step": (lambda w, v: w.decoder.stream(w.inventory).step(v), wrong_log_probs),
    "stream, hook": (lambda w, v: w.decoder.stream(w.inventory, hook=v), (3, "x")),
    "stream, words": (
        lambda w, v: w.decoder.stream(w.inventory, words=v),
        (None, 3, [3], {"": []}),
    ),
    "hotwords": (
        lambda w, v: w.decoder.decode(w.log_probs, w.inventory, hotwords=v),
        (3, ["a"], "a", {"a": None}, {"a": NAN}, {3: 1.0}, {"a b": 1.0}),
    ),
    "with_options": (lambda w, v: w.decoder.with_options(**v), ({"beem": 3}, {"beam": None})),
    "with_llm": (lambda w, v: w.decoder.with_llm(v), ("directory", 3)),
    "greedy": (
        lambda w, v: decoding.greedy(v, w.inventory),
        lambda w: (None, "x", w.trial, w.log_probs[0], w.log_probs[None], w.log_probs.T),
    ),
    "greedy, inventory": (lambda w, v: decoding.greedy(w.log_probs, v), INVENTORIES),
    "Pipeline": (
        lambda w, v: Pipeline(*v),
        lambda w: (
            *((None, None), (str(w.run), w.decoder), (w.decoder, w.model)),
            *((w.model, str(w.lm_dir)), (w.model, w.decoder, "day"), (w.model, w.decoder, None)),
        ),
    ),
    "Pipeline, options": (
        lambda w, v: Pipeline(w.model, w.decoder, options=v),
        (None, {"endpoint": None}),
    ),
    "push": (
        lambda w, v: Pipeline(w.model, None).push(v),
        lambda w: (
            None,
            w.x.tolist(),
            torch.from_numpy(w.x),
            w.x.astype(float),
            w.x[0],
            w.x[:, :3],
        ),
    ),
    "evaluate, run": (
        lambda w, v: cortext.evaluate(v, w.packed, "val", None, w.root / "e"),
        lambda w: (*PATHS, w.model),
    ),
    "evaluate, data": (
        lambda w, v: cortext.evaluate(w.run, v, "val", None, w.root / "e"),
        PATHS,
    ),
    "evaluate, lm": (
        lambda w, v: cortext.evaluate(w.run, w.packed, "val", v, w.root / "e"),
        lambda w: (*PATHS[1:], w.lm),
    ),
    "evaluate, split": (
        lambda w, v: cortext.evaluate(w.run, w.packed, v, None, w.root / "e"),
        SPLITS,
    ),
    "evaluate, settings": (
        lambda w, v: cortext.evaluate(w.run, w.packed, "val", w.lm_dir, w.root / "e", **v),
        (
            *({"threads": 0}, {"threads": "2"}, {"seed": -1}, {"seed": "x"}),
            *({"context": None}, {"progress": 3}, {"device": None}, {"llm": 3}, {"options": 3}),
            *({"options": "nowhere"}, {"options": {"beem": 3}}, {"description": 3}),
        ),
    ),
    "evaluate, out": (lambda w, v: cortext.evaluate(w.run, w.packed, "val", None, v), OUTS),
    "decode to a file": (
        lambda w, v: evaluation.decode(w.run, w.packed, "val", w.lm_dir, v),
        OUTS,
    ),
}

TRAINING: Table = {
    "train": (
        lambda w, v: cortext.train(v, w.packed, w.root / "t"),
        (
            *(PATHS[:-1]),
            *({"n_unit": 3}, {"model": "gru"}, {"model": {"kind": "gur"}}, {3: 4}, {"set"}),
            *({"num_training_batches": -1}, {"num_training_batches": 2.5}, {"dataset": [1]}),
            *({"num_training_batches": True}, {"lr_max": NAN}, training.TrainConfig),
        ),
    ),
    "train, overrides": (
        lambda w, v: cortext.train("tiny", w.packed, w.root / "t", overrides=v),
        (None, 3, "lr_max=1", {"lr_max": 1}, [3], ["lr_max"], ["lr_maxx=1"]),
    ),
    "train, data": (lambda w, v: cortext.train("tiny", v, w.root / "t"), PATHS),
    "train, out": (lambda w, v: cortext.train("tiny", w.packed, v), OUTS),
    "Trainer": (
        lambda w, v: cortext.Trainer("tiny", w.packed, w.root / "t", **v),
        lambda w: (
            *({"lm": 3}, {"lm": "nowhere"}, {"init_from": w.model}, {"init_from": "nowhere"}),
            *({"device": None}, {"device": "gpu"}, {"callbacks": training.Callback()}),
            *({"callbacks": [print]}, {"callbacks": [training.Callback]}),
        ),
    ),
    "adapt": (lambda w, v: adapt(v, w.packed, w.root / "a"), PATHS),
    "Sampler": (
        lambda w, v: data.DayBalancedSampler(*v),
        (
            *((None, 8, 2, 0), ([0, 1], "8", 2, 0), ([0, 1], 8.0, 2, 0), ([0, 1], 8, 2, None)),
            *(([0, 1], -1, 2, 0), ([], 8, 2, 0), ([0, 1], 8, 2, 0.5)),
        ),
    ),
    "indices": (
        lambda w, v: data.DayBalancedSampler([0, 1], 2, 2, 0).indices(v),
        (None, "x", 1.5, -1),
    ),
    "ctc_loss": (
        lambda w, v: ctc_loss(*v),
        lambda w: [
            [replaced if n == position else right for n, right in enumerate(_right_loss())]
            for position, wrong in enumerate(
                (
                    (None, np.zeros((2, 9, 41)), torch.zeros(9, 41)),
                    (None, [9, 9], torch.tensor([9]), torch.tensor([10, 9])),
                    (None, torch.ones(2), torch.full((2, 3), 41)),
                    (None, np.array([3, 3]), torch.tensor([3]), torch.tensor([3, 4])),
                )
            )
            for replaced in wrong
        ],
    ),
    "build_model": (
        lambda w, v: models.build_model(v, n_features=3, n_days=2, n_classes=41),
        (None, "gru", models.GRU),
    ),
    "build_model, sizes": (
        lambda w, v: models.build_model(models.GRUConfig(), n_features=v, n_days=2, n_classes=41),
        (None, "3", 0, -3),
    ),
    "model_config": (lambda w, v: models.model_config(v), (None, "gru", {"n_units": "x"})),
    "register": (lambda w, v: models.register("x")(v), (3, SimpleNamespace)),
    "augment": (lambda w, v: features.augmentation_configs(v), ([3], [{"kind": "drft"}])),
    "launch": (lambda w, v: tuning.launch(v), (None, 3, "nowhere")),
    "launch, accelerator": (lambda w, v: tuning.launch("tiny", v), (None, 3, ["tpu"])),
    "launch, data": (lambda w, v: tuning.launch("tiny", data=v), (3, ["data"], b"data")),
    "smooth": (lambda w, v: features.smooth(v), (None, np.zeros((1, 9, 4)), torch.zeros(9, 4))),
    "padding": (lambda w, v: features.smooth(torch.zeros(1, 9, 4), padding=v), (None, "x")),
    "prepare": (
        lambda w, v: features.prepare(*v),
        (
            (torch.zeros(9, 4), torch.tensor([9]), features.AugmentationConfig()),
            (torch.zeros(1, 9, 4), None, features.AugmentationConfig()),
            (torch.zeros(1, 9, 4), torch.tensor([9]), None),
            (torch.zeros(1, 9, 4), torch.tensor([9]), features.AugmentationConfig(), 3),
        ),
    ),
    **{
        f"{kind.__name__}, {name}": (
            lambda w, v, kind=kind, name=name: kind(**{name: v}),
            (None, "x", [3], NAN, np.zeros(3)),
        )
        for kind, name in (
            (training.TrainConfig, "lr_max"),
            (training.DatasetConfig, "batch_size"),
            (models.GRUConfig, "n_units"),
            (models.Smoothing, "smooth_kernel_std"),
        )
    },
    "tune_training": (
        lambda w, v: tuning.tune_training("tiny", w.packed, w.root / "u", v),
        (None, 3, {"lr_max": [1]}),
    ),
    "Search": (lambda w, v: tuning.Search("grid", v), (None, 3, "lr_max", ["lr_max"])),
    "parse_space": (lambda w, v: tuning.parse_space(v), (None, 3, "lr_max=1", [3], ["lr_max"])),
    "load_plugin": (lambda w, v: load_plugin(v), PATHS),
    "combine": (lambda w, v: ensemble.combine(v), (None, 3, ["a"], "a")),
    "average": (lambda w, v: ensemble.average(v, "arithmetic"), (None, 3, [None], [[1.0]])),
    "read_evaluations": (lambda w, v: ensemble.read_evaluations(v), (None, 3, "run", [3], [])),
    "read_lists": (lambda w, v: ensemble.read_lists(v, "a"), PATHS),
}


def _right_loss() -> tuple[torch.Tensor, ...]:
    """What `ctc_loss` takes: two trials of nine frames, three phonemes each."""
    ones = torch.ones((2, 3), dtype=torch.long)
    return torch.zeros(2, 9, 41), torch.tensor([9, 9]), ones, torch.tensor([3, 3])


TEXT: Table = {
    "normalize": (lambda w, v: text.normalize(v), TEXTS),
    "to_phonemes": (lambda w, v: text.to_phonemes(v), (*TEXTS, "", "3")),
    "pronounce": (lambda w, v: text.pronounce(v), (*TEXTS, "", "a b")),
    "lexicon_for": (lambda w, v: text.lexicon_for(v), (None, 3, "cat", [3], ["a b"])),
    "Lexicon": (lambda w, v: text.Lexicon(v), (3, ["a"], {"a": [("XX",)]})),
    "get_inventory": (lambda w, v: text.get_inventory(v), INVENTORIES),
    "ids": (lambda w, v: w.inventory.ids(v), (None, 3, "AA", ["XX"], [3])),
    "names": (lambda w, v: w.inventory.names(v), (None, 3, "AA", [41], [-1], [1.5], ["AA"])),
    "order_from": (lambda w, v: w.inventory.order_from(v), (None, "lm", [1])),
    "sentence": (lambda w, v: w.lm.sentence(v), TEXTS),
    "score of a word": (lambda w, v: w.lm.score(w.lm.begin(), v), TEXTS),
    "state": (lambda w, v: (w.lm.score(v, "i"), w.lm.end(v)), (None, 3)),
    "perplexity": (lambda w, v: w.lm.evaluate(v), (None, 3, "a text", [3])),
    "error_rate": (
        lambda w, v: cortext.error_rate(*v),
        lambda w: (
            *((None, None), ("a b", "a c"), (["a"], []), ([1], [2]), (["a"], [None])),
            *((["a"], [["a"]]), (["a"], [w.decoder.decode(w.log_probs, w.inventory)])),
            *((["a"], ["b"], "words"), (["a"], ["b"], None), ([3], [3], "phoneme")),
            *(({"a": 1}, {"a": 1}), ([np.zeros((2, 2))], [[1]], "phoneme"), (iter("a"), "b")),
        ),
    ),
    "error_rate, settings": (
        lambda w, v: cortext.error_rate(["a"], ["b"], **v),
        (
            *({"n_boot": -1}, {"n_boot": "9"}, {"n_boot": 9.5}, {"seed": -1}),
            *({"confidence": 95}, {"confidence": None}, {"confidence": 1.5}),
        ),
    ),
    "edit_counts": (lambda w, v: text.edit_counts(v, v), (None, 3, NAN)),
    "align": (lambda w, v: text.align(v, v), (None, 3, NAN)),
    "confusion": (
        lambda w, v: text.confusion(*v),
        ((None, None, 2), ([[1]], [], 2), ([[1]], [[1]], "2"), ([[1]], [[1]], -2)),
    ),
}


def wrong_config(kind: type, *names: str) -> Table:
    """The row of a settings class: wrong values for some of its fields."""
    return {
        f"{kind.__name__}, {name}": (
            lambda w, v, name=name: kind(**{name: v}),
            (None, "x", [3], -1e40, NAN, np.zeros(3), torch.zeros(0), {"a": 1}),
        )
        for name in names
    }


NETWORKS = (models.GRU, models.GRUConfig()), (models.TripleGRU, models.TripleGRUConfig())
NUMBERS = (None, "x", "", [], {"a": 1}, NAN, float("inf"), -1, np.zeros(3))
THINGS = (None, 3, "x", b"b", [], {"a": 1}, object(), np.zeros(3))

PARTS: Table = {
    **wrong_config(
        features.AugmentationConfig, "white_noise_std", "random_cut", "smooth_kernel_std"
    ),
    **wrong_config(features.ChannelDropoutConfig, "probability", "features_per_electrode"),
    **wrong_config(features.GainConfig, "trial_std"),
    **wrong_config(features.TimeMaskConfig, "n_masks", "max_share"),
    **wrong_config(training.AdversarialConfig, "noisy_weight", "reversal_schedule"),
    **wrong_config(SimulatorConfig, "n_days", "snr", "lead_ms", "plan"),
    **wrong_config(tuning.DecoderSearch, "n_trials", "time_weight"),
    **wrong_config(training.DeviceSpec, "backend", "tpu_engine"),
    "DeviceSpec, device": (lambda w, v: training.DeviceSpec(v), (None, 3, ["cpu"], np.zeros(3))),
    **wrong_config(decoding.DecoderOptions, "recombine", "beam", "llm"),
    **wrong_config(ensemble.EnsembleOptions, "method", "alpha"),
    **wrong_config(PipelineOptions, "smoothing", "normalise"),
    **wrong_config(EndpointOptions, "silence_ms"),
    **wrong_config(models.GRUConfig, "kind", "n_layers", "input_network"),
    **wrong_config(models.TransformerConfig, "n_layers", "attention", "train_context_frames"),
    **wrong_config(SpeechLLMConfig, "precision", "lr_max"),
    **{
        f"{cls.__name__}, {name}": (
            lambda w, v, cls=cls, name=name, config=config: cls(
                **{"config": config, "n_features": 3, "n_days": 2, "n_classes": 41, name: v}
            ),
            THINGS if name == "config" else (0, -1, 2.5, NAN, "3", [3]),
        )
        for cls, config in NETWORKS
        for name in ("config", "n_features", "n_days", "n_classes")
    },
    "GRU, config of another model": (
        lambda w, v: models.GRU(v, n_features=3, n_days=2, n_classes=41),
        (models.TripleGRUConfig(), models.GRUConfig),
    ),
    "NBest": (lambda w, v: decoding.NBest(v), (None, 3, "x", b"b", {"a": 1}, ["x"], [None])),
    "Hypothesis, text": (lambda w, v: decoding.Hypothesis(v, 0.0, 0.0, 0.0), (None, 3, b"b")),
    "Hypothesis, scores": (
        lambda w, v: decoding.Hypothesis("a", v, v, v),
        (None, "x", [], np.zeros(3)),
    ),
    "Hypothesis, words": (
        lambda w, v: decoding.Hypothesis("a", 0.0, 0.0, 0.0, v),
        (None, 3, "a", ("a",)),
    ),
    "AcousticStream": (lambda w, v: AcousticStream(v), THINGS),
    "AcousticStream, session": (lambda w, v: AcousticStream(w.model, v), THINGS),
    "AcousticStream, options": (
        lambda w, v: AcousticStream(w.model, options=v),
        (None, {"smoothing": "causal"}),
    ),
    "Pipeline, stepper": (lambda w, v: Pipeline(None, None, stepper=v), THINGS),
    "open_voice": (lambda w, v: open_voice(v), (None, 3, ["formant"], np.zeros(3))),
    "build_cache": (
        lambda w, v: speechllm.build_cache(v, "nowhere", "formant", w.root / "cache"),
        (None, 3, "a text", b"b", [None], [3], {3: "x"}, []),
    ),
    "build_cache, voice": (
        lambda w, v: speechllm.build_cache(["a b"], "nowhere", v, w.root / "cache"),
        (None, 3, [], object()),
    ),
    "build_cache, out": (
        lambda w, v: speechllm.build_cache(["a b"], "nowhere", "formant", v),
        OUTS,
    ),
    "SpeechLLM.load": (lambda w, v: speechllm.SpeechLLM.load(v), PATHS),
    "SpeechLLM.around": (
        lambda w, v: speechllm.SpeechLLM.around(v, SpeechConfig(), 3, None),
        THINGS,
    ),
    "LLM.load, device": (lambda w, v: LLM.load("nowhere", device=v), THINGS),
    "tune_decoder": (lambda w, v: tuning.tune_decoder(v, v, v, w.root / "o"), THINGS),
    "tune_decoder, out": (lambda w, v: tuning.tune_decoder(None, None, None, v), OUTS),
    "verify_t15": (lambda w, v: verify_t15(v, w.root / "v"), PATHS),
    "verify_t15, out": (lambda w, v: verify_t15(w.data, v), OUTS),
    "t12": (lambda w, v: t12(v), PATHS),
    "t12, columns": (lambda w, v: t12(w.data, columns=v), (*THINGS, "")),
    "t12, threshold": (lambda w, v: t12(w.data, threshold=v), THINGS),
    "verify_t12": (lambda w, v: verify_t12(v, w.root / "v"), PATHS),
    "verify_t12, out": (lambda w, v: verify_t12(w.data, v), OUTS),
    "verify_t12, data": (lambda w, v: verify_t12(w.data, w.root / "v", data=v), PATHS[1:]),
    "verify_t15, lm": (lambda w, v: verify_t15(w.data, w.root / "v", lm=v), PATHS[1:]),
    "fake_log_probs": (lambda w, v: fake_log_probs("a", v), NUMBERS),
    "fake_log_probs, seed": (lambda w, v: fake_log_probs("a", seed=v), (*NUMBERS, 2.5)),
    "fake_log_probs, lexicon": (lambda w, v: fake_log_probs("a", lexicon=v), THINGS[1:]),
    "to_log_probs": (lambda w, v: to_log_probs(v), (*THINGS, np.zeros((2, 2), object))),
    "to_log_probs, temperature": (lambda w, v: to_log_probs(np.zeros((2, 3)), v), NUMBERS),
    "options_for": (lambda w, v: options_for(v, w.lm_dir), (3, [DAY], b"b", np.zeros(3))),
    "fit_options": (
        lambda w, v: fit_options(v, v, v, w.lm_dir),
        (None, 3, "x", {"a": 1}, [], [3]),
    ),
    "import_copy_task": (lambda w, v: import_copy_task(v, w.root / "c"), PATHS),
    "decode_evaluation": (lambda w, v: decode_evaluation(w.run, w.decoder, v), OUTS),
    "evaluate, fit and ray": (
        lambda w, v: cortext.evaluate(w.run, w.packed, "val", w.lm_dir, w.root / "e", **v),
        ({"fit": None}, {"fit": -1}, {"fit": "x"}, {"ray": 3}, {"ray": []}),
    ),
    "combine, options": (lambda w, v: ensemble.combine([], v), THINGS[1:]),
    "average, weights": (
        lambda w, v: ensemble.average([w.log_probs], "arithmetic", v),
        (3, "x", [None], ["x"], [-1.0], [0.0], [NAN]),
    ),
    "read_lattices": (
        lambda w, v: ensemble.read_lattices(v, v, w.lm_dir),
        (None, 3, "x", [None], {"a": 1}),
    ),
    "Candidates.of": (lambda w, v: ensemble.Candidates.of(v), (None, 3, "a", [None])),
    "EnsembleOptions.read": (lambda w, v: ensemble.EnsembleOptions.read(v), PATHS),
    "only": (lambda w, v: w.decoder.only(v), (None, 3, "a word", [3], [None])),
    "rank": (lambda w, v: w.decoder.rank(v), (None, 3, "x", [3], [None])),
    "add_words": (lambda w, v: w.decoder.add_words(v), (None, 3, {"a": 1}, {"a": [3]}, [None])),
    "decode_batch, progress": (
        lambda w, v: w.decoder.decode_batch([w.log_probs], w.inventory, progress=v),
        (3, "x", np.zeros(3)),
    ),
    "select": (
        lambda w, v: w.packed.select(**v),
        (
            *({"bad_trials": 3}, {"bad_trials": {DAY: 1}}, {"feature_subset": ["x"]}),
            *({"feature_subset": [1.5]}, {"feature_subset": [None]}),
        ),
    ),
    "verify": (
        lambda w, v: w.packed.verify(**v),
        ({"progress": 3}, {"splits": 3}, {"splits": "x"}),
    ),
    "NoiseModel": (lambda w, v: NoiseModel(v, n_features=3), THINGS),
    "CleanSpeechModel": (lambda w, v: CleanSpeechModel(v, n_features=3, n_classes=3), THINGS),
    "new_model": (lambda w, v: new_model(v, w.packed, (DAY,), None), THINGS),
    "TorchStepper": (lambda w, v: TorchStepper(v), THINGS),
    "open_stepper": (lambda w, v: open_stepper(w.run, "latest", v), (None, 3, "onx")),
    "tuning_parts": (lambda w, v: tuning_parts(v, 0.3, seed=0), PATHS),
    "gaussian_kernel": (lambda w, v: features.gaussian_kernel(v), (*NUMBERS, 0, 1e12)),
    "gaussian_kernel, size": (lambda w, v: features.gaussian_kernel(2, v), (*NUMBERS, 0, 10**12)),
    "build_augmentations": (lambda w, v: features.build_augmentations(v), (None, 3, "x", [None])),
}


def mistakes(world: SimpleNamespace, table: Table) -> Iterable[tuple[str, Callable[[], Any]]]:
    """Yield each mistake with its name."""
    for name, (call, wrong) in table.items():
        for value in wrong(world) if callable(wrong) else wrong:
            yield f"{name}: {value!r:.80}", lambda call=call, value=value: call(world, value)


@pytest.mark.parametrize(
    "table",
    [READING, WRITING, RUNNING, TRAINING, TEXT, PARTS],
    ids=["reading", "writing", "running", "training", "text", "parts"],
)
def test_a_mistake_is_one_line_that_names_it(world, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wrong = []
    for name, call in mistakes(world, table):
        try:
            call()
        except CortextError as error:
            if "\n" in str(error) or not str(error).isprintable():
                wrong.append(f"{name} -> {error!r}")
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            wrong.append(f"{name} -> {error!r} in {Path(last.filename).name}:{last.lineno}")
        else:
            wrong.append(f"{name} -> taken")
    assert not wrong, "\n".join(wrong)
    assert not list(tmp_path.iterdir())


def test_a_wrong_type_is_a_type_error_of_ours() -> None:
    with pytest.raises(TypeError, match=r"^data is None; a path is needed$") as caught:
        cortext.open_dataset(None)
    assert isinstance(caught.value, CortextError)
    assert isinstance(caught.value, WrongType)


def test_what_is_not_wrong_is_taken(world) -> None:
    """Types that mean the same: lists, tensors, other floats, NumPy's integers, texts for paths."""
    right = world.model.logits(world.x, DAY)
    for same in (world.x.tolist(), world.x.astype(np.float64), torch.from_numpy(world.x.copy())):
        np.testing.assert_array_equal(world.model.logits(same, DAY), right)
    learns = torch.from_numpy(world.x.copy()).requires_grad_()
    np.testing.assert_array_equal(world.model.logits(learns, DAY), right)
    split = world.packed.split("val")
    assert split.trial(np.int64(1)).name == split.trial(1 - len(split)).name
    options = {"max_active": np.int64(7), "beam": np.float32(5)}
    decoder = cortext.Decoder.from_dir(str(world.lm_dir), options)
    assert (decoder.options.max_active, decoder.options.beam) == (7, 5.0)
    one, two = (decoder.decode_batch(form, world.inventory) for form in
                ([world.log_probs], iter([world.log_probs])))  # fmt: skip
    assert [best.texts for best in one] == [best.texts for best in two]
    phonemes = [3, 4, 40]
    for form in (np.array(phonemes), torch.tensor(phonemes), tuple(phonemes)):
        assert cortext.error_rate([phonemes], [form], "phoneme").rate == 0


def test_a_closed_trainer_and_a_finished_stream_say_so(world, tmp_path) -> None:
    settings = {"model": {"n_units": 8, "n_layers": 1}, "num_training_batches": 2}
    settings |= {"dataset": {"batch_size": 4, "days_per_batch": 2}}
    with cortext.Trainer(settings, world.packed, tmp_path / "run", progress=False) as trainer:
        for steps in ("5", 1.5, -1):
            with pytest.raises(CortextError, match=r"^n_batches is "):
                trainer.run(steps)
        for name in (None, 3, "../a", "missing"):
            with pytest.raises(CortextError):
                trainer.load(name)
    with pytest.raises(CortextError, match=r"the trainer is closed; open the run again"):
        trainer.run(1)
    stream = world.decoder.stream(world.inventory)
    stream.finish()
    with pytest.raises(CortextError, match="the stream is finished; open a new one"):
        stream.finish()
