"""NetHack itself, by the packages `nle` and `minihack`: imported when a level is first played, so that nothing else needs
them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tacit.core.errors import TacitError, install
from tacit.environments.minihack.levels import APPLY, COMPASS, PICK_UP, Level
from tacit.environments.minihack.observed import DOOR, OPEN_DOOR, UNSEEN, WALLS, Scene, meaning_of

REQUIRES, EXTRA = ("nle", "minihack", "pkg_resources"), "minihack"
"""the last is what minihack imports of setuptools, which has had none since version 81; the extra brings one that has"""
KEYS = ("chars", "blstats", "message", "inv_strs", "inv_letters", "screen_descriptions")
_HP, _MOST_HP, _TIME = 10, 11, 20
_TRIES = 20
"""how often a door is tried: unlocking and opening may each take several turns"""
_SUCCESS, _RUNNING, _ESC = 2, 0, 27
_ALIKE = ".<>@`}"
"""symbols that mean the same wherever they stand; of any other, each may be something else"""
_KEPT = 16
"""idle engines of each level that are kept"""


class Answer(NamedTuple):
    scene: Scene
    done: bool
    success: bool
    moved: bool
    """the game's clock went on"""


class Engine:
    """One level, any number of episodes. What NetHack does with the hour and the moon is taken from the seed instead."""

    def __init__(self, level: Level) -> None:
        self.level = level
        self._codes, self._env, self._step = _start(level)
        self._seen: Mapping[str, np.ndarray] = {}

    def reset(self, seed: int) -> Scene:
        self._env.seed(seed, seed, reseed=False)
        self._seen, _ = self._env.reset()
        return self._scene(first=True)

    def step(self, word: str) -> Answer:
        return self._unlock() if word == APPLY else self._press(self._codes[word])

    def close(self) -> None:
        self._env.close()

    def _press(self, code: int) -> Answer:
        before = int(self._seen["blstats"][_TIME])
        # The key room's own `step` loops until a door is open, even one it cannot open; that of its parent presses one key.
        self._seen, _, done, truncated, info = self._step(self._env, self._env.actions.index(code))
        status = int(info["end_status"])
        moved = status != _RUNNING or int(self._seen["blstats"][_TIME]) != before
        return Answer(self._scene(), bool(done or truncated), status == _SUCCESS, moved)

    def _unlock(self) -> Answer:
        """The key into the lock of a closed door beside us, and then the door open. Doors have no diagonals."""
        scene, letter = self._scene(), self._key()
        here = scene.here
        straight = [word for word, (rows, columns) in COMPASS.items() if not (rows and columns)]
        word = next((word for word in straight if here and self._door(scene, word) == DOOR), "")
        if not letter or not word:
            said = "There is no door beside you." if letter else "You have no key."
            return Answer(replace(scene, said=said), False, False, False)
        answer = Answer(scene, False, False, False)
        for _ in range(_TRIES):
            for code in (self._codes[APPLY], ord(letter), self._codes[word]):
                answer = self._press(code)
            answer = self._press(ord("y") if "Unlock it?" in answer.scene.said else _ESC)
            if "You succeed in unlocking" in answer.scene.said or answer.done:
                break
        for _ in range(_TRIES):
            if answer.done or answer.scene.here != here or self._door(answer.scene, word) != DOOR:
                break
            answer = self._press(self._codes[word])
        return answer

    def _door(self, scene: Scene, word: str) -> str:
        row, column = COMPASS[word]
        here = scene.here or (0, 0)
        return scene.at((here[0] + row, here[1] + column))

    def _key(self) -> str:
        """The letter under which the inventory has a key; empty where it has none."""
        for letter, told in zip(self._seen["inv_letters"], self._seen["inv_strs"], strict=True):
            if " key" in _string(told):
                return chr(letter)
        return ""

    def _scene(self, first: bool = False) -> Scene:
        top, left, height, width = self.level.window
        rows: list[str] = []
        meanings: dict[str, str] = {}
        for r in range(top, top + height):
            row = bytes(self._seen["chars"][r, left : left + width]).decode("latin-1").replace(" ", UNSEEN)
            for c, symbol in enumerate(row):
                if symbol == UNSEEN or (symbol in meanings and symbol in _ALIKE):
                    continue
                description = _string(self._seen["screen_descriptions"][r, left + c])
                if symbol in WALLS and "open door" in description:
                    symbol = OPEN_DOOR
                    row = row[:c] + symbol + row[c + 1 :]
                meaning = meaning_of(description, symbol)
                if meaning not in meanings.setdefault(symbol, meaning).split(" or "):
                    meanings[symbol] += f" or {meaning}"
            rows.append(row)
        if any(UNSEEN in row for row in rows):
            meanings[UNSEEN] = "not seen"
        said = "" if first else " ".join(_string(self._seen["message"]).split())
        stats = self._seen["blstats"]
        holds = "key" if APPLY in self.level.actions and self._key() else ""
        return Scene(tuple(rows), dict(sorted(meanings.items())), said, int(stats[_HP]), int(stats[_MOST_HP]), holds)


_idle: dict[str, list[Engine]] = {}
"""Starting one takes a tenth of a second, a folder and two file handles. Nobody plays in an idle one, and `reset` leaves
nothing of what was played before."""


def borrow(level: Level) -> Engine:
    """An engine for nobody else."""
    kept = _idle.setdefault(level.name, [])
    return kept.pop() if kept else Engine(level)


def hand_back(engine: Engine) -> None:
    kept = _idle.setdefault(engine.level.name, [])
    if len(kept) < _KEPT:
        kept.append(engine)
    else:
        engine.close()


def _start(level: Level) -> tuple[Mapping[str, int], Any, Callable[[Any, int], Any]]:
    """(the key of each word, the level, how a key is pressed in it)"""
    try:
        from minihack import MiniHackNavigation
        from nle import nethack

        module, _, name = level.place.partition(":")
        make = getattr(importlib.import_module(f"minihack.envs.{module}"), name)
    except ImportError as error:
        missing = [name for name in REQUIRES if importlib.util.find_spec(name) is None]
        if missing:
            raise TacitError(f"MiniHack needs {' and '.join(missing)}: {install(EXTRA)}.") from error
        raise TacitError(f"MiniHack is installed, and could not be imported: {type(error).__name__}: {error}.") from error
    codes = {word: int(getattr(nethack.CompassDirection, _letters(word))) for word in COMPASS}
    codes |= {PICK_UP: int(nethack.Command.PICKUP), APPLY: int(nethack.Command.APPLY)}
    letters = [ord(c) for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"] if APPLY in level.actions else []
    keys = tuple(dict.fromkeys([*(codes[word] for word in level.actions), *letters, _ESC]))
    options = {"observation_keys": KEYS, "actions": keys, "max_episode_steps": 10**6, "fix_moon_phase": True}
    if APPLY in level.actions:
        options["allow_all_yn_questions"] = True
    return codes, make(**options), MiniHackNavigation.step


def _letters(word: str) -> str:
    """NW for northwest"""
    return "".join(part[0] for part in (word[:5], word[5:]) if part).upper() if len(word) > 5 else word[0].upper()


def _string(data: np.ndarray) -> str:
    return bytes(data).partition(b"\0")[0].decode("latin-1")
