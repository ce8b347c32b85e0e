"""Searches from beginning to end, on recordings of a few seconds."""

import csv
import signal

import pytest
import torch
from safetensors.torch import load_file

from cortext.errors import ConfigError, CortextError, Interrupted, RunError
from cortext.training import train
from cortext.training.torch_backend import TorchBackend
from cortext_tune import Search, parse_space, training, workers
from cortext_tune.study import TrialStore
from cortext_tune.workers import TrialOutcome


def grid(*texts: str) -> Search:
    return Search("grid", parse_space(texts, ranges=False))


def table(study) -> list[dict[str, str]]:
    return list(csv.DictReader((study.out / "trials.csv").read_text().splitlines()))


def weights(path):
    return load_file(path / "model.safetensors")


def same_weights(one, other) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(
        torch.equal(first[name], second[name]) for name in first
    )


@pytest.fixture
def pretended(monkeypatch):
    """Trials that take no time and reach what a function of their settings says.

    Returns the jobs.
    """
    jobs = []

    def run_trial(job):
        jobs.append(job)
        value = (job.config["lr_max"] - 0.3) ** 2
        return TrialOutcome(
            "finished",
            {"val_per": value, "val_loss": value, "seconds": 1.0, "best_step": 1, "steps": 1},
        )

    monkeypatch.setattr(workers, "run_trial", run_trial)
    return jobs


def test_every_setting_is_an_ordinary_run_and_the_table_has_the_best_first(
    tune, packed, tmp_path, quick, pictures
):
    study = tune(grid("lr_max=0.02", "model.n_layers=1,2"))
    for one in study.trials:
        settings = [f"{key}={value}" for key, value in one.settings.items()]
        summary = train(
            "tiny",
            packed,
            tmp_path / study.folder(one).name,
            overrides=[*quick, *settings],
            progress=False,
        )
        assert same_weights(study.folder(one), tmp_path / study.folder(one).name)
        assert study.value(one) == summary.val_per
    rows = table(study)
    assert len(rows) == 2
    assert [float(row["val_per"]) for row in rows] == sorted(float(row["val_per"]) for row in rows)
    assert rows[0]["run"] == f"trials/{study.folder(study.best).name}"
    assert rows[0]["model.n_layers"] == str(study.best.settings["model.n_layers"])
    assert (tmp_path / "search" / "trials.png").read_bytes().startswith(b"\x89PNG")


def test_session_files_are_packed_once(tune, sessions, tmp_path):
    tune(grid("lr_max=0.001,0.02"), data=sessions)
    assert [path.parent.name for path in tmp_path.rglob("index.json")] == ["packed"]
    assert (tmp_path / "search" / "packed" / "index.json").is_file()


def test_the_same_command_trains_nothing_again(tune, monkeypatch):
    first = tune(grid("lr_max=0.001,0.02"))
    monkeypatch.setattr(workers, "run_trial", None)
    assert tune(grid("lr_max=0.001,0.02")).trials == first.trials


def test_the_metric_decides_what_is_best_and_which_weights_are_kept(tune):
    study = tune(grid("lr_max=0.001,0.02"), metric="val_loss")
    assert study.best.metrics["val_loss"] == min(one.metrics["val_loss"] for one in study.trials)
    assert "best_metric: val_loss" in (study.folder(study.best) / "config.yaml").read_text()


def test_a_trial_that_fails_is_recorded_with_its_reason_and_the_search_continues(tune):
    lines = []
    study = tune(grid("model.patch_size=400,14"), report=lines.append)
    assert [one.state for one in study.trials] == ["failed", "finished"]
    assert "frames" in study.trials[0].reason
    assert study.best == study.trials[1]
    assert f"trial 1 of 2, model.patch_size=400: failed: {study.trials[0].reason}" in lines
    rows = table(study)
    assert [(row["state"], row["reason"]) for row in rows] == [
        ("finished", ""),
        ("failed", study.trials[0].reason),
    ]


def test_a_training_that_diverges_has_failed(tune, monkeypatch):
    """The loss of one batch is not a number from the second on, where the learning rate is high."""
    update = TorchBackend.update

    def diverging(engine, step, batch):
        if engine.job.config.lr_max > 1 and step == 1:
            for parameter in engine.job.model.network.parameters():
                parameter.data.fill_(float("nan"))
        return update(engine, step, batch)

    monkeypatch.setattr(TorchBackend, "update", diverging)
    study = tune(grid("lr_max=10,0.01"))
    assert [one.state for one in study.trials] == ["failed", "finished"]
    assert "the loss of batch 1 is not finite" in study.trials[0].reason


def test_failed_trials_are_trained_again_only_when_asked(tune, monkeypatch):
    trained = training._train

    def out_of_memory(job):
        if job.number == 1:
            raise torch.OutOfMemoryError("tried to allocate 80 GiB")
        trained(job)

    with monkeypatch.context() as patch:
        patch.setattr(training, "_train", out_of_memory)
        study = tune(grid("lr_max=0.001,0.02"))
    assert study.trials[0].reason.startswith("OutOfMemoryError: tried to allocate 80 GiB (see ")
    note = study.out / "trials" / f"{study.folder(study.trials[0]).name}.error.txt"
    assert "Traceback" in note.read_text()
    assert tune(grid("lr_max=0.001,0.02")).count("failed") == 1
    assert tune(grid("lr_max=0.001,0.02"), retry_failed=True).count("finished") == 2


def test_where_every_trial_fails_the_first_reason_is_the_error(tune):
    with pytest.raises(RunError, match=r"every trial failed; the first: .*frames.*--retry-failed"):
        tune(grid("model.patch_size=400,500"))


def test_random_values_that_do_not_go_together_fail_and_a_grid_of_them_is_refused(tune, pretended):
    space = ["model.n_layers=1,2", "model={kind: gru},{kind: triple_gru}"]
    with pytest.raises(
        ConfigError,
        match=r"model.n_layers=1 model=.*kind: triple_gru.*: unknown key model.n_layers",
    ):
        tune(grid(*space))
    assert not pretended
    study = tune(Search("random", parse_space(space), 4))
    assert study.count("failed") == 2
    assert study.count("finished") == 2


@pytest.mark.parametrize(
    ("search", "arguments", "message"),
    [
        (grid("lr_mx=1,2"), {}, "did you mean 'lr_max'"),
        (grid("seed=1,x"), {}, "seed is 'x'"),
        (grid("model.n_units=8,16"), {}, "model.n_units is both set and searched"),
        (grid("best_metric=val_per,val_loss"), {}, "best_metric decides"),
        (grid("lr_max=1,2"), {"metric": "val_wer"}, "needs a language model"),
        (
            grid("lr_max=1,2"),
            {"metric": "val_pr"},
            "best_metric is 'val_pr'; one of 'val_per', 'val_wer'",
        ),
        (grid("lr_max=1,2"), {"jobs": 0}, "jobs is 0"),
        (
            grid("lr_max=1,2"),
            {"ray": "local", "device": "cuda:1"},
            "device is 'cuda:1', and a task on Ray sees only",
        ),
        (grid("lr_max=1,2"), {"data": "nowhere"}, "nowhere"),
        (grid("lr_max=1,2"), {"plugins": ["nowhere.py"]}, "nowhere.py"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    tune, tmp_path, search, arguments, message
):
    with pytest.raises(CortextError, match=message):
        tune(search, **arguments)
    assert not (tmp_path / "search").exists()


def test_another_search_in_the_same_directory_is_refused(tune, pretended, sessions):
    tune(grid("lr_max=0.1,0.2"))
    for search, overrides, key in (
        (grid("lr_max=0.1,0.3"), [], "search.space.lr_max"),
        (Search("random", parse_space(["lr_max=0.1,0.2"]), 2), [], "search.method"),
        (grid("lr_max=0.1,0.2"), ["seed=3"], "config.seed"),
    ):
        with pytest.raises(RunError, match=f"begun with {key} = "):
            tune(search, overrides=overrides)
    assert len(pretended) == 2


def test_more_trials_continue_with_a_random_search(tune, pretended):
    space = parse_space(["lr_max=0.01:1:log"])
    three = tune(Search("random", space, 3))
    five = tune(Search("random", space, 5))
    assert len(pretended) == 5
    assert five.trials[:3] == three.trials


def test_a_stopped_tpe_search_tries_what_an_undisturbed_one_does(tune, pretended):
    pytest.importorskip("optuna")
    search = Search("tpe", parse_space(["lr_max=0.01:1:log", "seed=1:3"]), 14)

    def stop(line):
        if line.startswith("trial 12 of 14") and line.endswith("training"):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="interrupted after 11 of 14 trials"):
        tune(search, report=stop)
    assert [one.settings for one in tune(search).trials] == [
        one.settings for one in tune(search, "other").trials
    ]


def test_ctrl_c_in_a_training_saves_it_and_the_same_command_continues_bit_exactly(
    tune, monkeypatch
):
    update = TorchBackend.update

    def with_ctrl_c(backend, step, batch):
        if backend.job.config.lr_max == 0.02 and step == 2:
            signal.raise_signal(signal.SIGINT)
        return update(backend, step, batch)

    search = grid("lr_max=0.001,0.02,0.1")
    with monkeypatch.context() as patch:
        patch.setattr(TorchBackend, "update", with_ctrl_c)
        with pytest.raises(
            Interrupted, match=r"after 1 of 3 trials; everything is saved; the same command goes on"
        ):
            tune(search)
    began = []
    monkeypatch.setattr(
        TorchBackend,
        "update",
        lambda backend, step, batch: began.append(step) or update(backend, step, batch),
    )
    study = tune(search)
    assert began == [3, 0, 1, 2, 3]  # the second trial's last batch, and the third trial
    undisturbed = tune(search, "undisturbed")
    assert [one.metrics["val_loss"] for one in study.trials] == [
        one.metrics["val_loss"] for one in undisturbed.trials
    ]
    for one in study.trials:
        assert same_weights(study.folder(one), undisturbed.folder(one))


def test_ctrl_c_between_trials_begins_no_other(tune, pretended):
    def stop(line):
        if "val_per" in line:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match="after 1 of 3"):
        tune(grid("lr_max=0.1,0.2,0.3"), report=stop)
    assert len(pretended) == 1


def test_a_trial_whose_summary_was_written_before_the_kill_is_not_trained_again(tune, monkeypatch):
    search = grid("lr_max=0.001,0.02")
    expected = tune(search, "undisturbed").trials[1].metrics
    finish = TrialStore.finish

    def killed(store, number, *rest):
        if number == 2:
            raise SystemExit
        finish(store, number, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(TrialStore, "finish", killed)
        with pytest.raises(SystemExit):
            tune(search)
    monkeypatch.setattr(training, "_train", None)
    trial = tune(search).trials[1]
    assert trial.metrics | {"seconds": 0} == expected | {"seconds": 0}


def test_jobs_share_devices_and_cores(tune, monkeypatch):
    started, running = [], []

    class Pretended:
        def start(self, job):
            started.append(job)
            running.append(job)

        def wait(self):
            return running.pop(0).number, TrialOutcome("finished", {"val_per": 0.5, "seconds": 1.0})

        def close(self):
            pass

    monkeypatch.setattr(training, "WorkerProcesses", Pretended)
    monkeypatch.setattr(training, "available_cores", lambda: 8)
    monkeypatch.setattr(training, "ARE_THREADS_CHOSEN", False)
    tune(grid("lr_max=0.1,0.2,0.3,0.4"), jobs=3, device="cuda:0,cuda:1")
    # The first place is free again.
    assert [job.device for job in started] == [
        "cuda:0",
        "cuda:1",
        "cuda:0",
        "cuda:0",
    ]
    assert {job.threads for job in started} == {2}
