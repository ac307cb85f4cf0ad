"""Handbooks: skills written by hand, one for each family of tasks. A world brings its own; a file can take its place.

world = "alfworld"
general = "Look where such things usually are."

[families]
clean = "Take it, clean it at a sinkbasin, then put it where it belongs."
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.companions.hindsight.teachers import Handbook
from tacit.contexts.notes import LONGEST_NOTE
from tacit.core.errors import TacitError, unknown
from tacit.core.types import Condition, Task
from tacit.core.world import Environment

TOLD = "skill"
"""the condition of an episode whose agent reads the handbook"""


def handbook_of(world: Environment, file: str = "") -> Handbook:
    if file:
        return Handbook(read_handbook(Path(file), world))
    if not world.handbook:
        raise TacitError(
            f"world {world.name!r} has no handbook: write the skills of its families into a file and name it (--handbook "
            "FILE), or give its Environment `handbook=…`."
        )
    return Handbook(world.handbook)


def read_handbook(path: Path, world: Environment) -> Mapping[str, str]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise TacitError(f"cannot read the handbook {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TacitError(f"the handbook {path} is not TOML: {error}.") from error
    for key in document:
        if key not in ("world", "general", "families"):
            raise unknown(f"entry of the handbook {path}", key, ("world", "general", "families"))
    if document.get("world", world.name) != world.name:
        raise TacitError(f"the handbook {path} is for world {document['world']!r}, and this is {world.name!r}.")
    families = document.get("families", {})
    if not isinstance(families, dict):
        raise TacitError(f"the handbook {path} has {families!r} for families; write them as a table, [families].")
    for family in families:
        if family not in world.families:
            raise unknown(f"family of world {world.name!r}, in the handbook {path},", family, world.families)
    pages = {"": document.get("general", ""), **families}
    for name, text in pages.items():
        if not isinstance(text, str):
            raise TacitError(f"the handbook {path} has {text!r} for {name or 'general'}, which is no text.")
    pages = {name: text for name, text in pages.items() if text.strip()}
    if not pages:
        raise TacitError(f"the handbook {path} says nothing: write a general text, or one under [families], into it.")
    for family in pages:
        if (length := len(Handbook(pages).page(family))) > LONGEST_NOTE:
            told = f"what {family or 'every family'} is told has {length} characters"
            raise TacitError(f"the handbook {path}: {told}, and a prompt takes {LONGEST_NOTE} of them; shorten it.")
    return pages


@dataclass(frozen=True)
class Told:
    """Every member of a group reads the handbook's page for its family."""

    handbook: Handbook

    def assign(self, task: Task, size: int, seed: int) -> Sequence[Condition]:
        return (self.condition(task),) * size

    def condition(self, task: Task) -> Condition:
        return Condition(TOLD, self.handbook.page(task.family), "handbook")

    @property
    def measured(self) -> Mapping[str, object]:
        """Under what else an evaluation is made, beside the plain one."""
        return {TOLD: self.condition}
