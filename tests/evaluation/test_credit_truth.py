"""Monte Carlo values of steps, in a maze where the true values are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scripted import ScriptedPolicy
from small_maze import GAMMA, LIMIT, TASKS, WORLD, Maze, action_value, make_setup, value

from tacit.core.errors import TacitError
from tacit.core.protocols import Sampling
from tacit.core.types import PLAIN, Group, Observation
from tacit.evaluation.credit_truth import (
    AFTER,
    MidwayContext,
    MidwayWorld,
    continuations,
    split_midway,
    states_of,
    taken_turn,
    value_group,
)
from tacit.prompts.history import History
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.worlds import InProcessPool

SETUP = make_setup()
GROUPS = SETUP.collect(1)


def start_midway(task, done):
    return replace(task, data={**task.data, AFTER: tuple(done)})


def exact(group: Group, gamma: float = GAMMA) -> tuple[np.ndarray, np.ndarray]:
    """(Q, V) of every step."""
    q, v = [], []
    for trajectory in group.trajectories:
        for t, step in enumerate(trajectory.steps):
            q.append(action_value(step.observation.text, step.action, LIMIT - t, gamma))
            v.append(value(step.observation.text, LIMIT - t, gamma))
    return np.array(q), np.array(v)


@pytest.mark.slow
def test_monte_carlo_q_and_v_match_the_maze():
    group = Group(TASKS[0], tuple(sorted(GROUPS[0].trajectories, key=len)[-3:]))
    truth = value_group(SETUP, group, 300, GAMMA)
    q_N, v_N = exact(group)
    assert np.ptp(q_N - v_N) > 0.5, "there is something to find"
    for half in (0, 1):
        # at least 150 continuations per state: a standard error of at most 0.04
        np.testing.assert_allclose(truth.q_HN[half], q_N, atol=0.13)
        np.testing.assert_allclose(truth.v_HN[half], v_N, atol=0.13)
    assert (truth.v_HN[0] != truth.v_HN[1]).any()


@pytest.mark.slow
def test_halves_are_unbiased_and_independent():
    """Over many small estimates of one group, the mean is the truth and the errors of the halves are uncorrelated."""
    group = Group(TASKS[0], GROUPS[0].trajectories[:2])
    q_N, v_N = exact(group)
    valued = [value_group(SETUP, group, 4, GAMMA, seed) for seed in range(100)]
    errors_SHN = np.array([truth.q_HN - truth.v_HN for truth in valued]) - (q_N - v_N)
    mean_N, error_N = errors_SHN.mean((0, 1)), errors_SHN.mean(1).std(0) / 100**0.5
    assert (np.abs(mean_N) < 4 * error_N + 1e-9).all()
    one, two = (errors_SHN[:, h].ravel() for h in (0, 1))
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.2


@pytest.mark.slow
def test_discount_and_terminal_values():
    trajectories = [t for g in GROUPS for t in g.trajectories]
    won = next(t for t in trajectories if t.success and len(t) > 1)
    out_of_time = next(t for t in trajectories if len(t) == LIMIT and not t.success)
    for gamma in (0.5, 1.0):
        truth = value_group(SETUP, Group(TASKS[0], (won, out_of_time)), 200, gamma)
        last = len(won) - 1
        assert truth.q_HN[:, last].tolist() == [1.0, 1.0], "won: worth one, whatever comes after it"
        assert truth.q_HN[:, -1].tolist() == [0.0, 0.0], "out of time: worth nothing"
        np.testing.assert_allclose(truth.q_HN[0, 0], action_value("start", won.steps[0].action, LIMIT, gamma), atol=0.13)


def test_continuation_counts_for_every_state_it_visits():
    group = GROUPS[0]
    found, episodes, steps = continuations(SETUP, group, 2)
    states = {state for trajectory in group.trajectories for state in states_of(trajectory)}
    assert set(found) == states and steps > episodes > 0
    counts = {done: sum(map(len, halves)) for (_, done), halves in found.items()}
    assert counts[()] == 2 * 4, "many steps share the start, nobody comes through it again"
    assert sum(counts.values()) > episodes, "most come through several"
    for (condition, done), halves in found.items():
        assert condition == PLAIN and all(halves)
        assert all(1 <= n <= LIMIT - len(done) for ends in halves for _, n in ends)


def test_midway_episode_has_the_recorded_prompts():
    setup = make_setup(turns=None)
    group = setup.collect(3)[0]
    whole = max(group.trajectories, key=len)
    make, context = WORLD.make, MidwayContext(setup.context, WORLD.make)
    for t, step in enumerate(whole.steps):
        task = start_midway(whole.task, [taken_turn(s) for s in whole.steps[:t]])
        assert split_midway(task) == (whole.task, tuple((s.action, None) for s in whole.steps[:t]))
        observation = MidwayWorld(make(), LIMIT).reset(task)
        assert observation == step.observation
        assert context.begin(task, PLAIN).read(observation).text == step.prompt.text
    assert context.style == "bare"


class Talker(ScriptedPolicy):
    """Answers by turn: every other answer is not an action, and those all differ."""

    def __init__(self, act: str) -> None:
        super().__init__(lambda prompt, seed: act if prompt.count("assistant") % 2 else f"Well, {seed} is what I think of it")

    def encode_chat(self, chat):
        return self.encode_prompt(repr(chat))

    def encode_answer(self, chat, answer):
        raise AssertionError("nobody imitates here")


CALL = '<tool_call>{"name": "act", "arguments": {"action": "left"}}</tool_call>'
TAGGED = "<think>so</think><action>left</action>"


@pytest.mark.parametrize(("style", "act"), [("tools", CALL), ("tags", TAGGED)], ids=["tools", "tags"])
def test_midway_conversation_keeps_the_agents_own_words(style, act):
    """In a chat the agent reads its own completions, so replaying only the actions would change the prompt."""
    context = History(WORLD.wording("full"), None, False, style, chat=True)
    plans = [EpisodePlan(TASKS[0], seed) for seed in (1, 2)]
    one, other = rollout(plans, context, InProcessPool(Maze), Talker(act), Sampling(max_tokens=64), LIMIT)
    assert [s.valid for s in one.steps] == [False, True, False, True]
    midway = MidwayContext(context, Maze)
    for t, step in enumerate(one.steps):
        task = start_midway(one.task, [taken_turn(s) for s in one.steps[:t]])
        assert midway.begin(task, PLAIN).read(MidwayWorld(Maze(), LIMIT).reset(task)) == step.prompt
    assert states_of(one)[0] == states_of(other)[0]
    assert states_of(one)[1] != states_of(other)[1], "the same place, and other words to read"


def test_step_limit_includes_replayed_steps():
    world = MidwayWorld(Maze(), LIMIT)
    world.reset(start_midway(TASKS[0], [(action, None) for action in ("right", "left", "left", "left")]))
    assert not world.step("left").done and world.step("left").done


class Moody(Maze):
    """Shows a different observation at each reset."""

    count = 0

    def reset(self, task):
        type(self).count += 1
        super().reset(task)
        return Observation(f"start, time {self.count}")


class Brittle(Maze):
    """Raises on the next step after going right, as the recorded members did."""

    broken = False

    def step(self, action):
        if Brittle.broken and self._place == "cellar":
            raise RuntimeError("the stairs are gone")
        return super().step(action)


def test_nondeterministic_world_is_refused():
    moody = make_setup(replace(WORLD, make=Moody))
    with pytest.raises(TacitError, match="do not lead to the same state"):
        value_group(moody, GROUPS[0], 2)


def test_state_whose_continuations_all_crash_is_reported():
    group = next(g for g in GROUPS if any(s.observation.text == "cellar" for t in g.trajectories for s in t.steps))
    setup = make_setup(replace(WORLD, make=Brittle))
    assert value_group(setup, group, 2).episodes > 0
    Brittle.broken = True
    try:
        with pytest.raises(TacitError, match="the world broke whenever an episode went on from step"):
            continuations(setup, group, 2)
    finally:
        Brittle.broken = False


def test_empty_group_has_no_values():
    truth = value_group(SETUP, Group(TASKS[0], ()), 4)
    assert truth.q_HN.shape == truth.v_HN.shape == (2, 0) and truth.episodes == 0
