"""What an errand teaches, by rule: where the wanted thing was seen, and nothing where it was not."""

from __future__ import annotations

from tacit.core.hindsight import critical_steps
from tacit.core.skills import Skills
from tacit.core.types import Trajectory
from tacit.environments.errands.expert import Resident
from tacit.environments.errands.town import fact
from tacit.environments.errands.tracker import ErrandTracker
from tacit.environments.errands.world import read

_TRACKER = ErrandTracker()


def hindsight(trajectory: Trajectory) -> Skills:
    wanted = str(trajectory.task.data["thing"])
    shown = [*(step.observation for step in trajectory.steps), trajectory.final]
    seen = {thing: door for door, things, _ in (read(o.text) for o in shown) for thing in things if door}
    steps = critical_steps(trajectory, Resident(trajectory.task), _TRACKER)
    told = fact(wanted, seen[wanted]) if wanted in seen else ""
    return Skills(told, steps, f"{trajectory.task.goal}. {'Done' if trajectory.success else 'Failed'}.")
