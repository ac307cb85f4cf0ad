"""Which panel: one by name, one that the settings describe, or a file of the user's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.core.errors import TacitError, unknown
from tacit.runs.directory import SETTINGS, read_settings

if TYPE_CHECKING:
    from tacit.assembly.players import Target
    from tacit.evaluation.panels import Panel


PANEL = ("evaluation", "panel")
SPLIT, TASKS = ("evaluation", "split"), ("evaluation", "tasks")
PICKS = (SPLIT, TASKS, ("families",))
"""settings that say which tasks of a split"""


def open_panel(target: Target, said: Mapping[tuple[str, ...], Any]) -> Panel:
    """The panel that the settings describe. A published split that is named without a number is meant as a whole, however many
    tasks a run was measured on elsewhere."""
    from tacit.evaluation.panels import choose_panel

    train = target.recipe.train
    chosen = train.evaluation
    whole = SPLIT in said and TASKS not in said
    count = target.world.panel_size(chosen.split, chosen.tasks) if whole else chosen.tasks
    return choose_panel(target.world, chosen.split, count, train.family_names, chosen.panel)


def panel_settings(name: str, target: str, said: dict[tuple[str, ...], Any]) -> dict[tuple[str, ...], Any]:
    """`countdown/test/128`, or a file, as the settings it stands for."""
    from tacit.assembly.checks import open_world
    from tacit.evaluation.panels import is_panel_file, read_panel

    run = run_of(target) if target else None
    played = said.get(("world",)) or (read_settings(run)["world"] if run else None)
    if is_panel_file(name):
        picked = next((place[-1] for place in PICKS if place in said), None)
        if picked:
            raise TacitError(f"--{picked} picks from a split; take what you do not want out of {name} instead.")
        named: dict[tuple[str, ...], Any] = {PANEL: name}
        return named if played else {**named, ("world",): read_panel(Path(name).expanduser()).tasks[0].world}
    place, _, count = name.rpartition("/")
    world, _, split = place.rpartition("/")
    if not world or not split or not count.isdigit():
        raise TacitError(
            f"--panel {name!r} is no panel name; one reads WORLD/SPLIT/TASKS, such as countdown/test/128, or is a .json or "
            ".jsonl file of tasks."
        )
    if split not in open_world(world).splits:
        raise unknown("panel", name, [f"{world}/{s}/{count}" for s in open_world(world).splits])
    if played and played != world:
        raise TacitError(f"panel {name!r} belongs to world {world!r}, but {target!r} plays {played!r}.")
    return {("world",): world, SPLIT: split, TASKS: int(count), PANEL: ""}


def run_of(word: str) -> Path | None:
    """The run that a target names: itself, or the one its checkpoint lies in."""
    path = Path(word).expanduser()
    places = (path, path.parent.parent) if path.parent.name == "checkpoints" else (path,)
    return next((place for place in places if (place / SETTINGS).exists()), None)
