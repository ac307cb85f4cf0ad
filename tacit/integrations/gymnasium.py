"""Gymnasium, in both directions (extra `gymnasium`).

env = TacitEnv("alfworld", split="train")            any of our worlds as a gymnasium.Env
text, info = env.reset(seed=7)                       the seed chooses the task; info has the goal and valid actions
text, reward, terminated, truncated, info = env.step("go to shelf 1")

register()                                           then gymnasium.make("tacit/alfworld-v0", split="unseen")

environment = gymnasium_environment("mine", lambda: gymnasium.make("my/TextGame-v0"), "Win the game.")
                                                     any text environment as a world: `tacit train --world file.py:environment`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tacit.core.errors import TacitError, install_command
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Environment, render_now
from tacit.integrations.episode import Episode, Pays, make_environment, make_observation, make_transition
from tacit.worlds import WORLDS

try:
    import gymnasium
    from gymnasium import spaces
except ImportError as error:
    raise TacitError(f"this integration needs the `gymnasium` package: {install_command('gymnasium')}.") from error

LONGEST = 65_536
"""maximum characters of an observation or an action"""
_WON = ("success", "is_success", "won")


class AnyText(spaces.Text):
    """Any string up to a length. Gymnasium's own Text has a fixed set of characters."""

    def __init__(self, max_length: int = LONGEST, seed: Any = None) -> None:
        super().__init__(max_length, min_length=0, seed=seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class TacitEnv(gymnasium.Env[str, str]):
    """One of our worlds as a gymnasium.Env. The seed chooses a task of the split."""

    metadata: dict[str, Any] = {"render_modes": ["ansi"]}

    def __init__(
        self,
        world: str | Environment,
        split: str = "train",
        tasks: int = 0,
        families: Sequence[str] = (),
        max_steps: int = 0,
        pays: Pays = "",
        goal_in_text: bool = True,
        wording: str = "",
        render_mode: str | None = None,
    ) -> None:
        """`goal_in_text`: start the first observation with the goal, which is also in `info`. `wording`: render observations in
        one of the world's wordings (`terse`), as our agents read them."""
        self.episode = Episode(world, split, tasks, families, max_steps, pays)
        self.observation_space, self.action_space = AnyText(), AnyText()
        self.goal_in_text, self.render_mode = goal_in_text, render_mode
        self._wording = self.episode.environment.wording(wording) if wording else None
        self._shown = ""

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """`options={"task": n}` chooses a task by number."""
        super().reset(seed=seed)
        chosen = (options or {}).get("task")
        number = int(self.np_random.integers(len(self.episode.tasks))) if chosen is None else int(chosen)
        observation = self.episode.begin(number)
        assert self.episode.task is not None
        goal = self._wording.task(self.episode.task) if self._wording else f"{self.episode.task.goal}\n"
        return self._show(observation, f"{goal}\n" if self.goal_in_text else ""), self.episode.describe(None, observation)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        turn, reward, truncated = self.episode.act(action)
        info = self.episode.describe(turn, turn.observation)
        return self._show(turn.observation), reward, turn.done, truncated, info

    def render(self) -> str:
        return self._shown

    def close(self) -> None:
        self.episode.close()

    def _show(self, observation: Observation, before: str = "") -> str:
        text = observation.text
        if self._wording:
            text = render_now(self._wording, self.episode.steps + 1, observation, False, False)[0]
        self._shown = (before + text)[:LONGEST]
        return self._shown


def register() -> list[str]:
    """Register every world as `tacit/<name>-v0`, unless it is registered already. Return the names."""
    names = [f"tacit/{world}-v0" for world in WORLDS]
    for name, world in zip(names, WORLDS, strict=True):
        if name not in gymnasium.registry:
            gymnasium.register(
                id=name, entry_point="tacit.integrations.gymnasium:TacitEnv", kwargs={"world": world}, disable_env_checker=True
            )
    return names


class GymnasiumWorld:
    """A text environment of Gymnasium as a world. `task.data["seed"]` seeds it."""

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]]) -> None:
        self._make = make
        self.env: gymnasium.Env[Any, Any] | None = None
        self._total = 0.0

    def reset(self, task: Task) -> Observation:
        self.env = self.env or self._make()
        self._total = 0.0
        seen, info = self.env.reset(seed=int(task.data["seed"]))
        return make_observation(seen, info)

    def step(self, action: str) -> Transition:
        if self.env is None:
            raise TacitError("the episode has not started: call reset(task) first.")
        seen, reward, terminated, truncated, info = self.env.step(action)
        self._total += float(reward)
        named = [bool(info[key]) for key in _WON if key in info]
        won = terminated and (named[0] if named else self._total > 0)
        score = info["score"] if isinstance(info.get("score"), float) else self._total
        label = str(info.get("label", "")) or ("truncated" if truncated else "")
        return make_transition(make_observation(seen, info), terminated or truncated, won, score, float(reward), info, label)

    def close(self) -> None:
        if self.env is not None:
            self.env.close()
            self.env = None


def gymnasium_environment(
    name: str, make: Callable[[], gymnasium.Env[Any, Any]], goal: str, max_steps: int = 50, **more: Any
) -> Environment:
    """Any text environment as a world.

    An episode is a success if `info` says so (`success`, `is_success`, `won`), else if it terminates with a positive sum of
    rewards. `more`: further fields of `Environment`.
    """
    env = make()
    text = isinstance(env.observation_space, spaces.Text) and isinstance(env.action_space, spaces.Text)
    env.close()
    if not text:
        raise TacitError(
            f"{name!r} is not a text environment (observations {env.observation_space}, actions {env.action_space}): wrap it "
            "so that its spaces are gymnasium.spaces.Text."
        )
    return make_environment(name, f"{name}, through Gymnasium", partial(GymnasiumWorld, make), goal, max_steps, **more)
