"""`tacit inspect credit`: how well each estimator's credit agrees with Monte Carlo advantages."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.cli.terminal import (
    add_checkpoint_flag,
    add_shared_options,
    make_console,
    peek_method,
    percent,
    say,
    say_pairs,
    table,
)
from tacit.config.flags import Parser, check_at_least_one
from tacit.core.errors import TacitError
from tacit.core.progress import format_duration, pluralize
from tacit.runs.files import write_json

if TYPE_CHECKING:
    from tacit.evaluation.credit_agreement import Figure, Quality

SUMMARY_LINE = "Compare credit with the true advantage of each step under a run's policy, by Monte Carlo."


def run(argv: Sequence[str]) -> int:
    arguments, overrides = make_parser(peek_method(argv, "inspect credit")).parse(argv)
    check_at_least_one(arguments, "groups", "rollouts")
    if not 0 < arguments.discount <= 1:
        raise TacitError(f"--discount {arguments.discount} must be above 0 and at most 1.")
    from tacit.config.agents import open_target
    from tacit.config.credit_quality import circumstances, credited_groups, geometries_of, rollout_setup
    from tacit.evaluation.credit_agreement import Geometry, Measured, quality
    from tacit.evaluation.credit_truth import value_group

    chosen = [Geometry.parse(part) for part in arguments.geometry.split(",") if part.strip()]
    methods = [part.strip() for part in arguments.methods.split(",") if part.strip()]
    console = make_console()
    target = open_target(arguments.target, overrides, arguments.checkpoint)
    setup = rollout_setup(target, arguments.groups, arguments.group_size)
    measured = []
    try:
        groups = setup.collect(setup.iteration)
        say(console, f"{target.label}: iteration {setup.iteration}, {pluralize(len(groups), 'group')} of {setup.group_size}")
        geometries = chosen or geometries_of(target)
        credited, radii, left_out = credited_groups(target, groups, geometries, arguments.discount, methods)
        for number, (group, estimates) in enumerate(zip(groups, credited, strict=True), 1):
            began = time.monotonic()
            truth = value_group(setup, group, arguments.rollouts, arguments.discount, setup.seed)
            measured.append(Measured.of(estimates, truth))
            took = format_duration(time.monotonic() - began)
            played = f"{truth.episodes} continuations, {truth.per_state:.0f} through each state"
            counts = f"{pluralize(len(group.steps), 'step')}, {estimates.ending}; {played}"
            say(console, f"  group {number} of {len(groups)}: {counts}, {took}", style="dim")
    finally:
        setup.worlds.close()
    result = quality(measured)
    show(console, result, radii, left_out)
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        where = circumstances(target, setup, radii, left_out, arguments.rollouts, arguments.discount)
        write_json(arguments.json, {**where, **result.to_json()})
        say(console, f"\nwritten to {arguments.json}")
    return 0


def make_parser(method: str) -> Parser:
    parser = Parser("inspect credit", SUMMARY_LINE, usage="tacit inspect credit RUN [--checkpoint NAME] [settings]")
    parser.add_argument("target", metavar="RUN", help="run directory, or a model with --world")
    add_checkpoint_flag(parser)
    parser.flag("--groups", 8, "groups of the next iteration")
    parser.flag("--group-size", 0, "episodes per group (default: as in training)")
    parser.flag("--rollouts", 8, "continuations per state, in two halves", "M")
    parser.flag("--discount", 0.95, "discount of returns and credit", "G")
    help = "hidden states for BiGPO and BiPACE: --geometry=-2:last,-1:mean:0.0675; a missing radius is searched on these "
    help += "groups (default: the run's own geometry, and its layer with a searched radius)"
    parser.flag("--geometry", "", help, "LAYER:POOLING[:EPSILON],…")
    parser.flag("--methods", "", "further methods to compare, with their published settings", "NAME,…")
    parser.flag("--json", Path, "write the result to this file", "FILE")
    add_shared_options(parser, method)
    return parser


def show(console: Any, result: Quality, radii: Mapping[str, float], left_out: Mapping[str, str]) -> None:
    from tacit.evaluation.credit_agreement import ENDINGS, STAGES

    console.print()
    endings = ", ".join(f"{count} {ending}" for ending, count in result.endings.items() if count)
    pairs = [
        ("groups", f"{endings}; {pluralize(result.tasks, 'task')}"),
        ("truth", f"{pluralize(result.steps, 'step')}, {pluralize(result.episodes, 'continuation')}"),
        ("advantage", f"spread {_number(result.spread)}, Monte Carlo error {_number(result.noise)} a step"),
        ("reliability", f"{_number(result.reliability)}; correlations and cosines below are corrected for this noise"),
    ]
    pairs += [("radius", f"{name}: {value:.4g}") for name, value in radii.items()]
    pairs += [("left out", f"{name}: {reason}") for name, reason in left_out.items()]
    say_pairs(console, pairs)
    undetermined = []
    for on in ("all", *ENDINGS, *STAGES):
        agreements = [agreement for agreement in result.agreements if agreement.on == on]
        steps = max((agreement.steps for agreement in agreements), default=0)
        if on != "all" and all(a.correlation.value is None and a.cosine.value is None for a in agreements):
            undetermined += [f"{on} ({steps} steps)"] if steps else []
            continue
        columns: tuple[str, ...] = ("estimator", "correlation", "gain over GRPO", "cosine")
        rows: list[tuple[str, ...]] = [
            (a.estimator, _interval(a.correlation), _interval(a.gain), _interval(a.cosine)) for a in agreements
        ]
        console.print()
        title = "credit against Q − V" + ("" if on == "all" else f", {on}: {steps} steps")
        console.print(table(title, columns, rows, numbers=columns[1:]))
    if undetermined:
        reason = "the credit is constant, or the true advantages do not exceed their noise"
        say(console, f"\nNo result for {', '.join(undetermined)}: {reason}.")
    columns = ("partition", "V unexplained", "singleton steps", "mean size", "largest")
    rows = []
    for left in result.partitions:
        alone, size, largest = (left.metrics.get(f"parts_{n}", 0.0) for n in ("singleton_steps", "mean_size", "largest"))
        rows.append((left.partition, _interval(left.unexplained), percent(alone), f"{size:.1f}", percent(largest)))
    console.print()
    console.print(table("share of V's variance within the parts of each partition", columns, rows, numbers=columns[1:]))
    say(console, "\nIntervals: 95%, bootstrap over tasks. docs/experiments/credit_quality.md defines every column.")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _interval(figure: Figure) -> str:
    if figure.value is None or figure.low is None or figure.high is None:
        return _number(figure.value)
    return f"{figure.value:.3f} [{figure.low:.3f}, {figure.high:.3f}]"
