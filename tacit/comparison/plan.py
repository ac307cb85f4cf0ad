"""From one file to the runs it stands for: methods × worlds × seeds, all of them checked before the first begins.

    name = "step-credit"
    seeds = [0, 1, 2]
    thresholds = [0.5, 0.8]              success shares whose first iteration the table tells
    metrics = ["reward"]                 what else is drawn over the iterations, by its name in metrics.jsonl
    unequal = ["invalid_penalty"]        settings in which columns may differ by their methods' defaults alone (fairness.py)

    [common]                             a document as for `tacit train --config`: what all runs share
    model = "tiny"
    method.history = 0                   settings of methods, for each that has them
    schedule = { iterations = 40, groups = 16 }

    [worlds.household]                   what differs in this world; the name is the world's unless `world = …` says otherwise
    world = "alfworld"
    [worlds.household.start]             optional: one imitation run, whose weights every run of this world starts from
    sft.steps = 300
    [worlds.household.methods.bipace]    optional: settings of one method in this world

    [methods.grpo]                       the first is what the others are compared with
    [methods.bipace-ngram]                plain values are settings of the method, tables are sections of the document
    name = "bipace"                      the method's name, where it is not the one in the heading
    embedder = "ngram"
    schedule.lr = 1e-4
    [methods.reader-paper]               a row that learns nothing and is measured as the others are (unlearned.py)
    plays = "reader"
    block = "paper"

    [grid]                               optional: final success once more as rows × columns of methods (grid.py)

What is said more closely wins: common, then world, then method, then the method in the world.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit.assembly.checks import AGENTS, prepare
from tacit.assembly.recipe import Document, Recipe
from tacit.comparison.fairness import Difference, check_fair, differences, read_unequal
from tacit.comparison.fields import (
    check_known,
    check_name,
    check_shared_settings,
    having,
    merge,
    read_names,
    read_seeds,
    read_shared,
    read_table,
    read_tables,
    read_text,
    read_thresholds,
)
from tacit.comparison.grid import Grid, read_grid
from tacit.comparison.unlearned import CONTEXT, PLAYS, compared, missing_here, played_document
from tacit.core.errors import TacitError, unknown

TOP = ("name", "description", "seeds", "thresholds", "metrics", "unequal", "common", "worlds", "methods", "grid")
SECTIONS = ("schedule", "sft", "engine", "policies")
"""sections of a document that a method may have its own of; the rest must be alike or nothing is compared"""
THRESHOLDS = (0.25, 0.5, 0.75)
START = "start"
OPTIONAL = "optional"
"""says of a world that it is left out, with a note, where its tasks are not on this machine"""


@dataclass(frozen=True)
class Planned:
    """One run to be done."""

    world: str
    method: str
    """the name in the file, or `start`"""
    seed: int
    document: Document
    """complete, without `out`; where it starts from a shared start, `model` is filled in by `with_start`"""
    starts_from: str = ""
    """the start's checkpoint, relative to the start's run directory; empty where the run starts from its own model"""

    @property
    def learns(self) -> bool:
        return self.document["model"] not in AGENTS

    @property
    def place(self) -> Path:
        """of the run directory, in the comparison's"""
        parts = (self.world, START) if self.method == START else (self.world, self.method, str(self.seed))
        return Path("runs", *parts)

    @property
    def start_place(self) -> Path:
        """of the checkpoint it starts from, in the comparison's directory"""
        return Path("runs", self.world, START, self.starts_from)

    @property
    def label(self) -> str:
        return "/".join(self.place.parts[1:])

    @property
    def iterations(self) -> int:
        return int(self.document["schedule"]["iterations"])

    @property
    def episodes(self) -> int:
        """of practice"""
        schedule = self.document["schedule"]
        return schedule["iterations"] * schedule["groups"] * schedule["group_size"]

    def with_start(self, directory: Path) -> Document:
        """The document to train with, for a comparison that lies in `directory`."""
        if not self.starts_from:
            return dict(self.document)
        model = (directory / self.start_place).resolve()
        # Sizes belong to a model made from scratch; the checkpoint brings its own, and its tokenizer.
        return {key: value for key, value in self.document.items() if key != "tiny"} | {"model": str(model)}


@dataclass(frozen=True)
class Plan:
    name: str
    seeds: tuple[int, ...]
    worlds: tuple[str, ...]
    methods: tuple[str, ...]
    starts: tuple[Planned, ...]
    cells: tuple[Planned, ...]
    """in the order seed, world, method: cut short, all methods have been seen on the same seeds"""
    thresholds: tuple[float, ...] = THRESHOLDS
    description: str = ""
    notes: tuple[str, ...] = field(default=())
    differences: Mapping[str, Sequence[Difference]] = field(default_factory=dict)
    """by world: settings that its columns do not share"""
    grid: Grid | None = None
    metrics: tuple[str, ...] = ()
    """of practice, by name: drawn beside success"""

    @property
    def baseline(self) -> str:
        return self.methods[0]

    def start_of(self, cell: Planned) -> Planned | None:
        return next((s for s in self.starts if s.world == cell.world), None) if cell.starts_from else None

    def choose(self, only: str) -> list[Planned]:
        """The cells that are meant: all, or those with any of the names, in which * stands for anything."""
        names = [name.strip() for name in only.split(",") if name.strip()]
        meant = [{c.world, c.method, f"{c.world}/{c.method}", f"{c.method}/{c.seed}", c.label} for c in self.cells]
        for name in names:
            if not any(fnmatch.filter(own, name) for own in meant):
                raise unknown("world, method or run of this comparison", name, [*self.worlds, *self.methods])
        called = [not names or any(fnmatch.filter(own, name) for name in names) for own in meant]
        return [cell for cell, wanted in zip(self.cells, called, strict=True) if wanted]


def make_plan(document: Document, default_name: str = "comparison") -> Plan:
    """Everything the file stands for. Each world × method is made complete, so that what cannot work is refused here."""
    check_known(document, TOP, "the file")
    seeds = read_seeds(document.get("seeds"))
    worlds, methods = read_tables(document, "worlds"), read_tables(document, "methods")
    if START in methods:
        raise TacitError(f"a method cannot be called {START!r}: that is where a world's shared start lies.")
    common = read_shared(document.get("common", {}), "common")
    starts, resolved, differing, absent = [], {}, {}, []
    for world, own in list(worlds.items()):
        own = dict(own)
        if own.pop(OPTIONAL, False) and (missing := missing_here(merge(common, {"world": world}, own))):
            absent.append(f"{world} is left out, as its tasks are not here: {missing}")
            del worlds[world]
            continue
        begin = own.pop(START, None)
        special = {name: read_table(t, f"worlds.{world}.methods.{name}") for name, t in own.pop("methods", {}).items()}
        for name in special:
            if name not in methods:
                raise unknown(f"method in [worlds.{world}.methods]", name, methods)
        shared = merge(common, {"world": world}, read_shared(own, f"worlds.{world}"))
        start = None if begin is None else _start(world, shared, begin)
        starts += [start] if start else []
        tables = {method: [table, special.get(method, {})] for method, table in methods.items()}
        for method, said in tables.items():
            cell = _cell_document(method, shared, said, f"{world}/{method}", start)
            resolved[world, method] = _complete(cell, f"{world}/{method}")
        differing[world] = differences({method: compared(resolved[world, method]) for method in methods}, tables)
        check_shared_settings(shared, [m["method"]["name"] for (w, _), m in resolved.items() if w == world], world)
    cells = [
        _cell(world, method, seed, resolved[world, method], starts) for seed in seeds for world in worlds for method in methods
    ]
    thresholds = read_thresholds(document.get("thresholds", THRESHOLDS))
    name = read_text(document, "name", default_name)
    check_name(name, "comparison")
    unequal = check_fair(differing, read_unequal(document.get("unequal", [])))
    notes = (*absent, *(note for world in worlds for note in _budget_notes(world, cells)), *unequal)
    return Plan(
        name, seeds, tuple(worlds), tuple(methods), tuple(starts), tuple(cells), thresholds,
        read_text(document, "description", ""), notes, differing, read_grid(document.get("grid"), methods),
        read_names(document.get("metrics", []), "metrics"),
    )  # fmt: skip


def _start(world: str, shared: Document, begin: Any) -> Planned:
    """The imitation every cell of the world starts from, told what the world's cells are told."""
    own = read_table(begin, f"worlds.{world}.{START}")
    seed = own.pop("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise TacitError(f"worlds.{world}.{START}.seed must be a whole number, not {seed!r}.")
    method = own.pop("method", {})
    method = {"name": method} if isinstance(method, str) else read_table(method, f"worlds.{world}.{START}.method")
    name = method.get("name", "grpo")
    told = having(shared.get("method", {}), name)
    document = merge(shared, {"method": None}, own, {"seed": seed, "method": {**told, "name": name, **method}})
    document["schedule"] = {**document.get("schedule", {}), "iterations": own.get("schedule", {}).get("iterations", 0)}
    complete = _complete(document, f"{world}/{START}")
    if complete["engine"]["lora_rank"]:
        raise TacitError(
            f"[worlds.{world}.{START}] trains LoRA adapters, which are no model to start from; set engine.lora_rank = 0 there "
            "(the methods may still train adapters), or give the runs their own [sft]."
        )
    return Planned(world, START, seed, complete)


def _cell_document(method: str, shared: Document, tables: Iterable[Document], where: str, start: Planned | None) -> Document:
    own: Document = {"name": method}
    sections: Document = {}
    tables = list(tables)
    if any(PLAYS in table for table in tables):
        return played_document(method, shared, merge(*tables))
    for table in tables:
        for key, value in table.items():
            if key in SECTIONS:
                sections = merge(sections, {key: read_table(value, f"{where}: {key}")})
            elif isinstance(value, Mapping) or key in ("evaluation", "model", "world", "seed", "out", "tiny"):
                raise TacitError(
                    f"method {method!r} says {key!r}, but all methods of a world share it, or they could not be compared. A "
                    f"method may have settings of its own and {', '.join(SECTIONS)}; put {key!r} in [common] or in the world."
                )
            else:
                own[key] = value
    if not isinstance(own["name"], str):
        raise TacitError(f"the name of method {method!r} must be text, not {own['name']!r}.")
    told = having(shared.get("method", {}), own["name"])
    if start is not None:
        read = {key: start.document["method"][key] for key in CONTEXT if key in start.document["method"]}
        told = {**having(read, own["name"]), **told}
        # The start has done the imitation and was measured: each run goes on from there.
        untrained = shared.get("evaluation", {}).get("untrained", False)
        shared = merge(shared, {"sft": {"steps": 0, "rounds": 0}, "evaluation": {"untrained": untrained}})
    return merge(shared, {"method": None}, sections, {"method": {**told, **own}, "seed": 0})


def _complete(document: Document, where: str) -> Document:
    """With everything said, as `tacit train` would understand it; refused with the reason where it cannot work."""
    try:
        recipe = prepare(Recipe.from_json(document)).recipe
    except TacitError as error:
        raise TacitError(f"{where}: {error}") from error
    if recipe.train.wandb:
        # There a run is known by the name of its directory, and those here are called 0, 1, 2.
        raise TacitError(
            "wandb would take all runs of a seed for one; leave it out of a comparison, which keeps its own records."
        )
    return {key: value for key, value in recipe.to_json().items() if key != "out"}


def _budget_notes(world: str, cells: Iterable[Planned]) -> list[str]:
    episodes = {cell.method: cell.episodes for cell in cells if cell.world == world and cell.learns}
    if len(set(episodes.values())) < 2:
        return []
    return [f"budgets differ in {world}: " + ", ".join(f"{m} practises {n} episodes" for m, n in episodes.items()) + "."]


def _cell(world: str, method: str, seed: int, document: Document, starts: Iterable[Planned]) -> Planned:
    run = Planned(world, method, seed, {**document, "seed": seed})
    for start in starts if run.learns else ():
        if start.world == world:
            imitated = Recipe.from_json(start.document).train.sft.all_steps
            stage, step = ("rl", start.iterations) if start.iterations else ("sft", imitated)
            return replace(run, starts_from=f"checkpoints/{stage}-{step:06d}/policy")
    return run
