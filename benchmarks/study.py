"""Throughput of concurrent training runs on one machine: iterations per hour, with start-up and evaluation.

    tacit compare long-practice --jobs 2 --only household/grpo/0,household/bipace/0 --out two
    tacit compare long-practice --jobs 1 --only household/grpo/0 --out one
    python benchmarks/study.py one two

Each argument is a directory of runs that ran at the same time, or several metrics.jsonl files joined by commas. Clock
times come from the metrics (`at`). The start-up lasts from the creation of the run (from the first record, if only metrics are
given) to the first RL iteration.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path


def read_run(file: Path) -> tuple[float, list[tuple[float, float]]]:
    """(start, [(end, seconds)] of every RL iteration)"""
    records = [json.loads(line) for line in file.read_text().splitlines()]
    iterations = [r for r in records if r.get("stage") == "rl" and "seconds" in r]
    settings = file.with_name("settings.json")
    first = records[0]["at"] - records[0].get("seconds", 0)
    start = min(first, settings.stat().st_mtime) if settings.exists() else first
    return start, [(r["at"], r["seconds"]) for r in iterations]


def measure(files: list[Path]) -> dict[str, float]:
    runs = [(start, done) for start, done in map(read_run, files) if done]  # a shared start has no RL iterations
    begin, end = min(start for start, _ in runs), max(done[-1][0] for _, done in runs)
    iterations = sum(len(done) for _, done in runs)
    per_iteration = statistics.median(seconds for _, done in runs for _, seconds in done)
    startup = statistics.mean(done[0][0] - done[0][1] - start for start, done in runs)
    inside = statistics.mean(sum(seconds for _, seconds in done) for _, done in runs)
    other = statistics.mean(done[-1][0] - start for start, done in runs) - startup - inside
    return {
        "runs": len(runs),
        "iterations": iterations,
        "wall s": end - begin,
        "s per iteration": per_iteration,
        "start-up s": startup,
        "evaluation and checkpoints s": other,
        "iterations per hour": 3600 * iterations / (end - begin),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", help="directory of runs, or metrics files joined by commas")
    rows = {}
    for study in parser.parse_args().studies:
        path = Path(study)
        rows[study] = measure(sorted(path.rglob("metrics.jsonl")) if path.is_dir() else [Path(p) for p in study.split(",")])
    columns = list(next(iter(rows.values())))
    print("| study | " + " | ".join(columns) + " |\n|" + "---|" * (len(columns) + 1))
    for name, row in rows.items():
        print(f"| {Path(name.split(',')[0]).name} | " + " | ".join(f"{row[c]:.1f}".removesuffix(".0") for c in columns) + " |")


if __name__ == "__main__":
    main()
