"""The observers' page while sentences follow one another: what stands where, and for how long."""

import pytest
from page_browser import PageServer, Watched

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = PageServer(tmp_path_factory.mktemp("page"), "--speed", "2").start()
    yield server
    server.stop()


@pytest.fixture
def watched(browser, server):
    watched = Watched(browser, server.url).open().connected()
    yield watched
    watched.context.close()
    assert watched.foreign == []
    assert watched.complaints == []


SEEN = """() => Object.fromEntries(['now', 'reference', 'verdict', 'sentence', 'judged', 'editor-of', 'corrected-line'].map(
    (id) => [id, document.getElementById(id)?.checkVisibility() ? document.getElementById(id).innerText.trim() : null]))"""
NOTE = f"""() => {{ window.noted = [];
  const note = () => {{ const seen = ({SEEN})(), before = noted.at(-1);
    if (JSON.stringify(seen) !== JSON.stringify(before)) noted.push(seen); }};
  note();
  new MutationObserver(note).observe(document.querySelector('main'), {{childList: true, characterData: true, attributes: true, subtree: true}}); }}"""
"""Notes all that is seen of two sentences, at each change."""


def next_trial(watched, trial):
    watched.page.select_option("#trial", label=f"block 1, trial {trial}")
    watched.decoded_by(lambda: watched.page.click("#run"))


def test_a_sentence_stays_with_its_reference_until_the_next_has_three_words(watched):
    watched.decode(1)
    watched.page.evaluate(NOTE)
    next_trial(watched, 2)
    noted = watched.page.evaluate("noted")
    stood = [seen for seen in noted if seen["sentence"] == "i see me"]
    assert noted[: len(stood)] == stood
    for seen in stood:
        assert seen["now"].endswith("trial 1")
        assert seen["reference"] == "I see you."
        assert seen["verdict"] == "1 of 3 words wrong"
        assert "i see me" not in seen["judged"]
    assert len(noted[len(stood)]["sentence"].split()) == 3
    formed = [seen for seen in noted[len(stood) :] if seen["verdict"] == ""]
    assert formed
    # From its own words on, everything above is its own, and the one before is quoted.
    for seen in formed[1:]:
        assert seen["now"].endswith("trial 2")
        assert seen["reference"] == "You and me."
        assert seen["judged"].startswith("\u201ci see me\u201d")
    assert noted[-1]["sentence"] == "you and me"
    assert noted[-1]["verdict"] == "every word right"


def test_a_correction_has_its_own_sentence_and_reference_while_the_next_forms_above(watched):
    watched.decode(1)
    watched.page.keyboard.press("e")
    selected = "(e => e.value.slice(e.selectionStart, e.selectionEnd))(document.activeElement)"
    assert watched.page.evaluate(selected) == "i see me"
    watched.page.evaluate(NOTE)
    watched.page.locator("#trial").evaluate("it => it.value = [...it.options].at(-1).value")
    watched.decoded_by(lambda: watched.page.locator("#run").evaluate("it => it.click()"))
    noted = watched.page.evaluate("noted")
    editors = {" ".join(seen["editor-of"].split()) for seen in noted}
    assert editors == {"Correcting \u201ci see me\u201d prompt: I see you."}
    assert {seen["sentence"] for seen in noted} >= {"i see me", "you and me"}
    assert noted[-1]["reference"] == "You and me."
    # Above the editor, and both are within the window.
    boxes = [watched.page.locator(it).bounding_box() for it in ("#sentence", "#editor")]
    assert 0 <= boxes[0]["y"] <= boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]
    assert boxes[1]["y"] + boxes[1]["height"] < 800
    watched.page.keyboard.type("I see you")
    watched.page.keyboard.press("Enter")
    watched.page.wait_for_selector("#editor", state="hidden")
    assert watched.page.is_hidden("#corrected-line")  # it is of the sentence before


def test_a_correction_stands_beside_its_sentence_wherever_that_is(watched):
    watched.decode(1)
    watched.page.keyboard.press("e")
    watched.page.keyboard.type("i see you")
    watched.page.keyboard.press("Enter")
    watched.wait_for_text("#corrected", "i see you")
    watched.page.evaluate(NOTE)
    next_trial(watched, 2)
    later = [seen for seen in watched.page.evaluate("noted") if "i see me" in seen["judged"]]
    assert later
    for seen in later:
        assert seen["corrected-line"] is None
        assert seen["judged"].startswith(
            "\u201ci see me\u201d \u00b7 corrected to \u201ci see you\u201d"
        )


LABELS = """async (widths) => {
  const { Timeline } = await import('./observer/timeline.js');
  const canvas = () => { const made = document.createElement('canvas');
    Object.assign(made.style, {width: '460px', height: '100px', fontSize: '13px'}); document.body.append(made); return made; };
  const canvases = {features: canvas(), phonemes: canvas(), marks: canvas()};
  const tokens = [null, 'IH', 'ER', 'NG', 'M', 'UW'];
  const group = [{name: 'all', rows: [0, 1, 2, 3, 4, 5]}];
  const timeline = new Timeline(canvases, group, 6, group, tokens, {bin_ms: 20, frame_ms: 80});
  await document.fonts.ready;
  const pen = canvases.marks.getContext('2d'), size = parseFloat(getComputedStyle(canvases.marks).fontSize), fill = pen.fillText;
  let drawn;
  pen.fillText = function (text, x, y, most = Infinity) {
    const width = Math.min(most, pen.measureText(text).width), left = pen.textAlign === 'center' ? x - width / 2 : x;
    drawn.push({text, left, right: left + width, y});
    fill.call(pen, text, x, y, Math.min(most, 1e6)); };
  const paint = () => { drawn = []; timeline.paint(); return drawn; };
  const pictures = [];
  timeline.begin();
  for (let n = 1; n <= 300; n++) {
    const best = 1 + (n % 5), posteriors = new Uint8Array(6).fill(0);
    posteriors[best] = best === 3 ? 250 : 120 + 10 * best;
    timeline.addBins(new Uint8Array(4 * 6), 4, 4 * n);
    timeline.addFrames(posteriors, 1);
    if (n % 50 === 0) timeline.addWords([0, 300, 420].map((ms, i) => (
      {word: ['wonderfully', 'we', 'wondered'][i], start_ms: 80 * n - 800 + ms, end_ms: 80 * n - 800 + ms + 100})));
    if (n % 7 === 0) pictures.push(paint());
  }
  return [size, pictures];
}"""


@pytest.mark.parametrize("motion", ["no-preference", "reduce"])
def test_no_two_labels_of_a_line_touch_and_the_most_probable_are_there(browser, server, motion):
    watched = Watched(browser, server.url, reduced_motion=motion).open().connected()
    size, pictures = watched.page.evaluate(LABELS)
    assert len(pictures) == 42
    for picture in pictures:
        for one in picture:
            for other in picture:
                if one is not other and one["y"] == other["y"] and one["left"] <= other["left"]:
                    assert one["right"] + 0.4 * size <= other["left"]
    drawn = [one["text"] for one in pictures[-1]]
    assert "NG" in drawn
    assert drawn.count("NG") >= drawn.count("IH")  # the least probable goes first
    assert {"wonderfully", "wondered"} & set(drawn)
    watched.context.close()
