"""Two processes that talk over gloo train what one process trains."""

import json
import socket
from dataclasses import replace
from pathlib import Path

import forked_training
import pytest
import torch
from right_plugin import RIGHT
from safetensors.torch import load_file

from cortext.config import save_config
from cortext.features import AugmentationConfig
from cortext.models import MODELS, TripleGRUConfig
from cortext.models.gru import GRUConfig, InputNetworkConfig
from cortext.plugins import load_plugin
from cortext.training import TrainConfig, Trainer, train


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def train_in_two(
    config: TrainConfig, data: Path, out: Path, *arguments, function=forked_training.run
) -> list[str]:
    """What torchrun does, without its watching: two processes of one world.

    Returns what each says on stderr, without the note on the labels, which are made up here.
    """
    file = out.with_suffix(".yaml")
    save_config(config, file)
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    running = [
        forked_training.Started(
            out.with_suffix(f".{rank}"), shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, function,
            file, data, out, *arguments
        )
        for rank in range(2)
    ]  # fmt: skip
    return [
        "".join(
            line
            for line in process.wait(120).splitlines(keepends=True)
            if not line.startswith("note: labels of ")
        )
        for process in running
    ]


def lines(run: Path) -> list[dict]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def assert_alike(run: Path, other: Path) -> None:
    for mine, theirs in zip(lines(run), lines(other), strict=True):
        for key in mine.keys() - {"kind", "val_wer", "val_seconds", "trials_per_s"}:
            assert mine[key] == pytest.approx(theirs[key], rel=1e-4), key
    mine, theirs = (load_file(path / "train_state" / "state.safetensors") for path in (run, other))
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.fixture
def config(config) -> TrainConfig:
    """Without dropout, whose masks each process draws for its own trials.

    With all the noise that there is.
    """
    noise = AugmentationConfig(
        white_noise_std=0.5, constant_offset_std=0.2, random_walk_std=0.01, static_gain_std=0.01
    )
    model = GRUConfig(
        n_units=16,
        n_layers=2,
        rnn_dropout=0,
        input_network=InputNetworkConfig(input_layer_dropout=0),
    )
    # An odd batch: 4 trials and 3.
    dataset = replace(config.dataset, batch_size=7, data_transforms=noise)
    return replace(config, model=model, dataset=dataset, precision="fp32")


def test_two_processes_train_what_one_does_and_continue_from_each_other(config, packed, tmp_path):
    train(config, packed, tmp_path / "one", progress=False)
    assert train_in_two(config, packed, tmp_path / "two", False, 6) == ["", ""]
    train(config, packed, tmp_path / "two", resume=True, progress=False)
    assert_alike(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_extras_and_unused_parameters_of_ones_own_model_train_in_two_processes(
    config, packed, tmp_path, registries
):
    path = tmp_path / "mine.py"
    path.write_text(
        RIGHT.replace(
            "self.early = ", "self.spare = nn.Linear(3, 3)\n        self.early = "
        ).replace(
            "field(default_factory=InputNetworkConfig)",
            "field(default_factory=lambda: InputNetworkConfig(input_layer_dropout=0))",
        )
    )
    load_plugin(path)
    config = replace(config, model=MODELS["mine"].Config(), num_training_batches=4)
    train(config, packed, tmp_path / "one", progress=False)
    assert all(
        not said or "no gradient reaches spare" in said
        for said in train_in_two(
            config, packed, tmp_path / "two", path, function=forked_training.run_with_plugin
        )
    )
    assert_alike(tmp_path / "one", tmp_path / "two")


@pytest.mark.slow
def test_a_run_of_one_process_is_finished_by_two(config, packed, tmp_path):
    config = replace(config, gradient_accumulation_steps=2)
    train(config, packed, tmp_path / "one", progress=False)
    with Trainer(config, packed, tmp_path / "two", progress=False) as trainer:
        trainer.run(5)
    assert train_in_two(config, packed, tmp_path / "two", True) == ["", ""]
    assert_alike(tmp_path / "one", tmp_path / "two")
    assert (tmp_path / "two" / "summary.json").is_file()


@pytest.mark.slow
def test_a_loss_that_is_not_finite_in_one_process_stops_both_and_is_named(config, packed, tmp_path):
    config = replace(config, lr_max=1e30, lr_max_day=1e30, lr_warmup_steps=0, lr_warmup_steps_day=0)
    for message in train_in_two(config, packed, tmp_path / "run"):
        assert "is not finite, in trials t15." in message
    assert json.loads((tmp_path / "run" / "not_finite.json").read_text())["trials"]


@pytest.mark.slow
def test_a_batch_of_fewer_trials_than_processes_is_refused_by_each(config, packed, tmp_path):
    config = replace(config, dataset=replace(config.dataset, batch_size=1, days_per_batch=1))
    for message in train_in_two(config, packed, tmp_path / "run"):
        assert "2 processes share a batch of 1 trials; each needs one" in message


@pytest.mark.slow
def test_an_interrupt_of_one_process_stops_both_at_the_next_line(config, packed, tmp_path):
    config = replace(config, batches_per_val_step=1000)
    for message in train_in_two(
        config, packed, tmp_path / "run", function=forked_training.run_interrupted
    ):
        assert "interrupted after 3 of 12 batches; everything is saved" in message
    train(config, packed, tmp_path / "one", progress=False)
    train(config, packed, tmp_path / "run", resume=True, progress=False)
    assert_alike(tmp_path / "one", tmp_path / "run")


def test_pieces_of_a_batch_give_the_gradient_of_the_whole(config, packed, tmp_path):
    train(config, packed, tmp_path / "whole", progress=False)
    train(
        replace(config, gradient_accumulation_steps=3), packed, tmp_path / "pieces", progress=False
    )
    assert_alike(tmp_path / "whole", tmp_path / "pieces")


@pytest.mark.slow
def test_what_the_first_process_refuses_all_refuse(config, packed, tmp_path):
    train(config, packed, tmp_path / "run", progress=False)
    for message in train_in_two(config, packed, tmp_path / "run"):
        assert message.splitlines()[-1].endswith(
            "the run is finished; give another --out, or delete the directory"
        )


@pytest.mark.slow
def test_a_loss_that_leaves_parameters_unused_is_trained_by_two_as_by_one(config, packed, tmp_path):
    model = TripleGRUConfig(
        noise_units=8,
        clean_units=8,
        noisy_units=8,
        rnn_dropout=0,
        input_network=config.model.input_network,
    )
    config = replace(config, model=model, loss={"kind": "ctc"}, num_training_batches=4)
    train(config, packed, tmp_path / "one", progress=False)
    assert train_in_two(config, packed, tmp_path / "two") == ["", ""]
    assert_alike(tmp_path / "one", tmp_path / "two")


def test_several_participants_do_not_train_in_two_processes(config, packed, tmp_path):
    given = {"A": packed, "B": packed}
    together = forked_training.run_together
    for said in train_in_two(config, given, tmp_path / "run", False, function=together):
        assert "several participants train in one process" in said
