"""`tacit modules`: train, export, list, verify, push, pull, pack and install skill modules."""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal

from tacit.cli.terminal import Command, ask_yes, dispatch, interval, make_console, percent, say, say_first, table
from tacit.cli.train import CONFIG_HELP, add_training_options, peek_arguments, run_prepared
from tacit.config.checks import check_model, check_output_directory, open_world
from tacit.config.flags import Option, Parser, options_of, section_options
from tacit.config.recipe import Overrides, PolicyRecipe, Recipe, absolute_name, override, read_document, run_recipe
from tacit.core.bounds import AtLeastOne
from tacit.core.errors import TacitError, install_command, unknown
from tacit.core.progress import format_duration, pluralize, report_elapsed
from tacit.core.protocols import SamplingPolicy
from tacit.core.world import FULL_BLOCK
from tacit.engines.local.settings import EngineSettings
from tacit.modules.agent import find_modules_directory
from tacit.modules.drafting.checks import CheckReport
from tacit.modules.drafting.draft import (
    Drafter,
    build_prompt,
    choose_examples,
    draft_until_valid,
    list_action_kinds,
    save_draft,
)
from tacit.modules.drafting.packaged import PackagedDraft
from tacit.modules.drafting.sandbox import truncate_for_display
from tacit.modules.drafting.tracker import Fields, render_fields
from tacit.modules.export import export_run
from tacit.modules.module import MANIFEST, Module, find_modules, read_module
from tacit.modules.sharing import find_problems, install, pack, pull, push
from tacit.modules.training import (
    ALL,
    COVERAGE,
    LOGS,
    Coverage,
    Logs,
    add_log_defaults,
    count_coverage,
    describe_log_training,
    family_without_world,
    find_logs,
    make_family_lookup,
    plan_from_logs,
    plan_skill_runs,
    read_logs,
    train_modules,
)
from tacit.modules.work import DRAFTED
from tacit.serving.settings import LOOPBACK, ServingSettings
from tacit.training.imitation import Recording

ENGINE = ("device", "dtype", "threads", "max_batch")
MAX_MB = 2000
BASE_HELP = "path of the base model, if it has moved since training"
LICENSE_HELP = "license of the base model, if its files do not name one"


def pack_module(argv: Sequence[str]) -> int:
    summary = "Write a module to one file: weights, fingerprints, card, license of its base, scores."
    parser = Parser("modules pack", summary, usage="tacit modules pack MODULE FILE [--base-license NAME]")
    parser.add_argument("module", type=Path, metavar="MODULE", help="directory of one module")
    parser.add_argument("file", type=Path, metavar="FILE", help="file to write, such as heat.tacit")
    parser.flag("--base-license", "", LICENSE_HELP, "NAME")
    parser.flag("--replace", False, "overwrite an existing file")
    arguments, _ = parser.parse(argv)
    module, file = _read_one(arguments.module), arguments.file
    if file.is_dir() or not file.parent.is_dir():
        raise TacitError(f"{file} must be a file in an existing directory.")
    if file.exists() and not arguments.replace:
        raise TacitError(f"{file} already exists; overwrite it with --replace.")
    digest = pack(module, file, arguments.base_license)
    say(make_console(), f"{file}: {file.stat().st_size:,} bytes\nsha256 {digest}")
    return 0


def push_module(argv: Sequence[str]) -> int:
    summary = "Upload a module and its card to the Hugging Face hub. The token is HF_TOKEN, or that of `hf auth login`."
    usage = "tacit modules push MODULE OWNER/NAME [--private] [--base-license NAME]"
    parser = Parser("modules push", summary, usage=usage)
    parser.add_argument("module", type=Path, metavar="MODULE", help="directory of one module")
    parser.add_argument("repository", metavar="OWNER/NAME", help="repository; it is created if it does not exist")
    parser.flag("--private", False, "create it as a private repository")
    parser.flag("--base-license", "", LICENSE_HELP, "NAME")
    arguments, _ = parser.parse(argv)
    commit = push(_read_one(arguments.module), arguments.repository, arguments.base_license, arguments.private)
    say(make_console(), f"tacit modules pull {arguments.repository}@{commit} --out DIR")
    return 0


def pull_module(argv: Sequence[str]) -> int:
    summary = "Install a module from the Hugging Face hub, with the checks of `tacit modules install`."
    parser = _make_install_parser("pull", summary, "OWNER/NAME[@REVISION] --out DIR [--verify]")
    parser.add_argument("source", metavar="OWNER/NAME[@REVISION]", help="repository; a commit as REVISION pins its content")
    arguments, overrides = parser.parse(argv)
    repository, _, revision = arguments.source.partition("@")
    path, commit = pull(repository, revision, arguments.max_mb * 1_000_000)
    say(make_console(), f"{repository} at commit {commit}")
    return _install(str(path), arguments, overrides)


def install_module(argv: Sequence[str]) -> int:
    summary = "Install a module from a file or directory: checks its hashes, and its base and tracker against this machine's."
    parser = _make_install_parser("install", summary, "FILE|DIR --out DIR [--verify] [--sha256 HEX]")
    parser.add_argument("source", metavar="SOURCE", help="package, or directory of modules")
    parser.flag("--sha256", "", "expected hash of the package, from its author", "HEX")
    arguments, overrides = parser.parse(argv)
    return _install(arguments.source, arguments, overrides, arguments.sha256)


def _make_install_parser(command: str, summary: str, usage: str) -> Parser:
    parser = Parser(f"modules {command}", summary, usage=f"tacit modules {command} {usage}")
    parser.flag("--out", Path, "directory of modules; the new one is DIR/SKILL", "DIR", required=True)
    parser.flag("--verify", False, "play its panel, and refuse the module if its score is not reproduced")
    parser.flag("--base-model", None, BASE_HELP, "MODEL")
    parser.flag("--replace", False, "replace another module of the same skill")
    parser.flag("--yes", False, "run a draft that it contains without asking; it is printed first")
    parser.flag("--max-mb", MAX_MB, "refuse larger modules", bound=AtLeastOne)
    parser.add_options("engine, for --verify", [o for o in section_options()["engine"] if o.place[-1] in ENGINE])
    return parser


def _install(source: str, arguments: Namespace, overrides: Overrides, sha256: str = "") -> int:
    console = make_console()

    def approve(module: Module) -> bool:
        assert module.draft is not None
        show_draft(console, module.skill, module.draft)
        return arguments.yes or ask_yes("Run this draft in its sandbox, now and whenever the module plays?")

    check_output_directory(arguments.out)
    for module, changed, verdict in install(
        source, arguments.out, max_bytes=arguments.max_mb * 1_000_000, sha256=sha256, base=arguments.base_model,
        overwrite=arguments.replace, verify=arguments.verify, engine=overrides, approve_draft=approve,
    ):  # fmt: skip
        where = f"installed in {module.path}" if changed else f"already in {module.path}"
        say(console, f"{module.skill}: {where}, for {', '.join(module.families)}")
        if verdict is not None:
            say(console, f"{module.skill}: {verdict}")
    return 0


def _read_one(path: Path) -> Module:
    if not (path / MANIFEST).is_file():
        raise TacitError(f"{path} is not a module: it has no {MANIFEST}. `tacit modules list {path}` shows the modules in it.")
    return read_module(path)


def show_draft(console: Console, module: str, draft: PackagedDraft) -> None:
    """Show a drafted program before it runs; it also runs whenever the module is used."""
    for name, text in draft.files.items():
        say(console, f"\nmodule {module} contains {name}, which runs in a sandbox whenever the module plays:\n", style="bold")
        say(console, truncate_for_display(text))


CHECKPOINT_HELP = "newest, best, sft, rl, or a name such as rl-000020 (default: newest)"
MODULES_OPTION = Option("out", ("out",), Path, MISSING, "directory of the modules and their runs")


def run(argv: Sequence[str]) -> int:
    commands: dict[str, Command] = {
        "train": (train, "train a module for every skill of a world, or from recorded episodes (--from LOGS)"),
        "export": (export, "export a checkpoint of a run as a module"),
        "list": (list_modules, "list modules with families, base, tracker, scores and size"),
        "verify": (verify, "check files, tracker, wording and base of modules"),
        "draft-tracker": (draft_tracker, "let a model write a tracker from recorded episodes, and check it on all of them"),
        "draft-rewards": (draft_rewards, "let a model write the rewards of a tracker, and check them"),
        "push": (push_module, "upload a module to the Hugging Face hub"),
        "pull": (pull_module, "install a module from the hub"),
        "pack": (pack_module, "write a module to one file"),
        "install": (install_module, "install a module from a file or directory"),
    }
    summary = "Skill modules: one small adapter or tiny model per skill, for `tacit play --policy DIR` and `tacit eval DIR`."
    return dispatch(argv, "tacit modules", summary, commands, list_modules, "DIR")


def train(argv: Sequence[str]) -> int:
    parser = Parser(
        "modules train",
        "Train a skill module for every skill of a world: imitation, RL training, export.",
        brief=True,
        usage="tacit modules train [--config FILE] [settings] [--skills all|unified|NAME,…] [--out DIR]",
        epilog="The same command resumes. With --engine.lora-rank each module is an adapter on one frozen base.",
    )
    parser.add_argument("--config", type=run_recipe, metavar="FILE", help=CONFIG_HELP)
    skills_help = "all (default), unified (one module for all families), or names: heat,cool"
    parser.flag("--skills", ALL, skills_help, "NAMES")
    parser.flag("--checkpoint", "newest", f"checkpoint to export: {CHECKPOINT_HELP}", "NAME")
    add_logs_flag(parser, "imitate recorded episodes; without --world there is no RL", required=False)
    add_training_options(parser, *peek_arguments(argv, resumable=False), out=MODULES_OPTION)
    arguments, overrides = parser.parse(argv)
    document = override(read_document(arguments.config) if arguments.config else {}, overrides)
    recipe = Recipe.from_json(add_log_defaults(document, find_logs(arguments.logs)) if arguments.logs else document)
    # Modules have no default directory.
    if ("out",) not in overrides and (arguments.config is None or "out" not in read_document(arguments.config)):
        raise TacitError("no output directory: give --out DIR.")
    out, console = recipe.out, make_console()
    report = partial(say, console)
    if arguments.logs:
        plan = plan_from_logs(recipe, arguments.skills, out, arguments.logs)
        show_logs(console, plan.logs, plan.coverage, out / LOGS / COVERAGE)
        for skill, why in plan.skipped.items():
            report(f"{skill}: no module, {why}")
        code = train_modules(plan.runs, out, arguments.checkpoint, run_prepared, report, describe_log_training)
    else:
        code = train_modules(plan_skill_runs(recipe, arguments.skills, out), out, arguments.checkpoint, run_prepared, report)
    if code:
        return code
    console.print()
    show_modules(console, find_modules(out))
    if open_world(recipe.world).playable:
        report(f"\nNext: tacit eval {out}        each task with its family's module\n      tacit play --policy {out}")
    else:
        report(f"\nNext: tacit serve {out}        or Agent.load({str(out)!r}) in your program")
    return 0


def export(argv: Sequence[str]) -> int:
    parser = Parser("modules export", "Export a checkpoint of a run as a skill module.")
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.flag("--out", Path, "directory of modules; the new one is DIR/SKILL", "DIR", required=True)
    parser.flag("--checkpoint", "newest", CHECKPOINT_HELP, "NAME")
    parser.flag("--skill", "", "name of the skill (default: the world's name for its families)", "NAME")
    parser.flag("--world", "", "for a run in several worlds: the module's world", "NAME")
    arguments, _ = parser.parse(argv)
    check_output_directory(arguments.out)
    module = export_run(arguments.run, arguments.checkpoint, arguments.out, arguments.skill, arguments.world)
    say(make_console(), f"{module.path}: {module.run['checkpoint']} of {arguments.run}, for {', '.join(module.families)}")
    return 0


def list_modules(argv: Sequence[str]) -> int:
    parser = Parser("modules list", "List the skill modules of a directory.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="a module, or a directory of modules")
    parser.flag("--json", False, "print one JSON object")
    arguments, _ = parser.parse(argv)
    modules = find_modules(find_modules_directory(arguments.directory))
    if arguments.json:
        print(json.dumps({skill: module.to_json() for skill, module in modules.items()}))
    else:
        show_modules(make_console(), modules)
    return 0


def verify(argv: Sequence[str]) -> int:
    parser = Parser("modules verify", "Check the files, tracker, wording and base of skill modules.")
    parser.add_argument("directory", type=Path, metavar="DIR", help="a module, or a directory of modules")
    parser.flag("--base-model", None, BASE_HELP, "MODEL")
    arguments, _ = parser.parse(argv)
    console, wrong = make_console(), 0
    for skill, module in find_modules(find_modules_directory(arguments.directory)).items():
        problems = find_problems(module, arguments.base_model)
        wrong += bool(problems)
        tracker = f", tracker {module.tracker}" if module.tracker else ""
        base = f", base {module.base.model} {module.fingerprint[:12]}" if module.adapter else ""
        text = "; ".join(problems) or f"{pluralize(len(module.files), 'file')} unchanged{tracker}{base}"
        say(console, f"{skill}: {text}", style="red" if problems else "")
    if wrong:
        raise TacitError(f"{wrong} of the modules in {arguments.directory} cannot be used here.")
    return 0


def show_modules(console: Console, modules: Mapping[str, Module]) -> None:
    columns = ("skill", "families", "base", "tracker", "after SFT", "after RL", "episodes", "size")
    rows = []
    for skill, module in modules.items():
        measured = module.scores.get("rl") or module.scores.get("sft")
        base = f"{module.base.model} {module.fingerprint[:12]}" if module.adapter else "own weights"
        scores = map(module.scores.get, ("sft", "rl"))
        cells = [f"{percent(s['success'])} {interval(s['interval'])}" if s else "-" for s in scores]
        cells += [str(measured["episodes"]) if measured else "-", decimal(int(module.size))]
        rows.append((skill, ", ".join(module.families), base, module.tracker or "-", *cells))
    console.print(table("", columns, rows, numbers=("after SFT", "after RL", "episodes", "size")))
    for skill, module in modules.items():
        if module.from_logs and not module.scores:
            say(console, f"{skill}: {_describe_logs(module.from_logs)}", style="dim")
    for panel in dict.fromkeys((s["panel"], s["panel_hash"]) for m in modules.values() for s in m.scores.values()):
        say(console, f"panel {panel[0]} (hash {panel[1]})", style="dim")


def _describe_logs(logs: Mapping[str, Any]) -> str:
    """`trained on 22 logged episodes, without RL; takes the logged action in 71.0% of 40 held-out turns`"""
    after = "then with RL" if logs["practised"] else "without RL"
    text = f"trained on {pluralize(logs['episodes'], 'logged episode')}, {after}"
    if turns := logs.get("kept_turns"):
        text += f"; takes the logged action in {percent(logs['same_action'])} of {pluralize(turns, 'held-out turn')}"
    return text


# Logs on the command line.

MAX_LINES = 40  # unusable lines printed; the report has all


def add_logs_flag(parser: Parser, what: str, required: bool = True) -> None:
    help = f"{what}: a file of JSON lines (.jsonl, .jsonl.gz) or a directory of them; may be given several times"
    parser.flag("--from", Path, help, "LOGS", dest="logs", action="append", required=required)


def show_logs(console: Console, logs: Logs, covered: Sequence[Coverage], report: Path | None = None) -> None:
    """Print every unusable line with its reason, then the number of episodes per family."""
    say_first(console, logs.unusable, MAX_LINES, "yellow", rest=f", all of them in {report}" if report else "")
    say(console, f"{pluralize(len(logs.episodes), 'episode')} can be used, {pluralize(len(logs.unusable), 'line')} cannot")
    columns = ("family", "episodes", "won", "turns to imitate", "")
    rows = [(c.family, str(c.episodes), str(c.won), str(c.turns), c.remark) for c in covered]
    console.print(table("", columns, rows, numbers=columns[1:4]))


# `draft-tracker` and `draft-rewards`: ask for a draft, show it, and check it against recorded episodes.

SHOWN_FAILURES = 20
POOL = 4096  # tasks searched for the family of an episode


def draft_tracker(argv: Sequence[str]) -> int:
    summary = "Let a model write a tracker from a few recorded episodes, and check it on all of them."
    parser = _parser("draft-tracker", summary)
    parser.flag("--check", Path, "check this draft instead of asking a model", "FILE")
    return _draft(parser.parse(argv)[0], "tracker")


def draft_rewards(argv: Sequence[str]) -> int:
    summary = "Let a model write rewards for a world's own tracker; check them on all recorded episodes."
    parser = _parser("draft-rewards", summary)
    parser.flag("--block", FULL_BLOCK, f"form of the world's state block (default: {FULL_BLOCK})", "FORM")
    parser.flag("--check", Path, "check these rewards instead of asking a model", "FILE")
    arguments, _ = parser.parse(argv)
    if not arguments.world:
        raise TacitError("no tracker: give --world NAME to use the world's own, or draft one with its rewards (draft-tracker).")
    return _draft(arguments, "rewards")


def _draft(arguments: Namespace, kind: str) -> int:
    """Ask for drafts until one passes its checks, save the last one, and print the next command. Returns the exit status."""
    console, episodes = make_console(), _episodes(arguments)
    kinds = list_action_kinds(episodes)
    blocks: dict[Recording, list[Fields]] | None = None
    if kind == "rewards":
        episodes, blocks = _follow_own_tracker(console, arguments, episodes)
    ask = _asker(arguments, choose_examples(episodes, arguments.shown), kinds, blocks)

    def show(text: str, attempt: int) -> None:
        say(console, f"\ndraft {attempt + 1} of {arguments.attempts}:\n", style="bold")
        say(console, truncate_for_display(text))

    def approve() -> bool:
        return arguments.yes or ask_yes(f"Run this draft in its sandbox on {len(episodes)} episodes?")

    report = partial(show_examination, console)
    drafted = draft_until_valid(ask, arguments.attempts, episodes, show, approve, report, blocks)
    name = arguments.name or re.sub(r"\W", "_", arguments.family or "work")
    block = arguments.block if kind == "rewards" else ""
    written = save_draft(arguments.out, name, kind, drafted, absolute_name(arguments.world), block)
    say(console, f"written: {', '.join(map(str, written))}")
    if drafted.report is None or not drafted.report.passed:
        say(
            console, "the draft was not run" if drafted.report is None else "no draft passed; fix one and check it with --check"
        )
        return 1
    form = f" --block {DRAFTED}" if arguments.world else ""
    logs = " ".join(f"--from {path}" for path in arguments.logs)
    world = f"{written[1]}:ENVIRONMENT"
    say(console, f"\nNext: tacit modules train {logs} --world {world} --method constant_context{form} --out DIR")
    return 0


def _asker(
    arguments: Namespace,
    episodes: Sequence[Recording],
    kinds: Sequence[str],
    blocks: Mapping[Recording, Sequence[Fields]] | None,
) -> Callable[[str, str, int], str]:
    """A function (previous draft, its failures, attempt) -> draft, which asks the model; with --check, it reads the file."""
    if arguments.check:
        try:
            text = arguments.check.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise TacitError(f"cannot read the draft {arguments.check}: {error}.") from error
        arguments.attempts = 1
        return lambda before, failed, attempt: text
    drafter = Drafter(_policy(arguments), arguments.out / "answers", arguments.max_tokens, arguments.temperature)
    work = arguments.family or arguments.name or "work"
    return lambda before, failed, attempt: drafter.write(build_prompt(work, episodes, kinds, before, failed, blocks), attempt)


def _follow_own_tracker(
    console: Console, arguments: Namespace, episodes: Sequence[Recording]
) -> tuple[list[Recording], dict[Recording, list[Fields]]]:
    """(episodes that the world's tracker can follow, their state blocks). Prints the others; raises if no success is left."""
    world = open_world(arguments.world)
    tasks = world.tasks_of(world.splits[0], POOL, 0)
    blocks, failed = render_fields(world, world.tracker_of(arguments.block), episodes, tasks)
    for line in failed[:SHOWN_FAILURES]:
        say(console, f"skipped, {world.name}'s own tracker cannot follow it: {line}", style="yellow")
    if not any(episode.success for episode in blocks):
        raise TacitError(f"{world.name}'s own tracker cannot follow any won episode of these logs; draft one (draft-tracker).")
    return [episode for episode in episodes if episode in blocks], blocks


def _parser(command: str, summary: str) -> Parser:
    parser = Parser(f"modules {command}", summary)
    add_logs_flag(parser, "recorded episodes, won and lost")
    parser.flag("--out", Path, "output directory", "DIR", required=True)
    parser.flag("--family", "", "only episodes of this family (default: all)", "NAME")
    parser.flag("--world", "", "world of the tracker, if there is one", "NAME")
    parser.flag("--name", "", "name of the files (default: the family, or work)", "NAME")
    parser.flag("--endpoint", None, "URL of an OpenAI-compatible API", "URL")
    parser.flag("--model", "", "model of the endpoint; without --endpoint, a local model", "MODEL")
    parser.flag("--key-variable", "OPENAI_API_KEY", "environment variable with the key", "NAME")
    parser.flag("--timeout", 300.0, "timeout of a request in seconds", "S")
    parser.flag("--max-tokens", 4096, "maximum tokens of an answer")
    parser.flag("--temperature", 0.2, "sampling temperature", "T")
    parser.flag("--shown", 6, "episodes shown to the model", bound=AtLeastOne)
    parser.flag("--attempts", 3, "maximum number of drafts; each sees why the last one failed", bound=AtLeastOne)
    parser.flag("--yes", False, "run drafts without asking; they are printed first")
    return parser


def _episodes(arguments: Namespace) -> list[Recording]:
    """The episodes of --from and --family. Raises if none is a success or one has no goal."""
    if arguments.name and not arguments.name.isidentifier():
        raise TacitError(f"--name {arguments.name!r} must be a Python identifier: letters, digits and underscores.")
    family_of, families = family_without_world, ()  # type: tuple[Callable[[Recording], str], tuple[str, ...]]
    if arguments.world:
        world = open_world(arguments.world)
        family_of, families = make_family_lookup(world, world.tasks_of(world.splits[0], POOL, 0)), world.families
    logs = read_logs(arguments.logs, family_of)
    show_logs(make_console(), logs, count_coverage(logs, families))
    if arguments.family and arguments.family not in logs.families:
        raise unknown("family of these logs", arguments.family, logs.families)
    chosen = logs.select([arguments.family] if arguments.family else logs.families)
    if not any(logged.recording.success for logged in chosen):
        raise TacitError("these logs have no successful episode, so a tracker cannot be checked.")
    if any(not logged.recording.goal for logged in chosen):
        raise TacitError("some of these episodes have no `goal`, which a tracker reads; add it to every line.")
    return [logged.recording for logged in chosen]


def _policy(arguments: Namespace) -> SamplingPolicy:
    if not arguments.model:
        raise TacitError("no model: give --endpoint URL --model NAME, or a local model with --model.")
    if arguments.endpoint:
        from tacit.engines.endpoint import ChatClient, ChatPolicy

        client = ChatClient(arguments.endpoint, arguments.model, arguments.key_variable, arguments.timeout)
        return ChatPolicy(client, concurrency=1)
    from tacit.config.resources import load_policy
    from tacit.engines import get_engine

    check_model(arguments.model)
    return load_policy(PolicyRecipe(arguments.model, "local", get_engine("local").settings()), 0, ())


def show_examination(console: Console, report: CheckReport) -> None:
    counts = f"{report.episodes} episodes ({report.won} won), {report.turns} turns"
    say(console, f"\n{counts}, longest block {report.longest} characters")
    console.print(table("", ("check", "verdict"), list(report.verdicts().items())))
    say_first(console, list(map(str, report.failures)), SHOWN_FAILURES, "red")
    for note in report.notes:
        say(console, f"note: {note}", style="yellow")
    if missing := [name for name, holds in report.enforced_limits.items() if not holds]:
        say(console, f"note: limits that this kernel does not enforce: {', '.join(missing)}", style="yellow")


# `tacit serve`: skill modules as a service, over HTTP or MCP.


def serve_modules(argv: Sequence[str]) -> int:
    arguments, overrides = make_serve_parser().parse(argv)
    serving = {place[-1]: value for place, value in overrides.items() if place[0] == "serving"}
    local = serving.get("host", ServingSettings.host) in LOOPBACK
    settings = ServingSettings(**{"worlds": local, **serving})
    engine = replace(EngineSettings(), **{place[-1]: value for place, value in overrides.items() if place[0] == "engine"})

    def may_run_draft(name: str, draft: PackagedDraft) -> bool:
        """True with --yes. It does not ask: stdout may carry MCP, and modules reload without a user present."""
        show_draft(make_console(sys.stderr), name, draft)
        return arguments.yes

    def remark(text: str) -> None:
        say(make_console(sys.stderr), text)

    names = ", ".join(map(str, arguments.modules))
    with report_elapsed(remark, lambda spent: f"loading {names}, {format_duration(spent)}"):
        try:
            from tacit.serving.server import find_tokens, serve
            from tacit.serving.service import Service
        except ImportError as error:
            raise TacitError(f"`tacit serve` needs {error.name}: {install_command('serve')}.") from error
        service = Service(arguments.modules, settings, engine, arguments.base_model, arguments.fallback, may_run_draft)
    if arguments.mcp:
        from tacit.serving.mcp_tools import serve_tools

        return serve_tools(service, remark)
    tokens, is_new = find_tokens(arguments.token_file, arguments.no_token, settings.host)
    console = make_console()

    def announce(address: str) -> None:
        key = f"#token={tokens['']}" if tokens and is_new else ""
        say(console, f"serving {', '.join(service.catalog.modules)}\n{address}/{key}")
        say(console, "^C stops; kill -HUP looks for new modules", style="dim")
        if not local:
            remedy = "put a TLS proxy in front of it (docs/guides/serving.md)"
            remark(f"warning: {settings.host} is served over plain HTTP; {remedy}")

    return serve(service, tokens, announce, remark)


def make_serve_parser() -> Parser:
    parser = Parser(
        "serve",
        "Serve skill modules over HTTP (sessions, OpenAI-compatible chat completions, metrics, a page) or MCP.",
        usage="tacit serve MODULES [MODULES …] [--port N] [--token-file FILE] [settings]",
        epilog="Without --token-file the token is $TACIT_SERVE_TOKEN, or a new one that is printed.",
    )
    parser.add_argument("modules", type=Path, nargs="+", metavar="MODULES", help="skill modules, or directories of them")
    parser.flag("--mcp", False, "serve MCP over standard input and output instead of HTTP")
    parser.flag("--token-file", Path, "file of bearer tokens, one per line: TOKEN or CLIENT TOKEN", "FILE")
    parser.flag("--no-token", False, "require no token; loopback only")
    parser.flag("--base-model", None, "path of the base model, if it has moved since training", "MODEL")
    parser.flag("--fallback", None, "module for families without one (default: refuse them)", "SKILL")
    parser.flag("--yes", False, "run drafts contained in modules; they are printed first")
    parser.add_options("server", options_of(ServingSettings, ("serving",)))
    parser.add_options("engine", [option for option in section_options()["engine"] if option.place[-1] in ENGINE])
    return parser
