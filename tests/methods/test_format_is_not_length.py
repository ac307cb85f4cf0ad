"""ReuseRL in the published style (tags): badly formatted completions must not make a win look shorter.

A completion without `<think>` is invalid, but its action is executed. It used to be left out of the projection to skills. A
win with only its first step well formatted then earned 9.8 instead of 8.0 in ALFWorld. A win with none stopped the run.
"""

from __future__ import annotations

import numpy as np
import pytest
from scripted import ScriptedPolicy

from tacit.core.protocols import Sampling
from tacit.core.types import Group, Observation, Task, Trajectory, Transition
from tacit.core.world import Environment, World
from tacit.methods import get_method
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.worlds import InProcessPool
from tacit.training.loop import sum_terms
from tacit.worlds import get_environment

FAMILY = {
    "alfworld": "clean",
    "countdown": "four_numbers",
    "cooking": "hard",
    "textcraft": "depth_4",
    "sokoban": "two_boxes",
    "webshop": "fashion",
    "searchqa": "bridge",
    "errands": "errand",
    "minihack": "keyroom",
}


class RecordingWorld:
    """A world that remembers its last observation for the expert."""

    def __init__(self, world: World) -> None:
        self._world = world

    def reset(self, task: Task) -> Observation:
        self.seen = self._world.reset(task)
        return self.seen

    def step(self, action: str) -> Transition:
        answer = self._world.step(action)
        self.seen = answer.observation
        return answer

    def close(self) -> None:
        self._world.close()


def played_by_the_expert(world: Environment, context, task, formatted: int) -> Trajectory:
    """A real rollout of the expert with the first `formatted` completions well formatted.

    The others lack the thought, or the tags if the thought is optional: executed, but invalid.
    """
    expert, turns, live = world.expert()(task), iter(range(world.max_steps)), RecordingWorld(world.make())

    def answer(prompt: str, seed: int) -> str:
        action = expert.act(live.seen)
        written = context.format.write(action, "so")
        lesser = (written.removeprefix("<think>so</think>"), action)
        return written if next(turns) < formatted else next(each for each in lesser if not context.format.parse(each).valid)

    plan = [EpisodePlan(task, 0)]
    (played,) = rollout(
        plan, context, InProcessPool(lambda: live), ScriptedPolicy(answer), Sampling(max_tokens=64), world.max_steps
    )
    return played


@pytest.mark.parametrize("method", ["reuserl", "round_length"])
@pytest.mark.parametrize("name", FAMILY)
def test_unformatted_win_has_same_length_cost_plus_penalty(name, method):
    world = get_environment(name)
    if world.remedy:
        pytest.skip(f"{name} {world.remedy}")
    task = next(t for t in world.tasks("train", 40, 1) if t.family == FAMILY[name])
    built = get_method(method)().build(world)
    wins = [played_by_the_expert(world, built.context, task, formatted) for formatted in (99, 1, 0)]
    assert all(win.success for win in wins) and len({len(win) for win in wins}) == 1
    assert [sum(step.valid for step in win.steps) for win in wins] == [len(wins[0]), 1, 0]
    assert len({world.alphabet(win) for win in wins}) == 1, "the same actions, the same skills"
    group = Group(task, tuple(wins))
    for companion in built.companions:
        companion.observe([group])
    (rewards,) = sum_terms(term([group]) for term in built.rewards)
    assert len(set(rewards.outcomes_G().tolist())) == 1
    invalid_G = np.bincount(group.trajectory_of_step, weights=rewards.local_N)
    assert invalid_G == pytest.approx([0.0, -0.01 * (len(wins[1]) - 1), -0.01 * len(wins[2])])


def test_unformatted_actions_count_in_skills_and_failure_type():
    world = get_environment("alfworld")
    task = next(t for t in world.tasks("train", 40, 1) if t.family == "clean")
    context = get_method("reuserl")().context(world)
    win = played_by_the_expert(world, context, task, 0)
    skills = world.alphabet(win)
    assert "TRANSPORT" in skills, "what is carried is carried"
    lost = Trajectory(task, win.steps[:-1], False, 0.0, type(win.stop).STEP_LIMIT, win.final)
    assert world.failure(lost) == "timeout", "it was picked and cleaned, though no completion was well formed"
