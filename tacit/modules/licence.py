"""The licence of the model that a module was trained from: whoever passes a module on passes on something made from it."""

from __future__ import annotations

import re
from pathlib import Path

from tacit.core.errors import TacitError
from tacit.core.world import Environment
from tacit.engines.models.bases import BASES
from tacit.engines.models.fingerprint import checkpoint_directory
from tacit.engines.models.tiny import TINY_SIZES
from tacit.modules.base import Base

OWN = "Apache-2.0"
"""of packaged bases and of models from scratch: tacit's own"""
FRONT = re.compile(r"\A---\s*\n.*?^license:\s*(\S[^\n]*)$", re.DOTALL | re.MULTILINE)
"""what the card of a published model begins with"""
TEXTS = ("LICENSE", "LICENSE.txt", "LICENSE.md", "LICENCE")


def licence_of(base: Base, world: Environment, said: str = "") -> str:
    """`said` where somebody says it; else as the model's own files do."""
    if said:
        return said
    if base.model in BASES or base.model in TINY_SIZES:
        return OWN
    try:
        directory = checkpoint_directory(base.source(world))
    except TacitError as error:
        raise TacitError(f"{error} So its licence cannot be read there: say it with --base-licence NAME.") from error
    found = _by_card(directory / "README.md") or next(filter(None, (_by_text(directory / name) for name in TEXTS)), "")
    if not found:
        raise TacitError(
            f"base {base.model!r} says nothing about its licence (a card README.md with `license:`, or a file LICENSE, in "
            f"{directory}); whoever gets the module must know it: say it with --base-licence NAME."
        )
    return found


def _by_card(file: Path) -> str:
    if not file.is_file():
        return ""
    told = FRONT.search(file.read_text(encoding="utf-8", errors="replace"))
    return told[1].strip().strip("\"'") if told else ""


def _by_text(file: Path) -> str:
    """Its first line that says something."""
    if not file.is_file():
        return ""
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip()[:120] for line in lines if line.strip()), "")
