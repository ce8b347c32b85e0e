"""Inviting another device and revoking it, in real browsers over an encrypted connection."""

import pytest
from certificates import make_certificate
from page_browser import PageServer, Watched, axe

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("devices")
    cert, key = make_certificate(root / "tls")
    server = PageServer(root, "--tls", str(cert), str(key)).start()
    yield server
    server.stop()


def base(server):
    return server.url.replace("http:", "https:")


def opened(browser, server, **options):
    """The observers' page with its panel open, by a key."""
    options = {"ignore_https_errors": True, **options}
    watched = Watched(browser, base(server), **options).open().connected()
    watched.page.keyboard.press("g")
    watched.page.wait_for_selector("#devices-none, #device-list li")
    return watched


def invite(watched, name):
    """Invite with the keyboard alone; the field for the name has the focus."""
    watched.page.keyboard.type(name)
    watched.page.keyboard.press("Enter")
    watched.page.wait_for_selector("#invitation-code svg path")
    return watched.page.input_value("#invitation-address")


def test_a_device_is_invited_seen_and_revoked_with_the_keyboard_alone(browser, server):
    owner = opened(browser, server)
    address = invite(owner, "tablet")
    assert address.startswith(f"{base(server)}participant#token=")
    assert axe(owner.page) == []
    code = owner.page.locator("#invitation-code svg").bounding_box()
    assert code["height"] >= 250
    assert owner.text("#device-list") == "tablet reads and rates, not connected Revoke"
    device = Watched(browser, base(server), ignore_https_errors=True)
    sockets = []
    device.page.on("websocket", lambda it: sockets.append(it.url))
    device.page.goto(address.replace("/participant#", "/#"))
    device.connected()
    assert device.page.is_hidden("#run")
    owner.wait_for_text("#devices-state", "tablet is connected")
    assert owner.page.is_hidden("#invitation")  # the code is a key: nobody else is to read it
    assert owner.page.input_value("#invitation-address") == ""
    owner.wait_for_text("#device-list", "tablet reads and rates, 1 page open Revoke")
    assert axe(owner.page) == []
    while owner.page.evaluate("document.activeElement.textContent") != "Revoke":
        owner.page.keyboard.press("Tab")
    owner.page.keyboard.press("Enter")
    device.page.wait_for_selector('#link[data-link="refused"]')
    assert device.text("#link-text") == "Access was withdrawn"
    assert device.text("#alert-text") == "Access was withdrawn."
    owner.wait_for_text("#devices-state", "tablet has no access any more")
    assert owner.page.evaluate("document.activeElement.id") == "devices-title"
    device.page.wait_for_timeout(3000)  # six times the shortest pause before another try
    assert len(sockets) == 1
    device.page.reload()
    device.page.wait_for_selector('#link[data-link="refused"]')
    assert device.text("#link-text") == "Wrong access token"
    assert owner.complaints == owner.foreign == device.foreign == []
    owner.context.close()
    device.context.close()


def test_words_leave_the_page_of_a_device_that_is_revoked(browser, server):
    owner = opened(browser, server)
    address = invite(owner, "wall")
    device = Watched(browser, base(server), ignore_https_errors=True)
    device.page.goto(address.replace("/participant#", "/#"))
    device.connected()
    owner.wait_for_text("#devices-state", "wall is connected")
    owner.page.keyboard.press("Escape")
    owner.decode(0)
    device.wait_for_text("#sentence", "i see you")
    owner.page.keyboard.press("g")
    owner.page.get_by_role("button", name="Revoke wall").click()
    device.page.wait_for_selector('#link[data-link="refused"]')
    device.wait_for_text("#alert-text", "Access was withdrawn.")
    assert "see you" not in device.page.evaluate("document.body.textContent").lower()
    owner.context.close()
    device.context.close()


def test_the_code_goes_when_the_panel_closes(browser, server):
    owner = opened(browser, server)
    invite(owner, "phone")
    owner.page.keyboard.press("Escape")
    owner.page.wait_for_selector("#devices-panel", state="hidden")
    owner.page.keyboard.press("g")
    owner.page.wait_for_selector("#device-list li")
    assert owner.page.is_hidden("#invitation")
    assert owner.page.locator("#invitation-code svg").count() == 0
    owner.page.keyboard.type("phone")
    owner.page.keyboard.press("Enter")
    owner.wait_for_text("#devices-state", "there is a device named 'phone'; choose another name")
    owner.page.get_by_role("button", name="Revoke phone").click()
    owner.wait_for_text("#device-list", "")
    owner.context.close()


def test_the_panel_fits_a_phone_in_the_dark(browser, server):
    owner = opened(browser, server, color_scheme="dark")
    owner.page.set_viewport_size({"width": 390, "height": 800})
    invite(owner, "clock")
    assert axe(owner.page) == []
    assert owner.page.evaluate("() => document.documentElement.scrollWidth") <= 390
    box = owner.page.locator("#invitation-code svg").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    # black on white in every theme: cameras need it
    colours = (
        "e => [...e.children].map((it) => it.getAttribute('fill') ?? it.getAttribute('stroke'))"
    )
    assert owner.page.locator("#invitation-code svg").evaluate(colours) == ["#fff", "#000"]
    owner.page.get_by_role("button", name="Revoke clock").click()
    owner.context.close()


def test_the_panel_says_what_is_needed_where_nothing_is_encrypted(browser, tmp_path):
    server = PageServer(tmp_path).start()
    try:
        watched = Watched(browser, server.url).open().connected()
        watched.page.keyboard.press("g")
        watched.wait_for_text(
            "#devices-refusal",
            "Other devices have no encrypted way to this page; start the server with"
            " --host ADDRESS --tls CERT KEY, or with --public-url.",
        )
        assert watched.page.is_hidden("#device-form")
        assert axe(watched.page) == []
        assert watched.complaints == []
        watched.context.close()
    finally:
        server.stop()
