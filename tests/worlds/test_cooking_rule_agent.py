"""Forms of cooking's state block, and the rule agent."""

from __future__ import annotations

from random import Random

import pytest

from tacit.core.errors import TacitError
from tacit.core.types import PLAIN, Observation, Task, Transition
from tacit.prompts.history import StateBlock
from tacit.worlds.cooking import ENVIRONMENT
from tacit.worlds.cooking.skills import act_on_prompt
from tacit.worlds.cooking.world import CookingWorld


def wins(task: Task, form: str, wording: str = "terse") -> bool:
    context = StateBlock(ENVIRONMENT.wording(wording), ENVIRONMENT.tracker_of(form))
    world, reader = CookingWorld(), context.begin(task, PLAIN)
    observation = world.reset(task)
    for _ in range(ENVIRONMENT.max_steps):
        action = act_on_prompt(reader.read(observation).text)
        transition = world.step(action)
        reader.record(action, transition)
        observation = transition.observation
        if transition.done:
            return transition.success
    return False


@pytest.mark.parametrize("wording", ["terse", "full"])
@pytest.mark.parametrize("form", ["full", "text"])
def test_rule_agent_wins_every_game_from_the_state_block(form, wording):
    tasks = ENVIRONMENT.tasks("test", 60, 0)
    assert {task.family for task in tasks} == set(ENVIRONMENT.families)
    assert all(wins(task, form, wording) for task in tasks)


def test_rule_agent_loses_games_without_the_search_list():
    tasks = ENVIRONMENT.tasks("test", 60, 0)
    assert 0 < sum(wins(task, "no_places") for task in tasks) < 45


def test_prompt_without_state_block_is_rejected():
    with pytest.raises(TacitError, match="needs a prompt with a state block"):
        act_on_prompt("kitchen | fridge?")


def test_text_tracker_equals_full_tracker():
    """Under random play with invalid actions, a tracker that reads only texts and actions has the same states."""
    full, text = ENVIRONMENT.tracker_of("full"), ENVIRONMENT.tracker_of("text")
    refused = ended = drunk = 0
    for number, task in enumerate(ENVIRONMENT.tasks("train", 90, 1)):
        rng, world = Random(number), CookingWorld()
        observation = world.reset(task)
        one, other = full.start(task, observation), text.start(task, Observation(observation.text))
        for _ in range(ENVIRONMENT.max_steps):
            action = rng.choice([*observation.actions, "fly to the moon", "", "cook salt with stove", "examine knife"])
            transition = world.step(action)
            observation = transition.observation
            one, other = (
                full.update(one, action, transition),
                text.update(other, action, Transition(Observation(observation.text))),
            )
            assert one == other
            refused += not transition.effective
            drunk += transition.effective and action.startswith("drink ")
            if transition.done:
                ended += 1
                break
    assert refused > 50 and ended > 10 and drunk


def test_forms_have_versions_and_no_places_omits_the_search_list():
    assert [tracker.version for tracker in ENVIRONMENT.trackers.values()] == [
        *("cooking-2", "cooking-text-1", "cooking-no_places-1")
    ]
    for task in ENVIRONMENT.tasks("test", 20, 0):
        blocks = []
        for form in ("full", "no_places"):
            tracker = ENVIRONMENT.tracker_of(form)
            blocks.append(tracker.render(tracker.start(task, CookingWorld().reset(task))).split("\n"))
        assert [line for line in blocks[0] if not line.startswith("to search: ")] == blocks[1]
