"""The audio tower's output for each sentence, on the disk: made once, read by every training.

A cache is one safetensors file. Each sentence is a tensor, float16 [N, A], under the SHA-256 of its
text; the metadata say which audio model and which voice made them. Half precision keeps three
digits of features of the size of one.
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

from cortext.errors import DataError
from cortext.models.storage import write_tensors

FORMAT, VERSION = "cortext audio targets", "1"
MAKE = "make one with `cortext speech-llm cache`"
AGAIN = "copy it again, or delete it and make it again"
_DIGITS, _SHOWN = 8, 12


@dataclass(frozen=True)
class TargetOrigin:
    """Models that made the targets of a cache. Those of others have another meaning.

    Attributes:
        voice, voice_revision: What spoke the sentences, likewise.
        audio_llm, revision: The audio language model; a name or directory, and what tells its
            weights from others.
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
        found = {field.name: metadata[field.name] for field in fields(cls)}
        return cls(**{**found, "width": int(found["width"]), "frame_ms": float(found["frame_ms"])})  # type: ignore[arg-type]


def spoken(text: str) -> str:
    """A sentence as it is spoken: without blanks at its ends and with single ones between words."""
    return " ".join(text.split())


def text_key(text: str) -> str:
    """The name of a sentence's tensor."""
    return hashlib.sha256(spoken(text).encode()).hexdigest()


def write_targets(path: Path, targets: Mapping[str, torch.Tensor], origin: TargetOrigin) -> None:
    """Write targets, float16 [N, A] by `text_key`, whole or not at all.

    One after the other, wherever they lie.

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
    """Targets of sentences, mapped into memory: what is not asked for is not read.

    Attributes:
        path: The file.
        origin: What made it.
    """

    def __init__(self, path: str | Path) -> None:
        """Raises DataError for a file that is missing, damaged, or none of targets."""
        self.path = Path(path)
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
            what = "is no cache of audio targets of this version of the format"
            raise DataError(what, where=self.path, fix=f"give another file, or {MAKE}")
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
            revision: Revision of the audio model that it is to be used with; None for any.
            width: Width of that model's frames; None for any.

        Raises:
            DataError: Also where it was made with another.
        """
        cache = cls(path)
        fix = f"{MAKE} for this model, or train with the one that it was made with"
        cache.check(fix, revision=revision)
        if width is not None and width != cache.origin.width:
            what = f"has {cache.origin.width} numbers per frame, and the audio LLM has {width}"
            raise DataError(what, where=cache.path, fix=fix)
        return cache

    def check(
        self, fix: str, revision: str | None = None, voice_revision: str | None = None
    ) -> None:
        """Raise DataError where it was made with another audio LLM or voice.

        Their names do not count: models move.
        """
        for kind, name, made, wanted in (
            ("audio LLM", self.origin.audio_llm, self.origin.revision, revision),
            ("voice", self.origin.voice, self.origin.voice_revision, voice_revision),
        ):
            if wanted is not None and wanted != made:
                what = (
                    f"was made with the {kind} {name} at revision {made[:_SHOWN]}, and this one is"
                    f" {wanted[:_SHOWN]}"
                )
                raise DataError(what, where=self.path, fix=fix)

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
        """The distinct sentences that it lacks, in their order."""
        return [text for text in dict.fromkeys(map(spoken, sentences)) if text not in self]

    def n_frames(self, text: str) -> int:
        """Return the number of frames of a sentence. Raises DataError for an unknown one."""
        return self._n_frames[self._key(text)]

    def features(self, sentences: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return targets float32 [B, N, A], zero behind each end, and frames of each, int64 [B].

        Raises:
            DataError: For a sentence that is not there, or whose target is damaged.
        """
        keys = [self._key(text) for text in sentences]
        return padded([self.target(key) for key in keys], self.origin.width)

    def target(self, key: str) -> torch.Tensor:
        """Return the target under one of `keys`.

        Float16 [N, A], a view of the file, checked the first time.
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
        """Read all of it. Raises DataError for a target that is damaged."""
        for key in self._n_frames:
            self.target(key)

    def keys(self) -> list[str]:
        """`text_key` of every sentence in it, ascending."""
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
        """Frames of a tensor. Raises ValueError where it is none that was written here."""
        found = self._file.get_slice(key)
        shape = found.get_shape()
        if (
            found.get_dtype() != "F16"
            or len(shape) != 2
            or shape[1] != self.origin.width
            or not shape[0]
        ):
            raise ValueError(shape)
        return int(shape[0])


def padded(targets: Sequence[torch.Tensor], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Targets [N, A] side by side.

    Float32 [B, N, A], zero behind the end of each, and their lengths, int64 [B].
    """
    n_frames_B = torch.tensor([len(target_NA) for target_NA in targets], dtype=torch.int64)
    target_BNA = torch.zeros(len(targets), max(map(len, targets), default=0), width)
    for row_NA, target_NA in zip(target_BNA, targets, strict=True):
        row_NA[: len(target_NA)] = target_NA
    return target_BNA, n_frames_B
