"""What is known of a recipe's model before it is loaded: how large it is, how deep, and what was calibrated for it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from tacit.assembly.recipe import Recipe
from tacit.assembly.values import to_data
from tacit.calibration.store import place_of, read_calibration
from tacit.core.method import Context
from tacit.core.tools import Base
from tacit.core.world import Environment
from tacit.engines.models.bases import FOLDER, base_named, is_small
from tacit.engines.models.tiny import cache_root

GLANCE = 1 << 16
"""bytes read at either end of a file of weights"""


def known_base(recipe: Recipe, world: Environment) -> Base:
    small = recipe.tiny is not None or is_small(recipe.model)
    return Base(recipe.model, small, _layers(recipe), read_calibration(calibration_place(recipe, world)))


def calibration_place(recipe: Recipe, world: Environment) -> Path:
    """A calibration belongs to a model in a world and a context: another prompt gives other hidden states."""
    base = base_named(recipe.model)
    path = Path(base or recipe.model).expanduser()
    config = None if base else _config(path)
    model: Any = base or recipe.model if config is None else config  # a directory may be moved and stays the same model
    identity = {
        "model": model,
        "weights": "" if base else _digest(path),
        "tiny": to_data(recipe.tiny) if recipe.tiny else None,
        "world": world.name,
        "context": _identity(recipe.settings.context(world)),
    }
    return place_of(cache_root(), f"{path.name}-{world.name}", identity)


def _digest(path: Path) -> str:
    """Of a checkpoint of ours, which says it beside its weights, or a glance at the weights of any other directory: two models
    of one size are two models."""
    for file in (path / "policy.json", path.parent / "policy.json"):
        if file.is_file():
            try:
                return str(json.loads(file.read_text(encoding="utf-8")).get("digest", ""))
            except (OSError, ValueError, AttributeError):
                return ""
    return _glance(path)


def _glance(path: Path) -> str:
    """A hash of where each file of weights begins and ends: gigabytes are not read to look a calibration up."""
    seen = hashlib.sha256()
    files = sorted([*path.glob("*.safetensors"), *path.glob("*.bin")]) if path.is_dir() else []
    for file in files:
        with file.open("rb") as opened:
            size = file.stat().st_size
            seen.update(f"{file.name} {size}".encode() + opened.read(GLANCE))
            opened.seek(max(0, size - GLANCE))
            seen.update(opened.read(GLANCE))
    return seen.hexdigest()[:16] if files else ""


def _identity(context: Context) -> dict[str, Any]:
    """What decides the words of a prompt: the kind of context, its settings, and which wording and tracker write it."""
    own: dict[str, Any] = {"kind": type(context).__name__}
    for name, value in vars(context).items():
        plain = value is None or isinstance(value, bool | int | float | str)
        own[name] = value if plain else [type(value).__name__, getattr(value, "version", "")]
    return own


def _layers(recipe: Recipe) -> int | None:
    """How deep the model is, where that is known without loading it."""
    if recipe.tiny is not None:
        return recipe.tiny.layers
    base = base_named(recipe.model)
    config = _config(FOLDER / base if base else Path(recipe.model).expanduser())
    if config is None:
        return None
    layers = config.get("num_hidden_layers") or (config.get("text_config") or {}).get("num_hidden_layers")
    return int(layers) if layers else None


def _config(path: Path) -> dict[str, Any] | None:
    for file in (path / "config.json", path / "model" / "config.json"):
        if file.is_file():
            try:
                return json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                return None
    return None
