"""`tacit compare`: several methods × worlds × seeds from one file, ending in a table with intervals and significance."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.assembly.checks import check_training, open_world
from tacit.assembly.flags import Parser
from tacit.assembly.recipe import Document, Recipe, read_document
from tacit.assembly.recipes import comparison_recipe
from tacit.cli.train import ON_RESUME, differences
from tacit.core.errors import TacitError, unknown
from tacit.runs.directory import SETTINGS, read_settings

if TYPE_CHECKING:
    from rich.console import Console

    from tacit.comparison.carry_out import Happening
    from tacit.comparison.plan import Plan, Planned
    from tacit.comparison.write import Results

SUMMARY_LINE = "Compare methods in several worlds over several seeds, from one file and under one budget."
SHAPE = """\
the file (docs/comparing.md says more; `tacit list recipes example` says where one lies):
  seeds = [0, 1, 2]           one run for each method, world and seed
  [common]                    settings of all runs, as in a file for `tacit train`
  [worlds.countdown]          what differs in a world
  [worlds.countdown.start]    optional: imitate once; all runs of the world start there
  [methods.grpo]              the first is what the others are compared with
  [methods.ppo]               a method's own settings: kl = 0.0, schedule.lr = 1e-4

Stopped or killed, the same command goes on exactly where it was. It writes comparison.json,
table.md, table.csv and plots/ to DIR, and every run to DIR/runs/WORLD/METHOD/SEED."""
FAILED = 1
SHOWN = ("method", "seeds", "start", "final", "peak", "Δ", "p", "p seeds")
"""columns that fit in a terminal; table.md has all of them"""


def run(argv: Sequence[str]) -> int:
    arguments, _ = make_parser().parse(argv)
    from tacit.cli.terminal import make_console, say
    from tacit.comparison.plan import make_plan
    from tacit.comparison.write import Results

    if arguments.jobs < 1:
        raise TacitError(f"--jobs {arguments.jobs} must be at least 1.")
    plan = make_plan(read_document(arguments.file), resolve, arguments.file.stem)
    directory = arguments.out or Path("runs") / f"compare-{plan.name}"
    wanted = choose(plan, arguments.only)
    check_stored(plan, directory)
    results = Results(plan, directory, str(arguments.file), ["tacit", "compare", *argv])
    console = make_console()
    show_plan(console, plan, directory, wanted)
    if arguments.dry_run:
        return 0
    results.gather()  # what is there already must fit in one table before more is added to it
    try:
        failed = _carry_out(console, plan, wanted, directory, arguments.jobs, results)
    except KeyboardInterrupt:
        results.write()
        print(f"\nstopped. The same command goes on; what there is lies in {directory}.", file=sys.stderr)
        return 130
    finish(console, results)
    if failed:
        say(console, f"{len(failed)} of {len(wanted)} runs failed; the same command tries them again.", style="bold red")
    return FAILED if failed else 0


def make_parser() -> Parser:
    parser = Parser(
        "compare",
        SUMMARY_LINE,
        usage="tacit compare FILE [--out DIR] [--jobs N] [--only NAME,…] [--dry-run]",
        epilog=SHAPE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", type=comparison_recipe, metavar="FILE", help="a TOML file, or a recipe by its name")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to put it (default: runs/compare-NAME)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="runs at a time (default: 1)")
    parser.add_argument(
        "--only",
        default="",
        metavar="NAME,…",
        help="do only these now: methods, worlds, WORLD/METHOD, METHOD/SEED or WORLD/METHOD/SEED; the table shows all there is",
    )
    parser.add_argument("--dry-run", action="store_true", help="check the file and say what would be done")
    return parser


def resolve(document: Document) -> Document:
    """A document with everything said, as `tacit train` would understand it; refused with the reason where it cannot work."""
    recipe = Recipe.from_json(document)
    recipe, _ = check_training(recipe, _world(recipe.world))
    return recipe.to_json()


@cache
def _world(name: str) -> Any:
    return open_world(name)


def choose(plan: Plan, only: str) -> list[Planned]:
    """The cells that are meant: all, or those with any of the names."""
    names = [name.strip() for name in only.split(",") if name.strip()]
    if not names:
        return list(plan.cells)
    meant = [
        {cell.world, cell.method, f"{cell.world}/{cell.method}", f"{cell.method}/{cell.seed}", cell.label}
        for cell in plan.cells
    ]
    known = set().union(*meant)
    for name in names:
        if name not in known:
            raise unknown("world, method or run of this comparison", name, [*plan.worlds, *plan.methods])
    return [cell for cell, own in zip(plan.cells, meant, strict=True) if own & set(names)]


def check_stored(plan: Plan, directory: Path) -> None:
    """Runs that are already there must be the ones the file asks for; only what may change on resuming may have."""
    for planned in (*plan.starts, *plan.cells):
        path = directory / planned.place
        if not (path / SETTINGS).exists():
            continue
        # Read as a recipe: a setting that came into being since is then at its default.
        before = {key: value for key, value in Recipe.from_json(read_settings(path)).to_json().items() if key != "out"}
        after = planned.with_start(directory)
        if planned.starts_from and before["model"].endswith(f"/{planned.start_place.as_posix()}"):
            before["model"] = after["model"]  # the comparison may have been moved since
        changed = [d for d in differences(before, after) if d.partition("=")[0] not in ON_RESUME]
        if changed:
            raise TacitError(
                f"{path} was made with other settings than the file now asks for ({', '.join(changed)}). Take the change back, "
                "delete that run to do it again, or name another --out."
            )


def show_plan(console: Console, plan: Plan, directory: Path, wanted: Sequence[Planned]) -> None:
    from tacit.cli.terminal import say, say_pairs, table
    from tacit.comparison.carry_out import status_of

    say(console, plan.name, style="bold")
    pairs = [("methods", ", ".join(plan.methods)), ("worlds", ", ".join(plan.worlds))]
    pairs += [("seeds", ", ".join(map(str, plan.seeds)))]
    pairs += [
        ("start", f"{s.world}: {s.document['sft']['steps']} steps of imitation, once, seed {s.seed}") for s in plan.starts
    ]
    pairs += [("note", note) for note in plan.notes]
    say_pairs(console, [*pairs, ("in", str(directory))])
    rows = []
    for world in plan.worlds:
        for method in plan.methods:
            mine = [c for c in plan.cells if (c.world, c.method) == (world, method)]
            schedule, panel = mine[0].document["schedule"], mine[0].document["evaluation"]
            done = sum(status_of(directory / c.place, c.iterations) == "finished" for c in mine)
            shape = f"{schedule['iterations']} × {schedule['groups']} × {schedule['group_size']}"
            asked = sum(c in wanted for c in mine)
            rows.append((world, method, shape, f"{panel['split']}/{panel['tasks']}", f"{done}/{len(mine)}", str(asked)))
    console.print()
    head = ("world", "method", "iterations × tasks × episodes", "panel", "done", "wanted")
    console.print(table("", head, rows, numbers=head[1:]))
    for world in plan.worlds:
        show_differences(console, plan, world)


def show_differences(console: Console, plan: Plan, world: str) -> None:
    """What else than their names the methods of a world differ in."""
    from tacit.cli.terminal import say, say_pairs

    told = [str(difference).partition(": ") for difference in plan.differences[world]]
    if told:
        say(console, f"\nsettings in which the methods differ in {world}:")
        say_pairs(console, [(setting, values) for setting, _, values in told])


def finish(console: Console, results: Results) -> None:
    """Write everything, draw it, and show the table."""
    from tacit.cli.terminal import say, table
    from tacit.comparison.pages import cells_of, columns
    from tacit.comparison.plots import draw

    found = results.write()
    drawn = draw(found, results.directory / "plots")
    for world in found["worlds"]:
        rows = [cells_of(row, len(found["seeds"])) for row in found["table"] if row["world"] == world]
        head = columns(found["thresholds"])
        shown = [i for i, name in enumerate(head) if name in SHOWN]
        console.print()
        console.print(
            table(world, [head[i] for i in shown], [[r[i] for i in shown] for r in rows], [head[i] for i in shown[1:]])
        )
        show_differences(console, results.plan, world)
    console.print()
    say(
        console, f"table: {results.directory}/table.md, table.csv   everything: comparison.json   plots: {len(drawn)} in plots/"
    )


def _carry_out(
    console: Console, plan: Plan, wanted: Sequence[Planned], directory: Path, jobs: int, results: Results
) -> list[Planned]:
    from tacit.cli.terminal import duration, say
    from tacit.comparison.carry_out import carry_out

    def tell(event: Happening) -> None:
        text = f"{event.run.label} {event.kind}"
        if event.kind in ("finished", "failed"):
            results.write()
            text += f" after {duration(event.seconds)}" + (f": {event.reason}" if event.reason else "")
            text += f" ({event.running} running, {event.left} to go)"
        say(console, text, style="red" if event.kind == "failed" else "")

    # A polite request to end is answered like Ctrl-C: the runs are told too, and the table is written.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return carry_out(plan, wanted, directory, jobs, tell)
    finally:
        signal.signal(signal.SIGTERM, before)
