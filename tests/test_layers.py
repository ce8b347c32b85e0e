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

What is not listed lies below all of them: single modules such as `errors`, which import each other.
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
