"""Two processes that talk over gloo train the speech LLM that one process trains."""

import json
import socket
from dataclasses import replace

import forked_speech
import forked_training
import pytest
import torch
from safetensors.torch import load_file

from cortext.config import save_config
from cortext_speechllm.config import read_speech_config
from cortext_speechllm.model import FILE
from cortext_speechllm.stages import train_speech_llm


@pytest.mark.slow
def test_two_processes_train_what_one_does(settings, recordings, cached, tmp_path):
    """Without dropout, whose masks each process draws, and without the contrast, whose negatives
    are its own trials.
    """
    torch.set_num_threads(1)
    alone = (
        "{name: alone, set: {speech.beta: 0, speech.lora: null, best_metric: val_loss,"
        " num_training_batches: 2}}"
    )
    stages = f"stages=[{alone}, {{name: together}}]"  # the processes meet a second time
    config = read_speech_config(
        "speech_llm", [*settings, "num_training_batches=3", "dataset.batch_size=7", stages]
    )
    still = replace(config.model.input_network, input_layer_dropout=0.0)
    config = replace(
        config,
        model=replace(config.model, rnn_dropout=0.0, input_network=still),
        speech=replace(config.speech, gamma=0.0, lora=replace(config.speech.lora, dropout=0.0)),
    )
    train_speech_llm(config, recordings, tmp_path / "one", cache=cached, progress=False)
    save_config(config, tmp_path / "speech.yaml")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port = server.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        forked_training.Started(
            tmp_path / f"{rank}.txt", shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, forked_speech.run,
            tmp_path / "speech.yaml", recordings, tmp_path / "two", cached,
        )
        for rank in range(2)
    ]  # fmt: skip
    errors = [process.wait(120) for process in started]
    assert (tmp_path / "two" / "summary.json").is_file(), errors
    for name in ("model.safetensors", FILE):
        mine, theirs = load_file(tmp_path / "two" / name), load_file(tmp_path / "one" / name)
        for key, tensor in theirs.items():
            torch.testing.assert_close(mine[key], tensor, atol=1e-4, rtol=1e-3, msg=key)
    one, two = (
        [json.loads(line) for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("one", "two")
    )
    for mine, theirs in zip(two, one, strict=True):
        for key in mine.keys() - {
            "kind",
            "val_seconds",
            "trials_per_s",
            "val_samples",
            "val_per_by_session",
        }:
            assert mine[key] == pytest.approx(theirs[key], rel=1e-3), key
