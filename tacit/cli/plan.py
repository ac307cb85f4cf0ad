"""`tacit plan`: memory and time of a run that is larger than this machine, and who would wait for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from tacit.assembly.flags import Parser, options_of
from tacit.assembly.options import TOP_OPTIONS, method_options
from tacit.assembly.recipe import DEFAULT_METHOD, Recipe, Said, override
from tacit.cli.terminal import make_console
from tacit.core.errors import TacitError
from tacit.planning.plans import best_division
from tacit.planning.settings import PlanSettings
from tacit.planning.shapes import SIZES
from tacit.planning.workload import Workload, stretched, uniform
from tacit.runs.files import write_json

SUMMARY_LINE = "What a run would need and how long an iteration would take: ranks, servers, memory, time, who waits."
DOES_NOT_FIT = 1
NOT_OF_A_RUN = "plan"


def run(argv: Sequence[str]) -> int:
    arguments, said = make_parser(_method(argv)).parse(argv)
    own = {place[1]: value for place, value in said.items() if place[0] == NOT_OF_A_RUN}
    settings = PlanSettings(**{_field(name): value for name, value in own.items()})
    from tacit.assembly.foreseen import model_shape
    from tacit.cli.plan_view import as_json, show, show_many, show_simulated

    shape, place = model_shape(arguments.model)
    of_the_run = {p: value for p, value in said.items() if p[0] != NOT_OF_A_RUN}
    work = _workload(arguments.model, of_the_run, settings, place)
    cluster, console = settings.cluster(shape), make_console()
    asked = settings.ranks, settings.servers, settings.server_gpus
    plans = [best_division(cluster, work, count, *asked) for count in settings.gpus]
    if len(plans) == 1:
        show(console, cluster, work, plans[0], settings)
    else:
        show_many(console, cluster, work, plans)
    outcomes = show_simulated(console, work, plans, settings) if settings.simulate else {}
    if arguments.json:
        write_json(arguments.json.expanduser(), as_json(cluster, work, plans, outcomes))
    return 0 if any(not plan.trouble for plan in plans) else DOES_NOT_FIT


def make_parser(method: str) -> Parser:
    parser = Parser(
        "plan",
        SUMMARY_LINE,
        usage="tacit plan --model 8B --gpus 64 --world alfworld [settings]",
        epilog="docs/scaling.md has the equations, what they were checked against, and how far off they were.",
    )
    sizes = ", ".join(SIZES)
    parser.add_argument(
        "--model", required=True, metavar="MODEL", help=f"a size ({sizes}, or any such as 360M), a packaged base or a directory"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    parser.add_options("plan", options_of(PlanSettings, (NOT_OF_A_RUN,)))
    parser.add_options("world and method", [o for o in TOP_OPTIONS if o.name in ("world", "method")])
    own = {option.name for option in options_of(PlanSettings)} | {"model", "json"}
    reading = [o for o in method_options(method) if o.name not in own]
    parser.add_options(f"method {method}", reading, "What the agent reads, and how many episodes an iteration has.")
    return parser


def _method(argv: Sequence[str]) -> str:
    glance = Parser("plan", "", add_help=False)
    glance.add_argument("--method")
    return glance.parse_known_args(argv)[0].method or DEFAULT_METHOD


def _field(name: str) -> str:
    """`from` is a word of Python; its field is not."""
    return name if name in {field.name for field in fields(PlanSettings)} else f"{name}_"


def _workload(model: str, said: Said, settings: PlanSettings, place: Path | None) -> Workload:
    """As told, as recorded, or as the world's expert plays; with other means where numbers are given."""
    from tacit.assembly.checks import open_world
    from tacit.assembly.foreseen import expert_workload, recorded_workload

    told = (settings.turns, settings.prompt_tokens, settings.completion_tokens)
    if ("world",) not in said and not settings.from_:
        if not all(told):
            raise TacitError(
                "what would be played? Name a world (--world alfworld), a run that played (--from RUN), or all of --turns, "
                "--prompt-tokens and --completion-tokens."
            )
        turns, prompt, completion = (max(1, round(mean)) for mean in told)
        work = uniform(settings.episodes or 128, turns, prompt, completion, max(0.0, settings.world_s))
        return replace(work, driver_s=settings.driver_ms / 1e3)
    recipe = Recipe.from_json(override({"model": model}, {("world",): "countdown", **said}))
    schedule = recipe.settings.schedule
    episodes = settings.episodes or schedule.groups * schedule.group_size
    limit = 0
    if settings.from_:
        work = recorded_workload(Path(settings.from_), episodes)
    else:
        world = open_world(recipe.places[0].world)
        tasks = world.tasks_of("train" if "train" in world.splits else world.splits[0], settings.measure, settings.seed)
        context = recipe.settings.context(world)
        limit = world.max_steps
        work = expert_workload(world, tasks, context, place, episodes, limit)
    seconds = settings.world_s if settings.world_s >= 0 else work.world_s
    return stretched(replace(work, world_s=seconds, driver_s=settings.driver_ms / 1e3), *told, limit)
