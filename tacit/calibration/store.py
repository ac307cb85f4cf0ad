"""Calibrations on disk: what `tacit calibrate` found for one model, in one world and one context, by embedder."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError

GEOMETRY = {"layer": int, "pooling": str, "epsilon": float}


def place_of(root: Path, name: str, identity: Mapping[str, Any]) -> Path:
    """The file for what has this identity, a hash of which ends its name; what it begins with is for people, and stays as it
    was when the same is asked for by another name."""
    digest, folder = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12], root / "calibrations"
    known = sorted(folder.glob(f"*-{digest}.json"))
    return known[0] if known else folder / f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', name)}-{digest}.json"


def read_calibration(place: Path) -> dict[str, dict[str, Any]]:
    """Embedder -> layer and pooling (of the actor's hidden state) and epsilon; empty where nothing was calibrated."""
    if not place.exists():
        return {}
    try:
        found = json.loads(place.read_text(encoding="utf-8"))
        return {
            embedder: {name: kind(own[name]) for name, kind in GEOMETRY.items() if own.get(name) is not None}
            for embedder, own in found["embedders"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TacitError(f"cannot read the calibration {place}: {error}. Delete it, or run `tacit calibrate` again.") from error
