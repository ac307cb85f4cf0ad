"""Skill alphabet, handbook, failure reasons and hindsight. Nine atomic skills by the command's verb (ours, in the style of
ReuseRL). Every executed command has one; numbers, which answer ambiguity questions, are OBSERVE."""

from __future__ import annotations

from collections.abc import Mapping

from tacit.core.hindsight import Skills, critical_steps, tracker_signals, tracker_states
from tacit.core.types import Observation, StopReason, Trajectory
from tacit.core.world import Alphabet
from tacit.worlds.scienceworld.tracker import MILESTONES, PROCEDURES, Progress, ScienceTracker
from tacit.worlds.scienceworld.world import OUT_OF_STEPS, WRONG_FOCUS

SKILLS = ("MOVE", "ACCESS", "OBSERVE", "CARRY", "OPERATE", "COMBINE", "CONNECT", "FOCUS", "WAIT")
_VERBS = {
    **dict.fromkeys(("go", "teleport"), "MOVE"),
    **dict.fromkeys(("open", "close"), "ACCESS"),
    **dict.fromkeys(("pick", "move", "put", "drop"), "CARRY"),
    **dict.fromkeys(("activate", "deactivate", "use", "flush", "eat"), "OPERATE"),
    **dict.fromkeys(("mix", "pour", "dunk"), "COMBINE"),
    **dict.fromkeys(("connect", "disconnect"), "CONNECT"),
    "focus": "FOCUS",
    **dict.fromkeys(("wait", "wait1"), "WAIT"),
}


def skill(action: str) -> str:
    verb, *rest = action.lower().split() or [""]
    if verb in ("open", "close") and "door" in rest:
        return "MOVE"
    return _VERBS.get(verb, "OBSERVE")


ALPHABET = Alphabet(SKILLS, lambda trajectory: [skill(step.action) for step in trajectory.steps])
HANDBOOK = {
    "": (
        "open a door before going through it and look around in every new room; focus only on what the task asks for, since a "
        "wrong focus ends it; where a number is asked for, answer with the number alone"
    ),
    "find_X": "look around in the rooms until such a thing is seen, focus on it, pick it up, move it to the box that is named",
    "lifespan": "go where the animals are, look around, focus on the longest-lived or shortest-lived, in the order asked",
    "conductivity": (
        "focus on the thing; wire a battery and a light bulb into a ring with the thing in it; wait and look whether the bulb "
        "is on; then move the thing to the box of the answer"
    ),
    "measurement": (
        "pick up the thermometer and focus on it, find the substance and focus on it, use the thermometer on it (for a melting "
        "point, again and again while it is heated), then focus on the box of the answer"
    ),
    "growth": (
        "bring the seeds to pots with soil, pour water into each, and wait; for fruit let the bees out of their hive; water "
        "again when it is dry, and focus when the plant or fruit is there"
    ),
    "state_change": (
        "focus on the substance, put it into a container that stands the heat or cold, move it onto the stove or into the "
        "freezer, activate that, and look at it with the thermometer until its state has changed"
    ),
    "power": "focus on the part, connect it by two wires to both ends of the power source that is asked for, then let that run",
    "chemistry": "read the recipe or think of the colours, pour all into one container, mix it, and focus on what came of it",
    "life_stages": "look around where the thing lives, and focus on each of its stages from the earliest on; wait for the next",
    "inclined_plane": "let the block slide down each plane, the stopwatch running, read the time, focus on the plane that fits",
    "genetics": "grow seeds in pots with water and bees, look which trait the offspring have, focus on the box of the answer",
}


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed. `unfinished` is out of steps with a partial score, `timeout` with none."""
    if trajectory.detail == WRONG_FOCUS:
        return WRONG_FOCUS
    if trajectory.stop is not StopReason.STEP_LIMIT and trajectory.detail != OUT_OF_STEPS:
        return str(trajectory.stop)
    if not any(step.effective and step.action.lower().startswith("focus on") for step in trajectory.steps):
        return "never_focused"
    return "unfinished" if trajectory.score > 0 else "timeout"


MOST_TOLD = 3  # maximum milestones named after a failure
_ACHIEVED = tuple(f"progress.{name}" for name in MILESTONES)
_FOCUS = "look for {target} and focus on it"
ADVICE: Mapping[str, str] = {
    "find": _FOCUS,
    "take": "pick it up",
    "reach_answer_room": "go to the {room}",
    "answer": "give the answer with {answers}",
    "focus_first": _FOCUS,
    "focus_next": "focus on the next one that is asked for",
    "connect_source": "connect a wire to the power source",
    "connect_target": "connect {target} into the ring of wires",
    "test": "wait and look whether it runs",
    "take_thermometer": "pick up the thermometer",
    "focus_thermometer": "focus on the thermometer",
    "focus_substance": "find {target} and focus on it",
    "heat": "put it onto a stove or into a furnace and activate that",
    "measure": "use the thermometer on it",
    "take_seeds": "pick up the seeds",
    "reach_pots": "go to the pots in the greenhouse",
    "plant": "move the seed into a pot with soil",
    "focus_seed": "focus on the seed",
    "water": "pour water into the pot",
    "see_seedling": "wait until it is a seedling",
    "see_adult": "wait until it is grown",
    "let_bees_out": "open the bee hive",
    "focus_fruit": "focus on {target} when it has grown",
    "contain": "put {target} into a pot or cup",
    "place": "move it to what heats or cools it",
    "start": "activate what heats or cools it",
    "see_change": "look at it until its state has changed",
    "focus_component": "focus on the {target}",
    "connect_component": "connect the {target} by two wires",
    "start_source": "activate the power source",
    "read_recipe": "read the recipe",
    "gather": "pour or move everything into one container",
    "mix": "mix the container",
    "focus_product": "focus on {target}",
    "focus_last_product": "mix on and focus on what comes of it",
    **{f"focus_stage_{n}": "look around and focus on the next stage of {target}" for n in range(1, 5)},
    "place_block": "move the block onto a plane",
    "time_first": "activate the stopwatch as it begins to slide",
    "read_time": "look at the stopwatch when it has arrived",
    "choose": "focus on the plane that fits",
    "finish": "look whether all that the task asks for is done",
}  # milestone -> how it is reached


class _Adviser:
    """Advises on the first milestone not yet reached."""

    def __init__(self, states: list[Progress]) -> None:
        self._states = iter(states)

    def act(self, observation: Observation) -> str:
        state = next(self._states)
        return _advice(state, state.phase)


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success the commands that reached milestones; after a failure the remaining milestones. Uses only the tracker."""
    states = tracker_states(trajectory, ScienceTracker())
    steps = critical_steps(trajectory, _Adviser(states), ScienceTracker(), achieved=_ACHIEVED)
    if trajectory.success:
        signals = tracker_signals(trajectory, ScienceTracker())
        paid = [any(found.get(name, 0.0) > 0 for name in _ACHIEVED) for found in signals]
        done = [step.action for step, reached in zip(trajectory.steps, paid, strict=True) if reached]
        return Skills("; ".join(dict.fromkeys(done)), steps, f"Done in {len(trajectory)} steps.")
    label = failure(trajectory)
    if label == WRONG_FOCUS:
        return Skills(f"do not {trajectory.steps[-1].action}: the task does not ask for it, and it ended there", steps, "Lost.")
    last = states[-1]
    left = [m.name for m in PROCEDURES[last.family] if m.name not in last.reached and not m.optional] or [last.phase]
    advice = dict.fromkeys(_advice(last, name) for name in left)
    return Skills(f"still to do: {'; '.join(list(advice)[:MOST_TOLD])}", steps, f"Failed: {label}.")


def _advice(state: Progress, milestone: str) -> str:
    goal = state.goal
    answers = " or ".join(goal.answers) or "what the task names"
    return ADVICE[milestone].format(target=goal.target or "what is asked for", room=goal.room or "place named", answers=answers)
