"""A draft as text: what a module stores of it, and the name of its world."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

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
