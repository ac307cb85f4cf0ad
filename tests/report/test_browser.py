"""Report pages in a real browser, opened from disk: no console messages, no requests, working episode viewer."""

from __future__ import annotations

from pathlib import Path

import pytest
from written import HOSTILE, episode, write_comparison, write_run

from tacit.report.comparison_page import render_comparison
from tacit.report.run_page import render_run

pytestmark = pytest.mark.slow

WHERE = "document.getElementById('where').textContent"
WROTE = "document.querySelectorAll('#step .text pre')[1].textContent"
HASH = "location.hash"
WIDTH = "document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, str]:
    place = tmp_path_factory.mktemp("pages")
    hostile = episode(1, True, text=HOSTILE, goal=HOSTILE)
    texts = {
        "run": render_run(write_run(place / "run")),
        "hostile": render_run(write_run(place / "hostile", episodes=[hostile, episode(2, False, 0)])),
        "skilled": render_run(write_run(place / "skilled", episodes=[_skilled()])),
        "comparison": render_comparison(write_comparison(place / "compared")),
    }
    return {name: _written(place / f"{name}.html", text) for name, text in texts.items()}


def _skilled() -> dict:
    found = episode(1, True, 2)
    found["turns"][0] |= {"skills": [{"task": HOSTILE}], "skill_shift": 0.25, "shift_by_token": [["go", 0.5], [HOSTILE, -0.25]]}
    return found


def _written(file: Path, text: str) -> str:
    file.write_text(text, encoding="utf-8")
    return file.as_uri()


@pytest.mark.parametrize("name", ["run", "hostile", "skilled", "comparison"])
@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("dark", [False, True])
def test_page_opens_from_disk_without_messages_and_fits(browser, pages, name, width, dark):
    browser.open(pages[name], width, 800, dark)
    assert browser.evaluate("document.readyState") == "complete" and browser.complaints == []
    assert browser.evaluate(WIDTH) == width, "the page itself never scrolls sideways"
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 23, 26)" if dark else "rgb(255, 255, 255)")


def test_tokens_are_colored_by_skill_shift(browser, pages):
    browser.open(f"{pages['skilled']}#episode=1&step=1")
    tokens = browser.evaluate("[...document.querySelectorAll('.token')].map(t => [t.textContent, t.title, t.style.background])")
    (likelier, first, blue), (hostile, second, orange) = tokens
    assert (likelier, first, second) == ("go", "+0.5000", "\u22120.2500") and hostile.startswith("</script><img")
    assert "--c0" in blue and "60%" in blue and "--c1" in orange and "30%" in orange, "half the shift, half the color"
    assert "full color: 0.500 nats" in browser.evaluate("document.querySelector('.shifts').textContent")
    assert "<img" in browser.evaluate("document.querySelector('.text.told pre').textContent") and browser.complaints == []
    browser.open(f"{pages['skilled']}#episode=1&step=2")
    assert browser.evaluate("document.querySelectorAll('.token, .text.told').length") == 0


def test_keys_and_buttons_step_through_an_episode(browser, pages):
    browser.open(pages["run"])
    browser.evaluate("document.getElementById('viewer').scrollIntoView()")
    total = browser.evaluate(WHERE).rpartition(" ")[2]
    assert browser.evaluate(WHERE) == f"step 1 of {total}" and browser.evaluate(WROTE) == "wrote 0"
    browser.press("ArrowRight")
    assert browser.evaluate(WHERE) == f"step 2 of {total}" and browser.evaluate(WROTE) == "wrote 1"
    browser.click("#viewer button[aria-label='next step']")
    assert browser.evaluate(WROTE) == "wrote 2" and browser.evaluate(HASH) == "#episode=1&step=3"
    browser.press("ArrowLeft")
    browser.press("ArrowLeft")
    browser.press("ArrowLeft")
    assert browser.evaluate(WHERE) == f"step 1 of {total}", "it stops at the first"
    browser.click("#viewer .strip button:last-child")
    assert browser.evaluate(WHERE) == f"step {total} of {total}"
    assert browser.evaluate("document.querySelector('#viewer button[aria-label=\"next step\"]').disabled") is True
    browser.press("PageDown")
    assert browser.evaluate(HASH) == "#episode=2&step=1" and browser.complaints == []


def test_url_fragment_selects_episode_and_step(browser, pages):
    browser.open(pages["run"] + "#episode=3&step=4")
    assert browser.evaluate(WHERE).startswith("step 4 of") and browser.evaluate(WROTE) == "wrote 3"
    assert "credit" in browser.evaluate("document.querySelector('.facts').textContent")
    browser.open(pages["run"] + "#episode=999&step=4")
    assert browser.evaluate(WHERE).startswith("step 1 of") and browser.complaints == []


def test_filters_select_episodes(browser, pages):
    browser.open(pages["run"])
    box = "const b = document.querySelectorAll('.choices select')[n]"
    choose = f"(n, v) => {{ {box}; b.value = v; b.dispatchEvent(new Event('change', {{bubbles: true}})); }}"
    script = "[...document.querySelectorAll('.choices select')[3].options].map(o => o.textContent)"
    browser.evaluate(f"({choose})(0, 'lost')")
    browser.evaluate(f"({choose})(1, 'place')")
    names = browser.evaluate(script)
    assert names and all(". lost," in name for name in names)
    browser.evaluate(f"({choose})(2, 'training, iteration 10')")
    assert browser.evaluate(script) == [] and browser.evaluate(WHERE) == "No episode matches the filters."
    browser.evaluate(f"({choose})(1, '')")
    assert browser.evaluate(WHERE).startswith("step 1 of") and browser.complaints == []


def test_charts_show_value_under_pointer_and_keys(browser, pages):
    browser.open(pages["run"])
    chart = "document.querySelector('svg[data-chart]')"
    output = f"{chart}.closest('figure').querySelector('output').textContent"
    resting = browser.evaluate(output)
    browser.evaluate(f"{chart}.scrollIntoView({{block: 'center'}})")
    box = browser.evaluate(f"(b => [b.x, b.y, b.width, b.height])({chart}.getBoundingClientRect())")
    browser.hover(box[0] + box[2] * 0.55, box[1] + box[3] / 2)
    assert browser.evaluate(output) == "iteration 5: 77.5% [62.5%, 87.7%]" != resting
    browser.hover(0, 0)
    assert browser.evaluate(output) == resting
    browser.evaluate(f"{chart}.focus()")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert browser.evaluate(output).startswith("iteration 5: 77.5%") and browser.complaints == []


@pytest.mark.parametrize("name", ["run", "comparison"])
@pytest.mark.parametrize("width", [1280, 360])
def test_reading_a_chart_does_not_move_it(browser, pages, name, width):
    browser.open(pages[name], width)
    for number in range(browser.evaluate("document.querySelectorAll('svg[data-chart]').length")):
        chart = f"document.querySelectorAll('svg[data-chart]')[{number}]"
        if not browser.evaluate(f"{chart}.checkVisibility()"):
            continue  # in a closed details element
        place = f"(b => [b.x, b.y, b.width, b.height])({chart}.getBoundingClientRect())"
        browser.evaluate(f"{chart}.scrollIntoView({{block: 'center'}})")
        before = browser.evaluate(place)
        browser.hover(before[0] + before[2] / 2, before[1] + before[3] / 2)
        assert ": " in browser.evaluate(f"{chart}.closest('figure').querySelector('output').textContent")
        assert browser.evaluate(place) == before and browser.evaluate(WIDTH) == width


def test_hostile_text_is_shown_and_not_executed(browser, pages):
    browser.open(pages["hostile"] + "#episode=1&step=1")
    assert browser.evaluate("document.querySelector('.goal').textContent") == HOSTILE
    assert HOSTILE in browser.evaluate("document.getElementById('step').textContent")
    assert browser.evaluate("document.images.length") == 0 and browser.evaluate("document.title") == "hostile: a run"
    # Even injected markup could not run: the content security policy allows only the page's own script.
    browser.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
    browser.evaluate("new Promise(done => setTimeout(done, 100))")
    assert browser.evaluate("document.title") == "hostile: a run"
    assert any("Content Security Policy" in c for c in browser.complaints)


def test_episode_without_steps_is_shown(browser, pages):
    browser.open(pages["hostile"] + "#episode=3")
    assert browser.evaluate(WHERE) == "This episode ended before its first step." and browser.complaints == []


def test_click_follows_a_button_that_moves(browser, tmp_path):
    page = tmp_path / "moving.html"
    late = "addEventListener('mousemove', () => document.getElementById('late').style.height = '300px')"
    page.write_text(f"<div id=late></div><button onclick='this.textContent += 1'>pressed </button><script>{late}</script>")
    browser.open(page.as_uri())
    browser.click("button")
    assert browser.evaluate("document.querySelector('button').textContent") == "pressed 1"
