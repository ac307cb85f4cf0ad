"""Skill alphabet (five atomic skills and a carry flag, ReuseRL Table 3), handbook, failure reasons and hindsight.

An effective take sets the flag, an effective move or put clears it. Every command has a skill, even if malformed or
refused: otherwise a win with invalid actions would have the shorter skill sequence.
"""

from __future__ import annotations

from collections.abc import Iterator

from tacit.core.hindsight import critical_steps, most_repeated, stop_label
from tacit.core.types import Skills, Trajectory
from tacit.core.world import Alphabet
from tacit.worlds.alfworld.expert import Explorer
from tacit.worlds.alfworld.tracker import AlfworldTracker, kind_of
from tacit.worlds.alfworld.world import APPLIANCES, Game, Household

SKILLS = ("EXPLORE", "TRANSPORT", "TAKE", "DELIVER", "TRANSFORM")
_SKILL_OF_VERB = {
    "take": "TAKE",
    **dict.fromkeys(("move", "put"), "DELIVER"),
    **dict.fromkeys(("heat", "cool", "clean", "use", "light", "slice"), "TRANSFORM"),
}


def project(trajectory: Trajectory) -> Iterator[str]:
    carrying = False
    for step in trajectory.steps:
        verb = step.action.split(maxsplit=1)[0] if step.action.strip() else ""
        skill = _SKILL_OF_VERB.get(verb, "EXPLORE")
        yield "TRANSPORT" if carrying and verb in ("go", "open", "close") else skill
        if step.effective and skill in ("TAKE", "DELIVER"):
            carrying = skill == "TAKE"


ALPHABET = Alphabet(SKILLS, project)
_APPLIANCE = "find the object, take it, go to the {appliance}, {verb} it there, then go to the destination and move it there"
HANDBOOK = {
    "": (
        "look in the likeliest places first and in each only once; open what is closed before looking inside; "
        "do not repeat what had no effect"
    ),
    "pick": "find the object, take it, go to the destination, open it if it is closed, and move it there",
    "pick2": "bring one object to the destination, then find a second one of the same kind and bring it to the same place",
    "look": "find the object and take it, then go to the lamp and use it with the object in hand",
    **{verb: _APPLIANCE.format(appliance=kinds[-1], verb=verb) for verb, (_, kinds) in APPLIANCES.items()},
}
NEVER_PICKED, PARTIAL_DELIVERY, NOT_TRANSFORMED = "never_picked_target", "two_partial_deliver", "picked_no_transform"
_DOING = ("take", "clean", "heat", "cool", "use", "move")


def _replay(trajectory: Trajectory) -> Household:
    household = Household(Game.from_data(trajectory.task.data["game"]))
    for step in trajectory.steps:
        if step.effective:
            household.execute(step.action)
    return household


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed (ReuseRL Table 7), found by replaying it."""
    household = _replay(trajectory)
    goal = household.game.goal
    done = (step.action.strip().partition(" ") for step in trajectory.steps if step.effective)
    verbs = [verb for verb, _, rest in done if rest.startswith(f"{goal.kind} ")]
    if "take" not in verbs:
        return NEVER_PICKED
    if goal.family == "pick2" and household.delivered == 1:
        return PARTIAL_DELIVERY
    if goal.family in APPLIANCES and goal.family not in verbs[verbs.index("take") :]:
        return NOT_TRANSFORMED
    return stop_label(trajectory)


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success, its workflow (`take apple from fridge, clean apple with sinkbasin, move apple to countertop`); after a
    failure, what was missing. Uses the full game state, so the advice may name the object's place."""
    goal = Game.from_data(trajectory.task.data["game"]).goal
    steps = critical_steps(trajectory, Explorer(trajectory.task), AlfworldTracker())
    if trajectory.success:
        done = [step.action for step in trajectory.steps if step.effective and step.action.split(" ")[0] in _DOING]
        plain = [" ".join(word for word in action.split() if not word.isdigit()) for action in done]
        return Skills(", ".join(dict.fromkeys(plain)), steps, f"{trajectory.task.goal} Done in {len(trajectory)} steps.")
    label, where, repeated = failure(trajectory), find_object(trajectory, goal.kind), most_repeated(trajectory)
    if label == NEVER_PICKED:
        missing = f"the {goal.kind} was in {where}: go to {where} and take it"
    elif label == PARTIAL_DELIVERY:
        missing = f"one {goal.kind} is not enough: bring a second one to {goal.target}"
    elif label == NOT_TRANSFORMED:
        appliance = APPLIANCES[goal.family][1][0]
        missing = f"{goal.family} the {goal.kind} with {appliance} before moving it to {goal.target}"
    else:
        missing = f"do not {repeated} again and again" if repeated else f"with the {goal.kind} in hand, go to {goal.target}"
    return Skills(missing, steps, f"{trajectory.task.goal} Failed: {label}.")


def find_object(trajectory: Trajectory, kind: str) -> str:
    """Where an object of this kind was at the end of the episode."""
    household = _replay(trajectory)
    game = household.game
    for receptacle, inside in zip(game.receptacles, household.contents, strict=True):
        if receptacle.location is not None and any(kind_of(game.things[i].name) == kind for i in inside):
            return receptacle.name
    return "the agent's hand"
