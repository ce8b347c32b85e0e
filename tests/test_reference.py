"""The generated reference holds every command, every configuration key and every documented name."""

import ast
import dataclasses
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
import pytest
import yaml

from cortext import entry_points
from cortext.cli import run as cortext
from cortext.cli.tree import Group, all_commands
from cortext.config import to_mapping
from cortext.decoding import DecoderOptions
from cortext.features.augment import AUGMENTATIONS
from cortext.models import MODELS
from cortext.training import LOSSES
from cortext.training.config import RECIPES, TASKS, TrainConfig
from cortext_data.simulate import SimulatorConfig
from cortext_live.brand.parameters import NodeConfig
from cortext_live.core.acoustic_stream import EndpointOptions, PipelineOptions
from cortext_live.lm_server.published_options import PublishedOptions
from cortext_lm.ensemble import EnsembleOptions
from cortext_speechllm.config import LoRAConfig, SpeechConfig, SpeechLLMConfig, StageConfig
from reference_pages import commands, configuration, python
from reference_pages.fields import Fields

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
GROUPS = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"])
NOT_NAMES = {"cortext.json"} | GROUPS


@pytest.fixture(scope="module", autouse=True)
def _at_the_root():
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield


# Commands


def names() -> list[str]:
    return [
        full
        for group in all_commands().values()
        for name, entry in group.items()
        for full in (
            [f"{name} {below}" for below in entry.commands] if isinstance(entry, Group) else [name]
        )
    ]


def test_every_command_has_a_page_in_the_table_and_in_the_navigation():
    pages = commands.pages()
    for name in names():
        first, _, below = name.partition(" ")
        link = f"commands/{first}.md" + (f"#{below}" if below else "")
        assert f"[`cortext {name}`]({link})" in pages["reference/commands.md"]
    listed = re.findall(r"reference/[\w/-]+\.md", str(commands.nav()))
    assert sorted(listed) == sorted(pages)


def test_a_page_has_every_option_that_the_help_shows(capsys):
    missing = {}
    for name in names():
        assert cortext([*name.split(), "--help"]) == 0
        options = set(re.findall(r"^  (--[a-z][a-z-]*)", capsys.readouterr().out, re.MULTILINE))
        page = commands.pages_of([name.split()[0]])[commands.page_of(name.split()[0])]
        if " " in name:
            page = page.partition(f"## {name} {{")[2].partition("\n## ")[0]
        left = options - set(re.findall(r"\| `(--[a-z-]+)", page))
        if left != {"--help"}:
            missing[name] = left - {"--help"} or "it has no --help, or the page lists it"
    assert not missing


# Configuration keys


def flat(mapping: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if isinstance(value, dict) and value and key != "val_wer_options":
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def settings() -> list[tuple[str, Any, str]]:
    """Prefix, dataclass with its defaults and heading."""
    kinds = [
        (MODELS, "model.", "Model"),
        (LOSSES, "loss.", "Loss"),
        (TASKS, "task.", "Task"),
        (AUGMENTATIONS, "dataset.augmentations[].", "Augmentation"),
    ]
    return [
        ("", TrainConfig(), "Schedule, optimiser and saving"),
        # Benchmarks that other tests import register models of their own.
        *(
            (prefix, cls.Config(), f"{title}: {kind}")
            for registry, prefix, title in kinds
            for kind, cls in registry.items()
            if cls.__module__.startswith(("cortext.", "cortext_"))
        ),
        ("speech.", SpeechConfig(lora=LoRAConfig()), "speech"),
        ("stages[].", StageConfig("name"), "stages"),
        ("", DecoderOptions(), "Decoding"),
        ("", EnsembleOptions(), "Ensembles"),
        ("", SimulatorConfig(), "Simulation"),
        ("", PipelineOptions(endpoint=EndpointOptions()), "Pipeline options"),
        ("", NodeConfig(Path("run")), "BRAND node parameters"),
        ("", PublishedOptions(), "Language-model server parameters"),
    ]


@pytest.fixture(scope="module")
def rows() -> dict[str, list[str]]:
    """The page's rows by heading, from it to the next one that is as high."""
    page = configuration.page()
    found = {}
    for part in re.split(r"^(?=##+ )", page, flags=re.MULTILINE)[1:]:
        title = part.splitlines()[0].strip("# ").partition(" {")[0]
        below = page[page.index(part) :]
        end = re.search(r"\n## ", below[3:])
        found[title] = [
            line for line in below[: end and end.start() + 3].splitlines() if line[:3] == "| `"
        ]
    return found


@pytest.mark.parametrize(("prefix", "config", "heading"), settings())
def test_every_key_stands_under_its_heading_with_its_default(prefix, config, heading, rows):
    plain = to_mapping(config)
    if heading == "Schedule, optimiser and saving":
        plain = {key: value for key, value in plain.items() if key not in ("model", "best_metric")}
    if isinstance(config, SimulatorConfig):  # conventions have options of their own
        plain = {key: value for key, value in plain.items() if key not in ("inventory", "language")}
    for key, value in flat(plain, prefix):
        # Sections that two models share stand once.
        lines = [
            line for line in rows[heading] + rows["Training"] if line[2:].startswith(f"`{key}` |")
        ]
        assert lines, key
        default, meaning = lines[0].split(" | ")[1:3]
        assert len(meaning) > 10, key
        if default in ("required", "empty", ""):
            assert value in ("name", "run", "", ()) or default == "", key
        else:
            assert yaml.safe_load(default.strip("`")) == (
                list(value) if isinstance(value, tuple) else value
            ), key


def test_no_section_of_the_speech_llm_is_missing():
    own = {field.name for field in dataclasses.fields(SpeechLLMConfig)}
    own -= {field.name for field in dataclasses.fields(TrainConfig)}
    assert own == {"speech", "stages"}


def test_bounds_are_those_that_the_program_states(rows):
    wanted = {
        ("Decoding", "beam"): "at least 0 and at most 1,000,000,000",
        ("Decoding", "llm.weight"): "at least 0 and at most 1000",
        ("Schedule, optimiser and saving", "beta0"): "at least 0 and below 1",
        ("Schedule, optimiser and saving", "dataset.batch_size"): "at least 1 and at most 65536",
        ("Simulation", "n_electrodes"): "a multiple of 4",
        ("Pipeline options", "endpoint.silence_ms"): "above 0",
    }
    for (heading, key), bounds in wanted.items():
        (line,) = [line for line in rows[heading] if line.startswith(f"| `{key}` |")]
        assert bounds in line


def test_every_recipe_is_listed(rows):
    assert {line.split("`")[1] for line in rows["Recipes"] if "--config" in line} == {
        path.stem for path in RECIPES.glob("*.yaml")
    }


# Python


@pytest.fixture(scope="module")
def modules() -> Any:
    return python.packages()


@pytest.fixture(scope="module")
def documented(modules) -> set[str]:
    """Full names of the objects that the pages document."""
    text = "".join(python.pages(modules).values())
    found = {resolved(modules, name) for name in re.findall(r"^::: (\S+)", text, re.MULTILINE)}
    assert len(found) > 150
    assert all(each.docstring for each in found)  # without one mkdocstrings shows nothing
    return {each.canonical_path for each in found}


def test_names_are_listed_under_their_package(modules):
    names = {
        (package, name.partition(".")[0])
        for package, parts in python.PARTS.items()
        for part in parts.values()
        for name in part.names
    }
    assert all(package == listed for package, listed in names)
    assert set(python.PARTS) == set(modules.members) - {"cortext_bench", "cortext_cuda"}


def resolved(modules: Any, name: str) -> Any:
    found = modules[name]
    if found.is_module and found.name in found.members:  # `adapt` of `cortext_live.adapt`
        found = found[found.name]
    return found.final_target if found.is_alias else found


def used(document: Path) -> set[str]:
    """Dotted names of ours that a document imports, or names in its text."""
    text = document.read_text()
    found = set(re.findall(r"(?<!`)`(cortext(?:_\w+)?(?:\.\w+)+)(?=[(`])", text)) - NOT_NAMES
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        bound = {}
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cortext"):
                bound |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            elif isinstance(node, ast.Import):
                ours = [a for a in node.names if a.name.startswith("cortext")]
                bound |= {a.asname or "cortext": a.name if a.asname else "cortext" for a in ours}
        found |= set(bound.values())
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute):
                first, _, rest = ast.unparse(node).partition(".")
                if first in bound and re.fullmatch(r"[\w.]+", rest):
                    found.add(f"{bound[first]}.{rest}")
    return found - {"cortext"}


def test_every_name_that_a_document_uses_is_in_the_reference(modules, documented):
    missing = {}
    for document in DOCUMENTS:
        for name in used(document):
            try:
                found = resolved(modules, name)
            except KeyError:  # an attribute that an instance gets
                found = resolved(modules, name.rpartition(".")[0])
                if not (found.is_class or found.is_attribute):
                    missing[document.name, name] = "no class or attribute holds it"
                    continue
            path = found.canonical_path
            if not found.is_module and not any(
                f"{path}.".startswith(f"{each}.") for each in documented
            ):
                missing[document.name, name] = "not in the reference"
    assert not missing


@pytest.mark.parametrize(
    "text", [entry_points.__doc__, (ROOT / "docs/inside/architecture.md").read_text()]
)
def test_every_group_of_entry_points_is_in_the_tables(text):
    assert set(re.findall(r"^\| `(cortext\.\w+)` \|", text, re.MULTILINE)) == GROUPS


def test_the_documents_are_read_for_names():
    names = set().union(*map(used, DOCUMENTS))
    assert len(names) >= 50
    assert {"cortext.train", "cortext_lm.ensemble.combine"} <= names


def test_a_field_is_shown_with_its_type_and_default_and_without_its_setting(tmp_path):
    (tmp_path / "sizes.py").write_text("""
from typing import Annotated
class Sizes:
    width: Annotated[int | None, Setting(minimum=1)] = 3
    '''Width in units.'''
""")
    extensions = griffe.load_extensions(Fields)
    shown = griffe.load("sizes", search_paths=[tmp_path], extensions=extensions)["Sizes"]
    assert str(shown["width"].annotation) == "int | None"
    assert "width: Width in units. Default: `3`." in shown.docstring.value
