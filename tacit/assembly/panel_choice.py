"""Which panel: one by name, one that the settings describe, or a file of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tacit.assembly.checks import open_world
from tacit.assembly.players import Target
from tacit.assembly.recipe import Said
from tacit.core.errors import TacitError, unknown
from tacit.evaluation.panels import Panel, choose_panel, is_panel_file, read_panel
from tacit.runs.directory import SETTINGS, read_settings

PANEL = ("evaluation", "panel")
SPLIT, TASKS = ("evaluation", "split"), ("evaluation", "tasks")
PICKS = (SPLIT, TASKS, ("families",))
"""settings that say which tasks of a split"""


def with_panel(said: Said, name: str, target: str) -> Said:
    """What was said, with the panel `name` (`countdown/test/128`, or a file) as the settings it stands for. Without a name,
    tasks picked from a split are not those of the file that a run was measured on."""
    if name:
        return {**said, **_settings_of(name, target, said)}
    return {**said, PANEL: ""} if any(place in said for place in PICKS) else said


def open_panel(target: Target, said: Said) -> Panel:
    """The panel that the settings describe. A published split that is named without a number is meant as a whole, however many
    tasks a run was measured on elsewhere."""
    train = target.recipe.train
    chosen = train.evaluation
    whole = SPLIT in said and TASKS not in said
    count = target.world.panel_size(chosen.split, chosen.tasks) if whole else chosen.tasks
    return choose_panel(target.world, chosen.split, count, train.family_names, chosen.panel)


def run_of(word: str) -> Path | None:
    """The run that a target names: itself, or the one its checkpoint lies in."""
    path = Path(word).expanduser()
    places = (path, path.parent.parent) if path.parent.name == "checkpoints" else (path,)
    return next((place for place in places if (place / SETTINGS).exists()), None)


def _settings_of(name: str, target: str, said: Said) -> dict[tuple[str, ...], Any]:
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
    splits = open_world(world).splits
    if split not in splits:
        raise unknown("panel", name, [f"{world}/{s}/{count}" for s in splits])
    if played and played != world:
        raise TacitError(f"panel {name!r} belongs to world {world!r}, but {target!r} plays {played!r}.")
    return {("world",): world, SPLIT: split, TASKS: int(count), PANEL: ""}
