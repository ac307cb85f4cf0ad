"""Cost of modules compared with prompted models (constant context, Table 2): tokens, seconds and memory per episode, network
traffic and disk space. Each agent is measured in its own process, so that memory and connections are its own."""

from __future__ import annotations

import ipaddress
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tacit.config.agents import open_endpoint, open_target
from tacit.config.checks import check_model, open_world
from tacit.config.measuring import PanelEvaluation
from tacit.config.recipe import Overrides
from tacit.core.errors import TacitError
from tacit.engines.models.bases import checkpoint_directory
from tacit.evaluation.tokens import LISTED, REACT, UNLISTED, react_contexts
from tacit.modules.module import Base, find_modules
from tacit.modules.router import find_modules_directory, module_recipe, open_agent
from tacit.rollout.episodes import RolloutObserver
from tacit.training.setup import completion_limit, evaluation_sampling

PANEL = ("split", "tasks", "panel", "repeats", "temperature", "top_p", "top_k", "max_steps")


@dataclass(frozen=True)
class CostRow:
    """One agent, or one prompt format applied to the modules' own episodes."""

    name: str
    success: float | None  # None if nothing was played: the turns are the modules'
    interval: Sequence[float] | None
    steps: float
    prompt_tokens: float  # per turn
    completion_tokens: float  # per turn
    tokens: float  # of prompts and completions, per episode
    seconds: float | None = None  # per episode, with `batch` episodes at a time
    seconds_to_load: float | None = None
    peak_bytes: int | None = None  # of the process, including Python and its libraries; None if the model is remote
    device_peak_bytes: int | None = None  # of the GPU, if there is one
    hosts: Sequence[str] = ()  # hosts it connected to
    sent_bytes: float = 0.0  # of prompts, per episode


@dataclass(frozen=True)
class Costs:
    panel: str
    panel_hash: str
    episodes: int
    rows: Sequence[CostRow]
    disk: Mapping[str, int]  # bytes of the modules, of their base and of the models they are compared with


def measure_costs(
    path: Path,
    said: Overrides,
    prompted: Mapping[str, Mapping[str, Any] | None],
    *,
    wording: str = "full",
    actions: bool = True,
    max_tokens: int = 0,
    base: str | None = None,
    fallback: str | None = None,
    batch: int = 1,
    watch: Callable[[str], None] = lambda name: None,
) -> Costs:
    """Measure all agents on the same tasks with the same seeds and limits.

    `prompted` are models to compare with: local (None), or behind an endpoint (arguments of `open_endpoint`). `max_tokens` is
    the limit per turn of a prompted model (0: 512). `watch` is called with the name of each agent.
    """
    path = find_modules_directory(path)
    modules = find_modules(path)
    recipe = module_recipe(path, modules, said)
    world = open_world(recipe.world)
    world.wording(wording)  # raises if unknown
    local = [name for name, endpoint in prompted.items() if not endpoint]
    for name in local:
        if not Path(name).expanduser().is_dir():
            check_model(name)
    how = LISTED if actions else UNLISTED
    watch("modules")
    row, panel, own = _run_job(CostJob(path.name, str(path), said, base=base, fallback=fallback, batch=batch))
    rows = [row]
    for use in own:
        if use["context"] in [f"{name} {how}" for name in REACT]:
            tokens = (use["prompt_tokens_per_turn"], use["action_tokens_per_turn"], use["tokens_per_episode"])
            rows.append(CostRow(f"its turns as {use['context']}", None, None, row.steps, *tokens))
    train, shared = recipe.train, dict[tuple[str, ...], Any]()  # the modules' evaluation settings, for prompted models
    shared |= {("world",): recipe.world, ("seed",): train.seed, ("families",): train.families, ("max_tokens",): max_tokens}
    shared |= {("evaluation", name): getattr(train.evaluation, name) for name in PANEL}
    shared |= {(name,): getattr(train, name) for name in ("workers", "workers_at", "world_timeout_s")}
    shared |= {("engine", name): getattr(recipe.engine, name) for name in ("device", "dtype", "threads")}
    shared[("prompt", "wording")] = wording
    for model, remote in prompted.items():
        for react in REACT:
            name = f"{model}, {react}"
            watch(name)
            endpoint = {**remote, "concurrency": batch} if remote else None
            row, other, _ = _run_job(CostJob(name, model, shared, f"{react} {how}", endpoint, batch=batch))
            if other["panel_hash"] != panel["panel_hash"]:
                raise TacitError(f"{name} played panel {other['panel']}, not {panel['panel']}.")
            rows.append(row)
    first = next(iter(modules.values()))
    bases = {f"base {first.base.model}": first.base.with_model(base)} if first.adapter else {}
    bases |= {name: Base(name, train.seed) for name in local}
    disk = {str(path): sum(module.size for module in modules.values())}
    for name, own_base in bases.items():
        files = checkpoint_directory(own_base.source(world)).iterdir()
        disk[name] = sum(file.stat().st_size for file in files if file.is_file())
    return Costs(**panel, rows=rows, disk=disk)


def is_local_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True)
class CostJob:
    name: str
    target: str  # modules or a model
    said: Overrides
    react: str = ""  # prompt format, a key of `react_contexts`; empty: the modules' own
    endpoint: dict[str, Any] | None = None
    base: str | None = None
    fallback: str | None = None
    batch: int = 1


Measured = tuple[CostRow, dict[str, Any], list[dict[str, Any]]]  # (costs, panel, token use of other prompt formats)


def _run_job(job: CostJob) -> Measured:
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        try:
            found = executor.submit(measure, job).result()
        except BrokenProcessPool as error:
            raise TacitError(f"measuring {job.name} failed: its process ended.") from error
    if isinstance(found, str):
        raise TacitError(found)
    return found


def record_hosts() -> dict[str, None]:
    """Every host that this process looks up or connects to from now on."""
    hosts: dict[str, None] = {}

    def record(event: str, arguments: tuple[Any, ...]) -> None:
        address = arguments[1] if event == "socket.connect" else arguments[:1] if event == "socket.getaddrinfo" else None
        if isinstance(address, tuple) and address and address[0]:  # a path is a local socket
            hosts[address[0].decode() if isinstance(address[0], bytes) else str(address[0])] = None

    sys.addaudithook(record)
    return hosts


class Clock(RolloutObserver):
    began = ended = 0.0

    def begin(self, already: int) -> None:
        self.began = time.perf_counter()

    def on_episode_end(self, index: int, trajectory: Any) -> None:
        self.ended = time.perf_counter()


def measure(job: CostJob) -> Measured | str:
    """Measure one agent in this process. Returns the message of a TacitError, which may not be picklable."""
    hosts, started, clock, sent = record_hosts(), time.perf_counter(), Clock(), 0
    try:
        if not job.react:
            target: Any = open_agent(job.target, job.said, base=job.base, fallback=job.fallback)
        else:
            target = open_endpoint(job.said, **job.endpoint) if job.endpoint else open_target(job.target, job.said)
            context = react_contexts(target.world.wording(target.recipe.settings.prompt.wording))[job.react]
            limit = completion_limit(target.recipe.train, context, target.world)
            target = replace(target, context=context, sampling=evaluation_sampling(target.recipe.train, limit))
            if (settle := target.settle) is not None:

                def count(trajectory: Any) -> Any:  # bytes, before `settle` puts the server's counts
                    nonlocal sent
                    sent += sum(len(step.prompt_tokens) for step in trajectory.steps)
                    return settle(trajectory)

                target = replace(target, settle=count)
        loaded = time.perf_counter() - started
        with tempfile.TemporaryDirectory(prefix="tacit-cost-") as directory:
            sitting = PanelEvaluation(target, out=Path(directory), fresh=True, said=job.said)
            measured = sitting.play(job.batch, clock, clock.begin)
            uses = [] if job.react else [use.figures for use in sitting.account(measured)]
    except TacitError as error:
        return str(error)
    score, episodes, torch = measured.score, len(measured.played), sys.modules.get("torch")
    peaks: dict[str, Any] = {}
    if not job.endpoint:
        peaks["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        if torch and torch.cuda.is_available():
            peaks["device_peak_bytes"] = int(torch.cuda.max_memory_allocated())
    row = CostRow(
        job.name,
        score.success,
        score.interval,
        score.steps,
        score.prompt_tokens,
        score.completion_tokens,
        score.episode_prompt_tokens + score.episode_completion_tokens,
        (clock.ended - clock.began) / episodes,
        loaded,
        hosts=tuple(hosts),
        sent_bytes=sent / episodes if job.endpoint else 0.0,
        **peaks,
    )
    return row, {"panel": score.panel, "panel_hash": score.panel_hash, "episodes": score.episodes}, uses
