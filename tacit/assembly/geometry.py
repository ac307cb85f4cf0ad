"""Calibrated geometry of each backbone: written by `tacit calibrate`, picked up when a method that clusters is trained."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from tacit.assembly.recipe import Recipe
from tacit.assembly.values import to_data
from tacit.core.errors import TacitError
from tacit.engines.models.bases import BASES, FOLDER
from tacit.engines.models.tiny import cache_root
from tacit.methods.bipace import PUBLISHED_EPSILON, PUBLISHED_LAYER

GEOMETRY = ("layer", "pooling", "epsilon")
PUBLISHED_DEPTH = 28
"""layers of the backbones the published layer was chosen for"""


def place_of(recipe: Recipe) -> Path:
    """The file of a backbone's calibration: by name, and by a hash of what makes it that backbone."""
    document: dict[str, Any] = {"model": recipe.model}
    path = Path(recipe.model).expanduser()
    if recipe.tiny is not None:  # its tokenizer comes from the world
        document |= {"tiny": to_data(recipe.tiny), "world": recipe.world}
    elif (config := _config(path)) is not None:  # a directory may be moved and stays the same model
        document = {"config": config}
    name = re.sub(r"[^\w.-]+", "-", path.name if recipe.tiny is None else f"{recipe.model}-{recipe.world}")
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:12]
    return cache_root() / "calibrations" / f"{name}-{digest}.json"


def saved_calibration(recipe: Recipe) -> dict[str, Any] | None:
    """Layer, pooling, epsilon, and the world they were found in."""
    place = place_of(recipe)
    if not place.exists():
        return None
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
        geometry = {"layer": int(found["layer"]), "pooling": str(found["pooling"]), "epsilon": float(found["epsilon"])}
        return {**geometry, "world": str(found["world"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TacitError(f"cannot read the calibration {place}: {error}. Delete it, or run `tacit calibrate` again.") from error


def with_geometry(recipe: Recipe) -> Recipe:
    """The recipe with layer, pooling and epsilon said: by the user, by the backbone's calibration, else as published.

    A calibrated radius belongs to its layer and pooling, and is not used with others.
    """
    settings = recipe.settings
    names = {f.name for f in dataclasses.fields(settings)} if dataclasses.is_dataclass(settings) else set()
    if not {*GEOMETRY, "embedder"} <= names:
        return recipe
    chosen: dict[str, Any] = {}
    notes = []
    if settings.embedder == "actor":
        found = saved_calibration(recipe)
        told = {name: getattr(settings, name) for name in ("layer", "pooling")}
        if found is not None and all(value in (None, found[name]) for name, value in told.items()):
            chosen = {n: found[n] for n in GEOMETRY if getattr(settings, n) is None}
            if settings.adaptive:
                chosen.pop("epsilon", None)
            if chosen:
                shown = ", ".join(f"{name} = {value}" for name, value in chosen.items())
                notes.append(f"{shown}, as `tacit calibrate` found for {recipe.model} in {found['world']}")
        elif settings.layer is None:
            layer, note = _published_layer(recipe)
            chosen["layer"] = layer
            notes += [note] if note else []
        layer = chosen.get("layer", settings.layer)
        _check_layer(recipe, PUBLISHED_LAYER if layer is None else layer)
        chosen.setdefault("pooling", settings.pooling or "last")
    if settings.epsilon is None and not settings.adaptive:
        chosen.setdefault("epsilon", PUBLISHED_EPSILON[settings.embedder])
    if not chosen:
        return recipe
    return replace(recipe, settings=replace(settings, **chosen), notes=(*recipe.notes, *notes))


def _published_layer(recipe: Recipe) -> tuple[int, str]:
    """The published layer; in a model too shallow for it, the one at the same relative depth, short of the last."""
    layers = _layers(recipe)
    if layers is None or layers > -PUBLISHED_LAYER:
        return PUBLISHED_LAYER, ""
    layer = -min(max(2, round(-PUBLISHED_LAYER * layers / PUBLISHED_DEPTH)), layers)
    return (
        layer,
        f"{recipe.model} has {layers} layers, so layer = {layer} instead of {PUBLISHED_LAYER}; `tacit calibrate` knows better",
    )


def _check_layer(recipe: Recipe, layer: int) -> None:
    layers = _layers(recipe)
    if layers is not None and not -layers - 1 <= layer <= layers:
        raise TacitError(
            f"layer = {layer} does not exist in {recipe.model!r}, which has {layers}: give -1 (the last) to {-layers - 1} (the "
            f"embeddings), or let `tacit calibrate` choose."
        )


def _layers(recipe: Recipe) -> int | None:
    """How deep the model is, where that is known without loading it."""
    if recipe.tiny is not None:
        return recipe.tiny.layers
    config = _config(FOLDER / recipe.model if recipe.model in BASES else Path(recipe.model).expanduser())
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
