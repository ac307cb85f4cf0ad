"""Rollouts with a batch sampler: how episodes end, and what a failing world costs."""

from __future__ import annotations

import math
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
from scripted import ScriptedPolicy, make_group, solve_countdown, stumble_through_countdown
from small_worlds import Corridor, Signs, corridor

from tacit.core.errors import TacitError
from tacit.core.method import Alike, Conditions
from tacit.core.protocols import Sampling
from tacit.core.seeds import derive
from tacit.core.types import Condition, Observation, StopReason, Transition
from tacit.prompts.history import History
from tacit.rollout.episodes import EpisodePlan, Mixed, RolloutProgress, rollout, rollout_groups
from tacit.rollout.worlds import InProcessPool, describe_crashes
from tacit.worlds import get_environment

COUNTDOWN = get_environment("countdown")
BARE = History(Signs(), turns=None, style="bare")


def walk(tasks, answer=lambda prompt, seed: "forward", max_steps=10, context=BARE, limit=100_000, timeout_s=5.0, make=Corridor):
    policy = ScriptedPolicy(answer, limit)
    plans = [EpisodePlan(task, seed=i) for i, task in enumerate(tasks)]
    played = rollout(plans, context, InProcessPool(make, timeout_s), policy, Sampling(max_tokens=8), max_steps)
    return played, policy


def test_solver_policy_wins_countdown_rollout():
    policy = ScriptedPolicy(solve_countdown)
    context = History(COUNTDOWN.wording("terse"), turns=0, admissible=False, style="bare")
    tasks = COUNTDOWN.tasks("train", 4, 0)
    groups = rollout_groups(tasks, 2, 0, Alike(), context, InProcessPool(COUNTDOWN.make), policy, Sampling(), 30)
    assert [g.task for g in groups] == tasks and all(len(g) == 2 for g in groups)
    for group in groups:
        for trajectory in group.trajectories:
            assert trajectory.success and trajectory.score == 1.0 and trajectory.stop is StopReason.SUCCESS
            assert len(trajectory) == len(group.task.data["numbers"]) - 1
            assert all(step.valid and step.effective for step in trajectory.steps)


def test_step_keeps_prompt_and_completion():
    (episode,), policy = walk([corridor(2)], lambda prompt, seed: " forward \nand more")
    first, second = episode.steps
    assert first.observation.text == "place 0 of 2" and second.observation.text == "place 1 of 2"
    assert first.prompt.text == "walk 2\nplace 0 of 2\n?"
    assert second.prompt.text == "walk 2\n1 place 0 of 2 then forward\nplace 1 of 2\n?"
    assert [policy.decode(s.prompt_tokens) for s in episode.steps] == [s.prompt.text for s in episode.steps]
    assert first.completion.text == " forward \nand more" and first.action == "forward"
    assert episode.final.text == "place 2 of 2"


def test_sampler_is_called_once_per_turn_for_open_episodes():
    played, policy = walk([corridor(1), corridor(3), corridor(2), corridor(3)])
    assert [len(call) for call in policy.calls] == [4, 3, 2]
    assert [len(t) for t in played] == [1, 3, 2, 3]


def test_task_can_lower_the_step_limit():
    limited = replace(corridor(9), data={**corridor(9).data, "max_steps": 2})
    played, _ = walk([limited, corridor(9)], max_steps=4)
    assert [len(t) for t in played] == [2, 4] and played[0].stop is StopReason.STEP_LIMIT
    assert [len(t) for t in walk([limited], max_steps=1)[0]] == [1]


def test_stop_reason_of_each_ending():
    actions = {"walk 9": "forward", "walk 2": "forward", "walk 3": "jump", "walk 4": "mumble"}
    tasks = [corridor(9), corridor(2), corridor(3), corridor(4)]
    played, _ = walk(tasks, lambda prompt, seed: actions[prompt.splitlines()[0]], max_steps=4)
    assert [t.stop for t in played] == [
        StopReason.STEP_LIMIT,
        StopReason.SUCCESS,
        StopReason.FAILURE,
        StopReason.STEP_LIMIT,
    ]
    assert [len(t) for t in played] == [4, 2, 1, 4]
    assert [t.detail for t in played] == ["", "", "fell", ""]
    assert played[0].score == pytest.approx(4 / 9) and not played[0].success
    assert not any(s.effective for s in played[3].steps) and played[3].steps[0].label == "refused"


def test_success_at_the_last_allowed_step_is_success():
    (episode,), _ = walk([corridor(3)], max_steps=3)
    assert episode.stop is StopReason.SUCCESS


def test_unparsed_action_still_reaches_the_world():
    (episode,), _ = walk([corridor(1)], lambda prompt, seed: "I stand here", context=replace(BARE, style="tags"), max_steps=1)
    (step,) = episode.steps
    assert not step.valid and step.action == "i stand here" and not step.effective


@pytest.mark.parametrize(
    ("trouble", "reason", "steps", "detail"),
    [
        ("reset", StopReason.WORLD_ERROR, 0, r"RuntimeError: the door is jammed \(small_worlds.py, line \d+\)"),
        ("raise", StopReason.WORLD_ERROR, 1, r"RuntimeError: the floor gave way \(small_worlds.py, line \d+\)"),
        ("quit", StopReason.WORLD_ERROR, 1, r"SystemExit: no more today \(small_worlds.py, line \d+\)"),
        ("hang", StopReason.WORLD_HANG, 1, "no answer within 0.2 s"),
        ("hang_in_reset", StopReason.WORLD_HANG, 0, "no answer within 0.2 s"),
    ],
)
def test_failing_world_ends_only_its_own_episode(trouble, reason, steps, detail):
    tasks = [corridor(3), corridor(3, trouble, at=1), corridor(3)]
    played, policy = walk(tasks, timeout_s=0.2)
    assert [t.stop for t in played] == [StopReason.SUCCESS, reason, StopReason.SUCCESS]
    assert re.fullmatch(detail, played[1].detail) and len(played[1]) == steps and not played[1].success
    assert len(policy.calls[-1]) == 2


def test_keyboard_interrupt_in_a_world_stops_the_rollout():
    with pytest.raises(KeyboardInterrupt):
        walk([corridor(3), corridor(3, "interrupt", at=1)])


class Answering(Corridor):
    """Returns `answer` for tasks with a nonzero `at`."""

    answer = Transition(Observation(""))

    def step(self, action):
        return self.answer if self._data["at"] else super().step(action)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ({"score": 12}, "the world gave 12 as score, which must be between 0 and 1: divide it by its maximum, or return"),
        ({"score": np.float32(-1)}, "the world gave -1 as score, which must be between 0 and 1"),
        ({"score": math.nan}, "the world gave nan as score, which must be a finite number"),
        ({"score": "0.5"}, "the world gave the text '0.5' as score, which must be a finite number"),
        ({"reward": None}, "the world gave None as reward, which must be a finite number"),
        ({"signals": {"progress": "far"}}, "the world gave the text 'far' as progress, which must be a finite number"),
        ({"done": "False"}, "the world gave the text 'False' as done, which must be True or False"),
        ({"label": 3}, "the label of the Transition that step returns must be text, but is 3"),
        ({"observation": Observation("", "go")}, "whose actions are a tuple of texts, but they are 'go'"),
    ],
)
def test_invalid_transition_ends_its_episode_with_the_reason(answer, why):
    make = type("Wrong", (Answering,), {"answer": replace(Answering.answer, **answer)})
    fine, wrong = walk([corridor(2), corridor(2, at=9)], make=make)[0]
    assert fine.stop is StopReason.SUCCESS
    assert wrong.stop is StopReason.WORLD_ERROR and why in wrong.detail
    assert describe_crashes([fine, wrong]).endswith(", in task 'corridor/29' of world 'corridor'")


def test_score_slightly_above_one_is_rounded_to_one():
    make = type("Rounded", (Answering,), {"answer": Transition(Observation("", ["go"]), True, score=1 + 1e-9)})
    (episode,), _ = walk([corridor(2, at=9)], make=make)
    assert episode.score == 1.0 and episode.stop is StopReason.FAILURE and episode.final.actions == ("go",)


@pytest.mark.slow
def test_hanging_world_is_named_in_the_progress_status():
    pool, progress, statuses = InProcessPool(Corridor, 1.0), RolloutProgress(1), []
    looking = threading.Timer(0.5, lambda: statuses.extend(progress.status()))
    looking.start()
    monkey = pytest.MonkeyPatch()
    monkey.setattr("tacit.rollout.episodes.SLOW_WORLD_S", 0.2)
    try:
        plans = [EpisodePlan(corridor(3, "hang", at=1), 0)]
        rollout(plans, BARE, pool, ScriptedPolicy(lambda *_: "forward"), Sampling(), 5, observer=progress)
    finally:
        monkey.undo()
    assert re.fullmatch(
        r"world 'corridor' has not answered for 0\.\d s in task 'corridor/3hang1'; its episode ends at 1\.0 s \(--world-.*\)",
        statuses[-1],
    )
    assert pool.slowest_call is None and "world" not in progress.status()[-1], "an ended episode is not pending"


def test_pool_continues_after_a_world_failed():
    pool, policy = InProcessPool(Corridor, 5.0), ScriptedPolicy(lambda *_: "forward")
    for trouble, stop in [("raise", StopReason.WORLD_ERROR), ("", StopReason.SUCCESS)]:
        (episode,) = rollout([EpisodePlan(corridor(1, trouble), 0)], BARE, pool, policy, Sampling(), 5)
        assert episode.stop is stop
    pool.close()


def test_failing_world_constructor_does_not_stop_the_rollout():
    worlds = []

    def make():
        worlds.append(1)
        if len(worlds) == 3:
            raise OSError("no more worlds")
        return Corridor()

    pool, policy = InProcessPool(make, 5.0), ScriptedPolicy(lambda *_: "forward")
    stops = []
    for _ in range(3):
        tasks = [corridor(1), corridor(1, "raise")]
        played = rollout([EpisodePlan(t, 0) for t in tasks], BARE, pool, policy, Sampling(), 5)
        stops.append([t.stop for t in played])
    assert stops == [[StopReason.SUCCESS, StopReason.WORLD_ERROR]] * 3


def test_long_prompts_drop_oldest_turns_then_stop():
    # "walk 9", newline, "place 0 of 9", newline, "?" are 13 tokens; a turn of history adds 14
    (episode,), policy = walk([corridor(9)], limit=13 + 14 + 8, max_steps=4)
    assert [s.prompt.history for s in episode.steps] == [
        (),
        ("1 place 0 of 9 then forward",),
        ("2 place 1 of 9 then forward",),
        ("3 place 2 of 9 then forward",),
    ]
    assert episode.stop is StopReason.STEP_LIMIT
    assert all(len(s.prompt_tokens) + 8 <= policy.context_limit for s in episode.steps)
    short, _ = walk([corridor(9), corridor(1)], limit=12 + 8)
    assert [t.stop for t in short] == [StopReason.PROMPT_TOO_LONG] * 2
    assert short[0].detail == "13 prompt + 8 new tokens > 20" and len(short[0]) == 0


def test_stop_strings_follow_the_style():
    for style, stop in [("bare", "\n"), ("tags", "</action>")]:
        _, policy = walk([corridor(1)], context=replace(BARE, style=style), max_steps=1)
        assert policy.samplings[0].stop == (stop,) and policy.samplings[0].max_tokens == 8


def test_member_seed_depends_only_on_group_and_position():
    context = History(COUNTDOWN.wording("terse"), turns=1, style="bare")
    tasks = COUNTDOWN.tasks("train", 3, 0)

    def play(tasks, size):
        policy = ScriptedPolicy(stumble_through_countdown)
        groups = rollout_groups(tasks, size, 5, Alike(), context, InProcessPool(COUNTDOWN.make), policy, Sampling(), 12)
        return [[(t.seed, [s.completion.text for s in t.steps]) for t in g.trajectories] for g in groups]

    whole = play(tasks, 4)
    assert whole[0][2][0] == derive(5, 0, 2)
    assert play(tasks[:1], 4) == whole[:1], "fewer groups"
    assert play(tasks, 2) == [g[:2] for g in whole], "smaller groups"
    seeds = [seed for g in whole for seed, _ in g]
    assert len(set(seeds)) == len(seeds)


def test_each_turn_has_its_own_seed():
    _, policy = walk([corridor(3), corridor(3)])
    seeds = [seed for call in policy.calls for _, seed in call]
    assert len(set(seeds)) == 6 and policy.calls[1][1][1] == derive(1, 1)


class Guided(Conditions):
    def __init__(self, count):
        self._count = count

    def assign(self, task, size, seed):
        return [Condition("guided", note=f"note {m} {seed}", entry=f"e{m}") for m in range(self._count)]


def test_group_members_get_their_conditions():
    policy = ScriptedPolicy(lambda *_: "forward")
    (group,) = rollout_groups([corridor(1)], 2, 3, Guided(2), BARE, InProcessPool(Corridor), policy, Sampling(), 5)
    assert [t.condition.entry for t in group.trajectories] == ["e0", "e1"]
    note = f"<note>\nnote 1 {derive(3, 'conditions', 0)}\n</note>"
    assert group.trajectories[1].steps[0].prompt.text == f"walk 1\n{note}\nplace 0 of 1\n?"


def test_wrong_number_of_conditions_is_rejected():
    policy = ScriptedPolicy(lambda *_: "forward")
    with pytest.raises(TacitError, match="3 conditions for a group of 2"):
        rollout_groups([corridor(1)] * 2, 2, 3, Guided(3), BARE, InProcessPool(Corridor), policy, Sampling(), 5)


def test_context_signals_are_kept_in_the_step():
    class Measuring(History):
        def begin(self, task, condition):
            reader = super().begin(task, condition)
            reader.record = lambda action, transition, raw_text: {"progress": transition.score}
            return reader

    (episode,), _ = walk([corridor(2)], context=Measuring(Signs(), 0, style="bare"))
    assert [s.signals for s in episode.steps] == [{"progress": 0.5}, {"progress": 1.0}]


def test_numpy_values_of_a_world_become_plain_python():
    class Numpy(Corridor):
        def step(self, action):
            t = super().step(action)
            return Transition(t.observation, np.bool_(t.done), np.bool_(t.success), np.float32(t.score), np.bool_(t.effective))

    (episode,), _ = walk([corridor(2)], make=Numpy)
    assert type(episode.success) is bool and type(episode.score) is float and type(episode.steps[0].effective) is bool


def test_empty_rollout_returns_no_episodes():
    assert walk([])[0] == []


def test_mixed_filter_keeps_only_groups_with_both_outcomes():
    assert Mixed().keep(make_group([[1], [1]], success=[True, False]))
    assert not Mixed().keep(make_group([[1], [1]], success=[True, True]))
    assert not Mixed().keep(make_group([[1], [1]], success=[False, False]))
    assert not Mixed().keep(make_group([[1]], success=[True]))


class Slips(Signs):
    """A wording that raises in one method for one task."""

    def __init__(self, where, error):
        self._where, self._error = where, error

    def task(self, task):
        return self._slip("task", task.goal) or super().task(task)

    def turn(self, number, observation, action):
        return self._slip("turn", observation.text) or super().turn(number, observation, action)

    def now(self, number, observation, admissible):
        return self._slip("now", observation.text) or super().now(number, observation, admissible)

    def _slip(self, where, text):
        # only the task of length 5 has these texts
        if where == self._where and text in ("walk 5", "place 1 of 5"):
            raise self._error
        return ""


@pytest.mark.parametrize(
    ("where", "steps", "doing"),
    [("task", 0, "beginning the episode"), ("now", 1, "writing the prompt"), ("turn", 1, "recording the turn")],
)
def test_failing_wording_ends_only_its_own_episode(where, steps, doing):
    tasks = [corridor(3), corridor(4), corridor(5), corridor(3)]
    played, policy = walk(tasks, context=History(Slips(where, KeyError("lamp")), None, style="bare"))
    assert [t.stop for t in played] == [StopReason.SUCCESS] * 2 + [StopReason.WORLD_ERROR, StopReason.SUCCESS]
    assert played[2].detail.startswith(f"{doing}: KeyError: 'lamp' (test_episodes.py, line")
    assert len(played[2]) == steps and not played[2].success
    assert [len(t) for t in played] == [3, 4, steps, 3] and len(policy.calls[-1]) == 1


@pytest.mark.parametrize("where", ["task", "now", "turn"])
def test_tacit_error_stops_the_rollout(where):
    with pytest.raises(TacitError, match="raise the bound"):
        walk([corridor(5)], context=History(Slips(where, TacitError("raise the bound")), None, style="bare"))


def test_pool_continues_after_a_context_failed():
    pool, policy = InProcessPool(Corridor, 5.0), ScriptedPolicy(lambda *_: "forward")
    slips = History(Slips("now", KeyError("lamp")), 0, style="bare")
    for context, stop in [(slips, StopReason.WORLD_ERROR), (BARE, StopReason.SUCCESS)]:
        (episode,) = rollout([EpisodePlan(corridor(5), 0)], context, pool, policy, Sampling(), 9)
        assert episode.stop is stop
