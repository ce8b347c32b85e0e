"""Old names of modules and objects."""

import importlib
import subprocess
import sys

import pytest

from cortext import renamed


def warned(code):
    """Run `code` in a fresh interpreter; return what it prints, with its warnings."""
    done = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


@pytest.fixture
def old_module(monkeypatch):
    """`cortext.words` and all in `cortext.speech` have moved."""
    monkeypatch.setitem(renamed.MODULES, "cortext.words", "cortext.text.lexicon")
    monkeypatch.setitem(renamed.MODULES, "cortext.speech", "cortext.text")
    yield
    for name in ("cortext.words", "cortext.speech", "cortext.speech.lexicon"):
        sys.modules.pop(name, None)


def test_a_module_that_moved_is_found_under_its_old_name_with_a_warning(old_module):
    with pytest.warns(DeprecationWarning, match=r"cortext\.words is now cortext\.text\.lexicon;"):
        old = importlib.import_module("cortext.words")
    assert old is importlib.import_module("cortext.text.lexicon")
    assert old.__name__ == old.__spec__.name == "cortext.text.lexicon"


def test_a_module_of_a_package_that_moved_is_not_loaded_twice(old_module):
    with pytest.warns(DeprecationWarning, match=r"is now cortext\.text"):
        old = importlib.import_module("cortext.speech.lexicon")
    assert old is sys.modules["cortext.text.lexicon"]


def test_a_module_that_never_was_is_not_found(old_module):
    with (
        pytest.warns(DeprecationWarning, match=r"is now cortext\.text"),
        pytest.raises(ModuleNotFoundError, match=r"cortext\.text\.nothing"),
    ):
        importlib.import_module("cortext.speech.nothing")
    with pytest.raises(ModuleNotFoundError, match=r"cortext\.nothing"):
        importlib.import_module("cortext.nothing")


def test_the_warning_points_at_the_line_that_uses_the_old_name():
    names = "import cortext; from cortext import renamed\nrenamed.MODULES['cortext.w'] = 'cortext.text'\n"
    _, error = warned(names + "import cortext.w")
    assert error.startswith("<string>:3: DeprecationWarning: cortext.w is now cortext.text;")


def test_an_object_is_found_under_its_old_name_with_a_warning():
    found = renamed.renamed(
        "cortext.text.lexicon", {"Words": "Lexicon", "G2P": "cortext.text.g2p:G2P"}
    )
    with pytest.warns(
        DeprecationWarning, match=r"lexicon\.Words is now cortext\.text\.lexicon\.Lexicon"
    ):
        assert found("Words").__name__ == "Lexicon"
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        found("other")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_old_name_leads_somewhere(monkeypatch):
    for name, new in renamed.MODULES.items():
        monkeypatch.delitem(sys.modules, name, raising=False)
        assert importlib.import_module(name) is importlib.import_module(new)
        monkeypatch.delitem(sys.modules, name)
