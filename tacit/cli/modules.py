"""`tacit modules`: train skill modules, export one from a run, list and verify them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.cli.checks import open_world
from tacit.cli.options import Parser
from tacit.cli.recipe import Recipe
from tacit.core.errors import TacitError
from tacit.training.checkpoints import Checkpoint
from tacit.training.run import read_settings, saved_checkpoints
from tacit.training.train import completion_limit, evaluation_sampling

if TYPE_CHECKING:
    from rich.console import Console

    from tacit.modules.export import Trained
    from tacit.modules.module import Module

SUMMARY_LINE = "Skill modules: one small adapter (or tiny model) for each kind of work, as directories."
USAGE = """usage: tacit modules train [--config FILE] [settings] [--skills all|unified|NAME,…] --out DIR
       tacit modules export RUN --out DIR [--checkpoint NAME]
       tacit modules [list] DIR
       tacit modules verify DIR [--base MODEL]

{summary}

  train   for every skill of a world: imitate, then practise, then export; the same command continues what was stopped
  export  a checkpoint of a run as a module
  list    what there is: families, base, tracker, scores after SFT and RL, size
  verify  every file against its hash, the tracker against this version's, the base against its fingerprint

`tacit modules COMMAND --help` says what a command takes. Play them: tacit play --policy DIR, tacit eval DIR."""


def run(argv: Sequence[str]) -> int:
    words = list(argv)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE.format(summary=SUMMARY_LINE))
        return 0
    if words[0] == "train":
        from tacit.cli.modules_train import run as train

        return train(words[1:])
    commands = {"export": export, "list": list_modules, "verify": verify}
    return commands[words[0]](words[1:]) if words[0] in commands else list_modules(words)


def export(argv: Sequence[str]) -> int:
    parser = Parser("modules export", "Export a checkpoint of a run as a skill module.")
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory of modules; the new one is DIR/SKILL")
    parser.add_argument("--checkpoint", default="newest", metavar="NAME", help=CHECKPOINT_HELP)
    parser.add_argument(
        "--skill", default="", metavar="NAME", help="what to call it (default: the world's word for its families)"
    )
    arguments, _ = parser.parse(argv)
    from tacit.cli.terminal import make_console, say
    from tacit.modules.export import export_module

    trained = trained_by(arguments.run)
    module = export_module(trained, find_checkpoint(arguments.run, arguments.checkpoint), arguments.out, arguments.skill)
    say(make_console(), f"{module.path}: {module.run['checkpoint']} of {arguments.run}, for {', '.join(module.families)}")
    return 0


CHECKPOINT_HELP = "newest, best, sft, rl, or a name such as rl-000020 (default: newest)"


def list_modules(argv: Sequence[str]) -> int:
    parser = Parser("modules list", "List the skill modules of a directory.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="a module, or a directory of modules")
    parser.add_argument("--json", action="store_true", help="print them as one JSON object")
    arguments, _ = parser.parse(argv)
    from tacit.cli.terminal import make_console
    from tacit.modules.module import find_modules

    modules = find_modules(arguments.directory)
    if arguments.json:
        print(json.dumps({skill: module.to_json() for skill, module in modules.items()}))
        return 0
    show_modules(make_console(), modules)
    return 0


def verify(argv: Sequence[str]) -> int:
    parser = Parser("modules verify", "Check skill modules: their files, their tracker and their base.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="a module, or a directory of modules")
    parser.add_argument("--base", metavar="MODEL", help="where the base model lies, if not where it was in training")
    arguments, _ = parser.parse(argv)
    from tacit.cli.terminal import make_console, say
    from tacit.modules.module import find_modules

    console, wrong = make_console(), 0
    for skill, module in find_modules(arguments.directory).items():
        problems = _problems(module, arguments.base)
        wrong += bool(problems)
        say(console, f"{skill}: {'; '.join(problems) if problems else _verified(module)}", style="red" if problems else "")
    if wrong:
        raise TacitError(f"{wrong} of the modules in {arguments.directory} cannot be played here.")
    return 0


def trained_by(run: Path) -> Trained:
    """What the run at this place knows of the policy it made."""
    from tacit.modules.base import Base
    from tacit.modules.export import Trained

    document = read_settings(run)
    recipe = Recipe.from_json(document)
    world = open_world(recipe.world)
    method = recipe.settings.build(world)
    return Trained(
        path=run,
        world=world,
        world_name=recipe.world,
        families=recipe.train.family_names,
        context=method.context,
        base=Base(recipe.model, recipe.train.seed, recipe.tiny),
        sampling=evaluation_sampling(recipe.train, completion_limit(recipe.train, method, world)),
        max_steps=recipe.train.evaluation.max_steps or world.max_steps,
        settings=document,
    )


def find_checkpoint(run: Path, name: str) -> Checkpoint:
    saved = saved_checkpoints(run)
    if not saved.all():
        raise TacitError(f"{run} has no checkpoint yet, so there is nothing to export.")
    return saved.find(name)


def show_modules(console: Console, modules: Mapping[str, Module]) -> None:
    from tacit.cli.terminal import say, table

    columns = ("skill", "families", "base", "tracker", "after SFT", "after RL", "episodes", "size")
    rows = []
    for skill, module in modules.items():
        measured = module.scores.get("rl") or module.scores.get("sft")
        rows.append(
            (
                skill,
                ", ".join(module.families),
                f"{module.base.model} {module.fingerprint[:12]}" if module.adapter else "own weights",
                module.tracker or "-",
                _score(module.scores.get("sft")),
                _score(module.scores.get("rl")),
                str(measured["episodes"]) if measured else "-",
                _bytes(module.size),
            )
        )
    console.print(table("", columns, rows, numbers=("after SFT", "after RL", "episodes", "size")))
    for panel in dict.fromkeys((s["panel"], s["panel_hash"]) for m in modules.values() for s in m.scores.values()):
        say(console, f"panel {panel[0]} (hash {panel[1]})", style="dim")


def _problems(module: Module, base: str | None) -> list[str]:
    """Everything that is wrong with a module here, not only the first."""
    found = module.damage()
    try:
        world = open_world(module.world)
        module.check_tracker(world)
        if module.adapter:
            here = module.base.elsewhere(base)
            module.check_base(here.model, here.fingerprint(world))
    except TacitError as error:
        found.append(str(error))
    return found


def _verified(module: Module) -> str:
    base = f", base {module.base.model} {module.fingerprint[:12]}" if module.adapter else ""
    tracker = f", tracker {module.tracker}" if module.tracker else ""
    return f"{len(module.files)} files as they were written{tracker}{base}"


def _score(score: Mapping[str, Any] | None) -> str:
    from tacit.cli.terminal import interval, percent

    return f"{percent(score['success'])} {interval(score['interval'])}" if score else "-"


def _bytes(size: float) -> str:
    """
    >>> _bytes(75_000)
    '75.0 kB'
    """
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.1f} {unit}" if unit != "B" else f"{size:.0f} B"
        size /= 1000
    return f"{size:.1f} GB"
