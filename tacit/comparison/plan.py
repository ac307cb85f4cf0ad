"""The runs of a comparison file: methods × worlds × seeds, all checked before the first starts. Later tables override earlier
ones: common, world, method, method in the world. docs/guides/compare_methods.md describes the file."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit.config.checks import AGENTS, EXPERT, RULE_AGENT, open_world, prepare
from tacit.config.flags import method_options
from tacit.config.recipe import DEFAULT_METHOD, Document, Recipe, read_text
from tacit.config.values import flatten
from tacit.core.errors import TacitError, unknown
from tacit.training.setup import TaskSets

TOP = ("name", "description", "seeds", "thresholds", "outcome", "metrics", "unequal", "common", "worlds", "methods")
SECTIONS = ("schedule", "sft", "engine", "policies")  # sections that a method may override; the others must be equal
NOT_OF_METHODS = ("evaluation", "model", "world", "seed", "out", "tiny")
BY_METHOD = ("method", "prompt", "schedule")  # sections whose defaults depend on the method
THRESHOLDS = (0.25, 0.5, 0.75)
START = "start"
OPTIONAL = "optional"  # marks a world that is skipped with a note if its data are missing
PLAYS = "plays"  # marks a row that learns nothing: `plays = "reader"` or `"expert"`
AGENT_METHOD = {RULE_AGENT: "constant_context", EXPERT: DEFAULT_METHOD}  # method whose prompt an untrained agent reads
NO_IMITATION = {"steps": 0, "epochs": 0}
NOT_TRAINED = {"sft": NO_IMITATION, "schedule": {"iterations": 0}, "evaluation": {"untrained": True}}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*")

# Parsing and checking the parts of a comparison file.


def read_list(document: Document, key: str, default: Sequence[Any], is_valid: Callable[[Any], bool], must_be: str) -> list[Any]:
    value = document.get(key, default)
    if not isinstance(value, list | tuple) or not all(map(is_valid, value)):
        raise TacitError(f"{key} must be {must_be}, not {value!r}.")
    return list(value)


def read_outcome(text: str) -> int:
    """Number of last evaluations whose mean is a run's outcome: `last` -> 1, `mean:3` -> 3."""
    match = re.fullmatch(r"last|mean:([1-9]\d*)", text)
    if not match:
        raise TacitError(f"outcome = {text!r} must be last, or mean:N for the mean of the last N evaluations, such as mean:3.")
    return int(match[1] or 1)


def read_table(value: Any, where: str) -> Document:
    """A table with underscores in its keys, recursively."""
    if not isinstance(value, Mapping):
        raise TacitError(f"[{where}] must be a table of settings, not {value!r}.")
    keep = where.endswith(".methods")  # names, not settings
    return {
        key if keep else key.replace("-", "_"): read_table(inner, f"{where}.{key}") if isinstance(inner, Mapping) else inner
        for key, inner in value.items()
    }


def read_tables(document: Document, kind: str) -> dict[str, Document]:
    tables = document.get(kind)
    if not isinstance(tables, Mapping) or not tables:
        raise TacitError(f"the file has no {kind}: add at least one table [{kind}.NAME].")
    for name in tables:
        check_name(name, kind.removesuffix("s"))
    return {name: read_table(table, f"{kind}.{name}") for name, table in tables.items()}


def check_name(name: str, kind: str) -> None:
    if not NAME.fullmatch(name):
        raise TacitError(f"{kind} name {name!r} becomes a directory: use letters, digits and . _ + = - only.")


def read_shared(value: Any, where: str) -> Document:
    document = read_table(value, where)
    for key in ("seed", "out"):
        if key in document:
            raise TacitError(f"[{where}] sets {key!r}, which the comparison sets for every run; remove it.")
    if "method" in document:
        document["method"] = read_table(document["method"], f"{where}.method")
    if prompt := document.pop("prompt", {}):
        document["method"] = {**prompt, **document.get("method", {})}
    return document


def fold_prompt(table: Document) -> Document:
    """A method's table with its prompt settings moved to the top level; `_complete` moves them back."""
    return {**table.get("prompt", {}), **{key: value for key, value in table.items() if key != "prompt"}}


def merge(*documents: Mapping[str, Any]) -> Document:
    """Merge tables; later ones win."""
    merged: Document = {}
    for document in documents:
        for key, value in document.items():
            before = merged.get(key)
            merged[key] = merge(before, value) if isinstance(before, Mapping) and isinstance(value, Mapping) else value
    return merged


def method_settings(method: str) -> dict[str, str]:
    """Each setting of a method and of its prompt -> its table, `method` or `prompt`."""
    return {option.place[1]: option.place[0] for option in method_options(method) if option.place[0] in ("method", "prompt")}


def shared_settings(document: Document, method: str) -> Document:
    """The settings of [common.method] and [worlds.….method] that this method has."""
    return {key: value for key, value in document.get("method", {}).items() if key in method_settings(method)}


# Rows that are not trained, and worlds whose data may be missing.


def agent_document(method: str, shared: Document, table: Document) -> Document:
    """The document of a row that does not learn, from its table and the world's shared settings."""
    plays = table[PLAYS]
    if plays not in AGENTS:
        raise unknown(f"agent of method {method!r}", str(plays), AGENTS)
    if section := next((key for key, value in table.items() if isinstance(value, Mapping)), ""):
        raise TacitError(f"method {method!r} sets {section!r}, but plays = {plays!r} is not trained; remove it.")
    name = table.get("name", AGENT_METHOD[plays])
    settings = shared_settings(shared, name) | {key: value for key, value in table.items() if key != PLAYS} | {"name": name}
    inherited = {key: value for key, value in shared.items() if key != "tiny"}
    return merge(inherited, {"method": None}, NOT_TRAINED, {"model": plays, "method": settings, "seed": 0})


def find_missing_data(shared: Document) -> str:
    """Why a world cannot be played on this machine; empty if it can."""
    recipe = Recipe.from_json({**{k: v for k, v in shared.items() if k not in ("start", "methods")}, "method": DEFAULT_METHOD})
    world, train = open_world(recipe.world), recipe.train
    try:
        TaskSets.of(world, replace(train, tasks=1, evaluation=replace(train.evaluation, tasks=1)))
    except TacitError as error:
        return str(error)
    return ""


# Fairness. A column (method) sets its own settings in `[methods.X]` or `[worlds.W.methods.X]`. If columns that do not set a
# setting differ in it, the methods' defaults differ, which may explain the result. This is an error unless the file lists the
# setting: `unequal = ["invalid_penalty"]`.


@dataclass(frozen=True)
class Difference:
    """A setting in which columns of a world differ."""

    setting: str  # as a column would write it: `invalid_penalty`, `schedule.lr`
    values: Mapping[str, Any]  # by column; columns without this setting are absent
    named_by: tuple[str, ...]  # the columns that name it
    unequal: bool  # columns that do not name it differ, by their methods' defaults

    def __str__(self) -> str:
        """`buffer: 256 in reuserl; 0 in reuserl-batch`"""
        columns: dict[str, list[str]] = {}
        for column, value in self.values.items():
            text = " + ".join(map(str, value or ())) or "none" if value is None or isinstance(value, list) else str(value)
            columns.setdefault(text.lower() if isinstance(value, bool) else text, []).append(column)
        parts = "; ".join(f"{value} in {', '.join(names)}" for value, names in columns.items())
        return f"{self.setting}: {parts}" + (" (by the methods' defaults)" if self.unequal else "")


def find_differences(documents: Mapping[str, Document], tables: Mapping[str, Iterable[Document]]) -> list[Difference]:
    """Differences between the columns of one world, given their complete documents and their own tables."""
    columns = {}
    for column, document in documents.items():
        if document["model"] in AGENTS:  # an agent that is not trained: only its prompt matters
            document = {"prompt": document["prompt"]} if document["model"] == RULE_AGENT else {}
        settings = flatten({section: document.get(section, {}) for section in ("method", "prompt", *SECTIONS)})
        columns[column] = {".".join(key): value for key, value in settings.items() if key != ("method", "name")}
    named_settings = {column: {".".join(key) for table in pair for key in flatten(table)} for column, pair in tables.items()}
    differences = []
    for key in dict.fromkeys(key for settings in columns.values() for key in settings):
        values = {column: settings[key] for column, settings in columns.items() if key in settings}
        if any(value != next(iter(values.values())) for value in values.values()):
            section, _, name = key.partition(".")
            setting = name if section in ("method", "prompt") else key
            unnamed = [value for column, value in values.items() if setting not in named_settings[column]]
            unequal = section in BY_METHOD and any(value != unnamed[0] for value in unnamed)
            differences.append(Difference(setting, values, tuple(c for c in values if setting in named_settings[c]), unequal))
    return differences


def check_fair(differences: Mapping[str, Sequence[Difference]], allowed: Sequence[str]) -> list[str]:
    """Raise if an unnamed difference is not listed as `unequal`; else return a note for each."""
    unequal = [(world, d) for world, listed in differences.items() for d in listed if d.unequal]
    refused = {d.setting: f"In {world}, {d}" for world, d in reversed(unequal) if d.setting not in allowed}
    if refused:
        settings = ", ".join(f'"{setting}"' for setting in reversed(refused))
        raise TacitError(
            f"methods differ in settings that no table names. {'. '.join(reversed(refused.values()))}. Set one value for all "
            f"in [common.method], [common.prompt] or [common.schedule], name the setting in the [methods.…] table of the "
            f"method that needs it, or accept it with `unequal = [{settings}]`, which the table will show."
        )
    for setting in allowed:
        if setting not in {d.setting for _, d in unequal}:
            raise TacitError(f"unequal names {setting!r}, but no method differs in it by its defaults; remove it.")
    return [f"unequal in {world}: {d}." for world, d in unequal]


@dataclass(frozen=True)
class PlannedRun:
    world: str
    method: str  # name in the file, or `start`
    seed: int
    document: Document  # complete, without `out`; `with_start` fills in `model` for a run that continues a start
    starts_from: str = ""  # checkpoint of the start, relative to the start's directory; empty without a start

    @property
    def learns(self) -> bool:
        return self.document["model"] not in AGENTS

    @property
    def subdirectory(self) -> Path:
        """run directory below the comparison"""
        parts = (self.world, START) if self.method == START else (self.world, self.method, str(self.seed))
        return Path("runs", *parts)

    @property
    def start_checkpoint(self) -> Path:
        """its start's checkpoint below the comparison"""
        return Path("runs", self.world, START, self.starts_from)

    @property
    def label(self) -> str:
        return "/".join(self.subdirectory.parts[1:])

    @property
    def iterations(self) -> int:
        return int(self.document["schedule"]["iterations"])

    @property
    def episodes(self) -> int:
        schedule = self.document["schedule"]
        return schedule["iterations"] * schedule["groups"] * schedule["group_size"]

    def with_start(self, directory: Path) -> Document:
        """The document to train with, for a comparison in `directory`."""
        if not self.starts_from:
            return dict(self.document)
        model = (directory / self.start_checkpoint).resolve()
        # The checkpoint brings its own sizes and tokenizer.
        return {key: value for key, value in self.document.items() if key != "tiny"} | {"model": str(model)}


@dataclass(frozen=True)
class Plan:
    name: str
    seeds: tuple[int, ...]
    worlds: tuple[str, ...]
    methods: tuple[str, ...]
    starts: tuple[PlannedRun, ...]
    cells: tuple[PlannedRun, ...]  # ordered by seed, world, method: a partial comparison has all methods on the same seeds
    thresholds: tuple[float, ...] = THRESHOLDS
    description: str = ""
    notes: tuple[str, ...] = field(default=())
    differences: Mapping[str, Sequence[Difference]] = field(default_factory=dict)  # by world
    metrics: tuple[str, ...] = ()  # RL metrics to plot
    outcome: int = 1  # methods are compared by the mean success of this many last evaluations of a run

    def start_of(self, cell: PlannedRun) -> PlannedRun | None:
        return next((s for s in self.starts if s.world == cell.world), None) if cell.starts_from else None

    def choose(self, only: str) -> list[PlannedRun]:
        """The cells that match one of the comma-separated names, or all cells if `only` is empty; * is a wildcard."""
        names = [name.strip() for name in only.split(",") if name.strip()]
        aliases = [{c.world, c.method, f"{c.world}/{c.method}", f"{c.method}/{c.seed}", c.label} for c in self.cells]
        for name in names:
            if not any(fnmatch.filter(cell_names, name) for cell_names in aliases):
                raise unknown("world, method or run of this comparison", name, [*self.worlds, *self.methods])
        matches = [not names or any(fnmatch.filter(cell_names, name) for name in names) for cell_names in aliases]
        return [cell for cell, matched in zip(self.cells, matches, strict=True) if matched]


def make_plan(document: Document, default_name: str = "comparison") -> Plan:
    """All runs of the file. Each world × method is completed and checked."""
    for key in document:
        if key not in TOP:
            if key in ("world", "model", "schedule", "sft"):
                remedy = "A comparison has its settings in [common]; a file for one run is used as `tacit train --config`"
                raise TacitError(f"{unknown('key', key, TOP)} {remedy}.")
            raise unknown("key", key, TOP)
    seeds = document.get("seeds")
    if not isinstance(seeds, list) or not seeds or any(not isinstance(s, int) or isinstance(s, bool) or s < 0 for s in seeds):
        raise TacitError(f"seeds must be a list of whole numbers such as [0, 1, 2], not {seeds!r}: each is one run per method.")
    if len(set(seeds)) < len(seeds):
        raise TacitError(f"seeds = {seeds} names a seed twice; remove the repetition.")
    worlds, methods = read_tables(document, "worlds"), read_tables(document, "methods")
    if START in methods:
        raise TacitError(f"a method cannot be named {START!r}: that is the directory of a world's shared start; rename it.")
    common = read_shared(document.get("common", {}), "common")
    starts: dict[str, PlannedRun] = {}
    resolved, differing, notes = {}, {}, []
    for world, settings in list(worlds.items()):
        settings = dict(settings)
        if settings.pop(OPTIONAL, False) and (missing := find_missing_data(merge(common, {"world": world}, settings))):
            notes.append(f"{world} is skipped, its data is missing: {missing}")
            del worlds[world]
            continue
        start_table = settings.pop(START, None)
        own_methods = {m: read_table(t, f"worlds.{world}.methods.{m}") for m, t in settings.pop("methods", {}).items()}
        for name in own_methods:
            if name not in methods:
                raise unknown(f"method in [worlds.{world}.methods]", name, methods)
        shared = merge(common, {"world": world}, read_shared(settings, f"worlds.{world}"))
        if start_table is not None:
            starts[world] = _start(world, shared, start_table)
        tables = {method: [fold_prompt(table), fold_prompt(own_methods.get(method, {}))] for method, table in methods.items()}
        for method, method_tables in tables.items():
            cell = _cell_document(method, shared, method_tables, f"{world}/{method}", starts.get(world))
            resolved[world, method] = _complete(cell, f"{world}/{method}")
        world_documents = {method: resolved[world, method] for method in methods}
        differing[world] = find_differences(world_documents, tables)
        # A shared setting is ignored for methods without it, but it is an error if no method has it.
        known = set().union(*(method_settings(cell["method"]["name"]) for cell in world_documents.values()))
        for key in shared.get("method", {}):
            if key == "name":
                raise TacitError("[common.method] and [worlds.….method] hold settings; name methods under [methods].")
            if key not in known:
                raise unknown(f"setting of the methods in world {world!r}", key, known)
    cells = []
    for seed, (world, method) in ((seed, key) for seed in seeds for key in resolved):
        run = PlannedRun(world, method, seed, {**resolved[world, method], "seed": seed})
        if run.learns and (start := starts.get(world)):
            imitated = Recipe.from_json(start.document).train.sft.steps
            stage, step = ("rl", start.iterations) if start.iterations else ("sft", imitated)
            run = replace(run, starts_from=f"checkpoints/{stage}-{step:06d}/policy")
        cells.append(run)
    expected = "a list of success shares above 0 and at most 1"
    thresholds = read_list(document, "thresholds", THRESHOLDS, lambda v: isinstance(v, int | float) and 0 < v <= 1, expected)
    name = read_text(document, "name", default_name)
    check_name(name, "comparison")
    expected = 'a list of settings such as ["invalid_penalty", "schedule.lr"]'
    allowed = read_list(document, "unequal", [], lambda v: isinstance(v, str), expected)
    unequal = check_fair(differing, [setting.replace("-", "_") for setting in allowed])
    for world in worlds:
        episodes = {cell.method: cell.episodes for cell in cells if cell.world == world and cell.learns}
        if len(set(episodes.values())) > 1:
            counts = ", ".join(f"{method} trains on {count} episodes" for method, count in episodes.items())
            notes.append(f"budgets differ in {world}: {counts}.")
    metrics = read_list(document, "metrics", [], lambda v: isinstance(v, str) and bool(v), "a list of names")
    return Plan(
        name, tuple(seeds), tuple(worlds), tuple(methods), tuple(starts.values()), tuple(cells),
        tuple(sorted(map(float, thresholds))), read_text(document, "description", ""), (*notes, *unequal), differing,
        tuple(dict.fromkeys(metrics)),
        read_outcome(read_text(document, "outcome", "last")),
    )  # fmt: skip


def _start(world: str, shared: Document, table: Any) -> PlannedRun:
    """The imitation run that the world's cells start from."""
    start = read_table(table, f"worlds.{world}.{START}")
    seed = start.pop("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise TacitError(f"worlds.{world}.{START}.seed must be a whole number, not {seed!r}.")
    method = start.pop("method", {})
    method = {"name": method} if isinstance(method, str) else read_table(method, f"worlds.{world}.{START}.method")
    method = {**start.pop("prompt", {}), **method}
    name = method.get("name", "grpo")
    settings = {**shared_settings(shared, name), "name": name, **method}
    document = merge(shared, {"method": None}, start, {"seed": seed, "method": settings})
    document["schedule"] = {**document.get("schedule", {}), "iterations": start.get("schedule", {}).get("iterations", 0)}
    complete = _complete(document, f"{world}/{START}")
    if complete["engine"]["lora_rank"]:
        raise TacitError(
            f"[worlds.{world}.{START}] trains LoRA adapters, and runs cannot start from an adapter; set engine.lora_rank = 0 "
            "there (the methods may still train adapters), or give the runs their own [sft]."
        )
    if complete["sft"]["epochs"]:
        raise TacitError(
            f"[worlds.{world}.{START}] has sft.epochs = {complete['sft']['epochs']:g}; use sft.steps there: the other runs "
            "find the checkpoint by its step."
        )
    return PlannedRun(world, START, seed, complete)


def _cell_document(method: str, shared: Document, tables: Iterable[Document], where: str, start: PlannedRun | None) -> Document:
    method_table: Document = {"name": method}
    sections: Document = {}
    tables = list(tables)
    if any(PLAYS in table for table in tables):
        return agent_document(method, shared, merge(*tables))
    name = merge(method_table, *tables)["name"]
    settings = method_settings(name) if isinstance(name, str) else {}
    for table in tables:
        for key, value in table.items():
            if key in SECTIONS:
                sections = merge(sections, {key: read_table(value, f"{where}: {key}")})
            elif (isinstance(value, Mapping) and key not in settings) or key in NOT_OF_METHODS:
                raise TacitError(
                    f"method {method!r} sets {key!r}, which all methods of a world share. A method may set its own settings "
                    f"and {', '.join(SECTIONS)}; put {key!r} in [common] or in the world."
                )
            else:
                method_table = merge(method_table, {key: value})
    if not isinstance(method_table["name"], str):
        raise TacitError(f"the name of method {method!r} must be text, not {method_table['name']!r}.")
    inherited = shared_settings(shared, method_table["name"])
    if start is not None:
        # The run keeps the prompt of its start, and does not repeat the start's imitation and evaluation.
        inherited = {**shared_settings({"method": start.document["prompt"]}, method_table["name"]), **inherited}
        untrained = shared.get("evaluation", {}).get("untrained", False)
        shared = merge(shared, {"sft": NO_IMITATION, "evaluation": {"untrained": untrained}})
    return merge(shared, {"method": None}, sections, {"method": merge(inherited, method_table), "seed": 0})


def _complete(document: Document, where: str) -> Document:
    """Complete and check a document as `tacit train` would."""
    method, prompt = dict(document["method"]), dict(document.get("prompt") or {})
    if isinstance(method.get("name"), str):
        for key in [key for key, table in method_settings(method["name"]).items() if table == "prompt" and key in method]:
            prompt[key] = method.pop(key)
    document = {**document, "method": method, **({"prompt": prompt} if prompt else {})}
    try:
        recipe = prepare(Recipe.from_json(document)).recipe
    except TacitError as error:
        raise TacitError(f"{where}: {error}") from error
    if recipe.train.wandb:
        raise TacitError("wandb would merge all runs of a seed into one; remove it from the comparison.")
    return {key: value for key, value in recipe.to_json().items() if key != "out"}
