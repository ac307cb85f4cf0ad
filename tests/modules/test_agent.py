"""The Agent class in user code acts turn by turn as in an evaluation."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tacit.cli.main import main
from tacit.core.errors import TacitError
from tacit.core.seeds import derive
from tacit.core.tasks import GoalClassifier
from tacit.core.types import Observation, Transition
from tacit.evaluation.panels import PANEL_SEED, Panel
from tacit.modules import Agent
from tacit.worlds import get_environment

WORLD = get_environment("alfworld")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "modules.md"


def by_hand(agent: Agent, task, seed: int, steps: int) -> list[str]:
    world, actions = WORLD.make(), []
    agent.begin(task, seed=seed)
    observation = world.reset(task)
    for _ in range(steps):
        actions.append(agent.act(observation))
        assert agent.prompt is not None and len(agent.prompt.history) <= 1 and len(agent.prompt.text) < 4000
        transition = world.step(actions[-1])
        agent.observe(transition)
        observation = transition.observation
    return actions


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_agent_acts_turn_by_turn_as_in_an_evaluation(modules: Path, tmp_path: Path, capsys, temperature: float) -> None:
    flags = ["--families", "heat,pick2", "--tasks", "4", "--temperature", str(temperature), "--out", str(tmp_path)]
    assert main(["eval", str(modules), *flags, "--json"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    lines = (tmp_path / result["episodes_file"]).read_text().splitlines()[1:]
    agent = Agent.load(modules, temperature=temperature)
    panel = Panel.of(WORLD, "seen", 4, ("heat", "pick2"))
    assert len(lines) == 4
    evaluated = {e["task"]: [turn["action"] for turn in e["turns"]] for e in map(json.loads, lines)}
    for i, task in enumerate(panel.tasks):
        seed = derive(PANEL_SEED, 0, i, 0)
        assert by_hand(agent, task, seed, 4) == evaluated[task.id]
        assert [s.action for s in agent.play(WORLD.make(), task, seed).steps] == evaluated[task.id]


@pytest.mark.slow
def test_agent_needs_only_a_goal_and_its_family(modules: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Agent.load(modules, temperature=0.0)
    task = WORLD.tasks_of("seen", 1, 5, ("heat",))[0]
    seen = WORLD.make().reset(task).text
    agent.begin(task)
    first = agent.act(Observation(seen))
    agent.begin(task.goal, family="heat")
    assert agent.act(seen) == first and agent.module.skill == "heat"
    agent.begin(task.goal)
    assert agent.act(seen) == first and agent.module.skill == "heat", "its words tell the family"
    monkeypatch.setattr(GoalClassifier, "MIN_ACCURACY", 1.1)  # as if goals did not identify families
    with pytest.raises(TacitError, match=r"begin\(goal, family=…\): heat \(heat\), pick \(pick, pick2\)"):
        Agent.load(modules).begin(task.goal)
    Agent.load(modules / "heat").begin(task.goal)


@pytest.mark.slow
def test_episode_is_unaffected_by_another_episode_in_between(modules: Path) -> None:
    """Playing a whole episode of another family in the middle of one does not change it."""
    agent = Agent.load(modules, temperature=0.0)
    heat, pick = WORLD.tasks_of("seen", 1, 2, ("heat",))[0], WORLD.tasks_of("seen", 1, 2, ("pick",))[0]
    expected = by_hand(agent, heat, 0, 2)
    world = WORLD.make()
    agent.begin(heat)
    transition = world.step(agent.act(world.reset(heat)))
    agent.observe(transition)
    agent.play(WORLD.make(), pick)
    assert agent.act(transition.observation) == expected[1]


def test_turns_out_of_order_are_refused(modules: Path) -> None:
    agent = Agent.load(modules / "heat")
    task = WORLD.tasks_of("seen", 1, 0, ("heat",))[0]
    with pytest.raises(TacitError, match=r"no episode in progress: call begin\(task\) first"):
        agent.act("hello")
    agent.begin(task)
    with pytest.raises(TacitError, match="no action to record a result for"):
        agent.observe(Transition(Observation("")))
    agent.act(WORLD.make().reset(task))
    with pytest.raises(TacitError, match=r"the result of .* was not recorded"):
        agent.act("again")


def test_observation_over_the_context_limit_is_refused(modules: Path) -> None:
    agent = Agent.load(modules / "heat")
    agent.begin(WORLD.tasks_of("seen", 1, 0, ("heat",))[0])
    with pytest.raises(TacitError, match="exceeds the model's 512"):
        agent.act("You see " + " ".join(f"x{i}" for i in range(700)))


def test_docs_example_runs(modules: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "household").symlink_to(modules)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, str(PAGE), "exec"), {"__name__": "example"})
    assert "put" in capsys.readouterr().out
