"""`tacit modules`: train skill modules, export one from a run, list, verify; more in `modules_sharing` and `modules_cost`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from tacit.assembly.checks import open_world
from tacit.assembly.flags import Option, Parser
from tacit.assembly.recipe import Recipe, override, read_document
from tacit.assembly.recipes import run_recipe
from tacit.cli.drafting import draft_rewards, draft_tracker
from tacit.cli.logs import add_logs_flag, show_logs
from tacit.cli.modules_cost import cost
from tacit.cli.modules_sharing import install_module, pack_module
from tacit.cli.terminal import interval, make_console, percent, say, table
from tacit.cli.train import CONFIG_HELP, TrainParser, add_training_options, carry_out, glance
from tacit.core.amounts import number_of
from tacit.core.errors import TacitError, unknown
from tacit.modules.checking import problems
from tacit.modules.logs import find_logs
from tacit.modules.module import Module, find_modules
from tacit.modules.players import home_of_modules
from tacit.modules.teaching import COVERAGE, LOGS, card, plan_from_logs, with_defaults
from tacit.modules.training import ALL, export_run, plan_lessons, train_modules

SUMMARY_LINE = "Skill modules: one small adapter (or tiny model) for each kind of work, as directories."
USAGE = """usage: tacit modules train [--config FILE] [settings] [--from LOGS] [--skills all|unified|NAME,…] --out DIR
       tacit modules export RUN --out DIR [--checkpoint NAME]
       tacit modules [list] DIR
       tacit modules verify DIR [--base-model MODEL]
       tacit modules draft-tracker --from LOGS (--endpoint URL --model NAME | --model MODEL | --check FILE) --out DIR
       tacit modules draft-rewards --tracker FILE --from LOGS (--endpoint URL --model NAME | --model MODEL) --out DIR
       tacit modules pack MODULE FILE
       tacit modules install FILE|DIR|https://…|hf:OWNER/NAME --out DIR [--verify]
       tacit modules cost MODULES [--against MODEL] [--endpoint URL --model NAME]

{summary}

  train   for every skill of a world: imitate, then practise, then export; the same command continues what was stopped
          --from LOGS imitates recorded episodes; without --world it ends there
  export  a checkpoint of a run as a module
  list    what there is: families, base, tracker, scores after SFT and RL, size
  verify  every file against its hash, tracker and wording against this version's, the base against its fingerprint
  draft-tracker  let a model write a tracker from a handful of episodes, look at it, and check it against all of them
  draft-rewards  the same for the rewards of a tracker there is
  pack    a module as one file, with fingerprints, a card, the licence of its base and its scores
  install one that somebody packed: checked before anything is written; --verify plays its panel again
  cost    tokens, seconds and memory per episode beside a prompted model's, and what leaves the machine

`tacit modules COMMAND --help` says what a command takes. Play them: tacit play --policy DIR, tacit eval DIR."""
CHECKPOINT_HELP = "newest, best, sft, rl, or a name such as rl-000020 (default: newest)"
MODULES_OPTION = Option("out", ("out",), Path, MISSING, "directory of the modules, and of the runs they come from")


def run(argv: Sequence[str]) -> int:
    words = list(argv)
    if not words or words[0] in ("-h", "--help"):
        print(USAGE.format(summary=SUMMARY_LINE))
        return 0
    commands = {
        "train": train,
        "export": export,
        "list": list_modules,
        "verify": verify,
        "draft-tracker": draft_tracker,
        "draft-rewards": draft_rewards,
    }
    commands |= {"pack": pack_module, "install": install_module, "cost": cost}
    if words[0] in commands:
        return commands[words[0]](words[1:])
    if words[0].isalpha() and not Path(words[0]).exists():
        raise unknown("command or directory", words[0], commands)
    return list_modules(words)


def train(argv: Sequence[str]) -> int:
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
    add_logs_flag(parser, "imitate these recorded episodes; without --world there is no practice", required=False)
    add_training_options(parser, *glance(argv, resumable=False), out=MODULES_OPTION)
    arguments, said = parser.parse(argv)
    document = override(read_document(arguments.config) if arguments.config else {}, said)
    recipe = Recipe.from_json(with_defaults(document, find_logs(arguments.logs)) if arguments.logs else document)
    # A run has a place where none is named; modules have not.
    if ("out",) not in said and (arguments.config is None or "out" not in read_document(arguments.config)):
        raise TacitError("where to? Name the directory of the modules with --out DIR.")
    out, console = recipe.out, make_console()
    told = partial(say, console)
    if arguments.logs:
        taught = plan_from_logs(recipe, arguments.skills, out, arguments.logs)
        show_logs(console, taught.logs, taught.covered, out / LOGS / COVERAGE)
        for skill, why in taught.without.items():
            told(f"{skill}: no module, {why}")
        code = train_modules(taught.lessons, out, arguments.checkpoint, carry_out, told, card)
    else:
        code = train_modules(plan_lessons(recipe, arguments.skills, out), out, arguments.checkpoint, carry_out, told)
    if code:
        return code
    console.print()
    show_modules(console, find_modules(out))
    if not open_world(recipe.world).playable:
        say(console, f"\nNext: tacit serve {out}        or Agent.load({str(out)!r}) in a program of yours")
        return 0
    say(console, f"\nNext: tacit eval {out}        every task by the module of its family\n      tacit play --policy {out}")
    return 0


def export(argv: Sequence[str]) -> int:
    parser = Parser("modules export", "Export a checkpoint of a run as a skill module.")
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="directory of modules; the new one is DIR/SKILL")
    parser.add_argument("--checkpoint", default="newest", metavar="NAME", help=CHECKPOINT_HELP)
    parser.add_argument(
        "--skill", default="", metavar="NAME", help="what to call it (default: the world's word for its families)"
    )
    parser.add_argument("--world", default="", metavar="NAME", help="of a run in several worlds: the one it is a module for")
    arguments, _ = parser.parse(argv)
    made = export_run(arguments.run, arguments.checkpoint, arguments.out, arguments.skill, arguments.world)
    say(make_console(), f"{made.path}: {made.run['checkpoint']} of {arguments.run}, for {', '.join(made.families)}")
    return 0


def list_modules(argv: Sequence[str]) -> int:
    parser = _parser_of_a_directory("modules list", "List the skill modules of a directory.")
    parser.add_argument("--json", action="store_true", help="print them as one JSON object")
    arguments, _ = parser.parse(argv)
    modules = find_modules(home_of_modules(arguments.directory))
    if arguments.json:
        print(json.dumps({skill: module.to_json() for skill, module in modules.items()}))
        return 0
    show_modules(make_console(), modules)
    return 0


def verify(argv: Sequence[str]) -> int:
    parser = _parser_of_a_directory(
        "modules verify", "Check skill modules: their files, their tracker, their wording and their base."
    )
    parser.add_argument("--base-model", metavar="MODEL", help="where the base model lies, if not where it was in training")
    arguments, _ = parser.parse(argv)
    console, wrong = make_console(), 0
    for skill, module in find_modules(home_of_modules(arguments.directory)).items():
        found = problems(module, arguments.base_model)
        wrong += bool(found)
        say(console, f"{skill}: {'; '.join(found) if found else _verified(module)}", style="red" if found else "")
    if wrong:
        raise TacitError(f"{wrong} of the modules in {arguments.directory} cannot be played here.")
    return 0


def _parser_of_a_directory(command: str, summary: str) -> Parser:
    parser = Parser(command, summary)
    parser.add_argument("directory", type=Path, metavar="DIR", help="a module, or a directory of modules")
    return parser


def _verified(module: Module) -> str:
    base = f", base {module.base.model} {module.fingerprint[:12]}" if module.adapter else ""
    tracker = f", tracker {module.tracker}" if module.tracker else ""
    return f"{len(module.files)} files as they were written{tracker}{base}"


def show_modules(console: Console, modules: Mapping[str, Module]) -> None:
    columns = ("skill", "families", "base", "tracker", "after SFT", "after RL", "episodes", "size")
    rows = []
    for skill, module in modules.items():
        measured = module.scores.get("rl") or module.scores.get("sft")
        base = f"{module.base.model} {module.fingerprint[:12]}" if module.adapter else "own weights"
        scores, episodes = [_score(module.scores.get(s)) for s in ("sft", "rl")], str(measured["episodes"]) if measured else "-"
        rows.append((skill, ", ".join(module.families), base, module.tracker or "-", *scores, episodes, _bytes(module.size)))
    console.print(table("", columns, rows, numbers=("after SFT", "after RL", "episodes", "size")))
    for skill, module in modules.items():
        if module.taught and not module.scores:
            say(console, f"{skill}: {_taught(module.taught)}", style="dim")
    for panel in dict.fromkeys((s["panel"], s["panel_hash"]) for m in modules.values() for s in m.scores.values()):
        say(console, f"panel {panel[0]} (hash {panel[1]})", style="dim")


def _taught(taught: Mapping[str, Any]) -> str:
    """`taught from 22 logged episodes alone, never practised or played; does as they did at 71.0% of 40 turns kept back`"""
    practised = "then practised" if taught["practised"] else "never practised or played"
    said = f"taught from {number_of(taught['episodes'], 'logged episode')} alone, {practised}"
    if not taught.get("kept_turns"):
        return said
    return (
        f"{said}; does as they did at {percent(taught['same_action'])} of {number_of(taught['kept_turns'], 'turn')} kept back"
    )


def _score(score: Mapping[str, Any] | None) -> str:
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
