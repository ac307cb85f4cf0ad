"""Read run and comparison directories for a page. Broken or missing files become notices, and the rest is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.config.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.core.files import read_json
from tacit.core.trust import trust_nothing
from tacit.core.types import Task, Trajectory
from tacit.report.page import is_number
from tacit.runs.alarms import ALARMS
from tacit.runs.directory import SETTINGS, STATE, SUMMARY, open_checkpoints
from tacit.runs.files import read_lines
from tacit.runs.trajectories import list_recordings, trajectory_from_record

Record = Mapping[str, Any]
OF_EPISODE = {"task": str, "success": bool, "score": float | int, "stop": str, "turns": list, "saw": str}
OF_TURN = {"saw": str, "wrote": str, "action": str, "valid": bool, "effective": bool}  # required fields of recordings
EVALUATIONS = ("eval-untrained", "eval-sft", "eval-rl")  # recordings of the run's own panel, in stage order


@dataclass(frozen=True)
class Episodes:
    stage: str  # `rl` for training, `eval-sft` etc. for evaluations
    step: int
    records: Sequence[Record]
    name: str = ""  # title, if it is not made from stage and step

    @property
    def title(self) -> str:
        stage = self.stage.removeprefix("eval-")
        if self.name or stage == self.stage:
            return self.name or f"training, iteration {self.step}"
        return "evaluation, untrained" if stage == "untrained" else f"evaluation after {stage} {self.step}"


ENDINGS = {"callback": "stopped by a callback", "patience": "stopped early: no improvement"}
"""`stopped` in the summary -> how a run ended before its last iteration"""


@dataclass(frozen=True)
class RunFiles:
    path: Path
    settings: Record
    summary: Record  # empty if the run has not finished
    versions: Record
    metrics: Sequence[Record]
    evaluations: Sequence[Record]  # in order; a mean over worlds is followed by its worlds
    further: Sequence[Record]  # on further panels, evaluated only after each stage
    later: Sequence[Record]  # made by `tacit eval`
    alarms: Sequence[Record]
    notices: Sequence[str]
    finished: bool
    ending: str  # how a finished run ended
    last_step: str  # `rl 12`; empty before the first step


def read_run(path: Path) -> RunFiles:
    """`path` must contain settings.json; any other file may be missing or broken."""
    notices: list[str] = []
    settings = read_table(path / SETTINGS, notices)
    if not settings:
        why = "; ".join(notices) or "it is empty."
        raise TacitError(f"cannot read the settings {path / SETTINGS}: {why}")
    summary = read_table(path / SUMMARY, notices) if (path / SUMMARY).exists() else {}
    metrics = read_metrics(path, notices)
    alarms = _lines(path, path / ALARMS, lambda line: has_fields(line, {"name": str, "step": int, "message": str}), notices)
    versions, newest = read_table(path / "versions.json", notices), open_checkpoints(path).newest()
    measured = summary or (read_table(newest.path / STATE, notices) if newest else {})
    if (path / "failed").is_dir():
        notices.append(f"A loss was NaN or infinite; the batch and the policy are saved in {path / 'failed'}.")
    if not metrics:
        notices.append("There are no metrics (metrics.jsonl), so there are no learning curves.")
    tables = [read_table(file, notices) for file in sorted((path / "evaluations").glob("*.json"))]
    own, further, later = (
        _scores(evaluations, notices) for evaluations in (measured.get("evaluations"), measured.get("further"), tables)
    )
    ending = ENDINGS.get(str(summary.get("stopped")), "finished")
    step = "".join(f"{record['stage']} {record['step']}" for record in metrics[-1:])
    parts = (path, settings, summary, versions, metrics, own, further, later, alarms, notices)
    return RunFiles(*parts, bool(summary), ending, step)


def read_metrics(path: Path, notices: list[str]) -> list[Record]:
    return _lines(path, path / "metrics.jsonl", lambda line: has_fields(line, {"stage": str, "step": int}), notices)


def newest_episodes(path: Path, stages: Sequence[str], notices: list[str]) -> list[Episodes]:
    """The newest readable file of `stages` (later stages are newer), if there is one."""
    for stage in reversed(stages):
        for step, file in sorted(list_recordings(path, stage).items(), reverse=True):
            if records := read_episodes(path, file, notices):
                return [Episodes(stage, step, records)]
    return []


def read_episodes(path: Path, file: Path, notices: list[str]) -> list[Record]:
    def is_episode(record: Any) -> bool:
        if not has_fields(record, OF_EPISODE) or not all(has_fields(turn, OF_TURN) for turn in record["turns"]):
            return False
        try:
            to_trajectory(record)
        except (ValueError, TypeError):  # for example an unknown stop reason
            return False
        return True

    return _lines(path, file, is_episode, notices)


def to_trajectory(record: Record) -> Trajectory:
    """The episode as a trajectory, with a task that has only the recorded fields."""
    stub = Task("", record["task"], str(record.get("family", "")), "", 0, str(record.get("goal", "")))
    return trajectory_from_record({"condition": "plain", "detail": "", "seed": 0, **record}, stub)


def has_fields(record: Any, needed: Mapping[str, Any]) -> bool:
    """Whether a record is a dict with these fields and types."""
    return isinstance(record, dict) and all(isinstance(record.get(name), kind) for name, kind in needed.items())


def as_mapping(value: Any) -> Record:
    return value if isinstance(value, Mapping) else {}


def read_table(file: Path, notices: list[str]) -> Record:
    """The object in a JSON file; an empty one and a notice if it cannot be read."""
    try:
        value = read_json(file)
    except FileNotFoundError:
        notices.append(f"{file.name} is missing.")
    except (OSError, ValueError, RecursionError) as error:
        notices.append(f"{file.name} cannot be read ({error}).")
    else:
        if isinstance(value, dict):
            return value
        notices.append(f"{file.name} does not contain a JSON object.")
    return {}


def _lines(run: Path, file: Path, sound: Callable[[Any], bool], notices: list[str]) -> list[Record]:
    """The valid records of a JSON lines file; of a damaged file, those before the damage."""
    name, records = file.relative_to(run), []
    try:
        for line in filter(bytes.strip, read_lines(file)):
            try:
                records.append(json.loads(line.decode("utf-8", "replace")))
            except (ValueError, RecursionError):
                if line.endswith(b"\n"):  # a killed write leaves half a line
                    records.append(None)
    except FileNotFoundError:
        return []
    except OSError as error:
        notices.append(f"{name} is damaged ({error or type(error).__name__}); the part before the damage is shown.")
    kept = [record for record in records if sound(record)]
    if len(kept) < len(records):
        notices.append(
            f"{len(records) - len(kept)} of {len(records)} lines of {name} cannot be read by this version: left out."
        )
    return kept


def _scores(evaluations: Any, notices: list[str]) -> list[Record]:
    """The evaluations with success, counts and an interval; a mean over worlds is followed by its worlds."""
    valid: list[Record] = []
    scores = [own for e in _list(evaluations) for own in (e, *as_mapping(as_mapping(e).get("worlds")).values())]
    for e in scores:
        ends = e["interval"] if has_fields(e, {"interval": list}) else []
        counts = ("success", "episodes") if has_fields(e, {"worlds": dict}) else ("success", "successes", "episodes")
        if len(ends) == 2 and all(map(is_number, [*ends, *(e.get(name) for name in counts)])):
            valid.append(e)
    if len(valid) < len(scores):
        notices.append(f"{len(scores) - len(valid)} evaluations lack successes, episodes or an interval: left out.")
    return valid


def find_defaults(settings: Any) -> tuple[Record | None, list[str]]:
    """The default settings for the same method, world and model, or None and why. Registered names only are imported."""
    try:
        with trust_nothing():
            recipe = Recipe.from_json(dict(settings))
            return Recipe.from_json({"world": recipe.world, "model": recipe.model, "method": recipe.method}).to_json(), []
    except (TacitError, TypeError, ValueError, KeyError, AttributeError) as error:
        return None, [f"This version cannot read these settings ({error}), so chosen settings are not separated from defaults."]


# Comparisons: comparison.json, whose layout is in docs/reference/comparison.md.

COMPARISON = "comparison.json"
FORMAT = 1


@dataclass(frozen=True)
class Comparison:
    path: Path
    record: Record
    cells: Sequence[Record]
    rows: Sequence[Record]  # of the table: one per world and method
    worlds: Sequence[str]
    methods: Sequence[str]
    seeds: Sequence[str]
    notices: tuple[str, ...]

    @property
    def baseline(self) -> str:
        return str(self.record.get("baseline") or next(iter(self.methods), ""))

    def color(self, method: str) -> int:
        """A method has one color on the whole page."""
        return self.methods.index(method) if method in self.methods else len(self.methods)

    def cells_of(self, world: str, method: str, finished: bool = False) -> list[Record]:
        own = [cell for cell in self.cells if (cell["world"], cell["method"]) == (world, method)]
        return [cell for cell in own if cell["status"] == "finished"] if finished else own

    def run_directory(self, cell: Record) -> Path:
        """The run's directory, which may not be there."""
        return self.path / str(cell.get("run") or "nowhere")


def read_comparison(path: Path) -> Comparison:
    """Read comparison.json. Broken cells are skipped with a notice; a file without cells raises."""
    problems: list[str] = []
    record = read_table(path / COMPARISON, problems)
    entries = record.get("cells")
    if not isinstance(entries, list):
        why = problems[0] if problems else "it has no cells."
        remedy = "`tacit compare` writes it again; `tacit report` also works on its single runs."
        raise TacitError(f"{path / COMPARISON} is not a comparison: {why} {remedy}")
    notices = list(map(str, _list(record.get("notes"))))
    if record.get("format") != FORMAT:
        other = f"{COMPARISON} has format {record.get('format')!r}, this version reads {FORMAT}"
        notices.append(f"{other}: parts of the page may be missing.")
    cells = [cell for cell in list_mappings(entries) if has_fields(cell, {"world": str, "method": str, "status": str})]
    if len(cells) < len(entries):
        notices.append(f"{len(entries) - len(cells)} of {len(entries)} cells cannot be read, and are left out.")
    rows = [row for row in list_mappings(record.get("table")) if has_fields(row, {"world": str, "method": str})]
    if not rows:
        notices.append("There is no table: no run has finished, or the runs of a world were measured on different panels.")
    worlds, methods, seeds = (
        list(dict.fromkeys([*map(str, _list(record.get(f"{key}s"))), *(str(cell.get(key)) for cell in cells)]))
        for key in ("world", "method", "seed")
    )
    return Comparison(path, record, cells, rows, worlds, methods, seeds, tuple(notices))


def list_mappings(value: Any) -> list[Record]:
    """The mappings in a list; [] if the value is not a list."""
    return [entry for entry in _list(value) if isinstance(entry, Mapping)]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
