"""`tacit plan`: memory and time of a run on a larger cluster."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from tacit.cli.terminal import make_console, say, say_pairs, table
from tacit.config.flags import TOP_OPTIONS, Parser, method_options, options_of, peek, section_options, train_options
from tacit.config.recipe import DEFAULT_METHOD, Document, Overrides, Recipe, absolute_path, method_name, override
from tacit.config.values import field_name, to_data
from tacit.core.bounds import AtLeastOne, Count, NotNegative, Positive, check_bounds
from tacit.core.errors import TacitError, first_line
from tacit.core.method import Context
from tacit.core.progress import format_duration, pluralize, report_elapsed
from tacit.core.protocols import Tokenizer
from tacit.core.trust import flag_for_later
from tacit.core.types import Task
from tacit.core.world import Environment
from tacit.engines.endpoint import ByteTokens
from tacit.engines.models.bases import BASES, TOKEN_FILES, base_path, codec_in, find_pretrained, take_from_cache_if_offline
from tacit.planning.plans import (
    Cluster,
    Network,
    Plan,
    Training,
    Workload,
    best_division,
    find_faster,
    find_remedies,
    make_plan,
    split_into_waves,
    uniform,
)
from tacit.planning.shapes import ON_CPU, SAMPLERS, SIZES, Device, ModelShape, choose_device, find_gpus, shape_in, shape_of_size
from tacit.rollout.encoding import encode_action
from tacit.rollout.replay import Interaction, play_episode, render_turns
from tacit.runs.directory import SETTINGS, read_settings
from tacit.runs.files import write_json
from tacit.runs.trajectories import read_records

PLAN_TABLE = "plan"


@dataclass(frozen=True)
class PlanSettings:
    """The string under a field is its `--help`."""

    gpus: tuple[int, ...] = ()
    """GPUs for ranks and servers together; several numbers, such as 8,64,512, make a table. none: this machine's, else 8"""
    gpu: str = ""
    """b200, h200, h100, a100, a100-40, l40s, l4, 4090, or cpu (one core). none: this machine's, else h100"""
    ranks: Count = 0
    """devices that train; 0 chooses the fastest"""
    servers: int = -1
    """servers that sample; -1 chooses the fastest, 0 samples on the first rank"""
    server_gpus: Count = 0
    """devices per server (tensor parallelism): 1, 2, 4 or 8; 0 chooses the fastest"""
    sampler: Literal["vllm", "local"] = "vllm"
    """engine of the servers"""
    overlap: Count = 0
    """updates that rollouts may lag behind; 0 is on-policy"""
    lora_rank: Count = 0
    """LoRA rank; 0 trains all weights"""
    recompute: bool = False
    """recompute activations in the backward pass (--engine.gradient-checkpointing)"""
    gather: Literal["auto", "layer", "whole"] = "auto"
    """how a pass gathers the weights, as --engine.gather"""
    reference: bool = False
    """keep a frozen reference copy and score with it in every update, as a KL penalty does"""
    scorings: Count = 0
    """further forward passes per update; OPID has one, or two with --overlap"""
    network: Positive = 400.0
    """bandwidth from each device to other machines, in Gb/s"""
    per_machine: AtLeastOne = 8
    """devices per machine"""
    storage: Positive = 5.0
    """total bandwidth of the shared storage through which weights reach the servers, in GB/s"""
    episodes: Count = 0
    """episodes per iteration; 0 is --groups times --group-size"""
    turns: NotNegative = 0.0
    """mean turns per episode; 0 uses the measured value"""
    prompt_tokens: NotNegative = 0.0
    """mean prompt tokens per turn; 0 uses the measured value"""
    completion_tokens: NotNegative = 0.0
    """mean completion tokens per turn; 0 uses the recorded value (--from), else an assumption that the plan prints"""
    world_s: float = -1.0
    """seconds per world step; -1 uses the measured value"""
    driver_ms: NotNegative = 2.5
    """milliseconds per turn on the driver: render and encode the prompt, parse the answer"""
    measure: AtLeastOne = 64
    """tasks the expert plays to measure turns and tokens"""
    from_: str = ""
    """measure a run's recorded episodes instead: a run directory or a trajectories/*.jsonl.gz"""
    seed: int = 0
    """seed of the measured tasks"""

    def __post_init__(self) -> None:
        check_bounds(self)
        if min(self.gpus, default=1) < 1:
            raise TacitError(f"gpus = {', '.join(map(str, self.gpus))} must be at least 1.")
        if self.servers < -1:
            raise TacitError(f"servers = {self.servers} must be 0 or more, or -1 to choose the fastest.")
        if self.world_s < 0 and self.world_s != -1:
            raise TacitError(f"world_s = {self.world_s} must be 0 or more, or -1 to use the measured value.")

    def cluster(self, shape: ModelShape, device: Device) -> Cluster:
        training = Training(self.lora_rank, self.recompute, self.gather, self.reference)
        network = Network(self.network * 1e9 / 8, self.per_machine, self.storage * 1e9)
        reached = ON_CPU if device.name == "cpu" else SAMPLERS[self.sampler]
        return Cluster(shape, device, reached, network, training, self.overlap, self.scorings + int(self.reference))


def run(argv: Sequence[str]) -> int:
    first, _ = peek("plan", argv, "--from", "--method")
    source = Path(getattr(first, "from") or "/").expanduser()
    recorded = read_settings(source) if (source / SETTINGS).is_file() else {}  # none of a trajectory file
    parser = make_parser(first.method or method_name(recorded))
    arguments, overrides = parser.parse(argv)
    plan_flags = {field_name(place[1]): overrides.pop(place) for place in list(overrides) if place[0] == PLAN_TABLE}
    same_run = bool(recorded) and recorded.get("model") == absolute_path(arguments.model)
    if same_run:  # on more GPUs, it trains the same weights
        engine = recorded.get("engine", {})
        plan_flags = {
            "lora_rank": engine.get("lora_rank", 0),
            "recompute": engine.get("gradient_checkpointing", False),
            **plan_flags,
        }
    settings = PlanSettings(**plan_flags)
    gpus = [] if settings.gpu and settings.gpus else find_gpus()
    device, why = choose_device(settings.gpu, gpus)
    settings = settings if settings.gpus else replace(settings, gpus=(len(gpus) or 8,))
    console = make_console()
    with report_elapsed(partial(say, console), lambda spent: f"measuring prompts and turns, {format_duration(spent)}"):
        shape, place = model_shape(arguments.model)
        recipe = _recipe(arguments.model, overrides, recorded, settings)
        work, completions = _workload(recipe, settings, (shape.name, place))
    cluster = settings.cluster(shape, device)
    division = settings.ranks, settings.servers, settings.server_gpus
    plans = [best_division(cluster, work, count, *division) for count in settings.gpus]
    trained = f"adapters of rank {settings.lora_rank}" if settings.lora_rank else "all weights"
    say(
        console,
        f"{shape.name}, {shape.weights / 1e9:,.2f}B weights, {trained}, {device.name}: {work.episodes:,} episodes of "
        f"{work.turns:.1f} turns (longest {work.longest_episode}), {work.prompt:,.0f} + {work.completion:,.0f} tokens a turn, "
        f"world {1e3 * work.world_s:.3g} ms a step",
        style="bold",
    )
    say_pairs(console, [("gpu", f"{device.name} ({why})"), ("measured", work.source), ("completions", completions)])
    command = ""
    if len(plans) > 1:
        console.print()
        console.print(_table("", plans))
        for plan in (plan for plan in plans if plan.trouble):
            remedies = "; ".join(find_remedies(cluster, plan.ranks, work.longest_row, not plan.servers)) or "nothing"
            say(console, f"{plan.devices}: {plan.trouble}. What would fit: {remedies}.")
    else:
        show(console, cluster, work, plans[0], settings)
        if same_run:
            path = Path(settings.from_)
            words = ["--config", str(path / SETTINGS), "--out", f"{path}-{settings.gpus[0]}gpus", *parser.as_flags(overrides)]
        else:
            world = recipe.world if recipe and (("world",) in overrides or recorded) else "WORLD"
            method = recipe.method if recipe else DEFAULT_METHOD
            words = parser.as_flags({("world",): world, ("method", "name"): method, **overrides})
        if settings.episodes and recipe and ("schedule", "groups") not in overrides:
            words += ["--groups", str(max(1, round(settings.episodes / recipe.schedule.group_size)))]
        words += ["--model", arguments.model if place else "MODEL"]
        command = show_command(console, words, cluster, work, plans[0], settings, recorded["engine"] if same_run else {})
    if arguments.json:
        document = {
            "model": {"name": shape.name, "weights": shape.weights},
            "device": device.name,
            "workload": {
                "episodes": work.episodes, "turns": work.turns, "prompt": work.prompt, "completion": work.completion,
                "world_s": work.world_s, "longest_episode": work.longest_episode, "longest_row": work.longest_row,
                "source": work.source,
            },
            "plans": [{**to_data(plan), "devices": plan.devices, "bottleneck": plan.bottleneck} for plan in plans],
            "completions": completions,
            "command": command,
        }  # fmt: skip
        write_json(arguments.json, document)
    return 0 if any(not plan.trouble for plan in plans) else 1


def make_parser(method: str) -> Parser:
    parser = Parser(
        "plan",
        "Estimate the memory and time of a run on given GPUs, and print the command that starts it.",
        usage="tacit plan --model MODEL --world WORLD [--gpus N] [--gpu h100] [settings]",
        epilog="Prompt, schedule and token limits decide the plan; the run's other settings appear only in its command. "
        "docs/guides/planning.md has the equations and their accuracy.",
    )
    model_help = f"a hub id (owner/name), a directory, a packaged base, or a size ({', '.join(SIZES)}, or any such as 360M)"
    parser.flag("--model", None, model_help, "MODEL", required=True)
    parser.flag("--json", Path, "write the workload, every plan and the command to this file", "FILE")
    parser.add_options("plan", options_of(PlanSettings, (PLAN_TABLE,)))
    parser.add_options("world and method", [o for o in TOP_OPTIONS if o.place[0] in ("world", "method")])
    own = {option.name for option in options_of(PlanSettings)} | {"model", "json"}
    sections = section_options()
    training = {f"method {method}": method_options(method), "training": train_options()}
    training |= {"imitation": sections["sft"], "evaluation": sections["evaluation"]}
    for title, options in training.items():
        parser.add_options(title, [option for option in options if option.name not in own])
    return parser


def _recipe(model: str, overrides: Overrides, recorded: Document, settings: PlanSettings) -> Recipe | None:
    """The planned run: its world, method and schedule from the flags, else from the recorded run. None: no world."""
    if ("world",) not in overrides and not settings.from_:
        return None
    kept = ("world", "method", "schedule") if ("method", "name") not in overrides else ("world",)
    before = {key: recorded[key] for key in kept if key in recorded}
    return Recipe.from_json(override({"world": "countdown", **before, "model": model}, overrides))


USUAL_SHARE = 0.34  # mean / maximum completion length: 175 of 512 tokens, Qwen2.5-Coder-1.5B-Instruct in ALFWorld


def _workload(recipe: Recipe | None, settings: PlanSettings, model: tuple[str, Path | None]) -> tuple[Workload, str]:
    """(workload, source of its completion lengths). The source is the given numbers, recordings, or the world's expert."""
    from tacit.config.checks import open_world
    from tacit.training.setup import completion_limit

    lengths = (settings.turns, settings.prompt_tokens, settings.completion_tokens)
    completions = f"{lengths[2]:g} tokens a turn (--completion-tokens)" if lengths[2] else ""
    if recipe is None:
        if not all(lengths):
            raise TacitError(
                "no workload: give a world (--world alfworld), a recorded run (--from RUN), or all of "
                "--turns, --prompt-tokens and --completion-tokens."
            )
        turns, prompt, completion = (max(1, round(mean)) for mean in lengths)
        work = uniform(settings.episodes or 128, turns, prompt, completion, max(0.0, settings.world_s))
        return replace(work, driver_s=settings.driver_ms / 1e3), completions
    episodes = settings.episodes or recipe.schedule.groups * recipe.schedule.group_size
    limit = 0
    if settings.from_:
        work = recorded_workload(Path(settings.from_), episodes)
        completions = completions or f"{work.completion:.0f} tokens a turn, as recorded (--from)"
    else:
        world = open_world(recipe.places[0].world)
        tasks = world.tasks_of("train" if "train" in world.splits else world.splits[0], settings.measure, settings.seed)
        context = recipe.settings.context(world)
        limit = recipe.train.max_steps or world.max_steps
        work = expert_workload(world, tasks, context, model, episodes, limit)
        longest = completion_limit(recipe.train, context, world)
        better = "--from RUN or --completion-tokens N is better"
        if not lengths[2] and context.format.thinks:
            lengths = (*lengths[:2], max(work.completion, round(USUAL_SHARE * longest)))
            completions = f"{lengths[2]:.0f} tokens a turn, assumed: a third of the {longest} allowed (--max-tokens); {better}"
        completions = completions or f"{work.completion:.0f} tokens a turn, the expert's own actions; {better}"
    seconds = settings.world_s if settings.world_s >= 0 else work.world_s
    return replace(work, world_s=seconds, driver_s=settings.driver_ms / 1e3).scale(*lengths, limit), completions


def show_command(
    console: Console,
    words: Sequence[str],
    cluster: Cluster,
    work: Workload,
    plan: Plan,
    settings: PlanSettings,
    before: Document,
) -> str:
    """Print and return the `tacit train` command of this plan, one process per GPU; "" if the plan does not fit.
    `before`: engine settings of the recorded run, if the plan repeats it."""
    if plan.server_devices > 1:  # the engine starts servers of one GPU only
        plan = best_division(cluster, work, settings.gpus[0], settings.ranks, settings.servers, 1)
    if plan.trouble:
        return ""
    words = ["tacit", "train", *words]
    training = cluster.training
    if plan.devices > 1:
        words += ["--engine", "sharded", "--engine.ranks", str(plan.ranks)]
        words += ["--engine.servers", str(plan.servers)] if plan.servers else []
        words += ["--overlap", "1"] if plan.servers and cluster.overlap else []
        words += ["--engine.gather", training.gather] if training.gather != "auto" else []
    device = "cpu" if cluster.device.name == "cpu" else "auto"
    words += ["--engine.lora-rank", str(training.lora_rank)] if training.lora_rank != before.get("lora_rank", 0) else []
    words += ["--engine.device", device] if device != before.get("device", "auto") else []
    if training.recompute != before.get("gradient_checkpointing", False):
        words.append(f"--{'' if training.recompute else 'no-'}engine.gradient-checkpointing")
    # Code that the command itself names is imported; code that the repeated run names must be trusted.
    command = shlex.join(words) + (flag_for_later() if "--config" in words else "")
    served = f", {plan.servers} sample{'s' if plan.servers == 1 else ''} with vLLM"
    parts = f"{plan.ranks} train{'s' if plan.ranks == 1 else ''}" + (served if plan.servers else ", the first also samples")
    if plan.devices <= cluster.network.per_machine:
        how = f"on one machine, one process for each GPU: {parts}" if plan.devices > 1 else "on one GPU"
    else:
        how = f"on a Ray cluster (docs/guides/sharded.md), with --engine.address auto added: {parts}"
    say(console, f"\n{how}")
    console.print(f"  {command}", soft_wrap=True, markup=False, highlight=False)
    return command


def show(console: Console, cluster: Cluster, work: Workload, plan: Plan, settings: PlanSettings) -> None:
    if plan.trouble:
        say(console, f"\ndoes not fit: {plan.trouble}.", style="red")
        remedies = list(find_remedies(cluster, plan.ranks, work.longest_row, not plan.servers))
        say(console, "what would fit:" if remedies else "none of the changes tried would fit.")
        for remedy in remedies:
            say(console, f"  {remedy}")
        return
    assert plan.server is not None
    per_server, devices = plan.server_devices, settings.gpus[0]
    behind = f", rollouts up to {cluster.overlap} behind" if cluster.overlap else ""
    samplers = f"{pluralize(plan.servers, 'server')}{f' of {per_server}' if per_server > 1 else ''}{behind}"
    division = f"{pluralize(plan.ranks, 'rank')}, {samplers if plan.servers else 'the driver samples'}"
    speed = f"{format_duration(plan.iteration)} an iteration, {3600 / plan.iteration:,.0f} an hour"
    say(console, f"\n{division}: {speed}", style="bold")
    waves, together = split_into_waves(work, plan.server, plan.servers)
    step = plan.server.step_s(together)
    prefill = waves * work.turns * together * work.prompt / plan.server.prefill_rate
    decode = waves * work.turns * work.completion * step
    say_pairs(console, [
        ("rollout", f"{plan.rollout:8.2f} s   prompts {prefill:.2f}, decode {decode:.2f} "
                    f"({1e3 * step:.1f} ms a step of {together} rows); the driver beside it {plan.driving:.2f}"),
        ("update", f"{plan.update_total:8.2f} s   computing {plan.update['computing']:.2f}, between ranks "
                   f"{plan.update['sending']:.2f}, {plan.micro_tokens:,} tokens a pass"),
        ("push", f"{plan.push:8.2f} s"),
        ("bottleneck", plan.bottleneck),
    ])  # fmt: skip
    say(console, f"\nmemory of a rank, {plan.rank_bytes / 1e9:,.1f} of {cluster.device.memory / 1e9:,.0f} GB")
    say_pairs(console, [(name, f"{size / 1e9:8.2f} GB") for name, size in plan.memory.items() if size])
    weights = cluster.device.number_bytes * cluster.shape.weights / per_server
    most = f"at most {plan.server.slots:,} rows of {work.longest_row:,} tokens"
    say(console, f"memory of a server: weights {weights / 1e9:,.1f} GB per GPU; {most}")
    for words in find_faster(cluster, work, plan, devices):
        say(console, f"faster with {words}")
    if not settings.ranks and settings.servers < 0 and devices > 1:
        shares = (0.06, 0.12, 0.25, 0.5, 0.75)
        counts = sorted({0, *(max(1, round(devices / per_server * share)) for share in shares)} - {plan.servers})
        fitting = [count for count in counts if devices - count * per_server >= 1]
        others = [make_plan(cluster, work, devices - count * per_server, count, per_server) for count in fitting]
        console.print()
        console.print(_table("other divisions of the same devices", others))


def _table(title: str, plans: Sequence[Plan]) -> Any:
    columns = ("devices", "ranks", "servers", "rank GB", "rollout", "update", "push", "iteration", "bottleneck")
    rows = []
    for plan in plans:
        seconds = (plan.rollout, plan.update_total, plan.push, plan.iteration)
        times = ("–",) * 4 if plan.trouble else tuple(f"{s:,.2f} s" for s in seconds)
        wide = f"{plan.servers} × {plan.server_devices}" if plan.server_devices > 1 else str(plan.servers)
        what = "does not fit" if plan.trouble else plan.bottleneck
        rows.append((str(plan.devices), str(plan.ranks), wide, f"{plan.rank_bytes / 1e9:,.0f}", *times, what))
    return table(title, columns, rows, columns[:-1])


# Inputs of a plan: the model's shape, and the turns and tokens of episodes.

BYTES_PER_TOKEN = 3.2  # without a tokenizer; SmolLM2 and Qwen2.5: 3.0 to 3.4 on ALFWorld, 2.5 on Countdown, 4.2 on Cooking


ENOUGH = 256  # recorded episodes used, newest first


def model_shape(name: str) -> tuple[ModelShape, Path | None]:
    """(shape, directory of the tokenizer) of a size, a packaged base, a directory or a hub id. A size has no tokenizer (None).
    From the hub, only config and tokenizer files are downloaded."""
    shape = shape_of_size(name)
    if shape is not None:
        return shape, None
    place = Path(base_path(name) if name in BASES else find_pretrained(name))
    if not place.is_dir():
        place = _hub_directory(name)
        return replace(shape_in(place), name=name), place
    return shape_in(place), place


def _hub_directory(name: str) -> Path:
    """Cache directory with config.json and tokenizer of a hub id, downloaded if necessary."""
    from huggingface_hub import snapshot_download, try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(name, "config.json")
        if isinstance(cached, str):
            return Path(cached).parent
        take_from_cache_if_offline(name)
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.jinja", "*.txt", "*.model"]))
    except TacitError as error:
        raise TacitError(
            f"{error} To plan without its files, give its size: {', '.join(SIZES)}, or any such as 360M."
        ) from error
    except Exception as error:  # missing, gated or misspelled
        reason = first_line(error).rstrip(".")
        raise TacitError(
            f"cannot read the config.json of model {name!r}: {reason}. Name its directory, or its size."
        ) from error


def recorded_workload(path: Path, episodes: int) -> Workload:
    """From the newest RL iteration of a run, or from one trajectory file."""
    file = path.expanduser()
    if file.is_dir():
        files = sorted((file / "trajectories").glob("rl-*.jsonl.gz")) or sorted((file / "trajectories").glob("*.jsonl.gz"))
        if not files:
            raise TacitError(f"{path} has no trajectories/*.jsonl.gz to measure; name a run that kept its trajectories.")
    else:
        files = [file]
    records: list[dict[str, Any]] = []
    for newest in reversed(files):
        try:
            records += read_records(newest)
        except (OSError, ValueError) as error:
            raise TacitError(f"cannot read the recorded episodes in {newest}: {error}.") from error
        if len(records) >= ENOUGH:
            break
    played = [
        np.array([[max(1, turn["prompt_tokens"]), max(1, turn["tokens"])] for turn in record["turns"]], np.int64)
        for record in records
        if record.get("turns")
    ]
    if not played:
        raise TacitError(f"{path} has no episode with a turn to measure.")
    return Workload.measured(episodes, played, source=f"{len(records)} recorded episodes, up to {files[-1].name}")


def expert_workload(
    world: Environment, tasks: Sequence[Task], context: Context, model: tuple[str, Path | None], episodes: int, limit: int
) -> Workload:
    """Turns and tokens of the expert's episodes, with this context's prompts. `model`: its name and the directory of its
    tokenizer; without a tokenizer, tokens are estimated from bytes."""
    name, place = model
    tokenizer: Tokenizer = ByteTokens()
    share, counted = 1 / BYTES_PER_TOKEN, f"{BYTES_PER_TOKEN:g} bytes a token"
    if place is not None and any((place / file).is_file() for file in TOKEN_FILES[:3]):
        tokenizer, share, counted = codec_in(str(place)), 1.0, f"tokenizer of {name or place.name}"
    live, make_expert = world.make(), world.expert()
    measured, seconds, steps = [], 0.0, 0

    def timed(course: Iterator[Interaction]) -> Iterator[Interaction]:
        """Yield the same interactions and add the time of world and expert to `seconds`."""
        nonlocal seconds
        while True:
            began = time.perf_counter()
            turn = next(course, None)
            seconds += time.perf_counter() - began
            if turn is None:
                return
            yield turn

    try:
        for task in tasks:
            turns = []
            course = timed(play_episode(live, task, make_expert(task), limit))
            for turn in render_turns(context, task, course, tokenizer=tokenizer):
                action = encode_action(turn.prompt, turn.action, context.format, tokenizer)
                turns.append((max(1, round(len(turn.tokens) * share)), max(1, round(len(action) * share))))
            measured.append(np.array(turns, np.int64))
            steps += len(turns)
    finally:
        live.close()
    source = f"expert of {world.name}, {len(tasks)} tasks, {counted}"
    return Workload.measured(episodes, measured, seconds / steps, source)
