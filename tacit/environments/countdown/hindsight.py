"""What a Countdown episode teaches, by rule: the operations that worked, or those that would have."""

from __future__ import annotations

from tacit.core.hindsight import critical_steps, most_repeated
from tacit.core.skills import Skills
from tacit.core.types import Trajectory
from tacit.environments.countdown.arithmetic import read
from tacit.environments.countdown.expert import Solver, solve
from tacit.environments.countdown.tracker import CountdownTracker

_TRACKER = CountdownTracker()


def hindsight(trajectory: Trajectory) -> Skills:
    steps = critical_steps(trajectory, Solver(), _TRACKER)
    if trajectory.success:
        done = [step.action for step in trajectory.steps if step.effective]
        return Skills(f"what led to the target: {'; '.join(done)}", steps, f"{trajectory.task.goal} Solved.")
    shown = read(trajectory.steps[0].observation.text)
    plan = solve(shown.pool, shown.target)
    repeated = most_repeated(trajectory)
    told = f"begin with {plan[0]}" if plan else f"avoid {repeated}" if repeated else "reset when no operation helps"
    return Skills(told, steps, f"{trajectory.task.goal} Not solved.")
