"""Audio targets: sentences spoken by a voice and encoded by the audio tower, once for all.

Voices speak in processes of their own while the tower encodes earlier waves on its device: neither
waits for the other. The tower's window has a fixed length: a batch is a number of windows, with one
sentence in each.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import torch

from cortext.arguments import as_path, check_list, check_text, check_type
from cortext.cores import available_cores
from cortext.data.packed import open_data
from cortext.errors import (
    CortextError,
    Interrupted,
    LanguageModelError,
    RunError,
    TextError,
    wrong_type,
)
from cortext.processes import Progress, interrupts
from cortext.text.language import EN, Language
from cortext.training.loss import trial_name
from cortext_live.voices import SAMPLE_RATE, Voice, open_voice
from cortext_live.voices.synthesis import say, say_all
from cortext_live.voices.voice import resampled
from cortext_lm.llm.explain import out_of_memory
from cortext_speechllm.audio_llm.loading import revision_there
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.targets.cache import TargetCache, TargetOrigin, padded, spoken, text_key
from cortext_speechllm.targets.cache_parts import GO_ON, UnfinishedCache

WINDOWS = {"cpu": 4, "cuda": 32}
"""Sentences in the tower at once, by device; fewer after memory has run out."""
_PER_WORKER = 32
"""Least number of sentences that is worth the start of another process."""


def build_cache(
    sentences: Mapping[str, str] | Iterable[str],
    audio_llm: AudioLLM | str | Path,
    voice: Voice | str,
    out: str | Path,
    *,
    workers: int | None = None,
    device: str = "auto",
    skip_bad: bool = False,
    language: Language = EN,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Make the cache `out` of audio targets of sentences, or complete it.

    Existing targets are not made again. A kill costs at most half a minute of work.

    Args:
        sentences: Sentences; equal ones are spoken once. A mapping gives the origin of each, for
            messages.
        audio_llm: Audio LLM with the tower; a name is loaded on `device`.
        voice: A voice, or its name (see `open_voice`).
        out: The file.
        workers: Processes that speak; 0 speaks in this one. None takes all processors but one, or
            fewer for few sentences.
        device: `cpu`, `cuda`, `cuda:N`, or `auto`: a GPU where there is one.
        skip_bad: Leave out sentences that cannot be spoken.
        language: Language of the sentences, for a voice that is opened by its name.
        progress: Called with the number of sentences done and of all.

    Returns:
        The cache's facts, the number of new sentences and of damaged parts, the sentences that were
        left out or are spoken only in part, and the seconds.

    Raises:
        TextError: For a sentence that cannot be spoken.
        DataError: For an `out` that was made with another model or voice.
        RunError: For a full disk, and while another process makes the cache.
        Interrupted: After a Ctrl-C.
    """
    began = time.monotonic()
    out = as_path(out, "out")
    named = _named(sentences)
    opened = open_voice(voice, language) if isinstance(voice, str) else voice
    if not hasattr(opened, "can_speak"):
        raise wrong_type("voice", voice, "a voice (open_voice) or its name")
    left_out = _unspeakable(named, opened, skip_bad)
    in_part = [
        f"{named[text]}: {text!r} without {lost!r}"
        for text in named
        if (lost := opened.passed_over(text))
    ]
    unfinished = UnfinishedCache(out)
    with unfinished.held():
        llm = None if isinstance(audio_llm, str | Path) else audio_llm
        unfinished.open(llm.revision if llm else revision_there(str(audio_llm)), opened.revision)
        todo = sorted(
            (text for text in named if text_key(text) not in unfinished), key=len, reverse=True
        )
        if todo:  # the longest first: a sentence that does not fit raises at once
            tower = Tower(llm or AudioLLM.load(audio_llm, device, with_language_model=False))
            _Work(named, opened, tower, unfinished).run(
                todo, _workers(workers, len(todo)), progress
            )
        unfinished.finish()
    seconds = time.monotonic() - began
    return {
        **TargetCache(out).facts,
        "added": len(todo),
        "damaged_parts": unfinished.n_damaged,
        "left_out": left_out,
        "in_part": in_part,
        "seconds": round(seconds, 2),
    }


class LiveTargets:
    """Targets of a cache of the same model and voice, but computed anew for each batch.

    See `TargetCache.features`.
    """

    def __init__(self, llm: AudioLLM, voice: Voice) -> None:
        check_type(llm, AudioLLM, "llm", "an AudioLLM")
        self._tower = Tower(llm)
        self._voice = voice

    def features(self, sentences: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return targets float32 [B, N, A], zero-padded, and the frames of each, int64 [B]."""
        targets: list[torch.Tensor] = []
        texts = [spoken(text) for text in sentences]
        while batch := texts[len(targets) : len(targets) + self._tower.windows]:
            targets += self._tower.targets(batch, [say(self._voice, text) for text in batch])
        return padded(targets, self._tower.llm.audio_width)


class Tower:
    """The audio tower of a model, with the batch size that its memory holds.

    Attributes:
        windows: Sentences in the tower at once.
    """

    def __init__(self, llm: AudioLLM) -> None:
        self.llm = llm
        self.windows = WINDOWS[llm.device.type]

    def targets(self, texts: Sequence[str], waves: Sequence[np.ndarray]) -> list[torch.Tensor]:
        """Return the targets of waves, float16 [N, A] each.

        Args:
            texts: Sentences, for messages.
            waves: Their waves, float32 [samples] at 16 kHz.

        Raises:
            DataError: For a wave that the tower cannot read; the message names the text.
            LanguageModelError: Where memory runs out, and for targets that are not finite in half
                precision.
        """
        rate = self.llm.sample_rate
        try:
            frames = self.llm.audio_features([resampled(wave, SAMPLE_RATE, rate) for wave in waves])
        except Exception as error:
            if not (out_of_memory(error) or isinstance(error, CortextError)):
                raise
            if len(texts) == 1:
                raise _with_text(texts[0], error) from error
            half = (len(texts) + 1) // 2
            if out_of_memory(error):
                self.windows = half
            return self.targets(texts[:half], waves[:half]) + self.targets(
                texts[half:], waves[half:]
            )
        targets = [frames_NA.half() for frames_NA in frames]
        for text, target_NA in zip(texts, targets, strict=True):
            if not torch.isfinite(target_NA).all():
                problem = f"the audio tower's numbers for {text!r} are not finite in half precision"
                raise LanguageModelError(
                    problem, where=self.llm.name, fix="use another audio LLM or --device cpu"
                )
        return targets


def _with_text(text: str, error: Exception) -> CortextError:
    if isinstance(error, CortextError):
        return type(error)(
            f"{text!r} cannot be heard: {error.what}", where=error.where, fix=error.fix
        )
    fix = "use another --device, or a smaller audio LLM"
    return LanguageModelError(f"not enough memory for the audio tower to hear {text!r}", fix=fix)


@dataclass(frozen=True)
class _Work:
    """The work of turning texts into targets of a cache.

    Attributes:
        named: Origin of each text.
    """

    named: Mapping[str, str]
    voice: Voice
    tower: Tower
    unfinished: UnfinishedCache

    @property
    def origin(self) -> TargetOrigin:
        """Origin of the targets."""
        llm = self.tower.llm
        voice = self.voice
        return TargetOrigin(
            llm.name, llm.revision, voice.name, voice.revision, llm.audio_width, llm.frame_ms
        )

    def run(self, texts: Sequence[str], workers: int, progress: Progress | None) -> None:
        """Make the targets of all texts. An error or a Ctrl-C saves the finished ones."""
        n_all = len(self.named)
        done = len(self.named) - len(texts)
        with (
            interrupts() as interrupted,
            closing(self._waves(texts, workers, interrupted)) as waves,
        ):
            try:
                while batch := list(islice(waves, self.tower.windows)):
                    targets = self.tower.targets(*zip(*batch, strict=True))
                    for (text, _), target_NA in zip(batch, targets, strict=True):
                        self.unfinished.add(text_key(text), target_NA)
                    self.unfinished.save(self.origin)
                    done += len(batch)
                    if progress is not None:
                        progress(done, n_all)
                    if interrupted.is_set() and done < n_all:
                        raise self._interrupted(f" after {done} of {n_all} sentences")
                self.unfinished.save(self.origin, now=True)
            except BaseException:
                with suppress(RunError):  # a full disk, which may be the error itself
                    self.unfinished.save(self.origin, now=True)
                raise

    def _waves(
        self, texts: Sequence[str], workers: int, interrupted: Event
    ) -> Generator[tuple[str, np.ndarray], None, None]:
        """Yield each text with its wave. Raises TextError with the origin of the text."""
        with closing(say_all(self.voice, texts, workers)) as waves:
            for text in texts:
                try:
                    yield text, next(waves)
                except TextError as error:
                    raise TextError(error.what, where=self.named[text], fix=error.fix) from error
                except RunError:
                    # A scheduler's SIGTERM ends processes that have only just begun.
                    if interrupted.is_set():
                        raise self._interrupted() from None
                    raise

    def _interrupted(self, when: str = "") -> Interrupted:
        return Interrupted(f"interrupted{when}", where=self.unfinished.out, fix=GO_ON)


def sentences_of_data(
    data: str | Path, *, skip_bad: bool = False, progress: Progress | None = None
) -> dict[str, str]:
    """Return the distinct sentences of a data set, each with its first trial.

    Args:
        data: Session files or packed data.
        skip_bad: Leave out unusable trials.
        progress: See `open_data`.

    Raises:
        DataError: See `open_data`.
    """
    where_from: dict[str, str] = {}
    dataset = open_data(data, skip_bad=skip_bad, progress=progress)
    for name in dataset.splits:
        split = dataset.split(name)
        for i in range(len(split)):
            if (sentence := split.sentence(i)) is not None:  # else they are withheld
                where_from.setdefault(spoken(sentence), f"{data}: {trial_name(split, i)}")
    return where_from


def sentences_of_text(path: Path) -> dict[str, str]:
    """Return the distinct lines of a text, each with its first line number; skip blank lines.

    Raises TextError for a file that cannot be read.
    """
    path = as_path(path, "path")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise TextError(
            f"cannot be read: {error.strerror}", where=path, fix="give a file of text"
        ) from None
    except UnicodeDecodeError:
        raise TextError("is not UTF-8 text", where=path, fix="save it as UTF-8") from None
    where_from: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if text := spoken(line):
            where_from.setdefault(text, f"{path} line {number}")
    return where_from


def _named(sentences: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Return the distinct sentences with their origins."""
    if not isinstance(sentences, Mapping):
        where_from: dict[str, str] = {}
        for number, text in enumerate(check_list(sentences, "sentences", "a list of texts"), 1):
            check_text(text, f"sentence {number}")
            where_from.setdefault(spoken(text), f"sentence {number}")
        return where_from
    for text in sentences:
        check_text(text, "a sentence")
    return {spoken(text): place for text, place in sentences.items()}


def _unspeakable(named: dict[str, str], voice: Voice, skip_bad: bool) -> list[str]:
    """Remove the sentences that cannot be spoken from `named`; return them with their origins.

    Raises TextError without `skip_bad`.
    """
    bad = [text for text in named if not voice.can_speak(text)]
    if bad and not skip_bad:
        more = f" (and {len(bad) - 1} more sentences)" if len(bad) > 1 else ""
        foreign = any(character.isalnum() for character in bad[0])
        why = "it reads none of its letters and digits" if foreign else "there is no word in it"
        problem = f"{bad[0]!r} cannot be spoken by {voice.name}: {why}{more}"
        other = (
            "write it in words that the voice reads, or give another (--voice)"
            if foreign
            else "correct it"
        )
        raise TextError(
            problem,
            where=named[bad[0]],
            fix=f"{other}, or leave such sentences out with --skip-bad",
        )
    left_out = [f"{named.pop(text)}: {text!r}" for text in bad]
    if not named:
        raise TextError("there is no sentence to speak", fix="give data with sentences, or a text")
    return left_out


def _workers(wanted: int | None, n_texts: int) -> int:
    """Return the number of processes that speak."""
    return (
        min(available_cores() - 1, n_texts // _PER_WORKER)
        if wanted is None
        else min(wanted, n_texts)
    )
