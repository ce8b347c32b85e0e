"""A trained speech LLM: recordings in, sentences out.

A run directory holds the encoder in the files of every acoustic model (`model.json`,
`model.safetensors`), so everything that works with one works with it. The other trained weights are
in `speech_llm.safetensors`. The audio language model is not copied: that file holds its name and
revision.

B trials, T bins, C features, P patches, A width of the audio tower.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.arguments import as_count, as_path, check_type
from cortext.config import from_mapping
from cortext.decoding.nbest import Hypothesis, NBest
from cortext.errors import ConfigError, RunError
from cortext.files import parse_json_object
from cortext.models import AcousticModel, load_model, save_model
from cortext.models.precision import full_float32
from cortext.models.storage import check_finite, read_tensors, write_tensors
from cortext_speechllm.audio_llm.generate import GeneratedText, generate
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.config import GenerationConfig, SpeechConfig
from cortext_speechllm.network import SpeechNetwork

FILE = "speech_llm.safetensors"
AUDIO_LLM = "audio_llm"
"""Directory in a run for a language model that was trained with it (`cortext speech-llm teach`)."""
FORMAT_VERSION = 1


class SpeechLLM(AcousticModel):
    """An acoustic model whose network also feeds an audio language model.

    Attributes are those of `AcousticModel`.
    """

    network: SpeechNetwork

    @classmethod
    def around(
        cls, encoder: AcousticModel, speech: SpeechConfig, audio_width: int, llm: AudioLLM | None
    ) -> SpeechLLM:
        """Return a speech LLM around an encoder; torch draws the projector's and LoRA's weights.

        Args:
            encoder: Acoustic model, whose weights are kept.
            speech: Section `speech` of the configuration.
            audio_width: Width of the audio tower's frames.
            llm: The audio language model; None where no loss reads it.
        """
        check_type(encoder, AcousticModel, "encoder", "an AcousticModel (load_model)")
        check_type(speech, SpeechConfig, "speech", "a SpeechConfig")
        as_count(audio_width, "audio_width", 1)
        check_type(llm, (AudioLLM, type(None)), "llm", "an AudioLLM or None")
        network = SpeechNetwork(encoder.network, speech, audio_width, llm).to(encoder.device)
        return cls(network, **_parts(encoder))

    @classmethod
    def load(
        cls,
        run_dir: str | Path,
        device: str | torch.device = "cpu",
        audio_llm: str | Path | None = None,
    ) -> SpeechLLM:
        """Read the best weights of a run, and the audio language model that they belong to.

        Args:
            run_dir: Run directory of a speech LLM.
            device: `cpu`, `cuda` or `cuda:N`.
            audio_llm: The audio language model: a directory, or a name on the Hub; None takes the
                one in the run (`AUDIO_LLM`), else the one of training.

        Raises:
            RunError: For a directory without a speech LLM, damaged files, files of two validations,
                or another revision of the audio language model than in training.
            LanguageModelError: Where the audio language model cannot be loaded.
        """
        run_dir = as_path(run_dir, "run_dir")
        tensors, facts = read_speech_file(run_dir)
        speech = facts["speech"]
        encoder = load_model(run_dir, device)
        _check_pair(run_dir, facts)
        own = run_dir / AUDIO_LLM
        name = audio_llm or (own if own.is_dir() else speech.audio_llm)
        llm = AudioLLM.load(name, device=str(device), quantize=speech.quantize, with_tower=False)
        if facts["revision"] not in (None, llm.revision):
            raise RunError(
                f"the run was trained with revision {facts['revision']} of its audio language"
                f" model; {llm.name} is of revision {llm.revision}",
                where=run_dir,
                fix="give the one of its training with --audio-llm",
            )
        model = cls.around(encoder, speech, facts["audio_width"], llm)
        model.take_over(tensors, run_dir / FILE)
        model.network.eval()
        return model

    def take_over(self, tensors: dict[str, torch.Tensor], where: Path) -> None:
        """Copy saved weights into the projector, and into LoRA if they contain LoRA.

        Raises RunError for weights that do not fit.
        """
        own = {
            name: tensor
            for name, tensor in self.network.state_dict().items()
            if not name.startswith("encoder.")
        }
        if lost := sorted(set(tensors) - set(own)):
            problem = (
                f"has LoRA weights, such as {lost[0]}, and here nothing is added to the language"
                " model there"
            )
            raise RunError(
                problem,
                where=where,
                fix="give speech.lora and the loss weights as that run has them",
            )
        for name, tensor in own.items():
            saved = tensors.get(name)
            if saved is None and name.startswith("lora."):
                continue  # saved by a stage without LoRA
            if saved is None or saved.shape != tensor.shape:
                shape = "absent" if saved is None else list(saved.shape)
                problem = (
                    f"{name} is {shape}; {list(tensor.shape)} is needed for this audio language"
                    " model"
                )
                raise RunError(
                    problem,
                    where=where,
                    fix="give the audio language model and LoRA settings of that run",
                )
            tensor.copy_(saved)

    def save(self, run_dir: str | Path) -> str:
        """Write both files, each whole or not at all; return the checksum of the encoder's.

        Raises RunError where they cannot be written.
        """
        checksum = save_model(self.encoder, run_dir)
        network = self.network
        speech = self.network.speech
        llm = network.llm if speech.reads_language_model else None
        facts = {
            "format_version": FORMAT_VERSION,
            "speech": asdict(speech),
            "audio_width": network.projector[1].out_features,
            "revision": llm.revision if llm else None,
            "encoder_crc32": checksum,
        }
        tensors = {
            name: tensor
            for name, tensor in network.state_dict().items()
            if not name.startswith("encoder.")
        }
        write_tensors(Path(run_dir) / FILE, tensors, {"speech_llm": json.dumps(facts)})
        return checksum

    @property
    def encoder(self) -> AcousticModel:
        """The encoder with its phoneme read-out, for the word search."""
        return AcousticModel(self.network.encoder, **_parts(self))

    @torch.no_grad()
    def generate(
        self,
        features_BTC: np.ndarray,
        sessions: Sequence[str],
        n_bins_B: np.ndarray,
        max_length: int | None = None,
        *,
        nbest: int = 1,
        options: GenerationConfig | None = None,
        smooth: bool = True,
    ) -> list[NBest]:
        """Return the likeliest sentences of each trial, best first, by beam search.

        `llm_score` is the natural log-probability of a sentence with its end, given the recording.
        Sentences are ranked by `score`, which is llm_score / tokens ** length_penalty. Words have
        no times. A trial's sentences do not depend on the other trials of the batch.

        Args:
            features_BTC: Float [B, T, C]; bins beyond a trial's end are never read.
            sessions: Recording day of each trial.
            n_bins_B: int64 [B], bins of each trial.
            max_length: Most tokens of a sentence; by default that of `options`.
            nbest: Sentences for each trial; the search keeps at least as many beams.
            options: Options of the generation; by default the configuration's.
            smooth: Smooth the features as the run's training did.
        """
        options = options or self.network.speech.generation
        if max_length is not None:
            options = replace(
                options, max_length=max_length, min_length=min(options.min_length, max_length)
            )
        x_BTC, day_B, n_patches_B = self.prepared(features_BTC, sessions, n_bins_B, smooth)
        return self.write(x_BTC, day_B, torch.from_numpy(n_patches_B), options, nbest)

    @torch.no_grad()
    def write(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        n_patches_B: torch.Tensor,
        options: GenerationConfig,
        nbest: int = 1,
    ) -> list[NBest]:
        """Return the likeliest sentences of prepared features, see `generate`.

        Args:
            x_BTC: Smoothed features on the network's device.
            day_B: int64 [B], positions of the days.
            n_patches_B: int64 [B], patches of each trial.
            options: Options of the generation.
            nbest: Sentences for each trial.
        """
        network = self.network.eval()
        with full_float32():
            brain_BPA, n_read_B = network.embeddings(x_BTC, day_B, n_patches_B)
            generated = generate(
                network.llm,
                brain_BPA,
                n_read_B,
                network.llm.prompt(network.speech.prompt),
                beams=max(options.beams, nbest),
                max_length=options.max_length,
                min_length=options.min_length,
                length_penalty=options.length_penalty,
                nbest=nbest,
            )
        return [
            NBest(_hypothesis(each, options.length_penalty) for each in candidates)
            for candidates in generated
        ]


def _hypothesis(candidate: GeneratedText, length_penalty: float) -> Hypothesis:
    """Return a sentence as a hypothesis, without acoustic score and n-gram score."""
    nothing = float("nan")
    score = candidate.log_prob / max(1, candidate.n_tokens) ** length_penalty
    return Hypothesis(candidate.text, score, nothing, nothing, llm_score=candidate.log_prob)


def _parts(model: AcousticModel) -> dict[str, Any]:
    return {
        "sessions": model.sessions,
        "n_features": model.n_features,
        "conventions": model.conventions,
        "smoothing": model.smoothing,
        "feature_subset": model.feature_subset,
    }


def read_speech_file(run_dir: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read tensors and facts of a run's `speech_llm.safetensors`; `speech` is a SpeechConfig.

    Raises RunError where there is none, or it is damaged.
    """
    path = run_dir / FILE
    try:
        tensors, metadata, _ = read_tensors(path, "the speech LLM's weights")
        check_finite(tensors, path)
        facts = parse_json_object(metadata["speech_llm"])
        version = facts["format_version"]
        if version == FORMAT_VERSION:
            return tensors, facts | {
                "speech": from_mapping(SpeechConfig, facts["speech"], where=path)
            }
    except FileNotFoundError:
        fix = "give the directory that `cortext speech-llm train --out` wrote"
        raise RunError("no speech LLM here", where=run_dir, fix=fix) from None
    except (KeyError, ValueError, TypeError):
        raise RunError(
            "not a speech LLM's weights", where=path, fix="copy the file again"
        ) from None
    except ConfigError as error:
        raise RunError(error.what, where=path, fix=error.fix) from None
    raise RunError(
        f"its format is {version!r}; this version of cortext reads {FORMAT_VERSION}", where=path
    )


def _check_pair(run_dir: Path, facts: dict[str, Any]) -> None:
    """Raise RunError where the two files are of different validations, as after a kill."""
    if read_tensors(run_dir / "model.safetensors")[2] != facts.get("encoder_crc32"):
        fix = "finish the run with --resume, or copy both files again"
        raise RunError(
            f"model.safetensors and {FILE} are not of one validation", where=run_dir, fix=fix
        )
