"""Groups of episodes, each at its own pace.

Each episode waits for its own completion. Whenever some come back, their worlds are stepped together, the
next prompts are handed in, and the sampler goes on: one long answer holds up its own episode and no other. An episode's
randomness is its place, so what it says does not depend on its pace.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from tacit.core.actions import ActionFormat, Parsed
from tacit.core.errors import TacitError, told_of
from tacit.core.method import Conditions, Context, Pending, Reader, record_turn
from tacit.core.progress import duration, number_of
from tacit.core.protocols import Request, Sampler, Sampling, Tokenizer
from tacit.core.seeds import derive
from tacit.core.types import (
    PLAIN,
    Completion,
    Condition,
    Group,
    Observation,
    Prompt,
    Step,
    StopReason,
    Task,
    Trajectory,
    Transition,
)
from tacit.rollout.encoding import encode_prompts, fit_prompt, open_scheduler
from tacit.rollout.worlds import WorldFailure, WorldPool, open_steps


class RolloutObserver:
    """Callbacks during a rollout. This base class ignores them all."""

    def on_start(self, worlds: object) -> None:
        """Episodes start in this world pool."""

    def on_turn(self, completion: Completion, valid: bool) -> None:
        """The policy wrote `completion`; `valid`: it parsed as an action."""

    def on_episode_end(self, index: int, trajectory: Trajectory) -> None:
        """The episode of plan `index` ended."""

    def on_end(self) -> None:
        """The last episode ended."""


NO_OBSERVER = RolloutObserver()


class SamplingPolicy(Sampler, Tokenizer, Protocol):
    """What a rollout asks of a policy."""


@dataclass(frozen=True)
class EpisodePlan:
    """One episode to be played."""

    task: Task
    seed: int
    condition: Condition = PLAIN


def rollout_groups(
    tasks: Sequence[Task],
    size: int,
    seed: int,
    conditions: Conditions,
    context: Context,
    worlds: WorldPool,
    policy: SamplingPolicy,
    sampling: Sampling,
    max_steps: int,
    layer: int | None = None,
    *,
    lockstep: bool = False,
    observer: RolloutObserver = NO_OBSERVER,
) -> list[Group]:
    """`size` episodes of each task. Member m of task i draws from derive(seed, i, m), whatever the batch looks like."""
    plans = []
    if (asking := getattr(conditions, "asking", None)) is not None:
        conditions = asking(policy)
    for i, task in enumerate(tasks):
        assigned = conditions.assign(task, size, derive(seed, "conditions", i))
        if len(assigned) != size:
            raise TacitError(f"{conditions!r} gave {len(assigned)} conditions for a group of {size}.")
        plans += [EpisodePlan(task, derive(seed, i, m), condition) for m, condition in enumerate(assigned)]
    played = rollout(plans, context, worlds, policy, sampling, max_steps, layer, lockstep=lockstep, observer=observer)
    return [Group(task, tuple(played[i * size : (i + 1) * size])) for i, task in enumerate(tasks)]


def rollout(
    plans: Sequence[EpisodePlan],
    context: Context,
    worlds: WorldPool,
    policy: SamplingPolicy,
    sampling: Sampling,
    max_steps: int,
    layer: int | None = None,
    *,
    lockstep: bool = False,
    observer: RolloutObserver = NO_OBSERVER,
) -> list[Trajectory]:
    """Play all plans to their end, before an observer. `lockstep` asks for one turn of all episodes at a time, whatever the
    sampler could do."""
    written = context.format
    sampling = replace(sampling, stop=tuple(dict.fromkeys((*written.stop, *sampling.stop))))
    episodes = [_Episode(plan) for plan in plans]
    observer.on_start(worlds)
    for episode, first in zip(episodes, worlds.reset([plan.task for plan in plans]), strict=True):
        episode.start(first, context)
    answers = open_steps(worlds)
    waiting: dict[int, int] = {}
    """request id -> slot"""
    acting: dict[int, tuple[Completion, Parsed]] = {}
    """slot -> what it does, until its world has answered"""
    go_on, ended = list(range(len(episodes))), dict[int, Trajectory]()
    with contextlib.closing(open_scheduler(policy, sampling, layer, lockstep)) as scheduler:
        while True:
            reading = [slot for slot in go_on if episodes[slot].read(max_steps)]
            tokens = dict(zip(reading, encode_prompts([episodes[slot].prompt for slot in reading], policy), strict=True))
            for slot in go_on:
                episode = episodes[slot]
                if slot in tokens and episode.prepare(tokens[slot], policy, sampling):
                    seed = derive(episode.plan.seed, len(episode.steps))
                    waiting[scheduler.submit(Request(episode.tokens, seed, episode=slot))] = slot
                else:
                    ended[slot] = episode.trajectory()
                    observer.on_episode_end(slot, ended[slot])
            if not waiting and not acting:
                return [ended[slot] for slot in range(len(episodes))]
            finished = scheduler.wait()
            if waiting and not finished:
                raise TacitError(
                    f"{type(scheduler).__name__} has nothing under way, though {len(waiting)} requests wait for it."
                )
            turns = {waiting.pop(request_id): completion for request_id, completion in finished}
            meant = {slot: episodes[slot].understand(turns[slot], written) for slot in sorted(turns)}
            for slot, act in meant.items():
                observer.on_turn(turns[slot], act is not None and act.valid)
            asked = {slot: (act, pending) for slot, act in meant.items() if act and (pending := episodes[slot].ask(act))}
            now = {slot: (turns[slot], act) for slot, act in meant.items() if act and episodes[slot].stop is None}
            acting |= {slot: turn for slot, turn in now.items() if slot not in asked}
            answers.begin([(slot, act.action) for slot, (_, act) in now.items() if slot not in asked])
            go_on = [slot for slot in meant if slot not in acting]
            for slot, (act, pending) in asked.items():  # while the worlds were thinking
                episodes[slot].told(turns[slot], act, pending)
            for slot, answer in answers.ready(wait=not waiting and not go_on):
                episodes[slot].answered(*acting.pop(slot), answer)
                go_on.append(slot)


class _Episode:
    """The moving parts of one episode. Whatever leaves this file is frozen.

    A wording or a tracker that raises ends its own episode, as a world does; a TacitError is the user's and ends the run.
    """

    prompt: Prompt
    tokens: np.ndarray
    reader: Reader

    def __init__(self, plan: EpisodePlan) -> None:
        self.plan = plan
        self.steps: list[Step] = []
        self.observation = Observation("")
        self.stop: StopReason | None = None
        self.success, self.score, self.detail = False, 0.0, ""

    def start(self, first: Observation | WorldFailure, context: Context) -> None:
        if isinstance(first, WorldFailure):
            self.stop, self.detail = first.reason, first.detail
            return
        self.observation = first
        with self._ending_with("beginning the episode"):
            self.reader = context.begin(self.plan.task, self.plan.condition)

    def read(self, max_steps: int) -> bool:
        """Write the next prompt. False where the episode is over."""
        if self.stop is None and len(self.steps) >= max_steps:
            self.stop = StopReason.STEP_LIMIT
        if self.stop is not None:
            return False
        with self._ending_with("writing the prompt"):
            self.prompt = self.reader.read(self.observation)
        return self.stop is None

    def prepare(self, tokens: np.ndarray, policy: Tokenizer, sampling: Sampling) -> bool:
        """Take the tokens of its prompt, of less of it where that is too long. False where the episode is over with it."""
        self.prompt, self.tokens, fits = fit_prompt(self.prompt, policy, sampling.max_tokens, tokens)
        if not fits:
            self.stop = StopReason.PROMPT_TOO_LONG
            self.detail = f"{len(self.tokens)} prompt + {sampling.max_tokens} new tokens > {policy.context_limit}"
        return fits

    def understand(self, completion: Completion, written: ActionFormat) -> Parsed | None:
        """The action that was meant; None where the format itself is at fault, which ends the episode."""
        with self._ending_with("reading the action"):
            return written.parse(completion.text)
        return None

    def ask(self, act: Parsed) -> Pending | None:
        """Where the action is put to somebody else than the world."""
        ask = getattr(self.reader, "ask", None)
        with self._ending_with("asking"):
            return ask(act.action) if ask is not None else None
        return None

    def told(self, completion: Completion, act: Parsed, pending: Pending) -> None:
        answer = None
        with self._ending_with("asking"):
            answer = pending.result().in_plain_numbers()
        if answer is not None:
            self.answered(completion, act, answer)

    def answered(self, completion: Completion, act: Parsed, answer: Transition | WorldFailure) -> None:
        if isinstance(answer, WorldFailure):
            self.stop, self.detail = answer.reason, answer.detail
            return
        with self._ending_with("recording the turn"):
            wrote = None if act.valid else completion.text
            signals = {**answer.signals, **record_turn(self.reader, act.action, answer, wrote)}
        if self.stop is not None:
            return
        step = Step(
            observation=self.observation,
            prompt=self.prompt,
            prompt_tokens=self.tokens,
            completion=completion,
            action=act.action,
            valid=act.valid,
            effective=answer.effective,
            label=answer.label,
            signals=signals,
            reward=answer.reward,
            thought=act.thought,
        )
        self.steps.append(step)
        self.observation = answer.observation
        self.success, self.score = answer.success, max(answer.score, float(answer.success))
        if answer.done or self.success:
            self.stop = StopReason.SUCCESS if self.success else StopReason.FAILURE
            self.detail = answer.label

    @contextlib.contextmanager
    def _ending_with(self, doing: str) -> Iterator[None]:
        try:
            yield
        except TacitError:
            raise
        except (Exception, SystemExit) as error:
            self.stop, self.detail = StopReason.WORLD_ERROR, f"{doing}: {told_of(error)}"

    def trajectory(self) -> Trajectory:
        assert self.stop is not None
        return Trajectory(
            task=self.plan.task,
            steps=tuple(self.steps),
            success=self.success,
            score=self.score,
            stop=self.stop,
            final=self.observation,
            condition=self.plan.condition,
            detail=self.detail,
            seed=self.plan.seed,
        )


# How far episodes have come, for whoever waits for them.

LATE_S = 3.0
"""after so long it is said which world is being waited for"""

SHOWN_CHARACTERS = 300
"""of a completion that is shown"""


class RolloutProgress(RolloutObserver):
    """Counts episodes, turns and tokens, and estimates what is left."""

    def __init__(
        self, episodes: int, max_steps: int = 0, policy: Any = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`policy` may say what it has `written_tokens` by now."""
        self._episodes, self._max_steps, self._policy, self._clock = episodes, max_steps, policy, clock
        self._began = clock()
        self._before, self._over, self._turns, self._turns_of_over, self._tokens = 0, 0, 0, 0, 0
        self._written_before = self._written()
        self._worlds: object = None
        self.first: tuple[Completion, bool] | None = None
        """what was written first, and whether it parsed"""

    def resume(self, before: int) -> None:
        """So many episodes were played earlier."""
        self._before, self._began = before, self._clock()

    def on_start(self, worlds: object) -> None:
        self._worlds = worlds

    def on_turn(self, completion: Completion, valid: bool) -> None:
        self._turns += 1
        self._tokens += len(completion.tokens)
        if self.first is None and completion.finish != "unusable":
            self.first = (completion, valid)

    def on_episode_end(self, index: int, trajectory: Trajectory) -> None:
        self._over += 1
        self._turns_of_over += len(trajectory)

    @property
    def played(self) -> str:
        """`31 turns`"""
        return number_of(self._turns, "turn")

    def status(self) -> list[str]:
        """`2 of 4 episodes`, `31 turns`, `210 tok/s`, `about 3 min 20 s left`"""
        spent, over = self._clock() - self._began, self._before + self._over
        # Where groups are selected by what came out, more may be played than were planned.
        found = [f"{over} of {number_of(self._episodes, 'episode')}" if over <= self._episodes else number_of(over, "episode")]
        found.append(self.played)
        if (written := max(self._written() - self._written_before, self._tokens)) and spent > 0:
            found.append(f"{written / spent:.3g} tok/s")
        if not self._turns:
            found.append(f"waiting for the first answer, {duration(spent)}")
        elif left := self._time_left(spent):
            found.append(left)
        late = getattr(self._worlds, "late", None)
        return [*found, str(late)] if late is not None and late.seconds >= LATE_S else found

    def _time_left(self, spent: float) -> str:
        """As if a turn ended its episode as often as it has until now; none goes on past its limit. The mean length of what is
        over would say too little: the short ones are over first."""
        under_way = self._episodes - self._before - self._over
        if under_way <= 0 or not (self._over or self._max_steps):
            return ""
        limit = self._max_steps - (self._turns - self._turns_of_over) / under_way if self._max_steps else math.inf
        each = min(self._turns / self._over, limit) if self._over else limit
        return f"{'about' if self._over else 'at most'} {duration(spent / self._turns * under_way * each)} left"

    def _written(self) -> int:
        return getattr(self._policy, "written_tokens", 0)


def describe_completion(what: str, completion: Completion, valid: bool) -> str:
    text = completion.text if len(completion.text) <= SHOWN_CHARACTERS else f"{completion.text[:SHOWN_CHARACTERS]} …"
    parses = "" if valid else ", which does not parse"
    cut = ", cut off at the longest completion" if completion.finish == "length" else ""
    return f"{what}, of {number_of(len(completion.tokens), 'token')}{parses}{cut}: {text!r}"


# Which groups are worth training on.


@dataclass(frozen=True)
class Mixed:
    """DAPO's dynamic sampling: keep groups whose members differ in outcome; the others have zero advantage everywhere."""

    rounds: int = 10

    def keep(self, group: Group) -> bool:
        return len({t.success for t in group.trajectories}) > 1
