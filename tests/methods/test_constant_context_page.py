"""docs/methods/constant_context.md: the example is a real prompt, and the listed components are those of the trackers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tacit.core.types import PLAIN
from tacit.prompts.history import StateBlock
from tacit.worlds import get_environment

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "methods" / "constant_context.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("form", ["full", "paper"])
def test_docs_example_is_a_real_prompt(form):
    world = get_environment("alfworld")
    task = world.tasks("unseen", 120, 3)[4]
    reader = StateBlock(world.wording("terse"), world.tracker_of(form)).begin(task, PLAIN)
    live, expert = world.make(), world.expert()(task)
    observation = live.reset(task)
    for _ in range(3):
        reader.read(observation)
        action = expert.act(observation)
        transition = live.step(action)
        reader.record(action, transition)
        observation = transition.observation
    prompt = "\n".join(f"    {line}" for line in reader.read(observation).text.splitlines())
    assert prompt in PAGE


@pytest.mark.parametrize("name", ["alfworld", "cooking", "countdown", "textcraft", "sokoban"])
def test_docs_list_the_tracker_components(name):
    (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {name} |"))
    cells = zip(("progress", "error"), row.split("|")[2:4], strict=True)
    components = [f"{kind}.{rule}" for kind, cell in cells for rule in re.findall(r"`(\w+)`", cell)]
    assert tuple(components) == get_environment(name).tracker.components
