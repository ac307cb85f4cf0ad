"""What a world can define beside success: action format, rewards and signals; and which values are errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from questions import FOUND, QUESTIONS, Library, Words
from scripted import ScriptedPolicy
from scripted import Words as Tokens
from small_worlds import Corridor, Signs, corridor

from tacit.core.actions import Bare, Parsed
from tacit.core.protocols import Sampling
from tacit.core.types import Group, Observation, StopReason, Transition
from tacit.prompts.history import History, StateBlock
from tacit.rewards.outcome import Outcome, StepSignals
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.worlds import InProcessPool
from tacit.runs.trajectories import trajectory_from_record, trajectory_record
from tacit.training.demonstrations import demonstrate

TASKS = QUESTIONS.tasks("train", 2, 0)
CONTEXT = History(QUESTIONS.wording("full"))


def play(answer, tasks=TASKS, context=CONTEXT, make=QUESTIONS.make, steps=4):
    policy = ScriptedPolicy(answer)
    plans = [EpisodePlan(task, i) for i, task in enumerate(tasks)]
    return rollout(plans, context, InProcessPool(make), policy, Sampling(max_tokens=32), steps), policy


def look_up(prompt: str, seed: int) -> str:
    """Searches for the name in the question, then answers with the name found in the text."""
    name = prompt.splitlines()[0].removeprefix("Who or what is ").rstrip("?")
    for who in ("Jane Austen", "a database"):
        if who in prompt:
            return f"<think>There it is.</think><answer>{who}</answer>"
    return f"<think>Let me see.</think><search>{name}</search>"


def test_world_with_its_own_action_format_is_played():
    (emma, database), policy = play(look_up)
    assert [s.action for s in emma.steps] == ["search Emma", "answer Jane Austen"] and emma.success
    assert [s.action for s in database.steps] == ["search EMMA", "answer a database"] and database.success, "case is kept"
    assert all(s.valid for t in (emma, database) for s in t.steps)
    assert policy.samplings[0].stop == ("</search>", "</answer>")
    assert emma.steps[1].prompt.history == ("Nothing was looked up yet. > search Emma",)


def test_other_action_formats_do_not_parse():
    (episode,), _ = play(lambda prompt, seed: "<think>so</think><action>search Emma</action>", TASKS[:1], steps=2)
    assert not any(s.valid or s.effective for s in episode.steps) and episode.stop is StopReason.STEP_LIMIT


def test_demonstrations_use_the_action_format_of_the_world():
    tokens = Tokens()
    examples = demonstrate(QUESTIONS, TASKS, CONTEXT, tokens, 4)
    assert [tokens.decode(c[:-1]) for c in examples.completions[:2]] == [
        "<think></think><search>Emma</search>",
        "<think></think><answer>Jane Austen</answer>",
    ]


def test_world_rewards_and_signals_are_kept_in_each_step():
    played, _ = play(look_up)
    group = Group(TASKS[0], tuple(played))
    assert [s.reward for s in group.steps] == [FOUND, 1.0] * 2
    assert group.steps[0].signals == {"progress": 1.0, "error": 0.0}
    (rewards,) = Outcome(2.0, "steps")([group])
    assert rewards.flow_N.tolist() == [2 * FOUND, 2.0] * 2
    (judged,) = StepSignals(step_cost=0.0)([group])
    assert judged.flow_N.tolist() == [1.0, 1.0] * 2, "no tracker and no state block are needed"


def test_graded_score_is_used_as_outcome_reward():
    (episode,), _ = play(lambda prompt, seed: "<think>hm</think><answer>jane austen</answer>", TASKS[:1])
    assert not episode.success and episode.score == 0.5
    (rewards,) = Outcome(10.0, "score")([Group(TASKS[0], (episode,))])
    assert rewards.outcomes_G().tolist() == [5.0]


class Counting:
    """A tracker with a signal of the same name as the world's."""

    version, components = "1", ("progress", "turns")

    def start(self, task, observation):
        return 0

    def update(self, state, action, transition):
        return state + 1

    def render(self, state):
        return f"turn {state}"

    def signals(self, before, after):
        return {"progress": 7.0, "turns": float(after)}


def test_tracker_signal_overrides_the_world_signal():
    context = StateBlock(Words(), Counting(), style="tags")
    (episode, _), _ = play(look_up, context=context)
    assert episode.steps[0].signals == {"progress": 7.0, "error": 0.0, "turns": 1.0}


def test_rewards_and_signals_survive_a_record_round_trip():
    (episode, _), _ = play(look_up)
    record = trajectory_record(episode)
    assert record["turns"][0]["earned"] == FOUND and record["turns"][0]["signals"] == {"progress": 1.0, "error": 0.0}
    again = trajectory_from_record(record, episode.task)
    assert [(s.reward, s.signals) for s in again.steps] == [(s.reward, s.signals) for s in episode.steps]
    silent = rollout([EpisodePlan(corridor(1), 0)], History(Signs(), style="bare"), InProcessPool(Corridor),
                     ScriptedPolicy(lambda *_: "forward"), Sampling(), 2)  # fmt: skip
    assert not {"earned", "signals"} & set(trajectory_record(silent[0])["turns"][0])


class Odd(Library):
    """A world that returns numpy numbers, and a NaN reward in one task."""

    def step(self, action):
        answer = super().step(action)
        reward = np.float32("nan") if self._answer == "a database" else np.float64(answer.reward)
        return replace(answer, reward=reward, signals={"progress": np.int64(1)})


def test_nan_reward_ends_only_its_own_episode():
    (sound, broken), _ = play(look_up, make=Odd)
    assert sound.success and type(sound.steps[0].reward) is float and type(sound.steps[0].signals["progress"]) is float
    assert (
        broken.stop is StopReason.WORLD_ERROR
        and broken.detail == "ValueError: the world gave nan as reward, which must be a finite number"
    )


@pytest.mark.parametrize("field", ["score", "reward", "signals"])
def test_every_number_of_a_transition_is_validated(field):
    wrong = {"signals": {"score": float("inf")}} if field == "signals" else {field: float("inf")}
    with pytest.raises(ValueError, match=r"the world gave inf as (score|reward)"):
        Transition(Observation(""), **wrong).in_plain_numbers()


class Careless(Bare):
    def parse(self, text: str) -> Parsed:
        if "stumble" in text:
            raise KeyError("lamp")
        return super().parse(text)


class Slipping(Signs):
    formats = {"bare": Careless()}


def test_failing_action_parser_ends_only_its_own_episode():
    def answer(prompt: str, seed: int) -> str:
        return "stumble" if "1 of 5" in prompt else "forward"

    tasks = [corridor(3), corridor(5), corridor(4)]
    played, _ = play(answer, tasks, History(Slipping(), 0, style="bare"), Corridor, 9)
    assert [t.stop for t in played] == [StopReason.SUCCESS, StopReason.WORLD_ERROR, StopReason.SUCCESS]
    assert (
        played[1].detail.startswith("reading the action: KeyError: 'lamp' (test_world_rewards_and_signals.py")
        and len(played[1]) == 1
    )
