"""The participant's view in a real browser: sizes, keys, fingers and eyes, rights, connection.

Sentences of a real server are those of `page_process.py`; where the sentence must be long, doubtful
or private, the messages are the test's own (`page_participant.py`).
"""

import json
import urllib.request

import pytest
from page_browser import SEEN_TEXT, TOKEN, PageServer, Watched, axe, contrast
from page_participant import TALK, TEA, Participant, Scripted
from page_worlds import CHINESE, HEBREW

pytestmark = [pytest.mark.browser, pytest.mark.slow]
SIZES = {"phone": (390, 844), "laptop": (1280, 800), "wall": (3840, 2160)}
LANGUAGES = {
    "he": {"name": "he", "lang": "he", "direction": "rtl", "unit": "word"},
    "zh": {"name": "zh", "lang": "zh", "direction": "ltr", "unit": "character"},
}
WIDER = "name => (it => it.scrollWidth > it.clientWidth)(document.querySelector(name))"
HIGHER = "name => (it => it.scrollHeight > it.clientHeight)(document.querySelector(name))"
TARGETS = "all => all.filter((it) => it.checkVisibility()).map((it) => it.getBoundingClientRect())"
TARGETS += ".map(({ width, height }) => [width, height])"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("participant")


@pytest.fixture(scope="module")
def server(root):
    server = PageServer(root, "--open-view", "--speed", "8").start()
    yield server
    server.stop()


@pytest.fixture
def opened(browser, server):
    """Makes pages, which must load nothing from elsewhere and complain of nothing."""
    made = []

    def make(kind=Scripted, **options):
        made.append(kind(browser, server.url, **options))
        return made[-1]

    yield make
    for each in made:
        each.context.close()
        assert each.foreign == []
        assert each.complaints == []


def post(server, action, **body):
    request = urllib.request.Request(
        f"{server.url}api/{action}",
        json.dumps(body).encode(),
        {"Authorization": f"Bearer {TOKEN}"},
    )
    return json.loads(urllib.request.urlopen(request, timeout=20).read())


def decode(server, page, trial, text):
    """Decode a trial, and wait until its sentence is shown."""
    page.page.evaluate("document.querySelector('#announce').textContent = ''")
    post(server, "start", trial=trial)
    page.wait_for_text("#announce", text)
    page.page.wait_for_selector("#sentence[data-kind=decided]")


def log_lines(root):
    return [json.loads(line) for line in (root / "log/utterances.jsonl").read_text().splitlines()]


# With a real server


def test_all_is_done_with_the_keyboard_alone(opened, server, root):
    page = opened(Participant).open().connected()
    observers = opened(Watched).open().connected()
    press = page.page.keyboard.press
    decode(server, page, 0, "I see you.")
    assert page.text("#sentence") == "I see you."
    press("a")
    first, second, *_ = page.candidates()
    assert (first, page.text("#state")) == ("I see you.", "Please choose")
    press("2")
    page.wait_for_text("#sentence", second)
    page.until("document.querySelector('#choice').hidden")
    observers.wait_for_text("#corrected", second)
    press("r")
    page.page.wait_for_selector("#right[aria-pressed=true]")
    kept = log_lines(root)
    assert [line["correction"] for line in kept if "correction" in line] == [
        second.lower().rstrip(".?")
    ]
    assert [line["rating"] for line in kept if "rating" in line] == ["right"]
    press("w")  # what is wrong has other candidates
    page.page.wait_for_selector("#choice:not([hidden])")
    assert page.page.evaluate("document.activeElement.id") == "choice-name"
    press("Tab")
    press("Tab")
    press("Enter")
    page.wait_for_text("#sentence", second)
    press("a")
    press("n")
    assert page.page.is_hidden("#choice")
    press("s")
    page.page.wait_for_selector("#settings-panel", state="visible")
    press("Tab")  # to "Close"
    press("Tab")
    press("Space")  # no conversation
    assert page.page.evaluate("document.body.dataset.text") == "none"
    press("Escape")
    assert page.page.is_hidden("#settings-panel")
    assert page.page.evaluate("document.activeElement.id") == "settings"
    press("f")
    page.until("document.fullscreenElement !== null")


def test_tab_reaches_every_target_and_focus_is_seen(opened):
    page = opened(kept={"voice.on.participant": "no"}).greeted()
    page.decided(*TEA)
    found = {}
    for _ in range(6):
        page.page.keyboard.press("Tab")
        name, outline = page.page.evaluate(
            "(e => [e.id, getComputedStyle(e).outline])(document.activeElement)"
        )
        found[name] = outline
    assert {"others", "right", "wrong", "settings"} <= set(found)
    assert all("solid" in outline and "3px" in outline for name, outline in found.items() if name)


def test_each_sentence_is_announced_once_also_when_the_connection_comes_back(opened, server):
    page = opened(Participant).open().connected()
    decode(server, page, 2, "You and me.")
    assert page.live_regions() == ["announce"]
    page.listen()
    decode(server, page, 0, "I see you.")
    page.page.evaluate("window.socket.close()")
    page.until("document.body.dataset.kind === 'moment'")
    page.until("document.body.dataset.kind === 'ready'")
    decode(server, page, 1, "I see me.")
    assert page.heard() == ["I see you.", "I see me."]
    page.complaints.clear()


def test_a_lost_connection_is_told_in_plain_words_and_comes_back(browser, root):
    server = PageServer(root, "--no-log").start()
    try:
        page = Participant(browser, server.url, kept={"voice.on.participant": "no"})
        page.open().connected()
        decode(server, page, 0, "I see you.")
        size = page.page.evaluate("place.style.cssText")
        server.kill()
        page.wait_for_text("#state", "One moment")
        assert page.text("#sentence") == "I see you."
        assert page.page.evaluate("place.style.cssText") == size
        assert not page.page.is_visible("#others")
        server.start()
        page.wait_for_text("#state", "Ready")
        decode(server, page, 1, "I see me.")
        page.context.close()
    finally:
        server.kill()


def test_a_connection_that_stays_lost_is_told(opened):
    page = opened().stopped().greeted()
    page.pass_ms(100)
    page.sockets[-1].close()
    page.wait_for_text("#state", "One moment")
    page.pass_ms(11_000)
    page.wait_for_text("#state", "One moment: no connection")


def test_who_may_only_read_gets_no_targets_and_a_wrong_token_is_told(opened, server):
    reading = opened(Participant, confidence=0.2).open(token="").connected()
    rating = opened(Participant).open().connected()
    decode(server, rating, 0, "I see you.")
    reading.wait_for_text("#sentence", "I see you.")
    assert rating.page.is_visible("#right")
    for target in ("#right", "#wrong", "#others", "#choice"):
        assert not reading.page.is_visible(target)
    reading.page.keyboard.press("a")
    assert not reading.page.is_visible("#choice")
    wrong = opened(Participant).open(token="wrong")
    wrong.connected()  # as a stranger who may watch
    assert not wrong.page.is_visible("#right")


# With messages of the test's own


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_everything_fits_is_read_and_can_be_pressed_at_every_size(opened, size, theme):
    width, height = SIZES[size]
    page = opened(color_scheme=theme, kept={"voice.on.participant": "no"})
    page.page.set_viewport_size({"width": width, "height": height})
    # the button does not fade while it is looked at
    page.page.add_init_script("setInterval(() => dispatchEvent(new Event('pointermove')), 200)")
    page.greeted()
    seen, faults = [], []

    def look(what):
        extent = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        assert page.page.evaluate(extent) == [width, height], what
        for box in ("#place", "#sentence", "#candidates", "#state"):
            assert not page.page.evaluate(WIDER, box), (what, box)
        for box in ("#place", "#candidates"):
            assert not page.page.evaluate(HIGHER, box), (what, box)
        seen.extend(page.page.evaluate(SEEN_TEXT))
        faults.extend(axe(page.page))
        small = [box for box in page.page.locator("button").evaluate_all(TARGETS) if min(box) < 44]
        assert small == [], what

    look("ready")
    page.talk()
    page.decided(*TEA)
    look("a sentence under a conversation")
    right = page.page.locator("#right").bounding_box()
    assert right["height"] >= 70
    assert right["width"] >= 100
    page.page.keyboard.press("a")
    assert page.candidates() == list(TEA)
    look("alternatives")
    page.page.keyboard.press("n")
    page.send(type="state", private=True)
    page.wait_for_text("#state", "Ready \u00b7 private: nothing is kept")
    look("private")
    page.page.keyboard.press("s")
    seen.extend(page.page.evaluate(SEEN_TEXT))
    faults.extend(axe(page.page))
    assert page.page.evaluate("document.documentElement.scrollWidth") == width
    assert faults == []
    assert len(seen) > 60
    weak = [t for t in seen if contrast(t["ink"], t["ground"]) < (3 if t["large"] else 4.5)]
    assert weak == []
    sentence = [t for t in seen if t["text"].startswith("I would like some tea with")]
    assert max(contrast(t["ink"], t["ground"]) for t in sentence) > 14


@pytest.mark.parametrize(("size", "screen_mm"), [("laptop", 290), ("wall", 1210)])
def test_a_usual_sentence_is_read_at_three_metres(opened, size, screen_mm):
    page = opened()
    width, height = SIZES[size]
    page.page.set_viewport_size({"width": width, "height": height})
    page.greeted()
    page.talk()
    page.decided(TEA[0])
    size_px = page.page.evaluate("parseFloat(getComputedStyle(sentence).fontSize)")
    # the x-height, about half of the type size; 8.7 mm are 10 minutes of arc at 3 m, twice what
    # normal vision needs
    assert size_px / 2 * screen_mm / width > 8.7


def test_type_only_shrinks_while_words_come_in_and_words_stay_where_they_are(opened):
    page = opened().greeted()
    words = "i would like to tell you that the appointment on thursday was moved".split()
    sizes, places = [], []
    for n in range(1, len(words) + 1):
        page.forming(" ".join(words[: max(0, n - 2)]), " ".join(words[max(0, n - 2) : n]))
        page.wait_for_text("#sentence", " ".join(words[:n]))
        sizes.append(page.page.evaluate("parseFloat(getComputedStyle(sentence).fontSize)"))
        places.append(page.tops("#sentence")[0])
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) <= 6
    assert len(set(places)) == 1


def test_a_sentence_of_any_length_is_shown_whole_or_its_newest_words(opened):
    page = opened().greeted()
    page.page.set_viewport_size({"width": 390, "height": 844})
    page.decided("x" * 300 + " " + "wondering " * 200 + "end")
    assert page.page.evaluate("document.documentElement.scrollWidth") == 390
    bottom = "[place.scrollTop + place.clientHeight, place.scrollHeight]"
    shown, whole = page.page.evaluate(bottom)
    assert abs(shown - whole) <= 1


def test_the_conversation_ends_next_to_the_sentence_in_the_order_of_speech(opened):
    page = opened().greeted()
    page.talk()
    page.decided(TEA[0])
    expected = [("I said: " if who == "participant" else "Partner: ") + text for who, text in TALK]
    assert page.page.locator("#conversation li").all_text_contents() == expected
    tops = page.tops("#conversation li")
    assert tops == sorted(tops)
    bottom = page.page.locator("#conversation li").last.bounding_box()
    assert 0 < page.tops("#sentence")[0] - (bottom["y"] + bottom["height"]) < 60
    page.send(type="turn", entry=11, when="", text="With pleasure.")
    page.wait_for_text("#announce", "Partner: With pleasure.")
    last_two = page.page.locator("#conversation li").all_text_contents()[-2:]
    assert last_two == [f"I said: {TEA[0]}", "Partner: With pleasure."]
    assert page.text("#sentence") == ""
    page.send(type="forgotten", entries=[1, 11])
    page.until("document.querySelectorAll('#conversation li').length === 4")
    page.decided("Thank you.", id=12)
    page.send(type="forgotten", entries=None)
    page.until("document.querySelectorAll('#conversation li').length === 0")
    assert page.text("#sentence") == ""


def test_nothing_stays_on_the_screen_of_a_device_whose_access_was_withdrawn(opened):
    page = opened().greeted()
    page.talk()
    page.decided(*TEA, confidence=0.2)
    page.sockets[-1].close(code=1008)
    page.wait_for_text("#state", "This page needs a new link. Please ask for one.")
    assert (page.text("#sentence"), page.text("#conversation")) == ("", "")
    assert page.page.is_hidden("#choice")


def test_a_deleted_sentence_is_not_said_though_the_next_one_forms(opened):
    page = opened().greeted()
    page.decided(*TEA)
    page.page.click("#others")
    page.page.click("#none")
    page.forming("the next", utterance=11)
    page.wait_for_text("#sentence", "the next")
    page.send(type="forgotten", entries=[10])
    page.until("document.querySelector('#announce').textContent === ''")
    assert "tea" not in page.page.evaluate("document.body.textContent").lower()
    before = page.spoken()
    page.page.keyboard.press("y")
    page.page.wait_for_timeout(200)
    assert page.spoken() == before


def test_a_deleted_turn_leaves_the_announcement(opened):
    page = opened().greeted()
    page.send(type="turn", entry=12, text="Some tea?", when="2026-01-05T10:00:00.000")
    page.wait_for_text("#conversation", "Partner: Some tea?")
    page.send(type="forgotten", entries=[12])
    page.until("!document.body.textContent.includes('Some tea?')")


def test_what_is_private_leaves_the_screen_when_that_ends(opened):
    page = opened().greeted(private=True)
    page.decided("A secret.", entry=None)
    assert not page.page.is_visible("#right")
    page.send(type="turn", entry=None, when="", text="I tell nobody.")
    page.until("document.querySelectorAll('#conversation li').length === 2")
    page.send(type="state", private=False)
    page.until("document.querySelectorAll('#conversation li').length === 0")
    assert page.text("#sentence") == ""


def test_states_are_told_in_plain_words(opened):
    page = opened(kept={"voice.on.participant": "no"}).greeted()
    page.wait_for_text("#state", "Ready")
    page.forming("", "i")
    page.wait_for_text("#state", "Listening")
    page.wait_for_text("#state", "Thinking")  # no more steps, and no sentence yet
    page.forming("i", "would")
    page.wait_for_text("#state", "Listening")
    page.decided(*TEA)
    page.wait_for_text("#state", "Ready")


# Alternatives


def test_a_doubtful_sentence_has_alternatives_and_a_sure_or_unknown_one_has_none(opened):
    page = opened(kept={"alternatives.below": "0.5", "alternatives.most": "4"}).greeted()
    page.decided(*TEA, confidence=0.5)
    page.decided(*TEA[1:], confidence=None, id=11)
    page.decided(*TEA, confidence=0.09, id=13)  # so unlikely that the list has no right one
    assert page.page.is_hidden("#choice")
    page.decided(*TEA[1:], TEA[0], confidence=0.49, id=12)
    assert page.candidates() == [*TEA[1:], TEA[0]]
    assert page.page.locator("#candidates mark").all_inner_texts()[-1] == "honey,"
    page.page.keyboard.press("3")
    page.wait_for_text("#sentence", TEA[3])
    assert page.asked == [
        ("choose", {"utterance": 12, "text": "i would like some tea without honey please"})
    ]


def test_sentences_that_differ_in_capitals_alone_are_no_alternatives(opened):
    page = opened().greeted()
    page.decided("We see you.", "we see you", "We sea you.", confidence=0.2)
    assert page.candidates() == ["We see you.", "We sea you."]


def test_the_voice_waits_for_the_choice_and_says_it(opened):
    page = opened().greeted()
    page.page.keyboard.press("Shift")  # browsers are silent before a key or a touch
    page.decided(*TEA, confidence=0.2)
    page.page.wait_for_timeout(100)
    assert page.spoken() == []
    page.page.keyboard.press("2")
    page.until("spoken.length === 1")
    assert page.spoken() == [TEA[1]]


def test_without_a_choice_the_voice_says_the_best_one_after_the_pause(opened):
    page = opened(kept={"alternatives.wait": "2"}).stopped().greeted()
    page.page.keyboard.press("Shift")
    page.pass_ms(100)
    page.decided(*TEA, confidence=0.2)
    assert page.text("#choice-wait") == "Number 1 is taken in 2 s"
    page.pass_ms(1500)
    page.page.mouse.move(300, 300)  # somebody is about to choose: the pause begins anew
    page.pass_ms(1500)
    assert (page.page.is_visible("#choice"), page.spoken()) == (True, [])
    page.pass_ms(1000)
    page.until("spoken.length === 1")
    assert page.spoken() == [TEA[0]]
    assert page.page.is_hidden("#choice")
    assert page.asked == []


@pytest.mark.parametrize("key", ["n", "Escape"])
def test_a_sentence_that_is_none_of_these_is_not_said(opened, key):
    page = opened(kept={"alternatives.wait": "2"}).stopped().greeted()
    page.page.keyboard.press("Shift")
    page.pass_ms(100)
    page.decided(*TEA, confidence=0.2)
    page.page.keyboard.press(key)
    page.pass_ms(5000)
    assert page.page.is_hidden("#choice")
    assert page.spoken() == []
    page.page.keyboard.press("y")  # asked for, it is said
    page.until("spoken.length === 1")


def test_the_next_words_close_the_alternatives_and_the_best_one_stands(opened):
    page = opened(kept={"alternatives.wait": "0"}).greeted()
    page.page.keyboard.press("Shift")
    page.decided(*TEA, confidence=0.2)
    page.forming("", "and", utterance=11)
    page.until("spoken.length === 1")
    assert page.page.is_hidden("#choice")
    assert page.page.locator("#conversation li").all_text_contents() == [f"I said: {TEA[0]}"]


def test_a_choice_on_another_page_is_shown_here(opened):
    page = opened().greeted()
    page.decided(*TEA, confidence=0.2)
    page.send(type="chosen", utterance=10, entry=10, text="x", shown=TEA[1])
    page.wait_for_text("#sentence", TEA[1])
    assert page.page.is_hidden("#choice")


def test_fingers_choose_and_rate(opened):
    page = opened(has_touch=True).greeted()
    page.decided(*TEA, confidence=0.2)
    page.page.locator("#candidates button").nth(1).tap()
    page.wait_for_text("#sentence", TEA[1])
    page.page.tap("#right")
    page.page.wait_for_selector("#right[aria-pressed=true]")
    assert [action for action, _ in page.asked] == ["choose", "rating"]


# Dwelling


def move_to(page, selector, n=0):
    box = page.page.locator(selector).nth(n).bounding_box()
    for step in (0.45, 0.5):
        page.page.mouse.move(box["x"] + step * box["width"], box["y"] + box["height"] / 2)


def test_a_pointer_that_rests_presses_and_one_that_leaves_does_not(opened):
    page = opened(kept={"dwell": "0.4", "voice.on.participant": "no"}).stopped().greeted()
    page.decided(*TEA)
    page.pass_ms(100)
    move_to(page, "#right")
    page.pass_ms(350)
    assert page.page.is_visible(".dwell-ring")
    move_to(page, "#state")
    page.pass_ms(1000)
    assert page.asked == []
    assert page.page.is_hidden(".dwell-ring")
    move_to(page, "#right")
    page.pass_ms(350)
    assert page.asked == []
    page.pass_ms(100)
    page.page.wait_for_selector("#right[aria-pressed=true]")
    page.pass_ms(1000)  # and not again before the pointer has left
    assert page.asked == [("rating", {"utterance": 10, "rating": "right"})]


def test_a_candidate_is_read_with_the_eyes_and_chosen_on_its_number(opened):
    page = opened(kept={"dwell": "0.4", "alternatives.wait": "0"}).stopped().greeted()
    page.page.mouse.move(40, 300)  # where a number will be
    page.decided(*TEA, confidence=0.2)
    page.pass_ms(1000)
    move_to(page, "#candidates .said", 1)
    page.pass_ms(1000)
    assert page.asked == []
    move_to(page, "#candidates .number", 1)
    page.pass_ms(500)
    page.wait_for_text("#sentence", TEA[1])


def test_settings_are_changed_by_dwelling_alone(opened):
    page = opened(kept={"dwell": "0.4"}).greeted()
    move_to(page, "#settings")
    page.page.wait_for_selector("#settings-panel", state="visible")
    move_to(page, "#reading .together button", 3)
    page.until("document.body.dataset.text === 'large'")
    mode = "#voice-settings select[data-voice=mode]"
    move_to(page, "#settings-down")
    page.until(f"document.querySelector('{mode}').getBoundingClientRect().bottom < 600")
    move_to(page, "#settings-title")  # or it scrolls on
    move_to(page, mode)
    page.until("localStorage.getItem('cortext.voice.mode') === 'pause'")
    move_to(page, "#settings-close")
    page.page.wait_for_selector("#settings-panel", state="hidden")


def test_dwelling_is_off_at_first(opened):
    page = opened().stopped().greeted()
    page.decided(*TEA)
    move_to(page, "#right")
    page.pass_ms(5000)
    assert page.asked == []


# Other people's needs


def test_with_less_motion_nothing_moves_and_forced_colours_show_the_ring(opened):
    kept = {"dwell": "2", "voice.on.participant": "no"}
    page = opened(kept=kept, reduced_motion="reduce", forced_colors="active").stopped().greeted()
    page.forming("i", "see")
    page.wait_for_text("#state", "Listening")
    assert page.page.evaluate("document.getAnimations().length") == 0
    page.decided(*TEA)
    page.pass_ms(100)
    move_to(page, "#right")
    share = "document.querySelector('.dwell-ring').style.getPropertyValue('--share')"
    shares = set()
    for _ in range(19):
        page.pass_ms(100)
        shares.add(float(page.page.evaluate(share)))
    assert shares == {0, 0.25, 0.5, 0.75}
    assert page.page.is_visible(".dwell-ring")
    assert "conic-gradient" in page.page.evaluate(
        "getComputedStyle(document.querySelector('.dwell-ring')).backgroundImage"
    )


def test_buttons_disappear_with_the_pointer_at_rest_and_come_back(opened):
    page = opened(reduced_motion="reduce").stopped().greeted()
    opacity = "getComputedStyle(settings).opacity"
    page.pass_ms(10_000)
    page.until(f"{opacity} === '0'")
    page.page.mouse.move(200, 200)
    page.until(f"{opacity} === '1'")


def test_hebrew_is_read_from_right_to_left_and_chinese_without_gaps(opened):
    page = opened(kept={"voice.on.participant": "no"}).greeted(language=LANGUAGES["he"])
    sentence, other = (text for _, text in HEBREW.trials)
    page.send(type="utterance", id=1, entry=1, confidence=0.2, text=sentence, shown=sentence,
              nbest=[{"text": text, "shown": text} for text in (sentence, other)])  # fmt: skip
    page.page.wait_for_selector("#choice:not([hidden])")
    number = page.page.locator("#candidates .number").first.bounding_box()
    assert number["x"] > 640
    page.page.keyboard.press("n")
    assert page.page.evaluate("getComputedStyle(sentence).direction") == "rtl"
    assert page.page.get_attribute("#sentence", "lang") == "he"
    page.send(type="turn", entry=2, when="", text=other)
    page.until("document.querySelectorAll('#conversation li').length === 2")
    mine, theirs = page.page.locator("#conversation li").all()
    assert mine.bounding_box()["x"] > theirs.bounding_box()["x"]
    chinese = opened(kept={"voice.on.participant": "no"}).greeted(language=LANGUAGES["zh"])
    spaced = CHINESE.trials[1][1]
    chinese.forming(spaced)
    chinese.wait_for_text("#sentence", spaced.replace(" ", ""))
