"""Directories of transformers' models: reading of all but the weights, checks, and writing.

Configuration, tokenizer, device, free memory, completeness of the weights, revision.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from cortext.arguments import check_text
from cortext.errors import LanguageModelError
from cortext.extras import need
from cortext.files import read_json
from cortext.memory import free_bytes
from cortext_lm.llm.explain import explained
from cortext_lm.llm.tokenizer_bounds import check_tokenizer
from cortext_lm.llm.weight_files import check_directory, check_weight_files, file_of

MOST = {"layer": 1000, "layers": 1000, "depth": 1000, "experts": 65_536, "labels": 10_000}
"""Largest numbers in a configuration by the last word of their names: `num_hidden_layers`."""
FLOAT32_BYTES = 4
FACTS = "cortext.json"
"""File that records how a model was made; a directory with this file may be replaced."""
DIGEST_BYTES = 1 << 30
"""Most bytes of weights that are read for a checksum; more would take minutes."""


def device_named(name: str) -> torch.device:
    """Return the device `cpu`, `cuda`, `cuda:N`, or by `auto` a GPU where there is one.

    Raises LanguageModelError for other names.
    """
    check_text(name, "device")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise LanguageModelError(
            f"unknown device {name!r} for the large model", fix="use auto, cpu or cuda"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise LanguageModelError(
            f"there is no device {name} for the large model", fix="use cpu or auto"
        )
    return device


def read_config(transformers: Any, name: str) -> Any:
    """Read the configuration of a model; `transformers` is the library.

    Raises:
        LanguageModelError: Where there is no such model, or it asks for too much (`check_config`).
    """
    with quiet(transformers), explained(name):
        check_directory(name)
        if Path(name).is_dir():
            check_config(read_json(Path(name) / "config.json"), name)
        config = transformers.AutoConfig.from_pretrained(name, trust_remote_code=False)
        check_config(config.to_dict(), name)
        check_weight_files(transformers, name, config.to_dict())
    return config


def check_config(written: Any, name: str) -> None:
    """Raise LanguageModelError for a configuration that asks for too much, or for code.

    A layer, an expert and a label take time and memory before the weights are known.

    Args:
        written: The content of a `config.json`, or a part of it.
        name: Name of the model.
    """
    for key, value in ((str(key), value) for key, value in written.items()):
        if isinstance(value, dict):
            check_config(value, name)
        most = MOST.get(key.rpartition("_")[2])
        if most is not None and type(value) is int and value > most:
            raise LanguageModelError(
                f"its config.json has {key} {value:,}; at most {most:,} are built", where=name
            )
        # transformers would fetch a kernel of this name from the Hub, and run it.
        if "attn_implementation" in key and "/" in str(value):
            raise LanguageModelError(
                "its config.json asks for code from the Hub, which is not run",
                where=name,
                fix=f"take {key} out of it",
            )


def read_tokenizer(transformers: Any, name: str) -> Any:
    """Read the tokenizer of a model; LanguageModelError where it cannot be loaded."""
    with quiet(transformers), explained(name, "its tokenizer cannot be loaded"):
        has_file = check_tokenizer_files(transformers, name)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        if not has_file:
            check_made(tokenizer, name)
        return tokenizer


def check_made(tokenizer: Any, name: str) -> None:
    """Raise LanguageModelError for a tokenizer whose work on a text has no bound.

    transformers makes it of other files than a `tokenizer.json`, such as those of SentencePiece.
    """
    made = getattr(tokenizer, "backend_tokenizer", None)
    if made is None:  # it is written in Python, without rules of the files
        return
    try:
        check_tokenizer(json.loads(made.to_str()))
    except ValueError as error:
        fix = "give a model with a tokenizer.json"
        raise LanguageModelError(f"its tokenizer: {error}", where=name, fix=fix) from None


def check_tokenizer_files(transformers: Any, name: str) -> bool:
    """Return whether there is a `tokenizer.json`; LanguageModelError if its work has no bound.

    Args:
        transformers: The library.
        name: A directory, or a name on the Hub.
    """
    if Path(name).is_dir():
        # A file for newer versions of transformers has its version in the name.
        files = sorted(Path(name).glob("tokenizer*.json"))
    else:
        own = file_of(transformers, name, "tokenizer.json")
        files = [] if own is None else [own]
    for file in files:
        if file.name == "tokenizer_config.json" or not file.is_file():
            continue
        try:
            check_tokenizer(read_json(file))
        except ValueError as error:
            fix = "give a model with the tokenizer that it was trained with"
            raise LanguageModelError(str(error), where=file, fix=fix) from None
    return any(file.name == "tokenizer.json" for file in files)


def check_complete(facts: dict[str, Any], name: str, kind: str) -> None:
    """Raise LanguageModelError where a model's weights are not what its configuration needs.

    Args:
        facts: The loading information of transformers.
        name: Name of the model.
        kind: Kind of model that is needed, for the message.
    """
    for weight, shape, needed in sorted(facts["mismatched_keys"], key=str):
        problem = f"{weight} is {list(shape)}, and by its config.json it must be {list(needed)}"
        raise LanguageModelError(
            problem, where=name, fix="give a model with the configuration that it was saved with"
        )
    missing = sorted(facts["missing_keys"])
    if missing:
        problem = f"lacks {len(missing)} of its weights, such as {missing[0]}: this is no {kind}"
        raise LanguageModelError(problem, where=name, fix="give another model")


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """Keep the library's warnings and bars out of the output of a command."""
    logging = transformers.utils.logging
    hub = need("huggingface_hub.utils.logging", "llm")
    level, hub_level = logging.get_verbosity(), hub.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    # Every change of a level clears the cache of every logger of the process, which takes longer
    # than to render a chat template. So a logger that is quiet already, as within another call, is
    # left alone.
    if level != logging.ERROR:
        logging.set_verbosity_error()
    if hub_level != hub.ERROR:
        hub.set_verbosity_error()
    if bars:
        logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if level != logging.ERROR:
            logging.set_verbosity(level)
        if hub_level != hub.ERROR:
            hub.set_verbosity(hub_level)
        if bars:
            logging.enable_progress_bar()


def revision_of(name: str, config: Any) -> str:
    """Return the Hub's commit; for a directory the SHA-256 of its configuration and weights.

    Of weights of more than a gigabyte, only the head of each file and the files' sizes are hashed.
    """
    commit = getattr(config, "_commit_hash", None)
    if commit:
        return str(commit)
    digest = hashlib.sha256()
    files = sorted(Path(name).glob("*.safetensors"))
    hash_all = sum(file.stat().st_size for file in files) <= DIGEST_BYTES
    for file in (Path(name) / "config.json", *files):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode())
        with file.open("rb") as stream:
            if hash_all or file.suffix == ".json":
                digest.update(hashlib.file_digest(stream, "sha256").digest())
            else:
                n_head = int.from_bytes(stream.read(8), "little")
                digest.update(stream.read(min(n_head, DIGEST_BYTES)))
    return digest.hexdigest()


def check_memory(transformers: Any, config: Any, name: str) -> None:
    """Raise LanguageModelError where free memory does not hold a model's weights in float32.

    Args:
        transformers: The library.
        config: The model's configuration (`read_config`).
        name: Name of the model.
    """
    free = free_bytes()
    if free is None:
        return
    with torch.device("meta"):  # weights without content
        network = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    needed = FLOAT32_BYTES * sum(parameter.numel() for parameter in network.parameters())
    if needed > free:
        raise LanguageModelError(
            f"not enough memory to load the model: on a CPU its weights take {needed / 1e9:.1f} GB,"
            f" and {free / 1e9:.1f} GB are free",
            where=name,
            fix="use a smaller model, or a GPU (the device cuda)",
        )


def free_gpu_bytes(device: torch.device) -> int:
    """Return the memory of a GPU that is free, or that torch has reserved and not used."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + kept)


def check_target(out: Path, keep: Iterable[str | Path] = ()) -> None:
    """Raise LanguageModelError for a directory that cannot be written or may not be.

    It may be absent, empty, or hold a model that was trained here. Call this before anything that
    takes time.

    Args:
        out: The directory.
        keep: Files and directories that may not be in it.
    """
    if out.exists() and not out.is_dir():
        raise LanguageModelError("is a file; a directory to write is needed", where=out)
    if out.resolve() == Path.cwd():
        raise LanguageModelError(
            "is the current directory", where=out, fix="give a directory in it"
        )
    if out.is_dir() and any(out.iterdir()) and not (out / FACTS).is_file():
        raise LanguageModelError(
            f"is not empty and has no {FACTS}", where=out, fix="give a new directory"
        )
    for path in keep:
        if Path(path).resolve().is_relative_to(out.resolve()):
            raise LanguageModelError(
                f"would take the place of {path}", where=out, fix="give another directory"
            )
    parent = next(folder for folder in out.resolve().parents if folder.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise LanguageModelError(
            f"cannot be made in {parent}", where=out, fix="give a folder that can be written"
        )


def save_model(directory: Path, network: Any, tokenizer: Any, facts: dict[str, Any]) -> None:
    """Write a model as transformers does (safetensors), and how it was made.

    Args:
        directory: Directory to write into.
        network: The transformers model.
        tokenizer: Its tokenizer.
        facts: Record of how it was made, for `cortext.json`.
    """
    with quiet(need("transformers", "llm")):
        network.save_pretrained(directory)
        tokenizer.save_pretrained(directory)
    write_facts(directory, facts)


def write_facts(directory: Path, facts: dict[str, Any]) -> None:
    """Write how a model was made."""
    (directory / FACTS).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
