"""Countdown-Stepwise: rules by hand, splits, solver, alphabet, prompts, tracker."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from tracker_episodes import fold

from tacit.core.errors import TacitError
from tacit.core.types import Completion, Observation, Prompt, Step, StopReason, Trajectory
from tacit.worlds import get_environment
from tacit.worlds.countdown.world import (
    SKILLS,
    Operation,
    Solver,
    format_observation,
    legal_actions,
    make_task,
    parse_action,
    parse_observation,
    role,
    solve,
    split_of,
)

ENVIRONMENT = get_environment("countdown")
ROOT = Path(__file__).resolve().parents[2]
PUZZLE = make_task([3, 7, 25], 82)


def play(task, actions):
    world = ENVIRONMENT.make()
    world.reset(task)
    return [world.step(action) for action in actions]


def trajectory(task, actions, success=True, stop=StopReason.SUCCESS):
    nothing = Completion(np.zeros(0, np.int64), np.zeros(0, np.float32), "", "stop")
    world, steps = ENVIRONMENT.make(), []
    observation = world.reset(task)
    transition = None
    for action in actions:
        transition = world.step(action)
        steps.append(
            Step(
                observation,
                Prompt("", ""),
                np.zeros(0, np.int64),
                nothing,
                action,
                valid=parse_action(action) is not None,
                effective=transition.effective,
                label=transition.label,
            )
        )
        observation = transition.observation
    return Trajectory(task, tuple(steps), success, float(success), stop, observation)


def test_success_requires_the_whole_pool_to_equal_the_target():
    first, second = play(PUZZLE, ["op(*, 3, 25)", "op(+, 75, 7)"])
    assert first.observation.text == "numbers: 7 75 | target: 82" and not first.done
    assert second.observation.text == "numbers: 82 | target: 82"
    assert second.done and second.success and second.score == 1.0


def test_target_with_leftover_number_is_not_success():
    (transition,) = play(make_task([3, 7, 5], 10), ["op(+, 3, 7)"])
    assert transition.observation.text == "numbers: 5 10 | target: 10" and not transition.done


@pytest.mark.parametrize(
    ("action", "why"),
    [
        ("op(+, 3, 4)", "3 and 4 are not both in the pool"),
        ("op(+, 3, 3)", "3 and 3 are not both in the pool"),
        ("op(/, 25, 7)", "25 / 7 is not a positive whole number"),
        ("op(-, 3, 7)", "3 - 7 is not a positive whole number"),
        ("op(/, 25, 0)", "25 and 0 are not both in the pool"),
        ("rollback", "there is nothing to roll back"),
        ("reset", "these are the first numbers already"),
        ("op(^, 3, 7)", "not an action"),
        ("", "not an action"),
        ("op(+, 3, 7, 25)", "not an action"),
        ("op(+, 3, ٧)", "not an action"),
        ("op(+, 3, 1234567890123)", "not an action"),
    ],
)
def test_impossible_action_is_refused_and_leaves_pool_unchanged(action, why):
    refused, after = play(PUZZLE, [action, "op(+, 3, 7)"])
    assert not refused.effective and not refused.done
    assert refused.observation.text == f"numbers: 3 7 25 | target: 82 | refused: {why}"
    assert after.effective and after.observation.text == "numbers: 25 10 | target: 82"


def test_equal_numbers_can_be_divided_but_not_subtracted_to_zero():
    zero, one = play(make_task([5, 5, 82], 82), ["op(-, 5, 5)", "op(/, 5, 5)"])
    assert not zero.effective and one.effective
    assert one.observation.text == "numbers: 82 1 | target: 82"


def test_parse_action_ignores_case_and_spaces():
    assert parse_action("  OP( + ,3,  7 )\n") == Operation("+", 3, 7)
    assert parse_action("ROLLBACK ") == "rollback" and parse_action(" Reset") == "reset"
    assert parse_action("op(+, 3, 7) then reset") is None and parse_action("op(+, -3, 7)") is None


def test_rollback_undoes_one_operation_and_reset_undoes_all():
    task = make_task([2, 3, 4, 5], 100)
    texts = [t.observation.text for t in play(task, ["op(+, 2, 3)", "op(+, 4, 5)", "rollback", "rollback", "rollback"])]
    assert texts[2] == "numbers: 4 5 5 | target: 100"
    assert texts[3] == "numbers: 2 3 4 5 | target: 100"
    assert texts[4].endswith("refused: there is nothing to roll back")
    *_, last = play(task, ["op(+, 2, 3)", "op(+, 4, 5)", "reset"])
    assert last.effective and last.observation.text == "numbers: 2 3 4 5 | target: 100"
    *_, undone = play(task, ["op(+, 2, 3)", "reset", "rollback"])
    assert not undone.effective, "reset leaves nothing to roll back to"


@pytest.mark.parametrize("last", ["op(+, 1, 2)", "op(+, 10, 25)", "what now?"])
def test_other_action_with_one_number_left_ends_as_stuck(last):
    *before, end = play(PUZZLE, ["op(+, 3, 7)", "op(+, 10, 25)", last])
    assert not any(t.done for t in before)
    assert end.done and not end.success and end.label == "stuck" and not end.effective


@pytest.mark.parametrize("rescue", ["rollback", "reset"])
def test_rollback_and_reset_still_work_with_one_number_left(rescue):
    wrong = ["op(+, 3, 7)", "op(+, 10, 25)"]
    end = play(PUZZLE, [*wrong, rescue])[-1]
    assert end.effective and not end.done
    assert play(PUZZLE, wrong)[-1].observation.actions == ("rollback", "reset")


def test_failure_labels():
    stuck = trajectory(PUZZLE, ["op(+, 3, 7)", "op(+, 10, 25)", "?"], False, StopReason.FAILURE)
    assert ENVIRONMENT.failure(stuck) == "stuck"
    assert ENVIRONMENT.failure(trajectory(PUZZLE, ["?"], False, StopReason.STEP_LIMIT)) == "timeout"
    assert ENVIRONMENT.failure(trajectory(PUZZLE, ["?"], False, StopReason.WORLD_ERROR)) == "world_error"


def test_listed_actions_are_exactly_the_accepted_actions():
    world = ENVIRONMENT.make()
    task = make_task([4, 2, 8, 2], 50)
    actions = set(world.reset(task).actions)
    for operator in "+-*/":
        for a, b in set(permutations([4, 2, 8, 2], 2)):
            world.reset(task)
            effective = world.step(f"op({operator}, {a}, {b})").effective
            assert effective == (f"op({operator}, {max(a, b)}, {min(a, b)})" in actions and (a >= b or operator in "+*"))
    assert "rollback" not in actions and legal_actions((5,), True) == ("rollback", "reset")


def test_invalid_tasks_and_splits_are_rejected():
    world = ENVIRONMENT.make()
    with pytest.raises(TacitError, match="two or more positive numbers"):
        world.reset(make_task([5], 5))
    with pytest.raises(TacitError, match=r"split 'tets' of world 'countdown'\. Did you mean 'test'"):
        ENVIRONMENT.tasks("tets", 1, 0)
    with pytest.raises(TacitError, match="-1 tasks"):
        ENVIRONMENT.tasks("test", -1, 0)


@pytest.mark.slow
def test_splits_share_no_set_of_numbers_and_repeat_no_puzzle():
    numbers = {}
    for split in ENVIRONMENT.splits:
        tasks = ENVIRONMENT.tasks(split, 4000, seed=1)
        assert len({(tuple(sorted(t.data["numbers"])), t.data["target"]) for t in tasks}) == 4000
        assert len({t.id for t in tasks}) == 4000
        numbers[split] = {tuple(sorted(t.data["numbers"])) for t in tasks}
        for task in tasks:
            assert task.split == split == split_of(task.data["numbers"])
            assert 10 <= task.data["target"] <= 999 and all(1 <= n <= 100 for n in task.data["numbers"])
            assert task.family in ENVIRONMENT.families
            assert len(task.data["numbers"]) in ((4,) if split == "hard" else (3, 4))
    assert not numbers["train"] & numbers["test"]
    assert not numbers["train"] & numbers["hard"] and not numbers["test"] & numbers["hard"]


def test_solver_wins_a_thousand_puzzles_in_minimal_steps():
    world = ENVIRONMENT.make()
    for split in ENVIRONMENT.splits:
        for task in ENVIRONMENT.tasks(split, 334, seed=5):
            expert, observation, steps = ENVIRONMENT.expert()(task), world.reset(task), 0
            transition = None
            while transition is None or not transition.done:
                transition = world.step(expert.act(observation))
                observation, steps = transition.observation, steps + 1
                assert transition.effective and steps <= len(task.data["numbers"]) - 1
            assert transition.success


def test_solver_resets_an_unsolvable_pool():
    world, solver = ENVIRONMENT.make(), Solver()
    world.reset(PUZZLE)
    observation = world.step("op(+, 3, 7)").observation
    assert solve((25, 10), 82) is None and solver.act(observation) == "reset"
    observation = world.step("reset").observation
    assert solver.act(observation) == "op(*, 25, 3)"
    assert solve((82,), 82) == []


def test_alphabet_matches_the_26_skills_of_the_paper():
    assert len(SKILLS) == len(set(SKILLS)) == 26
    example = trajectory(make_task([80, 2, 28, 1], 54), ["op(-, 80, 28)", "op(+, 52, 2)", "op(*, 54, 1)"])
    assert ENVIRONMENT.alphabet(example) == ("OP_SUB-LARGE-SMALL", "OP_ADD-NEAR_TARGET-SMALL", "OP_MUL-NEAR_TARGET-SMALL")
    swapped = trajectory(make_task([80, 2, 28, 1], 54), ["op(+, 1, 80)", "rollback", "op(+, 80, 1)", "hm", "reset"])
    assert ENVIRONMENT.alphabet(swapped) == ("OP_ADD-LARGE-SMALL", "ROLLBACK", "OP_ADD-LARGE-SMALL", "RESET")


def test_role_thresholds():
    assert [role(n, 100) for n in (89, 90, 110, 111)] == ["SMALL", "NEAR_TARGET", "NEAR_TARGET", "LARGE"]


def test_full_and_terse_wordings():
    task = PUZZLE
    observation = ENVIRONMENT.make().reset(task)
    terse, full = ENVIRONMENT.wording("terse"), ENVIRONMENT.wording("full")
    assert terse.task(task) == "" and terse.request("bare") == ""
    assert terse.now(1, observation, False) == "3 7 25 > 82"
    assert terse.turn(1, observation, "reset") == "3 7 25 > 82 : reset"
    refused = Observation(format_observation((3, 7, 25), 82, "not an action"))
    assert terse.now(2, refused, False) == "3 7 25 > 82 !"
    assert "refused: not an action" in full.now(2, refused, False)
    assert "make 82" in full.task(task) and "op(*, 25, 3)" in full.now(1, observation, True)
    assert "op(*, 25, 3)" not in full.now(1, observation, False)
    assert "<action>" in full.request("tags") and "<action>" not in full.request("bare")


def test_parse_observation_inverts_format_observation():
    assert parse_observation(format_observation((3, 7), 10, "why | not")) == ((3, 7), 10, "why | not")
    with pytest.raises(ValueError, match="not a Countdown observation"):
        parse_observation("3 7 > 10")


def test_tracker_follows_the_expert_to_done():
    state, signals = fold(PUZZLE, ["op(*, 25, 3)", "op(+, 75, 7)"])
    assert state.phase == "done"
    assert sum(s["progress"] for s in signals) == pytest.approx(1.04) and not any(s["error"] for s in signals)


def test_tracker_penalizes_errors_and_block_is_bounded():
    state, signals = fold(PUZZLE, ["op(+, 3, 7)", "op(+, 3, 7)", "hm", "rollback", "op(+, 7, 3)"])
    assert [s["error"] for s in signals] == [0.0, 0.2, 0.3, 0.0, 0.1]
    assert ENVIRONMENT.tracker.render(state) == (
        "phase: search\noperations done: 1 of 2\nundone so far: 1\nfirst operations tried: op(+, 3, 7); op(+, 7, 3)"
    )
    openings = legal_actions((9, 8, 4, 2), False)
    state, _ = fold(make_task([9, 8, 4, 2], 500), [a for opening in openings for a in (opening, "reset")])
    assert len(state.openings) == 4 and len(ENVIRONMENT.tracker.render(state)) < 200
