"""The page in a real browser, against the real server with a model whose sentences are known
(page_process.py).
"""

import json
from itertools import pairwise

import numpy as np
import pytest
from page_browser import LIVE, SEEN_TEXT, TOKEN, PageServer, Watched, contrast
from page_process import spoken

pytestmark = [pytest.mark.browser, pytest.mark.slow]
FIRST_DAY = "t15.2023.08.11"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def server(root):
    server = PageServer(root).start()
    yield server
    server.stop()


@pytest.fixture
def watched(browser, server):
    watched = Watched(browser, server.url).open().connected()
    yield watched
    watched.context.close()
    assert watched.foreign == []
    assert watched.complaints == []


def test_a_trial_is_decoded_to_the_end_with_its_reference_candidates_latency_and_statistics(
    watched,
):
    watched.decode(0)
    assert watched.text("#sentence") == "i see you"
    assert watched.text("#reference") == "I see you!"
    assert watched.text("#verdict") == "every word right"
    assert watched.text("#nbest li:first-child button") == "i see you"
    assert watched.text("#run-text") == "Start"
    watched.page.wait_for_function(
        "() => document.querySelector('#stat-count').textContent !== '0'"
    )
    stages = watched.page.locator("#latency tbody th").all_inner_texts()
    assert stages == ["Normalise", "Smooth", "Model", "Word search", "Whole step", "Final text"]
    # 9 phonemes and word ends of 3 frames of 80 ms, and 14 bins: 3 words in 2.2 s
    duration_s = 8 * 0.24 + 0.28
    assert f"{duration_s:.1f}\u2009s" in watched.page.locator("#judged").inner_text()
    assert f"{60 * 3 / duration_s:.0f} words per minute" in watched.text("#judged")
    assert watched.page.locator("#sentence .sure").count() == 3


def test_wrong_words_are_marked_in_the_sentence_and_in_the_reference(watched):
    watched.decode(1)
    assert watched.page.locator("#sentence .wrong").all_inner_texts() == ["me"]
    assert watched.page.locator("#reference .missed").all_inner_texts() == ["you."]
    assert watched.text("#verdict") == "1 of 3 words wrong"
    assert "word error rate 33\u2009%" in watched.page.locator("#judged").inner_text()


def test_a_hotword_changes_the_decision_until_it_is_removed(watched):
    watched.page.click("#hotwords")
    watched.page.fill("#hotword", "sea")
    watched.page.fill("#bonus", "12")
    watched.page.click("#hotword-form button")
    watched.wait_for_text("#hotword-list b", "sea")
    watched.page.keyboard.press("Escape")
    watched.decode(0)
    assert watched.text("#sentence") == "i sea you"
    watched.page.click("#hotwords")
    watched.page.click("text=Remove")
    watched.page.wait_for_selector("#hotword-list li", state="detached")
    watched.page.keyboard.press("Escape")
    watched.decode(0)
    assert watched.text("#sentence") == "i see you"


def test_options_are_switched_and_wrong_ones_answered_with_the_servers_line(watched):
    watched.page.click("#options")
    watched.page.fill("input[name=nbest]", "1")
    watched.page.click("#options-form .primary")
    watched.page.wait_for_selector("#options-panel", state="hidden")
    watched.decode(0)
    assert watched.page.locator("#nbest li").count() == 1
    watched.page.click("#options")
    watched.page.fill("input[name=beam]", "1e30")
    watched.page.click("#options-form .primary")
    watched.page.wait_for_selector("#alert:not([hidden])")
    assert "beam is 1e+30" in watched.text("#alert-text")
    watched.page.click("#options-reset")
    watched.page.wait_for_selector("#options-panel", state="hidden")
    watched.page.click("#options")
    assert watched.page.input_value("input[name=nbest]") == "10"
    # what was refused is a request that failed, and Chromium says so
    assert all("400" in complaint for complaint in watched.complaints)
    watched.complaints.clear()


def test_what_a_large_model_did_to_a_sentence_is_told_and_can_be_changed(browser, root):
    server = PageServer(root, "--no-log", "--opinion").start()
    watched = Watched(browser, server.url).open().connected()

    def change(selector, text):
        watched.page.click("#options")
        watched.page.fill(selector, text)
        watched.page.click("#options-form .primary")
        watched.page.wait_for_selector("#options-panel", state="hidden")

    try:
        assert "an opinion" in watched.text("#about")
        watched.decode(0)
        assert watched.text("#sentence") == "i sea you"
        assert (
            "chosen by the large model; the n-gram\u2019s choice was \u201ci see you\u201d"
            in watched.text("#judged")
        )
        assert "large model 0.0" in watched.page.locator("#nbest li").first.get_attribute("title")
        change("#context", "fail")
        watched.decode(0)
        assert watched.text("#sentence") == "i see you"
        assert watched.text("#judged .degraded") == "without the large model: no memory"
        assert (
            watched.page.locator("#judged")
            .inner_text()
            .endswith(" \u00b7 without the large model: no memory")
        )
        assert watched.page.locator("#alert").is_hidden()
        change("#context", "")
        change("input[name='llm.weight']", "0")
        watched.decode(0)
        assert watched.text("#sentence") == "i see you"
        assert "large model" not in watched.text("#judged")
        assert watched.text("#judged .degraded") == ""
        watched.page.click("#options")
        watched.page.click("#options-reset")
        watched.page.wait_for_selector("#options-panel", state="hidden")
        watched.decode(0)
        assert watched.text("#sentence") == "i sea you"
        assert watched.complaints == []
    finally:
        watched.context.close()
        server.stop()


def test_a_sentence_is_corrected_and_rated_and_both_are_in_the_log(watched, root):
    watched.decode(1)
    watched.page.click("#correct")
    watched.page.fill("#correction", "I see <b>you</b>")
    watched.page.click("#editor .primary")
    watched.wait_for_text("#corrected", "I see <b>you</b>")
    watched.page.click("[data-rating='mostly right']")
    watched.page.wait_for_selector("[data-rating='mostly right'][aria-pressed=true]")
    kept = [
        json.loads(line) for line in (root / "log" / "utterances.jsonl").read_text().splitlines()
    ]
    assert [line["correction"] for line in kept if "correction" in line][-1] == "I see <b>you</b>"
    assert [line["rating"] for line in kept if "rating" in line][-1] == "mostly right"
    assert watched.page.locator("#corrected b").count() == 0


def test_a_candidate_opens_as_a_correction(watched):
    watched.decode(0)
    second = watched.page.locator("#nbest button").nth(1)
    text = " ".join(second.inner_text().split())
    second.click()
    assert watched.page.input_value("#correction") == text
    watched.page.locator("#run").focus()
    watched.page.keyboard.press("Escape")  # cancels wherever the focus is
    assert watched.page.is_hidden("#editor")
    assert watched.text("#sentence") == "i see you"


def test_everything_can_be_done_with_the_keyboard_alone(watched):
    page, press = watched.page, watched.page.keyboard.press

    def focused():
        return page.evaluate(
            "document.activeElement.id || document.activeElement.dataset.rating || ''"
        )

    press("d")
    assert focused() == "session"
    page.keyboard.type(FIRST_DAY)
    press("Tab")
    press("n")  # in a list a letter is a letter
    press("Escape")
    page.evaluate("document.activeElement.blur()")
    press("n")
    assert watched.page.locator("#trial option:checked").inner_text() == "block 1, trial 0"
    watched.decoded_by(lambda: press("s"))
    assert watched.text("#announce") == "Decoded: i see you"
    press("1")
    page.wait_for_selector("[data-rating=right][aria-pressed=true]")
    press("e")
    assert focused() == "correction"
    page.keyboard.type("i see you and me")  # its text is selected
    press("Enter")
    watched.wait_for_text("#corrected", "i see you and me")
    press("h")
    assert focused() == "hotword"
    page.keyboard.type("sea")
    press("Enter")
    watched.wait_for_text("#hotword-list b", "sea")
    for _ in range(3):
        press("Tab")
    press("Enter")
    page.wait_for_selector("#hotword-list li", state="detached")
    press("Escape")
    assert focused() == "hotwords"
    press("?")
    page.wait_for_selector("#help-panel", state="visible")
    press("Space")  # single keys off
    press("Escape")
    press("o")
    assert not page.locator("#options-panel").is_visible()


def test_tab_reaches_every_control_and_focus_is_seen(watched):
    watched.decode(0)
    watched.page.evaluate("document.activeElement.blur()")
    found = {}
    for _ in range(40):
        watched.page.keyboard.press("Tab")
        name, outline = watched.page.evaluate(
            "(e => [e.id || e.dataset.rating || e.closest('ol')?.id || e.tagName,"
            " getComputedStyle(e).outline])(document.activeElement)"
        )
        found[name] = outline
    controls = {
        "theme",
        "help",
        "right",
        "mostly right",
        "wrong",
        "correct",
        "nbest",
        "run",
        "session",
        "trial",
    }
    assert controls | {"previous", "next", "drift", "hotwords", "options"} <= set(found)
    assert all("solid" in found[name] and "3px" in found[name] for name in controls)


def test_a_screen_reader_hears_each_sentence_once_and_every_control_has_a_name(watched):
    watched.listen()
    watched.decode(0)
    watched.decode(1)
    heard = ["Decoded: i see you", "Decoded: i see me"]
    assert watched.heard() == heard
    # It connects again, and is sent the last sentence again.
    watched.page.evaluate("location.hash += '&again'")
    watched.page.wait_for_function("() => document.querySelector('#nbest').childElementCount > 0")
    watched.connected()
    watched.decode(2)
    assert watched.heard() == [*heard, "Decoded: you and me"]
    assert watched.live_regions() == ["announce"]  # the alert is hidden until there is one
    words = "all => all.filter(it => it.closest('main') || it.querySelector('main')).length"
    assert watched.page.locator(LIVE).evaluate_all(words) == 0  # what forms is not read
    nameless = watched.page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, textarea, canvas')]
        .filter(e => !e.textContent.trim() && !e.ariaLabel && !e.labels?.length).map(e => e.outerHTML)"""
    )
    assert nameless == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_on_the_page_has_enough_contrast(browser, server, theme):
    watched = Watched(browser, server.url, color_scheme=theme).open().connected()
    watched.decode(1)
    seen = watched.page.evaluate(SEEN_TEXT)
    for panel in ("drift", "hotwords", "options", "help"):
        watched.page.click(f"#{panel}")
        seen += watched.page.evaluate(SEEN_TEXT)
        watched.page.keyboard.press("Escape")
    assert len(seen) > 100
    weak = [t for t in seen if contrast(t["ink"], t["ground"]) < (3 if t["large"] else 4.5)]
    assert weak == []
    watched.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colour_scales_are_even_steps_away_from_their_middle(browser, server, theme):
    watched = Watched(browser, server.url, color_scheme=theme).open().connected()
    lightness = watched.page.evaluate(
        """async () => { const { scales, toOklab } = await import('./observer/colour.js');
        const lightness = (p) => toOklab([p & 255, p >> 8 & 255, p >> 16 & 255])[0];
        return Object.values(scales()).map((scale) => [...scale].map(lightness)); }"""
    )
    watched.context.close()
    features, phonemes = lightness
    halves = (features[127::-1], features[128:], phonemes)
    sign = -1 if theme == "light" else 1  # away from the ground
    for half in halves:
        steps = [sign * (later - earlier) for earlier, later in pairwise(half)]
        mean = (half[-1] - half[0]) * sign / len(steps)
        assert mean > 0
        assert all(abs(step - mean) < 0.008 for step in steps)  # rounding to 8 bits
    assert abs(features[127] - features[128]) < 0.01


def test_the_theme_is_switched_and_remembered(watched):
    ground = "getComputedStyle(document.body).backgroundColor"
    light = watched.page.evaluate(ground)
    watched.page.keyboard.press("l")
    assert watched.page.evaluate(ground) == light
    watched.page.keyboard.press("l")
    dark = watched.page.evaluate(ground)
    assert dark != light
    watched.page.reload()
    watched.connected()
    assert watched.page.evaluate(ground) == dark


def test_who_wants_less_motion_sees_a_picture_that_stands_still(browser, server):
    watched = Watched(browser, server.url, reduced_motion="reduce").open().connected()
    # the first pixels, as soon as there are any, and at the end of the trial
    column = (
        "document.querySelector('#features').getContext('2d').getImageData({}, 0, 2,"
        " 100).data.join()"
    )
    empty = watched.page.evaluate(column.format(4))
    watched.page.select_option("#session", FIRST_DAY)
    watched.page.select_option("#trial", label="block 1, trial 0")
    watched.page.click("#run")
    watched.page.wait_for_function(f"() => {column.format(4)} !== {json.dumps(empty)}")
    first = watched.page.evaluate(column.format(4))
    watched.page.wait_for_selector("#sentence[data-kind=decided]")
    assert watched.page.evaluate(column.format(4)) == first
    assert watched.page.evaluate("document.getAnimations().length") == 0
    watched.context.close()


def test_it_fits_a_laptop_and_a_large_screen_without_scrolling(watched):
    watched.decode(0)
    for width, height in ((1280, 800), (1280, 720), (1920, 1080)):
        watched.page.set_viewport_size({"width": width, "height": height})
        extent = "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
        assert watched.page.evaluate(extent) == [width, height]
        size = watched.page.evaluate(
            "parseFloat(getComputedStyle(document.querySelector('#sentence')).fontSize)"
        )
        # the x-height, about half of the type size, in mm on screens 29 cm and 53 cm wide: at 3 m
        # 8.7 mm are 10 minutes of arc, twice what normal vision needs
        x_height_mm = size / 2 * {1280: 290, 1920: 530}[width] / width
        assert x_height_mm > (8.7 if height >= 800 else 6.5)
    watched.page.set_viewport_size({"width": 400, "height": 800})
    assert watched.page.evaluate("document.documentElement.scrollWidth") == 400


def test_words_and_sentences_of_any_length_stay_in_their_places(watched):
    watched.page.evaluate("""() => {
            const [long, many] = ["x".repeat(300), "wondering ".repeat(60)];
            document.querySelector("#alert").hidden = false;
            document.querySelector("#alert-text").textContent = `/${long}: no such file`;
            document.querySelector("#lines").innerHTML = `<div><dt>Reference</dt><dd>${many} ${long}</dd></div>`;
            document.querySelector("#sentence").textContent = `${many} ${long}`;
            document.querySelector("#sentence-box").dataset.size = 6;  // the smallest
        }""")
    spills = """name => {
        const box = document.querySelector(name);
        return getComputedStyle(box).overflowY === "visible" && box.scrollHeight > box.clientHeight;
    }"""
    for width, height in ((1280, 800), (390, 844)):
        watched.page.set_viewport_size({"width": width, "height": height})
        assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
        assert not [
            name for name in ("#lines", "#sentence-box") if watched.page.evaluate(spills, name)
        ]


def test_a_wrong_token_and_a_missing_one_are_told_clearly(browser, server):
    watched = Watched(browser, server.url).open("wrong")
    watched.wait_for_text("#link-text", "Wrong access token")
    assert "Open the address that cortext serve printed" in watched.text("#alert-text")
    assert watched.page.is_disabled("#run")
    watched.page.evaluate("location.hash = ''")
    watched.wait_for_text("#link-text", "Access token missing")
    watched.page.evaluate(f"location.hash = 'token={TOKEN}'")
    watched.connected()
    assert watched.page.is_hidden("#alert")
    assert watched.page.is_enabled("#run")
    assert watched.foreign == []
    watched.context.close()


def test_who_may_only_watch_is_shown_no_controls(browser, server, root):
    open_server = PageServer(root, "--open-view", "--no-log").start()
    try:
        watched = Watched(browser, open_server.url)
        watched.page.goto(open_server.url)
        watched.connected()
        assert watched.text("#sentence") == "Waiting for a sentence"
        assert not watched.page.is_visible("#run")
        assert watched.complaints == []
        with_token = Watched(browser, open_server.url).open().connected()
        with_token.decode(0)
        watched.wait_for_text("#sentence", "i see you")
        assert "--session-log" in with_token.text("#judge")
        assert not with_token.page.is_visible("#correct")
        watched.context.close()
        with_token.context.close()
    finally:
        open_server.stop()


def test_it_comes_back_after_a_crash_of_the_server(browser, root):
    server = PageServer(root, "--no-log", "--speed", "1").start()
    try:
        watched = Watched(browser, server.url).open().connected()
        watched.page.click("#run")
        watched.page.wait_for_selector("#sentence[data-kind=forming]")
        server.kill()
        watched.wait_for_text("#link-text", "No answer from the server, trying again")
        assert watched.page.is_disabled("#run")
        server.start()
        watched.connected()
        watched.decode(0)
        assert watched.text("#sentence") == "i see you"
        assert (
            watched.page.evaluate("performance.getEntriesByType('navigation')[0].type")
            == "navigate"
        )
        assert not [text for text in watched.complaints if "ERR_CONNECTION_REFUSED" not in text]
        watched.context.close()
    finally:
        server.kill()


def test_memory_is_flat_over_thirty_thousand_frames(browser, root):
    server = PageServer(root, "--no-log", "--loop", "--speed", "inf").start()
    try:
        watched = Watched(browser, server.url)
        shown = [0]

        def count(text):
            message = json.loads(text)
            shown[0] += message.get("n_bins", 0) + message.get("dropped", 0)

        watched.page.on("websocket", lambda socket: socket.on("framereceived", count))
        watched.open().connected()
        tools = watched.context.new_cdp_session(watched.page)
        tools.send("Performance.enable")

        def collected():
            watched.page.wait_for_timeout(100)
            tools.send("HeapProfiler.collectGarbage")
            metrics = {
                m["name"]: m["value"] for m in tools.send("Performance.getMetrics")["metrics"]
            }
            return {name: metrics[name] for name in ("JSHeapUsedSize", "Nodes", "JSEventListeners")}

        def measure_after(n_frames):
            watched.page.click("#run")
            while shown[0] < n_frames:
                watched.page.wait_for_timeout(50)
            watched.page.click("#run")
            watched.wait_for_text("#run-text", "Start")
            # What the last frames left is not always found at once.
            found = [collected() for _ in range(5)]
            return {name: min(each[name] for each in found) for name in found[0]}

        early, late = measure_after(4_000), measure_after(34_000)
        growth = {name: late[name] - early[name] for name in early}
        assert growth["JSHeapUsedSize"] < 500_000, growth
        assert growth["Nodes"] < 300, growth
        assert growth["JSEventListeners"] < 30, growth
        assert watched.complaints == []
        watched.context.close()
    finally:
        server.stop()


def test_frames_of_a_feed_are_decoded_and_the_page_says_where_they_come_from(browser, root):
    from websockets.sync.client import connect

    server = PageServer(root, "--no-log", "--feed").start()
    try:
        watched = Watched(browser, server.url).open().connected()
        watched.wait_for_text("#feed", "Neural data arrive at /feed")
        assert watched.page.is_hidden("#source")
        assert watched.page.is_disabled("#run")
        with connect(f"ws://127.0.0.1:{server.port}/feed?token={TOKEN}") as feed:
            feed.send(spoken("you see me", np.random.default_rng(0)).tobytes())
            watched.wait_for_text("#run-text", "Stop")
            watched.wait_for_text("#sentence", "you see me")
            feed.send('{"end": true}')
            watched.page.wait_for_selector("#sentence[data-kind=decided]")
            assert watched.text("#sentence") == "you see me"
            assert watched.page.is_hidden("#reference-line")
        assert watched.complaints == []
        watched.context.close()
    finally:
        server.stop()


def test_a_stage_over_the_budget_is_marked_in_words(watched):
    watched.page.evaluate("""async () => (await import('./observer/panels.js')).showLatency(
        {model: {p50: 30, p99: 90}, total: {p50: 40, p99: 79.9}}, {p50: null, p99: null}, 80)""")
    over = watched.page.locator("#latency .over")
    assert [text.split() for text in over.all_inner_texts()] == [["Model", "30", "90", "ms"]]
    after = "e => getComputedStyle(e.lastElementChild, '::after').content"
    assert over.evaluate(after) == '" over"'


DRAWN = """async () => {
  const { Timeline } = await import('./observer/timeline.js');
  const canvas = () => { const made = document.createElement('canvas');
    Object.assign(made.style, {width: '460px', height: '100px', color: 'var(--heat-mid)'});
    made.getContext('2d', {willReadFrequently: true}); document.body.append(made); return made; };
  const canvases = {features: canvas(), phonemes: canvas(), marks: canvas()};
  const groups = [{name: 'one', rows: [0]}, {name: 'other', rows: [1]}];
  const timeline = new Timeline(canvases, groups, 2, [{name: 'both', rows: [0, 1]}], [null, 'AA'],
    {bin_ms: 20, frame_ms: 80});
  const ends = Object.fromEntries(['low', 'high', 'mid'].map((end) =>
    [getComputedStyle(document.getElementById(`key-${end}`)).color.match(/\\d+/g).join(), end]));
  const at = (canvas, x, y) => { timeline.paint();
    const [...pixel] = canvas.getContext('2d').getImageData(x, y, 1, 1).data; return ends[pixel.slice(0, 3).join()]; };
  %s }"""


def drawn(watched, script):
    return watched.page.evaluate(DRAWN.replace("%s", script))


def test_each_feature_is_drawn_in_its_band_and_the_newest_bin_at_the_right_edge(watched):
    found = drawn(
        watched,
        """timeline.begin();
        timeline.addBins(Uint8Array.of(255, 0,  0, 255), 2, 2);
        const shown = (places) => places.map(([x, y]) => at(canvases.features, x, y));
        const two = shown([[458, 20], [458, 80], [459, 20], [459, 80], [457, 20]]);
        const many = new Uint8Array(2 * 5000).map((_, i) => 255 * (i % 2));
        timeline.addBins(many, 5000, 5002);
        return [two, shown([[0, 20], [0, 80], [459, 20], [459, 80]])];""",
    )
    # nothing yet is drawn as the middle of the scale
    assert found == [["high", "low", "low", "high", "mid"], ["low", "high", "low", "high"]]


def test_phonemes_are_drawn_under_the_bins_that_they_tell_of_also_after_a_gap(watched):
    found = drawn(
        watched,
        """timeline.begin();
        const bins = new Uint8Array(2 * 256), sure = Uint8Array.of(0, 255);
        for (let n = 1; n <= 10; n++) { timeline.addBins(bins, 4, 4 * n); if (n > 4) timeline.addFrames(sure, 1); }
        const places = () => [...Array(460).keys()].filter((x) => at(canvases.phonemes, x, 99) === 'high');
        const before = places();
        timeline.addBins(bins, 256, 600);
        timeline.resume(600, 1);
        timeline.addFrames(sure, 1);
        return [before, places(), timeline.labels.all.map(({ column, text }) => [column, text])];""",
    )
    # 6 frames of 4 bins from the utterance's first bin on, which is 40 bins from the edge
    assert found[0] == list(range(420, 444))
    # after 600 bins the newest frame ends as long before the edge as before: 40 - 24 bins, the
    # oldest have left
    assert found[1] == list(range(460 - 16 - 4, 460 - 16))
    assert found[2] == [[2, "AA"]]


def test_a_frame_of_eight_bins_is_drawn_as_wide_as_its_bins(watched):
    script = """timeline.begin();
        timeline.addBins(new Uint8Array(2 * 16), 16, 16);
        timeline.addFrames(Uint8Array.of(0, 255), 1);
        return [...Array(460).keys()].filter((x) => at(canvases.phonemes, x, 99) === 'high');"""
    of_ten_ms = DRAWN.replace("bin_ms: 20", "bin_ms: 10").replace("%s", script)
    # the first 8 of 16 columns at the right edge
    assert watched.page.evaluate(of_ten_ms) == list(range(444, 452))


def test_words_become_solid_as_they_settle(watched):
    shown = watched.page.evaluate(
        """async () => { const { Sentence } = await import('./observer/sentence.js'), sentence = new Sentence(() => true);
        return [['', 'i see', 80], ['', 'i sea you', 1040], ['', 'i sea you', 1080], ['i', 'sea you', 2080]].map(
          (guess) => { sentence.forming(...guess);
            return ['stable', 'settled', 'tail'].map((id) => document.getElementById(id).textContent); }); }"""
    )
    # a second after they were last another word; what the search calls stable is so at once
    assert shown == [
        ["", "", "i see"],
        ["", "", "i sea you"],
        ["", "i ", "sea you"],
        ["i ", "sea you", ""],
    ]
