"""A recipe: everything a run is told, in one frozen object. Files and flags become one; `settings.json` is its other form.

    world = "countdown", model = "tiny", seed = 0      whatever has no section of its own
    [method]      name = "grpo", kl = 0.0              or only  method = "grpo"
    [schedule]    groups = 16, lr = 1e-4
    [sft]         steps = 300
    [evaluation]  tasks = 256
    [engine]      device = "cpu"
    [tiny]        layers = 2                           sizes, where the model is a tiny one

A flag says the same and wins: `--kl 0.0`, `--groups 16`, `--sft.steps 300`, `--engine.device cpu`.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tacit.assembly.flags import Option, options_of
from tacit.assembly.values import build, to_data
from tacit.core.errors import TacitError
from tacit.core.method import Schedule
from tacit.engines.local.settings import EngineSettings
from tacit.engines.models.bases import is_small
from tacit.engines.models.tiny import TINY_SIZES, TinySettings
from tacit.methods import METHODS, get_method
from tacit.training.settings import TrainSettings

Document = dict[str, Any]
Said = Mapping[tuple[str, ...], Any]
"""what flags say: place in the document -> value"""

DEFAULT_METHOD, DEFAULT_MODEL = "grpo", "tiny"
OUTSIDE_TRAINING = ("world", "model", "out", "method", "schedule", "engine", "tiny")
"""keys of a document that are not fields of TrainSettings"""


@dataclass(frozen=True)
class Recipe:
    world: str
    method: str
    model: str
    out: Path
    settings: Any
    """the method's own settings, with its schedule"""
    engine: EngineSettings
    train: TrainSettings
    tiny: TinySettings | None = None
    """sizes, where the model is built from scratch"""
    notes: tuple[str, ...] = field(default=(), compare=False)
    """what was decided on the user's behalf, to be shown"""

    @classmethod
    def resolve(cls, file: Path | None, said: Said) -> Recipe:
        """From a file (TOML, or the settings.json of a run) and flags, which win. Nothing heavy is imported."""
        return cls.from_json(override(read_document(file) if file else {}, said))

    @classmethod
    def from_json(cls, document: Document) -> Recipe:
        document = {key.replace("-", "_"): value for key, value in document.items()}
        method, own = _method_table(document)
        settings = build(get_method(method), {**own, "schedule": document.get("schedule", {})}, "method")
        outside = {key: document.pop(key) for key in OUTSIDE_TRAINING if key in document}
        train = build(TrainSettings, document, "", also=OUTSIDE_TRAINING)
        engine = build(EngineSettings, outside.get("engine", {}), "engine")
        model = _text(outside, "model", DEFAULT_MODEL)
        if model not in TINY_SIZES and outside.get("tiny"):
            raise TacitError(f"[tiny] has sizes, but the model is {model!r}; they are for {', '.join(TINY_SIZES)}.")
        tiny = build(TinySettings, outside.get("tiny", {}), "tiny", TINY_SIZES[model]) if model in TINY_SIZES else None
        world = _text(outside, "world", "")
        if not world:
            raise TacitError("no world was named. Give --world NAME (see `tacit list worlds`), or `world = ...` in the file.")
        out = _text(outside, "out", "") or f"runs/{_plain(world)}-{_plain(method)}-{train.seed}"
        recipe = cls(world, method, model, Path(out), settings, engine, train, tiny)
        return _for_a_tiny_policy(recipe, own) if tiny or is_small(model) else recipe

    def to_json(self) -> Document:
        """The document that `from_json` reads back exactly: the same layout as a TOML file, with every field said."""
        method = to_data(self.settings)
        schedule = method.pop("schedule")
        document = {"world": self.world, "model": self.model, "out": str(self.out), **to_data(self.train)}
        document |= {"method": {"name": self.method, **method}, "schedule": schedule, "engine": to_data(self.engine)}
        return document | ({"tiny": to_data(self.tiny)} if self.tiny else {})

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
    return _method_table(document)[0]


def method_options(name: str) -> list[Option]:
    """The flags of a method: its own fields without a prefix, its schedule without one either."""
    cls = get_method(name)
    if not dataclasses.is_dataclass(cls):
        raise TacitError(f"method {name!r} has no settings to read: its class must be a dataclass.")
    own = options_of(cls, ("method",))
    schedule = [o for o in own if o.place[:2] == ("method", "schedule")]
    bare = [replace(o, name=o.place[-1].replace("_", "-"), place=o.place[1:]) for o in schedule]
    return [o for o in own if o not in schedule] + bare


def methods_with(flag: str) -> list[str]:
    """The registered methods that have a flag, for saying where it belongs."""
    return [name for name in METHODS if any(o.flag == flag for o in method_options(name))]


TOP_OPTIONS = (
    Option("world", ("world",), str, dataclasses.MISSING, "what to play: a name of `tacit list worlds`, or your own as "
           "package.module:OBJECT or path/to/file.py:OBJECT"),
    Option("method", ("method", "name"), str, DEFAULT_METHOD, "how to learn: a name of `tacit list methods`, or your own as "
           "package.module:Class or path/to/file.py:Class"),
    Option("model", ("model",), str, DEFAULT_MODEL, "who plays: tiny-base (pretrained, packaged), tiny (made from "
           "scratch), the directory of a checkpoint, or a hub id (owner/name)"),
)  # fmt: skip
RUN_OPTION = Option("out", ("out",), Path, "runs/WORLD-METHOD-SEED", "run directory, which must not hold a run yet")


def train_options() -> list[Option]:
    """Fields of TrainSettings that have no section of their own."""
    return [option for option in options_of(TrainSettings) if len(option.place) == 1]


def section_options(model: str = DEFAULT_MODEL) -> dict[str, list[Option]]:
    """Flags with a prefix, by section; the sizes shown are those of the model where it is a tiny one."""
    nested = [option for option in options_of(TrainSettings) if len(option.place) > 1]
    return {
        "sft": [o for o in nested if o.place[0] == "sft"],
        "evaluation": [o for o in nested if o.place[0] == "evaluation"],
        "engine": options_of(EngineSettings, ("engine",), "engine."),
        "tiny": options_of(TINY_SIZES.get(model, TinySettings), ("tiny",), "tiny."),
    }


def _method_table(document: Document) -> tuple[str, Document]:
    table = document.get("method", DEFAULT_METHOD)
    table = {"name": table} if isinstance(table, str) else table
    if not isinstance(table, Mapping):
        raise TacitError(f"method must be a name or a table with one, not {table!r}.")
    own = {key.replace("-", "_"): value for key, value in table.items()}
    if "schedule" in own:
        raise TacitError("the schedule has a table of its own: write [schedule], not [method.schedule].")
    return _text(own, "name", DEFAULT_METHOD), {key: value for key, value in own.items() if key != "name"}


def _for_a_tiny_policy(recipe: Recipe, said: Document) -> Recipe:
    """A policy of a million parameters cannot read what is written for language models: unless something else was said, it
    is told the world tersely, without lists of actions, and answers with the bare action."""
    wanted = {"wording": "terse", "style": "bare", "admissible": False}
    names = {f.name for f in dataclasses.fields(recipe.settings)}
    own = {k: v for k, v in wanted.items() if k in names and k not in said and getattr(recipe.settings, k) != v}
    if not own:
        return recipe
    told = ", ".join(f"{name} = {str(value).lower()}" for name, value in own.items())
    note = f"{recipe.model} is too small for the published prompts, so {told}; say otherwise to change it"
    return replace(recipe, settings=replace(recipe.settings, **own), notes=(*recipe.notes, note))


def _text(table: Mapping[str, Any], key: str, default: str) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise TacitError(f"{key} must be text, not {value!r}.")
    return value


def _plain(name: str) -> str:
    """A name as part of a directory's: `package.module:OBJECT` becomes `OBJECT`."""
    return name.rpartition(":")[2]
