"""The web page in a real browser: sessions, and episodes played by the module and by hand."""

from __future__ import annotations

import pytest
from served import TOKEN, Served, served

pytestmark = pytest.mark.slow

HOSTILE = "put a <img src=x onerror=alert(1)> in </script><b>cabinet.</b>"
SEEN = "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a microwave 1, and a fridge 1."
WIDTH = "document.documentElement.scrollWidth"


def text(element: str) -> str:
    return f"document.getElementById('{element}').textContent"


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("dark", [False, True])
def test_episode_can_be_played_by_the_module_and_by_hand(browser, server: Served, tmp_path, width: int, dark: bool) -> None:
    browser.open(f"{server.address}/#token={TOKEN}", width, 800, dark)
    browser.until("document.querySelectorAll('#module option').length === 2")
    assert browser.evaluate("location.hash") == "", "the token does not stay in the address"
    browser.evaluate("document.getElementById('split').value = 'seen'")
    browser.click("#begin button")
    browser.until(f"{text('where')} === 'turn 1 of 1'")
    browser.click("#one")
    browser.until(f"{text('where')} === 'turn 1 of 2'")
    assert browser.evaluate("document.querySelectorAll('.likely i').length") == 6
    assert browser.evaluate("document.querySelector('.text pre').textContent").startswith("subgoal: ")
    browser.evaluate("document.getElementById('action').value = 'inventory'")
    browser.click("#act button:not([type])")
    browser.until(f"{text('where')} === 'turn 2 of 3'")
    assert "not carrying anything" in browser.evaluate("document.querySelector('#step').textContent")
    assert browser.evaluate("document.querySelectorAll('#strip .hand').length") == 1
    browser.screenshot(tmp_path / "page.png")
    assert browser.evaluate(WIDTH) == width, "the page itself never scrolls sideways"
    browser.click("#end")
    browser.until("document.getElementById('hands').hidden && !document.getElementById('again').hidden")
    browser.click("#same")
    browser.until(f"{text('versus')}.includes('The module alone: ')")
    assert browser.complaints_beyond(server.address) == []


def test_other_sessions_can_be_watched_and_their_text_is_escaped(browser, server: Served) -> None:
    server.begin(HOSTILE, "heat")
    path = server.begin("put a hot mug in cabinet.", "heat")
    browser.open(f"{server.address}/#token={TOKEN}")
    browser.until(f"{text('sessions')}.includes('onerror=alert(1)')")
    assert browser.evaluate("document.querySelectorAll('#sessions img, #sessions b').length") == 0
    show = "[...document.querySelectorAll('#sessions button')].find(b => b.textContent.includes('hot mug in cabinet')).click()"
    browser.evaluate(show)
    browser.until(f"{text('goal')}.includes('hot mug')")
    server.post(f"{path}/observe", {"observation": f"{SEEN} {HOSTILE}"})
    browser.until(f"{text('where')} === 'turn 1 of 1'")
    assert browser.evaluate("document.querySelectorAll('#viewer img, #viewer b b').length") == 0
    assert browser.evaluate("document.getElementById('hands').hidden"), "its world is not here"
    server.post(f"{path}/end", {"outcome": "failure"})
    browser.until(f"{text('outcome')}.startsWith('failure')")
    assert browser.complaints_beyond(server.address) == []


def test_page_asks_for_a_missing_token(browser, server: Served) -> None:
    browser.open(f"{server.address}/health")
    browser.evaluate("sessionStorage.clear()")
    browser.open(f"{server.address}/")
    browser.until("!document.getElementById('entry').hidden")
    browser.evaluate("document.getElementById('token').value = 'wrong'")
    browser.click("#login button")
    browser.until(f"{text('said')}.includes('the token is wrong')")
    browser.evaluate(f"document.getElementById('token').value = '{TOKEN}'")
    browser.click("#login button")
    browser.until("!document.getElementById('inside').hidden")


def test_page_reconnects_after_a_server_restart(browser, modules) -> None:
    with served(modules) as first:
        browser.open(f"{first.address}/#token={TOKEN}")
        browser.until("document.querySelectorAll('#module option').length === 2")
        browser.click("#begin button")
        browser.until(f"{text('where')} === 'turn 1 of 1'")
        first.process.kill()
        browser.until(f"{text('said')} === 'The server does not answer. This page keeps trying.'")
        browser.click("#one")
        browser.until(f"{text('said')} === 'The server does not answer. This page keeps trying.'")
        with served(modules, port=first.port):
            browser.until(f"{text('said')} === '' && {text('outcome')}.startsWith('lost · the server was restarted')")
            assert browser.evaluate("document.getElementById('hands').hidden"), "nothing can be done in it any more"
            browser.click("#begin button")
            browser.until(f"{text('where')} === 'turn 1 of 1' && {text('outcome')}.startsWith('open')")
            browser.click("#one")
            browser.until(f"{text('where')} === 'turn 1 of 2'")
