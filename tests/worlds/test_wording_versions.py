"""Prompts change only together with the version of their wording: runs and skill modules depend on the exact words."""

from __future__ import annotations

import hashlib

import pytest

from tacit.core.types import PLAIN
from tacit.prompts.history import History, StateBlock
from tacit.worlds import get_environment

EPISODES, TURNS = 10, 12
WORDS = {
    ("countdown", "full"): ("1", "5c34d8ece2f6bf95"),
    ("countdown", "terse"): ("1", "0c8080965901c3fb"),
    ("alfworld", "full"): ("2", "101337d4d359cfc2"),
    ("alfworld", "terse"): ("1", "6e878826f208bda0"),
    ("cooking", "full"): ("2", "0ef8dc6e0f755e0b"),
    ("cooking", "terse"): ("2", "33aec522892f2eb7"),
    ("textcraft", "full"): ("1", "41430a438007d158"),
    ("textcraft", "terse"): ("1", "2f93fddaf1a9d6ac"),
    ("sokoban", "full"): ("1", "9624076020f9b92d"),
    ("sokoban", "terse"): ("1", "ad5f9bd26ef894a3"),
    ("webshop", "full"): ("1", "25f48ccb9be23512"),
    ("webshop", "terse"): ("1", "34ba5146b9ae0554"),
    ("searchqa", "full"): ("1", "fac5b141b5ec2987"),
    ("searchqa", "terse"): ("1", "97c19b023854375b"),
    ("minihack", "full"): ("1", "cb83c9070010eaa7"),
    ("minihack", "terse"): ("1", "81a33ed79045c183"),
    ("errands", "full"): ("1", "8e86a66216f3ff11"),
    ("errands", "terse"): ("1", "42077af20afc1189"),
}
"""(world, wording) -> its version, and a hash of its prompts along the expert's episodes"""


def prompts(world, wording):
    """Prompts of four contexts: no history, two turns, all turns, and the state block."""
    contexts = [History(wording, count, admissible=True) for count in (0, 2, None)]
    contexts.append(StateBlock(wording, world.tracker, bound=100_000))
    for task in world.tasks("train", EPISODES, 17):
        live, expert, readers = world.make(), world.expert()(task), [context.begin(task, PLAIN) for context in contexts]
        observation = live.reset(task)
        for _ in range(TURNS):
            yield from (reader.read(observation).text for reader in readers)
            action = expert.act(observation)
            transition = live.step(action)
            for reader in readers:
                reader.record(action, transition)
            observation = transition.observation
            if transition.done:
                break


@pytest.mark.parametrize(("name", "wording"), WORDS)
def test_prompts_change_only_with_the_wording_version(name, wording):
    world = get_environment(name)
    if world.remedy:
        pytest.skip(f"{name} {world.remedy}")
    texts = list(prompts(world, world.wording(wording)))
    here = hashlib.sha256("\n\n\n".join(texts).encode()).hexdigest()[:16]
    version = world.wording(wording).version or "1"
    assert len(texts) >= 80 and (version, here) == WORDS[name, wording], (
        f"the wording {wording!r} of {name} says something else: raise its version, so that modules trained on the old words "
        "are refused, and write the new hash here"
    )
