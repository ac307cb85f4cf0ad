"""`tacit modules train`: one module for every skill of a world, or one for all of them.

For each skill an ordinary run under DIR/runs/<skill>, told to train and measure on the skill's families: imitation, then
practice, as the settings say. Then it is exported as DIR/<skill>. Finished runs are skipped and stopped ones go on where they
were, so the same command, given again after whatever happened, ends with the same modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, replace
from pathlib import Path

from tacit.assembly.checks import check_new_run, check_training, open_world
from tacit.assembly.flags import Option
from tacit.assembly.recipe import Recipe
from tacit.assembly.recipes import run_recipe
from tacit.cli.modules.view import CHECKPOINT_HELP, find_checkpoint, show_modules, trained_by
from tacit.cli.train import CONFIG_HELP, TrainParser, add_training_options, carry_out, glance, is_finished
from tacit.core.errors import TacitError, unknown
from tacit.core.world import Environment
from tacit.runs.directory import SETTINGS, read_settings

ALL, RUNS = "all", "runs"
MODULES_OPTION = Option("out", ("out",), Path, MISSING, "directory of the modules, and of the runs they come from")


def run(argv: Sequence[str]) -> int:
    parser = TrainParser(
        "modules train",
        "Train a skill module for every skill of a world: imitation, then practice, then export.",
        usage="tacit modules train [--config FILE] [settings] [--skills all|unified|NAME,…] [--out DIR]",
        epilog="The same command continues what was stopped. --engine.lora-rank makes each an adapter on one frozen base.",
    )
    parser.add_argument("--config", type=run_recipe, metavar="FILE", help=CONFIG_HELP)
    skills_help = "all (default), unified (one module for all families), or names: heat,cool"
    parser.add_argument("--skills", default=ALL, metavar="NAMES", help=skills_help)
    parser.add_argument("--checkpoint", default="newest", metavar="NAME", help=f"what to export: {CHECKPOINT_HELP}")
    add_training_options(parser, *glance(argv, resumable=False), out=MODULES_OPTION)
    arguments, said = parser.parse(argv)
    recipe = Recipe.resolve(arguments.config, said)
    world = open_world(recipe.world)
    if recipe.train.families:
        raise TacitError("a module's skill decides its families; leave `families` out, and choose skills with --skills.")
    out = _out(arguments.config, said, recipe)
    skills = choose_skills(world, arguments.skills)
    planned = [(skill, *check_training(_recipe_of(recipe, skill, skills[skill], world, out), world)) for skill in skills]
    for number, (skill, own, method) in enumerate(planned, start=1):
        place = own.out
        started = (place / SETTINGS).exists()
        if not started:
            check_new_run(place)
        elif is_finished(place, Recipe.from_json(read_settings(place)), own):
            _say(f"{skill}: {place} is finished")
            _export(place, out, skill, arguments.checkpoint)
            continue
        _say(f"\nskill {number} of {len(planned)}: {skill}, for {', '.join(skills[skill])}")
        if code := carry_out(own, method, world, resume=started):
            _say("Or give the same command again, which goes on from here with all skills.")
            return code
        _export(place, out, skill, arguments.checkpoint)
    _show(out)
    return 0


def choose_skills(world: Environment, names: str) -> dict[str, tuple[str, ...]]:
    """skill -> its families, for `all`, `unified`, or names with commas between."""
    from tacit.modules.module import UNIFIED

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


def _recipe_of(recipe: Recipe, skill: str, families: tuple[str, ...], world: Environment, out: Path) -> Recipe:
    """All families together are none in particular: such a run is measured on the panel that any other is."""
    named = "" if set(families) == set(world.families) else ",".join(families)
    return replace(recipe, out=out / RUNS / skill, train=replace(recipe.train, families=named))


def _out(config: Path | None, said: dict[tuple[str, ...], object], recipe: Recipe) -> Path:
    """Where the modules go: what was said, not a run's default."""
    from tacit.assembly.recipe import read_document

    if ("out",) in said or (config is not None and "out" in read_document(config)):
        return recipe.out
    raise TacitError("where to? Name the directory of the modules with --out DIR.")


def _export(run: Path, out: Path, skill: str, checkpoint: str) -> None:
    from tacit.modules.export import export_module, is_exported
    from tacit.modules.module import MANIFEST, read_module

    found, place = find_checkpoint(run, checkpoint), out / skill
    if (place / MANIFEST).is_file() and is_exported(found, read_module(place)):
        return
    module = export_module(trained_by(run), found, out, skill)
    _say(f"{skill}: {module.run['checkpoint']} exported to {module.path}")


def _show(out: Path) -> None:
    from tacit.cli.terminal import make_console
    from tacit.modules.module import find_modules

    _say("")
    show_modules(make_console(), find_modules(out))
    _say(f"\nNext: tacit eval {out}        every task by the module of its family\n      tacit play --policy {out}")


def _say(text: str) -> None:
    from tacit.cli.terminal import make_console, say

    say(make_console(), text)
