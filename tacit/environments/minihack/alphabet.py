"""Nine atomic skills: what a move did. Not from a paper; in the spirit of ReuseRL's alphabets.

MOVE-NEW, MOVE-KNOWN   onto a square one has not, or has, stood on
GOAL                   onto the stairs
FIGHT                  at a monster
PUSH, SINK             a boulder along, or into the water
PICK_UP, UNLOCK        the key, a door
BUMP                   whatever the game refused; what is no word of the level has no skill
"""

from __future__ import annotations

from collections.abc import Iterator

from tacit.core.types import Observation, Trajectory
from tacit.core.world import Alphabet
from tacit.environments.minihack.levels import APPLY, LEVELS, PICK_UP
from tacit.environments.minihack.observed import BOULDER, STAIRS, read
from tacit.environments.minihack.paths import Place, shift
from tacit.environments.minihack.world import parse_action

SKILLS = ("MOVE-NEW", "MOVE-KNOWN", "GOAL", "FIGHT", "PUSH", "SINK", "PICK_UP", "UNLOCK", "BUMP")


def project(trajectory: Trajectory) -> Iterator[str]:
    level, visited = LEVELS[str(trajectory.task.data["level"])], set[Place]()
    shown = [*(step.observation for step in trajectory.steps), trajectory.final]
    for step, after in zip(trajectory.steps, shown[1:], strict=True):
        word = parse_action(step.action, level)
        if word:
            yield skill(word, step.observation, after, step.effective, visited)


def skill(word: str, before: Observation, after: Observation, effective: bool, visited: set[Place]) -> str:
    """What one action did; `visited` learns where it began."""
    if not effective:
        return "BUMP"
    if word in (PICK_UP, APPLY):
        return "PICK_UP" if word == PICK_UP else "UNLOCK"
    seen, now = read(before.text), read(after.text)
    if seen.here is None:
        return "MOVE-KNOWN"
    visited.add(seen.here)
    aim = shift(seen.here, word)
    if aim in seen.monsters:
        return "FIGHT"
    if seen.at(aim) == BOULDER:
        return "SINK" if "into the water" in now.said else "PUSH"
    if seen.at(aim) == STAIRS:
        return "GOAL"
    return "MOVE-KNOWN" if now.here in visited else "MOVE-NEW"


ALPHABET = Alphabet(SKILLS, project)
