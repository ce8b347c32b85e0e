"""The reference of configuration keys, from the dataclasses that hold them."""

import ast
import dataclasses
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cortext.config import to_mapping
from cortext.data.simulate.config import PRESETS, SimulatorConfig
from cortext.decoding import DecoderOptions
from cortext.decoding.ensemble import EnsembleOptions
from cortext.errors import CortextError
from cortext.features.augment import AUGMENTATIONS
from cortext.live.brand.parameters import NodeParameters
from cortext.live.core.pipeline import PipelineOptions
from cortext.live.lm_server.published_params import PublishedParams
from cortext.models import MODELS
from cortext.speechllm.config import SpeechConfig, Stage
from cortext.training.config import RECIPES, TASKS, TrainConfig
from cortext.training.loss import LOSSES
from reference_pages.markdown import code, front, table

PAGE = "reference/configuration.md"
NAMES = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path"}


FAR = 2**62
"""Further out than any bound."""
PHRASES = (
    (r"\bit must be |\b(is|are) needed|\ba (whole )?number of (milliseconds )?|finite and ", ""),
    (r" and finite| and at most 1e\+30", ""),
    (r"from 0 to 1e\+30", "at least 0"),
    (r"a positive number", "above 0"),
    (r"(\d+) or more\b", r"at least \1"),
    (r"(\d+) or less\b", r"at most \1"),
    (r"1e\+06", "1,000,000"),
    (r"1e\+09", "1,000,000,000"),
)
"""Parts of messages about bounds, and how the page says them."""


@dataclass
class Section:
    """A table of the page: a dataclass, under a heading, with a sentence and the keys' beginning."""

    title: str
    text: str
    cls: type
    prefix: str = ""


def _kinds(registry: Any, title: str, prefix: str) -> list[Section]:
    return [
        Section(
            f"{title}: {kind}", f"Keys for `{prefix}kind: {kind}`.", registry[kind].Config, prefix
        )
        for kind in sorted(registry)
    ]


PARTS: dict[str, tuple[str, list[Section]]] = {
    "Training": (
        "A YAML file for [`cortext train --config`](commands/train.md) holds these keys; `--set"
        " KEY=VALUE` changes one of them. A key inside a section is written with a dot:"
        " `--set dataset.batch_size=16`. A key that is left out has its default. An unknown key is"
        " an error that names the nearest known one.",
        [
            Section("Schedule, optimiser and saving", "Keys at the top of the file.", TrainConfig),
            *_kinds(MODELS, "Model", "model."),
            *_kinds(LOSSES, "Loss", "loss."),
            *_kinds(TASKS, "Task", "task."),
            *_kinds(AUGMENTATIONS, "Augmentation", "dataset.augmentations[]."),
        ],
    ),
    "Speech LLM": (
        "A file for [`cortext speech-llm train`](commands/speech-llm.md#train) holds the keys of a"
        " training and these.",
        [
            Section("Section speech", "", SpeechConfig, "speech."),
            Section(
                "Stages", "Each entry of the list `stages` has these keys.", Stage, "stages[]."
            ),
        ],
    ),
    "Decoding": (
        "`cortext decode --options FILE`, `cortext evaluate --options FILE` and the live commands"
        " read these keys; `cortext tune decoder` fits them. In Python they are fields of"
        " [`DecoderOptions`](python.md).",
        [Section("Decoder options", "", DecoderOptions)],
    ),
    "Ensembles": (
        "`cortext ensemble --options FILE` and its `--set KEY=VALUE` take these keys.",
        [Section("Ensemble options", "", EnsembleOptions)],
    ),
    "Simulation": (
        "`cortext simulate --set KEY=VALUE`, `cortext demo --set KEY=VALUE` and `cortext serve"
        " --simulate PRESET --set KEY=VALUE` change these keys of a preset. The defaults are those"
        " of the preset `demo`.",
        [Section("Simulator", "", SimulatorConfig)],
    ),
    "Live decoding": (
        "Options of the live pipeline, a BRAND node's parameters, and the parameters of the"
        " language-model server.",
        [
            Section(
                "Pipeline options",
                "Fields of `PipelineOptions` in Python; `cortext serve` sets them with"
                " [options](commands/serve.md).",
                PipelineOptions,
            ),
            Section(
                "BRAND node parameters",
                "Keys under `parameters` of the node in the supergraph; see"
                " [`cortext brand-node`](commands/brand-node.md).",
                NodeParameters,
            ),
            Section(
                "Language-model server parameters",
                "Parameters that a client of [`cortext lm-server`](commands/lm-server.md) may set,"
                " by their published names.",
                PublishedParams,
            ),
        ],
    ),
}
"""The page's parts: a heading, a paragraph, and their tables."""
ELSEWHERE = {"kind"}


def page() -> str:
    """Return the page in Markdown."""
    text = front("Configuration keys") + (
        "# Configuration keys\n\n"
        "Look up every key that a YAML file or `--set KEY=VALUE` can set: its type, its default,"
        " its bounds and its meaning.\n\n"
    )
    text += _recipes()
    for title, (about, sections) in PARTS.items():
        text += f"## {title}\n\n{about}\n\n"
        for section in sections:
            anchor = re.sub(r"\W+", "-", section.title.lower())
            if len(sections) > 1:
                text += f"### {section.title} {{#{anchor}}}\n\n"
            text += section.text + "\n\n" if section.text else ""
            rows = _rows(section.cls, section.prefix)
            text += table(("Key", "Default", "Type and bounds", "Meaning"), rows)
        if title == "Simulation":
            text += _presets()
    return text


def _recipes() -> str:
    rows = []
    for path in sorted(RECIPES.glob("*.yaml")):
        comment = []
        for line in path.read_text().splitlines():
            if not line.startswith("#"):
                break
            comment.append(line.strip("# "))
        first = re.split(r"(?<=[a-z)])\. ", " ".join(comment).replace(": with", ". With"))[0]
        command = (
            "cortext speech-llm train"
            if "speech" in yaml.safe_load(path.read_text())
            else "cortext train"
        )
        rows.append(
            (code(path.stem), code(f"{command} --config {path.stem}"), first.rstrip(".") + ".")
        )
    return (
        "## Recipes\n\nThese files come with the package; `--config NAME` takes one by its name,"
        " and `--set` changes it. They lie in `src/cortext/configs`.\n\n"
        + table(("Recipe", "Command", "Contents"), rows)
    )


def _presets() -> str:
    default = to_mapping(SimulatorConfig())
    rows = []
    for name, preset in PRESETS.items():
        changed = [f"`{k}={v}`" for k, v in to_mapping(preset).items() if v != default[k]]
        rows.append((code(name), ", ".join(changed) or "the defaults"))
    return "The presets differ in these keys:\n\n" + table(("Preset", "Keys"), rows)


def _rows(cls: type, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    """Yield a row for each field of a dataclass, and of the dataclasses in it."""
    hints = typing.get_type_hints(cls)
    meanings = documented(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        inner = next((each for each in _parts(hint) if dataclasses.is_dataclass(each)), None)
        default = _default(field)
        if inner is not None and typing.get_origin(hint) is None:
            yield from _rows(inner, f"{prefix}{field.name}.")
            continue
        kind = _type(hint)
        bounds = _bounds(cls, field, hint)
        yield (
            code(f"{prefix}{field.name}"),
            default,
            f"{kind}; {bounds}" if bounds else kind,
            meanings.get(field.name, ""),
        )
        if inner is not None and typing.get_origin(hint) is not list:
            yield from _rows(inner, f"{prefix}{field.name}.")


def documented(cls: type) -> dict[str, str]:
    """Return what is written beneath each field of a dataclass, or in its `Attributes:`."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(each):
            continue
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(node, ast.ClassDef)
        for field, text in zip(node.body, node.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(ast.Constant(str(meaning))):
                    found[name] = inspect.cleandoc(meaning)
    return found


def _parts(hint: Any) -> tuple[Any, ...]:
    return (hint, *typing.get_args(hint))


def _type(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        shown = [_type(each) for each in arguments if each is not type(None)]
        return " or ".join(shown + ["null"] * (type(None) in arguments))
    if origin is typing.Literal:
        return ", ".join(code(str(each)) for each in arguments)
    if origin in (list, tuple):
        items = [each for each in arguments if each is not Ellipsis]
        if origin is tuple and Ellipsis not in arguments:
            return f"list of {len(items)}: {_type(items[0])}"
        return f"list: {_type(items[0])}"
    if origin is dict:
        return "section"
    if dataclasses.is_dataclass(hint):
        return "section"
    return NAMES.get(hint, "section" if hint is Any else str(hint))


def _default(field: Any) -> str:
    value = field.default
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    if value is dataclasses.MISSING:
        return "required"
    if dataclasses.is_dataclass(value):
        return ""
    if value is None or isinstance(value, bool):
        return code(str(value).lower().replace("none", "null"))
    if isinstance(value, tuple):
        value = list(value)
    return code(str(value)) if value != "" else "empty"


def _bounds(cls: type, field: Any, hint: Any) -> str:
    """Return the bounds that the program itself states when a value is far out of them."""
    wanted = {int, float} & set(_parts(hint))
    if not wanted or typing.get_origin(hint) not in (None, typing.Union, types.UnionType):
        return ""
    said = []
    for far in (-FAR, FAR):
        try:
            cls(**_needed(cls) | {field.name: far if wanted == {int} else float(far)})
        except CortextError as error:
            said.append(error.what.partition("; ")[2])
    bounds = ", ".join(dict.fromkeys(said))
    for pattern, shorter in PHRASES:
        bounds = re.sub(pattern, shorter, bounds)
    return ", ".join(dict.fromkeys(bounds.split(", "))).strip(", ")


def _needed(cls: type) -> dict[str, Any]:
    """Return values for the fields that have no default."""
    return {
        field.name: "x"
        for field in dataclasses.fields(cls)
        if field.default is field.default_factory is dataclasses.MISSING
    }
