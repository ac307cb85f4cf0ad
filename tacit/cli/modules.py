"""`tacit modules`: train, export, list, verify, push, pull, pack, install and price skill modules."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from tacit.cli.drafting import add_logs_flag, draft_rewards, draft_tracker, show_logs
from tacit.cli.terminal import add_panel_options, ask_yes, dispatch, interval, make_console, percent, say, table
from tacit.cli.train import CONFIG_HELP, TrainParser, add_training_options, peek_arguments, run_prepared
from tacit.config.checks import check_output_directory, open_world
from tacit.config.flags import Option, Parser, check_at_least_one, options_of, section_options
from tacit.config.recipe import Overrides, Recipe, override, read_document, run_recipe
from tacit.core.errors import TacitError
from tacit.core.progress import pluralize
from tacit.engines.endpoint.client import DEFAULT_KEY_VARIABLE
from tacit.modules.archive import pack, pull, push
from tacit.modules.carrying import PackagedDraft
from tacit.modules.cost import CostRow, Costs, PromptedModel, is_local_host, measure_costs
from tacit.modules.drafting.sandbox import truncate_for_display
from tacit.modules.export import export_run
from tacit.modules.install import InstallOptions, find_problems, install
from tacit.modules.logs import find_logs
from tacit.modules.module import MANIFEST, Module, find_modules, read_module
from tacit.modules.router import find_modules_directory
from tacit.modules.training import (
    ALL,
    COVERAGE,
    LOGS,
    add_log_defaults,
    describe_log_training,
    plan_from_logs,
    plan_skill_runs,
    train_modules,
)
from tacit.runs.files import write_json
from tacit.training.settings import TrainSettings

# `tacit modules push` and `pull` (through the hub), `pack` and `install` (as one file).

ENGINE = ("device", "dtype", "threads", "max_batch")
MOST_MB = 2000


def pack_module(argv: Sequence[str]) -> int:
    summary = "A module as one file: its weights, fingerprints, a card, the license of its base, its scores on named panels."
    parser = Parser("modules pack", summary, usage="tacit modules pack MODULE FILE [--base-license NAME]")
    parser.add_argument("module", type=Path, metavar="MODULE", help="directory of one module")
    parser.add_argument("file", type=Path, metavar="FILE", help="the package to write, say heat.tacit")
    parser.flag("--base-license", "", "of its base, where the base's own files do not say", "NAME")
    parser.flag("--replace", False, "write over a file of that name")
    arguments, _ = parser.parse(argv)
    module, file = _read_one(arguments.module), arguments.file.expanduser()
    if file.is_dir() or not file.parent.is_dir():
        raise TacitError(f"{file} must be a file in a directory that is there.")
    if file.exists() and not arguments.replace:
        raise TacitError(f"{file} is there already; --replace writes over it.")
    digest = pack(module, file, arguments.base_license)
    say(make_console(), f"{file}: {file.stat().st_size:,} bytes\nsha256 {digest}")
    return 0


def push_module(argv: Sequence[str]) -> int:
    parser = Parser(
        "modules push",
        "Upload a module to the Hugging Face hub, with its card. The token is HF_TOKEN, or that of `hf auth login`.",
        usage="tacit modules push MODULE OWNER/NAME [--private] [--base-license NAME]",
    )
    parser.add_argument("module", type=Path, metavar="MODULE", help="directory of one module")
    parser.add_argument("repository", metavar="OWNER/NAME", help="repository; it is created if there is none")
    parser.flag("--private", False, "if it is created: let only its owner see it")
    parser.flag("--base-license", "", "of its base, where the base's own files do not say", "NAME")
    arguments, _ = parser.parse(argv)
    commit = push(_read_one(arguments.module), arguments.repository, arguments.base_license, arguments.private)
    say(make_console(), f"tacit modules pull {arguments.repository}@{commit} --out DIR")
    return 0


def pull_module(argv: Sequence[str]) -> int:
    parser = _make_install_parser(
        "modules pull",
        "Install a module from the Hugging Face hub, with the checks of `tacit modules install`.",
        "tacit modules pull OWNER/NAME[@REVISION] --out DIR [--verify]",
    )
    parser.add_argument("source", metavar="OWNER/NAME[@REVISION]", help="repository; a commit as REVISION pins its content")
    arguments, said = parser.parse(argv)
    check_at_least_one(arguments, "max_mb")
    repository, _, revision = arguments.source.partition("@")
    path, commit = pull(repository, revision, arguments.max_mb * 1_000_000)
    say(make_console(), f"{repository} at commit {commit}")
    return _install(str(path), arguments, said)


def install_module(argv: Sequence[str]) -> int:
    parser = _make_install_parser(
        "modules install",
        "Install a module from a file or a directory: files against hashes, base and tracker against this machine's.",
        "tacit modules install FILE|DIR --out DIR [--verify] [--sha256 HEX]",
    )
    parser.add_argument("source", metavar="SOURCE", help="package, or directory of modules")
    parser.flag("--sha256", "", "what the package must be, as whoever made it said", "HEX")
    arguments, said = parser.parse(argv)
    check_at_least_one(arguments, "max_mb")
    return _install(arguments.source, arguments, said, arguments.sha256)


def _make_install_parser(command: str, summary: str, usage: str) -> Parser:
    parser = Parser(command, summary, usage=usage)
    parser.flag("--out", Path, "directory of modules; the new one is DIR/SKILL", "DIR", required=True)
    parser.flag("--verify", False, "play its panel again, and refuse it where its score does not hold")
    parser.flag("--base-model", None, "where the base lies, if not where it was in training", "MODEL")
    parser.flag("--replace", False, "in the place of another module of the same skill")
    parser.flag("--yes", False, "run a draft that it brings along without asking; it is printed first")
    parser.flag("--max-mb", MOST_MB, "refuse what is larger")
    parser.add_options("engine, for --verify", [o for o in section_options()["engine"] if o.place[-1] in ENGINE])
    return parser


def _install(source: str, arguments: Namespace, said: Overrides, sha256: str = "") -> int:
    console = make_console()
    options = InstallOptions(
        arguments.max_mb * 1_000_000,
        sha256,
        arguments.base_model,
        arguments.replace,
        arguments.verify,
        said,
        lambda module: _agreed(console, module, arguments.yes),
    )
    check_output_directory(arguments.out.expanduser())
    for found in install(source, arguments.out.expanduser(), options):
        where = f"installed in {found.module.path}" if found.changed else f"already in {found.module.path}"
        say(console, f"{found.module.skill}: {where}, for {', '.join(found.module.families)}")
        if found.verdict is not None:
            say(console, f"{found.module.skill}: {found.verdict}")
    return 0


def _read_one(path: Path) -> Module:
    path = path.expanduser()
    if not (path / MANIFEST).is_file():
        raise TacitError(f"{path} is no module: it has no {MANIFEST}. `tacit modules {path}` says what is there.")
    return read_module(path)


def show_draft(console: Console, module: str, draft: PackagedDraft) -> None:
    """Show a drafted program before it runs; it also runs whenever the module is used."""
    for name, text in draft.files.items():
        say(console, f"\nmodule {module} brings {name} along, which is run behind a fence whenever it plays:\n", style="bold")
        say(console, truncate_for_display(text))


def _agreed(console: Console, module: Module, yes: bool) -> bool:
    assert module.draft is not None
    show_draft(console, module.skill, module.draft)
    return yes or ask_yes("Run this draft behind its fence, now and whenever the module plays?")


# `tacit modules cost`: modules compared with a prompted model.

PANEL = ("split", "tasks", "repeats", "temperature", "top_p", "top_k", "max_steps")
COST_ENGINE = ("device", "dtype", "threads")


def cost(argv: Sequence[str]) -> int:
    arguments, said = make_parser().parse(argv)
    check_at_least_one(arguments, "batch")
    if bool(arguments.endpoint) != bool(arguments.model):
        raise TacitError("an endpoint has an address and a model: give --endpoint URL and --model NAME, or neither.")
    rivals = [PromptedModel(name) for name in arguments.against]
    if arguments.endpoint:
        told = {"url": arguments.endpoint, "model": arguments.model, "key_variable": arguments.key_variable}
        rivals.append(PromptedModel(arguments.model, {**told, "timeout_s": arguments.timeout}))
    console = make_console()
    costs = measure_costs(
        arguments.modules.expanduser(), said, rivals, wording=arguments.wording, actions=arguments.actions,
        max_tokens=arguments.max_tokens,
        base=arguments.base_model, fallback=arguments.fallback, batch=arguments.batch,
        watch=lambda name: say(console, f"playing: {name}", style="dim"),
    )  # fmt: skip
    show(console, costs, arguments.batch)
    if arguments.json:
        write_json(arguments.json.expanduser(), asdict(costs))
        say(console, f"\nwritten to {arguments.json}")
    return 0


def make_parser() -> Parser:
    parser = Parser(
        "modules cost",
        "What modules cost beside a prompted model on the same episodes: tokens, seconds, memory; what leaves the machine.",
        usage="tacit modules cost MODULES [--against MODEL …] [--endpoint URL --model NAME] [--tasks N] [settings]",
        epilog="Without --against and --endpoint: what ReAct would have read on the modules' own turns.",
    )
    parser.add_argument("modules", type=Path, metavar="MODULES", help="a skill module, or a directory of them")
    against_help = "a model to prompt as ReAct-1step and as ReAct-full: a saved one, a hub id; may be said several times"
    parser.add_argument("--against", action="append", default=[], metavar="MODEL", help=against_help)
    parser.flag("--endpoint", None, "or one behind an OpenAI-compatible address", "URL")
    parser.flag("--model", None, "which of the endpoint's models", "NAME")
    key_help = f"environment variable that holds the endpoint's key (default: {DEFAULT_KEY_VARIABLE})"
    parser.flag("--key-variable", DEFAULT_KEY_VARIABLE, key_help, "NAME")
    parser.flag("--timeout", 120.0, "for one answer", "SECONDS")
    parser.flag("--wording", "full", "the world's words for whoever is prompted (default: full)", "NAME")
    parser.add_argument("--no-actions", dest="actions", action="store_false", help="prompt without the list of actions")
    parser.flag("--batch", 1, "episodes side by side; seconds are per episode")
    tokens_help = "most tokens that a prompted model writes in a turn (default: 512, room to reason)"
    parser.flag("--max-tokens", 0, tokens_help)
    parser.flag("--json", Path, "write everything to this file", "FILE")
    parser.flag("--base-model", None, "where the modules' base lies, if not where it was in training", "MODEL")
    parser.flag("--fallback", None, "the module for families that none is for (default: refuse them)", "SKILL")
    add_panel_options(parser, PANEL)
    parser.add_options("episodes", options_of(TrainSettings, only=("seed",)))
    parser.add_options("engine", [option for option in section_options()["engine"] if option.place[-1] in COST_ENGINE])
    return parser


def show(console: Console, costs: Costs, batch: int) -> None:
    """One row per measure and one column per agent, as in the paper's Table 2."""
    columns = [_column(row, costs.rows[0]) for row in costs.rows]
    lines = [(measure, *(column[measure] for column in columns)) for measure in columns[0]]
    say(console, f"\nCost of an episode: {costs.episodes} of {costs.panel} (hash {costs.panel_hash})", style="bold")
    console.print(table("", ("", *(row.name for row in costs.rows)), lines))
    aside = f"{batch} side by side" if batch > 1 else "one at a time"
    say(
        console,
        f"seconds: by the clock, {aside}, the world's included; memory: the process's peak, Python and libraries included",
    )
    said = partial(say, console)
    said("\nWhat leaves this machine")
    for row in costs.rows:
        if row.success is not None:
            said(f"  {row.name}: {leaving(row)}")
    said("\nOn the disk")
    for name, size in costs.disk.items():
        said(f"  {name}: {size / 1e6:,.2f} MB")


def leaving(row: CostRow) -> str:
    away = [host for host in row.hosts if not is_local_host(host)]
    if row.sent_bytes:
        where = f"to {', '.join(away)}" if away else f"to {', '.join(row.hosts)}, which is this machine"
        return f"{row.sent_bytes:,.0f} bytes of prompts per episode (task, observations, actions) {where}"
    if away:
        return f"nothing of the episodes; it asked {', '.join(away)} (for files of the model)"
    return "nothing; no connection to another machine was made while it was loaded and played"


def _column(row: CostRow, own: CostRow) -> dict[str, str]:
    won = f"{percent(row.success)} {interval(row.interval)}" if row.success is not None and row.interval else "–"
    memory = "–" if row.seconds is None else "elsewhere" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:,.0f} MB"
    return {
        "success": won,
        "steps": f"{row.steps:.1f}",
        "prompt tokens per turn": f"{row.prompt_tokens:.1f}",
        "written tokens per turn": f"{row.completion_tokens:.1f}",
        "tokens per episode": f"{row.tokens:,.0f}",
        "… beside the modules'": f"{row.tokens / own.tokens:.2f}×" if own.tokens else "–",
        "seconds per episode": f"{row.seconds:.2f}" if row.seconds is not None else "–",
        "memory": memory + (f" + {row.device_peak_bytes / 1e6:,.0f} MB on the GPU" if row.device_peak_bytes else ""),
    }


SUMMARY_LINE = "Skill modules: one small adapter (or tiny model) for each kind of work, as directories."
USAGE = f"""usage: tacit modules train [--config FILE] [settings] [--from LOGS] [--skills all|unified|NAME,…] --out DIR
       tacit modules export RUN --out DIR [--checkpoint NAME]
       tacit modules [list] DIR
       tacit modules verify DIR [--base-model MODEL]
       tacit modules draft-tracker --from LOGS (--endpoint URL --model NAME | --model MODEL | --check FILE) --out DIR
       tacit modules draft-rewards --tracker FILE --from LOGS (--endpoint URL --model NAME | --model MODEL) --out DIR
       tacit modules push MODULE OWNER/NAME [--private]
       tacit modules pull OWNER/NAME[@REVISION] --out DIR [--verify]
       tacit modules pack MODULE FILE
       tacit modules install FILE|DIR --out DIR [--verify]
       tacit modules cost MODULES [--against MODEL] [--endpoint URL --model NAME]

{SUMMARY_LINE}

  train   for every skill of a world: imitate, then practise, then export; the same command continues what was stopped
          --from LOGS imitates recorded episodes; without --world it ends there
  export  a checkpoint of a run as a module
  list    what there is: families, base, tracker, scores after SFT and RL, size
  verify  every file against its hash, tracker and wording against this version's, the base against its fingerprint
  draft-tracker  let a model write a tracker from a handful of episodes, look at it, and check it against all of them
  draft-rewards  the same for the rewards of a tracker there is
  push    upload a module to the Hugging Face hub, with a card: base, tracker, world, panel, score, how to repeat it
  pull    install one from the hub: checked before anything is written; --verify plays its panel again
  pack    a module as one file, for machines without the hub
  install one that somebody packed, with the same checks
  cost    tokens, seconds and memory per episode beside a prompted model's, and what leaves the machine

`tacit modules COMMAND --help` says what a command takes. Play them: tacit play --policy DIR, tacit eval DIR."""
CHECKPOINT_HELP = "newest, best, sft, rl, or a name such as rl-000020 (default: newest)"
MODULES_OPTION = Option("out", ("out",), Path, MISSING, "directory of the modules, and of the runs they come from")


def run(argv: Sequence[str]) -> int:
    commands = {"train": train, "export": export, "list": list_modules, "verify": verify, "draft-tracker": draft_tracker}
    commands |= {"draft-rewards": draft_rewards, "push": push_module, "pull": pull_module, "pack": pack_module}
    commands |= {"install": install_module, "cost": cost}
    return dispatch(argv, USAGE, commands, "command or directory", list_modules)


def train(argv: Sequence[str]) -> int:
    parser = TrainParser(
        "modules train",
        "Train a skill module for every skill of a world: imitation, RL training, export.",
        brief=True,
        usage="tacit modules train [--config FILE] [settings] [--skills all|unified|NAME,…] [--out DIR]",
        epilog="The same command continues what was stopped. --engine.lora-rank makes each an adapter on one frozen base.",
    )
    parser.add_argument("--config", type=run_recipe, metavar="FILE", help=CONFIG_HELP)
    skills_help = "all (default), unified (one module for all families), or names: heat,cool"
    parser.flag("--skills", ALL, skills_help, "NAMES")
    parser.flag("--checkpoint", "newest", f"what to export: {CHECKPOINT_HELP}", "NAME")
    add_logs_flag(parser, "imitate these recorded episodes; without --world there is no practice", required=False)
    add_training_options(parser, *peek_arguments(argv, resumable=False), out=MODULES_OPTION)
    arguments, said = parser.parse(argv)
    document = override(read_document(arguments.config) if arguments.config else {}, said)
    recipe = Recipe.from_json(add_log_defaults(document, find_logs(arguments.logs)) if arguments.logs else document)
    # Modules have no default directory.
    if ("out",) not in said and (arguments.config is None or "out" not in read_document(arguments.config)):
        raise TacitError("where to? Name the directory of the modules with --out DIR.")
    out, console = recipe.out, make_console()
    told = partial(say, console)
    if arguments.logs:
        taught = plan_from_logs(recipe, arguments.skills, out, arguments.logs)
        show_logs(console, taught.logs, taught.coverage, out / LOGS / COVERAGE)
        for skill, why in taught.skipped.items():
            told(f"{skill}: no module, {why}")
        code = train_modules(taught.runs, out, arguments.checkpoint, run_prepared, told, describe_log_training)
    else:
        code = train_modules(plan_skill_runs(recipe, arguments.skills, out), out, arguments.checkpoint, run_prepared, told)
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
    parser.flag("--out", Path, "directory of modules; the new one is DIR/SKILL", "DIR", required=True)
    parser.flag("--checkpoint", "newest", CHECKPOINT_HELP, "NAME")
    parser.flag("--skill", "", "what to call it (default: the world's word for its families)", "NAME")
    parser.flag("--world", "", "of a run in several worlds: the one it is a module for", "NAME")
    arguments, _ = parser.parse(argv)
    check_output_directory(arguments.out)
    made = export_run(arguments.run, arguments.checkpoint, arguments.out, arguments.skill, arguments.world)
    say(make_console(), f"{made.path}: {made.run['checkpoint']} of {arguments.run}, for {', '.join(made.families)}")
    return 0


def list_modules(argv: Sequence[str]) -> int:
    parser = _parser_of_a_directory("modules list", "List the skill modules of a directory.")
    parser.flag("--json", False, "print them as one JSON object")
    arguments, _ = parser.parse(argv)
    modules = find_modules(find_modules_directory(arguments.directory))
    if arguments.json:
        print(json.dumps({skill: module.to_json() for skill, module in modules.items()}))
        return 0
    show_modules(make_console(), modules)
    return 0


def verify(argv: Sequence[str]) -> int:
    parser = _parser_of_a_directory(
        "modules verify", "Check skill modules: their files, their tracker, their wording and their base."
    )
    parser.flag("--base-model", None, "where the base model lies, if not where it was in training", "MODEL")
    arguments, _ = parser.parse(argv)
    console, wrong = make_console(), 0
    for skill, module in find_modules(find_modules_directory(arguments.directory)).items():
        found = find_problems(module, arguments.base_model)
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
        if module.from_logs and not module.scores:
            say(console, f"{skill}: {_taught(module.from_logs)}", style="dim")
    for panel in dict.fromkeys((s["panel"], s["panel_hash"]) for m in modules.values() for s in m.scores.values()):
        say(console, f"panel {panel[0]} (hash {panel[1]})", style="dim")


def _taught(taught: Mapping[str, Any]) -> str:
    """`taught from 22 logged episodes alone, never practised or played; does as they did at 71.0% of 40 turns kept back`"""
    practised = "then practised" if taught["practised"] else "never practised or played"
    said = f"taught from {pluralize(taught['episodes'], 'logged episode')} alone, {practised}"
    if not taught.get("kept_turns"):
        return said
    return (
        f"{said}; does as they did at {percent(taught['same_action'])} of {pluralize(taught['kept_turns'], 'turn')} kept back"
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
