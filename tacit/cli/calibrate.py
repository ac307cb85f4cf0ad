"""`tacit calibrate`: which layer, pooling and radius to compare a model's steps with. One forward pass, no training."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.assembly.flags import Parser, options_of
from tacit.assembly.geometry import place_of
from tacit.calibration.probe import EPSILONS, MIN_CLUSTERS, POOLINGS, Slice
from tacit.cli.player_flags import add_checkpoint_flag, add_shared_options, glance_method
from tacit.core.errors import TacitError, unknown
from tacit.core.seeds import derive
from tacit.core.types import Task
from tacit.core.world import Expert
from tacit.runs.files import write_json
from tacit.training.settings import TrainSettings

if TYPE_CHECKING:
    import numpy as np

    from tacit.assembly.players import Target
    from tacit.calibration.audit import Audit

SUMMARY_LINE = "Choose the layer, pooling and radius that BiPACE and BiGPO compare a model's steps with (paper, appendix H)."
NOISE = 0.3
"""share of random actions when an expert plays for the audit: episodes of one task must differ to be compared"""
SOURCES = {
    "recorded": "recorded episodes",
    "expert": f"episodes played by the expert, {NOISE:.0%} of the actions at random",
    "random": "episodes played at random",
}
"""who plays the audit, and how that is told"""
POOL = 256
"""tasks the audit's are picked from"""


def run(argv: Sequence[str]) -> int:
    arguments, said = make_parser(glance_method(argv, "calibrate")).parse(argv)
    layers, epsilons, poolings = _numbers(arguments.layers, int), _numbers(arguments.epsilons, float), _poolings(arguments)
    for name in ("tasks_each", "members", "observations", "min_clusters"):
        if getattr(arguments, name) < 1:
            raise TacitError(f"--{name.replace('_', '-')} {getattr(arguments, name)} must be at least 1.")
    from tacit.assembly.players import open_target
    from tacit.calibration.probe import choose, layers_to_scan, scan
    from tacit.cli.terminal import make_console, say
    from tacit.credit.partitions import check_radius
    from tacit.credit.radius import search_radius

    for epsilon in epsilons:
        check_radius(epsilon)
    console = make_console()
    target = open_target(arguments.target, said, arguments.checkpoint)
    if arguments.target == "expert":
        raise TacitError("the expert has no hidden states to calibrate; name a run or a model.")
    policy: Any = target.policy
    for layer in layers:
        policy.engine.model.check_layer(layer)
    source = arguments.play or _default_source(target)
    played = _audit(target, source, arguments)
    labels = "families" if len(played.families) > 1 else "tasks"
    episodes = f"{len(set(played.episode_N))} {SOURCES[source]}"
    say(console, f"{len(played)} steps of {episodes}; the probe tells {labels} apart")
    layers = layers or layers_to_scan(policy.engine.model.layers)
    features = policy.hidden_scan(played.prompts, layers, poolings)
    slices = scan(features, played.labels_N, played.episode_N, epsilons or EPSILONS)
    try:
        chosen = choose(slices, arguments.min_clusters)
    except TacitError:
        _show(console, slices, None, arguments.min_clusters)
        raise
    _show(console, slices, chosen, arguments.min_clusters)
    epsilon, median = search_radius(_by_task(features[chosen.layer, chosen.pooling], played))
    result = {
        "model": target.recipe.model,
        "layer": chosen.layer,
        "pooling": chosen.pooling,
        "epsilon": round(epsilon, 4),
        "median_cluster": median,
        "probe": chosen.probe,
        "world": target.world.name,
        "of": target.label,
        "played_by": source,
        "steps": len(played),
        "families": list(played.families),
        "slices": [asdict(s) for s in slices],
    }
    place = arguments.out or place_of(target.recipe)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_json(place, result)
    picture = _plot(slices, chosen, arguments.min_clusters, place.with_suffix(".png"))
    say(
        console,
        f"layer {chosen.layer}, pooling {chosen.pooling} (probe {chosen.probe:.3f}); epsilon {result['epsilon']:g}, with which "
        f"the median cluster of a task has {median:g} steps",
        style="bold",
    )
    say(console, f"written to {place}" + (f" and {picture}" if picture else ""))
    if not arguments.out:
        say(
            console,
            f"Training {target.recipe.model} with bigpo or bipace uses it from now on; --layer and --epsilon override it.",
        )
    if arguments.json:
        print(json.dumps(result))
    return 0


def make_parser(method: str) -> Parser:
    parser = Parser("calibrate", SUMMARY_LINE, usage="tacit calibrate TARGET [--world NAME] [settings]")
    parser.add_argument("target", metavar="TARGET", help="run directory, or a model (tiny, a checkpoint, a hub id)")
    add_checkpoint_flag(parser)
    parser.add_argument(
        "--play",
        default="",
        metavar="|".join(SOURCES),
        help="who plays the audit episodes (default: the run's recorded ones, else the expert with some noise, else random)",
    )
    parser.add_argument("--tasks-each", type=int, default=5, metavar="N", help="tasks per family (default: 5)")
    parser.add_argument("--members", type=int, default=8, metavar="N", help="episodes per task (default: 8)")
    parser.add_argument("--observations", type=int, default=4000, metavar="N", help="most steps looked at (default: 4000)")
    parser.add_argument("--layers", default="", metavar="L,…", help="layers to scan: --layers=-12,-8 (default: the paper's)")
    parser.add_argument("--poolings", default="", metavar="P,…", help=f"poolings to scan (default: {','.join(POOLINGS)})")
    parser.add_argument(
        "--epsilons", default="", metavar="E,…", help=f"radii to scan (default: {', '.join(map(str, EPSILONS))})"
    )
    parser.add_argument(
        "--min-clusters", type=int, default=MIN_CLUSTERS, metavar="N", help=f"fewest clusters (default: {MIN_CLUSTERS})"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to write it (default: where training looks for it)")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object on the last line")
    parser.add_options("tasks", options_of(TrainSettings, only=("split",)))
    add_shared_options(parser, method)
    return parser


def _default_source(target: Target) -> str:
    if target.run is not None and _recordings(target.run):
        return "recorded"
    return "expert" if target.world.experts else "random"


def _audit(target: Target, source: str, arguments: Any) -> Audit:
    from tacit.calibration.audit import Again, Noisy, audit, spread_over_families

    if source not in SOURCES:
        raise unknown("audit player", source, SOURCES)
    train, room = target.recipe.train, target.sampling.max_tokens
    seed = target.seed
    if source == "recorded":
        actions = _recorded_actions(target, arguments.observations)
        pairs = [(task, len(episodes)) for task, episodes in actions]
        by_task = {task.id: episodes for task, episodes in actions}

        def replay(task: Task, member: int) -> Expert:
            return Again(by_task[task.id][member])

        return audit(
            target.world, pairs, target.context, target.policy, replay, room, lambda task, member: len(by_task[task.id][member])
        )
    expert = target.world.expert() if source == "expert" else None
    tasks = spread_over_families(target.world.tasks(train.split, POOL, train.seed), arguments.tasks_each)

    def noisy(task: Task, member: int) -> Expert:
        rng = random.Random(derive(seed, "audit", task.id, member))
        return Noisy(expert(task) if expert else None, NOISE, rng)

    # Whole tasks are left out, never steps of one: the size of a cluster depends on all of its group.
    affordable = arguments.observations // (target.world.max_steps * arguments.members * len({t.family for t in tasks}))
    kept = spread_over_families(tasks, max(1, affordable))
    return audit(target.world, [(task, arguments.members) for task in kept], target.context, target.policy, noisy, room)


def _recordings(run: Path) -> list[Path]:
    return sorted((run / "trajectories").glob("rl-*.jsonl.gz"))


def _recorded_actions(target: Target, most: int) -> list[tuple[Task, list[list[str]]]]:
    """Tasks of the newest recorded iterations with the actions of their episodes, up to about `most` steps."""
    from tacit.runs.records import read_records

    files = _recordings(target.run) if target.run else []
    if not files:
        raise TacitError("there are no recorded episodes of practice; let the expert play (--play expert).")
    train = target.recipe.train
    known = {task.id: task for task in target.world.tasks(train.split, train.tasks, train.seed)}
    found: dict[str, list[list[str]]] = {}
    steps = 0
    for file in reversed(files):
        for record in read_records(file):
            if record["task"] in known and record["turns"]:
                found.setdefault(record["task"], []).append([turn["action"] for turn in record["turns"]])
                steps += len(record["turns"])
        if steps >= most:
            break
    if not found:
        raise TacitError("none of the recorded episodes is of a task this run's settings give; let the expert play.")
    chosen, steps = [], 0
    for name, episodes in found.items():
        if steps < most:
            chosen.append((known[name], episodes))
            steps += sum(map(len, episodes))
    return chosen


def _by_task(features_ND: np.ndarray, played: Audit) -> list[np.ndarray]:
    return [features_ND[played.task_N == task] for task in sorted(set(played.task_N.tolist()))]


def _show(console: Any, slices: Sequence[Slice], chosen: Slice | None, min_clusters: int) -> None:
    from tacit.cli.terminal import percent, table

    columns = ("layer", "pooling", "epsilon", "probe", "clusters", "singletons", "alone", "largest", "usable")
    rows = [
        (
            str(s.layer), s.pooling, f"{s.epsilon:g}", f"{s.probe:.3f}", str(s.clusters), percent(s.singletons),
            percent(s.singleton_steps), percent(s.largest), s.refusal(min_clusters) or ("chosen" if s == chosen else "yes"),
        )
        for s in slices
    ]  # fmt: skip
    console.print(table("", columns, rows, numbers=("epsilon", "probe", "clusters", "singletons", "alone", "largest")))


def _plot(slices: Sequence[Slice], chosen: Slice, min_clusters: int, path: Path) -> Path | None:
    """The scan against the layer: probe accuracy by pooling; clusters and steps alone of the chosen pooling by radius. Nothing
    where matplotlib is missing."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return None
    layers = sorted({s.layer for s in slices})
    figure, (probe, clusters, alone) = pyplot.subplots(1, 3, figsize=(14, 4), layout="constrained")
    for pooling in dict.fromkeys(s.pooling for s in slices):
        accuracy = {s.layer: s.probe for s in slices if s.pooling == pooling}
        probe.plot(layers, [accuracy[layer] for layer in layers], marker="o", label=pooling)
    for epsilon in sorted({s.epsilon for s in slices}):
        at = {s.layer: s for s in slices if s.pooling == chosen.pooling and s.epsilon == epsilon}
        clusters.plot(layers, [at[layer].clusters for layer in layers], marker="o", label=f"{epsilon:g}")
        alone.plot(layers, [at[layer].singleton_steps for layer in layers], marker="o", label=f"{epsilon:g}")
    clusters.axhline(min_clusters, color="grey", linewidth=0.8)
    probe.set(ylabel="linear-probe accuracy")
    clusters.set(ylabel=f"clusters ({chosen.pooling}; at least {min_clusters})", yscale="log")
    clusters.yaxis.set_major_formatter("{x:g}")
    clusters.yaxis.set_minor_formatter("{x:g}")
    alone.set(ylabel=f"share of steps alone ({chosen.pooling})", ylim=(-0.02, 1.02))
    probe.legend(title="pooling")
    clusters.legend(title="ε")
    for axes in (probe, clusters, alone):
        axes.set(xlabel="layer, from the end", xticks=layers)
        axes.axvline(chosen.layer, color="grey", linestyle=":")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    return path


def _numbers(text: str, kind: type) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise TacitError(f"{text!r} is not a list of numbers such as -12,-8 or 0.05,0.1.") from error


def _poolings(arguments: Any) -> list[str]:
    chosen = [part.strip() for part in arguments.poolings.split(",") if part.strip()] or list(POOLINGS)
    for pooling in chosen:
        if pooling not in POOLINGS:
            raise unknown("pooling", pooling, POOLINGS)
    return chosen
