"""Drafts inside modules: the tracker or rewards that a module was trained with, as text files.

module.json lists them under `draft`. The module's world is `tacit.modules.carrying:DRAFT_<hash>` (part of the file format):
the draft's world, with the draft added. `read_module` registers the draft; resolving the name opens the world. The draft
itself runs only in its sandbox, when an episode begins. The hash covers all of its text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tacit.core.errors import TacitError
from tacit.modules.drafting.packaged import PREFIX, PackagedDraft

if TYPE_CHECKING:
    from tacit.core.world import Environment

_drafts: dict[str, PackagedDraft] = {}
_worlds: dict[str, Environment] = {}


def register_draft(draft: PackagedDraft) -> None:
    _drafts[draft.world_name] = draft


def __getattr__(name: str) -> Environment:
    """The world of a registered draft."""
    if not name.startswith("DRAFT_"):
        raise AttributeError(name)
    if (world_name := f"{PREFIX}{name}") not in _drafts:
        raise TacitError(
            f"{world_name} is the world of a draft inside a module: name the module, not the world. If you did, its draft is "
            "not the text it was trained with."
        )
    if name not in _worlds:
        from tacit.modules.work import open_draft

        _worlds[name] = open_draft(_drafts[world_name])
    return _worlds[name]
