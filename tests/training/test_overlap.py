"""Overlapped rollouts: played one update behind with pinned weights; no task is drawn twice or skipped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from scripted import ScriptedPolicy
from test_loop import TASKS, WORLD, build, half_hearted

from tacit.core.errors import TacitError
from tacit.core.method import Companion
from tacit.methods import METHODS, get_method
from tacit.methods.opid import OPID
from tacit.methods.reuserl import ReuseRL
from tacit.rollout.worlds import InProcessPool
from tacit.training.loop import Collector, Loop, check_overlap, check_overlap_policy
from tacit.training.settings import TrainSettings


class Waiting(ScriptedPolicy):
    """A policy whose sampler can keep its weights pinned during an update."""

    version = 0

    def __init__(self) -> None:
        super().__init__(half_hearted)
        self.sampled = 0
        self.is_held = False
        self.played = threading.Event()

    def sample(self, requests, sampling, hidden=None):
        if not self.is_held:
            self.sampled = self.version
        self.played.set()
        return [replace(c, version=self.sampled) for c in super().sample(requests, sampling, hidden)]

    def update(self, batch, losses, lr):
        if self.is_held:
            assert self.played.wait(10.0), "no rollout ran during the update"
        self.version += 1
        return {**super().update(batch, losses, lr), "behaviour_gap": 0.25}

    @contextmanager
    def pin_weights(self) -> Iterator[None]:
        self.sampled, self.is_held = self.version, True
        self.played.clear()
        try:
            yield
        finally:
            self.is_held = False


def loop_of(policy, iterations: int = 4, overlap: bool = True) -> Loop:
    return Loop([Collector(build(), TASKS, InProcessPool(WORLD.make), 16, 4)], policy, 0, iterations, overlap=overlap)


def test_overlapped_iterations_are_one_update_behind():
    policy = Waiting()
    loop = loop_of(policy)
    done = [loop.iterate(n) for n in range(1, 5)]
    assert [d.metrics["versions_behind"] for d in done] == [0, 1, 1, 1]
    assert policy.version == len(policy.updates) == 4
    calm = loop_of(Waiting(), overlap=False)
    tasks = [[g.task.id for g in d.played] for d in done]
    assert tasks == [[g.task.id for g in calm.iterate(n).played] for n in range(1, 5)], "same task order"


def test_resume_replays_rollouts_that_were_not_trained_on():
    loop = loop_of(Waiting())
    loop.iterate(1)
    assert loop.drawn_at_update == {"": 3} and loop.drawn == {"": 6}
    resumed = loop_of(Waiting())
    resumed.drawn = dict(loop.drawn_at_update)
    again = resumed.iterate(2)
    assert [g.task.id for g in again.played] == [g.task.id for g in loop.iterate(2).played]


def test_update_error_is_raised_after_the_rollout_ends():
    policy = Waiting()
    loop = loop_of(policy)

    def fail(*_):
        policy.played.wait(10.0)
        raise TacitError("no more memory, say")

    policy.update = fail
    with pytest.raises(TacitError, match="no more memory"):
        loop.iterate(1)
    assert not policy.is_held


def test_overlap_is_refused_without_pinned_weights_or_with_shared_state():
    check_overlap(TrainSettings(), [build()], can_pin_weights=False)
    check_overlap(TrainSettings(overlap=1), [build()])
    with pytest.raises(TacitError, match=r"--engine.servers 1"):
        check_overlap(TrainSettings(overlap=1), [build()], can_pin_weights=False)
    check_overlap_policy(TrainSettings(), ScriptedPolicy(half_hearted))
    check_overlap_policy(TrainSettings(overlap=1), Waiting())
    with pytest.raises(TacitError, match=r"--engine.servers 1"):
        check_overlap_policy(TrainSettings(overlap=1), ScriptedPolicy(half_hearted))
    bank = Companion()
    bank.name = "bank"
    banked = replace(build(), companions=(bank,))
    with pytest.raises(TacitError, match=r"does not work with 'grpo': its rollouts use what bank learned .*--overlap 0"):
        check_overlap(TrainSettings(overlap=1), [banked])


@pytest.mark.parametrize("name", METHODS)
def test_only_the_experience_bank_is_read_in_rollouts(name):
    """Companions that have observed the first iteration change no prompt of the second, so overlap is safe for them."""
    method = build(get_method(name))
    refused = [c.name for c in method.companions if c.read_in_rollouts]
    if refused:
        assert (name, refused) == ("complementary", ["experience"])
        with pytest.raises(TacitError, match="'complementary': its rollouts use what experience learned"):
            check_overlap(TrainSettings(overlap=1), [method])
        return
    check_overlap(TrainSettings(overlap=1), [method])
    seen, fresh = Versioned(), Versioned()
    loop, without = (
        Loop([Collector(method_under_test, TASKS, InProcessPool(WORLD.make), 16, 4)], policy, 0, 2)
        for method_under_test, policy in ((method, seen), (build(get_method(name)), fresh))
    )
    loop.iterate(1)
    without.drawn = dict(loop.drawn_at_update)
    again, first = loop.collect(2), without.collect(2)
    assert prompts_of(again.played) == prompts_of(first.played)


def prompts_of(played) -> list[str]:
    return [step.prompt.text for here in played for group in here for step in group.steps]


class Versioned(Waiting):
    """A policy whose samples and scores reveal its version. Safe for two threads."""

    def __init__(self) -> None:
        super().__init__()
        self.scored_at: list[int] = []
        self._one = threading.Lock()

    def _id(self, word: str) -> int:
        with self._one:
            return super()._id(word)

    def sample(self, requests, sampling, hidden=None):
        written = super().sample(requests, sampling, hidden)
        return [replace(c, logprobs=np.full(len(c.tokens), -1.0 - c.version, np.float32)) for c in written]

    def logprobs(self, prompts, completions, temperature=1.0):
        self.scored_at.append(self.version)
        return [
            np.array([-(1.0 + self.version) * ((len(p) + n) % 7 + 1) for n in range(len(c))], np.float32)
            for p, c in zip(prompts, completions, strict=True)
        ]

    def reference(self):
        return self


@pytest.mark.parametrize("settings", [OPID, ReuseRL])
def test_overlapped_credit_equals_credit_of_the_learning_policy(settings):
    """Ratios use the sampling policy's log-probabilities. Scores for credit use the policy before its update."""
    policy, collected = Versioned(), []
    loop = Loop([Collector(build(settings), TASKS, InProcessPool(WORLD.make), 16, 4)], policy, 0, 4, overlap=True)
    plays = loop.collect
    loop.collect = lambda number: collected.append(plays(number)) or collected[-1]
    done = [loop.iterate(number) for number in range(1, 5)]
    assert [d.metrics["versions_behind"] for d in done] == [0, 1, 1, 1]
    # The sequential loop's companion has observed as many iterations, each before its update.
    calm = Loop([Collector(build(settings), TASKS, InProcessPool(WORLD.make), 16, 4)], Versioned(), 0, 4)
    calm.policy._ids, calm.policy._words = policy._ids, policy._words
    for n, (batch, *_) in enumerate(policy.updates):
        written_by = max(0, n - 1)
        assert {float(x) for row in batch.behavior for x in row} == {-1.0 - written_by}, "those of the weights that sampled"
        assert calm.policy.version == n
        again = calm.learn(collected[n])
        assert [c.tokens_T.tolist() for c in again.credits] == [c.tokens_T.tolist() for c in done[n].credits]
        assert [a.tolist() for a in calm.policy.updates[n][0].advantages] == [a.tolist() for a in batch.advantages]
    if settings is OPID:
        shifted = [c.tokens_T for d in done for c in d.credits]
        assert any(len(set(np.round(tokens_T, 6))) > 4 for tokens_T in shifted), "credits must contain the skill shift"
        assert set(policy.scored_at) == {0, 1, 2, 3} and policy.scored_at == sorted(policy.scored_at)


def test_sampler_gap_is_that_of_the_first_update_step():
    class Moving(Waiting):
        def update(self, batch, losses, lr):
            return {**super().update(batch, losses, lr), "behaviour_gap": 0.1 * self.version}

    policy = Moving()
    method = build(epochs=3)
    done = Loop([Collector(method, TASKS, InProcessPool(WORLD.make), 16, 4)], policy, 0).iterate(1)
    assert done.metrics["behaviour_gap"] == pytest.approx(0.3) and done.metrics["sampler_gap"] == pytest.approx(0.1)
