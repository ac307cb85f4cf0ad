"""What an agent reads, as data: a module carries the context it was trained in, and no setting can lead it astray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from tacit.contexts.history import History
from tacit.contexts.state_block import StateBlock
from tacit.core.errors import TacitError, unknown
from tacit.core.method import Context
from tacit.core.wording import version_of
from tacit.core.world import FULL_BLOCK, Environment

KINDS: Mapping[str, type[Any]] = {"state_block": StateBlock, "history": History}
PARTS_OF_THE_WORLD = ("wording", "tracker")
"""fields that are the world's own objects: a wording is kept by its name and version, a tracker by its form and version"""


def describe_context(context: Context, world: Environment) -> dict[str, Any]:
    """`{"kind": "state_block", "wording": "terse", "one_step": true, …}`"""
    kind = next((name for name, cls in KINDS.items() if type(context) is cls), None)
    if kind is None:
        raise TacitError(
            f"a module can keep the contexts {', '.join(KINDS)}, and this run's agent reads by {type(context).__name__}; "
            "play it from its run directory instead."
        )
    wording = next((name for name, own in world.wordings.items() if own is context.wording), None)  # type: ignore[attr-defined]
    if wording is None:
        raise TacitError(f"the wording of this run's context is none of world {world.name!r}, so a module could not name it.")
    own = {f.name: getattr(context, f.name) for f in fields(KINDS[kind]) if f.name not in PARTS_OF_THE_WORLD}
    if kind == "state_block":
        form = next((name for name, own in world.trackers.items() if own is context.tracker), None)  # type: ignore[attr-defined]
        if form is None:
            raise TacitError(
                f"the tracker of this run's context is none of world {world.name!r}, so a module could not name it."
            )
        own["form"] = form
    return {"kind": kind, "wording": wording, **own}


def make_context(data: Mapping[str, Any], world: Environment) -> Context:
    """The inverse of `describe_context`, in this version's world."""
    own = dict(data)
    kind = own.pop("kind", "")
    if kind not in KINDS:
        raise unknown("kind of context", kind, KINDS)
    own["wording"] = world.wording(own["wording"])
    if kind == "state_block":
        if world.tracker is None:
            raise TacitError(f"this module reads a tracker's state block, and world {world.name!r} has no tracker here.")
        own["tracker"] = world.tracker_of(own.pop("form", FULL_BLOCK))  # before blocks had forms there was one
    known = {f.name for f in fields(KINDS[kind])}
    for name in own:
        if name not in known:
            raise unknown(f"setting of the context {kind!r}", name, known)
    return KINDS[kind](**own)


def tracker_version(context: Context) -> str | None:
    """Of the tracker whose words the agent reads; None where it reads none."""
    return context.tracker.version if isinstance(context, StateBlock) and context.block else None


def wording_version(context: Context) -> str:
    """Of the words the agent reads."""
    return version_of(context.wording)  # type: ignore[attr-defined]
