"""Parts that other installed packages join to cortext, by groups of entry points.

A package names in its `pyproject.toml` what it brings, and cortext asks for it by name when it is
needed, so that nothing here imports what stands on it:

| group | what an entry is |
|---|---|
| `cortext.commands` | commands by heading, as `cortext.cli.tree.COMMANDS` |
| `cortext.large_models` | `causal`: a class with the `check` and `load` of `LargeModelFiles` |
| `cortext.clusters` | `ray`: what `WordSearch` calls to decode on a Ray cluster |
| `cortext.evaluations` | `online`: the function of `cortext evaluate --online` |
| `cortext.backends` | a class that takes training steps, `cortext.training.backend.JobBackend` |
| `cortext.language_models` | a module that trains a language model: `neural` |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cortext.errors import MissingLibrary

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def joined(group: str) -> list[EntryPoint]:
    """Return the entries of a group in the order of their names."""
    from importlib.metadata import entry_points  # 20 ms, which no start of `cortext` waits for

    return sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value))


def load(group: str, name: str) -> Any:
    """Return what an entry of a group stands for.

    Raises:
        MissingLibrary: If no installed package brings it.
    """
    from importlib.metadata import entry_points

    for entry in entry_points(group=group, name=name):
        return entry.load()
    raise MissingLibrary(
        f"no installed package brings {name!r} ({group})", fix="install cortext-bci anew"
    )
