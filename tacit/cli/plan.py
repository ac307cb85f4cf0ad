"""`tacit plan`: memory and time of a run on a larger cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from tacit.cli.terminal import make_console, percent, say, say_pairs, table
from tacit.config.flags import TOP_OPTIONS, Parser, method_options, options_of
from tacit.config.recipe import DEFAULT_METHOD, Overrides, Recipe, override
from tacit.config.values import to_data
from tacit.core.errors import TacitError
from tacit.core.progress import format_duration
from tacit.planning.plans import Cluster, Plan, best_division, find_faster, find_remedies, make_plan
from tacit.planning.settings import PlanSettings
from tacit.planning.shapes import SIZES
from tacit.planning.simulation import Outcome, Scenario, simulate
from tacit.planning.timing import server_weights, total
from tacit.planning.workload import Workload, stretched, uniform
from tacit.runs.files import write_json

SUMMARY_LINE = "What a run would need and how long an iteration would take: ranks, servers, memory, time, who waits."
DOES_NOT_FIT = 1
NOT_OF_A_RUN = "plan"


def run(argv: Sequence[str]) -> int:
    arguments, said = make_parser(_method(argv)).parse(argv)
    own = {place[1]: value for place, value in said.items() if place[0] == NOT_OF_A_RUN}
    # `from` is a Python keyword; the field is `from_`.
    settings = PlanSettings(
        **{
            (name if name in {field.name for field in fields(PlanSettings)} else f"{name}_"): value
            for name, value in own.items()
        }
    )
    from tacit.config.workload import model_shape

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
        epilog="docs/guides/planning.md has the equations, what they were checked against, and how far off they were.",
    )
    sizes = ", ".join(SIZES)
    parser.add_argument(
        "--model", required=True, metavar="MODEL", help=f"a size ({sizes}, or any such as 360M), a packaged base or a directory"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    parser.add_options("plan", options_of(PlanSettings, (NOT_OF_A_RUN,)))
    parser.add_options("world and method", [o for o in TOP_OPTIONS if o.place[0] in ("world", "method")])
    own = {option.name for option in options_of(PlanSettings)} | {"model", "json"}
    reading = [o for o in method_options(method) if o.name not in own]
    parser.add_options(f"method {method}", reading, "What the agent reads, and how many episodes an iteration has.")
    return parser


def _method(argv: Sequence[str]) -> str:
    glance = Parser("plan", "", add_help=False)
    glance.add_argument("--method")
    return glance.parse_known_args(argv)[0].method or DEFAULT_METHOD


def _workload(model: str, said: Overrides, settings: PlanSettings, place: Path | None) -> Workload:
    """From the given numbers, from recordings, or from the world's expert."""
    from tacit.config.checks import open_world
    from tacit.config.workload import expert_workload, recorded_workload

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


# The printed plan.

OVERLAPS = (0, 1, 2)
SHOWN_DIVISIONS = 7


def show(console: Console, cluster: Cluster, work: Workload, plan: Plan, settings: PlanSettings) -> None:
    say(console, _headline(cluster, work), style="bold")
    say(console, f"measured: {work.source}", style="dim")
    if plan.trouble:
        say(console, f"\ndoes not fit: {plan.trouble}.", style="red")
        found = find_remedies(cluster, work, plan)
        say(console, "what would:" if found else "nothing that is tried here would.")
        for remedy in found:
            say(console, f"  {remedy}")
        return
    hourly = 3600 / plan.iteration
    say(
        console,
        f"\n{_division(plan, cluster)}: {format_duration(plan.iteration)} an iteration, {hourly:,.0f} an hour",
        style="bold",
    )
    say_pairs(console, _seconds(cluster, work, plan))
    say(console, f"\nmemory of a rank, {total(plan.memory) / 1e9:,.1f} of {cluster.device.memory / 1e9:,.0f} GB")
    say_pairs(console, [(name, f"{size / 1e9:8.2f} GB") for name, size in plan.memory.items() if size])
    if plan.server:
        weights = server_weights(cluster.shape, cluster.device, plan.server_devices)
        say(
            console,
            f"memory of a server: weights {weights / 1e9:,.1f} GB on each of {plan.server_devices}, and at most "
            f"{plan.server.slots:,} rows of {work.longest_row:,} tokens",
        )
    for words in find_faster(cluster, work, plan, settings.gpus[0]):
        say(console, f"quicker with {words}")
    others = _others(cluster, work, plan, settings)
    if others:
        console.print()
        console.print(_table("other divisions of as many devices", cluster, others))


def show_many(console: Console, cluster: Cluster, work: Workload, plans: Sequence[Plan]) -> None:
    say(console, _headline(cluster, work), style="bold")
    say(console, f"measured: {work.source}\n", style="dim")
    console.print(_table("", cluster, plans))
    for plan in plans:
        if plan.trouble:
            say(
                console,
                f"{plan.devices}: {plan.trouble}. What would: {'; '.join(find_remedies(cluster, work, plan)) or 'nothing'}.",
            )


def show_simulated(
    console: Console, work: Workload, plans: Sequence[Plan], settings: PlanSettings
) -> dict[str, dict[str, Any]]:
    """Each plan with the measured episodes: k = 0, 1, 2 or the requested overlap, in order and gathered."""
    found: dict[str, dict[str, Any]] = {}
    for plan in plans:
        if plan.trouble or plan.server is None:
            continue
        rows = []
        for overlap in ((settings.overlap,) if settings.overlap else OVERLAPS) if plan.servers else (0,):
            for gathered in (False, True) if overlap else (False,):
                scene = _scene(work, plan, settings, overlap, gathered)
                outcome = simulate(scene, settings.simulate + overlap + 1, settings.seed)
                kind = f"k = {overlap}" + (", gathered" if gathered else ", in order" if overlap else "")
                found[f"{plan.ranks}+{plan.servers}, {kind}"] = to_data(outcome)
                rows.append((kind, *_outcome_cells(outcome)))
        console.print()
        title = f"simulated: {plan.ranks} ranks, {plan.servers} servers, {settings.simulate} iterations, seed {settings.seed}"
        columns = ("overlap", "iteration", "ranks wait", "servers wait", "rows", "behind", "oldest", "died")
        console.print(table(title, columns, rows, columns[1:]))
    return found


def as_json(cluster: Cluster, work: Workload, plans: Sequence[Plan], outcomes: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": {"name": cluster.shape.name, "weights": cluster.shape.weights},
        "device": cluster.device.name,
        "workload": {
            "episodes": work.episodes, "turns": work.turns, "prompt": work.prompt, "completion": work.completion,
            "world_s": work.world_s, "longest_episode": work.longest_episode, "longest_row": work.longest_row,
            "source": work.source,
        },
        "plans": [{**to_data(plan), "devices": plan.devices, "bottleneck": plan.bottleneck} for plan in plans],
        "simulated": outcomes,
    }  # fmt: skip


def _scene(work: Workload, plan: Plan, settings: PlanSettings, overlap: int, gathered: bool) -> Scenario:
    assert plan.server is not None
    return Scenario(
        work,
        plan.server,
        max(1, plan.servers),
        plan.update_total,
        plan.push,
        overlap,
        gathered,
        settings.worlds,
        settings.world_workers,
        settings.server_life_h * 3600,
        settings.restart_s,
        settings.world_deaths,
    )


def _outcome_cells(outcome: Outcome) -> tuple[str, ...]:
    died = f"{outcome.server_deaths} servers, {outcome.world_deaths} worlds"
    return (
        format_duration(outcome.iteration_s),
        percent(outcome.ranks_wait),
        percent(outcome.servers_wait),
        f"{outcome.rows:.1f}",
        f"{outcome.staleness:.2f}",
        str(outcome.oldest),
        died if outcome.server_deaths or outcome.world_deaths else "–",
    )


def _headline(cluster: Cluster, work: Workload) -> str:
    shape = cluster.shape
    trained = f"adapters of rank {cluster.training.lora_rank}" if cluster.training.lora_rank else "all weights"
    return (
        f"{shape.name}, {shape.weights / 1e9:,.2f}B weights, {trained}, {cluster.device.name}: {work.episodes:,} episodes of "
        f"{work.turns:.1f} turns (longest {work.longest_episode}), {work.prompt:,.0f} + {work.completion:,.0f} tokens a turn, "
        f"world {1e3 * work.world_s:.3g} ms a step"
    )


def _division(plan: Plan, cluster: Cluster) -> str:
    if not plan.servers:
        return f"{plan.ranks} rank{'s' if plan.ranks > 1 else ''}, the driver samples"
    wide = f" of {plan.server_devices}" if plan.server_devices > 1 else ""
    behind = f", rollouts up to {cluster.overlap} behind" if cluster.overlap else ""
    return f"{plan.ranks} ranks, {plan.servers} servers{wide}{behind}"


def _seconds(cluster: Cluster, work: Workload, plan: Plan) -> list[tuple[str, str]]:
    """With equal episodes; each part with its components."""
    assert plan.server is not None
    rows = -(-work.episodes // max(1, plan.servers))
    waves = -(-rows // plan.server.slots)
    together = -(-rows // waves)
    prefill = waves * work.turns * together * work.prompt / plan.server.prefill_rate
    decode = waves * work.turns * work.completion * plan.server.step_s(together)
    step = 1e3 * plan.server.step_s(together)
    return [
        ("rollout", f"{plan.rollout:8.2f} s   prompts {prefill:.2f}, decode {decode:.2f} "
                    f"({step:.1f} ms a step of {together} rows); the driver beside it {plan.driving:.2f}"),
        ("update", f"{plan.update_total:8.2f} s   computing {plan.update['computing']:.2f}, between ranks "
                   f"{plan.update['sending']:.2f}, {plan.micro_tokens:,} tokens a pass"),
        ("push", f"{plan.push:8.2f} s"),
        ("most of it", plan.bottleneck),
    ]  # fmt: skip


def _others(cluster: Cluster, work: Workload, plan: Plan, settings: PlanSettings) -> list[Plan]:
    """Other divisions of the same devices, from few servers to many."""
    devices = settings.gpus[0]
    if settings.ranks or settings.servers >= 0 or devices == 1:
        return []
    wide = plan.server_devices
    counts = sorted({0, *(max(1, round(devices / wide * share)) for share in (0.06, 0.12, 0.25, 0.5, 0.75))} - {plan.servers})
    tried = [make_plan(cluster, work, devices - count * wide, count, wide) for count in counts if devices - count * wide >= 1]
    return tried[:SHOWN_DIVISIONS]


def _table(title: str, cluster: Cluster, plans: Sequence[Plan]) -> Any:
    columns = ("devices", "ranks", "servers", "rank GB", "rollout", "update", "push", "iteration", "most of it")
    rows = []
    for plan in plans:
        seconds = (plan.rollout, plan.update_total, plan.push, plan.iteration)
        told = ("–",) * 4 if plan.trouble else tuple(f"{s:,.2f} s" for s in seconds)
        wide = f"{plan.servers} × {plan.server_devices}" if plan.server_devices > 1 else str(plan.servers)
        what = "does not fit" if plan.trouble else plan.bottleneck
        rows.append((str(plan.devices), str(plan.ranks), wide, f"{total(plan.memory) / 1e9:,.0f}", *told, what))
    return table(title, columns, rows, columns[:-1])
