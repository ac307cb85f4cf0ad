"""Parsing of observations, wordings, tracker, experts, alphabet, handbook and hindsight.

The tracker has the recipe once read, its remaining steps, and places of things. Amounts follow Table 6 of the constant-context
paper; errors are positive. Each subgoal (recipe read, ingredient taken, direction done, meal prepared, meal eaten) counts once.
The state block has what an agent with perfect memory would know, never the action to take. The form `text` uses only
observations and actions; `no_places` omits the places left to search.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from tacit.core.errors import TacitError
from tacit.core.hindsight import RuleTracker, critical_steps, most_repeated, stop_label, tracker_states
from tacit.core.types import Observation, Skills, Task, Trajectory, Transition
from tacit.core.world import Alphabet, Brief, ByReading, Numbered, Tracker
from tacit.worlds.cooking.world import (
    BURNED,
    BURNED_LABEL,
    COOKED,
    CUTS,
    DIRECTIONS,
    HEAT,
    HEAT_FOR,
    RAW,
    UNCUT,
    WRONG_LABEL,
    skill,
)

_ROOM = re.compile(r"^-= (\w+) =-$", re.M)
_ANY_ROOM = re.compile(r"^-= (.+) =-$", re.M)  # TextWorld's own games may name a room in several words
_FURNITURE = re.compile(r"You see an? (?:(open|closed) )?([\w ]+?)\.(?: (?:In|On) the [\w ]+ you see (.+)\.)?(?: The .+)?")
_EXIT = re.compile(r"There is an? (?:(open|closed) )?([\w -]+) to the (\w+)\.")
_LISTED = re.compile(r"(On the floor you see|You are carrying:) (.+)\.")
_WENT = re.compile(r"You go (\w+)\.")
_DONE = re.compile(
    r"(You (take|pick up|put|drop|open|close|go|look|check|chop|slice|dice|fried|roasted|grilled|eat|drink|burned)"
    r"|Adding the meal)\b"
)


class Item(NamedTuple):
    name: str
    cooking: str = RAW
    cutting: str = UNCUT

    @property
    def text(self) -> str:
        return " ".join([*(word for word in (self.cutting, self.cooking) if word not in (UNCUT, RAW)), self.name])


class Direction(NamedTuple):
    verb: str
    food: str

    @property
    def text(self) -> str:
        return f"{self.verb} {self.food}"

    @property
    def cuts(self) -> bool:
        return self.verb in CUTS

    @property
    def heat(self) -> str:
        """the source of heat that a cooking direction needs"""
        return HEAT_FOR[self.verb]

    def done_to(self, item: Item) -> bool:
        return item.cutting == CUTS[self.verb] if self.cuts else item.cooking == HEAT[self.heat]


class Recipe(NamedTuple):
    ingredients: tuple[str, ...]
    directions: tuple[Direction, ...]

    @property
    def text(self) -> str:
        plain = [food for food in self.ingredients if all(food != d.food for d in self.directions)]
        return ", ".join([*(d.text for d in self.directions), *plain])

    def pending(self, has: Mapping[str, Item]) -> list[Direction]:
        """The directions that carried items still need."""
        return [d for d in self.directions if d.food in has and not d.done_to(has[d.food])]


@dataclass
class Scene:
    """An observation: the answer, the room and the inventory."""

    answer: str  # to the last command
    room: str
    places: dict[str, list[Item]] = field(default_factory=dict)  # furniture (or `floor`) -> visible items
    closed: set[str] = field(default_factory=set)  # closed containers and doors
    opened: set[str] = field(default_factory=set)
    exits: dict[str, str] = field(default_factory=dict)  # direction -> door, empty without one
    carried: dict[str, Item] = field(default_factory=dict)

    def place_of(self, name: str) -> str | None:
        return next((place for place, items in self.places.items() if any(i.name == name for i in items)), None)

    @property
    def closed_containers(self) -> list[str]:
        """The oven comes last: it rarely holds food."""
        return sorted((name for name in self.closed if name in self.places), key=lambda name: (name == "oven", name))

    @property
    def refused(self) -> bool:
        """whether the last command changed nothing"""
        return bool(self.answer) and not _DONE.match(self.answer)


def read_scene(text: str) -> Scene:
    """Parse an observation of the native game. Raises ValueError for any other text."""
    header = _ROOM.search(text)
    if header is None:
        raise ValueError(f"not a cooking observation: {text!r}")
    scene = Scene(text[: header.start()].strip(), header[1].lower())
    for line in text[header.end() :].strip().split("\n")[1:]:
        state, name = None, ""
        if match := _EXIT.fullmatch(line):
            state, name, way = match.groups()
            scene.exits[way] = "" if name == "exit" else name
        elif match := _FURNITURE.fullmatch(line):
            state, name, items = match.groups()
            scene.places[name] = _items(items)
        elif match := _LISTED.fullmatch(line):
            if match[1] == "You are carrying:":
                scene.carried = {item.name: item for item in _items(match[2])}
            else:
                scene.places["floor"] = _items(match[2])
        if state:
            (scene.closed if state == "closed" else scene.opened).add(name)
    return scene


def place(action: str, observation: Observation) -> str:
    """The visible room, at the start of an episode or after `go`; else empty. Reads our format and TextWorld's."""
    header = _ANY_ROOM.search(observation.text) if action.split()[:1] in ([], ["go"]) else None
    return header[1].lower() if header else ""


def read_recipe(text: str) -> Recipe | None:
    """The recipe if the text shows the cookbook (our format or TextWorld's), else None."""
    start, middle = text.find("Ingredients:"), text.find("Directions:")
    if start < 0 or middle < start:
        return None
    ingredients = tuple(line.strip() for line in text[start:middle].split("\n")[1:] if line.strip())
    steps = []
    for line in text[middle:].split("\n")[1:]:
        verb, the, food = line.strip().partition(" the ")
        if not the:
            break
        steps.append(Direction(verb, food))
    return Recipe(ingredients, tuple(steps))


def _items(listed: str | None) -> list[Item]:
    """`a knife, some salt and a sliced raw egg` -> three items"""
    items = []
    for words in re.split(r", | and ", listed) if listed else ():
        rest = words.split()[1:]
        cooking, cutting = RAW, UNCUT
        while rest and rest[0] in (RAW, BURNED, *COOKED, *CUTS.values()):
            word = rest.pop(0)
            cooking, cutting = (cooking, word) if word in CUTS.values() else (word, cutting)
        items.append(Item(" ".join(rest), cooking, cutting))
    return items


COMMANDS = """You are playing a cooking game in text. These commands exist:
look, inventory, examine <thing>, go <direction>, open <thing>, close <thing>
take <thing> from <place>, drop <thing>, put <thing> on <place>, insert <thing> into <container>
chop <food> with knife, slice <food> with knife, dice <food> with knife
cook <food> with stove (fries), with oven (roasts), with BBQ (grills)
prepare meal (in the kitchen, once every ingredient is as the recipe wants it), eat meal
A wrong cut or a wrong way of cooking loses the game. Food that is cooked already burns if it is cooked again."""


class FullWording(Numbered):
    version = "2"  # 1 listed other commands: all ingredients for `prepare meal`, `examine` of what is carried, no `drink`
    rules, word = COMMANDS, "command"


class TerseWording(Brief):
    """`kitchen | fridge? table: knife | north south? | has sliced carrot`: `?` means closed, `!` a refused command.

    The turn that reads the recipe shows it as `recipe: slice carrot, fry carrot`. Past turns keep only the recipe, the refusal
    mark and the action.
    """

    version = "2"

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{_answer(read_scene(observation.text))}: {action}"

    def brief(self, observation: Observation) -> str:
        scene, things = read_scene(observation.text), []
        for place, items in scene.places.items():
            listed = ", ".join(item.text for item in items)
            things.append(f"{place}?" if place in scene.closed else f"{place}: {listed}" if listed else place)
        ways = [way + (f" {door}?" if door in scene.closed else "") for way, door in scene.exits.items()]
        has = [item.text for item in scene.carried.values()]
        sections = (_answer(scene), scene.room, "; ".join(things), "; ".join(ways), f"has {', '.join(has)}" if has else "")
        return " | ".join(section for section in sections if section)


def _answer(scene: Scene) -> str:
    recipe = read_recipe(scene.answer)
    return f"recipe: {recipe.text}" if recipe is not None else "!" if scene.refused else ""


@dataclass(frozen=True)
class Explored:
    """The explored part of the house: each room as last seen, and the known connections."""

    here: str = ""  # the current room
    scenes: Mapping[str, Scene] = field(default_factory=dict)  # each room as last seen, in order of the first visit
    ways: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # room -> direction -> room, for walked connections

    @property
    def scene(self) -> Scene:
        return self.scenes[self.here]

    def after(self, scene: Scene) -> Explored:
        """Add an observation. Connections follow from the world's answers, not from the agent's actions."""
        ways = {**self.ways, scene.room: self.ways.get(scene.room, {})}
        before, went = self.scenes.get(self.here), _WENT.match(scene.answer)
        if before is not None and went and went[1] in before.exits and self.here != scene.room:
            ways[self.here] = {**ways[self.here], went[1]: scene.room}
            ways[scene.room] = {**ways[scene.room], DIRECTIONS[went[1]]: self.here}
        return Explored(scene.room, {**self.scenes, scene.room: scene}, ways)

    def has(self, thing: str, room: str) -> bool:
        """Whether `thing` is the room's name, or was seen there as furniture or item."""
        seen = self.scenes[room]
        return thing in (room, *seen.places) or seen.place_of(thing) is not None

    def untried(self, room: str) -> list[str]:
        return [way for way in self.scenes[room].exits if way not in self.ways[room]]

    def unexplored(self, room: str) -> bool:
        return bool(self.scenes[room].closed_containers or self.untried(room))

    def first_step(self, reached: Callable[[str], bool]) -> str | None:
        """The direction to the nearest room that satisfies `reached`; empty if it is this one, None if there is none."""
        queue, visited = deque([(self.here, "")]), {self.here}
        while queue:
            room, first = queue.popleft()
            if reached(room):
                return first
            for way, other in self.ways[room].items():
                if other not in visited:
                    visited.add(other)
                    queue.append((other, first or way))
        return None


NOT_SEEN = "not seen"


@dataclass(frozen=True)
class CookingState:
    house: Explored
    opened: frozenset[str] = frozenset()
    recipe: Recipe | None = None
    achieved: frozenset[str] = frozenset()  # subgoals reached so far
    left: tuple[str, ...] = ()  # remaining steps of the recipe, given the inventory
    phase: str = "find_recipe"
    came_from: str = ""  # the previous room, if the last step led into a known room
    fault: str = ""


class CookingTracker(RuleTracker):
    version = "cooking-2"
    progress = {"subgoal": 1.0, "new_room": 0.02, "new_container": 0.05}
    errors = {"unreadable": 0.3, "lost": 0.3, "refused": 0.2, "back": 0.1, "reopened": 0.1}

    def start(self, task: Task, observation: Observation) -> CookingState:
        scene = read_scene(observation.text)
        return CookingState(Explored().after(scene), frozenset(scene.opened))

    def judge(self, transition: Transition, scene: Scene) -> tuple[bool, bool, bool]:
        """(refused, won, lost)"""
        return not transition.effective, transition.success, transition.done and not transition.success

    def update(self, state: CookingState, action: str, transition: Transition) -> CookingState:
        scene = read_scene(transition.observation.text)
        refused, won, lost = self.judge(transition, scene)
        if refused:
            return replace(state, fault="refused" if skill(action) else "unreadable")
        recipe, has = state.recipe or read_recipe(scene.answer), scene.carried
        prepared = "meal" in has or "prepare" in state.achieved
        achieved, left = set(state.achieved), tuple[str, ...]()
        if recipe is not None:
            pending = recipe.pending(has)
            undone = {*(d.text for d in recipe.directions if d.food not in has or d in pending)}
            undone |= {f"take {food}" for food in recipe.ingredients if food not in has}
            steps = [*(f"take {food}" for food in recipe.ingredients), *(d.text for d in recipe.directions)]
            left = tuple(step for step in steps if step in undone)
            achieved |= {"read", *(step for step in steps if step not in undone)}
        achieved |= {name for name, reached in (("prepare", prepared), ("eat", won)) if reached}
        gather = any(step.startswith("take ") for step in left)
        phase = "find_recipe" if recipe is None else "gather" if gather else "process" if left else "prepare"
        before = state.house.here
        target = action.lower().removeprefix("open ") if action.lower().startswith("open ") else ""
        back = scene.room != before and scene.room == state.came_from
        return CookingState(
            house=state.house.after(scene),
            opened=state.opened | scene.opened,
            recipe=recipe,
            achieved=frozenset(achieved),
            left=() if prepared else left,
            phase="done" if won else "eat" if prepared else phase,
            came_from=before if scene.room != before and scene.room in state.house.scenes else "",
            fault="lost" if lost else "back" if back else "reopened" if target and target in state.opened else "",
        )

    def render(self, state: CookingState) -> str:
        lines = [f"phase: {state.phase}", f"rooms visited: {', '.join(state.house.scenes)}"]
        if state.recipe is not None:
            lines.append(f"recipe: {state.recipe.text}")
            lines.append(f"still to do: {', '.join(state.left) or 'nothing'}")
        house, places = state.house, dict[str, str]()
        # The place of a thing: its furniture, `here` for furniture and rooms, or the way to the nearest room with it.
        for thing in _needs(state):
            way = house.first_step(partial(house.has, thing))
            there = f"way {way}" if way else house.scene.place_of(thing) or "here"
            places[thing] = NOT_SEEN if way is None else there
        if places:
            lines.append("needs: " + ", ".join(f"{thing} ({place})" for thing, place in places.items()))
        if NOT_SEEN in places.values():  # in the closed containers and behind the untried exits here, else the way to some
            way = house.first_step(house.unexplored)
            here = [*house.scene.closed_containers, *(f"way {way}" for way in house.untried(house.here))]
            lines.append(f"to search: {', '.join(here or ([f'way {way}'] if way else [])) or 'nothing'}")
        return "\n".join(lines)

    def count(self, before: CookingState, after: CookingState) -> Mapping[str, float]:
        return {
            "subgoal": len(after.achieved - before.achieved),
            "new_room": len(after.house.scenes) - len(before.house.scenes),
            "new_container": len(after.opened - before.opened),
        }


def _needs(state: CookingState) -> list[str]:
    """What the next steps need: items, then sources of heat, finally the kitchen."""
    has = state.house.scene.carried
    if state.phase in ("eat", "done"):
        return [] if "meal" in has or state.phase == "done" else ["meal"]
    if state.recipe is None:
        return [] if "cookbook" in has else ["cookbook"]
    missing = [food for food in state.recipe.ingredients if food not in has]
    pending = [d for d in state.recipe.directions if d.food in has and d.text in state.left]
    knife = ["knife"] if any(d.cuts for d in pending) and "knife" not in has else []
    heat = dict.fromkeys(d.heat for d in pending if not d.cuts)
    return [*missing, *knife, *heat] or ([] if pending else ["kitchen"])


class TextTracker(CookingTracker):
    """Detects refusals and the end of the game from the text."""

    version = "cooking-text-1"

    def judge(self, transition: Transition, scene: Scene) -> tuple[bool, bool, bool]:
        return scene.refused, "*** The End ***" in scene.answer, "*** You lost! ***" in scene.answer


class NoPlacesTracker(CookingTracker):
    version = "cooking-no_places-1"

    def render(self, state: CookingState) -> str:
        return "\n".join(line for line in super().render(state).split("\n") if not line.startswith("to search: "))


FORMS: Mapping[str, Tracker] = {"text": TextTracker(), "no_places": NoPlacesTracker()}  # in addition to `full`


# `Explorer` (an expert that acts on what it has read), `act_on_prompt` (the rule agent), alphabet, handbook and hindsight.
#
# In the native game, commands with an unknown verb have no skill. Real TextWorld games also accept the synonyms of Inform's
# grammar (`get`, `n`, `x cookbook`): a synonym has the skill of its verb, and any other command is INSPECT, so that synonyms do
# not shorten the skill sequence.


class Explorer(ByReading):
    """Finds the kitchen, reads the cookbook, gathers, cuts, cooks raw ingredients, prepares and eats.

    It walks to needed items it has seen, and searches for others in the nearest closed container or behind the nearest untried
    exit. It never cooks a cooked ingredient again, whatever the cookbook says.
    """

    def __init__(self, task: Task | None = None) -> None:
        self.house = Explored()
        self._recipe: Recipe | None = None
        self._prepared = False  # whether the meal exists; then nothing else is needed

    def act(self, observation: Observation) -> str:
        scene = read_scene(observation.text)
        self.house = self.house.after(scene)
        self._recipe = recipe = read_recipe(scene.answer) or self._recipe
        self._prepared = self._prepared or "meal" in scene.carried or scene.place_of("meal") is not None
        if "meal" in scene.carried:
            return "eat meal"
        if self._prepared:
            return _take("meal", scene.place_of("meal")) if scene.place_of("meal") else self._approach(scene, {"meal"})
        if recipe is None:
            has_cookbook = scene.place_of("cookbook") or "cookbook" in scene.carried
            return "examine cookbook" if has_cookbook else self._approach(scene, {"cookbook"})
        if work := self._work_here(scene, recipe):
            return work
        missing, pending = {food for food in recipe.ingredients if food not in scene.carried}, recipe.pending(scene.carried)
        if any(d.cuts for d in pending) and "knife" not in scene.carried:
            missing.add("knife")
        return self._approach(scene, missing or {d.heat for d in pending if not d.cuts} or {"stove"})

    def _work_here(self, scene: Scene, recipe: Recipe) -> str | None:
        """A useful action in this room; None if there is none."""
        for food in recipe.ingredients:
            if food not in scene.carried and scene.place_of(food):
                return _take(food, scene.place_of(food))
        pending = recipe.pending(scene.carried)
        for direction in pending:
            item = scene.carried[direction.food]
            if direction.cuts and item.cutting == UNCUT:
                if "knife" in scene.carried:
                    return f"{direction.verb} {item.name} with knife"
                if scene.place_of("knife"):
                    return _take("knife", scene.place_of("knife"))
            if not direction.cuts and item.cooking not in COOKED and direction.heat in scene.places:
                return f"cook {item.name} with {direction.heat}"
        if scene.room == "kitchen" and not pending and all(food in scene.carried for food in recipe.ingredients):
            return "prepare meal"
        return None

    def _approach(self, scene: Scene, wanted: set[str]) -> str:
        """One step towards a room where a wanted item was seen, else towards an unexplored one."""
        house = self.house
        way = house.first_step(lambda room: room != house.here and any(house.has(thing, room) for thing in wanted))
        way = way or house.first_step(house.unexplored)
        if way is None:
            return "look"
        closed = scene.closed_containers
        if not way and closed:
            return f"open {closed[0]}"
        way = way or house.untried(scene.room)[0]
        door = scene.exits[way]
        return f"open {door}" if door in scene.closed else f"go {way}"


def _take(name: str, place: str | None) -> str:
    return f"take {name}" if place == "floor" else f"take {name} from {place}"


# The rule agent: it executes the remaining steps listed in the state block, and has no memory.

_FIELD = re.compile(r"^(phase|still to do|needs|to search): (.*)$", re.M)
_NEED = re.compile(r"([^,()]+) \(([^()]*)\)")


def act_on_prompt(prompt: str) -> str:
    fields = dict(_FIELD.findall(prompt))
    if "phase" not in fields:
        raise TacitError("the rule agent of cooking needs a prompt with a state block: --state-block --history 1.")
    needs = {thing.strip(): place for thing, place in _NEED.findall(fields.get("needs", ""))}
    here = {thing: place for thing, place in needs.items() if place != NOT_SEEN and not place.startswith("way ")}
    if fields["phase"] == "find_recipe" and (not needs or "cookbook" in here):
        return "examine cookbook"
    if fields["phase"] == "eat" and not needs:
        return "eat meal"
    if fields["phase"] == "prepare" and "kitchen" in here:
        return "prepare meal"
    work = _work(fields.get("still to do", ""), needs, here)
    if work:
        return work
    way = next((place for place in needs.values() if place.startswith("way ")), "")
    goal = way or fields.get("to search", "").partition(", ")[0]
    if not goal.startswith("way "):  # a container
        return f"open {goal}" if goal and goal != "nothing" else "look"
    way = goal.removeprefix("way ")
    door = re.search(rf"\b{way} ([\w -]+)\?|a closed ([\w -]+) to the {way}\.", prompt)
    return f"open {door[1] or door[2]}" if door else f"go {way}"


def _work(left: str, needs: dict[str, str], here: dict[str, str]) -> str:
    """A useful action in this room; empty if there is none."""
    carried = []
    for step in left.split(", "):
        verb, _, food = step.partition(" ")
        if verb == "take" and food in here:
            return _take(food, here[food])
        if verb != "take" and food not in needs:
            carried.append((verb, food))
    for thing in ("knife", "meal"):
        if thing in here:
            return _take(thing, here[thing])
    for verb, food in carried:
        if verb in CUTS and "knife" not in needs:
            return f"{verb} {food} with knife"
        if HEAT_FOR.get(verb) in here:
            return f"cook {food} with {HEAT_FOR[verb]}"
    return ""


_DOING = ("take", "examine", "cook", "slice", "dice", "chop", "prepare", "eat")


def hindsight(trajectory: Trajectory) -> Skills:
    """After a success, its steps in order; after a failure, what was missing."""
    tracker = CookingTracker()
    steps = critical_steps(trajectory, Explorer(trajectory.task), tracker)
    if trajectory.success:
        done = [step.action for step in trajectory.steps if step.effective and step.action.split(" ")[0] in _DOING]
        return Skills(", ".join(dict.fromkeys(done)), steps, f"Eaten after {len(trajectory)} steps.")
    state, repeated = tracker_states(trajectory, tracker)[-1], most_repeated(trajectory)
    if "burned" in trajectory.detail:
        advice = "look whether it is cooked before cooking it: what is cooked twice burns"
    elif state.recipe is None:
        advice = "find the kitchen and examine the cookbook first"
    elif state.left:
        advice = f"still to do: {', '.join(state.left)}"
    else:
        advice = f"do not {repeated} again" if repeated else "eat meal"
    return Skills(advice, steps, f"Failed: {trajectory.detail or trajectory.stop}.")


SKILLS = ("READ_RECIPE", "INSPECT", "EXPLORE", "OPEN", "TAKE", "DELIVER", "CUT", "COOK", "PREPARE_MEAL", "EAT_MEAL")
ALPHABET = Alphabet(SKILLS, lambda trajectory: (skill(step.action) for step in trajectory.steps))
HANDBOOK = {
    "": (
        "find the kitchen and examine the cookbook first; gather every ingredient; cut before cooking; look whether something "
        "is cooked already, since what is cooked twice burns; then prepare meal in the kitchen and eat meal"
    )
}


def failure(trajectory: Trajectory) -> str:
    """Why an episode failed: `burned`, `wrong_processing` or `timeout` (ReuseRL Table 8), else the stop reason."""
    if trajectory.end_label in (BURNED_LABEL, WRONG_LABEL):
        return trajectory.end_label
    return stop_label(trajectory)
