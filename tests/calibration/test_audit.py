"""Audit sets: who plays the episodes, and which steps are kept."""

from __future__ import annotations

import random

import pytest
from scripted import ScriptedPolicy, Words, stumble_through_countdown

from tacit.calibration import NoisyAgent, audit, play_audit, spread_over_families
from tacit.core.errors import TacitError
from tacit.core.protocols import Sampling
from tacit.evaluation.evaluate import RolloutSetup
from tacit.prompts.history import History
from tacit.rollout.worlds import InProcessPool
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
CONTEXT = History(WORLD.wording("terse"), 1, False, "bare")
TASKS = WORLD.tasks("train", 24, 0)


def make(player, tasks=None, **more):
    chosen = spread_over_families(TASKS, 2) if tasks is None else tasks
    return audit(WORLD, chosen, 3, CONTEXT, Words(), player, 8, WORLD.max_steps, **more)


def expert(task, member):
    return NoisyAgent(WORLD.expert()(task), 0.3, random.Random(f"{task.id}/{member}"))


def test_every_step_knows_its_episode_task_and_family():
    played = make(expert)
    assert played.families == tuple(dict.fromkeys(t.family for t in spread_over_families(TASKS, 2)))
    assert len(played) == len(played.task_N) == len(played.episode_N) == len(played.family_N)
    assert len(set(played.episode_N.tolist())) == 12 and set(played.task_N.tolist()) == {0, 1, 2, 3}
    for task in range(4):
        assert len(set(played.family_N[played.task_N == task].tolist())) == 1
    again = make(expert)
    assert [p.tolist() for p in again.prompts] == [p.tolist() for p in played.prompts]


def test_tasks_alternate_between_families():
    families = list(dict.fromkeys(t.family for t in TASKS))
    assert [t.family for t in spread_over_families(TASKS, 3)] == families * 3
    assert len(spread_over_families(TASKS, 1000)) == len(TASKS)


def test_step_limit_counts_played_steps():
    tasks = spread_over_families(TASKS, 5)

    def play(most: int, at_least: int = 0) -> tuple[int, int]:
        found = audit(WORLD, tasks, 3, CONTEXT, Words(), expert, 8, 6, most=most, at_least=at_least)
        assert most > 1 or found.task_N.max() + 1 == max(1, at_least)
        return len(set(found.task_N.tolist())), len(set(found.episode_N.tolist()))

    assert play(10 * 3 * 6) == (10, 30), "all of them fit"
    assert play(1) == (1, 3), "a task that was begun is played whole"
    assert play(1, at_least=4) == (4, 12)


def make_setup(answer=stumble_through_countdown, **more) -> RolloutSetup:
    sampling = Sampling(max_tokens=8)
    worlds = InProcessPool(WORLD.make)
    options = {"max_steps": 6, "group_size": 3, "seed": 0, "iteration": 1, "collect": lambda number: [], **more}
    return RolloutSetup(WORLD, worlds, CONTEXT, ScriptedPolicy(answer), TASKS, sampling, **options)


@pytest.mark.parametrize("source", ["policy", "expert"])
def test_all_requested_tasks_are_played(source):
    """The step limit counts steps actually played. It must not assume that every episode has the world's maximum length."""
    assert WORLD.max_steps * 3 * 2 * 5 > 400
    found = play_audit(make_setup(), source, tasks_each=5, members=3, most=400)
    assert len(set(found.task_N.tolist())) == 10 and len(set(found.episode_N.tolist())) == 30
    few = play_audit(make_setup(), source, tasks_each=5, members=3, most=1)
    assert len(set(few.task_N.tolist())) == 4, "two of each family, whatever they take"


def test_policy_plays_its_own_episodes():
    setup = make_setup()
    play_audit(setup, "policy", 2, 3, 400)
    assert setup.policy.calls and all(s.temperature == 1.0 for s in setup.policy.samplings)
    with pytest.raises(TacitError, match="unknown audit agent"):
        play_audit(setup, "oracle", 2, 3, 400)


class Silent:
    def act(self, observation):
        raise StopIteration


def test_broken_episode_is_left_out():
    assert len(set(make(lambda task, member: expert(task, member) if member else Silent()).episode_N.tolist())) == 8
    with pytest.raises(TacitError, match="could be played"):
        make(lambda task, member: Silent())
