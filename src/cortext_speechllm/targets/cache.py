"""The audio tower's output for each sentence, on the disk: made once, read by every training.

A cache is one safetensors file. Each sentence is a tensor, float16 [N, A], under the SHA-256 of its
text. The metadata name the audio model and the voice. Half precision keeps three digits, which is
enough for features near 1.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from cortext.arguments import as_path
from cortext.errors import DataError
from cortext.models.storage import write_tensors

FORMAT, VERSION = "cortext audio targets", "1"
MAKE = "make one with `cortext speech-llm cache`"
AGAIN = "copy it again, or delete it and make it again"
_DIGITS, _SHOWN = 8, 12


@dataclass(frozen=True)
class TargetOrigin:
    """Models that made the targets of a cache; targets of other models cannot be mixed in.

    Attributes:
        audio_llm, revision: Name or directory of the audio language model, and revision of its
            weights.
        voice, voice_revision: Name and revision of the voice.
        width: A, numbers per frame.
        frame_ms: Time from frame to frame.
    """

    audio_llm: str
    revision: str
    voice: str
    voice_revision: str
    width: int
    frame_ms: float

    def metadata(self) -> dict[str, str]:
        """Return the metadata of a file."""
        return {name: str(value) for name, value in asdict(self).items()}

    @classmethod
    def of(cls, metadata: Mapping[str, str]) -> TargetOrigin:
        """Read the origin in metadata. Raises KeyError or ValueError where there is none."""
        raw = {field.name: metadata[field.name] for field in fields(cls)}
        return cls(**{**raw, "width": int(raw["width"]), "frame_ms": float(raw["frame_ms"])})  # type: ignore[arg-type]


def spoken(text: str) -> str:
    """Return a sentence as it is spoken: single blanks between words, none at the ends."""
    return " ".join(text.split())


def text_key(text: str) -> str:
    """Return the name of a sentence's tensor."""
    return hashlib.sha256(spoken(text).encode()).hexdigest()


def write_targets(path: Path, targets: Mapping[str, torch.Tensor], origin: TargetOrigin) -> None:
    """Write a file of targets, whole or not at all.

    Targets are copied one after the other: views of mapped files are never all in memory.

    Args:
        path: The file.
        targets: Float16 [N, A] by `text_key`.
        origin: Models that made them.

    Raises:
        RunError: For a full disk.
    """
    checksums = "".join([_checksum(targets[key]) for key in sorted(targets)])
    write_tensors(
        path,
        targets,
        {"format": FORMAT, "version": VERSION, **origin.metadata(), "checksums": checksums},
    )


def _checksum(target_NA: torch.Tensor) -> str:
    return f"{zlib.crc32(target_NA.contiguous().numpy().data):0{_DIGITS}x}"


class TargetCache:
    """Targets of sentences, mapped into memory: only requested targets are read.

    Attributes:
        path: The file.
        origin: Models that made it.
    """

    def __init__(self, path: str | Path) -> None:
        """Raises DataError for a file that is missing, damaged, or no cache."""
        self.path = as_path(path, "path")
        try:
            file: Any = safe_open(self.path, framework="pt")
            metadata = dict(file.metadata() or {})
            keys = sorted(file.keys())
        except FileNotFoundError:
            raise DataError(
                "there is no such cache of audio targets", where=self.path, fix=MAKE
            ) from None
        except (SafetensorError, OSError) as error:
            raise DataError(
                f"cannot be read as a cache of audio targets ({error})", where=self.path, fix=AGAIN
            ) from None
        if metadata.get("format") != FORMAT or metadata.get("version") != VERSION:
            problem = "is no cache of audio targets of this version of the format"
            raise DataError(problem, where=self.path, fix=f"give another file, or {MAKE}")
        self._file = file
        try:
            self.origin = TargetOrigin.of(metadata)
            checksums = metadata["checksums"]
            self._checksums = {
                key: checksums[_DIGITS * i : _DIGITS * (i + 1)] for i, key in enumerate(keys)
            }
            self._n_frames = {key: self._length(key) for key in keys}
        except (KeyError, ValueError):
            raise DataError("is damaged", where=self.path, fix=AGAIN) from None
        self._sound: set[str] = set()

    @classmethod
    def open(
        cls, path: str | Path, revision: str | None = None, width: int | None = None
    ) -> TargetCache:
        """Open the cache in a file.

        Args:
            path: The file.
            revision: Expected revision of the audio model; None for any.
            width: Expected width of its frames; None for any.

        Raises:
            DataError: For a file that cannot be read, or was made with another model.
        """
        cache = cls(path)
        fix = f"{MAKE} for this model, or train with the one that it was made with"
        cache.check(fix, revision=revision)
        if width is not None and width != cache.origin.width:
            problem = f"has {cache.origin.width} numbers per frame, and the audio LLM has {width}"
            raise DataError(problem, where=cache.path, fix=fix)
        return cache

    def check(
        self, fix: str, revision: str | None = None, voice_revision: str | None = None
    ) -> None:
        """Raise DataError where the cache was made with another audio LLM or voice.

        Names are not compared: models move.

        Args:
            fix: Advice of the error message.
            revision: Expected revision of the audio LLM; None for any.
            voice_revision: Expected revision of the voice; None for any.
        """
        for kind, name, made, wanted in (
            ("audio LLM", self.origin.audio_llm, self.origin.revision, revision),
            ("voice", self.origin.voice, self.origin.voice_revision, voice_revision),
        ):
            if wanted is not None and wanted != made:
                problem = (
                    f"was made with the {kind} {name} at revision {made[:_SHOWN]}, and this one is"
                    f" {wanted[:_SHOWN]}"
                )
                raise DataError(problem, where=self.path, fix=fix)

    def __len__(self) -> int:
        return len(self._n_frames)

    def __contains__(self, text: str) -> bool:
        return text_key(text) in self._n_frames

    def __reduce__(self) -> tuple[Any, ...]:
        return TargetCache, (self.path,)  # another process maps the file itself

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about the cache for a result file."""
        return {
            "cache": str(self.path),
            "sentences": len(self),
            "minutes": round(sum(self._n_frames.values()) * self.origin.frame_ms / 60_000, 2),
            "bytes": self.path.stat().st_size,
            **asdict(self.origin),
        }

    def missing(self, sentences: Iterable[str]) -> list[str]:
        """Return the distinct sentences that the cache lacks, in their order."""
        return [text for text in dict.fromkeys(map(spoken, sentences)) if text not in self]

    def n_frames(self, text: str) -> int:
        """Return the number of frames of a sentence. Raises DataError for an unknown one."""
        return self._n_frames[self._key(text)]

    def features(self, sentences: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return targets float32 [B, N, A], zero-padded, and the frames of each, int64 [B].

        Raises:
            DataError: For a sentence that is missing, or whose target is damaged.
        """
        keys = [self._key(text) for text in sentences]
        return padded([self.target(key) for key in keys], self.origin.width)

    def target(self, key: str) -> torch.Tensor:
        """Return the target under one of `keys`: float16 [N, A], a view of the file.

        Its checksum is verified the first time. Raises DataError for a damaged target.
        """
        target_NA: torch.Tensor = self._file.get_tensor(key)
        if key not in self._sound:
            if _checksum(target_NA) != self._checksums[key]:
                raise DataError(
                    "is damaged: a target has not the checksum of what was written",
                    where=self.path,
                    fix=AGAIN,
                )
            self._sound.add(key)
        return target_NA

    def verify(self) -> None:
        """Verify all targets. Raises DataError for a damaged one."""
        for key in self._n_frames:
            self.target(key)

    def keys(self) -> list[str]:
        """Return the `text_key` of every sentence, ascending."""
        return list(self._n_frames)

    def _key(self, text: str) -> str:
        if (key := text_key(text)) not in self._n_frames:
            fix = (
                "give these sentences to `cortext speech-llm cache` with the same --out, which adds"
                " them"
            )
            raise DataError(f"has no audio of {spoken(text)!r}", where=self.path, fix=fix)
        return key

    def _length(self, key: str) -> int:
        """Return the frames of a tensor. Raises ValueError for one that is no target."""
        stored = self._file.get_slice(key)
        shape = stored.get_shape()
        if (
            stored.get_dtype() != "F16"
            or len(shape) != 2
            or shape[1] != self.origin.width
            or not shape[0]
        ):
            raise ValueError(shape)
        return int(shape[0])


def padded(targets: Sequence[torch.Tensor], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad targets [N, A] to one tensor.

    Returns:
        Float32 [B, N, A], zero-padded, and the frames of each target, int64 [B].
    """
    n_frames_B = torch.tensor([len(target_NA) for target_NA in targets], dtype=torch.int64)
    target_BNA = torch.zeros(len(targets), max(map(len, targets), default=0), width)
    for row_NA, target_NA in zip(target_BNA, targets, strict=True):
        row_NA[: len(target_NA)] = target_NA
    return target_BNA, n_frames_B
