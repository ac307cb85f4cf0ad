"""Checks of a run before anything heavy is loaded; imports no torch."""

from __future__ import annotations

import importlib.util
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Any

from tacit.config.recipe import METHOD_TABLES, Document, Recipe, WorldRecipe
from tacit.config.resources import RunResources, describe_model, prefix_errors
from tacit.config.values import flatten, to_data
from tacit.core.bounds import check_bounds
from tacit.core.errors import TacitError, install_command, unknown
from tacit.core.method import Method
from tacit.core.world import Environment
from tacit.engines import all_engines, get_engine
from tacit.engines.models.bases import BASES, base_named, is_small, unknown_model
from tacit.engines.models.tiny import TINY_SIZES
from tacit.runs.directory import SETTINGS, SUMMARY, UNSTARTED_FILES, find_summary, open_checkpoints, resume_command
from tacit.training.imitation import check_recordings
from tacit.training.loop import check_overlap
from tacit.training.settings import TrainSettings
from tacit.training.setup import WorldSetup, completion_limit
from tacit.worlds import REGISTRY as WORLDS
from tacit.worlds import get_environment

SMALL_POLICY_LR = 1e-5  # below this, policies of a million parameters hardly move
LANGUAGE_MODEL_SFT_LR = 3e-4  # above this, imitation may undo a language model's pretraining


def find_warnings(recipe: Recipe) -> tuple[str, ...]:
    """Warnings about settings with which a run will hardly learn. Raises nothing."""
    schedule, imitates = recipe.schedule, recipe.train.sft.imitates
    small = recipe.model in TINY_SIZES or is_small(recipe.model)
    warnings = []
    if imitates and recipe.train.sft.lr > LANGUAGE_MODEL_SFT_LR and not small:
        warnings.append(
            f"sft.lr = {recipe.train.sft.lr:g} is meant for policies of a million parameters and may damage a language model; "
            "try --sft.lr 1e-4"
        )
    if imitates and recipe.train.sft.entries:
        warnings += recipe.settings.entry_warnings(frozenset(recipe.policies))
    if not schedule.iterations:
        return tuple(warnings)
    if (recipe.model in TINY_SIZES or base_named(recipe.model)) and not imitates:
        begins = "starts from random weights" if recipe.model in TINY_SIZES else "was not trained on any task"
        warnings.append(
            f"{recipe.model} {begins} and there is no imitation: hardly an episode will succeed, so RL has nothing to learn "
            "from; add --sft.steps 300"
        )
    if schedule.lr < SMALL_POLICY_LR and small:
        warnings.append(f"lr = {schedule.lr:g} is meant for language models and too low for {recipe.model}; try --lr 3e-4")
    return tuple(warnings)


EXPERT, RULE_AGENT = AGENTS = ("expert", "reader")  # evaluated, never trained


def open_world(name: str) -> Environment:
    """A world that can be played here; raises if it is unknown or its dependencies are missing."""
    world = find_world(name)
    world.check_ready()
    return world


def find_world(name: str) -> Environment:
    """A world, playable here or not."""
    try:
        return get_environment(name)
    except ImportError as error:
        raise TacitError(f"world {name!r} needs {error.name or error}, which cannot be imported here.") from error


def check_values(recipe: Recipe) -> None:
    for prefix, settings in _sections(recipe):
        check_bounds(settings, prefix)


def check_sampling(recipe: Recipe, world: Environment, loads: bool = True) -> Recipe:
    """Checks for playing a panel; `loads`: with the recipe's model. Returns the recipe with its evaluation split filled in."""
    check_values(recipe)
    if loads:
        check_model(recipe.model)
        _check_texts(recipe, (world,))
    return replace(recipe, train=_with_split(recipe.train, world))


def _check_texts(recipe: Recipe, worlds: Sequence[Environment]) -> None:
    if recipe.model in TINY_SIZES and all(world.example_texts is None for world in worlds):
        raise TacitError(
            f"model {recipe.model!r} trains its tokenizer on the world's text, and world {worlds[0].name!r} offers none; "
            "give its Environment `example_texts`, or a packaged base, a checkpoint or a hub id as --model."
        )


def _with_split(train: TrainSettings, world: Environment) -> TrainSettings:
    """Fill in the evaluation split and its number of tasks, so that saved settings keep their meaning if the world's
    defaults change. Raises if the split does not exist."""
    measured = train.evaluation
    if not world.playable:
        return train
    world.check_families(train.family_names)
    for split, _, _ in measured.further_panels:
        world.split_to_measure(split)
    if measured.panel and not measured.split:
        return train  # the user's own tasks need no split
    split = world.split_to_measure(measured.split)
    return replace(train, evaluation=replace(measured, split=split, tasks=measured.tasks or world.panel_size(split)))


@dataclass(frozen=True)
class Prepared:
    """A checked run; nothing heavy is loaded yet."""

    recipe: Recipe  # with every default filled in, as it will be saved
    worlds: tuple[Environment, ...]
    methods: tuple[Method, ...]  # one per world
    resources: RunResources

    def setups(self) -> tuple[WorldSetup, ...]:
        """Raises if a world's data are missing, or if a world of the user's cannot start; call it before anything is
        written."""
        setups = []
        for world, method, place in zip(self.worlds, self.methods, self.recipe.places, strict=True):
            setup = WorldSetup.of(world, method, place.train, place.share)
            setups.append(setup.check_start() if WORLDS.file_hash(place.world) and world.playable else setup)
        return tuple(setups)


def prepare(recipe: Recipe, worlds: Sequence[Environment] = ()) -> Prepared:
    """Check a training run before torch is loaded. `worlds`: if they are already open."""
    worlds = tuple(worlds) or tuple(open_world(place.world) for place in recipe.places)
    names = [world.name for world in worlds]
    if len(set(names)) < len(names):
        raise TacitError(f"world = {recipe.world!r} names one world twice: {', '.join(names)}.")
    check_values(recipe)
    check_model(recipe.model)
    for name, policy in recipe.policies.items():
        if not get_engine(policy.engine_name).elsewhere:
            with prefix_errors(name):
                check_model(policy.model)
    _check_texts(recipe, worlds)
    train, schedule = recipe.train, recipe.schedule
    if recipe.model in AGENTS:
        _check_agent(recipe, worlds)
    elif not train.sft.imitates and not schedule.iterations:
        raise TacitError(
            "sft.steps and iterations are both 0, so nothing would be trained; to evaluate only, use `tacit eval`."
        )
    if train.sft.steps and train.sft.epochs:
        raise TacitError(
            f"sft.steps = {train.sft.steps} and sft.epochs = {train.sft.epochs:g} both set the length of imitation; set "
            "one of them to 0."
        )
    for world in worlds:
        if not world.playable and (schedule.iterations or not train.sft.from_ or len(worlds) > 1):
            raise TacitError(
                f"world {world.name!r} is {world.summary}, so it can only imitate recorded episodes: use it alone, with "
                "--sft.from FILE and --iterations 0."
            )
        if train.sft.renamed and world.names is None:
            raise TacitError(
                f"sft.renamed = {train.sft.renamed}: world {world.name!r} has no numbered names to exchange. "
                "Use --sft.renamed 0, or set `names` in its Environment."
            )
    if train.wandb and importlib.util.find_spec("wandb") is None:
        raise TacitError(f"wandb is not installed; {install_command('wandb')}, or leave --wandb out.")
    recipe = _fill_choices(recipe, worlds)
    resources = RunResources(recipe, worlds)
    methods = []
    for world, place in zip(worlds, recipe.places, strict=True):
        _check_place(place, world)
        methods.append(place.settings.build(world, resources))
        _check_context(recipe, place, methods[-1], world)
    if any(method.losses != methods[0].losses or method.schedule != methods[0].schedule for method in methods):
        raise TacitError("the worlds of a run share one update, and [worlds.…] gives them different losses or schedules.")
    if schedule.iterations and schedule.group_size < 2 and any(method.compares_episodes for method in methods):
        raise TacitError(
            f"group_size = {schedule.group_size} gives {recipe.method!r} nothing to compare an episode with, so every "
            "advantage would be 0; use at least 2, or a method with its own baseline (ppo, reinforce_pp)."
        )
    engine = get_engine(recipe.engine_name)
    needs = frozenset().union(*(method.needs for method in methods))
    engine.refuse_unless_able(recipe.method, needs, all_engines())
    settings, notes = engine.fit(recipe.engine, needs) if engine.fit else (recipe.engine, ())
    check_overlap(train, methods, engine.can_pin_weights is None or engine.can_pin_weights(settings))
    recipe = replace(recipe, engine=settings, notes=(*recipe.notes, *notes, *find_warnings(recipe)))
    resources.recipe = recipe
    resources.check_policies()
    return Prepared(recipe, worlds, tuple(methods), resources)


def _check_agent(recipe: Recipe, worlds: Sequence[Environment]) -> None:
    if recipe.train.sft.imitates or recipe.schedule.iterations:
        raise TacitError(f"the {recipe.model} cannot be trained; evaluate it with --sft.steps 0 --iterations 0.")
    if len(worlds) > 1:
        raise TacitError(f"the {recipe.model} belongs to one world; evaluate it in one of {recipe.world} at a time.")
    if not recipe.train.evaluation.untrained:
        raise TacitError(f"evaluation.untrained = false leaves nothing to evaluate for the {recipe.model}; remove it.")
    if recipe.model == RULE_AGENT and worlds[0].reader is None:
        raise TacitError(f"world {worlds[0].name!r} has no rule agent; use its expert (--model {EXPERT}).")


def _fill_choices(recipe: Recipe, worlds: Sequence[Environment]) -> Recipe:
    """Fill in, per world, the evaluation split and the settings that the method fits to the model."""
    several = len(worlds) > 1
    for world, place in zip(worlds, recipe.places, strict=True):
        here = recipe.at(place.world) if several else recipe
        tables = [recipe.worlds.get(place.world, {}).get(key, {}) for key in ("method", "prompt")]
        explicit = recipe.explicit | {name.replace("-", "_") for table in tables for name in table}
        settings, notes = here.settings.fit_to_model(describe_model(here, world), explicit)
        train = _with_split(place.train, world)
        if not several:
            recipe = replace(recipe, settings=settings, train=train)
        else:
            own = find_differing(to_data(settings), to_data(recipe.settings))
            prompt = own.pop("prompt", {})
            table = {**find_differing(to_data(train), to_data(recipe.train)), **({"method": own} if own else {})}
            table |= {"prompt": prompt} if prompt else {}
            recipe = replace(recipe, worlds={**recipe.worlds, place.world: table})
        recipe = replace(recipe, notes=tuple(dict.fromkeys((*recipe.notes, *notes))))
    return recipe


def find_differing(own: Document, common: Document) -> Document:
    """The entries of a document that differ from the common one."""
    differing: Document = {}
    for name, value in own.items():
        if isinstance(value, dict) and isinstance(common.get(name), dict):
            inner = find_differing(value, common[name])
            differing |= {name: inner} if inner else {}
        elif name not in common or value != common[name]:
            differing[name] = value
    return differing


def _check_place(place: WorldRecipe, world: Environment) -> None:
    train, schedule = place.train, place.settings.schedule
    if world.playable and train.split not in world.splits:
        raise unknown(f"split of world {world.name!r}", train.split, world.splits)
    if train.sft.imitates and not train.sft.from_:
        world.expert(train.sft.expert or None)
    elif train.sft.imitates and not Path(train.sft.from_).expanduser().is_file():
        raise TacitError(f"sft.from = {train.sft.from_!r}: the file does not exist.")
    elif train.sft.imitates:
        check_recordings(Path(train.sft.from_))
    if (most := math.ceil(schedule.groups * place.share)) > train.tasks:
        raise TacitError(f"groups = {most} different tasks cannot be drawn from a pool of tasks = {train.tasks}.")


def check_new_run(out: Path) -> None:
    if (out / SETTINGS).exists():
        raise TacitError(f"{out} already contains a run. Resume it with `{resume_command(out)}`, or name another --out.")
    check_output_directory(out)
    there = sorted(own.name for own in out.iterdir() if not own.name.startswith(".")) if out.is_dir() else []
    if foreign := [name for name in there if name not in UNSTARTED_FILES]:
        named = ", ".join(foreign[:3]) + (" and more" if len(foreign) > 3 else "")
        raise TacitError(f"--out {out} is neither empty nor a run: it has {named}. Name a new directory: --out {out / 'run'}.")


def check_output_file(file: Path, name: str) -> None:
    if file.is_dir():
        raise TacitError(f"{name} {file} is a directory; name a file.")
    check_output_directory(file.parent, name)


def check_output_directory(out: Path, name: str = "--out") -> None:
    """Refuse a directory that cannot be made or written to. `name`: the argument that sets it."""
    if out.exists() and not out.is_dir():
        raise TacitError(f"{name} {out} is a file, not a directory; name another.")
    place = next((p for p in (out, *out.absolute().parents) if p.exists()), Path("/"))
    if not place.is_dir():
        raise TacitError(f"cannot make the directory {out}: {place} is a file. Name another {name}.")
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise TacitError(f"cannot make the directory {out}: {place} is not writable. Name another {name}.") from error


TOKENIZERS = ("tokenizer*", "vocab*", "*.model", "*.tiktoken")  # files of which a model directory has at least one


def check_model(model: str) -> None:
    """Refuse a model that cannot exist, before anything heavy is imported. Hub ids are looked up when loaded."""
    path = Path(model).expanduser()
    if model in TINY_SIZES or model in BASES or model in AGENTS:
        return
    if path.is_dir():
        if (path / "settings.json").exists():
            raise TacitError(f"{model!r} is a run; to start from its weights use --model {path}/checkpoints/NAME/policy.")
        place = next((p for p in (path, path / "model") if (p / "config.json").is_file()), None)
        if place is None:
            raise TacitError(f"{model!r} has no config.json; give the directory of a saved transformers model.")
        if not any(True for pattern in TOKENIZERS for _ in place.glob(pattern)):
            raise TacitError(
                f"{model!r} has no tokenizer (tokenizer.json or the like); copy the model's tokenizer files into it, "
                "or save them there with tokenizer.save_pretrained."
            )
        return
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        remedy = "give a saved transformers model, or owner/name on the hub."
        raise TacitError(f"model {model!r}: the directory does not exist; {remedy}")
    if model.count("/") != 1:
        raise unknown_model(model, (*BASES, *TINY_SIZES, *AGENTS))


def _sections(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    """(prefix of the names, settings)"""
    for place in recipe.places:
        yield "", place.settings
        tables = {key: value for key, value in vars(place.settings).items() if is_dataclass(value)}
        yield from (("" if key in METHOD_TABLES else f"{key}.", table) for key, table in tables.items())
        yield "", place.train
        yield "sft.", place.train.sft
        yield "evaluation.", place.train.evaluation


def _check_context(recipe: Recipe, place: WorldRecipe, method: Method, world: Environment) -> None:
    """A tiny model's context length is known before it is built."""
    limit = completion_limit(place.train, method.context, world)
    if recipe.tiny is not None and limit >= recipe.tiny.context:
        raise TacitError(
            f"completions of up to {limit} tokens leave no room for a prompt in {recipe.model!r}'s context of "
            f"{recipe.tiny.context}; lower --max-tokens, raise --tiny.context, or use --style bare."
        )


# Resuming: which settings may change, and whether anything is left to do.

ON_RESUME = (
    "schedule.iterations", "evaluation.patience", "keep", "checkpoint_every", "workers", "workers_at", "world_timeout_s",
    "trajectories", "wandb",
)  # fmt: skip
"""settings that may change when a run is resumed, for the run or for one world; none affects finished iterations"""
MAY_CHANGE = f"{', '.join(ON_RESUME[:-1])} and {ON_RESUME[-1]}".removeprefix("schedule.")


def fixed_differences(before: Document, after: Document) -> list[str]:
    """`sft.lr=0.002`, `worlds.countdown.max_steps=5` for each changed setting that may not change."""
    old, new = flatten(before), flatten(after)
    changed = [place for place in sorted({*old, *new}) if old.get(place) != new.get(place)]
    # The path of a setting below [worlds.NAME]; a world's name may contain dots.
    fixed = [place for place in changed if ".".join(place[2:] if place[0] == "worlds" else place) not in ON_RESUME]
    return [f"{'.'.join(place)}={new.get(place)}" for place in fixed]


def is_finished(path: Path, before: Recipe, after: Recipe) -> bool:
    """True if a run with settings `before` has nothing left to do under `after`. Raises if it cannot continue with them."""
    # The run may have been moved.
    refused = fixed_differences(replace(before, out=path).to_json(), replace(after, out=path).to_json())
    if refused:
        method = [setting for setting in refused if setting.startswith("method.name=")]  # its other settings follow from it
        raise TacitError(
            f"a resumed run keeps its settings: {', '.join(method or refused)} differs from {path / SETTINGS}. Only "
            f"{MAY_CHANGE} may change; for other settings start a new run with another --out."
        )
    if (summary := find_summary(path)) is not None and summary.get("iterations") == after.schedule.iterations:
        # A run stopped by a callback continues. A run stopped by `patience` continues only if `patience` has changed.
        impatient = before.train.evaluation.patience == after.train.evaluation.patience
        if not (stopped := summary.get("stopped", "")) or (stopped == "patience" and impatient):
            return True
    newest = open_checkpoints(path).newest()
    if newest is None and (path / SUMMARY).exists():
        raise TacitError(
            f"{path} is finished, but its checkpoints are gone: resuming would start again and overwrite its metrics. Put "
            f"{path / 'checkpoints'} back from a copy, or start a new run with another --out."
        )
    if newest is not None and newest.stage == "rl" and newest.step > after.schedule.iterations:
        raise TacitError(
            f"iterations = {after.schedule.iterations}, but {path} has already done {newest.step}; "
            f"evaluate an earlier checkpoint with `tacit eval {path} --checkpoint NAME` instead."
        )
    return False
