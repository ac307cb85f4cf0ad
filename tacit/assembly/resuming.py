"""A run that is already there: what may change when it goes on, and whether anything is left to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.assembly.recipe import Document, Recipe
from tacit.core.errors import TacitError
from tacit.runs.directory import SETTINGS, find_summary, saved_checkpoints

ON_RESUME = (
    "schedule.iterations", "evaluation.patience", "keep", "checkpoint_every", "workers", "workers_at", "world_timeout_s",
    "trajectories", "wandb",
)  # fmt: skip
"""settings that may differ when a run is continued, also where they are said of one world: none changes what was done"""
Place = tuple[str, ...]
"""keys of a document, from outside in"""
MAY_CHANGE = (
    "iterations, evaluation.patience, keep, checkpoint_every, workers, workers_at, world_timeout_s, trajectories and wandb"
)


def fixed_differences(before: Document, after: Document) -> list[str]:
    """`sft.lr=0.002`, `worlds.countdown.max_steps=5` for each setting that is not what it was and may not change."""
    found = _differences(before, after)
    return [f"{'.'.join(place)}={value}" for place, value in found if ".".join(_in_a_world(place)) not in ON_RESUME]


def is_finished(path: Path, before: Recipe, after: Recipe) -> bool:
    """Whether a run that was told `before` has nothing left to do when told `after`; an error where it cannot go on so."""
    # A run may have been moved since: where it lies now is where it is.
    refused = fixed_differences(replace(before, out=path).to_json(), replace(after, out=path).to_json())
    if refused:
        raise TacitError(
            f"a resumed run keeps its settings, and {', '.join(refused)} is not what {path / SETTINGS} says. "
            f"Only {MAY_CHANGE} may change; for anything else start a new run."
        )
    if (summary := find_summary(path)) is not None and summary.get("iterations") == after.schedule.iterations:
        # One that was stopped by hand goes on; one that lost patience only with more of it.
        impatient = before.train.evaluation.patience == after.train.evaluation.patience
        if not (stopped := summary.get("stopped", "")) or (stopped == "patience" and impatient):
            return True
    newest = saved_checkpoints(path).newest()
    if newest is not None and newest.stage == "rl" and newest.step > after.schedule.iterations:
        raise TacitError(
            f"iterations = {after.schedule.iterations}, but {path} has already done {newest.step}; "
            f"evaluate an earlier checkpoint with `tacit eval {path} --checkpoint NAME` instead."
        )
    return False


def _differences(before: Document, after: Document, place: Place = ()) -> list[tuple[Place, Any]]:
    """Where the two differ, and what is there now. A table that only one of them has is compared with an empty one."""
    found = []
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if isinstance(old or new, dict):
            found += _differences(old or {}, new or {}, (*place, key))
        elif old != new:
            found.append(((*place, key), new))
    return found


def _in_a_world(place: Place) -> Place:
    """A setting as it is called in the world it is said of: the name of a world may have dots in it."""
    return place[2:] if place[0] == "worlds" else place
