"""Who plays the episodes that layers are compared on: the policy itself, or a recording, the expert, or chance."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from tacit.calibration.audit import FEWEST, Again, Audit, Noisy, audit, spread_over_families
from tacit.core.errors import TacitError, unknown
from tacit.core.seeds import derive
from tacit.core.types import Group, Task
from tacit.core.world import Expert
from tacit.evaluation.ground import Ground
from tacit.runs.records import read_records

NOISE = 0.3
"""share of random actions when an expert plays: episodes of one task must differ to be compared"""
SOURCES = {
    "policy": "episodes played by the policy itself",
    "recorded": "recorded episodes",
    "expert": f"episodes played by the expert, {NOISE:.0%} of the actions at random",
    "random": "episodes played at random",
}
"""how each is told"""


def play_audit(ground: Ground, source: str, tasks_each: int, members: int, most: int) -> Audit:
    """`tasks_each` tasks of every family, `members` episodes each, from one of the SOURCES. Once `most` steps have been played
    no further task is begun; every family has been dealt with alike by then, and has its first two."""
    if source not in SOURCES:
        raise unknown("audit player", source, SOURCES)
    if source == "recorded":
        return _recorded(ground, most)
    tasks = spread_over_families(ground.tasks, tasks_each)
    at_least = FEWEST * len({task.family for task in tasks})
    if source == "policy":
        return _by_policy(ground, tasks, members, most, at_least)
    expert = ground.world.expert() if source == "expert" else None

    def noisy(task: Task, member: int) -> Expert:
        rng = random.Random(derive(ground.seed, "audit", task.id, member))
        return Noisy(expert(task) if expert else None, NOISE, rng)

    def limit(task: Task, member: int) -> int:
        return ground.max_steps

    pairs = [(task, members) for task in tasks]
    room = ground.sampling.max_tokens
    return audit(ground.world, pairs, ground.context, ground.policy, noisy, room, limit, most, at_least)


def _by_policy(ground: Ground, tasks: Sequence[Task], members: int, most: int, at_least: int) -> Audit:
    """The first tasks of all families side by side, then the second ones, …: one batch for the sampler each time."""
    groups: list[Group] = []
    width = max(1, at_least // FEWEST)
    for start in range(0, len(tasks), width):
        if start >= at_least and sum(len(group.steps) for group in groups) >= most:
            break
        groups += ground.play(tasks[start : start + width], members, derive(ground.seed, "audit", start))
    found = Audit.of_groups(groups)
    if not len(found):
        raise TacitError(f"no episode of world {ground.world.name!r} could be played, so there is nothing to calibrate on.")
    return found


def recordings(run: Path | None) -> list[Path]:
    return sorted((run / "trajectories").glob("rl-*.jsonl.gz")) if run else []


def _recorded(ground: Ground, most: int) -> Audit:
    """The newest recorded iterations, told again in the present context."""
    actions = _recorded_actions(ground, most)
    by_task = {task.id: episodes for task, episodes in actions}

    def replay(task: Task, member: int) -> Expert:
        return Again(by_task[task.id][member])

    pairs = [(task, len(episodes)) for task, episodes in actions]
    room = ground.sampling.max_tokens
    return audit(
        ground.world, pairs, ground.context, ground.policy, replay, room, lambda task, member: len(by_task[task.id][member])
    )


def _recorded_actions(ground: Ground, most: int) -> list[tuple[Task, list[list[str]]]]:
    """Tasks with the actions of their episodes, family by family in turn, up to about `most` steps."""
    files = recordings(ground.run)
    if not files:
        raise TacitError("there are no recorded episodes of practice; let the policy play (--play policy).")
    known = {task.id: task for task in ground.tasks}
    found: dict[str, list[list[str]]] = {}
    steps = 0
    for file in reversed(files):
        for record in read_records(file):
            if record["task"] in known and record["turns"]:
                found.setdefault(record["task"], []).append([turn["action"] for turn in record["turns"]])
                steps += len(record["turns"])
        if steps >= most:
            break
    if not found:
        raise TacitError("none of the recorded episodes is of a task this run's settings give; let the policy play.")
    chosen, steps = [], 0
    for task in spread_over_families([known[name] for name in found], len(found)):
        if steps < most:
            chosen.append((task, found[task.id]))
            steps += sum(map(len, found[task.id]))
    return chosen
