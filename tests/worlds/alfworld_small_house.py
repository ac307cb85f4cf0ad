"""A small house for tests that play command by command."""

from __future__ import annotations

from tacit.core.types import Task
from tacit.worlds.alfworld.world import Game, Goal, Receptacle, Thing

RECEPTACLES = (
    Receptacle("drawer 2", "drawer", 1, openable=True),
    Receptacle("drawer 1", "drawer", 2, openable=True),
    Receptacle("desk 1", "desk", 3),
    Receptacle("bed 1", "bed", 4),
)


def house_of_pens(second: str, family: str = "pick2", sentence: str = "put two pen in drawer.") -> Game:
    """Two drawers, a desk with pen 1, a bed with a pillow and a bear that fits nowhere. `second` is the receptacle of pen 2."""
    where = [receptacle.name for receptacle in RECEPTACLES].index(second)
    portable = frozenset({"pickupable"})
    things = (
        Thing("pen 2", "pen", portable, (where,), (RECEPTACLES[where].location,)),
        Thing("pen 1", "pen", portable, (2,), (3,)),
        Thing("teddybear 1", "teddybear", portable, (3,), (4,)),
        Thing("pillow 1", "pillow", portable, (3,), (4,)),
    )
    fits = frozenset({("drawer", "pen"), ("desk", "pen"), ("bed", "pen"), ("bed", "pillow")})
    return Game(RECEPTACLES, things, fits, 0, Goal(family, "pen", "drawer"), sentence)


def task_of(game: Game) -> Task:
    return Task("alfworld", "house", game.goal.family, "", 0, game.sentence, {"game": game.to_data()})
