"""The table of kinds of messages, and those who keep to it.

The server, the page's scripts and the reference page, which says by hand what a watcher gets.
"""

import ast
import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from serving import TOKEN, make_session, serving

import cortext_live
from cortext_live.page.kinds import KINDS, Kind
from cortext_live.page.messages import Event, Fanout, Reader

PACKAGE = Path(cortext_live.__file__).parent
WEB = PACKAGE / "page" / "web"
REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "web-socket.md"
ABOUT = {"version": "1", "run": "run", "lm": "lm", "llm": None}
NEW = Kind()  # as somebody adds one who gives no thought to audience and retention


# The reference page


def rows(heading: str) -> list[list[str]]:
    """The cells of the first table below a heading."""
    section = REFERENCE.read_text().partition(f"\n{heading}\n")[2].partition("\n#")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def names(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


def documented_fields(kind: str) -> set[str]:
    short = [names(field) for kinds, field, _ in rows("### Short messages") if kind in names(kinds)]
    if short:
        return set().union(*short)
    cells = [row[0] for row in rows(f"### {kind}")]
    others = [cell for cell in cells if cell.startswith("all fields of")]
    fields = set().union(*(names(cell) for cell in cells if cell not in others))
    return fields.union(*(documented_fields(other) for cell in others for other in names(cell)))


@dataclass
class Documented:
    """What the reference page says of a kind."""

    later: str
    fields: set[str]
    strangers: set[str]
    emptied: set[str]


def documented() -> dict[str, Documented]:
    found = {}
    for type_, _, later, without in rows("## Watching"):
        (kind,) = names(type_)
        fields = documented_fields(kind)
        strangers = {
            "the same": fields,
            "nothing": set(),
            "without": fields - names(without),
            "with empty": fields,
        }[without.partition("`")[0].strip()]
        emptied = names(without) if without.startswith("with empty") else set()
        found[kind] = Documented(later, fields, strangers, emptied)
    return found


def test_the_reference_page_has_every_kind_its_audience_and_what_a_later_page_gets():
    page = documented()
    assert list(page) == list(KINDS)
    for name, kind in KINDS.items():
        assert page[name].later.startswith(kind.later), name
        assert page[name].fields, name
        assert set(kind.strangers) == page[name].strangers, name
        assert set(kind.emptied) == page[name].emptied, name


# The scripts


def handled(script: Path) -> set[str]:
    """The kinds that a script handles."""
    text = script.read_text()
    receivers = re.search(r"const receivers = \{\n(.*?)\n  \};", text, re.S)
    found = set(re.findall(r'message\.type === "(\w+)"', text))
    assert text.count(".type]") == (receivers is not None)
    return found | set(re.findall(r"^    (\w+)[:,]", receivers[1] if receivers else "", re.M))


def test_the_scripts_handle_the_kinds_of_the_table_and_no_others():
    by_script = {
        script.relative_to(WEB).as_posix(): handled(script) for script in WEB.rglob("*.js")
    }
    assert {name: kinds for name, kinds in by_script.items() if kinds} == {
        "link.js": {"hello"},
        "observer/app.js": set(KINDS),
        # It shows neither figures nor faults.
        "participant/app.js": set(KINDS) - {"stats", "error"},
    }


# The server


def sent_kinds(module: Path) -> set[str]:
    """The kinds of all messages that a module makes; each has its name written there."""
    tree = ast.parse(module.read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    made = [
        call.args[0]
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id == "Event"
    ]
    if module.name == "messages.py":  # a message's own kind again, with fewer fields
        made = [kind for kind in made if ast.unparse(kind) != "self.kind"]
    assert all(isinstance(kind, ast.Constant) for kind in made), module
    return {kind.value for kind in made}


def test_every_kind_that_is_sent_is_in_the_table_and_every_one_of_the_table_is_sent():
    modules = list(PACKAGE.rglob("*.py"))
    assert set().union(*map(sent_kinds, modules)) == set(KINDS)
    # No message goes to a web socket beside them.
    assert [module for module in modules if ".send_json(" in module.read_text()] == []


def test_a_message_of_a_kind_that_is_not_in_the_table_is_an_error():
    with pytest.raises(ValueError, match="'draft' is no kind of message; add it to"):
        Event("draft", {"text": "i see you"})


def sent(*messages: Event, is_stranger: bool = False, later: bool = False) -> list[dict]:
    """What a page is sent of messages; `later`: when it connects, instead of while it is there."""

    async def read() -> list[dict]:
        reader, fanout = Reader(asyncio.get_running_loop(), is_stranger), Fanout()
        fanout.add(reader, messages if later else ())
        for message in () if later else messages:
            fanout.send(message)
        return [json.loads(await reader.get()) for _ in range(len(reader))]

    return asyncio.run(read())


def test_a_new_kind_and_a_new_field_reach_no_stranger(monkeypatch):
    monkeypatch.setitem(KINDS, "draft", NEW)
    messages = Event("draft", {"text": "i see"}), Event("error", {"what": "no", "draft": "i see"})
    assert sent(*messages) == [
        {"type": "draft", "text": "i see"},
        {"type": "error", "what": "no", "draft": "i see"},
    ]
    assert sent(*messages, is_stranger=True) == [{"type": "error", "what": "no"}]


def test_a_page_that_connects_later_is_sent_nothing_of_a_new_kind(monkeypatch):
    monkeypatch.setitem(KINDS, "draft", NEW)
    messages = Event("draft", {"text": "i see"}), Event("history", {"entries": []})
    assert sent(*messages, later=True) == [{"type": "history", "entries": []}]


@pytest.fixture
def served(page_root):
    with serving(make_session(page_root, about=ABOUT), open_view=True) as served:
        yield served


def make_all_kinds(served) -> None:
    """Let the server send its pages every kind but `error`."""
    with served.page() as page:
        page.next("stats")
        served.post("start", {"trial": 0})
        said = page.next("utterance")
        other = next(each["text"] for each in said["nbest"] if each["text"] != said["text"])
        served.post("choose", {"utterance": said["id"], "text": other})
        turn = served.post("turn", {"text": "What do you see?"}).json()["entry"]
        served.post("forget", {"entries": [turn]})
        page.next("forgotten")


def test_pages_are_sent_the_kinds_and_fields_that_the_reference_page_says(served, monkeypatch):
    monkeypatch.setitem(KINDS, "draft", NEW)
    page = documented()
    with served.page() as own, served.page(token=None) as stranger:
        greetings = own.until("stats"), stranger.until("stats")
        make_all_kinds(served)
        served.session.readers.send(Event("draft", {"text": "i see"}))
        served.session.refuse_fed("the end").result()
        owns = {"draft": {"text"}} | {kind: row.fields for kind, row in page.items()}
        strangers = {kind: row.strangers for kind, row in page.items() if row.strangers}
        for greeting, each, allowed in zip(
            greetings, (own, stranger), (owns, strangers), strict=True
        ):
            messages = greeting + each.until("error", what="the end")
            assert {message["type"] for message in messages} == set(allowed)
            for message in messages:
                kind = message.pop("type")
                assert set(message) == allowed[kind], kind
                if each is stranger and kind in page:
                    assert not any(message[name] for name in page[kind].emptied)


def test_a_page_that_connects_later_is_sent_the_kinds_that_the_reference_page_says(served):
    page = documented()
    make_all_kinds(served)
    for token in (TOKEN, None):
        with served.page(token) as later:
            kinds = [message["type"] for message in later.until("stats")]
            assert kinds == [
                kind
                for kind, row in page.items()
                if row.later[:7] != "nothing" and (token or row.strangers)
            ]
            served.session.refuse_fed("the end").result()
            assert later.read()["type"] == "error"  # nothing else came before
