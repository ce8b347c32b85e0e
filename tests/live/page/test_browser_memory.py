"""The conversation on the observers' page, by keyboard, in Chromium."""

import csv
import io
import json

import pytest
from disk_search import files_with
from page_browser import PageServer, Watched, axe
from page_participant import Participant

from cortext_live.usage.deletion import Selection, delete
from cortext_live.usage.log import read_log
from cortext_live.usage.log_entries import Deleted

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ENTRIES = "#talk-list li"
# Trial 0 says "i see you" and trial 2 "you and me".


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = PageServer(tmp_path_factory.mktemp("memory"), "--speed", "20").start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def watched(browser, server):
    watched = Watched(browser, server.url).open().connected()
    yield watched
    watched.context.close()


@pytest.fixture(autouse=True)
def harmless(watched):
    """Nothing is fetched from elsewhere, nothing complained of, and no test leaves a panel open."""
    yield
    watched.page.keyboard.press("Escape")
    assert (watched.foreign, watched.complaints) == ([], [])


@pytest.fixture
def talk(watched, server):
    """The page after two sentences and a turn, with the panel open and the cursor in the field."""
    page = watched.page
    everything = {"all": True}
    page.evaluate(
        """body => fetch("api/forget", { method: "POST", body: JSON.stringify(body),
        headers: { Authorization: "Bearer secret" } })""",
        everything,
    )
    watched.decode(0)
    watched.decode(2)
    page.keyboard.press("c")
    page.wait_for_selector("#turn:focus")
    page.keyboard.type("Do you like giraffes?")
    page.keyboard.press("Enter")
    shown(watched, 3)
    return watched


def shown(watched, n):
    """Wait for so many entries; return their texts."""
    watched.page.wait_for_function(
        "([s, n]) => document.querySelectorAll(s).length === n", arg=[ENTRIES, n]
    )
    return watched.page.locator(f"{ENTRIES} .said").all_inner_texts()


def tab_to(page, selector):
    """Press Tab until something has the focus."""
    for _ in range(30):
        if page.evaluate("s => document.activeElement?.matches(s)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {selector}")


def log_of(server):
    return server.root / "log"


def test_what_was_said_is_listed_with_times(talk):
    texts = shown(talk, 3)
    assert [text.lower().strip(".!?") for text in texts[:2]] == ["i see you", "you and me"]
    assert texts[2] == "Do you like giraffes?"
    notes = talk.page.locator(f"{ENTRIES} .note").all_inner_texts()
    assert [note.split(" · ")[1] for note in notes] == ["Participant", "Participant", "Partner"]
    assert all(len(note.split(" · ")[0]) == len("12:00") for note in notes)
    assert axe(talk.page) == []


def test_a_search_finds_entries_while_it_is_typed(talk):
    page = talk.page
    tab_to(page, "#talk-search")
    page.keyboard.type("GIRAFF")
    assert shown(talk, 1) == ["Do you like giraffes?"]
    page.keyboard.type("(.*")
    shown(talk, 0)
    assert talk.text("#talk-none") == "Nothing was found."
    for _ in range(len("GIRAFF(.*")):
        page.keyboard.press("Backspace")
    shown(talk, 3)


@pytest.mark.parametrize("format", ["text", "csv", "jsonl"])
def test_the_conversation_is_saved_as_a_file(talk, format):
    page = talk.page
    tab_to(page, f'[data-export="{format}"]')
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    name = download.value.suggested_filename
    assert name.startswith("conversation-")
    assert name.endswith({"text": ".txt", "csv": ".csv", "jsonl": ".jsonl"}[format])
    saved = download.value.path().read_text()
    assert "Do you like giraffes?" in saved
    if format == "csv":
        rows = list(csv.DictReader(io.StringIO(saved)))
        assert [row["who"] for row in rows] == ["participant", "participant", "partner"]
    if format == "jsonl":
        assert [json.loads(line)["text"] for line in saved.splitlines()][1] == "you and me"


def test_one_entry_is_deleted_after_a_question(talk, server):
    page = talk.page
    tab_to(page, f"{ENTRIES}:nth-child(2) button")
    page.keyboard.press("Enter")
    page.wait_for_selector("#talk-keep:focus")  # what does no harm comes first
    assert talk.text("#talk-question").lower().startswith("delete “you and me")
    assert axe(page) == []
    page.keyboard.press("Enter")
    page.wait_for_selector("#talk-confirm", state="hidden")
    assert page.evaluate("document.activeElement.ariaLabel").startswith("Delete: ")
    assert len(shown(talk, 3)) == 3
    talk.listen()
    page.keyboard.press("Enter")
    page.wait_for_selector("#talk-keep:focus")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert len(shown(talk, 2)) == 2
    talk.wait_for_text("#talk-state", "1 entry deleted.")
    assert "1 entry deleted." in talk.heard()
    # The sentence was the last one: it leaves the stage, the list and the announcement, too.
    talk.wait_for_text("#sentence", "Deleted")
    assert "and me" not in page.evaluate("document.body.textContent").lower()
    assert not files_with(b"you and me", log_of(server))


def test_the_last_hour_and_everything_are_deleted(talk, server):
    page = talk.page
    tab_to(page, "#talk-hour")
    page.keyboard.press("Enter")
    talk.wait_for_text("#talk-question", "Delete everything of the last hour?")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    shown(talk, 0)
    talk.wait_for_text("#talk-state", "3 entries deleted.")
    assert not files_with(b"giraffes", log_of(server))
    page.fill("#turn", "Lions?")
    page.press("#turn", "Enter")
    shown(talk, 1)
    tab_to(page, "#talk-all")
    page.keyboard.press("Enter")
    talk.wait_for_text("#talk-question", "Delete the whole conversation, of all days?")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    shown(talk, 0)
    assert all(isinstance(entry, Deleted) for entry in read_log(log_of(server)).entries)


def test_private_is_marked_and_nothing_is_kept(talk, server, browser):
    page = talk.page
    assert not page.is_visible("#private-mark")
    tab_to(page, "#private")
    page.keyboard.press("Space")
    page.wait_for_selector("#private-mark:not([hidden])")
    talk.wait_for_text("#announce", "Private: nothing is kept")
    assert axe(page) == []
    page.fill("#turn", "Zebras?")
    page.press("#turn", "Enter")
    talk.wait_for_text("#talk-state", "Shown, and not kept: the conversation is private.")
    page.keyboard.press("Escape")
    before = (log_of(server) / "utterances.jsonl").read_bytes()
    talk.decode(0)
    assert page.is_visible("#private-mark")
    assert page.is_disabled("#correct")
    assert (log_of(server) / "utterances.jsonl").read_bytes() == before
    assert not files_with(b"Zebras", log_of(server))
    other = Watched(browser, server.url).open().connected()  # every page shows it
    other.page.wait_for_selector("#private-mark:not([hidden])")
    other.context.close()
    page.keyboard.press("c")
    shown(talk, 3)
    page.uncheck("#private")
    page.wait_for_selector("#private-mark", state="hidden")
    talk.wait_for_text("#announce", "No longer private: sentences are kept again")


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (3840, "light")])
def test_the_panel_fits_every_screen(browser, server, width, scheme):
    watched = Watched(browser, server.url, color_scheme=scheme)
    watched.page.set_viewport_size({"width": width, "height": 844 if width == 390 else 2160})
    watched.open().connected()
    watched.page.click("#conversation")
    watched.page.wait_for_selector("#conversation-panel:popover-open")
    box = watched.page.locator("#conversation-panel").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    inner = watched.page.evaluate(
        "() => { const p = document.querySelector('#conversation-panel');"
        " return p.scrollWidth <= p.clientWidth }"
    )
    assert inner
    assert axe(watched.page) == []
    watched.context.close()


@pytest.mark.parametrize("is_private", [False, True])
def test_what_is_deleted_or_was_private_leaves_pages_that_were_away(browser, tmp_path, is_private):
    server = PageServer(tmp_path, "--speed", "20").start()
    observer = Watched(browser, server.url).open().connected()
    participant = Participant(browser, server.url).open().connected()
    pages = (observer.page, participant.page)
    says = "() => document.body.textContent.toLowerCase().includes('see you')"
    try:
        if is_private:
            observer.page.keyboard.press("c")
            observer.page.check("#private")
            observer.page.keyboard.press("Escape")
        observer.decode(0)
        for page in pages:
            page.wait_for_function(says)
        if not is_private:
            observer.page.click("#correct")
        server.stop()
        if not is_private:
            assert delete(log_of(server), Selection(everything=True)) == [0]
        server.start()
        for page in pages:
            page.wait_for_function(f"() => !({says})()")
        assert observer.page.is_hidden("#editor")
        line = "No longer private: sentences are kept again"
        if is_private:
            participant.wait_for_text("#state", line)  # for ten seconds
            observer.wait_for_text("#alert-text", line)
        assert observer.page.is_visible("#alert") == is_private
    finally:
        for each in (observer, participant):
            each.context.close()
        server.stop()
