"""Success rates and mean steps of ALFWorld's experts, by task type.

    python benchmarks/alfworld_experts.py                                  generated houses, 200 per split
    python benchmarks/alfworld_experts.py --games PATH                     all published games of a file or directory
    python benchmarks/alfworld_experts.py --split valid_seen --count 140   one split (published splits need ALFWORLD_DATA)

Published games include a walkthrough; its length is shown for comparison. The explorer's table of likely places was made from
the published training games, so only the other splits are a fair test of it. `--noise P` replaces each command by a random
admissible one with probability P. `--json` prints one JSON object as the last line:
{split: {expert: {family: {games, wins, rate, mean_steps, ...}}}}.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.types import Task
from tacit.core.world import Expert
from tacit.worlds.alfworld import ENVIRONMENT
from tacit.worlds.alfworld.published import FOLDERS, load_games
from tacit.worlds.alfworld.world import FAMILIES

GENERATED = tuple(split for split in ENVIRONMENT.splits if split not in FOLDERS)


def play(make: Callable[[Task], Expert], task: Task, max_steps: int, noise: float = 0.0) -> int:
    """Steps until success; 0 if the expert does not succeed."""
    rng = random.Random(zlib.crc32(task.id.encode()))
    world, expert = ENVIRONMENT.make(), make(task)
    observation = world.reset(task)
    for number in range(1, max_steps + 1):
        action = expert.act(observation)
        if noise and rng.random() < noise:
            action = rng.choice(observation.actions)
        transition = world.step(action)
        if transition.success:
            return number
        observation = transition.observation
    return 0


def measure(make: Callable[[Task], Expert], tasks: Iterable[Task], max_steps: int, noise: float) -> dict[str, float]:
    games = wins = steps = walkthroughs = longer = compared = 0
    for task in tasks:
        taken, walkthrough = play(make, task, max_steps, noise), len(task.data.get("walkthrough", ()))
        games, wins, steps = games + 1, wins + bool(taken), steps + taken
        if walkthrough:
            compared, walkthroughs = compared + 1, walkthroughs + walkthrough
            longer += taken == 0 or taken > walkthrough
    result = {"games": games, "wins": wins, "rate": wins / games, "mean_steps": steps / wins if wins else 0.0}
    return {**result, "walkthrough_steps": walkthroughs / compared, "longer_than_walkthrough": longer} if compared else result


def compare(split: str, tasks: Sequence[Task], max_steps: int, noise: float) -> dict[str, dict]:
    results: dict[str, dict] = {}
    for name, make in ENVIRONMENT.experts.items():
        results[name] = {}
        for family in FAMILIES:
            of_family = [task for task in tasks if task.family == family]
            if not of_family:
                continue
            row = results[name][family] = measure(make, of_family, max_steps, noise)
            text = f"{row['wins']:>5}/{row['games']:<5} {100 * row['rate']:6.2f}%  {row['mean_steps']:5.2f} steps"
            if "walkthrough_steps" in row:
                longer = row["longer_than_walkthrough"]
                text += f"  (walkthrough {row['walkthrough_steps']:5.2f}; not won, or longer, in {longer} games)"
            print(f"{split:<16} {name:<9} {family:<6} {text}")
    return results


def choose_tasks(arguments: argparse.Namespace) -> dict[str, list[Task]]:
    """split -> its tasks, as selected by the options"""
    tasks_by_split: dict[str, list[Task]] = {}
    if arguments.games:
        loaded = load_games(arguments.games)
        print(loaded.report)
        for task in loaded.tasks:
            if not arguments.split or task.split in arguments.split:
                tasks_by_split.setdefault(task.split, []).append(task)
        if not tasks_by_split:
            raise TacitError(f"{arguments.games} has no games of {', '.join(arguments.split)}.")
        return tasks_by_split
    return {split: list(ENVIRONMENT.tasks(split, arguments.count, arguments.seed)) for split in arguments.split or GENERATED}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--games", type=Path, help="a file or directory of published games")
    parser.add_argument("--split", action="append", help="a split; repeat for several")
    parser.add_argument("--count", type=int, default=200, help="games per split; ignored with --games")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw of games")
    parser.add_argument("--max-steps", type=int, default=ENVIRONMENT.max_steps)
    parser.add_argument("--noise", type=float, default=0.0, help="probability of a random command")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    try:
        results = {s: compare(s, t, arguments.max_steps, arguments.noise) for s, t in choose_tasks(arguments).items()}
    except TacitError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
