"""The page at the root in a real browser: sessions, an episode turn by turn, played by the module and by hand."""

from __future__ import annotations

import time

import pytest
from browser import Browser, find_chromium
from served import TOKEN, Served

HOSTILE = "put a <img src=x onerror=alert(1)> in </script><b>cabinet.</b>"
SEEN = "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a microwave 1, and a fridge 1."
WIDTH = "document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium on this machine; install one (Debian: apt-get install chromium), or name it in $CHROMIUM")
    found = Browser(program, tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


def until(browser: Browser, condition: str) -> None:
    deadline = time.monotonic() + 60
    while not browser.evaluate(condition):
        assert time.monotonic() < deadline, (condition, browser.evaluate("document.body.innerText"), browser.complaints)
        time.sleep(0.05)


def complaints(browser: Browser, server: Served) -> list[str]:
    return [said for said in browser.complaints if not said.startswith(f"fetched {server.address}/")]


def text(element: str) -> str:
    return f"document.getElementById('{element}').textContent"


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("dark", [False, True])
def test_an_episode_is_played_by_the_module_and_by_hand(browser, server: Served, tmp_path, width: int, dark: bool) -> None:
    browser.open(f"{server.address}/#token={TOKEN}", width, 800, dark)
    until(browser, "document.querySelectorAll('#module option').length === 2")
    assert browser.evaluate("location.hash") == "", "the token does not stay in the address"
    browser.evaluate("document.getElementById('split').value = 'seen'")
    browser.click("#begin button")
    until(browser, f"{text('where')} === 'turn 1 of 1'")
    browser.click("#one")
    until(browser, f"{text('where')} === 'turn 1 of 2'")
    assert browser.evaluate("document.querySelectorAll('.likely i').length") == 6
    assert browser.evaluate("document.querySelector('.text pre').textContent").startswith("subgoal: ")
    browser.evaluate("document.getElementById('action').value = 'inventory'")
    browser.click("#act button:not([type])")
    until(browser, f"{text('where')} === 'turn 2 of 3'")
    assert "not carrying anything" in browser.evaluate("document.querySelector('#step').textContent")
    assert browser.evaluate("document.querySelectorAll('#strip .hand').length") == 1
    browser.screenshot(tmp_path / "page.png")
    assert browser.evaluate(WIDTH) == width, "the page itself never scrolls sideways"
    browser.click("#end")
    until(browser, "document.getElementById('hands').hidden && !document.getElementById('again').hidden")
    browser.click("#same")
    until(browser, f"{text('versus')}.includes('The module alone: ')")
    assert complaints(browser, server) == []


def test_somebody_elses_session_can_be_watched_and_its_words_are_only_words(browser, server: Served) -> None:
    server.begin(HOSTILE, "heat")
    path = server.begin("put a hot mug in cabinet.", "heat")
    browser.open(f"{server.address}/#token={TOKEN}")
    until(browser, f"{text('sessions')}.includes('onerror=alert(1)')")
    assert browser.evaluate("document.querySelectorAll('#sessions img, #sessions b').length") == 0
    show = "[...document.querySelectorAll('#sessions button')].find(b => b.textContent.includes('hot mug in cabinet')).click()"
    browser.evaluate(show)
    until(browser, f"{text('goal')}.includes('hot mug')")
    server.post(f"{path}/observe", {"observation": f"{SEEN} {HOSTILE}"})
    until(browser, f"{text('where')} === 'turn 1 of 1'")
    assert browser.evaluate("document.querySelectorAll('#viewer img, #viewer b b').length") == 0
    assert browser.evaluate("document.getElementById('hands').hidden"), "its world is not here"
    server.post(f"{path}/end", {"outcome": "failure"})
    until(browser, f"{text('outcome')}.startsWith('failure')")
    assert complaints(browser, server) == []


def test_without_a_token_the_page_asks_for_it(browser, server: Served) -> None:
    browser.open(f"{server.address}/health")
    browser.evaluate("sessionStorage.clear()")
    browser.open(f"{server.address}/")
    until(browser, "!document.getElementById('entry').hidden")
    browser.evaluate("document.getElementById('token').value = 'wrong'")
    browser.click("#login button")
    until(browser, f"{text('said')}.includes('not the right one')")
    browser.evaluate(f"document.getElementById('token').value = '{TOKEN}'")
    browser.click("#login button")
    until(browser, "!document.getElementById('inside').hidden")
