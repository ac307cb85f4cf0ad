"""Audit sets: who plays them, and what is kept."""

from __future__ import annotations

import random

import pytest
from scripted import Words

from tacit.calibration.audit import Again, Noisy, audit, spread_over_families
from tacit.contexts.history import History
from tacit.core.errors import TacitError
from tacit.core.types import Observation
from tacit.environments import get_environment

WORLD = get_environment("countdown")
CONTEXT = History(WORLD.wording("terse"), 1, False, "bare")
TASKS = WORLD.tasks("train", 24, 0)


def make(player, tasks=None, **more):
    chosen = spread_over_families(TASKS, 2) if tasks is None else tasks
    return audit(WORLD, [(task, 3) for task in chosen], CONTEXT, Words(), player, 8, **more)


def expert(task, member):
    return Noisy(WORLD.expert()(task), 0.3, random.Random(f"{task.id}/{member}"))


def test_every_step_knows_its_episode_task_and_family():
    played = make(expert)
    assert played.families == tuple(dict.fromkeys(t.family for t in spread_over_families(TASKS, 2)))
    assert len(played) == len(played.task_N) == len(played.episode_N) == len(played.family_N)
    assert len(set(played.episode_N.tolist())) == 12 and set(played.task_N.tolist()) == {0, 1, 2, 3}
    assert (played.labels_N == played.family_N).all()
    for task in range(4):
        assert len(set(played.family_N[played.task_N == task].tolist())) == 1
    again = make(expert)
    assert [p.tolist() for p in again.prompts] == [p.tolist() for p in played.prompts]


def test_with_one_family_the_probe_asks_for_the_task():
    one = [t for t in TASKS if t.family == TASKS[0].family][:2]
    played = make(expert, one)
    assert len(played.families) == 1 and (played.labels_N == played.task_N).all()


def test_recorded_actions_are_repeated():
    task = TASKS[0]
    actions = []

    class Listening(Noisy):
        def act(self, observation):
            actions.append(super().act(observation))
            return actions[-1]

    first = audit(WORLD, [(task, 1)], CONTEXT, Words(), lambda t, m: Listening(None, 1.0, random.Random(0)), 8,
                  lambda t, m: 5)  # fmt: skip
    again = audit(WORLD, [(task, 1)], CONTEXT, Words(), lambda t, m: Again(actions), 8, lambda t, m: len(actions))
    assert [p.tolist() for p in first.prompts] == [p.tolist() for p in again.prompts] and len(first) == len(actions)


def test_a_broken_episode_is_left_out_and_a_silent_world_says_so():
    def breaks(task, member):
        return Again([]) if member == 0 else expert(task, member)

    assert len(set(make(breaks).episode_N.tolist())) == 8
    with pytest.raises(TacitError, match="could be played"):
        make(lambda task, member: Again([]))
    with pytest.raises(TacitError, match="lists no actions"):
        Noisy(None, 1.0, random.Random(0)).act(Observation("nothing to do"))
