"""Ten atomic skills: by the command, and by what it names. How deep an item lies tells a beginning from an end, whatever it
is called.

    GET-RAW, GET-MADE, GET-UNKNOWN            what is only to be got; what has to be crafted, so cannot; what is nothing
    CRAFT-1 … CRAFT-4                         an item that deep (or deeper), which is not the goal
    CRAFT-GOAL, CRAFT-UNKNOWN                 the goal; what no recipe makes
    INVENTORY

Every command that was executed is projected, refused ones included; what is no command has no skill.
"""

from __future__ import annotations

from tacit.core.types import Trajectory
from tacit.core.world import Alphabet
from tacit.environments.textcraft.book import Book
from tacit.environments.textcraft.commands import Get, Refused, parse
from tacit.environments.textcraft.world import set_up

DEEPEST = 4
SKILLS = (
    *("GET-RAW", "GET-MADE", "GET-UNKNOWN"),
    *(f"CRAFT-{depth}" for depth in range(1, DEEPEST + 1)),
    *("CRAFT-GOAL", "CRAFT-UNKNOWN", "INVENTORY"),
)


def skill(action: str, book: Book, goal: str) -> str | None:
    try:
        command = parse(action, book)
    except Refused:
        return None
    if isinstance(command, str):
        return "INVENTORY"
    if isinstance(command, Get):
        return "GET-MADE" if book.making(command.item) else "GET-RAW" if book.can_be_got(command.item) else "GET-UNKNOWN"
    if command.makes == goal:
        return "CRAFT-GOAL"
    depth = min(book.depth(command.makes), DEEPEST) if command.makes in book.recipes else 0
    return f"CRAFT-{depth}" if depth else "CRAFT-UNKNOWN"


def project(trajectory: Trajectory) -> tuple[str, ...]:
    book, goal, _ = set_up(trajectory.task)
    skills = (skill(step.action, book, goal) for step in trajectory.steps)
    return tuple(s for s in skills if s is not None)


ALPHABET = Alphabet(SKILLS, project, operators=("GET", "CRAFT"))
