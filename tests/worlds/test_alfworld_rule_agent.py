"""ALFWorld's rule agent: acts on the prompt alone, in every form of the state block and both wordings."""

from __future__ import annotations

import pytest

from tacit.core.errors import TacitError
from tacit.core.types import PLAIN, Task
from tacit.prompts.history import StateBlock
from tacit.worlds.alfworld import ENVIRONMENT
from tacit.worlds.alfworld.published import load_games
from tacit.worlds.alfworld.skills import act_on_prompt, expand
from tacit.worlds.alfworld.world import AlfWorld


def play(task: Task, form: str, wording: str = "terse", limit: int = 50) -> list[str]:
    """The rule agent's actions, or an empty list if it does not win."""
    context = StateBlock(ENVIRONMENT.wording(wording), ENVIRONMENT.tracker_of(form))
    world, reader, actions = AlfWorld(), context.begin(task, PLAIN), []
    observation = world.reset(task)
    for _ in range(limit):
        actions.append(act_on_prompt(reader.read(observation).text))
        transition = world.step(actions[-1])
        reader.record(actions[-1], transition)
        observation = transition.observation
        if transition.success:
            return actions
    return []


def test_expand_lists_every_place_of_a_range():
    assert expand("drawer 1-3 5, bed 1") == ["drawer 1", "drawer 2", "drawer 3", "drawer 5", "bed 1"]
    assert expand("none") == expand("None") == []


SEARCH = """put a cloth in sidetable.
shelf 3: pencil 1 > go to drawer 1
subgoal: find_object
object: cloth
holding: nothing
destination: sidetable
at: drawer 1
likely: shelf, drawer, sidetable
unchecked: drawer 1-11, sidetable 1-2, armchair 1-2, bed 1-2, garbagecan 1, safe 1
checked: shelf 1-4
drawer 1 closed >"""


def test_rule_agent_acts_on_the_state_block_and_requires_one():
    assert act_on_prompt(SEARCH) == "open drawer 1"
    assert (
        act_on_prompt(SEARCH.replace("drawer 1 closed >", "drawer 1 open: nothing >").replace("drawer 1-11", "drawer 2-11"))
        == "go to drawer 2"
    )
    with pytest.raises(TacitError, match="needs a prompt with a state block"):
        act_on_prompt("put a cloth in sidetable.\ndrawer 1 closed >")


PAPER = """put a cloth in sidetable.
shelf 3: pencil 1 > go to drawer 4
target_object: cloth
destination: sidetable
holding: None
checked_locations: shelf 1-4
searched_containers: None
current_subgoal: find_object
nothing happens >"""


def test_rule_agent_continues_from_last_action_without_place_list():
    """Drawer 4 does not exist, so no later drawer does either: the agent tries the next kind of place."""
    after = act_on_prompt(PAPER)
    assert after.startswith("go to ") and "drawer" not in after and "shelf" not in after
    assert act_on_prompt(PAPER.replace("nothing happens", "drawer 4 open: nothing")) == "go to drawer 5"
    found = PAPER.replace("nothing happens", "drawer 4 open: soap 1, cloth 2").replace("find_object", "take_object")
    assert act_on_prompt(found) == "take cloth 2 from drawer 4"


@pytest.mark.parametrize("form", ["full", "paper", "text", "no_places"])
def test_rule_agent_wins_unseen_houses_with_every_state_block(form):
    tasks = ENVIRONMENT.tasks("unseen", 42, 3)
    played = [play(task, form) for task in tasks]
    assert sum(map(bool, played)) >= 0.85 * len(tasks)
    assert [play(task, form, "full") for task in tasks[:12]] == played[:12], "the words around the block change nothing"


@pytest.mark.slow
def test_rule_agent_wins_published_games(shared_data):
    """The full block wins all 140 games of valid_seen; the paper's six fields win at least 126."""
    tasks = load_games(shared_data / "alfworld" / "valid_seen.jsonl.xz").tasks
    won = {form: sum(bool(play(task, form)) for task in tasks) for form in ("full", "text", "no_places", "paper")}
    assert won["full"] == won["text"] == 140 > won["no_places"] > won["paper"] >= 126
