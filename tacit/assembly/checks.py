"""What cannot work is refused with the reason before anything heavy is loaded: no torch is imported here."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.assembly.geometry import with_geometry
from tacit.assembly.recipe import Recipe
from tacit.core.errors import TacitError, install, unknown
from tacit.core.method import Method
from tacit.core.world import Environment
from tacit.credit.episode import BatchRelative
from tacit.credit.gae import GeneralisedAdvantage
from tacit.engines.models.bases import BASES
from tacit.engines.models.tiny import TINY_SIZES
from tacit.environments import get_environment
from tacit.runs.directory import SETTINGS
from tacit.training.train import completion_limit

Bound = tuple[Callable[[float], bool], str]

POSITIVE: Bound = (lambda v: v > 0, "must be above 0")
AT_LEAST_ONE: Bound = (lambda v: v >= 1, "must be at least 1")
NOT_NEGATIVE: Bound = (lambda v: v >= 0, "must not be negative")
SHARE: Bound = (lambda v: 0 <= v <= 1, "must be between 0 and 1")

BOUNDS: dict[str, Bound] = {
    "schedule.groups": AT_LEAST_ONE,
    "schedule.group_size": AT_LEAST_ONE,
    "schedule.iterations": NOT_NEGATIVE,
    "schedule.lr": NOT_NEGATIVE,
    "schedule.temperature": (lambda v: v > 0, "must be above 0 in training: greedy episodes of one task are all the same"),
    "schedule.top_p": (lambda v: 0 < v <= 1, "must be above 0 and at most 1"),
    "schedule.epochs": AT_LEAST_ONE,
    "schedule.minibatches": AT_LEAST_ONE,
    "train.tasks": AT_LEAST_ONE,
    "train.max_steps": NOT_NEGATIVE,
    "train.evaluation.max_steps": NOT_NEGATIVE,
    "train.max_tokens": NOT_NEGATIVE,
    "train.workers": NOT_NEGATIVE,
    "train.world_timeout_s": POSITIVE,
    "train.checkpoint_every": AT_LEAST_ONE,
    "train.keep": AT_LEAST_ONE,
    "sft.steps": NOT_NEGATIVE,
    "sft.batch": AT_LEAST_ONE,
    "sft.tasks": AT_LEAST_ONE,
    "sft.lr": NOT_NEGATIVE,
    "sft.warmup": SHARE,
    "sft.noise": (lambda v: 0 <= v < 1, "must be at least 0 and below 1"),
    "evaluation.tasks": AT_LEAST_ONE,
    "evaluation.repeats": AT_LEAST_ONE,
    "evaluation.every": NOT_NEGATIVE,
    "evaluation.temperature": (lambda v: v >= 0, "must not be negative; 0 is greedy"),
    "evaluation.top_p": (lambda v: 0 < v <= 1, "must be above 0 and at most 1"),
    "evaluation.top_k": (lambda v: v >= 0, "must not be negative; 0 keeps all tokens"),
    "method.history": (lambda v: v >= -1, "must be a number of turns, or -1 for all of them"),
    "method.bound": AT_LEAST_ONE,
    "method.clip_low": (lambda v: 0 < v <= 1, "must be above 0 and at most 1: the ratio is clipped to 1 - clip_low"),
    "method.clip_high": (lambda v: v > 0, "must be above 0: the ratio is clipped to 1 + clip_high"),
    "method.kl": NOT_NEGATIVE,
    "method.entropy": NOT_NEGATIVE,
    "method.invalid_penalty": NOT_NEGATIVE,
    "method.success_reward": POSITIVE,
    "method.gamma": SHARE,
    "method.lam": SHARE,
    "method.rounds": AT_LEAST_ONE,
    "method.step_weight": NOT_NEGATIVE,
    "method.similarity": (lambda v: 0 < v <= 1, "must be above 0 and at most 1, where observations must be equal"),
    "method.epsilon": (lambda v: v is None or 0 <= v <= 2, "must be between 0 and 2: it is a cosine distance"),
    "method.key_tokens": AT_LEAST_ONE,
    "method.value_coefficient": NOT_NEGATIVE,
}
"""by section and field; a method that has no such field is not asked"""


def open_world(name: str) -> Environment:
    """The world, or why not: its name is unknown, or what it needs is not installed."""
    try:
        return get_environment(name)
    except ImportError as error:
        raise TacitError(f"world {name!r} needs {error.name or error}, which cannot be imported here.") from error


def check_values(recipe: Recipe) -> None:
    """Every number within the bounds that make sense of it."""
    for section, settings in _sections(recipe):
        for name, value in vars(settings).items():
            holds, reason = BOUNDS.get(f"{section}.{name}", (None, ""))
            if holds is not None and not holds(value):
                shown = name if section in ("train", "method", "schedule") else f"{section}.{name}"
                raise TacitError(f"{shown} = {value} {reason}.")


def check_sampling(recipe: Recipe, world: Environment) -> Recipe:
    """What playing a panel needs, trained or not. Returns the recipe with its split said."""
    check_values(recipe)
    check_model(recipe.model)
    if recipe.model in TINY_SIZES and world.example_texts is None:
        raise TacitError(
            f"model {recipe.model!r} trains its tokenizer on the world's text, and world {world.name!r} offers none; "
            "give a checkpoint or a hub id as --model."
        )
    return with_split(recipe, world)


def with_split(recipe: Recipe, world: Environment) -> Recipe:
    """The recipe with the split it is measured on said, also where that is the world's own: what is written down must not
    change its meaning with the world. Refused where a split does not exist."""
    measured = recipe.train.evaluation
    world.check_families(recipe.train.family_names)
    for split, _ in measured.further_panels:
        world.split_to_measure(split)
    if measured.panel and not measured.split:
        return recipe  # tasks of the user's own: no split is asked
    measured = replace(measured, split=world.split_to_measure(measured.split))
    return replace(recipe, train=replace(recipe.train, evaluation=measured))


def check_training(recipe: Recipe, world: Environment) -> tuple[Recipe, Method]:
    """The method, built, and the recipe with what the method needs of the engine turned on."""
    recipe = check_sampling(recipe, world)
    train, schedule = recipe.train, recipe.schedule
    if train.split not in world.splits:
        raise unknown(f"split of world {world.name!r}", train.split, world.splits)
    if not train.sft.steps and not schedule.iterations:
        raise TacitError("sft.steps and iterations are both 0, so nothing would be trained; to measure only, use `tacit eval`.")
    if train.sft.steps:
        world.expert(train.sft.expert or None)
    if schedule.groups > train.tasks:
        raise TacitError(f"groups = {schedule.groups} different tasks cannot be drawn from a pool of tasks = {train.tasks}.")
    if train.wandb and importlib.util.find_spec("wandb") is None:
        raise TacitError(f"wandb is not installed; {install('wandb')}, or leave --wandb out.")
    recipe = with_geometry(recipe)
    method = recipe.settings.build(world)
    if schedule.iterations and schedule.group_size < 2 and needs_groups(method):
        raise TacitError(
            f"group_size = {schedule.group_size} gives {recipe.method!r} nothing to compare an episode with, so every "
            "advantage would be 0; use at least 2, or a method with its own baseline (ppo, reinforce_pp)."
        )
    _check_context(recipe, method, world)
    return _with_value_head(recipe, method), method


def needs_groups(method: Method) -> bool:
    """True where an episode is compared with others of its task. A learned value or the whole batch needs no group."""

    def alone(term: Any) -> bool:
        return isinstance(term, GeneralisedAdvantage) or (isinstance(term, BatchRelative) and term.baseline == "none")

    return method.selection is not None or not all(alone(term) for term in method.credits)


def check_new_run(out: Path) -> None:
    if (out / SETTINGS).exists():
        raise TacitError(f"{out} already holds a run. Continue it with `tacit train --resume {out}`, or name another --out.")
    if out.exists() and not out.is_dir():
        raise TacitError(f"--out {out} is a file, not a directory; name another.")
    place = next((p for p in (out, *out.absolute().parents) if p.exists()), Path("/"))
    if not place.is_dir():
        raise TacitError(f"cannot make the run directory {out}: {place} is a file. Name another --out.")
    if not os.access(place, os.W_OK):
        raise TacitError(f"cannot make the run directory {out}: {place} is not writable. Name another --out.")


def check_model(model: str) -> None:
    """Refuse a model that cannot exist, before anything heavy is imported. A hub id is only looked up when it is loaded."""
    path = Path(model).expanduser()
    if model in TINY_SIZES or model in BASES:
        return
    if path.is_dir():
        if (path / "settings.json").exists():
            raise TacitError(f"{model!r} is a run; to start from its weights give {path}/checkpoints/NAME/policy.")
        if not any((p / "config.json").is_file() for p in (path, path / "model")):
            raise TacitError(f"{model!r} is a directory without config.json; give the directory of a saved transformers model.")
        return
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise TacitError(f"no model at {model!r}: there is no such directory.")
    if model.count("/") != 1:
        if model.lower().startswith("smol"):
            raise TacitError(f"unknown model {model!r}. Make it with `tacit prepare smollm2 DIR`, then give --model DIR.")
        raise unknown("model", model, [*BASES, *TINY_SIZES, "path/to/checkpoint", "owner/name"])


def _sections(recipe: Recipe) -> Iterator[tuple[str, Any]]:
    yield "method", recipe.settings
    yield "schedule", recipe.schedule
    yield "train", recipe.train
    yield "sft", recipe.train.sft
    yield "evaluation", recipe.train.evaluation


def _check_context(recipe: Recipe, method: Method, world: Environment) -> None:
    """A tiny policy's context is known before it is built."""
    limit = completion_limit(recipe.train, method, world)
    if recipe.tiny is not None and limit >= recipe.tiny.context:
        raise TacitError(
            f"completions of up to {limit} tokens leave no room for a prompt in {recipe.model!r}'s context of "
            f"{recipe.tiny.context}; lower --max-tokens, raise --tiny.context, or use --style bare."
        )


def _with_value_head(recipe: Recipe, method: Method) -> Recipe:
    if "values" not in method.needs or recipe.engine.value_head:
        return recipe
    note = f"{recipe.method} learns a value, so engine.value_head = true"
    return replace(recipe, engine=replace(recipe.engine, value_head=True), notes=(*recipe.notes, note))
