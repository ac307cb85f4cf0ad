"""A draft that a module brings along: the tracker or the rewards it was trained with, as text among its files.

module.json names them (`draft`), and the world of such a module is `tacit.modules.carrying:DRAFT_<hash>`: the world that the
draft is for, with it. Whoever reads the module makes that name known here; the draft itself is run only behind its fence, when
an episode begins. The hash is of every text, so that a name means one draft wherever its module lies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.core.errors import TacitError

if TYPE_CHECKING:
    from tacit.core.world import Environment
    from tacit.modules.drafting.tracker import FencedDraft

PREFIX = "tacit.modules.carrying:"
ENDING = ".py.txt"
"""of its files: Python, and never imported"""


@dataclass(frozen=True)
class Carried:
    """A draft as a module keeps it."""

    kind: str
    """`tracker`, or `rewards` over the world's own block"""
    name: str
    world: str
    """as `--world` takes it; empty where there is none"""
    block: str
    """of rewards: the form of the block they are for"""
    texts: tuple[str, ...]

    @property
    def own_name(self) -> str:
        written = json.dumps([self.kind, self.name, self.world, self.block, *self.texts]).encode()
        return f"DRAFT_{hashlib.sha256(written).hexdigest()[:16]}"

    @property
    def world_name(self) -> str:
        """as `--world` takes it, once the module was read"""
        return f"{PREFIX}{self.own_name}"

    @property
    def files(self) -> dict[str, str]:
        """name -> text"""
        return {f"{self.name}{f'_{n}' if n else ''}{ENDING}": text for n, text in enumerate(self.texts)}

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "world": self.world, "block": self.block, "files": list(self.files)}


def carried_by(tracker: FencedDraft) -> Carried:
    block = getattr(tracker, "block", "")
    return Carried(tracker.kind, tracker.name, tracker.world, block, tracker.sources)


def read_carried(path: Path, told: Mapping[str, Any]) -> Carried:
    """The draft of the module at `path`, whose manifest says `told` of it."""
    names: Sequence[str] = told["files"]
    if any(Path(name).name != name for name in names):
        raise TacitError(f"the module {path} has a draft with a path in its name: {', '.join(names)}.")
    try:
        texts = tuple((path / name).read_text(encoding="utf-8") for name in names)
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"cannot read the draft of the module {path}: {error}. It is damaged or incomplete.") from error
    carried = Carried(str(told["kind"]), str(told["name"]), str(told["world"]), str(told["block"]), texts)
    if list(carried.files) != list(names):
        raise TacitError(f"the module {path} has a draft {carried.name!r} in files of other names: {', '.join(names)}.")
    return carried


_known: dict[str, Carried] = {}
_worlds: dict[str, Environment] = {}


def make_known(carried: Carried) -> None:
    _known[carried.own_name] = carried


def __getattr__(name: str) -> Environment:
    """The world of a draft that some module has brought along."""
    if not name.startswith("DRAFT_"):
        raise AttributeError(name)
    if name not in _known:
        raise TacitError(
            f"{PREFIX}{name} is the world of a draft that a module brings along: name the module, not the world. Where it was "
            "named, its draft is not the text that it was trained with."
        )
    if name not in _worlds:
        _worlds[name] = _open(_known[name])
    return _worlds[name]


def _open(carried: Carried) -> Environment:
    from tacit.modules.drafting.tracker import DraftedTracker, RewardedTracker
    from tacit.modules.logs import with_draft
    from tacit.worlds import get_environment

    if carried.kind == "tracker":
        return with_draft(DraftedTracker(carried.texts, carried.name, world=carried.world))
    inner = get_environment(carried.world).tracker_of(carried.block)
    return with_draft(RewardedTracker(inner, carried.texts[0], carried.name, carried.world, carried.block))
