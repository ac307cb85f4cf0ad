"""`tacit report`: one self-contained HTML page of a run or a comparison."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.assembly.flags import Parser
from tacit.core.errors import TacitError
from tacit.report.episodes import MOST_TRAJECTORIES
from tacit.report.known import Known
from tacit.report.run_page import run_page

if TYPE_CHECKING:
    from tacit.core.types import Task
    from tacit.training.settings import TrainSettings

SUMMARY_LINE = "Write one self-contained HTML page of a run or a comparison: results, curves, behaviour, trajectories to read."
SETTINGS, COMPARISON = "settings.json", "comparison.json"
PAGE = "report.html"


def run(argv: Sequence[str]) -> int:
    arguments, _ = make_parser().parse(argv)
    if arguments.trajectories < 0:
        raise TacitError(f"--trajectories must not be negative, and is {arguments.trajectories}.")
    path: Path = arguments.path.expanduser()
    out: Path = (arguments.out or path / PAGE).expanduser()
    if path.is_dir() and not out.parent.is_dir():
        raise TacitError(f"there is no directory {out.parent} to write {out.name} to; make it, or name another --out.")
    if arguments.runs:
        _write_pages_of_runs(path, arguments.trajectories)
    _write(out, page_of(path, arguments.trajectories, out.parent))
    if arguments.open:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
    return 0


def make_parser() -> Parser:
    parser = Parser("report", SUMMARY_LINE, usage="tacit report RUN_OR_COMPARISON [--out FILE.html] [--open]")
    parser.add_argument("path", type=Path, metavar="RUN_OR_COMPARISON", help="directory of a run or of a comparison")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"where to write the page (default: {PAGE} in the directory)")
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    parser.add_argument(
        "--trajectories", type=int, default=MOST_TRAJECTORIES, metavar="N",
        help=f"most episodes to embed in a page (default: {MOST_TRAJECTORIES})",
    )  # fmt: skip
    parser.add_argument("--runs", action="store_true", help="of a comparison: write the page of each of its runs as well")
    return parser


def page_of(path: Path, trajectories: int = MOST_TRAJECTORIES, beside: Path | None = None) -> str:
    """`beside` is where the page will lie: a comparison's links to its runs lead from there."""
    if (path / SETTINGS).is_file():
        return run_page(path, what_is_known, trajectories)
    if (path / COMPARISON).is_file():
        from tacit.report.comparison_page import comparison_page

        return comparison_page(path, what_is_known, beside, trajectories)
    raise _neither(path)


def _write_pages_of_runs(path: Path, trajectories: int) -> None:
    from tacit.report.comparison_files import read_comparison

    if not (path / COMPARISON).is_file():
        raise TacitError(f"--runs is for comparisons, and {path} has no {COMPARISON}.")
    for cell in read_comparison(path).cells:
        place = path / str(cell.get("run") or "")
        if (place / SETTINGS).is_file():
            _write(place / PAGE, page_of(place, trajectories))


def _write(out: Path, html: str) -> None:
    from tacit.runs.files import write_text

    write_text(out, html)
    print(f"{out}  ({len(html.encode()) / 1024:,.0f} KiB)")


def what_is_known(settings: Any) -> Known:
    """The world, the tasks, the context and the defaults, as far as they can be had here; why not is said on the page."""
    from tacit.assembly.checks import open_world
    from tacit.assembly.recipe import Recipe

    try:
        recipe = Recipe.from_json(json.loads(json.dumps(settings)))
        method = settings["method"]["name"] if isinstance(settings.get("method"), dict) else recipe.method
        usual = Recipe.from_json({"world": recipe.world, "model": recipe.model, "method": method}).to_json()
    except (TacitError, TypeError, ValueError, KeyError, AttributeError) as error:
        return Known(notices=(f"These settings are not this version's ({error}): the run is shown without its world's help.",))
    try:
        world = open_world(recipe.world)
        tasks = _tasks(recipe.world, recipe.train)
        context = recipe.settings.build(world).context
    except Exception as error:  # the world may be the user's own, or need data that is not on this machine
        return Known(defaults=usual, notices=(f"The world is not here ({error}): no labels of failures, no prompts.",))
    return Known(world, tasks, context, usual)


@cache
def _tasks(world: str, settings: TrainSettings) -> dict[str, Task]:
    """What a run trains on and is measured on, by id. Kept: the runs of a comparison have the same."""
    from tacit.assembly.checks import open_world
    from tacit.training.practice import Course

    course = Course.of(open_world(world), settings)
    return {task.id: task for task in (*course.tasks, *course.panel.tasks)}


def _neither(path: Path) -> TacitError:
    if not path.is_dir():
        return TacitError(f"there is no directory {path}; name a run (runs/NAME) or the directory of a comparison.")
    inside = sorted(p.parent.name for p in path.glob(f"*/{SETTINGS}"))
    hint = f"It holds runs, though: {', '.join(inside[:5])}; name one of them." if inside else "`tacit train` makes runs."
    return TacitError(f"{path} is neither a run nor a comparison: it has no {SETTINGS} and no {COMPARISON}. {hint}")
