"""`tacit inspect clusters`: the steps of one group by cluster."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from tacit.cli.terminal import make_console, percent, say, say_pairs, shorten
from tacit.config.flags import Parser
from tacit.core.progress import pluralize
from tacit.credit.step_relative import partition_metrics
from tacit.evaluation.clusters import (
    BY,
    GAMMA,
    ClusterStep,
    as_json,
    choose_group,
    list_clusters,
    partition,
    read_groups,
    value_steps,
)
from tacit.runs.directory import read_settings
from tacit.runs.trajectories import find_recording

SUMMARY_LINE = "Show the clusters of a group's steps, the actions taken in each, and their credit."
WIDTH = 76  # characters shown of an observation


def run(argv: Sequence[str]) -> int:
    parser = Parser("inspect clusters", SUMMARY_LINE, usage="tacit inspect clusters RUN [--iteration N] [--group TASK]")
    parser.add_argument("run", type=Path, metavar="RUN", help="run directory")
    parser.flag("--iteration", int, "iteration (default: the last recorded)")
    group_help = "task id, or its number in the iteration (default: the group with most comparisons)"
    parser.flag("--group", "", group_help, "TASK")
    parser.flag("--by", "", "clusters as recorded, or recomputed from the text (default: recorded)", "|".join(BY))
    parser.flag("--epsilon", 0.25, "radius for --by ngram", "E")
    parser.flag("--all", False, "also show clusters of one step, which get no step-level credit")
    parser.flag("--json", False, "print the group as one JSON object")
    arguments, _ = parser.parse(argv)
    settings = read_settings(arguments.run)["method"]  # raises if this is not a run directory
    path = find_recording(arguments.run, arguments.iteration)
    groups = read_groups(path)
    task = choose_group(groups, arguments.group, path)
    steps, method = groups[task], settings["name"]
    by = arguments.by or ("recorded" if all("part" in s.record for s in steps) else "identity")
    cluster_N = partition(steps, by, arguments.epsilon)
    steps = value_steps(steps, cluster_N, float(settings.get("gamma", GAMMA)))
    if arguments.json:
        print(json.dumps(as_json(task, steps, cluster_N, by, path)))
        return 0
    console, clusters, sizes = make_console(), list_clusters(steps, cluster_N), partition_metrics([cluster_N])
    members = {s.member: s.won for s in steps}
    origin = {"recorded": f"recorded by {method}", "identity": "of equal observations", "ngram": "of similar n-grams"}[by]
    branches = [s.branch for s in steps]
    shares = [f"{name} {percent(branches.count(name) / len(branches))}" for name in ("PACE", "leave one out", "zero")]
    alone = f"{percent(sizes['parts_singleton'])} of the clusters, {percent(sizes['parts_singleton_steps'])} of the steps"
    say(console, f"{task}  ({path.name})", style="bold")
    say_pairs(console, [
        ("episodes", f"{len(members)}, {sum(members.values())} won; {pluralize(len(steps), 'step')}"),
        ("clusters", f"{len(clusters)} {origin}, {sizes['parts_mean_size']:.1f} steps each, {sizes['parts_pairs']:.0f} pairs"),
        ("alone", alone),
        ("largest", f"{percent(sizes['parts_largest'])} of the steps"),
        ("branches", ", ".join(shares)),
        ("credit", f"recorded by {method}: {'step-level, then total' if 'step_credit' in steps[0].record else 'total'}"),
        ("R, Q̂, V̂", "the step's return; the mean return of its action in the cluster, and of the cluster"),
    ])  # fmt: skip
    for number, cluster in enumerate(clusters):
        if len(cluster) > 1 or arguments.all:
            console.print()
            _show_cluster(console, number, cluster)
    single = sum(len(cluster) == 1 for cluster in clusters)
    if single and not arguments.all:
        say(console, f"\nClusters of one step, which get no step-level credit: {single}; --all shows them.")
    return 0


def _show_cluster(console: Any, number: int, cluster: Sequence[ClusterStep]) -> None:
    """Print the numbered observations, then each member's action."""
    texts = {text: n for n, text in enumerate(dict.fromkeys(s.record["saw"] for s in cluster), 1)}
    actions = len({s.record["action"] for s in cluster})
    counts = (pluralize(len(cluster), "step"), pluralize(len(texts), "observation"), pluralize(actions, "action"))
    say(console, f"cluster {number}: {', '.join(counts)}", style="bold")
    for text, n in texts.items():
        say(console, f"  saw {n:<3} {shorten(text, WIDTH)}", style="dim")
    for s in cluster:
        step = f"{s.record['step_credit']:+8.3f}" if "step_credit" in s.record else " " * 8
        valid = s.record["valid"]
        action = shorten(s.record["action"], WIDTH) if valid else f"{shorten(s.record['wrote'], 24)}  (does not parse)"
        line = Text.assemble(
            f"  {step} {s.record.get('credit', 0.0):+8.3f}  ",
            (f"R {s.value:6.2f}  Q̂ {s.q:6.2f}  V̂ {s.v:6.2f}  {s.branch:<13}  ", "dim"),
            (f"{action:<40}", "cyan"),
            (f"  saw {texts[s.record['saw']]}, episode {s.member}, step {s.turn}, {'won' if s.won else 'lost'}", "dim"),
        )
        console.print(line, soft_wrap=True)
