"""The quickstart's results by seed, as a table and a curve.

for s in 0 1 2 3 4; do tacit train --config quickstart --seed $s --out runs/quickstart-$s; done
python benchmarks/quickstart.py runs/quickstart-* --figure quickstart.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

import tacit
from tacit.evaluation.plots import PLAIN, draw_lines, mean_series


def percent(score: dict[str, Any]) -> str:
    return f"{100 * score['success']:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--figure", type=Path, help="draw success on the panel to this file")
    arguments = parser.parse_args()
    opened = [tacit.open_run(path) for path in arguments.runs]
    print("| seed | after imitation | after RL | seen plans, after RL | minutes | weights |\n|---|---|---|---|---|---|")
    curves = []
    for run in sorted(opened, key=lambda run: run.settings["seed"]):
        summary = run.summary
        imitated = next(e for e in summary["evaluations"] if e["stage"] == "sft")
        cells = [percent(imitated), percent(summary["final"]), percent(summary["further"][-1]), f"{summary['wall_s'] / 60:.1f}"]
        print(f"| {run.settings['seed']} | {' | '.join(cells)} | {summary['digest'][:16]} |")
        curves.append({e["step"] if e["stage"] == "rl" else 0: e["success"] for e in summary["evaluations"]})
    if arguments.figure:
        with matplotlib.rc_context(PLAIN):
            figure = Figure(figsize=(6.4, 2.6), layout="constrained")
            axes = figure.subplots()
            draw_lines(axes, [mean_series("mean of seeds" if len(curves) > 1 else "success", curves, 0)], marks=True)
            axes.set(xlabel="RL iteration (0: after imitation)", ylabel="success on unseen houses", ylim=(0, 1))
            figure.savefig(arguments.figure, metadata={"Date": None})


if __name__ == "__main__":
    main()
