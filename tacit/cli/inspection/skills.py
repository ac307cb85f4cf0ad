"""`tacit inspect skills`: an episode with its hindsight skills and every token colored by its shift."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from tacit.cli.terminal import make_console, say, say_pairs
from tacit.config.flags import Parser
from tacit.core.errors import TacitError
from tacit.core.progress import pluralize
from tacit.runs.trajectories import find_recording, read_records

SUMMARY_LINE = "Show the effect of hindsight skills on each token of an episode."
STRONG = 2.0  # shift with full color


def run(argv: Sequence[str]) -> int:
    parser = Parser("inspect skills", SUMMARY_LINE, usage="tacit inspect skills RUN [--iteration N]")
    parser.add_argument("target", metavar="RUN", help="run directory")
    parser.flag("--iteration", int, "iteration (default: the last recorded)")
    parser.flag("--episode", int, "episode of the iteration, from 1 (default: the one with the largest shifts)")
    parser.flag("--json", False, "print the episode as one JSON object")
    arguments, _ = parser.parse(argv)
    path = find_recording(Path(arguments.target), arguments.iteration)
    records = [r for r in read_records(path) if any("skills" in turn for turn in r["turns"])]
    if not records:
        raise TacitError(f"no episode of {path} has skills; only the method opid records them.")
    number = arguments.episode
    if number is not None and not 1 <= number <= len(records):
        raise TacitError(f"--episode {number} must be between 1 and {len(records)}, the number of episodes with skills.")
    largest = max(records, key=lambda r: sum(abs(turn.get("skill_shift", 0.0)) for turn in r["turns"]))
    record = largest if number is None else records[number - 1]
    if arguments.json:
        print(json.dumps(record, ensure_ascii=False))
    else:
        _show(make_console(), record, path)
    return 0


def _show(console: Any, record: Mapping[str, Any], path: Path) -> None:
    critical = sum("step" in lesson for turn in record["turns"] for lesson in turn.get("skills", ()))
    episode = next((s["task"] for t in record["turns"] for s in t.get("skills", ()) if "task" in s), "")
    say(console, record["goal"], style="bold")
    ended = f"{'won' if record['success'] else 'lost'} after {pluralize(len(record['turns']), 'step')}"
    rows = [("episode", f"{record['task']}, {ended}"), ("from", str(path)), ("critical steps", str(critical))]
    say_pairs(console, rows + ([("episode's skill", episode)] if episode else []))
    console.print()
    for number, turn in enumerate(record["turns"], 1):
        skill = next((s["step"] for s in turn.get("skills", ()) if "step" in s), "")
        if skill:
            console.print(Text.assemble(f"{number:>4}  ", (f"skill: {skill}", "yellow")), soft_wrap=True)
        line = Text(f"{number:>4}  " if not skill else "      ")
        line.append_text(colored(turn))
        line.append(f"   {turn.get('skill_shift', 0.0):+.2f}", style="dim")
        console.print(line, soft_wrap=True)
    say(console, "\ngreen: the skill makes the token likelier; red: less likely; the number is their sum.", style="dim")


def colored(turn: Mapping[str, Any]) -> Text:
    tokens = turn.get("shift_by_token")
    if not tokens:
        return Text(turn["wrote"], style="dim")
    line = Text()
    for word, shift in tokens:
        strength = min(1.0, abs(shift) / STRONG)
        weak = round(160 * (1 - strength)) + 60
        color = f"rgb({weak},200,{weak})" if shift > 0 else f"rgb(220,{weak},{weak})"
        line.append(word.replace("\n", "⏎"), style=color if strength > 0.05 else "dim")
    return line
