"""MiniHack (Samvelyan et al., 2021) as in Complementary RL (§C.1): the explored map, a legend, and words for actions.

Moves that take no game time (into a wall, for example) and unknown actions are refused: the map stays the same, and the
observation has the game's message. The paper allows 30 turns; MiniHack's limits are 100, 200, 200 and 350. Our limits suffice
for the explorer (see docs/worlds/minihack.md for its success rates).
"""

from __future__ import annotations

import heapq
import importlib
import importlib.util
import re
import string
import tomllib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np

from tacit.core.errors import TacitError, check_split_and_count, install_command
from tacit.core.tasks import parse_panels, split_by_digest
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Brief, Numbered

COMPASS: Mapping[str, tuple[int, int]] = {
    "north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1),
    "northeast": (-1, 1), "southeast": (1, 1), "southwest": (1, -1), "northwest": (-1, -1),
}  # fmt: skip
"""word -> (rows, columns)"""
PICK_UP, APPLY = "pick_up", "apply"


@dataclass(frozen=True)
class Level:
    name: str  # in MiniHack
    env_class: str  # module and class of the package
    turns: int
    window: Sequence[int]  # top, left, height and width of the level in the terminal
    goal: str
    key: bool = False

    @property
    def actions(self) -> tuple[str, ...]:
        return (*COMPASS, PICK_UP, APPLY) if self.key else tuple(COMPASS)


_TABLES = tomllib.loads(Path(__file__).with_name("levels.toml").read_text(encoding="utf-8"))
LEVELS: Mapping[str, Level] = {family: Level(**table) for family, table in _TABLES.items()}
MAX_STEPS = max(level.turns for level in LEVELS.values())


# Observations have lines for the game's message, `hp: 12/12`, `holds: key` (if held), `legend: . floor; @ you; …` and the map.
# It is a fixed window of the terminal, so places keep their coordinates. It shows everything seen so far, with NetHack's
# symbols except for two: `_` for unseen squares (blank in the terminal) and `'` for open doors (drawn like walls).

UNSEEN, OPEN_DOOR, YOU, STAIRS, KEY, DOOR, BOULDER, WATER, TRAP = "_", "'", "@", ">", "(", "+", "`", "}", "^"
WALLS = "|-"
FLOOR = ".<>'"  # walkable symbols, besides THINGS
THINGS = '()[%*!?/=$"*'  # symbols of items on the floor

_MEANINGS = {
    "floor of a room": "floor",
    "dark part of a room": "floor",
    "staircase down": "stairs down",
    "staircase up": "stairs up",
}
_TEXT = re.compile(r"\A(?:it says: (.*)\n)?hp: (-?\d+)/(\d+)\n(?:holds: (.*)\n)?legend: (.*)\nmap:\n([\s\S]*)\Z")


@dataclass(frozen=True)
class Scene:
    rows: tuple[str, ...]
    legend: Mapping[str, str]
    message: str = ""
    hp: int = 0
    most_hp: int = 0
    holds: str = ""

    @property
    def here(self) -> tuple[int, int] | None:
        """(row, column) of the agent; None if something covers it"""
        return next(((r, row.index(YOU)) for r, row in enumerate(self.rows) if YOU in row), None)

    def at(self, place: tuple[int, int]) -> str:
        """The symbol at a place; outside of the window, a wall."""
        row, column = place
        return self.rows[row][column] if 0 <= row < len(self.rows) and 0 <= column < len(self.rows[row]) else WALLS[0]

    def find(self, symbols: str) -> list[tuple[int, int]]:
        return [(r, c) for r, row in enumerate(self.rows) for c, symbol in enumerate(row) if symbol in symbols]

    @property
    def monsters(self) -> list[tuple[int, int]]:
        """The places of all monsters, shown as letters or one of `:;&~`."""
        return self.find("".join(symbol for symbol in self.legend if symbol.isalpha() or symbol in ":;&~"))

    @property
    def text(self) -> str:
        lines = [f"it says: {self.message}"] if self.message else []
        lines.append(f"hp: {self.hp}/{self.most_hp}")
        if self.holds:
            lines.append(f"holds: {self.holds}")
        lines.append("legend: " + "; ".join(f"{symbol} {meaning}" for symbol, meaning in self.legend.items()))
        return "\n".join([*lines, "map:", *self.rows])


def parse_scene(text: str) -> Scene:
    """The inverse of `Scene.text`."""
    match = _TEXT.match(text)
    if match is None:
        raise ValueError(f"not a MiniHack observation: {text!r}")
    message, hp, most, holds, legend, rows = match.groups()
    meanings = {entry[0]: entry[2:] for entry in legend.split("; ") if entry}
    return Scene(tuple(rows.split("\n")), meanings, message or "", int(hp), int(most), holds or "")


# Path finding on the explored map.

Place = tuple[int, int]
MONSTER, TRAPPED = 4, 12  # extra path cost of a square with a monster or a trap


def shift(place: Place, word: str) -> Place:
    rows, columns = COMPASS[word]
    return place[0] + rows, place[1] + columns


def find_path(
    scene: Scene, reached: Callable[[Place], bool], blocked: Collection[tuple[Place, str]] = (), doors: Collection[Place] = ()
) -> list[str] | None:
    """The moves to the nearest place that satisfies `reached`; [] if it is this one, None if there is none. `doors`: known open
    doors, which may be covered now; doors cannot be passed diagonally."""
    start = scene.here
    if start is None:
        return None
    monsters = set(scene.monsters)
    queue: list[tuple[int, Place, tuple[str, ...]]] = [(0, start, ())]
    cheapest: dict[Place, int] = {}
    while queue:
        cost, place, words = heapq.heappop(queue)
        if place in cheapest:
            continue
        cheapest[place] = cost
        if reached(place):
            return list(words)
        for word in COMPASS:
            there = shift(place, word)
            symbol = scene.at(there)
            extra_cost = MONSTER if there in monsters else TRAPPED if symbol == TRAP else 0
            if there in cheapest or (place, word) in blocked or not (extra_cost or symbol in FLOOR + THINGS + YOU):
                continue
            angled = all(COMPASS[word])
            if angled and (OPEN_DOOR in (symbol, scene.at(place)) or there in doors or place in doors):
                continue
            heapq.heappush(queue, (cost + 1 + extra_cost, there, (*words, word)))
    return None


def unexplored(scene: Scene, visited: Collection[Place]) -> Callable[[Place], bool]:
    """A predicate: unvisited places next to unseen squares."""
    return lambda place: place not in visited and any(scene.at(shift(place, word)) == UNSEEN for word in COMPASS)


def stairs(scene: Scene) -> Callable[[Place], bool]:
    return lambda place: scene.at(place) == STAIRS


# The engine. `nle` and `minihack` are imported when a level is first played.

REQUIRES, EXTRA = ("nle", "minihack", "pkg_resources"), "minihack"
"""minihack imports pkg_resources, which setuptools removed in version 81; the extra installs an older one"""
KEYS = ("chars", "blstats", "message", "inv_strs", "inv_letters", "screen_descriptions")
_HP, _MOST_HP, _TIME = 10, 11, 20
_TRIES = 20  # attempts at unlocking or opening a door: each may take several turns
_SUCCESS, _RUNNING, _ESC = 2, 0, 27
_ALIKE = ".<>@`}"  # symbols with one meaning; any other may have several
_KEPT = 16  # maximum idle engines per level


class Answer(NamedTuple):
    scene: Scene
    done: bool
    success: bool
    moved: bool  # whether game time passed


class Engine:
    """A NetHack engine for one level, reused for many episodes. Deterministic given the seed; the moon phase is fixed."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self._codes, self.env, self._step = _start(level)
        self.observation: Mapping[str, np.ndarray] = {}

    def reset(self, seed: int) -> Scene:
        self.env.seed(seed, seed, reseed=False)
        self.observation, _ = self.env.reset()
        return self._scene(first=True)

    def step(self, word: str) -> Answer:
        return self._unlock() if word == APPLY else self._press(self._codes[word])

    def _press(self, code: int) -> Answer:
        before = int(self.observation["blstats"][_TIME])
        # The key room's `step` loops until a door opens, possibly forever; the parent class's presses one key.
        self.observation, _, done, truncated, info = self._step(self.env, self.env.actions.index(code))
        status = int(info["end_status"])
        moved = status != _RUNNING or int(self.observation["blstats"][_TIME]) != before
        return Answer(self._scene(), bool(done or truncated), status == _SUCCESS, moved)

    def _unlock(self) -> Answer:
        """Unlock and open an adjacent closed door, never diagonally."""
        scene, letter = self._scene(), self._key()
        here = scene.here
        straight = [word for word, moves in COMPASS.items() if not all(moves)]
        word = next((word for word in straight if here and scene.at(shift(here, word)) == DOOR), "")
        if here is None or not letter or not word:
            message = "There is no door beside you." if letter else "You have no key."
            return Answer(replace(scene, message=message), False, False, False)
        answer = Answer(scene, False, False, False)
        for _ in range(_TRIES):
            for code in (self._codes[APPLY], ord(letter), self._codes[word]):
                answer = self._press(code)
            answer = self._press(ord("y") if "Unlock it?" in answer.scene.message else _ESC)
            if "You succeed in unlocking" in answer.scene.message or answer.done:
                break
        for _ in range(_TRIES):
            if answer.done or answer.scene.here != here or answer.scene.at(shift(here, word)) != DOOR:
                break
            answer = self._press(self._codes[word])
        return answer

    def _key(self) -> str:
        """The inventory letter of a key; empty if there is none."""
        for letter, description in zip(self.observation["inv_letters"], self.observation["inv_strs"], strict=True):
            if " key" in _string(description):
                return chr(letter)
        return ""

    def _scene(self, first: bool = False) -> Scene:
        top, left, height, width = self.level.window
        rows: list[str] = []
        meanings: dict[str, str] = {}
        for r in range(top, top + height):
            row = bytes(self.observation["chars"][r, left : left + width]).decode("latin-1").replace(" ", UNSEEN)
            for c, symbol in enumerate(row):
                if symbol == UNSEEN or (symbol in meanings and symbol in _ALIKE):
                    continue
                description = _string(self.observation["screen_descriptions"][r, left + c])
                if symbol in WALLS and "open door" in description:
                    symbol = OPEN_DOOR
                    row = row[:c] + symbol + row[c + 1 :]
                default = _MEANINGS.get(description, description.removeprefix("a ").removeprefix("an ")) or "unknown"
                meaning = "you" if symbol == YOU else "key" if description.startswith("a key") else default
                if meaning not in meanings.setdefault(symbol, meaning).split(" or "):
                    meanings[symbol] += f" or {meaning}"
            rows.append(row)
        if any(UNSEEN in row for row in rows):
            meanings[UNSEEN] = "not seen"
        message = "" if first else " ".join(_string(self.observation["message"]).split())
        stats = self.observation["blstats"]
        holds = "key" if APPLY in self.level.actions and self._key() else ""
        return Scene(tuple(rows), dict(sorted(meanings.items())), message, int(stats[_HP]), int(stats[_MOST_HP]), holds)


idle_engines: dict[str, list[Engine]] = {}
"""level name -> engines to reuse; starting one takes 0.1 s, a folder and two file handles"""


def _start(level: Level) -> tuple[Mapping[str, int], Any, Callable[[Any, int], Any]]:
    """(action word -> key code, the environment, its step function)"""
    try:
        from minihack import MiniHackNavigation
        from nle import nethack

        module, _, name = level.env_class.partition(":")
        make = getattr(importlib.import_module(f"minihack.envs.{module}"), name)
    except ImportError as error:
        missing = [name for name in REQUIRES if importlib.util.find_spec(name) is None]
        if missing:
            raise TacitError(f"MiniHack needs {', '.join(missing)}: {install_command(EXTRA)}.") from error
        raise TacitError(f"MiniHack is installed but could not be imported: {type(error).__name__}: {error}.") from error
    codes = {word: int(getattr(nethack.CompassDirection, (word[0] + word[5:6]).upper())) for word in COMPASS}
    codes |= {PICK_UP: int(nethack.Command.PICKUP), APPLY: int(nethack.Command.APPLY)}
    letters = [ord(c) for c in string.ascii_letters] if APPLY in level.actions else []
    keys = tuple(dict.fromkeys([*(codes[word] for word in level.actions), *letters, _ESC]))
    options = {"observation_keys": KEYS, "actions": keys, "max_episode_steps": 10**6, "fix_moon_phase": True}
    if APPLY in level.actions:
        options["allow_all_yn_questions"] = True
    return codes, make(**options), MiniHackNavigation.step


def _string(data: np.ndarray) -> str:
    return bytes(data).partition(b"\0")[0].decode("latin-1")


DIED, TIMEOUT = "died", "timeout"
NO_ACTION = "That is no action here."


class MiniHackWorld:
    _level: Level | None = None
    engine: Engine | None = None

    def reset(self, task: Task) -> Observation:
        family, seed = str(task.data.get("level")), task.data.get("seed")
        if family not in LEVELS or not isinstance(seed, int):
            raise TacitError(
                f"task {task.id!r} is not a MiniHack task: its data needs a level ({', '.join(LEVELS)}) and a seed."
            )
        self.close()
        self._level, self._turns = LEVELS[family], 0
        kept = idle_engines.setdefault(self._level.name, [])
        self.engine = kept.pop() if kept else Engine(self._level)
        self._scene = self.engine.reset(seed)
        return self._observe()

    def step(self, action: str) -> Transition:
        if self.engine is None or self._level is None:
            raise TacitError("no episode has been started: call reset(task) first.")
        self._turns += 1
        late = self._turns >= self._level.turns
        word = parse_action(action, self._level)
        if not word:
            self._scene = replace(self._scene, message=NO_ACTION)
            return Transition(self._observe(), done=late, effective=False, label=TIMEOUT if late else "")
        try:
            answer = self.engine.step(word)
        except Exception:
            self.engine = None  # do not reuse an engine in an unknown state
            raise
        self._scene = answer.scene
        return Transition(
            self._observe(),
            done=answer.done or late,
            success=answer.success,
            score=float(answer.success),
            effective=answer.moved,
            label="" if answer.success else DIED if answer.done else TIMEOUT if late else "",
        )

    def close(self) -> None:
        if self.engine is not None:
            kept = idle_engines.setdefault(self.engine.level.name, [])
            if len(kept) < _KEPT:
                kept.append(self.engine)
            else:
                self.engine.env.close()
        self.engine = None

    def _observe(self) -> Observation:
        assert self._level is not None
        return Observation(self._scene.text, self._level.actions)


def parse_action(action: str, level: Level) -> str:
    """The canonical word of an action; empty if the level does not have it."""
    word = "_".join(action[:40].lower().split()).replace("-", "_")
    word = {"pickup": "pick_up", "apply_key": "apply"}.get(word, word.removeprefix("go_").removeprefix("move_"))
    return word if word in level.actions else ""


RULES = """You are exploring a level of NetHack, seen from above; north is up. In the dark you see only what is next to you.
The map shows what you have seen so far, one symbol for each square, and the legend says what the symbols mean.
Moving into a monster attacks it. Moving into a boulder pushes it. Walking into deep water can kill you."""
MEANS = {
    "pick_up": "pick_up takes what lies on your own square",
    "apply": "apply unlocks and opens a door that is straight beside you, once you have the key",
}


class FullWording(Numbered):
    def task(self, task: Task) -> str:
        level = LEVELS[str(task.data["level"])]
        moves = [word for word in level.actions if word not in MEANS]
        known = "; ".join([f"{', '.join(moves)} move one square", *(MEANS[word] for word in level.actions if word in MEANS)])
        return f"{RULES}\nYour task: {task.goal} You have {level.turns} turns.\nActions: {known}."

    def turn(self, number: int, observation: Observation, action: str) -> str:
        scene = parse_scene(observation.text)
        where = "out of sight" if scene.here is None else f"at row {scene.here[0] + 1}, column {scene.here[1] + 1}"
        return f"Turn {number}, {where}{f' ({scene.message})' if scene.message else ''}: {_one_line(action)}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        scene = parse_scene(observation.text)
        lines = [
            f"Turn {number}.{f' The game says: {scene.message}' if scene.message else ''}",
            f"HP: {scene.hp} of {scene.most_hp}",
        ]
        if scene.holds:
            lines.append(f"You hold: {scene.holds}")
        lines.append("Legend: " + ", ".join(f"{symbol} = {meaning}" for symbol, meaning in scene.legend.items()))
        lines += ["Map:", *scene.rows]
        if admissible and observation.actions:
            lines.append(f"Possible actions: {', '.join(observation.actions)}")
        return "\n".join(lines)


class TerseWording(Brief):
    """The map, then `12/12 key >`: health and inventory; `!` means that the last action was refused. Past turns show only the
    action."""

    def task(self, task: Task) -> str:
        return str(task.data["level"])

    def turn(self, number: int, observation: Observation, action: str) -> str:
        return f"{_mark(parse_scene(observation.text))}> {_one_line(action)}"

    def now(self, number: int, observation: Observation, admissible: bool) -> str:
        scene = parse_scene(observation.text)
        text = "\n".join([*scene.rows, f"{scene.hp}/{scene.most_hp} {f'{scene.holds} ' if scene.holds else ''}{_mark(scene)}>"])
        if admissible and observation.actions:
            text += f" [{'; '.join(observation.actions)}]"
        return text


def _mark(scene: Scene) -> str:
    """`! ` if the game's message reports a failure (it also reports fights)."""
    refused = ("solid", "wall", "That is no action", "nothing here to pick", "no key", "no door", "in vain", "can't move")
    return "! " if any(part in scene.message for part in refused) else ""


def _one_line(action: str) -> str:
    return " ".join(action[:160].split())[:40]


NAME = "minihack"
SPLITS = ("train", "test", "hard")
FAMILIES = tuple(LEVELS)
HARD = ("keyroom", "river")
SEEDS = 2**31 - 1


def tasks(split: str, count: int, seed: int, families: Sequence[str] = FAMILIES) -> list[Task]:
    """`count` different levels of the split; a larger count begins with the same levels. `families` filters them."""
    check_split_and_count(NAME, SPLITS, split, count)
    rng = Random(f"{NAME}/{split}/{seed}")
    kinds = HARD if split == "hard" else FAMILIES
    if not set(families) & set(kinds):
        return []
    by_seed: dict[int, Task] = {}
    while sum(task.family in families for task in by_seed.values()) < count:
        for family in rng.sample(kinds, len(kinds)):
            drawn = rng.randrange(SEEDS)
            while split_by_digest(str(drawn)) != split or drawn in by_seed:
                drawn = rng.randrange(SEEDS)
            by_seed[drawn] = make_task(family, drawn, split, seed)
    return [task for task in by_seed.values() if task.family in families][:count]


def make_task(family: str, level_seed: int, split: str = "own", seed: int = 0) -> Task:
    data = {"level": family, "seed": level_seed}
    return Task(NAME, f"{NAME}/{split}/{family}-{level_seed}", family, split, seed, LEVELS[family].goal, data)


PANELS = parse_panels("""
train  16:5b1d9f463240e6bb 128:1d17ac97e9d74b4b 256:09c5f3a356cc3096 512:23326d775065964d 1024:e4f47614ddb638e2
test   16:4da114159fed905d 128:76d7002391e6fff8 256:ffee8600588aba87 512:9ff5399033fb0e66 1024:ee2d82e31a3ea2f1
hard   16:0f354ee6fb9ab64e 128:9844bea4df8d5b79 256:dbd68d31ce630830 512:f08ba93327bbf19e 1024:46da4ef76af08c6d
""")  # split -> number of tasks -> panel hash
