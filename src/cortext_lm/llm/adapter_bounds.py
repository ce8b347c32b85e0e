"""Bounds of what a LoRA adapter of others asks for, read from its file before peft acts on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cortext.errors import LanguageModelError
from cortext.files import read_json
from cortext_lm.llm.patterns import cost

MOST_RANK = 8192
"""Highest rank of an adapter: memory is taken for it before the weights are read."""
FILES = ("adapter_config.json", "adapter_model.safetensors")
"""Settings and weights of an adapter."""
_REFUSED = {
    "megatron_config": "names a module of Python to import",
    "layer_replication": "copies layers of the model",
}
"""Settings of peft that no merged adapter needs, and why they are refused."""


def check_adapter(folder: Path) -> None:
    """Raise LanguageModelError for a folder that holds no plain LoRA adapter.

    peft takes names of modules as regular expressions, which may never end.
    """
    for file in FILES:
        if not (folder / file).is_file():
            raise LanguageModelError(
                f"has no {file}: it is no LoRA adapter", where=folder, fix="give another --llm-lora"
            )
    path = folder / FILES[0]
    fix = "give another adapter, or one whose target_modules are a list of names"
    try:
        config = read_json(path)
        _check_settings(config)
        for key, pattern in _patterns(config):
            try:
                cost(pattern)
            except ValueError as error:
                raise ValueError(f"its {key} has a regular expression that {error}") from None
    except (OSError, ValueError) as error:
        raise LanguageModelError(str(error), where=path, fix=fix) from None


def _check_settings(config: dict[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise ValueError(f"its peft_type is {config.get('peft_type')!r:.40}; LORA is needed")
    for key, why in _REFUSED.items():
        if config.get(key):
            raise ValueError(f"its {key} {why}, which is not done")
    ranks = config.get("rank_pattern") or {}
    if not isinstance(ranks, dict):
        raise ValueError("its rank_pattern is no table of ranks")
    for rank in (config.get("r"), *ranks.values()):
        if type(rank) is not int or not 1 <= rank <= MOST_RANK:
            raise ValueError(f"it has the rank {rank!r:.40}; 1 to {MOST_RANK:,} is needed")


def _patterns(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names of modules that peft takes as regular expressions, with their settings."""
    for key in (
        "target_modules",
        "exclude_modules",
        "target_parameters",
        "modules_to_save",
        "layers_pattern",
        "rank_pattern",
        "alpha_pattern",
    ):
        value = config.get(key) or ()
        for pattern in [value] if isinstance(value, str) else list(value):
            if not isinstance(pattern, str):
                raise ValueError(f"its {key} has a name that is no text")
            yield key, pattern
