"""What a household episode teaches, by rule: what was done in which order, or what was missing and where it was.

The rules know the game, so a failure is told where the thing stood: hindsight is allowed to know more than the agent did.
"""

from __future__ import annotations

from tacit.core.hindsight import critical_steps, most_repeated
from tacit.core.skills import Skills
from tacit.core.types import Trajectory
from tacit.environments.alfworld.expert import Explorer
from tacit.environments.alfworld.failures import NEVER_PICKED, NOT_TRANSFORMED, PARTIAL_DELIVERY, failure
from tacit.environments.alfworld.game import Game
from tacit.environments.alfworld.household import APPLIANCES, Household
from tacit.environments.alfworld.observed import kind_of
from tacit.environments.alfworld.tracker import AlfworldTracker

_TRACKER = AlfworldTracker()
_DOING = ("take", "clean", "heat", "cool", "use", "move")


def hindsight(trajectory: Trajectory) -> Skills:
    goal = Game.from_data(trajectory.task.data["game"]).goal
    steps = critical_steps(trajectory, Explorer(trajectory.task), _TRACKER)
    if trajectory.success:
        return Skills(workflow(trajectory), steps, f"{trajectory.task.goal} Done in {len(trajectory)} steps.")
    label, where = failure(trajectory), place_of(trajectory, goal.kind)
    missing = {
        NEVER_PICKED: f"the {goal.kind} was in {where}: go to {where} and take it",
        PARTIAL_DELIVERY: f"one {goal.kind} is not enough: bring a second one to {goal.target}",
        NOT_TRANSFORMED: f"{goal.family} the {goal.kind} with {_appliance(goal.family)} before moving it to {goal.target}",
    }
    repeated = most_repeated(trajectory)
    again = f"do not {repeated} again and again" if repeated else f"with the {goal.kind} in hand, go to {goal.target}"
    return Skills(missing.get(label, again), steps, f"{trajectory.task.goal} Failed: {label}.")


def workflow(trajectory: Trajectory) -> str:
    """`take apple from fridge, clean apple with sinkbasin, move apple to countertop`: what took effect, without numbers."""
    done = [step.action for step in trajectory.steps if step.effective and step.action.split(" ")[0] in _DOING]
    return ", ".join(dict.fromkeys(" ".join(word for word in action.split() if not word.isdigit()) for action in done))


def place_of(trajectory: Trajectory, kind: str) -> str:
    """Where a thing of this kind stood when the episode was over."""
    household = Household(Game.from_data(trajectory.task.data["game"]))
    for step in trajectory.steps:
        if step.effective:
            household.answer(step.action)
    game = household.game
    for receptacle, inside in zip(game.receptacles, household.contents, strict=True):
        if receptacle.location is not None and any(kind_of(game.things[i].name) == kind for i in inside):
            return receptacle.name
    return "the agent's hand"


def _appliance(family: str) -> str:
    return APPLIANCES[family][1][0] if family in APPLIANCES else "an appliance"
