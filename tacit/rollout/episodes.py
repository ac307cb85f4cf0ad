"""Rollouts: episodes in groups, stepped asynchronously.

Whenever completions arrive, their worlds are stepped together and the next prompts are submitted, so a long completion delays
only its own episode. Seeds depend on the task, the group member and the turn, so samples do not depend on timing. The last bits
of log-probabilities may depend on the requests sampled together. Where the engine promises equal bits (`policy.repeatable`), a
rollout therefore waits for the slowest world; elsewhere a slow step delays only its own episode, like a long completion.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tacit.core.actions import ActionFormat, Parsed
from tacit.core.errors import TacitError, describe_error
from tacit.core.method import Conditions, Context, Pending, PromptReader
from tacit.core.progress import format_duration, pluralize
from tacit.core.protocols import Request, Sampling, SamplingPolicy, Tokenizer
from tacit.core.seeds import derive
from tacit.core.types import (
    PLAIN,
    Completion,
    Condition,
    Group,
    HiddenState,
    Observation,
    Prompt,
    Step,
    StopReason,
    Task,
    Trajectory,
    Transition,
)
from tacit.rollout.encoding import encode_prompts, fit_prompt, open_scheduler
from tacit.rollout.worlds import WorldFailure, WorldPool


class RolloutObserver:
    """Callbacks during a rollout. This base class ignores them all."""

    def on_start(self, worlds: WorldPool) -> None:
        """Called before the first episode, with the world pool."""

    def on_turn(self, completion: Completion, valid: bool) -> None:
        """Called for each completion; `valid`: it is in the full format."""

    def on_episode_end(self, index: int, trajectory: Trajectory) -> None:
        """Called when the episode of plan `index` ends."""

    def on_end(self) -> None:
        """Called after the last episode."""


NO_OBSERVER = RolloutObserver()

STEP_S = 0.1
"""seconds to wait for worlds before sampling goes on without them; longer steps are recorded after a later completion"""


@dataclass(frozen=True)
class EpisodePlan:
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
    hidden: HiddenState | None = None,
    *,
    lockstep: bool = False,
    observer: RolloutObserver = NO_OBSERVER,
) -> list[Group]:
    """Play `size` episodes of each task; one group per task. Member m of task i has the seed derive(seed, i, m)."""
    plans = []
    conditions = conditions.with_actor(policy)
    for i, task in enumerate(tasks):
        assigned = conditions.assign(task, size, derive(seed, "conditions", i))
        if len(assigned) != size:
            raise TacitError(
                f"{conditions!r} returned {len(assigned)} conditions for a group of {size}; return one per member."
            )
        plans += [EpisodePlan(task, derive(seed, i, m), condition) for m, condition in enumerate(assigned)]
    played = rollout(plans, context, worlds, policy, sampling, max_steps, hidden, lockstep=lockstep, observer=observer)
    return [Group(task, tuple(played[i * size : (i + 1) * size])) for i, task in enumerate(tasks)]


def rollout(
    plans: Sequence[EpisodePlan],
    context: Context,
    worlds: WorldPool,
    policy: SamplingPolicy,
    sampling: Sampling,
    max_steps: int,
    hidden: HiddenState | None = None,
    *,
    lockstep: bool = False,
    observer: RolloutObserver = NO_OBSERVER,
) -> list[Trajectory]:
    """Play one episode per plan. `lockstep`: step all episodes together, even if the sampler has a scheduler."""
    form = context.format
    sampling = replace(sampling, stop=tuple(dict.fromkeys((*form.stop, *sampling.stop))))
    episodes = [_Episode(plan) for plan in plans]
    observer.on_start(worlds)
    for episode, first in zip(episodes, worlds.reset([plan.task for plan in plans]), strict=True):
        episode.start(first, context)
    pending_slots: dict[int, int] = {}  # request id -> slot
    stepping: dict[int, tuple[Completion, Parsed]] = {}  # slot -> its action, while the world has not answered
    answering: dict[int, tuple[Completion, Parsed, Pending]] = {}  # slot -> its pending question to the context
    limit_s = None if lockstep or policy.repeatable else STEP_S
    ready, ended = list(range(len(episodes))), dict[int, Trajectory]()
    """slots that need their next prompt; finished episodes by slot"""
    with contextlib.closing(open_scheduler(policy, sampling, hidden, lockstep)) as scheduler:
        while True:
            prompted = [slot for slot in ready if episodes[slot].render_prompt(max_steps)]
            tokens = dict(zip(prompted, encode_prompts([episodes[slot].prompt for slot in prompted], policy), strict=True))
            for slot in ready:
                episode = episodes[slot]
                if slot in tokens and episode.fit_prompt(tokens[slot], policy, sampling):
                    seed = derive(episode.plan.seed, len(episode.steps))
                    pending_slots[scheduler.submit(Request(episode.tokens, seed, episode=slot))] = slot
                else:
                    ended[slot] = episode.trajectory()
                    observer.on_episode_end(slot, ended[slot])
            if not pending_slots and not stepping and not answering:
                return [ended[slot] for slot in range(len(episodes))]

            finished = scheduler.wait()
            if pending_slots and not finished:
                raise TacitError(f"{type(scheduler).__name__} returned nothing, but {len(pending_slots)} requests are pending.")
            completions = {pending_slots.pop(request_id): completion for request_id, completion in finished}
            parsed = {slot: episodes[slot].parse_action(completions[slot], form) for slot in sorted(completions)}
            for slot, act in parsed.items():
                observer.on_turn(completions[slot], act is not None and act.valid)

            # Questions go to the context (search_and_ask), all other actions to the world.
            for slot, act in parsed.items():
                if act and (pending := episodes[slot].ask(act)):
                    answering[slot] = completions[slot], act, pending
            acting = {s: act for s, act in parsed.items() if act and episodes[s].stop is None and s not in answering}
            if acting:
                worlds.submit([(slot, act.action) for slot, act in acting.items()])
            stepping |= {slot: (completions[slot], act) for slot, act in acting.items()}
            results = worlds.collect(limit_s) if stepping else {}
            ready = [slot for slot in parsed if slot not in acting and slot not in answering]
            idle = not pending_slots and not ready and not stepping
            answered = [slot for slot, (*_, pending) in answering.items() if pending.done()]
            for slot in answered or (list(answering)[:1] if idle else []):
                episodes[slot].record_answer(*answering.pop(slot))
                ready.append(slot)
            for slot in sorted(results):
                episodes[slot].record_step(*stepping.pop(slot), results[slot])
                ready.append(slot)


class _Episode:
    """The mutable state of one running episode.

    If a wording or tracker raises, only this episode ends, as with a world. A TacitError is a user error and ends the run.
    """

    prompt: Prompt
    tokens: np.ndarray
    reader: PromptReader

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
        with self._end_on_error("beginning the episode"):
            self.reader = context.begin(self.plan.task, self.plan.condition)

    def render_prompt(self, max_steps: int) -> bool:
        """Render the next prompt. False if the episode is over."""
        limit = self.plan.task.data.get("max_steps", max_steps)
        if self.stop is None and len(self.steps) >= min(max_steps, limit):
            self.stop = StopReason.STEP_LIMIT
        if self.stop is not None:
            return False
        with self._end_on_error(self.reader.reading):
            self.prompt = self.reader.read(self.observation)
        return self.stop is None

    def fit_prompt(self, tokens: np.ndarray, policy: Tokenizer, sampling: Sampling) -> bool:
        """Truncate the prompt's history to the context limit. If it still does not fit, end the episode and return False."""
        self.prompt, self.tokens, fits = fit_prompt(self.prompt, policy, sampling.max_tokens, tokens)
        if not fits:
            self.stop = StopReason.PROMPT_TOO_LONG
            self.detail = f"{len(self.tokens)} prompt + {sampling.max_tokens} new tokens > {policy.context_limit}"
        return fits

    def parse_action(self, completion: Completion, form: ActionFormat) -> Parsed | None:
        """The action in a completion. If the format raises, ends the episode and returns None."""
        with self._end_on_error("reading the action"):
            return form.parse(completion.text)
        return None

    def ask(self, act: Parsed) -> Pending | None:
        """The pending answer if this action is a question to the context; None if it is an action in the world."""
        with self._end_on_error("asking"):
            return self.reader.ask(act.action)
        return None

    def record_answer(self, completion: Completion, act: Parsed, pending: Pending) -> None:
        answer = None
        with self._end_on_error("asking"):
            answer = pending.result().in_plain_numbers()
        if answer is not None:
            self.record_step(completion, act, answer)

    def record_step(self, completion: Completion, act: Parsed, result: Transition | WorldFailure) -> None:
        if isinstance(result, WorldFailure):
            self.stop, self.detail = result.reason, result.detail
            return
        with self._end_on_error("recording the turn"):
            invalid_text = None if act.valid else completion.text
            signals = {**result.signals, **self.reader.record(act.action, result, invalid_text)}
        if self.stop is not None:
            return
        self.steps.append(
            Step(
                self.observation, self.prompt, self.tokens, completion, act.action, valid=act.valid, effective=result.effective,
                label=result.label, signals=signals, reward=result.reward, thought=act.thought, answer=result.answer
            )
        )  # fmt: skip
        self.observation = result.observation
        self.success, self.score = result.success, max(result.score, float(result.success))
        if result.done or self.success:
            self.stop = StopReason.SUCCESS if self.success else StopReason.FAILURE
            self.detail = result.label

    @contextlib.contextmanager
    def _end_on_error(self, doing: str) -> Iterator[None]:
        try:
            yield
        except TacitError:
            raise
        except (Exception, SystemExit) as error:
            self.stop, self.detail = StopReason.WORLD_ERROR, f"{doing}: {describe_error(error)}"

    def trajectory(self) -> Trajectory:
        assert self.stop is not None
        return Trajectory(
            self.plan.task, tuple(self.steps), self.success, self.score, self.stop, final=self.observation,
            condition=self.plan.condition, detail=self.detail, seed=self.plan.seed
        )  # fmt: skip


SLOW_WORLD_S = 3.0  # seconds without an answer after which the status line names the world

SHOWN_CHARACTERS = 300  # of a completion, in messages


class RolloutProgress(RolloutObserver):
    """Counts episodes, turns and tokens, and estimates the time left."""

    def __init__(
        self,
        episodes: int,
        max_steps: int = 0,
        policy: SamplingPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`policy`: its `written_tokens` also counts tokens of unfinished completions."""
        self._episodes, self._max_steps, self._policy, self._clock = episodes, max_steps, policy, clock
        self._began = clock()
        self._before, self._done, self._turns, self._turns_of_done, self._tokens = 0, 0, 0, 0, 0
        self._written_before = policy.written_tokens if policy else 0
        self._worlds: WorldPool | None = None
        self.first: tuple[Completion, bool] | None = None
        """(first usable completion, whether it is in the full format)"""

    def resume(self, played: int) -> None:
        """Count `played` episodes of an earlier process as done, and restart the clock."""
        self._before, self._began = played, self._clock()

    def on_start(self, worlds: WorldPool) -> None:
        self._worlds = worlds

    def on_turn(self, completion: Completion, valid: bool) -> None:
        self._turns += 1
        self._tokens += len(completion.tokens)
        if self.first is None and completion.finish != "unusable":
            self.first = (completion, valid)

    def on_episode_end(self, index: int, trajectory: Trajectory) -> None:
        self._done += 1
        self._turns_of_done += len(trajectory)

    @property
    def played(self) -> str:
        """`31 turns`"""
        return pluralize(self._turns, "turn")

    def status(self) -> list[str]:
        """`2 of 4 episodes`, `31 turns`, `210 tok/s`, `about 3 min 20 s left`"""
        spent, ended = self._clock() - self._began, self._before + self._done
        # Dynamic sampling may play more episodes than planned.
        total = pluralize(self._episodes, "episode")
        parts = [f"{ended} of {total}" if ended <= self._episodes else pluralize(ended, "episode"), self.played]
        written = max(self._policy.written_tokens - self._written_before if self._policy else 0, self._tokens)
        if written and spent > 0:
            speed = written / spent
            parts.append(f"{speed:.0f} tok/s" if speed >= 100 else f"{speed:.3g} tok/s")
        if not self._turns:
            parts.append(f"waiting for the first answer, {format_duration(spent)}")
        elif left := self._time_left(spent):
            parts.append(left)
        slowest = self._worlds.slowest_call if self._worlds else None
        return [*parts, str(slowest)] if slowest is not None and slowest.seconds >= SLOW_WORLD_S else parts

    def _time_left(self, spent: float) -> str:
        """Estimate with a constant probability per turn that an episode ends, and the step limit. The mean length of finished
        episodes would be too low, because short episodes finish first."""
        running = self._episodes - self._before - self._done
        if running <= 0 or not (self._done or self._max_steps):
            return ""
        limit = self._max_steps - (self._turns - self._turns_of_done) / running if self._max_steps else math.inf
        each = min(self._turns / self._done, limit) if self._done else limit
        return f"{'about' if self._done else 'at most'} {format_duration(spent / self._turns * running * each)} left"


def truncate(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]} …"


def describe_completion(what: str, completion: Completion, valid: bool) -> str:
    parses = "" if valid else ", not in the full format"
    cut = ", cut off by --max-tokens" if completion.finish == "length" else ""
    return f"{what}, of {pluralize(len(completion.tokens), 'token')}{parses}{cut}: {truncate(completion.text)!r}"


@dataclass(frozen=True)
class Mixed:
    """DAPO's dynamic sampling: keep groups whose members differ in outcome. The others have zero advantage everywhere."""

    rounds: int = 10

    def keep(self, group: Group) -> bool:
        return len({t.success for t in group.trajectories}) > 1
