"""Panels: fixed, ordered lists of tasks with a hash. The same name and hash mean the same evaluation on every machine.

Panel.of(world, "test", 128)      the first 128 tasks of a split
read_panel(Path("mine.jsonl"))    your own tasks
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError, unknown
from tacit.core.protocols import Sampling
from tacit.core.types import PLAIN, Condition, Task
from tacit.core.world import Environment

PANEL_SEED = 20261115  # Panels do not depend on a run's seed: all runs are evaluated on the same tasks.

PANEL_FILES = (".json", ".jsonl")


@dataclass(frozen=True)
class Panel:
    name: str
    tasks: tuple[Task, ...]
    version: str = "1"
    published: Mapping[int, str] = field(default_factory=dict, compare=False)
    """number of tasks -> hash of the panels its world published under this name"""

    @cached_property
    def hash(self) -> str:
        """Hash of every task's id and content, in order."""
        return hash_tasks(self.tasks)

    @classmethod
    def of(cls, world: Environment, split: str, count: int, families: Sequence[str] = ()) -> Panel:
        """The first `count` tasks of a split, optionally of some families. The world's default split if none is named."""
        split = world.split_to_measure(split)
        tasks = tuple(world.tasks_of(split, count, PANEL_SEED, families))
        if not tasks:
            in_families = f" of {', '.join(families)}" if families else ""
            raise TacitError(f"split {split!r} of world {world.name!r} has no tasks{in_families} on this machine.")
        return cls(panel_name(world.name, split, len(tasks), families), tasks, world.panel_version).with_published_hashes(world)

    def with_published_hashes(self, world: Environment) -> Panel:
        """The panel with the hashes that its world published for this split and version, if any."""
        world_and_split, _, count = self.name.rpartition("/")
        world_name, _, split = world_and_split.rpartition("/")
        published = count.isdigit() and (world_name, self.version) == (world.name, world.panel_version)
        return replace(self, published=world.panels.get(split, {}) if published else {})

    def difference(self) -> str:
        """Empty, or how the tasks differ from the published ones. Larger panels start with smaller ones, so every panel at
        least as large as a published one is checked."""
        sizes = [n for n in self.published if n <= len(self.tasks)]
        if not sizes:
            return ""
        size, name = max(sizes), self.name.rpartition("/")[0]
        own, published = hash_tasks(self.tasks[:size]), self.published[size]
        if own == published:
            return ""
        return (
            f"this machine makes other tasks than the published panel {name}/{size} (version {self.version}): hash {own} "
            f"here, {published} published. Its numbers cannot be compared with others'; another version of tacit, of Python or "
            "of the world's data may be the cause."
        )

    def to_json(self) -> dict[str, Any]:
        """The format of `read_panel`."""
        return {"name": self.name, "version": self.version, "tasks": [asdict(task) for task in self.tasks]}


def choose_panel(world: Environment, split: str, count: int, families: Sequence[str] = (), file: str = "") -> Panel:
    """The panel of a file, which must belong to this world, or of a split; count 0 is the world's default size."""
    if not file:
        return Panel.of(world, split, count or world.panel_size(world.split_to_measure(split)), families)
    panel = read_panel(Path(file).expanduser(), world.name)
    if panel.tasks[0].world != world.name:
        raise TacitError(f"the panel {file} is for world {panel.tasks[0].world!r} and cannot be played in {world.name!r}.")
    return panel.with_published_hashes(world)


def panel_name(world: str, split: str, count: int, families: Sequence[str] = ()) -> str:
    """
    >>> panel_name("alfworld", "unseen", 64, ("heat", "cool"))
    'alfworld/unseen/64[heat,cool]'
    """
    return f"{world}/{split}/{count}" + (f"[{','.join(families)}]" if families else "")


def hash_tasks(tasks: Sequence[Task]) -> str:
    lines = (
        json.dumps([t.world, t.id, t.family, t.split, t.seed, t.goal, t.data], sort_keys=True, ensure_ascii=False, default=str)
        for t in tasks
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def is_panel_file(name: str) -> bool:
    return name.endswith(PANEL_FILES) or Path(name).expanduser().is_file()


def read_panel(path: Path, world: str = "") -> Panel:
    """A user's panel; a task without a world belongs to `world`.

    JSON:         {"name": "mine", "version": "1", "tasks": [{"id": …, "goal": …, "data": {…}}, …]}
    JSON lines:   {"name": "mine", "version": "1"} on the first line, one task on each other line
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"cannot read the panel {path}: {getattr(error, 'strerror', None) or error}.") from error
    if path.suffix != ".jsonl":
        head = _json(text, str(path))
        if not isinstance(head, dict) or not isinstance(head.get("tasks"), list):
            raise TacitError(f'{path}: a panel is an object with "name", "version" and a list "tasks".')
        entries = [(f"{path}, task {i}", entry) for i, entry in enumerate(head["tasks"], 1)]
    else:
        lines = [(f"{path}, line {i}", line) for i, line in enumerate(text.split("\n"), 1) if line.strip()]
        head = _json(lines[0][1], lines[0][0]) if lines else {}
        if not isinstance(head, dict) or "id" in head or "name" not in head:
            raise TacitError(f'{path}: the first line of a panel names it: {{"name": "mine", "version": "1"}}.')
        entries = [(where, _json(line, where)) for where, line in lines[1:]]
    name, version = _text(head, "name", f"{path}"), _text(head, "version", f"{path}")
    world = str(head.get("world", "")) or world
    tasks: list[Task] = []
    seen: dict[str, str] = {}
    for where, entry in entries:
        task = _task(entry, world, where)
        if task.id in seen:
            raise TacitError(f"{where}: task id {task.id!r} is already used ({seen[task.id]}); ids must be unique.")
        seen[task.id] = where
        tasks.append(task)
    if not tasks:
        raise TacitError(f"the panel {path} has no tasks.")
    worlds = sorted({task.world for task in tasks})
    if len(worlds) > 1:
        raise TacitError(
            f"the panel {path} has tasks of several worlds ({', '.join(worlds)}); split it into one panel per world."
        )
    return Panel(name, tuple(tasks), version)


def _task(entry: Any, world: str, where: str) -> Task:
    if not isinstance(entry, dict):
        raise TacitError(f"{where}: a task is an object with an id, a goal and data, not {entry!r}.")
    names = [field.name for field in fields(Task)]
    extra = next((key for key in entry if key not in names), None)
    if extra is not None:
        raise TacitError(f"{where}: {unknown('field of a task', extra, names)}")
    seed, data = entry.get("seed", 0), entry.get("data", {})
    if type(seed) is not int:
        raise TacitError(f"{where}: seed must be a whole number, not {seed!r}.")
    if not isinstance(data, dict):
        raise TacitError(f"{where}: data must be an object with what the world needs to set up the task, not {data!r}.")
    world = _text(entry, "world", where) if "world" in entry else world
    if not world:
        raise TacitError(f'{where}: the task has no world. Give "world" here or in the first entry, or use --world.')
    entry = {"family": "own", "split": "own", "goal": "", **entry}
    task_id, family, split, goal = (_text(entry, key, where) for key in ("id", "family", "split", "goal"))
    return Task(world=world, id=task_id, family=family, split=split, seed=seed, goal=goal, data=data)


def _text(entry: Mapping[str, Any], key: str, where: str) -> str:
    if key not in entry:
        raise TacitError(f'{where}: it has no "{key}".')
    value = entry[key]
    if not isinstance(value, str) or (not value and key != "goal"):
        raise TacitError(f'{where}: "{key}" must be text, not {value!r}.')
    return value


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise TacitError(f"{where}: not valid JSON: {error}.") from error


TaskCondition = Condition | Callable[[Task], Condition]  # the condition of all episodes, or a function of the task


@dataclass(frozen=True)
class Rules:
    """What an outcome depends on besides the tasks and the agent."""

    sampling: Sampling
    max_steps: int
    seed: int = 0  # of the episodes; tasks do not depend on it
    repeats: int = 1  # episodes per task
    condition: TaskCondition = PLAIN  # condition of the episodes: plain, with a note, or by task

    def condition_of(self, task: Task) -> Condition:
        return self.condition if isinstance(self.condition, Condition) else self.condition(task)

    def describe_condition(self, tasks: Sequence[Task]) -> dict[str, str]:
        """The condition as JSON: `{"name": "plain"}`, with its text if all tasks share it, else with a hash of the texts."""
        conditions = [self.condition_of(task) for task in tasks]
        names = "+".join(sorted({condition.name for condition in conditions})) or PLAIN.name
        if all(condition == PLAIN for condition in conditions):
            return {"name": PLAIN.name}
        if len(set(conditions)) == 1:
            return asdict(conditions[0])
        text = json.dumps([asdict(condition) for condition in conditions], ensure_ascii=False)
        return {"name": names, "hash": hashlib.sha256(text.encode()).hexdigest()[:16]}
