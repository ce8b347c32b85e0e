"""Imports point down, so that a package can be understood with what lies below it alone."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

import cortext

SOURCE = Path(cortext.__file__).parent
LAYERS = [
    {"cli"},
    {"demo", "falcon", "bench", "tuning", "cloud"},
    {"speechllm", "live"},
    {"recalibration"},
    {"usage", "verification"},
    {"voices", "evaluation", "casing"},
    {"tpu"},
    {"training"},
    {"decoding", "models"},
    {"features"},
    {"data"},
    {"text"},
]
"""Top to bottom. Packages of one layer do not know each other.

What is not listed lies below all of them: single modules such as `errors`. They may import one
another.
"""
HEIGHT = {name: -layer for layer, names in enumerate(LAYERS) for name in names}
XLA = {"jax", "jaxlib", "torchax", "keras", "tensorflow"}


@functools.cache
def imports(file: Path) -> list[str]:
    """Dotted names of all that a file imports, also within functions."""
    found: list[str] = []
    for node in statements(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file} imports relatively"
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return found


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements, outer ones first; expressions, which hold no imports, are passed over."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, ast.expr):
            yield from statements(child)


def import_graph() -> dict[str, set[str]]:
    """Modules that each module imports, be it for types alone or within a function."""
    modules = {}
    for file in files():
        parts = file.relative_to(SOURCE.parent).with_suffix("").parts
        modules[".".join(part for part in parts if part != "__init__")] = file
    graph: dict[str, set[str]] = {}
    for module, file in modules.items():
        graph[module] = set()
        for name in imports(file):
            while name and name not in modules:  # `name` may end in a class or function
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


def points_down(importer: str, imported: str) -> bool:
    """Tell whether a part of cortext may import another one, both without the `cortext.`."""
    if importer == imported or imported not in HEIGHT:
        return True
    return importer in HEIGHT and HEIGHT[importer] > HEIGHT[imported]


def files() -> list[Path]:
    # What `import cortext` gives on first use comes from everywhere.
    return [path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py"]


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("cli", "training", True),
        ("training", "errors", True),
        ("tpu", "training", True),
        ("training", "tpu", False),
        ("decoding", "models", False),
        ("models", "decoding", False),
        ("errors", "text", False),
        ("config", "errors", True),
    ],
)
def test_the_rule_is_that_of_the_design(importer, imported, allowed):
    assert points_down(importer, imported) == allowed


def test_imports_point_down():
    wrong = []
    for file in files():
        importer = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        for name in imports(file):
            package, _, inner = name.partition(".")
            imported = inner.partition(".")[0]
            if package == "cortext" and imported and not points_down(importer, imported):
                wrong.append(f"{file.relative_to(SOURCE)} imports {name}")
    assert not wrong, "\n".join(wrong)


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


def test_no_imports_run_in_a_circle():
    graph = import_graph()
    found = [
        " - ".join(
            f"{module} ({', '.join(sorted(graph[module] & {*circle}))})" for module in circle
        )
        for circle in circles(graph)
    ]
    assert not found, "\n".join(found)


def test_every_package_has_a_layer():
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages <= set(HEIGHT), "say in LAYERS where it stands"


def test_only_tpu_imports_jax_and_tensorflow():
    wrong = [
        f"{file.relative_to(SOURCE)} imports {name}"
        for file in files()
        if file.relative_to(SOURCE).parts[0] != "tpu"
        for name in imports(file)
        if name.partition(".")[0] in XLA
    ]
    assert not wrong, "\n".join(wrong)
