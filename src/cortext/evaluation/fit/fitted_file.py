"""A file of a run that holds a fit to it, and the model that it was fitted to.

Such files are `decoder.yaml`, `confidence.yaml` and the live gate's `gate.yaml`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict

import yaml

from cortext import __version__
from cortext.config import from_mapping, read_mapping, to_mapping
from cortext.decoding.ngram.language_model import language_model_checksum
from cortext.errors import ConfigError, CortextError, RunError
from cortext.files import atomic_write

FORMAT_VERSION = 1


@dataclass(frozen=True)
class FittedWith:
    """The language model that something was fitted with.

    Attributes:
        path: Its directory, for the record: a copy elsewhere is the same model.
        checksum: See `language_model_checksum`.
    """

    path: str
    checksum: str

    @classmethod
    def of(cls, lm: str | Path) -> FittedWith:
        """Return the record of a language-model directory."""
        return cls(str(lm), language_model_checksum(lm))

    def is_same(self, lm: str | Path) -> bool:
        """Tell whether a directory holds this language model."""
        return self.checksum == language_model_checksum(lm)


class Made(TypedDict):
    """The fields that tell to which weights, when and by which cortext something was fitted."""

    weights: str | None
    created: str
    version: str


class FittedFile:
    """The contents of a file that is fitted to a run; its kinds are frozen dataclasses.

    The fields of a kind are the keys of its file. This class only names those that all kinds have:
    a dataclass puts inherited fields first, and the order of the fields is that on disk.

    Attributes:
        FILE: Name of the file.
        NAME: Name of the fitted values, for messages.
        HEADER: First line of the file.
        AGAIN: What to do about a damaged file.
        weights: Checksum of the run's weights; None where it is not known.
        created: Time of the fit (UTC).
        version: Version of cortext.
        format_version: Version of the format.
    """

    FILE: ClassVar[str]
    NAME: ClassVar[str]
    HEADER: ClassVar[str]
    AGAIN: ClassVar[str] = "fit anew with `cortext evaluate --fit`, or delete the file"
    weights: str | None
    created: str
    version: str
    format_version: int

    def __post_init__(self) -> None:
        if self.format_version != FORMAT_VERSION:
            raise ConfigError(f"format_version is {self.format_version}, not {FORMAT_VERSION}")

    @classmethod
    def read(cls, run: str | Path) -> Self | None:
        """Return the fit of a run; None where there is none.

        Raises:
            ConfigError: For a file that is damaged, with what to do.
        """
        path = Path(run) / cls.FILE
        # A link that leads nowhere is damage: the user expects the file behind it.
        return cls.read_file(path) if path.exists() or path.is_symlink() else None

    @classmethod
    def read_file(cls, path: Path) -> Self:
        """Return the contents of such a file, wherever it is.

        Raises:
            ConfigError: For a file that is missing or damaged, with what to do.
        """
        try:
            return from_mapping(cls, read_mapping(path), where=path)
        except CortextError as error:
            raise ConfigError(error.what, where=path, fix=cls.AGAIN) from None

    @classmethod
    def read_sound(cls, run: str | Path) -> Self | None:
        """Return the fit of a run; None where there is none, or the file is damaged."""
        try:
            return cls.read(run)
        except ConfigError:
            return None

    def write(self, run: str | Path) -> None:
        """Write the file of a run, whole or not at all.

        Raises:
            RunError: Where it cannot be written; an earlier file stays.
        """
        # The version first: whoever opens the file sees at once whether the rest can be understood.
        content = {"format_version": self.format_version} | self._content()
        text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
        atomic_write(Path(run) / self.FILE, f"{self.HEADER}\n{text}".encode())

    def _content(self) -> dict[str, Any]:
        return to_mapping(self)

    @classmethod
    def take_over(cls, source: str | Path, run: str | Path) -> Self | None:
        """Keep in a run the fit of another one, which it was adapted from.

        Returns:
            The kept fit; None where nothing was fitted to the other run, its file is damaged, or
            nothing of it holds for the adapted run.

        Raises:
            RunError: Where it cannot be written.
        """
        # Damage at the source is no fault of the adapted run, which does without.
        fitted = cls.read_sound(source)
        adapted = None if fitted is None else fitted._adapted(source, run)
        if adapted is not None:
            adapted.write(run)
        return adapted

    def _adapted(self, source: str | Path, run: str | Path) -> Self | None:
        """Return the part that holds for a run adapted from its source; a kind may know of none."""
        return None

    @classmethod
    def drop(cls, run: str | Path) -> None:
        """Remove the file of a run, which belongs to what the run was before.

        Raises:
            RunError: Where it cannot be removed.
        """
        path = Path(run) / cls.FILE
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            problem = f"the old {cls.NAME} cannot be removed: {error.strerror}"
            raise RunError(problem, where=path, fix="remove it") from None

    def belongs_to(self, run: str | Path) -> bool:
        """Tell whether it was fitted to the weights that a run has now."""
        return self.weights == weights_checksum(run)


def made_now(run: str | Path) -> Made:
    """Return the fields of something that has just been fitted to a run."""
    return Made(
        weights=weights_checksum(run),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
    )


def weights_checksum(run: str | Path) -> str | None:
    """Return the checksum that a run's weights were written with; None where there is none."""
    # Here, because it needs torch: the command line reads options without waiting for it.
    from cortext.models.storage import read_metadata

    # Out of the file's header: the weights themselves, up to gigabytes, are not read.
    return read_metadata(Path(run) / "model.safetensors").get("crc32")
