"""Parts that other installed packages join to cortext, by groups of entry points.

A package names in its `pyproject.toml` what it brings, and cortext asks for it by name when it is
needed, so that nothing here imports what stands on it:

| group | what an entry is |
|---|---|
| `cortext.commands` | commands by heading, as `cortext.cli.tree.COMMANDS` |
| `cortext.large_models` | `causal`: a class with the `check` and `load` of `LargeModelFiles` |
| `cortext.checks` | `before`: the function that checks a run's own model, loss and augmentations |
| `cortext.clusters` | `ray`: what `WordSearch` calls to decode on a Ray cluster |
| `cortext.evaluations` | `online`: the function of `cortext evaluate --online` |
| `cortext.backends` | `torchax`, `tensorflow`: a class like `cortext.training.backend.JobBackend` |
| `cortext.kernels` | `cuda`: a module with the functions of `cortext.cuda.Kernels` |
| `cortext.language_models` | `ngram`: the function of `LanguageModel.build`; `neural`: a module |
| `cortext.packed_formats` | `tfrecord`: a class with the methods of `cortext.data.packed.MapFile` |
| `cortext.xla` | `dump`: the function behind `--xla-dump` |
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from cortext.errors import MissingLibrary, first_line

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DISTRIBUTION = "cortext-bci"


@cache
def joined(group: str) -> tuple[EntryPoint, ...]:
    """Return the entries of a group: ours first, then others, each in the order of their names.

    What comes first stays: no other package can take a name away from ours.
    """
    from importlib.metadata import entry_points  # 20 ms, which no start of `cortext` waits for

    found = entry_points(group=group)
    return tuple(sorted(found, key=lambda entry: (not is_ours(entry), entry.name, entry.value)))


def is_ours(entry: EntryPoint) -> bool:
    """Tell whether an entry comes with cortext itself."""
    return entry.dist is not None and entry.dist.name == DISTRIBUTION


def own_packages() -> set[str]:
    """Return the names of the packages that come with cortext, and join it."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        entries = distribution(DISTRIBUTION).entry_points
    except PackageNotFoundError:
        return set()
    return {entry.module.partition(".")[0] for entry in entries}


@cache
def load(group: str, name: str) -> Any:
    """Return the object that an entry of a group stands for.

    Raises:
        MissingLibrary: If no installed package brings it.
    """
    for entry in joined(group):
        if entry.name == name:
            try:
                return entry.load()
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] != entry.module.partition(".")[0]:
                    raise  # a library that it needs: the caller knows how to install that
                raise MissingLibrary(
                    f"{entry.value} ({group}) cannot be loaded: {first_line(error)}",
                    fix=f"install {DISTRIBUTION} anew",
                ) from None
    raise MissingLibrary(
        f"no installed package brings {name!r} ({group})", fix=f"install {DISTRIBUTION} anew"
    )
