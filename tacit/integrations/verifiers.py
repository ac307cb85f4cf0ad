"""verifiers, in both directions (extra `verifiers`: versions 0.1.14 to 0.3.0, which have MultiTurnEnv).

env = TacitMultiTurnEnv("alfworld")                  any of our worlds as a verifiers MultiTurnEnv
results = await env.evaluate(client, model)

environment = verifiers_environment("theirs", partial(vf.load_environment, "their-env"))    any verifiers environment as a world
"""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from random import Random
from typing import Any

from tacit.core.actions import ActionFormat, Parsed
from tacit.core.errors import TacitError, install_command, unknown
from tacit.core.types import ActionStyle, Observation, Task, Transition
from tacit.core.world import Environment, format_of, render_now
from tacit.integrations.episode import Episode, Pays, PlainWording, clip_score, make_environment

try:
    import verifiers as vf
    from verifiers.clients import Client
    from verifiers.types import Response, ResponseMessage, UserMessage

    vf.MultiTurnEnv  # noqa: B018 (later versions do not have it)
except (ImportError, AttributeError) as error:
    raise TacitError(
        f"this integration needs `verifiers` 0.1.14 to 0.3.0 (with MultiTurnEnv): {install_command('verifiers')} ({error})."
    ) from error

__all__ = ["TacitMultiTurnEnv", "verifiers_environment"]

_STOP_S = 5.0

# A verifiers environment as a world. Their loop calls the model; ours calls the world. So their rollout runs in a thread, with
# a client that waits for our agent's action. Their parsers and rubrics work unchanged; tools are not supported.


class VerbatimFormat(ActionFormat):
    """The whole completion is the action."""

    stop: tuple[str, ...] = ()
    thinks = True

    def parse(self, text: str) -> Parsed:
        return Parsed(text.strip(), bool(text.strip()))

    def write(self, action: str, thought: str = "") -> str:
        return action


class VerbatimWording(PlainWording):
    """For environments that parse completions themselves."""

    formats: Mapping[ActionStyle, ActionFormat] = {"tags": VerbatimFormat(), "bare": VerbatimFormat()}

    def request(self, style: ActionStyle) -> str:
        return ""


class QueuedClient(Client):
    """A model client whose answers come from another thread. `events` has the rollout's prompts and its end."""

    def __init__(self) -> None:
        super().__init__(None)
        self.events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.answers: queue.Queue[str | None] = queue.Queue()

    def setup_client(self, config: Any) -> None:
        return None

    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def to_native_prompt(self, messages: Any) -> tuple[Any, dict[str, Any]]:
        return messages, {}

    async def get_native_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **more: Any) -> Any:
        self.events.put(("prompt", prompt))
        answer = await asyncio.to_thread(self.answers.get)
        if answer is None:
            raise vf.ModelError("the rollout was abandoned")
        return answer

    async def raise_from_native_response(self, response: Any) -> None:
        return None

    async def from_native_response(self, response: Any) -> Any:
        message = ResponseMessage(role="assistant", content=response, finish_reason="stop", is_truncated=False)
        return Response(id="tacit", created=int(time.time()), model="tacit", message=message)

    async def close(self) -> None:
        return None


class VerifiersWorld:
    """A rollout of a verifiers environment as a world; `task.data["row"]` is the row of its dataset."""

    def __init__(self, make: Callable[[], Any], passes_at: float) -> None:
        self._make, self._passes_at = make, passes_at
        self._env: Any = None
        self._model: QueuedClient | None = None
        self.thread: threading.Thread | None = None
        self._read = 0

    def reset(self, task: Task) -> Observation:
        self._stop()
        self._env = self._env or self._make()
        self._model, self._read = QueuedClient(), 0
        row = dict(task.data["row"])
        self.thread = threading.Thread(target=_roll_out, args=(self._env, row, self._model), daemon=True)
        self.thread.start()
        kind, content = self._model.events.get()
        if kind != "prompt":
            raise RuntimeError(f"the environment ended before its first prompt: {content}")
        self._read = len(content)
        return Observation("Begin.")

    def step(self, action: str) -> Transition:
        if self._model is None:
            raise TacitError("the episode has not started: call reset(task) first.")
        self._model.answers.put(action)
        kind, content = self._model.events.get()
        if kind == "error":
            raise RuntimeError(f"the environment failed: {content}")
        if kind == "prompt":
            new, self._read = content[self._read + 1 :], len(content)
            return Transition(Observation(_joined(new)))
        self._model = None
        reward, messages = float(content["reward"] or 0.0), list(content["completion"] or ())
        last = max(
            (i for i, m in enumerate(messages) if str(m["role"] if isinstance(m, Mapping) else m.role) == "assistant"),
            default=-1,
        )
        return Transition(
            Observation(_joined(messages[last + 1 :])),
            done=True,
            success=reward >= self._passes_at,
            score=clip_score(reward),
            reward=reward,
            label=str(content.get("stop_condition") or ""),
        )

    def close(self) -> None:
        self._stop()
        self._env = None

    def _stop(self) -> None:
        model, self._model = self._model, None
        if model is not None:
            model.answers.put(None)
        if self.thread is not None:
            self.thread.join(_STOP_S)
            self.thread = None


def verifiers_environment(
    name: str, make: Callable[[], Any], max_steps: int = 20, passes_at: float = 1.0, **more: Any
) -> Environment:
    """A verifiers environment as a world. `train` is its dataset, `test` its evaluation dataset, if it has a different one.

    An episode is a success if its reward reaches `passes_at`.
    """

    @cache
    def rows() -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return _rows_of(make())

    def tasks(split: str, count: int, seed: int) -> list[Task]:
        if split not in rows():
            raise unknown(f"split of world {name!r}", split, rows())
        own = rows()[split]
        order = Random(f"{name}/{split}/{seed}").sample(range(len(own)), len(own))
        return [
            Task(name, f"{split}/{at}", name, split, seed, _joined(own[at]["prompt"]), {"row": own[at]}) for at in order[:count]
        ]

    fields: dict[str, Any] = {
        "tasks": tasks,
        "splits": tuple(rows()),
        "panel_split": tuple(rows())[-1],
        "published": {split: len(own) for split, own in rows().items()},
        "wordings": {"full": VerbatimWording(), "terse": VerbatimWording()},
    }
    world = partial(VerifiersWorld, make, passes_at)
    return make_environment(name, f"{name}, through verifiers", world, "", max_steps, **{**fields, **more})


def _roll_out(env: Any, row: dict[str, Any], model: QueuedClient) -> None:
    try:
        output = asyncio.run(env.run_rollout(row, model, "tacit", {}))
        failure = output.get("error")
        model.events.put(("error", failure) if failure else ("end", output))
    except BaseException as error:  # the world waits for an event
        model.events.put(("error", f"{type(error).__name__}: {error}"))


def _rows_of(env: Any) -> dict[str, list[Mapping[str, Any]]]:
    """Split -> rows. An environment without an evaluation dataset returns its training rows twice; then there is one split."""
    splits: dict[str, list[Mapping[str, Any]]] = {}
    for split, ask in (("train", env.get_dataset), ("test", env.get_eval_dataset)):
        try:
            rows = [json.loads(json.dumps(row, default=str)) for row in ask()]
        except Exception:  # environments without this dataset raise different errors
            continue
        if rows and rows not in splits.values():
            splits[split] = rows
    if not splits:
        raise TacitError("this verifiers environment has no dataset, so it has no tasks.")
    return splits


def text_of(message: Any) -> str:
    content = message["content"] if isinstance(message, Mapping) else message.content
    if isinstance(content, str) or content is None:
        return content or ""
    parts = [part if isinstance(part, Mapping) else part.model_dump() for part in content]
    return "\n".join(str(part.get("text", "")) for part in parts)


def _joined(messages: Sequence[Any]) -> str:
    return "\n\n".join(text for text in map(text_of, messages) if text)


PLAYED = "tacit"
"""key of a rollout's results in its state: reward, success, score, turns, invalid"""


class TacitMultiTurnEnv(vf.MultiTurnEnv):
    """One of our worlds, with prompts and action format of one of its wordings."""

    def __init__(
        self,
        world: str | Environment,
        split: str = "train",
        tasks: int = 0,
        eval_split: str = "",
        eval_tasks: int = 0,
        wording: str = "full",
        style: ActionStyle = "tags",
        admissible: bool = True,
        max_steps: int = 0,
        pays: Pays = "success",
        **more: Any,
    ) -> None:
        """`more`: arguments of vf.MultiTurnEnv. The default reward is success, since a rubric scores the whole rollout."""
        self._train = Episode(world, split, tasks, (), max_steps, pays)
        self._environment = self._train.environment
        measured = eval_split or self._environment.split_to_measure()
        self._test = Episode(self._environment, measured, eval_tasks, (), max_steps, pays)
        self._wording, self._style, self._admissible = self._environment.wording(wording), style, admissible
        self._format: ActionFormat = format_of(self._wording, style)
        self.episodes: dict[str, Episode] = {}
        rubric = vf.Rubric(funcs=[_metric("reward")], weights=[1.0])
        for name in ("success", "score", "turns", "invalid"):
            rubric.add_metric(_metric(name))
        rows = {"dataset": _rows(self._train, "train"), "eval_dataset": _rows(self._test, "test")}
        super().__init__(max_turns=-1, rubric=rubric, **rows, **more)

    async def setup_state(self, state: Any) -> Any:
        info = state["info"]
        episode = self.episodes[state["trajectory_id"]] = (self._test if info["of"] == "test" else self._train).clone()
        observation = await asyncio.to_thread(episode.begin, int(info["number"]))
        state[PLAYED] = {"reward": 0.0, "success": 0.0, "score": 0.0, "turns": 0.0, "invalid": 0.0}
        assert episode.task is not None
        state["prompt"] = [*state["prompt"][:-1], self._show(1, observation, self._wording.task(episode.task))]
        return state

    async def env_response(self, messages: Any, state: Any, **more: Any) -> Any:
        episode, played = self.episodes[state["trajectory_id"]], state[PLAYED]
        parsed = self._format.parse(text_of(messages[-1]))
        turn, reward, truncated = await asyncio.to_thread(episode.act, parsed.action)
        played["reward"] += reward
        played["turns"] += 1.0
        played["invalid"] += float(not parsed.valid)
        played.update(success=float(turn.success), score=turn.score)
        if turn.done or truncated:
            state["final_env_response"] = [UserMessage(content=turn.observation.text)]
            return state["final_env_response"]
        return [self._show(episode.steps + 1, turn.observation)]

    def _show(self, number: int, observation: Observation, *before: str) -> Any:
        now = render_now(self._wording, number, observation, self._admissible, past=number > 1)[0]
        sections = (*before, now, self._wording.request(self._style))
        return UserMessage(content=self._wording.separator.join(filter(None, sections)))

    @vf.cleanup
    async def close_episode(self, state: Any) -> None:
        episode = self.episodes.pop(state["trajectory_id"], None)
        if episode is not None:
            await asyncio.to_thread(episode.close)


def _rows(episode: Episode, of: str) -> Any:
    from datasets import Dataset

    return Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": task.goal}], "answer": "", "info": {"number": number, "of": of}}
            for number, task in enumerate(episode.tasks)
        ]
    )


def _metric(name: str) -> Callable[..., Any]:
    async def measured(state: Any) -> float:
        return float(state.get(PLAYED, {}).get(name, 0.0))

    measured.__name__ = name
    return measured
