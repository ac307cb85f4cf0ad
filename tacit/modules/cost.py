"""What modules cost beside a model that is prompted (constant context, Table 2): tokens, seconds and memory per episode, what
leaves the machine, and what lies on the disk."""

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
from tacit.config.recipe import Recipe, Said
from tacit.core.errors import TacitError
from tacit.engines.models.bases import checkpoint_directory
from tacit.evaluation.tokens import LISTED, REACT, UNLISTED
from tacit.modules.cost_player import Order
from tacit.modules.module import Base, find_modules
from tacit.modules.router import home_of_modules, module_recipe

PANEL = ("split", "tasks", "panel", "repeats", "temperature", "top_p", "top_k", "max_steps")


@dataclass(frozen=True)
class Rival:
    """Who is prompted instead: a model here, or one behind an endpoint."""

    name: str
    endpoint: Mapping[str, Any] | None = None
    """fields of `Endpoint`"""


@dataclass(frozen=True)
class Row:
    """One player, or one context told the modules' own episodes."""

    name: str
    success: float | None
    """None where nothing was played: the turns are the modules'"""
    interval: Sequence[float] | None
    steps: float
    prompt_tokens: float
    """per turn"""
    completion_tokens: float
    """per turn"""
    tokens: float
    """of prompts and completions, per episode"""
    seconds: float | None = None
    """per episode, one after another or as many side by side as was asked for"""
    seconds_to_load: float | None = None
    peak_bytes: int | None = None
    """of the process, with Python and its libraries in it; None where the model is elsewhere"""
    device_peak_bytes: int | None = None
    """of the GPU, where there is one"""
    hosts: Sequence[str] = ()
    """other machines it asked"""
    sent_bytes: float = 0.0
    """of prompts, per episode"""


@dataclass(frozen=True)
class Costs:
    panel: str
    panel_hash: str
    episodes: int
    rows: Sequence[Row]
    disk: Mapping[str, int]
    """bytes: of the modules, of their base, of the model they are compared with"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def weigh(
    place: Path,
    said: Said,
    rivals: Sequence[Rival],
    *,
    wording: str = "full",
    actions: bool = True,
    max_tokens: int = 0,
    base: str | None = None,
    fallback: str | None = None,
    batch: int = 1,
    watch: Callable[[str], None] = lambda name: None,
) -> Costs:
    """Each player in a process of its own, on the same tasks with the same seeds and limits. `max_tokens` is what a
    prompted model may write in a turn (0: 512); `watch` is told who plays."""
    place = home_of_modules(place)
    modules = find_modules(place)
    recipe = module_recipe(place, modules, said)
    world = open_world(recipe.world)
    world.wording(wording)  # what does not exist is refused before anybody has played
    for rival in rivals:
        if not rival.endpoint and not Path(rival.name).expanduser().is_dir():
            check_model(rival.name)
    how = LISTED if actions else UNLISTED
    watch("modules")
    own = _play(Order(str(place), _pairs(said), base=base, fallback=fallback, batch=batch))
    rows = [_row(place.name, own)]
    rows += [_told(use, own) for use in own["uses"] if use["context"] in [f"{name} {how}" for name in REACT]]
    shared = {**_shared(recipe, wording), ("max_tokens",): max_tokens}
    for rival in rivals:
        for react in REACT:
            name = f"{rival.name}, {react}"
            watch(name)
            endpoint = {**rival.endpoint, "concurrency": batch} if rival.endpoint else None
            order = Order("" if endpoint else rival.name, _pairs(shared), f"{react} {how}", endpoint, batch=batch)
            found = _play(order)
            if found["score"]["panel_hash"] != own["score"]["panel_hash"]:
                raise TacitError(f"{name} played panel {found['score']['panel']}, not {own['score']['panel']}.")
            rows.append(_row(name, found, elsewhere=bool(endpoint)))
    first = next(iter(modules.values()))
    disk = {str(place): sum(module.size for module in modules.values())}
    if first.adapter:
        disk[f"base {first.base.model}"] = _size(first.base.elsewhere(base), world)
    disk |= {rival.name: _size(Base(rival.name, recipe.train.seed), world) for rival in rivals if not rival.endpoint}
    return Costs(own["score"]["panel"], own["score"]["panel_hash"], own["score"]["episodes"], rows, disk)


def is_here(host: str) -> bool:
    """
    >>> is_here("127.0.0.1"), is_here("localhost"), is_here("api.example.com"), is_here("::1")
    (True, True, False, True)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _shared(recipe: Recipe, wording: str) -> Said:
    """What the modules are measured by, for whoever is measured beside them."""
    train = recipe.train
    said: dict[tuple[str, ...], Any] = {("world",): recipe.world, ("seed",): train.seed, ("families",): train.families}
    said |= {("evaluation", name): getattr(train.evaluation, name) for name in PANEL}
    said |= {(name,): getattr(train, name) for name in ("workers", "workers_at", "world_timeout_s")}
    said[("method", "wording")] = wording
    return said | {("engine", name): getattr(recipe.engine, name) for name in ("device", "dtype", "threads")}


def _pairs(said: Said) -> list[tuple[list[str], Any]]:
    return [(list(place), value) for place, value in said.items()]


def _play(order: Order) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tacit-cost-") as place:
        out = Path(place) / "answer.json"
        told = json.dumps(replace(order, out=str(out)).to_json())
        ran = subprocess.run([sys.executable, "-m", "tacit.modules.cost_player"], input=told, text=True, capture_output=True)
        if not out.is_file():
            last = (ran.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise TacitError(f"the player {order.target or 'behind the endpoint'} ended with status {ran.returncode}: {last}.")
        answer = json.loads(out.read_text(encoding="utf-8"))
    if "error" in answer:
        raise TacitError(answer["error"])
    return answer


def _row(name: str, found: Mapping[str, Any], elsewhere: bool = False) -> Row:
    score = found["score"]
    return Row(
        name,
        score["success"],
        score["interval"],
        score["steps"],
        score["prompt_tokens"],
        score["completion_tokens"],
        score["episode_prompt_tokens"] + score["episode_completion_tokens"],
        found["seconds_per_episode"],
        found["seconds_to_load"],
        None if elsewhere else found["peak_bytes"],
        None if elsewhere else found["device_peak_bytes"],
        tuple(found["hosts"]),
        found["sent_bytes_per_episode"],
    )


def _told(use: Mapping[str, Any], own: Mapping[str, Any]) -> Row:
    steps = own["turns"] / own["score"]["episodes"]
    name = f"its turns as {use['context']}"
    tokens = (use["prompt_tokens_per_turn"], use["action_tokens_per_turn"], use["tokens_per_episode"])
    return Row(name, None, None, steps, *tokens)


def _size(base: Base, world: Any) -> int:
    directory = checkpoint_directory(base.source(world))
    return sum(file.stat().st_size for file in directory.iterdir() if file.is_file())
