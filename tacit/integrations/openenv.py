"""OpenEnv, in both directions (extra `openenv`).

    app = openenv_app("alfworld", split="train")         uvicorn.run(app): our world as an OpenEnv server
    environment = openenv_environment("theirs", "http://localhost:8000", "Do what it asks.")      any OpenEnv server as a world

A session is a WebSocket (`/ws`), as in OpenEnv's own clients; `/reset` and `/step` over plain HTTP keep no state. An action is
`{"action": "go to shelf 1"}`. `reset` takes `seed`, which chooses a task of the split, or `task`, its number.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from tacit.core.errors import TacitError, install_command
from tacit.core.types import Observation, Task, Transition
from tacit.core.world import Environment
from tacit.integrations.episode import Episode, Pays, make_environment, make_observation, make_transition

try:
    from openenv.core import GenericEnvClient
    from openenv.core.env_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment as OpenEnvironment
    from openenv.core.env_server.types import Action, EnvironmentMetadata, State
    from openenv.core.env_server.types import Observation as Shown
except ImportError as error:
    raise TacitError(f"this integration needs the `openenv-core` package: {install_command('openenv')}.") from error

SESSIONS = 64
"""concurrent episodes of one server"""
_WAIT_S = 10.0
_TEXTS = ("text", "message", "observation", "content", "output", "prompt")


class TextAction(Action):
    action: str


class TextObservation(Shown):
    text: str
    goal: str = ""
    task: str = ""
    family: str = ""
    admissible_actions: list[str] = []
    score: float = 0.0
    success: bool = False
    effective: bool = True
    label: str = ""


class ServedWorld(OpenEnvironment[TextAction, TextObservation, State]):
    """One session's episode of one of our worlds."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, make: Callable[[], Episode]) -> None:
        super().__init__()
        self._episode = make()
        self._rng = Random(0)
        self._name: str | None = None

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task: int | None = None, **more: Any
    ) -> TextObservation:
        if seed is not None:
            self._rng = Random(seed)
        self._name = episode_id
        observation = self._episode.begin(self._rng.randrange(len(self._episode.tasks)) if task is None else task)
        return TextObservation(text=observation.text, **self._episode.describe(None, observation))

    def step(self, action: TextAction, timeout_s: float | None = None, **more: Any) -> TextObservation:
        turn, reward, truncated = self._episode.act(action.action)
        about = self._episode.describe(turn, turn.observation)
        return TextObservation(text=turn.observation.text, reward=reward, done=turn.done or truncated, **about)

    @property
    def state(self) -> State:
        task = self._episode.task
        about = {"task": task.id, "goal": task.goal, "family": task.family} if task else {}
        return State(episode_id=self._name, step_count=self._episode.steps, **about)

    def get_metadata(self) -> EnvironmentMetadata:
        world = self._episode.environment
        return EnvironmentMetadata(name=world.name, description=world.summary, version=world.panel_version)

    def close(self) -> None:
        self._episode.close()


def openenv_app(
    world: str | Environment,
    split: str = "train",
    tasks: int = 0,
    families: Sequence[str] = (),
    max_steps: int = 0,
    pays: Pays = "",
    sessions: int = SESSIONS,
) -> Any:
    """A FastAPI application that serves one of our worlds. Checks the arguments and makes the tasks now."""
    first = Episode(world, split, tasks, families, max_steps, pays)
    return create_fastapi_app(partial(ServedWorld, first.clone), TextAction, TextObservation, max_concurrent_envs=sessions)


class OpenEnvWorld:
    """A session with an OpenEnv server as a world. `task.data["seed"]` seeds it."""

    def __init__(self, url: str, action_field: str, text_field: str, wait_s: float) -> None:
        self._url, self._action_field, self._text_field, self._wait_s = url, action_field, text_field, wait_s
        self._client: Any = None
        self._total = 0.0

    def reset(self, task: Task) -> Observation:
        if self._client is None:
            self._client = GenericEnvClient(self._url, message_timeout_s=self._wait_s).sync()
            self._client.connect()
        self._total = 0.0
        seen = self._client.reset(seed=int(task.data["seed"])).observation
        return make_observation(seen.get(self._text_field, ""), seen)

    def step(self, action: str) -> Transition:
        if self._client is None:
            raise TacitError("the episode has not started: call reset(task) first.")
        result = self._client.step({self._action_field: action})
        reward, done, seen = float(result.reward or 0.0), bool(result.done), result.observation
        self._total += reward
        won = done and bool(seen.get("success", self._total > 0))
        score, label = float(seen.get("score", self._total)), str(seen.get("label", ""))
        return make_transition(make_observation(seen.get(self._text_field, ""), seen), done, won, score, reward, seen, label)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()


def openenv_environment(
    name: str,
    url: str,
    goal: str,
    max_steps: int = 50,
    action_field: str = "",
    text_field: str = "",
    wait_s: float = 60.0,
    **more: Any,
) -> Environment:
    """Any text environment behind an OpenEnv server as a world.

    The server's schema has the fields of actions and observations; if it is ambiguous, set `action_field` and `text_field`. An
    episode is a success if the observation says `success`, else if it ends with a positive sum of rewards.
    """
    schema = _schema(url)
    action_field = action_field or _only_text(
        schema["action"], "action", "action_field", url, ("action", "message", "text", "command")
    )
    text_field = text_field or _only_text(schema["observation"], "observation", "text_field", url, _TEXTS)
    make = partial(OpenEnvWorld, url, action_field, text_field, wait_s)
    return make_environment(name, f"{name}, an OpenEnv server at {url}", make, goal, max_steps, slow=True, **more)


def _schema(url: str) -> Mapping[str, Any]:
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/schema", timeout=_WAIT_S) as answer:
            schema = json.load(answer)
        return {part: schema[part].get("properties", {}) for part in ("action", "observation")}
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise TacitError(f"no OpenEnv server answers at {url} (cannot read its /schema: {error}).") from error


def _only_text(fields: Mapping[str, Any], what: str, option: str, url: str, usual: Sequence[str]) -> str:
    """The only text field, or the first with one of the `usual` names."""
    texts = [name for name, field in fields.items() if field.get("type") == "string"]
    names = texts if len(texts) == 1 else [name for name in usual if name in texts][:1]
    if not names:
        has = ", ".join(texts) or "none"
        raise TacitError(f"cannot tell which field of an {what} of {url} is the text (text fields: {has}); set {option}=….")
    return names[0]
