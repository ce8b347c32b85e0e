"""The page in Debian's Firefox: a smoke test."""

import pytest
from page_browser import TOKEN, PageServer

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def text_is(selector, text):
    words = f"document.querySelector('{selector}')?.innerText.replace(/\\s+/g, ' ').trim()"
    return f"{words} === '{text}'"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = PageServer(tmp_path_factory.mktemp("page"), "--speed", "8").start()
    yield server
    server.stop()


@pytest.fixture
def firefox_of_no_complaints(firefox):
    firefox.complaints.clear()
    yield firefox
    firefox.run("1")  # what the console was told before has arrived then
    assert firefox.complaints == []


def test_observers_page_decodes_rates_and_corrects_with_the_keyboard(
    firefox_of_no_complaints, server
):
    firefox = firefox_of_no_complaints
    firefox.size(1280, 800)
    firefox.open(f"{server.url}#token={TOKEN}")
    firefox.wait_for("document.querySelector('#link')?.dataset.link === 'open'")
    firefox.press("n", "n", "s")  # the second trial of the day that is chosen
    firefox.wait_for("document.querySelector('#sentence').dataset.kind === 'decided'")
    firefox.wait_for(text_is("#sentence", "i see me"))
    assert firefox.run(text_is("#reference", "I see you."))
    firefox.press("3")
    firefox.wait_for("document.querySelector('[data-rating=wrong]').ariaPressed === 'true'")
    firefox.press("e")
    firefox.wait_for("document.activeElement.id === 'correction'")
    firefox.press(*"i see you", "Enter")
    firefox.wait_for(text_is("#corrected", "i see you"))
    # Pictures are drawn, in the colours of the page's theme, and nothing is wider than the window.
    drawn = """(() => { const it = document.querySelector('#features');
        return new Set(new Uint32Array(it.getContext('2d').getImageData(0, 0, it.width, 60).data.buffer)).size; })()"""
    assert firefox.run(drawn) > 20
    assert firefox.run("document.documentElement.scrollWidth <= innerWidth")
    for key, panel in (("h", "hotwords"), ("o", "options"), ("?", "help")):
        firefox.press(key)
        firefox.wait_for(f"document.querySelector('#{panel}-panel').matches(':popover-open')")
        firefox.press("Escape")
        firefox.wait_for(f"!document.querySelector('#{panel}-panel').matches(':popover-open')")


def test_participants_view_shows_the_sentence_and_can_be_used_with_the_keyboard(
    firefox_of_no_complaints, server
):
    firefox = firefox_of_no_complaints
    firefox.size(820, 1180)  # a tablet
    firefox.open(f"{server.url}participant#token={TOKEN}")
    firefox.wait_for(
        "document.querySelector('#state-text')?.innerText.startsWith('One moment') === false"
    )
    started = f"""fetch('api/start', {{method: 'POST', body: '{{"trial": 2}}', headers: {{
        Authorization: 'Bearer {TOKEN}', 'Content-Type': 'application/json'}}}}).then((it) => it.status)"""
    assert firefox.run(started) == 200
    text = (
        "document.querySelector('#sentence').innerText.toLowerCase().replace(/[^a-z ]/g, '').trim()"
    )
    firefox.wait_for(f"{text} === 'you and me'")
    ended = f"""fetch('api/state', {{headers: {{Authorization: 'Bearer {TOKEN}'}}}}).then((it) => it.json())
        .then(({{ state }}) => state !== 'running')"""
    firefox.wait_for(ended)
    firefox.wait_for("!document.querySelector('#wrong').disabled")  # it is final
    firefox.press("w")
    firefox.wait_for("document.querySelector('#wrong').ariaPressed === 'true'")
    assert firefox.run("document.documentElement.scrollWidth <= innerWidth")
    firefox.press("s")
    firefox.wait_for("document.querySelector('#settings-panel').matches(':popover-open')")
    firefox.press("Escape")
    firefox.wait_for("!document.querySelector('#settings-panel').matches(':popover-open')")
