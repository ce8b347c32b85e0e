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
from cortext.decoding import DecoderOptions
from cortext.errors import CortextError
from cortext.features.augment import AUGMENTATIONS
from cortext.models import MODELS
from cortext.training.config import RECIPES, TASKS, TrainConfig
from cortext.training.loss import LOSSES
from cortext_data.simulate.config import PRESETS, SimulatorConfig
from cortext_live.brand.parameters import NodeConfig
from cortext_live.core.pipeline import PipelineOptions
from cortext_live.lm_server.published_options import PublishedOptions
from cortext_lm.ensemble import EnsembleOptions
from cortext_speechllm.config import SpeechConfig, StageConfig
from reference_pages.markdown import code, front, table

PAGE = "reference/configuration.md"
NAMES = {int: "whole number", float: "number", str: "text", bool: "true or false", Path: "path"}


FAR = 2**62
"""Further out than any bound."""
PHRASES = (
    (r"\bit must be |\b(is|are) needed|\ba (whole )?number of (milliseconds )?|finite and ", ""),
    (r" and finite| and at most 1e\+30| and (at most|below) 9223372036854775\d{3}", ""),
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
    lists = prefix.endswith("[].")
    text = f"Each entry of the list `{prefix[:-3]}`" if lists else f"Section `{prefix[:-1]}`"
    return [
        Section(f"{title}: {kind}", f"{text} with `kind: {kind}` has these keys.", config, prefix)
        for kind, config in sorted((kind, registry[kind].Config) for kind in registry)
    ]


PARTS: dict[str, tuple[str, list[Section]]] = {
    "Training": (
        "A YAML file for [`cortext train --config`](commands/train.md) holds these keys, and `--set"
        " KEY=VALUE` changes one of them. Write a key inside a section with a dot:"
        " `--set dataset.batch_size=16`. A key that is left out keeps its default. An unknown key is"
        " an error that names the nearest known one. [Train](../guides/train.md) shows them at"
        " work.",
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
        " training and these. [Speech LLM](../guides/speech-llm.md) explains them.",
        [
            Section("speech", "", SpeechConfig, "speech."),
            Section(
                "stages",
                "Each entry of the list `stages` has these keys.",
                StageConfig,
                "stages[].",
            ),
        ],
    ),
    "Decoding": (
        "`--options FILE` of `cortext decode`, `cortext evaluate` and the live commands reads these"
        " keys. `cortext train --lm` and `cortext tune decoder` fit them. In Python they are the"
        " fields of [`DecoderOptions`][cortext.decoding.DecoderOptions]."
        " [Fit the decoder options](../guides/decoder-options.md) shows how.",
        [Section("Decoder options", "", DecoderOptions)],
    ),
    "Ensembles": (
        "`--options FILE` and `--set KEY=VALUE` of [`cortext ensemble`](commands/ensemble.md) take"
        " these keys. [Ensembles](../guides/ensembles.md) explains the methods.",
        [Section("Ensemble options", "", EnsembleOptions)],
    ),
    "Simulation": (
        "`--set KEY=VALUE` of [`cortext simulate`](commands/simulate.md), [`cortext"
        " serve`](commands/serve.md) and [`cortext lm-server`](commands/lm-server.md)"
        " changes these keys of a preset. The defaults are those of the preset `demo`."
        " [The simulator](../inside/simulator.md) explains the model behind them.",
        [Section("Simulator", "", SimulatorConfig)],
    ),
    "Live decoding": (
        "These keys set up live decoding in Python, in a BRAND graph and for clients of the"
        " language-model server. The commands have [options](commands.md#live) for them.",
        [
            Section(
                "Pipeline options",
                "Fields of [`PipelineOptions`][cortext_live.core.acoustic_stream.PipelineOptions]"
                " in Python; [`cortext serve`](commands/serve.md) has options for them.",
                PipelineOptions,
            ),
            Section(
                "BRAND node parameters",
                "Keys under `parameters` of the node in the supergraph; [BRAND"
                " node](../guides/brand.md) shows one.",
                NodeConfig,
            ),
            Section(
                "Language-model server parameters",
                "Parameters that a client of [`cortext lm-server`](commands/lm-server.md) may set,"
                " by their published names; [the server's guide](../guides/lm-server.md) shows the"
                " messages.",
                PublishedOptions,
            ),
        ],
    ),
}
"""The page's parts: a heading, a paragraph, and their tables."""


def page() -> str:
    """Return the page in Markdown."""
    text = front("Configuration keys") + (
        "# Configuration keys\n\n"
        "Look up every key that a YAML file or `--set KEY=VALUE` can set: its default, its type,"
        " its bounds and its meaning.\n\n"
    )
    text += _recipes()
    seen = set()
    for title, (about, sections) in PARTS.items():
        text += f"## {title}\n\n{about}\n\n"
        for section in sections:
            for each in _nested(section):
                if (each.cls, each.prefix) in seen:  # two models have the same section
                    continue
                seen.add((each.cls, each.prefix))
                if len(sections) > 1 or each is not section:
                    text += f"### {each.title} {{#{_anchor(each.title, each.cls)}}}\n\n"
                text += f"{each.text}\n\n" if each.text else ""
                text += table(("Key", "Default", "Meaning"), _rows(each))
        if title == "Simulation":
            text += _presets()
    return text


_ANCHORS: dict[str, list[type]] = {}
"""Classes of sections with one title: models may have sections of one name with other defaults."""


def _anchor(title: str, cls: type) -> str:
    classes = _ANCHORS.setdefault(title, [])
    if cls not in classes:
        classes.append(cls)
    number = classes.index(cls) + 1
    return re.sub(r"\W+", "-", title.lower()) + (f"-{number}" if number > 1 else "")


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
        keys = {field.name for field in _keys(SimulatorConfig)}
        changed = [
            f"`{k}={v}`" for k, v in to_mapping(preset).items() if k in keys and v != default[k]
        ]
        rows.append((code(name), ", ".join(changed) or "the defaults"))
    return "The presets differ in these keys:\n\n" + table(("Preset", "Keys"), rows)


def _nested(section: Section) -> Iterator[Section]:
    """Yield the section, and a section for each dataclass in its fields."""
    yield section
    hints = typing.get_type_hints(section.cls)
    for name in (field.name for field in _keys(section.cls)):
        inner = _section_of(hint := hints[name])
        if inner is not None and typing.get_origin(hint) is not list:
            path = section.prefix + name
            about = (inner.__doc__ or "").split("\n\n")[0].partition(": ")[2] or inner.__doc__ or ""
            text = about.split("\n\n")[0]
            yield from _nested(Section(path, text[:1].upper() + text[1:], inner, f"{path}."))


def _rows(section: Section) -> Iterator[tuple[str, str, str]]:
    hints = typing.get_type_hints(section.cls)
    meanings = documented(section.cls)
    for field in _keys(section.cls):
        hint = hints[field.name]
        key = section.prefix + field.name
        kind = _type(hint)
        if bounds := _bounds(section.cls, field, hint):
            kind += f", {bounds}"
        inner = _section_of(hint)
        if inner is not None and typing.get_origin(hint) is not list:
            kind = f"[keys](#{_anchor(key, inner)})" + (
                " or null" if type(None) in _parts(hint) else ""
            )
        yield code(key), _default(field), f"{meanings.get(field.name, '')} *({kind})*"


def _keys(cls: type) -> list[dataclasses.Field[Any]]:
    """Return the fields that people set by key; others are set in other ways."""
    return [field for field in dataclasses.fields(cls) if field.metadata.get("key", True)]


def _section_of(hint: Any) -> type | None:
    """Return the dataclass in a type, if there is one."""
    return next((each for each in _parts(hint) if dataclasses.is_dataclass(each)), None)


def documented(cls: type) -> dict[str, str]:
    """Return the text beneath each field of a dataclass, or in its `Attributes:`."""
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
