"""Shows the fields of a class in one table, where mkdocstrings gives each a heading of its own."""

from typing import Any

import griffe


class Fields(griffe.Extension):
    """Moves the texts beneath a class' fields into the class' own docstring."""

    def on_class(self, *, cls: Any, **_: Any) -> None:
        """Add a table of fields to a class. Called by griffe."""
        for member in cls.members.values():
            annotation = member.annotation if member.is_attribute else None
            if getattr(annotation, "canonical_path", "") == "typing.Annotated":
                member.annotation = annotation.slice.elements[0]  # the type, without its bounds
        fields = {
            name: member
            for name, member in cls.members.items()
            if member.is_attribute
            and member.docstring
            and "property" not in member.labels
            and not name.startswith("_")
        }
        if not fields:
            return
        lines = ["", "", "Attributes:"]
        for name, field in fields.items():
            meaning = " ".join(field.docstring.value.split())
            if field.value is not None and "(" not in str(field.value):
                meaning += f" Default: `{field.value}`."
            lines.append(f"    {name}: {meaning}")
            field.docstring = None
        if cls.docstring is None:
            cls.docstring = griffe.Docstring("", parent=cls)
        cls.docstring.value += "\n".join(lines)
