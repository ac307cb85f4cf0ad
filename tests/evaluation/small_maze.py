"""A small maze in which the true Q and V of a random policy can be computed exactly."""

from __future__ import annotations

from functools import cache

from scripted import ScriptedPolicy

from tacit.core.method import Alike
from tacit.core.protocols import Sampling
from tacit.core.types import ActionStyle, Observation, Task, Transition
from tacit.core.world import Environment, Wording
from tacit.evaluation.evaluate import RolloutSetup
from tacit.prompts.history import History
from tacit.rollout.episodes import rollout_groups
from tacit.rollout.worlds import InProcessPool

DOORS = {
    "start": {"left": "hall", "right": "cellar"},
    "hall": {"left": "won", "right": "start"},
    "cellar": {"left": "cellar", "right": "attic"},
    "attic": {"left": "lost", "right": "won"},
}
"""where left and right lead from each place; `won` and `lost` end the episode"""
LEFT = {"start": 0.7, "hall": 0.4, "cellar": 0.5, "attic": 0.6}
"""probability of going left"""
LIMIT, GAMMA = 6, 0.9
TASKS = [Task("maze", f"maze/{i}", "only", "train", i, "get out") for i in range(6)]


class Maze:
    def reset(self, task: Task) -> Observation:
        self._place = "start"
        return Observation(self._place)

    def step(self, action: str) -> Transition:
        if action in DOORS[self._place]:
            self._place = DOORS[self._place][action]
        over = self._place in ("won", "lost")
        return Transition(Observation(self._place), done=over, success=self._place == "won")

    def close(self) -> None:
        pass


class Words(Wording):
    separator = "\n"

    def task(self, task: Task) -> str:
        return task.goal

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{observation.text} {action}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        return observation.text

    def request(self, style: ActionStyle) -> str:
        return ""


WORLD = Environment(
    name="maze",
    summary="Find the way out.",
    max_steps=LIMIT,
    make=Maze,
    tasks=lambda split, count, seed: TASKS[:count],
    splits=("train",),
    families=("only",),
    wordings={"full": Words(), "terse": Words()},
    action_tokens=4,
)


@cache
def value(place: str, left: int, gamma: float = GAMMA) -> float:
    """V with `left` steps remaining."""
    if place in ("won", "lost") or not left:
        return 0.0
    go_left = LEFT[place]
    return go_left * action_value(place, "left", left, gamma) + (1 - go_left) * action_value(place, "right", left, gamma)


def action_value(place: str, action: str, left: int, gamma: float = GAMMA) -> float:
    after = DOORS[place][action]
    return 1.0 if after == "won" else gamma * value(after, left - 1, gamma)


def dice(prompt: str, seed: int) -> str:
    place = prompt.splitlines()[-1]
    return "left" if (seed % 100_003) / 100_003 < LEFT[place] else "right"


def make_setup(world: Environment = WORLD, turns: int | None = 1) -> RolloutSetup:
    context = History(world.wording("full"), turns, False, "bare")
    worlds, policy, sampling = InProcessPool(world.make), ScriptedPolicy(dice), Sampling(max_tokens=4)

    def collect(number: int):
        return rollout_groups(TASKS, 8, number, Alike(), context, worlds, policy, sampling, LIMIT)

    return RolloutSetup(world, worlds, context, policy, TASKS, sampling, LIMIT, 8, 0, 1, collect)
