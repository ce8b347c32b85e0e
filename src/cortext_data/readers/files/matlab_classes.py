"""MATLAB's classes that are not read: their names in messages, and what to save instead."""

from __future__ import annotations

from collections.abc import Sequence

STRUCT, SPARSE, COMPLEX, FUNCTION = (
    "a struct",
    "a sparse matrix",
    "complex numbers",
    "a function handle",
)
_OBJECT = "an object"
_NUMBERS = {
    "double", "single", "logical",
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
}  # fmt: skip
_INSTEAD = {
    SPARSE: "save it with full({x})",
    COMPLEX: "save it with abs({x}), or with real({x}) and imag({x})",
    FUNCTION: "save what it computes: it has no values",
    _OBJECT: "save its parts as variables of their own, texts with cellstr, numbers with double",
}
_OF_CLASS = {
    "string": "save it with cellstr({x})",
    "categorical": "save it with cellstr({x}), or its numbers with double({x})",
    "datetime": "save it with cellstr({x}), or its seconds with posixtime({x})",
    "duration": "save it with seconds({x})",
    "calendarDuration": "save it with cellstr({x})",
    "table": "save its columns as variables of their own, texts with cellstr({x}.COLUMN)",
    "timetable": "save its columns as variables of their own, texts with cellstr({x}.COLUMN)",
    "containers.Map": "save it with keys({x}) and values({x})",
    "dictionary": "save it with cellstr(keys({x})) and values({x})",
}
_MOST_FIELDS = 20  # that are listed
_LONGEST = 63  # letters of a name in MATLAB


def object_of(name: str) -> str:
    """Return the kind of an object, by the name of its class; it may be empty."""
    is_name = name.replace(".", "").replace("_", "").isalnum() and name.isascii()
    return f"{_OBJECT} of class {name}" if is_name and len(name) <= _LONGEST else _OBJECT


def is_numeric(name: str) -> bool:
    """Return whether the arrays of a class are numbers."""
    return name in _NUMBERS


def instead(kind: str, name: str, field: str = "FIELD") -> str:
    """Return what to save in place of an array.

    Args:
        kind: What it is: one of the names above, or anything else.
        name: Name of the variable.
        field: The field of a struct that is asked for.
    """
    if kind == STRUCT:
        return (
            f"save its parts as variables of their own: with save(FILE, '-struct', '{name}'), or"
            f" of a struct array with {field} = {{{name}.{field}}}"
        )
    general, _, of_class = kind.partition(" of class ")
    text = _OF_CLASS.get(of_class) or _INSTEAD.get(general, "save it in that form")
    return text.format(x=name)


def listed(fields: Sequence[str]) -> str:
    """Return the fields of a struct in words; empty where none is known."""
    more = ", ..." if len(fields) > _MOST_FIELDS else ""
    return f" with the fields {', '.join(fields[:_MOST_FIELDS])}{more}" if fields else ""
