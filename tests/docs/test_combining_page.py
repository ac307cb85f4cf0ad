"""docs/guides/combine_methods.md: for every pair of methods, whether they combine, or the reason why not."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import pytest

from tacit.core.errors import TacitError
from tacit.methods import METHODS, get_method
from tacit.worlds import get_environment

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "combine_methods.md"
WORLD = get_environment("alfworld")
NAMES = [name for name in METHODS if name != "grpo"]
"""without grpo, which combines with every method"""


def verdict(*names: str) -> str:
    """Empty if the methods combine, otherwise the reason without the method names."""
    try:
        get_method("+".join(names))().build(WORLD)
    except TacitError as error:
        return re.sub(r"^.*?(: )", "", str(error), count=1).rstrip(".")
    return ""


def table() -> tuple[str, dict[str, str]]:
    """The matrix, and the reason for each letter."""
    letters: dict[str, str] = {}
    cells = {}
    for pair in combinations(NAMES, 2):
        reason = verdict(*pair)
        cells[frozenset(pair)] = letters.setdefault(reason, chr(ord("a") + len(letters))) if reason else "✓"
    rows = [f"| | {' | '.join(NAMES)} |", f"|---|{'---|' * len(NAMES)}"]
    rows += [f"| **{one}** | {' | '.join(cells.get(frozenset((one, other)), '–') for other in NAMES)} |" for one in NAMES]
    return "\n".join(rows), {letter: reason for reason, letter in letters.items()}


def test_table_matches_the_code():
    matrix, letters = table()
    text = PAGE.read_text(encoding="utf-8")
    legend = "\n".join(f"- **{letter}**: {reason}" for letter, reason in letters.items())
    assert matrix in text, f"docs/guides/combine_methods.md should have this table:\n{matrix}"
    assert legend in text, f"docs/guides/combine_methods.md should have this legend:\n{legend}"


@pytest.mark.parametrize("names", [("bipace", "reuserl"), ("rloo", "gigpo"), ("constant_context", "bipace", "reuserl")])
def test_order_of_methods_does_not_matter(names):
    one, other = (get_method("+".join(order))().build(WORLD) for order in (names, names[::-1]))
    for piece in ("rewards", "credits", "losses", "columns", "hidden_state", "schedule", "context"):
        assert getattr(one, piece) == getattr(other, piece)


def test_grpo_adds_nothing_to_a_method():
    for name in NAMES:
        alone, added = get_method(name)().build(WORLD), get_method(f"grpo+{name}")().build(WORLD)
        assert (added.rewards, added.credits, added.losses) == (alone.rewards, alone.credits, alone.losses)
