"""Tables and curves of the long-training study (docs/experiments/long_training.md).

    python benchmarks/long_training.py collect DIR … --study smollm2 --data docs/experiments/data/long_training.jsonl.xz
    python benchmarks/long_training.py tables --data docs/experiments/data/long_training.jsonl.xz --figures docs/assets
    python benchmarks/long_training.py tables --data docs/experiments/data/long_training*.jsonl.xz --until 100

`collect` reads the output directories of `tacit compare` and adds finished runs to the data file: evaluations with the outcome
of every task, and some metrics of every iteration. Runs that are already in the file must be equal. `tables` prints one block
per study and world. The primary outcome is the mean success of a run's last evaluations, three unless `--last` is given. With
`--until N` runs end at iteration N; those without an evaluation there are left out.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from tacit.comparison.results import compare_runs, mean_success, outcomes_by_task
from tacit.evaluation.statistics import area, crossed_bootstrap, holm, t_interval

EVALUATION = ("step", "success", "success_steps", "invalid", "ineffective", "outcomes")
TRAINING = ("success", "steps", "entropy", "grad_norm", "old_kl", "repeated", "effective", "seconds")
LATE = 30  # iterations
MODELS = {"cpu": "tiny-base-1 (1M parameters)", "smollm2": "SmolLM2-135M"}  # titles of the figures, by study
Run = dict[str, Any]


def read(file: Path) -> dict[str, Run]:
    if not file.exists():
        return {}
    with lzma.open(file, "rt") as lines:
        return {"/".join(str(r[k]) for k in ("study", "world", "method", "seed")): r for r in map(json.loads, lines)}


def collect(directories: list[Path], study: str, file: Path) -> None:
    runs = read(file)
    for summary in sorted(path for d in directories for path in d.glob("runs/*/*/*/summary.json")):
        world, method, seed = summary.parts[-4:-1]
        ended = json.loads(summary.read_text())
        start = json.loads((summary.parents[2] / "start" / "summary.json").read_text())["evaluations"][-1]
        metrics = [json.loads(line) for line in summary.with_name("metrics.jsonl").read_text().splitlines()]
        practice = [m for m in metrics if m["stage"] == "rl"]
        evaluations = [{**start, "step": 0}, *(e for e in ended["evaluations"] if e["stage"] == "rl")]
        run = {
            "study": study,
            "world": world,
            "method": method,
            "seed": int(seed),
            "panel": ended["panel"],
            "panel_hash": ended["panel_hash"],
            "digest": ended["digest"],
            "evaluations": [{k: e[k] for k in EVALUATION} for e in evaluations],
            "training": {k: [float(f"{m[k]:.4g}") for m in practice] for k in TRAINING},
        }
        key = f"{study}/{world}/{method}/{seed}"
        if runs.setdefault(key, run) != run:
            raise SystemExit(f"{key} in {summary.parent} differs from the one in {file}")
    with lzma.open(file, "wt") as out:
        out.writelines(json.dumps(runs[key]) + "\n" for key in sorted(runs))
    print(f"{len(runs)} runs in {file}")


def truncate(run: Run, until: int) -> Run | None:
    """The run as if it had ended after `until` iterations; None if it has no evaluation there."""
    evaluations = [e for e in run["evaluations"] if e["step"] <= until]
    training = {k: values[:until] for k, values in run["training"].items()}
    return {**run, "evaluations": evaluations, "training": training} if evaluations[-1]["step"] == until else None


def last(run: Run, count: int) -> list[dict[str, Any]]:
    """The evaluations of the primary outcome, as `tacit compare --outcome mean:COUNT` takes them."""
    return [{**e, "episodes": sum(map(len, e["outcomes"]))} for e in run["evaluations"][-count:]]


def percent(value: float, sign: bool = False) -> str:
    return f"{100 * value:+.1f}" if sign else f"{100 * value:.1f}"


def tables(runs: dict[str, Run], figures: Path | None, baseline: str, count: int) -> None:
    worlds: dict[tuple[str, str], dict[str, dict[int, Run]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs.values():
        worlds[run["study"], run["world"]][run["method"]][run["seed"]] = run
    for (study, world), methods in worlds.items():
        order = sorted(methods, key=lambda m: (m != baseline, m))
        any_run = next(iter(methods[order[0]].values()))
        steps = [e["step"] for e in any_run["evaluations"]]
        print(f"\n## {study}, {world} ({any_run['panel']}, hash {any_run['panel_hash']})\n")
        print(f"| success, % | seeds | {' | '.join(map(str, steps))} | mean of the last {count} | by seed |")
        print("|---" * (len(steps) + 4) + "|")
        for method in order:
            own = [methods[method][seed] for seed in sorted(methods[method])]
            curve = np.array([[e["success"] for e in run["evaluations"]] for run in own]).mean(axis=0)
            by_seed = [mean_success(last(run, count)) for run in own]
            cells = [method, ", ".join(str(run["seed"]) for run in own), *map(percent, curve), percent(np.mean(by_seed))]
            print(f"| {' | '.join(cells)} | {', '.join(map(percent, by_seed))} |")
        compare(methods, order, count)
        print(
            f"\n| mean over seeds | training success, last {LATE}, % | area, % | steps per success | ineffective, % | "
            "repeated, % | entropy, first and last 10 | gradient norm | old_kl, median of last 10 | s per iteration |"
        )
        print("|---" * 10 + "|")
        for method in order:
            own = list(methods[method].values())
            train = {k: np.array([run["training"][k] for run in own]) for k in TRAINING}
            finals = [run["evaluations"][-1] for run in own]
            areas = [area([(e["step"], e["success"]) for e in run["evaluations"]]) or 0.0 for run in own]
            cells = [
                percent(train["success"][:, -LATE:].mean()),
                percent(float(np.mean(areas))),
                f"{np.mean([e['success_steps'] for e in finals]):.1f}",
                percent(float(np.mean([e["ineffective"] for e in finals]))),
                percent(train["repeated"][:, -LATE:].mean()),
                f"{train['entropy'][:, :10].mean():.3f}, {train['entropy'][:, -10:].mean():.3f}",
                f"{train['grad_norm'].mean():.2f}",
                f"{np.median(train['old_kl'][:, -10:]):.4f}",
                f"{np.median(train['seconds']):.1f}",
            ]
            print(f"| {method} | {' | '.join(cells)} |")
        if figures:
            figures.mkdir(parents=True, exist_ok=True)
            draw(methods, order, f"{MODELS.get(study, study)}, {world}", figures / f"long_training_{study}_{world}.svg")


def compare(methods: dict[str, dict[int, Run]], order: list[str], count: int) -> None:
    """Every method against the first one, paired by seed and by task."""
    first, rows, ps = methods[order[0]], [], []
    for method in order[1:]:
        seeds = sorted(set(methods[method]) & set(first))
        if not seeds:
            continue
        ours, theirs = ([last(side[seed], count) for seed in seeds] for side in (methods[method], first))
        found = compare_runs(ours, theirs)
        gaps_S = found["difference"]["per_seed"]
        won_ST = [[np.mean(outcomes_by_task(run), axis=1) for run in side] for side in (ours, theirs)]
        over_seeds = "–" if len(seeds) < 2 else "[{}, {}]".format(*(percent(v, True) for v in t_interval(gaps_S)))
        over_tasks = "[{}, {}]".format(*(percent(v, True) for v in crossed_bootstrap(np.subtract(*won_ST).mean(axis=0)[None])))
        ps.append(found["p"])
        p_seeds = "–" if len(seeds) < 2 else f"{found['p_seeds']:.3f}"
        rows.append([method, str(len(seeds)), percent(np.mean(gaps_S), True), over_seeds, p_seeds, over_tasks])
    if rows:
        head = "seeds | difference | 95% over seeds | p over seeds | 95% over tasks | p over tasks (Holm)"
        print(f"\n| against {order[0]}, points | {head} |")
        print("|---" * 7 + "|")
        for row, p, corrected in zip(rows, ps, holm(ps), strict=True):
            print(f"| {' | '.join(row)} | {p:.4f} ({corrected:.4f}) |")


def draw(methods: dict[str, dict[int, Run]], order: list[str], title: str, file: Path) -> None:
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "tacit"  # the same figure gives the same file
    figure, axis = plt.subplots(figsize=(7, 4))
    # Only seeds that the first method has too.
    methods = {m: {seed: run for seed, run in own.items() if seed in methods[order[0]]} for m, own in methods.items()}
    most = max(map(len, methods.values()))
    for method in (m for m in order if m == order[0] or len(methods[m]) == most):  # the others are in the table
        curves = np.array([[e["success"] for e in run["evaluations"]] for run in methods[method].values()]) * 100
        steps = [e["step"] for e in next(iter(methods[method].values()))["evaluations"]]
        (line,) = axis.plot(steps, curves.mean(axis=0), marker="o", markersize=3, label=f"{method} ({len(curves)})")
        if len(curves) > 1:
            axis.fill_between(steps, curves.min(axis=0), curves.max(axis=0), color=line.get_color(), alpha=0.12, linewidth=0)
    axis.set(title=title, xlabel="iteration", ylabel="success, %")
    axis.legend(fontsize=8, title="method (seeds); band: lowest to highest seed", title_fontsize=7, loc="lower right")
    axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("collect", "tables"))
    parser.add_argument("directories", nargs="*", type=Path)
    parser.add_argument("--study", help="name of the rows, for example smollm2 or cpu")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="data files; `collect` takes one")
    parser.add_argument("--until", type=int, help="compare runs after this iteration instead of at their end")
    parser.add_argument("--baseline", default="grpo", help="method that the others are compared with (default: grpo)")
    parser.add_argument("--last", type=int, default=3, help="evaluations of the primary outcome (default: 3)")
    parser.add_argument("--figures", type=Path, help="directory for one SVG per world")
    chosen = parser.parse_args()
    if chosen.action == "tables":
        runs = {key: run for file in chosen.data for key, run in read(file).items()}
        if chosen.until:
            cut = {key: truncate(run, chosen.until) for key, run in runs.items()}
            runs = {key: run for key, run in cut.items() if run is not None}
        return tables(runs, chosen.figures, chosen.baseline, chosen.last)
    if not chosen.directories or not chosen.study or len(chosen.data) > 1:
        parser.error("collect needs directories, --study and one file as --data")
    collect(chosen.directories, chosen.study, chosen.data[0])


if __name__ == "__main__":
    main()
