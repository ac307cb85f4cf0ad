"""`tacit calibrate`: choose the layer, pooling and radius that compare a model's steps. Forward passes only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.calibration import EPSILONS, MIN_CLUSTERS, POOLINGS, SOURCES, Slice
from tacit.cli.terminal import add_checkpoint_flag, add_shared_options, make_console, peek_method, percent, say, table
from tacit.config.checks import EXPERT, RULE_AGENT, check_output_file
from tacit.config.flags import Parser, options_of
from tacit.config.resources import calibration_path
from tacit.config.values import from_text
from tacit.core.bounds import AtLeastOne, Count
from tacit.core.errors import TacitError, unknown
from tacit.credit.partitions import Pooling
from tacit.runs.files import write_json
from tacit.training.settings import TrainSettings


def run(argv: Sequence[str]) -> int:
    summary = "Choose the layer, pooling and radius of BiPACE and BiGPO for a model (appendices F and H)."
    parser = Parser("calibrate", summary, usage="tacit calibrate TARGET [--world NAME] [settings]")
    parser.add_argument("target", metavar="TARGET", help="run directory, or a model (tiny, a checkpoint, a hub id)")
    add_checkpoint_flag(parser)
    play_help = "source of the probe's episodes; the radius always uses the policy's own (default: policy)"
    parser.flag("--play", "policy", play_help, "|".join(SOURCES))
    parser.flag("--tasks-each", 5, "probe tasks per family")
    parser.flag("--members", 0, "probe episodes per task (default: as in training)", bound=Count)
    parser.flag("--observations", 8000, "start no further probe task after this many steps", bound=AtLeastOne)
    parser.flag("--groups", 0, "groups for the radius (default: as in training)", bound=Count)
    parser.flag("--group-size", 0, "episodes per group (default: as in training)")
    parser.flag("--layers", "", "layers to scan: --layers=-12,-8 (default: the paper's)", "L,…")
    parser.flag("--poolings", "", f"poolings to scan (default: {','.join(POOLINGS)})", "P,…")
    parser.flag("--epsilons", "", f"radii to scan (default: {', '.join(map(str, EPSILONS))})", "E,…")
    parser.flag("--min-clusters", MIN_CLUSTERS, "minimum number of clusters", bound=AtLeastOne)
    parser.flag("--out", Path, "output file (default: where training looks for it)", "FILE")
    parser.flag("--json", False, "print the result as one JSON object on the last line")
    parser.add_options("tasks", options_of(TrainSettings, only=("split",)))
    add_shared_options(parser, peek_method(argv, "calibrate"))
    arguments, overrides = parser.parse(argv)
    layers = from_text(tuple[int, ...], arguments.layers, "--layers")
    epsilons = from_text(tuple[float, ...], arguments.epsilons, "--epsilons")
    poolings = from_text(tuple[Pooling, ...], arguments.poolings, "--poolings")
    _check(arguments)
    from tacit.calibration import finish, play_audit, scan_layers
    from tacit.config.agents import open_target
    from tacit.config.credit_quality import rollout_setup
    from tacit.credit.partitions import check_radius

    for epsilon in epsilons:
        check_radius(epsilon)
    console = make_console()
    target = open_target(arguments.target, overrides, arguments.checkpoint, layers=layers)
    setup = rollout_setup(target, arguments.groups, arguments.group_size)
    policy = setup.policy
    for layer in layers:
        policy.engine.model.check_layer(layer)
    if missing := [pooling for pooling in poolings or POOLINGS if pooling not in policy.poolings]:
        say(console, f"skipped pooling {', '.join(missing)}: not available for this architecture")
    poolings = [pooling for pooling in poolings or POOLINGS if pooling in policy.poolings]
    members = arguments.members or setup.group_size
    try:
        played = play_audit(setup, arguments.play, arguments.tasks_each, members, arguments.observations)
        tasks, families = len(set(played.task_N.tolist())), len(played.families)
        requested = arguments.tasks_each * families
        kinds = f"{tasks} tasks{f' of {requested} requested' if tasks < requested else ''} of {families} families"
        kinds += f"; --observations {arguments.observations} was reached" if len(played) >= arguments.observations else ""
        kinds += "" if families > 1 else "; with one family the probe has nothing to distinguish, so ties decide"
        episodes = f"{len(set(played.episode_N.tolist()))} {SOURCES[arguments.play]}"
        say(console, f"probe: {len(played)} steps of {episodes}: {kinds}")
        slices = scan_layers(policy, played, layers, poolings, epsilons)
        first = setup.collect(setup.iteration)
        steps = sum(len(group.steps) for group in first)
        say(console, f"radius: {steps} steps of {len(first)} groups of {setup.group_size} that the policy itself played")
        try:
            calibration = finish(policy, slices, first, arguments.min_clusters)
        except TacitError:
            _show(console, slices, None, arguments.min_clusters)
            raise
    finally:
        setup.worlds.close()
    _show(console, slices, calibration.chosen, arguments.min_clusters)
    result = {
        "model": target.recipe.model,
        "world": target.world.name,
        "reads": target.reads,
        "of": target.label,
        "played_by": arguments.play,
        "steps": len(played),
        "families": list(played.families),
        "radius_groups": len(first),
        "radius_group_size": setup.group_size,
        **calibration.to_json(),
    }
    place = arguments.out or calibration_path(target.recipe, target.world)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_json(place, result)
    chosen = calibration.chosen
    probed = f"probe {chosen.probe:.3f} ± {chosen.probe_error:.3f}"
    say(console, f"layer {chosen.layer}, pooling {chosen.pooling} ({probed})", style="bold")
    for embedder, radius in calibration.radii.items():
        sizes = f"the median cluster has {radius.median_cluster:g} steps, the largest {radius.largest_cluster:.0%} of its group"
        say(console, f"{embedder}: epsilon {radius.epsilon:.4g}; {sizes}", style="bold")
        if radius.warning:
            say(console, f"warning, {embedder}: {radius.warning}", style="yellow")
    say(console, f"written to {place}")
    if not arguments.out:
        used = f"Training {target.recipe.model} with bigpo or bipace now uses it"
        say(console, f"{used}; --layer and --epsilon override it.")
    if arguments.json:
        print(json.dumps(result))
    return 0


def _check(arguments: Any) -> None:
    if arguments.out:
        check_output_file(arguments.out, "--out")
    if arguments.tasks_each < 2:
        reason = "the probe is trained on some tasks of a family and tested on the others"
        raise TacitError(f"--tasks-each {arguments.tasks_each} must be at least 2: {reason}.")
    if arguments.group_size < 0 or arguments.group_size == 1:
        raise TacitError(f"--group-size {arguments.group_size} gives a group nothing to compare; it must be at least 2.")
    if arguments.target in (EXPERT, RULE_AGENT):
        raise TacitError(f"the {arguments.target} has no hidden states to calibrate; name a run or a model.")
    if arguments.play not in SOURCES:
        raise unknown("audit agent", arguments.play, SOURCES)


def _show(console: Any, slices: Sequence[Slice], chosen: Slice | None, min_clusters: int) -> None:
    columns = ("layer", "pooling", "epsilon", "probe", "±", "clusters", "singletons", "alone", "largest", "usable")
    rows = [
        (
            str(s.layer), s.pooling, f"{s.epsilon:g}", f"{s.probe:.3f}", f"{s.probe_error:.3f}", str(s.clusters),
            percent(s.singletons), percent(s.singleton_steps), percent(s.largest),
            s.refusal(min_clusters) or ("chosen" if s == chosen else "yes"),
        )
        for s in slices
    ]  # fmt: skip
    console.print(table("", columns, rows, numbers=("epsilon", "probe", "±", "clusters", "singletons", "alone", "largest")))
