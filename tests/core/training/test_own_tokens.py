"""Training on tokens, a language and bins of one's own; what does not belong together is refused."""

import json
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from own_recordings import (
    DAYS,
    LETTERS,
    N_FEATURES,
    OTHERS,
    OWN,
    SENTENCES,
    own_config,
    write_own,
)
from refusals import complaint, refused
from users_own import Means, MeansConfig

from cortext.data import write_session
from cortext.data.conventions import RELEASE_CONVENTIONS, Conventions
from cortext.data.packed import open_packed, pack
from cortext.data.trial import Trial
from cortext.decoding.log_probs import greedy
from cortext.decoding.ngram import LanguageModel
from cortext.models import AcousticModel, build_model, load_model, register, save_model
from cortext.models.card import Smoothing
from cortext.text.inventory import LM, Inventory
from cortext.text.language import LANGUAGES
from cortext.training import Trainer, train, validate
from cortext.training.config import register_task
from cortext.training.setup import new_model
from cortext.training.task import Task
from cortext_live.adapt import adapt
from cortext_published.release.exchange import export_release


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    return write_own(tmp_path_factory.mktemp("own"), {"train": 16, "val": 4})


@pytest.fixture(scope="module")
def own(recordings, tmp_path_factory):
    out = tmp_path_factory.mktemp("packed") / "data"
    pack(recordings, out)
    return out


@pytest.fixture(scope="module")
def learnt(own, tmp_path_factory):
    out = tmp_path_factory.mktemp("learnt") / "run"
    torch.set_num_threads(1)
    return out, train(own_config(), own, out, progress=False)


def test_characters_in_bins_of_10_ms_are_learnt_and_read_back(own, learnt):
    run, summary = learnt
    model = load_model(run)
    assert model.conventions == OWN
    assert model.frame_ms == 80  # a stride of 8 bins
    found = []
    for trial in open_packed(own).trials("val"):
        symbols = LETTERS.names(greedy(model.log_probs(trial.features_TC, trial.session), LETTERS))
        found.append("".join(symbols).replace("|", " ") == trial.sentence)
    assert np.mean(found) >= 0.75
    assert summary.val_per < 0.1


def test_the_summary_counts_wrong_characters_as_such(learnt):
    run, summary = learnt
    assert re.search(r"best at batch 60: TER \d+\.\d %, CTC loss", str(summary))
    assert json.loads((run / "summary.json").read_text())["errors"] == "TER"
    assert "PER" not in str(summary)


each_other = pytest.mark.parametrize("other", OTHERS)


def showing(packed, conventions):
    """The packed data as another lab would state them."""
    data = open_packed(packed)
    splits = {name: replace(data.split(name), conventions=conventions) for name in data.splits}
    return replace(data.showing(splits), conventions=conventions)


@each_other
def test_a_run_is_not_resumed_on_other_data(own, tmp_path, other):
    with Trainer(own_config(4), own, tmp_path / "run", progress=False) as trainer:
        trainer.run(1)
    conventions, said = OTHERS[other]
    found = f"run: the run and the data differ: in the run {said}; resume with the same data"
    with refused(found):
        Trainer(
            own_config(4), showing(own, conventions), tmp_path / "run", resume=True, progress=False
        )
    with Trainer(own_config(4), own, tmp_path / "run", resume=True, progress=False) as trainer:
        assert trainer.state.step == 1


def test_a_run_is_resumed_where_only_words_for_people_differ(own, tmp_path):
    with Trainer(own_config(4), own, tmp_path / "run", progress=False) as trainer:
        trainer.run(1)
    named = replace(LETTERS, name="other", groups=(("vowels", ("a", "e")),))
    data = showing(own, replace(OWN, inventory=named, normalised="z-scored by day"))
    with Trainer(own_config(4), data, tmp_path / "run", resume=True, progress=False) as trainer:
        assert trainer.state.step == 1
        assert trainer.state.data["conventions"]["bin_ms"] == 10


def test_a_saved_state_with_damaged_conventions_is_refused(own, tmp_path):
    for damage in (3, {"inventory": 3}, {"bin_ms": 900}):
        out = tmp_path / str(damage)
        with Trainer(own_config(4), own, out, progress=False) as trainer:
            trainer.state.data["conventions"] = damage
            trainer.save()
        with refused("the saved state does not say what data it was begun with"):
            Trainer(own_config(4), own, out, resume=True, progress=False)


@each_other
def test_a_run_does_not_start_from_one_on_other_data(own, learnt, tmp_path, other):
    conventions, said = OTHERS[other]
    data = showing(own, conventions)
    with refused(
        f"run: the data and the run to start from differ: in the data {said};"
        " start from a run on such data, or leave out --init-from"
    ):
        train(own_config(2), data, tmp_path / "run", init_from=learnt[0], progress=False)
    assert not (tmp_path / "run").exists()


@each_other
def test_a_given_model_does_not_train_on_other_data(own, learnt, tmp_path, other):
    conventions, said = OTHERS[other]
    with refused(f"the data and the model differ: in the data {said}"):
        Trainer(
            own_config(2),
            showing(own, conventions),
            tmp_path / "run",
            model=load_model(learnt[0]),
            progress=False,
        )


@each_other
def test_a_model_is_not_adapted_to_other_data(own, learnt, tmp_path, other):
    conventions, said = OTHERS[other]
    data = showing(own, conventions)
    found = f"the data and the run differ: in the data {said}; give recordings like those"
    with refused(found):
        adapt(learnt[0], data, tmp_path / "run", session=DAYS[0], progress=False)
    with refused(found):
        adapt(
            learnt[0],
            own,
            tmp_path / "run",
            session=DAYS[0],
            whole_model=True,
            old_data=data,
            progress=False,
        )
    assert not (tmp_path / "run").exists()


def test_an_adapted_model_keeps_its_tokens_language_and_bins(own, learnt, tmp_path):
    data = open_packed(own)
    day = "lab.2026.01.07"
    splits = {name: data.split(name).select(sessions=[DAYS[1]]) for name in data.splits}
    names = (DAYS[0], day)
    new = replace(
        data.showing({name: replace(split, sessions=names) for name, split in splits.items()}),
        sessions=names,
    )
    summary = adapt(learnt[0], new, tmp_path / "run", batches=2, progress=False)
    assert load_model(tmp_path / "run").conventions == OWN
    assert summary.val_per_before < 0.1
    before = f"{100 * summary.val_per_before:.1f}"
    assert re.search(rf"; TER {before} % with the layer of lab.2026.01.0[56]", str(summary))
    written = json.loads((tmp_path / "run" / "adaptation.json").read_text())
    assert written["errors"] == "TER"


def test_the_command_line_refuses_other_data_in_a_line(learnt, tmp_path, capsys):
    conventions, said = OTHERS["another bin"]
    data = write_own(tmp_path / "data", {"train": 2, "val": 1}, conventions)
    line = complaint(
        capsys, "adapt", learnt[0], "--data", data, "--session", DAYS[0], "--out", tmp_path / "run"
    )
    assert re.search(f"the data and the run differ: in the data {said}", line)


@each_other
def test_only_models_of_the_release_are_exported_for_it(tmp_path, other):
    release = RELEASE_CONVENTIONS
    conventions, said = {
        "a permuted inventory": (Conventions(LM), "token 1 is SIL, not AA"),
        "another language": (replace(release, language=OWN.language), "'es' is not 'en'"),
        "another bin": (replace(release, bin_ms=10), "bins last 10 ms, not 20 ms"),
    }[other]
    config = own_config().model
    network = build_model(config, n_features=2, n_days=1, n_classes=41)
    model = AcousticModel(
        network, sessions=DAYS[:1], n_features=2, smoothing=Smoothing(), conventions=conventions
    )
    save_model(model, tmp_path / "run")
    with refused(f"the run and the release differ: in the run .*{said}; export it with --format"):
        export_release(tmp_path / "run", tmp_path / "out")


def test_labels_longer_than_the_published_ones_are_learnt(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.integers(1, len(LETTERS), 700)
    features = rng.normal(size=(12_000, N_FEATURES)).astype(np.float32)
    trials = [Trial(features, DAYS[0], 0, i, "a", labels, None, OWN) for i in range(2)]
    for split in ("train", "val"):
        write_session(tmp_path / "data" / DAYS[0] / f"data_{split}.hdf5", trials)
    config = own_config(1)
    config.dataset.batch_size = config.dataset.days_per_batch = 1
    summary = train(config, tmp_path / "data", tmp_path / "run", progress=False)
    # An untrained model gives each of the 11 tokens a similar chance in each of 1,500 frames.
    assert 1500 < summary.val_loss < 1500 * np.log(11)


@pytest.mark.parametrize(
    ("bin_ms", "wanted"),
    [
        (10, "140 ms, one every 40 ms; .*patch_size=28 model.patch_stride=8 .*kernel_std=4"),
        (40, "560 ms, one every 160 ms; .*patch_size=7 model.patch_stride=2 .*kernel_std=1"),
    ],
)
def test_published_patches_of_other_bins_are_remarked_upon(own, tmp_path, capsys, bin_ms, wanted):
    config = own_config(1)
    config.model.patch_size, config.model.patch_stride = 14, 4
    data = showing(own, replace(OWN, bin_ms=bin_ms))
    with Trainer(config, data, tmp_path / "run", progress=False):
        assert re.search(f"note: bins last {bin_ms} ms, so a patch covers {wanted}",
                         capsys.readouterr().err)  # fmt: skip


def test_patches_of_ones_own_need_no_remark(own, learnt, tmp_path, capsys):
    with Trainer(own_config(2), own, tmp_path / "run", progress=False):
        assert not capsys.readouterr().err


@pytest.mark.parametrize("n_tokens", [3, 250])
def test_any_number_of_tokens_is_learnt_and_kept(tmp_path, n_tokens):
    """2 to 250 tokens are possible, the blank included."""
    symbols = ("_", *(f"x{number}" for number in range(1, n_tokens)))
    conventions = Conventions(Inventory("many", symbols, "_", None))
    rng = np.random.default_rng(0)
    trials = [
        Trial(
            rng.normal(size=(300, N_FEATURES)).astype(np.float32),
            DAYS[0],
            0,
            number,
            "a",
            np.array([n_tokens - 1, 1, n_tokens - 1]),
            None,
            conventions,
        )
        for number in range(4)
    ]
    for split in ("train", "val"):
        write_session(tmp_path / "data" / DAYS[0] / f"data_{split}.hdf5", trials)
    config = own_config(1)
    config.dataset.days_per_batch = 1
    train(config, tmp_path / "data", tmp_path / "run", progress=False)
    model = load_model(tmp_path / "run")
    assert model.logits(trials[0].features_TC, "latest").shape[1] == n_tokens
    assert model.inventory.symbols == symbols


@pytest.fixture(scope="module")
def spelt(tmp_path_factory):
    """A language model of the sentences."""
    folder = tmp_path_factory.mktemp("lm")
    (folder / "text.txt").write_text("\n".join(SENTENCES) + "\n")
    LanguageModel.build(
        [folder / "text.txt"], 2, folder / "lm", inventory=LETTERS, language=OWN.language
    )
    return folder / "lm"


def test_validations_count_words_of_the_data_s_language(own, learnt, spelt, tmp_path):
    model = load_model(learnt[0])
    with Trainer(
        own_config(2), own, tmp_path / "run", lm=spelt, model=model, progress=False
    ) as trainer:
        assert trainer.validate()["val_wer"] == 0


def test_words_are_those_of_the_language():
    counts = validate._word_errors("¡Mi río!", "mi río", OWN.language)
    assert (counts.errors, counts.reference_length) == (0, 2)
    assert validate._word_errors("Mi río", "mi ro", OWN.language).errors == 1
    assert validate._word_errors("你好", "你", LANGUAGES["zh"]).reference_length == 2


@pytest.mark.parametrize("other", ["a permuted inventory", "another language"])
def test_a_language_model_of_other_tokens_or_language_is_refused(own, spelt, tmp_path, other):
    conventions, said = OTHERS[other]
    with refused(f"lm: the language model and the data differ: in the language model {said}"):
        Trainer(
            own_config(2), showing(own, conventions), tmp_path / "run", lm=spelt, progress=False
        )
    assert not (tmp_path / "run").exists()


@each_other
def test_the_errors_of_an_export_are_not_measured_on_other_data(learnt, tmp_path, capsys, other):
    pytest.importorskip("onnxruntime")
    conventions, said = OTHERS[other]
    data = write_own(tmp_path / "data", {"val": 1}, conventions)
    line = complaint(
        capsys, "export", learnt[0], "--format", "onnx", "--out", tmp_path / "out", "--data", data
    )
    assert re.search(f"the data and the run differ: in the data {said}", line)
    assert not (tmp_path / "out").exists()


def test_a_users_own_model_is_examined_with_the_tokens_of_the_data(own, tmp_path, registries):
    register("means")(Means)
    config = replace(own_config(2), model=MeansConfig())
    assert train(config, own, tmp_path / "run", progress=False).steps == 2
    assert load_model(tmp_path / "run").inventory == LETTERS


def test_a_users_own_model_of_41_tokens_only_is_refused(own, tmp_path, registries):
    class Fixed(Means):
        def __init__(self, config, *, n_features, n_days, n_classes):
            super().__init__(config, n_features=n_features, n_days=n_days, n_classes=41)

    register("means")(Fixed)
    config = replace(own_config(2), model=MeansConfig())
    with refused(r"the logits are \[\d+, \d+, 41\]; \[\d+, \d+, 11\] are needed"):
        train(config, own, tmp_path / "run", progress=False)


def test_a_task_without_tokens_keeps_language_and_bins(own, tmp_path, registries):
    @dataclass
    class LoudnessConfig:
        kind: str = "loudness"

    class Loudness(Task):
        """Reads the mean of the features."""

        Config = LoudnessConfig

        def new_model(self, data, sessions, init_from):
            values = Inventory("values", ("loudness",))
            if self.config.seed == 3:  # as before conventions were known
                made = new_model(self.config, data, sessions, init_from, values)
                return AcousticModel(
                    made.network,
                    sessions=sessions,
                    n_features=data.n_features,
                    inventory=values,
                    smoothing=made.smoothing,
                )
            return new_model(self.config, data, sessions, init_from, values)

        def loss(self, model, split):
            def squared(network, batch, fraction):
                logits_BPV = network(batch.x_BTC, batch.day_B, n_patches_B=batch.n_patches_B)[0]
                return {"loss": (logits_BPV - batch.x_BTC.mean()).square().mean((1, 2))}

            return squared

    register_task("loudness")(Loudness)
    config = replace(own_config(2), task={"kind": "loudness"}, best_metric=None)
    train(config, own, tmp_path / "run", progress=False)
    model = load_model(tmp_path / "run", task="loudness")
    assert (model.inventory.symbols, model.language, model.bin_ms) == (
        ("loudness",),
        OWN.language,
        10,
    )
    with refused(
        "in the data the language 'es' is not 'en'; .* gives it conventions=data.conventions"
    ):
        train(replace(config, seed=3), own, tmp_path / "other", progress=False)
