"""Skill alphabet, handbook, failure reasons and hindsight.

Five atomic skills (ReuseRL Table 3), with a carry flag:

    go to, open (close)                      EXPLORE, or TRANSPORT while carrying
    look, examine (inventory, help, other)   EXPLORE
    take                                     TAKE
    move, put                                DELIVER
    heat, cool, clean, use, light (slice)    TRANSFORM

An effective take sets the flag, and an effective move or put clears it; refused ones are still projected. The paper leaves the
commands in brackets open. Every executed command has a skill, even a malformed one: otherwise a badly written win would look
shorter than a well written one.
"""

from __future__ import annotations

from collections.abc import Iterable

from tacit.core.hindsight import Skills, critical_steps, most_repeated
from tacit.core.types import StopReason, Trajectory
from tacit.core.world import Alphabet
from tacit.worlds.alfworld.expert import Explorer
from tacit.worlds.alfworld.tracker import AlfworldTracker, kind_of
from tacit.worlds.alfworld.world import APPLIANCES, Game, Household

SKILLS = ("EXPLORE", "TRANSPORT", "TAKE", "DELIVER", "TRANSFORM")

_SKILL_OF_VERB = {
    "take": "TAKE",
    "move": "DELIVER",
    "put": "DELIVER",
    **dict.fromkeys(("heat", "cool", "clean", "use", "light", "slice"), "TRANSFORM"),
}


def project_commands(commands: Iterable[tuple[str, bool]]) -> tuple[str, ...]:
    """Skills of (command, effective) pairs."""
    carrying, skills = False, []
    for command, effective in commands:
        verb = command.split(maxsplit=1)[0] if command.strip() else ""
        moving = verb in ("go", "open", "close")
        skills.append("TRANSPORT" if moving and carrying else _SKILL_OF_VERB.get(verb, "EXPLORE"))
        if effective and skills[-1] in ("TAKE", "DELIVER"):
            carrying = skills[-1] == "TAKE"
    return tuple(skills)


def project(trajectory: Trajectory) -> tuple[str, ...]:
    return project_commands((step.action, step.effective) for step in trajectory.steps)


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
    "clean": _APPLIANCE.format(appliance="sinkbasin", verb="clean"),
    "heat": _APPLIANCE.format(appliance="microwave", verb="heat"),
    "cool": _APPLIANCE.format(appliance="fridge", verb="cool"),
}


NEVER_PICKED = "never_picked_target"
PARTIAL_DELIVERY = "two_partial_deliver"
NOT_TRANSFORMED = "picked_no_transform"


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed (ReuseRL Table 7), found by replaying it.

    never_picked_target    no effective take of an object of the goal's kind
    two_partial_deliver    pick2: exactly one of the two objects is delivered
    picked_no_transform    clean, heat, cool: taken, but never treated
    timeout                out of steps otherwise; else the stop reason
    """
    household = Household(Game.from_data(trajectory.task.data["game"]))
    goal = household.game.goal
    picked = transformed = False
    for step in trajectory.steps:
        if not step.effective:
            continue
        household.execute(step.action)
        verb, _, rest = step.action.strip().partition(" ")
        if rest.startswith(f"{goal.kind} "):
            picked = picked or verb == "take"
            transformed = transformed or (picked and verb == goal.family)
    if not picked:
        return NEVER_PICKED
    if goal.family == "pick2" and household.delivered == 1:
        return PARTIAL_DELIVERY
    if goal.family in APPLIANCES and not transformed:
        return NOT_TRANSFORMED
    return "timeout" if trajectory.stop is StopReason.STEP_LIMIT else str(trajectory.stop)


_TRACKER = AlfworldTracker()
_DOING = ("take", "clean", "heat", "cool", "use", "move")


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success the workflow, after a failure what was missing. It sees the game, so it may say where things are."""
    goal = Game.from_data(trajectory.task.data["game"]).goal
    steps = critical_steps(trajectory, Explorer(trajectory.task), _TRACKER)
    if trajectory.success:
        return Skills(workflow(trajectory), steps, f"{trajectory.task.goal} Done in {len(trajectory)} steps.")
    label, where = failure(trajectory), find_object(trajectory, goal.kind)
    missing = {
        NEVER_PICKED: f"the {goal.kind} was in {where}: go to {where} and take it",
        PARTIAL_DELIVERY: f"one {goal.kind} is not enough: bring a second one to {goal.target}",
        NOT_TRANSFORMED: f"{goal.family} the {goal.kind} with {_appliance(goal.family)} before moving it to {goal.target}",
    }
    repeated = most_repeated(trajectory)
    again = f"do not {repeated} again and again" if repeated else f"with the {goal.kind} in hand, go to {goal.target}"
    return Skills(missing.get(label, again), steps, f"{trajectory.task.goal} Failed: {label}.")


def workflow(trajectory: Trajectory) -> str:
    """The effective actions without numbers: `take apple from fridge, clean apple with sinkbasin, move apple to countertop`."""
    done = [step.action for step in trajectory.steps if step.effective and step.action.split(" ")[0] in _DOING]
    return ", ".join(dict.fromkeys(" ".join(word for word in action.split() if not word.isdigit()) for action in done))


def find_object(trajectory: Trajectory, kind: str) -> str:
    """Where an object of this kind was at the end of the episode."""
    household = Household(Game.from_data(trajectory.task.data["game"]))
    for step in trajectory.steps:
        if step.effective:
            household.execute(step.action)
    game = household.game
    for receptacle, inside in zip(game.receptacles, household.contents, strict=True):
        if receptacle.location is not None and any(kind_of(game.things[i].name) == kind for i in inside):
            return receptacle.name
    return "the agent's hand"


def _appliance(family: str) -> str:
    return APPLIANCES[family][1][0] if family in APPLIANCES else "an appliance"
