"""The available worlds, methods, engines, models and panels."""

from __future__ import annotations

from collections.abc import Iterable

from tacit.config.checks import find_world
from tacit.core.errors import TacitError
from tacit.core.progress import pluralize
from tacit.core.world import Environment
from tacit.engines import REGISTRY as ENGINES
from tacit.engines import get_engine
from tacit.engines.models.bases import BASES, FOLDER, read_manifest
from tacit.engines.models.tiny import TINY_SIZES, TinySettings
from tacit.evaluation.panels import Panel
from tacit.methods import REGISTRY as METHODS
from tacit.methods import get_method


def find_worlds(names: Iterable[str]) -> dict[str, Environment | str]:
    """Every world, or the reason it cannot be imported; one broken world must not hide the others."""
    found: dict[str, Environment | str] = {}
    for name in names:
        try:
            found[name] = find_world(name)
        except Exception as error:
            found[name] = f"not available: {error}"
    return found


def methods() -> dict[str, str]:
    """name -> first line of its docstring"""
    found = {}
    for name in METHODS.names:
        try:
            found[name] = next(iter((get_method(name).__doc__ or "").strip().splitlines()), "")
        except TacitError as error:
            found[name] = f"not available: {error}"
    return found


def engines() -> dict[str, str]:
    """name -> (summary, capabilities)"""
    found = {}
    for name in ENGINES.names:
        try:
            engine = get_engine(name)
            found[name] = f"{engine.summary}; {', '.join(sorted(engine.capabilities))}"
        except TacitError as error:
            found[name] = f"not available: {error}"
    return found


def models() -> dict[str, str]:
    """values of `--model` -> summary"""
    found = {}
    for name, sizes in TINY_SIZES.items():
        size = _size(parameters(sizes), sizes.context)
        found[name] = f"from scratch, {sizes.layers} layers of width {sizes.hidden}, {size}"
    for name in BASES:
        about = read_manifest(FOLDER / name)
        size = _size(about["parameters"], about["sizes"]["context"])
        found[name] = f"pretrained on random play and questions in {', '.join(about['episodes'])}; {size}"
    return found | {
        "smollm2": "SmolLM2-135M-Instruct: `tacit prepare smollm2 DIR` makes a checkpoint, then --model DIR",
        "path/to/checkpoint": "any causal language model saved by transformers",
        "owner/name": "any causal language model of the Hugging Face hub",
    }


def panels(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """(name, hash, summary) of each split's default panel"""
    rows = []
    for name, world in find_worlds(names).items():
        if isinstance(world, str):
            rows.append((name, "-", world))
            continue
        for split in world.splits:
            try:
                panel = Panel.of(world, split, world.panel_size(split))
            except TacitError as error:
                rows.append((f"{name}/{split}", "-", f"not available: {error}"))
                continue
            usual = ", measured on where none is named" if split == world.panel_split else ""
            rows.append((panel.name, panel.hash, f"{pluralize(len(panel.tasks), 'task')} of split {split}{usual}"))
    return rows


def parameters(s: TinySettings) -> float:
    """Parameters of a tiny Llama with tied embeddings."""
    attention = 2 * s.hidden * s.hidden * (1 + s.kv_heads / s.heads)
    layer = attention + 3 * s.hidden * s.intermediate + 2 * s.hidden
    return s.vocab * s.hidden + s.layers * layer + s.hidden


def _size(count: float, context: int) -> str:
    return f"{count / 1e6:.1f}M parameters, reads {context} tokens"
