"""What a result file says about its making."""

import sys
from types import SimpleNamespace

from cortext.provenance import OF_OTHER_ENGINES, provenance


def test_libraries_of_other_engines_are_named_where_they_have_been_imported(monkeypatch):
    for name in OF_OTHER_ENGINES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "jax", None)  # as Python marks what must not be imported
    assert not set(OF_OTHER_ENGINES) & set(provenance()["versions"])
    monkeypatch.setitem(sys.modules, "keras", SimpleNamespace(__version__="3.15.1"))
    assert provenance()["versions"]["keras"] == "3.15.1"
