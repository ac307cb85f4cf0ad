"""Asynchronous rollouts: results do not depend on timing, and no episode waits for another's long completion."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scripted import ScriptedPolicy, stumble_through_countdown
from small_worlds import Corridor, Signs, corridor

from tacit.core.errors import TacitError
from tacit.core.method import Alike
from tacit.core.protocols import Request, Sampling, Scheduler, SchedulingSampler
from tacit.core.types import StopReason
from tacit.prompts.history import History
from tacit.rollout.encoding import BatchScheduler, open_scheduler
from tacit.rollout.episodes import EpisodePlan, RolloutObserver, rollout, rollout_groups
from tacit.rollout.workers import WorkerPool
from tacit.rollout.worlds import InProcessPool
from tacit.worlds import get_environment

COUNTDOWN = get_environment("countdown")
BARE = History(Signs(), turns=None, style="bare")


class TickingPolicy(ScriptedPolicy):
    """A scripted policy with a simulated clock: a completion takes `ticks(prompt)` ticks."""

    def __init__(self, answer, ticks, context_limit: int = 100_000) -> None:
        super().__init__(answer, context_limit)
        self.ticks, self.now = ticks, 0
        self.finished: list[tuple[int, str]] = []
        """(time, prompt) of every completion, in the order of return"""
        self.open = 0

    def open_scheduler(self, sampling, hidden=None) -> TickingScheduler:
        self.open += 1
        return TickingScheduler(self, sampling, hidden)


class TickingScheduler:
    def __init__(self, policy, sampling, hidden) -> None:
        self._policy, self._sampling, self._layer = policy, sampling, hidden
        self._under_way = {}
        self._submitted = 100

    def submit(self, request) -> int:
        self._submitted += 1
        prompt = self._policy.decode(request.prompt)
        self._under_way[self._submitted] = (self._policy.now + self._policy.ticks(prompt), request)
        return self._submitted

    def wait(self):
        if not self._under_way:
            return []
        policy = self._policy
        policy.now = min(due for due, _ in self._under_way.values())
        due = [request_id for request_id, (when, _) in self._under_way.items() if when == policy.now]
        requests = [self._under_way.pop(request_id)[1] for request_id in due]
        policy.finished += [(policy.now, policy.decode(request.prompt)) for request in requests]
        # reversed: the order of completions must not matter
        return list(zip(due, policy.sample(requests, self._sampling, self._layer), strict=True))[::-1]

    def close(self) -> None:
        self._policy.open -= 1


def by_length(prompt: str) -> int:
    """Corridors of length 3 take 50 ticks, others 2."""
    return 50 if prompt.startswith("walk 3") else 2


def walk(tasks, ticks=by_length, max_steps=10, limit=100_000, answer=lambda prompt, seed: "forward", **options):
    policy = TickingPolicy(answer, ticks, limit)
    plans = [EpisodePlan(task, seed=i) for i, task in enumerate(tasks)]
    pool = InProcessPool(Corridor, 5.0)
    try:
        return rollout(plans, BARE, pool, policy, Sampling(max_tokens=8), max_steps, **options), policy
    finally:
        assert policy.open == 0, "the scheduler is closed after any error"


def test_long_completion_delays_only_its_own_episode():
    played, policy = walk([corridor(9), corridor(3), corridor(8)])
    assert [t.stop for t in played] == [StopReason.SUCCESS] * 3 and [len(t) for t in played] == [9, 3, 8]
    long = [when for when, prompt in policy.finished if prompt.startswith("walk 3")]
    short = [when for when, prompt in policy.finished if prompt.startswith("walk 9")]
    assert long == [50, 100, 150] and short == [2 * turn for turn in range(1, 10)]


class Unrepeatable(TickingPolicy):
    repeatable = False


class Waiting(Corridor):
    """The first step waits until the file that is the task's trouble exists."""

    def step(self, action):
        while self._data["trouble"] and not Path(self._data["trouble"]).exists():
            time.sleep(0.01)
        return super().step(action)


class Touching(RolloutObserver):
    """Creates the file when an episode has ended."""

    def __init__(self, file: Path) -> None:
        self.file, self.ended = file, list[int]()

    def on_episode_end(self, index, trajectory):
        self.ended.append(index)
        self.file.touch()


def play_with_a_waiting_world(tmp_path, repeatable, **options):
    kind = TickingPolicy if repeatable else Unrepeatable
    policy = kind(lambda prompt, seed: "forward", by_length)
    observer = Touching(tmp_path / "ended")
    plans = [EpisodePlan(corridor(2, str(observer.file)), 0), EpisodePlan(corridor(4), 1)]
    pool = WorkerPool(Waiting, 2, timeout_s=60.0 if not options and not repeatable else 1.0)
    try:
        played = rollout(plans, BARE, pool, policy, Sampling(max_tokens=8), 10, observer=observer, **options)
    finally:
        pool.close()
    return [(t.stop, len(t)) for t in played], observer.ended


@pytest.mark.slow
def test_slow_step_delays_only_its_own_episode(tmp_path):
    """The world answers only after the other episode has ended."""
    played, ended = play_with_a_waiting_world(tmp_path, repeatable=False)
    assert played == [(StopReason.SUCCESS, 2), (StopReason.SUCCESS, 4)] and ended == [1, 0]


@pytest.mark.slow
@pytest.mark.parametrize(("repeatable", "options"), [(True, {}), (False, {"lockstep": True})])
def test_rollout_waits_for_slow_steps_if_batches_may_not_depend_on_timing(tmp_path, repeatable, options):
    played, ended = play_with_a_waiting_world(tmp_path, repeatable, **options)
    assert played == [(StopReason.WORLD_HANG, 0), (StopReason.SUCCESS, 4)] and ended == [0, 1]


def test_lockstep_waits_for_every_completion():
    _, policy = walk([corridor(9), corridor(3), corridor(8)], lockstep=True)
    assert [len(call) for call in policy.calls] == [3, 3, 3, 2, 2, 2, 2, 2, 1] and policy.finished == []


def test_trajectories_do_not_depend_on_completion_times():
    context = History(COUNTDOWN.wording("terse"), turns=1, style="bare")

    def play(policy, **options):
        tasks = COUNTDOWN.tasks("train", 4, 0)
        groups = rollout_groups(tasks, 3, 5, Alike(), context, InProcessPool(COUNTDOWN.make), policy, Sampling(), 12, **options)
        return [[(t.seed, t.stop, t.final, [s.completion.text for s in t.steps]) for t in g.trajectories] for g in groups]

    expected = play(ScriptedPolicy(stumble_through_countdown))
    for ticks in (lambda prompt: 1, lambda prompt: 1 + sum(map(ord, prompt)) % 17):
        policy = TickingPolicy(stumble_through_countdown, ticks)
        assert play(policy) == expected == play(policy, lockstep=True)
        assert policy.finished and play(policy) == expected


@pytest.mark.parametrize(
    ("trouble", "steps", "reason"),
    [("raise", 1, StopReason.WORLD_ERROR), ("reset", 0, StopReason.WORLD_ERROR), ("hang_in_reset", 0, StopReason.WORLD_HANG)],
)
def test_failing_world_ends_only_its_own_episode(trouble, steps, reason):
    policy = TickingPolicy(lambda prompt, seed: "forward", by_length)
    tasks = [corridor(4), corridor(6, trouble, at=1), corridor(3)]
    plans = [EpisodePlan(task, seed=i) for i, task in enumerate(tasks)]
    played = rollout(plans, BARE, InProcessPool(Corridor, 0.2), policy, Sampling(max_tokens=8), 10)
    assert [(t.stop, len(t)) for t in played] == [(StopReason.SUCCESS, 4), (reason, steps), (StopReason.SUCCESS, 3)]


def test_too_long_prompt_ends_only_its_own_episode():
    wordy = replace(corridor(9), goal="walk 9 " + "and " * 20)
    played, _ = walk([corridor(4), wordy, corridor(3)], limit=13 + 14 + 8)
    assert [t.stop for t in played] == [StopReason.SUCCESS, StopReason.PROMPT_TOO_LONG, StopReason.SUCCESS]
    assert [len(t) for t in played] == [4, 0, 3]


def test_step_limit_applies_to_each_episode():
    played, _ = walk([corridor(9), corridor(3), corridor(2)], max_steps=3)
    assert [t.stop for t in played] == [StopReason.STEP_LIMIT, StopReason.SUCCESS, StopReason.SUCCESS]


def test_observer_is_called_per_turn_and_when_episodes_end():
    class Noting(RolloutObserver):
        def __init__(self):
            self.ended, self.turns = {}, 0

        def on_turn(self, completion, valid):
            self.turns += valid

        def on_episode_end(self, index, trajectory):
            self.ended[index] = (self.turns, trajectory)

    noting = Noting()
    played, _ = walk([corridor(9), corridor(3), corridor(8), corridor(2, "reset")], observer=noting)
    assert next(iter(noting.ended)) == 3 and [noting.ended[i][1] for i in range(4)] == played
    assert noting.ended[3][0] == 0 and noting.turns == sum(len(t) for t in played), "the episode whose reset failed ends first"
    turns_at_end = [turns for turns, _ in noting.ended.values()]
    assert turns_at_end == sorted(set(turns_at_end)), "episodes are reported when they end, not all at the end"


def test_sampler_error_closes_the_scheduler():
    def answer(prompt, seed):
        raise TacitError("the endpoint is down")

    with pytest.raises(TacitError, match="endpoint is down"):
        walk([corridor(4)], answer=answer)


def test_scheduler_that_loses_requests_raises():
    class Forgetful(TickingPolicy):
        def open_scheduler(self, sampling, hidden=None):
            scheduler = super().open_scheduler(sampling, hidden)
            scheduler.wait = list
            return scheduler

    policy = Forgetful(lambda prompt, seed: "forward", by_length)
    with pytest.raises(TacitError, match="TickingScheduler returned nothing, but 2 requests are pending"):
        rollout([EpisodePlan(corridor(2), i) for i in range(2)], BARE, InProcessPool(Corridor), policy, Sampling(), 5)


def test_batch_scheduler_samples_all_pending_requests_at_once():
    policy = ScriptedPolicy(lambda prompt, seed: f"{prompt}!")
    assert not isinstance(policy, SchedulingSampler)
    scheduler = open_scheduler(policy, Sampling(max_tokens=3), None)
    assert isinstance(scheduler, BatchScheduler) and isinstance(scheduler, Scheduler) and scheduler.wait() == []
    request_ids = [scheduler.submit(Request(policy.encode_prompt(word))) for word in "ab"]
    assert [(request_id, c.text) for request_id, c in scheduler.wait()] == [(request_ids[0], "a!"), (request_ids[1], "b!")]
    later = scheduler.submit(Request(np.zeros(0, np.int64)))
    assert later not in request_ids and len(policy.calls) == 1
    scheduler.close()
    assert scheduler.wait() == [] and len(policy.calls) == 1
