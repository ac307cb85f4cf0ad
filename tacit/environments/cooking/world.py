"""TextWorld-Cooking in plain Python (ReuseRL §D): read the cookbook, gather, cut, cook, prepare the meal, eat it.

    go <direction>, open / close <container or door>, look, inventory, examine <thing>
    take <thing> [from <place>], drop <thing>, put <thing> on <place>, insert <thing> into <container>
    chop / slice / dice <food> with knife, cook <food> with stove (fries) / oven (roasts) / BBQ (grills)
    prepare meal, eat <food>

    success            eat the meal
    burned             an ingredient or the meal is cooked a second time: lost
    wrong_processing   an ingredient is cut or cooked in another way than the recipe's, or eaten: lost
    timeout            40 steps (the rollout counts them)
    score              share of the points reached: each ingredient taken, cut, cooked, the meal prepared, eaten
    reward             what the step added to the score

Commands, answers and rules follow the cooking game of the TextWorld package. The observation holds the answer to the
last command, the room as it is now and what is carried; never the recipe, which has to be read and remembered. Two
differences: descriptions are plainer, and a raw ingredient that the recipe wants raw is spoilt by cooking
(wrong_processing) even where the cook gate is off; TextWorld says it burns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition
from tacit.environments.cooking.state import CARRIED, FLOOR, GONE, Game, is_thing
from tacit.environments.cooking.things import (
    BURNED,
    COOKED,
    CUTS,
    DIRECTIONS,
    FURNITURE,
    HEAT,
    RAW,
    UNCUT,
)

MAX_STEPS = 40
BURNED_LABEL, WRONG_LABEL = "burned", "wrong_processing"
_UNSEEN = "You can't see any such thing."
_LOOKING = ("look", "inventory", "examine")
"""commands that never change anything"""
_CANONICAL = {name.lower(): name for name in FURNITURE}


class _Refused(Exception):
    """The command changes nothing; the message is the answer."""


class CookingWorld:
    """One game at a time; see the module for the rules."""

    def __init__(self) -> None:
        self._game: Game | None = None
        self._seen = Observation("")
        """the present room, kept while commands change nothing"""
        self._lost = ""
        self._won = False
        self._score = 0.0
        self._verbs: dict[str, Callable[[str], str]] = {
            "go": self._go,
            "open": self._open,
            "close": self._close,
            "take": self._take,
            "drop": self._drop,
            "put": partial(self._store, " on "),
            "insert": partial(self._store, " into "),
            "cook": self._cook,
            "prepare": self._prepare,
            "eat": self._eat,
            "examine": self._examine,
            **{verb: partial(self._cut, verb) for verb in CUTS},
        }

    def reset(self, task: Task) -> Observation:
        try:
            self._game = Game(task.data)
        except (KeyError, ValueError, TypeError) as error:
            raise TacitError(f"task {task.id!r} is no cooking game: {error!r}. Make one with `tasks`.") from error
        self._lost, self._won, self._score = "", False, 0.0
        self._seen = Observation(self._game.describe(), self._game.admissible())
        return self._seen

    def step(self, action: str) -> Transition:
        game = self.game
        verb, _, rest = " ".join(action.lower().split()).partition(" ")
        effective = True
        try:
            answer = self._answer(verb, rest)
        except _Refused as refusal:
            answer, effective = str(refusal), False
        if effective and verb not in _LOOKING:
            self._seen = Observation(game.describe(), game.admissible())
        score = len(game.reached) / game.max_points
        reward, self._score = score - self._score, score
        if self._lost or self._won:
            answer += "\n*** The End ***" if self._won else "\n*** You lost! ***"
            seen = Observation(f"{answer}\n{self._seen.text}")
            return Transition(seen, True, self._won, score, effective, self._lost, reward)
        observation = Observation(f"{answer}\n{self._seen.text}", self._seen.actions)
        return Transition(observation, score=score, effective=effective, reward=reward)

    def close(self) -> None:
        self._game = None

    @property
    def game(self) -> Game:
        if self._game is None:
            raise TacitError("the cooking world has no game yet; call reset(task) first.")
        return self._game

    def _answer(self, verb: str, rest: str) -> str:
        if verb in ("look", "inventory") and not rest:
            return "You look around." if verb == "look" else "You check what you are carrying."
        if verb not in self._verbs or not rest:
            raise _Refused("That's not a command I recognise.")
        return self._verbs[verb](rest)

    def _go(self, direction: str) -> str:
        way = self.game.exits[self.game.room].get(direction)
        if direction not in DIRECTIONS or way is None:
            raise _Refused("You can't go that way.")
        room, door = way
        if door and door not in self.game.opened:
            raise _Refused(f"You have to open the {door} first.")
        self.game.room = room
        return f"You go {direction}."

    def _openable(self, name: str) -> str:
        name = _CANONICAL.get(name, name)
        if name in self.game.doors():
            return name
        if name not in self.game.furniture[self.game.room] and not self.game.within_reach(name):
            raise _Refused(_UNSEEN)
        if name not in FURNITURE or not FURNITURE[name].container:
            raise _Refused("That's not something you can open or close.")
        return name

    def _open(self, name: str) -> str:
        name = self._openable(name)
        if name in self.game.opened:
            raise _Refused("That's already open.")
        self.game.opened.add(name)
        inside = self.game.content.get(name)
        return f"You open the {name}, revealing {self.game.listed(inside)}." if inside else f"You open the {name}."

    def _close(self, name: str) -> str:
        name = self._openable(name)
        if name not in self.game.opened:
            raise _Refused("That's already closed.")
        self.game.opened.discard(name)
        return f"You close the {name}."

    def _take(self, rest: str) -> str:
        name, _, place = rest.partition(" from ")
        if _CANONICAL.get(name) in self.game.furniture[self.game.room]:
            raise _Refused("That's fixed in place.")
        if not self.game.within_reach(name):
            raise _Refused(_UNSEEN)
        at = self.game.where[name]
        if at == CARRIED:
            raise _Refused("You already have that.")
        on_floor = at.startswith(FLOOR)
        if place and place not in (at.lower(), FLOOR if on_floor else at):
            raise _Refused(_UNSEEN)
        self.game.move(name, CARRIED)
        if name in self.game.ingredients:
            self.game.reached.add(("take", name))
        return f"You pick up the {name} from the floor." if on_floor else f"You take the {name} from the {at}."

    def _in_hand(self, name: str) -> str:
        """The name of a carried thing; refused where it is not carried."""
        if not is_thing(_CANONICAL.get(name, name)) or not self.game.within_reach(name):
            raise _Refused(_UNSEEN)
        if self.game.where[name] != CARRIED:
            raise _Refused(f"You need to take the {name} first.")
        return name

    def _drop(self, name: str) -> str:
        self.game.move(self._in_hand(name), f"{FLOOR} {self.game.room}")
        return f"You drop the {name} on the floor."

    def _store(self, preposition: str, rest: str) -> str:
        name, _, place = rest.partition(preposition)
        place = _CANONICAL.get(place, place)
        name = self._in_hand(name)
        if place not in self.game.furniture[self.game.room]:
            raise _Refused(_UNSEEN)
        if not FURNITURE[place].holds or FURNITURE[place].container != (preposition == " into "):
            raise _Refused(f"You can't put things{preposition}the {place}.")
        if FURNITURE[place].container and place not in self.game.opened:
            raise _Refused(f"The {place} is closed.")
        self.game.move(name, place)
        return f"You put the {name}{preposition}the {place}."

    def _cut(self, verb: str, rest: str) -> str:
        game = self.game
        name, _, tool = rest.partition(" with ")
        if not game.within_reach(name):
            raise _Refused(_UNSEEN)
        food = game.food(name)
        if food is None or not food.cuttable or name == "meal":
            raise _Refused("Can only cut cuttable food.")
        if game.cutting[name] != UNCUT:
            raise _Refused(f"The {name} is already {game.cutting[name]}.")
        if (tool or "knife") != "knife":
            raise _Refused("Cutting something requires a knife.")
        self._in_hand("knife")
        self._in_hand(name)
        game.cutting[name] = CUTS[verb]
        self._judge(name, game.cutting[name], 2)
        return f"You {verb} the {name}."

    def _cook(self, rest: str) -> str:
        game = self.game
        name, _, heat = rest.partition(" with ")
        heat = _CANONICAL.get(heat, heat)
        if not game.within_reach(name) or (heat not in game.furniture[game.room] and not game.within_reach(heat)):
            raise _Refused(_UNSEEN)
        food = game.food(name)
        if food is None or not food.cookable:
            raise _Refused("Can only cook food that can be cooked.")
        if heat not in HEAT:
            raise _Refused("Cooking requires a source of heat.")
        self._in_hand(name)
        if game.cooking[name] == BURNED:
            raise _Refused(f"The {name} is burned already.")
        if game.cooking[name] in COOKED:
            game.cooking[name] = BURNED
            if name in game.ingredients or name == "meal":
                self._lost = BURNED_LABEL
            return f"You burned the {name}!"
        game.cooking[name] = HEAT[heat]
        self._judge(name, game.cooking[name], 1)
        return f"You {HEAT[heat]} the {name}."

    def _judge(self, name: str, done: str, column: int) -> None:
        """Score a cut (column 2 of the recipe) or a cooking (column 1) of an ingredient, or lose the game by it."""
        for ingredient in self.game.recipe:
            if ingredient[0] == name:
                if ingredient[column] == done:
                    self.game.reached.add((done, name))
                else:
                    self._lost = WRONG_LABEL

    def _prepare(self, rest: str) -> str:
        game = self.game
        if rest != "meal":
            raise _Refused("That's not a command I recognise.")
        if game.room != "kitchen":
            raise _Refused("Can only prepare meal in the kitchen.")
        for name, cooking, cutting in game.recipe:
            if game.where[name] != CARRIED:
                raise _Refused("You still miss something.")
            if game.cooking[name] != cooking:
                raise _Refused("Something still needs to be cooked.")
            if game.cutting[name] != cutting:
                raise _Refused("Something still needs to be cut.")
        for name in game.ingredients:
            game.move(name, GONE)
        game.move("meal", CARRIED)
        game.reached.add(("prepare", "meal"))
        return "Adding the meal to your inventory."

    def _eat(self, name: str) -> str:
        game = self.game
        if game.food(name) is None and is_thing(name) and game.within_reach(name):
            raise _Refused("That's plainly inedible.")
        self._in_hand(name)
        food = game.food(name)
        if food is not None and food.needs_cooking and game.cooking[name] == RAW:
            raise _Refused(f"You should cook the {name} first.")
        if not game.edible(name):
            raise _Refused("That's plainly inedible.")
        game.move(name, GONE)
        if name == "meal":
            self._won = True
            game.reached.add(("eat", "meal"))
        elif name in game.ingredients:
            self._lost = WRONG_LABEL
        return f"You eat the {name}. Not bad."

    def _examine(self, name: str) -> str:
        game = self.game
        name = _CANONICAL.get(name, name)
        if name in game.furniture[game.room]:
            use = {"stove": "frying", "oven": "roasting", "BBQ": "grilling"}.get(name)
            return f"You look at the {name}. " + (f"Useful for {use} things." if use else "Nothing special.")
        if name in game.doors():
            return f"You look at the {name}. It is {'open' if name in game.opened else 'closed'}."
        if not game.within_reach(name):
            raise _Refused(_UNSEEN)
        if name == "cookbook":
            return game.cookbook()
        return f"You look at {game.named(name)}."
