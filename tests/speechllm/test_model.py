"""A speech LLM on disk and at work."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_speech_llm import save_tiny_audio_llm

from cortext.data import open_packed
from cortext.errors import DataError, LanguageModelError, RunError
from cortext.models.storage import read_tensors, write_tensors
from cortext_speechllm.audio_llm.inputs import answer_logits, teacher_forced
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.model import FILE, SpeechLLM


@pytest.fixture(scope="module")
def model(trained) -> SpeechLLM:
    return SpeechLLM.load(trained)


@pytest.fixture(scope="module")
def trials(recordings):
    return open_packed(recordings).split("val")


def copied(trained: Path, tmp_path: Path) -> Path:
    return Path(
        shutil.copytree(
            trained, tmp_path / "copy", ignore=shutil.ignore_patterns("train_state", "packed")
        )
    )


def test_a_trial_gets_the_same_sentences_alone_among_others_and_with_other_padding(model, trials):
    rows = np.arange(5)
    batch, sessions = trials.batch(rows), [trials.session(i) for i in rows.tolist()]
    found = model.generate(batch.features_BTC, sessions, batch.n_bins_B, nbest=3)
    loud = np.array(batch.features_BTC, dtype=np.float32)
    for row, n_bins in enumerate(batch.n_bins_B.tolist()):
        loud[row, n_bins:] = 1e3
        alone = model.generate(
            batch.features_BTC[row : row + 1, :n_bins], sessions[row : row + 1], [n_bins], nbest=3
        )[0]
        assert alone.texts == found[row].texts
        assert [each.score for each in alone] == pytest.approx(
            [each.score for each in found[row]], abs=1e-3
        )
    for one, other in zip(
        model.generate(loud, sessions, batch.n_bins_B, nbest=3), found, strict=True
    ):
        assert one.texts == other.texts
        assert [each.score for each in one] == [each.score for each in other]


def test_scores_are_log_probabilities_given_the_recording(model, trials):
    batch = trials.batch([3])
    x_BTC, day_B, n_patches_B = model.prepared(
        batch.features_BTC, [trials.session(3)], batch.n_bins_B
    )
    with torch.no_grad():
        brain_BPA, n_B = model.network.embeddings(x_BTC, day_B, torch.from_numpy(n_patches_B))
        for hypothesis in model.generate(
            batch.features_BTC, [trials.session(3)], batch.n_bins_B, nbest=2, max_length=6
        )[0]:
            llm = model.network.llm
            answer = llm.tokenizer.encode(hypothesis.text, add_special_tokens=False)
            if len(answer) >= 6:  # was cut off: no end
                continue
            sequence = teacher_forced(
                llm,
                brain_BPA,
                n_B,
                llm.prompt(model.network.speech.prompt),
                [[*answer, llm.ends[0]]],
            )
            log_probs_KV = answer_logits(llm, sequence)[0].log_softmax(-1)
            expected = sum(
                float(log_probs_KV[k, token]) for k, token in enumerate([*answer, llm.ends[0]])
            )
            # Several spellings of the tokens may give one text.
            assert hypothesis.llm_score >= expected - 1e-3


def test_length_limits(model, trials):
    batch = trials.batch([0])
    for most in (1, 3):
        found = model.generate(
            batch.features_BTC, [trials.session(0)], batch.n_bins_B, max_length=most
        )
        assert (
            len(model.network.llm.tokenizer.encode(found[0][0].text, add_special_tokens=False))
            <= most
        )


def test_what_is_saved_is_what_is_loaded(model, trained, tmp_path):
    model.save(tmp_path)
    for name in ("model.safetensors", FILE):
        mine, theirs = load_file(tmp_path / name), load_file(trained / name)
        assert mine.keys() == theirs.keys()
        assert all((tensor == theirs[key]).all() for key, tensor in mine.items())


def test_files_of_two_validations_are_reported(trained, tmp_path):
    """What a kill between the two files leaves."""
    run = copied(trained, tmp_path)
    tensors, metadata, _ = read_tensors(run / "model.safetensors")
    write_tensors(
        run / "model.safetensors", {name: tensor + 1 for name, tensor in tensors.items()}, metadata
    )
    with pytest.raises(
        RunError,
        match=r"model.safetensors and speech_llm.safetensors are not of one validation; finish",
    ):
        SpeechLLM.load(run)


def test_another_audio_llm_than_in_training_is_reported(trained, tmp_path):
    other = save_tiny_audio_llm(tmp_path / "other", seed=5)
    with pytest.raises(
        RunError,
        match=r"was trained with revision .*; .*other is of revision .*; give the one of its",
    ):
        SpeechLLM.load(trained, audio_llm=other)


def test_the_audio_llm_may_have_moved(trained, tiny_audio_llm, tmp_path, model):
    moved = shutil.copytree(tiny_audio_llm, tmp_path / "moved")
    assert (
        SpeechLLM.load(trained, audio_llm=moved).network.llm.revision == model.network.llm.revision
    )


def test_an_audio_llm_that_is_gone_is_one_line(trained, tmp_path):
    with pytest.raises(LanguageModelError, match="neither a directory"):
        SpeechLLM.load(trained, audio_llm=tmp_path / "gone")


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (
            lambda file: file.unlink(),
            "no speech LLM here; give the directory that `cortext speech-llm train --out` wrote",
        ),
        (
            lambda file: file.write_bytes(file.read_bytes()[:-9]),
            "the speech LLM's weights cannot be read",
        ),
        (lambda file: write_tensors(file, load_file(file), {}), "not a speech LLM's weights"),
        (
            lambda file: write_tensors(
                file, load_file(file), {"speech_llm": json.dumps({"format_version": 9})}
            ),
            "its format is 9; this version of cortext reads 1",
        ),
    ],
    ids=["missing", "cut off", "foreign", "of another version"],
)
def test_damaged_and_foreign_files_are_one_line(trained, tmp_path, damage, line):
    run = copied(trained, tmp_path)
    damage(run / FILE)
    with pytest.raises(RunError) as caught:
        SpeechLLM.load(run)
    assert line in str(caught.value)
    assert str(run) in str(caught.value)


def test_features_that_do_not_fit_are_one_line(model, trials):
    batch = trials.batch([0])
    with pytest.raises(DataError, match=r"are needed for this model"):
        model.generate(batch.features_BTC[..., :5], [trials.session(0)], batch.n_bins_B)
    with pytest.raises(RunError, match="the model knows no session 'never'"):
        model.generate(batch.features_BTC, ["never"], batch.n_bins_B)


def test_loading_takes_no_weights_of_the_language_model_into_the_run(trained, tiny_audio_llm):
    kept = sum(tensor.numel() for tensor in load_file(trained / FILE).values())
    assert kept < AudioLLM.check(tiny_audio_llm).n_parameters / 2
