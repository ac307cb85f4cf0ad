"""Puzzles and scores of reasoning-gym; needs the package reasoning-gym (`make peers`)."""

from __future__ import annotations

import ast

import pytest

from tacit.core.types import Task
from tacit.worlds import get_environment
from tacit.worlds.countdown.world import Operation, evaluate, parse_action

reasoning_gym = pytest.importorskip("reasoning_gym", reason="the package reasoning-gym is not installed")

pytestmark = pytest.mark.slow

COUNTDOWN = get_environment("countdown")
PUZZLES = 300
SYMBOLS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


@pytest.fixture(scope="module")
def dataset():
    return reasoning_gym.create_dataset("countdown", size=PUZZLES, seed=3, min_numbers=3, max_numbers=4)


def as_task(item) -> Task:
    data = {"numbers": item["metadata"]["numbers"], "target": item["metadata"]["target"]}
    return Task("countdown", "parity", COUNTDOWN.families[0], "test", 0, "", data)


def test_solutions_of_the_expert_have_full_score_in_reasoning_gym(dataset):
    wrong = dataset.score_answer("1 + 1", dataset[0])
    for item in dataset:
        task, world = as_task(item), COUNTDOWN.make()
        expert, observation = COUNTDOWN.expert()(task), world.reset(task)
        expressions = [(n, str(n)) for n in task.data["numbers"]]
        while True:
            action = expert.act(observation)
            operator, first, second = parse_action(action)
            left = expressions.pop(next(i for i, (value, _) in enumerate(expressions) if value == first))
            right = expressions.pop(next(i for i, (value, _) in enumerate(expressions) if value == second))
            expressions.append((evaluate(Operation(operator, first, second)), f"({left[1]} {operator} {right[1]})"))
            transition = world.step(action)
            observation = transition.observation
            if transition.done or transition.success:
                break
        assert transition.success
        assert dataset.score_answer(expressions[0][1], item) == 1.0 > wrong


def operations_in(node: ast.expr) -> list[Operation] | None:
    """The operations of an expression, innermost first; None if a value is not a positive integer or has a sign."""
    steps: list[Operation] = []

    def value_of(part: ast.expr) -> int:
        if isinstance(part, ast.Constant):
            return part.value
        if not isinstance(part, ast.BinOp):
            raise ValueError("a sign")
        operation = Operation(SYMBOLS[type(part.op)], value_of(part.left), value_of(part.right))
        if (value := evaluate(operation)) is None:
            raise ValueError("not a positive integer")
        steps.append(operation)
        return value

    try:
        value_of(node)
    except ValueError:
        return None
    return steps


def test_solutions_of_reasoning_gym_win_unless_a_step_is_not_a_positive_integer(dataset):
    legal = 0
    for item in dataset:
        operations = operations_in(ast.parse(item["metadata"]["expression"], mode="eval").body)
        if operations is None:
            continue
        legal += 1
        world = COUNTDOWN.make()
        world.reset(as_task(item))
        results = [world.step(str(operation)) for operation in operations]
        assert all(result.effective for result in results) and results[-1].success, item
    assert legal == 292
