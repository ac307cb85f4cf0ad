"""Statistics of recorded episodes besides success: behavior (ReuseRL Tables 2 and 4–9), and tokens of prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from tacit.core.method import Context
from tacit.core.protocols import Tokenizer
from tacit.core.types import Observation, Trajectory
from tacit.core.world import Alphabet, Environment, Wording, World
from tacit.prompts.history import History
from tacit.rollout.encoding import encode_action
from tacit.rollout.replay import iterate_trajectory, render_turns, replay_actions

SCORE_PART = "score."
PlaceOf = Callable[[str, Observation], str]  # (action, next observation) -> the place reached, as `Environment.place`


@dataclass(frozen=True)
class Behavior:
    """Shares and means over episodes without crashes; None if there is nothing to average."""

    episodes: int
    successes: int
    success_length: float | None  # mean steps of a success
    failure_length: float | None  # mean steps of a failure
    invalid: float | None  # share of the steps of successes that did not parse or were refused ("Nothing happens")
    repeats: float | None  # share of the steps of successes that repeat an earlier action; unparsed steps do not count
    unparsed: float | None = None  # share of the steps of successes that did not parse
    refused: float | None = None  # share of the steps of successes that parsed and that the world refused
    revisits: float | None = None  # mean number of returns to a visited place per success; None in worlds without places
    all_repeats: float | None = None  # share of all steps, including failures, that repeat an earlier action
    failures: Mapping[str, float] = field(default_factory=dict)  # share of failures by label: `burned`, `stuck`, `timeout`, …
    failure_counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # family -> label -> number of failures
    per_success: Mapping[str, float] = field(default_factory=dict)  # mean number of skills of each kind per success
    without: Mapping[str, float] = field(default_factory=dict)
    """share of successes without a skill of the kind; for `RESET`, the straight solutions"""
    operators: Mapping[str, float] = field(default_factory=dict)  # share of each operator in the operations of successes
    operators_per_success: float | None = None
    """mean number of distinct operators per success; None in worlds without operators"""
    closings: Mapping[str, int] = field(default_factory=dict)  # number of successes that end with each kind of skill

    score_parts: Mapping[str, float] = field(default_factory=dict)
    """mean of each part of the score, where the world reports them (signals `score.NAME` of the last step)"""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def behavior(
    played: Sequence[Trajectory],
    alphabet: Alphabet | None = None,
    failure: Callable[[Trajectory], str] | None = None,
    place: PlaceOf | None = None,
) -> Behavior:
    """Statistics of episodes. Skill statistics need the world's alphabet; failure labels and places come from the world."""
    ended = [t for t in played if not t.stop.crashed]
    won, lost = [t for t in ended if t.success], [t for t in ended if not t.success]
    steps = [step for t in won for step in t.steps]
    skills = [[kind(skill) for skill in alphabet(t)] for t in won] if alphabet else []
    kinds = Counter(skill for sequence in skills for skill in sequence)
    operators = alphabet.operators if alphabet else ()
    operations = {name: count for name, count in kinds.items() if name in operators}
    label = failure or (lambda t: str(t.stop))
    labels = [(t.task.family, label(t)) for t in lost]
    return Behavior(
        episodes=len(ended),
        successes=len(won),
        success_length=_mean(len(t) for t in won),
        failure_length=_mean(len(t) for t in lost),
        invalid=_mean(not (step.valid and step.effective) for step in steps),
        repeats=_mean(is_repeat for t in won for is_repeat in repeated(t)),
        unparsed=_mean(not step.valid for step in steps),
        refused=_mean(step.valid and not step.effective for step in steps),
        revisits=_mean(revisits(t, place) for t in won if place),
        all_repeats=_mean(is_repeat for t in ended for is_repeat in repeated(t)),
        failures=_shares(Counter(name for _, name in labels)),
        failure_counts={
            family: dict(sorted(Counter(name for of, name in labels if of == family).items()))
            for family in sorted({family for family, _ in labels})
        },
        per_success={name: count / len(skills) for name, count in sorted(kinds.items())},
        without={name: sum(name not in s for s in skills) / len(skills) for name in sorted(_kinds(alphabet))} if skills else {},
        operators=_shares(operations),
        operators_per_success=_mean(len({k for k in s if k in operators}) for s in skills) if operations else None,
        score_parts={
            name.removeprefix(SCORE_PART): sum(t.steps[-1].signals.get(name, 0.0) for t in ended if t.steps) / len(ended)
            for name in sorted({name for t in ended for s in t.steps[-1:] for name in s.signals if name.startswith(SCORE_PART)})
        },
        closings=dict(sorted(Counter(s[-1] for s in skills if s).items())),
    )


def describe_episode(trajectory: Trajectory, world: Environment) -> dict[str, Any]:
    """The world's labels of an episode, recorded with it so that reports need no world: its name and, for a failure, its label;
    for a success, the kinds of its skills, all kinds of the alphabet, and the number of returns to places."""
    description: dict[str, Any] = {"world": world.name}
    try:
        if not trajectory.success and not trajectory.stop.crashed:
            description["failure"] = world.failure(trajectory) if world.failure else str(trajectory.stop)
        elif trajectory.success:
            description["revisits"] = revisits(trajectory, world.place) if world.place else None
            if alphabet := world.alphabet:
                description["skills"] = [kind(skill) for skill in alphabet(trajectory)]
                description |= {"kinds": sorted(_kinds(alphabet)), "operators": list(alphabet.operators)}
    except Exception:  # a world may be the user's own code; its errors must not stop the run
        return {"world": world.name}
    return description


def behavior_from_labels(played: Sequence[Trajectory], labels: Sequence[Mapping[str, Any]]) -> Behavior | None:
    """`behavior` from the labels of `describe_episode`; None if any episode has no labels."""
    by_episode = {id(t): entry for t, entry in zip(played, labels, strict=True)}
    ended = [t for t in played if not t.stop.crashed]
    for entry, success in ((by_episode[id(t)], t.success) for t in ended):
        if not (isinstance(entry.get("revisits", ""), int | None) if success else entry.get("failure")):
            return None
    won = [by_episode[id(t)] for t in ended if t.success]
    skills = {id(t): list(map(str, by_episode[id(t)].get("skills", ()))) for t in ended}
    kinds, operators = ({str(name) for entry in won for name in entry.get(key, ())} for key in ("kinds", "operators"))
    kinds |= {name for entry in skills.values() for name in entry}
    alphabet = Alphabet(tuple(sorted(kinds)), lambda t: skills[id(t)], tuple(operators)) if kinds else None
    result = behavior(played, alphabet, lambda t: str(by_episode[id(t)]["failure"]))
    return replace(result, revisits=_mean(entry["revisits"] for entry in won if entry["revisits"] is not None))


ENDING_NAMES = {"timeout": "out of steps", "step_limit": "out of steps", "failure": "ended by the world"}


def describe_ending(label: str) -> str:
    """A label in words. `timeout` is the papers' term for the step limit."""
    return ENDING_NAMES.get(label, label.replace("_", " "))


def repeated(trajectory: Trajectory) -> list[bool]:
    """For each step, whether its action was taken before in the episode. Unparsed turns do not count."""
    seen: set[str] = set()
    repeats = []
    for step in trajectory.steps:
        repeats.append(step.valid and step.action in seen)
        if step.valid or step.effective:
            seen.add(step.action)
    return repeats


def revisits(trajectory: Trajectory, place: PlaceOf | None) -> int:
    """Number of returns to a visited place; only executed movements count."""
    steps = trajectory.steps
    if place is None or not steps:
        return 0
    visited, count = {place("", steps[0].observation)}, 0
    for step, after in zip(steps, trajectory.observations[1:], strict=True):
        reached = place(step.action, after) if step.effective else ""
        if reached:
            count += reached in visited
            visited.add(reached)
    return count


def kind(skill: str) -> str:
    """A skill without its details: `OP_ADD-LARGE-SMALL` is an OP_ADD."""
    return skill.partition("-")[0]


def _kinds(alphabet: Alphabet | None) -> set[str]:
    return {kind(skill) for skill in alphabet.skills} if alphabet else set()


def _shares(counts: Mapping[str, int]) -> dict[str, float]:
    total = sum(counts.values())
    return {name: counts[name] / total for name in sorted(counts)}


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


# Token cost of prompts, counted on the same episodes for every context (constant context, Table 2). Each context renders the
# prompts of recorded episodes turn by turn, so contexts differ only in what the agent reads, not in how well it plays. Nothing
# is truncated or sampled.

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

    Observations need the world's list of actions: use `replay_observations` for recordings.
    """
    ended = [t for t in played if not t.stop.crashed and t.steps]
    uses = []
    for name, context in contexts.items():
        counted = [_episode(trajectory, context, tokenizer) for trajectory in ended]
        uses.append(TokenUse(name, tuple(p for p, _ in counted), tuple(a for _, a in counted)))
    return uses


def join_uses(uses: Sequence[TokenUse]) -> TokenUse:
    """Concatenate the episodes of one context."""
    prompts = tuple(episode for use in uses for episode in use.prompts)
    return TokenUse(uses[0].context, prompts, tuple(episode for use in uses for episode in use.actions))


def replay_observations(trajectory: Trajectory, world: World) -> Trajectory:
    """Replay a recorded episode to recover the actions the world listed. Raises if the world now answers differently."""
    texts = [*(step.observation.text for step in trajectory.steps), trajectory.final.text]
    replayed = list(replay_actions(world, trajectory.task, [step.action for step in trajectory.steps], texts))
    steps = tuple(replace(step, observation=h.observation) for step, h in zip(trajectory.steps, replayed, strict=True))
    final = replayed[-1].transition.observation if replayed else trajectory.final
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
