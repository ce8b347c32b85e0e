"""That everything is wired up: a tiny instance learns 32 sentences by heart.

Memorising is all that this shows.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_speech_llm import save_tiny_audio_llm

from cortext.data import open_packed
from cortext.features import AugmentationConfig
from cortext.models.gru import GRUConfig, InputNetworkConfig
from cortext_speechllm.audio_llm.loading import revision_there
from cortext_speechllm.config import (
    GenerationConfig,
    LoRAConfig,
    SpeechConfig,
    SpeechLLMConfig,
    read_speech_config,
)
from cortext_speechllm.inference import evaluate
from cortext_speechllm.stages import train_speech_llm
from cortext_speechllm.targets.cache import TargetCache, write_targets

BATCHES = 260
"""Three seeds, with one thread and two and with older instructions (ONEDNN_MAX_CPU_ISA), make no
error from 195 on.
"""


@pytest.mark.slow
def test_32_simulated_sentences_are_written_without_an_error(recordings, cached, tmp_path):
    torch.set_num_threads(1)
    llm = save_tiny_audio_llm(tmp_path / "llm", text_width=64)
    cache = TargetCache.open(cached)
    keys = cache.keys()
    write_targets(
        tmp_path / "cache.safetensors",
        {key: cache.target(key) for key in keys},
        replace(cache.origin, revision=revision_there(llm)),
    )
    data = open_packed(recordings)
    trials = data.split("train").take(np.arange(32))
    summary = train_speech_llm(
        _settings(str(llm)), data.showing({"train": trials, "val": trials}), tmp_path / "run",
        cache=tmp_path / "cache.safetensors", progress=False,
    )  # fmt: skip
    assert summary.n_train_trials == 32
    assert summary.val_wer == 0.0
    assert summary.seconds < 300
    metrics = evaluate(tmp_path / "run", recordings, "train", tmp_path / "eval", nbest=1)
    assert metrics.n_trials == 48
    assert metrics.wer is not None
    assert metrics.wer < 0.5  # of the 48, it has learnt 32


def _settings(llm: str) -> SpeechLLMConfig:
    start = read_speech_config("speech_llm")
    still = AugmentationConfig(
        white_noise_std=0.0, constant_offset_std=0.0, random_cut=0, smooth_data=False
    )
    return SpeechLLMConfig(
        model=GRUConfig(
            n_units=128,
            n_layers=1,
            rnn_dropout=0.0,
            patch_stride=8,  # half the frames to read, which is half of the time
            input_network=InputNetworkConfig(input_layer_dropout=0.0),
        ),
        speech=SpeechConfig(
            audio_llm=llm,
            lora=LoRAConfig(r=16, alpha=16, dropout=0.0),
            alpha=0.1,
            gamma=0.1,
            generation=GenerationConfig(beams=2),
        ),
        dataset=replace(start.dataset, batch_size=16, days_per_batch=2, data_transforms=still),
        num_training_batches=BATCHES,
        lr_max=0.012,
        lr_max_day=0.012,
        lr_decay_steps=BATCHES,
        lr_decay_steps_day=BATCHES,
        lr_warmup_steps=20,
        lr_warmup_steps_day=20,
        epsilon=1e-8,
        batches_per_val_step=BATCHES,
        val_wer_trials=32,
        best_metric="val_wer",
    )
