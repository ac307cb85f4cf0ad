"""MiniHack: tasks, text and planning without the engine, and the levels if `nle` and `minihack` are installed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from random import Random

import numpy as np
import pytest
from tracker_episodes import fold

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.core.tasks import split_by_digest
from tacit.core.types import Completion, Observation, Prompt, Step, StopReason, Task, Trajectory, Transition
from tacit.worlds import get_environment
from tacit.worlds.minihack.skills import BOUND, Explorer, MiniHackTracker, crossing, push_plan
from tacit.worlds.minihack.world import LEVELS, Scene, find_path, make_task, parse_action, parse_scene, stairs, unexplored

ENVIRONMENT = get_environment("minihack")
ROOT = Path(__file__).resolve().parents[2]
played = pytest.mark.skipif(bool(ENVIRONMENT.remedy), reason=f"minihack {ENVIRONMENT.remedy}")
HOSTILE = [
    "",
    " ",
    "n" * 100_000,
    "north\nsouth",
    "\x00\x1b[A",
    "日本",
    "\ud800",
    "</action><action>north",
    "#quit",
    "S",
    "q",
    "y",
    "99j",
]


def scene(*rows, **more):
    meanings = {symbol: symbol for row in rows for symbol in row}
    return Scene(rows, meanings, hp=12, most_hp=12, **more)


def trajectory(task, scenes, actions, effective=True, label="", stop=StopReason.FAILURE):
    nothing = Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), "", "stop")
    empty = np.zeros(0, np.int64)
    steps = [
        Step(Observation(s.text), Prompt("", ""), empty, nothing, a, True, effective, label if i == len(actions) - 1 else "")
        for i, (s, a) in enumerate(zip(scenes, actions, strict=False))
    ]
    return Trajectory(task, tuple(steps), False, 0.0, stop, Observation(scenes[len(actions)].text))


def test_splits_share_no_seed_and_need_no_engine():
    seeds = {}
    for split in ENVIRONMENT.splits:
        tasks = ENVIRONMENT.tasks(split, 800, 1)
        seeds[split] = {t.data["seed"] for t in tasks}
        assert len({t.id for t in tasks}) == len(seeds[split]) == 800
        assert all(split_by_digest(str(t.data["seed"])) == split == t.split for t in tasks)
        assert {t.family for t in tasks} == ({"keyroom", "river"} if split == "hard" else set(ENVIRONMENT.families))
    assert not seeds["train"] & seeds["test"] and not seeds["train"] & seeds["hard"] and not seeds["test"] & seeds["hard"]
    assert ENVIRONMENT.tasks("test", 80, 3)[:50] == ENVIRONMENT.tasks("test", 50, 3) != ENVIRONMENT.tasks("test", 50, 4)
    mazes = ENVIRONMENT.tasks_of("train", 9, 3, ("maze",))
    assert mazes == [t for t in ENVIRONMENT.tasks("train", 80, 3) if t.family == "maze"][:9]
    assert ENVIRONMENT.tasks_of("hard", 4, 3, ("room",)) == []
    with pytest.raises(TacitError, match=r"split 'tets' of world 'minihack'\. Did you mean 'test'"):
        ENVIRONMENT.tasks("tets", 1, 0)


def test_parse_scene_inverts_scene_text():
    for each in (scene("_.@", ".>'"), scene("@", message="You hear; legend: x\\n", holds="key"), scene("}`@")):
        assert parse_scene(each.text) == each
    with pytest.raises(ValueError, match="not a MiniHack observation"):
        parse_scene("hello")


def test_parse_action_accepts_spelling_variants():
    level = LEVELS["keyroom"]
    assert [parse_action(a, level) for a in ("North", "go  east", "pick up", "PICKUP", "move-northwest", "apply key")] == [
        "north", "east", "pick_up", "pick_up", "northwest", "apply",
    ]  # fmt: skip
    assert parse_action("apply", LEVELS["room"]) == parse_action("north east", level) == parse_action("", level) == ""


def test_find_path_avoids_walls_traps_and_diagonal_door_moves():
    assert find_path(scene("@..", "|-.", ">.."), lambda p: p == (2, 0)) == ["east", "southeast", "southwest", "west"]
    assert find_path(scene("@.", ".>"), stairs(scene("@.", ".>"))) == ["southeast"]
    door = scene("@..", "-'-", ".>.")
    assert find_path(door, stairs(door)) == ["east", "south", "south"]
    trapped = scene("@^>", "...")
    assert find_path(trapped, stairs(trapped)) == ["southeast", "northeast"]
    assert find_path(scene("@|>"), lambda p: p == (0, 2)) is None
    beside = unexplored(scene("@.._"), {(0, 0)})
    assert [beside((0, c)) for c in range(3)] == [False, False, True]


def test_push_plan_moves_boulders_into_the_river():
    first = scene("....}}", "@`..}}", "....}}")
    assert push_plan(first, ()) == ["east"] * 3
    half = scene("....}}", "@`...}", "....}}")
    assert push_plan(half, ()) == ["east"] * 4
    assert crossing(scene("....}}.", "@......", "....}}.")) == 6 and crossing(first) is None and crossing(scene("@.")) is None
    assert push_plan(scene("....}}", "@...}}"), ()) is None
    round_about = push_plan(first, {((1, 1), "east")})
    assert round_about is not None and round_about[0] != "east", "what was tried in vain is not tried again"


def test_explorer_takes_key_and_unlocks_door():
    expert = Explorer(make_task("keyroom", 1))
    room = ("------", "|@(+>|", "------")
    assert expert.act(Observation(scene(*room).text)) == "east"
    on_it = ("------", "|.@+>|", "------")
    assert expert.act(Observation(scene(*on_it).text)) == "pick_up"
    assert expert.act(Observation(scene(*on_it, holds="key").text)) == "apply"
    assert expert.act(Observation(scene("------", "|.@'>|", "------", holds="key").text)) == "east"


def test_full_and_terse_wordings():
    task, view = make_task("keyroom", 1), scene("_(.", ".@.", holds="key", message="It's a wall.")
    full, terse = ENVIRONMENT.wording("full"), ENVIRONMENT.wording("terse")
    seen = Observation(view.text, LEVELS["keyroom"].actions)
    assert (
        "60 turns" in full.task(task) and "apply unlocks" in full.task(task) and "apply" not in full.task(make_task("maze", 1))
    )
    assert "_(.\n.@." in full.now(3, seen, False) and "You hold: key" in full.now(3, seen, False)
    assert "Possible actions: north" in full.now(3, seen, True) and "Possible" not in full.now(3, seen, False)
    assert full.turn(2, seen, "north") == "Turn 2, at row 2, column 2 (It's a wall.): north"
    assert "<action>" in full.request("tags") and "<action>" not in full.request("bare")
    assert terse.task(task) == "keyroom" and terse.turn(2, seen, "north") == "! > north"
    assert terse.now(3, seen, False) == "_(.\n.@.\n12/12 key ! >"
    for action in HOSTILE:
        assert len(full.turn(1, seen, action)) < 120 and "\n" not in terse.turn(1, seen, action)


def test_tracker_counts_subgoals_once_and_stays_bounded():
    tracker, task = MiniHackTracker(), make_task("keyroom", 1)
    scenes = [scene("@(+"), scene(".@+"), scene(".@+", holds="key"), scene(".@'", holds="key"), scene("@.'", holds="key")]
    state, sums = tracker.start(task, Observation(scenes[0].text)), []
    phases = [state.phase]
    for after, action in zip(scenes[1:], ["east", "pick_up", "apply", "west"], strict=True):
        was, state = state, tracker.update(state, action, Transition(Observation(after.text)))
        sums.append(tracker.signals(was, state))
        phases.append(state.phase)
    assert phases == ["find_key", "find_key", "unlock", "explore", "explore"]
    assert [s.get("progress.subgoal", 0.0) for s in sums] == [0.0, 1.0, 1.0, 0.0]
    assert sums[0]["progress"] == 0.02 and sums[-1]["error"] == pytest.approx(0.1)
    assert tracker.render(state) == "phase: explore\nturns left: 56\nlast: west\nbeen to: east"
    refused = tracker.update(state, "hm", Transition(Observation(scenes[-1].text), effective=False))
    assert tracker.signals(state, refused)["error"] == 0.3 and "(refused)" in tracker.render(refused)
    crowded = MiniHackTracker().render(
        type(state)("river", (1, 1), visited=frozenset((r, c) for r in range(3) for c in range(3)), last="northwest",
                    achieved=frozenset({"sunk 1", "sunk 2"}))
    )  # fmt: skip
    assert len(crowded) < BOUND and "boulders sunk: 2" in crowded


def test_skills_and_failure_labels():
    river = make_task("river", 1)
    scenes = [
        scene("@.`.}"),
        scene(".@`.}"),
        scene("..@`}"),
        scene("...@.", message="You push the boulder into the water."),
        scene("..@.."),
        scene("..@.."),
    ]
    pushed = trajectory(river, scenes, ["east", "east", "east", "west", "north"])
    assert ENVIRONMENT.alphabet(pushed) == ("MOVE-NEW", "PUSH", "SINK", "MOVE-KNOWN", "MOVE-KNOWN")
    assert ENVIRONMENT.alphabet(trajectory(river, scenes, ["hm", "east"], effective=False)) == ("BUMP",)
    assert ENVIRONMENT.failure(trajectory(river, scenes, ["east"] * 4, label="timeout")) == "no_bridge"
    key = make_task("keyroom", 1)
    rooms = [scene("@(+"), scene(".@+", holds="key"), scene(".@'", holds="key")]
    assert ENVIRONMENT.failure(trajectory(key, rooms[:1] * 2, ["east"], label="timeout")) == "no_key"
    assert ENVIRONMENT.failure(trajectory(key, rooms[:2], ["east"], label="timeout")) == "no_door"
    assert ENVIRONMENT.failure(trajectory(key, rooms, ["east", "apply"], label="timeout")) == "timeout"
    assert ENVIRONMENT.failure(trajectory(key, rooms, ["east"], label="died")) == "died"
    assert ENVIRONMENT.failure(trajectory(key, rooms, ["east"], stop=StopReason.WORLD_ERROR)) == "world_error"
    assert ENVIRONMENT.alphabet(trajectory(key, [scene("@F"), scene("@.")], ["east"])) == ("FIGHT",)


def test_questions_and_place_of_the_agent():
    seen = Observation(Scene(("_`.", ".@.", "..."), {"`": "boulder", ".": "floor", "@": "you"}, hp=1, most_hp=2).text)
    questions = {pair for seed in range(60) for pair in ENVIRONMENT.questions(Random(seed), seen)}
    assert ("what is north", "boulder") in questions and ("what is south", "floor") in questions and len(questions) == 8
    assert ENVIRONMENT.place("", seen) == ENVIRONMENT.place("north", seen) == "1,1" and ENVIRONMENT.place("apply", seen) == ""


def test_missing_packages_error_says_how_to_install(monkeypatch, capsys):
    monkeypatch.setattr("tacit.worlds.minihack.world.idle_engines", {})
    for name in ("nle", "minihack", "pkg_resources"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(TacitError, match=r"needs nle, minihack, pkg_resources: `pip install 'tacit-agents\[minihack\]'`"):
        ENVIRONMENT.make().reset(make_task("room", 1))
    assert main(["play", "--world", "minihack", "--policy", "expert"]) == 2
    assert "needs nle, minihack, pkg_resources: `pip" in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def broken_package(tmp_path, monkeypatch):
    """Both packages are installed, but importing one fails."""
    (tmp_path / "nle.py").write_text("")
    (tmp_path / "minihack.py").write_text("import pkg_resources\nfrom pkg_resources import no_such_thing\n")
    (tmp_path / "pkg_resources.py").write_text("")
    for name in ("nle", "minihack", "pkg_resources"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr("tacit.worlds.minihack.world.idle_engines", {})
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("nle", "minihack", "pkg_resources"):
        sys.modules.pop(name, None)


def test_broken_package_is_not_reported_as_missing(broken_package):
    assert ENVIRONMENT.missing == ()
    with pytest.raises(TacitError, match=r"is installed but could not be imported: ImportError: .*no_such_thing"):
        ENVIRONMENT.make().reset(make_task("room", 1))


def test_missing_pkg_resources_is_reported_before_play(broken_package, monkeypatch):
    monkeypatch.setitem(sys.modules, "pkg_resources", None)
    assert ENVIRONMENT.remedy == "needs pkg_resources: `pip install 'tacit-agents[minihack]'`"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "setuptools<81" in project["optional-dependencies"]["minihack"]


def episode(seed):
    """A random episode in a random level, with some hostile actions."""
    rng = Random(seed)
    (task,) = ENVIRONMENT.tasks("train", 1, seed)
    world, lines = ENVIRONMENT.make(), []
    observation = world.reset(task)
    lines.append(observation.text)
    for _ in range(25):
        action = rng.choice(HOSTILE) if rng.random() < 0.1 else rng.choice(observation.actions)
        transition = world.step(action)
        observation = transition.observation
        lines.append(f"{observation.text} {transition.effective} {transition.label}")
        if transition.done:
            break
    world.close()
    return "\n".join(lines)


@played
@pytest.mark.slow
def test_random_episodes_are_identical_in_another_process():
    seeds = range(1000)
    digest = hashlib.sha256("\n".join(episode(seed) for seed in seeds).encode("utf-8", "replace")).hexdigest()
    code = (
        "import sys, hashlib; sys.path.insert(0, 'tests/worlds'); from test_minihack import episode;"
        "print(hashlib.sha256('\\n'.join(episode(s) for s in range(1000)).encode('utf-8', 'replace')).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": str(ROOT)}
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT, env=environment)
    assert there.stdout.strip() == digest


@played
def test_episode_does_not_depend_on_earlier_episodes():
    first = [episode(seed) for seed in (3, 4, 5, 6)]
    assert [episode(seed) for seed in (6, 5, 4, 3)][::-1] == first


@played
def test_concurrent_worlds_do_not_interfere():
    task = make_task("room", 7)
    alone, one, other = (ENVIRONMENT.make() for _ in range(3))
    texts = [alone.reset(task).text] + [alone.step("east").observation.text for _ in range(3)]
    both = [one.reset(task).text]
    other.reset(make_task("room", 8))
    for _ in range(3):
        both.append(one.step("east").observation.text)
        other.step("west")
    assert both == texts


@played
@pytest.mark.parametrize("family", LEVELS)
def test_explorer_wins_and_level_fits_its_window(family):
    world, won = ENVIRONMENT.make(), 0
    for task in ENVIRONMENT.tasks_of("test", 20, 2, (family,)):
        expert, observation, transition = ENVIRONMENT.expert()(task), world.reset(task), None
        while transition is None or not transition.done:
            transition = world.step(expert.act(observation))
            observation = transition.observation
        won += transition.success
        chars = world.engine.observation["chars"]
        top, left, height, width = LEVELS[family].window
        outside = chars.copy()
        outside[top : top + height, left : left + width] = ord(" ")
        assert transition.success or (outside == ord(" ")).all()
    assert won >= 19, "in the room one may die"


@played
@pytest.mark.parametrize("action", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_actions_leave_the_level_unchanged(action):
    world = ENVIRONMENT.make()
    before = world.reset(make_task("keyroom", 5))
    transition = world.step(action)
    assert not transition.effective and not transition.done
    assert parse_scene(transition.observation.text).rows == parse_scene(before.text).rows
    assert parse_scene(transition.observation.text).message == "That is no action here."


@played
def test_wall_bump_is_ineffective_and_turns_run_out():
    world = ENVIRONMENT.make()
    world.reset(make_task("maze", 3))
    bump = world.step("north")
    assert not bump.effective and "solid stone" in bump.observation.text
    transitions = [world.step("north") for _ in range(LEVELS["maze"].turns - 1)]
    assert not any(t.done for t in transitions[:-1]) and transitions[-1].done and transitions[-1].label == "timeout"


@played
def test_tracker_follows_the_expert_to_done():
    for family, least in (("room", 2), ("maze", 2), ("keyroom", 4), ("river", 4)):
        (task,) = ENVIRONMENT.tasks_of("test", 1, 4, (family,))
        world, expert, actions = ENVIRONMENT.make(), Explorer(task), []
        observation, done = world.reset(task), False
        while not done:
            actions.append(expert.act(observation))
            transition = world.step(actions[-1])
            observation, done = transition.observation, transition.done
        state, signals = fold(task, actions)
        assert state.phase == "done" and sum(s.get("progress.subgoal", 0.0) for s in signals) >= least - 1
        assert len(ENVIRONMENT.tracker.render(state)) < BOUND


@played
def test_invalid_task_and_step_before_reset_are_rejected():
    with pytest.raises(TacitError, match="needs a level of room, maze, keyroom, river and a seed"):
        ENVIRONMENT.make().reset(Task("minihack", "x", "room", "test", 0, "", {"level": "room"}))
    with pytest.raises(TacitError, match="no episode has been started"):
        ENVIRONMENT.make().step("north")


@played
@pytest.mark.slow
@pytest.mark.parametrize("method", ["grpo", "bipace", "reuserl"])
def test_tiny_policy_trains_on_minihack(method, tmp_path, capsys):
    small = "--sft.steps 2 --sft.tasks 4 --sft.batch 4 --iterations 1 --tasks 4 --groups 2 --group-size 2 --max-steps 10"
    flags = [
        *small.split(),
        "--evaluation.tasks",
        "4",
        "--engine.threads",
        "1",
        "--engine.device",
        "cpu",
        "--no-evaluation.untrained",
    ]
    assert (
        main(["train", "--world", "minihack", "--model", "tiny", "--method", method, *flags, "--out", str(tmp_path / method)])
        == 0
    )
    assert "minihack/test/4" in capsys.readouterr().out
