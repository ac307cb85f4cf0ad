"""`tacit inspect clusters`: the steps of one group, part by part, as a person would want to judge them.

Runs whose method compares steps have recorded which part each step was in. For any other run, or to see what another partition
would have done, the parts are made again from the observations.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacit.assembly.flags import Parser
from tacit.core.errors import TacitError, unknown
from tacit.credit.diagnostics import partition_metrics
from tacit.credit.embedders import HashNgram
from tacit.credit.partitions import by_cosine, by_key
from tacit.runs.directory import read_settings
from tacit.runs.records import read_records

SUMMARY_LINE = "Show which steps of a group were put together, what was done there, and the credit it got."
BY = ("recorded", "identity", "ngram")
WIDTH = 76
"""characters of an observation shown"""


@dataclass(frozen=True)
class Seen:
    """One step of the group."""

    member: int
    turn: int
    record: dict[str, Any]
    won: bool


def run(argv: Sequence[str]) -> int:
    arguments, _ = make_parser().parse(argv)
    from tacit.cli.terminal import make_console

    method = read_settings(arguments.run)["method"]["name"]  # says so where this is no run
    path = _iteration(arguments.run, arguments.iteration)
    groups = read_groups(path)
    task = _choose(groups, arguments.group, path)
    steps = groups[task]
    by = arguments.by or ("recorded" if all("part" in s.record for s in steps) else "identity")
    part_N = partition(steps, by, arguments.epsilon)
    if arguments.json:
        print(json.dumps(as_json(task, steps, part_N, by, path)))
        return 0
    _show(make_console(), task, steps, part_N, by, method, path, arguments.all)
    return 0


def make_parser() -> Parser:
    parser = Parser("inspect clusters", SUMMARY_LINE, usage="tacit inspect clusters RUN [--iteration N] [--group TASK]")
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--iteration", type=int, metavar="N", help="which iteration (default: the last recorded)")
    parser.add_argument(
        "--group", default="", metavar="TASK", help="task id, or its number in the iteration (default: where most is compared)"
    )
    parser.add_argument(
        "--by", default="", metavar="|".join(BY), help="parts as recorded, or made again from the text (default: recorded)"
    )
    parser.add_argument("--epsilon", type=float, default=0.25, metavar="E", help="radius for --by ngram (default: 0.25)")
    parser.add_argument("--all", action="store_true", help="also the parts with one step, which get no step-level credit")
    parser.add_argument("--json", action="store_true", help="print the group as one JSON object")
    return parser


def read_groups(path: Path) -> dict[str, list[Seen]]:
    """Trained-on steps by task, in the order they were credited."""
    groups: dict[str, list[Seen]] = {}
    members: dict[str, int] = {}
    for record in read_records(path):
        if not any("credit" in turn for turn in record["turns"]):
            continue  # crashed, or not selected
        member = members[record["task"]] = members.get(record["task"], -1) + 1
        steps = groups.setdefault(record["task"], [])
        steps += [Seen(member, t, turn, record["success"]) for t, turn in enumerate(record["turns"])]
    if not groups:
        raise TacitError(f"{path} holds no episode that was trained on.")
    return groups


def partition(steps: Sequence[Seen], by: str, epsilon: float = 0.25) -> np.ndarray:
    if by not in BY:
        raise unknown("partition", by, BY)
    if by == "recorded":
        if not all("part" in s.record for s in steps):
            raise TacitError("this run's method recorded no parts; make them from the text with --by identity or --by ngram.")
        return np.array([int(s.record["part"]) for s in steps])
    texts = [s.record["saw"] for s in steps]
    return by_key(texts) if by == "identity" else by_cosine(HashNgram().texts(texts), epsilon)


def parts_of(steps: Sequence[Seen], part_N: np.ndarray) -> list[list[Seen]]:
    """The parts, largest first; members by what they got, then by what they did."""
    parts: dict[int, list[Seen]] = {}
    for step, label in zip(steps, part_N.tolist(), strict=True):
        parts.setdefault(label, []).append(step)
    ordered = sorted(parts.values(), key=len, reverse=True)
    return [sorted(part, key=lambda s: (-_credit(s), s.record["action"])) for part in ordered]


def as_json(task: str, steps: Sequence[Seen], part_N: np.ndarray, by: str, path: Path) -> dict[str, Any]:
    parts = [[{"member": s.member, "turn": s.turn, "won": s.won, **s.record} for s in part] for part in parts_of(steps, part_N)]
    return {"file": str(path), "task": task, "by": by, **partition_metrics([part_N]), "members": parts}


def _iteration(run: Path, number: int | None) -> Path:
    files = {int(f.name[3:9]): f for f in sorted((run / "trajectories").glob("rl-??????.jsonl.gz"))}
    if not files:
        raise TacitError(f"{run} has no recorded iterations; train with --trajectories (the default) and look again.")
    if number is None:
        return files[max(files)]
    if number not in files:
        raise TacitError(f"iteration {number} is not recorded in {run}; there are {min(files)} to {max(files)}.")
    return files[number]


def _choose(groups: dict[str, list[Seen]], name: str, path: Path) -> str:
    if not name:
        # Where returns differ there is something to see; among those, the largest group.
        return max(groups, key=lambda task: (len({s.won for s in groups[task]}), len(groups[task])))
    if name.isdigit() and int(name) < len(groups):
        return list(groups)[int(name)]
    if name not in groups:
        raise unknown(f"group of {path.name}", name, groups)
    return name


def _show(
    console: Any, task: str, steps: Sequence[Seen], part_N: np.ndarray, by: str, method: str, path: Path, everything: bool
) -> None:
    from tacit.cli.terminal import percent, say, say_pairs

    parts = parts_of(steps, part_N)
    told = partition_metrics([part_N])
    members = {s.member: s.won for s in steps}
    made = {"recorded": f"as {method} made them", "identity": "of equal observations", "ngram": "of n-grams alike"}[by]
    say(console, f"{task}  ({path.name})", style="bold")
    say_pairs(
        console,
        [
            ("episodes", f"{len(members)}, {sum(members.values())} won; {len(steps)} steps"),
            ("parts", f"{len(parts)} {made}, {told['parts_mean_size']:.1f} steps each, {told['parts_pairs']:.0f} pairs"),
            (
                "alone",
                f"{percent(told['parts_singleton'])} of the parts, {percent(told['parts_singleton_steps'])} of the steps",
            ),
            ("credit", f"as {method} gave it: {'of the step, and in all' if 'step_credit' in steps[0].record else 'in all'}"),
        ],
    )
    for number, part in enumerate(parts):
        if len(part) > 1 or everything:
            console.print()
            _show_part(console, number, part)
    alone = sum(len(part) == 1 for part in parts)
    if alone and not everything:
        say(console, f"\nSteps that stand alone and get no step-level credit: {alone}; --all shows them.")


def _show_part(console: Any, number: int, part: Sequence[Seen]) -> None:
    """What was seen, numbered; then who did what on seeing which."""
    from rich.text import Text

    from tacit.cli.terminal import say

    texts = {text: n for n, text in enumerate(dict.fromkeys(s.record["saw"] for s in part), 1)}
    actions = len({s.record["action"] for s in part})
    say(console, f"part {number}: {len(part)} steps, {len(texts)} observations, {actions} actions", style="bold")
    for text, n in texts.items():
        say(console, f"  saw {n:<3} {_short(text)}", style="dim")
    for s in part:
        step = f"{s.record['step_credit']:+8.3f}" if "step_credit" in s.record else " " * 8
        action = _short(s.record["action"]) if s.record["valid"] else _short(s.record["wrote"], 24) + "  (does not parse)"
        line = Text.assemble(
            f"  {step} {s.record.get('credit', 0.0):+8.3f}  ",
            (f"{action:<40}", "cyan"),
            (f"  saw {texts[s.record['saw']]}, episode {s.member}, step {s.turn}, {'won' if s.won else 'lost'}", "dim"),
        )
        console.print(line, soft_wrap=True)


def _credit(step: Seen) -> float:
    """The step-level part of a step's credit; all of it where the method recorded no such part."""
    return float(step.record.get("step_credit", step.record.get("credit", 0.0)))


def _short(text: str, width: int = WIDTH) -> str:
    line = " ".join(text.split())
    return line if len(line) <= width else line[: width - 1] + "…"
