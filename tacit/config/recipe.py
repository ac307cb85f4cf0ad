"""A recipe: all settings of a run in one frozen object, read from a file and flags, and saved as `settings.json`.

world = "countdown", model = "tiny", seed = 0      settings without a section
[world]       name = "code", tests = "hidden"      or  world = "code+tests=hidden"; several: "alfworld=0.75,countdown=0.25"
[method]      name = "grpo", kl = 0.0              or only  method = "grpo", or several: "reuserl+bipace"
[prompt], [schedule], [sft], [evaluation], [engine], [tiny]
[worlds.countdown]    max_steps = 12, evaluation.tasks = 64       overrides for one of several worlds
[policies.extractor]  model = "tiny-base"                         further policies, by the name that the method uses
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal

import tacit
from tacit.config.values import Tables, build, expand_path, field_types, file_name, to_data, unknown_key
from tacit.core.errors import TacitError, unknown
from tacit.core.method import Base, Schedule
from tacit.core.trust import trust_endpoints
from tacit.engines import engines_with, get_engine
from tacit.engines.models.bases import BASES, has_chat_template, is_small
from tacit.engines.models.tiny import TINY_SIZES, TinySettings
from tacit.methods import get_method
from tacit.prompts.history import PromptSettings
from tacit.training.settings import TrainSettings

# Packaged recipes, by name. Each file starts with comments: a summary, and the command that runs it.

FOLDER = Path(tacit.__file__).parent / "recipes"
Kind = Literal["run", "comparison", "script"]


@dataclass(frozen=True)
class Packaged:
    name: str  # path below the recipe folder, without suffix
    path: Path
    kind: Kind
    summary: str  # its first comment line
    command: str  # the command in its comments


def find_recipe(name: str, kind: Kind | None = None) -> Path:
    """Find a settings file: an existing path, or a packaged recipe of this kind, with or without folder and suffix."""
    path = expand_path(name)
    if path.is_file():
        return path
    wanted = name.removesuffix(".toml").removesuffix(".sh")
    recipes = [recipe for recipe in packaged() if wanted in (recipe.name, recipe.path.stem)]
    for recipe in recipes:
        if kind in (recipe.kind, None):
            return recipe.path
    if recipes:
        raise TacitError(f"{recipes[0].name} is a {recipes[0].kind}; run it with `{recipes[0].command}`.")
    if path.is_dir():
        raise TacitError(
            f"{name} is a directory; give a settings file (TOML). `tacit report {name}` shows a run or comparison."
        )
    known = [recipe.name if "/" in wanted else recipe.path.stem for recipe in packaged() if kind in (recipe.kind, None)]
    if path.suffix:
        near = difflib.get_close_matches(wanted, known, n=1)
        hint = f"Did you mean the recipe {near[0]!r}?" if near else "`tacit list recipes` shows the packaged recipes."
        raise TacitError(f"the settings file {name} does not exist. {hint}")
    raise TacitError(f"{unknown('recipe', wanted, known)} There is no file {name} either.")


run_recipe = partial(find_recipe, kind="run")
comparison_recipe = partial(find_recipe, kind="comparison")


@cache
def packaged() -> tuple[Packaged, ...]:
    """All packaged recipes, top folder first."""
    files = [path for path in FOLDER.rglob("*") if path.suffix in (".toml", ".sh")]
    if not files:
        raise TacitError(f"there are no recipes in {FOLDER}: this installation is incomplete.")
    recipes = []
    for path in sorted(files, key=lambda path: (len(path.relative_to(FOLDER).parts), path)):
        text = path.read_text(encoding="utf-8")
        kind: Kind = "script" if path.suffix == ".sh" else "comparison" if "methods" in tomllib.loads(text) else "run"
        comments = [line.removeprefix("#") for line in text.replace("\\\n#", "").splitlines() if line.startswith("# ")]
        command = next(" ".join(line.split()) for line in comments if line.startswith("     ") and path.stem in line)
        name = path.relative_to(FOLDER).with_suffix("").as_posix()
        recipes.append(Packaged(name, path, kind, comments[0].strip(), command))
    return tuple(recipes)


# World mixtures: `alfworld`, `alfworld,countdown`, `alfworld=0.75,countdown=0.25`.

EXAMPLE = "alfworld=0.75,countdown=0.25"


def read_mixture(text: str) -> Mapping[str, float]:
    """World -> share of each iteration's groups. Without shares all are equal; otherwise every world needs one, adding up to 1.

    >>> read_mixture("alfworld=0.75,countdown=0.25")
    {'alfworld': 0.75, 'countdown': 0.25}
    """
    shares: dict[str, float | None] = {}
    for part in text.split(","):
        name, equals, number = part.strip().rpartition("=") if "=" in part else (part.strip(), "", "")
        if "+" in name and not number.replace(".", "", 1).isdigit():  # the value of an option: code+tests=hidden
            name, equals = part.strip(), ""
        name = name.strip()
        if not name:
            raise TacitError(f"world = {text!r} contains an empty name; write for example {EXAMPLE}.")
        if name in shares:
            raise TacitError(f"world = {text!r} names {name!r} twice.")
        shares[name] = None
        if equals:
            with suppress(ValueError):
                shares[name] = float(number)
            if not 0 < (shares[name] or 0) <= 1:
                raise TacitError(f"world = {text!r}: the share {number!r} must be above 0 and at most 1, as in {EXAMPLE}.")
    explicit = [share for share in shares.values() if share is not None]
    if not explicit:
        return {name: 1 / len(shares) for name in shares}
    if len(explicit) < len(shares):
        missing = ", ".join(name for name, share in shares.items() if share is None)
        raise TacitError(f"world = {text!r} has no share for {missing}; give every world a share, or none.")
    if abs(sum(explicit) - 1) > 1e-6:
        raise TacitError(f"the shares of world = {text!r} add up to {sum(explicit):g}, not to 1; write for example {EXAMPLE}.")
    return {name: share for name, share in shares.items() if share is not None}


# Absolute paths in settings.json, so that a run can be opened from any directory.

Document = dict[str, Any]


def make_paths_absolute(document: Document) -> Document:
    """Make the path of every existing file or directory absolute: user-defined worlds, methods and engines, models, recorded
    episodes, panels. Other names stay as they are."""

    def with_files(settings: Mapping[str, Any]) -> Document:
        absolute = dict(settings)
        for table, key in (("sft", "from"), ("evaluation", "panel")):
            own = settings.get(table)
            if isinstance(own, Mapping) and isinstance(own.get(key), str):
                absolute[table] = {**own, key: absolute_path(own[key])}
        if "model" in settings and settings["model"] not in (*TINY_SIZES, *BASES):
            absolute["model"] = absolute_path(settings["model"])
        return absolute

    whole = with_files(document)
    whole["world"] = ",".join(absolute_name(part.strip()) for part in document["world"].split(","))
    method, engine = document["method"], document["engine"]
    whole["method"] = method | {"name": "+".join(map(absolute_name, method["name"].split("+")))}
    whole["engine"] = engine | {"name": absolute_name(engine["name"])}
    if "worlds" in document:
        whole["worlds"] = {absolute_name(name): with_files(own) for name, own in document["worlds"].items()}
    if "policies" in document:
        whole["policies"] = {name: with_files(own) for name, own in document["policies"].items()}
    return whole


def absolute_name(name: str) -> str:
    """`guess.py:GUESS` (or `guess.py:GUESS=0.5`) -> `/home/me/guess.py:GUESS`; `code+folder=tasks` -> `…=/home/me/tasks`."""
    base, option, path = name.partition("+folder=")
    if option:
        path, plus, more = path.partition("+")
        return f"{absolute_name(base)}{option}{absolute_path(path)}{plus}{more}"
    file, colon, own = name.partition(".py:")
    return f"{absolute_path(f'{file}.py')}:{own}" if colon else name


def absolute_path(text: str) -> str:
    path = Path(text).expanduser()
    return str(path.absolute()) if text and path.exists() else text


Overrides = Mapping[tuple[str, ...], Any]  # settings by path in the document: ("schedule", "lr") -> 1e-4

DEFAULT_METHOD, DEFAULT_MODEL, DEFAULT_ENGINE = "grpo", "tiny", "local"
OUTSIDE_TRAINING = ("world", "worlds", "model", "out", "method", "prompt", "schedule", "engine", "tiny", "policies")
"""top-level keys that are not fields of TrainSettings"""
METHOD_TABLES = ("prompt", "schedule")  # fields of a method's settings that are tables of their own in a document
SHARED_BY_WORLDS: Mapping[str, tuple[str, ...]] = {
    "": ("seed", "checkpoint_every", "keep", "trajectories", "wandb"),
    "sft": ("steps", "epochs", "batch", "lr", "warmup"),
    "evaluation": ("every", "untrained"),
}
"""table -> settings that all worlds of a run share"""


@dataclass(frozen=True)
class PolicyRecipe:
    model: str
    engine_name: str
    engine: Any
    tiny: TinySettings | None = None


@dataclass(frozen=True)
class WorldRecipe:
    world: str
    share: float
    settings: Any  # the method's
    train: TrainSettings


@dataclass(frozen=True)
class Recipe:
    world: str  # one world, or several with shares: `alfworld=0.75,countdown=0.25`
    method: str
    model: str
    out: Path
    settings: Any  # of the method, with its schedule
    engine: Any  # of the engine
    train: TrainSettings
    tiny: TinySettings | None = None  # sizes, if the model is built from scratch
    engine_name: str = DEFAULT_ENGINE
    worlds: Mapping[str, Document] = field(default_factory=dict)  # overrides of single worlds
    policies: Mapping[str, PolicyRecipe] = field(default_factory=dict)  # other policies, by name
    explicit: frozenset[str] = field(default=frozenset(), compare=False)  # method settings set by the user
    notes: tuple[str, ...] = field(default=(), compare=False)  # choices made for the user, to be shown

    @classmethod
    def resolve(cls, file: Path | None, overrides: Overrides) -> Recipe:
        """From a file (TOML, or a run's settings.json) and flags; flags win. Imports nothing heavy."""
        return cls.from_json(override(read_document(file) if file else {}, overrides))

    @classmethod
    def from_json(cls, document: Document) -> Recipe:
        document = {key.replace("-", "_"): value for key, value in document.items()}
        method, own = _named_table(document, "method", DEFAULT_METHOD)
        for key in METHOD_TABLES:
            if key in own:
                raise TacitError(f"{key} settings have a table of their own: write [{key}], not [method.{key}].")
        prompt = _table(document.get("prompt", {}), "prompt")

        def tables() -> Mapping[str, Iterable[str]]:
            return {"method": set(field_types(get_method(method))) - set(METHOD_TABLES), **_common_tables(engine_name(outside))}

        outside = {key: document.pop(key) for key in OUTSIDE_TRAINING if key in document}
        settings = build(get_method(method), own, "method", tables=tables)
        settings = build_tables(settings, {"prompt": prompt, "schedule": outside.get("schedule", {})}, "", tables)
        train = build(TrainSettings, document, "", tables=tables)
        main = _policy(outside, "", tables)
        world = _world_name(outside.get("world", ""))
        if not world:
            where = "Give --world NAME (see `tacit list worlds`), `world = ...` in the file, or world=… from Python"
            raise TacitError(f"no world. {where}.")
        mixture = read_mixture(world)
        worlds = _world_tables(outside.get("worlds", {}), mixture)
        others = outside.get("policies", {})
        policies = {name: _policy(_complete_policy(main, own), f"policies.{name}") for name, own in others.items()}
        # `package.module:OBJECT` -> `OBJECT` in the name of a directory
        short = [name.rpartition(":")[2] for name in (*(w.partition("+")[0] for w in mixture), method)]
        out = read_text(outside, "out", "") or f"runs/{'+'.join(short[:-1])}-{short[-1]}-{train.seed}"
        inside = {f"{key}.{name}" for key, table in own.items() if isinstance(table, Mapping) for name in table}
        explicit = frozenset(own) | frozenset(prompt) | inside
        settings, notes = settings.fit_to_model(describe_base(main.model, main.tiny, main.engine_name), explicit)
        return cls(
            world, method, main.model, Path(out), settings, main.engine, train, main.tiny, main.engine_name, worlds, policies,
            explicit, notes,
        )  # fmt: skip

    def to_json(self) -> Document:
        """The inverse of `from_json`: every field, absolute paths, the layout of a TOML file."""
        method = to_data(self.settings)
        tables = {key: method.pop(key) for key in METHOD_TABLES if key in method}
        document = {"world": self.world, "model": self.model, "out": str(self.out), **to_data(self.train)}
        document |= {"method": {"name": self.method, **method}, **tables} | _policy_table(self.main)
        document |= {"worlds": dict(self.worlds)} if self.worlds else {}
        others = {name: _policy_table(policy) for name, policy in self.policies.items()}
        return make_paths_absolute(document | ({"policies": others} if others else {}))

    @property
    def main(self) -> PolicyRecipe:
        """The trained policy."""
        return PolicyRecipe(self.model, self.engine_name, self.engine, self.tiny)

    @property
    def places(self) -> tuple[WorldRecipe, ...]:
        recipes = []
        for name, share in read_mixture(self.world).items():
            own = dict(self.worlds.get(name, {}))
            method, prompt = own.pop("method", {}), _table(own.pop("prompt", {}), "prompt")
            train = build(TrainSettings, own, f"worlds.{name}", self.train) if own else self.train
            settings = build(type(self.settings), method, f"worlds.{name}.method", self.settings) if method else self.settings
            settings = build_tables(settings, {"prompt": prompt}, f"worlds.{name}.")
            recipes.append(WorldRecipe(name, share, settings, train))
        return tuple(recipes)

    def at(self, world: str) -> Recipe:
        """The same run in one of its worlds."""
        for place in self.places:
            if place.world == world:
                return replace(self, world=world, worlds={}, settings=place.settings, train=place.train)
        raise TacitError(f"this run was trained in {self.world}, not in {world!r}.")

    def alone(self, world: str = "") -> Recipe:
        """The same run in the named world, or in its only world."""
        if not world and len(self.places) > 1:
            raise TacitError(f"{self.out} was trained in several worlds ({self.world}); choose one with --world.")
        return self.at(world or self.places[0].world)

    @property
    def schedule(self) -> Schedule:
        return self.settings.schedule


def _common_tables(engine: str) -> dict[str, Iterable[str]]:
    """The keys of every table but [method], by table."""
    train = field_types(TrainSettings)
    nested = {"prompt": PromptSettings, "schedule": Schedule, "sft": train["sft"], "evaluation": train["evaluation"]}
    nested |= {"tiny": TinySettings, "engine": get_engine(engine).settings}
    keys = {table: [file_name(name) for name in field_types(cls)] for table, cls in nested.items()}
    return {"": [*OUTSIDE_TRAINING, *train], **keys}


def describe_base(model: str, tiny: TinySettings | None, engine: str) -> Base:
    """Facts about a model that need no loading. A model on another machine has no files or chat template here."""
    small = tiny is not None or is_small(model)
    return Base(model, small, not small and not get_engine(engine).elsewhere and has_chat_template(model))


def build_tables(settings: Any, own: Mapping[str, Any], where: str, tables: Tables = dict) -> Any:
    """A method's settings with the values of its tables (METHOD_TABLES) filled in."""
    for key, table in own.items():
        if table and not hasattr(settings, key):
            raise TacitError(f"[{where}{key}] has settings, but {type(settings).__name__} has no field `{key}` to read them.")
        if table:
            inner = getattr(settings, key)
            settings = replace(settings, **{key: build(type(inner), table, f"{where}{key}", inner, tables)})
    return settings


def _table(value: Any, where: str) -> Document:
    if not isinstance(value, Mapping):
        raise TacitError(f"[{where}] must be a table of settings, not {value!r}.")
    return {key.replace("-", "_"): inner for key, inner in value.items()}


def read_document(file: Path) -> Document:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"cannot read the settings file {file}: {getattr(error, 'strerror', None) or error}.") from error
    kind = "JSON" if file.suffix == ".json" else "TOML"
    try:
        document = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise TacitError(f"the settings file {file} is not valid {kind}: {error}.") from error
    if not isinstance(document, dict):
        raise TacitError(f"the settings file {file} must hold a table of settings.")
    if file.suffix != ".json":  # a run's settings.json may come from someone else: its endpoints are not trusted
        trust_endpoints(document)
    return document


def override(document: Document, overrides: Overrides) -> Document:
    document = {key: dict(value) if isinstance(value, Mapping) else value for key, value in document.items()}
    for place, value in sorted(overrides.items(), key=lambda one: len(one[0])):  # `--world code --tests hidden`, in any order
        table = document
        for key in place[:-1]:
            inner = table.get(key, {})
            # `method = "grpo"` is short for [method] name = "grpo".
            table[key] = {"name": inner} if isinstance(inner, str) else dict(inner)
            table = table[key]
        # The file may spell the key with dashes.
        table.pop(place[-1].replace("_", "-"), None)
        table[place[-1]] = to_data(value)
    return document


def method_name(document: Document) -> str:
    return _named_table(document, "method", DEFAULT_METHOD)[0]


def engine_name(document: Document) -> str:
    return _named_table(document, "engine", DEFAULT_ENGINE)[0]


def _named_table(document: Document, key: str, usual: str) -> tuple[str, Document]:
    """(name, settings) of `method = "grpo"` or of a table with a `name`."""
    table = document.get(key, usual)
    table = {"name": table} if isinstance(table, str) else table
    if not isinstance(table, Mapping):
        raise TacitError(f"{key} must be a name or a table with one, not {table!r}.")
    own = {name.replace("-", "_"): value for name, value in table.items()}
    return read_text(own, "name", usual), {name: value for name, value in own.items() if name != "name"}


def _policy(table: Mapping[str, Any], where: str, tables: Tables = dict) -> PolicyRecipe:
    prefix = f"{where}." if where else ""
    if where:
        for key in table:
            if key not in ("model", "engine", "tiny"):
                raise unknown_key(key, where, ("model", "engine", "tiny"), {})
    model = read_text(table, "model", DEFAULT_MODEL)
    name, own = _named_table(dict(table), "engine", DEFAULT_ENGINE)
    for key in sorted(set(own) - set(field_types(get_engine(name).settings))):
        if owners := engines_with(key):
            raise TacitError(
                f"unknown key `{key}` in [{prefix}engine] of the engine {name}. It belongs to {', '.join(owners)}; set "
                f'name = "{owners[0]}" there.'
            )
    engine = build(get_engine(name).settings, own, f"{prefix}engine", tables=tables)
    if model not in TINY_SIZES and table.get("tiny"):
        raise TacitError(f"[{prefix}tiny] has sizes, but the model is {model!r}; they are for {', '.join(TINY_SIZES)}.")
    tiny = build(TinySettings, table.get("tiny", {}), f"{prefix}tiny", TINY_SIZES[model]) if model in TINY_SIZES else None
    return PolicyRecipe(model, name, engine, tiny)


def _policy_table(policy: PolicyRecipe) -> Document:
    engine = {"name": policy.engine_name, **to_data(policy.engine)}
    return {"model": policy.model, "engine": engine, **({"tiny": to_data(policy.tiny)} if policy.tiny else {})}


def _complete_policy(main: PolicyRecipe, table: Mapping[str, Any]) -> Document:
    """A [policies] table completed from the main policy: sizes if the model is the same, engine settings if the engine is
    the same."""
    whole, own = _policy_table(main), dict(table)
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
            raise TacitError(f"[worlds.{name}] names a world that the run does not use; its worlds are {', '.join(mixture)}.")
        for section, shared in SHARED_BY_WORLDS.items():
            own = tables[name].get(section, {}) if section else tables[name]
            for key in own if isinstance(own, Mapping) else ():
                if key.replace("-", "_") in shared:
                    problem = f"[worlds.{name}] sets {(f'{section}.{key}' if section else key)!r}"
                    raise TacitError(f"{problem}, which all worlds of a run share; move it out of [worlds].")
    return {name: dict(table) for name, table in tables.items()}


def read_text(table: Mapping[str, Any], key: str, default: str) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise TacitError(f"{key} must be text, not {value!r}.")
    return value


def _world_name(value: Any) -> str:
    """`{"name": "code", "tests": "hidden"}` -> `code+tests=hidden`; options that the name has already are replaced."""
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise TacitError(f"world must be a name or a table with one, not {value!r}.")
    options = dict(value)
    name = options.pop("name", "")
    if not isinstance(name, str) or not name:
        raise TacitError(f'[world] has no name, only {", ".join(options) or value}; write name = "code", or --world code.')
    if "," in name and options:
        raise TacitError(f"{', '.join(options)}: several worlds are named ({name}); write it as code+{next(iter(options))}=….")
    base, *own = name.split("+")
    known = dict(option.partition("=")[::2] for option in own)
    return "+".join([base, *(f"{key}={value}" for key, value in {**known, **options}.items())])
