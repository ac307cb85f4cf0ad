"""`tacit inspect skills`: an episode with its hindsight skills and every token colored by its shift; with `--probe`, whether
a policy can read a skill at all."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tacit.cli.terminal import add_checkpoint_flag, add_shared_options, peek_method
from tacit.config.flags import Parser
from tacit.core.errors import TacitError
from tacit.core.progress import pluralize
from tacit.core.protocols import Policy
from tacit.runs.trajectories import list_recordings, read_records

if TYPE_CHECKING:
    from rich.text import Text

SUMMARY_LINE = "Show what hindsight's skills say of each token of an episode, or probe whether a policy reads skills."
STRONG = 2.0
"""shift with full color"""


def run(argv: Sequence[str]) -> int:
    arguments, said = make_parser(peek_method(argv, "inspect skills")).parse(argv)
    if arguments.probe:
        return _probe(arguments, said)
    from tacit.cli.terminal import make_console

    path, records = taught_records(Path(arguments.target), arguments.iteration)
    record = choose(records, arguments.episode)
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


def taught_records(run: Path, iteration: int | None) -> tuple[Path, list[dict[str, Any]]]:
    """Recorded episodes of an iteration that have skills."""
    files = list_recordings(run)
    if not files:
        raise TacitError(f"{run} has no recorded iterations; train with --trajectories (the default) and look again.")
    number = max(files) if iteration is None else iteration
    if number not in files:
        raise TacitError(f"iteration {number} is not recorded in {run}; there are {min(files)} to {max(files)}.")
    records = [r for r in read_records(files[number]) if any("skills" in turn for turn in r["turns"])]
    if not records:
        raise TacitError(f"no episode of {files[number]} has skills: they come with opid, if its analyzer had any to tell.")
    return files[number], records


def choose(records: Sequence[dict[str, Any]], number: int | None) -> dict[str, Any]:
    if number is None:
        return max(records, key=lambda r: sum(abs(turn.get("skill_shift", 0.0)) for turn in r["turns"]))
    if not 1 <= number <= len(records):
        raise TacitError(f"--episode {number}: there are {len(records)} with skills.")
    return records[number - 1]


def _show(console: Any, record: Mapping[str, Any], path: Path) -> None:
    from rich.text import Text

    from tacit.cli.terminal import say, say_pairs

    critical = sum("step" in lesson for turn in record["turns"] for lesson in turn.get("skills", ()))
    episode = next((s["task"] for t in record["turns"] for s in t.get("skills", ()) if "task" in s), "")
    say(console, f"{record['goal']}", style="bold")
    said = [
        (
            "episode",
            f"{record['task']}, {'won' if record['success'] else 'lost'} after {pluralize(len(record['turns']), 'step')}",
        ),
        ("from", str(path)),
        ("critical steps", str(critical)),
    ]
    say_pairs(console, said + ([("episode's skill", episode)] if episode else []))
    console.print()
    for number, turn in enumerate(record["turns"], 1):
        told = next((s["step"] for s in turn.get("skills", ()) if "step" in s), "")
        if told:
            console.print(Text.assemble(f"{number:>4}  ", (f"told: {told}", "yellow")), soft_wrap=True)
        line = Text(f"{number:>4}  " if not told else "      ")
        line.append_text(coloured(turn))
        line.append(f"   {turn.get('skill_shift', 0.0):+.2f}", style="dim")
        console.print(line, soft_wrap=True)
    say(console, "\ngreen: the skill makes the token likelier; red: less likely; the number is their sum.", style="dim")


def coloured(turn: Mapping[str, Any]) -> Text:
    """The completion, token by token."""
    from rich.text import Text

    tokens = turn.get("shift_by_token")
    if not tokens:
        return Text(turn["wrote"], style="dim")
    made = Text()
    for word, shift in tokens:
        strength = min(1.0, abs(shift) / STRONG)
        weak = round(160 * (1 - strength)) + 60
        colour = f"rgb({weak},200,{weak})" if shift > 0 else f"rgb(220,{weak},{weak})"
        made.append(word.replace("\n", "⏎"), style=colour if strength > 0.05 else "dim")
    return made


def _probe(arguments: Any, said: Any) -> int:
    from dataclasses import asdict

    from tacit.cli.terminal import make_console, percent, say, table
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
    say(
        console,
        f"{target.label} in {target.world.name}: {pluralize(len(found), 'turn')} of {pluralize(len(tasks), 'task')}",
    )
    columns = ("hint", "stands before", "shift of the right action", "raised", "turns")
    rows = [
        (
            result.kind,
            "the request" if result.place == "step" else "the history",
            f"{result.shift:+.3f} [{result.interval[0]:+.3f}, {result.interval[1]:+.3f}]",
            percent(result.raised),
            str(result.turns),
        )
        for result in results
    ]
    console.print()
    console.print(table("", columns, rows, numbers=columns[2:]))
    say(console, "\nlog-probability of the whole action, with the hint and without; 95% over tasks.", style="dim")
    return 0
