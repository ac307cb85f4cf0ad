"""How agents solve Countdown: the signals of ReuseRL's Tables 2 and 9 (docs/experiments/reuserl.md).

    python benchmarks/countdown_signals.py collect DIR … --data docs/experiments/data/countdown_qwen.jsonl.xz
    python benchmarks/countdown_signals.py tables --data docs/experiments/data/countdown_qwen.jsonl.xz
    python benchmarks/countdown_signals.py search       # what search without learning reaches, half a minute

DIR is the output of `tacit compare`; its runs need not have ended. `collect` stores the actions of evaluation episodes, and
training metrics of every iteration. `tables` prints success by iteration, paired differences over puzzles, and the signals.
"""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import tacit
from tacit.core.types import Observation, Task
from tacit.evaluation.statistics import crossed_bootstrap, wilson
from tacit.worlds.countdown.world import FAMILIES, Operation, operations, parse_action, parse_observation, replace_pair

Episode = dict[str, Any]  # task, family, success, stop, actions, refused
Run = dict[str, Any]  # method, seed, training, evaluations: {iteration: [Episode]}
DATA = Path("docs/experiments/data/countdown_qwen.jsonl.xz")
TRAINING = ("success", "steps", "valid", "entropy", "grad_norm", "old_kl", "seconds")


def collect(directories: list[Path], file: Path) -> None:
    runs = []
    for metrics in sorted(path for d in directories for path in d.glob("runs/countdown/*/*/metrics.jsonl")):
        method, seed = metrics.parts[-3:-1]
        trained = [m for m in map(json.loads, metrics.read_text().splitlines()) if m["stage"] == "rl"]
        evaluations = {}
        for path in sorted(metrics.parent.glob("trajectories/eval-*.jsonl.gz")):
            with gzip.open(path, "rt") as lines:
                evaluations[int(path.name.split("-")[-1].split(".")[0])] = [shorten(json.loads(line)) for line in lines]
        training = {k: [float(f"{m[k]:.4g}") for m in trained] for k in TRAINING}
        runs.append({"method": method, "seed": int(seed), "training": training, "evaluations": evaluations})
    with lzma.open(file, "wt") as out:
        out.writelines(json.dumps(run) + "\n" for run in runs)
    print(f"{len(runs)} runs in {file}")


def shorten(episode: dict[str, Any]) -> Episode:
    turns = episode["turns"]
    return {
        **{k: episode[k] for k in ("task", "family", "success", "stop")},
        "actions": [t["action"] for t in turns],
        "refused": [not (t["valid"] and t["effective"]) for t in turns],
    }


def signals(episodes: list[Episode]) -> dict[str, float]:
    """The rows of Table 9, in percent where it has percent. An operation counts when the world executed it."""
    won, lost = ([e for e in episodes if e["success"] is wanted] for wanted in (True, False))
    resets = [sum(a == "reset" for a in e["actions"]) for e in won]
    operators = [[parsed.operator for parsed in executed(e)] for e in won]
    counted = Counter(operator for own in operators for operator in own)
    everything = Counter(parsed.operator for e in episodes for parsed in executed(e))
    again = [np.mean([a in e["actions"][:i] for i, a in enumerate(e["actions"])]) for e in won]
    return {
        "steps per success": float(np.mean([len(e["actions"]) for e in won])),
        "RESETs per success": float(np.mean(resets)),
        "successes without RESET, %": 100 * float(np.mean([r == 0 for r in resets])),
        "invalid actions of successes, %": 100 * float(np.mean(np.concatenate([e["refused"] for e in won]))),
        "repeated actions, mean over successes, %": 100 * float(np.mean(again)),
        "MUL and DIV among operations of successes, %": 100 * (counted["*"] + counted["/"]) / counted.total(),
        "MUL and DIV among operations of all episodes, %": 100 * (everything["*"] + everything["/"]) / everything.total(),
        "kinds of operation per success": float(np.mean([len(set(own)) for own in operators])),
        "failures that got stuck, %": 100 * float(np.mean([e["stop"] == "failure" for e in lost])) if lost else float("nan"),
    }


def executed(episode: Episode) -> list[Operation]:
    parsed = (parse_action(a) for a, refused in zip(episode["actions"], episode["refused"], strict=True) if not refused)
    return [p for p in parsed if isinstance(p, Operation)]


def tables(runs: list[Run], baseline: str) -> None:
    for run in runs:
        print(f"\n{run['method']}, seed {run['seed']}: training success, % of five iterations each")
        success = run["training"]["success"]
        blocks = [success[i : i + 5] for i in range(0, len(success), 5)]
        print("  " + ", ".join(f"{5 * i + 1}–{5 * i + len(b)}: {100 * np.mean(b):.1f}" for i, b in enumerate(blocks)))
    print("\n| success, % | iteration | all | three numbers | four numbers |\n|---|---|---|---|---|")
    for run in runs:
        for iteration, episodes in by_iteration(run):
            cells = [rate([e for e in episodes if e["family"].startswith(family)]) for family in ("", *FAMILIES.values())]
            print(f"| {run['method']}, seed {run['seed']} | {iteration} | {' | '.join(cells)} |")
    first = {run["seed"]: run for run in runs if run["method"] == baseline}
    print(f"\n| against {baseline} | iteration | points | 95% over puzzles |\n|---|---|---|---|")
    for run in (run for run in runs if run["method"] != baseline and run["seed"] in first):
        for iteration in sorted(run["evaluations"].keys() & first[run["seed"]]["evaluations"].keys(), key=int):
            gaps = np.subtract(*(wins(r["evaluations"][iteration]) for r in (run, first[run["seed"]])))
            difference, low, high = (f"{100 * value:+.1f}" for value in (gaps.mean(), *crossed_bootstrap(gaps[None])))
            print(f"| {run['method']}, seed {run['seed']} | {iteration} | {difference} | [{low}, {high}] |")
    sums = {e["task"]: only_sums(e["task"]) for e in runs[0]["evaluations"]["0"]}
    hard = [task for task, enough in sums.items() if not enough]
    print(f"\n{len(hard)} of {len(sums)} puzzles need a multiplication or division; solved of them:")
    for run in runs:
        solved = (f"{i}: {sum(e['success'] for e in episodes if e['task'] in hard)}" for i, episodes in by_iteration(run))
        print(f"  {run['method']}, seed {run['seed']}: {', '.join(solved)}")
    columns = [(f"{r['method']}, {i}", signals(episodes)) for r in runs for i, episodes in by_iteration(r)]
    print(f"\n| signal | {' | '.join(name for name, _ in columns)} |\n|---" + "|---" * len(columns) + "|")
    for name in columns[0][1]:
        print(f"| {name} | {' | '.join(f'{values[name]:.1f}' for _, values in columns)} |")


def draw(runs: list[Run], file: Path) -> None:
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "tacit"  # the same figure gives the same file
    figure, axis = plt.subplots(figsize=(7, 4))
    for run in runs:
        evaluations = [(int(i), 100 * wins(episodes).mean()) for i, episodes in by_iteration(run)]
        name = f"{run['method']}, seed {run['seed']}"
        (line,) = axis.plot(*zip(*evaluations, strict=True), marker="o", label=f"{name}: evaluation")
        trained = 100 * np.array(run["training"]["success"])
        axis.plot(range(1, len(trained) + 1), trained, color=line.get_color(), alpha=0.4, label=f"{name}: training")
    for agent, name in ((Search, "search without learning"), (SearchWithLastStep, "the same, computing the last operation")):
        percent = 100 * play(agent, len(runs[0]["evaluations"]["0"])).success
        axis.axhline(percent, color="gray", linestyle=":", linewidth=1)
        axis.text(0, percent + 1, name, fontsize=7, color="gray")
    axis.set(title="Qwen2.5-Coder-1.5B, Countdown, no demonstrations", xlabel="iteration", ylabel="success, %", ylim=(0, 100))
    axis.legend(fontsize=8, loc="lower right")
    axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})


def by_iteration(run: Run) -> list[tuple[str, list[Episode]]]:
    return sorted(run["evaluations"].items(), key=lambda pair: int(pair[0]))


class RandomPlay:
    """A random possible action."""

    random: Random

    def __init__(self, task: Task) -> None:
        pass

    def act(self, observation: Observation) -> str:
        return self.random.choice(observation.actions)


class Search:
    """Tries operations in random order, none twice from the same numbers; undoes when nothing is left to try."""

    random: Random
    remembers = True
    exact_last = False

    def __init__(self, task: Task) -> None:
        self.tried: set[tuple[tuple[int, ...], str]] = set()

    def act(self, observation: Observation) -> str:
        seen = parse_observation(observation.text)
        pool = tuple(sorted(seen.pool))
        choices = [(str(operation), value) for operation, value in operations(pool) if (pool, str(operation)) not in self.tried]
        if self.exact_last and len(pool) == 2:
            choices = [(action, value) for action, value in choices if value == seen.target]
        if not choices:
            return "rollback"
        action, _ = self.random.choice(choices)
        if self.remembers:
            self.tried.add((pool, action))
        return action


class SearchWithLastStep(Search):
    """With two numbers left, it only takes an operation that gives the target."""

    exact_last = True


class SearchWithoutMemory(Search):
    remembers = False


class SearchWithLastStepWithoutMemory(SearchWithLastStep):
    remembers = False


def play(agent: type, tasks: int) -> tacit.Evaluation:
    agent.random = Random(0)
    return tacit.evaluate(agent, world="countdown", tasks=tasks, repeats=10, fresh=True)


def search(tasks: int) -> None:
    for agent in (RandomPlay, Search, SearchWithLastStep, SearchWithoutMemory, SearchWithLastStepWithoutMemory):
        evaluation = play(agent, tasks)
        families = ", ".join(f"{name} {100 * family.success:.1f}%" for name, family in evaluation.score.families.items())
        print(f"{agent.__name__}: {evaluation}; {families}")


def only_sums(task: str) -> bool:
    """Whether additions and subtractions are enough for the puzzle."""
    numbers, target = task.split("/")[-1].split("=")

    def reaches(pool: tuple[int, ...]) -> bool:
        if len(pool) == 1:
            return pool[0] == int(target)
        results = [(o, replace_pair(pool, o, value)) for o, value in operations(pool) if o.operator in "+-"]
        return any(reaches(left) for _, left in results if left)

    return reaches(tuple(map(int, numbers.split("-"))))


def wins(episodes: list[Episode]) -> np.ndarray:
    return np.array([e["success"] for e in episodes], dtype=float)


def rate(episodes: list[Episode]) -> str:
    won = int(wins(episodes).sum())
    low, high = wilson(won, len(episodes))
    return f"{100 * won / len(episodes):.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("collect", "tables", "search"))
    parser.add_argument("directories", nargs="*", type=Path)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--figure", type=Path, help="SVG of the curves, with `tables`")
    parser.add_argument("--tasks", type=int, default=256, help="puzzles of `search` (default: 256)")
    parser.add_argument("--baseline", default="grpo", help="method that the others are compared with (default: grpo)")
    chosen = parser.parse_args()
    if chosen.action == "search":
        return search(chosen.tasks)
    if chosen.action == "collect":
        return collect(chosen.directories, chosen.data)
    with lzma.open(chosen.data, "rt") as lines:
        runs = [json.loads(line) for line in lines]
    tables(runs, chosen.baseline)
    if chosen.figure:
        draw(runs, chosen.figure)


if __name__ == "__main__":
    main()
