"""The verification of the public T15 data: its stages, in order."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cortext.arguments import as_path, check_text, check_type
from cortext.data.dataset import DESCRIPTION
from cortext.errors import ConfigError, first_line
from cortext.evaluation.decoder_options import options_for
from cortext.evaluation.fit.options import FittedOptions
from cortext.evaluation.settings import Options
from cortext.files import json_lines
from cortext_published.release.exchange import WEIGHTS
from cortext_published.release.reading import ARGUMENTS
from cortext_published.verification import baseline, copy_task, recordings, words
from cortext_published.verification.checks import Verification, not_checked
from cortext_published.verification.machine import machine, private_texts
from cortext_published.verification.published import COPY_TASK, Published, t15_facts
from cortext_published.verification.recordings import Parts, find_parts, session_files
from cortext_published.verification.report import write_verification
from cortext_published.verification.stages import (
    ShowStage,
    Stages,
    fingerprint,
    verification_directory,
)
from cortext_published.verification.words import Searching, Trials


def verify_t15(
    directory: str | Path,
    out: str | Path,
    *,
    lm: str | Path | None = None,
    analyses: str | Path | None = None,
    options: Options = None,
    with_text: bool = False,
    device: str = "cpu",
    threads: int | None = None,
    published: Published | None = None,
    stage: ShowStage = lambda name: None,
) -> Verification:
    """Compare the public T15 data on this machine with the published facts about them.

    Writes `out/verify.html` and `out/verify.json`, which hold no text of the data and no path of
    this machine. The other files in `out` are kept so that a second call does only the rest.

    Args:
        directory: Directory that the release was unpacked in, at any depth.
        out: Directory of the verification.
        lm: Language-model directory; without one no words are searched for.
        analyses: `t15_copyTask.pkl`; taken from `directory` if it is there.
        options: Options of the search, as `evaluate` takes them; without them they are fitted to
            the validation split, and each trial is decoded with those of the other half.
        with_text: Put the prompts and the decoded sentences into the page, too.
        device: Where the model runs: `cpu`, `cuda` or `cuda:N`.
        threads: Threads of the search; None for one a core.
        published: The facts to compare with; those of T15 by default.
        stage: Shows a stage that begins.

    Raises:
        DataError: For a directory without any part of the release, and an `out` that is something
            else or cannot be written. All that is wrong with a part is a line of the page.
        ConfigError: For options that cannot be used.
    """
    directory, out = as_path(directory, "directory"), as_path(out, "out")
    lm = None if lm is None else as_path(lm, "lm")
    analyses = None if analyses is None else as_path(analyses, "analyses")
    check_type(published, (Published, type(None)), "published", "Published facts or None")
    check_text(device, "device")
    facts = published or t15_facts()
    parts = find_parts(directory, facts, out.resolve())
    _check_given(lm, analyses, options, device)
    searching = None
    if lm is not None:
        given = None if options is None else options_for(None, lm, options)[0]
        searching = Searching(Path(lm), given, threads)
    private = private_texts({"DIR": directory, "OUT": out, "LM": lm, "ANALYSES": analyses})
    with verification_directory(out):
        stages = Stages(out, {"published": zlib.crc32(repr(facts).encode())}, private, stage)
        work = _T15(parts, out, facts, stages, device)
        has_words = work.check_baseline(searching)
        work.check_analyses(analyses or parts.files.get(COPY_TASK), searching)
        sentences = list(json_lines(out / SENTENCES)) if with_text and has_words else None
        result = Verification(
            dataset="t15",
            stages=stages.results,
            facts=stages.facts,
            sessions=stages.sessions,
            published={"per": facts.per, "wer": facts.wer},
            machine=machine(device),
            sentences=sentences,
        )
        write_verification(out, result)
    return result


def _check_given(
    lm: str | Path | None, analyses: str | Path | None, options: Options, device: str
) -> None:
    """Raise for named files that are missing, before the work."""
    if lm is None and options is not None:
        raise ConfigError("options of the search are given without a language model", fix="give it")
    if lm is not None and not Path(lm).is_dir():
        raise ConfigError("no such directory", where=lm, fix="give a language-model directory")
    if analyses is not None and not Path(analyses).is_file():
        raise ConfigError("no such file", where=analyses, fix=f"give {COPY_TASK}")
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ConfigError(f"device {device!r}: {first_line(error)}", fix="use cpu") from None


SENTENCES = "sentences.jsonl"
"""File of the prompts and the decoded sentences, which stay on this machine."""


@dataclass(frozen=True)
class _T15:
    """The stages with what they share."""

    parts: Parts
    out: Path
    published: Published
    stages: Stages
    device: str

    @property
    def run(self) -> Path:
        """Run directory of the imported checkpoint."""
        return self.out / "run"

    @property
    def packed(self) -> Path:
        """Packed directory of the validation trials."""
        return self.out / "packed"

    @property
    def logits(self) -> Path:
        """Logits of the validation trials."""
        return self.out / "logits.npz"

    def check_baseline(self, search: Searching | None) -> bool:
        """Check recordings, checkpoint, logits and words; return whether there are sentences."""
        has_trials = self.check_recordings()
        has_run = self.check_checkpoint()
        has_logits = has_trials and has_run and self.check_model()
        has_words = has_logits and search is not None and self.check_words(search)
        if not has_trials or not has_run:
            missing = "no validation trial was read" if not has_trials else "there is no checkpoint"
            self.stages.skip("logits", [not_checked("PER", missing)])
        if not has_logits or search is None:
            because = "no language model was given" if search is None else "there are no logits"
            self.stages.skip("words", [not_checked("WER", because)])
        return has_words

    def check_recordings(self) -> bool:
        """Check names, sizes and every trial; return whether there is a validation split."""
        root = self.parts.recordings
        files = [*self.parts.files.values(), *(_sources(root) if root else [])]
        self.stages.run(
            "files",
            fingerprint(files, root or self.out),
            lambda progress: recordings.check_files(self.parts, self.published),
        )
        if root is None:
            because = "no session files were found"
            self.stages.skip("recordings", [not_checked("Recordings", because)])
            return False
        self.stages.run(
            "recordings",
            fingerprint(_sources(root), root),
            lambda progress: recordings.check_recordings(root, self.published, progress),
        )
        if not session_files(root, "val"):
            because = "no session has data_val.hdf5"
            self.stages.skip("packing", [not_checked("Validation trials", because)])
            return False
        return self.stages.run(
            "packing",
            self._val_files,
            lambda progress: baseline.check_packing(root, self.packed, progress),
            [self.packed],
        )

    def check_checkpoint(self) -> bool:
        """Import the checkpoint; return whether there is a run."""
        folder = self.parts.checkpoint
        if folder is None:
            because = f"no {WEIGHTS} was found"
            self.stages.skip("checkpoint", [not_checked("Import", because)])
            return False
        return self.stages.run(
            "checkpoint",
            self._checkpoint_files,
            lambda progress: baseline.check_checkpoint(folder, self.run, self.published),
            [self.run],
        )

    def check_model(self) -> bool:
        """Run the model over the validation split; return whether there are logits."""
        made_from = {"device": self.device, **self._val_files, **self._checkpoint_files}
        done = self.stages.run(
            "logits",
            made_from,
            lambda progress: baseline.check_logits(
                self.run, self.packed, self.logits, self.device, progress
            ),
            [self.logits],
        )
        if done:
            self.stages.run(
                "validation",
                made_from,
                lambda progress: baseline.check_validation(
                    self.run, self.packed, self.stages.facts, self.published, self.device, progress
                ),
            )
        return done

    def check_words(self, search: Searching) -> bool:
        """Search for the words of the validation split; return whether there are sentences."""
        fitted = [self.run / FittedOptions.FILE] if search.options is None else []
        return self.stages.run(
            "words",
            {
                "device": self.device,
                **search.made_from,
                **self._val_files,
                **self._checkpoint_files,
            },
            lambda progress: words.check_words(
                Trials(self.run, self.packed, self.logits),
                search,
                self.published,
                self.out / SENTENCES,
                progress,
            ),
            [self.out / SENTENCES, *fitted],
        )

    def check_analyses(self, file: str | Path | None, search: Searching | None) -> None:
        """Check the published analyses, and decode their logits where there is a model."""
        if file is None:
            because = f"{COPY_TASK} was not found; it can be given with --analyses"
            self.stages.skip("analyses", [not_checked("Published analyses", because)])
            return
        path = Path(file)
        evaluation = self.out / "copy-task"
        made_from = fingerprint([path] if path.is_file() else [], path.parent)
        done = self.stages.run(
            "analyses",
            made_from,
            lambda progress: copy_task.check_analyses(path, evaluation, self.published, progress),
            [evaluation],
        )
        if done and search is not None:
            fitted = [path for path in [self.run / FittedOptions.FILE] if path.is_file()]
            self.stages.run(
                "analyses words",
                {**search.made_from, **made_from, **fingerprint(fitted, self.run)},
                lambda progress: copy_task.check_analyses_words(
                    evaluation, search.fitted(self.run), self.out / "copy-task.csv", progress
                ),
            )

    @property
    def _val_files(self) -> dict[str, Any]:
        root = self.parts.recordings
        return {} if root is None else fingerprint(_sources(root, "val"), root)

    @property
    def _checkpoint_files(self) -> dict[str, Any]:
        folder = self.parts.checkpoint
        if folder is None:
            return {}
        files = [folder / name for name in (WEIGHTS, ARGUMENTS)]
        return fingerprint([path for path in files if path.is_file()], folder)


def _sources(root: Path, split: str = "*") -> list[Path]:
    """Return the session files and the table of blocks that is read with them."""
    tables = [folder / DESCRIPTION for folder in (root, root.parent)]
    return [*session_files(root, split), *(path for path in tables if path.is_file())]
