"""The file of audio targets: what it says about itself, what it gives, and what it refuses."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from cortext.errors import DataError
from cortext_speechllm.targets.cache import (
    TargetCache,
    TargetOrigin,
    padded,
    text_key,
    write_targets,
)

ORIGIN = TargetOrigin("some/model", "a1b2c3", "formant", "1", width=3, frame_ms=40.0)


def target(n_frames: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(
        np.random.default_rng(seed).normal(size=(n_frames, 3)).astype(np.float16)
    )


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    path = tmp_path / "targets.safetensors"
    write_targets(
        path, {text_key("one two"): target(4, 1), text_key("three"): target(2, 2)}, ORIGIN
    )
    return path


def test_a_target_is_stored_under_the_digest_of_its_sentence(cache: Path) -> None:
    name = hashlib.sha256(b"one two").hexdigest()
    with safe_open(cache, "pt") as file:
        assert torch.equal(file.get_tensor(name), target(4, 1))
        metadata = file.metadata()
    assert (metadata["audio_llm"], metadata["revision"]) == ("some/model", "a1b2c3")
    assert (metadata["voice"], metadata["voice_revision"]) == ("formant", "1")
    assert (metadata["width"], metadata["frame_ms"]) == ("3", "40.0")


def test_features_stand_side_by_side_with_zeros_behind_the_shorter(cache: Path) -> None:
    target_BNA, n_frames_B = TargetCache.open(cache).features(["three", "one two", "three"])
    assert target_BNA.dtype == torch.float32
    assert n_frames_B.tolist() == [2, 4, 2]
    assert n_frames_B.dtype == torch.int64
    assert torch.equal(target_BNA[1], target(4, 1).float())
    assert torch.equal(target_BNA[0, :2], target(2, 2).float())
    assert not target_BNA[0, 2:].any()
    assert torch.equal(target_BNA[0], target_BNA[2])


def test_no_sentences_have_no_features(cache: Path) -> None:
    target_BNA, n_frames_B = TargetCache.open(cache).features([])
    assert target_BNA.shape == (0, 0, 3)
    assert n_frames_B.shape == (0,)
    assert padded([], 5)[0].shape == (0, 0, 5)


def test_blanks_around_and_between_words_make_no_other_sentence(cache: Path) -> None:
    opened = TargetCache.open(cache)
    assert " one  two\n" in opened
    assert "One two" not in opened
    assert opened.n_frames("one\ttwo") == 4


def test_missing_names_each_sentence_once_in_order(cache: Path) -> None:
    opened = TargetCache.open(cache)
    assert opened.missing(["zero", "three", "five", " zero "]) == ["zero", "five"]
    with pytest.raises(
        DataError,
        match=r"targets.safetensors: has no audio of 'zero'; give .* `cortext speech-llm cache`",
    ):
        opened.features(["three", "zero"])


def test_facts_say_how_much_it_holds_and_what_made_it(cache: Path) -> None:
    facts = TargetCache.open(cache).facts
    assert (facts["sentences"], facts["minutes"], facts["revision"]) == (2, 0.0, "a1b2c3")
    assert facts["bytes"] == cache.stat().st_size


def test_a_cache_goes_to_another_process(cache: Path) -> None:
    again = pickle.loads(pickle.dumps(TargetCache.open(cache)))
    assert torch.equal(again.features(["three"])[0], TargetCache.open(cache).features(["three"])[0])


def test_another_model_is_refused(cache: Path) -> None:
    assert len(TargetCache.open(cache, revision="a1b2c3", width=3)) == 2
    with pytest.raises(
        DataError,
        match=r"made with the audio LLM some/model at revision a1b2c3, and this one is f0",
    ):
        TargetCache.open(cache, revision="f0")
    with pytest.raises(
        DataError, match="has 3 numbers per frame, and the audio LLM has 1280; make one with"
    ):
        TargetCache.open(cache, width=1280)


def test_another_voice_is_refused(cache: Path) -> None:
    TargetCache.open(cache).check("give another", "a1b2c3", "1")
    with pytest.raises(
        DataError,
        match=r"made with the voice formant at revision 1, and this one is 2; give another$",
    ):
        TargetCache.open(cache).check("give another", "a1b2c3", "2")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"none.safetensors: there is no such cache .* `cortext speech-llm cache`"
    ):
        TargetCache.open(tmp_path / "none.safetensors")
    with pytest.raises(DataError, match="cannot be read as a cache"):
        TargetCache.open(tmp_path)


def test_a_file_cut_short_is_refused(cache: Path) -> None:
    for length in (0, 5, 100, cache.stat().st_size - 1):
        short = cache.with_name("short.safetensors")
        short.write_bytes(cache.read_bytes()[:length])
        with pytest.raises(DataError, match=r"short.safetensors: cannot be read"):
            TargetCache.open(short)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(2, 2)}, path)
    with pytest.raises(DataError, match="is no cache of audio targets"):
        TargetCache.open(path)


def test_a_tensor_of_another_shape_is_damage(tmp_path: Path) -> None:
    for wrong in (
        torch.zeros(2, 4, dtype=torch.float16),
        torch.zeros(2, 3),
        torch.zeros(0, 3, dtype=torch.float16),
    ):
        path = tmp_path / "wrong.safetensors"
        write_targets(path, {text_key("a"): wrong}, ORIGIN)
        with pytest.raises(DataError, match="is damaged"):
            TargetCache.open(path)


def test_a_changed_byte_is_found_when_its_sentence_is_read(cache: Path) -> None:
    content = bytearray(cache.read_bytes())
    content[-1] ^= 0x10  # of the sentence whose digest is the larger
    cache.write_bytes(content)
    last, first = sorted(["one two", "three"], key=text_key, reverse=True)
    opened = TargetCache.open(cache)
    assert len(opened.features([first])[1]) == 1
    with pytest.raises(DataError, match="is damaged: a target has not the checksum"):
        opened.features([last])
