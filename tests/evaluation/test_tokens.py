"""Token counts of contexts: by hand, equal to a rollout's prompts, constant for the state block, growing for histories."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from scripted import ScriptedPolicy, Words, stumble_through_countdown
from skilled import episode

from tacit.core.errors import TacitError
from tacit.core.protocols import Sampling
from tacit.core.types import Observation, StopReason
from tacit.core.world import Wording
from tacit.evaluation.behavior import TokenUse, count_tokens, join_uses, react_contexts, replay_observations
from tacit.prompts.history import History, StateBlock
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.worlds import InProcessPool
from tacit.worlds import get_environment

WORLD = get_environment("countdown")
BLOCK = StateBlock(WORLD.wording("terse"), WORLD.tracker)


class Plain(Wording):
    """Every part is one word, so tokens (words and the gaps between them) can be counted by hand."""

    separator = "\n"

    def task(self, task):
        return "task"

    def turn(self, number, observation, action):
        return f"{observation.text}:{action}"

    def now(self, number, observation, admissible):
        return " ".join([observation.text, *observation.actions]) if admissible else observation.text

    def request(self, style):
        return style


def played(context, count=6, limit=12, answer=stumble_through_countdown):
    plans = [EpisodePlan(task, seed) for seed, task in enumerate(WORLD.tasks("train", count, 0))]
    return rollout(plans, context, InProcessPool(WORLD.make), ScriptedPolicy(answer), Sampling(max_tokens=32), limit)


def test_token_counts_by_hand():
    """Three turns without admissible actions. A gap counts as a token, and so does the end of an action."""
    trajectory = episode("ABC", success=True)
    one, _, full, _ = count_tokens([trajectory], react_contexts(Plain()), Words())
    assert (one.context, full.context) == ("ReAct-1step with actions", "ReAct-full with actions")
    # task, now and request with two gaps; each past turn adds itself and a gap
    assert one.prompts[0].tolist() == [5, 7, 7] and full.prompts[0].tolist() == [5, 7, 9]
    assert one.actions[0].tolist() == [2, 2, 2], "<think></think><action>A</action> is one word, and its end"
    assert (
        one.figures["prompt_tokens_per_turn"] == pytest.approx(19 / 3)
        and full.figures["prompt_tokens_per_turn"] == pytest.approx(7.0)
        and full.figures["longest_prompt"] == 9
    )
    assert one.figures["tokens_per_episode"] == 19 + 6 and full.figures["tokens_per_episode"] == 21 + 6
    assert one.figures["growth_per_turn"] == 0.0 and full.figures["growth_per_turn"] == 2.0
    assert full.figures["by_turn"] == [5.0, 7.0, 9.0]


def test_means_are_over_episodes_that_reached_the_turn():
    uses = TokenUse("c", (np.array([4, 6, 8]), np.array([2])), (np.array([1, 1, 1]), np.array([3])))
    assert (
        uses.figures["prompt_tokens_per_turn"] == 5.0
        and uses.figures["action_tokens_per_turn"] == 1.5
        and uses.figures["tokens_per_episode"] == 13.0
        and uses.figures["growth_per_turn"] == 2.0
    )
    assert uses.figures["by_turn"] == [3.0, 6.0, 8.0] and uses.figures["turns"] == 4


def test_joined_parts_equal_the_whole():
    parts = [count_tokens([episode(skills)], {"own": History(Plain(), None)}, Words())[0] for skills in ("ABC", "A")]
    (whole,) = count_tokens([episode("ABC"), episode("A")], {"own": History(Plain(), None)}, Words())
    assert join_uses(parts).figures == whole.figures


def test_no_episodes_give_zero_counts():
    (use,) = count_tokens([], {"own": BLOCK}, Words())
    assert (
        use.figures["prompt_tokens_per_turn"],
        use.figures["tokens_per_episode"],
        use.figures["longest_prompt"],
        use.figures["growth_per_turn"],
        use.figures["by_turn"],
    ) == (0.0, 0.0, 0, None, [])
    (short,) = count_tokens([episode("AB")], {"own": History(Plain(), None)}, Words())
    assert short.figures["growth_per_turn"] is None


def test_admissible_actions_are_counted_if_in_the_prompt():
    trajectory = episode("A")
    step = replace(trajectory.steps[0], observation=Observation("here", ("up", "down")))
    trajectory = replace(trajectory, steps=(step,))
    listed, bare = count_tokens([trajectory], {"a": History(Plain(), 1), "b": History(Plain(), 1, False)}, Words())
    assert listed.figures["longest_prompt"] == bare.figures["longest_prompt"] + 4


def test_react_is_counted_with_and_without_admissible_actions():
    """Three turns with two admissible actions each: without them, two words and two gaps less per prompt."""
    trajectory = episode("ABC", success=True)
    steps = tuple(replace(s, observation=replace(s.observation, actions=("up", "down"))) for s in trajectory.steps)
    uses = count_tokens([replace(trajectory, steps=steps)], react_contexts(Plain()), Words())
    assert {use.context: use.prompts[0].tolist() for use in uses} == {
        "ReAct-1step with actions": [9, 11, 11],
        "ReAct-1step without actions": [5, 7, 7],
        "ReAct-full with actions": [9, 11, 13],
        "ReAct-full without actions": [5, 7, 9],
    }


@pytest.mark.parametrize(
    "context",
    [BLOCK, History(WORLD.wording("terse"), 1, style="bare"), History(WORLD.wording("full"), None, style="bare")],
    ids=["state block", "one turn", "all turns"],
)
def test_counted_tokens_equal_the_rollouts_prompts(context):
    """The same context on the same episode renders the same prompts."""
    episodes = played(context, answer=lambda prompt, seed: WORLD_ANSWERS[seed % 3])
    (use,) = count_tokens(episodes, {"own": context}, Words())
    assert [p.tolist() for p in use.prompts] == [[len(s.prompt_tokens) for s in t.steps] for t in episodes]
    assert use.figures["turns"] == sum(map(len, episodes)) > 20


WORLD_ANSWERS = ("reset", "hm", "rollback")


def test_crashed_episodes_are_left_out():
    broken = replace(episode("AB"), stop=StopReason.WORLD_ERROR)
    (use,) = count_tokens([broken, episode("A")], {"own": History(Plain(), 1)}, Words())
    assert use.figures["episodes"] == 1 and use.figures["turns"] == 1


def test_unparsed_completion_is_counted_as_written():
    (use,) = count_tokens([episode("-A")], {"own": History(Plain(), 1)}, Words())
    assert use.actions[0].tolist() == [2, 2]


EARLY, LATE = slice(5, 12), slice(25, 40)


@pytest.mark.parametrize("name", ["alfworld", "cooking", "countdown"])
def test_state_block_stays_constant_while_full_history_grows(name):
    """Long random episodes in every world with a tracker."""
    world = get_environment(name)
    wording = world.wording("terse")
    own = StateBlock(wording, world.tracker)
    wander = History(wording, 0, style="bare")
    rng = Random(3)

    def answer(prompt, seed):
        """a random admissible action that cannot end the game"""
        listed = prompt.rpartition("[")[2].partition("]")[0].split("; ")
        final = ("eat", "drink", "cook", "prepare", "slice", "dice", "chop")
        return rng.choice([a for a in listed if a.split()[0] not in final])

    plans = [EpisodePlan(task, seed) for seed, task in enumerate(world.tasks("train", 8, 0))]
    episodes = rollout(plans, wander, InProcessPool(world.make), ScriptedPolicy(answer), Sampling(max_tokens=32), 40)
    assert max(map(len, episodes)) == 40 and len({step.action for t in episodes for step in t.steps}) > 20
    block, one, _, full, _ = count_tokens(episodes, {"own": own, **react_contexts(wording)}, Words())
    changes = []
    for wandered, tokens in zip(episodes, block.prompts, strict=True):
        # Cooking's recipe adds a line from the turn that reads it. Before and after that turn nothing may grow.
        read = next((n for n, step in enumerate(wandered.steps) if "Ingredients:" in step.observation.text), len(tokens))
        changes += [np.diff(tokens[1:read]), np.diff(tokens[read + 1 :])]
    assert (
        np.concatenate(changes).mean() < 0.5
        and full.figures["growth_per_turn"] > 1.0
        and full.figures["prompt_tokens_per_turn"] > one.figures["prompt_tokens_per_turn"]
    )

    def mean(use, turns):
        return np.mean(use.figures["by_turn"][turns])

    assert mean(full, LATE) - mean(full, EARLY) > 5 * max(0.0, mean(block, LATE) - mean(block, EARLY))
    assert mean(full, LATE) > 2 * mean(block, LATE)


def test_replay_restores_admissible_actions():
    context = History(WORLD.wording("terse"), 1, admissible=True, style="bare")
    episodes = played(context)
    recorded = [
        replace(
            t,
            steps=tuple(replace(s, observation=Observation(s.observation.text)) for s in t.steps),
            final=Observation(t.final.text),
        )
        for t in episodes
    ]
    (short,) = count_tokens(recorded, {"own": context}, Words())
    (right,) = count_tokens(episodes, {"own": context}, Words())
    (again,) = count_tokens([replay_observations(t, WORLD.make()) for t in recorded], {"own": context}, Words())
    assert [p.tolist() for p in again.prompts] == [p.tolist() for p in right.prompts]
    assert short.figures["prompt_tokens_per_turn"] < right.figures["prompt_tokens_per_turn"]


def test_recording_of_another_world_is_refused():
    (trajectory, *_) = played(BLOCK)
    first, *rest = trajectory.steps
    other = replace(first, observation=Observation("numbers: 1 2 3 | target: 6"))
    with pytest.raises(TacitError, match=r"turn 1 of the recorded episode of 'countdown/.*cannot be replayed"):
        replay_observations(replace(trajectory, steps=(other, *rest)), WORLD.make())
