"""The public Trainer.

Pieces of a run, named states, callbacks, where trials lie, precision, profiles.
"""

import json
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from clear_recordings import SESSIONS, write_recordings
from safetensors.torch import load_file

from cortext.data import open_dataset, write_session
from cortext.data.packed import open_packed, pack
from cortext.errors import ConfigError, DataError
from cortext.models import load_model
from cortext.models.precision import full_float32
from cortext.training import Callback, Trainer, train
from cortext.training.batches import Batches
from cortext.training.memory import ResidentTrials
from cortext.training.setup import with_labels
from cortext.training.torch_backend import TorchBackend


def lines(run: Path, kind: str) -> list[dict]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["kind"] == kind]


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "train_state" / "state.safetensors")


def assert_equal(run: Path, other: Path) -> None:
    mine, theirs = weights(run), weights(other)
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), name


def test_a_run_in_pieces_is_the_run_in_one(config, packed, undisturbed, tmp_path):
    with Trainer(config, packed, tmp_path / "pieces", progress=False) as trainer:
        assert trainer.run(2) is None
        assert trainer.run(3) is None
        assert trainer.state.step == 5
        summary = trainer.run()
    assert summary is not None
    assert summary.steps == 12
    assert_equal(undisturbed, tmp_path / "pieces")
    without_times = [
        {k: v for k, v in line.items() if k != "trials_per_s"}
        for line in lines(undisturbed, "train")
    ]
    assert without_times == [
        {k: v for k, v in line.items() if k != "trials_per_s"}
        for line in lines(tmp_path / "pieces", "train")
    ]


def test_training_trials_without_a_label_are_left_out_and_counted(short, tmp_path, capsys):
    """Their features do not count: the weights are those of a run that never had them."""
    folder = write_recordings(tmp_path / "data", {"train": 8, "val": 2})
    labelled = pack(folder, tmp_path / "labelled")
    for session in SESSIONS:
        trials = list(open_dataset(folder).trials("train", [session]))
        extra = replace(trials[0], trial=90, sentence=None, phoneme_ids=None)
        write_session(folder / session / "data_train.hdf5", [extra, *trials])
    mixed = pack(folder, tmp_path / "mixed")
    n_unlabelled = len(SESSIONS)
    assert mixed.n_trials("train") == 9 * n_unlabelled
    summaries = [
        train(short, data, tmp_path / f"run-{data.path.name}", progress=False)
        for data in (labelled, mixed)
    ]
    assert [summary.n_unlabelled for summary in summaries] == [0, n_unlabelled]
    assert [summary.n_train_trials for summary in summaries] == [8 * n_unlabelled] * 2
    assert_equal(tmp_path / "run-labelled", tmp_path / "run-mixed")
    said = f"{n_unlabelled} training trials without a label left out"
    assert capsys.readouterr().err.count(said) == 1
    with pytest.raises(DataError, match="no training trial has a label"):
        with_labels(
            mixed.showing({"train": mixed.split("train").take(np.arange(0, 9 * n_unlabelled, 9))})
        )


def test_a_named_state_is_gone_back_to(config, packed, undisturbed, tmp_path):
    with Trainer(config, packed, tmp_path / "back", progress=False) as trainer:
        trainer.run(6)
        trainer.save("six")
        trainer.run(4)
        trainer.load("six")
        assert trainer.state.step == 6
        assert [line["step"] for line in lines(tmp_path / "back", "val")] == [4]
        trainer.run()
    assert_equal(undisturbed, tmp_path / "back")
    assert (tmp_path / "back" / "checkpoints" / "six.safetensors").is_file()


def test_going_back_to_the_beginning_forgets_what_the_optimiser_has_seen(
    config, packed, undisturbed, tmp_path
):
    with Trainer(config, packed, tmp_path / "back", progress=False) as trainer:
        assert trainer.run(0) is None
        assert trainer.state.step == 0
        trainer.save("beginning")
        trainer.run(5)
        trainer.load("beginning")
        trainer.run()
    assert_equal(undisturbed, tmp_path / "back")


def test_validating_by_hand_measures_records_and_keeps_the_best(config, packed, tmp_path):
    with Trainer(config, packed, tmp_path / "run", progress=False) as trainer:
        trainer.run(2)
        metrics = trainer.validate()
        assert load_model(tmp_path / "run").sessions == SESSIONS
    assert [line["val_per"] for line in lines(tmp_path / "run", "val")] == [metrics["val_per"]]


def test_callbacks_see_losses_validations_and_the_end(config, packed, tmp_path):
    seen = []

    class Note(Callback):
        def on_train(self, trainer, step, values):
            seen.append(("train", step, values["train_loss"]))

        def on_validation(self, trainer, step, metrics):
            seen.append(("val", step, metrics["val_per"]))

        def on_end(self, trainer, summary):
            seen.append(("end", summary.steps, trainer.model.sessions))

    train(config, packed, tmp_path / "run", callbacks=[Note()], progress=False)
    run = tmp_path / "run"
    expected = [("train", line["step"], line["train_loss"]) for line in lines(run, "train")]
    assert [entry for entry in seen if entry[0] == "train"] == expected
    assert [entry[:2] for entry in seen if entry[0] == "val"] == [
        ("val", 4),
        ("val", 8),
        ("val", 12),
    ]
    assert seen[-1] == ("end", 12, SESSIONS)


def test_a_trainer_continues_after_a_callback_that_failed(config, packed, undisturbed, tmp_path):
    class Failing(Callback):
        def on_train(self, trainer, step, values):
            if step == 6:
                raise ValueError("in a callback")

    with Trainer(
        config, packed, tmp_path / "two", callbacks=[Failing()], progress=False
    ) as trainer:
        with pytest.raises(ValueError, match="in a callback"):
            trainer.run()
        trainer.run()
    assert_equal(undisturbed, tmp_path / "two")
    for kind in ("train", "val"):
        assert [line["step"] for line in lines(undisturbed, kind)] == [
            line["step"] for line in lines(tmp_path / "two", kind)
        ]


def test_a_batch_of_resident_trials_is_the_batch_of_the_file(packed):
    split = (
        open_packed(packed).split("train").select(sessions=SESSIONS[1:], feature_subset=[6, 1, 2])
    )
    resident = ResidentTrials(split, torch.device("cpu"))
    for indices in (np.array([0, 5, 39, 5]), np.array([7])):
        n_bins = int(split.n_bins_N[indices].max()) + 3
        expected_BTC = split.batch(indices, n_bins).features_BTC
        np.testing.assert_array_equal(resident.features(indices, n_bins).numpy(), expected_BTC)


def test_resident_trials_train_the_same_run(config, packed, undisturbed, tmp_path):
    on_device = replace(config, dataset=replace(config.dataset, resident="device"))
    train(on_device, packed, tmp_path / "device", progress=False)
    assert_equal(undisturbed, tmp_path / "device")


def test_each_process_gets_its_rows_of_the_batch_noise_included(config, packed):
    split = open_packed(packed).split("train")
    transforms = config.dataset.data_transforms
    batches = Batches(
        split, np.arange(3), transforms, torch.device("cpu"), lambda n_bins: n_bins // 4
    )
    indices = np.array([3, 50, 20, 7, 59])
    whole = batches.batch(indices, torch.Generator().manual_seed(1))
    parts = [
        batches.batch(indices, torch.Generator().manual_seed(1), (rank, 2)) for rank in range(2)
    ]
    for rank, part in enumerate(parts):
        assert torch.equal(part.x_BTC, whole.x_BTC[rank::2])
        assert torch.equal(part.n_bins_B, whole.n_bins_B[rank::2])
        assert torch.equal(part.days, whole.days)
        assert part.indices.tolist() == indices[rank::2].tolist()


def test_the_published_kernel_and_losses_of_a_model_are_logged_by_name(config, packed, tmp_path):
    overrides = ["num_training_batches=3", "batches_per_train_log=3"]
    with Trainer(config, packed, tmp_path / "run", overrides=overrides, progress=False) as trainer:
        ctc = trainer.backend.job.loss
        two = lambda *inputs: ctc(*inputs) | {"two": torch.full((6,), 2.0)}  # noqa: E731
        trainer.backend.job = replace(trainer.backend.job, loss=two)
        trainer.run()
    (line,) = lines(tmp_path / "run", "train")
    assert line["train_two"] == 2.0
    assert math.isfinite(line["train_loss"])


def test_trials_per_second_count_the_time_of_a_device_that_is_not_waited_for(
    config, packed, tmp_path, monkeypatch
):
    read = TorchBackend.read

    def read_late(engine, updates):
        time.sleep(0.1 * len(updates))  # what a device has left to do when somebody asks
        return read(engine, updates)

    monkeypatch.setattr(TorchBackend, "read", read_late)
    overrides = ["num_training_batches=4", "batches_per_train_log=4"]
    with Trainer(config, packed, tmp_path / "run", overrides=overrides, progress=False) as trainer:
        trainer.backend.synchronous = False
        trainer.run()
    (line,) = lines(tmp_path / "run", "train")
    assert line["trials_per_s"] <= config.dataset.batch_size / 0.1


def test_without_a_validation_split_a_share_of_every_day_validates(config, tmp_path):
    data = write_recordings(tmp_path / "data", {"train": 10})
    config = replace(config, dataset=replace(config.dataset, test_percentage=0.2))
    with Trainer(config, data, tmp_path / "run", progress=False) as trainer:
        train_split, val_split = trainer.train_split, trainer.validator.batches.split
    named = [
        {
            (split.session(i), int(split.block_N[i]), int(split.trial_N[i]))
            for i in range(len(split))
        }
        for split in (train_split, val_split)
    ]
    assert [len(names) for names in named] == [24, 6]
    assert not named[0] & named[1]
    assert [sum(name == session for name, _, _ in named[1]) for session in SESSIONS] == [2, 2, 2]
    for share in (0.0, 1.5):
        wrong = replace(config, dataset=replace(config.dataset, test_percentage=share))
        if share:
            with Trainer(wrong, data, tmp_path / "much", progress=False) as trainer:
                assert len(trainer.train_split) == 3  # one of each day is always trained on
        else:
            with pytest.raises(
                DataError, match=r"no validation split, and dataset.test_percentage is 0"
            ):
                Trainer(wrong, data, tmp_path / "none", progress=False)


def test_sessions_with_probability_zero_are_not_validated_on(short, packed, tmp_path):
    config = replace(short, dataset=replace(short.dataset, dataset_probability_val=[1, 0, 1]))
    train(config, packed, tmp_path / "run", progress=False)
    assert set(lines(tmp_path / "run", "val")[0]["val_per_by_session"]) == {
        SESSIONS[0],
        SESSIONS[2],
    }
    for wrong in ([1, 0], [1, 0, 0.5]):
        config.dataset.dataset_probability_val = wrong
        with pytest.raises(
            ConfigError,
            match=r"dataset_probability_val has . values for 3 sessions; one each is needed, 0",
        ):
            train(config, packed, tmp_path / "wrong", progress=False)


def test_only_what_is_trainable_moves(config, packed, tmp_path):
    config = replace(config, trainable=["day_", "out.bias"])
    with Trainer(config, packed, tmp_path / "run", progress=False) as trainer:
        before = {
            name: tensor.clone() for name, tensor in trainer.model.network.state_dict().items()
        }
        trainer.run()
        after = trainer.model.network.state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"day_weight", "day_bias", "out.bias"}
    with pytest.raises(
        ConfigError,
        match="trainable names 'outt', with which no parameter begins; did you mean 'out'",
    ):
        train(replace(config, trainable=["outt"]), packed, tmp_path / "wrong", progress=False)
    with pytest.raises(
        ConfigError, match="no parameter is left that learns; name more in trainable, or unfreeze"
    ):
        train(replace(config, trainable=[]), packed, tmp_path / "wrong", progress=False)


def test_frozen_day_layers_and_a_frozen_gru_stay(config, packed, tmp_path):
    overrides = ["model.rnn_trainable=false", "model.input_network.input_trainable=false"]
    with Trainer(config, packed, tmp_path / "run", overrides=overrides, progress=False) as trainer:
        before = {
            name: tensor.clone() for name, tensor in trainer.model.network.state_dict().items()
        }
        trainer.run()
        after = trainer.model.network.state_dict()
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        "h0",
        "out.weight",
        "out.bias",
    }


def test_states_of_validations_and_of_the_end_and_logits_are_kept_where_wanted(
    config, packed, tmp_path
):
    config = replace(
        config,
        save_all_val_steps=True,
        save_final_model=True,
        save_val_logits=True,
        precision="fp32",
    )
    train(config, packed, tmp_path / "run", progress=False)
    names = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert names == {
        "step_4.safetensors",
        "step_8.safetensors",
        "step_12.safetensors",
        "final.safetensors",
    }
    files = sorted((tmp_path / "run" / "val_logits").iterdir())
    assert len(files) == 18
    model, trial = (
        load_model(tmp_path / "run"),
        next(open_dataset(packed_source(packed)).trials("val")),
    )
    kept_PV = np.load(
        tmp_path
        / "run"
        / "val_logits"
        / f"{trial.session}_b{trial.block:02d}_t{trial.trial:03d}.npy"
    )
    assert kept_PV.dtype == np.float16
    # Validation in training pads with zeros, as the release does.
    padded = np.pad(trial.features_TC, ((4, 4), (0, 0)))
    np.testing.assert_allclose(kept_PV, model.logits(padded, trial.session), atol=2e-3)


def packed_source(packed: Path) -> Path:
    return open_packed(packed).source


def test_float32_is_float32_whatever_the_process_has_asked_for(short, packed, tmp_path):
    """Against float64: bfloat16 products, which `medium` allows, would be off by a thousandth."""
    config = replace(short, precision="fp32")
    before = torch.get_float32_matmul_precision()
    a, b = (torch.randn(200, 300, generator=torch.Generator().manual_seed(i)) for i in range(2))
    exact = a.double() @ b.t().double()
    torch.set_float32_matmul_precision("medium")
    try:
        with full_float32():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not torch.backends.cudnn.allow_tf32
            error = (a @ b.t() - exact).abs().max()
        assert torch.get_float32_matmul_precision() == "medium"
        train(config, packed, tmp_path / "medium", progress=False)
    finally:
        torch.set_float32_matmul_precision(before)
    assert error < 1e-4
    train(config, packed, tmp_path / "highest", progress=False)
    assert_equal(tmp_path / "medium", tmp_path / "highest")


def test_float32_and_bfloat16_differ_in_the_matrix_products_alone(config, packed, tmp_path):
    dtypes = {}
    for precision in ("fp32", "bf16"):
        with Trainer(
            replace(config, precision=precision), packed, tmp_path / precision, progress=False
        ) as trainer:
            trainer.model.network.out.register_forward_hook(
                lambda module, inputs, output, precision=precision: dtypes.update(
                    {precision: output.dtype}
                )
            )
            trainer.run(1)
            state = weights(tmp_path / precision)
            assert all(
                t.dtype == torch.float32
                for name, t in state.items()
                if not name.endswith("day_steps")
            )
    assert dtypes == {"fp32": torch.float32, "bf16": torch.bfloat16}


def test_a_profile_is_a_trace_of_the_wanted_batches(config, packed, tmp_path):
    train(
        config,
        packed,
        tmp_path / "run",
        profile=tmp_path / "trace",
        profile_steps=(2, 4),
        progress=False,
    )
    (trace,) = (tmp_path / "trace").glob("*.pt.trace.json")
    events = json.loads(trace.read_text())["traceEvents"]
    assert sum(event.get("name", "").startswith("ProfilerStep#") for event in events) == 2


def test_training_data_may_be_open_already(config, recordings, tmp_path):
    data = pack(recordings, tmp_path / "packed")
    with Trainer(config, data, tmp_path / "run", progress=False) as trainer:
        assert trainer.run(1) is None
    assert not (tmp_path / "run" / "packed").exists()
