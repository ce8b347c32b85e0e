"""Torch on a TPU through Google's own backend, `torch_tpu`, one process for each core.

It was written after that package's interface (0.2.0) and has run on no TPU: `torchax` is what is
tested here.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import replace
from importlib import import_module

from cortext.errors import MissingLibrary, RunError
from cortext.training.distributed import Processes
from cortext.training.engine import Job, Place, TorchEngine


class TorchTPUEngine(TorchEngine):
    """The steps of `TorchEngine`, on the TPU core that is this process's."""

    def __init__(self, job: Job) -> None:
        super().__init__(replace(job, place=_own_core(job.place)))

    @staticmethod
    def processes(place: Place) -> AbstractContextManager[Processes]:
        """See `Engine`. Raises MissingLibrary and RunError where torch_tpu is not installed or
        does not start.
        """
        _load()
        return TorchEngine.processes(_own_core(place))


def _own_core(place: Place) -> Place:
    return replace(place, device=f"tpu:{os.environ.get('LOCAL_RANK', '0')}")


def _load() -> None:
    fix = "use --tpu-engine torchax"
    try:
        import_module("torch_tpu")
    except ModuleNotFoundError:
        raise MissingLibrary(
            "torch_tpu is not installed", fix=f"pip install torch_tpu, or {fix}"
        ) from None
    except (ImportError, OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunError(f"torch_tpu does not start: {reason}", fix=fix) from None
