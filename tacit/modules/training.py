"""One module for every skill of a world, or one for all of them.

For each skill an ordinary run under DIR/runs/<skill>, told to train and measure on the skill's families: imitation, then
practice, as the settings say. Then it is exported as DIR/<skill>. Finished runs are skipped and stopped ones go on where they
were, so the same command, given again after whatever happened, ends with the same modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tacit.assembly.checks import Prepared, check_new_run, open_world, prepare
from tacit.assembly.recipe import Recipe
from tacit.assembly.resuming import is_finished
from tacit.core.errors import TacitError, unknown
from tacit.core.world import Environment
from tacit.modules.base import Base
from tacit.modules.export import Trained, export_module, is_exported
from tacit.modules.module import MANIFEST, UNIFIED, Module, read_module
from tacit.runs.checkpoints import Checkpoint
from tacit.runs.directory import SETTINGS, read_settings, saved_checkpoints
from tacit.training.practice import completion_limit, evaluation_sampling

ALL, RUNS = "all", "runs"
Train = Callable[[Prepared, bool], int]
"""does a run, or goes on with it where the last says so; 0 where it was finished"""


@dataclass(frozen=True)
class Lesson:
    """A skill, and the run that is to teach it."""

    skill: str
    families: tuple[str, ...]
    prepared: Prepared

    @property
    def recipe(self) -> Recipe:
        return self.prepared.recipe


def choose_skills(world: Environment, names: str) -> dict[str, tuple[str, ...]]:
    """skill -> its families, for `all`, `unified`, or names with commas between."""
    known = {**world.skill_families, UNIFIED: world.families}
    if names == ALL:
        return dict(world.skill_families)
    chosen = [name.strip() for name in names.split(",") if name.strip()]
    if not chosen:
        raise TacitError(f"--skills names none; there are {ALL}, {', '.join(known)}.")
    for name in chosen:
        if name not in known:
            raise unknown(f"skill of world {world.name!r}", name, [*known, ALL])
    return {name: known[name] for name in chosen}


def plan_lessons(recipe: Recipe, skills: str, out: Path) -> list[Lesson]:
    """What cannot be trained is refused here, before anything is written."""
    world = open_world(recipe.world)
    if recipe.train.families:
        raise TacitError("a module's skill decides its families; leave `families` out, and choose skills with --skills.")
    planned = []
    for skill, families in choose_skills(world, skills).items():
        # All families together are none in particular: such a run is measured on the panel that any other is.
        named = "" if set(families) == set(world.families) else ",".join(families)
        own = replace(recipe, out=out / RUNS / skill, train=replace(recipe.train, families=named))
        planned.append(Lesson(skill, families, prepare(own)))
    return planned


def train_modules(
    planned: Sequence[Lesson],
    out: Path,
    checkpoint: str,
    train: Train,
    say: Callable[[str], None],
    card: Callable[[Lesson, Checkpoint], Mapping[str, Any]] = lambda lesson, checkpoint: {},
) -> int:
    """Every run that is not done, and every module that is not there; the code of the run that was stopped, else 0. `card`:
    what a module says of its teaching."""
    for number, lesson in enumerate(planned, start=1):
        place = lesson.recipe.out
        started = (place / SETTINGS).exists()
        if started and is_finished(place, Recipe.from_json(read_settings(place)), lesson.recipe):
            say(f"{lesson.skill}: {place} is finished")
        else:
            if not started:
                check_new_run(place)
            say(f"\nskill {number} of {len(planned)}: {lesson.skill}, for {', '.join(lesson.families)}")
            if code := train(lesson.prepared, started):
                say("Or give the same command again, which goes on from here with all skills.")
                return code
        found = find_checkpoint(place, checkpoint)
        if not _is_there(found, out / lesson.skill):
            trained = replace(trained_by(place), families=lesson.families, taught=card(lesson, found))
            module = export_module(trained, found, out, lesson.skill)
            say(f"{lesson.skill}: {module.run['checkpoint']} exported to {module.path}")
    return 0


def export_run(run: Path, checkpoint: str, out: Path, skill: str = "", world: str = "") -> Module:
    trained = trained_by(run, world)
    if not trained.world.playable:
        raise TacitError(
            f"{run} was taught from logs alone, and its families and its card come from them: give the command again that made "
            "it (tacit modules train --from …), with --checkpoint for another one."
        )
    return export_module(trained, find_checkpoint(run, checkpoint), out, skill)


def trained_by(run: Path, where: str = "") -> Trained:
    """What the run at this place knows of the policy it made. A module is for one world: `where`, if the run has several."""
    document = read_settings(run)
    whole = replace(Recipe.from_json(document), out=run)
    recipe = whole.alone(where)
    if whole.tiny is not None and len(whole.places) > 1:
        raise TacitError(
            f"{run} began from scratch in several worlds, so its words are those of all of them, and a module knows one. Begin "
            "from a saved model (--model tiny-base)."
        )
    world = open_world(recipe.world)
    context = recipe.settings.context(world)
    return Trained(
        path=run,
        world=world,
        world_name=recipe.world,
        families=recipe.train.family_names,
        context=context,
        base=Base(recipe.model, recipe.train.seed, recipe.tiny),
        sampling=evaluation_sampling(recipe.train, completion_limit(recipe.train, context, world)),
        max_steps=recipe.train.evaluation.max_steps or world.max_steps,
        settings=document if len(whole.places) == 1 else recipe.to_json(),
    )


def find_checkpoint(run: Path, name: str) -> Checkpoint:
    saved = saved_checkpoints(run)
    if not saved.all():
        raise TacitError(f"{run} has no checkpoint yet, so there is nothing to export.")
    return saved.find(name)


def _is_there(checkpoint: Checkpoint, place: Path) -> bool:
    return (place / MANIFEST).is_file() and is_exported(checkpoint, read_module(place))
