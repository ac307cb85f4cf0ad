"""docs/methods/reuserl.md: the example of a custom alphabet runs."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from skilled import step

from tacit.core.types import Group, Observation, StopReason, Trajectory
from tacit.methods.reuserl import ReuseRL

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "methods" / "reuserl.md").read_text(encoding="utf-8")


def code_in(page: str) -> str:
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]


def test_docs_example_of_a_custom_alphabet_runs(monkeypatch):
    """The example on the world of docs/tutorials/own_world.md: a success is projected, merged and priced."""
    guess = ModuleType("guess")
    exec(code_in((ROOT / "docs" / "tutorials" / "own_world.md").read_text(encoding="utf-8")), guess.__dict__)
    monkeypatch.setitem(sys.modules, "guess", guess)
    written: dict[str, Any] = {}
    exec(code_in(PAGE), written)
    world = written["GUESSING"]
    method = ReuseRL().build(world)
    task = world.tasks("train", 1, 0)[0]
    actions = ["10", "what?", "5", "2", "3"]
    won = Trajectory(
        task, tuple(step(a, effective=a.isdigit()) for a in actions), True, 1.0, StopReason.SUCCESS, Observation("")
    )
    assert world.alphabet(won) == ("begin", "go down", "go down", "go up")
    mumbled = replace(won, steps=tuple(replace(s, valid=False) for s in won.steps))
    assert world.alphabet(mumbled) == world.alphabet(won), "the same actions, the same skills, however they are written"
    (companion,), cost = method.companions, method.rewards[2]
    assert cost.reward(won) == pytest.approx(-10 * 4 / 8)
    companion.observe([Group(task, (won,) * 40)])
    assert ("begin", "go down", "go down", "go up") in companion.dictionary.merged
    assert cost.reward(won) == pytest.approx(-10 * 1 / 8)
