"""`tacit watch` in a real browser: new parts appear by themselves and the reader's place is kept."""

from __future__ import annotations

import pytest
from watching import grow, watching
from written import HOSTILE, episode, write_run

from tacit.runs.trajectories import write_records

pytestmark = pytest.mark.slow

WIDTH = "document.documentElement.scrollWidth"
CAME = "document.querySelector('#came')?.textContent || ''"
WHERE = "document.getElementById('where').textContent"


@pytest.mark.parametrize("width", [1280, 360])
def test_page_follows_a_run_from_start_to_end(browser, tmp_path, width):
    run = tmp_path / "run"
    with watching(run) as server:
        browser.open(f"{server.address}/", width, 800, dark=width == 360)
        browser.until("document.body.innerText.includes('There is no directory')")
        write_run(run, finished=False, episodes=[episode(1, True, text=HOSTILE, goal=HOSTILE), episode(2, False, 70)])
        browser.until(f"({CAME}).includes('training, iteration 10')")
        assert "last written" in browser.evaluate("document.querySelector('.following').textContent")
        assert browser.evaluate("document.images.length") == 0
        browser.evaluate("document.querySelector('#curves details').open = true")
        browser.evaluate("document.querySelector('#run').marked = document.querySelector('#curves').marked = 1")
        grow(run, 11, won=2)
        browser.until(f"({CAME}).includes('training, iteration 11: 2 of 3 won')")
        assert browser.evaluate("document.querySelector('#run').marked") == 1, "what is as it was stays where it is"
        assert browser.evaluate("document.querySelector('#curves').marked") is None
        assert browser.evaluate("document.querySelector('#curves details').open"), "what was opened stays open"
        chart = "document.querySelector('#curves svg[data-chart]')"
        browser.evaluate(f"{chart}.focus()")
        browser.press("ArrowRight")
        assert "iteration 1" in browser.evaluate(f"{chart}.closest('figure').querySelector('output').textContent"), (
            "new charts tell too"
        )
        assert browser.evaluate(WIDTH) == width, "the page itself never scrolls sideways"
        browser.screenshot(tmp_path / f"run-{width}.png")
        (run / "summary.json").write_text('{"episodes": 3}')
        browser.until("document.querySelector('.state').textContent === 'finished'")
        assert browser.complaints_beyond(server.address) == []
        browser.open("about:blank")


def test_open_episode_is_not_replaced_by_new_ones(browser, tmp_path):
    run = write_run(tmp_path / "run", finished=False)
    with watching(run) as server:
        browser.open(f"{server.address}/runs/0#episode=1&step=2")
        before = browser.evaluate(WHERE)
        assert before.startswith("step 2 of")
        write_records(run / "trajectories" / "eval-rl-000020.jsonl.gz", [episode(500, False, 9)])
        browser.until("!!document.querySelector('#trajectories .newer')")
        assert browser.evaluate(WHERE) == before
        browser.evaluate("document.getElementById('viewer').scrollIntoView()")
        browser.press("ArrowLeft")
        assert browser.evaluate(WHERE).startswith("step 1 of")
        browser.click(".newer")
        browser.until("document.querySelector('#episode').textContent.includes('letters/test/500')")
        assert browser.evaluate("location.hash") == ""
        browser.press("ArrowRight")
        assert browser.evaluate("location.hash") == "#episode=1&step=2", "one viewer hears the keys, not two"
        assert browser.complaints_beyond(server.address) == []
        browser.open("about:blank")


@pytest.mark.parametrize("width", [1280, 360])
def test_strip_links_to_its_episode_beside_other_runs(browser, tmp_path, width):
    one, other = write_run(tmp_path / "one"), write_run(tmp_path / "other", finished=False)
    grow(other, 11)
    with watching(one, other) as server:
        browser.open(f"{server.address}/", width)
        browser.until("document.querySelectorAll('.beside h3').length === 2")
        assert browser.evaluate("[...document.querySelectorAll('.beside h3')].map(h => h.textContent)") == ["one", "other"]
        assert browser.evaluate(WIDTH) == width
        browser.screenshot(tmp_path / f"beside-{width}.png")
        grow(one, 12, won=3)
        browser.until(f"({CAME}).includes('training, iteration 12: 3 of 3 won')")
        goal = browser.evaluate("document.querySelector('.beside .came a').lastElementChild.textContent")
        browser.evaluate("document.querySelector('.beside .came a').click()")
        browser.until("location.pathname === '/runs/0/episodes/rl-000012' && !!document.querySelector('.goal')")
        assert browser.evaluate("document.querySelector('.goal').textContent") == goal
        assert browser.complaints_beyond(server.address) == []
        browser.open("about:blank")


def test_lost_server_is_reported(browser, tmp_path):
    with watching(write_run(tmp_path / "run", finished=False)) as server:
        browser.open(f"{server.address}/runs/0")
        address = server.address
    browser.until("document.querySelector('.following').textContent.includes('the server does not answer')")
    assert all(
        "fetched" in complaint or "ERR_CONNECTION_REFUSED" in complaint for complaint in browser.complaints_beyond(address)
    )
