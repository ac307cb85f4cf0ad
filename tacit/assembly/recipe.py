"""A recipe: everything a run is told, in one frozen object. Files and flags become one; `settings.json` is its other form.

    world = "countdown", model = "tiny", seed = 0      whatever has no section of its own
    [method]      name = "grpo", kl = 0.0              or only  method = "grpo", or several: "reuserl+bipace"
    [schedule]    groups = 16, lr = 1e-4
    [sft]         steps = 300
    [evaluation]  tasks = 256
    [engine]      name = "local", device = "cpu"       or only  engine = "local"
    [tiny]        layers = 2                           sizes, where the model is a tiny one

A flag says the same and wins: `--kl 0.0`, `--groups 16`, `--sft.steps 300`, `--engine.device cpu`.

Several worlds in one run: `world = "alfworld=0.75,countdown=0.25"`, and where one of them is to be different

    [worlds.countdown]    max_steps = 12, evaluation.tasks = 64, method.history = 2

Further policies, where the method asks for them by name: `[policies.extractor]  model = "tiny-base", engine.device = "cpu"`.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit.assembly.anchoring import anchored
from tacit.assembly.mixture import read_mixture
from tacit.assembly.values import build, to_data
from tacit.core.errors import TacitError
from tacit.core.method import Schedule
from tacit.core.tools import Base
from tacit.engines import get_engine
from tacit.engines.models.bases import is_small
from tacit.engines.models.tiny import TINY_SIZES, TinySettings
from tacit.methods import get_method
from tacit.training.settings import TrainSettings

Document = dict[str, Any]
Said = Mapping[tuple[str, ...], Any]
"""what flags say: place in the document -> value"""

DEFAULT_METHOD, DEFAULT_MODEL, DEFAULT_ENGINE = "grpo", "tiny", "local"
OUTSIDE_TRAINING = ("world", "worlds", "model", "out", "method", "schedule", "engine", "tiny", "policies")
"""keys of a document that are not fields of TrainSettings"""
OF_THE_RUN: Mapping[str, tuple[str, ...]] = {
    "": ("seed", "checkpoint_every", "keep", "trajectories", "wandb"),
    "sft": ("steps", "batch", "lr", "warmup", "rounds", "round_steps", "round_share"),
    "evaluation": ("every", "untrained"),
}
"""section -> settings that its worlds share: there is one update after another, and one checkpoint for all"""


@dataclass(frozen=True)
class PolicyRecipe:
    """A policy beside the trained one."""

    model: str
    engine_name: str
    engine: Any
    tiny: TinySettings | None = None


@dataclass(frozen=True)
class Place:
    """What a run is told about one of its worlds."""

    world: str
    share: float
    settings: Any
    """the method's"""
    train: TrainSettings


@dataclass(frozen=True)
class Recipe:
    world: str
    """one, or several with their shares: `alfworld=0.75,countdown=0.25`"""
    method: str
    model: str
    out: Path
    settings: Any
    """the method's own settings, with its schedule"""
    engine: Any
    """the engine's own settings"""
    train: TrainSettings
    tiny: TinySettings | None = None
    """sizes, where the model is built from scratch"""
    engine_name: str = DEFAULT_ENGINE
    worlds: Mapping[str, Document] = field(default_factory=dict)
    """what was said of single worlds, where there are several"""
    policies: Mapping[str, PolicyRecipe] = field(default_factory=dict)
    """by name: those beside the trained one"""
    said: frozenset[str] = field(default=frozenset(), compare=False)
    """the method's settings that somebody named"""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """what was decided on the user's behalf, to be shown"""

    @classmethod
    def resolve(cls, file: Path | None, said: Said) -> Recipe:
        """From a file (TOML, or the settings.json of a run) and flags, which win. Nothing heavy is imported."""
        return cls.from_json(override(read_document(file) if file else {}, said))

    @classmethod
    def from_json(cls, document: Document) -> Recipe:
        document = {key.replace("-", "_"): value for key, value in document.items()}
        method, own = _named_table(document, "method", DEFAULT_METHOD)
        if "schedule" in own:
            raise TacitError("the schedule has a table of its own: write [schedule], not [method.schedule].")
        settings = build(get_method(method), {**own, "schedule": document.get("schedule", {})}, "method")
        outside = {key: document.pop(key) for key in OUTSIDE_TRAINING if key in document}
        train = build(TrainSettings, document, "", also=OUTSIDE_TRAINING)
        main = _policy(outside, "")
        world = _text(outside, "world", "")
        if not world:
            where = "Give --world NAME (see `tacit list worlds`), `world = ...` in the file, or world=… from Python"
            raise TacitError(f"no world was named. {where}.")
        mixture = read_mixture(world)
        worlds = _world_tables(outside.get("worlds", {}), mixture)
        policies = {
            name: _policy(_inheriting(main, table), f"policies.{name}") for name, table in outside.get("policies", {}).items()
        }
        out = _text(outside, "out", "") or f"runs/{'+'.join(map(_plain, mixture))}-{_plain(method)}-{train.seed}"
        said = frozenset(own)
        settings, notes = settings.fitted(Base(main.model, small=main.tiny is not None or is_small(main.model)), said)
        return cls(
            world, method, main.model, Path(out), settings, main.engine, train, main.tiny, main.engine_name, worlds, policies,
            said, notes,
        )  # fmt: skip

    def to_json(self) -> Document:
        """The document that `from_json` reads back exactly, from whatever directory: the same layout as a TOML file, with every
        field said and every file with its whole path."""
        method = to_data(self.settings)
        schedule = method.pop("schedule")
        document = {"world": self.world, "model": self.model, "out": str(self.out), **to_data(self.train)}
        engine = {"name": self.engine_name, **to_data(self.engine)}
        document |= {"method": {"name": self.method, **method}, "schedule": schedule, "engine": engine}
        document |= {"tiny": to_data(self.tiny)} if self.tiny else {}
        document |= {"worlds": dict(self.worlds)} if self.worlds else {}
        beside = {name: _whole(policy) for name, policy in self.policies.items()}
        return anchored(document | ({"policies": beside} if beside else {}))

    @property
    def places(self) -> tuple[Place, ...]:
        """The run's worlds, each with the settings that hold there."""
        found = []
        for name, share in read_mixture(self.world).items():
            own = dict(self.worlds.get(name, {}))
            method = own.pop("method", {})
            train = build(TrainSettings, own, f"worlds.{name}", self.train) if own else self.train
            settings = build(type(self.settings), method, f"worlds.{name}.method", self.settings) if method else self.settings
            found.append(Place(name, share, settings, train))
        return tuple(found)

    def at(self, world: str) -> Recipe:
        """The same in one of its worlds alone."""
        for place in self.places:
            if place.world == world:
                return replace(self, world=world, worlds={}, settings=place.settings, train=place.train)
        raise TacitError(f"this run was in {self.world}, not in {world!r}.")

    def alone(self, world: str = "") -> Recipe:
        """The same in the world that is meant: the one named, or the only one there is."""
        if not world and len(self.places) > 1:
            raise TacitError(f"{self.out} was trained in several worlds ({self.world}); say which one is meant (--world).")
        return self.at(world or self.places[0].world)

    @property
    def schedule(self) -> Schedule:
        return self.settings.schedule


def read_document(file: Path) -> Document:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"cannot read the settings file {file}: {getattr(error, 'strerror', None) or error}.") from error
    try:
        document = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:
        raise TacitError(f"the settings file {file} is not valid {file.suffix.lstrip('.') or 'toml'}: {error}.") from error
    if not isinstance(document, dict):
        raise TacitError(f"the settings file {file} must hold a table of settings.")
    return document


def override(document: Document, said: Said) -> Document:
    """The document with what flags say put in place."""
    document = {key: dict(value) if isinstance(value, Mapping) else value for key, value in document.items()}
    for place, value in said.items():
        table = document
        for key in place[:-1]:
            inner = table.get(key, {})
            # `method = "grpo"` in the file is short for a table that only has a name.
            table[key] = {"name": inner} if isinstance(inner, str) else dict(inner)
            table = table[key]
        # The file may spell a key with dashes; said twice, the flag's is the one that holds.
        table.pop(place[-1].replace("_", "-"), None)
        table[place[-1]] = to_data(value)
    return document


def method_name(document: Document) -> str:
    return _named_table(document, "method", DEFAULT_METHOD)[0]


def engine_name(document: Document) -> str:
    return _named_table(document, "engine", DEFAULT_ENGINE)[0]


def _named_table(document: Document, key: str, usual: str) -> tuple[str, Document]:
    """(name, settings) of what is named in a document: `method = "grpo"`, or a table with a `name`."""
    table = document.get(key, usual)
    table = {"name": table} if isinstance(table, str) else table
    if not isinstance(table, Mapping):
        raise TacitError(f"{key} must be a name or a table with one, not {table!r}.")
    own = {name.replace("-", "_"): value for name, value in table.items()}
    return _text(own, "name", usual), {name: value for name, value in own.items() if name != "name"}


def _policy(table: Mapping[str, Any], where: str) -> PolicyRecipe:
    """Model, engine and sizes as a table says them."""
    prefix = f"{where}." if where else ""
    if where:
        for key in table:
            if key not in ("model", "engine", "tiny"):
                raise TacitError(f"unknown setting {key!r} in [{where}]. Known there: engine, model, tiny.")
    model = _text(table, "model", DEFAULT_MODEL)
    name, own = _named_table(dict(table), "engine", DEFAULT_ENGINE)
    engine = build(get_engine(name).settings, own, f"{prefix}engine")
    if model not in TINY_SIZES and table.get("tiny"):
        raise TacitError(f"[{prefix}tiny] has sizes, but the model is {model!r}; they are for {', '.join(TINY_SIZES)}.")
    tiny = build(TinySettings, table.get("tiny", {}), f"{prefix}tiny", TINY_SIZES[model]) if model in TINY_SIZES else None
    return PolicyRecipe(model, name, engine, tiny)


def _whole(policy: PolicyRecipe) -> Document:
    """What another policy is where nothing else is said: the same model in the same engine."""
    engine = {"name": policy.engine_name, **to_data(policy.engine)}
    return {"model": policy.model, "engine": engine, **({"tiny": to_data(policy.tiny)} if policy.tiny else {})}


def _inheriting(main: PolicyRecipe, table: Mapping[str, Any]) -> Document:
    """A policy's table with what it leaves open taken from the main one: sizes where it is the same model, settings of the
    engine where it is the same engine."""
    whole, own = _whole(main), dict(table)
    if own.get("model", main.model) != main.model:
        whole.pop("tiny", None)
    name, engine = _named_table(own, "engine", main.engine_name)
    own["engine"] = {**(whole["engine"] if name == main.engine_name else {}), "name": name, **engine}
    return {**whole, **own}


def _world_tables(tables: Any, mixture: Mapping[str, float]) -> Mapping[str, Document]:
    if not isinstance(tables, Mapping):
        raise TacitError(f"[worlds] must hold a table for each world, not {tables!r}.")
    for name in tables:
        if name not in mixture:
            raise TacitError(f"[worlds.{name}] is about a world the run is not in; it is in {', '.join(mixture)}.")
        for section, shared in OF_THE_RUN.items():
            own = tables[name].get(section, {}) if section else tables[name]
            for key in own if isinstance(own, Mapping) else ():
                if key.replace("-", "_") in shared:
                    said = f"{section}.{key}" if section else key
                    raise TacitError(
                        f"[worlds.{name}] says {said!r}, which the worlds of a run share: say it outside [worlds]."
                    )
    return {name: dict(table) for name, table in tables.items()}


def _text(table: Mapping[str, Any], key: str, default: str) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise TacitError(f"{key} must be text, not {value!r}.")
    return value


def _plain(name: str) -> str:
    """A name as part of a directory's: `package.module:OBJECT` becomes `OBJECT`."""
    return name.rpartition(":")[2]
