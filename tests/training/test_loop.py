"""The training loop with a scripted policy: rollouts, credit and updates."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from scripted import Kit, ScriptedPolicy, make_group, solve_countdown

from tacit.core.credit import Batch, Credit
from tacit.core.errors import TacitError
from tacit.core.method import Companion, Schedule
from tacit.core.protocols import DURING_UPDATES
from tacit.core.types import Observation
from tacit.methods import METHODS, get_method
from tacit.methods.grpo import GRPO
from tacit.methods.grpo_variants import DAPO
from tacit.prompts.history import PromptSettings
from tacit.rollout.worlds import InProcessPool
from tacit.training.loop import Collector, Loop, sum_terms, update
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
TASKS = WORLD.tasks("train", 12, 0)
SMALL = {"prompt": PromptSettings(wording="terse", style="bare", history=0, admissible=False)}


@pytest.fixture(autouse=True)
def temporary_directories_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def half_hearted(prompt: str, seed: int) -> str:
    """Solves the task or fails, depending on the seed."""
    return solve_countdown(prompt) if seed % 2 else "hm"


def build(settings=GRPO, groups=3, size=4, **schedule):
    configured = settings(**SMALL, schedule=Schedule(groups=groups, group_size=size, **schedule))
    return configured.build(WORLD, Kit(ScriptedPolicy(lambda prompt, seed: "return"), Path(tempfile.mkdtemp())))


def run(method, answer=half_hearted, number=1, tasks=TASKS, make=WORLD.make, seed=0):
    policy = ScriptedPolicy(answer)
    return Loop([Collector(method, tasks, InProcessPool(make), 16, 4)], policy, seed).iterate(number), policy


def test_iteration_collects_credits_and_updates():
    method = build()
    done, policy = run(method)
    assert len(done.played) == len(done.groups) == 3 and all(len(g) == 4 for g in done.groups)
    assert len({g.task.id for g in done.groups}) == 3
    ((batch, losses, lr),) = policy.updates
    assert losses == method.losses and lr == method.schedule.lr
    assert len(batch) == sum(len(g.steps) for g in done.groups)
    # A trajectory's reward is its outcome. Its credit comes from the comparison with its group.
    for group, rewards, credit in zip(done.groups, done.rewards, done.credits, strict=True):
        won = np.array([t.success for t in group.trajectories])
        assert rewards.outcomes_G().tolist() == [10.0 * w for w in won]
        if 0 < won.sum() < 4:
            signs = [np.sign(credit.steps()[i][0]) for i in np.cumsum(group.lengths) - 1]
            assert signs == [1 if w else -1 for w in won]
    assert [a.tolist() for a in batch.advantages] == [a.tolist() for c in done.credits for a in c.steps()]
    assert [len(c) for c in batch.tokens["reference"]] == [len(c) for c in batch.completions]
    assert done.metrics["episodes"] == 12 and done.metrics["loss"] == 1.0


def test_iteration_depends_only_on_seed_and_number():
    def texts(**changes):
        done, _ = run(build(), **changes)
        return [[s.completion.text for s in t.steps] for g in done.played for t in g.trajectories]

    assert texts() == texts()
    assert texts(number=2) != texts() != texts(seed=1)


@pytest.mark.parametrize("name", METHODS)
def test_one_iteration_of_every_method(name):
    method = build(get_method(name))
    done, policy = run(method)
    ((batch, losses, _),) = policy.updates
    assert losses == method.losses
    assert {name for loss in losses for name in loss.needs} - DURING_UPDATES <= {*batch.tokens, *batch.rows, *batch.contexts}
    assert len(batch.advantages) == len(batch) and np.isfinite(np.concatenate(batch.advantages)).all()
    assert len(done.credits) == len(done.groups)


class Broken:
    def reset(self, task):
        raise RuntimeError("nothing works today")

    def close(self):
        pass


@pytest.mark.parametrize("name", METHODS)
def test_iteration_with_only_broken_worlds_makes_no_update(name):
    done, policy = run(build(get_method(name)), make=Broken)
    assert done.groups == [] and policy.updates == [] and done.metrics["crashed"] == done.metrics["episodes"] > 0


def test_broken_episodes_are_counted_and_excluded_from_training():
    class Sometimes(WORLD.make):
        worlds = 0

        def __init__(self):
            super().__init__()
            type(self).worlds += 1
            self._bad = self.worlds % 4 == 1

        def step(self, action):
            if self._bad:
                raise RuntimeError("broke")
            return super().step(action)

    done, policy = run(build(), make=Sometimes)
    assert done.metrics["crashed"] == 3
    assert [len(g) for g in done.played] == [4, 4, 4] and [len(g) for g in done.groups] == [3, 3, 3]
    assert len(policy.updates[0][0]) == sum(len(g.steps) for g in done.groups)


def collected(method, answer, tasks=TASKS):
    found = Loop([Collector(method, tasks, InProcessPool(WORLD.make), 16, 4)], ScriptedPolicy(answer)).collect(1)
    return found.played[0], found.groups[0]


def mixed(group):
    return len({t.success for t in group.trajectories}) > 1


def test_without_selection_one_round_is_played():
    played, chosen = collected(build(), half_hearted)
    assert len(played) == 3 and chosen == played


def test_dynamic_sampling_continues_until_enough_groups_are_mixed():
    # With two members half of the groups agree, so three mixed groups need more than one round.
    played, chosen = collected(build(DAPO, groups=3, size=2), half_hearted)
    assert len(chosen) == 3 and all(mixed(g) for g in chosen)
    assert len(played) > 3 and len(played) % 3 == 0
    assert sum(mixed(g) for g in played[:-3]) < 3, "no further round once enough groups are mixed"


def test_dynamic_sampling_stops_after_a_sufficient_first_round():
    played, chosen = collected(build(DAPO, groups=3, size=8), half_hearted)
    assert all(mixed(g) for g in played) and chosen == played and len(played) == 3


def test_dynamic_sampling_stops_at_its_round_limit():
    method = replace(build(DAPO), selection=replace(build(DAPO).selection, rounds=2))
    played, chosen = collected(method, lambda prompt, seed: solve_countdown(prompt))
    assert len(played) == 6 and chosen == played[3:]


def test_fewer_tasks_than_groups_are_played_once_each():
    played, _ = collected(build(), half_hearted, tasks=TASKS[:2])
    assert sorted(g.task.id for g in played) == sorted(t.id for t in TASKS[:2])


def batch_of(rows):
    group = make_group([[1]] * rows)
    return Batch.from_groups([group], [Credit.zeros(group)], 1.0)


def test_minibatches_partition_the_batch_anew_each_epoch():
    method, policy = build(epochs=2, minibatches=3), ScriptedPolicy(lambda *_: "")
    metrics = update(batch_of(10), method, policy, seed=0)
    parts = [batch.trajectory.tolist() for batch, _, _ in policy.updates]
    assert len(parts) == 6 and metrics == {"loss": 6.0}
    for epoch in (parts[:3], parts[3:]):
        assert sorted(itertools.chain(*epoch)) == list(range(10)) and sorted(map(len, epoch)) == [3, 3, 4]
    assert parts[:3] != parts[3:]


def test_single_minibatch_is_the_batch_itself():
    batch, policy = batch_of(4), ScriptedPolicy(lambda *_: "")
    update(batch, build(), policy, seed=0)
    assert policy.updates[0][0] is batch


def test_more_minibatches_than_rows_leave_none_empty():
    policy = ScriptedPolicy(lambda *_: "")
    update(batch_of(2), build(minibatches=5), policy, seed=0)
    assert [len(batch) for batch, _, _ in policy.updates] == [1, 1]


@pytest.mark.parametrize(("rows", "parts"), [(2, [2]), (4, [4]), (10, [3, 3, 4])])
def test_minibatch_rows_set_the_number_of_minibatches(rows, parts):
    policy = ScriptedPolicy(lambda *_: "")
    update(batch_of(rows), build(minibatch_rows=4), policy, seed=0)
    assert sorted(len(batch) for batch, _, _ in policy.updates) == parts


def test_minibatches_and_minibatch_rows_exclude_each_other():
    with pytest.raises(TacitError, match="both divide the batch"):
        Schedule(minibatches=2, minibatch_rows=4)


def test_credit_terms_add_up_per_group():
    groups = [make_group([[1]]), make_group([[2]])]
    ones = [Credit.per_step(g, np.ones(1)) for g in groups]
    twos = [2 * c for c in ones]
    assert [c.tokens_T.tolist() for c in sum_terms([ones, twos])] == [[3.0], [3.0, 3.0]]
    assert sum_terms([[], []]) == []
    with pytest.raises(ValueError, match="zip"):
        sum_terms([ones, twos[:1]])


@dataclass
class Diary(Companion):
    """A companion that records its calls."""

    lines: list
    name = "diary"

    def observe(self, groups, policy, info):
        self.lines.append(("observe", len(groups), len(policy.updates)))
        return {"observed": 1.0}

    def learn(self, groups, policy, info):
        self.lines.append(("learn", len(groups), len(policy.updates)))
        return {"learned": 1.0}


def test_companions_observe_before_the_update_and_learn_after():
    diary = Diary([])
    done, _ = run(replace(build(), companions=(diary,)))
    assert diary.lines == [("observe", 3, 0), ("learn", 3, 1)]
    assert done.metrics["observed"] == done.metrics["learned"] == 1.0


def test_final_observation_reaches_the_trajectory():
    done, _ = run(build())
    assert all(isinstance(t.final, Observation) and "target" in t.final.text for g in done.played for t in g.trajectories)


def test_sampling_parameters_come_from_the_schedule():
    _, policy = run(build(temperature=0.7, top_p=0.95))
    assert {(s.temperature, s.top_p) for s in policy.samplings} == {(0.7, 0.95)}
    _, policy = run(build())
    assert {s.top_p for s in policy.samplings} == {1.0}, "the default is no truncation"
