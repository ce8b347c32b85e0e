"""The page in a real browser with other languages, tokens and bins (page_worlds.py)."""

import json
import unicodedata
from contextlib import ExitStack

import pytest
from page_browser import Watched
from page_worlds import CHINESE, HEBREW, SPANISH, Hearing
from serving import TOKEN, serving

from cortext.data import open_dataset
from cortext.decoding import Decoder
from cortext_live.core.log_writer import LogWriter
from cortext_live.page.day_pipeline import DayPipeline
from cortext_live.page.decoding_thread import DecodingThread
from cortext_live.page.sources import Replay
from cortext_live.usage.writer import UsageLog

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture
def opened(browser, tmp_path):
    """Opens a page of a world's server; the second trial has been decoded."""
    with ExitStack() as stack:

        def open_page(world):
            root = world.write(tmp_path)
            decoder = Decoder.from_dir(root / "lm")
            log = LogWriter(UsageLog(root / "log", world.conventions, decoder.lm.lexicon))
            days = DayPipeline(Hearing(world), decoder)
            session = DecodingThread(days, Replay(root / "data"), speed=8.0, log_writer=log)
            served = stack.enter_context(serving(session))
            watched = Watched(browser, served.url("/")).open(TOKEN).connected()
            stack.callback(watched.context.close)
            watched.decode(1)
            return watched, root

        yield open_page


def lefts(watched, selector):
    """Left edges of elements on the screen, in the order of the text."""
    script = "all => all.map((it) => it.getBoundingClientRect().left)"
    return watched.page.locator(selector).evaluate_all(script)


def computed(watched, selector, name):
    return watched.page.locator(selector).first.evaluate(
        "(it, name) => getComputedStyle(it)[name]", name
    )


def log_lines(root):
    return [json.loads(line) for line in (root / "log/utterances.jsonl").read_text().splitlines()]


def test_hebrew_is_read_from_right_to_left_in_a_page_that_is_read_from_left_to_right(opened):
    watched, root = opened(HEBREW)
    assert watched.text("#sentence") == "אני רוצה בית"
    for words in ("#stable span", "#reference span"):
        places = lefts(watched, words)
        assert len(places) == 3
        assert places == sorted(places, reverse=True)
    for texts in ("#sentence", "#reference", "#nbest button", "#correction", "#hotword"):
        assert computed(watched, texts, "direction") == "rtl"
        assert watched.page.locator(texts).first.get_attribute("lang") == "he"
    for texts in ("#reference", "#nbest button"):  # within lines of the page's English
        assert computed(watched, texts, "unicodeBidi") == "isolate"
    assert {computed(watched, it, "direction") for it in ("#judged", "#now", "#alert")} == {"ltr"}
    assert watched.text("#verdict") == "1 of 3 words wrong"
    # Bins of 10 ms, of which a frame has 8; 10 letters and 2 boundaries of 3 frames, and 4 more
    assert watched.text("#features-note") == "one column every 10 ms"
    assert watched.text("#tokens-note") == "probability of each character, one column every 80 ms"
    assert watched.text("#latency-note") == "median, 99th percentile; limit 80 ms"
    assert f"{(12 * 3 + 4) * 0.08:.1f}\u2009s" in watched.page.inner_text("#judged")
    names = watched.page.locator("#phonemes-names li").all_inner_texts()
    assert names == ["characters", "word boundary"]
    watched.page.click("#correct")
    watched.page.fill("#correction", "אני רוצה מים")
    watched.page.click("#editor .primary")
    watched.wait_for_text("#corrected", "אני רוצה מים")
    assert computed(watched, "#corrected", "direction") == "rtl"
    assert log_lines(root)[-1]["correction"] == "אני רוצה מים"
    assert watched.complaints == []


def test_spanish_accents_arrive_in_correction_hotword_and_log_however_they_are_typed(opened):
    watched, root = opened(SPANISH)
    assert watched.text("#reference") == "¡Más frío en el año!"
    assert watched.text("#verdict") == "1 of 5 words wrong"
    names = watched.page.locator("#phonemes-names li").all_inner_texts()
    assert names == ["vowels", "other phonemes", "silence"]
    meant = "más frío en el año"
    watched.page.click("#correct")
    watched.page.fill("#correction", unicodedata.normalize("NFD", meant))
    watched.page.click("#editor .primary")
    watched.wait_for_text("#announce", "Correction saved")
    utterance, correction = log_lines(root)
    assert (utterance["language"], utterance["n_words"]) == ("es", 5)
    assert correction["correction"] == meant
    [kept] = open_dataset(root / "log/recordings").trials("train")
    assert (kept.sentence, kept.conventions.language.name) == (meant, "es")
    expected = "m a s # f r i o # e n # e l # a n o #".split()
    assert kept.conventions.inventory.names(kept.phoneme_ids) == expected

    watched.page.click("#hotwords")
    watched.page.fill("#hotword", unicodedata.normalize("NFD", "frió"))  # sounds like frío here
    watched.page.fill("#bonus", "9")
    watched.page.click("#hotword-form .primary")
    watched.wait_for_text("#hotword-list b", "frió")
    assert watched.page.inner_text("#hotword-list b") == "frió"  # in NFC
    watched.page.keyboard.press("Escape")
    watched.decode(0)
    assert watched.text("#sentence") == "el frió"
    assert watched.complaints == []
    for word, told in (("\u202egato", "\\u202egato"), ("naïve", "ï")):
        watched.page.click("#hotwords")
        watched.page.fill("#hotword", word)
        watched.page.click("#hotword-form .primary")
        watched.page.wait_for_function("() => !document.querySelector('#alert').hidden")
        complaint = watched.text("#alert-text")
        assert told in complaint
        assert "\u202e" not in complaint
        watched.page.keyboard.press("Escape")
        watched.page.click("#alert-close")
    watched.page.click("#correct")
    watched.page.fill("#correction", "tengo 2 años")
    watched.page.click("#editor .primary")
    watched.wait_for_text(
        "#alert-text",
        "language 'es' would lose 2 in 'tengo 2 años'; choose the text's language, or write other"
        " letters and numbers as words",
    )
    assert len(log_lines(root)) == 3


def test_chinese_is_written_and_compared_character_by_character(opened):
    watched, _ = opened(CHINESE)
    assert watched.text("#sentence") == "我是你"
    assert lefts(watched, "#stable span") == sorted(lefts(watched, "#stable span"))
    assert watched.page.locator("#reference .missed").all_inner_texts() == ["学", "生"]
    assert watched.text("#verdict") == "2 of 4 characters wrong"
    assert watched.text("#stat-wer-name") == "character error rate"
    watched.page.click("#options")
    assert watched.page.locator("[name=sil_cost]").count() == 0  # nothing stands between words
    assert watched.page.locator("[name=beam]").count() == 1
    assert watched.complaints == []
