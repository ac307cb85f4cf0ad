"""The constant context: its parts, its ablations, and its bounded size."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from plain_words import TASK, Plain, Recalling
from scripted import ScriptedPolicy, stumble_through_countdown

from tacit.core.errors import TacitError
from tacit.core.protocols import Sampling
from tacit.core.types import PLAIN, Condition, Observation, Transition
from tacit.prompts.history import History, StateBlock
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.worlds import InProcessPool
from tacit.worlds import get_environment


@dataclass(frozen=True)
class Diary:
    """A tracker that counts turns; with `gossip` it renders all past actions, so the block grows."""

    gossip: bool = False
    version: str = "diary-1"

    def start(self, task, observation):
        return [f"{task.goal} from {observation.text}"]

    def update(self, state, action, transition):
        return [*state, action]

    def render(self, state):
        return "block: " + (" ".join(state) if self.gossip else f"{state[0]}, {len(state) - 1} done")

    def signals(self, before, after):
        return {"progress": float(len(after) - len(before)), "error": 0.25}


def prompts(context, turns=4, condition=PLAIN):
    reader = context.begin(TASK, condition)
    out = []
    for t in range(turns):
        out.append(reader.read(Observation(f"o{t}", ("a",))))
        assert reader.record(f"a{t}", Transition(Observation(f"o{t + 1}"))) == {"progress": 1.0, "error": 0.25}
    return out


def test_prompt_has_task_previous_turn_block_and_observation():
    first, *_, last = prompts(StateBlock(Plain(), Diary()))
    assert first.text.splitlines() == ["task: win", "block: win from o0, 0 done", "1: see o0", "answer bare"]
    assert last.text.splitlines() == [
        "task: win",
        "3: saw o2, did a2",
        "block: win from o0, 3 done",
        "4: see o3",
        "answer bare",
    ]


def test_prompt_mentions_previous_turn_only_when_shown():
    first, second, *_ = prompts(StateBlock(Recalling(), Diary()))
    assert first.now == "block: win from o0, 0 done\n1: see o0"
    assert second.now == "block: win from o0, 1 done\nafter what stands above, 2: see o1"
    assert second.without_oldest().now == "block: win from o0, 1 done\n2: see o1", "the block stays"
    assert prompts(StateBlock(Recalling(), Diary(), one_step=False))[1].now == "block: win from o0, 1 done\n2: see o1"


def test_ablations_drop_prompt_parts_but_keep_signals():
    """The helper `prompts` checks the signals."""
    assert prompts(StateBlock(Plain(), Diary(), block=False))[-1].text.splitlines()[1:3] == ["3: saw o2, did a2", "4: see o3"]
    assert prompts(StateBlock(Plain(), Diary(), one_step=False))[-1].history == ()
    bare = prompts(StateBlock(Plain(), Diary(), block=False, one_step=False))
    memoryless = History(Plain(), 0, admissible=False, style="bare").begin(TASK, PLAIN)
    assert bare[0] == memoryless.read(Observation("o0", ("a",)))


def test_context_without_block_equals_react_history():
    """ReAct-1step shows the previous turn, ReAct-full all turns, both in the same words."""
    block, react = StateBlock(Plain(), Diary(), block=False, style="tags"), History(Plain(), 1, admissible=False)
    for context in (react, replace(react, turns=None)):
        reader = context.begin(TASK, PLAIN)
        reader.read(Observation("o0"))
        reader.record("a0", Transition(Observation("o1")))
        assert reader.read(Observation("o1")) == prompts(block, 2)[1]


def test_admissible_actions_are_listed_on_request():
    assert prompts(StateBlock(Plain(), Diary(), admissible=True))[0].now.endswith("1: see o0 ['a']")


def test_note_follows_the_task_and_is_outside_the_bound():
    context = StateBlock(Plain(), Diary(), bound=80)
    noted = prompts(context, condition=Condition("guided", "x" * 500))[-1]
    assert noted.text.splitlines()[:4] == ["task: win", "<note>", "x" * 500, "</note>"]
    assert noted.with_notes(task_note="") == prompts(context)[-1]


def test_prompt_beyond_the_bound_is_an_error():
    context = StateBlock(Plain(), Diary(gossip=True), bound=120)
    with pytest.raises(
        TacitError, match=r"turn \d+ of task 'w/1' has \d+ characters, more than the bound of 120 .*state block"
    ):
        prompts(context, 50)
    exact = len(prompts(StateBlock(Plain(), Diary()), 1)[0].text)
    assert prompts(StateBlock(Plain(), Diary(), bound=exact), 1)
    with pytest.raises(TacitError, match="turn 1 "):
        prompts(StateBlock(Plain(), Diary(), bound=exact - 1), 1)


def test_two_episodes_share_no_state():
    context = StateBlock(Plain(), Diary())
    assert prompts(context) == prompts(context)


def test_tracker_signals_are_stored_in_rollout_steps():
    world = get_environment("countdown")
    context = StateBlock(world.wording("terse"), world.tracker)
    plans = [EpisodePlan(task, seed) for seed, task in enumerate(world.tasks("train", 4, 0))]
    policy = ScriptedPolicy(stumble_through_countdown)
    played = rollout(plans, context, InProcessPool(world.make), policy, Sampling(max_tokens=32), 12)
    steps = [step for trajectory in played for step in trajectory.steps]
    names = {"progress", "error", *world.tracker.components}
    assert all({"progress", "error"} <= set(step.signals) <= names for step in steps)
    assert {step.signals["error"] for step in steps if step.action == "hm"} == {0.3}
    for trajectory in played:
        assert trajectory.success == (trajectory.steps[-1].signals["progress"] >= 1.0)


@pytest.mark.parametrize(("name", "limit"), [("alfworld", 4000), ("countdown", 4000), ("cooking", 4000), ("webshop", 4000)])
@pytest.mark.parametrize("wording", ["full", "terse"])
def test_expert_prompts_stay_within_the_default_bound(name, limit, wording):
    """Whole expert episodes."""
    world = get_environment(name)
    context = StateBlock(world.wording(wording), world.tracker)
    assert context.bound == limit
    for task in world.tasks("train", 12, 5):
        live, expert, reader = world.make(), world.expert()(task), context.begin(task, PLAIN)
        observation = live.reset(task)
        for _ in range(world.max_steps):
            prompt = reader.read(observation)
            assert len(prompt.history) <= 1 and len(prompt.text) <= limit
            action = expert.act(observation)
            transition = live.step(action)
            reader.record(action, transition)
            observation = transition.observation
            if transition.done:
                break
