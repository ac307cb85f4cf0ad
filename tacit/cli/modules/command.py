"""`tacit modules`: train skill modules, export one from a run, list and verify them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.assembly.checks import open_world
from tacit.assembly.flags import Parser
from tacit.cli.modules.view import CHECKPOINT_HELP, find_checkpoint, show_modules, trained_by
from tacit.core.errors import TacitError, unknown

if TYPE_CHECKING:
    from tacit.modules.module import Module

SUMMARY_LINE = "Skill modules: one small adapter (or tiny model) for each kind of work, as directories."
USAGE = """usage: tacit modules train [--config FILE] [settings] [--skills all|unified|NAME,…] --out DIR
       tacit modules export RUN --out DIR [--checkpoint NAME]
       tacit modules [list] DIR
       tacit modules verify DIR [--base-model MODEL]

{summary}

  train   for every skill of a world: imitate, then practise, then export; the same command continues what was stopped
  export  a checkpoint of a run as a module
  list    what there is: families, base, tracker, scores after SFT and RL, size
  verify  every file against its hash, tracker and wording against this version's, the base against its fingerprint

`tacit modules COMMAND --help` says what a command takes. Play them: tacit play --policy DIR, tacit eval DIR."""


def run(argv: Sequence[str]) -> int:
    words = list(argv)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE.format(summary=SUMMARY_LINE))
        return 0
    commands = {"train": train, "export": export, "list": list_modules, "verify": verify}
    if words[0] in commands:
        return commands[words[0]](words[1:])
    if words[0].isalpha() and not Path(words[0]).exists():
        raise unknown("command or directory", words[0], commands)
    return list_modules(words)


def train(argv: Sequence[str]) -> int:
    from tacit.cli.modules.train import run

    return run(argv)


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
    parser = Parser("modules verify", "Check skill modules: their files, their tracker, their wording and their base.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="a module, or a directory of modules")
    parser.add_argument("--base-model", metavar="MODEL", help="where the base model lies, if not where it was in training")
    arguments, _ = parser.parse(argv)
    from tacit.cli.terminal import make_console, say
    from tacit.modules.module import find_modules

    console, wrong = make_console(), 0
    for skill, module in find_modules(arguments.directory).items():
        problems = _problems(module, arguments.base_model)
        wrong += bool(problems)
        say(console, f"{skill}: {'; '.join(problems) if problems else _verified(module)}", style="red" if problems else "")
    if wrong:
        raise TacitError(f"{wrong} of the modules in {arguments.directory} cannot be played here.")
    return 0


def _problems(module: Module, base: str | None) -> list[str]:
    """Everything that is wrong with a module here, not only the first."""
    from tacit.modules.prompting import make_context

    found = module.damage()
    try:
        world = open_world(module.world)
    except TacitError as error:
        return [*found, str(error)]
    checks: tuple[Callable[[], object], ...] = (
        lambda: module.check_tracker(world),
        lambda: make_context(module.context, world),
        lambda: module.check_wording(world),
        lambda: module.check_base(module.base.elsewhere(base), world),
    )
    for check in checks:
        try:
            check()
        except TacitError as error:
            found.append(str(error))
    return found


def _verified(module: Module) -> str:
    base = f", base {module.base.model} {module.fingerprint[:12]}" if module.adapter else ""
    tracker = f", tracker {module.tracker}" if module.tracker else ""
    return f"{len(module.files)} files as they were written{tracker}{base}"
