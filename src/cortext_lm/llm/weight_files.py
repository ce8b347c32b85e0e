"""Files with a large model's weights: safetensors of its own directory, and no others.

transformers reads the parts that an index names by their endings: one that is no safetensors file
would go through torch's unpickler. It also adds a LoRA adapter that lies beside a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cortext.errors import LanguageModelError, shown
from cortext.files import read_json
from cortext_lm.llm.adapter_bounds import FILES, check_adapter

INDEX = "model.safetensors.index.json"
MOST_PARTS = 10_000
_ENDING = ".safetensors"
_FIX = "give a model and tokenizer as transformers saves them"


def file_of(transformers: Any, name: str, file: str) -> Path | None:
    """Return where a file of a model is, None if it has none.

    Args:
        transformers: The library.
        name: A directory, or a name on the Hub.
        file: Name of the file.
    """
    if Path(name).is_dir():
        path = Path(name) / file
        return path if path.is_file() else None
    cached = transformers.utils.cached_file(
        name,
        file,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if cached is None else Path(cached)


def check_directory(name: str) -> None:
    """Raise LanguageModelError for a file, and for a directory without a model's configuration."""
    path = Path(name)
    if path.is_file():
        fix = "give the directory that transformers saved a model in"
        raise LanguageModelError("is a file; a directory is needed", where=name, fix=fix)
    if any(path.glob("*.gguf")) and not any(path.glob("*.safetensors")):
        problem = "holds a model of llama.cpp (GGUF), which is not read"
        raise LanguageModelError(problem, where=name, fix="give the model as safetensors")
    if path.is_dir() and not (path / "config.json").is_file():
        fix = "give a directory that transformers saved a model in"
        raise LanguageModelError("has no config.json: it holds no model", where=name, fix=fix)


def check_weight_files(transformers: Any, name: str, config: dict[str, Any]) -> None:
    """Raise LanguageModelError where files would be read that are no safetensors of the model.

    Args:
        transformers: The library.
        name: A directory, or a name on the Hub.
        config: The content of its `config.json`.
    """
    if config.get("transformers_weights"):
        problem = "its config.json names other files of weights, which are not read"
        raise LanguageModelError(problem, where=name, fix="take transformers_weights out of it")
    if (index := file_of(transformers, name, INDEX)) is not None:
        try:
            _check_index(read_json(index))
        except ValueError as error:
            raise LanguageModelError(str(error), where=index, fix=_FIX) from None
    if (adapter := file_of(transformers, name, FILES[0])) is not None:
        file_of(transformers, name, FILES[1])
        check_adapter(adapter.parent)


def _check_index(content: dict[str, Any]) -> None:
    names = content.get("weight_map")
    if not isinstance(names, dict) or not names:
        raise ValueError("it has no weight_map, the file of each weight")
    for file in names.values():
        is_plain = isinstance(file, str) and file.endswith(_ENDING) and Path(file).name == file
        if not is_plain:
            raise ValueError(f"it names the file {shown(repr(file), 60)}, which is no {_ENDING}")
    if len(set(names.values())) > MOST_PARTS:
        raise ValueError(f"it names more than {MOST_PARTS:,} files")
