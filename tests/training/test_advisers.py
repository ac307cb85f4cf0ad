"""Experts that can advise in an episode another agent plays (`Adviser`)."""

from __future__ import annotations

from random import Random

import pytest

from tacit.core.types import Observation
from tacit.core.world import Adviser
from tacit.training.demonstrations import NoisyExpert
from tacit.worlds import get_environment


@pytest.mark.parametrize("name", ["alfworld", "cooking", "textcraft", "errands"])
def test_adviser_recovers_from_actions_of_others(name):
    """Random actions are taken for some turns, some of them refused. Then the adviser acts and wins."""
    world = get_environment(name)
    won, tasks = 0, world.tasks("train", 12, 5)
    for task in tasks:
        rng, live, adviser = Random(task.id), world.make(), world.expert()(task)
        assert isinstance(adviser, Adviser)
        observation, others = live.reset(task), 1 if name == "errands" else 6
        # actions that cannot end the episode or destroy a needed object
        harmless = ("go", "open", "close", "look", "take knife", "inventory", "get", "examine")
        for turn in range(world.max_steps):
            action = adviser.act(observation)
            if turn < others:
                action = rng.choice([a for a in observation.actions if a.startswith(harmless)] + ["hm"])
                adviser.happened(action)
            transition = live.step(action)
            observation = transition.observation
            if transition.done:
                won += transition.success
                break
    assert won >= 11, f"{won} of {len(tasks)}"


def test_webshop_oracle_knows_which_option_was_clicked():
    """No page of the shop shows which option is chosen. Told of another click, the oracle asks for the remaining option;
    otherwise it would assume its own click and ask for the chosen one again."""
    shop, swapped = get_environment("webshop"), 0
    for task in shop.tasks("train", 20, 0):
        live, hero = shop.make(), shop.expert("oracle")(task)
        observation, options, clicked = live.reset(task), [f"click[{v}]" for _, v in task.data["goal"]["options"]], []
        for _ in range(shop.max_steps):
            action = hero.act(observation)
            assert action not in clicked
            other = next((o for o in options if o != action and o not in clicked), "")
            if action in options and other:
                action, swapped = other, swapped + 1
                hero.happened(action)
            clicked += [action] if action in options else []
            transition = live.step(action)
            observation = transition.observation
            if transition.done:
                break
    assert swapped > 3


def test_noise_actions_are_reported_to_the_expert():
    class Listener:
        def __init__(self):
            self.actions = []

        def act(self, observation):
            return "mine"

        def happened(self, action):
            self.actions.append(action)

    hero = Listener()
    player = NoisyExpert(hero, 0.5, Random(0))
    played = [player.act(Observation("here", ("other",))) for _ in range(40)]
    assert played.count("other") == len(hero.actions) > 5 and set(hero.actions) == {"other"}


@pytest.mark.parametrize(
    "world", ["alfworld", "cooking", "countdown", "errands", "minihack", "sokoban", "textcraft", "webshop"]
)
def test_first_expert_can_advise(world):
    assert issubclass(get_environment(world).expert(None), Adviser)
