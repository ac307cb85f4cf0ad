"""Cost of modules compared with prompted models (constant context, Table 2): tokens, seconds and memory per episode, network
traffic and disk space."""

from __future__ import annotations

import ipaddress
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tacit.config.checks import check_model, open_world
from tacit.config.recipe import Overrides
from tacit.core.errors import TacitError
from tacit.engines.models.bases import checkpoint_directory
from tacit.evaluation.tokens import LISTED, REACT, UNLISTED
from tacit.modules.cost_process import CostJob
from tacit.modules.module import Base, find_modules
from tacit.modules.router import find_modules_directory, module_recipe

PANEL = ("split", "tasks", "panel", "repeats", "temperature", "top_p", "top_k", "max_steps")


@dataclass(frozen=True)
class PromptedModel:
    """A model to compare with: local, or behind an endpoint."""

    name: str
    endpoint: Mapping[str, Any] | None = None  # arguments of `open_endpoint`


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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_costs(
    path: Path,
    said: Overrides,
    prompted: Sequence[PromptedModel],
    *,
    wording: str = "full",
    actions: bool = True,
    max_tokens: int = 0,
    base: str | None = None,
    fallback: str | None = None,
    batch: int = 1,
    watch: Callable[[str], None] = lambda name: None,
) -> Costs:
    """Measure each agent in its own process, on the same tasks with the same seeds and limits.

    `max_tokens` is the limit per turn of a prompted model (0: 512). `watch` is called with the name of each agent.
    """
    path = find_modules_directory(path)
    modules = find_modules(path)
    recipe = module_recipe(path, modules, said)
    world = open_world(recipe.world)
    world.wording(wording)  # raises if unknown
    local = [model for model in prompted if not model.endpoint]
    for model in local:
        if not Path(model.name).expanduser().is_dir():
            check_model(model.name)
    how = LISTED if actions else UNLISTED
    watch("modules")
    own = _run_job(CostJob(str(path), list(said.items()), base=base, fallback=fallback, batch=batch))
    rows = [_make_row(path.name, own)]
    turns = own["turns"] / own["score"]["episodes"]
    for use in own["uses"]:
        if use["context"] in [f"{name} {how}" for name in REACT]:
            tokens = (use["prompt_tokens_per_turn"], use["action_tokens_per_turn"], use["tokens_per_episode"])
            rows.append(CostRow(f"its turns as {use['context']}", None, None, turns, *tokens))
    train, shared = recipe.train, dict[tuple[str, ...], Any]()  # the modules' evaluation settings, for prompted models
    shared |= {("world",): recipe.world, ("seed",): train.seed, ("families",): train.families, ("max_tokens",): max_tokens}
    shared |= {("evaluation", name): getattr(train.evaluation, name) for name in PANEL}
    shared |= {(name,): getattr(train, name) for name in ("workers", "workers_at", "world_timeout_s")}
    shared |= {("engine", name): getattr(recipe.engine, name) for name in ("device", "dtype", "threads")}
    shared[("prompt", "wording")] = wording
    for model in prompted:
        for react in REACT:
            name = f"{model.name}, {react}"
            watch(name)
            endpoint = {**model.endpoint, "concurrency": batch} if model.endpoint else None
            job = CostJob("" if endpoint else model.name, list(shared.items()), f"{react} {how}", endpoint, batch=batch)
            result = _run_job(job)
            if result["score"]["panel_hash"] != own["score"]["panel_hash"]:
                raise TacitError(f"{name} played panel {result['score']['panel']}, not {own['score']['panel']}.")
            rows.append(_make_row(name, result, remote=bool(endpoint)))
    first = next(iter(modules.values()))
    bases = {f"base {first.base.model}": first.base.with_model(base)} if first.adapter else {}
    bases |= {model.name: Base(model.name, train.seed) for model in local}
    disk = {str(path): sum(module.size for module in modules.values())}
    for name, own_base in bases.items():
        files = checkpoint_directory(own_base.source(world)).iterdir()
        disk[name] = sum(file.stat().st_size for file in files if file.is_file())
    return Costs(own["score"]["panel"], own["score"]["panel_hash"], own["score"]["episodes"], rows, disk)


def is_local_host(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _run_job(job: CostJob) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tacit-cost-") as directory:
        out = Path(directory) / "answer.json"
        text = json.dumps(asdict(replace(job, out=str(out))))
        ran = subprocess.run([sys.executable, "-m", "tacit.modules.cost_process"], input=text, text=True, capture_output=True)
        if not out.is_file():
            last = (ran.stderr.strip().splitlines() or ["no output"])[-1]
            raise TacitError(f"measuring {job.target or 'the endpoint'} failed with status {ran.returncode}: {last}.")
        result = json.loads(out.read_text(encoding="utf-8"))
    if "error" in result:
        raise TacitError(result["error"])
    return result


def _make_row(name: str, result: Mapping[str, Any], remote: bool = False) -> CostRow:
    score = result["score"]
    measured = {key: score[key] for key in ("success", "interval", "steps", "prompt_tokens", "completion_tokens")}
    measured |= {"tokens": score["episode_prompt_tokens"] + score["episode_completion_tokens"], "hosts": tuple(result["hosts"])}
    measured |= {"seconds": result["seconds_per_episode"], "seconds_to_load": result["seconds_to_load"]}
    peaks = {} if remote else {key: result[key] for key in ("peak_bytes", "device_peak_bytes")}
    return CostRow(name, **measured, **peaks, sent_bytes=result["sent_bytes_per_episode"])
