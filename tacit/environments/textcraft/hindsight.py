"""What a crafting episode teaches, by rule: the commands that brought the goal nearer, or what was still to be got and made."""

from __future__ import annotations

from tacit.core.hindsight import critical_steps, measured, transitions
from tacit.core.skills import Skills
from tacit.core.types import Trajectory
from tacit.environments.textcraft.commands import amounts
from tacit.environments.textcraft.expert import Crafter
from tacit.environments.textcraft.failures import failure
from tacit.environments.textcraft.tracker import CraftTracker

_TRACKER = CraftTracker()


def hindsight(trajectory: Trajectory) -> Skills:
    steps = critical_steps(trajectory, Crafter(trajectory.task), _TRACKER)
    if trajectory.success:
        return Skills(workflow(trajectory), steps, f"{trajectory.task.goal}: done in {len(trajectory)} commands.")
    label, missing = failure(trajectory), still_missing(trajectory)
    if label == "unreadable":
        missing = f"write get N ITEM or craft N ITEM using N ITEM, nothing else; {missing}"
    return Skills(missing, steps, f"{trajectory.task.goal}: failed, {label}.")


def workflow(trajectory: Trajectory) -> str:
    """`get 1 ash log; craft 4 ash boards using 1 ash log`: each command that left fewer to do than ever."""
    signals = measured(trajectory, _TRACKER)
    nearer = [found.get("progress.subgoal", 0.0) > 0 for found in signals]
    return "; ".join(step.action for step, counted in zip(trajectory.steps, nearer, strict=True) if counted)


def still_missing(trajectory: Trajectory) -> str:
    """`still to get: 2 fleece; then craft 8 thread, 2 cloth`, when the episode was over."""
    state = _TRACKER.start(trajectory.task, trajectory.steps[0].observation)
    for action, transition in transitions(trajectory):
        state = _TRACKER.update(state, action, transition)
    get, make = amounts(state.to_get), f"craft {amounts(state.to_make)}"
    return f"still to get: {get}; then {make}" if get else f"everything was there: {make}"
