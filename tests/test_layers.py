"""Imports point down, so that a package can be understood with what lies below it alone."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import cortext

SOURCE = Path(cortext.__file__).parents[1]
CORE = "cortext"
STANDS_ON = {
    "cortext_data": set(),
    "cortext_lm": set(),
    "cortext_checks": {"cortext_live"},
    "cortext_cuda": set(),
    "cortext_tpu": set(),
    "cortext_live": {"cortext_lm", "cortext_data"},
    "cortext_speechllm": {"cortext_lm", "cortext_live"},
    "cortext_tune": {"cortext_lm"},
    "cortext_published": {"cortext_checks", "cortext_data", "cortext_live"},
    "cortext_bench": {
        "cortext_data",
        "cortext_lm",
        "cortext_checks",
        "cortext_cuda",
        "cortext_tpu",
        "cortext_live",
        "cortext_speechllm",
        "cortext_tune",
        "cortext_published",
    },
}
"""The packages around the core, and those that each may import beside the core and itself."""
LAYERS = [
    {"cli"},
    {"evaluation"},
    {"training"},
    {"decoding", "models"},
    {"features"},
    {"data"},
    {"text"},
]
"""Folders of the core, top to bottom. Folders of one layer do not know each other.

What is not listed lies below all of them: single modules such as `errors`. They may import one
another.
"""
HEIGHT = {name: -layer for layer, names in enumerate(LAYERS) for name in names}
XLA = {"jax", "jaxlib", "torchax", "keras", "tensorflow"}


@functools.cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@functools.cache
def imports(file: Path) -> list[tuple[int, str]]:
    """Lines and dotted names of all that a file imports, for types and within functions, too."""
    found: list[tuple[int, str]] = []
    for node in statements(tree(file)):
        if isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file} imports relatively"
            found += ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
    return found


def in_strings(file: Path) -> list[tuple[int, str]]:
    """Lines and names of our packages in a file's strings: what they name could be imported.

    Docstrings are passed over.
    """
    if "cortext_" not in file.read_text():
        return []
    nodes = list(ast.walk(tree(file)))
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    put_together = {
        id(part)
        for node in nodes
        if isinstance(node, ast.JoinedStr | ast.BinOp)
        for part in ast.iter_child_nodes(node)
    }
    return [
        (node.lineno, name)
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose
        for name in re.findall(r"\bcortext_[\w.]*", node.value)
        if package_of(name) in STANDS_ON or (name == "cortext_" and id(node) in put_together)
    ]


def package_of(name: str) -> str:
    return name.partition(".")[0]


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements, outer ones first; expressions, which hold no imports, are passed over."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, ast.expr):
            yield from statements(child)


@functools.cache
def modules() -> dict[str, Path]:
    """Files by dotted names, but for the core's first page, whose names come from all of it."""
    found = {}
    for file in files():
        parts = file.relative_to(SOURCE).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = file
    return {name: file for name, file in found.items() if name != CORE}


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """Modules that each module imports, be it for types alone or within a function."""
    graph: dict[str, set[str]] = {}
    for module, file in modules().items():
        graph[module] = set()
        for _, name in imports(file):
            while name and name not in modules():  # `name` may end in a class or function
                name = name.rpartition(".")[0]
            graph[module] |= {name} - {"", module}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one module."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        reached[start] = set()
        todo = [start]
        while todo:
            new = graph[todo.pop()] - reached[start]
            reached[start] |= new
            todo += new
    components = {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in graph
    }
    return sorted(sorted(each) for each in components if each)


def may_import(importer: str, imported: str) -> bool:
    """Tell whether one of our packages may import another one."""
    return imported in {CORE, importer} | STANDS_ON.get(importer, set())


def points_down(importer: str, imported: str) -> bool:
    """Tell whether a folder or module of the core may import another one."""
    if importer == imported or imported not in HEIGHT:
        return True
    return importer in HEIGHT and HEIGHT[importer] > HEIGHT[imported]


@functools.cache
def files() -> list[Path]:
    return [path for package in packages() for path in sorted((SOURCE / package).rglob("*.py"))]


def packages() -> list[str]:
    return sorted(path.parent.name for path in SOURCE.glob("cortext*/__init__.py"))


def first_page(package: str) -> str:
    return " ".join((ast.get_docstring(tree(SOURCE / package / "__init__.py")) or "").split())


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("cortext", "cortext_live", False),
        ("cortext_live", "cortext", True),
        ("cortext_live", "cortext_lm", True),
        ("cortext_lm", "cortext_live", False),
        ("cortext_bench", "cortext_speechllm", True),
    ],
)
def test_the_core_stands_on_none_and_packages_on_what_they_say(importer, imported, allowed):
    assert may_import(importer, imported) == allowed


def test_packages_import_the_core_and_what_they_stand_on_alone():
    wrong = [
        f"{file.relative_to(SOURCE)}:{line} names {name}"
        for file in files()
        for line, name in imports(file) + in_strings(file)
        if package_of(name) in {CORE, "cortext_", *STANDS_ON}
        and not may_import(file.relative_to(SOURCE).parts[0], package_of(name))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "if TYPE_CHECKING:\n    from cortext_lm.llm import LLM",
        "def f():\n    import cortext_lm.llm",
        "HOME = 'cortext_lm.llm:LLM'",
        "def f(name):\n    return import_module(f'cortext_{name}')",
        "def f(name):\n    return import_module('cortext_' + name)",
    ],
)
def test_every_way_to_reach_a_package_is_seen(text, tmp_path):
    file = tmp_path / "module.py"
    file.write_text(f'"""Prose about `cortext_lm`."""\n{text}')
    ((_, name),) = imports(file) + in_strings(file)
    assert package_of(name) in ("cortext_lm", "cortext_")


def test_every_package_is_listed_and_none_stands_on_itself():
    assert set(packages()) == {CORE, *STANDS_ON}, "say in STANDS_ON what it stands on"
    assert not circles(STANDS_ON)


@pytest.mark.parametrize("package", sorted(STANDS_ON))
def test_the_first_page_of_a_package_names_what_it_stands_on(package):
    said = re.search(r"Stands on ([^.]*)\.", first_page(package))
    assert said, "a sentence that begins with `Stands on`"
    assert set(re.findall(r"`(\w+)`", said[1])) == {CORE} | STANDS_ON[package]


@pytest.mark.parametrize("package", packages())
def test_a_first_page_leads_to_modules_functions_and_classes_that_are_there(package):
    missing = set()
    for name in re.findall(r"`([a-z]\w*(?:\.\w+)*)`", first_page(package)):
        full = name if package_of(name) in {CORE, *STANDS_ON} else f"{package}.{name}"
        module, _, last = full.rpartition(".")
        if full not in {CORE, *modules()} and not defines(module, last):
            missing.add(name)
    assert not missing


def defines(module: str, name: str) -> bool:
    file = modules().get(module)
    pattern = rf'^(?:def|class) {name}\b|^ +"{name}"'  # or in `__all__`
    return bool(file and re.search(pattern, file.read_text(), re.MULTILINE))


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("cli", "training", True),
        ("training", "errors", True),
        ("evaluation", "training", True),
        ("training", "evaluation", False),
        ("decoding", "models", False),
        ("models", "decoding", False),
        ("errors", "text", False),
        ("config", "errors", True),
    ],
)
def test_the_rule_within_the_core_is_that_of_the_design(importer, imported, allowed):
    assert points_down(importer, imported) == allowed


def test_imports_within_the_core_point_down():
    wrong = []
    for module, file in modules().items():
        for line, name in imports(file) if package_of(module) == CORE else ():
            package, imported = (*name.split("."), "")[:2]
            if package == CORE and not points_down(module.split(".")[1], imported):
                wrong.append(f"{file.relative_to(SOURCE)}:{line} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_every_folder_of_the_core_has_a_layer():
    folders = {path.parent.name for path in (SOURCE / CORE).glob("*/__init__.py")}
    assert folders == set(HEIGHT), "say in LAYERS where it stands"


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ({"a": {"b", "c"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [["a", "b"]]),
        ({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": {"d"}}, ["abc", "de"]),
    ],
)
def test_circles_are_found(graph, expected):
    assert circles(graph) == [list(each) for each in expected]


def test_the_graph_has_imports_of_types_and_those_within_functions():
    graph = import_graph()
    assert "cortext.data.packed_dataset" in graph["cortext.data.label_sentences"]  # a type
    assert "cortext.data.dataset" in graph["cortext.cli.data"]  # within a function
    assert "cortext_lm.llm.explain" in graph["cortext_live.voices.vits"]  # another package


def test_no_imports_run_in_a_circle():
    graph = import_graph()
    found = [
        " - ".join(
            f"{module} ({', '.join(sorted(graph[module] & {*circle}))})" for module in circle
        )
        for circle in circles(graph)
    ]
    assert not found, "\n".join(found)


def test_only_tpu_imports_jax_and_tensorflow():
    wrong = [
        f"{file.relative_to(SOURCE)}:{line} imports {name}"
        for file in files()
        if not file.is_relative_to(SOURCE / "cortext_tpu")
        for line, name in imports(file)
        if package_of(name) in XLA
    ]
    assert not wrong, "\n".join(wrong)
