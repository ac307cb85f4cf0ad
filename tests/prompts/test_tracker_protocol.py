"""The tracker protocol can express what the paper tracks and rewards in WebShop and ScienceWorld (§3.1, Table 6, Figures 5 and
6). Sketches of their trackers along scripted transitions; rewards by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from plain_words import Plain
from scripted import ScriptedPolicy

from tacit.core.hindsight import component_names, score_events, sum_signals
from tacit.core.method import Method
from tacit.core.protocols import Sampling
from tacit.core.types import Group, Observation, Task, Transition
from tacit.core.world import Environment
from tacit.methods.constant_context import ConstantContext
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.worlds import InProcessPool


@dataclass(frozen=True)
class Purchase:
    required: frozenset[str]
    query: str = ""
    product: str = ""
    selected: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()
    recent: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


class ShopTracker:
    """Tracks query, product, selected and remaining options, and readiness to buy."""

    version = "shop-0"
    progress = {"option": 0.15, "ready": 0.10}
    errors = {"wrong_option": 0.10, "premature": 0.25, "loop": 0.10, "visited": 0.08}
    components = component_names(progress, errors)

    def start(self, task, observation):
        return Purchase(frozenset(task.data["options"]))

    def update(self, state, action, transition):
        verb, _, what = action.partition(" ")
        after, events = state, []
        if verb == "search":
            after = replace(state, query=what)
        elif verb == "open":
            events += ["visited"] if what in state.seen else []
            after = replace(state, product=what, seen=state.seen | {what})
        elif verb == "choose":
            after = replace(state, selected=state.selected | {what})
            events.append("option" if what in state.required else "wrong_option")
            events += ["ready"] if not self.ready(state) and self.ready(after) else []
        elif verb == "buy" and not self.ready(state):
            events.append("premature")
        events += ["loop"] if len(state.recent) == 2 and action == state.recent[0] != state.recent[1] else []
        return replace(after, recent=(*state.recent, action)[-2:], events=tuple(events))

    def ready(self, state):
        return state.required <= state.selected

    def render(self, state):
        left = ", ".join(sorted(state.required - state.selected)) or "nothing"
        return f"query: {state.query}; product: {state.product}; left: {left}; ready: {self.ready(state)}"

    def signals(self, before, after):
        good = [event for event in after.events if event in self.progress]
        return sum_signals(
            score_events(good, self.progress), score_events([e for e in after.events if e in self.errors], self.errors)
        )


@dataclass(frozen=True)
class Experiment:
    score: float = 0.0
    focused: bool = False
    fault: str = ""


class LabTracker:
    """Pays increases of the environment's graded score, and a milestone once."""

    version = "lab-0"
    per_score = 100 / 33
    components = component_names(("score", "focused"), ("refused",))

    def start(self, task, observation):
        return Experiment()

    def update(self, state, action, transition):
        focused = state.focused or action.startswith("focus")
        return Experiment(transition.score, focused, "" if transition.effective else "refused")

    def render(self, state):
        return f"focused: {state.focused}"

    def signals(self, before, after):
        gained = {"score": self.per_score * (after.score - before.score), "focused": 0.5 * (after.focused - before.focused)}
        return sum_signals(gained, {after.fault: 0.1} if after.fault else {})


class Script:
    """A world that returns the given transitions for any action."""

    def __init__(self, answers: Sequence[Transition]) -> None:
        self._answers = iter(answers)

    def reset(self, task: Task) -> Observation:
        return Observation("start")

    def step(self, action: str) -> Transition:
        return next(self._answers)

    def close(self) -> None:
        pass


def rewards(tracker, actions: Sequence[str], answers: Sequence[Transition], **settings) -> list[float]:
    """The rewards constant context gives each step of a scripted episode, played through a rollout."""
    task = Task("w", "w/1", "f", "train", 0, "win", {"options": ["red", "large"]})
    words = {"full": Plain(), "terse": Plain()}
    world = Environment(
        "w", "", len(actions), lambda: Script(answers), lambda *_: [task], ("train",), ("f",), words, tracker=tracker
    )
    method: Method = ConstantContext(**settings).build(world)
    script = iter(actions)
    policy = ScriptedPolicy(lambda prompt, seed: next(script))
    (played,) = rollout([EpisodePlan(task, 0)], method.context, InProcessPool(world.make), policy, Sampling(), len(actions))
    assert [step.action for step in played.steps] == list(actions)
    group = Group(task, (played,))
    return list(sum(term([group])[0].flow_N for term in method.rewards))


def make_transitions(count: int) -> list[Transition]:
    return [Transition(Observation("page"))] * count


def test_webshop_rewards_by_hand():
    actions = ["search shirt", "open b1", "open b2", "open b1", "choose red", "choose blue", "choose large", "buy"]
    bought = Transition(Observation("thanks"), done=True, success=True, score=1.0)
    expected = [0.0, 0.0, 0.0, -0.08 - 0.10, 0.15, -0.10, 0.15 + 0.10, 3.0]
    assert rewards(ShopTracker(), actions, [*make_transitions(7), bought]) == pytest.approx([r - 0.01 for r in expected])
    partly = Transition(Observation("thanks"), done=True, score=0.5)
    assert rewards(ShopTracker(), ["buy"], [partly]) == pytest.approx([-0.25 - 0.01]), "only an exact purchase is a success"


def test_scienceworld_rewards_by_hand():
    actions = ["focus on seed", "fly", "water seed"]
    answers = [
        Transition(Observation("You focus."), score=0.25),
        Transition(Observation("No known action."), score=0.25, effective=False),
        Transition(Observation("It grows."), done=True, success=True, score=1.0),
    ]
    actual = rewards(LabTracker(), actions, answers, success_reward=1.0)
    assert actual == pytest.approx([25 / 33 + 0.5 - 0.01, -0.1 - 0.01, 75 / 33 + 1.0 - 0.01])
