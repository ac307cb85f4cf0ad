"""A draft as a module stores it, and the name of its world."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.files import read_text

PREFIX = "tacit.modules.carrying:"
SUFFIX = ".py.txt"  # Python that is never imported


@dataclass(frozen=True)
class PackagedDraft:
    kind: str  # `tracker`, or `rewards` for the world's own state block
    name: str
    text: str
    world: str = ""  # name for `--world`; empty if there is none
    block: str = ""  # for rewards: the form of the state block

    @property
    def world_name(self) -> str:
        """name for `--world`, valid after `carrying.register_draft`"""
        content = json.dumps([self.kind, self.name, self.world, self.block, self.text]).encode()
        return f"{PREFIX}DRAFT_{hashlib.sha256(content).hexdigest()[:16]}"

    @property
    def files(self) -> dict[str, str]:
        """name -> text"""
        return {f"{self.name}{SUFFIX}": self.text}

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name, "world": self.world, "block": self.block, "files": list(self.files)}


def read_packaged_draft(path: Path, data: Mapping[str, Any]) -> PackagedDraft:
    """The draft of the module at `path`; `data` is the `draft` entry of its manifest."""
    kind, name, world, block = (str(data[key]) for key in ("kind", "name", "world", "block"))
    if list(data["files"]) != [f"{name}{SUFFIX}"] or Path(name).name != name:
        raise TacitError(f"the draft {name!r} of module {path} has unexpected file names: {', '.join(data['files'])}.")
    try:
        text = read_text(path / f"{name}{SUFFIX}")
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"cannot read the draft of module {path}: {error}. It is damaged or incomplete.") from error
    return PackagedDraft(kind, name, text, world, block)
