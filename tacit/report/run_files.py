"""What a run directory holds. Nothing here raises over a broken file: it is said in a notice, and the rest is shown."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tacit.config.checks import EXPERT, open_world
from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.core.method import Context
from tacit.core.types import Task, Trajectory
from tacit.core.world import Environment
from tacit.report.page import is_number
from tacit.runs.alarms import ALARMS
from tacit.runs.checkpoints import STATE
from tacit.runs.directory import SETTINGS, SUMMARY, open_checkpoints
from tacit.runs.trajectories import list_recordings, trajectory_from_record
from tacit.training.settings import TrainSettings
from tacit.training.setup import TaskSets

Record = Mapping[str, Any]
OF_EPISODE = {"task": str, "success": bool, "score": float | int, "stop": str, "turns": list, "saw": str}
OF_TURN = {"saw": str, "wrote": str, "action": str, "valid": bool, "effective": bool}
"""without these a recorded episode cannot be told"""
EVALUATIONS = ("eval-untrained", "eval-sft", "eval-rl")
"""recordings of the run's own panel, in the order of the stages"""


@dataclass(frozen=True)
class Episodes:
    """The readable episodes of one file."""

    stage: str
    """`rl` for practice, `eval-sft` and the like for evaluations"""
    step: int
    records: Sequence[Record]
    name: str = ""
    """what to call them, where it is not their stage and step"""

    @property
    def title(self) -> str:
        stage = self.stage.removeprefix("eval-")
        if self.name or stage == self.stage:
            return self.name or f"training, iteration {self.step}"
        return "evaluation, untrained" if stage == "untrained" else f"evaluation after {stage} {self.step}"


ENDINGS = {"callback": "stopped by a callback", "patience": "stopped early, as it got no better"}
"""of a run that was ended before its last iteration"""


@dataclass(frozen=True)
class RunFiles:
    path: Path
    settings: Record
    summary: Record
    """empty where the run has not finished"""
    versions: Record
    metrics: Sequence[Record]
    evaluations: Sequence[Record]
    """in the order they were made; one in several worlds is followed by those in each of them"""
    further: Sequence[Record]
    """on panels that are measured after each stage only"""
    later: Sequence[Record]
    """made by `tacit eval` on the finished or unfinished run"""
    alarms: Sequence[Record]
    notices: Sequence[str]

    @property
    def finished(self) -> bool:
        return bool(self.summary)

    @property
    def ending(self) -> str:
        """How a finished run ended."""
        return ENDINGS.get(str(self.summary.get("stopped")), "finished")

    @property
    def come_to(self) -> str:
        """`rl 12`; nothing before the first step"""
        return "".join(f"{record['stage']} {record['step']}" for record in self.metrics[-1:])


def read_run(path: Path) -> RunFiles:
    """`path` must hold a settings.json; anything beyond that may be missing or broken."""
    notices: list[str] = []
    settings = read_table(path / SETTINGS, notices)
    if not settings:
        why = "; ".join(notices) or "it is empty."
        raise TacitError(f"{path / SETTINGS} cannot be read as settings, so nothing can be said about the run: {why}")
    summary = read_table(path / SUMMARY, notices) if (path / SUMMARY).exists() else {}
    metrics = read_metrics(path, notices)
    alarms = _lines(path, path / ALARMS, lambda line: has(line, {"name": str, "step": int, "message": str}), notices)
    versions, newest = read_table(path / "versions.json", notices), open_checkpoints(path).newest()
    measured = summary or (read_table(newest.path / STATE, notices) if newest else {})
    if (path / "failed").is_dir():
        notices.append(f"The run met a loss that was not a number; the batch and the policy are kept in {path / 'failed'}.")
    if not metrics:
        notices.append("There are no metrics (metrics.jsonl), so there are no learning curves.")
    found = [read_table(file, notices) for file in sorted((path / "evaluations").glob("*.json"))]
    own, further, later = (_scores(said, notices) for said in (measured.get("evaluations"), measured.get("further"), found))
    return RunFiles(path, settings, summary, versions, metrics, own, further, later, alarms, notices)


def read_metrics(path: Path, notices: list[str]) -> list[Record]:
    """What every step of every stage recorded."""
    return _lines(path, path / "metrics.jsonl", lambda line: has(line, {"stage": str, "step": int}), notices)


def newest_episodes(path: Path, stages: Sequence[str], notices: list[str]) -> list[Episodes]:
    """The newest readable file over `stages` (later stages count as newer), if there is one."""
    for stage in reversed(stages):
        for step, file in sorted(list_recordings(path, stage).items(), reverse=True):
            if records := read_episodes(path, file, notices):
                return [Episodes(stage, step, records)]
    return []


def read_episodes(path: Path, file: Path, notices: list[str]) -> list[Record]:
    """Those of one file that can be told."""
    return _lines(path, file, _is_episode, notices)


def trajectory_of(record: Record, task: Task | None = None) -> Trajectory:
    """The episode as a trajectory; without its task, as one of a task that only has a name."""
    stub = Task("", record["task"], str(record.get("family", "")), "", 0, str(record.get("goal", "")))
    return trajectory_from_record({"condition": "plain", "detail": "", "seed": 0, **record}, task or stub)


def has(record: Any, needed: Mapping[str, Any]) -> bool:
    """Whether it is a table that holds these, each of its kind."""
    return isinstance(record, dict) and all(isinstance(record.get(name), kind) for name, kind in needed.items())


def table_of(value: Any) -> Record:
    """A table of values, empty where there is none."""
    return value if isinstance(value, Mapping) else {}


def read_table(file: Path, notices: list[str]) -> Record:
    """The table of values in a JSON file; an empty one, and a notice, where it cannot be read."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        notices.append(f"{file.name} is missing.")
    except (OSError, ValueError) as error:
        notices.append(f"{file.name} cannot be read ({error}).")
    else:
        if isinstance(value, dict):
            return value
        notices.append(f"{file.name} does not hold a table of values.")
    return {}


def _lines(run: Path, file: Path, sound: Callable[[Any], bool], notices: list[str]) -> list[Record]:
    """The sound records of a file of JSON lines, if there is one; of a damaged file, those before the damage."""
    name, found = file.relative_to(run), []
    try:
        with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line.strip() and (line.endswith("\n") or _parsed(line) is not None):  # a killed write leaves half a line
                    found.append(_parsed(line))
    except FileNotFoundError:
        return []
    except (OSError, EOFError, zlib.error) as error:
        notices.append(f"{name} is damaged ({error or type(error).__name__}); what comes before the damage is shown.")
    kept = [record for record in found if sound(record)]
    if len(kept) < len(found):
        notices.append(f"{len(found) - len(kept)} of {len(found)} lines of {name} cannot be read by this version: left out.")
    return kept


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _scores(said: Any, notices: list[str]) -> list[Record]:
    """Those that say how often they succeeded, out of how many, and how sure that is; of one that is the mean over worlds the
    worlds say how often."""
    told, sound = said if isinstance(said, list) else [], []
    found = [own for e in told for own in (e, *table_of(table_of(e).get("worlds")).values())]
    for e in found:
        ends = e["interval"] if has(e, {"interval": list}) else []
        counts = ("success", "episodes") if has(e, {"worlds": dict}) else ("success", "successes", "episodes")
        if len(ends) == 2 and all(map(is_number, [*ends, *(e.get(name) for name in counts)])):
            sound.append(e)
    if len(sound) < len(found):
        notices.append(f"{len(found) - len(sound)} evaluations lack successes, episodes or an interval: left out.")
    return sound


def _is_episode(record: Any) -> bool:
    if not has(record, OF_EPISODE) or not all(has(turn, OF_TURN) for turn in record["turns"]):
        return False
    try:
        trajectory_of(record)
    except (ValueError, TypeError):  # a stop reason this version does not have, a count that is none
        return False
    return True


# What is known of a run beyond its own directory. All of it can be absent: the page says so and does without.


@dataclass(frozen=True)
class Scene:
    """Where an episode was played."""

    task: Task
    world: Environment
    """names failures, counts skills, and is played again for the prompts"""
    context: Context | None
    """what the agent read; an expert reads no prompt"""


@dataclass(frozen=True)
class Known:
    scenes: Mapping[str, Scene] = field(default_factory=dict)
    """by the task's id: those measured on and those trained on"""
    defaults: Mapping[str, Any] | None = None
    """settings of the same method, world and model where nothing else is said"""
    notices: tuple[str, ...] = ()
    """why something is absent"""


def known_of(settings: Any) -> Known:
    """As far as it can be had here: the settings may be another version's, and the world may need data that is elsewhere."""
    try:
        recipe = Recipe.from_json(dict(settings))
        usual = Recipe.from_json({"world": recipe.world, "model": recipe.model, "method": recipe.method}).to_json()
    except (TacitError, TypeError, ValueError, KeyError, AttributeError) as error:
        return Known(notices=(f"These settings are not this version's ({error}): the run is shown without its world's help.",))
    try:
        scenes: dict[str, Scene] = {}
        for place in recipe.places:
            world = open_world(place.world)
            context = None if recipe.model == EXPERT else place.settings.context(world)
            scenes |= {task.id: Scene(task, world, context) for task in _tasks(place.world, place.train)}
        return Known(scenes, usual)
    except Exception as error:  # a world of the user's own may fail in any way
        return Known(defaults=usual, notices=(f"The world is not here ({error}): no labels of failures, no prompts.",))


@cache
def _tasks(world: str, settings: TrainSettings) -> tuple[Task, ...]:
    """What a run trains on and is measured on. Kept: the runs of a comparison have the same."""
    tasks = TaskSets.of(open_world(world), settings)
    return *tasks.training, *tasks.panel.tasks


# What a comparison's directory says: comparison.json, whose layout is the docstring of `tacit.comparison`.

COMPARISON = "comparison.json"
FORMAT = 1


@dataclass(frozen=True)
class Comparison:
    path: Path
    found: Record
    cells: Sequence[Record]
    rows: Sequence[Record]
    """of the table: one per world and method"""
    worlds: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[str]
    notices: tuple[str, ...]

    @property
    def baseline(self) -> str:
        return str(self.found.get("baseline") or next(iter(self.methods), ""))

    def colour(self, method: str) -> int:
        """A method has one colour on the whole page."""
        return self.methods.index(method) if method in self.methods else len(self.methods)

    def cells_of(self, world: str, method: str, finished: bool = False) -> list[Record]:
        own = [cell for cell in self.cells if (cell["world"], cell["method"]) == (world, method)]
        return [cell for cell in own if cell["status"] == "finished"] if finished else own

    def place(self, cell: Record) -> Path:
        """The run's directory, which may not be there."""
        return self.path / str(cell.get("run") or "nowhere")


def read_comparison(path: Path) -> Comparison:
    """Broken cells are left out and counted; a file that is no comparison at all is refused."""
    told: list[str] = []
    found = read_table(path / COMPARISON, told)
    said = found.get("cells")
    if not isinstance(said, list):
        why = told[0] if told else "it has no cells."
        remedy = "`tacit compare` writes it anew; `tacit report` also takes its runs one by one."
        raise TacitError(f"{path / COMPARISON} is no comparison: {why} {remedy}")
    notices = list(map(str, _list(found.get("notes"))))
    if found.get("format") != FORMAT:
        other = f"{COMPARISON} is of format {found.get('format')!r}, this version reads {FORMAT}"
        notices.append(f"{other}: what differs is missing.")
    cells = [cell for cell in entries(said) if has(cell, {"world": str, "method": str, "status": str})]
    if len(cells) < len(said):
        notices.append(f"{len(said) - len(cells)} of {len(said)} cells cannot be read, and are left out.")
    rows = [row for row in entries(found.get("table")) if has(row, {"world": str, "method": str})]
    if not rows:
        notices.append("There is no table: no run has finished, or the runs of a world were measured on different panels.")
    worlds, methods, seeds = (
        list(dict.fromkeys([*map(str, _list(found.get(f"{key}s"))), *(str(cell.get(key)) for cell in cells)]))
        for key in ("world", "method", "seed")
    )
    return Comparison(path, found, cells, rows, worlds, methods, seeds, tuple(notices))


def entries(value: Any) -> list[Record]:
    """The tables of a list, whatever else is in it."""
    return [entry for entry in _list(value) if isinstance(entry, Mapping)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
