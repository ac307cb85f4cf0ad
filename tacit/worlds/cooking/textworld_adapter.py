"""Real TextWorld games (`.z8`, `.ulx`, made by `tw-make`) as a world, with the `textworld` package as an extra.

    environment = textworld_environment("path/to/games")      # a folder, or one file

The package is imported when a game starts. Observations have the layout of the native game: the answer to the last command, the
room, the inventory.
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from tacit.core.errors import TacitError, install_command, unknown
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Environment
from tacit.worlds.cooking.skills import TEXTWORLD_ALPHABET, failure
from tacit.worlds.cooking.tracker import FullWording, place
from tacit.worlds.cooking.world import BURNED_LABEL, MAX_STEPS, WRONG_LABEL

SUFFIXES = (".z8", ".ulx")
SPLIT = "games"
_INFOS = ("feedback", "description", "inventory", "admissible_commands", "won", "lost", "score", "max_score")


class TextWorldWorld:
    """Plays the game file in `task.data["path"]`."""

    _env: Any = None
    _path = ""
    _state: Any = None

    def reset(self, task: Task) -> Observation:
        path = Path(str(task.data.get("path", "")))
        if path.suffix not in SUFFIXES or not path.is_file():
            raise TacitError(f"there is no TextWorld game {str(path)!r}; make one with `tw-make tw-cooking --output …`.")
        try:
            import textworld
        except ImportError as error:
            raise TacitError(f"TextWorld games need the `textworld` package: {install_command('textworld')}.") from error
        # The native interpreter would crash this process on a truncated file or one of another format: a `.z8` begins with its
        # version, 8, and keeps its length, in units of 8 bytes, at offset 26; a `.ulx` begins with `Glul`, its length is at 12.
        image = path.read_bytes()
        if path.suffix == ".z8":
            is_valid = len(image) >= 64 and image[0] == 8 and len(image) >= 8 * int.from_bytes(image[26:28], "big")
        else:
            is_valid = len(image) >= 36 and image[:4] == b"Glul" and len(image) >= int.from_bytes(image[12:16], "big")
        if not is_valid:
            raise TacitError(f"TextWorld cannot play {str(path)!r}: it is truncated or not a {path.suffix} game.")
        try:
            if self._path != str(path):
                self.close()
                infos = textworld.EnvInfos(**dict.fromkeys(_INFOS, True))
                self._env, self._path = textworld.start(str(path), request_infos=infos), str(path)
            self._state = self._env.reset()
        except Exception as error:  # whatever the package makes of a game it cannot load
            self.close()
            raise TacitError(f"TextWorld cannot play {str(path)!r}: {error!r}.") from error
        return self._observe("")

    def step(self, action: str) -> Transition:
        if self._env is None:
            raise TacitError("the TextWorld world has no game yet; call reset(task) first.")
        command, before = " ".join(action.split()), self._state
        self._state, _, done = self._env.step(command)
        state, lost = self._state, bool(self._state.lost)
        answer = _clean(state.feedback, _text(state.description))
        changed = any(before[key] != state[key] for key in ("description", "inventory", "score"))
        return Transition(
            self._observe(answer),
            done=bool(done),
            success=bool(state.won),
            score=(state.score or 0) / (state.max_score or 1),
            reward=((state.score or 0) - (before.score or 0)) / (state.max_score or 1),
            effective=changed or lost or command in (before.admissible_commands or ()),
            label=(BURNED_LABEL if "burned" in answer else WRONG_LABEL) if lost else "",
        )

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env, self._path, self._state = None, "", None

    def _observe(self, answer: str) -> Observation:
        state = self._state
        parts = (answer, _text(state.description), _text(state.inventory))
        return Observation("\n".join(part for part in parts if part), tuple(state.admissible_commands or ()))


class GameWording(FullWording):
    version = "1"  # the commands listed are TextWorld's own


def textworld_environment(path: str | Path) -> Environment:
    """All games of a folder, or one game, as a world with a single split."""
    games = game_tasks(path)

    def tasks(split: str, count: int, seed: int) -> list[Task]:
        if split != SPLIT:
            raise unknown("split of TextWorld games", split, (SPLIT,))
        if not 0 <= count <= len(games):
            raise TacitError(f"asked for {count} games, but {str(path)!r} holds {len(games)}; make more or ask for fewer.")
        return Random(seed).sample(games, len(games))[:count]

    return Environment(
        name="textworld",
        summary=f"real TextWorld games from {path}",
        max_steps=MAX_STEPS,
        make=TextWorldWorld,
        tasks=tasks,
        splits=(SPLIT,),
        families=(SPLIT,),
        wordings={"full": GameWording()},
        alphabet=TEXTWORLD_ALPHABET,
        failure=failure,
        slow=True,
        published={SPLIT: len(games)},
        step_rewards=True,
        place=place,
    )


def game_tasks(path: str | Path) -> list[Task]:
    """One task per game file, in the order of their names, with the objective that `tw-make` wrote next to it, if it did."""
    source, tasks = Path(path), []
    files = sorted(p for p in source.iterdir() if p.suffix in SUFFIXES) if source.is_dir() else [source]
    if not files or not files[0].is_file():
        raise TacitError(f"there are no TextWorld games ({', '.join(SUFFIXES)}) at {str(path)!r}.")
    for game in files:
        try:
            goal = " ".join(str(json.loads(game.with_suffix(".json").read_text())["objective"]).split())
        except (OSError, ValueError, KeyError, TypeError):
            goal = "Play the game to a good end."
        tasks.append(Task("textworld", f"textworld/{game.stem}", SPLIT, SPLIT, 0, goal, {"path": str(game)}))
    return tasks


def _text(text: str | None) -> str:
    """Remove empty lines and trailing spaces."""
    return "\n".join(line.rstrip() for line in (text or "").split("\n") if line.strip())


def _clean(feedback: str | None, description: str) -> str:
    """The answer without the prompt line, the score, the closing question and the room."""
    text = (feedback or "").rsplit("\n>", 1)[0].split("You scored ")[0]
    lines = [line.strip() for line in text.split("\n")]
    text = "\n".join(line for line in lines if line and not line.startswith("Your score has just gone"))
    return text.replace(description, "").strip() if description else text
