"""The picture of when seeds got to a success rate."""

from __future__ import annotations

import json
import re

from parsed import Page
from written import write_comparison

from tacit.report.comparison_page import comparison_page
from tacit.report.reaching import Seeds, reaching


def circles(markup: str) -> list[tuple[str, float, float]]:
    """(kind and colour, x, y)"""
    found = [dict(a) for a in Page(markup).all("circle")]
    return [(str(c["class"]), float(c["cx"] or 0), float(c["cy"] or 0)) for c in found]


def test_a_dot_per_seed_and_those_that_never_got_there_apart():
    drawn = circles(reaching("at 50%", [Seeds("grpo", [5, 10, None], 0), Seeds("gigpo", [5, 5, 5], 1)], last=20))
    assert [kind for kind, _, _ in drawn] == ["dot c0", "dot c0", "ring c0", "dot c1", "dot c1", "dot c1"]
    (_, five, _), (_, ten, _), (_, never, _), *others = drawn
    assert five < ten < never and [x for _, x, _ in others] == [five] * 3
    heights = [y for _, _, y in drawn]
    assert len(set(heights[3:])) == 3 and max(heights[:3]) < min(heights[3:]), "seeds do not hide one another, nor methods"


def test_many_seeds_stay_in_their_row():
    heights = [y for _, _, y in circles(reaching("", [Seeds("a", [1.0] * 50, 0), Seeds("b", [1.0], 1)], last=1))]
    assert max(heights[:50]) < heights[50] - 10


def test_on_the_page_of_a_comparison_finished_seeds_are_dots(tmp_path):
    place = write_comparison(tmp_path / "compared")
    found = json.loads((place / "comparison.json").read_text())
    for cell in found["cells"]:
        step = None if cell["seed"] == 2 else 10 + cell["seed"]
        cell["steps_to"] = [{"threshold": 0.25, "step": step}, {"threshold": 0.5, "step": "damaged"}]
    (place / "comparison.json").write_text(json.dumps(found))
    html = comparison_page(place)
    told = re.findall(r'aria-label="First evaluation at 25% or above\. ([^"]*)"', html)
    assert told == [
        "grpo 10, 11, never; bipace 10, 11, never; reuserl 10, 11, never.",
        "grpo 10, 11, never; bipace 10, 11; reuserl 10.",
    ], "one picture per world, with the finished seeds"
    assert "First evaluation at 50% or above. grpo never, never, never" in html
