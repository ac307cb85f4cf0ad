"""Episodes beside learning: one iteration behind, with the weights from before, and nothing drawn twice or left out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from scripted import ScriptedPolicy
from test_loop import TASKS, WORLD, build, half_hearted

from tacit.core.errors import TacitError
from tacit.rollout.worlds import InPlace
from tacit.training.loop import Loop
from tacit.training.overlap import check_overlap
from tacit.training.playground import Playground
from tacit.training.practice import Practice
from tacit.training.settings import TrainSettings


class Waiting(ScriptedPolicy):
    """Its sampler has weights of its own, and can be held."""

    def __init__(self) -> None:
        super().__init__(half_hearted)
        self.version = self.sampled = 0
        self.is_held = False
        self.played = threading.Event()

    def sample(self, requests, sampling, layer=None):
        if not self.is_held:
            self.sampled = self.version
        self.played.set()
        return [replace(c, version=self.sampled) for c in super().sample(requests, sampling, layer)]

    def update(self, batch, losses, lr):
        if self.is_held:
            assert self.played.wait(10.0), "nothing is played while this is learned"
        self.version += 1
        return {**super().update(batch, losses, lr), "behaviour_gap": 0.25}

    @contextmanager
    def held(self) -> Iterator[None]:
        self.sampled, self.is_held = self.version, True
        self.played.clear()
        try:
            yield
        finally:
            self.is_held = False


def loop_of(policy, iterations: int = 4, behind: bool = True) -> Loop:
    return Loop([Playground(build(), TASKS, InPlace(WORLD.make), 16, 4)], policy, 0, iterations, behind=behind)


def test_each_iteration_is_played_one_update_behind():
    policy = Waiting()
    loop = loop_of(policy)
    done = [loop.iterate(n) for n in range(1, 5)]
    assert [d.metrics["versions_behind"] for d in done] == [0, 1, 1, 1]
    assert policy.version == len(policy.updates) == 4
    calm = loop_of(Waiting(), behind=False)
    tasks = [[g.task.id for g in d.played] for d in done]
    assert tasks == [[g.task.id for g in calm.iterate(n).played] for n in range(1, 5)], "the walk is the same"


def test_what_was_played_ahead_counts_once_it_is_learned_from():
    loop = loop_of(Waiting())
    loop.iterate(1)
    assert loop.learned == {"": 3} and loop.drawn == {"": 6}
    resumed = loop_of(Waiting())
    resumed.drawn = dict(loop.learned)
    again = resumed.iterate(2)
    assert [g.task.id for g in again.played] == [g.task.id for g in loop.iterate(2).played]


def test_an_error_of_either_half_is_raised_once_both_are_over():
    policy = Waiting()
    loop = loop_of(policy)

    def fail(*_):
        policy.played.wait(10.0)
        raise TacitError("no more memory, say")

    policy.update = fail
    with pytest.raises(TacitError, match="no more memory"):
        loop.iterate(1)
    assert not policy.is_held


def test_it_is_refused_where_episodes_read_what_is_learned_beside():
    def practice(method) -> Practice:
        return Practice.of(WORLD, method, TrainSettings(overlap=1, tasks=8))

    check_overlap(TrainSettings(), ScriptedPolicy(half_hearted), [])
    check_overlap(TrainSettings(overlap=1), Waiting(), [practice(build())])
    with pytest.raises(TacitError, match=r"--engine.servers 1"):
        check_overlap(TrainSettings(overlap=1), ScriptedPolicy(half_hearted), [practice(build())])
    banked = replace(build(), companions=(SimpleNamespace(name="bank"),))
    with pytest.raises(TacitError, match=r"'grpo' learns bank .*--overlap 0"):
        check_overlap(TrainSettings(overlap=1), Waiting(), [practice(banked)])


def test_the_gap_is_that_of_the_first_step():
    class Moving(Waiting):
        def update(self, batch, losses, lr):
            return {**super().update(batch, losses, lr), "behaviour_gap": 0.1 * self.version}

    policy = Moving()
    method = build(epochs=3)
    done = Loop([Playground(method, TASKS, InPlace(WORLD.make), 16, 4)], policy, 0).iterate(1)
    assert done.metrics["behaviour_gap"] == pytest.approx(0.3) and done.metrics["sampler_gap"] == pytest.approx(0.1)
