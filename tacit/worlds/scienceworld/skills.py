"""Skill alphabet, handbook, failure reasons and hindsight. Nine atomic skills, by the command's verb (ours, in the style of
ReuseRL). Every command has a skill; numbers, which answer ambiguity questions, are OBSERVE."""

from __future__ import annotations

from collections.abc import Mapping

from tacit.core.hindsight import critical_steps, tracker_signals, tracker_states
from tacit.core.types import Observation, Skills, StopReason, Trajectory
from tacit.core.world import Alphabet, ByReading
from tacit.worlds.scienceworld.tasks import TABLES
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
HANDBOOK: Mapping[str, str] = TABLES["handbook"]


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed. Out of steps: `never_focused`, `unfinished` (score above 0) or `timeout` (score 0)."""
    if trajectory.detail == WRONG_FOCUS:
        return WRONG_FOCUS
    if trajectory.stop is not StopReason.STEP_LIMIT and trajectory.detail != OUT_OF_STEPS:
        return str(trajectory.stop)
    if not any(step.effective and step.action.lower().startswith("focus on") for step in trajectory.steps):
        return "never_focused"
    return "unfinished" if trajectory.score > 0 else "timeout"


MAX_NAMED = 3  # maximum milestones named after a failure
_ACHIEVED = tuple(f"progress.{name}" for name in MILESTONES)
ADVICE: Mapping[str, str] = TABLES["advice"]  # milestone -> advice for reaching it


class _Adviser(ByReading):
    """Advises on the first milestone not yet reached."""

    def __init__(self, states: list[Progress]) -> None:
        self._states = iter(states)

    def act(self, observation: Observation) -> str:
        state = next(self._states)
        return _advice(state, state.phase)


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success, the commands that reached milestones; after a failure, the remaining milestones, from the tracker."""
    states = tracker_states(trajectory, ScienceTracker())
    steps = critical_steps(trajectory, _Adviser(states), ScienceTracker(), achieved=_ACHIEVED)
    if trajectory.success:
        signals = tracker_signals(trajectory, ScienceTracker())
        paid = [any(own.get(name, 0.0) > 0 for name in _ACHIEVED) for own in signals]
        done = [step.action for step, reached in zip(trajectory.steps, paid, strict=True) if reached]
        return Skills("; ".join(dict.fromkeys(done)), steps, f"Done in {len(trajectory)} steps.")
    label = failure(trajectory)
    if label == WRONG_FOCUS:
        return Skills(f"do not {trajectory.steps[-1].action}: the task does not ask for it, and it ended there", steps, "Lost.")
    last = states[-1]
    left = [m.name for m in PROCEDURES[last.family] if m.name not in last.reached and not m.optional] or [last.phase]
    advice = dict.fromkeys(_advice(last, name) for name in left)
    return Skills(f"still to do: {'; '.join(list(advice)[:MAX_NAMED])}", steps, f"Failed: {label}.")


def _advice(state: Progress, milestone: str) -> str:
    goal = state.goal
    answers = " or ".join(goal.answers) or "what the task names"
    return ADVICE[milestone].format(target=goal.target or "what is asked for", room=goal.room or "place named", answers=answers)
