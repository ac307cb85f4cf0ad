"""Errors raised by a world are reported during the run. If every episode breaks, the run stops."""

from __future__ import annotations

import io
import re
import time
from dataclasses import replace

import pytest
from guessing import SAME, Say
from scripted import ScriptedPolicy

from tacit.config.agents import open_target
from tacit.core.errors import TacitError
from tacit.core.method import Schedule
from tacit.core.protocols import Sampling
from tacit.core.types import Observation, Transition
from tacit.methods.grpo import GRPO
from tacit.rollout.episodes import EpisodePlan, rollout
from tacit.rollout.workers import WorkerPool
from tacit.rollout.worlds import InProcessPool
from tacit.runs.alarms import read_alarms
from tacit.runs.directory import Run
from tacit.training.demonstrations import demonstrate
from tacit.training.imitation import collect_demonstrations
from tacit.training.reporting import PlainReporter
from tacit.training.settings import EvaluationSettings, SupervisedSettings, TrainSettings
from tacit.training.setup import WorldSetup
from tacit.training.train import Trainer


class Raising(Say):
    """Raises if the current letter is in `letters`."""

    letters = "abcdefgh"

    def step(self, action):
        if self._letter in self.letters:
            raise RuntimeError("the floor gave way")
        return super().step(action)


class Sometimes(Raising):
    letters = "ab"


class GymReset(Say):
    def reset(self, task):
        return super().reset(task), {}


class GymStep(Say):
    def step(self, action):
        return "done", 1.0, True, False, {}


class Silent(Say):
    def step(self, action):
        return None


class Bare(Say):
    def step(self, action):
        return Transition("done")


class Numbers(Say):
    def reset(self, task):
        return Observation(7)


def environment(kind):
    return replace(SAME, make=lambda: kind(0))


def train(path, kind, untrained: bool = True) -> str:
    """Train and return the output."""
    world, out = environment(kind), io.StringIO()
    schedule = Schedule(groups=8, group_size=2, iterations=3)
    method = GRPO(kl=0.0, schedule=schedule).with_prompt(wording="terse", style="bare", admissible=False).build(world)
    settings = TrainSettings(tasks=8, evaluation=EvaluationSettings(tasks=8, split="test", untrained=untrained))
    run = Run.create(path, {"method": {}})
    try:
        policy = ScriptedPolicy(lambda prompt, seed: prompt.strip()[-1])
        Trainer(run, policy, [WorldSetup.of(world, method, settings)], settings, PlainReporter(out, 0.0)).train()
    finally:
        run.close()
    return out.getvalue()


def test_run_stops_when_every_episode_breaks(tmp_path):
    with pytest.raises(
        TacitError,
        match=r"each of the 16 .* gave way \(test_broken_w.*, line \d+\), .* of world 'same'\. Iteration 1 has no.*--resume",
    ):
        train(tmp_path / "a", Raising, untrained=False)
    assert list((tmp_path / "a" / "trajectories").iterdir()), "the crashed episodes are saved"
    with pytest.raises(
        TacitError, match=r"each of the 8 episodes .* gave way.* of world 'same'\. There is nothing to evaluate"
    ):
        train(tmp_path / "b", Raising)


def test_broken_episodes_are_reported_once_and_counted(tmp_path):
    output = train(tmp_path / "run", Sometimes)
    first, in_practice, last = [line for line in output.splitlines() if "world broke" in line]
    why = "2 of 8 episodes ended because the world broke; the first: RuntimeError: the floor gave way (test_broken"
    assert first.startswith(f"warning at untrained 0: {why}") and last.startswith(f"warning at rl 3: {why}")
    assert first.endswith("of world 'same'")
    assert re.match("warning at rl 1: 4 of 16 episodes .*Example: RuntimeError: the floor gave way", in_practice)
    assert output.count("crashed 4") == 3
    (alarm,) = read_alarms(tmp_path / "run")
    assert (alarm.name, alarm.step) == ("crashed", 1) and alarm.example.startswith("RuntimeError: the floor gave way (test_")
    assert "crashed" not in train(tmp_path / "sound", Say)


GYM = [
    (GymReset, r"reset must return an Observation\(text\), but returned a tuple of \(Observation, dict\), as Gym's worlds do"),
    (GymStep, r"step must return a Transition\(observation, done, success\), .*\(str, float, bool, bool, dict\), as Gym's"),
    (Silent, "step must return a Transition.*, but returned nothing"),
    (Bare, "the Transition that step returns must hold an Observation.*, but returned a str"),
    (Numbers, "reset must return an Observation.*, but its text is an int"),
]


@pytest.mark.parametrize(("kind", "explained"), GYM)
def test_wrong_return_type_is_explained(tmp_path, kind, explained):
    with pytest.raises(TacitError, match=explained):
        train(tmp_path / "run", kind)
    with pytest.raises(TacitError, match=f"won none of 4 tasks within 1 steps \\(4 broke; the first: TypeError: {explained}"):
        world = environment(kind)
        context = GRPO().with_prompt(wording="terse", style="bare", admissible=False).context(world)
        demonstrate(world, world.tasks("train", 4, 0), context, ScriptedPolicy(lambda prompt, seed: ""), 1)


class Sleeping(Say):
    def step(self, action):
        time.sleep(60)


def test_world_that_hangs_under_the_expert_times_out(tmp_path):
    world = environment(Sleeping)
    settings = TrainSettings(tasks=8, sft=SupervisedSettings(steps=1, tasks=2), world_timeout_s=0.1)
    method = GRPO().with_prompt(wording="terse", style="bare", admissible=False).build(world)
    with pytest.raises(
        TacitError, match=r"won none of 2 tasks .*2 broke; the first: TimeoutError: no answer within 0.1 s, in task"
    ):
        collect_demonstrations(
            WorldSetup.of(world, method, settings), ScriptedPolicy(lambda prompt, seed: ""), 0, False, lambda text: None
        )


class Pondering:
    """An expert that never returns an action."""

    def __init__(self, task):
        pass

    def act(self, observation):
        time.sleep(60)

    def happened(self, action):
        pass


PONDERED = replace(SAME, experts={"pondering": Pondering})
LATE = "TimeoutError: no answer of the expert within 0.05 s"


def test_expert_that_hangs_times_out_in_imitation():
    settings = TrainSettings(tasks=8, sft=SupervisedSettings(steps=1, tasks=2), world_timeout_s=0.05)
    method = GRPO().with_prompt(wording="terse", style="bare", admissible=False).build(PONDERED)
    setup = WorldSetup.of(PONDERED, method, settings)
    with pytest.raises(TacitError, match=f"won none of 2 tasks .*2 broke; the first: {LATE}, in task"):
        collect_demonstrations(setup, ScriptedPolicy(lambda prompt, seed: ""), 0, False, lambda text: None)


def test_expert_that_hangs_times_out_in_evaluation(monkeypatch):
    monkeypatch.setattr("tacit.config.agents.open_world", lambda name: PONDERED)
    target = open_target("expert", {("world",): "same", ("world_timeout_s",): 0.05})
    (episode,) = rollout(
        [EpisodePlan(PONDERED.tasks("train", 1, 0)[0], 0)],
        target.context,
        InProcessPool(PONDERED.make),
        target.policy,
        Sampling(),
        2,
    )
    assert episode.stop.crashed and episode.detail.startswith(f"the agent's act: {LATE}")


def make_gym():
    return GymReset(0)


def test_wrong_return_type_is_explained_in_worker_processes():
    worlds = WorkerPool(make_gym, processes=1)
    try:
        (in_worker,) = worlds.reset(SAME.tasks("train", 1, 0))
    finally:
        worlds.close()
    (here,) = InProcessPool(make_gym).reset(SAME.tasks("train", 1, 0))
    assert in_worker == here and "as Gym's worlds do" in here.detail
