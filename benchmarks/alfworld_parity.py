"""Parity of our ALFWorld with the alfworld package: replays recorded transcripts and compares every step.

    python benchmarks/alfworld_parity.py TRANSCRIPTS GAMES [--json]

TRANSCRIPTS is a .jsonl or .jsonl.xz file: one game per line with task, trial and episodes of steps (action,
feedback, admissible, won; the first step of an episode has no action). GAMES is a JSON-lines file or a game.tw-pddl with those
games, or a directory of either. Exits with 0 only if all steps of all transcripts are equal.
"""

from __future__ import annotations

import argparse
import json
import lzma
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.worlds.alfworld.published import find_games
from tacit.worlds.alfworld.world import AlfWorld

SHOWN = 5


@dataclass
class Comparison:
    games: int = 0
    compared: int = 0
    equal: int = 0
    differences: list[str] = field(default_factory=list)
    """descriptions of the first few"""

    def differs(self, description: str) -> None:
        if len(self.differences) < SHOWN:
            self.differences.append(description)


def read_transcripts(path: Path) -> Iterator[Mapping[str, Any]]:
    try:
        with lzma.open(path, "rt", encoding="utf-8") if path.suffix == ".xz" else path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    record = json.loads(line)
                    if not isinstance(record, dict) or not {"task", "trial", "episodes"} <= record.keys():
                        raise TacitError(f"{path}, line {number}: a transcript has task, trial and episodes.")
                    yield record
    except (OSError, EOFError, lzma.LZMAError, ValueError) as error:
        raise TacitError(f"{path} is not a file of transcripts: {error}.") from error


def compare(transcripts: Path, games: Path) -> Comparison:
    entries, _ = find_games(games)
    by_name = {entry.id.split("/", 1)[1]: entry for entry in entries}
    result = Comparison()
    for record in read_transcripts(transcripts):
        name = f"{record['task']}/{record['trial']}"
        result.games += 1
        try:
            if name not in by_name:
                raise TacitError(f"{games} does not hold this game.")
            task = by_name[name].load()
        except TacitError as error:
            result.compared += sum(len(episode["steps"]) for episode in record["episodes"])
            result.differs(f"{name}: {error}")
            continue
        for number, episode in enumerate(record["episodes"]):
            replay(task, episode["steps"], f"{name}, episode {number}", result)
    return result


def replay(task: Task, steps: list[Mapping[str, Any]], where: str, result: Comparison) -> None:
    world = AlfWorld()
    for number, step in enumerate(steps):
        if number == 0:
            observation, won = world.reset(task), world.household.won
        else:
            transition = world.step(step["action"])
            observation, won = transition.observation, transition.success
        ours = {"feedback": observation.text, "admissible": list(observation.actions), "won": won}
        different = [key for key, value in ours.items() if value != step[key]]
        result.compared += 1
        result.equal += not different
        for key in different:
            result.differs(
                f"{where}, step {number}, action {step['action']!r}, {key}:\n  engine {step[key]!r}\n  ours   {ours[key]!r}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("transcripts", type=Path)
    parser.add_argument("games", type=Path)
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    try:
        result = compare(arguments.transcripts, arguments.games)
    except TacitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{result.games} games, {result.compared} steps compared, {result.equal} equal")
    for difference in result.differences:
        print(difference)
    if arguments.json:
        summary = {"games": result.games, "steps_compared": result.compared, "steps_equal": result.equal}
        print(json.dumps({**summary, "differences": result.differences}))
    return 0 if result.compared and result.equal == result.compared else 1


if __name__ == "__main__":
    sys.exit(main())
