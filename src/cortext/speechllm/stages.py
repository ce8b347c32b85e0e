"""A speech LLM trained in stages: CTC, alignment, end to end, each a run that the next one starts from."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cortext.data.packed import PackedDataset
from cortext.errors import RunError
from cortext.speechllm.config import SpeechLLMConfig, read_speech_config
from cortext.speechllm.trainer import SpeechTrainer
from cortext.training.checkpoint import RunDirectory
from cortext.training.progress import say
from cortext.training.summary import RunSummary

FOLDER = "stages"


def train_speech_llm(
    config: SpeechLLMConfig | str | Path,
    data: PackedDataset | str | Path,
    out: str | Path,
    *,
    overrides: Iterable[str] = (),
    resume: bool = False,
    init_from: str | Path | None = None,
    progress: bool = True,
    **settings: Any,
) -> RunSummary:
    """Train a speech LLM to the end of its last stage; the summary is that of this stage, whose run directory is `out`.

    The stages before are runs in `out/stages/NAME`. Each begins with the best weights of the one before, the first with
    `init_from`. With `resume` those that are finished are passed over, and the first that is not goes on where it was.
    Other arguments (`cache`, `device`, `callbacks`, `skip_bad`) and errors are those of `SpeechTrainer`.
    """
    out, stages = Path(out), read_speech_config(config, overrides).in_stages()
    if not resume and (out / FOLDER).exists():
        raise RunError("there is an unfinished run", where=out, fix="continue it with --resume, or give another --out")
    summary = None
    for number, (name, stage) in enumerate(stages):
        last = number == len(stages) - 1
        directory = RunDirectory(out if last else out / FOLDER / name)
        if not last and directory.summary.is_file():
            init_from = directory.path
            continue
        if name:
            say(f"stage {number + 1} of {len(stages)}: {name}, {stage.num_training_batches:,} batches", progress)
        with SpeechTrainer(
            stage,
            data,
            directory.path,
            resume=resume and directory.begun,
            init_from=init_from,
            progress=progress,
            packed=out / "packed",
            **settings,
        ) as trainer:
            summary = trainer.run()
        init_from = directory.path
    assert summary is not None
    return summary
