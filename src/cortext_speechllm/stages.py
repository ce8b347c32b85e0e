"""Training of a speech LLM in stages; each is a run, and the next one starts from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cortext.data.packed import PackedDataset
from cortext.errors import RunError
from cortext.models import AcousticModel
from cortext.training.backend import DeviceSpec
from cortext.training.checkpoint import RunDirectory
from cortext.training.progress import say
from cortext.training.summary import RunSummary
from cortext.training.torch_backend import TorchBackend
from cortext_speechllm.config import SpeechLLMConfig, read_speech_config
from cortext_speechllm.task import SpeechTask, check_possible, speech_trainer

FOLDER = "stages"

Stages = Sequence[tuple[str, SpeechLLMConfig]]
"""Name and configuration of each stage, in order."""


def train_speech_llm(
    config: SpeechLLMConfig | str | Path,
    data: PackedDataset | str | Path,
    out: str | Path,
    *,
    overrides: Iterable[str] = (),
    resume: bool = False,
    cache: str | Path | None = None,
    init_from: str | Path | None = None,
    device: str | DeviceSpec = "cpu",
    progress: bool = True,
    **settings: Any,
) -> RunSummary:
    """Train a speech LLM to the end of its last stage, and return the summary of that stage.

    The last stage's run directory is `out`; the others are runs in `out/stages/NAME`. Each stage
    begins with the best weights of the one before. The needs of all stages, such as cached speech,
    are checked before the first one.

    Args:
        config: A SpeechLLMConfig, a YAML file, or the name of a shipped recipe.
        data: Session files or packed data, see `Trainer`.
        out: Run directory to write.
        overrides: `key=value` changes of the configuration.
        resume: Skip the finished stages, and continue the first unfinished one.
        cache: File of `cortext speech-llm cache`; needed where speech.alpha is not 0.
        init_from: Run whose best weights the first stage begins with, see `speech_trainer`.
        device: `cpu`, `cuda`, `cuda:N`, or a DeviceSpec.
        progress: Print the course of the training.
        **settings: Other arguments of `speech_trainer`, whose errors this function raises.
    """
    out = Path(out)
    stages = read_speech_config(config, overrides).in_stages()
    spec = device if isinstance(device, DeviceSpec) else DeviceSpec(device)
    for _, stage in stages:  # an error in a later stage is raised before days of the first
        check_possible(stage, spec, cache)
    summary = None
    with TorchBackend.processes(spec) as processes:
        processes.rank_zero_first(lambda: _check_out(out, stages, resume))
        finished = processes.gather(_n_finished(out, stages))[0]
        for number, (name, stage) in enumerate(stages):
            directory = _directory(out, stages, number)
            if number >= finished:
                shown = progress and processes.first and bool(name)
                say(
                    f"stage {number + 1} of {len(stages)}: {name}, {stage.num_training_batches:,}"
                    " batches",
                    shown,
                )
                with speech_trainer(
                    stage,
                    data,
                    directory.path,
                    cache=cache,
                    device=spec,
                    resume=resume and (number == 0 or directory.config.is_file()),
                    init_from=init_from,
                    progress=progress,
                    packed=out / "packed",
                    **settings,
                ) as trainer:
                    assert isinstance(trainer.task, SpeechTask)
                    assert isinstance(trainer.model, AcousticModel)
                    val = trainer.validator.batches.split
                    for _, later in stages[number + 1 :]:
                        trainer.task.check_later(later, trainer.model, trainer.train_split, val)
                    summary = trainer.run()
            init_from = directory.path
    assert summary is not None  # the last stage is not finished, see `_check_out`
    return summary


def _directory(out: Path, stages: Stages, number: int) -> RunDirectory:
    """Return the directory of a stage; the last one is the run itself."""
    return RunDirectory(out if number == len(stages) - 1 else out / FOLDER / stages[number][0])


def _n_finished(out: Path, stages: Stages) -> int:
    """Return the number of stages, from the first on, that are finished."""
    finished = [_directory(out, stages, number).summary.is_file() for number in range(len(stages))]
    return [*finished, False].index(False)


def _check_out(out: Path, stages: Stages, resume: bool) -> None:
    """Raise RunError where the run cannot be written; only its last stage would notice."""
    RunDirectory(out).check(resume)
    if not resume and any(RunDirectory(path).config.is_file() for path in (out / FOLDER).glob("*")):
        raise RunError(
            "there is an unfinished run",
            where=out,
            fix="continue it with --resume, or give another --out",
        )
