"""ALFWorld's experts: win rates, episode length, the information they may use, and recovery from disturbances."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from alfworld_problem import GOALS, problem
from alfworld_small_house import house_of_pens, task_of

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task
from tacit.core.world import Expert
from tacit.worlds.alfworld import ENVIRONMENT
from tacit.worlds.alfworld.published import load_games, parse_problem
from tacit.worlds.alfworld.skills import Explorer, Oracle, plan
from tacit.worlds.alfworld.tasks import PLACES, likelihood
from tacit.worlds.alfworld.tracker import command_of, read_goal, read_view
from tacit.worlds.alfworld.world import FAMILIES, AlfWorld, Goal, Household

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ("train", "seen", "unseen")


@cache
def generated(split: str, count: int) -> Sequence[Task]:
    return ENVIRONMENT.tasks(split, count, 7)


def play(make: Callable[[Task], Expert], task: Task, max_steps: int = 50, noise: float = 0.0) -> tuple[list[str], AlfWorld]:
    """Play one episode. Returns the commands and the final world."""
    rng = random.Random(zlib.crc32(task.id.encode()))
    world, expert, played = AlfWorld(), make(task), []
    observation = world.reset(task)
    while len(played) < max_steps and not world.household.won:
        action = expert.act(observation)
        assert action in observation.actions, f"{task.id}: {action!r} would be refused"
        played.append(rng.choice(observation.actions) if rng.random() < noise else action)
        observation = world.step(played[-1]).observation
    return played, world


def rates(make: Callable[[Task], Expert], tasks: Sequence[Task], **how) -> dict[str, float]:
    games, wins = Counter(t.family for t in tasks), Counter(t.family for t in tasks if play(make, t, **how)[1].household.won)
    assert set(games) == set(FAMILIES)
    return {family: wins[family] / games[family] for family in games}


def stuck(household: Household) -> bool:
    """Whether the agent holds an object that fits nowhere in this house, so it can never put it down."""
    if household.held is None:
        return False
    kind = household.game.things[household.held].kind
    return not any((r.kind, kind) in household.game.fits for r in household.game.receptacles)


@pytest.mark.parametrize(
    ("sentence", "goal"),
    [
        ("put a mug in coffeemachine.", Goal("pick", "mug", "coffeemachine")),
        ("put some toiletpaper on toiletpaperhanger.", Goal("pick", "toiletpaper", "toiletpaperhanger")),
        ("look at bowl under the desklamp.", Goal("look", "bowl", "desklamp")),
        ("examine the pen with the desklamp.", Goal("look", "pen", "desklamp")),
        ("clean some plate and put it in cabinet.", Goal("clean", "plate", "cabinet")),
        ("put a clean plate in cabinet.", Goal("clean", "plate", "cabinet")),
        ("heat some egg and put it in fridge.", Goal("heat", "egg", "fridge")),
        ("put a hot egg in fridge.", Goal("heat", "egg", "fridge")),
        ("cool some pan and put it in stoveburner.", Goal("cool", "pan", "stoveburner")),
        ("put a cool pan in stoveburner.", Goal("cool", "pan", "stoveburner")),
        ("put two cd in safe.", Goal("pick2", "cd", "safe")),
        ("find two cd and put them in safe.", Goal("pick2", "cd", "safe")),
    ],
)
def test_read_goal_parses_published_goal_sentences(sentence, goal):
    assert read_goal(sentence) == goal


def test_read_goal_rejects_unknown_sentence():
    with pytest.raises(TacitError, match="'tidy up'"):
        read_goal("tidy up")


def test_command_of_recovers_effective_commands_from_feedback():
    """Half planned, half random actions, so every verb except `slice` occurs."""
    idle, verbs = ("look", "inventory", "help", "examine", "fly"), set()
    for task in generated("train", 60)[:24]:
        world, rng = AlfWorld(), random.Random(zlib.crc32(task.id.encode()))
        assert command_of(world.reset(task).text) == ""
        for _ in range(40):
            purposeful = plan(world.household)[:1] if rng.random() < 0.5 else []
            action = (purposeful or [rng.choice([*world.household.commands, "fly"])])[0]
            expected = "" if action.startswith(idle) else action
            assert command_of(world.step(action).observation.text) == expected
            verbs.add(action.split()[0])
    assert verbs >= {"go", "open", "close", "take", "move", "use", "clean", "heat", "cool", *idle}
    assert command_of("You sliced the apple 1 with the butterknife 2.") == "slice apple 1 with butterknife 2"


def test_read_view_parses_receptacle_contents():
    assert read_view("You arrive at desk 1. On the desk 1, you see a cd 12, and a pen 3.") == ("desk 1", ["cd 12", "pen 3"])
    assert read_view("You open the safe 1. The safe 1 is open. In it, you see nothing.") == ("safe 1", [])
    assert read_view("You arrive at safe 1. The safe 1 is closed.") is None
    assert read_view("You are facing the desk 1. Next to it, you see a pen 3.") is None


def test_every_goal_object_kind_has_likely_places():
    kinds = {read_goal(task.goal).kind for split in GENERATED for task in generated(split, 60)}
    assert kinds <= set(PLACES)
    assert "desklamp" in PLACES
    assert likelihood("pillow", "bed") > likelihood("pillow", "armchair") > likelihood("pillow", "fridge") > 0
    assert likelihood("gramophone", "diningtable") > likelihood("gramophone", "toaster") > 0


@pytest.mark.parametrize("split", GENERATED)
def test_experts_win_generated_houses(split):
    tasks = generated(split, 60)
    assert min(rates(Explorer, tasks).values()) >= 0.9
    assert set(rates(Oracle, tasks).values()) == {1.0}


def published(shared_data: Path, name: str, per_family: int | None = None) -> list[Task]:
    tasks = list(load_games(shared_data / "alfworld" / f"{name}.jsonl.xz").tasks)
    random.Random(0).shuffle(tasks)
    if per_family is None:
        return tasks
    return [task for family in FAMILIES for task in [t for t in tasks if t.family == family][:per_family]]


def check_published(tasks: list[Task]) -> None:
    assert min(rates(Explorer, tasks).values()) >= 0.9
    for task in tasks:
        played, world = play(Oracle, task)
        assert world.household.won
        assert len(played) <= len(task.data["walkthrough"])


@pytest.mark.slow
def test_experts_win_held_out_published_games(shared_data):
    """Uses valid_seen because the table of places was built from the training games."""
    check_published(published(shared_data, "valid_seen", 10))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "valid_seen"])
def test_experts_win_all_published_games(shared_data, name):
    check_published(published(shared_data, name))


@pytest.mark.parametrize("make", [Explorer, Oracle])
def test_experts_still_win_when_commands_are_randomly_replaced(make):
    """30% of commands are replaced by random ones. Every game that can still be won is won."""
    worlds = [play(make, task, max_steps=150, noise=0.3)[1] for task in generated("train", 60)]
    assert all(world.household.won or stuck(world.household) for world in worlds)
    assert sum(world.household.won for world in worlds) >= 0.9 * len(worlds)


def test_explorer_recovers_from_unobserved_random_actions():
    """Two random actions follow each of its first ten moves; it sees only the last observation."""
    lost = 0
    for task in generated("seen", 60)[::2]:
        world, expert, rng = AlfWorld(), Explorer(task), random.Random(zlib.crc32(task.id.encode()))
        observation = world.reset(task)
        for number in range(150):
            observation = world.step(expert.act(observation)).observation
            for _ in range(2 if number < 10 else 0):
                if not world.household.won:
                    observation = world.step(rng.choice(observation.actions)).observation
            if world.household.won:
                break
        lost += not (world.household.won or stuck(world.household))
    assert lost == 0


@pytest.mark.parametrize("task", generated("unseen", 12), ids=lambda task: task.id)
def test_explorer_uses_only_the_goal_and_is_deterministic(task):
    """The commands are equal with and without the game in the task, and in a second run."""
    blind = play(lambda _: Explorer(Task("", "", "", "", 0, task.goal)), task)[0]
    assert blind == play(Explorer, task)[0] == play(Explorer, task)[0]


def test_explorer_ignores_hidden_object_positions():
    """If the second pen already lies in the destination drawer, the same commands win sooner."""
    usual, short = (play(Explorer, task_of(house_of_pens(second)))[0] for second in ("drawer 2", "drawer 1"))
    assert short == usual[:5]


def test_experts_bring_both_objects_to_one_receptacle():
    """The oracle delivers to drawer 2, which already holds a pen. The explorer cannot know that and fills drawer 1."""
    assert play(Oracle, task_of(house_of_pens("drawer 2")))[0] == [
        "go to desk 1",
        "take pen 1 from desk 1",
        "go to drawer 2",
        "open drawer 2",
        "move pen 1 to drawer 2",
    ]
    assert play(Explorer, task_of(house_of_pens("drawer 2")))[0] == [
        "go to desk 1",
        "take pen 1 from desk 1",
        "go to drawer 1",
        "open drawer 1",
        "move pen 1 to drawer 1",
        "go to drawer 2",
        "open drawer 2",
        "take pen 2 from drawer 2",
        "go to drawer 1",
        "move pen 2 to drawer 1",
    ]


@pytest.mark.parametrize("make", [Explorer, Oracle])
def test_expert_puts_unneeded_object_down(make):
    task = task_of(house_of_pens("drawer 2"))
    world, expert = AlfWorld(), make(task)
    expert.act(world.reset(task))
    expert.act(world.step("go to bed 1").observation)
    assert expert.act(world.step("take pillow 1 from bed 1").observation) == "move pillow 1 to bed 1"
    assert expert.act(world.step("go to desk 1").observation) == "go to bed 1"


@pytest.mark.parametrize("make", [Explorer, Oracle])
def test_expert_actions_stay_valid_when_held_object_fits_nowhere(make):
    task = task_of(house_of_pens("drawer 2"))
    world, expert = AlfWorld(), make(task)
    expert.act(world.reset(task))
    expert.act(world.step("go to bed 1").observation)
    observation = world.step("take teddybear 1 from bed 1").observation
    for _ in range(30):
        action = expert.act(observation)
        assert action in observation.actions
        observation = world.step(action).observation
    assert action == "look"


def test_oracle_raises_after_missed_observation_or_without_game():
    task = generated("train", 60)[0]
    world, oracle = AlfWorld(), Oracle(task)
    oracle.act(world.reset(task))
    world.step(world.household.commands[0])
    elsewhere = Observation("You are in the middle of a room.", ("look",))
    with pytest.raises(TacitError, match="missed an observation"):
        oracle.act(elsewhere)
    with pytest.raises(TacitError, match="no 'game'"):
        Oracle(replace(task, data={}))


def shorter_win(household: Household, limit: int) -> bool:
    """Whether some sequence of fewer than `limit` commands wins, by brute force."""

    def state(h: Household) -> tuple:
        changing = (h.clean, h.hot, h.cool, h.toggled)
        return h.location, h.held, *h.opened, *map(tuple, h.contents), *map(frozenset, changing)

    seen, front = {state(household)}, [household]
    for _ in range(limit - 1):
        reached = []
        for before in front:
            for command in before.commands:
                if command.startswith(("look", "inventory", "help", "examine", "slice")):
                    continue
                after = copy.deepcopy(before, {id(before.game): before.game})
                after.execute(command)
                if after.won:
                    return True
                if state(after) not in seen:
                    seen.add(state(after))
                    reached.append(after)
        front = reached
    return False


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("family", GOALS)
def test_plans_win_and_are_shortest(family):
    """Plans start from random states. Brute force finds nothing shorter than a plan's last four commands."""
    rng = random.Random(zlib.crc32(family.encode()))
    for number in range(100):
        household = Household(parse_problem(problem(family), "do it."))
        for _ in range(rng.randrange(30)):
            household.execute(rng.choice(household.commands))
        commands = plan(household)
        for left in range(len(commands), 0, -1):
            assert not household.won
            assert number >= 10 or left != min(4, len(commands)) or not shorter_win(household, left)
            assert commands[-left] in household.commands
            household.execute(commands[-left])
        assert household.won


def test_experts_are_registered_with_explorer_as_default():
    assert list(ENVIRONMENT.experts) == ["explorer", "oracle"]
    assert ENVIRONMENT.expert() is Explorer


def test_benchmark_reports_both_experts():
    script = [sys.executable, str(ROOT / "benchmarks" / "alfworld_experts.py"), "--split", "unseen", "--count", "12", "--json"]
    done = subprocess.run(script, capture_output=True, text=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, check=True)
    results = json.loads(done.stdout.splitlines()[-1])["unseen"]
    assert {name: set(rows) for name, rows in results.items()} == {"explorer": set(FAMILIES), "oracle": set(FAMILIES)}
    assert all(row["wins"] == row["games"] == 2 for row in results["oracle"].values())
