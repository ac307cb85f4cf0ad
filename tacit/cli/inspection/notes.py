"""`tacit inspect notes`: test whether a policy can use notes. Run it before comparing methods that depend on them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from tacit.cli.terminal import add_checkpoint_flag, add_shared_options, interval, make_console, peek_method, percent, say, table
from tacit.config.flags import Parser, check_at_least_one
from tacit.core.progress import pluralize

SUMMARY_LINE = "Test whether a policy can use notes: true, empty, placebo, and the expert's action."


def run(argv: Sequence[str]) -> int:
    parser = Parser("inspect notes", SUMMARY_LINE, usage="tacit inspect notes RUN [--tasks N] [settings]")
    parser.add_argument("target", metavar="RUN", help="run directory, or a model with --world")
    add_checkpoint_flag(parser)
    parser.flag("--tasks", 24, "training tasks to play, from the end of the pool")
    parser.flag("--members", 4, "episodes per task")
    parser.flag("--json", False, "print one JSON object")
    add_shared_options(parser, peek_method(argv, "inspect notes"))
    arguments, overrides = parser.parse(argv)
    check_at_least_one(arguments, "tasks", "members")
    from tacit.config.agents import open_target
    from tacit.config.credit_quality import analyzer_of, rollout_setup
    from tacit.evaluation.notes import MIN_AUC_GAIN, MIN_HANDBOOK_GAIN, measure_notes

    target = open_target(arguments.target, overrides, arguments.checkpoint)
    setup = rollout_setup(target)
    settings = target.recipe.settings
    instructed = settings.prompt.wording != "terse"
    try:
        gate = measure_notes(setup, arguments.tasks, arguments.members, analyzer_of(target), instructed)
    finally:
        setup.worlds.close()
    gains = {"auc_gain": gate.auc_gain, "handbook_gain": gate.handbook_gain, "passes": gate.passes}
    if arguments.json:
        print(json.dumps({**asdict(gate), **gains}))
        return 0
    console = make_console()
    counted = f"{pluralize(gate.tasks, 'task')} × {arguments.members} episodes, {pluralize(gate.steps, 'step')} scored"
    say(console, f"{target.label} in {target.world.name}: {counted}; the expert agrees with {percent(gate.agreeing)}")
    columns = ("note", "success with it", "95%", "AUC of the shift", "95%")
    rows = []
    for result in gate.results:
        auc = "–" if result.auc is None else f"{result.auc:.2f}"
        around = "–" if result.auc_interval is None else f"[{result.auc_interval[0]:.2f}, {result.auc_interval[1]:.2f}]"
        rows.append((result.note, percent(result.success), interval(result.success_interval), auc, around))
    console.print()
    console.print(table("", columns, rows, numbers=columns[1:]))
    console.print()
    say(console, _rule("AUC, true − empty", gate.auc_gain, MIN_AUC_GAIN, "{:+.2f}"))
    say(console, _rule("success, handbook − none", gate.handbook_gain, MIN_HANDBOOK_GAIN, "{:+.1%}"))
    fails = "fails: do not compare note-based methods on this policy"
    say(console, f"the gate {'passes: this policy can use its notes' if gate.passes else fails}", style="bold")
    return 0


def _rule(name: str, gain: float | None, least: float, form: str) -> str:
    if gain is None:
        return f"{name}: not measured; it must be at least {form.format(least)}"
    holds = "holds" if gain >= least else "does not hold"
    return f"{name}: {form.format(gain)}; it must be at least {form.format(least)}: {holds}"
