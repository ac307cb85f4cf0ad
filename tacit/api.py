"""Runs from Python: `tacit.train`, `tacit.open_run`, `tacit.evaluate`. Same settings, checks and run directory as the
commands."""

from __future__ import annotations

import difflib
import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from tacit.config.agents import RULE_AGENT, RULE_AGENT_METHOD, open_endpoint, open_loaded, open_target
from tacit.config.checks import check_new_run, find_differing, is_finished, open_world, prepare
from tacit.config.flags import method_options, methods_with, section_options, train_options
from tacit.config.measuring import PANEL_SETTINGS, EvaluationResult, PanelEvaluation, run_of, with_panel
from tacit.config.recipe import (
    DEFAULT_METHOD,
    METHOD_TABLES,
    Overrides,
    Recipe,
    method_name,
    override,
    read_document,
    run_recipe,
)
from tacit.config.running import run_training
from tacit.config.values import NAMES_ELSEWHERE, to_data
from tacit.core.errors import TacitError, install_command, unknown
from tacit.core.progress import format_stage, pluralize
from tacit.core.protocols import Sampler, SamplingPolicy, check_hooks
from tacit.core.registry import IN_MEMORY, Registry
from tacit.core.trust import trust_names
from tacit.core.types import Task, Trajectory
from tacit.core.world import Environment, Expert
from tacit.evaluation.scores import PanelScore, final_and_peak
from tacit.methods import REGISTRY as METHODS
from tacit.methods.combine import CombinedMethod
from tacit.modules.agent import open_agent
from tacit.rollout.episodes import NO_OBSERVER, RolloutObserver
from tacit.runs.directory import SETTINGS, find_summary, open_checkpoints, read_metrics, read_settings
from tacit.runs.trajectories import list_recordings, read_records, read_trajectories, trajectory_record
from tacit.training.reporting import Callback, PlainReporter, Reporter
from tacit.training.setup import TaskSets
from tacit.worlds import REGISTRY as WORLDS

if TYPE_CHECKING:
    import pandas


# Recorded episodes as rows, or as a pandas table.

EPISODE = ("task", "family", "success", "score", "stop", "condition")  # columns of the episode in every turn's row


def turn_rows(stage: str, step: int, records: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row per turn; signals have their own columns (`signals.progress`)."""
    for episode, record in enumerate(records):
        about = {"stage": stage, "step": step, "episode": episode, **{name: record.get(name) for name in EPISODE}}
        for number, turn in enumerate(record["turns"], start=1):
            own = {name: value for name, value in turn.items() if name != "signals"}
            signals = {f"signals.{name}": value for name, value in turn.get("signals", {}).items()}
            yield {**about, "turn": number, **own, **signals}


def episode_rows(stage: str, step: int, records: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for episode, record in enumerate(records):
        own = {name: value for name, value in record.items() if name not in ("turns", "saw")}
        tokens = sum(turn["tokens"] for turn in record["turns"])
        yield {"stage": stage, "step": step, "episode": episode, **own, "turns": len(record["turns"]), "tokens": tokens}


def table(records: list[dict[str, Any]], rows: bool) -> pandas.DataFrame | list[dict[str, Any]]:
    """A pandas table, or the plain dicts with `rows`."""
    if rows:
        return records
    try:
        import pandas
    except ImportError as error:
        raise TacitError(f"tables need pandas: {install_command('tables')}, or pass rows=True.") from error
    return pandas.DataFrame(records)


# A run directory as an object; everything is read on demand.


def open_run(path: str | Path, *, world: World | None = None, method: Method | None = None) -> OpenRun:
    """Open a run. Pass `world` and `method` objects if they cannot be imported by name."""
    if world is not None:
        name_worlds(world)
    if method is not None:
        name_method(method)
    return OpenRun(Path(path).expanduser())


class OpenRun:
    """A run: its settings, records and policy."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings  # noqa: B018  raises if this is not a run directory

    def __repr__(self) -> str:
        return f"OpenRun({str(self.path)!r}, {'finished' if self.finished else 'unfinished'})"

    def __str__(self) -> str:
        """One line: `runs/mine: success 62.5% [54.0, 70.4] of 128 episodes after rl 20 on countdown/test/128; before:
        untrained 0.0%, after sft 200 41.4%; peak 64.1% after rl 15`."""
        measured = self.summary.get("evaluations")
        if not measured:
            return f"{self.path}: {'nothing was measured' if self.finished else 'not finished'}"
        final, peak = final_and_peak(measured)
        low, high = final["interval"]
        result = f"{final['success']:.1%} [{100 * low:.1f}, {100 * high:.1f}] of {pluralize(final['episodes'], 'episode')}"
        earlier = {e["stage"]: f"{format_stage(e)} {e['success']:.1%}" for e in measured if e["stage"] != final["stage"]}
        before = f"; before: {', '.join(earlier.values())}" if earlier else ""
        best = f"; peak {peak['success']:.1%} {format_stage(peak)}" if peak["success"] > final["success"] else ""
        return f"{self.path}: success {result} {format_stage(final)} on {final['panel']}{before}{best}"

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, as in settings.json."""
        return read_settings(self.path)

    @property
    def summary(self) -> dict[str, Any]:
        """The summary; empty until the run ends or a callback stops it."""
        return find_summary(self.path) or {}

    @property
    def finished(self) -> bool:
        return bool(self.summary) and self.summary.get("stopped") != "callback"

    @property
    def success(self) -> float | None:
        """Final success on the panel; None without a summary."""
        final = self.summary.get("final")
        return final["success"] if final else None

    @property
    def checkpoints(self) -> list[str]:
        """Names, oldest first."""
        return [checkpoint.path.name for checkpoint in open_checkpoints(self.path).all()]

    def metrics(self, stage: str | None = None, rows: bool = False) -> Any:
        """One row per step of `sft`, `rl` or both: a pandas table, or dicts with `rows`."""
        return table([r for r in read_metrics(self.path / "metrics.jsonl") if stage in (None, r["stage"])], rows)

    def turns(self, stage: str = "rl", step: int | None = None, rows: bool = False) -> Any:
        """One row per turn of the episodes of `rl`, or of an evaluation (`eval-untrained`, `eval-sft`, `eval-rl`), of one
        step or all. Fields: docs/reference/trajectories.md."""
        return table([row for n, f in self._files(stage, step) for row in turn_rows(stage, n, read_records(f))], rows)

    def episodes(self, stage: str = "rl", step: int | None = None, rows: bool = False) -> Any:
        """One row per recorded episode; `stage` and `step` as in `turns`."""
        return table([row for n, f in self._files(stage, step) for row in episode_rows(stage, n, read_records(f))], rows)

    def trajectories(self, stage: str = "rl", step: int | None = None) -> list[Trajectory]:
        """The recorded episodes as objects. They have token counts, not tokens."""
        tasks = self._tasks()
        return [trajectory for _, file in self._files(stage, step) for trajectory in read_trajectories(file, tasks)]

    def policy(self, checkpoint: str = "newest", world: str | None = None) -> SamplingPolicy:
        """Load the policy; it can sample, score and be trained further."""
        overrides: Overrides = {("world",): world} if world else {}
        return open_target(str(self.path), overrides, checkpoint).policy

    def evaluate(self, **options: Any) -> Evaluation:
        """`tacit.evaluate` of this run: `run.evaluate(checkpoint="best", tasks=64)`."""

        return evaluate(self.path, **options)

    def resume(self, *, callbacks: Callback | Sequence[Callback] = (), quiet: bool = False, **settings: Any) -> OpenRun:
        """Continue the run. Only `settings` that may change on resuming are accepted, such as `iterations`."""
        stored = read_settings(self.path)
        before = Recipe.from_json(stored)
        resumed = Recipe.from_json(override(stored, parse_settings(settings, method_name(stored))))
        if not is_finished(self.path, before, resumed):
            run_training(prepare(replace(resumed, out=self.path)), True, reporter_for(quiet), check_callbacks(callbacks))
        return self

    def _files(self, stage: str, step: int | None) -> Iterable[tuple[int, Path]]:
        files = list_recordings(self.path, stage)
        if not files:
            recorded = sorted((self.path / "trajectories").glob("*.jsonl.gz"))
            if not recorded:
                raise TacitError(f"{self.path} has recorded no episodes (yet, or its setting `trajectories` is off).")
            stages = {file.name.removesuffix(".jsonl.gz").rpartition("-")[0] for file in recorded}
            raise unknown(f"stage of the run {str(self.path)!r}", stage, stages)
        if step is not None and step not in files:
            raise TacitError(f"{self.path} has no recorded episodes of {stage} {step}; there are {', '.join(map(str, files))}.")
        return [(number, file) for number, file in files.items() if step in (None, number)]

    def _tasks(self) -> list[Task]:
        """All tasks its episodes may belong to."""
        recipe, run_tasks = Recipe.from_json(self.settings), []
        for place in recipe.places:
            tasks = TaskSets.of(open_world(place.world), place.train)
            run_tasks += [*tasks.training, *tasks.panel.tasks, *(task for panel in tasks.further for task in panel.tasks)]
        known: dict[str, str] = {}
        for task in run_tasks:
            if known.setdefault(task.id, task.world) != task.world:
                raise TacitError(
                    f"recordings name tasks by id, and {task.id!r} is a task of {known[task.id]!r} and of {task.world!r}; "
                    "use `turns` or `episodes`, which need no tasks."
                )
        return run_tasks

    @property
    def worlds(self) -> Mapping[str, Environment]:
        """By their names in the settings."""
        return {place.world: open_world(place.world) for place in Recipe.from_json(self.settings).places}


def train(
    world: Worlds | None = None,
    method: Method | Sequence[Method] | None = None,
    model: str | Path | None = None,
    *,
    config: str | Path | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Callback | Sequence[Callback] = (),
    quiet: bool = False,
    **settings: Any,
) -> OpenRun:
    """Train a policy and return its run.

    world, method   names or objects: an `Environment`; a method's settings class or an instance. Several worlds as a list or
                    [(world, share), …]; several methods as a list.
    model           as for `--model`
    config          a settings file or the name of a packaged recipe; arguments override it
    out             the run directory, which must not hold a run yet; with `resume` an existing run continues, so a killed
                    script can simply be started again
    callbacks       functions that receive every `Event`; one that returns True stops the run
    settings        as in `tacit train --help all`: `kl=0.0`, `iterations=20`, `sft={"steps": 200}`, `engine={"device": "cpu"}`
    """
    if isinstance(world, str) and world.endswith((".toml", ".json")):
        raise TacitError(f"{world!r} is a settings file, not a world; write train(config={world!r}).")
    document = read_document(run_recipe(str(config))) if config is not None else {}
    overrides: dict[tuple[str, ...], Any] = {} if world is None else {("world",): name_worlds(world)}
    name = method_name(document)
    if method is not None:
        name, own = name_method(method)
        overrides["method", "name"] = name
        for section in METHOD_TABLES:
            overrides |= {(section, key): value for key, value in own.pop(section, {}).items()}
        overrides |= {("method", key): value for key, value in own.items()}
    overrides |= {(key,): str(value) for key, value in (("model", model), ("out", out)) if value is not None}
    recipe = Recipe.from_json(override(document, {**overrides, **parse_settings(settings, name)}))
    exists = (recipe.out / SETTINGS).exists()
    if exists and not resume:
        raise TacitError(
            f"{recipe.out} already contains a run. Resume it (resume=True, or tacit.open_run({str(recipe.out)!r}).resume()), "
            "or name another `out`."
        )
    if not exists:
        check_new_run(recipe.out)
    prepared = prepare(recipe)
    if exists and is_finished(recipe.out, Recipe.from_json(read_settings(recipe.out)), prepared.recipe):
        return OpenRun(recipe.out)
    run_training(prepared, exists, reporter_for(quiet), check_callbacks(callbacks))
    return OpenRun(recipe.out)


def check_callbacks(callbacks: Callback | Sequence[Callback]) -> tuple[Callback, ...]:
    listeners = tuple(callbacks) if isinstance(callbacks, Sequence) else (callbacks,)
    for callback in listeners:
        if not callable(callback):
            raise TacitError(f"callbacks = {callback!r} must be functions that take an Event.")
    return listeners


def reporter_for(quiet: bool) -> Callable[[], Reporter]:
    return (lambda: PlainReporter(io.StringIO())) if quiet else PlainReporter


# `tacit.evaluate`: an agent on a fixed panel, as `tacit eval` does it.


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation; `str` gives one line."""

    measured: EvaluationResult
    kept: Path | None  # the saved result file

    def __str__(self) -> str:
        return f"success {self.score} on {self.score.panel}"

    @property
    def score(self) -> PanelScore:
        return self.measured.score

    @property
    def success(self) -> float:
        return self.score.success

    @property
    def result(self) -> dict[str, Any]:
        """All results, as printed by `tacit eval --json`."""
        return self.measured.result

    @property
    def trajectories(self) -> list[Trajectory]:
        return self.measured.played

    def turns(self, rows: bool = False) -> Any:
        """One row per turn: a pandas table, or with `rows` plain dicts."""
        return table(list(turn_rows("evaluation", 0, self._records)), rows)

    def episodes(self, rows: bool = False) -> Any:
        return table(list(episode_rows("evaluation", 0, self._records)), rows)

    @cached_property
    def _records(self) -> list[dict[str, Any]]:
        return [trajectory_record(trajectory) for trajectory in self.trajectories]


def evaluate(
    who: str | Path | OpenRun | SamplingPolicy | Callable[[Task], Expert],
    world: World | None = None,
    method: Method | None = None,
    *,
    checkpoint: str = "",
    like: OpenRun | str | Path | None = None,
    panel: str = "",
    endpoint: str | None = None,
    key_variable: str = "OPENAI_API_KEY",
    concurrency: int = 16,
    timeout_s: float = 120.0,
    ks: Sequence[int] = (),
    batch: int = 256,
    out: str | Path | None = None,
    fresh: bool = False,
    progress: Callable[[int], None] | None = None,
    **settings: Any,
) -> Evaluation:
    """Evaluate an agent on a panel.

    who         a run (object, directory, or checkpoint), skill modules, a model, `expert`, `reader`; a policy; a class with
                `act`, instantiated for each task; or the name of a model at `endpoint`
    like        the run whose world, method and settings to use for a loaded policy
    world       name or object; a run has its own
    panel       a name of `tacit list panels` or a file of tasks; otherwise `split`, `tasks` and `families` choose it
    out, fresh  where to save episodes and result; whether to replay finished episodes
    progress    called with the number of finished episodes
    settings    of panel and sampling (`split`, `tasks`, `repeats`, `temperature`, …), and all of `tacit train`
    """
    if isinstance(who, Sampler):
        if checkpoint or endpoint:
            raise TacitError("a loaded policy has its weights already; remove `checkpoint` and `endpoint`.")
        run = str(like.path if isinstance(like, OpenRun) else like or "")
        overrides = with_panel(_collect_overrides(run, world, method, settings), panel, run)
        target = open_loaded(check_hooks(cast(SamplingPolicy, who)), overrides, run)
    else:
        if isinstance(who, Expert) and not callable(who):
            raise TacitError(f"{who!r} is an instance; pass the class {type(who).__name__}, which is created for each task.")
        if like is not None:
            raise TacitError(f"like = {like}: only a loaded policy can use the settings of another run.")
        actor = cast(Callable[[Task], Expert], who) if callable(who) else None
        name = getattr(who, "__name__", "actor") if actor else str(who.path if isinstance(who, OpenRun) else who)
        overrides = with_panel(_collect_overrides(name, world, method, settings), panel, "" if endpoint else name)
        if endpoint is None:
            target = open_agent(name, overrides, checkpoint, actor)
        elif checkpoint:
            raise TacitError(f"checkpoint = {checkpoint!r} is for runs; remove it for an endpoint.")
        else:
            target = open_endpoint(overrides, endpoint, name, key_variable, concurrency, timeout_s)
    evaluation = PanelEvaluation(target, tuple(ks), Path(out) if out is not None else None, fresh, overrides)
    measured = evaluation.play(batch, _ProgressObserver(progress) if progress else NO_OBSERVER)
    return Evaluation(measured, evaluation.keep(measured))


class _ProgressObserver(RolloutObserver):
    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress, self._finished = progress, 0

    def on_episode_end(self, index: int, trajectory: Trajectory) -> None:
        self._finished += 1
        self._progress(self._finished)


def _collect_overrides(name: str, world: World | None, method: Method | None, settings: dict[str, Any]) -> Overrides:
    own: dict[str, Any] = {}
    run = run_of(name) if name else None
    used = RULE_AGENT_METHOD if name == RULE_AGENT else method_name(read_settings(run)) if run else DEFAULT_METHOD
    overrides: dict[tuple[str, ...], Any] = {}
    if method is not None:
        used, own = name_method(method)
        own.pop("schedule", None)
        overrides |= {("prompt", key): value for key, value in own.pop("prompt", {}).items()}
        overrides["method", "name"] = used
    picked = {key: settings.pop(key) for key in PANEL_SETTINGS if key in settings}
    overrides |= {("method", key): value for key, value in own.items()} | parse_settings(settings, used)
    overrides |= {("evaluation", key): value for key, value in picked.items()}
    if world is not None:
        overrides["world",] = name_worlds(world)
    return overrides


SECTIONS = (*METHOD_TABLES, *section_options())
NAMED = ("world", "method", "model", "out", "config", "resume", "callbacks", "quiet")  # arguments of `tacit.train` itself
WHOLE = ("worlds", "policies")  # tables of named tables


def parse_settings(settings: Mapping[str, Any], method: str) -> dict[tuple[str, ...], Any]:
    """Settings by path in the document. Unknown keywords raise."""
    trust_names(settings)
    options = (*method_options(method), *train_options())
    places = {option.place[-1]: option.place for option in options if len(option.place) < 3}
    inner = {option.place[1] for option in options if len(option.place) == 3}
    overrides: dict[tuple[str, ...], Any] = {}
    for key, value in settings.items():
        if key in WHOLE:
            overrides[key,] = _table(key, value)
        elif key == "engine" and isinstance(value, str):
            overrides["engine", "name"] = value
        elif key in SECTIONS:
            overrides.update({(key, name): setting for name, setting in _table(key, value).items()})
        elif key in inner:
            overrides.update({("method", key, name): setting for name, setting in _table(key, value).items()})
        elif key in places:
            overrides[places[key]] = value
        else:
            raise _unknown(key, value, method, [*places, *inner, *SECTIONS, *WHOLE, *NAMED])
    return overrides


def _table(key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TacitError(f"{key} = {value!r} must be a dict of settings, such as {key}={{…}}.")
    return value


def _unknown(key: str, value: Any, method: str, known: list[str]) -> TacitError:
    owners = methods_with(f"--{key.replace('_', '-')}")
    near = (
        [NAMES_ELSEWHERE[key]] if NAMES_ELSEWHERE.get(key) in known else difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    )
    options = [option for options in section_options().values() for option in options]
    inside = [o.place for o in options if key in (o.place[-1], "_".join(o.place))]
    if owners:
        hint = f"It belongs to {', '.join(owners)}: method={owners[0]!r}."
    elif inside:
        hint = f'Did you mean {inside[0][0]}={{"{inside[0][-1]}": {value!r}}}?'
    else:
        hint = f"Did you mean {near[0]!r}?" if near else "`tacit train --help all` lists the settings."
    return TacitError(f"unknown setting {key!r} of a run with method {method!r}. {hint}")


# Names for objects. Saved settings hold names, so a world or method passed as an object gets a name that finds it again:
#
#     built in, or of an installed package       alfworld
#     in a module of a package                   my_package.world:GUESS
#     in a file, e.g. the running script         /home/me/guess.py:GUESS
#     elsewhere (a notebook, a function)         <python>:guess     only a program that has the object can open the run
#
# In this process the name refers to the object itself.

World = str | Environment
Worlds = World | Sequence[World | tuple[World, float]] | Mapping[str, float]  # one world, several, or several with shares
Method = str | type[Any] | Any  # a name, a settings class, or an instance of one


def name_worlds(worlds: Worlds) -> str:
    """`alfworld`, or `alfworld=0.75,countdown=0.25`."""
    if isinstance(worlds, str | Environment):
        return _name_world(worlds)
    if isinstance(worlds, Mapping):
        worlds = list(worlds.items())
    if isinstance(worlds, Sequence):
        shared = [part if isinstance(part, tuple) else (part, None) for part in worlds]
        return ",".join(_name_world(world) + ("" if share is None else f"={to_data(share)!r}") for world, share in shared)
    if hasattr(worlds, "reset") and hasattr(worlds, "step"):
        make = getattr(worlds, "__name__", type(worlds).__name__)
        raise TacitError(
            f"world = {worlds!r} is the simulator of one episode; pass an Environment with make={make}, its tasks and its "
            "wording (docs/tutorials/own_world.md)."
        )
    raise TacitError(f"world = {worlds!r} must be a name, an Environment, several of them, or several with their shares.")


def name_method(method: Method | Sequence[Method]) -> tuple[str, dict[str, Any]]:
    """(name, settings that differ from the defaults). A name or a class has no such settings."""
    if isinstance(method, str):
        trust_names(method)
        return method, {}
    if isinstance(method, Sequence):
        named = [name_method(part) for part in method]
        return "+".join(name for name, _ in named), {key: value for _, own in named for key, value in own.items()}
    cls = method if isinstance(method, type) else type(method)
    METHODS.check(cls)
    own = {} if method is cls else find_differing(to_data(method), to_data(cls()))
    if issubclass(cls, CombinedMethod):
        return "+".join(cls.member_classes), own
    return _name_object(METHODS, cls, cls.__name__), own


def _name_world(world: World) -> str:
    if isinstance(world, str):
        trust_names(world)
        return world
    return _name_object(WORLDS, world, getattr(world, "name", ""))


def _name_object(registry: Registry, value: Any, plain: str) -> str:
    own = getattr(value, "name", plain)
    if own in registry.names and registry.get(own) is value:
        return own
    name = next(_places(value), None) or f"{IN_MEMORY}:{plain}"
    registry.register(name, value)
    trust_names(name)  # child processes import it
    return name


def _places(target: Any) -> Iterator[str]:
    """Where the object can be imported from: its own module, then others, the running script last."""
    home = target.__module__ if isinstance(target, type) else getattr(getattr(target, "make", None), "__module__", "")
    others = sorted(sys.modules.copy().items(), key=lambda item: item[0] == "__main__")
    for module in (sys.modules.get(home), *(module for _, module in others)):
        if not isinstance(module, ModuleType) or module.__name__.startswith("tacit.api"):
            continue
        for attribute, value in list(vars(module).items()):
            if value is target and (place := _place_of(module)):
                yield f"{place}:{attribute}"


def _place_of(module: ModuleType) -> str:
    """`package.module`, or the absolute file of a module outside a package."""
    if module.__name__ != "__main__" and module.__package__:
        return module.__name__
    file = getattr(module, "__file__", None)
    return str(Path(file).resolve()) if file and file.endswith(".py") else ""
