"""The utterances that decoder options are tuned on and judged by, and what makes two searches
the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cortext.config import to_mapping
from cortext.decoding.ngram.language_model import MODELS
from cortext.decoding.options import DecoderOptions
from cortext.errors import ConfigError, DataError, RunError
from cortext.evaluation.cluster import DecoderFiles
from cortext.files import atomic_write, read_json
from cortext.tables import json_text
from cortext.tuning.decoder_search import DecoderSearch
from cortext.tuning.decoder_trial import DevSet
from cortext.tuning.directory import ANOTHER, make, refuse_another, refuse_strangers
from cortext.tuning.space import Space, space_to_json

FORMAT_VERSION = 1
LM_FILES = ("lexicon.txt", "tokens.txt", *MODELS)
"""What of a language-model directory decides what is found."""
FILES = {
    "study.json",
    "study.db",
    "trials.csv",
    "trials.png",
    "options.yaml",
    "lists.jsonl",
    "sweep.csv",
}
"""What may be in a search directory, beside evaluations of runs (`eval-SPLIT`) and notes of
errors.
"""


@dataclass(frozen=True)
class Part:
    """Some utterances of an evaluation directory.

    places: in its `DevSet`
    """

    name: str
    material: DevSet
    places: tuple[int, ...]

    @property
    def references(self) -> list[str]:
        """Their normalised references."""
        return [self.material.utterances[place].reference for place in self.places]

    @property
    def lengths(self) -> list[int]:
        """Words of each reference."""
        return [len(reference.split()) for reference in self.references]

    @property
    def n_words(self) -> int:
        """Words of all references."""
        return sum(self.lengths)

    def shuffled(self, seed: int) -> Part:
        """The same in another order."""
        return replace(
            self, places=tuple(np.random.default_rng(seed).permutation(self.places).tolist())
        )

    def first(self, n: int | None) -> Part:
        """The first of them, or all."""
        return replace(self, places=self.places[:n])


def tuning_parts(directory: Path, held_out: float | Path, seed: int) -> tuple[Part, Part | None]:
    """The utterances to tune on, and those that are held out.

    A share of the directory's, or another directory's.

    Utterances of one sentence stay together. Raises ConfigError where a part would be left without
    any.
    """
    material = DevSet.read(directory)
    everything = tuple(range(len(material.utterances)))
    if isinstance(held_out, Path):
        other = DevSet.read(held_out)
        if other.directory == material.directory:
            raise ConfigError(
                f"{held_out} is both tuned on and held out",
                fix="name two evaluations, or a fraction",
            )
        return Part("tuned", material, everything), Part(
            "held out", other, tuple(range(len(other.utterances)))
        )
    if not 0 <= held_out < 1:
        raise ConfigError(f"held_out is {held_out:g}; at least 0 and less than 1 is needed")
    if not held_out:
        return Part("tuned", material, everything), None
    sentences = sorted({utterance.reference for utterance in material.utterances})
    left: set[str] = set()
    places: list[int] = []
    for number in np.random.default_rng(seed).permutation(len(sentences)).tolist():
        if len(places) >= round(held_out * len(everything)):
            break
        left.add(sentences[number])
        places = [place for place in everything if material.utterances[place].reference in left]
    kept = tuple(place for place in everything if place not in set(places))
    if not kept or not places:
        what = f"of {len(everything)} utterances {held_out:g} cannot be held out"
        raise ConfigError(what, fix="give another fraction, or another evaluation directory")
    return Part("tuned", material, kept), Part("held out", material, tuple(places))


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
    """The evaluation directory of a run's split below `out`, made where it is not there.

    Raises:
        RunError: For one of another run or of other weights, and what `evaluate` raises.
    """
    from cortext.evaluation import evaluate

    folder = out / f"eval-{split}"
    mark = folder / "made_of.json"  # written last: an evaluation without it is not whole
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
    make(out)
    report(f"evaluating {run} on {split}")
    metrics = evaluate(run, data, split, lm, folder, options=options, device=device)
    if not metrics.n_words:
        raise DataError(
            f"split {split!r} has no references", where=data, fix="name a labelled split"
        )
    atomic_write(mark, json_text(now, indent=1).encode())
    return folder


def _weights(run: Path) -> str | None:
    """Checksum of a run's weights; None where `evaluate` will say what is missing."""
    file = run / "model.safetensors"
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]


def describe(
    tuned: Part,
    held_out: Part | None,
    decoder: DecoderFiles,
    context: str,
    space: Space,
    search: DecoderSearch,
) -> dict[str, Any]:
    """What makes two searches the same.

    How many options are tried and given does not, so that a search can go on.

    Nor does a large model that only ranks in the end.
    """
    llm = None
    if decoder.llm is not None and decoder.options.llm.mode == "fusion":
        llm = {**decoder.llm.to_json(), "context": context}
    parts = {
        part.name: {"utterances": part.material.checksum, "places": len(part.places)}
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
        "engine": decoder.engine,
        "language_model": {
            name: _ends(decoder.lm / name) for name in LM_FILES if (decoder.lm / name).is_file()
        },
        "llm": llm,
        **parts,
    }


def _ends(file: Path) -> str:
    """Size and checksum of the first and last MiB.

    A large n-gram is not read through for each command.
    """
    size = file.stat().st_size
    with file.open("rb") as opened:
        digest = hashlib.sha256(opened.read(2**20))
        opened.seek(max(0, size - 2**20))
        digest.update(opened.read())
    return f"{size} bytes, {digest.hexdigest()[:16]}"


def check_directory(out: Path, description: Mapping[str, Any]) -> None:
    """Write `study.json`, or raise RunError where another search, or something else, is there."""
    file, now = out / "study.json", json.loads(json.dumps(dict(description)))
    if not file.is_file():
        refuse_strangers(out, _is_ours)
        content = {"format_version": FORMAT_VERSION, "description": now}
        atomic_write(file, f"{json_text(content, indent=1)}\n".encode())
        return
    try:
        content = read_json(file)
        if content["format_version"] != FORMAT_VERSION:
            raise ValueError(f"its version is {content['format_version']}, not {FORMAT_VERSION}")
        before = dict(content["description"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"the search cannot be read: {error}", where=file, fix=ANOTHER) from None
    refuse_another(out, before, now)


def _is_ours(name: str) -> bool:
    return name in FILES or name.startswith(("eval-", "study.db", "trial-", "read-"))
