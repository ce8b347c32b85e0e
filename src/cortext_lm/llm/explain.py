"""Errors of transformers and the Hub's client as one line that says what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from cortext.errors import CortextError, LanguageModelError, first_line

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FULL_WORDS = ("No space left on device", "Disk quota exceeded")
"""Messages of libraries whose errors have no number, such as the one that fetches large files."""
_NO_WRITING = (errno.EACCES, errno.EPERM, errno.EROFS)
_NO_MEMORY = (
    "out of memory",
    "not enough memory",
    "can't allocate memory",
    "Cannot allocate memory",
    "_ALLOC_FAILED",
)

ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""Exceptions that end a program.

All others that a library raises are its failures: a panic of compiled Rust is no `Exception`.
"""


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that a GPU or the machine has no memory left.

    Torch has no class for the machine's memory.
    """
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and any(
        words in str(error) for words in _NO_MEMORY
    )


@contextmanager
def explained(
    name: str, else_: str = "cannot be loaded as a causal language model"
) -> Iterator[None]:
    """Turn any error that keeps a model from loading into a LanguageModelError.

    Args:
        name: Name of the model.
        else_: Text for a reason that is not known here.
    """
    try:
        yield
    except (CortextError, *ENDS):
        raise
    except BaseException as error:  # the libraries raise all kinds, their own and Python's
        raise _explain(error, name, else_) from error


def _explain(error: BaseException, name: str, else_: str) -> LanguageModelError:
    from huggingface_hub import constants, errors
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined] # that of the library which it fetches by

    chain = list(_chain(error))
    numbers = {getattr(one, "errno", None) for one in chain}
    download = (
        f"download it where there is a connection (hf download {name} --local-dir DIR) and give the"
        " directory"
    )

    def has(*kinds: type[BaseException]) -> bool:
        return any(isinstance(one, kinds) for one in chain)

    def line(problem: str, fix: str) -> LanguageModelError:
        return LanguageModelError(problem, where=name, fix=fix)

    if any(out_of_memory(one) for one in chain):
        return line("not enough memory to load the model", "use a smaller model, or another device")
    if has(errors.GatedRepoError):
        page = f"{constants.ENDPOINT}/{name}"
        fix = f"ask for access at {page} and set HF_TOKEN to a token of that account"
        return line(
            "the model is gated: the Hub gives it only to accounts that were granted access", fix
        )
    if has(errors.RepositoryNotFoundError):
        fix = "check the name, or set HF_TOKEN to a token of an account that may see it"
        return line("neither a directory nor a model that the Hub knows", fix)
    if numbers.intersection(_FULL) or any(
        words in str(one) for one in chain for words in _FULL_WORDS
    ):
        fix = "free some space, or set HF_HOME to a folder on another disk"
        return line(f"no space left for the download in {constants.HF_HUB_CACHE}", fix)
    if numbers.intersection(_NO_WRITING):
        return line(
            f"{constants.HF_HUB_CACHE} cannot be written", "set HF_HOME to a folder that can"
        )
    if has(errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        return line(
            "neither a directory nor downloaded before, and the Hub cannot be reached", download
        )
    if has(errors.HFValidationError):
        return line(
            "neither a directory nor a name as the Hub has them", "give a directory, or OWNER/MODEL"
        )
    if has(errors.HfHubHTTPError):
        status = next(
            one.response.status_code for one in chain if isinstance(one, errors.HfHubHTTPError)
        )
        return line(f"the Hub answered with status {status}", f"try again later, or {download}")
    if has(HTTPError):
        return line(
            f"the connection to the Hub broke ({first_line(error)})", f"try again, or {download}"
        )
    if has(ImportError):
        return line(f"a library is missing ({first_line(error)})", "pip install what it names")
    return line(
        f"{else_} ({first_line(error)})", "give a model and tokenizer as transformers saves them"
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
