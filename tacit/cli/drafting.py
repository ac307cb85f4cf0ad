"""`tacit modules draft-tracker` and `draft-rewards`: ask for a draft, show it, and check it against recorded episodes."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from tacit.cli.terminal import ask_yes, make_console, say, table
from tacit.config.checks import check_model, open_world
from tacit.config.flags import Parser, check_at_least_one
from tacit.config.recipe import PolicyRecipe, absolute_name
from tacit.core.errors import TacitError, unknown
from tacit.core.progress import pluralize
from tacit.core.protocols import SamplingPolicy
from tacit.core.world import FULL_BLOCK
from tacit.modules.drafting.checks import CheckReport
from tacit.modules.drafting.draft import (
    Drafter,
    build_prompt,
    choose_examples,
    draft_until_valid,
    list_action_kinds,
    save_draft,
)
from tacit.modules.drafting.sandbox import truncate_for_display
from tacit.modules.drafting.tracker import Fields, render_fields
from tacit.modules.training import Coverage, Logs, count_coverage, family_without_world, make_family_lookup, read_logs
from tacit.modules.work import DRAFTED
from tacit.training.recordings import Recording

# Logs on the command line.

MAX_LINES = 40  # unusable lines printed; the report has all


def add_logs_flag(parser: Parser, what: str, required: bool = True) -> None:
    help = f"{what}: a file of JSON lines (.jsonl, .jsonl.gz) or a directory of them; may be given several times"
    parser.flag("--from", Path, help, "LOGS", dest="logs", action="append", required=required)


def show_logs(console: Console, logs: Logs, covered: Sequence[Coverage], report: Path | None = None) -> None:
    """Print every unusable line with its reason, then the number of episodes per family."""
    for line in logs.unusable[:MAX_LINES]:
        say(console, line, style="yellow")
    if len(logs.unusable) > MAX_LINES:
        where = f", all of them in {report}" if report else ""
        say(console, f"and {len(logs.unusable) - MAX_LINES} more{where}", style="yellow")
    say(console, f"{pluralize(len(logs.episodes), 'episode')} can be used, {pluralize(len(logs.unusable), 'line')} cannot")
    columns = ("family", "episodes", "won", "turns to imitate", "")
    rows = [(c.family, str(c.episodes), str(c.won), str(c.turns), c.remark) for c in covered]
    console.print(table("", columns, rows, numbers=columns[1:4]))


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
    parser.flag("--shown", 6, "episodes shown to the model")
    parser.flag("--attempts", 3, "maximum number of drafts; each sees why the last one failed")
    parser.flag("--yes", False, "run drafts without asking; they are printed first")
    return parser


def _episodes(arguments: Namespace) -> list[Recording]:
    """The episodes of --from and --family. Raises if none is a success or one has no goal."""
    if arguments.name and not arguments.name.isidentifier():
        raise TacitError(f"--name {arguments.name!r} must be a Python identifier: letters, digits and underscores.")
    check_at_least_one(arguments, "shown", "attempts")
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
    for failure in report.failures[:SHOWN_FAILURES]:
        say(console, str(failure), style="red")
    if len(report.failures) > SHOWN_FAILURES:
        say(console, f"and {len(report.failures) - SHOWN_FAILURES} more", style="red")
    for note in report.notes:
        say(console, f"note: {note}", style="yellow")
    if missing := [name for name, holds in report.enforced_limits.items() if not holds]:
        say(console, f"note: limits that this kernel does not enforce: {', '.join(missing)}", style="yellow")
