"""WebShop's tracker: Table 6 rewards and penalties, state blocks, and a rule agent that reads only the block."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from tracker_episodes import fold, rules_met, some_of_all

from tacit.core.errors import TacitError
from tacit.core.types import PLAIN
from tacit.prompts.history import StateBlock
from tacit.worlds import get_environment
from tacit.worlds.webshop.skills import BOUND, ERRORS, PROGRESS
from tacit.worlds.webshop.tasks import generated_catalogue
from tacit.worlds.webshop.world import parse_request

WORLD = get_environment("webshop")
TASK = next(t for t in WORLD.tasks("train", 50, 0) if len(t.data["goal"]["options"]) == 2)
GOAL = TASK.data["goal"]
PRODUCT = generated_catalogue().by_id[GOAL["product"]]
(FIRST, ONE), (SECOND, TWO) = GOAL["options"]
WRONG = next(value for value in PRODUCT.options[FIRST] if value != ONE)
OPEN = [f"search[{PRODUCT.title}]", f"click[{PRODUCT.id.lower()}]"]


def rewards_of(actions):
    return [{k: v for k, v in signals.items() if "." in k} for signals in fold(TASK, actions)[1]]


def test_reward_tables_equal_table_6():
    assert PROGRESS == {"option": 0.15, "ready": 0.10}
    assert ERRORS == {"wrong_option": 0.10, "premature": 0.25, "loop": 0.10, "product_again": 0.08, "page_again": 0.08}


def test_choosing_requested_options_is_rewarded():
    rewards = rewards_of([*OPEN, f"click[{ONE}]", f"click[{TWO}]", "click[buy now]"])
    assert rewards == [{}, {}, {"progress.option": 0.15}, {"progress.option": 0.15, "progress.ready": 0.10}, {}]


def test_options_are_rewarded_once():
    one, wrong = f"click[{ONE}]", f"click[{WRONG}]"
    rewards = rewards_of([*OPEN, one, wrong, one, "click[< prev]", OPEN[1], one])
    assert rewards[2] == {"progress.option": 0.15} and rewards[3] == {"error.wrong_option": 0.10}
    assert rewards[4] == {"error.loop": 0.10} and rewards[6] == {"error.product_again": 0.08} and rewards[7] == {}


def test_penalties_for_premature_purchase_and_loops():
    assert rewards_of([*OPEN, f"click[{ONE}]", "click[buy now]"])[-1] == {"error.premature": 0.25}
    assert rewards_of([*OPEN, "click[features]", "click[< prev]", "click[features]"])[-1] == {
        "error.loop": 0.10,
        "error.page_again": 0.08,
    }
    assert rewards_of([*OPEN, "click[features]", "click[< prev]", "click[reviews]"])[-1] == {}
    assert rewards_of([*OPEN, "nonsense", "click[nothing]"])[2:] == [{}, {}], "Table 6 has no such penalties"


def test_state_blocks_of_full_and_paper_forms():
    state, _ = fold(TASK, [*OPEN, f"click[{ONE}]", "click[features]"])
    assert WORLD.tracker.render(state) == (
        f"phase: options\nquery: {PRODUCT.title.lower()}\nproduct: {PRODUCT.id.lower()}\nchosen: {FIRST}: {ONE}\n"
        f"to choose: {SECOND}: {TWO}\nnot read of it: none\npages read: features\nopened before: none"
    )
    assert WORLD.forms["paper"].render(state) == (
        f"current_query: {PRODUCT.title.lower()}\ninspected_product: {PRODUCT.id.lower()}\nselected_options: {FIRST}: {ONE}\n"
        f"remaining_options: {SECOND}: {TWO}\nready_to_purchase: no"
    )
    state, _ = fold(TASK, [*OPEN, f"click[{ONE}]", f"click[{TWO}]"])
    assert state.phase == "purchase" and WORLD.forms["paper"].render(state).endswith("ready_to_purchase: yes")
    assert fold(TASK, [])[0].phase == "search" and fold(TASK, OPEN[:1])[0].phase == "browse"
    assert "opened before: " + PRODUCT.id.lower() in WORLD.tracker.render(fold(TASK, [*OPEN, "click[< prev]"])[0])


@pytest.mark.slow
def test_state_blocks_are_bounded_and_every_rule_occurs():
    def wander(task, purpose: float, rng: Random):
        live, hero = WORLD.make(), WORLD.expert()(task)
        observation = live.reset(task)
        state, sums = WORLD.tracker.start(task, observation), Counter()
        success = False
        for _ in range(60):
            action = hero.act(observation)
            if rng.random() >= purpose:
                offered = [a for a in observation.actions if a != "click[buy now]" or rng.random() < 0.3]
                action = rng.choice(offered)
            transition = live.step(action)
            after = WORLD.tracker.update(state, action, transition)
            sums.update(WORLD.tracker.signals(state, after))
            state, observation = after, transition.observation
            for tracker in WORLD.trackers.values():
                assert len(tracker.render(state)) <= BOUND
            if transition.done:
                success = transition.success
                break
        return success, sums

    met = rules_met(some_of_all(WORLD, ("train", "test"), 120), wander)
    assert set(WORLD.tracker.components) <= met


@pytest.mark.parametrize("wording", ["full", "terse"])
@pytest.mark.parametrize(("form", "least"), [("full", 60), ("paper", 54)])
def test_rule_agent_wins_from_the_state_block(wording, form, least):
    """Sixty test goals: the rule agent wins all with `full` and most with the paper's fields."""
    won = 0
    for task in WORLD.tasks("test", 60, 1):
        reader = StateBlock(WORLD.wording(wording), WORLD.trackers[form]).begin(task, PLAIN)
        live = WORLD.make()
        observation = live.reset(task)
        for _ in range(WORLD.max_steps):
            action = WORLD.reader(reader.read(observation).text)
            transition = live.step(action)
            reader.record(action, transition)
            observation = transition.observation
            if transition.done:
                break
        won += transition.success
    assert won >= least


def test_rule_agent_requires_a_state_block():
    with pytest.raises(TacitError, match="--state-block --history 1"):
        WORLD.reader("search >")


def test_parse_request_splits_instruction_sentences():
    wish = parse_request(
        "Find me steel frame coffee tables with storage space for living room with color: brown, and size: with shelf, and "
        "price lower than 110.00 dollars"
    )
    assert wish.thing == "steel frame coffee tables with storage space for living room" and wish.limit == 110.0
    assert wish.options == {"color": "brown", "size": "with shelf"}
    assert wish.parts == (wish.thing, "steel frame coffee tables", "storage space", "living room")
    people = parse_request("i want a light blue stool that is easy to assemble, and price lower than 60.00 dollars")
    assert people.options == {} and people.wanted({"color": ("blue", "light blue", "red"), "size": ("s",)}) == {
        "color": "light blue"
    }
    assert parse_request("").words == () and parse_request("Find me x with color: a, and b, and size: c").options == {
        "color": "a, and b",
        "size": "c",
    }
