"""Which layer, pooling and radius steps are compared with: what was said, else what was calibrated, else what was published."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tacit.core.errors import TacitError
from tacit.core.tools import Base
from tacit.credit.embedders import Pooling

PUBLISHED_LAYER, PUBLISHED_DEPTH = -8, 28
"""the layer, and how many the backbones have that it was chosen for"""
PUBLISHED_EPSILON = {"actor": 0.10, "ngram": 0.25, "identity": 0.0, "sentence": 0.10}
"""by embedder; the paper has no sentence encoder, so its radius is ours"""


@dataclass(frozen=True)
class Geometry:
    """None is what has not been decided yet."""

    layer: int | None = None
    pooling: Pooling | None = None
    epsilon: float | None = None


def settle(told: Geometry, embedder: str, base: Base, adaptive: bool) -> tuple[Geometry, tuple[str, ...]]:
    """The geometry a run uses, and notes on what was decided for the user. A calibrated radius belongs to its layer and pooling
    and is not used with others; an adaptive one is left open, to be found on the first iteration."""
    if base.calibrated is None:
        return told, ()
    found = base.calibrated.get(embedder)
    chosen, notes = told, []
    if found is not None and told.layer in (None, found.get("layer")) and told.pooling in (None, found.get("pooling")):
        names = [n for n in ("layer", "pooling", "epsilon") if found.get(n) is not None and getattr(told, n) is None]
        taken = {name: found[name] for name in names if not (adaptive and name == "epsilon")}
        chosen = replace(told, **taken)
        if taken:
            shown = ", ".join(f"{name} = {value}" for name, value in taken.items())
            notes.append(f"{shown}, as `tacit calibrate` found for {base.model} in this world and context")
    if embedder == "actor":
        if chosen.layer is None:
            layer, note = _published_layer(base)
            chosen, notes = replace(chosen, layer=layer), notes + ([note] if note else [])
        _check_layer(base, chosen.layer)
        chosen = replace(chosen, pooling=chosen.pooling or "last")
    if chosen.epsilon is None and not adaptive:
        chosen = replace(chosen, epsilon=PUBLISHED_EPSILON[embedder])
    return chosen, tuple(notes)


def _published_layer(base: Base) -> tuple[int, str]:
    """The published layer; in a model too shallow for it, the one at the same relative depth, short of the last."""
    if base.layers is None or base.layers > -PUBLISHED_LAYER:
        return PUBLISHED_LAYER, ""
    layer = -min(max(2, round(-PUBLISHED_LAYER * base.layers / PUBLISHED_DEPTH)), base.layers)
    had = f"{base.model} has {base.layers} layers, so layer = {layer} instead of {PUBLISHED_LAYER}"
    return layer, f"{had}; `tacit calibrate` knows better"


def _check_layer(base: Base, layer: int | None) -> None:
    if layer is not None and base.layers is not None and not -base.layers - 1 <= layer <= base.layers:
        raise TacitError(
            f"layer = {layer} does not exist in {base.model!r}, which has {base.layers}: give -1 (the last) to "
            f"{-base.layers - 1} (the embeddings), or let `tacit calibrate` choose."
        )
