"""`tacit compare`: run the methods × worlds × seeds of one file, then write a table with intervals and significance."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from tacit.cli.terminal import exit_status, make_console, percent, say, say_first, say_pairs, table
from tacit.comparison.pages import missing_runs, table_text
from tacit.comparison.plan import Plan, PlannedRun, make_plan
from tacit.comparison.results import Results
from tacit.comparison.run import LOG, Processes, RunEvent, check_stored, status_of
from tacit.config.checks import check_output_directory
from tacit.config.flags import Parser
from tacit.config.recipe import comparison_recipe, read_document
from tacit.core.bounds import AtLeastOne
from tacit.core.progress import format_duration, pluralize, report_elapsed

SHAPE = """\
the file (docs/guides/compare_methods.md; `tacit list recipes example` prints the path of one):
  seeds = [0, 1, 2]           one run for each method, world and seed
  outcome = "mean:3"          optional: compare by the mean of the last 3 evaluations
  [common]                    settings of all runs, as in a file for `tacit train`
  [worlds.countdown]          settings of one world
  [worlds.countdown.start]    optional: imitate once; all runs of the world start there
  [methods.grpo]              the first method is the baseline
  [methods.ppo]               a method's own settings: kl = 0.0, schedule.lr = 1e-4

The same command resumes a comparison that was stopped. It writes comparison.json, table.md,
table.csv and plots/ to DIR, and every run to DIR/runs/WORLD/METHOD/SEED."""
PROGRESS_EVERY_S = 30.0  # seconds between progress lines
MAX_MISSING = 6  # missing runs listed below a table
SHOWN = ("method", "seeds", "start", "final", "peak", "Δ", "p", "p seeds")  # columns shown in a terminal; table.md has all


def run(argv: Sequence[str]) -> int:
    arguments, _ = make_parser().parse(argv)
    from tacit.cli.main import main

    document, console, command = read_document(arguments.file), make_console(), ["tacit", "compare", *argv]
    document |= {"outcome": arguments.outcome} if arguments.outcome else {}
    with report_elapsed(partial(say, console), lambda spent: f"checking every run, {format_duration(spent)}"):
        plan = make_plan(document, arguments.file.stem)
        directory = arguments.out or Path("runs") / f"compare-{plan.name}"
        check_output_directory(directory)
        wanted = plan.choose(arguments.only)
        check_stored(plan, directory)
    show_plan(console, plan, directory, wanted)
    if arguments.dry_run:
        return 0
    results = Results(plan, directory, str(arguments.file), command)
    processes = Processes(partial(main, again=shlex.join(command)), arguments.jobs)
    ended: list[RunEvent] = []

    def on_event(event: RunEvent) -> None:
        text = f"{event.run.label} {event.kind}"
        if event.kind in ("finished", "failed"):
            if event.run in wanted:  # not a shared start
                ended.append(event)
            text += f" after {format_duration(event.seconds)}" + (f": {event.reason}" if event.reason else "")
            text += f", success {percent(event.success)}" if event.success is not None else ""
            text += f" ({event.running} running, {event.left} to go)"
        say(console, text, style="red" if event.kind == "failed" else "")

    def progress(spent: float) -> str:
        left = f", about {format_duration(spent / len(ended) * (len(wanted) - len(ended)))} left" if ended else ""
        return f"{len(ended)} of {pluralize(len(wanted), 'run')} done, {format_duration(spent)}{left}"

    try:
        with report_elapsed(partial(say, console), progress, PROGRESS_EVERY_S):
            failed, record, drawn = results.run_cells(wanted, processes, on_event)
    except KeyboardInterrupt as stop:
        print(f"\nstopped. The same command resumes it; finished runs are in {directory}.", file=sys.stderr)
        return exit_status(stop)
    show_tables(console, plan, record)
    say(console, f"table: {directory}/table.md, table.csv   everything: comparison.json   plots: {len(drawn)} in plots/")
    if failed:
        text = f"{len(failed)} of {pluralize(len(wanted), 'run')} failed; see {LOG} of each"
        say(console, f"{text}. The same command retries them.", style="bold red")
    say(console, f"\nNext: tacit report {directory}        writes {directory}/report.html")
    return 1 if failed else 0


def make_parser() -> Parser:
    parser = Parser(
        "compare",
        "Compare methods over worlds and seeds: run every combination in one settings file.",
        usage="tacit compare FILE [--out DIR] [--jobs N] [--only NAME,…] [--outcome last|mean:N] [--dry-run]",
        epilog=SHAPE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=comparison_recipe, metavar="FILE", help="a TOML file, or the name of a packaged recipe")
    parser.flag("--out", Path, "output directory (default: runs/compare-NAME)", "DIR")
    parser.flag("--jobs", 1, "runs at a time", bound=AtLeastOne)
    only_help = "run only these: methods, worlds, WORLD/METHOD, METHOD/SEED or WORLD/METHOD/SEED; * matches any"
    parser.flag("--only", "", only_help, "NAME,…")
    outcome_help = "compare by the last evaluation, or by the mean of the last N (default: as in the file, else last)"
    parser.flag("--outcome", "", outcome_help, "last|mean:N")
    parser.flag("--dry-run", False, "check the file and print the plan")
    return parser


def show_plan(console: Console, plan: Plan, directory: Path, wanted: Sequence[PlannedRun]) -> None:
    say(console, plan.name, style="bold")
    pairs = [("methods", ", ".join(plan.methods)), ("worlds", ", ".join(plan.worlds))]
    pairs += [("seeds", ", ".join(map(str, plan.seeds))), ("runs", str(len(wanted)))]
    for start in plan.starts:
        steps = pluralize(start.document["sft"]["steps"], "step")
        pairs.append(("start", f"{start.world}: {steps} of imitation, once, seed {start.seed}"))
    pairs += [("note", note) for note in plan.notes]
    pairs += [("in", str(directory)), *(("follow", f"tacit watch {directory / run.subdirectory}") for run in wanted[:1])]
    say_pairs(console, pairs)
    rows = []
    for world in plan.worlds:
        for method in plan.methods:
            mine = [c for c in plan.cells if (c.world, c.method) == (world, method)]
            schedule, panel = mine[0].document["schedule"], mine[0].document["evaluation"]
            done = sum(status_of(directory / c.subdirectory, c.iterations) == "finished" for c in mine)
            shape = f"{schedule['iterations']} × {schedule['groups']} × {schedule['group_size']}"
            shape = shape if mine[0].learns else f"the {mine[0].document['model']} plays"
            selected = sum(c in wanted for c in mine)
            rows.append((world, method, shape, f"{panel['split']}/{panel['tasks']}", f"{done}/{len(mine)}", str(selected)))
    console.print()
    head = ("world", "method", "iterations × tasks × episodes", "panel", "done", "selected")
    console.print(table("", head, rows, numbers=head[1:]))
    for world in plan.worlds:
        show_differences(console, plan, world)


def show_differences(console: Console, plan: Plan, world: str) -> None:
    """Print the settings, other than names, in which the methods of a world differ."""
    differences = [str(difference).partition(": ") for difference in plan.differences[world]]
    if differences:
        say(console, f"\nsettings in which the methods differ in {world}:")
        say_pairs(console, [(setting, values) for setting, _, values in differences])


def show_tables(console: Console, plan: Plan, record: dict[str, Any]) -> None:
    for world in record["worlds"]:
        head, rows = table_text(record, world)
        columns = [i for i, name in enumerate(head) if name in SHOWN or name.startswith(("final, ", "mean of last "))]
        console.print()
        titles = [head[i] for i in columns]
        console.print(table(world, titles, [[r[i] for i in columns] for r in rows], titles[1:]))
        missing = [f"missing: {line}" for line in missing_runs(record, world)]
        say_first(console, missing, MAX_MISSING, "yellow", indent="  ", rest="; see table.md")
        show_differences(console, plan, world)
    console.print()
