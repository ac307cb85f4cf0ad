"""What a visit to the shop teaches, by rule: how the thing was found and bought, or which it would have been.

The rules know the goal, so a failure is told the product that was meant: hindsight is allowed to know more than the agent did.
At a step it is told what the shopper would have done there, who has read no more than the agent.
"""

from __future__ import annotations

from tacit.core.hindsight import critical_steps, transitions
from tacit.core.skills import Skills
from tacit.core.types import Observation, Trajectory
from tacit.environments.webshop.expert import Shopper
from tacit.environments.webshop.failures import failure
from tacit.environments.webshop.goals import NO_LIMIT, Goal
from tacit.environments.webshop.tracker import ShopTracker, cut, told
from tacit.environments.webshop.visit import Visit
from tacit.environments.webshop.world import TOO_EXPENSIVE, WRONG_OPTIONS

_TRACKER = ShopTracker()
MOST = 5
"""critical steps of an episode"""


class _Companion(Shopper):
    """A shopper who walks along: it says what it would do, and remembers what was done."""

    def __init__(self, trajectory: Trajectory) -> None:
        super().__init__(trajectory.task)
        self._done = [step.action for step in trajectory.steps]

    def act(self, observation: Observation) -> str:
        advised = super().act(observation)
        self._action = self._done[self._turn - 1]
        return advised


def hindsight(trajectory: Trajectory) -> Skills:
    steps = critical_steps(trajectory, _Companion(trajectory), _TRACKER, MOST, ("progress.option", "progress.ready"))
    if trajectory.success:
        return Skills(workflow(last_visit(trajectory)), steps, f"Bought in {len(trajectory)} steps.")
    goal, label = Goal.from_data(trajectory.task.data["goal"]), failure(trajectory)
    options = told({name or "option": value for name, value in goal.options})
    choice = f"choose {options}, then buy it" if goal.options else "and buy it"
    missing = {
        WRONG_OPTIONS: f"before buying, choose {options}",
        TOO_EXPENSIVE: f"look at the price before buying: no more than ${goal.limit:g}" if goal.limit < NO_LIMIT else "",
    }
    right = f"the right one is {goal.product.lower()}, {cut(goal.title)}: search for it, open it, {choice}"
    return Skills(missing.get(label) or right, steps, f"Failed: {label}.")


def workflow(visit: Visit) -> str:
    """`search[navy backpack], open Riverstone Backpack, choose color: navy, buy now`"""
    chosen = [f"choose {told(visit.chosen)}"] if visit.chosen else []
    return ", ".join((f"search[{visit.query}]", f"open {cut(visit.known[visit.product].title)}", *chosen, "buy now"))


def last_visit(trajectory: Trajectory) -> Visit:
    """What was remembered when the last action was taken."""
    state = _TRACKER.start(trajectory.task, trajectory.steps[0].observation)
    for action, transition in transitions(trajectory):
        if not transition.done:
            state = _TRACKER.update(state, action, transition)
    return state.visit
