"""verifiers, both ways (extra `verifiers`: versions 0.1.14 to 0.3.0, which have MultiTurnEnv).

env = TacitMultiTurnEnv("alfworld")                  any of our worlds as a verifiers MultiTurnEnv
results = await env.evaluate(client, model)          … for whatever evaluates or trains those

environment = verifiers_environment("theirs", partial(vf.load_environment, "their-env"))    anybody's as a world of ours
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tacit.core.actions import ActionFormat
from tacit.core.types import ActionStyle
from tacit.core.wording import format_of, tell_now
from tacit.core.world import Environment
from tacit.doors.episode import Episode, Pays
from tacit.doors.verifiers_worlds import UserMessage, text_of, verifiers_environment, vf

__all__ = ["TacitMultiTurnEnv", "verifiers_environment"]
PLAYED = "tacit"
"""where a rollout's state keeps what came of it: reward, success, score, turns, invalid"""


class TacitMultiTurnEnv(vf.MultiTurnEnv):
    """One of our worlds. The prompt is our wording's; what the model writes is read as that wording asks for."""

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
        """`more` goes to verifiers. Success is paid by default: a rubric's reward is of the whole rollout."""
        self._train = Episode(world, split, tasks, (), max_steps, pays)
        self._environment = self._train.environment
        measured = eval_split or self._environment.split_to_measure()
        self._test = Episode(self._environment, measured, eval_tasks, (), max_steps, pays)
        self._wording, self._style, self._admissible = self._environment.wording(wording), style, admissible
        self._format: ActionFormat = format_of(self._wording, style)
        self._playing: dict[str, Episode] = {}
        rubric = vf.Rubric(funcs=[_metric("reward")], weights=[1.0])
        for name in ("success", "score", "turns", "invalid"):
            rubric.add_metric(_metric(name))
        rows = {"dataset": _rows(self._train, "train"), "eval_dataset": _rows(self._test, "test")}
        super().__init__(max_turns=-1, rubric=rubric, **rows, **more)

    async def setup_state(self, state: Any) -> Any:
        info = state["info"]
        episode = self._playing[state["trajectory_id"]] = (self._test if info["of"] == "test" else self._train).another()
        observation = await asyncio.to_thread(episode.begin, int(info["number"]))
        state[PLAYED] = {"reward": 0.0, "success": 0.0, "score": 0.0, "turns": 0.0, "invalid": 0.0}
        assert episode.task is not None
        now = tell_now(self._wording, 1, observation, self._admissible, past=False)[0]
        told = (self._wording.task(episode.task), now, self._wording.request(self._style))
        state["prompt"] = [*state["prompt"][:-1], UserMessage(content=self._wording.separator.join(filter(None, told)))]
        return state

    async def env_response(self, messages: Any, state: Any, **more: Any) -> Any:
        episode, played = self._playing[state["trajectory_id"]], state[PLAYED]
        parsed = self._format.parse(text_of(messages[-1]))
        turn = await asyncio.to_thread(episode.act, parsed.action)
        played["reward"] += turn.reward
        played["turns"] += 1.0
        played["invalid"] += float(not parsed.valid)
        played.update(success=float(turn.success), score=turn.score)
        now = tell_now(self._wording, episode.steps + 1, turn.observation, self._admissible, past=True)[0]
        if turn.over:
            state["final_env_response"] = [UserMessage(content=turn.observation.text)]
            return state["final_env_response"]
        told = (now, self._wording.request(self._style))
        return [UserMessage(content=self._wording.separator.join(filter(None, told)))]

    @vf.cleanup
    async def close_episode(self, state: Any) -> None:
        episode = self._playing.pop(state["trajectory_id"], None)
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
