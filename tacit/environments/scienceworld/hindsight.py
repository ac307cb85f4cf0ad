"""What an episode of ScienceWorld teaches, by rule: the commands that reached a milestone of its family, or the milestones that
were left. No simulator is asked: the rules know what the tracker does (procedures.py), and no gold path.
"""

from __future__ import annotations

from collections.abc import Mapping

from tacit.core.hindsight import critical_steps, measured, transitions
from tacit.core.skills import Skills
from tacit.core.types import Observation, Trajectory
from tacit.environments.scienceworld.failures import failure
from tacit.environments.scienceworld.procedures import PROCEDURES
from tacit.environments.scienceworld.tracker import MILESTONES, Progress, ScienceTracker
from tacit.environments.scienceworld.world import WRONG_FOCUS

_TRACKER = ScienceTracker()
MOST_TOLD = 3
"""milestones that a failure is told"""
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
}
"""milestone -> how it is reached"""


class _Companion:
    """Says what the first milestone that is left asks for."""

    def __init__(self, states: list[Progress]) -> None:
        self._states = iter(states)

    def act(self, observation: Observation) -> str:
        state = next(self._states)
        return _advice(state, state.phase)


def hindsight(trajectory: Trajectory) -> Skills:
    states = _states(trajectory)
    steps = critical_steps(trajectory, _Companion(states), _TRACKER, achieved=_ACHIEVED)
    if trajectory.success:
        signals = measured(trajectory, _TRACKER)
        done = [
            step.action
            for step, found in zip(trajectory.steps, signals, strict=True)
            if any(found.get(name, 0.0) > 0 for name in _ACHIEVED)
        ]
        return Skills("; ".join(dict.fromkeys(done)), steps, f"Done in {len(trajectory)} steps.")
    label = failure(trajectory)
    if label == WRONG_FOCUS:
        return Skills(f"do not {trajectory.steps[-1].action}: the task does not ask for it, and it ended there", steps, "Lost.")
    last = states[-1]
    left = [m.name for m in PROCEDURES[last.family] if m.name not in last.reached and not m.optional] or [last.phase]
    told = dict.fromkeys(_advice(last, name) for name in left)
    return Skills(f"still to do: {'; '.join(list(told)[:MOST_TOLD])}", steps, f"Failed: {label}.")


def _states(trajectory: Trajectory) -> list[Progress]:
    """What the tracker knew before each step, and at last when it was over."""
    states = [_TRACKER.start(trajectory.task, trajectory.steps[0].observation)]
    for action, transition in transitions(trajectory):
        states.append(_TRACKER.update(states[-1], action, transition))
    return states


def _advice(state: Progress, milestone: str) -> str:
    goal = state.goal
    answers = " or ".join(goal.answers) or "what the task names"
    return ADVICE[milestone].format(target=goal.target or "what is asked for", room=goal.room or "place named", answers=answers)
