"""Sokoban: rules by hand, rooms and splits, the solver against breadth-first search, deadlocks, alphabet, wordings."""

from __future__ import annotations

from collections import Counter, deque
from random import Random

import numpy as np
import pytest
from every_world import HOSTILE, expert_episode, random_episode

from tacit.core.errors import TacitError
from tacit.core.types import Completion, Observation, Prompt, Step, StopReason, Task, Trajectory
from tacit.worlds import get_environment
from tacit.worlds.sokoban.skills import SKILLS, Solver, best_moves, is_deadlocked, moves_left, pushes_left
from tacit.worlds.sokoban.tasks import DERIVED_SEEDS, GENERATED, SHARES, make_task, share_of
from tacit.worlds.sokoban.world import (
    DIRECTIONS,
    Layout,
    Position,
    format_observation,
    parse_observation,
    read_position,
    read_rows,
)

ENVIRONMENT = get_environment("sokoban")
ROWS = ["WWWWWW", "W..C.W", "W.A@.W", "W.A..W", "W.C..W", "WWWWWW"]
ROOM = make_task(ROWS)


def play(task, actions):
    world = ENVIRONMENT.make()
    world.reset(task)
    return [world.step(action) for action in actions]


def trajectory(task, actions, stop=StopReason.STEP_LIMIT):
    nothing = Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), "", "stop")
    world = ENVIRONMENT.make()
    observation, steps = world.reset(task), []
    for action in actions:
        transition = world.step(action)
        steps.append(Step(observation, Prompt("", ""), np.zeros(0, np.int64), nothing, action, True, transition.effective))
        observation = transition.observation
    return Trajectory(task, tuple(steps), False, 0.0, stop, observation)


def fewest_moves(rows) -> int | None:
    """Forward breadth-first search over room texts, without the solver's code. None in a deadlock."""
    seen, queue = {tuple(rows)}, deque([(tuple(rows), 0)])
    while queue:
        now, moves = queue.popleft()
        if not any("A" in row for row in now):
            return moves
        for direction in DIRECTIONS:
            there = pushed(now, direction)
            if there is not None and there not in seen:
                seen.add(there)
                queue.append((there, moves + 1))
    return None


def pushed(rows, direction):
    """The room after a step, computed by rewriting its symbols; None if the step is impossible."""
    row, column = next((r, c) for r, line in enumerate(rows) for c, symbol in enumerate(line) if symbol in "@+")
    down, right = DIRECTIONS[direction]
    cells = [list(line) for line in rows]
    ahead, behind = (row + down, column + right), (row + 2 * down, column + 2 * right)
    symbol = cells[ahead[0]][ahead[1]]
    if symbol == "W":
        return None
    if symbol in "A*":
        beyond = cells[behind[0]][behind[1]]
        if beyond not in ".C":
            return None
        cells[behind[0]][behind[1]] = "*" if beyond == "C" else "A"
    cells[ahead[0]][ahead[1]] = "+" if symbol in "C*" else "@"
    cells[row][column] = "C" if rows[row][column] == "+" else "."
    return tuple("".join(line) for line in cells)


def test_pushing_all_boxes_onto_targets_wins():
    first, second = play(ROOM, ["down", "right"])
    assert first.observation.text == "\n".join(["WWWWWW", "W..C.W", "W.A..W", "W.A@.W", "W.C..W", "WWWWWW"])
    assert second.observation.actions == ("up", "down", "left") and second.score == 0.0
    *_, placed = play(make_task(["WWWWW", "W@ACW", "WAC.W", "WWWWW"]), ["right"])
    assert placed.observation.text.split("\n")[1] == "W.@*W" and placed.score == 0.5 and not placed.done
    *_, end = play(make_task(["WWWWW", "W@ACW", "WWWWW"]), ["right"])
    assert end.done and end.success and end.score == 1.0 and end.observation.text == "WWWWW\nW.@*W\nWWWWW"


def test_agent_can_stand_on_targets_and_push_boxes_off():
    on, off = play(make_task(["WWWWWW", "W@C*.W", "W..A.W", "WWWWWW"]), ["right", "right"])
    assert on.observation.text.split("\n")[1] == "W.+*.W" and on.score == 0.5
    assert off.observation.text.split("\n")[1] == "W.C+AW" and off.score == 0.0


@pytest.mark.parametrize(
    ("rows", "action", "why"),
    [
        (["WWWW", "W@AW", "WC.W", "WWWW"], "up", "a wall is up"),
        (["WWWW", "W@AW", "WC.W", "WWWW"], "right", "the box cannot be pushed right"),
        (["WWWWWW", "W@AA.W", "WCC..W", "WWWWWW"], "right", "the box cannot be pushed right"),
        (["@AC"], "up", "a wall is up"),
        (["@AC"], "north", "not an action"),
        (["@AC"], "", "not an action"),
        (["@AC"], "right right", "not an action"),
    ],
)
def test_impossible_action_is_refused_and_leaves_room_unchanged(rows, action, why):
    (refused,) = play(make_task(rows), [action])
    assert not refused.effective and not refused.done
    assert refused.observation.text == "\n".join((*rows, f"refused: {why}"))


def test_actions_ignore_case_and_spaces():
    assert play(ROOM, [" DOWN\n"])[0].effective


@pytest.mark.parametrize("action", HOSTILE)
def test_hostile_actions_are_handled_by_world_tracker_and_wordings(action):
    world = ENVIRONMENT.make()
    first = world.reset(ROOM)
    for answer in (world.step(action), world.step(action)):
        assert not answer.done and len(answer.observation.text) < 100
    ENVIRONMENT.tracker.update(ENVIRONMENT.tracker.start(ROOM, first), action, answer)
    for wording in ENVIRONMENT.wordings.values():
        assert wording.now(2, answer.observation, True) and wording.turn(2, answer.observation, action)
    assert set(ENVIRONMENT.alphabet(trajectory(ROOM, [action]))) <= set(SKILLS)


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("split", GENERATED)
def test_random_episodes_run_without_exceptions(split):
    rng, counts = Random(7), Counter()
    for task in ENVIRONMENT.tasks(split, 334, seed=9):
        episode = random_episode(ENVIRONMENT, task, rng)
        counts.update(("won" if episode[-1].success else "lost", *(str(a.effective) for a in episode)))
    assert counts["lost"] > 200 and counts["True"] > 5_000 and counts["False"] > 1_000


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("split", GENERATED)
def test_expert_solves_every_room_in_fewest_moves(split):
    """The solver's length equals that of an independent breadth-first search."""
    for task in ENVIRONMENT.tasks(split, 100, seed=5):
        steps, end = expert_episode(ENVIRONMENT, task)
        assert end.success and end.score == 1.0 and steps == fewest_moves(task.data["room"]) <= 24, task.id


def test_deadlock_detection_equals_exhaustive_search():
    rng, counts = Random(2), Counter()
    for task in ENVIRONMENT.tasks("test", 60, seed=6):
        world = ENVIRONMENT.make()
        observation = world.reset(task)
        for _ in range(12):
            answer = world.step(rng.choice(observation.actions))
            if answer.done:
                break
            observation = answer.observation
        layout, at = read_position(observation.text)
        fewest = fewest_moves(parse_observation(observation.text).rows)
        assert moves_left(layout).get(at) == fewest and is_deadlocked(layout, at) == (fewest is None)
        counts[fewest is None] += 1
        if fewest is None:
            assert best_moves(layout, at) == []
        else:
            assert pushes_left(layout, at.boxes) <= fewest
    assert min(counts[True], counts[False]) > 10


def test_pushes_left_by_hand():
    layout, at = read_rows(["WWWWWW", "W.@A.W", "W....W", "WC...W", "WWWWWW"])
    assert pushes_left(layout, at.boxes) == float("inf") and is_deadlocked(layout, at), "it can never leave the wall above"
    layout, at = read_rows(["WWWWWW", "W.@..W", "W..A.W", "WC...W", "W....W", "WWWWWW"])
    assert pushes_left(layout, at.boxes) == 3
    layout, at = read_rows(["WWWWWW", "W.@..W", "W.CAAW", "WC...W", "W....W", "WWWWWW"])
    assert pushes_left(layout, at.boxes) == float("inf"), "one of the two is against a wall without targets"


def test_failure_labels():
    corner = make_task(["WWWWW", "W..CW", "W.A.W", "W@..W", "WWWWW"])
    assert ENVIRONMENT.failure(trajectory(corner, ["up"])) == "timeout"
    assert ENVIRONMENT.failure(trajectory(corner, ["right", "right", "up", "left", "hm"])) == "deadlock"
    assert ENVIRONMENT.failure(trajectory(corner, ["up"], StopReason.WORLD_ERROR)) == "world_error"
    end = play(corner, ["right", "right", "up", "left", "up"])[-1]
    assert end.effective and not end.done, "the episode goes on"
    lost = ENVIRONMENT.expert()(corner).act(end.observation)
    assert lost in end.observation.actions, "an expert that cannot help does what is possible"


def test_listed_actions_are_exactly_the_accepted_actions():
    for task in ENVIRONMENT.tasks("train", 30, 3):
        for direction in DIRECTIONS:
            world = ENVIRONMENT.make()
            actions = world.reset(task).actions
            assert world.step(direction).effective == (direction in actions)


@pytest.mark.slow
def test_splits_share_no_room_up_to_symmetry():
    rooms = {}
    for split in GENERATED:
        tasks = ENVIRONMENT.tasks(split, 300, seed=1)
        assert len({task.id for task in tasks}) == len({tuple(task.data["room"]) for task in tasks}) == 300
        layouts = [read_rows(task.data["room"]) for task in tasks]
        rooms[split] = {turned for layout, _ in layouts for turned in reflections(layout)}
        for task, (layout, start) in zip(tasks, layouts, strict=True):
            assert task.split == split and share_of(layout) in SHARES[split] and not start.boxes & layout.targets
            assert (layout.height, layout.width) == (6, 6) and task.family in ENVIRONMENT.families
            assert task.family == ("one_box" if start.boxes.bit_count() == 1 else "two_boxes")
            least = moves_left(layout)[start]
            assert least in (range(14, 25) if split == "hard" else range(3, 21))
    assert not rooms["train"] & rooms["test"] and not rooms["hard"] & (rooms["train"] | rooms["test"])
    assert {task.family for task in ENVIRONMENT.tasks("hard", 50, 1)} == {"two_boxes"}


def test_corpus_rooms_differ_from_training_rooms():
    near, far = (
        {share_of(read_rows(task.data["room"])[0]) for seed in seeds for task in ENVIRONMENT.tasks("train", 60, seed)}
        for seeds in ((0, 1, DERIVED_SEEDS - 1), (DERIVED_SEEDS, DERIVED_SEEDS + 1, DERIVED_SEEDS << 20))
    )
    assert near == set(SHARES["train"]) and far == set(SHARES["corpus"])


def reflections(layout: Layout) -> set[tuple[int, int]]:
    """(walls, targets) under all rotations and reflections of a square."""

    def moved(cells, how):
        return sum(1 << how(cell // 6, cell % 6) for cell in range(36) if cells >> cell & 1)

    ways = [
        *(lambda r, c: 6 * r + c, lambda r, c: 6 * r + 5 - c, lambda r, c: 6 * (5 - r) + c, lambda r, c: 6 * (5 - r) + 5 - c),
        *(lambda r, c: 6 * c + r, lambda r, c: 6 * c + 5 - r, lambda r, c: 6 * (5 - c) + r, lambda r, c: 6 * (5 - c) + 5 - r),
    ]
    return {(moved(layout.walls, how), moved(layout.targets, how)) for how in ways}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "its data needs `room`, a list of rows"),
        ({"room": "WW"}, "its data needs `room`"),
        ({"room": []}, "rows of equal length, at most 30 by 30"),
        ({"room": ["@AC", "W"]}, "rows of equal length"),
        ({"room": ["@AC" + "." * 28]}, "at most 30 by 30"),
        ({"room": ["@$C"]}, r"unknown symbols: \$; known are W A C"),
        ({"room": ["@A."]}, "1 agents, 1 boxes, 0 targets"),
        ({"room": ["@" + "A" * 11 + "C" * 11]}, "1 to 10 boxes"),
        ({"room": ["@.."]}, "1 to 10 boxes"),
        ({"room": ["@A@C"]}, "got 2 agents"),
        ({"room": ["@*"]}, "is already solved"),
    ],
)
def test_invalid_rooms_are_rejected(data, message):
    with pytest.raises(TacitError, match=message):
        ENVIRONMENT.make().reset(Task("sokoban", "mine", "own", "own", 0, "", data))


def test_rooms_and_observations_round_trip():
    for task in ENVIRONMENT.tasks("hard", 20, 1):
        layout, at = read_rows(task.data["room"])
        assert layout.rows(at) == task.data["room"]
    assert parse_observation(format_observation(ROWS, "a wall is up")) == (tuple(ROWS), "a wall is up") and parse_observation(
        format_observation(ROWS)
    ) == (tuple(ROWS), "")
    assert read_rows(["W+*A"]) == (Layout(1, 4, 1, 0b0110), Position(1, 0b1100))


def test_actions_map_to_skills():
    assert len(SKILLS) == len(set(SKILLS)) == 16
    room = make_task(["WWWWWW", "W.@A.W", "W..C.W", "W..A.W", "WC...W", "WWWWWW"])
    episode = trajectory(room, ["down", "up", "up", "left", "hm", "right", "right", "DOWN"])
    assert ENVIRONMENT.alphabet(episode) == (
        *("WALK-DOWN", "WALK-UP", "BUMP-UP", "WALK-LEFT", "WALK-RIGHT", "PUSH-RIGHT"),
        "WALK-DOWN",
    )
    below = make_task(["WWWWW", "W...W", "W.C.W", "W.A.W", "W.@.W", "WWWWW"])
    assert ENVIRONMENT.alphabet(trajectory(below, ["up"])) == ("PLACE-UP",)


def test_full_and_terse_wordings():
    terse, full = ENVIRONMENT.wording("terse"), ENVIRONMENT.wording("full")
    first = ENVIRONMENT.make().reset(ROOM)
    assert terse.task(ROOM) == "" and terse.now(1, first, False) == ". . C . / . A @ . / . A . . / . C . . :"
    assert terse.turn(1, first, "up") == ". . C . / . A @ . / . A . . / . C . . : up"
    assert terse.now(1, first, True).endswith(" [up, down, left, right] :")
    refused = Observation(format_observation(ROWS, "not an action"))
    assert terse.now(2, refused, False) == ". . C . / . A @ . / . A . . / . C . . ! :"
    assert terse.now(1, Observation(format_observation(["@AC"])), False) == "@ A C :", (
        "walls that are not there are not left out"
    )
    assert "refused: not an action.\nWWWWWW\n" in full.now(2, refused, False)
    assert "Push every box" in full.task(ROOM) and "Possible actions: up" in full.now(1, first, True)
    assert "Possible" not in full.now(1, first, False)
    assert "<action>" in full.request("tags") and "<action>" not in full.request("bare")


def test_place_is_the_current_room_after_effective_actions():
    world = ENVIRONMENT.make()
    seen = [ENVIRONMENT.place("", world.reset(ROOM))]
    seen += [ENVIRONMENT.place(action, world.step(action).observation) for action in ("up", "up", "down")]
    assert seen[0] == seen[3] == "/".join(ROWS) and seen[1] and seen[1] != seen[0] and seen[2] == ""


def test_questions_ask_about_neighbouring_cells():
    answers = dict(
        pair for seed in range(40) for pair in ENVIRONMENT.questions(Random(seed), Observation(format_observation(ROWS)))
    )
    assert answers == {"what is up": "target", "what is down": "floor", "what is left": "box", "what is right": "floor"}
    assert dict(ENVIRONMENT.questions(Random(0), Observation(format_observation(["@AC"])))).keys() <= {
        f"what is {way}" for way in DIRECTIONS
    }


BOXES = """; 0
##########
#####  . #
##### $  #
#    $.  #
# @  $.  #
#    $   #
#    .   #
##########

; 1
##########
#.$ @   ##
#.$     ##
#.$   ####
#.$   ####
##########
"""
"""two levels in Boxoban's format; the second has two rows fewer"""


@pytest.fixture
def boxoban(tmp_path, monkeypatch):
    for place in ("unfiltered/test", "hard"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "000.txt").write_text(BOXES)
    monkeypatch.setenv("BOXOBAN_LEVELS", str(tmp_path))
    return tmp_path


def test_boxoban_levels_are_read_and_solved(boxoban):
    tasks = ENVIRONMENT.tasks("boxoban_test", 2, 0)
    assert sorted(t.id for t in tasks) == ["sokoban/boxoban_test/000-0", "sokoban/boxoban_test/000-1"]
    assert {t.family for t in tasks} == {"many_boxes"} and tasks == ENVIRONMENT.tasks("boxoban_test", 2, 0)
    assert ENVIRONMENT.tasks("boxoban_hard", 1, 0)[0].id.startswith("sokoban/boxoban_hard/000-")
    for task in tasks:
        assert set("".join(task.data["room"])) <= set("WAC@.")
        world, solver, tracker = ENVIRONMENT.make(), Solver(), ENVIRONMENT.tracker
        observation, rewards, done = world.reset(task), list[float](), False
        state = tracker.start(task, observation)
        while not done and len(rewards) < 120:
            action = solver.act(observation)
            transition = world.step(action)
            state = tracker.update(state, action, transition)
            observation, done = transition.observation, transition.done
            rewards.append(transition.reward)
        assert done and state.phase == "done" and sum(rewards) == pytest.approx(-0.1 * len(rewards) + 4 + 10)


def test_rewards_equal_gym_sokoban():
    """−0.1 per action, refused or not; ±1 for a box onto or off a target; +10 for the last box. See the world's page."""
    world = ENVIRONMENT.make()
    world.reset(make_task(["WWWWWWW", "W@A.C.W", "W..A.CW", "WWWWWWW"]))
    assert world.step("up").reward == world.step("jump").reward == pytest.approx(-0.1)
    rewards = [world.step(action).reward for action in ("right", "right", "right")]
    assert rewards == pytest.approx([-0.1, 0.9, -1.1])
    assert ENVIRONMENT.step_rewards, "--outcome steps"


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        (None, "set BOXOBAN_LEVELS to the directory of the repository google-deepmind/boxoban-levels; it is not set"),
        ("nowhere", r"has no \.txt files"),
        ("broken", r"level 1 of .*000\.txt has unknown symbols: x"),
    ],
)
def test_missing_or_broken_levels_are_reported(tmp_path, monkeypatch, setting, says):
    monkeypatch.delenv("BOXOBAN_LEVELS", raising=False)
    if setting:
        (tmp_path / "broken" / "hard").mkdir(parents=True)
        (tmp_path / "broken" / "hard" / "000.txt").write_text("; 0\n####\n#x@#\n####\n")
        monkeypatch.setenv("BOXOBAN_LEVELS", str(tmp_path / setting))
    with pytest.raises(TacitError, match=says):
        ENVIRONMENT.tasks("boxoban_hard", 1, 0)


def test_request_for_too_many_levels_is_rejected(boxoban):
    with pytest.raises(TacitError, match=r"3 levels of 'boxoban_test' were requested; .* has 2"):
        ENVIRONMENT.tasks("boxoban_test", 3, 0)
