import json
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from small_models import SESSIONS, make_model, trial

from cortext.errors import RunError
from cortext.models import GRUConfig
from cortext.models.storage import read_tensors, write_tensors
from cortext.training.config import TrainConfig
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.replay import LabelledSentence
from cortext_live.recalibration.settings import SERVICE_METHODS, LearningOptions, method_settings
from cortext_live.recalibration.state import LearnerStore

NEW_DAY = "t15.2023.08.20"
NEXT_DAY = "t15.2023.08.22"
# Dropout, noise and replay: all that random numbers decide.
GRU = GRUConfig(n_units=8, n_layers=1, patch_size=4, patch_stride=2)


def learner_of(**changes):
    changed = [f"{name}={value}" for name, value in changes.items()]
    settings = method_settings("replay", changed, SERVICE_METHODS)
    learner = Learner(make_model(GRU), TrainConfig(model=GRU), settings, seed=3)
    learner.remember(sentence(50 + number, SESSIONS[0]) for number in range(3))
    return learner


def sentence(seed, session=NEW_DAY):
    labels_U = np.random.default_rng(seed).integers(1, 40, 5)
    return LabelledSentence(trial(60 + seed % 7, seed), session, labels_U)


def days(first, end):
    """Sentences of which the first twelve are of one day."""
    return [sentence(number, NEW_DAY if number < 12 else NEXT_DAY) for number in range(first, end)]


def learn(learner, sentences):
    return [learner.learn(each) for each in sentences]


def assert_same(one, other):
    ours, theirs = one.model.network.state_dict(), other.model.network.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name
    assert one.model.sessions == other.model.sessions
    assert one.n_steps == other.n_steps


@pytest.mark.parametrize("changes", [{}, {"whole_model": True}], ids=["day layer", "whole model"])
@pytest.mark.parametrize("stopped", [5, 12])
def test_a_learner_goes_on_to_the_bit(tmp_path, changes, stopped):
    undisturbed = learner_of(steps_per_day=20, **changes)
    losses = learn(undisturbed, days(0, 18))
    learner = learner_of(steps_per_day=20, **changes)
    learn(learner, days(0, stopped))
    LearnerStore(tmp_path / "state").save(learner, {"line": stopped})
    found, note = LearnerStore(tmp_path / "state").load()
    assert note == {"line": stopped}
    again = learn(found, days(stopped, 18))
    assert repr(again) == repr(losses[stopped:])  # NaN, where a day has no step left, equals NaN
    assert_same(found, undisturbed)


@pytest.mark.parametrize("stopped", [4, 14])
def test_a_learner_goes_on_whose_sentences_learn_together(tmp_path, stopped):
    changes = {"together": 4, "lr_floor": 0.1, "whole_model": True, "remembered": 12}

    def learn_from(learner, first, end):
        told = [replace(each, corrected=number % 3 == 0) for number, each in enumerate(days(0, 18))]
        for number in range(first, end):
            today = [each for each in told[: number + 1] if each.session == told[number].session]
            learner.learn_together(today, 2)

    undisturbed, learner = learner_of(**changes), learner_of(**changes)
    learn_from(undisturbed, 0, 18)
    learn_from(learner, 0, stopped)
    LearnerStore(tmp_path).save(learner)
    found, _ = LearnerStore(tmp_path).load()
    learn_from(found, stopped, 18)
    assert_same(found, undisturbed)


def test_a_learner_is_saved_as_often_as_one_likes(tmp_path):
    store, learner = LearnerStore(tmp_path), learner_of()
    for each in days(0, 6):
        learner.learn(each)
        store.save(learner)
    undisturbed = learner_of()
    learn(undisturbed, days(0, 9))
    found, note = store.load()
    assert note == {}
    learn(found, days(6, 9))
    assert_same(found, undisturbed)


def test_the_directory_holds_no_more_sentences_than_are_kept(tmp_path):
    store, learner = LearnerStore(tmp_path), learner_of(remembered=6)
    sizes = []
    for each in days(0, 9):
        learner.learn(each)
        store.save(learner)
        files = list((tmp_path / "sentences").iterdir())
        sizes.append(sum(path.stat().st_size for path in tmp_path.rglob("*.safetensors")))
        assert len(files) <= 6
    assert len(files) == 6  # three known ones, three of the latest
    longest = 66 * 6 * 4  # bins, features and bytes of the longest of these
    assert max(sizes) - min(sizes) < 6 * (longest + 400)


def test_only_new_sentences_are_written(tmp_path):
    store, learner = LearnerStore(tmp_path), learner_of()
    learn(learner, days(0, 4))
    store.save(learner)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "sentences").iterdir()}
    learn(learner, days(4, 5))
    store.save(learner)
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "sentences").iterdir()}
    assert after.items() > before.items()
    assert len(after) == len(before) + 1
    # A new store of the same directory takes no name twice.
    found, _ = (other := LearnerStore(tmp_path)).load()
    learn(found, days(5, 6))
    other.save(found)
    assert len(list((tmp_path / "sentences").iterdir())) == len(before) + 2


def test_no_learner_is_found_where_none_was_saved(tmp_path):
    assert LearnerStore(tmp_path / "none").load() is None
    assert not (tmp_path / "none").exists()


PROGRAM = """
import sys
sys.path[:0] = {path}
from test_state import days, learner_of
from cortext_live.recalibration.state import LearnerStore
import torch
torch.set_num_threads(1)
store = LearnerStore({folder!r})
found = store.load()
learner, done = (learner_of(), 0) if found is None else (found[0], found[1]["done"])
print("begun", done, flush=True)
for number in range(done, 20):
    learner.learn(*days(number, number + 1))
    store.save(learner, {{"done": number + 1}})
print("end", flush=True)
"""


def test_a_killed_learner_goes_on_from_a_state_that_was_saved(tmp_path):
    folder = tmp_path / "state"
    path = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "support")]
    program = textwrap.dedent(PROGRAM).format(path=path, folder=str(folder))
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    saved = folder / "learner.safetensors"
    while process.poll() is None and not len(list(folder.glob("sentences/*"))) > 8:
        pass
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert saved.is_file()
    store = LearnerStore(folder)
    found, note = store.load()
    assert 0 < note["done"] < 20
    learn(found, days(note["done"], 20))
    undisturbed = learner_of()
    learn(undisturbed, days(0, 20))
    assert_same(found, undisturbed)
    store.save(found)
    assert not list(folder.rglob(".*.tmp"))  # what the killed process was writing


def damaged(folder, what):
    file = folder / "learner.safetensors"
    content = file.read_bytes()
    sentences = sorted((folder / "sentences").iterdir())
    if what == "cut off":
        file.write_bytes(content[: len(content) // 2])
    elif what == "a changed number":
        file.write_bytes(content[:-3] + b"\x42" + content[-2:])
    elif what == "another version":
        written(folder, lambda tensors, metadata, progress: metadata.update(version="2"))
    elif what == "empty":
        file.write_bytes(b"")
    elif what == "no sentence":
        sentences[0].unlink()
    elif what == "a damaged sentence":
        sentences[0].write_bytes(sentences[0].read_bytes()[:-9])


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("cut off", "the saved learner cannot be read"),
        ("a changed number", "the saved learner cannot be read: the checksum is"),
        ("another version", "its version is 2, not 1"),
        ("empty", "the saved learner cannot be read"),
        ("no sentence", "a sentence kept for replay is missing"),
        ("a damaged sentence", "a sentence kept for replay cannot be read"),
    ],
)
def test_a_damaged_learner_is_one_line(tmp_path, what, said):
    learner = learner_of()
    learn(learner, days(0, 2))
    LearnerStore(tmp_path).save(learner)
    damaged(tmp_path, what)
    with pytest.raises(RunError) as error:
        LearnerStore(tmp_path).load()
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)
    assert str(error.value).endswith("learning goes on from its latest model")


def written(folder, change):
    """A file of another program, whose checksum is right."""
    file = folder / "learner.safetensors"
    tensors, metadata, _ = read_tensors(file)
    progress = json.loads(metadata["progress"])
    change(tensors, metadata, progress)
    if "progress" in metadata:
        metadata["progress"] = json.dumps(progress)
    write_tensors(file, tensors, metadata)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, metadata, progress: progress.pop("note"),
        lambda tensors, metadata, progress: progress.update(n_steps="many"),
        lambda tensors, metadata, progress: progress.update(settings={"copies": 0}),
        lambda tensors, metadata, progress: progress.update(known=["../../etc/passwd"]),
        lambda tensors, metadata, progress: progress.update(known=7),
        lambda tensors, metadata, progress: progress.update(session="../day"),
        lambda tensors, metadata, progress: metadata.pop("progress"),
        lambda tensors, metadata, progress: metadata.update({"model.json": "{}"}),
        lambda tensors, metadata, progress: tensors.pop("optimizer/day_steps"),
        lambda tensors, metadata, progress: tensors.pop("model/out.weight"),
        lambda tensors, metadata, progress: tensors.update(
            {"optimizer/mean.day_bias": torch.zeros(3)}
        ),
    ],
)
def test_a_state_that_no_learner_has_is_one_line(tmp_path, change):
    learner = learner_of()
    learn(learner, days(0, 2))
    LearnerStore(tmp_path).save(learner)
    written(tmp_path, change)
    with pytest.raises(RunError) as error:
        LearnerStore(tmp_path).load()
    assert "\n" not in str(error.value)


def test_the_settings_are_saved_too(tmp_path):
    learner = learner_of(lr=0.5)
    LearnerStore(tmp_path).save(learner)
    found, _ = LearnerStore(tmp_path).load()
    assert isinstance(found.settings, LearningOptions)
    assert found.settings == learner.settings
    assert found.seed == 3
