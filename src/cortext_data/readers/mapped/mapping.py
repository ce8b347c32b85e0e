"""Mapping files: which parts of any lab's NWB or MATLAB files are features, sentences and blocks.

A mapping is a YAML file that a person edits; `cortext import FORMAT FILE --inspect --mapping NEW`
writes a first one. Every key is a field of a dataclass below, and unknown keys are errors.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Literal, TypeVar

from cortext.arguments import as_path
from cortext.config import from_mapping, read_mapping, to_mapping
from cortext.data.conventions import checked_bin_ms
from cortext.data.trial import SPLITS
from cortext.errors import ConfigError, TextError
from cortext.files import is_plain_name
from cortext.text.inventory import INVENTORIES, Inventory, read_inventory
from cortext.text.language import LANGUAGES, Language, read_language
from cortext.text.lexicon import Lexicon
from cortext.text.pronunciation import pronouncer

FORMAT = "cortext-mapping"
FORMAT_VERSION = 1
UNITS = "units"
"""Name of the features that are spikes of the table of units, to be binned."""
_MOST_TEXT = 20_000  # characters of a sentence; files have at most half as many
_MOST_COLUMNS = 16_384
M = TypeVar("M", bound="AnyMapping")


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Some features, which stand beside those before them in the list.

    Attributes:
        name: Path of a series, or `units` (NWB); a variable (MATLAB).
        kind: `counts` are summed where bins are joined, the mean is taken of `power`.
        columns: Columns to read, counted from 0, such as `0-127` or `[0, 5, 9]`; all by default.
            Of `units`: their rows.
        arrays: Arrays whose columns are read, by `group_name` of the electrodes (NWB).
        bin_ms: Length of a bin in the file in milliseconds; that of a series with a rate is known.
            The mapping's by default.
    """

    name: str
    kind: Literal["counts", "power"]
    columns: int | str | list[int] | None = None
    arrays: list[str] | None = None
    bin_ms: float | None = None

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        self.numbers()
        if self.columns is not None and self.arrays is not None:
            raise ConfigError(f"{self.name} has columns and arrays", fix="give one of them")
        if self.arrays == []:
            raise ConfigError(f"{self.name} has arrays without a name", fix="name one, or none")
        if self.bin_ms is not None and not 0.001 <= self.bin_ms <= 1000:
            raise ConfigError(
                f"bin_ms of {self.name} is {self.bin_ms:g}; 0.001 to 1,000 ms are possible"
            )

    @property
    def is_counts(self) -> bool:
        """True for counts, which are summed where bins are joined."""
        return self.kind == "counts"

    def numbers(self) -> list[int] | None:
        """Return the columns, each once; None for all."""
        if self.columns is None:
            return None
        listed: list[int] = []
        texts = self.columns if isinstance(self.columns, list) else str(self.columns).split(",")
        for text in map(str, texts):
            match = re.fullmatch(r"\s*(\d{1,6})\s*(?:-\s*(\d{1,6})\s*)?", text)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if last < first or last >= _MOST_COLUMNS:
                raise ConfigError(
                    f"columns of {self.name} are {self.columns!r:.60}; numbers from 0 such as"
                    " '0-127, 130' are needed"
                )
            listed += range(first, last + 1)
        if len(set(listed)) < len(listed) or not listed:
            raise ConfigError(f"columns of {self.name} name none, or one of them twice")
        return listed


@dataclass(frozen=True, slots=True, kw_only=True)
class NwbTrials:
    """The table that lists the trials of an NWB file.

    Attributes:
        table: Path of the table.
        start: Column with the time of the first bin, in seconds.
        stop: Column with the time of the end, in seconds.
        stop_bin: Whether the bin at the time of the end belongs to the trial.
    """

    table: str = "intervals/trials"
    start: str = "start_time"
    stop: str = "stop_time"
    stop_bin: Literal["included", "excluded"] = "excluded"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatTrials:
    """The way in which variables of a MATLAB file hold trials.

    Attributes:
        layout: `cells`: a cell array of [T, C], one cell a trial. `cube`: [n, T, C]. `epochs`: a
            continuous [T, C].
        lengths: Variable with the number of bins of each trial of a cube.
        epochs: Variable [n, 2] with the first and last bin of each trial, counted from 1.
        stop_bin: Whether the last bin of an epoch belongs to the trial.
    """

    layout: Literal["cells", "cube", "epochs"]
    lengths: str | None = None
    epochs: str | None = None
    stop_bin: Literal["included", "excluded"] = "included"

    def __post_init__(self) -> None:
        """Check that the layout has the variable that it needs, and no other."""
        for key, layout in (("lengths", "cube"), ("epochs", "epochs")):
            given = getattr(self, key) is not None
            if given != (self.layout == layout):
                if given:
                    raise ConfigError(
                        f"trials.{key} is given", fix=f"leave it out: only layout {layout!r} has it"
                    )
                raise ConfigError(
                    f"trials.{key} is missing", fix=f"layout {layout!r} needs it: name a variable"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockNumbers:
    """The number of each trial's block.

    Attributes:
        name: Column (NWB) or variable (MATLAB).
        per: `trial`, or `bin` for a variable [T] beside continuous features.
    """

    name: str
    per: Literal["trial", "bin"] = "trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRule:
    """The split of each trial: by a column, or the last blocks of each session for validation.

    Attributes:
        name: Column (NWB) or variable (MATLAB).
        train: Its values that mean training.
        val: Its values that mean validation.
        test: Its values that mean test; such trials need no sentence.
        leave_out: Its values of trials that are not read.
        val_blocks: Number of blocks at the end of each session for validation; all others are for
            training.
    """

    name: str | None = None
    train: list[str | int | float | bool] = field(default_factory=list)
    val: list[str | int | float | bool] = field(default_factory=list)
    test: list[str | int | float | bool] = field(default_factory=list)
    leave_out: list[str | int | float | bool] = field(default_factory=list)
    val_blocks: int | None = None

    def __post_init__(self) -> None:
        """Check that one of the two ways is given, and no value twice."""
        if (self.name is None) == (self.val_blocks is None):
            raise ConfigError("split needs either name or val_blocks")
        values = [key(value) for each in (*SPLITS, "leave_out") for value in getattr(self, each)]
        if self.name is None and values:
            raise ConfigError("split has values and no name", fix="name the column they are of")
        if self.name is not None and not values:
            raise ConfigError("split has no values", fix="give train, val or test a list of values")
        for value in values:
            if values.count(value) > 1:
                raise ConfigError(f"split has the value {value!r} twice")
        if self.val_blocks is not None and self.val_blocks < 1:
            raise ConfigError(f"split.val_blocks is {self.val_blocks}; at least 1 is needed")

    def of(self, value: Any) -> str | None:
        """Return the split that a value of the column means, or `leave_out`; None for none."""
        for split in (*SPLITS, "leave_out"):
            if key(value) in map(key, getattr(self, split)):
                return split
        return None


def key(value: Any) -> str:
    """Return a value of a mapping, or of a file's column, in the form in which both compare."""
    if isinstance(value, str):
        return value.strip()
    number = float(value)
    return str(int(number)) if number.is_integer() else repr(number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sentences:
    """The prompt of each trial.

    Attributes:
        name: Column (NWB) or variable (MATLAB): texts, or numbers of `cues`.
        cues: The cues that numbers name: a variable (MATLAB) or a list.
        first_cue: Number of the first cue.
        replace: Replacements by the text that they replace, such as `">": " "`, in this order.
        leave_out: Sentences, as the file has them, of trials that are not read.
    """

    name: str
    cues: str | list[str] | None = None
    first_cue: int = 1
    replace: dict[str, str] = field(default_factory=dict)
    leave_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the replacements."""
        if "" in self.replace:
            raise ConfigError("sentence.replace replaces an empty text")

    def prompt(self, text: str) -> str:
        """Return a sentence of the file with everything replaced."""
        for old, new in self.replace.items():
            if len(text) + text.count(old) * len(new) > _MOST_TEXT:
                raise ConfigError(
                    f"sentence.replace makes a sentence of more than {_MOST_TEXT:,} characters"
                )
            text = text.replace(old, new)
        return text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionNames:
    """Dates of MATLAB files, which have none inside.

    Attributes:
        date: The form of the date in a file's or folder's name, such as `YYYY.MM.DD` or `YYMMDD`.
        files: Dates as `YYYY-MM-DD` by file, for names without one.
    """

    date: str = "YYYY.MM.DD"
    files: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the form and the dates."""
        if sorted(re.findall("YYYY|YY|MM|DD", self.date)) not in (
            ["DD", "MM", "YYYY"],
            ["DD", "MM", "YY"],
        ):
            raise ConfigError(
                f"session.date is {self.date!r:.60}; a form such as YYYY.MM.DD, YYYYMMDD or YYMMDD"
                " is needed"
            )
        for name, text in self.files.items():
            if not (re.fullmatch(r"\d{4}-\d\d-\d\d", text) and _date(*map(int, text.split("-")))):
                raise ConfigError(
                    f"session.files has {text!r:.40} for {name}; a date such as 2025-03-14 is"
                    " needed"
                )

    def date_of(self, path: PurePath) -> datetime.date | None:
        """Return the date of a file, by its path within the source; None without one.

        The last date counts, so that the file's own name comes before its folders'.
        """
        for name, text in self.files.items():
            if path.parts[-len(PurePath(name).parts) :] == PurePath(name).parts:
                return datetime.date.fromisoformat(text)
        pattern = re.sub(
            "YYYY|YY|MM|DD",
            lambda place: rf"(?P<{place[0][0]}>\d{{{len(place[0])}}})",
            re.escape(self.date),
        )
        for part in reversed(path.parts):
            dates = [
                day
                for match in re.finditer(rf"(?<!\d){pattern}(?!\d)", part)
                if (day := _date(*(int(match[place]) for place in "YMD")))
            ]
            if dates:
                return dates[-1]
        return None


def _date(year: int, month: int, day: int) -> datetime.date | None:
    try:
        return datetime.date(year if year > 99 else 2000 + year, month, day)
    except ValueError:
        return None


@dataclass(frozen=True, kw_only=True)
class AnyMapping:
    """Keys that mappings of both formats have.

    Attributes:
        bin_ms: Length of the bins that trials get in milliseconds, 5 to 50.
        features: Features, in the order in which they are joined.
        sentence: The prompts; only test trials need none.
        block: Blocks; without them every file is a block.
        split: Splits; without them all trials are for training.
        language: Name of a language, or its file.
        inventory: Name of an inventory, or its file.
        lexicon: File of pronunciations for an inventory of one's own.
    """

    bin_ms: float
    features: list[Feature]
    sentence: Sentences | None = None
    block: BlockNumbers | None = None
    split: SplitRule | None = None
    language: str = "en"
    inventory: str = "arpabet"
    lexicon: str | None = None

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        checked_bin_ms(self.bin_ms)
        if not self.features:
            raise ConfigError("features is empty; at least one is needed")
        if self.sentence is None and (self.split is None or self.split.name is None):
            raise ConfigError(
                "missing key sentence; only trials of the split test need no sentence"
            )

    def bin_ms_of(self, feature: Feature) -> float:
        """Return the length of a feature's bins in the file, unless the file says another."""
        return self.bin_ms if feature.bin_ms is None else feature.bin_ms

    def texts(self, folder: Path) -> tuple[Inventory, Language, Lexicon | None]:
        """Return tokens, language and pronunciations; files lie beside the mapping.

        Raises ConfigError where tokens need a lexicon, and TextError for files that are no such
        thing.
        """

        def place(given: str, known: Sequence[str]) -> str | Path:
            return given if given in known else folder / given

        inventory = read_inventory(place(self.inventory, tuple(INVENTORIES)))
        language = read_language(place(self.language, tuple(LANGUAGES)))
        if self.lexicon is None:
            try:
                pronouncer(inventory, language)
            except TextError as error:  # once, and not for each trial
                fix = "name a file of pronunciations as lexicon, or an inventory of characters"
                raise ConfigError(error.what, fix=fix) from None
            return inventory, language, None
        return (
            inventory,
            language,
            Lexicon.read(folder / self.lexicon, inventory, closed=False, language=language),
        )


@dataclass(frozen=True, kw_only=True)
class NwbMapping(AnyMapping):
    """Mapping of NWB files; sessions are named after the participant and `session_start_time`.

    Attributes:
        participant: Participant in the sessions' names; the file's subject by default.
        trials: The table of trials.
    """

    participant: str | None = None
    trials: NwbTrials = field(default_factory=NwbTrials)

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        super().__post_init__()
        if self.participant is not None:
            _check_participant(self.participant)
        if self.block is not None and self.block.per == "bin":
            raise ConfigError("block.per is 'bin'; NWB files have blocks per trial")
        if self.sentence is not None and isinstance(self.sentence.cues, str):
            raise ConfigError("sentence.cues is a text; a list of cues is needed")


@dataclass(frozen=True, kw_only=True)
class MatMapping(AnyMapping):
    """Mapping of MATLAB files.

    Attributes:
        participant: Participant in the sessions' names.
        trials: How variables hold trials.
        session: Dates of the files.
    """

    participant: str
    trials: MatTrials
    session: SessionNames = field(default_factory=SessionNames)

    def __post_init__(self) -> None:
        """Check what the types do not say."""
        super().__post_init__()
        _check_participant(self.participant)
        if any(feature.arrays is not None for feature in self.features):
            raise ConfigError("arrays are names of NWB's electrodes", fix="give columns")
        if self.trials.layout != "epochs":
            if self.block is not None and self.block.per == "bin":
                raise ConfigError("block.per is 'bin'; only layout 'epochs' has continuous bins")
        elif len({self.bin_ms_of(feature) for feature in self.features}) > 1:
            raise ConfigError(
                "features of one layout 'epochs' have different bin_ms; epochs count bins of one"
                " length"
            )

    def variables(self) -> tuple[str, ...]:
        """Return the variables that the mapping names, each once."""
        names: list[str | None] = [feature.name for feature in self.features]
        names += [self.trials.lengths, self.trials.epochs]
        names += [part.name for part in (self.sentence, self.block, self.split) if part]
        if self.sentence is not None and isinstance(self.sentence.cues, str):
            names.append(self.sentence.cues)
        return tuple(dict.fromkeys(name for name in names if name is not None))


def _check_participant(name: str) -> None:
    if not is_plain_name(name):
        raise ConfigError(f"participant is {name!r:.60}; a plain name such as t99 is needed")


def session_name(participant: str, day: datetime.date) -> str:
    """Return the name of a session, such as `t99.2025.03.14`."""
    return f"{participant}.{day:%Y.%m.%d}"


def load_mapping(path: Path, cls: type[M], reader: str) -> M:
    """Read a mapping file.

    Args:
        path: The YAML file.
        cls: `NwbMapping` or `MatMapping`.
        reader: `nwb` or `mat`, which the file must name.

    Raises:
        ConfigError: Naming the file and the key.
    """
    path = as_path(path, "mapping")
    values = read_mapping(path)
    kind, version = values.pop("format", None), values.pop("format_version", None)
    if kind != FORMAT or version != FORMAT_VERSION or isinstance(version, bool):
        raise ConfigError(
            f"format is {kind!r:.40} and format_version {version!r:.40}; {FORMAT!r} and"
            f" {FORMAT_VERSION} are needed",
            where=path,
            fix="--inspect --mapping NEW.yaml writes a mapping to edit",
        )
    given = values.pop("reader", None)
    if given != reader:
        raise ConfigError(f"reader is {given!r:.40}; {reader!r} is needed", where=path)
    return from_mapping(cls, values, where=path)


def import_settings(mapping: AnyMapping, folder: Path) -> dict[str, Any]:
    """Return what a continued import must have again: mapping and content of the lexicon."""
    settings: dict[str, Any] = {"mapping": to_mapping(mapping)}
    if mapping.lexicon is not None:
        content = (folder / mapping.lexicon).read_bytes()  # `texts` has read and bounded it
        settings["lexicon"] = hashlib.sha256(content).hexdigest()
    return settings
