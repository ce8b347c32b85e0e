"""The facts about its making in a result file."""

import sys
from types import SimpleNamespace

from cortext.provenance import OF_EXTRAS, provenance


def test_libraries_of_other_engines_are_named_where_they_have_been_imported(monkeypatch):
    for name in OF_EXTRAS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "jax", None)  # as Python marks what must not be imported
    assert not set(OF_EXTRAS) & set(provenance()["versions"])
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(__version__="3.15.1"))
    assert provenance()["versions"]["keras"] == "3.15.1"
