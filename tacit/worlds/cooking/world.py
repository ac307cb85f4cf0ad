"""TextWorld-Cooking in plain Python (ReuseRL §D): read the cookbook, gather, cut, cook, prepare the meal, eat it.

Commands, answers and rules follow the cooking game of the TextWorld package; the score is the share of its points. Two
differences: descriptions are plainer, and cooking an ingredient that the recipe wants raw is wrong_processing even if the cook
gate is off; in TextWorld it burns. An observation never has the recipe.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from random import Random
from typing import Any

from tacit.core.errors import TacitError
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import World

RAW, BURNED, UNCUT = "raw", "burned", "uncut"
HEAT = {"stove": "fried", "oven": "roasted", "BBQ": "grilled"}  # source of heat -> state of the cooked food
COOKED = tuple(HEAT.values())
CUTS = {"chop": "chopped", "slice": "sliced", "dice": "diced"}
COOKING_VERBS = {"fried": "fry", "roasted": "roast", "grilled": "grill"}
CUTTING_VERBS = {done: verb for verb, done in CUTS.items()}
HEAT_FOR = {COOKING_VERBS[done]: heat for heat, done in HEAT.items()}  # `fry` -> stove
DIRECTIONS = {"north": "south", "south": "north", "east": "west", "west": "east"}  # direction -> its opposite


@dataclass(frozen=True)
class Food:
    name: str
    places: tuple[str, ...]  # furniture it may start in or on
    cookable: bool = True
    needs_cooking: bool = False  # inedible while raw: no recipe wants it raw
    cuttable: bool = True
    edible: bool = True  # after cooking, if it needs cooking
    uncountable: bool = False  # `some salt` instead of `a carrot`
    drinkable: bool = False


_TABLES = tomllib.loads(Path(__file__).with_name("house.toml").read_text(encoding="utf-8"))
FOODS = {
    name: Food(name, tuple(row["places"].split(", ")), **{key: row[key] for key in row if key not in ("names", "places")})
    for row in _TABLES["foods"]
    for name in row["names"].split(", ")
}
MEAL = Food("meal", ())
FURNITURE: Mapping[str, Sequence[str]] = {room: table["furniture"] for room, table in _TABLES["rooms"].items()}
NEIGHBOURS: Mapping[str, Sequence[str]] = {room: table["beside"] for room, table in _TABLES["rooms"].items()}
DOORS = {frozenset(row["between"]): row["names"] for row in _TABLES["doors"]}
CONTAINERS, HOLDS_NOTHING = ("fridge", "oven"), ("BBQ",)
"""furniture that can be closed and holds items inside; furniture without items. All other furniture has items on top."""
FLOOR, CARRIED, GONE = "floor", "carried", "gone"
MAX_STEPS = 40
BURNED_LABEL, WRONG_LABEL = "burned", "wrong_processing"
_ENTRANCES = (
    "You are in the {room}.",
    "You've entered a {room}.",
    "You arrive in a {room}. An ordinary one.",
    "Well, here we are in the {room}.",
    "You find yourself in a {room}.",
)
_COOKBOOK = """You open the cookbook and start reading:
Recipe #1
Gather all following ingredients and follow the directions to prepare this tasty meal.
Ingredients:
{}
Directions:
{}  prepare meal"""


_WHOLE = {"examine cookbook": "READ_RECIPE", "prepare meal": "PREPARE_MEAL", "eat meal": "EAT_MEAL"}
_VERBS = {
    **dict.fromkeys(("look", "inventory", "eat", "drink", "examine"), "INSPECT"),
    "go": "EXPLORE",
    **dict.fromkeys(("open", "close"), "OPEN"),
    "take": "TAKE",
    **dict.fromkeys(("drop", "put", "insert"), "DELIVER"),
    **dict.fromkeys(("chop", "slice", "dice"), "CUT"),
    "cook": "COOK",
}


def skill(action: str) -> str | None:
    """The atomic skill of a command, by its verb (ReuseRL Table 3, §E.2); None for an unknown verb."""
    words = action.lower().split()
    return _WHOLE.get(" ".join(words)) or (_VERBS.get(words[0]) if words else None)


def with_article(words: str) -> str:
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


class Game:
    """The state of one game and its description. A place is a piece of furniture, `carried`, `floor <room>` or `gone`."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        house = data["house"]
        self.room: str = data["start"]
        self.exits: dict[str, dict[str, tuple[str, str]]] = {
            room: {way: (to, door) for way, (to, door) in spec["exits"].items()} for room, spec in house.items()
        }
        self.furniture: dict[str, tuple[str, ...]] = {room: tuple(spec["furniture"]) for room, spec in house.items()}
        self.recipe: list[tuple[str, str, str]] = [(food, cook, cut) for food, cook, cut in data["recipe"]]
        self.ingredients = [food for food, _, _ in self.recipe]
        self.opened: set[str] = set()  # containers and doors
        self.where: dict[str, str] = {"meal": GONE}
        self.carried: list[str] = []
        self.content: dict[str, list[str]] = {CARRIED: self.carried}
        self.cooking: dict[str, str] = {"meal": RAW}
        self.cutting: dict[str, str] = {"meal": UNCUT}
        for name, place, cooking, cutting in data["items"]:
            self.where[name] = place
            self.content.setdefault(place, []).append(name)
            if cooking:
                self.cooking[name], self.cutting[name] = cooking, cutting
        self._entrance = {
            room: _ENTRANCES[(data["flavour"] + i) % len(_ENTRANCES)].format(room=room) for i, room in enumerate(house)
        }
        self.reached: set[tuple[str, str]] = set()  # scored subgoals: (verb, food)
        cuts = sum(self.cutting[food] != cutting for food, _, cutting in self.recipe)
        self.max_points = 2 + len(self.recipe) * (1 + bool(data["cook"])) + cuts

    @property
    def here(self) -> tuple[str, ...]:
        return self.furniture[self.room]

    def doors(self) -> list[str]:
        return [door for _, door in self.exits[self.room].values() if door]

    def food(self, name: str) -> Food | None:
        return MEAL if name == "meal" else FOODS.get(name)

    def edible(self, name: str) -> bool:
        food = self.food(name)
        if food is None or not food.edible or self.cooking[name] == BURNED:
            return False
        return not (food.needs_cooking and self.cooking[name] == RAW)

    def move(self, name: str, place: str) -> None:
        old = self.content.get(self.where[name], [])
        if name in old:
            old.remove(name)
        self.where[name] = place
        if place != GONE:
            self.content.setdefault(place, []).append(name)

    def stores(self) -> list[str]:
        """The furniture in this room whose items can be reached."""
        open_here = (name for name in self.here if name not in CONTAINERS or name in self.opened)
        return [name for name in open_here if name not in HOLDS_NOTHING]

    def within_reach(self, name: str) -> bool:
        return self.where.get(name, GONE) in (CARRIED, f"{FLOOR} {self.room}", *self.stores())

    def describe_item(self, name: str) -> str:
        """`a sliced fried pork chop`"""
        return _describe_item(name, self.cooking.get(name, RAW), self.cutting.get(name, UNCUT))

    def list_items(self, names: Sequence[str]) -> str:
        """`a knife, an egg and a lettuce`"""
        *first, last = [self.describe_item(name) for name in names]
        return f"{', '.join(first)} and {last}" if first else last

    def describe(self) -> str:
        lines = [f"-= {self.room.capitalize()} =-", self._entrance[self.room]]
        for name in self.here:
            container = name in CONTAINERS
            if container and name not in self.opened:
                lines.append(f"You see a closed {name}.")
                continue
            lines.append(f"You see {f'an open {name}' if container else with_article(name)}.")
            if inside := self.content.get(name):
                lines[-1] += f" {'In' if container else 'On'} the {name} you see {self.list_items(inside)}."
            elif name not in HOLDS_NOTHING:
                lines[-1] += f" The {name} is empty."
        if on_floor := self.content.get(f"{FLOOR} {self.room}"):
            lines.append(f"On the floor you see {self.list_items(on_floor)}.")
        for way, (_, door) in self.exits[self.room].items():
            state = "an exit" if not door else f"an open {door}" if door in self.opened else f"a closed {door}"
            lines.append(f"There is {state} to the {way}.")
        lines.append(f"You are carrying: {self.list_items(self.carried)}." if self.carried else "You are carrying nothing.")
        return "\n".join(lines)

    def cookbook(self) -> str:
        directions = ""
        for food, cooking, cutting in self.recipe:
            directions += f"  {CUTTING_VERBS[cutting]} the {food}\n" if cutting != UNCUT else ""
            directions += f"  {COOKING_VERBS[cooking]} the {food}\n" if cooking != RAW else ""
        return _COOKBOOK.format("\n".join(f"  {food}" for food in self.ingredients), directions)

    def admissible(self) -> tuple[str, ...]:
        """All admissible commands, sorted, as TextWorld lists them: `prepare meal` once the recipe's first ingredient is
        carried, although it may still be refused, and no `examine` for carried items, although it works."""
        commands = ["inventory", "look", *(f"examine {name}" for name in self.here)]
        commands += [f"go {way}" for way, (_, door) in self.exits[self.room].items() if not door or door in self.opened]
        for name in (*(name for name in self.here if name in CONTAINERS), *self.doors()):
            commands.append(f"close {name}" if name in self.opened else f"open {name}")
        stores = self.stores()
        for place in (*stores, f"{FLOOR} {self.room}"):
            origin = f" from {place}" if place in stores else ""
            for item in self.content.get(place, ()):
                commands += (f"examine {item}", f"take {item}{origin}")
        for item in self.carried:
            commands.append(f"drop {item}")
            commands += [f"insert {item} into {s}" if s in CONTAINERS else f"put {item} on {s}" for s in stores]
            food = self.food(item)
            if food is None:
                continue
            if self.edible(item):
                commands.append(f"eat {item}")
            if food.drinkable:
                commands.append(f"drink {item}")
            if food.cookable and self.cooking[item] != BURNED:
                commands += [f"cook {item} with {heat}" for heat in self.here if heat in HEAT]
            if food.cuttable and item != "meal" and self.cutting[item] == UNCUT and "knife" in self.carried:
                commands += [f"{verb} {item} with knife" for verb in CUTS]
        if self.room == "kitchen" and self.where[self.ingredients[0]] == CARRIED:
            commands.append("prepare meal")
        return tuple(sorted(commands))


@lru_cache(maxsize=4096)
def _describe_item(name: str, cooking: str, cutting: str) -> str:
    words = [cutting] if cutting != UNCUT else []
    food = FOODS.get(name)
    if cooking != RAW or (food is not None and food.needs_cooking):
        words.append(cooking)
    described = " ".join([*words, name])
    return f"some {described}" if food is not None and food.uncountable else with_article(described)


_UNSEEN, _UNKNOWN, _INEDIBLE = "You can't see any such thing.", "That's not a command I recognise.", "That's plainly inedible."
_CANONICAL = {name.lower(): name for names in FURNITURE.values() for name in names}


class _Refused(Exception):
    """The command changes nothing; the message is the answer."""


def _refuse_if(wrong: object, why: str) -> None:
    if wrong:
        raise _Refused(why)


class CookingWorld(World):
    def __init__(self) -> None:
        self.game: Game | None = None
        self._verbs: dict[str, Callable[[Game, str], str]] = {
            "go": self._go,
            "open": partial(self._open, opens=True),
            "close": partial(self._open, opens=False),
            "take": self._take,
            "drop": self._drop,
            "put": partial(self._store, preposition=" on "),
            "insert": partial(self._store, preposition=" into "),
            "cook": self._cook,
            "prepare": self._prepare,
            "eat": partial(self._consume, verb="eat"),
            "drink": partial(self._consume, verb="drink"),
            "examine": self._examine,
            **{verb: partial(self._cut, verb=verb) for verb in CUTS},
        }

    def reset(self, task: Task) -> Observation:
        try:
            self.game = game = Game(task.data)
        except (KeyError, ValueError, TypeError) as error:
            raise TacitError(f"task {task.id!r} is not a cooking task: {error!r}. Create tasks with `tasks`.") from error
        self._lost, self._won, self._score = "", False, 0.0
        self._seen = Observation(game.describe(), game.admissible())  # the current room, cached while commands change nothing
        return self._seen

    def step(self, action: str) -> Transition:
        if self.game is None:
            raise TacitError("no episode has been started: call reset(task) first.")
        game, effective = self.game, True
        verb, _, rest = " ".join(action.lower().split()).partition(" ")
        try:
            if verb in ("look", "inventory") and not rest:
                answer = "You look around." if verb == "look" else "You check what you are carrying."
            else:
                _refuse_if(verb not in self._verbs or not rest, _UNKNOWN)
                answer = self._verbs[verb](game, rest)
        except _Refused as refusal:
            answer, effective = str(refusal), False
        if effective and verb not in ("look", "inventory", "examine"):
            self._seen = Observation(game.describe(), game.admissible())
        score = len(game.reached) / game.max_points
        reward, self._score = score - self._score, score
        if self._lost or self._won:
            answer += "\n*** The End ***" if self._won else "\n*** You lost! ***"
            seen = Observation(f"{answer}\n{self._seen.text}")
            return Transition(seen, True, self._won, score, effective, self._lost, reward)
        observation = Observation(f"{answer}\n{self._seen.text}", self._seen.actions)
        return Transition(observation, score=score, effective=effective, reward=reward)

    def _go(self, game: Game, direction: str) -> str:
        way = game.exits[game.room].get(direction)
        if way is None:
            raise _Refused("You can't go that way.")
        room, door = way
        _refuse_if(door and door not in game.opened, f"You have to open the {door} first.")
        game.room = room
        return f"You go {direction}."

    def _open(self, game: Game, name: str, opens: bool) -> str:
        name = _CANONICAL.get(name, name)
        if name not in game.doors():
            _refuse_if(name not in game.here and not game.within_reach(name), _UNSEEN)
            _refuse_if(name not in CONTAINERS, "That's not something you can open or close.")
        _refuse_if((name in game.opened) == opens, f"That's already {'open' if opens else 'closed'}.")
        game.opened ^= {name}
        inside = game.content.get(name) if opens else None
        return f"You {'open' if opens else 'close'} the {name}{f', revealing {game.list_items(inside)}' if inside else ''}."

    def _take(self, game: Game, rest: str) -> str:
        name, _, place = rest.partition(" from ")
        _refuse_if(_CANONICAL.get(name) in game.here, "That's fixed in place.")
        _refuse_if(not game.within_reach(name), _UNSEEN)
        at = game.where[name]
        _refuse_if(at == CARRIED, "You already have that.")
        on_floor = at.startswith(FLOOR)
        _refuse_if(place and place not in (at.lower(), FLOOR if on_floor else at), _UNSEEN)
        game.move(name, CARRIED)
        if name in game.ingredients:
            game.reached.add(("take", name))
        return f"You pick up the {name} from the floor." if on_floor else f"You take the {name} from the {at}."

    def _check_carried(self, game: Game, name: str) -> None:
        known = name in FOODS or name in ("cookbook", "knife", "meal")
        _refuse_if(not known or not game.within_reach(name), _UNSEEN)
        _refuse_if(game.where[name] != CARRIED, f"You need to take the {name} first.")

    def _drop(self, game: Game, name: str) -> str:
        self._check_carried(game, name)
        game.move(name, f"{FLOOR} {game.room}")
        return f"You drop the {name} on the floor."

    def _store(self, game: Game, rest: str, preposition: str) -> str:
        name, _, place = rest.partition(preposition)
        place = _CANONICAL.get(place, place)
        self._check_carried(game, name)
        _refuse_if(place not in game.here, _UNSEEN)
        wrong = place in HOLDS_NOTHING or (place in CONTAINERS) != (preposition == " into ")
        _refuse_if(wrong, f"You can't put things{preposition}the {place}.")
        _refuse_if(place in CONTAINERS and place not in game.opened, f"The {place} is closed.")
        game.move(name, place)
        return f"You put the {name}{preposition}the {place}."

    def _cut(self, game: Game, rest: str, verb: str) -> str:
        name, _, tool = rest.partition(" with ")
        _refuse_if(not game.within_reach(name), _UNSEEN)
        food = game.food(name)
        _refuse_if(food is None or not food.cuttable or name == "meal", "Can only cut cuttable food.")
        _refuse_if(game.cutting[name] != UNCUT, f"The {name} is already {game.cutting[name]}.")
        _refuse_if((tool or "knife") != "knife", "Cutting something requires a knife.")
        self._check_carried(game, "knife")
        self._check_carried(game, name)
        game.cutting[name] = CUTS[verb]
        self._judge(game, name, CUTS[verb], 2)
        return f"You {verb} the {name}."

    def _cook(self, game: Game, rest: str) -> str:
        name, _, heat = rest.partition(" with ")
        heat = _CANONICAL.get(heat, heat)
        _refuse_if(not game.within_reach(name) or (heat not in game.here and not game.within_reach(heat)), _UNSEEN)
        food = game.food(name)
        _refuse_if(food is None or not food.cookable, "Can only cook food that can be cooked.")
        _refuse_if(heat not in HEAT, "Cooking requires a source of heat.")
        self._check_carried(game, name)
        _refuse_if(game.cooking[name] == BURNED, f"The {name} is burned already.")
        if game.cooking[name] in COOKED:
            game.cooking[name] = BURNED
            if name in game.ingredients or name == "meal":
                self._lost = BURNED_LABEL
            return f"You burned the {name}!"
        game.cooking[name] = HEAT[heat]
        self._judge(game, name, HEAT[heat], 1)
        return f"You {HEAT[heat]} the {name}."

    def _judge(self, game: Game, name: str, done: str, column: int) -> None:
        """Score the cutting (recipe column 2) or cooking (column 1) of an ingredient, or lose the game if it is wrong."""
        for ingredient in game.recipe:
            if ingredient[0] == name and ingredient[column] == done:
                game.reached.add((done, name))
            elif ingredient[0] == name:
                self._lost = WRONG_LABEL

    def _prepare(self, game: Game, rest: str) -> str:
        _refuse_if(rest != "meal", _UNKNOWN)
        _refuse_if(game.room != "kitchen", "Can only prepare meal in the kitchen.")
        for name, cooking, cutting in game.recipe:
            _refuse_if(game.where[name] != CARRIED, "You still miss something.")
            _refuse_if(game.cooking[name] != cooking, "Something still needs to be cooked.")
            _refuse_if(game.cutting[name] != cutting, "Something still needs to be cut.")
        for name in game.ingredients:
            game.move(name, GONE)
        game.move("meal", CARRIED)
        game.reached.add(("prepare", "meal"))
        return "Adding the meal to your inventory."

    def _consume(self, game: Game, name: str, verb: str) -> str:
        food = game.food(name)
        _refuse_if(verb == "eat" and name in ("cookbook", "knife") and game.within_reach(name), _INEDIBLE)
        self._check_carried(game, name)
        if verb == "eat":
            raw = food is not None and food.needs_cooking and game.cooking[name] == RAW
            _refuse_if(raw, f"You should cook the {name} first.")
            _refuse_if(not game.edible(name), _INEDIBLE)
        _refuse_if(verb == "drink" and (food is None or not food.drinkable), "You can't drink that.")
        game.move(name, GONE)
        if name == "meal":
            self._won = True
            game.reached.add(("eat", "meal"))
        elif name in game.ingredients:
            self._lost = WRONG_LABEL
        return f"You {verb} the {name}. Not bad."

    def _examine(self, game: Game, name: str) -> str:
        name = _CANONICAL.get(name, name)
        if name in game.here:
            use = {"stove": "frying", "oven": "roasting", "BBQ": "grilling"}.get(name)
            return f"You look at the {name}. " + (f"Useful for {use} things." if use else "Nothing special.")
        if name in game.doors():
            return f"You look at the {name}. It is {'open' if name in game.opened else 'closed'}."
        _refuse_if(not game.within_reach(name), _UNSEEN)
        return game.cookbook() if name == "cookbook" else f"You look at {game.describe_item(name)}."


_OFFSETS = {"north": (0, 1), "south": (0, -1), "east": (1, 0), "west": (-1, 0)}


def build_house(rng: Random, size: int) -> dict[str, Any]:
    """`{room: {"exits": {direction: [room, door or ""]}, "furniture": [...]}}`, one kitchen or six rooms.

    The six are kitchen, pantry, livingroom, corridor and two of bedroom, bathroom and backyard (where the BBQ is).
    Each room is placed on a grid next to one of its neighbors; other neighbors that touch are joined with probability 1/2.
    """
    rooms = ["kitchen"]
    if size == 6:
        rooms += ["pantry", "livingroom", "corridor", *rng.sample(("bedroom", "bathroom", "backyard"), 2)]
    places = None
    while places is None:
        places = _place(rng, rooms)
    exits: dict[str, dict[str, list[str]]] = {room: {} for room in rooms}
    for room, other, direction in _joins(rng, places):
        door = rng.choice(DOORS.get(frozenset((room, other)), ("",)))
        exits[room][direction] = [other, door]
        exits[other][DIRECTIONS[direction]] = [room, door]
    house: dict[str, Any] = {}
    for room in rooms:
        furniture = list(FURNITURE[room])
        rng.shuffle(furniture)
        house[room] = {"exits": dict(sorted(exits[room].items())), "furniture": furniture}
    return house


def _place(rng: Random, rooms: list[str]) -> dict[str, tuple[int, int]] | None:
    """A grid cell for every room, each next to one of its neighbors; None if the random walk got stuck."""
    places, waiting = {"kitchen": (0, 0)}, rooms[1:]
    while waiting:
        free = [
            (room, cell)
            for room in waiting
            for beside in NEIGHBOURS[room]
            if beside in places
            for cell in _cells_around(places[beside])
            if cell not in places.values()
        ]
        if not free:
            return None
        room, cell = rng.choice(free)
        places[room] = cell
        waiting.remove(room)
    return places


def _joins(rng: Random, places: dict[str, tuple[int, int]]) -> list[tuple[str, str, str]]:
    """(room, other, direction): a spanning tree of adjacent neighbors, and half of the other adjacent pairs."""
    touching = [
        (room, other, direction)
        for room in places
        for other in NEIGHBOURS[room]
        if other in places and room < other
        for direction, cell in zip(_OFFSETS, _cells_around(places[room]), strict=True)
        if cell == places[other]
    ]
    rng.shuffle(touching)
    component = {room: room for room in places}
    joins = []
    for room, other, direction in touching:
        old, new = component[other], component[room]
        if old != new or rng.random() < 0.5:
            component = {r: new if c == old else c for r, c in component.items()}
            joins.append((room, other, direction))
    return joins


def _cells_around(cell: tuple[int, int]) -> list[tuple[int, int]]:
    return [(cell[0] + dx, cell[1] + dy) for dx, dy in _OFFSETS.values()]
