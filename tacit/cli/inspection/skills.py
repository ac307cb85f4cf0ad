"""`tacit inspect skills`: an episode with its hindsight skills and every token colored by its shift; with `--probe`, whether
a policy can read a skill at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from rich.text import Text

from tacit.cli.terminal import (
    add_checkpoint_flag,
    add_shared_options,
    make_console,
    peek_method,
    percent,
    say,
    say_pairs,
    table,
)
from tacit.config.flags import Parser
from tacit.core.errors import TacitError
from tacit.core.progress import pluralize
from tacit.core.protocols import Policy
from tacit.runs.trajectories import find_recording, read_records

SUMMARY_LINE = "Show what hindsight's skills say of each token of an episode, or probe whether a policy reads skills."
STRONG = 2.0
"""shift with full color"""


def run(argv: Sequence[str]) -> int:
    arguments, said = make_parser(peek_method(argv, "inspect skills")).parse(argv)
    if arguments.probe:
        return _probe(arguments, said)
    path = find_recording(Path(arguments.target), arguments.iteration)
    records = [r for r in read_records(path) if any("skills" in turn for turn in r["turns"])]
    if not records:
        raise TacitError(f"no episode of {path} has skills: they come with opid, if its analyzer had any to tell.")
    number = arguments.episode
    if number is not None and not 1 <= number <= len(records):
        raise TacitError(f"--episode {number}: there are {len(records)} with skills.")
    largest = max(records, key=lambda r: sum(abs(turn.get("skill_shift", 0.0)) for turn in r["turns"]))
    record = largest if number is None else records[number - 1]
    if arguments.json:
        print(json.dumps(record, ensure_ascii=False))
    else:
        _show(make_console(), record, path)
    return 0


def make_parser(method: str) -> Parser:
    parser = Parser("inspect skills", SUMMARY_LINE, usage="tacit inspect skills RUN [--iteration N] | MODEL --probe --world W")
    parser.add_argument("target", metavar="RUN", help="run directory; with --probe also a model")
    add_checkpoint_flag(parser)
    parser.flag("--iteration", int, "which iteration (default: the last recorded)")
    parser.flag("--episode", int, "which of its episodes, from 1 (default: the largest shifts)")
    parser.flag("--probe", False, "does a true hint raise the right action, a false one not?")
    parser.flag("--tasks", 16, "of the probe: tasks an expert plays")
    parser.flag("--json", False, "print it as JSON")
    add_shared_options(parser, method)
    return parser


def _show(console: Any, record: Mapping[str, Any], path: Path) -> None:
    critical = sum("step" in lesson for turn in record["turns"] for lesson in turn.get("skills", ()))
    episode = next((s["task"] for t in record["turns"] for s in t.get("skills", ()) if "task" in s), "")
    say(console, f"{record['goal']}", style="bold")
    ended = f"{'won' if record['success'] else 'lost'} after {pluralize(len(record['turns']), 'step')}"
    said = [("episode", f"{record['task']}, {ended}"), ("from", str(path)), ("critical steps", str(critical))]
    say_pairs(console, said + ([("episode's skill", episode)] if episode else []))
    console.print()
    for number, turn in enumerate(record["turns"], 1):
        told = next((s["step"] for s in turn.get("skills", ()) if "step" in s), "")
        if told:
            console.print(Text.assemble(f"{number:>4}  ", (f"told: {told}", "yellow")), soft_wrap=True)
        line = Text(f"{number:>4}  " if not told else "      ")
        line.append_text(colored(turn))
        line.append(f"   {turn.get('skill_shift', 0.0):+.2f}", style="dim")
        console.print(line, soft_wrap=True)
    say(console, "\ngreen: the skill makes the token likelier; red: less likely; the number is their sum.", style="dim")


def colored(turn: Mapping[str, Any]) -> Text:
    """The completion, token by token."""
    tokens = turn.get("shift_by_token")
    if not tokens:
        return Text(turn["wrote"], style="dim")
    made = Text()
    for word, shift in tokens:
        strength = min(1.0, abs(shift) / STRONG)
        weak = round(160 * (1 - strength)) + 60
        color = f"rgb({weak},200,{weak})" if shift > 0 else f"rgb(220,{weak},{weak})"
        made.append(word.replace("\n", "⏎"), style=color if strength > 0.05 else "dim")
    return made


def _probe(arguments: Any, said: Any) -> int:
    from tacit.config.agents import open_target
    from tacit.evaluation.hints import probe, probe_turns

    if arguments.tasks < 2:
        raise TacitError(f"--tasks {arguments.tasks} must be at least 2: an irrelevant hint is another task's.")
    console = make_console()
    target = open_target(arguments.target, said, arguments.checkpoint)
    if not hasattr(target.policy, "logprobs"):
        raise TacitError(f"{target.label} cannot score text, so what a hint does to it cannot be measured.")
    tasks = target.world.tasks_of("train", arguments.tasks, target.seed)
    found = probe_turns(target.world, tasks, target.context, target.seed)
    results = probe(cast(Policy, target.policy), target.context, found, target.seed)
    if arguments.json:
        print(json.dumps([asdict(result) for result in results]))
        return 0
    counted = f"{pluralize(len(found), 'turn')} of {pluralize(len(tasks), 'task')}"
    say(console, f"{target.label} in {target.world.name}: {counted}")
    columns = ("hint", "stands before", "shift of the right action", "raised", "turns")
    rows = []
    for result in results:
        shift = f"{result.shift:+.3f} [{result.interval[0]:+.3f}, {result.interval[1]:+.3f}]"
        before = "the request" if result.place == "step" else "the history"
        rows.append((result.kind, before, shift, percent(result.raised), str(result.turns)))
    console.print()
    console.print(table("", columns, rows, numbers=columns[2:]))
    say(console, "\nlog-probability of the whole action, with the hint and without; 95% over tasks.", style="dim")
    return 0
