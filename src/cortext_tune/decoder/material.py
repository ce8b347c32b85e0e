"""Utterances on which decoder options are tuned and judged.

Shapes: P frames, V tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cortext.arguments import as_path
from cortext.config import to_mapping
from cortext.data.conventions import Conventions
from cortext.decoding.decoder import Decoder
from cortext.decoding.log_probs import LOGITS
from cortext.decoding.nbest import NBest
from cortext.decoding.ngram.language_model import LanguageModel, file_checksums
from cortext.decoding.options import DecoderOptions
from cortext.decoding.saved import read_saved, to_log_probs
from cortext.errors import ConfigError, DataError, RunError
from cortext.evaluation.decoder_files import DecoderFiles
from cortext.evaluation.logits_origin import LogitsOrigin
from cortext.evaluation.nbest_file import NBEST
from cortext.evaluation.vocabularies import Vocabulary, decode_limited, read_vocabularies
from cortext.files import atomic_write, read_json
from cortext.tables import json_text
from cortext.text.inventory import Inventory, get_inventory
from cortext_lm.ensemble.posteriors import check_together
from cortext_lm.ensemble.sources import read_evaluations
from cortext_tune.decoder.saved_logits import SavedLogits, read_references
from cortext_tune.decoder.space import DecoderSearch
from cortext_tune.space import Space, space_to_json
from cortext_tune.study import ANOTHER, JOURNAL, make_directory, refuse_another

FILES = {JOURNAL, "trials.csv", "trials.png", "options.yaml", "lists.jsonl", "sweep.csv"}
"""Files of a search directory, beside evaluations of runs (`eval-SPLIT`) and tracebacks."""


Source = Path | SavedLogits
"""Evaluation directory, or files of logits and references."""


@dataclass(frozen=True)
class DevUtterance:
    """A trial of the recording.

    Attributes:
        id: Number in an evaluation, name in a file of logits.
        reference: Normalised sentence.
        file: File of its logits.
        name: Name of its logits in the file.
    """

    id: int | str
    reference: str
    file: Path
    name: str


@dataclass(frozen=True)
class DevSet:
    """The utterances that have a reference.

    Attributes:
        conventions: Tokens and language; of an evaluation the length of a bin, too.
    """

    source: Source
    conventions: Conventions
    utterances: tuple[DevUtterance, ...]

    @property
    def inventory(self) -> Inventory:
        """Tokens of the logits, in order."""
        return self.conventions.inventory

    def require(self, lm: LanguageModel) -> None:
        """Raise LanguageModelError unless a language model goes with the utterances."""
        source = self.source.logits if isinstance(self.source, SavedLogits) else self.source
        lm.require(self.inventory, self.conventions.language, theirs=f"the logits of {source}")

    @classmethod
    def read(cls, source: str | Source) -> DevSet:
        """Read a directory that `evaluate` wrote with a language model, or saved logits.

        Raises:
            DataError: For a directory of another kind, and for material without references.
            DecodingError: For logits that cannot be used.
        """
        if isinstance(source, SavedLogits):
            source = source.resolved()
            conventions = Conventions(get_inventory(source.order), source.language)
            utterances = list(_of_files(source, conventions.inventory))
            fix = f"give them in {source.references}"
        else:
            source = as_path(source, "source").resolve()
            utterances = list(_of_evaluation(source))
            conventions = LogitsOrigin.of(source).conventions
            fix = "evaluate a split that has references"
        if not utterances:
            where = source.references if isinstance(source, SavedLogits) else source
            raise DataError("no trial has a reference to count errors by", where=where, fix=fix)
        return cls(source, conventions, tuple(utterances))

    @cached_property
    def vocabularies(self) -> tuple[Vocabulary, ...]:
        """Vocabularies that limit some of the trials; saved logits have none."""
        return () if isinstance(self.source, SavedLogits) else read_vocabularies(self.source)

    def decode(self, decoder: Decoder, indices: Sequence[int], context: str = "") -> list[NBest]:
        """Return the n-best lists of some utterances.

        Args:
            decoder: The decoder.
            indices: Their positions in `utterances`.
            context: Earlier sentences, for a large model.
        """
        log_probs = [self.log_probs[index] for index in indices]
        names = [self.utterances[index].id for index in indices]
        return decode_limited(
            decoder, log_probs, self.inventory, self.vocabularies, names, context=context
        )

    @cached_property
    def log_probs(self) -> list[np.ndarray]:
        """Log-probabilities of each utterance, float32 [P, V]."""
        scores = self.source.scores if isinstance(self.source, SavedLogits) else LOGITS
        read = {
            file: {one.name: one.logits_PV for one in read_saved(file, self.inventory, scores)}
            for file in {utterance.file for utterance in self.utterances}
        }
        return [to_log_probs(read[one.file][one.name]) for one in self.utterances]

    @cached_property
    def checksum(self) -> str:
        """Checksum of the references, the logits and the vocabularies."""
        digest = hashlib.sha256(str(self.vocabularies or "").encode())
        read: set[Path] = set()
        for utterance in self.utterances:
            digest.update(f"{utterance.id} {utterance.reference}\n".encode())
            if utterance.file not in read:
                digest.update(utterance.file.read_bytes())
                read.add(utterance.file)
        return digest.hexdigest()[:16]


def _of_evaluation(directory: Path) -> Iterator[DevUtterance]:
    """Yield the trials of an evaluation directory that have a reference."""
    for trial in read_evaluations([directory]):
        reference = " ".join(trial.reference_words or ())
        number = int(trial.id)
        files = sorted((directory / "logits").glob(f"{number:05d}_*.npy"))
        if reference and not files:
            raise DataError(
                f"no logits of trial {number}", where=directory, fix="evaluate the run again"
            )
        if reference:
            yield DevUtterance(number, reference, files[0], files[0].stem)


def _of_files(source: SavedLogits, inventory: Inventory) -> Iterator[DevUtterance]:
    """Yield the trials of saved logits that have a reference."""
    names = [trial.name for trial in read_saved(source.logits, inventory, source.scores)]
    for name, text in zip(names, read_references(source.references, names), strict=True):
        if reference := source.language.normalize(text):
            yield DevUtterance(name, reference, source.logits, name)


def read_dev_set(source: Source) -> DevSet:
    """Return the utterances of a source; a process reads them once."""
    file = source.logits if isinstance(source, SavedLogits) else source / NBEST
    return _read_dev_set(source, file.stat().st_mtime_ns if file.is_file() else 0)


@lru_cache(maxsize=2)  # the part tuned on and the part held out
def _read_dev_set(source: Source, made_ns: int) -> DevSet:
    return DevSet.read(source)


@dataclass(frozen=True)
class UtterancePart:
    """Some utterances of an evaluation directory or of saved logits.

    Attributes:
        name: Name in `study.json`.
        material: All utterances of the source.
        indices: Positions of the part's utterances in `material`.
    """

    name: str
    material: DevSet
    indices: tuple[int, ...]

    @property
    def references(self) -> list[str]:
        """Normalised references."""
        return [self.material.utterances[index].reference for index in self.indices]

    @property
    def lengths(self) -> list[int]:
        """Number of words of each reference."""
        return [len(reference.split()) for reference in self.references]

    @property
    def n_words(self) -> int:
        """Number of words of all references."""
        return sum(self.lengths)

    def shuffled(self, seed: int) -> UtterancePart:
        """Return the same utterances in another order."""
        order = np.random.default_rng(seed).permutation(self.indices)
        return replace(self, indices=tuple(order.tolist()))

    def first(self, n: int | None) -> UtterancePart:
        """Return the first `n` utterances, or all for None."""
        return replace(self, indices=self.indices[:n])


def tuning_parts(
    source: Source, held_out: float | Path, seed: int
) -> tuple[UtterancePart, UtterancePart | None]:
    """Return the utterances to tune on, and those that are held out.

    Args:
        source: An evaluation directory, or files of logits and references.
        held_out: Share of its utterances, or another evaluation directory. All utterances of a
            sentence are in the same part.
        seed: Decides which sentences are held out.

    Raises:
        ConfigError: Where a part would be empty.
        DataError: For a directory without references or logits.
    """
    material = DevSet.read(source)
    everything = tuple(range(len(material.utterances)))
    if isinstance(held_out, Path):
        other = DevSet.read(held_out)
        if other.source == material.source:
            raise ConfigError(
                f"{held_out} is both tuned on and held out",
                fix="name two evaluations, or a fraction",
            )
        if isinstance(material.source, Path):
            check_together(material.conventions, material.source, other.conventions, held_out)
        return UtterancePart("tuned", material, everything), UtterancePart(
            "held out", other, tuple(range(len(other.utterances)))
        )
    if not 0 <= held_out < 1:
        raise ConfigError(f"held_out is {held_out:g}; at least 0 and less than 1 is needed")
    if not held_out:
        return UtterancePart("tuned", material, everything), None
    sentences = sorted({utterance.reference for utterance in material.utterances})
    chosen: set[str] = set()
    rest: list[int] = []
    for number in np.random.default_rng(seed).permutation(len(sentences)).tolist():
        if len(rest) >= round(held_out * len(everything)):
            break
        chosen.add(sentences[number])
        rest = [index for index in everything if material.utterances[index].reference in chosen]
    kept = tuple(index for index in everything if index not in set(rest))
    if not kept or not rest:
        problem = f"of {len(everything)} utterances {held_out:g} cannot be held out"
        raise ConfigError(problem, fix="give another fraction, or another evaluation directory")
    return UtterancePart("tuned", material, kept), UtterancePart("held out", material, tuple(rest))


def evaluated(
    run: Path,
    data: Path,
    split: str,
    lm: Path,
    out: Path,
    options: DecoderOptions,
    device: str,
    report: Any,
) -> Path:
    """Evaluate a run into `out/eval-SPLIT`, unless that evaluation exists.

    Args:
        run: Run directory of a model.
        data: Session files or packed data.
        split: Split of the data.
        lm: Language-model directory.
        out: The search directory.
        options: Options of the decoder.
        device: See `evaluate`.
        report: Called with a line for the user.

    Returns:
        The evaluation directory.

    Raises:
        RunError: For an evaluation of another run or of other weights.
        DataError: For a split without references, and as `evaluate` does.
    """
    from cortext.evaluation import evaluate

    folder = out / f"eval-{split}"
    mark = folder / "made_of.json"  # written last: an evaluation without it is incomplete
    now = {"run": str(run.resolve()), "data": str(data.resolve()), "weights": _weights(run)}
    if mark.is_file():
        try:
            before = read_json(mark)
        except (OSError, ValueError) as error:
            raise RunError(
                f"cannot be read: {error}", where=mark, fix=f"remove {folder}, or {ANOTHER}"
            ) from None
        refuse_another(folder, before, now)
        return folder
    make_directory(out)
    report(f"evaluating {run} on {split}")
    metrics = evaluate(run, data, split, lm, folder, options=options, device=device)
    if not metrics.n_words:
        raise DataError(
            f"split {split!r} has no references", where=data, fix="name a labelled split"
        )
    atomic_write(mark, json_text(now, indent=1).encode())
    return folder


def _weights(run: Path) -> str | None:
    """Return a checksum of a run's weights; None without weights, for which `evaluate` raises."""
    file = run / "model.safetensors"
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]


def describe(
    tuned: UtterancePart,
    held_out: UtterancePart | None,
    decoder: DecoderFiles,
    context: str,
    space: Space,
    search: DecoderSearch,
) -> dict[str, Any]:
    """Return the identity of a search, for `study.json`.

    It excludes the number of trials and the given options, which may change when a search
    continues. It also excludes a large model that only ranks in the end.

    Args:
        tuned: The utterances that options are tuned on.
        held_out: The utterances that are held out.
        decoder: The decoder with its first options.
        context: Earlier sentences, for a large model.
        space: The searched options, with their ranges.
        search: Settings of the search.
    """
    llm = None
    if decoder.llm is not None and decoder.options.llm.mode == "fusion":
        llm = {**decoder.llm.to_json(), "context": context}
    parts = {
        part.name: {"utterances": part.material.checksum, "places": len(part.indices)}
        for part in (tuned, held_out)
        if part is not None
    }
    return {
        "space": space_to_json(space),
        "seed": search.seed,
        "time_weight": search.time_weight,
        "sample": search.sample,
        "prune": search.prune,
        "options": to_mapping(decoder.options),
        "language_model": file_checksums(decoder.lm),
        "llm": llm,
        **parts,
    }


def is_search_file(name: str) -> bool:
    """Return True for a file or directory that a search for decoder options writes."""
    return name in FILES or name.startswith(("eval-", "trial-", "read-"))
