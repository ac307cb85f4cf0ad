"""What an errand teaches, by rule: one fact that was seen, and nothing that was not.

Where the wanted thing was found, that; else one of the things behind the last door, which somebody else may want. Nothing
where no door was opened.
"""

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
    if not seen:
        return Skills("", steps, f"{trajectory.task.goal}. No door was opened.")
    thing = wanted if wanted in seen else list(seen)[-1 - trajectory.seed % 3]
    return Skills(fact(thing, seen[thing]), steps, f"{trajectory.task.goal}. {'Done' if trajectory.success else 'Failed'}.")
