"""Token cost of prompts, counted on the same episodes for every context (constant context, Table 2).

Each context renders the prompts of recorded episodes turn by turn. So contexts differ only in what the agent reads, not in how
well it plays. Nothing is truncated or sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tacit.core.method import Context
from tacit.core.protocols import Tokenizer
from tacit.core.types import Trajectory
from tacit.core.world import Wording, World
from tacit.prompts.history import History
from tacit.rollout.encoding import encode_action
from tacit.rollout.replay import iterate_trajectory, render_turns, replay_actions

REACT = {"ReAct-1step": 1, "ReAct-full": None}  # past turns in the prompt; None is all
LISTED, UNLISTED = "with actions", "without actions"


@dataclass(frozen=True, eq=False)
class TokenUse:
    """Tokens of one context: one array per episode, one number per turn."""

    context: str
    prompts: tuple[np.ndarray, ...]
    actions: tuple[np.ndarray, ...]  # the action in this context's format, without reasoning

    @cached_property
    def figures(self) -> dict[str, Any]:
        """Means as JSON. `growth_per_turn`: mean growth of the prompt from the second turn on, since the first has no history;
        None if no episode has three turns. `by_turn`: mean prompt length over the episodes that reached each turn."""
        episodes, turns = len(self.prompts), sum(map(len, self.prompts))
        read, written = (float(sum(e.sum() for e in tokens)) for tokens in (self.prompts, self.actions))
        changes = [np.diff(episode[1:]) for episode in self.prompts if len(episode) > 2]
        longest = max(map(len, self.prompts), default=0)
        return {
            "context": self.context,
            "episodes": episodes,
            "turns": turns,
            "prompt_tokens_per_turn": read / turns if turns else 0.0,
            "action_tokens_per_turn": written / turns if turns else 0.0,
            "tokens_per_episode": (read + written) / episodes if episodes else 0.0,
            "longest_prompt": max((int(episode.max()) for episode in self.prompts if len(episode)), default=0),
            "growth_per_turn": float(np.concatenate(changes).mean()) if changes else None,
            "by_turn": [float(np.mean([int(e[turn]) for e in self.prompts if len(e) > turn])) for turn in range(longest)],
        }


def react_contexts(wording: Wording) -> dict[str, Context]:
    """ReAct with one past turn and with all, each with and without the list of actions; the paper does not say which."""
    return {
        f"{name} {how}": History(wording, turns, admissible)
        for name, turns in REACT.items()
        for how, admissible in ((LISTED, True), (UNLISTED, False))
    }


def count_tokens(played: Sequence[Trajectory], contexts: Mapping[str, Context], tokenizer: Tokenizer) -> list[TokenUse]:
    """Token use of each context on these episodes, without crashed ones.

    Observations need the world's list of actions: use `as_played` for recordings.
    """
    sound = [t for t in played if not t.stop.crashed and t.steps]
    uses = []
    for name, context in contexts.items():
        counted = [_episode(trajectory, context, tokenizer) for trajectory in sound]
        uses.append(TokenUse(name, tuple(p for p, _ in counted), tuple(a for _, a in counted)))
    return uses


def join_uses(uses: Sequence[TokenUse]) -> TokenUse:
    """Concatenate the episodes of one context."""
    prompts = tuple(episode for use in uses for episode in use.prompts)
    return TokenUse(uses[0].context, prompts, tuple(episode for use in uses for episode in use.actions))


def replay_observations(trajectory: Trajectory, world: World) -> Trajectory:
    """Replay a recorded episode to recover the actions the world listed. Raises if the world now answers differently."""
    texts = [*(step.observation.text for step in trajectory.steps), trajectory.final.text]
    again = list(replay_actions(world, trajectory.task, [step.action for step in trajectory.steps], texts))
    steps = tuple(replace(step, observation=h.observation) for step, h in zip(trajectory.steps, again, strict=True))
    final = again[-1].transition.observation if again else trajectory.final
    return replace(trajectory, steps=steps, final=final)


def _episode(trajectory: Trajectory, context: Context, tokenizer: Tokenizer) -> tuple[np.ndarray, np.ndarray]:
    """(prompt tokens, action tokens) of every turn."""
    turns = render_turns(context, trajectory.task, iterate_trajectory(trajectory), trajectory.condition, tokenizer)
    prompts, actions = [], []
    for step, turn in zip(trajectory.steps, turns, strict=True):
        prompts.append(len(turn.tokens))
        if step.valid:
            actions.append(len(encode_action(turn.prompt, step.action, context.format, tokenizer)))
        else:
            actions.append(len(tokenizer.encode_completion(step.completion.text)))
    return np.array(prompts, dtype=np.int64), np.array(actions, dtype=np.int64)
