"""Materials of `cortext bench speech-llm` that the user does not give: data, audio LLM, cache."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from cortext.data.packed import open_data
from cortext.extras import need
from cortext.text.lexicon import Lexicon
from cortext_bench.harness import Stage
from cortext_bench.training.data import SimulatedRecordings
from cortext_bench.workers import WorkerProcess
from cortext_live.voices import open_voice
from cortext_lm.llm.loading import save_model
from cortext_lm.neural.pieces import train_pieces
from cortext_lm.neural.train_neural import WINDOW, NeuralSettings, new_network
from cortext_speechllm.audio_llm.assemble import TowerSettings, assemble
from cortext_speechllm.audio_llm.loading import revision_there
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.targets.cache import TargetCache

RECORDING = SimulatedRecordings(
    n_sessions=2, trials_per_session=16, n_features=128, bins=0, preset="demo"
)
TOWER = TowerSettings(width=384, layers=6, heads=6)
"""Audio tower of 12 million parameters.

Like published ones it always encodes 30 s, however short a sentence is.
"""
LANGUAGE_MODEL = NeuralSettings(pieces=4000, width=512, layers=8, heads=8)
"""Language model of 25 million parameters.

The tower has half as many, as in Aero-1-Audio-1.5B (a twelfth in Qwen2-Audio-7B).
"""

OF_RECORDING = ("dataset.batch_size=4", "dataset.days_per_batch=2")
OF_MODEL = ("model.n_units=256", "model.n_layers=2")
"""Settings that go with the materials made here: the demo's encoder, and batches for a CPU."""


@dataclass(frozen=True)
class GivenMaterials:
    """Materials that a user gives; None is made.

    Attributes:
        data: Recordings, session files or packed.
        audio_llm: A directory, or a name on the Hugging Face Hub.
        voice: See `open_voice`.
        cache: A cache of this audio LLM and voice with all sentences of the data.
    """

    data: Path | None = None
    audio_llm: str | None = None
    voice: str = "formant"
    cache: Path | None = None

    @property
    def overrides(self) -> tuple[str, ...]:
        """Settings that go with the new materials."""
        of_recording = OF_RECORDING if self.data is None else ()
        return (*of_recording, *(OF_MODEL if self.audio_llm is None else ()))


@dataclass(frozen=True)
class Materials:
    """Materials of all settings. packed, cache: paths; facts: for the result."""

    packed: str
    audio_llm: str
    voice: str
    cache: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class CacheOrder:
    """Work of the process that makes a cache."""

    packed: str
    audio_llm: str
    voice: str
    out: str
    device: str


def prepare(
    given: GivenMaterials, folder: Path, device: str, env: dict[str, str], stage: Stage
) -> Materials:
    """Make the missing materials in `folder`.

    Args:
        given: Materials of the user.
        folder: Folder for the new materials.
        device: Device of the process that makes a cache.
        env: Environment of that process.
        stage: Called with the name of each stage of the work.

    Raises:
        LanguageModelError: For an audio LLM or a voice that is none.
        DataError: For a cache that was made with another audio LLM, voice or other data.
    """
    voice = open_voice(given.voice)
    if given.audio_llm is not None:
        AudioLLM.check(given.audio_llm)  # before the work
    if given.data is None:
        stage("recordings")
        RECORDING.write(folder)
    packed = folder / "packed"
    data = open_data(given.data, packed) if given.data else open_data(packed)
    audio_llm = given.audio_llm
    assembled = None
    if audio_llm is None:
        stage("an audio LLM of random weights")
        audio_llm = str(folder / "audio-llm")
        assembled = random_audio_llm(folder)
    if given.cache is not None:
        cached = TargetCache.open(given.cache, revision_there(audio_llm))
        cached.check(
            "give the voice of this cache, or another cache", voice_revision=voice.revision
        )
        made = cached.facts
    else:
        stage("the cache of audio targets")
        out = folder / "targets.safetensors"
        order = CacheOrder(str(data.path), audio_llm, given.voice, str(out), device)
        # In a process of its own, which gives back what it takes of a GPU.
        with WorkerProcess(
            "cache",
            "speech_llm.worker",
            ["cache", json.dumps(asdict(order))],
            folder / "cache.log",
            env,
        ) as child:
            made = child.loaded
    facts = {
        "data": str(given.data) if given.data else {"simulated": asdict(RECORDING)},
        "trials": len(data.split("train")),
        "assembled": assembled,
        "voice": given.voice,
        "cache": made,
    }
    return Materials(str(data.path), audio_llm, given.voice, made["cache"], facts)


def random_audio_llm(
    folder: Path, lm: NeuralSettings | None = None, tower: TowerSettings | None = None
) -> dict[str, Any]:
    """Write `folder/audio-llm`: tower, projector and language model with random weights.

    The tokenizer's pieces come from the words of the CMU dictionary.

    Args:
        folder: Folder to write in.
        lm: Size of the language model; None for LANGUAGE_MODEL.
        tower: Size of the tower; None for TOWER.

    Returns:
        Both sizes, for the result.
    """
    need("transformers", "speechllm")
    lm, tower = lm or LANGUAGE_MODEL, tower or TOWER
    tokenizer = train_pieces(dict.fromkeys(Lexicon.cmu(), 1), lm.pieces, WINDOW)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lm.seed)
        save_model(
            folder / "language-model", new_network(tokenizer, lm), tokenizer, {"kind": "random"}
        )
    assemble(folder / "language-model", folder / "audio-llm", tower)
    sizes = {name: getattr(lm, name) for name in ("width", "layers", "heads")} | {
        "pieces": len(tokenizer)
    }
    return {"language_model": sizes, "tower": asdict(tower)}
