"""The native cooking game: rules by hand, losing, games and splits, expert, alphabet, prompts, tracker."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
from tracker_episodes import fold

from tacit.core.errors import TacitError
from tacit.core.types import Completion, Prompt, Step, StopReason, Task, Trajectory
from tacit.worlds import get_environment
from tacit.worlds.cooking.skills import SKILLS, Direction, Item, read_recipe, read_scene, skill
from tacit.worlds.cooking.tasks import split_of
from tacit.worlds.cooking.world import DIRECTIONS, DOORS, CookingWorld, build_house

ENVIRONMENT = get_environment("cooking")
ROOT = Path(__file__).resolve().parents[2]


def game(recipe, items, house=None, start="kitchen", cook=True, cut=True):
    house = house or {"kitchen": {"exits": {}, "furniture": ["fridge", "oven", "table", "counter", "stove"]}}
    data = {"house": house, "start": start, "items": items, "recipe": recipe, "cook": cook, "cut": cut, "flavour": 0}
    return Task("cooking", "cooking/own", "simple", "own", 0, "Eat.", data)


CARROT = game(
    [["carrot", "fried", "diced"]],
    [
        ["carrot", "fridge", "raw", "uncut"],
        ["egg", "fridge", "raw", "uncut"],
        ["knife", "table", "", ""],
        ["cookbook", "counter", "", ""],
        ["salt", "counter", "raw", "uncut"],
    ],
)
ROASTED = game(
    [["red apple", "roasted", "uncut"]],
    [["red apple", "counter", "roasted", "uncut"], ["cookbook", "table", "", ""]],
    cook=False,
    cut=False,
)
TWO_ROOMS = game(
    [["salt", "raw", "uncut"]],
    [["salt", "shelf", "raw", "uncut"], ["cookbook", "counter", "", ""]],
    house={
        "kitchen": {"exits": {"north": ["pantry", "plain door"]}, "furniture": ["counter"]},
        "pantry": {"exits": {"south": ["kitchen", "plain door"]}, "furniture": ["shelf"]},
    },
    cook=False,
    cut=False,
)
RECIPE = [
    "examine cookbook",
    "open fridge",
    "take carrot from fridge",
    "take knife from table",
    "dice carrot with knife",
    "cook carrot with stove",
    "prepare meal",
    "eat meal",
]


def play(task, actions):
    world = ENVIRONMENT.make()
    world.reset(task)
    return [world.step(action) for action in actions]


def answer(transition):
    return read_scene(transition.observation.text).answer.split("\n")[0]


def trajectory(task, actions, stop=StopReason.SUCCESS):
    nothing = Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), "", "stop")
    steps, world = [], ENVIRONMENT.make()
    observation = world.reset(task)
    for action in actions:
        transition = world.step(action)
        steps.append(Step(observation, Prompt("", ""), np.zeros(0, np.int64), nothing, action, True, label=transition.label))
        observation = transition.observation
    return Trajectory(task, tuple(steps), stop is StopReason.SUCCESS, 0.0, stop, observation)


def test_following_the_recipe_wins():
    transitions = play(CARROT, RECIPE)
    assert all(t.effective for t in transitions)
    assert [t.done for t in transitions] == [False] * 7 + [True]
    assert transitions[-1].success and transitions[-1].label == ""
    assert [round(t.score * 5) for t in transitions] == [0, 0, 1, 1, 2, 3, 4, 5]
    assert [round(t.reward * 5) for t in transitions] == [0, 0, 1, 0, 1, 1, 1, 1], "a step earns what it adds to the score"
    assert answer(transitions[1]) == "You open the fridge, revealing a carrot and a raw egg."
    assert "  dice the carrot\n  fry the carrot\n  prepare meal" in transitions[0].observation.text
    assert "You are carrying: a knife and a diced fried carrot" not in transitions[5].observation.text
    assert "You are carrying: a diced fried carrot and a knife." in transitions[5].observation.text
    assert "*** The End ***" in transitions[-1].observation.text


def test_cutting_and_cooking_work_in_either_order():
    swapped = [*RECIPE[:4], RECIPE[5], RECIPE[4], *RECIPE[6:]]
    assert play(CARROT, swapped)[-1].success


def test_cooking_already_cooked_food_burns_it():
    read, take, burn = play(ROASTED, ["examine cookbook", "take red apple from counter", "cook red apple with oven"])
    assert "roast the red apple" in read.observation.text and "a roasted red apple" in read.observation.text
    assert not take.done
    assert burn.done and not burn.success and burn.label == "burned"
    assert "burned" in burn.observation.text and "*** You lost! ***" in burn.observation.text
    assert play(ROASTED, ["take red apple from counter", "prepare meal", "eat meal"])[-1].success


@pytest.mark.parametrize("wrong", ["chop carrot with knife", "slice carrot with knife", "cook carrot with oven", "eat carrot"])
def test_wrong_processing_of_an_ingredient_loses(wrong):
    end = play(CARROT, [*RECIPE[:4], wrong])[-1]
    assert end.done and not end.success and end.label == "wrong_processing" and end.effective


def test_cooking_an_ingredient_required_raw_loses():
    task = game([["banana", "raw", "uncut"]], [["banana", "table", "raw", "uncut"]], cook=False, cut=False)
    end = play(task, ["take banana", "cook banana with stove"])[-1]
    assert end.done and end.label == "wrong_processing"


def test_spoiling_food_outside_the_recipe_does_not_lose():
    actions = [
        "open fridge",
        "take egg",
        "eat egg",
        "cook egg with oven",
        "cook egg with stove",
        "eat egg",
        "cook egg with stove",
    ]
    transitions = play(CARROT, actions)
    assert [answer(t) for t in transitions[2:]] == [
        "You should cook the egg first.",
        "You roasted the egg.",
        "You burned the egg!",
        "That's plainly inedible.",
        "The egg is burned already.",
    ]
    assert not any(t.done for t in transitions)


def test_cooking_the_meal_twice_burns_it():
    burnt = play(CARROT, [*RECIPE[:7], "cook meal with stove", "cook meal with stove"])[-1]
    assert burnt.done and burnt.label == "burned"


@pytest.mark.parametrize(
    ("before", "action", "says"),
    [
        ([], "go north", "You can't go that way."),
        ([], "go up", "You can't go that way."),
        ([], "take carrot from fridge", "You can't see any such thing."),
        ([], "take unicorn", "You can't see any such thing."),
        ([], "take stove", "That's fixed in place."),
        ([], "open table", "That's not something you can open or close."),
        ([], "close fridge", "That's already closed."),
        (["open fridge"], "open fridge", "That's already open."),
        (["open fridge"], "cook carrot with stove", "You need to take the carrot first."),
        (["open fridge"], "take carrot from table", "You can't see any such thing."),
        (["take knife"], "take knife from table", "You already have that."),
        (["take knife"], "cook knife with stove", "Can only cook food that can be cooked."),
        (["take knife"], "eat knife", "That's plainly inedible."),
        (["take knife"], "insert knife into oven", "The oven is closed."),
        (["take knife"], "put knife on oven", "You can't put things on the oven."),
        (["take knife", "take salt"], "chop salt with knife", "Can only cut cuttable food."),
        (["take salt"], "cook salt with stove", "Can only cook food that can be cooked."),
        (["open fridge", "take carrot"], "dice carrot with knife", "You need to take the knife first."),
        (["open fridge", "take carrot"], "cook carrot with table", "Cooking requires a source of heat."),
        (["open fridge", "take carrot"], "cook carrot with BBQ", "You can't see any such thing."),
        (["open fridge", "take carrot"], "prepare meal", "Something still needs to be cooked."),
        (["open fridge", "take carrot", "cook carrot with stove"], "prepare meal", "Something still needs to be cut."),
        (RECIPE[1:5], "slice carrot with knife", "The carrot is already diced."),
        (RECIPE[1:5], "chop carrot with salt", "The carrot is already diced."),
        ([], "prepare meal", "You still miss something."),
        ([], "prepare", "That's not a command I recognise."),
        ([], "dance wildly", "That's not a command I recognise."),
        ([], "", "That's not a command I recognise."),
    ],
)
def test_refused_command_leaves_state_unchanged(before, action, says):
    *_, last = play(CARROT, ["look", *before])
    refused = play(CARROT, ["look", *before, action])[-1]
    assert answer(refused) == says and not refused.effective and not refused.done
    assert refused.observation.actions == last.observation.actions
    assert refused.observation.text.split("-=")[1] == last.observation.text.split("-=")[1]
    assert read_scene(refused.observation.text).refused


def test_commands_ignore_case_and_objects_can_be_moved():
    task = game([["carrot", "raw", "uncut"]], [["carrot", "table", "raw", "uncut"]], cook=False, cut=False)
    actions = ["TAKE  Carrot", "drop carrot", "take carrot", "put carrot on stove", "take carrot from stove"]
    actions += ["open oven", "insert carrot into oven", "close oven", "take carrot"]
    transitions = play(task, actions)
    assert "On the floor you see a carrot." in transitions[1].observation.text
    assert answer(transitions[2]) == "You pick up the carrot from the floor."
    assert "On the stove you see a carrot." in transitions[3].observation.text
    assert "In the oven you see a carrot." in transitions[6].observation.text
    assert not transitions[-1].effective, "the oven is closed"


def test_doors_must_be_opened_and_meal_needs_the_kitchen():
    actions = ["go north", "open plain door", "go north", "take salt from shelf", "prepare meal", "go south"]
    transitions = play(TWO_ROOMS, [*actions, "prepare meal", "eat meal"])
    assert answer(transitions[0]) == "You have to open the plain door first."
    assert "There is an open plain door to the south." in transitions[2].observation.text
    assert answer(transitions[4]) == "Can only prepare meal in the kitchen."
    assert transitions[-1].success


def test_bbq_grills_food():
    house = {"backyard": {"exits": {}, "furniture": ["BBQ", "patio table"]}}
    task = game([["tomato", "grilled", "uncut"]], [["tomato", "patio table", "raw", "uncut"]], house, "backyard", cut=False)
    grilled = play(task, ["take tomato from patio table", "cook tomato with bbq"])[-1]
    assert answer(grilled) == "You grilled the tomato." and grilled.score == 0.5


def test_listed_commands_are_accepted():
    world, rng = ENVIRONMENT.make(), Random(0)
    for task in ENVIRONMENT.tasks("train", 60, 3):
        observation, done = world.reset(task), False
        for _ in range(40):
            assert list(observation.actions) == sorted(set(observation.actions))
            transition = world.step(rng.choice(observation.actions))
            observation, done = transition.observation, transition.done
            assert transition.effective or answer(transition).startswith("Something still needs")
            if done:
                break


def test_games_follow_the_mixture_of_the_paper():
    games = ENVIRONMENT.tasks("test", 1000, 1)
    assert sum(t.family == "hard" for t in games) == 200
    for task in games:
        data = task.data
        hard = task.family == "hard"
        assert len(data["house"]) == (6 if hard else 1) and len(data["recipe"]) == (2 if hard else 1)
        assert not hard or (data["cook"] and data["cut"])
        placed = {item[0]: item for item in data["items"]}
        for food, cooking, cutting in data["recipe"]:
            assert placed[food][2:] == ["raw" if data["cook"] else cooking, "uncut" if data["cut"] else cutting]
            assert (cooking != "raw") >= data["cook"] and (cutting != "uncut") >= data["cut"]
        assert len(placed) == len(data["items"]), "no thing twice"
    burning = [t for t in games if not t.data["cook"] and t.data["recipe"][0][1] != "raw"]
    assert 220 <= len(burning) <= 300
    gates = [(t.data["cook"], t.data["cut"]) for t in games if t.family == "simple"]
    assert all(gates.count((cook, cut)) == 200 for cook in (False, True) for cut in (False, True))


@pytest.mark.slow
def test_splits_share_no_recipe_and_repeat_no_game():
    recipes = {}
    for split in ENVIRONMENT.splits:
        games = ENVIRONMENT.tasks(split, 2000, 2)
        assert len({t.id for t in games}) == 2000
        assert all(t.split == split == split_of(t.data["recipe"]) for t in games)
        recipes[split] = {str(t.data["recipe"]) for t in games}
    assert not recipes["train"] & recipes["test"] and not recipes["hard"] & (recipes["train"] | recipes["test"])
    assert all(t.family == "hard" for t in ENVIRONMENT.tasks("hard", 20, 0))


def test_bad_requests_raise_clear_errors():
    with pytest.raises(TacitError, match="Did you mean 'test'"):
        ENVIRONMENT.tasks("tset", 1, 0)
    with pytest.raises(TacitError, match="-1 tasks"):
        ENVIRONMENT.tasks("test", -1, 0)
    world = ENVIRONMENT.make()
    with pytest.raises(TacitError, match=r"call reset\(task\) first"):
        world.step("look")
    with pytest.raises(TacitError, match="'x' is not a cooking task"):
        world.reset(Task("cooking", "x", "simple", "own", 0, ""))


def test_houses_are_connected_and_exits_are_symmetric():
    for seed in range(300):
        house = build_house(Random(seed), 6)
        assert len(house) == 6
        reached, frontier = {"kitchen"}, ["kitchen"]
        while frontier:
            room = frontier.pop()
            for way, (other, door) in house[room]["exits"].items():
                assert house[other]["exits"][DIRECTIONS[way]] == [room, door]
                assert bool(door) == (frozenset((room, other)) in DOORS)
                if other not in reached:
                    reached.add(other)
                    frontier.append(other)
        assert reached == set(house)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("split", ENVIRONMENT.splits)
def test_explorer_wins_every_game_without_refused_commands(split):
    world, tracker = ENVIRONMENT.make(), ENVIRONMENT.tracker
    for task in ENVIRONMENT.tasks(split, 300, seed=7):
        expert, observation, steps, earned = ENVIRONMENT.expert()(task), world.reset(task), 0, 0.0
        state, transition = tracker.start(task, observation), None
        while transition is None or not transition.done:
            action = expert.act(observation)
            transition = world.step(action)
            state = tracker.update(state, action, transition)
            observation, steps, earned = transition.observation, steps + 1, earned + transition.reward
            assert transition.effective and steps <= ENVIRONMENT.max_steps
        assert transition.success and transition.score == 1.0 and state.phase == "done"
        assert earned == pytest.approx(1.0), "rewards add up to the score, and begin anew with each game"


def test_explorer_wins_from_random_states():
    rng, world = Random(1), ENVIRONMENT.make()
    harmless = ("go", "open", "close", "take", "drop", "put", "insert", "examine")
    for task in ENVIRONMENT.tasks("hard", 60, seed=8):
        observation = world.reset(task)
        for _ in range(12):
            observation = world.step(rng.choice([a for a in observation.actions if a.split()[0] in harmless])).observation
        expert = ENVIRONMENT.expert()(task)
        for _ in range(60):
            transition = world.step(expert.act(observation))
            observation = transition.observation
            if transition.done:
                break
        assert transition.success, task.id


def test_alphabet_matches_the_ten_skills_of_the_paper():
    assert len(SKILLS) == len(set(SKILLS)) == 10
    example = ["examine cookbook", "open fridge", "take carrot from fridge", "dice carrot", "cook carrot with stove"]
    assert ENVIRONMENT.alphabet(trajectory(CARROT, [*example, "prepare meal", "eat meal"])) == (
        "READ_RECIPE",
        "OPEN",
        "TAKE",
        "CUT",
        "COOK",
        "PREPARE_MEAL",
        "EAT_MEAL",
    )
    others = ["look", "inventory", "eat carrot", "examine knife", "go north", "close fridge", "drop x", "put x on y", "hm", ""]
    inspect, deliver = "INSPECT", "DELIVER"
    assert [skill(a) for a in others] == [*[inspect] * 4, "EXPLORE", "OPEN", deliver, deliver, None, None]


def test_failure_labels():
    burned = trajectory(ROASTED, ["take red apple", "cook red apple with oven"], StopReason.FAILURE)
    wrong = trajectory(CARROT, [*RECIPE[:4], "chop carrot with knife"], StopReason.FAILURE)
    assert ENVIRONMENT.failure(burned) == "burned" and ENVIRONMENT.failure(wrong) == "wrong_processing"
    assert ENVIRONMENT.failure(trajectory(CARROT, ["look"], StopReason.STEP_LIMIT)) == "timeout"


def test_read_scene_parses_observations():
    scene = read_scene(play(CARROT, RECIPE[:5])[-1].observation.text)
    assert scene.room == "kitchen" and scene.closed == {"oven"} and scene.opened == {"fridge"}
    assert scene.carried == {"carrot": Item("carrot", "raw", "diced"), "knife": Item("knife")}
    assert scene.places["fridge"] == [Item("egg")] and scene.places["counter"] == [Item("cookbook"), Item("salt")]
    recipe = read_recipe(play(CARROT, ["examine cookbook"])[0].observation.text)
    assert recipe.ingredients == ("carrot",) and recipe.directions == (Direction("dice", "carrot"), Direction("fry", "carrot"))
    assert read_recipe("You look around.") is None
    with pytest.raises(ValueError, match="not a cooking observation"):
        read_scene("hello")


def test_full_and_terse_wordings():
    terse, full = ENVIRONMENT.wording("terse"), ENVIRONMENT.wording("full")
    world = ENVIRONMENT.make()
    first = world.reset(CARROT)
    assert terse.now(1, first, False) == "kitchen | fridge?; oven?; table: knife; counter: cookbook, salt; stove"
    assert terse.task(CARROT) == "" and terse.request("bare") == ""
    read = world.step("examine cookbook").observation
    assert terse.turn(2, read, "look") == "recipe: dice carrot, fry carrot: look"
    assert terse.now(2, world.step("dance wildly").observation, False).startswith("! | kitchen")
    assert terse.now(2, world.step("take knife").observation, False).endswith("| has knife")
    assert "Eat." in full.task(CARROT) and "<action>" in full.request("tags") and "<action>" not in full.request("bare")
    assert "open fridge" in full.now(1, first, True) and "open fridge" not in full.now(1, first, False)
    room = ENVIRONMENT.make().reset(TWO_ROOMS)
    assert terse.now(1, room, False) == "kitchen | counter: cookbook | north plain door?"


def test_tracker_rewards_each_subgoal_once():
    state, signals = fold(CARROT, RECIPE)
    assert state.phase == "done" and not any(s["error"] for s in signals)
    assert [s["progress"] for s in signals] == [1, 0.05, 1, 0, 1, 1, 1, 1]
    state, signals = fold(CARROT, [*RECIPE[:3], "drop carrot", "take carrot", "close fridge", "open fridge", "cook salt", "hm"])
    assert [s["progress"] for s in signals[3:]] == [0, 0, 0, 0, 0, 0]
    assert [s["error"] for s in signals[3:]] == [0, 0, 0, 0.1, 0.2, 0.3]
    assert state.phase == "process"
    assert ENVIRONMENT.tracker.render(state) == (
        "phase: process\nrooms visited: kitchen\nrecipe: dice carrot, fry carrot\nstill to do: dice carrot, fry carrot\n"
        "needs: knife (table), stove (here)"
    )


def test_tracker_credits_prepared_food_and_penalizes_losing():
    state, signals = fold(ROASTED, ["examine cookbook", "take red apple"])
    assert state.phase == "prepare" and signals[-1]["progress"] == 2
    _, signals = fold(ROASTED, ["take red apple", "cook red apple with oven"])
    assert signals[-1]["error"] == 0.3
    _, signals = fold(TWO_ROOMS, ["open plain door", "go north", "go south", "go north"])
    assert [s["error"] for s in signals] == [0, 0, 0, 0.1], "a first visit may be a dead end"


def test_listed_actions_follow_textworld():
    """TextWorld lists `prepare meal` with only the first ingredient held, no `examine` of held objects, and `drink milk`; see
    test_cooking_parity."""
    data = {
        "house": {"kitchen": {"exits": {}, "furniture": ["counter", "stove"]}},
        "start": "kitchen",
        "items": [
            ["carrot", "carried", "raw", "uncut"],
            ["egg", "counter", "raw", "uncut"],
            ["milk", "carried", "raw", "uncut"],
        ],
        "recipe": [["carrot", "raw", "uncut"], ["egg", "fried", "uncut"]],
        "cook": True,
        "cut": False,
        "flavour": 0,
    }
    world = CookingWorld()
    first = world.reset(Task("cooking", "x", "hard", "own", 0, "", data))
    assert "prepare meal" in first.actions and "drink milk" in first.actions and "eat milk" not in first.actions
    assert not [action for action in first.actions if action in ("examine carrot", "examine milk")]
    assert "examine egg" in first.actions and world.step("examine carrot").effective, "it is not refused"
    early = world.step("prepare meal")
    assert not early.effective and "You still miss something." in early.observation.text and not early.done
    drunk = world.step("drink milk")
    assert drunk.effective and not drunk.done and "drink milk" not in drunk.observation.actions
    assert not world.step("drink carrot").effective
    world.step("drop carrot")
    assert "prepare meal" not in world.step("take egg from counter").observation.actions, "the second ingredient does not do"
