"""`tacit.open_run`: a run directory as an object. Nothing is loaded until it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.assembly.checks import open_world
from tacit.assembly.players import open_target
from tacit.assembly.recipe import Recipe, Said
from tacit.core.amounts import after, number_of
from tacit.core.errors import TacitError, unknown
from tacit.core.types import Task, Trajectory
from tacit.core.world import Environment
from tacit.evaluation.scores import final_and_peak
from tacit.runs.directory import find_summary, read_settings, saved_checkpoints
from tacit.runs.metrics import read_metrics
from tacit.runs.records import read_records
from tacit.runs.replay import recorded_steps, replay
from tacit.scripting.naming import Method, World, name_method, name_worlds
from tacit.scripting.tables import episode_rows, table, turn_rows
from tacit.training.events import Callback
from tacit.training.practice import Course

if TYPE_CHECKING:
    from tacit.rollout.episodes import SamplingPolicy
    from tacit.scripting.measured import Evaluation


def open_run(path: str | Path, *, world: World | None = None, method: Method | None = None) -> OpenRun:
    """The run at this place. `world` and `method` are for objects of a program's own that have no place to be found at."""
    if world is not None:
        name_worlds(world)
    if method is not None:
        name_method(method)
    return OpenRun(Path(path).expanduser())


class OpenRun:
    """A run that has begun: what it was told, what it recorded, and the policy it made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings  # noqa: B018  one that is no run is refused here

    def __repr__(self) -> str:
        return f"OpenRun({str(self.path)!r}, {'finished' if self.finished else 'unfinished'})"

    def __str__(self) -> str:
        """How it ended, in a line: `runs/mine: success 62.5% [54.0, 70.4] of 128 episodes after rl 20 on countdown/test/128;
        before: untrained 0.0%, after sft 200 41.4%; peak 64.1% after rl 15`."""
        measured = self.summary.get("evaluations")
        if not measured:
            return f"{self.path}: {'nothing was measured' if self.finished else 'not finished'}"
        final, peak = final_and_peak(measured)
        low, high = final["interval"]
        told = f"{final['success']:.1%} [{100 * low:.1f}, {100 * high:.1f}] of {number_of(final['episodes'], 'episode')}"
        earlier = {e["stage"]: f"{after(e)} {e['success']:.1%}" for e in measured if e["stage"] != final["stage"]}
        before = f"; before: {', '.join(earlier.values())}" if earlier else ""
        best = f"; peak {peak['success']:.1%} {after(peak)}" if peak["success"] > final["success"] else ""
        return f"{self.path}: success {told} {after(final)} on {final['panel']}{before}{best}"

    @property
    def settings(self) -> dict[str, Any]:
        """Everything it was told, as settings.json has it."""
        return read_settings(self.path)

    @property
    def summary(self) -> dict[str, Any]:
        """What came out; empty until it is finished or stopped by a callback."""
        return find_summary(self.path) or {}

    @property
    def finished(self) -> bool:
        return bool(self.summary) and self.summary.get("stopped") != "callback"

    @property
    def success(self) -> float | None:
        """On the panel, at the end; None until there is a summary."""
        final = self.summary.get("final")
        return final["success"] if final else None

    @property
    def checkpoints(self) -> list[str]:
        """Names, oldest first."""
        return [checkpoint.path.name for checkpoint in saved_checkpoints(self.path).all()]

    def metrics(self, stage: str | None = None, rows: bool = False) -> Any:
        """One row per step: of `sft`, of `rl`, or of both. A pandas table, or with `rows` plain dicts."""
        found = [r for r in read_metrics(self.path / "metrics.jsonl") if stage in (None, r["stage"])]
        return found if rows else table(found)

    def turns(self, stage: str = "rl", step: int | None = None, rows: bool = False) -> Any:
        """One row per recorded turn of the episodes of `rl`, or of an evaluation (`eval-untrained`, `eval-sft`, `eval-rl`): of
        one step, or of all. The fields are those of docs/trajectories.md."""
        found = self._rows(stage, step, turn_rows)
        return list(found) if rows else table(found)

    def episodes(self, stage: str = "rl", step: int | None = None, rows: bool = False) -> Any:
        """One row per recorded episode; `stage` and `step` as in `turns`."""
        found = self._rows(stage, step, episode_rows)
        return list(found) if rows else table(found)

    def trajectories(self, stage: str = "rl", step: int | None = None) -> list[Trajectory]:
        """The recorded episodes as objects: what was seen, done and achieved; of tokens only how many."""
        tasks = self._tasks()
        return [trajectory for _, file in self._files(stage, step) for trajectory in replay(file, tasks)]

    def policy(self, checkpoint: str = "newest", world: str | None = None) -> SamplingPolicy:
        """Loaded: it can be sampled from, scored with, and trained further."""
        said: Said = {("world",): world} if world else {}
        return open_target(str(self.path), said, checkpoint).policy

    def evaluate(self, **options: Any) -> Evaluation:
        """`tacit.evaluate` of this run: `run.evaluate(checkpoint="best", tasks=64)`."""
        from tacit.scripting.measured import evaluate

        return evaluate(self.path, **options)

    def resume(self, *, callbacks: Callback | Sequence[Callback] = (), quiet: bool = False, **settings: Any) -> OpenRun:
        """Go on where it stopped; `settings` are the few that a resumed run may change, such as `iterations`."""
        from tacit.scripting.training import go_on

        go_on(self.path, settings, callbacks, quiet)
        return self

    def _rows(self, stage: str, step: int | None, rows_of: Any) -> Iterator[dict[str, Any]]:
        for number, file in self._files(stage, step):
            yield from rows_of(stage, number, read_records(file))

    def _files(self, stage: str, step: int | None) -> Iterable[tuple[int, Path]]:
        found = recorded_steps(self.path, stage)
        if not found:
            files = (file.name.removesuffix(".jsonl.gz").rpartition("-")[0] for file in self._recorded())
            raise unknown(f"stage of the run {str(self.path)!r}", stage, set(files))
        if step is not None and step not in found:
            raise TacitError(f"{self.path} has no recorded episodes of {stage} {step}; there are {', '.join(map(str, found))}.")
        return [(number, file) for number, file in found.items() if step in (None, number)]

    def _recorded(self) -> list[Path]:
        files = sorted((self.path / "trajectories").glob("*.jsonl.gz"))
        if not files:
            raise TacitError(f"{self.path} has recorded no episodes (yet, or its setting `trajectories` is off).")
        return files

    def _tasks(self) -> list[Task]:
        """All that its episodes may be of."""
        recipe, found = Recipe.from_json(self.settings), []
        for place in recipe.places:
            course = Course.of(open_world(place.world), place.train)
            found += [*course.tasks, *course.panel.tasks, *(task for panel in course.further for task in panel.tasks)]
        known: dict[str, str] = {}
        for task in found:
            if known.setdefault(task.id, task.world) != task.world:
                raise TacitError(
                    f"records name a task by its id, and {task.id!r} is one of {known[task.id]!r} and one of {task.world!r}; "
                    "take `turns` or `episodes`, which need no tasks."
                )
        return found

    @property
    def worlds(self) -> Mapping[str, Environment]:
        """By the name they have in the settings."""
        return {place.world: open_world(place.world) for place in Recipe.from_json(self.settings).places}
